"""Every command but psql has --json: one document that a program can read, with the values of the views."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import typer
from small_run import Trained
from typer.testing import CliRunner

from cerebro_db.client import cli
from cerebro_db.client.commands.doctor import COLUMNS

UNKNOWN = 987654


def told(trained: Trained, *words: object, status: int = 0) -> Any:
    done = CliRunner().invoke(cli.app, [*map(str, words), "--json"], env={"CEREBRO_DSN": trained.dsn})
    assert done.exit_code == status, done.output
    lines = done.stdout.splitlines()
    return json.loads(lines[0]) if len(lines) == 1 else [json.loads(line) for line in lines]


def test_every_command_has_it() -> None:
    commands: Any = typer.main.get_command(cli.app)
    without = [
        name for name, one in commands.commands.items() if "--json" not in {o for p in one.params for o in p.opts}
    ]
    assert without == ["psql"]


def test_runs_and_their_details(trained: Trained) -> None:
    runs = told(trained, "runs", "--limit", 1)
    assert [run["run"] for run in runs] == [trained.cerebro.runs()[0].run]
    shown = told(trained, "show", trained.run)
    assert shown["runs"]["run"] == trained.run and shown["run_progress"]["percent"] == 100
    for name in ("leaderboard", "learning_curve", "hop_timeline", "run_time", "decisions", "requests"):
        assert len(shown[name]) == len(getattr(trained.cerebro, name)(trained.run)), name
    board = trained.cerebro.leaderboard(trained.run)
    assert [one["validation_loss"] for one in shown["leaderboard"]] == [one.validation_loss for one in board]
    assert told(trained, "watch", trained.run)["status"] == "finished"
    assert told(trained, "cancel", trained.run, status=1) == {
        "run": trained.run, "cancelled": False, "status": "finished",
    }  # fmt: skip


def test_errors_are_texts(trained: Trained) -> None:
    done = CliRunner().invoke(cli.app, ["show", str(UNKNOWN), "--json"], env={"CEREBRO_DSN": trained.dsn})
    assert done.exit_code == 1 and done.stdout == "" and f"There is no run {UNKNOWN}" in done.stderr


def test_a_run_is_cancelled_steered_and_resumed(trained: Trained, fresh_output: Callable[[], str]) -> None:
    handle = trained.cerebro.fit("packed", fresh_output(), "mst", epochs=100_000, wait=False)
    for progress in handle.follow(0.1):
        if progress.hops_done:
            break
    asked = told(trained, "stop", handle.run, 1)
    assert asked == {"run": handle.run, "request": asked["request"], "status": "running"}
    assert told(trained, "cancel", handle.run) == {"run": handle.run, "cancelled": True, "status": "cancelled"}
    asked = told(trained, "extend", handle.run, 100_001)
    assert asked["status"] == "cancelled" and asked["request"] > 0


def test_watching_has_the_model_tables_made(trained: Trained, fresh_output: Callable[[], str]) -> None:
    output = fresh_output()
    handle = trained.cerebro.fit("packed", output, "alone", epochs=1, wait=False)
    told(trained, "watch", handle.run)
    assert trained.cerebro.rows("SELECT to_regclass(%s) IS NOT NULL", (output,)) == [(True,)]


def test_models(trained: Trained, fresh_output: Callable[[], str]) -> None:
    (listed,) = [one for one in told(trained, "models") if one["run"] == trained.run]
    name, query = listed["model_table"], "SELECT * FROM client_tests.iris"
    evaluated = told(trained, "evaluate", name, query)
    assert evaluated == trained.cerebro.evaluate(name, query) and evaluated["rows"] == 150
    predicted = told(trained, "predict", name, query, "--key", "id")
    assert predicted == trained.cerebro.predict(name, query, "id").dicts()
    output = f"client_tests.{fresh_output()}"
    assert told(trained, "predict", name, "client_tests.iris", "--into", output) == {"table": output, "rows": 150}


def test_the_doctor(trained: Trained) -> None:
    found = told(trained, "doctor")
    assert {tuple(row) for row in found} == {COLUMNS} and {"ok"} <= {row["status"] for row in found}


@pytest.mark.parametrize("command", ["dsn", "status", "down", "destroy"])
def test_a_cluster_that_does_not_exist(
    command: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CEREBRO_HOME", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["cerebro", command, "--name", "none", "--json"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 1 and capsys.readouterr().out == ""
