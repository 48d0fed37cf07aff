"""Describes each configuration of a run by the parameters that differ: ``cnn, Adam(lr=0.01), batch_size=32``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Protocol

from cerebro_db.core.errors import CerebroError
from cerebro_db.core.parameters import grammar

DIGITS = 5  # significant digits of a number that a search has drawn
LONG_NUMBER = re.compile(r"\d+\.\d+(?:[eE][-+]?\d+)?")


class Configuration(Protocol):
    configuration: Any
    model_id: Any
    model_name: Any
    compile_params: Any
    fit_params: Any


def differences(configurations: Sequence[Configuration]) -> dict[int, str]:
    """The parameters of each configuration that are not the same in all. A single one is described in full.

    Numbers are rounded, if no two configurations read the same then.
    """
    models = _models(configurations)
    described = {one.configuration: _described(one, models[one.model_id]) for one in configurations}
    names = list(dict.fromkeys(name for parts in described.values() for name in parts))
    if len(described) > 1:
        names = [name for name in names if len({parts.get(name) for parts in described.values()}) > 1]
    exact = {key: ", ".join(parts[name] for name in names if name in parts) for key, parts in described.items()}
    short = {key: LONG_NUMBER.sub(_rounded, text) for key, text in exact.items()}
    return short if len(set(short.values())) == len(set(exact.values())) else exact


def _rounded(number: re.Match[str]) -> str:
    digits = sum(character.isdigit() for character in number[0].lower().partition("e")[0].lstrip("0."))
    return f"{float(number[0]):.{DIGITS}g}" if digits > DIGITS else number[0]


def _models(configurations: Sequence[Configuration]) -> dict[int, str]:
    """model_id -> the architecture's name, or its number if it has no name or shares it with another."""
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
            # A blank after each comma, so that lines can be broken in narrow columns.
            told = ", ".join(str(value).split(","))
            parts[name] = told if name in ("optimizer", text) else f"{name}={told}"
    return parts
