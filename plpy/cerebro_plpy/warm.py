"""Where a run's models begin: at random, at given weights, or at the whole state an earlier run left."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Callable

import psycopg2

from cerebro_db.core.errors import WrongState
from cerebro_db.core.names import Name

from . import results, tables
from .db import Database
from .dialect import Dialect
from .runs import create_leaf_sql, leaf_name, load
from .segment import CHUNK
from .sessions import Session

if TYPE_CHECKING:
    from .asked import Asked


@dataclass(frozen=True)
class Initial:
    """How one configuration begins."""

    kind: str  # weights | full
    pieces: Callable[[], Iterator[bytes]] = lambda: iter(())  # of the weights, in order
    leaf: str | None = None  # of the earlier run
    where: str | None = None
    sha256: str | None = None


def require_replaceable(db: Database, output: Name, module: str) -> None:
    """A warm start replaces its output tables at the end; they must be what a fit made."""
    for ending, needed in (
        ("", ["mst_key", "model_weights", "model_arch"]),
        ("_info", ["mst_key"]),
        ("_summary", ["model"]),
    ):
        table = tables.find(db, output.suffixed(ending))
        if table is None or not set(needed) <= set(tables.columns(db, table)):
            raise WrongState(
                f"{module} error: '{output.suffixed(ending)}' is not what a fit leaves, so it cannot be gone on from.",
                hint="Call it with warm_start => false and a new output table.",
            )


def initial_states(db: Database, asked: Asked) -> dict[int, Initial]:
    """mst_key -> where it begins; those not named begin at random."""
    if asked.warm_start:
        return _from_models(db, asked)
    return {
        row["mst_key"]: Initial("weights", pieces=partial(cut, weights))
        for row in asked.rows
        if (weights := asked.architectures[row["model_id"]].weights) is not None
    }


def cut(weights: bytes) -> Iterator[bytes]:
    return (weights[start : start + CHUNK] for start in range(0, len(weights), CHUNK))


def _from_models(db: Database, asked: Asked) -> dict[int, Initial]:
    """From the models of the output table; with optimizer and all where a run of ours left exactly them."""
    run = db.value(
        "SELECT max(run) FROM cerebro.run JOIN cerebro.runs USING (run, owner)"
        " WHERE owner = current_user AND cerebro.run.model_table = $1 AND status = 'finished'",
        ("text",),
        str(asked.output),
    )
    chunked = tables.find(db, asked.output.suffixed("_weights"))
    found: dict[int, Initial] = {}
    partly = []
    for row in asked.rows:
        key = row["mst_key"]
        model = db.one(
            "SELECT encode(sha256(model_weights), 'hex') AS sha256, model_weights IS NULL AS large"
            f" FROM {asked.output.sql} WHERE mst_key = $1",
            ("integer",),
            key,
        )
        if model is None:
            continue  # a configuration that is new begins at random
        chunks = chunked.sql if model["large"] and chunked is not None else None
        if model["large"] and chunks is None:
            raise WrongState(f"model {key} of '{asked.output}' has no weights to go on from")
        architecture = asked.architectures[row["model_id"]].translated
        whole = _whole_state(db, run, row, architecture, chunks or model["sha256"]) if run else None
        if whole is None:
            partly.append(key)
            whole = Initial("weights", pieces=partial(results.weight_pieces, db, asked.output.sql, chunks, key))
        found[key] = whole
    if partly:
        db.notice(
            f"warm start from the weights alone for mst_key {', '.join(map(str, partly))}: their optimizer's state"
            " belongs to other weights or to other parameters"
        )
    return found


def _whole_state(
    db: Database, run: int, row: dict[str, Any], architecture: dict[str, Any], weights: str
) -> Initial | None:
    """The state that an earlier run left, if it was trained in the same way and has these very weights.

    ``weights`` is their hash, or the table that has them in chunks.
    """
    last = db.one(
        "SELECT r.storage, r.dist_keys, h.hop, h.segment, h.state_sha256, h.weights_offset, h.weights_bytes,"
        " c.compile::text AS compile, a.architecture::text AS architecture"
        " FROM cerebro.run r JOIN cerebro.configuration c USING (run, owner)"
        " JOIN cerebro.architecture a USING (run, owner, model_id) JOIN cerebro.hop h USING (run, owner, mst_key)"
        " WHERE run = $1 AND owner = current_user AND mst_key = $2 ORDER BY h.hop DESC LIMIT 1",
        ("bigint", "integer"),
        run,
        row["mst_key"],
    )
    if (
        last is None
        or json.loads(last["compile"]) != row["compile"]
        or json.loads(last["architecture"]) != architecture
    ):
        return None
    name = leaf_name(last["storage"], row["mst_key"], last["hop"])
    if tables.find(db, name) is None:
        return None
    leaf = name.sql
    where = f"hop = {last['hop']} AND __dist_key__ = {last['dist_keys'][last['segment']]}"
    same = _has_weights(db, row["mst_key"], f"FROM {leaf} WHERE {where}", last, weights)
    return Initial("full", leaf=leaf, where=where, sha256=last["state_sha256"]) if same else None


def _has_weights(db: Database, key: int, rows: str, last: dict[str, Any], weights: str) -> bool:
    first, size = last["weights_offset"], last["weights_bytes"]
    chunks = results.weight_chunks(key, rows, first, size)
    if size <= results.LARGEST_VALUE:
        hashed = f"encode(sha256(string_agg(payload, ''::bytea ORDER BY start)), 'hex') FROM ({chunks}) w"
        return bool(db.value(f"SELECT $1 = {hashed}", ("text",), weights))
    if "." not in weights:
        return False  # a hash: that is a smaller model
    hashed = "SELECT start, sha256(payload) FROM"
    return bool(
        db.value(
            f"SELECT (SELECT sum(octet_length(payload)) FROM {weights} WHERE mst_key = {key}) = {size} AND NOT EXISTS"
            f" ({hashed} ({chunks}) w EXCEPT {hashed} {weights} WHERE mst_key = {key})"
        )
    )


def put_initial_states(recorder: Session, run_id: int, initial: dict[int, Initial], dialect: Dialect) -> None:
    """Lay the given states where the first hop of each configuration will look for them."""
    if not initial:
        return
    run = load(recorder, run_id)
    for key, begin in initial.items():
        leaf = run.leaf(run.configurations[key], 0)
        recorder.run(create_leaf_sql(dialect, leaf))
        columns = f"INSERT INTO {leaf} (__dist_key__, hop, start, payload)"
        if begin.kind == "full":
            recorder.run(
                f"{columns} SELECT {run.dist_keys[0]}, 0, start, payload FROM {begin.leaf} WHERE {begin.where}"
            )
            continue
        start = 0
        for piece in begin.pieces():
            recorder.run(f"{columns} VALUES (%s, 0, %s, %s)", (run.dist_keys[0], start, psycopg2.Binary(piece)))
            start += len(piece)
