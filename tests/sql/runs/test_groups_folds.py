"""Models of groups with folds: each equals plain Keras on the rows of its group outside of its fold.

``sales`` has a group on two segments, groups with fewer rows than folds, and one with a single row.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import psycopg2
import pytest

from cerebro_db.core.scheduling.ring import derived_seed
from cerebro_db.nn.rows.data import row_order
from tests.sql.lab import Lab, layer, sequential
from tests.sql.packing.test_tables import packed, refused, values
from tests.sql.runs.test_faithful import partitions, same, trained_by_keras, variables
from tests.sql.runs.test_groups import (
    CONFIGURATIONS,
    digests,
    fit,
    require_same_when_extended_and_replayed,
    require_same_when_resumed,
    select,
    spans,
)
from tests.thorough import TIMES

EPOCHS, SEGMENTS, FOLDS = 2, 3, 3
SHOPS = {"giant": 120, "small": 40, "none": 25, "two": 2, "one": 1}  # rows of each; "none" is NULL
SALES = """
CREATE TABLE sales AS SELECT i AS id, ARRAY[sin(i), cos(i * 2), sin(i * i), i / 200.0]::real[] AS facts,
  (ARRAY['low', 'mid', 'high'])[1 + (i * 7 % 11) % 3] AS price, i % 12 AS customer,
  CASE WHEN i <= 120 THEN 'giant' WHEN i <= 160 THEN 'small' WHEN i <= 185 THEN NULL WHEN i <= 187 THEN 'two'
       ELSE 'one' END AS shop
 FROM generate_series(1, 188) i;
ALTER TABLE sales ADD PRIMARY KEY (id);
"""


@pytest.fixture(scope="module")
def sales(lab: Lab) -> Lab:
    lab(SALES)
    told = packed(
        lab, "by_shop", "price", "sales", inputs="facts", group_by="shop", folds=FOLDS, segments=SEGMENTS, seed=1
    )
    assert any("1 group with all rows in one fold" in line for line in told)
    select(lab, "mst", *CONFIGURATIONS.values())
    return lab


@pytest.fixture(scope="module")
def run(sales: Lab) -> int:
    return fit(sales, "by_shop", "models", epochs=EPOCHS, evaluate_every=1)


def folds_of(place: Lab, table: str) -> list[np.ndarray]:
    """The fold of each row, by segment, in the order in which the rows lie."""
    keys = [partition["key"] for partition in place.value(f"SELECT layout FROM {table}_summary")["partitions"]]
    return [
        np.frombuffer(
            b"".join(
                bytes(one)
                for (one,) in place(f"SELECT __fold__ FROM {table} WHERE __dist_key__ = %s ORDER BY buffer_id", key)
            ),
            "u1",
        )
        for key in keys
    ]


def sizes_of(place: Lab, table: str) -> dict[int, Counter[int]]:
    """Group -> its rows of each fold, by the layout."""
    found: dict[int, Counter[int]] = {}
    for partition in place.value(f"SELECT layout FROM {table}_summary")["partitions"]:
        for (group, rows), folds in zip(partition["groups"], partition["group_folds"]):
            assert sum(folds) == rows
            found.setdefault(group, Counter()).update({fold: size for fold, size in enumerate(folds, 1) if size})
    return found


# -- packing -----------------------------------------------------------------------------------------------------


def test_each_group_has_rows_in_as_many_folds_as_it_can(sales: Lab) -> None:
    layout = sales.value("SELECT layout FROM by_shop_summary")
    names = [label[0] or "none" for label in layout["groups"]["labels"]]
    found = sizes_of(sales, "by_shop")
    assert {names[group - 1]: len(folds) for group, folds in found.items()} == {
        "giant": 3, "small": 3, "none": 3, "two": 2, "one": 1
    }  # fmt: skip
    assert {names[group - 1]: sum(folds.values()) for group, folds in found.items()} == SHOPS
    folds = folds_of(sales, "by_shop")
    for (segment, group), rows in spans(sales, "by_shop").items():
        if group is not None:
            partition = layout["partitions"][segment]
            place = [number for number, _ in partition["groups"]].index(group)
            assert [int((folds[segment][rows] == fold).sum()) for fold in (1, 2, 3)] == partition["group_folds"][place]


def test_a_row_of_a_group_that_lacks_no_fold_has_its_usual_one(sales: Lab) -> None:
    packed(sales, "whole", "price", "sales", inputs="facts", folds=FOLDS, segments=1, seed=1)
    usual = {facts.tobytes(): fold for facts, fold in zip(values(sales, "whole", "facts"), folds_of(sales, "whole")[0])}
    rows = values(sales, "by_shop", "facts")
    folds = np.concatenate(folds_of(sales, "by_shop"))
    here = {facts.tobytes(): fold for facts, fold in zip(rows, folds)}
    assert set(here) == set(usual)
    giants = {facts for facts in here if np.frombuffer(facts, "f4")[3] <= 0.6}
    assert len(giants) == SHOPS["giant"] and all(here[facts] == usual[facts] for facts in giants)


def test_many_small_groups_are_in_all_folds(sales: Lab) -> None:
    sales("CREATE TABLE pairs AS SELECT i AS id, i / 2 AS pair, (i % 7)::real AS x, (i % 3)::real AS y"
          " FROM generate_series(0, 399) i")  # fmt: skip
    sales("ALTER TABLE pairs ADD PRIMARY KEY (id)")
    packed(sales, "by_pair", "y", "pairs", inputs="x", group_by="pair", folds=5, segments=2, seed=1)
    found = sizes_of(sales, "by_pair")
    assert len(found) == 200 and all(len(folds) == 2 for folds in found.values())
    together = sum(found.values(), Counter())
    assert set(together) == {1, 2, 3, 4, 5} and min(together.values()) > 40


def test_rows_with_one_value_of_split_by_are_in_one_fold(sales: Lab) -> None:
    packed(
        sales, "by_customer", "price", "sales", inputs="facts", group_by="shop", folds=FOLDS, split_by="customer",
        segments=2, seed=1,
    )  # fmt: skip
    folds = np.concatenate(folds_of(sales, "by_customer"))
    of_customer: dict[int, set[int]] = {}
    customers = {int(round(last * 200)): customer for last, customer in sales("SELECT facts[4], customer FROM sales")}
    for facts, fold in zip(values(sales, "by_customer", "facts"), folds.tolist()):
        of_customer.setdefault(customers[int(round(float(facts[3]) * 200))], set()).add(fold)
    assert len(of_customer) == 12 and all(len(found) == 1 for found in of_customer.values())


def test_each_fold_has_subjects_of_each_group_of_windows(sales: Lab) -> None:
    sales("CREATE TABLE days AS SELECT i AS id, i % 12 AS item, i % 12 % 3 AS shop, i / 12 AS day, (i % 5)::real AS x,"
          " (i % 7)::real AS y FROM generate_series(0, 239) i")  # fmt: skip
    sequence = json.dumps({"by": ["shop", "item"], "order": "day", "length": 4, "step": 4})
    packed(
        sales,
        "windows",
        "y",
        "days",
        inputs="x",
        sequence=sequence,
        group_by="shop",
        folds=2,
        segments=SEGMENTS,
        seed=1,
    )
    sizes = sizes_of(sales, "windows")  # an item has five windows
    assert len(sizes) == 3 and all(set(folds) == {1, 2} for folds in sizes.values())
    assert all(rows % 5 == 0 for folds in sizes.values() for rows in folds.values())
    found = fit(sales, "windows", "windows_models", '[{"architecture": "lstm", "units": 2}]', epochs=1)
    judged = "SELECT group_value, folds_done, mean IS NOT NULL FROM cross_validation WHERE run = %s ORDER BY 1"
    assert sales(judged, found) == [("0", 2, True), ("1", 2, True), ("2", 2, True), (None, 2, True)]
    alone = json.dumps({"by": ["shop"], "order": "id", "length": 4, "step": 4})
    error = refused(sales, target="y", source="days", inputs="x", sequence=alone, group_by="shop", folds=2)
    assert "no group has rows in two folds" in str(error) and error.diag.message_hint


# -- bits --------------------------------------------------------------------------------------------------------


@pytest.mark.tensorflow  # with which oracle.py trains
def test_each_model_equals_plain_keras_on_the_rows_outside_of_its_fold(sales: Lab, run: int, tmp_path: Path) -> None:
    """The models of the second fold, and those without one: on all rows and of each group."""
    rows, lie, folds, asked = partitions(sales, "by_shop"), spans(sales, "by_shop"), folds_of(sales, "by_shop"), []
    seed = sales.value("SELECT seed FROM run WHERE run = %s", run)
    for model, key, fold, group, initial in sales(
        "SELECT model, configuration, fold, group_number, seed FROM model WHERE run = %s AND configuration = 1"
        " AND COALESCE(fold, 2) = 2 ORDER BY model", run
    ):  # fmt: skip
        if TIMES < 5 and fold is None and group:  # tests/sql/runs/test_groups.py compares such models
            continue
        visits = sales("SELECT hop, segment FROM hop WHERE run = %s AND model = %s ORDER BY hop", run, model)
        arrays = {}
        for number, (hop, segment) in enumerate(visits):
            mine = lie[segment, group]
            chosen = folds[segment][mine] != (fold or 0)
            x, y = (side[mine][chosen] for side in rows[segment])
            order = row_order(len(x), derived_seed(seed, "rows", model - 1, hop), 0)
            arrays[f"x{number}"], arrays[f"y{number}"] = x[order], y[order]
        np.savez(tmp_path / f"{model}.npz", **arrays)
        one = CONFIGURATIONS[key]
        asked.append({
            **one, "visits": str(tmp_path / f"{model}.npz"), "count": len(visits), "seed": initial, "name": str(model),
            "batch_size": one["fit"]["batch_size"], "forgetful": False, "out": str(tmp_path / f"{model}.out.npz"),
        })  # fmt: skip
    states = sales.states(run)
    # For all rows and 3 groups: one on all rows, and one for each of 3 folds. For two: 2 folds. For one: no fold.
    assert len(states) == 2 * (4 * 4 + 3 + 1) and len(asked) >= (2 * 4 + 1 + 1 if TIMES >= 5 else 5)
    for case, expected in zip(asked, trained_by_keras(asked, tmp_path)):
        assert all(same(variables(states[int(case["name"])]), expected)), case["name"]


# -- views -------------------------------------------------------------------------------------------------------


def test_means_and_ranks_are_within_a_group(sales: Lab, run: int) -> None:
    board = sales(
        "SELECT group_number, fold, rank, configuration, model, objective_value, validation_loss, spread, status,"
        " epochs_done FROM leaderboard WHERE run = %s ORDER BY 1 NULLS FIRST, 3", run
    )  # fmt: skip
    sizes = {None: Counter({1: 1, 2: 1, 3: 1}), **sizes_of(sales, "by_shop")}
    assert {(status, epochs) for *_, status, epochs in board} == {("finished", EPOCHS)}
    for group, in_folds in sizes.items():
        judged = in_folds if len(in_folds) > 1 else {}
        mine = [entry for entry in board if entry[0] == group]
        assert [entry[2] for entry in mine] == list(range(1, 2 * (1 + len(judged)) + 1))
        assert [entry[1] for entry in mine[:2]] == [None, None] and None not in {entry[1] for entry in mine[2:]}
        for _, _, rank, key, model, mean, loss, spread, *_ in mine[:2]:
            its = {entry[1]: entry[5] for entry in mine[2:] if entry[3] == key}
            assert set(its) == set(judged)
            figures = list(its.values())
            told = sales(
                "SELECT rank, mean, spread, smallest, largest, folds, folds_done, model, epochs_done"
                " FROM cross_validation"
                " WHERE run = %s AND configuration = %s AND group_number IS NOT DISTINCT FROM %s", run, key, group
            )  # fmt: skip
            if not judged:
                assert (mean, loss, spread, told) == (None, None, None, [])
                continue
            expected = float(np.mean(figures)), float(np.std(figures, ddof=1))
            assert (mean, spread) == pytest.approx(expected) and loss == pytest.approx(mean)
            assert told == [(rank, *map(pytest.approx, (*expected, min(figures), max(figures))), len(figures),
                             len(figures), model, EPOCHS)]  # fmt: skip
    names = sales("SELECT DISTINCT group_number, group_value FROM cross_validation WHERE run = %s ORDER BY 1", run)
    assert names == [(1, "giant"), (3, "small"), (4, "two"), (5, None), (None, None)]


def test_the_log_has_the_rows_of_each_model(sales: Lab, run: int) -> None:
    sizes = sizes_of(sales, "by_shop")
    for model, fold, group, fold_rows, group_rows, validation_rows in sales(
        "SELECT model, fold, group_number, fold_rows, group_rows, validation_rows FROM model WHERE run = %s"
        " AND group_number > 0", run
    ):  # fmt: skip
        folds = sizes[group]
        rows = sum(folds.values())
        assert (group_rows, validation_rows) == (rows, rows if len(folds) > 1 else 0)
        assert fold_rows == (None if fold is None else folds[fold])
        trained = sales("SELECT epoch, sum(rows)::int FROM hop WHERE run = %s AND model = %s GROUP BY 1", run, model)
        assert dict(trained) == dict.fromkeys(range(1, EPOCHS + 1), rows - (fold_rows or 0))
        evaluated = sales(
            "SELECT epoch, sum(rows)::int FROM evaluation WHERE run = %s AND model = %s GROUP BY 1", run, model
        )
        assert dict(evaluated) == ({} if fold is None else dict.fromkeys(range(1, EPOCHS + 1), fold_rows))
    curve = sales(
        "SELECT DISTINCT fold IS NULL, validation_loss IS NULL FROM learning_curve WHERE run = %s AND group_number > 0",
        run,
    )
    assert sorted(curve) == [(False, False), (True, True)]


def test_groups_are_compared_with_the_models_of_the_folds_on_all_rows(sales: Lab, run: int) -> None:
    found = sales(
        "SELECT group_number, model, configuration, objective_value, all_rows_configuration,"
        " all_rows_objective_value, all_rows_validation_loss, worse_than_all_rows FROM groups WHERE run = %s"
        " ORDER BY 1",
        run,
    )
    best = sales.value("SELECT configuration FROM cross_validation WHERE run = %s AND rank = 1"
                       " AND group_number IS NULL", run)  # fmt: skip
    sizes = sizes_of(sales, "by_shop")
    figures: dict[int, dict[int, float]] = {}
    for fold, group, rows, loss in sales(
        "SELECT m.fold, (g ->> 0)::int, sum((g ->> 1)::int)::int,"
        " sum((g ->> 1)::float8 * (g ->> 2)::float8) / sum((g ->> 1)::float8)"
        " FROM evaluation e JOIN model m USING (run, model) CROSS JOIN jsonb_array_elements(of_groups) AS g"
        " WHERE run = %s AND m.configuration = %s AND epoch = %s GROUP BY 1, 2", run, best, EPOCHS
    ):  # fmt: skip
        assert rows == sizes[group][fold]
        figures.setdefault(group, {})[fold] = loss
    assert {group: set(its) for group, its in figures.items()} == {group: set(its) for group, its in sizes.items()}
    assert len(found) == 5
    for group, model, key, value, whole, whole_value, whole_loss, worse in found:
        assert (model, key) == sales(
            "SELECT model, configuration FROM leaderboard WHERE run = %s AND group_number = %s AND rank = 1", run, group
        )[0]
        mean = float(np.mean(list(figures[group].values())))
        assert whole == best and whole_value == pytest.approx(mean) and whole_loss == pytest.approx(mean)
        assert worse == (None if value is None else value > whole_value)
    assert [value is None for _, _, _, value, *_ in found] == [False, True, False, False, False]  # that of group one


def test_groups_are_predicted_by_their_models_on_all_their_rows(sales: Lab, run: int) -> None:
    found = sales(
        "SELECT g.model, g.weights, g.objective_value, g.validation_loss, g.rank, b.objective_value, b.validation_loss,"
        " b.rank, b.fold FROM models_groups g JOIN leaderboard b USING (model) WHERE b.run = %s", run
    )  # fmt: skip
    states = sales.states(run)
    assert len(found) == 10
    for model, weights, *figures, fold in found:
        assert b"".join(array.tobytes() for array in variables(states[model])).startswith(bytes(weights))
        assert fold is None and all(
            one == other or one == pytest.approx(other) for one, other in zip(figures[:3], figures[3:])
        )
    best = dict(sales("SELECT group_number, configuration FROM groups WHERE run = %s", run))
    assert dict(sales("SELECT group_number, configuration FROM models_groups WHERE rank = 1")) == best
    assert sales.value("SELECT count(*) FROM predict('models', 'SELECT * FROM sales')") >= 188
    sales("SELECT materialize(%s, 'models_2', fold => 2)", run)
    of_fold = dict(sales("SELECT model, group_number FROM model WHERE run = %s AND fold = 2 AND group_number > 0", run))
    table = sales("SELECT model, group_number, weights, reason FROM models_2_groups")
    assert {model: group for model, group, weights, _ in table if weights is not None} == of_fold
    without = {(group, reason) for _, group, weights, reason in table if weights is None}
    assert without and all(reason == "the configuration has no model of this group and fold" for _, reason in without)


# -- whatever happens meanwhile ----------------------------------------------------------------------------------


def test_a_cancelled_run_that_is_resumed_has_the_same_bits(sales: Lab, run: int) -> None:
    require_same_when_resumed(sales, run, EPOCHS, 20)


@pytest.mark.thorough  # tests/sql/runs/test_groups.py and test_folds.py have them
def test_an_extension_and_a_replay_have_the_same_bits(sales: Lab, run: int) -> None:
    require_same_when_extended_and_replayed(sales, run, EPOCHS)


@pytest.mark.thorough  # tests/nn/test_folds.py has such an order, tests/core/test_driver.py chains of groups
def test_an_order_has_several_epochs_of_a_fold_of_a_group_and_their_evaluations(sales: Lab, run: int) -> None:
    long = fit(sales, "by_shop", "many_epochs", epochs=20, evaluate_every=1)
    orders, hops = sales(
        "SELECT count(*)::int, count(DISTINCT model)::int * 20 FROM attempt JOIN model USING (run, model)"
        " WHERE run = %s AND group_value = 'small' AND fold > 0", long
    )[0]  # fmt: skip
    assert 0 < orders < hops / 2
    evaluated = (
        "SELECT count(*)::int FROM evaluation JOIN model USING (run, model) WHERE run = %s AND fold = 1"
        " AND group_value = 'small'"
    )
    assert sales.value(evaluated, long) == 2 * 20
    first = [row[:7] for row in digests(sales, long) if row[3] <= EPOCHS and row[1] not in (None, 1)]
    assert first == [row[:7] for row in digests(sales, run) if row[1] not in (None, 1)]


@pytest.mark.thorough  # test_groups.py and test_folds.py have clones and added configurations
def test_a_clone_keeps_its_rows_and_an_added_configuration_gets_all_models(sales: Lab) -> None:
    found = fit(sales, "by_shop", "steered", '[{"architecture": "mlp", "units": 4}]', epochs=1)
    number = sales.value("SELECT model FROM model WHERE run = %s AND group_value = 'giant' AND fold = 2", found)
    sales("SELECT clone_model(%s, model => %s, changes => %s)", found, number, json.dumps({"learning_rate": 0.5}))
    sales("SELECT add_configuration(%s, %s)", found, json.dumps({"architecture": "mlp", "units": 4, "batch_size": 8}))
    sales("SELECT resume(%s, epochs => 2)", found)
    models = sales(
        "SELECT configuration, fold, group_number, visits, group_rows, fold_rows, validation_rows, parent"
        " FROM model WHERE run = %s ORDER BY 1, 2 NULLS FIRST, 3 NULLS FIRST", found
    )  # fmt: skip
    first, second = ([row[1:] for row in models if row[0] == key] for key in (1, 2))
    assert len(first) == 20 and first == second
    (copy,) = [row[1:] for row in models if row[0] == 3]
    assert copy[-1] == number and [*copy[:-1], None] in [list(row) for row in first]
    told = sales("SELECT configuration, count(*) FROM cross_validation WHERE run = %s AND mean > 0 GROUP BY 1", found)
    assert sorted(told) == [(1, 5), (2, 5)]


@pytest.mark.thorough  # test_groups_search.py chooses for groups, test_folds.py by folds
def test_a_search_and_a_train_choose_for_each_group_by_its_folds(sales: Lab) -> None:
    space = {"architecture": "mlp", "units": {"choice": [2, 4, 8]}}
    found = sales.value(
        "SELECT search('by_shop', 'searched', %s, epochs => 1, method => 'random', max_configurations => 2)",
        json.dumps(space),
    )
    told = "SELECT group_number, count(*), min(rank), max(rank) FROM cross_validation WHERE run = %s GROUP BY 1"
    assert sorted(sales(told, found), key=str) == sorted([(one, 2, 1, 2) for one in (None, 1, 3, 4, 5)], key=str)
    trained = sales.value(
        "SELECT train('sales', 'answers', target => 'price', inputs => 'facts', group_by => 'shop', folds => 2,"
        " max_configurations => 1, epochs => 1, segments => 2, budget => NULL)"
    )
    assert sales.value("SELECT count(*)::int FROM cross_validation WHERE run = %s AND mean > 0", trained) == 5
    assert sales.value("SELECT count(*)::int FROM answers_groups WHERE weights IS NOT NULL") == 5


def test_groups_with_few_rows_have_no_models(sales: Lab) -> None:
    found = fit(
        sales, "by_shop", "large", '[{"architecture": "mlp", "units": 4}]', epochs=1, options={"least_group_rows": 20}
    )
    assert sales("SELECT DISTINCT group_value FROM model WHERE run = %s AND group_number > 0 ORDER BY 1", found) == [
        ("giant",), ("small",), (None,)
    ]  # fmt: skip
    assert sales.value("SELECT count(*)::int FROM model WHERE run = %s", found) == 16


def test_a_model_of_a_group_and_fold_has_the_figures_of_a_plain_run_on_these_rows(sales: Lab) -> None:
    """Trained on the same rows in one group without folds, and evaluated on those of the fold."""
    line = sales.architecture(sequential([4], layer("Dense", "out", units=3, activation="softmax")))
    compiled = "optimizer='SGD(learning_rate=0.1)', loss='categorical_crossentropy'"
    sales.selection("lines_mst", [(line, compiled, "batch_size=1000")])  # one batch: no order of rows
    found = fit(sales, "by_shop", "lines", "lines_mst", epochs=2)
    folds, lie = folds_of(sales, "by_shop"), spans(sales, "by_shop")
    ids = {np.array(facts, "f4").tobytes(): number for number, facts in sales("SELECT id, facts FROM sales")}
    labels = sales.value("SELECT layout FROM by_shop_summary")["groups"]["labels"]
    ((segment, group),) = [place for place in lie if place[1] is not None and labels[place[1] - 1] == ["small"]]
    xs = partitions(sales, "by_shop")[segment][0][lie[segment, group]]
    inside = folds[segment][lie[segment, group]] == 2
    numbers = [[ids[x.astype("f4").tobytes()] for x in xs[chosen]] for chosen in (~inside, inside)]
    for name, its in zip(("others", "fold_2"), numbers):
        sales(f"CREATE TABLE {name} AS SELECT facts, price, id FROM sales WHERE id = ANY (%s)", its)
    packed(sales, "alone", "price", "others", inputs="facts", validation_table="fold_2", segments=1, seed=1)
    plain = fit(sales, "alone", "plain", "lines_mst", epochs=2, validation_table="alone_validation")
    figures = "SELECT validation_loss, training_loss, objective_value FROM leaderboard WHERE run = %s"
    (expected,) = sales(figures, plain)
    (mine,) = sales(f"{figures} AND group_value = 'small' AND fold = 2", found)
    assert mine == pytest.approx(expected, rel=1e-5)


def test_each_group_keeps_the_epoch_with_the_best_mean_over_its_folds(sales: Lab) -> None:
    found = fit(
        sales, "by_shop", "kept", epochs=3, evaluate_every=1, options={"keep": "best", "objective": "val_accuracy"}
    )
    means: dict[tuple[int, Any], dict[int, float]] = {}
    for key, group, epoch, mean in sales(
        "SELECT configuration, group_number, epoch, avg(validation_metric) FROM learning_curve WHERE run = %s"
        " AND fold IS NOT NULL GROUP BY 1, 2, 3 ORDER BY 1, 2, 3", found
    ):  # fmt: skip
        means.setdefault((key, group), {})[epoch] = mean
    best = {one: max(epochs, key=lambda epoch: (round(epochs[epoch], 6), -epoch)) for one, epochs in means.items()}
    assert len({*best.values()}) > 1, "all groups agree: this test shows nothing"
    told = sales(
        "SELECT configuration, group_number, best_epoch, objective_value FROM leaderboard WHERE run = %s"
        " AND fold IS NULL", found
    )  # fmt: skip
    for key, group, epoch, value in told:
        if (key, group) not in means:  # a group in one fold: nothing says which epoch is best
            assert (epoch, value) == (None, None)
            continue
        assert (epoch, value) == (best[key, group], pytest.approx(means[key, group][epoch]))
    kept = sales("SELECT configuration, group_number, which, epoch, objective_value FROM kept_groups WHERE which > ''")
    assert len(kept) > 8
    for key, group, which, epoch, value in kept:
        if (key, group) in means:
            assert (which, epoch, value) == ("best", best[key, group], pytest.approx(means[key, group][epoch]))
        else:
            assert (which, epoch) == ("last", 3)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"options": {"groups_start": "all rows"}}, "'groups_start' cannot be used with folds"),
        ({"options": {"method": "asha"}}, "'asha' cannot be used with folds"),
        ({"validation_table": "by_shop"}, "validation_table cannot be given"),
    ],
)
def test_what_has_no_meaning_with_folds_is_refused(sales: Lab, more: dict[str, Any], says: str) -> None:
    before = sales.tables()
    with pytest.raises(psycopg2.Error, match=says) as error:
        fit(sales, "by_shop", "no", epochs=1, **more)
    assert error.value.diag.message_hint and sales.tables() == before


def test_the_models_of_folds_count_for_the_most_models_of_a_run(sales: Lab) -> None:
    with pytest.raises(psycopg2.Error, match="200 groups and all rows, each with 5 folds: 51,510 models") as error:
        fit(sales, "by_pair", "no", json.dumps([{"architecture": "mlp", "units": units} for units in range(1, 86)]))
    assert "configurations or folds" in error.value.diag.message_hint
