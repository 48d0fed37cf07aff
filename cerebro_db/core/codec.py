"""Dataclasses to JSON objects and back, strictly: what is decoded has the declared fields and types, or is refused.

Types that a field may have: ``bool``, ``int`` (64 bits), ``float``, ``str``, an ``enum.Enum`` of strings, ``Any`` (a
JSON value that is not checked), ``Optional[T]``, ``Union[str, int]``, ``list[T]``, ``tuple[T, ...]``, ``tuple[T, U]``,
``dict[str, T]``, ``Mapping[str, T]`` and another dataclass.  ``Annotated[T, check, ...]`` calls each check with the
value: ``Within``, ``OneOf``, or a function that raises an error.  Documents that users can write have ``Text``,
``Identifier``, ``Whole`` and ``Number`` in place of ``str``, ``int`` and ``float``.

What a class may have:

- ``from_document``, which reads its documents, and ``to_document``, which writes them;
- ``tag``, the entries by which ``from_document`` of its base class finds it again;
- ``require_agreement``, which raises an error if values that were read contradict each other;
- ``lenient = True``: other versions have written its documents; null counts as absent, and unknown fields are skipped.

``beside``, ``named``, ``omitted`` and ``unknown`` declare fields whose place in the document is another one.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import sys
import typing
from collections.abc import Callable, Mapping
from functools import cache
from typing import Annotated, Any, NamedTuple, TypeVar, Union

from . import names
from .documents import LARGEST_NUMBER, LARGEST_WHOLE, MOST_BYTES, json_value, shown
from .errors import BadData, CerebroError, InvalidArgument, InvalidName
from .records import FIELDS

T = TypeVar("T")
Decode = Callable[[Any], Any]  # of a JSON value; raises Misfit

LARGEST_INTEGER = 1 << 63


class Misfit(Exception):
    """A value that its place in a document cannot have.

    The place is told while the error goes up, from the inside out: values that fit, of which an order may have
    thousands, cost no text.
    """

    def __init__(self, said: str, field: str | None = None) -> None:
        super().__init__(said)
        self.said, self._steps = said, list[str]()
        if field is not None:
            self.within(f".{field}")

    def within(self, step: str) -> Misfit:
        self._steps.append(step)
        return self

    def error(self, where: str, kind: type[CerebroError] = InvalidArgument, hint: str | None = None) -> CerebroError:
        """``where``: the name of the whole document."""
        place = "".join(reversed(self._steps))
        return kind(f"{where}{f': {place[1:]}' if place.startswith('.') else place} {self.said}", hint=hint)


# -- declarations --------------------------------------------------------------------------------------------


class Within:
    """The least and the largest that a number, or the length of a text or list, may be."""

    def __init__(self, least: float, most: float) -> None:
        self.least, self.most = least, most

    def __call__(self, value: Any) -> None:
        if isinstance(value, (int, float)):
            if not self.least <= value <= self.most:
                raise Misfit(f"has to be from {self.least} to {self.most}, not {shown(value)}")
        elif not self.least <= len(value) <= self.most:
            unit = "characters" if isinstance(value, str) else "items"
            raise Misfit(f"has to have {self.least} to {self.most} {unit}, not {len(value)}")


class OneOf:
    """The texts that a text may be."""

    def __init__(self, *choices: str) -> None:
        self.choices = choices

    def __call__(self, value: str) -> None:
        if value not in self.choices:
            raise Misfit(f"has to be one of {', '.join(self.choices)}, not {shown(value)}")


def different(values: Any) -> None:
    """Several may be None."""
    known = [one for one in values if one is not None]
    if len(set(known)) < len(known):
        raise Misfit("has the same item twice")


def _storable(text: str) -> None:
    if len(text) > MOST_BYTES or not names.storable(text):
        raise Misfit(f"has to be a text that PostgreSQL can store, not {shown(text)}")


Text = Annotated[str, _storable]
Identifier = Annotated[str, names.check]
Whole = Annotated[int, Within(0, LARGEST_WHOLE)]
Number = Annotated[float, Within(-LARGEST_NUMBER, LARGEST_NUMBER)]  # finite


def beside(default: Any) -> Any:
    """A field with a dataclass whose fields are beside the others in the document."""
    return dataclasses.field(default=default, metadata={"beside": type(default)})


def named(name: str, default: Any = dataclasses.MISSING) -> Any:
    """A field that has another name in the document."""
    return dataclasses.field(default=default, metadata={"name": name})


def omitted(default: Any, name: str | None = None) -> Any:
    """A field that is not in the document when it has its default, as fields that are None are not."""
    return dataclasses.field(default=default, metadata={"omitted": default, **({"name": name} if name else {})})


def unknown() -> Any:
    """A field with all entries of the document that no other field has."""
    return dataclasses.field(default_factory=dict, metadata={"unknown": True})


# -- documents ---------------------------------------------------------------------------------------------------


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
    kind: Any = type(value)
    write = _writer(kind)
    return value if write is None else write(value)


def encode_fields(value: Any) -> dict[str, Any]:
    """The JSON object of a dataclass, by its fields."""
    kind: Any = type(value)
    has_tag, fields = _written(kind)
    document = value.tag() if has_tag else {}
    for attribute, name, omitted in fields:
        one = getattr(value, attribute)
        if name is None:
            document.update(encode(one))
        elif one != omitted:
            document[name] = encode(one)
    return document


@cache
def _writer(kind: Any) -> Callable[[Any], Any] | None:
    """What encodes the values of a class; None: they are JSON."""
    if hasattr(kind, "to_document"):
        return lambda value: value.to_document()
    if fields_of(kind) is not None:
        return encode_fields
    if issubclass(kind, enum.Enum):
        return lambda value: value.value
    if issubclass(kind, (list, tuple)):
        return lambda value: [encode(one) for one in value]
    return _encode_values if issubclass(kind, dict) else None


def _encode_values(value: dict[str, Any]) -> dict[str, Any]:
    """A dictionary of JSON stays as it is, however large it is."""
    if any(hasattr(one, "to_document") or fields_of(type(one)) for one in value.values()):
        return {name: encode(one) for name, one in value.items()}
    return value


def decode(
    kind: Callable[..., T],
    document: Any,
    where: str,
    error: type[CerebroError] = InvalidArgument,
    hint: str | None = None,
) -> T:
    """The dataclass that a JSON object describes; ``where`` names the object in errors."""
    try:
        return decoded(kind, document)
    except Misfit as misfit:
        raise misfit.error(where, error, hint) from None


def read(kind: Any, value: Any, where: str, hint: str | None = None) -> Any:
    """The value of any type that a field may have, from a document that a user can write; else BadData."""
    try:
        return decoder(kind)(value)
    except Misfit as misfit:
        raise misfit.error(where, BadData, hint) from None


def entry(document: Mapping[str, Any], name: str, kind: Any) -> Any:
    """The value of one entry of an object; null if there is none."""
    try:
        return decoder(kind)(document.get(name))
    except Misfit as misfit:
        raise misfit.within(f".{name}") from None


def decoded(kind: Callable[..., T], document: Any) -> T:
    """As ``decode``, for an object within another one: raises Misfit."""
    if not isinstance(document, dict):
        raise wrong("a JSON object", document)
    schema, read = _schema(kind), 0
    values: dict[str, Any] = {}
    if schema.lenient:
        document = {name: one for name, one in document.items() if one is not None or name in schema.needed}
    for name, (part, inner) in schema.parts.items():
        own = {one: document[one] for one in inner if one in document}
        values[name], read = decoded(part, own), read + len(own)
    for name, (field, required, decode_field) in schema.fields.items():
        if name in document:
            read += 1
            try:
                values[field] = decode_field(document[name])
            except Misfit as misfit:
                raise misfit.within(f".{name}") from None
        elif required:
            raise Misfit(f"lacks the field {name}")
    if read < len(document) and (schema.unknown is not None or not schema.lenient):
        known = names_of(kind)
        others = {name: one for name, one in document.items() if name not in known}
        if schema.unknown is None:
            raise Misfit(f"has no field {shown(next(iter(others)))}; it has: {', '.join(known)}")
        values[schema.unknown] = others
    try:
        found = kind(**values)
        if schema.agrees:
            found.require_agreement()  # type: ignore[attr-defined]
    except InvalidName as error:
        raise Misfit(f"cannot be used: {error.message}") from None
    except ValueError as error:
        raise Misfit(f"cannot be used: {error}") from None
    return found


def tagged(kinds: Mapping[str, Callable[..., T]], name: str, document: Any) -> T:
    """As ``decoded``, of the class that the entry ``name`` of the document chooses among several."""
    if not isinstance(document, dict):
        raise wrong("a JSON object", document)
    values = dict(document)
    key = values.pop(name, None)
    if not isinstance(key, str) or key not in kinds:
        raise Misfit(f"has to be one of {', '.join(kinds)}, not {shown(key)}", name)
    return decoded(kinds[key], values)


def wrong(expected: str, value: Any) -> Misfit:
    return Misfit(f"has to be {expected}, not {shown(value)}")


def has_default(field: dataclasses.Field[Any]) -> bool:
    return field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING


_FIELDS: dict[Any, tuple[dataclasses.Field[Any], ...] | None] = {}  # by class, of those that were asked for


def fields_of(kind: Any) -> tuple[dataclasses.Field[Any], ...] | None:
    """The fields of a dataclass; None of any other class."""
    if kind not in _FIELDS:
        _FIELDS[kind] = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else None
    return _FIELDS[kind]


_NOTHING = object()


@cache
def _written(kind: Any) -> tuple[bool, list[tuple[str, str | None, Any]]]:
    """Whether it has a tag; of each field its name in the document (None: its own entries are there), and the value
    that leaves it out."""
    found: list[tuple[str, str | None, Any]] = []
    for field in fields_of(kind) or ():
        said = field.metadata
        if "beside" in said or "unknown" in said:
            found.append((field.name, None, None))
        elif field.init:
            omitted = said.get("omitted", None if has_default(field) else _NOTHING)
            found.append((field.name, said.get("name", field.name), omitted))
    return hasattr(kind, "tag"), found


class _Schema(NamedTuple):
    """``fields``: by their names in the document, the field, whether it has to be given, and what decodes it.
    ``parts``: by field that is beside, its class and the names of its fields."""

    fields: dict[str, tuple[str, bool, Decode]]
    parts: dict[str, tuple[Any, list[str]]]
    needed: set[str]
    unknown: str | None
    lenient: bool
    agrees: bool


@cache
def _schema(kind: Any) -> _Schema:
    types = _types(kind)
    fields, parts, others = {}, {}, None
    for field in dataclasses.fields(kind):
        said = field.metadata
        if "beside" in said:
            parts[field.name] = (said["beside"], names_of(said["beside"]))
        elif "unknown" in said:
            others = field.name
        elif field.init:
            fields[said.get("name", field.name)] = (field.name, not has_default(field), decoder(types[field.name]))
    needed = {name for name, (_, required, _) in fields.items() if required}
    return _Schema(fields, parts, needed, others, getattr(kind, "lenient", False), hasattr(kind, "require_agreement"))


def _types(kind: Any) -> dict[str, Any]:
    """The types of the fields, as ``typing.get_type_hints`` evaluates them in three times the time."""
    fields, found = {field.name for field in dataclasses.fields(kind)}, dict[str, Any]()
    for base in reversed(kind.__mro__):
        written = vars(base).get("__annotations__", {})
        own = fields & written.keys()
        types = eval(f"[{', '.join(written[name] for name in own)}]", vars(sys.modules[base.__module__]))
        found.update(zip(own, types))
    return found


def names_of(kind: Any) -> list[str]:
    """The fields of the documents of a dataclass."""
    schema = _schema(kind)
    return [*schema.fields, *(name for _, inner in schema.parts.values() for name in inner)]


@cache
def decoder(annotation: Any) -> Decode:
    """What decodes a value of an annotated type."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is Any:
        return lambda value: value
    if annotation in _PLAIN:
        return _PLAIN[annotation]
    if origin is Annotated:
        return _checked(decoder(arguments[0]), arguments[1:])
    if origin is Union:
        return _union(arguments)
    if origin is list:
        return _list(decoder(arguments[0]))
    if origin is tuple:
        items = _list(decoder(arguments[0])) if arguments[1:] == (...,) else _each([decoder(one) for one in arguments])
        return lambda value: tuple(items(value))
    if origin in (dict, Mapping):
        return _dict(arguments[1])
    own = getattr(origin or annotation, "from_document", None)
    if own is not None:
        return _own(own)
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return _enum(annotation)
    # Not is_dataclass(): it would make the methods of a class (core/records.py) that no value may need.
    if isinstance(annotation, type) and any(FIELDS in vars(base) for base in annotation.__mro__):
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


def _own(read: Decode) -> Decode:
    def decode_own(value: Any) -> Any:
        try:
            return read(value)
        except InvalidName as error:
            raise Misfit(f"cannot be used: {error.message}") from None
        except ValueError as error:
            raise Misfit(f"cannot be used: {error}") from None

    return decode_own


def _checked(inner: Decode, checks: tuple[Callable[[Any], Any], ...]) -> Decode:
    def decode_checked(value: Any) -> Any:
        found = inner(value)
        try:
            for check in checks:
                check(found)
        except InvalidName as error:
            raise Misfit(f"cannot be used: {error.message}") from None
        return found

    return decode_checked


def _each(elements: list[Decode]) -> Decode:
    """Of a list with one value of each of these types."""

    def decode_each(value: Any) -> list[Any]:
        if not isinstance(value, (list, tuple)) or len(value) != len(elements):
            raise wrong(f"a list of {len(elements)}", value)
        return [decode(one) for decode, one in zip(elements, value)]

    return decode_each


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
