"""The importance of columns on packed rows: the same numbers as NumPy finds with the same exchange in each part."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import psycopg2
import pytest
from psycopg2 import errors

from tests.nn import configurations as c
from tests.sql.lab import CROSS, Lab, flower_model, run
from tests.sql.packing.test_tables import columns_of, packed

STILL = "optimizer='SGD(lr=0.0)', loss={}"  # training leaves the weights as they are
Part = dict[str, np.ndarray]
Exchanged = dict[str, slice]  # by packed column: elements along the last dimension
WHOLE = slice(None)


def parts_of(lab: Lab, table: str) -> list[Part]:
    """What each part of a packed table holds, row by row."""
    layout, found = lab.value(f"SELECT layout FROM {table}_summary"), []
    for part in layout["partitions"]:
        values = {}
        for variable in layout["inputs"] + layout["outputs"]:
            payloads = lab(
                f'SELECT "{variable["name"]}" FROM {table} WHERE __dist_key__ = %s ORDER BY buffer_id', part["key"]
            )
            joined = np.frombuffer(b"".join(bytes(payload) for (payload,) in payloads), variable["dtype"])
            values[variable["name"]] = joined.reshape(part["rows"], *variable["shape"])
        found.append(values)
    return found


def expected(parts: list[Part], losses: Callable[[Part], np.ndarray], exchanged: Exchanged, repeats: int = 1) -> float:
    """The mean loss over all rows and repeats."""
    found = []
    for part in parts:
        rows = len(next(iter(part.values())))
        for repeat in range(repeats):
            order = np.random.Generator(np.random.PCG64([0, repeat])).permutation(rows)
            mixed = {name: values.copy() for name, values in part.items()}
            for name, along in exchanged.items():
                mixed[name][..., along] = part[name][order][..., along]
            found.append(losses(mixed))
    return float(np.concatenate(found).mean())


class Linear:
    """A linear model of all elements of the inputs of a packed table, in a model table of its own."""

    def __init__(
        self,
        lab: Lab,
        name: str,
        table: str,
        weights: np.ndarray | None = None,
        layers: dict[str, str] | None = None,
        loss: str | None = None,
    ) -> None:
        """``layers``: by target, the name of the output's layer."""
        layout = lab.value(f"SELECT layout FROM {table}_summary")
        self.inputs = [variable["name"] for variable in layout["inputs"]]
        self.layers = layers or {variable["name"]: variable["name"] + "_out" for variable in layout["outputs"]}
        size = sum(int(np.prod(variable["shape"])) for variable in layout["inputs"])
        given = np.random.default_rng(1).normal(size=(len(self.layers), size + 1)) if weights is None else weights
        self.weights = given.astype("f4").reshape(len(self.layers), size + 1)
        layers_ = [(c.input_layer(v["shape"], name=v["name"]), []) for v in layout["inputs"]]
        flat = [(c.layer("Flatten", f"{name}_flat"), [name]) for name in self.inputs]
        joined = [one["config"]["name"] for one, _ in flat]
        both = [(c.layer("Concatenate", "both"), joined)] if len(joined) > 1 else []
        last = "both" if both else joined[0]
        outputs = list(self.layers.values())
        dense = [(c.layer("Dense", output, units=1), [last]) for output in outputs]
        model = c.functional([*layers_, *flat, *both, *dense], self.inputs, outputs)
        number = lab.architecture(model, self.weights.tobytes(), table=f"{name}_arch")
        loss = loss or ("'mse'" if len(outputs) == 1 else str(["mse"] * len(outputs)))
        lab.selection(f"{name}_mst", [(number, STILL.format(loss), "batch_size=16")], arch=f"{name}_arch")
        lab.fit(table, name, f"{name}_mst", 1)
        self.name = name

    def losses(self, target: str) -> Callable[[Part], np.ndarray]:
        """The squared errors of the rows of a part."""
        *kernel, bias = self.weights[list(self.layers).index(target)].tolist()

        def errors_of(part: Part) -> np.ndarray:
            x = np.hstack([part[name].reshape(len(part[name]), -1).astype("f8") for name in self.inputs])
            return (x @ kernel + bias - part[target].ravel()) ** 2

        return errors_of


@pytest.fixture(scope="module")
def facts(lab: Lab) -> Lab:
    lab(
        "CREATE TABLE facts AS SELECT i AS id, (i * 37 % 91 / 20.0)::real AS a, (i * 17 % 53 / 20.0)::real AS b,"
        " (i % 7)::real AS c, ARRAY[i % 5, i % 3]::real[] AS x, (i * 37 % 91 / 10.0 + i % 4)::real AS y,"
        " (i * 29 % 31 / 7.0)::real AS z FROM generate_series(1, 300) i"
    )
    lab("CREATE VIEW few AS SELECT * FROM facts WHERE id % 4 = 0")
    lab.pack("facts", "facts_packed", "y", "a, b, c", segments=2, seed=1)
    lab.pack("few", "few_packed", "y", "a, b, c", packed_table="facts_packed")
    return lab


@pytest.fixture(scope="module")
def linear(facts: Lab) -> Linear:
    return Linear(facts, "linear", "facts_packed", np.array([2.0, 0.5, -0.3, 1.5]))


def found(lab: Lab, model: str, table: str, **more: Any) -> dict[str, tuple[float, float, float]]:
    """By column, in the order of the rows: importance, loss, loss_before."""
    named = "".join(f", {name} => %s" for name in more)
    wanted = "column_name, importance, loss, loss_before"
    rows = lab(f"SELECT {wanted} FROM importance(%s, %s{named})", model, table, *more.values())
    importances = [importance for _, importance, *_ in rows]
    assert importances == sorted(importances, reverse=True)
    return {name: tuple(numbers) for name, *numbers in rows}


def require(
    lab: Lab, model: Linear, table: str, columns: dict[str, Exchanged], of: str = "y", **more: Any
) -> dict[str, tuple[float, float, float]]:
    """The importance of the columns, which has to be that of NumPy."""
    told, parts = found(lab, model.name, table, **more), parts_of(lab, table)
    assert set(told) == set(columns)
    before = expected(parts, model.losses(of), {})
    for name, exchanged in columns.items():
        loss = expected(parts, model.losses(of), exchanged, more.get("repeats", 1))
        assert told[name] == pytest.approx((loss - before, loss, before), rel=1e-4, abs=1e-3), name
    return told


def prepared(lab: Lab, table: str) -> dict[str, Exchanged]:
    """By source column, the elements that it became."""
    return {
        name: {one["variable"]: slice(one["place"] - 1, one["place"] - 1 + one["width"])}
        for name, one in columns_of(lab, table).items()
        if not one["target"]
    }


FEATURES: dict[str, Exchanged] = {name: {"features": slice(place, place + 1)} for place, name in enumerate("abc")}


@pytest.mark.parametrize("table", ["facts_packed", "few_packed"])
@pytest.mark.parametrize("repeats", [1, 3])
def test_the_parts_combine_to_the_loss_of_all_rows(facts: Lab, linear: Linear, table: str, repeats: int) -> None:
    assert len(parts_of(facts, table)) > 1
    told = require(facts, linear, table, FEATURES, repeats=repeats)
    assert list(told)[0] == "a" and told["a"][0] > 1 and all(importance for importance, *_ in told.values())
    assert found(facts, "linear", table, repeats=repeats) == told, "two calls are equal"
    facts("DROP TABLE IF EXISTS measured")
    facts(f"SELECT madlib_keras_evaluate('linear', '{table}', 'measured', false, 1)")
    (before,) = {before for *_, before in told.values()}
    assert before == pytest.approx(facts.value("SELECT loss FROM measured"), rel=1e-9)


def test_the_column_that_a_model_reads_has_all_importance(facts: Lab) -> None:
    Linear(facts, "only_a", "facts_packed", np.array([2.0, 0, 0, 1.5]))
    told = found(facts, "only_a", "facts_packed")
    assert list(told)[0] == "a" and told["a"][0] > 1
    assert told["b"][0] == told["c"][0] == 0


def test_an_array_is_one_column(facts: Lab) -> None:
    facts.pack("facts", "array_packed", "y", "a, x", segments=2, seed=1)
    model = Linear(facts, "with_array", "array_packed")
    require(facts, model, "array_packed", {"a": {"features": WHOLE}, "x": {"x": WHOLE}})


@pytest.mark.parametrize("layers", [{"y": "y", "z": "z"}, {"y": "first", "z": "second"}])
def test_several_targets(facts: Lab, layers: dict[str, str]) -> None:
    if facts.value("SELECT to_regclass('two_packed') IS NULL"):
        facts.pack("facts", "two_packed", "y, z", "a, b, c", segments=2, seed=1)
    model = Linear(facts, "two_" + layers["y"], "two_packed", layers=layers)
    each = [require(facts, model, "two_packed", FEATURES, name, target=name) for name in "yz"]
    both = found(facts, model.name, "two_packed")
    for column, numbers in both.items():
        # Differences of losses: their rounding is that of the losses.
        sums = [one + other for one, other in zip(each[0][column], each[1][column])]
        assert numbers == pytest.approx(sums, rel=1e-4, abs=1e-5)


def test_a_target_without_a_loss_of_its_own(facts: Lab) -> None:
    facts.pack("facts", "half_packed", "y, z", "a, b, c", segments=1, seed=1)
    model = Linear(facts, "half", "half_packed", loss="['mse', None]")
    require(facts, model, "half_packed", FEATURES)
    with pytest.raises(errors.FeatureNotSupported, match="no loss of the target 'z' alone") as error:
        found(facts, "half", "half_packed", target="z")
    assert "Without target" in error.value.diag.message_hint


def test_classes_and_layers(facts: Lab) -> None:
    facts.iris(segments=2)
    facts.selection("iris_mst", [(facts.architecture(flower_model()), f"optimizer='Adam(lr=0.05)', {CROSS}",
                                  "batch_size=8")])  # fmt: skip
    facts.fit("train", "irises", "iris_mst", 6)
    payload = np.frombuffer(facts.weights("irises")[1], "f4").astype("f8")
    kernel, bias, last, shift = (
        values.reshape(shape) for values, shape in zip(np.split(payload, [32, 40, 64]), [(4, 8), 8, (8, 3), 3])
    )

    def losses(part: Part) -> np.ndarray:
        scores = np.maximum(part["features"] @ kernel + bias, 0) @ last + shift
        scores -= scores.max(1, keepdims=True)
        return np.log(np.exp(scores).sum(1)) - (scores * part["species"]).sum(1)

    columns = ("sl", "sw", "pl", "pw")
    for table in ("train", "val"):
        told, parts = found(facts, "irises", table, repeats=2), parts_of(facts, table)
        assert set(told) == set(columns)
        for place, name in enumerate(columns):
            loss = expected(parts, losses, {"features": slice(place, place + 1)}, 2)
            assert told[name][1:] == pytest.approx((loss, expected(parts, losses, {})), rel=1e-3, abs=1e-5)


def test_all_that_a_column_became_is_exchanged_together(facts: Lab) -> None:
    """A number with its indicator of NULL, a date with its sines and cosines, and codes."""
    facts(
        "CREATE TABLE mixed AS SELECT i AS id, CASE WHEN i % 3 = 0 THEN NULL ELSE i * 37 % 91 / 7.0 END AS gaps,"
        " CASE WHEN i % 5 <> 0 THEN date '2020-02-28' + i * 5 END AS born, (i * 7 % 11)::real AS plain,"
        " (ARRAY['Rome', 'Bonn', 'Lyon'])[1 + i % 3] AS city, i % 4 = 0 AS member,"
        " ((i % 13 + i * 37 % 91) / 20.0)::real AS price FROM generate_series(1, 240) i"
    )
    packed(facts, "mixed_packed", "price", "mixed", segments=2, seed=1, inputs="gaps, born, plain, city, member")
    became = columns_of(facts, "mixed_packed")
    assert became["gaps"]["width"] == 2 and became["born"]["width"] > 4
    model = Linear(facts, "mixed_model", "mixed_packed")
    columns = prepared(facts, "mixed_packed")
    assert set(columns) == {"gaps", "born", "plain", "city", "member"}
    for table in ("mixed_packed", "mixed_packed_validation"):
        require(facts, model, table, columns, "price")


def test_the_values_of_a_window_are_exchanged_together(facts: Lab) -> None:
    facts("CREATE TABLE steps AS SELECT id, id % 6 AS who, id AS at, a, b, y FROM facts")
    sequence = json.dumps({"by": "who", "order": "at", "length": 4, "step": 2})
    packed(facts, "steps_packed", "y", "steps", segments=2, seed=1, inputs="a, b", sequence=sequence, validation=0)
    model = Linear(facts, "steps_model", "steps_packed")
    assert parts_of(facts, "steps_packed")[0]["numbers"].shape[1:] == (4, 2)
    require(facts, model, "steps_packed", prepared(facts, "steps_packed"))


def test_rows_with_folds_are_exchanged_as_all_others(facts: Lab) -> None:
    packed(facts, "folded", "y", "facts", segments=2, seed=1, inputs="a, b, c", folds=3)
    model = Linear(facts, "folds_model", "folded")
    require(facts, model, "folded", prepared(facts, "folded"))


def test_a_name_is_a_table_and_all_else_is_a_query(facts: Lab, linear: Linear) -> None:
    told = found(facts, "linear", "facts_packed")
    assert found(facts, "linear", f" {facts.schema}.FACTS_packed ") == told
    for query in ("TABLE facts", "SELECT * FROM facts", "(TABLE facts)", "WITH f AS (TABLE facts) SELECT * FROM f"):
        assert set(found(facts, "linear", query)) == set(told)
    before = facts.value("SELECT loss_before FROM importance('linear', 'TABLE facts') LIMIT 1")
    assert before == pytest.approx(told["a"][2], rel=1e-4)
    for ending in ("", "_summary"):
        facts(f'ALTER TABLE few_packed{ending} RENAME TO "Few rows{ending}"')
    assert set(found(facts, "linear", '"Few rows"')) == set(told)
    for ending in ("", "_summary"):
        facts(f'ALTER TABLE "Few rows{ending}" RENAME TO few_packed{ending}')


@pytest.mark.throw_away  # PostgreSQL
def test_rows_that_only_this_transaction_sees(facts: Lab, linear: Linear) -> None:
    with contextlib.closing(facts.connect()) as mine:
        run(mine, "BEGIN")
        run(mine, "SELECT pack_like('few', 'fresh', 'y', 'a, b, c', 'facts_packed')")
        told = run(mine, "SELECT * FROM importance('linear', 'fresh')")
        run(mine, "COMMIT")
    kept = facts("SELECT * FROM importance('linear', 'fresh')")
    assert [row[0] for row in told] == [row[0] for row in kept] and len(kept) == 3
    np.testing.assert_allclose([row[1:] for row in told], [row[1:] for row in kept], rtol=1e-4)


def test_a_cancel_ends_it(facts: Lab, linear: Linear) -> None:
    """1,000 repeats of three columns take longer than that."""
    found(facts, "linear", "facts_packed")  # a team is there already
    facts("SET statement_timeout = '700ms'")
    try:
        with pytest.raises(errors.QueryCanceled):
            found(facts, "linear", "facts_packed", repeats=1000)
    finally:
        facts("RESET statement_timeout")
    facts.require_no_orphans()


@pytest.mark.parametrize(
    ("arguments", "says", "hint"),
    [
        ("'linear', 'nothing'", "query: there is no table 'nothing'", ""),
        ("'linear', 'linear'", "the query does not have the target 'y'", "It has the columns"),
        ("'linear', ''", "query must not be empty", "SELECT"),
        ("'linear'", "had no rows for validation alone", "SELECT"),
        ("'nothing', 'facts_packed'", "there is no table", ""),
        ("'linear', 'narrow_packed'", "the inputs of 'narrow_packed' have the shapes [[2]], those of 'linear' [[3]]",
         "cerebro.pack_like"),
        ("'linear', 'facts_packed', 'a'", "target must be one of the targets of the model", "They are: y"),
        ("'linear', 'facts_packed', repeats => 0", "repeats cannot be 0", "1 to 1000"),
        ("'linear', 'facts_packed', repeats => 1001", "repeats cannot be 1001", "1 to 1000"),
        ("'linear', 'facts_packed', configuration => 7", "has no configuration 7", ""),
    ],
)  # fmt: skip
def test_what_cannot_be_evaluated_is_refused(facts: Lab, linear: Linear, arguments: str, says: str, hint: str) -> None:
    if facts.value("SELECT to_regclass('narrow_packed') IS NULL"):
        facts.pack("facts", "narrow_packed", "y", "a, b", segments=1, seed=1)
    with pytest.raises(psycopg2.Error) as error:
        facts(f"SELECT * FROM importance({arguments})")
    assert says in str(error.value) and hint in (error.value.diag.message_hint or "")
    assert "cerebro.importance" in str(error.value)


def test_a_read_only_transaction_is_refused(facts: Lab, linear: Linear) -> None:
    with contextlib.closing(facts.connect()) as mine:
        run(mine, "BEGIN READ ONLY")
        with pytest.raises(errors.FeatureNotSupported, match="this transaction is read-only"):
            run(mine, "SELECT * FROM importance('linear', 'facts_packed')")
