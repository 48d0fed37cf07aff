"""A new run on record: from here on it can be resumed, whatever becomes of its caller."""

from __future__ import annotations

import json
from typing import Any

from cerebro_db import __version__
from cerebro_db.core.documents import shown
from cerebro_db.core.errors import InvalidArgument, WrongState
from cerebro_db.core.events import Event
from cerebro_db.core.names import token
from cerebro_db.core.packing.layout import Layout
from cerebro_db.core.scheduling.ring import derived_seed
from cerebro_db.core.search.decision import AddedWeights
from cerebro_db.core.sql import sql
from cerebro_db.core.texts import counted

from ... import platform
from ...database import listening
from ...database.access import Database
from ...definitions import added
from ...packing import visibility
from ...sessions.session import BEGIN, COMMIT, Session
from ..record import state_tables
from ..record.groups import rows_on_record, visits_of
from ..record.log import RunLog
from ..record.run import averaging_visits, groups_with_models, home_of, variants
from ..request import output
from ..request.request import FitConfiguration, RunRequest
from . import initial_states
from .initial_states import RANDOM

LONGEST = {"name": 10_000, "run_name": 10_000, "description": 100_000}  # bytes


def put_on_record(db: Database, recorder: Session, request: RunRequest, *, submitted: bool = False) -> int:
    """Write down what is to be done; returns the run's number.  ``submitted``: another session will begin the run."""
    output.take(db, request.asked.output)
    if not recorder.own:
        visibility.require_committed(db, recorder, filter(None, (request.asked.source, request.asked.validation)))
        for given in request.options.space.weights.values() if request.options.space is not None else ():
            _require_committed(recorder, given)
    for argument, text in (("name", request.asked.name), ("description", request.asked.description)):
        require_short(argument, text)
    layout, seed = request.asked.source.layout, request.options.seed
    segments = len(layout.partitions)
    rows = request.asked.source.dataset
    validation = request.asked.validation.dataset if request.asked.validation is not None else None
    jointly = request.options.adds_gradients
    # The first model of a configuration trains on all rows.  Models of groups that wait for it are added by a decision.
    parts = [] if request.options.groups_wait else variants(rows, request.options.least_group_rows)

    def models_of(place: int, one: FitConfiguration) -> list[dict[str, Any]]:
        home = home_of(request.configurations.architectures[one.model_id].translated, place)
        averages = request.options.averaging and home is None
        visits = averaging_visits(segments) if averages else visits_of(rows, None, jointly, home)
        everywhere = {"visits": None if visits is None else list(visits)}
        return [
            everywhere,
            *({**everywhere, **rows_on_record(rows, validation, part, jointly, home)} for part in parts),
        ]

    groups = [one.group_number for one in parts if one.group_number is not None and one.fold is None]
    starts = initial_states.of_request(db, request, groups)
    storage = f"run_{token()}"
    recorder.run_statement(BEGIN)  # with the initial states: a run on record can be resumed
    log = RunLog.create(
        recorder,
        {
            "name": request.asked.name,
            "description": request.asked.description,
            "source_table": _trained_on(request),
            "packed_table": str(request.asked.source.relation.name),
            "validation_table": str(request.asked.validation.relation.name) if request.asked.validation else None,
            "model_table": str(request.asked.output),
            "selection_table": request.configurations.selection,
            "arch_table": request.configurations.arch_table,
            "epochs": request.asked.epochs,
            "evaluate_every": request.evaluate_every,
            "seed": seed,
            "segments": segments,
            "dist_keys": [partition.key for partition in layout.partitions],
            "configurations": len(request.configurations.listed),
            "rows_per_epoch": rows_of(layout),
            "storage": storage,
            "options": request.options.to_json(),
            "layout": layout.to_json(),
            "validation_layout": request.asked.validation.layout.to_json() if request.asked.validation else None,
            "validation_rows": rows_of(request.asked.validation.layout) if request.asked.validation else None,
            "packed_summary": request.asked.source.summary.to_json(),
            "version": __version__,
        },
        [
            # An architecture with parameters is only given, and not trained as it is.
            {"model_id": model_id, "name": one.name, "given": one.given, "architecture": json.dumps(one.translated)}
            for model_id, one in request.configurations.architectures.items()
        ],
        [
            {
                "configuration": one.key,
                "place": place,
                "model_id": one.model_id,
                "compile_params": one.compile_params,
                "fit_params": one.fit_params or "",
                "compile": one.compile,
                "fit": one.fit,
                "parameters": one.parameters,
            }
            for place, one in enumerate(request.configurations.listed)
        ],
        [
            {
                "model": place * (1 + len(parts)) + number + 1,
                "configuration": one.key,
                "seed": derived_seed(seed, "configuration", place),  # of the random weights of all its models
                "initial": start.initial.value,
                "initial_sha256": start.sha256,
                **model,
            }
            for place, one in enumerate(request.configurations.listed)
            for number, model in enumerate(models_of(place, one))
            for start in [starts.get((one.key, model.get("group_number")), RANDOM)]
        ],
    )
    here = platform.of(db)
    recorder.run(state_tables.create_shared_sql(here, storage))
    initial_states.store(recorder, log, starts, here)
    if submitted:  # together with the run: a cancel that is accepted is always newer
        log.events.note(Event.SUBMITTED)
    listen, recorder.listen = recorder.listen, lambda: None  # a cancel of a run on record is recorded by the caller
    with listening.paused():
        recorder.run_statement(COMMIT)
        recorder.listen = listen
    trains = f": {size(request)} over {counted(layout.rows, 'row')} of {request.asked.source.relation.text}"
    db.told(
        f"run {log.run}{trains if db.verbose else ' begins'};"
        f" follow it from elsewhere: SELECT * FROM cerebro.run_progress WHERE run = {log.run};"
    )
    return log.run


def _trained_on(request: RunRequest) -> str:
    """The source of the packed rows, for people: whoever packed them has written this name."""
    source = request.asked.source
    stored = source.summary.source_table
    return str(source.relation.name) if stored is None else stored.for_people


def require_short(argument: str, text: str | None) -> None:
    """The log takes no longer texts."""
    size = len((text or "").encode("utf-8", "replace"))
    if size > LONGEST[argument]:
        raise InvalidArgument(
            f"{argument} has {size:,} bytes; the limit is {LONGEST[argument]:,}.",
            hint="Store long texts in a table of your own.",
        )


def rows_of(layout: Layout) -> int:
    return sum(partition.rows for partition in layout.partitions)


def size(request: RunRequest) -> str:
    segments = counted(len(request.asked.source.layout.partitions), "segment")
    epochs = counted(request.asked.epochs, "epoch")
    rows, least = request.asked.source.dataset, request.options.least_group_rows
    folded = ""
    if rows.folds or rows.has_groups:
        groups = counted(len(groups_with_models(rows, least)), "group")
        parts = groups if rows.has_groups else f"{rows.folds} folds"
        within = f", each with {rows.folds} folds" if rows.folds and rows.has_groups else ""
        folded = f" x {counted(len(variants(rows, least)) + 1, 'model')} ({parts} and all rows{within})"
    space = request.options.space
    if space is None:
        return f"{counted(len(request.configurations.listed), 'configuration')} x {segments} x {epochs}{folded}"
    # The configurations of a search come while it goes on.
    most = space.configurations
    tries = "configurations until its budget is used" if most is None else f"at most {counted(most, 'configuration')}"
    return f"a search that tries {tries}, each on {segments} for at most {epochs}{folded},"


def _require_committed(recorder: Session, given: AddedWeights) -> None:
    """Models of a search get their weights later, from what the recorder sees.  Their hash is compared then."""
    (found,) = recorder.run(
        sql("SELECT sum(octet_length(p.payload))::bigint FROM {pieces} p", pieces=added.stored(given.name))
    )
    if found[0] != given.bytes:
        raise WrongState(
            f"the weights of the architecture {shown(given.name)} were added or changed in this transaction, which is"
            " not committed, so worker sessions cannot see them.",
            hint="COMMIT first, then call it again.",
        )
