"""One labelling shared out over several machines: which questions are whose.

A question belongs to the shard that a hash of its words points at. So the same words are never asked on two machines,
whichever pairs they come from and in whichever order they are shown, and no machine needs to know of the others.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass

from bkrl.core.errors import UsageError
from bkrl.data.dataset import Dataset, Segment
from bkrl.labelers.material import segment_text


@dataclass(frozen=True)
class Shard:
    """Part `number` (from 1) of `count`."""

    number: int = 1
    count: int = 1

    @classmethod
    def parse(cls, text: str | None) -> Shard:
        """From `2/4`; None is the whole. UsageError for anything else."""
        if text is None:
            return cls()
        match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise UsageError(f"--shard is i/n with i from 1 to n, like 1/4, not '{text}'.")
        return cls(int(match[1]), int(match[2]))

    def holds(self, dataset: Dataset, *segments: Segment) -> bool:
        """Whether the question about these segments, in any order, is this shard's."""
        if self.count == 1:
            return True
        texts = sorted(
            json.dumps([text.captions, text.actions]) for text in (segment_text(dataset, s) for s in segments)
        )
        digest = hashlib.sha256("\n".join(texts).encode("ascii")).digest()
        return int.from_bytes(digest[:8], "big") % self.count == self.number - 1

    def conversations(self, votes: int) -> range:
        """The conversations of `--variant code` that are this shard's: every `count`-th. UsageError when none is."""
        if self.count > votes:
            raise UsageError(
                f"With --variant code shards divide the conversations, and --votes {votes} are fewer than {self.count} "
                "shards; raise --votes or take fewer shards."
            )
        return range(self.number - 1, votes, self.count)
