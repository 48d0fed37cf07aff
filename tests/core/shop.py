"""A packed table whose rows are customers, with what it knows of a shop's related tables."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cerebro_db.core.names import StoredName
from cerebro_db.core.packing.features import CategoryFeature, NumberFeature
from cerebro_db.core.packing.layout import Layout, Variable
from cerebro_db.core.packing.preparation import AsIs, Categories, Numbers, OneHot, Preparation
from cerebro_db.core.packing.related import (
    Aggregate,
    Carried,
    Latest,
    ManyRows,
    PreparedPlace,
    Related,
    RelatedColumn,
    RelatedMeasure,
    RelatedPlace,
    RelatedStep,
)
from cerebro_db.core.sql_types import SqlType

PLACES = 6  # of the latest orders
REAL, TEXT = SqlType("real"), SqlType("text")
NUMBER = NumberFeature("number", REAL, "standard", 0.0, 1.0, 0.0, False, "error", edges=(-2.0, -0.5, 0.0, 0.5, 2.0))
STATUS = CategoryFeature("text", TEXT, ("new", "paid", "sent"), (), 0, "notice")

ORDERS = Latest(
    PLACES,
    "orders.latest numbers",
    "orders.latest codes",
    (PreparedPlace("orders", "amount", NUMBER), PreparedPlace("orders", "status", STATUS)),
    age=NUMBER,
)
VISITS = Latest(4, "visits.latest numbers", None, (PreparedPlace("visits", "seconds", NUMBER),))
RELATED = Related(
    (
        RelatedStep("city", StoredName("shop.cities"), (("city_id", "id"),), False, (RelatedColumn("size", REAL),)),
        RelatedStep(
            "orders",
            StoredName("shop.orders"),
            (("id", "customer_id"),),
            True,
            (RelatedColumn("amount", REAL), RelatedColumn("status", TEXT)),
            "ordered_at",
        ),
        RelatedStep(
            "visits", StoredName("shop.visits"), (("id", "customer_id"),), True, (RelatedColumn("seconds", REAL),)
        ),
    ),
    (Carried("city", "size", "city.size"),),
    (
        ManyRows(
            "orders",
            (RelatedMeasure("orders", "amount", 0.0, 0.01),),
            (
                Aggregate("orders.count", "count"),
                Aggregate("orders.amount sum", "sum", RelatedPlace("orders", "amount")),
                Aggregate("orders.status last", "last", RelatedPlace("orders", "status")),
            ),
            ORDERS,
        ),
        ManyRows("visits", (), (Aggregate("visits.count", "count"),), VISITS),
    ),
    "observed_at",
)


def variable(name: str, preparation: Preparation, shape: tuple[int, ...], dtype: str, *columns: str) -> Variable:
    return Variable(name, dtype, shape, columns or (name,), preparation)


NUMBERS = variable(
    "numbers", Numbers((NUMBER,) * 5), (5,), "float32",
    "age", "orders.count", "orders.amount sum", "city.size", "visits.count",
)  # fmt: skip
CODES = variable("categories", Categories((STATUS, STATUS)), (2,), "int16", "orders.status last", "sex")
ORDER_NUMBERS = variable(ORDERS.numbers, AsIs(), (PLACES, 3), "float32")
ORDER_CODES = variable("orders.latest codes", AsIs(), (PLACES, 1), "int16")
VISIT_NUMBERS = variable(VISITS.numbers, AsIs(), (4, 2), "float32")
CHURN = variable("churn", OneHot(SqlType("boolean"), ("false", "true")), (2,), "int16")
SHOP = Layout((NUMBERS, CODES, ORDER_NUMBERS, ORDER_CODES, VISIT_NUMBERS), (CHURN,), 0, (), related=RELATED)
NAMES = ["numbers", "categories", "input_3", "input_4", "input_5"]  # of the inputs of a model


def without_neighbourhoods() -> Layout:
    rows = tuple(replace(one, latest=None) for one in RELATED.rows)
    return replace(SHOP, inputs=(NUMBERS, CODES), related=replace(RELATED, rows=rows))


def with_places(places: int) -> Layout:
    """The shop with another number of latest orders."""
    orders, visits = RELATED.rows
    rows = (replace(orders, latest=replace(ORDERS, rows=places)), visits)
    inputs = (
        NUMBERS, CODES, replace(ORDER_NUMBERS, shape=(places, 3)), replace(ORDER_CODES, shape=(places, 1)),
        VISIT_NUMBERS,
    )  # fmt: skip
    return replace(SHOP, inputs=inputs, related=replace(RELATED, rows=rows))


def customers(rows: int, seed: int, places: int = PLACES) -> list[Any]:
    """The values of the inputs: customers with no order up to all places, and some without a visit."""
    import numpy as np

    random = np.random.default_rng(seed)
    there = (np.arange(places) < random.integers(0, places + 1, (rows, 1))).astype("float32")
    visited = (np.arange(4) < random.integers(0, 5, (rows, 1))).astype("float32")
    orders = np.concatenate([there[..., None], random.normal(size=(rows, places, 2)) * there[..., None]], axis=2)
    visits = np.concatenate([visited[..., None], random.normal(size=(rows, 4, 1)) * visited[..., None]], axis=2)
    codes = random.integers(1, 4, (rows, places, 1)) * there[..., None]
    return [
        random.normal(size=(rows, 5)).astype("float32"),
        random.integers(0, 4, (rows, 2)).astype("int16"),
        orders.astype("float32"),
        codes.astype("int16"),
        visits.astype("float32"),
    ]
