"""Several fits at once: four equal ones compared with one after the other, and a short one beside a long one."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence

from tests.bench import report
from tests.bench.stage import Contender, Measured, Stage
from tests.bench.works import Work

EQUAL = 4
LONGER = 4  # times the epochs of the long fit
HEAD = ["", "one after the other s", "at once s", "the first ends after s", "short alone s", "beside a long one s"]


def several(stage: Stage) -> Iterator[Measured]:
    work = stage.work
    long = work.but(epochs=LONGER * work.epochs)
    short = work.but(epochs=max(1, work.epochs // 5))
    _fit(stage, work, "warm")  # what the server keeps is kept from here on
    with stage.meter() as meter:
        alone = _ends(stage, [(work, 0.0)] * EQUAL, one_by_one=True)
        at_once = _ends(stage, [(work, 0.0)] * EQUAL)
        (short_alone,) = _ends(stage, [(short, 0.0)])
        long_ends, short_ends = _ends(stage, [(long, 0.0), (short, alone[0])])
    more = {
        "one after the other": alone[-1],
        "ends": at_once,
        "short": short_alone,
        "beside": short_ends - alone[0],
        "long": long_ends,
    }
    yield Measured("ours", meter.taken, 0.0, more={"several": more})


def _ends(stage: Stage, fits: Sequence[tuple[Work, float]], *, one_by_one: bool = False) -> list[float]:
    """After how many seconds each fit ends; each begins after some seconds, in a session of its own."""
    stage.settle()
    began, ends, failed = time.monotonic(), [0.0] * len(fits), []

    def fit(place: int) -> None:
        work, after = fits[place]
        time.sleep(after)
        try:
            _fit(stage, work, f"fitted_{place}")
        except BaseException as error:
            failed.append(error)
        ends[place] = time.monotonic() - began

    threads = [threading.Thread(target=fit, args=(place,)) for place in range(len(fits))]
    for one in threads:
        one.start()
        if one_by_one:
            one.join()
    for one in threads:
        one.join()
    if failed:
        raise failed[0]
    return ends


def _fit(stage: Stage, work: Work, output: str) -> None:
    database = stage.database
    with contextlib.closing(database.lab.connect()) as session:
        database.fit(work, session, output, {"seed": 1})
    database.drop_models(output)


CONTENDERS: dict[str, Contender] = {"ours": several}


def table(repeats: report.Repeats) -> str:
    rows = []
    for name in report.contenders(repeats):
        found = [one.more["several"] for one in report.of(repeats, name) if "several" in one.more]
        if found:
            columns = [
                [one["one after the other"] for one in found],
                [max(one["ends"]) for one in found],
                [min(one["ends"]) for one in found],
                [one["short"] for one in found],
                [one["beside"] for one in found],
            ]
            rows.append([name, *map(report.spread, columns)])
    return report.table(HEAD, rows) if rows else ""
