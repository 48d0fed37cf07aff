"""Which tables are a model's, among those with the name of a model table and the endings of the tables beside it."""

from __future__ import annotations

from typing import Any

from cerebro_db.core.errors import DuplicateTable, NotPermitted, Unsupported
from cerebro_db.core.models import model_columns
from cerebro_db.core.models.model_columns import COMPANIONS, MST, PLAIN, ModelColumns
from cerebro_db.core.names import Name
from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import sql

from ..database import relations
from ..database.access import Database
from ..database.relations import Column, Relation

# Whoever reads or replaces a model locks the table of this ending first, and the last one last.
ENDINGS = ("", "_weights", "_groups", "_info", "_summary")
assert set(ENDINGS) == {"", *COMPANIONS}
TABLES = ("r", "p")  # pg_class.relkind


@dataclass(frozen=True)
class TablesOfModel:
    """The tables of a model that are there, and whatever else has one of their names; both by their endings."""

    tables: dict[str, Relation]
    others: dict[str, Relation]
    named: ModelColumns | None  # what the columns of the model table are called; None: it is gone, or it is none
    grouped: bool  # whether the summary says that there are models of groups

    @property
    def is_model(self) -> bool:
        """Whether the tables are those of a model, some of which may be gone."""
        return "" not in self.others and bool({"_summary", "_info"} & set(self.tables))


def of(db: Database, name: Name) -> TablesOfModel:
    found = {ending: relations.find(db, name.suffixed(ending)) for ending in ENDINGS}
    there = {ending: relation for ending, relation in found.items() if relation is not None}
    present = {ending: relations.columns(db, relation) for ending, relation in there.items()}
    owner = next((relation.owner for relation in there.values()), None)  # a table of another one only lies there
    tables = {
        ending: relation
        for ending, relation in there.items()
        if ending and relation.kind in TABLES and relation.owner == owner and _is_companion(ending, present[ending])
    }
    named = model_columns.of(present.get("", ()))
    # The columns of a model alone could be those of a table of architectures, or of a copy.
    is_described = "_summary" in tables or (named is not None and named.has_key and "_info" in tables)
    if named is not None and there[""].kind in TABLES and is_described:
        tables = {"": there[""], **tables}
    others = {ending: relation for ending, relation in there.items() if ending not in tables}
    return TablesOfModel(tables, others, named, "group_by" in present.get("_summary", ()))


def _is_companion(ending: str, present: dict[str, Column]) -> bool:
    """Whether a table with these columns is the one beside a model table that has this ending."""
    names, forms = set(present), (PLAIN, MST)
    if ending == "_summary":
        return "layout" in names and any(form.model_table in names for form in forms)
    if ending == "_info":
        return any({form.configuration, *form.of_info} <= names for form in forms)
    if ending == "_weights":
        return {"start", "payload"} <= names
    return model_columns.has_groups(names)


def of_new_model(db: Database, text: str | None, replace: bool | None, *, argument: str = "model_table") -> Name:
    """The name, with its schema, for the tables of a new model; an error if something is in their way.

    ``replace``: a model of the user's may be there.  None: the function has no such argument.
    """
    name = relations.new_name(db, text, argument=argument)
    require_makeable(db, name, replace=bool(replace), offer=replace is not None, shown=(text or "").strip())
    return name


def require_makeable(db: Database, name: Name, *, replace: bool, offer: bool = False, shown: str | None = None) -> None:
    """An error unless the tables of a model can be made under this name.

    ``replace``: those of a model of the user's that are there will be dropped.  ``offer``: the function that was called
    has an argument that allows this.  ``shown``: the name as the user wrote it.
    """
    parts = of(db, name)
    if replace and (parts.tables or parts.others):
        _require_replaceable(db, name, parts, new=offer)
        return
    hint = "Choose another name."
    if parts.is_model and not parts.others:
        instead = "replace => true puts the new model in its place when that is complete. " if offer else ""
        hint = f"A model has it. {instead}SELECT cerebro.drop_model('{name}'); drops that model. Or {hint.lower()}"
    for ending, blocking in (*parts.others.items(), *parts.tables.items()):
        raise DuplicateTable(f"'{blocking.name if ending else shown or name}' already exists.", hint=hint)


def _require_replaceable(db: Database, name: Name, parts: TablesOfModel, *, new: bool) -> None:
    """``new``: a new model may need tables that the old one does not have."""
    needed = set(ENDINGS) if new else {"", "_info", "_summary", *(("_groups",) if parts.grouped else ())}
    other = next((one for ending, one in parts.others.items() if ending in needed), None)
    if other is not None:
        raise DuplicateTable(
            f"'{other.name}' is not part of a model, so it cannot be replaced.", hint="Choose another name."
        )
    for table in parts.tables.values():
        relations.require_own(db, table, "replace it")
    view = _view_on(db, [table.oid for table in parts.tables.values()])
    if view is not None:
        raise DuplicateTable(
            f"'{name}' cannot be replaced, because {view} depends on it.",
            hint="It needs the old model. Let it use another one first, or choose another name.",
        )


def _view_on(db: Database, tables: list[int]) -> str | None:
    """A view that depends on one of these tables, which therefore cannot be dropped."""
    found = db.value(
        sql(
            "SELECT min(r.ev_class::pg_catalog.regclass::pg_catalog.text) FROM pg_catalog.pg_depend d"
            " JOIN pg_catalog.pg_rewrite r ON r.oid = d.objid"
            " WHERE d.classid = 'pg_catalog.pg_rewrite'::pg_catalog.regclass"
            " AND d.refclassid = 'pg_catalog.pg_class'::pg_catalog.regclass AND r.ev_class <> d.refobjid"
            " AND d.refobjid = ANY ($1::oid[])"
        ),
        ("bigint[]",),
        tables,
    )
    return None if found is None else f"the view {found}"


def require_droppable(db: Database, table: Relation) -> None:
    """An error unless the user has the rights of the table's owner."""
    if table.kind not in TABLES:
        raise Unsupported(
            f"'{table.text}' is a {relations.READABLE.get(table.kind, 'relation')}, not a table.",
            hint="cerebro.models lists the model tables.",
        )
    owner: dict[str, Any] | None = db.one(
        sql(
            "SELECT pg_catalog.pg_has_role(c.relowner, 'USAGE') AS is_mine,"
            " pg_catalog.pg_get_userbyid(c.relowner)::pg_catalog.text AS name"
            " FROM pg_catalog.pg_class c WHERE c.oid = $1::oid"
        ),
        ("bigint",),
        table.oid,
    )
    if owner is not None and not owner["is_mine"]:
        raise NotPermitted(f"'{table.text}' belongs to {owner['name']}.", hint="Only its owner can drop it.")
