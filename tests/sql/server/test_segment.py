"""A segment's side by itself, without a server: states, trainers that fail, orders of many groups, and nonsense."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cerebro_db import __version__
from cerebro_db.core import protocol
from cerebro_db.core.architecture.precision import computed_in
from cerebro_db.core.errors import (
    CerebroError,
    ConfigurationFailed,
    CorruptState,
    DiskFull,
    GpuMissing,
    InvalidArgument,
    OutOfResources,
    TrainerFailed,
    WrongState,
)
from cerebro_db.core.protocol import (
    Begin,
    BeginPrediction,
    BestClasses,
    CollectResult,
    Done,
    DropRows,
    DropStates,
    EndPrediction,
    Evaluate,
    Group,
    Inspect,
    KeepEngines,
    LoadRows,
    Member,
    MemberVisit,
    ModelState,
    Order,
    PredictionInput,
    RehearseFusion,
    Rest,
    StateRef,
    Train,
    TrainerSettings,
    TryEngine,
    WorkerOpened,
)
from cerebro_db.nn.processes import born
from cerebro_plpy.database import cancellation
from cerebro_plpy.database.access import Database
from cerebro_plpy.definitions import custom_functions
from cerebro_plpy.platform import machine
from cerebro_plpy.runs.preflight import engine_trials
from cerebro_plpy.segment import (
    current,
    filling,
    functions,
    installation,
    memory,
    nursery_connection,
    nursery_process,
    scratch,
    states,
    trainer,
    worker,
)
from cerebro_plpy.segment.scratch import RESERVE
from cerebro_plpy.segment.states import LOOK_EVERY
from cerebro_plpy.segment.worker import Segment
from tests.nn import configurations as c
from tests.nn.test_arrays import array
from tests.sql.lab import eventually
from tests.thorough import tries

ROWS = 300


@pytest.fixture(autouse=True)
def one_user(monkeypatch: Any) -> None:
    monkeypatch.setattr(cancellation, "_get_user_id", lambda: 10)


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: Any) -> Iterator[Segment]:
    """Its files are on disk, as where there is little memory."""
    monkeypatch.setattr(worker, "scratch_folders", lambda: (tmp_path, tmp_path))
    monkeypatch.setattr(worker, "listener", lambda plpy: lambda: None)
    with contextlib.closing(Segment(SimpleNamespace(notice=lambda text: None))) as segment:
        yield segment


def path_of(segment: Segment, name: str) -> Path | None:
    path = segment.received.filled(StateRef.weights(name)).path
    return None if path is None else Path(path)


# -- states ----------------------------------------------------------------------------------------------


def test_states_whose_rows_come_in_any_order(alone: Segment) -> None:
    """One file is open at a time; rows for another file find what is there already, and rows have no order."""
    for name, start, payload in (("a", 4, b"5678"), ("b", 0, b"one"), ("a", 0, b"1234"), ("b", 3, b" two")):
        alone.received.receive(name, start, payload)
    found = {name: path_of(alone, name) for name in "ab"}
    assert {name: path and path.read_bytes() for name, path in found.items()} == {"a": b"12345678", "b": b"one two"}
    alone.obey(DropStates(["a", "nobody"]))
    assert path_of(alone, "a") is None and found["b"] is not None and found["b"].exists()
    alone.received.receive("a", 0, b"anew")
    alone.obey(DropStates(["a", "b"]))
    assert not list(alone.folder.iterdir())


def test_states_on_disk_leave_room_for_the_log(alone: Segment, monkeypatch: Any) -> None:
    monkeypatch.setattr(machine, "room", lambda folder: RESERVE + 100)
    alone.received.receive("a", 0, bytes(100))
    with pytest.raises(DiskFull, match="64 MB left") as refused:
        alone.received.receive("a", 100, bytes(LOOK_EVERY + 1))
    assert refused.value.hint


def test_states_in_memory_leave_room_for_others(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "memory").mkdir(), (tmp_path / "disk").mkdir()
    monkeypatch.setattr(worker, "scratch_folders", lambda: (tmp_path / "memory", tmp_path / "disk"))
    monkeypatch.setattr(worker, "listener", lambda plpy: lambda: None)
    monkeypatch.setattr(machine, "room", lambda folder: RESERVE + 100)
    segment = Segment(None)
    segment.received.receive("a", 0, bytes(100))
    with pytest.raises(OutOfResources, match="64 MB of shared memory left"):
        segment.received.receive("a", 100, bytes(LOOK_EVERY + 1))
    segment.close()
    assert not list((tmp_path / "memory").glob("*"))


# -- trainers --------------------------------------------------------------------------------------------


def test_what_passes_is_not_remembered_against_an_engine() -> None:
    program = engine_trials.TrialProgram("p")
    answers = {"jax": DiskFull("no room"), "torch": TrainerFailed("died"), "tensorflow": ConfigurationFailed("never")}
    program.add("kind", [SimpleNamespace(build=SimpleNamespace(earlier=None))], answers)  # type: ignore[list-item]
    assert program.crashes == {"jax": "no room", "torch": "died"} and program.refusals == {"tensorflow": "never"}
    program.add("other", [SimpleNamespace(build=SimpleNamespace(earlier=None))], {"jax": GpuMissing("none")})  # type: ignore[list-item]
    assert program.crashes["jax"] == "none" and "jax" not in program.refusals, "its builds for GPUs may come later"


# -- orders, with a real trainer -------------------------------------------------------------------------


class Worker:
    """A segment as its SQL functions show it, in this process."""

    def __init__(self, plpy: Any) -> None:
        self.plpy = plpy

    def __call__(self, order: Order[Any]) -> Any:
        reply = protocol.decode_reply(order, json.loads(functions.work(self.plpy, work=protocol.to_json(order))))
        if isinstance(reply, protocol.Failure):
            raise reply.error()
        return reply

    def open(self, **settings: Any) -> WorkerOpened:
        text = protocol.encode_settings(TrainerSettings(**{"engine": "jax", "threads": 1, **settings}))
        return protocol.decode_opened(json.loads(functions.worker_open(self.plpy, settings=text)))

    def open_without_a_trainer(self) -> None:
        """As after ``open``, for what is refused before it comes to a trainer."""
        current.mine(Database(self.plpy)).settings = TrainerSettings(engine="jax")

    def rows(self, handle: str) -> protocol.RowsLoaded:
        arrays = c.made_up(ROWS, 1)
        variables = {"facts": arrays["facts"].tobytes(), "price": arrays["price"].tobytes()}
        for name, payload in variables.items():
            functions.data_in(self.plpy, handle=handle, variable=name, payload=payload)
        digest = hashlib.sha256(b"".join(variables.values())).hexdigest()
        return self(LoadRows(handle, c.HOUSES, ROWS, digest))

    def state(self, name: str, payload: bytes) -> None:
        for start in range(0, len(payload), 1000):
            functions.state_in(self.plpy, state=name, start=start, payload=payload[start : start + 1000])

    def outgoing(self, visit: int, index: int) -> bytes:
        pieces = list(functions.state_out(self.plpy, visit=visit, index=index))
        assert [start for start, _ in pieces] == [number * protocol.STATE_ROW for number in range(len(pieces))]
        return b"".join(payload for _, payload in pieces)


class Plpy(SimpleNamespace):
    """As much of the module plpy as the segment takes when nothing of a database is asked."""

    class Error(Exception):
        sqlstate = ""

    SPIError = Error

    def __init__(self) -> None:
        super().__init__(notices=[])

    def notice(self, text: str) -> None:
        self.notices.append(text)

    def execute(self, plan: Any, *arguments: Any) -> list[dict[str, Any]]:
        return [{"version": "PostgreSQL", "role": None, "me": 10, "v": __version__}]

    def prepare(self, *arguments: Any) -> Any:
        return SimpleNamespace(execute=lambda *arguments: None)


@pytest.fixture(scope="module")
def nursery_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data folder of a server that is not there: all tests of this module have one nursery."""
    return tmp_path_factory.mktemp("data")


@pytest.fixture
def segment(tmp_path: Path, nursery_folder: Path, monkeypatch: Any) -> Iterator[Worker]:
    folder = tmp_path / f"{os.getpid()}-1"  # as a session names it
    folder.mkdir()
    monkeypatch.setattr(worker, "scratch_folders", lambda: (folder, folder))
    monkeypatch.setattr(worker.compiled, "folder_of_user", lambda user, folder: None)
    monkeypatch.setattr(custom_functions, "fetched", lambda db, name, version: None)
    monkeypatch.setattr(memory, "limit_of_trainers", lambda db: None)
    python = {"trainer_python": sys.executable, "confine": False}
    for module in (trainer, nursery_connection, nursery_process, installation):
        monkeypatch.setattr(module, "installation", lambda: python)
    for module in (nursery_connection, nursery_process):
        monkeypatch.setattr(module, "INSTALLATION", Path(__file__).parents[3])
    monkeypatch.chdir(nursery_folder)
    monkeypatch.setattr(current, "_segment", None)
    yield Worker(Plpy())
    current.close_mine()


def linear(rate: float = 0.01, units: int = 1, **more: Any) -> c.Json:
    architecture = c.sequential(c.input_layer([4]), c.layer("Dense", "out", units=units))
    return c.configuration(architecture, "mse", "SGD", learning_rate=rate, metrics=["mae"], **more)


CONFIGURATIONS: list[c.Json] = []  # of the members so far


def member(configuration: c.Json, state: StateRef | None = None, number: int = 0) -> Member:
    if configuration not in CONFIGURATIONS:
        CONFIGURATIONS.append(configuration)
    place = CONFIGURATIONS.index(configuration)
    return Member(place, number, [MemberVisit(number)], state or StateRef.seed())


def training(groups: list[Group]) -> Train:
    return Train("r", list(CONFIGURATIONS), groups)


def test_an_order_of_many_groups(segment: Worker) -> None:
    """Each model has a result and a state of its own, whatever becomes of the others."""
    opened = segment.open()
    assert segment.rows("r").rows == ROWS
    rates = (0.01, 0.02, 0.03)
    groups = [Group([member(linear(rate), number=number)]) for number, rate in enumerate(rates)]
    groups[1:1] = [Group([member(linear(units=7))])]
    # An order with a state that is not there is refused whole, since the driver can repeat it.
    with pytest.raises(CorruptState, match="the model's state is not there"):
        segment(training([*groups, Group([member(linear(), StateRef.full("never came", "0"))])]))
    groups[2:2] = [Group([member(linear(units=8))])]
    trained = segment(training(groups))
    assert (trained.worker_pid, trained.trainer_pid) == (opened.worker_pid, opened.trainer_pid)
    errors = [group.error and type(group.error.error()) for group in trained.groups]
    assert errors == [None, ConfigurationFailed, ConfigurationFailed, None, None]
    results = [group.members[0] for group in trained.groups if group.error is None]
    assert [result.state.index for result in results] == [0, 3, 4]
    payloads = [segment.outgoing(trained.visit, result.state.index) for result in results]
    assert [hashlib.sha256(state).hexdigest() for state in payloads] == [result.state.sha256 for result in results]
    for index in (0, 1, 2, 5, -1):  # read already, failed, or never there
        with pytest.raises(Plpy.Error, match="has left no state"):
            segment.outgoing(trained.visit, index)
    # Each state goes on in an order of its own and in one for all, to the same bits.
    for visit in range(2):
        for number, state in enumerate(payloads):
            segment.state(f"{visit}/{number}", state)
    references = [[StateRef.full(f"{v}/{n}", r.state.sha256) for n, r in enumerate(results)] for v in range(2)]
    many = segment(training([Group([member(linear(rate), state)]) for rate, state in zip(rates, references[0])]))
    alone = [segment(training([Group([member(linear(rate), state)])])) for rate, state in zip(rates, references[1])]
    assert [group.members[0].state.sha256 for group in many.groups] == [
        one.groups[0].members[0].state.sha256 for one in alone
    ]
    assert [one.visit for one in alone] == [many.visit + 1, many.visit + 2, many.visit + 3]
    assert current._segment is not None and not list(current._segment.folder.glob("state.in.*"))


def test_states_wait_until_the_visit_after_the_next(segment: Worker) -> None:
    """A segment that reads ahead stores a state while the trainer works on the next order."""
    segment.open()
    segment.rows("r")
    order = training([Group([member(linear())])])
    visits = [segment(order).visit for _ in range(3)]
    with pytest.raises(Plpy.Error, match="has left no state"):
        segment.outgoing(visits[0], 0)
    assert segment.outgoing(visits[1], 0) == segment.outgoing(visits[2], 0)


def left_by(trained: protocol.Trained) -> tuple[StateRef, str]:
    """A reference to the file of a visit's only state, and the checksum."""
    assert trained.left[0] is not None
    sha256 = trained.groups[0].members[0].state.sha256
    return StateRef.full(f"state {trained.visit}", sha256, trained.left[0]), sha256


def evaluation(state: StateRef) -> Evaluate:
    return Evaluate("r", [linear()], [ModelState(0, state)])


def test_a_file_goes_from_visit_to_visit(segment: Worker) -> None:
    """An evaluation leaves it where it is, and the next visit takes it; then the state has to come as rows."""
    segment.open()
    segment.rows("r")
    first = segment(training([Group([member(linear())])]))
    state = segment.outgoing(first.visit, 0)
    reference, sha256 = left_by(first)
    for _ in range(2):
        assert segment(evaluation(reference)).models[0].rows == ROWS
    second = segment(training([Group([member(linear(), reference)])]))
    segment.state("rows", state)
    by_rows = segment(training([Group([member(linear(), StateRef.full("rows", sha256))])]))
    assert left_by(second)[1] == left_by(by_rows)[1] != sha256
    assert segment.outgoing(second.visit, 0) == segment.outgoing(by_rows.visit, 0)
    for order in (training([Group([member(linear(), reference)])]), evaluation(reference)):
        with pytest.raises(WrongState, match="is gone"):
            segment(order)
    # What was refused was no visit, so the state of the last one can still be stored.
    third = segment(training([Group([member(linear(), left_by(second)[0])])]))
    for _ in range(3):
        with pytest.raises(WrongState, match="is gone"):
            segment(training([Group([member(linear(), reference)])]))
    assert hashlib.sha256(segment.outgoing(third.visit, 0)).hexdigest() == left_by(third)[1]
    assert current._segment is not None
    assert segment(training([Group([member(linear())])])).visit == third.visit + 1
    segment(protocol.Rest(60))
    assert not list(current._segment.folder.glob("state.*"))


def test_a_file_is_for_the_user_that_left_it(segment: Worker, monkeypatch: Any) -> None:
    segment.open()
    segment.rows("r")
    reference, _ = left_by(segment(training([Group([member(linear())])])))
    assert current._segment is not None
    for another in ("../../etc/passwd", f"{reference.left}/..", "1-1/" + "0" * 31, "1-1/" + "0" * 32 + "\n"):
        with pytest.raises(InvalidArgument, match="no segment leaves"):
            segment(evaluation(StateRef.full("s", "0", another)))
    with monkeypatch.context() as changed:
        changed.setattr(current._segment.received, "_user", lambda: 11)
        with pytest.raises(WrongState, match="is gone"):
            segment(evaluation(reference))
    assert segment(evaluation(reference)).models[0].rows == ROWS


def test_files_stay_as_long_as_there_is_room(segment: Worker, monkeypatch: Any) -> None:
    segment.open()
    segment.rows("r")
    monkeypatch.setattr(states, "MOST_KEPT", 2)
    order = training([Group([member(linear())])])
    trained = []
    for _ in range(3):
        trained.append(segment(order))
        segment.outgoing(trained[-1].visit, 0)
    with pytest.raises(WrongState, match="is gone"):
        segment(evaluation(left_by(trained[0])[0]))
    for one in trained[1:]:
        assert segment(evaluation(left_by(one)[0])).models[0].rows == ROWS
    monkeypatch.setattr(states, "KEPT_BYTES", 10)
    assert segment(order).left == [None]
    monkeypatch.setattr(states, "KEPT_BYTES", 1 << 30)
    monkeypatch.setattr(states, "SMALL", 10)
    monkeypatch.setattr(machine, "memory_available", lambda: 1000)
    assert segment(order).left == [None]


def test_begin_and_collect(segment: Worker) -> None:
    segment.open()
    segment.rows("r")
    with pytest.raises(WrongState, match="no order"):
        segment(CollectResult(0.0))
    order = training([Group([member(linear(epochs=300))])])
    assert segment(Begin(order)) == Done()
    with pytest.raises(WrongState, match="another order"):
        segment(Begin(order))
    collected, polls = segment(CollectResult(0.0)), 0
    while (trained := collected.answer_to(order)) is None:
        collected, polls = segment(CollectResult(0.05)), polls + 1
    assert polls > 0 and trained.groups[0].members[0].visits[0].rows == 300 * ROWS
    reports = [protocol.progress_in(notice) for notice in segment.plpy.notices]
    assert all(report is not None and report.of == 300 * ROWS for report in reports)
    resident = trained.groups[0].members[0].state.token
    evaluated = segment(evaluation(StateRef.resident(resident)))
    assert evaluated.models[0].rows == ROWS and evaluated.worker_pid and evaluated.resident == [resident]


# Thorough: with JAX it is the same segment, and fusion besides.
@pytest.mark.parametrize(
    "engine", [pytest.param("tensorflow", marks=[pytest.mark.tensorflow, pytest.mark.thorough]), "jax"]
)
def test_a_trainer_on_a_pretended_gpu(segment: Worker, monkeypatch: Any, engine: str) -> None:
    """Where there is no GPU, a framework that is told to use number 0 computes on the processor.

    That is an error.  Without it, all else is as on a GPU: trials, rehearsals, mixed precision, resident states, and no
    limit of private memory.
    """
    segment.open(engine=engine)
    segment.rows("r")
    layers = [c.layer("Dense", name, units=units) for name, units in (("hidden", 8), ("out", 1))]
    mixed = computed_in(c.sequential(c.input_layer([4]), *layers), "mixed_bfloat16")
    order = training([Group([member(linear())]), Group([member({**linear(), "architecture": mixed})])])
    expected = [group.members[0] for group in segment(order).groups]
    monkeypatch.setattr(machine, "gpus", lambda: 2)
    with pytest.raises(Plpy.Error, match="there is no GPU 2 here"):
        segment.open(engine=engine, gpu=2)
    monkeypatch.setattr(memory, "limit_of_trainers", lambda db: 1)  # megabyte
    for _ in range(2):
        segment.open(engine=engine, gpu=1)
        with pytest.raises(GpuMissing, match="finds no GPU, though this machine has one") as refused:
            segment.rows("r")
        assert "docker/install.sh --gpu" in (refused.value.hint or "") and refused.value.detail
    monkeypatch.setattr(filling, "require_gpu", lambda settings, started: None)
    segment.open(engine=engine, gpu=1)
    segment.rows("r")
    assert segment(TryEngine(linear(), "r")).batch > 0
    found = [group.members[0] for group in segment(order).groups]
    assert [one.visits[0].loss for one in found] == pytest.approx([one.visits[0].loss for one in expected], rel=1e-5)
    if engine == "tensorflow":  # XLA compiles in another way for a GPU
        assert [one.state.sha256 for one in found] == [one.state.sha256 for one in expected]
    evaluated = segment(evaluation(StateRef.resident(found[0].state.token)))
    assert evaluated.models[0].error is None and evaluated.models[0].rows == ROWS
    if engine == "jax":
        assert segment(RehearseFusion([linear(0.01), linear(0.02)], "r")).alone > 0
        fused = segment(training([Group([member(linear(0.01)), member(linear(0.02), number=1)])]))
        assert len(fused.groups[0].members) == 2 and all(one.visits[0].finite for one in fused.groups[0].members)


def test_predictions_end_with_their_files(segment: Worker) -> None:
    segment.open()
    inputs = [PredictionInput("facts", "float32", [4])]
    arrays = c.made_up(3, 2)["facts"]
    segment.state("w", np.array([1, 0, 0, 0, 5], "f4").tobytes())
    segment(BeginPrediction(linear(), inputs, StateRef.weights("w")))
    chunk = b"".join(array(row) for row in arrays)
    for _ in range(2):
        ((output, rank, classes, numbers),) = functions.predict_chunk(segment.plpy, rows=3, variables=[chunk])
        assert (output, rank, classes) == (0, None, None)
        assert list(memoryview(numbers).cast("f")) == pytest.approx(arrays[:, 0] + 5)
    for rows, variables in ((3, []), (3, [chunk, chunk]), (0, [chunk]), (None, [chunk]), (3, None)):
        with pytest.raises(Plpy.Error):
            functions.predict_chunk(segment.plpy, rows=rows, variables=variables)
    with pytest.raises(Plpy.Error, match="column 'facts'") as refused:
        functions.predict_chunk(segment.plpy, rows=1, variables=[array(arrays)])
    assert type(refused.value).__name__ == "prediction"  # PL/Python writes it before the message
    assert segment(EndPrediction()) == segment(EndPrediction()) == Done()
    with pytest.raises(Plpy.Error, match="no prediction"):
        functions.predict_chunk(segment.plpy, rows=3, variables=[chunk])
    assert current._segment is not None
    assert {path.name for path in current._segment.folder.iterdir()} == {"trainer-jax.log"}


def test_best_classes(segment: Worker) -> None:
    segment.open()
    segment.state("w", bytes(4 * (4 * 3 + 3)))
    order = BeginPrediction(
        linear(units=3), [PredictionInput("facts", "float32", [4])], StateRef.weights("w"), BestClasses([3], 2)
    )
    segment(order)
    chunk = b"".join(array(row) for row in c.made_up(5, 2)["facts"])
    answers = functions.predict_chunk(segment.plpy, rows=5, variables=[chunk])
    assert [(output, rank) for output, rank, _, _ in answers] == [(0, 1), (0, 2)]
    assert [list(memoryview(classes).cast("f")) for _, _, classes, _ in answers] == [[0.0] * 5, [1.0] * 5]


def test_engines_come_and_go(segment: Worker) -> None:
    first = segment.open()
    assert segment.open() == first
    segment.rows("r")
    segment(protocol.Describe(linear(), c.HOUSES))
    assert current._segment is not None and list(current._segment.trainers) == ["jax"]
    assert segment(KeepEngines(["tensorflow"])) == Done() and not current._segment.trainers
    # A new trainer is told of the rows.
    assert segment(training([Group([member(linear())])])).groups[0].members[0].visits[0].rows == ROWS
    assert segment(DropRows("r")) == segment(DropRows("r")) == Done()
    with pytest.raises(CerebroError, match="no rows"):
        segment(training([Group([member(linear())])]))
    another = segment.open(threads=2)
    assert another.trainer_pid != first.trainer_pid


def test_rest_and_wake(segment: Worker) -> None:
    opened = segment.open()
    segment.rows("r")
    assert segment(Rest(600)) == Done()
    assert segment.open() == opened
    assert segment(training([Group([member(linear())])])).groups[0].error is None
    assert segment(Rest(1)) == Done()
    eventually(lambda: not born(opened.trainer_pid), 30, "the trainer ends")
    assert segment.open().trainer_pid != opened.trainer_pid
    with pytest.raises(CerebroError, match="no rows"):
        segment(training([Group([member(linear())])]))


def test_inspect(segment: Worker) -> None:
    segment.open(threads=1)
    found = segment(Inspect())
    assert found.facts.python and found.trainer.versions["engine"] == "jax"
    assert found.threads == 1 and found.resident and found.resident > 1 << 20 and not found.in_memory


def test_a_trainer_that_dies_is_replaced(segment: Worker) -> None:
    opened = segment.open()
    segment.rows("r")
    assert current._segment is not None
    current._segment.trainers["jax"].kill()
    trained = segment(training([Group([member(linear())])]))
    assert trained.groups[0].error is None and trained.trainer_pid != opened.trainer_pid


def test_a_segment_obeys_every_order_of_a_driver(alone: Segment) -> None:
    computations = {kind for kind in protocol.ORDERS.values() if issubclass(kind, protocol.Computation)}
    assert {*alone._methods, *computations} == {
        kind for kind in protocol.ORDERS.values() if kind.route is not protocol.Route.TO_TRAINER
    }


# -- nonsense --------------------------------------------------------------------------------------------


NONSENSE: dict[str, Callable[[Any], Any]] = {
    "no settings": lambda plpy: functions.worker_open(plpy, settings=None),
    "settings that are a list": lambda plpy: functions.worker_open(plpy, settings="[]"),
    "an unknown setting": lambda plpy: functions.worker_open(plpy, settings='{"engine": "jax", "path": "/"}'),
    "a setting of the wrong type": lambda plpy: functions.worker_open(
        plpy, settings='{"engine": "jax", "threads": true}'
    ),
    "no threads": lambda plpy: functions.worker_open(plpy, settings='{"engine": "jax", "threads": 0}'),
    "too many threads": lambda plpy: functions.worker_open(plpy, settings=f'{{"engine": "jax", "threads": {10**30}}}'),
    "an unknown engine": lambda plpy: functions.worker_open(plpy, settings='{"engine": "/bin/sh"}'),
    "no handle": lambda plpy: functions.data_in(plpy, handle=None, variable="x", payload=b""),
    "no variable": lambda plpy: functions.data_in(plpy, handle="h", variable=None, payload=b""),
    "no rows": lambda plpy: functions.data_in(plpy, handle="h", variable="x", payload=None),
    "no name": lambda plpy: functions.state_in(plpy, state=None, start=0, payload=b""),
    "no start": lambda plpy: functions.state_in(plpy, state="n", start=None, payload=b""),
    "no state": lambda plpy: functions.state_in(plpy, state="n", start=0, payload=None),
    "a start before the state": lambda plpy: functions.state_in(plpy, state="n", start=-1, payload=b"x"),
    "a start beyond any state": lambda plpy: functions.state_in(plpy, state="n", start=(1 << 63) - 1, payload=b"x"),
    "no visit": lambda plpy: list(functions.state_out(plpy, visit=None, index=0)),
    "no index": lambda plpy: list(functions.state_out(plpy, visit=1, index=None)),
    "a visit that never was": lambda plpy: list(functions.state_out(plpy, visit=-7, index=0)),
}


@pytest.mark.parametrize("what", NONSENSE)
def test_functions_refuse_nonsense(segment: Worker, what: str) -> None:
    segment.open_without_a_trainer()
    with pytest.raises(Plpy.Error) as refused:
        NONSENSE[what](segment.plpy)
    assert refused.value.sqlstate in (InvalidArgument.sqlstate, WrongState.sqlstate)


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "null",
        "[" * 100_000,
        '{"order": "wake"}',
        '{"order": "start_engine", "settings": {"engine": "jax"}}',
        '{"order": "rest", "seconds": 0}',
        '{"order": "rest", "seconds": 1e3}',
        '{"order": "rest", "seconds": 1, "folders": ["/"]}',
        '{"order": "load_rows", "handle": "h", "layout": {}, "rows": 1, "files": {"x": "/etc/passwd"}}',
        '{"order": "load_rows", "handle": "h", "layout": {}, "rows": -1}',
        '{"order": "begin", "computation": {"order": "inspect"}}',
        '{"order": "describe", "configuration": {}, "engine": "/bin/sh"}',
        '{"order": "describe", "configuration": {}, "functions": []}',
        '{"order": "train", "handle": "h", "groups": [{"members": []}]}',
    ],
)
def test_work_refuses_nonsense(segment: Worker, text: Any) -> None:
    segment.open_without_a_trainer()
    reply = json.loads(functions.work(segment.plpy, work=text))
    assert reply["error"]["kind"] == "InvalidArgument", reply
    assert current._segment is None or not current._segment.trainers


def test_configurations_that_are_nonsense(segment: Worker) -> None:
    """They get as far as the trainer, which refuses them and goes on."""
    pid = segment.open().trainer_pid
    deep: Any = {}
    for _ in range(500):
        deep = {"a": [deep]}
    for configuration in ({}, {"architecture": 1, "compile": 2, "fit": 3}, {"architecture": deep}, deep):
        with pytest.raises(CerebroError):
            segment(protocol.Describe(configuration, c.HOUSES))
    assert current._segment is not None
    for name in current._segment.trainers:
        assert current._segment.trainers[name].alive
    assert segment(protocol.Describe(linear(), c.HOUSES)).parameters == 5
    assert pid


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
NAMES = sorted({field for order in protocol.ORDERS.values() for field in order.__dataclass_fields__})  # type: ignore[attr-defined]


@settings(max_examples=tries(30), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from([name for name in sorted(protocol.ORDERS) if name not in ("inspect", "describe")]),
    st.dictionaries(st.sampled_from(NAMES), JSON, max_size=4),
)
def test_work_answers_whatever_comes(segment: Worker, name: str, fields: Any) -> None:
    """Every text has a reply.  No trainer is started for any of these: nothing is there to train on."""
    segment.open_without_a_trainer()
    reply = json.loads(functions.work(segment.plpy, work=json.dumps({"order": name, **fields})))
    assert set(reply) in ({"ok"}, {"error"})


def test_who_is_scratch(tmp_path: Path, monkeypatch: Any) -> None:
    """Folders of processes that have ended are removed, those of others are not."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(scratch, "ENOUGH_SHARED_MEMORY", 1 << 62)
    ended, mine = tmp_path / scratch.SCRATCH / "1-0", tmp_path / scratch.SCRATCH / "compiled-10"
    for folder in (ended, mine):
        folder.mkdir(parents=True)
    memory, disk = scratch.scratch_folders()
    assert memory == disk and disk.parent == tmp_path / scratch.SCRATCH and disk.stat().st_mode & 0o777 == 0o700
    assert not ended.exists() and mine.exists()
