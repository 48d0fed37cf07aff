"""Which face dresses the model tables of a run.

A face with model tables of its own form writes an option of its name into the runs that it begins.  Whoever makes the
tables of such a run (the run itself, ``resume`` or ``materialize``) makes plain ones, and then calls the function of
that face.  Runs know no face: ``api.py`` adds them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Callable

Dress = Callable[..., None]  # of a Database and what was Made (model_tables.py): changes the tables

IMPORTS: dict[str, Callable[[], Dress]] = {}  # name of the option -> imports the function


def dress_of(options: Mapping[str, Any]) -> Dress | None:
    """The function for a run with these options; None: its tables stay plain."""
    return next((imported() for option, imported in IMPORTS.items() if option in options), None)
