"""A configuration has a model on all rows, and others on parts of them: one for each fold, and one for each group.

With both, it has a model for each fold of each group, too.

A method compares models of one group alone, and the models on all rows among themselves.  Which configurations a search
proposes follows from the models on all rows: each configuration has one, and it has figures before the last of its
groups has any.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ..records import dataclass
from .decision import NewModel, Variant
from .history import History, variant_of
from .policy import Decision, Policy, Verdict

UNJUDGED = "unjudged"  # of a model's configuration: its group has no rows that the objective is measured on


def of_folds(folds: int) -> tuple[Variant, ...]:
    return tuple(Variant(fold=fold) for fold in range(1, folds + 1))


def of_groups(numbers: Iterable[int]) -> tuple[Variant, ...]:
    return tuple(Variant(group_number=number) for number in numbers)


@dataclass
class Varied(Policy):
    """Adds the models of the folds or groups to each configuration that a search or a person has added.

    ``wait``: they begin when the model on all rows has ended, with its weights.
    """

    inner: Policy
    variants: tuple[Variant, ...]
    wait: bool = False
    epochs: int = 0  # of the run; needed if they wait
    configurations: int | None = None  # with which the run began; needed if they wait

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.inner.name

    @property
    def asks(self) -> bool:  # type: ignore[override]
        return self.inner.asks

    @property
    def reads_figures(self) -> bool:  # type: ignore[override]
        return self.inner.reads_figures

    @property
    def searches(self) -> bool:
        return self.inner.searches

    def decide(self, history: History, model: int, epoch: int) -> Decision:
        configuration = history.configuration(model)
        if configuration.get(UNJUDGED):
            return Decision(model, epoch, Verdict.CONTINUE)
        return self.inner.decide(self._comparable(history, variant_of(configuration)), model, epoch)

    def expected_epochs(self, place: int, done: int) -> float:
        return self.inner.expected_epochs(self._place_of_configuration(place), done)

    @property
    def begins(self) -> int | None:
        inner = self.inner.begins if self.inner.begins is not None or not self.wait else self.configurations
        return None if inner is None else inner * (len(self.variants) + 1)

    def propose(self, history: History, active: int) -> Sequence[NewModel]:
        # The search counts configurations, and the next one begins before the last has ended.  If groups wait, it
        # counts the models that are there: while those on all rows train, none of a group does.
        counted = active if self.wait else active // (len(self.variants) + 1)
        return self._missing(history) or self.inner.propose(self._comparable(history, None), counted)

    def released(self, history: History) -> Sequence[int]:
        if not self.inner.asks:
            return ()  # it has stopped none
        return [
            model
            for variant in (None, *self.variants)
            for model in self.inner.released(self._comparable(history, variant))
        ]

    def extended(self, epochs: int) -> None:
        self.epochs = epochs
        self.inner.extended(epochs)

    def _missing(self, history: History) -> list[NewModel]:
        if not self.wait:
            return missing_models(history, self.variants)
        return missing_models(history, self.variants, self._ended(history))

    def _ended(self, history: History) -> dict[Any, int | None]:
        """Configuration -> the model on all rows that has ended, or None if it has no epoch to begin with."""
        found: dict[Any, int | None] = {}
        for model in history.of_variant(None):
            epochs = len(history.epochs(model))
            if not history.is_copy(model) and (history.stopped(model) or epochs >= self.epochs):
                found[history.configuration(model).get("key")] = model if epochs else None
        return found

    def _comparable(self, history: History, variant: Variant | None) -> History:
        """What a method sees that compares the models of one group, or those on all rows.

        A configuration whose model on all rows has failed may have no model of a group.  It counts as failed there,
        too: else a method would wait for it.
        """
        models, failed = history.of_variant(variant), list[int]()
        if variant is not None:
            known = {history.configuration(model).get("key") for model in models}
            failed = [
                model
                for model in history.of_variant(None)
                if history.failed(model) and history.configuration(model).get("key") not in known
            ]
        return history.about(models, failed)

    def _place_of_configuration(self, place: int) -> int:
        """Where the configuration of the ``place``-th model is among all configurations, for an estimate."""
        if not self.wait or self.configurations is None:
            return place // (len(self.variants) + 1)
        waiting = place - self.configurations
        return place if waiting < 0 else waiting // len(self.variants)


def missing_models(
    history: History, variants: tuple[Variant, ...], starts: dict[Any, int | None] | None = None
) -> list[NewModel]:
    """The models that configurations have never had; one that has failed would fail again.

    A configuration whose model on all rows has failed gets none.  A copy of a model needs none, since it goes on from a
    state.  ``starts``: configuration -> the model with whose weights they begin; other configurations get none yet.
    """
    lacking = {
        history.configuration(model).get("key"): set(variants)
        for model in history.of_variant(None)
        if not history.is_copy(model) and not history.failed(model)
    }
    lacking = {
        key: missing
        for key, missing in lacking.items()
        if key is not None and not history.is_whole(key) and (starts is None or key in starts)
    }
    if not lacking:  # there may be thousands of models, and this is asked after each
        return []
    for model in history.models:
        configuration = history.configuration(model)
        if configuration.get("key") in lacking and not history.is_copy(model):
            lacking[configuration["key"]].discard(variant_of(configuration))  # type: ignore[arg-type]
    for key, missing in lacking.items():
        if key is not None and not missing:
            history.has_whole(key)
    return [
        NewModel(
            key=key,
            parent=None if starts is None else starts[key],
            fold=variant.fold,
            group_number=variant.group_number,
        )
        for key, missing in sorted(lacking.items())
        for variant in variants
        if variant in missing
    ]
