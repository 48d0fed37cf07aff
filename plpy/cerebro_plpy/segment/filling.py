"""What a segment adds to orders (paths, source of custom functions, the limit of memory), and checks in them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from cerebro_db.core.engines import DISPLAY_NAMES, ENGINES, OPTIONAL_PACKAGES
from cerebro_db.core.errors import CerebroError, GpuMissing, InvalidArgument
from cerebro_db.core.protocol import (
    Average,
    Begin,
    BeginJoint,
    BeginPrediction,
    Computation,
    CustomFunction,
    Describe,
    EndJoint,
    EngineStarted,
    Evaluate,
    Json,
    LoadRows,
    Member,
    Order,
    RehearseFusion,
    StateRef,
    StepJoint,
    Train,
    TrainerSettings,
)

from ..database.access import Database
from ..definitions import custom_functions
from ..platform import machine
from .states import OutgoingStates, ReceivedStates


def filled(
    db: Database, order: Computation[Any], received: ReceivedStates, outgoing: OutgoingStates
) -> Computation[Any]:
    """The order as the trainer gets it.  One that leaves states begins a visit."""
    if isinstance(order, StepJoint):
        return order
    if isinstance(order, EndJoint):
        return replace(order, out=str(outgoing.begin(1)[0]))
    functions = functions_of(db, order)
    for state in states_of(order):
        received.require(state)
    if isinstance(order, BeginJoint):
        member = replace(order.member, state=received.filled(order.member.state))
        return replace(order, member=member, functions=functions)
    if isinstance(order, Train):
        paths = iter(outgoing.begin(len(order.members)))

        def with_paths(member: Member) -> Member:
            out = next(paths)
            return replace(member, state=received.filled(member.state, out), out=str(out))

        try:
            groups = [
                replace(group, members=[with_paths(member) for member in group.members]) for group in order.groups
            ]
        except CerebroError:
            outgoing.undo()
            raise
        return replace(order, groups=groups, functions=functions)
    if isinstance(order, Average):
        (out,) = outgoing.begin(1)
        try:
            replicas = [replace(replica, state=received.filled(replica.state, last=True)) for replica in order.replicas]
        except CerebroError:
            outgoing.undo()
            raise
        return replace(order, replicas=replicas, functions=functions, out=str(out))
    if isinstance(order, Evaluate):
        models = [replace(model, state=received.filled(model.state)) for model in order.models]
        return replace(order, models=models, functions=functions)
    return replace(order, functions=functions)  # type: ignore[type-var]


def functions_of(db: Database, order: Computation[Any] | BeginPrediction) -> list[CustomFunction]:
    """The custom functions that an order's configurations name.  Source text comes from the server's table alone."""
    return [CustomFunction(**row) for row in custom_functions.of(db, *configurations_of(order))]


def configurations_of(order: Order[Any]) -> list[Json]:
    """The configurations of an order; of those that may be fused the first: all name the same custom functions."""
    if isinstance(order, (Train, Evaluate)):
        return order.configurations
    if isinstance(order, RehearseFusion):
        return order.configurations[:1]
    if isinstance(order, (StepJoint, EndJoint)):
        return []
    return [order.configuration]  # type: ignore[attr-defined]


def handles_of(order: Computation[Any]) -> list[str]:
    """The names of the rows that an order needs."""
    if isinstance(order, Train):
        return order.handles
    handle = getattr(order, "handle", None)
    return [] if handle is None else [handle]


def states_of(order: Computation[Any]) -> list[StateRef]:
    """The states that an order needs."""
    if isinstance(order, Train):
        return [member.state for member in order.members]
    if isinstance(order, Evaluate):
        return [model.state for model in order.models]
    if isinstance(order, BeginJoint):
        return [order.member.state]
    return [replica.state for replica in order.replicas] if isinstance(order, Average) else []


def received_by(order: Computation[Any]) -> list[str]:
    """The names of the received states that an order needs."""
    return [state.name for state in states_of(order) if state.name is not None]


def require_engine(engine: str) -> None:
    """Any user may give orders, and each name would be one more process."""
    if engine not in ENGINES:
        raise InvalidArgument(
            f"there is no engine {str(engine)[:80]!r}", hint=f"The engines are {', '.join(ENGINES.names())}."
        )


def limited(settings: TrainerSettings, limit: int | None) -> TrainerSettings:
    """The settings with the limit of memory that the user's trainers have, which models are cut to fit into.

    Trainers that use a GPU are not limited, so nobody may claim a GPU that is not there.
    """
    require_engine(settings.engine)
    if settings.gpu is not None and settings.gpu >= (there := machine.gpus()):
        raise InvalidArgument(
            f"there is no GPU {settings.gpu} here",
            hint=f"The machine has {there} of them. Without the setting gpu, trainers use processors.",
        )
    may_use = settings.memory_mb
    if limit is not None and settings.gpu is None:
        may_use = min(may_use or limit, limit)
    return replace(settings, memory_limit_mb=limit, memory_mb=may_use)


def require_gpu(settings: TrainerSettings, started: EngineStarted) -> None:
    """Refuse to compute for hours on a processor what should be on a GPU, with no limit of memory."""
    if started.no_gpu is not None:
        framework = DISPLAY_NAMES[settings.engine]
        how = "" if settings.engine in OPTIONAL_PACKAGES else " (docker/install.sh --gpu)"
        raise GpuMissing(
            f"{framework} {started.versions.get('engine_version', '')} finds no GPU, though this machine has one",
            detail=started.no_gpu,
            hint=f"Install a build of {framework} for GPUs into the trainer's environment{how}, or call with"
            " use_gpus => false. docs/install.md#no-gpu-is-found says what else may be missing.",
        )


def require_sound(order: Order[Any]) -> None:
    """Refuse documents that a trainer could not read: any user can give a segment orders."""
    if isinstance(order, Begin):
        require_sound(order.computation)
        return
    if isinstance(order, (LoadRows, Describe)) and order.layout is not None:
        _require_layout(order.layout)
    if isinstance(order, (Computation, BeginPrediction)):
        for configuration in configurations_of(order):
            for part in ("architecture", "compile", "fit"):
                if not isinstance(configuration.get(part, {}), dict):
                    raise InvalidArgument(f"the configuration's {part} has to be a JSON object")


def _require_layout(layout: Json) -> None:
    for part in ("inputs", "outputs", "fold"):
        variables = layout.get(part, [] if part == "fold" else None)
        if not isinstance(variables, list):
            raise InvalidArgument(f"the layout's {part} have to be a list")
        for place, variable in enumerate(variables):
            where = f"the layout's {part}[{place}]"
            if not isinstance(variable, dict):
                raise InvalidArgument(f"{where} has to be a JSON object")
            for name in ("name", "dtype"):
                if not isinstance(variable.get(name), str):
                    raise InvalidArgument(f"{where}.{name} has to be a text")
            shape, scale = variable.get("shape"), variable.get("scale", 1.0)
            sizes = isinstance(shape, list) and all(type(size) is int and 0 < size < 1 << 31 for size in shape)
            if not sizes or math.prod(shape or ()) >= 1 << 31:
                raise InvalidArgument(f"{where}.shape has to be a list of sizes")
            if type(scale) not in (int, float) or not scale > 0:
                raise InvalidArgument(f"{where}.scale has to be a positive number")
