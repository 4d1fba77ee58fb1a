"""bkrl from a program: the verbs as functions, environments and potentials from outside the package."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import typing
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import bkrl
from bkrl.core import registry
from bkrl.core.errors import InputError, UsageError
from tests.commands import bkrl as command
from tests.commands import together

PLUGIN = '''
import gymnasium
import numpy as np
from gymnasium import spaces

import bkrl


class Line(gymnasium.Env):
    """Walk right along a line of eight places."""

    observation_space = spaces.Box(0, 8, (1,), np.uint8)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = int(self.np_random.integers(0, 3))
        return np.array([self.place], np.uint8), {}

    def step(self, action):
        self.place = max(self.place + (1 if action else -1), 0)
        arrived = self.place == 7
        return np.array([self.place], np.uint8), float(arrived), arrived, False, {}


def caption(observations):
    return [f"you stand at place {int(place)}" for place in observations[:, 0]]


class Place:
    """Φ rises with the place."""

    horizon = 0

    def __init__(self, artefact):
        self.longest = artefact.settings["longest"]

    def __call__(self, windows):
        return windows.observations[:, -1, 0].astype(np.float64) / self.longest - 1.0


bkrl.register_env("Line-8", Line, caption, max_steps=30, action_names=("left", "right"), family="line")
bkrl.register_potential("place", Place)
'''


def test_every_public_name_is_there_and_documented():
    assert set(bkrl.__all__) <= set(dir(bkrl))
    for name in bkrl.__all__:
        assert getattr(bkrl, name).__doc__, name
    assert bkrl.Trainee is bkrl.Training  # its name in plugins of before
    with pytest.raises(AttributeError, match="no attribute 'colect'"):
        _ = bkrl.colect  # type: ignore[attr-defined]


def test_importing_bkrl_imports_nothing_heavy():
    heavy = ("torch", "numpy", "gymnasium", "pyarrow")
    code = f"import sys, bkrl\nbkrl.CollectConfig()\nprint([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_functions_check_settings_as_the_command_line_does(tmp_path):
    with pytest.raises(UsageError, match="'steps' in collect must be at least 1, not 0"):
        bkrl.collect(bkrl.CollectConfig(steps=0))
    with pytest.raises(UsageError, match=r"no method 'bk-perf'\. Did you mean 'bk-pref'"):
        bkrl.train_rs(bkrl.TrainRsConfig(alg=typing.cast(typing.Any, "bk-perf")))
    with pytest.raises(UsageError, match="'num_envs' in ppo must be at least 1"):
        bkrl.train_rs(bkrl.TrainRsConfig(ppo=bkrl.PPOConfig(num_envs=-64, num_steps=-32)))
    with pytest.raises(UsageError, match="int_coef has no effect here, only with --alg rnd"):
        bkrl.train_rs(bkrl.TrainRsConfig(int_coef=0.7))
    with pytest.raises(UsageError, match="must be a list, not"):
        bkrl.make_report(bkrl.ReportConfig(typing.cast(typing.Any, "logs")))


def test_what_was_interrupted_goes_on_though_the_error_is_kept_as_a_notebook_keeps_it(tmp_path, monkeypatch):
    """The lock hung on the frames of the error: "Another process is at work", until the kernel was restarted."""
    config = bkrl.CollectConfig(env="Toy-Grid", explorer="random", episodes=2, out=tmp_path / "data")
    with monkeypatch.context() as during:
        during.setattr("bkrl.stages.collect._record", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt) as kept:
            bkrl.collect(config, progress=False)
    assert bkrl.collect(config, progress=False).complete
    assert kept.tb is not None


def test_text_serves_as_a_path_and_progress_can_be_silent(tmp_path, capfd):
    out = typing.cast(Path, str(tmp_path / "data"))
    config = bkrl.CollectConfig("Toy-Chain", out, steps=2_048, checkpoints=1, episodes_per_checkpoint=2)
    run = bkrl.collect(config, progress=False)
    assert run.complete
    assert repr(run) == f"<Run {tmp_path / 'data'}: collect, complete>"
    assert bkrl.Dataset.open(run.path).num_episodes == 2
    assert capfd.readouterr() == ("", "")
    assert "already complete" in (bkrl.collect(config), capfd.readouterr())[1].err


@pytest.fixture
def plugged(tmp_path, monkeypatch):
    """Commands of a process in which a module outside the package registers an env and a potential."""
    (tmp_path / "lines.py").write_text(PLUGIN)
    return partial(together, cwd=tmp_path, PYTHONPATH=str(tmp_path), BKRL_PLUGINS="lines")


def test_an_environment_and_a_potential_from_outside_go_the_whole_way(plugged, tmp_path):
    write = "import bkrl, lines; bkrl.write_potential('mine', 'place', 'Line-8', settings={'longest': 7})"
    (tmp_path / "write.py").write_text(write)
    look = "import lines; from bkrl.serve.play import PlayedEnv; PlayedEnv('Line-8').document()"
    (tmp_path / "look.py").write_text(look)
    small = ("--num-envs", 8, "--num-steps", 64)
    long = ("--steps", 4_096, "--eval-every", 4_096)
    train = ("train-rs", "--env", "Line-8", *small, *long, "--alg", "bk-own", "--potential")
    before = plugged(
        ("list", "envs"),
        ("collect", "--env", "Line-8", "--out", "data", "--steps", 1_024, "--checkpoints", 1, *small),
        ("label", "data", "--llm", "random", "--num", 50, "--out", "labels"),
        ("train-rm", "labels", "--out", "phi", "--epochs", 1),
        ("write.py",),
        (*train, "mine", "--out", "policy"),
    )
    assert [one.returncode for one in before] == [0] * 6, before
    assert "Line-8" in before[0].stdout
    after = plugged(
        ("evaluate", "policy", "--gifs", 0, "--episodes", 20, "--json"),
        ("evaluate", "policy", "--episodes", 2, "--out", "no-pictures"),
        ("look.py",),
        (*train, "phi", "--out", "x"),
        (*train, "mine", "--out", "x", "--shaping", "advice"),
    )
    assert [one.returncode for one in after] == [0] * 3 + [2] * 2, after
    shown, warned, _, learnt, advice = after
    assert json.loads(shown.stdout)["facts"]["modes"]["sampled"]["success_rate"]["mean"] > 0.5
    assert "There are no GIFs: Line-8 gives no pictures" in warned.stderr
    assert "use --alg bk-pref" in learnt.stderr
    assert "says nothing about actions" in advice.stderr


def test_an_environment_that_no_plugin_registers_is_refused(refused):
    assert "There is no env 'Line-8'" in refused(["train-rs", "--env", "Line-8"], 2)


def test_a_plugin_that_is_misspelt_ends_a_command(tmp_path):
    misspelt = command("list", "envs", code=2, cwd=tmp_path, BKRL_PLUGINS="linse").stderr
    assert "The plugin 'linse' cannot be imported" in misspelt


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [("raises", "nothing_of_that_name\n", "NameError: name 'nothing_of_that_name'"), ("torn", "def", "SyntaxError")],
)
def test_a_plugin_that_raises_as_it_is_imported_is_named_in_a_sentence(tmp_path, monkeypatch, name, text, said):
    (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("BKRL_PLUGINS", name)
    monkeypatch.setattr(registry, "_begun", False)
    with pytest.raises(UsageError, match=f"'{name}' cannot be imported .{said}"):
        registry.load_plugins()


def test_the_potential_of_the_documentation_works(tmp_path):
    text = (Path(__file__).parents[1] / "docs" / "python.md").read_text()
    module, write = re.findall(r"```python\n(# my_potentials.py\n.*?)```.*?```python\n(.*?)```", text, re.S)[0]
    (tmp_path / "my_potentials.py").write_text(module)
    (tmp_path / "write.py").write_text(f"import bkrl, my_potentials\n{write}")
    small = ("--steps", 256, "--num-envs", 8, "--num-steps", 32, "--eval-episodes", 2)
    done = together(
        ("write.py",),
        ("train-rs", "--alg", "bk-own", "--potential", "logs/ball", *small, "--out", "p"),
        ("report", "p", "--out", "report"),
        cwd=tmp_path,
        PYTHONPATH=str(tmp_path),
        BKRL_PLUGINS="my_potentials",
    )
    assert [one.returncode for one in done] == [0] * 3, done
    assert "bk-own" in (tmp_path / "report" / "report.html").read_text()


class Tiny:
    """What register_env asks of an environment, and no more."""

    def __init__(self, seen, acts):
        self.observation_space, self.action_space = seen, acts

    def close(self):
        pass


def test_what_cannot_be_registered_is_refused():
    from gymnasium import spaces

    good, acts = spaces.Box(0, 255, (3,), np.uint8), spaces.Discrete(2)

    def register(seen=good, acts=acts, **more):
        bkrl.register_env("Tiny-1", lambda: Tiny(seen, acts), list, **{"max_steps": 5, **more})

    with pytest.raises(UsageError, match="Box of uint8"):
        register(seen=spaces.Box(0.0, 1.0, (3,)))
    with pytest.raises(UsageError, match="Box of uint8"):
        register(seen=spaces.Box(0, 9, (), np.uint8))
    with pytest.raises(UsageError, match="Discrete actions"):
        register(acts=spaces.MultiBinary(2))
    with pytest.raises(UsageError, match="has 2 actions, and 1 action_names"):
        register(action_names=["go"])
    for names in (("a", "a"), ("a", ""), ("a", 1)):
        with pytest.raises(UsageError, match="different texts"):
            register(action_names=names)
    with pytest.raises(UsageError, match="not the text 'ab'"):
        register(action_names="ab")
    for steps in (0, 2.5, True):  # the last two ended in a TypeError, or as one step, later on
        with pytest.raises(UsageError, match="at least 1"):
            register(max_steps=steps)
    with pytest.raises(UsageError, match="bkrl's own"):
        register(family="crafter")
    with pytest.raises(UsageError, match="'me/Tiny-1' can be no env's id"):
        bkrl.register_env("me/Tiny-1", lambda: Tiny(good, acts), list, max_steps=5)
    for taken in ("Toy-Chain", "BabyAI-Text-GoToLocal-Pretraining-S20", "MiniGrid-Empty-5x5-v0"):
        with pytest.raises(UsageError, match="already; choose another id"):
            bkrl.register_env(taken, lambda: Tiny(good, acts), list, max_steps=5)
    with pytest.raises(UsageError, match="has itself"):
        bkrl.register_potential("goal", lambda artefact: artefact)  # type: ignore[arg-type,return-value]
    bkrl.register_potential("own-zero", lambda artefact: lambda windows: np.zeros(len(windows)))
    with pytest.raises(UsageError, match="with lo below hi"):
        bkrl.write_potential("x", "own-zero", "Toy-Chain", scale=(1.0, 1.0))
    with pytest.raises(UsageError, match="two numbers with lo below hi"):  # its file was called damaged
        bkrl.write_potential("x", "own-zero", "Toy-Chain", scale=(float("-inf"), 0.0))
    with pytest.raises(UsageError, match="from 0 to 10,000, not -1"):
        bkrl.write_potential("x", "own-zero", "Toy-Chain", horizon=-1)
    with pytest.raises(UsageError, match="keeps a setting 'advice'"):  # it was written, and could not be opened
        bkrl.write_potential("x", "own-zero", "Toy-Chain", settings={"advice": 6})
    with pytest.raises(UsageError, match="no potential of kind 'nothing'"):
        bkrl.write_potential("x", "nothing", "Toy-Chain")


def test_what_ones_own_functions_return_is_what_they_promise():
    """Observations of another type than the space's ended in a traceback once episodes were written, or were learnt
    from; a caption function that gives one text for all gave its letters."""
    import gymnasium
    from gymnasium import spaces

    from bkrl.envs.family import EnvSpec
    from bkrl.envs.own import OwnFamily

    class Still(gymnasium.Env):
        observation_space, action_space = spaces.Box(0, 8, (1,), np.uint8), spaces.Discrete(2)
        seen = np.array([3])

        def reset(self, *, seed=None, options=None):
            return self.seen, {}

        def step(self, action):
            return self.seen, 0.0, False, False, {}

    known = OwnFamily("still")
    facts = EnvSpec("Still-1", "still", (1,), ("stay", "go"), 9, "Its own.", "Never.")
    known.add(facts, Still, lambda seen: "a place", Still.observation_space.high)
    env = known.make_reference(facts)
    with pytest.raises(UsageError, match=r"Still returned an observation of int64 and shape \(1,\), and its space is"):
        env.reset(seed=0)
    Still.seen = np.array([3], np.uint8)
    assert env.reset(seed=0)[0].dtype == np.uint8
    Still.seen = np.zeros((1, 1), np.uint8)
    with pytest.raises(UsageError, match=r"of uint8 and shape \(1, 1\)"):
        env.step(0)
    Still.seen = np.array([9], np.uint8)  # it was taken, and read as the 8 that is the last category
    with pytest.raises(UsageError, match=r"observation with the value 9, and its space is Box\(0, 8, \(1,\), uint8\)"):
        env.step(0)
    with pytest.raises(UsageError, match="caption function of still returned 7 captions for 2 observations"):
        known.caption(np.zeros((2, 1), np.uint8))
    with pytest.raises(UsageError, match="'Still-1' has no option 'render_mode': the function that makes it"):
        known.make_reference(facts, render_mode="rgb_array")

    wider = replace(facts, obs_shape=(2,))
    with pytest.raises(UsageError, match="Still-2 has other observations or actions than Still-1"):
        known.add(replace(wider, env_id="Still-2"), Still, list, np.full(2, 5, np.uint8))
    with pytest.raises(UsageError, match="Still-2 has other bounds than Still-1; give it the same ones"):  # was let in
        known.add(replace(facts, env_id="Still-2"), Still, list, np.full(1, 200, np.uint8))
    known.add(wider, Still, list, np.full(2, 5, np.uint8))  # the same env once more, as when a notebook goes on
    assert known.symbols((2,)).sizes == (6, 6)


def test_gymnasium_makes_an_environment_of_ones_own():
    """It looked for the facts of an env where only bkrl's own have them."""
    look = """
import gymnasium
for name in ("Line-8", "bkrl/Line-8"):
    env = gymnasium.make(name)
    print(env.reset(seed=0)[0].dtype, env.spec.max_episode_steps)
"""
    done = subprocess.run([sys.executable, "-c", PLUGIN + look], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["uint8", "30"] * 2


def test_an_environment_of_ones_own_that_wraps_one_of_ours_keeps_its_own_actions():
    """As a vector environment it had those of the env inside, which it then refused."""
    code = """
import bkrl, gymnasium
from bkrl.envs import captioner
class Moves(gymnasium.ActionWrapper):
    def __init__(self, env):
        super().__init__(env)
        self.action_space = gymnasium.spaces.Discrete(3)
    def action(self, action):
        return action
caption = lambda seen: captioner("BabyAI-GoToLocal-v0")(seen)
bkrl.register_env("Moves-1", lambda: Moves(bkrl.make("BabyAI-GoToLocal-v0")), caption, max_steps=9)
print(gymnasium.make("bkrl/Moves-1").action_space, gymnasium.make_vec("bkrl/Moves-1", 2).single_action_space)
kept = bkrl.make_vec("BabyAI-GoToLocal-v0@actions=restricted", 2, backend="reference")
print(kept.single_action_space, kept.env_spec.env_id)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["Discrete(3)"] * 3 + ["BabyAI-GoToLocal-v0@actions=restricted"]


def test_the_bounds_of_an_environment_say_what_its_views_show():
    """Planes of 0 and 1 were read as MiniGrid's kinds, below 2 of which colours and states mean nothing."""
    code = """
import bkrl, numpy as np
from bkrl.envs import family
from gymnasium import Env, spaces
for highest in (1, 255):
    class Planes(Env):
        observation_space, action_space = spaces.Box(0, highest, (5, 5, 3), np.uint8), spaces.Discrete(4)
    bkrl.register_env(f"planes-{highest}", Planes, list, max_steps=9)
    known = family(f"planes-{highest}")
    symbols = known.symbols((5, 5, 3))
    assert symbols == known.symbols((5, 5, 3), Planes().observation_space.high)
    print(symbols.sizes[:3], max(symbols.gate) < 0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["(2, 2, 2) True", "(11, 6, 4) False"]


def test_a_potential_that_nobody_registers_is_refused(tmp_path):
    bkrl.register_potential("own-zero", lambda artefact: lambda windows: np.zeros(len(windows)))
    run = bkrl.write_potential(tmp_path / "mine", "own-zero", "Toy-Chain")
    text = (run.path / "potential.json").read_text().replace("own-zero", "own-gone")
    (run.path / "potential.json").write_text(text)
    from bkrl.potentials import read_potential

    with pytest.raises(InputError, match="kind 'own-gone', which nothing here registers"):
        read_potential(run.path)


def test_settings_that_a_potential_of_ones_own_refuses_leave_nothing_behind(tmp_path):
    """The folder stayed locked as long as a notebook kept the error, and held a run of other settings from then on."""

    def load(artefact):
        if artefact.settings["kind"] > 5:
            raise InputError("There is no such kind.")
        return lambda windows: np.zeros(len(windows))

    bkrl.register_potential("own-picky", load)
    with pytest.raises(InputError, match="no such kind") as kept:
        bkrl.write_potential(tmp_path / "mine", "own-picky", "Toy-Chain", settings={"kind": 6})
    assert not (tmp_path / "mine").exists()
    assert bkrl.write_potential(tmp_path / "mine", "own-picky", "Toy-Chain", settings={"kind": 5}).complete
    assert kept.tb is not None


def test_the_certificate_of_a_potential_of_ones_own_is_checked_on_a_named_dataset(tmp_path):
    bkrl.register_potential("own-sum", lambda artefact: lambda windows: windows.observations.sum((1, 2)) * 1.0)
    run = bkrl.write_potential(tmp_path / "mine", "own-sum", "Toy-Chain", scale=(0.0, 9.0))
    data = bkrl.collect(bkrl.CollectConfig("Toy-Chain", tmp_path / "d", explorer="random", episodes=9))
    from bkrl.stages import inspect

    assert inspect.check(run.path, data.path).passed


@pytest.mark.parametrize("gives", [lambda windows: np.zeros(1), lambda windows: np.full(len(windows.valid), np.nan)])
def test_a_potential_of_ones_own_that_gives_something_else_is_named(tmp_path, gives):
    from bkrl.core.errors import RunFailed
    from bkrl.data.windows import Windows

    bkrl.register_potential("own-odd", lambda artefact: gives)
    potential = bkrl.load_potential(bkrl.write_potential(tmp_path / "mine", "own-odd", "Toy-Chain").path)
    two = Windows.of(np.arange(2, dtype=np.uint8)[:, None, None], np.zeros((2, 0), np.int64), np.ones((2, 1), bool))
    with pytest.raises(RunFailed, match="'own-odd' must give 2 finite numbers for 2 windows"):
        potential(two)


def test_a_notebook_renews_one_line(monkeypatch):
    """A kernel is told apart by its shell; each progress is one display that is updated."""
    import types

    from bkrl.cli import progress

    shown: list[str] = []

    class Place:
        def update(self, data, raw):
            assert raw
            shown.append(data["text/plain"])

    def display(data, raw, display_id):
        assert raw
        assert display_id
        shown.append(data["text/plain"])
        return Place()

    shell = types.SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "IPython.display", types.SimpleNamespace(display=display))
    reporter = progress.reporter()
    assert isinstance(reporter, progress.NotebookReporter)
    with reporter.progress("train", 10) as update:
        update(10, "done")
    assert shown[0] == "train: 0/10 steps"
    assert shown[-1].startswith("train: 10/10 steps")
    assert shown[-1].endswith("done")


def test_a_run_of_a_notebook_records_no_paths_of_its_kernel(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/somewhere/ipykernel_launcher.py", "-f", "/tmp/kernel.json"])
    run = bkrl.Run.create(tmp_path / "run", stage="collect", config=bkrl.CollectConfig())
    assert run.config["argv"] == ["a notebook"]
