"""What sharing saves when a language model scores actions, against scoring them one by one, in one run.

    python benchmarks/lm.py [--json] [--quick] [--rounds 5]

32 prompts of 64 and of 256 tokens, 6 actions of one or two tokens, a T5 of width 64 with 2 + 2 layers and a Qwen2 of
width 64 with 4 layers, float32, one thread. Ratios are of processor time, the best of the rounds of each side, and the
lower one of both lengths unless the name has a length:

* `t5_rows_ratio`, `causal_rows_ratio`: a row for each prompt and candidate, over all candidates in one row;
* `t5_encoder_once_ratio`: the encoder once for each prompt and a row for each candidate (Lamorel's way), over that;
* `grad_rows_ratio`, `grad_encoder_once_ratio`: the same with gradients, of the T5;
* `distinct_ratio`: an epoch of PPO on 1,280 steps of GoToLocal as one minibatch, every step scored, over each distinct
  prompt once; `distinct_ratio_64`: the same in minibatches of 64, in which few prompts of this level are equal;
* `frozen_ratio_64`, `frozen_ratio_256`: a training step of the whole T5, over one with a frozen encoder whose states
  are kept; `frozen_update_ratio_…` counts computing them once in four epochs, too;
* `training_ratio`: steps a second of whole training by `glam` on GoToLocal (3 actions, one observation, width 64), over
  the same PPO with prompts one by one, a row for each candidate, and nothing shared;
* `t5_ceiling_…`, `causal_ceiling_…`: the matrix products of scoring by themselves, same shapes, over scoring;
* `peak_mib_packed`, `peak_mib_rows`: memory that a training step of 64 prompts of 256 tokens and 9 actions adds;
* `trunk_ratio`: the distinct prompts of a rollout (1,280 steps of a go-to level with one distractor, three actions, one
  observation) by a Llama of SmolLM2-135M's shape with random weights, adapters on its top quarter, each prompt in a row
  of its own, over what prompts begin with alike once, and frozen layers in bfloat16 if the processor multiplies it;
  `trunk_exact_ratio`: the same with all layers in float32; `trunk_argmax_equal`: how often both prefer the same action;
* `beside_ratio`: PPO's update of a rollout of that size by a Llama of six layers of width 192, steps shuffled, over
  prompts shuffled and the steps of one beside each other, as where a model is large; `beside_prompts_ratio`: prompts;
* `real_steps_per_s`: steps a second of PPO with that model (two epochs), and `real_rss_mib` of its process;
* `flan_small_fp32_per_s`, `flan_small_bf16_per_s`: prompts of 256 tokens that the shape of Flan-T5-small scores in a
  second of processor time, with random weights.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlamaConfig, Qwen2Config, T5Config

from bkrl.agents.language import scorer as scoring
from bkrl.agents.language.adapters import ENCODER, LINEAR, Trainable, by_size, prepare
from bkrl.agents.language.agent import LanguageAgent, LanguageSettings
from bkrl.agents.language.catalogue import open_language_model
from bkrl.agents.language.models import Kind, LanguageModel, Origin, drawn
from bkrl.agents.language.packing import Prompts, forest
from bkrl.agents.language.scorer import Scorer
from bkrl.agents.language.vocabulary import make_tokenizer
from bkrl.core.config import PPOConfig
from bkrl.envs import make_vec
from bkrl.envs.babyai.constants import ACTION_SETS
from bkrl.learn.ppo import PPO
from bkrl.learn.rollout import Clock
from bkrl.rewards.streams import EnvReward
from command_line import parser_of, show

NAMES = ACTION_SETS["canonical"]
LENGTHS = (64, 256)
T5 = {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_heads": 4, "num_layers": 2}
FLAN_SMALL = {"d_model": 512, "d_kv": 64, "d_ff": 1024, "num_heads": 6, "num_layers": 8, "vocab_size": 32128}


def t5(**shape: Any) -> LanguageModel:
    """A T5 with random weights."""
    tokenizer = make_tokenizer(())
    shape = {"vocab_size": len(tokenizer), "decoder_start_token_id": 0, "feed_forward_proj": "gated-gelu", **shape}
    return _model(T5Config(**shape), "seq2seq")


def qwen() -> LanguageModel:
    """A Qwen2 of about the same size."""
    config = Qwen2Config(
        vocab_size=len(make_tokenizer(())), hidden_size=64, intermediate_size=128, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=4, pad_token_id=0, eos_token_id=1, bos_token_id=None,
    )  # fmt: skip
    return _model(config, "causal")


def _model(config: Any, kind: Kind) -> LanguageModel:
    return LanguageModel(drawn(config, kind, 0), make_tokenizer(()), kind, Origin(config.model_type), "P0")


def some_prompts(count: int, length: int) -> Prompts:
    """Distinct prompts of one length."""
    generator = torch.Generator().manual_seed(length)
    return Prompts(torch.randint(20, 500, (count, length), generator=generator), torch.full((count,), length))


def best(sides: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Seconds of processor time, the least of rounds in which the sides take turns."""
    for side in sides.values():
        side()
    least = dict.fromkeys(sides, float("inf"))
    for _ in range(rounds):
        for name, side in sides.items():
            began = time.process_time()
            side()
            least[name] = min(least[name], time.process_time() - began)
    return least


def encoder_once(lm: LanguageModel, scorer: Scorer, prompts: Prompts) -> Tensor:
    """(B, A) scores: the encoder once for each prompt, its states for each candidate, a row of the decoder for each."""
    A, B = len(scorer.candidates), len(prompts.tokens)
    states = lm.model.get_encoder()(input_ids=prompts.tokens, attention_mask=prompts.mask.long()).last_hidden_state
    fed = Prompts.of([(lm.start, *one[:-1]) for one in scorer.candidates])
    decoded = lm.model.get_decoder()(
        input_ids=fed.tokens.repeat(B, 1),
        encoder_hidden_states=states.repeat_interleave(A, 0),
        encoder_attention_mask=prompts.mask.long().repeat_interleave(A, 0),
        use_cache=False,
    ).last_hidden_state
    said = scorer.body.logits(decoded).log_softmax(2)
    packed = scorer.body.packed
    chosen = said.gather(2, packed.target.repeat(B, 1)[:, :, None])[:, :, 0]
    return (chosen * packed.inside.repeat(B, 1)).sum(1).view(B, A)


class OneByOne(LanguageAgent):
    """Nothing is shared: each prompt is read by itself, in a row for each candidate, by the model's own forward."""

    def inputs(self, views: Any) -> Any:
        """As `LanguageAgent.inputs`, one view after the other."""
        rows = [super(OneByOne, self).inputs(views[i : i + 1])["tokens"][0].tolist() for i in range(len(views))]
        read = Prompts.of(rows, self.lm.pad)
        return {"tokens": read.tokens, "lengths": read.lengths}

    def _logits(self, inputs: Any) -> tuple[Tensor, Tensor]:
        scored = []
        for tokens, length in zip(inputs["tokens"], inputs["lengths"].tolist(), strict=True):
            scored.append(self.scorer._score(Prompts(tokens[None, :length], torch.tensor([length])), {}))
        scores, hidden = (torch.cat(parts) for parts in zip(*scored, strict=True))
        return scores, hidden


def training_ratio(quick: bool) -> dict[str, float]:
    """Steps of whole training in a second of processor time, and how many times those of the plain loop they are."""
    env_id, speed = "BabyAI-GoToLocal-v0@actions=restricted", {}
    settings = LanguageSettings(scoring.Scoring(normalise="token"), observations=1)
    for name, kind, envs, steps in (("glam", LanguageAgent, 32, 40), ("plain", OneByOne, 8, 8)):
        count, long = (4, 4) if quick else (envs, steps)
        config = PPOConfig(num_envs=count, num_steps=long, num_minibatches=max(1, count * long // 64), norm_adv=False)
        agent = kind(open_language_model("tiny-t5"), env_id, 1, settings)
        if name == "plain":
            agent.scorer.packed, agent.scorer._checked = False, True
        ppo = PPO(make_vec(env_id, count), agent, [EnvReward(scale=20.0)], config, total_steps=10**9)
        if name == "plain":
            ppo.collector.look_once = False
        ppo.collector.collect(Clock())  # kernels are compiled, and episodes are at different points
        began = time.process_time()
        ppo.iterate()
        speed[name] = count * long / (time.process_time() - began)
    return {"training_ratio": speed["glam"] / speed["plain"], "training_steps_per_s": speed["glam"]}


def ceilings(count: int, rounds: int) -> dict[str, float]:
    """The share of scoring that its matrix products would take by themselves."""
    figures, attention = {}, functional.scaled_dot_product_attention
    for name, lm in (("t5", t5(**T5)), ("causal", qwen())):
        scorer = Scorer(lm, NAMES)
        for length in LENGTHS:
            prompts = some_prompts(count, length)
            products: list[tuple[Tensor, Tensor]] = []

            def linear(module: Any, given: Any, out: Any, products: Any = products) -> None:
                products.append((given[0].detach().flatten(0, -2), module.weight.detach().T))

            def attended(q: Tensor, k: Tensor, v: Tensor, *more: Any, products: Any = products, **named: Any) -> Tensor:
                products.append((q, k.transpose(2, 3)))
                products.append((torch.zeros(*q.shape[:3], k.shape[2]), v))
                return attention(q, k, v, *more, **named)

            scorer(prompts)
            hooks = [one.register_forward_hook(linear) for one in lm.model.modules() if isinstance(one, nn.Linear)]
            functional.scaled_dot_product_attention = attended  # type: ignore[assignment]
            with torch.no_grad():
                scorer(prompts)
            functional.scaled_dot_product_attention = attention
            for hook in hooks:
                hook.remove()
            took = best(
                {
                    "scoring": forward(lambda scorer=scorer, prompts=prompts: scorer(prompts).scores),  # type: ignore[misc]
                    "products": lambda products=products: [one @ other for one, other in products],  # type: ignore[misc]
                },
                rounds,
            )
            figures[f"{name}_ceiling_{length}"] = took["products"] / took["scoring"]
    return figures


def forward(score: Callable[[], Tensor]) -> Callable[[], object]:
    """Without gradients."""
    return torch.no_grad()(score)


def training(score: Callable[[], Tensor]) -> Callable[[], object]:
    """With gradients."""
    return lambda: score().log_softmax(1)[:, 0].mean().backward()


def scoring_ratios(count: int, rounds: int) -> dict[str, float]:
    """The first five figures."""
    found: dict[str, list[float]] = {}
    figures: dict[str, float] = {}
    for name, lm in (("t5", t5(**T5)), ("causal", qwen())):
        packed, rows = Scorer(lm, NAMES), Scorer(lm, NAMES, packed=False)
        for length in LENGTHS:
            prompts = some_prompts(count, length)
            sides: dict[str, Callable[[], Tensor]] = {
                "packed": lambda packed=packed, prompts=prompts: packed(prompts).scores,  # type: ignore[misc]
                "rows": lambda rows=rows, prompts=prompts: rows(prompts).scores,  # type: ignore[misc]
            }
            if name == "t5":
                sides["once"] = lambda lm=lm, packed=packed, p=prompts: encoder_once(lm, packed, p)  # type: ignore[misc]
            with torch.no_grad():
                said = [side() for side in sides.values()]
            assert all(torch.allclose(one, said[0], atol=1e-3) for one in said)
            for kind, way in (("", forward), ("grad", training)):
                took = best({side: way(score) for side, score in sides.items()}, rounds)
                figures[f"{name}_{kind or 'forward'}_ms_{length}"] = 1e3 * took["packed"]
                if not kind or name == "t5":
                    found.setdefault(f"{kind or name}_rows_ratio", []).append(took["rows"] / took["packed"])
                if name == "t5":
                    found.setdefault(f"{kind or name}_encoder_once_ratio", []).append(took["once"] / took["packed"])
    return {name: min(ratios) for name, ratios in found.items()} | figures


def with_rollout(agent: LanguageAgent, env_id: str, config: PPOConfig) -> tuple[PPO, Tensor, Tensor]:
    """PPO with a rollout to learn from, its advantages and its returns."""
    ppo = PPO(make_vec(env_id, config.num_envs), agent, [EnvReward()], config, total_steps=10**9)
    ppo.collector.collect(Clock())
    ppo.pay()
    return ppo, *ppo.advantages()


def distinct_ratio(steps: int, minibatches: int, rounds: int) -> float:
    """Every prompt of an update scored, over equal prompts once in a minibatch."""
    env_id = "BabyAI-GoToLocal-v0@actions=restricted"
    config = PPOConfig(num_envs=32, num_steps=steps, num_minibatches=minibatches, update_epochs=1)
    agent = LanguageAgent(open_language_model("tiny-t5"), env_id, 1, LanguageSettings(observations=1))
    ppo, advantages, returns = with_rollout(agent, env_id, config)
    repeats, distinct = ppo.collector.repeats, scoring._distinct

    def once() -> None:
        ppo.collector.repeats, scoring._distinct = repeats, distinct
        ppo.update(advantages, returns)

    def every() -> None:
        ppo.collector.repeats, scoring._distinct = None, lambda prompts: (None, None)
        ppo.update(advantages, returns)

    took = best({"once": once, "every": every}, rounds)
    return took["every"] / took["once"]


def frozen_ratios(count: int, rounds: int) -> dict[str, float]:
    """Training above a frozen encoder whose states are kept, over training all."""
    whole, part = t5(**T5), t5(**T5)
    prepare(part, Trainable(frozen=ENCODER), 0)
    every, above = Scorer(whole, NAMES), Scorer(part, NAMES)
    figures = {}
    for length in LENGTHS:
        prompts = some_prompts(count, length)
        kept = above.lower(prompts)
        took = best(
            {
                "all": training(lambda prompts=prompts: every(prompts).scores),  # type: ignore[misc]
                "above": training(lambda prompts=prompts, kept=kept: above(prompts, kept).scores),  # type: ignore[misc]
                "below": lambda prompts=prompts: above.lower(prompts),  # type: ignore[misc]
            },
            rounds,
        )
        figures[f"frozen_ratio_{length}"] = took["all"] / took["above"]
        figures[f"frozen_update_ratio_{length}"] = 4 * took["all"] / (4 * took["above"] + took["below"])
    return figures


def peak_memory() -> dict[str, float]:
    """MiB that a training step adds to a process of its own."""
    figures = {}
    for way in ("packed", "rows"):
        command = [sys.executable, __file__, "--memory", way]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        figures[f"peak_mib_{way}"] = float(done.stdout)
    return figures


def memory(way: str) -> float:
    """What `peak_memory` asks a process."""
    lm = t5(**T5)
    scorer = Scorer(lm, ACTION_SETS["augmented"], packed=way == "packed", most_tokens=2**30)
    training(lambda: scorer(some_prompts(2, 16)).scores)()
    Path("/proc/self/clear_refs").write_text("5")  # Linux: the most memory is what is taken now; starting took more
    before = _most_memory()
    training(lambda: scorer(some_prompts(64, 256)).scores)()
    return _most_memory() - before


def _most_memory() -> float:
    """MiB that this process has taken at most."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def flan_small(rounds: int) -> dict[str, float]:
    """Prompts in a second of processor time, in both precisions."""
    lm, count = t5(**FLAN_SMALL), 4
    scorer = Scorer(lm, NAMES)
    prompts = some_prompts(count, 256)

    def half() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            scorer(prompts)

    sides = {"fp32": forward(lambda: scorer(prompts).scores), "bf16": torch.no_grad()(half)}
    return {f"flan_small_{name}_per_s": count / seconds for name, seconds in best(sides, rounds).items()}


ROOM = "BabyAI-MixedTrainLocal-v0@task_kinds=goto,room_size=5,num_dists=1,actions=restricted"


def smollm2(quick: bool) -> LanguageModel:
    """A Llama of SmolLM2-135M's shape, or a small one."""
    return llama(*((64, 128, 4, 4, 2) if quick else (576, 1536, 30, 9, 3)))


def llama(*size: int) -> LanguageModel:
    """A Llama with random weights: width, inner width, layers, heads, heads of keys and values."""
    tokenizer = open_language_model("tiny-causal").tokenizer
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    special = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None, "max_position_embeddings": 2048}
    config = LlamaConfig(vocab_size=49152, **dict(zip(names, size, strict=True)), **special)
    return LanguageModel(drawn(config, "causal", 0), tokenizer, "causal", Origin("llama"), "P0")


def trunk(quick: bool) -> dict[str, float]:
    """`trunk_…` and `real_…`."""
    settings = LanguageSettings(scoring.Scoring(normalise="token"), by_size(smollm2(quick)), observations=1)
    if quick:
        settings = replace(settings, training=Trainable("lora", 3, alpha=32, targets=LINEAR, half=True))
    agent = LanguageAgent(smollm2(quick), ROOM, 1, settings)
    envs, steps = (4, 4) if quick else (64, 20)
    config = PPOConfig(num_envs=envs, num_steps=steps, num_minibatches=4, update_epochs=2)
    ppo = PPO(make_vec(ROOM, envs), agent, [EnvReward()], config, total_steps=10**9)
    began = time.process_time()
    ppo.iterate()
    figures = {"real_steps_per_s": envs * steps / (time.process_time() - began), "real_rss_mib": _most_memory()}
    texts = agent.prompts(ppo.collector.views[:steps].flat())[0]
    prompts, half = agent.scorer.prompts(texts), agent.scorer.half
    said: dict[str, Tensor] = {}
    body: Any = agent.scorer.body

    def took(name: str, half: bool) -> float:
        """Seconds of processor time."""
        agent.scorer.half = half
        began = time.process_time()
        with torch.no_grad():
            said[name] = agent.scorer(prompts, agent.scorer.lower(prompts)).logits
        return time.process_time() - began

    new, exact = took("new", half), took("exact", False)
    body._trees = lambda prompts: forest(prompts, body.packed, 1)  # each prompt in a tree of its own
    apart = took("apart", False)
    assert torch.allclose(said["exact"], said["apart"], atol=1e-3)
    equal = (said["new"].argmax(1) == said["apart"].argmax(1)).float().mean()
    figures |= {"trunk_ratio": apart / new, "trunk_exact_ratio": apart / exact}
    return figures | {"trunk_argmax_equal": float(equal), "trunk_prompts": float(len(texts))}


def beside_ratios(quick: bool, rounds: int) -> dict[str, float]:
    """`beside_…`."""
    settings = LanguageSettings(scoring.Scoring(normalise="token"), observations=1)
    agent = LanguageAgent(smollm2(True) if quick else llama(192, 512, 6, 6, 2), ROOM, 1, settings)
    envs, steps = (4, 4) if quick else (64, 20)
    config = PPOConfig(num_envs=envs, num_steps=steps, num_minibatches=4, update_epochs=2)
    ppo, advantages, returns = with_rollout(agent, ROOM, config)
    read = {True: 0, False: 0}
    forward = agent.forward

    def update(costly: bool) -> None:
        def counted(inputs: Any, *rest: Any) -> Any:
            read[costly] += len(inputs["tokens"])
            return forward(inputs, *rest)

        with patch.object(LanguageAgent, "costly", costly), patch.object(agent, "forward", counted):
            ppo.update(advantages, returns)

    took = best({"apart": lambda: update(False), "beside": lambda: update(True)}, rounds)
    return {"beside_ratio": took["apart"] / took["beside"], "beside_prompts_ratio": read[False] / read[True]}


def main() -> None:
    """Measure and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="times that each side is measured")
    parser.add_argument("--memory", choices=["packed", "rows"], help="print the peak memory of one way, and stop")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.memory:
        print(memory(args.memory))
        return
    count, steps, rounds = (4, 4, 1) if args.quick else (32, 40, args.rounds)
    results = trunk(args.quick)  # first: what others take would count as its memory
    results |= beside_ratios(args.quick, max(1, rounds // 2))
    results |= scoring_ratios(count, rounds) | frozen_ratios(count, rounds)
    results |= ceilings(count, rounds) | training_ratio(args.quick)
    results["distinct_ratio"] = distinct_ratio(steps, 1, max(1, rounds // 2))
    results["distinct_ratio_64"] = distinct_ratio(steps, steps // 2, max(1, rounds // 2))
    if not args.quick:
        results |= peak_memory() | flan_small(max(1, rounds // 2))
    show(results, args.json)


if __name__ == "__main__":
    main()
