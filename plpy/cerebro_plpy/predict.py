"""``madlib_keras_predict``: what a trained model says of the rows of a table or view."""

from __future__ import annotations

import contextlib
import secrets
from typing import Any

from cerebro_db.core import packing
from cerebro_db.core.errors import BadData, InvalidArgument, UndefinedColumn, WrongState
from cerebro_db.core.names import quote, split_list

from . import engine, logins, predictions, segment, tables, variables
from .applying import options, own_segment, send_weights, team_of
from .asked import refuse_transaction
from .chunks import Source
from .db import Database, entry
from .dialect import Dialect
from .predicting import Answer, Prediction
from .tables import Relation
from .team import Seat, Steps
from .trained import Model, read_model
from .variables import Variable

PREDICT = "madlib_keras_predict"
SMALL_TABLE = 4 << 20  # bytes; a table below it is predicted by one trainer, sparing the start of others


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
    kind, number = prediction_type(pred_type)
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
    trained = as_trained(model, [present[name] for name in names])
    rows = count(db, test, [id_name, *names])
    source = Source(test, quote(id_name), trained, rows, bytes_per_row(model))
    outputs = model.layout["outputs"]
    values = all(known["kind"] == "real" for known in outputs)
    labels = {known["name"]: class_values(model, known) for known in outputs}
    ranks = {"response": 1, "top": int(number)}.get(kind)  # None: all
    job = {
        "configuration": model.definition,
        "inputs": [described(variable) for variable in trained],
        "best": None if values else {"labels": [len(classes) for classes in labels.values()], "ranks": ranks},
    }
    if seen_only_here(db, test) or (not Dialect.of(db).greenplum and size_of(db, test) < SMALL_TABLE):
        staged = predict_here(db, model, job, source, use_gpus)
    else:
        staged = predict_on_segments(db, model, job, source, use_gpus)
    if values:
        predictions.write_values(db, staged, output, present[id_name], outputs)
    else:
        above = number if kind == "above" else None
        predictions.write_classes(db, staged, output, present[id_name], labels, ranks=kind != "response", above=above)
    db.execute(f"DROP TABLE {staged}")


# -- the arguments ---------------------------------------------------------------------------------------


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


def count(db: Database, test: Relation, names: list[str]) -> int:
    """How many rows there are, all of them without a NULL."""
    nulls = " OR ".join(f"{quote(name)} IS NULL" for name in names)
    (found,) = db.scan(f"SELECT count(*) AS rows, count(*) FILTER (WHERE {nulls}) AS nulls FROM {test.sql}")
    if found["nulls"]:
        raise BadData(
            f"{PREDICT}: {found['nulls']} rows of '{test.text}' have a NULL in {', '.join(names)}.",
            hint="Leave them out with a view, or fill them in.",
        )
    return int(found["rows"])


def as_trained(model: Model, columns: list[tables.Column]) -> list[Variable]:
    """The model's inputs as these columns give them."""
    trained = model.layout["inputs"]
    here = variables.inputs(columns, 1.0, PREDICT)
    if len(here) != len(trained):
        raise InvalidArgument(
            f"{PREDICT}: independent_varname makes {len(here)} inputs; the model has {len(trained)}"
            f" ({', '.join(variable['name'] for variable in trained)}).",
        )
    for variable, known in zip(here, trained):
        integers = known["dtype"] != "float32" and variable.dtype != "float32"
        # Integers are taken as wide as they come and scaled when read, as in training.
        variable.dtype, variable.factor = ("int32" if integers else "float32"), 1.0
        if not integers and known["dtype"] == "float32":
            variable.factor, variable.scale = packing.float32(1.0 / model.normalizing_const), 1.0
        else:
            variable.scale = known.get("scale", 1.0)
        variable.name, variable.shape = known["name"], tuple(known["shape"])
    return here


def described(variable: Variable) -> dict[str, Any]:
    """As the trainer's order has it."""
    return {
        "name": variable.name,
        "dtype": variable.dtype,
        "shape": list(variable.shape),
        "scale": variable.scale,
        "factor": variable.factor,
    }


def bytes_per_row(model: Model) -> int:
    """Of all inputs and outputs, with headers and ids, or so."""
    layout = model.layout
    return sum(64 + 8 * packing.elements(variable["shape"]) for variable in [*layout["inputs"], *layout["outputs"]])


def class_values(model: Model, known: dict[str, Any]) -> list[str]:
    """The class labels of an output, without the padding; numbers where the user encoded the classes."""
    labels = list(model.class_values.get(known["name"]) or [])
    while labels and labels[-1] is None:
        labels.pop()
    width = known["shape"][-1] if known["shape"] else 1
    return [str(label) for label in labels] + [str(place) for place in range(len(labels), width)]


# -- who does it -----------------------------------------------------------------------------------------


def seen_only_here(db: Database, test: Relation) -> bool:
    """Whether the table is temporary, or made or changed in this transaction, so that no other session sees what it has
    here.  Of what inherits from it nothing is known: once this transaction has written, it counts as changed."""
    return test.temporary or bool(
        db.value(
            "SELECT txid_current_if_assigned() IS NOT NULL AND (age(c.xmin) <= 0 OR c.relhassubclass"
            " OR pg_stat_get_xact_tuples_inserted(c.oid) + pg_stat_get_xact_tuples_updated(c.oid)"
            " + pg_stat_get_xact_tuples_deleted(c.oid) > 0) FROM pg_catalog.pg_class c WHERE c.oid = $1::oid",
            ("bigint",),
            test.oid,
        )
    )


def size_of(db: Database, test: Relation) -> int:
    """Bytes of a table; of a view, an estimate from what its rows are like is not to be had: it counts as small."""
    if test.kind == "v":
        return 0
    return int(db.value("SELECT pg_total_relation_size($1::oid)", ("bigint",), test.oid) or 0)


def predict_here(db: Database, model: Model, job: dict[str, Any], source: Source, use_gpus: bool | None) -> str:
    """A trainer of this session into a table of this session's."""
    keys, dialect, ticket, start = engine.distribution_keys(db, 1), Dialect.of(db), secrets.token_hex(8), 0
    staged = f"pg_temp.{quote('cerebro_predict_' + secrets.token_hex(6))}"
    with own_segment(db, options(db, use_gpus, PREDICT, keys)) as mine:
        for piece in model.weights(db):
            mine.state_in(ticket, start, piece)
            start += len(piece)
        for statement in predictions.make(staged, dialect):
            db.execute(statement)
        mine.prediction = Prediction(mine, {**job, "state": {"kind": "weights", "ticket": ticket}})
        (chunks,) = source.shares(db, keys)
        if dialect.greenplum:
            predict_fetched(db, mine.prediction, chunks, staged)
        else:
            db.execute(predictions.stage(staged, chunks))
        mine.end_prediction()
    return staged


def predict_fetched(db: Database, prediction: Prediction, chunks: str, staged: str) -> None:
    """For Greenplum, where functions run on the segments: what no worker session can see is predicted here."""
    cursor = db.cursor(f"SELECT __dist_key__, rows, ids::text AS ids, variables FROM ({chunks}) c")
    while found := cursor.fetch(1):
        chunk = found[0]
        db.execute(
            f"INSERT INTO {staged} VALUES ($1, $2, $3::text[], $4)",
            ("integer", "bigint", "text", "cerebro._prediction[]"),
            *(chunk[name] for name in ("__dist_key__", "rows", "ids")),
            prediction.predict(chunk["rows"], chunk["variables"]),
        )
    cursor.close()


def predict_on_segments(db: Database, model: Model, job: dict[str, Any], source: Source, use_gpus: bool | None) -> str:
    """Each worker session predicts its share of the rows into a table that only this user can see."""
    parts = engine.segments_wanted(db, None, PREDICT) or engine.default_segments(db)
    staged, dealt = predictions.staging_table(), predictions.staging_table()
    keys = engine.distribution_keys(db, parts)
    greenplum = Dialect.of(db).greenplum
    shares = [source.share_of_dealt(dealt, key) for key in keys] if greenplum else source.shares(db, keys)
    refuse_transaction(db, PREDICT)
    with team_of(db, keys, options(db, use_gpus, PREDICT, keys)) as team:
        ticket = secrets.token_hex(8)
        first = team.seats[0].session
        predictions.drop_forgotten(first)
        for statement in predictions.make(staged, team.dialect):
            first.run(statement)

        def on(seat: Seat) -> Steps:
            yield from send_weights(db, team, seat, model, ticket)
            yield from team.order(seat, {**job, "work": "predict", "state": {"kind": "weights", "ticket": ticket}})
            yield predictions.stage(staged, shares[seat.segment]), None
            if not greenplum:
                yield "COMMIT", None
            yield from team.order(seat, {"work": "predicted"})

        try:
            if greenplum:
                first.run(source.dealt(dealt, keys))
            else:
                see_the_same(team.seats)
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


def see_the_same(seats: list[Seat]) -> None:
    """Begins a transaction in each session, all of one snapshot: a row that somebody changes meanwhile moves, from the
    share of one session into another's."""
    begin = "BEGIN ISOLATION LEVEL REPEATABLE READ"
    first, *others = (seat.session for seat in seats)
    first.run(begin)
    ((snapshot,),) = first.run("SELECT pg_catalog.pg_export_snapshot()")
    for session in others:
        session.run(begin)
        session.run(f"SET TRANSACTION SNAPSHOT '{snapshot}'")


# -- the UDF that rows go through ------------------------------------------------------------------------


@entry
def predict_chunk(db: Database, rows: int, payloads: list[bytes | None]) -> list[Answer]:
    prediction = segment.mine(db).prediction
    if prediction is None:
        raise WrongState("no prediction is under way in this session")
    return prediction.predict(rows, payloads)
