"""Seconds per batch of models that are cut into shards, with and without reading ahead, against whole models.

Run by hand on a machine with nothing else to do: ``python -m tests.bench.shards``.
"""

from __future__ import annotations

import functools
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from cerebro_db.nn.engines.base import open_engine
from cerebro_db.nn.rows.data import Dataset, Slab
from cerebro_db.nn.shards import plan
from cerebro_db.nn.shards.plan import Planner
from cerebro_db.nn.shards.program import ShardedProgram
from tests.nn import configurations as c

BATCHES, SHARDS = 5, 8
WIDTH, LAYERS = 2048, 20
DIM, BLOCKS, STEPS, WORDS = 1024, 6, 32, 8000
Json = dict[str, Any]


def stack() -> tuple[Json, Json]:
    layers = [c.layer("Dense", f"dense{n}", units=WIDTH, activation="relu") for n in range(LAYERS + 1)]
    out = c.layer("Dense", "out", units=10, activation="softmax")
    layout = {"inputs": [c.column("facts", [64])], "outputs": [c.target("digit", [10])]}
    return c.sequential(c.input_layer([64]), *layers, out), layout


def transformer() -> tuple[Json, Json]:
    layers: list[Any] = [
        (c.input_layer([STEPS], "int32", "words"), []),
        (c.layer("Embedding", "embedding", input_dim=WORDS, output_dim=DIM), ["words"]),
    ]
    last = "embedding"
    for n in range(BLOCKS):
        layers += [
            (c.layer("LayerNormalization", f"before{n}"), [last]),
            (c.layer("MultiHeadAttention", f"attention{n}", num_heads=8, key_dim=DIM // 8), [f"before{n}"] * 2),
            (c.layer("Add", f"sum{n}"), [last, f"attention{n}"]),
            (c.layer("LayerNormalization", f"norm{n}"), [f"sum{n}"]),
            (c.layer("Dense", f"wide{n}", units=4 * DIM, activation="gelu"), [f"norm{n}"]),
            (c.layer("Dense", f"narrow{n}", units=DIM), [f"wide{n}"]),
            (c.layer("Add", f"end{n}"), [f"sum{n}", f"narrow{n}"]),
        ]
        last = f"end{n}"
    layers += [
        (c.layer("GlobalAveragePooling1D", "pool"), [last]),
        (c.layer("Dense", "out", units=10, activation="softmax"), ["pool"]),
    ]
    model = c.functional(layers, ["words"], ["out"])
    for layer in model["config"]["layers"]:
        if layer["class_name"] == "MultiHeadAttention":
            call = layer["inbound_nodes"][0]
            call["args"] = call["args"][0]  # query and value
    return model, {"inputs": [c.column("words", [STEPS], "int32")], "outputs": [c.target("digit", [10])]}


def rows(layout: Json, count: int, folder: str) -> Dataset:
    rng, files = np.random.default_rng(0), {}
    (column,) = layout["inputs"]
    shape = (count, *column["shape"])
    values = rng.integers(0, WORDS, shape) if column["dtype"] == "int32" else rng.standard_normal(shape)
    digits = c.one_hot(rng.integers(0, 10, count), 10)
    for name, array, dtype in ((column["name"], values, column["dtype"]), ("digit", digits, "int16")):
        files[name] = str(Path(folder) / name)
        np.ascontiguousarray(array, dtype).tofile(files[name])
    return Dataset(layout, count, files)


def seconds(program: Any, configuration: Json, data: Dataset, batch_size: int) -> tuple[float, float]:
    """Of a batch: by the clock, and of processors. The first batches are traced, too."""
    program.put_numbers(configuration)
    program.initialise(configuration, 1)
    program.start_metrics()
    best = (float("inf"), 0.0)
    for start in range(0, data.rows, batch_size):
        began, spent = time.monotonic(), time.process_time()
        program.train(Slab(data, None, start, start + batch_size), batch_size)
        if start:
            best = min(best, (time.monotonic() - began, time.process_time() - spent))
    return best


def main() -> None:
    engine: Any = open_engine("tensorflow", threads=1, deterministic=True)
    engine.warm_up()
    plan.give_back_memory()
    with tempfile.TemporaryDirectory() as folder:
        for name, (architecture, layout), batch_size in (("dense", stack(), 256), ("transformer", transformer(), 64)):
            data = rows(layout, BATCHES * batch_size, folder)
            configuration = c.configuration(architecture, "categorical_crossentropy", "Adam", batch_size=batch_size)
            whole = seconds(engine.program(configuration, layout, 0), configuration, data, batch_size)
            print(f"{name}: whole {whole[0]:.2f} s, of processors {whole[1]:.2f}")
            for ahead in (True, False):
                choose = functools.partial(Planner.into, number=SHARDS, ahead=ahead)
                program = ShardedProgram(
                    engine,
                    configuration,
                    layout,
                    0,
                    choose,
                    batch_size=batch_size,
                    folder=folder,
                    ahead=ahead,
                )
                cut = seconds(program, configuration, data, batch_size)
                read, written = (each // BATCHES >> 20 for each in program.traffic)
                print(
                    f"{name}: {len(program.shards)} shards, {'ahead' if ahead else 'not ahead'} {cut[0]:.2f} s,"
                    f" of processors {cut[1]:.2f}, {cut[0] / whole[0]:.2f} times; read {read} MB, written {written} MB"
                )


if __name__ == "__main__":
    main()
