"""The contract of search policies: what becomes of a model after each of its epochs, and which models begin.

A policy is a pure function of the run's history. A decision is committed to the log before it takes effect.
A resumed or replayed run reads its decisions from the log and does not ask the policy again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..events import Decider, Verdict
from .budget import Budget
from .decision import Decision, NewConfiguration, NewModel
from .history import History
from .method_parameters import Parameter
from .objective import Objective

# All that a policy needs.
__all__ = [
    "Budget", "Decider", "Decision", "History", "NewConfiguration", "NewModel", "Objective", "Parameter", "Policy",
    "Verdict",
]  # fmt: skip


class Policy:
    """Decides about models from the history of the run, and from nothing else.

    This one lets every model train all its epochs, and proposes none.
    """

    name: str = ""  # what the log calls the policy, and what users call a method
    does: str = ""  # for docs/train.md, if users can name it
    parameters: tuple[Parameter, ...] = ()  # that users can give
    # Whether the policy wants to be asked after each epoch of each model. If not, the run has no such decisions and
    # they cost nothing.
    asks: bool = True
    reads_figures: bool = True  # whether it decides by the losses and metrics of models
    timed: bool = False  # whether it decides by the history's clock, too
    epochs: int  # of the run; only policies that need it have it

    def decide(self, history: History, model: int, epoch: int) -> Decision:
        """What becomes of this model after this epoch, which is complete. Asked after the last epoch, too.

        The same history always gives the same decision. It may let other models go on that were stopped.
        """
        return Decision(model, epoch, Verdict.CONTINUE)

    def propose(self, history: History, active: int) -> Sequence[NewModel]:
        """Models that begin now; none: nothing to propose at this moment.

        ``active`` models train or wait for a segment. Asked at the start, after each decision, and when a model has
        finished or failed. What is on record is in the history, and is not proposed again.
        """
        return ()

    def expected_epochs(self, place: int, done: int) -> float:
        """How many epochs in all the ``place``-th model (from 0) is likely to train, if it has done so many.

        For the estimate of the time that is left, and for nothing else.
        """
        return math.inf

    @property
    def begins(self) -> int | None:
        """How many models will begin in all, if the policy proposes them; None: those that there are."""
        return None

    def room(self, history: History, active: int, at_once: int) -> int:
        """How many models may begin now, if they are proposed for this policy.  ``at_once``: may train at most."""
        return at_once - active

    def further(self, history: History, active: int) -> Sequence[NewModel]:
        """Models of its own that begin while none is proposed."""
        return ()

    def told(self, history: History) -> str:
        """Its plan in a sentence, for the reason of the decisions by which models begin; empty: it has none."""
        return ""

    def released(self, history: History) -> Sequence[int]:
        """Stopped models that go on now. Asked when a model has failed, or was stopped by a rule or a person."""
        return ()

    def extended(self, epochs: int) -> None:
        """The run has so many epochs now.  After a resume, the policy is made with this number."""
        self.epochs = epochs

    @property
    def searches(self) -> bool:
        """Whether it may propose other configurations when those that there are have failed."""
        return self.proposes

    @property
    def proposes(self) -> bool:
        return type(self).propose is not Policy.propose
