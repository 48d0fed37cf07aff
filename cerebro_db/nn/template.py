"""A template: it has imported an engine and opened no device; trainers are forks of it.

    python -I -B …/cerebro_db/nn/template.py ENGINE

The nursery (nursery.py) starts it and talks to it through standard input.  It sees no rows, no states and no models,
so a fork knows nothing of another session.  What a fork shares with its template, it shares in memory, too.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import socket
import sys
import tempfile
import time
import traceback

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from cerebro_db.core.nursery import Gone, NotStarted, Ready, Started, StartTrainer, receive, send  # noqa: E402

STDIN = 0
ERROR = 1000  # characters of an error


def become_a_trainer(order: StartTrainer, streams: list[int], parent: int, nursery: int) -> None:
    """The process is a fork of a fork: when its parent ends, it is a child of the nursery."""
    from cerebro_db.nn import trainer_main

    os.setsid()
    for target, stream in enumerate(streams):
        os.dup2(stream, target)
        os.close(stream)
    while os.getppid() == parent:
        time.sleep(0.0005)
    trainer_main.die_with_the_parent()
    if os.getppid() != nursery:
        os._exit(0)
    home = order.folders[0]
    os.chdir(home)
    os.environ.update(HOME=home, TMPDIR=home)
    tempfile.tempdir = None
    random.seed()
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()
    trainer_main.main(order.confined)


def forked(channel: socket.socket, order: StartTrainer, streams: list[int], nursery: int) -> None:
    child = os.fork()
    if child:
        if os.waitpid(child, 0)[1] != 0:
            raise Gone("a fork failed")  # the nursery starts the trainer in another way when this process ends
        return
    try:
        parent = os.getpid()
        trainer = os.fork()
        if trainer:
            send(channel, Started(trainer))
            os._exit(0)
        channel.close()
        become_a_trainer(order, streams, parent, nursery)
    except Exception:
        traceback.print_exc()
    finally:
        os._exit(1)


def main(engine: str) -> None:
    channel, nursery = socket.socket(fileno=os.dup(STDIN)), os.getppid()
    from cerebro_db.nn import trainer_main
    from cerebro_db.nn.engines.base import import_engine

    trainer_main.die_with_the_parent()
    trainer_main.be_the_first_to_go()
    try:
        import_engine(engine)
    except Exception as error:
        send(channel, NotStarted(f"{type(error).__name__}: {error}"[:ERROR]))
        return
    from cerebro_db.nn import trainer  # noqa: F401  (each trainer needs it)

    gc.collect()
    gc.freeze()  # so that the collector of a fork does not write to what it shares
    send(channel, Ready())
    while True:
        order, streams = receive(channel)
        assert isinstance(order, StartTrainer)
        forked(channel, order, streams, nursery)
        for stream in streams:
            os.close(stream)


if __name__ == "__main__":
    with contextlib.suppress(Gone):
        main(sys.argv[1])
    sys.stderr.flush()
    os._exit(0)
