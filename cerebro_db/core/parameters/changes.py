"""The parameters of a clone: those of another configuration with some of them changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import InvalidArgument, Unsupported
from . import custom, flat, params, writing
from .custom import Known
from .optimizers import WITH_SLOTS, canonical_optimizer, slots

KEPT = (
    "A clone keeps the architecture of its parent, with the architecture's parameters. It can change the loss,"
    " arguments of the optimizer, batch_size and other parameters of training."
)


def changed(
    compiled: dict[str, Any], fitted: dict[str, Any], changes: object, known: Known = custom.NONE
) -> tuple[str, str]:
    """The texts of the canonical compile and fit parameters after the changes, which are checked.

    The changes have the keys of a flat configuration.
    """
    if not isinstance(changes, Mapping):
        raise InvalidArgument(
            "changes must be a JSON object.", hint='For instance {"learning_rate": 0.001, "batch_size": 64}.'
        )
    if flat.ARCHITECTURE in changes:
        raise Unsupported(
            "changes cannot contain architecture: a clone takes over the weights of its parent, which fit no other"
            " architecture.",
            hint="cerebro.add_configuration() adds a model of another architecture.",
        )
    for name in changes:
        if name in flat.OF_EVERY_ARCHITECTURE:
            raise Unsupported(
                f"changes cannot contain {name}: a clone takes over the optimizer's state, which belongs to the layers"
                " that trained.",
                hint="A fit with warm_start goes on from the weights of a model, and can freeze other layers.",
            )
    for name in changes:
        if name not in flat.RESERVED:
            raise flat.unknown(name, (), "changes", KEPT)
    optimizer = compiled["optimizer"]
    if "optimizer" in changes:
        optimizer = _optimizer(compiled["optimizer"], canonical_optimizer(changes["optimizer"]))
    point, fit = _as_points(compiled, fitted, optimizer)
    asked = flat.parts(changes, (), "changes")
    fit.update(asked.fit)
    for name, value in asked.compile.items():
        if name != "optimizer":
            point["learning_rate" if name == "lr" else name] = value
    texts = writing.compile_text(point), writing.fit_text(fit)
    _require_same_optimizer(compiled, params.compile_params(texts[0], known))
    params.fit_params(texts[1])
    return texts


def texts(compiled: dict[str, Any], fitted: dict[str, Any]) -> tuple[str, str]:
    """The texts of the same parameters."""
    point, fit = _as_points(compiled, fitted, compiled["optimizer"])
    return writing.compile_text(point), writing.fit_text(fit)


def with_rate(compiled: dict[str, Any], fitted: dict[str, Any], rate: float) -> tuple[str, str]:
    """The texts of the same parameters with another learning rate."""
    point, fit = _as_points(compiled, fitted, compiled["optimizer"])
    return writing.compile_text({**point, "learning_rate": rate}), writing.fit_text(fit)


def _as_points(
    compiled: dict[str, Any], fitted: dict[str, Any], optimizer: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Canonical compile and fit parameters as points of a grid, without what is the default."""
    point = {name: value for name, value in compiled.items() if value}
    point.update({"optimizer": optimizer["class_name"], **_as_people_write(optimizer["config"])})
    defaults = params.fit_params(None)
    return point, {name: value for name, value in fitted.items() if value != defaults[name] or name == "batch_size"}


def _optimizer(parent: Mapping[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """The optimizer that is given; its class alone keeps all arguments, and without a learning rate it keeps that one.

    Otherwise a clone would get Keras' default rate without anybody having said so.
    """
    if given["class_name"] != parent["class_name"]:
        return given  # it is refused
    if not given["config"]:
        return {**given, "config": dict(parent["config"])}
    rate = {name: value for name, value in parent["config"].items() if name == "learning_rate"}
    return {**given, "config": {**rate, **given["config"]}}


def chosen(parent: Mapping[str, Any] | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """What was chosen for a clone: what was chosen for its parent, and the changes."""
    return {**(parent or {}), **{"learning_rate" if name == "lr" else name: value for name, value in given.items()}}


def _require_same_optimizer(parent: dict[str, Any], child: dict[str, Any]) -> None:
    """Refuse compile parameters of a clone whose optimizer has another class: the parent's state would not fit it."""
    before, after = parent["optimizer"], child["optimizer"]
    one, other = before["class_name"], after["class_name"]
    if one != other:
        raise Unsupported(
            f"a clone cannot change its optimizer from {one} to {other}: it takes over the optimizer's state.",
            hint=f"Change the arguments of {one}, or add a model with another optimizer by"
            " cerebro.add_configuration().",
        )
    if slots(before) != slots(after):
        changed = [name for name in WITH_SLOTS if bool(before["config"].get(name)) != bool(after["config"].get(name))]
        raise Unsupported(
            f"a clone cannot change whether {one} has {' and '.join(changed)}: it takes over a state that"
            " has other variables.",
            hint="cerebro.add_configuration() adds a model that starts with a state of its own.",
        )


def _as_people_write(config: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of an optimizer, with a learning-rate schedule as a call."""
    return {name: _call(value) if isinstance(value, Mapping) else value for name, value in config.items()}


def _call(schedule: Mapping[str, Any]) -> str:
    arguments = ",".join(f"{name}={value!r}" for name, value in schedule["config"].items())
    return f"{schedule['class_name']}({arguments})"
