"""A target for each step of a window: from packing to predictions, with steps that have no label."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from typing import Any

import numpy as np
import psycopg2
import pytest

from tests.nn import configurations as c
from tests.sql.lab import Lab
from tests.sql.packing.test_tables import columns_of, packed, values

LENGTH, EVERY = 12, 3
STEPS = LENGTH // EVERY
SEQUENCE: dict[str, Any] = {"by": "who", "order": "at", "length": LENGTH, "target": "each", "every": EVERY}
# 20 people, who sit and walk for some seconds each. Some rows have no label, and the signal is noisy.
POSTURES = """
CREATE TABLE postures AS SELECT i AS id, who, timestamp '2024-01-01' + place * interval '1 s' AS at,
  (place % 5 + CASE posture WHEN 'walk' THEN 4 WHEN 'run' THEN 8 ELSE 0 END + sin(place * 7 + who))::real AS x,
  1.0::real + who % 2 AS weight, who % 3 AS site,
  CASE WHEN place % 24 < 5 THEN NULL ELSE posture END AS posture,
  CASE WHEN place % 24 < 5 THEN NULL ELSE (place % 7)::real END AS level
 FROM (SELECT row_number() OVER (ORDER BY who * 37 % 31, place * 61 % 97) AS i, who, place,
              (ARRAY['sit', 'walk', 'run'])[1 + ((place + who) / 7) % 3] AS posture
         FROM generate_series(1, 20) who, generate_series(0, 95) place WHERE place < 60 + 2 * who) p
 ORDER BY id
"""


@pytest.fixture(scope="module")
def postures(lab: Lab) -> Lab:
    lab(POSTURES)
    return lab


def steps(place: Lab, output: str, target: str = "posture", source: str = "postures", **more: Any) -> list[str]:
    sequence = json.dumps({**SEQUENCE, **more.pop("sequence", {})})
    return packed(place, output, target, source, sequence=sequence, seed=1, segments=1, **{"inputs": "x", **more})


def expected(place: Lab, columns: str, length: int = LENGTH, source: str = "postures") -> list[list[Any]]:
    """The windows, made in Python: lists of rows."""
    subjects = defaultdict(list)
    for who, *row in place(f"SELECT who, {columns} FROM {source} ORDER BY who, at"):
        subjects[who].append(row)
    return [
        rows[start : start + length] for rows in subjects.values() for start in range(0, len(rows) - length + 1, length)
    ]


def of_steps(window: list[Any], every: int = EVERY) -> list[list[Any]]:
    return [window[start : start + every] for start in range(0, len(window), every)]


def most_frequent(rows: list[Any]) -> str | None:
    said = [row[-1] for row in rows if row[-1] is not None]
    return min(sorted(set(said)), key=lambda one: -said.count(one)) if said else None


def test_each_step_has_the_class_of_most_of_its_rows(postures: Lab) -> None:
    said = steps(postures, "steps_packed", validation=0)
    layout = postures.value("SELECT layout FROM steps_packed_summary")
    labels = postures.value("SELECT posture_labels FROM steps_packed_summary")
    (output,) = layout["outputs"]
    assert (output["shape"], output["steps"], output["kind"]) == ([STEPS, 3], STEPS, "class")
    windows = expected(postures, "x, posture")
    assert layout["rows"] == len(windows) and f"{len(windows)} windows of {LENGTH} rows in {STEPS} steps" in said
    parameters = columns_of(postures, "steps_packed")["x"]["parameters"]
    wanted = [
        [*((x - parameters["mean"]) / parameters["deviation"] for x, _ in window),
         *(-1 if one is None else labels.index(one) for one in map(most_frequent, of_steps(window)))]
        for window in windows
    ]  # fmt: skip
    ones = values(postures, "steps_packed", "posture").reshape(-1, STEPS, 3)
    codes = np.where(ones.any(axis=2), ones.argmax(axis=2), -1)
    assert (codes == -1).any() and (ones.sum(axis=2) <= 1).all()
    found = np.hstack([values(postures, "steps_packed", "numbers").reshape(len(windows), -1), codes])
    assert sorted(np.round(found.astype(float), 3).tolist()) == sorted(np.round(np.array(wanted, float), 3).tolist())


def test_each_step_has_the_mean_of_its_numbers(postures: Lab) -> None:
    steps(postures, "level_packed", "level", validation=0, prepare={"level": "number"})
    found = values(postures, "level_packed", "level").reshape(-1, STEPS)
    wanted = [
        [np.mean(known) if (known := [level for (level,) in rows if level is not None]) else -1
         for rows in of_steps(window)]
        for window in expected(postures, "level")
    ]  # fmt: skip
    assert np.isnan(found).any()
    assert sorted(np.nan_to_num(found, nan=-1).astype(float).round(3).tolist()) == sorted(
        np.array(wanted).round(3).tolist()
    )


def test_weights_are_those_of_steps(postures: Lab) -> None:
    """A step has the weight of its last row, and balanced classes have the same weight in all steps together."""
    steps(postures, "weighted_packed", weights="weight", class_weight="balanced", validation=0)
    ones = values(postures, "weighted_packed", "posture").reshape(-1, 3)
    labels = postures.value("SELECT posture_labels FROM weighted_packed_summary")
    packed_weights = postures("SELECT __weight__ FROM weighted_packed ORDER BY __dist_key__, buffer_id")
    weights = np.frombuffer(b"".join(bytes(one) for (one,) in packed_weights), "<f4")
    counted = ones.sum(axis=0)
    factors = ones.sum() / (3 * counted)
    wanted = [
        (label, round((weight * factors[labels.index(label)]), 4))
        for window in expected(postures, "weight, posture")
        for rows in of_steps(window)
        if (label := most_frequent(rows)) is not None
        for weight in [rows[-1][0]]
    ]
    known = ones.any(axis=1)
    found = [(labels[one.argmax()], round(float(weight), 4)) for one, weight in zip(ones[known], weights[known])]
    assert sorted(found) == sorted(wanted)


# -- models --------------------------------------------------------------------------------------------------

KINDS = {
    "lstm": {"units": 16},
    "conv1d": {"filters": 16},
    "transformer": {"units": 16, "blocks": 1},
    "cnn_lstm": {"channels": 4, "hidden": 16, "units": 8, "blocks": 2},
    "mlp": {"units": 64},
    "resnet": {"units": 32, "blocks": 1},
}


@pytest.fixture(scope="module")
def trained(postures: Lab) -> Lab:
    configurations = [{"architecture": kind, **more, "learning_rate": 0.01} for kind, more in KINDS.items()]
    postures(
        "SELECT cerebro.fit('postures', 'posture_models', %s, 'posture', inputs => 'x', epochs => 12, sequence => %s,"
        " options => %s, segments => 2)",
        json.dumps(configurations), json.dumps(SEQUENCE), json.dumps({"deterministic": True, "seed": 1}),
    )  # fmt: skip
    return postures


def test_models_learn_the_class_of_each_step(trained: Lab) -> None:
    found = trained(
        "SELECT architecture, validation_metric FROM cerebro.leaderboard WHERE model_name = 'posture_models'"
    )
    assert {kind for kind, _ in found} == KINDS.keys() and all(accuracy > 0.8 for _, accuracy in found), found


def test_each_step_is_predicted_with_its_key(trained: Lab) -> None:
    told = trained("SELECT key_value::int, class, probability FROM cerebro.predict('posture_models', 'postures', 'id')")
    wanted = [rows[-1][0] for window in expected(trained, "id") for rows in of_steps(window)]
    assert sorted(key for key, _, _ in told) == sorted(wanted)
    trained("SELECT cerebro.predict_into('posture_models', 'postures', 'postures_predicted', 'id', keep => 'at')")
    into = trained("SELECT id, predicted_posture, probability FROM postures_predicted")
    # On Greenplum the segments predict into the table, in other batches.
    assert [row[:2] for row in sorted(into)] == [row[:2] for row in sorted(told)]
    assert [row[2] for row in sorted(into)] == pytest.approx([row[2] for row in sorted(told)], abs=1e-5)
    right = trained.value(
        "SELECT avg((predicted_posture = posture)::int) FROM postures_predicted JOIN postures USING (id)"
    )
    assert right > 0.8


def judged(place: Lab, model: str) -> tuple[dict[str, float], tuple[float, float]]:
    """What cerebro.evaluate says of the rows for validation, and what the run has counted on them."""
    found = dict(place("SELECT metric, value FROM cerebro.evaluate(%s)", model))
    return found, place("SELECT validation_loss, validation_metric FROM cerebro.leaderboard"
                        " WHERE model_table = %s ORDER BY rank LIMIT 1", f"{place.schema}.{model}")[0]  # fmt: skip


def test_losses_and_metrics_are_those_of_the_labelled_steps(trained: Lab) -> None:
    """The run's own numbers for the rows for validation are those of the predictions of these rows."""
    found, (loss, accuracy) = judged(trained, "posture_models")
    assert (found["log_loss"], found["accuracy"]) == pytest.approx((loss, accuracy), abs=1e-5)
    packed_rows = trained.packed_rows("posture_models", "_validation")
    windows = trained.value(f"SELECT rows FROM {packed_rows}_summary")
    assert 0 < found["rows"] < STEPS * windows


def test_a_query_is_evaluated_by_the_targets_of_packing(trained: Lab) -> None:
    actual = {
        rows[-1][0]: most_frequent(rows) for window in expected(trained, "id, posture") for rows in of_steps(window)
    }
    said = dict(trained("SELECT key_value::int, class FROM cerebro.predict('posture_models', 'postures', 'id')"))
    known = {key: label for key, label in actual.items() if label is not None}
    found = dict(trained("SELECT metric, value FROM cerebro.evaluate('posture_models', 'postures')"))
    right = np.mean([said[key] == label for key, label in known.items()])
    assert (found["rows"], found["accuracy"]) == (len(known), pytest.approx(right))
    both = trained("SELECT count(*) FROM cerebro.confusion_matrix('posture_models', 'postures')")
    assert both[0][0] > 0


@pytest.mark.parametrize("engine", ["tensorflow", "jax"])
def test_numbers_of_steps(postures: Lab, engine: str) -> None:
    postures(
        "SELECT cerebro.fit('postures', %s, '[{\"architecture\": \"lstm\", \"units\": 8}]', 'level', inputs => 'x',"
        " epochs => 3, sequence => %s, prepare => '{\"level\": \"number\"}', options => %s, segments => 1)",
        f"levels_{engine}", json.dumps(SEQUENCE), json.dumps({"engine": engine, "deterministic": True, "seed": 1}),
    )  # fmt: skip
    found, (loss, mae) = judged(postures, f"levels_{engine}")
    assert (found["mse"], found["mae"]) == pytest.approx((loss, mae), rel=1e-4)
    of_query = dict(postures("SELECT metric, value FROM cerebro.evaluate(%s, 'postures')", f"levels_{engine}"))
    said = dict(postures("SELECT key_value::int, value FROM cerebro.predict(%s, 'postures', 'id')", f"levels_{engine}"))
    errors = [
        said[rows[-1][0]] - np.mean(known)
        for window in expected(postures, "id, level")
        for rows in of_steps(window)
        if (known := [level for _, level in rows if level is not None])
    ]
    assert of_query["rows"] == len(errors) and of_query["mae"] == pytest.approx(np.abs(errors).mean(), rel=1e-5)


# -- what else can be done with such models ------------------------------------------------------------------


def test_train_chooses_and_judges_such_models(postures: Lab) -> None:
    postures.told()
    postures(
        "SELECT cerebro.train('postures', 'trained_postures', 'posture', budget => '15 seconds', inputs => 'x',"
        " class_weight => 'balanced', sequence => %s, options => %s)",
        json.dumps(SEQUENCE), json.dumps({"seed": 1}),
    )  # fmt: skip
    said = "".join(postures.told())
    found = dict(postures("SELECT metric, value FROM cerebro.evaluate('trained_postures')"))
    assert found["accuracy"] > 0.6, said
    losses = dict(postures("SELECT column_name, importance FROM cerebro.importance('trained_postures')"))
    assert losses["x"] > 0
    assert postures.value("SELECT importance FROM cerebro.importance('trained_postures', 'postures', repeats => 1)") > 0


def test_an_ensemble_predicts_the_mean_of_each_step(trained: Lab) -> None:
    """The steps for validation choose its members, unless all join."""
    trained.told()
    trained("SELECT cerebro.ensemble('posture_models', 'chosen_together', 3)")
    assert "posture_models: configuration" in (said := "".join(trained.told())) or "the mean of" in said, said
    trained("SELECT cerebro.ensemble('posture_models', 'joined_together', 2, all_join => true)")
    (members,) = re.findall(r"the mean of configurations (\d), (\d)", "".join(trained.told()))

    def probabilities(model: str, configuration: int = 1) -> dict[str, float]:
        call = "SELECT key_value, probability FROM cerebro.predict(%s, 'postures', 'id', configuration => %s," \
               " probability_of => 'run')"  # fmt: skip
        return dict(trained(call, model, configuration))

    together, *alone = (
        probabilities("joined_together"), *(probabilities("posture_models", int(one)) for one in members)
    )  # fmt: skip
    assert len(together) > 200
    assert together == pytest.approx({key: (alone[0][key] + alone[1][key]) / 2 for key in together}, abs=1e-5)


def test_two_classes_of_steps_can_be_one_probability(postures: Lab) -> None:
    """A model of the user's own, with a sigmoid; of class numbers, too; with class weights and other metrics."""
    postures("CREATE VIEW moving AS SELECT *, posture <> 'sit' AS moves FROM postures")
    steps(postures, "moving_packed", "moves", "moving")
    flat = c.layer("Reshape", "steps", target_shape=[STEPS, EVERY])
    for number, (units, activation, loss, metrics) in enumerate([
        (1, "sigmoid", "binary_crossentropy", "['accuracy', 'AUC']"),
        (2, "softmax", "sparse_categorical_crossentropy", "['accuracy']"),
    ]):  # fmt: skip
        layers = [c.input_layer([LENGTH, 1]), flat, c.layer("Dense", "out", units=units, activation=activation)]
        model = postures.architecture(c.sequential(*layers), table=f"moving_arch{number}")
        compiled = f"optimizer='Adam(lr=0.05)', loss='{loss}', metrics={metrics}"
        postures.selection(f"moving_mst{number}", [(model, compiled, "batch_size=8, epochs=5, class_weight={0: 2.0}")],
                           arch=f"moving_arch{number}")  # fmt: skip
        postures.fit("moving_packed", f"moving{number}", f"moving_mst{number}", 8,
                     validation_table="moving_packed_validation", options={"deterministic": True})  # fmt: skip
        found = dict(postures("SELECT metric, value FROM cerebro.evaluate(%s)", f"moving{number}"))
        told = postures(f"SELECT validation_metrics_final, validation_loss_final FROM moving{number}_info")[0]
        assert found["accuracy"] > 0.8
        assert (found["accuracy"], found["log_loss"]) == pytest.approx(told, abs=1e-4)
        predicted = postures("SELECT key_value, class FROM cerebro.predict(%s, 'moving', 'id')", f"moving{number}")
        assert {label for _, label in predicted} == {"true", "false"}


def test_groups_folds_and_added_rows(postures: Lab) -> None:
    arguments = {"sequence": json.dumps({**SEQUENCE, "by": ["site", "who"]}), "group_by": "site"}
    postures(
        "SELECT cerebro.fit('postures', 'by_site', '[{\"architecture\": \"lstm\", \"units\": 8}]', 'posture',"
        " inputs => 'x', epochs => 1, sequence => %s, group_by => %s)",
        *arguments.values(),
    )  # fmt: skip
    told = postures("SELECT key_value::int FROM cerebro.predict('by_site', 'postures', 'id')")
    wanted = [rows[-1][0] for window in expected(postures, "id") for rows in of_steps(window)]
    assert sorted(key for (key,) in told) == sorted(wanted)
    assert postures.value("SELECT cerebro.predict_into('by_site', 'postures', 'by_site_predicted', 'id')") == len(
        wanted
    )
    steps(postures, "folded", folds=3)
    assert len(postures.value("SELECT layout -> 'partitions' -> 0 -> 'folds' FROM folded_summary")) == 3
    steps(postures, "growing", weights="weight", class_weight="balanced", validation=0)
    before = postures.value("SELECT (layout ->> 'rows')::int FROM growing_summary")
    postures("CREATE VIEW later AS SELECT id + 10000 AS id, who + 100 AS who, at, x, weight, posture FROM postures"
             " WHERE who > 18 AND posture IS DISTINCT FROM 'run'")  # fmt: skip
    postures("SELECT cerebro.append('growing', 'later')")
    after = postures.value("SELECT (layout ->> 'rows')::int FROM growing_summary")
    assert after - before == len(expected(postures, "id", source="later"))


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (
            "SELECT cerebro.create_predictor('posture_models', 'posture_of')",
            "predicts each step of a window; a function",
        ),
        ("SELECT * FROM cerebro.explain('posture_models', 'postures')", "each step of a window, which cannot be"),
        ("SELECT * FROM cerebro.mistakes('posture_models', 'postures')", "or of a step, is that of several rows"),
        (
            "SELECT madlib_keras_predict('posture_models', 'postures', 'id', NULL, 'm', 'prob', mst_key => 1)",
            "each step of a window",
        ),
    ],
)
def test_what_needs_one_value_for_a_row_is_refused(trained: Lab, call: str, says: str) -> None:
    with pytest.raises(psycopg2.Error, match=says) as error:
        trained(call)
    assert error.value.diag.message_hint


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"target": "posture, level"}, '"target": "each" needs a single target, not 2'),
        ({"target": "list"}, "the target 'list' is an array"),
        ({"sequence": {"every": 5}}, "every has to divide the length 12 into at least two steps"),
        ({"sequence": {"every": 12}}, "every has to divide the length 12 into at least two steps"),
        ({"sequence": {"target": "last"}}, 'every needs "target": "each"'),
        ({"sequence": {"horizon": 2}}, 'target cannot be "each" with a horizon'),
    ],
)
def test_what_makes_no_steps_is_refused(postures: Lab, more: dict[str, Any], says: str) -> None:
    postures("CREATE OR REPLACE VIEW listed AS SELECT *, ARRAY[x, x] AS list FROM postures")
    with pytest.raises(psycopg2.Error, match=says) as error:
        steps(postures, "refused_packed", source="listed", **more)
    assert error.value.diag.message_hint


def test_a_model_with_another_shape_is_refused(postures: Lab) -> None:
    steps(postures, "shaped_packed", validation=0)
    layers = [c.input_layer([LENGTH, 1]), c.layer("Flatten", "flat"), c.layer("Dense", "out", units=STEPS * 3)]
    model = postures.architecture(c.sequential(*layers), table="shaped_arch")
    postures.selection("shaped_mst", [(model, "optimizer='SGD', loss='mse'", "batch_size=8")], arch="shaped_arch")
    with pytest.raises(psycopg2.Error, match="the target has 4 steps"):
        postures.fit("shaped_packed", "shaped", "shaped_mst", 1)


def test_segments_cannot_share_a_minibatch(postures: Lab) -> None:
    with pytest.raises(psycopg2.Error, match="targets of steps cannot be trained on several segments"):
        postures(
            "SELECT cerebro.fit('postures', 'shared', '[{\"architecture\": \"lstm\", \"units\": 4}]', 'posture',"
            " inputs => 'x', epochs => 1, sequence => %s, segments => 2, options => '{\"parallel\": \"gradients\"}')",
            json.dumps(SEQUENCE),
        )


# -- gaps and ends -------------------------------------------------------------------------------------------

BROKEN = """
CREATE VIEW broken AS SELECT *, 'row ' || id AS name, at::time AS hour, extract(epoch FROM at)::int AS second,
  extract(minute FROM at)::int AS minute, extract(second FROM at) BETWEEN 20 AND 24 AS off
 FROM postures WHERE extract(second FROM at) NOT BETWEEN 40 AND 43 OR who < 5
"""


def stretches(place: Lab, breaks: Any, left_out: Any = None) -> list[list[list[Any]]]:
    """The stretches of rows (who, id, second, minute, off), made in Python."""
    found: list[list[list[Any]]] = []
    before = None
    for who, *row in place("SELECT who, id, second, minute, off, posture FROM broken ORDER BY who, at"):
        if before is None or before[0] != who or breaks(before[1], row):
            found.append([])
        before = who, row
        if left_out is None or not left_out(row):
            found[-1].append(row)
    return [one for one in found if one]


@pytest.fixture(scope="module")
def broken(postures: Lab) -> Lab:
    postures(BROKEN)
    return postures


@pytest.mark.parametrize(
    ("more", "breaks", "left_out"),
    [
        ({"gap": "2 seconds"}, lambda a, b: b[1] - a[1] > 2, None),
        ({"gap": 2, "order": "second"}, lambda a, b: b[1] - a[1] > 2, None),
        ({"gap": "2 seconds", "order": "hour"}, lambda a, b: b[1] - a[1] > 2, None),
        ({"breaks": "minute"}, lambda a, b: a[2] != b[2], None),
        ({"breaks": ["minute", "off"], "gap": "2 s"}, lambda a, b: a[2:4] != b[2:4] or b[1] - a[1] > 2,
         lambda row: row[3]),
    ],
)  # fmt: skip
def test_no_window_has_rows_of_two_stretches(broken: Lab, more: Any, breaks: Any, left_out: Any) -> None:
    broken("DROP TABLE IF EXISTS stretched, stretched_summary")
    sequence = json.dumps({**SEQUENCE, "target": "last", "every": None, "step": 5, **more})
    packed(broken, "stretched", "posture", "broken", sequence=sequence, inputs="id", prepare={"id": "standard"},
           validation=0, seed=1)  # fmt: skip
    parameters = columns_of(broken, "stretched")["id"]["parameters"]
    found = values(broken, "stretched", "numbers").astype(float) * parameters["deviation"] + parameters["mean"]
    wanted = [
        [row[0] for row in rows[start : start + LENGTH]]
        for rows in stretches(broken, breaks, left_out)
        for start in range(0, len(rows) - LENGTH + 1, 5)
        if rows[start + LENGTH - 1][-1] is not None
    ]
    assert sorted(found.round().astype(int).reshape(-1, LENGTH).tolist()) == sorted(wanted)


@pytest.mark.parametrize("rest", ["pad", "wrap"])
def test_every_step_has_a_prediction(broken: Lab, rest: str) -> None:
    """Also those that fill no window; and each once.  What fills a window has no label."""
    sequence = {**SEQUENCE, "gap": "2 seconds", "breaks": "off", "rest": rest}
    model = f"ending_{rest}"
    broken(
        "SELECT cerebro.fit('broken', %s, '[{\"architecture\": \"lstm\", \"units\": 8}]', 'posture', inputs => 'x',"
        " epochs => 2, sequence => %s, options => '{\"seed\": 1}')",
        model, json.dumps(sequence),
    )  # fmt: skip
    its = stretches(broken, lambda a, b: a[3] != b[3] or b[1] - a[1] > 2, lambda row: row[3])
    of_all = [rows[start : start + EVERY] for rows in its for start in range(0, len(rows), EVERY)]
    wanted = sorted(rows[-1][0] for rows in of_all)
    assert len(wanted) > 1.3 * STEPS * sum(len(rows) // LENGTH for rows in its)
    told = broken("SELECT key_value::int, class FROM cerebro.predict(%s, 'broken', 'id')", model)
    assert sorted(key for key, _ in told) == wanted
    assert broken.value("SELECT cerebro.predict_into(%s, 'broken', %s, 'id')", model, f"{model}_into") == len(wanted)
    assert sorted(broken(f"SELECT id, predicted_posture FROM {model}_into")) == sorted(told)
    labelled = sum(most_frequent(rows) is not None for rows in of_all)
    assert dict(broken("SELECT metric, value FROM cerebro.evaluate(%s, 'broken')", model))["rows"] == labelled
    of_run = broken.packed_rows(model)
    ones = values(broken, of_run, "posture").sum() + values(broken, f"{of_run}_validation", "posture").sum()
    assert ones == labelled
    with pytest.raises(psycopg2.Error, match="1 rows have a NULL in the key"):
        broken("SELECT * FROM cerebro.predict(%s, 'SELECT *, NULLIF(id, 7) AS n FROM broken', 'n')", model)


def test_the_rest_is_padded_with_the_last_row_or_wrapped(postures: Lab) -> None:
    """23 rows are a window of 12 and a rest of 11: the last step has two rows."""
    postures("CREATE VIEW short AS SELECT * FROM postures WHERE who = 3 ORDER BY at LIMIT 23")
    ids = [id for (id,) in postures("SELECT id FROM short ORDER BY at")]
    for rest, rows in (("pad", [*ids[12:], ids[-1]]), ("wrap", [*ids[12:], ids[-1]])):
        steps_of(postures, f"short_{rest}", "short", rest)
        assert sorted(ids_of(postures, f"short_{rest}")) == sorted([ids[:12], rows])
    postures("CREATE VIEW shorter AS SELECT * FROM postures WHERE who = 3 ORDER BY at LIMIT 17")
    for rest, rows in (("pad", [*ids[12:17], *7 * [ids[16]]]), ("wrap", [*ids[6:17], ids[16]])):
        steps_of(postures, f"shorter_{rest}", "shorter", rest)
        assert sorted(ids_of(postures, f"shorter_{rest}")) == sorted([ids[:12], rows])


def steps_of(place: Lab, output: str, source: str, rest: str) -> None:
    sequence = json.dumps({**SEQUENCE, "rest": rest})
    packed(place, output, "posture", source, sequence=sequence, inputs="id", prepare={"id": "standard"}, validation=0,
           seed=1)  # fmt: skip


def ids_of(place: Lab, output: str) -> list[list[int]]:
    parameters = columns_of(place, output)["id"]["parameters"]
    numbers = values(place, output, "numbers").astype(float) * parameters["deviation"] + parameters["mean"]
    return numbers.round().astype(int).reshape(-1, LENGTH).tolist()


@pytest.mark.parametrize("rest", ["drop", "wrap"])
def test_rows_of_a_window_can_be_means(broken: Lab, rest: str) -> None:
    """Two rows each are one; after a gap they are counted anew. It has the target and the key of the second."""
    sequence = {**SEQUENCE, "length": 6, "gap": "2 seconds", "mean": 2, "rest": rest}
    broken("DROP TABLE IF EXISTS halved, halved_summary")
    packed(broken, "halved", "posture", "broken", sequence=json.dumps(sequence), inputs="second, id",
           prepare={"id": "standard", "second": "standard"}, validation=0, seed=1)  # fmt: skip
    its = stretches(broken, lambda a, b: b[1] - a[1] > 2)
    pairs = [[rows[start : start + 2] for start in range(0, len(rows), 2)] for rows in its]
    windows = []
    for rows in pairs:
        whole = [pair for pair in rows if len(pair) == 2 or rest != "drop"]
        windows += [whole[start : start + 6] for start in range(0, len(whole) - 5, 6)]
        if rest == "wrap" and len(whole) % 6:
            start = max(0, -(-len(whole) // EVERY) * EVERY - 6)
            windows.append((whole[start:] + 6 * whole[-1:])[:6])
    wanted = sorted([round(float(np.mean([row[0] for row in pair])), 1) for pair in window] for window in windows)
    parameters = columns_of(broken, "halved")["id"]["parameters"]
    place = columns_of(broken, "halved")["id"]["place"]
    numbers = values(broken, "halved", "numbers")[:, :, place - 1].astype(float)
    found = (numbers * parameters["deviation"] + parameters["mean"]).round(1)
    kept = [window for window in windows if any(pair[-1][-1] for pair in window)]
    assert len(found) == len(kept) or rest == "wrap"
    assert {tuple(one) for one in found.tolist()} <= {tuple(one) for one in wanted} and len(found) > 20
    model = f"means_{rest}"
    broken(
        "SELECT cerebro.fit('broken', %s, '[{\"architecture\": \"lstm\", \"units\": 4}]', 'posture', epochs => 1,"
        " inputs => 'x', sequence => %s)",
        model, json.dumps(sequence),
    )  # fmt: skip
    told = broken("SELECT key_value::int FROM cerebro.predict(%s, 'broken', 'id')", model)
    keys = [
        rows[min(start + EVERY, len(rows)) - 1][-1][0]
        for rows in (
            [pair for pair in one if len(pair) == 2 or rest != "drop"] for one in pairs
        )
        for start in range(0, len(rows) if rest == "wrap" else len(rows) // 6 * 6, EVERY)
    ]  # fmt: skip
    assert sorted(key for (key,) in told) == sorted(keys)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"mean": 2, "target": "last", "every": None, "horizon": 2}, "mean cannot be used with a horizon"),
        ({"mean": 2, "by": "site"}, "the input 'name' has no mean"),
        ({"gap": "a while"}, "gap has to be a time span above 0, as the order 'at' needs, not 'a while'"),
        ({"gap": "-1 second"}, "gap has to be a time span above 0"),
        ({"gap": "1 second", "order": "id"}, "gap has to be a number above 0, as the order 'id' needs"),
        ({"gap": "1 second", "order": "name"}, "gap needs an order by time or by numbers, and 'name' is of type text"),
        ({"gap": "1 second", "order": ["who", "at"]}, 'gap needs an "order" of one column'),
        ({"breaks": "worn"}, "does not have the column 'worn' of breaks"),
        ({"rest": "wrap", "step": 3}, 'rest cannot be "wrap" without "target": "each", or with "step"'),
        ({"rest": "keep"}, "rest has to be one of drop, pad, wrap"),
    ],
)
def test_what_cannot_break_windows_is_refused(broken: Lab, more: dict[str, Any], says: str) -> None:
    with pytest.raises(psycopg2.Error, match=says) as error:
        steps(broken, "refused_packed", source="broken", sequence=more, inputs="x, name, weight")
    assert error.value.diag.message_hint


def test_a_function_does_not_know_where_windows_break(broken: Lab) -> None:
    with pytest.raises(psycopg2.Error, match="the rows of a function's window have no time"):
        broken("SELECT cerebro.create_predictor('ending_pad', 'ending_of')")


# -- together ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["tensorflow", "jax"])
def test_models_that_train_together_count_the_same_steps(postures: Lab, engine: str) -> None:
    """Fused, on several segments, and with row weights."""
    model = f"fused_{engine}"
    configurations = [{"architecture": "mlp", "units": 16, "learning_rate": rate} for rate in (0.01, 0.003, 0.001)]
    postures(
        "SELECT cerebro.fit('postures', %s, %s, 'posture', inputs => 'x', epochs => 3, sequence => %s, segments => 2,"
        " weights => 'weight', options => %s)",
        model, json.dumps(configurations), json.dumps(SEQUENCE),
        json.dumps({"engine": engine, "seed": 1, "fuse": engine == "jax"}),
    )  # fmt: skip
    found, (loss, accuracy) = judged(postures, model)
    assert found["accuracy"] == pytest.approx(accuracy, abs=1e-6)
    assert found["log_loss"] == pytest.approx(loss, rel=0.02)  # of the parts, weighed by their windows


def test_such_models_are_calibrated(trained: Lab) -> None:
    measures = dict(trained("SELECT measure, after FROM cerebro.calibrate('posture_models', 'postures')"))
    known = [one for window in expected(trained, "id, posture") for one in map(most_frequent, of_steps(window)) if one]
    assert measures["rows"] == len(known)
    page = json.loads(trained.value("SELECT cerebro_internal._validation_sample('posture_models', NULL)"))
    assert page["targets"][0]["metrics"] and page["targets"][0]["examples"] == []
    explained = trained.value("SELECT cerebro_internal._validation_explained('posture_models', NULL, ARRAY[1, 2])")
    assert json.loads(explained) == {}
