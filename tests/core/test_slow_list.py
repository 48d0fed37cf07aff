"""Which slow tests run: a part of them, the same one for each process and each repetition."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import slow
from tests.conftest import CLONE

REPORT = """<testsuites><testsuite>
<testcase classname="tests.sql.runs.test_fit" name="test_many[a-1]" time="1.5"/>
<testcase classname="tests.sql.runs.test_fit" name="test_many[b.c::d]" time="1.5"/>
<testcase classname="tests.sql.runs.test_fit" name="test_quick" time="1.9"/>
<testcase classname="tests.nn.test_torch.TestTorch" name="test_inherited" time="40"/>
</testsuite></testsuites>"""


def test_every_listed_test_is_there() -> None:
    """Else it was renamed: write the list again (tests/slow.py), or rename it there, too."""
    gone = []
    for name in slow.known():
        file, *_, function = name.split("::")
        path = CLONE / file
        inherited = "Test" in name  # its class may be in another file
        if not path.exists() or not inherited and f"def {function}(" not in path.read_text(encoding="utf-8"):
            gone.append(name)
    assert gone == []


def test_each_slow_test_runs_in_one_part() -> None:
    families = list(slow.known())
    tests = [f"{one}[{variant}]" for one in families for variant in ("a", "b", "c")]
    counts = [sum(one) for one in zip(*(slow.chosen(tests, part) for part in range(7, 7 + slow.PARTS)))]
    assert counts == [1] * len(tests)
    sizes = [sum(slow.chosen(tests, part)) for part in range(slow.PARTS)]
    assert max(sizes) < 1.5 * len(tests) / slow.PARTS
    assert slow.chosen(["tests/core/test_sql.py::test_none_of_the_list[x]"], 3) == [True]


def test_the_list_is_made_from_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "report.xml").write_text(REPORT)
    monkeypatch.setattr(slow, "LIST", tmp_path / "slow.json")
    slow.main(str(tmp_path / "report.xml"))
    many, inherited = "tests/sql/runs/test_fit.py::test_many", "tests/nn/test_torch.py::TestTorch::test_inherited"
    assert slow.known() == {inherited: 40.0, many: 3.0}
    tests = [f"{many}[a-1]", f"{inherited}[x::y]", "tests/sql/runs/test_fit.py::test_quick"]
    assert slow.seconds_by_file(tests) == {"tests/nn/test_torch.py": 40.0, "tests/sql/runs/test_fit.py": 3.0}


def test_the_option_leaves_the_others_out() -> None:
    """Over four parts, pytest collects each test of a slow file once, and the quick ones four times."""
    collected: list[str] = []
    for part in range(slow.PARTS):
        command = [
            sys.executable,
            "-m",
            "pytest",
            "--collect-only",
            f"--part={part}",
            "tests/core/test_orchestrator.py",
        ]
        done = subprocess.run(command, cwd=CLONE, capture_output=True, text=True, check=True)
        collected += [line for line in done.stdout.splitlines() if "::" in line]
    listed = slow.known()
    for test in set(collected):
        assert collected.count(test) == (1 if slow.family(test) in listed else slow.PARTS), test
    assert any(slow.family(test) in listed for test in collected)
