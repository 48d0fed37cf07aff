"""Every function that the SQL of the extension calls: ``api.NAME(plpy, …)``."""

# ruff: noqa: F401

from __future__ import annotations

from .data.convert import array_to_bytes, bytes_to_array
from .data.packing import training_preprocessor_dl, validation_preprocessor_dl
from .database.cancellation import hold
from .definitions.architectures import delete_keras_model, load_keras_model
from .definitions.custom_functions import (
    delete_custom_function,
    load_custom_function,
    load_pickled_function,
    load_top_k_accuracy_function,
)
from .definitions.selection import generate_model_configs, load_model_selection_table
from .doctor.doctor import doctor
from .platform.machine import gpus_here
from .runs.fit import drive, fit_multiple_model, resume, submit
from .runs.lifecycle import cancel, forget, wait
from .runs.model_tables import materialize_run
from .segment import scratch
from .segment.functions import data_in, predict_chunk, state_in, state_out, work, worker_close, worker_open
from .serving.evaluate import keras_evaluate
from .serving.predict import keras_predict
from .sessions.logins import setup_logins
from .sessions.warm_up import warm_up, warm_up_here

scratch.remove_leftovers()  # once in each session: this module is imported by the first call of a function
