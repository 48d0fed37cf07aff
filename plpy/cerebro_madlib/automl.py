"""``madlib_keras_automl``: a search whose methods, arguments and tables are MADlib's.

Hyperband and hyperopt's random search know all their configurations before they begin, so they are a fit; Hyperband's
has a policy that stops models.  With hyperopt's TPE the configurations are proposed while the run goes on, as in
``search``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cerebro_db.core.architecture import keras_json
from cerebro_db.core.errors import InvalidArgument
from cerebro_db.core.models.metrics import MIN
from cerebro_db.core.names import Name, with_ending
from cerebro_db.core.options import LAST
from cerebro_db.core.parameters import grids, params
from cerebro_db.core.parameters.custom import Known
from cerebro_db.core.records import dataclass
from cerebro_db.core.run_options import RecordedSpace, RunOptions
from cerebro_db.core.search import named_methods
from cerebro_db.core.search.spaces import read_space
from cerebro_db.core.sql import sql
from cerebro_db.core.texts import counted
from cerebro_plpy.database import relations
from cerebro_plpy.database.access import Database
from cerebro_plpy.database.cancellation import listener
from cerebro_plpy.database.relations import Relation
from cerebro_plpy.models import document_columns
from cerebro_plpy.packing import visibility
from cerebro_plpy.runs import search
from cerebro_plpy.runs.fit import run_request
from cerebro_plpy.runs.request.request import (
    Architecture,
    AskedRun,
    Configurations,
    FitConfiguration,
    PlannedRun,
    read_architecture,
    read_rows,
    request_of,
    say_tensorboard,
)

from . import automl_methods, grid_space
from .automl_methods import RANDOM, Hyperopt, MadlibHyperband, Method
from .entry import entry, new_table
from .fit_multiple import table_or_none
from .tables import model_tables, object_tables, selection
from .tables.automl_tables import AutoML

ENDINGS = ("_info", "_summary", "_weights")


@dataclass(frozen=True)
class AutoMLArguments:
    """The arguments of ``madlib_keras_automl``."""

    source_table: str
    model_output_table: str | None
    model_arch_table: str | None
    model_selection_table: str | None
    model_id_list: list[int | None] | None
    compile_params_grid: str | None
    fit_params_grid: str | None
    automl_method: str | None
    automl_params: str | None
    random_state: int | None
    object_table: str | None
    use_gpus: bool | None
    validation_table: str | None
    metrics_compute_frequency: int | None
    name: str | None
    description: str | None


@entry(called="madlib_keras_automl error")
def madlib_keras_automl(db: Database, **arguments: Any) -> None:
    given = AutoMLArguments(**arguments)
    visibility.refuse_transaction(db)
    validation_table = table_or_none(given.validation_table)
    method = automl_methods.read(given.automl_method, given.automl_params)
    automl_methods.require_frequency(method, given.metrics_compute_frequency)
    source, validation = read_rows(db, given.source_table, validation_table, method.iterations)
    output = new_table(db, given.model_output_table, ENDINGS, argument="model_output_table")
    selected = new_selection(db, given.model_selection_table, output)
    arch = relations.filled(db, given.model_arch_table, argument="model_arch_table")
    objects = object_tables.require_table(db, given.object_table)
    ids = selection.model_ids(db, arch, given.model_id_list)
    asked = AskedRun(
        source=source,
        validation=validation,
        output=output,
        epochs=method.iterations,
        use_gpus=given.use_gpus,
        options={} if given.random_state is None else {"seed": given.random_state},
        name=given.name,
        description=given.description,
    )

    def plan(chosen: RunOptions) -> PlannedRun:
        chosen = replace(chosen, evaluate_training=True)
        if validation is None:
            # Measured after an iteration, as MADlib does.
            chosen = replace(chosen, objective="train_loss", direction=MIN, keep=LAST)
        known = object_tables.known(db, objects)
        planned = configurations(db, given, method, ids, chosen.seed, known)
        if planned is not None:
            architectures = {number: read_architecture(db, arch, number) for number in {row[0] for row in planned}}
            say_tensorboard(db, [row[2] for row in planned])
            rows = [read_row(place, row, architectures, known) for place, row in enumerate(planned)]
        else:
            assert given.compile_params_grid is not None
            space = grid_space.space(ids, given.compile_params_grid, given.fit_params_grid)
            say_tensorboard(db, grid_space.callbacks(given.fit_params_grid))
            segments = len(source.layout.partitions)
            architectures, chosen = proposed(db, method, arch, space, chosen, known=known, segments=segments)
            rows = []
        if isinstance(method, MadlibHyperband):
            measured = tuple(method.measured(given.metrics_compute_frequency))
            chosen = replace(chosen, method=method.policy(), evaluate_after=measured)
        every = given.metrics_compute_frequency if isinstance(method, Hyperopt) else None
        named = selection.arch_text(db, selected, arch)
        found = Configurations("madlib_keras_automl", rows, architectures, str(selected), named)
        return PlannedRun(found, chosen, every or method.iterations)

    request = request_of(db, asked, plan)
    names = {
        "source_table": given.source_table,
        "validation_table": validation_table,
        "model": given.model_output_table,
        "model_info": with_ending(given.model_output_table, "_info"),
        "model_arch_table": given.model_arch_table,
        "model_selection_table": given.model_selection_table,
        "object_table": objects,
    }
    searched = AutoML(
        method=(given.automl_method or "").strip() or method.name,
        params=(given.automl_params or "").strip() or method.shown,
        frequency=given.metrics_compute_frequency,
        random_state=given.random_state,
        use_gpus=bool(given.use_gpus),
        selection=str(selected),
    )
    run_request(db, model_tables.began(request, model_tables.AUTOML, names, searched))


def new_selection(db: Database, text: str | None, output: Name) -> Name:
    """The name of the table that will have the best configuration."""
    name = new_table(db, text, ("_summary",), argument="model_selection_table")
    made = {str(output.suffixed(ending)) for ending in ("", *ENDINGS)}
    twice = made & {str(name), str(name.suffixed("_summary"))}
    if twice:
        raise InvalidArgument(
            f"model_output_table and model_selection_table would both make {min(twice)}.",
            hint="Give two different names.",
        )
    return name


# -- configurations ------------------------------------------------------------------------------------


def configurations(
    db: Database, given: AutoMLArguments, method: Method, ids: list[int], seed: int, known: Known
) -> list[grids.Row] | None:
    """All configurations of the run; None: they are proposed while it goes on."""
    compile_grid, fit_grid = given.compile_params_grid, given.fit_params_grid
    if not (compile_grid or "").strip():
        raise InvalidArgument("Compile parameters cannot be empty or NULL.")

    def drawn(kind: str, count: int | None, state: int | None) -> list[grids.Row]:
        listen = listener(db.plpy)
        return grids.generate(ids, compile_grid, fit_grid, kind, count, state, known=known, listen=listen)

    points = grids.points(compile_grid, fit_grid, len(ids))
    if points is not None and points < method.configurations:
        if isinstance(method, MadlibHyperband):
            raise InvalidArgument(
                f"'{method.shown}' trains {counted(method.configurations, 'configuration')}, and the"
                f" grids have only {points}.",
                hint="Give more values or distributions, or make R smaller.",
            )
        db.notice(
            f"num_configs is {method.configurations}, and the grids have only"
            f" {counted(points, 'configuration')}: all of them are trained"
        )
    if isinstance(method, Hyperopt) and points is not None and points <= method.configurations:
        return drawn("grid", None, None)
    if isinstance(method, Hyperopt) and method.algorithm != RANDOM:
        return None
    return drawn("random", method.configurations, seed)


def read_row(place: int, row: grids.Row, architectures: dict[int, Architecture], known: Known) -> FitConfiguration:
    """A configuration as a fit has it: what ``generate`` made has passed the checks."""
    model_id, compiled, fit = row
    return FitConfiguration(
        key=place + 1,
        model_id=model_id,
        compile_params=compiled,
        fit_params=fit,
        compile=keras_json.for_outputs(params.compile_params(compiled, known), architectures[model_id].translated),
        fit=params.fit_params(fit, tensorboard=True),
    )


def proposed(
    db: Database,
    method: Method,
    arch: Relation,
    space: dict[str, Any],
    chosen: RunOptions,
    *,
    known: Known,
    segments: int,
) -> tuple[dict[int, Architecture], RunOptions]:
    """The architectures of a search by TPE, and the options with its method and space."""
    rows = read_architectures(db, arch, space["architecture"])
    decoded = {model_id: keras_json.decoded(row["arch"]) for model_id, row in rows.items()}
    read_space.read(space, decoded).check(known)
    architectures = {number: search.of_text(row["name"], row["arch"], chosen.precision) for number, row in rows.items()}
    search.require_optuna(db, chosen.engine)
    spec = named_methods.checked({"name": "tpe"}, proposes=True)
    proposes = RecordedSpace(space, method.configurations, search.models_at_once(spec, None, segments))
    return architectures, replace(chosen, method=spec, space=proposes)


def read_architectures(db: Database, arch: Relation, ids: list[int]) -> dict[int, dict[str, Any]]:
    """The rows of the table of architectures, in the order of the space."""
    present = relations.columns(db, arch)
    document_columns.require(present, arch.text)
    name = sql("name::text") if "name" in present else sql("NULL::text AS name")
    relations.require_columns(db, arch, ["model_id", "model_arch"])
    found = {
        row["model_id"]: row
        for row in db.rows(
            sql(
                "SELECT model_id, {name}, model_arch::text AS arch, model_weights IS NOT NULL AS has_weights"
                " FROM {arch} WHERE model_arch IS NOT NULL AND model_id = ANY ($1) ORDER BY model_id",
                name=name,
                arch=arch.sql,
            ),
            ("integer[]",),
            ids,
        )
    }
    missing = [number for number in ids if number not in found]
    if missing:
        raise InvalidArgument(
            f"model_id_list names architecture {missing[0]}, which {arch.text} does not have.",
            hint=f"SELECT model_id, name FROM {arch.name.quoted} lists them.",
        )
    weighted = [number for number, row in found.items() if row["has_weights"]]
    if weighted:
        db.warning(
            f"architecture {weighted[0]} has weights. A search does not use them: models start from random weights"
        )
    return {number: found[number] for number in ids}
