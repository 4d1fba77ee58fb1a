"""A tiny transformers model, built here, answers like any other backend; no hub, no download."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bkrl.core.errors import InputError, RunFailed
from bkrl.core.reporter import Reporter
from bkrl.labelers.answers import parse_choice
from bkrl.llm import open_backend
from bkrl.llm.local import LocalBackend
from bkrl.llm.policy import AskPolicy
from bkrl.llm.protocol import Connection, Exchange, Message, Reply, Request
from bkrl.llm.session import AskSession
from bkrl.llm.store import Store
from tests.llm.tiny_model import build


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("models") / "tiny", positions=64)


def ask(model: Path, tmp_path: Path, requests: list[Request]) -> tuple[list[Exchange], AskSession]:
    with (
        Store(tmp_path) as store,
        AskSession(open_backend(f"hf:{model}"), store, AskPolicy(deadline=None), Reporter()) as asker,
    ):
        return asker.ask(requests), asker


def request(text: str, sample: int = 0) -> Request:
    return Request((Message("user", text),), temperature=0.0, max_tokens=8, sample=sample)


def test_a_local_model_answers_in_batches_and_is_stored(model: Path, tmp_path: Path) -> None:
    requests = [request("which " * (1 + number % 7), number) for number in range(40)]
    exchanges, asker = ask(model, tmp_path, requests)
    assert {exchange.answer for exchange in exchanges} == {'{"choice": "A"}'}
    assert parse_choice(str(exchanges[0].answer)) == "A"
    assert exchanges[0].reply is not None
    assert (exchanges[0].reply.prompt_tokens, exchanges[0].reply.completion_tokens) == (3, 2)
    assert asker.backend.identity is not None
    assert asker.backend.identity["model"] == "tiny", "no path of this machine in a key"
    again, asker = ask(model, tmp_path, requests)
    assert [e.reply for e in again] == [e.reply for e in exchanges]
    assert asker.budget.sent == 0


def test_an_endless_answer_is_truncated_and_a_long_prompt_fails_alone(model: Path, tmp_path: Path) -> None:
    endless = replace(request("x"), messages=(Message("user", "x"), Message("user", "again")))
    loaded = open_backend(f"hf:{model}")
    loaded._prompt = lambda messages: [5] if messages[-1].text == "again" else [0] * 80  # type: ignore[attr-defined]
    with Store(tmp_path) as store, AskSession(loaded, store, AskPolicy(deadline=None), Reporter()) as asker:
        first, second = asker.ask([endless, request("long")])
    assert first.status == "truncated"
    assert (second.status, second.reason) == ("failed", "context length")


def test_another_model_in_the_same_folder_is_another_key(model: Path, tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / "tiny"
    shutil.copytree(model, copy)
    before = open_backend(f"hf:{copy}").identity
    assert before == open_backend(f"hf:{model}").identity
    weights = copy / "model.safetensors"
    changed = bytearray(weights.read_bytes())
    changed[-1] ^= 1
    weights.write_bytes(bytes(changed))
    assert open_backend(f"hf:{copy}").identity != before


def test_a_model_that_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    for name in ("nobody/nothing", "no name/of a/model"):
        with pytest.raises(InputError, match="fetch it first with `hf download"):
            open_backend(f"hf:{name}")
        assert open_backend(f"hf:{name}", Connection(asking=False)).identity is not None, "a dry run needs none"
    with pytest.raises(InputError, match="no model folder"):
        open_backend("hf:./nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunFailed, match="cannot be loaded"):
        ask(tmp_path / "empty", tmp_path / "cache", [request("x")])


def replies(backend: LocalBackend, requests: list[Request]) -> list[Reply]:
    """What comes of one batch."""
    answers = backend._answer(requests)
    assert all(isinstance(answer, Reply) for answer in answers)
    return answers  # type: ignore[return-value]


def test_neighbours_change_neither_room_nor_draw(model: Path) -> None:
    backend = open_backend(f"hf:{model}")
    assert isinstance(backend, LocalBackend)
    backend._prompt = lambda messages: [5] * int(messages[0].text)  # type: ignore[method-assign]
    endless = [replace(request(length), max_tokens=20) for length in ("4", "60", "10", "62")]
    assert [reply.completion_tokens for reply in replies(backend, endless)] == [20, 4, 20, 2]
    drawn = [Request((Message("user", "4"),), temperature=50.0, max_tokens=12, sample=sample) for sample in range(4)]
    together = replies(backend, drawn)
    assert [replies(backend, [one])[0] for one in drawn] == together
    assert replies(backend, drawn[::-1]) == together[::-1]
    assert len({reply.text for reply in together}) > 1
