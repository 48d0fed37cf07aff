"""A configuration has a model on all rows, and others on parts of them: one for each fold, or one for each group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..records import dataclass
from .decision import NewModel
from .history import History
from .policy import Decision, Policy

Variant = tuple[str, int]  # "fold" or "group_number", and the number


def of_folds(folds: int) -> tuple[Variant, ...]:
    return tuple(("fold", fold) for fold in range(1, folds + 1))


def of_groups(numbers: Iterable[int]) -> tuple[Variant, ...]:
    return tuple(("group_number", number) for number in numbers)


@dataclass
class Varied(Policy):
    """Adds the models of the folds or groups to each configuration that a search or a person has added."""

    inner: Policy
    variants: tuple[Variant, ...]

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
        return self.inner.decide(history, model, epoch)

    def expected_epochs(self, place: int, done: int) -> float:
        return self.inner.expected_epochs(place, done)

    @property
    def begins(self) -> int | None:
        inner = self.inner.begins
        return None if inner is None else inner * (len(self.variants) + 1)

    def propose(self, history: History, active: int) -> Sequence[NewModel]:
        # The search counts configurations; the next one begins before the last has ended.
        configurations = active // (len(self.variants) + 1)
        return missing_models(history, self.variants) or self.inner.propose(history, configurations)

    def released(self, history: History) -> Sequence[int]:
        return self.inner.released(history)

    def extended(self, epochs: int) -> None:
        self.inner.extended(epochs)


def missing_models(history: History, variants: tuple[Variant, ...]) -> list[NewModel]:
    """The models that configurations have never had; one that has failed would fail again.

    A configuration whose model on all rows has failed gets none.  A copy of a model needs none, since it goes on from a
    state.
    """
    if history.is_known_to_have(variants):  # there may be thousands of models, and this is asked after each
        return []
    known: dict[int, set[Variant | None]] = {}
    for model in history.models:
        configuration = history.configuration(model)
        variant = variant_of(configuration)
        on_record = variant is not None or not history.failed(model)
        if history.parent(model) is None and "key" in configuration and on_record:
            known.setdefault(configuration["key"], set()).add(variant)
    missing = [
        NewModel(key=key, **dict([variant]))  # type: ignore[arg-type]
        for key, there in sorted(known.items())
        if None in there
        for variant in variants
        if variant not in there
    ]
    if not missing:
        history.has(variants)
    return missing


def variant_of(configuration: Mapping[str, Any]) -> Variant | None:
    """The fold or group that a policy is told of a model; None: it trains on all rows."""
    for name in ("fold", "group_number"):
        if configuration.get(name) is not None:
            return name, configuration[name]
    return None
