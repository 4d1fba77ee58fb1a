"""How networks read missions: words and their numbers, kernels against torch, and agents that know what is asked."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from bkrl.agents import load_agent
from bkrl.agents.build import new_agent, take_weights, teach
from bkrl.agents.networks import build_network
from bkrl.agents.networks.film import Norm
from bkrl.agents.networks.memory import by_torch, remember
from bkrl.agents.networks.missions import WordTable, _Things, added_words, distinct, things_by_torch
from bkrl.core.errors import InputError, UsageError
from bkrl.data.views import Views
from bkrl.envs import later_missions, make_vec
from bkrl.envs.crafter.tasks import TASKS
from bkrl.methods import TrainRsConfig, find_method
from bkrl.text.mission_words import words_of

MIXED = "BabyAI-MixedTrainLocal-v0"
MISSIONS = ["go to the red ball", "Pick up a grey key, then go to the ball", "", "go to the red ball"]


def random_views(count: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.stack([rng.integers(0, high, (count, 7, 7)) for high in (11, 6, 4)], -1).astype(np.uint8)


# ---------------------------------------------------------------------------------------------------------------- words


def test_words_are_numbered_by_the_alphabet_and_found_again_after_loading() -> None:
    words = WordTable(20)
    assert words.add(MISSIONS) == []
    assert words.known.numbers == {
        word: n for n, word in enumerate(sorted({w for m in MISSIONS for w in words_of(m)}), 2)
    }
    again = WordTable(20)
    again.tokens(np.array(MISSIONS, object))  # what is kept of an earlier vocabulary is forgotten
    again.load_state_dict(words.state_dict())
    assert (again.tokens(np.array(MISSIONS, object)) == words.tokens(np.array(MISSIONS, object))).all()


def test_words_without_a_number_count_as_one_and_are_named() -> None:
    words = WordTable(7)
    words.add(["go to the ball"])
    rows = words.tokens(np.array(["go to the dax", "go to the wug", "the ball", ""], object))
    assert rows.tolist() == [[3, 5, 4, 1], [3, 5, 4, 1], [4, 2, 0, 0], [0, 0, 0, 0]]
    assert words.unknown(["go to the dax", "a wug"]) == ["a", "dax", "wug"]
    assert words.add(["aller à la balle"]) == ["balle", "la", "à"], "there was room for one more"
    assert words.known.numbers["aller"] == 6


def test_the_vocabulary_of_an_env_does_not_depend_on_training() -> None:
    agent = _agent("compact")
    assert {"put", "next", "then", "after", "open", "purple", "box"} < agent.vocabulary.known.numbers.keys()
    assert agent.vocabulary.known.numbers == _agent("recurrent", envs=5).vocabulary.known.numbers


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_sub_goals_that_are_shown_later_are_known_from_the_start(backend: str) -> None:
    """Only first missions were read, so that all sub-goals but the first consisted of unknown words."""
    envs = make_vec("Crafter-Typed-MakeStonePickaxe@subgoals=shown", 1, backend=backend)
    agent = new_agent("compact", envs, "symbolic", 1, 0, missions=True)
    teach(agent, envs)
    subgoals = TASKS["make stone pickaxe"].subgoals
    assert {"chop tree", "mine stone", "make stone pickaxe"} < set(subgoals)
    assert agent.vocabulary.unknown(subgoals) == []
    assert later_missions("Crafter-Typed-MakeStonePickaxe") == later_missions(MIXED) == ()


def test_the_order_of_words_counts() -> None:
    """With one-hot embeddings: "red" is there once in both missions, at 2/7 of the one and at 6/7 of the other."""
    words = WordTable(20)
    missions = ["the red box and the blue ball", "the blue box and the red ball", "red ball"]
    words.add(missions)
    counts, places = added_words(torch.from_numpy(words.tokens(np.array(missions, object))).long(), torch.eye(20))
    red = words.known.numbers["red"]
    assert torch.equal(counts[0], counts[1])
    assert places[:, red].tolist() == pytest.approx([2 / 7, 6 / 7, 1 / 2])
    assert counts[:, 0].tolist() == [0, 0, 0]


def test_distinct_missions_are_told_apart_once() -> None:
    words = WordTable(20)
    words.add(MISSIONS)
    tokens = torch.from_numpy(words.tokens(np.array(MISSIONS, object)))
    rows, which = distinct(tokens)
    assert len(rows) == 3
    assert torch.equal(rows[which], tokens.long())


# -------------------------------------------------------------------------------------------------------------- kernels


def test_things_in_view_are_added_up_as_torch_does_it_with_the_same_gradients() -> None:
    torch.manual_seed(0)
    asked, doubts = torch.randn(3, 21, 4, requires_grad=True), torch.randn(4, requires_grad=True)
    places = torch.randn(49 * 4, 6, requires_grad=True)
    entries = torch.from_numpy(random_views(50).reshape(50, -1))
    which, weights = torch.arange(50) % 3, torch.randn(50, 6)
    sums, gradients = [], []
    for add in (_Things.apply, things_by_torch):
        sums.append(add(asked, doubts, places, entries, which))
        gradients.append(torch.autograd.grad((sums[-1] * weights).sum(), [asked, doubts, places]))
    assert torch.allclose(*sums, atol=1e-4)
    for ours, naive in zip(*gradients, strict=True):
        assert torch.allclose(ours, naive, atol=1e-3)


def test_a_thing_in_view_means_something_by_the_mission() -> None:
    agent = _agent("compact")
    view = np.zeros((2, 7, 7, 3), np.uint8)
    view[:, 3, 4] = (6, 0, 0)  # a red ball
    missions = np.array(["go to the red ball", "go to the blue key"], object)
    with torch.no_grad():
        logits = agent.forward(agent.inputs(Views(view, mission=missions)), {}, None)[0]
    assert not torch.allclose(logits[0], logits[1])


@pytest.mark.parametrize("unit", [remember, by_torch])
def test_gradients_of_the_unit_are_those_of_one_long_unrolled_computation(unit) -> None:
    """With inputs that come several times, and one that never comes."""
    torch.manual_seed(0)
    T, B, H, U = 12, 3, 8, 7
    cell = nn.GRUCell(H, H)
    x, hidden = torch.randn(U, H, requires_grad=True), torch.randn(B, H, requires_grad=True)
    places = torch.randint(U - 1, (T, B))
    goes_on = (torch.rand(T, B, 1) > 0.3).float()
    weights = torch.randn(T, B, H)
    learnt = [x, hidden, *cell.parameters()]

    now, steps = hidden, []
    for t in range(T):
        now = cell(x[places[t]], now * goes_on[t])
        steps.append(now)
    naive = torch.autograd.grad((torch.stack(steps) * weights).sum(), learnt)
    gates = nn.functional.linear(x, cell.weight_ih, cell.bias_ih)
    out = unit(gates, places, hidden, goes_on, cell.weight_hh, cell.bias_hh)
    ours = torch.autograd.grad((out * weights).sum(), learnt)
    assert torch.allclose(out, torch.stack(steps), atol=1e-6)
    for one, other in zip(ours, naive, strict=True):
        assert torch.allclose(one, other, atol=1e-5)


def test_gates_far_open_and_shut_are_right_and_what_is_no_number_stays_none() -> None:
    x = torch.tensor([0.0, 1e-4, -3.0, 20.0, -80.0, 87.5, -100.0, 1e30, torch.inf, -torch.inf, torch.nan])
    given = torch.arange(len(x))[None], torch.zeros(len(x), 1), torch.ones(1, len(x), 1), torch.zeros(3, 1)
    wanted = {0: (0.7 * x.sigmoid()).tanh() / 2, 2: (x + 0.35).tanh() / 2}  # h' = tanh(x_n + 0.7 r) / 2: z = 1/2, h = 0
    for gate, out in wanted.items():
        gates = torch.zeros(len(x), 3)
        gates[:, gate] = x
        found = remember(gates, *given, torch.tensor([0.0, 0.0, 0.7]))[0, :, 0]
        torch.testing.assert_close(found, out, atol=1e-6, rtol=0, equal_nan=True)


# --------------------------------------------------------------------------------------------------------------- agents


def _agent(network: str, envs: int = 8, env_id: str = MIXED):
    vec = make_vec(env_id, envs)
    agent = new_agent(network, vec, "symbolic", 1, 0, missions=True)
    teach(agent, vec)
    return agent


@pytest.mark.parametrize("network", ["compact", "recurrent", "film"])
def test_an_agent_that_reads_missions_is_saved_with_its_words(network: str, tmp_path) -> None:
    agent = _agent(network)
    agent.save(tmp_path)
    again = load_agent(tmp_path)
    assert again.wants == ("symbols", "mission")
    assert again.vocabulary.known.numbers == agent.vocabulary.known.numbers
    views = Views(random_views(4), mission=np.array(MISSIONS, object))
    both = [one.act(views, one.begin(4), np.ones(4, bool), None).logits for one in (agent, again)]
    assert (both[0] == both[1]).all()


def test_whether_missions_are_read_is_a_setting_whose_default_depends_on_the_env() -> None:
    def wants(env_id: str, **settings) -> tuple[str, ...]:
        return find_method("ppo").build(TrainRsConfig(env=env_id, **settings)).learner.agent.wants

    assert "mission" in wants(MIXED)
    assert "mission" not in wants(MIXED, mission="off")
    assert "mission" not in wants(MIXED, network="paper")
    assert "mission" not in wants("BabyAI-Text-GoToLocal-RedBall-S20")
    assert "mission" in wants("BabyAI-Text-GoToLocal-RedBall-S20", mission="on")
    with pytest.raises(UsageError, match="reads no missions"):
        wants(MIXED, network="paper", mission="on")


def test_weights_come_with_their_words_and_new_words_get_room() -> None:
    """From missions about one kind of task to all of them: what was numbered keeps its number."""
    first = _agent("compact", env_id=f"{MIXED}@task_kinds=goto")
    known = first.vocabulary.known.numbers
    assert "next" not in known
    second = _agent("compact", env_id=f"{MIXED}@task_kinds=goto")
    second.module.load_state_dict(first.module.state_dict())
    teach(second, make_vec(MIXED, 8))
    assert known.items() < second.vocabulary.known.numbers.items()
    assert "next" in second.vocabulary.known.numbers


def test_networks_with_and_without_missions_do_not_take_each_others_weights(tmp_path) -> None:
    _agent("compact").save(tmp_path)
    plain = build_network("compact", obs_shape=(7, 7, 3), num_actions=7, num_values=1)
    with pytest.raises(InputError, match="another network"):
        take_weights(plain, tmp_path / "policy.safetensors")


def test_the_published_agent_has_the_published_size() -> None:
    film = build_network("film", obs_shape=(7, 7, 3), num_actions=6, num_values=1)
    assert sum(p.numel() for p in film.parameters()) == 1_068_103


def test_the_published_agent_reads_views_only() -> None:
    with pytest.raises(UsageError, match="7×7"):
        build_network("film", obs_shape=(9, 9, 3), num_actions=6, num_values=1)


class PlainBlock(nn.Module):
    """Two convolutions, modulated by the mission, as published."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(128, 128, 3, padding=1), nn.BatchNorm2d(128)
        self.conv2, self.norm2 = nn.Conv2d(128, 128, 3, padding=1), nn.BatchNorm2d(128)
        self.scale, self.shift = nn.Linear(128, 128), nn.Linear(128, 128)

    def forward(self, x, mission):
        x = self.conv2(self.norm1(self.conv1(x)).relu())
        return self.norm2(x * self.scale(mission)[:, :, None, None] + self.shift(mission)[:, :, None, None]).relu()


class Plain(nn.Module):
    """The published agent's network without memory of how it is made quick; parameters by the names of `Film`."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(3, 128, 2, padding=1), nn.BatchNorm2d(128)
        self.conv2, self.norm2 = nn.Conv2d(128, 128, 3, padding=1), nn.BatchNorm2d(128)
        self.blocks = nn.ModuleList([PlainBlock(), PlainBlock()])
        self.mission = nn.ParameterDict({"embedding": torch.empty(100, 128)})
        self.mission.unit = nn.GRU(128, 128, batch_first=True)
        self.unit = nn.LSTMCell(128, 128)
        self.actor = nn.Sequential(nn.Linear(128, 64), nn.Tanh(), nn.Linear(64, 7))
        self.critic = nn.Sequential(nn.Linear(128, 64), nn.Tanh(), nn.Linear(64, 1))

    def forward(self, view, words, memory):
        said, _ = self.mission.unit(self.mission["embedding"][words])
        said = said[torch.arange(len(words)), (words > 0).sum(1) - 1]
        x = nn.functional.max_pool2d(self.norm1(self.conv1(view.permute(0, 3, 1, 2).float())).relu(), 2)
        x = nn.functional.max_pool2d(self.norm2(self.conv2(x)).relu(), 2)
        for block in self.blocks:
            x = block(x, said)
        memory = self.unit(nn.functional.max_pool2d(x, 2).flatten(1), memory)
        return self.actor(memory[0]), self.critic(memory[0]), memory


def test_the_published_agent_says_and_learns_what_plain_layers_do_step_by_step() -> None:
    """Logits, values, memory and gradients of 3 steps of 4 envs, with views and missions that repeat."""
    torch.manual_seed(0)
    film = build_network("film", obs_shape=(7, 7, 3), num_actions=7, num_values=1)
    for norm in (module for module in film.modules() if hasattr(module, "gathered")):
        for tensor, mean in ((norm.mean, 0), (norm.var, 2), (norm.weight.data, 1), (norm.bias.data, 0)):
            tensor.normal_(mean, 0.2)
    plain = Plain().eval()
    names = {"mean": "running_mean", "var": "running_var"}
    weights = {
        ".".join(names.get(part, part) for part in name.split(".")): one for name, one in film.state_dict().items()
    }
    missing, unexpected = plain.load_state_dict(weights, strict=False)
    assert all("num_batches_tracked" in name for name in missing)
    assert unexpected == ["mission.vocabulary.words"]

    views, words = (
        torch.from_numpy(random_views(12)).view(3, 4, 7, 7, 3),
        torch.randint(2, 50, (3, 4, 6), dtype=torch.uint8),
    )
    views[1], words[2], words[:, 1, 3:] = views[0], words[0], 0
    started = torch.tensor([[False] * 4, [True, False, True, False], [False] * 4])
    begun = torch.randn(2, 4, 128)
    logits, values, after = film(views, words, {"hidden": begun[0], "cell": begun[1]}, started)
    memory, said = (begun[0], begun[1]), []
    for t in range(3):
        kept = (~started[t]).float()[:, None]
        *out, memory = plain(views[t], words[t].long(), (memory[0] * kept, memory[1] * kept))
        said.append(out)
    for t, (one, other) in enumerate(said):
        assert torch.allclose(logits[t], one, atol=1e-5)
        assert torch.allclose(values[t], other, atol=1e-5)
    assert torch.allclose(after["cell"], memory[1], atol=1e-5)
    (logits.square().sum() + values.sum()).backward()
    sum(one.square().sum() + other.sum() for one, other in said).backward()
    ours = dict(film.named_parameters())
    for name, parameter in plain.named_parameters():
        assert torch.allclose(ours[name].grad, parameter.grad, atol=1e-4, rtol=1e-3), name


def test_statistics_of_normalisation_are_those_of_what_came_in() -> None:
    norm = Norm()
    norm.weight.data.normal_(1, 0.3)
    norm.bias.data.normal_()
    came = torch.randn(60, 5, 128) * 3 + 2
    scale, shift = norm.factors()
    norm.gather(came * scale + shift)
    assert torch.equal(norm.mean, torch.zeros(128)), "not before the update is over"
    norm.settle()
    var, mean = torch.var_mean(came.flatten(0, 1), 0)
    assert torch.allclose(norm.mean, 0.1 * mean, atol=1e-4)
    assert torch.allclose(norm.var, 0.9 + 0.1 * var, atol=1e-3)
