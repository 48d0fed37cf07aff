"""Architectures as users give them: JSON of Keras 3 or Keras 2, checked before Keras sees it."""

from __future__ import annotations

import json
from typing import Any

from . import allowlist, legacy
from .errors import InvalidSyntax


def architecture(text: str) -> dict[str, Any]:
    """The Keras-3 form of an architecture, if all of it is on the allow-list."""
    try:
        given = json.loads(text)
    except ValueError as error:
        raise InvalidSyntax(f"the architecture is not JSON: {error}") from error
    built = legacy.to_keras3(given)
    allowlist.check(built)
    return built
