"""The tables that MADlib's functions make: their columns in MADlib 2.1, in the order of the table.

The page docs/reference/madlib.md is made from this, and tests compare it with the tables of an installed extension.

Columns of ours come after these. <input> and <output> stand for the names of the independent and dependent variables,
<label> for the type of the dependent variable, and <id> and <id type> for the column that tells rows apart.
"""

from __future__ import annotations

from cerebro_db.core.records import dataclass


@dataclass(frozen=True)
class Table:
    made_by: str
    name: str  # as the function's argument calls it, with the ending of a companion
    columns: str  # name and type, separated by commas
    more: str = ""  # columns of ours, after those of MADlib
    here: str = ""  # what is different

    @property
    def types(self) -> list[tuple[str, str]]:
        """Name and type of MADlib's columns."""
        return [(name, kind) for name, _, kind in (part.strip().partition(" ") for part in self.columns.split(","))]


METRICS = (
    "training_metrics_final DOUBLE PRECISION, training_loss_final DOUBLE PRECISION, training_metrics DOUBLE"
    " PRECISION[], training_loss DOUBLE PRECISION[], validation_metrics_final DOUBLE PRECISION, validation_loss_final"
    " DOUBLE PRECISION, validation_metrics DOUBLE PRECISION[], validation_loss DOUBLE PRECISION[]"
)
PACKED = (
    "source_table TEXT, output_table TEXT, dependent_varname TEXT[], independent_varname TEXT[], dependent_vartype"
    " TEXT[], <output>_class_values <label>[], buffer_size INTEGER, normalizing_const REAL, num_classes INTEGER[],"
    " distribution_rules TEXT, __internal_gpu_config__ TEXT"
)
KEY = "MADlib has __dist_key__ on Greenplum only."
INFO = (
    "mst_key INTEGER, model_id INTEGER, compile_params TEXT, fit_params TEXT, model_type TEXT, model_size DOUBLE"
    f" PRECISION, metrics_elapsed_time DOUBLE PRECISION[], metrics_type TEXT[], loss_type TEXT, {METRICS}"
)
LARGE = "Models above 500 MB have NULL as model_weights, and their weights in a table with the ending _weights."
FUNCTIONS = "functions has the versions of the custom functions that the model was trained with."
PACKED_HERE = (
    "On Greenplum, distribution_rules and __internal_gpu_config__ are INTEGER[] if only some segments are used."
)

TABLES = (
    Table(
        "training_preprocessor_dl",
        "output_table",
        "__dist_key__ INTEGER, <input> BYTEA, <output> BYTEA, <input>_shape INTEGER[], <output>_shape INTEGER[],"
        " buffer_id INTEGER",
        here=KEY,
    ),
    Table(
        "training_preprocessor_dl",
        "output_table_summary",
        PACKED,
        "rows, segments, seed, layout",
        PACKED_HERE,
    ),
    Table(
        "validation_preprocessor_dl",
        "output_table_summary",
        PACKED,
        "rows, segments, seed, layout",
        PACKED_HERE,
    ),
    Table(
        "load_keras_model",
        "keras_model_arch_table",
        "model_id INTEGER, model_arch JSON, model_weights BYTEA, name TEXT, description TEXT, __internal_madlib_id__"
        " TEXT",
        here="model_id is the primary key.",
    ),
    Table(
        "load_custom_function",
        "object_table",
        "id INTEGER, name TEXT, description TEXT, object BYTEA",
        here="object is source text. Also made by load_top_k_accuracy_function.",
    ),
    Table(
        "load_model_selection_table",
        "model_selection_table",
        "mst_key INTEGER, model_id INTEGER, compile_params VARCHAR, fit_params VARCHAR",
        here="Also made by generate_model_configs. mst_key is an identity column.",
    ),
    Table(
        "load_model_selection_table",
        "model_selection_table_summary",
        "model_arch_table VARCHAR, object_table VARCHAR",
        here="One row, however often generate_model_configs adds to the table.",
    ),
    Table("madlib_keras_fit", "model", "model_weights BYTEA, model_arch JSON", here=LARGE),
    Table(
        "madlib_keras_fit",
        "model_summary",
        "source_table TEXT, model TEXT, dependent_varname TEXT[], independent_varname TEXT[], model_arch_table TEXT,"
        " model_id INTEGER, compile_params TEXT, fit_params TEXT, num_iterations INTEGER, validation_table TEXT,"
        " object_table TEXT, metrics_compute_frequency INTEGER, name TEXT, description TEXT, model_type TEXT,"
        " model_size DOUBLE PRECISION, start_training_time TIMESTAMP, end_training_time TIMESTAMP,"
        " metrics_elapsed_time DOUBLE PRECISION[], madlib_version TEXT, num_classes INTEGER[],"
        " dependent_vartype TEXT[],"
        " normalizing_const REAL,"
        f" metrics_type TEXT[], loss_type TEXT, {METRICS}, metrics_iters INTEGER[], <output>_class_values <label>[]",
        "run, seed, layout, functions",
        FUNCTIONS,
    ),
    Table(
        "madlib_keras_fit_multiple_model",
        "model_output_table",
        "mst_key INTEGER, model_weights BYTEA, model_arch JSON, __dist_key__ INTEGER",
        here=LARGE,
    ),
    Table(
        "madlib_keras_fit_multiple_model",
        "model_output_table_info",
        INFO,
        "status, reason, which, epoch, objective_value, functions",
        "A configuration that failed has a row, too; reason says why. which and epoch say which state the model has."
        f" {FUNCTIONS}",
    ),
    Table(
        "madlib_keras_fit_multiple_model",
        "model_output_table_summary",
        "source_table TEXT, validation_table TEXT, model TEXT, model_info TEXT, dependent_varname TEXT[],"
        " independent_varname TEXT[], model_arch_table TEXT, model_selection_table TEXT, object_table TEXT,"
        " num_iterations INTEGER, metrics_compute_frequency INTEGER, warm_start BOOLEAN, name TEXT, description TEXT,"
        " start_training_time TIMESTAMP, end_training_time TIMESTAMP, madlib_version TEXT, num_classes INTEGER[],"
        " <output>_class_values <label>[], dependent_vartype TEXT[], normalizing_const REAL, metrics_iters INTEGER[]",
        "run, seed, layout, objective, direction, which, memory_mb",
    ),
    Table(
        "madlib_keras_evaluate",
        "output_table",
        "loss DOUBLE PRECISION, metric DOUBLE PRECISION, metrics_type TEXT[], loss_type TEXT",
    ),
    Table(
        "madlib_keras_predict",
        "output_table",
        "<id> <id type>, class_name TEXT, class_value TEXT, prob DOUBLE PRECISION, rank INTEGER",
        here="Without rank for the pred_type response.",
    ),
    Table(
        "madlib_keras_predict_byom",
        "output_table",
        "<id> <id type>, class_name TEXT, class_value TEXT, prob DOUBLE PRECISION, rank INTEGER",
        here="Without rank for the pred_type response.",
    ),
    Table(
        "madlib_keras_automl",
        "model_output_table",
        "mst_key INTEGER, model_weights BYTEA, model_arch JSON, __dist_key__ INTEGER",
        here=LARGE,
    ),
    Table(
        "madlib_keras_automl",
        "model_output_table_info",
        f"{INFO}, metrics_iters INTEGER[], s INTEGER, i INTEGER",
        "status, reason, which, epoch, objective_value, functions",
        "s and i (bracket and last round) with hyperband only. A configuration that failed has a row, too.",
    ),
    Table(
        "madlib_keras_automl",
        "model_output_table_summary",
        "source_table TEXT, validation_table TEXT, model TEXT, model_info TEXT, dependent_varname TEXT[],"
        " independent_varname TEXT[], model_arch_table TEXT, model_selection_table TEXT, automl_method TEXT,"
        " automl_params TEXT, random_state TEXT, object_table TEXT, use_gpus BOOLEAN, metrics_compute_frequency"
        " INTEGER, name TEXT, description TEXT, start_training_time TIMESTAMP, end_training_time TIMESTAMP,"
        " madlib_version TEXT, num_classes INTEGER[], <output>_class_values <label>[], dependent_vartype TEXT[],"
        " normalizing_const REAL",
        "run, seed, layout, objective, direction, which, memory_mb",
    ),
    Table(
        "madlib_keras_automl",
        "model_selection_table",
        "mst_key INTEGER, model_id INTEGER, compile_params TEXT, fit_params TEXT",
        here="The best configuration.",
    ),
    Table(
        "madlib_keras_automl",
        "model_selection_table_summary",
        "model_arch_table VARCHAR, object_table VARCHAR",
    ),
    Table("hyperband_schedule", "schedule_table", "s INTEGER, i INTEGER, n_i INTEGER, r_i INTEGER"),
    Table("gpu_configuration", "output_table", "hostname TEXT, gpu_descr TEXT"),
)
