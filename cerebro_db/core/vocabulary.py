"""The optimizers, schedules, losses and metrics of Keras 3.15 that a configuration may name.

One row each: class, the short name where there is one, and its arguments with the kind of value
they take.  A kind followed by ``?`` may also be None, one followed by ``!`` must be given.
"""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass
from typing import Any

Arguments = dict[str, str]


@dataclass(frozen=True)
class Entry:
    class_name: str
    short: str | None  # the function name under which Keras also knows it
    arguments: Arguments

    @property
    def required(self) -> list[str]:
        return [name for name, kind in self.arguments.items() if kind.endswith("!")]


class Vocabulary:
    """Entries, found whatever the case or underscores of the spelling: ``KLDivergence``, ``kl_divergence``."""

    def __init__(self, kind: str, rows: str, *, everywhere: str = "", aliases: str = "", spelled: str = "") -> None:
        self.kind = kind
        self.spelled = set(spelled.split())  # abbreviations that Keras 3 takes too, so they stay as written
        self.entries: dict[str, Entry] = {}
        self._found: dict[str, Entry] = {}
        for row in rows.strip().splitlines():
            class_name, *rest = row.split()
            short = rest.pop(0) if rest and "=" not in rest[0] else None
            entry = Entry(class_name, short, _arguments([*rest, *everywhere.split()]))
            self.entries[class_name] = entry
            self._found[_squashed(class_name)] = entry
            if short:
                self._found[_squashed(short)] = entry
        for alias in aliases.split():
            name, _, class_name = alias.partition("=")
            self._found[_squashed(name)] = self.entries[class_name]

    def find(self, name: str) -> Entry | None:
        return self._found.get(_squashed(name))

    def closest(self, name: str) -> str:
        """A hint that offers the nearest known name."""
        near = difflib.get_close_matches(_squashed(name), self._found, n=1, cutoff=0.6)
        if near:
            entry = self._found[near[0]]
            return f"Did you mean {entry.short or entry.class_name}?"
        names = ", ".join(entry.short or entry.class_name for entry in self.entries.values())
        return f"Known names: {names}."


def _arguments(words: list[str]) -> Arguments:
    return {name: kind for name, _, kind in (word.partition("=") for word in words)}


def _squashed(name: str) -> str:
    return name.lower().replace("_", "")


# ---- kinds of values ------------------------------------------------------------------------------


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _list_of(test: Any) -> Any:
    return lambda value: isinstance(value, list) and 0 < len(value) <= 10_000 and all(map(test, value))


_REDUCTIONS = ("sum_over_batch_size", "sum", "mean", "mean_with_sample_weight")

KINDS: dict[str, tuple[Any, str]] = {
    "number": (_number, "a number"),
    "nonneg": (lambda v: _number(v) and v >= 0, "a number of at least 0"),
    "positive": (lambda v: _number(v) and v > 0, "a number above 0"),
    "unit": (lambda v: _number(v) and 0 <= v <= 1, "a number between 0 and 1"),
    "rate": (lambda v: _number(v) and v >= 0, "a number of at least 0 or a learning-rate schedule"),
    "flag": (lambda v: isinstance(v, bool), "True or False"),
    "count": (lambda v: _whole(v) and 0 < v < 2**31, "a whole number of at least 1"),
    "index": (lambda v: _whole(v) and 0 <= v < 2**31, "a whole number of at least 0"),
    "axis": (lambda v: _whole(v) and abs(v) < 64, "an axis number"),
    "axes": (lambda v: (_whole(v) and abs(v) < 64) or _list_of(_whole)(v), "an axis number or a list of them"),
    "text": (lambda v: isinstance(v, str) and 0 < len(v) <= 200, "a text"),
    "texts": (_list_of(lambda v: isinstance(v, str) and len(v) <= 200), "a list of texts"),
    "numbers": (_list_of(_number), "a list of numbers"),
    "indices": (_list_of(_whole), "a list of whole numbers"),
    "thresholds": (
        lambda v: (_number(v) and 0 <= v <= 1) or _list_of(lambda x: _number(x) and 0 <= x <= 1)(v),
        "a number between 0 and 1 or a list of them",
    ),
    "reduction": (lambda v: v in _REDUCTIONS, " or ".join(map(repr, _REDUCTIONS))),
    "dtype": (lambda v: v in ("float16", "bfloat16", "float32", "float64"), "a floating-point type such as float32"),
    "curve": (lambda v: v in ("ROC", "PR"), "'ROC' or 'PR'"),
    "summation": (lambda v: v in ("interpolation", "minoring", "majoring"), "interpolation, minoring or majoring"),
    "average": (lambda v: v in ("micro", "macro", "weighted"), "micro, macro or weighted"),
    "aggregation": (
        lambda v: v in ("uniform_average", "variance_weighted_average"),
        "uniform_average or variance_weighted_average",
    ),
}


def problem(kind: str, value: Any) -> str | None:
    """What is wrong with a value for an argument of that kind, or None."""
    if value is None and kind.endswith("?"):
        return None
    test, words = KINDS[kind.rstrip("?!")]
    return None if test(value) else f"it must be {words}"


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
    everywhere="weight_decay=nonneg? clipnorm=positive? clipvalue=positive? global_clipnorm=positive? use_ema=flag "
    "ema_momentum=unit ema_overwrite_frequency=count? loss_scale_factor=positive? "
    "gradient_accumulation_steps=count? name=text?",
)

# what Keras takes when no learning rate is given; needed to translate decay=
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
    everywhere="name=text?",
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
    Poisson                        poisson
    SparseCategoricalCrossentropy  sparse_categorical_crossentropy from_logits=flag ignore_class=index? axis=axis
    SquaredHinge                   squared_hinge
    Tversky                        tversky alpha=unit beta=unit axis=axes?
    """,
    everywhere="reduction=reduction name=text? dtype=dtype?",
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
    everywhere="name=text? dtype=dtype?",
    aliases="acc=Accuracy mse=MeanSquaredError mae=MeanAbsoluteError mape=MeanAbsolutePercentageError "
    "msle=MeanSquaredLogarithmicError bce=BinaryCrossentropy kld=KLDivergence "
    "kullback_leibler_divergence=KLDivergence cosine_proximity=CosineSimilarity cosine=CosineSimilarity "
    "logcosh=LogCoshError log_cosh=LogCoshError",
    spelled="acc mse mae mape msle bce",
)
