"""What tells the configurations of a run apart, in few words: ``model 2, Adam(lr=0.01), batch_size=32``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from cerebro_db.core import grammar
from cerebro_db.core.errors import CerebroError


class Configuration(Protocol):
    mst_key: Any
    model_id: Any
    compile_params: Any
    fit_params: Any


def differences(configurations: Sequence[Configuration]) -> dict[int, str]:
    """mst_key -> what this configuration does not share with all others; all of it when there is but one."""
    described = {one.mst_key: _described(one) for one in configurations}
    names = list(dict.fromkeys(name for parts in described.values() for name in parts))
    if len(described) > 1:
        names = [name for name in names if len({parts.get(name) for parts in described.values()}) > 1]
    return {key: ", ".join(parts[name] for name in names if name in parts) for key, parts in described.items()}


def _described(one: Configuration) -> dict[str, str]:
    parts = {"model": f"model {one.model_id}"}
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
