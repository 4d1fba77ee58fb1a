"""The page to play and to watch, driven in a browser; and who may speak to its server."""

import json
import shutil
import threading
import urllib.error
import urllib.request
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

import pytest

from bkrl.cli.main import run_command
from bkrl.core.config import PPOConfig
from bkrl.core.errors import InputError, UsageError
from bkrl.core.reporter import Reporter
from bkrl.data.dataset import Dataset
from bkrl.methods import TrainRsConfig
from bkrl.report.pages import episodes
from bkrl.runs.samples import SAMPLES
from bkrl.serve.play import PlayedEnv, server
from bkrl.stages import train_rs
from tests.browser import CHROMIUM, CONTRAST, MISSING, NAMELESS, page

needs_browser = pytest.mark.skipif(CHROMIUM is None, reason=MISSING)
ROOM = "BabyAI-Text-GoToLocal-RedBall-S20"


@contextmanager
def played(table):
    with server(table) as serving:
        thread = threading.Thread(target=serving.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{serving.server_port}"
        finally:
            serving.shutdown()
            thread.join()
            table.sessions.end()


def ask(url, asked, **headers):
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    body = asked if isinstance(asked, bytes) else json.dumps(asked).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url + "/act", body, headers), timeout=20) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()


def embedded(text):
    return json.loads(text.split('id="episodes">')[1].split("</script>")[0])


def test_a_browser_names_no_port_where_it_is_80():
    with played(PlayedEnv("Toy-Chain")) as url:
        for host, status in (("127.0.0.1", 200), ("localhost", 200), ("127.0.0.1.example.org", 404)):
            with suppress(urllib.error.HTTPError) if status == 404 else nullcontext():
                reply = urllib.request.urlopen(urllib.request.Request(url + "/", headers={"Host": host}))
                assert reply.status == status


def test_an_episode_by_requests():
    with played(PlayedEnv("Toy-Chain", seed=3)) as url:
        key = embedded(urllib.request.urlopen(url + "/").read().decode())["key"]
        frames = [ask(url, {"action": 1}, X_Bkrl_Key=key)[1]["frame"] for _ in range(8)]
        assert [one["reward"] for one in frames] == [0] * 7 + [1]
        assert frames[-1]["end"] == "terminated, a success"
        assert "over" in ask(url, {"action": 1}, X_Bkrl_Key=key)[1]["problem"]
        assert ask(url, {"reset": "7"}, X_Bkrl_Key=key)[1]["name"] == "seed 7"
        assert "No policy" in ask(url, {"policy": True}, X_Bkrl_Key=key)[1]["problem"]
        for wrong in (b"{", b"[]", b"null", {"action": 9}, {"action": "fly"}, {}, b"[" * 999):
            assert ask(url, wrong, X_Bkrl_Key=key)[1]["problem"]
        assert ask(url, b"x" * 2_000, X_Bkrl_Key=key)[0] == 413
        for headers in ({}, {"X_Bkrl_Key": "no"}, {"X_Bkrl_Key": key, "Host": "evil.example:80"}):
            assert ask(url, {"action": 0}, **headers)[0] == 403


def test_advice_and_potential_are_those_of_the_run():
    table = PlayedEnv(ROOM, Path("sample:bk-code-minigrid"), seed=2)
    first = table.first["frame"]
    assert -1 <= first["phi"] <= 0
    assert len(first["advice"]) == 7
    assert max(first["advice"]) == 0
    moved = table.step(2)["frame"]
    assert moved["shaping"] == pytest.approx(0.99 * moved["phi"] - first["phi"], abs=2e-4)
    table.sessions.end()


def test_a_policy_that_is_none_is_refused(tmp_path):
    with pytest.raises((InputError, UsageError)):
        PlayedEnv(ROOM, policy=tmp_path)


def test_a_policy_with_goals_plays(tmp_path):
    settings = TrainRsConfig(
        "ellm-ppo", env="Crafter-Typed-Easier@length=20", out=tmp_path / "policy", steps=256, eval_every=256,
        eval_episodes=1, ppo=PPOConfig(num_envs=2, num_steps=64),
    )  # fmt: skip
    policy = train_rs.run(settings, Reporter()).path
    table = PlayedEnv("Crafter-Typed-Easier@length=20", policy=policy)
    frames = [table.step(None)["frame"] for _ in range(20)]
    assert frames[-1]["end"]
    assert sum(frames[0]["policy"]) == pytest.approx(1, abs=0.02)
    table.sessions.end()
    for env_id in ("Toy-Chain", "Housekeep-Symbolic-Task1"):
        with pytest.raises(InputError, match="another kind of env"):
            PlayedEnv(env_id, policy=policy)


def test_episodes_of_a_dataset_are_those_that_were_recorded(tmp_path):
    dataset = Dataset.open(Path("sample:data-minigrid"))
    path = episodes.write(dataset, tmp_path / "page.html", [1, 0], Path("sample:bk-pref-minigrid"))
    data = embedded(path.read_text())
    assert [one["number"] for one in data["episodes"]] == [1, 0]
    frames, first = data["episodes"][0]["frames"], int(dataset.first_row[1])
    assert len(frames) == dataset.lengths[1] + 1
    assert [one["caption"] for one in frames] == [dataset.caption(first + i) for i in range(len(frames))]
    assert [one["action"] for one in frames[1:]] == dataset.actions[first : first + len(frames) - 1].tolist()
    assert all(-1 <= one["phi"] <= 0 for one in frames)
    dataset.action_names = dataset.action_names[::-1]  # what a potential says of actions, it says by their numbers
    with pytest.raises(InputError, match="other observations or actions"):
        episodes.write(dataset, tmp_path / "page.html", potential=Path("sample:bk-pref-minigrid"))
    with pytest.raises(UsageError, match="has episodes 0 to"):
        episodes.write(dataset, tmp_path / "page.html", [10**6])
    with pytest.raises(UsageError, match="is a folder"):
        episodes.write(dataset, tmp_path)
    with pytest.raises(UsageError, match="is no folder; make it first"):
        episodes.write(dataset, tmp_path / "none" / "page.html")


def test_a_page_does_not_replace_a_file_of_the_dataset_that_it_shows(tmp_path, capsys):
    data = shutil.copytree(SAMPLES / "data-minigrid", tmp_path / "data")
    for name in ("episodes.parquet", "manifest.json"):
        before = (data / name).read_bytes()
        assert run_command(["play", str(data), "--out", str(data / name)]) == 2
        assert "is part of the run; name another file" in capsys.readouterr().err
        assert (data / name).read_bytes() == before


def test_a_page_does_not_replace_a_file_of_another_run(tmp_path, capsys):
    """It did: pages of labels went over the dataset that the labels were made from, with exit 0."""
    data, other = (shutil.copytree(SAMPLES / "data-minigrid", tmp_path / name) for name in ("data", "other"))
    (tmp_path / "begun").mkdir()
    for name in ("config.json", "metrics.jsonl"):  # a run that is still at work has no manifest
        (tmp_path / "begun" / name).write_text("{}")
    for path in (other / "episodes.parquet", other / "config.json", tmp_path / "begun" / "metrics.jsonl"):
        before = path.read_bytes()
        assert run_command(["play", str(data), "--out", str(path)]) == 2
        assert f"is part of the run {path.parent}; name another file" in capsys.readouterr().err
        assert path.read_bytes() == before
    (other / "episodes.parquet").unlink()  # nor does it take the place of one that is lost
    assert run_command(["play", str(data), "--out", str(other / "episodes.parquet")]) == 2
    for _ in range(2):  # a page of its own may be written again
        assert run_command(["play", str(data), "--out", str(other / "page.html")]) == 0


@needs_browser
def test_playing_by_keyboard_in_a_browser(tmp_path):
    with played(PlayedEnv(ROOM, Path("sample:bk-code-minigrid"), seed=2)) as url, page(tmp_path / "profile") as shown:
        shown.open(url + "/")
        assert shown.run("document.querySelectorAll('#actions button').length") == 7
        assert "go to" in shown.run("document.getElementById('mission').textContent")
        assert shown.run("document.getElementById('picture').naturalWidth") > 50
        before = shown.run("document.getElementById('caption').textContent")
        for taken, key in enumerate("112", 1):
            shown.press(key)
            shown.wait(f"document.getElementById('place').textContent.startsWith('step {taken} of {taken},')")
        assert "Φ" in shown.run("document.getElementById('paid').textContent")
        assert shown.run("document.querySelector('#chart polyline').getAttribute('points')").count(",") == 4
        for _ in range(3):
            shown.run("document.getElementById('back').click()")
        assert shown.run("document.getElementById('caption').textContent") == before
        shown.press("n")
        shown.wait("document.getElementById('episode').options.length === 2")
        assert shown.run(CONTRAST) == []
        assert shown.run(NAMELESS) == []
        assert shown.problems == []
        assert {one.split("/")[2] for one in shown.requests if one.startswith("http")} == {url.split("/")[2]}


@needs_browser
def test_watching_a_trained_policy_in_a_browser(tmp_path):
    settings = TrainRsConfig(
        env="Toy-Chain", out=tmp_path / "policy", steps=8192, eval_every=8192, eval_episodes=2,
        ppo=PPOConfig(num_envs=8, num_steps=64, learning_rate=3e-3),
    )  # fmt: skip
    policy = train_rs.run(settings, Reporter()).path
    table = PlayedEnv("Toy-Chain", policy=policy, seed=3)
    odds = table.first["frame"]["policy"]
    assert sum(odds) == pytest.approx(1, abs=0.01)
    assert odds[1] > 0.7  # it has learnt to go right
    with played(table) as url, page(tmp_path / "profile") as shown:
        shown.open(url + "/")
        assert f"policy {100 * odds[1]:.0f} %" in shown.run("document.getElementById('actions').textContent")
        shown.press("p")
        shown.wait("document.getElementById('place').textContent.startsWith('step 1 of 1,')")
        shown.press(" ")  # it runs by itself until the episode is over
        shown.wait("document.getElementById('paid').textContent.includes('terminated, a success')")
        assert shown.problems == []


@needs_browser
def test_stepping_through_a_dataset_in_a_browser(tmp_path):
    dataset = Dataset.open(Path("sample:data-minigrid"))
    path = episodes.write(dataset, tmp_path / "page.html", [0, 1])
    with page(tmp_path / "profile") as shown:
        shown.open(path)
        text = "document.getElementById('caption').textContent"
        assert shown.run(text) == dataset.caption(0)
        shown.run("document.getElementById('forth').click()")
        assert shown.run(text) == dataset.caption(1)
        shown.open(f"{path.as_uri()}#e1s2")
        shown.wait("document.getElementById('place').textContent.startsWith('step 2 ')")
        assert shown.run(text) == dataset.caption(int(dataset.first_row[1]) + 2)
        assert shown.run("document.querySelector('#actions button').disabled")
        assert shown.run(CONTRAST) == []
        assert shown.problems == []
        assert all(one.startswith(("file:", "data:")) for one in shown.requests)
