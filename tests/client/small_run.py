"""Names and types for the small run that conftest.py trains."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from cerebro_db.client.cerebro import Cerebro

SCHEMA = "client_tests"
NAME = "[bold]iris[/bold] 100 %"  # markup of rich and a percent sign: must be shown as they are


@dataclass
class Trained:
    cerebro: Cerebro  # its search_path begins with SCHEMA
    dsn: str
    run: int


def layer(kind: str, **config: Any) -> dict[str, Any]:
    return {"module": "keras.layers", "class_name": kind, "config": config, "registered_name": None}


def architecture() -> str:
    layers = [
        layer("InputLayer", batch_shape=[None, 4], dtype="float32", name="attributes"),
        layer("Dense", name="hidden", units=8, activation="relu"),
        layer("Dense", name="kind", units=3, activation="softmax"),
    ]
    config = {"name": "small", "layers": layers}
    return json.dumps({"module": "keras", "class_name": "Sequential", "config": config, "registered_name": None})
