"""The contract of search policies: after each epoch of a model a policy says continue, stop, or add models.

A policy is a pure function of the run's history. A decision is committed to the log before it takes effect.
A resumed or replayed run reads its decisions from the log and does not ask the policy again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..events import DataSetName, Verdict
from ..metrics import Value, number

PREFIXES = {DataSetName.TRAINING.value: "train_", DataSetName.VALIDATION.value: "val_"}


@dataclass(frozen=True)
class NewModel:
    """A model that a decision adds to the run: a new configuration, or a changed copy of another model.

    A policy leaves ``model`` and ``parent_hop`` out. The schedule fills them in before the decision is committed.
    """

    mst_key: int | None = None  # the row of the model selection table; None: the parent's
    changes: Mapping[str, Any] = field(default_factory=dict)  # parameters that differ from that row
    parent: int | None = None  # the model whose whole state it starts from; None: it starts from its own initial state
    visits: tuple[int, ...] | None = None  # the segments that it visits; None: all
    model: int | None = None  # its number within the run
    parent_hop: int | None = None  # after which hop of the parent the state is taken

    def __post_init__(self) -> None:
        if self.mst_key is None and self.parent is None:
            raise ValueError("a new model needs the key of a configuration (mst_key) or a parent")
        if self.parent is None and self.parent_hop is not None:
            raise ValueError(f"a new model has parent_hop {self.parent_hop}, but no parent")

    def to_json(self) -> dict[str, Any]:
        visits = None if self.visits is None else list(self.visits)
        return {
            "mst_key": self.mst_key,
            "changes": dict(self.changes),
            "parent": self.parent,
            "visits": visits,
            "model": self.model,
            "parent_hop": self.parent_hop,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> NewModel:
        numbers = {name: value.get(name) for name in ("mst_key", "parent", "model", "parent_hop")}
        visits = value.get("visits")
        return cls(**numbers, changes=value.get("changes") or {}, visits=None if visits is None else tuple(visits))


@dataclass(frozen=True)
class Decision:
    """What a policy says after an epoch of a model.

    CONTINUE: the model goes on. STOP: it does not, and ``reason`` says why. ADD: it goes on, and the ``added`` models
    begin. A STOP may add models, too.
    """

    model: int
    epoch: int
    verdict: Verdict
    reason: str = ""
    added: tuple[NewModel, ...] = ()

    def __post_init__(self) -> None:
        if self.verdict is Verdict.CONTINUE and self.added:
            raise ValueError("a decision to continue cannot add models: its verdict must be 'add' or 'stop'")
        if self.verdict is Verdict.ADD and not self.added:
            raise ValueError("a decision to add models adds none")
        if self.verdict is Verdict.STOP and not self.reason:
            raise ValueError(f"a decision to stop model {self.model} must have a reason")

    def to_json(self) -> dict[str, Any]:
        """One row of the table ``decision``: its keys are the columns' names, and ``detail`` is a jsonb."""
        return {
            "model": self.model,
            "epoch": self.epoch,
            "decision": self.verdict.value,
            "reason": self.reason,
            "detail": {"added": [new.to_json() for new in self.added]},
        }

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Decision:
        added = (row.get("detail") or {}).get("added", ())
        verdict, reason = Verdict(row["decision"]), row.get("reason") or ""
        return cls(row["model"], row["epoch"], verdict, reason, tuple(NewModel.from_json(new) for new in added))


@dataclass(frozen=True)
class Figures:
    """The loss of one visit, or of the evaluation of one part, and what was known of the metrics after it."""

    rows: int
    loss: float | None  # None: not a finite number
    metrics: Mapping[str, float | None]  # of the epoch's visits so far, or of all parts; of other parts none


@dataclass
class History:
    """What a run has on record: all that a policy may know.

    The loss of an epoch is the mean over its visits, or over the evaluated parts, weighted by rows. The metrics of an
    epoch are those of its last visit, which are over all rows of the epoch so far; or those of the part that was
    evaluated last, which are over all parts.

    The history is fed by the outcomes of units, and on resume by the log. The order in which the figures arrive does
    not matter, and the same figures may arrive twice.
    """

    _configurations: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    # Model, epoch -> data set ("": the visits themselves) -> by hop or by part, the figures.
    _figures: dict[tuple[int, int], dict[str, dict[int, Figures]]] = field(default_factory=dict)
    _complete: dict[int, int] = field(default_factory=dict)  # model -> how many of its epochs are complete
    _decisions: dict[tuple[int, int], Decision] = field(default_factory=dict)
    _stopped: set[int] = field(default_factory=set)
    # What has been computed already: policies compare each model with all others.
    _values: dict[tuple[int, int], dict[str, float | None]] = field(default_factory=dict, compare=False, repr=False)

    # -- questions of a policy ---------------------------------------------------------------------

    @property
    def models(self) -> tuple[int, ...]:
        """The numbers of all models of the run."""
        return tuple(sorted(self._configurations))

    def configuration(self, model: int) -> Mapping[str, Any]:
        """What the driver has said about a model's configuration; empty if it has said nothing."""
        return self._configurations.get(model, {})

    def epochs(self, model: int) -> tuple[int, ...]:
        """The epochs of a model that are complete: trained and evaluated."""
        return tuple(range(1, self._complete.get(model, 0) + 1))

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

    def decision(self, model: int, epoch: int) -> Decision | None:
        """The decision on record about an epoch of a model."""
        return self._decisions.get((model, epoch))

    def stopped(self, model: int) -> bool:
        """Whether a decision has stopped a model."""
        return model in self._stopped

    # -- what feeds it -----------------------------------------------------------------------------

    def begins(self, model: int, configuration: Mapping[str, Any] | None = None) -> None:
        """A model of the run, and what a policy may know of its configuration."""
        if configuration is not None or model not in self._configurations:
            self._configurations[model] = dict(configuration or {})

    def trained(
        self, model: int, epoch: int, hop: int, rows: int, loss: float | None, metrics: Mapping[str, Value]
    ) -> None:
        self._add(model, epoch, "", hop, rows, loss, metrics)

    def evaluated(
        self,
        model: int,
        epoch: int,
        dataset: str,
        part: int,
        rows: int,
        loss: float | None,
        metrics: Mapping[str, Value],
    ) -> None:
        self._add(model, epoch, dataset, part, rows, loss, metrics)

    def complete(self, model: int, epochs: int) -> None:
        """So many epochs of a model are complete. Policies do not see its figures of a later epoch."""
        self._complete[model] = max(epochs, self._complete.get(model, 0))

    def decided(self, decision: Decision) -> None:
        self._decisions[decision.model, decision.epoch] = decision
        if decision.verdict is Verdict.STOP:
            self._stopped.add(decision.model)

    def _add(
        self,
        model: int,
        epoch: int,
        dataset: str,
        place: int,
        rows: int,
        loss: float | None,
        metrics: Mapping[str, Value],
    ) -> None:
        self.begins(model)
        # Of a metric with a value per class policies see the mean.  The log keeps no NaN, so none is seen here either.
        figures = Figures(rows, number(loss), {name: number(value) for name, value in metrics.items()})
        self._figures.setdefault((model, epoch), {}).setdefault(dataset, {})[place] = figures
        self._values.pop((model, epoch), None)


def prefix_of(dataset: str) -> str:
    return PREFIXES.get(dataset, f"{dataset}_") if dataset else ""


def last_metrics(figures: Mapping[int, Figures]) -> Mapping[str, float | None]:
    """The metrics of an epoch, from the figures by hop or by part."""
    return next((figures[place].metrics for place in sorted(figures, reverse=True) if figures[place].metrics), {})


def mean_loss(figures: Iterable[Figures]) -> float | None:
    """Weighted by rows; None if a loss is missing. ``fsum`` gives the same sum in every order."""
    pairs = [(one.rows, one.loss) for one in figures if one.rows]
    rows = sum(weight for weight, _ in pairs)
    if not rows or any(loss is None for _, loss in pairs):
        return None
    return math.fsum(weight / rows * loss for weight, loss in pairs if loss is not None)


class Policy(Protocol):
    """Decides about models from the history of the run, and from nothing else."""

    @property
    def name(self) -> str:
        """What the log calls the policy."""

    @property
    def asks(self) -> bool:
        """Whether the policy wants to be asked. If not, the run has no decisions and they cost nothing."""

    def decide(self, history: History, model: int, epoch: int) -> Decision:
        """What becomes of this model after this epoch. The same history always gives the same decision."""
