"""MADlib's model selection tables: a row for each configuration that a run will train."""

from __future__ import annotations

from typing import Any

from cerebro_db.core.errors import InvalidArgument, UndefinedObject
from cerebro_db.core.names import Name
from cerebro_db.core.parameters import grids
from cerebro_db.core.parameters.grids import Row
from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import Sql, sql
from cerebro_db.core.texts import counted
from cerebro_plpy import platform
from cerebro_plpy.database import relations
from cerebro_plpy.database.access import Database
from cerebro_plpy.database.cancellation import listener
from cerebro_plpy.database.relations import Relation
from cerebro_plpy.runs.request.request import named_beside

from ..entry import entry, new_table
from . import object_tables

COLUMNS = ("mst_key", "model_id", "compile_params", "fit_params")


@dataclass(frozen=True)
class ListArguments:
    """The arguments of ``load_model_selection_table``."""

    model_arch_table: str | None
    model_selection_table: str | None
    model_id_list: list[int | None] | None
    compile_params_list: list[str | None] | None
    fit_params_list: list[str | None] | None
    object_table: str | None


@dataclass(frozen=True)
class GridArguments:
    """The arguments of ``generate_model_configs``."""

    model_arch_table: str | None
    model_selection_table: str | None
    model_id_list: list[int | None] | None
    compile_params_grid: str | None
    fit_params_grid: str | None
    search_type: str | None
    num_configs: int | None
    random_state: int | None
    object_table: str | None


@entry(called="load_model_selection_table error")
def madlib_load_model_selection_table(db: Database, **arguments: Any) -> None:
    given = ListArguments(**arguments)
    arch = relations.filled(db, given.model_arch_table, argument="model_arch_table")
    objects = object_tables.require_table(db, given.object_table)
    name = new_table(db, given.model_selection_table, ("_summary",), argument="model_selection_table")
    ids = model_ids(db, arch, given.model_id_list)
    rows = grids.cross_product(
        ids,
        given.compile_params_list,
        given.fit_params_list,
        object_tables.known(db, objects),
        listener(db.plpy),
    )
    _create(db, name)
    _insert(db, name.sql, rows)
    _summarise(db, name, arch, objects)
    db.notice(f"{counted(len(rows), 'configuration')}")


@entry(called="generate_model_configs error")
def madlib_generate_model_configs(db: Database, **arguments: Any) -> None:
    """A table whose summary is gone gets a new one."""
    given = GridArguments(**arguments)
    arch = relations.filled(db, given.model_arch_table, argument="model_arch_table")
    objects = object_tables.require_table(db, given.object_table)
    ids = model_ids(db, arch, given.model_id_list)
    table = _existing(db, given.model_selection_table, arch)
    known: list[Row] = []
    if table is not None:
        # Until this transaction ends, no other session can add the configurations that we find missing.
        db.patiently(sql("LOCK TABLE {table} IN SHARE ROW EXCLUSIVE MODE", table=table.sql))
        found = db.rows(sql("SELECT model_id, compile_params, fit_params FROM {table}", table=table.sql))
        known = [(row["model_id"], row["compile_params"], row["fit_params"]) for row in found]
    rows = grids.generate(
        ids,
        given.compile_params_grid,
        given.fit_params_grid,
        given.search_type,
        given.num_configs,
        given.random_state,
        existing=known,
        known=object_tables.known(db, objects),
        listen=listener(db.plpy),
    )
    name = table.name if table else new_table(db, given.model_selection_table, ("_summary",))
    if table is None:
        _create(db, name)
    elif relations.beside(db, name, "_summary") is None:
        _create_summary(db, name)
    _insert(db, name.sql, rows)
    _summarise(db, name, arch, objects)
    db.notice(f"{counted(len(rows), 'configuration')} added, {len(known) + len(rows)} in all")


# -- arguments -----------------------------------------------------------------------------------------


def model_ids(db: Database, arch: Relation, given: list[int | None] | None) -> list[int]:
    ids = sorted({number for number in given or [] if number is not None})
    if not ids or len(ids) < len(set(given or [])):
        raise InvalidArgument("model_id_list cannot be empty, NULL or hold a NULL.")
    model_id, _ = relations.named(db, arch, ["model_id", "model_arch"])
    relations.require_readable(db, arch, [model_id])
    found = db.value(
        sql("SELECT count(DISTINCT model_id) FROM {arch} WHERE model_id = ANY ($1)", arch=arch.sql), ("integer[]",), ids
    )
    if found < len(ids):
        raise UndefinedObject(
            f"One or more model_id of ({','.join(map(str, ids))}) not found in table {arch.text}",
            hint=f"SELECT model_id, name FROM {arch.name.quoted} lists them.",
        )
    return ids


# -- tables --------------------------------------------------------------------------------------------


def _create(db: Database, name: Name) -> None:
    """Create the table with MADlib's columns.  With an identity column, unlike serial, INSERT needs no other right."""
    db.execute(
        sql(
            """
        CREATE TABLE {name} (
            mst_key integer GENERATED BY DEFAULT AS IDENTITY (CACHE 1),
            model_id integer,
            compile_params varchar,
            fit_params varchar,
            UNIQUE (model_id, compile_params, fit_params)
        )
        """,
            name=name.sql,
        )
    )
    _create_summary(db, name)


def _create_summary(db: Database, name: Name) -> None:
    db.execute(
        sql(
            "CREATE TABLE {companion} (model_arch_table varchar, object_table varchar) {distributed_by}",
            companion=name.suffixed("_summary").sql,
            distributed_by=platform.of(db).distributed_by("model_arch_table"),
        )
    )


def _insert(db: Database, table: Sql, rows: list[Row]) -> None:
    insert = sql("INSERT INTO {table} (model_id, compile_params, fit_params) VALUES ($1, $2, $3)", table=table)
    for row in rows:
        db.execute(insert, ("integer", "text", "text"), *row)


def _summarise(db: Database, name: Name, arch: Relation, objects: str | None) -> None:
    """Insert the summary's only row, unless it is there from an earlier call."""
    summary = name.suffixed("_summary").sql
    text = arch_text(db, name, arch)
    if not db.value(sql("SELECT count(*) FROM {summary}", summary=summary)):
        db.execute(sql("INSERT INTO {summary} VALUES ($1, $2)", summary=summary), ("text", "text"), text, objects)


def arch_text(db: Database, selection: Name, arch: Relation) -> str:
    """What the summary of a selection table calls its architectures.

    As it was written, as MADlib does, unless named_beside() would take another table for it.
    """
    read = relations.find(db, Name.parse(named_beside(db, selection, arch.text)))
    return arch.text if read is not None and read.oid == arch.oid else arch.name.quoted


def _existing(db: Database, text: str | None, arch: Relation) -> Relation | None:
    """The table to add to, if it exists; an error if it was made for another architecture table."""
    parsed = Name.parse(text, "model_selection_table")
    table = relations.find(db, parsed, (text or "").strip())
    if table is None:
        return None
    relations.require_columns(db, table, list(COLUMNS))
    summary = relations.beside(db, table, "_summary")
    if summary is None:
        return table
    relations.require_columns(db, summary, ["model_arch_table"])
    for row in db.rows(sql("SELECT DISTINCT model_arch_table FROM {summary}", summary=summary.sql)):
        known = row["model_arch_table"]
        other = relations.find(db, Name.parse(named_beside(db, table.name, known)))
        if other is None or other.oid != arch.oid:
            raise InvalidArgument(
                f"DL: Inconsistent model arch table. Use '{known}' if appending rows to '{table.text}'",
                hint="Or give the name of a new model selection table.",
            )
    return table
