"""Fused models get the numbers that each gets alone, and each its own result."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from cerebro_db.core.protocol import Describe, Member, Origin, RehearseFusion, StateRef
from tests.thorough import landing

from . import configurations as c
from .test_hops import CASES, partitions
from .test_trainer import CATEGORICAL, IMAGES, LABELS, failure
from .trainer_client import Trainer, Visit, full

VISITS = 2
SEVERAL = ("AdamW, cosine schedule, BatchNorm, Dropout", "two inputs, two outputs", "mixed_float16, loss scaled")


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    trainer = Trainer(tmp_path_factory.mktemp("jax"), engine="jax")
    trainer.data("digits", c.DIGITS, image=IMAGES, digit=c.one_hot(LABELS, 10))
    yield trainer
    trainer.close()


def tensors(visit: Visit) -> list[np.ndarray]:
    found = safetensors.numpy.load_file(visit.path)
    return [found[name] for name in sorted(found)]


def require_close(one: Visit, other: Visit) -> None:
    assert (one.rows, one.steps, one.finite) == (other.rows, other.steps, other.finite)
    assert one.loss == pytest.approx(other.loss, rel=1e-4)
    assert one.metrics == {name: pytest.approx(value, abs=1e-3) for name, value in other.metrics.items()}
    for mine, its in zip(tensors(one), tensors(other), strict=True):
        np.testing.assert_allclose(mine, its, rtol=2e-3, atol=2e-4)


def alone(trainer: Trainer, members: list[Member], handle: str) -> list[Visit]:
    return [
        trainer.train_fused(handle, replace(member, out=str(trainer.folder / f"alone.{number}")))[0]
        for number, member in enumerate(members)
    ]


def fused(trainer: Trainer, members: list[Member], handle: str) -> list[Visit]:
    return trainer.train_fused(
        handle, *(replace(member, out=str(trainer.folder / f"out.{place}")) for place, member in enumerate(members))
    )


def copies(trainer: Trainer, visits: list[Visit], name: str) -> list[Visit]:
    """The visits with copies of their states, which the next training does not overwrite."""
    return [
        replace(visit, path=str(shutil.copy(visit.path, trainer.folder / f"{name}.{number}")))
        for number, visit in enumerate(visits)
    ]


# The case of 16 bits has a normalization and dropout, too.
@pytest.mark.parametrize("name", landing([name for name in CASES if "CNN" not in name], *SEVERAL[1:]))
def test_the_numbers_are_those_of_each_alone(trainer: Trainer, name: str) -> None:
    """Also on a second partition, from the states (with optimizer and seeds) of the first visit."""
    configuration, layout = CASES[name]
    rows = None if "two" in name else 40  # for another number of rows XLA compiles all again: once is enough
    found: Any = {}
    for way in (alone, fused):
        states: list[Any] = [None] * 3
        for visit, arrays in enumerate(partitions(layout)[:VISITS]):
            trainer.data("part", layout, **{column: values[:rows] for column, values in arrays.items()})
            members = [
                trainer.member(configuration, state, seed=seed, shuffle_seed=10 * seed + visit)
                for seed, state in zip((1, 2, 3), states)
            ]
            found[way] = copies(trainer, way(trainer, members, "part"), f"{way.__name__}.{visit}")
            states = [full(visit) for visit in found[way]]
    for one, other in zip(found[fused], found[alone]):
        require_close(one, other)


def penalised(rate: float, penalty: float, **more: Any) -> c.Json:
    architecture = c.sequential(
        c.input_layer([64]),
        c.layer(
            "Dense",
            "hidden",
            units=16,
            kernel_regularizer={
                "module": "keras.regularizers",
                "class_name": "L2",
                "config": {"l2": penalty},
                "registered_name": None,
            },
        ),
        c.layer("Dense", "out", units=10, activation="softmax"),
    )
    return c.configuration(architecture, CATEGORICAL, learning_rate=rate, **more)


def test_configurations_that_differ_in_numbers_have_one_fusion_key(trainer: Trainer) -> None:
    one, others = penalised(0.1, 1e-3), [penalised(0.01, 1e-2), penalised(0.1, 1e-3, batch_size=32)]
    keys = trainer(Describe(one, c.DIGITS, others)).fusion_keys
    assert keys[0] == keys[1] != keys[2] and None not in keys
    members = [trainer.member(each, shuffle_seed=5) for each in (one, others[0])]
    both = fused(trainer, members, "digits")
    for mine, its in zip(both, alone(trainer, members, "digits")):
        require_close(mine, its)
    assert both[0].loss != pytest.approx(both[1].loss, rel=1e-3)


def test_a_loss_that_is_not_finite_is_one_members_own(trainer: Trainer) -> None:
    members = [trainer.member(penalised(rate, 1e-3, optimizer="SGD")) for rate in (0.01, 1e30, 0.02)]
    found = fused(trainer, members, "digits")
    assert [one.finite for one in found] == [True, False, True]
    for mine, its in zip(found[::2], alone(trainer, members[::2], "digits")):
        require_close(mine, its)


def test_what_cannot_be_fused_is_refused_and_leaves_no_trace(trainer: Trainer) -> None:
    members = [trainer.member(penalised(0.1, 1e-3, batch_size=size), out=size) for size in (16, 32)]
    said = failure("InvalidArgument", trainer.train_fused, "digits", *members)
    assert "cannot be fused" in said
    other = trainer.member(penalised(0.1, 1e-3, optimizer="SGD"), out=1)
    assert "cannot be fused" in failure("InvalidArgument", trainer.train_fused, "digits", members[0], other)
    missing = StateRef(Origin.FULL, name="x", sha256="0", path=str(trainer.folder / "nothing"))
    assert failure("TrainerFailed", trainer.train_fused, "digits", members[0], replace(members[0], state=missing))
    # The next one is alone again.
    (first, second) = (trainer.train(penalised(0.1, 1e-3), "digits").state.sha256 for _ in range(2))
    assert first == second


def test_a_rehearsal_says_what_each_way_costs(trainer: Trainer) -> None:
    found = trainer(RehearseFusion([penalised(rate, 1e-3) for rate in (0.1, 0.01, 0.001)], "digits"))
    assert 0 < found.alone < 1 and 0 < found.fused < 1


@pytest.mark.tensorflow
def test_tensorflow_trains_one_at_a_time(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path)
    trainer.data("digits", c.DIGITS, image=IMAGES, digit=c.one_hot(LABELS, 10))
    one = penalised(0.1, 1e-3)
    assert trainer(Describe(one, c.DIGITS, [one])).fusion_keys == [None, None]
    members = [trainer.member(one, out=place) for place in range(2)]
    assert "cannot be fused" in failure("InvalidArgument", trainer.train_fused, "digits", *members)
    trainer.close()


def test_a_model_that_convolves_trains_alone_on_a_cpu(trainer: Trainer) -> None:
    convolving = c.configuration(c.cnn(), CATEGORICAL)
    assert trainer(Describe(convolving, c.DIGITS)).fusion_keys == [None]


def test_a_gpu_gets_rows_that_it_has_no_room_for_slab_by_slab(tmp_path: Path) -> None:
    """As on a GPU, which is pretended: alone, fused (each member in an order of its own), and evaluated."""
    width, rows = 4096, 20123  # two slabs from disk; the last slab and its last batch are short
    chance = np.random.default_rng(5)
    x, labels = chance.integers(0, 255, (rows, width), "uint8"), chance.integers(0, 2, rows)
    layout = {"inputs": [c.column("x", [width], "uint8", 255.0)], "outputs": [c.target("y", [2])]}
    model = c.sequential(c.input_layer([width]), c.layer("Dense", "out", units=2, activation="softmax"))
    rates = [c.configuration(model, CATEGORICAL, learning_rate=rate, batch_size=1000) for rate in (0.001, 0.002)]
    found = []
    for name, gpu in (("processor", None), ("gpu", 0)):
        trainer = Trainer(tmp_path / name, engine="jax", gpu=gpu, deterministic=False)
        trainer.data("wide", layout, x=x, y=c.one_hot(labels, 2))
        members = [trainer.member(one, shuffle_seed=place) for place, one in enumerate(rates)]
        visits = copies(trainer, fused(trainer, members, "wide") + alone(trainer, members, "wide"), "kept")
        evaluated = trainer.evaluate(rates[0], "wide", full(visits[2]))
        trainer.close()
        found.append((visits, evaluated))
    (mine, my_loss), (its, its_loss) = found
    for one, other in zip(mine, its):
        require_close(one, other)
    for together, single in zip(its[:2], its[2:]):
        require_close(together, single)
    assert my_loss.loss == pytest.approx(its_loss.loss, rel=1e-4)
