"""What runs on a segment: one worker session's trainer, its files, and the UDFs that feed and drive it.

Rows and states come in as arguments (on a Greenplum segment a function cannot query distributed
tables) and go to files that the trainer maps; work is ordered as JSON that never names a path.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cerebro_db.core.engines import COMPILING, DEFAULT, ENGINES
from cerebro_db.core.errors import (
    CerebroError,
    CorruptState,
    DiskFull,
    InvalidArgument,
    OutOfResources,
    TrainerFailed,
    WrongState,
)

from . import compiled, functions, inspection, machine
from .db import Database, entry
from .interrupts import listener
from .predicting import Prediction
from .sessions import LISTEN_EVERY, PROGRESS
from .trainer import Trainer

CHUNK = 4 << 20  # bytes of a model's weights in one statement
# Bytes of a model's state per row. PL/Python copies a row several times, and memory of megabytes is new each time: of
# 100 MB, rows of 256 kB take a third of the time to hand out that rows of 4 MB take (0.10 and 0.30 s of CPU).
ROW = 256 << 10
LARGE_STATE = 64 << 20  # bytes; whether a smaller one fits into memory is not asked
MEMORY_WITHIN = 10.0  # seconds
LONGEST_REST = 86400  # seconds
SCRATCH = "pgsql_tmp_cerebro"  # a name that pg_basebackup leaves out
OPTIONS = {  # of a trainer
    "engine": str,
    "threads": int,
    "deterministic": bool,
    "gpu": int,
    "memory_limit_mb": int,
    "hang_after": int,
}


class Dataset:
    """The packed rows of one segment, as files: one per variable."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700)
        self.folder = folder
        self.files: dict[str, Any] = {}
        self.digest = hashlib.sha256()
        self.bytes = 0
        self.order: dict[str, Any] | None = None  # what told the trainer of it, once complete

    def add(self, variable: str, payload: bytes) -> None:
        file = self.files.get(variable)
        if file is None:
            file = self.files[variable] = open(self.folder / str(len(self.files)), "wb")  # noqa: SIM115
        file.write(payload)
        self.digest.update(payload)
        self.bytes += len(payload)

    def close(self) -> dict[str, str]:
        for file in self.files.values():
            file.close()
        return {variable: file.name for variable, file in self.files.items()}

    def drop(self) -> None:
        self.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class Segment:
    """Everything a worker session owns on its segment."""

    def __init__(self, plpy: Any) -> None:
        self.plpy = plpy
        self.listen = listener(plpy)
        self.folder = scratch_folder()
        self.trainers: dict[str, Trainer] = {}  # by engine
        self.resting = False
        self.options: dict[str, Any] = {}
        self.datasets: dict[str, Dataset] = {}
        self.arrived: dict[str, Path] = {}  # ticket -> the file of a state that came in for the next piece of work
        self.said = 0.0
        self.prediction: Prediction | None = None

    # -- the trainer ------------------------------------------------------------------------------

    def open(self, options: dict[str, Any]) -> dict[str, Any]:
        if not isinstance(options, dict):
            raise InvalidArgument("a trainer is opened with a JSON object")
        for name, value in options.items():
            # Anybody may call this: what is handed to a trainer is what we know, nothing else.
            if name not in OPTIONS or (value is not None and type(value) is not OPTIONS[name]):
                raise InvalidArgument(f"a trainer cannot be opened with {name} = {json.dumps(value)[:80]}")
        if {**options, "engine": None} != {**self.options, "engine": None}:
            self.close_trainers()
        self.wake()
        self.options = options
        trainer = (self.living() or [self.running()])[0]
        return {"trainer_pid": trainer.pid, "worker_pid": os.getpid()}

    def running(self, engine: str | None = None) -> Trainer:
        """The trainer, of the engine that it was opened with if none is named; a new one if the last one died."""
        self.wake()
        engine = engine or self.options.get("engine") or DEFAULT
        if engine not in ENGINES:  # anybody may ask, and each would be one more process
            raise InvalidArgument(f"there is no engine {json.dumps(engine)[:80]}")
        trainer = self.trainers.get(engine)
        if trainer is None or not trainer.alive:
            if trainer is not None:
                trainer.kill()
            options, kept = {**self.options, "engine": engine}, None
            if engine in COMPILING:
                kept = compiled.folder_of_user(Database(self.plpy), Path(os.getcwd()) / SCRATCH)
            trainer = self.trainers[engine] = Trainer(self.folder, options, self.listen, kept)
            for dataset in self.datasets.values():
                if dataset.order is not None:
                    trainer.order(dataset.order, self.listen)
        return trainer

    def rest(self, seconds: int) -> dict[str, Any]:
        """No work until another call: the trainer waits for one so long, and then ends and takes its files away."""
        for trainer in self.living():
            trainer.order({"order": "rest", "seconds": seconds, "folder": str(self.folder)}, self.listen)
            self.resting = True
        return {}

    def wake(self) -> None:
        """After a rest: either the trainer is still there, or it is gone with all it had."""
        if not self.resting:
            return
        self.resting = False
        try:
            for trainer in self.trainers.values():
                trainer.order({"order": "wake"}, self.listen)
        except TrainerFailed:
            self.close_trainers()
            for dataset in self.datasets.values():
                dataset.drop()
            self.datasets.clear()

    def living(self) -> list[Trainer]:
        return [trainer for trainer in self.trainers.values() if trainer.alive]

    def close_trainers(self, but: Sequence[str] = ()) -> None:
        for engine in set(self.trainers).difference(but):
            self.trainers.pop(engine).kill()

    def close(self) -> None:
        self.close_trainers()
        for dataset in self.datasets.values():
            dataset.drop()
        self.datasets.clear()
        shutil.rmtree(self.folder, ignore_errors=True)

    # -- data and state ---------------------------------------------------------------------------

    def data_in(self, handle: str, variable: str, payload: bytes) -> int:
        dataset = self.datasets.get(handle)
        if dataset is None:
            dataset = self.datasets[handle] = Dataset(self.folder / f"data-{secrets.token_hex(4)}")
        dataset.add(variable, payload)
        return len(payload)

    def data_ready(self, handle: str, layout: dict[str, Any], rows: int, sha256: str | None) -> dict[str, Any]:
        dataset = self.datasets.get(handle)
        if dataset is None:
            raise WrongState(f"no rows of {handle} came in")
        if sha256 is not None and dataset.digest.hexdigest() != sha256:
            self.data_forget(handle)
            raise CorruptState(
                f"the packed rows of {handle} are not those that were packed",
                hint="The packed table was changed by hand. Pack it again with training_preprocessor_dl().",
            )
        dataset.order = {
            "order": "data",
            "handle": handle,
            "layout": layout,
            "rows": rows,
            "files": dataset.close(),
        }
        return [trainer.order(dataset.order, self.listen) for trainer in self.living() or [self.running()]][-1]

    def data_forget(self, handle: str) -> dict[str, Any]:
        dataset = self.datasets.pop(handle, None)
        if dataset is not None:
            if dataset.order is not None:
                for trainer in self.living():
                    trainer.order({"order": "forget", "handle": handle}, self.listen)
            dataset.drop()
        return {}

    def state_in(self, ticket: str, start: int, payload: bytes) -> int:
        fresh = ticket not in self.arrived
        path = self.arrived.setdefault(ticket, self.folder / f"state.in.{len(self.arrived)}")
        with open(path, "wb" if fresh else "r+b") as file:
            file.seek(start)
            file.write(payload)
        return len(payload)

    def drop_arrived(self) -> None:
        for path in self.arrived.values():
            path.unlink(missing_ok=True)  # it may take as much memory as the model
        self.arrived.clear()

    def state_out(self, member: int) -> Iterator[tuple[int, bytes]]:
        path = self._left(member)
        with open(path, "rb") as file:
            start = 0
            while chunk := file.read(ROW):
                yield start, chunk
                start += len(chunk)
        path.unlink(missing_ok=True)  # it may be in memory, and as large as the model

    def _left(self, member: int) -> Path:
        """Where a training leaves a state."""
        return self.folder / f"state.out.{int(member)}"

    def end_prediction(self) -> None:
        prediction, self.prediction = self.prediction, None
        if prediction is not None:
            prediction.close()

    # -- work -------------------------------------------------------------------------------------

    def work(self, asked: dict[str, Any]) -> dict[str, Any]:
        if not isinstance(asked, dict):
            raise InvalidArgument("work is a JSON object")
        kind = asked.pop("work", None)
        if kind == "data":
            return self.data_ready(asked["handle"], asked["layout"], asked["rows"], asked.get("sha256"))
        if kind == "forget":
            return self.data_forget(asked["handle"])
        if kind == "hello":
            return self.running().hello(self.listen)
        if kind == "rest":
            seconds = asked.get("seconds")
            if type(seconds) is not int or not 0 < seconds <= LONGEST_REST:
                raise InvalidArgument(f"a trainer cannot rest for {json.dumps(seconds)[:80]} seconds")
            return self.rest(seconds)
        if kind == "inspect":
            return self.inspect()
        if kind == "predict":
            self.prediction = Prediction(self, asked)
            return {}
        if kind == "predicted":
            self.end_prediction()
            return {}
        if kind == "dismiss":  # engines that a trial was lost by
            self.close_trainers(but=asked.get("but") or ())
            return {}
        if kind not in ("train", "rehearse", "evaluate", "describe", "trial"):
            raise InvalidArgument(f"a segment cannot {kind!r}")
        members = asked["members"] if kind in ("train", "rehearse") else [asked]
        parts = [self._part(kind, place, member) for place, member in enumerate(members)]
        for part, state in zip(parts, asked.get("states", [])):
            part["state"] = self.state(state)
        order: dict[str, Any] = {name: asked[name] for name in ("handle", "layout", "others") if name in asked}
        order.update({"members": parts} if members is asked.get("members") else parts[0])
        # Those that train together have their losses and metrics in common.
        order.update(order=kind, functions=self.functions(members[0].get("configuration")))
        trainer = self.running(asked.get("engine"))
        if asked.get("state_bytes"):
            self.require_memory(trainer, int(asked["state_bytes"]))
        try:
            result = trainer.order(order, self.listen, self._report)
        except DiskFull as full:
            full.message += f" ({(machine.room(self.folder) or 0) >> 20:,} MB left in {self.folder.parent})"
            raise
        finally:
            self.drop_arrived()
        for member in result.get("members", []):
            member["state"].pop("path", None)
        return {**result, "trainer_pid": trainer.pid, "worker_pid": os.getpid()}

    def _part(self, kind: str, place: int, asked: dict[str, Any]) -> dict[str, Any]:
        """One configuration's part of an order; nothing that is asked names a path."""
        names = ("configuration", "seed", "shuffle_seed", "hop")
        part: dict[str, Any] = {name: asked[name] for name in names if name in asked}
        if kind == "train":
            part["out"] = str(self._left(place))
        return part

    def require_memory(self, trainer: Trainer, state_bytes: int) -> None:
        """A large model that cannot fit is told so, rather than killed; others may be giving memory back just now."""
        if state_bytes < LARGE_STATE or self.options.get("gpu") is not None:
            return
        deadline = time.monotonic() + MEMORY_WITHIN
        while True:
            more = machine.memory_needed(state_bytes) - (inspection.resident(trainer.pid) or 0)
            free = machine.memory_available()
            if free is None or more <= free:
                return
            if time.monotonic() >= deadline:
                raise OutOfResources(
                    f"a model with a state of {state_bytes >> 20:,} MB needs about {more >> 20:,} MB of memory more,"
                    f" and {free >> 20:,} MB are available",
                    hint="Train in fewer segments or with smaller models, or make room; then"
                    " SELECT cerebro.resume(run, retry_failed => true) tries it again.",
                )
            self.listen()
            time.sleep(LISTEN_EVERY)

    def functions(self, configuration: Any) -> list[dict[str, Any]]:
        """Source for the trainer comes from here alone; what is asked has names only, whoever asks."""
        return functions.of(Database(self.plpy), configuration)

    def inspect(self) -> dict[str, Any]:
        """All that cerebro.doctor() wants to know of this segment; waits until the trainer is ready."""
        started = time.monotonic()
        trainer = self.running()
        hello = trainer.hello(self.listen)
        return {
            **inspection.facts(),
            "hello": hello,
            "threads": self.options.get("threads"),
            "seconds": time.monotonic() - started,
            "resident": inspection.resident(trainer.pid),
            "scratch": machine.room(self.folder),
            "in_memory": self.folder.is_relative_to("/dev/shm"),
        }

    def state(self, asked: dict[str, Any]) -> dict[str, Any]:
        state: dict[str, Any] = {name: asked[name] for name in ("kind", "sha256", "token") if name in asked}
        if state.get("kind") in ("full", "weights"):
            path = self.arrived.get(asked.get("ticket") or "")
            if path is None:
                raise CorruptState(
                    "the model's state is not there",
                    hint="Its table in the schema cerebro_state was emptied or dropped by hand.",
                )
            state["path"] = str(path)
        return state

    def _report(self, progress: dict[str, Any]) -> None:
        now = time.monotonic()
        if now - self.said >= 0.25:
            self.said = now
            self.plpy.notice(PROGRESS + json.dumps(progress))


def scratch_folder() -> Path:
    """A folder of this process's own, in memory if there is plenty, else in the data folder.

    Containers give /dev/shm 64 MB; a mapped file in the data folder serves as well.  Folders of
    processes that are gone are removed on the way.
    """
    owner = f"{os.getpid()}-{process_start(os.getpid())}"
    data_folder = Path(os.getcwd()) / SCRATCH
    data_folder.mkdir(mode=0o700, exist_ok=True)
    memory = Path("/dev/shm")
    bases = [data_folder]
    with contextlib.suppress(OSError):
        if (machine.room(memory) or 0) > 4 << 30:
            bases.insert(0, memory / f"cerebro_db_{os.getuid()}")
            bases[0].mkdir(mode=0o700, exist_ok=True)
            if bases[0].stat().st_uid != os.getuid() or bases[0].is_symlink():
                del bases[0]  # somebody else made it: not ours to use
    for base in bases:
        for leftover in base.iterdir():
            pid, _, start = leftover.name.partition("-")
            if pid.isdigit() and process_start(int(pid)) != start:
                shutil.rmtree(leftover, ignore_errors=True)
    folder = bases[0] / owner
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    return folder


def process_start(pid: int) -> str:
    """When a process started, in clock ticks since boot; with its number it names a process for good."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


# -- the UDFs ----------------------------------------------------------------------------------------

_segment: Segment | None = None  # this backend's, as long as it lives


def mine(db: Database) -> Segment:
    global _segment
    if _segment is None:
        _segment = Segment(db.plpy)
    return _segment


def close_mine() -> None:
    global _segment
    if _segment is not None:
        _segment.close()
        _segment = None


@entry
def worker_open(db: Database, options: str) -> str:
    return json.dumps(mine(db).open(json.loads(options)))


@entry
def worker_close(db: Database) -> None:
    close_mine()


@entry
def data_in(db: Database, handle: str, variable: str, payload: bytes) -> int:
    return mine(db).data_in(handle, variable, payload)


@entry
def state_in(db: Database, ticket: str, start: int, payload: bytes) -> int:
    return mine(db).state_in(ticket, start, payload)


@entry
def state_out(db: Database, member: int) -> Iterator[tuple[int, bytes]]:
    return mine(db).state_out(member)


@entry
def work(db: Database, asked: str) -> str:
    """The result, or the error, as JSON: an error here belongs to a configuration, not to the session."""
    segment = mine(db)
    try:
        return json.dumps({"ok": segment.work(json.loads(asked))})
    except CerebroError as error:
        if isinstance(error, TrainerFailed):
            segment.close_trainers()
        return json.dumps({"error": error.told()})
