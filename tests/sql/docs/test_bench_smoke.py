"""The benchmark suite measures what it claims to measure.  No test asserts a speed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.bench.page import updated
from tests.bench.results import Unfit, merged

CLONE = Path(__file__).resolve().parents[3]


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.bench", *arguments]
    path = {**os.environ, "PYTHONPATH": f"{CLONE}:{CLONE / 'plpy'}"}
    return subprocess.run(command, cwd=CLONE, env=path, capture_output=True, text=True, timeout=600)


def measured(results: Path) -> dict[str, dict[str, Any]]:
    (file,) = results.glob("*.jsonl")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert lines[0]["machine"]["processors"] > 0
    return {line["contender"]: line for line in lines[1:]}


@pytest.mark.tensorflow
@pytest.mark.throw_away
def test_a_small_work_from_end_to_end(tmp_path: Path) -> None:
    tiny = ["--rows", "500", "--configurations", "3", "--epochs", "2"]
    done = bench(
        "--works", "W1", "--contenders", "ours,loop-shared", "--repeats", "1", "--results", str(tmp_path), *tiny
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = measured(tmp_path)
    assert set(found) == {"ours", "ours, second call", "(b2) bare loop, traced once"}
    for name, line in found.items():
        assert 0 < line["start"] < line["taken"]["wall"], name
        # Two processes with TensorFlow, whatever their parents are.
        assert line["taken"]["memory"] > 200 << 20, name
        assert len(line["results"]) == 3 and all(0 < result["loss"] < 10 for result in line["results"]), name
    assert found["ours"]["taken"]["cpu"] > 1, "the trainers' CPU time is counted, though they have ended"
    assert found["(b2) bare loop, traced once"]["taken"]["cpu"] > 1
    assert found["ours"]["more"]["stored"]["packed"] > 500 * 64 * 4
    assert found["ours"]["more"]["profile"]["training"] > 0
    assert "| ours " in done.stdout and "same work" in done.stdout

    (file,) = tmp_path.glob("*.json")
    results = json.loads(file.read_text())
    assert (
        results["versions"]["PostgreSQL"] and results["versions"]["Keras"] and len(results["commit"] or "") in (0, 40)
    )
    walls = {one["contender"]: one["taken"]["wall"] for one in results["works"]["W1"]["measured"][0]}
    (ratio,) = results["works"]["W1"]["ratios"]["ours"]["(b2) bare loop, traced once"]["wall"]
    assert ratio == pytest.approx(walls["(b2) bare loop, traced once"] / walls["ours"], rel=0.01)
    page = updated(
        "<!-- bench W1 -->\n<!-- end --> <!-- bench W2 -->as it was<!-- end -->", {**results, "commit": "0" * 40}
    )
    assert "| cerebro_db, second call " in page and "<!-- bench W2 -->as it was<!-- end -->" in page
    with pytest.raises(Unfit):  # a smaller work than the page names
        merged([file])


@pytest.mark.tensorflow
@pytest.mark.throw_away
@pytest.mark.thorough  # tests/sql/runs/test_reuse.py has what it measures, and the test above how
def test_frozen_beginnings_and_rows_that_arrive(tmp_path: Path) -> None:
    contenders = {"ours-all": {"ours, all", "ours, all, second call"}, "append-all": {"ours, added rows, all"},
                  "by-hand": {"(c) Keras, features stored by hand"}}  # fmt: skip
    for work, named in (("reuse_digits", ["ours-all", "by-hand"]), ("reuse_arriving", ["append-all"])):
        tiny = ["--rows", "200", "--configurations", "2", "--epochs", "1", "--results", str(tmp_path / work)]
        done = bench("--works", work, "--contenders", ",".join(named), "--repeats", "1", *tiny)
        assert done.returncode == 0, done.stderr[-3000:]
        found = measured(tmp_path / work)
        assert set(found) == set.union(*(contenders[one] for one in named))
        for name, line in found.items():
            assert len(line["results"]) == 2 and all(0 < one["loss"] < 5 for one in line["results"]), name


@pytest.mark.throw_away
@pytest.mark.thorough  # the first test has how all works are measured
def test_rows_with_mixed_columns_are_predicted_by_all_contenders(tmp_path: Path) -> None:
    done = bench("--works", "predict_mixed", "--repeats", "1", "--results", str(tmp_path), "--rows", "1500")
    assert done.returncode == 0, done.stderr[-3000:]
    found = {name: line["more"]["answered"] for name, line in measured(tmp_path).items()}
    assert {name: set(seconds) for name, seconds in found.items()} == {
        "ours: cerebro.predict": {"first", "one", "thousand", "all"},
        "ours: madlib_keras_predict": {"all"},
        "Keras, prepared in pandas": {"first", "one", "thousand", "all", "in memory"},
    }
    assert "| seconds for " in done.stdout


def test_who_is_unknown_is_refused() -> None:
    done = bench("--contenders", "horovod")
    assert done.returncode == 2
    assert "there is no 'horovod'; there are ours, " in done.stderr


UNHEEDED = """
import signal, subprocess, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
burn = "import time; began = time.process_time()\\nwhile time.process_time() - began < 1: pass\\ntime.sleep(0.5)"
child = subprocess.Popen([sys.executable, "-c", burn], stdin=subprocess.PIPE)
if sys.argv[1] == "wait":
    child.wait()
"""


@pytest.mark.parametrize("then", ["wait", "leave"])
def test_a_child_whose_end_its_parent_ignores_is_metered(then: str) -> None:
    """As Ray's children.  The kernel adds their time to no process.  A child whose parent ends first counts once."""
    program = "import subprocess, sys\nfrom tests.bench import meter\nmeter.adopt_orphans()\nwith meter.Meter() as m:\n"
    program += f"    subprocess.run([sys.executable, '-c', {UNHEEDED!r}, {then!r}])\nprint(m.taken.cpu)"
    done = subprocess.run([sys.executable, "-c", program], cwd=CLONE, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert 0.95 < float(done.stdout) < 1.9, "its second, once"
