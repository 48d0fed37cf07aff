"""Describes each configuration of a run by the parameters that differ: ``mlp, units=64, learning_rate=0.01``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

DIGITS = 5  # significant digits of a number that a search has drawn
LONG_NUMBER = re.compile(r"\d+\.\d+(?:[eE][-+]?\d+)?")
ALONE = ("architecture", "optimizer")  # their values need no name


class Configuration(Protocol):
    configuration: Any
    architecture: Any
    parameters: Any


def differences(configurations: Sequence[Configuration]) -> dict[int, str]:
    """The parameters of each configuration that are not the same in all. A single one is described in full.

    Numbers are rounded, if no two configurations read the same then.
    """
    described = {one.configuration: _described(one) for one in configurations}
    names = list(dict.fromkeys(name for parts in described.values() for name in parts))
    if len(described) > 1:
        names = [name for name in names if len({parts.get(name) for parts in described.values()}) > 1]
    exact = {key: ", ".join(parts[name] for name in names if name in parts) for key, parts in described.items()}
    short = {key: LONG_NUMBER.sub(_rounded, text) for key, text in exact.items()}
    return short if len(set(short.values())) == len(set(exact.values())) else exact


def _rounded(number: re.Match[str]) -> str:
    digits = sum(character.isdigit() for character in number[0].lower().partition("e")[0].lstrip("0."))
    return f"{float(number[0]):.{DIGITS}g}" if digits > DIGITS else number[0]


def _described(one: Configuration) -> dict[str, str]:
    told = {name: _told(value) for name, value in {"architecture": one.architecture, **one.parameters}.items()}
    return {name: value if name in ALONE else f"{name}={value}" for name, value in told.items()}


def _told(value: Any) -> str:
    """``0.1``, ``mae, auc``, ``ExponentialDecay(initial_learning_rate=0.1, decay_rate=0.5)``"""
    if isinstance(value, Mapping) and "class_name" in value:
        config = value.get("config") or {}
        return f"{value['class_name']}({', '.join(f'{name}={_told(one)}' for name, one in config.items())})"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {_told(one)}" for name, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_told, value)) + "]"
    return str(value)
