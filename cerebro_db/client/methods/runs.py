"""The methods of the client that look at runs: each reads a view."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import select

from ..database import DatabaseClient
from ..errors import ClientError, NoSuchRun
from ..orm import (
    BestOfGroup,
    ConfigurationParameter,
    CrossValidation,
    Decision,
    LeaderboardEntry,
    LearningCurvePoint,
    MeasuredProfile,
    Metric,
    Request,
    Run,
    RunProgress,
    RunTime,
    SegmentActivity,
    SegmentNow,
    View,
)
from ..row_lists import RowList
from ..run_handle import AnyRun, number_of, owner_of

Row = TypeVar("Row", bound=View)

REST = 2.0  # between two looks at a run: at least so many times what the last look has taken


class PlannedShape(NamedTuple):
    """A row of ``cerebro.plan``: a shape in which a run trains, or could have trained."""

    selected: bool
    engine: str
    threads: int
    segments: int
    parallel: str
    seconds: float | None
    share: float | None
    why: str
    took: float | None


class RunMethods(DatabaseClient):
    def runs(self) -> RowList[Run]:
        """Your runs, the latest first."""
        return RowList(Run, self.objects(select(Run).order_by(Run.run.desc())))

    def run(self, run: AnyRun, owner: str | None = None) -> Run:
        """The row of one run. Raises NoSuchRun if there is none."""
        return self._one(Run, run, owner)

    def run_progress(self, run: AnyRun) -> RunProgress:
        """How far a run is, how fast it trains, and when it will end."""
        found = self._one(RunProgress, run)
        # A driver that ends while the view is read looks interrupted. Its last event is there at the second read.
        return self._one(RunProgress, run) if found.status == "interrupted" else found

    def follow(self, run: AnyRun, every: float = 0.5) -> Iterator[RunProgress]:
        """The progress every so many seconds, until the run has ended. The last row says how it ended.

        A look at a run with thousands of models takes seconds. Then the next look comes later, so that looking does not
        slow the run down.
        """
        while True:
            began = time.monotonic()
            progress = self.run_progress(run)
            yield progress
            if progress.ended:
                return
            time.sleep(max(every, REST * (time.monotonic() - began)))

    def leaderboard(self, run: AnyRun) -> RowList[LeaderboardEntry]:
        """The models of a run, the best first; with groups, those on all rows come before those of each group."""
        entry = LeaderboardEntry
        order = entry.group_number.nulls_first(), entry.rank, entry.model
        return self._of_run(select(entry).order_by(*order), entry, run)

    def parameters(self, run: AnyRun) -> RowList[ConfigurationParameter]:
        """The parameters of the configurations, one per row."""
        one = ConfigurationParameter
        return self._of_run(select(one).order_by(one.configuration, one.parameter), one, run)

    def cross_validation(self, run: AnyRun) -> RowList[CrossValidation]:
        """The configurations of a run with folds, the best first; empty for other runs.

        With groups, their figures on all rows come before those of each group.
        """
        one = CrossValidation
        order = one.group_number.nulls_first(), one.rank, one.configuration
        return self._of_run(select(one).order_by(*order), one, run)

    def groups(self, run: AnyRun) -> RowList[BestOfGroup]:
        """The groups of a run on rows with group_by, each with its best model; empty for other runs."""
        return self._of_run(select(BestOfGroup).order_by(BestOfGroup.group_number), BestOfGroup, run)

    def learning_curve(self, run: AnyRun, groups: bool = True) -> RowList[LearningCurvePoint]:
        """Losses and first metrics by model and epoch.  ``groups``: those of the models of groups, too."""
        point = LearningCurvePoint
        query = select(point).order_by(point.model, point.epoch)
        return self._of_run(query if groups else query.where(point.group_number.is_(None)), point, run)

    def metrics(self, run: AnyRun) -> RowList[Metric]:
        """The loss and all metrics by model, epoch and data set."""
        order = (Metric.model, Metric.epoch, Metric.dataset, Metric.metric)
        return self._of_run(select(Metric).order_by(*order), Metric, run)

    def decisions(self, run: AnyRun, after: int = 0, changes_only: bool = False) -> RowList[Decision]:
        """What was decided about a run and its models, in order; only decisions with numbers above ``after``.

        With ``changes_only`` the decisions that a model trains on are left out.
        """
        query = select(Decision).where(Decision.decision_id > after).order_by(Decision.decision_id)
        if changes_only:
            query = query.where(Decision.decision != "continue")
        return self._of_run(query, Decision, run)

    def requests(self, run: AnyRun) -> RowList[Request]:
        """What people asked of a run, in order, and what became of it."""
        return self._of_run(select(Request).order_by(Request.request_id), Request, run)

    def profiles(self, run: AnyRun) -> RowList[MeasuredProfile]:
        """What a run has measured of its models, for the plans of later runs."""
        return self._of_run(select(MeasuredProfile).order_by(MeasuredProfile.at), MeasuredProfile, run)

    def plan(self, run: AnyRun) -> RowList[PlannedShape]:
        """The shape in which a run of yours trains, and then those that it was compared with.

        ``seconds`` is what the training was expected to take, by what earlier runs have measured, and ``took`` what it
        took. Searches and models of groups train by the plain rules.
        """
        columns = ", ".join(PlannedShape._fields)
        rows = self.rows(f"SELECT {columns} FROM cerebro.plan(%s)", (number_of(run),))
        return RowList(PlannedShape, map(PlannedShape._make, rows))

    def hop_timeline(self, run: AnyRun) -> RowList[SegmentActivity]:
        """The hops and evaluations of all segments, in order of time."""
        activity = SegmentActivity
        return self._of_run(select(activity).order_by(activity.started_at, activity.segment), activity, run)

    def run_time(self, run: AnyRun) -> RowList[RunTime]:
        """The segments' time by activity."""
        return self._of_run(select(RunTime).order_by(RunTime.position), RunTime, run)

    def segments_now(self, run: AnyRun) -> RowList[SegmentNow]:
        """The last hop that each segment has begun, and whether it is done."""
        return self._of_run(select(SegmentNow).order_by(SegmentNow.segment), SegmentNow, run)

    def _one(self, view: type[Row], run: AnyRun, owner: str | None = None) -> Row:
        number = number_of(run)
        found = self._rows_of(select(view), view, run, owner)
        if not found:
            whose = "of yours" if owner is None else f"of {owner}"
            raise NoSuchRun(
                f"There is no run {number} {whose}.", "Your runs: cerebro runs, or SELECT * FROM cerebro.runs;"
            )
        return found[0]

    def _of_run(self, query: Any, view: type[Row], run: AnyRun) -> RowList[Row]:
        rows = self._rows_of(query, view, run)
        if not rows:
            self.run(run)  # raises NoSuchRun if there is none
        return rows

    def _rows_of(self, query: Any, view: type[Row], run: AnyRun, owner: str | None = None) -> RowList[Row]:
        """A run's rows of a view, all of one owner."""
        number, owner = number_of(run), owner_of(run, owner)
        rows = self.objects(query.where(view.run == number))
        owners = {row.owner for row in rows}
        if owner is None and len(owners) > 1:
            owner = self.rows("SELECT current_user::text")[0][0]
            if owner not in owners:
                raise ClientError(
                    f"Several users have a run {number}: {', '.join(sorted(owners))}.",
                    "The row of a run, or the argument owner, says which is meant.",
                )
        return RowList(view, rows if owner is None else (row for row in rows if row.owner == owner))
