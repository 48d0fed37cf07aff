"""Trials: how fast an engine builds, compiles and trains a configuration, and whether fusing configurations pays."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from cerebro_db.core.architecture import trees
from cerebro_db.core.protocol import FusionRehearsed, Member, MemberVisit, StateRef
from cerebro_db.nn.clocks import Effort
from cerebro_db.nn.fit_parameters import Fit
from cerebro_db.nn.orders import training
from cerebro_db.nn.programs import Programs, ReadyProgram
from cerebro_db.nn.rows.data import Dataset, Slab, most_batches, row_order, slabs

TRIAL_SECONDS = 0.3
FEW_BATCHES = 16  # whose features a trial computes
REHEARSED_BATCHES, REHEARSALS = 32, 5

Json = dict[str, Any]
Listen = Callable[[], None]


def try_engine(
    programs: Programs, configuration: Json, dataset: Dataset, gpu: bool, listen: Listen
) -> tuple[ReadyProgram, float, float, float]:
    """The program, and the seconds to build it, to compile it for its batch size, and to train a batch."""
    effort, batch_size = Effort(gpu), Fit.of(configuration).batch_size
    if dataset.from_disk:  # as many rows as training has in memory at once
        dataset = dataset.part(0, batch_size * most_batches(dataset, batch_size))
    ready = programs.ready(configuration, dataset.layout, rows=dataset)
    build = effort.seconds()
    if trees.are_grown(configuration["architecture"]):  # all engines grow them alike
        return ready, build, 0.0, 0.0
    if ready.uses_features:
        ready.forget_state()
        with programs.configuration_errors():
            ready.program.initialise(configuration, 0)
        dataset = programs.rows_of_steps(ready, dataset.part(0, batch_size * FEW_BATCHES), listen)
    with programs.configuration_errors():
        ready.program.prepare("train", dataset, batch_size, min(dataset.rows, batch_size))
        compiling = effort.seconds()
        if ready.batch_seconds is None:
            ready.forget_state()
            ready.program.initialise(configuration, 0)
            ready.program.start_metrics()
            ready.batch_seconds = _seconds_per_batch(ready, dataset, batch_size, gpu, listen)
    return ready, build, compiling, ready.batch_seconds


def _seconds_per_batch(ready: ReadyProgram, dataset: Dataset, batch_size: int, gpu: bool, listen: Listen) -> float:
    """Without the first slab: a framework does more in its first slab than train."""
    rows, order = dataset.rows // batch_size * batch_size, row_order(dataset.rows, 0, 0)
    effort, spent, done, warm = Effort(gpu), 0.0, 0, False
    while rows:
        for slab in slabs(dataset, rows, batch_size, ready.speed["train", 1], order):
            effort.seconds()
            started, batches = time.monotonic(), slab.rows // batch_size
            ready.program.train(slab, batch_size)
            if gpu:
                ready.program.running_loss()  # waits until the device has finished
            ready.speed["train", 1].measured(batches, time.monotonic() - started)
            if warm:
                spent, done = spent + effort.seconds(), done + batches
            listen()
            if spent > TRIAL_SECONDS:
                return spent / done
            warm = True
    return 0.0  # fewer rows than a batch: training costs nothing beside building


def rehearse_fusion(
    programs: Programs, configurations: list[Json], dataset: Dataset, listen: Listen
) -> FusionRehearsed:
    """Seconds per batch and configuration, of the first configuration alone and of all when they are fused."""
    fit = Fit.of(configurations[0])
    rows, seconds = fit.rows_of(dataset.rows), []
    batches = min(REHEARSED_BATCHES, rows // fit.batch_size, most_batches(dataset, fit.batch_size)) or 1
    for cast in (configurations[:1], configurations):
        ready = programs.ready_to_train(cast, dataset)
        order = training.row_orders(dataset.rows, [0] * len(cast), 0, True)
        slab = Slab(dataset, order, 0, min(rows, batches * fit.batch_size))
        members = [Member(place, 0, [MemberVisit(0)], StateRef.seed()) for place in range(len(cast))]
        stacked = training.load_members(programs, ready, members, cast)
        best = math.inf
        for _ in range(REHEARSALS):
            started = time.monotonic()
            with programs.configuration_errors():
                stacked = training.advance(ready.program, stacked, slab, fit.batch_size)
            best = min(best, time.monotonic() - started)
            listen()
        seconds.append(best / batches / len(cast))
        if dataset.from_disk or (ready.program.fusion and seconds[0] > ready.program.fusion.pays_below):
            break  # compiling for several members would take longer than knowing better is worth
    return FusionRehearsed(alone=seconds[0], fused=seconds[-1])
