"""The hop that averages the states of the replicas of a model, which an epoch has trained at the same time."""

from __future__ import annotations

from collections.abc import Sequence

from cerebro_db.core import protocol
from cerebro_db.core.protocol import MetricStates, ModelReplica, StateRef
from cerebro_db.core.scheduling.plan import Average

from ..record.run import Model
from .unit import Units


def replicas_of(units: Units, hop: Average) -> list[tuple[Model, int]]:
    """The states that go into an average: the model, and the hop that left the state."""
    model = units.model(hop)
    return [(model, number) for number in hop.averaged if model.replicas[number].rows > 0]


def order(units: Units, hop: Average, handle: str, states: Sequence[StateRef]) -> protocol.Average:
    found = [model.replicas[number] for model, number in replicas_of(units, hop)]
    replicas = [
        ModelReplica(state, replica.rows, replica.metric_states or MetricStates({}))  # else the log was changed by hand
        for replica, state in zip(found, states)
    ]
    model = units.model(hop)
    return protocol.Average(
        model.asked.definition, handle, replicas, state_bytes=model.state_bytes, engine=model.build.engine
    )
