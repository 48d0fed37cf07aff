"""Tells whole numbers that identify rows from measurements that happen to be different in every row.

Measurements coincide now and then.  How often, follows from how many rows there are and how close their values lie: 500
ages between 0 and 100 have more than a thousand pairs of equal ones, and 500 prices between 100,000 and 200,000 about
one.  Numbers that were given out one by one never coincide.
"""

from __future__ import annotations

import re

from .distributions import Distribution

FEWEST_ROWS = 20  # below, nothing is concluded from values being different in every row
# Pairs of equal values that chance would make.  That there is none then has a probability of e^-9, or 0.01 %.
MANY_PAIRS = 9.0
GROUP = 20  # rows among which values count as evenly spread
NEARLY = 20  # numbers identify rows, too, if they coincide less than a 20th as often as by chance

TOGETHER = 500  # rows of a sample that are counted together: how many there are varies by 4 percent
# Whole words of a name, in snake_case or camelCase.
_OF_A_KEY = re.compile(r"(^|_)(id|key|uid|uuid|guid|rowid|rownum|rownames?|row_names?|nr|no)$|^(index|idx|row)$")
# The last word of a name.  Not "no" and "nr", which also count things, and not "key", which may be a date.
_OF_CODES = re.compile(
    r"(^|_)(id|uid|code|zip|plz|fips|postcode|(customer|user|client|product|item|shop|store)id)$"
    r"|(zip|post|postal|pin|area)_?code$"
)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def pairs_by_chance(found: Distribution) -> float:
    """How many pairs of rows would have the same whole number, if the numbers were drawn where these lie."""
    pairs, rows, low = 0.0, 0.0, 0.0
    left = found.rows
    for one in found.bins:
        low = low if rows else one.low
        rows, left = rows + one.rows, left - one.rows
        if rows >= GROUP and (left >= GROUP or not left):
            pairs += rows * (rows - 1) / 2 / (one.high - low + 1)
            rows = 0
    if rows:
        pairs += rows * (rows - 1) / 2 / (found.high - low + 1)
    return pairs


def coincide(found: Distribution, scale: float = 1.0) -> float:
    """At least so many rows have the whole number of another row: more rows than numbers between low and high.

    ``scale``: each row of ``found`` stands for so many.
    """
    least = TOGETHER if scale > 1 else 1
    more, rows, low = 0.0, 0.0, 0.0
    for one in found.bins:
        low = low if rows else one.low
        rows += one.rows
        if rows >= least:
            more += max(0.0, rows * scale - (one.high - low + 1))
            rows = 0.0
    return more


def named_as_key(name: str) -> bool:
    return _OF_A_KEY.search(_words_of(name)) is not None


def named_as_codes(name: str) -> bool:
    """Whether a name says that whole numbers only tell things apart, so that their order and distances say nothing."""
    return _OF_CODES.search(_words_of(name)) is not None


def _words_of(name: str) -> str:
    return _CAMEL.sub("_", name).lower().replace(" ", "_").replace(".", "_")


def may_identify(found: Distribution, name: str, rows: int) -> bool:
    """Whether it is worth counting the different numbers in all rows.

    ``found`` has some of the training rows, and ``rows`` counts all that are not NULL.
    """
    if found.rows < FEWEST_ROWS or found.constant or coincide(found, rows / found.rows) * NEARLY > rows:
        return False
    return named_as_key(name) or pairs_by_chance(found) * (rows / found.rows) ** 2 > MANY_PAIRS / 2


def reason(found: Distribution, name: str, rows: int, different: int, consecutive: bool) -> str | None:
    """Why a column of whole numbers identifies rows; None if it may be a measurement.

    ``rows`` and ``different`` count all rows that are not NULL; ``found`` has those for training.
    """
    if rows == different and consecutive:
        return "it numbers the rows"
    by_chance = pairs_by_chance(found) * (rows / found.rows) ** 2
    if rows == different and by_chance >= MANY_PAIRS:
        return "its numbers are different in every row, so they identify rows"
    if by_chance >= MANY_PAIRS and (rows - different) * NEARLY < min(by_chance, rows):
        return "its numbers are different in nearly every row, so they identify rows"
    if rows == different and named_as_key(name):
        return "its numbers are different in every row, and its name is that of a key"
    return None
