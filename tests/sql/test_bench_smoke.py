"""The benchmark suite measures what it says it measures; how fast anything is, no test says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

CLONE = Path(__file__).resolve().parents[2]


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.bench", *arguments]
    path = {**os.environ, "PYTHONPATH": f"{CLONE}:{CLONE / 'plpy'}"}
    return subprocess.run(command, cwd=CLONE, env=path, capture_output=True, text=True, timeout=600)


def measured(results: Path) -> dict[str, dict[str, Any]]:
    (file,) = results.glob("*.jsonl")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert lines[0]["machine"]["processors"] > 0
    return {line["contender"]: line for line in lines[1:]}


@pytest.mark.needs_cluster
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
        # Two processes with TensorFlow in each, wherever they descend from.
        assert line["taken"]["memory"] > 200 << 20, name
        assert len(line["results"]) == 3 and all(0 < result["loss"] < 10 for result in line["results"]), name
    assert found["ours"]["taken"]["cpu"] > 1, "the trainers' CPU time is counted, though they have ended"
    assert found["(b2) bare loop, traced once"]["taken"]["cpu"] > 1
    assert found["ours"]["more"]["stored"]["packed"] > 500 * 64 * 4
    assert found["ours"]["more"]["profile"]["training"] > 0
    assert "| ours " in done.stdout and "same work" in done.stdout


def test_who_is_unknown_is_refused() -> None:
    done = bench("--contenders", "horovod")
    assert done.returncode == 2
    assert "there is no 'horovod'; there are ours, " in done.stderr
