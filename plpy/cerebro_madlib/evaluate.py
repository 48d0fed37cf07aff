"""``madlib_keras_evaluate``: a trained model's loss and metric on a packed table."""

from __future__ import annotations

from cerebro_db.core.models.metrics import first
from cerebro_db.core.sql import sql
from cerebro_plpy import platform
from cerebro_plpy.database.access import Database
from cerebro_plpy.judging.evaluating_team import evaluating
from cerebro_plpy.models import trained
from cerebro_plpy.packing import packed
from cerebro_plpy.predicting import teams

from .entry import entry, new_table
from .tables.trained_models import read_model


@entry(called="madlib_keras_evaluate error")
def madlib_keras_evaluate(
    db: Database, model_table: str, test_table: str, output_table: str, use_gpus: bool | None, mst_key: int | None
) -> None:
    model = read_model(db, trained.tables_of_name(db, model_table), mst_key)
    output = new_table(db, output_table)
    test = packed.read(db, test_table, argument="test_table")
    packed.require_same_shapes(model.layout, model.table.text, test)
    with evaluating(db, test, use_gpus, model.memory_mb) as (team, parts):
        loss, metrics = teams.again_if_lost(team, lambda: teams.evaluate(db, team, model, test.dataset, parts))
    _, metric = first(metrics)
    db.execute(
        sql(
            "CREATE TABLE {output} AS SELECT $1::double precision AS loss, $2::double precision AS metric,"
            " $3::text[] AS metrics_type, $4::text AS loss_type {distributed_by}",
            output=output.sql,
            distributed_by=platform.of(db).distributed_by("loss"),
        ),
        ("double precision", "double precision", "text[]", "text"),
        loss,
        metric,
        model.metric_names,
        model.loss_name,
    )
