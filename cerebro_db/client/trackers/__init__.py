"""``cerebro track``: runs in the form of other tools that people look at results with.

``tracked`` reads a run once for all of them; ``tensorboard``, ``mlflow`` and ``optuna`` write it. Each may be called
again while the run goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sqlalchemy import Engine

from ..errors import ClientError
from ..orm import Run
from . import mlflow, optuna, tensorboard, tracked

EXPERIMENT = "cerebro_db"


def track(
    engine: Engine, runs: Sequence[Run], folder: Path | None, uri: str | None, file: Path | None, experiment: str
) -> int:
    """Writes these runs for TensorBoard (``folder``), MLflow (``uri``) and Optuna (``file``).

    Returns how many models of folds and of groups were left out.
    """
    if folder is None and uri is None and file is None:
        raise ClientError("Say where to.", "--tensorboard FOLDER, --mlflow URI or --optuna FILE.")
    left_out = 0
    for run in runs:
        found = tracked.read(engine, run)
        if folder is not None:
            tensorboard.write(found, folder)
        if file is not None:
            optuna.write(found, file)
        if uri is not None:
            mlflow.write(found, uri, experiment)
        left_out += found.left_out
    return left_out
