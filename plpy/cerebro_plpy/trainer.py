"""The handle on a trainer: the child process in which the framework lives.

A crash, an out-of-memory kill or a hang of the framework is an error of one piece of work; the
database backend that drives it waits in short steps and stays cancellable.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Callable

from cerebro_db.core import wire
from cerebro_db.core.engines import ENGINES
from cerebro_db.core.errors import CannotConnect, CerebroError, TrainerFailed, from_told

from .interrupts import Listen
from .sessions import LISTEN_EVERY, wait_for

# What is freed goes back to the system, at no cost in speed: blocks up to the threshold come from a heap that keeps
# some, larger ones from huge pages.  (Other C libraries ignore it.)
MALLOC = "glibc.malloc.mmap_threshold=33554432:glibc.malloc.trim_threshold=268435456:glibc.malloc.hugetlb=1"
HANG_AFTER = 300  # seconds without a word and without computing, unless a run says otherwise
LIFE = 0.01  # of a processor: a process that is stuck may still have a thread that ticks
INSTALLATION = Path(__file__).resolve().parents[1]  # where `make install` put cerebro_plpy and cerebro_db


def installation() -> dict[str, Any]:
    """What `make install` wrote down; a file of the administrator's, not a setting of a user's."""
    try:
        return json.loads((INSTALLATION / "install.json").read_text())
    except (OSError, ValueError) as error:
        raise CannotConnect(
            "cerebro_db is not installed completely: install.json cannot be read",
            detail=str(error),
            hint="Run make install again.",
        ) from error


def engines() -> list[str]:
    """Those whose package is in the trainer's environment; asked without importing any."""
    names = list(ENGINES.values())
    script = f"from importlib.util import find_spec; print(*[name for name in {names} if find_spec(name)])"
    command = [installation()["trainer_python"], "-I", "-B", "-c", script]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.split()
    except (OSError, subprocess.SubprocessError) as error:
        raise TrainerFailed(
            f"the trainer's Python cannot be started: {command[0]}",
            detail=str(error),
            hint="SELECT * FROM cerebro.doctor() says what is missing; make install TRAINER_PYTHON=… sets it.",
        ) from error
    return [engine for engine, package in ENGINES.items() if package in found]


def cpu_seconds(pid: int) -> float:
    """What all threads of a process have computed so far."""
    with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/stat") as file:
        user, system = file.read().rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
    return 0.0


class Trainer:
    """One running trainer process."""

    def __init__(
        self, folders: Sequence[Path], options: dict[str, Any], listen: Listen, compiled: Path | None = None
    ) -> None:
        folder = folders[0]
        self.options = options
        self._hang_after = float(options.get("hang_after", HANG_AFTER))
        self.log = folder / f"trainer-{options['engine']}.log"
        installed = installation()
        command = [installed["trainer_python"], "-I", "-B", str(INSTALLATION / "cerebro_db" / "nn" / "trainer_main.py")]
        if installed.get("confine", True):  # an administrator can do without, should a driver need more
            command += [str(own) for own in (*folders, compiled) if own is not None]
        environment = {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "HOME": str(folder),
            "LANG": "C.UTF-8",
            "TMPDIR": str(folder),
            "GLIBC_TUNABLES": MALLOC,
        }
        for name in ("LD_LIBRARY_PATH", "CUDA_HOME", "XLA_FLAGS"):  # where the GPU's libraries are
            if name in os.environ:
                environment[name] = os.environ[name]
        try:
            with open(self.log, "wb") as log:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    cwd=folder,
                    env=environment,
                    close_fds=True,
                    start_new_session=True,
                )
        except OSError as error:
            raise TrainerFailed(
                f"the trainer's Python cannot be started: {command[0]}",
                detail=str(error),
                hint="SELECT * FROM cerebro.doctor() says what is missing; make install TRAINER_PYTHON=… sets it.",
            ) from error
        assert self._process.stdin is not None and self._process.stdout is not None
        self._orders, self._answers = self._process.stdin, self._process.stdout
        self._decoder = wire.Decoder()
        self._busy = False  # at an order
        os.set_blocking(self._orders.fileno(), False)
        # The framework takes seconds to import; whoever orders first waits for what is left of them.
        self._hello: dict[str, Any] | None = None
        greeting = {"order": "hello", **options, "compiled": None if compiled is None else str(compiled)}
        self._send(wire.encode(greeting), listen)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def order(
        self,
        message: dict[str, Any],
        listen: Listen,
        on_progress: Callable[[dict[str, Any]], None] | None = None,
    ) -> dict[str, Any]:
        """Send an order and wait for its closing frame, listening all the while."""
        self.begin(message, listen)
        answer = self.result(None, listen, on_progress)
        assert answer is not None
        return answer

    def begin(self, message: dict[str, Any], listen: Listen) -> None:
        """Send an order."""
        self.hello(listen)
        if self._busy:  # the next answer would be the last order's
            self.kill()
            raise TrainerFailed("the trainer was given an order while it was at another, and was ended")
        self._busy = True
        with self._killed_unless_answered():
            self._send(wire.encode(message), listen)

    def result(
        self, seconds: float | None, listen: Listen, on_progress: Callable[[dict[str, Any]], None] | None = None
    ) -> dict[str, Any] | None:
        """The closing frame of what was begun; None if it has not come after so many seconds."""
        with self._killed_unless_answered():
            answer = self._answer(listen, on_progress, seconds)
        self._busy = answer is None
        return answer

    def hello(self, listen: Listen) -> dict[str, Any]:
        """What the trainer said of itself when it was ready."""
        if self._hello is None:
            with self._killed_unless_answered():
                self._hello = self._answer(listen)
        assert self._hello is not None
        return self._hello

    def _require_life(self) -> None:
        """End a trainer that says nothing and computes nothing; one that computes may take as long as it likes."""
        now = time.monotonic()
        if not self._hang_after or now - self._alive_at < self._hang_after:
            return
        used = cpu_seconds(self.pid)
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
        self._cpu_then = cpu_seconds(self.pid) if cpu is None else cpu

    def _answer(
        self,
        listen: Listen,
        on_progress: Callable[[dict[str, Any]], None] | None = None,
        seconds: float | None = None,
    ) -> dict[str, Any] | None:
        until = math.inf if seconds is None else time.monotonic() + seconds
        while True:
            for reply in self._receive(listen):
                if "progress" in reply:
                    if on_progress is not None:
                        on_progress(reply["progress"])
                elif "ok" in reply:
                    return reply["ok"]
                else:
                    self._busy = False
                    raise from_told(reply.get("error") or {})
            if time.monotonic() >= until:
                return None

    @contextlib.contextmanager
    def _killed_unless_answered(self) -> Iterator[None]:
        try:
            yield
        except CerebroError:
            raise
        except BaseException:
            # Cancelled, or out of step: whatever it computes now is nobody's.
            self.kill()
            raise

    def kill(self) -> None:
        if self._process.returncode is None:  # else its number may be another's by now
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._orders, self._answers):
            with contextlib.suppress(OSError):
                pipe.close()

    def _send(self, frame: bytes, listen: Listen) -> None:
        pipe = self._orders.fileno()
        rest = memoryview(frame)
        self._saw_life()
        while rest:
            if not wait_for([pipe], select.POLLOUT, LISTEN_EVERY):
                listen()
                self._require_life()
                continue
            try:
                rest = rest[os.write(pipe, rest) :]
            except (BrokenPipeError, OSError) as error:
                raise self._died() from error

    def _receive(self, listen: Listen) -> list:
        pipe = self._answers.fileno()
        readable = wait_for([pipe], select.POLLIN, LISTEN_EVERY)
        listen()
        if not readable:
            self._require_life()
            return []
        self._saw_life()
        piece = os.read(pipe, 1 << 20)
        if not piece:
            raise self._died()
        try:
            return self._decoder.feed(piece)
        except wire.BrokenFrame as error:
            self.kill()
            raise TrainerFailed(f"the trainer sent what cannot be understood: {error}") from error

    def _died(self) -> TrainerFailed:
        try:
            status = self._process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            self.kill()
            return TrainerFailed("the trainer closed its pipe and was ended", detail=self._last_words())
        if status == -signal.SIGKILL:
            return TrainerFailed(
                "the trainer was killed, most likely because memory ran out",
                detail=self._last_words(),
                hint="Train fewer segments at once, smaller batches or smaller models.",
            )
        how = f"of signal {-status} ({signal.Signals(-status).name})" if status < 0 else f"with exit status {status}"
        return TrainerFailed(f"the trainer died {how}", detail=self._last_words())

    def _last_words(self) -> str | None:
        with contextlib.suppress(OSError):
            with open(self.log, "rb") as log:
                log.seek(max(0, os.path.getsize(self.log) - 2000))
                lines = log.read().decode("utf-8", "replace").strip().splitlines()
            return "\n".join(lines[-6:]) or None
        return None
