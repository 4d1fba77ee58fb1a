"""A language model that starts from advice on its actions (`agents.advised`).

Its files are those of the language model, so that others open `policy/` as before, and `policy.advice.safetensors`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, TypedDict

from bkrl.agents import FORMAT
from bkrl.agents.advised import Advice, AdvisedAgent
from bkrl.agents.language.agent import LanguageAgent
from bkrl.agents.networks import fitted, of_spec
from bkrl.agents.weights import read_weights, write_weights
from bkrl.core.errors import UsageError
from bkrl.core.files import atomic_write, check_files, read_json, sha256, to_json
from bkrl.core.flags import Flag
from bkrl.text.wording import Wording


class _Spec(TypedDict):
    """`network` in policy.json: where the language model is said, and its advice."""

    name: str
    base: str
    advice: dict[str, Any]
    weight: float
    until: Annotated[int, Flag("", least=1)]


class _Document(TypedDict):
    """policy.json."""

    network: _Spec
    sha256: str


class AdvisedLanguageAgent(AdvisedAgent):
    """See `AdvisedAgent`; what it reads is what its base reads."""

    name: ClassVar[str] = "advised-language"
    base: LanguageAgent

    def reworded(self, wording: Wording, env_id: str) -> AdvisedLanguageAgent:
        """See `LanguageAgent.reworded`; UsageError where the advice is on other actions."""
        if self.now and self.advice.vocabulary is not None and wording.rewords:
            raise UsageError("its advice reads missions as the env words them")
        base = self.base.reworded(wording, env_id)
        if self.now and len(base.action_names) != len(self.action_names):
            raise UsageError(
                f"its advice is on {len(self.action_names)} actions, and there are {len(base.action_names)}"
            )
        return AdvisedLanguageAgent(base, self.advice, self.now, self.until)

    def save(self, folder: Path, name: str = "policy") -> list[str]:
        """Write the files of the base, its document as `NAME.base.json`, `NAME.advice.safetensors` and `NAME.json`."""
        files = self.base.save(folder, name)
        document, base, advice = (folder / f"{name}{end}" for end in (".json", ".base.json", ".advice.safetensors"))
        atomic_write(base, document.read_bytes())
        write_weights(advice, self.advice)
        spec = {**self.spec, "base": base.name}
        atomic_write(document, to_json({"format": FORMAT, "network": spec, "sha256": sha256(advice)}))
        return [*files, base.name, advice.name]

    @classmethod
    def load(cls, folder: Path, name: str = "policy") -> AdvisedLanguageAgent:
        """Read an agent back; InputError when it is missing, damaged or of another format."""
        document: _Document = read_json(folder / f"{name}.json", _Document)
        weights, spec = folder / f"{name}.advice.safetensors", document["network"]
        check_files(folder, {weights.name: document["sha256"]})
        base = LanguageAgent.load(folder, f"{name}.base", files=name)
        said = "the advice that is described beside them"
        advice = fitted(lambda: Advice(of_spec(spec["advice"]), 1.0), read_weights(weights), said)
        return cls(base, advice, spec["weight"], spec["until"])
