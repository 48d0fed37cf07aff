"""Names and types for the small run that conftest.py trains."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg2

from cerebro_db.client.cerebro import Cerebro

SCHEMA = "client_tests"
NAME = "[bold]iris[/bold] 100 %"  # markup of rich and a percent sign: must be shown as they are
HOSTILE = "</script><img src=x onerror=\"document.title='ran'\">'\"&\u2028\u202edlrow\x1b[31m<!--"


@dataclass
class Trained:
    cerebro: Cerebro  # its search_path begins with SCHEMA
    dsn: str
    run: int


@contextlib.contextmanager
def schema(server: str, name: str) -> Iterator[Any]:
    """A connection (autocommit) whose search_path begins with a new schema, which is dropped at the end."""
    with contextlib.closing(psycopg2.connect(server)) as connection:
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE; CREATE SCHEMA {name}")
            cursor.execute(f"SET search_path = {name}, public, cerebro, madlib")
        try:
            yield connection
        finally:
            connection.close()
            # On a new connection, because other tests may have restarted the server.
            with contextlib.closing(psycopg2.connect(server)) as another, another, another.cursor() as cursor:
                cursor.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE")


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
