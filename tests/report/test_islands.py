"""Plans, as people see them."""

import io
import math
from pathlib import Path

import numpy as np
from matplotlib.image import imread
from rich.console import Console

from atoll.islands import Costs, Layer, Machine, MachineLinks, Terms, form
from atoll.report.islands import draw_plan, show_plan, size

LAYERS = [Layer(name, 1e9, 1e5, 1e5, 2e8) for name in ("first", "second", "third", "fourth")]


def pairs(count: int) -> MachineLinks:
    return MachineLinks(np.full((count, count), 0.01), np.full((count, count), 1e7), np.ones((count, count)))


def told(machines: list[Machine], every: int = 8) -> str:
    plans = form(LAYERS, machines, pairs(len(machines)), Terms(batch=4))
    console = Console(width=300, record=True, file=io.StringIO())
    console.print(show_plan(plans, machines, LAYERS, Terms(batch=4), every))
    return console.export_text()


def test_a_plan_says_who_holds_what_and_why_another_lost() -> None:
    machines = [Machine(1e11, 2.2e9, f"n{place}") for place in range(6)]
    text = told(machines)
    assert "2 islands of 2 to 4: 42.81 samples a second" in text
    assert "n0" in text
    assert "free" in text
    assert "Runner-up: " in text
    assert "so islands average every" in text, "averages take longer than eight steps"
    assert "it fits into 100000 steps" in told(machines, every=100_000)


def test_where_all_fits_everybody_has_all() -> None:
    text = told([Machine(1e11, math.inf, name) for name in ("a", "b")])
    assert "every node its own island" in text
    assert "plain data parallelism is the fastest here" in text
    assert "any" in text


def test_a_picture_is_drawn(tmp_path: Path) -> None:
    machines = [Machine(1e11, 2.2e9, f"n{place}") for place in range(6)]
    terms = Terms(batch=4)
    plan = form(LAYERS, machines, pairs(6), terms)[0]
    draw_plan(plan, machines, pairs(6), Costs(LAYERS, terms), tmp_path / "plan.png")
    picture = imread(tmp_path / "plan.png")
    assert picture.shape[1] > 600
    assert len(np.unique(picture.reshape(-1, picture.shape[2]), axis=0)) > 5, "something is on it"


def test_sizes() -> None:
    assert [size(value) for value in (5, 1500, 2.5e6, 6e9, 7e12)] == ["5 B", "1.5 kB", "2.5 MB", "6 GB", "7 TB"]
