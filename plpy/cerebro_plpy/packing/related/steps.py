"""Which related tables are read, and how they are reached: by declared foreign keys, or as the user says."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cerebro_db.core.errors import InvalidArgument, UndefinedColumn
from cerebro_db.core.names import Name, StoredName, split_list
from cerebro_db.core.packing.columns import OF_SINGLE_VALUES, family_of, need_a_zone
from cerebro_db.core.packing.related import (
    DEEPEST,
    MOST_STEPS,
    SEPARATOR,
    RelatedColumn,
    RelatedStep,
    labels_of,
    parent_of,
)
from cerebro_db.core.packing.related_argument import WantedRelated, WantedStep
from cerebro_db.core.packing.tasks import MADE
from cerebro_db.core.records import dataclass, field
from cerebro_db.core.sql import sql
from cerebro_db.core.sql_types import DATES, SqlType

from ...database import foreign_keys, relations
from ...database.access import Database
from ...database.foreign_keys import ForeignKey
from ...database.relations import Column, Relation
from .derivation import OpenedTables


@dataclass(frozen=True)
class Table:
    """A table with its columns."""

    relation: Relation
    columns: dict[str, Column]

    @property
    def text(self) -> str:
        return self.relation.text


@dataclass(frozen=True)
class Reached:
    """A related table at the end of a path."""

    path: str
    relation: Relation
    columns: dict[str, Column]
    on: tuple[tuple[str, str], ...]
    many: bool
    time: str | None
    read: list[Column]  # the columns that become something
    wanted: WantedStep = field(default_factory=WantedStep)
    key: ForeignKey | None = None

    @property
    def step(self) -> RelatedStep:
        needed = [*(name for _, name in self.on), *([self.time] if self.time else [])]
        listed = {name: self.columns[name] for name in needed} | {column.name: column for column in self.read}
        columns = tuple(RelatedColumn(one.name, SqlType(one.type)) for one in listed.values())
        return RelatedStep(self.path, StoredName(str(self.relation.name)), self.on, self.many, columns, self.time)


@dataclass(frozen=True)
class StepsOrigin:
    """The source, from which steps begin."""

    relation: Relation
    columns: dict[str, Column]
    as_of: Column | None
    targets: Sequence[str]


def opened(reached: Iterable[Reached]) -> OpenedTables:
    found = list(reached)
    return OpenedTables({one.path: one.relation for one in found}, {one.path: one.columns for one in found})


def reached(db: Database, origin: StepsOrigin, wanted: WantedRelated) -> list[Reached]:
    found = _followed(db, origin, wanted.depth) if wanted.depth else _named(db, origin, wanted.steps)
    for one in found:
        used = [*(name for _, name in one.on), *([one.time] if one.time else [])]
        relations.require_readable(db, one.relation, [*(one.columns[name] for name in used), *one.read])
    return found


# -- tables that the user names ------------------------------------------------------------------------------


def _named(db: Database, origin: StepsOrigin, steps: Mapping[str, WantedStep]) -> list[Reached]:
    found: dict[str, Reached] = {}
    for path, wanted in steps.items():
        parent = found.get(parent_of(path))
        before = Table(origin.relation, origin.columns) if parent is None else Table(parent.relation, parent.columns)
        relation = _table(db, before.relation, path, wanted)
        table = Table(relation, relations.columns(db, relation))
        key, on, many = _way(db, path, wanted, before, table)
        time = _time(path, wanted, table.columns, origin.as_of) if many or origin.as_of is not None else None
        read = _read(db, origin, table, {name for _, name in on} | {time or ""}, wanted, path)
        found[path] = Reached(
            path=path, relation=relation, columns=table.columns, on=on, many=many, time=time, read=read, wanted=wanted,
            key=key,
        )  # fmt: skip
    return list(found.values())


def _table(db: Database, before: Relation, path: str, wanted: WantedStep) -> Relation:
    """The table of a step: as it is named, or the one of that label which the table before has a foreign key with."""
    argument = f"related: {path}"
    if wanted.table is not None:
        return relations.existing(db, wanted.table, argument=argument)
    label = labels_of(path)[-1]
    name = Name(None, label)
    beside = relations.find(db, Name(before.schema, label)) if before.schema else None
    if relations.find(db, name) is None and beside is not None:
        name = beside.name
    please = 'The entry "table" names another one.'
    return relations.readable(db, relations.there(db, name, str(name), please, argument=argument))


def _way(
    db: Database, path: str, wanted: WantedStep, before: Table, table: Table
) -> tuple[ForeignKey | None, tuple[tuple[str, str], ...], bool]:
    """How a table is reached from the one before: the columns of both, and whether many of its rows may be."""
    where = f"related: {path}: on"
    pairs = wanted.pairs(where)
    if pairs is None:
        return _declared(db, path, before, table)
    on: list[tuple[str, str]] = []
    own_key = relations.unique_key(db, before.relation)
    for place, (other, name) in enumerate(pairs):
        if name not in table.columns:
            raise UndefinedColumn(
                f"{where}: {table.text} has no column '{name}'.", hint=relations.has_columns(table.columns)
            )
        if other is None:
            other = name if name in before.columns else own_key[place] if len(own_key) == len(pairs) else None
        if other is None or other not in before.columns:
            raise UndefinedColumn(
                f"{where}: {before.text} has no column '{other or name}'.",
                hint=f"""Name the column of {before.text}, too: {{"on": {{"COLUMN": "{name}"}}}}.""",
            )
        _require_comparable(where, (before, other), (table, name))
        on.append((other, name))
    return None, tuple(on), not is_unique(db, table.relation, [name for _, name in on])


def _declared(
    db: Database, path: str, before: Table, table: Table
) -> tuple[ForeignKey, tuple[tuple[str, str], ...], bool]:
    keys = _between(db, before.relation, table.relation)
    if len(keys) == 1:
        ((key, many),) = keys
        return key, key.pairs(many=many), many
    if not keys:
        raise InvalidArgument(
            f"related: {path}: no foreign key is declared between {before.text} and {table.text}.",
            hint=f"""Say which columns have the same values: '{{"{path}": {{"on": "COLUMN"}}}}'.""",
        )
    listed = ", ".join(sorted(" and ".join(key.columns) for key, _ in keys))
    raise InvalidArgument(
        f"related: {path}: there are {len(keys)} foreign keys between {before.text} and {table.text}, of the"
        f" columns {listed}.",
        hint=f"""Say which one: '{{"{path}": {{"on": {{"COLUMN OF {before.text}": "COLUMN"}}}}}}'.""",
    )


def _require_comparable(where: str, one: tuple[Table, str], other: tuple[Table, str]) -> None:
    here, there = (table.columns[name] for table, name in (one, other))
    alike = here.type == there.type or (here.category == there.category and here.category in "NS")
    if not alike or None in (_family(here), _family(there)):
        raise InvalidArgument(
            f"{where}: '{here.name}' of {one[0].text} is {here.shown}, and '{there.name}' of {other[0].text} is"
            f" {there.shown}.",
            hint="A view can convert one of them.",
        )


def _time(path: str, wanted: WantedStep, columns: dict[str, Column], as_of: Column | None) -> str | None:
    where = f"related: {path}"
    if wanted.time is not None:
        if wanted.time not in columns:
            raise UndefinedColumn(f"{where}: there is no column '{wanted.time}'.", hint=relations.has_columns(columns))
        _require_time(f"{where}: time", columns[wanted.time], as_of)
        return wanted.time
    if wanted.unchanging:
        return None
    times = times_of(columns, as_of)
    if len(times) == 1 or as_of is None:
        return times[0] if len(times) == 1 else None
    raise InvalidArgument(
        f"{where}: it is not known which column has the time of a row"
        + (f"; there are {', '.join(times)}." if times else ", because no column is a date or a time."),
        hint=f"""Name it: {{"{path}": {{"time": "COLUMN"}}}}; or say that rows never change: {{"unchanging": true}}.""",
    )


def _require_time(where: str, column: Column, as_of: Column | None) -> None:
    family = _family(column)
    if family not in ("date", "number"):
        raise InvalidArgument(
            f"{where} cannot be '{column.name}' of type {column.shown}.", hint="Take a date or a number."
        )
    if as_of is None:
        return
    if family != _family(as_of):
        raise InvalidArgument(
            f"{where} is '{column.name}' of type {column.shown}, and as_of is '{as_of.name}' of type {as_of.shown}.",
            hint="Both have to be dates and times, or both numbers.",
        )
    if family == "date" and need_a_zone(column.type, as_of.type):
        raise InvalidArgument(
            f"{where} is '{column.name}' of type {column.shown}, and as_of is '{as_of.name}' of type {as_of.shown}:"
            " to compare them, the time zone has to be known.",
            hint="A view can say it: … AT TIME ZONE 'Europe/Rome'.",
        )


def times_of(columns: dict[str, Column], as_of: Column | None) -> list[str]:
    """The columns that may have the time of a row: that of the same name as ``as_of``, or else all dates."""
    if as_of is None:
        return [one.name for one in columns.values() if one.type in DATES]
    family = _family(as_of)
    same = columns.get(as_of.name)
    if same is not None and _family(same) == family:
        return [same.name]
    if family != "date":
        return []
    return [one.name for one in columns.values() if one.type in DATES and not need_a_zone(one.type, as_of.type)]


def _read(
    db: Database, origin: StepsOrigin, table: Table, left: set[str], wanted: WantedStep, path: str
) -> list[Column]:
    """The columns that become something: those that the user lists, or all but keys, the time and targets.

    ``left``: those of the key and the time.
    """
    columns = table.columns
    if wanted.columns is not None:
        names = split_list(wanted.columns, f"related: {path}: columns") if wanted.columns.strip() else []
        for name in names:
            if name not in columns:
                raise UndefinedColumn(
                    f"related: {path}: columns: {table.text} has no column '{name}'.",
                    hint=relations.has_columns(columns),
                )
            if _family(columns[name]) in OF_SINGLE_VALUES:
                raise InvalidArgument(
                    f"related: {path}: columns: '{name}' is {columns[name].shown}, which cannot be read here.",
                    hint="Take numbers, dates, texts and booleans.",
                )
        return [columns[name] for name in names]
    # The number of a row within its key says nothing, unless it is what another table knows the row by.
    own = {*relations.keys(db, table.relation), *relations.unique_key(db, table.relation)}
    left = left | (own - relations.references(db, table.relation))
    if table.relation.oid == origin.relation.oid:
        left |= set(origin.targets)
    return [
        one for one in columns.values()
        if one.name not in left and one.readable and _family(one) not in OF_SINGLE_VALUES
    ]  # fmt: skip


# -- declared foreign keys -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class LeftOut:
    """A table to which a foreign key leads, and which is not read."""

    path: str
    why: str
    entry: dict[str, Any] | None = None  # what reads it; None: nothing that the user could say


def _followed(db: Database, origin: StepsOrigin, depth: int) -> list[Reached]:
    """The tables to which declared foreign keys lead, the nearest first."""
    found: list[Reached] = []
    left_out: list[LeftOut] = []
    own_key = set(relations.unique_key(db, origin.relation))
    level: list[tuple[Reached | None, int]] = [(None, 0)]
    while level:
        following: list[tuple[Reached | None, int]] = []
        for parent, far in level:
            for label, key, many in _labelled(db, origin.relation if parent is None else parent.relation):
                path = label if parent is None else f"{parent.path}{SEPARATOR}{label}"
                if far >= depth or len(labels_of(path)) > DEEPEST or _goes_back(parent, key, many, origin):
                    continue
                if many and _is_task(db, key.of):
                    continue
                one = _reached(db, origin, path, key, many)
                if isinstance(one, LeftOut):
                    left_out.append(one)
                elif one.read or one.relation.oid != origin.relation.oid:
                    found.append(one)
                    # The row of the entity that an example is about is as near as the example itself.
                    of_key = parent is None and not many and set(key.columns) <= own_key
                    following.append((one, far if of_key else far + 1))
        level = following if len(found) < MOST_STEPS else []
    if left_out:
        said = {one.path: {"time": one.time} if one.time else {} for one in found[:MOST_STEPS]}
        said.update({one.path: one.entry for one in left_out if one.entry is not None})
        db.notice(
            f"related: these tables are left out: {'; '.join(f'{one.path}, because {one.why}' for one in left_out)}",
            f"To read them: related => '{json.dumps(said)}'." if any(one.entry for one in left_out) else None,
        )
    return found[:MOST_STEPS]


def _is_task(db: Database, oid: int) -> bool:
    """Whether cerebro.make_task has made a table: its rows have an earlier time, but know what came after it."""
    relation = relations.of_oid(db, oid)
    return relation is not None and any(one.startswith(MADE) for one in relations.comments(db, relation).values())


def _goes_back(parent: Reached | None, key: ForeignKey, many: bool, origin: StepsOrigin) -> bool:
    """Whether a step leads back along the foreign key that led here.

    From many rows it would lead to the row itself.  From one row it leads to the other rows that refer to it, and these
    are read only where there is a time: as they were before.
    """
    back = parent is not None and parent.key is not None and parent.key.oid == key.oid and parent.many != many
    return back and (parent is None or parent.many or origin.as_of is None)


def _reached(db: Database, origin: StepsOrigin, path: str, key: ForeignKey, many: bool) -> Reached | LeftOut:
    relation = relations.of_oid(db, key.of if many else key.to)
    if relation is None or not relations.belongs_to(db, relation, origin.relation):
        return LeftOut(path, "it belongs to another user", None if relation is None else {"table": str(relation.name)})
    if not relation.reads_some:
        return LeftOut(path, "you may not read it")
    relation = relations.readable(db, relation)
    columns, on = relations.columns(db, relation), key.pairs(many=many)
    if not all(columns[name].readable for _, name in on):
        return LeftOut(path, "you may not read its key")
    times = times_of(columns, origin.as_of)
    if origin.as_of is not None and not times:
        return LeftOut(path, "no column has the time of a row", {"unchanging": True})
    if origin.as_of is not None and len(times) > 1:
        return LeftOut(path, f"{' or '.join(times)} may be the time of a row", {"time": times[0]})
    time = times[0] if len(times) == 1 and (many or origin.as_of is not None) else None
    left = {name for _, name in on} | {time or ""}
    read = _read(db, origin, Table(relation, columns), left, WantedStep(), path)
    return Reached(path=path, relation=relation, columns=columns, on=on, many=many, time=time, read=read, key=key)


def _labelled(db: Database, relation: Relation) -> list[tuple[str, ForeignKey, bool]]:
    """The steps from a table along declared foreign keys, with their labels."""
    keys = list(
        {(key.of, key.to, key.columns, key.referred): key for key in foreign_keys.touching(db, relation)}.values()
    )
    steps = [(key, False) for key in keys if key.of == relation.oid]
    steps += [(key, True) for key in keys if key.to == relation.oid]
    tables = {oid: one for oid in {key.of if many else key.to for key, many in steps}
              if (one := relations.of_oid(db, oid)) is not None}  # fmt: skip
    named = []
    for key, many in steps:
        oid = key.of if many else key.to
        if oid in tables:
            named.append((tables[oid].table.replace(SEPARATOR, "_"), key, many))
    often = Counter(label for label, _, _ in named)
    labels = [label if often[label] == 1 else f"{label} by {' and '.join(key.columns)}" for label, key, _ in named]
    # Tables of one name in two schemas are told apart by a number.
    numbers = [labels[:place].count(label) for place, label in enumerate(labels)]
    return [
        (f"{label} {number + 1}" if number else label, key, many)
        for label, number, (_, key, many) in zip(labels, numbers, named)
    ]


def _between(db: Database, before: Relation, relation: Relation) -> list[tuple[ForeignKey, bool]]:
    ones = [(key, False) for key in foreign_keys.between(db, before, relation)]
    return ones + [(key, True) for key in foreign_keys.between(db, relation, before)]


def is_unique(db: Database, relation: Relation, names: Sequence[str]) -> bool:
    """Whether no two rows have the same values in these columns."""
    return bool(
        db.value(
            sql(
                "SELECT EXISTS (SELECT FROM pg_catalog.pg_index i WHERE i.indrelid = $1::oid AND i.indisunique"
                " AND i.indisvalid AND i.indimmediate AND i.indpred IS NULL AND i.indexprs IS NULL"
                " AND NOT EXISTS (SELECT"
                "  FROM unnest((i.indkey::pg_catalog.int2[])[0:i.indnkeyatts - 1]) AS u (n)"
                "  JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = u.n"
                "  WHERE a.attname <> ALL ($2::text[])))"
            ),
            ("bigint", "text[]"),
            relation.oid,
            list(names),
        )
    )


def _family(column: Column) -> str | None:
    return family_of(column.type, column.category, column.element)
