"""Every function that the SQL of the extension calls: ``api.NAME(plpy, …)``."""

# ruff: noqa: F401

from __future__ import annotations

from .fit import fit_multiple_model
from .logins import enrol, setup_logins
from .pack import training_preprocessor_dl, validation_preprocessor_dl
from .results import materialize_run
from .segment import data_in, state_in, state_out, work, worker_close, worker_open
