"""Retraining a registered model on the rows of today."""

from __future__ import annotations

import contextlib
import json
import random
import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg2
import pytest

from tests.sql.lab import Lab, Row, eventually, run
from tests.sql.runs.test_cancels import no_hop
from tests.thorough import landing

COLUMNS = {"id": "int", "size": "double precision", "city": "text", "note": "text", "price": "double precision"}
MEMORY_MB = 4000
NAME = f"prices_{secrets.token_hex(3)}"
FIGURES = "run, version, metric, before, after, promoted"


def rows(first: int, last: int, slope: float) -> list[Row]:
    found = []
    for number in range(first, last):
        some = random.Random(number)
        size, city = some.uniform(20, 200), some.choice(("Ulm", "Bonn"))
        found.append((number, size, city, "-", slope * size + (50 if city == "Bonn" else 0) + some.gauss(0, 1)))
    return found


@pytest.fixture(scope="module")
def place(lab: Lab) -> Iterator[Lab]:
    lab.table("homes", COLUMNS, rows(0, 800, 1.0))
    lab("ALTER TABLE homes ADD PRIMARY KEY (id)")
    lab(
        "SELECT cerebro.fit('homes', 'models', %s, target => 'price', epochs => 15, validation => 0.25,"
        " prepare => %s, objective => 'val_mae', segments => 1, options => %s)",
        json.dumps([{"architecture": "mlp", "units": 16, "learning_rate": 0.01, "batch_size": 32, "metrics": ["mae"]}]),
        json.dumps({"note": "ignore"}),
        json.dumps({"deterministic": True, "seed": 3, "keep": "best", "memory_mb": MEMORY_MB}),
    )
    lab("SELECT cerebro.register(%s, 'models', alias => 'production')", NAME)
    try:
        yield lab
    finally:
        lab.remove_registered(NAME)


def retrained(place: Lab, more: str = "", *values: object) -> list[Row]:
    return place(f"SELECT {FIGURES} FROM cerebro.retrain('{NAME}'{more})", *values)


def version(place: Lab, alias: str = "production") -> int:
    return place.value(
        f"SELECT version FROM cerebro.registered_aliases WHERE registered_model = '{NAME}' AND alias = %s", alias
    )


def versions(place: Lab) -> list[int]:
    return [
        number
        for (number,) in place(
            f"SELECT version FROM cerebro.registered_versions WHERE registered_model = '{NAME}' ORDER BY version"
        )
    ]


def test_rows_that_have_not_changed_train_nothing(place: Lab) -> None:
    before = place.value("SELECT max(run) FROM cerebro.run")
    assert retrained(place) == [] and versions(place) == [1]
    assert any("are those that" in line and "does nothing" in line for line in place.told())
    assert retrained(place, ", wait => false") == []
    assert place.value("SELECT max(run) FROM cerebro.run") == before


def test_a_model_of_the_same_rows_does_not_win_by_much(place: Lab) -> None:
    tables = place.tables()
    ((run, number, metric, before, after, promoted),) = retrained(place, ", if_unchanged => true, margin => 100")
    assert (number, metric, promoted) == (2, "mae", False) and version(place) == 1 and place.tables() == tables
    assert after == pytest.approx(before, rel=1e-3)  # the same configuration, seed, rows and options
    asked = "SELECT value FROM cerebro.evaluate(%s, 'SELECT * FROM homes') WHERE metric = 'mae'"
    assert place.value(asked, f"{NAME}@2") == pytest.approx(place.value(asked, f"{NAME}@1"), rel=1e-3)
    name, description, status = place(f"SELECT run_name, description, status FROM cerebro.runs WHERE run = {run}")[0]
    assert (name, description, status) == (f"retrain {NAME}@production", "from version 1", "finished")
    assert place.value(f"SELECT (options ->> 'memory_mb')::int FROM cerebro.run WHERE run = {run}") == MEMORY_MB


def test_a_better_model_is_promoted_and_can_be_taken_back(place: Lab) -> None:
    place("DELETE FROM homes")
    for row in rows(1000, 2000, 3.0):  # prices have tripled
        place("INSERT INTO homes VALUES (%s, %s, %s, %s, %s)", *row)
    ((run, number, metric, before, after, promoted),) = retrained(place)
    assert promoted and metric == "mae" and version(place) == number == versions(place)[-1] and after < 0.5 * before
    # Both were judged on the rows for validation, which the new one has not learned from.
    validated = place.value(f"SELECT validation_rows FROM cerebro.run WHERE run = {run}")
    assert 200 < validated < 300
    history = place(
        f"SELECT event, version, reason FROM cerebro.registry_history WHERE registered_model = '{NAME}'"
        " ORDER BY id DESC LIMIT 2"
    )
    said = f"retrained from version 1 by run {run}: mae {after:.6g} instead of {before:.6g} on {validated} rows"
    assert [(event, of) for event, of, _ in history] == [("alias", number), ("registered", number)]
    assert all(reason.startswith(f"{said} (standard error of the difference: ") for *_, reason in history)
    assert retrained(place) == []  # the new version was trained on these rows
    assert place.value(f"SELECT cerebro.roll_back('{NAME}', 'production')") == 1
    place(f"SELECT cerebro.set_alias('{NAME}', 'production', {number})")


def test_other_rows_judge_and_another_table_trains(place: Lab) -> None:
    place.table("later", COLUMNS, rows(3000, 3300, 3.0))
    place("CREATE VIEW test_rows AS SELECT * FROM later WHERE id < 3050")
    ((_, _, metric, before, after, promoted),) = retrained(
        place, ", source_table => 'later', query => 'SELECT * FROM test_rows', metric => 'r2', epochs => 1"
    )
    assert metric == "r2" and not promoted and after < before
    assert " on 50 rows" in place.value(
        f"SELECT reason FROM cerebro.registry_history WHERE registered_model = '{NAME}' ORDER BY id DESC LIMIT 1"
    )


@pytest.mark.thorough  # tests/sql/runs/test_following.py has calls that nobody waits for; one that fails is below
def test_another_session_goes_on_after_the_call(place: Lab) -> None:
    place("UPDATE homes SET price = price + 100")
    before = versions(place)
    with contextlib.closing(place.connect()) as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT {FIGURES} FROM cerebro.retrain('{NAME}', wait => false)")
        ((run, *others),) = cursor.fetchall()
    assert others == [None] * 5
    eventually(lambda: len(versions(place)) > len(before), 120, "the new version is registered")
    assert place.value(f"SELECT cerebro.wait({run}, 60)") == "finished"
    assert version(place) == versions(place)[-1]
    eventually(lambda: not {name for name in place.tables() if "retrained" in name}, 30, "its tables are dropped")


def test_rows_that_did_not_win_are_not_trained_again(place: Lab) -> None:
    place("UPDATE homes SET price = price + 20")
    ((_, number, *_),) = retrained(place, ", margin => 1e6, epochs => 1")
    assert retrained(place) == retrained(place, ", margin => 1e6") == []
    assert any(f"are those that {NAME}@{number} was trained on" in line for line in place.told())
    ((_, number, *_, promoted),) = retrained(place, ", if_unchanged => true, margin => 0, query => 'homes'")
    if promoted:  # what was taken back does not come back on the same rows
        place(f"SELECT cerebro.roll_back('{NAME}', 'production')")
        assert retrained(place) == []


def test_a_calibrated_model_has_a_calibrated_successor(place: Lab) -> None:
    name = f"{NAME}_calibrated"
    place("CREATE TABLE flats AS SELECT * FROM homes; ALTER TABLE flats ADD PRIMARY KEY (id)")
    place("SELECT cerebro.fit('flats', 'flat_models', '[{\"architecture\": \"mlp\"}]', target => 'price', epochs => 1,"
          " segments => 1)")  # fmt: skip
    place("SELECT FROM cerebro.calibrate('flat_models')")
    place(f"SELECT cerebro.register('{name}', 'flat_models', alias => 'production')")
    try:
        place(f"SELECT FROM cerebro.retrain('{name}', if_unchanged => true)")
        asked = "SELECT count(lower) FROM cerebro.predict(%s, 'SELECT * FROM flats', coverage => 0.9)"
        assert place.value(asked, f"{name}@2") == place.value("SELECT count(*) FROM flats")
    finally:
        place.remove_registered(name)


def test_a_model_on_all_rows_of_a_run_with_groups(place: Lab) -> None:
    """The small groups had rows for validation of their own; the new model has no groups, and has not learned from the
    rows of the comparison."""
    name = f"{NAME}_grouped"
    place(
        "CREATE TABLE pairs AS SELECT i AS id, 'g' || i / 2 AS pair, cos(i) AS x, sin(i) AS y"
        " FROM generate_series(2, 41) i; ALTER TABLE pairs ADD PRIMARY KEY (id)"
    )
    place(
        "SELECT cerebro.fit('pairs', 'pair_models', '[{\"architecture\": \"mlp\", \"units\": 4}]', target => 'y',"
        " inputs => 'x', group_by => 'pair', epochs => 1, segments => 1)"
    )
    place("ALTER TABLE pair_models_summary DROP group_by")  # as in a table that was imported from an archive
    place(f"SELECT cerebro.register('{name}', 'pair_models', alias => 'production')")
    try:
        ((run, version),) = place(f"SELECT run, version FROM cerebro.retrain('{name}', if_unchanged => true)")
        validated = place.value(f"SELECT validation_rows FROM cerebro.run WHERE run = {run}")
        told = place.value(
            "SELECT reason FROM cerebro.registered_versions WHERE registered_model = %s AND version = %s", name, version
        )
        compared = int(told.rpartition(" on ")[2].split()[0])
        assert (
            0 < compared <= validated < place.value("SELECT validation_rows FROM cerebro.run WHERE run = %s", run - 1)
        )
    finally:
        place.remove_registered(name)


SHOPS = """
CREATE TABLE orders AS SELECT i AS id, 'shop ' || i % 3 AS shop, (i % 10)::real AS items,
  (i % 10 * (1 + i % 3))::real AS spent FROM generate_series(1, 450) i;
ALTER TABLE orders ADD PRIMARY KEY (id);
INSERT INTO orders SELECT 10000 + i, 'small shop', 0, 0 FROM generate_series(1, 6) i"""


@pytest.mark.parametrize("new_groups", landing(["error", "all rows"], "error"))
def test_the_models_of_all_groups_are_trained_again(place: Lab, new_groups: str) -> None:
    """Also when there are other groups today than when the version was trained. That of one group alone is not."""
    name = f"{NAME}_shops_{len(new_groups)}"
    place(f"DROP TABLE IF EXISTS orders; {SHOPS}")
    configurations = json.dumps([{"architecture": "mlp", "units": units, "learning_rate": 0.05} for units in (4, 8)])
    options = json.dumps({"least_group_rows": 20, "new_groups": new_groups, "groups_start": "all rows", "seed": 1})
    place(
        f"SELECT cerebro.fit('orders', 'of_shops_{len(new_groups)}', %s, target => 'spent', inputs => 'items',"
        " group_by => 'shop', epochs => 1, segments => 1, options => %s)",
        configurations, options,
    )  # fmt: skip
    refuse_the_model_of_one_group(place, f"of_shops_{len(new_groups)}")
    place(f"SELECT cerebro.register('{name}', 'of_shops_{len(new_groups)}', alias => 'production')")
    try:
        place("DELETE FROM orders WHERE shop = 'shop 1'; UPDATE orders SET spent = spent * 2")
        place("INSERT INTO orders SELECT 1000 + i, 'new shop', i % 10, i % 10 * 7 FROM generate_series(1, 100) i")
        ((run, version, metric, before, after, promoted),) = place(
            f"SELECT {FIGURES} FROM cerebro.retrain('{name}', epochs => 4)"
        )
        assert (version, metric, promoted) == (2, "rmse", True) and after < before
        groups = 'SELECT group_value, bytes IS NOT NULL FROM cerebro_registry."{}_groups" ORDER BY 1'
        shops = [("shop 0", True), ("shop 2", True), ("small shop", False)]
        assert place(groups.format(f"{name}@2")) == [("new shop", True), *shops]
        kept = place.value("SELECT options FROM cerebro.run WHERE run = %s", run)
        assert (kept["least_group_rows"], kept["groups_start"]) == (20, "all rows")
        assert place.value(f'SELECT new_groups FROM cerebro_registry."{name}@2_summary"') == new_groups
        # The rows of the comparison are held out of both, and those of a group that one does not know are left out.
        told = place.value(
            "SELECT reason FROM cerebro.registered_versions WHERE registered_model = %s AND version = 2", name
        )
        validated = place.value("SELECT validation_rows FROM cerebro.run WHERE run = %s", run)
        compared = int(told.rpartition(" on ")[2].split()[0])
        assert compared == validated if new_groups == "all rows" else 0 < compared < validated
        assert place(f"SELECT * FROM cerebro.retrain('{name}')") == []
        asked = "SELECT value FROM cerebro.predict(%s, $q$SELECT * FROM orders WHERE shop = 'new shop'$q$, 'id')"
        assert len(place(asked, f"{name}@production")) == 100
    finally:
        place.remove_registered(name)


def refuse_the_model_of_one_group(place: Lab, model: str) -> None:
    """It would be trained on the rows of all groups."""
    name = f"{NAME}_one"
    place(f"SELECT cerebro.register('{name}', '{model}', alias => 'production', group_value => 'shop 2')")
    try:
        with pytest.raises(psycopg2.Error, match=r'is the model of the group \["shop 2"\], and') as error:
            place(f"SELECT cerebro.retrain('{name}')")
        assert "group_value =>" in error.value.diag.message_hint
    finally:
        place.remove_registered(name)


def test_an_architecture_that_the_user_has_added(place: Lab) -> None:
    """Also when it has been dropped since: then the layers are those of the version."""
    name = f"{NAME}_added"
    layers = [
        {"class_name": "InputLayer", "config": {"batch_shape": [None, 1], "dtype": "float32", "name": "in"}},
        {"class_name": "Dense", "config": {"units": "$width", "name": "hidden"}},
        {"class_name": "Dense", "config": {"units": 1, "name": "out"}},
    ]
    place(
        "SELECT cerebro.add_architecture(%s, %s)",
        name,
        json.dumps({"class_name": "Sequential", "config": {"name": "own", "layers": layers}}),
    )
    try:
        place("CREATE TABLE sizes AS SELECT id, size, price FROM homes; ALTER TABLE sizes ADD PRIMARY KEY (id)")
        place(
            "SELECT cerebro.fit('sizes', 'size_models', %s, target => 'price', epochs => 1, segments => 1)",
            json.dumps([{"architecture": name, "width": 3}]),
        )
        place(f"SELECT cerebro.register('{name}', 'size_models', alias => 'production')")
        assert place.value(f"SELECT version FROM cerebro.retrain('{name}', if_unchanged => true)") == 2
        place("SELECT cerebro.drop_architecture(%s)", name)
        assert place.value(f"SELECT version FROM cerebro.retrain('{name}', if_unchanged => true)") == 3
    finally:
        place(f"SELECT cerebro.drop_architecture(a.name) FROM cerebro.architectures a WHERE a.name = '{name}'")
        place.remove_registered(name)


def test_one_at_a_time(place: Lab) -> None:
    place("UPDATE homes SET price = price + 20")
    with contextlib.closing(place.connect()) as other, other.cursor() as cursor:
        cursor.execute(
            f"BEGIN; SELECT pg_advisory_xact_lock(hashtextextended('cerebro_db retrain {NAME}@production', 0))"
        )
        assert retrained(place) == retrained(place, ", wait => false") == []
    assert any("is being retrained by another session" in line for line in place.told())


def test_two_aliases_at_a_time_have_tables_of_their_own(place: Lab) -> None:
    with contextlib.closing(place.connect()) as other, other.cursor() as cursor:
        cursor.execute(
            "BEGIN; SELECT pg_advisory_xact_lock(hashtextextended("
            f"'cerebro_db retrain into {place.schema}.{NAME}_retrained', 0))"
        )
        run = place.value(f"SELECT run FROM cerebro.retrain('{NAME}', if_unchanged => true, epochs => 1)")
    assert place.value("SELECT model_table FROM cerebro.runs WHERE run = %s", run).endswith("_retrained_2")


def test_bad_input_is_refused_before_anything_is_trained(place: Lab) -> None:
    before = place.value("SELECT max(run) FROM cerebro.run"), place.tables()
    for more, message in (
        (", 'candidate'", "has no alias 'candidate'"),
        (", margin => -1", "margin must be 0 or more"),
        (", metric => 'beauty'", "metric cannot be 'beauty'"),
        (", epochs => 0", "epochs is 0"),
        (", source_table => 'nowhere'", "nowhere"),
    ):
        with pytest.raises(psycopg2.Error, match=message):
            retrained(place, more)
    with pytest.raises(psycopg2.Error, match="there is no registered model 'nobody'"):
        place("SELECT * FROM cerebro.retrain('nobody')")
    assert (place.value("SELECT max(run) FROM cerebro.run"), place.tables()) == before


def test_a_failure_leaves_the_alias_and_says_what_remains(place: Lab) -> None:
    before = version(place), versions(place)
    runs = place.value("SELECT max(run) FROM cerebro.run")
    with pytest.raises(psycopg2.Error, match="does not have"):
        retrained(place, ", if_unchanged => true, epochs => 1, query => 'SELECT 1 AS size'")
    assert (version(place), versions(place), place.value("SELECT max(run) FROM cerebro.run")) == (*before, runs)
    # An error that only the new version meets: while it is registered, nobody waits for the call any more.
    place(
        "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION 'the disk is full' USING ERRCODE = 'disk_full'; END $$"
    )
    place("CREATE TRIGGER full_disk BEFORE INSERT ON cerebro.registry_event FOR EACH ROW EXECUTE FUNCTION full_disk()")
    try:
        ((run, *_),) = retrained(place, ", if_unchanged => true, epochs => 1, wait => false")
        # A look at the very end may see that the session is gone, and not yet what it wrote last.
        message = "SELECT message FROM cerebro.runs WHERE run = %s AND message LIKE '%%the disk is full%%'"
        ((told,),) = eventually(lambda: place(message, run), 120)
        assert f"cerebro.materialize({run}" in told
    finally:
        place("DROP TRIGGER full_disk ON cerebro.registry_event; DROP FUNCTION full_disk()")
    assert (version(place), versions(place)) == before


def test_a_call_that_is_cancelled_changes_nothing_and_blocks_nobody(place: Lab) -> None:
    place("UPDATE homes SET price = price + 1")
    before = version(place), versions(place)
    last = place.value("SELECT max(run) FROM cerebro.run")
    with contextlib.closing(place.connect()) as other, ThreadPoolExecutor(1) as thread:
        call = thread.submit(run, other, f"SELECT * FROM cerebro.retrain('{NAME}', epochs => 1000000)")
        hop = "SELECT run FROM cerebro.hop WHERE run > %s LIMIT 1"
        ((number,),) = eventually(lambda: place(hop, last), 60, "a hop")
        other.cancel()
        assert isinstance(call.exception(60), psycopg2.errors.QueryCanceled)
    assert (version(place), versions(place)) == before
    eventually(lambda: place.status(number) == "cancelled", 30)
    place.require_no_orphans()
    ((_, number, *_),) = retrained(place, ", epochs => 1, margin => 1000")
    assert versions(place) == [*before[1], number]


def test_rows_for_validation_in_a_table_of_their_own_and_the_longest_name(place: Lab) -> None:
    place.table("apart", COLUMNS, rows(4000, 4200, 3.0))
    place.table("checks", COLUMNS, rows(5000, 5040, 3.0))
    place(
        "SELECT cerebro.fit('apart', 'with_checks', '[{\"units\": 4}]', target => 'price', epochs => 1,"
        " validation_table => 'checks', segments => 1)"
    )
    name, before = f"{NAME}_{'x' * (39 - len(NAME))}", place.tables()
    place("SELECT cerebro.register(%s, 'with_checks', alias => 'a')", name)
    try:
        ((run, number, *_),) = place(f"SELECT {FIGURES} FROM cerebro.retrain(%s, 'a', if_unchanged => true)", name)
        assert len(name) == 40 and number == 2 and place.tables() == before
        reason = "SELECT reason FROM cerebro.registered_versions WHERE registered_model = %s AND version = 2"
        assert " on 40 rows (standard error" in place.value(reason, name)
        assert place.value(f"SELECT validation_table FROM cerebro.run WHERE run = {run}").endswith("_validation")
    finally:
        place.remove_registered(name)


def test_a_transaction_that_would_not_see_the_run_is_refused(place: Lab) -> None:
    with contextlib.closing(place.connect()) as other, other.cursor() as cursor:
        cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        with pytest.raises(psycopg2.Error, match="a repeatable read transaction would not see"):
            cursor.execute(f"SELECT * FROM cerebro.retrain('{NAME}')")


def test_a_colleague_cannot_retrain(place: Lab) -> None:
    role = f"retrainer_{secrets.token_hex(3)}"
    place(f"CREATE ROLE {role}; GRANT cerebro_user TO {role}; GRANT USAGE ON SCHEMA {place.schema} TO {role}")
    try:
        place(f"SELECT cerebro.share('{NAME}', '{role}', 'read')")
        place(f"SET ROLE {role}")
        with pytest.raises(psycopg2.Error, match="belongs to"):
            retrained(place)
    finally:
        place("RESET ROLE")
        place(f"SELECT cerebro.unshare('{NAME}', '{role}', 'read')")
        place(f"REVOKE ALL ON SCHEMA {place.schema} FROM {role}; DROP OWNED BY {role}; DROP ROLE {role}")


# -- ensembles whose rows have grown ---------------------------------------------------------------------------

TRIPS = """SELECT i AS id, 'land ' || i % {0} AS land, 'word' || i % 5 || ' ' || md5((i % {1})::text) AS note,
 (i % 10)::real AS days, (i % 10 * (1 + i % {0}))::real AS cost FROM generate_series({2}, {3}) i"""


def trips(place: Lab, table: str) -> None:
    place(f"CREATE TABLE {table} AS {TRIPS.format(4, 50, 1, 600)}; ALTER TABLE {table} ADD PRIMARY KEY (id)")


def grow(place: Lab, table: str) -> None:
    """Two more countries, and many more words."""
    place(f"INSERT INTO {table} {TRIPS.format(6, 400, 601, 1200)}")


def test_an_ensemble_is_trained_and_chosen_again_when_its_rows_have_grown(place: Lab) -> None:
    name = f"{NAME}_trips"
    trips(place, "trips")
    configurations = json.dumps([{"architecture": one, "units": 8, "learning_rate": 0.01} for one in ("mlp", "resnet")])
    place(
        "SELECT cerebro.fit('trips', 'trip_models', %s, target => 'cost', epochs => 2, segments => 1, prepare => %s,"
        " objective => 'val_loss', options => %s)",
        configurations, json.dumps({"land": "category", "note": "words"}), json.dumps({"seed": 5, "keep": "best"}),
    )  # fmt: skip
    place("SELECT cerebro.ensemble('trip_models', 'trips_together', all_join => true)")
    members = place.value("SELECT members FROM trips_together_info")
    assert {one["architecture"] for one in members} == {"mlp", "resnet"} and all(one["epoch"] for one in members)
    place(f"SELECT cerebro.register('{name}', 'trips_together', alias => 'production')")
    before = place.tables()
    try:
        grow(place, "trips")
        ((run, number, *_, promoted),) = place(f"SELECT {FIGURES} FROM cerebro.retrain('{name}', epochs => 2)")
        assert number == 2 and place.tables() == before and promoted is not None
        assert place.value("SELECT count(*) FROM cerebro.configuration WHERE run = %s", run) == 2
        asked = (
            "SELECT count(*), count(value) FROM cerebro.predict(%s, $q$SELECT * FROM trips WHERE land = 'land 5'$q$)"
        )
        assert place(asked, f"{name}@2") == [(100, 100)]
        assert (
            place.value("SELECT value FROM cerebro.evaluate(%s, 'TABLE trips') WHERE metric = 'rmse'", f"{name}@2") > 0
        )
        # Its successor has members again, if several together were better.
        place(f"SELECT cerebro.set_alias('{name}', 'production', 2)")
        ((_, number, *_),) = place(
            f"SELECT {FIGURES} FROM cerebro.retrain('{name}', if_unchanged => true, epochs => 1)"
        )
        assert number == 3
    finally:
        place.remove_registered(name)


def test_rows_that_are_appended_to_a_grown_table_fit_the_models(place: Lab) -> None:
    """They have the categories of before.  Rows that are packed anew do not fit, and the models stay as they are."""
    trips(place, "more_trips")
    listed = json.dumps([{"architecture": "mlp", "units": units} for units in (4, 8)])
    place(
        "SELECT cerebro.fit('more_trips', 'more_models', %s, target => 'cost', inputs => 'land, days', epochs => 1,"
        " segments => 1, packed_table => 'more_packed')", listed,
    )  # fmt: skip
    place("SELECT cerebro.ensemble('more_models', 'more_together', all_join => true)")
    place(f"CREATE TABLE newcomers AS {TRIPS.format(6, 400, 601, 700)}")
    place("SELECT cerebro.append('more_packed', 'newcomers')")
    place("SELECT cerebro.fit('more_packed', 'more_models', %s, epochs => 1, warm_start => true)", listed)
    for model in ("more_models", "more_together"):
        asked = f"SELECT count(value) FROM cerebro.predict('{model}', 'TABLE newcomers')"
        assert place.value(asked) == 100
    grow(place, "more_trips")
    with pytest.raises(psycopg2.Error, match="warm_start cannot be used: .* has other categories"):
        place(
            "SELECT cerebro.fit('more_trips', 'more_models', %s, target => 'cost', inputs => 'land, days', epochs => 1,"
            " segments => 1, warm_start => true)", listed,
        )  # fmt: skip
    assert place.value("SELECT count(value) FROM cerebro.predict('more_models', 'TABLE newcomers')") == 100


# -- limits ----------------------------------------------------------------------------------------------------


def test_a_model_of_a_budget_is_retrained_within_it(place: Lab) -> None:
    name = f"{NAME}_short"
    trips(place, "short_trips")
    run = place.value(
        "SELECT cerebro.train('short_trips', 'short', target => 'cost', inputs => 'days', budget => '3 seconds')"
    )
    place(f"SELECT cerebro.register('{name}', 'short', alias => 'production')")
    try:
        given = place.value("SELECT options #>> '{budget,seconds}' FROM cerebro.run WHERE run = %s", run)
        ((first, *_),) = place(f"SELECT {FIGURES} FROM cerebro.retrain('{name}', if_unchanged => true)")
        ((second, *_),) = place(
            f"SELECT {FIGURES} FROM cerebro.retrain('{name}', if_unchanged => true, budget => '2 seconds')"
        )
        asked = "SELECT epochs, (options #>> '{budget,seconds}')::float FROM cerebro.run WHERE run = %s"
        (epochs, seconds), (_, shorter) = place(asked, first)[0], place(asked, second)[0]
        # Those of a copy are counted with those of the models before it.
        of_each = "SELECT max(epoch) AS epochs FROM cerebro.hop WHERE run = %s GROUP BY model"
        assert epochs <= place.value(f"SELECT sum(epochs) FROM ({of_each}) m", run)
        assert seconds == float(given) and 0.9 < shorter <= 2
    finally:
        place.remove_registered(name)


def test_a_promotion_needs_more_than_a_standard_error(place: Lab) -> None:
    """The seed alone makes a difference, which is no reason to move the alias.

    The models of classes have another loss: they are compared by log_loss nevertheless.
    """
    name = f"{NAME}_noise"
    place(
        "CREATE TABLE noise AS SELECT i AS id, (hashint4(i) % 1000)::real AS x,"
        " CASE WHEN hashint4(i + 5000) % 2 = 0 THEN 'a' ELSE 'b' END AS y FROM generate_series(1, 400) i;"
        " ALTER TABLE noise ADD PRIMARY KEY (id)"
    )
    place(
        'SELECT cerebro.fit(\'noise\', \'noise_models\', \'[{"architecture": "mlp", "units": 4,'
        ' "loss": "kullback_leibler_divergence"}]\', target => \'y\','
        " epochs => 1, segments => 1, options => '{\"seed\": 1}')"
    )
    place(f"SELECT cerebro.register('{name}', 'noise_models', alias => 'production')")
    try:
        for metric in ("log_loss", "auc"):
            place.told()
            ((*_, before, after, promoted),) = place(
                f"SELECT {FIGURES} FROM cerebro.retrain('{name}', if_unchanged => true, metric => '{metric}')"
            )
            told = "\n".join(place.told())
            error = float(told.partition("standard error of the difference: ")[2].partition(")")[0])
            gain = after - before if metric != "log_loss" else before - after
            assert promoted == (gain > error), told
            if promoted:
                place(f"SELECT cerebro.set_alias('{name}', 'production', 1)")
        ((*_, metric, before, after, promoted),) = place(
            f"SELECT {FIGURES} FROM cerebro.retrain('{name}', if_unchanged => true, standard_errors => 0)"
        )
        assert metric == "log_loss" and promoted == (after < before)
        with pytest.raises(psycopg2.Error, match="standard_errors must be 0 or more"):
            place(f"SELECT cerebro.retrain('{name}', standard_errors => -1)")
        with pytest.raises(psycopg2.Error, match='budget is "soon"'):
            place(f"SELECT cerebro.retrain('{name}', budget => 'soon')")
    finally:
        place.remove_registered(name)


def test_a_model_without_a_run_is_trained_on_the_table_that_the_call_names(place: Lab) -> None:
    """Its run was forgotten, or is in another database."""
    name = f"{NAME}_orphan"
    for ending in ("", "_info", "_summary"):
        place(f"CREATE TABLE orphan{ending} AS TABLE models{ending}")
    place("UPDATE orphan_summary SET run = NULL")
    place(f"SELECT cerebro.register('{name}', 'orphan', alias => 'production')")
    try:
        with pytest.raises(psycopg2.Error, match="source_table: version 1 of .* was trained by another role"):
            place(f"SELECT cerebro.retrain('{name}')")
        call = (
            f"SELECT version FROM cerebro.retrain('{name}', source_table => 'homes', if_unchanged => true, epochs => 1)"
        )
        assert place.value(call) == 2
    finally:
        place.remove_registered(name)


# -- calls that were interrupted ------------------------------------------------------------------------------


def require_whole(place: Lab, run: int, before: list[int], *, wins: bool) -> None:
    """The call is done: one more version, the alias by the judgement, and no tables."""
    assert place.status(run) == "finished"
    *earlier, newest = versions(place)
    assert earlier == before and version(place) == (newest if wins else before[-1])
    made = place.value("SELECT model_table FROM cerebro.runs WHERE run = %s", run).partition(".")[2]
    assert not {made, *(f"{made}{ending}" for ending in ("_info", "_summary"))} & place.tables()
    packed = "SELECT packed_table, to_regclass(packed_table) FROM cerebro.runs WHERE run = %s"
    ((name, there),) = place(packed, run)
    assert there is None or f"_{made}_packed" not in name, "what this call packed is gone"
    done = "SELECT detail ->> 'task' FROM cerebro.event WHERE run = %s AND event = 'followed' ORDER BY event_id"
    assert [task for (task,) in place(done, run)] == ["judge", "register", "promote", "remove"]
    with pytest.raises(psycopg2.Error, match=f"run {run} is finished"):
        place("SELECT cerebro.resume(%s)", run)


# tests/sql/runs/test_following.py interrupts and resumes calls of training; the test below resumes a retraining.
@pytest.mark.parametrize("wins", landing([True, False]))
def test_a_call_that_was_interrupted_is_resumed_as_a_whole(place: Lab, wins: bool) -> None:
    place("UPDATE homes SET price = price + 100")
    place("SELECT cerebro.set_alias(%s, 'production', %s)", NAME, versions(place)[-1])
    before = versions(place)
    margin = "0" if wins else "1e6"
    with no_hop(place):
        ((run, *_),) = retrained(place, f", margin => {margin}, wait => false")
        place.end_driver(run)
        eventually(lambda: place.status(run) == "interrupted", 60, "the session is gone")
    assert versions(place) == before
    place("SELECT cerebro.resume(%s, wait => %s)", run, not wins)
    assert place.value("SELECT cerebro.wait(%s, 120)", run) == "finished"
    require_whole(place, run, before, wins=wins)


@pytest.mark.parametrize("step", landing(["judge", "register", "remove"], "register"))
def test_a_call_that_failed_after_the_training_is_resumed_as_a_whole(place: Lab, step: str) -> None:
    place("UPDATE homes SET price = price + 100")
    place("SELECT cerebro.set_alias(%s, 'production', %s)", NAME, versions(place)[-1])
    before = versions(place)
    place(
        "CREATE FUNCTION fail_here() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " IF new.event = 'followed' AND new.detail ->> 'task' = TG_ARGV[0] THEN"
        " RAISE EXCEPTION 'the disk is full' USING ERRCODE = 'disk_full'; END IF; RETURN new; END $$"
    )
    place(f"CREATE TRIGGER fail_here BEFORE INSERT ON cerebro.event FOR EACH ROW EXECUTE FUNCTION fail_here('{step}')")
    try:
        with pytest.raises(psycopg2.Error, match="the disk is full"):
            retrained(place)
    finally:
        place("DROP TRIGGER fail_here ON cerebro.event; DROP FUNCTION fail_here()")
    assert versions(place) == before
    run = place.value("SELECT max(run) FROM cerebro.run")
    message = place.value("SELECT message FROM cerebro.runs WHERE run = %s", run)
    assert f"cerebro.resume({run})" in message
    place("SELECT cerebro.resume(%s)", run)
    require_whole(place, run, before, wins=True)
