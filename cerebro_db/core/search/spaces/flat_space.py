"""A space as users write it, with the keys of a flat configuration, becomes the parts that read_space.py reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...architecture import sources
from ...architecture.sources import Source
from ...parameters import flat
from .read_space import is_dimension, require_dimension
from .space import ARCHITECTURE, Label


def parted(given: Mapping[str, Any], architectures: Mapping[Label, Source], where: str) -> dict[str, Any]:
    """The parts of a space; ``architectures``: those that it chooses from, by their labels."""
    known = {name for one in architectures.values() for name in sources.parameters(one)}
    found = flat.parts(given, known, where)
    for key, value in flat.compounds(given, sources.single_valued(architectures.values())):
        require_dimension(key, value)
    for key, name in flat.OF_FIT.items():  # a dimension has the name that the user wrote
        value = found.fit.get(name)
        if key != name and isinstance(value, dict) and is_dimension(value):
            found.fit[name] = {"name": key, **value}
    return {
        ARCHITECTURE: list(architectures),
        flat.ARCH_PARAMS: found.arch_params,
        flat.COMPILE: found.compile,
        flat.FIT: found.fit,
    }
