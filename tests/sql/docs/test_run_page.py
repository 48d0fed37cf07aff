"""The examples of docs/run.md run as printed: a run that is left, cancelled and resumed, and one that is steered."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
from typer.testing import CliRunner

from cerebro_db.client import cli, connect
from tests.sql.docs.task_pages import RUN, Shown, earlier
from tests.sql.lab import Lab, eventually
from tests.sql.pages import blocks, statements

START, LOOK, END, FIT, STEER, VIEWS, RULE = range(7)


@pytest.fixture(scope="module")
def there(lab: Lab) -> Lab:
    """With the tables of the page."""
    Shown(lab)
    for statement in earlier(("prepare",), ["cerebro.pack('people', 'people_packed',"]):
        lab(statement)
    return lab


def of_page(block: int, run: int | None = None) -> list[str]:
    code = blocks("docs/run.md", "sql")[block]
    return statements(code if run is None else RUN.sub(str(run), code))


def commands(server: str, there: Lab, block: int, run: int) -> list[str]:
    """What each command of a block prints. A request of a command is carried out before the next command."""
    found = []
    waiting = "SELECT 1 FROM requests WHERE run = %s AND status = 'waiting'"
    for line in blocks("docs/run.md", "sh")[block].splitlines():
        arguments = shlex.split(line.replace("12", str(run), 1), comments=True)[1:]
        done = CliRunner().invoke(cli.app, arguments, env={"CEREBRO_DSN": server})
        assert done.exit_code == 0, (line, done.output)
        found.append(done.output)
        eventually(lambda: not there(waiting, run), 60, line)
    return found


def test_a_run_is_left_cancelled_resumed_and_looked_at(
    server: str, there: Lab, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fit, progress = of_page(START)
    run = there.value(fit)
    assert there(RUN.sub(str(run), progress))[0][0] == "running"
    cancel, wait, status, resume, further = of_page(END, run)
    assert there.value(cancel) is True and there.value(wait) == "cancelled"
    assert there(status)[0][:2] == (run, "cancelled")
    for statement in (resume, further):
        there(statement)
    board, curve, times = (there(query) for query in of_page(LOOK, run))
    assert [row[0] for row in board] == [1, 2] and {row[3] for row in board} == {"finished"}
    assert len(curve) == 2 * 10 and times
    assert all(str(run) in told for told in commands(server, there, 0, run))
    monkeypatch.setenv("CEREBRO_DSN", server)
    names: dict[str, Any] = {}
    exec(RUN.sub(str(run), blocks("docs/run.md", "python")[0]), names)
    names["cerebro"].close()
    assert capsys.readouterr().out


def test_a_run_is_steered(server: str, there: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    run = there.value(*of_page(FIT))
    eventually(lambda: there.value("SELECT count(*) FROM hop WHERE run = %s", run) > 16, 60, "it trains")
    for statement in of_page(STEER, run):
        request = there.value(statement)
        status = "SELECT status FROM requests WHERE request_id = %s"
        eventually(lambda: there.value(status, request) != "waiting", 60, statement)  # noqa: B023
        assert there.value(status, request) == "done", statement
    for view in of_page(VIEWS, run):
        assert there(view)
    for told in commands(server, there, 1, run):
        assert told.startswith("Request ")
    with connect(server) as cerebro:
        exec(blocks("docs/run.md", "python")[1], {"cerebro": cerebro, "run": run})
    asked = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert {"stop", "clone", "add", "extend", "budget"} <= set(asked) and len(asked) > 12
    there("SELECT cancel(%s)", run)
    ruled = there.value(*of_page(RULE))
    stopped = there("SELECT reason FROM leaderboard WHERE run = %s AND stopped_by = 'rule'", ruled)
    assert stopped and all(reason.startswith("worse than the median of epoch ") for (reason,) in stopped)
