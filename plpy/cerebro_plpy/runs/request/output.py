"""Whether a run's model tables may be made: asked before hours of training, and again at their end.

Their name is taken at the start of a call: a second run with that name would train everything, and then fail.
"""

from __future__ import annotations

from cerebro_db.core.errors import CerebroError, InUse, InvalidArgument, WrongState
from cerebro_db.core.events import RunStatus
from cerebro_db.core.names import Name
from cerebro_db.core.packing.layout import Layout
from cerebro_db.core.sql import literal, sql

from ...database import locks, relations
from ...database.access import Database
from ...definitions import references
from ...models import model_parts, run_memory
from ...segment import memory
from ...sessions.session import Session
from ..record.log.base import Ask, asking
from ..record.run import Run

CODED = {"categories", "words", "one_hot"}  # kinds of preparation whose numbers stand for values


def take(db: Database, name: Name, *, resumed: int | None = None) -> None:
    """Take the name of the model tables until the end of the caller's transaction; InUse names who has it.

    What another session drives, for a call that does not wait, is on record: the name is taken as long as it goes on.
    ``resumed``: the run that wants it again.
    """
    if name.schema == relations.TEMPORARY:  # each session has its own
        return
    key = f"cerebro_db model table {name}"
    mine = db.value(locks.attempt(sql("$1")), ("text",), key)
    other = db.one(
        sql(
            "SELECT run FROM cerebro.runs WHERE owner = current_user AND model_table = $1 AND run <> $2"
            " AND NOT ended AND driver_pid IS DISTINCT FROM pg_catalog.pg_backend_pid() ORDER BY run DESC LIMIT 1"
        ),
        ("text", "bigint"),
        str(name),
        resumed or 0,
    )
    rename = "" if resumed is None else f"rename its tables and SELECT cerebro.resume({resumed});"
    another = "Name another table, or wait" if resumed is None else "Wait"
    if other is not None:
        raise InUse(
            f"run {other['run']} of yours is making '{name}' now",
            hint=f"{another} until it has ended: SELECT cerebro.wait({other['run']});{rename and f' Then {rename}'}",
        )
    pid = None if mine or _is_under_way(db, resumed) else locks.holder(db, key)
    if pid is not None:
        raise InUse(
            f"another session of yours, with process id {pid}, is making '{name}' now, or has made it and has not"
            " committed that",
            hint=f"{another} until its transaction has ended.{rename and f' If it makes another model, {rename}'}",
        )


def _is_under_way(db: Database, run: int | None) -> bool:
    """Whether a session works on the run that is to be resumed: whoever claims it says which."""
    under_way = sql("SELECT EXISTS (SELECT FROM cerebro.runs WHERE owner = current_user AND run = $1 AND NOT ended)")
    return run is not None and bool(db.value(under_way, ("bigint",), run))


def require_place(db: Database, session: Session, run: Run) -> None:
    """Raise now if the model tables of a resumed run could not be made at its end."""
    name = Name.parse(run.model_table)
    try:
        model_parts.require_makeable(db, name, replace=in_the_way(db, session, run, name))
    except CerebroError as error:
        error.hint = (
            f"Move that table out of the way, or train on with SELECT cerebro.resume({run.id}, wait => false);"
            f" and then SELECT cerebro.materialize({run.id}, 'another_name');"
        )
        raise


def of_warm_start(db: Database, text: str | None, argument: str) -> Name:
    """The name of the model table that a fit goes on from, and that its own models replace."""
    references.refuse_reference(text, argument, "a warm start replaces the table that it goes on from")
    relations.existing(db, text, "A warm start goes on from it.", argument=argument)
    name = relations.qualified(db, Name.parse(text))
    parts = model_parts.of(db, name)
    if parts.named is None and "" in parts.others:
        raise WrongState(f"'{name}' has no models, so a warm start cannot go on from it.", hint="Name a model table.")
    missing = next((one for one in ("_info", "_summary") if one not in {**parts.tables, **parts.others}), None)
    if parts.is_model and parts.named is not None and parts.named.has_key and missing is not None:
        raise WrongState(
            f"'{name}' cannot be gone on from, because its table {name.suffixed(missing)} is missing.",
            hint=_made_again(db, name),
        )
    if parts.named is not None and not parts.named.has_key:
        raise WrongState(
            f"'{name}' has one model without a number, so a warm start cannot replace it.",
            hint="Call it with warm_start => false and a new output table.",
        )
    model_parts.require_makeable(db, name, replace=True)
    return name


def latest_run(db: Database, name: Name) -> int | None:
    """The caller's last run that has finished and was to make the tables of this model."""
    found: int | None = db.value(
        sql(
            "SELECT max(run) FROM cerebro.runs WHERE owner = current_user AND model_table = $1 AND status = {finished}",
            finished=literal(RunStatus.FINISHED),
        ),
        ("text",),
        str(name),
    )
    return found


def _made_again(db: Database, name: Name) -> str:
    """How to get the tables of a model again."""
    run = latest_run(db, name)
    return f"SELECT cerebro.materialize({'run' if run is None else run}, '{name}', replace => true); makes it again."


def require_same_codes(db: Database, name: Name, rows: Layout) -> None:
    """An error if a category, word or class of the rows has another code than in the rows of the models of a table."""
    summary = relations.beside(db, name, "_summary")
    if summary is None or "layout" not in relations.columns(db, summary):
        return
    text = db.value(sql("SELECT layout::text FROM {summary} LIMIT 1", summary=summary.sql))
    if text is None:
        return
    layout = Layout.parse(text, f"the layout of {summary.text}")
    trained = {one.name: one for one in (*layout.inputs, *layout.outputs)}
    for one in (*rows.inputs, *rows.outputs):
        before = trained.get(one.name)
        if before is None or not {one.preparation.kind, before.preparation.kind} & CODED:
            continue
        if one.preparation != before.preparation:
            raise InvalidArgument(
                f"warm_start cannot be used: '{one.name}' of the rows has other categories, words or classes than the"
                f" models of '{name}' were trained on.",
                hint="cerebro.append() adds rows to the packed table of the models, with the codes that they know."
                " Or leave warm_start out.",
            )


def memory_of(db: Database, name: Name, on_gpu: bool) -> int | None:
    """The megabytes that trainers may use in a warm start from this table, unless an option says otherwise."""
    summary = relations.beside(db, name, "_summary")
    return None if summary is None else memory.within_limit(db, run_memory.of_summary(db, summary), on_gpu)


def in_the_way(db: Database, session: Session, run: Run, name: Name) -> bool:
    """Whether the run replaces tables: a model that it goes on from or was told to replace, or its own of before.

    The caller's session is asked, because no other one sees the tables of its transaction.  If it has lost a segment,
    the run's session is asked.  Reading the table runs code of its owner, so it must be the caller's own.  A role that
    the caller is in is not enough: each of its members can put code there.
    """
    if run.options.warm_start or run.options.replace:
        return True
    summary = name.suffixed("_summary")
    ask: Ask = session.run if session.segments_lost or run.segments_lost else asking(db)
    own = ask(
        sql(
            "SELECT 1 FROM pg_catalog.pg_class c JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid"
            " JOIN pg_catalog.pg_roles u ON u.oid = c.relowner AND u.rolname = current_user"
            " WHERE c.oid = pg_catalog.to_regclass({}) AND c.relkind = 'r' AND a.attname = 'run' AND a.atttypid = 20"
            " AND NOT a.attisdropped"
        ),
        (summary.quoted,),
    )
    return bool(own) and ask(sql("SELECT run FROM {summary} LIMIT 1", summary=summary.sql), ()) == [(run.id,)]
