"""Metrics over several parts: every metric of the vocabulary against Keras' own on all rows at once."""

from __future__ import annotations

import base64
import importlib.util
import math
import zlib
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import pytest
from keras.src.utils.naming import reset_uids

from cerebro_db.core.parameters.vocabulary import METRICS
from cerebro_db.core.protocol import MergeMetrics, MetricStates, StateRef

from . import configurations as c
from .test_trainer import CATEGORICAL, failure
from .trainer_client import OrderFailed, Trainer, full

ROWS, BORDERS = 426, (0, 96, 106, 426)  # the parts are as different as can be: the rows are sorted
SEED = 5


def entry(class_name: str, **config: Any) -> c.Json:
    return {"class_name": class_name, "config": config}


SPARSE = {"sparse_y_true": False, "sparse_y_pred": False}
OF_CLASSES = [
    entry("AUC"),
    entry("AUC", multi_label=True, num_labels=3, name="auc_by_label"),
    entry("CategoricalAccuracy"),
    entry("CategoricalCrossentropy"),
    entry("CategoricalHinge"),
    entry("ConcordanceCorrelation"),
    entry("CosineSimilarity"),
    entry("F1Score"),
    entry("F1Score", average="macro", name="macro"),
    entry("FBetaScore", beta=2.0, average="weighted"),
    entry("IoU", num_classes=3, target_class_ids=[0, 2], **SPARSE),
    entry("MeanIoU", num_classes=3, **SPARSE),
    entry("KLDivergence"),
    entry("OneHotIoU", num_classes=3, target_class_ids=[1]),
    entry("OneHotMeanIoU", num_classes=3),
    entry("PearsonCorrelation"),
    entry("Poisson"),
    entry("Precision", class_id=2),
    entry("Precision", thresholds=[0.3, 0.5], name="twice"),
    entry("PrecisionAtRecall", recall=0.5),
    entry("Recall", top_k=1),
    entry("TopKCategoricalAccuracy", k=2),
]
OF_NUMBERED_CLASSES = [
    entry("SparseCategoricalAccuracy"),
    entry("SparseCategoricalCrossentropy"),
    entry("SparseTopKCategoricalAccuracy", k=2),
]
OF_TWO_CLASSES = [
    entry("Accuracy"),
    entry("BinaryAccuracy"),
    entry("BinaryCrossentropy"),
    entry("BinaryIoU"),
    entry("FalseNegatives"),
    entry("FalsePositives", thresholds=[0.2, 0.5]),
    entry("Hinge"),
    entry("Recall"),
    entry("RecallAtPrecision", precision=0.1),
    entry("SensitivityAtSpecificity", specificity=0.5),
    entry("SpecificityAtSensitivity", sensitivity=0.5),
    entry("SquaredHinge"),
    entry("TrueNegatives"),
    entry("TruePositives"),
]
OF_NUMBERS = [
    entry("LogCoshError"),
    entry("MeanAbsoluteError"),
    entry("MeanAbsolutePercentageError"),
    entry("MeanSquaredError"),
    entry("MeanSquaredLogarithmicError"),
    entry("R2Score"),
    entry("RootMeanSquaredError"),
]


def model(units: int, activation: str) -> c.Json:
    return c.sequential(c.input_layer([4]), c.layer("Dense", "out", units=units, activation=activation))


def case(metrics: list[c.Json], loss: str, units: int, activation: str, shape: list[int], kind: str) -> Any:
    # With a rate of 0 training leaves the model as it is: its metrics while training are those afterwards.
    configuration = c.configuration(
        model(units, activation), loss, "SGD", learning_rate=0.0, metrics=metrics, shuffle=False
    )
    return configuration, {"inputs": [c.column("facts", [4])], "outputs": [c.target("y", shape, kind, "float32")]}


CASES = {
    "classes": case(OF_CLASSES, CATEGORICAL, 3, "softmax", [3], "class"),
    "numbered classes": case(OF_NUMBERED_CLASSES, "sparse_categorical_crossentropy", 3, "softmax", [3], "class"),
    "two classes": case(OF_TWO_CLASSES, "binary_crossentropy", 1, "sigmoid", [1], "encoded"),
    "numbers": case(OF_NUMBERS, "mse", 1, "linear", [], "real"),
}


def test_every_metric_is_tried() -> None:
    tried = {one["class_name"] for one in OF_CLASSES + OF_NUMBERED_CLASSES + OF_TWO_CLASSES + OF_NUMBERS}
    assert tried == set(METRICS.entries)


def rows_of(name: str) -> dict[str, np.ndarray]:
    random = np.random.default_rng(3)
    facts = random.normal(size=(ROWS, 4)).astype("float32")
    label = np.sort(np.where(np.arange(ROWS) < ROWS - 6, np.arange(ROWS) % 2, 2))  # the last class is rare
    if name == "two classes":
        return {"facts": facts, "y": (np.arange(ROWS) >= ROWS - 40).astype("float32")[:, None]}
    if name == "numbers":
        return {"facts": facts, "y": np.sort(facts @ [1.0, -2.0, 0.5, 0.0]).astype("float32") + 3}
    return {"facts": facts, "y": c.one_hot(label, 3).astype("float32")}


ENGINES = ["tensorflow", "jax", *(["torch"] if importlib.util.find_spec("torch") else [])]


@pytest.fixture(scope="module", params=ENGINES)
def trainer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    trainer = Trainer(tmp_path_factory.mktemp(request.param), engine=request.param)
    for name, (_, layout) in CASES.items():
        columns = rows_of(name)
        for part, (start, end) in enumerate([*zip(BORDERS, BORDERS[1:]), (0, ROWS)]):
            trainer.data(f"{name}.{part}", layout, **{key: column[start:end] for key, column in columns.items()})
    yield trainer
    trainer.close()


PARTS, WHOLE = range(len(BORDERS) - 1), len(BORDERS) - 1


def by_keras(name: str, predicted: np.ndarray) -> dict[str, Any]:
    """Keras' own metrics on all rows at once."""
    target = rows_of(name)["y"]
    if name == "numbered classes":
        target = target.argmax(axis=1)
    target = target.reshape(predicted.shape if target.ndim == 1 and name == "numbers" else target.shape)
    found = {}
    reset_uids()
    for one in CASES[name][0]["compile"]["metrics"]:
        metric = keras.metrics.get("binary_accuracy" if one == "accuracy" else one)
        metric = metric if isinstance(metric, keras.metrics.Metric) else keras.metrics.MeanMetricWrapper(metric)
        metric.update_state(target, predicted)
        value = np.asarray(metric.result()).astype("float64")
        config = one["config"] if isinstance(one, dict) else {}
        found[one if isinstance(one, str) else config.get("name", metric.name)] = value.tolist()
    return found


def require_close(mine: dict[str, Any], expected: dict[str, Any]) -> None:
    assert list(mine) == list(expected)
    for name, value in expected.items():
        assert mine[name] == pytest.approx(value, rel=2e-4, abs=1e-6, nan_ok=True), name


@pytest.mark.parametrize("name", CASES)
def test_every_metric_over_several_parts_is_that_of_the_whole(trainer: Trainer, name: str) -> None:
    configuration, _ = CASES[name]
    state = full(trainer.train(configuration, f"{name}.{WHOLE}", seed=SEED, out=str(trainer.folder / "state")))
    trainer.predict(configuration, f"{name}.{WHOLE}", state, str(trainer.folder / "predicted"))
    expected = by_keras(name, np.fromfile(trainer.folder / "predicted.0", "float32").reshape(ROWS, -1))

    parts = [trainer.evaluate(configuration, f"{name}.{part}", state) for part in PARTS]
    merged = trainer(MergeMetrics(configuration, f"{name}.0", [part.metric_states for part in parts]))
    whole = trainer.evaluate(configuration, f"{name}.{WHOLE}", state)
    require_close(merged.metrics, expected)
    require_close(whole.metrics, expected)
    assert sum(part.loss * part.rows for part in parts) / ROWS == pytest.approx(whole.loss, rel=1e-5)
    # The parts are such that means of their metrics are wrong wherever they can be.
    no_means = {"macro", "mean_io_u", "r2_score", "root_mean_squared_error", *(["recall"] if name != "classes" else [])}
    for metric in expected.keys() & no_means:
        mean = sum(part.metrics[metric] * part.rows for part in parts) / ROWS
        assert mean != pytest.approx(expected[metric], rel=1e-3), metric

    counted, figures = None, []
    for part in PARTS:
        visit = trainer.train_fused(
            f"{name}.{part}", replace(trainer.member(configuration, state, seed=SEED), metric_states=counted)
        )[0]
        counted, state = visit.result.metric_states, full(visit)
        figures.append(visit)
    require_close(figures[-1].metrics, expected)
    require_close(figures[0].metrics, parts[0].metrics)
    # The loss of a visit stays its own.
    assert [visit.loss for visit in figures] == pytest.approx([part.loss for part in parts], rel=1e-5)


def test_fused_models_have_metrics_of_their_own(tmp_path_factory: pytest.TempPathFactory) -> None:
    trainer = Trainer(tmp_path_factory.mktemp("fused"), engine="jax")
    configuration, layout = CASES["two classes"]
    for part, (start, end) in enumerate(zip(BORDERS, BORDERS[1:])):
        trainer.data(f"{part}", layout, **{key: column[start:end] for key, column in rows_of("two classes").items()})
    members = [trainer.member(configuration, seed=seed, out=f"{seed}") for seed in (1, 2, 3)]
    members = [replace(member, out=str(trainer.folder / f"out.{place}")) for place, member in enumerate(members)]
    alone = []
    for member in members:
        counted = None
        for part in PARTS:  # the rate is 0: the state stays that of the seed
            (visit,) = trainer.train_fused(f"{part}", replace(member, metric_states=counted))
            counted = visit.result.metric_states
        alone.append(visit.metrics)
    fused = [None] * len(members)
    for part in PARTS:
        visits = trainer.train_fused(
            f"{part}", *(replace(member, metric_states=counted) for member, counted in zip(members, fused))
        )
        fused = [visit.result.metric_states for visit in visits]
    for visit, expected in zip(visits, alone, strict=True):
        require_close(visit.metrics, expected)
    assert alone[0] != alone[1]
    trainer.close()


def test_several_outputs(tmp_path_factory: pytest.TempPathFactory) -> None:
    trainer, columns = Trainer(tmp_path_factory.mktemp("outputs")), c.made_up(200, 1)
    columns["price"] = np.sort(columns["price"])[:, None]
    for part, (start, end) in enumerate(((0, 30), (30, 200), (0, 200))):
        trainer.data(f"{part}", c.TWO_BY_TWO, **{name: column[start:end] for name, column in columns.items()})
    configuration = c.configuration(
        c.two_by_two(), ["mse", CATEGORICAL], metrics=[[entry("R2Score")], [entry("F1Score"), "acc"]]
    )
    state = StateRef.seed()
    parts = [trainer.evaluate(configuration, f"{part}", state) for part in (0, 1)]
    merged = trainer(MergeMetrics(configuration, "1", [part.metric_states for part in parts])).metrics
    whole = trainer.evaluate(configuration, "2", state).metrics
    assert list(merged) == ["price_r2_score", "mood_f1_score", "mood_acc", "price_loss", "mood_loss"]
    for name, value in whole.items():
        assert merged[name] == pytest.approx(value, rel=1e-4)
    trainer.close()


def test_states_of_another_model_are_refused(tmp_path_factory: pytest.TempPathFactory) -> None:
    trainer = Trainer(tmp_path_factory.mktemp("wrong"))
    configuration, layout = CASES["two classes"]
    trainer.data("0", layout, **rows_of("two classes"))
    mine = trainer.evaluate(configuration, "0", StateRef.seed()).metric_states

    def text(numbers: int, cut: int | None = None) -> str:
        return base64.b64encode(zlib.compress(bytes(8 * numbers))[:cut]).decode()

    others = [None, "", "?", text(3), text(4000), text(1 << 24), text(4000, -9), base64.b64encode(b"x").decode()]
    for wrong in [
        *(replace(mine, others=one) for one in others),
        replace(mine, means={}),
        replace(mine, means={**mine.means, "loss": [1.0]}),
        replace(mine, means={name: [] for name in mine.means}),
    ]:
        for states in ([wrong], [mine, wrong]):
            assert "metric states" in failure("CorruptState", trainer, MergeMetrics(configuration, "0", states))
        member = replace(trainer.member(configuration), metric_states=wrong)
        with pytest.raises(OrderFailed, match="metric states"):
            trainer.train_fused("0", member)
    assert not math.isnan(trainer(MergeMetrics(configuration, "0", [mine, mine])).metrics["recall"])
    assert isinstance(mine, MetricStates)
    trainer.close()


def test_metrics_that_count_in_too_many_numbers_are_refused(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Those that only the model's outputs make large; core/parameters refuses the others."""
    trainer = Trainer(tmp_path_factory.mktemp("large"))
    for number, (classes, metrics) in enumerate(
        (
            (900, [entry("AUC", multi_label=True, name="by_label")]),
            (30_000, [entry("F1Score", name="f") for _ in range(3)]),
            (3, [entry("AUC", num_thresholds=60_000, name=f"auc_{one}") for one in range(2)]),
        )
    ):
        layout = {"inputs": [c.column("facts", [4])], "outputs": [c.target("y", [classes], "encoded", "float32")]}
        trainer.data(f"{number}", layout, facts=np.zeros((4, 4), "float32"), y=np.zeros((4, classes), "float32"))
        configuration = c.configuration(model(classes, "softmax"), CATEGORICAL, metrics=metrics)
        message = failure("ConfigurationFailed", trainer.train, configuration, f"{number}")
        assert metrics[0]["config"]["name"][:3] in message and "262,144" in message
    trainer.close()
