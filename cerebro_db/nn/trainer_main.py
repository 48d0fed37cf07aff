"""The trainer process: reads orders from standard input, obeys them one by one, and ends at end-of-file.

    python -I …/cerebro_db/nn/trainer_main.py [[--gpu] CLOSED FOLDER…]

Usually it is a fork of a template instead (template.py), which has imported the framework already.  With arguments the
process is confined (see confine.py): it may write files only in the FOLDERs, and looks whether the folder CLOSED is
closed to it; --gpu allows what a GPU's driver needs.  Replies go out on what was standard output; anything that a
library prints goes to standard error.  The order that starts the engine says which processors and which GPU the
framework may use, so no device is open before it.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import sys
from collections.abc import Sequence
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from cerebro_db.core import protocol  # noqa: E402
from cerebro_db.core.errors import CerebroError  # noqa: E402
from cerebro_db.core.trainers import frames
from cerebro_db.nn.confine import confine  # noqa: E402

STDIN, STDOUT, STDERR = 0, 1, 2
PR_SET_PDEATHSIG = 1


def die_with_the_parent() -> None:
    """Have the kernel end this process with the nursery, which ends it with its database session."""
    if sys.platform == "linux":
        import ctypes

        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def be_the_first_to_go() -> None:
    """Have the kernel kill a trainer, and never a PostgreSQL process, when memory runs out."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


def private_stdout() -> int:
    """A descriptor for replies that no library of this process knows; standard output becomes standard error."""
    answers = os.dup(STDOUT)
    os.dup2(STDERR, STDOUT)
    return answers


def write_frame(descriptor: int, message: dict[str, Any]) -> None:
    left = memoryview(frames.encode(message))
    while left:
        left = left[os.write(descriptor, left) :]


def session_is_gone() -> bool:
    """Whether the session has closed the pipe.  Checked between slabs, so that an orphan does not train on."""
    poll = select.poll()
    poll.register(STDIN, select.POLLHUP)  # POLLHUP alone: this must not read an order that has arrived
    return any(event & select.POLLHUP and not event & select.POLLIN for _, event in poll.poll(0))


def rest(seconds: float, folders: Sequence[str]) -> None:
    """Wait for the order of another call.

    If no order comes, or the session ends, this process removes the files, which may be in memory, and ends: no other
    process would remove them.
    """
    poll = select.poll()
    poll.register(STDIN, select.POLLIN)
    if any(event & select.POLLIN for _, event in poll.poll(1000 * seconds)):
        return
    paths: list[str] = []
    for folder in folders:
        with contextlib.suppress(OSError):  # the folder may be gone
            paths += [os.path.join(folder, name) for name in os.listdir(folder)]
    for path in paths:
        with contextlib.suppress(OSError):
            shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)
    os._exit(0)


def run(confined: Sequence[str], gpu: bool) -> None:
    """Obey orders until end-of-file.  ``confined``: the folders among the arguments of the program."""
    answers = private_stdout()
    confinement = confine(*confined[1:], closed=confined[0], gpu=gpu) if confined else []
    from cerebro_db.nn.trainer import Trainer  # only now: numpy starts threads when it is imported

    def report(progress: protocol.Progress) -> None:
        write_frame(answers, protocol.progress_frame(progress))

    def listen() -> None:
        if session_is_gone():
            os._exit(0)

    trainer = Trainer(report, listen, confinement, confined[1:])
    decoder = frames.Decoder()
    while piece := os.read(STDIN, 1 << 20):
        for document in decoder.feed(piece):
            try:
                order = protocol.decode(document)
            except CerebroError as error:
                write_frame(answers, protocol.reply(protocol.Failure.of(error)))
                continue
            answer = trainer.obey(order)
            write_frame(answers, protocol.reply(answer))
            if isinstance(answer, protocol.EngineStarted):
                trainer.warm_up()
            if isinstance(answer, protocol.Failure):
                continue
            if isinstance(order, protocol.Rest):
                rest(order.seconds, order.folders or [])
            elif isinstance(order, (protocol.Predict, protocol.PredictMore)) and order.rest is not None:
                rest(order.rest, order.folders or [])


def main(confined: Sequence[str], gpu: bool) -> None:
    """Run, and end without a framework's own shutdown: it takes up to a second and has nothing to save."""
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt):
        run(confined, gpu)
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    die_with_the_parent()
    be_the_first_to_go()
    gpu = sys.argv[1:2] == ["--gpu"]
    main(sys.argv[2 if gpu else 1 :], gpu)
