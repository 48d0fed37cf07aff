"""What follows the training of a run: steps on record, which whoever brings the run to its end carries out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .documents import Fields
from .events import Following
from .records import dataclass, field
from .search.budget import MOST, FollowUp

MOST_FIRSTS, MOST_PASSES, MOST_SECONDS = 1000, 1000, MOST


@dataclass(frozen=True)
class Step:
    """One thing to do with the model tables.  Each is done once after each training."""

    following: Following
    needs: FollowUp | None = None  # what the budget keeps back for it; None: nothing
    arguments: Mapping[str, Any] = field(default_factory=dict)  # read by what carries it out

    def to_json(self) -> dict[str, Any]:
        needs = None if self.needs is None else {name: getattr(self.needs, name) for name in NEEDS}
        return {"task": self.following.value, "needs": needs, "arguments": dict(self.arguments)}

    @property
    def seconds(self) -> float:
        """How long it is expected to take, within what the budget may keep back for it."""
        return 0.0 if self.needs is None else self.needs.seconds


NEEDS = ("firsts", "passes", "most")


def kept_back(steps: Sequence[Step]) -> float:
    """The seconds of the budget for these steps."""
    return sum(step.seconds for step in steps)


def read(fields: Fields) -> tuple[Step, ...]:
    """The steps of a run's options."""
    found = []
    for one in fields.objects("follows", 0, len(Following)):
        following = Following(one.choice("task", [task.value for task in Following]))
        needs = None if one.value("needs", None) is None else _needs(one.object("needs"))
        found.append(Step(following, needs, one.object("arguments").document))
        one.done()
    if len({step.following for step in found}) < len(found):
        raise fields.wrong("must not have a task twice", "follows")
    return tuple(found)


def _needs(fields: Fields) -> FollowUp:
    firsts, passes = fields.whole("firsts", 0, MOST_FIRSTS), fields.whole("passes", 0, MOST_PASSES)
    needs = FollowUp(firsts, passes, fields.number("most", 0, MOST_SECONDS))
    fields.done()
    return needs
