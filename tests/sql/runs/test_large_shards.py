"""A model that is larger than its trainer's limit: trained, evaluated, used and stored, and no process holds it whole.

The state has 240 MB, and the limit is set so that it does not fit.  CEREBRO_BIG=1 makes it 1.2 GB in trainers of
600 MB, which takes some minutes and 12 GB of disk.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg2
import pytest
from psycopg2 import errors

from tests.conftest import ENGINE
from tests.sql.lab import Lab, eventually, layer, sequential
from tests.sql.memory import Peaks, compiled, model_of, proportional
from tests.sql.runs.test_recovery import Caller, the_run
from tests.thorough import TIMES

pytestmark = [
    pytest.mark.throw_away,
    pytest.mark.same_machine,
    pytest.mark.skipif(ENGINE != "tensorflow", reason="only TensorFlow trains models that are cut"),
]
MB = 1 << 20
BIG = bool(os.environ.get("CEREBRO_BIG"))
STATE, LIMIT = (1200 * MB, 600) if BIG else (240 * MB, 480)  # bytes, and megabytes of a trainer
BACKEND = 300 * MB  # the memory of a session: shared buffers (128 MB), the interpreter, copies of a chunk
PIECES = 110 * MB  # of a client that reads weights in pieces of 16 MB, which come as hexadecimal text
OPTIONS = {"deterministic": True, "seed": 6, "engine": "tensorflow"}


@pytest.fixture(scope="module")
def place(lab: Lab, tmp_path_factory: Any) -> Iterator[Lab]:
    if BIG and shutil.disk_usage(tmp_path_factory.getbasetemp()).free < 20 * STATE:
        pytest.skip("not enough disk")
    lab.iris(segments=2)
    arch = lab.architecture(model_of(STATE, depth=24))
    lab.selection("mst", [(arch, compiled("Adam", 0.0001), "batch_size=64, epochs=1")])
    lab("SELECT cerebro.set_limits(NULL, max_trainer_mb => %s)", LIMIT)
    try:
        yield lab
    finally:
        lab("DELETE FROM cerebro.role_limit")


def fit(lab: Lab, output: str, **more: Any) -> int:
    options = json.dumps({**OPTIONS, **more.pop("options", {})})
    named = "".join(f", {name} => %s" for name in more)
    statement = f"SELECT cerebro.fit('train', %s, 'mst', epochs => 1, options => %s{named})"
    return int(lab.value(statement, output, options, *more.values()))


def test_without_shards_it_is_refused(place: Lab) -> None:
    with pytest.raises(psycopg2.Error) as caught:
        fit(place, "whole", options={"shard": "never"})
    assert '"shard":' in f"{caught.value} {caught.value.diag.message_hint}"
    assert f"may use {LIMIT} MB" in str(caught.value)


def test_no_process_holds_the_whole_state(place: Lab, tmp_path: Path, record_property: Any) -> None:
    lab = place
    with Peaks(lab) as peaks:
        peaks.begin("fit")
        run = fit(lab, "large", validation_table="val")
        peaks.begin("predict")
        assert len(lab("SELECT * FROM predict('large', 'SELECT * FROM garden', 'id')")) == 30
        peaks.begin("predict into")
        lab("SELECT predict_into('large', 'garden', 'said', 'id')")
        peaks.begin("evaluate")
        lab("SELECT * FROM evaluate('large', 'SELECT * FROM garden')")
        peaks.begin("materialize")
        lab("SELECT materialize(%s, 'again')", run)
        if TIMES >= 5:  # it reads the state as the visit of another segment does
            peaks.begin("warm start")
            fit(lab, "large", warm_start=True)
        peaks.begin("export")
        client = exported(lab, tmp_path, "cerebro")
        peaks.begin("end")
    took = [f"{phase} {end - begun:.0f} s" for (phase, begun), (_, end) in zip(peaks.phases, peaks.phases[1:])]
    ((size, weights),) = lab("SELECT max(state_bytes), max(weights_bytes) FROM hop WHERE run = %s", run)
    assert size >= STATE
    (shards,) = lab("SELECT (detail ->> 'shards')::int FROM event WHERE run = %s AND event = 'built'", run)[0]
    assert shards > 1
    told = (
        f"state {size >> 20} MB, weights {weights >> 20} MB, {shards} shards, client {client >> 20} MB\n"
        + f"{', '.join(took)}\n"
        + "\n".join(f"{phase}: {sort} {peak >> 20} MB" for (phase, sort), peak in sorted(peaks.found.items()))
    )
    record_property("memory", told)
    print(told)
    print(*where_the_time_went(lab, run), sep="\n")
    assert peaks.of("trainer") < LIMIT * MB, told
    assert max(peaks.of("caller"), peaks.of("worker"), client) < BACKEND, told


@pytest.fixture(scope="module")
def both(place: Lab) -> Lab:
    """The large model, and a small one."""
    if not place.value("SELECT to_regclass('large') IS NOT NULL"):
        fit(place, "large", validation_table="val")
    small = place.architecture(sequential([4], layer("Dense", "out", units=3, activation="softmax")))
    place.selection("few", [(small, compiled("Adam"), "batch_size=64, epochs=1")])
    place.value("SELECT cerebro.fit('train', 'small', 'few', epochs => 1)")
    return place


@pytest.mark.thorough  # tests/client/test_large_files.py writes files of both, and the test above a file of ours
@pytest.mark.parametrize("ending", ["keras", "safetensors"])
def test_files_are_written_without_the_whole_model(both: Lab, tmp_path: Path, ending: str) -> None:
    """Beside Keras with TensorFlow, which the export of a small model takes, too, and pieces of 16 MB."""
    framework = exported(both, tmp_path, ending, "small")
    ((weights,),) = both("SELECT sum(octet_length(payload)) FROM large_weights")
    more = exported(both, tmp_path, ending) - framework
    told = f"{ending}: {more >> 20} MB besides {framework >> 20} MB, and the weights have {weights >> 20} MB"
    print(told)
    assert more < max(PIECES, weights // 4), told


def test_a_cancel_in_the_middle_of_a_large_batch(place: Lab) -> None:
    """Between two shards: the rest of the batch, which takes seconds, is not waited for."""
    caller = Caller(
        place, "SELECT cerebro.fit('train', 'ended', 'mst', epochs => 50, options => %s)", json.dumps(OPTIONS)
    )
    run = the_run(place, "ended")
    eventually(lambda: place.value("SELECT count(*) FROM attempt WHERE run = %s", run) > 0, 300, "a visit has begun")
    time.sleep(1.0)  # to within a batch
    place("SELECT pg_cancel_backend(%s)", caller.pid)
    before = time.monotonic()
    caller.done(within=30)
    took = time.monotonic() - before
    assert took < (3.0 if BIG else 1.5), took
    assert isinstance(caller.error, errors.QueryCanceled)
    place.require_no_orphans()
    assert place.status(run) == "cancelled"
    place("SELECT forget(%s)", run)


def where_the_time_went(lab: Lab, run: int) -> Iterator[str]:
    """The hops of a run, in seconds since its start."""
    (began,) = lab("SELECT min(at) FROM event WHERE run = %s", run)[0]
    for activity, segment, begun, done, parts in lab(
        "SELECT activity, segment, started_at, finished_at, (SELECT jsonb_object_agg(key, round(value::numeric, 1))"
        " FROM jsonb_each_text(to_jsonb(t)) WHERE key LIKE 'seconds_%%' AND value::float >= 0.1)"
        " FROM hop_timeline t WHERE run = %s ORDER BY started_at", run
    ):  # fmt: skip
        first, last = ((moment - began).total_seconds() for moment in (begun, done))
        yield f"{activity} on {segment}: {first:.0f} to {last:.0f} s, {parts}"


def exported(lab: Lab, folder: Path, ending: str, model: str = "large") -> int:
    """The largest memory of the client that writes a file of the model."""
    file = folder / f"{model}.{ending}"
    code = (
        "import sys; from cerebro_db.client.cerebro import Cerebro\n"
        "with Cerebro(sys.argv[1]) as cerebro: cerebro.export(sys.argv[2], sys.argv[3])"
    )
    client = subprocess.Popen([sys.executable, "-c", code, lab.dsn, f"{lab.schema}.{model}", str(file)])
    most = 0
    while client.poll() is None:
        most = max(most, proportional(client.pid))
        time.sleep(0.05)  # looking at it holds a lock that the client needs to get memory
    assert client.returncode == 0 and (model == "small" or file.stat().st_size > STATE // 4)
    file.unlink()
    return most
