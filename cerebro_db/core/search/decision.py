"""Decisions about a run and its models, and the models that they add: what one row of cerebro.decision holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar

from ..documents import LARGEST_WHOLE, Fields, decoded
from ..errors import BadData
from ..events import Decider, Verdict
from ..protocol import codec
from ..protocol.codec import Within
from ..records import dataclass, field
from .budget import Budget

LARGEST = 2**31 - 1  # of a number in the log
MOST_VISITS = 100_000  # of an epoch
LONGEST_NAME = 1000  # characters, of an architecture
MOST_ADDED = 1_000_000  # models of one decision
ABOUT_THE_RUN = (Verdict.ADD, Verdict.EXTEND, Verdict.BUDGET, Verdict.REFUSE)  # a decision without a model


@dataclass(frozen=True)
class AddedWeights:
    """The weights of an architecture that its user has added by a name."""

    name: Annotated[str, Within(0, LONGEST_NAME)]
    bytes: Annotated[int, Within(1, LARGEST_WHOLE)]
    sha256: Annotated[str, Within(0, 64)]  # of the hashes of the pieces


@dataclass(frozen=True)
class NewConfiguration:
    """A configuration that the model selection table does not have.

    Its parameters are texts, as in that table, and they are checked as a row of that table is when the model is added.
    A configuration that fails the checks becomes a failed model. ``model_id`` is an architecture that the run has,
    ``architecture`` a whole new one as JSON; with neither, a model with a parent has the parent's architecture.
    """

    compile_params: str
    fit_params: str
    model_id: int | None = None
    architecture: str | None = None
    chosen: Mapping[str, Any] = field(default_factory=dict)  # the point of the search space, as JSON
    name: str | None = None  # of the new architecture
    arch_params: Mapping[str, Any] = field(default_factory=dict)  # what the new architecture was made with
    weights: AddedWeights | None = None  # that its models start from; None: random weights, or those of the search

    def __post_init__(self) -> None:
        if self.model_id is not None and self.architecture is not None:
            raise ValueError("a new configuration has the number of an architecture or a whole one, not both")

    def to_json(self) -> dict[str, Any]:
        weights = {} if self.weights is None else {"weights": dict(vars(self.weights))}
        return {**vars(self), "chosen": dict(self.chosen), "arch_params": dict(self.arch_params), **weights}

    @classmethod
    def from_json(cls, document: Any, where: str = "the configuration") -> NewConfiguration:
        """BadData if a document of a table describes no configuration."""
        fields = Fields(document, where)
        weights = fields.value("weights", None)
        return _made(
            fields,
            cls,
            compile_params=fields.text("compile_params"),
            fit_params=fields.text("fit_params"),
            model_id=_number(fields, "model_id"),
            architecture=None if fields.value("architecture", None) is None else fields.text("architecture"),
            chosen={} if fields.value("chosen", None) is None else fields.object("chosen").document,
            name=None if fields.value("name", None) is None else fields.text("name", LONGEST_NAME),
            arch_params={} if fields.value("arch_params", None) is None else fields.object("arch_params").document,
            weights=None if weights is None else codec.decode(AddedWeights, weights, f"{where}: weights", BadData),
        )


@dataclass(frozen=True)
class Variant:
    """The rows of a model that does not train on all: those of all folds but one, those of a group, or both."""

    fold: int | None = None
    group_number: int | None = None

    @classmethod
    def of(cls, fold: int | None, group_number: int | None) -> Variant | None:
        """None: all rows."""
        return None if fold is None and group_number is None else cls(fold, group_number)

    def to_json(self) -> dict[str, int]:
        return {name: number for name, number in vars(self).items() if number is not None}


@dataclass(frozen=True)
class NewModel:
    """A model that a decision adds to the run: of a configuration on record or a new one, or a copy of another model.

    A policy leaves ``model`` and ``parent_hop`` out, and ``key`` if there is a configuration. The schedule fills
    them in before the decision is committed.
    """

    key: int | None = None  # a configuration of the run; None: the parent's, or the new one
    configuration: NewConfiguration | None = None  # of its own
    parent: int | None = None  # the model whose whole state it starts from; None: it starts from its own initial state
    visits: tuple[int, ...] | None = None  # the segments that it visits; None: all
    fold: int | None = None  # the fold that it does not train on; None: it trains on all rows, or as its parent
    group_number: int | None = None  # the group on whose rows it trains; None: it trains on all rows, or as its parent
    model: int | None = None  # its number within the run
    parent_hop: int | None = None  # after which hop of the parent the state is taken
    from_best: bool = False  # whether it is the parent's best state, if that is kept; else the last one

    def __post_init__(self) -> None:
        own = self.configuration
        if self.key is None and self.parent is None and own is None:
            raise ValueError("a new model needs the key of a configuration, a new one, or a parent")
        if own is not None and own.model_id is None and own.architecture is None and self.parent is None:
            raise ValueError("the configuration of a new model without a parent needs an architecture")
        if self.parent is None and self.parent_hop is not None:
            raise ValueError(f"a new model has parent_hop {self.parent_hop}, but no parent")

    @property
    def variant(self) -> Variant | None:
        """The fold and the group of its rows; None: all rows."""
        return Variant.of(self.fold, self.group_number)

    def to_json(self) -> dict[str, Any]:
        return {
            "key": self.key,
            "configuration": None if self.configuration is None else self.configuration.to_json(),
            "parent": self.parent,
            "visits": None if self.visits is None else list(self.visits),
            **({} if self.variant is None else self.variant.to_json()),
            "model": self.model,
            "parent_hop": self.parent_hop,
            **({"from_best": True} if self.from_best else {}),
        }

    @classmethod
    def from_json(cls, document: Any, where: str = "the new model") -> NewModel:
        """BadData if a document of a table describes no model.  Fields of later versions are left out."""
        fields = Fields(document, where)
        own, visits = fields.value("configuration", None), fields.value("visits", None)
        return _made(
            fields,
            cls,
            **{
                name: _number(fields, name) for name in ("key", "parent", "fold", "group_number", "model", "parent_hop")
            },
            configuration=None if own is None else NewConfiguration.from_json(own, f"{where}: configuration"),
            visits=None if visits is None else fields.wholes("visits", 1, MOST_VISITS, 0, LARGEST),
            from_best=fields.flag("from_best", False),
        )


@dataclass(frozen=True)
class Decision:
    """What is decided after an epoch of a model, or about the run as a whole: then it has no model and no epoch.

    CONTINUE: the model goes on. STOP: it does not, and ``reason`` says why. ADD: it goes on, and the ``added`` models
    begin; without a model, only that. A STOP may add models, too. GO_ON: a stopped model trains on from its last
    state. EXTEND and BUDGET change the run, as ``detail`` says. REFUSE: what a person has requested cannot be done.

    ``gone_on`` are other models, which were stopped and train on with this decision.
    """

    model: int | None
    epoch: int | None  # complete when it was decided
    verdict: Verdict
    reason: str = ""
    added: tuple[NewModel, ...] = ()
    gone_on: tuple[int, ...] = ()
    by: Decider = Decider.POLICY
    request: int | None = None  # the number of the request that it answers
    hop: int | None = None  # of a STOP within an epoch: the model's last hop
    detail: Mapping[str, Any] = field(default_factory=dict)  # EXTEND: the epochs; BUDGET: the budget

    def __post_init__(self) -> None:
        if (self.model is None) != (self.epoch is None):
            raise ValueError("a decision is about an epoch of a model, or about neither")
        if self.model is None and self.verdict not in ABOUT_THE_RUN:
            raise ValueError(f"a decision '{self.verdict}' must be about a model")
        if self.verdict is Verdict.CONTINUE and self.added:
            raise ValueError("a decision to continue cannot add models: its verdict must be 'add' or 'stop'")
        if self.verdict is Verdict.ADD and not self.added:
            raise ValueError("a decision to add models adds none")
        if self.verdict is Verdict.STOP and not self.reason:
            raise ValueError(f"a decision to stop model {self.model} must have a reason")
        if self.model in self.gone_on:
            raise ValueError(f"a decision about model {self.model} cannot let it go on as another model")

    @property
    def concludes(self) -> bool:
        """Whether the model need not be asked about any more in this epoch.

        What a person has requested comes before the policy's own decision, unless the model is stopped.
        """
        return self.verdict is Verdict.STOP or self.by is not Decider.REQUEST

    def to_json(self) -> dict[str, Any]:
        """One row of the table ``decision``: its keys are the columns' names, and ``detail`` is a jsonb.

        ``policy`` says who has decided; of a policy the row has its name, which whoever writes the row knows.
        """
        detail = {"added": [new.to_json() for new in self.added], **self.detail}
        if self.gone_on:
            detail["gone_on"] = list(self.gone_on)
        if self.hop is not None:
            detail["hop"] = self.hop
        return {
            "model": self.model,
            "epoch": self.epoch,
            "decision": self.verdict.value,
            "reason": self.reason,
            "policy": self.by.value,
            "request": self.request,
            "detail": detail,
        }

    @classmethod
    def from_json(cls, row: Any, where: str = "the decision") -> Decision:
        """BadData if a row of the table is no decision.  The detail is JSON, or its text."""
        fields = Fields(row, where)
        detail = fields.value("detail", None) or {}
        if isinstance(detail, str):
            detail = decoded(detail, f"{where}: detail")
        inner = Fields(detail, f"{where}: detail")
        who = fields.text("policy", default="")
        verdict = Verdict(fields.choice("decision", [one.value for one in Verdict]))
        if verdict is Verdict.EXTEND:
            inner.whole("epochs", 1, LARGEST)
        read = ("added", "gone_on", "hop")
        more = {name: value for name, value in inner.document.items() if name not in read}
        if verdict is Verdict.BUDGET:
            _made(inner, Budget.from_document, value=more)
        new = enumerate(inner.list("added", 0, MOST_ADDED)) if inner.has("added") else ()
        return _made(
            fields,
            cls,
            model=_number(fields, "model"),
            epoch=_number(fields, "epoch"),
            verdict=verdict,
            reason="" if fields.value("reason", None) is None else fields.text("reason"),
            added=tuple(NewModel.from_json(one, f"{where}: added[{place}]") for place, one in new),
            gone_on=inner.wholes("gone_on", 0, MOST_ADDED, 0, LARGEST) if inner.has("gone_on") else (),
            by=Decider(who) if who in set(Decider) else Decider.POLICY,
            request=None if fields.value("request", None) is None else fields.whole("request"),
            hop=_number(inner, "hop"),
            detail=more,
        )


M = TypeVar("M")


def _made(fields: Fields, make: Callable[..., M], **values: Any) -> M:
    """What the values make; BadData if they contradict each other."""
    try:
        return make(**values)
    except ValueError as error:
        raise fields.wrong(f"cannot be used: {error}") from None


def _number(fields: Fields, name: str) -> int | None:
    """A number as the columns of the log have them; None if there is none."""
    if fields.value(name, None) is None:
        return None
    found: int = fields.whole(name, 0, LARGEST)
    return found
