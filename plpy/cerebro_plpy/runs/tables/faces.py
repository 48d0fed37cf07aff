"""Which face dresses the model tables of a run.

A face with model tables of its own form adds a key of its own to the options of the runs that it begins.  Whoever
makes the tables of such a run (the run itself, ``resume`` or ``materialize``) makes plain ones, and then calls the
function of that face.  Runs know no face: ``api.py`` adds them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable

if TYPE_CHECKING:  # every session imports this module
    from cerebro_db.core.run_options import RunOptions

Dress = Callable[..., None]  # of a Database and what was Made (model_tables.py): changes the tables

IMPORTS: dict[str, Callable[[], Dress]] = {}  # key in the ``others`` of RunOptions -> imports the function


def dress_of(options: RunOptions) -> Dress | None:
    """The function for a run with these options; None: its tables stay plain."""
    return next((imported() for option, imported in IMPORTS.items() if option in options.others), None)
