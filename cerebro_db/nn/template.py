"""A template: it has imported an engine and opened no device; trainers are forks of it.

    python -I -B …/cerebro_db/nn/template.py ENGINE

The nursery (nursery.py) starts it and talks to it through standard input.  It sees no rows, no states and no models,
so a fork knows nothing of another session.  What a fork shares with its template, it shares in memory, too.  One fork
always waits to become the next trainer.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import select
import socket
import sys
import tempfile
import time
import traceback

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from cerebro_db.core.trainers.nursery_messages import Gone, NotStarted, Ready, Started, StartTrainer, receive, send  # noqa: E402

STDIN = 0
ERROR = 1000  # characters of an error
FEW = 2  # processors
LETS_START = 0.1  # seconds in which a trainer that has begun needs few processors more than the next one
MOST_FAILED = 3  # forks in a row that ended before they were wanted


def next_trainer(channel: socket.socket, nursery: int) -> bool:
    """Fork the process that will be the next trainer, and wait until it is one.  False: it ended before that.

    It is forked before it is wanted, since forking takes as long as a tenth of predicting a row.
    """
    wanted, told = os.pipe()
    child = os.fork()
    if child:
        os.close(told)
        if os.waitpid(child, 0)[1] != 0:
            raise Gone("a fork failed")  # the nursery starts trainers in another way when this process ends
        is_one = bool(os.read(wanted, 1))
        os.close(wanted)
        return is_one
    try:
        parent = os.getpid()
        if os.fork():
            os._exit(0)
        os.close(wanted)
        become_a_child_of(nursery, parent)
        become_a_trainer(channel, told)
    except Gone:
        os._exit(0)  # the nursery has ended, or has given up the template
    except Exception:
        traceback.print_exc()
    finally:
        os._exit(1)


def become_a_child_of(nursery: int, parent: int) -> None:
    """Wait until the parent, which is a fork itself, has ended."""
    from cerebro_db.nn import trainer_main

    while os.getppid() == parent:
        time.sleep(0.0005)
    trainer_main.die_with_the_parent()
    if os.getppid() != nursery:
        os._exit(0)
    random.seed()
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()


def become_a_trainer(channel: socket.socket, told: int) -> None:
    """Wait for an order to start a trainer, and be that trainer."""
    from cerebro_db.nn import trainer_main

    order, streams = receive(channel)
    assert isinstance(order, StartTrainer)
    os.setsid()
    home = order.folders[0]
    send(channel, Started(os.getpid(), home=home))
    channel.close()
    with contextlib.suppress(BrokenPipeError):  # the template has ended, and this process is a trainer already
        os.write(told, b"1")
    os.close(told)
    for target, stream in enumerate(streams):
        os.dup2(stream, target)
        os.close(stream)
    os.chdir(home)
    os.environ.update(HOME=home, TMPDIR=home)
    tempfile.tempdir = None
    trainer_main.main(order.confined, order.gpu)


def main(engine: str) -> None:
    channel, nursery = socket.socket(fileno=os.dup(STDIN)), os.getppid()
    from cerebro_db.nn import trainer_main
    from cerebro_db.nn.engines.base import import_engine

    trainer_main.die_with_the_parent()
    trainer_main.be_the_first_to_go()
    gc.disable()  # hardly anything is garbage after importing, but the collector would take a fifth of its time
    try:
        import_engine(engine)
    except Exception as error:
        send(channel, NotStarted(f"{type(error).__name__}: {error}"[:ERROR]))
        return
    import numpy.random  # noqa: F401  (a fork would take 10 ms for it)

    from cerebro_db.nn import confine, trainer  # noqa: F401  (each trainer needs it)

    confine.readable()
    gc.freeze()  # so that the collector of a fork does not write to what it shares
    gc.enable()
    send(channel, Ready())
    failed = 0
    while failed < MOST_FAILED:
        if next_trainer(channel, nursery):
            failed = 0
            if len(os.sched_getaffinity(0)) <= FEW:
                select.select([channel], [], [], LETS_START)  # unless another trainer is wanted already
        else:
            failed += 1


if __name__ == "__main__":
    with contextlib.suppress(Gone):
        main(sys.argv[1])
    sys.stderr.flush()
    os._exit(0)
