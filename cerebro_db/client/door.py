"""The Python door to cerebro_db: what the SQL functions and views offer, as methods."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

from psycopg2 import sql
from psycopg2.extras import Json
from sqlalchemy import select
from sqlalchemy.orm import Session

from cerebro_db.core.errors import CerebroError
from cerebro_db.core.names import Name

from . import weights
from .connections import engine_of
from .errors import CannotConnect, ClientError, NoSuchModel, NoSuchRun, translated
from .handle import RunHandle, interrupted_afterwards
from .orm import LeaderboardEntry, LearningCurvePoint, Run, RunProgress, RunTime, SegmentActivity, SegmentNow, View

if TYPE_CHECKING:
    from typing_extensions import Unpack

Row = TypeVar("Row", bound=View)
log = logging.getLogger("cerebro_db")
PREDICTION_TYPES = {str: "text", int: "integer", float: "double precision"}


class FitArguments(TypedDict, total=False):
    """The optional arguments of ``madlib_fit_multiple_model``; what is not given has the default of SQL."""

    use_gpus: bool
    validation_table: str
    metrics_compute_frequency: int
    warm_start: bool
    name: str
    description: str
    use_caching: bool
    options: dict[str, Any]


def connect(target: Any = None) -> Cerebro:
    """A DSN, an SQLAlchemy engine or URL, or a psycopg2 connection; without it CEREBRO_DSN or the embedded cluster.

    All is done on connections of its own, as the same user; each statement commits.
    """
    cerebro = Cerebro(target)
    if not cerebro.rows("SELECT 1 FROM pg_extension WHERE extname = 'cerebro_db'"):
        database = cerebro.rows("SELECT current_database()")[0][0]
        raise CannotConnect(
            f"The database {database} has no cerebro_db.", "CREATE EXTENSION cerebro_db CASCADE; as a superuser."
        )
    return cerebro


class Cerebro:
    """Runs can be given by their number, their row, or the handle that ``submit`` and ``handle`` return."""

    def __init__(self, target: Any = None) -> None:
        self.engine = engine_of(target)

    def __enter__(self) -> Cerebro:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.engine.dispose()

    # -- training -----------------------------------------------------------------------------------

    def fit(
        self,
        source_table: str,
        model_output_table: str,
        model_selection_table: str,
        num_iterations: int,
        **arguments: Unpack[FitArguments],
    ) -> int:
        """Trains all configurations of the model selection table; the run's number. Ctrl-C cancels it."""
        handle = None
        try:
            with interrupted_afterwards():
                handle = self.submit(
                    source_table, model_output_table, model_selection_table, num_iterations, **arguments
                )
            return handle.wait()
        except KeyboardInterrupt:
            if handle is not None:
                handle.cancel()
            raise

    def submit(
        self,
        source_table: str,
        model_output_table: str,
        model_selection_table: str,
        num_iterations: int,
        **arguments: Unpack[FitArguments],
    ) -> RunHandle:
        """Begins a run and returns once it is under way; it goes on without us, also when this process ends."""
        if unknown := set(arguments) - set(FitArguments.__annotations__):
            raise TypeError(f"there is no argument {', '.join(sorted(unknown))}")
        values: dict[str, Any] = {
            "source_table": source_table,
            "model_output_table": model_output_table,
            "model_selection_table": model_selection_table,
            "num_iterations": num_iterations,
            **arguments,
        }
        if values.get("options") is not None:
            values["options"] = Json(values["options"])
        named = sql.SQL(", ").join(
            sql.SQL("{} => {}").format(sql.Identifier(name), sql.Placeholder(name)) for name in values
        )
        return RunHandle(self, self.rows(sql.SQL("SELECT cerebro.submit({})").format(named), values)[0][0])

    def handle(self, run: int | Run | RunHandle) -> RunHandle:
        """A run to wait for or to cancel, whoever began it."""
        return RunHandle(self, self.run(run).run)

    def resume(self, run: int | Run | RunHandle, epochs: int | None = None, retry_failed: bool = False) -> RunHandle:
        """Goes on with a run that was cancelled, interrupted or failed; with more epochs, also a finished one.

        Returns once it is under way, as ``submit`` does. retry_failed gives failed configurations another chance.
        """
        number = number_of(run)
        self.rows("SELECT cerebro.resume(%s, %s, %s, wait => false)", (number, epochs, retry_failed))
        return RunHandle(self, number)

    def cancel(self, run: int | Run | RunHandle) -> bool:
        """Asks a run to end, which takes a second or so; False if nobody drives it."""
        return self.rows("SELECT cerebro.cancel(%s)", (number_of(run),))[0][0]

    def materialize(self, run: int | Run | RunHandle, model_output_table: str) -> None:
        """Makes the model tables of a run from its last states, also of one that did not finish."""
        self.rows("SELECT cerebro.materialize(%s, %s)", (number_of(run), model_output_table))

    def forget(self, run: int | Run | RunHandle) -> None:
        """Removes a run's log and states; the model tables that it left stay."""
        self.rows("SELECT cerebro.forget(%s)", (number_of(run),))

    # -- looking at runs ----------------------------------------------------------------------------

    def runs(self) -> list[Run]:
        """Your runs, the latest first."""
        return self._read(select(Run).order_by(Run.run.desc()))

    def run(self, run: int | Run | RunHandle) -> Run:
        number = number_of(run)
        return self._one(select(Run).where(Run.run == number), number)

    def progress(self, run: int | Run | RunHandle) -> RunProgress:
        number = number_of(run)
        asked = select(RunProgress).where(RunProgress.run == number)
        found = self._one(asked, number)
        # A session that ends while it is asked about may have had its last word just after.
        return self._one(asked, number) if found.status == "interrupted" else found

    def follow(self, run: int | Run | RunHandle, every: float = 0.5) -> Iterator[RunProgress]:
        """The progress again and again until the run has ended; the last row says how."""
        while True:
            progress = self.progress(run)
            yield progress
            if progress.ended:
                return
            time.sleep(every)

    def leaderboard(self, run: int | Run | RunHandle) -> list[LeaderboardEntry]:
        """The configurations of a run, the best first."""
        entry = LeaderboardEntry
        return self._of_run(select(entry).order_by(entry.rank, entry.mst_key), entry, run)

    def learning_curve(self, run: int | Run | RunHandle) -> list[LearningCurvePoint]:
        point = LearningCurvePoint
        return self._of_run(select(point).order_by(point.mst_key, point.epoch), point, run)

    def timeline(self, run: int | Run | RunHandle) -> list[SegmentActivity]:
        """What each segment did, in order of time."""
        activity = SegmentActivity
        return self._of_run(select(activity).order_by(activity.started_at, activity.segment), activity, run)

    def run_time(self, run: int | Run | RunHandle) -> list[RunTime]:
        """Where the segments' time of a run went."""
        return self._of_run(select(RunTime).order_by(RunTime.place), RunTime, run)

    def segments_now(self, run: int | Run | RunHandle) -> list[SegmentNow]:
        """The last hop that each segment began, and whether it is done."""
        return self._of_run(select(SegmentNow).order_by(SegmentNow.segment), SegmentNow, run)

    # -- trained models -----------------------------------------------------------------------------

    def model(self, run_or_table: int | str | Run | RunHandle, mst_key: int) -> Any:
        """The trained Keras model of one configuration, from a run or from a model table."""
        given = run_or_table if isinstance(run_or_table, str) else self.run(run_or_table).model_table
        try:
            table = Name.parse(given, "model table")
            companion = table.suffixed("_weights").sql
            summary = table.suffixed("_summary").sql
        except CerebroError as error:
            raise NoSuchModel(error.message, error.hint) from error
        self._must_exist(table)
        found = self.rows(
            f"SELECT model_arch::text, model_weights FROM {in_format(table.sql)} WHERE mst_key = %s", (mst_key,)
        )
        if not found:
            raise NoSuchModel(
                f"The table {table} has no model with mst_key {mst_key}.",
                f"SELECT mst_key, status, reason FROM {table.suffixed('_info')}; a configuration may have failed.",
            )
        architecture, whole = found[0]
        pieces = [whole]
        if whole is None:  # too large for one value
            chunks = f"SELECT payload FROM {in_format(companion)} WHERE mst_key = %s ORDER BY start"
            pieces = [payload for (payload,) in self.rows(chunks, (mst_key,))]
        layout = self.rows(f"SELECT layout FROM {summary}")
        shapes = [entry["shape"] for entry in layout[0][0]["inputs"]] if layout and layout[0][0] else None
        return weights.keras_model(architecture, pieces, shapes)

    def predict(
        self,
        model_table: str,
        test_table: str,
        id_col: str,
        independent_varname: str,
        output_table: str,
        pred_type: str | int | float = "prob",
        *,
        use_gpus: bool = False,
        mst_key: int | None = None,
    ) -> None:
        """Predicts the rows of a table; see the comment of cerebro.madlib_keras_predict."""
        kind = PREDICTION_TYPES.get(type(pred_type))
        if kind is None:
            raise TypeError(f"pred_type is 'prob', 'response', an int or a float, not {pred_type!r}")
        self.rows(
            f"SELECT cerebro.madlib_keras_predict(%s, %s, %s, %s, %s, %s::{kind}, %s, %s)",
            (model_table, test_table, id_col, independent_varname, output_table, pred_type, use_gpus, mst_key),
        )

    def evaluate(
        self,
        model_table: str,
        test_table: str,
        output_table: str,
        *,
        use_gpus: bool = False,
        mst_key: int | None = None,
    ) -> dict[str, Any]:
        """Loss and metric of a model on a packed table: the one row that it leaves in output_table."""
        # The function has no defaults, as in MADlib: without mst_key it is another one.
        given = (model_table, test_table, output_table, use_gpus, *([] if mst_key is None else [mst_key]))
        self.rows(f"SELECT cerebro.madlib_keras_evaluate({', '.join(['%s'] * len(given))})", given)
        names = ("loss", "metric", "metrics_type", "loss_type")
        rows = self.rows(f"SELECT {', '.join(names)} FROM {Name.parse(output_table).sql}")
        return dict(zip(names, rows[0]))

    # -- within -------------------------------------------------------------------------------------

    def rows(self, statement: Any, values: Any = None) -> list[tuple[Any, ...]]:
        """The rows of one statement, in psycopg2's notation."""
        with translated(), self.engine.connect() as connection:
            driver: Any = connection.connection.driver_connection
            driver.notices = []
            with driver.cursor() as cursor:
                cursor.execute(statement, values)
                for notice in driver.notices:
                    log.log(logging.WARNING if notice.startswith("WARNING") else logging.INFO, "%s", notice.strip())
                return cursor.fetchall() if cursor.description else []

    def _read(self, query: Any) -> list[Any]:
        with translated(), Session(self.engine, expire_on_commit=False) as session:
            rows = list(session.scalars(query))
            session.expunge_all()
            return rows

    def _one(self, query: Any, number: int) -> Any:
        rows = self._read(query)
        if not rows:
            raise no_such_run(number)
        if len(rows) > 1:  # numbers come from one sequence, so only after a restore of somebody's dump
            raise ClientError(f"Several owners have a run {number}.")
        return rows[0]

    def _of_run(self, query: Any, view: type[Row], run: int | Run | RunHandle) -> list[Row]:
        number = number_of(run)
        rows = self._read(query.where(view.run == number))  # type: ignore[attr-defined]
        if not rows:
            self.run(number)  # raises when there is none
        return rows

    def _must_exist(self, table: Name) -> None:
        if self.rows("SELECT to_regclass(%s) IS NULL", (table.sql,))[0][0]:
            raise NoSuchModel(
                f"There is no table {table}.",
                "Give the schema too, or a run's number. SELECT cerebro.materialize(run, table) makes it anew.",
            )


def number_of(run: int | Run | RunHandle) -> int:
    if isinstance(run, (Run, RunHandle)):
        return run.run
    if isinstance(run, bool) or not isinstance(run, int):
        raise TypeError(f"a run is given by its number, not {run!r}")
    return run


def no_such_run(number: int) -> NoSuchRun:
    return NoSuchRun(f"There is no run {number} of yours.", "cerebro runs lists them: SELECT * FROM cerebro.runs;")


def in_format(text: str) -> str:
    """SQL to stand in a statement with parameters, where psycopg2 wants % doubled."""
    return text.replace("%", "%%")
