"""Retrieval: functions of Python's standard library by the first sentence of what is written about them.

Two towers, which are one sentence encoder with adapters, learn from three quarters of the pairs.  The questions of the
others look for their function among all.
"""

from __future__ import annotations

import importlib
import inspect
import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from cerebro_db.client.cerebro import Cerebro
from cerebro_db.client.sentence_encoders import WordPieces, sentence_encoder
from tests.bench import report
from tests.bench.adapters import folder_of_encoder
from tests.bench.database import Database
from tests.sql.lab import Json

POPULARITY, UNTRAINED, TOWERS = "popularity", "the encoder as it is", "two towers"
NAMES = {"popularity": POPULARITY, "untrained": UNTRAINED, "towers": TOWERS}
LENGTH, NEAREST, OTHERS, EPOCHS = 24, 10, 3, 2
NOT_READ = {"antigravity", "idlelib", "lib2to3", "test", "this", "tkinter", "turtledemo"}
CONFIGURATION = {
    "architecture": "towers", "loss": "binary_crossentropy", "lora_rank": 8, "learning_rate": 3e-4,
    "adapter_layers": ", ".join(f"*encoder_layer_{block}_*/{part}" for block in (4, 5) for part in ("query", "value")),
}  # fmt: skip


def compared(
    database: Database, chosen: list[str], *, epochs: int | None, record: TextIO, say: Callable[[str], None]
) -> list[Json]:
    found, lab, folder = list(pairs()), database.lab, folder_of_encoder()
    held = np.random.default_rng(1).random(len(found)) < 0.25
    lab("CREATE TABLE functions (id integer PRIMARY KEY, item text, asked text, held boolean)")
    with lab.db.cursor() as cursor:
        for number, (text, item) in enumerate(found):
            cursor.execute("INSERT INTO functions VALUES (%s, %s, %s, %s)", (number, item, text, bool(held[number])))
    lab("SELECT setseed(0.5)")
    lab(
        "CREATE TABLE questions AS SELECT f.asked AS query, other.item, n = 0 AS matches"
        " FROM functions f CROSS JOIN generate_series(0, %s) n JOIN functions other ON other.id ="
        " CASE n WHEN 0 THEN f.id ELSE (f.id + 1 + floor(random() * %s)::integer) %% %s END WHERE NOT f.held",
        OTHERS, len(found) - 1, len(found),
    )  # fmt: skip
    lines = []
    for name in [name for key, name in NAMES.items() if key in chosen or not chosen]:
        began = time.monotonic()
        if name == POPULARITY:
            recall = NEAREST / len(found)  # each is asked for once
        else:
            asked, items = (untrained if name == UNTRAINED else towers)(database, folder, epochs or EPOCHS)
            near = asked @ items.T
            own = near[np.arange(len(asked)), np.flatnonzero(held)]
            recall = float(np.mean((near > own[:, None]).sum(1) < NEAREST))
        line = {"contender": name, "pairs": len(found), "recall": recall, "seconds": time.monotonic() - began}
        print(json.dumps({"work": "retrieval", **line}), file=record, flush=True)
        say(f"retrieval {name}: recall {recall:.3f}, {line['seconds']:.0f} s")
        lines.append(line)
    return lines


def table(lines: list[Json]) -> str:
    rows = [[one["contender"], f"{one['recall']:.3f}", f"{one['seconds']:.0f}"] for one in lines]
    return report.table(["", f"recall among the {NEAREST} nearest", "seconds"], rows)


def pairs() -> Iterator[tuple[str, str]]:
    """What is written about a class, a function or a method, and the words of its name.  No text comes twice."""
    seen = set()
    for module in sorted(sys.stdlib_module_names - NOT_READ):
        if module.startswith("_"):
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                members = vars(importlib.import_module(module))
            except ImportError:  # of another system
                continue
        for path, one in _members(module, members):
            text = (inspect.getdoc(one) or "").split("\n\n")[0].replace("\n", " ").split(". ")[0][:200]
            if len(text.split()) >= 4 and "(" not in text.split()[0] and text not in seen:
                seen.add(text)
                yield text, path.replace(".", " ").replace("_", " ")


def _members(module: str, members: Any) -> Iterator[tuple[str, Any]]:
    for name, one in sorted(members.items()):
        if name.startswith("_") or getattr(one, "__module__", None) not in (module, None):
            continue
        if inspect.isfunction(one) or inspect.isbuiltin(one):
            yield f"{module} {name}", one
        elif inspect.isclass(one):
            yield f"{module} {name}", one
            own = ((inner, its) for inner, its in sorted(vars(one).items()) if not inner.startswith("_"))
            yield from ((f"{module} {name} {inner}", its) for inner, its in own if callable(its) and its.__doc__)


def untrained(database: Database, folder: Path, epochs: int) -> tuple[np.ndarray, np.ndarray]:
    tokens, encoder = WordPieces(folder, LENGTH), sentence_encoder(folder, LENGTH)

    def vectors(query: str) -> np.ndarray:
        return np.asarray(encoder.predict(np.array([tokens(text) for (text,) in database.lab(query)]), verbose=0))

    return (
        vectors("SELECT asked FROM functions WHERE held ORDER BY id"),
        vectors("SELECT item FROM functions ORDER BY id"),
    )


def towers(database: Database, folder: Path, epochs: int) -> tuple[np.ndarray, np.ndarray]:
    lab, tokens = database.lab, WordPieces(folder, LENGTH)
    with Cerebro(lab.db) as cerebro:
        cerebro.add_architecture("towers", _network(folder))
        cerebro.fit(
            "questions", "retrieval_models", [CONFIGURATION], target="matches", inputs="query, item",
            prepare={"query": tokens, "item": tokens}, epochs=epochs, options={"seed": 1},
        )  # fmt: skip

    def vectors(query: str, layer: str) -> np.ndarray:
        rows = lab("SELECT vector FROM cerebro.embed('retrieval_models', %s, %s, 'id')", query, layer)
        return np.array([vector for (vector,) in rows], np.float32)

    return (
        vectors("SELECT id, asked AS query, '' AS item FROM functions WHERE held ORDER BY id", "query_vector"),
        vectors("SELECT id, '' AS query, item FROM functions ORDER BY id", "item_vector"),
    )


def _network(folder: Path) -> Any:
    from keras import Input, Model, layers

    encoder = sentence_encoder(folder, LENGTH)
    ends = [Input((LENGTH,), dtype="int32", name=name) for name in ("query", "item")]
    # A layer for each, which has a name of its own: the encoder itself is called twice.
    asked, item = (layers.Identity(name=f"{end.name}_vector")(encoder(end)) for end in ends)
    near = layers.Rescaling(10.0)(layers.Dot(1)([asked, item]))
    matches = layers.Dense(1, activation="sigmoid", kernel_initializer="ones", kernel_constraint="non_neg")(near)
    return Model(ends, matches, name="towers")
