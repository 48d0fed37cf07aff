"""The document of what a column becomes: it survives JSON, wrong ones are refused, and a kind is one class."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any

import pytest

from cerebro_db.core import codec
from cerebro_db.core.codec import Number, Within
from cerebro_db.core.errors import BadData
from cerebro_db.core.packing import preparation
from cerebro_db.core.packing.buffer_format import Unusable, float32
from cerebro_db.core.packing.features import CategoryFeature, DateFeature, MeansFeature, NumberFeature, WordsFeature
from cerebro_db.core.packing.layout import DataSet, Layout, Partition, Variable
from cerebro_db.core.packing.preparation import (
    AsIs,
    Categories,
    Divided,
    Encoded,
    Measured,
    Numbers,
    OneHot,
    Pixels,
    Preparation,
    Real,
    Weight,
    Words,
)
from cerebro_db.core.sql import Sql, shown, sql, sql_of_user
from cerebro_db.core.sql_types import TEXT as TEXT_TYPE
from cerebro_db.core.sql_types import SqlType
from cerebro_plpy.database.relations import Column
from cerebro_plpy.packing.rows.preparation import EXPRESSIONS, SourceVariable, applied, expression, hashed, packed_value

LAYOUT = Layout(
    inputs=(
        Variable("image", "uint8", (8, 8), ("image",), Divided(16.0)),
        Variable("features", "float32", (2,), ("a", "b c"), AsIs()),
    ),
    outputs=(
        Variable("digit", "int16", (4,), ("digit",), OneHot(TEXT_TYPE, ("one", "two's", '"3"'))),
        Variable("code", "int16", (3,), ("code",), Encoded()),
        Variable("price", "float32", (1,), ("price",), Real()),
    ),
    rows=3,
    partitions=(Partition(0, 2, 1, 10, "ab" * 32), Partition(7, 1, 1, 5, "cd" * 32)),
)


def column(name: str, kind: str, element: str | None = None) -> Column:
    return Column(name, kind, kind, "A" if element else "N", element)


ARRAY, REAL, FLAG, TEXT = (
    column("x", "integer[]", "integer"), column("r", "real"), column("f", "boolean"), column("t", "text"),
)  # fmt: skip


def alias(column: Column) -> Sql:
    return sql("s.{name}", name=sql_of_user(column.name))


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
    data = DataSet("packed", LAYOUT)
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
    assert data.partitions[1].key == 7


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
        ("rows", ..., "lacks the field rows"),
        ("rows", True, "rows has to be a whole number"),
        ("rows", 4, "partitions has to add up to the 4 rows"),
        ("inputs", {}, "inputs has to be a list"),
        ("partitions", None, "partitions has to be a list"),
        ("partitions.1.sha256", ..., "partitions[1] lacks the field sha256"),
        ("partitions.1.sha256", "x", "partitions[1].sha256 has to be a checksum of 64 hexadecimal digits"),
        ("partitions.1.rows", -1, "partitions[1].rows has to be from 0 to 4611686018427387904"),
        ("partitions.1.key", 0, "partitions has to have different keys"),
        ("inputs.0.name", 3, "inputs[0].name has to be a text"),
        ("inputs.0.name", "a" * 64, 'inputs[0].name cannot be used: "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'),
        ("inputs.0.name", "ä" * 63, 'inputs[0].name cannot be used: "ääääääääääääääääääääääääääääääääääääääääääääääää'),
        ("inputs.0.name", "digit", "has two variables of one name"),
        ("inputs.0.columns", ["a"], "has two inputs made of one column"),
        ("inputs.0.dtype", "float64", "inputs[0].dtype has to be one of uint8, int16, int32, float32"),
        ("inputs.0.shape", [8, 0], "inputs[0].shape[1] has to be from 1 to 2147483647"),
        ("inputs.0.shape", [2**31, 2**31], "inputs[0].shape[0] has to be from 1 to 2147483647"),
        ("inputs.1.shape", [3], "inputs 'features'.shape cannot be [3]"),
        ("inputs.0.scale", 255.0, "inputs[0].scale has to be 16.0, by its preparation"),
        ("inputs.0.preparation", ..., "inputs[0] lacks the field preparation"),
        ("inputs.1.columns", [], "inputs[1].columns has to have 1 to 1600 items"),
        ("inputs.1.columns", ["a", "a"], "inputs[1].columns has the same item twice"),
        ("outputs.1.kind", "class", "outputs[1].kind has to be 'encoded', by its preparation"),
        (
            "inputs.0.preparation.kind",
            "multiplied",
            "inputs[0].preparation.kind has to be one of as_is, divided, pixels, one_hot, enc",
        ),
        (
            "inputs.0.preparation.kind",
            [],
            "inputs[0].preparation.kind has to be one of as_is, divided, pixels, one_hot, enc",
        ),
        ("inputs.0.preparation.kind", "one_hot", "inputs[0].preparation lacks the field type"),
        ("inputs.0.preparation.kind", "fold", "inputs[0].preparation lacks the field folds"),
        ("outputs.1.preparation.kind", "as_is", "outputs[1].scale has to be 1.0, by its preparation"),
        ("inputs.0.preparation.by", ..., "inputs[0].preparation lacks the field by"),
        ("inputs.0.preparation.more", 1, 'inputs[0].preparation has no field "more"'),
        ("inputs.0.preparation.by", 0, "inputs[0].preparation.by has to be from 1e-37 to 3.5e+38"),
        ("inputs.0.preparation.by", "2", "inputs[0].preparation.by has to be a number"),
        ("inputs.0.preparation.by", 10**400, "inputs[0].preparation.by is too large for a number of 64 bits"),
        ("outputs.0.preparation.labels", ["a", "a"], "outputs[0].preparation.labels has the same item twice"),
        (
            "outputs.0.preparation.labels",
            ["a", None],
            "outputs[0].preparation.labels has a null that is not the first item",
        ),
        ("outputs.0.preparation.labels", 5, "outputs[0].preparation.labels has to be a list"),
        ("outputs.0.preparation.labels", list("abcde"), "outputs 'digit'.shape cannot be [4]"),
        (
            "outputs.0.preparation.type",
            None,
            "outputs[0].preparation.type cannot be used: null is not the name of an SQL type ",
        ),
        (
            "outputs.0.preparation.type",
            "text[], (SELECT 1) AS hacked",
            'outputs[0].preparation.type cannot be used: "text[], (SELECT 1) AS hacked" is no',
        ),
        ("more", 1, 'has no field "more"'),
    ],
)
def test_a_layout_that_makes_no_sense_is_refused(path: str, value: Any, says: str) -> None:
    with pytest.raises(BadData) as error:
        Layout.from_json(changed(path, value), "the layout of 'packed'")
    assert says in error.value.message and error.value.message.startswith("the layout of 'packed'")
    assert error.value.hint == preparation.PACK_AGAIN


@pytest.mark.parametrize("document", [None, [], "layout", {}])
def test_what_is_no_layout_at_all_is_refused(document: Any) -> None:
    with pytest.raises(BadData, match="has to be a JSON object|lacks the field"):
        Layout.from_json(document)


def read(document: Any) -> Any:
    return codec.read(Preparation, document, "x")


def again(given: Preparation) -> Preparation:
    """A preparation that went through JSON."""
    found: Preparation = read(json.loads(json.dumps(codec.encode(given))))
    return found


def read_input(document: Any) -> Variable:
    """An input that a layout has."""
    output = codec.encode(Variable("y", "float32", (1,), ("y",), Real()))
    return Layout.from_json({"inputs": [document], "outputs": [output], "rows": 0, "partitions": []}).inputs[0]


# -- applied to columns --------------------------------------------------------------------------------------


def test_small_integers_are_divided_when_read_and_others_when_packed() -> None:
    integers, floats = applied("x", [ARRAY], Divided(255.0)), applied("features", [FLAG, REAL], Divided(255.0))
    assert (integers.dtype, floats.dtype) == ("uint8", "float32")
    assert vars(integers.for_prediction()) == {
        "name": "x",
        "dtype": "int32",
        "shape": [],
        "scale": 255.0,
        "factor": 1.0,
    }
    assert vars(floats.for_prediction()) == {
        "name": "features", "dtype": "float32", "shape": [], "scale": 1.0, "factor": float32(1 / 255),
    }  # fmt: skip


def test_expressions() -> None:
    assert shown(expression(applied("x", [ARRAY], AsIs()), alias)) == "cerebro_internal._array_bytes(s.x::integer[])"
    assert shown(expression(applied("y", [ARRAY], Real()), alias)) == "cerebro_internal._array_bytes(s.x::real[])"
    features = applied("features", [FLAG, REAL], AsIs())
    assert shown(expression(features, alias)) == "cerebro_internal._array_bytes(ARRAY[s.f::integer::real, s.r::real])"
    label = applied("t", [TEXT], OneHot(TEXT_TYPE))
    label.spellings = {"a": 0, "b": 1}
    assert shown(packed_value(label, alias, uneven=False)) == (
        "(CASE (s.t::text)::text COLLATE \"C\" WHEN 'a' THEN 0 WHEN 'b' THEN 1 END)::smallint"
    )
    label.spellings[None] = 2
    assert "IS NULL THEN 2 ELSE" in shown(packed_value(label, alias, uneven=False))
    assert shown(packed_value(applied("x", [ARRAY], AsIs()), alias, uneven=False)) == "s.x::integer[]"


def test_pixels_are_bytes_with_their_number() -> None:
    variable = applied("b", [column("b", "bytea")], Pixels(255.0))
    variable.shape = (2, 1)
    assert shown(expression(variable, alias)) == (
        "pg_catalog.int4send(pg_catalog.octet_length(s.b::bytea)) OPERATOR(pg_catalog.||) s.b::bytea"
    )
    assert vars(variable.for_prediction()) == {
        "name": "b", "dtype": "uint8", "shape": [2, 1], "scale": 255.0, "factor": 1.0,
    }  # fmt: skip
    assert variable.bytes_per_row == 2 and variable.is_large
    document = json.loads(json.dumps(codec.encode(variable.documented())))
    assert document["preparation"] == {"kind": "pixels", "by": 255.0}
    assert read_input(document) == variable.documented()
    for by in (0.0, -1.0, "255", None, 1e39):
        with pytest.raises(BadData):
            read({"kind": "pixels", "by": by})
    for wrong in ({"dtype": "int16"}, {"shape": []}, {"columns": ["a", "b"]}, {"scale": 1.0}):
        with pytest.raises(BadData):
            read_input({**document, **wrong})
    encoder = variable.encoder()
    encoder.add(b"abcd", 2)
    assert encoder.take(1) == b"ab" and encoder.take(1) == b"cd" and encoder.take(1) == b""
    for value in (b"aba", b"ababc", b"ab"):
        with pytest.raises(Unusable) as wrong_value:
            encoder.add(value, 2)
        assert wrong_value.value.what == "bytes"


def test_the_order_of_rows_depends_on_the_columns_and_not_on_their_preparation() -> None:
    assert hashed(applied("x", [ARRAY], AsIs()), alias, sql("$1")) == hashed(
        applied("x", [ARRAY], Divided(2.0)), alias, sql("$1")
    )


# -- a kind of its own ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Standardised(Preparation):
    """Numbers minus a mean, divided by a deviation."""

    kind = "standardised"
    mean: Number
    deviation: Annotated[float, Within(1e-300, 1e300)]

    def dtype(self, integers: bool) -> str:
        return "float32"


@pytest.fixture
def standardised() -> Iterator[None]:
    preparation.known(Standardised)

    def expression(variable: Any, alias: Any) -> Sql:
        prepared: Standardised = variable.preparation
        return sql(
            "ARRAY[(({value} - {mean}) / {deviation})::real]",
            value=alias(variable.columns[0]), mean=prepared.mean, deviation=prepared.deviation,
        )  # fmt: skip

    EXPRESSIONS[Standardised] = expression
    yield
    del preparation.KINDS["standardised"], EXPRESSIONS[Standardised]


def test_a_new_kind_is_a_class_and_an_expression(standardised: None) -> None:
    variable = applied("age", [column("age", "integer")], Standardised(40.0, 12.5))
    variable.shape = (1,)
    assert shown(expression(variable, alias)) == "cerebro_internal._array_bytes(ARRAY[((s.age - 40.0) / 12.5)::real])"
    document = json.loads(json.dumps(codec.encode(variable.documented())))
    assert read_input(document) == variable.documented()
    assert document["preparation"] == {"kind": "standardised", "mean": 40.0, "deviation": 12.5}
    assert vars(variable.for_prediction()) == {
        "name": "age", "dtype": "float32", "shape": [1], "scale": 1.0, "factor": 1.0,
    }  # fmt: skip
    assert variable.encoder().take(0) == b""


def test_a_weight_is_a_number_times_the_factor_of_a_label() -> None:
    both = SourceVariable("w", [REAL, TEXT], Weight(("a", "it's"), (2.0, 0.5)), "float32", (1,))
    cases = """CASE (s.t::text)::text COLLATE "C" WHEN 'a' THEN 2.0 WHEN 'it''s' THEN 0.5 ELSE 1 END"""
    assert (
        shown(expression(both, alias))
        == f"cerebro_internal._array_bytes(ARRAY[({cases} * s.r::double precision)::real])"
    )
    none = SourceVariable("w", [], Weight(), "float32", (1,))
    assert shown(expression(none, alias)) == "cerebro_internal._array_bytes(ARRAY[(1)::real])"
    for variable in (both, none):
        document = json.loads(json.dumps(codec.encode(variable.documented())))
        assert document["kind"] == "weight" and codec.read(Variable, document, "x") == variable.documented()
    for wrong in (
        {"labels": ["a"], "factors": []},
        {"labels": ["a"], "factors": [-1]},
        {"labels": [1], "factors": [1]},
    ):
        with pytest.raises(BadData):
            read({"kind": "weight", **wrong})


def test_the_weights_of_rows_come_last_for_a_trainer() -> None:
    weight = SourceVariable("__weight__", [], Weight(), "float32", (1,)).documented()
    data = DataSet("t", replace(LAYOUT, weight=weight))
    assert data.variables == ["image", "features", "digit", "code", "price", "__weight__"]
    assert data.for_trainer["outputs"][-1] == {"name": "__weight__", "dtype": "float32", "shape": [1], "kind": "weight"}
    assert Layout.from_json(data.layout.to_json()).weight == weight


def test_every_kind_has_its_expression_and_its_line_in_the_table() -> None:
    assert set(EXPRESSIONS) == set(preparation.KINDS.values())
    assert all(f"| {kind} " in str(preparation.__doc__) for kind in preparation.KINDS)
    assert [again(kind()) for kind in (AsIs, Encoded, Real)] == [AsIs(), Encoded(), Real()]


# -- columns that are prepared one by one --------------------------------------------------------------------

NUMBER = NumberFeature("number", SqlType("real"), "standard", 40.0, 12.5, 38.0, True, "error")
DATE = DateFeature("date", SqlType("date"), ("year", "week"), 18000.0, 300.0, False)
CITY = CategoryFeature("text", TEXT_TYPE, ("Rome", "D'Oh"), ("Bonn",), 0, "notice")
MEANS = MeansFeature("text", TEXT_TYPE, ("yes", "no"), ("Rome", "D'Oh"), ((0.5, -1.25), (1.0, 0.0)))
PREPARED = (
    Numbers((NUMBER, DATE)),
    Categories((CITY,)),
    Words((WordsFeature("text", TEXT_TYPE, 8, 100),)),
    Numbers((MEANS,)),
)


@pytest.mark.parametrize("preparation", [*PREPARED, Measured(4.5, 2.0)], ids=lambda one: str(one.kind))
def test_documents_of_columns_survive_json(preparation: Preparation) -> None:
    assert again(preparation) == preparation


def test_what_columns_become_together() -> None:
    variable = applied("numbers", [column("age", "real"), column("born", "date")], PREPARED[0])
    assert (variable.dtype, variable.shape) == ("float32", (2 + 5,))
    assert NUMBER.names == ["value", "missing"] and DATE.names[-2:] == ["week cosine", "days"]
    codes = applied("categories", [TEXT], PREPARED[1])
    assert (codes.dtype, codes.shape, codes.wire_dtype) == ("uint8", (1,), "int32")
    assert CITY.codes == {"Rome": 1, "D'Oh": 2, "Bonn": 3} and CITY.size == 4
    assert "WHEN 'Rome' THEN 1 WHEN 'D''Oh' THEN 2 WHEN 'Bonn' THEN 3 END" in shown(expression(codes, alias))
    many = CategoryFeature("text", TEXT_TYPE, ("Rome", "D'Oh", *map(str, range(30))), (), 0, "notice")
    looked_up = shown(expression(applied("categories", [TEXT], Categories((many,))), alias))
    assert '\'{"Rome": 1, "D\'\'Oh": 2, "0": 3, ' in looked_up and "::pg_catalog.jsonb" in looked_up
    wide = Categories((CategoryFeature("text", TEXT_TYPE, tuple(map(str, range(300))), (), 0, "notice"),))
    assert applied("categories", [TEXT], wide).dtype == "int16"
    means = applied("numbers", [TEXT], PREPARED[3])
    assert means.shape == (2,) and MEANS.names == ["mean yes", "mean no"] and PREPARED[3].bins == [(), ()]
    assert "WHEN 'D''Oh' THEN 2 END" in shown(expression(means, alias))


@pytest.mark.parametrize(
    ("place", "key", "value", "says"),
    [
        (0, "deviation", 0, "deviation has to be from 1e-305 to 1e+300"),
        (0, "mean", 10**400, "mean is too large for a number of 64 bits"),
        (0, "mean", float("nan"), "mean has to be from -1e+300 to 1e+300"),
        (0, "transform", "guess", "transform has to be one of standard, log, quantile"),
        (0, "transform", "quantile", "knots has to have two items at least"),
        (0, "fill", None, "fill has to be a number"),
        (0, "edges", [0.0, 0.001], "edges has to ascend, each by at least 0.005"),
        (0, "edges", [0.0, 101.0], "edges[1] has to be from -100.0 to 100.0"),
        (0, "prepared_as", "magic", "prepared_as has to be one of number, date, category, words, means"),
        (0, "prepared_as", "category", "lacks the field values"),
        (0, "more", 1, 'has no field "more"'),
        (0, "type", "text", "type is text, which is not of the family number"),
        (1, "values", ["a", "a"], "values has the same item twice"),
        (1, "rare", ["Rome"], "rare has a value that is in 'values'"),
        (1, "rare", [3], "rare[0] has to be a text"),
        (1, "buckets", -1, "buckets has to be from 0 to 1000000"),
        (1, "type", "integer", "type is integer, which is not of the family text"),
        (
            1,
            "type",
            "x; DROP TABLE y",
            'type cannot be used: "x; DROP TABLE y" is not the name of an SQL type as Postgre',
        ),
        (2, "length", 0, "length has to be from 1 to 10000"),
        (2, "family", None, "family has to be a text"),
        (3, "values", ["a", "a"], "values has the same item twice"),
        (3, "values", ["a"], "means has to have one list for each of 'of', with one number for each of 'values'"),
        (3, "of", ["a"], "means has to have one list for each of 'of', with one number for each of 'values'"),
        (3, "of", ["a"] * 9, "of has to have 1 to 8 items"),
        (3, "means", [[1.0, 2.0], [101.0, 0.0]], "means[1][0] has to be from -100.0 to 100.0"),
        (3, "values", list(map(str, range(10_001))), "values has to have 1 to 10000 items"),
    ],
)
def test_features_that_make_no_sense_are_refused(place: int, key: str, value: Any, says: str) -> None:
    document = codec.encode(PREPARED[place])
    document["features"][0][key] = value
    with pytest.raises(BadData, match=r"^x: features\[0\]") as error:
        read(document)
    assert says in error.value.message


@pytest.mark.parametrize("features", [[], None, [{}], ["number"]])
def test_lists_of_features_that_are_none_are_refused(features: Any) -> None:
    with pytest.raises(BadData):
        read({"kind": "numbers", "features": features})
    others = codec.encode(PREPARED[0])["features"]
    with pytest.raises(BadData, match="features has to be category"):
        read({"kind": "categories", "features": others})
