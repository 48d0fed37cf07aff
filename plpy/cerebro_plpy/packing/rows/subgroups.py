"""The groups of ``cerebro.pack``: the rows of each group lie together, so that a model can train on them alone.

core/packing/subgroups.py decides which segment a group goes to.  The SQL here gives a row the number of its piece,
which is its group on a segment.  A group that is split is divided by the order in which its rows are packed.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from cerebro_db.core.arguments import PackArguments
from cerebro_db.core.errors import BadData, InvalidArgument, UndefinedColumn
from cerebro_db.core.names import split_list
from cerebro_db.core.packing import columns as deciding
from cerebro_db.core.packing import layout
from cerebro_db.core.packing.subgroups import LONGEST_LABEL, MOST_COLUMNS, MOST_GROUPS, Piece, placed
from cerebro_db.core.packing.windows import Windows
from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import Sql, joined, literal, number_array, sql
from cerebro_db.core.sql_types import SqlType
from cerebro_db.core.texts import counted

from ...database import relations
from ...database.access import Database
from ...database.relations import Column, Relation
from . import group_key, variables
from .preparation import Alias
from .splits import by_name

Label = tuple  # of a group: the text of each column's value, or None
TEXTS = ("text", "character varying", "bpchar")
FAMILIES = ("date", "time", "text", "boolean", *deciding.LABELS)  # of columns beside those of integers


@dataclass(frozen=True)
class SplitGroup:
    """A group on several segments: its pieces, and the first place in the order of each piece but the first."""

    pieces: tuple[int, ...]
    limits: tuple[int, ...]


@dataclass(frozen=True)
class Placed:
    """Where the rows of groups go.  Pieces are numbered from 0, in the order in which rows are packed."""

    columns: tuple[Column, ...]
    labels: tuple[tuple[str | None, ...], ...]  # of the groups, in the order of their numbers
    segments: int
    at: tuple[tuple[int, int], ...]  # of each piece: its segment, and the number of its group
    known: dict[str, int]  # key of a group -> its piece; of a group that is split: -1 for the first such group, ...
    split: tuple[SplitGroup, ...]
    rows: tuple[int, ...]  # of each piece

    def group(self, alias: Alias) -> Sql:
        """What ``known`` has for a row; NULL if its group is not known."""
        return sql(
            "({known}::pg_catalog.jsonb OPERATOR(pg_catalog.->) {key})::integer",
            known=literal(json.dumps(self.known, ensure_ascii=False)),
            key=group_key.of(self.columns, alias),
        )

    @property
    def piece(self) -> Sql:
        """The piece of a row, over ``g``, which is the value of ``group``, and ``n``, its place in the order."""
        if not self.split:
            return sql("g")
        cases = joined(
            " ",
            (
                sql(
                    "WHEN {number} THEN ({pieces}::integer[])[1 + pg_catalog.width_bucket(n, {limits}::bigint[])]",
                    number=-place,
                    pieces=number_array(one.pieces),
                    limits=number_array(one.limits),
                )
                for place, one in enumerate(self.split, 1)
            ),
        )
        return sql("CASE g {cases} ELSE g END", cases=cases)

    def of_segment(self, segment: int) -> tuple[Piece, ...]:
        """The groups of a segment and their rows there."""
        return tuple((group, rows) for (at, group), rows in zip(self.at, self.rows) if at == segment and rows)

    def folds_of_segment(
        self, segment: int, counted: Counter[tuple[int, int]], folds: int
    ) -> tuple[tuple[int, ...], ...]:
        """Of the same groups, the rows of each fold.  ``counted``: those of each piece and fold."""
        return tuple(
            tuple(counted[piece, fold] for fold in range(1, folds + 1))
            for piece, ((at, _), rows) in enumerate(zip(self.at, self.rows))
            if at == segment and rows
        )

    @property
    def rows_of_segments(self) -> tuple[int, ...]:
        found = [0] * self.segments
        for (segment, _), rows in zip(self.at, self.rows):
            found[segment] += rows
        return tuple(found)

    def has_rows(self, found: Counter[int]) -> bool:
        """Whether these are the numbers of rows of the pieces."""
        return found == Counter({piece: rows for piece, rows in enumerate(self.rows) if rows})

    def documented(self) -> layout.Groups:
        columns = tuple(layout.GroupColumn(one.name, SqlType(one.type)) for one in self.columns)
        return layout.Groups(columns, self.labels)


def asked_for(
    given: PackArguments, present: dict[str, Column], source: Relation, windows: Windows | None
) -> tuple[Column, ...]:
    """The columns of the argument ``group_by``; none: rows have no groups."""
    if given.group_by is None:
        return ()
    if not given.group_by.strip():
        raise InvalidArgument(
            "group_by must not be empty.", hint="Leave it out, or name the columns that tell the groups apart."
        )
    columns = variables.pick(present, split_list(given.group_by, "group_by"), "group_by", source)
    if len(columns) > MOST_COLUMNS:
        raise InvalidArgument(
            f"group_by has {len(columns)} columns; it can have {MOST_COLUMNS}.",
            hint="Make one column of several in a view.",
        )
    targets = split_list(given.target, "target")
    for column in columns:
        if windows is not None and column.name not in windows.by:
            by = json.dumps([*windows.by, column.name], ensure_ascii=False)
            raise InvalidArgument(
                f"'{column.name}' of group_by is not in \"by\" of sequence: a window could have rows of two groups.",
                hint=f"For instance sequence => '{{\"by\": {by}, …}}'.",
            )
        if column.name in targets:
            raise InvalidArgument(
                f"the target '{column.name}' is in group_by: all rows of a group would have the same target.",
                hint="Leave it out of group_by.",
            )
        if not _may_group(column):
            raise InvalidArgument(
                f"invalid group_by ('{column.name}'): its type is {column.shown}.",
                hint="Groups are made by columns of texts, integers, dates and booleans; a view can convert others.",
            )
    return tuple(columns)


def _may_group(column: Column) -> bool:
    if column.element is not None:
        return False
    return column.type in deciding.INTEGERS or _family(column) in FAMILIES


def _family(column: Column) -> str | None:
    return deciding.family_of(column.type, column.category, column.element)


def require_types(known: Sequence[Column], present: dict[str, Column], where: str) -> None:
    """Refuse rows whose columns would be converted: a value could become that of another group."""
    for column in known:
        here = present.get(column.name)
        if here is None:
            raise UndefinedColumn(
                f"{where} has no column '{column.name}', which tells the groups apart.",
                hint=f"Add it. {relations.has_columns(present)}",
            )
        integers = here.type in deciding.INTEGERS and column.type in deciding.INTEGERS
        texts = here.type in TEXTS and column.type in TEXTS
        if here.element is None and (integers or texts or here.type == column.type):
            continue
        zone = deciding.need_a_zone(here.type, column.type)
        raise BadData(
            f"column '{here.name}' of {where} has type {here.shown}, and {column.shown} in the rows for training.",
            hint=deciding.IN_A_ZONE if zone else "Convert it in a view or query: it tells the groups apart.",
        )


def found(db: Database, rows: Relation, columns: tuple[Column, ...], segments: int, order: Sql) -> Placed:
    """The groups of the rows for training, and where they go.  ``order``: the number by which rows are sorted."""
    counts = _counted(db, rows, columns)
    if len(counts) > MOST_GROUPS:
        raise BadData(
            f"group_by: {source_of(rows)} has more than {MOST_GROUPS:,} groups.",
            hint="Group by columns with fewer values.",
        )
    labels = sorted(counts, key=lambda label: [_sorting(value, column) for value, column in zip(label, columns)])
    for label in labels:
        if sum(len((value or "").encode()) for value in label) > LONGEST_LABEL:
            raise BadData(
                f"group_by: a group of {source_of(rows)} has values of more than {LONGEST_LABEL} bytes.",
                hint="Group by a column with shorter values.",
            )
    planned = placed([counts[label][1] for label in labels], segments)
    at = [(segment, group) for segment, pieces in enumerate(planned) for group, _ in pieces]
    pieces_of: dict[int, list[int]] = {}
    for piece, (_, group) in enumerate(at):
        pieces_of.setdefault(group, []).append(piece)
    apart = [group for group, pieces in sorted(pieces_of.items()) if len(pieces) > 1]
    known = {counts[label][0]: pieces_of[group][0] for group, label in enumerate(labels, 1)}
    known.update({counts[labels[group - 1]][0]: -place for place, group in enumerate(apart, 1)})
    whole = Placed(
        columns=columns, labels=tuple(labels), segments=len(planned), at=tuple(at), known=known, split=(), rows=()
    )
    sizes = [size for pieces in planned for _, size in pieces]
    limits = _limits(db, rows, whole, order, [[sizes[piece] for piece in pieces_of[group]] for group in apart])
    split = tuple(SplitGroup(tuple(pieces_of[group]), one) for group, one in zip(apart, limits))
    return counted_again(db, rows, replace(whole, split=split), order, training=True)


def counted_again(db: Database, rows: Relation, groups: Placed, order: Sql, *, training: bool) -> Placed:
    """The same groups with the pieces' sizes in these rows."""
    sizes = {
        row["piece"]: row["rows"]
        for row in db.scan(
            sql(
                "SELECT {piece} AS piece, count(*) AS rows"
                " FROM (SELECT {group} AS g, {order} AS n FROM {rows} AS s) r GROUP BY 1",
                piece=groups.piece,
                group=groups.group(by_name),
                order=order if groups.split else sql("0"),
                rows=rows.rows,
            )
        )
    }
    made = replace(groups, rows=tuple(sizes.get(piece, 0) for piece in range(len(groups.at))))
    if training and not all(made.rows_of_segments):
        raise BadData(
            f"the rows of {source_of(rows)} cannot be divided: too many rows of one group have the same values.",
            hint="Give the table a primary key, or leave the group on one segment with segments => 1.",
        )
    return made


def of_validation(db: Database, rows: Relation, groups: Placed, order: Sql, present: dict[str, Column]) -> Relation:
    """The rows for validation that belong to groups of the training rows."""
    relations.require_readable(db, rows, [present[column.name] for column in groups.columns])
    made = counted_again(db, rows, groups, order, training=False)
    (all_rows,) = db.scan(sql("SELECT count(*) AS rows FROM {rows} AS s", rows=rows.rows))
    left_out = all_rows["rows"] - sum(made.rows)
    if left_out:
        db.notice(f"{counted(left_out, 'row')} for validation are left out: no row for training is in their groups")
        rows = rows.also(sql("{group} IS NOT NULL", group=groups.group(by_name)))
    if not any(made.rows):
        raise BadData(
            f"no row for validation of {source_of(rows)} belongs to a group of the rows for training.",
            hint="Choose other rows for validation, or validation => 0 to keep all rows for training.",
        )
    return rows


def tell(db: Database, groups: Placed) -> None:
    sizes = groups.rows_of_segments
    split = f"; {counted(len(groups.split), 'group')} on several segments" if groups.split else ""
    each = f", each with {min(sizes):,} to {max(sizes):,} rows" if len(sizes) > 1 else ""
    db.told(f"{counted(len(groups.labels), 'group')} on {counted(groups.segments, 'segment')}{each}{split}")


def source_of(rows: Relation) -> str:
    return f"table {rows.text}"


def _counted(db: Database, rows: Relation, columns: tuple[Column, ...]) -> dict[Label, tuple[str, int]]:
    """Values of a group's columns -> its key, and the number of its rows."""
    texts = group_key.labels(columns, by_name)
    listed = joined(", ", (sql("{text} AS v{place}", text=text, place=place) for place, text in enumerate(texts)))
    rows_of = db.scan(
        sql(
            "SELECT {listed}, {key} AS key, count(*) AS rows FROM {rows} AS s GROUP BY {places} LIMIT {most}",
            listed=listed,
            key=group_key.of(columns, by_name),
            rows=rows.rows,
            places=joined(", ", (sql("{place}", place=place) for place in range(1, len(columns) + 2))),
            most=MOST_GROUPS + 1,
        )
    )
    return {tuple(row[f"v{place}"] for place in range(len(columns))): (row["key"], row["rows"]) for row in rows_of}


def _sorting(value: str | None, column: Column) -> tuple[bool, int, str]:
    """Sorts integers as numbers, all else as text, and NULL last."""
    if value is None:
        return True, 0, ""
    return (False, int(value), "") if column.type in deciding.INTEGERS else (False, 0, value)


def _limits(
    db: Database, rows: Relation, groups: Placed, order: Sql, sizes: Sequence[Sequence[int]]
) -> list[tuple[int, ...]]:
    """Of each group that is split, the first place in the order of each piece but the first."""
    if not sizes:
        return []
    firsts = [
        sql("({group}, {place})", group=-group, place=1 + sum(pieces[:piece]))
        for group, pieces in enumerate(sizes, 1)
        for piece in range(1, len(pieces))
    ]
    limits: dict[int, list[int]] = {}
    for row in db.scan(
        sql(
            """
        SELECT g, n
          FROM (SELECT g, n, row_number() OVER (PARTITION BY g ORDER BY n) AS place
                  FROM (SELECT {group} AS g, {order} AS n FROM {rows} AS s) r
                 WHERE g < 0) o
         WHERE (g, place) IN ({firsts})
         ORDER BY g, n
        """,
            group=groups.group(by_name),
            order=order,
            rows=rows.rows,
            firsts=joined(", ", firsts),
        )
    ):
        limits.setdefault(row["g"], []).append(row["n"])
    return [tuple(limits.get(-group, ())) for group in range(1, len(sizes) + 1)]
