"""Segments in memory: trainers that hash, and what goes wrong with them.

A state is a text: the fold of all that made it.  Equal checksums prove equal visits, in equal order, on equal rows.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from cerebro_db.core import protocol
from cerebro_db.core.errors import ConfigurationFailed, CorruptState, RowsLost, TrainerFailed, WrongState
from cerebro_db.core.protocol import Failure, MetricStates, Origin, StateRef

# -- what trainers compute -----------------------------------------------------------------------------------


def checksum(state: str) -> str:
    return hashlib.sha256(state.encode()).hexdigest()


def seeded(seed: int) -> str:
    return f"seed {seed}"


def trained(state: str, handle: str, shuffle_seed: int) -> str:
    return checksum(f"{state} {handle} {shuffle_seed}")


def averaged(replicas: Sequence[tuple[str, int]]) -> str:
    return checksum(f"average {list(replicas)}")


def loss_of(state: str, handle: str = "") -> float:
    """A fraction whose products and sums with numbers of rows are exact."""
    return int(checksum(f"loss {state} {handle}")[:6], 16) / 16**6


def rows_of(handle: str) -> int:
    return 10 + 3 * int(handle.split("/")[1])


def counted(state: str, handle: str) -> dict[str, list[float]]:
    """What the metrics count over the rows of a handle."""
    rows = rows_of(handle)
    return {"loss": [loss_of(state, handle) * rows, rows], "accuracy": [loss_of(state, handle + "a") * rows, rows]}


def added_up(parts: Sequence[dict[str, list[float]]]) -> dict[str, list[float]]:
    return {name: [sum(part[name][place] for part in parts) for place in (0, 1)] for name in ("loss", "accuracy")}


# -- faults ---------------------------------------------------------------------------------------------------


@dataclass
class Faults:
    """What goes wrong, and how often.  All but ``broken``, ``killers`` and ``unevaluable`` passes."""

    chance: random.Random
    broken: dict[int, int] = field(default_factory=dict)  # seed of a model -> the visit in which it cannot train
    killers: dict[int, int] = field(default_factory=dict)  # … in which it ends its trainer
    diverging: dict[int, int] = field(default_factory=dict)  # … after which its loss is no number
    unevaluable: set[int] = field(default_factory=set)  # seeds of models
    left: int = 0  # units that may fail
    crash_at: int = -1  # the number of the answer at which the driver is gone
    cancel_at: int = -1  # the number of the look for a cancel that finds one
    forgets: float = 0.0  # how often a trainer has a state no more, or a file is gone
    readers: float = 0.1  # how often somebody reads a table that is to be emptied
    happened: int = 0

    def strikes(self, likely: float, weight: int = 1) -> bool:
        if self.left < weight or self.chance.random() >= likely:
            return False
        self.left -= weight
        self.happened += 1
        return True


# -- trainers -------------------------------------------------------------------------------------------------


class Host(Protocol):
    """What a trainer knows of the machine that it runs on."""

    faults: Faults
    places: list[str]
    state_bytes: int
    expected_bytes: int  # before the first visit
    merges: bool  # whether metrics are no means, so that trainers merge them
    files: dict[tuple[str, str], str]  # place, path -> the state that a segment keeps
    hops: dict[str, int]  # state -> how many hops have led to it
    seen: Counter[str]  # what happened how often

    def next_pid(self) -> int: ...

    def next_file(self, place: str) -> str: ...


class Trainer:
    """A segment's process and its trainer."""

    def __init__(self, host: Host, segment: int) -> None:
        self.host, self.segment = host, segment
        self.pid = self.worker_pid = host.next_pid()
        self.place = host.places[segment]
        self.rows: set[str] = set()
        self.streamed: set[str] = set()
        self.received: dict[str, str] = {}
        self.resident: dict[str, str] = {}  # token -> state
        self.out: list[list[str]] = []  # of each visit
        self.begun: Any = None  # the answer that the trainer works on
        self.steps = 0  # until the answer is there

    def obey(self, order: Any) -> Any:
        if isinstance(order, protocol.Begin):
            assert self.begun is None, "a trainer that computes was given another order"
            self.host.seen["orders that share the session"] += 1
            self.begun, self.steps = self._guarded(order.computation), self.host.faults.chance.randrange(3)
            return protocol.answers.Done()
        if isinstance(order, protocol.CollectResult):
            assert self.begun is not None, "nothing was begun"
            if self.steps:
                self.steps -= 1
                return protocol.Collected()
            answer, self.begun = self.begun, None
            return answer if isinstance(answer, Failure) else protocol.Collected(protocol.encode_answer(answer))
        return self._guarded(order)

    def _guarded(self, order: Any) -> Any:
        try:
            return self._obey(order)
        except (ConfigurationFailed, CorruptState, RowsLost, TrainerFailed, WrongState) as error:
            return Failure.of(error)

    def _obey(self, order: Any) -> Any:
        if isinstance(order, protocol.LoadRows):
            assert order.handle in self.streamed, "rows are loaded that were not sent"
            self.rows.add(order.handle)
            return protocol.answers.RowsLoaded(order.rows, 0)
        if isinstance(order, protocol.DropRows):
            self.rows.discard(order.handle)
            self.streamed.discard(order.handle)
            return protocol.answers.Done()
        if isinstance(order, protocol.DropStates):
            for name in order.names:
                self.received.pop(name, None)
            return protocol.answers.Done()
        assert self.begun is None, "a trainer that computes was given another order"
        if isinstance(order, protocol.Describe):
            keys = [one["compile"]["group"] for one in (order.configuration, *order.others)]
            return protocol.Described(
                order.configuration["compile"]["seed"] % 3, self.host.expected_bytes, [], [], keys, 0, 0, 0.0, "", 0
            )
        if not {*getattr(order, "handles", [order.handle])} <= self.rows:
            raise RowsLost("the rows are gone")
        if self.host.faults.strikes(0.02, weight=2):
            self._die(keeps_rows=self.host.faults.chance.random() < 0.5)
        if isinstance(order, protocol.RehearseFusion):
            return protocol.FusionRehearsed(alone=1.0, fused=self.host.faults.chance.choice((0.5, 2.0)))
        return {
            protocol.Train: self._train,
            protocol.Average: self._average,
            protocol.Evaluate: self._evaluate,
            protocol.MergeMetrics: self._merge,
        }[type(order)](order)

    def _die(self, *, keeps_rows: bool) -> None:
        self.host.seen["trainers lost"] += 1
        self.pid = self.host.next_pid()
        self.resident.clear()
        if not keeps_rows:
            self.rows.clear()
        raise TrainerFailed("the trainer has died")

    def _state(self, ref: StateRef, seed: int) -> str:
        if ref.origin is Origin.SEED:
            return seeded(seed)
        if ref.origin is Origin.RESIDENT:
            if ref.token not in self.resident:
                self.host.seen["states that are gone"] += 1
                raise WrongState("the state is not in memory")
            self.host.seen["resident states"] += 1
            return self.resident[ref.token]
        if ref.left is not None:
            state = self.host.files.pop((self.place, ref.left), None)
            if state is None:
                self.host.seen["states that are gone"] += 1
                raise WrongState("the file is gone")
            self.host.seen["files taken over"] += 1
        else:
            if ref.name not in self.received:
                self.host.seen["states that had moved"] += 1
                raise CorruptState("the state was not received")
            state = self.received.pop(ref.name)
        if ref.sha256 is not None:
            assert checksum(state) == ref.sha256, "another state than the one on record"
        return state

    def _states(self, members: Sequence[tuple[StateRef, int]]) -> list[str]:
        """All states, before any of them is used: what is gone is repeated as a whole."""
        return [self._state(ref, seed) for ref, seed in members]

    def _train(self, order: protocol.Train) -> Any:
        faults, members = self.host.faults, order.members
        states = iter(self._states([(member.state, member.seed) for member in members]))
        groups, out = [], self._new_visit()
        self.host.seen["orders of several groups"] += len(order.groups) > 1
        self.host.seen["fused visits"] += any(len(group.members) > 1 for group in order.groups)
        for group in order.groups:
            befores = [next(states) for _ in group.members]
            self._require_life(order, group.members, befores)
            failing = [
                member
                for member, before in zip(group.members, befores)
                if any(faults.broken.get(member.seed) == visit for visit in self._visits_of(member, before))
                or any(one.evaluated for one in member.visits)
                and self._seed(order, member) in faults.unevaluable
            ]
            if failing:
                out += [""] * len(group.members)
                groups.append(protocol.TrainedGroup(error=Failure.of(ConfigurationFailed("it cannot train"))))
                continue
            answers = [self._chain(order, member, before) for member, before in zip(group.members, befores)]
            groups.append(protocol.TrainedGroup(answers, {"train": 0.5 * len(answers)}))
        return self._answer(groups, keeps=len(members) == 1 and bool(out[0]))

    def _require_life(self, order: protocol.Train, members: Sequence[protocol.Member], befores: Sequence[str]) -> None:
        for member, before in zip(members, befores):
            if self.host.faults.killers.get(member.seed) in self._visits_of(member, before):
                self.host.faults.happened += 1
                self._die(keeps_rows=True)

    def _visits_of(self, member: protocol.Member, before: str) -> range:
        """The numbers of a member's visits in this order."""
        first = self._visit_of(before)
        return range(first, first + len(member.visits))

    def _seed(self, order: Any, model: Any) -> int:
        """What tells the configurations apart that cannot be evaluated."""
        return int(order.configurations[model.configuration]["compile"]["seed"])

    def _chain(self, order: protocol.Train, member: protocol.Member, before: str) -> protocol.TrainedMember:
        """The visits of a member, one after the other, until one before that with a loss that is no number."""
        visits: list[protocol.TrainedVisit] = []
        self.host.seen["chains of several visits"] += len(member.visits) > 1
        assert len(member.visits) == 1 or member.state.origin is not Origin.RESIDENT, "a chain may load its state twice"
        state, earlier = before, member.metric_states
        for number, visit in zip(self._visits_of(member, before), member.visits):
            diverges = self.host.faults.diverging.get(member.seed) == number
            if diverges and visits:
                break
            after = trained(state, order.handle, visit.shuffle_seed)
            judged = visit.evaluated and not diverges
            evaluations = [self._evaluated(after, one.handle) for one in member.evaluations if judged]
            self.host.seen["evaluations within chains"] += bool(evaluations)
            visits.append(self._visit(order.handle, state, after, earlier, diverges, evaluations))
            state, earlier = after, None
            if diverges:
                break
        out = self.out[-1]
        out.append(state)
        left = protocol.OutgoingState(len(out) - 1, self.host.state_bytes, checksum(state), 0, 1, token=state)
        return protocol.TrainedMember(visits, left)

    def _average(self, order: protocol.Average) -> Any:
        states = self._states([(replica.state, 0) for replica in order.replicas])
        after, out = averaged([(state, one.rows) for state, one in zip(states, order.replicas)]), self._new_visit()
        out.append(after)
        self.host.hops[after] = self._visit_of(states[0])
        means = added_up([one.metric_states.means for one in order.replicas])
        state = protocol.OutgoingState(0, self.host.state_bytes, checksum(after), 0, 1)
        loss = means["loss"][0] / means["loss"][1]
        member = protocol.TrainedMember([protocol.TrainedVisit(0, 0, loss, {}, MetricStates(means), True)], state)
        return self._answer([protocol.TrainedGroup([member], {"train": 0.1})], keeps=False)

    def _visit_of(self, state: str) -> int:
        """The number of the visit that starts from a state."""
        return self.host.hops.get(state, 0) + 1

    def _new_visit(self) -> list[str]:
        self.out.append([])
        return self.out[-1]

    def _visit(
        self,
        handle: str,
        before: str,
        after: str,
        earlier: MetricStates | None,
        diverges: bool,
        evaluations: list[protocol.EvaluatedModel],
    ) -> protocol.TrainedVisit:
        self.host.hops[after] = self._visit_of(before)
        means = added_up([*([] if earlier is None else [earlier.means]), counted(after, handle)])
        return protocol.TrainedVisit(
            rows_of(handle), 1, math.nan if diverges else loss_of(after, handle),
            {"accuracy": means["accuracy"][0] / means["accuracy"][1]}, MetricStates(means), not diverges, 0.1,
            evaluations,
        )  # fmt: skip

    def _answer(self, groups: list[Any], *, keeps: bool) -> Any:
        chance, out, left = self.host.faults.chance, self.out[-1], []
        self.resident.clear()
        if keeps and chance.random() < 0.8:
            self.resident[out[0]] = out[0]
        for state in out:
            path = self.host.next_file(self.place) if chance.random() < 0.6 else None
            if path is not None and state:
                self.host.files[self.place, path] = state
            left.append(path)
        return protocol.Trained(groups, len(self.out) - 1, self.worker_pid, self.pid, list(self.resident), left)

    def _evaluate(self, order: protocol.Evaluate) -> Any:
        models = []
        states: dict[tuple[Any, ...], str] = {}  # a model may be evaluated on the rows of several groups
        for model in order.models:
            # A trainer that meets a state which is gone has answered for nothing.
            key = model.configuration, model.state.origin, model.state.name, model.state.token
            if key not in states:
                states[key] = self._state(model.state, self._seed(order, model))
            state = states[key]
            if self._seed(order, model) in self.host.faults.unevaluable:
                models.append(protocol.EvaluatedModel(error=Failure.of(ConfigurationFailed("it cannot be evaluated"))))
                continue
            models.append(self._evaluated(state, order.handle))
            if model.state.origin is not Origin.RESIDENT and self.host.faults.chance.random() < 0.5:
                self.resident.clear()
        return protocol.Evaluated(models, self.worker_pid, self.pid, list(self.resident))

    def _evaluated(self, state: str, handle: str) -> protocol.EvaluatedModel:
        means = added_up([counted(state, handle)])
        figures = {name: total / count for name, (total, count) in means.items()}
        loss = figures.pop("loss")
        others = "others" if self.host.merges else None
        return protocol.EvaluatedModel(rows_of(handle), loss, figures, MetricStates(means, others), {"evaluate": 0.2})

    def _merge(self, order: protocol.MergeMetrics) -> Any:
        means = added_up([one.means for one in order.states])
        return protocol.answers.MetricsMerged({"accuracy": means["accuracy"][0] / means["accuracy"][1]})
