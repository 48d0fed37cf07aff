"""What `make install` has written down."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from cerebro_db.core.errors import CannotConnect, TrainerFailed

from . import nursery_place

INSTALLATION = Path(nursery_place.INSTALLATION)  # where `make install` put cerebro_plpy and cerebro_db


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


def installer() -> str:
    """The command that makes the trainer's environment.  Packages of the system have their own."""
    return installation().get("setup", "docker/install.sh")


def cannot_start(python: str, error: Exception) -> TrainerFailed:
    return TrainerFailed(
        f"the trainer's Python cannot be started: {python}",
        detail=str(error),
        hint="SELECT * FROM cerebro.doctor() says what is missing; make install TRAINER_PYTHON=… sets it.",
    )


def last_lines(log: Path, bytes_at_most: int = 2000, lines: int = 6) -> str | None:
    """The end of a log."""
    with contextlib.suppress(OSError):
        with open(log, "rb") as file:
            file.seek(max(0, os.path.getsize(log) - bytes_at_most))
            found = file.read().decode("utf-8", "replace").strip().splitlines()
        return "\n".join(found[-lines:]) or None
    return None
