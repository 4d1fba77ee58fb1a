"""Reading a segment of experience back out of a prompt."""

import json
import re
from dataclasses import dataclass

from bkrl.llm.protocol import Fault


@dataclass(frozen=True)
class ReadSegment:
    """What the agent saw (n + 1 captions) and did (n actions), in order, and its mission, "" where that is not said.

    `done`: how often each thing was done in the episode by the segment's end; None where that is not said.
    """

    captions: tuple[str, ...]
    actions: tuple[str, ...]
    mission: str = ""
    done: dict[str, int] | None = None


def read_segment(text: str, name: str = "") -> ReadSegment:
    """The segment called `name` (or the only one) of a prompt's user turn. Raises Fault if there is none."""
    label = f" {name}" if name else ""
    found = re.search(rf"^Segment{label}:\n(.*?)^End of segment{label}\.$", text, re.DOTALL | re.MULTILINE)
    if found is None:
        raise unknown_prompt()
    captions, actions, mission, done = [], [], "", None
    for line in found[1].split("\n"):
        if line.startswith("sees "):
            captions.append(json.loads(line[5:]))
        elif line.startswith("does "):
            actions.append(line[5:])
        elif line.startswith("mission "):
            mission = json.loads(line[8:])
        elif line.startswith("done by its end: "):
            done = {name: int(count) for name, count in re.findall(r"(\w+) (\d+)", line)}
    if len(captions) != len(actions) + 1:
        raise Fault(
            "stop",
            "unknown prompt",
            "The rules annotator found a segment with captions and actions that do not alternate.",
        )
    return ReadSegment(tuple(captions), tuple(actions), mission, done)


def unknown_prompt() -> Fault:
    """What to raise for a prompt of another form than the shipped ones."""
    return Fault("stop", "unknown prompt", "The rules annotator does not understand this prompt template.")


def unknown_caption(caption: str) -> Fault:
    """What to raise for a caption of which nothing is understood."""
    text = (
        f"The rules annotator does not understand the caption {caption[:60]!r}; it reads bkrl's English captions only."
    )
    return Fault("stop", "unknown caption", text)
