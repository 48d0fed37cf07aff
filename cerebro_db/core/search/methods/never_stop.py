"""The policy of runs without a search: every model trains all its epochs."""

from __future__ import annotations

from ...records import dataclass
from ..policy import Policy


@dataclass
class NeverStop(Policy):
    name = "never stop"
    asks = False
    reads_figures = False
