"""The options of a run as they are on record: those that a user names, and what the functions that made the run add.

Users write the rows about their own runs, so a resumed run reads its options here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import following
from .documents import Fields
from .engines import AUTO, AUTO_ENGINES, AUTO_SHARD, DEFAULT, ENGINES, FEATURES_MB, FLOAT32
from .errors import CerebroError
from .following import Step
from .metrics import MAX, MIN
from .names import StoredName
from .options import GRADIENTS, HOPPING, LAST, NEW_GROUPS, OPTIONS, RANDOM_START, START_OF_ALL_ROWS, STOP
from .protocol import HANG_AFTER
from .records import dataclass, field
from .scheduling.plan import MOST_HOPS
from .search import methods, read_space
from .search.budget import Budget
from .search.decision import AddedWeights
from .search.objective import Objective, default
from .search.space import ARCHITECTURE, MOST_POINTS
from .search.tpe import COMPLETE, PRUNED, RUNNING, Trial

NAMED, TABLES = "named", ("source_table", "validation_table")
MADLIB = "madlib"  # the option that MADlib's functions write into the runs that they begin
SINGLE, MULTIPLE, AUTOML = "madlib_keras_fit", "madlib_fit_multiple_model", "madlib_keras_automl"
MOST_GPUS = MOST_PROCESSORS = 1 << 20
MOST_PAST = 100_000
FLAGS = ("in_session", "evaluate_training", "averaging", "warm_start", "replace")


@dataclass(frozen=True)
class RecordedSpace:
    """What a search proposes from.  The space itself is read with the architectures of the run."""

    space: Mapping[str, Any]
    configurations: int | None  # at most; None: until the budget is used
    at_once: int  # models
    past: tuple[Trial, ...] = ()  # of earlier runs
    weights: Mapping[str, AddedWeights] = field(default_factory=dict)  # by the labels of the architectures

    def to_json(self) -> dict[str, Any]:
        return {
            **vars(self),
            "space": dict(self.space),
            "past": [trial.to_json() for trial in self.past],
            "weights": {label: dict(vars(one)) for label, one in self.weights.items()},
        }

    def weights_of(self, chosen: Mapping[str, Any] | None) -> AddedWeights | None:
        """What the model of a point starts from; None: random weights."""
        if not chosen or not self.weights:
            return None
        label = chosen.get(ARCHITECTURE) or next(iter(read_space.labels(self.space) or ()), None)
        return self.weights.get(label) if isinstance(label, str) else None


@dataclass(frozen=True)
class RunOptions:
    """Everything that the results of a run depend on besides its rows and its configurations, and how it works."""

    engine: str = DEFAULT
    among: tuple[str, ...] = ()  # the engines that trials choose among, if the engine is ``auto``
    deterministic: bool = False
    seed: int = 0
    threads: int = 1  # of each trainer
    execution: str | None = None  # as the user wished
    in_session: bool = False  # whether the run began in its caller's own session
    nan: str = STOP
    gpus: tuple[int | None, ...] = ()  # of each segment; empty: the run uses none
    hang_after: int = HANG_AFTER
    fuse: bool | None = None
    read_ahead: bool | None = None
    cache_mb: int | None = None
    reuse: str | None = None
    features_mb: int = FEATURES_MB
    features_type: str = FLOAT32
    shard: str | int = AUTO_SHARD  # whether models are cut, or into how many shards
    memory_mb: int | None = None  # that each trainer may use; None: as the role's limit says
    synchronous_commit: bool | None = None
    stop_when: str | None = None
    precision: str | None = None
    objective: str | None = None
    direction: str | None = None  # of the objective
    keep: str = LAST
    method: Mapping[str, Any] | None = None  # with its parameters
    space: RecordedSpace | None = None  # of a search that proposes
    budget: Budget | None = None
    replay: int | None = None  # the run that is repeated
    least_group_rows: int = 1  # for training, of a group that has models of its own
    groups_start: str = RANDOM_START  # the weights that models of groups start with
    new_groups: str = NEW_GROUPS[0]  # what becomes of rows to predict whose group no model knows
    warm_start: bool = False
    replace: bool = False  # whether a model that has the name of the model table is replaced
    evaluate_training: bool = False  # models are evaluated on the training table, too
    evaluate_after: tuple[int, ...] = ()  # these epochs, besides those that the run evaluates regularly
    parallel: str = HOPPING  # how a model trains on the rows of several segments
    averaging: bool = False  # in every epoch a replica of a model trains on each segment; their states are averaged
    follows: tuple[Step, ...] = ()  # what is done with the model tables
    madlib: Mapping[str, Any] | None = None  # of a run of MADlib's functions: what its model tables must have
    named: Mapping[str, StoredName] = field(default_factory=dict)  # the tables with rows that its call named

    def optimised(self, validated: bool) -> Objective:
        """The objective of the run.  ``validated``: it has a validation table."""
        if self.objective is None or self.direction is None:
            return default(validated)
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
        found = {name: value for name, value in vars(self).items() if value not in (None, (), {})}
        if self.objective is None:
            del found["keep"]  # which of its states a model keeps is a question only if there is an objective
        for name in ("space", "budget"):
            if name in found:
                found[name] = found[name].to_json()
        if self.follows:
            found["follows"] = [step.to_json() for step in self.follows]
        if self.named:
            found[NAMED] = {argument: one.for_people for argument, one in self.named.items()}
        return found


def read(document: Any, where: str) -> RunOptions:
    """The options; BadData, beginning with ``where``, if one of them cannot be.

    Those of later versions are left out.
    """
    fields = Fields(document, where)
    found: dict[str, Any] = {}
    for name, option in OPTIONS.items():
        value = fields.value(name, None)
        if value is None or name in ("method", "budget"):
            continue
        if name == "threads":  # by default as many as there are processors
            found[name] = fields.whole(name, 1, MOST_PROCESSORS)
            continue
        try:
            option.check(value)
        except CerebroError as error:
            raise fields.wrong(f"cannot be used: {error.message}", name) from None
        found[name] = value
    for name in FLAGS:
        if fields.value(name, None) is not None:
            found[name] = fields.flag(name)
    if found.get("engine") == AUTO or fields.has("among"):
        found["among"] = fields.texts("among", len(ENGINES))
        if not set(found["among"]) <= set(AUTO_ENGINES) or len(found["among"]) < 2:
            raise fields.wrong(f"must be some of {', '.join(AUTO_ENGINES)}", "among")
    if fields.value("gpus", None):
        found["gpus"] = tuple(_gpu(fields, one) for one in fields.list("gpus", 0, MOST_GPUS))
    if fields.has("evaluate_after"):
        found["evaluate_after"] = fields.wholes("evaluate_after", 0, MOST_HOPS, 1, MOST_HOPS)
    if "objective" in found:
        found["direction"] = fields.choice("direction", (MIN, MAX))
    if fields.value("budget", None) is not None:
        try:
            found["budget"] = Budget.from_json(fields.value("budget"))
        except ValueError as error:
            raise fields.wrong(str(error), "budget") from None
    if fields.value("space", None) is not None:
        found["space"] = _space(fields.object("space"))
    if fields.value("method", None) is not None:
        found["method"] = _method(fields, "space" in found)
    elif "space" in found:
        raise fields.wrong("is missing", "method")
    if fields.value("follows", None) is not None:
        found["follows"] = following.read(fields)
    if fields.value(MADLIB, None) is not None:
        found[MADLIB] = _madlib(fields.object(MADLIB))
    if fields.value(NAMED, None) is not None:
        given = fields.object(NAMED)
        found[NAMED] = {argument: given.stored_name(argument) for argument in TABLES if given.has(argument)}
    return RunOptions(**found)


def _gpu(fields: Fields, value: Any) -> int | None:
    if value is None or (type(value) is int and 0 <= value < MOST_GPUS):
        return value
    raise fields.wrong("must have the number of a GPU for each segment", "gpus")


def _method(fields: Fields, proposes: bool) -> dict[str, Any]:
    """A method with its parameters, as ``methods.checked`` gives it, or the brackets that AutoML has planned."""
    given = fields.value("method")
    if isinstance(given, dict) and given.get("name") == methods.PLANNED:
        planned = fields.object("method")
        planned.choice("name", (methods.PLANNED,))
        brackets = []
        for place, bracket in enumerate(planned.list("brackets", 1, MOST_POINTS)):
            inner = Fields({"bracket": bracket}, f"{planned.where}: brackets[{place}]")
            size, ends = inner.list("bracket", 2, 2)
            rounds = Fields({"models": size, "ends": ends}, inner.where)
            brackets.append((rounds.whole("models", 1, MOST_POINTS), rounds.wholes("ends", 1, 1000, 1, MOST_HOPS)))
        made = {"name": methods.PLANNED, "reduction": planned.number("reduction", 1.1, 1000), "brackets": brackets}
        planned.done()
        return made
    try:
        return methods.checked(given, proposes=proposes)
    except CerebroError as error:
        raise fields.wrong(f"cannot be used: {error.message}", "method") from None


def _space(fields: Fields) -> RecordedSpace:
    past = []
    for one in fields.objects("past", 0, MOST_PAST):
        point, state = one.object("point").document, one.choice("state", (COMPLETE, PRUNED, RUNNING))
        score = None if one.value("score") is None else one.number("score")
        past.append(Trial(point, state, score, one.whole("epochs", 0, MOST_HOPS)))
        one.done()
    most = None if fields.value("configurations") is None else fields.whole("configurations", 1, MOST_POINTS)
    weights = {}
    if fields.value("weights", None) is not None:
        given = fields.object("weights")
        for label in given.document:
            weights[label] = AddedWeights.of_fields(given.object(label))
    space, at_once = fields.object("space").document, fields.whole("at_once", 1, 2**31)
    return RecordedSpace(space, most, at_once, tuple(past), weights)


def _madlib(fields: Fields) -> dict[str, Any]:
    """The fields of Asked in cerebro_plpy/madlib/model_tables.py."""
    written = fields.object("written").document
    for name, text in written.items():
        if text is not None:
            Fields(written, f"{fields.where}: written").text(name)
    function = fields.choice("function", (SINGLE, MULTIPLE, AUTOML))
    automl = _automl(fields.object("automl")) if function == AUTOML else None
    if automl is None and fields.value("automl", None) is not None:
        raise fields.wrong(f"belongs to {AUTOML} only", "automl")
    fields.done()
    return {"function": function, "written": written, "automl": automl}


def _automl(fields: Fields) -> dict[str, Any]:
    """The fields of AutoML in cerebro_plpy/madlib/automl_tables.py."""
    found = {
        "method": fields.text("method"),
        "params": fields.text("params"),
        "frequency": None if fields.value("frequency", None) is None else fields.whole("frequency", 1, MOST_HOPS),
        "random_state": None
        if fields.value("random_state", None) is None
        else fields.whole("random_state", -(2**63), 2**63 - 1),
        "use_gpus": fields.flag("use_gpus"),
        "selection": fields.text("selection"),
    }
    fields.done()
    return found
