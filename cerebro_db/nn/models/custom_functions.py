"""Losses and metrics that an administrator registered, as the server hands them to the trainer with an order.

Only this module executes source text.  The source comes from the order's ``functions``, which the segment fills in from
a table that only administrators write; a configuration holds names and versions alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from cerebro_db.core.errors import ConfigurationFailed, UnsafeModel
from cerebro_db.core.parameters import custom
from cerebro_db.core.protocol import CustomFunction

_sources: dict[str, tuple[str, str]] = {}  # name@version -> kind, source
_functions: dict[str, Callable[..., Any]] = {}


def learn(given: Iterable[CustomFunction]) -> None:
    """Remember the sources, once they are found to be those that were registered."""
    for one in given:
        reference = custom.reference(one.name, one.version)
        if reference in _sources:
            continue  # a version never changes
        custom.check_source(one.name, one.source)
        if one.kind not in (*custom.KINDS, custom.BOTH) or custom.sha256(one.source) != one.sha256:
            raise UnsafeModel(f"the source of {reference} is not the one that was registered")
        _sources[reference] = one.kind, one.source


def known() -> custom.Known:
    """The names that a configuration may use, by kind."""
    return {
        kind: {reference: reference for reference, (its, _) in _sources.items() if kind in custom.uses(its)}
        for kind in custom.KINDS
    }


def sources(text: str) -> list[tuple[str, str, str]]:
    """Name, kind and source of each function that a text may name."""
    return [(reference, *found) for reference, found in sorted(_sources.items()) if reference in text]


def is_one(name: str) -> bool:
    return custom.split(name) is not None


def get(reference: str) -> Callable[..., Any]:
    """The function of a name and version; its source is executed when it is first asked for."""
    if reference not in _functions:
        import keras

        name = reference.partition("@")[0]
        space: dict[str, Any] = {"__name__": f"custom function {reference}", "keras": keras, "ops": keras.ops}
        try:
            exec(compile(_sources[reference][1], f"<{reference}>", "exec"), space)
        except Exception as error:
            raise ConfigurationFailed(f"the custom function {reference} cannot be defined: {error}") from error
        _functions[reference] = space[name]
    return _functions[reference]
