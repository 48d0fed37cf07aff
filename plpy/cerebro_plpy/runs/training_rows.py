"""The packed rows of ``cerebro.train``: packed by another session, packed already, or in a dry run not packed at all.

A run needs packed rows that are committed, which the caller's own session cannot make.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import psycopg2

from cerebro_db.core import documents
from cerebro_db.core.errors import CerebroError, InvalidArgument, InvalidName, WrongState
from cerebro_db.core.layout import Layout
from cerebro_db.core.names import LONGEST, Name
from cerebro_db.core.records import dataclass, field
from cerebro_db.core.sql import identifier, joined, sql
from cerebro_db.core.texts import counted
from cerebro_db.core.windows import Windows
from cerebro_db.core.windows import wanted as wanted_windows

from .. import platform
from ..data import pack
from ..data.asked import has_few_labels
from ..data.summary import parsed, read_layout
from ..database import relations
from ..database.access import Database
from ..database.relations import Relation
from ..sessions import recorder
from ..sessions.session import Session
from . import cross_validation

MODULE = "cerebro.train"
PACKED_ENDINGS = ("", "_summary", pack.VALIDATION, f"{pack.VALIDATION}_summary")
MOST_VALIDATION_ROWS = 200_000  # more of them hardly tell more
FEW_ROWS = 100_000  # so many are counted by class, to divide them class by class
FEW_CLASSES = 30
ROOM_FOR_ENDINGS = 25  # bytes of the longest name of a companion or a partition


@dataclass
class Asked:
    """The arguments of the function."""

    source: str | None
    model: str | None
    target: str | None
    budget: str | None
    inputs: str | None
    prepare: str | None
    validation: float | None
    validation_table: str | None
    split_by: str | None
    split_at: str | None
    stratify: bool | None
    folds: int | None
    segments: int | None
    packed_table: str | None
    architectures: str | None
    space: str | None
    method: str | None
    epochs: int | None
    configurations: int | None
    at_once: int | None
    objective: str | None
    direction: str | None
    use_gpus: bool | None
    name: str | None
    description: str | None
    options: str | None
    stop_when: str | None
    dry_run: bool | None
    wait: bool | None
    sequence: str | None
    weights: str | None
    class_weight: str | None


@dataclass
class Rows:
    """The packed rows, or in a dry run what they would be."""

    layout: Layout
    segments: int
    table: Name | None = None
    validation: Name | None = None
    validated: bool = False


@dataclass
class Made:
    """What a call has made so far, for the message of one that ends early."""

    tables: list[Name] = field(default_factory=list)
    packed: Name | None = None
    run: int | None = None


def is_packed(db: Database, source: Relation) -> bool:
    if not {platform.KEY, "buffer_id"} <= set(relations.columns(db, source)):
        return False
    summary = relations.find(db, source.name.suffixed("_summary"))
    return summary is not None and "layout" in relations.columns(db, summary)


def packed_already(db: Database, source: Relation, asked: Asked) -> Rows:
    for name in ("target", "inputs", "prepare", "validation", "split_by", "split_at", "stratify", "folds",
                 "segments", "packed_table", "sequence", "weights", "class_weight"):  # fmt: skip
        if getattr(asked, name) is not None:
            raise InvalidArgument(
                f"{MODULE}: {name} cannot be given: '{source.text}' is packed already.",
                hint="Leave it out, or name the table that was packed.",
            )
    layout = read_layout(db, source.name.quoted, MODULE)
    if layout.folds:
        cross_validation.require_no_validation(source.text, asked.validation_table, MODULE)
        db.notice(f"{MODULE}: '{source.text}' is packed already, with {layout.folds} folds")
        return Rows(layout, len(layout.partitions), source.name, None, True)
    if asked.validation_table is not None:
        beside: Relation | None = relations.existing(db, asked.validation_table, MODULE, argument="validation_table")
    else:
        beside = relations.find(db, source.name.suffixed(pack.VALIDATION))
    validation = beside.name if beside is not None else None
    if validation is not None:
        read_layout(db, validation.quoted, MODULE)
    db.notice(
        f"{MODULE}: '{source.text}' is packed already"
        + (f"; validation rows are in {validation}" if validation is not None else "; there are no rows for validation")
    )
    return Rows(layout, len(layout.partitions), source.name, validation, validation is not None)


def would_pack(db: Database, source: Relation, output: Name, asked: Asked) -> Rows:
    arguments = _pack_arguments(db, source, _free_names(db, output, asked.packed_table), asked)
    job, others = pack.planned(db, *(arguments[name] for name in PACK_ARGUMENTS))
    return Rows(job.layout, len(job.keys), validated=others is not None or job.fold is not None)


PACK_ARGUMENTS = (
    "source", "output", "target", "inputs", "prepare", "validation", "validation_table", "split_by", "split_at",
    "stratify", "buffer_size", "segments", "distribution_rules", "seed", "sequence", "weights", "class_weight",
    "folds",
)  # fmt: skip


def _pack_arguments(db: Database, source: Relation, packed: Name, asked: Asked) -> dict[str, Any]:
    """The arguments of ``cerebro.pack``; those that are left open are decided by the number of rows."""
    if not (asked.target or "").strip():
        raise InvalidArgument(f"{MODULE}: target must not be NULL or empty.", hint="Name the column to predict.")
    windows = None
    if asked.sequence is not None:
        given = documents.argument(asked.sequence, f"{MODULE}: sequence")
        windows = wanted_windows(given, f"{MODULE}: sequence")
    validation, stratify = asked.validation, asked.stratify
    others = asked.validation_table
    if others is not None:
        others = relations.existing(db, others, MODULE, argument="validation_table").name.quoted
    elif validation is None:
        (counted_rows,) = db.scan(sql("SELECT count(*) AS rows FROM {rows} AS s", rows=source.rows))
        rows = counted_rows["rows"]
        # Windows are divided by their subject or their time, never by their class.
        divided = asked.split_by or asked.split_at or windows is not None
        if stratify is None and not divided and rows <= FEW_ROWS:
            stratify = has_few_labels(db, source, asked.target, FEW_CLASSES)
        classes = ", with the same share of each class" if stratify else ""
        if asked.folds is not None:
            db.notice(f"{MODULE}: the {counted(rows, 'row')} are divided into {asked.folds} folds{classes}")
        else:
            validation = validation_share(rows, windows)
            db.notice(
                f"{MODULE}: about {100 * validation:.3g} % of the {counted(rows, 'row')} are for validation{classes};"
                " the others are for training"
            )
    return {
        "source": source.name.quoted,
        "output": packed.quoted,
        "target": asked.target,
        "inputs": asked.inputs,
        "prepare": asked.prepare,
        "validation": validation if asked.folds is not None else validation or 0.0,
        "validation_table": others,
        "split_by": asked.split_by,
        "split_at": asked.split_at,
        "stratify": bool(stratify),
        "buffer_size": None,
        "segments": platform.segments_wanted(db, asked.segments, MODULE),
        "distribution_rules": None,
        "seed": documents.argument(asked.options, f"{MODULE}: options", default={}).get("seed"),
        "sequence": asked.sequence,
        "weights": asked.weights,
        "class_weight": asked.class_weight,
        "folds": asked.folds,
    }


def validation_share(rows: int, windows: Windows | None) -> float:
    units = rows / (windows.step if windows is not None else 1)  # a model reads a window as one row
    return round(min(0.2, MOST_VALIDATION_ROWS / units), 4)


def pack_apart(db: Database, source: Relation, output: Name, asked: Asked, made: Made) -> Rows:
    packed = _free_names(db, output, asked.packed_table)
    arguments = _pack_arguments(db, source, packed, asked)
    with other_session(db) as session:
        _require_seen(session, source)
        try:
            call = joined(", ", (sql("{name} => {}", name=identifier(name)) for name in PACK_ARGUMENTS))
            session.run(sql("SELECT cerebro.pack({call})", call=call), [arguments[name] for name in PACK_ARGUMENTS])
        finally:
            # A cancel may come after the commit: what there is, and not what was answered, says what was made.
            made.tables += _existing(session, packed)
            made.packed = packed if made.tables else None
        text = session.run(sql("SELECT layout::text FROM {companion}", companion=packed.suffixed("_summary").sql))[0][0]
    notice_others_tables(db)
    validation = packed.suffixed(pack.VALIDATION)
    validated = validation in made.tables
    db.notice(f"{MODULE}: the packed rows are in {packed}" + (f" and {validation}" if validated else ""))
    layout = parsed(db, text, packed.table, MODULE)
    others = validation if validated else None
    return Rows(layout, len(layout.partitions), packed, others, validated or bool(layout.folds))


def _free_names(db: Database, output: Name, text: str | None) -> Name:
    """The name of the packed table: the user's, or one that no table has."""
    if text is not None:
        return relations.new(db, text, MODULE, PACKED_ENDINGS[1:], argument="packed_table")
    return free_name(db, output, "_packed", PACKED_ENDINGS)


def free_name(db: Database, output: Name, what: str, endings: tuple[str, ...]) -> Name:
    stem = output.table.encode()[: LONGEST - len(what) - ROOM_FOR_ENDINGS].decode(errors="ignore")
    for number in range(1, 10_000):
        name = Name(output.schema, stem + what + (f"_{number}" if number > 1 else ""))
        if all(relations.find(db, name.suffixed(ending)) is None for ending in endings):
            return name
    raise InvalidName(f"{MODULE}: found no free name for the packed table of {output}.", hint="Choose another name.")


@contextlib.contextmanager
def other_session(db: Database) -> Iterator[Session]:
    """A session of the caller's that commits; its messages become the caller's, and its errors, too."""
    with recorder.opened(db, "train", "the session that packs") as session:
        session.hear = lambda message: _repeat(db, message)
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
    seen = session.run(sql("SELECT pg_catalog.to_regclass({})::oid"), (source.name.quoted,))[0][0]
    if source.temporary or seen != source.oid:
        raise WrongState(
            f"{MODULE}: '{source.text}' is temporary, or was made in this transaction, which is not committed. The"
            " session that packs it cannot see it.",
            hint="Make it an ordinary table and COMMIT first.",
        )


def _existing(session: Session, packed: Name) -> list[Name]:
    """Those of the packed tables that are committed.  Ends the statement under way first."""
    if session.busy or session.lost:
        session.cancel()
        session.settle()
    with contextlib.suppress(psycopg2.Error):
        names = [packed.suffixed(ending) for ending in PACKED_ENDINGS]
        exist = joined(", ", [sql("pg_catalog.to_regclass({}) IS NOT NULL")] * len(names))
        (row,) = session.run(sql("SELECT {exist}", exist=exist), [one.quoted for one in names])
        return [name for name, there in zip(names, row) if there]
    return []
