"""Resident predictors: trainers that stay after their sessions, for whom they stay, and what ends them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg2
import pytest
from psycopg2.extensions import make_dsn, parse_dsn

from tests.sql.lab import Lab, eventually, run
from tests.sql.memory import SGD, compiled, model_of, proportional
from tests.sql.predicting.test_remembered import CHANGES
from tests.thorough import landing

pytestmark = [pytest.mark.needs_cluster, pytest.mark.throw_away]

READERS = ("reader_of_models", "other_reader")  # the first one is that of CHANGES
ROW = "SELECT 7 AS id, 5.1::real AS sl, 3.5::real AS sw, 1.4::real AS pl, 0.2::real AS pw"
ROWS = "SELECT i AS id, i / 1000.0::real AS sl, 3.5::real AS sw, 1.4::real AS pl, 0.2::real AS pw FROM {} AS i"
ASK = "SELECT class, probability FROM cerebro.predict('model', $q${}$q$)"
IMPORTED = "cerebro_plpy.predicting.streaming"


@pytest.fixture(scope="module")
def place(lab: Lab) -> Iterator[Lab]:
    if lab.greenplum:
        pytest.skip("on Greenplum trainers end with their sessions")
    lab.iris(segments=1)
    configurations = [{"architecture": "mlp", "units": 8, "learning_rate": rate} for rate in (0.001, 0.1)]
    lab(
        "SELECT cerebro.fit('flowers', 'model', %s, target => 'species', inputs => 'sl, sw, pl, pw', epochs => 2,"
        " segments => 1, options => %s)",
        json.dumps(configurations),
        json.dumps({"deterministic": True, "seed": 1}),
    )
    for role in READERS:
        lab(
            f"CREATE ROLE {role} LOGIN PASSWORD 'x' IN ROLE cerebro_user;"
            f" GRANT USAGE ON SCHEMA {lab.schema} TO {role};"
            f" GRANT SELECT ON model, model_info, model_summary TO {role}"
        )
    try:
        yield lab
    finally:
        for role in READERS:
            lab(f"DROP OWNED BY {role}; DROP ROLE {role}")


@pytest.fixture(autouse=True)
def nothing_left(place: Lab) -> Iterator[None]:
    yield
    place("DELETE FROM cerebro.role_limit")

    def are_gone() -> bool:
        left = kept(place)  # a session that has just ended may leave one more
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not left

    eventually(are_gone, 30, "the predictors are gone")


def connected(place: Lab, role: str = READERS[0]) -> Any:
    session = psycopg2.connect(make_dsn(**{**parse_dsn(place.dsn), "user": role, "password": "x"}))
    session.autocommit = True
    run(session, f"SET search_path = {place.schema}, cerebro, public")
    return session


def in_folders(place: Lab, begin: str) -> list[int]:
    """The trainers of this server whose scratch folders have names that begin like this."""
    assert place.home is not None
    found = []
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            of_ours = os.fsencode(place.home) in (process / "cmdline").read_bytes()
            if process.name.isdigit() and of_ours and os.path.basename(os.readlink(process / "cwd")).startswith(begin):
                found.append(int(process.name))
    return sorted(found)


def kept(place: Lab) -> list[int]:
    """The predictors that no session has."""
    return in_folders(place, "kept-")


def trainers_of(place: Lab, session: Any) -> list[int]:
    return in_folders(place, f"{session.info.backend_pid}-")


def leave_one(place: Lab, role: str = READERS[0], query: str = ROW) -> tuple[int, Any]:
    """Predict in a session that ends; the trainer that it has left, and its answer."""
    with contextlib.closing(connected(place, role)) as session:
        answer = run(session, ASK.format(query))
        (pid,) = trainers_of(place, session)
    eventually(lambda: pid in kept(place), 30, "the trainer is kept")
    return pid, answer


# -- who gets it --------------------------------------------------------------------------------------------


def test_the_next_session_of_the_role_gets_it_and_imports_little(place: Lab) -> None:
    me = place.value("SELECT current_user::text")
    with contextlib.closing(place.connect()) as session:
        expected = run(session, ASK.format(ROW))
        (pid,) = trainers_of(place, session)
    eventually(lambda: pid in kept(place), 30, "the trainer is kept")
    for _ in range(3):
        with contextlib.closing(place.connect()) as session:
            assert [run(session, ASK.format(ROW)) for _ in range(3)] == [expected] * 3
            assert trainers_of(place, session) == [pid]
            run(session, f"DO LANGUAGE plpython3u $$import sys; assert '{IMPORTED}' not in sys.modules$$")
        eventually(lambda: pid in kept(place), 30, f"the trainer of {me} is kept again")


def test_the_name_of_a_table_is_served_as_a_query_is(place: Lab) -> None:
    place(f"CREATE TABLE one_flower AS {ROW}")
    place('CREATE VIEW "a flower; --" AS TABLE one_flower')
    names = "one_flower", f" {place.schema}.one_flower ", '"a flower; --"'
    with contextlib.closing(place.connect()) as session:
        expected = run(session, ASK.format(ROW))
        assert [run(session, ASK.format(name)) for name in names] == [expected] * 3
        run(session, ASK.format("one_flower"))
        (pid,) = trainers_of(place, session)
    eventually(lambda: pid in kept(place), 30, "the trainer is kept")
    with contextlib.closing(place.connect()) as session:
        assert [run(session, ASK.format(name)) for name in names[:2]] == [expected] * 2
        assert trainers_of(place, session) == [pid]
        run(session, f"DO LANGUAGE plpython3u $$import sys; assert '{IMPORTED}' not in sys.modules$$")
        assert run(session, ASK.format(names[2])) == expected


def test_a_model_of_arrays_has_a_recipe_too(place: Lab) -> None:
    place("CREATE TABLE points AS SELECT id, ARRAY[sl, sw, pl, pw] AS x, species FROM flowers")
    place(
        "SELECT cerebro.fit('points', 'of_arrays', %s, target => 'species', inputs => 'x', epochs => 1, segments => 1)",
        json.dumps([{"architecture": "mlp", "units": 4}]),
    )
    ask = "SELECT class, probability FROM predict('of_arrays', 'SELECT * FROM points WHERE id = 6')"
    with contextlib.closing(place.connect()) as session:
        expected = [run(session, ask) for _ in range(3)]
        (pid,) = trainers_of(place, session)
    eventually(lambda: pid in kept(place), 30, "the trainer is kept")
    with contextlib.closing(place.connect()) as session:
        assert [run(session, ask) for _ in range(3)] == expected == expected[:1] * 3
        run(session, f"DO LANGUAGE plpython3u $$import sys; assert '{IMPORTED}' not in sys.modules$$")
        with pytest.raises(psycopg2.Error, match="an array of shape"):
            run(session, ask.replace("SELECT *", "SELECT id, x[1:3] AS x"))


def test_another_role_gets_its_own(place: Lab) -> None:
    pid, expected = leave_one(place)
    with contextlib.closing(connected(place, READERS[1])) as other:
        assert run(other, ASK.format(ROW)) == expected
        assert trainers_of(place, other) != [pid] and pid in kept(place)
    with contextlib.closing(place.connect()) as session:  # a superuser is another role, too, until it takes this one
        run(session, ASK.format(ROW))
        assert pid in kept(place)
        run(session, f"SET ROLE {READERS[0]}")
        assert run(session, ASK.format(ROW)) == expected


def test_a_role_that_changes_within_a_session_leaves_its_predictor(place: Lab) -> None:
    leave_one(place)
    with contextlib.closing(place.connect()) as session:
        run(session, f"SET ROLE {READERS[0]}")
        run(session, ASK.format(ROW))
        first = trainers_of(place, session)
        run(session, f"SET ROLE {READERS[1]}")
        run(session, ASK.format(ROW))
        assert trainers_of(place, session) and not set(first) & set(trainers_of(place, session))


@pytest.mark.parametrize(
    "change",
    landing(  # test_remembered.py has all of them in a session
        CHANGES,
        "the best model is another one",
        "a model has other weights",
        "a table beside it may not be read",
        "the schema may not be used",
        "a policy hides all rows",
        "another table has the name",
    ),
)
def test_after_any_change_of_the_model_a_new_session_answers_as_if_there_were_none(place: Lab, change: str) -> None:
    do, undo = (text.replace("{schema}", place.schema) for text in CHANGES[change])

    def answer() -> Any:
        with contextlib.closing(connected(place)) as session:
            try:
                return run(session, ASK.format(ROW))
            except psycopg2.Error as error:
                return error.pgcode, error.diag.message_primary

    _, before = leave_one(place)
    for statement in do.split("; ") if "VACUUM" in do else [do]:
        place(statement)
    try:
        found = [answer(), answer()]
        place("SELECT cerebro.set_limits(NULL, max_predictors => 0)")
        expected = answer()
    finally:
        place(undo)
        place("DELETE FROM cerebro.role_limit")
    assert found == [expected] * 2
    assert answer() == before


# -- what is not the usual case -----------------------------------------------------------------------------


ODD = {
    "many rows": (ROWS.format("generate_series(1, 3000)"), None),
    "no row": (ROW + " WHERE false", None),
    "other columns": (ROW.replace("7 AS id", "8 AS number, 'a' AS said"), None),
    "not a number": (ROW.replace("3.5", "'nan'"), "rows are NaN or infinite"),
    "a NULL": (ROW.replace("3.5::real", "NULL::real"), None),
    "a key that is NULL": (ROW.replace("7 AS id", "NULL::int AS id"), None),
    "a key that is not unique": (ROWS.format("generate_series(1, 3)").replace("i AS id", "1 AS id"), None),
    "a column is missing": ("SELECT 1 AS id, 2.0::real AS sl", "does not have the inputs"),
    "an error of the query": (ROW.replace("7 AS id", "1 / 0 AS id"), "division by zero"),
    "an error of a later row": (
        ROWS.format("generate_series(1, 3)").replace("3.5", "(1 / (3 - i))"),
        "division by zero",
    ),
    "no query": ("", "query must not be empty"),
    "a name": ("model", "does not have the inputs"),
    "no SQL": ("SELECT SELECT", "syntax error"),
    "a semicolon": (ROW + " ; ", None),
    "a comment at the end": (ROW + " -- the row", None),
    "a function of ours within": (
        "SELECT 7 AS id, p.probability::real AS sl, 3.5::real AS sw, 1.4::real AS pl, 0.2::real AS pw"
        f" FROM cerebro.predict('model', '{ROW}') p",
        "whose rows are being predicted cannot call it",
    ),
}


def test_rows_that_a_recipe_does_not_serve(place: Lab) -> None:
    """In one test, because each new predictor takes longer than all its answers."""

    def answer(session: Any, query: str) -> Any:
        try:
            return run(session, ASK.format(query))
        except psycopg2.Error as error:
            return error.pgcode, error.diag.message_primary, error.diag.message_hint

    place("SELECT cerebro.set_limits(NULL, max_predictors => 0)")
    with contextlib.closing(connected(place)) as session:
        expected = {case: [answer(session, query) for _ in range(2)][1] for case, (query, _) in ODD.items()}
    place("DELETE FROM cerebro.role_limit")
    for case, (query, why) in ODD.items():
        assert why is None or why in expected[case][1], case
        if not kept(place):  # some errors end a predictor
            leave_one(place)
        with contextlib.closing(connected(place)) as session:
            assert answer(session, query) == expected[case], case
            assert run(session, ASK.format(ROW)) and answer(session, query) == expected[case], case
            left = trainers_of(place, session)
        if left:
            eventually(lambda: not in_folders(place, f"{session.info.backend_pid}-"), 30, "the trainer is kept")


@pytest.mark.parametrize("case", ["a semicolon", "no row", "a comment at the end"])
def test_rows_that_need_no_imports(place: Lab, case: str) -> None:
    with contextlib.closing(place.connect()) as session:
        run(session, ASK.format(ROW))
    eventually(lambda: kept(place), 30, "the trainer is kept")
    with contextlib.closing(place.connect()) as session:
        run(session, ASK.format(ODD[case][0]))
        run(session, f"DO LANGUAGE plpython3u $$import sys; assert '{IMPORTED}' not in sys.modules$$")


def test_schemas_in_which_one_name_means_two_tables(place: Lab) -> None:
    """Their sessions have predictors of their own, and do not end those of each other."""
    leave_one(place)
    place("CREATE SCHEMA elsewhere")
    for table in ("model", "model_info", "model_summary"):
        place(f"CREATE TABLE elsewhere.{table} AS TABLE {table}; GRANT SELECT ON elsewhere.{table} TO {READERS[0]}")
    place(f"GRANT USAGE ON SCHEMA elsewhere TO {READERS[0]}")
    try:
        before = kept(place)
        with contextlib.closing(connected(place)) as session:
            run(session, "SET search_path = elsewhere, cerebro, public")
            assert run(session, ASK.format(ROW))
            assert kept(place) == before
    finally:
        place("DROP SCHEMA elsewhere CASCADE")


def test_a_model_that_changes_while_a_query_is_handed_over(place: Lab) -> None:
    leave_one(place, query=ROWS.format("generate_series(1, 3)"))
    slow = ROWS.format("generate_series(1, 3000)") + ", pg_sleep(2)"
    with contextlib.closing(connected(place)) as session:
        changing = threading.Timer(1, lambda: place("UPDATE model_info SET reason = 'changed'"))
        changing.start()
        with pytest.raises(psycopg2.Error, match="was changed while the rows were read"):
            run(session, ASK.format(slow))
        changing.join()
        assert len(run(session, ASK.format(ROW))) == 1


def test_within_a_transaction_that_changed_the_model(place: Lab) -> None:
    with contextlib.closing(place.connect()) as session:
        before = run(session, ASK.format(ROW))
    eventually(lambda: kept(place), 30, "the trainer is kept")
    with contextlib.closing(place.connect()) as session:
        run(session, "BEGIN")
        assert run(session, ASK.format(ROW)) == before
        run(
            session,
            "UPDATE model m SET weights = (SELECT weights FROM model o WHERE o.configuration <> m.configuration)",
        )
        changed = run(session, ASK.format(ROW))
        assert changed != before
        run(session, "ROLLBACK")
        assert run(session, ASK.format(ROW)) == before
    with contextlib.closing(place.connect()) as session:
        assert run(session, ASK.format(ROW)) == before


# -- what ends it -------------------------------------------------------------------------------------------


def test_a_session_that_ends_while_it_predicts_leaves_none(place: Lab) -> None:
    """Else the next session would read the answer to its rows."""
    pid, expected = leave_one(place)
    session = connected(place)
    run(session, "SELECT 1")
    os.kill(pid, signal.SIGSTOP)
    failed: list[BaseException] = []

    def ask() -> None:
        try:
            run(session, ASK.format(ROW.replace("5.1", "9.9")))
        except BaseException as error:
            failed.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        eventually(lambda: pid in trainers_of(place, session), 30, "the session has it")
        time.sleep(0.3)
        place("SELECT pg_terminate_backend(%s)", session.info.backend_pid)
        asking.join(30)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    assert failed and not asking.is_alive()
    eventually(lambda: not Path(f"/proc/{pid}/exe").exists(), 30, "it is ended")
    with contextlib.closing(connected(place)) as another:
        assert run(another, ASK.format(ROW)) == expected


def test_a_cancel_ends_a_predictor_that_works(place: Lab) -> None:
    pid, expected = leave_one(place)
    with contextlib.closing(connected(place)) as session:
        run(session, "SET statement_timeout = '1s'")
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(psycopg2.errors.QueryCanceled, match="^cerebro.predict: canceling statement"):
                run(session, ASK.format(ROW))
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        run(session, "SET statement_timeout = 0")
        assert run(session, ASK.format(ROW)) == expected
    assert pid not in kept(place)


def test_a_predictor_that_is_killed_is_replaced(place: Lab) -> None:
    pid, expected = leave_one(place)
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: not kept(place), 30, "it is gone")
    pid, _ = leave_one(place)
    with contextlib.closing(connected(place)) as session:
        assert run(session, ASK.format(ROW)) == expected
        os.kill(pid, signal.SIGKILL)
        assert run(session, ASK.format(ROW)) == expected
    (pid,) = eventually(lambda: kept(place), 30, "its successor is kept")
    with contextlib.closing(connected(place)) as session:  # while the rows are read
        killer = threading.Timer(0.5, os.kill, (pid, signal.SIGKILL))
        killer.start()
        assert run(session, ASK.format(f"SELECT q.* FROM ({ROW}) q, pg_sleep(1)")) == expected
        killer.join()


def test_it_ends_when_nobody_wants_it(place: Lab) -> None:
    place("SELECT cerebro.set_limits(NULL, max_waiting_seconds => 2)")
    leave_one(place)
    eventually(lambda: not kept(place), 20, "its rest is over")
    place("SELECT cerebro.set_limits(NULL, max_waiting_seconds => 0)")
    with contextlib.closing(connected(place)) as session:
        run(session, ASK.format(ROW))
    time.sleep(0.5)
    assert kept(place) == []


def test_the_role_has_so_many_and_no_more(place: Lab) -> None:
    place("SELECT cerebro.set_limits(NULL, max_predictors => 2)")
    sessions = [connected(place) for _ in range(4)]
    answers = [run(session, ASK.format(ROW)) for session in sessions]
    assert answers == answers[:1] * 4
    theirs = {pid for session in sessions for pid in trainers_of(place, session)}
    assert len(theirs) == 4
    for session in sessions:
        session.close()
    eventually(
        lambda: (
            len(kept(place)) == 2
            and not [pid for pid in theirs - set(kept(place)) if Path(f"/proc/{pid}/exe").exists()]
        ),
        30,
        "two end",
    )
    found = place.value("SELECT found FROM cerebro.doctor() WHERE check_name = 'nursery'")
    assert "resident predictors without a session: 2" in found
    place("SELECT cerebro.set_limits(NULL, max_predictors => 0)")
    with contextlib.closing(connected(place)) as session:  # another limit: the predictor that it meets ends
        assert run(session, ASK.format(ROW)) == answers[0]
    eventually(lambda: len(kept(place)) == 1, 30, "it has ended")


def test_a_function_that_the_planner_runs_may_predict_too(place: Lab) -> None:
    """With another predictor. The rows still go to the one that was asked for."""
    place(
        "CREATE FUNCTION seven() RETURNS integer LANGUAGE plpgsql IMMUTABLE AS $f$ BEGIN"
        " IF COALESCE(current_setting('test.once', true), '') = '' THEN"
        f"  PERFORM set_config('test.once', 'x', false), class FROM cerebro.predict('model', $q${ROW}$q$, top => 2);"
        " END IF; RETURN 7; END $f$"
    )
    with contextlib.closing(connected(place)) as session:
        run(session, f"SELECT class FROM cerebro.predict('model', $q${ROW}$q$, top => 2)")
    eventually(lambda: len(kept(place)) == 1, 30, "the other predictor is kept")
    _, expected = leave_one(place)
    try:
        with contextlib.closing(connected(place)) as session:
            assert run(session, ASK.format(ROW.replace("7 AS id", "seven() AS id"))) == expected
            assert run(session, "SHOW test.once") == [("x",)]
    finally:
        place("DROP FUNCTION seven()")


def test_descriptors_do_not_reach_programs_of_the_server(place: Lab) -> None:
    leave_one(place)
    with contextlib.closing(connected(place)) as session:
        own = Path(f"/proc/{session.info.backend_pid}")

        def inherited() -> set[str]:
            """The pipes, sockets and memory files that a program which this session starts would have."""
            found = set()
            for one in (own / "fd").iterdir():
                flags = int((own / "fdinfo" / one.name).read_text().split("flags:")[1].split()[0], 8)
                if not flags & os.O_CLOEXEC and os.readlink(one).startswith(("pipe:", "socket:", "/memfd:")):
                    found.add(one.name)
            return found

        before = inherited()
        run(session, ASK.format(ROW))
        assert trainers_of(place, session) and inherited() <= before


def test_eight_sessions_at_once(place: Lab) -> None:
    _, expected = leave_one(place)
    found: list[Any] = []

    def ask() -> None:
        for _ in range(3):
            with contextlib.closing(connected(place)) as session:
                found.extend(run(session, ASK.format(ROW)) for _ in range(2))

    asking = [threading.Thread(target=ask) for _ in range(8)]
    for one in asking:
        one.start()
    for one in asking:
        one.join(120)
    assert found == [expected] * 48
    eventually(lambda: len(kept(place)) <= 8, 30, "eight stay at most")


# -- models that are cut ------------------------------------------------------------------------------------


@pytest.mark.thorough  # tests/sql/runs/test_large_shards.py predicts with a model that is cut, within a limit
def test_a_predictor_of_a_model_that_is_cut_stays_within_the_limit_of_the_role(place: Lab) -> None:
    """With little more than the least limit with which the model predicts at all, its trainer has to cut it."""
    arch = place.architecture(model_of(80 << 20, per_parameter=SGD, depth=5))
    place.selection("mst", [(arch, compiled("SGD"), "batch_size=64, epochs=1")])
    options = {"deterministic": True, "seed": 1, "engine": "tensorflow"}
    place("SELECT cerebro.fit('train', 'wide', 'mst', epochs => 1, options => %s)", json.dumps(options))
    ask = f"SELECT class, probability FROM cerebro.predict('wide', $q${ROW}$q$)"

    def asked() -> tuple[Any, int, int]:
        """The answer, and the trainer with its memory."""
        with contextlib.closing(place.connect()) as session:
            found = run(session, ask)
            (pid,) = trainers_of(place, session)
            return found, pid, proportional(pid)

    def works(limit: int) -> bool:
        place("SELECT cerebro.set_limits(NULL, max_trainer_mb => %s)", limit)
        with contextlib.suppress(psycopg2.Error):
            return bool(asked())
        return False

    whole, _, memory = asked()
    refused, enough = 100, 2000
    while enough - refused > 10:
        middle = (refused + enough) // 2
        refused, enough = (refused, middle) if works(middle) else (middle, enough)
    assert works(enough + 20)
    answer, pid, in_shards = asked()
    eventually(lambda: pid in kept(place), 30, "the trainer is kept")
    again, same, _ = asked()
    assert same == pid and answer == again
    assert answer[0][0] == whole[0][0] and answer[0][1] == pytest.approx(whole[0][1], abs=1e-5)
    assert in_shards < memory - (30 << 20), f"{in_shards >> 20} of {memory >> 20} MB with a limit of {enough} MB"
