"""How the rows of a table of events belong to those of a table of entities, for ``cerebro.make_task``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cerebro_db.core.errors import BadData, InvalidArgument
from cerebro_db.core.names import Name, split_list, written_list
from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import Sql, identifier, joined, sql
from cerebro_db.core.texts import counted

from ..database import foreign_keys, relations
from ..database.access import Database
from ..database.relations import Column, Relation

DATE = "date"
TIMES = (DATE, "timestamp without time zone", "timestamp with time zone")


@dataclass(frozen=True)
class Link:
    """Entities and their events: the columns ``on`` of an event have the values of the entity's ``key``."""

    entity: Relation
    event: Relation
    entity_columns: Mapping[str, Column]
    event_columns: Mapping[str, Column]
    key: Sequence[Column]
    on: Sequence[Column]
    is_unique: bool  # an index says that no two entities have the same key, and that none is NULL
    is_declared: bool  # a foreign key of the events says how they belong to entities


@dataclass(frozen=True)
class Pairs:
    """The columns of an event, and those of the entity that they refer to."""

    columns: tuple[str, ...]
    referred: tuple[str, ...]


def found(db: Database, entities: str | None, events: str | None, on: str | None, key: str | None) -> Link:
    """The link between two tables, by the columns that are named, or a foreign key, or columns of equal names."""
    entity = relations.filled(db, entities, argument="entity_table")
    event = relations.filled(db, events, argument="event_table")
    mine, theirs = relations.columns_of(db, entity, event)
    unique = relations.unique_key(db, entity)
    declared = list(dict.fromkeys(Pairs(key.columns, key.referred) for key in foreign_keys.between(db, event, entity)))
    keys = None if key is None else split_list(key, "key")
    relations.named(db, entity, keys or [], "The argument key names it.", mine)
    names = None if on is None else split_list(on, "on_columns")
    chosen = _chosen(event, entity, declared, names, keys)
    if chosen is None:
        keys = keys or unique
        if not keys:
            raise InvalidArgument(
                f"key is NULL, and '{entity.text}' has no primary key.", hint="key names the columns of its key."
            )
        chosen = Pairs(tuple(names or _same_names(event, entity, theirs, keys)), tuple(keys))
        if len(chosen.columns) != len(chosen.referred):
            raise InvalidArgument(
                f"on_columns names {counted(len(chosen.columns), 'column')}, and the key of '{entity.text}'"
                f" ({written_list(keys)}) has {len(chosen.referred)}.",
                hint="Name a column of event_table for each column of the key, in its order.",
            )
    link = Link(
        entity=entity,
        event=event,
        entity_columns=mine,
        event_columns=theirs,
        key=relations.require_columns(db, entity, list(chosen.referred), "The argument key names it.", mine),
        on=relations.require_columns(db, event, list(chosen.columns), "The argument on_columns names it.", theirs),
        is_unique=set(chosen.referred) == set(unique) and not entity.has_children,
        is_declared=any(
            dict(zip(one.columns, one.referred)) == dict(zip(chosen.columns, chosen.referred)) for one in declared
        ),
    )
    _require_types(link)
    if not link.is_unique:
        _require_unique(db, link)
    return link


def _chosen(
    event: Relation, entity: Relation, declared: list[Pairs], names: list[str] | None, keys: list[str] | None
) -> Pairs | None:
    """The foreign key that fits what is named, its columns in the order of what is named; None without one."""
    fitting = [
        one
        for one in declared
        if (names is None or set(one.columns) == set(names)) and (keys is None or set(one.referred) == set(keys))
    ]
    if len(fitting) > 1 and names is None:
        ways = " or ".join(f"on_columns => '{written_list(one.columns)}'" for one in fitting)
        raise InvalidArgument(
            f"'{event.text}' has {len(fitting)} foreign keys to '{entity.text}'.", hint=f"Name one of them: {ways}."
        )
    if not fitting:
        return None
    (one, *_) = fitting
    if keys is not None and names is None:
        back = dict(zip(one.referred, one.columns))
        return Pairs(tuple(back[name] for name in keys), tuple(keys))
    if names is not None and keys is None:
        there = dict(zip(one.columns, one.referred))
        return Pairs(tuple(names), tuple(there[name] for name in names))
    return None if keys is not None else one  # what both name is as it is named


def _same_names(event: Relation, entity: Relation, theirs: Mapping[str, Column], keys: Sequence[str]) -> Sequence[str]:
    if all(name in theirs for name in keys):
        return keys
    raise InvalidArgument(
        f"on_columns is NULL, '{event.text}' has no foreign key to '{entity.text}', and not all columns of the key"
        f" ({written_list(keys)}).",
        hint=f"on_columns names the columns of event_table that have the key. {relations.has_columns(dict(theirs))}",
    )


def _require_types(link: Link) -> None:
    """An error unless the columns of events can be compared with those of the key."""
    for mine, theirs in zip(link.key, link.on):
        alike = mine.category == theirs.category and mine.category in "NS"
        if mine.type != theirs.type and not alike:
            raise InvalidArgument(
                f"on_columns: '{theirs.name}' has the type {theirs.shown}, and the key '{mine.name}' has {mine.shown}.",
                hint="A view can convert one of them.",
            )


def _require_unique(db: Database, link: Link) -> None:
    """An error for an entity whose key is NULL, or that of another one."""
    names = [sql("s.{name}", name=identifier(one.name)) for one in link.key]
    shown = written_list(one.name for one in link.key)
    (missing,) = db.scan(
        sql(
            "SELECT count(*) AS rows FROM {rows} AS s WHERE {unknown}",
            rows=link.entity.rows,
            unknown=joined(" OR ", (sql("{name} IS NULL", name=name) for name in names)),
        )
    )
    if missing["rows"]:
        raise BadData(
            f"entity_table: the key '{shown}' of '{link.entity.text}' is NULL in"
            f" {counted(int(missing['rows']), 'row')}.",
            hint="Each entity needs a key of its own.",
        )
    twice = db.scan(
        sql(
            "SELECT pg_catalog.concat_ws(', ', {texts}) AS key FROM {rows} AS s GROUP BY {names} HAVING count(*) > 1"
            " LIMIT 1",
            texts=joined(", ", (sql("{name}::text", name=name) for name in names)),
            rows=link.entity.rows,
            names=joined(", ", names),
        )
    )
    if twice:
        raise BadData(
            f"entity_table: '{link.entity.text}' has several rows with the key '{shown}' = {twice[0]['key']}.",
            hint="Each entity needs a key of its own.",
        )


def times(columns: Mapping[str, Column]) -> list[Column]:
    """The columns that have a time and that the user may read."""
    return [one for one in columns.values() if one.type in TIMES and one.readable]


def time_of(db: Database, table: Relation, columns: Mapping[str, Column], name: str | None, argument: str) -> Column:
    """The column with the time of a row: the named one, or the only one that there is."""
    if name is None:
        known = times(columns)
        if len(known) == 1:
            return known[0]
        some = "no column of type date or timestamp" if not known else f"{len(known)} columns with a time"
        raise InvalidArgument(
            f"{argument} is NULL, and '{table.text}' has {some}.",
            hint=f"Name one of them: {written_list(one.name for one in known)}."
            if known
            else "A view can make one of other columns.",
        )
    names = split_list(name, argument)
    if len(names) != 1:
        raise InvalidArgument(f"{argument} names {len(names)} columns; it takes one.")
    (column,) = relations.require_columns(db, table, names, f"The argument {argument} names it.", dict(columns))
    if column.type not in TIMES:
        raise InvalidArgument(
            f"{argument}: '{column.name}' has the type {column.shown}, and no date or timestamp.",
            hint="A view can convert it.",
        )
    return column


def refer(db: Database, output: Name, link: Link) -> bool:
    """Let the table refer to the entities, so that what is related is found by itself; False where it cannot.

    Rows of an entity that is deleted go with it.
    """
    made = relations.find(db, output)
    possible = link.is_unique and link.entity.kind in "rp" and made is not None
    if not possible or made is None or made.temporary != link.entity.temporary or not _may_refer(db, link.entity):
        return False
    names: Sql = joined(", ", (identifier(one.name) for one in link.key))
    db.patiently(
        sql(
            "ALTER TABLE {output} ADD FOREIGN KEY ({names}) REFERENCES {entity} ({names}) ON DELETE CASCADE",
            output=output.sql,
            names=names,
            entity=link.entity.sql,
        )
    )
    return True


def _may_refer(db: Database, entity: Relation) -> bool:
    return bool(db.value(sql("SELECT pg_catalog.has_table_privilege($1::oid, 'REFERENCES')"), ("bigint",), entity.oid))
