"""Work for other contenders than the usual ones: packing, predicting many rows and single rows, little memory."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

from tests.bench.bounded import GROUPS
from tests.bench.contenders import call, script
from tests.bench.meter import Taken
from tests.bench.stage import Contender, Measured, Skipped, Stage
from tests.sql.lab import run

PACKED_AGAIN = [f"packed_again{part}{ending}" for part in ("", "_validation") for ending in ("", "_summary")]
TIMES = 16  # the rows of W1
SINGLES = 1000  # rows that are predicted one by one


# --- packing ---------------------------------------------------------------------------------------------


def packing(name: str, do: Callable[[Stage, Any], None]) -> Contender:
    def contend(stage: Stage) -> Iterator[Measured]:
        with contextlib.closing(stage.database.lab.connect()) as session:
            with stage.meter() as meter:
                do(stage, session)
            run(session, f"DROP TABLE IF EXISTS {', '.join(PACKED_AGAIN)}")
        yield Measured(name, meter.taken, 0.0)

    return contend


def pack(stage: Stage, session: Any) -> None:
    run(
        session,
        f"SELECT pack_plain('packing', 'packed_again', 'y', 'x', segments => {stage.work.segments})",
    )


def copy_out(kind: str, rows: str = "(SELECT x, y FROM packing)") -> Callable[[Stage, Any], None]:
    def copy(stage: Stage, session: Any) -> None:
        with open("/dev/null", "wb") as nowhere, session.cursor() as cursor:
            cursor.copy_expert(f"COPY {rows} TO STDOUT (FORMAT {kind})", nowhere)

    return copy


PACKING: dict[str, Contender] = {
    "ours": packing("ours", pack),
    "copy-text": packing("COPY, text", copy_out("text")),
    "copy-binary": packing("COPY, binary", copy_out("binary")),
}


# --- predicting ------------------------------------------------------------------------------------------


def predicting(name: str, function: str) -> Contender:
    """The first call of a new session, and a second call in the same session."""

    def predict(stage: Stage) -> Iterator[Measured]:
        lab = stage.database.lab
        rows = TIMES * stage.work.rows
        if lab.value("SELECT to_regclass('predict_rows')") is None:
            lab(
                f"CREATE TABLE predict_rows AS SELECT time * {stage.work.rows} + id AS id, x"
                f" FROM predict, generate_series(0, {TIMES - 1}) time"
            )
            lab("ANALYZE predict_rows")
            stage.database.fit(stage.work, lab.db, "predict_model", {"seed": 1})
        with contextlib.closing(lab.connect()) as session:
            for call in (name, f"{name}, second call"):
                with stage.meter() as meter:
                    run(
                        session,
                        f"SELECT {function}('predict_model', 'predict_rows', 'id', 'x', 'predicted', 'response',"
                        " false, 1)",
                    )
                found = lab.value("SELECT count(*) FROM predicted")
                assert found == rows, f"{found} of {rows} rows were predicted"
                lab("DROP TABLE predicted")
                yield Measured(call, meter.taken, 0.0, more={"rows": rows})

    return predict


PREDICT: dict[str, Contender] = {
    "ours": predicting("ours", "madlib.madlib_keras_predict"),
    "keras-predict": script("Keras predict", "keras_predict", f"--times={TIMES}"),
    "keras-predict-1024": script("Keras predict, batches of 1024", "keras_predict", f"--times={TIMES}", "--batch=1024"),
}


# --- one row at a time -----------------------------------------------------------------------------------


def singles(stage: Stage) -> Iterator[Measured]:
    """Each row in a session of its own.  At first nothing is ready: the first session starts the nursery."""
    lab, rows = stage.database.lab, min(SINGLES, stage.work.rows)
    if lab.value("SELECT to_regclass('singles_model')") is None:
        stage.database.fit(stage.work, lab.db, "singles_model", {"seed": 1})
    stage.database.forget_what_is_kept()
    lab.close()
    stage.settle()
    seconds: list[float] = []
    with stage.meter() as meter:
        for row in range(rows):
            began = time.monotonic()
            with contextlib.closing(lab.connect()) as session:
                run(session, "BEGIN")
                run(session, f"CREATE TEMP TABLE one AS SELECT id, x FROM singles WHERE id = {row}")
                columns = "'one', 'id', 'x', 'answer', 'response'"
                run(session, f"SELECT madlib.madlib_keras_predict('singles_model', {columns}, mst_key => 1)")
                ((found, _),) = run(session, "SELECT id, prob FROM answer")
                assert found == row
            seconds.append(time.monotonic() - began)
    first, *others = seconds
    yield Measured("ours", meter.taken, first, more={"rows": len(others), "milliseconds": 1000 * median(others)})


SINGLE: dict[str, Contender] = {
    "ours": singles,
    "http": script("FastAPI and uvicorn", "http_server", f"--rows={SINGLES}", needs="fastapi"),
}


# --- with little memory ----------------------------------------------------------------------------------

LITTLE = 1000  # megabytes: enough for the trainers and about half of the rows


def bounded(name: str, *arguments: str) -> Contender:
    """Run on a server of its own (bounded.py).  The start of the server and the loading of rows are not counted."""

    def contend(stage: Stage) -> Iterator[Measured]:
        if os.geteuid() != 0 or not shutil.which("unshare") or not os.access(GROUPS, os.W_OK):
            raise Skipped(f"without {name}: only root can bound a server's memory, where there are control groups")
        command = [sys.executable, "-m", "tests.bench.bounded", str(stage.folder), str(stage.work.rows), *arguments]
        call(["unshare", "--mount", *command])
        found = json.loads((stage.folder / "result.json").read_text())
        yield Measured(name, Taken(**found["taken"]), found["start"], found["results"], found["more"])

    return contend


BOUNDED: dict[str, Contender] = {
    "ours": bounded("ours, all rows cached", "tensorflow"),
    "little": bounded(f"ours, {LITTLE} MB for all", "tensorflow", str(LITTLE)),
    "jax": bounded("ours, JAX, all rows cached", "jax"),
    "little-jax": bounded(f"ours, JAX, {LITTLE} MB for all", "jax", str(LITTLE)),
}
