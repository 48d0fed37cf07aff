"""The choice of an engine, and the GPU of each segment."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cerebro_db.core import engines
from cerebro_db.core.engines import (
    OPTIONAL_PACKAGES,
    OPTUNA,
    estimated_seconds,
    expected_faster,
    gpu_of_each_segment,
    known_faster,
)
from cerebro_db.core.events import Initial
from cerebro_db.core.run_options import RunOptions
from cerebro_plpy.runs.preflight import engine_choice
from cerebro_plpy.runs.record.run import ModelBuild

PROJECT = Path(__file__).resolve().parents[2]


def test_optional_packages_have_the_versions_of_pyproject():
    pinned = (PROJECT / "pyproject.toml").read_text()
    assert f'"{OPTUNA}"' in pinned and f"\n{OPTUNA} " in (PROJECT / "requirements.txt").read_text()
    assert all(f'{engine} = ["{package}"]' in pinned for engine, package in OPTIONAL_PACKAGES.items())


def test_segments_of_one_host_share_its_gpus_gpu_of_each_segment():
    assert gpu_of_each_segment(["a", "a", "a", "a"], {"a": 2}) == [0, 1, 0, 1]
    assert gpu_of_each_segment(["a", "b", "a", "c", "b"], {"a": 4, "b": 1, "c": 0}) == [0, 0, 1, None, 0]
    assert gpu_of_each_segment(["a", "a"], {"a": 0}) == [None, None]


def test_jax_compiles_once_for_each_batch_size():
    trials = {
        "jax": {"build": 1.0, "compile": 2.0, "batch": 0.001},
        "tensorflow": {"build": 0.1, "compile": 0.1, "batch": 0.003},
    }
    few, many = estimated_seconds(trials, [32, 32], 1000), estimated_seconds(trials, [32, 32], 2000)
    assert list(few.items()) == [("tensorflow", 3.2), ("jax", 4.0)]
    assert list(many.items()) == [("jax", 5.0), ("tensorflow", 6.2)]
    assert list(estimated_seconds(trials, [32, 64], 2000).items()) == [("tensorflow", 6.2), ("jax", 7.0)]


def test_segments_share_compiled_programs():
    trials = {
        "jax": {"build": 1.0, "compile": 2.0, "batch": 0.001},
        "tensorflow": {"build": 0.1, "compile": 0.1, "batch": 0.003},
    }
    sizes = [32, 64, 128, 256]
    assert estimated_seconds(trials, sizes, 3000, segments=1) == {"tensorflow": 9.2, "jax": 12.0}
    assert estimated_seconds(trials, sizes, 3000, segments=2) == {"jax": 8.0, "tensorflow": 9.2}
    assert estimated_seconds(trials, sizes, 3000, segments=4) == estimated_seconds(trials, sizes, 3000, segments=8)


def test_tensorflow_is_first_with_convolutions_and_on_gpus():
    dense = {"class_name": "Dense", "config": {"name": "Conv", "units": 3}}
    convolution = {"class_name": "DepthwiseConv2D", "config": {"kernel_size": [3, 3]}}
    flat = {"class_name": "Sequential", "config": {"layers": [dense, dense]}}
    deep = {"class_name": "Functional", "config": {"layers": [dense, {"class_name": "TimeDistributed", "config": {
        "layer": {"class_name": "Sequential", "config": {"layers": [convolution]}}}}]}}  # fmt: skip
    assert expected_faster([flat, flat], gpus=False) == "jax"
    assert expected_faster([flat, deep], gpus=False) == "tensorflow"
    assert expected_faster([flat], gpus=True) == "tensorflow"
    assert known_faster(deep, gpus=False) == "tensorflow"
    assert known_faster(flat, gpus=False) is None and known_faster(deep, gpus=True) is None


def test_a_model_that_is_added_gets_the_engine_that_has_built_the_others():
    """What no trial has built is not chosen, however fast it is elsewhere."""

    dense = {"class_name": "Dense", "config": {"units": 3}}

    def model(engine: str, architecture: object = dense) -> Any:
        asked = SimpleNamespace(definition={"architecture": architecture}, initial=Initial.RANDOM)
        return SimpleNamespace(asked=asked, build=ModelBuild(done=bool(engine), engine=engine), hops=0)

    convolution = {"class_name": "Conv1D", "config": {"filters": 3}}
    options = RunOptions(engine="auto", among=("tensorflow", "jax"))
    run: Any = SimpleNamespace(
        options=options, models={1: model("tensorflow"), 2: model("tensorflow"), 3: model("jax")}
    )
    new, added = model(""), model("", convolution)
    assert engine_choice.of_added(run, new) == "tensorflow"
    run.models = {1: model("jax")}
    assert engine_choice.of_added(run, new) == "jax" and engine_choice.of_added(run, added) == "tensorflow"
    run.models = {}
    assert engine_choice.of_added(run, new) == "jax"
    # And a model that its engine cannot build gets each other engine once.
    new.build.engine = "jax"
    assert engine_choice.instead(run, new) == "tensorflow"
    new.build.engine = "tensorflow"
    assert engine_choice.instead(run, new) is None
    run.options = RunOptions(engine="jax")
    assert engine_choice.instead(run, model("jax")) is None


@pytest.mark.parametrize("models", [3, 6])
def test_an_architecture_is_read_once_however_many_models_have_it(models: int, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Any] = []
    monkeypatch.setattr(engines, "has_convolution", lambda architecture: read.append(architecture) or False)
    asked = [SimpleNamespace(model_id=number % 2, definition={"architecture": number % 2}) for number in range(models)]
    found = {number: SimpleNamespace(asked=one, build=ModelBuild()) for number, one in enumerate(asked)}
    run: Any = SimpleNamespace(models=found, options=RunOptions())
    assert engine_choice.first_tried(run) == "jax" and sorted(read) == [0, 1]
    read.clear()
    engine_choice.settle_convolutions(run, list(found.values()))
    assert sorted(read) == [0, 1]
