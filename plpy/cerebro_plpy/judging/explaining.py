"""``cerebro.explain``: what each input column adds to the prediction of each row, as its Shapley value.

The trainer computes it (cerebro_db/nn/orders/explanations.py), compared with background rows, which travel with the
order.  So rows are read, and models found, as for a prediction.
"""

from __future__ import annotations

from array import array
from binascii import a2b_base64, b2a_base64
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any, Callable

from cerebro_db.core.errors import BadData, InvalidArgument, Unsupported
from cerebro_db.core.packing.layout import Layout, Variable
from cerebro_db.core.protocol import MOST_BACKGROUND, Explanation, InputElements, PredictionInput
from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import Sql, joined, sql
from cerebro_db.core.texts import counted

from .. import platform
from ..database import relations
from ..database.access import Database
from ..definitions.references import model_ref
from ..models import calibrations
from ..models.model_cache import read_model
from ..models.trained import TrainedModel, class_labels
from ..packing.packed import Packed
from ..predicting import by_group, keys_and_outputs, related_rows, streaming, trainers
from ..predicting.by_group import RowsOfGroups
from ..predicting.query_reading import Reading
from ..segment.prediction import Answer
from . import judged_rows, packed_rows

CANDIDATES, TAKEN = 512, 16  # rows of which the background is taken, unless the caller names its rows
LONGEST_BACKGROUND = 16 << 20  # bytes; a frame for the trainer has room for them in base64
MOST_ROWS = 4096  # of a chunk, which a cancel waits for
OF_A_PACKED_ROW = 64  # rows: of other packed rows there are rows of other groups
LONGEST_VALUE = 400  # bytes as stored; longer values are not shown

Shown = dict[str, Sql]  # by input column, its value in a row, as text


@dataclass(frozen=True)
class ExplainArguments:
    """The arguments of ``cerebro_internal._explained``."""

    model_table: str | None
    query: str | None
    key: str | None
    target: str | None
    wanted: str | None  # class
    configuration: int | None
    background: str | None
    related: str | None = None


def explained(
    db: Database, given: ExplainArguments, kept: Callable[[TrainedModel], Packed | None]
) -> Iterator[dict[str, Any]]:
    """A row for each row of the query, target and input column.  ``kept``: the packed rows that the model still has."""
    platform.of(db).require_own_session(db)
    query = relations.require_query(db, given.query)
    model = read_model(db, model_ref(db, given.model_table), given.configuration)
    if model.layout.steps:
        raise Unsupported(
            "the model predicts each step of a window, which cannot be explained.",
            hint="cerebro.importance() says how much it relies on each column.",
        )
    outputs, classes = _wanted(model.layout, given.target, given.wanted)
    source, present = relations.of_query(db, query)
    keys = keys_and_outputs.key_columns(db, given.key, present, model.layout, source, "the query")
    whole = related_rows.of(db, model.table, model.layout, source, present, given.related)
    rows = RowsOfGroups(whole.source, whole.present, "the query", keys)
    applied = calibrations.by_default(db, model) if model.grouped is None else None
    best = keys_and_outputs.best_classes(model.layout.outputs, 1, applied)
    read, reading = by_group.reading_of(db, model, rows, best)
    elements, shown = _columns(model.layout), _shown(reading)
    background = _background(db, model, given, kept, query)
    if background is None:
        return
    explanation = Explanation(list(elements.values()), classes, *background)
    gathered = [sql("array_agg({value}) AS value{place}", value=one, place=i) for i, one in enumerate(shown.values())]
    reading.chunk = min(reading.chunk, MOST_ROWS)
    reading.gathered = joined(", ", [reading.gathered, *gathered])
    if model.grouped is not None:
        chunks = by_group.answered(db, model, rows, given.configuration, (read, reading), explanation)
    else:
        chunks = _answered(db, model, (read, reading), explanation)
    for chunk, answers in chunks:
        values = {name: chunk[f"value{place}"] for place, name in enumerate(shown)}
        for place in outputs:
            yield from _of_output(model.layout.outputs[place], answers[place], chunk["ids0"], list(elements), values)


def _answered(
    db: Database, model: TrainedModel, read: tuple[relations.Relation, Reading], explanation: Explanation
) -> Iterator[tuple[dict[str, Any], list[Answer]]]:
    source, reading = read
    order = trainers.order_of(model, model.version(db), [one.for_prediction() for one in reading.inputs], reading.best)
    with (
        trainers.own_segment(db, model.memory_mb, sealed=model.tables.must_seal(db)) as (mine, _),
        trainers.predicting(db, mine, model, replace(order, explanation=explanation)) as prediction,
    ):
        for chunk in streaming.whole_chunks(db, source, reading):
            yield chunk, prediction.predict(chunk["rows"], chunk["variables"])


@dataclass(frozen=True)
class ExplainedRow:
    number: int
    base: float
    added: dict[str, float]  # by column


def of_packed_rows(
    db: Database, model: TrainedModel, test: Packed, wanted: Collection[int]
) -> list[list[ExplainedRow]]:
    """Of each output, these rows of a packed table, compared with other rows of it.  ``packed_rows`` numbers them."""
    numbers, values = packed_rows.arrays_of_rows(db, test, wanted)
    elements, outputs = _columns(test.layout), model.layout.outputs
    if not numbers:
        return [[] for _ in outputs]
    explanation = Explanation(list(elements.values()), [None] * len(outputs), *_of_packed_table(db, test))
    best = keys_and_outputs.best_classes(outputs, 1, calibrations.by_default(db, model))
    order = trainers.order_of(model, model.version(db), packed_rows.inputs(test.layout), best)
    with (
        trainers.own_segment(db, model.memory_mb, sealed=model.tables.must_seal(db)) as (mine, _),
        trainers.predicting(db, mine, model, replace(order, explanation=explanation)) as prediction,
    ):
        answers = prediction.predict(len(numbers), values)
    return [
        [
            ExplainedRow(number, base, dict(zip(elements, added)))
            for number, (_, base, _, added) in zip(numbers, _explained_rows(answer, len(elements)))
        ]
        for answer in answers
    ]


def _explained_rows(answer: Answer, columns: int) -> Iterator[tuple[int, float, float, list[float]]]:
    """Of each row the place of the class, the base, the prediction, and what each column adds."""
    numbers = array("d", answer[3])
    width = 3 + columns
    for start in range(0, len(numbers), width):
        place, base, prediction, *added = numbers[start : start + width]
        yield int(place), base, prediction, added


def _of_output(
    output: Variable, answer: Answer, ids: list[str], columns: list[str], values: dict[str, list[str | None]]
) -> Iterator[dict[str, Any]]:
    labels = None if keys_and_outputs.is_number(output) else class_labels(output)
    for row, (key, of_row) in enumerate(zip(ids, _explained_rows(answer, len(columns)))):
        place, base, prediction, added = of_row
        for name, contribution in zip(columns, added):
            yield {
                "key_value": key,
                "target": output.name,
                "class": None if labels is None else labels[place],
                "column_name": name,
                "value": values[name][row] if name in values else None,
                "contribution": contribution,
                "base": base,
                "prediction": prediction,
            }


def _wanted(layout: Layout, target: str | None, wanted: str | None) -> tuple[list[int], list[int | None]]:
    """The places of the outputs whose predictions are explained, and of each output the place of the named class."""
    places = list(range(len(layout.outputs)))
    if target is not None:
        places = [layout.outputs.index(judged_rows.target_of(layout, target))]
    classes: list[int | None] = [None] * len(layout.outputs)
    if wanted is not None:
        (place, *more) = places
        output = layout.outputs[place]
        if more:
            raise InvalidArgument("class needs a target: the model has several.", hint="Name one: target => '…'.")
        if keys_and_outputs.is_number(output):
            raise InvalidArgument(
                f"class cannot be given: the target '{output.name}' is a number.", hint="Leave class out."
            )
        known = class_labels(output)
        if wanted not in known:
            raise InvalidArgument(
                f"'{output.name}' has no class '{wanted}'.", hint=f"Classes: {', '.join(map(str, known[:20]))}."
            )
        classes[place] = known.index(wanted)
    return places, classes


def _columns(layout: Layout) -> dict[str, list[InputElements]]:
    """What each source column became.  All that one became, also in all rows of a window, is one player."""
    found: dict[str, list[InputElements]] = {}
    for variable in layout.inputs:
        for column, start, width in variable.places:
            found.setdefault(column, []).append(InputElements(variable.name, start, width))
    return found


def _shown(reading: Reading) -> Shown:
    """The input columns of the query, over the rows that ``reading`` gathers."""
    names = list({column.name: None for variable in reading.inputs for column in variable.columns})
    return {
        name: sql(
            "CASE WHEN pg_catalog.pg_column_size(c{place}) <= {longest} THEN c{place}::text END",
            place=place,
            longest=LONGEST_VALUE,
        )
        for place, name in enumerate(names)
    }


# -- the background ------------------------------------------------------------------------------------------

Background = tuple[list[PredictionInput], int, list[str], "int | None"]  # as an Explanation has it


def _background(
    db: Database,
    model: TrainedModel,
    given: ExplainArguments,
    kept: Callable[[TrainedModel], Packed | None],
    query: str,
) -> Background | None:
    """The caller's rows; else some of those that the run of the model kept; else some of the query's own, if any."""
    if given.background is not None:
        named = relations.require_query(db, given.background, "background")
        background = _of_query(db, model, named, given.related, MOST_BACKGROUND, None)
        if background is None:
            raise BadData(
                "the background has no rows.",
                hint="background => 'SELECT …' names the rows to compare predictions with.",
            )
        return background
    table = kept(model)
    if table is not None:
        return _of_packed_table(db, table)
    background = _of_query(db, model, query, given.related, CANDIDATES, TAKEN)
    if background is None:
        return None
    _require_different(background)
    db.notice(
        "the background is rows of the query, because the rows for validation of the run cannot be read",
        "background => 'SELECT …' names other rows.",
    )
    return background


def _require_different(background: Background) -> None:
    """An error if all rows are equal: compared with itself, each column of a row adds 0."""
    _, rows, values, _ = background
    if any(_differ(a2b_base64(its), rows) for its in values):
        return
    equal = "the query has only one row" if rows == 1 else f"the first {rows} rows of the query are equal in all inputs"
    raise InvalidArgument(
        f"background is needed: {equal}, and the rows that the run kept for validation cannot be read.",
        hint="background => 'SELECT …' names the rows to compare predictions with: some that are usual, at most"
        f" {MOST_BACKGROUND:,}.",
    )


def _differ(values: bytes, rows: int) -> bool:
    width = len(values) // rows
    return values != values[:width] * rows


def _of_query(
    db: Database, model: TrainedModel, query: str, related: str | None, most: int, taken: int | None
) -> Background | None:
    """Rows of the query; None: it has none."""
    source, present = relations.of_query(db, query)
    whole = related_rows.of(db, model.table, model.layout, source, present, related)
    rows = RowsOfGroups(whole.source, whole.present, "the background", [])
    read, reading = by_group.reading_of(db, model, rows, None)
    reading.chunk = most
    cursor = db.cursor(reading.query(read))
    chunks = cursor.fetch(2)
    cursor.close()
    if not chunks:
        return None
    if len(chunks) > 1 and taken is None:
        raise InvalidArgument(
            f"background has more than {counted(most, 'row')}.", hint=f"Choose some: SELECT … LIMIT {most}."
        )
    chunk = chunks[0]
    reading.require_sound(chunk, chunk["ids0"], "the background")
    inputs = [one.for_prediction() for one in reading.inputs]
    return _limited(inputs, chunk["rows"], chunk["variables"], taken)


def _of_packed_table(db: Database, table: Packed) -> Background:
    inputs, rows = packed_rows.inputs(table.layout), 0
    values = [b"" for _ in inputs]
    for batch in packed_rows.batches(db, table, table.layout, [], first=OF_A_PACKED_ROW):
        values = [before + (its or b"") for before, its in zip(values, batch.inputs)]
        rows += batch.rows
        if rows >= CANDIDATES:
            break
    return _limited(inputs, rows, values, TAKEN)


def _limited(inputs: list[PredictionInput], rows: int, values: list[bytes], taken: int | None) -> Background:
    """Fewer rows if they are large."""
    size = sum(map(len, values)) // rows
    most = max(1, LONGEST_BACKGROUND // max(1, size))
    if most < rows:
        if taken is None:
            raise InvalidArgument(
                f"background is too large: {counted(rows, 'row')} of {size} bytes each.",
                hint=f"Choose at most {most} of them.",
            )
        values = [its[: most * (len(its) // rows)] for its in values]
        rows = most
    return inputs, rows, [b2a_base64(its, newline=False).decode() for its in values], taken
