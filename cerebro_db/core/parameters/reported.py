"""The names that Keras gives to losses and metrics, and whether small or large values of each are better."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from ..models.metrics import LOSS
from . import custom
from .vocabulary import METRICS, Entry

LARGER_IS_BETTER = {
    "Accuracy", "AUC", "BinaryAccuracy", "BinaryIoU", "CategoricalAccuracy", "ConcordanceCorrelation",
    "CosineSimilarity", "F1Score", "FBetaScore", "IoU", "MeanIoU", "OneHotIoU", "OneHotMeanIoU", "PearsonCorrelation",
    "Precision", "PrecisionAtRecall", "R2Score", "Recall", "RecallAtPrecision", "SensitivityAtSpecificity",
    "SparseCategoricalAccuracy", "SparseTopKCategoricalAccuracy", "SpecificityAtSensitivity",
    "TopKCategoricalAccuracy", "TrueNegatives", "TruePositives",
}  # fmt: skip
# Keras numbers the metrics of these classes: the second AUC of a model is auc_1.
NUMBERED = {
    "AUC", "BinaryIoU", "FalseNegatives", "FalsePositives", "IoU", "MeanIoU", "OneHotIoU", "OneHotMeanIoU",
    "Precision", "PrecisionAtRecall", "Recall", "RecallAtPrecision", "SensitivityAtSpecificity",
    "SpecificityAtSensitivity", "TrueNegatives", "TruePositives",
}  # fmt: skip
NAMED_OTHERWISE = {"FBetaScore": "fbeta_score", "LogCoshError": "logcosh"}  # than the function of the same meaning
PICKED_BY_SHAPE = ("acc", "accuracy")  # Keras makes no metric of the name itself

Named = tuple[str, "bool | None"]  # a metric's own name, and whether a larger value is better; None: not known


def reported(compiled: dict[str, Any], outputs: list[str]) -> dict[str, bool | None]:
    """Name -> whether a larger value is better, of canonical compile parameters; None: not known.

    ``outputs`` are the names of the model's outputs. With several of them each name begins with that of its output.
    """
    numbers: Counter[str] = Counter()
    metrics, weighted = (_named(compiled.get(key), numbers) for key in ("metrics", "weighted_metrics"))
    found: dict[str, bool | None] = {LOSS: False}
    seen: Counter[str] = Counter()

    def add(name: str, larger: bool | None) -> None:
        found[f"{name}_{seen[name]}" if seen[name] else name] = larger
        seen[name] += 1

    for prefix, (name, larger) in _by_output(metrics, outputs):
        add(prefix + name, larger)
    for prefix, (name, larger) in _by_output(weighted, outputs):
        add(f"{prefix}weighted_{name}" if seen[prefix + name] else prefix + name, larger)
    with_loss = _with_loss(compiled["loss"], outputs)
    if len(with_loss) > 1:
        found.update({f"{output}_{LOSS}": False for output in with_loss})
    return found


def _named(value: Any, numbers: Counter[str]) -> Any:
    """Each metric as a ``Named``, in the lists and dictionaries in which they are given."""
    if isinstance(value, list):
        return [_named(one, numbers) for one in value]
    if isinstance(value, dict) and "class_name" not in value:
        return {output: _named(one, numbers) for output, one in value.items()}
    if value is None:
        return None
    if isinstance(value, str) and (function := custom.split(value)) is not None:
        return function[0], None
    entry = METRICS.find(value if isinstance(value, str) else value["class_name"])
    assert entry is not None, value
    return _name(value, entry, numbers), entry.class_name in LARGER_IS_BETTER


def _name(value: Any, entry: Entry, numbers: Counter[str]) -> str:
    if isinstance(value, dict) and value["config"].get("name"):
        return str(value["config"]["name"])
    default = NAMED_OTHERWISE.get(entry.class_name, str(entry.short))
    if isinstance(value, str) and value in PICKED_BY_SHAPE:
        return value
    if entry.class_name in NUMBERED:
        place = numbers[default]
        numbers[default] += 1
        default = f"{default}_{place}" if place else default
    return value if isinstance(value, str) else default


def _by_output(metrics: Any, outputs: list[str]) -> Iterator[tuple[str, Named]]:
    """The prefix of the output, and the metric."""
    if len(outputs) < 2:
        yield from (("", one) for one in _flat(metrics))
        return
    if isinstance(metrics, list) and len(metrics) == len(outputs):
        metrics = dict(zip(outputs, metrics))
    if isinstance(metrics, dict):  # Keras refuses everything else when it builds the model
        for output in outputs:
            yield from ((f"{output}_", one) for one in _flat(metrics.get(output)))


def _flat(value: Any) -> list[Named]:
    if isinstance(value, list):
        return [inner for one in value for inner in _flat(one)]
    if isinstance(value, dict):
        return [inner for _, one in sorted(value.items()) for inner in _flat(one)]
    return [] if value is None else [value]


def _with_loss(loss: Any, outputs: list[str]) -> list[str]:
    """The outputs that have a loss."""
    if isinstance(loss, list) and len(loss) == len(outputs):
        loss = dict(zip(outputs, loss))
    if isinstance(loss, dict) and "class_name" not in loss:
        return [output for output in outputs if loss.get(output) is not None]
    return outputs
