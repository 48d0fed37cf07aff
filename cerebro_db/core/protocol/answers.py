# ruff: noqa: UP007, UP045  (get_type_hints evaluates the annotations, on Python 3.9 too)
"""The answers to orders, and what else comes back: failures and progress."""

from __future__ import annotations

import re
from typing import Any, Optional

from cerebro_db.core.errors import CerebroError, InvalidArgument, from_dict

from .. import codec
from ..models.metrics import LOSS
from ..records import dataclass, field

Json = dict[str, Any]  # a JSON document: a configuration, a layout (docs/architecture.md describes both)


@dataclass(frozen=True)
class Done:
    """The order was obeyed; there is nothing to report."""


@dataclass(frozen=True)
class Failure:
    """An error of the other side; ``error`` makes a CerebroError of it."""

    kind: str  # name of a class in core/errors.py
    message: str  # what was wrong
    detail: Optional[str] = None  # more about the cause
    hint: Optional[str] = None  # what to do

    @classmethod
    def of(cls, error: CerebroError) -> Failure:
        return cls(type(error).__name__, error.message, error.detail, error.hint)

    def error(self) -> CerebroError:
        return from_dict(codec.encode(self))


@dataclass(frozen=True)
class Progress:
    """How far the trainer is with an order."""

    rows: int  # rows trained on so far, over all members
    of: int  # rows that the order trains on, over all members
    loss: Optional[float] = None  # running loss; None while models are fused


@dataclass(frozen=True)
class WorkerOpened:
    """The processes of a segment; the answer of ``cerebro_internal._worker_open``."""

    trainer_pid: int  # process id of the trainer
    worker_pid: int  # process id of the worker: on Greenplum a segment's process, not the session's
    place: str = ""  # equal for workers that can take over each other's files


@dataclass(frozen=True)
class EngineStarted:
    """The trainer is ready."""

    versions: dict[str, str]  # versions of python, numpy, keras, engine (its name) and engine_version
    devices: list[str]  # names of the devices that the framework sees
    pid: int  # process id of the trainer
    confinement: list[str]  # what the kernel keeps the trainer from, in words
    no_gpu: Optional[str] = None  # why the framework has no GPU, if it should use one


@dataclass(frozen=True)
class RowsLoaded:
    """The trainer has mapped the rows."""

    rows: int  # number of rows
    bytes: int  # size of all variables


@dataclass(frozen=True)
class Suggested:
    """Points of a search space that are worth trying."""

    points: list[Json]  # by name of the dimension, its value
    version: str  # of Optuna


@dataclass(frozen=True)
class Described:
    """What a configuration needs."""

    parameters: int  # number of the model's parameters
    state_bytes: int  # size of the whole state
    inputs: list[list[Optional[int]]]  # shapes of a row
    outputs: list[list[Optional[int]]]  # shapes of a row
    fusion_keys: list[Optional[str]]  # of the configuration and the others: equal keys can be fused, None cannot
    frozen_layers: int  # at the beginning of the model, that can be computed once for each row; 0: none, or not wanted
    feature_bytes: int  # of a row: what these layers give
    feature_seconds: float  # of a row: what these layers take; 0: not measured
    features: str  # equal if what these layers give is, with the same weights; empty: there are none
    frozen_bytes: int  # of the state, that training never changes: the weights of frozen layers that lie together
    shards: int = 1  # into which a trainer cuts the model to train it; 1: it trains it as a whole
    memory_mb: int = 0  # that a trainer needs with so many shards, estimated and rounded up
    uncut_memory_mb: int = 0  # that a trainer would need for the whole model
    slower: float = 0.0  # at least so many times as long a batch takes as if the model were not cut; 0: not measured


@dataclass(frozen=True)
class EngineTried(Described):
    """What a configuration needs, and how fast an engine trains it on a machine with nothing else to do."""

    program: str = ""  # a hash; configurations with the same hash share a compiled program
    build: float = 0.0  # seconds to build the model
    compile: float = 0.0  # seconds to compile it for one batch size
    batch: float = 0.0  # seconds to train a batch


@dataclass(frozen=True)
class FusionRehearsed:
    """Seconds per batch and configuration."""

    alone: float  # one configuration alone
    fused: float  # all configurations fused


@dataclass(frozen=True)
class FrozenPart:
    """The bytes of a state that training never changes.  They lie in a file and in a table of their own."""

    start: int  # place of the first byte in the state
    bytes: int  # number of bytes
    sha256: str  # checksum of these bytes

    def __post_init__(self) -> None:
        if self.start < 0 or self.bytes <= 0 or not re.fullmatch("[0-9a-f]{64}", self.sha256):
            raise InvalidArgument(f"there is no frozen part of {self.bytes} bytes at {self.start}")

    @property
    def end(self) -> int:
        return self.start + self.bytes


@dataclass(frozen=True)
class OutgoingState:
    """A state that a visit has left in a file, for ``cerebro_internal._state_out(visit, index)``."""

    index: int  # place of the member in the order, counted from 0 over all groups
    bytes: int  # size of the state, with its frozen part
    sha256: str  # checksum of the state, with its frozen part
    weights_offset: int  # place of the flat weights in the state
    weights_bytes: int  # size of the flat weights
    token: Optional[str] = None  # names the state while it is resident
    frozen: Optional[FrozenPart] = None  # the part that lies in a file of its own; None: none


@dataclass(frozen=True)
class MetricStates:
    """What the metrics of a model have counted over some rows; the states of several parts add up.

    The value of a metric follows from its state: a recall is no mean of recalls.
    """

    means: dict[str, list[float]]  # total and count of each metric that is a mean over rows, by name; the loss, too
    others: Optional[str] = None  # the arrays of all other metrics (nn/metric_states.py); None: there are none


@dataclass(frozen=True)
class EvaluatedModel:
    """The loss and the metrics of a model over the rows of a handle, or the error for which it was not evaluated."""

    rows: int = 0  # number of rows, also of those that are not in the sample
    loss: float = 0.0  # mean loss of the rows
    metrics: Json = field(default_factory=dict)  # of these rows; by name a number, or a list of numbers (one per class)
    metric_states: MetricStates = MetricStates({})  # of these rows; with those of other parts they give those of all
    seconds: dict[str, float] = field(default_factory=dict)  # seconds by stage: build, load, features, evaluate
    error: Optional[Failure] = None  # why the model was not evaluated
    exchanged: list[MetricStates] = field(default_factory=list)  # of each exchange, over its repeats

    def weight(self, sampled: Optional[int]) -> float:
        """What the loss weighs beside those of other parts: the number of rows, or of what it is a mean of.

        ``sampled``: how many of the rows were evaluated; None: all.
        """
        counted = self.metric_states.means.get(LOSS, (0.0, 0.0))[1]
        return counted * self.rows / (sampled or self.rows) if counted else float(self.rows)


@dataclass(frozen=True)
class TrainedVisit:
    """The result of one visit."""

    rows: int  # rows trained on, over all epochs of the visit
    steps: int  # batches trained on
    loss: float  # mean loss over the visit
    metrics: Json  # over the epoch's visits so far; by name a number, or a list of numbers (one per class)
    metric_states: MetricStates  # over the epoch's visits so far; for the epoch's next visit
    finite: bool  # whether the loss is finite
    seconds: float = 0.0  # seconds that training took
    evaluations: list[EvaluatedModel] = field(default_factory=list)  # after the visit, of the member's evaluations


@dataclass(frozen=True)
class TrainedMember:
    """The result of one model.

    Its visits end before the first one whose loss is not finite, unless that is the first of all.
    """

    visits: list[TrainedVisit]  # the visits that were made, in their order
    state: OutgoingState  # the state after the last of them

    def __post_init__(self) -> None:
        if not self.visits:
            raise InvalidArgument("a member has made no visit")


@dataclass(frozen=True)
class FeaturesUsed:
    """What frozen layers cost in an order, and what was saved because their features were kept."""

    bytes: int  # of features that the trainer keeps now
    computing: float  # seconds
    saved: float  # seconds of computing them again, less those of reading them


@dataclass(frozen=True)
class TrainedGroup:
    """The result of a group: its members, or the error for which none of them was trained."""

    members: list[TrainedMember] = field(default_factory=list)  # the results; empty if there is an error
    seconds: dict[str, float] = field(default_factory=dict)  # seconds by stage: build, load, features, train, save
    error: Optional[Failure] = None  # why none of the members was trained


@dataclass(frozen=True)
class Trained:
    """The result of each group; a group that failed leaves the others as they are."""

    groups: list[TrainedGroup]  # in the order of the groups
    visit: int = 0  # the segment's number of this visit, for _state_out
    worker_pid: int = 0  # process id of the worker
    trainer_pid: int = 0  # process id of the trainer
    resident: list[str] = field(default_factory=list)  # tokens of all states that the trainer now has in memory
    left: list[Optional[str]] = field(default_factory=list)  # by index: where the segment keeps the state's file
    features: Optional[FeaturesUsed] = None  # None: the trainer keeps none


@dataclass(frozen=True)
class JointStep:
    """What a segment adds to the next minibatch of a joint visit; after the last one, what its metrics have counted."""

    steps: int  # number of minibatches of the visit
    step: int  # number of minibatches that are over
    rows: int = 0  # rows of the next minibatch that lie on this segment
    gradient: Optional[str] = None  # its share of the minibatch's gradient, in base64; None: it has no rows there
    metric_states: Optional[MetricStates] = None  # over the visit, when all minibatches are over
    statistics: Optional[str] = None  # what layers have written then, such as moving averages, in base64; None: nothing


@dataclass(frozen=True)
class Evaluated:
    """The result of each model; a model that failed leaves the others as they are."""

    models: list[EvaluatedModel]  # in the order of the models
    worker_pid: int = 0  # process id of the worker
    trainer_pid: int = 0  # process id of the trainer
    resident: list[str] = field(default_factory=list)  # tokens of all states that the trainer now has in memory
    features: Optional[FeaturesUsed] = None  # None: the trainer keeps none


@dataclass(frozen=True)
class MetricsMerged:
    """The metrics of a model over several parts."""

    metrics: Json  # by name a number, or a list of numbers (one per class)


@dataclass(frozen=True)
class PredictedOutput:
    """What lies in the file of an output: values of a shape per row, best classes, or quantiles."""

    shape: Optional[list[int]] = None  # shape of a row; None: the file has classes
    ranks: Optional[int] = None  # how many of the best classes the file has
    quantiles: int = 0  # how many the file has: first the lowest one of each row
    middle: int = 0  # the place of the one that stands for all


@dataclass(frozen=True)
class Predicted:
    """What is in the files of a prediction."""

    rows: int  # number of rows
    outputs: list[PredictedOutput]  # one entry per output of the model
    holds: bool = False  # whether the trainer keeps the weights, and predicts again without their file


@dataclass(frozen=True)
class PredictedMore:
    """The answers for a few more rows."""

    outputs: list[PredictedOutput]  # one entry per output of the model
    values: list[str]  # for each output, the bytes that its file would have, in base64


@dataclass(frozen=True)
class ServerFacts:
    """What a process of the server reports about itself and its machine."""

    host: str  # name of the host
    python: str  # version of the server's embedded Python
    psycopg2: str  # version of psycopg2
    version: str  # version of the extension's code
    code: str  # folder of the extension's code
    installed: Optional[Json] = None  # contents of install.json
    installed_error: Optional[str] = None  # why install.json cannot be read
    code_writers: Optional[str] = None  # who besides its owner may change the code: server, others; None: nobody
    disk: Optional[int] = None  # free bytes in the data folder
    shm: Optional[int] = None  # free bytes in /dev/shm
    memory: Optional[int] = None  # available bytes of memory


@dataclass(frozen=True)
class Inspected:
    """What ``cerebro.doctor()`` reports of a segment."""

    facts: ServerFacts  # of the segment's process
    trainer: EngineStarted  # what its trainer said at its start
    in_memory: bool  # whether rows are cached in memory
    seconds: float  # how long this order waited for the trainer
    threads: Optional[int] = None  # number of threads of the trainer
    resident: Optional[int] = None  # bytes of memory that the trainer has
    scratch: Optional[int] = None  # free bytes in the scratch folder
    nice: int = 0  # the nice value of the trainer; above 0, other processes get more of the processors
