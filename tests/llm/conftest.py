"""Makes the misbehaving server importable, and keeps real keys and endpoints out of every test here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.llm.fault_server import FaultServer

CANARY = "sk-CANARY-0123456789abcdef"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultServer]:
    """A running server that OPENAI_BASE_URL points at, with a planted key."""
    for name in ("AZURE_OPENAI_ENDPOINT", "AZURE_OPENAI_API_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID"):
        monkeypatch.delenv(name, raising=False)
    with FaultServer() as running:
        monkeypatch.setenv("OPENAI_BASE_URL", running.url)
        monkeypatch.setenv("OPENAI_API_KEY", CANARY)
        yield running
