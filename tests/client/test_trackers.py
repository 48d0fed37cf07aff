"""``cerebro track``: TensorBoard, MLflow, Optuna and trackers of others get what the views say."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import socket
import sqlite3
import subprocess
import time
import urllib.request
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from small_run import NAME, Trained
from typer.testing import CliRunner

from cerebro_db.client import ClientError, cli
from cerebro_db.client.trackers import mlflow, optuna, tensorboard, tracked
from cerebro_db.testing.trackers import TrackerContract

NO_TENSORBOARD = "the optional package tensorboardX is not installed"


@pytest.fixture
def run(trained: Trained) -> tracked.TrackedRun:
    return tracked.read(trained.cerebro.engine, trained.cerebro.run(trained.run))


def test_what_is_told_is_what_the_views_say(trained: Trained, run: tracked.TrackedRun) -> None:
    cerebro = trained.cerebro
    assert (run.run, run.name, run.status, run.ended, run.direction) == (trained.run, NAME, "finished", True, "min")
    assert len(run.models) == 3
    points = {(one.model, one.epoch): one for one in cerebro.learning_curve(trained.run)}
    for entry, model in zip(sorted(cerebro.leaderboard(trained.run), key=lambda one: one.model), run.models):
        assert (model.model, model.configuration, model.status) == (entry.model, entry.configuration, entry.status)
        assert model.value == entry.objective_value
        assert model.parameters["learning_rate"] == entry.parameters["learning_rate"]
        losses = {epoch: point.validation_loss for (number, epoch), point in points.items() if number == model.model}
        assert model.curves["validation loss"] == pytest.approx(losses, rel=1e-8)
        assert set(model.times) == set(losses)


def test_models_of_groups_are_left_out_and_counted(trained: Trained, grouped: int, tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX", reason=NO_TENSORBOARD)
    found = tracked.read(trained.cerebro.engine, trained.cerebro.run(grouped))
    assert found.left_out == 9 and [one.model for one in found.models] == sorted(
        one.model for one in trained.cerebro.leaderboard(grouped) if one.group_number is None
    )
    assert trained.cerebro.track(grouped, tensorboard=tmp_path / "logs") == 9
    arguments = ["track", str(grouped), "--tensorboard", str(tmp_path / "logs")]
    done = CliRunner().invoke(cli.app, arguments, env={"CEREBRO_DSN": trained.dsn, "COLUMNS": "200"})
    assert done.exit_code == 0 and "Left out: 9 models of folds or groups." in done.output
    assert trained.cerebro.track(trained.run, tensorboard=tmp_path / "logs") == 0


# -- TensorBoard -------------------------------------------------------------------------------------------------


def records(file: Path) -> Iterator[bytes]:
    """The payloads of a file of records, whose checksums TensorFlow has checked."""
    import tensorflow as tf

    yield from tf.data.TFRecordDataset(str(file)).as_numpy_iterator()


@pytest.mark.tensorflow
def test_tensorflow_reads_the_events(run: tracked.TrackedRun, tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX", reason=NO_TENSORBOARD)
    from tensorflow.core.util import event_pb2

    top = tensorboard.write(run, tmp_path / "logs")
    assert sorted(one.name for one in top.iterdir()) == ["model_1", "model_2", "model_3"]
    for model in run.models:
        (file,) = (top / f"model_{model.model}").iterdir()
        events = [event_pb2.Event.FromString(one) for one in records(file)]
        assert events[0].file_version == "brain.Event:2"
        found: dict[str, dict[int, float]] = {}
        for event in events[1:]:
            (value,) = event.summary.value
            if value.metadata.plugin_data.plugin_name == "hparams":
                found.setdefault(value.tag, {})[event.step] = len(value.metadata.plugin_data.content)
            else:
                found.setdefault(value.tag, {})[event.step] = value.simple_value
                assert event.wall_time >= run.started_at - 1
        for name, values in model.curves.items():
            assert found[name.replace(" ", "/")] == pytest.approx(values, rel=1e-6)
        assert {
            "_hparams_/session_start_info",
            "_hparams_/session_end_info",
            f"objective/{run.objective}",
        } <= found.keys()
    again = tensorboard.write(run, tmp_path / "logs")  # files of an earlier call are replaced
    assert again == top and len(list(top.rglob("*tfevents*"))) == 3


def test_the_plugin_of_hyper_parameters_reads_them(run: tracked.TrackedRun, tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX", reason=NO_TENSORBOARD)
    pytest.importorskip("tensorboard", reason="the optional package tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import plugin_data_pb2

    top = tensorboard.write(run, tmp_path)
    for model in run.models:
        accumulator = EventAccumulator(str(top / f"model_{model.model}"))
        accumulator.Reload()
        tags = accumulator.summary_metadata
        start = plugin_data_pb2.HParamsPluginData.FromString(
            tags["_hparams_/session_start_info"].plugin_data.content
        ).session_start_info
        assert start.hparams["learning_rate"].number_value == model.parameters["learning_rate"]
        assert start.hparams["optimizer"].string_value == model.parameters["optimizer"]
        end = plugin_data_pb2.HParamsPluginData.FromString(tags["_hparams_/session_end_info"].plugin_data.content)
        assert end.session_end_info.status == 1
        scalars = {one.step: one.value for one in accumulator.Scalars("validation/loss")}
        assert scalars == pytest.approx(model.curves["validation loss"], rel=1e-6)


# -- Optuna ------------------------------------------------------------------------------------------------------


def test_optuna_reads_the_study(run: tracked.TrackedRun, tmp_path: Path) -> None:
    package: Any = pytest.importorskip("optuna", reason="the optional package optuna is not installed")
    file = tmp_path / "runs.db"
    with warnings.catch_warnings():
        warnings.simplefilter("error", package.exceptions.ExperimentalWarning)  # users need not see it
        for _ in range(2):  # the second call replaces what the first has made
            name = optuna.write(run, file)
    study = package.load_study(study_name=name, storage=f"sqlite:///{file}")
    assert name == f"run {run.run}: {NAME} ({run.owner})" and study.direction.name == "MINIMIZE"
    for trial, model in zip(study.trials, run.models):
        assert trial.state.name == "COMPLETE" and trial.value == pytest.approx(model.value)
        assert trial.params == {"learning_rate": model.parameters["learning_rate"]}
        assert trial.intermediate_values == pytest.approx(model.curves["validation loss"])
        assert trial.user_attrs["configuration"] == model.configuration
    package.create_study(study_name="mine", storage=f"sqlite:///{file}")
    optuna.write(run, file)
    assert len(package.get_all_study_names(f"sqlite:///{file}")) == 2
    package.delete_study(study_name=name, storage=f"sqlite:///{file}")
    package.create_study(study_name=name, storage=f"sqlite:///{file}")
    with pytest.raises(ClientError, match="that is not ours"):
        optuna.write(run, file)
    with pytest.raises(ClientError, match="cannot be written"):
        optuna.write(run, tmp_path / "nowhere" / "runs.db")


def test_the_values_of_epochs_are_those_of_the_objective(trained: Trained, grouped: int, tmp_path: Path) -> None:
    """Of an accuracy that is to be large, and not losses, which are to be small."""
    package: Any = pytest.importorskip("optuna", reason="the optional package optuna is not installed")
    name = optuna.write(tracked.read(trained.cerebro.engine, trained.cerebro.run(grouped)), tmp_path / "x.db")
    study = package.load_study(study_name=name, storage=f"sqlite:///{tmp_path / 'x.db'}")
    assert study.direction.name == "MAXIMIZE" and len(study.trials) == 3
    points = {(one.model, one.epoch): one.validation_metric for one in trained.cerebro.learning_curve(grouped)}
    for trial in study.trials:
        model = trial.user_attrs["model"]
        assert trial.intermediate_values == pytest.approx({e: points[model, e] for e in (1, 2, 3)}, rel=1e-8)
        assert trial.intermediate_values[3] == pytest.approx(trial.value, rel=1e-8)


def test_failed_and_stopped_models_are_trials_too(run: tracked.TrackedRun, tmp_path: Path) -> None:
    from dataclasses import replace

    package: Any = pytest.importorskip("optuna", reason="the optional package optuna is not installed")
    one, two, three = run.models
    odd = (
        replace(one, status="failed", value=None, parameters={**one.parameters, "units": 4, "kind": "a"}),
        replace(two, status="stopped", parameters={**two.parameters, "units": 8, "kind": True}),
        replace(three, status="training", value=None),
    )
    name = optuna.write(replace(run, models=odd, ended=False, status="running"), tmp_path / "x.db")
    study = package.load_study(study_name=name, storage=f"sqlite:///{tmp_path / 'x.db'}")
    assert [trial.state.name for trial in study.trials] == ["FAIL", "PRUNED", "RUNNING"]
    assert study.trials[0].params["kind"] == "a" and study.trials[1].params["units"] == 8


# -- MLflow ------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["file", "server"])
def tracking(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URI of a database of MLflow, or of a server of MLflow."""
    pytest.importorskip("mlflow", reason="the optional package mlflow is not installed")
    if request.param == "file":
        yield f"sqlite:///{tmp_path / 'mlflow.db'}"
        return
    program = os.environ.get("MLFLOW_PROGRAM")
    if not program:
        pytest.skip("MLFLOW_PROGRAM names no program mlflow that can start a server")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    command = [program, "server", "--backend-store-uri", f"sqlite:///{tmp_path / 'server.db'}", "--host", "127.0.0.1",
               "--port", str(port), "--workers", "1"]  # fmt: skip
    with open(tmp_path / "server.log", "wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, cwd=tmp_path)
    try:
        deadline = time.monotonic() + 120
        while True:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
                break
            assert server.poll() is None and time.monotonic() < deadline, (tmp_path / "server.log").read_text()
            time.sleep(0.2)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def test_mlflow_has_the_runs(
    run: tracked.TrackedRun, trained: Trained, tracking: str, capsys: pytest.CaptureFixture[str]
) -> None:
    import mlflow as package

    first = replace(run.models[0], curves={"validation loss": {1: 0.5}}, times={})
    mlflow.write(replace(run, models=(first,), ended=False, status="running"), tracking, "cerebro")
    number = mlflow.write(run, tracking, "cerebro")  # adds what is new
    client: Any = package.MlflowClient(tracking_uri=tracking)
    runs = client.search_runs([number], max_results=50)
    assert len(runs) == 4
    children = {one.data.tags["cerebro_db.key"]: one for one in runs if "mlflow.parentRunId" in one.data.tags}
    for model in run.models[1:]:
        child = children[f"{run.run} {run.owner} {model.model}"]
        assert child.info.status == "FINISHED"
        assert child.data.params["learning_rate"] == str(model.parameters["learning_rate"])
        history = client.get_metric_history(child.info.run_id, "validation_loss")
        assert {one.step: one.value for one in history} == pytest.approx(model.curves["validation loss"])
    capsys.readouterr()
    environment = {"CEREBRO_DSN": trained.dsn, "COLUMNS": "200"}
    done = CliRunner().invoke(cli.app, ["track", str(run.run), "--mlflow", tracking, "--json"], env=environment)
    assert done.exit_code == 0 and json.loads(done.stdout)["mlflow"] == tracking


def test_mlflow_takes_any_names_and_values(run: tracked.TrackedRun, tracking: str) -> None:
    import mlflow as package

    names = [
        "/root",
        "..",
        ".",
        "..x",
        "",
        "a/../b",
        "ü <script>:",
        "x" * 300,
        *(f"p{number}" for number in range(250)),
    ]
    strange = replace(
        run.models[0],
        parameters=dict.fromkeys(names, "y" * 10_000),
        curves={"a/b": dict.fromkeys(range(1, 1500), 0.5), "loss": {1: math.nan, 2: math.inf, 3: -math.inf}},
        reason="z" * 20_000,
    )
    for _ in range(2):
        number = mlflow.write(replace(run, models=(strange,)), tracking, "strange")
    found = package.MlflowClient(tracking_uri=tracking).search_runs([number])
    assert [len(one.data.params) for one in found if "mlflow.parentRunId" in one.data.tags] == [len(names)]


def test_mlflow_that_cannot_be_reached(run: tracked.TrackedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow", reason="the optional package mlflow is not installed")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(ClientError, match=r"MLflow at http://127\.0\.0\.1:9 refuses"):
        mlflow.write(run, "http://127.0.0.1:9", "x")


# -- the command -------------------------------------------------------------------------------------------------


def test_the_command(trained: Trained, tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX", reason=NO_TENSORBOARD)
    environment = {"CEREBRO_DSN": trained.dsn, "COLUMNS": "200"}
    logs, file = str(tmp_path / "logs"), str(tmp_path / "runs.db")
    arguments = ["track", str(trained.run), "--tensorboard", logs, "--optuna", file, "--json"]
    done = CliRunner().invoke(cli.app, arguments, env=environment)
    assert done.exit_code == 0, done.output
    said = json.loads(done.output)
    assert said["tensorboard"] == logs and said["optuna"] == file and said["mlflow"] is None
    assert (tmp_path / "logs" / f"run_{trained.run}" / "model_1").is_dir()
    with sqlite3.connect(file) as db:
        assert db.execute("SELECT count(*) FROM trials").fetchone() == (3,)
    said = CliRunner().invoke(cli.app, ["track", str(trained.run)], env=environment)
    assert said.exit_code != 0 and "--tensorboard" in said.output
    assert CliRunner().invoke(cli.app, ["track", "987654321", "--optuna", file], env=environment).exit_code == 1
    said = CliRunner().invoke(cli.app, ["track", str(trained.run), "--to", "nobody=x"], env=environment)
    assert said.exit_code == 1 and "no tracker 'nobody'" in said.output and "tensorboard, optuna" in said.output
    assert CliRunner().invoke(cli.app, ["track", str(trained.run), "--to", "nobody"], env=environment).exit_code == 2
    cerebro = trained.cerebro
    cerebro.track(trained.run, tensorboard=tmp_path / "again")
    assert (tmp_path / "again").is_dir()
    with pytest.raises(ClientError, match="where to"):
        cerebro.track(trained.run)


# -- the contract, which trackers of others have, too ------------------------------------------------------------


class TestTensorBoard(TrackerContract):
    tracker = "tensorboard"

    @pytest.fixture(autouse=True)
    def installed(self) -> None:
        pytest.importorskip("tensorboardX", reason=NO_TENSORBOARD)


class TestOptuna(TrackerContract):
    tracker = "optuna"

    @pytest.fixture(autouse=True)
    def installed(self) -> None:
        pytest.importorskip("optuna", reason="the optional package optuna is not installed")


class TestMlflow(TrackerContract):
    tracker = "mlflow"

    @pytest.fixture(autouse=True)
    def installed(self) -> None:
        pytest.importorskip("mlflow", reason="the optional package mlflow is not installed")

    def place(self, folder: Path) -> str:
        return f"sqlite:///{folder / 'mlflow.db'}"
