"""The views of the schema cerebro_optuna, read by Optuna itself and by optuna-dashboard."""

from __future__ import annotations

import contextlib
import json
import secrets
import shutil
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import psycopg2
import pytest
from psycopg2.extensions import parse_dsn
from small_run import NAME, Trained

from tests.sql.lab import eventually

optuna = pytest.importorskip("optuna")
READ_ONLY = {"skip_compatibility_check": True, "skip_table_creation": True}  # as optuna-dashboard opens a storage


def url(dsn: str, **instead: str) -> str:
    """The address that a user gives to optuna-dashboard."""
    parts = {**parse_dsn(dsn), **instead}
    login = quote(parts["user"]) + (f":{quote(parts['password'])}" if "password" in parts else "")
    where = "&".join(f"{name}={quote(parts[name], safe='')}" for name in ("host", "port") if name in parts)
    return f"postgresql+psycopg2://{login}@/{parts['dbname']}?{where}&options=-csearch_path%3Dcerebro_optuna"


@pytest.fixture
def storage(trained: Trained) -> Any:
    return optuna.storages.RDBStorage(url(trained.dsn), **READ_ONLY)


def study_of(storage: Any, run: int) -> Any:
    (found,) = [one for one in storage.get_all_studies() if one._study_id == run]
    return found


def test_a_study_is_what_the_views_say(trained: Trained, storage: Any) -> None:
    cerebro, study = trained.cerebro, study_of(storage, trained.run)
    assert study.study_name == f"run {trained.run}: {NAME}" and study.directions == [
        optuna.study.StudyDirection.MINIMIZE
    ]
    assert study.user_attrs["status"] == "finished" and study.system_attrs == {"study:metric_names": ["val_loss"]}
    trials = storage.get_all_trials(trained.run)
    entries = sorted(cerebro.leaderboard(trained.run), key=lambda one: one.model)
    points = {(one.model, one.epoch): one.validation_loss for one in cerebro.learning_curve(trained.run)}
    assert len(trials) == len(entries) == 3
    for number, (trial, entry) in enumerate(zip(trials, entries)):
        assert (trial.number, trial.value, trial.state.name) == (number, entry.objective_value, "COMPLETE")
        assert trial.params == {"learning_rate": entry.parameters["learning_rate"]}  # the others are equal
        assert trial.distributions["learning_rate"] == optuna.distributions.FloatDistribution(0.001, 0.1, log=True)
        assert trial.intermediate_values == {
            epoch: pytest.approx(value, rel=1e-8) for (model, epoch), value in points.items() if model == entry.model
        }
        assert trial.user_attrs["model"] == entry.model and trial.datetime_complete > trial.datetime_start
    assert storage.get_best_trial(trained.run).user_attrs["model"] == cerebro.leaderboard(trained.run)[0].model


def test_a_run_is_seen_as_it_goes_on(trained: Trained, storage: Any) -> None:
    small = {"mlp": {"layers": 1, "units": 8}, "resnet": {"blocks": 1, "units": 8}}
    configurations = [{"architecture": kind, "learning_rate": 0.01, **more} for kind, more in small.items()]
    configurations.append({"architecture": "mlp", "learning_rate": 1e30, **small["mlp"]})
    run = trained.cerebro.fit(
        "packed", "seen", configurations, epochs=100_000, validation_table="validation", evaluate_every=1, wait=False,
        objective="val_accuracy",
    )  # fmt: skip
    try:

        def trials() -> list[Any]:
            found = [one for one in storage.get_all_studies() if one._study_id == run.run]
            return storage.get_all_trials(run.run) if found else []

        eventually(lambda: any(len(one.intermediate_values) > 1 for one in trials()))
        found = trials()
        assert found[0].state.name in ("RUNNING", "WAITING") and found[0].values is None
        assert {one.params["architecture"] for one in found} == {"mlp", "resnet"}
        assert study_of(storage, run.run).directions == [optuna.study.StudyDirection.MAXIMIZE]
    finally:
        run.cancel()
        trained.cerebro.status_within(run, 60)
    states = [one.state.name for one in storage.get_all_trials(run.run)]
    assert states[:2] == ["COMPLETE", "COMPLETE"]  # they have a value, and the run has ended


def test_nothing_can_be_written(trained: Trained, storage: Any) -> None:
    for write in (
        lambda: storage.create_new_study([optuna.study.StudyDirection.MINIMIZE], "mine"),
        lambda: storage.set_study_user_attr(trained.run, "mine", 1),
        lambda: storage.delete_study(trained.run),
    ):
        with pytest.raises(optuna.exceptions.StorageInternalError):
            write()
    assert study_of(storage, trained.run).study_name.startswith(f"run {trained.run}")


@pytest.fixture
def role(trained: Trained) -> Iterator[str]:
    name, password = f"viewer_{secrets.token_hex(3)}", secrets.token_hex(8)
    with contextlib.closing(psycopg2.connect(trained.dsn)) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        cursor.execute(f"CREATE ROLE {name} LOGIN PASSWORD '{password}'")
        yield url(trained.dsn, user=name, password=password)
        cursor.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


@pytest.mark.throw_away
def test_each_viewer_sees_what_the_views_show(trained: Trained, role: str) -> None:
    def told() -> list[int]:
        return [one._study_id for one in optuna.storages.RDBStorage(role, **READ_ONLY).get_all_studies()]

    def grant(group: str) -> None:
        name = role.partition("//")[2].partition(":")[0]
        trained.cerebro.rows(f"GRANT {group} TO {name}")

    with pytest.raises(optuna.exceptions.StorageInternalError):
        told()
    grant("cerebro_user")
    assert told() == []
    grant("cerebro_monitor")
    assert trained.run in told()


def test_numbers_of_runs_that_are_too_large_end_no_query(trained: Trained, storage: Any) -> None:
    with contextlib.closing(psycopg2.connect(trained.dsn)) as connection, connection.cursor() as cursor:
        for table, changed in (("run", "run"), ("configuration", "run"), ("model", "run"), ("architecture", "run")):
            cursor.execute(
                "SELECT string_agg(quote_ident(attname), ', ') FROM pg_attribute WHERE attrelid = %s::regclass"
                " AND attnum > 0 AND NOT attisdropped AND attname <> 'run'", (f"cerebro.{table}",)
            )  # fmt: skip
            ((columns,),) = cursor.fetchall()
            cursor.execute(
                f"INSERT INTO cerebro.{table} (run, {columns}) SELECT 9223372036854775807, {columns}"
                f" FROM cerebro.{table} WHERE {changed} = %s", (trained.run,)
            )  # fmt: skip
        for view in ("studies", "trials", "trial_params", "trial_values", "trial_intermediate_values"):
            cursor.execute(f"SELECT count(*) FROM cerebro_optuna.{view}")
            assert cursor.fetchall()[0][0] > 0
        connection.rollback()


@pytest.mark.skipif(
    not shutil.which("optuna-dashboard"), reason="no optuna-dashboard here: pip install optuna-dashboard"
)
def test_the_dashboard_shows_a_run(trained: Trained) -> None:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    address = f"http://127.0.0.1:{port}/api/studies"
    command = ["optuna-dashboard", url(trained.dsn), "--host", "127.0.0.1", "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as dashboard:
        try:

            def asked(path: str) -> Any:
                with contextlib.suppress(OSError), urllib.request.urlopen(address + path, timeout=30) as answer:
                    return json.loads(answer.read())
                return None

            eventually(lambda: asked(""), 60, "the dashboard answers")
            assert trained.run in [one["study_id"] for one in asked("")["study_summaries"]]
            shown = asked(f"/{trained.run}?after=0")
            values = {one.model: one.objective_value for one in trained.cerebro.leaderboard(trained.run)}
            assert [one["values"] for one in shown["trials"]] == [[values[model]] for model in sorted(values)]
        finally:
            dashboard.kill()
