"""cerebro.pack with weights of rows and of classes, and what training makes of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.conftest import BOTH_ENGINES
from tests.sql.lab import Lab, layer, sequential
from tests.sql.packing.test_tables import packed, refused, values

ROWS = 400


@pytest.fixture(scope="module")
def claims(lab: Lab) -> Lab:
    lab(
        f"CREATE TABLE claims AS SELECT i AS id, ((i * 37 % 101) / 50.0 - 1)::real AS x, (i % 7)::numeric / 2 AS w,"
        " ((i * 37 % 101) / 25.0 + i % 3)::real AS cost, CASE WHEN i % 20 = 0 THEN 'fraud' ELSE 'fine' END AS kind,"
        f" i / 20 % 2 = 0 AS flag FROM generate_series(1, {ROWS}) i"
    )
    return lab


def weights_of(place: Lab, table: str) -> np.ndarray:
    buffers = place(f"SELECT __weight__ FROM {table} ORDER BY buffer_id")
    return np.frombuffer(b"".join(bytes(payload) for (payload,) in buffers), "f4")


def test_each_row_has_its_weight_beside_it(claims: Lab) -> None:
    packed(claims, "weighed", "cost", "claims", inputs="x", weights="w", validation=0.3, prepare={"x": "standard"})
    layout = claims.value("SELECT layout FROM weighed_summary")
    assert layout["weight"]["kind"] == "weight" and len(layout["outputs"]) == 1
    parameters = claims.value("SELECT parameters FROM prepared_columns('weighed') WHERE column_name = 'x'")
    found = values(claims, "weighed", "numbers")[:, 0] * parameters["deviation"] + parameters["mean"]
    costs = values(claims, "weighed", "cost")[:, 0]
    rows = {(round(a, 3), round(b, 3), round(c, 3)) for a, b, c in zip(found.tolist(), costs.tolist(), weights_of(
        claims, "weighed").tolist())}  # fmt: skip
    assert rows <= {tuple(row) for row in claims("SELECT round(x::numeric, 3)::float8, round(cost::numeric, 3)::float8,"
                                                 " round(w, 3)::float8 FROM claims")}  # fmt: skip
    assert len({weight for *_, weight in rows}) == 7
    assert set(weights_of(claims, "weighed_validation")) == {1.0}
    # The column is no input by itself.
    packed(claims, "usual", "cost", "claims", weights="w")
    assert "w" not in {name for (name,) in claims("SELECT column_name FROM prepared_columns('usual')")}


def test_balanced_classes_weigh_the_same(claims: Lab) -> None:
    packed(claims, "balanced", "kind", "claims", inputs="x", class_weight="balanced", validation=0.25)
    classes = values(claims, "balanced", "kind").argmax(axis=1)
    weights = weights_of(claims, "balanced")
    sums = [weights[classes == number].sum() for number in (0, 1)]
    assert sums == pytest.approx([len(classes) / 2] * 2, rel=1e-5)
    packed(claims, "multiplied", "kind", "claims", inputs="x", class_weight="balanced", weights="w", validation=0)
    classes, both = values(claims, "multiplied", "kind").argmax(axis=1), weights_of(claims, "multiplied")
    assert sorted(set(both[classes == 0].round(4))) == pytest.approx([i / 2 / 0.95 / 2 for i in range(7)], abs=1e-4)
    sequence = '{"by": "flag", "order": "id", "length": 10}'
    packed(claims, "in_windows", "kind", "claims", inputs="x", class_weight="balanced", validation=0, sequence=sequence)
    classes, weights = values(claims, "in_windows", "kind").argmax(axis=1), weights_of(claims, "in_windows")
    present = set(classes)
    share = len(classes) / len(present)
    assert [weights[classes == number].sum() for number in present] == pytest.approx([share] * len(present))


# -- training ------------------------------------------------------------------------------------------------

START = np.array([0.3, -0.2], "f4")  # slope and offset


@pytest.mark.parametrize("engine", BOTH_ENGINES)
def test_a_step_follows_the_gradient_of_the_weighted_loss(claims: Lab, engine: str) -> None:
    """One step of gradient descent over all rows, beside the same in NumPy; what is evaluated is not weighed."""
    claims("DROP TABLE IF EXISTS step, step_summary, step_validation, step_validation_summary")
    packed(claims, "step", "cost", "claims", inputs="x", weights="w", seed=1, segments=1)
    x, y = (values(claims, "step", name)[:, 0].astype(float) for name in ("numbers", "cost"))
    w = weights_of(claims, "step")
    model = claims.architecture(
        sequential([1], layer("Dense", "line", units=1)), START.tobytes(), table=f"line_{engine}"
    )
    name = f"step_{engine}"
    claims.selection(
        f"{name}_mst", [(model, "optimizer='SGD(learning_rate=0.1)', loss='mse'", "batch_size=1000, epochs=1")],
        arch=f"line_{engine}",
    )  # fmt: skip
    claims.fit("step", name, f"{name}_mst", 1, validation_table="step_validation", options={"engine": engine})
    off = START[0] * x + START[1] - y
    wanted = START - 0.1 * np.array([(2 * w * off * x).mean(), (2 * w * off).mean()])
    found = np.frombuffer(claims.weights(name)[1], "f4")
    np.testing.assert_allclose(found, wanted, rtol=1e-4)
    x, y = values(claims, "step_validation", "numbers")[:, 0], values(claims, "step_validation", "cost")[:, 0]
    plain = float(np.mean((found[0] * x + found[1] - y) ** 2))
    assert claims.value(f"SELECT validation_loss_final FROM {name}_info") == pytest.approx(plain, rel=1e-4)


def test_a_rare_class_is_as_likely_as_the_other(claims: Lab) -> None:
    """x says nothing about the kind, so a model learns how much each class weighs."""
    told = {}
    for name, more in (("rare", {}), ("even", {"class_weight": "balanced"})):
        packed(claims, name, "kind", "claims", inputs="flag", validation=0, segments=1, seed=1, **more)
        claims(f"SELECT load_keras_model('{name}_arch', architecture('mlp', '{name}', '{{\"layers\": 0}}'))")
        claims.selection(
            f"{name}_mst",
            [(1, "optimizer='Adam(learning_rate=0.05)', loss='categorical_crossentropy', metrics=['accuracy']",
              "batch_size=100")], arch=f"{name}_arch",
        )  # fmt: skip
        claims.fit(name, f"{name}_models", f"{name}_mst", 20)
        told[name] = claims.value(
            f"SELECT avg(probability) FROM predict('{name}_models', 'SELECT * FROM claims WHERE NOT flag', top => 2)"
            " WHERE class = 'fraud'"
        )
    assert told["rare"] < 0.2 and told["rare"] + 0.15 < told["even"], told


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"weights": "nobody"}, "invalid weights ('nobody')"),
        ({"weights": "kind"}, "weights cannot be kind of type text"),
        ({"weights": "flag"}, "weights cannot be flag of type boolean"),
        ({"weights": "x, w"}, "weights cannot be x, w"),
        ({"weights": "cost"}, "weights cannot be the target 'cost'"),
        ({"weights": "x"}, "the weights in 'x' are from -1 to"),
        ({"weights": "gaps", "source": "holey"}, "'gaps' of weights is NULL in"),
        ({"weights": "nan", "source": "holey"}, "the weights in 'nan' are from"),
        ({"weights": "zero", "source": "holey"}, "the weights in 'zero' are from 0 to 0"),
        ({"class_weight": "equal"}, "class_weight cannot be 'equal'"),
        ({"class_weight": "balanced"}, "class_weight needs classes, and the target 'cost' is a number"),
        ({"class_weight": "balanced", "target": "kind, flag"}, "class_weight needs a single target, not 2"),
        ({"weights": "w", "target": "kind, cost"}, "weights needs a single target, not 2"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(claims: Lab, more: dict[str, Any], says: str) -> None:
    claims(
        "CREATE OR REPLACE VIEW holey AS SELECT *, NULLIF(id % 5, 0) AS gaps, 0 AS zero,"
        " CASE WHEN id = 3 THEN 'NaN'::real ELSE 1 END AS nan FROM claims"
    )
    assert says in str(
        refused(claims, **{"target": "cost", "source": "claims", "validation": 0, "inputs": "x", **more})
    )


def test_further_rows_are_packed_without_weights(claims: Lab) -> None:
    claims("CREATE VIEW later AS SELECT x, cost FROM claims WHERE id > 300")
    packed(claims, "first", "cost", "claims", inputs="x", weights="w", validation=0)
    claims("SELECT pack_like('later', 'later_packed', 'cost', NULL, 'first')")
    assert weights_of(claims, "later_packed").tolist() == [1.0] * 100
