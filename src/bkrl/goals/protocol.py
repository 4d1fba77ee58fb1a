"""What a suggester of goals is."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

from numpy.typing import NDArray

from bkrl.llm.session import AskSession

Goals = tuple[str, ...]
"""The goals of one situation, in words."""


class Account(Protocol):
    """What asking took, as a checkpoint holds it."""

    def state(self) -> dict[str, NDArray[Any]]: ...

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None: ...


class Adviser(Protocol):
    """What suggesters and judges have in common.

    Attributes:
        name: as in `--suggester`.
    """

    name: str

    @property
    def session(self) -> AskSession | None:
        """Who is asked, if anybody."""

    @property
    def account(self) -> Account | None:
        """What counts the questions."""

    def facts(self) -> dict[str, Any]:
        """What a manifest says of it."""


class Suggester(Adviser, Protocol):
    """Suggests goals for situations (`envs.family.GoalSpace`), each of which it is asked about once."""

    def suggest(self, keys: Sequence[int]) -> list[Goals | None]:
        """The goals of each situation; None where they are not known yet."""

    def poll(self) -> Mapping[int, Goals]:
        """What has become known since the last call, by situation."""


class Known:
    """What suggesters and judges that know their answers at once have in common.

    Attributes:
        said: what a manifest says of it beyond its name.
    """

    session = account = None
    said: Mapping[str, Any] = MappingProxyType({})

    def poll(self) -> Mapping[Any, Any]:
        """Nothing comes later."""
        return {}

    def facts(self) -> dict[str, Any]:
        return dict(self.said)
