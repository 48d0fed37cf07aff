"""The tables of ``madlib_keras_fit``: a model table with one row and no key, and a summary that has its info."""

from __future__ import annotations

from cerebro_db.core.architecture import keras_json
from cerebro_db.core.packing.packed_summary import VARNAMES
from cerebro_db.core.sql import identifier, joined, sql
from cerebro_plpy import platform
from cerebro_plpy.database import relations
from cerebro_plpy.database.access import Database
from cerebro_plpy.runs.record.log import RunLog
from cerebro_plpy.runs.tables.made import MadeTables
from cerebro_plpy.runs.tables.model_tables import labels

KEY = 1  # mst_key of the only configuration

# The columns of MADlib's summary, from those of a fit of several models (s) and its info (i); labels follow.
SUMMARY = sql("""
    s.source_table, s.model, s.dependent_varname, s.independent_varname, s.model_arch_table, i.model_id,
    i.compile_params, i.fit_params, s.num_iterations, s.validation_table, s.object_table, s.metrics_compute_frequency,
    s.name, s.description, 'madlib_keras'::text AS model_type, i.model_size, s.start_training_time, s.end_training_time,
    i.metrics_elapsed_time, s.madlib_version, $1::integer[] AS num_classes, s.dependent_vartype, s.normalizing_const,
    i.metrics_type, i.loss_type, i.training_metrics_final, i.training_loss_final, i.training_metrics, i.training_loss,
    i.validation_metrics_final, i.validation_loss_final, i.validation_metrics, i.validation_loss, s.metrics_iters
""")


def make_over(db: Database, made: MadeTables) -> None:
    """MADlib's tables of several models become those of one.

    They have the model that was asked for.  The run keeps those that people have added meanwhile.
    """
    name = made.name
    info, summary = name.suffixed("_info"), name.suffixed("_summary")
    for table in (name, name.suffixed("_weights")):
        if relations.find(db, table) is not None:
            db.execute(sql("DELETE FROM {table} WHERE mst_key <> {key}", table=table.sql, key=KEY))
    architecture, *_ = RunLog.of_caller(db, made.run["run"]).known.configurations()[KEY]
    # MADlib calls the units of each output num_classes.
    units = [width or output.shape[-1] for width, output in zip(keras_json.widths(architecture), made.layout.outputs)]
    endings = labels(made, VARNAMES.labels)
    listed = joined("", (sql(", s.{column}", column=identifier(column)) for column, _, _ in endings))
    several = relations.set_aside(db, summary)
    db.execute(
        sql(
            "CREATE TABLE {summary} AS SELECT {columns}{labels}, s.run, s.seed, s.layout, i.functions"
            " FROM {several} s, {info} i WHERE i.mst_key = {key}"
            " {distributed_by}",
            summary=summary.sql,
            columns=SUMMARY,
            labels=listed,
            several=several.sql,
            info=info.sql,
            key=KEY,
            distributed_by=platform.of(db).distributed_by("source_table"),
        ),
        ("integer[]",),
        units,
    )
    db.execute(sql("DROP TABLE {several}, {info}", several=several.sql, info=info.sql))
    db.execute(sql("ALTER TABLE {name} DROP COLUMN mst_key, DROP COLUMN __dist_key__", name=name.sql))
