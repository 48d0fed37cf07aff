# ruff: noqa: UP007, UP045  (get_type_hints evaluates the annotations, on Python 3.9 too)
"""The orders: one dataclass each, with its route and the type of its answer."""

from __future__ import annotations

import abc
import math
import typing
from enum import Enum
from typing import Any, ClassVar, Generic, Optional, TypeVar

from cerebro_db.core.errors import InvalidArgument

from .. import codec
from ..records import dataclass, field
from .answers import (
    Described,
    Done,
    EngineStarted,
    EngineTried,
    Evaluated,
    FusionRehearsed,
    Inspected,
    JointStep,
    Json,
    MetricsMerged,
    MetricStates,
    Predicted,
    PredictedMore,
    RowsLoaded,
    Suggested,
    Trained,
)
from .parts import (
    BestClasses,
    CustomFunction,
    Explanation,
    Group,
    Member,
    ModelReplica,
    ModelState,
    Origin,
    PredictionInput,
    StateRef,
    TrainerSettings,
    by_segment,
    require,
)

A = TypeVar("A")  # an answer
LONGEST_REST = 86400  # seconds
MOST_SUGGESTIONS = 10_000


class Route(Enum):
    """The senders and receivers of an order."""

    TO_SEGMENT = "driver → segment"
    TO_TRAINER = "segment → trainer"
    THROUGH = "driver → segment → trainer"


ORDERS: dict[str, type[Order[Any]]] = {}  # by name, in the order of this file


class Order(Generic[A]):
    """An order whose answer is an ``A``.  Its name in documents is derived from the name of its class."""

    name: ClassVar[str]
    route: ClassVar[Route]
    answer_type: ClassVar[type[Any]]

    def __init_subclass__(cls, route: Optional[Route] = None) -> None:
        if route is None:
            return  # a family of orders
        (answer,) = typing.get_args(cls.__orig_bases__[0])  # type: ignore[attr-defined]
        cls.name, cls.route, cls.answer_type = _snake(cls.__name__), route, answer
        ORDERS[cls.name] = cls

    def tag(self) -> dict[str, str]:
        return {"order": self.name}

    @classmethod
    def from_document(cls, document: Any) -> Any:
        """The order that a document describes; raises ``codec.Misfit`` if it is none of these orders."""
        if not isinstance(document, dict):
            raise codec.wrong("a JSON object", document)
        values = dict(document)
        name = values.pop("order", None)
        kind = ORDERS.get(name) if isinstance(name, str) else None
        if kind is None or not issubclass(kind, cls):
            raise codec.Misfit(f"is {codec.shown(name)}, and there is no such order here")
        return codec.decode(kind, values, kind.name)


class Computation(Order[A], abc.ABC):
    """An order for which a trainer computes.  The segment waits for the answer, unless ``Begin`` carries the order."""

    @property
    @abc.abstractmethod
    def engine(self) -> Optional[str]:
        """A field of each order: whose trainer computes.  None: that of the engine that the segment was opened with."""


def _snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")


def _require_places(configurations: list[Json], places: list[int]) -> None:
    for place in places:
        if not 0 <= place < len(configurations):
            raise InvalidArgument(f"the order has {len(configurations)} configurations, and none at place {place}")


def decode_answer(order: Order[A], document: Any) -> A:
    answer: A = codec.decode(order.answer_type, document, f"the answer to {order.name}")
    return answer


@dataclass(frozen=True)
class Collected:
    """The answer of the order that was begun; None while the trainer still works on it."""

    answer: Optional[Json] = None  # the answer as a JSON object; ``answer_to`` decodes it

    def answer_to(self, order: Order[A]) -> Optional[A]:
        return None if self.answer is None else decode_answer(order, self.answer)


@dataclass(frozen=True)
class StartEngine(Order[EngineStarted], route=Route.TO_TRAINER):
    """Import the framework; the first order to a trainer."""

    settings: TrainerSettings  # what to start
    compiled: Optional[str] = by_segment()  # folder in which compiled programs may be kept for other trainers


@dataclass(frozen=True)
class LoadRows(Order[RowsLoaded], route=Route.THROUGH):
    """Map the rows that ``cerebro_internal._data_in`` has received under a handle."""

    handle: str  # names the rows
    layout: Json  # inputs and outputs of the packed table
    rows: int  # number of rows
    sha256: Optional[str] = None  # checksum of the bytes in the order in which they were received
    files: Optional[dict[str, str]] = by_segment()  # paths by variable

    def __post_init__(self) -> None:
        require(self.rows >= 0, f"there cannot be {self.rows} rows")


@dataclass(frozen=True)
class DropRows(Order[Done], route=Route.THROUGH):
    """Forget the rows of a handle."""

    handle: str  # names the rows


@dataclass(frozen=True)
class Describe(Computation[Described], route=Route.THROUGH):
    """Build a configuration, and say what it needs and which others can be fused with it."""

    configuration: Json  # architecture, compile and fit parameters
    layout: Optional[Json] = None  # inputs and outputs of a packed table, which the model has to fit; None: any
    others: list[Json] = field(default_factory=list)  # configurations whose fusion keys are asked for, too
    engine: Optional[str] = None  # the engine that computes; None: the engine that the segment was opened with
    seed: int = 0  # the program is built with its initial state: a model with this seed then begins at once
    compiles: bool = True  # also compile what training needs, if other trainers can use it
    functions: Optional[list[CustomFunction]] = by_segment()  # the custom functions that the configurations name


@dataclass(frozen=True)
class TryEngine(Computation[EngineTried], route=Route.THROUGH):
    """Describe a configuration and measure how fast an engine builds, compiles and trains it."""

    configuration: Json  # architecture, compile and fit parameters
    handle: str  # names the rows
    others: list[Json] = field(default_factory=list)  # configurations whose fusion keys are asked for, too
    engine: Optional[str] = None  # the engine that computes; None: the engine that the segment was opened with
    functions: Optional[list[CustomFunction]] = by_segment()  # the custom functions that the configurations name


@dataclass(frozen=True)
class RehearseFusion(Computation[FusionRehearsed], route=Route.THROUGH):
    """Measure what a batch costs one configuration alone, and each of several that are fused."""

    configurations: list[Json]  # configurations with equal fusion keys
    handle: str  # names the rows
    engine: Optional[str] = None  # the engine that computes; None: the engine that the segment was opened with
    functions: Optional[list[CustomFunction]] = by_segment()  # the custom functions that the configurations name

    def __post_init__(self) -> None:
        require(bool(self.configurations), "a rehearsal needs a configuration")


@dataclass(frozen=True)
class Train(Computation[Trained], route=Route.THROUGH):
    """Train each group in one pass over the rows, one group after the other, and leave the states in files."""

    handle: str  # names the rows
    configurations: list[Json]  # architecture, compile and fit parameters: each once, however many members have it
    groups: list[Group]  # the groups, in the order in which they are trained
    engine: Optional[str] = None  # the engine that computes; None: the engine that the segment was opened with
    functions: Optional[list[CustomFunction]] = by_segment()  # the custom functions that the configurations name

    def __post_init__(self) -> None:
        _require_places(self.configurations, [member.configuration for member in self.members])

    @property
    def members(self) -> list[Member]:
        """Of all groups; the index of a member here is the index of its outgoing state."""
        return [member for group in self.groups for member in group.members]

    @property
    def handles(self) -> list[str]:
        """Names the rows that train, and those on which members are evaluated."""
        beside = (one.handle for group in self.groups for one in group.beside)
        evaluated = (one.handle for member in self.members for one in member.evaluations)
        return list(dict.fromkeys([self.handle, *beside, *evaluated]))


@dataclass(frozen=True)
class Average(Computation[Trained], route=Route.THROUGH):
    """Average the states of replicas of a model, weighted by their rows, and leave the result in a file.

    The answer has one member, which has trained on no rows.  Its loss and metrics are those of all replicas.
    """

    configuration: Json  # architecture, compile and fit parameters
    handle: str  # names rows like those that the replicas have trained on
    replicas: list[ModelReplica]  # the replicas, in the order in which their states are added up
    state_bytes: int = 0  # expected size of the state
    engine: Optional[str] = None  # the engine that computes; None: the engine that the segment was opened with
    functions: Optional[list[CustomFunction]] = by_segment()  # the custom functions that the configurations name
    out: Optional[str] = by_segment()  # path of the file for the averaged state

    def __post_init__(self) -> None:
        require(bool(self.replicas), "there are no replicas to average")
        full = all(replica.state.origin is Origin.FULL for replica in self.replicas)
        require(full, "only whole states can be averaged")


@dataclass(frozen=True)
class BeginJoint(Computation[JointStep], route=Route.THROUGH):
    """Begin a joint visit: the trainers of several segments train one model, each with the gradients of its own rows.

    A minibatch has rows of all segments, and its gradient is the sum of what the segments add to it.  Each trainer
    gets what the others have added, and makes the same step.  Any other order ends the visit.
    """

    configuration: Json  # architecture, compile and fit parameters
    handle: str  # names the segment's rows
    member: Member  # the model; its place in configurations means nothing here
    rows: list[int]  # of each segment of the visit, the number of rows that train the model
    place: int  # of this segment among them, counted from 0
    engine: Optional[str] = None  # the engine that computes; None: the engine that the segment was opened with
    functions: Optional[list[CustomFunction]] = by_segment()  # the custom functions that the configurations name

    def __post_init__(self) -> None:
        require(0 <= self.place < len(self.rows), f"of {len(self.rows)} segments, none is at place {self.place}")
        require(sum(self.rows) > 0 and min(self.rows) >= 0, "a joint visit needs rows")
        require(len(self.member.visits) == 1 and not self.member.evaluations, "a joint visit is one visit")


@dataclass(frozen=True)
class StepJoint(Computation[JointStep], route=Route.THROUGH):
    """Make a step with a minibatch's whole gradient, and begin with the next minibatch."""

    step: int  # number of the step, counted from 0
    gradients: list[Optional[str]]  # of each segment, what it has added; None: nothing, or it is this segment itself
    engine: Optional[str] = None  # the engine that computes; None: the engine that the segment was opened with


@dataclass(frozen=True)
class EndJoint(Computation[Trained], route=Route.THROUGH):
    """Leave the state of a joint visit in a file; one of its segments is asked for that."""

    metric_states: list[MetricStates]  # of all segments
    statistics: list[str] = field(default_factory=list)  # of all segments, what layers have written; their mean is kept
    engine: Optional[str] = None  # the engine that computes; None: the engine that the segment was opened with
    out: Optional[str] = by_segment()  # path of the file for the outgoing state


@dataclass(frozen=True)
class Evaluate(Computation[Evaluated], route=Route.THROUGH):
    """Compute the loss and the metrics of models over the rows, one model after the other."""

    handle: str  # names the rows
    configurations: list[Json]  # architecture, compile and fit parameters: each once, however many models have it
    models: list[ModelState]  # the models, in the order in which they are evaluated
    engine: Optional[str] = None  # the engine that computes; None: the engine that the segment was opened with
    functions: Optional[list[CustomFunction]] = by_segment()  # the custom functions that the configurations name

    def __post_init__(self) -> None:
        require(bool(self.models), "there is no model to evaluate")
        _require_places(self.configurations, [model.configuration for model in self.models])


@dataclass(frozen=True)
class MergeMetrics(Computation[MetricsMerged], route=Route.THROUGH):
    """Compute the metrics of a model over several parts that were evaluated on their own."""

    configuration: Json  # architecture, compile and fit parameters
    handle: str  # names the rows of one of the parts
    states: list[MetricStates]  # of each part
    engine: Optional[str] = None  # the engine that computes; None: the engine that the segment was opened with
    functions: Optional[list[CustomFunction]] = by_segment()  # the custom functions that the configurations name

    def __post_init__(self) -> None:
        require(bool(self.states), "there are no metric states to merge")


@dataclass(frozen=True)
class Predict(Order[Predicted], route=Route.TO_TRAINER):
    """Apply a model to rows, which are loaded, or lie in files in PostgreSQL's own form (nn/rows/arrays.py)."""

    configuration: Json  # architecture, compile and fit parameters
    state: StateRef  # the model's state
    out: str  # path; output n goes to the file OUT.n
    best: Optional[BestClasses] = None  # None: all values
    handle: Optional[str] = None  # names loaded rows; else inputs, rows and files are given
    inputs: Optional[list[PredictionInput]] = None  # the columns in the files
    rows: int = 0  # number of rows in the files
    files: Optional[dict[str, str]] = None  # paths by input
    functions: Optional[list[CustomFunction]] = by_segment()  # the custom functions that the configurations name
    rest: Optional[int] = None  # after the answer, rest for so many seconds, as after the order Rest
    folders: Optional[list[str]] = None  # the folders to empty if no order comes while it rests
    explanation: Optional[Explanation] = None  # as of BeginPrediction
    steps: int = 0  # as of BeginPrediction

    def __post_init__(self) -> None:
        require(self.rest is None or 0 < self.rest <= LONGEST_REST, f"a trainer cannot rest for {self.rest} seconds")
        given = self.inputs is not None and self.files is not None
        require(given != (self.handle is not None), "a prediction needs a handle, or inputs and files")


@dataclass(frozen=True)
class PredictMore(Order[PredictedMore], route=Route.TO_TRAINER):
    """Apply the model of the last prediction, whose weights the trainer holds, to a few more rows.

    Rows and answers are part of the messages: for few bytes, files take longer than the prediction.
    """

    rows: int  # number of rows
    values: list[str]  # for each input, the bytes that its file would have, in base64
    rest: Optional[int] = None  # as of Predict
    folders: Optional[list[str]] = None  # as of Predict

    def __post_init__(self) -> None:
        require(self.rest is None or 0 < self.rest <= LONGEST_REST, f"a trainer cannot rest for {self.rest} seconds")


@dataclass(frozen=True)
class MergeAdapters(Order[Done], route=Route.TO_TRAINER):
    """Add a model's adapters to the weights of its layers, and write these over the file of the state."""

    architecture: Json  # with adapters, none of which is a bottleneck
    shapes: list[list[int]]  # of a row of each input
    state: StateRef  # the weights of the model


@dataclass(frozen=True)
class Suggest(Order[Suggested], route=Route.THROUGH):
    """Suggest points of a search space with Optuna's TPE, as a function of the fields of this order."""

    dimensions: list[Json]  # as Dimension.described of core/search gives them, each after those that it depends on
    seed: int  # of the run
    number: int  # number of the first suggestion
    trials: list[Json]  # the points that were tried, as Trial.to_json of core/search gives them
    count: int = 1  # number of suggestions; 0: only find out whether Optuna is installed

    def __post_init__(self) -> None:
        require(0 <= self.count <= MOST_SUGGESTIONS, f"there cannot be {self.count} suggestions")


@dataclass(frozen=True)
class Rest(Order[Done], route=Route.THROUGH):
    """Wait for another call; a trainer that gets no order in time empties its folders and ends."""

    seconds: int  # how long to wait
    folders: Optional[list[str]] = by_segment()  # the folders to empty

    def __post_init__(self) -> None:
        require(0 < self.seconds <= LONGEST_REST, f"a trainer cannot rest for {self.seconds} seconds")


@dataclass(frozen=True)
class Wake(Order[Done], route=Route.TO_TRAINER):
    """Answer, to show that a resting trainer is still there."""


@dataclass(frozen=True)
class Begin(Order[Done], route=Route.TO_SEGMENT):
    """Give the trainer an order and return at once; ``collect_result`` asks for its answer."""

    computation: Computation[Any]  # the order for the trainer


@dataclass(frozen=True)
class CollectResult(Order[Collected], route=Route.TO_SEGMENT):
    """Wait for the answer of the order that was begun."""

    seconds: Optional[float] = None  # how long to wait; None: until there is an answer

    def __post_init__(self) -> None:
        valid = self.seconds is None or (math.isfinite(self.seconds) and self.seconds >= 0)
        require(valid, f"nobody can wait for {self.seconds} seconds")


@dataclass(frozen=True)
class DropStates(Order[Done], route=Route.TO_SEGMENT):
    """Delete received states that no order needs any more."""

    names: list[str]  # names as given to _state_in


@dataclass(frozen=True)
class KeepEngines(Order[Done], route=Route.TO_SEGMENT):
    """End the trainers of all other engines."""

    engines: list[str]  # the engines whose trainers stay


@dataclass(frozen=True)
class BeginPrediction(Order[Done], route=Route.TO_SEGMENT):
    """Have ``cerebro_internal._predict`` apply a model to the rows of the statements that follow."""

    configuration: Json  # architecture, compile and fit parameters
    inputs: list[PredictionInput]  # the columns of the rows to come
    state: StateRef  # the model's state
    best: Optional[BestClasses] = None  # None: all values
    explanation: Optional[Explanation] = None  # None: the answers are predictions
    steps: int = 0  # how many values the outputs have for a row, each of which is answered as a row is; 0: one


@dataclass(frozen=True)
class EndPrediction(Order[Done], route=Route.TO_SEGMENT):
    """End the prediction and delete its received state."""


@dataclass(frozen=True)
class Inspect(Order[Inspected], route=Route.TO_SEGMENT):
    """Report on the segment's process, machine and trainer, once the trainer is ready."""
