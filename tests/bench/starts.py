"""Seconds until the first visit of a call ends, and of the whole call, beside processes that are busy.

``python -m tests.bench.starts [--busy 0,8] [--against CLONE]`` prints a line of JSON for each call of ``cerebro.train``
with a budget of 5 s: the first one of a server, then one in a new session, then one in the same session.  Each table
has another number of columns, so that nothing is packed or compiled before.  ``CLONE``: another clone of this
repository, whose calls alternate with those of this one.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

from cerebro_db.embedded import extension, throw_away
from cerebro_db.embedded.cluster import Cluster
from tests.bench.beside import busy
from tests.conftest import TRAINER, connect
from tests.sql.lab import run

ROWS, BUDGET = 15_000, 5  # rows of two segments; seconds
CALLS = ("first of the server", "new session", "same session")


def make_table(session: Any, name: str, columns: int) -> None:
    run(session, "SELECT setseed(0.5)")
    numbers = ", ".join(f"random() AS x{place}" for place in range(columns))
    run(session, f"CREATE TABLE {name} AS SELECT {numbers}, 0.0 AS y FROM generate_series(1, {ROWS})")
    run(session, f"UPDATE {name} SET y = x0 * x1 + sin(5 * x2) + random() / 10")


def timed(session: Any, table: str, model: str) -> dict[str, float]:
    began = time.time()
    ((number,),) = run(session, f"SELECT cerebro.train('{table}', '{model}', 'y', budget => '{BUDGET} s')")
    took = time.time() - began
    figures = "SELECT extract(epoch FROM min(finished_at))::float8 FROM cerebro.hop WHERE run = %s"
    with session.cursor() as cursor:
        cursor.execute(figures, (number,))
        ((first,),) = cursor.fetchall()
        cursor.execute("SELECT count(*) FROM cerebro.hop WHERE run = %s", (number,))
        ((visits,),) = cursor.fetchall()
    return {"first_visit": round(first - began, 2), "call": round(took, 2), "visits": visits}


def of_clone(clone: Path | None) -> Cluster:
    if clone is None:
        return throw_away.create(TRAINER)
    sources = extension.Sources(clone, clone / extension.NAME, clone / "plpy" / "cerebro_plpy")
    return throw_away.create(TRAINER, sources=sources)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--busy", default="0,8")
    parser.add_argument("--against", type=Path)
    parser.add_argument("--repeats", type=int, default=1)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the servers and the busy processes end, too
    clones = {"this": None, **({"other": given.against} if given.against else {})}
    for repeat in range(given.repeats):
        for processes in map(int, given.busy.split(",")):
            with contextlib.ExitStack() as stack:
                clusters = {name: of_clone(clone) for name, clone in clones.items()}
                for cluster in clusters.values():
                    stack.callback(throw_away.remove, cluster)
                    with contextlib.closing(connect(cluster.dsn())) as session:
                        for place in range(len(CALLS)):
                            make_table(session, f"rows_{place}", 5 + place)
                stack.enter_context(busy(processes))
                sessions: dict[str, Any] = {}
                for place, call in enumerate(CALLS):
                    for name, cluster in clusters.items():
                        if call != CALLS[-1]:
                            sessions[name] = stack.enter_context(contextlib.closing(connect(cluster.dsn())))
                        found = timed(sessions[name], f"rows_{place}", f"model_{place}")
                        told = {"clone": name, "busy": processes, "repeat": repeat, "which": call, **found}
                        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
