"""The table ``_groups`` beside a model table: the models of each group, and which groups have none.

One statement makes all models with small states, because there may be thousands.
"""

from __future__ import annotations

import json
from typing import Any

from cerebro_db.core.models.model_columns import GROUPS_COLUMNS
from cerebro_db.core.names import written_list
from cerebro_db.core.packing.layout import Groups
from cerebro_db.core.run_options import RunOptions
from cerebro_db.core.sql import Sql, identifier, joined, sql
from cerebro_db.core.sql_types import SqlType
from cerebro_db.core.texts import counted

from ... import platform
from ...database.access import Database
from ..record import state_tables
from ..record.groups import label_of
from ..record.log import CHANGED, GROUP_INFO, RunLog, StateOnRecord
from .made import MadeTables, Values

ENDING = "_groups"


def of_summary(groups: Groups, options: RunOptions) -> list[Values]:
    """The columns of the summary that say how rows to predict find the models of their group."""
    return [
        ("group_by", "text", written_list([column.name for column in groups.columns])),
        ("group_types", "text[]", [column.type.name for column in groups.columns]),
        ("new_groups", "text", options.new_groups),
    ]


def make(db: Database, made: MadeTables) -> None:
    name, run = made.name.suffixed(ENDING), made.run
    body = joined(
        ", ",
        (
            sql("{column} {kind}", column=identifier(one), kind=SqlType(kind).sql)
            for one, kind in GROUPS_COLUMNS.items()
        ),
    )
    distributed = platform.of(db).distributed_by("group_number")
    db.execute(sql("CREATE TABLE {name} ({body}) {distributed}", name=name.sql, body=body, distributed=distributed))
    db.execute(sql("ALTER TABLE {name} ALTER COLUMN weights SET STORAGE EXTERNAL", name=name.sql))
    states = RunLog.of_caller(db, run["run"]).states.states_of_groups(made.which, made.fold)
    small = [state for state in states if state_tables.is_small(state.state_bytes)]
    large = [state for state in states if not state_tables.is_small(state.state_bytes)]
    both = joined(
        " UNION ALL ",
        (
            sql("SELECT model, hop, start, payload, __dist_key__ FROM {table}", table=table)
            for table in state_tables.shared(run["storage"])
        ),
    )
    _insert(db, made, small, both, without=[state.model for state in large])
    for state in large:
        rows = state.place(run["storage"], run["dist_keys"]).rows
        own = sql("SELECT {model} AS model, hop, start, payload, __dist_key__ {rows}", model=state.model, rows=rows)
        _insert(db, made, [state], own, only=state.model)
    db.execute(sql("ALTER TABLE {name} ADD PRIMARY KEY (group_number, configuration)", name=name.sql))
    _tell(db, made)


def _insert(
    db: Database,
    made: MadeTables,
    states: list[StateOnRecord],
    rows: Sql,
    *,
    only: int | None = None,
    without: list[int] | None = None,
) -> None:
    """The rows of models whose states are in ``rows``, and of groups without a model; or of one model only."""
    run, groups = made.run, made.layout.groups
    assert groups is not None
    sizes = {number: 0 for number in range(1, len(groups.labels) + 1)}
    for partition in made.layout.partitions:
        for number, count in partition.groups:
            sizes[number] += count
    listed = [
        {
            "group_number": number,
            "group_value": label_of(list(label)),
            "label": list(label),
            "rows": sizes[number],
        }
        for number, label in enumerate(groups.labels, 1)
    ]
    told = [
        {
            "model": state.model,
            "hop": state.hop,
            "which": state.which,
            "epoch": state.epoch,
            "dist_key": int(run["dist_keys"][state.segment]),
            "sha256": state.state_sha256,
            "first": state.weights_offset,
            "size": state.weights_bytes,
        }
        for state in states
    ]
    columns = joined(", ", map(identifier, GROUPS_COLUMNS))
    statement = sql(
        "INSERT INTO {name} ({columns}) SELECT {columns} FROM ({info}) t"
        " WHERE CASE WHEN $6::integer IS NULL THEN model IS NULL OR model <> ALL ($7::integer[]) ELSE model = $6 END",
        name=made.name.suffixed(ENDING).sql,
        columns=columns,
        info=sql("WITH state_row AS ({rows}), {info}", rows=rows, info=GROUP_INFO),
    )
    db.execute(
        statement,
        ("bigint", "text", "text", "integer", "integer", "integer", "integer[]"),
        run["run"],
        json.dumps(told),
        json.dumps(listed),
        run["options"].least_group_rows,
        made.fold,
        only,
        without or [],
    )


def _tell(db: Database, made: MadeTables) -> None:
    """Say how many groups are predicted by the model on all rows, and warn of states that were changed."""
    name = made.name.suffixed(ENDING)
    found: dict[str, Any] = db.rows(
        sql(
            "SELECT count(*) FILTER (WHERE models = 0)::integer AS groups, sum(changed)::integer AS changed"
            " FROM (SELECT count(weights) AS models, count(*) FILTER (WHERE reason = {changed}) AS changed"
            " FROM {name} GROUP BY group_number) g",
            name=name.sql,
            changed=CHANGED,
        )
    )[0]
    if found["groups"]:
        db.notice(
            f"{counted(found['groups'], 'group')} without a model: the model on all rows predicts their rows",
            f"SELECT group_value, configuration, reason FROM {name} WHERE weights IS NULL; says why.",
        )
    if found["changed"]:
        db.warning(
            f"{counted(found['changed'], 'model')} of groups are left out: their states are not as they were committed",
            hint="Rows of tables in the schema cerebro_state were changed or deleted by hand.",
        )
