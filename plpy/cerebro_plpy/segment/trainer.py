"""The handle on a trainer: the process in which the framework lives.

A crash, an out-of-memory kill or a hang of the framework is an error of one order.  The database backend that drives
the trainer waits in short steps and can be cancelled between them.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import signal
import time
from binascii import a2b_base64
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, TypeVar

from cerebro_db.core import protocol
from cerebro_db.core.errors import CerebroError, InvalidArgument, TrainerFailed, TrainerKilled
from cerebro_db.core.protocol import (
    BeginPrediction,
    EngineStarted,
    Failure,
    Json,
    Order,
    Predict,
    Predicted,
    PredictedOutput,
    PredictMore,
    Progress,
    Rest,
    StartEngine,
    TrainerSettings,
    Wake,
)
from cerebro_db.core.protocol.orders import decode_answer
from cerebro_db.core.trainers import frames
from cerebro_db.core.trainers.nursery_messages import Keep, StartTrainer

from ..database.cancellation import Listen
from ..database.polling import LISTEN_EVERY, is_hung_up, wait_for
from . import filling, nursery_connection
from .installation import installation, last_lines

A = TypeVar("A")

LIFE = 0.01  # of a processor; a process that computes less does nothing: a stuck process may have a thread that ticks
STARTS_WITHIN = 400.0  # seconds
MOST_STARTS = 3  # in which the trainer, its template or the nursery is killed


class TrainerProcess:
    """A running trainer.  It works on one order at a time."""

    def __init__(
        self,
        folders: Sequence[Path],
        settings: TrainerSettings,
        listen: Listen,
        report: Callable[[Progress], None] = lambda progress: None,
        compiled: Path | None = None,
        *,
        keep: Keep | None = None,
        recipe: str = "",
        keeps: BeginPrediction | None = None,
    ) -> None:
        """Start the process.  It imports the framework meanwhile, and the first order waits for the rest of that.

        ``keep``: use a kept trainer with this key if there is one; it holds the weights of the prediction ``keeps``.  A
        new trainer is kept after this session if it does nothing but predict with these weights.
        """
        self._listen, self._report = listen, report
        self._hang_after = settings.hang_after
        self.log = folders[0] / f"trainer-{settings.engine}.log"
        confined = [os.getcwd(), *(str(folder) for folder in (*folders, compiled) if folder is not None)]
        # An administrator can do without confinement, should a driver need more.
        confined = confined if installation().get("confine", True) else []
        gpu = settings.gpu is not None
        key = "" if keep is None else keep.key
        self._wanted = StartTrainer(settings.engine, [str(folder) for folder in folders], confined, gpu, key)
        self._keep, self._recipe, self._keeps = keep, recipe, keeps
        self._current: Order[Any] | None = None  # the order that it works on
        self.held: BeginPrediction | None = None  # the last order's prediction, if it keeps the weights
        self.rests = False  # its last order ended with a rest
        self.unasked = False  # after a rest: it was not asked whether it is still there
        self._surely_until = 0.0  # after that it is asked
        self._listened = 0.0  # when a cancel was last looked for
        self._cpu_then: float | None = None  # what it had computed when that was first looked at
        self._engine: EngineStarted | None = None
        self._start = StartEngine(settings, None if compiled is None else str(compiled))
        self._starts = 0
        self._launch()

    @property
    def pid(self) -> int:
        while self._engine is None:
            try:
                return self._child.pid
            except nursery_connection.Lost as lost:
                self._launch_again(lost)
        return self._engine.pid

    @property
    def alive(self) -> bool:
        return self._child.alive

    # -- between sessions ----------------------------------------------------------------------------

    def holds(self, prediction: BeginPrediction) -> bool:
        """Whether it has the weights of a prediction in memory."""
        self._take_over()
        return self.held == prediction

    def _take_over(self) -> None:
        """If another session may have left it, wait until that is known, and go on where that session ended."""
        if self._engine is None and self._wanted.key and self.pid and self._child.kept:
            self._engine = decode_answer(self._start, json.loads(self._child.kept))
            self.held, self.rests, self.unasked, self._surely_until = self._keeps, True, True, math.inf

    def _rests_with(self, prediction: BeginPrediction) -> None:
        """It has answered, and its next order may be another session's."""
        if self._keep is None or prediction != self._keeps or self.held != prediction:
            return
        if not self._child.may_be_kept:
            about = json.dumps(protocol.encode_answer(self.started()))
            self._child.keep(replace(self._keep, about=about), self._recipe)
        self._child.mark(rests=True)

    # -- orders ------------------------------------------------------------------------------------

    def order(self, order: Order[A]) -> A:
        """Send an order and wait for its answer, listening for a cancel."""
        self.begin(order)
        answer = self.result(None)
        assert answer is not None
        return answer

    def rest(self, order: Rest) -> None:
        """Have it rest, unless its last order said so.  The answer is read before the next order."""
        if not self.rests:
            self.begin(order)
            self._rests(order.seconds)

    def call(self, ask: bool = True) -> None:
        """Ask a trainer that rests whether it is still there, and end its rest.  ``settle`` reads the answer.

        Not to ``ask`` saves an order: in the first half of its rest, only somebody else can have ended it.
        """
        self.unasked = not ask and time.monotonic() < self._surely_until and not is_hung_up(self._child.answers)
        if not self.unasked:
            self.begin(Wake())

    def ask(self) -> None:
        """Ask it now if it was not asked at the begin of the call.  TrainerFailed: the trainer is gone."""
        if self.unasked:
            self.call()
            self.settle()

    def answers(self) -> bool:
        """As ``ask``, in words: whether it is still there."""
        with contextlib.suppress(TrainerFailed):
            self.ask()
            return True
        return False

    @property
    def is_sure(self) -> bool:
        """Whether its rest cannot end now, or is over."""
        return not self.unasked or time.monotonic() < self._surely_until

    def _rests(self, seconds: float) -> None:
        self.rests, self._surely_until = True, time.monotonic() + seconds / 2

    def settle(self) -> None:
        """Read an answer that nobody has waited for.  TrainerFailed: the trainer is gone."""
        if not isinstance(self._current, (Rest, Wake)):
            return
        if self._child.orders < 0:
            raise TrainerFailed("the trainer was ended")
        self.result(None)

    def predict(self, order: Predict, prediction: BeginPrediction) -> Predicted:
        """As ``order``, for some rows of a prediction."""
        if prediction != self._keeps:
            self._keep = None
        answer = self.order(order)
        self.unasked = False
        self.held = prediction if answer.holds else None
        if order.rest is not None:
            self._rests(order.rest)
            self._rests_with(prediction)
        return answer

    def predict_more(self, order: PredictMore) -> list[tuple[PredictedOutput, bytes]]:
        """Each output, and its numbers, for a few more rows of the prediction whose weights it holds."""
        held = self.held
        answer = self.order(order)
        self.unasked, self.held = False, held
        if order.rest is not None:
            self._rests(order.rest)
        try:
            if len(answer.values) != len(answer.outputs):
                raise ValueError(f"{len(answer.values)} answers for {len(answer.outputs)} outputs")
            found = [(output, a2b_base64(its)) for output, its in zip(answer.outputs, answer.values)]
        except ValueError as error:
            self.kill()
            raise TrainerFailed(f"the trainer sent what cannot be understood: {error}") from error
        if order.rest is not None and held is not None:
            self._rests_with(held)
        return found

    def begin(self, order: Order[Any]) -> None:
        """Send an order."""
        self.rests = False
        if not isinstance(order, (Rest, Wake)):
            self.held = None  # other orders may need the memory
        if not isinstance(order, (Predict, PredictMore, Rest, Wake)):
            self._keep = None  # it may know more than the rows of predictions
        frame = encoded(order)
        if self._child.orders < 0:
            raise TrainerFailed("the trainer was ended")
        self.started()
        self.settle()
        if self._current is not None:  # the next answer would be the current order's
            self.kill()
            raise TrainerFailed("the trainer was given an order while it worked on another one, and was ended")
        self._current = order
        self._child.mark(rests=False)
        with self._killed_unless_answered():
            self._send(frame)

    def result(self, seconds: float | None) -> Any:
        """The answer to the order that was begun; None if the trainer still works on it after so many seconds."""
        assert self._current is not None
        with self._killed_unless_answered():
            answer = self._answer(self._current, seconds)
        if answer is not None:
            self._current = None
        return answer

    def started(self) -> EngineStarted:
        """What the trainer said when its engine was ready; waits until it is."""
        self._take_over()
        while self._engine is None:
            with self._killed_unless_answered():
                try:
                    engine = self._answer(self._start)
                    assert engine is not None
                    filling.require_gpu(self._start.settings, engine)
                    self._engine = engine
                except nursery_connection.Lost as lost:
                    self._launch_again(lost)
                except CerebroError:
                    self.kill()  # without an engine it can obey no order
                    raise
        return self._engine

    def _launch(self) -> None:
        while True:
            self._starts += 1
            try:
                self._child = nursery_connection.Child(self._wanted, self.log, self._listen)
                break
            except nursery_connection.Lost as lost:
                self._require_another_start(lost)
        self._runs = False  # whether it has been seen to run
        self._decoder = frames.Decoder()
        self._saw_life()
        with contextlib.suppress(BrokenPipeError):  # whoever waits for the answer learns why
            os.write(self._child.orders, frames.encode(protocol.encode(self._start)))

    def _launch_again(self, lost: nursery_connection.Lost) -> None:
        self.kill()
        self._require_another_start(lost)
        self._launch()

    def _require_another_start(self, lost: nursery_connection.Lost) -> None:
        if self._starts >= MOST_STARTS:
            raise TrainerFailed(
                f"the trainer was not started in {MOST_STARTS} attempts: {lost}",
                detail=self._last_words(),
                hint="Somebody ends the trainers, or memory runs out. The server's log and the system's may say more.",
            ) from lost

    def _answer(self, order: Order[A], seconds: float | None = None) -> A | None:
        until = math.inf if seconds is None else time.monotonic() + seconds
        while True:
            for document in self._receive():
                reply = self._decoded(order, document)
                if isinstance(reply, Progress):
                    self._report(reply)
                elif isinstance(reply, Failure):
                    self._current = None
                    raise reply.error()
                else:
                    return reply
            if time.monotonic() >= until:
                return None

    def _decoded(self, order: Order[A], document: Json) -> A | Failure | Progress:
        try:
            return protocol.decode_reply(order, document)
        except InvalidArgument as error:
            self.kill()
            raise TrainerFailed(f"the trainer sent what cannot be understood: {error.message}") from error

    # -- the process -------------------------------------------------------------------------------

    def kill(self) -> None:
        self._child.kill()

    @contextlib.contextmanager
    def _killed_unless_answered(self) -> Iterator[None]:
        try:
            yield
        except CerebroError:
            raise
        except BaseException:
            # A cancel, or a defect: nobody will ask for what the trainer computes now.
            self.kill()
            raise

    def _require_life(self) -> None:
        """End a trainer that neither answers nor computes; a trainer that computes may take as long as it likes."""
        if not self._hang_after:
            return
        now = time.monotonic()
        if self._cpu_then is None:  # most answers come before this is looked at
            self._cpu_then = self._computed()
        if now - self._alive_at < self._hang_after:
            return
        if not self._runs:  # the nursery sees to it that its template imports the framework, or another Python does
            if self._child.known_pid is not None or now - self._alive_at > STARTS_WITHIN:
                self._runs = True
                self._saw_life()
            return
        used = self._computed()
        if used - self._cpu_then < LIFE * (now - self._alive_at):
            self.kill()
            raise TrainerFailed(
                f"the trainer did nothing for {now - self._alive_at:.0f} seconds and was ended",
                detail=self._last_words(),
                hint='The option "hang_after" says how many seconds it gets; 0: any number.',
            )
        self._saw_life(used)

    def _saw_life(self, cpu: float | None = None) -> None:
        self._alive_at = time.monotonic()
        self._cpu_then = cpu

    def _computed(self) -> float:
        pid = self._child.known_pid
        return 0.0 if pid is None else cpu_seconds(pid)

    def _died(self) -> TrainerFailed:
        status, why_not = self._child.end(within=2)
        if why_not is not None:
            return TrainerFailed(f"the trainer was not started: {why_not}", detail=self._last_words())
        if status is None:
            if self._engine is None:
                raise nursery_connection.Lost("the nursery ended")
            self.kill()
            return TrainerFailed("the trainer closed its pipe and was ended", detail=self._last_words())
        signalled = f"of signal {-status} ({signal.Signals(-status).name})" if status < 0 else None
        if self._engine is None and signalled is not None:
            raise nursery_connection.Lost(f"it died {signalled}")
        if status == -signal.SIGKILL:
            return TrainerKilled(
                "the trainer was killed, most likely because memory ran out",
                detail=self._last_words(),
                hint="Train fewer segments at once, smaller batches or smaller models.",
            )
        return TrainerFailed(f"the trainer died {signalled or f'with exit status {status}'}", detail=self._last_words())

    def _last_words(self) -> str | None:
        return last_lines(self.log)

    # -- the pipes ---------------------------------------------------------------------------------

    def _send(self, frame: bytes) -> None:
        pipe = self._child.orders
        rest = memoryview(frame)
        self._saw_life()
        self._listened = time.monotonic()  # the call has run statements, which are cancelled by themselves
        while rest:
            if not wait_for([pipe], select.POLLOUT, LISTEN_EVERY):
                self._listen()
                self._require_life()
                continue
            try:
                rest = rest[os.write(pipe, rest) :]
            except OSError as error:
                raise self._died() from error

    def _receive(self) -> list[Json]:
        pipe = self._child.answers
        readable = wait_for([pipe], select.POLLIN, LISTEN_EVERY)
        if not readable or time.monotonic() - self._listened > LISTEN_EVERY:
            self._listen()
            self._listened = time.monotonic()
        if not readable:
            if self._engine is None:
                self._child.require_nursery()
            self._require_life()
            return []
        self._saw_life()
        piece = os.read(pipe, 1 << 20)
        if not piece:
            raise self._died()
        try:
            return self._decoder.feed(piece)
        except frames.BrokenFrame as error:
            self.kill()
            raise TrainerFailed(f"the trainer sent what cannot be understood: {error}") from error


def encoded(order: Order[Any]) -> bytes:
    try:
        return frames.encode(protocol.encode(order))
    except (frames.BrokenFrame, RecursionError) as error:
        raise InvalidArgument(f"the order {order.name} cannot be sent to a trainer: {error}") from error


def cpu_seconds(pid: int) -> float:
    """The time that all threads of a process have computed so far."""
    with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/stat") as file:
        user, system = file.read().rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
    return 0.0
