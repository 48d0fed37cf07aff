"""The decisions of an earlier run, which its replay repeats at the same points of every model's training.

The replay's segments are busy at other moments than those of the earlier run. A decision that copies another
model's state therefore waits until that model, the parent, has the recorded hop, and the parent does not train
beyond that hop until then. In the earlier run the decision came before the parent's next hop was on record, so these
waits cannot form a circle. Decisions about the run as a whole are repeated at once, and a stopped model that went on
goes on directly after its stop: when that happens has no influence on any model's numbers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from ..events import Verdict
from ..search.policy import Decision

NOT_REPEATED = (Verdict.BUDGET, Verdict.REFUSE)  # they change no model


class Replay:
    """The decisions that are still to come."""

    def __init__(self, decisions: Iterable[Decision] = ()) -> None:
        # Model -> the decisions about it, in their order. None: those about the run as a whole.
        self._about: dict[int | None, deque[Decision]] = {}
        # Parent -> the decisions that copy its state, and after which hop. A model that copies itself waits anyway.
        self._copied: dict[int, list[tuple[Decision, int]]] = {}
        self._going_on: set[int] = set()  # models that are stopped and go on at some time
        for decision in decisions:
            if decision.verdict in NOT_REPEATED:
                continue
            self._about.setdefault(decision.model, deque()).append(decision)
            for parent, hop in copies(decision):
                self._copied.setdefault(parent, []).append((decision, hop))
            if decision.verdict is Verdict.GO_ON and decision.model is not None:
                self._going_on.add(decision.model)
        self.numbers = {number for decision in self._all() for number in numbers(decision)}
        self.keys = {key for decision in self._all() for key in keys(decision)}

    def _all(self) -> Iterator[Decision]:
        return (decision for about in self._about.values() for decision in about)

    def due(self, model: int, hops: int, visits: int) -> Decision | None:
        """The next decision about a model, if it came when the model had so many hops of so many visits per epoch."""
        about = self._about.get(model)
        if not about or about[0].verdict is Verdict.GO_ON or point(about[0], visits) != hops:
            return None
        return about[0]

    def expects(self, model: int) -> bool:
        """Whether there are decisions about a model to come."""
        return bool(self._about.get(model))

    def about_the_run(self) -> list[Decision]:
        return list(self._about.get(None, ()))

    def going_on(self) -> list[Decision]:
        """Of each model whose next decision lets it go on after it was stopped, that decision."""
        fronts = [self._about[model][0] for model in sorted(self._going_on)]
        return [decision for decision in fronts if decision.verdict is Verdict.GO_ON]

    def holds(self, model: int, hops: int) -> bool:
        """Whether a model with so many hops must wait until its state has been copied."""
        return model in self._copied and any(hop <= hops for _, hop in self._copied[model])

    def drop(self, decision: Decision) -> bool:
        """A decision is on record in this run, too. Returns whether it is one of the earlier run."""
        about = self._about.get(decision.model, ())
        for place, one in enumerate(about):
            if same(one, decision):
                self._forget(one)
                del self._about[decision.model][place]
                self._settle(decision.model)
                return True
        return False

    def forget(self, model: int) -> None:
        """A model has ended: no decision about it will come, nor about the models that would have been added."""
        for decision in self._about.pop(model, ()):
            self._forget(decision)
            for number in numbers(decision):
                self.forget(number)
        self._settle(model)

    def _forget(self, decision: Decision) -> None:
        for parent, _ in copies(decision):
            self._copied[parent] = [(one, hop) for one, hop in self._copied[parent] if one is not decision]
        self.numbers.difference_update(numbers(decision))
        self.keys.difference_update(keys(decision))

    def _settle(self, model: int | None) -> None:
        if model is not None and not any(one.verdict is Verdict.GO_ON for one in self._about.get(model, ())):
            self._going_on.discard(model)


def same(one: Decision, other: Decision) -> bool:
    return (one.model, one.epoch, one.hop, one.verdict, one.by, numbers(one)) == (
        other.model, other.epoch, other.hop, other.verdict, other.by, numbers(other)
    )  # fmt: skip


def point(decision: Decision, visits: int) -> int:
    """After how many hops of the model a decision about it came, if it has so many visits per epoch."""
    assert decision.epoch is not None
    return decision.epoch * visits if decision.hop is None else decision.hop


def copies(decision: Decision) -> list[tuple[int, int]]:
    """The other models whose states a decision copies, and after which hop."""
    found = {
        (new.parent, new.parent_hop): None  # thousands of models may start from one state
        for new in decision.added
        if new.parent is not None and new.parent_hop is not None and new.parent != decision.model
    }
    return list(found)


def numbers(decision: Decision) -> list[int]:
    return [new.model for new in decision.added if new.model is not None]


def keys(decision: Decision) -> list[int]:
    """Of the configurations that a decision adds."""
    return [new.key for new in decision.added if new.configuration is not None and new.key is not None]
