"""The estimate of the time that is left, on the logs of simulated runs: it must not take compiling for training."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.sql.lab import Lab

ROWS = 1000  # of a segment
SEGMENTS = 2
START = 12.0  # seconds until the first visit begins
WHOLE = SEGMENTS * ROWS


@dataclass
class Visit:
    model: int
    hop: int
    segment: int
    began: float
    build: float
    end: float


def simulated(
    models: int, epochs: int, visit: Callable[[int], float], build: Callable[[int, int, set[int]], float]
) -> list[Visit]:
    """A run whose visits take ``visit(model)``, after ``build(model, hop, models that the trainer has built)``."""
    free = [(START, segment) for segment in range(SEGMENTS)]
    heapq.heapify(free)
    hops, ready = dict.fromkeys(range(1, models + 1), 0), dict.fromkeys(range(1, models + 1), START)
    built: dict[int, set[int]] = {segment: set() for segment in range(SEGMENTS)}
    visits = []
    while any(done < epochs * SEGMENTS for done in hops.values()):
        now, segment = heapq.heappop(free)
        mine = [m for m, done in hops.items() if done < epochs * SEGMENTS and (done + m) % SEGMENTS == segment]
        if not mine:
            heapq.heappush(free, (now + 0.1, segment))  # the models whose turn it is are elsewhere
            continue
        model = min(mine, key=lambda m: (max(ready[m], now), hops[m], m))
        began, hops[model] = max(ready[model], now), hops[model] + 1
        extra = build(model, hops[model], built[segment])
        built[segment].add(model)
        end = ready[model] = began + extra + visit(model)
        visits.append(Visit(model, hops[model], segment, began, extra, end))
        heapq.heappush(free, (end, segment))
    return visits


RUNS = {
    # The trainer of each segment compiles once for all models, and each model's own building is short.
    "one program": simulated(8, 6, lambda m: 1.0, lambda m, hop, built: 0.05 if built else 25.0),
    # Every model is another program, and compiling takes ten times as long as a visit.
    "a program each": simulated(8, 12, lambda m: 1.0, lambda m, hop, built: 0.0 if m in built else 10.0),
    "visits of many lengths": simulated(6, 8, lambda m: 0.5 * m, lambda m, hop, built: 0.0 if m in built else 6.0),
    "a single model": simulated(1, 30, lambda m: 1.0, lambda m, hop, built: 0.0 if m in built else 20.0),
    "long visits, few of them": simulated(4, 5, lambda m: 20.0, lambda m, hop, built: 0.2 if built else 15.0),
}


@pytest.fixture
def now(lab: Lab) -> Iterator[datetime]:
    yield lab.value("SELECT date_trunc('second', clock_timestamp())")


def put_on_record(lab: Lab, run: int, visits: list[Visit], at: float, now: datetime) -> float:
    """The log of the run at this moment; the share of the run's rows that are trained."""
    for table in ("heartbeat", "hop", "event", "model", "configuration", "architecture", "run"):
        lab(f"DELETE FROM cerebro.{table} WHERE run = %s", run)
    models, epochs = max(v.model for v in visits), max(v.hop for v in visits) // SEGMENTS
    begin = now - timedelta(seconds=at)
    lab(
        "INSERT INTO cerebro.run (run, source_table, model_table, selection_table, arch_table, epochs, evaluate_every,"
        " seed, segments, dist_keys, configurations, rows_per_epoch, storage, options, layout, source_summary, version)"
        " VALUES (%s, 'rows', 'models', 'mst', 'arch', %s, 1, 1, %s, '{0,1}', %s, %s, 'run_0', '{}', '{}', '{}', '0')",
        run, epochs, SEGMENTS, models, WHOLE,
    )  # fmt: skip
    lab("INSERT INTO cerebro.architecture VALUES (%s, DEFAULT, 1, 'a', '{}', '{}')", run)
    for model in range(1, models + 1):
        lab("INSERT INTO cerebro.configuration VALUES (%s, DEFAULT, %s, 1, 1, '', '', '{}', '{}', '{}')", run, model)
        lab("INSERT INTO cerebro.model (run, model, configuration, seed, initial) VALUES (%s, %s, %s, 1, 'random')",
            run, model, model)  # fmt: skip
    # This session stands for the driver: the run counts as running.
    driver = (
        "SELECT jsonb_build_object('pid', pid, 'backend_start', backend_start) FROM cerebro._sessions()"
        " WHERE pid = pg_backend_pid()"
    )
    for event in ("created", "started"):
        lab(f"INSERT INTO cerebro.event (run, event, at, detail) VALUES (%s, %s, %s, ({driver}))", run, event, begin)
    rows = 0.0
    for v in visits:
        if v.end <= at:
            rows += ROWS
            lab(
                "INSERT INTO cerebro.hop (run, model, hop, epoch, segment, started_at, finished_at, trainer_pid, rows,"
                " steps, loss, metrics, state_bytes, state_sha256, weights_offset, weights_bytes, seconds)"
                " VALUES (%s, %s, %s, %s, %s, %s, %s, 1, %s, 1, 1, '{}', 1, '', 0, 0,"
                " jsonb_build_object('build', %s, 'train', %s))",
                run, v.model, v.hop, (v.hop - 1) // SEGMENTS + 1, v.segment, begin + timedelta(seconds=v.began),
                begin + timedelta(seconds=v.end), ROWS, v.build, v.end - v.began - v.build,
            )  # fmt: skip
        elif v.began + v.build < at:
            rows += ROWS * (at - v.began - v.build) / (v.end - v.began - v.build)
    total = ROWS * len(visits)
    lab("INSERT INTO cerebro.heartbeat (run, at, rows_done, rows_total) VALUES (%s, %s, %s, %s)",
        run, begin + timedelta(seconds=at), int(rows), total)  # fmt: skip
    return rows / total


@pytest.mark.parametrize("name", RUNS)
def test_the_estimate_is_within_a_factor_of_two_after_a_tenth_of_the_run(lab: Lab, now: datetime, name: str) -> None:
    visits = RUNS[name]
    end, run = max(v.end for v in visits), 987_000_000
    asked = "SELECT seconds_left FROM run_progress WHERE run = %s"
    seen: list[Any] = []
    for step in range(1, 20):
        at = end * step / 20
        share = put_on_record(lab, run, visits, at, now)
        left = lab.value(asked, run)
        first_end = [min(v.end for v in visits if v.segment == segment) for segment in range(SEGMENTS)]
        begun = [first_end[segment] <= at for segment in range(SEGMENTS)]
        if not any(begun):
            assert left is None, "nothing is known yet"
        if share >= 0.1:
            seen.append((round(share, 2), round(end - at, 1), None if left is None else round(left, 1)))
            assert left is not None, seen
            # Near the end a visit that is under way is a large part of what is left.
            longest = max(v.end - v.began for v in visits)
            assert (end - at) / 2 - longest <= left <= 2 * (end - at) + longest, seen
    assert len(seen) > 5
    for table in ("heartbeat", "hop", "event", "model", "configuration", "architecture", "run"):
        lab(f"DELETE FROM cerebro.{table} WHERE run = %s", run)
