"""``cerebro.ensemble``: one model made of the best few of a run, whose predictions are the means of theirs."""

from __future__ import annotations

import json

from cerebro_db.core.architecture import reading
from cerebro_db.core.architecture.ensembles import ensemble as mean_of
from cerebro_db.core.errors import InvalidArgument, UndefinedObject, Unsupported, WrongState
from cerebro_db.core.model_columns import OF_GROUPS
from cerebro_db.core.sql import identifier, joined, sql
from cerebro_db.core.texts import or_null

from .. import platform
from ..data.weights import LARGEST_VALUE
from ..database import relations
from ..database.access import Database
from ..database.entry import entry
from ..registry import references
from . import joining
from .joining import Joined, Measure
from .trained import COMPANIONS, best_keys, require_trained

MOST_MEMBERS = 100


@entry
def ensemble(
    db: Database, model_table: str | None, output_table: str | None, members: int | None, all_join: bool | None
) -> None:
    """Make the tables of the ensemble; it is configuration 1."""
    if members is None or not 2 <= members <= MOST_MEMBERS:
        raise InvalidArgument(f"members cannot be {or_null(members)}.", hint=f"It must be from 2 to {MOST_MEMBERS}.")
    references.refuse_reference(model_table, "model_table", "an ensemble takes the models of one run from their table")
    table = relations.existing(db, model_table, argument="model_table", companions=COMPANIONS)
    info, summary = (relations.find(db, table.name.suffixed(ending)) for ending in ("_info", "_summary"))
    if info is None or summary is None:
        raise UndefinedObject(f"{table.text} is not the model table of a run.", hint="cerebro.fit() makes it.")
    named = require_trained(table, relations.columns(db, table))
    output = relations.new(db, output_table, COMPANIONS)
    keys = best_keys(db, table, info, summary, named, members)
    if len(keys) < 2:
        raise WrongState(
            f"{table.text} has {len(keys)} model, and an ensemble needs at least 2.",
            hint="Train more configurations.",
        )
    # The tables of the ensemble have the same columns as those of its members.
    number, weights, architectures = (
        identifier(name) for name in (named.configuration, named.weights, named.architecture)
    )
    rows = {
        row["number"]: row
        for row in db.rows(
            sql(
                "SELECT {number} AS number, {architectures}::text AS arch, octet_length({weights})::bigint AS size,"
                " __dist_key__ AS place FROM {table} WHERE {number} = ANY ($1)",
                number=number,
                architectures=architectures,
                weights=weights,
                table=table.sql,
            ),
            ("integer[]",),
            keys,
        )
    }
    sizes = [rows[key]["size"] for key in keys]
    if None in sizes or sum(sizes) > LARGEST_VALUE:
        raise Unsupported(
            f"the weights of {len(keys)} members are too large for one value.", hint="Take fewer members."
        )
    measure = None if all_join else joining.measure_of(db, table, summary, keys[0])
    group = None if measure is None else joining.joined(db, table.name.quoted, keys, measure)
    if group is not None:
        keys = group.keys
    size = sum(rows[key]["size"] for key in keys)
    numbers = ", ".join(map(str, keys))
    what = f"{f'the mean of configurations {numbers}' if len(keys) > 1 else f'configuration {numbers}'} of {table.name}"
    architecture = rows[keys[0]]["arch"]
    if len(keys) > 1:
        architecture = json.dumps(mean_of([reading.architecture(rows[key]["arch"]) for key in keys]))
        reading.architecture(architecture)
    here = platform.of(db)
    db.execute(
        sql(
            "CREATE TABLE {output} ({number} integer, {weights} bytea, {architectures} json, __dist_key__ integer)"
            " {distributed_by}",
            output=output.sql,
            number=number,
            weights=weights,
            architectures=architectures,
            distributed_by=here.distributed_by("__dist_key__"),
        )
    )
    db.execute(
        sql("ALTER TABLE {output} ALTER COLUMN {weights} SET STORAGE EXTERNAL", output=output.sql, weights=weights)
    )
    db.execute(
        sql("INSERT INTO {output} SELECT 1, string_agg({weights}, ''::bytea ORDER BY array_position($1, {number})),"
        " $2::json, $3 FROM {table} WHERE {number} = ANY ($1)",
        output=output.sql, weights=weights, number=number, table=table.sql),
        ("integer[]", "text", "integer"),
        keys, architecture, rows[keys[0]]["place"],
    )  # fmt: skip
    about = output.suffixed("_info")
    copied = [*named.parameters, named.loss_name, named.metric_names, "status"]
    copied += [name for name in ("model_type", "functions") if name in relations.columns(db, info)]
    figures = {} if group is None else {named.validation_loss: group.loss}
    if group is not None and measure is not None and measure.of_run:
        figures["objective_value"] = group.value
    figures = {name: value for name, value in figures.items() if name in relations.columns(db, info)}
    more = joined("", (sql(", {column}", column=identifier(column)) for column in copied))
    db.execute(
        sql(
            "CREATE TABLE {about} (LIKE {info} INCLUDING INDEXES) {distributed_by}",
            about=about.sql,
            info=info.sql,
            distributed_by=here.distributed_by(named.configuration),
        )
    )
    db.execute(
        sql("INSERT INTO {about} ({number}, {size}, reason{more}{names}) SELECT 1, $2, $3{more}{values} FROM {info}"
        " WHERE {number} = $1",
        about=about.sql, number=number, size=identifier(named.size), more=more, info=info.sql,
        names=joined("", (sql(", {name}", name=identifier(name)) for name in figures)),
        values=joined("", (sql(", ${place}", place=place) for place in range(4, 4 + len(figures))))),
        ("integer", "double precision", "text", *("double precision" for _ in figures)),
        keys[0], size / named.bytes_per_size, what, *figures.values(),
    )  # fmt: skip
    told = output.suffixed("_summary")
    # The members are models on all rows, and so is the mean.
    kept = [name for name in relations.columns(db, summary) if name not in OF_GROUPS]
    db.execute(
        sql(
            "CREATE TABLE {told} AS SELECT {kept} FROM {summary} {distributed_by}",
            told=told.sql,
            kept=joined(", ", map(identifier, kept)),
            summary=summary.sql,
            distributed_by=here.distributed_by("source_table"),
        )
    )
    db.execute(
        sql("UPDATE {told} SET {column} = $1", told=told.sql, column=identifier(named.model_table)),
        ("text",),
        str(output),
    )
    if "model_info" in relations.columns(db, summary):
        db.execute(sql("UPDATE {told} SET model_info = $1", told=told.sql), ("text",), str(about))
    db.notice(f"{output} is {what}{'' if group is None or measure is None else _judged(group, measure)}")


def _judged(group: Joined, measure: Measure) -> str:
    name = measure.objective.name
    if len(group.keys) == 1:
        return f": no other one makes {name} better ({_shown(group.value)})"
    return f": {name} {_shown(group.value)}, and {_shown(group.alone)} of configuration {group.keys[0]} alone"


def _shown(value: float | None) -> str:
    return "no number" if value is None else f"{value:.4g}"
