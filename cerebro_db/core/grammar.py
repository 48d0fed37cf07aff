"""The little language of parameter strings: ``optimizer='Adam(lr=0.1)', metrics=['accuracy']``.

It looks like the arguments of a Python call and is read by recursive descent; nothing is ever
evaluated.  Words, calls and plain values come out, and ``params.py`` says what they mean.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any, NoReturn

from .errors import InvalidSyntax

LONGEST = 1 << 16  # characters; a parameter string is written by hand
DEEPEST = 32

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


class Word(str):
    """A name without quotes, such as ``Adam`` in ``optimizer=Adam``."""


@dataclass
class Call:
    """``Adam(learning_rate=0.1)``"""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)


def assignments(text: str, what: str) -> dict[str, Any]:
    """``a=1, b='x'`` -> ``{'a': 1, 'b': 'x'}``; of a repeated key the last value counts, as in MADlib."""
    reader = _Reader(text, what)
    found = reader.keyed("")
    reader.expect("")
    return found


def expression(text: str, what: str) -> Any:
    """One value on its own."""
    reader = _Reader(text, what)
    value = reader.value()
    reader.expect("")
    return value


class _Reader:
    """One token of look-ahead over a text."""

    def __init__(self, text: str, what: str) -> None:
        self.text, self.what = text, what
        self.next = self.depth = 0
        if len(text) > LONGEST:
            raise InvalidSyntax(f"{what}: {len(text)} characters are too many; at most {LONGEST} are read")
        self.advance()

    def advance(self) -> None:
        match = _TOKEN.match(self.text, self.next)
        if match is None:
            self.start = self.next + len(self.text[self.next :]) - len(self.text[self.next :].lstrip())
            character = self.text[self.start]
            self.fail("a quote is not closed" if character in "'\"" else f"unexpected {character!r}")
        self.kind = str(match.lastgroup)
        self.token = match.group(self.kind)
        self.start, self.next = match.start(self.kind), match.end()

    def fail(self, problem: str) -> NoReturn:
        near = self.text[self.start : self.start + 30]
        raise InvalidSyntax(
            f"{self.what}: {problem} at position {self.start + 1}" + (f", near {near!r}" if near else ""),
            hint="Write key=value pairs with commas between them, and names and texts in quotes, such as "
            "optimizer='Adam(learning_rate=0.01)', loss='categorical_crossentropy', metrics=['accuracy'].",
        )

    def at(self, sign: str) -> bool:
        return self.token == sign and self.kind in ("sign", "end")

    def expect(self, sign: str) -> None:
        if not self.at(sign):
            found = repr(self.token) if self.token else "the end"
            self.fail(f"expected {repr(sign) if sign else 'a comma or the end'}, found {found}")
        if sign:
            self.advance()

    def keyed(self, closing: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while not self.at(closing):
            if self.kind != "word":
                self.fail(f"expected a parameter name, found {self.token!r}")
            key = self.token
            self.advance()
            self.expect("=")
            found[key] = self.value()
            if not self.at(closing):
                self.expect(",")
        return found

    def value(self) -> Any:
        kind, token = self.kind, self.token
        if kind == "number":
            number = self.number(token)
            self.advance()
            return number
        if kind == "text":
            self.advance()
            # a backslash keeps its meaning only where it protects a quote or itself
            return re.sub(r"\\([\\'\"])", r"\1", token[1:-1])
        if kind == "word":
            self.advance()
            if self.at("("):
                return self.nested(lambda: Call(token, self.keyed(")")), ")")
            return _CONSTANTS[token] if token in _CONSTANTS else Word(token)
        if self.at("["):
            return self.nested(lambda: self.items("]"), "]")
        if self.at("("):
            return self.nested(lambda: self.items(")"), ")")
        if self.at("{"):
            return self.nested(self.pairs, "}")
        self.fail("a value is missing" if kind == "end" else f"expected a value, found {token!r}")

    def number(self, token: str) -> int | float:
        if len(token) > 40:
            self.fail("a number has too many digits")
        if re.fullmatch(r"[-+]?\d+", token):
            return int(token)
        number = float(token)
        if not math.isfinite(number):
            self.fail("a number is too large")
        return number

    def nested(self, content: Any, closing: str) -> Any:
        self.depth += 1
        if self.depth > DEEPEST:
            self.fail(f"brackets are nested more than {DEEPEST} deep")
        self.advance()
        found = content()
        self.expect(closing)
        self.depth -= 1
        return found

    def items(self, closing: str) -> list[Any]:
        found = []
        while not self.at(closing):
            found.append(self.value())
            if not self.at(closing):
                self.expect(",")
        return found

    def pairs(self) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        while not self.at("}"):
            key = self.value()
            if not isinstance(key, (str, int, float)):
                self.fail(f"{key!r} cannot be a key")
            self.expect(":")
            found[str(key) if isinstance(key, Word) else key] = self.value()
            if not self.at("}"):
                self.expect(",")
        return found
