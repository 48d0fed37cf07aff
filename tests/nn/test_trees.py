"""Boosted trees: bins, the questions that trees ask, and what a model of trees makes of rows."""

from __future__ import annotations

import itertools
import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from cerebro_db.core.architecture import building
from cerebro_db.core.errors import ConfigurationFailed
from cerebro_db.nn.trees import growing
from cerebro_db.nn.trees.bins import MOST_BINS, binned
from cerebro_db.nn.trees.growing import (
    FEWEST_ROWS,
    MOST_FEATURES,
    MOST_SUMMED,
    PENALTY,
    SampleOfTree,
    grown,
    leaves_of,
    sampled,
)
from cerebro_db.nn.trees.losses import Distances, SeveralClasses, TwoClasses, loss_of
from cerebro_db.nn.trees.model import TreeModel
from cerebro_db.nn.trees.rows import limited
from cerebro_db.nn.trees.words import directions, numbers_of_words, telling
from tests.core.test_building import NUMBERS as NUMBERS_OF_ROWS
from tests.core.test_building import PRICE, TEXT, layout

NUMBERS = st.floats(-1e6, 1e6, width=32)


@given(arrays.arrays("float32", st.tuples(st.integers(1, 40), st.integers(1, 3)), elements=NUMBERS))
def test_edges_separate_values(features: Any) -> None:
    """Of few values, each has a bin of its own; and a question by an edge divides rows as their numbers do."""
    rows = binned(features)
    for place, (edges, bins) in enumerate(zip(rows.edges, rows.bins)):
        values = features[:, place]
        assert len(edges) == len(np.unique(values)) - 1 and np.all(np.diff(edges) > 0)
        for edge in edges:
            np.testing.assert_array_equal(rows.answers(place, float(edge)), values > edge)
        assert len(np.unique(bins)) == len(np.unique(values))


def test_many_values_share_bins() -> None:
    values = np.random.default_rng(1).normal(size=(5000, 1)).astype("float32")
    rows = binned(values)
    counts = np.bincount(rows.bins[0])
    assert len(rows.edges[0]) == MOST_BINS - 1 and counts.min() > 0.9 * 5000 / MOST_BINS - 2
    for edge in rows.edges[0]:
        np.testing.assert_array_equal(rows.answers(0, float(edge)), values[:, 0] > edge)


@pytest.mark.parametrize(("scores", "curved"), [(1, 1), (3, 3), (3, 1)])
@pytest.mark.parametrize("most", [1 << 25, 30, 1])
def test_each_question_is_the_best_one(scores: int, curved: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same as by trying all of them, in each level; also if there is no room for the sums of all features."""
    monkeypatch.setattr(growing, "MOST_SUMS", most)
    monkeypatch.setattr(growing, "GAINS_AT_ONCE", most)
    random = np.random.default_rng(scores)
    rows = binned(random.integers(0, 6, (60, 3)).astype("float32"))
    gradients, curvatures = random.normal(size=(60, scores)), random.uniform(0.1, 1, (60, curved))
    tree = grown(rows, gradients, curvatures, 3, SampleOfTree(np.arange(60), np.arange(3)))
    nodes = np.zeros(60, int)
    for level in range(3):

        def gain(feature: int, edge: float) -> float:
            parts = nodes * 2 + rows.answers(feature, edge)  # noqa: B023
            return sum(
                (gradients[parts == part].sum(axis=0) ** 2 / (curvatures[parts == part].sum(axis=0) + PENALTY)).sum()
                for part in np.unique(parts)
            )

        best = max(gain(feature, edge) for feature in range(3) for edge in rows.edges[feature])
        assert gain(tree.features[level], tree.thresholds[level]) == pytest.approx(best)
        nodes += rows.answers(tree.features[level], tree.thresholds[level]).astype(int) << level
    np.testing.assert_array_equal(nodes, leaves_of(rows, tree))
    for leaf in np.unique(nodes):
        here = nodes == leaf
        expected = -gradients[here].sum(axis=0) / (curvatures[here].sum(axis=0) + PENALTY)
        np.testing.assert_allclose(tree.leaves[leaf], expected)


def test_rows_that_are_all_alike_have_no_question() -> None:
    rows = binned(np.ones((10, 2), "float32"))
    tree = grown(rows, np.ones((10, 1)), np.ones((10, 1)), 2, SampleOfTree(np.arange(10), np.arange(2)))
    np.testing.assert_array_equal(leaves_of(rows, tree), leaves_of(rows, tree)[0])
    assert tree.leaves[leaves_of(rows, tree)[0], 0] == pytest.approx(-10 / (10 + PENALTY))


def logistic(targets: Any, scores: Any) -> Any:
    return np.logaddexp(0, scores) - targets * scores


def crossentropy(targets: Any, scores: Any) -> Any:
    return np.log(np.exp(scores).sum(axis=1, keepdims=True)) - (targets * scores).sum(axis=1, keepdims=True)


@pytest.mark.parametrize(
    ("loss", "of", "classes"),
    [
        (Distances(), lambda targets, scores: (scores - targets) ** 2 / 2, 0),
        (TwoClasses(), logistic, 1),
        (SeveralClasses(), crossentropy, 3),
    ],
)
def test_slopes_are_those_of_the_loss(loss: Any, of: Any, classes: int) -> None:
    random = np.random.default_rng(2)
    scores = random.normal(size=(20, max(1, classes)))
    targets = np.eye(classes)[random.integers(0, classes, 20)] if classes > 1 else random.integers(0, 2, (20, 1)) * 1.0
    gradients, curvatures = loss.slopes(targets, scores)
    step = 1e-4
    for score in range(scores.shape[1]):
        up, down = scores.copy(), scores.copy()
        up[:, score] += step
        down[:, score] -= step
        ups, here, downs = (of(targets, one).sum(axis=1) for one in (up, scores, down))
        np.testing.assert_allclose(gradients[:, score], (ups - downs) / (2 * step), atol=1e-6)
        np.testing.assert_allclose(curvatures[:, score], (ups - 2 * here + downs) / step**2, atol=1e-3)


@pytest.mark.parametrize("loss", [Distances(), TwoClasses(), SeveralClasses()])
def test_all_rows_begin_with_the_best_score(loss: Any) -> None:
    targets = np.eye(3)[[0, 0, 1, 2, 2, 2]]
    start = loss.start(targets, np.ones(6))
    gradients, _ = loss.slopes(targets, np.tile(start, (6, 1)))
    np.testing.assert_allclose(gradients.sum(axis=0), 0, atol=1e-9)


@pytest.mark.parametrize(
    ("name", "arguments", "classes"),
    [("kl_divergence", {}, 3), ("binary_crossentropy", {}, 3), ("mse", {}, 2), ("poisson", {}, 0),
     ("categorical_crossentropy", {"label_smoothing": 0.1}, 2), ("my_loss@1", {}, 0)],
)  # fmt: skip
def test_a_loss_that_trees_cannot_lessen(name: str, arguments: dict[str, Any], classes: int) -> None:
    with pytest.raises(ConfigurationFailed, match=f"trees cannot lessen the loss {name}") as error:
        loss_of(name, arguments, classes=classes, unit=np.ones(1))
    assert error.value.hint


def test_boosting_learns_what_no_single_question_tells() -> None:
    corners = np.array(list(itertools.product([0, 1], repeat=2)) * 25, "float32")
    wanted = np.logical_xor(corners[:, 0], corners[:, 1])[:, None].astype(float)
    rows, scores, loss = binned(corners), np.zeros((100, 1)), TwoClasses()
    for _ in range(60):
        tree = grown(rows, *loss.slopes(wanted, scores), 2, SampleOfTree(np.arange(100), np.arange(2)))
        scores = scores + 0.3 * tree.leaves[leaves_of(rows, tree)]
    assert logistic(wanted, scores).mean() < 0.05


def test_as_many_rows_are_read_as_there_is_memory_for() -> None:
    parts: Any = [(SimpleNamespace(rows=900), None), (SimpleNamespace(rows=500), np.arange(100, 200))]
    assert limited(parts, 4, 4000) is parts
    (_, first), (_, second) = limited(parts, 4, 400)
    assert len(first) + len(second) == 100 and len(second) == 10
    assert 0 <= min(first) < max(first) < 900 and 100 <= min(second) < max(second) < 200
    assert len(np.unique(first)) == len(first)


def test_of_many_rows_and_features_a_tree_is_chosen_by_some() -> None:
    few, wide, many = (sampled(np.random.default_rng(1), *size) for size in ((9, 3, 2), (10**5, 900, 2), (10**6, 5, 2)))
    assert list(few.features) == [0, 1, 2] and 1 < len(few.rows) < 9
    assert len(np.unique(wide.features)) == MOST_FEATURES and max(wide.features) < 900
    assert abs(len(wide.rows) - max(FEWEST_ROWS, MOST_SUMMED / MOST_FEATURES / 2)) < 1000
    assert abs(len(many.rows) - MOST_SUMMED / 10) < 4000
    assert list(sampled(np.random.default_rng(1), 1, 1, 2).rows) == [0]


def test_a_question_is_about_one_of_the_sampled_features() -> None:
    random = np.random.default_rng(3)
    rows, wanted = binned(random.normal(size=(200, 6)).astype("float32")), random.normal(size=(200, 1))
    tree = grown(rows, wanted, np.ones((200, 1)), 4, SampleOfTree(np.arange(0, 200, 2), np.array([1, 4])))
    assert {*tree.features} <= {1, 4}
    assert all(
        one in rows.edges[feature] for feature, one in zip(tree.features, np.asarray(tree.thresholds, "float32"))
    )


def test_rows_of_no_weight_do_not_say_where_a_median_is() -> None:
    targets, weights = np.array([[1.0], [2.0], [3.0], [900.0], [901.0]]), np.array([1.0, 1.0, 1.0, 0.0, 0.0])
    assert list(Distances(0.05, 20.0).start(targets, weights)) == [2.0]


@pytest.mark.parametrize("change", [{"units": 31}, {"name": "renamed"}])
def test_layers_that_are_only_named_like_those_of_trees(change: dict[str, Any]) -> None:
    import keras

    built = building.architecture("trees", layout([NUMBERS_OF_ROWS], PRICE), {"rounds": 10, "depth": 3}, "test")
    text = json.dumps(built)
    if "name" in change:
        text = text.replace("tree_questions", "renamed")
    else:
        text = text.replace('"units": 30', '"units": 33').replace('"target_shape": [10, 3]', '"target_shape": [11, 3]')
        text = text.replace('"target_shape": [10]', '"target_shape": [11]').replace("72.0]", "72.0, 72.0]")
    model = keras.Model.from_config(json.loads(text)["config"])
    with pytest.raises(ConfigurationFailed, match="a layer is named tree_leaves") as error:
        TreeModel(SimpleNamespace(model=model))
    assert error.value.hint


def texts(rows: int) -> Any:
    """Texts of up to 8 of 60 words, of which 1 to 4 are together or not at all, and 59 is in three texts."""
    random = np.random.default_rng(5)
    ids = random.integers(10, 59, (rows, 8)) * (np.arange(8) < random.integers(4, 9, rows)[:, None])
    together = random.random(rows) < 0.3
    ids[together, :4] = [1, 2, 3, 4]
    ids[:, 4] = np.where(random.random(rows) < 0.4, 5, ids[:, 4])
    ids[random.choice(rows, 3, replace=False), 5] = 59
    return ids


def test_the_words_that_tell_most_are_marked() -> None:
    """A word of few texts is none of them, however much it tells; and how often a text has a word does not matter."""
    ids = texts(2000)
    has_five, has_rare = ((ids == word).any(axis=1) for word in (5, 59))
    targets = np.stack([has_five * 1.0, has_rare * 1.0], 1)
    assert telling(ids, 60, targets, np.ones(2000), 1) == [5]
    assert 59 not in telling(ids, 60, targets[:, 1:], np.ones(2000), 60)
    twice = ids.copy()
    twice[has_five, 7] = 5
    one, other = (telling(some, 60, targets, np.ones(2000), 8) for some in (ids, twice))
    assert one[0] == other[0] == 5
    assert len(telling(ids, 60, np.ones((2000, 1)), np.ones(2000), 8)) == 0  # nothing is to be told
    assert telling(ids, 60, targets, 1.0 * has_five, 1) != [5]  # rows of no weight


def test_a_text_has_a_marked_word_if_the_mean_of_its_marks_is_above_0() -> None:
    ids = texts(2000)
    numbers = numbers_of_words(ids, 60, (ids == 5).any(axis=1)[:, None] * 1.0, np.ones(2000), 6)
    (place,) = np.flatnonzero(numbers[5, :3])
    np.testing.assert_array_equal(numbers[ids][:, :, place].mean(axis=1) > 0, (ids == 5).any(axis=1))
    assert not numbers[0].any()  # which is no word
    assert numbers_of_words(ids, 60, np.ones((2000, 1)), np.ones(2000), 0).shape == (60, 0)


def test_words_that_are_used_together_have_one_direction() -> None:
    found = directions(texts(2000), 60, 4)
    place = np.argmax(np.abs(found[1]))
    assert np.abs(found[1:5, place]).min() > 3 * np.abs(found[10:59, place]).max()
    np.testing.assert_allclose(found[1:5, place] / found[1, place], 1, atol=0.2)
    few = directions(np.array([[1, 0], [1, 2], [2, 0]]), 60, 4)  # fewer words than directions
    assert few.shape == (60, 4) and not few[3:].any() and few[1:3].any()
    assert not directions(np.zeros((5, 2), int), 60, 4).any()  # no words


def test_features_of_many_texts_do_not_crowd_out_others() -> None:
    def width(texts: int) -> int:
        built = building.architecture("trees", layout([TEXT] * texts, PRICE), {"rounds": 1, "depth": 1}, "test")
        sizes = [
            layer["config"]["output_dim"] for layer in built["config"]["layers"]
            if layer["config"]["name"].startswith("tree_codes")
        ]  # fmt: skip
        assert len({*sizes}) == 1 and len(sizes) == texts
        return sizes[0]

    assert [width(texts) for texts in (1, 3, 4, 97)] == [33, 33, 25, 1]
