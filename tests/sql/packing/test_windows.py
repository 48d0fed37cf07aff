"""Windows of rows: cerebro.pack with a sequence, and models that read windows, from packing to predictions."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from typing import Any

import numpy as np
import psycopg2
import pytest

from tests.nn import configurations as c
from tests.sql.lab import Lab
from tests.sql.packing.test_tables import columns_of, packed, refused, values
from tests.thorough import landing

LENGTH, STEP = 12, 6
SEQUENCE: dict[str, Any] = {"by": "who", "order": "at", "length": LENGTH, "step": STEP}
# 30 people; each stands, walks or runs, in stretches. The level of the signal says nothing, its frequency all.
MOVES = """
CREATE TABLE moves AS SELECT i AS id, who, timestamp '2024-01-01' + place * interval '1 s' AS at, who % 4 AS site,
  (sin(place * CASE posture WHEN 'run' THEN 2.5 WHEN 'walk' THEN 1.2 ELSE 0.2 END) + who % 3)::real AS x,
  (cos(place * 0.7) * 3)::real AS y,
  CASE WHEN place % 7 = 0 THEN NULL ELSE (ARRAY['l', 'r'])[1 + place % 2] END AS foot,
  ARRAY[place % 5, who % 3]::smallint[] AS sensors, posture
 FROM (SELECT row_number() OVER (ORDER BY who * 37 % 31, place * 61 % 97) AS i, who, place,
              (ARRAY['stand', 'walk', 'run'])[1 + (place / 30 + who) % 3] AS posture
         FROM generate_series(1, 30) who, generate_series(0, 95) place
        WHERE place < CASE WHEN who = 30 THEN 11 ELSE 66 + who END) m
 ORDER BY id;
"""


@pytest.fixture(scope="module")
def moves(lab: Lab) -> Lab:
    lab(MOVES)
    return lab


def windows(place: Lab, output: str, source: str = "moves", target: str = "posture", **more: Any) -> list[str]:
    sequence = json.dumps({**SEQUENCE, **more.pop("sequence", {})})
    return packed(place, output, target, source, sequence=sequence, seed=1, segments=1, **more)


def expected(place: Lab, columns: str, sequence: dict[str, Any] = SEQUENCE, source: str = "moves") -> list[list[Any]]:
    """The windows, made in Python: lists of rows."""
    subjects = defaultdict(list)
    for who, *row in place(f"SELECT who, {columns} FROM {source} ORDER BY who, at"):
        subjects[who].append(row)
    length, step = sequence["length"], sequence["step"]
    return [
        rows[start : start + length] for rows in subjects.values() for start in range(0, len(rows) - length + 1, step)
    ]


def sorted_rows(found: Any) -> list[list[float]]:
    return sorted(np.asarray(found, float).reshape(len(found), -1).round(4).tolist())


def test_windows_are_consecutive_rows_of_one_subject(moves: Lab) -> None:
    said = windows(moves, "plain_packed", inputs="x, y, foot, sensors", validation=0)
    became = columns_of(moves, "plain_packed")
    assert set(became) == {"x", "y", "foot", "sensors", "posture"}
    layout = moves.value("SELECT layout FROM plain_packed_summary")
    assert [(v["name"], v["shape"]) for v in layout["inputs"]] == [
        ("numbers", [LENGTH, 2]), ("categories", [LENGTH, 1]), ("sensors", [LENGTH, 2])
    ]  # fmt: skip
    assert layout["sequence"] == {"by": ["who"], "order": ["at"], "length": LENGTH, "step": STEP, "target": "last"}
    wanted = expected(moves, "x, y, foot, sensors, posture")
    assert layout["rows"] == len(wanted) and f"{len(wanted)} windows of {LENGTH} rows" in said
    codes = {None: 0, **{value: 1 + place for place, value in enumerate(became["foot"]["parameters"]["values"])}}
    scaled = [became[name]["parameters"] for name in "xy"]
    labels = moves.value("SELECT posture_labels FROM plain_packed_summary")
    rows = [
        [*((row[i] - p["mean"]) / p["deviation"] for row in window for i, p in enumerate(scaled)),
         *(codes[row[2]] for row in window), *(one for row in window for one in row[3]),
         labels.index(window[-1][4])]
        for window in wanted
    ]  # fmt: skip
    found = [
        values(moves, "plain_packed", name).reshape(len(wanted), -1) for name in ("numbers", "categories", "sensors")
    ]
    found.append(values(moves, "plain_packed", "posture").argmax(axis=1)[:, None])
    assert sorted_rows(np.hstack([one.astype(float) for one in found])) == sorted_rows(rows)


def test_the_target_of_the_majority(moves: Lab) -> None:
    windows(moves, "major_packed", inputs="x", validation=0, sequence={"target": "majority"})
    labels = moves.value("SELECT posture_labels FROM major_packed_summary")
    wanted = []
    for window in expected(moves, "posture"):
        said = [posture for (posture,) in window]
        wanted.append(min(sorted(set(said)), key=lambda one: -said.count(one)))
    found = [labels[place] for place in values(moves, "major_packed", "posture").argmax(axis=1)]
    assert sorted(found) == sorted(wanted)
    assert sorted(found) != sorted(window[-1][0] for window in expected(moves, "posture"))


def test_several_columns_say_the_subject_and_the_order(moves: Lab) -> None:
    moves(
        "CREATE VIEW visits AS SELECT *, who % 5 AS ward, who / 5 AS bed, at::date AS day, at::time AS hour FROM moves"
    )
    sequence = {"by": ["ward", "bed"], "order": ["day", "hour"]}
    windows(moves, "visits_packed", "visits", inputs="x", validation=0, sequence=sequence)
    windows(moves, "same_packed", inputs="x", validation=0)
    one, two = (moves.value(f"SELECT layout FROM {name}_packed_summary") for name in ("visits", "same"))
    assert one["partitions"] == two["partitions"]


# -- splits --------------------------------------------------------------------------------------------------


def rows_of(place: Lab, output: str) -> tuple[set[int], set[int]]:
    """The ids of the rows in the windows of both sides."""
    parameters = columns_of(place, output)["id"]["parameters"]
    found = []
    for table in (output, f"{output}_validation"):
        numbers = values(place, table, "numbers").astype(float)
        found.append(set((numbers * parameters["deviation"] + parameters["mean"]).round().astype(int).ravel().tolist()))
    return found[0], found[1]


IDS: dict[str, Any] = {"inputs": "id", "prepare": {"id": "standard"}}


@pytest.mark.parametrize("more", [{}, {"split_by": "site", "validation": 0.3}])
def test_subjects_stay_on_one_side(moves: Lab, more: dict[str, Any]) -> None:
    moves("DROP TABLE IF EXISTS sides, sides_summary, sides_validation, sides_validation_summary")
    windows(moves, "sides", **IDS, **more)
    column = more.get("split_by", "who")
    one, two = (
        {value for (value,) in moves(f"SELECT DISTINCT {column} FROM moves WHERE id = ANY (%s)", list(side))}
        for side in rows_of(moves, "sides")
    )
    assert one and two and not one & two


def test_no_row_of_the_past_is_in_a_window_of_the_future(moves: Lab) -> None:
    windows(moves, "dated", split_at="at", validation=0.3, **IDS)
    training, validation = rows_of(moves, "dated")
    last, first = (
        moves.value(f"SELECT {what}(at) FROM moves WHERE id = ANY (%s)", list(side))
        for what, side in (("max", training), ("min", validation))
    )
    assert last < first
    # One series, without subjects: the latest by default.
    moves("CREATE VIEW alone AS SELECT * FROM moves WHERE who = 7")
    windows(moves, "lonely", "alone", sequence={"by": None, "length": 5, "step": 1}, **IDS)
    training, validation = rows_of(moves, "lonely")
    assert not training & validation and len(training | validation) == moves.value("SELECT count(*) FROM alone")


# -- no skew -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mirror(moves: Lab) -> Lab:
    """window_mirror: a model that predicts its own inputs."""
    sizes = {"numbers": 2 * LENGTH, "categories": LENGTH, "sensors": 2 * LENGTH}
    shapes = {"numbers": [LENGTH, 2], "categories": [LENGTH, 1], "sensors": [LENGTH, 2]}
    total = sum(sizes.values())
    moves(f"CREATE TABLE copied AS SELECT *, array_fill(0::real, ARRAY[{total}]) AS z FROM moves")
    windows(moves, "copied_packed", "copied", "z", inputs="x, y, foot, sensors", validation=0)
    layers: list[Any] = [(c.input_layer(shape, name=name), []) for name, shape in shapes.items()]
    layers += [(c.layer("Flatten", f"{name}_flat"), [name]) for name in shapes]
    layers.append((c.layer("Concatenate", "all"), [f"{name}_flat" for name in shapes]))
    layers.append((c.layer("Dense", "out", units=total), ["all"]))
    weights = np.concatenate([np.eye(total).ravel(), np.zeros(total)]).astype("f4").tobytes()
    model = moves.architecture(c.functional(layers, list(shapes), ["out"]), weights)
    moves.selection("mirror_mst", [(model, "optimizer='SGD(lr=0.0)', loss='mse'", "batch_size=64")])
    moves.fit("copied_packed", "window_mirror", "mirror_mst", 1)
    return moves


def test_prediction_makes_the_very_windows_of_packing(mirror: Lab) -> None:
    names = ("numbers", "categories", "sensors")
    layout = mirror.value("SELECT layout FROM copied_packed_summary")
    packed_rows = np.hstack(
        [values(mirror, "copied_packed", name).reshape(layout["rows"], -1).astype("f4") for name in names]
    )
    mirror("SELECT madlib_keras_predict('window_mirror', 'copied', 'id', NULL, 'said', 'prob', false, 1)")
    mirror("SET extra_float_digits = 1")
    told = mirror("SELECT id, estimated_z FROM said")
    assert sorted(tuple(value) for _, value in told) == sorted(map(tuple, packed_rows.tolist()))
    assert sorted(key for key, _ in told) == sorted(window[-1][0] for window in expected(mirror, "id"))
    mirror("SELECT pack_like('copied', 'again', 'z', NULL, 'copied_packed')")
    again = np.hstack([values(mirror, "again", name).reshape(layout["rows"], -1).astype("f4") for name in names])
    assert sorted(map(tuple, again.tolist())) == sorted(map(tuple, packed_rows.tolist()))


# -- models --------------------------------------------------------------------------------------------------

KINDS = ("lstm", "conv1d", "transformer")
SMALL = {"lstm": {"units": 32}, "conv1d": {"filters": 32}, "transformer": {"units": 32, "blocks": 1}}


@pytest.fixture(scope="module")
def trained(moves: Lab) -> Lab:
    windows(moves, "posture_packed", inputs="x, y, foot", sequence={"step": 3})
    for kind in KINDS:
        moves(
            f"SELECT load_keras_model('posture_arch', architecture('{kind}', 'posture_packed', %s))",
            json.dumps(SMALL[kind]),
        )
    compiled = moves.compiled("posture_packed", "Adam(learning_rate=0.005)")
    rows = [(place, compiled, "batch_size=32") for place in range(1, len(KINDS) + 1)]
    moves.selection("posture_mst", rows, arch="posture_arch")
    moves.fit(
        "posture_packed", "posture_models", "posture_mst", 10, validation_table="posture_packed_validation",
        options={"deterministic": True, "seed": 1},
    )  # fmt: skip
    return moves


def test_models_learn_what_only_the_order_tells(trained: Lab) -> None:
    found = dict(trained("SELECT mst_key, validation_metrics_final FROM posture_models_info"))
    assert all(accuracy > 0.75 for accuracy in found.values()), dict(zip(KINDS, found.items()))


def test_a_query_of_rows_is_predicted_window_by_window(trained: Lab) -> None:
    trained("SELECT madlib_keras_predict('posture_models', 'moves', 'id', NULL, 'postures', 'response', mst_key => 1)")
    told = trained("SELECT id, class_value FROM postures ORDER BY 1")
    ours = trained(
        "SELECT key_value::int, class FROM predict('posture_models', 'TABLE moves', configuration => 1) ORDER BY 1"
    )
    assert ours == told
    assert [key for key, _ in told] == sorted(w[-1][0] for w in expected(trained, "id", {**SEQUENCE, "step": 3}))
    one = "SELECT who, at, x, y, foot FROM moves WHERE who = 3 ORDER BY random()"
    keys = trained("SELECT key_value FROM predict('posture_models', %s, configuration => 1)", one)
    assert keys and all(key.startswith("3, 2024-01-01 00:0") for (key,) in keys)
    few = f"{one} LIMIT {LENGTH - 1}"
    trained.told()
    assert trained("SELECT * FROM predict('posture_models', %s)", few) == []
    assert f"1 of 1 subjects (who) has fewer than {LENGTH} rows, which make no window" in trained.told()[0]
    trained("CREATE VIEW later AS SELECT * FROM moves WHERE who > 20")
    trained("SELECT pack_like('later', 'later_packed', 'posture', NULL, 'posture_packed')")
    trained("SELECT madlib_keras_evaluate('posture_models', 'later_packed', 'judged', NULL, 1)")
    right = trained.value("SELECT avg((posture = class_value)::int) FROM postures JOIN later USING (id)")
    assert trained.value("SELECT metric FROM judged") == pytest.approx(float(right), abs=1e-6)


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("SELECT x, y, foot, who FROM moves", "the query does not have the column at of sequence"),
        (
            "SELECT x, y, foot, who, NULLIF(at, '2024-01-01 00:00:09') AS at FROM moves",
            "column 'at' of sequence is NULL",
        ),
        ("SELECT 'NaN'::real AS x, y, foot, who, at FROM moves", "NaN or infinite"),
    ],
)
def test_what_cannot_be_predicted_is_refused(trained: Lab, query: str, says: str) -> None:
    with pytest.raises(psycopg2.Error, match=says) as error:
        trained("SELECT * FROM predict('posture_models', %s)", query)
    assert error.value.diag.message_hint


def test_a_function_predicts_a_window(trained: Lab) -> None:
    called = trained.value("SELECT create_predictor('posture_models', 'posture_of', 1)")
    assert called == f"{trained.schema}.posture_of(x, y, foot)"
    told = dict(trained("SELECT key_value::int, class FROM predict('posture_models', 'TABLE moves', 'id', 1)"))
    for window in expected(trained, "id, x, y, foot", {**SEQUENCE, "step": 3})[::40]:
        ids, *columns = (list(values) for values in zip(*window))
        assert trained.value("SELECT posture_of(%s::real[], %s::real[], %s)", *columns) == told[ids[-1]]
    for arrays in ("'{1,2}', '{3,4}', '{l,r}'", f"NULL, array_fill(1.0, ARRAY[{LENGTH}])::real[], NULL"):
        with pytest.raises(psycopg2.Error, match=f"the model reads windows of {LENGTH} rows") as error:
            trained(f"SELECT posture_of({arrays})")
        assert error.value.diag.message_hint


@pytest.fixture(scope="module")
def major(moves: Lab) -> Lab:
    windows(moves, "of_most", inputs="x, y", sequence={"target": "majority", "step": 4})
    moves(
        'SELECT cerebro.fit(\'of_most\', \'most\', $$[{"architecture": "lstm", "units": 8, "learning_rate": 0.01}]$$,'
        " epochs => 2)"
    )
    return moves


def test_windows_by_majority_are_judged(major: Lab) -> None:
    """With the target that packing gives them: the first of the classes that are equally frequent."""
    sequence = {**SEQUENCE, "step": 4}
    actual = {}
    for window in expected(major, "id, posture", sequence):
        said = [posture for _, posture in window]
        actual[window[-1][0]] = min(sorted(set(said)), key=lambda one: -said.count(one))
    predicted = dict(major("SELECT key_value::int, class FROM predict('most', 'TABLE moves', 'id')"))
    assert predicted.keys() == actual.keys()
    wanted = Counter((actual[id], predicted[id]) for id in actual)
    found = major("SELECT actual, predicted, count FROM cerebro.confusion_matrix('most', 'TABLE moves')")
    assert {(one, other): count for one, other, count in found} == wanted
    right = sum(count for (one, other), count in wanted.items() if one == other) / len(actual)
    figures = dict(major("SELECT metric, value FROM cerebro.evaluate('most', 'TABLE moves')"))
    assert figures["accuracy"] == pytest.approx(right) and figures["rows"] == len(actual)
    for name, more in (("roc_curve", ", 'run'"), ("precision_recall", ", 'run'"), ("calibration", ", 'run'")):
        assert major(f"SELECT * FROM cerebro.{name}('most', 'TABLE moves'{more})")
    with pytest.raises(psycopg2.Error, match="so there is no row to return"):
        major("SELECT * FROM cerebro.mistakes('most', 'TABLE moves', 'id')")
    losses = major("SELECT loss_before FROM cerebro.importance('most', 'TABLE moves')")
    assert [loss for (loss,) in losses] == pytest.approx([figures["log_loss"]] * 2)
    # A NULL is no class: the others decide, and a window of NULLs alone is left out.
    holes = "SELECT who, at, x, y, CASE WHEN who > 2 OR place < 12 THEN posture END AS posture FROM"
    holes += " (SELECT *, row_number() OVER (PARTITION BY who ORDER BY at) - 1 AS place FROM moves) m WHERE who < 4"
    rows = dict(major("SELECT metric, value FROM cerebro.evaluate('most', %s)", holes))["rows"]
    assert rows == sum(1 for w in expected(major, "who, at, id", sequence) if w[0][0] == 3) + 2 * 3


def test_equally_frequent_classes_are_in_the_order_of_their_type(major: Lab) -> None:
    major("CREATE TYPE posture AS ENUM ('walk', 'run', 'stand')")  # not in the order of the texts
    major(
        "CREATE TABLE pairs AS SELECT who, at, x, (CASE at % 2 WHEN 0 THEN 'walk' ELSE 'stand' END)::posture AS p"
        " FROM (SELECT who, extract(second FROM at)::int AS at, x FROM moves"
        "        WHERE who < 20 AND extract(minute FROM at) = 0) m"
        " UNION ALL SELECT 50 + i, i % 2, 1.0, 'run' FROM generate_series(1, 40) i"
    )
    packed(major, "pairs_packed", "p", "pairs", validation=0, segments=1,
           sequence=json.dumps({"by": "who", "order": "at", "length": 2, "target": "majority"}))  # fmt: skip
    major(
        'SELECT cerebro.fit(\'pairs_packed\', \'pair_models\', $$[{"architecture": "lstm", "units": 2}]$$, epochs => 1)'
    )
    found = major("SELECT DISTINCT actual FROM cerebro.confusion_matrix('pair_models', 'TABLE pairs')")
    assert found == [("walk",)]


READ = {"cnn": "image, flag", "conv1d": "curve, flag", "transformer": "flag, curve"}


# test_models_learn_what_only_the_order_tells has a transformer.
@pytest.mark.parametrize("kind", landing(READ, "cnn", "conv1d"))
def test_images_and_series_beside_other_columns(moves: Lab, kind: str) -> None:
    """A cnn and a conv1d on the rows of one table: an image, a curve, a category."""
    moves(
        "CREATE TABLE IF NOT EXISTS pictures AS SELECT i AS id, (ARRAY['bar', 'spot'])[1 + i % 2] AS shape,"
        " i % 3 = 0 AS flag,"
        " (SELECT array_agg(ARRAY(SELECT CASE WHEN i % 2 = 0 AND x = 1 + i % 6 OR i % 2 = 1"
        "    AND abs(x - 1 - i % 6) + abs(y - 1 - i / 6 % 6) < 2 THEN 255 ELSE (x * y * i) % 40 END::smallint"
        "    FROM generate_series(1, 7) x ORDER BY x) ORDER BY y) FROM generate_series(1, 6) y) AS image,"
        " ARRAY(SELECT (t + i * 7 % 5) % (3 + 2 * (i % 2)) FROM generate_series(1, 20) t ORDER BY t)::real[] AS curve"
        " FROM generate_series(1, 600) i"
    )
    name = f"{kind}_pictures"
    packed(moves, name, "shape", "pictures", inputs=READ[kind], seed=1, segments=1)
    moves(f"SELECT load_keras_model('{kind}_arch', architecture('{kind}', '{name}'))")
    compiled = moves.compiled(name, "Adam(learning_rate=0.003)")
    moves.selection(f"{kind}_mst", [(1, compiled, "batch_size=32")], arch=f"{kind}_arch")
    moves.fit(name, f"{kind}_models", f"{kind}_mst", 8, validation_table=f"{name}_validation",
              options={"deterministic": True, "seed": 1})  # fmt: skip
    assert moves.value(f"SELECT validation_metrics_final FROM {kind}_models_info") > 0.9
    right = moves.value(
        f"SELECT avg((class = shape)::int) FROM predict('{kind}_models', 'TABLE pictures') p"
        " JOIN pictures ON id::text = key_value"
    )
    assert right > 0.9
    if kind != "cnn":
        with pytest.raises(psycopg2.Error, match="cnn reads images") as error:
            moves(f"SELECT architecture('cnn', '{name}')")
        assert "mlp, resnet, transformer" in error.value.diag.message_hint


# -- bad input -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sequence", "more", "says"),
    [
        ({"length": 0}, {}, "length has to be from 2 to 1000000, not 0"),
        ({"by": "nobody"}, {}, "does not have the column 'nobody' of by"),
        ({"order": "sensors"}, {}, "order cannot be the column 'sensors' of type smallint[]"),
        ({"order": "foot"}, {}, "column 'foot' of sequence is NULL in"),
        ({"length": 500}, {}, "does not have 500 consecutive rows of one who"),
        ({"length": 90}, {"split_at": "at"}, "consecutive rows of one who on one side"),
        ({"target": "majority"}, {"target": "y"}, "the target 'y' is a number; only classes have a majority"),
        ({}, {"stratify": True}, "stratify and sequence cannot be used together"),
        ({}, {"source": "ragged", "inputs": "sensors"}, "'sensors' of table ragged has arrays of different shapes"),
        ({}, {"source": "ragged", "inputs": "x, empty"}, "'empty' of table ragged has arrays with NULL elements"),
    ],
)  # fmt: skip
def test_what_cannot_be_packed_is_refused(
    moves: Lab, sequence: dict[str, Any], more: dict[str, Any], says: str
) -> None:
    moves(
        "CREATE OR REPLACE VIEW ragged AS SELECT id, who, at, x, posture, ARRAY[NULL, 1.0]::real[] AS empty,"
        " CASE WHEN id = 5 THEN '{1,2,3}' ELSE sensors END AS sensors FROM moves"
    )
    given = {"target": "posture", "source": "moves", "validation": 0.2, **more}
    assert says in str(refused(moves, sequence=json.dumps({**SEQUENCE, **sequence}), **given))
