"""The layers between the inputs and the outputs of a model that is built for a packed table."""

from __future__ import annotations

from typing import Any

from .graph import Graph
from .related import neighbourhoods

Json = dict[str, Any]

FEW_PLACES = 256  # of an image; more are averaged


def mlp(graph: Graph, tensor: str, chosen: Json) -> str:
    for _ in range(chosen["layers"]):
        tensor = graph.layer("Dense", tensor, units=chosen["units"], activation="relu")
        tensor = dropped(graph, tensor, chosen)
    return tensor


def resnet(graph: Graph, tensor: str, chosen: Json) -> str:
    """As in Gorishniy et al., Revisiting Deep Learning Models for Tabular Data (2021), with layer normalization."""
    tensor = graph.layer("Dense", tensor, units=chosen["units"])
    for _ in range(chosen["blocks"]):
        tensor = _beside(graph, tensor, graph.layer("LayerNormalization", tensor), "relu", chosen)
    return graph.layer("ReLU", graph.layer("LayerNormalization", tensor))


def _beside(graph: Graph, tensor: str, inner: str, activation: str, chosen: Json) -> str:
    """A wide layer and a layer of the tensor's own width, added to the tensor."""
    inner = graph.layer("Dense", inner, units=chosen["hidden"], activation=activation)
    inner = dropped(graph, inner, chosen)
    inner = graph.layer("Dense", inner, units=chosen["units"])
    return graph.layer("Add", [tensor, dropped(graph, inner, chosen)])


def transformer(graph: Graph, tensor: str, chosen: Json, there: str | None = None, every: int = 0) -> str:
    """As the FT-Transformer of Gorishniy et al. (2021), with the mean of the tokens at the end.

    ``every``: the mean of so many tokens each, instead of all.
    ``there``: 1 for each token that is one, of the shape (tokens, 1); None: all are.
    """
    keys = {} if there is None else {"attention_mask": neighbourhoods.as_keys(graph, there)}
    for _ in range(chosen["blocks"]):
        inner = graph.layer("LayerNormalization", tensor)
        inner = graph.layer(
            "MultiHeadAttention", [inner, inner], apart=True, called_with=keys, num_heads=chosen["heads"],
            key_dim=chosen["key"],
        )  # fmt: skip
        tensor = graph.layer("Add", [tensor, dropped(graph, inner, chosen)])
        tensor = _beside(graph, tensor, graph.layer("LayerNormalization", tensor), "gelu", chosen)
    tensor = graph.layer("LayerNormalization", tensor)
    if there is not None:
        return neighbourhoods.masked_mean(graph, there, tensor, chosen["units"])
    if every:
        return _means(graph, tensor, every)
    return graph.layer("GlobalAveragePooling1D", tensor)


def lstm(graph: Graph, tensor: str, steps: int, chosen: Json, there: str | None = None, every: int = 0) -> str:
    """``there``: which steps there are; others are passed by.

    ``every``: of a target for each so many steps, which depends on the steps before and after it.
    """
    if every:
        for _ in range(chosen["layers"]):
            tensor = dropped(graph, both_ways(graph, tensor, chosen["units"]), chosen)
        return _means(graph, tensor, every)
    # cuDNN takes no series that begin with steps to pass by.
    more: Json = {} if there is None else {"called_with": {"mask": there}, "use_cudnn": False}
    for place in range(chosen["layers"]):
        last = place == chosen["layers"] - 1
        tensor = graph.layer("LSTM", tensor, units=chosen["units"], return_sequences=not last, **more)
        tensor = dropped(graph, tensor, chosen)
    return tensor


def cnn_lstm(graph: Graph, tensor: str, parts: int, rows: int, chosen: Json, *, apart: bool) -> str:
    """Convolutions within each part of a window, and an LSTM in both directions over the parts.

    With its defaults, the network of CHAP (Zou et al., 2021).  ``apart``: a vector for each part, else one for all.
    """
    # A part is an image of its rows and channels. A kernel of length 1 keeps the parts apart.
    tensor = graph.layer("Reshape", tensor, target_shape=[parts, rows, -1, 1])
    for block in range(chosen["blocks"]):
        tensor = graph.layer(
            "Conv3D", tensor, filters=chosen["channels"] * 2 ** min(block, 3), strides=[1, 2, 1], padding="same",
            kernel_size=[1, chosen["kernel"], 1 if block else 3], activation="relu",
        )  # fmt: skip
    tensor = graph.layer("Reshape", tensor, target_shape=[parts, -1])
    tensor = dropped(graph, graph.layer("Dense", tensor, units=chosen["hidden"]), chosen)
    return both_ways(graph, tensor, chosen["units"], apart=apart)


def both_ways(graph: Graph, tensor: str, units: Any, *, apart: bool = True) -> str:
    """An LSTM from the first step to the last, beside one from the last to the first.

    ``apart``: values for each step, else those at the end of each.
    """
    config = {"name": graph.free("lstm"), "units": units, "return_sequences": apart}
    inner = {"module": "keras.layers", "class_name": "LSTM", "config": config, "registered_name": None}
    return graph.layer("Bidirectional", tensor, layer=inner, merge_mode="concat")


def _means(graph: Graph, tensor: str, every: int) -> str:
    return graph.layer("AveragePooling1D", tensor, pool_size=every) if every > 1 else tensor


def conv1d(graph: Graph, tensor: str, steps: int, chosen: Json, there: str | None = None, every: int = 0) -> str:
    """``every``: of a target for each so many steps, which stay apart."""
    for _ in range(chosen["blocks"]):
        tensor = graph.layer(
            "Conv1D", tensor, filters=chosen["filters"], kernel_size=chosen["kernel"], padding="same", activation="relu"
        )
        tensor = graph.layer("BatchNormalization", tensor)
        if steps >= 2 and not every:
            tensor, steps = graph.layer("MaxPooling1D", tensor, pool_size=2), steps // 2
        tensor = dropped(graph, tensor, chosen)
    if every:
        return _means(graph, tensor, every)
    return graph.joined([graph.layer(f"Global{what}Pooling1D", tensor) for what in ("Average", "Max")])


def cnn(graph: Graph, tensor: str, height: int, width: int, chosen: Json) -> str:
    for _ in range(chosen["blocks"]):
        tensor = graph.layer(
            "Conv2D", tensor, filters=chosen["filters"], kernel_size=chosen["kernel"], padding="same", activation="relu"
        )
        tensor = graph.layer("BatchNormalization", tensor)
        if min(height, width) >= 2:
            tensor, height, width = graph.layer("MaxPooling2D", tensor, pool_size=[2, 2]), height // 2, width // 2
        tensor = dropped(graph, tensor, chosen)
    return graph.layer("Flatten" if height * width <= FEW_PLACES else "GlobalAveragePooling2D", tensor)


def dropped(graph: Graph, tensor: str, chosen: Json) -> str:
    return graph.layer("Dropout", tensor, rate=chosen["dropout"]) if chosen["dropout"] else tensor
