"""Whether a run's model tables may be made: asked before hours of training, and again at their end."""

from __future__ import annotations

from typing import NoReturn

from cerebro_db.core import model_columns
from cerebro_db.core.errors import CerebroError, WrongState
from cerebro_db.core.names import Name
from cerebro_db.core.sql import sql

from ...data import run_memory
from ...database import relations
from ...database.access import Database
from ...segment import memory
from ..record.run import Run

ENDINGS = ("", *model_columns.COMPANIONS)


def require_place(db: Database, run: Run) -> None:
    """Raise now if the model tables of a resumed run could not be made at its end."""
    name = Name.parse(run.model_table)
    try:
        require_makeable(db, name, replace=in_the_way(db, run, name))
    except CerebroError as error:
        error.hint = (
            f"Move that table out of the way, or train on with SELECT cerebro.resume({run.id}, wait => false);"
            f" and then SELECT cerebro.materialize({run.id}, 'another_name');"
        )
        raise


def require_makeable(db: Database, name: Name, *, replace: bool) -> None:
    if replace:
        require_replaceable(db, name)
    else:
        for ending in ENDINGS:
            relations.require_free(db, name.suffixed(ending))


def require_replaceable(db: Database, name: Name, *, several: bool = False) -> None:
    """Tables are replaced only if a fit has made them.  ``several``: with a number for each model."""
    present = {}
    for ending in ("", "_info", "_summary"):
        table = relations.find(db, name.suffixed(ending))
        present[ending] = set(relations.columns(db, table)) if table is not None else set()
    named = model_columns.of(present[""])
    if named is None or (several and not named.has_key):
        _refuse(name)
    elif named.has_key and named.configuration not in present["_info"]:
        _refuse(name.suffixed("_info"))
    elif named.model_table not in present["_summary"]:
        _refuse(name.suffixed("_summary"))
    elif "group_by" in present["_summary"]:
        groups = relations.beside(db, name, "_groups")
        if groups is not None and not model_columns.has_groups(relations.columns(db, groups)):
            _refuse(name.suffixed("_groups"))


def memory_of(db: Database, name: Name, on_gpu: bool) -> int | None:
    """The megabytes that trainers may use in a warm start from this table, unless an option says otherwise."""
    summary = relations.beside(db, name, "_summary")
    return None if summary is None else memory.within_limit(db, run_memory.of_summary(db, summary), on_gpu)


def _refuse(name: Name) -> NoReturn:
    raise WrongState(
        f"'{name}' is not what a fit leaves, so it cannot be replaced.",
        hint="Call it with warm_start => false and a new output table.",
    )


def in_the_way(db: Database, run: Run, name: Name) -> bool:
    """Whether the run replaces tables: those that it made before it was extended, or began with."""
    if run.options.warm_start:
        return relations.find(db, name) is not None
    summary = relations.beside(db, name, "_summary")
    # Somebody else may have made tables of these names since the run began.
    if summary is None or not summary.is_own or "run" not in relations.columns(db, summary):
        return False
    return db.value(sql("SELECT run FROM {summary} LIMIT 1", summary=summary.sql)) == run.id
