"""The mean of a model and of the same trained again on all rows: how its row of ``_info`` tells it apart."""

from __future__ import annotations

REFITTED = ", and the same trained again on all rows"  # how the reason of such a mean ends


def reason(made_of: str) -> str:
    """What is told of such a mean.  ``made_of``: the model before."""
    return made_of + REFITTED


def is_refitted(reason: object) -> bool:
    """``reason``: of a model without a training loss; only cerebro_db writes those."""
    return isinstance(reason, str) and reason.endswith(REFITTED)
