"""Adapters in a database: a hop moves them alone, the model table has the body once, and all that reads it gets all.

The models have a frozen body of 4.2 MB.  Their states without it are below 300 kB.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tests.sql.lab import Lab, eventually, layer, sequential

EPOCHS, SEGMENTS, HIDDEN = 2, 2, 1024
BODY = 4 * (5 * HIDDEN + (HIDDEN + 1) * HIDDEN)  # bytes
OPTIONS = {"deterministic": True, "seed": 6, "threads": 1}
CONFIGURATIONS: list[dict[str, Any]] = [
    {"lora_rank": 2, "lora_alpha": 4, "learning_rate": 0.01},
    {"lora_rank": 4, "learning_rate": 0.01},
    {"biases": True, "learning_rate": 0.01},
    {"bottleneck": 3, "learning_rate": 0.01},
    {"lora_rank": 0, "learning_rate": 0.01},
]
ADAPTED = 4  # of them


def network() -> Any:
    return sequential(
        [4],
        layer("Dense", "body_1", units=HIDDEN, activation="relu"),
        layer("Dense", "body_2", units=HIDDEN, activation="relu"),
        layer("Dense", "out", units=3, activation="softmax"),
    )


def given() -> bytes:
    random = np.random.default_rng(3)
    shapes = [(4, HIDDEN), (HIDDEN,), (HIDDEN, HIDDEN), (HIDDEN,), (HIDDEN, 3), (3,)]
    return b"".join(random.normal(0, 0.05, shape).astype("<f4").tobytes() for shape in shapes)


def fit(lab: Lab, output: str, **more: Any) -> int:
    configurations = [{"architecture": "adapted_net", "batch_size": 8, **one} for one in CONFIGURATIONS]
    lab(
        "SELECT fit('train', %s, %s, epochs => %s, validation_table => 'val', options => %s, warm_start => %s)",
        output, json.dumps(more.get("configurations", configurations)), more.get("epochs", EPOCHS),
        json.dumps({**OPTIONS, **more.get("options", {})}), more.get("warm_start", False),
    )  # fmt: skip
    return int(lab.value("SELECT max(run) FROM runs"))


@pytest.fixture(scope="module")
def place(lab: Lab) -> Lab:
    lab.iris(SEGMENTS)
    lab("SELECT add_architecture('adapted_net', %s, %s)", json.dumps(network()), given())
    return lab


@pytest.fixture(scope="module")
def trained(place: Lab) -> int:
    return fit(place, "adapted")


def hops(lab: Lab, run: int) -> list[Any]:
    return lab("SELECT model, hop, state_sha256 FROM hop WHERE run = %s ORDER BY 1, 2", run)


def test_a_hop_moves_the_adapter_alone(place: Lab, trained: int) -> None:
    storage = place.value("SELECT storage FROM run WHERE run = %s", trained)
    assert place.value("SELECT count(*) FROM hop WHERE run = %s", trained) == len(CONFIGURATIONS) * EPOCHS * SEGMENTS
    parts = place("SELECT DISTINCT frozen ->> 'sha256', (frozen ->> 'bytes')::int FROM hop WHERE run = %s", trained)
    assert [size for _, size in parts] == [BODY], "models with one body store it once"
    sizes = place("SELECT state_bytes - (frozen ->> 'bytes')::int FROM hop WHERE run = %s", trained)
    assert all(0 < size < 300_000 for (size,) in sizes)
    stored = place.value(
        "SELECT sum(pg_relation_size(oid)) FROM pg_class WHERE relnamespace = 'cerebro_state'::regnamespace"
        " AND starts_with(relname, %s) AND relkind = 'r'", storage,
    )  # fmt: skip
    assert stored < 1.2 * BODY + len(CONFIGURATIONS) * 2 * 300_000


def test_the_model_table_has_the_body_once(place: Lab, trained: int) -> None:
    rows = place(
        "SELECT configuration, sum(octet_length(payload)), count(*) FILTER (WHERE payload IS NULL), max(body)"
        " FROM adapted_weights GROUP BY 1 ORDER BY 1"
    )
    assert len(rows) == ADAPTED + 1
    *models, (number, size, _, body) = rows
    assert (number, size) == (None, BODY)
    assert all(refers == 1 and own < 300_000 and its == body for _, own, refers, its in models)
    assert place.value("SELECT count(*) FROM adapted WHERE weights IS NULL") == ADAPTED


def test_predictions_are_those_that_were_evaluated(place: Lab, trained: int) -> None:
    for configuration in range(1, len(CONFIGURATIONS) + 1):
        told = place.value(
            "SELECT validation_metric FROM leaderboard WHERE run = %s AND configuration = %s", trained, configuration
        )
        found = place("SELECT * FROM evaluate('adapted', 'garden', configuration => %s)", configuration)
        assert any(abs(float(value) - told) < 1e-6 for row in found for value in row if isinstance(value, float)), found


def test_bits_are_the_same_again_and_after_a_resume(place: Lab, trained: int) -> None:
    again = fit(place, "adapted_again")
    assert [row[1:] for row in hops(place, again)] == [row[1:] for row in hops(place, trained)]
    configurations = [{"architecture": "adapted_net", "batch_size": 8, **one} for one in CONFIGURATIONS]
    run = place.value(
        "SELECT fit('train', 'adapted_cut', %s, epochs => %s, validation_table => 'val', options => %s,"
        " wait => false)", json.dumps(configurations), EPOCHS, json.dumps(OPTIONS),
    )  # fmt: skip
    eventually(lambda: len(hops(place, run)) >= 4, 120, "four hops")
    place("SELECT pg_terminate_backend(%s)", place.value("SELECT driver_pid FROM runs WHERE run = %s", run))
    eventually(lambda: place.status(run) not in ("running", "created"), 60, "the driver is gone")
    place("SELECT resume(%s)", run)
    assert [row[1:] for row in hops(place, run)] == [row[1:] for row in hops(place, trained)]


def test_a_warm_start_goes_on_with_the_optimizers_state(place: Lab, trained: int) -> None:
    fit(place, "adapted_on", epochs=1)
    place.told()
    fit(place, "adapted_on", epochs=1, warm_start=True)
    assert not [one for one in place.told() if "weights alone" in one]


def test_a_body_that_is_gone_is_told(place: Lab, trained: int) -> None:
    fit(place, "adapted_gone", epochs=1)
    place("DELETE FROM adapted_gone_weights WHERE configuration IS NULL")
    with pytest.raises(Exception, match="the frozen body of model 1"):
        place("SELECT * FROM evaluate('adapted_gone', 'garden', configuration => 1)")


def test_versions_of_a_registered_model_have_the_body_once(place: Lab, trained: int) -> None:
    """Who may use the model predicts with it, and reads neither the adapters nor the body."""
    for version in (1, 2):
        place("SELECT register('adapted_shared', 'adapted', configuration => %s)", version)
    body = place.value(
        "SELECT string_agg(tablename, ',') FROM pg_tables WHERE schemaname = 'cerebro_registry'"
        " AND starts_with(tablename, 'adapted_shared@body_')"
    )
    table = f'cerebro_registry."{body}"'
    assert place.value(f"SELECT sum(octet_length(payload)) FROM {table}") == BODY
    for version in (1, 2):
        told = place("SELECT * FROM evaluate('adapted', 'garden', configuration => %s)", version)
        assert place("SELECT * FROM evaluate(%s, 'garden')", f"adapted_shared@{version}") == told
        own = f'cerebro_registry."adapted_shared@{version}_weights"'
        assert place.value(f"SELECT sum(octet_length(payload)) FROM {own}") < 300_000
    place("CREATE ROLE adapters_reader")
    try:
        for right in ("use", "read"):
            place("SELECT share('adapted_shared', 'adapters_reader', %s)", right)
            may = place.value("SELECT has_table_privilege('adapters_reader', %s, 'SELECT')", table)
            assert may is (right == "read")
        place("SELECT unshare('adapted_shared', 'adapters_reader', 'read')")
        assert not place.value("SELECT has_table_privilege('adapters_reader', %s, 'SELECT')", table)
        place("SELECT unshare('adapted_shared', 'adapters_reader', 'use')")
    finally:
        place("DROP OWNED BY adapters_reader; DROP ROLE adapters_reader")
    place("SELECT unregister('adapted_shared', 1)")
    assert place.value("SELECT to_regclass(%s) IS NOT NULL", table), "the other version needs it"
    place("SELECT unregister('adapted_shared', 2)")
    assert place.value("SELECT to_regclass(%s) IS NULL", table)


def test_a_body_that_was_changed_is_not_registered(place: Lab, trained: int) -> None:
    fit(place, "adapted_changed", epochs=1)
    place(
        "UPDATE adapted_changed_weights SET payload = overlay(payload placing 'x' from 9) WHERE configuration IS NULL"
    )
    with pytest.raises(Exception, match="the frozen body of configuration 1 is not the one"):
        place("SELECT register('adapted_wrong', 'adapted_changed', configuration => 1)")


def test_python_has_a_plain_model_of_keras(place: Lab, trained: int) -> None:
    """Its layers have the adapters in their weights."""
    from cerebro_db.client.cerebro import Cerebro

    rows = np.array(place("SELECT sl, sw, pl, pw FROM garden ORDER BY id"), "f4")
    with Cerebro(place.dsn) as cerebro:
        for configuration in range(1, len(CONFIGURATIONS) + 1):
            model = cerebro.model(f"{place.schema}.adapted", configuration)
            assert [type(one).__name__ for one in model.layers] == ["Dense"] * 3
            assert bool([one for one in model.weights if "/down" in one.path]) is (configuration == ADAPTED)
            query = "SELECT key_value::int, probability FROM predict('adapted', 'SELECT * FROM garden', 'id', %s)"
            told = [value for _, value in sorted(place(query, configuration))]
            np.testing.assert_allclose(model.predict(rows, verbose=0).max(axis=1), told, atol=1e-4)


@pytest.mark.parametrize("configuration", [1, 2, 3, 5])
def test_a_merged_version_is_a_plain_model(place: Lab, trained: int, configuration: int) -> None:
    """Its weights are whole, it has no adapters, and Keras alone gives the answers of the model with adapters."""
    import keras

    name = f"adapted_merged_{configuration}"
    place("SELECT register(%s, 'adapted', configuration => %s, merged => true)", name, configuration)
    answers = "SELECT key_value::int, class, probability FROM predict(%s, 'SELECT * FROM garden', 'id'{}) ORDER BY 1"
    own = place(answers.format(f", {configuration}"), "adapted")
    merged = place(answers.format(""), f"{name}@1")
    assert len(own) == 30 and [row[:2] for row in merged] == [row[:2] for row in own]
    np.testing.assert_allclose([row[2] for row in merged], [row[2] for row in own], atol=1e-5)
    architecture = place.value(f'SELECT architecture::text FROM cerebro_registry."{name}@1"')
    assert "adapters" not in json.loads(architecture)
    weights = f'cerebro_registry."{name}@1_weights"'
    assert not place("SELECT 1 FROM pg_attribute WHERE attrelid = %s::regclass AND attname = 'body'", weights)
    payload = b"".join(bytes(one) for (one,) in place(f"SELECT payload FROM {weights} ORDER BY start"))
    assert len(payload) == len(given())
    model, values = keras.models.model_from_json(architecture), np.frombuffer(payload, "<f4")
    for variable in model.weights:
        size = int(np.prod(variable.shape))
        variable.assign(values[:size].reshape(variable.shape))
        values = values[size:]
    rows = np.array(place("SELECT sl, sw, pl, pw FROM garden ORDER BY id"), "f4")
    np.testing.assert_allclose(model.predict(rows, verbose=0).max(axis=1), [row[2] for row in own], atol=1e-5)
    changed = payload[:BODY] != given()[:BODY]
    assert changed is (configuration <= 3), "adapters are in the weights of the body"
    place("SELECT unregister(%s, 1)", name)


def test_a_bottleneck_is_not_merged(place: Lab, trained: int) -> None:
    with pytest.raises(Exception, match=r"merged cannot be true: configuration 4 has networks .*bottleneck"):
        place("SELECT register('adapted_never', 'adapted', configuration => %s, merged => true)", ADAPTED)
    assert not place("SELECT 1 FROM registered_models WHERE registered_model = 'adapted_never'")


def test_a_version_with_adapters_is_merged_into_another_one(place: Lab, trained: int) -> None:
    place("SELECT register('adapted_source', 'adapted', configuration => 1)")
    place("SELECT register('adapted_whole', 'adapted_source@1', merged => true)")
    told = dict(place("SELECT metric, value FROM evaluate('adapted', 'garden', configuration => 1)"))
    found = dict(place("SELECT metric, value FROM evaluate('adapted_whole@1', 'garden')"))
    assert "log_loss" in told and found == pytest.approx(told, abs=1e-5)
    for name in ("adapted_source", "adapted_whole"):
        place("SELECT unregister(%s, 1)", name)


def test_of_models_of_groups_one_is_merged(place: Lab) -> None:
    place("CREATE TABLE beds AS SELECT *, id / 5 % 2 AS bed FROM garden")
    place(
        "SELECT fit('beds', 'adapted_beds', %s, epochs => 2, target => 'species', inputs => 'sl, sw, pl, pw',"
        " group_by => 'bed', options => %s)",
        json.dumps([{"architecture": "adapted_net", "batch_size": 8, **CONFIGURATIONS[0]}]),
        json.dumps({**OPTIONS, "least_group_rows": 1}),
    )  # fmt: skip
    with pytest.raises(Exception, match="merged cannot be true for a table with models of groups"):
        place("SELECT register('adapted_bed', 'adapted_beds', merged => true)")
    answers = "SELECT key_value::int, probability FROM predict(%s, 'SELECT * FROM beds WHERE bed = 1', 'id') ORDER BY 1"
    told = place(answers, "adapted_beds")
    place("SELECT register('adapted_bed', 'adapted_beds', group_value => '1', merged => true)")
    np.testing.assert_allclose(place(answers, "adapted_bed@1"), told, atol=1e-5)
    assert "adapters" not in place.value('SELECT architecture FROM cerebro_registry."adapted_bed@1"')
    place("SELECT unregister('adapted_bed', 1)")


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"lora_rank": -1}, "lora_rank cannot be -1"), ({"lora_rank": 2, "adapter_layers": "none"}, "no frozen layer"),
     ({"lora_rank": 2, "frozen": 0}, "no frozen layer"), ({"lora_alpha": 3}, "there are none")],
)  # fmt: skip
def test_what_cannot_be_is_refused_before_a_run(place: Lab, changes: Any, said: str) -> None:
    with pytest.raises(Exception, match=said):
        fit(place, "never", configurations=[{"architecture": "adapted_net", **changes}])


def test_a_search_draws_ranks(place: Lab) -> None:
    space = {"architecture": "adapted_net", "lora_rank": {"choice": [0, 2, 4]}, "learning_rate": 0.01}
    place(
        "SELECT search('train', 'searched', %s, epochs => 1, max_configurations => 3, method => 'random',"
        " validation_table => 'val', options => '{\"seed\": 2}')", json.dumps(space),
    )  # fmt: skip
    run = place.value("SELECT max(run) FROM runs")
    chosen = place("SELECT chosen FROM leaderboard WHERE run = %s", run)
    assert len(chosen) == 3 and all(one["lora_rank"] in (0, 2, 4) for (one,) in chosen)
