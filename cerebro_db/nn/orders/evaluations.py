"""Evaluations: the loss and the metrics of a model over rows, also with values that were exchanged among the rows."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable

import numpy as np

from cerebro_db.core.models import metrics
from cerebro_db.core.protocol import EvaluatedModel, Json, MetricStates, ModelState
from cerebro_db.nn import metric_states
from cerebro_db.nn.clocks import Clock
from cerebro_db.nn.fit_parameters import Fit
from cerebro_db.nn.programs import Programs, ReadyProgram
from cerebro_db.nn.rows.data import Dataset, most_batches, sampled, slabs
from cerebro_db.nn.rows.exchange import exchanged

EVALUATION_BATCH = 256

Listen = Callable[[], None]


def evaluate(
    programs: Programs, model: ModelState, configuration: Json, dataset: Dataset, listen: Listen
) -> EvaluatedModel:
    """The result of a model: with the rows as they are, and with each of its exchanges."""
    clock = Clock()
    programs.features_lap()
    chosen = whole = dataset.rows_of(model.fold, False, model.span)
    if model.sampled is not None and model.sampled < _rows(dataset, whole):
        places = sampled(_rows(dataset, whole), model.sampled)
        chosen = places if whole is None else whole[places]
    # Inputs are exchanged before the frozen layers.
    ready = programs.ready(configuration, dataset.layout, rows=None if model.exchanges else dataset)
    batch_size = _prepared(programs, ready, configuration, dataset, chosen)
    clock.lap("build")
    programs.load_to_read(ready, configuration, model.state)
    clock.lap("load")
    with programs.configuration_errors(), programs.reading(ready):
        of_steps = programs.rows_of_steps(ready, dataset, listen, partly=chosen is not whole)
        counted = _counted(programs, ready, [of_steps], batch_size, listen, chosen)
        values = ready.program.metric_values(counted)
        most = batch_size * most_batches(dataset, batch_size)
        others = [
            metric_states.merged(
                [
                    _counted(programs, ready, exchanged(dataset, exchange, repeat, most), batch_size, listen)
                    for repeat in range(exchange.repeats)
                ]
            )
            for exchange in model.exchanges
        ]
    clock.lap("evaluate", programs.features_lap())
    rows = _rows(dataset, whole)
    return EvaluatedModel(rows, metrics.loss(counted.means), values, counted, clock.laps, exchanged=others)


def evaluate_loaded(
    programs: Programs,
    ready: ReadyProgram,
    configuration: Json,
    dataset: Dataset,
    chosen: np.ndarray | None,
    listen: Listen,
) -> EvaluatedModel:
    """The result of a model whose state is in the variables of its program, and stays there."""
    clock = Clock()
    programs.features_lap()
    batch_size = _prepared(programs, ready, configuration, dataset, chosen)
    with programs.configuration_errors(), programs.reading(ready):
        counted = _counted(
            programs, ready, [programs.rows_of_steps(ready, dataset, listen)], batch_size, listen, chosen
        )
        values = ready.program.metric_values(counted)
    clock.lap("evaluate", programs.features_lap())
    return EvaluatedModel(_rows(dataset, chosen), metrics.loss(counted.means), values, counted, clock.laps)


def count(
    programs: Programs,
    ready: ReadyProgram,
    configuration: Json,
    dataset: Dataset,
    places: np.ndarray,
    listen: Listen,
) -> None:
    """Have the metrics count the rows at these places, with the state in the variables."""
    batch_size = _prepared(programs, ready, configuration, dataset, places)
    with programs.configuration_errors():
        _counted(programs, ready, [dataset], batch_size, listen, places)


def _prepared(
    programs: Programs, ready: ReadyProgram, configuration: Json, dataset: Dataset, chosen: np.ndarray | None
) -> int:
    """Compile what the evaluation of these rows needs; returns the size of its batches."""
    batch_size = max(EVALUATION_BATCH, Fit.of(configuration).batch_size)
    ready.program.require_values(dataset)
    with programs.configuration_errors():
        if not ready.uses_features:  # else the state has to be in the variables first
            ready.program.prepare("evaluate", dataset, batch_size, _rows(dataset, chosen))
    return batch_size


def _rows(dataset: Dataset, chosen: np.ndarray | None) -> int:
    return dataset.rows if chosen is None else len(chosen)


def _counted(
    programs: Programs,
    ready: ReadyProgram,
    parts: Iterable[Dataset],
    batch_size: int,
    listen: Listen,
    chosen: np.ndarray | None = None,
) -> MetricStates:
    """What the metrics count over the parts.  ``chosen``: the places of the rows; None: all rows."""
    program, speed = ready.program, ready.speed["evaluate", 1]
    program.start_metrics()
    for part in parts:
        rows = _rows(part, chosen)
        if not ready.uses_features or part.features:
            program.prepare("evaluate", part, batch_size, rows)  # a part may have fewer rows than those before it
        for slab in slabs(part, rows, batch_size, speed, chosen):
            started = time.monotonic()
            program.evaluate(programs.stepped(ready, slab, listen), batch_size)
            speed.measured(math.ceil(slab.rows / batch_size), time.monotonic() - started)
            listen()
    return program.metric_states()
