"""What a run's models start from: random weights, given weights, or the whole state that an earlier run left."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Callable, Optional

from cerebro_db.core.documents import decoded
from cerebro_db.core.errors import InvalidArgument, WrongState
from cerebro_db.core.events import Initial
from cerebro_db.core.models import model_columns
from cerebro_db.core.models.model_columns import ModelColumns
from cerebro_db.core.names import written_list
from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import Sql, identifier, sql
from cerebro_db.core.texts import counted

from ...database import relations
from ...database.access import Database
from ...models import weights
from ...platform.base import Platform
from ...sessions.session import Session
from ..record import state_tables
from ..record.log import RunLog, StateOnRecord
from ..record.run import SMALL_STATE, Run
from ..record.state_tables import StatePlace
from ..request.output import latest_run
from ..request.request import FitConfiguration, RunRequest
from ..tables import group_tables

Starts = dict[tuple[int, Optional[int]], "Start"]  # by configuration and group; None: all rows


@dataclass(frozen=True)
class Start:
    """What a model starts from."""

    initial: Initial
    pieces: Callable[[], Iterator[bytes]] = lambda: iter(())  # of the given weights, in order
    rows: Sql | None = None  # FROM … WHERE … of the earlier run's state
    sha256: str | None = None  # of the earlier run's state, or of large weights that models share
    state_bytes: int = 0  # of the earlier run's state


RANDOM = Start(Initial.RANDOM)


@dataclass(frozen=True)
class GivenWeights:
    """The weights that a model table has for a model."""

    chunks: Sql | None  # the table that has them in chunks; None: they are one value
    sha256: str | None  # of that value
    body: tuple[int, str] | None  # the start and the checksum of the frozen body that the chunks refer to
    named: ModelColumns  # what the columns of the tables are called


def of_request(db: Database, request: RunRequest, groups: Sequence[int]) -> Starts:
    """What models start from; all others start from random weights.  ``groups``: those that have models now."""
    if request.options.warm_start:
        return {**_from_model_tables(db, request), **(_from_table_of_groups(db, request, groups) if groups else {})}
    given = {
        model_id: _given(architecture.weights)
        for model_id, architecture in request.configurations.architectures.items()
        if architecture.weights is not None
    }
    return {
        (one.key, number): given[one.model_id]
        for one in request.configurations.listed
        if one.model_id in given
        for number in (None, *groups)
    }


def _given(pieces: Callable[[], Iterator[bytes]]) -> Start:
    """The start from weights of an architecture.  Large ones have a checksum: the models share them."""
    digest, size = hashlib.sha256(), 0
    for piece in pieces():
        digest.update(piece)
        size += len(piece)
    return Start(Initial.WEIGHTS, pieces, sha256=None if state_tables.is_small(size) else digest.hexdigest())


def _from_table_of_groups(db: Database, request: RunRequest, groups: Sequence[int]) -> Starts:
    """From the weights of the same groups, with new optimizers."""
    output, dataset = request.asked.output, request.asked.source.dataset
    table = relations.beside(db, output, group_tables.ENDING)
    summary = relations.beside(db, output, "_summary")
    by = None
    if table is not None and summary is not None and "group_by" in relations.columns(db, summary):
        by = db.value(sql("SELECT group_by FROM {summary}", summary=summary.sql))
    wanted = written_list(dataset.group_by)
    if table is None or by != wanted:
        found = "no models of groups" if by is None else f"models of the groups of {by}"
        raise InvalidArgument(
            f"warm_start cannot be used: '{output}' has {found}, and the rows are packed by {wanted}.",
            hint='With the option "groups_start": "all rows", models of groups start with the weights of the model on'
            " all rows.",
        )
    keys = {one.key for one in request.configurations.listed}
    numbers = {tuple(dataset.groups[number - 1]): number for number in groups}
    found_starts: Starts = {}
    for row in db.rows(
        sql(
            "SELECT configuration AS key, group_number AS number, group_key AS label FROM {table}"
            " WHERE weights IS NOT NULL",
            table=table.sql,
        )
    ):
        number = numbers.get(tuple(decoded(row["label"], f"group_key of '{table.text}'")))
        if number is not None and row["key"] in keys:
            pieces = partial(weights.of_group, db, table.sql, row["number"], row["key"])
            found_starts[row["key"], number] = Start(Initial.WEIGHTS, pieces=pieces)
    new = len(keys) * len(numbers) - len(found_starts)
    others = f"; {counted(new, 'model')} of groups that it does not have start from random weights" if new else ""
    db.notice(
        f"{counted(len(found_starts), 'model')} of groups start from the weights in {table.text}, with new"
        f" optimizers{others}"
    )
    return found_starts


def _from_model_tables(db: Database, request: RunRequest) -> Starts:
    """From the models of the output table: with the optimizer's state, where a run of ours left exactly these."""
    run = latest_run(db, request.asked.output)
    table = relations.find(db, request.asked.output)
    chunked = relations.beside(db, request.asked.output, "_weights")
    named = model_columns.of(relations.columns(db, table)) if table is not None else None
    assert named is not None  # the tables are those of a fit: see request/output.py
    found: Starts = {}
    weights_only = []
    for one in request.configurations.listed:
        key = one.key
        model = db.one(
            sql(
                "SELECT encode(sha256({weights}), 'hex') AS sha256, {weights} IS NULL AS large"
                " FROM {output} WHERE {number} = $1",
                weights=identifier(named.weights),
                output=request.asked.output.sql,
                number=named.key,
            ),
            ("integer",),
            key,
        )
        if model is None:
            continue  # a new configuration starts from random weights
        chunks = chunked.sql if model["large"] and chunked is not None else None
        if model["large"] and chunks is None:
            raise WrongState(f"model {key} of '{request.asked.output}' has no weights to go on from")
        architecture = request.configurations.architectures[one.model_id].translated
        body = None
        if chunks is not None and chunked is not None and "body" in relations.columns(db, chunked):
            body = weights.body_of(db, chunks, key, named)
        given = GivenWeights(chunks, model["sha256"], body, named)
        start = _whole_state(db, run, one, architecture, given) if run else None
        if start is None:
            weights_only.append(key)
            pieces = partial(weights.pieces, db, request.asked.output.sql, chunks, key, named)
            start = Start(Initial.WEIGHTS, pieces=pieces)
        found[key, None] = start
    if weights_only:
        db.notice(
            f"warm start from the weights alone for configuration {', '.join(map(str, weights_only))}: the"
            " optimizer's state"
            " on record belongs to other weights or to other parameters"
        )
    return found


def _whole_state(
    db: Database, run: int, one: FitConfiguration, architecture: dict[str, Any], given: GivenWeights
) -> Start | None:
    """The best or last state of an earlier run, if it trained the same configuration and has these very weights."""
    earlier = RunLog.of_caller(db, run).states.earlier_model(one.key)
    if (
        earlier is None
        or decoded(earlier.compile, f"run {run}") != one.compile
        or decoded(earlier.architecture, f"run {run}") != architecture
    ):
        return None
    for state in earlier.states:
        place = state.place(earlier.storage, earlier.dist_keys)
        if state_tables.are_there(db, place.tables) and _has_weights(db, one.key, place, state, given):
            return Start(Initial.FULL, rows=place.rows, sha256=state.state_sha256, state_bytes=state.state_bytes)
    return None


def _has_weights(db: Database, key: int, place: StatePlace, state: StateOnRecord, given: GivenWeights) -> bool:
    rows, first, size = place.rows, state.weights_offset, state.weights_bytes
    if given.chunks is None:
        if size > weights.LARGEST_VALUE:
            return False  # the given model is a smaller one
        hashed = sql("SELECT encode(sha256(value), 'hex') FROM")
        hashes = (
            db.value(sql("{hashed} ({query}) w", hashed=hashed, query=query))
            for query in weights.value_queries(rows, first, size)
        )
        return next(filter(None, hashes), None) == given.sha256
    if given.body is not None:  # the table refers to a frozen body
        if place.frozen is None or given.body != (place.frozen.start - first, place.frozen.sha256):
            return False
        rows, size = place.rows_without_frozen, size - place.frozen.bytes
    chunks = weights.chunks_sql(key, rows, first, size)
    hashed = sql("SELECT start, sha256(payload) FROM")
    return bool(
        db.value(
            sql(
                "SELECT (SELECT sum(octet_length(payload)) FROM {given} WHERE {number} = {key}) = {size} AND NOT EXISTS"
                " ({hashed} ({chunks}) w EXCEPT {hashed} {given} WHERE {number} = {key})",
                given=given.chunks,
                number=given.named.key,
                key=key,
                size=size,
                hashed=hashed,
                chunks=chunks,
            )
        )
    )


def store(recorder: Session, log: RunLog, starts: Starts, platform: Platform) -> None:
    """Store the given states where the first hop of each model will look for them."""
    if not starts:
        return
    run, shared = log.plan.load(), set[str]()
    for model in run.models.values():
        start = starts.get((model.key, model.asked.group_number))
        if start is None:
            continue
        if start.rows is not None:
            large = not state_tables.is_small(start.state_bytes)
            into, lead = state_tables.into_start(recorder, platform, run, model, large=large)
            recorder.run(
                sql(
                    "{into} SELECT {lead}{key}, 0, start, payload {rows}",
                    into=into,
                    lead=lead,
                    key=run.dist_keys[0],
                    rows=start.rows,
                )
            )
            continue
        if model.given is not None:
            if model.given not in shared:
                shared.add(model.given)
                _store_shared(recorder, platform, run, model.given, start)
            continue
        pieces, first, position = start.pieces(), list[bytes](), 0
        while (size := sum(map(len, first))) <= SMALL_STATE and (piece := next(pieces, None)) is not None:
            first.append(piece)
        large = not state_tables.is_small(size)
        into, lead = state_tables.into_start(recorder, platform, run, model, large=large)
        for piece in itertools.chain(first, pieces):
            recorder.run(
                sql("{into} VALUES ({lead}{}, 0, {}, {})", into=into, lead=lead),
                (run.dist_keys[0], position, piece),
            )
            position += len(piece)


def _store_shared(recorder: Session, platform: Platform, run: Run, given: str, start: Start) -> None:
    """Store weights in a table that all models use which start from them."""
    name = state_tables.given_table_name(run.storage, given)
    recorder.run(state_tables.create_frozen_sql(platform, name))
    into, position = state_tables.into_frozen(name), 0
    for piece in start.pieces():
        recorder.run(sql("{into} VALUES ({}, {}, {})", into=into), (run.dist_keys[0], position, piece))
        position += len(piece)
