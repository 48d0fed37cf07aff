"""A search on simulated segments: models are epochs that take some time, and losses that a function says.

It does what the driver does with a policy's answers, and checks that nothing trains after its stop, and that no segment
is idle while a model could train.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from cerebro_db.core.parameters import params
from cerebro_db.core.search.clock import RunClock
from cerebro_db.core.search.policy import Decision, History, NewModel, Objective, Policy, Verdict

Loss = Callable[[dict[str, Any], int], float]  # of a point after so many epochs of training


@dataclass
class Simulation:
    policy: Policy
    loss: Loss
    epochs: int
    segments: int = 3
    seed: int = 0
    failures: float = 0.0  # the chance that a model fails in an epoch
    fixed: list[dict[str, Any]] = field(default_factory=list)  # configurations that are there from the start
    objective: Objective = Objective()
    seconds: float | None = None  # after which no epoch begins; a budget
    epoch_seconds: Callable[[float], float] = lambda now: 1.0  # the mean of an epoch that begins now
    architecture: dict[str, Any] = field(default_factory=dict)  # of all models, as JSON of Keras

    def __post_init__(self) -> None:
        self.history = History(self.objective)
        self.chance = random.Random(self.seed)
        self.points: dict[int, dict[str, Any]] = {}
        self.trained: dict[int, int] = {}  # epochs, with those of the models that a model is a copy of
        self.waiting: list[int] = []  # for a segment
        self.busy: list[tuple[float, int]] = []
        self.now = self.idle = self.idle_before_the_last_began = 0.0
        self.units = 0
        self.most_active = 0
        self.epochs_begun: list[tuple[float, int]] = []  # when, and of which model
        self.decisions: list[Decision] = []
        for point in self.fixed:
            self._begin(point, None)

    @property
    def active(self) -> int:
        return len(self.waiting) + len(self.busy)

    def run(self) -> Simulation:
        self._propose()
        while self.waiting or self.busy:
            if self.seconds is not None and self.now >= self.seconds:
                self.waiting.clear()
                if not self.busy:
                    break
            while self.waiting and len(self.busy) < self.segments:
                model = self.waiting.pop(0)
                assert not self.history.stopped(model) and not self.history.failed(model)
                each = self.epoch_seconds(self.now)
                heapq.heappush(self.busy, (self.now + each * self.chance.uniform(0.5, 1.5), model))
                self.epochs_begun.append((self.now, model))
            self.most_active = max(self.most_active, self.active)
            before, (self.now, model) = self.now, heapq.heappop(self.busy)
            self.idle += (self.segments - len(self.busy) - 1) * (self.now - before)
            self.units += 1
            self._epoch(model)
        return self

    def _look_at_clock(self) -> None:
        left = None if self.seconds is None else self.seconds - self.now
        each = self.epoch_seconds(self.now) if self.units else None
        self.history.clock = RunClock(self.seconds, left, self.segments, each)

    def _epoch(self, model: int) -> None:
        self._look_at_clock()
        epoch = len(self.history.epochs(model)) + 1
        if self.chance.random() < self.failures:
            self.history.fails(model)
            for other in self.policy.released(self.history):
                self._decided(Decision(other, len(self.history.epochs(other)), Verdict.GO_ON))
                self.waiting.append(other)
            self._propose()
            return
        self.trained[model] += 1
        self.history.trained(model, epoch, epoch, 10, self.loss(self.points[model], self.trained[model]), {})
        self.history.complete(model, epoch)
        decision = self.policy.decide(self.history, model, epoch)
        self._decided(decision)
        self.waiting += decision.gone_on
        if decision.verdict is not Verdict.STOP and epoch < self.epochs:
            self.waiting.append(model)
        self._propose()

    def _decided(self, decision: Decision) -> None:
        assert all(self.history.stopped(other) for other in decision.gone_on)
        first = len(self.history.models) + 1
        added = tuple(replace(new, model=first + place) for place, new in enumerate(decision.added))
        decision = replace(decision, added=added)
        for new in added:
            assert new.configuration is not None
            self._begin(dict(new.configuration.chosen), new)
        self.history.decided(decision)
        self.decisions.append(decision)

    def _begin(self, point: dict[str, Any], new: NewModel | None) -> None:
        self.idle_before_the_last_began = self.idle
        model = len(self.history.models) + 1
        self.points[model] = point
        self.trained[model] = self.trained[new.parent] if new is not None and new.parent else 0
        own = new.configuration if new is not None else None
        told = (
            {"compile": params.compile_params(own.compile_params), "fit": params.fit_params(own.fit_params)}
            if own
            else {}
        )
        self.history.begins(model, {**told, "architecture": self.architecture, "chosen": point})
        self.waiting.append(model)

    def _propose(self) -> None:
        for _ in range(1000):
            self._look_at_clock()
            proposed = self.policy.propose(self.history, self.active)
            if not proposed:
                return
            for new in proposed:
                assert new.configuration is not None
                self._decided(Decision(None, None, Verdict.ADD, added=(new,)))
        raise AssertionError("it proposes for ever")

    @property
    def best(self) -> float:
        return min(
            score
            for model in self.history.models
            for epoch in self.history.epochs(model)
            if (score := self.history.score(model, epoch)) is not None
        )
