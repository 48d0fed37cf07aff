"""A user's request to a run that goes on or will be resumed: one row of cerebro.request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any

from ..events import Action
from ..records import dataclass
from .budget import Budget
from .decision import NewModel


@dataclass(frozen=True)
class Request:
    """A request that no decision answers yet.

    The detail of STOP and GO_ON is {"model": 3}, of ADD {"new": what NewModel.to_json() gives}, of EXTEND
    {"epochs": 30}, of BUDGET {"seconds": 60, ...}: the whole new budget. ADD with a parent is a clone.
    """

    request: int
    action: Action
    detail: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""

    @property
    def model(self) -> int | None:
        """The model that it concerns: of a clone the parent."""
        return self.new.parent if self.action is Action.ADD else self.detail.get("model")

    @property
    def new(self) -> NewModel:
        """The schedule gives it its number; a configuration of its own gets a new key."""
        new = NewModel.from_json(self.detail["new"])
        key = new.mst_key if new.configuration is None else None
        return replace(new, mst_key=key, model=None, parent_hop=None, fold=None)

    @property
    def epochs(self) -> int:
        return self.detail["epochs"]

    @property
    def budget(self) -> Budget:
        return Budget.from_json(self.detail)

    def require_sound(self) -> None:
        """Raise an error (of whatever class) if the detail is not that of the action."""
        if self.action is Action.BUDGET:
            self.budget.to_json()
        numbers = {Action.EXTEND: "epochs", Action.STOP: "model", Action.GO_ON: "model"}
        if self.action in numbers and type(self.detail[numbers[self.action]]) is not int:
            raise ValueError(f"{numbers[self.action]} must be a whole number")
        if self.action is Action.ADD and not isinstance(self.new.parent, (int, type(None))):
            raise ValueError("parent must be the number of a model")
