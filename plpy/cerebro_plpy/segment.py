"""What runs on a segment: one worker session's trainer, its files, and the UDFs that feed and drive it.

Rows and states come in as arguments (on a Greenplum segment a function cannot query distributed
tables) and go to files that the trainer maps; work is ordered as JSON that never names a path.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import secrets
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

from cerebro_db.core.engines import COMPILING, DEFAULT, ENGINES
from cerebro_db.core.errors import (
    MAKE_ROOM,
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
from .interrupts import Listen, listener
from .predicting import Prediction
from .runs import ROW
from .sessions import LISTEN_EVERY, PROGRESS
from .trainer import Trainer

CHUNK = 4 << 20  # bytes of a model's weights in one statement
RESERVE = 64 << 20  # bytes that rows and states leave free where they lie
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
    "cache_mb": int,
}


class Dataset:
    """The packed rows of one segment, as files: one per variable.

    In memory; all of them on disk where they would take too much of it, whence the system reads again what it drops.
    """

    def __init__(self, name: str, memory: Path, disk: Path, most: int | None, listen: Listen) -> None:
        self.folder, self.on_disk, self.most, self.listen = memory / name, disk / name, most, listen
        self.folder.mkdir(mode=0o700)
        self.names: dict[str, str] = {}  # variable -> file
        self.digest = hashlib.sha256()
        self.bytes = 0
        self.order: dict[str, Any] | None = None  # what told the trainer of it, once complete

    def add(self, variable: str, payload: bytes) -> None:
        size = len(payload)
        if self.folder != self.on_disk and not self._fits(size):
            require_disk(self.on_disk.parent, self.bytes + size)
            self._move()
        elif self.folder == self.on_disk:
            require_disk(self.on_disk.parent, size)
        with open(self.folder / self.names.setdefault(variable, str(len(self.names))), "ab") as file:
            file.write(payload)
        self.digest.update(payload)
        self.bytes += size

    def _fits(self, size: int) -> bool:
        """Whether so many bytes more may be in memory.  The other segments of the host ask at the same time."""
        if (machine.room(self.folder) or 0) < size + RESERVE:
            return False
        if self.most is not None:
            return self.bytes + size <= self.most
        available, total = machine.memory_available(), machine.memory_total()
        return available is None or total is None or available - size > total // 2

    def _move(self) -> None:
        self.on_disk.mkdir(mode=0o700)
        try:
            for name in self.names.values():
                with open(self.folder / name, "rb") as source, open(self.on_disk / name, "wb") as copy:
                    while piece := source.read(CHUNK):
                        copy.write(piece)
                        self.listen()
        except BaseException:
            shutil.rmtree(self.on_disk, ignore_errors=True)
            raise
        shutil.rmtree(self.folder)
        self.folder = self.on_disk

    def files(self) -> dict[str, str]:
        return {variable: str(self.folder / name) for variable, name in self.names.items()}

    def drop(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


@dataclass
class UnderWay:
    """What a trainer was told to do and has not been asked for yet."""

    trainer: Trainer
    tickets: list[str]  # of the states that it needs
    unit: int


class Segment:
    """Everything a worker session owns on its segment."""

    def __init__(self, plpy: Any) -> None:
        self.plpy = plpy
        self.listen = listener(plpy)
        self.folder, self.on_disk = scratch_folders()
        self.trainers: dict[str, Trainer] = {}  # by engine
        self.resting = False
        self.options: dict[str, Any] = {}
        self.datasets: dict[str, Dataset] = {}
        self.arrived: dict[str, Path] = {}  # ticket -> a state that came in for the next piece of work
        self.arriving: FileIO | None = None  # the one of them that came in last
        self.said = 0.0
        self.unit = 0  # how often training was ordered
        self.left: dict[int, list[Path]] = {}  # by unit: the states that it leaves
        self.under_way: UnderWay | None = None  # what the trainer has begun and nobody has asked for yet
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
            trainer = self.trainers[engine] = Trainer(self.folders, options, self.listen, kept)
            for dataset in self.datasets.values():
                if dataset.order is not None:
                    trainer.order(dataset.order, self.listen)
        return trainer

    def rest(self, seconds: int) -> dict[str, Any]:
        """No work until another call: the trainer waits for one so long, and then ends and takes its files away."""
        self._drop_left(before=math.inf)
        self.drop_arrived(list(self.arrived))
        for trainer in self.living():
            trainer.order({"order": "rest", "seconds": seconds, "folders": list(map(str, self.folders))}, self.listen)
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
            trainer = self.trainers.pop(engine)
            trainer.kill()
            if self.under_way is not None and self.under_way.trainer is trainer:
                self.drop_arrived(self.under_way.tickets)
                self.under_way = None

    def close(self) -> None:
        self.close_trainers()
        for dataset in self.datasets.values():
            dataset.drop()
        self.datasets.clear()
        self._arrives_no_more()
        for folder in self.folders:
            shutil.rmtree(folder, ignore_errors=True)

    @property
    def folders(self) -> list[Path]:
        return list(dict.fromkeys((self.folder, self.on_disk)))

    # -- data and state ---------------------------------------------------------------------------

    def data_in(self, handle: str, variable: str, payload: bytes) -> int:
        dataset = self.datasets.get(handle)
        if dataset is None:
            most = self.options.get("cache_mb")
            dataset = self.datasets[handle] = Dataset(
                f"data-{secrets.token_hex(4)}",
                self.folder,
                self.on_disk,
                None if most is None else most << 20,
                self.listen,
            )
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
            "files": dataset.files(),
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
        path = self.arrived.setdefault(ticket, self.folder / f"state.in.{secrets.token_hex(4)}")
        if self.arriving is None or self.arriving.name != str(path):
            self._arrives_no_more()
            # It stays open: to open it for each row would take longer than all the rest.
            self.arriving = open(path, "wb", buffering=0, opener=without_truncating)  # noqa: SIM115
        if self.folder == self.on_disk:
            require_disk(self.folder, len(payload))
        left = memoryview(payload)
        while left:
            written = os.pwrite(self.arriving.fileno(), left, start)
            left, start = left[written:], start + written
        return len(payload)

    def _arrives_no_more(self) -> None:
        if self.arriving is not None:
            self.arriving.close()
            self.arriving = None

    def state_out(self, unit: int, member: int) -> Iterator[tuple[int, bytes]]:
        left = self.left.get(unit, [])
        if not 0 <= member < len(left) or not left[member].exists():
            raise WrongState(f"training {unit} has left no state {member}")
        return rows_of(left[member])

    def _leaves(self, members: int) -> list[Path]:
        """Where the training that is about to begin leaves its states; what the last one has left may not be stored
        yet, what was left before that nobody wanted."""
        self.unit += 1
        self._drop_left(before=self.unit - 1)
        self.left[self.unit] = [self.folder / f"state.out.{self.unit}.{place}" for place in range(members)]
        return self.left[self.unit]

    def _drop_left(self, before: float) -> None:
        for unit in [unit for unit in self.left if unit < before]:
            for path in self.left.pop(unit):
                path.unlink(missing_ok=True)

    def end_prediction(self) -> None:
        prediction, self.prediction = self.prediction, None
        if prediction is not None:
            prediction.close()

    # -- work -------------------------------------------------------------------------------------

    def work(self, asked: dict[str, Any]) -> dict[str, Any] | None:
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
        if kind == "result":
            return self.result(asked.get("seconds"))
        if kind == "drop":  # states that came in for nothing
            self.drop_arrived([str(ticket) for ticket in asked["tickets"]])
            return {}
        if kind == "dismiss":  # engines that a trial was lost by
            self.close_trainers(but=asked.get("but") or ())
            return {}
        if kind not in ("train", "rehearse", "evaluate", "describe", "trial"):
            raise InvalidArgument(f"a segment cannot {kind!r}")
        members = asked["members"] if kind in ("train", "rehearse") else [asked]
        tickets = [state["ticket"] for state in asked.get("states", []) if "ticket" in state]
        with self._dropped_if_it_fails(tickets):
            trainer, order = self._order(kind, members, asked)
            trainer.begin(order, self.listen)
        self.under_way = UnderWay(trainer, tickets, self.unit)
        return {} if asked.get("wait") is False else self.result(None)

    def _order(self, kind: str, members: list[Any], asked: dict[str, Any]) -> tuple[Trainer, dict[str, Any]]:
        """For a trainer that has room for it: nothing that is asked names a path."""
        parts = [_part(member) for member in members]
        if kind == "train":
            for part, path in zip(parts, self._leaves(len(members))):
                part["out"] = str(path)
        for part, state in zip(parts, asked.get("states", [])):
            part["state"] = self.state(state)
        order: dict[str, Any] = {name: asked[name] for name in ("handle", "layout", "others") if name in asked}
        order.update({"members": parts} if members is asked.get("members") else parts[0])
        # Those that train together have their losses and metrics in common.
        order.update(order=kind, functions=self.functions(members[0].get("configuration")))
        trainer = self.running(asked.get("engine"))
        if asked.get("state_bytes"):
            self.require_memory(trainer, int(asked["state_bytes"]))
            if self.folder == self.on_disk:
                require_disk(self.folder, int(asked["state_bytes"]))
        return trainer, order

    def result(self, seconds: float | None) -> dict[str, Any] | None:
        """Of what the trainer has begun; None if it is still at it after so many seconds."""
        mine = self.under_way
        if mine is None:
            raise WrongState("the trainer was given nothing to do")
        if type(seconds) not in (int, float, type(None)):
            raise InvalidArgument(f"nobody can wait for {json.dumps(seconds)[:80]} seconds")
        self.under_way = None
        with self._dropped_if_it_fails(mine.tickets):
            try:
                result = mine.trainer.result(seconds, self.listen, self._report)
            except DiskFull as full:
                full.message += f" ({(machine.room(self.folder) or 0) >> 20:,} MB left in {self.folder.parent})"
                raise
        if result is None:
            self.under_way = mine
            return None
        self.drop_arrived(mine.tickets)
        for member in result.get("members", []):
            member["state"].pop("path", None)
        return {**result, "unit": mine.unit, "trainer_pid": mine.trainer.pid, "worker_pid": os.getpid()}

    @contextlib.contextmanager
    def _dropped_if_it_fails(self, tickets: Sequence[str]) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.drop_arrived(tickets)
            raise

    def drop_arrived(self, tickets: Sequence[str]) -> None:
        for ticket in tickets:
            path = self.arrived.pop(ticket, None)
            if path is not None:
                if self.arriving is not None and self.arriving.name == str(path):
                    self._arrives_no_more()
                path.unlink(missing_ok=True)  # it may take as much memory as the model

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


def require_disk(folder: Path, size: int) -> None:
    """The write-ahead log may lie there, too, and without room for it the server ends."""
    room = machine.room(folder)
    if room is not None and room < size + RESERVE:
        raise DiskFull(f"{room >> 20:,} MB left in {folder} for what does not fit into memory", hint=MAKE_ROOM)


def without_truncating(path: str, flags: int) -> int:
    return os.open(path, flags & ~os.O_TRUNC, 0o600)


def rows_of(path: Path) -> Iterator[tuple[int, bytes]]:
    """A state in pieces, and where each begins; once they are read it is gone."""
    with open(path, "rb") as file:
        start = 0
        while piece := file.read(ROW):
            yield start, piece
            start += len(piece)
    path.unlink(missing_ok=True)  # it may be in memory, and as large as the model


def _part(asked: dict[str, Any]) -> dict[str, Any]:
    """One configuration's part of an order; nothing that is asked names a path."""
    return {name: asked[name] for name in ("configuration", "seed", "shuffle_seed", "hop") if name in asked}


def scratch_folders() -> tuple[Path, Path]:
    """Folders of this process's own, in memory and on disk; where there is little memory, both are the one on disk.

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
    folders = [base / owner for base in bases]
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700)
    return folders[0], folders[-1]


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
def state_out(db: Database, unit: int, member: int) -> Iterator[tuple[int, bytes]]:
    return mine(db).state_out(unit, member)


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
