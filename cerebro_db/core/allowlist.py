"""What an architecture may hold: the gate between a user's JSON and Keras.

Keras builds whatever class a JSON names, so nothing reaches it that is not in the tables below.  They
list classes, and for each class its arguments; what an argument may hold follows from its name.
``check`` walks a Keras 3 architecture along them and names the place of the first thing that is
not there.  A new layer needs one row, a new argument one word in ``ARGUMENTS_ROWS``, a new kind of object one table
and one entry in ``_CHECKS``.
"""

from __future__ import annotations

import json
import math
from typing import Any, Callable

from . import custom
from .custom import Known
from .errors import InvalidArgument, UnsafeModel
from .params import compile_params

MOST_BYTES = 16 << 20
DEEPEST = 64
MOST_LAYERS = 10_000
LARGEST = 2**40  # of a whole number, and of the product of the sizes in one layer
LONGEST_TEXT = 1000
LONGEST_NAME = 255

Table = dict[str, frozenset[str]]  # class name -> arguments


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# ---- the tables -----------------------------------------------------------------------------------
# ``#D`` stands for 1D, 2D and 3D; ``kernel_*`` for kernel_initializer, _regularizer and _constraint.

LAYERS_ROWS = """
    InputLayer              batch_shape shape batch_size sparse ragged optional

    Dense                   units activation use_bias kernel_* bias_* quantization_config
    EinsumDense             equation output_shape activation bias_axes kernel_* bias_* quantization_config
    Embedding               input_dim output_dim embeddings_* mask_zero quantization_config
    Activation              activation
    Identity
    Masking                 mask_value

    ELU                     alpha
    LeakyReLU               negative_slope
    PReLU                   alpha_* shared_axes
    ReLU                    max_value negative_slope threshold
    Softmax                 axis

    Conv#D                  filters kernel_size strides padding data_format dilation_rate groups activation use_bias \
                            kernel_* bias_*
    Conv#DTranspose         filters kernel_size strides padding output_padding data_format dilation_rate activation \
                            use_bias kernel_* bias_*
    DepthwiseConv1D         kernel_size strides padding depth_multiplier data_format dilation_rate activation \
                            use_bias depthwise_* bias_*
    DepthwiseConv2D         kernel_size strides padding depth_multiplier data_format dilation_rate activation \
                            use_bias depthwise_* bias_*
    SeparableConv1D         filters kernel_size strides padding data_format dilation_rate depth_multiplier activation \
                            use_bias depthwise_* pointwise_* bias_*
    SeparableConv2D         filters kernel_size strides padding data_format dilation_rate depth_multiplier activation \
                            use_bias depthwise_* pointwise_* bias_*

    AveragePooling#D        pool_size strides padding data_format
    MaxPooling#D            pool_size strides padding data_format
    GlobalAveragePooling#D  data_format keepdims
    GlobalMaxPooling#D      data_format keepdims
    AdaptiveAveragePooling#D  output_size data_format
    AdaptiveMaxPooling#D    output_size data_format

    Flatten                 data_format
    Reshape                 target_shape
    Permute                 dims
    RepeatVector            n
    Cropping1D              cropping
    Cropping2D              cropping data_format
    Cropping3D              cropping data_format
    ZeroPadding#D           padding data_format
    UpSampling1D            size
    UpSampling2D            size data_format interpolation
    UpSampling3D            size data_format

    Add
    Average
    Concatenate             axis
    Dot                     axes normalize
    Maximum
    Minimum
    Multiply
    Subtract

    BatchNormalization      axis momentum epsilon center scale beta_* gamma_* moving_mean_initializer \
                            moving_variance_initializer renorm renorm_clipping renorm_momentum synchronized
    GroupNormalization      groups axis epsilon center scale beta_* gamma_*
    LayerNormalization      axis epsilon center scale beta_* gamma_* rms_scaling
    RMSNormalization        axis epsilon
    UnitNormalization       axis
    SpectralNormalization   layer power_iterations

    ActivityRegularization  l1 l2
    AlphaDropout            rate noise_shape seed
    Dropout                 rate noise_shape seed
    GaussianDropout         rate seed
    GaussianNoise           stddev seed
    SpatialDropout1D        rate seed
    SpatialDropout2D        rate data_format seed
    SpatialDropout3D        rate data_format seed

    RNN                     cell return_sequences return_state go_backwards stateful unroll zero_output_for_mask
    SimpleRNN               units activation use_bias kernel_* recurrent_* bias_* dropout recurrent_dropout \
                            return_sequences return_state go_backwards stateful unroll seed zero_output_for_mask
    LSTM                    units activation recurrent_activation use_bias kernel_* recurrent_* bias_* \
                            unit_forget_bias dropout recurrent_dropout seed return_sequences return_state \
                            go_backwards stateful unroll use_cudnn zero_output_for_mask
    GRU                     units activation recurrent_activation use_bias kernel_* recurrent_* bias_* dropout \
                            recurrent_dropout seed return_sequences return_state go_backwards stateful unroll \
                            reset_after use_cudnn zero_output_for_mask
    SimpleRNNCell           units activation use_bias kernel_* recurrent_* bias_* dropout recurrent_dropout seed
    LSTMCell                units activation recurrent_activation use_bias kernel_* recurrent_* bias_* \
                            unit_forget_bias dropout recurrent_dropout seed
    GRUCell                 units activation recurrent_activation use_bias kernel_* recurrent_* bias_* dropout \
                            recurrent_dropout reset_after seed
    StackedRNNCells         cells
    ConvLSTM#D              filters kernel_size strides padding data_format dilation_rate activation \
                            recurrent_activation use_bias kernel_* recurrent_* bias_* unit_forget_bias dropout \
                            recurrent_dropout seed return_sequences return_state go_backwards stateful unroll \
                            zero_output_for_mask
    Bidirectional           layer merge_mode backward_layer
    TimeDistributed         layer

    Attention               use_scale score_mode dropout seed
    AdditiveAttention       use_scale score_mode dropout seed
    MultiHeadAttention      num_heads key_dim value_dim dropout use_bias output_shape attention_axes sliding_window \
                            flash_attention kernel_* bias_* use_gate seed
    GroupQueryAttention     head_dim num_query_heads num_key_value_heads dropout use_bias sliding_window \
                            flash_attention kernel_* bias_* use_gate seed

    CategoryEncoding        num_tokens output_mode sparse
    Discretization          bin_boundaries num_bins epsilon output_mode sparse
    Normalization           axis mean variance invert
    Rescaling               scale offset
    CenterCrop              height width data_format
    Resizing                height width interpolation crop_to_aspect_ratio pad_to_aspect_ratio fill_mode fill_value \
                            antialias data_format
    RandomBrightness        factor value_range seed data_format
    RandomContrast          factor value_range seed data_format
    RandomCrop              height width seed data_format
    RandomFlip              mode seed data_format
    RandomRotation          factor fill_mode interpolation seed fill_value data_format
    RandomTranslation       height_factor width_factor fill_mode interpolation seed fill_value data_format
    RandomZoom              height_factor width_factor fill_mode interpolation seed fill_value data_format
    MelSpectrogram          fft_length sequence_stride sequence_length window sampling_rate num_mel_bins min_freq \
                            max_freq power_to_db top_db mag_exp min_power ref_power
    STFTSpectrogram         mode frame_length frame_step fft_length window periodic scaling padding expand_dims \
                            data_format
"""
EVERY_LAYER = "name trainable dtype activity_regularizer"

MODELS_ROWS = """
    Sequential  name trainable dtype layers build_input_shape
    Functional  name trainable dtype layers input_layers output_layers
"""

INITIALIZERS_ROWS = """
    Constant         value
    GlorotNormal     seed input_axes output_axes
    GlorotUniform    seed input_axes output_axes
    HeNormal         seed input_axes output_axes
    HeUniform        seed input_axes output_axes
    Identity         gain
    LecunNormal      seed input_axes output_axes
    LecunUniform     seed input_axes output_axes
    Ones
    Orthogonal       gain seed
    OrthogonalInitializer  gain seed
    RandomNormal     mean stddev seed
    RandomUniform    minval maxval seed
    STFT             side window scaling periodic
    TruncatedNormal  mean stddev seed
    VarianceScaling  scale mode distribution seed input_axes output_axes
    Zeros
"""
REGULARIZERS_ROWS = """
    L1                     l1
    L1L2                   l1 l2
    L2                     l2
    OrthogonalRegularizer  factor mode
"""
CONSTRAINTS_ROWS = """
    MaxNorm     max_value axis
    MinMaxNorm  min_value max_value rate axis
    NonNeg
    UnitNorm    axis
"""

# These may also be given by name alone.
INITIALIZER_NAMES = _words(
    """glorot_normal glorot_uniform he_normal he_uniform identity lecun_normal lecun_uniform normal one ones
    orthogonal random_normal random_uniform truncated_normal uniform variance_scaling zero zeros"""
)
REGULARIZER_NAMES = _words("l1 l2 l1l2 orthogonal_regularizer")
CONSTRAINT_NAMES = _words("max_norm min_max_norm non_neg unit_norm")
ACTIVATIONS = _words(
    """celu elu exponential gelu glu hard_shrink hard_sigmoid hard_silu hard_swish hard_tanh leaky_relu linear
    log_sigmoid log_softmax mish relu relu6 selu sigmoid silu soft_shrink softmax softplus softsign sparse_plus
    sparse_sigmoid sparsemax squareplus swish tanh tanh_shrink threshold"""
)
POLICIES = _words(
    """float16 bfloat16 float32 float64 mixed_float16 mixed_bfloat16
    bool uint8 uint16 uint32 uint64 int8 int16 int32 int64"""
)

# The modules in which an object of each kind may say it lives.
MODULES = {
    "layer": {"keras.layers"},
    "Sequential": {"keras", "keras.models", "keras.src.models.sequential"},
    "Functional": {"keras.src.models.functional"},
    "initializer": {"keras.initializers"},
    "regularizer": {"keras.regularizers"},
    "constraint": {"keras.constraints"},
    "policy": {"keras", "keras.dtype_policies"},
    "generator": {"keras.random"},
}

# Why some well-known classes are missing, and what to do instead.
HINTS = {
    "Lambda": "A Lambda layer carries program code. Use built-in layers such as Rescaling, Activation or Reshape.",
    "TFSMLayer": "It loads a program from a file. Use the layers it was made of.",
    "StringLookup": "Turn texts into numbers before the table is packed.",
    "TextVectorization": "Turn texts into numbers before the table is packed.",
    "IntegerLookup": "Map values to indices before the table is packed.",
    "TFOpLambda": "Use layers such as Add, Multiply and Rescaling rather than operators on tensors.",
    "SlicingOpLambda": "Use layers such as Cropping1D or Reshape rather than operators on tensors.",
    "CuDNNLSTM": "Use LSTM: it takes the fast path by itself.",
    "CuDNNGRU": "Use GRU: it takes the fast path by itself.",
}


def _rows(text: str, everywhere: str = "") -> Table:
    table: Table = {}
    for row in text.strip().splitlines():
        class_name, *words = [*row.split(), *everywhere.split()] if row.strip() else [""]
        arguments = set()
        for word in words:
            if word.endswith("_*"):
                arguments |= {word[:-1] + kind for kind in ("initializer", "regularizer", "constraint")}
            else:
                arguments.add(word)
        for dimension in "123" if "#" in class_name else "1":
            table[class_name.replace("#", dimension)] = frozenset(arguments)
    table.pop("", None)
    return table


LAYERS = _rows(LAYERS_ROWS, EVERY_LAYER)
MODELS = _rows(MODELS_ROWS)
INITIALIZERS = _rows(INITIALIZERS_ROWS)
REGULARIZERS = _rows(REGULARIZERS_ROWS)
CONSTRAINTS = _rows(CONSTRAINTS_ROWS)

# What an argument may hold, by its name.  The others hold objects, and have a check of their own (_CHECKS).
# A ``size`` is a whole number from 1 on, ``indices`` are whole numbers, a ``share`` is between 0 and 1; a plural may
# be one of them or a list.  Every argument may be null.
ARGUMENTS_ROWS = """
    size     batch_size depth_multiplier fft_length filters frame_length frame_step head_dim height input_dim key_dim \
             n num_bins num_heads num_key_value_heads num_mel_bins num_query_heads num_tokens output_dim \
             power_iterations sampling_rate sequence_length sequence_stride sliding_window units value_dim width
    sizes    dilation_rate kernel_size output_size pool_size size strides
    indices  attention_axes axes axis cropping dims groups input_axes noise_shape output_axes output_padding \
             output_shape shared_axes target_shape
    share    dropout momentum rate recurrent_dropout renorm_momentum
    number   alpha epsilon fill_value gain l1 l2 mag_exp mask_value max_freq max_value maxval min_freq min_power \
             min_value minval negative_slope ref_power stddev threshold top_db
    numbers  bin_boundaries factor height_factor mean offset value value_range variance width_factor
    flag     antialias center crop_to_aspect_ratio expand_dims flash_attention go_backwards invert keepdims mask_zero \
             normalize optional pad_to_aspect_ratio periodic power_to_db ragged renorm reset_after return_sequences \
             return_state rms_scaling sparse stateful synchronized trainable unit_forget_bias unroll use_bias use_gate \
             use_scale zero_output_for_mask
    word     bias_axes data_format distribution equation fill_mode interpolation merge_mode mode output_mode \
             scaling score_mode side window
    plain    padding scale use_cudnn
    nothing  quantization_config renorm_clipping
"""

# Arguments whose product is the size of what a layer makes.
SIZES = _words(
    """units filters input_dim output_dim kernel_size key_dim value_dim num_heads head_dim num_query_heads n size
    target_shape output_shape output_size depth_multiplier num_tokens num_bins height width batch_shape shape
    fft_length frame_length num_mel_bins"""
)


# ---- checks ---------------------------------------------------------------------------------------


def check(architecture: Any) -> None:
    """Raises UnsafeModel or InvalidArgument unless everything in the architecture is in the tables."""
    check_limits(architecture)
    name = architecture.get("class_name") if isinstance(architecture, dict) else architecture
    if not isinstance(architecture, dict) or not isinstance(name, str) or name not in MODELS:
        raise _unsafe("", f"a model is Sequential or Functional, not {_shown(name)}", str(name))
    _Walk().layer(architecture, "")


def check_compile(compile: dict[str, Any], known: Known = custom.NONE) -> None:
    """The same for compile parameters: they must be exactly what ``params`` makes of known names."""
    if compile_params(json.dumps(compile), known) != compile:
        raise UnsafeModel("compile parameters are not in their canonical form")


def check_limits(architecture: Any) -> None:
    """Plain JSON of a sane size; without recursion, so that depth is measured rather than suffered."""
    waiting = [(architecture, 1)]
    while waiting:
        value, depth = waiting.pop()
        if depth > DEEPEST:
            raise InvalidArgument(f"the architecture is nested more than {DEEPEST} deep")
        if isinstance(value, dict):
            for key in value:
                if not isinstance(key, str) or len(key) > LONGEST_NAME:
                    raise InvalidArgument(f"{_shown(key)} cannot be a key of an architecture")
            waiting.extend((inner, depth + 1) for inner in value.values())
        elif isinstance(value, list):
            if len(value) > MOST_LAYERS and isinstance(value[0], dict):  # at once, rather than after a long walk
                raise InvalidArgument(f"the architecture has more than {MOST_LAYERS} layers")
            waiting.extend((inner, depth + 1) for inner in value)
        elif isinstance(value, str):
            if len(value) > LONGEST_TEXT:
                raise InvalidArgument(f"a text of {len(value)} characters in the architecture: {_shown(value)}")
        elif isinstance(value, float):
            if not math.isfinite(value):
                raise InvalidArgument(f"{value} in the architecture is not a number")
        elif isinstance(value, int):
            if abs(value) >= 2**63:
                raise InvalidArgument("a number in the architecture has more than 64 bits")
        elif value is not None:
            raise InvalidArgument(f"{type(value).__name__} in the architecture is not plain JSON")


class _Walk:
    def __init__(self) -> None:
        self.layers = 0

    def layer(self, node: Any, path: str) -> None:
        """A layer, or a model, which is a layer that holds others."""
        self.layers += 1
        if self.layers > MOST_LAYERS:
            raise InvalidArgument(f"the architecture has more than {MOST_LAYERS} layers")
        name = _class_name(node, path)
        if name in MODELS:
            config = _object(node, path, MODELS, name, "model", extra=_AROUND_A_LAYER)
            self.model(config, name, _at(path, "config"))
        else:
            config = _object(node, path, LAYERS, "layer", "layer", extra=_AROUND_A_LAYER)
            self.arguments(config, _at(path, "config"))
            _bounded_size(config, _at(path, "config"))
        for key in ("inbound_nodes", "build_config"):
            _tensors(node.get(key), _at(path, key))

    def model(self, config: dict[str, Any], name: str, path: str) -> None:
        layers = config.get("layers")
        if not isinstance(layers, list) or not layers:
            raise InvalidArgument(f"{path}.layers must be a list with at least one layer")
        for key in ("input_layers", "output_layers") if name == "Functional" else ():
            if not config.get(key):
                raise InvalidArgument(f"{path}.{key} is missing")
        for index, layer in enumerate(layers):
            self.layer(layer, f"{path}.layers[{index}]")
            if name == "Functional" and not _is_name(layer.get("name")):
                raise InvalidArgument(f"{path}.layers[{index}] has no name")
        self.arguments({key: value for key, value in config.items() if key != "layers"}, path)

    def arguments(self, config: dict[str, Any], path: str) -> None:
        for key, value in config.items():
            check = _CHECKS.get(key) or _CHECKS_BY_ENDING[key.rpartition("_")[2]]
            check(self, value, f"{path}.{key}")

    def inner_layer(self, value: Any, path: str) -> None:
        if value is not None:
            self.layer(value, path)

    def inner_layers(self, value: Any, path: str) -> None:
        if not isinstance(value, list):
            raise InvalidArgument(f"{path} must be a list of layers")
        for index, cell in enumerate(value):
            self.layer(cell, f"{path}[{index}]")


_AROUND_AN_OBJECT = _words("class_name module registered_name config compile_config")
_AROUND_A_LAYER = _words("name inbound_nodes build_config shared_object_id")


def _object(
    node: dict[str, Any],
    path: str,
    table: Table,
    modules: str,
    kind: str,
    extra: frozenset[str] = frozenset(),
) -> dict[str, Any]:
    """The arguments of a serialized object whose class, module and argument names are in the tables."""
    name = _class_name(node, path)
    if name not in table:
        raise _unsafe(path, f"the {kind} {_shown(name)} is not on the list of allowed {kind}s", name)
    module = node.get("module")
    if not isinstance(module, str) or module not in MODULES[modules]:
        raise _unsafe(path, f"{name} says that it is in the module {_shown(module)}", "TFOpLambda" if module else "")
    registered = node.get("registered_name")
    if registered not in (None, name):
        raise _unsafe(_at(path, "registered_name"), f"{_shown(registered)} is not a class of Keras", "")
    if node.get("compile_config"):
        raise InvalidArgument(f"{_at(path, 'compile_config')}: an architecture holds no compile parameters")
    for key in node:
        if key not in _AROUND_AN_OBJECT | extra:
            raise InvalidArgument(f"{_at(path, key)}: a {kind} has no such part")
    config = node.get("config")
    if not isinstance(config, dict):
        raise InvalidArgument(f"{_at(path, 'config')} must be an object")
    for key in config:
        if key not in table[name]:
            raise InvalidArgument(
                f"{_at(path, 'config')}.{key}: {name} takes no such argument",
                hint=f"{name} takes {', '.join(sorted(table[name]))}." if table[name] else None,
            )
    return config


def _class_name(node: Any, path: str) -> str:
    if not isinstance(node, dict) or not isinstance(node.get("class_name"), str):
        raise InvalidArgument(f"{path or 'the architecture'} must be an object with a class_name")
    return node["class_name"]


# ---- kinds of arguments ---------------------------------------------------------------------------


def _small(table: Table, names: frozenset[str], kind: str) -> Callable[[_Walk, Any, str], None]:
    def test(walk: _Walk, value: Any, path: str) -> None:
        if isinstance(value, dict):
            walk.arguments(_object(value, path, table, kind, kind), _at(path, "config"))
        elif value is not None and not (isinstance(value, str) and (value in names or value in table)):
            raise _unsafe(path, f"the {kind} {_shown(value)} is not on the list of allowed {kind}s", "")

    return test


def _activation(walk: _Walk, value: Any, path: str) -> None:
    if value is not None and not (isinstance(value, str) and value in ACTIVATIONS):
        name = value.get("config", value.get("class_name")) if isinstance(value, dict) else value
        raise _unsafe(path, f"the activation {_shown(name)} is not on the list of allowed activations", "")


def _policy(walk: _Walk, value: Any, path: str) -> None:
    if isinstance(value, dict):
        value = _object(value, path, {"DTypePolicy": frozenset({"name"})}, "policy", "dtype policy").get("name")
    if value is not None and not (isinstance(value, str) and value in POLICIES):
        raise _unsafe(path, f"the dtype {_shown(value)} is not on the list of allowed dtypes", "")


def _seed(walk: _Walk, value: Any, path: str) -> None:
    if isinstance(value, dict):
        config = _object(value, path, {"SeedGenerator": frozenset({"name", "seed"})}, "generator", "seed generator")
        _plain(config.get("name"), _at(path, "config.name"))
        value = config.get("seed")
    if value is not None and not _is_whole(value):
        raise InvalidArgument(f"{path} must be a whole number")


def _name(walk: _Walk, value: Any, path: str) -> None:
    if value is not None and not _is_name(value):
        raise InvalidArgument(f"{path}: {_shown(value)} cannot be a name")


def _each(right: Callable[[Any], bool], what: str, *, lists: bool = False) -> Callable[[_Walk, Any, str], None]:
    """The check of an argument that holds one plain value of a kind, or lists of them."""

    def test(walk: _Walk, value: Any, path: str) -> None:
        if lists and isinstance(value, list):
            for index, item in enumerate(value):
                test(walk, item, f"{path}[{index}]")
            return
        _plain(value, path)
        if value is not None and not right(value):
            raise InvalidArgument(f"{path} must be {what}, not {_shown(value)}")

    return test


def _nothing(walk: _Walk, value: Any, path: str) -> None:
    if value is not None:
        raise _unsafe(path, "this argument cannot be used here", "")


def _shape(walk: _Walk, value: Any, path: str) -> None:
    sizes = value if isinstance(value, list) and len(value) <= 16 else [0]
    if value is not None and not all(size is None or (_is_whole(size) and 0 < size <= LARGEST) for size in sizes):
        raise InvalidArgument(f"{path}: {_shown(value)} is not a shape")


def _ends(walk: _Walk, value: Any, path: str) -> None:
    """The inputs or outputs of a functional model: references such as ["dense", 0, 0], in lists or by name."""
    if isinstance(value, dict) and "class_name" not in value:
        for key, item in value.items():
            _ends(walk, item, f"{path}.{key}")
    elif isinstance(value, list) and value and not isinstance(value[0], str):
        for index, item in enumerate(value):
            _ends(walk, item, f"{path}[{index}]")
    elif not _is_reference(value):
        _plain(value, path)
        raise InvalidArgument(f"{path}: {_shown(value)} does not name an output of a layer")


def _plain_argument(walk: _Walk, value: Any, path: str) -> None:
    _plain(value, path)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_size(value: Any) -> bool:
    return _is_whole(value) and value > 0


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


_PLAIN_KINDS: dict[str, Callable[[_Walk, Any, str], None]] = {
    "size": _each(_is_size, "a whole number from 1 on"),
    "sizes": _each(_is_size, "a whole number from 1 on, or a list of them", lists=True),
    "indices": _each(_is_whole, "a whole number, or a list of them", lists=True),
    "share": _each(lambda value: _is_number(value) and 0 <= value <= 1, "a number between 0 and 1"),
    "number": _each(_is_number, "a number"),
    "numbers": _each(_is_number, "a number, or a list of them", lists=True),
    "flag": _each(lambda value: isinstance(value, bool), "true or false"),
    "word": _each(lambda value: isinstance(value, str), "a text"),
    "plain": _plain_argument,
    "nothing": _nothing,
}
_CHECKS_BY_ENDING: dict[str, Callable[[_Walk, Any, str], None]] = {
    "initializer": _small(INITIALIZERS, INITIALIZER_NAMES, "initializer"),
    "regularizer": _small(REGULARIZERS, REGULARIZER_NAMES, "regularizer"),
    "constraint": _small(CONSTRAINTS, CONSTRAINT_NAMES, "constraint"),
    "activation": _activation,
}
_CHECKS: dict[str, Callable[[_Walk, Any, str], None]] = {
    **{name: _PLAIN_KINDS[kind] for kind, names in _rows(ARGUMENTS_ROWS).items() for name in names},
    "batch_shape": _shape,
    "shape": _shape,
    "build_input_shape": _shape,
    "input_layers": _ends,
    "output_layers": _ends,
    "dtype": _policy,
    "seed": _seed,
    "name": _name,
    "layer": _Walk.inner_layer,
    "backward_layer": _Walk.inner_layer,
    "cell": _Walk.inner_layer,
    "cells": _Walk.inner_layers,
}


def _plain(value: Any, path: str) -> None:
    """Numbers, texts, booleans and lists of them: an object here would be built by Keras."""
    if isinstance(value, dict):
        name = value.get("class_name", "an object")
        raise _unsafe(path, f"{_shown(name)} is not allowed here: only plain values are", str(name))
    if isinstance(value, list):
        for index, item in enumerate(value):
            _plain(item, f"{path}[{index}]")
    elif isinstance(value, int) and abs(value) > LARGEST:
        raise InvalidArgument(f"{path}: {value} is too large")


def _tensors(value: Any, path: str) -> None:
    """The arguments of calls between layers: plain values, and references to tensors."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            _tensors(item, f"{path}[{index}]")
    elif isinstance(value, dict) and value.get("class_name") == "__keras_tensor__":
        if set(value) != {"class_name", "config"} or not isinstance(value["config"], dict):
            raise InvalidArgument(f"{path}: not the reference to a tensor")
        if not set(value["config"]) <= {"shape", "dtype", "keras_history"}:
            raise InvalidArgument(f"{path}: not the reference to a tensor")
        for key, item in value["config"].items():
            _plain(item, f"{path}.config.{key}")
        if not _is_reference(value["config"].get("keras_history")):
            raise InvalidArgument(f"{path}: not the reference to a tensor")
    elif isinstance(value, dict):
        if "class_name" in value:
            _plain(value, path)
        for key, item in value.items():
            _tensors(item, _at(path, key))
    else:
        _plain(value, path)


def _bounded_size(config: dict[str, Any], path: str) -> None:
    size, waiting = 1, [value for key, value in config.items() if key in SIZES]
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            waiting.extend(value)
        elif isinstance(value, int) and value > 1:
            size *= value
        if size > LARGEST:
            raise InvalidArgument(f"{path}: a layer of this size cannot be built")


def _is_reference(value: Any) -> bool:
    """``[layer, call, output]``"""
    return isinstance(value, list) and len(value) == 3 and _is_name(value[0]) and all(map(_is_whole, value[1:]))


def _is_name(value: Any) -> bool:
    """Keras makes folders of layer names when somebody saves the model: none may lead out of them."""
    printable = isinstance(value, str) and 0 < len(value) <= LONGEST_NAME and value.isprintable()
    return printable and ".." not in value.replace("\\", "/").split("/")


def _unsafe(path: str, problem: str, class_name: str) -> UnsafeModel:
    return UnsafeModel(f"{path}: {problem}" if path else problem, hint=HINTS.get(class_name))


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 60 else text[:60] + "…"


def _at(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key
