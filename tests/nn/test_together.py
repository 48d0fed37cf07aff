"""Several configurations that train together have the numbers that each has alone, and each its own fate."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from . import configurations as c
from .test_hops import CASES, partitions
from .test_trainer import CATEGORICAL, IMAGES, LABELS, failure
from .trainer_client import Trainer, full

VISITS = 2


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    trainer = Trainer(tmp_path_factory.mktemp("jax"), engine="jax")
    trainer.data("digits", c.DIGITS, image=IMAGES, digit=c.one_hot(LABELS, 10))
    yield trainer
    trainer.close()


def tensors(trained: c.Json) -> list[np.ndarray]:
    found = safetensors.numpy.load_file(trained["state"]["path"])
    return [found[name] for name in sorted(found)]


def require_close(one: c.Json, other: c.Json) -> None:
    assert (one["rows"], one["steps"], one["finite"]) == (other["rows"], other["steps"], other["finite"])
    assert one["loss"] == pytest.approx(other["loss"], rel=1e-4)
    assert one["metrics"] == {name: pytest.approx(value, abs=1e-3) for name, value in other["metrics"].items()}
    for mine, its in zip(tensors(one), tensors(other), strict=True):
        np.testing.assert_allclose(mine, its, rtol=2e-3, atol=2e-4)


def alone(trainer: Trainer, members: list[c.Json], handle: str, states: list[Any]) -> list[c.Json]:
    return [
        trainer.train(handle=handle, state=state, **{**member, "out": str(trainer.folder / f"alone.{number}")})
        for number, (member, state) in enumerate(zip(members, states))
    ]


def together(trainer: Trainer, members: list[c.Json], handle: str, states: list[Any]) -> list[c.Json]:
    told = [{**member, "state": state or {"kind": "none"}} for member, state in zip(members, states)]
    return trainer.train_together(handle, *told)


def copies(trainer: Trainer, trained: list[c.Json], name: str) -> list[c.Json]:
    """The states, where the next training does not write."""
    for number, one in enumerate(trained):
        path = trainer.folder / f"{name}.{number}"
        one["state"]["path"] = str(shutil.copy(one["state"]["path"], path))
    return [full(one["state"]) for one in trained]


@pytest.mark.parametrize("name", [name for name in CASES if "CNN" not in name])
def test_the_numbers_are_those_of_each_alone(trainer: Trainer, name: str) -> None:
    """Also on a second partition, with the states, optimizer and seeds included, that the first one left."""
    configuration, layout = CASES[name]
    found = {}
    for way in (alone, together):
        states: list[Any] = [None] * 3
        for visit, arrays in enumerate(partitions(layout)[:VISITS]):
            trainer.data("part", layout, **arrays)
            members = [
                {"configuration": configuration, "seed": seed, "shuffle_seed": 10 * seed + visit} for seed in (1, 2, 3)
            ]
            found[way] = way(trainer, members, "part", states)
            states = copies(trainer, found[way], f"{way.__name__}.{visit}")
    for one, other in zip(found[together], found[alone]):
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


def test_what_differs_in_numbers_is_of_one_kind(trainer: Trainer) -> None:
    one, others = penalised(0.1, 1e-3), [penalised(0.01, 1e-2), penalised(0.1, 1e-3, batch_size=32)]
    kinds = trainer("describe", configuration=one, others=others, layout=c.DIGITS)["kinds"]
    assert kinds[0] == kinds[1] != kinds[2] and None not in kinds
    members = [{"configuration": each, "shuffle_seed": 5} for each in (one, others[0])]
    both = together(trainer, members, "digits", [None, None])
    for mine, its in zip(both, alone(trainer, members, "digits", [None, None])):
        require_close(mine, its)
    assert both[0]["loss"] != pytest.approx(both[1]["loss"], rel=1e-3)


def test_a_loss_that_is_not_finite_is_one_members_own(trainer: Trainer) -> None:
    members = [{"configuration": penalised(rate, 1e-3, optimizer="SGD")} for rate in (0.01, 1e30, 0.02)]
    found = together(trainer, members, "digits", [None] * 3)
    assert [one["finite"] for one in found] == [True, False, True]
    for mine, its in zip(found[::2], alone(trainer, members[::2], "digits", [None] * 2)):
        require_close(mine, its)


def test_what_is_not_alike_is_refused_and_leaves_no_trace(trainer: Trainer) -> None:
    members = [{"configuration": penalised(0.1, 1e-3, batch_size=size)} for size in (16, 32)]
    said = failure("InvalidArgument", trainer.train_together, "digits", *members)
    assert "cannot train together" in said
    other = {"configuration": penalised(0.1, 1e-3, optimizer="SGD")}
    assert "cannot train together" in failure("InvalidArgument", trainer.train_together, "digits", members[0], other)
    missing = {"kind": "full", "path": str(trainer.folder / "nothing"), "sha256": "0"}
    assert failure("TrainerFailed", trainer.train_together, "digits", members[0], {**members[0], "state": missing})
    # The next one is alone again.
    (first, second) = (trainer.train(penalised(0.1, 1e-3), "digits")["state"]["sha256"] for _ in range(2))
    assert first == second


def test_a_rehearsal_says_what_each_way_costs(trainer: Trainer) -> None:
    members = [{"configuration": penalised(rate, 1e-3)} for rate in (0.1, 0.01, 0.001)]
    found = trainer("rehearse", handle="digits", members=members)
    assert set(found) == {"alone", "together"} and all(0 < seconds < 1 for seconds in found.values())


def test_tensorflow_trains_one_at_a_time(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path)
    trainer.data("digits", c.DIGITS, image=IMAGES, digit=c.one_hot(LABELS, 10))
    one = penalised(0.1, 1e-3)
    assert trainer("describe", configuration=one, others=[one], layout=c.DIGITS)["kinds"] == [None, None]
    member = {"configuration": one}
    assert "cannot train together" in failure("InvalidArgument", trainer.train_together, "digits", member, member)
    trainer.close()


def test_a_model_that_convolves_trains_alone_on_a_cpu(trainer: Trainer) -> None:
    convolving = c.configuration(c.cnn(), CATEGORICAL)
    assert trainer("describe", configuration=convolving, layout=c.DIGITS)["kinds"] == [None]
