"""A point of a grid as the strings of a model selection table, in MADlib's form."""

from __future__ import annotations

from typing import Any

from ..errors import InvalidArgument
from .params import COMPILE_KEYS
from .vocabulary import OPTIMIZERS

DEFAULT_OPTIMIZER = "RMSprop"  # MADlib's default


def compile_text(point: dict[str, Any]) -> str:
    """``optimizer='Adam(lr=0.1)',loss='mse',metrics=['mae']``: parameters of other names go to the optimizer."""
    name = str(point.get("optimizer", DEFAULT_OPTIMIZER))
    entry = OPTIMIZERS.find(name.partition("(")[0].strip())
    arguments = [f"{key}={_optimizer_argument(value)}" for key, value in point.items() if key not in COMPILE_KEYS]
    if "(" in name and arguments:
        raise InvalidArgument(
            f"DL: optimizer {name} already has arguments, and the grid has more of them: {', '.join(arguments)}",
            hint="Write only the optimizer's name, and give all of its arguments in the grid.",
        )
    call = name if "(" in name else f"{entry.class_name if entry else name}({','.join(arguments)})"
    parts = [f"optimizer={_literal(call)}"]
    for key, value in point.items():
        if key in ("metrics", "weighted_metrics") and isinstance(value, str):
            value = [value]  # In a grid's list of metrics, each element is one choice.
        if key in COMPILE_KEYS and key != "optimizer":
            parts.append(f"{key}={_literal(value)}")
    return ",".join(parts)


def fit_text(point: dict[str, Any]) -> str:
    """``batch_size=8,epochs=1``"""
    return ",".join(f"{key}={_literal(value)}" for key, value in point.items())


def _optimizer_argument(value: Any) -> str:
    """An argument within the quotes of the optimizer.  A call, such as a learning-rate schedule, stays a call."""
    if isinstance(value, str) and value.endswith(")"):
        return value
    return _literal(value, '"')


def _literal(value: Any, quote: str = "'") -> str:
    if isinstance(value, str):
        return quote + value.replace("\\", "\\\\").replace(quote, "\\" + quote) + quote
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(_literal(item, quote) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{_literal(key, quote)}:{_literal(item, quote)}" for key, item in value.items()) + "}"
    return repr(value)
