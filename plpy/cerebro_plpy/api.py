"""Every function that the SQL of the extension calls: ``api.NAME(plpy, …)``."""

# ruff: noqa: F401

from __future__ import annotations

from .pack import training_preprocessor_dl, validation_preprocessor_dl
