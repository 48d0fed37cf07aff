"""Which engine is the cheapest for a run, and which GPU a segment gets."""

from __future__ import annotations

from pathlib import Path

from cerebro_db.core.engines import OPTIONAL, cheapest, in_turn, likelier


def test_optional_packages_are_named_as_they_are_pinned():
    pinned = (Path(__file__).resolve().parents[2] / "pyproject.toml").read_text()
    assert all(f'{engine} = ["{package}"]' in pinned for engine, package in OPTIONAL.items())


def test_segments_of_one_host_share_its_gpus_in_turn():
    assert in_turn(["a", "a", "a", "a"], {"a": 2}) == [0, 1, 0, 1]
    assert in_turn(["a", "b", "a", "c", "b"], {"a": 4, "b": 1, "c": 0}) == [0, 0, 1, None, 0]
    assert in_turn(["a", "a"], {"a": 0}) == [None, None]


def test_what_xla_compiles_counts_once_for_each_batch_size():
    trials = {
        "jax": {"build": 1.0, "compile": 2.0, "batch": 0.001},
        "tensorflow": {"build": 0.1, "compile": 0.1, "batch": 0.003},
    }
    few, many = cheapest(trials, [32, 32], 1000), cheapest(trials, [32, 32], 2000)
    assert list(few.items()) == [("tensorflow", 3.2), ("jax", 4.0)]
    assert list(many.items()) == [("jax", 5.0), ("tensorflow", 6.2)]
    assert list(cheapest(trials, [32, 64], 2000).items()) == [("tensorflow", 6.2), ("jax", 7.0)]


def test_segments_compile_for_each_other():
    trials = {
        "jax": {"build": 1.0, "compile": 2.0, "batch": 0.001},
        "tensorflow": {"build": 0.1, "compile": 0.1, "batch": 0.003},
    }
    sizes = [32, 64, 128, 256]
    assert cheapest(trials, sizes, 3000, segments=1) == {"tensorflow": 9.2, "jax": 12.0}
    assert cheapest(trials, sizes, 3000, segments=2) == {"jax": 8.0, "tensorflow": 9.2}
    assert cheapest(trials, sizes, 3000, segments=4) == cheapest(trials, sizes, 3000, segments=8)


def test_convolutions_are_tried_with_tensorflow_first():
    dense = {"class_name": "Dense", "config": {"name": "Conv", "units": 3}}
    convolution = {"class_name": "DepthwiseConv2D", "config": {"kernel_size": [3, 3]}}
    flat = {"class_name": "Sequential", "config": {"layers": [dense, dense]}}
    deep = {"class_name": "Functional", "config": {"layers": [dense, {"class_name": "TimeDistributed", "config": {
        "layer": {"class_name": "Sequential", "config": {"layers": [convolution]}}}}]}}  # fmt: skip
    assert likelier([flat, flat], gpus=False) == "jax"
    assert likelier([flat, deep], gpus=False) == "tensorflow"
    assert likelier([flat], gpus=True) == "tensorflow"
