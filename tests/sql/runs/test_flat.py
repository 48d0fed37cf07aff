"""Flat configurations: as JSON, as a query and as a table, with architectures by kind, by JSON and by name."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import psycopg2
import pytest

from tests.sql.lab import CROSS, Lab, flower_model, layer, sequential, verb
from tests.sql.users import town

SAME = {"deterministic": True, "seed": 7}
RATES = (0.1, 0.01)
FLOWER = {"architecture": flower_model(), "optimizer": "SGD", "batch_size": 16, "passes": 1}
TOWER = sequential(
    [4],
    {"repeat": "$depth", "layers": [layer("Dense", "hidden", units="$width", activation="relu")]},
    layer("Dense", "out", units=3, activation="softmax"),
)


@pytest.fixture(scope="module")
def flowers(lab: Lab) -> Lab:
    lab.iris(segments=2)
    return lab


def fit(lab: Lab, output: str, configurations: Any, epochs: int = 2, source: str = "train", **more: Any) -> int:
    return lab.value(*verb("fit", source, output, configurations, epochs=epochs, **{"options": SAME, **more}))


@pytest.fixture(scope="module")
def oracle(flowers: Lab) -> dict[int, bytes]:
    """The weights of a fit by MADlib's tables."""
    number = flowers.architecture(flower_model())
    flowers.selection("mst", [(number, f"optimizer='SGD(lr={rate})', {CROSS}", "batch_size=16") for rate in RATES])
    flowers.fit("train", "by_madlib", "mst", 2, options=SAME)
    return flowers.weights("by_madlib")


def test_each_form_gives_the_bits_of_madlibs_tables(flowers: Lab, oracle: dict[int, bytes]) -> None:
    listed = [{**FLOWER, "learning_rate": rate} for rate in RATES]
    run = fit(flowers, "by_json", listed)
    assert flowers.weights("by_json") == oracle and len(set(oracle.values())) == 2
    trained = {**FLOWER, "loss": "categorical_crossentropy", "metrics": ["accuracy"]}
    assert flowers("SELECT architecture, parameters FROM leaderboard WHERE run = %s ORDER BY configuration", run) == [
        ("model", {**{key: one for key, one in trained.items() if key != "architecture"}, "learning_rate": rate})
        for rate in RATES
    ]

    flowers("SELECT add_architecture('flower', %s)", json.dumps(flower_model()))
    query = ("SELECT 'flower' AS architecture, 'SGD' AS optimizer, 16 AS batch_size, 1 AS passes, rate AS learning_rate"
             " FROM unnest(ARRAY[0.1, 0.01]) rate -- in this order")  # fmt: skip
    fit(flowers, "by_query", query)
    assert flowers.weights("by_query") == oracle

    flowers(f"CREATE TABLE tried AS {query.partition('--')[0]}; ALTER TABLE tried ADD momentum real")
    again = fit(flowers, "by_table", "tried")
    rates = flowers(
        "SELECT parameters -> 'learning_rate' FROM leaderboard WHERE run = %s ORDER BY configuration", again
    )
    assert rates == [(0.01,), (0.1,)], "a table's rows are ordered"
    fit(flowers, "by_selection", "mst")
    assert flowers.weights("by_selection") == oracle
    fit(flowers, "by_replay", listed, options={"replay": run})
    assert flowers.weights("by_replay") == oracle


def test_what_is_left_out_follows_from_the_rows(flowers: Lab) -> None:
    run = fit(flowers, "small", {}, 1)
    ((name, parameters),) = flowers("SELECT architecture, parameters FROM leaderboard WHERE run = %s", run)
    assert name == "mlp" and parameters == {
        "loss": "categorical_crossentropy", "metrics": ["accuracy"], "optimizer": "AdamW", "weight_decay": 0.0001,
        "batch_size": 16, "passes": 4,  # 120 rows
    }  # fmt: skip
    architecture = flowers.value("SELECT architecture::text FROM architecture WHERE run = %s", run)
    kind = flowers.value("SELECT cerebro.architecture('mlp', 'train')")
    assert [one["class_name"] for one in json.loads(architecture)["config"]["layers"]] == [
        one["class_name"] for one in kind["config"]["layers"]
    ]
    assert flowers.value("SELECT name FROM architecture WHERE run = %s", run) == "mlp"


def test_kinds_have_their_parameters(flowers: Lab) -> None:
    listed = [{"units": 4, "layers": 1, "dropout": 0}, {"architecture": "resnet", "units": 6, "blocks": 1}]
    run = fit(flowers, "kinds", listed, 1)
    found = flowers("SELECT name, architecture::text FROM architecture WHERE run = %s ORDER BY model_id", run)
    assert [name for name, _ in found] == ["mlp", "resnet"]
    assert '"units": 4' in found[0][1] and '"units": 6' in found[1][1]


def test_a_search_over_architectures_with_different_parameters(flowers: Lab) -> None:
    flowers("SELECT add_architecture('tower', %s)", json.dumps(TOWER))
    space = {"architecture": ["mlp", "tower", flower_model(5)], "width": {"choice": [4, 8]}, "depth": 1,
             "layers": {"integer": [0, 1]}, "units": 4, "learning_rate": 0.1}  # fmt: skip
    run = flowers.value(*verb("search", "train", "mixed", space, epochs=1, method="grid", options=SAME))
    chosen = [one for (one,) in flowers("SELECT chosen FROM leaderboard WHERE run = %s ORDER BY configuration", run)]
    assert len(chosen) == 2 + 2 + 1
    for point in chosen:
        name = point["architecture"]
        assert set(point) - {"architecture"} == {"mlp": {"layers"}, "tower": {"width"}}.get(name, set())
    layers = flowers("SELECT chosen, json_array_length(mixed.architecture #> '{config,layers}') FROM mixed"
                     " JOIN leaderboard USING (configuration) WHERE run = %s", run)  # fmt: skip
    by_depth = {(point["architecture"], point.get("layers")): count for point, count in layers}
    assert by_depth["mlp", 1] > by_depth["mlp", 0] and by_depth["tower", None] == 3
    # A configuration is added to it, one with an architecture of the run's, and its own clone.
    for one in ({"architecture": "tower", "width": 4, "depth": 1}, {"units": 9}):
        flowers("SELECT add_configuration(%s, %s)", run, json.dumps(one))
    flowers("SELECT clone_model(%s, 1, %s)", run, json.dumps({"learning_rate": 0.5, "passes": 2}))
    flowers("SELECT resume(%s)", run)
    board = flowers("SELECT status, count(*) FROM leaderboard WHERE run = %s GROUP BY 1", run)
    assert board == [("finished", 8)]
    told = "SELECT architecture, parameters FROM leaderboard WHERE run = %s AND configuration = %s"
    ((_, first),) = flowers(told, run, 1)
    assert {"layers", "units"} <= first.keys(), "a search's configurations have the parameters of their architectures"
    key = flowers.value("SELECT configuration FROM leaderboard WHERE run = %s AND parent IS NOT NULL", run)
    assert flowers(told, run, key) == [("mlp", {**first, "learning_rate": 0.5, "passes": 2})]
    names = dict(flowers("SELECT architecture, count(*) FROM leaderboard WHERE run = %s GROUP BY 1", run))
    assert names == {"mlp": 4, "tower": 3, "model": 1}
    added = flowers(told.replace("configuration = %s", "configuration > %s AND parent IS NULL"), run, 5)
    assert {name: set(its) & {"units", "width", "depth"} for name, its in added} == {
        "mlp": {"units"}, "tower": {"width", "depth"}
    }  # fmt: skip


def test_added_architectures(flowers: Lab) -> None:
    weights = np.arange(15, dtype="f4")
    plain = sequential([4], layer("Dense", "out", units=3, activation="softmax"))
    flowers("SELECT add_architecture('begun', %s, %s, 'with weights')", json.dumps(plain), weights.tobytes())
    shown = flowers("SELECT owner = current_user, parameter_names, weights, description FROM architectures"
                    " WHERE name = 'begun'")  # fmt: skip
    assert shown == [(True, [], 15, "with weights")]
    run = fit(flowers, "begun_models", [{"architecture": "begun", "learning_rate": 0.1}], 1)
    assert flowers.value("SELECT initial FROM model WHERE run = %s", run) == "weights"
    for call, says in (
        ("add_architecture('begun', '{}')", "add_architecture: the architecture must be a layer or model"),
        ("add_architecture('mlp', '{}')", "'mlp' is a kind of architecture"),
        ("add_architecture(' x', '{}')", "name must be a text"),
        ("add_architecture('new', NULL)", "architecture must not be NULL"),
        ("add_architecture('new', %s, '\\x00')", "initial_weights has 1 bytes"),
        ("add_architecture('new', %s)", "'learning_rate' has the name of a parameter of training"),
        ("drop_architecture('nobody')", "you have added no architecture 'nobody'"),
        ("drop_architecture(NULL)", "you have added no architecture NULL"),
    ):
        given = [json.dumps(plain)] if "00" in call else []
        if call.endswith("%s)"):
            given = [json.dumps(sequential([4], layer("Dense", "out", units="$learning_rate")))]
        with pytest.raises(psycopg2.Error, match=says) as caught:
            flowers(f"SELECT {call}", *given)
        assert caught.value.diag.message_hint, call
    with pytest.raises(psycopg2.Error, match="you have added an architecture 'begun' already"):
        flowers("SELECT add_architecture('begun', %s)", json.dumps(plain))
    flowers("SELECT drop_architecture('begun')")
    assert flowers("SELECT FROM cerebro.added_architecture WHERE name = 'begun'") == []
    flowers("SELECT resume(%s, epochs => 2)", run)  # which keeps what it needs
    flowers("SELECT add_architecture('begun', %s), drop_architecture('begun')", json.dumps(plain))


def test_architectures_are_their_owners(server: str) -> None:
    with town(server) as made:
        ann, bob = made.user("ann", "cerebro_user"), made.user("bob", "cerebro_user")
        for user in (ann, bob):
            user("SELECT cerebro.add_architecture('mine', %s)", json.dumps(flower_model()))
        assert ann("SELECT count(*) FROM cerebro.architectures") == [1]
        assert ann("SELECT count(*) FROM cerebro.added_architecture") == [1]
        ann("SELECT cerebro_internal._drop_architecture('mine', %s)", bob.name)
        assert bob("SELECT name FROM cerebro.architectures") == ["mine"]
        with pytest.raises(psycopg2.Error, match="permission denied"):
            ann("DELETE FROM cerebro.added_architecture")
        with pytest.raises(psycopg2.Error, match="row-level security"):
            ann(
                "INSERT INTO cerebro.added_architecture (owner, name, dropped) VALUES (%s::regrole, 'mine', true)",
                bob.name,
            )
        ann("SELECT cerebro.drop_architecture('mine')")
        assert ann("SELECT name FROM cerebro.architectures") == [] and bob("SELECT name FROM cerebro.architectures")
        bob("SELECT cerebro.drop_architecture('mine')")


@pytest.mark.parametrize(
    ("configurations", "says"),
    [
        (None, "configurations must not be NULL or empty"),
        ("", "configurations must not be NULL or empty"),
        ([], "there are 0 of them"),
        ("[", "configurations is not valid JSON"),
        ([3], "number 1 is 3; it must be an object"),
        ([{}, {"lerning_rate": 1}], "number 2: there is no parameter 'lerning_rate'. The nearest are: learning_rate"),
        ({"epochs": 3}, "'epochs' is no parameter of a configuration. The argument epochs says"),
        ({"architecture": "castle"}, 'there is no architecture "castle". An architecture is a kind (mlp,'),
        ({"architecture": 3}, "the architecture cannot be 3"),
        ({"architecture": {"units": 3}}, "the architecture is no JSON of a Keras model"),
        ({"architecture": sequential([4], layer("Lambda", "code"))}, "number 1: the architecture: "),
        ({"architecture": TOWER, "width": 3}, "has the parameter depth, which has no value here"),
        ({"units": 0}, "number 1: units cannot be 0"),
        ({"units": "many"}, "number 1: units cannot be 'many'"),
        ({"layers": {"choice": [1, 2]}}, 'layers cannot be {"choice": [1, 2]}: a configuration has one value for each'),
        ({"learning_rate": [0.1, 0.01]}, "learning_rate cannot be [0.1, 0.01]: a configuration has one value for each"),
        ({"loss": "nope"}, "number 1: "),
        ({"learning_rate": -1}, "number 1: "),
        ({"batch_size": 0}, "number 1: invalid input value for parameter batch_size=0"),
        ("SELECT 1 AS nobody", "row 1: there is no parameter 'nobody'"),
        ("SELECT 16 AS batch_size WHERE false", "configurations: there is no row; each row is a configuration"),
        ("SELECT 16 AS batch_size, 0.01", "configurations: column 2 of the query has no name. The columns are named"),
        ("SELECT rate FROM nothing", 'configurations: the query is wrong: relation "nothing" does not exist. The col'),
        ("SELECT 1; DROP TABLE flowers", "syntax error"),
        ("nowhere", "there is no table 'nowhere'"),
        ("flowers", "there is no parameter"),
    ],
)
def test_wrong_configurations_are_refused(flowers: Lab, configurations: Any, says: str) -> None:
    before = flowers("SELECT count(*) FROM run")
    with pytest.raises(psycopg2.Error) as caught:
        fit(flowers, "refused", configurations, 1)
    assert says in f"{caught.value.diag.message_primary} {caught.value.diag.message_hint}", caught.value
    assert flowers("SELECT count(*) FROM run") == before


def test_two_learning_rates_need_no_other_table(flowers: Lab) -> None:
    before = flowers.tables()
    fit(flowers, "two", [{"learning_rate": rate} for rate in RATES], 1, source="flowers", target="species")
    made = {name for name in flowers.tables() - before if not name.endswith("_pkey")}
    packed = f"cerebro_data.{flowers.schema}_two_packed"
    assert {name for name in made if not name.startswith(packed)} == {"two", "two_info", "two_summary"}
