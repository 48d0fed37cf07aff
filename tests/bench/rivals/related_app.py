"""One customer predicted by an HTTP server that queries the tables: FastAPI, SQL by hand, and a traced Keras model.

python related_app.py FOLDER DSN SCHEMA asks it for the customers of FOLDER/customers.json, one after the other.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import quote

import psycopg2

from tests.bench.related_sql import ONE_CUSTOMER
from tests.bench.rivals.http_server import WITHIN

UNITS = 64


def app() -> Any:
    import keras
    import numpy as np
    import tensorflow as tf
    from fastapi import FastAPI

    connection = psycopg2.connect(os.environ["BENCH_DSN"], options=f"-c search_path={os.environ['BENCH_SCHEMA']}")
    connection.autocommit = True
    cursor = connection.cursor()
    cursor.execute(ONE_CUSTOMER, (1, "2025-01-01"))
    width = len(cursor.description)
    layers = keras.layers
    model = keras.Sequential(
        [keras.Input((width,)), layers.Dense(UNITS, "relu"), layers.Dense(UNITS, "relu"), layers.Dense(2, "softmax")]
    )

    @tf.function(input_signature=[tf.TensorSpec((None, width), tf.float32)], autograph=False)
    def outputs(rows: tf.Tensor) -> tf.Tensor:
        return model(rows, training=False)

    outputs(np.zeros((1, width), "float32"))
    server = FastAPI()

    @server.get("/churn/{customer}/{moment}")
    def churn(customer: int, moment: str) -> dict[str, float]:
        cursor.execute(ONE_CUSTOMER, (customer, moment))
        found = np.array(cursor.fetchone(), "float32")
        return {"probability": float(outputs(np.nan_to_num(found)[None]).numpy()[0, 1])}

    return server


def main() -> None:
    folder, dsn, schema = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    customers = json.loads((folder / "customers.json").read_text())
    with socket.create_server(("127.0.0.1", 0)) as listening:
        # Its connections inherit this. uvicorn itself sets it only for sockets that it has opened.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        port = listening.getsockname()[1]
        command = [sys.executable, "-m", "uvicorn", "--factory", "tests.bench.rivals.related_app:app"]
        server = subprocess.Popen(
            [*command, "--log-level", "warning", "--fd", str(listening.fileno())],
            env={**os.environ, "BENCH_DSN": dsn, "BENCH_SCHEMA": schema},
            pass_fds=[listening.fileno()],
        )
    seconds = []
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WITHIN)
        for customer, moment in [customers[0], *customers]:  # the first one waits until the server is ready
            began = time.monotonic()
            connection.request("GET", f"/churn/{customer}/{quote(moment)}")
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            assert 0 <= json.loads(answer.read())["probability"] <= 1
            seconds.append(time.monotonic() - began)
    finally:
        server.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(WITHIN)
    (folder / "result.json").write_text(json.dumps({"milliseconds": 1000 * median(seconds[1:])}))


if __name__ == "__main__":
    main()
