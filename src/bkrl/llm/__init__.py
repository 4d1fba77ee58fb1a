"""Asking language models: one protocol, one ask loop, one store; who answers is a name like `openai:MODEL`."""

from collections.abc import Callable

from bkrl.core.errors import UsageError
from bkrl.core.registry import Registry, load_plugins
from bkrl.llm.protocol import Backend, Connection

__all__ = ["BACKENDS", "SPECS", "annotators", "open_backend", "register_annotator"]

BACKENDS: Registry[Callable[[str, Connection], Backend]] = Registry("llm")
_ROWS = (
    ("rules", "rules:RulesBackend", "nothing", "hand-written heuristics: no language model, no key, no network"),
    ("votes", "votes:VotesBackend", "nothing", "people's votes, by which Housekeep judges: no language model"),
    ("exact", "controls:ExactBackend", "a level that can be solved", "exact optimal values: the truth (`bkrl label`)"),
    ("random", "controls:RandomBackend", "nothing", "control: closed questions answered at random"),
    ("equal", "controls:EqualBackend", "nothing", "control: closed questions answered with equal chances"),
    ("words", "controls:WordsBackend", "nothing", "control: the segment whose end names what its mission names"),
    (
        "openai:MODEL",
        "openai:OpenAIBackend",
        "OPENAI_API_KEY",
        "any OpenAI-compatible endpoint (OPENAI_BASE_URL: vLLM, Ollama, llama.cpp, …)",
    ),
    ("local:NAME", "local:from_catalogue", "bkrl lm fetch NAME", "a model of `bkrl lm list` on this machine"),
    ("gguf:PATH", "local:from_gguf", "the file", "a language model in a GGUF file"),
    ("hf:NAME_OR_PATH", "local:from_folder", "the weights", "a local transformers model"),
    (
        "replay:RUN_OR_FILE",
        "replay:ReplayBackend",
        "a label run or a file",
        "answers given before; a question never asked is an error",
    ),
)
CONTROLS = ("random", "equal")
"""Those that know nothing; `random:SEED` draws by a seed."""
LOCAL_MODELS = ("local", "gguf")
"""Language models that this machine computes itself."""
CLOSED_ONLY = ("exact", "words", *CONTROLS)
"""Those that answer closed questions alone."""
USUALLY_CLOSED = (*LOCAL_MODELS, *CLOSED_ONLY)
"""Those that labels ask closed questions unless told otherwise, but for pairs by `random`, which are a coin's."""
UNINFORMED = (*CONTROLS, "words", "return")
"""Annotators whose labels are controls: no language model was asked, and none of their answers is knowledge."""
EMBEDDED = ("rules", "votes", *CLOSED_ONLY)
"""Those that answer in this process, of what is written in the package."""
KNOWN_FAMILIES = {"rules": ("babyai", "crafter", "housekeep"), "votes": ("housekeep",), "exact": ("babyai",)}
"""Families of envs that a hand-written annotator knows; any other annotator reads what it is shown."""
SPECS = tuple((spec, needs, what) for spec, _, needs, what in _ROWS)
"""What `--llm` takes: how it is written, what it needs, and what it is."""
OF_OTHERS = tuple(spec.partition(":")[0] for spec, *_ in _ROWS if ":" in spec)
"""Those that take the name of a model."""
for _spec, _behind, _, _what in _ROWS:
    BACKENDS.add(_spec.partition(":")[0], f"bkrl.llm.{_behind}", f"{_spec}, {_what}")


def register_annotator(name: str, make: Callable[[str, Connection], Backend], help: str = "") -> None:
    """Make an annotator known as `--llm NAME` and `NAME:…`, and as a suggester of goals.

    Args:
        name: without a colon, and none of bkrl's own; ValueError otherwise.
        make: makes a `bkrl.llm.protocol.Backend`, given what stands after the colon and the settings of connections.
        help: one line for `bkrl list llms`.
    """
    if ":" in name:
        raise ValueError(f"annotator '{name}': the colon and what follows it are given to `make`")
    BACKENDS.add(name, make, help)


def annotators() -> Registry[Callable[[str, Connection], Backend]]:
    """Every annotator, those of plugins included."""
    load_plugins()
    return BACKENDS


def check_knows(spec: str, env_id: str, family: str) -> None:
    """UsageError where an annotator knows nothing of an env: said before anything is written or asked."""
    if family not in KNOWN_FAMILIES.get(spec, (family,)):
        names = ", ".join(KNOWN_FAMILIES[spec])
        raise UsageError(
            f"The {spec} annotator knows envs of {names}, and {env_id} is none of them; name a language model, such as "
            "openai:MODEL."
        )


def open_backend(spec: str, connection: Connection = Connection()) -> Backend:  # noqa: B008 - frozen
    """The backend that a name like `rules`, `openai:MODEL`, `hf:PATH` or `replay:RUN` stands for.

    Raises UsageError for an unknown name or a missing model, InputError when what it needs (a key, a file) is not
    there.
    """
    kind, colon, name = spec.partition(":")
    make = annotators().get(kind)
    if kind in EMBEDDED and colon and not (kind == "random" and name.isdecimal()):
        seed = ", but a number that it draws by, random:1" if kind == "random" else ""
        raise UsageError(f"--llm {kind} takes no model name{seed}.")
    if kind in OF_OTHERS and not name:
        raise UsageError(f"--llm {kind} needs a name after a colon: {BACKENDS.help(kind)}.")
    return make(name, connection)
