"""What the table of versions is made of: tests/matrix.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import matrix

REPORT = """<testsuites><testsuite>
<testcase classname="tests.sql.runs.test_fit" name="test_one" />
<testcase classname="tests.sql.runs.test_fit" name="test_two"><failure message="assert 1 == 2&#10;more" /></testcase>
<testcase classname="tests.core.test_sql.TestIt" name="test_three"><skipped message="no GPU here" /></testcase>
<testcase classname="tests.core.test_sql" name="test_four" />
<testcase classname="tests.core.test_sql" name="test_four"><error message="at the end" /></testcase>
</testsuite></testsuites>"""


def result(server: str, **more: object) -> matrix.Json:
    return {
        "commit": "abcdef0123",
        "uncommitted": False,
        "date": "2026-01-02",
        "tests": [],
        "server": server,
        "server_python": "3.11.2",
        "system": "Debian 12",
        "trainer": {"Python": "3.11.2", "NumPy": "2.0", "JAX": "0.10"},
        **matrix.counted(matrix.read(REPORT)),
        **more,
    }


def test_outcomes_are_counted_by_suite() -> None:
    counted = matrix.counted(matrix.read(REPORT))
    assert counted["suites"] == {
        "sql/runs": {"passed": 1, "failed": 1, "skipped": 0},
        "core": {"passed": 0, "failed": 1, "skipped": 1},
    }
    assert counted["failures"] == {
        "tests.core.test_sql::test_four": "at the end",
        "tests.sql.runs.test_fit::test_two": "assert 1 == 2",
    }
    assert counted["skips"] == {"no GPU here": 1}


def test_a_new_result_replaces_that_of_the_same_server() -> None:
    old = [result("PostgreSQL 9.6"), result("Greenplum 7.0.0"), result("PostgreSQL 15.20")]
    again = result("PostgreSQL 15.20", date="2026-02-03")
    found = matrix.merged(old, [again])
    assert [one["server"] for one in found] == ["PostgreSQL 9.6", "PostgreSQL 15.20", "Greenplum 7.0.0"]
    assert found[1]["date"] == "2026-02-03"
    without = result("PostgreSQL 15.20", trainer={"Python": "3.14.0", "JAX": "0.10"})
    assert len(matrix.merged(found, [without])) == 3
    with_tensorflow = result("PostgreSQL 15.20", trainer={"TensorFlow": "2.21.0", "JAX": "0.10"})
    assert len(matrix.merged(found, [with_tensorflow])) == 4


def test_a_part_of_the_tests_is_not_for_the_page(tmp_path: Path) -> None:
    part = tmp_path / "part.json"
    for tests in (["tests/core/test_matrix.py"], ["tests/sql", "-k", "fit"]):
        part.write_text(json.dumps(result("PostgreSQL 15.20", tests=tests)))
        with pytest.raises(SystemExit, match="only parts of suites ran: PostgreSQL 15.20"):
            matrix.main(["page", str(part)])


def test_whole_suites_are_for_the_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(matrix, "RESULTS", tmp_path / "versions.json")
    monkeypatch.setattr(matrix, "PAGE", tmp_path / "versions.md")
    matrix.PAGE.write_text("<!-- matrix -->\nold\n<!-- matrix end -->\n")
    whole = tmp_path / "whole.json"
    whole.write_text(json.dumps(result("PostgreSQL 15.20", tests=["tests/sql", "tests/embedded/", "--durations=30"])))
    matrix.main(["page", str(whole)])
    assert "| PostgreSQL 15.20 |" in matrix.PAGE.read_text()


def test_the_table_says_what_was_skipped_and_what_failed() -> None:
    frame = "before\n<!-- matrix -->\nold\n<!-- matrix end -->\nafter\n"
    why = {"tests.sql.runs.test_fit::test_two": "It counted wrongly, until 1a2b3c."}
    page = matrix.written(frame, [result("PostgreSQL 15.20")], why)
    assert page.startswith("before\n<!-- matrix -->\n| server |") and page.endswith("\n<!-- matrix end -->\nafter\n")
    assert "| 0, 1 failed, 1 skipped | 1, 1 failed | abcdef0, 2026-01-02 |" in page
    assert "Python 3.11.2, JAX 0.10 |" in page and "NumPy" not in page
    assert "- no GPU here (PostgreSQL 15.20: 1)" in page
    assert "- PostgreSQL 15.20: `tests.sql.runs.test_fit::test_two`: assert 1 == 2. **Why:** It counted wrongly" in page
    assert "`tests.core.test_sql::test_four`: at the end. **Why:** not known yet" in page


def test_cases_of_one_test_are_explained_together() -> None:
    failures = {"tests.sql.a::test[one]": "assert 1", "tests.sql.a::test[two]": "assert 2"}
    explained = {"tests.sql.a::test": "Rows have no order."}
    (line,) = matrix.failed([result("Greenplum 7.0.0", failures=failures)], explained)
    assert line.endswith("`tests.sql.a::test`: [one] assert 1; [two] assert 2. **Why:** Rows have no order.")


def test_the_page_is_as_its_results() -> None:
    page = matrix.PAGE.read_text(encoding="utf-8")
    assert matrix.load(), "no server has results"
    assert matrix.written(page, matrix.load(), matrix.explanations()) == page


def test_each_failure_is_explained() -> None:
    tests = {case.partition("[")[0] for one in matrix.load() for case in one["failures"]}
    assert set(matrix.explanations()) == tests


def test_the_suites_of_a_server_may_come_one_by_one() -> None:
    """But those of another commit are another row."""
    runs, core = ({"suites": {name: {"passed": 1, "failed": 0, "skipped": 1}}} for name in ("sql/runs", "core"))
    first = result("Greenplum 7.0.0", tests=["tests/sql/runs"], **runs)
    (row,) = matrix.merged([first], [result("Greenplum 7.0.0", tests=["tests/core"], **core)])
    assert set(row["suites"]) == {"sql/runs", "core"} and row["tests"] == ["tests/core", "tests/sql/runs"]
    assert row["skips"] == {"no GPU here": 2}
    (row,) = matrix.merged([first], [result("Greenplum 7.0.0", commit="fedcba", **core)])
    assert set(row["suites"]) == {"core"}
    (row,) = matrix.merged([first], [result("Greenplum 7.0.0", **runs)])
    assert row["tests"] == [] and row["skips"] == {"no GPU here": 1}
