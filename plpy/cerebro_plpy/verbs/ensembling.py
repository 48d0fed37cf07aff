"""``cerebro.ensemble``: one model made of several models of a run, which predicts the mean of their predictions.

``cerebro.train`` adds such a model to its own table.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from cerebro_db.core import codec, documents
from cerebro_db.core.architecture import keras_json
from cerebro_db.core.architecture.ensembles import ensemble as mean_of
from cerebro_db.core.errors import InvalidArgument, UndefinedObject, Unsupported, WrongState
from cerebro_db.core.models.member_choice import MOST_MEMBERS, USUAL_MEMBERS, MemberConfiguration
from cerebro_db.core.models.model_columns import OF_GROUPS, ModelColumns
from cerebro_db.core.names import Name
from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import Sql, identifier, joined, sql
from cerebro_db.core.sql_types import SqlType
from cerebro_db.core.texts import counted, or_null

from .. import platform
from ..database import relations
from ..database.access import Database
from ..database.entry import entry
from ..database.relations import Column, Relation
from ..definitions import references
from ..models import document_columns, model_parts, trained
from ..models.trained import COMPANIONS, ModelTables, best_keys, require_trained
from ..models.weights import LARGEST_VALUE
from ..runs.tables.model_tables import set_key
from . import attempts, choosing_members
from .choosing_members import Joined, Measure


@dataclass(frozen=True)
class MemberTables:
    """The tables of a run's models."""

    tables: ModelTables
    info: Relation
    summary: Relation
    named: ModelColumns

    @property
    def table(self) -> Relation:
        return self.tables.table


@dataclass(frozen=True)
class Mean:
    """An ensemble and its members, the best one first."""

    keys: list[int]
    architecture: str
    size: int  # of the weights, in bytes
    place: int  # __dist_key__ of the best member
    what: str
    group: Joined | None  # None: it was not judged
    measure: Measure | None
    members: list[MemberConfiguration]


@entry
def ensemble(
    db: Database,
    model_table: str | None,
    output_table: str | None,
    members: int | None,
    all_join: bool | None,
    seconds: float | None = None,
) -> None:
    """Make the tables of the ensemble; it is configuration 1."""
    until = None if seconds is None else time.monotonic() + seconds
    if members is None or not 2 <= members <= MOST_MEMBERS:
        raise InvalidArgument(f"members cannot be {or_null(members)}.", hint=f"It must be from 2 to {MOST_MEMBERS}.")
    references.refuse_reference(model_table, "model_table", "an ensemble takes the models of one run from their table")
    source = source_of(db, relations.existing(db, model_table, argument="model_table", companions=COMPANIONS))
    if output_table is None:
        _add(db, source, members, bool(all_join), until)
        return
    output = model_parts.of_new_model(db, output_table, None, argument="output_table")
    mean = mean_of_best(db, source, members, bool(all_join), until)
    _make_tables(db, source, output)
    _add_rows(db, source, mean, output, 1)
    db.told(f"{output} is {mean.what}{_judged(mean)}")


def add_or_say(db: Database, output: Name, until: float | None = None) -> None:
    """Add the ensemble to a new table of models as ``cerebro.ensemble`` does, or say why there is none.

    ``until``: when no further model is compared, as time.monotonic(); without time, the best two are.
    """
    if db.value(sql("SELECT count(*) FROM {output}", output=output.sql)) < 2:
        if until is not None:
            db.told("no ensemble is made, because one model alone is none", "A larger budget may train several.")
        return
    with attempts.or_told(db, "cerebro.ensemble", "no ensemble is made", f"SELECT cerebro.ensemble('{output}', NULL);"):
        source = source_of(db, relations.existing(db, output.quoted, argument="model_table", companions=COMPANIONS))
        _add(db, source, USUAL_MEMBERS, False, until)


def _add(db: Database, source: MemberTables, members: int, all_join: bool, until: float | None) -> None:
    """Add the ensemble to the table of its members, if it has more than one and is not there yet."""
    for table in (source.table, source.info):
        relations.require_own(db, table, "add an ensemble to it")
    db.patiently(sql("LOCK TABLE {info} IN SHARE ROW EXCLUSIVE MODE", info=source.info.sql))  # one call at a time
    mean = mean_of_best(db, source, members, all_join, until)
    if len(mean.keys) < 2:
        db.told(f"no ensemble is added to {source.table.name}{_judged(mean)}")
        return
    number = identifier(source.named.configuration)
    same = db.one(
        sql("SELECT {number} AS key FROM {info} WHERE reason = $1", number=number, info=source.info.sql),
        ("text",),
        mean.what,
    )
    if same is not None:
        db.told(f"configuration {same['key']} is {mean.what} already")
        return
    key = db.value(sql("SELECT max({number}) + 1 FROM {info}", number=number, info=source.info.sql))
    _add_rows(db, source, mean, source.table.name, key)
    db.told(f"configuration {key} is {mean.what}{_judged(mean)}")


def source_of(db: Database, table: Relation) -> MemberTables:
    tables = trained.tables_beside(db, table)
    info, summary = tables.info, tables.summary
    if info is None or summary is None:
        raise UndefinedObject(f"{table.text} is not the model table of a run.", hint="cerebro.fit() makes it.")
    named = require_trained(table, relations.columns(db, table))
    # What is written into a copy of them.
    written = {info: (named.size, "reason", "status", "model_type"), summary: (named.model_table, "model_info")}
    for one, more in written.items():
        document_columns.require(relations.columns(db, one), one.text, named.types)
        document_columns.require_known_types(relations.columns(db, one), one.text, more)
    return MemberTables(tables=tables, info=info, summary=summary, named=named)


def mean_of_best(db: Database, source: MemberTables, members: int, all_join: bool, until: float | None = None) -> Mean:
    """The mean of at most ``members`` of the best models of a run; with ``all_join``, of exactly as many.

    ``until``: when models are no longer compared, as time.monotonic().
    """
    table, named = source.table, source.named
    direction = db.value(sql("SELECT direction FROM {summary} LIMIT 1", summary=source.summary.sql))
    keys = best_keys(db, table, source.info, direction, named, None)
    # The tables of the ensemble have the same columns as those of its members.
    rows = _rows(db, source)
    lines = _lines(db, source, rows)
    keys = _best_of_lines([key for key in keys if rows[key]["trained"]], lines) or keys
    if len(keys) < 2:
        raise WrongState(
            f"{table.text} has {len(keys)} model, and an ensemble needs at least 2.",
            hint="Train more configurations.",
        )
    whole = [key for key in keys if rows[key]["size"] is not None]
    measure = None if all_join else choosing_members.measure_of(db, source.tables, source.summary, keys[0])
    if measure is not None and whole[:1] == keys[:1]:
        keys = whole
    keys = keys[:members]
    if not set(keys) <= set(whole):
        raise _too_large(members)
    group = None
    if measure is not None:
        known = rows[keys[0]]["objective" if measure.of_run else "loss"]
        group = choosing_members.joined(db, source.tables, keys, measure, until, known)
    if group is not None:
        keys = group.keys
    size = sum(rows[key]["size"] for key in keys)
    if size > LARGEST_VALUE:
        raise _too_large(len(keys))
    architecture, *others = _architectures(db, source, keys)
    if others:
        architecture = json.dumps(mean_of([keras_json.architecture(one) for one in (architecture, *others)]))
        keras_json.architecture(architecture)
    of_keys = _members(db, source, keys, lines)
    return Mean(
        keys=keys,
        architecture=architecture,
        size=size,
        place=rows[keys[0]]["place"],
        what=_told(table, keys, of_keys),
        group=group,
        measure=measure,
        members=of_keys,
    )


def members_of(db: Database, source: MemberTables, keys: list[int]) -> list[MemberConfiguration]:
    """What these models of a run were trained with."""
    return _members(db, source, keys, _lines(db, source, _rows(db, source)))


def _rows(db: Database, source: MemberTables) -> dict[int, dict[str, Any]]:
    """What is known of the models.  An ensemble that was added to the table is no model of the run."""
    named, there = source.named, relations.columns(db, source.info)
    of_run = next((name for name in ("model", "model_id") if name in there), None)
    rows = db.rows(
        sql(
            "SELECT {number} AS number, octet_length({weights})::bigint AS size, __dist_key__ AS place,"
            " {trained} AS trained, {model} AS model, {loss} AS loss, {objective} AS objective"
            " FROM {table} t JOIN {info} i USING ({number})",
            trained=sql("true") if of_run is None else sql("i.{name} IS NOT NULL", name=identifier(of_run)),
            model=sql("i.model") if "model" in there else sql("NULL::integer"),
            loss=_number(named.validation_loss, there),
            objective=_number("objective_value", there),
            info=source.info.sql,
            number=identifier(named.configuration),
            weights=identifier(named.weights),
            table=source.table.sql,
        )
    )
    return {row["number"]: row for row in rows}


def _number(name: str, there: Mapping[str, Column]) -> Sql:
    """A column of ``_info`` as a number; NULL if it has no such column, or numbers of several outputs."""
    if name not in there or there[name].category != "N":
        return sql("NULL::double precision")
    return sql("i.{column}::double precision", column=identifier(name))


def _architectures(db: Database, source: MemberTables, keys: list[int]) -> list[str]:
    """Of these models, in this order."""
    named = source.named
    rows = db.rows(
        sql(
            "SELECT {architecture}::text AS one FROM {table} WHERE {number} = ANY ($1)"
            " ORDER BY array_position($1, {number})",
            architecture=identifier(named.architecture),
            table=source.table.sql,
            number=identifier(named.configuration),
        ),
        ("integer[]",),
        keys,
    )
    return [row["one"] for row in rows]


def _lines(db: Database, source: MemberTables, rows: dict[int, dict[str, Any]]) -> dict[int, list[int]]:
    """Of each configuration, itself, the one that its model goes on from as a copy, and so on until the first."""
    numbered = all(row["model"] is not None for row in rows.values() if row["trained"])
    if not numbered or not {"run", "model_table"} <= set(relations.columns(db, source.summary)):
        return {key: [key] for key in rows}
    found = db.rows(
        sql(
            "SELECT b.model, b.parent FROM cerebro.leaderboard b JOIN {summary} s USING (run)"
            " WHERE b.owner = current_user AND b.model_table = s.model_table AND b.parent IS NOT NULL",
            summary=source.summary.sql,
        )
    )
    parents = {row["model"]: row["parent"] for row in found}
    keys = {row["model"]: key for key, row in rows.items()}
    lines = {}
    for key, row in rows.items():
        model, line = row["model"], [key]
        while parents.get(model, model) < model if model is not None else False:  # a copy has a larger number
            model = parents[model]
            line.append(keys.get(model, key))
        lines[key] = list(dict.fromkeys(line))
    return lines


def _best_of_lines(keys: list[int], lines: dict[int, list[int]]) -> list[int]:
    """Of a model and the copies that go on from it, which predict nearly the same, the best one alone."""
    best: dict[int, int] = {}
    for key in keys:
        best.setdefault(lines[key][-1], key)
    return list(best.values())


def _members(
    db: Database, source: MemberTables, keys: list[int], lines: dict[int, list[int]]
) -> list[MemberConfiguration]:
    """What each member was trained with, from random weights on, and for how many epochs in all.

    A copy goes on from the best state of the model that it is a copy of.
    """
    if not {"architecture", "parameters", "epoch"} <= set(relations.columns(db, source.info)):
        return []
    number = identifier(source.named.configuration)
    found = db.rows(
        sql(
            "SELECT {number} AS key, architecture, parameters::text AS parameters, epoch FROM {info}",
            number=number,
            info=source.info.sql,
        )
    )
    rows = {row["key"]: row for row in found}
    members = []
    for key in keys:
        first, epochs = rows[lines[key][-1]], [rows[one]["epoch"] for one in lines[key]]
        parameters = documents.decoded(first["parameters"] or "{}", f"the parameters of configuration {lines[key][-1]}")
        members.append(MemberConfiguration(first["architecture"], parameters, None if None in epochs else sum(epochs)))
    return members


def _too_large(members: int) -> Unsupported:
    return Unsupported(f"the weights of {members} members are too large for one value.", hint="Take fewer members.")


def _told(table: Relation, keys: list[int], members: Sequence[MemberConfiguration]) -> str:
    if len(keys) == 1:
        return f"configuration {keys[0]} of {table.name}"
    kinds = list(dict.fromkeys(one.architecture for one in members if one.architecture))
    named = f" ({' and '.join(kinds)})" if kinds else ""
    return f"the mean of configurations {', '.join(map(str, keys))} of {table.name}{named}"


def _make_tables(db: Database, source: MemberTables, output: Name) -> None:
    """The model table and ``_info``, empty, and ``_summary``."""
    named, here = source.named, platform.of(db)
    weights, architectures = identifier(named.weights), identifier(named.architecture)
    db.execute(
        sql(
            "CREATE TABLE {output} ({number} integer, {weights} bytea, {architectures} json, __dist_key__ integer)"
            " {distributed_by}",
            output=output.sql,
            number=identifier(named.configuration),
            weights=weights,
            architectures=architectures,
            distributed_by=here.distributed_by("__dist_key__"),
        )
    )
    db.execute(
        sql("ALTER TABLE {output} ALTER COLUMN {weights} SET STORAGE EXTERNAL", output=output.sql, weights=weights)
    )
    about, told, summary = output.suffixed("_info"), output.suffixed("_summary"), source.summary
    # The tables of the members may be another user's.  An index of theirs, or a domain, would run that user's code
    # whenever the new tables, which are the caller's, are read or written.
    db.execute(
        sql(
            "CREATE TABLE {about} AS SELECT {kept} FROM {info} LIMIT 0 {distributed_by}",
            about=about.sql,
            kept=joined(
                ", ", (_plain(one) for one in relations.columns(db, source.info).values() if _is_of_server(one))
            ),
            info=source.info.sql,
            distributed_by=here.distributed_by(named.configuration),
        )
    )
    set_key(db, about, named.configuration)
    # The members are models on all rows, and so is the mean.  The labels have the type that their column has.
    kept = [one for one in relations.columns(db, summary).values() if one.name not in OF_GROUPS]
    db.execute(
        sql(
            "CREATE TABLE {told} AS SELECT {kept} FROM {summary} {distributed_by}",
            told=told.sql,
            kept=joined(", ", (_plain(one) if _is_of_server(one) else identifier(one.name) for one in kept)),
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


def _is_of_server(column: Column) -> bool:
    return SqlType(column.type).parts[0] is None


def _plain(column: Column) -> Sql:
    """The column; of a domain, with the type below it."""
    return sql("{name}::{kind} AS {name}", name=identifier(column.name), kind=column.cast)


def _add_rows(db: Database, source: MemberTables, mean: Mean, output: Name, key: int) -> None:
    """Add the ensemble to a model table and its ``_info``, under this number."""
    named, info = source.named, source.info
    number, weights = identifier(named.configuration), identifier(named.weights)
    db.execute(
        sql("INSERT INTO {output} ({number}, {weights}, {architectures}, __dist_key__)"
        " SELECT $4, string_agg({weights}, ''::bytea ORDER BY array_position($1, {number})), $2::json, $3 FROM {table}"
        " WHERE {number} = ANY ($1)",
        output=output.sql, weights=weights, number=number, architectures=identifier(named.architecture),
        table=source.table.sql),
        ("integer[]", "text", "integer", "integer"),
        mean.keys, mean.architecture, mean.place, key,
    )  # fmt: skip
    present = relations.columns(db, info)
    copied = [*named.parameters, named.loss_name, named.metric_names, "status"]
    copied += [name for name in ("model_type", "functions") if name in present]
    figures = {} if mean.group is None else {named.validation_loss: mean.group.loss}
    if mean.group is not None and mean.measure is not None and mean.measure.of_run:
        figures["objective_value"] = mean.group.value
    figures = {name: value for name, value in figures.items() if name in present}
    told = {}
    if "members" in present and mean.members:
        told["members"] = json.dumps(codec.encode(mean.members))
    more = joined("", (sql(", {column}", column=identifier(column)) for column in copied))
    db.execute(
        sql("INSERT INTO {about} ({number}, {size}, reason{more}{names}) SELECT $4, $2, $3{more}{values} FROM {info}"
        " WHERE {number} = $1",
        about=output.suffixed("_info").sql, number=number, size=identifier(named.size), more=more, info=info.sql,
        names=joined("", (sql(", {name}", name=identifier(name)) for name in (*figures, *told))),
        values=joined("", (sql(", ${place}", place=place) for place in range(5, 5 + len(figures) + len(told))))),
        ("integer", "double precision", "text", "integer", *("double precision" for _ in figures),
         *("jsonb" for _ in told)),
        mean.keys[0], mean.size / named.bytes_per_size, mean.what, key, *figures.values(), *told.values(),
    )  # fmt: skip


def _judged(mean: Mean) -> str:
    group, measure = mean.group, mean.measure
    if group is None or measure is None:
        return ""
    name = measure.objective.name
    if len(group.keys) == 1:
        return f": configuration {group.keys[0]} alone is better ({name} {_shown(group.value)}){_expected(group)}"
    told = f": {name} {_shown(group.value)}, and {_shown(group.alone)} of configuration {group.best} alone"
    if group.error is not None and group.value is not None and group.alone is not None and group.value > group.alone:
        told += f"; the standard error of the difference is {group.error:.2g}"
    return told + _expected(group)


def _expected(group: Joined) -> str:
    """What the best model's loss on new rows is expected to be."""
    if group.expected is None:
        return ""
    return (
        f"; expect about {group.expected:.2g} of configuration {group.best} on new rows: {counted(group.rows, 'row')}"
        f" chose it among {group.compared}, which flatters it"
    )


def _shown(value: float | None) -> str:
    return "no number" if value is None else f"{value:.4g}"
