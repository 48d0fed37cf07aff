"""``madlib_keras_evaluate``: a trained model's loss and metric on a packed table."""

from __future__ import annotations

import json
import secrets

from . import packed, tables
from .applying import options, send_weights, team_of
from .asked import refuse_transaction
from .db import Database, entry
from .dialect import Dialect
from .fit import opened_recorder
from .team import Seat, Steps
from .trained import read_model

EVALUATE = "madlib_keras_evaluate"


@entry
def keras_evaluate(
    db: Database, model_table: str, test_table: str, output_table: str, use_gpus: bool | None, mst_key: int | None
) -> None:
    model = read_model(db, model_table, mst_key, EVALUATE)
    output = tables.new(db, output_table, EVALUATE)
    test = packed.read(db, test_table, EVALUATE, argument="test_table")
    packed.require_same_shapes(model.layout, model.table.text, test, EVALUATE)
    parts = [number for number, part in enumerate(test.layout["partitions"]) if part["rows"]]
    keys = [test.layout["partitions"][number]["key"] for number in parts]
    chosen = options(db, use_gpus, EVALUATE, keys)
    refuse_transaction(db, EVALUATE)
    with team_of(db, keys, chosen) as team:
        owner = tables.current_role(db)
        with opened_recorder(db, owner) as recorder:
            packed.see_committed(recorder, [test], EVALUATE)
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
