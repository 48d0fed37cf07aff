"""``madlib_keras_evaluate`` and ``madlib_keras_predict``: a trained model on other rows."""

from __future__ import annotations

import contextlib
import json
import math
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import psycopg2

from cerebro_db.core import models, params
from cerebro_db.core.errors import (
    BadData,
    InvalidArgument,
    UndefinedColumn,
    UndefinedObject,
    WrongState,
)
from cerebro_db.core.names import Name, quote, split_list

from . import engine, fit, functions, limits, logins, predicting, segment, tables, variables
from .db import Database, entry
from .dialect import Dialect
from .machine import cores
from .results import weight_pieces
from .runs import STATES
from .sessions import Session
from .tables import Relation
from .team import Refused, Seat, Steps, Team, failure_of

EVALUATE, PREDICT = "madlib_keras_evaluate", "madlib_keras_predict"
FORGOTTEN_AFTER = 86400  # seconds; no statement predicts for so long
FETCHED = 1000  # rows at a time
SMALL_TABLE = 4 << 20  # bytes; a table below it is predicted by one trainer, sparing the start of others


@dataclass
class Model:
    """One trained model of a fit's output tables."""

    table: Relation
    key: int
    definition: dict[str, Any]
    layout: dict[str, Any]
    class_values: dict[str, list[str | None]]
    normalizing_const: float
    weights_bytes: int
    chunked: Relation | None  # where the weights are if they are too large for one value

    def weights(self, db: Database) -> Iterator[bytes]:
        """Piece by piece: a piece is all of it that Python ever holds."""
        return weight_pieces(db, self.table.sql, self.chunked.sql if self.chunked is not None else None, self.key)


def read_model(db: Database, text: str, key: int | None, module: str) -> Model:
    table = tables.existing(db, text, module, argument="model_table")
    tables.require_columns(db, table, ["model_weights", "model_arch"], module)
    info = tables.find(db, table.name.suffixed("_info"))
    summary = tables.find(db, table.name.suffixed("_summary"))
    if info is None or summary is None or "layout" not in tables.columns(db, summary):
        raise UndefinedObject(
            f"{module}: Missing summary and/or info tables for {table.text}",
            hint="madlib_fit_multiple_model() and cerebro.materialize() make them; keep the three together.",
        )
    if key is None:
        raise InvalidArgument(
            f"{module}: Multi-model needs to pass mst_key", hint=f"SELECT mst_key, * FROM {info.name} lists the models."
        )
    row = db.one(
        "SELECT i.compile_params, i.fit_params, concat_ws(' ', i.loss_type, i.metrics_type::text) AS pinned,"
        " m.model_arch::text AS arch, octet_length(m.model_weights) AS size"
        f" FROM {info.sql} i JOIN {table.sql} m USING (mst_key) WHERE mst_key = $1",
        ("integer",),
        key,
    )
    if row is None:
        if db.value(f"SELECT 1 FROM {info.sql} WHERE mst_key = $1", ("integer",), key):
            raise WrongState(
                f"{module}: mst_key {key} left no model",
                hint=f"SELECT status, reason FROM {info.name} WHERE mst_key = {key}; says why.",
            )
        raise UndefinedObject(
            f"{module}: mst_key {key} does not exist in the info table", hint=f"SELECT mst_key FROM {info.name};"
        )
    architecture = models.architecture(row["arch"])
    known = functions.known(db, pinned=row["pinned"])  # the versions that it was trained with
    compiled = models.for_outputs(params.compile_params(row["compile_params"], known), architecture)
    definition = {"architecture": architecture, "compile": compiled, "fit": params.fit_params(row["fit_params"])}
    facts = db.one(f"SELECT * FROM {summary.sql}") or {}
    layout = json.loads(facts["layout"])
    values = {
        output["name"]: facts.get(f"{output['name']}_class_values") or []
        for output in layout["outputs"]
        if output["kind"] == "class"
    }
    size, chunked = row["size"], None
    if size is None:
        chunked = tables.find(db, table.name.suffixed("_weights"))
        if chunked is None:
            raise WrongState(f"{module}: model {key} of {table.text} has no weights")
        size = db.value(f"SELECT sum(octet_length(payload)) FROM {chunked.sql} WHERE mst_key = $1", ("integer",), key)
    return Model(table, key, definition, layout, values, facts.get("normalizing_const") or 1.0, size, chunked)


# -- who does it -----------------------------------------------------------------------------------------


def options(db: Database, use_gpus: bool | None, module: str, keys: Sequence[int]) -> dict[str, Any]:
    return {
        "engine": "tensorflow",
        "deterministic": False,
        "threads": max(1, cores() // len(keys)),
        "gpus": fit.require_gpus(db, use_gpus, keys, module),
    }


@contextlib.contextmanager
def team_of(db: Database, keys: Sequence[int], chosen: dict[str, Any]) -> Iterator[Team]:
    team = Team(db, tables.current_role(db), keys, chosen)
    try:
        yield team
        team.release()
    except Refused as refused:
        raise refused.error from refused
    except psycopg2.Error as error:
        raise failure_of("a worker session", error) from error
    finally:
        team.close()


def own_segment(db: Database, chosen: dict[str, Any]) -> segment.Segment:
    """A trainer of this very session: for little data, and for what only this transaction can see."""
    mine = segment.mine(db)
    mine.open(
        {
            "engine": chosen["engine"],
            "threads": chosen["threads"],
            "deterministic": chosen["deterministic"],
            "gpu": chosen["gpus"][0] if chosen["gpus"] else None,
        }
    )
    return mine


def send_weights(db: Database, team: Team, seat: Seat, model: Model, ticket: str) -> Steps:
    where, start = team.dialect.on_segment(seat.dist_key), 0
    for piece in model.weights(db):
        yield f"SELECT cerebro._state_in(%s, %s, %s) {where}", (ticket, start, psycopg2.Binary(piece))
        start += len(piece)


# -- evaluate ----------------------------------------------------------------------------------------------


@entry
def keras_evaluate(
    db: Database, model_table: str, test_table: str, output_table: str, use_gpus: bool | None, mst_key: int | None
) -> None:
    model = read_model(db, model_table, mst_key, EVALUATE)
    output = tables.new(db, output_table, EVALUATE)
    test = fit.packed(db, test_table, EVALUATE, argument="test_table")
    fit.require_same_shapes(model.layout, model.table.text, test, EVALUATE)
    parts = [number for number, part in enumerate(test.layout["partitions"]) if part["rows"]]
    keys = [test.layout["partitions"][number]["key"] for number in parts]
    chosen = options(db, use_gpus, EVALUATE, keys)
    fit.refuse_transaction(db, EVALUATE)
    with team_of(db, keys, chosen) as team:
        owner = tables.current_role(db)
        with fit.opened_recorder(db, owner) as recorder:
            fit.see_committed(recorder, [test], EVALUATE)
        data, ticket = test.dataset, secrets.token_hex(8)

        def on(seat: Seat, number: int) -> Steps:
            handle, _ = yield from team.read(seat, data, number)
            yield from send_weights(db, team, seat, model, ticket)
            order = {"work": "evaluate", "configuration": model.definition, "handle": handle}
            return (yield from team.order(seat, {**order, "states": [{"kind": "weights", "ticket": ticket}]}))

        found = team.run_all({seat.segment: on(seat, parts[seat.segment]) for seat in team.seats}).values()
    rows = sum(part["rows"] for part in found)
    loss = sum(part["loss"] * part["rows"] for part in found) / rows
    names = list(next(iter(found))["metrics"])
    metric = sum(part["metrics"][names[0]] * part["rows"] for part in found) / rows if names else None
    metrics_type = model.definition["compile"].get("metrics") or None
    compiled_loss = model.definition["compile"]["loss"]
    db.execute(
        f"CREATE TABLE {output.sql} AS SELECT $1::double precision AS loss, $2::double precision AS metric,"
        f" $3::text[] AS metrics_type, $4::text AS loss_type {Dialect.of(db).distributed_by('loss')}",
        ("double precision", "double precision", "text[]", "text"),
        loss,
        metric,
        [m if isinstance(m, str) else json.dumps(m) for m in metrics_type] if metrics_type else None,
        compiled_loss if isinstance(compiled_loss, str) else json.dumps(compiled_loss),
    )


# -- predict -----------------------------------------------------------------------------------------------


@entry
def keras_predict(
    db: Database,
    model_table: str,
    test_table: str,
    id_col: str,
    independent_varname: str,
    output_table: str,
    pred_type: str | int | float | None,
    use_gpus: bool | None,
    mst_key: int | None,
) -> None:
    wanted = prediction_type(pred_type)
    model = read_model(db, model_table, mst_key, PREDICT)
    output = tables.new(db, output_table, PREDICT)
    test = tables.filled(db, test_table, PREDICT, argument="test_table")
    present = tables.columns(db, test)
    (id_name,) = one_column(id_col, present, test, "id column")
    names = split_list(independent_varname, f"{PREDICT} error: independent_varname")
    for name in names:
        if name not in present:
            raise UndefinedColumn(
                f"{PREDICT}: invalid independent_varname ('{name}') for test table ({test.text}).",
                hint=tables.has_columns(present),
            )
    columns = [present[name] for name in names]
    inputs, expressions = as_trained(model, columns, test)
    nulls = " OR ".join(f"{quote(name)} IS NULL" for name in [id_name, *names])
    (found,) = db.scan(f"SELECT count(*) AS rows FROM {test.sql} WHERE {nulls}")
    if missing := found["rows"]:
        raise BadData(
            f"{PREDICT}: {missing} rows of '{test.text}' have a NULL in {', '.join([id_name, *names])}.",
            hint="Leave them out with a view, or fill them in.",
        )
    job = {"configuration": model.definition, "inputs": inputs}
    statement = Statement(test, quote(id_name), expressions)
    if seen_only_here(db, test) or (not Dialect.of(db).greenplum and size_of(db, test) < SMALL_TABLE):
        alone = options(db, use_gpus, PREDICT, engine.distribution_keys(db, 1))
        staged = predict_here(db, model, job, statement, alone)
    else:
        staged = predict_on_segments(db, model, job, statement, use_gpus)
    write_predictions(db, model, staged, output, present[id_name], id_name, wanted)
    db.execute(f"DROP TABLE {staged}")


@dataclass(frozen=True)
class Statement:
    """How the rows of a table are handed to ``_row_in``."""

    test: Relation
    id_column: str
    expressions: list[str]

    def sql(self, slice_of: str = "true") -> str:
        values = ", ".join(self.expressions)
        return (
            f"SELECT count(cerebro._row_in({self.id_column}::text, ARRAY[{values}]::bytea[]))"
            f" FROM {self.test.sql} WHERE {slice_of}"
        )

    def dealt(self, table: str, keys: Sequence[int]) -> str:
        """For Greenplum, where a session is handed only what its segment stores: a table of the rows, so dealt."""
        listed = ", ".join(str(int(key)) for key in keys)
        turn = f"1 + (abs(hashtext({self.id_column}::text)::bigint) % {len(keys)})::integer"
        return (
            f"CREATE TABLE {table} AS SELECT (ARRAY[{listed}])[{turn}] AS __dist_key__, {self.id_column}::text AS id,"
            f" ARRAY[{', '.join(self.expressions)}]::bytea[] AS variables FROM {self.test.sql}"
            " DISTRIBUTED BY (__dist_key__)"
        )

    def slices(self, db: Database, parts: int) -> list[str]:
        """For PostgreSQL: conditions that deal the rows over so many sessions."""
        if self.test.kind in ("r", "m"):
            blocks = db.value(
                "SELECT pg_relation_size($1::oid) / current_setting('block_size')::integer", ("bigint",), self.test.oid
            )  # noqa: E501
            cuts = [blocks * part // parts for part in range(parts)]
            return [
                f"ctid >= '({cut},0)'::tid" + (f" AND ctid < '({cuts[part + 1]},0)'::tid" if part + 1 < parts else "")
                for part, cut in enumerate(cuts)
            ]
        return [f"abs(hashtext({self.id_column}::text)::bigint) % {parts} = {part}" for part in range(parts)]


def prediction_type(value: str | int | float | None) -> tuple[str, float]:
    """('prob' | 'response' | 'top' | 'above', number)"""
    if value is None:
        return "prob", 0
    if isinstance(value, str) and value.strip().lower() in ("prob", "response"):
        return value.strip().lower(), 0
    if isinstance(value, int) and value > 0:
        return "top", value
    if isinstance(value, float) and 0.0 <= value < 1.0:
        return "above", value
    raise InvalidArgument(
        f"{PREDICT}: Invalid value for pred_type param ({value}). Must be integer>0, double precision in the range"
        " [0.0,1.0), 'response' or 'prob'.",
    )


def one_column(text: str, present: dict[str, tables.Column], test: Relation, what: str) -> list[str]:
    names = split_list(text, f"{PREDICT} error: {what}")
    if len(names) != 1 or names[0] not in present:
        raise UndefinedColumn(
            f"{PREDICT}: invalid {what} ('{text}') for test table ({test.text}).", hint=tables.has_columns(present)
        )
    return names


def as_trained(model: Model, columns: list[tables.Column], test: Relation) -> tuple[list[dict[str, Any]], list[str]]:
    """The model's inputs as these columns give them, and the expressions that do."""
    trained = model.layout["inputs"]
    here = variables.inputs(columns, 1.0, PREDICT)
    if len(here) != len(trained):
        raise InvalidArgument(
            f"{PREDICT}: independent_varname makes {len(here)} inputs; the model has {len(trained)}"
            f" ({', '.join(variable['name'] for variable in trained)}).",
        )
    inputs, expressions = [], []
    for variable, known in zip(here, trained):
        integers = known["dtype"] != "float32" and variable.dtype != "float32"
        # Integers are taken as wide as they come and scaled when read, as in training.
        variable.dtype = "int32" if integers else "float32"
        if not integers and known["dtype"] == "float32":
            constant = model.normalizing_const
            factor, scale = 1.0 / constant, 1.0
        else:
            factor, scale = 1.0, known.get("scale", 1.0)
        inputs.append(
            {"name": known["name"], "dtype": variable.dtype, "shape": known["shape"], "scale": scale, "factor": factor}
        )
        expressions.append(variable.expression(lambda column: quote(column.name)))
    return inputs, expressions


def seen_only_here(db: Database, test: Relation) -> bool:
    """Whether the table is temporary or made in this transaction, so that no other session can see it."""
    return test.temporary or bool(
        db.value(
            "SELECT xmin::text::bigint = (txid_current_if_assigned() % 4294967296) FROM pg_catalog.pg_class"
            " WHERE oid = $1::oid",
            ("bigint",),
            test.oid,
        )
    )


def size_of(db: Database, test: Relation) -> int:
    """Bytes of a table; of a view, an estimate from what its rows are like is not to be had: it counts as small."""
    if test.kind == "v":
        return 0
    return int(db.value("SELECT pg_total_relation_size($1::oid)", ("bigint",), test.oid) or 0)


STAGED = "(__dist_key__ integer, id text, output integer, probabilities real[])"
FETCH = "SELECT s.__dist_key__, (s.made).id, (s.made).output, (s.made).probabilities FROM ({}) s"


def predict_here(db: Database, model: Model, job: dict[str, Any], statement: Statement, chosen: dict[str, Any]) -> str:
    mine = own_segment(db, chosen)
    ticket, start = secrets.token_hex(8), 0
    for piece in model.weights(db):
        mine.state_in(ticket, start, piece)
        start += len(piece)
    prediction = predicting.Prediction(mine, {**job, "state": {"kind": "weights", "ticket": ticket}})
    dialect = Dialect.of(db)
    staged = f"pg_temp.{quote('cerebro_predict_' + secrets.token_hex(6))}"
    db.execute(f"CREATE TEMP TABLE {staged.partition('.')[2]} {STAGED} {dialect.distributed_by('__dist_key__')}")
    if dialect.greenplum:
        predict_fetched(db, prediction, statement, staged)
    else:
        mine.prediction = prediction
        db.execute(statement.sql())
        db.execute(f"INSERT INTO {staged} {FETCH.format(dialect.made_on_segment('cerebro._predictions_out()', 0))}")
    seconds, _ = limits.of(db)["waiting_seconds"]
    if seconds and not chosen["gpus"]:
        mine.rest(seconds)
    else:
        segment.close_mine()
    return staged


def predict_fetched(db: Database, prediction: predicting.Prediction, statement: Statement, staged: str) -> None:
    """For Greenplum, where functions run on the segments: what no worker session can see is predicted here."""
    values = [f"v{place}" for place in range(len(statement.expressions))]
    columns = [f"{expression} AS {name}" for expression, name in zip(statement.expressions, values)]
    cursor = db.cursor(
        f"SELECT {', '.join([f'{statement.id_column}::text AS id', *columns])} FROM {statement.test.sql}"
    )
    while rows := cursor.fetch(FETCHED):
        for row in rows:
            prediction.row_in(row["id"], [row[name] for name in values])
    cursor.close()
    prediction.predict()
    insert = (
        f"INSERT INTO {staged} SELECT 0, id, output, probabilities"
        " FROM jsonb_to_recordset($1::jsonb) AS made (id text, output integer, probabilities real[])"
    )
    answers = (
        {"id": row_id, "output": output, "probabilities": [p if math.isfinite(p) else str(p) for p in probabilities]}
        for row_id, output, probabilities in prediction.answers_out()
    )
    while made := list(islice(answers, FETCHED)):
        db.execute(insert, ("text",), json.dumps(made))


def predict_on_segments(
    db: Database, model: Model, job: dict[str, Any], statement: Statement, use_gpus: bool | None
) -> str:
    """Each worker session predicts its share of the rows into a table that only this user can see."""
    parts = engine.segments_wanted(db, None, PREDICT) or engine.default_segments(db)
    staged, dealt = staging_table(), staging_table()
    keys = engine.distribution_keys(db, parts)
    greenplum = Dialect.of(db).greenplum
    slices = [] if greenplum else statement.slices(db, parts)
    fit.refuse_transaction(db, PREDICT)
    with team_of(db, keys, options(db, use_gpus, PREDICT, keys)) as team:
        ticket = secrets.token_hex(8)
        first = team.seats[0].session
        drop_forgotten(first)
        first.run(f"CREATE TABLE {staged} {STAGED} {team.dialect.distributed_by('__dist_key__')}")

        def on(seat: Seat) -> Steps:
            yield from send_weights(db, team, seat, model, ticket)
            begin = {**job, "work": "predict", "state": {"kind": "weights", "ticket": ticket}}
            yield from team.order(seat, begin)
            if greenplum:
                # Grouped by the key, the rows are counted where they lie.
                yield (
                    f"SELECT count(cerebro._row_in(id, variables)) FROM {dealt} WHERE __dist_key__ = {seat.dist_key}"
                    " GROUP BY __dist_key__",
                    None,
                )
            else:
                yield statement.sql(slices[seat.segment]), None
            made = team.dialect.made_on_segment("cerebro._predictions_out()", seat.dist_key)
            yield f"INSERT INTO {staged} {FETCH.format(made)}", None

        try:
            if greenplum:
                first.run(statement.dealt(dealt, keys))
            team.run_all({seat.segment: on(seat) for seat in team.seats})
            if greenplum:
                first.run(f"DROP TABLE {dealt}")
        except BaseException:
            with contextlib.suppress(Exception):
                cleaner = logins.connect_as(db, tables.current_role(db), "cerebro_db cleaner", lambda: None)
                cleaner.run(f"DROP TABLE IF EXISTS {staged}, {dealt}")
                cleaner.close()
            raise
    return staged


def staging_table() -> str:
    return f"{STATES}.{quote(f'predict_{int(time.time()):08x}_{secrets.token_hex(6)}')}"


def drop_forgotten(session: Session) -> None:
    """Predictions of this user's that were staged, and never fetched because the caller's transaction failed."""
    for (name,) in session.run(
        "SELECT c.relname::text FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
        f" WHERE n.nspname = '{STATES}' AND c.relkind = 'r' AND c.relowner = current_user::regrole"
        " AND c.relname ~ '^predict_[0-9a-f]{8}_'"
    ):
        if time.time() - int(name[8:16], 16) > FORGOTTEN_AFTER:
            session.run(f"DROP TABLE IF EXISTS {STATES}.{quote(name)}")


def write_predictions(
    db: Database,
    model: Model,
    staged: str,
    output: Name,
    id_column: tables.Column,
    id_name: str,
    wanted: tuple[str, float],
) -> None:
    outputs = model.layout["outputs"]
    if all(known["kind"] == "real" for known in outputs):
        write_values(db, outputs, staged, output, id_column, id_name)
        return
    kind, number = wanted
    picked = {
        "prob": "true",
        "response": "rank = 1",
        "top": f"rank <= {int(number)}",
        "above": f"prob > {float(number)!r}",
    }[kind]
    # Their names, and at last what their classes are called.
    labels = [known["name"] for known in outputs] + [json.dumps([_values(model, known) for known in outputs])]
    values = f"($1::text[])[{len(labels)}]::jsonb"
    rank = "" if kind == "response" else ", rank"
    db.patiently(
        f"""
        CREATE TABLE {output.sql} AS
        SELECT {quote(id_name)}, class_name, class_value, prob {rank}
          FROM (SELECT s.id::{id_column.type} AS {quote(id_name)},
                       ($1::text[])[s.output + 1] AS class_name,
                       {values} -> s.output ->> (p.place - 1)::integer AS class_value,
                       p.prob::double precision AS prob,
                       row_number() OVER (PARTITION BY s.id, s.output ORDER BY p.prob DESC, p.place)::integer AS rank
                  FROM (SELECT id, output,
                               -- one unit for two classes gives the probability of the second
                               CASE WHEN cardinality(probabilities) = 1 AND jsonb_array_length({values} -> output) = 2
                                    THEN ARRAY[1 - probabilities[1], probabilities[1]] ELSE probabilities END AS probs
                          FROM {staged}) s
                 CROSS JOIN LATERAL unnest(s.probs) WITH ORDINALITY AS p (prob, place)) ranked
         WHERE {picked}
        {Dialect.of(db).distributed_by(quote(id_name))}
        """,
        labels,
    )


def write_values(
    db: Database, outputs: list[dict[str, Any]], staged: str, output: Name, id_column: tables.Column, id_name: str
) -> None:
    """Regression: the numbers themselves, one column per dependent variable."""
    chosen, joined = [], ""
    for place, known in enumerate(outputs):
        element, kind = ("[1]", "double precision") if known["shape"] == [1] else ("", "double precision[]")
        chosen.append(f"o{place}.probabilities{element}::{kind} AS {quote('estimated_' + known['name'])}")
        table = f"(SELECT id, probabilities FROM {staged} WHERE output = {place}) AS o{place}"
        joined += f" JOIN {table} USING (id)" if joined else table
    db.patiently(
        f"CREATE TABLE {output.sql} AS"
        f" SELECT id::{id_column.type} AS {quote(id_name)}, {', '.join(chosen)} FROM {joined}"
        f" {Dialect.of(db).distributed_by(quote(id_name))}"
    )


def _values(model: Model, known: dict[str, Any]) -> list[str]:
    """The class labels of an output, without the padding; numbers where the user encoded the classes."""
    labels = list(model.class_values.get(known["name"]) or [])
    while labels and labels[-1] is None:
        labels.pop()
    width = known["shape"][-1] if known["shape"] else 1
    return [str(label) for label in labels] + [str(place) for place in range(len(labels), width)]


# -- the UDFs that rows go through ---------------------------------------------------------------------------


@entry
def row_in(db: Database, row_id: str, values: list[bytes]) -> int:
    prediction = segment.mine(db).prediction
    if prediction is None:
        raise WrongState("no prediction is under way in this session")
    return prediction.row_in(row_id, values)


@entry
def predictions_out(db: Database) -> Iterator[tuple[str, int, list[float]]]:
    mine = segment.mine(db)
    prediction, mine.prediction = mine.prediction, None
    if prediction is None:
        raise WrongState("no prediction is under way in this session")
    prediction.predict()  # here, where an error is still one that users can read
    return prediction.answers_out()
