"""Dataclasses to JSON objects and back, strictly: what is decoded has the declared fields and types, or is refused.

Types that a field may have: ``bool``, ``int`` (64 bits), ``float``, ``str``, an ``enum.Enum`` of strings, ``Any`` (a
JSON value that is not checked), ``Optional[T]``, ``Union[str, int]``, ``list[T]``, ``tuple[T, ...]``, ``dict[str, T]``,
``Mapping[str, T]`` and another dataclass.  ``Annotated[T, Within(1, 9)]`` bounds numbers, and the lengths of texts and
lists.  A class with the method ``from_document`` reads its own documents; with ``tag``, it adds its name to them, by
which it finds its subclass.  The fields of a dataclass in a field that is ``beside`` are fields of the same document.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import typing
from collections.abc import Callable, Mapping
from functools import cache
from typing import Annotated, Any, TypeVar, Union

from cerebro_db.core.documents import json_value
from cerebro_db.core.errors import CerebroError, InvalidArgument

T = TypeVar("T")
Decode = Callable[[Any], Any]  # of a JSON value; raises Misfit

LARGEST_INTEGER = 1 << 63
SHOWN = 80  # characters of a wrong value that an error shows


class Misfit(Exception):
    """A value that its place in a document cannot have.

    The place is told while the error goes up, from the inside out: values that fit, of which an order may have
    thousands, cost no text.
    """

    def __init__(self, said: str) -> None:
        super().__init__(said)
        self.said, self._steps = said, list[str]()

    def within(self, step: str) -> Misfit:
        self._steps.append(step)
        return self

    def error(self, where: str, kind: type[CerebroError] = InvalidArgument) -> CerebroError:
        """``where``: the name of the whole document."""
        return kind(f"{where}{''.join(reversed(self._steps))} {self.said}")


class Within:
    """The least and the largest that a number, or the length of a text or list, may be."""

    def __init__(self, least: float, most: float) -> None:
        self.least, self.most = least, most


def beside(default: Any) -> Any:
    """A field with a dataclass whose fields are beside the others in the document."""
    return dataclasses.field(default=default, metadata={"beside": type(default)})


def to_json(document: dict[str, Any]) -> str:
    try:
        return json.dumps(document)
    except RecursionError as error:
        raise InvalidArgument("a JSON document is nested too deeply") from error


def from_json(text: str) -> Any:
    try:
        return json_value(text)
    except (ValueError, TypeError) as error:
        raise InvalidArgument(f"not a JSON document: {error}") from error
    except RecursionError as error:
        raise InvalidArgument("a JSON document is nested too deeply") from error


def encode(value: Any) -> Any:
    """The JSON value of a dataclass, or of a value that a field may have.

    Fields that are None are left out, if they may be.
    """
    fields = fields_of(type(value))
    if fields is not None:
        document = value.tag() if hasattr(value, "tag") else {}
        for field in fields:
            one = getattr(value, field.name)
            if "beside" in field.metadata:
                document.update(encode(one))
            elif field.init and (one is not None or not has_default(field)):
                document[field.name] = encode(one)
        return document
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, (list, tuple)):
        return [encode(one) for one in value]
    if isinstance(value, dict) and any(fields_of(type(one)) is not None for one in value.values()):
        return {name: encode(one) for name, one in value.items()}
    return value


def decode(kind: Callable[..., T], document: Any, where: str, error: type[CerebroError] = InvalidArgument) -> T:
    """The dataclass that a JSON object describes; ``where`` names the object in errors."""
    try:
        return decoded(kind, document)
    except Misfit as misfit:
        raise misfit.error(where, error) from None


def decoded(kind: Callable[..., T], document: Any) -> T:
    """As ``decode``, for an object within another one: raises Misfit."""
    if not isinstance(document, dict):
        raise wrong("a JSON object", document)
    decoders, parts = _schema(kind)
    values: dict[str, Any] = {}
    if parts:
        document = dict(document)
        for name, (part, names) in parts.items():
            values[name] = decoded(part, {one: document.pop(one) for one in names if one in document})
    for name in document:
        if name not in decoders:
            raise Misfit(f"has no field {shown(name)}")
    for name, (required, decoder) in decoders.items():
        if name in document:
            try:
                values[name] = decoder(document[name])
            except Misfit as misfit:
                raise misfit.within(f".{name}") from None
        elif required:
            raise Misfit(f"lacks the field {name}")
    try:
        return kind(**values)
    except ValueError as error:  # values that do not fit each other
        raise Misfit(f"cannot be used: {error}") from None


def wrong(expected: str, value: Any) -> Misfit:
    return Misfit(f"has to be {expected}, not {shown(value)}")


def shown(value: Any) -> str:
    """The beginning of a value, for an error."""
    if isinstance(value, (dict, list)):  # may be megabytes
        return "a JSON object" if isinstance(value, dict) else "a list"
    try:
        text = json.dumps(value)
    except (TypeError, ValueError):
        return f"a value of type {type(value).__name__}"
    return text if len(text) <= SHOWN else text[:SHOWN] + "…"


def has_default(field: dataclasses.Field[Any]) -> bool:
    return field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING


_FIELDS: dict[Any, tuple[dataclasses.Field[Any], ...] | None] = {}  # by class, of those that were asked for


def fields_of(kind: Any) -> tuple[dataclasses.Field[Any], ...] | None:
    """The fields of a dataclass; None of any other class."""
    if kind not in _FIELDS:
        _FIELDS[kind] = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else None
    return _FIELDS[kind]


@cache
def _schema(kind: Any) -> tuple[dict[str, tuple[bool, Decode]], dict[str, tuple[Any, list[str]]]]:
    """By field: whether it has to be given, and what decodes it.  By field that is beside: its class and fields."""
    types = typing.get_type_hints(kind, include_extras=True)
    parts = {field.name: field.metadata["beside"] for field in dataclasses.fields(kind) if "beside" in field.metadata}
    decoders = {
        field.name: (not has_default(field), decoder(types[field.name]))
        for field in dataclasses.fields(kind)
        if field.init and field.name not in parts
    }
    return decoders, {name: (part, names_of(part)) for name, part in parts.items()}


def names_of(kind: Any) -> list[str]:
    """The fields of the documents of a dataclass."""
    decoders, parts = _schema(kind)
    return [*decoders, *(name for _, names in parts.values() for name in names)]


def decoder(annotation: Any) -> Decode:
    """What decodes a value of an annotated type."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is Any:
        return lambda value: value
    if annotation in _PLAIN:
        return _PLAIN[annotation]
    if origin is Annotated:
        return _within(decoder(arguments[0]), arguments[1])
    if origin is Union:
        return _union(arguments)
    if origin is list:
        return _list(decoder(arguments[0]))
    if origin is tuple:
        items = _list(decoder(arguments[0]))
        return lambda value: tuple(items(value))
    if origin in (dict, Mapping):
        return _dict(arguments[1])
    if hasattr(origin or annotation, "from_document"):  # one of several classes; the document says which
        return _own(origin or annotation)
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return _enum(annotation)
    if isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
        return lambda value: decoded(annotation, value)
    raise TypeError(f"no field can have the type {annotation}")


def _bool(value: Any) -> bool:
    if type(value) is not bool:
        raise wrong(_NAMES[bool], value)
    return value


def _integer(value: Any) -> int:
    if type(value) is not int:
        raise wrong(_NAMES[int], value)
    if not -LARGEST_INTEGER <= value < LARGEST_INTEGER:
        raise Misfit("does not fit into 64 bits")
    return value


def _float(value: Any) -> float:
    if type(value) is not float and type(value) is not int:
        raise wrong(_NAMES[float], value)
    try:
        return float(value)
    except OverflowError:
        raise Misfit("is too large for a number of 64 bits") from None


def _text(value: Any) -> str:
    if type(value) is not str:
        raise wrong(_NAMES[str], value)
    return value


_NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
_PLAIN: dict[Any, Decode] = {bool: _bool, int: _integer, float: _float, str: _text}


def _union(arguments: tuple[Any, ...]) -> Decode:
    """Of ``Optional[T]``, or of types that JSON tells apart."""
    kinds = [one for one in arguments if one is not type(None)]
    inner = decoder(kinds[0]) if len(kinds) == 1 else _one_of(kinds)
    return inner if len(kinds) == len(arguments) else lambda value: None if value is None else inner(value)


def _one_of(kinds: list[Any]) -> Decode:
    def decode_one(value: Any) -> Any:
        if type(value) not in kinds:
            raise wrong(" or ".join(_NAMES[one] for one in kinds), value)
        return value

    return decode_one


def _own(kind: Any) -> Decode:
    def decode_own(value: Any) -> Any:
        try:
            return kind.from_document(value)
        except ValueError as error:
            raise Misfit(f"cannot be used: {error}") from None

    return decode_own


def _within(inner: Decode, bounds: Within) -> Decode:
    def decode_within(value: Any) -> Any:
        found = inner(value)
        if not bounds.least <= (found if isinstance(found, (int, float)) else len(found)) <= bounds.most:
            raise Misfit(f"has to be from {bounds.least} to {bounds.most}, not {shown(value)}")
        return found

    return decode_within


def _list(element: Decode) -> Decode:
    def decode_list(value: Any) -> list[Any]:
        if not isinstance(value, (list, tuple)):
            raise wrong("a list", value)
        found: list[Any] = []
        try:
            for one in value:
                found.append(element(one))
        except Misfit as misfit:
            raise misfit.within(f"[{len(found)}]") from None
        return found

    return decode_list


def _dict(kind: Any) -> Decode:
    inner = None if kind is Any else decoder(kind)

    def decode_dict(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise wrong("a JSON object", value)
        if inner is None:
            return value
        found: dict[str, Any] = {}
        for name, one in value.items():
            try:
                found[name] = inner(one)
            except Misfit as misfit:
                raise misfit.within(f"[{shown(name)}]") from None
        return found

    return decode_dict


def _enum(kind: type[enum.Enum]) -> Decode:
    known = {one.value: one for one in kind}

    def decode_enum(value: Any) -> enum.Enum:
        if not isinstance(value, str) or value not in known:
            raise wrong(" or ".join(known), value)
        return known[value]

    return decode_enum
