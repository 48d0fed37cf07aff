"""The layer arguments of Keras 2 that Keras 3 has renamed or dropped."""

from __future__ import annotations

from typing import Any, Callable

RENAMED = {"LeakyReLU": {"alpha": "negative_slope"}, "ThresholdedReLU": {"theta": "threshold"}}


def _any_value(value: Any) -> bool:
    return True


def _unset(value: Any) -> bool:
    return not value


def _one_group(value: Any) -> bool:
    return value in (None, 1)


# The values that may be dropped, the classes (* for all), and the arguments.
_DROPPED_ROWS: tuple[tuple[Callable[[Any], bool], str, str], ...] = (
    (_any_value, "*", "batch_input_shape input_shape"),  # The InputLayer has the shape.
    (_any_value, "*", "implementation experimental_autocast input_dtype"),  # They do not change what a layer computes.
    (_unset, "*", "time_major dynamic num_constants"),
    (_any_value, "Embedding", "input_length"),
    (_unset, "Embedding", "activity_regularizer"),
    (_any_value, "BatchNormalization", "fused"),
    (_unset, "BatchNormalization", "virtual_batch_size adjustment"),
    (_unset, "MultiHeadAttention", "softmax_robust_masking"),
    (_any_value, "MultiHeadAttention", "query_shape key_shape value_shape"),
    (_any_value, "ActivityRegularization", "activity_regularizer"),  # It repeats l1 and l2.
    # In Keras 2, these classes inherit arguments of Conv that they do not use.
    (
        _any_value,
        "SeparableConv1D SeparableConv2D DepthwiseConv1D DepthwiseConv2D",
        "kernel_initializer kernel_regularizer kernel_constraint",
    ),
    (_any_value, "DepthwiseConv1D DepthwiseConv2D", "filters"),
    (
        _one_group,
        "SeparableConv1D SeparableConv2D DepthwiseConv1D DepthwiseConv2D Conv1DTranspose Conv2DTranspose"
        " Conv3DTranspose",
        "groups",
    ),
    (_unset, "SpatialDropout1D SpatialDropout2D SpatialDropout3D", "noise_shape"),
    (_any_value, "SpatialDropout1D SpatialDropout2D SpatialDropout3D", "trainable"),
    (_unset, "ConvLSTM1D ConvLSTM2D ConvLSTM3D", "unroll"),
)
_DROPPED = {
    (class_name, argument): may_be_dropped
    for may_be_dropped, classes, arguments in _DROPPED_ROWS
    for class_name in classes.split()
    for argument in arguments.split()
}


def dropped(class_name: str, argument: str) -> Callable[[Any], bool] | None:
    """For a dropped argument, the test whether Keras 3 computes the same without this value; None for the others."""
    return _DROPPED.get((class_name, argument), _DROPPED.get(("*", argument)))
