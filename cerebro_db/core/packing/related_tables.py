"""The argument ``related`` of the functions that read a model's rows: which tables its paths lead to."""

from __future__ import annotations

from .. import documents
from ..errors import InvalidArgument
from .related import MOST_STEPS, Related

EXAMPLE = """For instance '{"orders": "shop.orders", "orders.items": "shop.items"}'."""


def named(text: str | None) -> dict[str, str]:
    """The names of tables, by path."""
    if text is None:
        return {}
    document = documents.argument(text, "related", EXAMPLE)
    if not isinstance(document, dict) or not document or not all(isinstance(one, str) for one in document.values()):
        raise InvalidArgument("related must be a JSON object of the names of tables, by path.", hint=EXAMPLE)
    if len(document) > MOST_STEPS:
        raise InvalidArgument(f"related has {len(document)} tables; the limit is {MOST_STEPS}.")
    return document


def require_known(tables: dict[str, str], plan: Related | None) -> None:
    """An error unless a plan has all these paths."""
    if plan is None:
        if tables:
            raise InvalidArgument("related cannot be given: the model reads no related tables.", hint="Leave it out.")
        return
    known = [step.path for step in plan.steps]
    unknown = [path for path in tables if path not in known]
    if unknown:
        raise InvalidArgument(
            f"related: the model has no path {documents.shown(unknown[0])}.", hint=f"It has {', '.join(known)}."
        )
