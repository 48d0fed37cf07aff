"""A team that evaluates a trained model on a packed table, all of its segments at the same time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ..database.access import Database
from ..packing import visibility
from ..packing.packed import Packed
from ..predicting import teams
from ..sessions import recorder
from ..sessions.team import Team


@contextlib.contextmanager
def evaluating(
    db: Database, test: Packed, use_gpus: bool | None, memory_mb: int | None
) -> Iterator[tuple[Team, list[int]]]:
    """A team for a packed table, with the numbers of its parts: session i evaluates ``parts[i]``.

    ``memory_mb``: of the models that it will evaluate.
    """
    data = test.dataset
    parts = [number for number, part in enumerate(data.partitions) if part.rows]
    keys = [data.partitions[number].key for number in parts]
    chosen = teams.options(db, use_gpus, keys, memory_mb)
    visibility.refuse_transaction(db)
    own = bool(visibility.seen_only_here(db, [test]))
    with teams.team_of(db, keys, chosen, own=own) as team:
        if not own:
            with recorder.opened(db) as session:
                visibility.require_committed(db, session, [test])
        yield team, parts
