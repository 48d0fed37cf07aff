"""The help texts of MADlib's functions: a summary for ``f()``, the arguments for ``f('usage')``, and an example."""

from __future__ import annotations

from cerebro_db.core.records import dataclass

from .functions import FUNCTIONS

USAGE = ("usage", "help", "?")
EXAMPLE = ("example", "examples")


@dataclass(frozen=True)
class Help:
    what: str  # what the function does, in one or two sentences
    arguments: dict[str, str]
    output: str
    example: str


def text(name: str, message: str | None) -> str:
    """The help of the function of this name for a message."""
    wanted = (message or "").strip().lower()
    about = HELP[name]
    if not wanted:
        options = f"SELECT {name}('usage'); shows the arguments, SELECT {name}('example'); an example."
        return f"{name}: {about.what}\n\n{options if _takes_message(name) else _usage(name, about)}\n"
    if wanted in USAGE:
        return f"{name}: {about.what}\n\n{_usage(name, about)}\n"
    if wanted in EXAMPLE:
        return about.example + "\n"
    return f"No such option. SELECT {name}(); says which there are.\n"


def _takes_message(name: str) -> bool:
    return any(one.name == name and one.signature.startswith("message") for one in FUNCTIONS)


def _usage(name: str, about: Help) -> str:
    """The longest overloads, what each argument means, and what comes out."""
    overloads = [one for one in FUNCTIONS if one.name == name and one.result == "VOID"]
    longest = max(len(one.arguments) for one in overloads)
    signatures = [one.written() for one in overloads if len(one.arguments) == longest]
    width = max(map(len, about.arguments))
    arguments = [f"  {argument:<{width}}  {meaning}" for argument, meaning in about.arguments.items()]
    return "\n".join([*signatures, "", "Arguments:", *arguments, "", f"Result: {about.output}"])


COLUMNS = {
    "source_table": "table or view with the rows",
    "output_table": "name of a new table",
    "dependent_varname": "column to predict, or several separated by commas",
    "independent_varname": "columns to predict from, separated by commas",
}
BUFFERS = {
    "buffer_size": "rows per buffer; NULL chooses it",
    "distribution_rules": "on Greenplum: all_segments, gpu_segments, or a table with a column dbid",
}
PACKED = "output_table has the rows in buffers, output_table_summary describes them."
OBJECTS = {"object_table": "table that lists the functions"}

HELP = {
    "training_preprocessor_dl": Help(
        "packs a table for training.",
        {
            **COLUMNS,
            **BUFFERS,
            "normalizing_const": "number that the inputs are divided by",
            "num_classes": "number of classes for each dependent variable; NULL counts those in the table",
        },
        PACKED,
        "SELECT madlib.training_preprocessor_dl('iris_train', 'iris_train_packed', 'class_text', 'attributes');\n"
        "SELECT * FROM iris_train_packed_summary;",
    ),
    "validation_preprocessor_dl": Help(
        "packs a table for validation, in the same way as a table that was packed for training.",
        {**COLUMNS, "training_preprocessor_table": "the table that training_preprocessor_dl has made", **BUFFERS},
        PACKED,
        "SELECT madlib.validation_preprocessor_dl('iris_test', 'iris_test_packed', 'class_text', 'attributes',\n"
        "                                         'iris_train_packed');",
    ),
    "load_keras_model": Help(
        "adds an architecture to a table of architectures, which is created if it does not exist.",
        {
            "keras_model_arch_table": "name of the table",
            "model_arch": "what model.to_json() returns in Keras 2 or Keras 3",
            "model_weights": "the arrays of model.get_weights(), flattened and concatenated, as float32; may be NULL",
            "name": "a name for people",
            "description": "a description for people",
        },
        "a row of keras_model_arch_table with a new model_id.",
        "SELECT madlib.load_keras_model('model_arch_library', $$\n"
        '{"class_name": "Sequential", "config": {"name": "mlp", "layers": [\n'
        '  {"class_name": "Dense", "config": {"name": "hidden", "units": 10, "activation": "relu",\n'
        '                                     "batch_input_shape": [null, 4]}},\n'
        '  {"class_name": "Dense", "config": {"name": "classes", "units": 3, "activation": "softmax"}}]}}\n'
        "$$::json, NULL, 'mlp', 'one hidden layer');",
    ),
    "delete_keras_model": Help(
        "deletes an architecture from a table of architectures.",
        {"keras_model_arch_table": "name of the table", "model_id": "number of the architecture"},
        "the row is gone.",
        "SELECT madlib.delete_keras_model('model_arch_library', 1);",
    ),
    "madlib_keras_fit": Help(
        "trains one model on a packed table: a replica on each segment, and averages their weights in every iteration.",
        {
            "source_table": "packed table to train on",
            "model": "name of a new table",
            "model_arch_table": "table of architectures, as load_keras_model makes it",
            "model_id": "number of the architecture; if it has weights, training starts from them",
            "compile_params": "optimizer, loss and metrics, as in model.compile()",
            "fit_params": "batch_size, epochs and so on, as in model.fit()",
            "num_iterations": "how often the model sees all rows",
            "use_gpus": "true trains on GPUs",
            "validation_table": "packed table to evaluate the model on",
            "metrics_compute_frequency": "number of iterations between two evaluations; NULL: after the last one only",
            "warm_start": "true starts from the weights in the table model, which is replaced",
            "name": "a name for people",
            "description": "a description for people",
            "object_table": "table that lists custom functions",
        },
        "model has the weights and the architecture, model_summary describes the training.",
        "SELECT madlib.madlib_keras_fit('iris_train_packed', 'iris_model', 'model_arch_library', 1,\n"
        "    $$loss='categorical_crossentropy', optimizer='Adam(lr=0.01)', metrics=['accuracy']$$,\n"
        "    $$batch_size=8, epochs=1$$, 10);\n"
        "SELECT training_metrics_final, training_loss_final FROM iris_model_summary;",
    ),
    "madlib_keras_evaluate": Help(
        "computes the loss and the metric of a trained model on a packed table.",
        {
            "model_table": "the table that a fit has made",
            "test_table": "packed table to evaluate on",
            "output_table": "name of a new table",
            "use_gpus": "true evaluates on GPUs",
            "mst_key": "number of the model, where model_table contains several",
        },
        "output_table has one row: loss, metric, metrics_type, loss_type.",
        "SELECT madlib.madlib_keras_evaluate('iris_models', 'iris_test_packed', 'iris_evaluated', FALSE, 3);\n"
        "SELECT * FROM iris_evaluated;",
    ),
    "madlib_keras_predict": Help(
        "predicts with a trained model for the rows of a table, which need not be packed.",
        {
            "model_table": "the table that a fit has made",
            "test_table": "table or view with the rows",
            "id_col": "column that tells the rows apart",
            "independent_varname": "columns to predict from, separated by commas",
            "output_table": "name of a new table",
            "pred_type": "'prob': all classes; 'response': the best; 3: the best three; 0.2: all above 0.2",
            "use_gpus": "true predicts on GPUs",
            "mst_key": "number of the model, where model_table contains several",
        },
        "output_table has a row per row and class: the id, class_name, class_value, prob, and rank.",
        "SELECT madlib.madlib_keras_predict('iris_models', 'iris_test', 'id', 'attributes', 'iris_predicted',\n"
        "                                   'response', FALSE, 3);\n"
        "SELECT * FROM iris_predicted ORDER BY id;",
    ),
    "madlib_keras_predict_byom": Help(
        "predicts with an architecture and weights of your own, which no fit has made.",
        {
            "model_arch_table": "table of architectures, as load_keras_model makes it",
            "model_id": "number of the architecture",
            "test_table": "table or view with the rows",
            "id_col": "column that tells the rows apart",
            "independent_varname": "columns to predict from, separated by commas",
            "output_table": "name of a new table",
            "pred_type": "'prob': all classes; 'response': the best; 3: the best three; 0.2: all above 0.2",
            "use_gpus": "true predicts on GPUs",
            "class_values": "what each class is called; for several outputs one row per output",
            "normalizing_const": "number that the inputs are divided by",
            "dependent_count": "number of outputs",
        },
        "output_table has a row per row and class: the id, class_name, class_value, prob, and rank.",
        "SELECT madlib.madlib_keras_predict_byom('model_arch_library', 1, 'iris_test', 'id', 'attributes',\n"
        "    'iris_predicted', 'response', FALSE, ARRAY['Iris-setosa', 'Iris-versicolor', 'Iris-virginica']);\n"
        "SELECT * FROM iris_predicted ORDER BY id;",
    ),
    "load_custom_function": Help(
        "registers a custom loss or metric from its source text. Pickled objects are refused.",
        {
            **OBJECTS,
            "object": "source text of the function, as UTF-8",
            "name": "name of the function",
            "description": "a description for people",
        },
        "object_table, which is created if it does not exist, lists the function; compile parameters can name it.",
        "SELECT madlib.load_custom_function('custom_function_table', convert_to(\n"
        "    $$def squared_error(y_true, y_pred): return ops.sum((y_true - y_pred) ** 2, axis=-1)$$, 'UTF8'),\n"
        "    'squared_error', 'squared error');",
    ),
    "delete_custom_function": Help(
        "retires a custom loss or metric. Models that use it keep it.",
        {**OBJECTS, "id": "number of the function in the table", "name": "or its name"},
        "new runs cannot name the function. The table is dropped with its last function.",
        "SELECT madlib.delete_custom_function('custom_function_table', 'squared_error');",
    ),
    "load_top_k_accuracy_function": Help(
        "lists the metric top_<k>_accuracy in a table of functions; it is built in for every k.",
        {**OBJECTS, "k": "the label is among the k most probable classes"},
        "a row of object_table.",
        "SELECT madlib.load_top_k_accuracy_function('custom_function_table', 3);",
    ),
    "gpu_configuration": Help(
        "writes the GPUs of all hosts into a table.",
        {
            "output_table": "name of a new table",
            "source": "tensorflow (also for NULL) or nvidia: the form of the texts",
        },
        "output_table has a row per GPU: hostname, gpu_descr.",
        "SELECT madlib.gpu_configuration('gpus');\nSELECT * FROM gpus;",
    ),
    "train_test_split": Help(
        "draws the rows of a table for training, and other rows of it for testing.",
        {
            "source_table": COLUMNS["source_table"],
            "output_table": COLUMNS["output_table"],
            "train_proportion": "share of the rows for training, between 0 and 1",
            "test_proportion": "share of the rows for testing; NULL: all others",
            "grouping_cols": "columns of groups that are divided one by one; the output always has them",
            "target_cols": "columns of the output; NULL or *: all",
            "with_replacement": "TRUE: a row may be drawn several times",
            "separate_output_tables": "TRUE: two tables, with the endings _train and _test",
        },
        "output_table has the rows, and in split 1 for training and 0 for testing.",
        "SELECT madlib.train_test_split('iris_data', 'iris', 0.8, NULL, NULL, NULL, FALSE, TRUE);\n"
        "SELECT count(*) FROM iris_train;",
    ),
}
