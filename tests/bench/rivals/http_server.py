"""An HTTP model server on this machine, and a client that asks for one row after the other: --rows=1000.

Each request has a connection of its own, as each prediction of ours has a session of its own.
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

import numpy as np

from tests.bench.rivals.common import task

WITHIN = 120  # seconds, until it has started or ended


def ask(port: int, row: np.ndarray) -> dict[str, float]:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=WITHIN)) as connection:
        body = json.dumps({"x": row.tolist()})
        connection.request("POST", "/predict", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        found: dict[str, float] = json.loads(answer.read())
        return found


def main() -> None:
    given = task()
    asked = dict(argument[2:].split("=") for argument in sys.argv[2:])
    rows = given.arrays()["x"][: int(asked["rows"])]
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        command = [sys.executable, "-m", "uvicorn", "tests.bench.rivals.http_app:app", "--log-level", "warning"]
        server = subprocess.Popen(
            [*command, "--fd", str(listening.fileno())],
            env={**os.environ, "BENCH_TASK": str(given.folder)},
            pass_fds=[listening.fileno()],
        )
    try:
        ask(port, rows[0])  # waits until the server has loaded the model, or fails when it has ended
        ready, seconds = time.time(), []
        for row in rows:
            began = time.monotonic()
            ask(port, row)
            seconds.append(time.monotonic() - began)
    finally:
        server.terminate()
        server.wait(WITHIN)
    given.done(ready, [], rows=len(seconds), milliseconds=1000 * float(np.median(seconds)))


if __name__ == "__main__":
    main()
