"""``madlib_keras_fit``: one model, whose table has one row and no ``mst_key``.

It is a run with one configuration.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from cerebro_db.core.architecture import keras_json
from cerebro_db.core.errors import WrongState
from cerebro_db.core.models import model_columns
from cerebro_db.core.models.model_columns import MST_SINGLE
from cerebro_db.core.names import Name
from cerebro_db.core.parameters import params
from cerebro_db.core.records import dataclass
from cerebro_db.core.run_options import RunOptions
from cerebro_plpy.database import relations
from cerebro_plpy.database.access import Database
from cerebro_plpy.models import weights
from cerebro_plpy.packing import visibility
from cerebro_plpy.runs import fit
from cerebro_plpy.runs.record.run import require_countable
from cerebro_plpy.runs.request.request import (
    AskedRun,
    Configurations,
    FitConfiguration,
    PlannedRun,
    read_architecture,
    read_rows,
    request_of,
    require_epochs,
    say_tensorboard,
)

from .entry import entry, new_table
from .fit_multiple import EPOCHS, table_or_none
from .tables import model_tables, object_tables
from .tables.single_table import KEY

ENDINGS = ("_info", "_summary", "_weights")


@dataclass(frozen=True)
class SingleFitArguments:
    """The arguments of ``madlib_keras_fit``."""

    source_table: str
    model: str
    model_arch_table: str
    model_id: int | None
    compile_params: str | None
    fit_params: str | None
    num_iterations: int
    use_gpus: bool | None
    validation_table: str | None
    metrics_compute_frequency: int | None
    warm_start: bool | None
    name: str | None
    description: str | None
    object_table: str | None


@entry(called="madlib_keras_fit error")
def madlib_keras_fit(db: Database, **arguments: Any) -> None:
    given = SingleFitArguments(**arguments)
    model_id, iterations, frequency = given.model_id, given.num_iterations, given.metrics_compute_frequency
    visibility.refuse_transaction(db)
    validation_table = table_or_none(given.validation_table)
    require_epochs(iterations, frequency, EPOCHS)
    source, validation = read_rows(db, given.source_table, validation_table, iterations)
    if given.warm_start:
        relations.existing(db, given.model, "A warm start goes on from it.", argument="model")
        output = relations.qualified(db, Name.parse(given.model))
        _require_single(db, output)
    else:
        output = new_table(db, given.model, ENDINGS, argument="model")
    objects = object_tables.require_table(db, given.object_table)
    arch = relations.filled(db, given.model_arch_table, argument="model_arch_table")
    relations.require_columns(db, arch, ["model_id", "model_arch"])
    architecture = read_architecture(db, arch, model_id)
    compiled = params.compile_params(given.compile_params, object_tables.known(db, objects, fitting=True))
    assert model_id is not None
    configuration = FitConfiguration(
        key=KEY,
        model_id=model_id,
        compile_params=given.compile_params,
        fit_params=given.fit_params,
        compile=keras_json.for_outputs(compiled, architecture.translated),
        fit=params.fit_params(given.fit_params, tensorboard=True),
    )
    say_tensorboard(db, [given.fit_params])
    if given.warm_start:
        architecture = replace(architecture, weights=partial(_weights, db, output))
    keys = [partition.key for partition in source.layout.partitions]
    averaging = len(keys) > 1
    require_countable(iterations, len(keys) + averaging)  # with the hops that average
    configurations = Configurations("madlib_keras_fit", [configuration], {model_id: architecture}, arch_table=arch.text)

    def plan(chosen: RunOptions) -> PlannedRun:
        # The weights stand for a warm start.
        chosen = replace(chosen, evaluate_training=True, averaging=averaging)
        return PlannedRun(configurations, chosen, frequency or iterations)

    asked = AskedRun(
        source=source,
        validation=validation,
        output=output,
        epochs=iterations,
        use_gpus=given.use_gpus,
        name=given.name,
        description=given.description,
        replace=bool(given.warm_start),
    )
    request = request_of(db, asked, plan)
    names = {
        "source_table": given.source_table,
        "validation_table": validation_table,
        "model": given.model,
        "model_arch_table": given.model_arch_table,
        "object_table": objects,
    }
    request = model_tables.began(request, model_tables.SINGLE, names)
    fit.run_request(db, request)


def _require_single(db: Database, name: Name) -> None:
    """Only what this function leaves is replaced."""
    table, summary = relations.find(db, name), relations.beside(db, name, "_summary")
    present = relations.columns(db, table) if table is not None else {}
    described = relations.columns(db, summary) if summary is not None else {}
    if model_columns.of(present) is not MST_SINGLE or "model_type" not in described:
        raise WrongState(
            f"'{name}' is not what madlib_keras_fit leaves, so it cannot be replaced.",
            hint="Call it with warm_start => FALSE and a new output table.",
        )


def _weights(db: Database, name: Name) -> Iterator[bytes]:
    chunked = relations.beside(db, name, "_weights")
    return weights.pieces(db, name.sql, chunked.sql if chunked is not None else None, KEY, MST_SINGLE)
