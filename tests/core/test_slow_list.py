"""Which slow files run: a part of them, the same one in each process and at each repetition."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests import slow
from tests.conftest import CLONE

REPORT = """<testsuites><testsuite>
<testcase classname="tests.sql.runs.test_fit" name="test_many[a-1]" time="5.5"/>
<testcase classname="tests.sql.runs.test_fit" name="test_many[b.c::d]" time="6"/>
<testcase classname="tests.sql.data.test_pack" name="test_quick" time="9.9"/>
<testcase classname="tests.nn.test_torch.TestTorch" name="test_inherited" time="40"/>
<testcase classname="" name="tests.sql.broken" time="0"/>
</testsuite></testsuites>"""


def test_every_listed_file_is_there() -> None:
    """Else it was renamed: rename it in tests/slow.json, too."""
    assert [file for file in slow.known() if not (CLONE / file).exists()] == []


def test_no_two_files_without_a_package_have_one_name() -> None:
    """A run of all tests would collect only the first."""
    files = [path for path in (CLONE / "tests").rglob("test_*.py") if not (path.parent / "__init__.py").exists()]
    assert [name for name, count in Counter(path.name for path in files).items() if count > 1] == []


def test_each_slow_file_runs_in_one_part() -> None:
    listed = slow.known()
    parts = slow.parts(listed)
    assert sorted(file for part in parts for file in part) == sorted(listed)
    seconds = [sum(listed[file] for file in part) for part in parts]
    assert max(seconds) < 1.1 * min(seconds)
    for number in (3, 3 + 7 * slow.PARTS):
        assert slow.left_out(number) == listed.keys() - parts[3]


def test_the_list_is_made_from_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "report.xml").write_text(REPORT)
    monkeypatch.setattr(slow, "LIST", CLONE / "tests" / "slow.json")
    with pytest.raises(SystemExit, match="the report is not of all tests: it lacks tests/"):
        slow.main(str(tmp_path / "report.xml"))
    (tmp_path / "tests").mkdir()
    monkeypatch.setattr(slow, "LIST", tmp_path / "tests" / "slow.json")
    slow.LIST.write_text('{"tests/sql/gone.py": 100.0}')
    slow.main(str(tmp_path / "report.xml"))
    assert slow.known() == {"tests/nn/test_torch.py": 40.0, "tests/sql/runs/test_fit.py": 11.5}


def test_the_option_leaves_the_others_out() -> None:
    slowest, quick = max(slow.known().items(), key=lambda item: item[1])[0], "tests/core/test_sql.py"
    collected = []
    for part in range(slow.PARTS):
        command = [sys.executable, "-m", "pytest", "--collect-only", f"--part={part}", slowest, quick]
        done = subprocess.run(command, cwd=CLONE, capture_output=True, text=True, check=True)
        collected.append({line.partition("::")[0] for line in done.stdout.splitlines() if "::" in line})
    assert sorted(map(sorted, collected)) == [[quick]] * (slow.PARTS - 1) + [sorted([slowest, quick])]
