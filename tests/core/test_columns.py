"""What a column becomes, by its type and its values; and which transform a distribution asks for."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import pytest

from cerebro_db.core import codec
from cerebro_db.core.errors import BadData, InvalidArgument
from cerebro_db.core.packing import columns as deciding
from cerebro_db.core.packing import identifiers
from cerebro_db.core.packing.columns import Found, Ignored, Wish, decide, family_of, inputs_of, wishes
from cerebro_db.core.packing.distributions import Bin, Distribution, chosen, edges
from cerebro_db.core.packing.features import CategoryFeature, DateFeature, Feature, NumberFeature, WordsFeature
from cerebro_db.core.sql import literal, shown
from cerebro_db.core.sql_types import SqlType


def distribution(values: list[float]) -> Distribution:
    counted = {value: values.count(value) for value in set(values)} if len(values) < 2000 else dict.fromkeys(values, 1)
    return Distribution(Bin(rows, value, 0.0, value, value) for value, rows in counted.items())


def found(
    type: str = "integer", numbers: list[float] | None = None, texts: list[str] | None = None, **more: Any
) -> Found:
    family = family_of(type, "S" if texts is not None else "N", None) or ""
    counted = sorted(((t, (texts or []).count(t)) for t in set(texts or [])), key=lambda one: (-one[1], one[0]))
    given: dict[str, Any] = {
        "name": "x", "type": type, "shown": type, "family": family, "is_key": False, "refers": False, "nulls": 0,
        "not_finite": 0, "numbers": distribution(numbers or []), "with_time": False, "values": counted[:1000],
        "texts": len(texts or []), "groups": len(set(texts or numbers or [])),
        "words_in_all": sum(len(text.split()) for text in texts or []), "look_like_numbers": 0,
    }  # fmt: skip
    return Found(**{**given, **more})


def became(column: Found, wish: Wish | None = None, named: bool = False) -> Any:
    return decide(column, wish or Wish(), named)


# -- transforms ----------------------------------------------------------------------------------------------


def test_a_transform_is_chosen_by_the_tails() -> None:
    draw = random.Random(1)
    normal = [draw.gauss(50, 9) for _ in range(3000)]
    plain = chosen(distribution(normal))
    assert plain.transform == "standard"
    assert plain.mean == pytest.approx(sum(normal) / 3000, abs=1e-2) and plain.deviation == pytest.approx(9, rel=0.05)
    prices = [math.exp(draw.gauss(3, 1.5)) for _ in range(3000)]
    logarithmic = chosen(distribution(prices))
    scaled = [(math.log1p(x / logarithmic.unit) - logarithmic.mean) / logarithmic.deviation for x in prices]
    assert logarithmic.transform == "log" and max(map(abs, scaled)) < 8
    wild = [math.copysign(math.exp(draw.gauss(0, 30) ** 2 / 200), draw.gauss(0, 1)) for _ in range(3000)]
    quantile = chosen(distribution(wild))
    assert quantile.transform == "quantile" and -2.6 < quantile.scores[0] < -2.4 < 2.4 < quantile.scores[-1] < 2.6
    assert list(quantile.scores) == sorted(quantile.scores)


@pytest.mark.parametrize("values", [[0.0, 1.0], [5.0] * 50 + [1e140], [-1e-300, 1e-300], [7.0], [1e9, 1e9 + 1]])
@pytest.mark.parametrize("wanted", [None, "standard", "log", "quantile"])
def test_odd_distributions_have_a_transform(values: list[float], wanted: str | None) -> None:
    one = chosen(distribution(values), wanted)
    made = NumberFeature("number", SqlType("real"), one.transform, one.mean, one.deviation, 0.0, False, "error",
                  one.unit, one.knots, one.scores, edges(distribution(values), one))  # fmt: skip
    assert codec.read(Feature, json.loads(json.dumps(codec.encode(made))), "x") == made


def test_edges_are_quantiles_of_what_values_become() -> None:
    draw = random.Random(2)
    prices = [math.exp(draw.gauss(3, 1.5)) for _ in range(4000)]
    for wanted in ("standard", "log", "quantile"):
        one = chosen(distribution(prices), wanted)
        found = edges(distribution(prices), one)
        became = sorted(one.of(price) for price in prices) if wanted != "quantile" else one.scores
        assert found[0] == pytest.approx(became[0], abs=0.006) and found[-1] == pytest.approx(became[-1], abs=0.006)
        if wanted == "log":
            assert len(found) == 33 and found[8] == pytest.approx(became[1000], abs=0.02)
    few = distribution([0.0] * 60 + [1.0] * 30 + [4.0] * 10)
    one = chosen(few)
    assert edges(few, one) == tuple(round(one.of(value), 2) for value in (0.0, 1.0, 4.0))


def test_quantiles_within_bins() -> None:
    bins = Distribution([Bin(10, 5.0, 8.0, 0.0, 10.0), Bin(10, 20.0, 0.0, 20.0, 20.0)])
    assert [bins.quantile(share) for share in (0.0, 0.25, 0.5, 0.75, 1.0)] == [0.0, 5.0, 10.0, 20.0, 20.0]
    assert bins.moments().mean == 12.5 and bins.moments().deviation == pytest.approx(math.sqrt(4 + 7.5**2))


# -- decisions -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (found("real", [1.0, 2.5, 3.0]), NumberFeature),
        (found("integer", [float(i % 50) for i in range(500)]), NumberFeature),
        (found("integer", [float(i % 3) for i in range(500)]), CategoryFeature),
        (found("integer", [float(i % 50) for i in range(500)], refers=True), CategoryFeature),
        (found("real", [float(i % 3) for i in range(500)]), NumberFeature),
        (found("text", texts=["a", "b"] * 40), CategoryFeature),
        (found("text", texts=[f"this is the text number {i}" for i in range(90)]), WordsFeature),
        (found("text", texts=[f"this is the text number {i % 90}" for i in range(4 * 90)]), WordsFeature),
        (found("text", texts=[f"this is the text number {i % 90}" for i in range(5 * 90)]), CategoryFeature),
        (found("text", texts=["one of a few long texts"] * 50 + ["and one more of them"] * 50), CategoryFeature),
        (found("date", [float(i) for i in range(90)]), DateFeature),
        (found("interval", [1.0, 2.0]), NumberFeature),
        (found("uuid", texts=["a", "b"] * 30), CategoryFeature),
        (found("text", texts=[f"u{i}" for i in range(90)]), Ignored),
        (found("integer", [float(i % 50) for i in range(500)], is_key=True), Ignored),
        (found("integer", [float(i) for i in range(500)], identifies="it numbers the rows"), Ignored),
        (found("text", texts=["same"] * 90), Ignored),
        (found("text", texts=["same"] * 90, nulls=10), CategoryFeature),
        (found("real", [], nulls=10), Ignored),
    ],
)  # fmt: skip
def test_columns_become_what_suits_them(column: Found, expected: type) -> None:
    assert type(became(column)) is expected


def test_a_wish_goes_before_what_is_usual() -> None:
    assert isinstance(became(found("integer", [1.0, 2.0] * 50), Wish("number")), NumberFeature)
    assert isinstance(became(found("integer", [1.0, 2.0], is_key=True), Wish("number")), NumberFeature)
    assert isinstance(became(found("text", texts=["a"] * 30), Wish("words", {"length": 3})), WordsFeature)
    assert became(found("real", [1.0]), Wish("ignore")) == Ignored("as prepare says")
    assert became(found("real", [1.0, 2.0]), Wish("number", {"transform": "log"})).transform == "log"


def test_ids_and_length_follow_the_data_in_few_steps() -> None:
    def words(words: int, different: int, **arguments: int) -> tuple[int, int]:
        one = found("text", texts=[f"a text of row {i}" for i in range(90)], length=words, different=different)
        feature = became(one, Wish("words", arguments) if arguments else None)
        return feature.length, feature.ids

    assert words(0, 0) == words(5, 40) == (8, 1000)
    assert words(73, 1900) == words(80, 1990) == (96, 2000)  # a few more words change nothing
    assert words(5000, 10**6) == (200, 20_000)
    assert words(73, 1900, ids=7) == (96, 7) and words(73, 1900, length=9) == (9, 2000)


def test_codes_by_name() -> None:
    codes = "shop_id shopId id Zip zip_code postcode postalCode area.code plz county_fips userid"
    others = "paid grid area_codes zipper decoded id_count code_length humid children_no date_key index price"
    assert [name for name in f"{codes} {others}".split() if identifiers.named_as_codes(name)] == codes.split()
    numbers = [float(1000 + i % 50) for i in range(500)]
    assert isinstance(became(found("integer", numbers, named_as_codes=True)), CategoryFeature)
    for name, values, wanted in (("shop_id", 100, True), ("shop_id", 101, False), ("shops", 50, False)):
        one = found("integer", [float(i % values) for i in range(500)], name=name)
        assert deciding.values_may_be_codes(one) is wanted
        assert not deciding.values_may_be_codes(found("double precision", one.numbers.values, name=name))


def test_few_numbers_that_others_have_not_are_no_category() -> None:
    def month(**more: Any) -> type:
        return type(became(found("integer", [float(i % 7) for i in range(500)], **more)))

    assert month() is month(new=0.04) is month(new=0.009, later=True) is CategoryFeature
    assert month(new=0.06) is month(new=0.011, later=True) is NumberFeature
    assert month(new=0.5, refers=True) is CategoryFeature
    one = found("integer", [1.0, 2.0] * 50, new=0.5)
    assert isinstance(became(one, Wish("category")), CategoryFeature)


def test_a_wish_for_a_type_makes_no_input_of_what_says_nothing() -> None:
    of_type = Wish("category", of_type=True)
    assert isinstance(became(found("integer", [1.0, 2.0] * 50, is_key=True), of_type), Ignored)
    assert isinstance(became(found("integer", [1.0] * 50), of_type), Ignored)
    assert isinstance(became(found("integer", texts=[str(i) for i in range(50)]), of_type), Ignored)
    names = found("text", texts=[f"u{i}" for i in range(90)])
    assert isinstance(became(names, of_type), Ignored)
    assert isinstance(became(names, Wish("words", of_type=True)), WordsFeature)  # its words may come again
    assert isinstance(became(names, of_type, named=True), CategoryFeature)


def test_rare_values_share_a_code_and_long_tails_are_hashed() -> None:
    few = became(found("text", texts=["a"] * 300 + ["b"] * 290 + ["c", "d"]))
    assert (few.values, few.rare, few.buckets, few.size) == (("a", "b"), ("c", "d"), 0, 4)
    tail = became(found("text", texts=["a"] * 300 + [f"v{i % 1500}" for i in range(3000)]))
    assert tail.values == ("a",) and tail.rare == () and (tail.first_bucket, tail.size) == (2, 258)
    numbers = became(found("integer", [3.0] * 40 + [-1.0] * 60))
    assert numbers.values == ("-1", "3")


def test_numbers_that_are_not_finite_are_refused_or_count_as_null() -> None:
    odd = found("real", [1.0, 2.0], not_finite=3)
    with pytest.raises(BadData, match="'x' is NaN or infinite in 3 of 5 rows"):
        became(odd)
    assert became(odd, Wish("number", {"not_finite": "null"})).missing
    with pytest.raises(BadData, match="no finite value"):
        became(found("real", [], not_finite=3), Wish("number", {"not_finite": "null"}))
    with pytest.raises(BadData, match="NULL in all 10 rows"):
        became(found("real", [], nulls=10), named=True)


def test_inputs_are_grouped() -> None:
    number, code, words = (
        became(found("real", [1.0, 2.0])), became(found("text", texts=["a", "b"] * 30)),
        WordsFeature("text", SqlType("text"), 8, 100),
    )  # fmt: skip
    groups = inputs_of([("t", words), ("c", code), ("n", number), ("m", number)])
    assert [(name, [one for one, _ in pairs]) for name, pairs in groups] == [
        ("numbers", ["n", "m"]), ("categories", ["c"]), ("t", ["t"])
    ]  # fmt: skip


def test_a_text_with_the_name_of_a_group_is_apart_from_the_group() -> None:
    number, words = became(found("real", [1.0, 2.0])), WordsFeature("text", SqlType("text"), 8, 100)
    for order in ([("numbers", words), ("n", number)], [("n", number), ("numbers", words)]):
        assert inputs_of(order) == [("numbers", [("n", number)]), ("numbers", [("numbers", words)])]


# -- wishes --------------------------------------------------------------------------------------------------

COLUMNS: dict[str, tuple[str, str | None]] = {
    "zip": ("text", "text"),
    "city": ("text", "text"),
    "number": ("json", None),
}


def test_a_wish_names_a_column_or_a_type() -> None:
    found = wishes({"zip": {"buckets": 9}, "text": {"as": "words", "length": 5}}, COLUMNS, "prepare")
    assert found == {"zip": Wish("category", {"buckets": 9}), "city": Wish("words", {"length": 5}, of_type=True)}
    assert wishes({"number": "ignore"}, COLUMNS, "prepare") == {"number": Wish("ignore")}
    assert wishes(None, COLUMNS, "prepare") == {}


def test_a_number_has_the_scale_that_is_wanted() -> None:
    """For weights that were trained on other rows. Only the fill comes from the rows."""
    (wish,) = wishes({"zip": {"mean": 0, "deviation": 1}}, COLUMNS, "prepare").values()
    assert wish == Wish("number", {"transform": "standard", "mean": 0, "deviation": 1})
    one = became(found("real", [2.0, 4.0, 9.0], nulls=1), wish)
    assert (one.transform, one.mean, one.deviation, one.fill) == ("standard", 0.0, 1.0, 4.0)
    assert one.edges[0] == 2 and one.edges[-1] == 9
    half = became(found("real", [2.0, 4.0]), Wish("number", {"transform": "standard", "mean": 1}))
    assert (half.mean, half.deviation) == (1.0, 1.0)


@pytest.mark.parametrize(
    "document", [[], {"x": "words"}, {"zip": None}, {"zip": {}}, {"zip": {"as": 3}}, {"zip": {"length": "8"}},
                 {"zip": {"as": "category", "length": 8}}, {"zip": {"unknown": "maybe"}}, {"zip": {"values": True}},
                 {"zip": {"cycles": ["century"]}}, {"zip": {"cycles": "day"}},
                 {"zip": {"mean": True}}, {"zip": {"mean": "0"}}, {"zip": {"deviation": 0}},
                 {"zip": {"deviation": 1e301}},
                 {"zip": {"as": "log", "mean": 0}}, {"zip": {"transform": "quantile", "deviation": 1}},
                 {"zip": {"as": "category", "mean": 0}}]
)  # fmt: skip
def test_wishes_that_make_no_sense_are_refused(document: Any) -> None:
    with pytest.raises(InvalidArgument) as error:
        wishes(document, COLUMNS, "prepare")
    assert error.value.hint


def test_texts_as_constants() -> None:
    assert shown(literal("it's")) == "'it''s'"
    assert shown(literal("a\\b'c")) == "E'a\\\\b''c'"
