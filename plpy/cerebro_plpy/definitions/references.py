"""References to registered models: ``churn@production``, ``churn@3`` and ``churn@latest``."""

from __future__ import annotations

import re

from cerebro_db.core.errors import InvalidArgument, UndefinedObject
from cerebro_db.core.names import Name
from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import sql

from ..database import relations
from ..database.access import Database
from ..database.entry import entry
from ..database.relations import Relation

SCHEMA = "cerebro_registry"
NAME = re.compile(r"[a-z_][a-z0-9_]{0,39}")
REFERENCE = re.compile(r"([a-z_][a-z0-9_]{0,39})@([a-z0-9_]{1,40})")
LATEST = "latest"  # the highest version


@dataclass(frozen=True)
class ModelRef:
    """The model table that a call names: by its own name, or as a registered model.

    It is made once, at the beginning of a call, so that the whole call reads the same version.
    """

    given: str  # what the caller wrote
    table: Name
    is_reference: bool

    @classmethod
    def of_table(cls, table: Name) -> ModelRef:
        return cls(given=table.quoted, table=table, is_reference=False)

    @property
    def text(self) -> str:
        """What errors call the model table."""
        return self.table.quoted if self.is_reference else self.given


def model_ref(db: Database, text: str | None) -> ModelRef:
    """The model table that the argument ``model_table`` names; an error if it is an unknown registered model."""
    return of_reference(db, text or "") if is_reference(text) else table_ref(db, text)


def table_ref(db: Database, text: str | None) -> ModelRef:
    """As ``model_ref``, where only the name of a table will do."""
    table = relations.input_name(db, text, "model_table")
    return ModelRef(given=(text or "").strip(), table=table, is_reference=False)


def of_reference(db: Database, text: str) -> ModelRef:
    """The version of a registered model."""
    return ModelRef(given=text.strip(), table=table_of(db, text), is_reference=True)


def is_reference(text: str | None) -> bool:
    """Whether a text names a registered model.  No name of a table has an @ outside of double quotes."""
    return text is not None and "@" in text and '"' not in text


def is_registered(table: Relation) -> bool:
    return table.schema == SCHEMA


def refuse_reference(text: str | None, argument: str, why: str) -> None:
    """An error if the text names a registered model where only a table will do."""
    if is_reference(text):
        raise InvalidArgument(
            f"{argument}: '{(text or '').strip()}' is a registered model, and {why}.",
            hint="SELECT model_table FROM cerebro.registered_versions says which table a version was copied from.",
        )


def table_of(db: Database, text: str) -> Name:
    """The model table of a registered model."""
    found: str | None = db.value(sql("SELECT cerebro_internal._registered($1)"), ("text",), text)
    if found is None:
        raise _unknown(db, text.strip())
    return Name.parse(found)


def table_name(model: str, version: int) -> Name:
    return Name(SCHEMA, f"{model}@{version}")


@entry
def registered_table(db: Database, reference: str | None) -> str:
    """The model table of a registered model, as a text."""
    if not is_reference(reference):
        raise InvalidArgument(
            "reference must be MODEL@ALIAS or MODEL@VERSION.", hint="For instance 'churn@production'."
        )
    return table_of(db, reference or "").quoted


def require_name(text: str | None, argument: str, example: str) -> str:
    """The name of a model or of an alias."""
    if text is None or not NAME.fullmatch(text) or (argument == "alias" and text == LATEST):
        raise InvalidArgument(
            f"{argument} must have 1 to 40 lower-case letters, digits and underscores, and must not begin with a digit"
            f"{', nor be latest' if argument == 'alias' else ''}.",
            hint=f"For instance '{example}'.",
        )
    return text


def _unknown(db: Database, text: str) -> UndefinedObject:
    parts = REFERENCE.fullmatch(text.lower())
    if parts is None:
        return UndefinedObject(
            f"'{text}' names no registered model.", hint="Write MODEL@ALIAS or MODEL@VERSION, as in 'churn@production'."
        )
    model, which = parts.groups()
    versions = [
        row["version"]
        for row in db.rows(
            sql(
                "SELECT version FROM cerebro.registered_versions"
                " WHERE registered_model = $1 AND unregistered_at IS NULL ORDER BY version"
            ),
            ("text",),
            model,
        )
    ]
    if not versions:
        return UndefinedObject(
            f"there is no registered model '{model}' that you may use.",
            hint="SELECT * FROM cerebro.registered_versions lists the models; cerebro.register() adds one.",
        )
    if which.isdigit():
        listed = ", ".join(map(str, versions[-20:]))
        return UndefinedObject(f"the model '{model}' has no version {which}.", hint=f"It has {listed}.")
    aliases = db.rows(
        sql("SELECT alias FROM cerebro.registered_aliases WHERE registered_model = $1 ORDER BY alias"), ("text",), model
    )
    listed = ", ".join([*(row["alias"] for row in aliases[:20]), LATEST])
    return UndefinedObject(f"the model '{model}' has no alias '{which}'.", hint=f"It has {listed}.")
