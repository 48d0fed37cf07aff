"""``replace => true``: the old model stays until the new one is complete.  No message proposes to drop other tables."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import psycopg2
import pytest

from tests.sql.lab import Lab, eventually, run, verb
from tests.sql.users import town
from tests.thorough import landing

ONE = [{"architecture": "mlp", "units": 4, "layers": 1}]
OF_VERB: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "train": ((), {"max_configurations": 1, "architectures": ["mlp"]}),
    "search": (({"architecture": "mlp", "units": {"choice": [2, 4]}},), {"max_configurations": 1}),
    "fit": ((ONE,), {}),
}
MODEL = {"known", "known_info", "known_info_pkey", "known_summary"}


def call(lab: Any, which: str = "fit", model: str = "known", source: str = "goods", **more: Any) -> Any:
    first, own = OF_VERB[which]
    given = {"epochs": 1, "target": "class", "options": {"seed": 1}, **own, **more}
    return lab(*verb(which, source, model, *first, **given))


def refused(lab: Lab, which: str = "fit", model: str = "known", **more: Any) -> Any:
    """The error of a call that is refused, without a proposal to drop a table."""
    before = lab.tables()
    with pytest.raises(psycopg2.Error) as error:
        call(lab, which, model, **more)
    assert "DROP TABLE" not in str(error.value) and lab.tables() == before
    return error.value


@pytest.fixture
def goods(lab: Lab) -> Iterator[Lab]:
    lab(
        "CREATE TABLE goods AS SELECT i AS id, sin(i)::real AS a, cos(i)::real AS b,"
        " CASE WHEN sin(i) > 0 THEN 'high' ELSE 'low' END AS class FROM generate_series(1, 60) i"
    )
    yield lab
    lab(f"DROP SCHEMA {lab.schema} CASCADE; CREATE SCHEMA {lab.schema}")


@pytest.fixture(scope="module")
def trained() -> list[int]:
    """A run whose models several tests hand out; at first none."""
    return []


@pytest.fixture
def known(goods: Lab, trained: list[int]) -> Lab:
    """With a model in the table known."""
    if trained:
        goods("SELECT cerebro.materialize(%s, 'known')", *trained)
    else:
        trained.extend(call(goods)[0])
    return goods


def of_run(lab: Lab, model: str = "known") -> int:
    return int(lab.value(f"SELECT run FROM {model}_summary"))


def test_a_source_table_in_the_name_of_the_model_is_not_to_be_dropped(goods: Lab) -> None:
    for replace in (False, True):
        error = refused(goods, "train", "goods", replace=replace)
        assert "'goods' already exists" in str(error) or "not part of a model" in str(error)
        assert "drop" not in error.diag.message_hint.lower() and "another name" in error.diag.message_hint


# tests/sql/runs/test_verbs.py: the verbs share their arguments.
@pytest.mark.parametrize("which", landing(["train", "search", "fit"], "train"))
def test_each_verb_replaces_a_model(goods: Lab, which: str) -> None:
    (first,) = call(goods)[0]
    error = refused(goods, which)
    assert "replace => true" in error.diag.message_hint and "cerebro.drop_model('" in error.diag.message_hint
    (second,) = call(goods, which, replace=True)[0]
    assert of_run(goods) == second > first
    assert goods.value("SELECT count(*) FROM cerebro.predict('known', 'SELECT * FROM goods')") == 60


def test_what_is_replaced_may_not_be_there(goods: Lab) -> None:
    (first,) = call(goods, replace=True)[0]
    assert of_run(goods) == first and goods.tables() >= MODEL


def test_the_old_model_predicts_while_the_new_one_is_trained(known: Lab) -> None:
    goods, first = known, of_run(known)
    seen: list[int] = []
    caller = goods.connect()

    def watch() -> None:
        going = "SELECT run FROM cerebro.runs WHERE status = 'running' AND run > %s"
        eventually(lambda: goods(going, first), 60, "it trains")
        seen.append(goods.value("SELECT count(*) FROM cerebro.predict('known', 'SELECT * FROM goods')"))
        caller.cancel()

    watcher = threading.Thread(target=watch)
    watcher.start()
    with pytest.raises(psycopg2.Error, match="canceling statement"):
        run(caller, *verb("fit", "goods", "known", ONE, epochs=100_000, target="class", replace=True))
    watcher.join()
    caller.close()
    assert seen == [60] and of_run(goods) == first, "a call that is cancelled leaves the old model"
    # The interrupted run knows what it was told.
    going = goods.value("SELECT max(run) FROM cerebro.runs")
    assert goods.value("SELECT options ->> 'replace' FROM cerebro.run_plan WHERE run = %s", going) == "true"


def test_a_submitted_run_replaces(known: Lab) -> None:
    goods = known
    (second,) = call(goods, replace=True, wait=False)[0]
    assert goods.value("SELECT cerebro.wait(%s)", second) == "finished"
    assert of_run(goods) == second


def test_materialize_replaces(goods: Lab) -> None:
    (first,), (second,) = call(goods)[0], call(goods, model="other")[0]
    with pytest.raises(psycopg2.Error, match="already exists") as error:
        goods("SELECT cerebro.materialize(%s, 'known')", second)
    assert "replace => true" in error.value.diag.message_hint
    goods("SELECT cerebro.materialize(%s, 'known', replace => true)", second)
    assert of_run(goods) == second > first
    goods("CREATE TABLE mine AS SELECT 1 AS one")
    with pytest.raises(psycopg2.Error, match="'mine' is not part of a model|mine' is not part of a model"):
        goods("SELECT cerebro.materialize(%s, 'mine', replace => true)", second)
    assert goods("SELECT one FROM mine") == [(1,)]


@pytest.mark.parametrize(
    ("instead", "says"),
    [
        ("DROP TABLE known; CREATE TABLE known AS SELECT 1 AS mine", "known' is not part of a model"),
        ("ALTER TABLE known RENAME TO kept; CREATE VIEW known AS TABLE kept", "known' is not part of a model"),
        ("DROP TABLE known_info; CREATE TABLE known_info AS SELECT 1 AS mine", "known_info' is not part of a model"),
        ("DROP TABLE known_info; CREATE TABLE known_info (configuration integer)", "known_info' is not part"),
        ("CREATE VIEW seen AS SELECT configuration FROM known", "cannot be replaced, because the view seen depends"),
    ],
)
def test_what_is_no_model_is_not_replaced(known: Lab, instead: str, says: str) -> None:
    known(instead)
    assert says in str(refused(known, replace=True)).replace(f"{known.schema}.", "")


def test_a_model_of_another_owner_is_not_replaced(server: str) -> None:
    with town(server) as place:
        alice, bob = place.user("alice", "cerebro_user"), place.user("bob", "cerebro_user")
        for one in (alice, bob):
            one("CREATE TABLE goods AS SELECT sin(i) AS a, i % 2 = 0 AS class FROM generate_series(1, 40) i")
        call(alice)
        alice(f"GRANT ALL ON SCHEMA {alice.name} TO {bob.name}")
        for user in (bob, place):
            with pytest.raises(psycopg2.errors.InsufficientPrivilege, match=f"belongs to {alice.name}"):
                call(user, model=f"{alice.name}.known", source=f"{bob.name}.goods", replace=True)


@pytest.mark.parametrize("gone", ["known", "known_info", "known_summary"])
def test_drop_model_when_a_table_is_gone(known: Lab, gone: str) -> None:
    known(f"DROP TABLE {gone}; CREATE TABLE known_weights AS SELECT 1 AS mine")
    known("SELECT cerebro.drop_model('known')")
    assert not MODEL & known.tables() and known("SELECT mine FROM known_weights") == [(1,)]
    with pytest.raises(psycopg2.Error, match="there is no table 'known'"):
        known("SELECT cerebro.drop_model('known')")


@pytest.mark.parametrize("gone", ["known", "known_info", "known_summary"])
def test_a_run_is_extended_when_a_table_is_gone(goods: Lab, gone: str) -> None:
    (first,) = call(goods)[0]
    goods(f"DROP TABLE {gone}")
    if gone == "known_summary":  # nothing says that the others are those of this run
        with pytest.raises(psycopg2.Error, match="already exists") as error:
            goods("SELECT cerebro.resume(%s, epochs => 2)", first)
        assert "cerebro.materialize" in error.value.diag.message_hint
        return
    goods("SELECT cerebro.resume(%s, epochs => 2)", first)
    assert goods.tables() >= MODEL and goods.value("SELECT epochs FROM known_summary") == 2


def test_a_warm_start_says_what_is_missing(goods: Lab) -> None:
    (first,) = call(goods)[0]
    goods("DROP TABLE known_info")
    error = refused(goods, warm_start=True)
    assert "known_info is missing" in str(error)
    (made_again, _) = error.diag.message_hint.split("; ")
    goods(made_again)
    (second,) = call(goods, warm_start=True)[0]
    assert of_run(goods) == second > first


def test_a_table_beside_a_model_that_is_not_its_own_stays(goods: Lab) -> None:
    call(goods)
    goods("CREATE TABLE known_weights AS SELECT 1 AS mine")
    (second,) = call(goods, warm_start=True)[0]
    assert of_run(goods) == second and goods("SELECT mine FROM known_weights") == [(1,)]
