"""The packages beside this one: folders ``cerebro_NAME`` of the code, which use this package as they need it.

``FUNCTIONS`` of such a package says in which of its modules the functions are that SQL calls as ``api.FUNCTION``.  A
run that it began has NAME among the ``others`` of its options.  Whoever makes the model tables of such a run (the run
itself, ``resume`` or ``materialize``) makes plain ones, and then calls ``tables.model_tables.dress`` of the package,
which changes them.
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
    """The module that has this function for SQL."""
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
