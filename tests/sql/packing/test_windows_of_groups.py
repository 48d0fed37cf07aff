"""Windows of rows with group_by: a forecast for each shop, from packing to predictions."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

import numpy as np
import psycopg2
import pytest

from tests.sql.lab import Lab, layer, sequential
from tests.sql.packing.test_tables import columns_of, packed, values

Window = tuple[list[list[int]], float]  # the column ``which`` of its rows, and the value to forecast

LENGTH, HORIZON = 4, 2
SEQUENCE = {"by": "shop", "order": "day", "length": LENGTH, "step": 1, "horizon": HORIZON}
# A shop sells the more, the higher its number. Shop 3 has most days, and shop 5 too few for a window.
DAYS = """
CREATE TABLE days AS SELECT row_number() OVER (ORDER BY day * 7 % 13, shop) AS id, 'shop ' || shop AS shop,
  date '2026-01-01' + day AS day, ARRAY[day, shop]::smallint[] AS which,
  (shop * 10 + sin(day * (1 + shop % 2)) * 3)::real AS sold, day % 2 = 0 AS open
 FROM generate_series(1, 5) shop, generate_series(1, 40) day
 WHERE day <= CASE shop WHEN 3 THEN 40 WHEN 5 THEN 5 ELSE 30 END;
ALTER TABLE days ADD PRIMARY KEY (id);
"""
SGD = "optimizer='SGD(learning_rate=0.0005)', loss='mse'"


@pytest.fixture(scope="module")
def days(lab: Lab) -> Lab:
    lab(DAYS)
    return lab


def forecasts(place: Lab, output: str, segments: int = 2, **more: Any) -> list[str]:
    return packed(
        place, output, "sold", "days", inputs=more.pop("inputs", "which"), group_by=more.pop("group_by", "shop"),
        sequence=json.dumps(SEQUENCE | more.pop("sequence", {})), segments=segments, seed=1, **more
    )  # fmt: skip


def expected(place: Lab) -> dict[str, list[Window]]:
    """The windows of each shop, made in Python."""
    subjects, found = defaultdict(list), {}
    for shop, which, sold in place("SELECT shop, which, sold FROM days ORDER BY shop, day"):
        subjects[shop].append((which, round(sold, 3)))
    for shop, rows in subjects.items():
        starts = range(len(rows) - LENGTH - HORIZON + 1)
        found[shop] = [
            ([which for which, _ in rows[start : start + LENGTH]], rows[start + LENGTH - 1 + HORIZON][1])
            for start in starts
        ]
    return {shop: windows for shop, windows in found.items() if windows}


def of_groups(place: Lab, table: str) -> dict[str, list[Window]]:
    """The windows that a packed table has for each group, as its layout says where they lie."""
    layout = place.value(f"SELECT layout FROM {table}_summary")
    which, sold = values(place, table, "which").tolist(), values(place, table, "sold").ravel().tolist()
    found, start = defaultdict(list), 0
    for partition in layout["partitions"]:
        for number, rows in partition.get("groups", ()):
            (label,) = layout["groups"]["labels"][number - 1]
            found[label] += [(which[row], round(sold[row], 3)) for row in range(start, start + rows)]
            start += rows
    assert start == layout["rows"]
    return {shop: sorted(windows) for shop, windows in found.items()}


def day_of(window: Window) -> int:
    """The day whose value is forecast."""
    return window[0][-1][0] + HORIZON


@pytest.mark.parametrize("segments", [1, 2, 3])
def test_each_group_has_the_windows_of_its_rows(days: Lab, segments: int) -> None:
    forecasts(days, f"whole_{segments}", segments, validation=0)
    assert of_groups(days, f"whole_{segments}") == expected(days)


def test_the_latest_days_are_for_validation(days: Lab) -> None:
    forecasts(days, "later", validation=0.2)
    first = min(day_of(one) for windows in of_groups(days, "later_validation").values() for one in windows)
    assert 20 < first <= 30
    for table, later in (("later", False), ("later_validation", True)):
        wanted = {
            shop: [one for one in windows if (day_of(one) >= first) == later]
            for shop, windows in expected(days).items()
        }
        assert of_groups(days, table) == {shop: windows for shop, windows in wanted.items() if windows}


def test_subjects_with_models_of_their_own_are_divided_by_time(days: Lab) -> None:
    """Else all windows of a shop would be on one side."""
    forecasts(days, "now", sequence={"horizon": 0}, validation=0.25)
    sides = [of_groups(days, table) for table in ("now", "now_validation")]
    assert set(sides[0]) == {"shop 1", "shop 2", "shop 3", "shop 4", "shop 5"} and set(sides[1]) >= {"shop 3"}
    for shop, windows in sides[1].items():
        assert max(which[-1][0] for which, _ in sides[0][shop]) < min(which[0][0] for which, _ in windows)


def test_a_group_of_several_subjects(days: Lab) -> None:
    days("CREATE VIEW towns AS SELECT *, CASE WHEN shop < 'shop 3' THEN 'A' ELSE 'B' END AS town FROM days")
    packed(
        days, "of_towns", "sold", "towns", inputs="which", group_by="town", segments=2, seed=1, validation=0,
        sequence=json.dumps(SEQUENCE | {"by": ["town", "shop"]}),
    )  # fmt: skip
    shops = expected(days)
    assert of_groups(days, "of_towns") == {
        "A": sorted(shops["shop 1"] + shops["shop 2"]), "B": sorted(shops["shop 3"] + shops["shop 4"])
    }  # fmt: skip


def test_the_column_of_the_group_can_be_an_input(days: Lab) -> None:
    forecasts(days, "named", inputs="shop, which", validation=0)
    assert of_groups(days, "named") == expected(days)
    assert columns_of(days, "named")["shop"]["as"] == "category"


# -- models --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(days: Lab) -> Lab:
    forecasts(days, "to_fit", validation=0.2)
    line = days.architecture(sequential([LENGTH, 2], layer("Flatten", "flat"), layer("Dense", "out", units=1)))
    days.selection("mst", [(line, SGD, "batch_size=4")])
    days(
        "SELECT fit('to_fit', 'models', 'mst', epochs => 3, evaluate_every => 1, options => %s)",
        json.dumps({"deterministic": True, "seed": 2}),
    )
    return days


def forward(place: Lab, shop: str, windows: list[list[list[int]]]) -> list[float]:
    """The predictions of a shop's model, computed by NumPy."""
    (weights,) = place.value("SELECT array_agg(weights) FROM models_groups WHERE group_value = %s", shop)
    numbers = np.frombuffer(bytes(weights), "<f4")
    return (np.array(windows, "f4").reshape(len(windows), -1) @ numbers[:-1] + numbers[-1]).tolist()


def windows_of_shops(place: Lab) -> dict[str, dict[str, list[list[int]]]]:
    """Shop -> the id of a window's last row -> the column ``which`` of its rows."""
    subjects, found = defaultdict(list), {}
    for shop, row, which in place("SELECT shop, id::text, which FROM days ORDER BY shop, day"):
        subjects[shop].append((row, which))
    for shop, rows in subjects.items():
        ends = range(LENGTH, len(rows) + 1)
        found[shop] = {rows[end - 1][0]: [which for _, which in rows[end - LENGTH : end]] for end in ends}
    return found


def test_each_window_is_predicted_by_the_model_of_its_group(trained: Lab) -> None:
    wanted = {}
    for shop, windows in windows_of_shops(trained).items():
        if shop != "shop 5":
            wanted.update(zip(windows, forward(trained, shop, list(windows.values()))))
    query = "SELECT * FROM days WHERE shop <> 'shop 5'"
    found = dict(trained("SELECT key_value, value FROM predict('models', %s)", query))
    assert found == pytest.approx(wanted, rel=1e-4)
    with pytest.raises(psycopg2.Error, match="no model was trained on the group"):
        trained("SELECT * FROM predict('models', 'SELECT * FROM days')")
    trained("CREATE VIEW few AS SELECT id, day, shop, which FROM days WHERE shop IN ('shop 2', 'shop 4')")
    assert trained.value("SELECT predict_into('models', 'few', 'predicted')") == 2 * (30 - LENGTH + 1)
    some = dict(trained("SELECT key_value, value FROM predicted"))
    assert some == pytest.approx({row: wanted[row] for row in some}, rel=1e-4)


def test_predictions_are_judged_with_the_later_values(trained: Lab) -> None:
    errors = []
    for shop, windows in expected(trained).items():
        found = forward(trained, shop, [which for which, _ in windows])
        errors += [(one - sold) ** 2 for one, (_, sold) in zip(found, windows)]
    others = "SELECT * FROM days WHERE shop <> 'shop 5'"
    figures = dict(trained("SELECT metric, value FROM evaluate('models', %s)", others))
    assert figures["rows"] == len(errors)
    assert figures["rmse"] == pytest.approx(np.sqrt(np.mean(errors)), rel=1e-3)


def test_a_function_forecasts_from_the_last_days_of_a_shop(days: Lab) -> None:
    days("CREATE VIEW plain AS SELECT shop, day, which[1]::integer AS x, sold FROM days")
    packed(
        days, "to_ask", "sold", "plain", inputs="x, sold", group_by="shop", sequence=json.dumps(SEQUENCE), segments=1,
        seed=1, validation=0,
    )  # fmt: skip
    days("""SELECT cerebro.fit('to_ask', 'asked', '[{"architecture": "mlp", "units": 4}]', epochs => 2)""")
    assert days.value("SELECT create_predictor('asked', 'ahead')") == f"{days.schema}.ahead(shop, x, sold)"
    said = days.value("SELECT obj_description('ahead(text, integer[], real[])'::regprocedure)")
    assert "for the group of the row. Each array has the values of 4 rows" in said
    query = "SELECT shop, day, x, sold FROM plain WHERE shop = 'shop 2' ORDER BY day DESC LIMIT 4"
    ((value,),) = days("SELECT value FROM predict('asked', %s)", query)
    ((x, sold),) = days(f"SELECT array_agg(x ORDER BY day), array_agg(sold ORDER BY day) FROM ({query}) q")
    assert days.value("SELECT ahead('shop 2', %s, %s::real[])", x, sold) == pytest.approx(value, rel=1e-5)
    with pytest.raises(psycopg2.Error, match="4"):
        days("SELECT ahead('shop 2', ARRAY[1, 2], ARRAY[1, 2]::real[])")


def test_a_function_of_a_model_that_reads_the_column_of_the_group_takes_one_value_of_it(days: Lab) -> None:
    packed(
        days, "with_shop", "sold", "days", inputs="shop, sold", group_by="shop", sequence=json.dumps(SEQUENCE),
        segments=1, seed=1, validation=0,
    )  # fmt: skip
    days("""SELECT cerebro.fit('with_shop', 'knowing', '[{"architecture": "mlp", "units": 4}]', epochs => 2)""")
    assert days.value("SELECT create_predictor('knowing', 'of_shop')") == f"{days.schema}.of_shop(shop, sold)"
    query = "SELECT shop, day, sold FROM days WHERE shop = 'shop 2' ORDER BY day DESC LIMIT 4"
    ((value,),) = days("SELECT value FROM predict('knowing', %s)", query)
    sold = days.value(f"SELECT array_agg(sold ORDER BY day) FROM ({query}) q")
    assert days.value("SELECT of_shop('shop 2', %s::real[])", sold) == pytest.approx(value, rel=1e-5)
    packed(
        days, "only_shop", "sold", "days", inputs="shop", group_by="shop", sequence=json.dumps(SEQUENCE),
        segments=1, seed=1, validation=0,
    )  # fmt: skip
    days("""SELECT cerebro.fit('only_shop', 'little', '[{"architecture": "mlp", "units": 4}]', epochs => 1)""")
    with pytest.raises(psycopg2.Error, match="reads only columns that tell the groups apart") as error:
        days("SELECT create_predictor('little', 'of_nothing')")
    assert error.value.diag.message_hint
