"""Custom losses and metrics: an administrator registers source text, configurations name it, trainers execute it.

The server checks the syntax of the source and never executes it.  A configuration holds ``name@version``.  The segment
that gives a trainer the configuration reads the source from the table, so no JSON of a user's can bring source along.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NoReturn

from cerebro_db.core.errors import NotPermitted, UndefinedObject, Unsupported
from cerebro_db.core.parameters import custom
from cerebro_db.core.sql import sql

from ..database import locks
from ..database.access import Database
from ..database.entry import entry

TABLE = "cerebro.custom_function"
LATEST = sql(
    "SELECT name, version, kind FROM (SELECT DISTINCT ON (name) name, version, kind, source"
    " FROM cerebro.custom_function ORDER BY name, version DESC) newest WHERE source IS NOT NULL"
)
POWER = "It runs in trainer processes, with the rights of the server's operating-system account, for all who name it."


@entry
def add_custom_function(
    db: Database, name: str | None, source: str | None, kind: str | None, description: str | None = None
) -> int:
    return register(db, name, source, kind, description)


def register(db: Database, name: str | None, source: str | None, kind: str | None, description: str | None) -> int:
    """Register a function, or a new version of it; returns the version."""
    require_admin(db)
    custom.check_name(name, kind)
    assert name is not None and kind is not None
    custom.check_source(name, source)
    assert source is not None
    take_turns(db)
    last = db.one(
        sql(
            "SELECT version, kind FROM cerebro.custom_function WHERE name OPERATOR(pg_catalog.=) $1"
            " ORDER BY version DESC LIMIT 1"
        ),
        ("pg_catalog.text",),
        name,
    )
    version = _append(db, name, (last["version"] if last else 0) + 1, kind, source, description)
    db.notice(f"{kind} {custom.reference(name, version)} is registered. {POWER}")
    return version


@entry
def drop_custom_function(db: Database, name: str | None) -> None:
    retire(db, name)


def retire(db: Database, name: str | None) -> None:
    """Retire a function: new runs cannot name it; existing runs and models keep their version."""
    require_admin(db)
    take_turns(db)
    last = db.one(
        sql(
            "SELECT version, kind, source IS NULL AS retired FROM cerebro.custom_function"
            " WHERE name OPERATOR(pg_catalog.=) $1 ORDER BY version DESC LIMIT 1"
        ),
        ("pg_catalog.text",),
        name,
    )
    if last is None or last["retired"]:
        raise UndefinedObject(
            f"there is no custom function {'NULL' if name is None else repr(name[:80])}.",
            hint="SELECT name, kind FROM cerebro.custom_functions lists them.",
        )
    _append(db, str(name), last["version"] + 1, last["kind"], None, None)


def refuse_pickle() -> NoReturn:
    """Unpickling an object would execute its code."""
    raise Unsupported(
        "pickled and dill objects are not loaded: reading one executes it inside the server.",
        hint="Register the source text instead: SELECT cerebro.add_custom_function('name',"
        " $$def name(y_true, y_pred): ...$$, 'loss' or 'metric');",
    )


def require_admin(db: Database) -> None:
    if not db.value(sql("SELECT pg_catalog.pg_has_role(current_user, 'cerebro_admin', 'USAGE')")):
        raise NotPermitted(
            "only a member of cerebro_admin may do this.",
            hint="Registered code has the power of the server's operating-system account.",
        )


def take_turns(db: Database) -> None:
    """Wait for other sessions that register, so that no version is given twice.

    LOCK TABLE would need more rights than inserting rows.
    """
    locks.take(db, "cerebro_db custom functions", "the list of custom functions")


def _append(db: Database, name: str, version: int, kind: str, source: str | None, description: str | None) -> int:
    sha256 = custom.sha256(source) if source is not None else None
    db.execute(
        sql("INSERT INTO cerebro.custom_function (name, version, kind, source, sha256, description)"
        " VALUES ($1, $2, $3, $4, $5, $6)"),
        ("pg_catalog.text", "pg_catalog.int4", *["pg_catalog.text"] * 4),
        name, version, kind, source, sha256, description,
    )  # fmt: skip
    return version


# -- in compile parameters ----------------------------------------------------------------------------------


def known(db: Database, pinned: str = "") -> custom.Known:
    """The custom functions that compile parameters may name.

    A name means its latest version.  ``name@version`` in the text ``pinned`` stays known in that version.
    """
    found = latest(row.values() for row in db.rows(LATEST))
    for name, number in re.findall(r"\b([A-Za-z_]\w*)@(\d{1,9})\b", pinned, re.ASCII):
        pin = fetched(db, name, int(number))
        if pin is not None:
            reference = custom.reference(name, int(number))
            for kind in custom.uses(pin["kind"]):
                found.setdefault(kind, {}).update({name: reference, reference: reference})
    return found


def latest(rows: Iterable[Iterable[Any]]) -> dict[str, dict[str, str]]:
    """What the rows of LATEST say: by kind, what each name and reference means."""
    found: dict[str, dict[str, str]] = {}
    for name, version, kind in rows:
        reference = custom.reference(name, version)
        for use in custom.uses(kind):
            found.setdefault(use, {}).update({name: reference, reference: reference})
    return found


# -- for a trainer --------------------------------------------------------------------------------------------


def fetched(db: Database, name: str, version: int) -> dict[str, Any] | None:
    # Every name and operator is qualified, because worker sessions have the user's own search_path.
    return db.one(
        sql(
            "SELECT name, version, kind, source, sha256 FROM cerebro.custom_function"
            " WHERE name OPERATOR(pg_catalog.=) $1 AND version OPERATOR(pg_catalog.=) $2 AND source IS NOT NULL"
        ),
        ("pg_catalog.text", "pg_catalog.int4"),
        name,
        version,
    )


def of(db: Database, *configurations: Any) -> list[dict[str, Any]]:
    """The custom functions that configurations name, each once, with their source from the table."""
    compiled = [one.get("compile") for one in configurations if isinstance(one, dict)]
    found = []
    for reference in sorted({reference for one in compiled for reference in custom.references(one)}):
        name, version = custom.split(reference) or ("", 0)
        row = fetched(db, name, version)
        if row is None:
            raise UndefinedObject(
                f"the custom function {reference} is not registered on this server",
                hint="SELECT name, version, kind FROM cerebro.custom_functions lists those that are.",
            )
        found.append(row)
    return found
