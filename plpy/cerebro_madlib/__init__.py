"""MADlib's deep-learning functions, which use those of cerebro_plpy: forms of arguments, tables and texts."""

# The functions that SQL calls, by the modules that have them (cerebro_plpy/neighbours.py).
FUNCTIONS = {
    "tables.architectures": ("madlib_delete_keras_model", "madlib_load_keras_model"),
    "automl": ("madlib_keras_automl",),
    "converting": ("convert_madlib_table",),
    "evaluate": ("madlib_keras_evaluate",),
    "fit": ("madlib_keras_fit",),
    "fit_multiple": ("fit_multiple_model", "madlib_fit_multiple_model"),
    "tables.object_tables": (
        "madlib_delete_custom_function",
        "madlib_load_custom_function",
        "madlib_load_top_k_accuracy_function",
        "madlib_object_table",
    ),
    "predict": ("madlib_keras_predict", "madlib_keras_predict_byom"),
    "preprocessing": ("madlib_training_preprocessor_dl", "madlib_validation_preprocessor_dl"),
    "tables.selection": ("madlib_generate_model_configs", "madlib_load_model_selection_table"),
    "splitting": ("train_test_split",),
    "texts": ("gpu_configuration", "gpu_texts", "hyperband_schedule", "madlib_usage"),
}
