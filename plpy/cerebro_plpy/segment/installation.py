"""What `make install` has written down."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cerebro_db.core.errors import CannotConnect, TrainerFailed

INSTALLATION = Path(__file__).resolve().parents[2]  # where `make install` put cerebro_plpy and cerebro_db


def installation() -> dict[str, Any]:
    """The contents of install.json.  The file is the administrator's; users have no setting in its place."""
    try:
        return json.loads((INSTALLATION / "install.json").read_text())
    except (OSError, ValueError) as error:
        raise CannotConnect(
            "cerebro_db is not installed completely: install.json cannot be read",
            detail=str(error),
            hint="Run make install again.",
        ) from error


def cannot_start(python: str, error: Exception) -> TrainerFailed:
    return TrainerFailed(
        f"the trainer's Python cannot be started: {python}",
        detail=str(error),
        hint="SELECT * FROM cerebro.doctor() says what is missing; make install TRAINER_PYTHON=… sets it.",
    )
