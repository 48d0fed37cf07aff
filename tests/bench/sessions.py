"""Single rows that many sessions predict at once, compared with an HTTP server of one process with the same model."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

from tests.bench import report
from tests.bench.contenders import python_with, script
from tests.bench.stage import Contender, Measured, Stage
from tests.sql.lab import run

SESSIONS = (1, 8, 64)
ROWS = 512  # that all sessions predict together
MODEL = "sessions_model"


def at_once(sessions: int, rows: int, make: Callable[[], Callable[[int], None]]) -> dict[str, float]:
    """The median of the milliseconds of a row when so many threads predict rows, and the rows per second.

    ``make``: what a thread predicts with.
    """
    found: list[float] = []
    failed: list[BaseException] = []
    started: list[float] = []
    together = threading.Barrier(sessions, lambda: started.append(time.monotonic()))

    def predict(first: int) -> None:
        try:
            ask = make()
            ask(first)  # what is ready after the first row is not measured
            together.wait()
            for row in range(first, rows, sessions):
                began = time.monotonic()
                ask(row)
                found.append(1000 * (time.monotonic() - began))
        except BaseException as error:
            failed.append(error)  # before the others' BrokenBarrierError
            together.abort()

    threads = [threading.Thread(target=predict, args=(first,)) for first in range(sessions)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    if failed:
        raise failed[0]
    return {"median": median(found), "per_second": len(found) / (time.monotonic() - started[0])}


def ours(name: str, *, open_sessions: bool) -> Contender:
    def contend(stage: Stage) -> Iterator[Measured]:
        lab = stage.database.lab
        if lab.value(f"SELECT to_regclass('{MODEL}')") is None:
            lab("CREATE TABLE sessions_rows AS SELECT id, x, y::text AS y FROM sessions")
            lab("ALTER TABLE sessions_rows ADD PRIMARY KEY (id)")
            configuration = [{"architecture": stage.work.architectures[0]}]
            lab(
                f"SELECT cerebro.fit('sessions_rows', '{MODEL}', %s, target => 'y', inputs => 'x', epochs => 1,"
                " segments => 1)",
                json.dumps(configuration),
            )
        lab("SELECT cerebro.set_limits(NULL, max_predictors => %s)", max(SESSIONS))

        def ask(session: Any, row: int) -> None:
            query = f"SELECT x FROM sessions_rows WHERE id = {row}"
            ((found,),) = run(session, f"SELECT probability FROM cerebro.predict('{MODEL}', %s)", query)
            assert 0 <= found <= 1

        def make() -> Callable[[int], None]:
            if not open_sessions:

                def anew(row: int) -> None:
                    with contextlib.closing(lab.connect()) as session:
                        ask(session, row)

                return anew
            session = lab.connect()
            return lambda row: ask(session, row)

        milliseconds = {}
        with stage.meter() as meter:
            for sessions in SESSIONS:
                milliseconds[sessions] = at_once(sessions, min(ROWS, stage.work.rows), make)
        lab("DELETE FROM cerebro.role_limit")
        yield Measured(name, meter.taken, 0.0, more={"sessions": milliseconds})

    return contend


# FastAPI where it is installed, or else a minimal server of our own.
RIVAL, FLAG, NEEDS = (
    ("FastAPI and uvicorn", "--app", "fastapi")
    if python_with("fastapi")
    else ("a plain asyncio server", "--plain", "tensorflow")
)
CONTENDERS: dict[str, Contender] = {
    "open": ours("ours, open sessions", open_sessions=True),
    "new": ours("ours, a session for each row", open_sessions=False),
    "http": script(f"{RIVAL}, open connections", "http_sessions", FLAG, "--open", needs=NEEDS),
    "http-new": script(f"{RIVAL}, a connection for each row", "http_sessions", FLAG, needs=NEEDS),
}


def table(repeats: report.Repeats) -> str:
    """The median of the milliseconds of a row, and the rows per second, by the number of sessions."""
    lines = []
    for name in report.contenders(repeats):
        measured = [one.more["sessions"] for one in report.of(repeats, name) if "sessions" in one.more]
        if measured:
            by_count = [{int(count): its for count, its in one.items()} for one in measured]
            lines.append(
                [name]
                + [
                    f"{median(one[count]['median'] for one in by_count):.1f} ms,"
                    f" {median(one[count]['per_second'] for one in by_count):.0f}/s"
                    for count in SESSIONS
                ]
            )
    return report.table(["a row with", *(f"{count} at once" for count in SESSIONS)], lines) if lines else ""
