"""cerebro.explain: the Shapley values that cerebro.predict and NumPy give for rows that were mixed column by column."""

from __future__ import annotations

import json
import math
from itertools import combinations
from typing import Any

import pytest
from psycopg2 import errors

from tests.sql.lab import Lab, rounded

HOMES = """
CREATE TABLE homes AS SELECT i AS id, (i * 37 % 91)::real AS size, CASE WHEN i % 11 > 0 THEN i * 17 % 53 END AS age,
  (ARRAY['Rome', 'Bonn', 'Lyon'])[1 + i % 3] AS city, i % 4 = 0 AS pool, date '2026-01-01' + i * 13 % 300 AS sold,
  ARRAY[sin(i), cos(i)]::real[] AS place, left(repeat('bright flat near park ', 2), 10 + i % 12) AS words,
  (i * 37 % 91) * 40 + CASE i % 3 WHEN 0 THEN 900 ELSE 200 END * CASE WHEN i % 4 = 0 THEN 2 ELSE 1 END AS rent,
  CASE WHEN i * 37 % 91 > 60 THEN 'dear' WHEN i % 3 = 0 THEN 'fair' ELSE 'cheap' END AS class,
  CASE WHEN i % 2 = 0 THEN 'north' ELSE 'south' END AS side
 FROM generate_series(1, 400) i;
ALTER TABLE homes ADD PRIMARY KEY (id);
"""
KINDS = ["size", "age", "city", "pool", "sold", "place"]
NETWORK = {"architecture": "mlp", "units": 8, "layers": 1, "dropout": 0.0, "learning_rate": 0.02, "batch_size": 16}
ROWS, BACKGROUND = "SELECT * FROM homes WHERE id IN (5, 11)", "SELECT * FROM homes WHERE id IN (20, 33, 77)"


def fit(lab: Lab, model: str, target: str, inputs: str, **more: Any) -> None:
    given = {"configurations": json.dumps([NETWORK]), "target": target, "inputs": inputs, "epochs": 6,
             "options": '{"seed": 1, "deterministic": true}', **more}  # fmt: skip
    lab(f"SELECT cerebro.fit('homes', '{model}', {', '.join(f'{name} => %s' for name in given)})", *given.values())


@pytest.fixture(scope="module")
def homes(lab: Lab) -> Lab:
    lab(HOMES)
    fit(lab, "rents", "rent", ", ".join(KINDS))
    fit(lab, "classes", "class", "size, city, pool")
    return lab


def explained(lab: Lab, model: str, query: str = ROWS, **more: Any) -> dict[str, dict[str, Any]]:
    """Key -> class, base, prediction, and by column what it adds."""
    named = "".join(f", {name} => %s" for name in more)
    found: dict[str, dict[str, Any]] = {}
    for key, label, column, added, base, prediction in lab(
        "SELECT key_value, class, column_name, contribution, base, prediction"
        f" FROM cerebro.explain(%s, %s{named})", model, query, *more.values()
    ):  # fmt: skip
        one = found.setdefault(key, {"class": label, "base": base, "prediction": prediction, "columns": {}})
        assert (one["class"], one["base"], one["prediction"]) == (label, base, prediction)
        one["columns"][column] = added
    for one in found.values():
        assert math.fsum(one["columns"].values()) == pytest.approx(one["prediction"] - one["base"], abs=1e-6)
    return found


def by_definition(
    lab: Lab, model: str, columns: list[str], label: str | None = None, query: str = ROWS, background: str = BACKGROUND
) -> dict[str, dict[str, float]]:
    """The Shapley values, from the predictions of all mixtures of the two queries' rows."""
    chosen = [one for size in range(len(columns) + 1) for one in combinations(columns, size)]
    parts = []
    for number, coalition in enumerate(chosen):
        listed = ", ".join(f"{'q' if name in coalition else 'b'}.{name}" for name in columns)
        parts.append(f"SELECT {number} || ' ' || q.id || ' ' || b.id AS k, q.side, {listed} FROM q, b")
    mixed = f"WITH q AS ({query}), b AS ({background}) {' UNION ALL '.join(parts)}"
    worth: dict[tuple[tuple[str, ...], str], list[float]] = {}
    for key, number in lab(
        "SELECT key_value, COALESCE(value, probability) FROM cerebro.predict(%s, %s, 'k', top => 9)"
        " WHERE class IS NOT DISTINCT FROM %s", model, mixed, label
    ):  # fmt: skip
        place, row, _ = key.split()
        worth.setdefault((chosen[int(place)], row), []).append(number)
    of = {each: math.fsum(numbers) / len(numbers) for each, numbers in worth.items()}
    count, found = len(columns), {}
    for row in {row for _, row in of}:
        found[row] = {
            name: sum(
                (of[tuple(one for one in columns if one in (*coalition, name)), row] - of[coalition, row])
                / (count * math.comb(count - 1, len(coalition)))
                for coalition in chosen
                if name not in coalition
            )
            for name in columns
        }
    return found


def test_every_kind_of_column_has_its_shapley_value(homes: Lab) -> None:
    found = explained(homes, "rents", background=BACKGROUND)
    wanted = by_definition(homes, "rents", KINDS)
    assert set(found) == {"5", "11"}
    for key, one in found.items():
        assert one["columns"] == pytest.approx(wanted[key], rel=1e-4, abs=1e-2)  # rents of some hundreds, as float32
        assert all(one["columns"].values())
    predicted = dict(homes("SELECT key_value, value FROM cerebro.predict('rents', %s, 'id')", ROWS))
    assert {key: one["prediction"] for key, one in found.items()} == pytest.approx(predicted, rel=1e-5)
    bases = homes("SELECT value FROM cerebro.predict('rents', %s, 'id')", BACKGROUND)
    assert found["5"]["base"] == pytest.approx(sum(value for (value,) in bases) / 3, rel=1e-5)


def test_classes_are_the_predicted_ones_or_the_named_one(homes: Lab) -> None:
    columns = ["size", "city", "pool"]
    predicted = dict(homes("SELECT key_value, class FROM cerebro.predict('classes', %s)", ROWS))
    of_each = explained(homes, "classes", background=BACKGROUND)
    assert {key: one["class"] for key, one in of_each.items()} == predicted
    for label in ("dear", "fair"):
        wanted = by_definition(homes, "classes", columns, label)
        named = explained(homes, "classes", background=BACKGROUND, **{"class": label})
        for key, one in named.items():
            assert one["class"] == label and one["columns"] == pytest.approx(wanted[key], abs=1e-5)
            if predicted[key] == label:
                assert one == of_each[key]


def test_values_are_shown_and_the_same_call_has_the_same_answer(homes: Lab) -> None:
    call = "SELECT * FROM cerebro.explain('rents', %s, background => %s)"
    once, again = (homes(call, ROWS, BACKGROUND) for _ in range(2))
    assert rounded(once) == rounded(again)
    shown = {(row[0], row[3]): row[4] for row in once}
    wanted = homes("SELECT size::text, age::text, city, pool::text, sold::text, place::text FROM homes WHERE id = 5")[0]
    assert tuple(shown["5", name] for name in KINDS) == wanted


def test_the_rows_for_validation_are_the_background(homes: Lab) -> None:
    homes.told()
    one = explained(homes, "rents", "SELECT * FROM homes WHERE id = 5")["5"]
    assert not [told for told in homes.told() if "compared" in told]
    ((mean,),) = homes("SELECT avg(value) FROM cerebro.predict('rents', 'SELECT * FROM homes')")
    assert one["base"] == pytest.approx(mean, rel=0.15)


def test_without_these_rows_the_query_is_its_own_background(homes: Lab) -> None:
    fit(homes, "alone", "rent", "size, city", validation=0)
    homes.told()
    found = explained(homes, "alone", "SELECT * FROM homes WHERE id <= 9")
    assert [told for told in homes.told() if "rows of the query" in told]
    own = explained(homes, "alone", "SELECT * FROM homes WHERE id <= 9", background="SELECT * FROM homes WHERE id <= 9")
    assert rounded(found) == rounded(own)  # fewer rows than are taken
    assert explained(homes, "alone", "SELECT * FROM homes WHERE id < 0") == {}


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("SELECT * FROM homes WHERE id = 5", "the query has only one row"),
        ("SELECT i AS id, size, city FROM homes, generate_series(1, 3) i WHERE homes.id = 5", "the first 3 rows"),
    ],
)
def test_no_row_is_compared_with_itself(homes: Lab, query: str, told: str) -> None:
    fit(homes, "lonely", "rent", "size, city", validation=0)
    homes.told()
    try:
        with pytest.raises(errors.InvalidParameterValue, match=f"background is needed: {told}") as error:
            explained(homes, "lonely", query)
        assert "background => 'SELECT" in error.value.diag.message_hint and not homes.told()
        assert any(explained(homes, "lonely", query, background=BACKGROUND).popitem()[1]["columns"].values())
    finally:
        homes("SELECT cerebro.drop_model('lonely')")


def test_an_ensemble_is_explained(homes: Lab) -> None:
    several = [{**NETWORK, "units": units} for units in (4, 8)]
    fit(homes, "several", "rent", "size, city", configurations=json.dumps(several))
    homes("SELECT cerebro.ensemble('several', 'both', 2, all_join => true)")
    found, wanted = explained(homes, "both", background=BACKGROUND), by_definition(homes, "both", ["size", "city"])
    assert {key: one["columns"] for key, one in found.items()} == {
        key: pytest.approx(one, rel=1e-4, abs=1e-2) for key, one in wanted.items()
    }


def test_each_row_is_explained_by_the_model_of_its_group(homes: Lab) -> None:
    fit(homes, "sides", "rent", "size, city", group_by="side")
    found, wanted = explained(homes, "sides", background=BACKGROUND), by_definition(homes, "sides", ["size", "city"])
    assert len(found) == 2
    assert {key: one["columns"] for key, one in found.items()} == {
        key: pytest.approx(one, rel=1e-4, abs=1e-2) for key, one in wanted.items()
    }
    assert explained(homes, "sides")  # with packed rows of both groups


def test_a_column_is_one_in_all_rows_of_a_window(homes: Lab) -> None:
    sequence = {"by": "side", "order": "id", "length": 4, "step": 2}
    fit(homes, "windows", "rent", "size, age", sequence=json.dumps(sequence))
    query = "SELECT * FROM homes WHERE id <= 40 AND age IS NOT NULL"
    found = explained(homes, "windows", query)
    predicted = dict(homes("SELECT key_value, value FROM cerebro.predict('windows', %s)", query))
    assert {key: one["prediction"] for key, one in found.items()} == pytest.approx(predicted, rel=1e-5)
    assert all(set(one["columns"]) == {"size", "age"} for one in found.values())


def test_a_registered_model_is_explained_as_its_table(homes: Lab) -> None:
    version = homes.value("SELECT cerebro.register('explained_rents', 'rents')")
    try:
        of_version = explained(homes, f"explained_rents@{version}", background=BACKGROUND)
        assert rounded(of_version) == rounded(explained(homes, "rents", background=BACKGROUND))
    finally:
        homes(f"SELECT cerebro.unregister('explained_rents', {version})")


@pytest.mark.parametrize(
    ("model", "given", "told"),
    [
        ("rents", {"class": "dear"}, "'rent' is a number"),
        ("classes", {"class": "free"}, "'class' has no class 'free'"),
        ("classes", {"target": "rent"}, "target must be one of the targets"),
        ("rents", {"background": "SELECT * FROM homes WHERE id < 0"}, "the background has no rows"),
        ("rents", {"background": "SELECT h.* FROM homes h, generate_series(1, 3)"}, "more than 1,?024 rows"),
        ("rents", {"background": ""}, "background must not be empty"),
        ("rents", {"background": "SELECT size FROM homes"}, "background"),
        ("rents", {"key": "nothing"}, "key must be one column"),
    ],
)
def test_wrong_arguments_are_named(homes: Lab, model: str, given: dict[str, str], told: str) -> None:
    with pytest.raises(
        (errors.InvalidParameterValue, errors.UndefinedColumn, errors.DataException), match=told
    ) as error:
        explained(homes, model, **given)
    assert str(error.value).startswith("cerebro.explain: ") and error.value.diag.message_hint


def test_who_may_not_read_the_rows_of_the_run_is_told(homes: Lab) -> None:
    homes("CREATE ROLE explainer; GRANT cerebro_user TO explainer")
    homes(f"GRANT USAGE ON SCHEMA {homes.schema} TO explainer")
    homes("GRANT SELECT ON homes, rents, rents_info, rents_summary TO explainer; SET ROLE explainer")
    try:
        homes.told()
        assert len(explained(homes, "rents")) == 2
        assert [told for told in homes.told() if "rows of the query" in told]
    finally:
        homes("RESET ROLE; DROP OWNED BY explainer; DROP ROLE explainer")
