"""Frozen layers: what they give is computed once, and the results are those of computing it in each step."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.nn.test_features import network
from tests.sql.lab import Lab

RATES = (0.01, 0.003)


@pytest.fixture(scope="module")
def place(lab: Lab) -> Lab:
    lab.digits(600, 2)
    return lab


def fit(place: Lab, output: str, *, frozen: int = 5, **options: Any) -> int:
    listed = [{"architecture": network(frozen), "learning_rate": rate, "loss": "categorical_crossentropy",
               "metrics": ["accuracy"], "batch_size": 16} for rate in RATES]  # fmt: skip
    return place.value(
        "SELECT fit('digits_packed', %s, %s, epochs => 3, options => %s)",
        output, json.dumps(listed), json.dumps({"seed": 7, "threads": 1, **options}),
    )  # fmt: skip


def losses(place: Lab, run: int) -> list[float]:
    rows = place("SELECT training_loss FROM learning_curve WHERE run = %s ORDER BY model, epoch", run)
    assert len(rows) == 3 * len(RATES)
    return [loss for (loss,) in rows]


def built(place: Lab, run: int) -> set[tuple[Any, Any]]:
    return {
        (detail.get("frozen_layers"), detail.get("feature_bytes"))
        for (detail,) in place("SELECT detail FROM cerebro.event WHERE run = %s AND event = 'built'", run)
    }


def said(place: Lab) -> list[str]:
    return [text for text in place.told() if "frozen layer" in text]


@pytest.fixture(scope="module")
def computed(place: Lab) -> int:
    return fit(place, "computed", reuse="none")


@pytest.mark.parametrize("more", [{}, {"engine": "jax"}, {"parallel": "gradients"}], ids=str)
def test_the_results_are_those_of_computing_them_in_each_step(place: Lab, computed: int, more: dict[str, Any]) -> None:
    place.told()
    name = "kept_" + "_".join(more.values())
    run = fit(place, name, reuse="all", **more)
    (told,) = said(place)
    assert "2 configurations with 5 frozen layers" in told and "where that is faster" not in told
    assert built(place, run) == {(5, 4 * 24)}
    other = fit(place, f"{name}_computed", reuse="none", **more) if more else computed
    assert losses(place, run) == pytest.approx(losses(place, other), rel=1e-3)
    predicted = [
        place("SELECT value FROM cerebro.predict(%s, 'SELECT * FROM digits') ORDER BY key_value::integer", one)
        for one in (name, f"{name}_computed" if more else "computed")
    ]
    assert sum(one != other for one, other in zip(*predicted)) <= 3  # of 600


def test_a_run_goes_on_with_features(place: Lab) -> None:
    whole = fit(place, "whole", reuse="all")
    parts = place.value(
        "SELECT fit('digits_packed', 'parts', %s, epochs => 2, options => %s)",
        json.dumps(
            [{"architecture": network(5), "learning_rate": rate, "loss": "categorical_crossentropy",
              "metrics": ["accuracy"], "batch_size": 16} for rate in RATES]
        ),
        json.dumps({"seed": 7, "threads": 1, "reuse": "all"}),
    )  # fmt: skip
    place("SELECT resume(%s, epochs => 3)", parts)
    assert losses(place, parts) == losses(place, whole)


def test_nothing_is_kept_unless_it_may_be(place: Lab, computed: int) -> None:
    place.told()
    deterministic = fit(place, "deterministic", deterministic=True)
    nothing = fit(place, "nothing", frozen=0, reuse="all")
    assert {*built(place, deterministic), *built(place, computed), *built(place, nothing)} == {(None, None)}
    assert said(place) == []
    small = fit(place, "small", reuse="all", features_mb=0)
    assert losses(place, small) == losses(place, computed)  # there is room for no features


def test_auto_measures(place: Lab, computed: int) -> None:
    place.told()
    run = fit(place, "measured")
    assert "where that is faster" in said(place)[0]
    assert losses(place, run) == pytest.approx(losses(place, computed), rel=1e-3)
