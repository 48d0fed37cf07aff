"""The policy of runs without a search: every model trains all its epochs."""

from __future__ import annotations

from ..events import Verdict
from .policy import Decision, History


class NeverStop:
    name = "never stop"
    asks = False

    def decide(self, history: History, model: int, epoch: int) -> Decision:
        return Decision(model, epoch, Verdict.CONTINUE)
