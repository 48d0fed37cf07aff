"""A user's request to a run that goes on or will be resumed: one row of cerebro.request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Annotated, Any

from .. import codec
from ..codec import Within
from ..documents import shown
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
        if self.action is Action.ADD:
            return self.new.parent
        return self._number("model") if "model" in self.detail else None

    @property
    def new(self) -> NewModel:
        """The schedule gives it its number; a configuration of its own gets a new key."""
        new = NewModel.from_json(self.detail.get("new"), "its new model")
        key = new.key if new.configuration is None else None
        return replace(new, key=key, model=None, parent_hop=None, fold=None, group_number=None)

    @property
    def epochs(self) -> int:
        return self._number("epochs")

    @property
    def budget(self) -> Budget:
        return Budget.from_document(self.detail)

    def _number(self, name: str) -> int:
        number: int = codec.read(Annotated[int, Within(1, LARGEST)], self.detail.get(name), f"its {name}")
        return number

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
        # The parameters of a new model are as the user gave them: the view cerebro.requests shows them.
        names = {Action.ADD: ("new", "parameters"), Action.EXTEND: ("epochs",)}.get(self.action, ("model",))
        others = codec.read(dict[str, Any], self.detail, "its detail").keys() - names
        if others:
            raise BadData(f"its detail has the unknown field {shown(min(others))}; it has: {', '.join(names)}.")
        if self.action is Action.ADD:
            self.new.to_json()
        else:
            self._number(names[0])
