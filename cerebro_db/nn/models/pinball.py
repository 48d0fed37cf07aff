"""The loss of quantiles, which Keras does not have."""

from __future__ import annotations

from typing import Any

from cerebro_db.core.architecture.building import PINBALL


def get(loss: Any) -> Any:
    """The loss of a name or configuration."""
    import keras

    if isinstance(loss, dict) and loss.get("class_name") == PINBALL:
        return of(**loss["config"])
    return keras.losses.get(loss)


def of(quantiles: list[float], **config: Any) -> Any:
    """Twice the mean pinball loss of the quantiles: of the median, that is the absolute error."""
    import keras
    from keras import ops

    def pinball(true: Any, predicted: Any) -> Any:
        """``true`` has one number where ``predicted`` has all quantiles."""
        above = ops.cast(true, predicted.dtype) - predicted
        levels = ops.cast(ops.convert_to_tensor(quantiles), predicted.dtype)
        return ops.mean(2 * ops.maximum(levels * above, (levels - 1) * above), axis=-1)

    class Pinball(keras.losses.Loss):
        def call(self, y_true: Any, y_pred: Any) -> Any:
            return pinball(y_true, y_pred)

    return Pinball(name=config.pop("name", None) or "pinball", **config)
