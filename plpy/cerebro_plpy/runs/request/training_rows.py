"""The packed rows of the three verbs: packed by another session, packed already, or in a dry run not packed at all.

A run needs packed rows that are committed, which the caller's own session cannot make.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace

import psycopg2

from cerebro_db.core import documents
from cerebro_db.core.arguments import PACKING, PackArguments
from cerebro_db.core.errors import CerebroError, InvalidArgument, InvalidName, Unsupported, WrongState
from cerebro_db.core.names import DATA_SCHEMA, LONGEST, PACKED_ENDINGS, Name, StoredName, split_list
from cerebro_db.core.packing.layout import Layout, Partition
from cerebro_db.core.packing.packed_summary import PackedSummary
from cerebro_db.core.packing.windows import Windows
from cerebro_db.core.packing.windows import wanted as wanted_windows
from cerebro_db.core.records import dataclass, field
from cerebro_db.core.sql import identifier, joined, sql
from cerebro_db.core.texts import counted

from ... import platform
from ...database import listening, relations
from ...database.access import Database
from ...database.cancellation import listener
from ...database.relations import Relation
from ...packing import pack, packed
from ...packing.checked_arguments import may_stratify
from ...packing.packed import Packed
from ...packing.rows import known_targets
from ...packing.rows.summary import PackJob, parsed, read_layout
from ...sessions import limits, logins, recorder
from ...sessions.session import COMMIT, Session, Statement
from . import cross_validation
from .given import Given

PACKED = "_packed"
MOST_VALIDATION_ROWS = 200_000  # more of them hardly tell more
FEW_ROWS = 100_000  # so many are counted by class, to divide them class by class
FEW_CLASSES = 30
REMOVE_WITHIN = 2.0  # seconds that a refused call waits for its tables to be dropped
ROOM_FOR_ENDINGS = 25  # bytes of the longest name of a companion or a partition


@dataclass
class Rows:
    """The packed rows, or in a dry run what they would be."""

    layout: Layout
    segments: int
    table: Name | None = None
    validation: Name | None = None
    validated: bool = False
    text: str | None = None  # the packed table as the user named it
    validation_text: str | None = None
    named: Mapping[str, StoredName] = field(default_factory=dict)  # the tables of this call that they are packed from
    related: Mapping[str, StoredName] = field(default_factory=dict)  # those that are read beside them, by path
    planned: Packed | None = None  # what a dry run would pack, described as if it were packed


@dataclass
class MadeRows:
    """What a call has made so far, which is removed if it ends before a run that can be resumed is on record."""

    tables: dict[Name, int] = field(default_factory=dict)  # with their OIDs
    packed: Name | None = None
    run: int | None = None


def resolved(db: Database, output: Name, given: Given, made: MadeRows) -> Rows:
    """The packed rows of ``source_table``, which is packed now unless it is packed already."""
    source = relations.filled(db, given.source_table, argument="source_table", companions=("_summary",))
    if packed.is_packed(db, source):
        return packed_already(db, source, given)
    if not (given.target or "").strip():
        if platform.KEY in relations.columns(db, source):
            packed.read(db, given.source_table, argument="source_table")  # says what is wrong with it
        raise InvalidArgument(
            f"target must not be NULL or empty: '{source.text}' is not packed.",
            hint="Name the column to predict.",
        )
    _require_lasting(given, output)
    limits.require_run(limits.asking(db), platform.segments_wanted(db, given.segments) or 1, listener(db.plpy))
    if given.dry_run:
        return would_pack(db, source, output, given)
    return pack_apart(db, source, output, given, made)


def _require_lasting(given: Given, output: Name) -> None:
    for argument, name in (("model_table", output), ("packed_table", given.packed_table)):
        parsed = Name.parse(name, f"{argument}") if isinstance(name, str) else name
        if parsed is not None and parsed.schema == relations.TEMPORARY:
            raise Unsupported(
                f"{argument} cannot be a temporary table: several sessions make and read it.",
                hint="Name an ordinary table.",
            )


def packed_already(db: Database, source: Relation, given: Given) -> Rows:
    for name in ("target", *PACKING, "packed_table"):
        if getattr(given, name) is not None and name != "validation_table":
            raise InvalidArgument(
                f"{name} cannot be given: '{source.text}' is packed already.",
                hint="Leave it out, or name the table that was packed.",
            )
    layout = read_layout(db, source.name.quoted)
    if layout.folds:
        cross_validation.require_no_validation(source.text, given.validation_table)
        db.notice(f"'{source.text}' is packed already, with {layout.folds} folds")
        return Rows(layout, len(layout.partitions), source.name, None, True, source.text)
    if given.validation_table is not None:
        beside: Relation | None = relations.existing(db, given.validation_table, argument="validation_table")
    else:
        beside = relations.beside(db, source, pack.VALIDATION)
    validation = beside.name if beside is not None else None
    if validation is not None:
        read_layout(db, validation.quoted)
    db.notice(
        f"'{source.text}' is packed already"
        + (f", with {counted(len(layout.groups.labels), 'group')}" if layout.groups is not None else "")
        + (f"; validation rows are in {validation}" if validation is not None else "; there are no rows for validation")
    )
    others = given.validation_table
    return Rows(
        layout=layout,
        segments=len(layout.partitions),
        table=source.name,
        validation=validation,
        validated=validation is not None,
        text=source.text,
        validation_text=others,
    )


def would_pack(db: Database, source: Relation, output: Name, given: Given) -> Rows:
    _wished_name(db, output, given)  # only for its errors: a dry run makes no table
    arguments = _pack_arguments(db, source, free_name(db, output), given)
    wanted = pack.checked(db, arguments)
    job, others = pack.planned(db, wanted, copies=False)
    pack.drop_copies(db, wanted.source, job.source, others)
    validated = others is not None or job.fold is not None
    return Rows(job.layout, len(job.keys), validated=validated, planned=_as_packed(job, source))


def _as_packed(job: PackJob, source: Relation) -> Packed:
    """What a dry run would pack, for the checks of a run's request: these read how many rows a segment has."""
    least, larger = divmod(job.rows, len(job.keys))
    partitions = []
    for segment, key in enumerate(job.keys):
        rows = least + (segment < larger)
        folds = tuple(len(range(fold, rows, job.folds)) for fold in range(job.folds))
        groups = job.groups.of_segment(segment) if job.groups is not None else ()
        partitions.append(
            Partition(key=key, rows=rows, buffers=1, bytes=0, sha256="0" * 64, folds=folds, groups=groups)
        )
    layout = replace(job.layout, partitions=tuple(partitions))
    return Packed(
        source,
        PackedSummary(
            source_table=StoredName(str(source.name)),
            target=None,
            inputs=None,
            target_types=None,
            classes=None,
            divide_by=None,
            labels={},
        ),
        layout,
        planned=True,
    )


def _pack_arguments(db: Database, source: Relation, output: Name, given: Given) -> PackArguments:
    """The arguments of ``cerebro.pack``; those that are left open are decided by the number of rows."""
    windows = None
    if given.sequence is not None:
        sequence = documents.argument(given.sequence, "sequence")
        windows = wanted_windows(sequence, "sequence")
    validation, stratify = given.validation, given.stratify
    others = given.validation_table
    if others is not None:
        others = relations.existing(db, others, argument="validation_table").name.quoted
    elif validation is None:
        known = source
        if windows is None:
            known = known_targets.named(db, source, split_list(given.target, "target"))
        (counted_rows,) = db.scan(sql("SELECT count(*) AS rows FROM {rows} AS s", rows=known.rows))
        rows = counted_rows["rows"]
        # Windows are divided by their subject or their time, never by their class; and other rows within each group.
        divided = given.split_by or given.split_at or given.group_by or windows is not None
        validation = None if given.folds is not None else validation_share(rows, windows)
        if stratify is None and not divided and rows <= FEW_ROWS:
            share = 1.0 if validation is None else validation
            stratify = may_stratify(db, known, given.target, FEW_CLASSES, share)
        classes = ", with the same share of each class" if stratify else ""
        if validation is None:
            db.told(f"the {counted(rows, 'row')} are divided into {given.folds} folds{classes}")
        else:
            db.told(
                f"about {100 * validation:.3g} % of the {counted(rows, 'row')} are for"
                f" validation{classes}; the others are for training"
            )
    decided = {
        "validation": validation if given.folds is not None else validation or 0.0,
        "validation_table": others,
        "stratify": bool(stratify),
        "segments": platform.segments_wanted(db, given.segments),
    }
    return PackArguments(
        source_table=source.name.quoted,
        output_table=output.quoted,
        target=given.target,
        seed=given.options.get("seed"),
        **{**{name: getattr(given, name) for name in PACKING}, **decided},
    )


def validation_share(rows: int, windows: Windows | None) -> float:
    units = rows / (windows.step if windows is not None else 1)  # a model reads a window as one row
    return round(min(0.2, MOST_VALIDATION_ROWS / units), 4)


def pack_apart(db: Database, source: Relation, output: Name, given: Given, made: MadeRows) -> Rows:
    """The packed rows in a table that another session makes, or has made for an earlier call with the same rows."""
    wished = _wished_name(db, output, given)
    arguments = _pack_arguments(db, source, wished, given)
    with other_session(db) as session:
        _require_seen(session, source)
        try:
            also = None if given.packed_table is not None else output.schema
            table, text = _packed_or_kept(session, arguments, wished, made, also)
        except BaseException:
            if session.busy:  # what becomes of a commit is known when it has ended
                session.cancel()
                session.settle()
            raise
        parts = list(_existing(session, table))
    notice_others_tables(db)
    layout = parsed(db, text, table.table)
    validation = table.suffixed(pack.VALIDATION)
    others = validation if validation in parts else None
    where = f"in {table}" + (f" and {validation}" if others is not None else "")
    if made.tables:
        db.detail(f"the packed rows are {where}")
    else:
        db.told(f"these rows were packed before, for the same arguments, and are used again: they are {where}")
    validated = others is not None or bool(layout.folds)
    named = {"source_table": arguments.source_table, "validation_table": arguments.validation_table}
    stored = {argument: StoredName(name) for argument, name in named.items() if name is not None}
    steps = () if layout.related is None else layout.related.steps
    related = {step.path: step.table for step in steps}
    return Rows(layout, len(layout.partitions), table, others, validated, named=stored, related=related)


def _packed_or_kept(
    session: Session, given: PackArguments, wished: Name, made: MadeRows, also_in: str | None
) -> tuple[Name, str]:
    """The packed table and its layout.

    All of it reads one snapshot: the rows that are packed are those of their fingerprint, and the related tables of the
    layout are those that this call has read.

    ``also_in``: a schema with tables of the user's that may have these rows.  None: only the wished table may.

    In this snapshot new tables are those that this transaction makes.  They are noted before the commit, because a
    cancel may come right after it.
    """
    names = [one.name for one in fields(PackArguments)]
    call = joined(", ", [sql("also_in => {}"), *(sql("{name} => {}", name=identifier(name)) for name in names)])
    session.run_statement(Statement(sql("BEGIN ISOLATION LEVEL REPEATABLE READ"), bounds=True))
    before = _existing(session, wished)
    values = [also_in, *(getattr(given, name) for name in names)]
    ((table,),) = session.run(sql("SELECT cerebro_internal._packed_rows({call})", call=call), values)
    made.tables = {name: oid for name, oid in _existing(session, wished).items() if before.get(name) != oid}
    made.packed = wished if made.tables else None
    packed_table = Name.parse(table)
    companion = packed_table.suffixed("_summary")
    ((layout,),) = session.run(sql("SELECT layout::text FROM {companion}", companion=companion.sql))
    session.run_statement(COMMIT)
    return packed_table, layout


@listening.paused()
def remove(db: Database, made: MadeRows) -> bool:
    """Drop the tables that the call has made, unless a run uses them; False if some are left.

    The caller's own transaction may still hold locks on them.  Then another session does it when that has ended.
    """
    if made.packed is None:
        return True
    with contextlib.suppress(psycopg2.Error, CerebroError):
        session = logins.connect_as(db, relations.current_role(db), "cerebro_db cleaning", lambda: None)
        try:
            session.outlive()
            names = [name for name, oid in _existing(session, made.packed).items() if made.tables.get(name) == oid]
            used = sql("SELECT EXISTS (SELECT FROM cerebro.run_plan WHERE packed_table = {} AND owner = current_user)")
            if not names:
                return True
            if session.run(used, (str(made.packed),)) == [(True,)]:
                return False
            tables = joined(", ", (name.sql for name in names))
            session.send(Statement(sql("DROP TABLE {tables}", tables=tables)))
            session.ends_within(REMOVE_WITHIN if platform.of(db).subtransactions_are_safe else 0)
            return True
        finally:
            session.close()
    return False


def _wished_name(db: Database, output: Name, given: Given) -> Name:
    """The name of the packed table: the user's, which may be that of a packed table; or one that no table has."""
    if given.packed_table is None:
        return free_name(db, output)
    name = relations.qualified(db, Name.parse(given.packed_table, "packed_table"))
    there = relations.find(db, name)
    if there is None or not packed.is_packed(db, there):
        relations.new(db, given.packed_table, PACKED_ENDINGS[1:], argument="packed_table")
    return name


def free_name(db: Database, output: Name) -> Name:
    rows = db.rows(sql("SELECT packed_table FROM cerebro.run_plan WHERE owner = current_user"))
    known = {row["packed_table"] for row in rows}  # a run on record names its rows, also when they are gone
    for name in _candidates(output):
        if str(name) not in known and _is_free(db, name):
            return name
    raise InvalidName(
        f"found no free name in {DATA_SCHEMA} for the packed rows of {output}.",
        hint="packed_table => 'name' names one.",
    )


def _is_free(db: Database, name: Name) -> bool:
    """Whether nobody has a table, an index or a type of the names that the packed tables and their parts would have."""
    names = [name.suffixed(ending).table for ending in PACKED_ENDINGS]
    found = db.value(
        sql(
            "SELECT pg_catalog.count(*) FROM pg_catalog.pg_namespace n CROSS JOIN LATERAL"
            " (SELECT c.relname FROM pg_catalog.pg_class c WHERE c.relnamespace = n.oid"
            " UNION ALL SELECT t.typname FROM pg_catalog.pg_type t"
            " WHERE t.typnamespace = n.oid AND t.typcategory <> 'A') AS o (name)"
            " WHERE n.nspname = $1 AND pg_catalog.regexp_replace(o.name::text, '_seg[0-9]+$', '') = ANY ($2)"
        ),
        ("text", "text[]"),
        name.schema,
        names,
    )
    return not found


def _candidates(output: Name) -> Iterator[Name]:
    """SCHEMA_MODELTABLE_packed, SCHEMA_MODELTABLE_packed_2, …; others may have tables of these names in the schema."""
    stem = f"{output.schema}_{output.table}".encode()[: LONGEST - len(PACKED) - ROOM_FOR_ENDINGS]
    for number in range(1, 10_000):
        yield Name(DATA_SCHEMA, stem.decode(errors="ignore") + PACKED + (f"_{number}" if number > 1 else ""))


@contextlib.contextmanager
def other_session(db: Database) -> Iterator[Session]:
    """A session of the caller's that commits; its messages become the caller's, and its errors, too."""
    with recorder.opened(db, "packing", "the session that packs") as session:
        session.hear = lambda message: _repeat(db, message)
        # The functions that a view of the caller's calls may need it.
        session.configure(search_path=db.value(sql("SELECT pg_catalog.current_setting('search_path')")))
        if db.verbose is not None:
            session.run(sql("SELECT pg_catalog.set_config('cerebro.details', {}, false)"), [str(db.verbose)])
        try:
            yield session
        except psycopg2.Error as error:
            diagnosis = error.diag
            if diagnosis.message_primary is None:
                raise  # the session was lost
            failure = CerebroError(
                diagnosis.message_primary, hint=diagnosis.message_hint, detail=diagnosis.message_detail
            )
            failure.sqlstate = error.pgcode or failure.sqlstate
            raise failure from error


def notice_others_tables(db: Database) -> None:
    """Have this session find the tables that another one has committed.

    A session remembers that a table did not exist.  It learns of the changes of others when it locks a table on which
    it has no lock.  On PostgreSQL, a statement that reads the new table does that, but Greenplum looks for the table
    first.  So this statement locks, for a moment, a table of the catalog that no other query here reads.
    """
    unread = sql("'pg_catalog.pg_ts_template'::pg_catalog.regclass")
    db.execute(sql("SELECT pg_catalog.pg_relation_is_updatable({unread}, false)", unread=unread))


def _repeat(db: Database, message: str) -> None:
    severity, _, rest = message.strip().partition(":")
    text, _, hint = rest.strip().partition("\nHINT:")
    if severity == "NOTICE":
        db.notice(text, hint.strip() or None)
    elif severity == "WARNING":
        db.warning(text, hint.strip() or None)


def _require_seen(session: Session, source: Relation) -> None:
    # The other session may not even ask for the name of a temporary table: it has no rights on the schema.
    if (
        source.temporary
        or session.run(sql("SELECT pg_catalog.to_regclass({})::oid"), (source.name.quoted,))[0][0] != source.oid
    ):
        raise WrongState(
            f"'{source.text}' is temporary, or was made in this transaction, which is not committed. The session that"
            " packs it cannot see it.",
            hint="Make it an ordinary table and COMMIT first.",
        )


def _existing(session: Session, packed: Name) -> dict[Name, int]:
    """The tables of these packed tables that the snapshot of the session has, with their OIDs."""
    names = [packed.suffixed(ending) for ending in PACKED_ENDINGS]
    found = session.run(
        sql(
            "SELECT w.place, c.oid::pg_catalog.int8 FROM pg_catalog.pg_class c"
            " JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
            " JOIN ROWS FROM (pg_catalog.unnest({}::pg_catalog.text[]), pg_catalog.unnest({}::pg_catalog.text[]))"
            " WITH ORDINALITY AS w (schema, name, place) ON n.nspname = w.schema AND c.relname = w.name"
        ),
        ([one.schema for one in names], [one.table for one in names]),
    )
    return {names[place - 1]: oid for place, oid in sorted(found)}
