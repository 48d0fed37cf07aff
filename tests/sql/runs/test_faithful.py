"""A model that hopped through the database equals, bit for bit, the model that one plain Keras process trains.

This holds beside other runs, on a loaded machine, after a cancel and a resume, and after an extension.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from cerebro_db.core.scheduling.ring import derived_seed
from cerebro_db.nn.rows.data import row_order
from tests.nn import configurations as c
from tests.sql.lab import Lab, eventually

pytestmark = pytest.mark.tensorflow  # with which oracle.py trains

SEGMENTS, EPOCHS, ROWS = 2, 2, 147  # partitions of 74 and 73 rows, which no batch size below divides
OPTIONS = {"deterministic": True, "seed": 3}
DTYPES = {"uint8": "u1", "int16": "<i2", "int32": "<i4", "float32": "<f4"}
CLASSES = "categorical_crossentropy"

DIGITS = {
    "Adam, BatchNorm, Dropout": c.configuration(c.noisy_mlp(), CLASSES, "Adam", learning_rate=0.01),
    "SGD with momentum": c.configuration(c.mlp(), CLASSES, "SGD", learning_rate=0.1, momentum=0.9, batch_size=10),
    "RMSprop, CNN": c.configuration(c.cnn(), CLASSES, "RMSprop", learning_rate=0.005, batch_size=32),
    "AdamW, weight decay, cosine schedule": c.configuration(
        c.noisy_mlp(), CLASSES, "AdamW", learning_rate=c.cosine(0.01, 20), weight_decay=0.02
    ),
}
FORGETFUL = ("SGD with momentum", "AdamW, weight decay, cosine schedule")  # also trained without their optimizers
SENTENCES = {"Embedding, LSTM": c.configuration(c.lstm(), CLASSES, "Adam", learning_rate=0.02)}


@dataclass
class Trained:
    run: int
    table: str
    weights: dict[int, bytes]
    states: dict[int, bytes]


def trained(lab: Lab, run: int, table: str) -> Trained:
    return Trained(run, table, lab.weights(table), lab.states(run))


@pytest.fixture(scope="module")
def tables(lab: Lab) -> Lab:
    lab.digits(ROWS, SEGMENTS)
    columns = c.made_up(ROWS, 3)
    rows = [(n, columns["words"][n].tolist(), int(columns["mood"][n].argmax())) for n in range(ROWS)]
    lab.table("sentences", {"id": "int", "words": "int[]", "mood": "int"}, rows)
    lab.pack("sentences", "sentences_packed", "mood", "words", segments=SEGMENTS, seed=1)
    for name, configurations in (("digits_mst", DIGITS), ("sentences_mst", SENTENCES)):
        lab.selection(
            name,
            [
                (lab.architecture(one["architecture"]), json.dumps(one["compile"]), json.dumps(one["fit"]))
                for one in configurations.values()
            ],
        )
    return lab


@pytest.fixture(scope="module")
def digits(tables: Lab) -> Trained:
    """A run without disturbances."""
    return trained(tables, tables.fit("digits_packed", "calm", "digits_mst", EPOCHS, options=OPTIONS), "calm")


@pytest.fixture(scope="module")
def sentences(tables: Lab) -> Trained:
    """A run of half of the epochs, extended by the other half."""
    run = tables.fit("sentences_packed", "moods", "sentences_mst", 1, options=OPTIONS)
    tables("SELECT resume(%s, epochs => %s)", run, EPOCHS)
    return trained(tables, run, "moods")


# -- the oracle ------------------------------------------------------------------------------------------


def partitions(lab: Lab, table: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """The rows of each segment, prepared for Keras without the product's code."""
    layout = lab.value(f"SELECT layout FROM {table}_summary")
    (x, y), found = (layout["inputs"][0], layout["outputs"][0]), []
    for part in layout["partitions"]:
        pieces = lab(
            f'SELECT "{x["name"]}", "{y["name"]}" FROM {table} WHERE __dist_key__ = %s ORDER BY buffer_id', part["key"]
        )
        xs, ys = (
            np.frombuffer(b"".join(bytes(p) for p in payloads), DTYPES[v["dtype"]]).reshape(part["rows"], *v["shape"])
            for v, payloads in zip((x, y), zip(*pieces))
        )
        inputs = xs.astype("int32") if x["name"] == "words" else xs.astype("float32") / np.float32(x["scale"])
        found.append((inputs, ys.astype("float32")))
    return found


def cases(lab: Lab, done: Trained, table: str, configurations: dict[str, Any], folder: Path) -> Iterator[Any]:
    rows = partitions(lab, table)
    assert {len(x) for x, _ in rows} == {73, 74}
    seed = lab.value("SELECT seed FROM run WHERE run = %s", done.run)
    for key, (name, configuration) in enumerate(configurations.items(), 1):
        place, initial = lab(
            "SELECT place, m.seed FROM model m JOIN configuration USING (run, owner, configuration)"
            " WHERE run = %s AND configuration = %s",
            done.run,
            key,
        )[0]
        shape = configuration["architecture"]["config"]["layers"][0]["config"]["batch_shape"][1:]
        arrays = {}
        visits = lab("SELECT hop, segment FROM hop WHERE run = %s AND model = %s ORDER BY hop", done.run, key)
        assert len(visits) == EPOCHS * SEGMENTS
        for number, (hop, segment) in enumerate(visits):
            x, y = rows[segment]
            order = row_order(len(x), derived_seed(seed, "rows", place, hop), 0)
            arrays[f"x{number}"] = x[order].reshape(len(x), *shape) if None not in shape else x[order]
            arrays[f"y{number}"] = y[order]
        file = folder / f"{table}.{key}.npz"
        np.savez(file, **arrays)
        common = {**configuration, "visits": str(file), "count": len(visits), "seed": initial}
        common["batch_size"] = configuration["fit"]["batch_size"]
        for forgetful in (False, True) if name in FORGETFUL else (False,):
            out = folder / f"{table}.{key}.{forgetful}.out.npz"
            yield {**common, "name": name, "forgetful": forgetful, "out": str(out)}


def trained_by_keras(asked: list[dict[str, Any]], folder: Path) -> list[list[np.ndarray]]:
    """The variables of each case after plain Keras has trained it, in a process of its own."""
    (folder / "cases.json").write_text(json.dumps(asked))
    script = Path(__file__).with_name("oracle.py")
    subprocess.run([sys.executable, str(script), str(folder / "cases.json")], check=True)
    found = []
    for case in asked:
        with np.load(case["out"]) as arrays:
            found.append([arrays[file] for file in arrays.files])
    return found


@pytest.fixture(scope="module")
def plain(
    tables: Lab, digits: Trained, sentences: Trained, tmp_path_factory: pytest.TempPathFactory
) -> dict[tuple[str, bool], list[np.ndarray]]:
    """The variables of plain Keras after the same visits; the key is (name, whether each visit has a new optimizer)."""
    folder = tmp_path_factory.mktemp("oracle")
    asked = [
        *cases(tables, digits, "digits_packed", DIGITS, folder),
        *cases(tables, sentences, "sentences_packed", SENTENCES, folder),
    ]
    return {(case["name"], case["forgetful"]): arrays for case, arrays in zip(asked, trained_by_keras(asked, folder))}


def variables(state: bytes) -> list[np.ndarray]:
    tensors = safetensors.numpy.load(state)
    return [tensors[name] for name in sorted(tensors)]  # The names begin with numbers.


def same(left: list[np.ndarray], right: list[np.ndarray]) -> list[bool]:
    assert [(a.shape, a.dtype) for a in left] == [(a.shape, a.dtype) for a in right]
    return [a.tobytes() == b.tobytes() for a, b in zip(left, right)]


NAMED = [(name, "digits", key) for key, name in enumerate(DIGITS, 1)]
NAMED += [(name, "sentences", key) for key, name in enumerate(SENTENCES, 1)]


@pytest.fixture
def hopped(request: pytest.FixtureRequest) -> Trained:
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize(("name", "hopped", "key"), NAMED, indirect=["hopped"])
def test_hopping_changes_no_bit(plain: Any, name: str, hopped: Trained, key: int) -> None:
    """Compares weights, moving averages, seeds and the state of the optimizer."""
    expected = plain[name, False]
    assert all(same(variables(hopped.states[key]), expected))
    weights = hopped.weights[key]
    assert weights and b"".join(a.tobytes() for a in expected).startswith(weights)


@pytest.mark.parametrize(("name", "hopped", "key"), [one for one in NAMED if one[0] in FORGETFUL], indirect=["hopped"])
def test_the_comparison_would_notice_a_lost_optimizer(plain: Any, name: str, hopped: Trained, key: int) -> None:
    """The oracle with a new optimizer at each hop, as in MADlib, has other weights."""
    assert variables(hopped.states[key])[0].tobytes() != plain[name, True][0].tobytes()
    assert not b"".join(a.tobytes() for a in plain[name, True]).startswith(hopped.weights[key])


def test_the_initial_weights_depend_on_the_configuration(digits: Trained) -> None:
    assert len(set(digits.weights.values())) == len(DIGITS)


# -- timing changes nothing ------------------------------------------------------------------------------


@pytest.mark.thorough  # test_recovery.py cancels, tests/core/test_orchestrator.py has other timing
def test_the_same_bits_on_a_busy_machine_and_after_a_cancel(tables: Lab, digits: Trained) -> None:
    """Two runs at once on the same data, beside two busy processes.  One run is cancelled and resumed."""
    load = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        broken = tables.submit("digits_packed", "broken", "digits_mst", EPOCHS, options=OPTIONS)
        eventually(lambda: tables.value("SELECT count(*) FROM hop WHERE run = %s", broken) >= 4, 120, "four hops")
        assert tables.value("SELECT cancel(%s)", broken)
        busy = tables.fit("digits_packed", "busy", "digits_mst", EPOCHS, options=OPTIONS)
        assert tables.value("SELECT wait(%s)", broken) == "cancelled"
        before = tables.value("SELECT count(*) FROM hop WHERE run = %s", broken)
        assert 4 <= before < len(DIGITS) * SEGMENTS * EPOCHS
        tables("SELECT resume(%s)", broken)
    finally:
        for process in load:
            process.kill()
            process.wait()
    for run, table in ((busy, "busy"), (broken, "broken")):
        assert trained(tables, run, table).states == digits.states
        assert trained(tables, run, table).weights == digits.weights
    assert tables.value("SELECT count(*) FROM hop WHERE run = %s", broken) == len(DIGITS) * SEGMENTS * EPOCHS
