"""A trained model, read from the model table of a run and the tables beside it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any

from cerebro_db.core import codec, documents
from cerebro_db.core.architecture import keras_json
from cerebro_db.core.codec import OneOf
from cerebro_db.core.errors import (
    BadData,
    CerebroError,
    InvalidArgument,
    NotPermitted,
    UndefinedColumn,
    UndefinedObject,
    WrongState,
)
from cerebro_db.core.models import model_columns
from cerebro_db.core.models.metrics import MAX
from cerebro_db.core.models.model_columns import (
    COMPANIONS,
    GROUP_COLUMNS,
    MST,
    OF_GROUPS,
    PLAIN,
    ModelColumns,
    has_groups,
)
from cerebro_db.core.names import split_list
from cerebro_db.core.options import NEW_GROUPS
from cerebro_db.core.packing.layout import GroupColumn, Layout, Variable
from cerebro_db.core.packing.preparation import OneHot
from cerebro_db.core.parameters import flat, params
from cerebro_db.core.records import dataclass, field
from cerebro_db.core.sql import Sql, identifier, joined, sql
from cerebro_db.core.sql_types import SqlType

from .. import platform
from ..database import relations, types
from ..database.access import Database
from ..database.relations import Column, Relation
from ..definitions import custom_functions, references
from ..definitions.references import ModelRef
from ..packing.rows.summary import parsed, with_labels
from ..registry import stored
from . import document_columns, run_memory, weights
from .weights import Body

LONGEST_PARAMETERS = 10_000_000  # characters, as in the log


@dataclass(frozen=True)
class Grouped:
    """The models of groups beside a model on all rows."""

    table: Relation  # the table ``_groups``
    columns: tuple[GroupColumn, ...]  # that tell the groups apart
    new_groups: str

    @property
    def size(self) -> Sql:
        """The bytes of a model's weights, over a row of the table; NULL: there is no model.

        The weights of a registered model are in another table, because who may use it may not read them.
        """
        return sql("bytes") if references.is_registered(self.table) else sql("octet_length(weights)::bigint")

    def chosen(self, models: Relation, configuration: int | None, columns: Sql) -> Sql:
        """For each group these columns of the row of its best model, or of the configuration's, and the model's size.

        The size is NULL if the group has no such model.  The architecture of a configuration is in the model table,
        which has those with a model on all rows.
        """
        asked = sql("true") if configuration is None else sql("configuration = {key}", key=configuration)
        return sql(
            "SELECT DISTINCT ON (group_key) {columns}, {size} AS size FROM {groups}"
            " WHERE {asked} AND configuration IN (SELECT configuration FROM {models})"
            " ORDER BY group_key, {size} IS NULL, rank, configuration",
            columns=columns,
            size=self.size,
            groups=self.table.sql,
            asked=asked,
            models=models.sql,
        )


@dataclass(frozen=True)
class ModelTables:
    """A model table, and the tables beside it that are there."""

    table: Relation
    info: Relation | None
    summary: Relation | None
    weights: Relation | None
    groups: Relation | None

    @property
    def described(self) -> list[Relation]:
        """Those that say all of a model but its weights."""
        return [one for one in (self.table, self.info, self.summary) if one is not None]

    def must_seal(self, db: Database) -> bool:
        """Whether the weights must not leave the caller's session, because the caller may not read them."""
        return references.is_registered(self.table) and not may_read(db, self.table)

    def memory_mb(self, db: Database) -> int | None:
        """What ``TrainedModel.memory_mb`` will be, for a trainer that starts before the model is read."""
        with contextlib.suppress(CerebroError):  # reading the model raises the error
            return None if self.summary is None else run_memory.of_summary(db, self.summary)
        return None


@dataclass
class TrainedModel:
    """One trained model of a model table."""

    tables: ModelTables
    key: int
    definition: dict[str, Any]
    layout: Layout  # of the packed table that it was trained on
    chunked: Relation | None  # the table of the weights if they are too large for one value
    named: ModelColumns  # what the columns of these tables are called
    loss_name: str | None = None  # as these tables have them
    metric_names: list[str] | None = None
    known_version: str | None = None  # of the weights, if it is certain (model_cache.py)
    remembered: dict[Any, Any] = field(default_factory=dict)  # what calls have made of it for the next call
    grouped: Grouped | None = None  # the models of groups beside it
    group_number: int | None = None  # it is one of them, and its weights are in their table
    memory_mb: int | None = None  # that a trainer may use for it, as its run had it; None: as the role's limit says

    def of_group(self, grouped: Grouped, number: int) -> TrainedModel:
        """The model of a group, of the same configuration."""
        return TrainedModel(
            tables=self.tables,
            key=self.key,
            definition=self.definition,
            layout=self.layout,
            chunked=None,
            named=self.named,
            grouped=grouped,
            group_number=number,
            memory_mb=self.memory_mb,
        )

    @property
    def table(self) -> Relation:
        return self.tables.table

    @property
    def is_registered(self) -> bool:
        """Whether it is a version of a registered model, which never changes."""
        return references.is_registered(self.table)

    def weights(self, db: Database, *, sealed: bool = False) -> Iterator[bytes]:
        """The weights, piece by piece; Python never holds more than one piece.

        ``sealed``: they go to a sealed worker, so the user need not be allowed to read those of a registered model.
        """
        if not self.is_registered:
            return self._of_own_tables(db)
        if not sealed and not may_read(db, self.table):
            raise NotPermitted(
                f"'{self.table.text}' is shared with you to predict with, and this needs its weights.",
                hint="cerebro.share(…, 'read') gives the right to read them.",
            )
        return stored.pieces(db, self.table.name, self.key, self.group_number, sealed=sealed)

    def _of_own_tables(self, db: Database) -> Iterator[bytes]:
        if self.group_number is None:
            return weights.pieces(db, *self._place())
        assert self.grouped is not None
        return weights.of_group(db, self.grouped.table.sql, self.group_number, self.key)

    def body(self, db: Database) -> Body | None:
        """The frozen body that its table has once for several models; None: its weights are its own."""
        table = self.chunked
        if table is None or self.is_registered or self.group_number is not None:
            return None
        if "body" not in relations.columns(db, table):
            return None
        return weights.referred(db, table.sql, self.key, self.named)

    def own_rows(self, db: Database) -> Iterator[tuple[int, bytes]]:
        """Of a model that refers to a body: its other weights, with their starts."""
        assert self.chunked is not None
        return weights.own_rows(db, self.chunked.sql, self.key, self.named)

    def version(self, db: Database) -> str | None:
        """Another one whenever the weights have changed; None if that cannot be said."""
        if self.group_number is not None:
            return None  # a trainer that still has weights of another group must not take them for these
        if self.known_version is not None:
            return self.known_version
        if self.is_registered:
            return f"registered {self.table.oid}"
        table = self.chunked or self.table
        if table.kind not in ("r", "p") or not platform.of(db).runs_functions_in_session:
            return None
        if not table.reads_all:  # then the user may not read ctid and xmin
            return None
        return weights.version(db, *self._place())

    def _place(self) -> tuple[Sql, Sql | None, int, ModelColumns]:
        return self.table.sql, self.chunked.sql if self.chunked is not None else None, self.key, self.named


def read(db: Database, tables: ModelTables, key: int | None) -> TrainedModel:
    """The model with this number in a model table.

    Without a number, the one that is best by the objective of its run.
    """
    model = _read(db, tables, key)
    if key is not None and model.is_registered and model.grouped is not None:
        count = sql("SELECT count(*) FROM {table}", table=model.table.sql)
        if db.value(count) > 1:
            raise InvalidArgument(
                f"'{model.table.text}' has the best model of each group, so there is no configuration to choose.",
                hint="Leave configuration out.",
            )
    return model


def of_configuration(db: Database, model: TrainedModel, key: int) -> TrainedModel:
    """The architecture of a configuration whose models predict some groups.

    A version of a registered model has the weights on all rows of one configuration only.
    """
    return model if key == model.key else _read(db, model.tables, key)


def _read(db: Database, tables: ModelTables, key: int | None) -> TrainedModel:
    table, info, summary = tables.table, tables.info, tables.summary
    present, known, described = relations.columns_of(db, table, info, summary)
    named = require_trained(table, present)
    document_columns.require(present, table.text, named.types)
    document_columns.require(described, f"{table.text}_summary", named.types)
    if summary is not None and not named.has_key:
        return _read_single(db, tables, summary, named, key, (present, described))
    needed = {named.configuration, *named.of_info}
    if info is None or summary is None or "layout" not in described or not needed <= set(known):
        raise UndefinedObject(
            db.words.no_companions.format(
                table=table.text, info=table.name.suffixed("_info"), summary=table.name.suffixed("_summary")
            ),
            hint="cerebro.fit() and cerebro.materialize() make them; keep the three together.",
        )
    document_columns.require(known, f"{table.text}_info", named.types)
    needed |= {"functions"} & set(known)
    for one, its, names in ((table, present, named.of_table), (info, known, needed), (summary, described, ("layout",))):
        relations.require_readable(db, one, [column for name, column in its.items() if name in names])
    number = identifier(named.configuration)
    said = _said(db, tables, summary, described, "layout", *(["direction"] if key is None else []))
    if key is None:
        relations.require_readable(db, info, [known[name] for name in named.figures if name in known])
        key = next(iter(best_keys(db, table, info, said.row["direction"], named, 1)), None)
        if key is None:
            raise WrongState(
                f"model_table: '{table.text}' has no model.",
                hint=f"SELECT {named.configuration}, status, reason FROM {info.name}; says why.",
            )
    row = db.one(
        sql(
            "{selected} FROM {info} t JOIN {table} m USING ({number}) WHERE {number} = $1",
            selected=_selected(named, known),
            info=info.sql,
            table=table.sql,
            number=number,
        ),
        ("integer",),
        key,
    )
    if row is None:
        there = sql("SELECT 1 FROM {info} WHERE {number} = $1", info=info.sql, number=number)
        if db.value(there, ("integer",), key):
            raise WrongState(
                f"{db.words.configuration} {key} left no model",
                hint=f"SELECT status, reason FROM {info.name} WHERE {named.configuration} = {key}; says why.",
            )
        raise UndefinedObject(
            db.words.no_configuration.format(table=table.text, key=key),
            hint=f"SELECT {named.configuration}, status FROM {info.name}; lists those that it has.",
        )
    chunked = _chunks(db, tables, named) if row["large"] else None
    if row["large"] and not (references.is_registered(table) or _has_chunks(db, chunked, number, key)):
        raise WrongState(f"model {key} of {table.text} has no weights")
    model = _model(db, tables, said, named, key, row, chunked=chunked)
    model.grouped = _grouped(db, tables, said)
    return model


@dataclass(frozen=True)
class Said:
    """What the summary beside a model table says."""

    summary: Relation
    described: dict[str, Column]  # its columns
    row: dict[str, Any]


def _said(db: Database, tables: ModelTables, summary: Relation, described: dict[str, Column], *names: str) -> Said:
    """These columns, those about groups if it has them, and the memory if the caller may read it."""
    if described.keys() >= OF_GROUPS.keys():
        document_columns.require(described, f"{tables.table.text}_summary", OF_GROUPS)
        names += tuple(OF_GROUPS)
    relations.require_readable(db, summary, [described[name] for name in names if name in described])
    if run_memory.COLUMN in described and described[run_memory.COLUMN].readable:
        names += (run_memory.COLUMN,)
    listed = joined(", ", map(identifier, names))
    row = db.one(sql("SELECT {listed} FROM {summary} LIMIT 1", listed=listed, summary=summary.sql))
    return Said(summary, described, row or dict.fromkeys(names))


def _grouped(db: Database, tables: ModelTables, said: Said) -> Grouped | None:
    """The models of groups, if the summary says that there are some."""
    table, groups, row = tables.table, tables.groups, said.row
    if row.get("group_by") is None:
        return None
    where = f"{table.text}_summary"
    names = split_list(row["group_by"], "group_by")
    told = codec.read(list[SqlType], row["group_types"], f"{where}: group_types")
    if len(told) != len(names):
        raise BadData(f"{where}: group_types has to have {len(names)} types.")
    kinds = [types.settled(db, one) for one in told]
    present = relations.columns(db, groups) if groups is not None else {}
    if groups is None or not has_groups(present):
        raise UndefinedObject(
            f"model_table: '{table.text}' does not have its table {table.name.suffixed('_groups')}, which has the"
            " models of the groups, or that table lacks columns.",
            hint="cerebro.materialize() makes the tables anew; keep them together.",
        )
    document_columns.require(present, groups.text, GROUP_COLUMNS)
    relations.require_readable(db, groups, [present[name] for name in GROUP_COLUMNS])
    columns = tuple(GroupColumn(name, kind) for name, kind in zip(names, kinds))
    new_groups = codec.read(Annotated[str, OneOf(*NEW_GROUPS)], row["new_groups"], f"{where}: new_groups")
    return Grouped(groups, columns, new_groups)


def tables_of(db: Database, ref: ModelRef) -> ModelTables:
    """The tables of the model that a call names; an error unless the model table is there and may be used.

    They stay as they are until the transaction ends.
    """
    relations.hold(db, ref.table)
    return tables_held(db, ref)


def tables_held(db: Database, ref: ModelRef) -> ModelTables:
    """As ``tables_of``, where the model table is held already."""
    table = relations.there(db, ref.table, ref.text, argument="model_table")
    registered = references.is_registered(table)
    if registered and not table.reads_all:
        raise NotPermitted(
            f"permission denied to use the registered model '{table.table}'.",
            hint="Its owner can say: SELECT cerebro.share(…);",
        )
    tables = tables_beside(db, table)
    if registered:  # who may use it may not read its weights
        return tables
    beside = [one for one in (tables.info, tables.summary, tables.weights, tables.groups) if one is not None]
    return replace(tables, table=relations.readable(db, table, beside))


def tables_of_name(db: Database, text: str | None) -> ModelTables:
    """As ``tables_of``, of the name of a table; it names no registered model."""
    return tables_of(db, references.table_ref(db, text))


def tables_beside(db: Database, table: Relation) -> ModelTables:
    """A model table that is known, with the tables beside it."""
    found = relations.beside_all(db, table, COMPANIONS)
    info, summary, weights, groups = (found.get(ending) for ending in COMPANIONS)
    return ModelTables(table=table, info=info, summary=summary, weights=weights, groups=groups)


def may_read(db: Database, table: Relation) -> bool:
    """Whether the caller may read the weights of a registered model."""
    may = sql("SELECT pg_catalog.has_table_privilege(pg_catalog.to_regclass($1), 'SELECT')")
    return bool(db.value(may, ("text",), table.name.suffixed(stored.WEIGHTS).quoted))


def _has_chunks(db: Database, chunked: Relation | None, number: Sql, key: int) -> bool:
    if chunked is None:
        return False
    there = sql("SELECT 1 FROM {chunked} WHERE {number} = $1 LIMIT 1", chunked=chunked.sql, number=number)
    return bool(db.value(there, ("integer",), key))


def require_trained(table: Relation, present: dict[str, Column]) -> ModelColumns:
    """What its columns are called; an error unless these are the columns of a model table."""
    named = model_columns.of(present)
    if named is None:
        plain = ", ".join(PLAIN.of_table)
        raise UndefinedColumn(
            f"'{table.text}' is not a table of trained models: it does not have the columns {plain}"
            f" (or {', '.join(MST.of_table)}, as in MADlib).",
            hint="cerebro.train() and cerebro.fit() make such tables.",
        )
    return named


def best_keys(
    db: Database, table: Relation, info: Relation, direction: str | None, named: ModelColumns, most: int | None
) -> list[int]:
    """The models that are best by the objective of their run, which has this direction; the best first.

    An ensemble comes before its members: the rows for validation, by which they were chosen, flatter them more.  It is
    known by its lack of a training loss.  A model that was trained again on all rows has the figures of the model that
    it comes from, and no training loss; it comes after that model in the table, and so before it here.
    """
    first, *others = (sql("i.{figure}", figure=identifier(figure)) for figure in named.figures)
    validated, trained = others
    ensembles = sql("{trained} IS NULL AND {judged} IS NOT NULL", trained=trained,
                    judged=validated if direction is None else first)  # fmt: skip
    rows = db.rows(
        sql(
            "SELECT i.{number} AS number FROM {info} i JOIN {table} m USING ({number})"
            " ORDER BY {ensembles} DESC, {first} {order} NULLS LAST, {others},"
            " CASE WHEN {ensembles} THEN -i.{number} ELSE i.{number} END LIMIT $1",
            ensembles=ensembles,
            number=identifier(named.configuration),
            info=info.sql,
            table=table.sql,
            first=first,
            order=sql("DESC") if direction == MAX else sql("ASC"),
            others=joined(", ", (sql("{figure} NULLS LAST", figure=figure) for figure in others)),
        ),
        ("integer",),
        most,
    )
    return [row["number"] for row in rows]


def _read_single(
    db: Database,
    tables: ModelTables,
    summary: Relation,
    named: ModelColumns,
    key: int | None,
    columns: tuple[dict[str, Column], dict[str, Column]],
) -> TrainedModel:
    """The model of a table that has one, and no column with its number.  ``columns``: of the table, and its summary."""
    table, (its, present) = tables.table, columns
    if key is not None:
        raise InvalidArgument(
            db.words.only_model.format(table=table.text, key=key), hint=f"Leave {db.words.configuration} out."
        )
    relations.require_columns(db, summary, [*named.parameters, "layout"], present=present)
    of_summary = [name for name in (*named.of_info, "functions") if name in present]
    relations.require_readable(db, summary, [present[name] for name in of_summary])
    relations.require_readable(db, table, [its[name] for name in named.of_table])
    selected = _selected(named, present)
    row = db.one(sql("{selected} FROM {summary} t, {table} m", selected=selected, summary=summary.sql, table=table.sql))
    if row is None:
        raise WrongState(f"Input table '{table.text}' is empty!")
    chunked = _chunks(db, tables, named) if row["large"] else None
    said = _said(db, tables, summary, present, "layout")
    return _model(db, tables, said, named, 1, row, chunked=chunked)


def _chunks(db: Database, tables: ModelTables, named: ModelColumns) -> Relation | None:
    """The table of the weights that are too large for one value."""
    found = tables.weights
    if found is not None:
        document_columns.require(relations.columns(db, found), f"{tables.table.text}_weights", named.types)
    return found


def _selected(named: ModelColumns, present: dict[str, Column]) -> Sql:
    """What is read of a model: SELECT … over its row ``t`` of _info or _summary, and its row ``m`` of the model table.

    ``pinned`` names the versions of custom functions that it was trained with; older tables have no column for them.
    """
    return sql(
        "SELECT {parameters}, t.{loss} AS loss_name, t.{metrics} AS metric_names,"
        " concat_ws(' ', t.{loss}, t.{metrics}::text, {functions}) AS pinned,"
        " m.{architecture}::text AS arch, m.{weights} IS NULL AS large",
        parameters=joined(", ", (sql("t.{one}::text", one=identifier(one)) for one in named.parameters)),
        loss=identifier(named.loss_name),
        metrics=identifier(named.metric_names),
        functions=sql("t.functions::text") if "functions" in present else sql("NULL"),
        architecture=identifier(named.architecture),
        weights=identifier(named.weights),
    )


def _model(
    db: Database,
    tables: ModelTables,
    said: Said,
    named: ModelColumns,
    key: int,
    row: dict[str, Any],
    *,
    chunked: Relation | None,
) -> TrainedModel:
    where = f"the parameters of configuration {key} of '{tables.table.text}'"
    return TrainedModel(
        tables=tables,
        key=key,
        definition=_definition(db, row, where),
        layout=_layout(db, tables.table, said),
        chunked=chunked,
        named=named,
        loss_name=row["loss_name"],
        metric_names=row["metric_names"],
        memory_mb=run_memory.of_row(said.row, said.summary),
    )


def _definition(db: Database, row: dict[str, Any], where: str) -> dict[str, Any]:
    architecture = keras_json.architecture(row["arch"])
    known = custom_functions.known(db, pinned=row["pinned"])  # in the versions that the model was trained with
    if "parameters" in row:
        decoded = documents.decoded(row["parameters"], where, most=LONGEST_PARAMETERS)
        compiled, fit = flat.recorded(decoded, where, known)
    else:
        compiled = params.compile_params(row["compile_params"], known)
        fit = params.fit_params(row["fit_params"], tensorboard=True)
    return {"architecture": architecture, "compile": keras_json.for_outputs(compiled, architecture), "fit": fit}


def _layout(db: Database, table: Relation, said: Said) -> Layout:
    """The layout of the packed table that the model was trained on, with the labels that the summary has now."""
    layout = said.row["layout"]
    if layout is None:
        raise WrongState(f"{table.text}_summary has no layout", hint="cerebro.materialize() makes the tables anew.")
    return with_labels(db, said.summary, parsed(db, layout, f"{table.text}_summary"), said.described)


def class_labels(output: Variable) -> list[str | None]:
    """What a prediction calls each class: its label (None for NULL), or its number for a class without one."""
    labels = output.preparation.labels if isinstance(output.preparation, OneHot) else ()
    width = output.shape[-1] if output.shape else 1
    return [*labels, *map(str, range(len(labels), width))]
