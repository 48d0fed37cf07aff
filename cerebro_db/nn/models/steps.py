"""Targets with a value for each step of a row: which steps count, and losses and metrics of these steps alone.

A step without a label is packed as zeros instead of a one-hot vector, or as NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cerebro_db.core.errors import ConfigurationFailed


def of_layout(columns: list[dict[str, Any]]) -> int:
    """How many steps each of these targets has; 0: they have one value."""
    return max((int(column.get("steps", 0)) for column in columns), default=0)


def require_outputs(names: list[str], shapes: list[tuple[Any, ...]], steps: int) -> None:
    for name, shape in zip(names, shapes):
        if len(shape) != 2 or shape[0] != steps:
            raise ConfigurationFailed(
                f"the model's output {name} has the shape {list(shape)} per row, and the target has {steps} steps",
                hint=f"Give it the shape ({steps}, units): for instance a recurrent layer with return_sequences, and a"
                " Dense layer behind it.",
            )


def labelled(column: dict[str, Any], packed: Any) -> Any:
    """1 for each step with a label, else 0; of the shape (rows, steps)."""
    from keras import ops

    if column.get("kind") == "class":
        return ops.cast(ops.any(ops.not_equal(packed, 0), axis=-1), "float32")
    return ops.cast(ops.logical_not(ops.isnan(packed[..., 0])), "float32")


def known(column: dict[str, Any], packed: Any) -> Any:
    """The packed values, with 0 in place of NaN: what is multiplied by 0 must be a number."""
    from keras import ops

    if column.get("kind") == "class":
        return packed
    return ops.where(ops.isnan(packed), ops.zeros_like(packed), packed)


def over_labelled(weights: Any, there: Any) -> Any:
    """Weights with which Keras' mean over all steps is that over the labelled ones."""
    from keras import ops

    share = ops.mean(there)
    found = there / ops.where(share > 0, share, ops.ones_like(share))
    return found if weights is None else found * weights


def count_labelled(model: Any, there: Callable[[], Any]) -> None:
    """Have the metrics count each labelled step as a row.  ``there``: what ``labelled`` gives for the current batch."""
    from keras import ops

    compiled = model._compile_metrics
    for several in [*compiled._flat_metrics, *compiled._flat_weighted_metrics] if compiled is not None else ():
        for metric in several.metrics if several is not None else ():
            _count(metric, there)
    for metric in (model._loss_tracker, *model._compile_loss.metrics):
        _weigh(metric, lambda: ops.sum(there()))


def _weigh(metric: Any, weight: Callable[[], Any]) -> None:
    """Have the loss of a batch weighed by its labelled steps."""
    update = metric.update_state
    metric.update_state = lambda value, sample_weight=None: update(value, sample_weight=weight())


def _count(metric: Any, there: Callable[[], Any]) -> None:
    from keras import ops

    update = metric.update_state

    def of_steps(true: Any, predicted: Any, sample_weight: Any = None) -> Any:
        weights = ops.reshape(there(), (-1,))
        if sample_weight is not None:
            weights = weights * ops.cast(ops.reshape(sample_weight, (-1,)), weights.dtype)
        numbers = len(true.shape) < len(predicted.shape)  # of classes
        true = ops.reshape(true, (-1, 1 if numbers else true.shape[-1]))
        return update(true, ops.reshape(predicted, (-1, predicted.shape[-1])), sample_weight=weights)

    metric.update_state = of_steps
