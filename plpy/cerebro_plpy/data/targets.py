"""What the columns to predict become when ``cerebro.pack`` chooses: classes, or numbers of a known size."""

from __future__ import annotations

from cerebro_db.core.columns import INTEGERS, REALS, Found, Wish
from cerebro_db.core.distributions import rounded, six_digits
from cerebro_db.core.errors import BadData, InvalidArgument
from cerebro_db.core.preparation import Measured, OneHot, Preparation
from cerebro_db.core.sql_types import SqlType

MOST_CLASSES_OF_INTEGERS = 30  # more different integers are numbers to predict


def decide(found: Found, wish: Wish) -> Preparation:
    """The preparation of a target that is no array; a one_hot has no labels yet."""
    if wish.choice not in (None, "category", "number") or wish.arguments:
        raise InvalidArgument(
            f"prepare has another choice than category or number for the target '{found.name}'.",
            hint='Choose "category" or "number".',
        )
    if found.type not in (*INTEGERS, *REALS) and wish.choice == "number":
        raise InvalidArgument(
            f"the target '{found.name}' of type {found.shown} is not a number.",
            hint=f"If it holds numbers, cast it in a view: {found.name}::double precision.",
        )
    if found.not_finite:
        raise BadData(
            f"the target '{found.name}' is NaN or infinite in {found.not_finite} of {found.rows} rows.",
            hint="Leave these rows out with a view.",
        )
    if not found.filled:
        raise BadData(f"the target '{found.name}' is NULL in all {found.rows} rows.", hint="Name another column.")
    values = found.numbers.values if found.numbers.rows else None
    groups = len(values) if values is not None else max(found.groups, len(found.numbers.bins))
    if found.numbers.constant if found.numbers.rows else groups == 1:
        raise BadData(
            f"the target '{found.name}' has the same value in all rows.",
            hint="There is nothing to predict. Check the rows and the name of the column.",
        )
    numbers = wish.choice == "number" or found.type in REALS
    if found.type in INTEGERS and wish.choice is None:
        numbers = groups > MOST_CLASSES_OF_INTEGERS or 2 * groups > found.filled
    if wish.choice == "category" or not numbers:
        if 2 * groups > found.filled and found.filled > 2:
            raise BadData(
                f"the target '{found.name}' has {groups} different values in {found.filled} rows.",
                hint="A class needs several rows to be learned. If the values are numbers, cast the column to"
                " double precision in a view.",
            )
        return OneHot(SqlType(found.type))
    moments = found.numbers.moments()
    return Measured(rounded(moments.mean, moments.deviation), six_digits(moments.deviation))
