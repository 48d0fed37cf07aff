"""The models that this session has read last: a call that predicts with one of them again need not read it again.

A model is the same for a user as long as the same tables have the same rows, and the user may read all.  One statement
finds that out: from the names, the catalog's rows about the tables and their columns (an ALTER or a GRANT writes new
ones), and the places and transactions of the tables' own rows.  What cannot be told that way is not remembered: views,
tables with policies or with tables that inherit from them, columns that the user may not read, models with registered
functions, and all models on Greenplum.
"""

from __future__ import annotations

from typing import Union

from cerebro_db.core.names import Name
from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import Sql, joined, literal, number_array, sql
from cerebro_db.core.sql_types import SqlType

from .. import platform
from ..database import relations, types
from ..database.access import Database
from ..database.kept import KeptByRole
from ..database.relations import Relation
from ..definitions import custom_functions
from ..definitions.references import ModelRef
from . import trained
from .trained import ModelTables, TrainedModel

MOST_MODELS = 8
MOST_ROWS = 200  # of a table: looking at more of them takes as long as reading the model

Key = tuple[Name, Union[int, None]]  # the name of the table as the caller wrote it, and the configuration


@dataclass(frozen=True)
class CachedModel:
    model: TrainedModel
    question: Sql  # for the mark
    mark: str
    types: list[SqlType]  # of users and extensions, to which statements cast; the mark says nothing of them

    def serves(self, db: Database, mark: str | None) -> bool:
        return self.mark == mark and all(types.may_use(db, one) for one in self.types)


_models: KeptByRole[Key, CachedModel] = KeptByRole(MOST_MODELS)


def read_model(db: Database, ref: ModelRef, key: int | None, tables: ModelTables | None = None) -> TrainedModel:
    """The model with this number in a model table; without a number, the best one.

    ``tables``: those of the model, if the call has found them.
    """
    return read_and_known(db, ref, key, tables)[0]


def read_and_known(
    db: Database, ref: ModelRef, key: int | None, tables: ModelTables | None = None
) -> tuple[TrainedModel, CachedModel | None]:
    """As ``read_model``, and what is remembered of it."""
    if not platform.of(db).runs_functions_in_session:
        return trained.read(db, tables or trained.tables_of(db, ref), key), None
    if tables is None:
        relations.hold(db, ref.table)  # before the mark is read
    asked = (ref.table, key)
    known = _models.get(asked)
    if known is not None and known.serves(db, _mark(db, known.question)):
        return known.model, known
    _models.drop(asked)
    tables = tables or trained.tables_held(db, ref)
    markable = all(table.kind == "r" and table.reads_all for table in tables.described)
    question = _question(ref.table, tables.described) if markable else None
    before = None if question is None else _mark(db, question)
    model = trained.read(db, tables, key)
    if question is None or before is None or not _may_be_remembered(db, model):
        return model, None
    version = model.version(db)
    if version is None or _mark(db, question) != before:  # something has changed while it was read
        return model, None
    model.known_version = version
    known = CachedModel(model=model, question=question, mark=before, types=_types_of_others(model))
    _models.put(asked, known)
    return model, known


def _types_of_others(model: TrainedModel) -> list[SqlType]:
    found: list[SqlType] = []

    def look(named: SqlType) -> SqlType:
        if not named.is_built_in:
            found.append(named)
        return named

    model.layout.settled(look)
    return found


def _may_be_remembered(db: Database, model: TrainedModel) -> bool:
    return (
        model.grouped is None
        and (model.chunked is None or model.is_registered)
        and not custom_functions.of(db, model.definition)
    )


def _mark(db: Database, question: Sql) -> str | None:
    """Another text whenever anything has changed; None: a change could go unseen, or the tables cannot be read.

    The first table, which the text names, is held already (``relations.hold``).
    """
    try:
        found: str | None = db.value(question)
        return found
    except db.plpy.SPIError as error:
        if not error.sqlstate.startswith("42"):  # a table is gone or may not be read: reading it says so
            raise
        return None


def _question(name: Name, tables: list[Relation]) -> Sql:
    """The statement whose answer is the mark.  It has no parameters, so that PostgreSQL plans it once per session."""
    oids = number_array([table.oid for table in tables])
    return sql(
        "SELECT CASE WHEN c.plain = {tables} AND {few} THEN concat_ws('|',"
        " pg_catalog.to_regclass({text})::oid, c.mark, a.mark, {marks}) END"
        " FROM (SELECT count(*) FILTER (WHERE c.relkind = 'r' AND m.amname = 'heap' AND NOT c.relrowsecurity"
        "   AND NOT c.relhassubclass AND pg_catalog.has_table_privilege(c.oid, 'SELECT')) AS plain,"
        "   string_agg(concat_ws(' ', n.nspname, c.relname, c.oid, c.xmin, c.ctid), ',' ORDER BY c.oid) AS mark"
        "  FROM pg_catalog.pg_class c JOIN pg_catalog.pg_am m ON m.oid = c.relam"
        "   JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = ANY ({oids}::oid[])) c,"
        " (SELECT string_agg(concat_ws(' ', a.xmin, a.ctid), ',' ORDER BY a.attrelid, a.attnum) AS mark"
        "  FROM pg_catalog.pg_attribute a WHERE a.attrelid = ANY ({oids}::oid[]) AND a.attnum > 0) a, {rows}",
        tables=len(tables),
        few=joined(" AND ", (sql("r{place}.n <= {most}", place=place, most=MOST_ROWS) for place in range(len(tables)))),
        marks=joined(", ", (sql("r{place}.mark", place=place) for place in range(len(tables)))),
        text=literal(name.quoted),
        oids=oids,
        rows=joined(", ", (_rows(place, table) for place, table in enumerate(tables))),
    )


def _rows(place: int, table: Relation) -> Sql:
    """The places, transactions and commands of the rows of a table.

    TRUNCATE in the transaction that made a table leaves its file, so its next rows may differ by their command alone.
    """
    return sql(
        "(SELECT count(*) AS n, string_agg(concat_ws(' ', s.tableoid, s.ctid, s.xmin, s.cmin), ',') AS mark"
        " FROM (SELECT tableoid, ctid, xmin, cmin FROM {table} LIMIT {most} + 1) s) r{place}",
        table=table.sql,
        most=MOST_ROWS,
        place=place,
    )
