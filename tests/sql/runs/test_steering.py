"""What people ask of a run, from any session: before it is resumed, and while it goes on."""

from __future__ import annotations

import json
import random
import re
import time
from typing import Any

import psycopg2
import pytest
from psycopg2 import errors

from tests.sql.lab import CROSS, Lab, eventually, flower_model, verb
from tests.sql.users import equip, fit, town

ADAM = f"optimizer='Adam(lr=0.01)', {CROSS}"
SGD = f"optimizer='SGD(lr=0.1)', {CROSS}"
# As flat configurations.
ADDED = {"architecture": flower_model(), "optimizer": "SGD", "learning_rate": 0.1, "batch_size": 32, "passes": 1}
CHANGES = {"lr": 0.001, "batch_size": 8}


@pytest.fixture(scope="module")
def flowers(lab: Lab) -> Lab:
    lab.iris(segments=2)
    arch = lab.architecture(flower_model())
    lab.selection("mst", [(arch, ADAM, "batch_size=16"), (arch, SGD, "batch_size=16")])
    return lab


@pytest.fixture(scope="module")
def done(flowers: Lab) -> int:
    """A finished run of two configurations."""
    return flowers.fit("train", "done", "mst", 2, options={"deterministic": True, "seed": 5})


def refused(lab: Lab, statement: str, *values: Any) -> psycopg2.Error:
    with pytest.raises(psycopg2.Error) as raised:
        lab(statement, *values)
    return raised.value


@pytest.mark.parametrize(
    ("call", "code", "said"),
    [
        ("stop_model(987654321, 1)", "42704", "there is no run 987654321 of yours"),
        ("stop_model(NULL, 1)", "42704", "there is no run NULL of yours"),
        ("stop_model({done})", "22023", "which model of run {done} is meant"),
        ("stop_model({done}, 3)", "42704", "run {done} has no configuration 3"),
        ("stop_model({done}, model => 9)", "42704", "run {done} has no model 9"),
        ("stop_model({done}, 1)", "55000", "is finished; only a model that is waiting or training can be stopped"),
        ("go_on({done}, 1)", "55000", "is finished; only a model that is stopped"),
        ("go_on({done}, 1, repeat('x', 20000))", "55000", "is finished"),
        ("clone_model({done}, 3)", "42704", "no configuration 3"),
        ("clone_model({done}, 1, '[1]')", "22023", "changes must be a JSON object"),
        ("clone_model({done}, 1, '{{\"architecture\": 2}}')", "0A000", "changes cannot contain architecture"),
        ("clone_model({done}, 1, '{{\"epochs\": 2}}')", "22023", "changes: 'epochs' is no parameter"),
        ("clone_model({done}, 1, '{{\"optimizer\": \"SGD\"}}')", "0A000", "change its optimizer from Adam to SGD"),
        ("clone_model({done}, 2, '{{\"momentum\": 0.9}}')", "0A000", "cannot change whether SGD has momentum"),
        ("clone_model({done}, 1, '{{\"fnord\": 2}}')", "22023", "changes: there is no parameter .fnord."),
        ("clone_model({done}, 1, '{{\"batch_size\": 0}}')", "22023", "batch_size=0"),
        ("clone_model({done}, 1, '{{x')", "22P02", "invalid input syntax for type json"),
        ("clone_model({done}, 1, '{{}}', repeat('x', 20000))", "22023", "reason has 20000 characters"),
        ("add_configuration({done}, NULL)", "22023", "parameters is null; it must be an object"),
        ("add_configuration({done}, '{{\"architecture\": \"none\"}}')", "42704", "there is no architecture .none."),
        ("add_configuration({done}, '{{\"units\": 0}}')", "22023", "parameters: units cannot be 0"),
        ("add_configuration({done}, '{{\"optimizer\": \"Nope\"}}')", "22023", "invalid optimizer name"),
        ("add_configuration({done}, '{{\"batch_size\": \"x\"}}')", "22", "batch_size"),
        ("add_configuration({done}, '{{\"lerning_rate\": 1}}')", "22023", "there is no parameter .lerning_rate."),
        ("extend({done}, 2)", "22023", "planned for 2 epochs; epochs cannot be 2"),
        ("extend({done}, NULL)", "22023", "epochs cannot be NULL"),
        ("extend({done}, 2147483647)", "22023", "more hops than can be counted"),
        ("set_budget({done}, NULL)", "22023", "budget cannot be NULL"),
        ("set_budget({done}, 'soon')", "22023", "budget is .soon.; it must be an interval or a JSON object"),
        ("set_budget({done}, '-1 hour')", "22023", "budget is .-1 hour.; it must be longer"),
        ("set_budget({done}, '{{\"seconds\": 0}}')", "22023", "the limit .seconds. of a budget must be"),
        ("set_budget({done}, '{{\"hours\": 1}}')", "22023", "a budget has no limit .hours."),
    ],
)  # fmt: skip
def test_what_cannot_be_asked(flowers: Lab, done: int, call: str, code: str, said: str) -> None:
    before = flowers("SELECT count(*) FROM requests")
    error = refused(flowers, "SELECT " + call.format(done=done, sgd=SGD))
    assert error.pgcode.startswith(code), error
    assert re.search(said.format(done=done), error.diag.message_primary), error
    assert flowers("SELECT count(*) FROM requests") == before


def test_requests_before_a_resume_wait_and_say_so(flowers: Lab, done: int) -> None:
    flowers.told()
    asked = [
        flowers.value("SELECT clone_model(%s, 1, %s, 'too fast')", done, json.dumps(CHANGES)),
        flowers.value("SELECT add_configuration(%s, %s)", done, json.dumps(ADDED)),
        flowers.value("SELECT extend(run => %s, epochs => 4, reason => 'not done')", done),
        flowers.value("SELECT set_budget(%s, %s)", done, json.dumps({"hops": 500})),
    ]
    assert asked == sorted(asked)
    told = [text for text in flowers.told() if text.startswith("NOTICE")]
    assert len(told) == 4
    assert f"run {done} is finished: request {asked[0]} takes effect with SELECT cerebro.resume({done})." in told[0]
    found = flowers(
        "SELECT request_id, action, model, configuration, parameters, reason, status, by = current_user, answered_at"
        " FROM requests WHERE run = %s ORDER BY 1",
        done,
    )
    told = [json.loads(row[4]) for row in found[:2]]
    assert told == [CHANGES, {**ADDED, "architecture": "model"}]
    assert [(*row[1:4], *row[5:]) if row in found[:2] else row[1:] for row in found] == [
        ("clone", 1, 1, "too fast", "waiting", True, None),
        ("add", None, None, None, "waiting", True, None),
        ("extend", None, None, "4 epochs", "not done", "waiting", True, None),
        ("budget", None, None, '{"hops": 500}', None, "waiting", True, None),
    ]


def test_an_architecture_that_was_added_since(flowers: Lab, done: int) -> None:
    """It is part of the request, so that it may be deleted before the request is carried out."""
    flowers("SELECT add_architecture('five', %s)", json.dumps(flower_model(units=5)))
    request = flowers.value("SELECT add_configuration(%s, %s)", done, json.dumps({**ADDED, "architecture": "five"}))
    flowers("SELECT drop_architecture('five')")
    new = flowers.value("SELECT detail -> 'new' -> 'configuration' FROM request WHERE request_id = %s", request)
    assert new.get("model_id") is None and json.loads(new["architecture"]) == flower_model(units=5)


@pytest.mark.parametrize(
    "wrong",
    ["detail => '{\"model\": \"x\"}'", "detail => '{\"model\": 0}'", "detail => '{\"new\": {\"parent\": -1}}'",
     "detail => '{\"epochs\": 1e99}'", "action => 'dance'", "at => 'infinity'", "by => 'pg_monitor'"],
)  # fmt: skip
def test_rows_that_would_break_the_views_are_refused(flowers: Lab, done: int, wrong: str) -> None:
    column, value = wrong.split(" => ", 1)
    columns = {"run": str(done), "action": "'stop'", column: value}
    with town(flowers.dsn) as root:
        user = root.user("writer", "cerebro_user")
        why = errors.InsufficientPrivilege if column == "by" else psycopg2.Error
        user.refused(
            f"INSERT INTO cerebro.request ({', '.join(columns)}) VALUES ({', '.join(columns.values())})", why=why
        )


def test_whose_runs_may_be_steered(server: str) -> None:
    with town(server) as root:
        ann, bob = root.user("ann", "cerebro_user"), root.user("bob", "cerebro_user")
        mona, adam = root.user("mona", "cerebro_monitor", "cerebro_user"), root.user("adam", "cerebro_admin")
        equip(ann)
        done = fit(ann)
        for call in ("clone_model(%s, 1)", "extend(%s, 5)", "set_budget(%s, '{}')", "stop_model(%s, 1)"):
            error = bob.refused(f"SELECT cerebro.{call}", done, why=errors.UndefinedObject)
            assert f"there is no run {done} of yours" in str(error) and ann.name not in str(error)
            error = mona.refused(f"SELECT cerebro.{call}", done)
            assert f'run {done} belongs to "{ann.name}"' in str(error) and "can steer it" in str(error)
        request = adam("SELECT cerebro.clone_model(%s, 1, '{\"lr\": 0.5}', owner => %s)", done, ann.name)[0]
        given = {"architecture": flower_model(), "loss": "mse", "optimizer": "SGD"}
        adam("SELECT cerebro.add_configuration(%s, %s)", done, json.dumps(given))
        for lacking in ({"loss": "mse"}, {"architecture": flower_model()}):
            with pytest.raises(psycopg2.Error, match="the run is another user's"):
                adam("SELECT cerebro.add_configuration(%s, %s)", done, json.dumps(lacking))
        adam("SELECT cerebro.add_architecture('trained', %s, '\\x00000000')", json.dumps(flower_model()))
        with pytest.raises(psycopg2.Error, match=f"has weights of yours, and the run is {ann.name}'s"):
            adam("SELECT cerebro.add_configuration(%s, %s)", done, json.dumps({**given, "architecture": "trained"}))
        assert adam("SELECT by::text FROM cerebro.requests WHERE run = %s", done) == [adam.name] * 2
        assert ann("SELECT by::text FROM cerebro.requests WHERE request_id = %s", request) == [adam.name]
        assert mona("SELECT count(*) FROM cerebro.requests WHERE run = %s", done) == [2]
        assert bob("SELECT count(*) FROM cerebro.requests") == [0]
        for owner in (ann.name, root.root.info.user):
            bob.refused("INSERT INTO cerebro.request (run, owner, action) VALUES (%s, %s, 'stop')", done, owner)
        forged = "INSERT INTO cerebro.request (run, owner, by, action) VALUES (%s, %s, %s, 'stop')"
        adam.refused(forged, done, ann.name, ann.name)
        ann.refused(forged, done, ann.name, adam.name)


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("DELETE FROM {s}.flowers WHERE $1 > 0 RETURNING id AS configuration, 'x'",
         "cannot execute DELETE in a read-only"),
        ("WITH d AS (DELETE FROM {s}.flowers RETURNING id) SELECT id AS configuration, 'x' FROM d WHERE $1 > 0",
         "read-only|WITH clause containing a data-modifying statement"),
        ("SELECT {s}.scribble() AS configuration, 'x' WHERE $1 >= 0",
         "cannot execute INSERT in a read-only transaction"),
        ("SELECT 1 AS configuration, 'x' WHERE $1 > 0; DELETE FROM {s}.flowers",
         "cannot open multi-query plan as cursor"),
        ("SELECT configuration FROM cerebro.metrics WHERE run = $1", "has the columns configuration"),
        ("SELECT run, 'x' FROM cerebro.metrics WHERE run = $1", r"has the columns run, \?column\?"),
        ("SELECT 'x'::text AS configuration, 'y' FROM cerebro.metrics WHERE run = $1", "must be a whole number"),
        ("SELECT configuration, nope FROM cerebro.metrics WHERE run = $1", 'column "nope" does not exist'),
        ("SELECT id AS configuration, 'x' FROM flowers WHERE id = $1", 'relation "flowers" does not exist'),
        pytest.param("SELECT 1 AS configuration, 'x' FROM pg_sleep(60) WHERE $1 >= 0",
                     "canceling statement due to statement timeout", marks=pytest.mark.thorough),  # as a rule below
        ("SELECT configuration, 'x' FROM cerebro.metrics", r"lacks \$1"),
        ("nonsense $1", "syntax error"),
        ("", "stop_when is empty"),
    ],
)  # fmt: skip
def test_a_rule_that_cannot_be_used_is_refused_before_there_is_a_run(flowers: Lab, rule: str, said: str) -> None:
    flowers(
        "CREATE OR REPLACE FUNCTION scribble() RETURNS integer LANGUAGE sql AS"
        f" 'INSERT INTO {flowers.schema}.flowers (id) VALUES (-1); SELECT 1'"
    )
    before = flowers("SELECT count(*) FROM runs") + flowers("SELECT count(*) FROM flowers")
    fit = "SELECT fit('train', 'never', 'mst', epochs => 2, stop_when => %s)"
    error = refused(flowers, fit, rule.format(s=flowers.schema))
    assert error.pgcode == "22023" and re.search(said, error.diag.message_primary), error
    assert "$1 is the number of the run" in error.diag.message_hint
    assert flowers("SELECT count(*) FROM runs") + flowers("SELECT count(*) FROM flowers") == before
    flowers.require_no_orphans()


def test_a_finished_run_is_resumed_for_requests(flowers: Lab) -> None:
    """Requests that nobody has carried out yet take effect with resume, in the order of their numbers.

    Among them are rows that were written by hand and make no sense: these are refused.
    """
    first = flowers.fit("train", "resumed", "mst", 2, options={"deterministic": True, "seed": 5})
    kept = flowers.states(first)
    flowers("SELECT clone_model(%s, 1, '{\"lr\": 0.001}', 'smaller steps')", first)
    flowers("SELECT add_configuration(%s, %s)", first, json.dumps({**ADDED, "architecture": flower_model(units=6)}))
    nonsense = ["{}", '{"model": 77}', '{"new": {"parent": 99}}', '{"new": [1]}', '{"epochs": 2}', '{"hops": 0}']
    for detail in nonsense:
        for action in ("stop", "go on", "add", "extend"):
            flowers("INSERT INTO request (run, action, detail) VALUES (%s, %s, %s)", first, action, detail)
    flowers("INSERT INTO request (run, action, detail) VALUES (%s, 'budget', '{\"hops\": 0}')", first)
    bad = {
        "new": {"configuration": {"compile_params": "optimizer='Nope', loss='mse'", "fit_params": "", "model_id": 1}}
    }
    flowers("INSERT INTO request (run, action, detail) VALUES (%s, 'add', %s)", first, json.dumps(bad))
    flowers("SELECT extend(%s, 4)", first)
    flowers.told()
    flowers("SELECT resume(%s)", first)
    told = [text for text in flowers.told() if ": request " in text or " request " in text]
    for text in ("configuration 3 is added, a clone of configuration 1: smaller steps", "the run has 4 epochs now",
                 "configuration 4 is added", "refused: the run has no model 77"):  # fmt: skip
        assert any(text in one for one in told), (text, told)
    asked = "SELECT action FROM requests WHERE run = %s AND status = %s ORDER BY request_id"
    assert flowers(asked, first, "done") == [("clone",), ("add",), ("extend",)]
    assert len(flowers(asked, first, "refused")) == 4 * len(nonsense) + 2 and not flowers(asked, first, "waiting")
    why = dict(flowers("SELECT refusal, 1 FROM requests WHERE run = %s AND status = 'refused'", first))
    assert {"the run has no model 77", "the run is planned for 2 epochs already"} <= why.keys() and None not in why
    assert any("Nope" in one for one in why), "a configuration that would fail is no model"
    board = flowers(
        "SELECT model, configuration, status, epochs_done, parameters -> 'batch_size' FROM leaderboard WHERE run = %s"
        " ORDER BY model",
        first,
    )
    assert board == [
        (1, 1, "finished", 4, 16), (2, 2, "finished", 4, 16), (3, 3, "finished", 4, 16), (4, 4, "finished", 4, 32),
    ]  # fmt: skip
    assert kept.keys() == {1, 2}
    with pytest.raises(psycopg2.Error, match="is finished"):
        flowers("SELECT resume(%s)", first)


def test_a_search_with_parameters_of_architectures_takes_a_configuration(flowers: Lab) -> None:
    """Also a clone, which was chosen as its parent was, but for its changes."""
    flowers("SELECT add_architecture('sized', %s)", json.dumps(flower_model(units="$width")))
    space = {"architecture": "sized", "width": {"choice": [4, 5]}, "learning_rate": 0.01, "batch_size": 16}
    run = flowers.value(*verb("search", "train", "sized_models", space, epochs=1, method="grid"))
    flowers("SELECT add_configuration(%s, %s)", run, json.dumps({"architecture": "sized", "width": 7, "batch_size": 8}))
    flowers("SELECT clone_model(%s, 1, %s)", run, json.dumps({"batch_size": 8}))
    flowers("SELECT resume(%s, epochs => 2)", run)
    assert flowers("SELECT DISTINCT status FROM requests WHERE run = %s", run) == [("done",)]
    found = flowers("SELECT model, status, chosen FROM leaderboard WHERE run = %s ORDER BY model", run)
    assert [row[:2] for row in found] == [(number, "finished") for number in (1, 2, 3, 4)]
    assert found[3][2] == {**found[0][2], "batch_size": 8}


# -- while the run goes on ---------------------------------------------------------------------------------


def hops(lab: Lab, run: int) -> int:
    return lab.value("SELECT count(*) FROM hop WHERE run = %s", run)


def kill(lab: Lab, run: int) -> None:
    """End the session that drives a run, and let another one go on."""
    lab.end_driver(run)
    if lab.ended(run) == "interrupted":
        lab("SELECT resume(%s, wait => false)", run)


def waits(lab: Lab, pause: float) -> str:
    """A rule that names a model that no run has, after a pause; another call changes the pause."""
    lab("CREATE TABLE IF NOT EXISTS pace (pause float8)")
    lab("DELETE FROM pace; INSERT INTO pace VALUES (%s)", pause)
    return f"SELECT 99 AS model, 'nobody' FROM pg_sleep((SELECT pause FROM {lab.schema}.pace)) WHERE $1 > 0"


@pytest.mark.thorough  # tests/core/test_searches.py has people, crashes and replays, as has test_driver.py
def test_a_run_that_is_steered_killed_and_resumed_has_the_bits_of_its_replay(flowers: Lab) -> None:
    """Requests come while the run goes on, some of them just before its driver is killed."""
    chance = random.Random(7)
    # The rule stops nothing. Each epoch waits for it, so the run goes on while all of this happens.
    slowly = waits(flowers, 0.25)
    options = {"deterministic": True, "seed": 11, "stop_when": slowly}
    run = flowers.submit("train", "wheel", "mst", 40, options=options)
    steps = [
        "SELECT clone_model(%s, 1, '{\"lr\": 0.001, \"batch_size\": 8}', 'smaller steps')",
        "SELECT stop_model(%s, 2, 'far off')",
        f"SELECT add_configuration(%s, '{json.dumps(ADDED)}')",
        "SELECT go_on(%s, 2, 'too early')",
        "SELECT clone_model(%s, 2)",
        "SELECT extend(%s, 44)",
        "SELECT stop_model(%s, model => 5, reason => 'enough')",
    ]
    requests = []
    for place, step in enumerate(steps):
        wanted = hops(flowers, run) + chance.randint(2, 8)
        eventually(lambda: hops(flowers, run) >= wanted, 200, f"{wanted} hops")  # noqa: B023
        requests.append(flowers.value(step, run))
        if place % 3 == 1:
            time.sleep(chance.uniform(0, 1.2))
            kill(flowers, run)
        answer(flowers, requests[-1])
    kill(flowers, run)
    waits(flowers, 0)
    eventually(lambda: flowers.status(run) == "finished", 120, "the run is finished")
    assert flowers("SELECT action, status FROM requests WHERE run = %s ORDER BY request_id", run) == [
        ("clone", "done"), ("stop", "done"), ("add", "done"), ("go on", "done"), ("clone", "done"), ("extend", "done"),
        ("stop", "done"),
    ]  # fmt: skip
    board = "SELECT model, configuration, status, epochs_done, reason FROM leaderboard WHERE run = %s ORDER BY model"
    assert [row[:3] for row in flowers(board, run)] == [
        (1, 1, "finished"), (2, 2, "finished"), (3, 3, "finished"), (4, 4, "finished"), (5, 2, "stopped"),
    ]  # fmt: skip
    assert flowers("SELECT initial, parent FROM model WHERE run = %s AND model IN (3, 5) ORDER BY model", run) == [
        ("full", 1), ("full", 2)
    ]  # fmt: skip
    told = "SELECT decision, model, decided_by, reason, added FROM decisions WHERE run = %s AND request_id = %s"
    assert flowers(told, run, requests[1]) == [("stop", 2, "request", "far off", None)]
    assert flowers(told, run, requests[0])[0][4] == "3"
    again = flowers.fit("train", "wheel_again", "mst", 40, options={"replay": run})
    assert flowers(board, again) == flowers(board, run)
    assert flowers.states(again) == flowers.states(run)


def answer(lab: Lab, request: int) -> str:
    """Wait until a request has been answered; returns how."""

    def status() -> str:
        found: str = lab.value("SELECT status FROM requests WHERE request_id = %s", request)
        return "" if found == "waiting" else found

    return str(eventually(status, 60, f"request {request}"))


# -- rules -------------------------------------------------------------------------------------------------


def test_a_rule_stops_what_it_names(flowers: Lab) -> None:
    rule = (
        "SELECT configuration, format('epoch %s is enough', max(epoch)) FROM cerebro.learning_curve"
        " WHERE run = $1 AND configuration = 2 GROUP BY configuration HAVING max(epoch) >= 2;"
    )
    options = json.dumps({"deterministic": True, "seed": 3})
    run = flowers.value(
        "SELECT fit('train', 'ruled', 'mst', epochs => 4, options => %s, stop_when => %s)", options, rule
    )
    board = "SELECT model, status, epochs_done, reason FROM leaderboard WHERE run = %s ORDER BY model"
    expected = [(1, "finished", 4, None), (2, "stopped", 2, "epoch 2 is enough")]
    assert flowers(board, run) == expected
    decided = "SELECT model, epoch, decided_by FROM decisions WHERE run = %s AND decision = 'stop'"
    assert flowers(decided, run) == [(2, 2, "rule")]
    assert flowers("SELECT count(*) FROM ruled") == [(2,)], "the stopped model can be used"
    flowers.require_no_orphans()
    again = flowers.fit("train", "ruled_again", "mst", 4, options={"replay": run})
    assert flowers(board, again) == expected
    assert flowers.states(again) == flowers.states(run)


def test_a_rule_that_fails_while_the_run_goes_on_warns_once_and_stops_nothing(flowers: Lab) -> None:
    """Each cause is told once: an error, a writing function, and at last a query that takes too long."""
    flowers(
        "CREATE FUNCTION trouble(epoch integer) RETURNS text LANGUAGE plpgsql AS $$ BEGIN"
        " IF epoch < 3 THEN RAISE EXCEPTION 'I do not feel well'; END IF;"
        f" IF epoch < 5 THEN INSERT INTO {flowers.schema}.flowers (id) VALUES (-1); END IF;"
        " PERFORM pg_sleep(60); RETURN 'never'; END $$"
    )
    rule = (
        f"SELECT configuration, {flowers.schema}.trouble(max(epoch)) FROM cerebro.learning_curve WHERE run = $1"
        " GROUP BY configuration ORDER BY max(epoch) LIMIT 1"
    )
    flowers.told()
    run = flowers.value(
        "SELECT fit('train', 'unwell', 'mst', epochs => 6, options => '{\"seed\": 3}', stop_when => %s)", rule
    )
    warned = [text for text in flowers.told() if "stop_when failed and stops nothing" in text]
    # A segment of Greenplum refuses a function that writes before the transaction does.
    causes = [
        "I do not feel well",
        "in a read-only transaction|issues a non-SELECT statement",
        "due to statement timeout",
    ]
    assert len(warned) == 3 and all(re.search(cause, text) for cause, text in zip(causes, warned)), warned
    found = flowers(
        "SELECT decision, decided_by, reason FROM decisions WHERE run = %s AND decision <> 'continue'"
        " ORDER BY decision_id", run,
    )  # fmt: skip
    assert [row[:2] for row in found] == [("refuse", "rule")] * 3
    assert all(re.search(cause, row[2]) for cause, row in zip(causes, found))
    assert flowers("SELECT status, epochs_done FROM leaderboard WHERE run = %s", run) == [("finished", 6)] * 2


def test_a_budget_that_is_spent_and_raised(flowers: Lab) -> None:
    """What stopped because of the budget trains on with a larger one, to the same bits as without any."""
    options = {"deterministic": True, "seed": 5}
    whole = flowers.fit("train", "unbound", "mst", 3, options=options)
    run = flowers.fit("train", "bound", "mst", 1, options=options)
    flowers("SELECT extend(%s, 3), set_budget(%s, %s, 'enough for now')", run, run, json.dumps({"hops": 7}))
    flowers("SELECT resume(%s)", run)
    board = "SELECT status, reason FROM leaderboard WHERE run = %s"
    assert flowers.value("SELECT count(*) FROM hop WHERE run = %s", run) == 7
    assert ("stopped", "budget") in flowers(board, run)
    ended = "SELECT detail ->> 'reason' FROM event WHERE run = %s AND event = 'finished' ORDER BY event_id DESC LIMIT 1"
    assert flowers.value(ended, run) == "budget" and flowers.value("SELECT count(*) FROM bound") == 2
    assert flowers("SELECT status, reason FROM runs WHERE run = %s", run) == [("finished", "budget")]
    assert flowers(
        "SELECT decision, reason, decided_by FROM decisions WHERE run = %s AND decision = 'budget'", run
    ) == [("budget", "enough for now", "request")]
    flowers("SELECT set_budget(%s, '{}')", run)
    flowers("SELECT resume(%s)", run)
    assert flowers("SELECT status, reason FROM runs WHERE run = %s", run) == [("finished", None)]
    assert flowers(board, run) == [("finished", None)] * 2
    assert flowers.states(run) == flowers.states(whole)


def test_the_model_table_has_no_model_that_has_seen_a_part_of_the_rows_only(flowers: Lab) -> None:
    flowers.told()
    run = flowers.fit("train", "short", "mst", 3, options={"budget": {"hops": 2}})
    assert any("no configuration has completed an epoch" in line for line in flowers.told())
    assert flowers.value("SELECT count(*) FROM short") == 2, "better than no table"
    flowers("SELECT set_budget(%s, %s)", run, json.dumps({"hops": 3}))
    flowers.told()
    flowers("SELECT resume(%s)", run)
    board = dict(flowers("SELECT configuration, epochs_done FROM leaderboard WHERE run = %s", run))
    (trained,), (untrained,) = ([key for key in board if (board[key] > 0) is done] for done in (True, False))
    assert flowers("SELECT mst_key FROM short") == [(trained,)]
    assert flowers("SELECT mst_key FROM short_info WHERE which IS NULL") == [(untrained,)]
    said = f"no model of configuration {untrained}, because no epoch was completed"
    assert any(said in line for line in flowers.told())


def test_a_rule_beside_a_search_method_whose_session_is_ended(flowers: Lab) -> None:
    """The rule names a model that the run does not have.  Its session is opened again for the next epoch."""
    options = {"method": "patience", "stop_when": waits(flowers, 0.5), "seed": 3}
    run = flowers.submit("train", "beside", "mst", 5, options=options)
    end_it = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE application_name = 'cerebro_db rule' AND state = 'active'"
    )
    eventually(lambda: flowers(end_it), 60, "the rule is asked")
    waits(flowers, 0)
    eventually(lambda: flowers.status(run) == "finished", 60, "the run is finished")
    found = flowers("SELECT reason FROM decisions WHERE run = %s AND decided_by = 'rule'", run)
    # Greenplum's session does not say why it ends.
    assert len(found) == 1 and re.search("terminating connection|closed the connection", found[0][0])
    assert flowers("SELECT DISTINCT decided_by FROM decisions WHERE run = %s AND decision = 'continue'", run) == [
        ("patience",)
    ]
    assert flowers.value("SELECT count(*) FROM decisions WHERE run = %s AND epoch = 5", run) == 2
