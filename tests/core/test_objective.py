"""What a run optimises: which metrics can be chosen, which values are better, and what an error says."""

from __future__ import annotations

from typing import Any

import pytest

from cerebro_db.core.errors import InvalidArgument
from cerebro_db.core.parameters.params import compile_params
from cerebro_db.core.parameters.reported import reported
from cerebro_db.core.run_options import RunOptions
from cerebro_db.core.search.history import Figures, History
from cerebro_db.core.search.objective import Objective, chosen, default, require_reported

KNOWN = {"metric": {"lift": "lift@2"}, "loss": {}}


def configurations(*metrics: str) -> dict[int, Any]:
    return {
        key: reported(compile_params(f"optimizer='SGD', loss='mse', metrics=[{one}]", KNOWN), ["out"])
        for key, one in enumerate(metrics, 1)
    }


BOTH = configurations("'accuracy', AUC(name='area')", "'mae', 'accuracy', AUC(name='area', curve='PR')")


@pytest.mark.parametrize(
    ("objective", "direction"),
    [("loss", "min"), ("val_loss", "min"), ("accuracy", "max"), ("val_area", "max")],
)
def test_the_direction_follows_from_the_metric(objective: str, direction: str) -> None:
    found = chosen(objective, None, "last", BOTH, validated=True)
    assert found == Objective(objective, direction)
    assert chosen(objective, "max", "last", BOTH, True) == Objective(objective, "max")


@pytest.mark.parametrize(
    ("text", "direction"),
    [
        ("'mae'", "min"), ("RootMeanSquaredError(name='x')", "min"), ("'false_positives'", "min"), ("'hinge'", "min"),
        ("'r2_score'", "max"), ("'f1_score'", "max"), ("'precision'", "max"), ("'recall'", "max"), ("'auc'", "max"),
        ("'top_3_accuracy'", "max"), ("'cosine_similarity'", "max"), ("'kl_divergence'", "min"),
    ],
)  # fmt: skip
def test_directions_of_metrics(text: str, direction: str) -> None:
    found = configurations(text)
    (name,) = set(found[1]) - {"loss"}
    assert chosen(name, None, "last", found, False) == Objective(name, direction)


def test_without_an_objective() -> None:
    assert chosen(None, None, "last", BOTH, True) is None
    assert chosen(None, None, "best", BOTH, True) == Objective("val_loss", "min")
    assert chosen(None, None, "best", BOTH, False) == Objective("loss", "min")
    assert RunOptions().optimised(True) == default(True) == Objective("val_loss")
    assert RunOptions(objective="auc", direction="max").optimised(True) == Objective("auc", "max")


LISTED = "All configurations have: accuracy, area, loss"


@pytest.mark.parametrize(
    ("options", "validated", "message", "hint"),
    [
        ({"objective": "val_mae"}, True, "'val_mae' cannot be used: configuration 1 does not compile 'mae'.",
         f"{LISTED}, val_accuracy, val_area, val_loss."),
        ({"objective": "nonsense"}, False, "configurations 1, 2 do not compile 'nonsense'", f"{LISTED}."),
        ({"objective": ""}, False, "do not compile ''", LISTED),
        ({"objective": "val_"}, True, "do not compile ''", LISTED),
        ({"objective": "val_area"}, False, "the run has no validation table", f"{LISTED}."),
        ({"objective": "train_loss"}, True, "the training table is not evaluated; 'loss' is measured while", LISTED),
        ({"direction": "min"}, True, "option 'direction' needs option 'objective'", "smallest loss"),
        ({"objective": "Accuracy"}, True, "do not compile 'Accuracy'", LISTED),
    ],
)  # fmt: skip
def test_what_is_refused(options: dict[str, str], validated: bool, message: str, hint: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        chosen(options.get("objective"), options.get("direction"), "last", BOTH, validated)
    assert message in caught.value.message
    assert hint in (caught.value.hint or "")


def test_a_configuration_that_is_added_needs_the_objective() -> None:
    require_reported("val_area", BOTH[1])
    require_reported(None, BOTH[1])
    with pytest.raises(InvalidArgument, match="does not compile 'area', which the run's objective val_area needs"):
        require_reported("val_area", configurations("'mae'")[1])


def test_many_that_lack_the_metric() -> None:
    many = configurations(*["'mae'"] * 30, "'accuracy'")
    with pytest.raises(
        InvalidArgument, match=r"configurations 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, … do not compile 'accuracy'"
    ):
        chosen("accuracy", None, "last", many, False)


@pytest.mark.parametrize("metrics", [("'lift'",), ("AUC(name='m')", "MeanSquaredError(name='m')")])
def test_a_metric_whose_direction_is_not_known(metrics: tuple[str, ...]) -> None:
    found = configurations(*metrics)
    (name,) = set(found[1]) - {"loss"}
    with pytest.raises(InvalidArgument, match="needs option 'direction'"):
        chosen(f"val_{name}", None, "last", found, True)
    assert chosen(name, "min", "last", found, False) == Objective(name, "min")


def test_the_parts_of_a_name() -> None:
    assert (Objective("val_auc").dataset, Objective("val_auc").metric) == ("validation", "auc")
    assert (Objective("train_auc").dataset, Objective("train_auc").metric) == ("training", "auc")
    assert (Objective("valid").dataset, Objective("valid").metric) == ("", "valid")


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0.5, 0.5), (None, None), (float("nan"), None), (float("inf"), None), (-1e200, None), (1e-200, 0.0)],
)
def test_values_that_the_log_takes(value: float | None, expected: float | None) -> None:
    assert Objective().recordable(value) == expected


def test_the_score_of_an_epoch() -> None:
    """The names are those of the history; of a metric with several values the mean counts."""
    history = History(Objective("val_f1", "max"))
    history.trained(1, 1, 1, 10, 0.5, {"f1": [0.1, 0.2]})
    history.evaluated(1, 1, "validation", 0, Figures.of(10, 0.4, {"f1": [0.5, 1.0]}))
    assert history.score(1, 1) is None, "not before the epoch is complete"
    history.complete(1, 1)
    assert history.score(1, 1) == -0.75
    history.evaluated(1, 2, "validation", 0, Figures.of(10, 0.4, {"f1": [float("nan"), 1.0]}))
    history.complete(1, 2)
    assert history.score(1, 2) is None
