"""The examples of docs/search.md and docs/steer.md run as printed, on the table iris that the README names."""

from __future__ import annotations

import json
import shlex

import pytest
from typer.testing import CliRunner

from cerebro_db.client import cli, connect
from cerebro_db.embedded.cluster import IRIS
from tests.sql.lab import Lab, eventually, verb
from tests.sql.pages import blocks, statements
from tests.thorough import TIMES


@pytest.fixture(scope="module")
def irises(lab: Lab) -> Lab:
    lab(IRIS.read_text().replace("public.", ""))
    return lab


def test_the_page_about_search(irises: Lab) -> None:
    first, add, compare, freeze = blocks("docs/search.md", "sql")
    search, board = statements(first)
    assert search.count(" 64") == 1
    number = 64 if TIMES >= 5 else 30  # of fewer, none may be trained to the end
    run = irises.value(search.replace(" 64", f" {number}"))
    shown = irises(board.replace("12", str(run)))
    assert len(shown) == number and any(row[2] == "finished" for row in shown)
    assert shown[0][1] > 0.8 and all(row[3] is not None for row in shown), "every model has reached a rung"
    irises(*statements(add))
    search, listed, drop = statements(compare)
    run = irises.value(search)
    tried = irises("SELECT chosen, status FROM leaderboard WHERE run = %s", run)
    assert {status for _, status in tried} == {"finished", "stopped"}
    keys = {chosen["architecture"]: set(chosen) for chosen, _ in tried}
    assert keys == {
        "tower": {"architecture", "depth", "width", "dropout"}, "mlp": {"architecture", "dropout"},
    }, keys  # fmt: skip
    assert "tower" in [row[0] for row in irises(listed)]
    # A schedule, of which the page shows only the part of the space.
    (schedule,) = blocks("docs/search.md", "json")
    tower = {"architecture": "tower", "depth": 1, "width": 16, "dropout": 0.1}
    run = irises.value(
        *verb("search", "iris_search_packed", "scheduled", {**tower, **json.loads(schedule)}, epochs=1,
              method="random", max_configurations=3)
    )  # fmt: skip
    assert {status for (status,) in irises("SELECT status FROM leaderboard WHERE run = %s", run)} == {"finished"}
    irises(drop)
    assert irises(listed) == []
    *adding, search, drop = statements(freeze)
    for statement in adding:
        irises(statement)
    run = irises.value(search)
    frozen = irises("SELECT parameters -> 'frozen', chosen -> 'frozen' FROM leaderboard WHERE run = %s", run)
    assert len(frozen) == 6 and all(one == other and one in (0, 2, -1) for one, other in frozen)
    assert irises("SELECT DISTINCT initial FROM model WHERE run = %s", run) == [("weights",)]
    irises(drop)


def test_the_page_about_steering(server: str, irises: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    fit, steps, views, rule = blocks("docs/steer.md", "sql")
    run = irises.value(*statements(fit))
    eventually(lambda: irises.value("SELECT count(*) FROM hop WHERE run = %s", run) > 16, 60, "it trains")
    for statement in statements(steps):
        request = irises.value(statement.replace("12", str(run), 1))
        status = "SELECT status FROM requests WHERE request_id = %s"
        eventually(lambda: irises.value(status, request) != "waiting", 60, statement)  # noqa: B023
        assert irises.value(status, request) == "done", statement
    for view in statements(views):
        assert irises(view.replace("12", str(run)))
    commands, *_ = blocks("docs/steer.md", "sh")
    for line in commands.splitlines():
        arguments = shlex.split(line.replace("12", str(run), 1), comments=True)[1:]
        done = CliRunner().invoke(cli.app, arguments, env={"CEREBRO_DSN": server})
        assert done.exit_code == 0 and done.output.startswith("Request "), (line, done.output)
        eventually(lambda: not irises("SELECT 1 FROM requests WHERE run = %s AND status = 'waiting'", run), 60, line)
    (code,) = blocks("docs/steer.md", "python")
    with connect(server) as cerebro:
        exec(code, {"cerebro": cerebro, "run": run})
    asked = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert {"stop", "clone", "add", "extend", "budget"} <= set(asked) and len(asked) > 12
    irises("SELECT cancel(%s)", run)
    ruled = irises.value(*statements(rule))
    stopped = irises("SELECT reason FROM leaderboard WHERE run = %s AND stopped_by = 'rule'", ruled)
    assert stopped and all(reason.startswith("worse than the median of epoch ") for (reason,) in stopped)
