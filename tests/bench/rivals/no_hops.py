"""The work without hops: our own trainers without a database, each with configurations of its own and all rows.

A configuration trains all its epochs in one order, so its state never leaves the trainer.  Measured are the CPU seconds
of the trainers and the wall time, from when everything is built and compiled.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

from tests.bench.hops import FEW
from tests.bench.meter import cpu
from tests.bench.rivals.common import Task, task
from tests.bench.rivals.modes import Workers, definition
from tests.nn.trainer_client import Trainer


def main(given: Task) -> None:
    workers = Workers(given, "tensorflow", lambda rows, _: rows)

    def train(epochs: int) -> None:
        def work(mine: tuple[int, Trainer]) -> None:
            number, trainer = mine
            for configuration in given.configurations[number :: given.processes]:
                trainer.train(definition(given, configuration, epochs), "training", seed=1, shuffle_seed=1)

        with ThreadPoolExecutor(given.processes) as pool:
            list(pool.map(work, enumerate(workers.trainers)))

    def now() -> tuple[float, float]:
        return time.monotonic(), sum(cpu(trainer.process.pid) for trainer in workers.trainers)

    train(FEW)  # builds and compiles
    times = [now()]
    for epochs in (FEW, given.epochs):
        train(epochs)
        times.append(now())
    (_, few, many) = times
    spent = [(few[kind] - times[0][kind], many[kind] - few[kind]) for kind in (0, 1)]
    workers.close()
    given.done(workers.ready, [], wall=spent[0][1] - spent[0][0], cpu=spent[1][1] - spent[1][0])


if __name__ == "__main__":
    main(task())
