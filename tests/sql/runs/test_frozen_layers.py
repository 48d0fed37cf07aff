"""How many layers are frozen: a parameter of configurations and spaces; a network of digits 0-4 is adapted to 5-9."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import psycopg2
import pytest
from sklearn.datasets import load_digits

from tests.conftest import ENGINE
from tests.sql.lab import Lab, layer, sequential, verb
from tests.thorough import landing

NETWORK = sequential(
    [8, 8],
    layer("Reshape", "image", target_shape=[8, 8, 1]),
    layer("Conv2D", "conv_1", filters=8, kernel_size=3, padding="same", activation="relu"),
    layer("BatchNormalization", "norm_1"),
    layer("MaxPooling2D", "pool_1"),
    layer("Conv2D", "conv_2", filters=16, kernel_size=3, padding="same", activation="relu"),
    layer("BatchNormalization", "norm_2"),
    layer("MaxPooling2D", "pool_2"),
    layer("Flatten", "flat"),
    layer("Dense", "wide", units=32, activation="relu"),
    layer("Dense", "out", units=5, activation="softmax"),
)
# Numbers of the layers with weights, in their order.
SIZES = [72 + 8, 4 * 8, 8 * 16 * 9 + 16, 4 * 16, 64 * 32 + 32, 32 * 5 + 5]
NAMES = ["conv_1", "norm_1", "conv_2", "norm_2", "wide", "out"]
USUAL = {"seed": 7, "threads": 1, "deterministic": True}


@pytest.fixture(scope="module")
def place(lab: Lab) -> Lab:
    """The digits 5-9, packed as ``rows``, and the architecture ``body``, with weights trained on the digits 0-4."""
    data = load_digits()
    for name, its in (("low", data.target < 5), ("high", data.target >= 5)):
        rows = [(int(n), data.images[n].astype(int).tolist(), int(data.target[n])) for n in np.flatnonzero(its)[:300]]
        lab.table(name, {"id": "int", "image": "smallint[]", "digit": "int"}, rows)
    lab(*verb("fit", "low", "low_models", {"architecture": NETWORK, "learning_rate": 0.003}, epochs=2,
              target="digit", options=USUAL, segments=2))  # fmt: skip
    lab("SELECT add_architecture('body', %s, (SELECT weights FROM low_models))", json.dumps(NETWORK))
    lab.pack("high", "rows", "digit", "image", divide_by=16, segments=2, seed=1)
    return lab


def fit(lab: Lab, output: str, frozen: list[Any], epochs: int = 1, **more: Any) -> int:
    options = {**USUAL, **more.pop("options", {})}
    listed = [{"architecture": "body", "frozen": one, "learning_rate": 0.003} for one in frozen]
    return lab.value(*verb("fit", "rows", output, listed, epochs=epochs, options=options, **more))


def parts(weights: bytes) -> list[np.ndarray]:
    return np.split(np.frombuffer(weights, "<f4"), np.cumsum(SIZES)[:-1])


def body_weights(lab: Lab) -> bytes:
    return bytes(
        lab.value("SELECT string_agg(payload, '' ORDER BY start) FROM cerebro.added_weights WHERE name = 'body'")
    )


def kept(lab: Lab, weights: bytes) -> int:
    """How many layers still have the weights of the body; those behind all have others."""
    body = body_weights(lab)
    same = [bool(np.array_equal(*both)) for both in zip(parts(weights), parts(body))]
    assert same == sorted(same, reverse=True)
    return sum(same)


def test_each_configuration_keeps_the_weights_of_so_many_layers(place: Lab) -> None:
    run = fit(place, "counted", [0, 2, "pool_2", -1])
    assert [kept(place, one) for _, one in sorted(place.weights("counted").items())] == [0, 2, 4, 5]
    assert place(
        "SELECT configuration, architecture, parameters -> 'frozen' FROM leaderboard WHERE run = %s ORDER BY 1", run
    ) == [(1, "body", 0), (2, "body", 2), (3, "body", "pool_2"), (4, "body", -1)]
    assert place("SELECT DISTINCT initial FROM model WHERE run = %s", run) == [("weights",)]
    assert "frozen" in place.value("SELECT parameters::text FROM counted_info WHERE configuration = 2")
    # A model table has the architecture with its flags: a model of it can be read, trained and exported as any other.
    flags = json.loads(place.models("counted")[2][0])["config"]["layers"]
    assert [one["config"]["name"] for one in flags if one["config"].get("trainable") is False] == NAMES[:2]
    assert (
        place.value("SELECT count(*) FROM cerebro.predict('counted', 'SELECT * FROM high', configuration => 3)") == 300
    )


def test_a_query_of_configurations_has_a_column_frozen(place: Lab) -> None:
    query = "SELECT 'body' AS architecture, f AS frozen, 0.003 AS learning_rate FROM generate_series(0, 2) f"
    place(*verb("fit", "rows", "queried", query, epochs=1, options=USUAL))
    assert sorted(kept(place, one) for one in place.weights("queried").values()) == [0, 1, 2]


def test_a_dry_run_shows_it(place: Lab) -> None:
    place.told()
    fit(place, "dry", [2], dry_run=True)
    assert any('"frozen": 2' in said for said in place.told())
    place(*verb("search", "rows", "dry", {"architecture": "body", "frozen": {"choice": [0, 4]}}, epochs=2,
                method="grid", dry_run=True))  # fmt: skip
    assert any("frozen" in said for said in place.told())


FREEZING = {"choice": [0, "norm_2", -1]}
SPACE = {"architecture": "body", "frozen": FREEZING, "learning_rate": {"choice": [0.001, 0.003]}}


def search(lab: Lab, output: str, space: Any = SPACE, **more: Any) -> int:
    options = {**USUAL, **more.pop("options", {})}
    return lab.value(*verb("search", "rows", output, space, options=options, **{"epochs": 1, "method": "grid", **more}))


def test_a_search_over_freezing_starts_from_the_weights(place: Lab) -> None:
    place.told()
    run = search(place, "searched")
    assert not [said for said in place.told() if "random weights" in said]
    assert place("SELECT DISTINCT initial FROM model WHERE run = %s", run) == [("weights",)]
    found = place(
        "SELECT configuration, chosen, parameters -> 'frozen' FROM leaderboard WHERE run = %s ORDER BY 1", run
    )
    assert len(found) == 6 and all(chosen["frozen"] == frozen for _, chosen, frozen in found)
    layers = {0: 0, "norm_2": 4, -1: 5}
    weights = place.weights("searched")
    assert [kept(place, weights[key]) for key, _, _ in found] == [layers[frozen] for _, _, frozen in found]
    # Each number of frozen layers is one architecture, whatever the learning rate.
    assert place.value("SELECT count(*) FROM cerebro.architecture WHERE run = %s", run) == 3
    search(place, "replayed", options={"replay": run})
    assert place.weights("replayed") == weights


@pytest.mark.thorough  # tests/sql/runs/test_search.py resumes searches, test_frozen_parts.py frozen weights
def test_a_search_over_freezing_is_resumed(place: Lab) -> None:
    whole = search(place, "whole", at_once=2)
    parted = search(place, "parted", at_once=2, budget='{"hops": 4}')
    assert place.value("SELECT count(*) FROM model WHERE run = %s", parted) < 6
    place("SELECT set_budget(%s, '{}')", parted)
    place("SELECT resume(%s)", parted)
    assert sorted(place.weights("parted").values()) == sorted(place.weights("whole").values())
    assert whole < parted


@pytest.mark.thorough  # tests/core/test_search_methods.py has the method, the grid above frozen layers
def test_tpe_learns_how_many_layers_to_freeze(place: Lab) -> None:
    space = {**SPACE, "frozen": {"integer": [0, 5]}}
    run = search(place, "suggested", space, method={"name": "tpe", "startup": 2}, max_configurations=4)
    chosen = place("SELECT configuration, chosen ->> 'frozen' FROM leaderboard WHERE run = %s", run)
    weights = place.weights("suggested")
    assert len(chosen) == 4 and [kept(place, weights[key]) for key, _ in chosen] == [int(its) for _, its in chosen]
    place(*verb("train", "rows", "trained", architectures=["body"], space={"frozen": {"choice": [2, 5]}},
                max_configurations=2, epochs=1, options=USUAL))  # fmt: skip
    assert {kept(place, one) for one in place.weights("trained").values()} <= {2, 5}


def test_an_architecture_that_was_dropped_meanwhile(place: Lab) -> None:
    """The search ends with an error that says what to do, and goes on afterwards."""
    given = place.value("SELECT architecture::text FROM cerebro.added_architecture WHERE name = 'body'")
    weights = body_weights(place)
    place("SELECT add_architecture('gone', %s, %s)", given, weights)
    space = {"architecture": "gone", "frozen": {"choice": [2, 4, -1]}}
    run = search(place, "halted", space, at_once=1, budget='{"hops": 2}')
    place("SELECT drop_architecture('gone')")
    place("SELECT set_budget(%s, '{}')", run)
    with pytest.raises(psycopg2.Error, match='"gone" no longer has the weights') as error:
        place("SELECT resume(%s)", run)
    assert f"cerebro.resume({run})" in error.value.diag.message_hint
    place("SELECT add_architecture('gone', %s, %s)", given, weights)
    place("SELECT resume(%s)", run)
    assert len(place.weights("halted")) == 3
    place("SELECT drop_architecture('gone')")


def test_weights_that_are_not_committed_are_refused_before_anything_is_on_record(place: Lab) -> None:
    before = place.value("SELECT max(run) FROM run")
    place("SELECT pg_sleep(1.5)")  # until then the server counts rows of earlier transactions as this one's
    place("BEGIN; SELECT add_architecture('fresh', %s, (SELECT weights FROM low_models))", json.dumps(NETWORK))
    with pytest.raises(psycopg2.Error, match='"fresh" were added or changed in this transaction'):
        search(place, "fresh_models", {**SPACE, "architecture": "fresh"})
    place("ROLLBACK")
    assert place.value("SELECT max(run) FROM run") == before


@pytest.mark.parametrize(
    ("frozen", "said"),
    [(6, "nothing would train"), (7, "the architecture has 6 layers with weights"), (1.5, "must be an integer"),
     ("pool_3", "the architecture has no layer of this name")],
)  # fmt: skip
def test_what_cannot_be_frozen_is_refused_before_anything_is_on_record(place: Lab, frozen: Any, said: str) -> None:
    before = place.value("SELECT max(run) FROM run")
    with pytest.raises(psycopg2.Error, match=f"configurations: number 2: frozen cannot be .*{said}") as error:
        fit(place, "bad", [0, frozen])
    assert error.value.diag.message_hint
    with pytest.raises(psycopg2.Error, match=f"search space, with frozen = .*{said}"):
        search(place, "bad", {**SPACE, "frozen": {"choice": [0, frozen]}})
    assert place.value("SELECT max(run) FROM run") == before


# tests/nn/test_features.py has the features of both.
@pytest.mark.parametrize("engine", landing(["tensorflow", "jax"], ENGINE))
def test_fine_tuning_goes_on_from_a_head_that_was_trained_on_features(place: Lab, engine: str) -> None:
    """As from one that was trained with the whole model: the weights differ by rounding at most."""
    fitted = {}
    for reuse in ("all", "none"):
        name, options = f"{engine}_{reuse}", {"engine": engine, "reuse": reuse}
        run = fit(place, name, [4], options=options)
        built = place.value(
            "SELECT detail ->> 'frozen_layers' FROM cerebro.event WHERE run = %s AND event = 'built'", run
        )
        assert built == {"all": "8", "none": None}[reuse]
        head = place.weights(name)[1]
        assert kept(place, head) == 4
        run = fit(place, name, [0], options=options, warm_start=True)
        assert place.value("SELECT initial FROM model WHERE run = %s", run) == "weights"
        fitted[reuse] = head, place.weights(name)[1]
        assert kept(place, fitted[reuse][1]) == 0
    differences = [
        float(np.abs(np.frombuffer(one, "<f4") - np.frombuffer(other, "<f4")).max())
        for one, other in zip(fitted["all"], fitted["none"])
    ]
    print(f"{engine}: largest difference of a weight after the head, after fine-tuning:", differences)
    assert differences[0] < 1e-3 and differences[1] < 0.02


def test_fine_tuning_from_the_same_weights_is_the_same(place: Lab) -> None:
    """A head of features is taken up as any weights are: bit for bit, in another run and in another table."""
    fit(place, "head", [4], options={"reuse": "all"})
    place("SELECT add_architecture('head', %s, (SELECT weights FROM head))", json.dumps(NETWORK))
    listed = [{"architecture": "head", "frozen": 0, "learning_rate": 0.0003}]
    place(*verb("fit", "rows", "fine", listed, epochs=1, options=USUAL))
    place(*verb("fit", "rows", "head", listed, epochs=1, options=USUAL, warm_start=True))
    assert place.weights("fine") == place.weights("head")


def add(lab: Lab, run: int, architecture: str, frozen: int = -1) -> int:
    given = {"architecture": architecture, "frozen": frozen, "learning_rate": 0.003}
    return lab.value("SELECT add_configuration(%s, %s)", run, json.dumps(given))


def starts(lab: Lab, run: int) -> list[tuple[int, str, int]]:
    """Configuration, what its models start from, and how many they are."""
    return lab(
        "SELECT configuration, initial, count(*) FROM cerebro.model WHERE run = %s GROUP BY 1, 2 ORDER BY 1", run
    )


def test_a_configuration_that_a_run_gets_later_starts_from_the_weights(place: Lab) -> None:
    first = {"architecture": "mlp", "learning_rate": 0.003}
    run = place.value(*verb("fit", "rows", "later", [first], epochs=1, options=USUAL))
    add(place, run, "body")
    place("SELECT resume(%s)", run)
    assert starts(place, run) == [(1, "random", 1), (2, "weights", 1)]
    weights = place.weights("later")
    assert kept(place, weights[2]) == 5
    place(*verb("fit", "rows", "later_again", [first], epochs=1, options={"replay": run}))
    assert place.weights("later_again") == weights


@pytest.mark.thorough  # tests/sql/runs/test_folds.py adds a configuration with its folds
def test_so_do_its_models_of_folds(place: Lab) -> None:
    place("SELECT pack('high', 'folded', target => 'digit', segments => 2, seed => 1, folds => 2)")
    run = place.value(*verb("fit", "folded", "of_folds", {"architecture": "mlp"}, epochs=1, options=USUAL))
    add(place, run, "body")
    place("SELECT resume(%s)", run)
    assert starts(place, run) == [(1, "random", 3), (2, "weights", 3)]
    assert kept(place, place.weights("of_folds")[2]) == 5


def test_a_configuration_whose_weights_were_dropped_is_refused(place: Lab) -> None:
    given = place.value("SELECT architecture::text FROM cerebro.added_architecture WHERE name = 'body'")
    place("SELECT add_architecture('lost', %s, %s)", given, body_weights(place))
    run = place.value(*verb("fit", "rows", "without", {"architecture": "mlp"}, epochs=1, options=USUAL))
    request = add(place, run, "lost")
    place("SELECT drop_architecture('lost')")
    place("SELECT add_architecture('lost', %s, %s)", given, body_weights(place)[:-4] + b"\0\0\0\0")  # other weights
    place("SELECT resume(%s, epochs => 2)", run)
    ((status, why),) = place("SELECT status, refusal FROM requests WHERE request_id = %s", request)
    assert status == "refused" and 'the architecture "lost" no longer has the weights that it had' in why
    assert starts(place, run) == [(1, "random", 1)]
    place("SELECT drop_architecture('lost')")
