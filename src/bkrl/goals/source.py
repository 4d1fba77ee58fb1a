"""Where an agent's goals come from, as a value that a policy file can hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from bkrl.core.errors import InputError
from bkrl.envs import situations
from bkrl.goals.book import GoalBook
from bkrl.goals.match import Matcher
from bkrl.goals.suggesters import plain_suggester
from bkrl.goals.tracker import GoalTracker, PayRule, Success
from bkrl.text.encoders import EncoderSettings, open_encoder


@dataclass
class Source:
    """Goals of one kind in any number of envs.

    Attributes:
        env_id: the env whose situations they are of.
        book: what each situation brings.
        rule, success: see `GoalTracker`.
        plain: name, rates and seed of a suggester that asks nobody, so that a policy file can name it; {} for others,
            whose book is kept instead.
        encoder: settings of the matcher's encoder, and its threshold; {} for equal words.
    """

    env_id: str
    book: GoalBook
    rule: PayRule
    success: Success
    plain: dict[str, Any] = field(default_factory=dict)
    encoder: dict[str, Any] = field(default_factory=dict)

    def of(self, num_envs: int) -> GoalTracker:
        """See `agents.goal.GoalSource`."""
        return GoalTracker(self.book, num_envs, self.rule, self.success)

    def to_json(self) -> dict[str, Any]:
        """See `agents.goal.GoalSource`."""
        return {
            "env_id": self.env_id,
            "rule": self.rule,
            "success": self.success,
            "plain": self.plain,
            "encoder": self.encoder,
            "book": [] if self.plain else [[key, goals] for key, goals in self.book.goals.items()],
        }

    @classmethod
    def of_json(cls, document: Mapping[str, Any]) -> Source:
        """The source that `to_json` described. It asks nobody: situations that are not in its book have no goals."""
        try:
            known = situations(document["env_id"])
            plain, encoder = dict(document["plain"]), dict(document["encoder"])
            threshold = encoder.pop("threshold", 1.0)
            matcher = Matcher(known, open_encoder(cast(EncoderSettings, encoder)) if encoder else None, threshold)
            suggester = plain_suggester(situations=known, **plain) if plain else None
            source = cls(document["env_id"], GoalBook(known, suggester, matcher), document["rule"], document["success"])
            source.plain, source.encoder = plain, dict(document["encoder"])
            source.book.enter([(int(key), goals) for key, goals in document["book"]])
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"The policy's goals cannot be read ({error}); train the policy again.") from None
        return source
