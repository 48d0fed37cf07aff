"""An HTTP model server of one process, and clients that ask for rows at once: --app or --plain, and --open.

``--open``: each client keeps its connection.
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
from collections.abc import Callable

from tests.bench.rivals.common import task
from tests.bench.rivals.http_server import WITHIN, ask
from tests.bench.sessions import ROWS, SESSIONS, at_once


def main() -> None:
    given = task()
    rows = given.arrays()["x"][:ROWS]
    with socket.create_server(("127.0.0.1", 0), backlog=256) as listening:
        # Its connections inherit this. uvicorn itself sets it only for sockets that it has opened.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        port, descriptor = listening.getsockname()[1], str(listening.fileno())
        command = [sys.executable, "-m", "tests.bench.rivals.plain_server", str(given.folder), descriptor]
        if "--app" in sys.argv:
            command = [sys.executable, "-m", "uvicorn", "tests.bench.rivals.http_app:app", "--log-level", "warning"]
            command += ["--fd", descriptor]
        server = subprocess.Popen(
            command, env={**os.environ, "BENCH_TASK": str(given.folder)}, pass_fds=[listening.fileno()]
        )

    def make() -> Callable[[int], None]:
        if "--open" not in sys.argv:
            return lambda row: void(ask(port, rows[row]))
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WITHIN)

        def again(row: int) -> None:
            body = json.dumps({"x": rows[row].tolist()})
            connection.request("POST", "/predict", body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            json.loads(answer.read())

        return again

    found = {}
    try:
        ask(port, rows[0])  # waits until the server has loaded the model, or fails when it has ended
        ready = time.time()
        for sessions in SESSIONS:
            found[sessions] = at_once(sessions, len(rows), make)
    finally:
        server.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(WITHIN)
    given.done(ready, [], sessions=found)


def void(_answer: object) -> None:
    """A row needs no more."""


if __name__ == "__main__":
    main()
