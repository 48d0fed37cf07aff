"""Functions that one trainer has traced and left for the next: the same bits, and never those of another program."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cerebro_db.core.protocol import CustomFunction, Describe, StartEngine, TrainerSettings
from tests.nn import configurations as c
from tests.nn.trainer_client import Trainer, full
from tests.thorough import TIMES

pytestmark = pytest.mark.tensorflow
CROSS = "categorical_crossentropy"
CONFIGURATIONS = {
    "dropout and moving statistics": (c.noisy_mlp(), c.DIGITS, c.configuration(c.noisy_mlp(), CROSS)),
    "a penalty and momentum as variables": (
        c.mlp(),
        c.DIGITS,
        c.configuration(c.mlp(), CROSS, "SGD", learning_rate=0.1, momentum=0.9),
    ),
    "class weights": (c.mlp(), c.DIGITS, c.configuration(c.mlp(), CROSS, class_weight={"1": 5.0})),
    "a recurrent layer": (c.lstm(), c.SENTENCES, c.configuration(c.lstm(), CROSS)),
    "two ends": (c.two_by_two(), c.TWO_BY_TWO, c.configuration(c.two_by_two(), ["mse", CROSS], metrics=None)),
}  # fmt: skip
if TIMES < 5:  # tests/nn/test_hops.py has their bits, and what they trace is traced as for the others
    del CONFIGURATIONS["a penalty and momentum as variables"], CONFIGURATIONS["class weights"]
SOURCE = "def own_loss(y_true, y_pred):\n    return {}.0 * ops.mean(ops.square(y_true - y_pred), axis=-1)\n"


def registered(factor: int) -> CustomFunction:
    source = SOURCE.format(factor)
    return CustomFunction("own_loss", 1, "loss", source, hashlib.sha256(source.encode()).hexdigest())


@contextlib.contextmanager
def trainer(folder: Path, kept: Path | None, engine: str = "tensorflow") -> Iterator[Trainer]:
    settings = TrainerSettings(engine=engine, threads=1, deterministic=True)
    one = Trainer(folder, first=StartEngine(settings, None if kept is None else str(kept)))
    try:
        random = np.random.default_rng(1)
        images, labels = random.integers(0, 16, (50, 8, 8)), random.integers(0, 10, 50)
        one.data("digits", c.DIGITS, image=images, digit=c.one_hot(labels, 10))
        for name, layout in (("sentences", c.SENTENCES), ("two", c.TWO_BY_TWO), ("prices", c.PRICES)):
            one.data(name, layout, **c.made_up(50, 3))
        yield one
    finally:
        one.close()


def made(one: Trainer, configuration: Any, layout: Any, functions: Any = None) -> tuple[Any, ...]:
    names = {id(c.DIGITS): "digits", id(c.SENTENCES): "sentences", id(c.TWO_BY_TWO): "two", id(c.PRICES): "prices"}
    handle = names[id(layout)]
    one.train(configuration, handle, seed=7, functions=functions)  # so that the next must replace a state
    state = None
    for visit in range(2):  # the second begins with what the first left in a file
        trained = one.train(
            configuration, handle, state, shuffle_seed=visit, out=str(one.folder / f"out.{visit}"), functions=functions
        )
        state = full(trained)
    assert state is not None
    if functions:
        return state.sha256, trained.loss
    evaluated = one.evaluate(configuration, handle, state)
    predicted = one.predict(configuration, handle, state, str(one.folder / "predicted"))
    outputs = [(one.folder / f"predicted.{number}").read_bytes() for number in range(len(predicted.outputs))]
    return state.sha256, trained.loss, trained.metrics, evaluated.loss, evaluated.metrics, outputs


def files(kept: Path) -> dict[Path, tuple[int, int]]:
    return {one: (one.stat().st_ino, one.stat().st_size) for one in (kept / "tensorflow").iterdir()}


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    (tmp_path / "kept").mkdir()
    return tmp_path / "kept"


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, ...]]:
    """What a trainer makes that keeps nothing."""
    with trainer(tmp_path_factory.mktemp("plain"), None) as one:
        return {name: made(one, mine, layout) for name, (_, layout, mine) in CONFIGURATIONS.items()}


def test_what_the_next_trainer_reads_has_the_same_bits(
    tmp_path: Path, kept: Path, plain: dict[str, tuple[Any, ...]]
) -> None:
    found: list[dict[str, tuple[Any, ...]]] = []
    left: list[dict[Path, tuple[int, int]]] = []
    for number in range(3):
        if number == 2:  # a full disk, or a trainer that was killed
            for place, (file, (_, size)) in enumerate(left[-1].items()):
                os.truncate(file, size * (place % 3) // 3)
        with trainer(tmp_path / str(number), kept) as one:
            found.append({name: made(one, mine, layout) for name, (_, layout, mine) in CONFIGURATIONS.items()})
        left.append(files(kept))
    assert found[0] == found[1] == found[2] == plain
    functions = [file for file, (_, size) in left[0].items() if size]
    # how each program trains and evaluates, and what predicts with a recurrent layer
    assert len(functions) == 2 * len(CONFIGURATIONS) + 1
    assert left[1] == left[0], "the second trainer has traced nothing"
    assert left[2].keys() == left[0].keys()
    for file in functions:
        content = file.read_bytes()
        assert hashlib.sha256(content[32:]).digest() == content[:32], "what was cut short is written anew"


def test_a_segment_that_describes_a_configuration_traces_it_for_all(tmp_path: Path, kept: Path) -> None:
    with trainer(tmp_path / "first", kept) as one:
        one(Describe(c.configuration(c.mlp(), CROSS), c.DIGITS))
    assert len(files(kept)) == 1, "how it trains"


def test_a_segment_that_builds_ahead_leaves_the_tracing_to_another(tmp_path: Path, kept: Path) -> None:
    """And a model whose seed it has built with begins with the same numbers as any."""
    configuration = c.configuration(c.noisy_mlp(), CROSS)
    found = []
    for name, ahead in (("plain", None), ("same seed", 0), ("another seed", 5)):
        with trainer(tmp_path / name, kept / name) as one:
            if ahead is not None:
                one(Describe(configuration, c.DIGITS, seed=ahead, compiles=False))
                assert not (kept / name / "tensorflow").exists()
            found.append(made(one, configuration, c.DIGITS))
    assert found[0] == found[1] == found[2]


def test_a_registered_function_of_the_same_name_is_not_the_same(tmp_path: Path, kept: Path) -> None:
    """Folders belong to users, and a user may train in several databases, whose functions differ."""
    configuration = c.configuration(c.mlp(), CROSS)
    configuration["compile"]["loss"] = "own_loss@1"
    losses = []
    for factor in (1, 3):
        with trainer(tmp_path / str(factor), kept) as one:
            losses.append(made(one, configuration, c.DIGITS, [registered(factor)])[1])
    assert losses[1] > 1.5 * losses[0]


def test_tensorflow_still_has_the_registries_that_a_template_fills() -> None:
    """Nothing of them is public.  Without them a trainer's first operations take longer, and nobody would notice."""
    from cerebro_db.nn.engines.tensorflow import fill_registries

    fill_registries()
