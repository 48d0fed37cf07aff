"""What reads the texts of users takes time in proportion to their length."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

import pytest

from cerebro_db.core import names
from cerebro_db.core.architecture import keras_json
from cerebro_db.core.errors import CerebroError
from cerebro_db.core.parameters import grids
from cerebro_db.core.search.spaces import read_space

ARCHITECTURE = {
    "class_name": "Sequential",
    "config": {
        "name": "m",
        "layers": [
            {"class_name": "InputLayer", "config": {"batch_shape": [None, 2], "name": "i"}},
            {"class_name": "Dense", "config": {"name": "d", "units": "$units"}},
        ],
    },
}


def checked(space: dict[str, Any]) -> None:
    read = read_space.read({"arch_params": {"units": 2}, **space}, {1: ARCHITECTURE})
    read.check()
    for point in read.probes():
        assert read.has(point) and read.key(point)


def two_choices(size: int) -> None:
    rates = [place / 1e6 for place in range(1, size + 1)]
    compiled = {"loss": "mse", "optimizer": "SGD", "learning_rate": {"choice": rates}}
    checked({"compile": compiled, "fit": {"batch_size": {"choice": list(range(1, size + 1))}}})


def conditions_with_many_values(size: int) -> None:
    sizes = list(range(1, size + 1))
    momentum = {"choice": [0.1, 0.2], "when": {"batch_size": sizes[1:]}}
    compiled = {"loss": "mse", "optimizer": "SGD", "momentum": momentum}
    checked({"compile": compiled, "fit": {"batch_size": {"choice": sizes}}})


def a_chain_of_conditions(size: int) -> None:
    chained = {f"k{i}": {"choice": [1, 2], **({"when": {f"k{i - 1}": 1}} if i else {})} for i in range(size)}
    read = read_space.read({"compile": {"loss": "mse"}, "fit": chained, "arch_params": {"units": 2}}, {1: ARCHITECTURE})
    assert len(read.dimensions) == size


def long_places(size: int) -> None:
    """Each element of the list is at a place whose name is long."""
    constants: Any = [1] * size
    for _ in range(20):
        constants = {"key" * (size // 100): constants}
    with pytest.raises(CerebroError):
        read_space.read({"compile": {"loss": "mse", "x": constants}}, {1: ARCHITECTURE})


def a_list_of_columns(size: int) -> None:
    with pytest.raises(CerebroError, match="more than 1600"):
        names.split_list(", ".join(f"c{place}" for place in range(size)), "inputs")


def a_grid(size: int) -> None:
    rates = ", ".join(f"{place / 1e6}" for place in range(1, size + 1))
    grid = f"{{'loss': ['mse'], 'optimizer_params_list': [{{'optimizer': ['SGD'], 'lr': [{rates}]}}]}}"
    assert len(grids.generate([1], grid, "{'batch_size': [8, 16]}")) == 2 * size


def lists(size: int) -> None:
    compiled = [f"optimizer='SGD(lr={place / 1e6})', loss='mse'" for place in range(1, size + 1)]
    assert len(grids.cross_product([1], compiled, ["batch_size=8"])) == size


def outputs_without_units(size: int) -> None:
    layers: list[dict[str, Any]] = [{"config": {"name": "d0", "units": 3}}]
    for place in range(1, size):
        node = {"args": [{"config": {"keras_history": [f"d{place - 1}", 0, 0]}}]}
        layers.append({"config": {"name": f"d{place}"}, "inbound_nodes": [node]})
    outputs = [[f"d{place}", 0, 0] for place in range(size)]
    model = {"class_name": "Functional", "config": {"layers": layers, "output_layers": outputs}}
    assert keras_json.widths(model) == [3] * size


def seconds(work: Callable[[int], None], size: int) -> float:
    """Without the garbage collector, whose time depends on all that other tests have left."""

    def once() -> float:
        begun = time.process_time()
        work(size)
        return time.process_time() - begun

    gc.collect()
    gc.disable()
    try:
        return min(once(), once())
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("work", "size"),
    [
        (two_choices, 250),
        (conditions_with_many_values, 600),
        (a_chain_of_conditions, 125),
        (long_places, 2000),
        (a_list_of_columns, 20_000),
        (a_grid, 500),
        (lists, 500),
        (outputs_without_units, 3000),
    ],
)
def test_four_times_the_size_takes_about_four_times_the_time(work: Callable[[int], None], size: int) -> None:
    """Sixteen times, if it were quadratic."""
    # Other work of the machine can make a measurement long, but hardly ten of them.
    assert any(seconds(work, 4 * size) < 9 * seconds(work, size) for _ in range(10))


def test_a_space_with_many_dimensions_is_refused() -> None:
    with pytest.raises(CerebroError, match="more than 500 dimensions"):
        checked({"compile": {"loss": "mse", **{f"k{i}": {"uniform": [0, 1]} for i in range(501)}}})


@pytest.mark.parametrize("search", [("grid", None), ("random", 100)])
def test_a_grid_that_would_fill_the_memory_is_refused(monkeypatch: pytest.MonkeyPatch, search: Any) -> None:
    monkeypatch.setattr(grids, "MOST_CHARACTERS", 100_000)
    metrics = ", ".join(["'mae'"] * 300)
    rates = ", ".join(f"0.{place}" for place in range(100))
    grid = f"{{'loss': ['mse'], 'metrics': [[{metrics}]], 'optimizer': ['SGD'], 'lr': [{rates}]}}"
    with pytest.raises(CerebroError, match="more than 100,000 characters"):
        grids.generate([1], grid, "{'batch_size': [8]}", *search)
