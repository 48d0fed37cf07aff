"""A model whose state does not fit trains in a trainer whose private memory the kernel limits to 600 MB."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cerebro_db.core.protocol import Describe
from tests.thorough import TIMES

from . import configurations as c
from .trainer_client import OrderFailed, Trainer, Visit, full

pytestmark = pytest.mark.tensorflow

LIMIT_MB, WIDTH, ROWS = 600, 2048, 32
LAYERS = 20 if TIMES >= 5 else 13  # a state of 1 GB, or of 650 MB
LAYOUT = {"inputs": [c.column("facts", [64])], "outputs": [c.target("digit", [10])]}
STACK = c.sequential(
    c.input_layer([64]),
    *[c.layer("Dense", f"dense{n}", units=WIDTH, activation="relu") for n in range(LAYERS + 1)],
    c.layer("Dense", "out", units=10, activation="softmax"),
)
CONFIGURATION = c.configuration(STACK, "categorical_crossentropy", "Adam", batch_size=16, learning_rate=1e-4)
WIDER = c.configuration(
    c.sequential(c.input_layer([64]), c.layer("Dense", "wide", units=1 << 20), c.layer("Dense", "out", units=10)), "mse"
)


def with_rows(trainer: Trainer) -> Trainer:
    rng = np.random.default_rng(0)
    digits = c.one_hot(rng.integers(0, 10, ROWS), 10)
    trainer.data("rows", LAYOUT, facts=rng.standard_normal((ROWS, 64)), digit=digits)
    return trainer


class Watch:
    """The largest figures of a process's memory, in MB."""

    def __init__(self, pid: int) -> None:
        self._pid, self.most = pid, {"private": 0, "anonymous": 0, "pss": 0}

    def look(self) -> None:
        with contextlib.suppress(OSError):
            status = Path(f"/proc/{self._pid}/status").read_text().splitlines()
            rollup = Path(f"/proc/{self._pid}/smaps_rollup").read_text().splitlines()
            for name, lines, key in (
                ("private", status, "VmData:"),
                ("anonymous", rollup, "Pss_Anon:"),
                ("pss", rollup, "Pss:"),
            ):
                found = next((int(line.split()[1]) >> 10 for line in lines if line.startswith(key)), 0)
                self.most[name] = max(self.most[name], found)


@contextlib.contextmanager
def watched(trainer: Trainer) -> Iterator[Watch]:
    watch, ended = Watch(trainer.process.pid), threading.Event()

    def look() -> None:
        while not ended.wait(0.02):
            watch.look()

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield watch
    finally:
        ended.set()
        thread.join()


def trained(trainer: Trainer) -> list[Visit]:
    """Two visits; the second begins with the file that the first has left."""
    first = trainer.train(CONFIGURATION, "rows", out=str(trainer.folder / "first"))
    return [first, trainer.train(CONFIGURATION, "rows", full(first), out=str(trainer.folder / "second"))]


def test_a_model_that_does_not_fit_trains_in_600_mb(tmp_path: Path) -> None:
    limits: dict[str, Any] = {"engine": "tensorflow", "memory_limit_mb": LIMIT_MB}
    small = with_rows(Trainer(tmp_path / "small", **limits))
    with watched(small) as watch:
        described = small(Describe(CONFIGURATION, LAYOUT))
        visits = trained(small)
        evaluated = small.evaluate(CONFIGURATION, "rows", full(visits[1]))
        small.predict(CONFIGURATION, "rows", full(visits[1]), str(tmp_path / "predicted"))
    assert described.state_bytes > LAYERS * 50 * 10**6 > LIMIT_MB * 10**6 and described.shards > 1
    assert described.memory_mb <= LIMIT_MB < described.uncut_memory_mb
    assert 0 < watch.most["anonymous"] <= watch.most["private"] <= LIMIT_MB
    with pytest.raises(OrderFailed, match="the layer wide alone needs about [0-9,]+ MB"):
        small(Describe(WIDER, LAYOUT))
    small.close()

    large = with_rows(Trainer(tmp_path / "large", engine="tensorflow", shard="never"))
    whole = trained(large)
    assert [one.loss for one in visits] == [one.loss for one in whole]
    assert [one.state.sha256 for one in visits] == [one.state.sha256 for one in whole]
    assert evaluated.loss == large.evaluate(CONFIGURATION, "rows", full(whole[1])).loss
    large.close()


def test_without_a_cut_the_trainer_says_that_the_model_does_not_fit(tmp_path: Path) -> None:
    trainer = with_rows(Trainer(tmp_path, engine="tensorflow", memory_limit_mb=LIMIT_MB, shard="never"))
    with pytest.raises(OrderFailed, match="does not fit into memory") as caught:
        trainer.train(CONFIGURATION, "rows")
    assert caught.value.kind == "OutOfMemory"
    trainer.close()
