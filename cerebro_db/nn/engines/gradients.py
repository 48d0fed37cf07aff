"""Keras' own training step in two halves: the gradients of a batch, and the step that an optimizer makes with some."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any


@contextlib.contextmanager
def kept_gradients(optimizer: Any) -> Iterator[list[Any]]:
    """Within it, training steps end before the optimizer: the list gets the gradients, and no weight changes.

    A gradient is None if the loss does not depend on the weight.
    """
    found: list[Any] = []

    def apply(gradients: Sequence[Any], trainable_variables: Any = None) -> None:
        found.extend(gradients)

    def stateless_apply(variables: Any, gradients: Sequence[Any], trainable_variables: Any) -> tuple[Any, Any]:
        found.extend(gradients)
        return trainable_variables, variables

    # Keras calls the first with TensorFlow and PyTorch, and the second with JAX.
    optimizer.apply, optimizer.stateless_apply = apply, stateless_apply
    try:
        yield found
    finally:
        del optimizer.apply, optimizer.stateless_apply
