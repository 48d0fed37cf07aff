# ruff: noqa: UP007, UP045  (get_type_hints evaluates the annotations, on Python 3.9 too)
"""Decisions about a run and its models, and the models that they add: what one row of cerebro.decision holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Optional

from .. import codec
from ..codec import Text, Whole, Within
from ..documents import LARGEST_WHOLE, decoded
from ..errors import BadData
from ..events import Decider, Verdict
from ..records import dataclass, field
from .budget import Budget

LARGEST = 2**31 - 1  # of a number in the log
MOST_VISITS = 100_000  # of an epoch
LONGEST_NAME = 1000  # characters, of an architecture
MOST_ADDED = 1_000_000  # models of one decision
Small = Annotated[int, Within(0, LARGEST)]  # as the columns of the log have it
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

    compile_params: Text
    fit_params: Text
    model_id: Optional[Small] = None
    architecture: Optional[Text] = None
    chosen: Mapping[str, Any] = field(default_factory=dict)  # the point of the search space, as JSON
    name: Optional[Annotated[Text, Within(0, LONGEST_NAME)]] = None  # of the new architecture
    arch_params: Mapping[str, Any] = field(default_factory=dict)  # what the new architecture was made with
    weights: Optional[AddedWeights] = None  # that its models start from; None: random weights, or those of the search
    lenient = True

    def __post_init__(self) -> None:
        if self.model_id is not None and self.architecture is not None:
            raise ValueError("a new configuration has the number of an architecture or a whole one, not both")


@dataclass(frozen=True)
class Variant:
    """The rows of a model that does not train on all: those of all folds but one, those of a group, or both."""

    fold: int | None = None
    group_number: int | None = None

    @classmethod
    def of(cls, fold: int | None, group_number: int | None) -> Variant | None:
        """None: all rows."""
        return None if fold is None and group_number is None else cls(fold, group_number)


@dataclass(frozen=True)
class NewModel:
    """A model that a decision adds to the run: of a configuration on record or a new one, or a copy of another model.

    A policy leaves ``model`` and ``parent_hop`` out, and ``key`` if there is a configuration. The schedule fills
    them in before the decision is committed.
    """

    key: Optional[Small] = None  # a configuration of the run; None: the parent's, or the new one
    configuration: Optional[NewConfiguration] = None  # of its own
    parent: Optional[Small] = None  # the model whose whole state it starts from; None: from its own initial state
    # The segments that it visits; None: all
    visits: Optional[Annotated[tuple[Small, ...], Within(1, MOST_VISITS)]] = None
    fold: Optional[Small] = None  # that it does not train on; None: it trains on all rows, or as its parent
    group_number: Optional[Small] = None  # on whose rows it trains; None: it trains on all rows, or as its parent
    model: Optional[Small] = None  # its number within the run
    parent_hop: Optional[Small] = None  # after which hop of the parent the state is taken
    from_best: bool = codec.omitted(False)  # whether it is the parent's best state, if that is kept; else the last one
    lenient = True

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
        return codec.encode_fields(self)

    @classmethod
    def from_json(cls, document: Any, where: str = "the new model") -> NewModel:
        """BadData if a document of a table describes no model.  Fields of later versions are left out."""
        return codec.decode(cls, document, where, BadData)


COLUMNS = ("model", "epoch", "decision", "reason", "policy", "request")  # of the table, besides the detail


@dataclass(frozen=True)
class Decision:
    """What is decided after an epoch of a model, or about the run as a whole: then it has no model and no epoch.

    CONTINUE: the model goes on. STOP: it does not, and ``reason`` says why. ADD: it goes on, and the ``added`` models
    begin; without a model, only that. A STOP may add models, too. GO_ON: a stopped model trains on from its last
    state. EXTEND and BUDGET change the run, as ``detail`` says. REFUSE: what a person has requested cannot be done.

    ``gone_on`` are other models, which were stopped and train on with this decision.
    """

    model: Optional[Small]
    epoch: Optional[Small]  # complete when it was decided
    verdict: Verdict = codec.named("decision")
    reason: Text = ""
    added: Annotated[tuple[NewModel, ...], Within(0, MOST_ADDED)] = ()
    gone_on: Annotated[tuple[Small, ...], Within(0, MOST_ADDED)] = codec.omitted(())
    by: Decider = codec.named("policy", Decider.POLICY)
    request: Optional[Whole] = None  # the number of the request that it answers
    hop: Optional[Small] = None  # of a STOP within an epoch: the model's last hop
    detail: Mapping[str, Any] = codec.unknown()  # EXTEND: the epochs; BUDGET: the budget

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
        detail = codec.encode_fields(self)
        return {**{name: detail.pop(name, None) for name in COLUMNS}, "detail": detail}

    @classmethod
    def from_json(cls, row: Any, where: str = "the decision") -> Decision:
        """BadData if a row of the table is no decision.  The detail is JSON, or its text."""
        said = codec.read(dict[str, Any], row, where)
        detail = said.get("detail") or {}
        if isinstance(detail, str):
            detail = decoded(detail, f"{where}: detail")
        detail = codec.read(dict[str, Any], detail, f"{where}: detail")
        document = {name: value for name, value in detail.items() if name not in COLUMNS}
        document.update((name, said.get(name)) for name in COLUMNS)
        if document["policy"] not in [one.value for one in Decider]:
            document["policy"] = Decider.POLICY.value
        return codec.decode(cls, {**document, "reason": document["reason"] or ""}, where, BadData)

    def require_agreement(self) -> None:
        if self.verdict is Verdict.EXTEND:
            codec.entry(self.detail, "epochs", Annotated[int, Within(1, LARGEST)])
        if self.verdict is Verdict.BUDGET:
            Budget.from_document(self.detail)
