"""cerebro.predict picks the model of each row's group, and says what it cannot do with models of groups."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import psycopg2
import pytest

from tests.sql.lab import Lab, layer, sequential
from tests.sql.packing.test_tables import packed

SHOPS = """
CREATE TABLE shops AS SELECT i AS id, ARRAY[sin(i), cos(i * 3)]::real[] AS facts, (i % 9 + sin(i))::real AS cost,
  CASE WHEN i <= 80 THEN 'large' WHEN i <= 120 THEN 'it''s "small"' WHEN i <= 160 THEN NULL ELSE 'tiny' END AS shop,
  date '2026-01-01' + i % 2 AS day
 FROM generate_series(1, 164) i;
ALTER TABLE shops ADD PRIMARY KEY (id);
CREATE VIEW some_of_shops AS SELECT * FROM shops WHERE id % 3 = 0;
CREATE VIEW without_shop AS SELECT id, facts FROM shops;
CREATE VIEW with_new AS SELECT * FROM shops UNION ALL SELECT 1000, ARRAY[1, 2], 1, 'new', date '2026-01-01';
"""
SGD = "optimizer='SGD(learning_rate=0.05)', loss='mse'"


@pytest.fixture(scope="module")
def shops(lab: Lab) -> Lab:
    lab(SHOPS)
    packed(lab, "by_shop", "cost", "shops", inputs="facts", group_by="shop", segments=2, seed=1, validation=0.2)
    packed(lab, "by_both", "cost", "shops", inputs="facts", group_by="shop, day", segments=2, seed=1, validation=0)
    line = lab.architecture(sequential([2], layer("Dense", "out", units=1)))
    deep = lab.architecture(
        sequential([2], layer("Dense", "hidden", units=3, activation="relu"), layer("Dense", "out", units=1))
    )
    lab.selection("mst", [(line, SGD, "batch_size=8"), (deep, SGD, "batch_size=8")])
    fit(lab, "by_shop", "models", {"least_group_rows": 10})
    return lab


def fit(place: Lab, source: str, output: str, options: dict[str, Any]) -> int:
    return place.value(
        "SELECT fit(%s, %s, 'mst', epochs => 2, evaluate_every => 1, options => %s)",
        source, output, json.dumps({"deterministic": True, "seed": 2, **options}),
    )  # fmt: skip


def forward(key: int, weights: bytes, facts: np.ndarray) -> np.ndarray:
    """The prediction of a configuration's model, computed by NumPy."""
    numbers = np.frombuffer(weights, "<f4")
    if key == 1:
        return facts @ numbers[:2] + numbers[2]
    hidden = np.maximum(facts @ numbers[:6].reshape(2, 3) + numbers[6:9], 0)
    return hidden @ numbers[9:12] + numbers[12]


def best_of_all_rows(place: Lab, table: str) -> int:
    return place.value(
        f"SELECT configuration FROM leaderboard JOIN {table}_summary USING (run)"
        " WHERE group_number IS NULL AND rank = 1"
    )


def expected(place: Lab, table: str, configuration: int | None, by: str = "shop") -> dict[str, float]:
    """Row -> the prediction of the model that is right for its group."""
    whole = place.weights(table)
    best = best_of_all_rows(place, table)
    own: dict[str, tuple[int, bytes]] = {}
    for value, key, weights in place(
        f"SELECT group_value, configuration, weights FROM {table}_groups WHERE weights IS NOT NULL"
        " ORDER BY objective_value DESC"
    ):
        if configuration in (None, key):
            own[value] = key, bytes(weights)
    found = {}
    for row, facts, value in place(f"SELECT id::text, facts, {by} FROM shops"):
        key, weights = own.get(value, (configuration or best, whole[configuration or best]))
        found[row] = float(forward(key, weights, np.array(facts, "f4")))
    return found


def predictions(place: Lab, query: str = "SELECT * FROM shops", table: str = "models", **more: Any) -> dict[str, float]:
    named = "".join(f", {name} => %s" for name in more)
    return dict(place(f"SELECT key_value, value FROM predict(%s, %s{named})", table, query, *more.values()))


# -- the model of each row -----------------------------------------------------------------------------------------


def test_the_table_of_groups_lists_all_groups(shops: Lab) -> None:
    found = shops(
        "SELECT group_number, group_value, group_key, configuration, weights IS NULL, reason, which FROM models_groups"
        " ORDER BY 1, 4"
    )
    assert [one[:4] for one in found] == [
        (number, value, key, configuration)
        for number, (value, key) in enumerate(
            [
                ('it\'s "small"', '["it\'s \\"small\\""]'),
                ("large", '["large"]'),
                ("tiny", '["tiny"]'),
                (None, "[null]"),
            ],
            1,
        )
        for configuration in (1, 2)
    ]
    assert [one[4] for one in found] == [False] * 4 + [True] * 2 + [False] * 2
    assert all("fewer than the option least_group_rows (10)" in one[5] for one in found if one[4])
    run = shops.value("SELECT run FROM models_summary")
    states = shops.states(run)
    for model, weights in shops("SELECT model, weights FROM models_groups WHERE weights IS NOT NULL"):
        assert bytes(weights) in states[model]
    board = shops(
        "SELECT model, validation_loss, training_loss, objective_value FROM leaderboard WHERE run = %s"
        " AND group_number IS NOT NULL ORDER BY 1", run
    )  # fmt: skip
    assert board == shops(
        "SELECT model, validation_loss, training_loss, objective_value FROM models_groups WHERE model > 0 ORDER BY 1"
    )


@pytest.mark.parametrize("configuration", [None, 1, 2])
def test_each_row_is_predicted_by_the_model_of_its_group(shops: Lab, configuration: int | None) -> None:
    more = {} if configuration is None else {"configuration": configuration}
    found = predictions(shops, **more)
    assert found == pytest.approx(expected(shops, "models", configuration), rel=1e-5, abs=1e-6)
    assert len(found) == 164


def test_several_columns_and_types(shops: Lab) -> None:
    fit(shops, "by_both", "of_both", {})
    by = "jsonb_build_array(shop, day)::text"
    values = dict(shops("SELECT group_key, group_value FROM of_both_groups"))
    assert {json.dumps(json.loads(key)) for key in values} == {json.dumps(json.loads(one)) for one in values.values()}
    shops("UPDATE of_both_groups SET group_value = group_key")
    found = predictions(shops, table="of_both")
    assert found == pytest.approx(expected(shops, "of_both", None, by), rel=1e-5, abs=1e-6)
    assert predictions(shops, "SELECT id, facts, shop::varchar, day FROM shops", "of_both") == found


@pytest.mark.parametrize("configuration", [None, 2])
@pytest.mark.parametrize("source", ["shops", "some_of_shops"])
def test_a_table_or_view_is_predicted_into_a_table(shops: Lab, source: str, configuration: int | None) -> None:
    made = f"predicted_{source}_{configuration or 0}"
    count = shops.value("SELECT predict_into('models', %s, %s, configuration => %s)", source, made, configuration)
    more = {} if configuration is None else {"configuration": configuration}
    found = predictions(shops, f"SELECT * FROM {source}", **more)
    assert count == len(found) > 50
    assert dict(shops(f"SELECT key_value, value FROM {made}")) == found


def test_a_function_predicts_a_row_of_any_group(shops: Lab) -> None:
    assert shops.value("SELECT create_predictor('models', 'cost_of')") == f"{shops.schema}.cost_of(shop, facts)"
    rows = shops("SELECT id::text, shop, day, facts FROM shops WHERE id % 9 = 0")
    found = {row: shops.value("SELECT cost_of(%s, %s::real[])", shop, facts) for row, shop, _, facts in rows}
    wanted = predictions(shops, "SELECT * FROM shops WHERE id % 9 = 0")
    assert found == pytest.approx(wanted, rel=1e-5)  # batches of other sizes are rounded in another way
    fit(shops, "by_both", "models_of_both", {})
    shops("SELECT create_predictor('models_of_both', 'cost_at', 2)")
    call = "SELECT cost_at(day => %s, shop => %s, facts => %s::real[])"
    found = {row: shops.value(call, day, shop, facts) for row, shop, day, facts in rows}
    wanted = predictions(shops, "SELECT * FROM shops WHERE id % 9 = 0", "models_of_both", configuration=2)
    assert found == pytest.approx(wanted, rel=1e-5)
    with pytest.raises(psycopg2.Error, match="no model was trained on the group"):
        shops("SELECT cost_of('new', ARRAY[1, 2]::real[])")


def test_rows_in_any_order_and_of_one_group(shops: Lab) -> None:
    whole = predictions(shops)
    assert predictions(shops, "SELECT * FROM shops ORDER BY id DESC") == whole
    one = predictions(shops, "SELECT * FROM shops WHERE shop = 'large' AND id = 7")
    assert one == {"7": whole["7"]}
    assert predictions(shops, "SELECT * FROM shops WHERE false") == {}
    numbered = predictions(shops, "SELECT facts, shop FROM shops WHERE shop = 'tiny'")
    assert sorted(numbered.values()) == sorted(whole[str(row)] for row in range(161, 165))


def test_a_group_that_training_has_not_seen(shops: Lab) -> None:
    with pytest.raises(psycopg2.Error) as error:
        predictions(shops, "SELECT * FROM with_new")
    assert 'no model was trained on the group ["new"] of shop' in str(error.value)
    fit(shops, "by_shop", "lenient", {"new_groups": "all rows"})
    found = predictions(shops, "SELECT * FROM with_new", "lenient")
    best = best_of_all_rows(shops, "lenient")
    weights = shops.weights("lenient")[best]
    assert found["1000"] == pytest.approx(float(forward(best, weights, np.array([1, 2], "f4"))), rel=1e-5)


def test_transactions_that_only_read_predict(shops: Lab) -> None:
    whole = predictions(shops)
    shops("BEGIN READ ONLY")
    try:
        assert predictions(shops) == whole
    finally:
        shops("ROLLBACK")


def test_functions_that_judge_take_the_model_of_each_row(shops: Lab) -> None:
    found = expected(shops, "models", None)
    cost = dict(shops("SELECT id::text, cost FROM shops"))
    loss = float(np.mean([(found[row] - cost[row]) ** 2 for row in found]))
    figures = dict(shops("SELECT metric, value FROM evaluate('models', 'SELECT * FROM shops')"))
    assert loss == pytest.approx(figures["mse"], rel=1e-4), figures
    important = shops("SELECT * FROM importance('models', 'SELECT id, facts, cost, shop FROM shops')")
    assert [row[0] for row in important] == ["facts"]


# -- what happens to the tables ------------------------------------------------------------------------------------


def test_materialize_makes_the_same_tables_and_drop_model_drops_all(shops: Lab) -> None:
    run = shops.value("SELECT run FROM models_summary")
    shops("SELECT materialize(%s, 'again')", run)
    for ending in ("_groups", "_info"):
        one, other = (shops(f"SELECT x::text FROM {name}{ending} x ORDER BY 1") for name in ("models", "again"))
        assert one == other and one
    assert predictions(shops, table="again") == predictions(shops)
    shops("SELECT drop_model('again')")
    assert not [name for name in shops.tables() if name.startswith("again")]


def test_an_ensemble_is_of_all_rows(shops: Lab) -> None:
    configurations = json.dumps([{"architecture": "mlp", "units": units} for units in (4, 8)])
    shops("SELECT fit('by_shop', 'functional', %s, epochs => 1)", configurations)
    shops("SELECT ensemble('functional', 'together', members => 2, all_join => true)")
    shops("SELECT 1 FROM predict('together', 'SELECT id, facts FROM shops')")
    assert "group_by" not in dict(shops.columns("together_summary"))


def test_the_summary_says_how_groups_are_found(shops: Lab) -> None:
    assert shops("SELECT group_by, group_types, new_groups FROM models_summary") == [("shop", ["text"], "error")]
    assert "groups" not in shops.value("SELECT layout FROM models_summary")


def test_a_state_that_was_changed_is_left_out(shops: Lab) -> None:
    run = fit(shops, "by_shop", "damaged", {})
    storage = shops.value("SELECT storage FROM run WHERE run = %s", run)
    model = shops.value("SELECT model FROM damaged_groups WHERE group_value = 'large' AND configuration = 1")
    for number in (0, 1):
        shops(
            f'UPDATE cerebro_state."{storage}_shared_{number}" SET payload = payload || payload WHERE model = %s', model
        )
    shops.told()
    shops("SELECT materialize(%s, 'damaged_again')", run)
    assert any("1 model of groups are left out" in line for line in shops.told())
    (found,) = shops("SELECT weights, reason FROM damaged_again_groups WHERE model = %s", model)
    assert found == (None, "its state is not the one that was committed")


@pytest.fixture(scope="module")
def numbered(shops: Lab) -> Lab:
    shops(
        "CREATE TABLE numbered AS SELECT id, facts, cost, (id % 3)::integer AS part,"
        " date '2026-01-01' + id % 2 AS day FROM shops"
    )
    for column in ("part", "day"):
        packed(shops, f"by_{column}", "cost", "numbered", inputs="facts", group_by=column, segments=1, validation=0)
        fit(shops, f"by_{column}", f"of_{column}", {})
    return shops


@pytest.mark.parametrize(
    ("table", "column", "hint"),
    [
        ("of_part", "(part + 0.4)::float8 AS part", "tells the groups apart"),
        ("of_part", "part = 1 AS part", "tells the groups apart"),
        ("of_part", "part::text AS part", "tells the groups apart"),
        ("of_part", "ARRAY[part] AS part", "tells the groups apart"),
        ("of_day", "day + time '13:00' AS day", "tells the groups apart"),
        ("of_day", "day::timestamptz AS day", "time zone"),
    ],
)
def test_values_that_would_become_those_of_other_groups_are_refused(
    numbered: Lab, table: str, column: str, hint: str
) -> None:
    with pytest.raises(psycopg2.Error) as error:
        predictions(numbered, f"SELECT id, facts, {column} FROM numbered", table)
    assert "in the rows for training" in str(error.value) and hint in str(error.value.diag.message_hint)


def test_integers_of_all_sizes_are_alike(numbered: Lab) -> None:
    wanted = predictions(numbered, "SELECT id, facts, part FROM numbered", "of_part")
    assert wanted == predictions(numbered, "SELECT id, facts, part::bigint FROM numbered", "of_part")
    with pytest.raises(psycopg2.Error, match="no model was trained on the group"):
        predictions(numbered, "SELECT id, facts, 3000000000 AS part FROM numbered", "of_part")


def test_the_best_model_is_that_of_the_view(shops: Lab) -> None:
    run = shops.value("SELECT run FROM models_summary")
    ranked = (
        "SELECT DISTINCT ON (group_number) group_number, configuration FROM models_groups WHERE weights IS NOT NULL"
    )
    assert shops(f"{ranked} ORDER BY group_number, rank") == shops(
        "SELECT group_number, configuration FROM cerebro.groups WHERE run = %s ORDER BY 1", run
    )


# -- refusals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "text"),
    [
        ("predict_into('models', 'shops', 'predicted', coverage => 0.9)", "models of groups"),
        ("predict_into('models', 'with_new', 'predicted')", 'the group ["new"] of shop'),
        ("predict_into('models', 'without_shop', 'predicted')", "has no column 'shop'"),
        ("create_predictor('models', 'predictor', thresholds => true)", "models of groups"),
        ("predict('models', 'SELECT * FROM shops', coverage => 0.9)", "models of groups"),
        ("predict('models', 'SELECT * FROM shops', calibrated => true)", "models of groups"),
        ("predict('models', 'SELECT * FROM shops', thresholds => true)", "models of groups"),
        ("calibrate('models')", "models of groups, which cannot be calibrated"),
        ("predict('models', 'SELECT id, facts FROM shops')", "the query has no column 'shop'"),
        ("predict('models', 'SELECT NULL::int AS id, facts, shop FROM shops', 'id')", "NULL in the key"),
        ("predict('models', 'SELECT id, NULL::real[] AS facts, shop FROM shops')", "NULL"),
        ("predict('models', 'SELECT * FROM shops', configuration => 7)", "no configuration 7"),
    ],
)
def test_refused(shops: Lab, call: str, text: str) -> None:
    before = shops.tables()
    with pytest.raises(psycopg2.Error) as error:
        shops(f"SELECT * FROM {call}")
    assert text in str(error.value) and error.value.diag.message_hint
    assert shops.tables() == before


def test_a_table_without_its_groups_is_refused(shops: Lab) -> None:
    shops("ALTER TABLE models_groups RENAME TO hidden")
    try:
        with pytest.raises(psycopg2.Error) as error:
            predictions(shops)
        assert "does not have its table" in str(error.value)
    finally:
        shops("ALTER TABLE hidden RENAME TO models_groups")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ("group_types = ARRAY['text); DROP TABLE shops; --']", "type"),
        ("group_types = ARRAY['text', 'text']", "has to have 1 types"),
        ("group_types = NULL", "group_types"),
        ("group_by = 'shop, day'", "has to have 2 types"),
        ("new_groups = 'perhaps'", "new_groups"),
    ],
)
def test_a_summary_that_was_changed_is_refused(shops: Lab, change: str, text: str) -> None:
    shops(f"BEGIN; UPDATE models_summary SET {change}")
    try:
        with pytest.raises(psycopg2.Error) as error:
            predictions(shops)
        assert text in str(error.value)
    finally:
        shops("ROLLBACK")
    assert shops.value("SELECT count(*) FROM shops") == 164
