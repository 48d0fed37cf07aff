"""What the loop over the schedule needs of the world: sessions, trainers and the log, or the fakes of the tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ..models.metrics import Value
from ..records import dataclass, field
from ..search.budget import Used
from ..search.policy import Decision
from ..search.request import Request
from .plan import ModelPlan, Unit
from .schedule import MOST_TRIES


@dataclass(frozen=True)
class Outcome:
    """How a unit ended. ``error`` is None if the unit is committed, or was cut."""

    unit: Unit
    seconds: float = 0.0  # its share, if it trained fused with others
    error: str | None = None
    # A crash of a trainer or a lost session says little about the model, so the unit is tried again.
    try_again: bool = False
    # Of a committed unit, as the log has them: what policies decide by.
    weight: float = 0  # of the loss beside those of the epoch's other units: mostly the number of its rows
    loss: float | None = None
    metrics: Mapping[str, Value] = field(default_factory=dict)
    most_tries: int = MOST_TRIES  # of a unit that failed like this
    counts: bool = True  # whether it was a try of this unit; in a chain, perhaps a unit after it has failed
    # It did not begin: the order has ended at a unit before it of the same model.  The outcome of that one comes later.
    cut: bool = False
    building: float = 0.0  # of the seconds: for the program that it built, which later visits find


class NotYet(Exception):
    """The rule has not answered yet. Other models train on meanwhile."""


class DecisionPorts(Protocol):
    """What decisions need."""

    def decided(self, decisions: Sequence[Decision]) -> Sequence[ModelPlan]:
        """Commit decisions as a row each, before they take effect, and return the plans of the models that they add.

        The same transaction makes the added models, under the numbers in the decisions, with their configurations and
        initial states. A model with a parent begins with the parent's state after ``parent_hop``. The parent may be
        training: at most one later visit of it has been committed since. A model whose configuration is no good has
        failed, and its plan says why. If this raises, nothing took effect.
        """

    def configuration(self, model: int) -> Mapping[str, Any]:
        """What a policy may know of a model that a decision has added."""

    def best_hop(self, model: int) -> int | None:
        """After which hop a model has left the state that is kept as its best; None: none is kept."""

    def requests(self) -> Sequence[Request]:
        """What people have requested so far and no decision on record answers; in the order of the requests."""

    def ruled(self, model: int, epoch: int) -> str | None:
        """Why a rule of the user stops a model after this epoch; None: no rule does.

        Raises NotYet until the rule has answered: then it is asked again after the next ``wait``.
        """

    def used(self) -> Used:
        """What the run has used of its budget, in all of its parts: asked if it has a budget of time."""


class Ports(DecisionPorts, Protocol):
    def start(self, groups: Sequence[Sequence[Unit]]) -> None:
        """Begin units on their segment and return at once.

        A group is one unit, several visits that train fused, or units of one model that follow each other. Several
        groups are done one after the other. Each unit has an outcome of its own. A segment that reads ahead begins them
        after its current units.
        """

    def reads_ahead(self, segment: int) -> bool:
        """Whether a busy segment could prepare its next unit."""

    def segments_allowed(self) -> int | None:
        """How many segments may be busy, because other runs need processors, too; None: all.

        With 0, nothing begins before a later ``wait``.
        """
        return None

    def wait(self) -> list[Outcome]:
        """Block a short while, at most until a unit has ended. Raises when the run is cancelled.

        An error in an outcome says that nothing of the unit is committed. Ports that cannot tell (a
        session lost during COMMIT) ask the log, or raise: the run is then taken up from its log.
        """

    def gave_up(self, model: int, reason: str) -> None:
        """A model has failed for good; the others go on. Called once per model."""

    def trying_again(self, unit: Unit, reason: str) -> None:
        """A unit has failed and will be repeated."""
