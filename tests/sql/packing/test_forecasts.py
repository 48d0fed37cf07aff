"""Forecasts of several rows at once: their targets, quantiles, what is known before, and backtests."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import psycopg2
import pytest

from tests.sql.lab import Lab
from tests.sql.packing.test_horizon import SALES, by_shop
from tests.sql.packing.test_tables import columns_of, packed, values

LENGTH, AHEAD = 14, 5
SEQUENCE: dict[str, Any] = {"by": "shop", "order": "day", "length": LENGTH, "horizon": [1, AHEAD]}
LEVELS = [0.05, 0.5, 0.95]
FEW: dict[str, Any] = {
    "epochs": 25, "max_configurations": 1, "method": "random", "options": '{"seed": 1}',
    "architectures": '{"mlp": {"units": 32, "layers": 1, "dropout": 0.0}}',
    "space": '{"learning_rate": 0.003, "batch_size": {"choice": [32]}}',
}  # fmt: skip


@pytest.fixture(scope="module")
def sales(lab: Lab) -> Lab:
    lab(SALES)
    lab("CREATE VIEW past AS SELECT * FROM sales WHERE n < 200")
    return lab


def train(place: Lab, table: str, source: str, inputs: str, **sequence: Any) -> None:
    place(
        "SELECT cerebro.train(%s, %s, 'sold', inputs => %s, sequence => %s"
        + "".join(f", {one} => %s" for one in FEW) + ")",
        source, table, inputs, json.dumps({**SEQUENCE, **sequence}), *FEW.values(),
    )  # fmt: skip


@pytest.fixture(scope="module")
def trained(sales: Lab) -> Lab:
    train(sales, "quantile_models", "past", "sold, promo", quantiles=LEVELS)
    return sales


def refused(place: Lab, said: str, statement: str, *given: Any) -> None:
    with pytest.raises(psycopg2.Error, match=said):
        place(statement, *given)


def test_a_window_has_the_targets_of_all_later_rows(sales: Lab) -> None:
    said = packed(sales, "ahead_packed", "sold", "sales", sequence=json.dumps(SEQUENCE), inputs="n",
                  prepare={"n": "standard"}, validation=0, seed=1)  # fmt: skip
    parameters = columns_of(sales, "ahead_packed")["n"]["parameters"]
    days = values(sales, "ahead_packed", "numbers").astype(float) * parameters["deviation"] + parameters["mean"]
    lasts = days.reshape(-1, LENGTH)[:, -1].round().astype(int)
    targets = values(sales, "ahead_packed", "sold").reshape(-1, AHEAD)
    found = sorted((int(last), *map(float, its)) for last, its in zip(lasts, targets))
    wanted = sorted(
        (rows[last][0], *(float(np.float32(rows[last + step][1])) for step in range(1, AHEAD + 1)))
        for rows in by_shop(sales).values()
        for last in range(LENGTH - 1, len(rows) - AHEAD)
    )
    assert found == wanted
    assert f"{len(wanted):,} windows of {LENGTH} rows, with the targets of the rows 1 to {AHEAD} rows later" in said


def test_all_targets_of_a_window_are_on_its_side(sales: Lab) -> None:
    packed(sales, "ahead_sides_packed", "sold", "sales", sequence=json.dumps(SEQUENCE), inputs="n",
           prepare={"n": "standard"}, validation=0.2, seed=1)  # fmt: skip
    moment = sales.value("SELECT percentile_disc(0.8) WITHIN GROUP (ORDER BY n) FROM sales")
    parameters = columns_of(sales, "ahead_sides_packed")["n"]["parameters"]

    def last_days(table: str) -> np.ndarray:
        days = values(sales, table, "numbers").astype(float) * parameters["deviation"] + parameters["mean"]
        return days.reshape(-1, LENGTH)[:, -1].round().astype(int)

    assert last_days("ahead_sides_packed").max() + AHEAD == moment
    assert last_days("ahead_sides_packed_validation").min() + 1 == moment + 1


def test_each_step_is_predicted_with_its_time_and_quantiles(trained: Lab) -> None:
    newest = "SELECT * FROM sales WHERE n > 299 - 14 AND shop < 6"
    rows = trained(
        "SELECT key_value, forecast_for::date, value, lower, upper, quantiles"
        " FROM cerebro.predict('quantile_models', %s, 'id', coverage => 0.9) ORDER BY 1, 2",
        newest,
    )
    assert len(rows) == 5 * AHEAD
    for key, when, value, lower, upper, quantiles in rows:
        last = trained.value("SELECT day FROM sales WHERE id = %s", int(key))
        assert 1 <= (when - last).days <= AHEAD
        assert quantiles == [lower, value, upper] and lower <= value <= upper and lower < upper
    trained(f"CREATE VIEW newest AS {newest}")
    assert (
        trained.value("SELECT cerebro.predict_into('quantile_models', 'newest', 'ahead', 'id', keep => 'shop')") == 25
    )
    written = trained(
        "SELECT id::text, forecast_for, predicted_sold, q5, q95, ARRAY[q5, q50, q95] FROM ahead ORDER BY 1, 2"
    )
    assert [row[:2] for row in written] == [row[:2] for row in rows]
    assert np.allclose([row[2:5] for row in written], [row[2:5] for row in rows], rtol=1e-5)


@pytest.mark.parametrize("shops", [len(LEVELS), AHEAD])
def test_a_window_has_its_forecast_beside_others(trained: Lab, shops: int) -> None:
    """Also where as many windows are predicted at once as there are steps or quantiles."""
    asked = (
        "SELECT key_value, forecast_for, quantiles FROM cerebro.predict('quantile_models',"
        " 'SELECT * FROM sales WHERE n > 299 - 14 AND shop BETWEEN %s AND %s', 'id') ORDER BY 1, 2"
    )
    together = trained(asked, 1, shops)
    alone = sorted(row for shop in range(1, shops + 1) for row in trained(asked, shop, shop))
    assert len(alone) == shops * AHEAD and [row[:2] for row in together] == [row[:2] for row in alone]
    assert np.allclose([row[2] for row in together], [row[2] for row in alone], rtol=1e-5)


def test_quantiles_are_calibrated(trained: Lab) -> None:
    found = {
        measure: (before, after)
        for _, measure, before, after in trained("SELECT * FROM cerebro.calibrate('quantile_models')")
    }
    before, after = found["coverage 0.9"]
    assert abs(after - 0.9) <= 0.02 and found["rows"][1] > 500
    plain, moved = (
        trained("SELECT quantiles FROM cerebro.predict('quantile_models', 'newest', 'id', calibrated => %s)", one)
        for one in (False, None)
    )
    assert (plain != moved) == (abs(before - after) > 1e-9)
    refused(trained, "coverage cannot be 0.8: the quantiles of 'sold' are 0.05, 0.5, 0.95",
            "SELECT * FROM cerebro.predict('quantile_models', 'newest', coverage => 0.8)")  # fmt: skip


def test_quantiles_of_rows_without_a_sequence(sales: Lab) -> None:
    few = {**FEW, "architectures": '["mlp"]'}
    sales(
        "SELECT cerebro.train('past', 'row_models', 'sold', inputs => 'shop, promo', prepare => %s,"
        f" {', '.join(f'{one} => %s' for one in few)})",
        json.dumps({"sold": {"quantiles": [0.1, 0.5, 0.9]}, "shop": "category"}), *few.values(),
    )  # fmt: skip
    rows = sales("SELECT quantiles, value, lower, upper FROM cerebro.predict('row_models', 'past', coverage => 0.8)")
    assert all(its == [lower, value, upper] == sorted(its) for its, value, lower, upper in rows)
    held = sales.value(
        "SELECT avg((s.sold BETWEEN p.lower AND p.upper)::integer) FROM sales s"
        " JOIN cerebro.predict('row_models', 'past', 'id', coverage => 0.8) p ON p.key_value = s.id::text"
    )
    assert abs(float(held) - 0.8) < 0.1
    for said, arguments in (
        ("trees predict no quantiles", {"architectures": '["trees"]'}),
        ("is not a target, so it has no quantiles", {"prepare": '{"n": {"quantiles": [0.5]}}'}),
    ):
        given = {"prepare": '{"sold": {"quantiles": [0.5]}}', "epochs": 1, **arguments}
        refused(sales, said, "SELECT cerebro.train('past', 'no_models', 'sold', "
                + ", ".join(f"{one} => %s" for one in given) + ")", *given.values())  # fmt: skip


def test_what_is_known_before_is_read_at_the_steps_of_a_forecast(sales: Lab) -> None:
    """The price of a day decides what is sold, and nothing before says what it will be."""
    sales("CREATE TABLE priced AS SELECT n AS id, 1 AS shop, date '2024-01-01' + n AS day, n, price,"
          " CASE WHEN n < 400 THEN 100 - 30 * price END AS sold"
          " FROM (SELECT n, abs(hashint4(n * 7919) % 1000) / 1000.0::float8 AS price"
          " FROM generate_series(0, 404) n) p")  # fmt: skip
    errors = {}
    for table, known in (("blind", []), ("seeing", ["price"])):
        train(sales, f"{table}_models", "priced", "sold", known=known)
        errors[table] = sales.value(
            "SELECT sqrt(avg((p.value - (100 - 30 * q.price)) ^ 2)) FROM cerebro.predict(%s, 'SELECT * FROM priced"
            " WHERE n > 399 - 14', 'id') p JOIN priced q ON q.day = p.forecast_for::date WHERE p.key_value = '399'",
            f"{table}_models",
        )  # fmt: skip
    assert errors["seeing"] < errors["blind"] / 2
    sales.told()
    ahead = sales(
        "SELECT DISTINCT key_value FROM cerebro.predict('seeing_models', 'SELECT * FROM priced WHERE n > 385', 'id')"
    )
    assert ahead == [("399",)], "a window needs the rows that it forecasts"
    told = sales.told()
    assert not [line for line in told if "NULL" in line], "rows to come have no target"
    refused(sales, "the target 'sold' cannot be known before",
            "SELECT cerebro.train('priced', 'm', 'sold', sequence => %s)",
            json.dumps({**SEQUENCE, "known": "sold"}))  # fmt: skip


@pytest.mark.parametrize("ahead", [[1, 9], 9])
def test_forecasts_begin_with_the_values_of_a_season_before(sales: Lab, ahead: Any) -> None:
    """A model that has learned nothing says these, also of the second season."""
    sequence = {**SEQUENCE, "horizon": ahead, "season": 7}
    sales(
        "SELECT cerebro.fit('past', 'untrained', '[{\"architecture\": \"mlp\", \"learning_rate\": 1e-12}]', 'sold',"
        " inputs => 'sold', sequence => %s, epochs => 1, replace => true)",
        json.dumps(sequence),
    )
    found = sales(
        "SELECT s.shop, s.n, row_number() OVER (PARTITION BY s.id ORDER BY p.forecast_for::date), p.value"
        " FROM cerebro.predict('untrained', 'SELECT * FROM sales WHERE n >= 200', 'id') p"
        " JOIN sales s ON s.id::text = p.key_value"
    )
    sold = {(shop, n): value for shop, n, value in sales("SELECT shop, n, sold FROM sales")}
    assert found
    for shop, n, place, value in found:
        step = place if ahead != 9 else 9
        assert value == pytest.approx(sold[shop, n + step - 7 * (1 if step <= 7 else 2)], rel=1e-4)


def test_a_backtest_compares_with_what_came(trained: Lab) -> None:
    trained.told()
    whole, *steps = trained(
        "SELECT step, origins, forecasts, mase, naive_mase, wql, coverage, wanted_coverage FROM cerebro.backtest("
        "'quantile_models', 'SELECT * FROM sales WHERE shop < 3', origins => 4, season => 7)"
    )
    assert not [line for line in trained.told() if "origins are before" in line]
    rows = {shop: dict(its) for shop, its in by_shop(trained).items() if shop < 3}
    keys = {str(id): (shop, n) for id, shop, n in trained("SELECT id, shop, n FROM sales")}
    losses, errors, naive, size, held = [], [], [], 0.0, 0
    seen: dict[str, int] = {}
    first = 299 - AHEAD - 3 * AHEAD
    scale = {shop: np.mean([abs(its[n] - its[n - 7]) for n in range(7, first + 1)]) for shop, its in rows.items()}
    for key, quantiles in trained(
        "SELECT key_value, quantiles"
        " FROM cerebro.predict('quantile_models', 'SELECT * FROM sales WHERE shop < 3', 'id')"
        " ORDER BY key_value, forecast_for::date"
    ):
        shop, n = keys[key]
        seen[key] = seen.get(key, 0) + 1
        if n not in range(first, 299, AHEAD):
            continue
        truth, levels = rows[shop][n + seen[key]], np.array(LEVELS)
        apart = truth - np.array(quantiles)
        losses.append(2 * np.mean(np.maximum(levels * apart, (levels - 1) * apart)))
        errors.append(abs(apart[1]) / scale[shop])
        naive.append(abs(truth - rows[shop][n + seen[key] - 7]) / scale[shop])
        size, held = size + abs(truth), held + (quantiles[0] <= truth <= quantiles[2])
    assert whole[:3] == (None, 4, 2 * 4 * AHEAD) and len(losses) == whole[2] and whole[7] == pytest.approx(0.9)
    assert whole[3:7] == pytest.approx(
        (np.mean(errors), np.mean(naive), sum(losses) / size, held / len(losses)), rel=1e-4
    )
    assert [row[:3] for row in steps] == [(step, 4, 8) for step in range(1, AHEAD + 1)]


def test_a_backtest_tells_of_rows_that_trained_the_model(trained: Lab) -> None:
    trained.told()
    trained("SELECT * FROM cerebro.backtest('quantile_models', 'SELECT * FROM past WHERE shop = 1', origins => 20)")
    assert any("up to which rows trained the model" in line for line in trained.told())
    refused(trained, "no series of the query has 19 rows",
            "SELECT * FROM cerebro.backtest('quantile_models', 'SELECT * FROM sales WHERE n < 15')")  # fmt: skip
    refused(trained, "origins cannot be 0", "SELECT * FROM cerebro.backtest('quantile_models', 'sales', origins => 0)")


@pytest.mark.parametrize(
    ("sequence", "said"),
    [
        ({"horizon": [3, 1]}, "horizon has to be a number of rows, or the nearest and the farthest one"),
        ({"horizon": [0, 7]}, "horizon has to be a number of rows"),
        ({"quantiles": [0.9, 0.1]}, "quantiles cannot be"),
        ({"quantiles": [0.5, 1.0]}, "quantiles cannot be"),
        ({"known": ["price"]}, "does not have the column 'price' of known"),
        ({"horizon": [1, 20], "known": ["promo"]}, "as many rows at least as are forecast"),
    ],
)
def test_what_a_sequence_refuses(sales: Lab, sequence: dict[str, Any], said: str) -> None:
    refused(sales, said, "SELECT cerebro.pack('sales', 'no_packed', 'sold', sequence => %s)",
            json.dumps({**SEQUENCE, **sequence}))  # fmt: skip
