"""Boosted trees as models of runs: they grow on one segment from the rows of all, and are models like any other."""

from __future__ import annotations

import json
from typing import Any

import psycopg2
import pytest

from tests.sql.lab import Lab, eventually

SEGMENTS = 3
TREES = [{"architecture": "trees", "rounds": 40, "depth": 4}, {"architecture": "trees", "rounds": 20, "rate": 0.3}]


@pytest.fixture(scope="module")
def people(lab: Lab) -> Lab:
    """Numbers, categories and texts; the class follows from an interaction, the number from all of them."""
    lab(
        "CREATE TABLE people AS SELECT id, a, b, city, note, CASE WHEN (a > 0) = (b > 0.3) THEN 'yes' ELSE 'no' END"
        " || CASE WHEN city = 'Rome' AND a > 0.5 THEN '!' ELSE '' END AS answer,"
        " a * b + CASE city WHEN 'Rome' THEN 2 WHEN 'Oslo' THEN -1 ELSE 0 END + 0.1 * sin(id) AS amount"
        " FROM (SELECT id, sin(id * 1.7) AS a, cos(id * 2.3) AS b,"
        " (ARRAY['Rome', 'Oslo', 'Lima', 'Kiev'])[1 + (id * 7919 % 13) % 4] AS city,"
        " CASE WHEN sin(id * 1.7) > 0 THEN 'a good and sunny day for all of us' ELSE 'rain and wind and a bad road' END"
        " || ' number ' || id % 50 AS note FROM generate_series(1, 1200) id) t"
    )
    for target in ("answer", "amount"):
        lab(
            f"SELECT pack('people', 'packed_{target}', '{target}', inputs => 'a, b, city, note',"
            " validation => 0.2, segments => %s)",
            SEGMENTS,
        )
    return lab


def fit(lab: Lab, packed: str, model: str, configurations: Any = TREES, **more: Any) -> int:
    arguments = {"epochs": 3, "evaluate_every": 1, "options": {"seed": 5}, **more}
    named = ", ".join(f"{name} => %s" for name in arguments)
    values = [json.dumps(one) if isinstance(one, (dict, list)) else one for one in arguments.values()]
    return lab.value(f"SELECT fit(%s, %s, %s, {named})", packed, model, json.dumps(configurations), *values)


@pytest.fixture(scope="module")
def classes(people: Lab) -> int:
    return fit(people, "packed_answer", "of_answer")


def test_each_model_stays_on_one_segment(people: Lab, classes: int) -> None:
    hops = people(
        "SELECT model, segment, count(*), min(rows), max(rows) FROM hop WHERE run = %s GROUP BY 1, 2", classes
    )
    rows = people.value("SELECT rows_per_epoch FROM run WHERE run = %s", classes)
    assert sorted(hops) == [(1, 0, 3, rows, rows), (2, 1, 3, rows, rows)]


def digests(lab: Lab, run: int) -> list[Any]:
    return lab("SELECT model, hop, loss, state_sha256 FROM hop WHERE run = %s ORDER BY 1, 2", run)


def test_they_learn(people: Lab, classes: int) -> None:
    losses = dict(
        people(
            "SELECT configuration, array_agg(validation_loss ORDER BY epoch) FROM learning_curve WHERE run = %s"
            " GROUP BY 1",
            classes,
        )
    )
    # The second model has all its trees after one epoch, and the others change nothing.
    assert losses[1][0] > losses[1][1] == losses[1][2] and losses[1][2] < 0.15
    assert losses[2][0] == losses[2][1] == losses[2][2] and losses[2][2] < 0.15


def test_the_same_bits_again(people: Lab, classes: int) -> None:
    again = fit(people, "packed_answer", "again")
    assert digests(people, again) == digests(people, classes)
    replayed = fit(people, "packed_answer", "replayed", options={"replay": classes})
    assert digests(people, replayed) == digests(people, classes)


def test_a_run_that_goes_on_has_the_same_bits(people: Lab, classes: int) -> None:
    short = fit(people, "packed_answer", "short", epochs=1)
    people("SELECT resume(%s, epochs => 3)", short)
    assert [one[3] for one in digests(people, short)] == [one[3] for one in digests(people, classes)]


def test_a_killed_run_has_the_same_bits(people: Lab) -> None:
    many = [{"architecture": "trees", "rounds": 300, "depth": 6}] * 2
    whole = fit(people, "packed_answer", "whole", many, epochs=30)
    killed = people.value(
        "SELECT fit('packed_answer', 'killed', %s, epochs => 30, evaluate_every => 1, options => %s, wait => false)",
        json.dumps(many), json.dumps({"seed": 5}),
    )  # fmt: skip
    eventually(lambda: people.value("SELECT count(*) FROM hop WHERE run = %s", killed) > 6, 60, "some hops")
    people.end_driver(killed)
    if people.ended(killed) != "finished":
        people("SELECT resume(%s)", killed)
    assert people.ended(killed) == "finished" and digests(people, killed) == digests(people, whole)


def test_predictions(people: Lab, classes: int) -> None:
    """In bulk and from a predictor, of rows that were packed and of such with values that nobody has seen."""
    right, rows = people(
        "SELECT count(*) FILTER (WHERE p.class = t.answer), count(*)"
        " FROM predict('of_answer', 'people') p JOIN people t ON t.id = p.key_value::integer"
    )[0]
    assert right > 0.97 * rows
    unseen = "SELECT 0.4::float8 AS a, 0.9::float8 AS b, 'Ulm'::text AS city, 'no words that are known'::text AS note"
    assert people.value("SELECT class FROM predict('of_answer', %s)", unseen) == "yes"


def test_numbers(people: Lab) -> None:
    losses = [{"architecture": "trees", "loss": loss} for loss in ("mse", "mae", "huber")]
    run = fit(people, "packed_amount", "of_amount", losses, epochs=15)
    assert people.value("SELECT count(*) FROM leaderboard WHERE run = %s AND status = 'finished'", run) == 3
    (off,) = people(
        "SELECT sqrt(avg((p.value - t.amount) ^ 2)) / stddev(t.amount)"
        " FROM predict('of_amount', 'people') p JOIN people t ON t.id = p.key_value::integer"
    )[0]
    assert off < 0.2


def test_words_that_tell_only_together(people: Lab) -> None:
    """The class is true if a text has exactly one of two words: the mean of the codes of its words cannot say it."""
    people(
        "CREATE TABLE mail AS SELECT id, (CASE WHEN good THEN 'good ' ELSE '' END) || fill ||"
        " (CASE WHEN bad THEN ' bad' ELSE '' END) AS note, (good <> bad)::text AS answer"
        " FROM (SELECT id, hashint4(id) % 2 = 0 AS good, hashint4(id + 10000) % 2 = 0 AS bad,"
        " (SELECT string_agg('w' || abs(hashint4(id * 20 + n)) % 90, ' ') FROM generate_series(1, 7) n) AS fill"
        " FROM generate_series(1, 1500) id) t"
    )
    people("SELECT pack('mail', 'packed_mail', 'answer', inputs => 'note', validation => 0.2)")
    run = fit(people, "packed_mail", "of_mail", [{"architecture": "trees", "depth": 4}], epochs=8)
    assert people.value("SELECT validation_loss FROM leaderboard WHERE run = %s", run) < 0.25
    right = people.value(
        "SELECT avg((p.class = t.answer)::integer) FROM predict('of_mail', 'mail') p"
        " JOIN mail t ON t.id = p.key_value::integer"
    )
    assert right > 0.95


@pytest.mark.parametrize(
    ("configuration", "said"),
    [
        ({"loss": "kl_divergence"}, "trees cannot lessen the loss kl_divergence"),
        ({"rounds": 10_000, "depth": 12}, "the limit is 4,194,304"),
        ({"learning_rate": 0.1}, "trees have no learning_rate"),
        ({"frozen": ["tree_leaves_1"]}, "trees have no frozen"),
        ({"depth": 0}, "depth cannot be 0"),
    ],
)
def test_what_is_refused(people: Lab, configuration: dict[str, Any], said: str) -> None:
    try:
        run = fit(people, "packed_answer", "refused", [{"architecture": "trees", **configuration}], replace=True)
    except psycopg2.Error as error:
        assert said in str(error)
    else:
        assert said in people.value("SELECT string_agg(reason, '') FROM leaderboard WHERE run = %s", run)


def test_train_tries_networks_and_trees(people: Lab) -> None:
    run = people.value(
        "SELECT train('people', 'tried', 'amount', epochs => 3, max_configurations => 3, inputs => 'a, b, city',"
        " options => %s)",
        json.dumps({"seed": 2}),
    )
    kinds = people("SELECT architecture, min(configuration) FROM leaderboard WHERE run = %s GROUP BY 1 ORDER BY 1", run)
    assert kinds == [("mlp", 1), ("trees", 2)]


def test_an_ensemble_of_both_predicts_and_is_trained_again(people: Lab) -> None:
    people("CREATE TABLE growing AS SELECT id, a, b, city, amount FROM people WHERE id <= 1000")
    both = json.dumps([{"architecture": "mlp", "learning_rate": 0.01}, {"architecture": "trees"}])
    people("SELECT fit('growing', 'both', %s, 'amount', epochs => 4, evaluate_every => 1)", both)
    people.told()
    people("SELECT ensemble('both', 'joined', all_join => true)")
    assert any("(mlp and trees)" in one or "(trees and mlp)" in one for one in people.told())
    (off,) = people(
        "SELECT max(abs(j.value - (m.value + t.value) / 2)) FROM predict('joined', 'growing', 'id') j"
        " JOIN predict('both', 'growing', 'id', 1) m USING (key_value)"
        " JOIN predict('both', 'growing', 'id', 2) t USING (key_value)"
    )[0]
    assert off < 1e-4
    people("SELECT register('amounts', 'joined', alias => 'production')")
    people("INSERT INTO growing SELECT id, a, b, city, amount FROM people WHERE id > 1000")
    ((version, runs),) = people("SELECT version, run FROM retrain('amounts')")
    kinds = people("SELECT DISTINCT architecture FROM leaderboard WHERE run = %s ORDER BY 1", runs)
    assert version == 2 and kinds == [("mlp",), ("trees",)]


def test_groups_and_folds(people: Lab) -> None:
    """The model of a group grows from the rows of the group, wherever they lie."""
    people("SELECT pack('people', 'by_city', 'answer', inputs => 'a, b', group_by => 'city', segments => 2)")
    run = fit(people, "by_city", "of_cities", TREES[:1], epochs=1)
    hops = people(
        "SELECT m.group_rows, h.rows FROM hop h JOIN model m USING (run, model) WHERE run = %s AND group_number > 0",
        run,
    )
    assert len(hops) == 4 and all(rows <= of_group for of_group, rows in hops)
    people("SELECT pack('people', 'folded', 'answer', inputs => 'a, b, city', folds => 3, segments => 2)")
    run = fit(people, "folded", "of_folds", TREES[:1], epochs=1)
    rows = people(
        "SELECT r.rows_per_epoch, m.fold, m.fold_rows, h.rows FROM hop h JOIN model m USING (run, model)"
        " JOIN run r USING (run) WHERE run = %s ORDER BY m.fold NULLS FIRST",
        run,
    )
    assert [fold for _, fold, _, _ in rows] == [None, 1, 2, 3]
    for whole, fold, of_fold, trained in rows:
        assert trained == whole - (of_fold if fold is not None else 0)


def losses(lab: Lab, run: int) -> list[Any]:
    return lab(
        "SELECT status, training_loss, validation_loss FROM leaderboard WHERE run = %s ORDER BY configuration", run
    )


def test_a_warm_start_from_weights_alone_adds_trees(people: Lab) -> None:
    """The optimizer's state, which belongs to other metrics, is not there to count them."""
    trees = {"architecture": "trees", "depth": 4}
    first = fit(people, "packed_answer", "warm", [trees], epochs=1)
    more = fit(people, "packed_answer", "warm", [{**trees, "metrics": ["auc"]}], epochs=1, warm_start=True)
    ((_, before, _),), ((status, after, _),) = losses(people, first), losses(people, more)
    assert status == "finished" and after < 0.8 * before


@pytest.mark.parametrize("option", [{"precision": "mixed_bfloat16"}, {"precision": "mixed_float16"}, {"shard": 2}])
def test_options_of_networks_change_nothing(people: Lab, classes: int, option: dict[str, Any]) -> None:
    """Numbers of leaves need all digits, and trees grow from whole models."""
    run = fit(people, "packed_answer", "otherwise", options={"seed": 5, **option}, replace=True)
    assert losses(people, run) == losses(people, classes)


def test_small_numbers(people: Lab) -> None:
    people(
        "CREATE TABLE small AS SELECT id, ARRAY[1e-36 * sin(id), 1e-36 * cos(id)]::real[] AS v,"
        " CASE WHEN sin(id) > 0 THEN 'up' ELSE 'down' END AS answer FROM generate_series(1, 600) id"
    )
    people("SELECT pack('small', 'packed_small', 'answer', inputs => 'v', validation => 0.2)")
    run = fit(people, "packed_small", "of_small", TREES[:1])
    assert losses(people, run)[0][2] < 0.1


def test_a_search_of_trees_alone_that_is_trained_again(people: Lab) -> None:
    """It tries nothing that only an optimizer has, ends with all trees, and its best model can be trained again."""
    if people.greenplum:
        pytest.skip("refit is refused on Greenplum")
    run = people.value(
        "SELECT cerebro.train('people', 'alone', 'answer', inputs => 'a, b, city', architectures => %s,"
        " max_configurations => 2, budget => '60 s', refit => true, segments => 2)",
        json.dumps({"trees": {"rounds": 60, "rate": 0.3}}),
    )
    chosen = people("SELECT chosen, parent, epochs_done, reason FROM leaderboard WHERE run = %s", run)
    assert len(chosen) == 2 and all(parent is None and epochs <= 4 for _, parent, epochs, _ in chosen)
    assert all("learning_rate" not in one and "batch_size" not in one for one, *_ in chosen)
    assert people.value("SELECT count(*) FROM alone_info WHERE reason LIKE '%%all rows%%'") == 1
