"""JAX's own cache of compiled programs: it keeps the small ones, of building models and of predicting."""

from __future__ import annotations

import contextlib
import math
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

UNREADABLE = re.compile("Error reading persistent compilation cache")  # how JAX's warning begins
LEAST_SECONDS = "jax_persistent_cache_min_compile_time_secs"  # that compiling took, of what is kept


def keep_in(jax: Any, folder: str) -> None:
    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update(LEAST_SECONDS, 0.0)
    _mend_when_warned(folder)


@contextlib.contextmanager
def without_cache(jax: Any) -> Iterator[None]:
    """What is compiled within is not kept by JAX."""
    before = getattr(jax.config, LEAST_SECONDS)
    jax.config.update(LEAST_SECONDS, math.inf)
    try:
        yield
    finally:
        jax.config.update(LEAST_SECONDS, before)


def _mend_when_warned(kept: str) -> None:
    """Remove unreadable files of the compilation cache when JAX warns about one.

    A trainer that was killed, or that had no room on disk, leaves a truncated file.  JAX warns about it, compiles, and
    does not replace the file, so every later trainer would compile again.  JAX warns before it compiles: if the file is
    removed at the warning, JAX writes it anew.
    """
    show = warnings.showwarning

    def shown(*warning: Any, **more: Any) -> None:
        if UNREADABLE.match(str(warning[0])):
            _remove_unreadable(kept)
        show(*warning, **more)

    warnings.filterwarnings("always", UNREADABLE.pattern)
    warnings.showwarning = shown


def _remove_unreadable(kept: str) -> None:
    from jax._src.compilation_cache import decompress_executable

    for file in Path(kept).glob("*-cache"):
        try:
            decompress_executable(file.read_bytes())
        except Exception:  # each compression has errors of its own
            file.unlink(missing_ok=True)
