"""The choice of an engine, and the GPU of each segment."""

from __future__ import annotations

from pathlib import Path

from cerebro_db.core.engines import (
    OPTIONAL_PACKAGES,
    OPTUNA,
    estimated_seconds,
    expected_faster,
    gpu_of_each_segment,
    known_faster,
)

PROJECT = Path(__file__).resolve().parents[2]


def test_optional_packages_have_the_versions_of_pyproject():
    pinned = (PROJECT / "pyproject.toml").read_text()
    assert f'"{OPTUNA}"' in pinned and f"\n{OPTUNA}\n" in (PROJECT / "requirements.txt").read_text()
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
