"""What follows the training of a run: steps on record, which whoever brings the run to its end carries out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .documents import Fields
from .events import Following
from .records import dataclass, field

MOST_STEPS = len(Following)
MOST_SECONDS = 1e9


@dataclass(frozen=True)
class Step:
    """One thing to do with the model tables.  Each is done once after each training."""

    task: Following
    seconds: float | None = None  # that the budget of the call keeps back for it; None: it may take as long as it does
    arguments: Mapping[str, Any] = field(default_factory=dict)  # read by what carries it out

    def to_json(self) -> dict[str, Any]:
        return {"task": self.task.value, "seconds": self.seconds, "arguments": dict(self.arguments)}


def read(fields: Fields) -> tuple[Step, ...]:
    """The steps of a run's options."""
    found = []
    for one in fields.objects("follows", 0, MOST_STEPS):
        task = Following(one.choice("task", [task.value for task in Following]))
        seconds = None if one.value("seconds", None) is None else one.number("seconds", 0, MOST_SECONDS)
        found.append(Step(task, seconds, one.object("arguments").document))
        one.done()
    if len({step.task for step in found}) < len(found):
        raise fields.wrong("must not have a task twice", "follows")
    return tuple(found)
