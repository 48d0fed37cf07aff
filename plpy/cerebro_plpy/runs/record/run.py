"""A run and its models, as the log has them: a new run and a resumed one look the same."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any, Callable

from cerebro_db.core.architecture import trees
from cerebro_db.core.errors import InvalidArgument, UndefinedObject
from cerebro_db.core.events import DataSetName, Initial
from cerebro_db.core.options import BEST
from cerebro_db.core.packing.layout import DataSet
from cerebro_db.core.protocol import FrozenPart, MetricStates, RowPortion, Span
from cerebro_db.core.records import dataclass, field
from cerebro_db.core.run_options import RunOptions
from cerebro_db.core.scheduling.plan import MOST_HOPS, Train, parts_in_order
from cerebro_db.core.scheduling.ring import derived_seed
from cerebro_db.core.scheduling.schedule import ModelPlan, Plan
from cerebro_db.core.search.decision import Variant
from cerebro_db.core.search.variants import UNJUDGED, of_folds, of_groups
from cerebro_db.core.trainers import sharding
from cerebro_db.core.trainers.sharding import ModelMemory

from .groups import joint_segments
from .shared_tables import SharedTables

MOST_FUSED = 16  # models in one pass over the rows
# Short visits of models with small states share an order to the trainer and a transaction: each costs milliseconds.
SERIES_SECONDS, SMALL_STATE = 0.25, 1 << 20
DEFAULT_BATCH = 32  # Keras'
# Where visits take portions of the rows, models are evaluated on so many rows for validation at least, and on twice as
# many after so many times as many epochs.
LEAST_SAMPLE, GROWS = 10_000, 9

Figures = dict[str, dict[str, float]]  # an engine trial: engine -> seconds to build, to compile and to train a batch


@dataclass(frozen=True)
class EarlierTrial:
    """What an earlier run's trials found for a configuration that is built alike."""

    run: int
    figures: Figures
    program: str


@dataclass(frozen=True)
class Left:
    """The file of a committed state that its segment keeps for a while."""

    hop: int
    place: str  # the workers that can take it over
    file: str


@dataclass
class Replica:
    """A replica of a model after its visit, until the average of all replicas is committed."""

    rows: int  # trained on
    sha256: str | None  # of its state
    dist_key: int  # of the segment where its state was written
    metric_states: MetricStates | None
    left: Left | None = None  # the file of its state
    frozen: FrozenPart | None = None  # the part of its state that is in a table of its own


@dataclass(frozen=True)
class StoredWeights:
    """The weights in a state of another model, from which models of groups start."""

    model: int
    hop: int
    dist_key: int  # of the segment where that state was written
    first: int  # the place of the weights in it
    size: int  # in bytes
    frozen: FrozenPart | None = None  # the part of that state that is in a table of its own


@dataclass(frozen=True)
class AskedModel:
    """What was asked for: a configuration of the run, and what its model starts from."""

    number: int
    key: int
    place: int  # of its configuration in the selection
    model_id: int
    compile_params: str
    fit_params: str
    definition: dict[str, Any]  # architecture, compile, fit
    seed: int
    initial: Initial
    visits: tuple[int, ...] | None = None  # the segments of an epoch's hops; None: each segment of the run once
    parent: int | None = None  # the model whose state it starts from
    parent_hop: int | None = None  # after which hop of that model
    adopts: bool = False  # it starts from the state of another configuration
    parameters: dict[str, Any] = field(default_factory=dict)  # the configuration, flat and without the architecture
    chosen: dict[str, Any] | None = None  # of a configuration that was added: the point of the search space
    refused: str | None = None  # why its configuration cannot be trained at all
    fold: int | None = None  # it trains on the rows of all other folds, and is evaluated on those of this one
    group_number: int | None = None  # it trains, and is evaluated, on the rows of this group
    start: StoredWeights | None = None  # weights of another model that it starts from; they are not copied

    @property
    def variant(self) -> Variant | None:
        """The fold and the group of its rows; None: all rows."""
        return Variant.of(self.fold, self.group_number)

    @property
    def is_copy(self) -> bool:
        return self.parent is not None

    @property
    def is_continued(self) -> bool:
        """Whether it goes on from another model's whole state, with the rows that come next."""
        return self.parent is not None and self.initial is Initial.FULL

    @property
    def home(self) -> int | None:
        """The number of the only segment of a model that does not hop; None: it hops."""
        return home_of(self.definition.get("architecture"), self.place)

    @property
    def batch_size(self) -> int:
        return self.definition["fit"].get("batch_size") or DEFAULT_BATCH


def home_of(architecture: Any, place: int) -> int | None:
    return place if trees.are_grown(architecture) else None


@dataclass
class ModelBuild:
    """What preflight has found out and chosen, before the first visit."""

    done: bool = False  # whether a trainer has built the model and found that it fits the data
    engine: str = ""
    unable: set[str] = field(default_factory=set)  # the engines that could not build it for its first visit
    trial: dict[str, Any] = field(default_factory=dict)  # the earlier trial that its engine was chosen by
    earlier: EarlierTrial | None = None  # trials of some engines only; weighed when the run is built
    parameters: int | None = None
    position: int | None = None  # on the ring; the visits follow from it
    group: str | None = None  # its fusion group
    memory: ModelMemory = ModelMemory()  # that a trainer needs for it; of models that were added later it is a guess


@dataclass
class Model:
    """What trains: what was asked for, how it was built, and how far it is."""

    asked: AskedModel
    sha256: str | None  # of its last state; before the first hop, of the whole state it starts from
    dist_key: int = 0  # of the segment where its state was written
    build: ModelBuild = field(default_factory=ModelBuild)
    state_bytes: int = 0  # expected, and after a visit those of its states
    frozen_bytes: int = 0  # of these, that are the same in all its states
    frozen: FrozenPart | None = None  # the part of its last state that is in a table of its own
    start_frozen: FrozenPart | None = None  # that of the state that it starts from
    given: str | None = None  # names the large weights that it starts from, which models of the run share
    hops: int = 0
    epoch: int = 0  # of the last hop
    large_start: bool = False  # the state that it starts from has a table of its own
    metric_states: MetricStates | None = None  # what the metrics have counted in that epoch so far
    left: Left | None = None  # the file of its state
    replicas: dict[int, Replica] = field(default_factory=dict)  # by hop; of the epoch under way, if the run averages

    @property
    def number(self) -> int:
        return self.asked.number

    @property
    def key(self) -> int:
        return self.asked.key

    @property
    def named(self) -> str:
        """For messages."""
        fold, group = self.asked.fold, self.asked.group_number
        rows = [f"group {group}"] if group is not None else []
        rows += [f"fold {fold}"] if fold is not None else []
        return f"configuration {self.key}" + (f" of {', '.join(rows)}" if rows else "")

    def after(self, hop: int) -> Model | Replica:
        """What is known of the state after a hop: after that of a replica, or the last of the model's own."""
        return self.replicas.get(hop, self)

    def frozen_after(self, hop: int) -> FrozenPart | None:
        """The part of its state after a hop that is in a table of its own; None: its own rows have all bytes."""
        return self.start_frozen if hop == 0 else self.after(hop).frozen

    def has_hop(self, hop: int) -> bool:
        return hop <= self.hops or hop in self.replicas


@dataclass
class Run:
    """What a run was asked to do, and its models."""

    id: int
    owner: str
    source: DataSet
    validation: DataSet | None
    model_table: str
    epochs: int
    evaluate_every: int
    seed: int
    dist_keys: list[int]
    storage: str
    options: RunOptions
    architectures: dict[int, Any] = field(default_factory=dict)  # by model_id
    models: dict[int, Model] = field(default_factory=dict)
    shared: SharedTables = field(default_factory=SharedTables)  # for small states
    frozen_stored: set[str] = field(default_factory=set)  # checksums of frozen parts that are committed for sure
    trainer_mb: int | None = None  # memory that each trainer may use; None: no limit is known
    segments_lost: bool = False  # Greenplum lost a segment meanwhile, so the caller's own session is of no more use
    # What earlier runs say that a visit of a model takes, in seconds; 0: they say nothing.
    expected: Callable[[Model], float] = field(default=lambda model: 0.0)
    # Configuration and group -> the number of their first model.
    _of_group: dict[tuple[int, int | None], int] = field(default_factory=dict)
    _looked_at: int = 0  # how many models it was made from

    @property
    def segments(self) -> int:
        return len(self.dist_keys)

    @property
    def averages(self) -> bool:
        return self.options.averaging

    @property
    def folds(self) -> int:
        """The number of folds of the rows; 0: they have none."""
        return self.source.folds

    @property
    def groups(self) -> list[int]:
        """The numbers of the groups that have models of their own; none: rows have no groups."""
        return groups_with_models(self.source, self.options.least_group_rows)

    @property
    def why_whole(self) -> str | None:
        """Why it cuts no model, whatever its options are; None: it may cut models."""
        return sharding.why_whole(jointly=self.options.adds_gradients, averages=self.averages)

    def jointly(self, model: Model) -> tuple[int, ...]:
        """The segments that train a model at the same time, by adding up gradients; none: it hops."""
        if not self.options.adds_gradients or model.asked.home is not None:
            return ()
        return joint_segments(self.source, model.asked.variant)

    def stays_on(self, model: Model) -> int | None:
        """The segment on which a model trains on copies of all rows; None: it hops, or is one that never does.

        The models with the first ring positions, which are the most expensive ones, are on different segments.
        """
        if not self.options.copies_rows or model.asked.home is not None:
            return None
        return self._parts_in_order(model)[0]

    def part_of(self, model: Model, visit: Train) -> int:
        """The number of the segment whose rows a visit takes."""
        if self.stays_on(model) is None:
            return visit.segment
        parts = self._parts_in_order(model)
        return parts[(visit.hop - 1) % len(parts)]

    def _parts_in_order(self, model: Model) -> list[int]:
        return parts_in_order(self.seed, self._position(model), self.segments, model.asked.visits)

    def _position(self, model: Model) -> int:
        return model.asked.place if model.build.position is None else model.build.position

    def data(self, dataset: str) -> DataSet:
        if dataset == DataSetName.TRAINING:
            return self.source
        assert self.validation is not None
        return self.validation

    def parts(self, dataset: str) -> list[int]:
        """The parts of a data set that have rows."""
        return [number for number, part in enumerate(self.data(dataset).partitions) if part.rows > 0]

    def parts_of(self, model: Model, dataset: str) -> list[int]:
        """The parts of a data set that a model is evaluated on."""
        if model.asked.group_number is None:
            return self.parts(dataset)
        return list(self.data(dataset).rows_for(model.asked.fold, model.asked.group_number, trained=False))

    def span_of(self, model: Model, dataset: str, part: int) -> Span | None:
        """The rows of a part of which a model trains on those of its folds, or is evaluated on them; None: all."""
        if model.asked.group_number is None:
            return None
        return Span(*self.data(dataset).spans[part, model.asked.group_number])

    @property
    def evaluations(self) -> dict[str, dict[int, int]]:
        """Data set -> for each part of it that has rows, the segment that evaluates it."""
        found: dict[str, dict[int, int]] = {}
        segment_of = {key: segment for segment, key in enumerate(self.dist_keys)}
        if self.options.evaluate_training:
            found[DataSetName.TRAINING.value] = {
                number: segment_of[self.source.partitions[number].key] for number in self.parts(DataSetName.TRAINING)
            }
        if self.validation is not None:
            # On Greenplum a part can be evaluated only where it lies; on PostgreSQL anywhere.
            found[DataSetName.VALIDATION.value] = {
                number: segment_of.get(self.validation.partitions[number].key, number % self.segments)
                for number in self.parts(DataSetName.VALIDATION)
            }
        return found

    def is_judged(self, model: Model) -> bool:
        """Whether the models of the folds of its configuration, and of its group, say which of its epochs is best.

        A copy of a model goes on from a state, and has no folds.
        """
        return bool(self.folds) and self.options.keep == BEST and model.asked.fold is None and not model.asked.is_copy

    def judges(self, model: Model) -> int:
        """How many models of folds say how good a model on all rows, or on all rows of a group, is."""
        group = model.asked.group_number
        return self.folds if group is None else len(self.source.folds_of(group))

    def plan(self) -> Plan:
        return Plan(
            seed=self.seed,
            models=tuple(self._plans(self.models[number] for number in sorted(self.models))),
            segments=self.segments,
            epochs=self.epochs,
            evaluations=self.evaluations,
            evaluate_every=self.evaluate_every,
            evaluate_after=frozenset(self.options.evaluate_after),
            most_fused=MOST_FUSED,
            series_seconds=SERIES_SECONDS,
        )

    def plan_of(self, model: Model) -> ModelPlan:
        (plan,) = self._plans([model])
        return plan

    def _plans(self, models: Iterable[Model]) -> Iterator[ModelPlan]:
        evaluations = self.evaluations
        alike = all(self.data(dataset).for_trainer == self.source.for_trainer for dataset in evaluations)
        for model in models:
            jointly = self.jointly(model)
            averages = self.averages and model.asked.home is None
            stays_on = self.stays_on(model)
            alone = averages or bool(jointly) or model.asked.home is not None or stays_on is not None
            short = 0 < model.state_bytes <= SMALL_STATE and not alone
            yield ModelPlan(
                model=model.number,
                position=self._position(model),
                visits=model.asked.visits,
                stays_on=stays_on,
                group=None if alone else model.build.group,
                series=model.build.engine if short else None,
                sort=self._sort(model),
                refused=model.asked.refused,
                averages=averages,
                jointly=jointly,
                fold=model.asked.fold,
                # The rows for validation of a model on all rows would be rows that it was trained on.
                evaluated=not self.folds or model.asked.fold is not None,
                judged=self._judged(model),
                judges=self.judges(model) if self.is_judged(model) else 0,
                group_number=model.asked.group_number,
                starts_from=None if model.asked.start is None else model.asked.start.model,
                parts=None if model.asked.group_number is None else self._parts(model),
                most_chained=self._most_chained(model, evaluations) if short and alike else 0,
                expected=self.expected(model),
            )

    def _judged(self, model: Model) -> str | None:
        if not self.folds or self.options.keep != BEST or model.asked.is_copy:
            return None
        return f"{model.key} {model.asked.group_number}"

    def _sort(self, model: Model) -> str:
        """Equal for models whose visits take about as long; groups have very different numbers of rows."""
        rows = "" if model.asked.group_number is None else f" {self.rows_of(model).bit_length()}"
        return f"{model.asked.model_id} {sorted(model.asked.definition['fit'].items())}{rows}"

    def _most_chained(self, model: Model, evaluations: Mapping[str, Mapping[int, int]]) -> int:
        """How many epochs of a model one order may have: those of a group that lies on one segment.

        The best state is looked for after each epoch, and only the last state of an order is stored.
        """
        visits = model.asked.visits or ()
        if model.asked.group_number is None or len(visits) != 1:
            return 0
        for dataset, segments in evaluations.items():
            parts = self.parts_of(model, dataset)
            if len(parts) > 1 or any(segments[part] != visits[0] for part in parts):
                return 0
        return 1 if self.options.keep == BEST else MOST_HOPS

    def _parts(self, model: Model) -> dict[str, list[int]]:
        there = (DataSetName.TRAINING, *([DataSetName.VALIDATION] if self.validation is not None else []))
        return {dataset.value: self.parts_of(model, dataset) for dataset in there}

    def configuration_of(self, model: Model) -> dict[str, Any]:
        """What a search policy knows of a model."""
        variant: dict[str, Any] = {"fold": model.asked.fold} if self.folds else {}
        if self.source.has_groups:
            dataset = self.options.optimised(self.validation is not None).dataset
            judged = not dataset or self.parts_of(model, dataset)
            variant = {**variant, "group_number": model.asked.group_number, **({} if judged else {UNJUDGED: True})}
        return {"key": model.key, **model.asked.definition, "chosen": model.asked.chosen, **variant}

    def hops_of(self, model: Model) -> int:
        return self.epochs * self.hops_per_epoch(model)

    def hops_per_epoch(self, model: Model) -> int:
        return self.segments if model.asked.visits is None else len(model.asked.visits)

    def segments_of(self, model: Model) -> list[int]:
        """The segments on whose rows an epoch of a model trains."""
        if jointly := self.jointly(model):
            return list(jointly)
        if model.asked.home is not None:
            return list(self.rows_by_segment(model))
        if model.asked.visits is None:
            return list(range(self.segments))
        return list(model.asked.visits[:-1] if self.averages else model.asked.visits)

    def is_replica(self, model: Model, hop: int) -> bool:
        """Whether a hop leaves the state of a replica, which goes into an average."""
        return self.averages and hop % self.hops_per_epoch(model) > 0

    def rows_done(self, model: Model) -> int:
        """How many rows the committed hops of a model have trained on."""
        replicas = sum(replica.rows for replica in model.replicas.values())
        return self.rows_of(model) * model.hops // self.hops_per_epoch(model) + replicas

    def rows_of(self, model: Model) -> int:
        """How many rows one epoch of a model trains on."""
        fit = model.asked.definition["fit"]
        there = self.rows_by_segment(model)
        visits = [math.ceil(there.get(segment, 0) / self.portions) for segment in self.segments_of(model)]
        if model.asked.home is not None:
            return sum(visits)
        if self.jointly(model):
            visits = [sum(visits)]
        if fit.get("steps_per_epoch"):
            visits = [min(rows, fit["steps_per_epoch"] * fit["batch_size"]) for rows in visits]
        return sum(visits) * int(fit.get("epochs", 1))

    def rows_by_segment(self, model: Model) -> dict[int, int]:
        """How many rows a model trains on, by segment; only those that have some."""
        return self.source.rows_for(model.asked.fold, model.asked.group_number, trained=True)

    @cached_property
    def portions(self) -> int:
        """Into how many portions the rows of each segment are divided; a visit takes one."""
        most = self.options.visit_rows
        return 1 if most is None else max(1, *(math.ceil(part.rows / most) for part in self.source.partitions))

    def portion(self, model: Model, epoch: int) -> RowPortion | None:
        """The rows of each segment that an epoch of a model takes; None: all."""
        if self.portions == 1:
            return None
        return RowPortion(self.epochs_before(model) + epoch - 1, self.portions)

    def epochs_before(self, model: Model) -> int:
        """The epochs of the models from whose state a model goes on."""
        found = 0
        while model.asked.is_continued and model.asked.parent in self.models:
            hop, model = model.asked.parent_hop or 0, self.models[model.asked.parent]
            found += hop // self.hops_per_epoch(model)
        return found

    def sampled(self, model: Model, dataset: str, part: int, epoch: int) -> int | None:
        """How many rows of a part of a data set a model is evaluated on after an epoch; None: all."""
        share = self.share_of_sample(model, epoch)
        if share >= 1:
            return None
        rows = self.data(dataset).rows_for(model.asked.fold, None, trained=False).get(part, 0)
        return max(1, math.ceil(share * rows)) if rows else None

    def share_of_sample(self, model: Model, epoch: int) -> float:
        """The share of the rows for validation that models are evaluated on that have trained as long."""
        if self.portions == 1:
            return 1.0
        data = self.source if self.validation is None else self.validation
        rows = sum(data.rows_for(model.asked.fold, None, trained=False).values())
        grown: int = 1
        trained = self.epochs_before(model) + epoch
        while trained >= GROWS:
            grown, trained = 2 * grown, trained // GROWS
        return min(1.0, grown * max(1 / self.portions, LEAST_SAMPLE / max(1, rows)))

    def shuffle_seed(self, model: Model, hop: int, *of_joint: int) -> int:
        """``of_joint``: the segment, of a joint visit."""
        if self.is_of_waiting_group(model):
            return derived_seed(self.seed, "rows", "group", model.key, model.asked.group_number, hop, *of_joint)
        return derived_seed(self.seed, "rows", model.number - 1, hop, *of_joint)

    def is_of_waiting_group(self, model: Model) -> bool:
        """Whether a model began when the model on all rows of its configuration had ended; copies of it did not.

        Its number follows from when that was, so what it does must not follow from its number.
        """
        if not self.options.groups_wait or model.asked.group_number is None:
            return False
        if self._looked_at < len(self.models):
            for number in sorted(self.models)[self._looked_at :]:
                asked = self.models[number].asked
                self._of_group.setdefault((asked.key, asked.group_number), number)
            self._looked_at = len(self.models)
        return self._of_group.get((model.key, model.asked.group_number), model.number) == model.number


def groups_with_models(source: DataSet, least_rows: int) -> list[int]:
    """The numbers of the groups that have so many rows for training."""
    return sorted(number for number, pieces in source.pieces.items() if sum(pieces.values()) >= least_rows)


def variants(source: DataSet, least_rows: int) -> list[Variant]:
    """The models that a configuration has beside the one on all rows.

    ``least_rows``: for training that a group with models has.
    """
    groups = groups_with_models(source, least_rows)
    return [
        *of_folds(source.folds),
        *of_groups(groups),
        *(Variant(fold, group) for group in groups for fold in source.folds_of(group)),
    ]


def averaging_visits(segments: int) -> tuple[int, ...]:
    """The segments of the hops of an epoch that ends with an average: each once, and the one that averages."""
    return (*range(segments), 0)


def require_countable(epochs: int, segments: int) -> None:
    if epochs * segments > MOST_HOPS:
        raise InvalidArgument(
            f"{epochs:,} epochs over {segments} segments are more hops than can be counted.",
            hint=f"At most {MOST_HOPS // segments:,} epochs.",
        )


def no_such_run(run_id: int | None) -> UndefinedObject:
    return UndefinedObject(
        f"there is no run {'NULL' if run_id is None else run_id} of yours",
        hint="SELECT run, run_name, status FROM cerebro.runs lists your runs.",
    )
