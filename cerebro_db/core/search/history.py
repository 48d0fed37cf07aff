"""The losses, metrics and decisions of a run that are on record, for search policies."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from ..events import Verdict
from ..models.metrics import Value, number
from ..records import dataclass, field
from .clock import RunClock
from .decision import Decision, Variant
from .objective import PREFIXES, Objective


@dataclass(frozen=True)
class Figures:
    """The loss of one visit, or of the evaluation of one part, and what was known of the metrics after it."""

    weight: float  # of the loss beside those of other visits or parts: mostly the number of their rows
    loss: float | None  # None: not a finite number
    metrics: Mapping[str, float | None]  # of the epoch's visits so far, or of all parts; of other parts none

    @classmethod
    def of(cls, weight: float, loss: float | None, metrics: Mapping[str, Value]) -> Figures:
        """As policies see them: of a metric with a value per class the mean; no NaN, as the log keeps none either."""
        return cls(weight, number(loss), {name: number(value) for name, value in metrics.items()})


@dataclass
class History:
    """What a run has on record: all that a policy may know.

    The loss of an epoch is the mean over its visits, or over the evaluated parts, by their weights. The metrics of an
    epoch are those of its last visit, which are over all rows of the epoch so far; or those of the part that was
    evaluated last, which are over all parts.

    The history is fed by the outcomes of units, and on resume by the log. The order in which the figures arrive does
    not matter, and the same figures may arrive twice.
    """

    objective: Objective = Objective()
    clock: RunClock = RunClock()  # of a policy that is timed, as of the moment when it is asked
    _configurations: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    # Model, epoch -> data set ("": the visits themselves) -> by hop or by part, the figures.
    _figures: dict[tuple[int, int], dict[str, dict[int, Figures]]] = field(default_factory=dict)
    _complete: dict[int, int] = field(default_factory=dict)  # model -> how many of its epochs are complete
    _decisions: dict[tuple[int, int], Decision] = field(default_factory=dict)
    _stopped: set[int] = field(default_factory=set)
    _failed: set[int] = field(default_factory=set)
    _parents: dict[int, int] = field(default_factory=dict)
    _origins: dict[int, tuple[int, int]] = field(default_factory=dict)
    # What has been computed already: policies compare each model with all others.
    _values: dict[tuple[int, int], dict[str, float | None]] = field(default_factory=dict, compare=False, repr=False)

    _whole: set[int] = field(default_factory=set, compare=False, repr=False)  # configurations with all their variants
    _of_variant: dict[Variant | None, set[int]] = field(default_factory=dict, compare=False, repr=False)
    _only: frozenset[int] | None = field(default=None, compare=False, repr=False)  # the models that are shown
    _absent: frozenset[int] = field(default_factory=frozenset, compare=False, repr=False)

    # -- questions of a policy ---------------------------------------------------------------------

    @property
    def models(self) -> tuple[int, ...]:
        """The numbers of all models of the run, or of those that this history is about."""
        return tuple(sorted(self._configurations if self._only is None else self._only | self._absent))

    def of_variant(self, variant: Variant | None) -> list[int]:
        """The numbers of the models of a fold or a group; None: of those on all rows."""
        return sorted(self._of_variant.get(variant, ()))

    def about(self, models: Iterable[int], absent: Iterable[int] = ()) -> History:
        """The same history as a policy sees it that compares these models alone.

        ``absent``: models that count as failed before their first epoch.
        """
        return replace(self, _only=frozenset(models), _absent=frozenset(absent))

    def is_whole(self, key: int) -> bool:
        """Whether a configuration is known to have a model of each fold or group."""
        return key in self._whole

    def configuration(self, model: int) -> Mapping[str, Any]:
        """What the driver has said about a model's configuration; empty if it has said nothing.

        It has key, architecture, compile and fit, and ``chosen``: the point of the search space, if a policy has
        proposed the configuration.
        """
        return self._configurations.get(model, {})

    def epochs(self, model: int) -> tuple[int, ...]:
        """The epochs of a model that are complete: trained and evaluated."""
        return () if model in self._absent else tuple(range(1, self._complete.get(model, 0) + 1))

    def value(self, model: int, epoch: int, name: str) -> float | None:
        """A value of a complete epoch; None if there is none, or if it is not a finite number.

        ``loss``, ``accuracy``, … are those of the visits, while the weights change. ``val_loss``, ``val_accuracy``, …
        are of the evaluation on the validation data, ``train_loss``, … of the evaluation on the training data.
        """
        return self.values(model, epoch).get(name)

    def values(self, model: int, epoch: int) -> Mapping[str, float | None]:
        """All values of a complete epoch by name."""
        if epoch > self._complete.get(model, 0):
            return {}
        if (model, epoch) not in self._values:
            self._values[model, epoch] = {
                prefix_of(dataset) + name: value
                for dataset, figures in self._figures.get((model, epoch), {}).items()
                for name, value in {**last_metrics(figures), "loss": mean_loss(figures.values())}.items()
            }
        return self._values[model, epoch]

    def score(self, model: int, epoch: int) -> float | None:
        """The objective of a complete epoch as a number of which a smaller one is better; None if there is none."""
        return self.objective.score(self.value(model, epoch, self.objective.name))

    def decision(self, model: int, epoch: int) -> Decision | None:
        """The last decision on record about an epoch of a model."""
        return self._decisions.get((model, epoch))

    def stopped(self, model: int) -> bool:
        """Whether a decision has stopped a model, and none has let it go on since."""
        return model in self._stopped

    def failed(self, model: int) -> bool:
        """Whether a model has failed for good, perhaps because its configuration is no good."""
        return model in self._failed or model in self._absent

    def parent(self, model: int) -> int | None:
        """The model from whose state a model began; None if it began from its own."""
        return self._parents.get(model)

    def is_copy(self, model: int) -> bool:
        """Whether a model goes on from the state of another model of its fold or group."""
        parent = self.parent(model)
        return parent is not None and variant_of(self.configuration(parent)) == variant_of(self.configuration(model))

    def origin(self, model: int) -> tuple[int, int] | None:
        """The model and the epoch that the decision was about which has added a model; None: neither."""
        return self._origins.get(model)

    def has_whole(self, key: int) -> None:
        """A configuration has a model of each fold or group, and keeps it."""
        self._whole.add(key)

    # -- what feeds it -----------------------------------------------------------------------------

    def begins(self, model: int, configuration: Mapping[str, Any] | None = None) -> None:
        """A model of the run, and what a policy may know of its configuration."""
        known = self._configurations.get(model)
        if configuration is None and known is not None:
            return
        if known is not None:
            self._of_variant[variant_of(known)].discard(model)
        self._configurations[model] = dict(configuration or {})
        self._of_variant.setdefault(variant_of(configuration or {}), set()).add(model)

    def trained(
        self, model: int, epoch: int, hop: int, weight: float, loss: float | None, metrics: Mapping[str, Value]
    ) -> None:
        self._add(model, epoch, "", hop, Figures.of(weight, loss, metrics))

    def evaluated(self, model: int, epoch: int, dataset: str, part: int, figures: Figures) -> None:
        self._add(model, epoch, dataset, part, figures)

    def complete(self, model: int, epochs: int) -> None:
        """So many epochs of a model are complete. Policies do not see its figures of a later epoch."""
        self._complete[model] = max(epochs, self._complete.get(model, 0))

    def decided(self, decision: Decision) -> None:
        if decision.model is not None and decision.epoch is not None:
            self._decisions[decision.model, decision.epoch] = decision
            if decision.verdict is Verdict.STOP:
                self._stopped.add(decision.model)
            elif decision.verdict is Verdict.GO_ON:
                self._stopped.discard(decision.model)
        self._stopped.difference_update(decision.gone_on)
        for new in decision.added:
            if new.model is not None and new.parent is not None:
                self._parents[new.model] = new.parent
            if new.model is not None and decision.model is not None and decision.epoch is not None:
                self._origins[new.model] = (decision.model, decision.epoch)

    def fails(self, model: int) -> None:
        """A model has failed for good."""
        self._failed.add(model)

    def _add(self, model: int, epoch: int, dataset: str, place: int, figures: Figures) -> None:
        self.begins(model)
        self._figures.setdefault((model, epoch), {}).setdefault(dataset, {})[place] = figures
        self._values.pop((model, epoch), None)


def variant_of(configuration: Mapping[str, Any]) -> Variant | None:
    """The fold and the group that a policy is told of a model; None: it trains on all rows."""
    return Variant.of(configuration.get("fold"), configuration.get("group_number"))


def prefix_of(dataset: str) -> str:
    return PREFIXES.get(dataset, f"{dataset}_") if dataset else ""


def last_metrics(figures: Mapping[int, Figures]) -> Mapping[str, float | None]:
    """The metrics of an epoch, from the figures by hop or by part."""
    return next((figures[place].metrics for place in sorted(figures, reverse=True) if figures[place].metrics), {})


def mean_loss(figures: Iterable[Figures]) -> float | None:
    """None if a loss is missing. ``fsum`` gives the same sum in every order."""
    pairs = [(one.weight, one.loss) for one in figures if one.weight]
    whole = sum(weight for weight, _ in pairs)
    if not whole or any(loss is None for _, loss in pairs):
        return None
    return math.fsum(weight / whole * loss for weight, loss in pairs if loss is not None)
