"""What Optuna suggests: a function of the order, and better than chance."""

from __future__ import annotations

import builtins
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cerebro_db.core import protocol
from cerebro_db.core.errors import Unsupported
from cerebro_db.core.protocol import Suggest
from cerebro_db.core.search.methods.tpe import COMPLETE, PRUNED, RUNNING, Trial
from cerebro_db.core.search.spaces.read_space import read
from cerebro_db.nn.orders import suggestions

SPACE = read(
    {
        "architecture": [3, 4],
        "arch_params": {"depth": {"integer": [1, 5]}, "dropout": {"uniform": [0, 0.5], "step": 0.1}},
        "compile": {
            "loss": "mse",
            "optimizer": {"choice": ["Adam", {"class_name": "SGD", "config": {"momentum": {"uniform": [0, 0.9]}}}]},
            "learning_rate": {"log_uniform": [1e-4, 1]},
            "clipnorm": {"choice": [None, 1.0]},
        },
        "fit": {"batch_size": {"log_integer": [8, 512]}},
    },
    {3: {"n": "$depth", "rate": "$dropout"}, 4: {"rate": "$dropout"}},
)


def loss(point: dict[str, Any]) -> float:
    wrong = {"optimizer": "Adam", "architecture": 4}
    return abs(math.log10(point["learning_rate"]) + 2) + sum(point[name] == value for name, value in wrong.items())


def order(count: int = 3, tried: int = 30, number: int = 30, seed: int = 1) -> Suggest:
    points = [SPACE.drawn(9, place) for place in range(tried)]
    trials = [Trial(point, COMPLETE, loss(point), 9) for point in points]
    trials += [Trial(SPACE.drawn(9, "a"), RUNNING, None, 0), Trial(SPACE.drawn(9, "b"), RUNNING, 0.3, 2)]
    trials += [Trial(SPACE.drawn(9, "c"), PRUNED, 3.0, 1), Trial(SPACE.drawn(9, "d"), PRUNED, None, 0)]
    return Suggest(SPACE.described(), seed, number, [one.to_json() for one in trials], count)


def test_suggestions_are_points_of_the_space() -> None:
    answer = suggestions.suggested(order(40))
    assert len(answer.points) == 40
    assert all(SPACE.has(point) for point in answer.points)
    assert all(SPACE.has(point) for point in json.loads(json.dumps(answer.points)))
    for point in answer.points:
        SPACE.configuration(point)


def test_they_depend_on_the_order_alone() -> None:
    assert suggestions.suggested(order()) == suggestions.suggested(order())
    others = [order(number=31), order(seed=2), order(tried=29)]
    assert all(suggestions.suggested(other).points != suggestions.suggested(order()).points for other in others)


def test_another_process_suggests_the_same() -> None:
    program = (
        "import sys, json; from cerebro_db.core import protocol; from cerebro_db.nn.orders import suggestions\n"
        "print(json.dumps(suggestions.suggested(protocol.from_json(sys.stdin.read())).points))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=protocol.to_json(order()),
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    assert json.loads(done.stdout) == suggestions.suggested(order()).points


def test_they_are_better_than_chance() -> None:
    found = sorted(map(loss, suggestions.suggested(order(20, 60)).points))
    chance = sorted(loss(SPACE.drawn(10, place)) for place in range(200))
    assert found[10] < chance[100] / 2


def test_nothing_but_failures_is_no_error() -> None:
    failed = [Trial(SPACE.drawn(9, place), PRUNED, None, 0).to_json() for place in range(12)]
    assert SPACE.has(suggestions.suggested(Suggest(SPACE.described(), 1, 12, failed)).points[0])


def test_without_optuna_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name == "optuna":
            raise ImportError("No module named 'optuna'")
        return imported(name, *rest, **more)

    imported = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(Unsupported) as caught:
        suggestions.suggested(order(0))
    assert "needs Optuna, which is not installed" in caught.value.message
    assert f"{sys.executable} -m pip install optuna==" in str(caught.value.hint)


def test_suggestions_are_where_the_better_trials_are_dense() -> None:
    """Bergstra et al. 2011: of the points that are drawn from the density l of the better trials, the one with the
    largest l(x) / g(x), where g is the density of the others.  The densities are estimated anew here."""
    line = read({"compile": {"loss": "mse", "learning_rate": {"log_uniform": [1e-4, 1]}}}, {7: None})

    def place(point: dict[str, Any]) -> float:
        return math.log10(point["learning_rate"])

    def density(x: float, centres: list[float]) -> float:
        return sum(math.exp(-((x - one) ** 2) / (2 * 0.4**2)) for one in centres) / len(centres) + 0.02

    points = [line.drawn(4, number) for number in range(40)]
    trials: list[Trial] = [Trial(point, COMPLETE, abs(place(point) + 2), 9) for point in points]
    ranks = []
    for number in range(40, 60):
        order = Suggest(line.described(), 1, number, [one.to_json() for one in trials], 1)
        (point,) = suggestions.suggested(order).points
        ordered = sorted(trials, key=lambda one: one.score or 0.0)
        better = math.ceil(0.1 * len(ordered))  # Optuna's gamma
        l_of, g_of = ([place(dict(one.point)) for one in part] for part in (ordered[:better], ordered[better:]))

        def ratio(x: float, l_of: list[float] = l_of, g_of: list[float] = g_of) -> float:
            return density(x, l_of) / density(x, g_of)

        others = [ratio(place(line.drawn(5, f"{number}/{one}"))) for one in range(100)]
        ranks.append(sum(one > ratio(place(point)) for one in others) / len(others))
        trials.append(Trial(point, COMPLETE, abs(place(point) + 2), 9))
    assert sorted(ranks)[len(ranks) * 9 // 10] < 0.3, "of random points few have a larger ratio"
