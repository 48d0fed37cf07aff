"""The Python client returns what the database says."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import psycopg2
import pytest
import sqlalchemy
from small_run import NAME, SCHEMA, Trained
from typer.testing import CliRunner

from cerebro_db import client
from cerebro_db.client import Cerebro, RunHandle, arguments, cli, connect, connections, errors
from cerebro_db.client.models import keras_models
from cerebro_db.core.names import Name
from tests.sql.users import town

IMPORTS = {"PYTHONPATH": str(Path(client.__file__).resolve().parents[2])}

# --- connecting ----------------------------------------------------------------------------------------------


def test_connecting_by_dsn_url_engine_or_connection(server: str, iris: Any) -> None:
    url = sqlalchemy.URL.create("postgresql+psycopg2", query=psycopg2.extensions.parse_dsn(server))
    keywords = psycopg2.extensions.make_dsn(server, application_name="somebody")
    for target in (server, url, sqlalchemy.create_engine(url), iris, keywords):
        with connect(target) as cerebro:
            assert cerebro.rows("SELECT 1") == [(1,)]


def test_without_an_argument_the_environment_says_where(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CEREBRO_DSN", server)
    with connect() as cerebro:
        assert cerebro.rows("SELECT 1") == [(1,)]


def test_a_connection_lends_its_role_and_search_path_but_is_left_alone(server: str) -> None:
    given = psycopg2.connect(server)
    with given.cursor() as cursor:
        cursor.execute("SET search_path = pg_catalog, cerebro")
        cursor.execute("SET ROLE cerebro_user")
    with connect(given) as cerebro:
        rows = cerebro.rows("SELECT current_setting('search_path'), current_user::text, pg_backend_pid()")
        assert rows[0][:2] == ("pg_catalog, cerebro", "cerebro_user")
        assert rows[0][2] != given.info.backend_pid
    assert not given.closed
    given.close()


def test_nobody_there() -> None:
    with pytest.raises(client.CannotConnect, match="cerebro up"):
        connect("host=/nowhere dbname=nothing")


def test_a_database_without_the_extension(server: str) -> None:
    # Not template1: nobody may be in it while another test makes a database.
    dsn = psycopg2.extensions.make_dsn(server, dbname="postgres")
    with pytest.raises(client.CannotConnect, match="CREATE EXTENSION cerebro_db CASCADE"):
        connect(dsn)


def test_no_cluster_yet(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CEREBRO_DSN", raising=False)
    monkeypatch.setenv("CEREBRO_HOME", str(tmp_path))
    with pytest.raises(client.CannotConnect, match="cerebro up makes it"):
        connect()


def test_connections_that_the_server_has_closed_are_made_anew(server: str) -> None:
    with connect(server) as cerebro, contextlib.closing(psycopg2.connect(server)) as other:
        (pid,) = cerebro.rows("SELECT pg_backend_pid()")[0]
        with other.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(%s)", (pid,))
        time.sleep(0.2)
        assert cerebro.rows("SELECT pg_backend_pid() <> %s", (pid,)) == [(True,)]


@pytest.mark.parametrize("dsn", ["postgresql://me:secret@here/db", "host=here user=me password=secret dbname=db"])
def test_passwords_are_not_shown(dsn: str) -> None:
    shown = connections.without_password(dsn)
    assert "secret" not in shown and "host=here" in shown and "user=me" in shown
    assert connections.without_password("this is no dsn") == "…"


def test_connecting_by_a_number_is_refused() -> None:
    with pytest.raises(TypeError, match="not int"):
        connect(7)


# --- runs ----------------------------------------------------------------------------------------------------


def test_a_finished_run(trained: Trained) -> None:
    cerebro, run = trained.cerebro, trained.run
    assert (cerebro.run(run).run_name, cerebro.run(run).status) == (NAME, "finished")
    assert run in [one.run for one in cerebro.runs()]
    assert [progress.percent for progress in cerebro.follow(run)] == [100.0]
    board = cerebro.leaderboard(run)
    assert [entry.rank for entry in board] == [1, 2, 3]
    assert sorted(entry.configuration for entry in board) == [1, 2, 3]
    assert board[0].loss == min(entry.validation_loss for entry in board if entry.validation_loss is not None)
    curve = cerebro.learning_curve(cerebro.run(run))
    assert [(point.configuration, point.epoch) for point in curve] == [
        (key, epoch) for key in (1, 2, 3) for epoch in (1, 2)
    ]
    assert {point.rows for point in curve} == {150}
    metrics = {(one.configuration, one.epoch, one.dataset, one.metric): one.value for one in cerebro.metrics(run)}
    assert (
        metrics[1, 2, "training", "loss"]
        == next(p for p in curve if (p.configuration, p.epoch) == (1, 2)).training_loss
    )
    assert {name for *_, name in metrics} == {"loss", "accuracy"}
    timeline = cerebro.hop_timeline(run)
    assert sum(one.activity == "train" for one in timeline) == 3 * 2 * 2
    assert [one.started_at for one in timeline] == sorted(one.started_at for one in timeline)
    assert cerebro.run_time(run)[0].activity == "training"
    assert [(now.segment, now.done) for now in cerebro.segments_now(run)] == [(0, True), (1, True)]


@pytest.mark.parametrize(
    "method", ["run", "run_progress", "leaderboard", "learning_curve", "metrics", "hop_timeline", "run_time"]
)
def test_a_run_that_is_not_there(trained: Trained, method: str) -> None:
    with pytest.raises(client.NoSuchRun, match="There is no run 987654 of yours"):
        getattr(trained.cerebro, method)(987654)


def test_a_run_is_not_a_name(trained: Trained) -> None:
    with pytest.raises(TypeError, match="by its number"):
        trained.cerebro.run_progress("iris")  # type: ignore[arg-type]


def test_arguments_that_are_not_there(trained: Trained) -> None:
    with pytest.raises(TypeError, match="there is no argument validationtable"):
        trained.cerebro.fit("packed", "other", "mst", epochs=1, validationtable="x")  # type: ignore[call-arg]


def test_a_search_is_a_run_whose_models_say_what_was_chosen(trained: Trained, fresh_output: Callable[[], str]) -> None:
    space = {"learning_rate": {"log_uniform": [0.001, 0.1]}, "batch_size": {"choice": [8, 16]}}
    found = trained.cerebro.search(
        "packed", fresh_output(), space, epochs=1, method={"name": "random"}, max_configurations=2, options={"seed": 1}
    )
    assert found.done
    points = [one.chosen or {} for one in trained.cerebro.leaderboard(found)]
    assert len(points) == 2 and all(set(point) == {"learning_rate", "batch_size"} for point in points)
    with pytest.raises(TypeError, match="there is no argument methods"):
        trained.cerebro.search("packed", "other", space, methods="asha")  # type: ignore[call-arg]
    with pytest.raises(client.ServerError, match="there is no search method 'ash'"):
        trained.cerebro.search("packed", fresh_output(), space, method="ash", max_configurations=2)


def test_what_the_server_refuses_comes_with_its_hint(trained: Trained) -> None:
    with pytest.raises(client.ServerError, match="already exists") as caught:
        trained.cerebro.fit("packed", "models", "mst", epochs=1)
    assert caught.value.sqlstate == "42P07"
    assert "another name" in (caught.value.hint or "")
    with pytest.raises(client.ServerError, match=f"run {trained.run} is finished") as caught:
        trained.cerebro.resume(trained.run)
    assert (caught.value.sqlstate, "epochs => 3" in (caught.value.hint or "")) == ("55000", True)
    for act in (trained.cerebro.resume, trained.cerebro.cancel, trained.cerebro.forget):
        with pytest.raises(client.ServerError, match="there is no run 987654 of yours"):
            act(987654)


def test_a_run_that_is_not_waited_for_can_be_followed_and_cancelled(
    trained: Trained, fresh_output: Callable[[], str]
) -> None:
    handle = trained.cerebro.fit("packed", fresh_output(), "alone", epochs=100_000, wait=False)
    assert (handle.done, handle.status) == (False, "running")
    assert handle.run > trained.run
    for progress in handle.follow(every=0.1):
        assert progress.status == "running"
        if progress.hops_done:
            break
    with pytest.raises(TimeoutError):
        handle.wait(0.01)
    assert trained.cerebro.cancel(handle)
    with pytest.raises(client.RunFailed, match=f"^run {handle.run} was cancelled\nHINT") as caught:
        handle.wait(60)
    assert caught.value.status == "cancelled" and f"resume({handle.run})" in (caught.value.hint or "")
    assert handle.done and not handle.cancel()
    assert trained.cerebro.run(handle).status == "cancelled"


@pytest.mark.parametrize("early", [True, False])
def test_interrupting_a_call_that_waits_cancels_its_run(
    early: bool, trained: Trained, fresh_output: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the call waits, and before it knows the number of the run."""
    handles: list[RunHandle] = []

    def begun(calls: Cerebro, run: int) -> RunHandle:
        handles.append(RunHandle(calls, run))
        if early:
            signal.raise_signal(signal.SIGINT)
        else:
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        return handles[0]

    monkeypatch.setattr("cerebro_db.client.cerebro.RunHandle", begun)
    with pytest.raises(KeyboardInterrupt):
        trained.cerebro.fit("packed", fresh_output(), "alone", epochs=100_000)
    with pytest.raises(client.RunFailed):
        handles[0].wait(60)
    assert handles[0].status == "cancelled"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("in_a_transaction", [False, True])
def test_ctrl_c_cancels_the_statement_under_way(trained: Trained, in_a_transaction: bool) -> None:
    began = time.monotonic()
    timer = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        if in_a_transaction:
            with trained.cerebro.transaction() as transaction:
                transaction.rows("SELECT pg_sleep(60), 'interrupted'")
        else:
            trained.cerebro.rows("SELECT pg_sleep(60), 'interrupted'")
    assert time.monotonic() - began < 20
    active = (
        "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%%pg_sleep(60), %%interrupted%%' AND state = 'active'"
    )
    assert trained.cerebro.rows(active + " AND pid <> pg_backend_pid()") == [(0,)]
    with pytest.raises(errors.ServerError, match="division by zero"):  # errors come back from there
        trained.cerebro.rows("SELECT 1 / 0")


def test_a_run_that_is_not_waited_for_ends_by_itself(trained: Trained, fresh_output: Callable[[], str]) -> None:
    output = fresh_output()
    handle = trained.cerebro.fit("packed", output, "alone", epochs=1, validation_table="validation", wait=False)
    assert handle.wait(120) == handle.run
    assert handle.progress().status == "finished"
    assert len(handle.leaderboard()) == 1
    assert trained.cerebro.rows(f"SELECT count(*) FROM {output}") == [(1,)]


def test_a_run_survives_the_process_that_started_it(trained: Trained, fresh_output: Callable[[], str]) -> None:
    output = fresh_output()
    program = (
        "import os, signal, sys\n"
        "from cerebro_db.client import connect\n"
        "handle = connect(sys.argv[1]).fit('packed', sys.argv[2], 'alone', epochs=20, wait=False)\n"
        "print(handle.run, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    dsn = psycopg2.extensions.make_dsn(trained.dsn, options=f"-csearch_path={SCHEMA},public,cerebro,madlib")
    command = [sys.executable, "-c", program, dsn, output]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, **IMPORTS})
    assert done.returncode == -signal.SIGKILL, done.stderr
    handle = trained.cerebro.handle(int(done.stdout))
    assert handle.status == "running"
    assert handle.wait(120) == handle.run
    assert trained.cerebro.rows(f"SELECT count(*) FROM {output}") == [(1,)]


def test_a_cancelled_run_is_resumed_extended_materialized_and_forgotten(
    trained: Trained, fresh_output: Callable[[], str]
) -> None:
    cerebro, output, elsewhere = trained.cerebro, fresh_output(), fresh_output()
    handle = cerebro.fit("packed", output, "alone", epochs=60, wait=False)
    assert handle.cancel()
    with pytest.raises(client.RunFailed):
        handle.wait(60)
    cerebro.rows(f"CREATE TABLE {output}_info AS SELECT 1 AS in_the_way")
    resumed = cerebro.resume(handle, wait=False)
    with pytest.raises(client.RunFailed, match="its model tables were not made: .*already exists") as caught:
        resumed.wait(120)
    assert resumed.status == caught.value.status == "finished"
    cerebro.rows(f"DROP TABLE {output}_info")
    cerebro.materialize(handle, elsewhere)
    assert resumed.wait() == handle.run
    assert cerebro.rows(f"SELECT count(*) FROM {elsewhere}_info") == [(1,)]
    assert cerebro.resume(handle, epochs=61).wait(120) == handle.run
    assert [entry.epochs_done for entry in handle.leaderboard()] == [61]
    assert cerebro.rows(f"SELECT epochs FROM {output}_summary") == [(61,)]
    cerebro.forget(handle)
    with pytest.raises(client.NoSuchRun):
        cerebro.handle(handle.run)


PLANTED = """
    INSERT INTO cerebro.run (run, source_table, packed_table, model_table, selection_table, arch_table, epochs,
                             evaluate_every, seed, segments, dist_keys, configurations, rows_per_epoch, storage,
                             options, layout,
                             packed_summary, version)
    VALUES ({0}, 's', 'p', 'm', 'sel', 'a', 1, 1, 1, 1, '{{0}}', 1, 1, 'none', '{{}}', '{{}}', '{{}}', 'v');
    INSERT INTO cerebro.event (run, event) VALUES ({0}, 'created'), ({0}, 'finished')
"""


def test_runs_of_one_number_of_several_users(trained: Trained, fresh_output: Callable[[], str]) -> None:
    """Users write the rows of their runs themselves, so a number can be given twice."""
    mine = trained.cerebro
    long = mine.fit("packed", fresh_output(), "alone", epochs=100_000, wait=False)
    with town(trained.dsn) as root:
        mallory, admin = root.user("mallory", "cerebro_user"), root.user("admin", "cerebro_admin")
        for number in (trained.run, long.run):
            mallory(PLANTED.format(number))
        (me,) = root("SELECT current_user::text")
        # Without an owner a number means one's own run.
        assert mine.run(trained.run).owner == mine.run_progress(trained.run).owner == me
        assert len(mine.leaderboard(trained.run)) == 3
        assert mine.run(trained.run, mallory.name).model_table == "m"
        with connect(admin.dsn) as theirs:
            for act in (theirs.run, theirs.cancel, theirs.forget, theirs.run_progress):
                with pytest.raises(client.ClientError, match="everal users have a run"):
                    act(trained.run)
            assert {run.owner for run in theirs.runs() if run.run == trained.run} == {me, mallory.name}
            with pytest.raises(client.NoSuchRun, match=f"no run {trained.run} of nobody"):
                theirs.run(trained.run, "nobody")
            assert not theirs.cancel(long.run, owner=mallory.name)
            planted, real = (theirs.run(long.run, owner) for owner in (mallory.name, me))
            assert not theirs.cancel(planted)
            assert long.status == "running"
            command = ["cancel", str(long.run), "--dsn", admin.dsn]
            refused = CliRunner().invoke(cli.app, command)
            assert (refused.exit_code, "Several users" in refused.output) == (1, True)
            shown = CliRunner().invoke(cli.app, [*command, "--owner", me])
            assert (shown.exit_code, shown.output) == (0, f"Run {long.run} is cancelled.\n")
            theirs.forget(planted)
            theirs.forget(trained.run, mallory.name)
            assert {run.owner for run in theirs.runs()} == {me} and not theirs.cancel(real)


def test_tables_of_any_name(trained: Trained, fresh_output: Callable[[], str]) -> None:
    """A reserved word, and capitals with a blank and percent signs. The views show the names quoted as in SQL."""
    cerebro, output = trained.cerebro, fresh_output()
    order, odd = f"{SCHEMA}.order", f'{SCHEMA}."Odd %s 100%"'
    try:
        cerebro.rows(f"SELECT pack_plain('iris', '{order}', 'kind', 'attributes', segments => 2)")
        cerebro.rows("SELECT pack_like('iris', %s, 'kind', 'attributes', %s)", (odd, order))
        run = cerebro.fit(order, output, "alone", epochs=1, validation_table=odd).run
        assert (cerebro.run(run).source_table, cerebro.run(run).packed_table) == (f"{SCHEMA}.iris", order)
        plan = "SELECT packed_table, validation_table, model_table FROM cerebro.run_plan WHERE run = %s"
        assert cerebro.rows(plan, (run,)) == [(order, odd, f"{SCHEMA}.{output}")]
        assert cerebro.rows(f"SELECT packed_table, validation_table FROM {output}_summary") == [(order, odd)]
        assert cerebro.rows(f"SELECT count(*) FROM {cerebro.run(run).packed_table}")[0][0] > 0
        assert all(entry.validation_loss for entry in cerebro.leaderboard(run))
        for name in (order, odd):
            judged = "SELECT madlib.madlib_keras_evaluate(%s, %s, %s, false, 1)"
            cerebro.rows(judged, (output, name, told := fresh_output()))
            assert cerebro.rows(f"SELECT loss > 0 FROM {told}") == [(True,)]
    finally:
        for name in (order, odd):
            cerebro.rows(f"DROP TABLE IF EXISTS {name}, {summary_of(name)}".replace("%", "%%"), ())


def summary_of(table: str) -> str:
    return Name.parse(table).suffixed("_summary").quoted


# --- models --------------------------------------------------------------------------------------------------


def attributes(cerebro: Cerebro) -> np.ndarray:
    return np.array([row[0] for row in cerebro.rows("SELECT attributes FROM iris ORDER BY id")], dtype=np.float32)


def test_the_keras_model_says_what_sql_says(trained: Trained) -> None:
    cerebro = trained.cerebro
    best = cerebro.leaderboard(trained.run)[0].configuration
    said = cerebro.predict("models", "SELECT * FROM iris", "id", configuration=best, top=3)
    told = [one.probability for one in sorted(said, key=lambda one: (int(one.key_value), one.label))]
    model = cerebro.model(trained.run, best)
    ours = model.predict(attributes(cerebro), verbose=0)
    assert np.allclose(np.array(told).reshape(150, 3), ours, atol=1e-5)
    by_table = cerebro.model("models", best)
    assert all(np.array_equal(a, b) for a, b in zip(model.get_weights(), by_table.get_weights()))


def test_the_keras_model_scores_what_the_leaderboard_says(trained: Trained) -> None:
    cerebro = trained.cerebro
    best = cerebro.leaderboard(trained.run)[0]
    told = cerebro.evaluate("models", "SELECT * FROM iris", configuration=best.configuration)
    assert told["log_loss"] == pytest.approx(best.validation_loss, rel=1e-5)
    assert told["accuracy"] == pytest.approx(best.validation_metric, rel=1e-5) and told["rows"] == 150
    kinds = [row[0] for row in cerebro.rows("SELECT kind FROM iris ORDER BY id")]
    said = cerebro.model("models", best.configuration).predict(attributes(cerebro), verbose=0).argmax(axis=1)
    right = np.mean([sorted(set(kinds))[place] == kind for place, kind in zip(said, kinds)])
    assert right == pytest.approx(best.validation_metric, abs=1e-6)


def test_weights_in_the_companion_table(trained: Trained, fresh_output: Callable[[], str]) -> None:
    """A model that is too large for one value has its weights as chunks in a second table, in any order."""
    cerebro, output = trained.cerebro, fresh_output()
    cerebro.rows(f"CREATE TABLE {output} AS SELECT configuration, NULL::bytea AS weights, architecture FROM models")
    cerebro.rows(f"CREATE TABLE {output}_summary AS SELECT * FROM models_summary")
    cerebro.rows(
        f"CREATE TABLE {output}_weights AS SELECT configuration, start, substr(weights, start + 1, 50) AS payload"
        "  FROM models, generate_series(0, octet_length(weights) - 1, 50) AS start ORDER BY start DESC"
    )
    whole, chunked = cerebro.model("models", 2), cerebro.model(output, 2)
    assert all(np.array_equal(a, b) for a, b in zip(whole.get_weights(), chunked.get_weights()))
    cerebro.rows(f"DELETE FROM {output}_weights WHERE start = 50")
    with pytest.raises(client.NoSuchModel, match="218 bytes of weights, the architecture needs 268"):
        cerebro.model(output, 2)


def test_models_that_are_not_there(trained: Trained) -> None:
    with pytest.raises(client.NoSuchModel, match="no model of configuration 77"):
        trained.cerebro.model("models", 77)
    with pytest.raises(client.NoSuchModel, match="There is no table nothing"):
        trained.cerebro.model("nothing", 1)
    with pytest.raises(client.NoSuchModel, match="not an identifier"):
        trained.cerebro.model("mo dels; DROP TABLE iris", 1)
    with pytest.raises(client.NoSuchRun):
        trained.cerebro.model(987654, 1)
    with pytest.raises(client.NoSuchModel, match="iris has no models"):
        trained.cerebro.model("iris", 1)


def test_an_architecture_that_could_run_code_does_not_reach_keras(
    trained: Trained, fresh_output: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cerebro, output = trained.cerebro, fresh_output()
    cerebro.rows(f"CREATE TABLE {output}_summary AS SELECT * FROM models_summary")
    changed = "replace(architecture::text, '\"Dense\"', '\"Lambda\"')::json AS architecture"
    cerebro.rows(f"CREATE TABLE {output} AS SELECT configuration, weights, {changed} FROM models")
    monkeypatch.setattr(keras_models, "_keras", lambda: pytest.fail("Keras was asked for"))
    with pytest.raises(client.ClientError, match="The model's architecture is refused.*Lambda"):
        cerebro.model(output, 1)


def test_without_keras(trained: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "keras", None)
    with pytest.raises(client.MissingPackage, match="pip install"):
        trained.cerebro.model("models", 1)


def test_predictions_in_a_table_are_those_in_rows(trained: Trained, fresh_output: Callable[[], str]) -> None:
    cerebro, output = trained.cerebro, fresh_output()
    assert cerebro.predict_into("models", "iris", output, "id", 1, top=2) == 150
    rows = cerebro.rows(f"SELECT id::text, predicted_kind, rank FROM {output}")
    said = cerebro.predict("models", "SELECT * FROM iris", "id", 1, top=2)
    assert set(rows) == {(one.key_value, one.label, one.rank) for one in said} and len(rows) == 300
    cerebro.rows(f"DROP TABLE {output}")
    chosen = said[0].label
    cerebro.predict_into("models", "iris", output, "id", 1, probability_of=chosen, keep=["kind"])
    ((likely,),) = cerebro.rows(f'SELECT avg("probability_{chosen}") FROM {output} WHERE kind = %s', (chosen,))
    of_class = cerebro.predict("models", "iris", "id", 1, probability_of=chosen)
    assert {one.label for one in of_class} == {chosen} and len(of_class) == 150 and 0 < likely <= 1
    with pytest.raises(client.ServerError, match="already exists"):
        cerebro.predict_into("models", "iris", output)


def test_models_are_listed_and_dropped(trained: Trained, fresh_output: Callable[[], str]) -> None:
    cerebro, output = trained.cerebro, f"{SCHEMA}.{fresh_output()}"
    cerebro.materialize(trained.run, output)
    found = {one.model_table: one for one in cerebro.models()}
    mine, best = found[output], cerebro.leaderboard(trained.run)[0]
    assert (mine.run, mine.run_name, mine.target, mine.configurations) == (trained.run, NAME, "kind", 3)
    assert mine.best_value == pytest.approx(best.validation_loss) and mine.rows == 150
    assert mine.created_at == cerebro.run(trained.run).created_at
    cerebro.drop_model(output)
    assert output not in {one.model_table for one in cerebro.models()}
    with pytest.raises(client.ServerError, match="there is no table"):
        cerebro.drop_model(output)


def test_names_reach_sql_as_they_are(trained: Trained) -> None:
    """A table with a schema and a name with a percent sign and a quote."""
    cerebro = trained.cerebro
    name = f'{SCHEMA}."a %s ""b"" %"'
    try:
        cerebro.rows(f"CREATE TABLE {name} AS SELECT * FROM models")
        cerebro.rows(f'CREATE TABLE {SCHEMA}."a %s ""b"" %_summary" AS SELECT * FROM models_summary')
        assert len(cerebro.model(name, 1).get_weights()) == 4
    finally:
        cerebro.rows(f'DROP TABLE IF EXISTS {name}, {SCHEMA}."a %s ""b"" %_summary"')


# --- errors --------------------------------------------------------------------------------------------------


def test_all_errors_are_of_one_family() -> None:
    public = [getattr(client, name) for name in client.__all__]
    kinds = [one for one in public if isinstance(one, type) and issubclass(one, Exception)]
    assert len(kinds) >= 6
    assert all(issubclass(one, errors.ClientError) for one in kinds)
    with pytest.raises(AttributeError):
        _ = client.nothing_of_the_kind  # type: ignore[attr-defined]


def test_the_arguments_are_those_of_the_sql_function(trained: Trained) -> None:
    names = "SELECT proargnames FROM pg_proc WHERE oid = %s::regproc"
    for function, first, known, left_out in (
        ("fit", 3, arguments.FitArguments, ("wait", "dry_run")),
        ("search", 3, arguments.SearchArguments, ("wait", "dry_run")),
        ("train", 2, arguments.TrainArguments, ("wait", "dry_run")),
        ("pack", 3, arguments.PackArguments, ()),
    ):
        ((found,),) = trained.cerebro.rows(names, (f"cerebro.{function}",))
        assert {*found[first:]} - {*left_out} == known.__annotations__.keys()


def test_training_on_a_table(trained: Trained, fresh_output: Callable[[], str]) -> None:
    table = fresh_output()
    handle = trained.cerebro.train(
        "iris", table, target="kind", budget=timedelta(minutes=2), architectures={"mlp": {"units": 8}},
        max_configurations=1, epochs=2, options={"seed": 1},
    )  # fmt: skip
    assert handle.status == "finished"
    predicted = trained.cerebro.rows("SELECT count(*) FROM cerebro.predict(%s, 'SELECT * FROM iris')", (table,))
    assert predicted == trained.cerebro.rows("SELECT count(*) FROM iris")


def test_a_dry_run_says_what_would_be_done(trained: Trained, fresh_output: Callable[[], str]) -> None:
    table, runs = fresh_output(), len(trained.cerebro.runs())
    where: Any = {"source_table": "iris", "model_table": table, "target": "kind"}
    told = trained.cerebro.dry_run("train", **where, max_configurations=3)
    assert any("at most 3 configurations of mlp" in line for line in told)
    told = trained.cerebro.dry_run("search", **where, space={"units": {"choice": [4, 8]}}, method="grid")
    assert any(line.startswith("NOTICE:  grid would try") for line in told)
    told = trained.cerebro.dry_run("fit", **where, configurations=[{"units": 4}, {"units": 8}], epochs=2)
    assert any("2 configurations would train" in line for line in told)
    assert len(trained.cerebro.runs()) == runs
    with pytest.raises(TypeError, match="the argument space is missing"):
        trained.cerebro.dry_run("search", **where)
    with pytest.raises(TypeError, match="there is no argument wait"):
        trained.cerebro.dry_run("train", **where, wait=False)


def test_a_run_has_a_plan_and_what_it_has_measured(trained: Any) -> None:
    chosen, *others = trained.cerebro.plan(trained.run)
    assert chosen.selected and chosen.segments >= 1 and chosen.took > 0 and not any(one.selected for one in others)
    assert all(one.run == trained.run and one.visits >= 0 for one in trained.cerebro.profiles(trained.run))
