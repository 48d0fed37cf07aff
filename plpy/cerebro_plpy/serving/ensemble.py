"""``cerebro.ensemble``: one model made of the best few of a run, whose predictions are the means of theirs."""

from __future__ import annotations

import json

from cerebro_db.core.architecture import reading
from cerebro_db.core.architecture.ensembles import ensemble as joined
from cerebro_db.core.errors import InvalidArgument, UndefinedObject, Unsupported, WrongState
from cerebro_db.core.sql import sql
from cerebro_db.core.texts import or_null

from .. import platform
from ..data.weights import LARGEST_VALUE
from ..database import relations
from ..database.access import Database
from ..database.entry import entry
from .trained import COMPANIONS, best_keys

MOST_MEMBERS = 100


@entry
def ensemble(db: Database, model_table: str | None, output_table: str | None, members: int | None) -> None:
    """Make the tables of the ensemble; it is configuration 1."""
    if members is None or not 2 <= members <= MOST_MEMBERS:
        raise InvalidArgument(f"members cannot be {or_null(members)}.", hint=f"It must be from 2 to {MOST_MEMBERS}.")
    table = relations.existing(db, model_table, argument="model_table", companions=COMPANIONS)
    info, summary = (relations.find(db, table.name.suffixed(ending)) for ending in ("_info", "_summary"))
    if info is None or summary is None:
        raise UndefinedObject(f"{table.text} is not the model table of a run.", hint="cerebro.fit() makes it.")
    output = relations.new(db, output_table, COMPANIONS)
    keys = best_keys(db, table, info, summary, members)
    if len(keys) < 2:
        raise WrongState(
            f"{table.text} has {len(keys)} model, and an ensemble needs at least 2.",
            hint="Train more configurations.",
        )
    rows = {
        row["mst_key"]: row
        for row in db.rows(
            sql(
                "SELECT mst_key, model_arch::text AS arch, octet_length(model_weights)::bigint AS size,"
                " __dist_key__ AS place FROM {table} WHERE mst_key = ANY ($1)",
                table=table.sql,
            ),
            ("integer[]",),
            keys,
        )
    }
    listed = ", ".join(map(str, keys))
    sizes = [rows[key]["size"] for key in keys]
    if None in sizes or sum(sizes) > LARGEST_VALUE:
        raise Unsupported(
            f"the weights of {len(keys)} members are too large for one value.", hint="Take fewer members."
        )
    architecture = json.dumps(joined([reading.architecture(rows[key]["arch"]) for key in keys]))
    reading.architecture(architecture)
    here = platform.of(db)
    db.execute(
        sql(
            "CREATE TABLE {output} (mst_key integer, model_weights bytea, model_arch json, __dist_key__ integer)"
            " {distributed_by}",
            output=output.sql,
            distributed_by=here.distributed_by("__dist_key__"),
        )
    )
    db.execute(sql("ALTER TABLE {output} ALTER COLUMN model_weights SET STORAGE EXTERNAL", output=output.sql))
    db.execute(
        sql("INSERT INTO {output} SELECT 1, string_agg(model_weights, ''::bytea ORDER BY array_position($1, mst_key)),"
        " $2::json, $3 FROM {table} WHERE mst_key = ANY ($1)", output=output.sql, table=table.sql),
        ("integer[]", "text", "integer"),
        keys, architecture, rows[keys[0]]["place"],
    )  # fmt: skip
    about = output.suffixed("_info")
    more = sql(", functions") if "functions" in relations.columns(db, info) else sql("")  # older tables lack it
    db.execute(
        sql(
            "CREATE TABLE {about} (LIKE {info} INCLUDING INDEXES) {distributed_by}",
            about=about.sql,
            info=info.sql,
            distributed_by=here.distributed_by("mst_key"),
        )
    )
    db.execute(
        sql("INSERT INTO {about} (mst_key, compile_params, fit_params, model_type, model_size, metrics_type,"
        " loss_type, status, reason{more})"
        " SELECT 1, compile_params, fit_params, model_type, $2, metrics_type, loss_type, status, $3{more}"
        " FROM {info} WHERE mst_key = $1", about=about.sql, more=more, info=info.sql),
        ("integer", "double precision", "text"),
        keys[0], sum(sizes) / 1024, f"the mean of configurations {listed} of {table.name}",
    )  # fmt: skip
    told = output.suffixed("_summary")
    db.execute(
        sql(
            "CREATE TABLE {told} AS SELECT * FROM {summary} {distributed_by}",
            told=told.sql,
            summary=summary.sql,
            distributed_by=here.distributed_by("source_table"),
        )
    )
    db.execute(
        sql("UPDATE {told} SET model = $1, model_info = $2", told=told.sql), ("text", "text"), str(output), str(about)
    )
    db.notice(f"{output} is the mean of configurations {listed} of {table.name}")
