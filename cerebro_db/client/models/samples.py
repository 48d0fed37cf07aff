"""Sample rows: what a model reads for them, and what it should answer. Exported files are compared on them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import psycopg2

from cerebro_db.core import pgvector
from cerebro_db.core.errors import CerebroError
from cerebro_db.core.names import Name
from cerebro_db.core.sql import quoted, shown, sql
from cerebro_db.scorer import RowPreparation

from ..database import Transaction
from ..errors import ClientError
from .stored_model import StoredModel

ROWS = 100
BATCH = 25  # divides ROWS: Keras compiles a model again for a last batch that is smaller
KEY = "cerebro_row"
FIRST_OF_USERS = 16384  # the lowest OID of a type that the server's own installation has not made
# The portable form of dates, intervals and amounts of money, for the scorer and for the server alike.
SETTINGS = (
    "SET LOCAL timezone = 'UTC'", "SET LOCAL intervalstyle = 'postgres'", "SET LOCAL lc_monetary = 'C'",
    "SET LOCAL extra_float_digits = 1", "SET LOCAL bytea_output = 'hex'",
)  # fmt: skip

Inputs = dict[str, Any]  # arrays by the names of the model's inputs
Compute = Callable[[Inputs], list[Any]]  # the outputs of a model


@dataclass(frozen=True)
class SampleRows:
    inputs: Inputs
    expected: dict[str, Any]  # by target: numbers, or a probability for each class
    told: str  # which rows they are, and what computed the expected values


def taken(
    transaction: Transaction, stored: StoredModel, document: Mapping[str, Any], compute: Compute, source: str | None
) -> SampleRows:
    """Rows of the table that the model was trained on, if it is the user's, predicted by the database.

    Without such rows, the inputs are drawn, and ``compute`` predicts them. ``source``: a query for the rows.
    """
    try:
        with transaction.attempt():
            return of_table(transaction, stored, document, source)
    except (ClientError, CerebroError, psycopg2.Error, ValueError) as error:
        if source is not None:
            if isinstance(error, ClientError):
                raise
            raise ClientError(f"The rows cannot be used: {error}") from error
        said = error.message if isinstance(error, ClientError) else str(error)
        why = said.strip().partition("\n")[0]
    inputs = drawn(document)
    told = f"{ROWS} drawn inputs compared with the model that the table has; rows of the database were not used: {why}"
    return SampleRows(inputs, answers(document, compute(inputs)), told)


def of_table(
    transaction: Transaction, stored: StoredModel, document: Mapping[str, Any], source: str | None
) -> SampleRows:
    if document["window"]:
        raise ClientError("the model reads windows of rows")
    if stored.group_by is not None:
        raise ClientError("cerebro.predict uses the models of groups, and the file has the model on all rows")
    for setting in SETTINGS:
        transaction.rows(setting)
    preparation = RowPreparation(document)
    given = source
    if source is None:
        table = _own_source(transaction, stored)
        source, given = f"TABLE {table.quoted}", str(table)
    if stored.group is not None:
        condition = stored.group.condition(types_of(transaction, source, stored.group.columns))
        source, given = f"SELECT s.* FROM ({source}) s WHERE {condition}", f"the group in {given}"
    if document.get("related"):
        source = _with_related(transaction, stored, document, source)
    source = _with_arrays(transaction, source, preparation.columns)
    # Texts by their output function: a cast of a user-defined type to json may be anybody's function. What the document
    # says of a column is its author's word, so the server is asked for the types.
    columns = ", ".join(
        f"CASE WHEN s.{quoted(one)} IS NOT NULL THEN pg_catalog.format('%s', s.{quoted(one)}) END AS {quoted(one)}"
        if type >= FIRST_OF_USERS or _is_text(document, one)
        else f"s.{quoted(one)}"
        for one, type in zip(preparation.columns, _type_oids(transaction, source, preparation.columns))
    )
    listed = f"SELECT pg_catalog.to_jsonb({KEY})::text FROM (SELECT {columns} FROM ({source}) s LIMIT {ROWS}) {KEY}"
    rows = [json.loads(line) for (line,) in transaction.rows(listed)]
    if not rows:
        raise ClientError(f"{given} has no rows")
    # The very rows, because a query may give others each time.
    names = ", ".join(f"s.{quoted(one)}" for one in preparation.columns)
    types = types_of(transaction, source, preparation.columns)
    if stored.group is not None:  # by these columns, cerebro.predict finds the model
        more = [one for one in stored.group.constants() if one[0] not in preparation.columns]
        names += "".join(f", {value} AS {quoted(column)}" for column, value in more)
    recordset = ", ".join(f"{quoted(one)} {type}" for one, type in zip(preparation.columns, types))
    query = (
        f"SELECT row_number() OVER () AS {KEY}, {names}"
        f" FROM pg_catalog.jsonb_to_recordset({_literal(transaction, json.dumps(rows))}::jsonb) AS s ({recordset})"
    )
    most = max(len(output["classes"] or [1]) for output in document["outputs"])
    numbered = stored.named.has_key and not stored.is_registered  # a version has no configuration to choose
    said = transaction.rows(
        "SELECT key_value::integer, target, value, class, probability FROM cerebro.predict(%s, %s, %s, %s, %s,"
        " calibrated => false)",
        (stored.table.quoted, query, KEY, stored.configuration if numbered else None, most),
    )
    expected = {}
    for output in document["outputs"]:
        known = output["classes"]
        found = np.full((len(rows), len(known or [1])), np.nan)
        for place, target, value, label, probability in said:
            if target == output["name"]:
                found[place - 1, 0 if known is None else known.index(label)] = value if known is None else probability
        expected[output["name"]] = found
    told = f"{len(rows)} rows of {given} compared with cerebro.predict"
    return SampleRows(preparation.inputs(rows), expected, told)


def _with_related(transaction: Transaction, stored: StoredModel, document: Mapping[str, Any], source: str) -> str:
    """The first rows with the columns of the related tables that the user has named in training, unless they have them.

    An error if the model is another's: then nobody has said which tables may be read.
    """
    transaction.rows(f"SELECT * FROM ({source}) s LIMIT 0")
    if {column.name for column in transaction.cursor.description}.issuperset(document["related"]):
        return source
    given = (stored.table.quoted, f"SELECT * FROM ({source}) s LIMIT {ROWS}")
    ((query,),) = transaction.rows("SELECT cerebro_internal._with_related(%s, %s, NULL)", given)
    return str(query)


# Whoever made the model wrote down where its rows come from. Reading runs code of whoever owns what is read, with the
# rights of the reader, and a look at what there is tells nothing: its owner can change it before it is read. So it must
# be a table of the reader or of a superuser, and no view, which may read tables of others. Its schema must be so, too:
# who owns a schema can rename it, and have another one of its name.
OWN = """
SELECT n.nspname::text, c.relname::text,
       c.relkind IN ('r', 'p', 'm') AND pg_catalog.bool_and(o.rolname = current_user OR o.rolsuper)
  FROM pg_catalog.pg_class c
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
  JOIN pg_catalog.pg_database d ON d.datname = pg_catalog.current_database()
  JOIN pg_catalog.pg_roles o ON o.oid IN (c.relowner,
       CASE pg_catalog.pg_get_userbyid(n.nspowner) WHEN 'pg_database_owner' THEN d.datdba ELSE n.nspowner END)
 WHERE c.oid = pg_catalog.to_regclass(%s)
 GROUP BY n.nspname, c.relname, c.relkind"""


def _own_source(transaction: Transaction, stored: StoredModel) -> Name:
    """The table that the model names, with its schema; an error unless reading it runs no code of others."""
    found = transaction.rows(f"SELECT source_table::text FROM {stored.table.suffixed('_summary').quoted}")
    table = Name.parse(found[0][0] if found else None, "source table")
    known = transaction.rows(OWN, (table.quoted,))
    if not known:
        raise ClientError(f"there is no table {table}")
    schema, name, is_own = known[0]
    if not is_own:
        raise ClientError(f"{table} is no table of yours in a schema of yours; --sample 'TABLE {table}' reads it")
    return Name(schema, name)


def types_of(transaction: Transaction, source: str, columns: Sequence[str]) -> list[str]:
    """The types of the columns of a query, without lengths: character would be character(1)."""
    found = transaction.rows(
        "SELECT CASE o WHEN 'bpchar'::regtype THEN 'bpchar' ELSE pg_catalog.format_type(o, NULL) END"
        " FROM pg_catalog.unnest(%s::oid[]) WITH ORDINALITY AS u (o, place) ORDER BY place",
        (_type_oids(transaction, source, columns),),
    )
    return [type for (type,) in found]


def _type_oids(transaction: Transaction, source: str, columns: Sequence[str]) -> list[int]:
    """Of a domain, the type below it."""
    listed = ", ".join(f"s.{quoted(one)}" for one in columns)
    transaction.rows(f"SELECT {listed} FROM ({source}) s LIMIT 0")
    return [column.type_code for column in transaction.cursor.description]


def _with_arrays(transaction: Transaction, source: str, columns: Sequence[str]) -> str:
    """A query for these columns, with columns of pgvector's types as arrays; the query itself if it has none."""
    written = sql("pg_catalog.format('%s.%I', v.typnamespace::pg_catalog.regnamespace, v.typname)")
    oids = ", ".join(map(str, _type_oids(transaction, source, columns)))
    found = transaction.rows(
        f"SELECT {shown(pgvector.vector_type(sql('t'), written))} FROM pg_catalog.unnest(ARRAY[{oids}]::oid[])"
        " WITH ORDINALITY AS u (o, place) LEFT JOIN pg_catalog.pg_type t ON t.oid = u.o ORDER BY place"
    )
    vectors = [vector for (vector,) in found]
    if not any(vectors):
        return source
    listed = ", ".join(
        f"s.{quoted(column)}" + (f"::{vector}::real[] AS {quoted(column)}" if vector else "")
        for column, vector in zip(columns, vectors)
    )
    return f"SELECT {listed} FROM ({source}) s"


def _is_text(document: Mapping[str, Any], column: str) -> bool:
    """Whether the column is of the family of texts, to which the enums of users belong."""
    return any(
        feature["family"] == "text"
        for variable in document["inputs"]
        for name, feature in zip(variable["columns"], variable["preparation"].get("features", ()))
        if name == column
    )


def _literal(transaction: Transaction, text: str) -> str:
    return transaction.cursor.mogrify("%s", (text,)).decode()


def drawn(document: Mapping[str, Any]) -> Inputs:
    """Inputs within the bounds of the preparation, the same ones at each call."""
    random = np.random.default_rng(1)
    found = {}
    for variable in document["inputs"]:
        preparation, shape = variable["preparation"], (ROWS, *variable["shape"])
        if preparation["kind"] == "categories":
            sizes = [1 + len(f["values"]) + bool(f["rare"]) + f["buckets"] for f in preparation["features"]]
            values: Any = random.integers(0, sizes, shape)
        elif preparation["kind"] == "words":
            values = random.integers(0, preparation["features"][0]["ids"], shape)
        elif preparation["kind"] == "pixels":
            values = random.integers(0, 256, shape) / preparation["by"]
        elif variable["dtype"] != "float32":
            values = random.integers(0, 2, shape)
        else:
            values = random.standard_normal(shape)
            if len(shape) == 3 and not set(variable["columns"]).isdisjoint(document.get("related", ())):
                values[..., 0] = random.integers(0, 2, shape[:2])  # says whether there is a related row
        found[variable["input"]] = values.reshape(ROWS, *variable["input_shape"]).astype(variable["input_dtype"])
    return found


def answers(document: Mapping[str, Any], outputs: list[Any]) -> dict[str, Any]:
    """By target: numbers, or a probability for each class."""
    found = {}
    for output in document["outputs"]:
        values = np.asarray(outputs[output["output"]], np.float64)
        values = values.reshape(len(values), -1)
        if output["classes"] is not None and len(output["classes"]) == 2 and values.shape[1] == 1:
            values = np.hstack([1 - values, values])  # one unit gives the probability of the second class
        found[output["name"]] = values
    return found


def difference(document: Mapping[str, Any], sample: SampleRows, compute: Compute) -> float:
    """The largest difference between the outputs of a model and the expected ones; NaN if one of them is NaN.

    Differences of numbers are divided by the largest expected number of the target: numbers have any scale, and those
    near zero have the rounding errors of the large ones.
    """
    found = answers(document, compute(sample.inputs))
    classes = {output["name"]: output["classes"] for output in document["outputs"]}
    parts = []
    for target, wanted in sample.expected.items():
        scale = 1.0 if classes[target] is not None else float(np.max(np.abs(wanted))) or 1.0
        parts.append(np.max(np.abs(found[target] - wanted)) / scale)
    return float(np.max(parts))
