# ruff: noqa: UP007, UP045  (get_type_hints evaluates the annotations, on Python 3.9 too)
"""The options of a run as they are on record: those that a user names, and what the functions that made the run add.

The fields of ``RunOptions`` are the document on record: the codec writes and reads it.  Users write the rows about
their own runs, so a resumed run reads its options here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Optional

from .documents import Fields
from .engines import AUTO, AUTO_ENGINES, DEFAULT
from .errors import BadData, CerebroError
from .following import Step
from .names import StoredName
from .options import GRADIENTS, OPTIONS, START_OF_ALL_ROWS, default
from .protocol import TrainerOptions, codec
from .protocol.codec import Within
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


@dataclass(frozen=True)
class RecordedSpace:
    """What a search proposes from.  The space itself is read with the architectures of the run."""

    space: Mapping[str, Any]
    configurations: Optional[Annotated[int, Within(1, MOST_POINTS)]]  # at most; None: until the budget is used
    at_once: Annotated[int, Within(1, 2**31)]  # models
    past: Annotated[tuple[Trial, ...], Within(0, MOST_PAST)] = ()  # of earlier runs
    weights: Mapping[str, AddedWeights] = field(default_factory=dict)  # by the labels of the architectures

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
    among: tuple[str, ...] = ()  # the engines that trials choose among, if the engine is ``auto``
    seed: int = 0
    trainer: TrainerOptions = codec.beside(TrainerOptions(threads=1))
    execution: Optional[str] = default("execution")  # as the user wished
    in_session: bool = False  # whether the run began in its caller's own session
    nan: str = default("nan")
    gpus: tuple[Optional[Annotated[int, Within(0, MOST_GPUS - 1)]], ...] = ()  # of each segment; empty: none
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
    evaluate_after: tuple[Annotated[int, Within(1, MOST_HOPS)], ...] = ()
    parallel: str = default("parallel")  # how a model trains on the rows of several segments
    averaging: bool = False  # in every epoch a replica of a model trains on each segment; their states are averaged
    follows: tuple[Step, ...] = ()  # what is done with the model tables
    named: Mapping[str, StoredName] = field(default_factory=dict)  # the tables with rows that its call named
    others: Mapping[str, Any] = field(default_factory=dict)  # other keys on record, of the packages that wrote them

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
    def groups_wait(self) -> bool:
        """Whether models of groups begin when the model on all rows of their configuration has ended."""
        return self.groups_start == START_OF_ALL_ROWS

    def to_json(self) -> dict[str, Any]:
        """As they go on record.  What has no value is left out."""
        empty = {name for name, value in vars(self).items() if value in ((), {})}
        document = {name: value for name, value in codec.encode(self).items() if name not in {*empty, "others"}}
        if self.objective is None:
            del document["keep"]  # which of its states a model keeps is a question only if there is an objective
        if self.named:
            document["named"] = {argument: one.for_people for argument, one in self.named.items()}
        return {**document, **self.others}


def of_given(given: Mapping[str, Any]) -> RunOptions:
    """The options of a call, which are checked.  All others have their defaults."""
    return codec.decode(RunOptions, given, "options")


def read(document: Any, where: str) -> RunOptions:
    """The options; BadData, beginning with ``where``, if one of them cannot be.

    Those of later versions are among ``others``.
    """
    fields = Fields(document, where)
    present = {name: value for name, value in fields.document.items() if value is not None}
    known = set(codec.names_of(RunOptions)) - {"others"}
    given = {name: value for name, value in present.items() if name in known}
    given["others"] = {name: value for name, value in present.items() if name not in known}
    for name, option in OPTIONS.items():
        if name in given and name not in ("method", "budget"):
            try:
                option.check(given[name])
            except CerebroError as error:
                raise fields.wrong(f"cannot be used: {error.message}", name) from None
    if given.get("engine") == AUTO or "among" in given:
        among = fields.texts("among", len(AUTO_ENGINES))
        if not set(among) <= set(AUTO_ENGINES) or len(among) < 2:
            raise fields.wrong(f"must be some of {', '.join(AUTO_ENGINES)}", "among")
    for needs, needed in (("objective", "direction"), ("space", "method")):
        if needs in given and needed not in given:
            raise fields.wrong("is missing", needed)
    if "method" in given:
        given["method"] = _method(fields, "space" in given)
    if "named" in given:
        named = fields.object("named").document
        given["named"] = {argument: named[argument] for argument in TABLES if argument in named}
    if "space" in given:
        space, parts = fields.object("space").document, codec.names_of(RecordedSpace)
        given["space"] = {name: value for name, value in space.items() if name in parts}
    found = codec.decode(RunOptions, given, where, BadData)
    if len({step.task for step in found.follows}) < len(found.follows):
        raise fields.wrong("must not have a task twice", "follows")
    return found


def _method(fields: Fields, proposes: bool) -> dict[str, Any]:
    """A method with its parameters, as ``methods.checked`` gives it, or the brackets that AutoML has planned."""
    given = fields.value("method")
    if isinstance(given, dict) and given.get("name") == named_methods.PLANNED:
        planned = fields.object("method")
        planned.choice("name", (named_methods.PLANNED,))
        brackets = []
        for place, bracket in enumerate(planned.list("brackets", 1, MOST_POINTS)):
            inner = Fields({"bracket": bracket}, f"{planned.where}: brackets[{place}]")
            size, ends = inner.list("bracket", 2, 2)
            rounds = Fields({"models": size, "ends": ends}, inner.where)
            brackets.append((rounds.whole("models", 1, MOST_POINTS), rounds.wholes("ends", 1, 1000, 1, MOST_HOPS)))
        made = {
            "name": named_methods.PLANNED,
            "reduction": planned.number("reduction", 1.1, 1000),
            "brackets": brackets,
        }
        planned.done()
        return made
    try:
        return named_methods.checked(given, proposes=proposes)
    except CerebroError as error:
        raise fields.wrong(f"cannot be used: {error.message}", "method") from None
