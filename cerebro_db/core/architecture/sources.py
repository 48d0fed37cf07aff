"""What a configuration can name as its architecture: a kind that is built for the packed columns, or Keras JSON.

Both have parameters.  Those of a kind have defaults; those of Keras JSON are its "$units", which need values.  Both
have ``frozen`` (freezing.py) and the parameters of adapters (adapters/document.py), too; without them, layers train as
the JSON says.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Union

from ..errors import InvalidArgument
from ..packing.layout import Layout
from ..parameters.flat import FROZEN, OF_EVERY_ARCHITECTURE
from . import building, freezing, keras_json, placeholders, trees
from .adapters import document

Json = dict[str, Any]


class Kind:
    """A kind of architecture; ``fixed``: its parameters that have a value, or the name of another parameter ("$n")."""

    def __init__(self, kind: str, fixed: Mapping[str, Any], where: str, layout: Layout | None = None) -> None:
        if kind not in building.PARAMETERS:
            kinds = ", ".join(building.PARAMETERS)
            raise InvalidArgument(f"{where}: there is no kind {kind!r}.", hint=f"Kinds: {kinds}.")
        building.parameters_of(kind, dict(fixed), where)
        self.kind, self.fixed, self.layout, self._where = kind, dict(fixed), layout, where
        self._named = {name: value[1:] for name, value in fixed.items() if str(value).startswith("$")}

    @property
    def needed(self) -> set[str]:
        """The parameters that have no default."""
        return set(self._named.values())

    @property
    def parameters(self) -> set[str]:
        """The parameters that can be given."""
        return {name for name in building.PARAMETERS[self.kind] if name not in self.fixed} | self.needed

    def fitted(self, layout: Layout) -> Kind:
        return Kind(self.kind, self.fixed, self._where, layout)

    def made(self, values: Mapping[str, Any]) -> Json:
        """The architecture for the columns of the layout."""
        assert self.layout is not None
        given = {name: value for name, value in self.fixed.items() if name not in self._named}
        given.update((name, values[other]) for name, other in self._named.items())
        given.update((name, value) for name, value in values.items() if name in building.PARAMETERS[self.kind])
        return building.architecture(self.kind, self.layout, given, self._where)

    @property
    def written(self) -> str:
        """As the log has it."""
        return json.dumps({"kind": self.kind, "parameters": self.fixed})


Source = Union[Kind, dict[str, Any], None]  # Keras JSON, as it was given; None: JSON without parameters


def is_grown(source: Source) -> bool:
    """Whether its models are trees, which no optimizer trains."""
    return source.kind == trees.KIND if isinstance(source, Kind) else trees.are_grown(source)


def of_log(text: str, layout: Layout, where: str) -> Kind | Json:
    """What ``Kind.written`` was made from, or the Keras JSON."""
    given = keras_json.decoded(text)
    if set(given) == {"kind", "parameters"}:
        return Kind(str(given["kind"]), given["parameters"], where, layout)
    return given


def template(source: Source, given: Collection[str] = ()) -> Source:
    """What has to be made anew for each configuration; None for Keras JSON that is trained as it is.

    ``given``: the parameters that have values.
    """
    if isinstance(source, Kind) or (
        source and (OF_EVERY_ARCHITECTURE & {*given} or placeholders.has_parameters(source))
    ):
        return source
    return None


def parameters(source: Source) -> set[str]:
    """The parameters that an architecture can be given."""
    if source is None:
        return set()
    return (source.parameters if isinstance(source, Kind) else needed(source)) | OF_EVERY_ARCHITECTURE


def single_valued(every: Iterable[Source]) -> set[str]:
    """The parameters of the architectures that take neither a list nor an object: those of kinds alone."""
    names: dict[bool, set[str]] = {True: set(), False: set()}
    for source in every:
        names[isinstance(source, Kind)] |= parameters(source)
    return names[True] - names[False] | OF_EVERY_ARCHITECTURE


def needed(source: Source) -> set[str]:
    """The parameters that an architecture must be given."""
    if isinstance(source, Kind):
        return source.needed
    return placeholders.names(source) if template(source) is not None else set()


def made(source: Source, values: Mapping[str, Any]) -> Json:
    """The architecture with these values of its parameters."""
    named = needed(source)
    training = {name: value for name, value in values.items() if name in OF_EVERY_ARCHITECTURE and name not in named}
    own = {name: value for name, value in values.items() if name not in training}
    found = source.made(own) if isinstance(source, Kind) else _filled(source, own)
    if not training:
        return found
    adapted = document.of(training)
    wanted = bool(adapted) and document.wanted(adapted)
    found = keras_json.architecture(found)
    if FROZEN in training:
        found = freezing.with_frozen(found, training[FROZEN])
    elif not freezing.any_frozen(found):
        found = freezing.with_frozen(found, -1)
    return document.with_adapters(found, adapted) if wanted else found


def _filled(source: Json | None, values: Mapping[str, Any]) -> Json:
    assert source is not None
    return placeholders.filled(source, values) if template(source) is not None else source
