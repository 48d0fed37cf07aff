"""What `make install` has written down, and the engines that the trainer's Python can import."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from cerebro_db.core.engines import ENGINES
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


def engines() -> list[str]:
    """The engines whose package is in the trainer's environment.  No package is imported to find out."""
    names = list(ENGINES.values())
    script = f"from importlib.util import find_spec; print(*[name for name in {names} if find_spec(name)])"
    command = [installation()["trainer_python"], "-I", "-B", "-c", script]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.split()
    except (OSError, subprocess.SubprocessError) as error:
        raise cannot_start(command[0], error) from error
    return [engine for engine, package in ENGINES.items() if package in found]


def cannot_start(python: str, error: Exception) -> TrainerFailed:
    return TrainerFailed(
        f"the trainer's Python cannot be started: {python}",
        detail=str(error),
        hint="SELECT * FROM cerebro.doctor() says what is missing; make install TRAINER_PYTHON=… sets it.",
    )
