"""Plans ``cerebro.train``: the architectures, the space, and the numbers of configurations and epochs.

The plan depends on the packed columns, the number of rows and the budget.  The numbers were chosen by the measurements
in docs/accuracy.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from .architecture import beginnings, building, sources, trees
from .architecture.related import neighbourhoods, related_inputs
from .architecture.sources import Source
from .errors import InvalidArgument
from .packing.layout import Layout
from .packing.subgroups import MOST_MODELS
from .parameters import flat
from .records import dataclass
from .search import named_methods, objective
from .texts import counted

Json = dict[str, Any]

METRICS_OF_CLASSES = {
    "acc", "accuracy", "binary_accuracy", "categorical_accuracy", "sparse_categorical_accuracy",
    "top_k_categorical_accuracy", "sparse_top_k_categorical_accuracy", "auc", "f1", "f1_score", "f_beta_score",
    "precision", "recall",
}  # fmt: skip
METRICS_OF_NUMBERS = {"r2", "r2_score"}

INDEPENDENT = named_methods.INDEPENDENT  # methods that stop no model
METHOD = "paced"  # it decides by the measured speed how many configurations begin
CONFIGURATIONS = 24  # more of them hardly find better models
EPOCHS = 81
EPOCHS_IN_BUDGET = 729  # a model that has stopped improving ends earlier
FIRST_RUNG = 3  # epochs that each model gets
MEAN_EPOCHS = 12.0  # that a configuration trains when a method that the user has named stops most of them
METHOD_WITH_FOLDS = "random"
METHOD_WITH_GROUPS = "asha"  # the pace of a run says nothing about that of a group
EPOCHS_WITH_FOLDS = 27  # nothing is stopped early
LEAST_WITH_FOLDS = 4  # configurations: their epochs become fewer first
VISIT_ROWS = 4000  # a visit of fewer rows costs more for its state than for its training: such rows are read repeatedly
MOST_PASSES = 4
# Epochs of all models together that a budget should have time for: 12 for each of 24 configurations, and more than
# three times as many, because a machine may be slower than is guessed. Where it has time for half of them at most,
# visits take portions of the rows, so that models are compared before they have seen all.
EPOCHS_TO_COMPARE = 1000
LEAST_VISIT_ROWS = 20_000  # a visit of fewer takes little more time than its state
VISIT_SECONDS = 0.05  # what a visit takes besides training
ROW_SECONDS = 1e-5  # of training; and so much more for each element of the inputs
ELEMENT_SECONDS = 2e-7

ARCHITECTURE = "mlp"
OF_WINDOWS = ("mlp", "conv1d", "lstm")  # that train tries where rows are windows
OF_IMAGES = ("cnn",)  # and where rows have images
# Of an mlp. Each value of these parameters is one more program to build, which takes seconds.
UNITS = (128, 256)
DROPOUT = (0.1, 0.3)
DEPTHS = (6, 4, 8)  # of trees
MOST_WORK = 1 << 16  # of trees that train tries: a visit takes 10 s or so, however few the rows are
BINS = (16,)  # of each number; a choice by the rows for validation between these and none was no better
RATES = (0.0005, 0.01)  # learning rates
# Of rows with related tables. A search begins with the one in the middle.
WAYS = (related_inputs.BOTH, related_inputs.AGGREGATES, related_inputs.NEIGHBOURHOODS)
# Of a network that reads the latest related rows: building it, for each related table, and training on each such row.
TABLE_SECONDS, RELATED_ROW_SECONDS = 1.5, 4e-6
EPOCHS_WITH_LATEST, SHARE_FOR_LATEST = 3, 0.25  # such networks are tried if so many epochs take no more of the time
ENCODERS = ("mean", "attention", "gru")
FEW_ROWS = 1000  # a model soon knows them by heart
DROPOUT_OF_FEW_ROWS = (0.5, 0.3)
RATES_OF_FEW_ROWS = (0.0005, 0.003)
SECONDS_FOR_MANY_PROGRAMS = 120  # with less time, the first value of each
OPTIMIZER = "AdamW"
WEIGHT_DECAY = 0.0001  # of a configuration that names no optimizer


@dataclass(frozen=True)
class Wishes:
    """What the user has decided; None: the plan decides."""

    architectures: Mapping[Any, Source]  # by their labels
    space: Json | None = None  # flat; each entry replaces the plan's entry of that name
    method: Any = None
    epochs: int | None = None
    configurations: int | None = None
    objective: str | None = None
    visit_rows: int | None = None
    short: bool = True  # whether the plan may make epochs shorter than a pass over the rows


@dataclass(frozen=True)
class TrainingPlan:
    architectures: list[str]  # their labels
    space: Json  # flat
    method: Any
    epochs: int
    configurations: int
    objective: str
    passes: int  # over the rows of a segment at each visit
    epoch_seconds: float  # a guess
    folds: int = 0
    groups: int = 0
    visit_rows: int | None = None  # None: a visit takes all rows of its segment
    portions: int = 1  # of the rows of a segment; a visit takes one

    def told(self, seconds: float | None) -> list[str]:
        """The plan in sentences."""
        kinds = " and ".join(self.architectures)
        method = self.method if isinstance(self.method, str) else self.method["name"]
        ends = "" if seconds is None else f"; after {_duration(seconds)} no visit begins"
        stops = "" if method in named_methods.INDEPENDENT else f", and {method} stops the worse ones early"
        if method == METHOD and seconds is not None:
            stops = (
                f", and {method} stops the worse ones early. How many begin depends on the speed of the first visits;"
                " the last part of the time finishes the best ones with smaller learning rates"
            )
        if self.folds:
            stops = f", once for each of {self.folds} folds on the rows of the others, and once on all rows"
        if self.groups:
            stops = f" on all rows and in each of {counted(self.groups, 'group')}{stops}"
        best = "configuration is best, by its mean over the folds" if self.folds else "model and epoch are best"
        again = f" of {self.passes} passes over the rows" if self.passes > 1 else ""
        if self.portions > 1:
            again = f" of {self.visit_rows:,} rows of each segment"
        return [
            f"loss {_shown(self.space['loss'])}; {self.objective} says which {best}",
            f"at most {counted(self.configurations, 'configuration')} of {kinds}; each trains at most"
            f" {counted(self.epochs, 'epoch')}{again}{stops}{ends}",
            f"space: {dimensions(self.space)}",
        ]


def planned(
    layout: Layout, rows: int, segments: int, seconds: float | None, validated: bool, wishes: Wishes
) -> TrainingPlan:
    _require_fitting(layout, wishes.objective)
    passes = _passes(rows, segments)
    epoch_seconds = _epoch_seconds(layout, rows * passes, segments)
    paced = wishes.method is None and layout.groups is None
    amounts = _amounts_with_folds if layout.folds else _most if paced else _amounts
    # The models of all groups together train on as many rows as that on all rows.
    times = (layout.folds + 1) * (2 if layout.groups is not None else 1)
    visit_rows = wishes.visit_rows
    if visit_rows is None and wishes.short and not layout.folds and layout.groups is None:
        visit_rows = _visit_rows(wishes, rows, segments, seconds, epoch_seconds)
    portions = _portions(visit_rows, rows, segments)
    epoch_seconds /= portions
    configurations, epochs = amounts(wishes, seconds, epoch_seconds * times, portions)
    if layout.groups is not None:
        models = (layout.folds + 1) * (len(layout.groups.labels) + 1)
        configurations = min(configurations, wishes.configurations or max(1, MOST_MODELS // models))
    space = {
        **_parameters(layout, rows, segments, seconds, wishes),
        **defaults(layout, rows, segments, wishes.objective),
        **_of_steps(rows, wishes.architectures),
        **(wishes.space or {}),
    }
    method: Any = {"name": METHOD, "min_epochs": min(FIRST_RUNG, epochs)}
    if layout.folds:
        method = METHOD_WITH_FOLDS
    elif layout.groups is not None:
        method = {**method, "name": METHOD_WITH_GROUPS}
    return TrainingPlan(
        architectures=list(map(str, wishes.architectures)),
        space=space,
        method=wishes.method if wishes.method is not None else method,
        epochs=epochs,
        configurations=configurations,
        objective=wishes.objective or objective.default(validated).name,
        passes=passes,
        epoch_seconds=epoch_seconds,
        folds=layout.folds,
        groups=0 if layout.groups is None else len(layout.groups.labels),
        visit_rows=visit_rows,
        portions=portions,
    )


def _visit_rows(wishes: Wishes, rows: int, segments: int, seconds: float | None, epoch_seconds: float) -> int | None:
    """How many rows a visit takes where an epoch over all rows is long against the budget; None: all."""
    stops = wishes.method is None or named_methods.checked(wishes.method, proposes=True)["name"] not in INDEPENDENT
    if seconds is None or wishes.epochs is not None or not stops:
        return None
    whole = math.ceil(rows / segments)
    wanted = max(LEAST_VISIT_ROWS, math.ceil(whole * seconds / EPOCHS_TO_COMPARE / epoch_seconds))
    return wanted if 2 * wanted <= whole else None


def _portions(visit_rows: int | None, rows: int, segments: int) -> int:
    return 1 if visit_rows is None else math.ceil(math.ceil(rows / segments) / visit_rows)


def _of_steps(rows: int, architectures: Mapping[Any, Source]) -> Json:
    """The space of what an optimizer has, for the architectures that one trains."""
    stepping = [label for label, one in architectures.items() if not sources.is_grown(one)]
    if not stepping:
        return {}
    space: Json = {
        "learning_rate": {"log_uniform": list(RATES_OF_FEW_ROWS if rows <= FEW_ROWS else RATES)},
        "weight_decay": {"log_uniform": [0.0001, 0.1]},
        "batch_size": {"choice": _batch_sizes(rows)},
    }
    if len(stepping) < len(architectures):
        for one in space.values():
            one["when"] = {flat.ARCHITECTURE: stepping}
    return space


def usual_architectures(layout: Layout) -> tuple[str, ...]:
    """The architectures that train tries unless the user names others."""
    if layout.windows is not None:
        return OF_WINDOWS
    if any(map(beginnings.is_surely_image, related_inputs.flat_inputs(layout))):
        return OF_IMAGES
    return (ARCHITECTURE, trees.KIND) if trees.fits(layout) and _depths(layout) else (ARCHITECTURE,)


def _epoch_seconds(layout: Layout, rows: int, segments: int) -> float:
    """How long an epoch of one model takes if the other segments train others meanwhile."""
    elements = sum(variable.elements for variable in layout.inputs)
    return VISIT_SECONDS + rows * (ROW_SECONDS + ELEMENT_SECONDS * elements) / segments


def _most(wishes: Wishes, seconds: float | None, epoch_seconds: float, portions: int) -> tuple[int, int]:
    """The most configurations, and epochs of each: the method decides how many there are."""
    epochs = EPOCHS if seconds is None else EPOCHS_IN_BUDGET
    return wishes.configurations or CONFIGURATIONS, wishes.epochs or epochs * portions


def _amounts(wishes: Wishes, seconds: float | None, epoch_seconds: float, portions: int) -> tuple[int, int]:
    """How many configurations, and epochs of each."""
    affordable = math.inf if seconds is None else max(1.0, seconds / epoch_seconds)  # epochs of all models together
    configurations = wishes.configurations
    if configurations is None:
        configurations = int(max(1, min(CONFIGURATIONS, affordable / MEAN_EPOCHS)))
    epochs = wishes.epochs
    if epochs is None:
        epochs = int(max(1, min(EPOCHS * portions, affordable)))
    return configurations, epochs


def _amounts_with_folds(wishes: Wishes, seconds: float | None, epoch_seconds: float, portions: int) -> tuple[int, int]:
    """The same, if each configuration trains all its epochs.  ``epoch_seconds``: of all models of a configuration."""
    affordable = math.inf if seconds is None else max(1.0, seconds / epoch_seconds)
    configurations, epochs = wishes.configurations, wishes.epochs
    if configurations is None:
        each = EPOCHS_WITH_FOLDS * portions if epochs is None else epochs
        least = LEAST_WITH_FOLDS if epochs is None else 1
        configurations = int(max(least, min(CONFIGURATIONS, affordable / each)))
    if epochs is None:
        epochs = int(max(1, min(EPOCHS_WITH_FOLDS * portions, affordable / configurations)))
    return configurations, epochs


def epochs_of_list(
    layout: Layout, segments: int, seconds: float | None, configurations: int, visit_rows: int | None = None
) -> int:
    """How many epochs each of these configurations trains if nothing says it, and nothing stops them early."""
    rows, portions = layout.rows, _portions(visit_rows, layout.rows, segments)
    epoch_seconds = _epoch_seconds(layout, rows * _passes(rows, segments), segments) / portions
    times = (layout.folds + 1) * (2 if layout.groups is not None else 1)
    wishes = Wishes({}, configurations=max(1, configurations))
    return _amounts_with_folds(wishes, seconds, epoch_seconds * times, portions)[1]


def defaults(layout: Layout, rows: int, segments: int, objective: str | None = None) -> Json:
    """What a flat configuration has that says nothing about these parameters."""
    return {
        **_measures(layout, objective),
        "optimizer": OPTIMIZER,
        "weight_decay": WEIGHT_DECAY,
        "batch_size": _batch_sizes(rows)[1],
        "passes": _passes(rows, segments),
    }


def completed(given: Json, defaults: Json) -> Json:
    """A flat configuration, or a space, with the defaults for what it leaves out."""
    left = {name: value for name, value in defaults.items() if name not in given}
    if "optimizer" in given:  # the others have weight decays of their own
        left.pop("weight_decay", None)
    if "loss" in given and "metrics" not in given:  # the metrics may not fit another loss
        left.pop("metrics", None)
    return {**{name: value for name, value in given.items() if value is not None}, **left}


def _passes(rows: int, segments: int) -> int:
    return max(1, min(MOST_PASSES, VISIT_ROWS * segments // max(1, rows)))


def _parameters(layout: Layout, rows: int, segments: int, seconds: float | None, wishes: Wishes) -> Json:
    """The parameters of an mlp that a plan tries, if there is one among the architectures that has them."""
    few, architectures = rows <= FEW_ROWS, wishes.architectures
    mlp = next(
        (label for label, one in architectures.items() if isinstance(one, sources.Kind) and one.kind == "mlp"), None
    )
    values: dict[str, tuple[Any, ...]] = {"units": UNITS, "dropout": DROPOUT_OF_FEW_ROWS if few else DROPOUT}
    if building.can_have_bins(layout) and not few:
        values["bins"] = BINS
    known = sources.parameters(architectures[mlp]) if mlp is not None else set()
    found: Json = {}
    if any(sources.is_grown(one) and "depth" in sources.parameters(one) for one in architectures.values()):
        found["depth"] = {"choice": _depths(layout) or [min(DEPTHS)]}
    for name, of_one in values.items():
        if name not in known:
            continue
        tried = list(of_one) if seconds is None or seconds >= SECONDS_FOR_MANY_PROGRAMS else [of_one[0]]
        if len(architectures) > 1:  # others have parameters of the same name, with other sensible values
            found[name] = {"choice": tried, "when": {"architecture": mlp}}
        else:
            found[name] = {"choice": tried} if len(tried) > 1 else tried[0]
    if mlp is not None:
        when = {flat.ARCHITECTURE: mlp} if len(architectures) > 1 else {}
        latest = _has_time_for_latest(layout, rows, segments, seconds)
        found.update(_of_related(layout, seconds, latest, architectures[mlp], when, wishes.space or {}))
    return found


def _has_time_for_latest(layout: Layout, rows: int, segments: int, seconds: float | None) -> bool:
    if layout.related is None or seconds is None:
        return True
    latest = [one.latest.rows for one in layout.related.rows if one.latest is not None]
    epoch = rows / segments * sum(latest) * RELATED_ROW_SECONDS
    return len(latest) * TABLE_SECONDS + EPOCHS_WITH_LATEST * epoch <= SHARE_FOR_LATEST * seconds


def _of_related(layout: Layout, seconds: float | None, latest: bool, mlp: Source, when: Json, wished: Json) -> Json:
    """What an mlp reads of related tables, and how it reads the latest rows.

    ``latest``: whether there is time for these.  ``when``: the mlp is trained.  ``wished``: the user's own space.
    """
    assert isinstance(mlp, sources.Kind)
    if not related_inputs.has_neighbourhoods(layout):
        return {}
    found: Json = {}
    ways: Any = mlp.fixed.get(related_inputs.RELATED, wished.get(related_inputs.RELATED))
    if ways is None and related_inputs.has_aggregates(layout):
        ways = {"choice": [*WAYS] if latest else [related_inputs.AGGREGATES], **_condition(when)}
        found[related_inputs.RELATED] = ways
    reading = (related_inputs.BOTH, related_inputs.NEIGHBOURHOODS)
    if isinstance(ways, dict):
        read = [one for one in ways.get("choice", ()) if one in reading]
        when = {**when, related_inputs.RELATED: read}
    else:
        read = [one for one in (ways or related_inputs.BOTH,) if one in reading]
    if read and related_inputs.ENCODER not in mlp.fixed:
        few = seconds is not None and seconds < SECONDS_FOR_MANY_PROGRAMS
        tried = [neighbourhoods.OF_ENCODER.default] if few else [*ENCODERS]
        found[related_inputs.ENCODER] = {"choice": tried, **_condition(when)}
    return found


def _condition(when: Json) -> Json:
    return {"when": when} if when else {}


def _depths(layout: Layout) -> list[int]:
    """The depths that trees try: those whose visits are short enough for a budget."""
    return [depth for depth in DEPTHS if trees.work(layout, depth) <= MOST_WORK]


def _batch_sizes(rows: int) -> list[int]:
    """Small batches for few rows, which need many steps, and large ones for many rows."""
    middle = 1 << max(4, min(11, round(math.log2(max(1, rows)) * 0.6 - 1)))
    return [middle // 2, middle, middle * 2]


def metric_of(wished: str | None) -> str | None:
    """The metric that an objective needs; None if it needs none besides the loss."""
    name = wished[4:] if wished is not None and wished.startswith("val_") else wished
    return None if name == "loss" else name


def _require_fitting(layout: Layout, wished: str | None) -> None:
    """Raise an error if the objective's metric says nothing about the kind of target."""
    metric, kinds = metric_of(wished), {variable.target == "real" for variable in layout.outputs}
    if metric is not None and any(variable.quantiles for variable in layout.outputs):
        raise InvalidArgument(
            f"objective cannot be '{wished}': the loss says how good quantiles are.", hint="Leave it out, or val_loss."
        )
    if metric in METRICS_OF_CLASSES and kinds == {True}:
        what, instead = "a number", "val_loss or val_r2"
    elif metric in METRICS_OF_NUMBERS and kinds == {False}:
        what, instead = "a class", "val_loss, val_accuracy or val_auc"
    else:
        return
    raise InvalidArgument(
        f"objective cannot be '{wished}', because the target is {what}.", hint=f"For instance {instead}."
    )


def _measures(layout: Layout, wished: str | None) -> Json:
    losses = [building.loss(variable) for variable in layout.outputs]
    metrics = [[one for one in [building.metric(variable)] if one is not None] for variable in layout.outputs]
    metric = metric_of(wished)
    if metric is not None and len(metrics) == 1 and metric not in metrics[0]:
        metrics[0].append(metric)
    return {
        "loss": losses[0] if len(losses) == 1 else losses,
        "metrics": metrics[0] if len(metrics) == 1 else metrics,
    }


def dimensions(space: Mapping[str, Any]) -> str:
    """A flat space for people."""
    return ", ".join(
        f"{name} {_shown(value)}"
        for name, value in space.items()
        if name not in ("architecture", "loss", "metrics", "passes")
    )


def _shown(value: Any) -> str:
    if isinstance(value, dict) and len(set(value) - {"when"}) == 1:
        ((kind, given),) = ((name, one) for name, one in value.items() if name != "when")
        if kind == "choice":
            return " or ".join(map(_shown, given))
        if isinstance(given, list) and len(given) == 2:
            return f"from {given[0]} to {given[1]}"
    if isinstance(value, dict) and "class_name" in value:
        return str(value["class_name"])
    return ", ".join(map(_shown, value)) if isinstance(value, list) else str(value)


def _duration(seconds: float) -> str:
    return f"{seconds / 60:.0f} minutes" if seconds >= 120 else f"{seconds:.0f} s"
