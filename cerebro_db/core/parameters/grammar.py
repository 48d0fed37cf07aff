"""The grammar of parameter strings: ``optimizer='Adam(lr=0.1)', metrics=['accuracy']``.

A parameter string looks like the arguments of a Python call.  It is parsed by recursive descent, and nothing in it is
evaluated.  The result consists of words, calls and plain values; params.py says what they mean.
"""

from __future__ import annotations

import math
import re
from typing import Any, NoReturn

from ..errors import InvalidSyntax
from ..records import dataclass, field

LONGEST = 1 << 16  # characters; people write parameter strings by hand
DEEPEST = 32  # levels of brackets
LONGEST_NUMBER = 40  # characters

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?(?![\w.]))
      | (?P<word>[^\W\d]\w*)
      | (?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
      | (?P<sign>[()\[\]{}=,:])
      | (?P<end>$)
    )""",
    re.VERBOSE | re.DOTALL,
)
_CONSTANTS = {"True": True, "False": False, "None": None, "true": True, "false": False, "null": None}


class BareWord(str):
    """A name without quotes, such as ``Adam`` in ``optimizer=Adam``."""


@dataclass
class Call:
    """A name with arguments, such as ``Adam(learning_rate=0.1)``; an argument without a name has its place as key."""

    name: str
    arguments: dict[str | int, Any] = field(default_factory=dict)


def assignments(text: str, argument: str) -> dict[str, Any]:
    """``a=1, b='x'`` -> ``{'a': 1, 'b': 'x'}``; if a key is repeated, its last value counts.

    ``argument`` names the text in error messages.
    """
    parser = _Parser(text, argument)
    pairs = parser.assignments("")
    parser.expect("")
    return pairs


def expression(text: str, argument: str) -> Any:
    """The single value that the text consists of."""
    parser = _Parser(text, argument)
    value = parser.value()
    parser.expect("")
    return value


class _Parser:
    """A recursive-descent parser with one token of look-ahead.  The closing sign ``""`` means the end of the text."""

    def __init__(self, text: str, argument: str) -> None:
        self.text, self.argument = text, argument
        self.next = self.depth = 0
        if len(text) > LONGEST:
            raise InvalidSyntax(f"{argument} has {len(text)} characters; the limit is {LONGEST}")
        self.advance()

    def advance(self) -> None:
        match = _TOKEN.match(self.text, self.next)
        if match is None:
            self.start = self.next + len(self.text[self.next :]) - len(self.text[self.next :].lstrip())
            character = self.text[self.start]
            self.fail("a quote is not closed" if character in "'\"" else f"unexpected {character!r}")
        self.token_type = str(match.lastgroup)
        self.token = match.group(self.token_type)
        self.start, self.next = match.start(self.token_type), match.end()

    def fail(self, problem: str) -> NoReturn:
        near = self.text[self.start : self.start + 30]
        raise InvalidSyntax(
            f"{self.argument}: {problem} at position {self.start + 1}" + (f", near {near!r}" if near else ""),
            hint="Write key=value pairs separated by commas, with names and texts in quotes, such as "
            "optimizer='Adam(learning_rate=0.01)', loss='categorical_crossentropy', metrics=['accuracy'].",
        )

    def at(self, sign: str) -> bool:
        return self.token == sign and self.token_type in ("sign", "end")

    def expect(self, sign: str) -> None:
        if not self.at(sign):
            found = repr(self.token) if self.token else "the end"
            self.fail(f"expected {repr(sign) if sign else 'a comma or the end'}, found {found}")
        if sign:
            self.advance()

    def assignments(self, closing: str) -> dict[str, Any]:
        pairs: dict[str, Any] = {}
        while not self.at(closing):
            if self.token_type != "word":
                self.fail(f"expected a parameter name, found {self.token!r}")
            key = self.token
            self.advance()
            self.expect("=")
            pairs[key] = self.value()
            if not self.at(closing):
                self.expect(",")
        return pairs

    def arguments(self) -> dict[str | int, Any]:
        """``0.1, name='x'``: those of a call."""
        found: dict[str | int, Any] = {}
        places = 0
        while not self.at(")"):
            given = self.value()
            if isinstance(given, BareWord) and self.at("="):
                self.advance()
                found[str(given)] = self.value()
            elif len(found) > places:
                self.fail("expected NAME=VALUE: arguments without a name come first; found one")
            else:
                found[places], places = given, places + 1
            if not self.at(")"):
                self.expect(",")
        return found

    def value(self) -> Any:
        token_type, token = self.token_type, self.token
        if token_type == "number":
            number = self.number(token)
            self.advance()
            return number
        if token_type == "text":
            self.advance()
            # A backslash before anything but a quote or a backslash is an ordinary character.
            return re.sub(r"\\([\\'\"])", r"\1", token[1:-1])
        if token_type == "word":
            self.advance()
            if self.at("("):
                return self.bracketed(lambda: Call(token, self.arguments()), ")")
            return _CONSTANTS[token] if token in _CONSTANTS else BareWord(token)
        if self.at("["):
            return self.bracketed(lambda: self.items("]"), "]")
        if self.at("("):
            return self.bracketed(lambda: self.items(")"), ")")
        if self.at("{"):
            return self.bracketed(self.pairs, "}")
        self.fail("a value is missing" if token_type == "end" else f"expected a value, found {token!r}")

    def number(self, token: str) -> int | float:
        if len(token) > LONGEST_NUMBER:
            self.fail(f"a number has more than {LONGEST_NUMBER} characters")
        if re.fullmatch(r"[-+]?\d+", token):
            return int(token)
        number = float(token)
        if not math.isfinite(number):
            self.fail("a number is too large")
        return number

    def bracketed(self, content: Any, closing: str) -> Any:
        self.depth += 1
        if self.depth > DEEPEST:
            self.fail(f"brackets are nested more than {DEEPEST} levels deep")
        self.advance()
        found = content()
        self.expect(closing)
        self.depth -= 1
        return found

    def items(self, closing: str) -> list[Any]:
        items = []
        while not self.at(closing):
            items.append(self.value())
            if not self.at(closing):
                self.expect(",")
        return items

    def pairs(self) -> dict[Any, Any]:
        pairs: dict[Any, Any] = {}
        while not self.at("}"):
            key = self.value()
            if not isinstance(key, (str, int, float)):
                self.fail(f"{key!r} cannot be a key")
            self.expect(":")
            pairs[str(key) if isinstance(key, BareWord) else key] = self.value()
            if not self.at("}"):
                self.expect(",")
        return pairs
