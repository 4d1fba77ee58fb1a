"""Prompts: Markdown templates that anyone can read and replace, and the one function that fills them in.

A template is split into turns at its `<<<role>>>` lines *before* anything is filled in, and text from an env
(captions, programs' errors) enters only through the `quote` filter, as one JSON string without brackets of the kinds
that mark up prompts, or backticks. So no text from an env can open a turn, close a block or end its own quotation, in
our templates or in a model's chat template. Names of actions, which stand unquoted, go through `name`.

A folder of one's own, or `bare`, replaces templates turn by turn (`open_prompts`): a file that has a system turn and no
other keeps the shipped questions.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, cached_property, lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bkrl.core.errors import InputError, UsageError
from bkrl.core.files import read_text
from bkrl.core.registry import did_you_mean
from bkrl.text.prompts.bounds import MEMORY, SECONDS, fits

if TYPE_CHECKING:
    from jinja2 import Environment, Template

LONGEST_QUOTE = 4000
LONGEST_TURN = 1_000_000
_TURN = re.compile(r"^<<<(system|user|assistant)>>>\n", re.MULTILINE)
_LONGEST_NAME = 40
_FOLDER = Path(__file__).parent
_BARE = _FOLDER / "bare"
_FILE = re.compile(r"[a-z0-9_]+\.md")
_PIECE = re.compile(r"(world|layout|explore)_[a-z0-9]+")
_VALUES = {
    "pref": {"world", "a", "b"},
    "goal": {"world", "segment"},
    "code": {"world", "layout", "horizon", "examples"},
    "code_error": {"error"},
    "code_improve": {"count", "lowest", "mean", "highest", "components", "ordering", "examples"},
    "code_evolve": {"tasks", "steps", "score", "others", "number", "count"},
    "repair": {"reason", "format"},
    "explore": {"family", "situation"},
    "belongs": {"thing", "place"},
    "choose_pref": {"world", "a", "b", "criterion"},
    "choose_point": {"world", "segment", "criterion", "first", "second"},
    "choose_subgoal": {"world", "goal"},
    "choose_need": {"world", "goal", "other"},
    "choose_goal": {"world", "situation", "goal", "first", "second"},
}
"""What each template with turns is given."""
_OF_PIECES = {"layout": {"layout"}, "code": {"world", "layout", "horizon"}, "explore": set[str]()}
_NEEDED = {
    "pref": {"a", "b"},
    "goal": {"segment"},
    "code_error": {"error"},
    "code_evolve": {"number", "count"},
    "explore": {"situation"},
    "belongs": {"thing", "place"},
    "choose_pref": {"a", "b"},
    "choose_point": {"segment"},
    "choose_subgoal": {"goal"},
    "choose_need": {"goal", "other"},
    "choose_goal": {"situation", "goal"},
}
_ESCAPED = {mark: f"\\u{ord(mark):04x}" for mark in "<>&`[]|"}


class PromptTemplates:
    """The shipped templates, or those of a folder in their place; `renamed`: words in the place of others, at last."""

    def __init__(self, folder: Path | None = None, renamed: Mapping[str, str] | None = None) -> None:
        self.folder, self.renamed = folder, renamed or {}
        self._turns: dict[str, list[tuple[str, Template]]] = {}
        self._tried: set[str] = set()

    def render(self, name: str, **values: Any) -> list[tuple[str, str]]:
        """The turns of template `name` as (role, text), filled in with `values`; a value that is missing is an error.

        Raises InputError where a template of one's own cannot be filled in.
        """

        def work() -> list[tuple[str, str]]:
            with self._explained(name):
                if name not in self._turns:
                    own = dict(_split(self.own(f"{name}.md") or ""))
                    turns = [(role, own.get(role, text)) for role, text in _split(_shipped(f"{name}.md"))]
                    self._turns[name] = [(role, self._environment.from_string(text)) for role, text in turns]
                return [(role, template.render(**values).strip()) for role, template in self._turns[name]]

        return self._bounded(name, work)

    def piece(self, name: str, **values: Any) -> str:
        """A piece of prompt without turns, filled in with `values`."""

        def work() -> list[tuple[str, str]]:
            with self._explained(name):
                return [("", self._environment.from_string(self._source(f"{name}.md")).render(**values).strip())]

        return self._bounded(name, work)[0][1]

    def _bounded(self, name: str, work: Callable[[], list[tuple[str, str]]]) -> list[tuple[str, str]]:
        """The turns that `work` makes of a template; one's own are tried the first time."""
        own = self.folder not in (None, _BARE)
        if own and name not in self._tried:
            self._try(name, work)
            self._tried.add(name)
        turns = work()
        if own and (longest := max(len(text) for _, text in turns)) > LONGEST_TURN:
            raise InputError(
                f"The prompt {name}.md of {self.folder} becomes {longest:,} characters long, and {LONGEST_TURN:,} are "
                "the most; shorten it."
            )
        return [(role, rename(text, self.renamed)) for role, text in turns]

    def _try(self, name: str, work: Callable[[], object]) -> None:
        """InputError where work on a template of one's own takes too much."""
        if not fits(work):
            raise InputError(
                f"The prompt {name}.md of {self.folder} takes more than {MEMORY >> 20} MiB or {SECONDS:g} s to fill "
                "in; take out what repeats so often."
            )

    def fingerprint(self, names: Iterable[str]) -> dict[str, str]:
        """sha256 of each named template, for the manifest; of one's own, with the shipped one that it stands for."""
        sources = {name: f"{self.own(f'{name}.md') or ''}{_shipped(f'{name}.md')}" for name in sorted(set(names))}
        return {name: hashlib.sha256(source.encode()).hexdigest() for name, source in sources.items()}

    def own(self, file: str) -> str | None:
        """The text of a file of the folder; None where it has no such file.

        Raises InputError for one that cannot be read, or lies elsewhere behind a link.
        """
        if self.folder is None or not (self.folder / file).exists():
            return None
        path = self.folder / file
        if not path.resolve().is_relative_to(self.folder.resolve()):
            raise InputError(f"The prompt {path} lies outside its folder; put the file itself there.")
        return read_text(path, f"The prompt {path}", "mend it, or name another folder with --prompt")

    def files(self, names: Iterable[str]) -> dict[str, Path]:
        """The files of one's own that decide what is asked: the named templates, and pieces that they may include."""
        if self.folder is None or self.folder == _BARE:
            return {}
        pieces = {path.stem for path in self.folder.glob("*.md")} - _files().keys()
        paths = {f"{name}.md": self.folder / f"{name}.md" for name in sorted({*names, *pieces})}
        return {file: path for file, path in paths.items() if path.exists()}

    def check(self) -> None:
        """Refuse a folder whose files replace nothing, leave it, or name values that the prompts do not have.

        Raises InputError.
        """
        from jinja2 import TemplateSyntaxError, meta
        from jinja2.nodes import EvalContextModifier

        assert self.folder is not None
        found = sorted(path.name for path in self.folder.glob("*.md")) if self.folder.is_dir() else []
        if not found:
            raise InputError(f"There are no prompts (.md files) in {self.folder}; --prompt takes bare or a folder.")
        for file in found:
            name, text = file.removesuffix(".md"), self.own(file) or ""
            if name not in names() and not _PIECE.fullmatch(name):
                near = did_you_mean(name, names())
                raise InputError(f"{self.folder / file} stands for no prompt.{near} There are {', '.join(names())}.")
            known = _VALUES.get(name, _OF_PIECES.get(name.partition("_")[0], {"world"}))
            before, *turns = _TURN.split(text)
            if (name in _VALUES) == bool(before.strip()) or bool(turns) != (name in _VALUES):
                form = "turns, each after a line such as <<<system>>>" if name in _VALUES else "text without turns"
                raise InputError(f"{self.folder / file} must hold {form}.")
            own = [role for role, _ in _split(text)]
            roles = [role for role, _ in _split(_shipped(file))] if name in _VALUES else []
            if set(own) - set(roles) or len(own) > len(set(own)):
                raise InputError(f"{self.folder / file} may have one turn of each of {', '.join(roles)}, and no other.")
            whole = dict(_split(_shipped(file))) | dict(_split(text)) if name in _VALUES else {"": text}
            try:
                parsed = [self._environment.parse(part) for part in whole.values()]
            except TemplateSyntaxError as error:
                raise InputError(f"{self.folder / file} is no template: {error.message}.") from None
            # its argument is computed before there are bounds
            if any(part.find(EvalContextModifier) for part in parsed):
                raise InputError(f"{self.folder / file} sets autoescape, which prompts do not need; leave it out.")
            for included in (one for part in parsed for one in meta.find_referenced_templates(part) if one):
                self._source(included)
            find = partial(map, self._undeclared, parsed)
            self._try(name, lambda find=find: list(find()))  # type: ignore[misc]
            used = set[str]().union(*find())
            if used - known:
                raise InputError(
                    f"{self.folder / file} asks for {', '.join(sorted(used - known))}; it is given "
                    f"{', '.join(sorted(known))}."
                )
            if missing := _NEEDED.get(name, set()) - used:
                raise InputError(
                    f"{self.folder / file} leaves out {', '.join(sorted(missing))}: nothing would be asked."
                )

    def _undeclared(self, parsed: Any) -> set[str]:
        """As `meta.find_undeclared_variables`, which computes constants."""
        from jinja2.meta import TrackingCodeGenerator

        found = TrackingCodeGenerator(self._environment)
        found.optimizer = None
        found.visit(parsed)
        return found.undeclared_identifiers

    @cached_property
    def _environment(self) -> Environment:
        from jinja2 import FunctionLoader, StrictUndefined, pass_context
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        environment = ImmutableSandboxedEnvironment(
            loader=FunctionLoader(self._source),
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            autoescape=False,
            # Without these two Jinja computes what is constant as it compiles, and hides that it ran out of memory.
            optimized=False,
            finalize=pass_context(lambda _, value: value),
        )
        environment.filters["quote"] = quote
        return environment

    def _source(self, file: str) -> str:
        if not _FILE.fullmatch(file):
            raise InputError(f"A prompt includes '{file}', which is no file of its folder.")
        own = self.own(file)
        return _shipped(file) if own is None else own

    @contextmanager
    def _explained(self, name: str) -> Iterator[None]:
        """Errors of a template of one's own in a sentence; those of a shipped one are ours."""
        from jinja2 import TemplateError

        try:
            yield
        except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError, RecursionError) as error:
            if self.folder is None:
                raise
            raise InputError(f"The prompt {name}.md of {self.folder} cannot be filled in: {error}.") from None


SHIPPED = PromptTemplates()


def open_prompts(choice: str | None, renamed: str | None = None) -> PromptTemplates:
    """The prompts that `--prompt` names (None: ours, `bare`: without knowledge, else a folder) in words of `--rename`.

    Raises InputError when a folder does not fit (`PromptTemplates.check`), UsageError for words that do not.
    """
    if choice is None and renamed is None:
        return SHIPPED
    words = dict(re.findall(r"([a-z]+)=([a-z]+)", renamed or ""))
    fits = renamed in (None, ",".join(map("=".join, words.items())) or None)
    if not fits or len({*words, *words.values()}) < 2 * len(words):
        raise UsageError(f"--rename {renamed} must read as ball=dax,key=wug does: small letters, each word once.")
    prompts = PromptTemplates(_BARE if choice == "bare" else None if choice is None else Path(choice), words)
    if choice is not None:
        prompts.check()
    return prompts


def rename(text: str, words: Mapping[str, str]) -> str:
    """`text` with other words in the place of some, in the plural and at the beginning of a sentence too."""

    def other(found: re.Match[str]) -> str:
        word = words[found[1].lower()] + ("s" if found[2] else "")
        return word.capitalize() if found[1][0].isupper() else word

    return re.sub(rf"(?<![A-Za-z\\])({'|'.join(words)})(e?s)?(?![A-Za-z])", other, text, flags=re.I) if words else text


def names() -> list[str]:
    """All templates of the package: those here and those that families of envs bring."""
    return sorted(_files())


@lru_cache(maxsize=1 << 14)  # captions come again and again
def quote(text: str) -> str:
    """`text` as one JSON string on one line: control, direction and zero-width characters gone, length bounded."""
    kept = "".join(_plain(character) for character in text)
    if len(kept) > LONGEST_QUOTE:
        kept = kept[:LONGEST_QUOTE] + "…"
    quoted = json.dumps(kept, ensure_ascii=False)
    return re.sub(r"[<>&`|\[\]]", lambda found: _ESCAPED[found[0]], quoted)


def name(text: str) -> str:
    """`text` as a name that may stand unquoted: letters, digits, spaces, hyphens and underscores, at most 40."""
    return re.sub(r"[^\w -]+|\s+", " ", text).strip()[:_LONGEST_NAME] or "unnamed"


def _plain(character: str) -> str:
    if character in "\n\r\t":
        return " "
    kind = unicodedata.category(character)[0]
    return " " if kind == "Z" else "" if kind == "C" else character


def _split(text: str) -> list[tuple[str, str]]:
    """The turns of a template as (role, text)."""
    pieces = _TURN.split(text)[1:]
    return list(zip(pieces[::2], pieces[1::2], strict=True))


@cache
def _files() -> dict[str, Path]:
    """The file of each template of the package."""
    families = (_FOLDER.parents[1] / "envs").glob("*/prompts/*.md")
    return {file.stem: file for file in (*_FOLDER.glob("*.md"), *families)}


@cache
def _shipped(file: str) -> str:
    try:
        return _files()[file.removesuffix(".md")].read_text("utf-8")
    except KeyError:
        raise UsageError(f"There is no prompt '{file}'; the package has {', '.join(names())}.") from None
