"""Documents that somebody has changed by hand: each leaf of a JSON document replaced by each of a list of values."""

from __future__ import annotations

import copy
import hashlib
import json
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

MARK = "cerebro_canary"  # a name that no SQL of ours has
CALL = f"(SELECT {MARK}())"
SQL = (
    f"text[], {CALL} AS hacked, NULL::text",
    f"text),'')||coalesce({CALL}::text,'')] AS junk, (ARRAY[string_agg('x'",
    f"text; SELECT {MARK}(); --",
    f"' || {CALL} || '",
    f"$$ || {CALL} || $$",
    f'x", {CALL} AS "y',
    f"x') FROM (VALUES (1)) v; SELECT {MARK}(); SELECT ('",
    f"E'\\\\' || {CALL} --",
    f"%s %L %1$I {CALL}",
    f"/* */ {CALL} /*",
)


def deep(levels: int) -> Any:
    found: Any = []
    for _ in range(levels):
        found = [found]
    return found


OTHERS: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2**31, 2**63, 10**30, 10**400, -(10**400), 0.5, 1e-320, 1e308, -1e308, float("nan"),
    float("inf"), "", "x", "\0", "\ud800", "é" * 40, "x" * 100_000, "one_hot", "fold", "NaN", [], [[]], {}, [None],
    {"": None}, {"kind": "one_hot"}, ["x"] * 3, [1, 2, 3], deep(60),
)  # fmt: skip
DEEP = 3000  # levels: deeper than Python's JSON reader goes


def paths(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places of all values in a document, the document itself first; of a long list the first and the last."""
    yield path
    items: list[tuple[Any, Any]] = []
    if isinstance(document, dict):
        items = list(document.items())
    elif isinstance(document, list):
        items = [(place, document[place]) for place in sorted({0, len(document) - 1})] if document else []
    for key, value in items:
        yield from paths(value, (*path, key))


def replaced(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return copy.deepcopy(value)
    found = copy.deepcopy(document)
    place = found
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return found


def removed(document: Any, path: tuple[Any, ...]) -> Any:
    found = copy.deepcopy(document)
    place = found
    for key in path[:-1]:
        place = place[key]
    del place[path[-1]]
    return found


def changes(document: Any, values: tuple[Any, ...] = (*SQL, *OTHERS)) -> Iterator[tuple[str, Any]]:
    """Where a document was changed, and the changed document."""
    for path in paths(document):
        where = ".".join(map(str, path))
        for value in values:
            yield f"{where} = {str(value)[:40]}", replaced(document, path, value)
        if path:
            yield f"without {where}", removed(document, path)
            if isinstance(path[-1], str):
                for name in (SQL[0], "x", ""):
                    yield f"{where} beside {name!r}", replaced(document, (*path[:-1], name), 1)


def as_jsonb(document: Any) -> str | None:
    """The JSON text if a jsonb can hold it; None if not."""
    try:
        text = json.dumps(document, allow_nan=False)
    except (ValueError, RecursionError):
        return None
    return None if "\\u0000" in text or "\\ud800" in text else text


# -- archives of models --------------------------------------------------------------------------------------


def rewritten(archive: Path, target: Path, change: Callable[[dict[str, bytes]], None], **how: Any) -> Path:
    """The archive with other files; ``change`` gets them by name."""
    with zipfile.ZipFile(archive) as source:
        files = {name: source.read(name) for name in source.namelist()}
    change(files)
    with zipfile.ZipFile(target, "w", **how) as made:
        for name, content in files.items():
            made.writestr(name, content)
    return target


def with_model(files: dict[str, bytes], **changed: Any) -> None:
    """Changes the model, and makes the manifest agree."""
    model = {**json.loads(files["model.json"]), **changed}
    files["model.json"] = json.dumps(model).encode()
    manifest = json.loads(files["manifest.json"])
    manifest["files"] = {name: {"bytes": len(files[name]), "sha256": hashlib.sha256(files[name]).hexdigest()}
                         for name in ("model.json", "weights.bin")}  # fmt: skip
    files["manifest.json"] = json.dumps(manifest).encode()
