"""A tiny transformers model, built here, answers like any other backend; no hub, no download."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from bkrl.agents.language.catalogue import open_language_model, reopened
from bkrl.core.errors import InputError, RunFailed
from bkrl.core.files import sha256
from bkrl.core.hub import content
from bkrl.core.reporter import Reporter
from bkrl.labelers.answers import parse_choice
from bkrl.llm import open_backend
from bkrl.llm.causal import CausalModel
from bkrl.llm.local import LocalBackend
from bkrl.llm.policy import AskPolicy
from bkrl.llm.protocol import Backend, Connection, Exchange, Message, Reply, Request
from bkrl.llm.session import AskSession
from bkrl.llm.store import Store
from tests.commands import Started, runs
from tests.llm import tiny_gguf
from tests.llm.tiny_model import build, without
from tests.models import APART, model_here


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
    loaded = opened(model)
    model_here(loaded)._prompt = lambda messages: [5] if messages[-1].text == "again" else [0] * 80  # type: ignore[method-assign]
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


def test_models_that_differ_in_the_middle_of_a_file_are_two(tmp_path: Path) -> None:
    """Both ends of a file were read alone, so finetunes of one base gave each other's answers."""
    folder = build(tmp_path / "tiny", positions=8_000)
    before, origin = open_backend(f"hf:{folder}").identity, open_language_model(str(folder)).origin
    assert reopened(origin).origin == origin
    weights = folder / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[len(data) // 2] ^= 1
    weights.write_bytes(data)
    after = open_backend(f"hf:{folder}").identity
    assert before is not None
    assert after is not None
    assert after["content"] != before["content"] == origin.content
    with pytest.raises(InputError, match="another model"):
        reopened(origin)


def test_the_same_model_fetched_again_is_the_same(tmp_path: Path) -> None:
    """The notes of `hf download`, with the time of it, were part of the model: policies of it were refused."""
    folder = build(tmp_path / "tiny", positions=64)
    bare = content(folder)
    notes = folder / ".cache" / "huggingface" / "download" / "config.json.metadata"
    notes.parent.mkdir(parents=True)
    (folder / ".git").mkdir()
    (folder / ".git" / "HEAD").write_text("x")
    for when in ("1", "2"):
        notes.write_text(when)
        assert content(folder) == bare
    (folder / "cache").write_text("x")
    assert content(folder) != bare


def test_a_file_of_a_model_is_hashed_once(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until it changes, whoever asks."""
    open_backend(f"hf:{model}")
    monkeypatch.setattr("bkrl.core.hub.sha256", lambda path: 1 / 0)
    open_backend(f"hf:{model}")


def test_a_model_of_the_hub_is_known_by_its_files_too(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bkrl.llm.local.model_folder", lambda spec: model)
    first = open_backend("hf:owner/tiny").identity
    assert first == open_backend("hf:owner/tiny", Connection(asking=False)).identity
    monkeypatch.setattr("bkrl.llm.local.model_folder", lambda spec: build(tmp_path / "tiny", positions=32))
    second = open_backend("hf:owner/tiny").identity
    assert first is not None
    assert second is not None
    assert first["model"] == second["model"] == "owner/tiny"
    assert first["content"] != second["content"], "a newer revision is another model"


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
    part = build(tmp_path / "part", positions=64)
    without(part / "model.safetensors", "transformer.h.0.mlp")
    with pytest.raises(RunFailed, match=r"cannot be loaded \(its weights have no transformer.h.0.mlp"):
        ask(part, tmp_path / "cache", [request("x")])


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models compute in a process of their own, as they do for users."""
    monkeypatch.setattr(LocalBackend, "_answers", APART)


def opened(model: Path) -> LocalBackend:
    """The backend of a folder."""
    backend = open_backend(f"hf:{model}")
    assert isinstance(backend, LocalBackend)
    return backend


def replies(model: CausalModel, requests: list[Request]) -> list[Reply]:
    """What comes of one batch."""
    answers = model.answer(requests)
    assert all(isinstance(answer, Reply) for answer in answers)
    return answers  # type: ignore[return-value]


def test_neighbours_change_neither_room_nor_draw(model: Path) -> None:
    here = model_here(opened(model))
    here._prompt = lambda messages: [5] * int(messages[0].text)  # type: ignore[method-assign]
    endless = [replace(request(length), max_tokens=20) for length in ("4", "60", "10", "62")]
    assert [reply.completion_tokens for reply in replies(here, endless)] == [20, 4, 20, 2]
    drawn = [Request((Message("user", "4"),), temperature=50.0, max_tokens=12, sample=sample) for sample in range(4)]
    together = replies(here, drawn)
    assert [replies(here, [one])[0] for one in drawn] == together
    assert replies(here, drawn[::-1]) == together[::-1]
    assert len({reply.text for reply in together}) > 1


@pytest.mark.usefixtures("apart")
def test_a_process_of_its_own_gives_the_same_answers_to_the_byte(model: Path, tmp_path: Path) -> None:
    mixed = [
        replace(request("which " * (1 + number)), choices=("[UNK]", "again")[: 2 * (number % 2)]) for number in range(6)
    ]
    here = model_here(opened(model))
    exchanges, _ = ask(model, tmp_path, mixed)
    apart = [exchange.reply for exchange in exchanges]
    for kind in (0, 1):
        assert apart[kind::2] == here.answer(mixed[kind::2])


def test_where_all_answers_are_kept_a_model_need_not_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BKRL_MODELS", str(tmp_path))
    path = tiny_gguf.to_gguf(tiny_gguf.build(tmp_path / "folder", "llama"), "llama", tmp_path / "tiny.gguf")
    of = f'bytes = {path.stat().st_size}\nsha256 = "{sha256(path)}"\nlicence = "none"\n'
    (tmp_path / "models.toml").write_text(f'[[model]]\nname = "tiny"\nwhat = "a model"\nfile = "tiny.gguf"\n{of}')
    connection = Connection(tmp_path / "cache")
    backend = open_backend("local:tiny", connection)
    with Store(tmp_path / "cache") as store, AskSession(backend, store, AskPolicy(deadline=None)) as session:
        kept = session.ask([request("x")])
    path.unlink()
    again = open_backend("local:tiny", connection)
    with Store(tmp_path / "cache") as store, AskSession(again, store, AskPolicy(deadline=None)) as session:
        assert [exchange.reply for exchange in session.ask([request("x")])] == [exchange.reply for exchange in kept]
        with pytest.raises(RunFailed, match="it is not on this machine, and a question is new: `bkrl lm fetch tiny`"):
            session.ask([request("y")])
    with pytest.raises(InputError, match="bkrl lm fetch tiny"):
        open_backend("local:tiny", Connection(tmp_path / "empty"))


def signalled(backend: Backend, numbers: Mapping[int, int]) -> list[int]:
    """Signals to processes (0: the one that computes), as soon as that is there; its number will stand in the list."""
    assert isinstance(backend, LocalBackend)
    there: list[int] = []

    def send() -> None:
        while backend._process is None:
            time.sleep(0.01)
        there.append(backend._process.pid)
        for process, number in numbers.items():
            os.kill(process or there[0], number)

    threading.Thread(target=send, daemon=True).start()
    return there


def test_a_killed_model_is_one_sentence_and_no_answer_is_lost(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = opened(model)
    with Store(tmp_path) as store, AskSession(backend, store, AskPolicy(deadline=None)) as session:
        session.ask([request("x")])
        with monkeypatch.context() as patch:
            patch.setattr(LocalBackend, "_answers", APART)
            signalled(backend, {0: signal.SIGKILL})
            with pytest.raises(RunFailed, match=r"its process was killed, perhaps for lack of memory: .*\(0 of 1 done"):
                session.ask([request("y")])
    again = opened(model)
    with Store(tmp_path) as store, AskSession(again, store, AskPolicy(deadline=None)) as session:
        assert all(exchange.answer for exchange in session.ask([request("x"), request("y")]))
    assert session.budget.sent == 1


@pytest.mark.usefixtures("apart")
def test_an_interrupt_ends_what_a_model_computes(model: Path, tmp_path: Path) -> None:
    """A batch of a large model takes minutes: here the process is halted, so that it never ends."""
    backend = open_backend(f"hf:{model}")
    there = signalled(backend, {0: signal.SIGSTOP, os.getpid(): signal.SIGINT})
    policy = AskPolicy(deadline=None, grace=0.0)
    with pytest.raises(KeyboardInterrupt), Store(tmp_path) as store, AskSession(backend, store, policy) as session:
        session.ask([request("x")])
    with pytest.raises(ProcessLookupError):
        os.kill(there[0], 0)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="there is no /proc")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_a_model_ends_with_the_command_that_asks_it(number: int, code: int, tmp_path: Path) -> None:
    folder = tiny_gguf.build(tmp_path / "tiny", "llama")
    path = tiny_gguf.to_gguf(folder, "llama", tmp_path / "tiny.gguf")
    command = Started(["suggesters", f"gguf:{path}", "--cache", tmp_path / "cache"], models_apart=True)
    while not (there := models(command.pid)):
        assert command.poll() is None, command.said()[1]
        time.sleep(0.01)
    if number == signal.SIGTERM:
        os.kill(there[0], signal.SIGSTOP)  # as if it computed for ever
    command.send_signal(number)
    assert command.done(60).returncode == code
    deadline = time.monotonic() + 60
    while runs(there[0]):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def models(pid: int) -> list[int]:
    """Processes that compute a model's answers, which any thread of a process has started."""
    found = [one for path in Path(f"/proc/{pid}/task").glob("*/children") for one in path.read_text().split()]
    return [int(one) for one in found if b"bkrl.llm.causal" in Path(f"/proc/{one}/cmdline").read_bytes()]


ENDLESS = """
import sys, time
from bkrl.llm import causal
causal.CausalModel.answer = lambda *_: (print("computes"), time.sleep(1e6))
causal.main()
"""


def test_a_model_that_computes_ends_with_whoever_asked() -> None:
    """Its stdin ends when that process does, however it does."""
    words = [sys.executable, "-c", ENDLESS, "nowhere", "{}", "1"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(b"[]\n")
        process.stdin.flush()
        assert process.stderr.readline() == b"computes\n"
        process.stdin.close()
        assert process.wait(60) == 0
