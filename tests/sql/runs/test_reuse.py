"""Frozen layers: what they give is computed once, and the results are those of computing it in each step."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.nn import configurations as c
from tests.nn.test_features import network
from tests.sql.lab import Lab, eventually
from tests.thorough import landing

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


@pytest.fixture(scope="module")
def kept(place: Lab) -> tuple[int, list[str]]:
    """A run that keeps what frozen layers give, and its messages."""
    place.told()
    return fit(place, "kept", reuse="all"), place.told()


def test_the_results_are_those_of_computing_them_in_each_step(
    place: Lab, computed: int, kept: tuple[int, list[str]]
) -> None:
    run, messages = kept
    (told,) = (text for text in messages if "frozen layer" in text)
    assert "2 configurations with 5 frozen layers" in told and "where that is faster" not in told
    assert built(place, run) == {(5, 4 * 24)}
    assert losses(place, run) == pytest.approx(losses(place, computed), rel=1e-3)
    predicted = [
        place("SELECT value FROM cerebro.predict(%s, 'SELECT * FROM digits') ORDER BY key_value::integer", one)
        for one in ("kept", "computed")
    ]
    assert sum(one != other for one, other in zip(*predicted)) <= 3  # of 600


# tests/nn/test_features.py has the other engine.
@pytest.mark.parametrize("more", landing([{"engine": "jax"}, {"parallel": "gradients"}], {"parallel": "gradients"}))
def test_so_they_are_however_models_are_trained(place: Lab, more: dict[str, Any]) -> None:
    name = "_".join(more.values())
    run, other = (fit(place, f"{reuse}_{name}", reuse=reuse, **more) for reuse in ("all", "none"))
    assert built(place, run) == {(5, 4 * 24)} and built(place, other) == {(None, None)}
    assert losses(place, run) == pytest.approx(losses(place, other), rel=1e-3)


def figures(place: Lab, run: int) -> dict[str, Any]:
    """What the end of the run says of features."""
    return place.value("SELECT detail -> 'features' FROM cerebro.event WHERE run = %s AND event = 'finished'", run)


def computed_in(place: Lab, run: int) -> float | None:
    """The seconds of features, as far as the view has them."""
    found = place("SELECT seconds FROM run_time WHERE run = %s AND activity = 'features'", run)
    return found[0][0] if found else None


def test_the_plan_is_told_before_and_compared_with_what_happened(
    place: Lab, computed: int, kept: tuple[int, list[str]]
) -> None:
    run, messages = kept
    before, after = (text for text in messages if "features: " in text)
    assert re.search(r"1 MB are kept; computing them takes about \d+\.\d s .* would take about \d+\.\d s", before)
    assert re.search(r"1 MB were kept; computing them took \d+\.\d s .* saved about .* \(expected: ", after)
    found = figures(place, run)
    # Each configuration begins with other random weights, so each has features of its own.
    assert found["bytes"] == found["expected"]["bytes"] == 2 * 600 * 4 * 24
    assert found["computing"] > 0 and found["saved"] > 0
    # One of the passes computes them.
    expected = found["expected"]
    passes = 3 * place.value("SELECT parameters -> 'passes' FROM leaderboard WHERE run = %s LIMIT 1", run)
    assert expected["computing"] == pytest.approx(expected["without"] / passes, abs=0.002)
    in_visits = place.value("SELECT sum(seconds_features) FROM hop_timeline WHERE run = %s", run)
    assert computed_in(place, run) == pytest.approx(in_visits) and in_visits == pytest.approx(
        found["computing"], rel=0.1
    )
    assert figures(place, computed) is None and computed_in(place, computed) is None


def test_half_the_room_for_float16(place: Lab, computed: int) -> None:
    run = fit(place, "half", reuse="all", features_type="float16")
    assert built(place, run) == {(5, 2 * 24)} and figures(place, run)["bytes"] == 2 * 600 * 2 * 24
    assert losses(place, run) == pytest.approx(losses(place, computed), rel=0.02)


def test_a_run_goes_on_with_features(place: Lab, kept: tuple[int, list[str]]) -> None:
    parts = place.value(
        "SELECT fit('digits_packed', 'parts', %s, epochs => 2, options => %s)",
        json.dumps(
            [{"architecture": network(5), "learning_rate": rate, "loss": "categorical_crossentropy",
              "metrics": ["accuracy"], "batch_size": 16} for rate in RATES]
        ),
        json.dumps({"seed": 7, "threads": 1, "reuse": "all"}),
    )  # fmt: skip
    place("SELECT resume(%s, epochs => 3)", parts)
    assert losses(place, parts) == losses(place, kept[0])


def test_nothing_is_kept_unless_it_may_be(place: Lab, computed: int) -> None:
    place.told()
    deterministic = fit(place, "deterministic", deterministic=True)
    assert said(place) == []
    nothing = fit(place, "nothing", frozen=0, reuse="all")
    (line,) = said(place)
    assert "keeps nothing for 2 configurations" in line and "Dropout" in line
    assert {*built(place, deterministic), *built(place, computed), *built(place, nothing)} == {(None, None)}
    small = fit(place, "small", reuse="all", features_mb=0)
    assert losses(place, small) == losses(place, computed)  # there is room for no features


def test_auto_measures(place: Lab, computed: int) -> None:
    place.told()
    run = fit(place, "measured")
    assert "where that is faster" in said(place)[0]
    assert losses(place, run) == pytest.approx(losses(place, computed), rel=1e-3)


SLOW = [
    c.layer("UpSampling2D", "larger", size=4),
    c.layer("Conv2D", "wide", filters=64, kernel_size=3, padding="same", activation="relu"),
    c.layer("Conv2D", "slow", filters=64, kernel_size=3, padding="same", activation="relu"),
    c.layer("GlobalAveragePooling2D", "mean"),
]


def computing_features(place: Lab) -> int | None:
    """A trainer that has made the file for features."""
    for pid, _ in place.trainers():
        with contextlib.suppress(OSError):
            mapped = Path(f"/proc/{pid}/maps").read_text().splitlines()
            if any("/#" in line and line.endswith("(deleted)") for line in mapped):
                return pid
    return None


@pytest.mark.thorough  # tests/nn/test_features.py ends it there; tests/sql/runs/test_recovery.py kills trainers
def test_a_trainer_is_killed_while_it_computes_features(place: Lab) -> None:
    """Its visit is made again by another trainer, and nothing is left of the half that was computed."""
    layers = copy.deepcopy(SLOW)
    for layer in layers:
        layer["config"]["trainable"] = False
    architecture = c.sequential(
        c.input_layer([8, 8, 1]), *layers, c.layer("Dense", "out", units=10, activation="softmax")
    )
    found = {}
    for name in ("killed", "not_killed"):
        run = place.value(
            "SELECT fit('digits_packed', %s, %s, epochs => 2, options => %s, wait => false)", name,
            json.dumps({"architecture": architecture, "learning_rate": 0.01, "batch_size": 16, "passes": 1}),
            json.dumps({"seed": 7, "threads": 1, "reuse": "all"}),
        )  # fmt: skip
        if name == "killed":
            os.kill(eventually(lambda: computing_features(place), 60, "features are computed"), signal.SIGKILL)
        place("SELECT wait(%s)", run)
        assert place.status(run) == "finished"
        found[name] = [
            loss for (loss,) in place("SELECT training_loss FROM learning_curve WHERE run = %s ORDER BY epoch", run)
        ]
        lost = place.value("SELECT count(*) FROM cerebro.event WHERE run = %s AND event = 'unit failed'", run)
        assert lost == (1 if name == "killed" else 0)
        assert figures(place, run)["bytes"] == 600 * 4 * 64
    assert found["killed"] == pytest.approx(found["not_killed"], rel=1e-3)
    place.require_no_orphans()
    eventually(lambda: not place.abandoned(), 15, "workers take their files away")
