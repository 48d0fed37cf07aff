"""What the columns to predict become when ``cerebro.pack`` chooses: classes, or numbers of a known size."""

from __future__ import annotations

from cerebro_db.core.errors import BadData, InvalidArgument
from cerebro_db.core.packing.columns import INTEGERS, REALS, Found, Wish
from cerebro_db.core.packing.distributions import FEW_VALUES, rounded, six_digits
from cerebro_db.core.packing.preparation import Measured, OneHot, Preparation
from cerebro_db.core.sql import quoted
from cerebro_db.core.sql_types import SqlType

MOST_CLASSES_OF_INTEGERS = 30  # more different integers are numbers to predict


def decide(found: Found, wish: Wish) -> Preparation:
    """The preparation of a target that is no array; a one_hot has no labels yet."""
    if wish.choice not in (None, "category", "number") or set(wish.arguments) - {"quantiles"}:
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
    groups = found.groups
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
                hint=f"A class needs several rows to be learned. {_as_number(found)}",
            )
        if wish.choice is None and groups > MOST_CLASSES_OF_INTEGERS and found.look_like_numbers == found.filled:
            raise InvalidArgument(
                f"the target '{found.name}' is {found.shown}, but all its {groups} different values are numbers.",
                hint=f"{_as_number(found)} To make a class of each of them: prepare =>"
                f""" '{{"{found.name}": "category"}}'.""",
            )
        return OneHot(SqlType(found.type))
    moments = found.numbers.moments()
    return Measured(rounded(moments.mean, moments.deviation), six_digits(moments.deviation))


def notice(found: Found, preparation: Preparation, wish: Wish) -> str | None:
    """What a user should know of a choice that might have been another one."""
    if wish.choice is not None:
        return None
    as_classes = f"""prepare => '{{"{found.name}": "category"}}' makes classes of them"""
    if isinstance(preparation, OneHot):
        if found.family in ("date", "time", "money", "interval"):
            return (
                f"'{found.name}' is predicted as one of {found.groups} classes, because its type is {found.shown}."
                f" {_as_number(found)}"
            )
        return None
    if found.type in INTEGERS:
        return f"'{found.name}' is predicted as a number, because it has many different integers; {as_classes}"
    few = found.numbers.values
    if few is not None and len(few) <= FEW_VALUES and all(value == int(value) for value in few):
        listed = ", ".join(f"{value:.0f}" for value in few)
        return (
            f"'{found.name}' is predicted as a number, because its type is {found.shown}. It has only the values"
            f" {listed}; {as_classes}"
        )
    return None


def _as_number(found: Found) -> str:
    name = quoted(found.name)
    if found.family in ("date", "time", "interval"):
        cast = f"extract(epoch FROM {name})"
    else:
        cast = f"{name}{'::numeric' if found.family == 'money' else ''}::double precision"
    return f"To predict a number, make a view with {cast}."
