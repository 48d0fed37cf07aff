"""What tells the configurations of a run apart, in few words: ``cnn, Adam(lr=0.01), batch_size=32``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from cerebro_db.core import grammar
from cerebro_db.core.errors import CerebroError


class Configuration(Protocol):
    mst_key: Any
    model_id: Any
    model_name: Any
    compile_params: Any
    fit_params: Any


def differences(configurations: Sequence[Configuration]) -> dict[int, str]:
    """mst_key -> what this configuration does not share with all others; all of it when there is but one."""
    models = _models(configurations)
    described = {one.mst_key: _described(one, models[one.model_id]) for one in configurations}
    names = list(dict.fromkeys(name for parts in described.values() for name in parts))
    if len(described) > 1:
        names = [name for name in names if len({parts.get(name) for parts in described.values()}) > 1]
    return {key: ", ".join(parts[name] for name in names if name in parts) for key, parts in described.items()}


def _models(configurations: Sequence[Configuration]) -> dict[int, str]:
    """model_id -> its name; its number where it has none, or not for itself."""
    names = {one.model_id: one.model_name for one in configurations}
    shared = [name for name in names.values() if name]
    return {number: name if shared.count(name) == 1 else f"model {number}" for number, name in names.items()}


def _described(one: Configuration, model: str) -> dict[str, str]:
    parts = {"model": model}
    for text in (one.compile_params, one.fit_params):
        try:
            found = grammar.assignments(text or "", "parameters")
        except CerebroError:
            found = {text: text}
        for name, value in found.items():
            # A blank after each comma, so that narrow columns have somewhere to break.
            told = ", ".join(str(value).split(","))
            parts[name] = told if name in ("optimizer", text) else f"{name}={told}"
    return parts
