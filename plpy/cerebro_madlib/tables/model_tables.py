# ruff: noqa: UP007, UP045  (get_type_hints evaluates the annotations, on Python 3.9 too)
"""MADlib's model tables: what the plain tables of a run become if a function of MADlib's began it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Optional

from cerebro_db.core import codec
from cerebro_db.core.architecture import keras_json
from cerebro_db.core.errors import BadData
from cerebro_db.core.models import model_columns
from cerebro_db.core.names import Name
from cerebro_db.core.packing.packed_summary import VARNAMES
from cerebro_db.core.parameters import writing
from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import Sql, identifier, joined, sql
from cerebro_plpy.database import relations
from cerebro_plpy.database.access import Database
from cerebro_plpy.runs.record.log import EVALUATED, SELECTION_ROWS, RunLog
from cerebro_plpy.runs.request.request import RunRequest
from cerebro_plpy.runs.tables.made import MadeTables, Values
from cerebro_plpy.runs.tables.model_tables import create_info, create_row, labels, set_key

from . import automl_tables, single_table
from .automl_tables import AutoML

MADLIB = "madlib"  # what the functions add to the options of the runs that they begin
SINGLE, MULTIPLE, AUTOML = "madlib_keras_fit", "madlib_fit_multiple_model", "madlib_keras_automl"
MOST_ITERATIONS = 1_000_000  # that a summary lists
INFO_COLUMNS = {
    "mst_key": "integer",
    "model_id": "integer",
    "compile_params": "text",
    "fit_params": "text",
    "model_type": "text",
    "model_size": "double precision",
    "metrics_elapsed_time": "double precision[]",
    "metrics_type": "text[]",
    "loss_type": "text",
    "training_metrics_final": "double precision",
    "training_loss_final": "double precision",
    "training_metrics": "double precision[]",
    "training_loss": "double precision[]",
    "validation_metrics_final": "double precision",
    "validation_loss_final": "double precision",
    "validation_metrics": "double precision[]",
    "validation_loss": "double precision[]",
}
OWN_INFO_COLUMNS = {  # after those of MADlib
    "status": "text",
    "reason": "text",
    "which": "text",
    "epoch": "integer",
    "objective_value": "double precision",
    "functions": "text[]",
}


@dataclass(frozen=True)
class AsWritten:
    """What the function was called with: ``others["madlib"]`` in the options of its run."""

    function: str
    written: Mapping[str, Optional[str]]  # column of the summary -> the name of a table as the user wrote it
    automl: Optional[AutoML] = None

    def __post_init__(self) -> None:
        if (self.function == AUTOML) != (self.automl is not None):
            raise ValueError(f"what AutoML was asked for belongs to {AUTOML}")


def began(
    request: RunRequest, function: str, written: Mapping[str, str | None], search: AutoML | None = None
) -> RunRequest:
    """The request, with an option that says that this function of MADlib's has made it.

    ``written``: with names of tables, the tables have the names of tables, losses and metrics that the user wrote.
    """
    names = {column: text and text.strip() for column, text in written.items()}
    others = {MADLIB: asdict(AsWritten(function, names, search))}
    return replace(request, options=replace(request.options, others=others))


def dress(db: Database, made: MadeTables) -> None:
    where = f"the options of run {made.run['run']}.{MADLIB}"
    asked = codec.decode(AsWritten, made.run["options"].others[MADLIB], where, BadData)
    own = str(made.name) == made.run["model_table"]
    if not own:  # cerebro.materialize was called with another name
        kept = {column: text for column, text in asked.written.items() if column not in ("model", "model_info")}
        asked = replace(asked, written=kept)
    _rename(db, made.name)
    _make_info(db, made, asked)
    _make_summary(db, made, asked)
    if asked.function == SINGLE and (own or len(made.states) == 1):  # else people have added configurations
        single_table.make_over(db, made)
    if asked.function == AUTOML:
        assert asked.automl is not None
        automl_tables.make_keyed(db, made.name)
        objects = asked.written.get("object_table")
        automl_tables.make_selection(db, made.run, asked.automl, objects, replace=made.replace)


def _rename(db: Database, name: Name) -> None:
    plain, ours = model_columns.PLAIN, model_columns.MST
    renamed = [(name, old, new) for old, new in zip(plain.of_table, ours.of_table)]
    chunks = name.suffixed("_weights")
    if relations.find(db, chunks) is not None:
        renamed.append((chunks, plain.configuration, ours.configuration))
    for table, old, new in renamed:
        db.execute(
            sql("ALTER TABLE {table} RENAME {old} TO {new}", table=table.sql, old=identifier(old), new=identifier(new))
        )


def _make_info(db: Database, made: MadeTables, asked: AsWritten) -> None:
    run = made.run
    log = RunLog.of_caller(db, run["run"])
    epoch_of = {state.key: state.epoch for state in made.states}
    texts = log.known.compile_params() if asked.written else {}
    told: dict[int, dict[str, Any]] = {}
    for key, (architecture, compiled, _) in log.known.configurations().items():
        outputs = keras_json.outputs(architecture)
        loss = writing.loss_type(compiled, outputs)
        metrics = writing.metrics_type(compiled, outputs, plain=bool(asked.written))
        if key in texts:
            loss, metrics = writing.as_written(texts[key], loss, metrics, len(outputs))
        told[key] = {"loss": loss, "metrics": metrics}
        if asked.automl is not None:
            told[key].update(asked.automl.told(key, epoch_of.get(key, 0)))
    name = made.name.suffixed("_info")
    plain = relations.set_aside(db, name)
    columns = {**INFO_COLUMNS, **(asked.automl.info_columns if asked.automl is not None else {}), **OWN_INFO_COLUMNS}
    create_info(db, name, columns, model_columns.MST.configuration)
    listed = joined(", ", map(identifier, columns))
    db.execute(
        sql(
            "INSERT INTO {name} SELECT {listed} FROM ({rows}) told",
            name=name.sql,
            listed=listed,
            rows=info_rows(plain),
        ),
        ("bigint", "text", "timestamptz", "integer", "integer"),
        run["run"],
        json.dumps(told),
        run["started_at"],
        run["evaluate_every"],
        run["epochs"],
    )
    db.execute(sql("DROP TABLE {plain}", plain=plain.sql))
    set_key(db, name, model_columns.MST.configuration)  # only now: the key of the plain table had the same name


def info_rows(plain: Name) -> Sql:
    """The rows of _info, from those of the plain one.

    $1: the run.  $2: {configuration: {"metrics": names or null, "loss": name}}, and of AutoML "epochs": those that have
    an entry in the lists, "before": the iterations before the first one, "s" and "i": bracket and round.  $3: when the
    run began, $4: evaluate_every, $5: epochs.
    """
    return sql(
        """
WITH evaluated AS MATERIALIZED (
    {evaluated}
), named AS (
    SELECT n.configuration::integer AS configuration, n.told ->> 'loss' AS loss, n.told -> 'epochs' AS epochs,
           COALESCE((n.told ->> 'before')::integer, 0) AS before,
           (n.told ->> 's')::integer AS s, (n.told ->> 'i')::integer AS i,
           array_agg(m.metric ORDER BY m.place) FILTER (WHERE m.metric IS NOT NULL) AS metrics
      FROM jsonb_each($2::jsonb) AS n (configuration, told)
      LEFT JOIN LATERAL jsonb_array_elements_text(CASE jsonb_typeof(n.told -> 'metrics')
                                                       WHEN 'array' THEN n.told -> 'metrics'
                                                       ELSE '[]'
                                                  END) WITH ORDINALITY AS m (metric, place) ON true
     GROUP BY 1, 2, 3, 4, 5, 6
), listed AS MATERIALIZED (
    -- What the columns have an entry for in each iteration, and the figures of the epoch whose state the table has.
    SELECT l.model,
           array_agg(extract(epoch FROM l.trained_at - $3::timestamptz)::double precision ORDER BY l.epoch)
               FILTER (WHERE l.counts) AS elapsed,
           array_agg(COALESCE(l.metric, l.training_metric) ORDER BY l.epoch) FILTER (WHERE l.counts)
               AS training_metrics,
           array_agg(COALESCE(l.loss, l.training_loss) ORDER BY l.epoch) FILTER (WHERE l.counts) AS training_loss,
           array_agg(l.validation_metric ORDER BY l.epoch) FILTER (WHERE l.counts) AS validation_metrics,
           array_agg(l.validation_loss ORDER BY l.epoch) FILTER (WHERE l.counts) AS validation_loss,
           array_agg(l.before + l.epoch ORDER BY l.epoch) FILTER (WHERE l.counts) AS iterations,
           max(l.metric) FILTER (WHERE l.is_stored) AS metric,
           max(l.loss) FILTER (WHERE l.is_stored) AS loss,
           count(l.training_metric) > 0 AS has_training_metric,
           count(l.validation_metric) > 0 AS has_validation_metric,
           count(l.validation_loss) > 0 AS is_validated
      FROM (SELECT c.*, e.metric, e.loss, c.epoch = p.epoch AS is_stored, COALESCE(n.before, 0) AS before,
                   CASE WHEN n.epochs IS NULL THEN COALESCE(c.epoch % NULLIF($4, 0) = 0, false) OR c.epoch = $5
                        ELSE n.epochs @> to_jsonb(c.epoch)
                   END AS counts
              FROM {plain} p
              JOIN cerebro.learning_curve c ON c.model = p.model
              LEFT JOIN named n ON n.configuration = c.configuration
              LEFT JOIN evaluated e ON e.model = c.model AND e.epoch = c.epoch
             WHERE c.run = $1 AND c.owner = current_user) l
     GROUP BY l.model
)
SELECT p.configuration AS mst_key, c.model_id, c.compile_params, c.fit_params, 'madlib_keras' AS model_type,
       p.bytes / 1024.0 AS model_size, l.elapsed AS metrics_elapsed_time, n.metrics AS metrics_type,
       n.loss AS loss_type, COALESCE(l.metric, p.training_metric) AS training_metrics_final,
       COALESCE(l.loss, p.training_loss) AS training_loss_final,
       CASE WHEN l.has_training_metric THEN l.training_metrics END AS training_metrics, l.training_loss,
       p.validation_metric AS validation_metrics_final, p.validation_loss AS validation_loss_final,
       CASE WHEN l.has_validation_metric THEN l.validation_metrics END AS validation_metrics,
       CASE WHEN l.is_validated THEN l.validation_loss END AS validation_loss,
       l.iterations AS metrics_iters, n.s, n.i, p.status, p.reason, p.which, p.epoch, p.objective_value, p.functions
  FROM {plain} p
  JOIN ({selected}) c ON c.mst_key = p.configuration
  LEFT JOIN listed l ON l.model = p.model
  LEFT JOIN named n ON n.configuration = p.configuration
""",
        evaluated=EVALUATED,
        plain=plain.sql,
        selected=SELECTION_ROWS,
    )


def _make_summary(db: Database, made: MadeTables, asked: AsWritten) -> None:
    run, summary, name = made.run, made.summary, made.name
    # The summary of a packed table counts the classes of labels only, as MADlib's.
    vectors = [one.shape[-1] for one in made.layout.outputs if one.target == "encoded" and one.shape]
    optimised = run["options"].optimised(run["validation_table"] is not None)
    selection_table, arch_table = RunLog.of_caller(db, run["run"]).known.tables_of_configurations()
    epochs = run["epochs"]
    every = run["evaluate_every"] or epochs
    # Of a run that is planned for more epochs than anybody lists, only the last one.
    iterations = [*range(every, epochs, every), epochs] if epochs // every <= MOST_ITERATIONS else [epochs]
    columns: list[Values] = [
        ("source_table", "text", run["packed_table"]),
        ("validation_table", "text", run["validation_table"]),
        ("model", "text", str(name)),
        ("model_info", "text", str(name.suffixed("_info"))),
        ("dependent_varname", "text[]", _listed(summary.target)),
        ("independent_varname", "text[]", _listed(summary.inputs)),
        ("model_arch_table", "text", arch_table),
        ("model_selection_table", "text", selection_table),
        ("object_table", "text", None),
        ("num_iterations", "integer", run["epochs"]),
        ("metrics_compute_frequency", "integer", run["evaluate_every"]),
        ("warm_start", "boolean", run["options"].warm_start),
        ("name", "text", run["run_name"]),
        ("description", "text", run["description"]),
        ("start_training_time", "timestamp", run["started_at"]),
        ("end_training_time", "timestamp", run["ended_at"]),
        ("madlib_version", "text", f"cerebro_db {run['cerebro_version']}"),
        ("num_classes", "integer[]", _listed(summary.classes) or vectors),
        *labels(made, VARNAMES.labels),
        ("dependent_vartype", "text[]", _listed(summary.target_types)),
        ("normalizing_const", "real", summary.divide_by),
        ("metrics_iters", "integer[]", iterations),
        ("run", "bigint", run["run"]),
        ("seed", "bigint", run["seed"]),
        ("layout", "jsonb", run["layout"]),
        ("objective", "text", optimised.name),
        ("direction", "text", optimised.direction),
        ("which", "text", made.which),
        ("memory_mb", "integer", run["options"].trainer.memory_mb),
    ]
    if asked.automl is not None:
        columns = asked.automl.summary(columns)
    columns = [(column, kind, asked.written.get(column, value)) for column, kind, value in columns]
    table = name.suffixed("_summary")
    db.execute(sql("DROP TABLE {table}", table=table.sql))
    create_row(db, table, columns)


def _listed(values: Sequence[Any] | None) -> list[Any] | None:
    return None if values is None else list(values)
