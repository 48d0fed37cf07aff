"""``cerebro.predict`` and ``cerebro.embed``: what a model gives for the rows of a query, in the caller's session.

No table is written, so this works in a read-only transaction and on a standby, and it sees what the caller's
transaction has not committed.  Memory holds one chunk of rows at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from cerebro_db.core.errors import NotPermitted, SerializationFailure, Unsupported
from cerebro_db.core.models import asked_vector
from cerebro_db.core.packing.layout import Layout
from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import Sql, sql

from .. import platform
from ..database import relations
from ..database.access import Database
from ..database.entry import entry_of_rows
from ..database.relations import Column, Relation
from ..definitions.references import model_ref
from ..models import calibrations
from ..models.model_cache import read_and_known, read_model
from ..packing.rows import buffers, unseen_values, windowed
from . import keys_and_outputs, query_reading, related_rows, resident_recipes, trainers
from .query_reading import Reading

if TYPE_CHECKING:
    from cerebro_db.core.protocol import BestClasses

    from ..models.calibrations import Applied
    from ..models.trained import TrainedModel
    from .resident_predictor import HandedOver

MOST_READINGS = 20  # that are kept of a model, for queries with different columns
MOST_VECTORS = 1024  # of a chunk: they are in memory, and longer than predictions
NUMBER = ""  # the name of a key that is the number of the row


@dataclass(frozen=True)
class PredictRowsArguments:
    """The arguments of ``cerebro.predict``."""

    model_table: str | None
    query: str | None
    key: str | None
    configuration: int | None
    top: int | None
    coverage: float | None = None
    calibrated: bool | None = None
    thresholds: bool | None = False
    probability_of: str | None = None
    related: str | None = None
    times: bool | None = False  # keys are pairs of a key and the time that a forecast is for, if there is one


@entry_of_rows("cerebro.predict")
def predict_rows(db: Database, *, begun: HandedOver | None, **arguments: Any) -> Iterator[dict[str, Any]]:
    """A row for each chunk: the ids, the labels of each output, and the answers.

    ``begun``: a query that resident_predictor.py has begun; its cursor is open.
    """
    given = PredictRowsArguments(**arguments)
    ranks = keys_and_outputs.require_top(given.top)
    wanted = calibrations.Wanted.of(given.coverage, given.calibrated, given.thresholds)
    platform.of(db).require_own_session(db)
    query, key = relations.require_query(db, given.query), given.key
    ref = model_ref(db, given.model_table)
    model, known = read_and_known(db, ref, given.configuration)
    if begun is not None and (known is None or known.mark != begun.mark):
        raise SerializationFailure(
            f"the model in '{given.model_table}' was changed while the rows were read.", hint="Try again."
        )
    source, present = relations.of_query(db, query)
    if model.grouped is not None:
        from . import by_group  # only now: other models need nothing of it

        by_group.require_plain(wanted, given.model_table)
        chosen = keys_and_outputs.classes_of(model.layout.outputs, given.probability_of, ranks)
        best = keys_and_outputs.best_classes(model.layout.outputs, None if any(chosen) else ranks)
        keys = keys_and_outputs.key_columns(db, key, present, model.layout, source, "the query")
        timed = _timed(db, model, (source, present), key, keys_and_outputs.key_of(keys)) if given.times else None
        whole = related_rows.of(db, model.table, model.layout, source, present, given.related)
        rows_of_groups = by_group.RowsOfGroups(
            whole.source, whole.present, "the query", keys, timed, chosen=chosen, timed=timed is not None
        )
        yield from by_group.predicted(db, model, rows_of_groups, given.configuration, best)
        return
    # Names of tables in the argument lead elsewhere with another search_path.
    schemas = None if given.related is None else db.value(sql("SELECT pg_catalog.current_schemas(true)::text"))
    asked = (tuple(present.items()), key, ranks, wanted, given.probability_of, given.related, schemas)
    reading = model.remembered.get(asked)
    if reading is not None and reading.beside is not None and related_rows.mark(db, reading.beside) != reading.mark:
        reading = None  # a related table is another one now
    if reading is None:
        applied = calibrations.applied(db, model, wanted)
        chosen = keys_and_outputs.classes_of(model.layout.outputs, given.probability_of, ranks)
        best = keys_and_outputs.best_classes(model.layout.outputs, None if any(chosen) else ranks, applied)
        source, reading = reading_of(
            db,
            model,
            (source, present),
            key,
            best,
            applied,
            chosen=chosen,
            times=bool(given.times),
            related=given.related,
        )
        if model.layout.windows is None and len(model.remembered) < MOST_READINGS:  # windows depend on the rows
            model.remembered[asked] = reading
    version = model.version(db)
    if reading.order is None:
        inputs = [one.for_prediction() for one in reading.inputs]
        reading.order = trainers.order_of(model, version, inputs, reading.best)
    recipe = None
    if known is not None and asked in model.remembered:
        recipe = partial(resident_recipes.written, arguments, ref, known, source, reading)
    lasting, sealed = None if version is None else reading.order, model.tables.must_seal(db)
    with (
        trainers.own_segment(db, model.memory_mb, lasting, recipe, sealed=sealed) as (mine, seconds),
        trainers.predicting(db, mine, model, reading.order) as prediction,
    ):
        for rows, ids, variables in chunks(db, source, reading, begun):
            rest = seconds if rows < reading.chunk else None  # these are the last rows
            answers = prediction.predict(rows, variables, rest or None)
            yield {"ids": ids, "outputs": reading.outputs, "answers": answers}


def reading_of(
    db: Database,
    model: TrainedModel,
    rows: tuple[Relation, dict[str, Column]],
    key: str | None,
    best: BestClasses | None,
    applied: Applied | None = None,
    *,
    chosen: Sequence[Sequence[str | None]] = (),
    times: bool = False,
    related: str | None = None,
) -> tuple[Relation, Reading]:
    """Also what is read: the query's rows, or windows of them.  ``best``: None: the outputs themselves.

    ``chosen``: as in ``keys_and_outputs.outputs_as_lines``.  ``times``: whether keys may have the time of a forecast.
    """
    timed = None
    source, present = rows
    keys = _keys(key, present, model.layout) if model.layout.windows is None else {}
    beside = related_rows.of(db, model.table, model.layout, source, present, related, keys=keys)
    inputs = keys_and_outputs.inputs_of(db, model.layout, beside.present, "the query")
    if model.layout.windows is not None:
        buffers.count(db, source, inputs, may_be_null=model.layout.null_to_come)
        columns = keys_and_outputs.key_columns(db, key, present, model.layout, source, "the query")
        last = keys_and_outputs.key_of(columns)
        timed = _timed(db, model, rows, key, last) if times else None
        source, inputs = windowed.to_predict(
            db,
            source,
            present,
            model.layout.windows,
            inputs,
            timed or last,
            judged=key == keys_and_outputs.PAIR,
            numbers=keys_and_outputs.is_number(model.layout.outputs[0]),
        )
        keys = {windowed.KEY_NAME: windowed.KEY}
    reading = query_reading.reading_of(
        model.layout, inputs, keys, best, applied, chosen=chosen, timed=timed is not None
    )
    reading.beside, reading.mark = beside.rows, related_rows.mark(db, beside.rows)
    return source, reading


def _timed(
    db: Database, model: TrainedModel, rows: tuple[Relation, dict[str, Column]], key: str | None, last: Sql
) -> Sql | None:
    """The pair of the key of a row and the time that a forecast from it is for; None: there is no such time."""
    if model.layout.windows is None or key == keys_and_outputs.PAIR:
        return None
    from . import forecast_time  # only now: other models need nothing of it

    time = forecast_time.of(db, rows[0], model.layout.windows, rows[1])
    return None if time is None else forecast_time.with_key(last, time)


def _keys(key: str | None, present: dict[str, Column], trained: Layout) -> dict[str, Sql]:
    """What may be the key of a row, as text, by its name: the named column, or some columns and last the row's number.

    The rows of the first chunk decide: reading them twice could take long.
    """
    if key is not None:
        name = keys_and_outputs.named_key(key, present, "the query")
        return {name: keys_and_outputs.key_of([name])}
    found = {name: keys_and_outputs.candidate(name) for name in keys_and_outputs.key_candidates(present, trained)}
    return {**found, NUMBER: sql("(row_number() OVER ())::text")}


def _decided(db: Database, chunk: dict[str, Any], names: list[str]) -> int:
    """Which of the keys the rows have."""
    for place in range(len(names) - 1):
        ids = chunk[f"ids{place}"]
        if None not in ids and len(set(ids)) == len(ids):
            break
    else:
        place = len(names) - 1
    if len(names) > 1:
        keys_and_outputs.tell_key(db, names[place] or None, names[:-1])
    return place


def chunks(
    db: Database, source: Relation, reading: Reading, begun: HandedOver | None = None
) -> Iterator[tuple[int, list[str], list[bytes | None]]]:
    """The rows, chunk by chunk; an error if one of them cannot be predicted."""
    for chunk in whole_chunks(db, source, reading, begun):
        yield chunk["rows"], chunk["ids"], chunk["variables"]


def whole_chunks(
    db: Database, source: Relation, reading: Reading, begun: HandedOver | None = None
) -> Iterator[dict[str, Any]]:
    """The same, with all that is gathered of the rows; ``ids`` are their keys."""
    if begun is not None:
        cursor: Any = db.opened_cursor(begun.cursor)
    elif reading.beside is not None and related_rows.are_few(db, source):
        cursor = related_rows.few(db, source, reading)
    else:
        cursor = db.cursor(reading.query(source))
    first: Any = [] if begun is None else [begun.first]
    found = {"rows": 0, **{f"s{place}": 0 for place in range(len(reading.news))}}
    mine, chunk = -1, {"rows": reading.chunk}
    while chunk["rows"] == reading.chunk and (batch := first or cursor.fetch(1)):
        first = []
        chunk = batch[0]
        found = {name: before + chunk[name] for name, before in found.items()}
        if mine < 0:
            mine = _decided(db, chunk, list(reading.keys))
        chunk["ids"] = chunk[f"ids{mine}"]
        if reading.steps:  # a window has an array of keys
            chunk["ids"] = list(chain.from_iterable(chunk["ids"]))
        reading.require_sound(chunk, chunk["ids"], source.text)
        yield chunk
    cursor.close()
    unseen_values.tell(db, source.text, reading.news, found)


# -- vectors of inner layers ---------------------------------------------------------------------------------


@entry_of_rows("cerebro.embed")
def embedded(
    db: Database,
    *,
    model_table: str | None,
    query: str | None,
    layer: str | None,
    key: str | None,
    configuration: int | None,
    related: str | None,
) -> Iterator[dict[str, Any]]:
    """A row for each chunk: the ids, and the numbers of all vectors."""
    platform.of(db).require_own_session(db)
    query = relations.require_query(db, query)
    model = read_model(db, model_ref(db, model_table), configuration)
    _require_vectors(db, model)
    source, reading = reading_of(db, model, relations.of_query(db, query), key, None, related=related)
    reading.chunk = min(reading.chunk, MOST_VECTORS)
    inputs = [one.for_prediction() for one in reading.inputs]
    order = trainers.order_of(model, model.version(db), inputs, None)
    architecture = asked_vector.with_vector(order.configuration["architecture"], layer)
    order = replace(order, configuration={**order.configuration, "architecture": architecture}, best=None)
    with (
        trainers.own_segment(db, model.memory_mb) as (mine, seconds),
        trainers.predicting(db, mine, model, order) as prediction,
    ):
        for rows, ids, variables in chunks(db, source, reading):
            rest = seconds if rows < reading.chunk else None  # these are the last rows
            *_, (_, _, _, numbers) = prediction.predict(rows, variables, rest or None)
            yield {"ids": ids, "numbers": numbers}


def _require_vectors(db: Database, model: TrainedModel) -> None:
    """Refuse models that have no layers, or no single one, or whose weights the caller may not read."""
    from cerebro_db.core.architecture import trees  # only now: predictions need nothing of it

    name = model.table.text
    if model.grouped is not None:
        raise Unsupported(
            f"'{name}' has models of groups, whose vectors cannot be compared with each other.",
            hint="Train one model on all rows; the columns of the groups can be inputs.",
        )
    if trees.are_grown(model.definition["architecture"]):
        raise Unsupported(
            "the model consists of trees, which have no layers.", hint="configuration => … names another model."
        )
    if model.layout.steps:
        raise Unsupported(
            "the model predicts each step of a window, so its layers give no single vector for a row.",
            hint='A model with "target": "last" in sequence gives one for each window.',
        )
    if model.tables.must_seal(db):  # a first layer gives as much as its weights
        raise NotPermitted(
            f"'{name}' is shared with you to predict with, and vectors of its layers would tell its weights.",
            hint="cerebro.share(…, 'read') gives the right to them.",
        )
