"""What the rules annotator knows of Housekeep: from captions and names alone."""

from __future__ import annotations

import ast
import builtins
from pathlib import Path

import numpy as np
import pytest

from bkrl.core.errors import UsageError
from bkrl.envs import env_spec, family, make_vec
from bkrl.envs.housekeep.labels import truth
from bkrl.envs.housekeep.tables import votes, words
from bkrl.labelers.example import example_prompt
from bkrl.llm import open_backend
from bkrl.llm.protocol import Fault
from bkrl.llm.rules import answer, belongings, housekeep, tidying
from bkrl.llm.rules.belongings import ROOMS, belongs, kinds_of
from bkrl.llm.rules.segment import ReadSegment
from bkrl.llm.votes import HONESTY, knowledge
from bkrl.sandbox.check import check_program

TASK = "Housekeep-Symbolic-Task1"


def test_its_files_read_no_votes(monkeypatch):
    for module in (belongings, housekeep, tidying):
        tree = ast.parse(Path(module.__file__).read_text())
        imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        imported |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        assert {name for name in imported if name.startswith("bkrl.")} <= {
            "bkrl.llm.protocol",
            "bkrl.llm.rules.belongings",
            "bkrl.llm.rules.segment",
        }

    def refuse(*args, **kwargs):
        raise AssertionError(f"opened {args}")

    monkeypatch.setattr(builtins, "open", refuse)
    monkeypatch.setattr(Path, "open", refuse)
    monkeypatch.setattr(Path, "read_bytes", refuse)
    belongings._tables.cache_clear()
    belongs.cache_clear()
    assert belongs("golf ball", "garage shelf")
    assert not belongs("golf ball", "kitchen fridge")


def test_every_thing_and_room_is_known_by_name():
    assert [name for name in votes().objects if not kinds_of(words(name))] == []
    rooms = {words(kind.split("-")[0]) for kind in votes().types}
    assert rooms <= set(ROOMS)
    assert kinds_of("unicorn") == ()
    assert kinds_of("red toy box") == kinds_of("box")
    assert not belongs("unicorn", "kitchen fridge")
    assert belongs("towel", "bathroom bottom cabinet no top") == belongs("towel", "bathroom bottom cabinet")


def test_carrying_things_where_they_belong_is_better():
    away = "The fork is on the bedroom bed. You see the bedroom bed."
    held = "You hold the fork. You see the kitchen bottom cabinet, the kitchen fridge."
    home = "The fork is on the kitchen bottom cabinet. You see the kitchen bottom cabinet."
    wrong = "The fork is on the kitchen fridge. You see the kitchen fridge."
    good, why = housekeep.judge(ReadSegment((away, held, home), ("grab or release",) * 2))
    bad, _ = housekeep.judge(ReadSegment((away, held, wrong), ("grab or release",) * 2))
    idle, _ = housekeep.judge(ReadSegment((away, away, away), ("turn left",) * 2))
    harm, _ = housekeep.judge(ReadSegment((home, held, held), ("grab or release",) * 2))
    assert good > idle > harm
    assert good > bad
    assert "puts the fork on the kitchen bottom cabinet, where it belongs" in why
    assert housekeep.goals(ReadSegment((away,), ())) == ["pick up the fork"]
    assert housekeep.goals(ReadSegment((held,), ())) == ["put the fork on the kitchen bottom cabinet"]
    assert housekeep.goals(ReadSegment((home,), ())) == ["look for things that are out of place"]
    with pytest.raises(Fault, match="does not understand the caption"):
        housekeep.judge(ReadSegment(("Hello.", "Hello."), ("turn left",)))


def test_captions_of_the_env_are_understood():
    envs, rng = make_vec(f"{TASK}@control=high", 2), np.random.default_rng(2)
    symbols, _ = envs.reset(seed=2)
    seen = [symbols]
    for _ in range(60):
        symbols, *_ = envs.step(rng.integers(0, envs.single_action_space.n, 2))
        seen.append(symbols)
    envs.close()
    states = [housekeep.understand(caption) for caption in family("housekeep").caption(np.concatenate(seen))]
    assert any(state.held for state in states)
    assert max(len(state.lies) for state in states) >= 4
    assert any(len(state.view) > 3 for state in states)


def test_its_programs_pass_the_check_and_know_what_is_right():
    prompt = example_prompt("code", TASK)
    programs = tidying.programs(prompt)
    assert len(programs) == len(set(programs)) == 3
    for program in programs:
        check_program(program)
    namespace: dict = {"np": np}
    exec(programs[0], namespace)  # noqa: S102 - a program of ours
    right, said = namespace["table"](), votes()
    assert right[1:, 1:].shape == (len(said.objects), 126)
    names = family(env_spec(TASK).family).layout
    for o, thing in enumerate(names.things):
        expected = [belongs(thing, place) for place in names.places]
        np.testing.assert_array_equal(right[o + 1, 1:], expected)
    with pytest.raises(Fault, match="layout"):
        tidying.programs("nothing")


def test_closed_questions_are_answered_in_one_word():
    from bkrl.text.prompts import SHIPPED

    turns = [text for _, text in SHIPPED.render("belongs", thing="fork", place="kitchen bottom cabinet")]
    assert answer(turns) == "Yes"
    turns = [text for _, text in SHIPPED.render("belongs", thing="fork", place="bedroom bed")]
    assert answer(turns) == "No"
    with pytest.raises(Fault, match="does not understand this prompt"):
        answer([turns[0], "Where is the fork?"])


@pytest.mark.parametrize("control", ["low", "high"])
def test_the_prompt_that_label_sends_is_answered(control):
    """The env's name was read with the comma after it ("Housekeep,"), and no label could be made."""
    reply = answer([example_prompt("code", f"{TASK}@control={control}")])
    assert reply.startswith('```python\n"""Things lie where they belong')


def test_the_votes_annotator_answers_by_the_votes_alone():
    """Its programs hold every vote, and it tells the right place from one that `rules` takes for right."""
    right, known = truth(), knowledge()
    programs = known["Housekeep"].programs(example_prompt("code", TASK))
    assert len(set(programs)) == 3
    namespace: dict = {"np": np}
    exec(programs[2], namespace)  # noqa: S102 - a program of ours
    check_program(programs[2])
    names, table = family(env_spec(TASK).family).layout, namespace["table"]()
    expected = [[right[thing, place] for place in names.places] for thing in names.things]
    np.testing.assert_array_equal(table[1:, 1:], expected)

    pairs = [pair for pair, yes in right.items() if yes and not belongs(*pair)]
    thing, place = pairs[0]
    held = f"You hold the {thing}. You see the {place}."
    home = f"The {thing} is on the {place}. You see the {place}."
    segment = ReadSegment((held, home), ("grab or release",))
    assert known["Housekeep"].judge(segment)[0] > 1.0 > housekeep.judge(segment)[0]
    assert known["Housekeep"].goals(ReadSegment((held,), ())) == [f"put the {thing} on the {place}"]


def test_the_votes_annotator_says_what_it_is_and_knows_no_other_env():
    backend = open_backend("votes")
    assert backend.facts() == {"annotator": HONESTY}
    assert "truth" in HONESTY
    with pytest.raises(Fault, match="The votes annotator knows Housekeep and no other env"):
        answer([example_prompt("code", "BabyAI-GoToLocal-v0")], knowledge(), "votes")
    with pytest.raises(UsageError, match="--llm votes takes no model name"):
        open_backend("votes:x")
