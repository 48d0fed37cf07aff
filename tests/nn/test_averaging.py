"""The average of the states of several replicas of a model, against NumPy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from cerebro_db.core.architecture.precision import computed_in
from cerebro_db.core.errors import CorruptState
from cerebro_db.core.protocol import Average, ModelReplica, StateRef, TrainedMember
from cerebro_db.nn import state_file

from . import configurations as c
from .test_hops import partitions
from .test_trainer import failure
from .trainer_client import Trainer, Visit, full

SEED, PARTS = 5, (1, 4, 7)  # unequal ones, so that the rows weigh
CROSS = "categorical_crossentropy"
CASES: dict[str, tuple[c.Json, c.Json]] = {
    "Adam, BatchNorm, Dropout": (c.configuration(c.noisy_mlp(), CROSS, learning_rate=0.01), c.DIGITS),
    "metrics that are no means": (
        c.configuration(c.mlp(), CROSS, "SGD", learning_rate=0.1, metrics=["AUC", "acc"]), c.DIGITS
    ),
    "two inputs, two outputs": (
        c.configuration(c.two_by_two(), ["mse", CROSS], "Nadam", learning_rate=0.01, metrics=[["mae"], ["acc"]]),
        c.TWO_BY_TWO,
    ),
    "mixed_float16, loss scaled": (
        c.configuration(computed_in(c.noisy_mlp(), "mixed_float16"), CROSS, learning_rate=0.01), c.DIGITS
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trainer]:
    trainer = Trainer(tmp_path_factory.mktemp("averaging"), deterministic=True)
    yield trainer
    trainer.close()


def replicas_of(trainer: Trainer, name: str, state: StateRef | None = None) -> list[Visit]:
    """Each replica trains on its own rows, from the same state."""
    (configuration, layout), parts = CASES[name], partitions(CASES[name][1])
    visits = []
    for number in PARTS:
        trainer.data(f"part.{number}", layout, **parts[number])
        out = str(trainer.folder / f"{name[:4]}.{number}")
        visits.append(trainer.train(configuration, f"part.{number}", state, seed=SEED, shuffle_seed=number, out=out))
    assert len({visit.rows for visit in visits}) == len(PARTS)
    return visits


def average(trainer: Trainer, name: str, visits: list[Visit], out: str = "average") -> tuple[TrainedMember, Path]:
    path = trainer.folder / out
    replicas = [ModelReplica(full(visit), visit.rows, visit.result.metric_states) for visit in visits]
    (group,) = trainer(Average(CASES[name][0], f"part.{PARTS[0]}", replicas, out=str(path))).groups
    (member,) = group.members
    assert len(member.visits) == 1
    return member, path


def load(path: Any) -> dict[str, np.ndarray]:
    return safetensors.numpy.load_file(path)


@pytest.mark.parametrize("name", CASES)
def test_the_average_is_that_of_numpy(trainer: Trainer, name: str) -> None:
    """For two epochs: the second one starts from the average of the first."""
    state = None
    for epoch in range(2):
        visits = replicas_of(trainer, name, state)
        member, path = average(trainer, name, visits, f"average.{epoch}")
        states, rows = [load(visit.path) for visit in visits], [visit.rows for visit in visits]
        found = load(path)
        assert list(found) == list(states[0])
        for tensor, value in found.items():
            replicas = [one[tensor] for one in states]
            assert value.dtype == replicas[0].dtype and value.shape == replicas[0].shape
            if value.dtype.kind == "f":
                expected = np.average(np.stack(replicas).astype("float64"), axis=0, weights=rows).astype(value.dtype)
            else:
                expected = np.max(np.stack(replicas), axis=0)
            np.testing.assert_array_equal(value, expected, err_msg=tensor)
        moved = [tensor for tensor in found if any(not np.array_equal(found[tensor], one[tensor]) for one in states)]
        assert len(moved) > len(found) / 3, "there was nothing to average"
        losses = [visit.loss for visit in visits]
        assert member.visits[0].loss == pytest.approx(np.average(losses, weights=rows), rel=1e-6)
        assert (member.visits[0].rows, member.visits[0].steps, member.visits[0].finite) == (0, 0, True)
        assert set(member.visits[0].metrics) == set(visits[0].metrics)
        state = StateRef(full(visits[0]).origin, name=str(path), sha256=member.state.sha256, path=str(path))
    assert member.state.weights_bytes == visits[0].state.weights_bytes


def test_the_metrics_are_those_of_all_rows(trainer: Trainer) -> None:
    name = "metrics that are no means"
    visits = replicas_of(trainer, name)
    member, _ = average(trainer, name, visits)
    rows = [visit.rows for visit in visits]
    assert member.visits[0].metrics["acc"] == pytest.approx(
        np.average([one.metrics["acc"] for one in visits], weights=rows)
    )
    aucs = [one.metrics["auc"] for one in visits]
    assert min(aucs) < member.visits[0].metrics["auc"] < max(aucs)
    assert member.visits[0].metrics["auc"] != pytest.approx(np.average(aucs, weights=rows), abs=1e-9)


def test_the_average_stays_in_memory(trainer: Trainer) -> None:
    """The next replica on this segment needs no bytes; its numbers are those of a replica that reads them."""
    name = "Adam, BatchNorm, Dropout"
    member, path = average(trainer, name, replicas_of(trainer, name))
    configuration, handle = CASES[name][0], f"part.{PARTS[0]}"
    token = member.state.token
    assert token is not None
    in_memory = trainer.train(configuration, handle, StateRef.resident(token), seed=SEED, out=str(path) + ".1")
    read = StateRef.full(str(path), member.state.sha256)
    read = StateRef(read.origin, name=read.name, sha256=read.sha256, path=str(path))
    assert trainer.train(configuration, handle, read, seed=SEED, out=str(path) + ".2").state.sha256 == (
        in_memory.state.sha256
    )


def test_what_cannot_be_averaged(trainer: Trainer) -> None:
    name = "Adam, BatchNorm, Dropout"
    other = replicas_of(trainer, "metrics that are no means")
    visits = replicas_of(trainer, name)
    assert "other shapes" in failure("CorruptState", average, trainer, name, [visits[0], other[1]])
    replica_of_nothing = [ModelReplica(StateRef.full("x", "0"), 1, visits[0].result.metric_states)]
    order = Average(CASES[name][0], f"part.{PARTS[0]}", replica_of_nothing, out=str(trainer.folder / "none"))
    assert "is not there" in failure("CorruptState", trainer, order)
    order = Average(CASES[name][0], f"part.{PARTS[0]}", replica_of_nothing)
    assert "names no file" in failure("InvalidArgument", trainer, order)
    with open(visits[1].path, "r+b") as file:
        file.seek(-3, 2)
        file.write(b"\0\1\2")
    assert "checksum" in failure("CorruptState", average, trainer, name, visits)
    visits = replicas_of(trainer, name)
    average(trainer, name, visits)  # the trainer goes on


# -- the arithmetic ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", ml_dtypes.bfloat16, "float32", "float64"])
def test_equal_values_stay_as_they_are(dtype: Any) -> None:
    values = np.random.default_rng(1).normal(size=1000).astype(dtype)
    found = state_file.averaged([values, values, values], [7, 11, 13])
    assert found.dtype == values.dtype
    np.testing.assert_allclose(found.astype("float64"), values.astype("float64"), rtol=1e-15)


def test_counters_and_seeds_take_the_largest() -> None:
    assert state_file.averaged([np.array(3), np.array(9), np.array(5)], [100, 1, 1]) == 9
    seeds = [np.array([7, 4], "uint32"), np.array([7, 6], "uint32")]
    np.testing.assert_array_equal(state_file.averaged(seeds, [1, 2]), np.array([7, 6], "uint32"))
    assert state_file.averaged([np.array(False), np.array(True)], [9, 1]).dtype == bool


def test_the_sum_has_64_bits() -> None:
    large = [np.array([3e38, 1.0], "float32"), np.array([3e38, 1 + 2**-20], "float32")]
    assert state_file.averaged(large, [10**9, 10**9])[0] == np.float32(3e38)


class Variables:
    """A program, as far as its state goes."""

    def __init__(self, *values: np.ndarray) -> None:
        self.values = list(values)
        self.variables = [(f"v{at}", value.dtype.name, value.shape) for at, value in enumerate(values)]
        self.weights = len(values) - 1
        self.averages = False
        self.constants: list[int] = []
        self.known_frozen = None
        self.at_once = False

    def get(self, number: int) -> np.ndarray:
        return self.values[number]

    def get_all(self) -> list[np.ndarray]:
        return self.values

    def set(self, number: int, value: np.ndarray) -> None:
        self.values[number] = value

    def set_all(self, values: list[np.ndarray]) -> None:
        self.values, self.at_once = list(values), True


@pytest.mark.parametrize("small", [True, False])
def test_large_states_are_averaged_tensor_by_tensor(tmp_path: Path, small: bool, monkeypatch: Any) -> None:
    monkeypatch.setattr(state_file, "SMALL", 1 << 20 if small else 0)
    program: Any = Variables(*(np.zeros(shape, "float32") for shape in ((300, 7), (), (5,))), np.array(0, "int64"))
    replicas = []
    for number, rows in ((1, 1), (2, 3)):
        one: Any = Variables(*(np.full_like(value, number) for value in program.values))
        path = str(tmp_path / f"{number}")
        replicas.append((path, state_file.write(one, path, 0, None).sha256, rows))
    state_file.read_average(program, replicas)
    assert program.at_once == small
    assert all((value == 1.75).all() for value in program.values[:3]) and program.values[3] == 2
    Path(replicas[1][0]).write_bytes(b"")
    with pytest.raises(CorruptState, match="empty"):
        state_file.read_average(program, replicas)
