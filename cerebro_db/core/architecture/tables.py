"""The tables of the allow-list: the classes that an architecture may contain, and the arguments of each.

This module has only tables and the function that reads them.  A new layer needs one row in LAYERS_ROWS, and a new
argument one word in ARGUMENTS_ROWS.
"""

from __future__ import annotations

Table = dict[str, frozenset[str]]  # class name -> names of its arguments


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# ``#D`` stands for 1D, 2D and 3D; ``kernel_*`` for kernel_initializer, kernel_regularizer and kernel_constraint.

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
    Hashing                 num_bins mask_value salt output_mode sparse
    IntegerLookup           max_tokens num_oov_indices mask_token oov_token vocabulary vocabulary_dtype idf_weights \
                            invert output_mode sparse pad_to_max_tokens vocabulary_size oov_method salt
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

# Operations on tensors, such as x + y, x[:, 0] and keras.ops.mean(x): a functional model has them as nodes beside its
# layers. Allowed is what only computes from its tensors. Not allowed is what calls a function (Map, WhileLoop), or
# makes large tensors of few numbers (Full, Tile, OneHot).
OPERATIONS_ROWS = {
    "keras.src.ops.numpy": """
        Add  Subtract  Multiply  Divide  TrueDivide  DivideNoNan  FloorDivide  Mod  Power  Negative  Reciprocal
        Abs  Absolute  Sign  Square  Sqrt  Cbrt  Exp  Exp2  Expm1  Log  Log10  Log1p  Log2  Logaddexp
        Sin  Cos  Tan  Arcsin  Arccos  Arctan  Arctan2  Sinh  Cosh  Tanh  Arcsinh  Arccosh  Arctanh
        Ceil  Floor  Trunc  Maximum  Minimum
        Equal  NotEqual  Greater  GreaterEqual  Less  LessEqual  LogicalAnd  LogicalOr  LogicalNot  LogicalXor
        Isfinite  Isinf  Isnan  Where  GetItem  Matmul  Dot  Ravel
        Round          decimals
        Clip           x_min x_max
        NanToNum       nan posinf neginf
        Mean Std Var Median Prod Amax Amin All Any Ptp  axis keepdims
        Sum            axis keepdims
        Max Min        axis keepdims initial
        Argmax Argmin  axis keepdims
        CountNonzero Argsort Sort Flip Squeeze ExpandDims Concatenate Stack Take TakeAlongAxis Average  axis
        Cumsum Cumprod axis
        Diff           axis
        Roll           shift axis
        Reshape        newshape
        Transpose      axes
        Swapaxes       axis1 axis2
        Moveaxis       source destination
        Tensordot      axes
        Einsum         subscripts
        Tril Triu      k
    """,
    "keras.src.ops.nn": """
        Relu  Relu6  Sigmoid  SparseSigmoid  Softplus  Softsign  SparsePlus  Silu  LogSigmoid  HardSigmoid  HardSilu
        Selu  TanhShrink  HardTanh
        SoftShrink HardShrink  threshold
        Squareplus     b
        LeakyRelu      negative_slope
        Elu Celu       alpha
        Gelu           approximate
        Glu Softmax LogSoftmax Sparsemax  axis
        Threshold      threshold default_value
        Normalize      axis order epsilon
    """,
    "keras.src.ops.math": """
        Rsqrt  Erf  Erfc
        Logsumexp      axis keepdims
    """,
    "keras.src.ops.core": """
        StopGradient
        Cast           dtype
    """,
}

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

# These functions may be given by name alone.
INITIALIZER_NAMES = words(
    """glorot_normal glorot_uniform he_normal he_uniform identity lecun_normal lecun_uniform normal one ones
    orthogonal random_normal random_uniform truncated_normal uniform variance_scaling zero zeros"""
)
REGULARIZER_NAMES = words("l1 l2 l1l2 orthogonal_regularizer")
CONSTRAINT_NAMES = words("max_norm min_max_norm non_neg unit_norm")
ACTIVATIONS = words(
    """celu elu exponential gelu glu hard_shrink hard_sigmoid hard_silu hard_swish hard_tanh leaky_relu linear
    log_sigmoid log_softmax mish relu relu6 selu sigmoid silu soft_shrink softmax softplus softsign sparse_plus
    sparse_sigmoid sparsemax squareplus swish tanh tanh_shrink threshold"""
)
POLICIES = words(
    """float16 bfloat16 float32 float64 mixed_float16 mixed_bfloat16
    bool uint8 uint16 uint32 uint64 int8 int16 int32 int64"""
)

# The modules from which an object of each category may come.
MODULES = {
    "layer": {"keras.layers"},
    **{module: {module} for module in OPERATIONS_ROWS},
    "Sequential": {"keras", "keras.models", "keras.src.models.sequential"},
    "Functional": {"keras.src.models.functional"},
    "initializer": {"keras.initializers"},
    "regularizer": {"keras.regularizers"},
    "constraint": {"keras.constraints"},
    "policy": {"keras", "keras.dtype_policies"},
    "generator": {"keras.random"},
}


def rows(text: str, common: str = "") -> Table:
    """The table in a text: a class and its arguments in each line."""
    table: Table = {}
    for row in text.strip().splitlines():
        if not row.strip():
            continue
        class_name, *names = [*row.split(), *common.split()]
        arguments = set()
        for name in names:
            if name.endswith("_*"):
                arguments |= {name[:-1] + role for role in ("initializer", "regularizer", "constraint")}
            else:
                arguments.add(name)
        for dimension in "123" if "#" in class_name else "1":
            table[class_name.replace("#", dimension)] = frozenset(arguments)
    return table


def operations(text: str) -> Table:
    """The table in a text: classes, which begin with a capital, and the arguments of each of them in a line."""
    table: Table = {}
    for row in text.strip().splitlines():
        classes = [word for word in row.split() if word[0].isupper()]
        arguments = frozenset(["name", *(word for word in row.split() if not word[0].isupper())])
        table.update(dict.fromkeys(classes, arguments))
    return table


OPERATIONS = {module: operations(text) for module, text in OPERATIONS_ROWS.items()}
LAYERS = rows(LAYERS_ROWS, EVERY_LAYER)
MODELS = rows(MODELS_ROWS)
INITIALIZERS = rows(INITIALIZERS_ROWS)
REGULARIZERS = rows(REGULARIZERS_ROWS)
CONSTRAINTS = rows(CONSTRAINTS_ROWS)

# The value types, with the arguments of each.  values.py has a check for each type.  The arguments that are not in this
# table can contain objects, or need a check of their own.
ARGUMENTS_ROWS = """
    size     batch_size depth_multiplier fft_length filters frame_length frame_step head_dim height input_dim key_dim \
             max_tokens n num_bins num_heads num_key_value_heads num_mel_bins num_query_heads num_tokens output_dim \
             power_iterations sampling_rate sequence_length sequence_stride sliding_window units value_dim width
    sizes    dilation_rate kernel_size output_size pool_size size strides
    indices  attention_axes axes axis cropping dims groups input_axes noise_shape output_axes output_padding \
             axis1 axis2 decimals destination k newshape num_oov_indices output_shape shared_axes shift source \
             target_shape
    fraction  dropout momentum rate recurrent_dropout renorm_momentum
    number   alpha b default_value epsilon fill_value gain initial l1 l2 mag_exp mask_token mask_value max_freq \
             max_value maxval min_freq min_power min_value minval nan negative_slope neginf oov_token order posinf \
             ref_power stddev threshold top_db x_max x_min
    numbers  bin_boundaries factor height_factor mean offset value value_range variance width_factor
    flag     antialias approximate center crop_to_aspect_ratio expand_dims flash_attention go_backwards invert \
             keepdims mask_zero normalize optional pad_to_aspect_ratio pad_to_max_tokens periodic power_to_db ragged \
             renorm reset_after return_sequences return_state rms_scaling sparse stateful synchronized trainable \
             unit_forget_bias unroll use_bias use_gate use_scale zero_output_for_mask
    text     bias_axes data_format distribution equation fill_mode interpolation merge_mode mode output_mode \
             oov_method scaling score_mode side subscripts vocabulary_dtype window
    plain    padding scale use_cudnn
    null     quantization_config renorm_clipping
"""

# The product of these arguments bounds the number of values that a layer computes or stores.
SIZES = words(
    """units filters input_dim output_dim kernel_size key_dim value_dim num_heads head_dim num_query_heads n size
    target_shape output_shape output_size depth_multiplier num_tokens num_bins height width batch_shape shape
    fft_length frame_length num_mel_bins"""
)
