"""Training on a GPU: skipped where there is none.  Other tests pretend one (tests/sql/server/test_segment.py)."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from tests.sql.lab import CROSS, Json, Lab, flower_model

pytestmark = [pytest.mark.gpu, pytest.mark.same_machine]

EXACT: Json = {"deterministic": True, "seed": 6}


@pytest.fixture(scope="module")
def flowers(lab: Lab) -> Lab:
    """Two segments, which share the GPU if there is one."""
    lab.iris(2)
    model = lab.architecture(flower_model())
    fit = "batch_size=8, epochs=1"
    lab.selection("mst", [(model, f"optimizer='Adam(learning_rate={rate})', {CROSS}", fit) for rate in (0.01, 0.03)])
    return lab


@pytest.fixture(params=["tensorflow", "jax", "torch"])
def engine(request: Any) -> str:
    if importlib.util.find_spec(request.param) is None:
        pytest.skip(f"the package {request.param} is not installed")
    return request.param


def fitted(lab: Lab, output: str, options: Json, gpus: bool = True) -> int:
    return lab.fit("train", output, "mst", 2, validation_table="val", use_gpus=gpus, options=options)


def losses(lab: Lab, number: int) -> list[float]:
    return [
        loss for (loss,) in lab("SELECT validation_loss FROM leaderboard WHERE run = %s ORDER BY configuration", number)
    ]


def test_the_doctor_finds_it(flowers: Lab) -> None:
    found = flowers("SELECT check_name, status, found FROM cerebro.doctor(2) WHERE component ~ '^segment [01]$'")
    devices = [row for row in found if row[0] == "devices"]
    assert [status for _, status, _ in devices] == ["ok", "ok"] and all("GPU" in text for *_, text in devices)
    assert flowers.value("SELECT cardinality(cerebro_internal._gpu_texts('nvidia'))") > 0


def test_it_trains_as_a_processor_and_again_with_the_same_bits(flowers: Lab, engine: str) -> None:
    options = {**EXACT, "engine": engine}
    first = fitted(flowers, f"{engine}_first", options)
    fitted(flowers, f"{engine}_again", options)
    processor = fitted(flowers, f"{engine}_processor", options, gpus=False)
    assert flowers.weights(f"{engine}_first") == flowers.weights(f"{engine}_again")
    if engine != "torch":  # its GPU draws other initial values
        assert losses(flowers, first) == pytest.approx(losses(flowers, processor), rel=0.02)
    assert flowers.value("SELECT options -> 'gpus' FROM run_plan WHERE run = %s", first) is not None


@pytest.mark.parametrize("precision", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision(flowers: Lab, engine: str, precision: str) -> None:
    number = fitted(flowers, f"{engine}_{precision}", {"seed": 6, "engine": engine, "precision": precision})
    assert flowers("SELECT DISTINCT status FROM leaderboard WHERE run = %s", number) == [("finished",)]
    assert all(0 < loss < 3 for loss in losses(flowers, number))


def test_fused_models_have_the_numbers_of_single_ones(flowers: Lab) -> None:
    runs = [fitted(flowers, f"fuse_{fuse}", {"seed": 6, "engine": "jax", "fuse": fuse}) for fuse in (True, False)]
    fused, single = (losses(flowers, number) for number in runs)
    assert fused == pytest.approx(single, rel=0.02)


def test_evaluating_and_predicting(flowers: Lab) -> None:
    number = fitted(flowers, "served", EXACT)
    flowers("SELECT madlib_keras_evaluate('served', 'val', 'evaluated', true, 1)")
    assert flowers.value("SELECT loss FROM evaluated") == pytest.approx(losses(flowers, number)[0], rel=1e-3)
    for gpus in (True, False):
        flowers(
            "SELECT madlib_keras_predict('served', 'garden', 'id', 'sl, sw, pl, pw', %s, 'prob', %s, 1)",
            f"told_{gpus}".lower(), gpus,
        )  # fmt: skip
    differ = "SELECT max(abs(a.prob - b.prob)) FROM told_true a JOIN told_false b USING (id, class_value)"
    assert flowers.value(differ) < 5e-3  # a GPU multiplies with fewer bits (TF32)
