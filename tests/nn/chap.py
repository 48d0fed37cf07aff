"""The weights of CHAP's network, as PyTorch has them, in the order in which Keras has those of the kind cnn_lstm."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count, takewhile

import numpy as np


def in_the_order_of_keras(given: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """CHAP has one logit where a softmax of two classes has two: that of the first class becomes 0."""
    found, filters = [], 1
    for block in takewhile(lambda one: f"conv{one}.weight" in given, count()):
        weight = given[f"conv{block}.weight"]
        found += [weight.transpose(2, 3, 1, 0)[None], given[f"conv{block}.bias"]]
        filters = len(weight)
    hidden = len(given["fc.weight"])
    of_places = given["fc.weight"].reshape(hidden, filters, -1, 3)  # PyTorch flattens filter after filter
    found += [of_places.transpose(2, 3, 1, 0).reshape(-1, hidden), given["fc.bias"]]
    for end in ("", "_reverse"):
        found += [
            given[f"weight_ih{end}"].T,
            given[f"weight_hh{end}"].T,
            given[f"bias_ih{end}"] + given[f"bias_hh{end}"],
        ]
    of_second = given["last.weight"].T
    return [*found, np.hstack([0 * of_second, of_second]), np.array([0, given["last.bias"][0]], "f4")]
