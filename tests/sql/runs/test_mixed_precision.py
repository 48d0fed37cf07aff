"""The option ``precision``: it is written into the recorded architecture, so every later use of it has it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import BOTH_ENGINES
from tests.sql.lab import CROSS, Lab, flower_model

OPTIONS = {"deterministic": True, "seed": 6, "precision": "mixed_bfloat16"}


@pytest.fixture(scope="module")
def flowers(lab: Lab) -> Lab:
    lab.iris(2)
    model = lab.architecture(flower_model())
    fit = "batch_size=8, epochs=1"
    lab.selection("mst", [(model, f"optimizer='Adam(learning_rate={rate})', {CROSS}", fit) for rate in (0.1, 0.03)])
    return lab


def policies(arch: dict[str, Any]) -> list[Any]:
    return [layer["config"].get("dtype") for layer in arch["config"]["layers"]]


@pytest.fixture(scope="module")
def mixed(flowers: Lab) -> int:
    return flowers.fit("train", "mixed", "mst", 2, validation_table="val", options=OPTIONS)


def test_the_model_table_says_how_it_computes(flowers: Lab, mixed: int) -> None:
    for (arch,) in flowers("SELECT model_arch FROM mixed"):
        assert policies(arch) == ["float32", "mixed_bfloat16", None]
    assert flowers.value("SELECT options ->> 'precision' FROM run_plan WHERE run = %s", mixed) == "mixed_bfloat16"
    exact = flowers.fit("train", "exact", "mst", 2, options={"deterministic": True, "seed": 6})
    assert not flowers.value("SELECT options ? 'precision' FROM run_plan WHERE run = %s", exact)
    assert policies(flowers.value("SELECT model_arch FROM exact LIMIT 1")) == ["float32", None, None]
    assert flowers.weights("exact") != flowers.weights("mixed")
    size = "SELECT DISTINCT octet_length(model_weights) FROM "
    assert flowers(size + "exact") == flowers(size + "mixed"), "weights are float32 all the same"


def test_it_is_evaluated_as_it_was_trained(flowers: Lab, mixed: int) -> None:
    flowers("SELECT madlib_keras_evaluate('mixed', 'val', 'evaluated', false, 1)")
    during = flowers.value("SELECT validation_loss FROM leaderboard WHERE run = %s AND configuration = 1", mixed)
    assert flowers.value("SELECT loss FROM evaluated") == pytest.approx(during, rel=1e-6)
    flowers("SELECT madlib_keras_predict('mixed', 'garden', 'id', 'sl, sw, pl, pw', 'told', 'prob', false, 1)")
    assert flowers.value("SELECT max(abs(total - 1)) FROM (SELECT sum(prob) total FROM told GROUP BY id) t") < 1e-5


def test_a_replay_and_a_resumed_run_keep_it(flowers: Lab, mixed: int) -> None:
    again = flowers.fit("train", "again", "mst", 2, options={"replay": mixed})
    assert flowers.weights("again") == flowers.weights("mixed")
    flowers("SELECT resume(%s, epochs => 3)", again)
    longer = flowers.fit("train", "longer", "mst", 3, options=OPTIONS)
    assert flowers.weights("longer") == flowers.weights("again")
    assert flowers.value("SELECT options ->> 'precision' FROM run WHERE run = %s", longer) == "mixed_bfloat16"


@pytest.mark.parametrize("engine", BOTH_ENGINES)
def test_float16_has_its_loss_scaled(flowers: Lab, engine: str) -> None:
    output = f"half_{engine}"
    number = flowers.fit("train", output, "mst", 2, options={"seed": 6, "engine": engine, "precision": "mixed_float16"})
    assert flowers("SELECT DISTINCT status FROM leaderboard WHERE run = %s", number) == [("finished",)]
    assert policies(flowers.value(f"SELECT model_arch FROM {output} LIMIT 1"))[1] == "mixed_float16"
