"""The decisions of an earlier run, which its replay repeats at the same points of every model's training.

The replay's segments are busy at other moments than those of the earlier run. A decision that copies another
model's state therefore waits until that model, the parent, has the recorded hop, and the parent does not train
beyond that hop until then. In the earlier run the decision came before the parent's next hop was on record, so these
waits cannot form a circle.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..search.policy import Decision

Key = tuple[int, int]  # (model, epoch)


class Replay:
    """The decisions that are still to come."""

    def __init__(self, decisions: Iterable[Decision] = ()) -> None:
        self._decisions = {(decision.model, decision.epoch): decision for decision in decisions}
        # Parent -> the decisions that copy its state, and after which hop. A model that copies itself waits anyway.
        self._copied: dict[int, dict[Key, int]] = {}
        for key, decision in self._decisions.items():
            for parent, hop in copies(decision):
                self._copied.setdefault(parent, {})[key] = hop
        self.numbers = {number for decision in self._decisions.values() for number in numbers(decision)}

    def decision(self, model: int, epoch: int) -> Decision | None:
        return self._decisions.get((model, epoch))

    def holds(self, model: int, hops: int) -> bool:
        """Whether a model with so many hops must wait until its state has been copied."""
        return model in self._copied and any(hop <= hops for hop in self._copied[model].values())

    def drop(self, decision: Decision) -> None:
        """A decision is on record in this run, too."""
        key = decision.model, decision.epoch
        if self._decisions.pop(key, None) is not None:
            for parent, _ in copies(decision):
                self._copied[parent].pop(key, None)
            self.numbers.difference_update(numbers(decision))

    def forget(self, model: int) -> None:
        """A model has ended: no decision about it will come, nor about the models that would have been added."""
        for decision in [one for one in self._decisions.values() if one.model == model]:
            self.drop(decision)
            for number in numbers(decision):
                self.forget(number)


def copies(decision: Decision) -> list[tuple[int, int]]:
    """The other models whose states a decision copies, and after which hop."""
    return [
        (new.parent, new.parent_hop)
        for new in decision.added
        if new.parent is not None and new.parent_hop is not None and new.parent != decision.model
    ]


def numbers(decision: Decision) -> list[int]:
    return [new.model for new in decision.added if new.model is not None]
