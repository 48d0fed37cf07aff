"""A user's request to a run that goes on or will be resumed: one row of cerebro.request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any

from ..documents import Fields
from ..errors import BadData
from ..events import Action
from ..records import dataclass
from .budget import Budget
from .decision import LARGEST, NewModel


@dataclass(frozen=True)
class Request:
    """A request that no decision answers yet.

    The detail of STOP and GO_ON is {"model": 3}, of ADD {"new": what NewModel.to_json() gives, "parameters": what the
    user gave}, of EXTEND {"epochs": 30}, of BUDGET {"seconds": 60, ...}: the whole new budget. ADD with a parent is a
    clone.
    """

    request: int
    action: Action
    detail: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""
    wrong: str = ""  # why the detail could not be read

    @property
    def model(self) -> int | None:
        """The model that it concerns: of a clone the parent."""
        return self.new.parent if self.action is Action.ADD else self._fields().whole("model", 1, LARGEST, default=None)

    @property
    def new(self) -> NewModel:
        """The schedule gives it its number; a configuration of its own gets a new key."""
        new = NewModel.from_json(self._fields().value("new"), "its new model")
        key = new.key if new.configuration is None else None
        return replace(new, key=key, model=None, parent_hop=None, fold=None, group_number=None)

    @property
    def epochs(self) -> int:
        epochs: int = self._fields().whole("epochs", 1, LARGEST)
        return epochs

    @property
    def budget(self) -> Budget:
        return Budget.from_document(self.detail)

    def _fields(self) -> Fields:
        return Fields(self.detail, "its detail")

    def require_sound(self) -> None:
        """Raise BadData if the detail is not that of the action: users can write rows of their own."""
        if self.wrong:
            raise BadData(self.wrong)
        if self.action is Action.BUDGET:
            try:
                self.budget.to_json()
            except ValueError as error:
                raise BadData(str(error)) from None
            return
        fields = self._fields()
        if self.action is Action.ADD:
            fields.value("new")
            fields.value("parameters", None)  # as the user gave them: the view cerebro.requests shows them
            self.new.to_json()
        else:
            fields.whole("epochs" if self.action is Action.EXTEND else "model", 1, LARGEST)
        fields.done()
