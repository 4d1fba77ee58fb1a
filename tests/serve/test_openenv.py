"""The OpenEnv server, spoken to as its clients speak, and by clients that mean no good."""

import asyncio
import json
import urllib.error
import urllib.request
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from bkrl.core.errors import RunFailed, UsageError
from bkrl.serve.openenv import MOST_BYTES, SPARE, OpenEnvServer
from bkrl.serve.sessions import Sessions

TOKEN = "a secret"


def served(test, sessions=8, played=None, **settings):
    """Run `test(server)` beside a server of the chain, or of `played`: places 0 to 7, the right end pays."""

    async def run():
        async with OpenEnvServer(played or Sessions("Toy-Chain", sessions), port=0, **settings) as server:
            await asyncio.wait_for(test(server), 60)

    asyncio.run(run())


@asynccontextmanager
async def client(server, path="/ws", **headers):
    url = server.url.replace("http", "ws") + path
    async with connect(url, max_size=None, proxy=None, additional_headers=headers) as socket:

        async def ask(kind, **data):
            await socket.send(json.dumps({"type": kind, "data": data}))
            return json.loads(await socket.recv())

        ask.socket = socket
        yield ask


async def get(url, **headers):
    def read():
        try:
            with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=20) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as refused:
            return refused.code, refused.read().decode()

    return await asyncio.to_thread(read)


def test_an_episode_from_reset_to_reward():
    async def test(server):
        async with client(server) as ask:
            first = (await ask("reset", seed=3))["data"]
            assert first["reward"] is None
            assert not first["done"]
            assert first["observation"]["actions"] == ["left", "right"]
            assert first["metadata"] == {"seed": 3}
            paid = [(await ask("step", action=action))["data"] for action in ["right", 1, *["right"] * 6]]
            assert [one["reward"] for one in paid] == [0] * 7 + [1]
            assert [one["done"] for one in paid] == [False] * 7 + [True]
            assert paid[-1]["observation"]["success"]
            assert paid[0]["observation"]["caption"] != first["observation"]["caption"]
            assert (await ask("state"))["data"] == {"seed": 3, "actions": [1] * 8, "step_count": 8}
            assert "send a reset" in (await ask("step", action="right"))["data"]["message"]

    served(test)


def test_a_group_starts_in_a_saved_state():
    async def test(server):
        async with client(server) as one, client(server) as other:
            await one("reset", seed=3)
            for _ in range(4):
                here = await one("step", action="right")
            state = (await one("state"))["data"]
            there = await other("reset", seed=state["seed"], actions=state["actions"])
            assert there["data"]["observation"]["caption"] == here["data"]["observation"]["caption"]
            async with client(server, "/batch/ws") as group:
                all_there = (await group("reset", count=3, seed=state["seed"], actions=state["actions"]))["data"]
                assert all_there["observation"]["caption"] == [here["data"]["observation"]["caption"]] * 3

    served(test)


def test_many_sessions_step_in_one_message():
    async def test(server):
        async with client(server, "/batch/ws") as ask:
            first = (await ask("reset", seeds=[1, 2, 3]))["data"]
            assert first["done"] == [False] * 3
            for _ in range(7):
                moved = (await ask("step", actions=["right", 1, None]))["data"]
            assert moved["reward"] == [0, 0, None]
            assert moved["observation"]["caption"][2] == first["observation"]["caption"][2]
            moved = (await ask("step", actions=[1, 0, 1]))["data"]
            assert moved["reward"] == [1, 0, 0]
            assert moved["done"] == [True, False, False]
            assert moved["observation"]["success"] == [True, False, False]
            assert "null for its session" in (await ask("step", actions=[1, 1, 1]))["data"]["message"]
            assert (await ask("reset", which=[0], seeds=[9]))["data"]["done"] == [False] * 3
            states = (await ask("state"))["data"]["sessions"]
            assert [one["step_count"] for one in states] == [0, 8, 1]
            assert states[0]["seed"] == 9
            for _ in range(8):
                moved = (await ask("step", actions=[1, 0, 0], autoreset=True))["data"]
            assert moved["done"][0]
            assert (await ask("state"))["data"]["sessions"][0]["step_count"] == 0

    served(test)


def test_a_batch_tells_a_time_limit_from_an_end_and_keeps_the_last_caption():
    """Its replies had no metadata: `truncated` and `shaping` were lost, and with autoreset what was seen last."""

    async def test(server):
        async with client(server, "/batch/ws") as ask:
            first = (await ask("reset", seeds=[5, 6]))["data"]
            assert first["metadata"] == {"seed": [5, 6]}
            assert (await ask("reset", which=[1], seeds=[7], count=1))["data"]["metadata"] == {"seed": [5, 7]}
            for _ in range(7):
                moved = (await ask("step", actions=[1, None], autoreset=True))["data"]
            assert moved["metadata"] == {
                "success": [False, None], "truncated": [False, None], "last_caption": [None, None]
            }  # fmt: skip
            before = moved["observation"]["caption"]
            moved = (await ask("step", actions=[1, 0], autoreset=True))["data"]
            assert moved["metadata"]["success"] == moved["done"] == [True, False]
            assert moved["metadata"]["truncated"] == [False, False]
            assert moved["metadata"]["last_caption"][0] not in (None, before[0], moved["observation"]["caption"][0])
            for _ in range(server.sessions.env.max_steps - 1):
                moved = (await ask("step", actions=[None, 0]))["data"]
            assert moved["done"] == [False, True]
            assert moved["metadata"] == {"success": [None, False], "truncated": [None, True]}

    served(test)


def test_a_batch_says_what_the_potential_added():
    played = Sessions("Toy-Chain", 4)
    played.phi = SimpleNamespace(begin=lambda *given: None, step=lambda rows, *given: np.full(len(rows), 0.25))

    async def test(server):
        async with client(server, "/batch/ws") as group, client(server) as alone:
            await group("reset", count=2, seed=3)
            await alone("reset", seed=3)
            one = (await alone("step", action=0))["data"]["metadata"]
            said = (await group("step", actions=[0, None]))["data"]["metadata"]
            assert one["shaping"] == 0.25
            assert said == {key: [value, None] for key, value in one.items()}

    served(test, played=played)


def test_steps_that_wait_together_are_computed_together():
    async def test(server):
        counts, step = [], server.sessions.step
        server.sessions.step = lambda rows, actions: (counts.append(len(rows)), step(rows, actions))[1]
        async with client(server) as one, client(server) as two, client(server) as three:
            asks = (one, two, three)
            await asyncio.gather(*(ask("reset") for ask in asks))
            await asyncio.gather(*(ask("step", action=1) for ask in asks))
            assert sum(counts) == 3
            assert max(counts) >= 2
            await two("step", action=1)  # and nobody waits for those who think
        assert sum(counts) == 4

    served(test)


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        ("{", "INVALID_JSON"), (b"\xff\xfe", "INVALID_JSON"), ("[" * 100_000, "INVALID_JSON"),
        ("1" * 10_000, "INVALID_JSON"),
        ("[]", "VALIDATION_ERROR"), ('"step"', "VALIDATION_ERROR"), ('{"type": "step", "data": 7}', "VALIDATION_ERROR"),
        ('{"type": ["step"]}', "UNKNOWN_TYPE"), ('{"type": "jump", "data": {}}', "UNKNOWN_TYPE"),
        ('{"type": "reset", "data": {"seed": "x"}}', "VALIDATION_ERROR"),
        ('{"type": "reset", "data": {"sead": 1}}', "VALIDATION_ERROR"),
        ('{"type": "reset", "data": {"seed": 1, "actions": [1, 1, 1, 1, 1, 1, 1, 1, 1]}}', "VALIDATION_ERROR"),
        ('{"type": "step", "data": {"action": "fly"}}', "VALIDATION_ERROR"),
        ('{"type": "step", "data": {"action": 1e999}}', "VALIDATION_ERROR"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/ws", "/batch/ws"])
def test_nonsense_is_answered_with_a_sentence_and_the_session_goes_on(raw, code, path):
    async def test(server):
        async with client(server, path) as ask:
            await (ask("reset", seed=1) if path == "/ws" else ask("reset", seeds=[1, 2]))
            await ask.socket.send(raw)
            error = json.loads(await ask.socket.recv())
            assert error["type"] == "error"
            assert error["data"]["code"] == code
            assert error["data"]["message"].endswith((".", "]", "}"))
            again = await (ask("reset", seed=1) if path == "/ws" else ask("reset", seeds=[1, 2]))
            assert again["type"] == "observation"

    served(test)


@pytest.mark.parametrize(
    "data",
    [
        {}, {"seeds": 3}, {"seeds": []}, {"count": 10**6}, {"count": 0}, {"seeds": [1], "count": 2},
        {"seeds": [1, "2"]}, {"which": [0]}, {"which": "all", "count": 1}, {"count": 9},
    ],
)  # fmt: skip
def test_batches_that_cannot_be_are_refused(data):
    async def test(server):
        async with client(server, "/batch/ws") as ask:
            assert (await ask("step", actions=[]))["type"] == "error"
            assert (await ask("reset", **data))["type"] == "error"
            assert (await ask("reset", count=8))["type"] == "observation"
            assert (await ask("step", actions=[0] * 7))["type"] == "error"

    served(test)


@pytest.mark.parametrize("data", [{"seeds": [5, 6], "seed": 9}, {"which": [0], "count": 5}])
def test_a_reset_that_says_two_things_is_refused(data):
    """One of them was taken, without a word."""

    async def test(server):
        async with client(server, "/batch/ws") as ask:
            await ask("reset", seeds=[1, 2])
            assert (await ask("reset", **data))["type"] == "error"
            assert [one["seed"] for one in (await ask("state"))["data"]["sessions"]] == [1, 2]

    served(test)


def test_a_batch_that_is_refused_closes_no_session_and_leaves_none_half_way():
    """The third session was gone, and the second could be stepped in a place that nobody had asked for."""

    async def test(server):
        async with client(server, "/batch/ws") as ask:
            await ask("reset", seeds=[1, 2, 3])
            assert "after its episode's end" in (await ask("reset", seeds=[4, 5], actions=[1] * 9))["data"]["message"]
            assert len((await ask("state"))["data"]["sessions"]) == 3
            assert "null for its session" in (await ask("step", actions=[None, 1, None]))["data"]["message"]
            assert (await ask("step", actions=[None, None, 1]))["data"]["done"] == [True, True, False]
            assert (await ask("reset", seeds=[6]))["data"]["done"] == [False]

    served(test)


def test_a_potential_that_fails_ends_the_episodes_that_moved(monkeypatch):
    """Each client was told that nothing had changed, sent its step again, and took it twice."""
    sessions = Sessions("BabyAI-GoToRedBallGrey-v0", 3, Path("sample:bk-pref-minigrid"))

    def broken(*given):
        raise RunFailed("Φ is no number.")

    async def test(server):
        async with client(server) as one, client(server) as other, client(server) as apart:
            await asyncio.gather(one("reset", seed=1), other("reset", seed=2), apart("reset", seed=3))
            with monkeypatch.context() as now:
                now.setattr(sessions.phi, "step", broken)
                for told in await asyncio.gather(*(ask("step", action=1) for ask in (one, other))):
                    assert told["data"]["code"] == "EXECUTION_ERROR"
                assert "No episode runs" in (await one("step", action=1))["data"]["message"]
            assert (await apart("step", action=1))["type"] == "observation"
            assert (await one("reset"))["type"] == (await one("step", action=1))["type"] == "observation"
            with monkeypatch.context() as now:
                now.setattr(sessions.phi, "begin", broken)
                assert (await one("reset", seed=1))["data"]["code"] == "EXECUTION_ERROR"
            assert "No episode runs" in (await one("step", action=1))["data"]["message"]

    served(test, played=sessions)


def test_sessions_are_bounded_and_come_back():
    async def test(server):
        async with client(server) as one, client(server, "/batch/ws") as many:
            assert (await one("reset"))["type"] == "observation"
            assert (await many("reset", count=2))["type"] == "error"  # of two sessions one is open
            assert (await many("reset", count=1))["type"] == "observation"
            async with client(server) as late:
                full = json.loads(await late.socket.recv())
                assert full["data"]["code"] == "CAPACITY_REACHED"
                with pytest.raises(ConnectionClosed):
                    await late.socket.recv()
        for _ in range(100):
            if server.sessions.open_count == 0:
                break
            await asyncio.sleep(0.02)
        assert server.sessions.open_count == 0
        async with client(server) as again:  # and nothing of the last one is left
            assert (await again("state"))["data"] == {"seed": 0, "actions": [], "step_count": 0}

    served(test, sessions=2)


def test_a_crowd_is_turned_away_at_the_door():
    async def test(server):
        sockets, url = [], server.url.replace("http", "ws") + "/batch/ws"
        for _ in range(SPARE + 1):
            sockets.append(await connect(url, proxy=None))
        with pytest.raises(InvalidStatus, match="503"):
            await connect(url, proxy=None)
        await asyncio.gather(*(one.close() for one in sockets))

    served(test, sessions=1)


def test_a_message_too_long_ends_the_connection_and_no_other():
    async def test(server):
        async with client(server) as honest, client(server) as hostile:
            await honest("reset")
            await hostile.socket.send("x" * (MOST_BYTES + 1))
            with pytest.raises(ConnectionClosed):
                await hostile.socket.recv()
            assert (await honest("step", action=0))["type"] == "observation"

    served(test)


def test_sudden_leaving_and_slow_reading_hurt_nobody():
    async def test(server):
        async with client(server) as honest, client(server) as slow:
            await honest("reset")
            for _ in range(6):
                async with client(server) as hostile:
                    await hostile("reset")
                    await hostile.socket.send(json.dumps({"type": "step", "data": {"action": 1}}))
                    hostile.socket.transport.abort()
            for _ in range(200):  # asks and never reads: the server stops reading, too
                await slow.socket.send(json.dumps({"type": "reset", "data": {}}))
            for _ in range(20):
                assert (await honest("step", action=0))["type"] == "observation"
            slow.socket.transport.abort()
        for _ in range(100):
            if server.sessions.open_count == 0:
                break
            await asyncio.sleep(0.02)
        assert server.sessions.open_count == 0

    served(test)


def test_who_asks_for_nothing_is_sent_home():
    async def test(server):
        async with client(server) as ask:
            with pytest.raises(ConnectionClosed):
                await ask.socket.recv()

    served(test, idle=0.1)


def test_the_token_opens_the_door_and_pages_of_others_do_not():
    async def test(server):
        right = {"Authorization": f"Bearer {TOKEN}"}
        for wrong in ({}, {"Authorization": "Bearer no"}, {"Authorization": TOKEN}, {**right, "Origin": "http://a.b"}):
            with pytest.raises(InvalidStatus, match="401|403"):
                await connect(server.url.replace("http", "ws") + "/ws", proxy=None, additional_headers=wrong)
        assert (await get(server.url + "/health"))[0] == 401
        assert (await get(server.url + "/health", **right))[0] == 200
        async with client(server, **right) as ask:
            assert (await ask("reset"))["type"] == "observation"

    served(test, token=TOKEN)


def test_an_env_that_breaks_leaves_nobody_waiting(monkeypatch):
    def broken(*given):
        raise RuntimeError("the env broke")

    async def test(server):
        async with client(server) as one, client(server) as other:
            await asyncio.gather(one("reset"), other("reset"))
            monkeypatch.setattr(server.sessions, "step", broken)
            for ended in await asyncio.gather(*(ask("step", action=1) for ask in (one, other)), return_exceptions=True):
                assert isinstance(ended, ConnectionClosed)
            monkeypatch.undo()
        async with client(server) as ask:
            assert (await ask("reset"))["type"] == "observation"

    served(test)


def test_nothing_listens_beyond_loopback_without_a_token():
    for host in ("0.0.0.0", "::", "192.168.1.1", "example.org", ""):
        with pytest.raises(UsageError, match="BKRL_SERVE_TOKEN"):
            OpenEnvServer(Sessions("Toy-Chain", 1), host)
        OpenEnvServer(Sessions("Toy-Chain", 1), host, token=TOKEN)
    for host in ("127.0.0.1", "::1", "localhost", "bkrl.localhost"):
        OpenEnvServer(Sessions("Toy-Chain", 1), host)


def test_what_is_served_can_be_asked():
    async def test(server):
        assert json.loads((await get(server.url + "/health"))[1]) == {"status": "healthy"}
        about = json.loads((await get(server.url + "/metadata"))[1])
        assert about["name"] == "Toy-Chain"
        assert about["reward"] == "the env's own reward"
        schema = json.loads((await get(server.url + "/schema"))[1])
        assert schema["action"]["properties"]["action"]["enum"] == ["left", "right", 0, 1]
        assert schema["action"]["required"] == ["action"], "verifiers sends a reply as the only required field"
        assert (await get(server.url + "/etc"))[0] == 404

    served(test)


def test_openenvs_own_client_plays():
    core = pytest.importorskip("openenv.core", reason="openenv is not installed; its messages are tested above")

    async def test(server):
        async with core.GenericEnvClient(base_url=server.url) as one:
            assert (await one.reset(seed=3)).observation["actions"] == ["left", "right"]
            for _ in range(8):
                result = await one.step({"action": "right"})
            assert result.done
            assert result.reward == 1
            assert (await one.state())["step_count"] == 8
        async with core.GenericEnvClient(base_url=server.url + "/batch") as many:
            assert (await many.reset(count=4)).done == [False] * 4
            assert (await many.step({"actions": [1] * 4})).reward == [0] * 4

    served(test)
