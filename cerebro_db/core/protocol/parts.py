# ruff: noqa: UP007, UP045  (get_type_hints evaluates the annotations, on Python 3.9 too)
"""The parts of orders: settings, references to states, members and groups."""

from __future__ import annotations

from enum import Enum
from typing import Any, Optional, Union

from cerebro_db.core.engines import AUTO_REUSE, NO_REUSE
from cerebro_db.core.errors import InvalidArgument
from cerebro_db.core.options import OPTIONS, default

from ..codec import fields_of
from ..records import dataclass, field
from .answers import FrozenPart, MetricStates

MOST_BACKGROUND = 1024  # rows that explanations are compared with
MOST_REPEATS = 1000  # of an exchange
LARGEST = 2**31 - 1  # of a number in the settings


def by_segment() -> Any:
    """A field that the segment fills in.  An order that arrives at the segment with such a field is refused."""
    return field(default=None, metadata={"by_segment": True})


def require(condition: bool, message: str) -> None:
    if not condition:
        raise InvalidArgument(message)


@dataclass(frozen=True)
class TrainerOptions:
    """The settings that all trainers of a run have: options of users (``core/options.py``)."""

    threads: Optional[int] = default("threads")  # number of threads; None: chosen by the framework
    deterministic: bool = default("deterministic")  # whether equal inputs give equal bits
    hang_after: int = default("hang_after")  # seconds without an answer or computing until it is ended; 0: never
    cache_mb: Optional[int] = default("cache_mb")  # limit of cached rows in memory; None: up to half of the memory
    reuse: Optional[str] = default("reuse")  # what is kept of frozen layers; None: auto, or none if deterministic
    features_mb: int = default("features_mb")  # limit of what frozen layers give that is kept
    features_type: str = default("features_type")  # of the numbers of that (float32, float16)
    shard: Union[str, int] = default("shard")  # into how many shards a model is cut: auto, never or a number
    memory_mb: Optional[int] = default("memory_mb")  # that a trainer may use for a model; None: no limit is known

    def __post_init__(self) -> None:
        for one in fields_of(TrainerOptions) or ():
            value = getattr(self, one.name)
            try:
                if value is not None:
                    OPTIONS[one.name].check(value)
            except InvalidArgument:
                raise InvalidArgument(f"a trainer cannot have {one.name} = {str(value)[:80]}") from None

    @property
    def reuses(self) -> str:
        """The value of ``reuse`` that counts."""
        return self.reuse or (NO_REUSE if self.deterministic else AUTO_REUSE)


@dataclass(frozen=True)
class TrainerSettings(TrainerOptions):
    """The settings of a segment's trainers; the argument of ``cerebro_internal._worker_open``."""

    engine: str = ""  # tensorflow, jax or torch
    gpu: Optional[int] = None  # number of the device; None: the processor
    memory_limit_mb: Optional[int] = by_segment()  # limit of the process' private memory (cerebro.set_limits)
    silent: bool = False  # whether the segment keeps what trainers report to itself: nobody reads its notices

    def __post_init__(self) -> None:
        super().__post_init__()
        require(bool(self.engine), "the settings of a trainer need an engine")
        for name, least in (("gpu", 0), ("memory_limit_mb", 1)):
            value = getattr(self, name)
            if value is not None and not least <= value <= LARGEST:
                raise InvalidArgument(f"a trainer cannot have {name} = {value}")


class Origin(str, Enum):
    """The place from which a model's state comes."""

    SEED = "seed"  # initialised from the member's seed
    WEIGHTS = "weights"  # initialised from the seed, but for the weights, which the segment received
    FULL = "full"  # the whole state, which the segment received
    RESIDENT = "resident"  # the state that the trainer still has in memory


@dataclass(frozen=True)
class StateRef:
    """A reference to a model's state."""

    origin: Origin  # seed, weights, full or resident
    name: Optional[str] = None  # name of the received state, as given to _state_in (weights, full)
    sha256: Optional[str] = None  # checksum of the whole state (full)
    token: Optional[str] = None  # token of the resident state, from the answer of its visit (resident)
    left: Optional[str] = None  # where a segment of this host keeps the state's file; then no rows are received (full)
    adopted: bool = False  # whether another configuration left it: the learning rate is not taken from it (full)
    frozen: Optional[FrozenPart] = None  # the part that its rows and its file do not have (full)
    path: Optional[str] = by_segment()  # path of the file with the received state
    frozen_path: Optional[str] = by_segment()  # path of the file with the frozen part

    def __post_init__(self) -> None:
        received = self.origin in (Origin.WEIGHTS, Origin.FULL)
        for name, wanted in (
            ("name", received),
            ("sha256", self.origin is Origin.FULL),
            ("token", self.origin is Origin.RESIDENT),
        ):
            if (getattr(self, name) is not None) != wanted:
                raise InvalidArgument(f"a state from {self.origin.value} {'needs a' if wanted else 'has no'} {name}")
        if self.left is not None and self.origin is not Origin.FULL:
            raise InvalidArgument(f"a state from {self.origin.value} has no left")
        if self.adopted and self.origin is not Origin.FULL:
            raise InvalidArgument(f"a state from {self.origin.value} is not adopted")
        if self.frozen is not None and self.origin is not Origin.FULL:
            raise InvalidArgument(f"a state from {self.origin.value} has no frozen part")

    @classmethod
    def seed(cls) -> StateRef:
        return cls(Origin.SEED)

    @classmethod
    def weights(cls, name: str) -> StateRef:
        return cls(Origin.WEIGHTS, name=name)

    @classmethod
    def full(
        cls,
        name: str,
        sha256: str,
        left: str | None = None,
        *,
        adopted: bool = False,
        frozen: FrozenPart | None = None,
    ) -> StateRef:
        return cls(Origin.FULL, name=name, sha256=sha256, left=left, adopted=adopted, frozen=frozen)

    @classmethod
    def resident(cls, token: str) -> StateRef:
        return cls(Origin.RESIDENT, token=token)


@dataclass(frozen=True)
class CustomFunction:
    """A custom loss or metric that an administrator registered."""

    name: str  # name under which it is registered
    version: int  # configurations name a function as NAME@VERSION
    kind: str  # loss, metric or both
    source: str  # text of the Python function
    sha256: str  # checksum of the source


@dataclass(frozen=True)
class Span:
    """Rows of a segment that lie together: those of one group."""

    start: int  # place of the first row, counted from 0
    rows: int  # number of rows

    def __post_init__(self) -> None:
        require(self.start >= 0 and self.rows >= 0, "a span of rows begins at a row and does not end before it")


@dataclass(frozen=True)
class RowPortion:
    """The rows of a segment that one visit takes; those of the next number follow, and after the last row the first."""

    number: int  # counted from 0, over all passes over the rows
    of: int  # into how many portions the rows are divided

    def __post_init__(self) -> None:
        require(self.number >= 0 and 0 < self.of <= LARGEST, f"there is no portion {self.number} of {self.of}")


@dataclass(frozen=True)
class EvaluationRows:
    """Rows on which a model is evaluated between two of its visits."""

    handle: str  # names the rows
    span: Optional[Span] = None  # those of them on which it is evaluated; None: all
    fold: Optional[int] = None  # of these the fold on whose rows it is evaluated; None: all


@dataclass(frozen=True)
class RowsBeside:
    """Rows of another segment on which a model trains, too."""

    handle: str  # names the rows
    span: Optional[Span] = None  # those of them on which it trains; None: all


@dataclass(frozen=True)
class MemberVisit:
    """One visit of a member."""

    shuffle_seed: int  # seed of the order of the rows
    evaluated: bool = False  # whether the member is evaluated after it
    portion: Optional[RowPortion] = None  # the rows that it takes of those of the member; None: all


@dataclass(frozen=True)
class Member:
    """A model that is to be trained."""

    configuration: int  # place in the order's configurations, counted from 0
    seed: int  # seed of the initial state
    visits: list[MemberVisit]  # its visits, one after the other; all but the first begin an epoch
    state: StateRef  # the state before the first visit
    state_bytes: int = 0  # expected size of the state; the segment refuses what does not fit into memory or on disk
    metric_states: Optional[MetricStates] = None  # of the epoch's earlier visits; None: the first visit begins an epoch
    fold: Optional[int] = None  # the fold whose rows it does not train on; None: it trains on all folds
    span: Optional[Span] = None  # the rows of which it trains on those of its folds; None: all rows
    evaluations: list[EvaluationRows] = field(default_factory=list)  # what it is evaluated on after some of its visits
    out: Optional[str] = by_segment()  # path of the file for the outgoing state

    def __post_init__(self) -> None:
        require(bool(self.visits), "a member needs a visit")


@dataclass(frozen=True)
class Group:
    """Models that are trained in one pass over the rows: one, or several that are fused."""

    members: list[Member]  # one model, or several with equal fusion keys and the same fold and span
    beside: list[RowsBeside] = field(default_factory=list)  # rows of other segments, for a model that does not hop

    def __post_init__(self) -> None:
        require(bool(self.members), "a group needs a member")
        rows = {(member.fold, member.span) for member in self.members}
        require(len(rows) == 1, "the members of a group need the same rows")
        portions = {visit.portion and visit.portion.of for member in self.members for visit in member.visits}
        require(len(portions) == 1, "the visits of a group need as many portions of the rows")
        single = all(len(member.visits) == 1 and not member.visits[0].evaluated for member in self.members)
        require(len(self.members) == 1 or single, "fused members have one visit each, and are evaluated later")

    @property
    def fold(self) -> Optional[int]:
        return self.members[0].fold

    @property
    def span(self) -> Optional[Span]:
        return self.members[0].span

    @property
    def portions(self) -> int:
        """Into how many portions the rows are divided."""
        portion = self.members[0].visits[0].portion
        return 1 if portion is None else portion.of


@dataclass(frozen=True)
class InputElements:
    """Elements that each row of an input has: some along its last dimension, or all."""

    input: str  # name of the packed column
    start: int = 0  # place of the first element, counted from 0
    width: Optional[int] = None  # number of elements; None: all elements of a row

    def __post_init__(self) -> None:
        require(self.start >= 0 and (self.width is None or self.width > 0), "a row has no such elements")
        require(self.start == 0 or self.width is not None, "all elements of a row begin with the first")


@dataclass(frozen=True)
class Exchange:
    """Elements whose values are exchanged among the rows: each row gets all of these from one other row."""

    elements: list[InputElements]  # the elements
    seed: int = 0  # seed of the orders of the rows
    repeats: int = 1  # number of orders, each for an evaluation of its own

    def __post_init__(self) -> None:
        require(bool(self.elements), "there are no elements to exchange")
        require(0 < self.repeats <= MOST_REPEATS, f"values cannot be exchanged {self.repeats} times")


@dataclass(frozen=True)
class ModelState:
    """A model that is to be evaluated, in one of its states."""

    configuration: int  # place in the order's configurations, counted from 0
    state: StateRef  # the model's state
    state_bytes: int = 0  # expected size of the state
    fold: Optional[int] = None  # the fold on whose rows it is evaluated; None: on those of all folds
    span: Optional[Span] = None  # the rows of which it is evaluated on those of its fold; None: all rows
    sampled: Optional[int] = None  # how many of these, at equal distances; None: all
    exchanges: list[Exchange] = field(default_factory=list)  # what it is evaluated with after the rows as they are

    def __post_init__(self) -> None:
        require(self.sampled is None or self.sampled > 0, "a sample has a row at least")
        whole = self.fold is None and self.span is None and self.sampled is None
        require(whole or not self.exchanges, "values are exchanged among all rows, not within a fold or a span")


@dataclass(frozen=True)
class ModelReplica:
    """A replica of a model, which has trained on some of the rows; its state goes into the average."""

    state: StateRef  # the state of the replica
    rows: int  # rows that it has trained on: its weight in the average
    metric_states: MetricStates  # what its metrics have counted

    def __post_init__(self) -> None:
        require(self.rows > 0, f"a replica cannot weigh {self.rows} rows in an average")


@dataclass(frozen=True)
class PredictionInput:
    """A column of rows to predict, in the form in which a query gives it (nn/rows/arrays.py)."""

    name: str  # name of the packed column
    dtype: str  # float32 or int32 for arrays, uint8 for pixels
    shape: list[int]  # shape of a row
    scale: float = 1.0  # values are divided by it, as those of a packed column
    factor: float = 1.0  # values are multiplied by it first, as packing did


@dataclass(frozen=True)
class Explanation:
    """Say of each prediction what each column adds to it, compared with the predictions of background rows."""

    columns: list[list[InputElements]]  # what each column became
    classes: list[Optional[int]]  # of each output, the place of the explained class; None: the predicted one, a number
    inputs: list[PredictionInput]  # the columns of the background rows
    rows: int  # number of background rows
    values: list[str]  # for each input, the bytes that its file of background rows would have, in base64
    most: Optional[int] = None  # so many of them are taken, whose predictions are spread as those of all; None: all

    def __post_init__(self) -> None:
        require(bool(self.columns), "there are no columns to explain predictions by")
        require(0 < self.rows <= MOST_BACKGROUND, f"there cannot be {self.rows} background rows")
        require(self.most is None or self.most > 0, "there have to be background rows")
        require(len(self.values) == len(self.inputs), "the background rows do not have a value of each input")


@dataclass(frozen=True)
class Calibrated:
    """How the probabilities of an output are corrected, and by what its classes are ranked."""

    temperature: float  # probabilities are raised to the power 1 / temperature, and divided by their sum
    weights: Optional[list[float]] = None  # of the classes: ranked by probability times weight; None: by probability


@dataclass(frozen=True)
class Quantiles:
    """An output has the quantiles of a number.  They are answered in rising order, and one of them stands for all."""

    count: int  # how many
    middle: int  # the place of the one that stands for all
    shifts: Optional[list[float]] = None  # added to each, in units of highest - lowest; None: nothing


@dataclass(frozen=True)
class BestClasses:
    """Predict the best classes of each row and their probabilities, not all values."""

    labels: list[Optional[int]]  # number of classes of each output; None: its values are predicted as they are
    ranks: Optional[int] = None  # how many of the best classes; None: all
    calibrated: Optional[list[Optional[Calibrated]]] = None  # for each output; None: as the model predicts them
    quantiles: Optional[list[Optional[Quantiles]]] = None  # for each output; None: it has none
