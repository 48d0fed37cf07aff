"""The step ``refit`` after a training: the chosen model is trained again, with the rows for validation, too.

All rows are packed as the training rows were.  One run for each number of epochs trains the members from random
weights.  The mean of them and of the members before becomes one more model of the table, which the predictions take:
it is better than the new members alone, whose learning rates nobody has made smaller in the end.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

from cerebro_db.core import codec
from cerebro_db.core.architecture import ensembles, keras_json
from cerebro_db.core.errors import LimitExceeded, Unsupported, WrongState
from cerebro_db.core.models import refits
from cerebro_db.core.models.member_choice import MemberConfiguration, read_members
from cerebro_db.core.models.model_columns import COMPANIONS
from cerebro_db.core.names import LONGEST, Name, StoredName, written_list
from cerebro_db.core.options import WORKERS
from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import Sql, identifier, joined, sql
from cerebro_db.core.texts import counted

from ..database import relations
from ..database.access import Database
from ..models import calibrations, trained
from ..models.trained import TrainedModel
from ..models.weights import LARGEST_VALUE
from ..packing import packed
from ..packing.packed import Packed
from ..runs.fit import run_request
from ..runs.record import own_runs
from ..runs.record.run import Run
from ..runs.request import configurations, training_rows
from ..runs.request.request import AskedRun, of_configurations, read_rows
from . import attempts, ensembling
from .champion import configuration_of
from .registering import row_of

SAME_OPTIONS = ("engine", "precision", "deterministic", "shard", "threads", "memory_mb")  # of the run
OTHERWISE = "the best model is not trained again on all rows"
ENDINGS = ("", *COMPANIONS)
ROOM_FOR_ENDINGS = 35  # bytes


@dataclass(frozen=True)
class Chosen:
    """The model that the predictions take before it is trained again."""

    model: TrainedModel
    reason: str  # what it is made of
    members: list[MemberConfiguration]
    built: list[Any]  # their architectures, with the sizes that the rows gave them


def refit_or_say(db: Database, run: Run, output: Name, until: float | None) -> dict[str, Any]:
    """Train the best model of a new table again on all rows, or say why not.

    What the log of the run has about it.  ``until``: the deadline, as time.monotonic().
    """
    hint = "The models of the table stay as they are. Train again with a larger budget, or without refit."
    packed_all = training_rows.free_name(db, output)
    found: dict[str, Any] = {}
    with attempts.or_told(db, "cerebro.train", OTHERWISE, hint):
        found = _refitted(db, run, output, packed_all, until)
    own_runs.drop_unneeded(db, [StoredName(str(packed_all))])
    return found


def _refitted(db: Database, run: Run, output: Name, packed_all: Name, until: float | None) -> dict[str, Any]:
    own = own_runs.of_number(db, run.id)
    source = None if own is None else own.source(db)
    if source is None:
        raise WrongState(f"run {run.id} does not say which table its rows were packed from.")
    table = relations.existing(db, output.quoted, argument="model_table", companions=COMPANIONS)
    tables = ensembling.source_of(db, table)
    chosen = _chosen(db, tables)
    with training_rows.other_session(db) as session, db.as_steps():
        call = sql("SELECT cerebro.pack_like({}, {}, {}, NULL, {}, related => {})")
        target = written_list([name for one in chosen.model.layout.outputs for name in one.columns])
        named = json.dumps(own.related_for_calls) if own is not None and own.related_for_calls else None
        session.run(call, (source.name.quoted, packed_all.quoted, target, run.source.table, named))
    training_rows.notice_others_tables(db)
    made = []
    for epochs in sorted({_epochs(run, one) for one in chosen.members}):
        name = _free_name(db, output)
        source_of_all, _ = read_rows(db, packed_all.quoted, None, epochs)
        made.append((name, _trained(db, run, name, source_of_all, chosen, epochs=epochs, until=until)))
    key = _add(db, tables, chosen, made)
    for name, _ in made:
        names = [one for ending in ENDINGS if relations.find(db, one := name.suffixed(ending)) is not None]
        db.patiently(sql("DROP TABLE {names}", names=joined(", ", (one.sql for one in names))))
    rows = source_of_all.layout.rows
    times = " and ".join(map(str, sorted({_epochs(run, one) for one in chosen.members})))
    db.told(
        f"configuration {key} is {chosen.reason}{refits.REFITTED} ({counted(rows, 'row')}, epochs:"
        f" {times}), and predictions take it. The figures are those of configuration {chosen.model.key}, the model"
        " before: no row is left that could judge the new one",
        f"New rows can: SELECT * FROM cerebro.evaluate('{output}', 'SELECT …');",
    )
    about = row_of(db, tables.info, key)
    if about.get(calibrations.QUALITY) is None:
        return {}
    return {"configuration": key, "made_of": about["reason"], "quality": about[calibrations.QUALITY]}


def _chosen(db: Database, tables: ensembling.MemberTables) -> Chosen:
    model = trained.read(db, tables.tables, None)
    if model.layout.weight is not None:
        raise Unsupported("the rows have weights, which rows for validation have not.")
    about = row_of(db, tables.info, model.key)
    built = model.definition["architecture"]
    members = read_members(about.get("members"), f"the members of {tables.table.text}")
    if not members:
        members, reason = ensembling.members_of(db, tables, [model.key]), f"the mean of configuration {model.key}"
        layers = [built]
    else:
        layers, reason = ensembles.members_of(built), about["reason"]
    if len(layers) != len(members):
        raise Unsupported(f"configuration {model.key} of {tables.table.text} does not say what its members are.")
    return Chosen(model, reason, members, layers)


def _epochs(run: Run, member: MemberConfiguration) -> int:
    return member.epoch or run.epochs


def _trained(
    db: Database, run: Run, name: Name, source: Packed, chosen: Chosen, *, epochs: int, until: float | None
) -> list[int]:
    """Make a model table with the members that need so many epochs, trained on these rows; return their places."""
    places = [place for place, one in enumerate(chosen.members) if _epochs(run, one) == epochs]
    packed.require_same_shapes(chosen.model.layout, chosen.model.table.text, source)
    recorded = run.options.to_json()
    options: dict[str, Any] = {one: recorded[one] for one in SAME_OPTIONS if recorded.get(one) is not None}
    options.update(seed=run.seed, execution=WORKERS)
    if until is not None:
        options["budget"] = {"seconds": max(0.1, until - time.monotonic()), "least_epochs": 1}
    listed = configurations.read(
        db, json.dumps([configuration_of(db, chosen.members[one], chosen.built[one]) for one in places])
    )
    assert isinstance(listed, list)
    asked = AskedRun(
        source=source,
        validation=None,
        output=name,
        epochs=epochs,
        use_gpus=bool(run.options.gpus),
        options=options,
        description=f"the best of run {run.id}, trained again on all rows",
    )
    request = of_configurations(
        db,
        asked,
        lambda known, objective: configurations.of_rows(
            listed, source.layout, len(source.layout.partitions), objective, known
        ),
        warm_start=False,
    )
    with db.as_steps():
        done = run_request(db, request)
    short = db.value(
        sql("SELECT count(*) FROM cerebro.leaderboard WHERE run = $1 AND owner = current_user AND epochs_done < $2"),
        ("bigint", "integer"), done.id, epochs,
    )  # fmt: skip
    if short:
        raise LimitExceeded(
            f"the budget ended before {counted(epochs, 'epoch')}.", hint="A larger budget has time for them."
        )
    return places


def _free_name(db: Database, output: Name) -> Name:
    stem, number = output.table.encode()[: LONGEST - ROOM_FOR_ENDINGS].decode(errors="ignore"), 1
    while any(
        relations.find(db, Name(output.schema, f"{stem}_refit_{number}").suffixed(ending)) is not None
        for ending in ENDINGS
    ):
        number += 1
    return Name(output.schema, f"{stem}_refit_{number}")


def _add(
    db: Database, tables: ensembling.MemberTables, chosen: Chosen, made: Sequence[tuple[Name, Sequence[int]]]
) -> int:
    """Add the mean of the members, before and now, to the table under a new number, which it returns."""
    named, table = tables.named, tables.table
    number, weights = identifier(named.configuration), identifier(named.weights)
    parts: list[Sql] = []
    for name, places in made:
        listed = sql("ARRAY[{places}]::integer[]", places=joined(", ", (sql("{one}", one=one) for one in places)))
        parts.append(sql("SELECT ({listed})[configuration] AS place, weights, architecture::text AS architecture"
                         " FROM {name}", listed=listed, name=name.sql))  # fmt: skip
    members = joined(" UNION ALL ", parts)
    rows = db.rows(sql("SELECT place, architecture, octet_length(weights)::bigint AS size FROM ({members}) m"
                       " ORDER BY place", members=members))  # fmt: skip
    before = db.value(
        sql("SELECT octet_length({weights})::bigint FROM {table} WHERE {number} = $1",
            weights=weights, table=table.sql, number=number), ("integer",), chosen.model.key,
    )  # fmt: skip
    sizes = [before, *(row["size"] for row in rows)]
    if len(rows) != len(chosen.members) or None in sizes or sum(sizes) > LARGEST_VALUE:
        raise Unsupported("the weights are too large for one value.")
    mean = ensembles.ensemble([*chosen.built, *(keras_json.architecture(row["architecture"]) for row in rows)])
    architecture = json.dumps(mean)
    keras_json.architecture(architecture)
    key: int = db.value(sql("SELECT max({number}) + 1 FROM {info}", number=number, info=tables.info.sql))
    db.execute(
        sql("INSERT INTO {table} ({number}, {weights}, {architectures}, __dist_key__)"
            " SELECT $1, {weights} || (SELECT string_agg(m.weights, ''::bytea ORDER BY m.place) FROM ({members}) m),"
            " $2::json, __dist_key__ FROM {table} WHERE {number} = $3",
            table=table.sql, number=number, weights=weights, architectures=identifier(named.architecture),
            members=members),
        ("integer", "text", "integer"), key, architecture, chosen.model.key,
    )  # fmt: skip
    size = sum(sizes) / named.bytes_per_size
    values = {
        named.configuration: ("integer", key),
        named.size: ("double precision", size),
        "model": ("integer", None),
        named.training_loss: ("double precision", None),
        "training_metric": ("double precision", None),
        "reason": ("text", refits.reason(chosen.reason)),
        "members": ("jsonb", json.dumps(codec.encode([*chosen.members, *chosen.members]))),
    }
    present = relations.columns(db, tables.info)
    values = {name: one for name, one in values.items() if name in present}
    at = {name: place for place, name in enumerate(values, 2)}
    db.execute(
        sql("INSERT INTO {info} ({names}) SELECT {values} FROM {info} WHERE {number} = $1",
            info=tables.info.sql, number=number, names=joined(", ", map(identifier, present)),
            values=joined(", ", (sql("${place}", place=at[name]) if name in at else identifier(name)
                                 for name in present))),
        ("integer", *(kind for kind, _ in values.values())), chosen.model.key, *(one for _, one in values.values()),
    )  # fmt: skip
    return key
