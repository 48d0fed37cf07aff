"""Means of the targets beside the codes of a category: a row for training has those of other rows, all others those of
all rows for training."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import psycopg2
import pytest

from tests.sql.lab import Lab
from tests.sql.packing.test_append import read

PRIOR = 10
SHOPS = """
CREATE TABLE shops AS SELECT i AS id, 'town ' || i * 7919 % 40 AS town, (i * 31 % 7)::real / 3 + i % 11 AS x,
  (i * 7919 % 40)::double precision * 10 + i * 104729 % 2003 / 7.013 AS y,
  (ARRAY['no', 'yes', 'maybe'])[1 + (i * 7919 % 40 + i * 31 % 13 / 10) % 3] AS kind,
  date '2024-01-01' + i AS day FROM generate_series(1, 1200) i;
ALTER TABLE shops ADD PRIMARY KEY (id);
CREATE TABLE later AS SELECT id + 5000 AS id, CASE id % 4 WHEN 0 THEN NULL WHEN 1 THEN 'elsewhere' ELSE town END
  AS town, x, y, kind, day FROM shops WHERE id <= 60
"""
INPUTS = "town, x"


@pytest.fixture(scope="module")
def shops(lab: Lab) -> Lab:
    lab(SHOPS)
    return lab


def packed(shops: Lab, target: str = "y", source: str = "shops", **more: Any) -> list[str]:
    """Pack the table; what was told."""
    ends = ("", "_summary", "_validation", "_validation_summary")
    shops("DROP TABLE IF EXISTS " + ", ".join(f"packed{end}" for end in ends))
    shops.told()
    given = {"inputs": INPUTS, "seed": 1, "segments": 2, **more}
    named = "".join(f", {name} => %s" for name in given)
    shops(f"SELECT pack('{source}', 'packed', '{target}'{named})", *given.values())
    return shops.told()


def feature(shops: Lab, table: str = "packed") -> dict[str, Any]:
    layout = shops.value(f"SELECT layout FROM {table}_summary")
    (numbers,) = [one for one in layout["inputs"] if one["name"] == "numbers"]
    (found,) = [one for one in numbers["preparation"]["features"] if one["prepared_as"] == "means"]
    return found


def rows_of(shops: Lab, table: str) -> tuple[list[str | None], np.ndarray, dict[str, np.ndarray]]:
    """Of each packed row the town, the means, and all its values; ``y`` tells the row."""
    values = read(shops, table)
    source = "SELECT town, y FROM shops UNION ALL SELECT town, y + 0.001 FROM later"
    towns = {np.float32(y): town for town, y in shops(source)}
    return [towns[y] for y in values["y"][:, 0]], values["numbers"][:, 1:], values


@pytest.mark.parametrize("more", [{}, {"folds": 3}], ids=str)
def test_a_row_for_training_has_the_mean_of_other_rows(shops: Lab, more: dict[str, Any]) -> None:
    """The rows of a town that have the same mean are a part, and their mean is that of the town's other rows."""
    told = packed(shops, **more)
    assert any("these columns have means of the target: town (y)" in line for line in told)
    means = dict(zip(feature(shops)["values"], feature(shops)["means"][0]))
    towns, found, values = rows_of(shops, "packed")
    y = values["y"][:, 0].astype("f8")
    around = (y - y.mean()) / y.std()
    of_town = {town: np.array([one == town for one in towns]) for town in means}
    whole = {town: around[its].sum() / (its.sum() + PRIOR) for town, its in of_town.items()}
    by = np.sqrt(sum(of_town[town].sum() * one**2 for town, one in whole.items()) / len(towns))
    parts_of = 0
    for town, its in of_town.items():
        assert means[town] == pytest.approx(whole[town] / by, abs=2e-3)
        for part in np.unique(found[its, 0]):
            inside = its & (found[:, 0] == part)
            others = its & ~inside
            assert part == pytest.approx(around[others].sum() / (others.sum() + PRIOR) / by, abs=2e-3)
            if "folds" in more:
                assert len(set(values["__fold__"][inside, 0])) == 1
        parts_of += len(np.unique(found[its, 0]))
    assert parts_of > (2.5 if more else 4) * len(means) and len(means) == 40


def test_other_rows_have_the_means_of_all_rows_for_training(shops: Lab) -> None:
    packed(shops)
    shops("DROP TABLE IF EXISTS like_them, like_them_summary")
    shops("SELECT pack_like('later', 'like_them', 'y', NULL, 'packed')")
    means = dict(zip(feature(shops)["values"], map(np.float32, feature(shops)["means"][0])))
    towns, found, _ = rows_of(shops, "packed_validation")
    assert found[:, 0].tolist() == [means[town] for town in towns] and len(towns) > 150
    assert feature(shops) == feature(shops, "packed_validation")
    assert (read(shops, "like_them")["numbers"][:, 1] == 0).sum() == 30  # NULL, and a town that nobody knows
    before = len(rows_of(shops, "packed")[0])
    shops("CREATE TEMP VIEW added AS SELECT id, town, x, y + 0.001 AS y, kind, day FROM later")
    shops("SELECT append('packed', 'pg_temp.added', divide => false)")
    towns, found, values = rows_of(shops, "packed")
    new = np.isin(values["y"][:, 0], [np.float32(y) for (y,) in shops("SELECT y FROM added")])
    assert new.sum() >= 60 and len(towns) == before + 60
    expected = [means.get(town, np.float32(0)) if town else np.float32(0) for town in towns]
    assert all(found[place, 0] == expected[place] for place in np.flatnonzero(new))
    assert feature(shops)["means"][0] == [float(f"{one:.4f}") for one in feature(shops)["means"][0]]


def test_classes_have_a_mean_each_but_the_most_frequent(shops: Lab) -> None:
    told = packed(shops, "kind")
    counts = dict(shops("SELECT kind, count(*) FROM shops GROUP BY 1"))
    of = feature(shops)["of"]
    assert len(of) == 2 and set(of) < set(counts) and of == [one for one in ("maybe", "no", "yes") if one in of]
    assert any(f"means of the target: town ({', '.join(of)})" in line for line in told)
    assert read(shops, "packed")["numbers"].shape[1] == 3
    shops("CREATE VIEW two AS SELECT *, kind = 'no' AS is_no FROM shops")
    packed(shops, "is_no", source="two")
    assert feature(shops)["of"] == ["true"]


def test_means_of_two_targets(shops: Lab) -> None:
    packed(shops, "kind, y")
    *of_classes, of_number = feature(shops)["of"]
    assert len(of_classes) == 2 and of_number == "y" and len(feature(shops)["means"]) == 3


def test_who_gets_means(shops: Lab) -> None:
    def with_means(**more: Any) -> list[tuple[str, int]]:
        packed(shops, **more)
        return shops("SELECT column_name, width FROM prepared_columns('packed') WHERE prepared_as = 'means'")

    assert with_means() == [("town", 1)]
    assert with_means(prepare=json.dumps({"town": {"means": False}})) == []
    few = {"prepare": json.dumps({"x": {"as": "category", "means": True}, "town": {"as": "category", "means": False}})}
    assert with_means(**few) == [("x", 1)]
    shops("CREATE VIEW alike AS SELECT *, 'y' || id * 104729 % 2003 % 37 AS says_nothing FROM shops")
    nothing = {"source": "alike", "inputs": "x, says_nothing"}
    assert with_means(**nothing) == []
    assert with_means(**nothing, prepare=json.dumps({"says_nothing": {"means": True}})) == [("says_nothing", 1)]
    shops("CREATE VIEW sparse AS SELECT * FROM shops WHERE id <= 190")
    assert with_means(source="sparse") == []  # fewer than five rows of a town
    window = json.dumps({"by": "kind", "order": "id", "length": 3})
    assert with_means(sequence=window) == []
    with pytest.raises(psycopg2.Error, match="means cannot be used together with sequence"):
        with_means(sequence=window, prepare=json.dumps({"town": {"means": True}}))
    with pytest.raises(psycopg2.Error, match="means cannot be 'yes'"):
        with_means(prepare=json.dumps({"town": {"means": "yes"}}))


@pytest.mark.parametrize("more", [{"group_by": "kind"}, {"split_by": "day"}, {"split_at": "day"}, {"weights": "x"}])
def test_means_with_every_division_of_rows(shops: Lab, more: dict[str, str]) -> None:
    packed(shops, **more)
    assert len(feature(shops)["values"]) == 40
    towns, found, _ = rows_of(shops, "packed")
    assert len({(town, one) for town, one in zip(towns, found[:, 0].tolist())}) > 100


def test_the_same_row_gives_the_same_prediction_everywhere(shops: Lab) -> None:
    """Of a query, of a predictor, and of the packed rows that are evaluated."""
    shops("DROP TABLE IF EXISTS costs, costs_info, costs_summary")
    mlp = json.dumps({"architecture": "mlp", "layers": 1, "units": 8, "learning_rate": 0.01})
    shops("SELECT fit('shops', 'costs', %s, target => 'y', inputs => %s, epochs => 2, segments => 1)", mlp, INPUTS)
    shops("SELECT create_predictor('costs', 'cost_of')")
    assert "cost_of(x, town)" in shops.value(
        "SELECT 'cost_of(' || array_to_string(proargnames[1:2], ', ') || ')' FROM pg_proc WHERE proname = 'cost_of'"
    )
    told = dict(shops("SELECT key_value::int, value FROM predict('costs', 'TABLE later', key => 'id')"))
    assert len(told) == 60
    if not shops.greenplum:  # there, segments cannot run the statements of a predictor
        assert told == pytest.approx(dict(shops("SELECT id, cost_of(x, town) FROM later")), rel=1e-5)
    assert len({round(one, 3) for one in told.values()}) > 20
    loss = shops.value("SELECT value FROM evaluate('costs', 'TABLE later') WHERE metric = 'rmse'")
    actual = dict(shops("SELECT id, y FROM later"))
    assert loss == pytest.approx(np.sqrt(np.mean([(told[one] - actual[one]) ** 2 for one in told])), rel=1e-4)
    packed = shops.packed_rows("costs")
    shops("SELECT pack_like('later', 'later_packed', 'y', NULL, %s)", packed)
    shops("SELECT fit('later_packed', 'costs_later', %s, epochs => 1)", mlp)  # town is in two inputs, and named once
    contributions = shops("SELECT DISTINCT column_name FROM explain('costs', 'TABLE later', key => 'id')")
    assert {name for (name,) in contributions} == {"x", "town"}
