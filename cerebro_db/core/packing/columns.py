"""Decides what each column of a table becomes as an input: by its type, its values and the user's wishes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..documents import LARGEST_NUMBER
from ..errors import BadData, InvalidArgument
from ..records import dataclass, field
from ..sql_types import BYTES, DATES, INTEGERS, LABELS, OTHER_NUMBERS, REALS, TIME, WITH_ZONE, SqlType
from ..word_pieces import what_is_wrong
from . import identifiers, images, quantiles
from .buffer_format import LARGEST_BYTES, elements
from .distributions import FEW_VALUES, Distribution, Transform, chosen, edges, rounded, six_digits
from .features import CYCLES, LEAST, TRANSFORMS, CategoryFeature, DateFeature, Feature, NumberFeature, WordsFeature
from .identifiers import FEWEST_ROWS
from .preparation import LARGEST_DIVISOR, LEAST_DIVISOR, Pixels

MOST_VALUES = 1000  # of a category; further values share hash buckets
BUCKETS = 256
# Shares of the rows for validation that have a new value: with more of them, whole numbers are no categories.  Of later
# rows, those to come have more new values than those for validation.
MOST_NEW, MOST_NEW_LATER = 0.05, 0.01
MOST_SIZES = 6  # of a shape, as PostgreSQL's arrays have
MANY_WORDS = 4  # per row, on average: a text of so many words is no category
# So are shorter ones, such as titles, if this share of their words is in other texts, too.
FEW_WORDS, MOSTLY_REPEATED = 1.5, 0.5
# Words per row, and ids for words.  There are few steps, so that a few more rows seldom change them.
LENGTHS = (8, 12, 16, 24, 32, 48, 64, 96, 128, 160, 200)
IDS = (1000, 2000, 4000, 8000, 20_000)
# A category with more values than this gets means of the targets, if its values have so many rows on average.
FEW_WITHOUT_MEANS, ROWS_PER_MEAN = 20, 5
ROWS_PER_CODE = 5  # on average, of whole numbers that are codes by their name

DAYS_OF = {"year": 365.0, "month": 30.0, "week": 7.0, "day": 1.0}  # of the cycles of a date
CHOICES = ("number", "category", "date", "words", "pixels", "ignore", *TRANSFORMS)
ARGUMENTS = {
    "number": ("transform", "not_finite", "mean", "deviation", "quantiles"),
    "category": ("values", "least", "buckets", "unknown", "means"),
    "date": ("cycles",),
    "words": ("length", "ids", "vocabulary"),
    "pixels": ("shape", "divide_by"),
    "ignore": (),
}


def family_of(type: str, category: str, element: str | None) -> str | None:
    """Types of one family can stand for each other in predictions; None: there is no preparation.

    The families ``array`` and ``bytes`` become inputs of their own, and nothing else.
    """
    if type == BYTES:
        return "bytes"
    if element is not None:
        return "array" if element in (*INTEGERS, *REALS, "boolean") else None
    if type in (*INTEGERS, *REALS):
        return "number"
    if type in DATES:
        return "date"
    if type == TIME:
        return "time"
    if type in OTHER_NUMBERS:
        return OTHER_NUMBERS[type]
    if category in "SE":
        return "text"
    return type if type in ("boolean", *LABELS) else None


def need_a_zone(here: str, there: str) -> bool:
    """Whether a value of one of these types becomes one of the other in a time zone only, which nobody has named."""
    return here in DATES and there in DATES and (here == WITH_ZONE) != (there == WITH_ZONE)


IN_A_ZONE = (
    "Say in which time zone the times are: … AT TIME ZONE 'Europe/Rome' (of a date: …::timestamp AT TIME ZONE …)."
)


POSSIBLE = {  # family -> what its columns can become; the first is usual
    "number": ("number", "category"),
    "money": ("number", "category"),
    "interval": ("number", "category"),
    "date": ("date", "category"),
    "time": ("date", "category"),
    "text": ("category", "words"),
    "boolean": ("category", "number"),
    "array": (),
    "bytes": ("pixels",),
}
OF_SINGLE_VALUES = (None, "array", "bytes")  # families whose columns identify nothing and have no order


@dataclass(frozen=True)
class Wish:
    """What the argument ``prepare`` says about a column."""

    choice: str | None = None  # number, category, date, words, pixels or ignore
    arguments: dict[str, Any] = field(default_factory=dict)
    of_type: bool = False  # it names the column's type, so a column that says nothing stays ignored

    @property
    def names_column(self) -> bool:
        return self.choice is not None and not self.of_type


NOTHING = Wish()


@dataclass
class Found:
    """A column and what its rows tell."""

    name: str
    type: str
    shown: str
    family: str
    is_key: bool
    refers: bool  # a foreign key
    nulls: int
    not_finite: int
    numbers: Distribution  # of number, date, time
    with_time: bool  # a date with a time of day
    values: list[tuple[str, int]]  # of text: the most frequent, with their rows
    texts: int  # rows of text, also of values that are not listed
    groups: int  # different values
    words_in_all: int  # of text
    look_like_numbers: int  # of text: so many rows
    finite: int | None = None  # rows with a finite number, if ``numbers`` has only some of them
    identifies: str | None = None  # why its numbers identify rows; None: they may be measurements
    length: int = 0  # words of a text that becomes words; 5 % of the texts have more
    different: int = 0  # words that two texts have at least
    repeated: float = 0.0  # share of the words that another text has, too; known of texts that may be titles
    new: float = 0.0  # share of the rows for validation whose value no training row has
    later: bool = False  # the rows for validation are later ones
    named_as_codes: bool = False  # whole numbers that repeat, and whose name says that they are codes

    @property
    def may_identify(self) -> bool:
        may_be_whole = self.type in (*INTEGERS, "numeric") and not self.not_finite
        return may_be_whole and identifiers.may_identify(self.numbers, self.name, self.filled)

    @property
    def filled(self) -> int:
        """The rows that are not NULL."""
        return (round(self.numbers.rows) if self.finite is None else self.finite) + self.not_finite or self.texts

    @property
    def rows(self) -> int:
        return self.filled + self.nulls

    @property
    def few_numbers(self) -> bool:
        """Whether these are so few whole numbers that they are categories."""
        values = self.numbers.values if self.type in INTEGERS else None
        return values is not None and 0 < len(values) <= FEW_VALUES

    @property
    def changes(self) -> bool:
        """Whether other rows than those for training have other values, so that codes would be unknown."""
        return self.new > (MOST_NEW_LATER if self.later else MOST_NEW)

    @property
    def words(self) -> float:
        """Words per row that is not NULL."""
        return self.words_in_all / self.filled if self.filled else 0.0


@dataclass(frozen=True)
class Ignored:
    """A column that becomes no input, and why."""

    why: str
    identifies: bool = False  # rows
    hint: str | None = None


def wishes(document: Any, columns: dict[str, tuple[str, str | None]], argument: str) -> dict[str, Wish]:
    """The wish for each column that ``prepare`` names, itself or by its type.

    ``columns``: name -> (type, family).  A column's own wish goes before that of its type.
    """
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise InvalidArgument(f"{argument} must be a JSON object.", hint=EXAMPLE)
    families = sorted({family for _, family in columns.values() if family})
    found: dict[str, Wish] = {}
    for key, value in sorted(document.items(), key=lambda item: item[0] in columns):
        named = [key] if key in columns else [n for n, (type, family) in columns.items() if key in (type, family)]
        if not named:
            raise InvalidArgument(
                f"{argument} names {key!r}, which is neither a column nor the type of a column.",
                hint=f"Columns: {', '.join(columns)}. Types: {', '.join(families)}.",
            )
        wish = replace(_wish(key, value, argument), of_type=key not in columns)
        found.update(dict.fromkeys(named, wish))
    return found


EXAMPLE = 'For instance {"zip": "category", "income": "log", "text": {"as": "words", "length": 20}, "note": "ignore"}.'


def _wish(key: str, value: Any, argument: str) -> Wish:
    where = f"{argument}: {key!r}"
    if isinstance(value, str):
        value = {"as": value}
    if not isinstance(value, dict):
        raise InvalidArgument(f"{where} must be a text or a JSON object.", hint=EXAMPLE)
    given = {name: one for name, one in value.items() if name != "as"}
    choice = value.get("as")
    if choice is not None and choice not in CHOICES:
        raise InvalidArgument(f"{where} cannot be {choice!r}.", hint=f"Choices: {', '.join(CHOICES)}.")
    if choice in TRANSFORMS:
        choice, given = "number", {"transform": choice, **given}
    if choice in (None, "number") and given.keys() & {"mean", "deviation"}:
        choice, given = "number", {"transform": "standard", **given}
        if given["transform"] != "standard":
            raise InvalidArgument(
                f"{where}: {given['transform']!r} takes no mean and no deviation.", hint='Only "standard" does.'
            )
    if choice is None:  # the arguments tell, if they are those of one choice
        fitting = [one for one, names in ARGUMENTS.items() if given and set(given) <= set(names)]
        choice = fitting[0] if len(fitting) == 1 else None
        if choice is None:
            raise InvalidArgument(f"{where} does not say what the column becomes.", hint=EXAMPLE)
    for name, one in given.items():
        _check_argument(where, choice, name, one)
    if "vocabulary" in given and ("ids" in given or given.get("length", 1) < 2):
        raise InvalidArgument(
            f"{where}: a vocabulary needs a length of 2 or more, and takes no ids.",
            hint="length is the number of pieces that the model reads.",
        )
    return Wish(choice, given)


def _check_argument(where: str, choice: str, name: str, value: Any) -> None:
    if name not in ARGUMENTS[choice]:
        known = ", ".join(ARGUMENTS[choice]) or "no arguments"
        raise InvalidArgument(f"{where}: {choice} has no argument {name!r}.", hint=f"It takes {known}.")
    texts = {"transform": TRANSFORMS, "not_finite": ("error", "null"), "unknown": ("notice", "error")}
    ranges = {"values": (1, 10_000), "least": (1, 10**9), "buckets": (0, 1_000_000), "length": (1, 10_000),
              "ids": (2, 1_000_000)}  # fmt: skip
    if name in texts and value not in texts[name]:
        raise InvalidArgument(f"{where}: {name} cannot be {value!r}.", hint=f"Choices: {', '.join(texts[name])}.")
    if name in ranges:
        low, high = ranges[name]
        if type(value) is not int or not low <= value <= high:
            raise InvalidArgument(
                f"{where}: {name} cannot be {value!r}.", hint=f"It must be an integer from {low} to {high}."
            )
    if name == "vocabulary":
        why = what_is_wrong(value.split("\n")) if isinstance(value, str) else "it is no text"
        if why is not None:
            raise InvalidArgument(
                f"{where}: vocabulary is no list of pieces of words: {why}.",
                hint="It is a text with a piece in each line, such as the file vocab.txt of a model.",
            )
    if name == "quantiles":
        quantiles.read(value, f"{where}: quantiles")
    if name == "means" and not isinstance(value, bool):
        raise InvalidArgument(f"{where}: means cannot be {value!r}.", hint="It is true or false.")
    if name == "shape" and not _is_shape(value):
        raise InvalidArgument(
            f"{where}: shape cannot be {value!r}.",
            hint=f"It must be a list of 1 to {MOST_SIZES} sizes, for instance [64, 64, 3]: height, width, channels.",
        )
    if name == "divide_by" and not _is_divisor(value):
        raise InvalidArgument(f"{where}: divide_by cannot be {value!r}.", hint="255 makes numbers from 0 to 1.")
    if name == "mean" and not _is_number(value):
        raise InvalidArgument(f"{where}: mean cannot be {value!r}.", hint="It is a number, for instance 0.")
    if name == "deviation" and not (_is_number(value) and value >= LEAST):
        raise InvalidArgument(f"{where}: deviation cannot be {value!r}.", hint="It is a positive number.")
    if name == "cycles" and not (isinstance(value, list) and all(one in CYCLES for one in value)):
        raise InvalidArgument(
            f"{where}: cycles cannot be {value!r}.", hint=f"It must be a list of some of {', '.join(CYCLES)}."
        )


def _is_shape(value: Any) -> bool:
    if not isinstance(value, list) or not 1 <= len(value) <= MOST_SIZES:
        return False
    return all(type(one) is int and one > 0 for one in value) and 4 * elements(value) <= LARGEST_BYTES


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= LARGEST_NUMBER


def _is_divisor(value: Any) -> bool:
    return type(value) in (int, float) and LEAST_DIVISOR < value <= LARGEST_DIVISOR


def pixels(wish: Wish) -> tuple[tuple[int, ...], Pixels]:
    """The shape of a row, and the preparation of a column of bytes."""
    return tuple(wish.arguments["shape"]), Pixels(float(wish.arguments.get("divide_by", 1)))


def require_possible(name: str, shown: str, family: str, wish: Wish) -> None:
    """An error for a column that cannot become what was asked for."""
    possible = POSSIBLE.get(family, ("category",))
    if wish.choice == "pixels" and family == "bytes" and "shape" not in wish.arguments:
        raise InvalidArgument(f"column '{name}' cannot become pixels without a shape.", hint=images.needs_shape(name))
    if wish.choice in (None, "ignore", *possible):
        return
    as_number = wish.choice == "number" and family == "text"
    raise InvalidArgument(
        f"column '{name}' of type {shown} cannot become {wish.choice}.",
        hint=f"If it holds numbers, cast it in a view: {name}::double precision."
        if as_number
        else f"It can become {', '.join((*possible, 'ignore'))}.",
    )


# -- the decision --------------------------------------------------------------------------------------------


def decide(found: Found, wish: Wish, named: bool) -> Feature | Ignored:
    """What a column becomes.  ``named``: the user lists it among the inputs, so that it should be one."""
    if wish.choice == "ignore":
        return Ignored("as prepare says")
    if not found.filled:
        if named:
            raise BadData(f"column '{found.name}' is NULL in all {found.rows} rows.", hint="Leave it out of inputs.")
        return Ignored("it is NULL in all rows")
    if found.not_finite and wish.arguments.get("not_finite") != "null":
        raise BadData(
            f"column '{found.name}' is NaN or infinite in {found.not_finite} of {found.rows} rows.",
            hint=f"Leave these rows out with a view, or count them as NULL: prepare => "
            f'\'{{"{found.name}": {{"not_finite": "null"}}}}\'.',
        )
    if not wish.names_column and (ignored := _ignored(found, wish)) and not (named and ignored.identifies):
        return ignored
    choice = choice_of(found, wish)
    if choice == "number":
        return _number(found, wish)
    if choice == "date":
        return _date(found, wish)
    if choice == "words":
        return _words(found, wish)
    return _category(found, wish)


def _ignored(found: Found, wish: Wish) -> Ignored | None:
    if found.is_key:
        return Ignored("it is a key: its values only identify rows", True)
    if found.identifies is not None:
        return Ignored(found.identifies, True)
    if found.filled < FEWEST_ROWS:
        return None
    one_by_one = found.groups == found.filled and found.words < MANY_WORDS
    if found.texts and one_by_one and wish.choice != "words":
        return Ignored("its value is different in every row", not found.nulls)
    constant = found.numbers.constant if found.numbers.rows else found.groups == 1
    return Ignored("it has the same value in all rows") if constant and not found.nulls else None


def may_be_codes(found: Found) -> bool:
    """Whether these are so few whole numbers that they become categories, unless other rows have other numbers."""
    return found.family == "number" and found.few_numbers and not found.refers


def values_may_be_codes(found: Found) -> bool:
    """Whether these are many whole numbers that may be codes, so that each value has to be counted."""
    if found.type not in INTEGERS or not found.filled or found.few_numbers:
        return False
    if found.refers:
        return found.finite is not None or found.numbers.values is None
    return not found.is_key and found.identifies is None and identifiers.named_as_codes(found.name) and repeat(found)


def repeat(found: Found) -> bool:
    """Whether the values, or at least their bins, have so many rows that each value can be learned."""
    return found.groups * ROWS_PER_CODE <= found.filled


def may_be_titles(found: Found) -> bool:
    """Whether these are texts of few words with fewer than two rows each; of more rows, codes tell more."""
    few_words = FEW_WORDS <= found.words < MANY_WORDS
    return few_words and found.family == "text" and 2 * found.groups > found.filled


def in_its_unit(wish: Wish) -> Wish:
    """What is wished of a target's past, which is compared with its future: a number without a transform."""
    if wish.choice not in (None, "number"):
        return wish
    return replace(wish, choice="number", arguments={"transform": "standard", **wish.arguments})


def choice_of(found: Found, wish: Wish) -> str:
    """What a column becomes if it is not ignored."""
    return wish.choice or _usual(found)


def _usual(found: Found) -> str:
    codes = found.family == "number" and found.type in INTEGERS and (found.refers or found.named_as_codes)
    if codes or (may_be_codes(found) and not found.changes):
        return "category"
    many = found.groups > MOST_VALUES or not repeat(found)
    if found.family == "text" and found.words >= MANY_WORDS and many:
        return "words"
    if may_be_titles(found) and found.repeated >= MOSTLY_REPEATED:
        return "words"
    return POSSIBLE.get(found.family, ("category",))[0]


def _number(found: Found, wish: Wish) -> NumberFeature:
    not_finite = wish.arguments.get("not_finite", "error")
    missing = found.nulls > 0 or (not_finite == "null" and found.not_finite > 0)
    if not found.numbers.rows:  # all of them NaN
        raise BadData(f"column '{found.name}' has no finite value.", hint="Leave it out of inputs.")
    one = chosen(found.numbers, wish.arguments.get("transform"))
    # What is given is the scale that weights from elsewhere were trained with.
    mean, deviation = (float(wish.arguments.get(name, getattr(one, name))) for name in ("mean", "deviation"))
    one = replace(one, mean=mean, deviation=deviation)
    fill = rounded(found.numbers.quantile(0.5), found.numbers.moments().deviation)
    return NumberFeature(
        family=found.family, type=SqlType(found.type), transform=one.transform, mean=one.mean, deviation=one.deviation,
        fill=fill, missing=missing, not_finite=not_finite, unit=one.unit, knots=one.knots, scores=one.scores,
        edges=edges(found.numbers, one),
    )  # fmt: skip


def _date(found: Found, wish: Wish) -> DateFeature:
    moments = found.numbers.moments()
    if found.family == "time":
        return DateFeature(found.family, SqlType(found.type), ("day",), 0.0, 0.0, found.nulls > 0)
    usual = [one for one in CYCLES if one != "day" or found.with_time]
    deviation = six_digits(moments.deviation)
    mean = rounded(moments.mean, moments.deviation) if deviation else 0.0
    cycles = tuple(dict.fromkeys(wish.arguments.get("cycles", usual)))
    days = edges(found.numbers, Transform("standard", mean, deviation)) if deviation else ()
    return DateFeature(
        family=found.family,
        type=SqlType(found.type),
        cycles=cycles,
        mean=mean,
        deviation=deviation,
        missing=found.nulls > 0,
        edges=days,
    )


def of_forecasts(feature: Feature, found: Found, wish: Wish) -> Feature:
    """A date that forecasts are for: without its days, which are later than all that were seen.

    Of its cycles those that the rows have seen three times, and that have two rows at least: of a cycle seen twice, a
    model learns by heart what happened in it.
    """
    if not isinstance(feature, DateFeature) or found.family == "time":
        return feature
    span = found.numbers.high - found.numbers.low
    step = span / max(1, found.groups - 1)
    fitting = tuple(one for one in feature.cycles if 2 * step <= DAYS_OF[one] <= span / 3)
    cycles = feature.cycles if "cycles" in wish.arguments else fitting or feature.cycles[:1]
    return replace(feature, cycles=cycles, mean=0.0, deviation=0.0, edges=())


def _category(found: Found, wish: Wish) -> CategoryFeature:
    counted = _counted(found)
    most = wish.arguments.get("values", MOST_VALUES)
    least = wish.arguments.get("least", max(2, min(5, found.filled // 100)))
    groups = max(found.groups, len(counted))
    buckets = wish.arguments.get("buckets", BUCKETS if groups > most else 0)
    values = [value for value, rows in counted if rows >= least or found.family == "boolean"][:most]
    listed = set(values)
    rest = [value for value, _ in counted if value not in listed]
    # Hashed values need not be listed.  Without buckets, the rare values that are not listed are unknown.
    return CategoryFeature(
        found.family, SqlType(found.type), tuple(values), () if buckets else tuple(rest), buckets,
        wish.arguments.get("unknown", "notice"),
    )  # fmt: skip


def wants_means(found: Found, feature: CategoryFeature, wish: Wish) -> bool:
    """Whether a category gets means of the targets beside its codes."""
    groups = max(found.groups, len(feature.values))
    return bool(wish.arguments.get("means", FEW_WITHOUT_MEANS < groups <= found.filled / ROWS_PER_MEAN))


def _counted(found: Found) -> list[tuple[str, int]]:
    """The values with their rows, the most frequent first."""
    if found.values:
        return found.values
    numbers = [(str(int(one.low)), round(one.rows)) for one in found.numbers.bins]
    return sorted(numbers, key=lambda one: (-one[1], one[0]))


def _words(found: Found, wish: Wish) -> WordsFeature:
    if pieces := wish.arguments.get("vocabulary", ""):
        ids = pieces.count("\n") + 1
        return WordsFeature(found.family, SqlType(found.type), wish.arguments["length"], ids, pieces)
    length = wish.arguments.get("length", _step(LENGTHS, found.length))
    ids = wish.arguments.get("ids", _step(IDS, found.different))
    return WordsFeature(found.family, SqlType(found.type), length, ids)


def _step(steps: Sequence[int], wanted: int) -> int:
    """The first step that is large enough, or the last."""
    return next((step for step in steps if step >= wanted), steps[-1])


def inputs_of(decided: Sequence[tuple[str, Feature]]) -> list[tuple[str, list[tuple[str, Feature]]]]:
    """The variables that prepared columns make: all numbers together, all codes together, the words of each text."""
    together: dict[str, list[tuple[str, Feature]]] = {}
    # Apart from the others, because a text may have the name of a group.
    texts: list[tuple[str, list[tuple[str, Feature]]]] = []
    for name, feature in decided:
        if isinstance(feature, WordsFeature):
            texts.append((name, [(name, feature)]))
        else:
            group = NUMBERS if isinstance(feature, (NumberFeature, DateFeature)) else CATEGORIES
            together.setdefault(group, []).append((name, feature))
    return [(name, together[name]) for name in (NUMBERS, CATEGORIES) if name in together] + texts


NUMBERS, CATEGORIES = "numbers", "categories"
