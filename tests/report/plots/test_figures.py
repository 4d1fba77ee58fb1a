"""Figures: which lines stand in which, how they look, and pictures that are the same bytes each time."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from bkrl.core.errors import InputError
from bkrl.methods import methods
from bkrl.report.comparison import Comparison, compare
from bkrl.report.groups import SUCCESS, Group, Trained
from bkrl.report.plots import draw as drawn
from bkrl.report.plots.draw import COLOURS, DARK_COLOURS, Panel, Style, identity_of, write_png
from bkrl.report.plots.figures import MOST_LINES, _points, figures_of, panels, profiles_of, styles_of
from bkrl.stats.curves import Band, band

STEPS = np.arange(0.0, 1001.0, 100.0)


def bands() -> list[Band]:
    curves = [
        (label, [(np.array([0.0, 50_000, 100_000]), np.array([0, 0.1 * s, top])) for s in range(1, n + 1)])
        for label, n, top in (("ppo", 3, 0.6), ("bk-code", 5, 0.9), ("bk <odd> & 'name'", 1, 0.2))
    ]
    return [band(label, several, np.random.default_rng(0)) for label, several in curves]


def draw(name: str = "fig") -> drawn.Drawing:
    looks = [Style(0, "6 4"), Style(1), Style(5)]
    return drawn.draw(bands(), looks, name=name, description='a "quoted" <text>', share=True, threshold=0.8)


def test_svg_is_deterministic_themed_and_well_formed():
    drawing = draw()
    assert drawing == draw()
    root = ElementTree.fromstring(drawing.svg)
    assert root.get("aria-label") == 'a "quoted" <text>'
    assert "var(--s0,#5f6670)" in drawing.svg
    assert "var(--s1,#0072b2)" in drawing.svg
    assert not re.findall(r"(?<!,)#[0-9a-f]{6}\b", drawing.svg)  # every colour is the theme's
    assert "<use" not in drawing.svg  # what is used would need an id of its own in the page
    assert "http" not in drawing.svg.replace('xmlns="http://www.w3.org/2000/svg"', "")
    for part in ("line-0", "line-1", "line-2", "band-0", "band-1"):
        assert drawing.svg.count(f'id="fig-{part}"') == 1
    assert 'id="fig-band-2"' not in drawing.svg  # one seed has no interval
    first, second = (set(re.findall(r' id="([^"]+)"', draw(name).svg)) for name in ("a", "b"))
    assert first
    assert not first & second
    with pytest.raises(ValueError, match="letters"):
        draw("a b")


def test_lines_lie_where_their_values_are():
    root = ElementTree.fromstring(draw().svg)
    line = root.find(".//*[@id='fig-line-0']/*")
    assert line is not None
    assert root.attrib["viewBox"] == "0 0 720 360"
    assert line.attrib["d"].strip() == "M 0 360 L 360 288 L 720 144"  # 0, 0.2, 0.6 at none, half and all of the steps
    assert draw().x_ticks[-1] == (100.0, "100k")
    assert [label for _, label in draw().y_ticks] == ["0 %", "20 %", "40 %", "60 %", "80 %", "100 %"]


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (0.0, 401_408.0), (-3.0, 17.2), (0.91, 0.94), (0.0, 5e-4)])
def test_ticks_are_few_round_and_hold_all_values(low: float, high: float):
    ends = np.array([low, high])
    line = Band("m", np.array([0.0, 10.0]), ends, ends, ends, 5, "t")
    ticks = drawn.draw([line], [Style(0)], name="fig", description="", share=False).y_ticks
    assert 3 <= len(ticks) <= 7
    assert (ticks[0][0], ticks[-1][0]) == (100.0, 0.0)
    assert float(ticks[0][1]) <= low + 1e-9
    assert float(ticks[-1][1]) >= high * 0.999


def test_one_evaluation_is_a_dot_and_constant_lines_have_a_range():
    dot = Band("m", np.array([50.0]), np.array([2.0]), np.array([np.nan]), np.array([np.nan]), 1, "none")
    shown = drawn.draw([dot], [Style(0)], name="fig", description="", share=False)
    root = ElementTree.fromstring(shown.svg)
    path = root.find(".//*[@id='fig-line-0']/*")
    assert path is not None
    assert path.attrib["d"].split()[1:3] == path.attrib["d"].split()[4:6]  # two equal points
    assert "round" in path.attrib["style"]
    assert len(shown.y_ticks) >= 2


def group(alg: str, control: str = "none", form: str = "pbrs", note: str = "") -> Group:
    form = form if alg.startswith("bk-") else "none"
    parts = [x for x in (form if form not in ("pbrs", "none") else "", control if control != "none" else "", note) if x]
    label = alg + (f" ({', '.join(parts)})" if parts else "")
    values = np.linspace(0, 1, len(STEPS))
    runs = tuple(
        Trained(f"{label}-{s}", "W", alg, s, {}, {SUCCESS: (STEPS, values)}, control, form=form) for s in range(5)
    )
    return Group("W", alg, label, control, runs)


def everything() -> list[Group]:
    methods = [group(f"bk-{v}", form=form) for v in ("code", "pref", "goal") for form in ("pbrs", "advice")]
    controls = [
        group(f"bk-{v}", control, form)
        for v in ("code", "pref", "goal")
        for control in ("shuffled", "random", "zero")
        for form in ("pbrs", "advice")
    ]
    return [group("ppo"), group("rnd"), *methods, *controls]


def test_few_lines_share_a_figure_and_many_are_split_by_method():
    few = everything()[:MOST_LINES]
    assert [len(members) for _, members in panels(few)] == [MOST_LINES]
    split = panels(everything())
    assert [title for title, _ in split][:2] == ["methods", "bk-code and its controls, pbrs"]
    assert {g.label for _, members in split for g in members} == {g.label for g in everything()}
    for _, members in split:
        assert len(members) <= MOST_LINES
        assert members[0].is_baseline
    defects = [group("ppo"), *(group("bk-pref", note=f"compat=b{i}") for i in range(1, 20))]
    sizes = [len(members) for _, members in panels(defects)]
    assert sum(sizes) == 19 + len(sizes)
    assert max(sizes) <= MOST_LINES


def test_no_two_methods_of_an_env_look_alike():
    styles = styles_of(everything())
    assert len(set(styles.values())) == len(everything())
    assert styles["ppo"].slot == 0
    assert styles["bk-pref"] == Style(2)
    assert styles["bk-pref (advice)"].slot == 2
    assert styles_of([group("bk-pref")])["bk-pref"] == styles["bk-pref"]  # figures agree


def comparison() -> Comparison:
    return compare("W", everything(), 0.8)


def test_every_method_has_a_colour_that_there_is():
    groups = [group(one.name) for one in methods()]
    assert {style.slot for style in styles_of(groups).values()} <= set(range(len(COLOURS)))


def test_an_env_has_curves_and_a_profile():
    figures = figures_of(0, comparison(), 0.8)
    ids = [one for figure in figures for one in re.findall(r' id="([^"]+)"', figure.drawing.svg)]
    assert len(ids) == len(set(ids)) > len(figures)
    assert figures[0].panel == "methods"
    assert any(figure.title == "performance profile" for figure in figures)
    assert all(len(figure.legend) == len(figure.lines) <= MOST_LINES for figure in figures)


def test_profiles_fall_from_one_to_none():
    (line,) = profiles_of(comparison(), [group("ppo")])
    assert line.centre[0] == 1
    assert line.centre[-1] == 0
    assert np.all(np.diff(line.centre) <= 0)
    assert line.centre[np.searchsorted(line.steps, 0.5) - 1] == 1  # every run's mean success is 0.5


@pytest.mark.parametrize("dark", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_png(tmp_path: Path, dark: bool):
    looks = [Style(0, "6 4"), Style(1), Style(5)]
    for name in ("a.png", "b.png"):
        panel = Panel("T", bands(), looks)
        write_png(tmp_path / name, [panel] * 2, ylabel="success", limits=(0, 1), dark=dark, identity="abc")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    assert identity_of(tmp_path / "a.png") == "abc"
    with Image.open(tmp_path / "a.png") as image:
        grey = np.asarray(image.convert("L"))
        corner = grey[2, 2]
        assert image.width > 800
    assert (corner < 60) == dark
    assert ((grey > 200).mean() < 0.1) == dark  # inside the axes too


def test_long_names_leave_room_for_the_lines(tmp_path: Path):
    """Two columns of long names squeezed the axes to a third of their width and lay over those of the neighbour."""
    names = [f"bk-pref (defects b{number}) · pbrs · no guarantee" for number in range(6)]
    panel = Panel("T", [replace(bands()[0], label=name) for name in names], [Style(number) for number in range(6)])
    write_png(tmp_path / "a.png", [panel] * 4, ylabel="success", limits=(0, 1))
    with Image.open(tmp_path / "a.png") as image:
        drawn = np.asarray(image.convert("L")) < 250
    assert drawn.mean(axis=1).max() > 0.85  # a line of the grid goes through both panels of a row


@pytest.mark.parametrize(
    ("dark", "colours"), [pytest.param(False, COLOURS, marks=pytest.mark.slow), (True, DARK_COLOURS)]
)
def test_every_line_keeps_its_colour(tmp_path: Path, dark: bool, colours: tuple[str, ...]):
    """With a small palette two methods had the same colour."""
    first, second, _ = bands()
    lines = [replace(first if slot % 2 else second, label=f"m{slot}") for slot in range(len(colours))]
    shifted = [replace(b, **{k: np.clip(getattr(b, k) * (0.5 + i / 14), 0, 1) for k in ("low", "centre", "high")})
               for i, b in enumerate(lines)]  # fmt: skip
    panel = Panel("T", shifted, [Style(slot) for slot in range(len(colours))])
    write_png(tmp_path / "a.png", [panel] * 2, ylabel="success", limits=(0, 1), dark=dark)
    with Image.open(tmp_path / "a.png") as image:
        there = np.unique(np.asarray(image.convert("RGB")).reshape(-1, 3), axis=0).astype(int)
    for colour in colours:
        wanted = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
        assert np.abs(there - wanted).sum(axis=1).min() <= 3, colour


# Machado, Oliveira and Fernandes 2009: what is seen of linear RGB, where one kind of cone is missing.
SEEN = {
    "all": np.eye(3),
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def linear(colour: str) -> np.ndarray:
    raw = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(raw <= 0.04045, raw / 12.92, ((raw + 0.055) / 1.055) ** 2.4)


def cielab(rgb: np.ndarray) -> np.ndarray:
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    x = to_xyz @ np.clip(rgb, 0, 1) / [0.95047, 1, 1.08883]
    f = np.where(x > 0.008856, np.cbrt(x), 7.787 * x + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize(("colours", "ground"), [(COLOURS, "#ffffff"), (DARK_COLOURS, "#14171a")])
def test_lines_are_told_apart_by_all_eyes(colours: tuple[str, ...], ground: str):
    """Of the colour-blind too; one of a method and its control had the same colour for the commonest kind."""
    light = [float(linear(colour) @ [0.2126, 0.7152, 0.0722]) + 0.05 for colour in (*colours, ground)]
    assert min(max(one, light[-1]) / min(one, light[-1]) for one in light[:-1]) >= 3  # WCAG 2.1, 1.4.11
    for name, matrix in SEEN.items():
        seen = [cielab(np.array(matrix) @ linear(colour)) for colour in colours]
        apart = {(i, j): float(np.linalg.norm(seen[i] - seen[j])) for j in range(8) for i in range(j)}
        assert min(apart.values()) > 12, (name, min(apart, key=apart.__getitem__))


def test_names_are_no_formulas(tmp_path: Path):
    panel = Panel("$\\frac{$", [replace(bands()[0], label="a $x^{$ b")], [Style(0)])
    write_png(tmp_path / "a.png", [panel], ylabel="success", title="$_$", limits=(0, 1))


def test_captions_say_what_lines_and_bands_are():
    few, one = (Group("W", "ppo", "ppo", "none", tuple(run for run in group("ppo").runs[:n])) for n in (3, 1))
    notes = [figures_of(0, compare("W", members, 0.8), 0.8)[0].note for members in ([group("ppo")], [few], [one])]
    assert "Lines: interquartile means over runs (n each); shaded: 95 % intervals (bootstrap)" in notes[0]
    assert "Lines: means over runs (n each); shaded: 95 % intervals (Student’s t)" in notes[1]
    assert notes[2].endswith("Lines: one run each.")
    assert "Shaded" not in figures_of(0, compare("W", [one], 0.8), 0.8)[-1].note


def test_a_foreign_picture_has_no_identity(tmp_path: Path):
    Image.new("RGB", (4, 4)).save(tmp_path / "x.png")
    with pytest.raises(InputError, match="was not made by bkrl report"):
        identity_of(tmp_path / "x.png")
    (tmp_path / "y.png").write_bytes(b"no")
    with pytest.raises(InputError, match="is not a PNG"):
        identity_of(tmp_path / "y.png")


def test_numbers_are_not_extrapolated():
    early, late = (
        Band(name, steps, np.ones(len(steps)), np.ones(len(steps)), np.ones(len(steps)), 5, "t")
        for name, steps in (("early", np.array([0.0, 500.0, 1000.0])), ("late", np.array([500.0, 1000.0])))
    )
    assert _points([early, late], True)[0] == ["0", "100 %", "–"]


def test_one_run_has_no_profile():
    alone = [replace(one, runs=one.runs[:1]) for one in (group("ppo"), group("bk-code"))]
    found = figures_of(0, compare("W", alone, 0.8), 0.8)
    assert found
    assert not any(figure.title == "performance profile" for figure in found)
