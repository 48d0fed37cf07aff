"""The memory of a server's processes during a run, and models of a given size."""

from __future__ import annotations

import abc
import contextlib
import math
import threading
import time
from typing import Any, TypeVar

from tests.sql.lab import CROSS, Json, Lab, layer, sequential, trainer_processes

S = TypeVar("S", bound="Sampler")
ADAM, SGD = 12, 4  # bytes of state per parameter
SEGMENTS = "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'cerebro_db segment %'"
# There the processes of segments have the trainers, and no application name.
ON_GREENPLUM = "SELECT pid FROM gp_dist_random('pg_stat_activity') WHERE usename LIKE 'cerebro_w_%'"


def model_of(state_bytes: int, per_parameter: int = ADAM, depth: int = 4) -> Json:
    """A model for the flowers table (four features, three classes) whose hidden layers give the state its size."""
    units = math.ceil(math.sqrt(state_bytes / per_parameter / depth))
    hidden = [layer("Dense", f"hidden{n}", units=units, activation="relu") for n in range(depth + 1)]
    return sequential([4], *hidden, layer("Dense", "out", units=3, activation="softmax"))


def compiled(optimizer: str, rate: float = 0.001) -> str:
    return f"optimizer='{optimizer}(learning_rate={rate})', {CROSS}"


def status(pid: int, what: str) -> int:
    """A memory figure of /proc/<pid>/status in bytes, or 0 if the process has ended."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/status") as file:
        for line in file:
            if line.startswith(what + ":"):
                return int(line.split()[1]) << 10
    return 0


class Sampler(abc.ABC):
    """While the body of the ``with`` statement runs, a thread looks with a session of its own."""

    def __init__(self, lab: Lab, every: float) -> None:
        self.lab, self.every = lab, every
        self._stop = threading.Event()

    def __enter__(self: S) -> S:
        self._connection = self.lab.connect()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._stop.set()
        self._thread.join()
        self._connection.close()

    @abc.abstractmethod
    def _look(self) -> None:
        """Until ``_stop`` is set."""


class Watch(Sampler):
    """Samples the memory of a server's sessions and trainers while the body of the ``with`` statement runs."""

    def __init__(self, lab: Lab, every: float = 0.1) -> None:
        super().__init__(lab, every)
        self.backend = self.trainer = 0  # the largest peak of one backend and of one trainer, in bytes
        self.samples: list[dict[str, Any]] = []
        self.question: Any = None  # called with the watch's own cursor for each sample
        self._segments = ON_GREENPLUM if lab.greenplum else SEGMENTS

    def _look(self) -> None:
        with self._connection.cursor() as cursor:
            while not self._stop.is_set():
                cursor.execute(self._segments)
                backends = [pid for (pid,) in cursor.fetchall()]
                # A query through the lab would wait: the lab's session is running the statement that is watched.
                found = trainer_processes(self.lab.home) if self.lab.home else []
                trainers = [pid for pid, parent in found if parent in backends]
                self.backend = max([self.backend, *(status(pid, "VmHWM") for pid in backends)])
                self.trainer = max([self.trainer, *(status(pid, "VmHWM") for pid in trainers)])
                if self.question is not None:
                    self.samples.append(
                        {
                            "answer": self.question(cursor),
                            "backends": [status(pid, "RssAnon") for pid in backends],
                        }
                    )
                time.sleep(self.every)


class Peaks(Sampler):
    """The largest proportional memory (PSS) of each sort of process of a server, phase by phase.

    Shared buffers count with the part that falls to a process.  ``begin`` ends a phase and begins the next one.
    """

    def __init__(self, lab: Lab, every: float = 0.05) -> None:
        super().__init__(lab, every)
        self.phase = ""
        self.phases: list[tuple[str, float]] = []  # with the times when they began
        self.mine = lab.db.info.backend_pid
        self.found: dict[tuple[str, str], int] = {}  # (phase, sort) -> bytes

    def begin(self, phase: str) -> None:
        self.phase = phase
        self.phases.append((phase, time.monotonic()))

    def of(self, sort: str) -> int:
        """The largest of all phases."""
        return max((size for (_, its), size in self.found.items() if its == sort), default=0)

    def _look(self) -> None:
        query = "SELECT pid, application_name FROM pg_stat_activity WHERE backend_type = 'client backend'"
        with self._connection.cursor() as cursor:
            while not self._stop.is_set():
                cursor.execute(query)
                processes = {pid: "worker" if "segment" in name else "" for pid, name in cursor.fetchall()}
                sorts = {pid: sort for pid, sort in processes.items() if sort} | {self.mine: "caller"}
                trainers = trainer_processes(self.lab.home) if self.lab.home else []
                sorts |= {pid: "trainer" for pid, session in trainers if session in processes}
                for pid, sort in sorts.items():
                    key = (self.phase, sort)
                    self.found[key] = max(self.found.get(key, 0), proportional(pid))
                time.sleep(self.every)


def proportional(pid: int) -> int:
    """The proportional memory of a process in bytes, or 0 if the process has ended."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/smaps_rollup") as file:
        for line in file:
            if line.startswith("Pss:"):
                return int(line.split()[1]) << 10
    return 0
