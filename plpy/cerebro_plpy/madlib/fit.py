"""``madlib_keras_fit``: one model, whose table has one row and no ``mst_key``.

It is a run with one configuration. Its tables are made from those of the run.
"""

from __future__ import annotations

from typing import Any

from cerebro_db.core.architecture import reading
from cerebro_db.core.errors import WrongState
from cerebro_db.core.names import Name
from cerebro_db.core.parameters import params
from cerebro_db.core.sql import identifier, joined, sql

from .. import platform
from ..data import model_columns, visibility, weights
from ..data.model_columns import MADLIB_SINGLE
from ..database import relations
from ..database.access import Database
from ..database.entry import entry
from ..definitions import custom_functions
from ..runs import fit
from ..runs.begin.new_run import put_on_record
from ..runs.drive.execution import carry_out
from ..runs.record.run import AVERAGING, EVALUATE_TRAINING, require_countable
from ..runs.request.options import choose_options
from ..runs.request.place import IN_SESSION
from ..runs.request.request import Request, read_architecture, read_rows, require_epochs, require_room, say_tensorboard
from ..sessions import recorder
from .fit_multiple import table_or_none

KEY = 1  # mst_key of the only configuration
ENDINGS = ("_info", "_summary", "_weights")

# The columns of MADlib's summary, from the summary (s) and the info (i) of the run's tables; labels follow.
SUMMARY = sql("""
    s.source_table, s.model, s.dependent_varname, s.independent_varname, s.model_arch_table, i.model_id,
    i.compile_params, i.fit_params, s.num_iterations, s.validation_table, s.object_table, s.metrics_compute_frequency,
    s.name, s.description, 'madlib_keras'::text AS model_type, i.model_size, s.start_training_time, s.end_training_time,
    i.metrics_elapsed_time, s.madlib_version, $1::integer[] AS num_classes, s.dependent_vartype, s.normalizing_const,
    i.metrics_type, i.loss_type, i.training_metrics_final, i.training_loss_final, i.training_metrics, i.training_loss,
    i.validation_metrics_final, i.validation_loss_final, i.validation_metrics, i.validation_loss, s.metrics_iters
""")


@entry(called="madlib_keras_fit error")
def madlib_keras_fit(
    db: Database,
    source_table: str,
    model: str,
    model_arch_table: str,
    model_id: int | None,
    compile_params: str | None,
    fit_params: str | None,
    num_iterations: int,
    use_gpus: bool | None,
    validation_table: str | None,
    metrics_compute_frequency: int | None,
    warm_start: bool | None,
    name: str | None,
    description: str | None,
    object_table: str | None,
) -> None:
    visibility.refuse_transaction(db)
    validation_table = table_or_none(validation_table)
    require_epochs(num_iterations, metrics_compute_frequency)
    source, validation = read_rows(db, source_table, validation_table, num_iterations)
    if warm_start:
        relations.existing(db, model, "A warm start goes on from it.", argument="model")
        output = relations.qualified(db, Name.parse(model))
        _require_single(db, output)
    else:
        output = relations.new(db, model, ENDINGS, argument="model")
    objects = custom_functions.require_table(db, object_table)
    arch = relations.filled(db, model_arch_table, argument="model_arch_table")
    relations.require_columns(db, arch, ["model_id", "model_arch"])
    architecture = read_architecture(db, arch, model_id)
    compiled = params.compile_params(compile_params, custom_functions.known_as_madlib(db, objects, fitting=True))
    row = {
        "key": KEY,
        "model_id": model_id,
        "compile_params": compile_params,
        "fit_params": fit_params,
        "compile": reading.for_outputs(compiled, architecture.translated),
        "fit": params.fit_params(fit_params, tensorboard=True),
    }
    say_tensorboard(db, [fit_params])
    if warm_start:
        architecture.weights = b"".join(_weights(db, output))
    keys = [partition["key"] for partition in source.layout["partitions"]]
    averaging = {AVERAGING: True} if len(keys) > 1 else {}
    require_countable(num_iterations, len(keys) + len(averaging))  # with the hops that average
    chosen = choose_options(db, None, keys, bool(use_gpus), tables=(source, validation))
    require_room(db, source, chosen)
    assert model_id is not None
    request = Request(
        source=source,
        validation=validation,
        output=output,
        selection="",
        arch_table=arch.text,
        rows=[row],
        architectures={model_id: architecture},
        epochs=num_iterations,
        evaluate_every=metrics_compute_frequency or num_iterations,
        warm_start=False,  # the weights stand for it
        name=name,
        description=description,
        options={**chosen, "warm_start": False, EVALUATE_TRAINING: True, **averaging},
    )
    with recorder.opened(db, own=chosen[IN_SESSION]) as session:
        run = carry_out(db, session, put_on_record(db, session, request))
        if warm_start:
            for ending in ("", *ENDINGS):
                db.patiently(sql("DROP TABLE IF EXISTS {companion}", companion=output.suffixed(ending).sql))
        names = {
            "source_table": source_table,
            "validation_table": validation_table,
            "model": model,
            "model_arch_table": model_arch_table,
            "object_table": objects,
        }
        written = {column: text and text.strip() for column, text in names.items()}
        fit.hand_out(db, session, run, output, replace=False, written=written)
    widths = zip(reading.widths(architecture.translated), source.layout["outputs"])
    _make_over(db, output, [width or variable["shape"][-1] for width, variable in widths])


def _require_single(db: Database, name: Name) -> None:
    """Only what this function leaves is replaced."""
    table, summary = relations.find(db, name), relations.find(db, name.suffixed("_summary"))
    present = relations.columns(db, table) if table is not None else {}
    described = relations.columns(db, summary) if summary is not None else {}
    if model_columns.of(present) is not MADLIB_SINGLE or "model_type" not in described:
        raise WrongState(
            f"'{name}' is not what madlib_keras_fit leaves, so it cannot be replaced.",
            hint="Call it with warm_start => FALSE and a new output table.",
        )


def _weights(db: Database, name: Name) -> Any:
    chunked = relations.find(db, name.suffixed("_weights"))
    return weights.pieces(db, name.sql, chunked.sql if chunked is not None else None, KEY, MADLIB_SINGLE)


def _make_over(db: Database, name: Name, units: list[int]) -> None:
    """The run's model table, info and summary become MADlib's model table and summary.

    ``units`` of each output: what MADlib calls num_classes.
    They have the model that was asked for.  The run keeps those that people have added meanwhile.
    """
    info, summary, old = name.suffixed("_info"), name.suffixed("_summary"), name.suffixed("_run")
    relations.require_free(db, old)
    for table in (name, name.suffixed("_weights")):
        if relations.find(db, table) is not None:
            db.execute(sql("DELETE FROM {table} WHERE mst_key <> {key}", table=table.sql, key=KEY))
    labels = [column for column in relations.columns(db, _found(db, summary)) if column.endswith("_class_values")]
    also = joined("", (sql(", s.{column}", column=identifier(column)) for column in labels))
    db.execute(sql("ALTER TABLE {summary} RENAME TO {table}", summary=summary.sql, table=identifier(old.table)))
    db.execute(
        sql(
            "CREATE TABLE {summary} AS SELECT {summary2}{also}, s.run, s.seed, s.layout, i.functions"
            " FROM {old} s, {info} i WHERE i.mst_key = {key}"
            " {distributed_by}",
            summary=summary.sql,
            summary2=SUMMARY,
            also=also,
            old=old.sql,
            info=info.sql,
            key=KEY,
            distributed_by=platform.of(db).distributed_by("source_table"),
        ),
        ("integer[]",),
        units,
    )
    db.execute(sql("DROP TABLE {old}, {info}", old=old.sql, info=info.sql))
    db.execute(sql("ALTER TABLE {name} DROP COLUMN mst_key, DROP COLUMN __dist_key__", name=name.sql))


def _found(db: Database, name: Name) -> relations.Relation:
    table = relations.find(db, name)
    assert table is not None
    return table
