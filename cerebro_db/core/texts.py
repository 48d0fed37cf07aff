"""How messages write numbers, how long texts may be, and how texts of others are shown."""

from __future__ import annotations

LONGEST = 10_000  # characters of a message
JOINERS = "\u200c\u200d"  # Persian, Indian scripts and emoji need these two


def counted(number: int, what: str) -> str:
    """``1 row``, ``1,437 rows``"""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def or_null(value: object) -> str:
    """The value of an argument as SQL writes it, if it is a number or NULL."""
    return "NULL" if value is None else str(value)


def shortened(text: str, most: int) -> str:
    """The beginning of a text that is longer than ``most`` characters."""
    return text if len(text) <= most else text[: most - 1] + "…"


def harmless(text: str, *, lines: bool = False, longest: int = LONGEST) -> str:
    """The text without what a terminal obeys: escape sequences, other control characters, changes of direction.

    A visible character stands for each of them.  With ``lines``, line breaks and tabs stay.  A longer text is cut.
    """
    text = shortened(text, longest)
    if text.isprintable():
        return text
    return "".join(_shown(one, lines) for one in text)


def _shown(one: str, lines: bool) -> str:
    if one.isprintable() or one in JOINERS or (lines and one in "\n\t"):
        return one
    if one < " ":
        return chr(0x2400 + ord(one))  # ␛ for ESC, ␊ for a line break
    import unicodedata  # only now: hardly a text needs it

    kind = unicodedata.category(one)
    return "\N{REPLACEMENT CHARACTER}" if kind in ("Cc", "Cf", "Cs", "Zl", "Zp") else one


def short(value: float) -> str:
    """The number with three digits, or all those before the point."""
    return f"{value:,.0f}" if abs(value) >= 999.5 else f"{value:.3g}"
