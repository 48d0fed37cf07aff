"""Loads recordings into a table by COPY, each file in a transaction of its own."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cerebro_db.core.errors import CerebroError
from cerebro_db.core.names import Name

from .. import copying
from ..database import DatabaseClient, Transaction
from ..errors import Cancelled, ClientError, ServerError
from .actigraph_csv import ActiGraphCsv
from .gt3x import Gt3x
from .recordings import Recording

ENDINGS = (".csv", ".csv.gz", ".gt3x")
COLUMNS = {  # with the types that each may have; the first one is that of a new table
    "subject": ("text", "character varying", "character", "integer", "bigint"),
    "at": ("timestamp without time zone",),
    "x": ("real", "double precision", "numeric"),
    "y": ("real", "double precision", "numeric"),
    "z": ("real", "double precision", "numeric"),
}
FOUND = """
SELECT c.relkind IN ('r', 'p'), c.relowner = u.oid OR NOT u.rolsuper AND pg_catalog.pg_has_role(c.relowner, 'USAGE'),
       ARRAY(SELECT a.attname::text FROM pg_catalog.pg_attribute a
              WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum),
       ARRAY(SELECT pg_catalog.format_type(a.atttypid, NULL) FROM pg_catalog.pg_attribute a
              WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum)
  FROM pg_catalog.pg_class c, pg_catalog.pg_roles u
 WHERE c.oid = pg_catalog.to_regclass(%s) AND u.rolname = current_user"""


@dataclass(frozen=True)
class Loaded:
    """What was loaded of a file."""

    file: str
    subject: str
    rows: int
    rate: int | None  # samples per second; None: the file does not say it


def add(
    database: DatabaseClient,
    table: str,
    files: Sequence[str | Path],
    subject: str | None = None,
    date_format: str | None = None,
) -> list[Loaded]:
    """The comment of ``Cerebro.add_accelerometer`` describes the arguments."""
    try:
        name = Name.parse(table, "table")
    except CerebroError as error:
        raise ClientError(error.message, error.hint) from error
    if not files:
        raise ClientError("there are no files.", f"Their names end with {', '.join(ENDINGS)}.")
    return [_load(database, name, Path(file), subject, date_format) for file in files]


def _load(database: DatabaseClient, name: Name, path: Path, subject: str | None, date_format: str | None) -> Loaded:
    try:
        recording = _open(path, date_format)
        try:
            whose = subject or recording.subject or _stem(path)
            with database.transaction() as transaction:
                _have_table(transaction, name)
                return Loaded(str(path), whose, _copy(transaction, name, recording, whose), recording.rate)
        finally:
            recording.close()
    except (OSError, EOFError, zlib.error) as error:
        raise ClientError(f"{path} cannot be read: {error}") from error


def _open(path: Path, date_format: str | None) -> Recording:
    lower = path.name.lower()
    if lower.endswith(".gt3x"):
        return Gt3x(path)
    if lower.endswith((".csv", ".csv.gz")):
        return ActiGraphCsv(path, date_format)
    raise ClientError(f"{path} is no file of an accelerometer.", f"Their names end with {', '.join(ENDINGS)}.")


def _stem(path: Path) -> str:
    """The file's name without its ending."""
    ending = next(one for one in (".csv.gz", *ENDINGS) if path.name.lower().endswith(one))
    return path.name[: -len(ending)]


def _have_table(transaction: Transaction, name: Name) -> None:
    """Make the table, or see that it fits."""
    found = transaction.rows(FOUND, (name.quoted,))
    if not found:
        listed = ", ".join(f"{column} {types[0]} NOT NULL" for column, types in COLUMNS.items())
        transaction.rows(f"CREATE TABLE {name.quoted} ({listed})")
        # Of a few bytes, it finds the rows of a subject, because rows come in the order of subjects and times.
        transaction.rows(f"CREATE INDEX ON {name.quoted} USING brin (subject, at)")
        return
    ((is_table, is_mine, columns, types),) = found
    if not is_table:
        raise ClientError(f"{name} is no table.")
    if not is_mine:  # its triggers run with the rights of whoever writes into it
        raise ClientError(f"{name} belongs to another user.", "Only its owner can load files into it.")
    there = dict(zip(columns, types))
    for column, known in COLUMNS.items():
        if there.get(column) not in known:
            has = f"the column {column} has the type {there[column]}" if column in there else f"no column is {column}"
            needed = ", ".join(f"{one} {which[0]}" for one, which in COLUMNS.items())
            raise ClientError(f"{name} does not fit: {has}.", f"It needs the columns {needed}.")


def _copy(transaction: Transaction, name: Name, recording: Recording, subject: str) -> int:
    """Send the samples; return how many there are."""
    try:
        field = copying.escaped(subject).encode()
    except UnicodeEncodeError:
        raise ClientError(f"{recording.path}: the subject is no text.", "Name the subject: --subject P01.") from None
    pieces = recording.lines(field)
    first = next((piece for piece in pieces if piece), None)
    if first is None:
        raise ClientError(f"{recording.path} has no samples.")
    at = first.split(b"\t", 2)[1].decode()
    if transaction.rows(f"SELECT 1 FROM {name.quoted} WHERE subject::text = %s AND at = %s LIMIT 1", (subject, at)):
        raise ClientError(
            f"{recording.path}: {name} has rows of {subject} from {at} on.",
            "Was the file loaded before? To load another subject's: --subject P02.",
        )
    what = f"{name.quoted} (subject, at, x, y, z) FROM STDIN WITH (ENCODING 'UTF8')"
    try:
        return copying.into(transaction, what, itertools.chain([first], pieces))
    except Cancelled:
        raise
    except ServerError as error:
        raise ClientError(f"{recording.path}: {error.message}", error.hint) from error
