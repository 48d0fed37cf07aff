# ruff: noqa: UP007, UP045  (get_type_hints evaluates the annotations, on Python 3.9 too)
"""The options of a run as they are on record: those that a user names, and what the functions that made the run add.

The fields of ``RunOptions`` are the document on record: the codec writes and reads it.  Users write the rows about
their own runs, so a resumed run reads its options here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, Optional

from . import codec
from .codec import OneOf, Within, different
from .engines import AUTO, AUTO_ENGINES, DEFAULT
from .errors import BadData, CerebroError
from .following import Step
from .names import StoredName
from .options import COPIES, GRADIENTS, OPTIONS, START_OF_ALL_ROWS, default
from .planning.shape_plan import ShapePlan
from .protocol import TrainerOptions
from .records import dataclass, field
from .scheduling.plan import MOST_HOPS
from .search import named_methods
from .search.budget import Budget
from .search.decision import AddedWeights
from .search.methods.tpe import Trial
from .search.objective import Objective
from .search.objective import default as objective_of
from .search.spaces import read_space
from .search.spaces.space import ARCHITECTURE, MOST_POINTS

TABLES = ("source_table", "validation_table")
MOST_GPUS = 1 << 20
MOST_PAST = 100_000
Hop = Annotated[int, Within(1, MOST_HOPS)]


@dataclass(frozen=True)
class RecordedSpace:
    """What a search proposes from.  The space itself is read with the architectures of the run."""

    space: Mapping[str, Any]
    configurations: Optional[Annotated[int, Within(1, MOST_POINTS)]]  # at most; None: until the budget is used
    at_once: Annotated[int, Within(1, 2**31)]  # models
    past: Annotated[tuple[Trial, ...], Within(0, MOST_PAST)] = ()  # of earlier runs
    weights: Mapping[str, AddedWeights] = field(default_factory=dict)  # by the labels of the architectures
    lenient = True

    def weights_of(self, chosen: Mapping[str, Any] | None) -> AddedWeights | None:
        """What the model of a point starts from; None: random weights."""
        if not chosen or not self.weights:
            return None
        label = chosen.get(ARCHITECTURE) or next(iter(read_space.labels(self.space) or ()), None)
        return self.weights.get(label) if isinstance(label, str) else None


@dataclass(frozen=True)
class RunOptions:
    """Everything that the results of a run depend on besides its rows and its configurations, and how it works.

    A field with the name of an option of users has the option's value.
    """

    engine: str = DEFAULT
    # The engines that trials choose among, if the engine is ``auto``.
    among: Annotated[tuple[Annotated[str, OneOf(*AUTO_ENGINES)], ...], different] = codec.omitted(())
    seed: int = 0
    trainer: TrainerOptions = codec.beside(TrainerOptions(threads=1))
    execution: Optional[str] = default("execution")  # as the user wished
    in_session: bool = False  # whether the run began in its caller's own session
    nan: str = default("nan")
    # Of each segment; empty: none.
    gpus: tuple[Optional[Annotated[int, Within(0, MOST_GPUS - 1)]], ...] = codec.omitted(())
    fuse: Optional[bool] = default("fuse")
    read_ahead: Optional[bool] = default("read_ahead")
    synchronous_commit: Optional[bool] = default("synchronous_commit")
    stop_when: Optional[str] = default("stop_when")
    precision: Optional[str] = default("precision")
    objective: Optional[str] = default("objective")
    direction: Optional[str] = default("direction")  # of the objective
    keep: str = default("keep")
    method: Optional[Mapping[str, Any]] = default("method")  # with its parameters
    space: Optional[RecordedSpace] = None  # of a search that proposes
    budget: Optional[Budget] = default("budget")
    replay: Optional[int] = default("replay")  # the run that is repeated
    least_group_rows: int = default("least_group_rows")  # for training, of a group that has models of its own
    groups_start: str = default("groups_start")  # the weights that models of groups start with
    new_groups: str = default("new_groups")  # what becomes of rows to predict whose group no model knows
    warm_start: bool = False
    replace: bool = False  # whether a model that has the name of the model table is replaced
    evaluate_training: bool = False  # models are evaluated on the training table, too
    # These epochs, besides those that the run evaluates regularly.
    evaluate_after: tuple[Hop, ...] = codec.omitted(())
    parallel: str = default("parallel")  # how a model trains on the rows of several segments
    visit_rows: Optional[int] = default("visit_rows")  # of its segment that a visit takes; None: all
    averaging: bool = False  # in every epoch a replica of a model trains on each segment; their states are averaged
    follows: tuple[Step, ...] = codec.omitted(())  # what is done with the model tables
    named: Mapping[str, StoredName] = field(default_factory=dict)  # the tables with rows that its call named
    related: Mapping[str, StoredName] = field(
        default_factory=dict
    )  # the related tables that its call read, by their paths
    plan: Optional[ShapePlan] = None  # the shape in which it trains, and those that it was compared with
    others: Mapping[str, Any] = codec.unknown()  # other keys on record, of the packages that wrote them
    lenient = True

    def optimised(self, validated: bool) -> Objective:
        """The objective of the run.  ``validated``: it has a validation table."""
        if self.objective is None or self.direction is None:
            return objective_of(validated)
        return Objective(self.objective, self.direction)

    @property
    def adds_gradients(self) -> bool:
        """Whether all segments with rows of a model train it at the same time."""
        return self.parallel == GRADIENTS

    @property
    def copies_rows(self) -> bool:
        """Whether each segment has a copy of all rows, and each model stays on one segment."""
        return self.parallel == COPIES

    @property
    def groups_wait(self) -> bool:
        """Whether models of groups begin when the model on all rows of their configuration has ended."""
        return self.groups_start == START_OF_ALL_ROWS

    def to_json(self) -> dict[str, Any]:
        """As they go on record.  What has no value is left out."""
        document = codec.encode_fields(self)
        if self.objective is None:
            del document["keep"]  # which of its states a model keeps is a question only if there is an objective
        for name in ("named", "related"):
            if not document[name]:
                del document[name]
        return document


def of_given(given: Mapping[str, Any]) -> RunOptions:
    """The options of a call, which are checked.  All others have their defaults."""
    return codec.decode(RunOptions, given, "options")


def read(document: Any, where: str) -> RunOptions:
    """The options; BadData, beginning with ``where``, if one of them cannot be.

    Those of later versions are among ``others``.
    """
    given = dict(codec.read(dict[str, Any], document, where))
    for name, option in OPTIONS.items():
        if given.get(name) is not None and name not in ("method", "budget"):
            with _naming(f"{where}: {name}"):
                option.check(given[name])
    if given.get("method") is not None:
        with _naming(f"{where}: method"):
            given["method"] = _method(given["method"], f"{where}: method", proposes=given.get("space") is not None)
    if isinstance(given.get("named"), dict):
        given["named"] = {argument: table for argument, table in given["named"].items() if argument in TABLES}
    found = codec.decode(RunOptions, given, where, BadData)
    if (found.engine == AUTO or found.among) and len(found.among) < 2:
        raise BadData(f"{where}: among {'has to have two engines at least' if found.among else 'is missing'}")
    for needs, needed in (("objective", "direction"), ("space", "method")):
        if getattr(found, needs) is not None and getattr(found, needed) is None:
            raise BadData(f"{where}: {needed} is missing")
    if len({step.task for step in found.follows}) < len(found.follows):
        raise BadData(f"{where}: follows has the same task twice")
    return found


@contextmanager
def _naming(what: str) -> Iterator[None]:
    """An error about a value becomes one that says where the value is."""
    try:
        yield
    except BadData:
        raise
    except CerebroError as error:
        raise BadData(f"{what} cannot be used: {error.message}") from None


@dataclass(frozen=True)
class Planned:
    """The brackets that AutoML has planned: the models of each, and the epochs after which some of them stop."""

    name: Annotated[str, OneOf(named_methods.PLANNED)]
    reduction: Annotated[float, Within(1.1, 1000)]
    brackets: Annotated[
        list[tuple[Annotated[int, Within(1, MOST_POINTS)], Annotated[tuple[Hop, ...], Within(1, 1000)]]],
        Within(1, MOST_POINTS),
    ]


def _method(given: Any, where: str, *, proposes: bool) -> dict[str, Any]:
    """A method with its parameters, as ``methods.checked`` gives it, or the brackets that AutoML has planned."""
    if isinstance(given, dict) and given.get("name") == named_methods.PLANNED:
        return dict(vars(codec.decode(Planned, given, where, BadData)))
    return named_methods.checked(given, proposes=proposes)
