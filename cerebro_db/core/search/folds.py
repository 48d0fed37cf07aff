"""Cross-validation: a configuration has a model on all rows, and one for each fold on the rows of the others."""

from __future__ import annotations

from collections.abc import Sequence

from ..records import dataclass
from .decision import NewModel
from .history import History
from .policy import Decision, Policy


@dataclass
class CrossValidated(Policy):
    """Adds the models of the folds to each configuration that a search or a person has added."""

    inner: Policy
    folds: int

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.inner.name

    @property
    def asks(self) -> bool:  # type: ignore[override]
        return self.inner.asks

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
        return None if inner is None else inner * (self.folds + 1)

    def propose(self, history: History, active: int) -> Sequence[NewModel]:
        configurations = active // (self.folds + 1)  # what the search counts; the next begins before the last has ended
        return without_folds(history, self.folds) or self.inner.propose(history, configurations)

    def released(self, history: History) -> Sequence[int]:
        return self.inner.released(history)

    def extended(self, epochs: int) -> None:
        self.inner.extended(epochs)


def without_folds(history: History, folds: int) -> list[NewModel]:
    """The models that configurations have never had; one that has failed would fail again.

    A configuration whose model on all rows has failed gets none.  A copy of a model needs none, since it goes on from a
    state.
    """
    known: dict[int, set[int | None]] = {}
    for model in history.models:
        configuration = history.configuration(model)
        fold = configuration.get("fold")
        on_record = fold is not None or not history.failed(model)
        if history.parent(model) is None and "key" in configuration and on_record:
            known.setdefault(configuration["key"], set()).add(fold)
    return [
        NewModel(key=key, fold=fold)
        for key, there in sorted(known.items())
        if None in there
        for fold in range(1, folds + 1)
        if fold not in there
    ]
