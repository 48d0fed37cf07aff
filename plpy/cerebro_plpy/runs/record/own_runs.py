"""Opens the tables that the current role has chosen for a run of its own.

A summary, a layout, an archive and a row of another role's log name tables, too.  Whoever wrote them has chosen these,
and reading a table runs code of its owner: a view, a policy, the expression of an index.  So no other module opens a
table by a stored name (tests/core/test_stored_name_type.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from cerebro_db.core.errors import DependentObjects, WrongState
from cerebro_db.core.names import DATA_SCHEMA, PACKED_ENDINGS, Name, StoredName
from cerebro_db.core.packing.layout import Layout
from cerebro_db.core.records import dataclass
from cerebro_db.core.run_options import TABLES
from cerebro_db.core.sql import sql

from ...database import dropping, relations
from ...database.access import Database
from ...database.relations import Relation
from .log import RunLog
from .log.known import PACKED_VALIDATION

SOURCE, VALIDATION = TABLES
TABLES_OF_ROWS = ("r", "p")  # pg_class.relkind
MOST_RUNS = 20  # of a packed table that are looked at
DERIVED = re.compile(r"_packed(_[0-9]+)?$")  # training_rows._candidates


@dataclass(frozen=True)
class OwnRun:
    """A run of the current role; only ``of_model`` and ``of_number`` make it."""

    number: int
    _tables: Mapping[str, StoredName]
    _related: Mapping[str, StoredName]

    def source(self, db: Database) -> Relation | None:
        """The table whose rows the call of the run packed; None: it named rows that were packed before."""
        return self._opened(db, SOURCE)

    def validation(self, db: Database) -> Relation | None:
        """The table that the call of the run named as validation_table, and packed."""
        return self._opened(db, VALIDATION)

    def packed_validation(self, db: Database) -> Relation | None:
        """The packed rows on which the run evaluated its models; None: it had none.

        Their name was derived, and not given by the caller.  So the table must be the caller's own: after a DROP,
        anybody may have made another one of this name.
        """
        found = self._opened(db, PACKED_VALIDATION)
        if found is not None and not found.is_own:
            raise WrongState(
                f"the rows for validation of run {self.number} are in '{found.text}', which is no table of yours."
            )
        return found

    def related(self, db: Database, path: str) -> Relation | None:
        """The related table that the call of the run read at the end of a path."""
        stored = self._related.get(path)
        return None if stored is None else _existing(db, stored, f"related: {path}")

    @property
    def related_for_calls(self) -> dict[str, str]:
        """All related tables, as the argument ``related`` of another call of the same role names them."""
        return {path: stored.for_people for path, stored in self._related.items()}

    def _opened(self, db: Database, which: str) -> Relation | None:
        stored = self._tables.get(which)
        if stored is None:
            return None
        return _existing(db, stored, SOURCE if which == SOURCE else VALIDATION)


def _existing(db: Database, stored: StoredName, argument: str) -> Relation:
    return relations.existing(db, Name.parse(stored.for_people).quoted, argument=argument)


def of_trained(db: Database, table: Relation, layout: Layout) -> OwnRun | None:
    """The run that trained the models of a table, if the current role began it.  ``layout``: that of its summary."""
    summary = relations.beside(db, table, "_summary")
    if summary is None or "run" not in relations.columns(db, summary):
        return None
    relations.require_columns(db, summary, ["run"])
    return of_model(db, db.value(sql("SELECT run FROM {summary} LIMIT 1", summary=summary.sql)), layout)


def of_number(db: Database, run: int) -> OwnRun | None:
    """A run that the current role began; None: there is none of this number."""
    known = RunLog.of_caller(db, run).known
    options = known.options()
    return None if options is None else OwnRun(run, known.tables_of_rows(), options.related)


def of_model(db: Database, run: Any, layout: Layout) -> OwnRun | None:
    """The run that trained a model, if the current role began it.

    ``run`` and ``layout`` are what the summary of the model says.  None: another role began the run, the model was
    imported, or the run was forgotten.  The rows of the run must be those of the model, because a summary can have the
    number of any run.
    """
    if type(run) is not int:
        return None
    known = RunLog.of_caller(db, run).known
    options = known.options()
    if options is None or known.rows()[0] != [partition.sha256 for partition in layout.partitions]:
        return None
    return OwnRun(run, known.tables_of_rows(), options.related)


def of_packed(db: Database, table: Relation, layout: Layout) -> OwnRun | None:
    """The newest run of the current role that packed the rows of a table of its own, and read related tables.

    Another table may have had this name: the run has to have read them by the same plan.
    """
    if not table.is_own:
        return None
    rows = db.rows(
        sql(
            "SELECT run FROM cerebro.run_plan WHERE owner = current_user AND packed_table = $1"
            " ORDER BY run DESC LIMIT $2"
        ),
        ("text", "integer"),
        str(table.name),
        MOST_RUNS,
    )
    found = (row["run"] for row in rows if RunLog.of_caller(db, row["run"]).known.layout().related == layout.related)
    return next((own for one in found if (own := of_number(db, one)) is not None and own.related_for_calls), None)


# -- packed rows that nobody has named ------------------------------------------------------------------------


def rows_of_models(db: Database, model_table: Name) -> list[StoredName]:
    """The packed rows in DATA_SCHEMA on which the caller trained the models of a table, and others of its name."""
    run = None
    summary = relations.beside(db, model_table, "_summary")
    is_own = summary is not None and summary.is_own and summary.kind in TABLES_OF_ROWS
    if summary is not None and is_own and "run" in relations.columns(db, summary):
        run = db.value(sql("SELECT run FROM {summary} LIMIT 1", summary=summary.sql))
    return _rows_of(db, run if type(run) is int else None, model_table)


def rows_of_version(db: Database, registered_model: str | None, version: int | None) -> list[StoredName]:
    """The packed rows in DATA_SCHEMA on which the caller trained a version of a registered model."""
    run = db.value(
        sql("SELECT run FROM cerebro.registered_versions WHERE registered_model = $1 AND version = $2"),
        ("text", "integer"),
        registered_model,
        version,
    )
    return _rows_of(db, run)


def _rows_of(db: Database, run: int | None, model_table: Name | None = None) -> list[StoredName]:
    rows = db.rows(
        sql(
            "SELECT DISTINCT packed_table FROM cerebro.run_plan"
            " WHERE owner = current_user AND packed_table IS NOT NULL AND (run = $1 OR model_table = $2)"
        ),
        ("bigint", "text"),
        run,
        None if model_table is None else str(model_table),
    )
    found = [row["packed_table"] for row in rows]
    return [StoredName(text) for text in found if _is_derived(Name.parse(text))]


def _is_derived(name: Name) -> bool:
    """Whether a verb may have made this name; a table of the user's may be in the schema, too."""
    return name.schema == DATA_SCHEMA and DERIVED.search(name.table) is not None


def drop_unneeded(db: Database, packed: Sequence[StoredName], *, besides: int | None = None) -> None:
    """Drop those of these packed rows that the caller owns and that no run of the caller's needs.

    A run needs them until it has finished, and then as long as there are models of it or versions in the registry: both
    are evaluated on them.  They also stay while a model table of the caller's cannot be read: it may be one of them.
    ``besides``: a run that needs nothing any more.
    """
    found = {text: relations.find(db, Name.parse(text)) for text in {one.for_people for one in packed}}
    there = {text: table for text, table in found.items() if table is not None and table.is_own}
    if not there:
        return
    rows = db.rows(
        sql(
            "SELECT run, packed_table, status, model_table FROM cerebro.runs"
            " WHERE owner = current_user AND packed_table = ANY ($1) AND run IS DISTINCT FROM $2"
        ),
        ("text[]", "bigint"),
        sorted(there),
        besides,
    )
    registered = _registered_runs(db, [row["run"] for row in rows])
    kept = {row["packed_table"] for row in rows if row["status"] != "finished" or row["run"] in registered}
    unneeded = there.keys() - kept
    if not unneeded:
        return  # the list of models is long in some databases
    models = db.rows(
        sql(
            "SELECT model_table, run, owner = current_user AS own, run IS NULL AND bytes IS NULL AS unread"
            " FROM cerebro.models"
        )
    )
    with_models = {row["run"] for row in models if row["own"]}
    of_others = {row["model_table"] for row in models if not row["own"]}  # the caller may have given one away
    unneeded -= {row["packed_table"] for row in rows if row["run"] in with_models or row["model_table"] in of_others}
    unread = [row["model_table"] for row in models if row["own"] and row["unread"]]
    for text in sorted(unneeded):
        if unread:
            db.warning(
                f"the packed rows in {text} stay, because the model table {unread[0]} may need them and cannot be read"
                " now",
                hint="cerebro.forget drops them with the last run that was trained on them.",
            )
            continue
        beside = relations.beside_all(db, there[text], PACKED_ENDINGS).values()
        try:
            dropping.drop(db, [one for one in beside if one.kind in TABLES_OF_ROWS])
        except DependentObjects as error:
            db.warning(f"the packed rows in {text} stay, because other objects depend on them", hint=error.detail)


def _registered_runs(db: Database, runs: Sequence[int]) -> set[int]:
    """Those of these runs that have trained a version in the registry of a model that the caller owns."""
    rows = db.rows(
        sql(
            "SELECT DISTINCT v.run FROM cerebro.registered_versions v"
            " JOIN cerebro_internal._my_registered m ON m.registered_model = v.registered_model"
            " WHERE m.owns AND v.unregistered_at IS NULL AND v.run = ANY ($1)"
        ),
        ("bigint[]",),
        runs,
    )
    return {row["run"] for row in rows}
