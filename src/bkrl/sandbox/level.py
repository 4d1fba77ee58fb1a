"""How well a sandboxed program is locked in on this system: levels, and attempts to break out that show them."""

from dataclasses import dataclass, field
from typing import Literal

from bkrl.sandbox.process import Limits, ProgramFailed, Worker

Level = Literal["strong", "good", "basic"]
LEVELS: tuple[Level, ...] = ("basic", "good", "strong")


def level_of(layers: dict[str, str]) -> Level:
    """strong: every kernel layer; good: seccomp and limits; basic: a separate process with what limits there are."""
    on = {name for name, state in layers.items() if state == "on"}
    if {"limits", "namespaces", "landlock", "seccomp"} <= on:
        return "strong"
    return "good" if {"limits", "seccomp"} <= on else "basic"


def describe_layers(layers: dict[str, str]) -> str:
    """One clause for people: what is on, and why the rest is not."""
    on = [name for name, state in layers.items() if state == "on"]
    off = [f"{name} {state}" for name, state in layers.items() if state != "on"]
    return ", ".join([f"{' + '.join(on) or 'nothing'} on", *off])


@dataclass(frozen=True)
class SelfTest:
    """What a probe worker could and could not do."""

    level: Level
    layers: dict[str, str]
    attempts: dict[str, str] = field(default_factory=dict)


def self_test(skip: frozenset[str] = frozenset()) -> SelfTest:
    """Start a worker that tries to open and write a file, open a socket, take 64 GiB and fork; what held is reported.

    A level is claimed only where every attempt it promises to stop did fail.
    """
    worker = Worker((1,), 0, Limits(), True, skip, probe=True)
    try:
        attempts: dict[str, str] = dict(worker.receive(0, 10.0)[1]["probe"])
        try:
            attempts = dict(worker.receive(0, 10.0)[1]["probe"])
        except ProgramFailed as error:
            attempts["fork"] = f"refused ({error.reason})"
    finally:
        worker.close()
    level = level_of(worker.layers)
    held = {name for name, outcome in attempts.items() if outcome.startswith("refused")}
    if not {"open", "write", "socket", "fork"} <= held:
        level = "basic"
    return SelfTest(level, worker.layers, attempts)
