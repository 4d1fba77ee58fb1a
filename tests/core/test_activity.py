"""Long work is named while it goes on; short work is not."""

from __future__ import annotations

import time

import pytest

from bkrl.core import activity
from bkrl.core.activity import doing, spoken


def test_long_work_is_named_with_how_much_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activity, "INTERVAL", 0.05)
    said: list[str] = []
    with spoken(said.append), doing("cloning"):
        with doing("reading prompts", 82_000, "samples") as done:
            done(4_096)
            time.sleep(0.3)
        inner = len(said)
        time.sleep(0.3)
    assert said[0].startswith("reading prompts: 4,096 of 82,000 samples, ")
    assert len(said) > inner >= 1
    assert all(line.startswith("cloning, ") for line in said[inner:])


def test_short_work_is_not_named_and_without_a_stage_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    with spoken(said.append):
        for _ in range(3):
            with doing("evaluating", 50, "episodes"):
                time.sleep(0.02)
    monkeypatch.setattr(activity, "INTERVAL", 0.01)
    with doing("evaluating"):
        time.sleep(0.05)
    assert said == []
