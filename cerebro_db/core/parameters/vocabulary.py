"""The optimizers, schedules, losses and metrics of Keras 3.15 that a configuration may name.

Each row of a table is a class, its short name if it has one, and its arguments with their value types
(value_types.py).  A value type that ends in ``?`` also allows None.  An argument whose value type ends in ``!`` is
required.
"""

from __future__ import annotations

from ..records import dataclass


@dataclass(frozen=True)
class Entry:
    """One class of a vocabulary."""

    class_name: str
    short: str | None  # Keras' function of the same meaning, for example mean_squared_error
    arguments: dict[str, str]  # name -> value type

    @property
    def required(self) -> list[str]:
        return [name for name, value_type in self.arguments.items() if value_type.endswith("!")]


class Vocabulary:
    """The entries of one category, such as ``loss``.

    A name is found in any case and with or without underscores: ``KLDivergence``, ``kl_divergence``.  The arguments in
    ``common`` belong to every entry.  ``aliases`` are further names, most of them from Keras 2.  ``spelled`` are the
    abbreviations that Keras 3 also accepts: a configuration keeps them as they were written.
    """

    def __init__(self, category: str, rows: str, *, common: str = "", aliases: str = "", spelled: str = "") -> None:
        self.category = category
        self.spelled = set(spelled.split())
        self.common = set(_arguments(common.split()))
        self.entries: dict[str, Entry] = {}
        self._by_name: dict[str, Entry] = {}
        for row in rows.strip().splitlines():
            class_name, *words = row.split()
            short = words.pop(0) if words and "=" not in words[0] else None
            entry = Entry(class_name, short, _arguments([*words, *common.split()]))
            self.entries[class_name] = entry
            self._by_name[_normalized(class_name)] = entry
            if short:
                self._by_name[_normalized(short)] = entry
        for alias in aliases.split():
            name, _, class_name = alias.partition("=")
            self._by_name[_normalized(name)] = self.entries[class_name]

    def find(self, name: str) -> Entry | None:
        return self._by_name.get(_normalized(name))

    def closest(self, name: str) -> str:
        """A hint for an unknown name: the most similar name, or all names."""
        import difflib  # only now: a new session takes a millisecond for it

        similar = difflib.get_close_matches(_normalized(name), self._by_name, n=1, cutoff=0.6)
        if similar:
            entry = self._by_name[similar[0]]
            return f"Did you mean {entry.short or entry.class_name}?"
        names = ", ".join(entry.short or entry.class_name for entry in self.entries.values())
        return f"Known names: {names}."


def _arguments(words: list[str]) -> dict[str, str]:
    return {name: value_type for name, _, value_type in (word.partition("=") for word in words)}


def _normalized(name: str) -> str:
    return name.lower().replace("_", "")


# ---- the tables -----------------------------------------------------------------------------------

OPTIMIZERS = Vocabulary(
    "optimizer",
    """
    SGD        learning_rate=rate momentum=unit nesterov=flag
    RMSprop    learning_rate=rate rho=unit momentum=unit epsilon=nonneg centered=flag
    Adam       learning_rate=rate beta_1=unit beta_2=unit epsilon=nonneg amsgrad=flag
    AdamW      learning_rate=rate beta_1=unit beta_2=unit epsilon=nonneg amsgrad=flag
    Adadelta   learning_rate=rate rho=unit epsilon=nonneg
    Adagrad    learning_rate=rate initial_accumulator_value=nonneg epsilon=nonneg
    Adamax     learning_rate=rate beta_1=unit beta_2=unit epsilon=nonneg
    Nadam      learning_rate=rate beta_1=unit beta_2=unit epsilon=nonneg
    Ftrl       learning_rate=rate learning_rate_power=number initial_accumulator_value=nonneg \
               l1_regularization_strength=nonneg l2_regularization_strength=nonneg \
               l2_shrinkage_regularization_strength=nonneg beta=number
    Adafactor  learning_rate=rate beta_2_decay=number epsilon_1=nonneg epsilon_2=nonneg clip_threshold=positive \
               relative_step=flag
    Lion       learning_rate=rate beta_1=unit beta_2=unit
    Lamb       learning_rate=rate beta_1=unit beta_2=unit epsilon=nonneg
    Muon       learning_rate=rate adam_beta_1=unit adam_beta_2=unit adam_weight_decay=nonneg epsilon=nonneg \
               exclude_layers=texts? exclude_embeddings=flag muon_a=number muon_b=number muon_c=number \
               adam_lr_ratio=positive momentum=unit ns_steps=count nesterov=flag rms_rate=nonneg?
    ScheduleFreeAdamW  learning_rate=rate beta_1=unit beta_2=unit epsilon=nonneg warmup_steps=index
    """,
    common="weight_decay=nonneg? clipnorm=positive? clipvalue=positive? global_clipnorm=positive? use_ema=flag "
    "ema_momentum=unit ema_overwrite_frequency=count? loss_scale_factor=positive? "
    "gradient_accumulation_steps=count? name=text?",
)

# Keras' default learning rates, where they are not 0.001. The translation of Keras 2's decay= needs the number.
DEFAULT_RATE = {"SGD": 0.01, "ScheduleFreeAdamW": 0.0025}

SCHEDULES = Vocabulary(
    "learning-rate schedule",
    """
    CosineDecay             initial_learning_rate=nonneg! decay_steps=count! alpha=nonneg \
                            warmup_target=nonneg? warmup_steps=index
    CosineDecayRestarts     initial_learning_rate=nonneg! first_decay_steps=count! t_mul=positive m_mul=positive \
                            alpha=nonneg
    ExponentialDecay        initial_learning_rate=nonneg! decay_steps=positive! decay_rate=nonneg! staircase=flag
    InverseTimeDecay        initial_learning_rate=nonneg! decay_steps=positive! decay_rate=nonneg! staircase=flag
    PiecewiseConstantDecay  boundaries=numbers! values=numbers!
    PolynomialDecay         initial_learning_rate=nonneg! decay_steps=positive! end_learning_rate=nonneg \
                            power=positive cycle=flag
    """,
    common="name=text?",
)

LOSSES = Vocabulary(
    "loss",
    """
    BinaryCrossentropy             binary_crossentropy from_logits=flag label_smoothing=unit axis=axis
    BinaryFocalCrossentropy        binary_focal_crossentropy apply_class_balancing=flag alpha=unit gamma=nonneg \
                                   from_logits=flag label_smoothing=unit axis=axis
    CategoricalCrossentropy        categorical_crossentropy from_logits=flag label_smoothing=unit axis=axis
    CategoricalFocalCrossentropy   categorical_focal_crossentropy alpha=unit gamma=nonneg from_logits=flag \
                                   label_smoothing=unit axis=axis
    CategoricalHinge               categorical_hinge
    Circle                         circle gamma=positive margin=number remove_diagonal=flag
    CosineSimilarity               cosine_similarity axis=axis
    CTC                            ctc
    Dice                           dice axis=axes?
    Hinge                          hinge
    Huber                          huber delta=positive
    KLDivergence                   kl_divergence
    LogCosh                        log_cosh
    MeanAbsoluteError              mean_absolute_error
    MeanAbsolutePercentageError    mean_absolute_percentage_error
    MeanSquaredError               mean_squared_error
    MeanSquaredLogarithmicError    mean_squared_logarithmic_error
    Pinball                        pinball quantiles=numbers!
    Poisson                        poisson
    SparseCategoricalCrossentropy  sparse_categorical_crossentropy from_logits=flag ignore_class=index? axis=axis
    SquaredHinge                   squared_hinge
    Tversky                        tversky alpha=unit beta=unit axis=axes?
    """,
    common="reduction=reduction name=text? dtype=dtype?",
    aliases="mse=MeanSquaredError mae=MeanAbsoluteError mape=MeanAbsolutePercentageError "
    "msle=MeanSquaredLogarithmicError bce=BinaryCrossentropy kld=KLDivergence "
    "kullback_leibler_divergence=KLDivergence cosine_proximity=CosineSimilarity cosine=CosineSimilarity "
    "logcosh=LogCosh huber_loss=Huber",
    spelled="mse mae mape msle bce kld",
)

METRICS = Vocabulary(
    "metric",
    """
    Accuracy                       accuracy
    AUC                            auc num_thresholds=count curve=curve summation_method=summation \
                                   thresholds=thresholds? multi_label=flag num_labels=count? \
                                   label_weights=numbers? from_logits=flag
    BinaryAccuracy                 binary_accuracy threshold=unit
    BinaryCrossentropy             binary_crossentropy from_logits=flag label_smoothing=unit
    BinaryIoU                      binary_io_u target_class_ids=indices threshold=unit
    CategoricalAccuracy            categorical_accuracy
    CategoricalCrossentropy        categorical_crossentropy from_logits=flag label_smoothing=unit axis=axis
    CategoricalHinge               categorical_hinge
    ConcordanceCorrelation         concordance_correlation axis=axis
    CosineSimilarity               cosine_similarity axis=axis
    F1Score                        f1_score average=average? threshold=unit?
    FBetaScore                     f_beta_score average=average? beta=positive threshold=unit?
    FalseNegatives                 false_negatives thresholds=thresholds?
    FalsePositives                 false_positives thresholds=thresholds?
    Hinge                          hinge
    IoU                            io_u num_classes=count! target_class_ids=indices! ignore_class=index? \
                                   sparse_y_true=flag sparse_y_pred=flag axis=axis
    KLDivergence                   kl_divergence
    LogCoshError                   log_cosh_error
    MeanAbsoluteError              mean_absolute_error
    MeanAbsolutePercentageError    mean_absolute_percentage_error
    MeanIoU                        mean_io_u num_classes=count! ignore_class=index? sparse_y_true=flag \
                                   sparse_y_pred=flag axis=axis
    MeanSquaredError               mean_squared_error
    MeanSquaredLogarithmicError    mean_squared_logarithmic_error
    OneHotIoU                      one_hot_io_u num_classes=count! target_class_ids=indices! ignore_class=index? \
                                   sparse_y_pred=flag axis=axis
    OneHotMeanIoU                  one_hot_mean_io_u num_classes=count! ignore_class=index? sparse_y_pred=flag axis=axis
    PearsonCorrelation             pearson_correlation axis=axis
    Poisson                        poisson
    Precision                      precision thresholds=thresholds? top_k=count? class_id=index?
    PrecisionAtRecall              precision_at_recall recall=unit! num_thresholds=count class_id=index?
    R2Score                        r2_score class_aggregation=aggregation? num_regressors=index
    Recall                         recall thresholds=thresholds? top_k=count? class_id=index?
    RecallAtPrecision              recall_at_precision precision=unit! num_thresholds=count class_id=index?
    RootMeanSquaredError           root_mean_squared_error
    SensitivityAtSpecificity       sensitivity_at_specificity specificity=unit! num_thresholds=count class_id=index?
    SparseCategoricalAccuracy      sparse_categorical_accuracy
    SparseCategoricalCrossentropy  sparse_categorical_crossentropy from_logits=flag ignore_class=index? axis=axis
    SparseTopKCategoricalAccuracy  sparse_top_k_categorical_accuracy k=count from_sorted_ids=flag
    SpecificityAtSensitivity       specificity_at_sensitivity sensitivity=unit! num_thresholds=count class_id=index?
    SquaredHinge                   squared_hinge
    TopKCategoricalAccuracy        top_k_categorical_accuracy k=count
    TrueNegatives                  true_negatives thresholds=thresholds?
    TruePositives                  true_positives thresholds=thresholds?
    """,
    common="name=text? dtype=dtype?",
    aliases="acc=Accuracy mse=MeanSquaredError mae=MeanAbsoluteError mape=MeanAbsolutePercentageError "
    "msle=MeanSquaredLogarithmicError bce=BinaryCrossentropy kld=KLDivergence "
    "kullback_leibler_divergence=KLDivergence cosine_proximity=CosineSimilarity cosine=CosineSimilarity "
    "logcosh=LogCoshError log_cosh=LogCoshError f1=F1Score r2=R2Score",
    spelled="acc mse mae mape msle bce",
)
