"""The tables of the database: whether they exist and may be used, and their columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from cerebro_db.core import pgvector
from cerebro_db.core.errors import (
    BadData,
    DuplicateTable,
    InvalidArgument,
    InvalidName,
    InvalidSyntax,
    NotPermitted,
    SerializationFailure,
    UndefinedColumn,
    UndefinedObject,
    UndefinedTable,
    Unsupported,
)
from cerebro_db.core.names import Name, is_name, token
from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import Sql, identifier, joined, quoted, sql, sql_of_user
from cerebro_db.core.sql_types import SqlType
from cerebro_db.core.texts import counted

from . import cancellation, types
from .access import Database
from .kept import KeptByRole

SEVERAL = ";"  # only where this is can a text have several statements
OPENS_NO_CURSOR = "42P11"
PLACE = f"cerebro_place_{token()}"  # no table has a column of this name
TEMPORARY = "pg_temp"  # the schema of this session's temporary tables
READABLE = {"r": "table", "p": "partitioned table", "v": "view", "m": "materialized view", "f": "foreign table"}


@dataclass(frozen=True)
class Relation:
    """A table or view that exists, or those of its rows that fulfil a condition.  ``text`` is what the user wrote."""

    oid: int
    schema: str
    table: str
    kind: str
    temporary: bool
    text: str
    condition: Sql | None = None  # over the columns; None: all rows
    query: Sql | None = None  # the rows of a query, which is in no catalog: it has no oid and no name
    readable: tuple[str, ...] | None = None  # the columns that the user may read; None: all, or this was not asked
    copy: Name | None = None  # a table that has its rows, and is read in its place
    row_hash: Sql | None = None  # the column of the copy that has the hash of each row
    owner: int = 0
    has_children: bool = False  # whether other tables inherit from it, or have
    reads_all: bool = True  # when it was found: whether the user may read the whole table, and whether any column
    reads_some: bool = True
    described: tuple[tuple[str, int], ...] = ()  # of a query: its columns, and the OIDs of their types
    more: tuple[Column, ...] = ()  # columns of the copy that the table does not have

    @property
    def is_own(self) -> bool:
        """Whether it belongs to the current user, and not to a role that others are in."""
        return self.owner == cancellation.current_user_id()

    @property
    def sql(self) -> Sql:
        return self.name.sql

    @property
    def rows(self) -> Sql:
        """What a query names after FROM, with an alias of its own."""
        if self.query is not None:
            whole = sql("({query}\n)", query=self.query)  # its last line may be a comment
            if self.condition is None:
                return whole
            return sql("(SELECT * FROM {rows} AS q WHERE {condition})", rows=whole, condition=self.condition)
        table = self.sql if self.copy is None else self.copy.sql
        if self.condition is None:
            return table
        return sql(
            "(SELECT {columns} FROM {table} WHERE {condition})",
            columns=self._columns,
            table=table,
            condition=self.condition,
        )

    @property
    def _columns(self) -> Sql:
        if self.readable is None or self.copy is not None:  # a copy has no other columns
            return sql("*")
        return joined(", ", map(identifier, self.readable))

    @property
    def placed_rows(self) -> Sql | None:
        """As ``rows``, with the place of each row in the table as the column PLACE; None if rows have no such place."""
        one_table = self.kind in ("r", "m") and not self.has_children and self.query is None and self.reads_all
        if not one_table and self.copy is None:
            return None
        return sql(
            "(SELECT {columns}, ctid AS {place} FROM {table} WHERE {condition})",
            columns=self._columns,
            place=identifier(PLACE),
            table=self.sql if self.copy is None else self.copy.sql,
            condition=sql("true") if self.condition is None else self.condition,
        )

    @property
    def name(self) -> Name:
        return Name(self.schema, self.table)

    def also(self, condition: Sql) -> Relation:
        """Its rows that fulfil this condition, too."""
        if self.condition is not None:
            condition = sql("({one}) AND ({other})", one=self.condition, other=condition)
        return replace(self, condition=condition)


@dataclass(frozen=True)
class Column:
    """A column; of a domain, the type below it.  ``element`` is the array's element type, if it is one.

    A column of pgvector's types counts as a ``real[]``, and ``array`` gives its value as one.
    """

    name: str
    type: str  # for casts: without a length ("bpchar" rather than "character"); users' types with their schema
    shown: str  # as pg_typeof() writes it
    category: str  # pg_type.typcategory: N, S, B, A, D …
    element: str | None
    readable: bool = True  # whether the user may read it
    vector: str | None = None  # of pgvector's types: the extension's type ``vector``

    def array(self, value: Sql) -> Sql:
        """The value as the server's own type: whatever reads an array as an array uses this."""
        return value if self.vector is None else pgvector.as_array(value, SqlType(self.vector))

    @property
    def cast(self) -> Sql:
        return SqlType(self.type).sql


def find(db: Database, name: Name, text: str | None = None) -> Relation | None:
    return next((replace(one, text=text or str(name)) for one in _found(db, [name])), None)


def of_oid(db: Database, oid: int) -> Relation | None:
    row = db.one(
        sql(
            "SELECT n.nspname::text AS schema, c.relname::text AS name FROM pg_catalog.pg_class c"
            " JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = $1::oid"
        ),
        ("bigint",),
        oid,
    )
    return None if row is None else find(db, Name(row["schema"], row["name"]))


def _found(db: Database, names: Sequence[Name]) -> list[Relation]:
    rows = db.rows(
        sql(
            "SELECT c.oid::bigint AS oid, n.nspname AS schema, c.relname AS table, c.relkind::text AS kind,"
            " c.relpersistence = 't' AS temporary, c.relowner::bigint AS owner, c.relhassubclass AS has_children,"
            " pg_catalog.has_table_privilege(c.oid, 'SELECT') AS reads_all,"
            " pg_catalog.has_any_column_privilege(c.oid, 'SELECT') AS reads_some"
            " FROM pg_catalog.unnest($1::text[]) AS u (name)"
            " JOIN pg_catalog.pg_class c ON c.oid = pg_catalog.to_regclass(u.name)"
            " JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
        ),
        ("text[]",),
        [name.quoted for name in names],
    )
    return [Relation(**row, text=str(Name(row["schema"], row["table"]))) for row in rows]


def beside(db: Database, table: Relation | Name, ending: str) -> Relation | None:
    """The table of this name with an ending, if it has the same owner.

    A caller names one table.  Whoever may create tables in its schema could put one beside it, and reading that would
    run code of another owner than the caller has chosen.
    """
    named = find(db, table) if isinstance(table, Name) else table
    found = None if named is None else find(db, named.name.suffixed(ending))
    return found if named is not None and found is not None and found.owner == named.owner else None


def beside_all(db: Database, table: Relation, endings: Sequence[str]) -> dict[str, Relation]:
    """As ``beside``, for several endings at once: the tables that are there."""
    names = [table.name.suffixed(ending) for ending in endings]
    there = {one.table: one for one in _found(db, names) if one.owner == table.owner}
    return {ending: there[name.table] for ending, name in zip(endings, names) if name.table in there}


def refuse_of_another(db: Database, table: Relation, ending: str) -> None:
    """An error that names both owners, if ``beside`` did not find a table because it has another owner."""
    found = find(db, table.name.suffixed(ending))
    if found is None or found.owner == table.owner:
        return
    other, owner = (
        db.value(sql("SELECT pg_catalog.pg_get_userbyid($1::oid)::text"), ("bigint",), one.owner)
        for one in (found, table)
    )
    raise NotPermitted(
        f"'{found.text}' is not read, because it belongs to {other}, and '{table.text}' belongs to {owner}.",
        hint="ALTER TABLE … OWNER TO … gives both tables one owner.",
    )


def hold(db: Database, name: Name) -> None:
    """Keep a table and its name as they are until the transaction ends, if there is one that the user may read.

    A transaction that replaces the table is waited for.  It is found by its name once more then, so what is read of it
    and of the tables beside it is all old or all new, for whoever replaces it locks it before the others.
    """
    try:
        db.text(sql("SELECT 1 AS one FROM {table} LIMIT 0", table=name.sql))
    except db.plpy.SPIError as error:
        if not error.sqlstate.startswith("42"):  # what is wrong with the name is said by who reads the table
            raise


def input_name(db: Database, text: str | None, argument: str) -> Name:
    """The name in an argument that takes an input table or view."""
    if text is None or not text.strip():
        empty = db.words.no_input_name.format(argument=argument)
        raise InvalidName(empty, hint=f"{argument} takes the name of a table or view.")
    return Name.parse(text, db.words.input_name.format(argument=argument))


def existing(
    db: Database,
    text: str | None,
    please: str = "",
    *,
    argument: str = "source_table",
    companions: Sequence[str] = (),
) -> Relation:
    """The input table of this name; an error unless it exists and a column of it may be read.

    Functions that use some of its columns require them with ``require_readable``.  The error of a user who may read
    none names all that is missing, also for the table's companions with these endings.
    """
    relation = there(db, input_name(db, text, argument), (text or "").strip(), please, argument=argument)
    return readable(db, relation, beside_all(db, relation, companions).values() if companions else ())


def there(db: Database, name: Name, shown: str, please: str = "", *, argument: str = "source_table") -> Relation:
    """The input table of this name, which the user wrote as ``shown``; an error unless it exists."""
    relation = find(db, name, shown)
    if relation is None:
        if db.value(sql("SELECT pg_catalog.to_regclass($1) IS NOT NULL AS there"), ("text",), shown):
            raise SerializationFailure(
                f"{argument}: the table '{shown}' was made after this transaction began.",
                hint="Try again in a new transaction.",
            )
        missing = db.words.no_table.format(argument=argument, table=shown)
        raise UndefinedTable(
            f"{missing} {please}".rstrip(),
            hint="Check the spelling, the schema and the search_path; capitals need double quotes.",
        )
    if relation.kind not in READABLE:
        raise Unsupported(f"{argument}: '{relation.text}' is not a table or view.")
    return relation


def readable(db: Database, relation: Relation, companions: Iterable[Relation] = ()) -> Relation:
    """The relation with the columns that the user may read; an error if it, or a table beside it, has none of them."""
    closed = [table for table in (relation, *companions) if not table.reads_some]
    if closed:
        named = ", ".join(table.name.quoted for table in closed)
        raise NotPermitted(
            f"permission denied to read '{closed[0].text}'"
            + (f" and {counted(len(closed) - 1, 'table')} beside it." if len(closed) > 1 else "."),
            hint=f"The owner can say: GRANT SELECT ON {named} TO {current_user(db)};",
        )
    if relation.reads_all:
        return relation
    return replace(relation, readable=tuple(one.name for one in columns(db, relation).values() if one.readable))


def filled(
    db: Database,
    text: str | None,
    please: str = "",
    *,
    argument: str = "source_table",
    companions: Sequence[str] = (),
) -> Relation:
    """As ``existing``, with an error for a table without rows."""
    relation = existing(db, text, please, argument=argument, companions=companions)
    if is_empty(db, relation):
        empty = db.words.no_rows.format(argument=argument, table=relation.text)
        raise BadData(empty, hint="At least one row is needed.")
    return relation


def is_empty(db: Database, relation: Relation) -> bool:
    return not db.scan(sql("SELECT 1 AS one FROM {rows} AS s LIMIT 1", rows=relation.rows))


def require_readable(db: Database, relation: Relation, needed: Iterable[Column]) -> None:
    """An error that names the columns that the user may not read.

    This is for the error's text alone: what is read is read as the user, so the server checks it, too.
    """
    closed = list(dict.fromkeys(column.name for column in needed if not column.readable))
    if closed:
        raise NotPermitted(
            f"permission denied to read {counted_names('column', closed)} of '{relation.text}'.",
            hint=f"The owner can say: GRANT SELECT ({', '.join(map(quoted, closed))}) ON {relation.name.quoted}"
            f" TO {current_user(db)};",
        )


def require_own(db: Database, relation: Relation, only: str) -> None:
    """An error unless the table belongs to this user: its triggers run with the rights of whoever writes into it.

    A superuser has the rights of every owner, so for a superuser it must be the superuser's own.
    """
    owner = db.one(
        sql(
            "SELECT pg_catalog.pg_get_userbyid(c.relowner)::text AS name,"
            " c.relowner = u.oid OR NOT u.rolsuper AND pg_catalog.pg_has_role(c.relowner, 'USAGE') AS is_mine"
            " FROM pg_catalog.pg_class c, pg_catalog.pg_roles u WHERE c.oid = $1::oid AND u.rolname = current_user"
        ),
        ("bigint",),
        relation.oid,
    )
    if owner is None or not owner["is_mine"]:
        name = "another user" if owner is None else owner["name"]
        raise NotPermitted(f"'{relation.text}' belongs to {name}.", hint=f"Only its owner can {only}.")


def belongs_to(db: Database, relation: Relation, named: Relation) -> bool:
    """Whether a table that a document names is read with no other code than that of what the call named.

    It lies beside the table ``named`` and has the same owner, or it is a table of the caller's own or of a superuser,
    and no view, which may read tables of others.  The owner of its schema counts as its own owner does, because a
    schema's owner can put another table in the place of one.
    """
    return bool(
        db.value(
            sql(
                "SELECT c.relnamespace = b.relnamespace AND c.relowner = b.relowner OR c.relkind IN ('r', 'p', 'm')"
                " AND NOT EXISTS ("
                "  SELECT FROM pg_catalog.pg_roles r WHERE r.oid IN (c.relowner, {owner}) AND NOT r.rolsuper"
                "  AND r.rolname <> current_user)"
                " FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace,"
                " pg_catalog.pg_class b WHERE c.oid = $1::oid AND b.oid = $2::oid",
                owner=types.owner_of_schema(sql("n")),
            ),
            ("bigint", "bigint"),
            relation.oid,
            named.oid,
        )
    )


def counted_names(what: str, names: Sequence[str]) -> str:
    return f"the {what}{'s' if len(names) > 1 else ''} {', '.join(names)}"


def new(db: Database, text: str | None, endings: tuple[str, ...] = (), *, argument: str = "output_table") -> Name:
    """The name, with its schema, of a new output table; an error if the table or a companion of it exists."""
    name = new_name(db, text, argument=argument)
    for ending in ("", *endings):
        require_free(db, name.suffixed(ending), (text or "").strip() if not ending else None)
    return name


def new_name(db: Database, text: str | None, *, argument: str = "output_table") -> Name:
    """The name, with its schema, of a table to be made; an error if it could not be made there."""
    if text is None or not text.strip() or text.strip().lower() == "null":
        empty = db.words.no_output_name.format(argument=argument)
        raise InvalidName(empty, hint=f"{argument} takes the name of a table to be made.")
    return qualified(db, Name.parse(text, db.words.output_name.format(argument=argument)))


def require_free(db: Database, name: Name, shown: str | None = None) -> None:
    if find(db, name) is not None:
        taken = db.words.taken.format(table=shown or name, bare=shown or name.table)
        raise DuplicateTable(taken, hint="Choose another name.")


def set_aside(db: Database, name: Name) -> Name:
    """Rename a table that is only read to make another one of its name; the caller drops it."""
    aside = Name(name.schema, f"__cerebro_{token()}__")
    db.execute(sql("ALTER TABLE {name} RENAME TO {aside}", name=name.sql, aside=identifier(aside.table)))
    return aside


def qualified(db: Database, name: Name) -> Name:
    """The name with the schema in which a new table would be created; an error if it may not be created there."""
    if name.schema == TEMPORARY:  # whoever may not make temporary tables learns it from the database
        return name
    schema = name.schema or db.value(sql("SELECT pg_catalog.current_schema()"))
    if schema is None:
        raise UndefinedObject(
            f"no schema of the search_path exists to make '{name}' in.",
            hint="Write schema.table or SET search_path.",
        )
    name = Name(schema, name.table)
    may = db.value(
        sql(
            "SELECT pg_catalog.has_schema_privilege(n.oid, 'CREATE')"
            " FROM pg_catalog.pg_namespace n WHERE n.nspname = $1"
        ),
        ("text",),
        schema,
    )
    if may is None:
        raise UndefinedObject(f"schema '{schema}' does not exist.", hint="CREATE SCHEMA makes it.")
    # Checked before a run begins, because its tables are created when it has ended.
    if schema == "pg_catalog":
        raise NotPermitted("no tables are made in pg_catalog.", hint="Choose a schema of your own.")
    if not may:
        raise NotPermitted(
            f"permission denied to make '{name}' in schema '{schema}'.",
            hint="Write schema.table with a schema of yours, or its owner can say:"
            f" GRANT CREATE ON SCHEMA {quoted(schema)} TO {current_user(db)};",
        )
    return name


def require_query(db: Database, query: str | None, argument: str = "query") -> str:
    """The query of an argument; the name of a table means all its rows.  An error if it is empty."""
    if query is None or not query.strip():
        raise InvalidArgument(f"{argument} must not be empty.", hint="For instance 'SELECT * FROM new_rows'.")
    if not is_name(query):
        return query
    table = existing(db, query, argument=argument)
    names = "*" if table.readable is None else ", ".join(map(quoted, table.readable))
    return f"SELECT {names} FROM {table.name.quoted}"


def of_query(db: Database, query: str) -> tuple[Relation, dict[str, Column]]:
    """The rows of a query and their columns; an error if this is no query that returns rows."""
    # It runs with the caller's rights only, as a subquery.
    relation = Relation(0, "", "", "", False, "the query", query=sql_of_user(query.rstrip(" \t\r\n;")))
    if SEVERAL in query.rstrip(" \t\r\n;"):
        _require_one(db, sql("SELECT * FROM {rows} AS q LIMIT 0", rows=relation.rows))
    return described(db, relation)


def described(db: Database, relation: Relation) -> tuple[Relation, dict[str, Column]]:
    """The rows of a query of ours, or of the caller's own that is one statement, and their columns."""
    without_rows = sql("SELECT * FROM {rows} AS q LIMIT 0", rows=relation.rows)
    relation = replace(relation, described=tuple(db.columns_of(without_rows)))
    known = _known_columns.get(relation.described)
    if known is not None:
        return relation, dict(known)
    names, types = [name for name, _ in relation.described], [type for _, type in relation.described]
    found = _columns(
        db, sql("SELECT 0 AS table, c.name, c.attnum, c.type::oid AS type, c.type::oid AS shown, true AS readable"
        " FROM ROWS FROM (unnest($1::text[]), unnest($2::bigint[])) WITH ORDINALITY AS c (name, type, attnum)"),
        ("text[]", "bigint[]"), names, types,
    ).get(0, {})  # fmt: skip
    if all(type < FIRST_OF_USERS for type in types):
        _known_columns.put(relation.described, found)
    return relation, dict(found)


def _require_one(db: Database, without_rows: Sql) -> None:
    """Refuse a text that closes the parenthesis around it and goes on with another statement."""
    try:
        with db.savepoint():
            db.refuse_several(without_rows)
    except db.plpy.SPIError as error:
        if not db.is_error(error, OPENS_NO_CURSOR):
            raise
        raise InvalidSyntax(
            "query has several statements.", hint="Write one SELECT; WITH takes other queries before it."
        ) from None


# The columns of queries, by names and types.  The types of the server itself do not change.
MOST_SIGNATURES = 50
_known_columns: KeptByRole[tuple[tuple[str, int], ...], dict[str, Column]] = KeptByRole(MOST_SIGNATURES)
FIRST_OF_USERS = 16384  # the lowest OID of an object that the server's own installation has not made


def columns(db: Database, relation: Relation) -> dict[str, Column]:
    return columns_of(db, relation)[0]


def columns_of(db: Database, *tables: Relation | None) -> list[dict[str, Column]]:
    """The columns of each table; none of one that is not there."""
    found = _columns(
        db, sql("SELECT a.attrelid::bigint AS table, a.attname::text AS name, a.attnum::bigint AS attnum,"
        " a.atttypid AS type, a.atttypid AS shown,"
        " pg_catalog.has_column_privilege(a.attrelid, a.attnum, 'SELECT') AS readable"
        " FROM pg_catalog.pg_attribute a WHERE a.attrelid = ANY ($1::oid[]) AND a.attnum > 0 AND NOT a.attisdropped"),
        ("bigint[]",), [one.oid for one in tables if one is not None],
    )  # fmt: skip
    more = [{} if one is None else {column.name: column for column in one.more} for one in tables]
    return [{} if one is None else {**found.get(one.oid, {}), **its} for one, its in zip(tables, more)]


def _columns(db: Database, listed: Sql, sent: tuple[str, ...], *values: Any) -> dict[int, dict[str, Column]]:
    """By table, the columns that a query lists: table, name, attnum, type, shown (a type, too) and readable."""
    found = db.rows(
        sql(
            """
        WITH RECURSIVE base AS (
            {listed}
            UNION ALL
            SELECT b.table, b.name, b.attnum, t.typbasetype, b.shown, b.readable
            FROM base b JOIN pg_catalog.pg_type t ON t.oid = b.type WHERE t.typtype = 'd'
        )
        SELECT b.table, b.name, pg_catalog.format_type(b.shown, NULL) AS shown, t.typcategory::text AS category,
               {written} AS type, b.readable,
               CASE WHEN t.typcategory = 'A' THEN {written_element} END AS element, {vector} AS vector
        FROM base b JOIN pg_catalog.pg_type t ON t.oid = b.type LEFT JOIN pg_catalog.pg_type e ON e.oid = t.typelem
        WHERE t.typtype <> 'd'
        ORDER BY b.attnum
        """,
            listed=listed,
            written=types.written(sql("t")),
            written_element=types.written(sql("e")),
            vector=pgvector.vector_type(sql("t"), types.written(sql("v"))),
        ),
        sent,
        *values,
    )
    of_tables: dict[int, dict[str, Column]] = {}
    for row in found:
        of_table = of_tables.setdefault(row.pop("table"), {})
        of_table[row["name"]] = Column(**{**row, **(AS_ARRAY if row["vector"] else {})})
    return of_tables


AS_ARRAY = {"type": "real[]", "category": "A", "element": "real"}


def keys(db: Database, relation: Relation) -> set[str]:
    """The names of the columns that are unique on their own."""
    found = db.rows(
        sql(
            "SELECT a.attname::pg_catalog.text AS name FROM pg_catalog.pg_index i"
            " JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]"
            " WHERE i.indrelid = $1::oid AND i.indisunique AND i.indnkeyatts = 1 AND i.indpred IS NULL"
        ),
        ("bigint",),
        relation.oid,
    )
    return {row["name"] for row in found}


def unique_key(db: Database, relation: Relation) -> list[str]:
    """The columns of the primary key, or of another unique index of columns that are never NULL; none if there is none.

    Rows without a key would have one hash: they would be packed beside each other, and all on one side of a split.
    """
    found = db.rows(
        sql(
            "SELECT a.attname::pg_catalog.text AS name FROM pg_catalog.pg_attribute a JOIN"
            " (SELECT i.indrelid, (i.indkey::pg_catalog.int2[])[0:i.indnkeyatts - 1] AS columns"
            "   FROM pg_catalog.pg_index i"
            "   WHERE i.indrelid = $1::oid AND i.indisunique AND i.indisvalid"
            "    AND i.indpred IS NULL AND i.indexprs IS NULL"
            "    AND NOT EXISTS (SELECT FROM pg_catalog.pg_attribute n"
            "     WHERE n.attrelid = i.indrelid AND NOT n.attnotnull"
            "      AND n.attnum = ANY ((i.indkey::pg_catalog.int2[])[0:i.indnkeyatts - 1]))"
            "   ORDER BY i.indisprimary DESC, i.indnkeyatts, i.indexrelid LIMIT 1) k"
            " ON a.attrelid = k.indrelid AND a.attnum = ANY (k.columns) ORDER BY a.attnum"
        ),
        ("bigint",),
        relation.oid,
    )
    return [row["name"] for row in found]


def readable_key(db: Database, relation: Relation) -> list[Column]:
    """The columns of a unique key that the user may read; none if there is no such key."""
    present = columns(db, relation)
    key = [present[name] for name in unique_key(db, relation)]
    return key if all(column.readable for column in key) else []


def is_keyed(db: Database, relation: Relation) -> bool:
    """Whether no two rows have the same ``readable_key``.  That of a table does not bind those that inherit from it."""
    alone = relation.kind == "p" or not relation.has_children
    return alone and bool(readable_key(db, relation))


def comments(db: Database, relation: Relation) -> dict[str, str]:
    """The comments of the columns that have one."""
    found = db.rows(
        sql(
            "SELECT a.attname::pg_catalog.text AS name,"
            " pg_catalog.col_description(a.attrelid, a.attnum::pg_catalog.int4) AS comment"
            " FROM pg_catalog.pg_attribute a WHERE a.attrelid = $1::oid AND NOT a.attisdropped"
        ),
        ("bigint",),
        relation.oid,
    )
    return {row["name"]: row["comment"] for row in found if row["comment"] is not None}


def references(db: Database, relation: Relation) -> set[str]:
    """The names of the columns that refer to another table on their own."""
    found = db.rows(
        sql(
            "SELECT a.attname::pg_catalog.text AS name FROM pg_catalog.pg_constraint c"
            " JOIN pg_catalog.pg_attribute a ON a.attrelid = c.conrelid AND a.attnum = c.conkey[1]"
            " WHERE c.conrelid = $1::oid AND c.contype = 'f' AND pg_catalog.cardinality(c.conkey) = 1"
        ),
        ("bigint",),
        relation.oid,
    )
    return {row["name"] for row in found}


def require_columns(
    db: Database, relation: Relation, names: list[str], please: str = "", present: dict[str, Column] | None = None
) -> list[Column]:
    """These columns, in this order; an error for one that is not there or may not be read."""
    found = named(db, relation, names, please, present)
    require_readable(db, relation, found)
    return found


def named(
    db: Database, relation: Relation, names: list[str], please: str = "", present: dict[str, Column] | None = None
) -> list[Column]:
    """These columns, in this order; an error for one that the table does not have.

    ``present``: the columns of the table, if the call has found them.
    """
    present = columns(db, relation) if present is None else present
    for name in names:
        if name not in present:
            missing = db.words.no_column.format(table=relation.text, column=name)
            raise UndefinedColumn(
                f"{missing} {please}".rstrip(),
                hint=has_columns(present),
            )
    return [present[name] for name in names]


def has_columns(present: dict[str, Column]) -> str:
    shown = ", ".join(list(present)[:20]) + (", …" if len(present) > 20 else "")
    return f"It has the columns: {shown}."


def current_user(db: Database) -> str:
    return quoted(current_role(db))


def current_role(db: Database) -> str:
    """The current user's name, unquoted.  No cast to text: the search_path may have another "text"."""
    return str(db.value(sql("SELECT current_user AS u")))
