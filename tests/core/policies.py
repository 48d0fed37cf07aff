"""Search policies that only tests use: they make every kind of decision, so that the contract is proven.

They are pure, as every policy has to be. A policy with ``own_history_only`` looks at no model but the one
that it is asked about, so its decisions cannot depend on the timing.
"""

from __future__ import annotations

from cerebro_db.core.events import Verdict
from cerebro_db.core.search.policy import Decision, History, NewConfiguration, NewModel, Policy


def with_rate(rate: float, **more: int) -> NewConfiguration:
    """Parameters with a learning rate of their own."""
    return NewConfiguration(f"optimizer='SGD(lr={rate})'", "batch_size=8", chosen={"lr": rate}, **more)


GENERATIONS = 2  # an added model may add models; those may not


class StopAfter(Policy):
    """Stops every model after some epochs."""

    asks, own_history_only = True, True

    def __init__(self, epochs: int) -> None:
        self.most = epochs
        self.name = f"stop after {epochs} epochs"

    def decide(self, history: History, model: int, epoch: int) -> Decision:
        if epoch < self.most:
            return Decision(model, epoch, Verdict.CONTINUE)
        return Decision(model, epoch, Verdict.STOP, f"it has trained {epoch} epochs")


class Branching(Policy):
    """Does one thing or another, as the digits of the model's own loss have it."""

    name, asks, own_history_only = "branching", True, True

    def __init__(self, value: str = "loss") -> None:
        self.value = value

    def decide(self, history: History, model: int, epoch: int) -> Decision:
        values = history.value(model, epoch, self.value), history.value(model, epoch, "loss")
        digits = next((int(value * 1e6) for value in values if value is not None), 0)
        verdict, reason, added = Verdict.CONTINUE, "", []
        if digits % 5 == 0:
            verdict, reason = Verdict.STOP, f"its loss is {digits} millionths"
        if history.configuration(model).get("generation", 0) < GENERATIONS:
            if digits % 4 == 1:
                added.append(NewModel(parent=model, configuration=with_rate(digits)))
            if digits % 6 == 5:
                added.append(NewModel(key=digits))
            if digits % 7 == 5:
                added.append(NewModel(key=1, parent=model, visits=(0,)))
        if added and verdict is Verdict.CONTINUE:
            verdict = Verdict.ADD
        return Decision(model, epoch, verdict, reason, tuple(added))


class StopWorseHalf(Policy):
    """Stops a model that is worse than half of those that have been there before it."""

    name, asks, own_history_only = "stop the worse half", True, False

    def decide(self, history: History, model: int, epoch: int) -> Decision:
        mine = history.value(model, epoch, "loss")
        others = [history.value(other, epoch, "loss") for other in history.models if other != model]
        known = sorted(loss for loss in others if loss is not None)
        if mine is None or not known or mine <= known[len(known) // 2]:
            return Decision(model, epoch, Verdict.CONTINUE)
        return Decision(model, epoch, Verdict.STOP, f"loss {mine} is worse than that of half of {len(known)} others")


class CopyTheBest(Policy):
    """Replaces a model that is not the best by a changed copy of the best, as long as there are few models."""

    name, asks, own_history_only = "copy the best", True, False

    def __init__(self, most: int = 12) -> None:
        self.most = most

    def decide(self, history: History, model: int, epoch: int) -> Decision:
        last = {
            other: history.value(other, history.epochs(other)[-1], "loss")
            for other in history.models
            if history.epochs(other) and not history.stopped(other)
        }
        known = {other: loss for other, loss in last.items() if loss is not None}
        if not known or len(history.models) >= self.most:
            return Decision(model, epoch, Verdict.CONTINUE)
        best = min(known, key=lambda other: (known[other], other))
        if best == model:
            return Decision(model, epoch, Verdict.CONTINUE)
        copy = NewModel(parent=best, configuration=with_rate(0.8))
        if len(known) % 2:
            return Decision(model, epoch, Verdict.ADD, "one more like the best", (copy,))
        return Decision(model, epoch, Verdict.STOP, f"model {best} is better", (copy,))


class MustNotBeAsked(Policy):
    """All decisions are on record."""

    name, asks, own_history_only = "must not be asked", True, False

    def decide(self, history: History, model: int, epoch: int) -> Decision:
        raise AssertionError(f"asked again about epoch {epoch} of model {model}")
