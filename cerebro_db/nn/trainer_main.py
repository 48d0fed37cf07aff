"""The trainer process: reads orders from standard input, obeys them one by one, ends at end-of-file.

    python -I …/cerebro_db/nn/trainer_main.py [FOLDER…]

With any FOLDER it is confined (see confine.py), and may write files only in these.
Frames go out on what was standard output; anything that a library prints goes to standard error.
The framework is imported by the ``hello`` order, because which one, and which GPU it may see, has to
be known before.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import sys
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from cerebro_db.core import wire  # noqa: E402
from cerebro_db.nn.confine import confine  # noqa: E402
from cerebro_db.nn.orders import Orders  # noqa: E402

STDIN, STDOUT, STDERR = 0, 1, 2
PR_SET_PDEATHSIG = 1


def die_with_the_parent(how: int = signal.SIGKILL) -> None:
    """No trainer outlives its database session, however that one ends (end-of-file says the same, later)."""
    if sys.platform == "linux":
        import ctypes

        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(how), 0, 0, 0)


def be_the_first_to_go() -> None:
    """When memory runs out the kernel must take a trainer, never a PostgreSQL process."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


def private_stdout() -> int:
    """A descriptor for frames that nothing else in this process knows of."""
    frames = os.dup(STDOUT)
    os.dup2(STDERR, STDOUT)
    return frames


def write_frame(descriptor: int, message: dict[str, Any]) -> None:
    left = memoryview(wire.encode(message))
    while left:
        left = left[os.write(descriptor, left) :]


def session_is_gone() -> bool:
    """Whether nobody can send an order any more; asked between slabs, so that an orphan does not train on."""
    poll = select.poll()
    poll.register(STDIN, select.POLLHUP)  # POLLHUP alone: an order that already waits is not read here
    return any(event & select.POLLHUP and not event & select.POLLIN for _, event in poll.poll(0))


def rest(seconds: float, folders: list[str]) -> None:
    """Wait for another call's order.  If none comes, or the session goes, nobody else tidies up: the files, which may
    be in memory, are removed before this process ends."""
    die_with_the_parent(0)
    poll = select.poll()
    poll.register(STDIN, select.POLLIN)
    if any(event & select.POLLIN for _, event in poll.poll(1000 * seconds)):
        die_with_the_parent()
        return
    paths: list[str] = []
    for folder in folders:
        with contextlib.suppress(OSError):  # one may be gone
            paths += [os.path.join(folder, name) for name in os.listdir(folder)]
    for path in paths:
        with contextlib.suppress(OSError):
            shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)
    os._exit(0)


def main() -> None:
    die_with_the_parent()
    be_the_first_to_go()
    frames = private_stdout()
    confinement = confine(*sys.argv[1:]) if len(sys.argv) > 1 else []  # before any thread, and any framework

    def progress(report: dict[str, Any]) -> None:
        write_frame(frames, {"progress": report})

    def listen() -> None:
        if session_is_gone():
            os._exit(0)

    orders = Orders(progress, listen)
    decoder = wire.Decoder()
    while piece := os.read(STDIN, 1 << 20):
        for order in decoder.feed(piece):
            answer = orders.obey(order)
            if order.get("order") == "hello" and "ok" in answer:
                answer["ok"]["confinement"] = confinement
            write_frame(frames, answer)
            if order.get("order") == "rest" and "ok" in answer:
                rest(order["seconds"], order["folders"])


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt):
        main()
    sys.stderr.flush()
    os._exit(0)  # a framework's own shutdown takes up to a second and has nothing to save
