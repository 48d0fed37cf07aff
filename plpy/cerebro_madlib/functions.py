"""The functions of MADlib's deep learning, each with its signature in MADlib 2.1 and what it is here.

The page docs/reference/madlib.md, the help texts of the functions and the test that compares the extension
cerebro_db_madlib with the catalog are made from this table.
"""

from __future__ import annotations

import re

from cerebro_db.core.records import dataclass

SAME = "As in MADlib."

_DEFAULT = re.compile(r"\s+DEFAULT\s+", re.IGNORECASE)


@dataclass(frozen=True)
class Argument:
    name: str  # empty if it has none
    type: str
    default: str | None  # as SQL; None: the argument is required


@dataclass(frozen=True)
class Function:
    """One overload of a function."""

    topic: str
    name: str
    signature: str
    result: str
    here: str = SAME
    in_madlib: bool = True
    aggregate: bool = False

    @property
    def arguments(self) -> list[Argument]:
        found = []
        for part in _arguments(self.signature):
            declared, *default = _DEFAULT.split(part)
            name, _, kind = declared.partition(" ")
            if not kind or name.isupper():  # only a type, such as DOUBLE PRECISION
                name, kind = "", declared
            found.append(Argument(name, kind, default[0] if default else None))
        return found

    def written(self, *, one_line: bool = False) -> str:
        """The declaration, as the documentation writes it."""
        line = f"{self.name}({self.signature}) RETURNS {self.result}"
        if one_line or len(line) <= 100:
            return line
        body = ",\n".join(f"    {part}" for part in _arguments(self.signature))
        return f"{self.name}(\n{body}\n) RETURNS {self.result}"


def _arguments(signature: str) -> list[str]:
    return [part.strip() for part in signature.split(",")] if signature else []


def _help(topic: str, name: str) -> list[Function]:
    """The two help functions of a function."""
    return [
        Function(topic, name, "message VARCHAR", "VARCHAR", "Help: 'usage' or 'example'. The texts are our own."),
        Function(topic, name, "", "VARCHAR", "Help: a summary. The text is our own."),
    ]


def _longer(topic: str, name: str, result: str, signature: str, lengths: dict[int, str]) -> list[Function]:
    """Overloads that have the first so many arguments of one signature; length to what the overload is here."""
    arguments = _arguments(signature)
    return [
        Function(topic, name, ", ".join(arguments[:length]), result, here, in_madlib=here != ADDED)
        for length, here in lengths.items()
    ]


ADDED = "Not in MADlib 2.1, whose documentation promises it."
PACKING, MODELS, TRAINING = "Packing", "Architectures and configurations", "Training, evaluating and predicting"
SEARCHING, CUSTOM, GENERAL = "Searching", "Custom functions", "GPUs and general functions"
TESTS = "Functions for test scripts"

ROWS = "source_table VARCHAR, output_table VARCHAR, dependent_varname VARCHAR, independent_varname VARCHAR"
PREDICT = "model_table VARCHAR, test_table VARCHAR, id_col VARCHAR, independent_varname VARCHAR, output_table VARCHAR"
PREDICT_MORE = "use_gpus BOOLEAN DEFAULT FALSE, mst_key INTEGER DEFAULT NULL"
BYOM = (
    "model_arch_table VARCHAR, model_id INTEGER, test_table VARCHAR, id_col VARCHAR, independent_varname VARCHAR,"
    " output_table VARCHAR"
)
BYOM_MORE = (
    "use_gpus BOOLEAN DEFAULT NULL, class_values TEXT[] DEFAULT NULL, normalizing_const DOUBLE PRECISION DEFAULT NULL"
)
FIT_MULTIPLE = (
    "source_table VARCHAR, model_output_table VARCHAR, model_selection_table VARCHAR, num_iterations INTEGER,"
    " use_gpus BOOLEAN, validation_table VARCHAR, metrics_compute_frequency INTEGER, warm_start BOOLEAN, name VARCHAR,"
    " description VARCHAR, use_caching BOOLEAN DEFAULT FALSE"
)
LOADED = (
    "As in MADlib: any JSON and any weights are stored. They are checked when they are used; layers that can"
    " execute code (Lambda and others) are refused then."
)
HOPPING = (
    "As in MADlib, on PostgreSQL, too. The state of the optimizer moves with the weights, one bad configuration fails"
    " alone, and use_caching has no effect, because rows are always cached."
)
PREDICTED = "As in MADlib. A regression model writes a column estimated_<name> for each dependent variable."
ONE_MODEL = (
    "As in MADlib, and the model may have several inputs and outputs. In each iteration a replica of the model trains"
    " on every segment at the same time. Then the weights are averaged, weighted by the rows, with the optimizer's"
    " state."
)
OWN_MODEL = (
    "As in MADlib, which fails for a pred_type that is a number. dependent_count is taken from the architecture."
)
SEARCHED = (
    "As in MADlib, on PostgreSQL, too, and as a run that can be followed and resumed. Configurations of all brackets"
    " train at the same time. use_caching has no effect, because rows are always cached."
)
REGISTERED = (
    "For cerebro_admin. The object is the source text of the function, as UTF-8. Pickled objects are refused, because"
    " reading one executes it."
)
FIT = (
    "source_table VARCHAR, model VARCHAR, model_arch_table VARCHAR, model_id INTEGER, compile_params VARCHAR,"
    " fit_params VARCHAR, num_iterations INTEGER, use_gpus BOOLEAN DEFAULT FALSE, validation_table VARCHAR DEFAULT"
    " NULL, metrics_compute_frequency INTEGER DEFAULT NULL, warm_start BOOLEAN DEFAULT NULL, name VARCHAR DEFAULT NULL,"
    " description VARCHAR DEFAULT NULL, object_table VARCHAR DEFAULT NULL"
)
AUTOML = (
    "source_table VARCHAR, model_output_table VARCHAR, model_arch_table VARCHAR, model_selection_table VARCHAR,"
    " model_id_list INTEGER[], compile_params_grid VARCHAR, fit_params_grid VARCHAR, automl_method VARCHAR DEFAULT"
    " 'hyperband', automl_params VARCHAR DEFAULT NULL, random_state INTEGER DEFAULT NULL, object_table VARCHAR DEFAULT"
    " NULL, use_gpus BOOLEAN DEFAULT FALSE, validation_table VARCHAR DEFAULT NULL, metrics_compute_frequency INTEGER"
    " DEFAULT NULL, name VARCHAR DEFAULT NULL, description VARCHAR DEFAULT NULL, use_caching BOOLEAN DEFAULT FALSE"
)

FUNCTIONS: tuple[Function, ...] = (
    Function(
        PACKING,
        "training_preprocessor_dl",
        f"{ROWS}, buffer_size INTEGER DEFAULT NULL, normalizing_const REAL DEFAULT 1.0, num_classes INTEGER[] DEFAULT"
        " NULL, distribution_rules TEXT DEFAULT NULL",
        "VOID",
        "As in MADlib, and columns of plain numbers can be inputs, too.",
    ),
    Function(
        PACKING, "training_preprocessor_dl", "message VARCHAR DEFAULT ''", "VARCHAR", "Help, in texts of our own."
    ),
    Function(
        PACKING,
        "validation_preprocessor_dl",
        f"{ROWS}, training_preprocessor_table VARCHAR, buffer_size INTEGER DEFAULT NULL, distribution_rules TEXT"
        " DEFAULT NULL",
        "VOID",
    ),
    Function(
        PACKING, "validation_preprocessor_dl", "message VARCHAR DEFAULT ''", "VARCHAR", "Help, in texts of our own."
    ),
    Function(PACKING, "convert_array_to_bytea", "var REAL[]", "BYTEA"),
    Function(PACKING, "convert_array_to_bytea", "var SMALLINT[]", "BYTEA"),
    Function(PACKING, "convert_bytea_to_real_array", "var BYTEA", "REAL[]"),
    Function(PACKING, "convert_bytea_to_smallint_array", "var BYTEA", "SMALLINT[]"),
    Function(
        PACKING,
        "array_to_bytea",
        "ANYARRAY",
        "BYTEA",
        "For arrays of integers, real and double precision without NULLs.",
    ),
    Function(PACKING, "agg_array_concat", "REAL[]", "REAL[]", aggregate=True),
    Function(PACKING, "agg_array_concat", "SMALLINT[]", "SMALLINT[]", aggregate=True),
    *_longer(
        MODELS,
        "load_keras_model",
        "VOID",
        "keras_model_arch_table VARCHAR, model_arch JSON, model_weights BYTEA, name TEXT, description TEXT",
        dict.fromkeys((2, 3, 4, 5), LOADED),
    ),
    *_help(MODELS, "load_keras_model"),
    Function(MODELS, "delete_keras_model", "keras_model_arch_table VARCHAR, model_id INTEGER", "VOID"),
    *_help(MODELS, "delete_keras_model"),
    Function(
        MODELS,
        "generate_model_configs",
        "model_arch_table VARCHAR, model_selection_table VARCHAR, model_id_list INTEGER[], compile_params_grid VARCHAR,"
        " fit_params_grid VARCHAR, search_type VARCHAR DEFAULT 'grid', num_configs INTEGER DEFAULT NULL, random_state"
        " INTEGER DEFAULT NULL, object_table VARCHAR DEFAULT NULL",
        "VOID",
        "As in MADlib. Configurations that the table has already are left out.",
    ),
    *_longer(
        MODELS,
        "load_model_selection_table",
        "VOID",
        "model_arch_table VARCHAR, model_selection_table VARCHAR, model_id_list INTEGER[], compile_params_list"
        " VARCHAR[], fit_params_list VARCHAR[], object_table VARCHAR",
        {5: SAME, 6: SAME},
    ),
    Function(TRAINING, "madlib_keras_fit", FIT, "VOID", ONE_MODEL),
    *_help(TRAINING, "madlib_keras_fit"),
    *_longer(
        TRAINING,
        "madlib_keras_fit_multiple_model",
        "VOID",
        FIT_MULTIPLE,
        {4: ADDED, **dict.fromkeys((5, 6, 7, 8, 9, 11), HOPPING)},
    ),
    *_longer(
        TRAINING,
        "madlib_keras_evaluate",
        "VOID",
        "model_table VARCHAR, test_table VARCHAR, output_table VARCHAR, use_gpus BOOLEAN, mst_key INTEGER",
        {3: SAME, 4: SAME, 5: SAME},
    ),
    *_help(TRAINING, "madlib_keras_evaluate"),
    Function(
        TRAINING,
        "madlib_keras_predict",
        f"{PREDICT}, pred_type VARCHAR DEFAULT 'prob', {PREDICT_MORE}",
        "VOID",
        PREDICTED,
    ),
    Function(TRAINING, "madlib_keras_predict", f"{PREDICT}, pred_type INTEGER, {PREDICT_MORE}", "VOID", PREDICTED),
    Function(
        TRAINING, "madlib_keras_predict", f"{PREDICT}, pred_type DOUBLE PRECISION, {PREDICT_MORE}", "VOID", PREDICTED
    ),
    *_help(TRAINING, "madlib_keras_predict"),
    *(
        Function(TRAINING, "madlib_keras_predict_byom", f"{BYOM}, {more}", "VOID", OWN_MODEL)
        for more in (
            f"pred_type VARCHAR DEFAULT 'prob', {BYOM_MORE}, dependent_count INTEGER DEFAULT 1",
            f"pred_type INTEGER, {BYOM_MORE}",
            f"pred_type DOUBLE PRECISION, {BYOM_MORE}",
        )
    ),
    *_help(TRAINING, "madlib_keras_predict_byom"),
    Function(SEARCHING, "madlib_keras_automl", AUTOML, "VOID", SEARCHED),
    Function(
        SEARCHING,
        "hyperband_schedule",
        "schedule_table VARCHAR, r INTEGER, eta INTEGER DEFAULT 3, skip_last INTEGER DEFAULT 0",
        "VOID",
        "As in MADlib, on PostgreSQL, too.",
    ),
    *_longer(
        CUSTOM,
        "load_custom_function",
        "VOID",
        "object_table VARCHAR, object BYTEA, name TEXT, description TEXT",
        {3: REGISTERED, 4: REGISTERED},
    ),
    *_help(CUSTOM, "load_custom_function"),
    Function(CUSTOM, "delete_custom_function", "object_table VARCHAR, id INTEGER", "VOID", "For cerebro_admin."),
    Function(CUSTOM, "delete_custom_function", "object_table VARCHAR, name TEXT", "VOID", "For cerebro_admin."),
    *_help(CUSTOM, "delete_custom_function"),
    Function(
        CUSTOM,
        "load_top_k_accuracy_function",
        "object_table VARCHAR, k INTEGER",
        "VOID",
        "Lists the metric in the table. metrics=['top_<k>_accuracy'] works for every k, also without it.",
    ),
    *_help(CUSTOM, "load_top_k_accuracy_function"),
    Function(
        CUSTOM,
        "top_k_categorical_acc_pickled",
        "n INTEGER, fn_name VARCHAR",
        "BYTEA",
        "The object that load_top_k_accuracy_function lists: a text, because nothing here is pickled.",
    ),
    *_longer(
        GENERAL,
        "gpu_configuration",
        "VOID",
        "output_table TEXT, source TEXT",
        dict.fromkeys((1, 2), "As in MADlib. The server reads what the driver says and starts no other program."),
    ),
    Function(GENERAL, "gpu_configuration", "", "VARCHAR", "Help, in texts of our own."),
    Function(GENERAL, "gpu_info_tensorflow", "", "TEXT[]"),
    Function(GENERAL, "gpu_info_nvidia", "", "TEXT[]"),
    Function(GENERAL, "version", "", "TEXT", "Says 2.1.0, and that it is cerebro_db_madlib."),
    Function(
        GENERAL,
        "train_test_split",
        "source_table TEXT, output_table TEXT, train_proportion DOUBLE PRECISION, test_proportion DOUBLE PRECISION"
        " DEFAULT NULL, grouping_cols TEXT DEFAULT NULL, target_cols TEXT DEFAULT NULL, with_replacement BOOLEAN"
        " DEFAULT FALSE, separate_output_tables BOOLEAN DEFAULT FALSE",
        "VOID",
    ),
    Function(GENERAL, "train_test_split", "", "VARCHAR", "Help, in texts of our own."),
    Function(GENERAL, "train_test_split", "message VARCHAR", "VARCHAR", "Help, in texts of our own."),
    Function(GENERAL, "array_scalar_mult", "x ANYARRAY, k ANYELEMENT", "ANYARRAY"),
    Function(GENERAL, "array_square", "x ANYARRAY", "ANYARRAY"),
    Function(
        TESTS,
        "assert",
        "BOOLEAN, VARCHAR",
        "VOID",
        "Raises an error with this text if the condition is false. As in MADlib, a condition that is NULL passes.",
    ),
    Function(TESTS, "assert_guc_value", "TEXT, TEXT", "VOID", "Raises an error if the setting has another value."),
    Function(TESTS, "trap_error", "TEXT", "INTEGER", "1 if the statement fails, else 0."),
    Function(TESTS, "test_error_msg", "TEXT, TEXT", "BOOLEAN", "Whether the statement fails with a message like that."),
    Function(TESTS, "test_input_table", "TEXT", "BOOLEAN", "Whether the statement fails for lack of an input table."),
    Function(TESTS, "test_output_table", "TEXT", "BOOLEAN", "Whether the statement fails for lack of an output table."),
    Function(TESTS, "relative_error", "DOUBLE PRECISION, DOUBLE PRECISION", "DOUBLE PRECISION", "Of two numbers."),
    Function(
        TESTS,
        "relative_error",
        "DOUBLE PRECISION[], DOUBLE PRECISION[]",
        "DOUBLE PRECISION",
        "Of two vectors, by norms.",
    ),
    Function(TESTS, "__to_char", "ANYELEMENT", "TEXT"),
    Function(TESTS, "is_table_unlogged", "TEXT", "BOOLEAN"),
    Function(
        TESTS, "is_ver_gp_640_700_or_pg_11", "", "BOOLEAN", "True on PostgreSQL, false on Greenplum 7, as in MADlib."
    ),
)
