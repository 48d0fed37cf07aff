"""The option engine: which one trains a run, who chooses it, and what is on record of that."""

from __future__ import annotations

import math
import sys
from typing import Any

import psycopg2
import pytest

from cerebro_db.core.engines import cheapest
from cerebro_db.core.errors import Unsupported
from tests.sql.lab import CROSS, Json, Lab, flower_model, layer, sequential

FIT = "batch_size=16, epochs=1"
BUILT = "SELECT mst_key, detail FROM event WHERE run = %s AND event = 'built' ORDER BY mst_key"


@pytest.fixture(scope="module")
def flowers(lab: Lab) -> Lab:
    lab.iris(2)
    models = [lab.architecture(flower_model(units)) for units in (8, 16)]
    rates = [f"optimizer='Adam(lr={rate})', {CROSS}" for rate in (0.1, 0.01)]
    lab.selection("mst", [(model, rate, FIT) for model in models for rate in rates])
    return lab


def engines(lab: Lab, run: int) -> list[str]:
    return [engine for (engine,) in lab("SELECT engine FROM leaderboard WHERE run = %s ORDER BY mst_key", run)]


def losses(lab: Lab, run: int) -> list[float]:
    return [
        loss for (loss,) in lab("SELECT training_loss FROM learning_curve WHERE run = %s ORDER BY epoch, mst_key", run)
    ]


@pytest.fixture(scope="module")
def jax(flowers: Lab) -> int:
    return flowers.fit("train", "with_jax", "mst", 3, validation_table="val", options={"engine": "jax", "seed": 5})


def test_jax_trains(flowers: Lab, jax: int) -> None:
    assert engines(flowers, jax) == ["jax"] * 4
    found = losses(flowers, jax)
    assert len(found) == 12 and all(map(math.isfinite, found))
    assert sum(found[8:]) < sum(found[:4])
    (best,) = flowers("SELECT validation_loss, epochs_done FROM leaderboard WHERE run = %s AND rank = 1", jax)
    assert best[0] < 1.0 and best[1] == 3


def test_its_models_predict_as_any(flowers: Lab, jax: int) -> None:
    key = flowers.value("SELECT mst_key FROM leaderboard WHERE run = %s AND rank = 1", jax)
    flowers(
        "SELECT madlib_keras_predict('with_jax', 'garden', 'id', 'sl, sw, pl, pw', 'told', 'response', false, %s)", key
    )
    right = flowers.value("SELECT avg((g.species = t.class_value)::int) FROM garden g JOIN told t USING (id)")
    assert right > 0.6


def test_hops_and_a_replay_change_no_bit(flowers: Lab, jax: int) -> None:
    """Other segments are idle at other times: who trains what when has no influence."""
    again = flowers.fit("train", "jax_again", "mst", 3, options={"replay": jax})
    assert engines(flowers, again) == ["jax"] * 4
    assert flowers.weights("jax_again") == flowers.weights("with_jax")
    assert losses(flowers, again) == losses(flowers, jax)


@pytest.fixture(scope="module")
def automatic(flowers: Lab) -> int:
    return flowers.fit("train", "by_trial", "mst", 1, options={"engine": "auto", "seed": 5})


def test_auto_chooses_by_trial_and_says_so(flowers: Lab, automatic: int) -> None:
    told = flowers(BUILT, automatic)
    assert [key for key, _ in told] == [1, 2, 3, 4]
    for _, detail in told:
        assert set(detail["trial"]) == {"tensorflow", "jax"}
        assert detail["engine"] == min(detail["trial"], key=detail["trial"].get)
    # those of one program are chosen for together, whatever the learning rate
    assert told[0][1] == told[1][1] and told[2][1] == told[3][1]
    assert told[0][1]["trial"] != told[2][1]["trial"]
    assert engines(flowers, automatic) == [detail["engine"] for _, detail in told]
    assert flowers.value("SELECT options ->> 'engine' FROM run WHERE run = %s", automatic) == "auto"


def test_a_resumed_run_keeps_its_engines(flowers: Lab, automatic: int) -> None:
    before = flowers(BUILT, automatic)
    flowers("SELECT resume(%s, epochs => 2)", automatic)
    assert flowers(BUILT, automatic) == before
    assert len(losses(flowers, automatic)) == 8


def test_a_replay_takes_the_engines_of_the_run(flowers: Lab, automatic: int) -> None:
    chosen = engines(flowers, automatic)
    again = flowers.fit("train", "trial_again", "mst", 1, options={"replay": automatic})
    assert engines(flowers, again) == chosen
    assert not any("trial" in detail for _, detail in flowers(BUILT, again))
    assert losses(flowers, again) == losses(flowers, automatic)[:4]


def test_what_was_tried_once_is_not_tried_again(flowers: Lab, automatic: int) -> None:
    """Whatever the learning rate and the number of iterations; what such a run would take is worked out anew."""
    rates = [f"optimizer='Adam(lr={rate})', {CROSS}" for rate in (0.02, 0.03)]
    models = flowers("SELECT DISTINCT model_id FROM mst ORDER BY model_id")
    flowers.selection("alike", [(model, rate, FIT) for (model,) in models for rate in rates])
    again = flowers.fit("train", "recalled", "alike", 2, options={"engine": "auto"})
    before, told = flowers(BUILT, automatic), flowers(BUILT, again)
    for (_, earlier), (_, detail) in zip(before, told):
        assert detail["of_run"] == automatic and "tried" not in detail
        assert detail["trial"] != earlier["trial"] and set(detail["trial"]) == {"tensorflow", "jax"}
        assert detail["engine"] == min(detail["trial"], key=detail["trial"].get)
    assert engines(flowers, again) == [detail["engine"] for _, detail in told]


def test_what_is_compiled_once_is_weighed_once(flowers: Lab) -> None:
    """Penalties that differ are numbers of one program: an engine that compiles long is no worse for their number."""

    def penalised(l2: float) -> Json:
        penalty = {"module": "keras.regularizers", "class_name": "L2", "config": {"l2": l2}, "registered_name": None}
        return sequential([4], layer("Dense", "out", units=3, activation="softmax", kernel_regularizer=penalty))

    models = [flowers.architecture(penalised(l2)) for l2 in (0.1, 0.01, 0.001)]
    flowers.selection("penalties", [(model, f"optimizer='Adam(lr=0.1)', {CROSS}", FIT) for model in models])
    first, second = (
        flowers(BUILT, flowers.fit("train", output, "penalties", 1, options={"engine": "auto"}))
        for output in ("penalties_1", "penalties_2")
    )
    assert len({detail["program"] for _, detail in first}) == 1 and len({detail["form"] for _, detail in first}) == 3
    assert [detail["trial"] for _, detail in second] == [detail["trial"] for _, detail in first]


def test_a_trial_of_something_else_says_nothing(flowers: Lab, automatic: int) -> None:
    """Another optimizer, another architecture, other inputs."""
    model = flowers.value("SELECT min(model_id) FROM mst")
    flowers.selection("other", [(model, f"optimizer='SGD(lr=0.1)', {CROSS}", FIT)])
    found = flowers.fit("train", "other_out", "other", 1, options={"engine": "auto"})
    ((_, detail),) = flowers(BUILT, found)
    assert set(detail["tried"]) == {"tensorflow", "jax"} and "of_run" not in detail


def test_events_that_a_user_made_up_harm_nothing(flowers: Lab, automatic: int) -> None:
    (form,) = {detail["form"] for _, detail in flowers(BUILT, automatic) if detail["parameters"] < 100}
    model = flowers.value("SELECT min(model_id) FROM mst")
    flowers.selection("one", [(model, f"optimizer='Adam(lr=0.1)', {CROSS}", FIT)])
    each = '{"build": N, "compile": N, "batch": N}'
    figures = f'{{"tensorflow": {each}, "jax": {each}}}'
    large = (figures.replace("N", number) for number in ("1e400", f"1{400 * '0'}.5", "1e9999"))
    for nonsense in ("[]", '{"tensorflow": 1, "jax": {}}', '"fast"', *large):
        flowers(
            "INSERT INTO event (run, event, mst_key, detail) VALUES (%s, 'built', 99,"
            " jsonb_build_object('form', %s, 'tried', %s::jsonb))", automatic, form, nonsense,
        )  # fmt: skip
        found = flowers.fit("train", "made_up", "one", 1, options={"engine": "auto"})
        assert "tried" in flowers(BUILT, found)[0][1]
        flowers("DELETE FROM event WHERE run = %s AND mst_key = 99", automatic)
        flowers("DROP TABLE made_up, made_up_info, made_up_summary")


def test_a_deterministic_run_is_not_left_to_a_trial(flowers: Lab) -> None:
    found = flowers.fit("train", "pinned", "mst", 1, options={"engine": "auto", "deterministic": True})
    assert engines(flowers, found) == ["tensorflow"] * 4
    assert not any("trial" in detail for _, detail in flowers(BUILT, found))


def test_what_one_engine_cannot_build_the_other_may(flowers: Lab) -> None:
    """A trial that fails is no failure of the configuration, unless all of them fail."""
    flipped = [
        layer("Reshape", "square", target_shape=[2, 2, 1]),
        layer("RandomFlip", "flip"),
        layer("Flatten", "flat"),
        layer("Dense", "out", units=3, activation="softmax"),
    ]
    picky = flowers.architecture(sequential([4], *flipped))
    wrong = flowers.architecture(flower_model(classes=4))
    good = flowers.architecture(flower_model(5))
    compiled = f"optimizer='SGD(lr=0.1)', {CROSS}"
    flowers.selection("half", [(wrong, compiled, FIT), (good, compiled, FIT), (picky, compiled, FIT)])
    found = flowers.fit("train", "half_out", "half", 1, options={"engine": "auto"})
    status = flowers("SELECT status, reason, engine FROM leaderboard WHERE run = %s ORDER BY mst_key", found)
    assert status[0][0] == "failed" and "4 units" in status[0][1] and status[0][2] is None
    assert status[1][0] == "finished" and status[1][2] in ("tensorflow", "jax")
    assert (status[2][0], status[2][2]) == ("finished", "tensorflow")


def test_an_engine_that_is_not_known(flowers: Lab) -> None:
    with pytest.raises(psycopg2.Error) as caught:
        flowers.fit("train", "never", "mst", 1, options={"engine": "abacus"})
    assert "there is no engine 'abacus'" in str(caught.value)
    assert "tensorflow, jax; auto" in caught.value.diag.message_hint
    assert "never" not in flowers.tables()


def test_an_engine_that_is_not_installed(monkeypatch: Any) -> None:
    """An environment without any: the one of the tests, asked in isolation from its packages."""
    from cerebro_plpy import options, trainer

    bare = sys._base_executable  # type: ignore[attr-defined]
    monkeypatch.setattr(trainer, "installation", lambda: {"trainer_python": bare})
    assert trainer.engines() == []
    with pytest.raises(Unsupported, match="'jax' is not installed") as caught:
        options.choose_engine("jax", False)
    assert "docker/install.sh" in (caught.value.hint or "")


def test_building_counts_as_well() -> None:
    """The faster loop is not always sooner done: compiling takes time, for each batch size."""
    slow = {"build": 0.5, "compile": 0.4, "batch": 0.001}
    fast = {"build": 1.0, "compile": 2.0, "batch": 0.0001}
    trials = {"tensorflow": slow, "jax": fast}
    assert next(iter(cheapest(trials, [32], 100))) == "tensorflow"
    assert next(iter(cheapest(trials, [32], 10_000))) == "jax"
    assert next(iter(cheapest(trials, [32, 64, 128, 256, 512, 1024], 10_000))) == "tensorflow"
