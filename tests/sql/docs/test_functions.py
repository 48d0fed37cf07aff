"""Custom functions: administrators register them, users name them, and only trainers execute them."""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Iterator
from typing import Any

import pytest
from psycopg2 import errors
from psycopg2.extensions import make_dsn, parse_dsn

from tests.conftest import ENGINE
from tests.sql.lab import Lab, connect, flower_model, run

FOCAL = """
def focal(y_true, y_pred):
    likely = ops.sum(y_true * y_pred, axis=-1)
    return -((1.0 - likely) ** 2) * ops.log(likely + 1e-7)
"""
HITS = """
def hits(y_true, y_pred):
    return ops.cast(ops.argmax(y_true, -1) == ops.argmax(y_pred, -1), "float32")
"""
NAMED = "optimizer='Adam(lr=0.02)', loss='focal', metrics=['hits', 'top_2_accuracy']"
OPTIONS = {"deterministic": True, "seed": 5}


@pytest.fixture(scope="module")
def user(lab: Lab) -> Iterator[Any]:
    """A plain user's session in the lab's schema."""
    with signed_in(lab, "cerebro_user") as connection:
        yield connection


@contextlib.contextmanager
def signed_in(lab: Lab, group: str) -> Iterator[Any]:
    name, password = "u_" + secrets.token_hex(4), secrets.token_hex(8)
    lab(f"CREATE ROLE {name} LOGIN PASSWORD '{password}' IN ROLE {group}")
    lab(f"GRANT ALL ON SCHEMA {lab.schema} TO {name}")
    try:
        with contextlib.closing(connect(make_dsn(**{**parse_dsn(lab.dsn), "user": name, "password": password}))) as own:
            run(own, f"SET search_path = {lab.schema}, public, cerebro, madlib")
            own.notices = []
            yield own
    finally:
        for (run_id,) in lab("SELECT run FROM cerebro.run WHERE pg_get_userbyid(owner) = %s", name):
            lab("SELECT cerebro.forget(%s)", run_id)
        lab(f"DROP OWNED BY {name}")
        lab(f"DROP ROLE {name}")


@pytest.fixture(scope="module", autouse=True)
def registered(lab: Lab) -> Iterator[None]:
    try:
        lab("SELECT add_custom_function('focal', %s, 'loss', 'hard rows count more')", FOCAL)
        told = lab.told()
        assert any("rights of the server's operating-system account" in line for line in told), told
        lab("SELECT add_custom_function('hits', %s, 'metric')", HITS)
        yield
    finally:
        lab("DELETE FROM cerebro.custom_function")


@pytest.fixture(scope="module")
def fitted(lab: Lab) -> int:
    lab.iris(2)
    model = lab.architecture(flower_model())
    lab("SELECT load_model_selection_table('arch', 'mst', ARRAY[%s], ARRAY[%s], ARRAY['batch_size=16'],"
        " 'cerebro.custom_function')", model, NAMED)  # fmt: skip
    assert lab("SELECT object_table FROM mst_summary") == [("cerebro.custom_function",)]
    return lab.fit("train", "flowery", "mst", 2, options=OPTIONS, validation_table="val")


def test_a_run_is_trained_with_them(lab: Lab, fitted: int) -> None:
    compiled = lab.value("SELECT compile FROM configuration WHERE run = %s", fitted)
    top = {"class_name": "TopKCategoricalAccuracy", "config": {"k": 2, "name": "top_2_accuracy"}}
    assert (compiled["loss"], compiled["metrics"]) == ("focal@1", ["hits@1", top])
    status, loss, metric, name = lab(
        "SELECT status, validation_loss, validation_metric, metric_name FROM leaderboard WHERE run = %s", fitted
    )[0]
    assert (status, name) == ("finished", "hits")
    assert 0 < loss < 1 and 0 <= metric <= 1
    assert lab("SELECT metrics FROM hop WHERE run = %s LIMIT 1", fitted)[0][0].keys() == {"hits", "top_2_accuracy"}


def test_they_keep_their_version(lab: Lab, fitted: int) -> None:
    """A new version or a deletion affects only new runs.  Replay, resume, evaluate and predict use the old version."""
    assert lab.value("SELECT add_custom_function('focal', %s, 'loss')", FOCAL.replace("** 2", "** 3")) == 2
    try:
        again = lab.fit("train", "replayed", "mst", 2, options={"replay": fitted})
        assert lab.value("SELECT compile ->> 'loss' FROM configuration WHERE run = %s", again) == "focal@1"
        assert lab.weights("replayed") == lab.weights("flowery")
        lab("SELECT drop_custom_function('focal')")
        assert lab("SELECT name FROM custom_functions") == [("hits",)]
        with pytest.raises(errors.InvalidParameterValue, match="unknown loss 'focal'"):
            lab.fit("train", "nope", "mst", 1)
        lab("SELECT resume(%s, epochs => 3)", again)
        lab("SELECT madlib_keras_evaluate('flowery', 'val', 'judged', NULL, 1)")
        assert lab.value("SELECT loss FROM judged") == pytest.approx(
            lab.value("SELECT validation_loss FROM leaderboard WHERE run = %s", fitted), abs=1e-6
        )
        lab("SELECT madlib_keras_predict('flowery', 'garden', 'id', 'sl, sw, pl, pw', 'said', 'response', false, 1)")
        assert lab.value("SELECT count(*) FROM said") == 30
        with pytest.raises(errors.UndefinedObject, match="no custom function 'focal'"):
            lab("SELECT drop_custom_function('focal')")
    finally:
        assert lab.value("SELECT add_custom_function('focal', %s, 'loss')", FOCAL) == 4


def test_who_may_register(lab: Lab, user: Any) -> None:
    for statement in (
        "SELECT cerebro.add_custom_function('mine', 'def mine(y_true, y_pred): return 0', 'loss')",
        "SELECT cerebro.drop_custom_function('focal')",
        "INSERT INTO cerebro.custom_function (name, version, kind, source) VALUES ('focal', 9, 'loss', 'x')",
        "UPDATE cerebro.custom_function SET source = 'x'",
        "DELETE FROM cerebro.custom_function",
        "TRUNCATE cerebro.custom_function",
    ):
        with pytest.raises(errors.InsufficientPrivilege):
            run(user, statement)
    assert run(user, "SELECT name, kind, source FROM cerebro.custom_functions WHERE name = 'hits'") == [
        ("hits", "metric", HITS)
    ]
    with signed_in(lab, "cerebro_admin") as admin:
        assert run(admin, "SELECT cerebro.add_custom_function('hits', %s, 'metric')", HITS) == [(2,)]
        (me,) = run(admin, "SELECT current_user::text")[0]
        assert run(admin, "SELECT added_by::text FROM cerebro.custom_functions WHERE name = 'hits'") == [(me,)]
        for statement in (
            "UPDATE cerebro.custom_function SET source = 'x'",
            "DELETE FROM cerebro.custom_function",
            "INSERT INTO cerebro.custom_function (name, version, kind, source, registered_by) VALUES"
            " ('hits', 9, 'metric', 'x', 'postgres')",
        ):
            with pytest.raises(errors.InsufficientPrivilege):
                run(admin, statement)


def test_other_tables_of_functions_are_refused(lab: Lab) -> None:
    with pytest.raises(errors.FeatureNotSupported, match=r"custom functions are in cerebro\.custom_function"):
        lab("SELECT load_model_selection_table('arch', 'm2', ARRAY[1], ARRAY[%s], ARRAY[''], 'my_objects')", NAMED)


FORGED = 'def focal(y_true, y_pred):\n    open("{}", "w")\n    return y_pred'


def test_source_in_a_users_json_is_never_executed(lab: Lab, user: Any, fitted: int, tmp_path: Any) -> None:
    """Users can call the functions of worker sessions with any JSON, but source text comes only from the table."""
    canary = tmp_path / "canary"
    tmp_path.chmod(0o777)
    source = FORGED.format(canary)
    learned = {"name": "focal", "version": 7, "kind": "loss", "source": source, "sha256": "0" * 64}
    model, layout = lab("SELECT a.architecture, r.layout FROM architecture a JOIN run r USING (run) WHERE run = %s",
                        fitted)[0]  # fmt: skip
    compiled = {"optimizer": {"class_name": "Adam", "config": {}}, "metrics": [], "loss_weights": None,
                "weighted_metrics": None}  # fmt: skip
    run(user, "SELECT cerebro_internal._worker_open(%s)", json.dumps({"engine": ENGINE, "threads": 1}))

    def describe(loss: Any, **more: Any) -> Any:
        configuration = {"architecture": model, "compile": {**compiled, "loss": loss}, "fit": {}}
        order = {"order": "describe", "configuration": {**configuration, **more}, "layout": layout, **more}
        return json.loads(run(user, "SELECT cerebro_internal._work(%s)", json.dumps(order))[0][0])

    assert "ok" in describe("focal@1")  # A registered function may be used.
    assert describe("focal@7")["error"]["kind"] == "UndefinedObject"
    assert describe("focal@7", functions=[learned])["error"]["kind"] == "InvalidArgument"
    assert "error" in describe("focal", functions=[learned])
    assert "error" in describe({"class_name": "custom", "config": learned}, functions={"focal@7": source})
    assert "error" in describe({"class_name": "focal@7", "config": {"source": source}}, order="describe")
    assert "error" in describe({"class_name": "function", "config": source, "module": "builtins"})
    # Nor through the user's own table, operator or type with a name that the server's query uses.
    run(user, f"CREATE TABLE {lab.schema}.custom_function (LIKE cerebro.custom_function INCLUDING DEFAULTS)")
    run(user, f"INSERT INTO {lab.schema}.custom_function VALUES ('focal', 7, 'loss', %s, 'x')", source)
    run(user, f"CREATE FUNCTION {lab.schema}.yes(text, text) RETURNS bool LANGUAGE sql IMMUTABLE AS 'SELECT true'")
    run(user, f"CREATE OPERATOR {lab.schema}.= (LEFTARG = text, RIGHTARG = text, FUNCTION = {lab.schema}.yes)")
    run(user, f"CREATE DOMAIN {lab.schema}.text AS pg_catalog.text DEFAULT 'focal'")
    run(user, f"SET search_path = {lab.schema}, pg_catalog")
    assert describe("focal@7")["error"]["kind"] == "UndefinedObject"
    run(user, f"SET search_path = {lab.schema}, public, cerebro, madlib")
    run(user, "SELECT cerebro_internal._worker_close()")
    assert not canary.exists()


def test_a_function_that_fails_fails_alone(lab: Lab, fitted: int) -> None:
    lab("SELECT add_custom_function('broken', 'def broken(y_true, y_pred): return y_true / nowhere', 'loss')")
    good, bad = (f"optimizer='Adam(lr=0.02)', loss='{loss}'" for loss in ("focal", "broken"))
    model = lab.value("SELECT min(model_id) FROM arch")
    lab.selection("half", [(model, good, "batch_size=16"), (model, bad, "batch_size=16")])
    done = lab.fit("train", "halves", "half", 1)
    found = dict(lab("SELECT configuration, reason FROM leaderboard WHERE run = %s", done))
    assert found[1] is None and "nowhere" in found[2]
