"""Models that read related tables, after training: the rows of a query get the same columns, wherever they are read."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import psycopg2
import pytest

from tests.sql.lab import Lab, eventually, run
from tests.sql.packing.test_append import read
from tests.sql.packing.test_related import SHOP, STEPS, layout

MLP = '[{"architecture": "mlp", "units": 8}]'
TABLES = {path: path.rpartition(".")[2] for path in STEPS}
ROWS = "SELECT * FROM churn ORDER BY customer, seen LIMIT 40"


@pytest.fixture(scope="module")
def shop(lab: Lab) -> Lab:
    lab(SHOP)
    lab(
        f"SELECT fit('churn', 'm', '{MLP}', target => 'gone', related => %s, as_of => 'seen', epochs => 1)",
        json.dumps(STEPS),
    )
    return lab


def predicted(shop: Lab, query: str, **more: Any) -> list[Any]:
    """By customer, and sorted: rows have no order on Greenplum."""
    named = "".join(f", {name} => %s" for name in more)
    call = f"SELECT key_value, class, probability FROM predict('m', %s, 'customer'{named})"
    return sorted(shop(call, query, *more.values()))


def test_vectors_read_related_tables(shop: Lab) -> None:
    """With their columns in the query, or made while the rows are read."""
    read_beside = dict(shop("SELECT key_value, vector FROM embed('m', %s, NULL, 'customer')", ROWS))
    shop("SELECT related_rows('m', %s, 'whole')", ROWS)
    given = dict(shop("SELECT key_value, vector FROM embed('m', 'SELECT * FROM whole', NULL, 'customer')"))
    assert read_beside == given and len(given) > 1
    shop("DROP TABLE whole")


def refused(shop: Lab, statement: str, *values: Any) -> str:
    with pytest.raises(psycopg2.Error) as error:
        shop(statement, *values)
    return str(error.value)


def test_one_row_and_many_have_the_same_bits(shop: Lab) -> None:
    shop(f"SELECT related_rows('m', '{ROWS}', 'derived')")
    shop("CREATE TABLE single (LIKE derived)")
    for customer, seen in shop("SELECT customer, seen FROM derived"):
        shop(
            f"SELECT related_rows('m', $q$SELECT * FROM churn WHERE customer = {customer} AND seen = '{seen}'$q$, 'd')"
        )
        shop("INSERT INTO single SELECT * FROM d; DROP TABLE d")
    assert shop.value("SELECT count(*) FROM single") == 40
    assert shop.value("SELECT count(*) FROM (TABLE single EXCEPT TABLE derived) d") == 0
    alone = []
    for customer, seen in shop("SELECT customer, seen FROM churn ORDER BY 1, 2 LIMIT 9"):
        alone += predicted(shop, f"SELECT * FROM churn WHERE customer = {customer} AND seen = '{seen}'")
    together = predicted(shop, "SELECT * FROM churn ORDER BY customer, seen LIMIT 9")
    alone.sort()
    assert [one[:2] for one in alone] == [one[:2] for one in together]
    # A network rounds otherwise for one row than for several.
    assert [one[2] for one in alone] == pytest.approx([one[2] for one in together], abs=1e-5)
    # No table has these rows: Greenplum reads them on one segment, and the related rows on all.
    given = "SELECT {} AS customer, timestamptz '2023-10-01 00:00Z' AS seen"
    (row,) = predicted(shop, given.format(7))
    assert row in predicted(shop, "SELECT * FROM churn WHERE seen = '2023-10-01 00:00Z' AND customer = 7")
    assert len(predicted(shop, given.format(-1))) == 1
    # A query that has the columns already is read as it is.
    assert predicted(shop, "SELECT * FROM derived", related=None) == predicted(shop, ROWS)
    with pytest.raises(psycopg2.Error, match="related: the rows have the columns of related tables already"):
        predicted(shop, "SELECT * FROM derived", related=json.dumps(TABLES))
    shop("DROP TABLE derived, single")


def test_packed_rows_have_the_bytes_that_predictions_read(shop: Lab) -> None:
    shop(
        "SELECT pack('churn', 'all_rows', 'gone', validation => 0, segments => 1, related => %s, as_of => 'seen')",
        json.dumps(STEPS),
    )
    shop("SELECT pack_like('churn', 'again', 'gone', NULL, 'all_rows', related => %s)", json.dumps(TABLES))
    one, other = read(shop, "all_rows"), read(shop, "again")
    assert one.keys() == other.keys()
    rows = {
        name: sorted(zip(*([row.tobytes() for row in its[key]] for key in sorted(its))))
        for name, its in (("one", one), ("other", other))
    }
    assert rows["one"] == rows["other"] and len(rows["one"]) == 1200
    told = refused(shop, "SELECT pack_like('churn', 'third', 'gone', NULL, 'all_rows')")
    assert "has to name them" in told and "customers.orders.items" in told
    shop("DROP TABLE all_rows, all_rows_summary, again, again_summary")


def test_rows_that_come_later_are_not_read(shop: Lab) -> None:
    before = predicted(shop, ROWS)
    shop("BEGIN")
    shop(
        "INSERT INTO orders SELECT 10000 + i, 1 + i % 20, '2023-12-01 00:00Z', true, 1e6 FROM generate_series(1, 50) i"
    )
    assert predicted(shop, ROWS) == before
    shop(
        "INSERT INTO orders SELECT 20000 + i, 1 + i % 20, '2023-07-01 00:00Z', true, 1e6 FROM generate_series(1, 50) i"
    )
    assert predicted(shop, ROWS) != before
    shop("ROLLBACK")


def test_a_query_without_a_time_is_predicted_as_of_now(shop: Lab) -> None:
    shop.told()
    now = predicted(shop, "SELECT 5 AS customer")
    assert any("as of now" in line for line in shop.told())
    assert now == predicted(shop, "SELECT 5 AS customer, statement_timestamp() AS seen")


def test_few_rows_and_many_are_read_alike(shop: Lab) -> None:
    """The statement for few rows is planned once, and has their query as its parameter."""
    if shop.greenplum:
        pytest.skip("a function in FROM cannot read tables")
    shop(
        "CREATE DOMAIN number AS integer; CREATE FUNCTION many(most integer) RETURNS SETOF churn LANGUAGE plpgsql"
        " ROWS 1000 AS $$ BEGIN RETURN QUERY SELECT * FROM churn ORDER BY customer, seen LIMIT most; END $$"
    )
    for rows in (1, 7, 40):
        few = f"SELECT * FROM churn ORDER BY customer, seen LIMIT {rows}"
        expected = predicted(shop, f"SELECT * FROM many({rows})")
        for _ in range(7):  # from the sixth on, PostgreSQL has one plan for all
            assert predicted(shop, few) == expected
        others = few.replace("*", "customer::number, seen::timestamptz(3), gone, '%'::varchar(5) AS \"x;y\"")
        assert sorted(one[1:] for one in predicted(shop, others.replace("%", "%%"))) == sorted(
            one[1:] for one in expected
        )
    # More rows than the planner expects are read, too: an estimate is no limit.
    shop("ALTER FUNCTION many ROWS 1")
    assert len(predicted(shop, "SELECT * FROM many(1000)")) == 1000
    shop("DROP FUNCTION many; DROP DOMAIN number")


def test_another_session_gets_the_predictor(shop: Lab) -> None:
    if shop.greenplum:
        pytest.skip("on Greenplum trainers end with their sessions")
    ask = "SELECT key_value, class, probability FROM predict('m', %s)"
    imported = "DO LANGUAGE plpython3u $$import sys; assert 'cerebro_plpy.predicting.streaming' not in sys.modules$$"
    shop.told()
    # A row of which there is nothing to tell: else the call goes on with all imports.
    usual = (f"SELECT * FROM churn WHERE customer = {one} AND seen = '2023-10-01 00:00Z'" for one in range(1, 400))
    row = next(row for row in usual if predicted(shop, row) and not shop.told())
    with contextlib.closing(shop.connect()) as session:
        expected = run(session, ask, row)
    assert expected == predicted(shop, row)

    def alone() -> bool:
        """Whether a new session answers without the imports of the first one."""
        with contextlib.closing(shop.connect()) as session:
            assert [run(session, ask, row) for _ in range(7)] == [expected] * 7
            try:
                run(session, imported)
            except psycopg2.Error:
                return False
            # A table that has changed is noticed: the call goes on with all imports, and its error.
            shop("ALTER TABLE orders RENAME COLUMN amount TO total")
            with pytest.raises(psycopg2.Error, match="does not have the column amount"):
                run(session, ask, row)
            shop("ALTER TABLE orders RENAME COLUMN total TO amount")
            return True

    eventually(alone, 60, "the trainer is kept")


def test_what_a_query_lacks_is_said(shop: Lab) -> None:
    assert "leads to the rows of" in refused(shop, "SELECT * FROM predict('m', 'SELECT now() AS seen')")
    told = refused(shop, "SELECT * FROM predict('m', 'SELECT 5 AS customer, NULL::timestamptz AS seen')")
    assert "'seen' is NULL" in told
    told = refused(shop, "SELECT * FROM predict('m', 'SELECT 5 AS customer, now()::timestamp AS seen')")
    assert "timestamp without time zone" in told
    told = refused(shop, "SELECT * FROM predict('m', $$SELECT 'x'::text AS customer, now() AS seen$$)")
    assert "They are compared with each other" in told
    told = refused(shop, "SELECT * FROM predict('m', 'TABLE churn', related => '{\"x\": \"orders\"}')")
    assert "no path" in told
    told = refused(shop, "SELECT * FROM predict('m', 'TABLE churn', related => '{\"customers\": \"orders\"}')")
    assert "does not have the column" in told
    shop("CREATE TABLE nulls AS SELECT customer, NULL::timestamptz AS seen, gone FROM churn LIMIT 3")
    assert "'seen' is NULL in 3 rows" in refused(shop, "SELECT predict_into('m', 'nulls', 'made', key => 'customer')")
    shop("DROP TABLE nulls")


def test_a_table_that_has_changed_since_the_last_call(shop: Lab) -> None:
    before = predicted(shop, ROWS)
    shop("BEGIN; ALTER TABLE orders RENAME COLUMN amount TO total")
    assert "does not have the column amount" in refused(shop, f"SELECT * FROM predict('m', '{ROWS}')")
    shop("ROLLBACK")
    shop("BEGIN; ALTER TABLE orders ALTER amount TYPE text")
    assert "is text now" in refused(shop, f"SELECT * FROM predict('m', '{ROWS}')")
    shop("ROLLBACK")
    assert predicted(shop, ROWS) == before


def test_a_plan_that_somebody_has_written(shop: Lab) -> None:
    """What a summary says is a stranger's word: each error says what is wrong."""
    for ending in ("", "_info", "_summary"):
        shop(f"CREATE TABLE written{ending} AS SELECT * FROM m{ending}")
    call = f"SELECT * FROM predict('written', '{ROWS}', related => %s)"
    assert len(shop(call, json.dumps(TABLES))) == 40
    steps = layout(shop, "m")["related"]["steps"]
    place = next(i for i, step in enumerate(steps) if step["path"] == "customers.orders")
    for entry, value, error in (
        ("time", "nothing", "does not have the column nothing"),
        ("on", [["id", "nothing"]], "does not have the column nothing"),
        ("on", [["nothing", "customer"]], "does not have the column nothing"),
        ("columns", [{"name": "amount", "type": "date"}], "reads a column that no step has"),
        ("time", "amount", "is double precision"),
        ("many", 3, "many"),
    ):
        path = f"{{related,steps,{place},{entry}}}"
        shop("BEGIN")
        shop("UPDATE written_summary SET layout = jsonb_set(layout, %s, %s)", path, json.dumps(value))
        assert error in refused(shop, call, json.dumps(TABLES))
        shop("ROLLBACK")
    shop("DROP TABLE written, written_info, written_summary")


def test_tables_of_the_call(shop: Lab) -> None:
    before = predicted(shop, ROWS)
    shop("CREATE TABLE few AS SELECT * FROM orders LIMIT 0")
    assert predicted(shop, ROWS, related=json.dumps(TABLES)) == before
    assert predicted(shop, ROWS, related=json.dumps({**TABLES, "customers.orders": "few"})) != before
    assert predicted(shop, ROWS) == before
    shop("DROP TABLE few")


def test_what_judges_a_model(shop: Lab) -> None:
    rows = "SELECT * FROM churn"
    found = dict(shop("SELECT metric, value FROM evaluate('m', %s)", rows))
    assert found["rows"] == 1200 and found["auc"] > 0.8
    table = shop("SELECT * FROM importance('m', 'SELECT * FROM churn LIMIT 300')")
    names = [one[0] for one in table]
    assert {"customers.*", "customers.orders.*", "customers.orders.items.*", "customers.orders.count"} <= set(names)
    packed = shop("SELECT * FROM importance('m')")
    assert {one[0] for one in packed} == set(names)
    explained = shop(
        "SELECT column_name, contribution, base, prediction FROM explain('m', 'SELECT * FROM churn LIMIT 2')"
    )
    assert "customers.orders.count" in {one[0] for one in explained}
    drift = dict(shop("SELECT column_name, psi FROM drift('m', 'SELECT * FROM churn')"))
    assert drift["customers.orders.count"] < 0.1
    shifted = dict(
        shop(
            "SELECT column_name, psi FROM drift('m', $$SELECT customer, timestamptz '2023-04-10Z' AS seen FROM churn$$)"
        )
    )
    assert shifted["customers.orders.count"] > 1
    assert sum(one[2] for one in shop("SELECT * FROM confusion_matrix('m', %s)", rows)) == 1200
    assert len(shop("SELECT * FROM calibrate('m', %s)", rows)) > 3


def test_a_table_of_predictions_has_those_of_a_query(shop: Lab) -> None:
    assert shop.value("SELECT predict_into('m', 'churn', 'made')") == 1200
    made = shop("SELECT predicted_gone::text, probability FROM made")
    assert sorted(made) == sorted(one[1:] for one in predicted(shop, "SELECT * FROM churn"))
    shop("DROP TABLE made")


def test_a_predictor_takes_the_keys_and_the_time(shop: Lab) -> None:
    told = shop.value("SELECT create_predictor('m', 'churns')")
    assert told.endswith("churns(seen, customer)")
    for customer, seen in shop("SELECT customer, seen FROM churn ORDER BY 1, 2 LIMIT 3"):
        ((_, found, _),) = predicted(shop, f"SELECT * FROM churn WHERE customer = {customer} AND seen = '{seen}'")
        assert shop.value("SELECT churns(customer => %s, seen => %s)::text", customer, seen) == found
    now = predicted(shop, "SELECT 7 AS customer")[0][1]
    assert shop.value("SELECT churns(customer => 7)::text") == now
    shop("DROP FUNCTION churns")


def test_more_rows_are_packed_like_the_first(shop: Lab) -> None:
    shop("SELECT fit('churn', 'grown', %s, target => 'gone', related => %s, as_of => 'seen', epochs => 1,"
         " packed_table => 'pool')", MLP, json.dumps(STEPS))  # fmt: skip
    shop("CREATE TABLE later AS SELECT customer, seen + interval '1 day' AS seen, gone FROM churn")
    rows = shop.value("SELECT rows FROM pool_summary")
    shop("SELECT append('pool', 'later')")
    assert shop.value("SELECT rows FROM pool_summary") == pytest.approx(2 * rows, rel=0.1)
    drift = dict(shop("SELECT column_name, psi FROM drift('pool', 'TABLE later')"))
    assert drift["customers.orders.count"] < 0.1
    shop("DROP TABLE later, pool, pool_summary, pool_validation, pool_validation_summary")


def test_a_registered_model_is_retrained(shop: Lab) -> None:
    name = f"churners_{shop.schema}"
    shop("SELECT register(%s, 'm', alias => 'production')", name)
    of_version = f"SELECT key_value, class, probability FROM predict('{name}@production', '{ROWS}', 'customer')"
    assert predicted(shop, ROWS) == sorted(shop(of_version))
    (found,) = shop("SELECT version, before, after FROM retrain(%s, if_unchanged => true)", name)
    assert found[0] == 2 and None not in found
    assert len(shop(f"SELECT * FROM predict('{name}@2', '{ROWS}')")) == 40
    # The same rows again, with the same related rows: there is nothing to do.
    assert shop("SELECT * FROM retrain(%s)", name) == []


def test_the_chosen_model_is_trained_on_all_rows(shop: Lab) -> None:
    if shop.greenplum:
        pytest.skip("refit is refused on Greenplum")
    shop("SELECT train('churn', 'refitted', target => 'gone', related => %s, as_of => 'seen', epochs => 1,"
         " max_configurations => 1, budget => '60 s', refit => true)", json.dumps(STEPS))  # fmt: skip
    told = shop.told()
    assert any("predictions take it" in line for line in told), told
    assert len(shop(f"SELECT * FROM predict('refitted', '{ROWS}')")) == 40


def test_a_run_goes_on_with_the_same_rows(shop: Lab) -> None:
    """Two epochs at once have the bits of one epoch and a second one later."""
    call = "SELECT fit('churn', %s, %s, target => 'gone', related => %s, as_of => 'seen', epochs => %s, options => %s)"
    fixed = json.dumps({"deterministic": True, "seed": 3})
    shop(call, "at_once", MLP, json.dumps(STEPS), 2, fixed)
    number = shop.value(call, "begun", MLP, json.dumps(STEPS), 1, fixed)
    shop("SELECT resume(%s, epochs => 2)", number)
    found = [sorted(shop("SELECT * FROM predict(%s, %s, 'customer')", table, ROWS)) for table in ("at_once", "begun")]
    assert found[0] == found[1] and len(found[0]) == 40


def test_folds_have_the_related_rows(shop: Lab) -> None:
    shop(
        "SELECT fit('churn', 'of_folds', %s, target => 'gone', related => %s, as_of => 'seen', epochs => 1,"
        " folds => 2)",
        MLP,
        json.dumps(STEPS),
    )
    assert len(shop("SELECT * FROM predict('of_folds', %s)", ROWS)) == 40


def test_a_function_of_madlib_refuses(shop: Lab) -> None:
    told = refused(shop, "SELECT madlib.madlib_keras_predict('m', 'churn', 'customer', 'seen', 'made', mst_key => 1)")
    assert "the model reads related tables" in told and "cerebro.predict() reads them" in told


def test_models_of_groups_read_related_rows(shop: Lab) -> None:
    shop("CREATE TABLE halves AS SELECT *, 'half ' || customer % 2 AS half FROM churn;"
         " ALTER TABLE halves ADD PRIMARY KEY (customer, seen)")  # fmt: skip
    related = {"customers": {"on": {"customer": "id"}, "time": "joined"}, "customers.orders": {"time": "at"}}
    shop("SELECT fit('halves', 'of_halves', %s, target => 'gone', group_by => 'half', related => %s, as_of => 'seen',"
         " epochs => 1)", MLP, json.dumps(related))  # fmt: skip
    rows = "SELECT * FROM halves ORDER BY customer, seen LIMIT 50"
    found = shop("SELECT class, probability FROM predict('of_halves', %s)", rows)
    assert len(found) == 50 and len({one[1] for one in found}) > 20
    assert shop.value("SELECT predict_into('of_halves', 'halves', 'made')") == 1200
    explained = shop("SELECT DISTINCT column_name FROM explain('of_halves', 'TABLE halves LIMIT 3',"
                     " background => 'TABLE halves LIMIT 9')")  # fmt: skip
    assert ("customers.orders.count",) in explained
    shop("DROP TABLE halves, made")
