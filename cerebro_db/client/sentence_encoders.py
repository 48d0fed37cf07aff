"""Sentence encoders of the BERT family as Keras models, and the tokens that they read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..core.word_pieces import PieceNumbers
from .errors import ClientError

NEEDED = ("config.json", "model.safetensors", "vocab.txt")
ACTIVATIONS = ("gelu", "relu")


class WordPieces(PieceNumbers):
    """Makes the numbers of tokens of a text, as BERT's tokenizer for texts without capitals does.

    ``folder``: that of the model, with ``vocab.txt``. ``length``: of each list; 0 fills up, what is beyond is left out.
    In ``prepare``, as in ``prepare={"body": WordPieces(folder, 16)}``, the database makes the numbers of a text column.
    """

    def __init__(self, folder: str | Path, length: int) -> None:
        self.vocabulary = _file(Path(folder), "vocab.txt").read_text("utf-8").splitlines()
        super().__init__(self.vocabulary, length)

    def prepared(self) -> dict[str, Any]:
        """What the argument ``prepare`` says of a column."""
        return {"as": "words", "length": self.length, "vocabulary": "\n".join(self.vocabulary)}


def sentence_encoder(folder: str | Path, length: int) -> Any:
    """A Keras model with the weights of the folder: ``length`` numbers of tokens become a vector of length 1.

    ``folder``: that of a model of sentence-transformers with the architecture BERT and the mean of the tokens, such as
    all-MiniLM-L6-v2, with ``config.json`` and ``model.safetensors``. Its layers are not frozen.
    """
    config = json.loads(_file(Path(folder), "config.json").read_text("utf-8"))
    if config.get("model_type") != "bert" or config.get("hidden_act") not in ACTIVATIONS:
        raise ClientError(
            f"The model in {folder} is of the type {config.get('model_type')!r} with {config.get('hidden_act')!r}.",
            f"The type bert with {' or '.join(ACTIVATIONS)} is known.",
        )
    if not 2 <= length <= config["max_position_embeddings"]:
        raise ClientError(f"length must be from 2 to {config['max_position_embeddings']}, not {length}.")
    return _Encoder(config, _tensors(_file(Path(folder), "model.safetensors"))).model(length)


def _file(folder: Path, name: str) -> Path:
    if not (folder / name).is_file():
        raise ClientError(f"There is no file {folder / name}.", f"The folder of a model has {', '.join(NEEDED)}.")
    return folder / name


def _tensors(path: Path) -> dict[str, Any]:
    from .models.architectures import tensors_of

    return {name.removeprefix("bert."): array for name, array in tensors_of(path)}


class _Encoder:
    """Makes the layers one after the other, and knows what weights each will get."""

    def __init__(self, config: dict[str, Any], tensors: dict[str, Any]) -> None:
        self.config, self.tensors = config, tensors
        self.given: dict[str, list[Any]] = {}

    def model(self, length: int) -> Any:
        import keras
        import numpy as np
        from keras import layers

        size = self.config["hidden_size"]
        words = self.tensors["embeddings.word_embeddings.weight"]
        places = self.tensors["embeddings.position_embeddings.weight"][:length]
        tokens = keras.Input((length,), name="tokens")
        # The token 0 fills up. As numbers and not as Keras' masks, because features are kept of models without masks.
        rows = -(-len(words) // 16) * 16  # of 4 bytes: then the weights behind begin where they can be mapped
        real = layers.Embedding(rows, 1, name="real")(tokens)
        self.given["real"] = [np.arange(rows, dtype="float32")[:, None].clip(0, 1)]
        attended = layers.Reshape((1, length), name="attended")(real)
        x = layers.Embedding(len(words), size, name="words")(tokens)
        self.given["words"] = [words]
        # Adds a vector for each place, as the bias of a layer that multiplies by 1.
        x = layers.Reshape((1, length * size), name="row")(x)
        x = layers.DepthwiseConv1D(1, name="places")(x)
        x = layers.Reshape((length, size), name="placed")(x)
        places = places + self.tensors["embeddings.token_type_embeddings.weight"][0]
        self.given["places"] = [np.ones((1, length * size, 1)), places.reshape(-1)]
        x = self.normalized(x, "embeddings.LayerNorm")
        for number in range(self.config["num_hidden_layers"]):
            name = f"encoder.layer.{number}"
            x = layers.Add()([x, self.attention(x, attended, f"{name}.attention")])
            x = self.normalized(x, f"{name}.attention.output.LayerNorm")
            wide = self.dense(x, f"{name}.intermediate.dense", self.config["hidden_act"])
            x = layers.Add()([x, self.dense(wide, f"{name}.output.dense")])
            x = self.normalized(x, f"{name}.output.LayerNorm")
        # With zeros for what fills up, it is the mean of the tokens but for its length.
        x = layers.GlobalAveragePooling1D(name="mean")(layers.Multiply(name="of_tokens")([x, real]))
        model = keras.Model(tokens, layers.UnitNormalization(name="direction")(x), name="sentence_encoder")
        for name, arrays in self.given.items():
            model.get_layer(name).set_weights(arrays)
        return model

    def normalized(self, x: Any, name: str) -> Any:
        from keras import layers

        self.given[_layer(name)] = [self.tensors[f"{name}.weight"], self.tensors[f"{name}.bias"]]
        return layers.LayerNormalization(epsilon=self.config["layer_norm_eps"], name=_layer(name))(x)

    def dense(self, x: Any, name: str, activation: str | None = None) -> Any:
        from keras import layers

        kernel, bias = self.linear(name)
        self.given[_layer(name)] = [kernel, bias]
        return layers.Dense(len(bias), activation, name=_layer(name))(x)

    def attention(self, x: Any, attended: Any, name: str) -> Any:
        from keras import layers

        size, heads = self.config["hidden_size"], self.config["num_attention_heads"]
        given = self.given[_layer(name)] = []
        for part in ("query", "key", "value"):
            kernel, bias = self.linear(f"{name}.self.{part}")
            given += [kernel.reshape(size, heads, -1), bias.reshape(heads, -1)]
        kernel, bias = self.linear(f"{name}.output.dense")
        given += [kernel.reshape(heads, -1, size), bias]
        return layers.MultiHeadAttention(heads, size // heads, name=_layer(name))(x, x, attention_mask=attended)

    def linear(self, name: str) -> tuple[Any, Any]:
        """PyTorch's matrix is the transposed one of Keras."""
        return self.tensors[f"{name}.weight"].T, self.tensors[f"{name}.bias"]


def _layer(name: str) -> str:
    return name.replace(".", "_")
