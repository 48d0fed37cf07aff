"""The option ``engine``: which engine trains a run, how ``auto`` chooses it, and what the log says about the choice."""

from __future__ import annotations

import importlib.util
import json
import math
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg2
import pytest

from cerebro_db.core.engines import estimated_seconds
from cerebro_db.core.errors import ConfigurationFailed, TrainerFailed, Unsupported
from cerebro_db.core.protocol import EngineTried
from cerebro_db.core.run_options import RunOptions
from cerebro_db.core.trainers.nursery_messages import Report
from cerebro_plpy.runs.record.run import EarlierTrial
from tests.sql.lab import CROSS, Json, Lab, eventually, flower_model, layer, sequential
from tests.thorough import TIMES

FIT = "batch_size=16, epochs=1"
BUILT = "SELECT model, detail FROM event WHERE run = %s AND event = 'built' ORDER BY model"
NEEDS_TENSORFLOW = sequential(
    [4],
    layer("IntegerLookup", "codes", vocabulary=[0, 1, 2, 3, 4, 5, 6, 7]),
    layer("Dense", "out", units=3, activation="softmax"),
)


@pytest.fixture(scope="module")
def flowers(lab: Lab) -> Lab:
    lab.iris(2)
    models = [lab.architecture(flower_model(units)) for units in (8, 16)]
    rates = [f"optimizer='Adam(lr={rate})', {CROSS}" for rate in (0.1, 0.01)]
    lab.selection("mst", [(model, rate, FIT) for model in models for rate in rates])
    return lab


def engines(lab: Lab, run: int) -> list[str]:
    return [engine for (engine,) in lab("SELECT engine FROM leaderboard WHERE run = %s ORDER BY configuration", run)]


def losses(lab: Lab, run: int) -> list[float]:
    return [
        loss
        for (loss,) in lab("SELECT training_loss FROM learning_curve WHERE run = %s ORDER BY epoch, configuration", run)
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


def test_the_time_line_says_who_trained(flowers: Lab, jax: int) -> None:
    done = flowers("SELECT DISTINCT activity, engine FROM hop_timeline WHERE run = %s ORDER BY 1", jax)
    assert done == [("evaluate", "jax"), ("train", "jax")]


def test_its_models_predict_as_any(flowers: Lab, jax: int) -> None:
    key = flowers.value("SELECT configuration FROM leaderboard WHERE run = %s AND rank = 1", jax)
    flowers(
        "SELECT madlib_keras_predict('with_jax', 'garden', 'id', 'sl, sw, pl, pw', 'told', 'response', false, %s)", key
    )
    right = flowers.value("SELECT avg((g.species = t.class_value)::int) FROM garden g JOIN told t USING (id)")
    assert right > 0.6


def test_hops_and_a_replay_change_no_bit(flowers: Lab, jax: int) -> None:
    """A replay has other timing: segments become idle at other moments.  It must not change the bits."""
    again = flowers.fit("train", "jax_again", "mst", 3, options={"replay": jax})
    assert engines(flowers, again) == ["jax"] * 4
    assert flowers.weights("jax_again") == flowers.weights("with_jax")
    assert losses(flowers, again) == losses(flowers, jax)


def test_torch_trains_and_a_replay_changes_no_bit(flowers: Lab) -> None:
    if importlib.util.find_spec("torch") is None:  # The trainers of these tests use the environment of the tests.
        pytest.skip("the optional package torch is not installed")
    options = {"engine": "torch", "seed": 5}
    first = flowers.fit("train", "with_torch", "mst", 2, validation_table="val", options=options)
    assert engines(flowers, first) == ["torch"] * 4
    found = losses(flowers, first)
    assert len(found) == 8 and all(map(math.isfinite, found)) and sum(found[4:]) < sum(found[:4])
    again = flowers.fit("train", "torch_again", "mst", 1, validation_table="val", options={"replay": first})
    assert losses(flowers, again) == found[:4]
    flowers("SELECT resume(%s, epochs => 2)", again)
    assert engines(flowers, again) == ["torch"] * 4
    assert flowers.weights("torch_again") == flowers.weights("with_torch") and losses(flowers, again) == found
    # Evaluation and prediction always use TensorFlow.
    key, loss = flowers("SELECT configuration, validation_loss FROM leaderboard WHERE run = %s AND rank = 1", first)[0]
    flowers("SELECT madlib_keras_evaluate('with_torch', 'val', 'torch_evaluated', false, %s)", key)
    assert flowers.value("SELECT loss FROM torch_evaluated") == pytest.approx(loss, rel=1e-4)
    rows = "'garden', 'id', 'sl, sw, pl, pw'"
    flowers(f"SELECT madlib_keras_predict('with_torch', {rows}, 'torch_told', 'response', false, %s)", key)
    right = flowers.value("SELECT avg((g.species = t.class_value)::int) FROM garden g JOIN torch_told t USING (id)")
    assert right > 0.6


@pytest.fixture(scope="module")
def automatic(flowers: Lab) -> int:
    return flowers.fit("train", "by_trial", "mst", 1, options={"engine": "auto", "seed": 5})


@pytest.mark.tensorflow
def test_a_short_run_tries_the_likelier_engine_only_and_says_so(flowers: Lab, automatic: int) -> None:
    told = flowers(BUILT, automatic)
    assert [key for key, _ in told] == [1, 2, 3, 4]
    for _, detail in told:
        assert set(detail["trial"]) == set(detail["tried"]) == {"jax"} and detail["engine"] == "jax"
        assert set(detail["untried"]) == {"tensorflow"} and "of training to do" in detail["untried"]["tensorflow"]
    # Configurations with the same program share one choice, whatever their learning rates.
    first, second, third, fourth = (detail["trial"] for _, detail in told)
    assert first == second and third == fourth
    assert told[0][1]["program"] != told[2][1]["program"]
    assert engines(flowers, automatic) == [detail["engine"] for _, detail in told]
    assert flowers.value("SELECT options ->> 'engine' FROM run WHERE run = %s", automatic) == "auto"


@pytest.mark.tensorflow
@pytest.mark.thorough  # tests/core/test_engine_estimates.py has the order of engines
def test_convolutions_are_trained_with_tensorflow(flowers: Lab) -> None:
    """Without a trial.  In a run with a convolution, other configurations are tried with TensorFlow first."""
    convolving = flowers.architecture(
        sequential(
            [4],
            layer("Reshape", "line", target_shape=[4, 1]),
            layer("Conv1D", "convolution", filters=2, kernel_size=2),
            layer("Flatten", "flat"),
            layer("Dense", "out", units=3, activation="softmax"),
        )
    )
    dense = flowers.architecture(flower_model(6))
    compiled = f"optimizer='Adam(lr=0.1)', {CROSS}"
    flowers.selection("convolutions", [(dense, compiled, FIT), (convolving, compiled, FIT)])
    found = flowers.fit("train", "convolved", "convolutions", 1, options={"engine": "auto"})
    (_, tried), (_, known) = flowers(BUILT, found)
    assert list(tried["tried"]) == ["tensorflow"] and "tried" not in known
    assert known["untried"] == {"jax": "on processors it takes longer for convolutions"}
    assert engines(flowers, found) == ["tensorflow"] * 2


def built_of_a_long_run(lab: Lab, output: str, selection: str) -> list[tuple[int, Json]]:
    """The events ``built`` of a long run, which is cancelled after its first hop has begun."""
    run = lab.submit("train", output, selection, 10**8, options={"engine": "auto"})
    hop = "SELECT 1 FROM attempt WHERE run = %s"
    eventually(lambda: lab(hop, run), 120, "a first hop has begun")
    lab("SELECT cancel(%s)", run)
    assert lab.value("SELECT wait(%s)", run) == "cancelled"
    return lab(BUILT, run)


@pytest.mark.tensorflow
def test_where_there_is_much_to_do_both_are_tried(flowers: Lab) -> None:
    model = flowers.architecture(flower_model(9))
    flowers.selection("nine", [(model, f"optimizer='Adam(lr={rate})', {CROSS}", FIT) for rate in (0.1, 0.01)])
    (_, first), (_, second) = built_of_a_long_run(flowers, "much", "nine")
    assert set(first["tried"]) == set(first["trial"]) == {"tensorflow", "jax"} and "untried" not in first
    assert first["engine"] == min(first["trial"], key=first["trial"].get)
    assert second["trial"] == first["trial"]
    # Later runs read both trials from the log, also short runs.
    again = flowers.fit("train", "little", "nine", 1, options={"engine": "auto"})
    for _, detail in flowers(BUILT, again):
        assert set(detail["trial"]) == {"tensorflow", "jax"} and "of_run" in detail and "tried" not in detail


@pytest.mark.tensorflow
@pytest.mark.thorough  # the choice is below, reading the record in test_where_there_is_much_to_do
def test_of_what_is_on_record_only_the_missing_engine_is_tried(flowers: Lab) -> None:
    model = flowers.architecture(flower_model(10))
    flowers.selection("ten", [(model, f"optimizer='Adam(lr=0.1)', {CROSS}", FIT)])
    short = flowers.fit("train", "ten_1", "ten", 1, options={"engine": "auto"})
    slow = {"build": 1.0, "compile": 1.0, "batch": 1000.0}
    flowers(
        "UPDATE event SET detail = jsonb_set(detail, '{tried,jax}', %s) WHERE run = %s AND event = 'built'",
        json.dumps(slow), short,
    )  # fmt: skip
    again = flowers.fit("train", "ten_2", "ten", 1, options={"engine": "auto"})
    ((_, detail),) = flowers(BUILT, again)
    assert detail["tried"]["jax"] == slow and set(detail["tried"]) == {"tensorflow", "jax"}
    assert detail["engine"] == "tensorflow" and engines(flowers, again) == ["tensorflow"]


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


@pytest.mark.tensorflow
def test_what_was_tried_once_is_not_tried_again(flowers: Lab, automatic: int) -> None:
    """A run with other learning rates and iterations reuses the trials.  Only the estimates are computed again."""
    rates = [f"optimizer='Adam(lr={rate})', {CROSS}" for rate in (0.02, 0.03)]
    models = flowers("SELECT DISTINCT model_id FROM mst ORDER BY model_id")
    flowers.selection("alike", [(model, rate, FIT) for (model,) in models for rate in rates])
    again = flowers.fit("train", "recalled", "alike", 2, options={"engine": "auto"})
    before, told = flowers(BUILT, automatic), flowers(BUILT, again)
    for (_, earlier), (_, detail) in zip(before, told):
        assert detail["of_run"] == automatic and "tried" not in detail
        assert detail["trial"]["jax"] >= earlier["trial"]["jax"] and set(detail["trial"]) == {"jax"}
        assert detail["engine"] == "jax" and set(detail["untried"]) == {"tensorflow"}
    assert engines(flowers, again) == [detail["engine"] for _, detail in told]


@pytest.mark.tensorflow
@pytest.mark.thorough  # tests/core/test_engine_estimates.py has what is compiled once
def test_what_is_compiled_once_is_weighed_once(flowers: Lab) -> None:
    """Configurations with different penalties share one compiled program, so its compilation counts once."""

    def penalised(l2: float) -> Json:
        penalty = {"module": "keras.regularizers", "class_name": "L2", "config": {"l2": l2}, "registered_name": None}
        return sequential([4], layer("Dense", "out", units=3, activation="softmax", kernel_regularizer=penalty))

    models = [flowers.architecture(penalised(l2)) for l2 in (0.1, 0.01)]
    flowers.selection("penalties", [(model, f"optimizer='Adam(lr=0.1)', {CROSS}", FIT) for model in models])
    first, second = (
        flowers(BUILT, flowers.fit("train", output, "penalties", 1, options={"engine": "auto"}))
        for output in ("penalties_1", "penalties_2")
    )
    assert len({detail["program"] for _, detail in first}) == 1 and len({detail["form"] for _, detail in first}) == 2
    assert [detail["trial"] for _, detail in second] == [detail["trial"] for _, detail in first]


@pytest.mark.tensorflow
def test_a_trial_of_something_else_says_nothing(flowers: Lab, automatic: int) -> None:
    """A trial with another optimizer, architecture or input is not reused."""
    model = flowers.value("SELECT min(model_id) FROM mst")
    flowers.selection("other", [(model, f"optimizer='SGD(lr=0.1)', {CROSS}", FIT)])
    found = flowers.fit("train", "other_out", "other", 1, options={"engine": "auto"})
    ((_, detail),) = flowers(BUILT, found)
    assert set(detail["tried"]) == {"jax"} and "of_run" not in detail


@pytest.mark.tensorflow
def test_events_that_a_user_made_up_harm_nothing(flowers: Lab, automatic: int) -> None:
    (form,) = {detail["form"] for _, detail in flowers(BUILT, automatic) if detail["parameters"] < 100}
    model = flowers.value("SELECT min(model_id) FROM mst")
    flowers.selection("one", [(model, f"optimizer='Adam(lr=0.1)', {CROSS}", FIT)])
    each = '{"build": N, "compile": N, "batch": N}'
    figures = f'{{"tensorflow": {each}, "jax": {each}}}'
    large = (figures.replace("N", number) for number in ("1e400", f"1{400 * '0'}.5", "1e9999"))
    deep = 3000 * "[" + 3000 * "]"
    all_of_it = (deep, "[]", '{"tensorflow": 1, "jax": {}}', '{"jax": {}}', '{"jax": [1]}', '"jax"', *large)
    for nonsense in all_of_it if TIMES >= 5 else all_of_it[::2]:
        flowers(
            "INSERT INTO event (run, event, model, detail) VALUES (%s, 'built', 99,"
            " jsonb_build_object('form', %s, 'tried', %s::jsonb))", automatic, form, nonsense,
        )  # fmt: skip
        found = flowers.fit("train", "made_up", "one", 1, options={"engine": "auto"})
        assert "tried" in flowers(BUILT, found)[0][1]
        flowers("DELETE FROM event WHERE run = %s AND model = 99", automatic)
        flowers("DROP TABLE made_up, made_up_info, made_up_summary")


@pytest.mark.tensorflow
def test_a_deterministic_run_is_not_left_to_a_trial(flowers: Lab) -> None:
    found = flowers.fit("train", "pinned", "mst", 1, options={"engine": "auto", "deterministic": True})
    assert engines(flowers, found) == ["tensorflow"] * 4
    assert not any("trial" in detail for _, detail in flowers(BUILT, found))


@pytest.mark.tensorflow
def test_what_one_engine_cannot_build_the_other_may(flowers: Lab) -> None:
    """If a trial fails with one engine, the configuration trains with the other.  It fails only if all trials fail."""
    picky = flowers.architecture(NEEDS_TENSORFLOW)
    wrong = flowers.architecture(flower_model(classes=4))
    good = flowers.architecture(flower_model(5))
    compiled = f"optimizer='SGD(lr=0.1)', {CROSS}"
    flowers.selection("half", [(wrong, compiled, FIT), (good, compiled, FIT), (picky, compiled, FIT)])
    found = flowers.fit("train", "half_out", "half", 1, options={"engine": "auto"})
    status = flowers("SELECT status, reason, engine FROM leaderboard WHERE run = %s ORDER BY configuration", found)
    assert status[0][0] == "failed" and "4 units" in status[0][1] and status[0][2] is None
    assert (status[1][0], status[1][2]) == ("finished", "jax")
    assert (status[2][0], status[2][2]) == ("finished", "tensorflow")
    refused = {key: detail.get("refused") for key, detail in flowers(BUILT, found)}
    assert refused[2] is None and list(refused[3]) == ["jax"]
    done = flowers("SELECT DISTINCT configuration, engine FROM hop_timeline WHERE run = %s ORDER BY 1", found)
    assert done == [(2, status[1][2]), (3, "tensorflow")]
    # A later run reads the refusal from the log.
    flowers.selection("refused", [(picky, compiled, FIT)])
    ((_, detail),) = flowers(BUILT, flowers.fit("train", "refused_out", "refused", 1, options={"engine": "auto"}))
    assert detail["of_run"] == found and "tried" not in detail and "untried" not in detail
    assert detail["engine"] == "tensorflow" and list(detail["refused"]) == ["jax"]


@pytest.mark.parametrize(
    ("sizes", "firsts"),
    [([32], [32, 32, 32]), ([32, 64, 128], [64, 32, 64]), ([16, 512], [16, 16, 16]), ([8, 16, 8], [8, 16, 8])],
)
def test_a_trial_takes_a_batch_size_near_the_typical_one(sizes: list[int], firsts: list[int]) -> None:
    """The time of its batch stands for the batches of all models."""
    from cerebro_plpy.runs.preflight.preflight import engine_trials

    alike: list[Any] = [SimpleNamespace(asked=SimpleNamespace(batch_size=size)) for size in sizes]
    ordered = [engine_trials.typical_first(alike, rank) for rank in range(3)]
    assert [first.asked.batch_size for first, *_ in ordered] == firsts
    assert all(sorted(map(id, one)) == sorted(map(id, alike)) for one in ordered)


def test_a_trainer_that_crashes_refuses_nothing() -> None:
    from cerebro_plpy.runs.preflight.preflight import engine_trials

    options = RunOptions(among=("tensorflow", "jax"))
    run: Any = SimpleNamespace(options=options, epochs=1, segments=1, rows_of=lambda one: 64)
    one = SimpleNamespace(asked=SimpleNamespace(batch_size=32), build=SimpleNamespace(earlier=None))
    forms: Any = {"form": [one]}
    figures = EngineTried(1, 1, [], [], [None], 0, 0, 0.0, "", 0, program="alike", build=1.0, compile=1.0, batch=1.0)
    crash, refusal = TrainerFailed("it died"), ConfigurationFailed("it cannot")

    def chosen(tensorflow: Any, jax: Any) -> tuple[str, Json]:
        programs = engine_trials.programs_of(forms, {("form", "jax"): jax, ("form", "tensorflow"): tensorflow})
        assert engine_trials.still_to_try(run, programs) == []
        return engine_trials.chosen(run, programs)["form"]

    engine, why = chosen(figures, crash)
    assert engine == "tensorflow" and why["untried"] == {"jax": "it died"} and "refused" not in why
    engine, why = chosen(figures, refusal)
    assert engine == "tensorflow" and why["refused"] == {"jax": "it cannot"} and "untried" not in why
    assert chosen(crash, refusal)[0] == "tensorflow", "it may do better when it is asked again"


def test_only_the_engine_that_is_not_on_record_is_tried() -> None:
    from cerebro_plpy.runs.preflight import engine_trials

    run: Any = SimpleNamespace(
        options=RunOptions(among=("tensorflow", "jax")), epochs=1, segments=1, rows_of=lambda one: 64
    )
    slow = {"build": 1.0, "compile": 1.0, "batch": 1000.0}
    build = SimpleNamespace(earlier=EarlierTrial(3, {"jax": slow}, "alike"))
    forms: Any = {"form": [SimpleNamespace(asked=SimpleNamespace(batch_size=32), build=build)]}
    assert engine_trials.still_to_try(run, engine_trials.programs_of(forms, {})) == [("form", "tensorflow")]
    figures = EngineTried(1, 1, [], [], [None], 0, 0, 0.0, "", 0, program="alike", build=1.0, compile=1.0, batch=1.0)
    programs = engine_trials.programs_of(forms, {("form", "tensorflow"): figures})
    assert engine_trials.still_to_try(run, programs) == []
    engine, why = engine_trials.chosen(run, programs)["form"]
    assert engine == "tensorflow" and why["tried"]["jax"] == slow and set(why["tried"]) == {"tensorflow", "jax"}


def test_an_engine_that_is_not_known(flowers: Lab) -> None:
    with pytest.raises(psycopg2.Error) as caught:
        flowers.fit("train", "never", "mst", 1, options={"engine": "abacus"})
    assert "there is no engine 'abacus'" in str(caught.value)
    assert "tensorflow, jax, torch; auto takes tensorflow or jax" in caught.value.diag.message_hint
    assert "never" not in flowers.tables()


def test_an_engine_that_is_not_installed(monkeypatch: Any, tmp_path: Path) -> None:
    """The Python of the tests without their packages stands for an environment without any engine."""
    from cerebro_plpy.runs.request import options
    from cerebro_plpy.segment import installation, nursery_connection, nursery_process

    bare = sys._base_executable  # type: ignore[attr-defined]
    for module in (installation, nursery_connection, nursery_process):
        monkeypatch.setattr(module, "installation", lambda: {"trainer_python": bare})
    for module in (nursery_connection, nursery_process):
        monkeypatch.setattr(module, "INSTALLATION", Path(__file__).parents[3])
    monkeypatch.chdir(tmp_path)
    listen = lambda: None  # noqa: E731
    assert nursery_connection.report(listen).engines == []
    with pytest.raises(Unsupported, match="'jax' is not installed") as caught:
        options.choose_engine("jax", False, listen)
    assert "docker/install.sh" in (caught.value.hint or "")
    with pytest.raises(Unsupported, match="'torch' is not installed") as caught:
        options.choose_engine("torch", False, listen)
    assert f"{bare} -m pip install torch==" in (caught.value.hint or "")
    with pytest.raises(Unsupported, match="no engine is installed"):
        options.choose_engine(None, False, listen)
    monkeypatch.setattr(nursery_connection, "_defaults", {})
    monkeypatch.setattr(nursery_connection, "report", lambda listen: Report(["jax"], 0))
    assert options.choose_engine(None, False, listen) == ("jax", ())
    for deterministic in (False, True):
        assert options.choose_engine("auto", deterministic, listen) == ("jax", ())
    with pytest.raises(Unsupported, match="'tensorflow' is not installed") as caught:
        options.choose_engine("tensorflow", False, listen)
    assert caught.value.hint.startswith("Installed: jax.") and "install.sh --tensorflow" in caught.value.hint
    monkeypatch.setattr(nursery_connection, "report", lambda listen: Report(["tensorflow", "jax", "torch"], 0))
    assert options.choose_engine("auto", False, listen) == ("auto", ("tensorflow", "jax"))
    assert options.choose_engine("torch", True, listen) == ("torch", ())


@pytest.mark.parametrize("missing", ["jax", "keras"])
def test_a_trainer_says_what_is_not_installed(missing: str) -> None:
    """Predictions always use TensorFlow, so nobody has asked before whether it is there."""
    tried = f"""
import sys
sys.modules["{missing}"] = None
from cerebro_db.nn.engines.base import import_engine
try:
    import_engine("jax")
except Exception as error:
    print(type(error).__name__, error, getattr(error, "hint", ""))
"""
    told = subprocess.run([sys.executable, "-c", tried], capture_output=True, text=True, check=True).stdout
    if missing == "jax":
        assert told.startswith("Unsupported JAX is not installed in the trainers' environment Install the package jax")
        assert sys.executable in told
    else:
        assert told.startswith("ModuleNotFoundError") and "keras" in told


def test_building_counts_as_well() -> None:
    """An engine with faster steps can need more time in total, because it compiles for each batch size."""
    slow = {"build": 0.5, "compile": 0.4, "batch": 0.001}
    fast = {"build": 1.0, "compile": 2.0, "batch": 0.0001}
    trials = {"tensorflow": slow, "jax": fast}
    assert next(iter(estimated_seconds(trials, [32], 100))) == "tensorflow"
    assert next(iter(estimated_seconds(trials, [32], 10_000))) == "jax"
    assert next(iter(estimated_seconds(trials, [32, 64, 128, 256, 512, 1024], 10_000))) == "tensorflow"


@pytest.mark.tensorflow
def test_a_model_that_its_engine_cannot_train_goes_on_with_another(flowers: Lab) -> None:
    """The run's engine is JAX by a trial of the first model; the next one has a layer that needs TensorFlow."""
    found = flowers.value(
        "SELECT search('train', 'unlike', %s, architectures => %s, method => 'grid', at_once => 1, epochs => 1,"
        " options => %s)",
        json.dumps({"learning_rate": 0.01, "batch_size": 16}),
        json.dumps([flower_model(7), NEEDS_TENSORFLOW]),
        json.dumps({"engine": "auto", "seed": 5}),
    )
    board = flowers("SELECT status, engine, epochs_done FROM leaderboard WHERE run = %s ORDER BY configuration", found)
    assert board == [("finished", "jax", 1), ("finished", "tensorflow", 1)]
    lines = flowers("SELECT DISTINCT configuration, engine FROM hop_timeline WHERE run = %s ORDER BY 1", found)
    assert [engine for _, engine in lines] == engines(flowers, found)
    assert any("works with TensorFlow only; TensorFlow takes over" in one for one in flowers.told())
    # A resumed run takes the engine that took over: the states are that engine's.
    flowers("SELECT resume(%s, epochs => 2)", found)
    assert flowers("SELECT DISTINCT status, epochs_done FROM leaderboard WHERE run = %s", found) == [("finished", 2)]
