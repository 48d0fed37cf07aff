"""What a segment adds to an order of the driver: paths of files, and the source of custom functions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cerebro_db.core.protocol import (
    BeginPrediction,
    Computation,
    CustomFunction,
    Evaluate,
    Group,
    Json,
    Member,
    Order,
    RehearseFusion,
    Train,
)

from ..database.access import Database
from ..definitions import custom_functions
from .states import OutgoingStates, ReceivedStates


def filled(
    db: Database, order: Computation[Any], received: ReceivedStates, outgoing: OutgoingStates
) -> Computation[Any]:
    """The order as the trainer gets it.  A Train order begins a visit."""
    functions = functions_of(db, order)
    if isinstance(order, Train):
        paths = iter(outgoing.begin(len(order.members)))

        def with_paths(member: Member) -> Member:
            return replace(member, state=received.filled(member.state), out=str(next(paths)))

        groups = [Group([with_paths(member) for member in group.members]) for group in order.groups]
        return replace(order, groups=groups, functions=functions)
    if isinstance(order, Evaluate):
        return replace(order, state=received.filled(order.state), functions=functions)
    return replace(order, functions=functions)  # type: ignore[type-var]


def functions_of(db: Database, order: Computation[Any] | BeginPrediction) -> list[CustomFunction]:
    """The custom functions that an order's configurations name.  Source text comes from the server's table alone."""
    found = [CustomFunction(**row) for one in configurations_of(order) for row in custom_functions.of(db, one)]
    return list({(function.name, function.version): function for function in found}.values())


def configurations_of(order: Order[Any]) -> list[Json]:
    """One configuration for all that are built alike or fused: they name the same custom functions."""
    if isinstance(order, Train):
        return [group.members[0].configuration for group in order.groups]
    if isinstance(order, RehearseFusion):
        return order.configurations[:1]
    return [order.configuration]  # type: ignore[attr-defined]


def received_by(order: Computation[Any]) -> list[str]:
    """The names of the received states that an order needs."""
    states = [member.state for member in order.members] if isinstance(order, Train) else []
    if isinstance(order, Evaluate):
        states = [order.state]
    return [state.name for state in states if state.name is not None]
