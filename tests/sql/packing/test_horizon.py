"""Forecasts: windows whose target is the value of a later row, from packing to predictions."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

import numpy as np
import psycopg2
import pytest

from tests.sql.lab import Lab
from tests.sql.packing.test_tables import columns_of, packed, values

LENGTH, HORIZON = 14, 7
SEQUENCE: dict[str, Any] = {"by": "shop", "order": "day", "length": LENGTH, "horizon": HORIZON}
# Sales have a weekly pattern, a level that drifts, and react to the promotion of the day.
SALES = """
CREATE TABLE sales AS
SELECT row_number() OVER (ORDER BY n * 7919 % 1013, shop) AS id, shop, date '2024-01-01' + n AS day, n,
       n % 9 = 0 AS promo, (100 + 20 * shop + 30 * sin(2 * pi() * n / 7) + 20 * sin(n / 40.0 + shop)
                            + 40 * (random() - 0.5))::double precision AS sold
  FROM (SELECT setseed(0.3)) s, generate_series(1, 6) shop, generate_series(0, CASE shop WHEN 6 THEN 17 ELSE 299 END) n
"""


@pytest.fixture(scope="module")
def sales(lab: Lab) -> Lab:
    lab(SALES)
    return lab


def by_shop(place: Lab) -> dict[int, list[tuple[int, float]]]:
    found = defaultdict(list)
    for shop, n, sold in place("SELECT shop, n, sold FROM sales ORDER BY shop, n"):
        found[shop].append((n, sold))
    return found


def windows_of(place: Lab, table: str, parameters: dict[str, Any]) -> list[tuple[int, int, float]]:
    """Of each packed window the first and the last day, and the target."""
    days = values(place, table, "numbers").astype(float) * parameters["deviation"] + parameters["mean"]
    days = days.reshape(-1, LENGTH).round().astype(int)
    assert (np.diff(days) == 1).all(), "the rows of a window are consecutive"
    return list(zip(days[:, 0].tolist(), days[:, -1].tolist(), values(place, table, "sold").ravel().tolist()))


def test_the_target_is_the_value_of_a_later_row(sales: Lab) -> None:
    said = packed(sales, "plain_packed", "sold", "sales", sequence=json.dumps(SEQUENCE), inputs="n",
                  prepare={"n": "standard"}, validation=0, seed=1)  # fmt: skip
    found = windows_of(sales, "plain_packed", columns_of(sales, "plain_packed")["n"]["parameters"])
    wanted = [
        (rows[start][0], rows[start + LENGTH - 1][0], float(np.float32(rows[start + LENGTH - 1 + HORIZON][1])))
        for rows in by_shop(sales).values()
        for start in range(len(rows) - LENGTH - HORIZON + 1)
    ]
    assert sorted(found) == sorted(wanted) and len(wanted) == 5 * (300 - LENGTH - HORIZON + 1)
    assert f"{len(wanted):,} windows of {LENGTH} rows, with the target {HORIZON} rows later" in said
    assert any("1 of 6 subjects (shop) has fewer than 21 rows" in line for line in said)


def test_no_target_of_training_is_on_the_side_of_validation(sales: Lab) -> None:
    packed(sales, "sides_packed", "sold", "sales", sequence=json.dumps(SEQUENCE), inputs="n",
           prepare={"n": "standard"}, validation=0.2, seed=1)  # fmt: skip
    parameters = columns_of(sales, "sides_packed")["n"]["parameters"]
    training, validation = (windows_of(sales, name, parameters) for name in ("sides_packed", "sides_packed_validation"))
    moment = sales.value("SELECT percentile_disc(0.8) WITHIN GROUP (ORDER BY n) FROM sales")
    assert max(last + HORIZON for _, last, _ in training) == moment, "the latest rows are for validation by default"
    assert min(last + HORIZON for _, last, _ in validation) == moment + 1, "windows may begin before, as forecasts do"
    assert len(training) == 5 * (moment + 1 - LENGTH - HORIZON + 1) and len(validation) == 5 * (299 - moment)
    # With a table of its own for validation, each window lies within this table.
    sales("CREATE VIEW before AS SELECT * FROM sales WHERE n <= 200")
    sales("CREATE VIEW after AS SELECT * FROM sales WHERE n > 200")
    packed(sales, "apart_packed", "sold", "before", sequence=json.dumps(SEQUENCE), inputs="n",
           prepare={"n": "standard"}, validation_table="after", seed=1)  # fmt: skip
    apart = windows_of(sales, "apart_packed_validation", columns_of(sales, "apart_packed")["n"]["parameters"])
    assert min(first for first, *_ in apart) == 201


@pytest.fixture(scope="module")
def trained(sales: Lab) -> Lab:
    sales("CREATE VIEW known_sales AS SELECT * FROM sales WHERE n < 240")
    few = {"epochs": 30, "max_configurations": 1, "method": "random", "options": '{"seed": 1}'}
    few["architectures"] = json.dumps({"mlp": {"units": 64, "layers": 1, "dropout": 0.0}})
    few["space"] = '{"learning_rate": 0.003, "batch_size": {"choice": [32]}}'
    named = ", ".join(f"{name} => %s" for name in few)
    sales.told()
    sales(
        f"SELECT cerebro.train('known_sales', 'forecasts', 'sold', inputs => 'sold, promo', sequence => %s, {named})",
        json.dumps(SEQUENCE), *few.values(),
    )  # fmt: skip
    assert not [line for line in sales.told() if "alone predicts" in line]
    return sales


def test_what_the_target_was_is_an_input(trained: Lab) -> None:
    assert set(columns_of(trained, "forecasts")) == {"sold", "promo"}
    assert trained.value("SELECT target FROM forecasts_summary") == "sold"
    # Without inputs all columns are, but for those of by and order.
    packed(trained, "all_packed", "sold", "known_sales", sequence=json.dumps(SEQUENCE))
    assert set(columns_of(trained, "all_packed")) == {"n", "promo", "sold"}, "id identifies rows"


def test_the_newest_window_of_each_shop_is_predicted(trained: Lab) -> None:
    newest = "SELECT * FROM sales WHERE n > 299 - 14 OR shop = 6"
    found = trained("SELECT key_value, value FROM cerebro.predict('forecasts', %s, 'id') ORDER BY 1", newest)
    last = trained(
        "SELECT id::text FROM sales s WHERE n = (SELECT max(n) FROM sales t WHERE t.shop = s.shop) ORDER BY 1"
    )
    ids = {key for key, _ in found}
    assert {key for (key,) in last} <= ids and len(found) == 5 + 5, "the sixth shop has five windows and no later row"
    places = dict(
        trained(
            "SELECT key_value, value FROM cerebro.predict('forecasts', %s)",
            newest.replace("*", "shop, day, sold, promo"),
        )
    )
    assert "1, 2024-10-26" in places
    trained("CREATE VIEW newest AS " + newest)
    assert trained.value("SELECT cerebro.predict_into('forecasts', 'newest', 'newest_predicted', 'id')") == 10
    written = "SELECT id::text, predicted_sold FROM newest_predicted"
    assert dict(trained(written)) == pytest.approx(dict(found))
    for times in (
        "SELECT id, forecast_for FROM newest_predicted",
        "SELECT key_value::int AS id, forecast_for::date FROM cerebro.predict('forecasts', 'newest', 'id')",
    ):
        late = f"SELECT count(*) FROM ({times}) p JOIN sales s USING (id) WHERE p.forecast_for = s.day + {HORIZON}"
        assert trained.value(late) == 10


def test_forecasts_are_judged_at_the_later_row_and_beat_the_last_week(trained: Lab) -> None:
    later = "SELECT * FROM sales WHERE n >= 240 - 14"
    figures = dict(trained("SELECT metric, value FROM cerebro.evaluate('forecasts', %s)", later))
    by_hand = trained(
        "SELECT p.value - t.sold, s.sold - t.sold"
        "  FROM cerebro.predict('forecasts', %s, 'id') p JOIN sales s ON s.id::text = p.key_value"
        "  JOIN sales t ON t.shop = s.shop AND t.n = s.n + %s",
        later, HORIZON,
    )  # fmt: skip
    mine, naive = np.abs(np.array(by_hand, float)).mean(axis=0)
    assert figures["rows"] == len(by_hand) == 5 * (74 - LENGTH - HORIZON + 1)
    assert figures["mae"] == pytest.approx(mine, rel=1e-6) and mine < 0.95 * naive
    residuals = trained("SELECT key_value, actual, predicted FROM cerebro.residuals('forecasts', %s, 'id')", later)
    assert {(key, actual) for key, actual, _ in residuals} == set(
        trained("SELECT id::text, sold FROM sales WHERE n >= 240 + 6 AND shop < 6")
    ), "the key is that of the row with the actual value"


def test_intervals_of_forecasts(trained: Lab) -> None:
    told = dict(trained("SELECT measure, after FROM cerebro.calibrate('forecasts')"))
    assert told["rows"] > 50
    found = dict(trained(
        "SELECT metric, value FROM cerebro.evaluate('forecasts', 'SELECT * FROM sales WHERE n >= 226', coverage => 0.9)"
    ))  # fmt: skip
    assert 0.75 < found["coverage"] <= 1
    with_query = dict(trained("SELECT measure, after FROM cerebro.calibrate('forecasts', 'TABLE known_sales')"))
    assert with_query["rows"] == 5 * (240 - LENGTH - HORIZON + 1) // 2 + 0


def test_a_function_forecasts_from_arrays(trained: Lab) -> None:
    assert trained.value("SELECT create_predictor('forecasts', 'sold_in_a_week')").endswith("(sold, promo)")
    rows = trained("SELECT sold, promo FROM sales WHERE shop = 2 AND n > 299 - 14 ORDER BY n")
    sold, promo = (list(one) for one in zip(*rows))
    by_query = trained.value(
        "SELECT value FROM cerebro.predict('forecasts', 'SELECT * FROM sales WHERE shop = 2 AND n > 299 - 14')"
    )
    assert trained.value("SELECT sold_in_a_week(%s, %s)", sold, promo) == pytest.approx(by_query)


def test_other_rows_get_the_same_windows(trained: Lab) -> None:
    trained("CREATE VIEW later_sales AS SELECT * FROM sales WHERE n >= 226 AND shop < 6")
    like = trained.packed_rows("forecasts")
    trained("SELECT pack_like('later_sales', 'later_packed', 'sold', NULL, %s)", like)
    assert trained.value("SELECT rows FROM later_packed_summary") == 5 * (74 - LENGTH - HORIZON + 1)
    found = dict(trained("SELECT column_name, importance FROM cerebro.importance('forecasts', 'later_packed')"))
    assert found["sold"] > 0
    with pytest.raises(psycopg2.Error, match="the target 'sold' is an input, too") as error:
        trained("SELECT * FROM cerebro.importance('forecasts', 'TABLE later_sales')")
    assert "packed table" in error.value.diag.message_hint


def test_a_class_of_a_later_row(sales: Lab) -> None:
    sales("CREATE VIEW days AS SELECT shop, day, n, CASE WHEN promo THEN 'yes' ELSE 'no' END AS promo FROM sales")
    packed(sales, "days_packed", "promo", "days", sequence=json.dumps({**SEQUENCE, "horizon": 2}), inputs="n, promo",
           prepare={"n": "standard"}, validation=0, seed=1)  # fmt: skip
    parameters = columns_of(sales, "days_packed")["n"]["parameters"]
    days = (
        values(sales, "days_packed", "numbers").astype(float) * parameters["deviation"] + parameters["mean"]
    ).round()
    labels = sales.value("SELECT promo_labels FROM days_packed_summary")
    said = [labels[place] for place in values(sales, "days_packed", "promo").argmax(axis=1)]
    assert said == ["yes" if (int(day) + 2) % 9 == 0 else "no" for day in days.reshape(-1, LENGTH)[:, -1]]


@pytest.mark.parametrize(
    ("sequence", "says"),
    [
        ({"horizon": 400}, "does not have 414 consecutive rows of one shop"),
        ({"horizon": 0}, "the target 'sold' is among the inputs"),
        ({"target": "majority"}, 'target cannot be "majority" with a horizon'),
        ({"horizon": "week"}, 'horizon has to be a whole number, not "week"'),
    ],
)
def test_what_cannot_be_forecast_is_refused(sales: Lab, sequence: dict[str, Any], says: str) -> None:
    with pytest.raises(psycopg2.Error, match=says) as error:
        packed(
            sales,
            "refused_packed",
            "sold",
            "sales",
            sequence=json.dumps({**SEQUENCE, **sequence}),
            inputs="sold, promo",
        )
    assert error.value.diag.message_hint


def test_a_window_with_an_unknown_value_of_a_later_row_is_left_out(sales: Lab) -> None:
    sales("CREATE VIEW gaps AS SELECT shop, day, promo, CASE WHEN shop > 1 OR n <> 50 THEN sold END AS sold FROM sales")
    sales.told()
    sales("SELECT cerebro.pack('gaps', 'gaps_packed', 'sold', sequence => %s)", json.dumps(SEQUENCE))
    assert "1 window of gaps is left out, because the target sold is NULL" in "".join(sales.told())


def test_forecasts_from_the_ends_of_months_are_for_ends_of_months(lab: Lab) -> None:
    lab("CREATE TABLE closings AS SELECT i AS id, sin(i) AS sold, (date '2018-02-01' + i * interval '1 month'"
        " - interval '1 day')::date AS day FROM generate_series(0, 71) i")  # fmt: skip
    sequence = json.dumps({"order": "day", "length": 4, "horizon": 3})
    lab("SELECT cerebro.fit('closings', 'closes', '[{\"architecture\": \"mlp\"}]', 'sold', inputs => 'sold',"
        " epochs => 1, sequence => %s)", sequence)  # fmt: skip
    for rows in ("closings", "SELECT * FROM closings ORDER BY day DESC LIMIT 8"):
        found = dict(lab("SELECT key_value::int, forecast_for FROM cerebro.predict('closes', %s, 'id')", rows))
        assert (found[71], found[70], found[69]) == ("2024-03-31", "2024-02-29", "2024-01-31")


@pytest.mark.parametrize(
    ("order", "last"),
    [
        ("smallint", "32767"),
        ("bigint", "9223372036854775807"),
        ("date", "5874897-12-31"),
        ("date", "infinity"),
        ("timestamp", "294276-12-31"),
        ("timestamptz", "294276-12-31"),
    ],
)
def test_a_time_beyond_the_range_of_its_type_is_null(lab: Lab, order: str, last: str) -> None:
    before = {"smallint": "t::smallint", "bigint": "t - 9223372036854775807"}.get(order, "date '2026-01-01' + t")
    lab(f"CREATE OR REPLACE VIEW ending AS SELECT t, sin(t) AS sold, CASE WHEN t < 40 THEN {before}"
        f" ELSE {order} '{last}' END AS at FROM generate_series(1, 40) t")  # fmt: skip
    sequence = json.dumps({"order": "at", "length": 4, "horizon": 3})
    lab("SELECT cerebro.fit('ending', 'ends', '[{\"architecture\": \"mlp\"}]', 'sold', inputs => 'sold',"
        " epochs => 1, sequence => %s)", sequence)  # fmt: skip
    try:
        query = "SELECT * FROM ending WHERE t > 30"
        found = dict(lab("SELECT key_value::int, forecast_for FROM cerebro.predict('ends', %s, 't')", query))
        assert found[40] is None
        assert found[36] == lab.value("SELECT at::text FROM ending WHERE t = 39")
        lab("SELECT cerebro.predict_into('ends', 'ending', 'ended', 't')")
        assert lab("SELECT t FROM ended WHERE forecast_for IS NULL") == [(40,)]
        lab("DROP TABLE ended")
    finally:
        lab("SELECT cerebro.drop_model('ends')")
        lab("DROP VIEW ending")


def test_thirty_days_are_not_a_month(lab: Lab) -> None:
    lab("CREATE TABLE terms AS SELECT i AS id, sin(i) AS sold, date '2026-01-01' + 30 * i AS day"
        " FROM generate_series(0, 71) i")  # fmt: skip
    sequence = json.dumps({"order": "day", "length": 4, "horizon": 3})
    lab("SELECT cerebro.fit('terms', 'of_terms', '[{\"architecture\": \"mlp\"}]', 'sold', inputs => 'sold',"
        " epochs => 1, sequence => %s)", sequence)  # fmt: skip
    late = "SELECT count(*) FROM cerebro.predict('of_terms', 'terms', 'id') p JOIN terms t ON t.id::text = p.key_value"
    assert lab.value(f"{late} WHERE p.forecast_for::date <> t.day + 90") == 0
