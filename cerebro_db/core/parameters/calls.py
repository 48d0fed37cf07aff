"""A name with arguments, such as ``Adam(lr=0.1)``: its spellings, and the check of its arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import InvalidArgument
from . import grammar
from .grammar import BareWord, Call
from .value_types import checked, refuse, shown
from .vocabulary import Entry, Vocabulary


def read_call(value: Any, parameter: str) -> tuple[str, dict[str | int, Any]]:
    """The name and arguments in ``Adam``, ``'Adam'``, ``'Adam(lr=1)'``, ``Adam(lr=1)`` or a serialized Keras object."""
    if isinstance(value, str) and not isinstance(value, BareWord):
        value = grammar.expression(value, parameter) if value.strip() else ""
    if isinstance(value, BareWord):
        return str(value), {}
    if isinstance(value, Call):
        return value.name, value.arguments
    if isinstance(value, dict):
        name, arguments = read_object(value, parameter)
        return name, {key: given for key, given in arguments.items()}
    refuse(parameter, value, "it must be a name, with arguments in round brackets if it has any")


def read_object(value: dict[str, Any], parameter: str) -> tuple[str, dict[str, Any]]:
    """The name and arguments of a serialized Keras object.  Its module is checked here and never used."""
    name, arguments = value.get("class_name"), value.get("config") or {}
    if not isinstance(name, str) or not isinstance(arguments, dict):
        refuse(parameter, value, 'it must be {"class_name": …, "config": {…}}')
    unknown_keys = set(value) - {"class_name", "config", "module", "registered_name", "build_config"}
    module = str(value.get("module") or "keras")
    registered = value.get("registered_name")
    if unknown_keys or module.split(".")[0] != "keras" or registered not in (None, name):
        refuse(parameter, name, "only objects of Keras itself are accepted")
    return name, {str(argument): given for argument, given in arguments.items()}


def named(entry: Entry, given: dict[str | int, Any], unnamed: Sequence[str]) -> dict[str, Any]:
    """The arguments by name; those in ``unnamed`` may be given without a name, in this order."""
    found: dict[str, Any] = {}
    for key, value in given.items():
        if isinstance(key, int) and key >= len(unnamed):
            first = f"Only {' and '.join(unnamed)} can be given without a name." if unnamed else ""
            raise InvalidArgument(
                f"{entry.class_name}: the argument {shown(value)} needs a name",
                hint=f"Write NAME=VALUE. {first} {entry.class_name} takes {', '.join(entry.arguments)}.".replace(
                    "  ", " "
                ),
            )
        name = unnamed[key] if isinstance(key, int) else key
        if name in found:
            raise InvalidArgument(f"{entry.class_name}: {name} is given twice")
        found[name] = value
    return found


def checked_arguments(vocabulary: Vocabulary, entry: Entry, given: dict[str, Any]) -> dict[str, Any]:
    """The given arguments of an optimizer, schedule, loss or metric; each has a value of its type."""
    config: dict[str, Any] = {}
    for name, value in given.items():
        value_type = entry.arguments.get(name)
        if value_type is None:
            raise InvalidArgument(
                f"{entry.class_name}: {name} is not currently accepted as a parameter.",
                hint=_closest_argument(entry, name),
            )
        if value is None and not value_type.endswith("?"):
            continue  # In Keras 2, None stood for the default.
        value = str(value) if isinstance(value, BareWord) else value
        config[name] = checked(f"{entry.class_name}.{name}", value, value_type)
    for name in entry.required:
        if name not in config:
            raise InvalidArgument(f"{vocabulary.category} {entry.class_name} needs the argument {name}")
    return config


def _closest_argument(entry: Entry, name: str) -> str:
    similar = [known for known in entry.arguments if known.replace("_", "") == name.lower().replace("_", "")]
    return f"Did you mean {similar[0]}?" if similar else f"{entry.class_name} takes {', '.join(entry.arguments)}."
