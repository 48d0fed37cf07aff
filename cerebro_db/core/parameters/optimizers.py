"""The parameter ``optimizer``: a class of Keras 3 with its arguments, and its learning-rate schedule if it has one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import InvalidArgument
from .calls import checked_arguments, named, read_call
from .value_types import checked, refuse, shown
from .vocabulary import DEFAULT_RATE, OPTIMIZERS, SCHEDULES, Entry

NO_RATE = "it must be a number or a learning-rate schedule"
_SCHEDULES_MODULE = "keras.optimizers.schedules"
_IGNORED = {"jit_compile", "is_legacy_optimizer"}  # Keras 2 saved them with an optimizer; they do not affect training
WITH_SLOTS = (
    "momentum",
    "amsgrad",
    "centered",
    "gradient_accumulation_steps",
    "use_ema",
)  # with them there are more variables
FEW_SLOTS = ("sgd", "adagrad", "lion", "rmsprop")  # optimizers that keep at most one number for each weight
_CLIPPING = ("clipnorm", "clipvalue", "global_clipnorm")


def canonical_optimizer(value: Any) -> dict[str, Any]:
    """The optimizer as ``{"class_name": …, "config": {…}}``."""
    name, arguments = read_call(value, "optimizer")
    entry = OPTIMIZERS.find(name)
    if entry is None:
        raise InvalidArgument(f"invalid optimizer name: {shown(name)}", hint=OPTIMIZERS.closest(name))
    by_name = named(entry, arguments, ["learning_rate"])
    given = {argument: value for argument, value in by_name.items() if argument not in _IGNORED}
    decay = _translate_keras2_arguments(entry, given)
    rate = given.get("learning_rate")
    if rate is not None and not isinstance(rate, (int, float)):
        given["learning_rate"] = _canonical_schedule(rate)
    config = checked_arguments(OPTIMIZERS, entry, given)
    if decay:
        config["learning_rate"] = _inverse_time_decay(entry, config.get("learning_rate"), decay)
    clipping = [argument for argument in _CLIPPING if config.get(argument) is not None]
    if len(clipping) > 1:
        raise InvalidArgument(f"optimizer {entry.class_name}: only one of {' and '.join(clipping)} can be given")
    return {"class_name": entry.class_name, "config": config}


def slots(optimizer: Mapping[str, Any]) -> tuple[Any, ...]:
    """Equal for optimizers whose states have the same variables, but for the learning rate, which may have none."""
    config = optimizer.get("config") or {}
    return optimizer["class_name"], *(bool(config.get(name)) for name in WITH_SLOTS)


def _translate_keras2_arguments(entry: Entry, given: dict[str, Any]) -> float:
    """Rename the arguments of Keras 2 in ``given``, and take ``decay`` out of it.  Returns the decay."""
    if "lr" in given:
        if "learning_rate" in given:
            raise InvalidArgument(
                f"optimizer {entry.class_name}: lr and learning_rate are the same argument; give only one of them"
            )
        given["learning_rate"] = given.pop("lr")
    if entry.class_name == "Nadam" and given.get("schedule_decay") in (0.004, None):
        given.pop("schedule_decay", None)  # Keras 3 has this value built in.
    return float(checked("decay", given.pop("decay", None), "nonneg", 0))


def _inverse_time_decay(entry: Entry, rate: Any, decay: float) -> dict[str, Any]:
    """The schedule that Keras 2's ``decay`` stands for: in step t the learning rate is rate / (1 + decay * t)."""
    if isinstance(rate, dict):
        raise InvalidArgument(f"optimizer {entry.class_name}: decay cannot be combined with a learning-rate schedule")
    initial = DEFAULT_RATE.get(entry.class_name, 0.001) if rate is None else rate
    config = {"initial_learning_rate": initial, "decay_steps": 1, "decay_rate": decay, "staircase": False}
    return _canonical_schedule({"class_name": "InverseTimeDecay", "config": config})


def _canonical_schedule(value: Any) -> dict[str, Any]:
    if isinstance(value, (list, bool)) or (isinstance(value, dict) and "class_name" not in value):
        refuse("learning_rate", value, NO_RATE, 'For instance 0.01 or {"class_name": "CosineDecay", "config": {…}}.')
    name, given = read_call(value, "learning_rate")
    entry = SCHEDULES.find(name)
    if entry is None:
        refuse("learning_rate", value, NO_RATE, SCHEDULES.closest(name))
    config = checked_arguments(SCHEDULES, entry, named(entry, given, entry.required))
    if entry.class_name == "PiecewiseConstantDecay" and len(config["values"]) != len(config["boundaries"]) + 1:
        refuse("learning_rate", name, "it needs one more value than boundaries")
    # Keras finds an optimizer or a loss by its class name alone, but a schedule only by module and class name.
    return {"module": _SCHEDULES_MODULE, "class_name": entry.class_name, "config": config, "registered_name": None}
