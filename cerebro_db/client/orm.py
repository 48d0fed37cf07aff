"""The views of the schema cerebro as SQLAlchemy 2 classes. They can only be read.

    with Session(engine) as session:
        best = session.scalars(select(LeaderboardEntry).where(LeaderboardEntry.rank == 1)).all()

A view has no primary key, but SQLAlchemy needs one: each class declares columns that identify a row. The owner is
among them, because a monitor sees the runs of all owners.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn

from sqlalchemy import ARRAY, BigInteger, DateTime, Double, Integer, Text, event
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from .errors import ReadOnly

LOSSES = ("loss", "val_loss")  # the objectives of runs that name none

UNDER_WAY = ("created", "running", "finishing")  # statuses of runs that have not ended


class View(DeclarativeBase):
    """A row of one of the views in the schema cerebro."""

    __table_args__: Any = {"schema": "cerebro", "info": {"is_view": True}}
    if TYPE_CHECKING:  # every view has these columns
        run: Mapped[int]
        owner: Mapped[str]

    type_annotation_map = {int: BigInteger, float: Double, str: Text, datetime: DateTime(timezone=True)}

    def as_dict(self) -> dict[str, Any]:
        """The row by column name, for instance for pandas.DataFrame([row.as_dict() for row in rows])."""
        return {column.key: getattr(self, column.key) for column in self.__mapper__.column_attrs}

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in self.as_dict().items() if value is not None)
        return f"{type(self).__name__}({values})"


def _refuse(mapper: Any, connection: Any, row: View) -> NoReturn:
    raise ReadOnly(
        f"{type(row).__name__} is a row of the view cerebro.{row.__tablename__}, which can only be read.",
        "session.rollback() discards the change. Functions such as cerebro.cancel(run) act on runs.",
    )


for _change in ("before_insert", "before_update", "before_delete"):
    event.listen(View, _change, _refuse, propagate=True)


class Run(View):
    """A run and its status."""

    __tablename__ = "runs"

    run: Mapped[int] = mapped_column(primary_key=True)
    owner: Mapped[str] = mapped_column(primary_key=True)
    run_name: Mapped[str | None]
    status: Mapped[str]
    source_table: Mapped[str]
    packed_table: Mapped[str]
    model_table: Mapped[str]
    configurations: Mapped[int] = mapped_column(Integer)
    segments: Mapped[int] = mapped_column(Integer)
    epochs: Mapped[int] = mapped_column(Integer)
    created_at: Mapped[datetime]
    started_at: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]
    message: Mapped[str | None]
    driver_pid: Mapped[int | None] = mapped_column(Integer)
    description: Mapped[str | None]
    ended: Mapped[bool]
    reason: Mapped[str | None]
    chosen_configuration: Mapped[int | None] = mapped_column(Integer)
    made_of: Mapped[str | None]
    quality: Mapped[str | None]
    model_name: Mapped[str]


class RunPlan(View):
    """What a run was asked to do, including later extensions."""

    __tablename__ = "run_plan"

    run: Mapped[int] = mapped_column(primary_key=True)
    owner: Mapped[str] = mapped_column(primary_key=True)
    run_name: Mapped[str | None]
    description: Mapped[str | None]
    created_at: Mapped[datetime]
    source_table: Mapped[str]
    packed_table: Mapped[str]
    validation_table: Mapped[str | None]
    model_table: Mapped[str]
    epochs: Mapped[int] = mapped_column(Integer)
    evaluate_every: Mapped[int] = mapped_column(Integer)
    seed: Mapped[int]
    segments: Mapped[int] = mapped_column(Integer)
    dist_keys: Mapped[list[int]] = mapped_column(ARRAY(Integer))
    configurations: Mapped[int] = mapped_column(Integer)
    rows_per_epoch: Mapped[int]
    storage: Mapped[str]
    options: Mapped[dict[str, Any] | None] = mapped_column(JSONB)
    layout: Mapped[dict[str, Any] | None] = mapped_column(JSONB)
    validation_layout: Mapped[dict[str, Any] | None] = mapped_column(JSONB)
    packed_summary: Mapped[dict[str, Any] | None] = mapped_column(JSONB)
    cerebro_version: Mapped[str]


class LeaderboardEntry(View):
    """One model of a run and its rank. ``status`` is waiting, training, finished, stopped or failed."""

    __tablename__ = "leaderboard"

    run: Mapped[int] = mapped_column(primary_key=True)
    rank: Mapped[int] = mapped_column(Integer)
    configuration: Mapped[int] = mapped_column(Integer)
    architecture: Mapped[str]
    parameters: Mapped[dict[str, Any]] = mapped_column(JSONB)
    status: Mapped[str]
    epochs_done: Mapped[int]
    training_loss: Mapped[float | None]
    training_metric: Mapped[float | None]
    validation_loss: Mapped[float | None]
    validation_metric: Mapped[float | None]
    metric_name: Mapped[str | None]
    weights: Mapped[int]
    reason: Mapped[str | None]
    source_table: Mapped[str]
    model_table: Mapped[str]
    run_name: Mapped[str | None]
    owner: Mapped[str] = mapped_column(primary_key=True)
    engine: Mapped[str | None]
    model: Mapped[int] = mapped_column(Integer, primary_key=True)
    objective: Mapped[str]
    objective_value: Mapped[float | None]
    best_epoch: Mapped[int | None] = mapped_column(Integer)
    best_value: Mapped[float | None]
    parent: Mapped[int | None] = mapped_column(Integer)
    stopped_by: Mapped[str | None]
    rung: Mapped[int | None] = mapped_column(Integer)
    chosen: Mapped[dict[str, Any] | None] = mapped_column(JSONB)
    fold: Mapped[int | None] = mapped_column(Integer)
    spread: Mapped[float | None]
    group_number: Mapped[int | None] = mapped_column(Integer)
    group_value: Mapped[str | None]
    validation_rmse: Mapped[float | None]
    model_name: Mapped[str]

    @property
    def loss(self) -> float | None:
        """The latest validation loss, or else the training loss. Without an objective the rank is computed from it."""
        return self.training_loss if self.validation_loss is None else self.validation_loss

    @property
    def by_loss(self) -> bool:
        """Whether the objective is a loss."""
        return self.objective in LOSSES

    @property
    def metric(self) -> float | None:
        return self.training_metric if self.validation_loss is None else self.validation_metric


class BestOfGroup(View):
    """One group of a run on rows with group_by, and its best model."""

    __tablename__ = "groups"

    run: Mapped[int] = mapped_column(primary_key=True)
    group_number: Mapped[int] = mapped_column(Integer, primary_key=True)
    group_value: Mapped[str | None]
    rows: Mapped[int]
    validation_rows: Mapped[int | None]
    segments: Mapped[int] = mapped_column(Integer)
    model: Mapped[int] = mapped_column(Integer)
    configuration: Mapped[int] = mapped_column(Integer)
    architecture: Mapped[str]
    status: Mapped[str]
    epochs_done: Mapped[int]
    objective: Mapped[str]
    objective_value: Mapped[float | None]
    validation_loss: Mapped[float | None]
    training_loss: Mapped[float | None]
    owner: Mapped[str] = mapped_column(primary_key=True)
    all_rows_configuration: Mapped[int | None] = mapped_column(Integer)
    all_rows_objective_value: Mapped[float | None]
    all_rows_validation_loss: Mapped[float | None]
    worse_than_all_rows: Mapped[bool | None]


class ConfigurationParameter(View):
    """One parameter of a configuration. ``value`` is None if it is not a number."""

    __tablename__ = "parameters"

    run: Mapped[int] = mapped_column(primary_key=True)
    owner: Mapped[str] = mapped_column(primary_key=True)
    configuration: Mapped[int] = mapped_column(Integer, primary_key=True)
    parameter: Mapped[str] = mapped_column(primary_key=True)
    value: Mapped[float | None]
    text: Mapped[str | None]


class CrossValidation(View):
    """One configuration of a run with folds, on all rows or in a group: mean and spread of the objective."""

    __tablename__ = "cross_validation"

    run: Mapped[int] = mapped_column(primary_key=True)
    rank: Mapped[int] = mapped_column(Integer)
    configuration: Mapped[int] = mapped_column(Integer)
    architecture: Mapped[str]
    parameters: Mapped[dict[str, Any]] = mapped_column(JSONB)
    objective: Mapped[str]
    mean: Mapped[float | None]
    spread: Mapped[float | None]
    smallest: Mapped[float | None]
    largest: Mapped[float | None]
    folds: Mapped[int] = mapped_column(Integer)
    folds_done: Mapped[int]
    epochs_done: Mapped[int]
    model: Mapped[int] = mapped_column(Integer, primary_key=True)
    chosen: Mapped[dict[str, Any] | None] = mapped_column(JSONB)
    owner: Mapped[str] = mapped_column(primary_key=True)
    group_number: Mapped[int | None] = mapped_column(Integer)
    group_value: Mapped[str | None]


class ModelTable(View):
    """A table of trained models that you may read."""

    __tablename__ = "models"

    model_table: Mapped[str] = mapped_column(primary_key=True)
    target: Mapped[str | None]
    run: Mapped[int | None]  # type: ignore[assignment]
    run_name: Mapped[str | None]
    objective: Mapped[str | None]
    best_value: Mapped[float | None]
    rows: Mapped[int | None]
    configurations: Mapped[int | None] = mapped_column(Integer)
    created_at: Mapped[datetime | None]
    bytes: Mapped[int | None]
    owner: Mapped[str]
    chosen_configuration: Mapped[int | None] = mapped_column(Integer)
    made_of: Mapped[str | None]
    quality: Mapped[str | None]
    model_name: Mapped[str]


class RegisteredVersion(View):
    """A version of a registered model."""

    __tablename__ = "registered_versions"

    registered_model: Mapped[str] = mapped_column(primary_key=True)
    version: Mapped[int] = mapped_column(Integer, primary_key=True)
    aliases: Mapped[str | None]
    registered_at: Mapped[datetime]
    registered_by: Mapped[str]
    reason: Mapped[str | None]
    target: Mapped[str | None]
    objective: Mapped[str | None]
    objective_value: Mapped[float | None]
    validation_loss: Mapped[float | None]
    training_loss: Mapped[float | None]
    model_table: Mapped[str]
    configuration: Mapped[int] = mapped_column(Integer)
    epoch: Mapped[int | None] = mapped_column(Integer)
    run: Mapped[int | None]  # type: ignore[assignment]
    run_name: Mapped[str | None]
    source_table: Mapped[str | None]
    packed_table: Mapped[str | None]
    rows: Mapped[int | None]
    started_at: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]
    cerebro_version: Mapped[str | None]
    bytes: Mapped[int]
    sha256: Mapped[str]
    group_by: Mapped[str | None]
    groups: Mapped[int | None] = mapped_column(Integer)
    group_key: Mapped[str | None]
    unregistered_at: Mapped[datetime | None]
    may_use: Mapped[bool]
    may_read: Mapped[bool]
    quality: Mapped[str | None]


class RunProgress(View):
    """The progress of a run."""

    __tablename__ = "run_progress"

    run: Mapped[int] = mapped_column(primary_key=True)
    run_name: Mapped[str | None]
    status: Mapped[str]
    percent: Mapped[float]
    hops_done: Mapped[int]
    hops_total: Mapped[int]
    configurations_finished: Mapped[int | None]
    configurations_failed: Mapped[int | None]
    configurations: Mapped[int] = mapped_column(Integer)
    rows_per_second: Mapped[float | None]
    seconds_left: Mapped[float | None]
    seconds_elapsed: Mapped[float | None]
    best_configuration: Mapped[int | None] = mapped_column(Integer)
    best_loss: Mapped[float | None]
    best_metric: Mapped[float | None]
    seen_at: Mapped[datetime | None]
    owner: Mapped[str] = mapped_column(primary_key=True)
    message: Mapped[str | None]
    objective: Mapped[str | None]
    best_value: Mapped[float | None]

    @property
    def ended(self) -> bool:
        """Whether the run has ended."""
        return self.status not in UNDER_WAY


class LearningCurvePoint(View):
    """Loss and metric of one model after one epoch."""

    __tablename__ = "learning_curve"

    run: Mapped[int] = mapped_column(primary_key=True)
    owner: Mapped[str] = mapped_column(primary_key=True)
    configuration: Mapped[int] = mapped_column(Integer)
    epoch: Mapped[int] = mapped_column(Integer, primary_key=True)
    training_loss: Mapped[float | None]
    training_metric: Mapped[float | None]
    validation_loss: Mapped[float | None]
    validation_metric: Mapped[float | None]
    metric_name: Mapped[str | None]
    rows: Mapped[int]
    training_seconds: Mapped[float | None]
    trained_at: Mapped[datetime]
    model: Mapped[int] = mapped_column(Integer, primary_key=True)
    fold: Mapped[int | None] = mapped_column(Integer)
    group_number: Mapped[int | None] = mapped_column(Integer)
    group_value: Mapped[str | None]

    @property
    def loss(self) -> float | None:
        return self.training_loss if self.validation_loss is None else self.validation_loss


class Metric(View):
    """The loss or one metric of one model after one epoch."""

    __tablename__ = "metrics"

    run: Mapped[int] = mapped_column(primary_key=True)
    model: Mapped[int] = mapped_column(Integer, primary_key=True)
    configuration: Mapped[int] = mapped_column(Integer)
    epoch: Mapped[int] = mapped_column(Integer, primary_key=True)
    dataset: Mapped[str] = mapped_column(primary_key=True)  # training or validation
    metric: Mapped[str] = mapped_column(primary_key=True)
    value: Mapped[float | None]
    owner: Mapped[str] = mapped_column(primary_key=True)
    group_number: Mapped[int | None] = mapped_column(Integer)
    group_value: Mapped[str | None]


class Decision(View):
    """A decision about a run or one of its models. ``added`` are numbers of models, with commas."""

    __tablename__ = "decisions"

    run: Mapped[int] = mapped_column(primary_key=True)
    decision_id: Mapped[int] = mapped_column(primary_key=True)
    at: Mapped[datetime]
    decision: Mapped[str]
    model: Mapped[int | None] = mapped_column(Integer)
    configuration: Mapped[int | None] = mapped_column(Integer)
    epoch: Mapped[int | None] = mapped_column(Integer)
    decided_by: Mapped[str]
    reason: Mapped[str | None]
    added: Mapped[str | None]
    request_id: Mapped[int | None]
    requested_by: Mapped[str | None]
    owner: Mapped[str] = mapped_column(primary_key=True)


class Request(View):
    """What somebody asked of a run. ``status`` is waiting, done or refused."""

    __tablename__ = "requests"

    run: Mapped[int] = mapped_column(primary_key=True)
    request_id: Mapped[int] = mapped_column(primary_key=True)
    at: Mapped[datetime]
    by: Mapped[str]
    action: Mapped[str]
    model: Mapped[int | None] = mapped_column(Integer)
    configuration: Mapped[int | None] = mapped_column(Integer)
    parameters: Mapped[str | None]
    reason: Mapped[str | None]
    status: Mapped[str]
    answered_at: Mapped[datetime | None]
    refusal: Mapped[str | None]
    decision_id: Mapped[int | None]
    owner: Mapped[str] = mapped_column(primary_key=True)


class SegmentActivity(View):
    """One activity of one segment: a hop (train or average) or an evaluation (evaluate).

    A segment trains or evaluates one model at a time. In the last ``seconds_behind`` of an activity its state
    is stored while the segment already works on the next one.
    """

    __tablename__ = "hop_timeline"

    run: Mapped[int] = mapped_column(primary_key=True)
    owner: Mapped[str] = mapped_column(primary_key=True)
    segment: Mapped[int] = mapped_column(Integer)
    activity: Mapped[str]
    configuration: Mapped[int] = mapped_column(Integer)
    epoch: Mapped[int] = mapped_column(Integer, primary_key=True)
    hop: Mapped[int | None] = mapped_column(Integer, primary_key=True)  # NULL if evaluated
    dataset: Mapped[str | None] = mapped_column(primary_key=True)  # only if evaluated, like part
    part: Mapped[int | None] = mapped_column(Integer, primary_key=True)
    started_at: Mapped[datetime]
    finished_at: Mapped[datetime]
    seconds: Mapped[float]
    rows: Mapped[int]
    loss: Mapped[float | None]
    first_metric: Mapped[float | None]
    seconds_reading: Mapped[float]
    seconds_state_in: Mapped[float]
    seconds_training: Mapped[float]
    seconds_state_out: Mapped[float]
    seconds_building: Mapped[float]
    seconds_behind: Mapped[float]
    worker_pid: Mapped[int] = mapped_column(Integer)
    trainer_pid: Mapped[int | None] = mapped_column(Integer)
    engine: Mapped[str | None]
    model: Mapped[int] = mapped_column(Integer, primary_key=True)
    seconds_features: Mapped[float]


class SegmentNow(View):
    """The last hop that a segment has begun."""

    __tablename__ = "segments_now"

    run: Mapped[int] = mapped_column(primary_key=True)
    segment: Mapped[int] = mapped_column(Integer, primary_key=True)
    configuration: Mapped[int] = mapped_column(Integer)
    epoch: Mapped[int] = mapped_column(Integer)
    hop: Mapped[int] = mapped_column(Integer)
    seconds: Mapped[float | None]  # None if the run ended during the hop
    done: Mapped[bool]
    owner: Mapped[str] = mapped_column(primary_key=True)
    model: Mapped[int] = mapped_column(Integer)


class RunTime(View):
    """How much of the segments' time in a run one kind of activity took."""

    __tablename__ = "run_time"

    run: Mapped[int] = mapped_column(primary_key=True)
    position: Mapped[int] = mapped_column(Integer, primary_key=True)
    activity: Mapped[str]
    seconds: Mapped[float | None]
    share: Mapped[float | None]
    owner: Mapped[str] = mapped_column(primary_key=True)


class MeasuredProfile(View):
    """What a run has measured of models with the same shapes, for the plans of later runs."""

    __tablename__ = "profiles"

    run: Mapped[int] = mapped_column(primary_key=True)
    owner: Mapped[str] = mapped_column(primary_key=True)
    at: Mapped[datetime] = mapped_column(primary_key=True)
    engine: Mapped[str] = mapped_column(primary_key=True)
    batch_size: Mapped[int] = mapped_column(Integer, primary_key=True)
    parallel: Mapped[str] = mapped_column(primary_key=True)
    threads: Mapped[int] = mapped_column(Integer, primary_key=True)
    trainers: Mapped[int] = mapped_column(Integer, primary_key=True)
    machine: Mapped[str]
    visits: Mapped[int] = mapped_column(primary_key=True)
    seconds_of_row: Mapped[float]
    seconds_of_evaluated_row: Mapped[float | None]
    seconds_building: Mapped[float | None]
    seconds_of_hop: Mapped[float | None]
    state_bytes: Mapped[int | None]
    memory_mb: Mapped[int | None] = mapped_column(Integer)
    fused: Mapped[int | None] = mapped_column(Integer)
    fused_share: Mapped[float | None]
    shapes: Mapped[str] = mapped_column(primary_key=True)
