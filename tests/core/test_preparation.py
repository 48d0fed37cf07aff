"""The document of what a column becomes: it survives JSON, wrong ones are refused, and a kind is one class."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from cerebro_db.core import preparation
from cerebro_db.core.errors import BadData
from cerebro_db.core.features import Category, Date, Number
from cerebro_db.core.features import Words as WordsFeature
from cerebro_db.core.layout import DataSet, Layout, Partition, Variable
from cerebro_db.core.packing import float32
from cerebro_db.core.preparation import (
    AsIs,
    Categories,
    Divided,
    Encoded,
    Measured,
    Numbers,
    OneHot,
    Preparation,
    Real,
    Weight,
    Words,
    from_json,
)
from cerebro_plpy.data.preparation import EXPRESSIONS, SourceVariable, applied, expression, hashed
from cerebro_plpy.database.relations import Column

LAYOUT = Layout(
    inputs=(
        Variable("image", "uint8", (8, 8), ("image",), Divided(16.0)),
        Variable("features", "float32", (2,), ("a", "b c"), AsIs()),
    ),
    outputs=(
        Variable("digit", "int16", (4,), ("digit",), OneHot("text", ("one", "two's", '"3"'))),
        Variable("code", "int16", (3,), ("code",), Encoded()),
        Variable("price", "float32", (1,), ("price",), Real()),
    ),
    rows=3,
    partitions=(Partition(0, 2, 1, 10, "ab"), Partition(7, 1, 1, 5, "cd")),
)


def column(name: str, kind: str, element: str | None = None) -> Column:
    return Column(name, kind, kind, "A" if element else "N", element)


ARRAY, REAL, FLAG, TEXT = (
    column("x", "integer[]", "integer"), column("r", "real"), column("f", "boolean"), column("t", "text"),
)  # fmt: skip


def alias(column: Column) -> str:
    return f"s.{column.name}"


# -- the document --------------------------------------------------------------------------------------------


def test_a_layout_survives_json() -> None:
    document = json.loads(json.dumps(LAYOUT.to_json()))
    assert Layout.from_json(document) == LAYOUT
    assert document["inputs"][0] == {
        "name": "image", "dtype": "uint8", "shape": [8, 8], "scale": 16.0,
        "preparation": {"kind": "divided", "by": 16.0},
    }  # fmt: skip
    assert document["inputs"][1]["columns"] == ["a", "b c"]
    assert document["outputs"][0]["kind"] == "class"
    assert document["outputs"][0]["preparation"] == {
        "kind": "one_hot", "type": "text", "labels": ["one", "two's", '"3"'],
    }  # fmt: skip


def test_trainers_get_what_they_need_and_no_labels() -> None:
    data = DataSet("packed", LAYOUT.to_json())
    assert data.for_trainer == {
        "inputs": [
            {"name": "image", "dtype": "uint8", "shape": [8, 8], "scale": 16.0},
            {"name": "features", "dtype": "float32", "shape": [2], "scale": 1.0},
        ],
        "outputs": [
            {"name": "digit", "dtype": "int16", "shape": [4], "kind": "class"},
            {"name": "code", "dtype": "int16", "shape": [3], "kind": "encoded"},
            {"name": "price", "dtype": "float32", "shape": [1], "kind": "real"},
        ],
    }
    assert data.variables == ["image", "features", "digit", "code", "price"]
    assert data.partition(1)["key"] == 7


def changed(path: str, value: Any) -> Any:
    """The layout with another value at ``inputs.0.shape`` or the like; ``...`` removes it."""
    document = LAYOUT.to_json()
    *parents, last = path.split(".")
    found: Any = document
    for part in parents:
        found = found[int(part) if part.isdigit() else part]
    if value is ...:
        del found[last]
    else:
        found[last] = value
    return document


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("rows", ..., "has no number of rows"),
        ("rows", True, "has no number of rows"),
        ("inputs", {}, "has no list of inputs"),
        ("partitions", None, "has no list of partitions"),
        ("partitions.1.sha256", ..., "partition 1 needs key"),
        ("partitions.1.rows", -1, "partition 1 has a wrong value"),
        ("inputs.0.name", 3, "input has no name"),
        ("inputs.0.dtype", "float64", "input 'image' has a dtype that is not one of"),
        ("inputs.0.shape", [8, 0], "input 'image' has no shape"),
        ("inputs.0.scale", 255.0, "input 'image' should have scale 16.0"),
        ("inputs.0.preparation", ..., "input 'image' has no preparation"),
        ("inputs.1.columns", [], "input 'features' does not name its columns"),
        ("outputs.1.kind", "class", "output 'code' should have kind 'encoded'"),
        ("inputs.0.preparation.kind", "multiplied", "the kind 'multiplied' is not one of as_is, divided"),
        ("inputs.0.preparation.kind", [], "the kind [] is not one of"),
        ("inputs.0.preparation.by", ..., "divided: it takes ['by'], not []"),
        ("inputs.0.preparation.more", 1, "divided: it takes ['by'], not ['by', 'more']"),
        ("inputs.0.preparation.by", 0, "'by' must be a positive number"),
        ("inputs.0.preparation.by", "2", "'by' must be a positive number"),
        ("outputs.0.preparation.labels", ["a", "a"], "'labels' must be different texts"),
        ("outputs.0.preparation.labels", 5, "one_hot"),
        ("outputs.0.preparation.type", None, "'type' must be the name of a type"),
    ],
)
def test_a_layout_that_makes_no_sense_is_refused(path: str, value: Any, says: str) -> None:
    with pytest.raises(BadData) as error:
        Layout.from_json(changed(path, value), "the layout of 'packed'")
    assert says in error.value.message and error.value.message.startswith("the layout of 'packed'")
    assert error.value.hint == preparation.PACK_AGAIN


@pytest.mark.parametrize("document", [None, [], "layout", {}])
def test_what_is_no_layout_at_all_is_refused(document: Any) -> None:
    with pytest.raises(BadData, match="has no number of rows"):
        Layout.from_json(document)


# -- applied to columns --------------------------------------------------------------------------------------


def test_small_integers_are_divided_when_read_and_others_when_packed() -> None:
    integers, floats = applied("x", [ARRAY], Divided(255.0)), applied("features", [FLAG, REAL], Divided(255.0))
    assert (integers.dtype, floats.dtype) == ("uint8", "float32")
    assert integers.for_prediction() == {"name": "x", "dtype": "int32", "shape": [], "scale": 255.0, "factor": 1.0}
    assert floats.for_prediction() == {
        "name": "features", "dtype": "float32", "shape": [], "scale": 1.0, "factor": float32(1 / 255),
    }  # fmt: skip


def test_expressions() -> None:
    assert expression(applied("x", [ARRAY], AsIs()), alias) == "cerebro._array_bytes(s.x::integer[])"
    assert expression(applied("y", [ARRAY], Real()), alias) == "cerebro._array_bytes(s.x::real[])"
    features = applied("features", [FLAG, REAL], AsIs())
    assert expression(features, alias) == "cerebro._array_bytes(ARRAY[s.f::integer::real, s.r::real])"
    assert expression(applied("t", [TEXT], OneHot("text")), alias) == '(s.t::text)::text COLLATE "C"'


def test_the_order_of_rows_depends_on_the_columns_and_not_on_their_preparation() -> None:
    assert hashed(applied("x", [ARRAY], AsIs()), alias, "$1") == hashed(
        applied("x", [ARRAY], Divided(2.0)), alias, "$1"
    )


# -- a kind of its own ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Standardised(Preparation):
    """Numbers minus a mean, divided by a deviation."""

    kind = "standardised"
    mean: float
    deviation: float

    def dtype(self, integers: bool) -> str:
        return "float32"


@pytest.fixture
def standardised() -> Iterator[None]:
    preparation.known(Standardised)

    def expression(variable: Any, alias: Any) -> str:
        prepared: Standardised = variable.preparation
        value = f"({alias(variable.columns[0])} - {prepared.mean!r}) / {prepared.deviation!r}"
        return f"ARRAY[({value})::real]"

    EXPRESSIONS[Standardised] = expression
    yield
    del preparation.KINDS["standardised"], EXPRESSIONS[Standardised]


def test_a_new_kind_is_a_class_and_an_expression(standardised: None) -> None:
    variable = applied("age", [column("age", "integer")], Standardised(40.0, 12.5))
    variable.shape = (1,)
    assert expression(variable, alias) == "cerebro._array_bytes(ARRAY[((s.age - 40.0) / 12.5)::real])"
    document = json.loads(json.dumps(variable.documented().to_json()))
    assert Variable.from_json(document, "input") == variable.documented()
    assert document["preparation"] == {"kind": "standardised", "mean": 40.0, "deviation": 12.5}
    assert variable.for_prediction() == {
        "name": "age", "dtype": "float32", "shape": [1], "scale": 1.0, "factor": 1.0,
    }  # fmt: skip
    assert variable.encoder().take() == b""


def test_a_weight_is_a_number_times_the_factor_of_a_label() -> None:
    both = SourceVariable("w", [REAL, TEXT], Weight(("a", "it's"), (2.0, 0.5)), "float32", (1,))
    cases = """CASE (s.t::text)::text COLLATE "C" WHEN 'a' THEN 2.0 WHEN 'it''s' THEN 0.5 ELSE 1 END"""
    assert expression(both, alias) == f"cerebro._array_bytes(ARRAY[({cases} * s.r::double precision)::real])"
    none = SourceVariable("w", [], Weight(), "float32", (1,))
    assert expression(none, alias) == "cerebro._array_bytes(ARRAY[(1)::real])"
    for variable in (both, none):
        document = json.loads(json.dumps(variable.documented().to_json()))
        assert document["kind"] == "weight" and Variable.from_json(document, "x") == variable.documented()
    for wrong in (
        {"labels": ["a"], "factors": []},
        {"labels": ["a"], "factors": [-1]},
        {"labels": [1], "factors": [1]},
    ):
        with pytest.raises(BadData):
            from_json({"kind": "weight", **wrong}, "x")


def test_the_weights_of_rows_come_last_for_a_trainer() -> None:
    weight = SourceVariable("__weight__", [], Weight(), "float32", (1,)).documented()
    data = DataSet("t", replace(LAYOUT, weight=weight).to_json())
    assert data.variables == ["image", "features", "digit", "code", "price", "__weight__"]
    assert data.for_trainer["outputs"][-1] == {"name": "__weight__", "dtype": "float32", "shape": [1], "kind": "weight"}
    assert Layout.from_json(data.layout).weight == weight


def test_every_kind_has_its_expression_and_its_line_in_the_table() -> None:
    assert set(EXPRESSIONS) == set(preparation.KINDS.values())
    assert all(f"| {kind} " in str(preparation.__doc__) for kind in preparation.KINDS)
    assert [from_json(kind().to_json(), "x") for kind in (AsIs, Encoded, Real)] == [AsIs(), Encoded(), Real()]


# -- columns that are prepared one by one --------------------------------------------------------------------

NUMBER = Number("number", "real", "standard", 40.0, 12.5, 38.0, True, "error")
DATE = Date("date", "date", ("year", "week"), 18000.0, 300.0, False)
CITY = Category("text", "text", ("Rome", "D'Oh"), ("Bonn",), 0, "notice")
PREPARED = (Numbers((NUMBER, DATE)), Categories((CITY,)), Words((WordsFeature("text", "text", 8, 100),)))


@pytest.mark.parametrize("preparation", [*PREPARED, Measured(4.5, 2.0)], ids=lambda one: str(one.kind))
def test_documents_of_columns_survive_json(preparation: Preparation) -> None:
    assert from_json(json.loads(json.dumps(preparation.to_json())), "x") == preparation


def test_what_columns_become_together() -> None:
    variable = applied("numbers", [column("age", "real"), column("born", "date")], PREPARED[0])
    assert (variable.dtype, variable.shape) == ("float32", (2 + 5,))
    assert NUMBER.names == ["value", "missing"] and DATE.names[-2:] == ["week cosine", "days"]
    codes = applied("categories", [TEXT], PREPARED[1])
    assert (codes.dtype, codes.shape, codes.wire_dtype) == ("uint8", (1,), "int32")
    assert CITY.codes == {"Rome": 1, "D'Oh": 2, "Bonn": 3} and CITY.size == 4
    assert '\'{"Rome": 1, "D\'\'Oh": 2, "Bonn": 3}\'::pg_catalog.jsonb' in expression(codes, alias)
    wide = Categories((Category("text", "text", tuple(map(str, range(300))), (), 0, "notice"),))
    assert applied("categories", [TEXT], wide).dtype == "int16"


@pytest.mark.parametrize(
    ("place", "key", "value", "says"),
    [
        (0, "deviation", 0, "'deviation' and 'unit' must be positive"),
        (0, "transform", "guess", "'transform' must be one of"),
        (0, "transform", "quantile", "'knots' are missing"),
        (0, "fill", None, "a parameter is not a number"),
        (0, "prepared_as", "magic", "has no 'prepared_as'"),
        (0, "prepared_as", "category", "category takes"),
        (0, "more", 1, "number takes"),
        (1, "values", ["a", "a"], "a value is listed twice"),
        (1, "rare", [3], "must be texts"),
        (1, "buckets", -1, "'buckets' must not be negative"),
        (2, "length", 0, "'length' must be from 1"),
        (2, "family", None, "must be texts"),
    ],
)
def test_features_that_make_no_sense_are_refused(place: int, key: str, value: Any, says: str) -> None:
    document = PREPARED[place].to_json()
    document["features"][0][key] = value
    with pytest.raises(BadData, match="x has a preparation that cannot be used") as error:
        from_json(document, "x")
    assert says in error.value.message


@pytest.mark.parametrize("features", [[], None, [{}], ["number"]])
def test_lists_of_features_that_are_none_are_refused(features: Any) -> None:
    with pytest.raises(BadData):
        from_json({"kind": "numbers", "features": features}, "x")
    with pytest.raises(BadData, match="its features must be category"):
        from_json({"kind": "categories", "features": PREPARED[0].to_json()["features"]}, "x")
