"""Every function that the SQL of the extension calls: ``api.NAME(plpy, …)``."""

# ruff: noqa: F401

from __future__ import annotations

from .background import cancel, forget, wait
from .convert import array_to_bytes, bytes_to_array
from .doctor import doctor
from .engine import gpus_here
from .evaluate import keras_evaluate
from .fit import fit_multiple_model, resume, submit
from .functions import (
    delete_custom_function,
    load_custom_function,
    load_pickled_function,
    load_top_k_accuracy_function,
)
from .interrupts import hold
from .logins import enrol, setup_logins
from .models import delete_keras_model, load_keras_model
from .pack import training_preprocessor_dl, validation_preprocessor_dl
from .predict import keras_predict, predict_chunk
from .results import materialize_run
from .segment import data_in, state_in, state_out, work, worker_close, worker_open
from .selection import generate_model_configs, load_model_selection_table
