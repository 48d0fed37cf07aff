"""``madlib_keras_evaluate``: a trained model's loss and metric on a packed table."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from cerebro_db.core.metrics import first
from cerebro_db.core.sql import sql

from .. import platform
from ..data import packed, visibility
from ..data.packed import Packed
from ..database import relations
from ..database.access import Database
from ..database.entry import entry
from ..sessions import recorder
from ..sessions.team import Team
from . import teams, trainers
from .trained import read_model


@entry(called="madlib_keras_evaluate error")
def keras_evaluate(
    db: Database, model_table: str, test_table: str, output_table: str, use_gpus: bool | None, mst_key: int | None
) -> None:
    model = read_model(db, model_table, mst_key)
    output = relations.new(db, output_table)
    test = packed.read(db, test_table, argument="test_table")
    packed.require_same_shapes(model.layout.to_json(), model.table.text, test)
    with evaluating(db, test, use_gpus) as (team, parts):
        loss, metrics = teams.again_if_lost(team, lambda: teams.evaluate(db, team, model, test.dataset, parts))
    _, metric = first(metrics)
    db.execute(
        sql(
            "CREATE TABLE {output} AS SELECT $1::double precision AS loss, $2::double precision AS metric,"
            " $3::text[] AS metrics_type, $4::text AS loss_type {distributed_by}",
            output=output.sql,
            distributed_by=platform.of(db).distributed_by("loss"),
        ),
        ("double precision", "double precision", "text[]", "text"),
        loss,
        metric,
        model.metric_names,
        model.loss_name,
    )


@contextlib.contextmanager
def evaluating(db: Database, test: Packed, use_gpus: bool | None) -> Iterator[tuple[Team, list[int]]]:
    """A team for a packed table, with the numbers of its parts: session i evaluates ``parts[i]``."""
    data = test.dataset
    parts = [number for number, part in enumerate(data.partitions) if part["rows"]]
    keys = [data.partition(number)["key"] for number in parts]
    chosen = trainers.options(db, use_gpus, keys)
    visibility.refuse_transaction(db)
    own = bool(visibility.seen_only_here(db, [test]))
    with teams.team_of(db, keys, chosen, own=own) as team:
        if not own:
            with recorder.opened(db) as session:
                visibility.require_committed(db, session, [test])
        yield team, parts
