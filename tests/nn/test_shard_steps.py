"""The optimizer's step of a cut model, part by part: the bits of every optimizer, and the memory that is used again."""

from __future__ import annotations

import errno
import functools
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cerebro_db.core.errors import OutOfResources
from cerebro_db.nn.engines.tensorflow import TensorFlowEngine
from cerebro_db.nn.rows.data import Dataset, Slab
from cerebro_db.nn.shards import plan, steps
from cerebro_db.nn.shards.plan import Planner, ShardPlan
from cerebro_db.nn.shards.program import ShardedProgram
from cerebro_db.nn.shards.store import Courier, Extent, Memory, Store

from . import configurations as c

pytestmark = pytest.mark.tensorflow
Json = dict[str, Any]

ROWS, BATCH = 24, 8
LAYOUT = {"inputs": [c.column("words", [6], "int32")], "outputs": [c.target("mood", [3])]}
NORM = {"module": "keras.constraints", "class_name": "MaxNorm", "config": {"max_value": 0.9, "axis": 0}}
MODEL = c.sequential(
    c.input_layer([6], "int32", "words"),
    c.layer("Embedding", "embedding", input_dim=50, output_dim=11),
    c.layer("Flatten", "flat"),
    c.layer("Dense", "wide", units=77, activation="relu"),
    c.layer("Dense", "bound", units=53, activation="tanh", kernel_constraint=NORM),
    c.layer("Dense", "out", units=3, activation="softmax"),
)
CHOICES: dict[str, Json] = {
    "SGD": {"momentum": 0.9, "weight_decay": 0.01},
    "Adam": {"amsgrad": True, "clipvalue": 0.01},
    "AdamW": {"weight_decay": 0.01},
    "RMSprop": {"momentum": 0.5},
    "Ftrl": {"l1_regularization_strength": 0.01},
}


@pytest.fixture
def rows(tmp_path: Path) -> Dataset:
    rng = np.random.default_rng(0)
    files = {"words": rng.integers(0, 50, (ROWS, 6)).astype("int32"),
             "mood": c.one_hot(rng.integers(0, 3, ROWS), 3).astype("int16")}  # fmt: skip
    for name, values in files.items():
        values.tofile(tmp_path / name)
    return Dataset(LAYOUT, ROWS, {name: str(tmp_path / name) for name in files})


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> TensorFlowEngine:
    import tensorflow

    monkeypatch.setattr(steps, "PART_BYTES", 1024)  # else the models would have to be large
    return TensorFlowEngine(tensorflow, None, [])  # to open it would change TensorFlow for the tests that follow


def trained(program: Any, configuration: Json, rows: Dataset) -> list[np.ndarray]:
    program.put_numbers(configuration)
    program.initialise(configuration, 3)
    program.start_metrics()
    for start in range(0, ROWS, BATCH):
        program.train(Slab(rows, None, start, start + BATCH), BATCH)
    return [program.get(place).copy() for place in range(len(program.variables))]


@pytest.mark.parametrize("optimizer", steps.OPTIMIZERS)
def test_every_optimizer_has_the_bits_of_a_whole_model(
    optimizer: str, engine: TensorFlowEngine, rows: Dataset, tmp_path: Path
) -> None:
    configuration = c.configuration(
        MODEL, "categorical_crossentropy", optimizer, batch_size=BATCH, **CHOICES.get(optimizer, {})
    )
    whole = trained(engine.program(configuration, LAYOUT, 0), configuration, rows)
    program = ShardedProgram(
        engine,
        configuration,
        LAYOUT,
        0,
        functools.partial(Planner.into, number=3),
        batch_size=BATCH,
        folder=str(tmp_path),
    )
    cut = trained(program, configuration, rows)
    different = [
        name for (name, *_), one, other in zip(program.variables, whole, cut) if one.tobytes() != other.tobytes()
    ]
    assert different == []


def test_memory_is_used_again_and_there_is_no_more_than_was_in_use() -> None:
    memory = Memory()
    first = memory.array(3 << 20)
    first[:] = 7
    part = first.view(np.float32)[100:200]
    address = first.ctypes.data
    del first
    second = memory.array(3 << 20)
    assert second.ctypes.data != address and part.tobytes() == bytes([7]) * 400  # a view is left, so it is in use
    del part
    third = memory.array(3 << 20)
    assert third.ctypes.data == address
    del second, third
    larger = memory.array(5 << 20)
    assert memory._all <= 6 << 20 and larger.nbytes == 5 << 20
    memory.give_back()
    assert memory._all == 5 << 20


def test_what_is_expected_is_what_was_written_before(tmp_path: Path) -> None:
    store = Store(str(tmp_path), [(np.dtype("float32"), (100, 50)), (np.dtype("int64"), (3,))])
    store.clear()
    for courier in (Courier(store), Courier(store, ahead=False)):
        value = np.arange(1000, dtype=np.float32)
        span = Extent(0, 64, 1064)
        courier.put([span, store.whole(1)], [lambda value=value: value, lambda: np.array([1, 2, 3])])
        courier.expect([span])
        courier.expect([span])
        assert courier.take([]) == []
        assert courier.take([span])[0].tobytes() == value.tobytes()
        assert store.value(1).tolist() == [1, 2, 3] and store.value(0).shape == (100, 50)
        assert store.value(0).ravel()[60:66].tolist() == [0, 0, 0, 0, 0, 1]
    with pytest.raises(ValueError, match="no value"):
        store.write(Extent(0, 0, 10), np.zeros(9, np.float32))


def test_a_state_that_does_not_fit_on_the_disk_is_refused_before_the_first_batch(tmp_path: Path) -> None:
    store = Store(str(tmp_path), [(np.dtype("uint8"), (1 << 48,))])
    assert not store.fits()
    with pytest.raises(OutOfResources, match="no room on the disk"):
        store.write(Extent(0, 0, 1), np.zeros(1, np.uint8))
    assert not store.is_there and store._file.seek(0, 2) == 0


def test_weights_without_gradients_in_the_first_shard(engine: TensorFlowEngine, rows: Dataset, tmp_path: Path) -> None:
    """The count of steps changes with the last part of a batch that has a gradient, also in the first batch."""
    model = c.sequential(
        c.input_layer([6], "int32", "words"),
        c.layer("Embedding", "first", input_dim=50, output_dim=7),
        c.layer("Embedding", "second", input_dim=50, output_dim=11),  # of whole numbers, which have no gradients
        c.layer("Flatten", "flat"),
        c.layer("Dense", "out", units=3, activation="softmax"),
    )
    configuration = c.configuration(model, "categorical_crossentropy", "Adam", batch_size=BATCH)
    whole = trained(engine.program(configuration, LAYOUT, 0), configuration, rows)
    into = functools.partial(Planner.into, number=4)
    program = ShardedProgram(engine, configuration, LAYOUT, 0, into, batch_size=BATCH, folder=str(tmp_path))
    cut = trained(program, configuration, rows)
    assert [one.tobytes() for one in cut] == [one.tobytes() for one in whole]


def test_a_batch_is_compared_with_one_of_the_whole_model(engine: TensorFlowEngine, tmp_path: Path) -> None:
    """The operations of small layers take far longer one by one, so their sum says little of the whole model."""
    configuration = c.configuration(MODEL, "categorical_crossentropy", "Adam", batch_size=BATCH)
    into, base = functools.partial(Planner.into, number=3), plan.used()
    program = ShardedProgram(
        engine, configuration, LAYOUT, 0, into, batch_size=BATCH, base=base, room=1 << 40, folder=str(tmp_path)
    )
    program._measure()
    assert program.slower > 5
    large = ShardedProgram(engine, configuration, LAYOUT, 0, into, batch_size=BATCH, base=base, folder=str(tmp_path))
    large._planner.margin = 1e6  # does not fit as a whole
    large._measure()
    assert 1 <= large.slower < program.slower


@pytest.mark.parametrize("error", [OSError(errno.ENOMEM, "Cannot allocate memory"), MemoryError()])
def test_a_batch_for_which_the_kernel_has_no_memory_is_cut_again(
    error: Exception, engine: TensorFlowEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(planner: Planner) -> ShardPlan:
        plans.append(planner.into(2 + len(plans)))
        return plans[-1]

    plans: list[ShardPlan] = []
    configuration = c.configuration(MODEL, "categorical_crossentropy", "Adam", batch_size=BATCH)
    program = ShardedProgram(
        engine, configuration, LAYOUT, 0, cut, batch_size=BATCH, room=1 << 40, folder=str(tmp_path)
    )
    tries = iter([error, None])
    try_batches = program._try_batches

    def failing() -> None:
        if (found := next(tries)) is not None:
            raise found
        try_batches()

    monkeypatch.setattr(program, "_try_batches", failing)
    program._measure()
    assert len(plans) == 2 and len(program.shards) == 3 and program.slower > 0


@pytest.mark.parametrize("measures", [True, False])
def test_what_an_order_could_not_write_is_no_error_of_the_next_order(
    measures: bool, engine: TensorFlowEngine, rows: Dataset, tmp_path: Path
) -> None:
    """An order ends after a step whose values are on their way to the file, and cannot be written."""

    class Ended(Exception):
        pass

    def listen() -> None:
        calls.append(None)
        if len(calls) == 2:  # the last call of the forward pass
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
        if len(calls) == 3:
            raise Ended

    configuration = c.configuration(MODEL, "categorical_crossentropy", "Adam", batch_size=BATCH)
    whole = trained(engine.program(configuration, LAYOUT, 0), configuration, rows)
    into = functools.partial(Planner.into, number=3)
    program = ShardedProgram(
        engine, configuration, LAYOUT, 0, into, batch_size=BATCH, room=1 << 40, folder=str(tmp_path)
    )
    trained(program, configuration, rows)
    store, (soft, hard) = program._store, resource.getrlimit(resource.RLIMIT_FSIZE)
    calls: list[None] = []
    program.listen = listen
    try:
        with pytest.raises(Ended):
            if measures:
                program._measure()
            else:
                program.train(Slab(rows, None, 0, BATCH), BATCH)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert program._store is store
    program.drop_file()
    cut = trained(program, configuration, rows)
    assert [one.tobytes() for one in cut] == [one.tobytes() for one in whole]
