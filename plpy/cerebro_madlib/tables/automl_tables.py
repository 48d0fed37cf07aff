# ruff: noqa: UP007, UP045  (get_type_hints evaluates the annotations, on Python 3.9 too)
"""What the tables of MADlib's AutoML have besides those of its fit: further columns, and the best configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Optional

from cerebro_db.core.codec import Within
from cerebro_db.core.models.model_columns import MST
from cerebro_db.core.names import Name
from cerebro_db.core.records import dataclass
from cerebro_db.core.scheduling.plan import MOST_HOPS
from cerebro_db.core.sql import identifier, joined, sql
from cerebro_plpy import platform
from cerebro_plpy.database import relations
from cerebro_plpy.database.access import Database
from cerebro_plpy.runs.record.log import SELECTION_ROWS, RunLog
from cerebro_plpy.runs.tables.model_tables import set_key

from .. import automl_methods
from ..automl_methods import MadlibHyperband

SELECTION = "mst_key, model_id, compile_params, fit_params"
SELECTED = joined(", ", map(identifier, SELECTION.split(", ")))
NOT_THERE = ("num_iterations", "warm_start", "metrics_iters")  # in the summary

Column = tuple[str, str, Any]  # name, type and value


@dataclass(frozen=True)
class AutoML:
    """What a call of madlib_keras_automl asked for, as the options of its run have it."""

    method: str
    params: str
    frequency: Optional[Annotated[int, Within(1, MOST_HOPS)]]
    random_state: Optional[int]
    use_gpus: bool
    selection: str  # the model selection table, qualified

    @property
    def asked(self) -> automl_methods.Method:
        return automl_methods.read(self.method, self.params)

    @property
    def info_columns(self) -> dict[str, str]:
        rounds = {"s": "integer", "i": "integer"} if isinstance(self.asked, MadlibHyperband) else {}
        return {"metrics_iters": "integer[]", **rounds}

    def told(self, key: int, epoch: int) -> dict[str, Any]:
        """What the columns of _info say of a configuration that has trained so many epochs."""
        asked = self.asked
        bracket = asked.bracket_of(key - 1) if isinstance(asked, MadlibHyperband) else None
        if bracket is None:
            return {}
        last = bracket.ends[-1]
        beyond = [epoch] if epoch > last else []  # the run was extended
        return {
            "epochs": [*bracket.measured(self.frequency), *beyond],
            "before": bracket.before,
            "s": bracket.s,
            "i": bracket.round_of(min(max(1, epoch), last)),
        }

    def summary(self, columns: list[Column]) -> list[Column]:
        """The columns of a fit's summary, as AutoML has them."""
        made: list[Column] = []
        for column, kind, value in columns:
            if column == "metrics_compute_frequency":
                made.append(("use_gpus", "boolean", self.use_gpus))
                made.append((column, kind, self._last_frequency()))
            elif column not in NOT_THERE:
                made.append((column, kind, value))
            if column == "model_selection_table":
                random_state = None if self.random_state is None else str(self.random_state)
                made += [
                    ("automl_method", "text", self.method),
                    ("automl_params", "text", self.params),
                    ("random_state", "text", random_state),
                ]
        return made

    def _last_frequency(self) -> int:
        """As in MADlib, that of the last fit that AutoML consists of."""
        last = self.asked.last_iterations if isinstance(self.asked, MadlibHyperband) else self.asked.iterations
        return self.frequency if self.frequency is not None and self.frequency <= last else last


def make_keyed(db: Database, name: Name) -> None:
    """The model table gets a primary key, as in MADlib.  On Greenplum it is distributed by it, then."""
    platform.of(db).distribute(db, name, MST.configuration)
    set_key(db, name, MST.configuration)


def make_selection(
    db: Database, run: Mapping[str, Any], searched: AutoML, object_table: str | None, *, replace: bool
) -> None:
    """The model selection table, with the best configuration; and its summary.

    ``replace``: the run was extended, so the table that it made goes.  Tables of others stay.
    """
    run_id = run["run"]
    best = db.one(
        sql(
            "SELECT s.* FROM ({rows}) s JOIN cerebro.leaderboard b ON b.configuration = s.mst_key"
            " WHERE b.run = $1 AND b.owner = current_user ORDER BY b.rank, s.mst_key LIMIT 1",
            rows=SELECTION_ROWS,
        ),
        ("bigint",),
        run_id,
    )
    assert best is not None
    name = Name.parse(searched.selection)
    summary = name.suffixed("_summary")
    if _is_ours(db, run_id, name):
        if not replace:
            return
        db.patiently(sql("DROP TABLE IF EXISTS {name}, {summary}", name=name.sql, summary=summary.sql))
    taken = [one for one in (name, summary) if relations.find(db, one) is not None]
    if taken:
        db.warning(
            f"the best configuration is mst_key {best['mst_key']};"
            f" it is not written to {taken[0]}, because that table exists",
            hint=f"SELECT {SELECTION} FROM {Name.parse(run['model_table']).suffixed('_info')}"
            f" WHERE mst_key = {best['mst_key']};",
        )
        return
    here = platform.of(db)
    values = sql("$1::integer AS mst_key, $2::integer AS model_id, $3::text AS compile_params, $4::text AS fit_params")
    types = ("integer", "integer", "text", "text")
    db.execute(
        sql(
            "CREATE TABLE {name} AS SELECT {values} {distributed_by}",
            name=name.sql,
            values=values,
            distributed_by=here.distributed_by("mst_key"),
        ),
        types,
        *(best[column] for column in SELECTION.split(", ")),
    )
    db.execute(
        sql(
            "CREATE TABLE {summary} AS SELECT $1::varchar AS model_arch_table, $2::varchar AS object_table"
            " {distributed_by}",
            summary=summary.sql,
            distributed_by=here.distributed_by("model_arch_table"),
        ),
        ("text", "text"),
        RunLog.of_caller(db, run_id).known.tables_of_configurations()[1],
        object_table,
    )


def _is_ours(db: Database, run_id: int, name: Name) -> bool:
    """Whether a table has just one configuration of this run."""
    table = relations.find(db, name)
    if table is None or not table.is_own or not set(SELECTION.split(", ")) <= set(relations.columns(db, table)):
        return False
    rows = db.rows(sql("SELECT {selection} FROM {table} LIMIT 2", selection=SELECTED, table=table.sql))
    return len(rows) == 1 and rows[0] in db.rows(SELECTION_ROWS, ("bigint",), run_id)
