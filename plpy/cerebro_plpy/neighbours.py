"""Finds the packages beside this one: folders ``cerebro_NAME`` of the code, which use this package.

The ``FUNCTIONS`` of such a package are the functions that SQL calls as ``api.FUNCTION``, by their modules.  A run that
it began has NAME among the ``others`` of its options.  Its model tables are made as plain tables, by the run itself, by
``resume`` or by ``materialize``; then ``tables.model_tables.dress`` of the package changes them.
"""

from __future__ import annotations

import os
from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

PREFIX = "cerebro_"
FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def packages() -> Iterator[Any]:
    for name in sorted(os.listdir(FOLDER)):
        if name.startswith(PREFIX) and name.isidentifier():
            package = import_module(name)
            if hasattr(package, "FUNCTIONS"):
                yield package


def module_of(function: str) -> str | None:
    """The module of a package beside this one that has this SQL function; None if none has it."""
    for package in packages():
        for module, names in package.FUNCTIONS.items():
            if function in names:
                return f"{package.__name__}.{module}"
    return None


def dress_of(options: Any) -> Callable[..., None] | None:
    """The function that changes the model tables of a run with these options; None: its tables stay plain."""
    if not options.others:
        return None
    for package in packages():
        if package.__name__[len(PREFIX) :] in options.others:
            dress: Callable[..., None] = import_module(f"{package.__name__}.tables.model_tables").dress
            return dress
    return None
