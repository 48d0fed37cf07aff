"""A real trainer process at the other end of two pipes."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

from cerebro_db.core import protocol
from cerebro_db.core.engines import ENGINES, default_among
from cerebro_db.core.protocol import (
    Evaluate,
    EvaluatedModel,
    Failure,
    Group,
    Member,
    MemberVisit,
    ModelState,
    Order,
    Origin,
    OutgoingState,
    Predict,
    Predicted,
    Progress,
    RowsLoaded,
    StartEngine,
    StateRef,
    Train,
    TrainedGroup,
    TrainedMember,
    TrainedVisit,
    TrainerSettings,
)
from cerebro_db.core.trainers import frames

from . import forks

ROOT = Path(__file__).resolve().parents[2]
MAIN = ROOT / "cerebro_db" / "nn" / "trainer_main.py"
Json = dict[str, Any]
A = TypeVar("A")
USUAL_ENGINE = default_among([engine for engine, package in ENGINES.items() if find_spec(package)])


class OrderFailed(Exception):
    def __init__(self, failure: Failure) -> None:
        super().__init__(f"{failure.kind}: {failure.message}\n{failure.detail or ''}")
        self.kind, self.message, self.detail = failure.kind, failure.message, failure.detail


class Gone(Exception):
    """The trainer ended without an answer."""


@dataclass(frozen=True)
class Visit:
    """What became of a member: its result, the file of its state, and the seconds of its group."""

    member: TrainedMember
    path: str
    seconds: dict[str, float]

    @property
    def result(self) -> TrainedVisit:
        (visit,) = self.member.visits
        return visit

    @property
    def state(self) -> OutgoingState:
        return self.member.state

    @property
    def rows(self) -> int:
        return self.result.rows

    @property
    def steps(self) -> int:
        return self.result.steps

    @property
    def loss(self) -> float:
        return self.result.loss

    @property
    def metrics(self) -> Json:
        return self.result.metrics

    @property
    def finite(self) -> bool:
        return self.result.finite


def interpreter(folder: Path, confined: bool) -> subprocess.Popen[bytes]:
    """A trainer that imports the framework itself."""
    command = [sys.executable, "-I", str(MAIN), *([str(folder.parent), str(folder)] if confined else [])]
    home = {**os.environ, "HOME": str(folder), "TMPDIR": str(folder)}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, bufsize=0, cwd="/", env=home if confined else None)


class Trainer:
    def __init__(
        self, folder: Path, *, confined: bool = False, first: Order[Any] | None = None, **settings: Any
    ) -> None:
        self.engine = engine = settings.get("engine", USUAL_ENGINE)
        if engine in ENGINES and find_spec(ENGINES[engine]) is None:
            pytest.skip(f"the engine {engine} is not installed")
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        nursery = forks.nursery() if engine in ENGINES and not confined else None
        self.process: subprocess.Popen[bytes] | forks.Fork = (
            interpreter(folder, confined) if nursery is None else forks.Fork(nursery, engine)
        )
        self.decoder = frames.Decoder()
        self.waiting: list[Json] = []
        self.progress: list[Progress] = []
        self.configurations: list[Json] = []  # of the members so far
        usual = {"engine": USUAL_ENGINE, "threads": 1, "deterministic": True, "reuse": "none"}
        self._first = first or StartEngine(TrainerSettings(**{**usual, **settings}))
        self.send(self._first)  # the answer is read later, so that two trainers can start at once
        self._started: Any = None

    @property
    def started(self) -> Any:
        """The answer to the first order."""
        if self._started is None:
            self._started = self.answer(self._first)
        return self._started

    def send(self, order: Order[Any]) -> None:
        self.send_document(protocol.encode(order))

    def send_document(self, document: Json) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended already, which the answer will tell
            self.process.stdin.write(frames.encode(document))

    def frame(self) -> Json:
        assert self.process.stdout is not None
        while not self.waiting:
            piece = os.read(self.process.stdout.fileno(), 1 << 16)
            if not piece:
                raise Gone(self.process.wait(10))
            self.waiting += self.decoder.feed(piece)
        return self.waiting.pop(0)

    def answer(self, order: Order[A]) -> A:
        while True:
            reply = protocol.decode_reply(order, self.frame())
            if isinstance(reply, Progress):
                self.progress.append(reply)
            elif isinstance(reply, Failure):
                raise OrderFailed(reply)
            else:
                return reply

    def __call__(self, order: Order[A]) -> A:
        assert self.started
        self.send(order)
        return self.answer(order)

    def obey_document(self, document: Json) -> Any:
        """The answer to what may be no order."""
        assert self.started
        self.send_document(document)
        return self.answer(protocol.Wake())

    def data(self, handle: str, layout: Json, **arrays: np.ndarray) -> RowsLoaded:
        files, rows = {}, 0
        for variable in layout["inputs"] + layout["outputs"] + layout.get("fold", []):
            name = variable["name"]
            if name in arrays:
                array = np.ascontiguousarray(arrays[name], variable["dtype"])
                files[name], rows = str(self.folder / f"{handle}.{name}"), len(array)
                array.tofile(files[name])
        return self(protocol.LoadRows(handle=handle, layout=layout, rows=rows, files=files))

    def train(
        self,
        configuration: Json,
        handle: str,
        state: StateRef | None = None,
        *,
        seed: int = 1,
        shuffle_seed: int = 1,
        out: str | None = None,
        functions: Any = None,
    ) -> Visit:
        member = self.member(configuration, state, seed=seed, shuffle_seed=shuffle_seed, out=out)
        (result,) = self.train_groups(handle, [[member]], functions)
        return visits_of([member], result)[0]

    def train_fused(self, handle: str, *members: Member) -> list[Visit]:
        (result,) = self.train_groups(handle, [list(members)])
        return visits_of(members, result)

    def train_groups(self, handle: str, groups: list[list[Member]], functions: Any = None) -> list[TrainedGroup]:
        order = Train(handle, self.configurations, [Group(members) for members in groups], functions=functions)
        answer = self(order)
        self.resident = answer.resident
        return answer.groups

    def member(
        self,
        configuration: Json,
        state: StateRef | None = None,
        *,
        seed: int = 1,
        shuffle_seed: int = 1,
        out: str | int | None = None,
    ) -> Member:
        """``out``: a path, or the number of a file in the trainer's folder."""
        path = out if isinstance(out, str) else str(self.folder / ("out" if out is None else f"out.{out}"))
        state = state or StateRef.seed()
        return Member(self.place(configuration), seed, [MemberVisit(shuffle_seed)], state, out=path)

    def place(self, configuration: Json) -> int:
        """How members name a configuration."""
        if configuration not in self.configurations:
            self.configurations.append(configuration)
        return self.configurations.index(configuration)

    def evaluate(self, configuration: Json, handle: str, state: StateRef) -> EvaluatedModel:
        (result,) = self(Evaluate(handle, [configuration], [ModelState(0, state)])).models
        if result.error is not None:
            raise OrderFailed(result.error)
        return result

    def model(self, configuration: Json, state: StateRef, **more: Any) -> ModelState:
        """A model in an order to evaluate."""
        return ModelState(self.place(configuration), state, **more)

    def evaluation(self, handle: str, *models: ModelState) -> Evaluate:
        return Evaluate(handle, self.configurations, list(models))

    def predict(self, configuration: Json, handle: str, state: StateRef, out: str) -> Predicted:
        return self(Predict(configuration, state, out, handle=handle))

    def close(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        try:
            self.process.wait(10)
        finally:
            self.process.kill()
            self.process.stdout.close()


def visits_of(members: Any, group: TrainedGroup) -> list[Visit]:
    if group.error is not None:
        raise OrderFailed(group.error)
    return [Visit(result, member.out, group.seconds) for member, result in zip(members, group.members, strict=True)]


def full(visit: Visit) -> StateRef:
    """The state that a visit has left, for the next one, in any trainer."""
    return StateRef(Origin.FULL, name=visit.path, sha256=visit.state.sha256, path=visit.path)


def resident(visit: Visit) -> StateRef:
    """The state that a visit has left, for the next one, in the same trainer."""
    assert visit.state.token is not None
    return StateRef.resident(visit.state.token)


def weights(path: Path | str) -> StateRef:
    """The weights in a file, as MADlib stores them."""
    return StateRef(Origin.WEIGHTS, name=str(path), path=str(path))
