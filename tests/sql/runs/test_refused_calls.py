"""A call that is refused leaves nothing behind, and a dry run says no where the call does."""

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
GOODS = (
    "CREATE TABLE goods AS SELECT i AS id, sin(i)::real AS a, cos(i)::real AS b,"
    " CASE WHEN sin(i) > 0 THEN 'high' ELSE 'low' END AS class FROM generate_series(1, {rows}) i"
)
SPACE = {"architecture": "mlp", "units": {"choice": [4, 8]}}


@pytest.fixture(scope="module")
def goods(lab: Lab) -> Iterator[Lab]:
    lab(GOODS.format(rows=1000))
    yield lab


def test_a_default_call_respects_the_limit_of_segments(server: str) -> None:
    with town(server) as place:
        alice = place.user("alice", "cerebro_user")
        place("SELECT cerebro.set_limits(%s, max_segments => 1)", alice.name)
        alice(GOODS.format(rows=20_000))
        alice(*verb("fit", "goods", "model", ONE, epochs=1, target="class", options={"seed": 1}))
        assert alice("SELECT segments FROM cerebro.run_plan") == [1]
        before = alice("SELECT count(*) FROM pg_class WHERE relnamespace = current_schema()::regnamespace")
        for dry in (False, True):
            with pytest.raises(psycopg2.Error, match="a run on 2 segments is more than you may have: 1 at once"):
                alice(*verb("fit", "goods", "other", ONE, epochs=1, target="class", segments=2, dry_run=dry))
        assert alice("SELECT count(*) FROM pg_class WHERE relnamespace = current_schema()::regnamespace") == before


REFUSED: list[tuple[str, tuple[Any, ...], dict[str, Any], str]] = [
    ("search", (SPACE,), {}, "max_configurations is NULL; 'asha' needs to know"),
    ("search", (SPACE,), {"method": "pbt", "budget": "1 minute"}, "max_configurations is NULL; 'pbt' needs to know"),
    ("search", (SPACE,), {"max_configurations": 2, "method": "tpe", "start_from": "then"}, "start_from is 'then'"),
    ("search", (SPACE,), {"max_configurations": 2, "objective": "val_recall_at_9"}, "recall_at_9"),
    ("search", (SPACE,), {"max_configurations": 2, "options": {"groups_start": "all rows"}}, "needs groups"),
    ("fit", (ONE,), {"objective": "val_mean_of_nothing"}, "mean_of_nothing"),
    ("fit", (ONE * 3,), {"options": {"budget": {"configurations": 2}}}, "allows 2 configurations"),
    ("fit", ([{"architecture": "cnn"}],), {}, "cnn reads images"),
    ("train", (), {"options": {"engine": "torch"}}, "engine"),
    ("train", (), {"options": {"groups_start": "all rows"}}, "needs groups"),
]


# With "pbt" and with train, the same code refuses the same.
@pytest.mark.parametrize(("which", "first", "more", "says"), landing(REFUSED, *REFUSED[:1], *REFUSED[2:-1]))
def test_what_is_refused_is_refused_in_a_dry_run_and_leaves_nothing(
    goods: Lab, which: str, first: tuple[Any, ...], more: dict[str, Any], says: str
) -> None:
    before = goods.tables()
    for dry in (True, False):
        with pytest.raises(psycopg2.Error, match=says):
            goods(*verb(which, "goods", "refused", *first, target="class", dry_run=dry, **more))
        if goods.greenplum:  # the tables go when the caller's transaction has ended
            eventually(lambda: goods.tables() == before, 60, f"the tables are gone, dry_run => {dry}")
        assert goods.tables() == before, f"dry_run => {dry}"
    assert "These tables remain" not in "".join(goods.told())


def test_a_packed_table_that_was_there_stays(goods: Lab) -> None:
    goods(*verb("fit", "goods", "first", ONE, epochs=1, target="class", validation=0.3))
    before = goods.tables()
    with pytest.raises(psycopg2.Error, match="cnn reads images"):
        goods(*verb("fit", "goods", "second", [{"architecture": "cnn"}], epochs=1, target="class", validation=0.3))
    assert goods.tables() == before


def test_a_cancel_between_packing_and_the_run_leaves_nothing(goods: Lab) -> None:
    """A lock on the log keeps the call from putting its run on record; its rows are packed and committed by then."""
    before, holder, caller, failures = goods.tables(), goods.connect(), goods.connect(), []
    holder.autocommit = False
    run(holder, "LOCK TABLE cerebro.run IN SHARE MODE")

    def call() -> None:
        try:
            run(caller, *verb("fit", "goods", "never", ONE, epochs=1, target="class", validation=0.1))
        except psycopg2.Error as error:
            failures.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    try:
        waits = (
            "SELECT 1 FROM pg_locks l JOIN pg_stat_activity s USING (pid) WHERE NOT l.granted"
            " AND l.relation = 'cerebro.run'::regclass AND s.application_name LIKE 'cerebro_db %%'"
        )
        eventually(lambda: goods(waits), 60, what="the run is to be put on record")
        assert f"cerebro_data.{goods.schema}_never_packed" in goods.tables()
        caller.cancel()
        thread.join(60)
    finally:
        holder.rollback()
        thread.join(60)
        holder.close()
        caller.close()
    assert [error.pgcode for error in failures] == ["57014"]
    eventually(lambda: goods.tables() == before, 10, "the packed rows are removed")


def test_the_three_verbs_share_defaults(goods: Lab) -> None:
    """``fit`` trains without a number of epochs, and says how many there are."""
    goods.told()
    number = goods.value(*verb("fit", "goods", "usual", ONE, target="class", budget="2 seconds"))
    epochs = goods.value("SELECT epochs FROM cerebro.run_plan WHERE run = %s", number)
    assert 1 <= epochs <= 27
    assert any(f"each configuration trains {epochs} epoch" in line for line in goods.told())
    goods(*verb("fit", "goods", "usual_2", ONE, target="class", dry_run=True))
    assert any("for 27 epochs" in line for line in goods.told())


def test_the_order_of_arguments_is_the_one_that_people_guess(goods: Lab) -> None:
    few = "architectures => '[\"mlp\"]', max_configurations => 1, epochs => 1"
    goods(f"SELECT cerebro.train('goods', 'by_train', 'class', '10 seconds', 'a, b', {few})")
    space = '{"units": {"choice": [2, 4]}}'
    goods(f"SELECT cerebro.search('goods', 'by_search', '{space}', 'class', '10 seconds', 'a, b', {few})")
    goods("SELECT cerebro.fit('goods', 'by_fit', '[{\"units\": 4}]', 'class', 2, '10 seconds', 'a, b')")
    assert goods.value("SELECT epochs FROM by_fit_summary") == 2
    for name in ("by_train", "by_search", "by_fit"):
        assert goods.value(f"SELECT inputs FROM {name}_summary") == "a, b"
