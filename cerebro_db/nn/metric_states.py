"""The metrics of a Keras model as states: what they have counted, sums of it over several parts, and their values.

Every metric of the vocabulary adds to its variables, batch by batch.  So the variables of several parts add up to those
of the whole, and ``result`` of the sums is the metric of the whole (tests/nn/test_metric_states.py tries each of them).
"""

from __future__ import annotations

import base64
import binascii
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from cerebro_db.core.errors import ConfigurationFailed, CorruptState
from cerebro_db.core.models import metrics
from cerebro_db.core.protocol import MetricStates


def by_name(model: Any) -> dict[str, Any]:
    """The metrics of a model under the names that Keras gives them in its results."""
    from keras.src.trainers.compile_utils import CompileMetrics  # has no public name

    single = [
        metric
        for one in model.metrics
        for metric in (one.metrics if isinstance(one, CompileMetrics) else [one])
        if metric is not None
    ]
    # Keras builds the names while it collects the results. So each metric tells itself as its result, for a moment.
    try:
        for metric in single:
            object.__setattr__(metric, "result", lambda metric=metric: metric)
        found: dict[str, Any] = model.get_metrics_result()
    finally:
        for metric in single:
            vars(metric).pop("result", None)
    return found


def is_mean(metric: Any) -> bool:
    import keras

    return isinstance(metric, keras.metrics.Mean) and type(metric).result is keras.metrics.Mean.result


def read(metrics_by_name: Mapping[str, Any], values_of: Callable[[list[Any]], list[np.ndarray]]) -> MetricStates:
    """What the metrics have counted since they were last reset.  ``values_of``: reads variables."""
    means = {name: metric for name, metric in metrics_by_name.items() if is_mean(metric)}
    others = [
        variable for name, metric in metrics_by_name.items() if name not in means for variable in metric.variables
    ]
    found = values_of([one for metric in means.values() for one in (metric.total, metric.count)] + others)
    totals, counts = found[: 2 * len(means) : 2], found[1 : 2 * len(means) : 2]
    rest = [np.asarray(value, "float64").ravel() for value in found[2 * len(means) :]]
    return MetricStates(
        {name: [float(total), float(count)] for name, total, count in zip(means, totals, counts)},
        _packed(np.concatenate(rest)) if rest else None,
    )


def merged(parts: Sequence[MetricStates]) -> MetricStates:
    """The states over all parts."""
    arrays = [_unpacked(part.others) for part in parts if part.others is not None]
    if len(arrays) not in (0, len(parts)) or len({array.size for array in arrays}) > 1:
        raise _wrong()
    if len({frozenset(part.means) for part in parts}) > 1 or any(
        len(counted) != 2 for part in parts for counted in part.means.values()
    ):
        raise _wrong()
    return MetricStates(
        metrics.merged_means(part.means for part in parts),
        _packed(np.sum(arrays, axis=0)) if arrays else None,
    )


def values(metrics_by_name: Mapping[str, Any], states: MetricStates) -> dict[str, Any]:
    """The metrics that follow from the states, without the loss: numbers, or lists with a number per class."""
    from keras import ops

    counted = np.zeros(0) if states.others is None else _unpacked(states.others)
    found: dict[str, Any] = {}
    start = 0
    for name, metric in metrics_by_name.items():
        if is_mean(metric):
            if len(states.means.get(name, ())) != 2:
                raise _wrong()
            found[name] = metrics.mean(*states.means[name])
            continue
        for variable in metric.variables:
            end = start + math.prod(variable.shape)
            if end > counted.size:
                raise _wrong()
            variable.assign(counted[start:end].reshape(variable.shape).astype(str(variable.dtype)))
            start = end
        value = ops.convert_to_numpy(metric.result()).astype("float64")
        found[name] = value.item() if value.ndim == 0 else value.tolist()
    if start != counted.size:
        raise _wrong()
    found.pop(metrics.LOSS, None)
    return found


def weigh_output_losses(model: Any, rows: Callable[[], Any]) -> None:
    """Have the losses of several outputs weighed by rows, as their sum is, also where a batch has no fixed size.

    There Keras counts each batch once, however few rows it has.  ``rows``: of the current batch.
    """

    def weigh(metric: Any) -> None:
        update = metric.update_state
        metric.update_state = lambda value, sample_weight=None: update(value, sample_weight=rows())

    for metric in model._compile_loss.metrics:
        weigh(metric)


def require_small(model: Any) -> None:
    """Refuse metrics that count in more numbers than can travel with every visit."""
    sizes = {
        name: sum(math.prod(variable.shape) for variable in metric.variables) for name, metric in by_name(model).items()
    }
    if sum(sizes.values()) > metrics.MOST_NUMBERS:
        raise _too_large(max(sizes, key=lambda name: sizes[name]), sum(sizes.values()))


def require_small_auc(model: Any) -> None:
    """The same for a metric that is large only because the model has many outputs: before it is allocated."""
    import keras

    compiled = model._compile_metrics
    if compiled is None:
        return
    labels = max((tensor.shape[-1] or 1 for tensor in model.outputs if len(tensor.shape) > 1), default=1)
    for metric in keras.tree.flatten([compiled._user_metrics, compiled._user_weighted_metrics]):
        if isinstance(metric, keras.metrics.AUC) and metric.multi_label:
            size = 4 * metric.num_thresholds * (metric.num_labels or labels)
            if size > metrics.MOST_NUMBERS:
                raise _too_large(metric.name, size)


def _too_large(name: str, size: int) -> ConfigurationFailed:
    return ConfigurationFailed(
        f"the metric {name} counts in {size:,} numbers, and all metrics of a configuration may count in"
        f" {metrics.MOST_NUMBERS:,}",
        hint="Give it fewer classes, labels or thresholds.",
    )


def _packed(array: Any) -> str:
    """Most counts are whole numbers, and many are zero."""
    return base64.b64encode(zlib.compress(array.astype("<f8").tobytes(), 1)).decode()


def _unpacked(text: str) -> Any:
    most = 8 * metrics.MOST_NUMBERS
    try:
        unzip = zlib.decompressobj()
        found = unzip.decompress(base64.b64decode(text, validate=True), most)
    except (ValueError, binascii.Error, zlib.error):
        raise _wrong() from None
    if not unzip.eof or len(found) % 8:
        raise _wrong()
    return np.frombuffer(found, "<f8")


def _wrong() -> CorruptState:
    return CorruptState(
        "the metric states on record are not those of this model",
        hint="Rows of cerebro.hop or cerebro.evaluation were changed or added by hand.",
    )
