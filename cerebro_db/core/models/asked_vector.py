"""What ``cerebro.embed`` asks of a trainer: an output more, the vector of an inner layer.

It is a key of the document beside "config", so programs with other layers are other programs.  Documents of users
cannot have it: allowlist.py refuses it.
"""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]

_KEY = "vector"


def with_vector(architecture: Json, layer: str | None) -> Json:
    """``layer``: its name, behind those of the models that it is in, separated by /; None: the last hidden one."""
    return {**architecture, _KEY: layer}


def apart(architecture: Json) -> tuple[Json, str | None, bool]:
    """The document without the key, the layer, and whether a vector is asked for."""
    rest = {key: value for key, value in architecture.items() if key != _KEY}
    return rest, architecture.get(_KEY), _KEY in architecture
