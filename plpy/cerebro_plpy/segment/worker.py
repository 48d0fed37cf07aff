"""The worker of a segment: obeys the orders of core/protocol in a worker session, with one trainer per engine.

Rows and states are received as arguments of SQL functions (on a Greenplum segment a function cannot query distributed
tables) and go to files that the trainers map.  Orders never name a path: the worker fills the paths in.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from cerebro_db.core import protocol
from cerebro_db.core.errors import CerebroError, DiskFull, InvalidArgument, TrainerFailed, WrongState
from cerebro_db.core.protocol import (
    Average,
    Begin,
    BeginJoint,
    BeginPrediction,
    Collected,
    CollectResult,
    Computation,
    Done,
    DropRows,
    DropStates,
    EndPrediction,
    Evaluated,
    Inspect,
    Inspected,
    KeepEngines,
    LoadRows,
    MergeAdapters,
    Order,
    Predict,
    Predicted,
    PredictedOutput,
    PredictMore,
    Progress,
    Rest,
    RowsLoaded,
    StateRef,
    Suggest,
    Train,
    Trained,
    TrainerSettings,
    WorkerOpened,
)
from cerebro_db.core.records import dataclass

from ..database import cancellation, listening
from ..database.access import Database
from ..database.cancellation import listener
from ..platform import machine
from . import compiled, filling, inspection, memory, nursery_connection
from .keeping import LastingPrediction
from .prediction import SegmentPrediction
from .row_cache import RowCache
from .scratch import data_folder, place_of, remove, require_disk, scratch_folders
from .states import OutgoingStates, ReceivedStates
from .trainer import TrainerProcess

A = TypeVar("A")
PIECE = 4 << 20  # bytes


@dataclass
class UnderWay:
    """An order that a trainer works on, and whose answer was not collected yet."""

    trainer: TrainerProcess
    order: Computation[Any]
    states: list[str]  # names of the received states that the order needs


class Segment:
    """Everything that a worker session owns on its segment."""

    def __init__(self, plpy: Any) -> None:
        self.plpy = plpy
        self.current_user = cancellation.current_user_id
        self.user = 0  # the number of the user for whom it works
        self.listen = listener(plpy)
        self.folder, on_disk = scratch_folders()
        self.folders = list(dict.fromkeys((self.folder, on_disk)))
        self.settings: TrainerSettings | None = None
        self.trainers: dict[str, TrainerProcess] = {}  # by engine
        self.wanted: LastingPrediction | None = None
        self.resting = False
        self.called = False  # after a rest, and the answers were not read yet
        self.rows = RowCache(self.folder, on_disk, self.listen)
        self.outgoing = OutgoingStates(self.folder, self.current_user)
        self.received = ReceivedStates(
            self.folder, self.folder == on_disk, self.current_user, self._require_folders, self.outgoing
        )
        self.under_way: UnderWay | None = None
        self.prediction: SegmentPrediction | None = None
        self.lent = False  # to a call that predicts in this session
        self.sealed = False  # it has weights that its user may not read: it takes no orders from SQL (current.py)
        self._methods: dict[type[Order[Any]], Callable[[Any], Any]] = {
            LoadRows: self.load_rows,
            DropRows: self.drop_rows,
            Begin: self.begin,
            CollectResult: self.collect,
            DropStates: self.drop_states,
            KeepEngines: self.keep_engines,
            BeginPrediction: self.begin_prediction,
            EndPrediction: self.end_prediction,
            Rest: self.rest,
            Suggest: lambda order: self.running().order(order),
            Inspect: self.inspect,
        }

    @property
    def is_free(self) -> bool:
        """Whether no call uses it, and no driver."""
        return self.resting or self.settings is None and not self.lent

    def obey(self, order: Order[A]) -> A:
        """The answer to an order of the driver."""
        method: Callable[[Any], Any] | None = self._methods.get(type(order))
        if isinstance(order, Computation):
            method = self.compute
        if method is None:
            raise InvalidArgument(f"a segment takes no order {order.name}")
        filling.require_sound(order)
        answer: A = method(order)
        return answer

    # -- trainers ----------------------------------------------------------------------------------

    def open(self, settings: TrainerSettings) -> WorkerOpened:
        """Start a trainer with these settings, unless such a trainer runs; waits until it has a process."""
        self.start(settings, memory.limit_of_trainers(Database(self.plpy)))
        self.wake()
        return WorkerOpened((self.living() or [self.running()])[0].pid, os.getpid(), place_of(self.folder.parent))

    def start(
        self, settings: TrainerSettings, limit: int | None, ask: bool = True, wanted: LastingPrediction | None = None
    ) -> None:
        """As ``open``, without waiting.  ``limit``: the megabytes that the user's trainers may take.

        ``ask``: a trainer that rests is asked whether it is still there.  ``wanted``: what a trainer that another
        session has left may be used for.
        """
        self.wanted = wanted
        settings = filling.limited(settings, limit)
        here = self.settings
        if here is not None and replace(here, engine=settings.engine, silent=settings.silent) != settings:
            self.close_trainers()
            self.rows.clear()  # the driver forgets what a trainer had that is gone
        self._call(ask)
        self.settings = settings
        _ = self.living() or self.running()

    def running(self, engine: str | None = None) -> TrainerProcess:
        """The trainer of an engine (None: of the engine of the settings); a new one if there is none that lives."""
        self.wake()
        self._require_folders()
        settings = self.settings or TrainerSettings(engine=nursery_connection.default_engine(self.listen))
        engine = engine or settings.engine
        filling.require_engine(engine)
        trainer = self.trainers.get(engine)
        if trainer is None or not trainer.alive:
            self.close_trainers(keep=set(self.trainers) - {engine})
            kept = compiled.folder_of_user(self.user, data_folder())
            settings, wanted = replace(settings, engine=engine), self.wanted if not self.rows.orders else None
            keep, recipe = (None, "") if wanted is None else wanted.keep(settings)
            trainer = TrainerProcess(
                self.folders,
                settings,
                self.listen,
                self._report,
                kept,
                keep=keep,
                recipe=recipe,
                keeps=None if wanted is None else wanted.order,
            )
            self.rows.drop_damaged()
            try:
                for order in self.rows.orders:
                    trainer.order(order)
            except BaseException:
                trainer.kill()  # one that lacks rows would fail every model
                raise
            self.trainers[engine] = trainer
        return trainer

    def living(self) -> list[TrainerProcess]:
        return [trainer for trainer in self.trainers.values() if trainer.alive]

    def rest(self, order: Rest) -> Done:
        """No order will come until another call: each trainer waits for that long, and then ends and removes files."""
        self.wake()
        self.outgoing.drop()
        self.received.clear()
        for trainer in self.living():
            trainer.rest(replace(order, folders=[str(folder) for folder in self.folders]))
            self.resting = True
        return Done()

    def _call(self, ask: bool = True) -> None:
        """End the rest of the trainers.  Whether they are still there is known after ``wake``."""
        if self.resting:
            self.resting, self.called = False, True
            self._unless_gone(lambda trainer: trainer.call(ask))

    def wake(self) -> None:
        """After a rest: either the trainers are still there, or they are gone, and all files with them."""
        self._call()
        if self.called:
            self.called = False
            self._unless_gone(lambda trainer: trainer.settle())

    def _unless_gone(self, action: Callable[[TrainerProcess], None]) -> None:
        try:
            for trainer in self.trainers.values():
                action(trainer)
        except TrainerFailed:
            self._forget_trainers()

    def _forget_trainers(self) -> None:
        self.close_trainers()
        self.rows.clear()

    def ask(self) -> None:
        """As ``wake``, also for a trainer that a call has not asked whether it is still there."""
        self.wake()
        self._unless_gone(lambda trainer: trainer.ask())

    def keep_engines(self, order: KeepEngines) -> Done:
        self.close_trainers(keep=order.engines)
        return Done()

    def inspect(self, order: Inspect) -> Inspected:
        started, trainer = time.monotonic(), self.running()
        engine, threads = trainer.started(), self.settings.threads if self.settings is not None else None
        return inspection.inspected(engine, time.monotonic() - started, threads, trainer.pid, self.folder)

    @listening.paused()
    def close_trainers(self, keep: Collection[str] = ()) -> None:
        for engine in set(self.trainers).difference(keep):
            trainer = self.trainers.pop(engine)
            trainer.kill()
            if self.under_way is not None and self.under_way.trainer is trainer:
                self.received.drop(self.under_way.states)
                self.under_way = None

    @listening.paused()
    def close(self) -> None:
        self.close_trainers()
        self.rows.clear()
        self.received.clear()
        for folder in self.folders:
            remove(folder)

    # -- rows and states ---------------------------------------------------------------------------

    def receive_rows(self, handle: str, variable: str, payload: bytes) -> None:
        self._require_folders()
        most = self.settings.cache_mb if self.settings is not None else None
        self.rows.receive(handle, variable, payload, None if most is None else most << 20)

    def load_rows(self, order: LoadRows) -> RowsLoaded:
        """The rows of a handle are complete: check them, and have the trainers map them."""
        complete = self.rows.complete(order)
        try:
            with self.rows.lost_if_damaged():
                return [trainer.order(complete) for trainer in self.living() or [self.running()]][-1]
        except CerebroError:
            self.rows.drop(order.handle)  # else each new trainer would be given them
            raise

    def receive_state(self, name: str, start: int, payload: bytes) -> None:
        self.received.receive(name, start, payload)

    def drop_rows(self, order: DropRows) -> Done:
        if self.rows.drop(order.handle):
            for trainer in self.living():
                trainer.order(order)
        return Done()

    def drop_states(self, order: DropStates) -> Done:
        self.received.drop(order.names)
        return Done()

    # -- computations ------------------------------------------------------------------------------

    def compute(self, order: Computation[A]) -> A:
        """Have a trainer compute, and wait for its answer."""
        self.begin(Begin(order))
        answer: A = self._result(None)
        return answer

    def begin(self, order: Begin) -> Done:
        """Have a trainer compute."""
        if self.under_way is not None:
            raise WrongState("the trainer works on another order, whose answer was not collected")
        computation = order.computation
        states = filling.received_by(computation)
        with self._dropped_if_it_fails(states):
            trainer = self.running(computation.engine)
            for handle in filling.handles_of(computation):
                self.rows.require(handle)
            filled = filling.filled(Database(self.plpy), computation, self.received, self.outgoing)
            self._require_room(trainer, computation)
            trainer.begin(filled)
        self.under_way = UnderWay(trainer, filled, states)
        return Done()

    def collect(self, order: CollectResult) -> Collected:
        answer = self._result(order.seconds)
        return Collected(None if answer is None else protocol.encode_answer(answer))

    def _result(self, seconds: float | None) -> Any:
        """The answer to the computation that was begun; None if there is none after so many seconds."""
        mine = self.under_way
        if mine is None:
            raise WrongState("the trainer was given no order")
        self.under_way = None
        with self._dropped_if_it_fails(mine.states), self.rows.lost_if_damaged():
            try:
                answer = mine.trainer.result(seconds)
            except DiskFull as full:
                full.message += self._room_left()
                raise
        if answer is None:
            self.under_way = mine
            return None
        self.received.drop(mine.states)
        if isinstance(answer, Trained):
            return self._trained(mine, answer)
        if isinstance(answer, Evaluated):
            return replace(answer, worker_pid=os.getpid(), trainer_pid=mine.trainer.pid)
        return answer

    def _trained(self, mine: UnderWay, answer: Trained) -> Trained:
        index = 0
        for group, result in zip(mine.order.groups if isinstance(mine.order, Train) else (), answer.groups):
            if result.error is not None:
                self.outgoing.discard(range(index, index + len(group.members)))
                if isinstance(result.error.error(), TrainerFailed):
                    self.close_trainers()
            index += len(group.members)
        return Trained(
            [memory.with_words(group, self._room_left) for group in answer.groups],
            visit=self.outgoing.visit,
            worker_pid=os.getpid(),
            trainer_pid=mine.trainer.pid,
            resident=answer.resident,
            features=answer.features,
            left=self.outgoing.keep(member.state for group in answer.groups for member in group.members),
        )

    def _room_left(self) -> str:
        return f" ({(machine.room(self.folder) or 0) >> 20:,} MB left in {self.folder.parent})"

    def _require_room(self, trainer: TrainerProcess, order: Computation[Any]) -> None:
        """Refuse models for which there is no memory, and outgoing states for which there is no disk."""
        sizes = memory.state_sizes(order)
        if isinstance(order, (Train, Average, BeginJoint)) and self.folder == self.folders[-1]:
            require_disk(self.folder, sum(sizes))
        on_gpu = self.settings is not None and self.settings.gpu is not None
        memory.require_memory(trainer.pid, max(sizes, default=0), on_gpu, self.listen, self.settings)

    @contextlib.contextmanager
    def _dropped_if_it_fails(self, states: Sequence[str]) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.received.drop(states)
            raise

    def _require_folders(self) -> None:
        """Make folders anew that somebody has deleted; a trainer is confined to those that were there at its start."""
        if self.under_way is None and not all(folder.is_dir() for folder in self.folders):
            self.close()
            for folder in self.folders:
                folder.mkdir(mode=0o700, parents=True)

    def _report(self, progress: Progress) -> None:
        if self.settings is None or not self.settings.silent:  # the driver reads progress from notices
            self.plpy.notice(protocol.progress_notice(progress))

    # -- predictions -------------------------------------------------------------------------------

    def holds(self, order: BeginPrediction) -> bool:
        """Whether the trainer still has the weights, because its last order was the same prediction of other rows."""
        return self.running().holds(order)

    def begin_prediction(self, order: BeginPrediction) -> Done:
        first = self.running()

        def predict(rows: Predict) -> Predicted:
            trainer = self.running()
            if rows.rest is not None:
                rows = replace(rows, folders=[str(folder) for folder in self.folders])
            if trainer is not first and rows.state.path is None:  # the weights were in the memory of the first one
                raise TrainerFailed("the trainer ended while the rows were read", hint="Call the function again.")
            return trainer.predict(rows, order)

        def predict_more(rows: PredictMore) -> list[tuple[PredictedOutput, bytes]] | None:
            if first.held != order or not first.alive:
                return None
            if rows.rest is not None:
                rows = replace(rows, folders=[str(folder) for folder in self.folders])
            return first.predict_more(rows)

        def renew() -> bool:
            nonlocal first
            if not first.unasked or prediction.send_weights is None:
                return False
            if not first.is_sure and first.answers():
                return True
            self._forget_trainers()
            self.received.clear()
            first = self.running()  # before the weights are sent: a kept trainer takes no folder with files
            if not first.holds(order):
                prediction.send_weights()
            prediction.state = self.received.filled(order.state)
            return True

        functions = filling.functions_of(Database(self.plpy), order)
        state = self.received.filled(order.state)
        prediction = SegmentPrediction(
            self.folder,
            order,
            state,
            functions,
            predict,
            obey_more=predict_more,
            is_sure=lambda: first.is_sure,
            renew=renew,
        )
        self.prediction = prediction
        return Done()

    # -- adapters ----------------------------------------------------------------------------------

    def merged(self, architecture: dict[str, Any], shapes: list[list[int]], name: str) -> Iterator[bytes]:
        """The weights of a model whose adapters are added to those of its layers.  ``name``: of the received ones."""
        state = self.received.filled(StateRef.weights(name))
        try:
            self.running().order(MergeAdapters(architecture, shapes, state))
            assert state.path is not None
            with open(state.path, "rb") as file:
                while piece := file.read(PIECE):
                    yield piece
        finally:
            self.received.drop([name])

    def end_prediction(self, order: EndPrediction | None = None) -> Done:
        prediction, self.prediction = self.prediction, None
        if prediction is not None:
            self.received.drop(prediction.received)
            prediction.close()
        return Done()
