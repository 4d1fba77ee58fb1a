"""The MCP server, asked by the client of the same library: in this process, and over stdin and stdout."""

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from bkrl.cli.main import run_command
from bkrl.core.errors import UsageError
from tests.experience import write_dataset

SOURCE = Path(__file__).parents[2] / "src"


@pytest.fixture(autouse=True)
def _library():
    """Only where it is used: all workers collect these tests, and it takes a second."""
    pytest.importorskip("mcp", reason="the extra mcp is not installed")


def server(*given):
    from bkrl.serve.mcp import server

    return server(*given)


def asked(made, *calls):
    """The answers to calls of tools, as plain values; errors as "error: …"."""
    import mcp

    async def run():
        async with mcp.Client(made) as client:
            return [value(await client.call_tool(name, given)) for name, given in calls]

    return asyncio.run(asyncio.wait_for(run(), 60))


def value(result):
    text = result.content[0].text if result.content else "[]"
    if result.is_error:
        return f"error: {text}"
    try:
        return [json.loads(one.text) for one in result.content] if len(result.content) > 1 else json.loads(text)
    except ValueError:
        return text


def test_an_episode_is_played_and_begun_again_in_the_same_place(tmp_path):
    begun, moved, state, again, *paid = asked(
        server(tmp_path),
        ("start_episode", {"env": "Toy-Chain", "seed": 3}),
        ("act", {"episode": 1, "action": "right"}),
        ("episode_state", {"episode": 1}),
        ("start_episode", {"env": "Toy-Chain", "seed": 3, "actions": [1]}),
        *[("act", {"episode": 1, "action": "1"})] * 8,
    )
    assert begun["actions"] == ["left", "right"]
    assert begun["reward_is"] == "the env's own reward"
    assert state == {"env": "Toy-Chain", "seed": 3, "actions": [1]}
    assert again["caption"] == moved["caption"] != begun["caption"]
    assert [one["reward"] for one in paid[:7]] == [0] * 6 + [1]
    assert paid[6]["over"]
    assert "begin another with start_episode" in paid[7]


def test_an_action_whose_name_is_a_number_is_taken_by_its_name(tmp_path):
    """Number 1, the second action, was taken for "1", the name of the first."""
    from bkrl.serve.mcp import Desk

    desk = Desk(tmp_path)
    desk.start_episode("Toy-Chain", 3)
    played = desk._played[1]
    played.action_names, played._numbers = ("1", "2"), {"1": 0, "2": 1}
    for action in ("2", "1", "2", "0"):
        desk.act(1, action)
    assert desk.episode_state(1)["actions"] == [1, 0, 1, 0]
    with pytest.raises(UsageError, match="There is no action"):
        desk.act(1, "9" * 5_000)


def test_episodes_without_a_seed_are_different_ones(tmp_path):
    """Each began with the first seed of the same stream."""
    begin = ("start_episode", {"env": "Toy-Chain"})
    states = [("episode_state", {"episode": number}) for number in (1, 2, 3)]
    found = asked(server(tmp_path), begin, begin, begin, *states)[3:]
    assert len({one["seed"] for one in found}) == 3


def test_episodes_are_bounded_and_closed(tmp_path):
    from bkrl.serve.mcp import MOST_EPISODES

    begin = ("start_episode", {"env": "Toy-Chain"})
    *_, full, closed, next_one, gone = asked(
        server(tmp_path), *[begin] * (MOST_EPISODES + 1), ("end_episode", {"episode": 2}), begin,
        ("act", {"episode": 2, "action": "0"}),
    )  # fmt: skip
    assert "episodes are open" in full
    assert closed == "closed"
    assert next_one["episode"] == MOST_EPISODES + 1
    assert "There is no episode 2" in gone


def test_runs_and_datasets_are_read_below_the_folder_alone(tmp_path):
    below = tmp_path / "root"
    written = write_dataset(below / "data" / "some")
    write_dataset(tmp_path / "secret")
    (checkpoint := below / "data" / "half" / "checkpoints" / "step-1").mkdir(parents=True)
    (checkpoint / "manifest.json").write_text("{}")  # as a training that was interrupted leaves it
    found, run, episode, sample, *refused = asked(
        server(below),
        ("list_runs", {}),
        ("show_run", {"path": "data/some"}),
        ("dataset_episode", {"path": "data/some", "episode": 2}),
        ("show_run", {"path": "sample:data-minigrid"}),
        ("show_run", {"path": "../secret"}),
        ("show_run", {"path": str(tmp_path / "secret")}),
        ("list_runs", {"folder": ".."}),
        ("show_run", {"path": "data"}),
        ("dataset_episode", {"path": "data/some", "episode": 9}),
        ("act", {"episode": 1, "action": "0"}),
    )
    assert found == {"path": "data/some", "stage": "collect"}
    assert run["stage"] == "collect"
    assert [one[0] for one in episode["steps"]] == written[2]["captions"][:-1]
    assert sample["stage"] == "collect"
    assert all(one.startswith("error: ") for one in refused)
    assert all("not below the folder" in one for one in refused[:3])


def test_an_episode_that_cannot_begin_leaves_no_env_open(tmp_path, monkeypatch):
    from bkrl.envs.toy import ToyVectorEnv

    closed = []
    monkeypatch.setattr(ToyVectorEnv, "close", lambda self, **kwargs: closed.append(self))
    refused = asked(
        server(tmp_path),
        ("start_episode", {"env": "Toy-Chain", "seed": -1}),
        ("start_episode", {"env": "Toy-Chain", "potential": "nowhere"}),
    )
    assert all(one.startswith("error: ") for one in refused)
    assert len(closed) == 2


def test_nothing_writes_unasked(tmp_path, monkeypatch):
    import mcp

    (tmp_path / "in/side").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "in/side")
    outside, tmp_path = tmp_path, tmp_path / "root"
    tmp_path.mkdir()

    async def names(write):
        async with mcp.Client(server(tmp_path, write)) as client:
            return {tool.name for tool in (await client.list_tools()).tools}

    reading, writing = asyncio.run(names(False)), asyncio.run(names(True))
    assert writing - reading == {"collect"}
    call = ("collect", {"env": "Toy-Chain", "steps": 64, "out": "made"})
    assert asked(server(tmp_path), call)[0].startswith("error: ")
    assert not list(tmp_path.iterdir())
    assert asked(server(tmp_path, True), call)[0]["path"] == "made"
    assert (tmp_path / "made/manifest.json").is_file()
    assert "not below" in asked(server(tmp_path, True), (call[0], {**call[1], "out": "../out"}))[0]

    for out in ("sample:/../../out", "sample:data-minigrid"):  # samples are read from their own place
        assert "sample" in asked(server(tmp_path, True), (call[0], {**call[1], "out": out}))[0]
    assert {path.name for path in outside.rglob("*") if tmp_path not in path.parents} == {"in", "side", "root"}
    assert asked(server(tmp_path), ("list_runs", {"folder": "sample:data-minigrid"}))[0]["stage"] == "collect"


def test_a_client_starts_the_command_and_plays(tmp_path):
    import mcp

    words = ["-m", "bkrl", "serve", "mcp", "--root", str(tmp_path)]
    started = mcp.StdioServerParameters(
        command=sys.executable, args=words, env={**os.environ, "PYTHONPATH": str(SOURCE)}
    )
    begun, wrong, moved = asked(
        started,
        ("start_episode", {"env": "BabyAI-GoToLocal-v0", "seed": 1}),
        ("act", {"episode": 1, "action": "fly"}),
        ("act", {"episode": 1, "action": "go forward"}),
    )
    assert begun["mission"].startswith("go to")
    assert "There is no action 'fly'" in wrong
    assert moved["reward"] == 0


def test_a_folder_that_does_not_exist_is_said_at_once(tmp_path, capsys):
    assert run_command(["serve", "mcp", "--root", str(tmp_path / "typo")]) == 2
    assert "does not exist" in capsys.readouterr().err
