"""Models leave the database as files, and the files predict what the database predicts."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psycopg2
import pytest
from small_run import Trained, schema
from typer.testing import CliRunner

from cerebro_db import client
from cerebro_db.client import cli
from cerebro_db.client.cerebro import Cerebro
from cerebro_db.client.models import model_files, preparations, samples, stored_model
from cerebro_db.core.architecture import building
from cerebro_db.core.packing.features import WordsFeature
from cerebro_db.core.packing.layout import Layout, Variable
from cerebro_db.core.packing.preparation import Real, Words
from cerebro_db.core.sql_types import SqlType
from cerebro_db.scorer import MOST_ROWS, CannotScore, NumpyModel, RowPreparation, Scorer, hashed
from tests.core import shop
from tests.thorough import landing

SCHEMA = "export_tests"
PEOPLE = """
CREATE TYPE mood AS ENUM ('sad', 'fair', 'glad');
CREATE TABLE people AS
SELECT i AS id, CASE WHEN i % 11 > 0 THEN 20 + i * 13 % 45 END AS age, (i * 37 % 101)::smallint AS small,
       i::bigint * 1000003 % 9973 AS big, (i * 0.37)::real AS r, exp(i % 19)::double precision AS heavy,
       (i * 7 % 113)::numeric / 7 AS n, CASE WHEN i % 13 > 0 THEN (i * 17 % 5) END AS few,
       (ARRAY[0.5, 1.25, 1e-7, 3e20])[1 + i % 4]::double precision AS level, (ARRAY[0.1, 0.7])[1 + i % 2]::real AS rate,
       (i * 31 % 977 / 7.0)::numeric(9,2)::text::money AS paid, i * 61 % 400 * interval '1 day 02:03:04.5' AS took,
       (ARRAY['1 year 2 mons', '-3 days', '04:05:06.25'])[1 + i % 3]::interval AS term,
       DATE '2024-07-01' - i % 797 AS born, TIMESTAMP '2023-03-04 05:06:07.891' + i * interval '7 hours 13 min' AS seen,
       CASE WHEN i % 17 > 0 THEN '2022-01-02 03:04:05+02'::timestamptz + i * interval '5 hours' END AS moment,
       (TIME '00:00' + i * interval '37 min 1.5 sec') AS clock,
       (ARRAY['Rome', 'Milan', 'Zürich', NULL])[1 + i % 4] AS city, (ARRAY['a', 'b  '])[1 + i % 2]::char(3) AS code,
       'z' || i * 7 % 1500 AS zip, (ARRAY['sad', 'fair', 'glad'])[1 + i % 3]::mood AS mood, i % 3 = 0 AS yes,
       i % 2 = 0 AS no, (ARRAY['10.0.0.1', '::1', '10.0.0.0/8'])[1 + i % 3]::inet AS host,
       (ARRAY['5E8f3c9e00004000800001234567890a', '5e8f3c9e00004000800001234567890b'])[1 + i % 2]::uuid AS token,
       'Größe ' || i || ' — ÇA va, «bien»? Word' || i * 3 % 50 || ' end.' AS note,
       ARRAY[i % 5, i % 7, i % 3]::real[] AS xs, ARRAY[i % 256, i % 9]::smallint[] AS pixels,
       (900 * (i % 45) + CASE i % 4 WHEN 0 THEN 9000 ELSE 0 END + i * 37 % 5000)::real AS income
  FROM generate_series(1, 1500) i;  -- more than the scorer computes at a time
"""
PREPARE = {
    "no": "number", "n": "quantile",
    "zip": {"as": "category", "buckets": 40, "values": 100, "means": True}, "paid": "number",
    "note": {"as": "words", "length": 8}, "seen": "date", "id": "ignore",
    **{name: {"as": "category", "means": True} for name in ("level", "rate", "term", "clock", "code", "token", "host")},
}  # fmt: skip
MLP = {"architecture": "mlp", "layers": 2, "units": 16, "embedding": 4, "learning_rate": 0.01}


@pytest.fixture(scope="module")
def cerebro(server: str) -> Iterator[Cerebro]:
    with schema(server, SCHEMA) as connection:
        with connection.cursor() as cursor:
            cursor.execute(PEOPLE)
        with Cerebro(connection) as found:
            found.fit("people", "incomes", [{**MLP, "bins": 8}], target="income", prepare=json.dumps(PREPARE), epochs=2,
                      segments=1, options={"seed": 1, "deterministic": True})  # fmt: skip
            found.fit("people", "moods", [MLP, {"architecture": "resnet", "blocks": 1, "units": 16}],
                      target="mood", inputs="age, born, city, note", epochs=1, segments=1)  # fmt: skip
            # A small model, for tests to which the columns do not matter.
            found.fit("people", "ages", [{**MLP, "layers": 1}], target="income", inputs="age, city", epochs=1,
                      segments=1)  # fmt: skip
            yield found


@pytest.fixture(scope="module")
def keras_file(cerebro: Cerebro, tmp_path_factory: pytest.TempPathFactory) -> model_files.Exported:
    """The model of incomes. Tests only read it."""
    return cerebro.export("incomes", str(tmp_path_factory.mktemp("incomes") / "x.keras"))


@pytest.fixture(scope="module")
def incomes_file(cerebro: Cerebro, tmp_path_factory: pytest.TempPathFactory) -> model_files.Exported:
    return cerebro.export("incomes", tmp_path_factory.mktemp("incomes") / "x.safetensors", scorer=True)


@pytest.fixture(scope="module")
def moods_file(cerebro: Cerebro, tmp_path_factory: pytest.TempPathFactory) -> model_files.Exported:
    return cerebro.export("moods", str(tmp_path_factory.mktemp("moods") / "x.safetensors"), 1)


@pytest.fixture(scope="module")
def sold(cerebro: Cerebro) -> str:
    """A table of two models of each of six groups. A seventh group is too small for models."""
    cerebro.rows("""CREATE TABLE sold AS
        SELECT id, age, few, income, 2020 + id % 2 AS year, id % 3 = 0 AS open, DATE '2024-01-01' + id % 2 AS day,
               (ARRAY['it''s "%s"', 'Zürich', NULL])[1 + id % 3]::varchar AS shop,
               CASE WHEN id % 6 = 0 AND id > 870 THEN 'small' ELSE 'abc' END::char(8) AS code
          FROM people WHERE id <= 900""")
    wide, narrow = {**MLP, "units": 8, "layers": 1, "group_statistics": 1}, MLP
    cerebro.fit("sold", "sold_models", [wide, narrow], target="income", inputs="age, few", epochs=1, segments=1,
                group_by="shop, day, open, year, code", options={"least_group_rows": 10})  # fmt: skip
    return "sold_models"


# -- files ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", ["keras_file", "incomes_file", "moods_file"])
def test_the_file_predicts_what_the_database_predicts(request: pytest.FixtureRequest, file: str) -> None:
    made: model_files.Exported = request.getfixturevalue(file)
    assert made.compared == f"100 rows of {SCHEMA}.people compared with cerebro.predict"
    assert made.difference < 1e-5
    content = made.path.read_bytes()
    assert (made.bytes, made.sha256) == (len(content), hashlib.sha256(content).hexdigest())
    assert sorted(made.path.parent.iterdir()) == sorted({made.path, *made.beside})


def test_plain_keras_reads_the_file(cerebro: Cerebro, keras_file: model_files.Exported, tmp_path: Path) -> None:
    """In a process of its own, which has Keras and nothing of cerebro_db."""
    document = json.loads(keras_file.path.with_name("x.preparation.json").read_text())
    rows = [row for (row,) in cerebro.rows("SELECT to_jsonb(p) FROM people p ORDER BY id LIMIT 50")]
    inputs = RowPreparation(document).inputs(rows)
    np.savez(tmp_path / "inputs.npz", **inputs)
    code = """
import keras, numpy as np, sys
model, given = keras.models.load_model(sys.argv[1]), np.load("inputs.npz")
np.save("said.npy", model({name: given[name] for name in given}))  # predict would compile it
"""
    command = [sys.executable, "-c", code, str(keras_file.path)]
    subprocess.run(command, check=True, cwd=tmp_path, capture_output=True)
    model = cerebro.model("incomes", 1)
    expected = np.asarray(model(inputs))
    assert np.max(np.abs(np.load(tmp_path / "said.npy") - expected) / np.maximum(1, np.abs(expected))) < 1e-6
    assert keras_file.beside == (keras_file.path.with_name("x.preparation.json"),)


def test_the_scorer_says_what_sql_says(cerebro: Cerebro, incomes_file: model_files.Exported, tmp_path: Path) -> None:
    """All column types, all rows. Alone: with NumPy, and without cerebro_db, Keras or a database."""
    (script,) = incomes_file.beside
    assert script.name == "cerebro_scorer.py"
    rows = [row for (row,) in cerebro.rows("SELECT to_jsonb(p)::text FROM people p ORDER BY id")]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows))
    code = """
import sys
sys.path[:0] = [sys.argv.pop()]
import cerebro_scorer
cerebro_scorer.main()
assert not {"keras", "tensorflow", "cerebro_db", "psycopg2"} & set(sys.modules)
"""
    with open(tmp_path / "rows.jsonl") as given:
        done = subprocess.run([sys.executable, "-P", "-c", code, str(incomes_file.path), str(script.parent)],
                              stdin=given, capture_output=True, text=True, cwd=tmp_path)  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = np.array([json.loads(line)["income"]["prediction"] for line in done.stdout.splitlines()])
    told = cerebro.predict("incomes", "SELECT * FROM people", "id")
    expected = np.array([one.value for one in sorted(told, key=lambda one: int(one.key_value))])
    assert len(said) == 1500 > MOST_ROWS and np.max(np.abs(said - expected)) / np.max(np.abs(expected)) < 1e-5


def test_the_prepared_arrays_are_those_of_the_database(cerebro: Cerebro, keras_file: model_files.Exported) -> None:
    """Bit for bit but for the last place of a sine or a logarithm, on rows that training has not seen, too."""
    document = json.loads(keras_file.path.with_name("x.preparation.json").read_text())
    prepared = RowPreparation(document)
    cerebro.rows("DROP TABLE IF EXISTS odd, odd_packed, odd_packed_summary")
    cerebro.rows("CREATE TABLE odd AS SELECT * FROM people WHERE id <= 64")
    cerebro.rows("UPDATE odd SET born = 'infinity', city = 'Atlantis', note = NULL, zip = 'never seen ' || id,"
                 " heavy = 1e300, moment = '-infinity', took = NULL, n = -1e9, level = 2 WHERE id % 2 = 0")  # fmt: skip
    cerebro.rows(
        "SELECT cerebro.pack_like('odd', 'odd_packed', 'income', NULL, (SELECT packed_table FROM incomes_summary))"
    )
    rows = [row for (row,) in cerebro.rows("SELECT to_jsonb(o) FROM odd o")]
    found = prepared.inputs(rows)
    layout = cerebro.rows("SELECT layout FROM incomes_summary")[0][0]
    for variable in layout["inputs"]:
        columns = cerebro.rows("SELECT attname::text FROM pg_attribute WHERE attrelid = 'odd_packed'::regclass"
                               " AND attnum > 0 ORDER BY attnum")  # fmt: skip
        name = next(name for (name,) in columns if name == variable["name"])
        buffers = cerebro.rows(f'SELECT "{name}" FROM odd_packed')
        dtype = {"float32": "<f4", "uint8": "u1", "int16": "<i2", "int32": "<i4"}[variable["dtype"]]
        packed = np.concatenate([np.frombuffer(one, dtype) for (one,) in buffers]).reshape(64, -1)
        ours = found[variable["name"]].reshape(64, -1)
        # Packing has an order of its own.
        packed, ours = (np.array(sorted(map(tuple, one.astype("f8").tolist()))) for one in (packed, ours))
        assert np.allclose(packed, ours, rtol=2e-7, atol=2e-7), variable["name"]


def test_texts_are_hashed_as_the_server_hashes_them(cerebro: Cerebro) -> None:
    texts = ["", "a", "abc", "Zürich", "twelve bytes", "thirteen bytes", "日本語" * 9, *("x" * n for n in range(30))]
    said = cerebro.rows('SELECT hashtextextended(t COLLATE "C", 0) FROM unnest(%s::text[]) AS t', (texts,))
    assert [hashed(one.encode()) for one in texts] == [value for (value,) in said]


def test_words_end_where_the_server_ends_them(cerebro: Cerebro, moods_file: model_files.Exported) -> None:
    prepared = Scorer(moods_file.path).preparation
    feature = next(one for v in prepared.variables for one in v["preparation"].get("features", [])
                   if one["prepared_as"] == "words")  # fmt: skip
    texts = ["", "  ", "ÀÉÎ õ-ñ", "naïve café", "a\u00a0b", "x\u2003y", "½ ① Ⅳ", "क्या है", "日本 語。",
             "e\u0301tude", "ΣΑΣ ΣΑΣ", "İstanbul", "€5 §7", "don't_stop", "\U0001f600 ok"]  # fmt: skip
    said = cerebro.rows("SELECT cerebro_internal._word_ids(t, %s, %s)"
                        " FROM unnest(%s::text[]) WITH ORDINALITY u (t, n) ORDER BY n",
                        (feature["length"], feature["ids"], texts))  # fmt: skip
    (ours,) = prepared._words(feature, texts)
    assert ours.tolist() == [ids for (ids,) in said]


def test_python_values_are_as_good_as_json(cerebro: Cerebro, incomes_file: model_files.Exported) -> None:
    scorer = Scorer(incomes_file.path)
    columns = scorer.preparation.columns
    listed = ", ".join("paid::numeric" if one == "paid" else "extract(epoch FROM term)" if one == "term" else one
                       for one in columns)  # fmt: skip
    rows = [dict(zip(columns, row)) for row in cerebro.rows(f"SELECT {listed} FROM people ORDER BY id LIMIT 40")]
    as_json = [row for (row,) in cerebro.rows("SELECT to_jsonb(p) FROM people p ORDER BY id LIMIT 40")]
    assert scorer.predict(rows)["income"] == pytest.approx(scorer.predict(as_json)["income"], rel=1e-6)


def test_labels_and_probabilities(cerebro: Cerebro, moods_file: model_files.Exported) -> None:
    scorer = Scorer(moods_file.path)
    rows = [row for (row,) in cerebro.rows("SELECT to_jsonb(p) FROM people p ORDER BY id LIMIT 40")]
    said = cerebro.predict("moods", "SELECT * FROM people ORDER BY id LIMIT 40", "id", 1)
    assert scorer.labels(rows)["mood"] == [one.label for one in sorted(said, key=lambda one: int(one.key_value))]
    assert scorer.predict(rows)["mood"].sum(axis=1) == pytest.approx(np.ones(40), abs=1e-5)
    assert scorer.preparation.classes("mood") == ["sad", "fair", "glad"]


def test_the_scorer_explains_as_sql_does(
    cerebro: Cerebro, incomes_file: model_files.Exported, moods_file: model_files.Exported
) -> None:
    query, background = (f"SELECT * FROM people WHERE id IN ({some})" for some in ("3, 4, 44", "7, 8, 98, 1001"))
    rows, others = (
        [row for (row,) in cerebro.rows(f"SELECT to_jsonb(p) FROM ({one}) p")] for one in (query, background)
    )
    moods, incomes = (Scorer(file.path) for file in (moods_file, incomes_file))
    for classes in (None, {"mood": "glad"}):
        label = classes["mood"] if classes else None
        told = cerebro.explain("moods", query, "id", label=label, configuration=1, background=background)
        wanted = {(one.key_value, one.column_name): one.contribution for one in told}
        for row, one in zip(rows, moods.explain(rows, others, classes)["mood"]):
            assert one["class"] == next(each.label for each in told if each.key_value == str(row["id"]))
            assert set(one["contributions"]) == {"age", "born", "city", "note"}
            for column, contribution in one["contributions"].items():
                assert contribution == pytest.approx(wanted[str(row["id"]), column], abs=1e-5)
    predicted = incomes.predict(rows)["income"]
    base = incomes.predict(others)["income"].mean()
    for one, prediction in zip(incomes.explain(rows, others)["income"], predicted):
        contributions = one["contributions"]
        assert len(contributions) > 15 and (one["prediction"], one["base"]) == pytest.approx(
            (prediction, base), rel=1e-5
        )
        assert sum(contributions.values()) == pytest.approx(one["prediction"] - one["base"], rel=1e-6)
    with pytest.raises(CannotScore, match="'mood' has no class 'angry'"):
        moods.explain(rows, others, {"mood": "angry"})
    with pytest.raises(CannotScore, match="background"):
        moods.explain(rows, [])


def test_operators_are_layers_too(cerebro: Cerebro, tmp_path: Path) -> None:
    keras = pytest.importorskip("keras")
    age = keras.Input((2,), name="numbers")
    shifted = (age + 1.5) * 2 + age  # with numbers, and with tensors
    hidden = keras.layers.Dense(4, activation="relu")(shifted)
    model = keras.Model(age, keras.layers.Dense(2, activation="softmax", name="yes")(hidden)).to_json()
    cerebro.fit("people", "answers", [{"architecture": json.loads(model)}], target="yes", inputs="age", epochs=1,
                segments=1)  # fmt: skip
    made = cerebro.export("answers", str(tmp_path / "X.KERAS"))
    assert made.difference < 1e-5
    cerebro.export("answers", str(tmp_path / "x.safetensors"))
    scorer = Scorer(tmp_path / "x.safetensors")
    rows = [row for (row,) in cerebro.rows("SELECT to_jsonb(p) FROM people p ORDER BY id LIMIT 40")]
    said = cerebro.predict("answers", "SELECT * FROM people ORDER BY id LIMIT 40", "id", top=2)
    found, classes = scorer.predict(rows)["yes"], scorer.preparation.classes("yes")
    expected = {(one.key_value, one.label): one.probability for one in said}
    assert found.shape == (40, 2) and classes == ["false", "true"]
    for row, chances in zip(rows, found):
        for label, chance in zip(classes, chances):
            assert chance == pytest.approx(expected[str(row["id"]), label], abs=1e-5)


def test_rows_that_the_scorer_refuses(cerebro: Cerebro, incomes_file: model_files.Exported) -> None:
    scorer = Scorer(incomes_file.path)
    ((row,),) = cerebro.rows("SELECT to_jsonb(p) FROM people p WHERE id = 1")
    for column, value, why in (
        ("age", "old", "column 'age': 'old' is no number"), 
        ("heavy", "NaN", "column 'heavy': a value is NaN or infinite"),
        ("born", "soon", "no date or time"), ("moment", "2024-01-01T00:00:00", "must have a time zone"),
        ("yes", 3, "neither true nor false"), ("xs", [1, 2], "must have the shape"), ("xs", [1, 2, None], "NULL"),
        ("paid", "much", "no amount of money"), ("paid", "1.234,50 €", "no amount of money"),
        ("took", "a while", "no interval"), ("clock", "noon", "no time of day"),
    ):  # fmt: skip
        with pytest.raises(CannotScore, match=why):
            scorer.predict([{**row, column: value}])
    del row["city"]
    with pytest.raises(CannotScore, match="row 1 lacks city; the model needs "):
        scorer.predict([row])
    assert scorer.predict([])["income"].shape == (0,) and scorer.labels([]) == {"income": []}


def test_a_model_of_windows(cerebro: Cerebro, tmp_path: Path) -> None:
    cerebro.rows("CREATE TABLE series AS SELECT p, t, (sin(t * (1 + p % 3)) + p)::real AS x, 'k' || p % 3 AS kind"
                 " FROM generate_series(1, 9) p, generate_series(1, 60) t")  # fmt: skip
    cerebro.fit("series", "kinds", [{"architecture": "conv1d", "filters": 4, "units": 4}], target="kind", epochs=1,
                segments=1, sequence={"by": "p", "order": "t", "length": 10})  # fmt: skip
    made = cerebro.export("kinds", str(tmp_path / "x.safetensors"))
    assert "drawn inputs" in made.compared and "windows" in made.compared and made.difference < 1e-5
    model = model_files.read_safetensors(made.path)
    document = json.loads(model_files.state.read_header(made.path.read_bytes()).metadata["preparation"])
    rows = [row for (row,) in cerebro.rows("SELECT to_jsonb(s) FROM series s ORDER BY p, t")]
    windows = [rows[start : start + 10] for start in range(0, len(rows), 10)]
    (said,) = model_files.keras_compute(model, document)(RowPreparation(document).inputs(windows))
    told = cerebro.predict("kinds", "SELECT * FROM series", top=3)
    expected = sorted((*map(int, one.key_value.split(", ")), one.label, one.probability) for one in told)
    assert said.ravel() == pytest.approx([row[-1] for row in expected], abs=1e-5)
    scorer = Scorer(made.path)
    assert scorer.predict(windows)["kind"] == pytest.approx(said, abs=1e-5)
    (one,) = scorer.explain(windows[:1], windows[7:9])["kind"]
    assert sum(one["contributions"].values()) == pytest.approx(one["prediction"] - one["base"], abs=1e-6)


@pytest.mark.thorough  # test_the_scorer_computes_what_train_leaves has models of each kind
@pytest.mark.parametrize("kind", ["lstm", "transformer", "conv1d"])
def test_the_scorer_computes_every_kind_of_series(cerebro: Cerebro, tmp_path: Path, kind: str) -> None:
    small = {"lstm": {"units": 8, "layers": 2}, "transformer": {"units": 8, "heads": 2}, "conv1d": {"filters": 8}}
    cerebro.fit("people", f"of_{kind}", [{"architecture": kind, **small[kind], "learning_rate": 0.01}], target="income",
                inputs="note, age, city" if kind == "transformer" else "note", epochs=1)  # fmt: skip
    made = cerebro.export(f"of_{kind}", tmp_path / "x.safetensors", scorer=True)
    assert made.left_out == () and made.difference < 1e-5
    rows = [row for (row,) in cerebro.rows("SELECT to_jsonb(p) FROM people p ORDER BY id")]
    said = Scorer(made.path).predict(rows)["income"]  # more rows than are computed at a time
    told = cerebro.predict(f"of_{kind}", "SELECT * FROM people", "id")
    expected = np.array([one.value for one in sorted(told, key=lambda one: int(one.key_value))])
    assert np.max(np.abs(said - expected) / np.abs(expected).max()) < 1e-5


def test_the_scorer_applies_the_calibration(
    cerebro: Cerebro, incomes_file: model_files.Exported, tmp_path: Path
) -> None:
    query = "SELECT * FROM people ORDER BY id LIMIT 300"
    rows = [row for (row,) in cerebro.rows(f"SELECT to_jsonb(p) FROM ({query}) p")]
    with pytest.raises(CannotScore, match="has no calibration of 'income': call cerebro.calibrate"):
        Scorer(incomes_file.path).intervals(rows, 0.9)
    try:
        cerebro.calibrate("incomes", "SELECT * FROM people WHERE id > 500", configuration=1)
        cerebro.calibrate("moods", "SELECT * FROM people WHERE id > 500", configuration=1, decide_by='{"sad": 3}')
        made = cerebro.export("incomes", tmp_path / "x.safetensors", scorer=True)
        numbers = Scorer(made.path)
        classes = Scorer(cerebro.export("moods", tmp_path / "y.safetensors", 1).path)
        by_key = {int(one.key_value): one for one in cerebro.predict("incomes", query, "id", coverage=0.8)}
        ends = numbers.intervals(rows, 0.8)["income"]
        assert len({one.upper - one.lower for one in by_key.values()}) > 1  # wider where errors are larger
        for row, (lower, upper) in zip(rows, ends.tolist()):
            one = by_key[row["id"]]
            rounded = 1e-6 * one.upper  # an end near zero has the rounding of the prediction
            ends_in_sql = [pytest.approx(end, rel=1e-5, abs=rounded) for end in (one.lower, one.upper)]
            assert [lower, upper] == ends_in_sql
        with pytest.raises(CannotScore, match="intervals with coverage 0.9999 need the errors of more rows"):
            numbers.intervals(rows, 0.9999)
        with pytest.raises(CannotScore, match="between 0 and 1, such as 0.9; it is 90"):
            numbers.intervals(rows, 90)
        with pytest.raises(CannotScore, match="predicts classes, which have no intervals"):
            classes.intervals(rows, 0.9)
        for call in (lambda: numbers.predict(rows, calibrated=True), lambda: numbers.labels(rows, thresholds=True)):
            with pytest.raises(CannotScore, match="predicts numbers, which have no probabilities"):
                call()
        plain, found = (classes.predict(rows, calibrated=one)["mood"] for one in (False, True))
        labels = classes.preparation.classes("mood")
        assert labels is not None and not np.allclose(plain, found, atol=1e-3)
        told = cerebro.predict("moods", query, "id", 1, top=3, calibrated=True)
        expected = {(int(one.key_value), one.label): one.probability for one in told}
        for row, chances in zip(rows, found):
            assert list(chances) == pytest.approx([expected[row["id"], label] for label in labels], abs=1e-5)
        decided = classes.labels(rows, thresholds=True)["mood"]
        told = cerebro.predict("moods", query, "id", 1, thresholds=True)
        assert decided == [one.label for one in sorted(told, key=lambda one: int(one.key_value))]
        assert decided != classes.labels(rows)["mood"]
        # Where the temperature has lowered the log loss of new rows, it is used unless a call says otherwise.
        for gain, usual in (("0", plain), ("0.1", found)):
            cerebro.rows(f"UPDATE moods_info SET calibration = jsonb_set(calibration, '{{targets,0,gain}}', '{gain}')")
            made = cerebro.export("moods", tmp_path / f"{gain}.safetensors", 1)
            assert made.difference < 1e-5  # from the predictions of the model itself
            classes = Scorer(made.path)
            assert np.allclose(classes.predict(rows)["mood"], usual, atol=1e-6)
            assert np.allclose(classes.predict(rows, calibrated=False)["mood"], plain, atol=1e-6)
            told = cerebro.predict("moods", query, "id", 1, top=3)
            expected = {(int(one.key_value), one.label): one.probability for one in told}
            for row, chances in zip(rows, usual):
                assert list(chances) == pytest.approx([expected[row["id"], label] for label in labels], abs=1e-5)
            (explained,) = classes.explain(rows[:1], rows[1:5])["mood"]
            assert explained["prediction"] == pytest.approx(max(usual[0]), abs=1e-6)
        made = cerebro.export("incomes", tmp_path / "z.safetensors", scorer=True)
        command = [sys.executable, str(made.beside[0]), str(made.path), "--coverage", "0.8"]
        lines = "\n".join(json.dumps(row) for row in rows[:3])
        done = subprocess.run(command, input=lines, capture_output=True, text=True, check=True)
        said = [json.loads(line)["income"] for line in done.stdout.splitlines()]
        assert np.array([[one["lower"], one["upper"]] for one in said]) == pytest.approx(ends[:3], rel=1e-5)
    finally:
        cerebro.rows("UPDATE incomes_info SET calibration = NULL")
        cerebro.rows("UPDATE moods_info SET calibration = NULL")


def test_a_changed_calibration_is_refused(cerebro: Cerebro, tmp_path: Path) -> None:
    cerebro.rows("""UPDATE incomes_info SET calibration = '{"targets": [{"name": "income", "kind": "class"}]}'""")
    try:
        with pytest.raises(client.ClientError, match="does not fit the target 'income'"):
            cerebro.export("incomes", tmp_path / "x.safetensors")
    finally:
        cerebro.rows("UPDATE incomes_info SET calibration = NULL")


SERIES_LAYERS: dict[str, list[dict[str, Any]]] = {
    "Conv1D": [{"padding": "same", "strides": 2}, {"padding": "causal", "dilation_rate": 2}, {"padding": "valid"}],
    "MaxPooling1D": [{"pool_size": 3, "padding": "same"}, {"pool_size": 2}],
    "AveragePooling1D": [{"pool_size": 3, "strides": 1, "padding": "same"}],
    "GlobalMaxPooling1D": [{}, {"keepdims": True}],
    "LSTM": [{}, {"return_sequences": True, "go_backwards": True, "use_bias": False}],
    "GRU": [{}, {"return_sequences": True, "reset_after": False}, {"use_bias": False, "activation": "relu"}],
    "SimpleRNN": [{"return_sequences": True}],
    "MultiHeadAttention": [{}, {"use_bias": False, "value_dim": 3}],
}
IMAGE_LAYERS: dict[str, list[dict[str, Any]]] = {
    "Conv2D": [{"padding": "same", "strides": 2}, {"padding": "valid", "dilation_rate": 2, "use_bias": False}],
    "MaxPooling2D": [{"pool_size": 3, "padding": "same"}, {"pool_size": [1, 2], "strides": 1}],
    "AveragePooling2D": [{"pool_size": 2, "padding": "same"}],
    "GlobalAveragePooling2D": [{}],
}
NEEDED = {
    "Conv1D": {"filters": 5, "kernel_size": 3}, "Conv2D": {"filters": 5, "kernel_size": 3}, "LSTM": {"units": 6},
    "GRU": {"units": 6}, "SimpleRNN": {"units": 6}, "MultiHeadAttention": {"num_heads": 2, "key_dim": 4},
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "more", "shape"),
    [(kind, more, (9, 4)) for kind, listed in SERIES_LAYERS.items() for more in listed]
    + [(kind, more, (7, 8, 3)) for kind, listed in IMAGE_LAYERS.items() for more in listed],
)
def test_a_layer_computes_what_keras_computes(kind: str, more: dict[str, Any], shape: tuple[int, ...]) -> None:
    keras = pytest.importorskip("keras")
    given = keras.Input(shape, name="given")
    layer = getattr(keras.layers, kind)(**NEEDED.get(kind, {}), **more)
    model = keras.Model(given, layer(given, given) if kind == "MultiHeadAttention" else layer(given))
    random = np.random.default_rng(3)
    for variable in model.weights:  # no zeros, of which biases are made
        variable.assign(random.normal(size=variable.shape))
    names = {one.name: [f"{one.name}/{place}" for place in range(len(one.weights))] for one in model.layers}
    tensors = {
        name: np.asarray(variable) for one in model.layers for name, variable in zip(names[one.name], one.weights)
    }
    ours = NumpyModel(json.loads(model.to_json()), names, tensors)
    rows = random.normal(size=(MOST_ROWS + 3, *shape)).astype("f4")
    (found,), expected = ours({"given": rows}), np.asarray(model(rows))
    assert found.shape == expected.shape and found.dtype == np.float32
    assert found == pytest.approx(expected, rel=2e-5, abs=2e-5)


def test_the_mean_of_words_is_what_keras_computes() -> None:
    keras = pytest.importorskip("keras")
    words = WordsFeature("text", SqlType("text"), 6, 50)
    inputs = (Variable("note", "int32", (6,), ("note",), Words((words,))),)
    layout = Layout(inputs, (Variable("y", "float32", (1,), ("y",), Real()),), 0, ())
    built = building.architecture("mlp", layout, {"layers": 1, "units": 4}, "test")
    model = keras.models.model_from_json(json.dumps(built))
    random = np.random.default_rng(3)
    for variable in model.weights:
        variable.assign(random.normal(size=variable.shape))
    names = {one.name: [f"{one.name}/{place}" for place in range(len(one.weights))] for one in model.layers}
    tensors = {
        name: np.asarray(variable) for one in model.layers for name, variable in zip(names[one.name], one.weights)
    }
    rows = np.array([[3, 4, 0, 0, 0, 0], [0] * 6, [9, 8, 7, 6, 5, 4], [3, 4, 3, 4, 0, 0]], "int32")
    (found,) = NumpyModel(json.loads(model.to_json()), names, tensors)({"note": rows})
    assert found == pytest.approx(np.asarray(model(rows)), rel=2e-5, abs=2e-5)
    assert np.isfinite(found).all() and found[0] == pytest.approx(found[3], rel=1e-5)  # zeros after a text say nothing
    assert abs(found[0] - found[2]) > 1e-3


@pytest.mark.parametrize(
    ("kind", "parameters"),
    [
        *(("mlp", {"encoder": encoder}) for encoder in ("attention", "gru", "mean")),
        ("mlp", {"related": "neighbourhoods"}),
        ("mlp", {"related": "aggregates"}),
        ("resnet", {"related": "none"}),
        ("transformer", {}),
        ("lstm", {"layers": 2}),
        ("conv1d", {}),
    ],
)
def test_related_rows_are_read_as_keras_reads_them(kind: str, parameters: dict[str, Any]) -> None:
    """Some customers have no order, and none of some models' inputs are read."""
    keras = pytest.importorskip("keras")
    built = building.architecture(kind, shop.SHOP, parameters, "test")
    model = keras.models.model_from_json(json.dumps(built))
    random = np.random.default_rng(3)
    for variable in model.weights:
        values = 0.3 * random.normal(size=variable.shape)
        variable.assign(np.abs(values) if "variance" in variable.name else values)
    names = {one.name: [f"{one.name}/{place}" for place in range(len(one.weights))] for one in model.layers}
    tensors = {
        name: np.asarray(variable) for one in model.layers for name, variable in zip(names[one.name], one.weights)
    }
    rows = shop.customers(30, 7)
    (found,) = NumpyModel(json.loads(model.to_json()), names, tensors)(dict(zip(shop.NAMES, rows)))
    assert found == pytest.approx(np.asarray(model(rows)), rel=2e-5, abs=2e-5)
    assert len(np.unique(found, axis=0)) > 5


def test_rows_with_related_columns_are_scored(cerebro: Cerebro, tmp_path: Path) -> None:
    """The export is compared with predictions, and says what a row needs besides its own columns."""
    cerebro.rows("CREATE TABLE owners (id integer PRIMARY KEY, age integer, happy boolean);"
                 " INSERT INTO owners SELECT i, 20 + i % 50, i % 3 = 0 FROM generate_series(1, 200) i;"
                 " CREATE TABLE pets (owner integer REFERENCES owners, kind text, weight double precision);"
                 " INSERT INTO pets SELECT 1 + i % 180, (ARRAY['cat', 'dog'])[1 + i % 2], i % 37 / 3.0"
                 " FROM generate_series(1, 700) i")  # fmt: skip
    cerebro.fit("owners", "happiness", [{"architecture": "mlp", "units": 8}], target="happy", epochs=1, segments=1,
                related="auto")  # fmt: skip
    found = cerebro.export("happiness", tmp_path / "happy.safetensors", scorer=True)
    assert "compared with cerebro.predict" in str(found)
    scorer = Scorer(tmp_path / "happy.safetensors")
    with pytest.raises(CannotScore, match="cerebro.related_rows"):
        scorer.predict([{"id": 5, "age": 30}])
    assert cerebro.related_rows("happiness", "SELECT * FROM owners ORDER BY id LIMIT 9", "nine_owners") == 9
    (rows,) = zip(*cerebro.rows("SELECT to_jsonb(n) FROM nine_owners n ORDER BY id"))
    said = cerebro.predict("happiness", "SELECT * FROM nine_owners ORDER BY id", "id")
    expected = [one.probability for one in sorted(said, key=lambda one: int(one.key_value))]
    assert scorer.predict(rows)["happy"].max(axis=1) == pytest.approx(expected, abs=1e-5)
    # When nothing says any more which tables the model may read, drawn inputs are compared.
    cerebro.rows("SELECT cerebro.forget(run) FROM happiness_summary")
    again = cerebro.export("happiness", tmp_path / "again.safetensors", scorer=True)
    assert "drawn inputs" in str(again) and "has to name them" in str(again)
    cerebro.rows("DROP TABLE nine_owners, pets, owners")


def test_a_mask_is_not_forgotten(cerebro: Cerebro, tmp_path: Path) -> None:
    """The scorer refuses such a layer, and the exported file is compared by Keras."""
    keras = pytest.importorskip("keras")
    numbers, mask = keras.Input((2,), name="numbers"), keras.Input((2,), dtype="int32", name="xs")
    steps = keras.layers.Reshape((2, 1))(numbers)
    hidden = keras.layers.GlobalAveragePooling1D()(steps, mask=keras.ops.cast(mask, "bool"))
    model = keras.Model([numbers, mask], keras.layers.Dense(1, name="income")(hidden))
    with pytest.raises(CannotScore, match="does not compute layers that are called with mask"):
        NumpyModel(json.loads(model.to_json()), {one.name: [] for one in model.layers}, {})
    normal = keras.layers.BatchNormalization()(numbers, training=True)
    model = keras.Model(numbers, keras.layers.Dense(1, name="income")(normal))
    with pytest.raises(CannotScore, match="does not compute layers that are called with training"):
        NumpyModel(json.loads(model.to_json()), {one.name: [] for one in model.layers}, {})
    cerebro.fit("people", "normal", [{"architecture": json.loads(model.to_json())}], target="income",
                inputs="small, big", epochs=1, segments=1)  # fmt: skip
    with pytest.raises(client.ClientError, match="does not compute layers that are called with training"):
        cerebro.export("normal", tmp_path / "x.safetensors", scorer=True, tolerance=1e9)


def test_an_average_keeps_nan() -> None:
    keras = pytest.importorskip("keras")
    model = keras.Sequential([keras.Input((4, 1)), keras.layers.AveragePooling1D(2)])
    ours = NumpyModel(json.loads(model.to_json()), {one.name: [] for one in model.layers}, {})
    (found,) = ours({next(iter(ours.inputs)).layer: np.array([[[np.nan], [1], [3], [4]]], "f4")})
    assert np.isnan(found[0, 0, 0]) and found[0, 1, 0] == 3.5


def test_layers_that_the_scorer_does_not_compute(cerebro: Cerebro, tmp_path: Path) -> None:
    keras = pytest.importorskip("keras")
    for layer, why in (
        (keras.layers.LSTM(4, return_state=True), "return_state, stateful and zero_output_for_mask are not"),
        (keras.layers.GRU(4, zero_output_for_mask=True), "return_state, stateful and zero_output_for_mask are not"),
        (keras.layers.Conv1D(4, 2, groups=2), "a convolution with groups"),
        (keras.layers.Bidirectional(keras.layers.LSTM(4)), "is a Bidirectional, which this scorer does not compute"),
    ):
        given = keras.Input((6, 4), name="given")
        said = layer(given)
        model = keras.Model(given, said[0] if isinstance(said, (list, tuple)) else said)
        names = {one.name: [f"{one.name}/{place}" for place in range(len(one.weights))] for one in model.layers}
        tensors = {name: np.asarray(v) for one in model.layers for name, v in zip(names[one.name], one.weights)}
        with pytest.raises(CannotScore, match=f"{why}.*RowPreparation gives the prepared arrays"):
            NumpyModel(json.loads(model.to_json()), names, tensors)({"given": np.zeros((2, 6, 4), "f4")})
    given = keras.Input((6, 4), name="given")
    model = keras.Model(given, keras.layers.Dot(axes=2)([given, given]))
    with pytest.raises(CannotScore, match="a Dot of tensors other than"):
        NumpyModel(json.loads(model.to_json()), {one.name: [] for one in model.layers}, {})(
            {"given": np.zeros((2, 6, 4), "f4")}
        )
    model = keras.Sequential([keras.Input((2,)), keras.layers.UnitNormalization(), keras.layers.Dense(1)]).to_json()
    cerebro.fit("people", "unusual", [{"architecture": json.loads(model)}], target="income", inputs="age", epochs=1,
                segments=1)  # fmt: skip
    with pytest.raises(client.ClientError, match="cannot score this model: the layer .* is a UnitNormalization"):
        cerebro.export("unusual", tmp_path / "x.safetensors", scorer=True)
    assert not list(tmp_path.iterdir())
    assert cerebro.export("unusual", tmp_path / "x.safetensors").left_out == ()
    assert cerebro.export("unusual", tmp_path / "x.keras", scorer=True).left_out == ()  # prepares the rows for Keras


def test_a_database_whose_texts_the_scorer_cannot_hash(moods_file: model_files.Exported) -> None:
    document = {**Scorer(moods_file.path).preparation.document, "encoding": "LATIN1"}  # it has words
    with pytest.raises(CannotScore, match="the database hashed texts in the encoding LATIN1, not in UTF8"):
        RowPreparation(document)
    (of_texts,) = [one for one in document["inputs"] if one["preparation"]["kind"] == "words"]
    RowPreparation({**document, "inputs": [one for one in document["inputs"] if one is not of_texts]})


# What cerebro.train makes: the source and the arguments.
FEW = {"epochs": 1, "max_configurations": 3, "method": "random", "segments": 1, "options": {"seed": 1}}
TRAINED: dict[str, tuple[str, dict[str, Any]]] = {
    "every type of column": ("people", {"target": "income", "prepare": PREPARE,
                                        "max_configurations": 4,
                                        "architectures": ["mlp", "resnet", "transformer", "trees"]}),
    "classes": ("people", {"target": "mood", "inputs": "age, born, city, note, heavy, zip"}),
    "folds": ("people", {"target": "income", "inputs": "age, city, few", "folds": 2, "validation": 0}),
    "quantiles": ("people", {"target": "income", "inputs": "heavy, n",
                             "prepare": {"heavy": "quantile", "n": "quantile"}}),
    "words, two classes": ("people", {"target": "yes", "inputs": "note, age, level, city",
                                      "prepare": {"note": {"as": "words", "length": 8}},
                                      "architectures": {"transformer": {"units": 8, "blocks": 1},
                                                        "conv1d": {"filters": 8}, "lstm": {"units": 8}}}),
    "images": ("drawings", {"target": "kind", "inputs": "image, id", "prepare": {"image": {"shape": [8, 8, 3]}}}),
    "weights of rows": ("people", {"target": "mood", "inputs": "age, city", "weights": "r",
                                   "class_weight": "balanced"}),
}  # fmt: skip


# Every type of column: test_the_scorer_says_what_sql_says. Other targets: test_the_scorer_applies_the_calibration.
@pytest.mark.parametrize("case", landing(TRAINED, "words, two classes", "images"))
def test_the_scorer_computes_what_train_leaves(cerebro: Cerebro, tmp_path: Path, case: str) -> None:
    """An ensemble of all models, and one of them; with calibration, intervals and thresholds."""
    source, arguments = TRAINED[case]
    table = f"left_{list(TRAINED).index(case)}"
    if source == "drawings":
        cerebro.rows("CREATE TABLE drawings AS SELECT i AS id, CASE WHEN i % 2 = 0 THEN 'even' ELSE 'odd' END AS kind,"
                     " decode(repeat(lpad(to_hex((i * 37 + i % 2 * 60) % 256), 2, '0'), 192), 'hex') AS image"
                     " FROM generate_series(1, 300) i")  # fmt: skip
    run = cerebro.train(source, table, **{**FEW, **arguments})
    if "architectures" in arguments:
        assert {(one.chosen or {})["architecture"] for one in run.leaderboard()} == {*arguments["architectures"]}
    cerebro.rows(f"SELECT cerebro.ensemble('{table}', NULL, 3, all_join => true)")
    configurations = [key for (key,) in cerebro.rows(f"SELECT configuration FROM {table} ORDER BY 1")]
    query = f"SELECT * FROM {source} WHERE id <= 120"
    rows = [row for (row,) in cerebro.rows(f"SELECT to_jsonb(s) FROM ({query}) s ORDER BY id")]
    joined = [
        key
        for key, text in cerebro.rows(f"SELECT configuration, architecture::text FROM {table}")
        if "member_1" in text
    ]
    assert joined and len(configurations) > 3
    for key in (configurations[0], *joined):
        cerebro.calibrate(table, f"SELECT * FROM {source} WHERE id <= 600", configuration=key)
        made = cerebro.export(table, tmp_path / f"{key}.safetensors", key, query, scorer=True)
        assert made.left_out == () and made.difference < 1e-5
        scorer = Scorer(made.path)
        (target,) = scorer.preparation.targets
        classes = scorer.preparation.classes(target)
        more: dict[str, Any] = {"coverage": 0.8} if classes is None else {"calibrated": True}
        told = cerebro.predict(table, query, "id", key, 10, **more)
        if classes is None:
            expected = np.array([(one.value, one.lower, one.upper) for one in sorted(told, key=_id)])
            found = np.column_stack([scorer.predict(rows)[target], scorer.intervals(rows, 0.8)[target]])
            near = np.max(np.abs(found - expected), axis=1) / np.max(np.abs(expected)) < 1e-5
            # Beside an edge of the bins of predictions, rounding decides which width an interval has.
            edges = np.array(_kept(scorer)["edges"])
            distances = [np.min(np.abs(edges - value), initial=np.inf) for value in expected[:, 0]]
            assert np.all(near | (np.array(distances) < 1e-6 * np.max(np.abs(expected))))
            assert found[:, 0] == pytest.approx(expected[:, 0], abs=1e-5 * np.max(np.abs(expected)))
        else:
            chances = {(_id(one), one.label): one.probability for one in told}
            expected = np.array([[chances[row["id"], label] for label in classes] for row in rows])
            assert scorer.predict(rows, calibrated=True)[target] == pytest.approx(expected, abs=1e-5)
            told = cerebro.predict(table, query, "id", key, 10)
            chances = {(_id(one), one.label): one.probability for one in told}
            expected = np.array([[chances[row["id"], label] for label in classes] for row in rows])
            assert scorer.predict(rows)[target] == pytest.approx(expected, abs=1e-5)
            decided = cerebro.predict(table, query, "id", key, thresholds=True)
            assert scorer.labels(rows, thresholds=True)[target] == [one.label for one in sorted(decided, key=_id)]


def _id(one: Any) -> int:
    return int(one.key_value)


def _kept(scorer: Scorer) -> Any:
    (output,) = scorer.preparation.document["outputs"]
    return output["calibration"]


@pytest.mark.thorough  # test_a_model_of_windows, test_the_models_of_groups
def test_the_scorer_computes_windows_and_groups_that_train_leaves(cerebro: Cerebro, tmp_path: Path) -> None:
    cerebro.rows("CREATE TABLE waves AS SELECT p, t, (sin(t * (1 + p % 3)) + p)::real AS x, 'k' || p % 3 AS kind"
                 " FROM generate_series(1, 9) p, generate_series(1, 40) t")  # fmt: skip
    cerebro.train("waves", "of_waves", target="kind", sequence={"by": "p", "order": "t", "length": 10}, **FEW)
    cerebro.rows("SELECT cerebro.ensemble('of_waves', NULL, 3, all_join => true)")
    key = cerebro.rows("SELECT max(configuration) FROM of_waves")[0][0]
    made = cerebro.export("of_waves", tmp_path / "x.safetensors", key, scorer=True)
    rows = [row for (row,) in cerebro.rows("SELECT to_jsonb(s) FROM waves s ORDER BY p, t")]
    found = Scorer(made.path).predict([rows[start : start + 10] for start in range(0, len(rows), 10)])["kind"]
    told = cerebro.predict("of_waves", "SELECT * FROM waves", configuration=key, top=3)
    expected = sorted((*map(int, one.key_value.split(", ")), one.label, one.probability) for one in told)
    assert found.ravel() == pytest.approx([row[-1] for row in expected], abs=1e-5)
    more = {"target": "income", "inputs": "age, city, few", "group_by": "few", **FEW}
    cerebro.train("people", "of_few", **{**more, "options": {"seed": 1, "least_group_rows": 10}})
    made = cerebro.export("of_few", tmp_path / "y.safetensors", group="3", scorer=True)
    assert made.difference < 1e-5 and made.left_out == ()
    query = "SELECT * FROM people WHERE few = 3 AND id < 500"
    rows = [row for (row,) in cerebro.rows(f"SELECT to_jsonb(s) FROM ({query}) s ORDER BY id")]
    wanted = [one.value for one in sorted(cerebro.predict("of_few", query, "id"), key=_id)]
    assert Scorer(made.path).predict(rows)["income"] == pytest.approx(wanted, rel=1e-5)
    with pytest.raises(CannotScore, match="models of groups are not calibrated"):
        Scorer(made.path).intervals(rows, 0.9)


def test_a_model_in_a_model(tmp_path: Path) -> None:
    """Several outputs, a Sequential model within one, and one that is called twice."""
    keras = pytest.importorskip("keras")
    keras.utils.set_random_seed(1)
    inner = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, activation="tanh")], name="inner")
    given, other = keras.Input((4,), name="given"), keras.Input((4,), name="other")
    both = keras.Model([given, other], [inner(given), keras.layers.Add()([inner(other), inner(given)])], name="both")
    one, two = keras.Input((4,), name="one"), keras.Input((4,), name="two")
    first, second = both([two, one])
    model = keras.Model([one, two], [keras.layers.Average()([second, first, first]), second, first])

    def names(of: Any) -> dict[str, Any]:
        return {
            layer.name: names(layer) if hasattr(layer, "layers") else [weight.path for weight in layer.weights]
            for layer in of.layers
        }

    tensors = {weight.path: np.asarray(weight) for weight in model.weights}
    random = np.random.default_rng(1)
    rows = {name: random.normal(size=(1100, 4)).astype("f4") for name in ("one", "two")}
    found = NumpyModel(json.loads(model.to_json()), names(model), tensors)(rows)
    for ours, theirs in zip(found, model.predict(rows, verbose=0)):
        assert ours == pytest.approx(theirs, abs=1e-6)
    with pytest.raises(CannotScore, match="does not say which weights are those of 'both': export it again"):
        NumpyModel(json.loads(model.to_json()), {"both": list(tensors)}, tensors)


@pytest.mark.tensorflow
def test_a_saved_model(cerebro: Cerebro, tmp_path: Path) -> None:
    made = cerebro.export("moods", str(tmp_path / "served") + "/")
    assert "compared with cerebro.predict" in made.compared and made.difference < 1e-5
    assert (tmp_path / "served" / "saved_model.pb").exists() and made.bytes > 10_000 and len(made.sha256) == 64
    with pytest.raises(client.ClientError, match="is a folder that exists already"):
        cerebro.export("moods", str(tmp_path / "served") + "/")


@pytest.mark.tensorflow
@pytest.mark.onnx
@pytest.mark.parametrize("model", ["incomes", "moods", "kinds_lstm"])
def test_onnx_predicts_the_same(cerebro: Cerebro, tmp_path: Path, model: str) -> None:
    if model == "kinds_lstm":
        cerebro.fit(
            "people", model, [{"architecture": "lstm", "units": 4}], target="mood", inputs="note, age", epochs=1
        )
    made = cerebro.export(model, str(tmp_path / "x.onnx"))
    assert "compared with cerebro.predict" in made.compared and made.difference < 1e-4


@pytest.mark.tensorflow
@pytest.mark.onnx
def test_what_onnx_cannot_express_is_named(cerebro: Cerebro, tmp_path: Path) -> None:
    cerebro.fit("people", "attending", [{"architecture": "transformer", "units": 8, "hidden": 8, "blocks": 1}],
                target="mood", inputs="age, city", epochs=1)  # fmt: skip
    with pytest.raises(
        client.ClientError, match=r"(?s)cannot be converted to ONNX, which has no Erfc \(in .*SavedModel"
    ):
        cerebro.export("attending", str(tmp_path / "x.onnx"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.tensorflow
def test_without_the_packages_of_onnx(cerebro: Cerebro, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(client.MissingPackage, match=r"onnx cannot be imported.*\n.*pip install tf2onnx"):
        cerebro.export("ages", str(tmp_path / "x.onnx"))


def test_without_numpy(cerebro: Cerebro, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client alone has none. An archive comes in without it."""
    monkeypatch.setitem(sys.modules, "cerebro_db.client.models.model_files", None)
    monkeypatch.delattr("cerebro_db.client.models.model_files", raising=False)
    file = tmp_path / "x.keras"
    file.touch()
    for call in (lambda: cerebro.export("moods", "x.keras"), lambda: cerebro.import_model(file, "x")):
        with pytest.raises(client.MissingPackage, match="need NumPy and Keras.*\n.*pip install"):
            call()
    with pytest.raises(client.ClientError, match="There is no file x.cerebro"):
        cerebro.import_model("x.cerebro", "x")


@pytest.mark.parametrize(
    ("ending", "wrong", "why"),
    [
        ("keras", 2e-5, "predicts other numbers"),
        ("safetensors", 2e-5, "predicts other numbers"),
        ("cerebro", 0.5, "predicts other numbers"),
        ("safetensors", float("nan"), "predicts NaN"),
    ],
)
def test_a_file_that_predicts_other_numbers_is_refused(
    cerebro: Cerebro,
    server: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    ending: str,
    wrong: float,
    why: str,
) -> None:
    """As if the writer had a fault: nothing is left, and a file that was there before stays."""
    writer = model_files.WRITERS[f".{ending}"]

    def faulty(given: model_files.ForExport, path: Path) -> Any:
        compute = writer(given, path)
        return lambda inputs: [one * (1 + wrong) for one in compute(inputs)]

    (tmp_path / f"x.{ending}").write_text("before")
    monkeypatch.setitem(model_files.WRITERS, f".{ending}", faulty)
    with pytest.raises(client.ClientError, match=f"The file {why}.*Nothing was written.*\n.*--tolerance"):
        cerebro.export("ages", tmp_path / f"x.{ending}", replace=True)
    assert [one.name for one in tmp_path.iterdir()] == [f"x.{ending}"]
    assert (tmp_path / f"x.{ending}").read_text() == "before"
    if (ending, wrong) == ("safetensors", 2e-5):
        command = ["export", f"{SCHEMA}.ages", "-o", str(tmp_path / f"x.{ending}"), "--dsn", server, "--replace"]
        assert CliRunner().invoke(cli.app, command).exit_code == 1
        assert (tmp_path / f"x.{ending}").read_text() == "before"
        said = CliRunner().invoke(cli.app, [*command, "--tolerance", "0.001"])
        assert said.exit_code == 0, said.output


def test_numbers_near_zero_have_the_rounding_of_large_ones() -> None:
    document = {"outputs": [{"name": "y", "output": 0, "classes": None}]}
    sample = samples.SampleRows({}, {"y": np.array([[40_000.0], [0.001]])}, "")
    assert samples.difference(document, sample, lambda _: [np.array([[40_000.0], [0.003]])]) == pytest.approx(5e-8)
    tiny = samples.SampleRows({}, {"y": np.array([[1e-9], [2e-9]])}, "")  # wrong numbers of a small scale are wrong
    assert samples.difference(document, tiny, lambda _: [np.array([[1e-9], [3e-9]])]) == pytest.approx(0.5)


def test_layers_in_16_bits_have_a_larger_tolerance(cerebro: Cerebro, tmp_path: Path) -> None:
    cerebro.fit("people", "rough", [MLP], target="income", inputs="age, city", epochs=1, segments=1,
                options={"seed": 1, "precision": "mixed_bfloat16"})  # fmt: skip
    made = cerebro.export("rough", tmp_path / "x.keras")
    assert made.difference <= model_files.IN_16_BITS


def test_models_of_groups_are_left_out(cerebro: Cerebro, tmp_path: Path, sold: str) -> None:
    for ending in ("keras", "cerebro"):
        made = cerebro.export(sold, tmp_path / f"x.{ending}", 2)
        (line,) = made.left_out
        assert line.startswith("The models of the groups of shop, day, open, year, code are left out: they are in ")
        assert f"{sold}_groups. The file has" in line and "all rows of configuration 2" in line
        assert made.compared.endswith("and the file has the model on all rows") and made.difference < 1e-5
    with pytest.raises(client.ClientError, match=r"cerebro\.predict uses the models of groups"):
        cerebro.export(sold, tmp_path / "y.keras", sample="SELECT * FROM sold")
    cerebro.import_model(tmp_path / "x.cerebro", "of_all_groups")
    document = json.loads((tmp_path / "x.preparation.json").read_text())
    query = "SELECT * FROM sold ORDER BY id LIMIT 32"
    rows = [row for (row,) in cerebro.rows(f"SELECT to_jsonb(s) FROM ({query}) s ORDER BY id")]
    inputs = RowPreparation(document).inputs(rows)
    (said,) = model_files.keras_compute(model_files.read_keras(tmp_path / "x.keras"), document)(inputs)
    told = {int(one.key_value): one.value for one in cerebro.predict("of_all_groups", query, "id")}
    assert said.ravel() == pytest.approx([told[key] for key in sorted(told)], rel=1e-5)


def test_the_models_of_groups(cerebro: Cerebro, tmp_path: Path, sold: str) -> None:
    """Each in one of the formats, named by its key or by its value."""
    groups = cerebro.rows(f"SELECT DISTINCT ON (group_key) group_key, group_value, configuration, objective_value"
                          f" FROM {sold}_groups WHERE weights IS NOT NULL ORDER BY group_key, rank")  # fmt: skip
    assert len(groups) == 6
    for place, (key, value, best, figure) in enumerate(groups):
        ending = ("safetensors", "keras", "cerebro")[place % 3]
        made = cerebro.export(sold, tmp_path / f"{place}.{ending}", group=key if place % 2 else value,
                              scorer=ending == "safetensors")  # fmt: skip
        assert made.difference < 1e-5 and made.left_out == ()
        assert made.compared == f"100 rows of the group in {SCHEMA}.sold compared with cerebro.predict"
        if ending == "cerebro":
            cerebro.import_model(made.path, f"sold_{place}")
            ((told, imported),) = cerebro.rows(
                f"SELECT objective_value, imported->>'group' FROM sold_{place}_info, sold_{place}_summary"
            )
            assert (told, imported) == (figure, key)
            rows = "SELECT * FROM sold ORDER BY id LIMIT 50"
            assert len(cerebro.predict(f"sold_{place}", rows, "id")) == 50, "a model without groups"
        if ending == "safetensors":
            other = cerebro.export(sold, tmp_path / f"x.{ending}", 3 - best, group=key, replace=True)
            assert other.difference < 1e-5 and other.sha256 != made.sha256
            with pytest.raises(CannotScore, match="models of groups are not calibrated"):
                Scorer(made.path).intervals([], 0.9)
    ours = cerebro.model(sold, group=groups[-1][0]).get_weights()
    assert [one.shape for one in ours] == [one.shape for one in cerebro.model(sold, groups[-1][2]).get_weights()]


def test_a_version_with_models_of_groups(cerebro: Cerebro, tmp_path: Path) -> None:
    """A version exports as its table does, with and without a group; and a group's archive stays that of a group."""
    cerebro.rows("CREATE TABLE visits AS SELECT id, age, income, 'shop ' || id % 3 AS shop FROM people WHERE id <= 600")
    wide = {**MLP, "units": 8, "layers": 1}
    cerebro.fit(
        "visits", "of_visits", [wide, MLP], target="income", inputs="age", epochs=1, segments=1, group_by="shop"
    )
    cerebro.rows("UPDATE of_visits_groups SET rank = 1 + (configuration + group_number) % 2")  # each is best in a group
    name = f"visits_{SCHEMA}"[:40]
    try:
        assert cerebro.register(name, "of_visits", alias="production") == 1
        for group in (None, '["shop 1"]'):
            made = [
                cerebro.export(
                    model, tmp_path / f"{place}_{group is None}_{(group or '')[-3:]}.safetensors", group=group
                )
                for place, model in enumerate(("of_visits", f"{name}@production"))
            ]
            assert made[0].sha256 == made[1].sha256 and made[1].difference < 1e-5
            assert [len(one.left_out) for one in made] == [group is None] * 2
        best = cerebro.rows(f"SELECT configuration FROM registered_versions WHERE registered_model = '{name}'")[0][0]
        with pytest.raises(client.NoSuchModel, match="on all rows of another configuration"):
            cerebro.export(f"{name}@1", tmp_path / "x.keras", 3 - best)
        first = cerebro.rows("SELECT configuration FROM of_visits_groups WHERE group_value = 'shop 0' AND rank = 1")[0][
            0
        ]
        with pytest.raises(client.NoSuchModel, match="has no group 'shop 0' of configuration"):
            cerebro.export(f"{name}@1", tmp_path / "x.keras", 3 - first, group="shop 0")
        # One group: the version, its archive, and the archive's table and version say which.
        assert cerebro.register(name, "of_visits", group_value="shop 2") == 2
        cerebro.export(f"{name}@1", tmp_path / "of_all.cerebro", group="shop 2")
        cerebro.export(f"{name}@2", tmp_path / "of_one.cerebro")
        rows = "SELECT id, age FROM visits WHERE shop = 'shop 2'"
        wanted = cerebro.predict("of_visits", rows.replace("age", "age, shop"), "id").frame().value
        for number, source in enumerate(("of_all", "of_one"), 3):
            cerebro.import_model(tmp_path / f"{source}.cerebro", f"from_{source}")
            told = cerebro.rows(f"SELECT group_key, imported->>'group' FROM from_{source}_summary")
            assert told == [('["shop 2"]', '["shop 2"]')]
            assert cerebro.register(name, f"from_{source}") == number
            assert list(cerebro.predict(f"{name}@{number}", rows, "id").frame().value) == pytest.approx(list(wanted))
        keys = f"SELECT group_key, groups FROM registered_versions WHERE registered_model = '{name}' ORDER BY version"
        assert cerebro.rows(keys) == [(None, 3), *[('["shop 2"]', None)] * 3]
        with pytest.raises(client.ServerError, match="is the model of the group"):
            cerebro.set_alias(name, "one", 4)
            cerebro.retrain(name, "one")
    finally:
        for (table,) in cerebro.rows(f"SELECT tablename FROM pg_tables WHERE tablename LIKE '{name}@%'"):
            cerebro.rows(f'DROP TABLE cerebro_registry."{table}"')
        cerebro.rows(f"DELETE FROM cerebro.registry_event WHERE model = '{name}'")
        cerebro.rows(f"DELETE FROM cerebro.registered_model WHERE name = '{name}'")


def test_groups_that_have_no_file(cerebro: Cerebro, tmp_path: Path, sold: str) -> None:
    for ending in ("", "_summary", "_info", "_groups"):
        cerebro.rows(f"CREATE TABLE spoiled{ending} AS TABLE {sold}{ending}")
    small, large = (
        cerebro.rows(f"SELECT group_value FROM spoiled_groups WHERE weights IS {which} NULL ORDER BY 1")[0][0]
        for which in ("", "NOT")
    )
    for group, why in (
        (small, f"The group {re.escape(repr(small))} has no model of its own: .*\n.*leave the group out"),
        ("nowhere", r"has no group 'nowhere'\..*\n.*such as \["),
    ):
        with pytest.raises(client.NoSuchModel, match=f"(?s){why}"):
            cerebro.export("spoiled", tmp_path / "y.keras", group=group)
    with pytest.raises(client.NoSuchModel, match="has no models of groups"):
        cerebro.export("ages", tmp_path / "y.keras", group="x")
    with pytest.raises(client.NoSuchModel, match=f"has no group {re.escape(repr(large))} of configuration 7"):
        cerebro.export("spoiled", tmp_path / "y.keras", 7, group=large)
    with pytest.raises(client.ClientError, match="has no rows"):
        query = "SELECT * FROM sold WHERE code = 'small'"
        cerebro.export("spoiled", tmp_path / "y.keras", group=large, sample=query)
    cerebro.rows("UPDATE spoiled_groups SET training_loss = 'NaN', validation_loss = '-Infinity'")
    cerebro.export("spoiled", tmp_path / "z.cerebro", group=large)
    cerebro.import_model(tmp_path / "z.cerebro", "endless")
    ((loss, other),) = cerebro.rows("SELECT training_loss, validation_loss FROM endless_info")
    assert math.isnan(loss) and other == -math.inf
    for change, why in (
        ("UPDATE spoiled_groups SET group_key = '[1]'", "does not fit group_by"),
        ("UPDATE spoiled_summary SET group_types = NULL", "does not fit group_by"),
        ("DELETE FROM spoiled_summary", "group_by"),
    ):
        cerebro.rows(change)
        with pytest.raises(client.ClientError, match=why):
            cerebro.export("spoiled", tmp_path / "y.keras", group=large)
    assert cerebro.rows("SELECT count(*) FROM sold") == [(900,)] and not (tmp_path / "y.keras").exists()


def test_types_of_strangers_run_nothing(cerebro: Cerebro, tmp_path: Path, sold: str) -> None:
    """A column may have a type whose casts to text and to json are functions of the table's owner."""
    cerebro.rows("CREATE TYPE evil AS ENUM ('few'); CREATE SEQUENCE casts")
    for source, target in (("evil", "text"), ("evil", "json"), ("mood", "json")):
        cerebro.rows(
            f"CREATE FUNCTION as_{target}({source}) RETURNS {target} LANGUAGE plpgsql AS"
            f" $$BEGIN PERFORM nextval('{SCHEMA}.casts'); RETURN '1'; END$$;"
            f" CREATE CAST ({source} AS {target}) WITH FUNCTION as_{target}({source})"
        )
    for table, column in (
        ("", "architecture"), ("_summary", "group_by"), ("_summary", "source_table"), ("_summary", "objective"),
        ("_info", "functions"), ("_info", "objective_value"), ("_info", "reason"),
        ("_groups", "group_value"), ("_groups", "group_key"),
    ):  # fmt: skip
        cerebro.rows(f"ALTER TABLE {sold}{table} RENAME {column} TO before")
        cerebro.rows(f"ALTER TABLE {sold}{table} ADD {column} evil DEFAULT 'few'")
        with pytest.raises(client.ClientError, match=f"column {column} of .*{sold}{table} has (another|a) type"):
            cerebro.export(sold, tmp_path / "x.cerebro", group="1" if table == "_groups" else None)
        cerebro.rows(f"ALTER TABLE {sold}{table} DROP {column}; ALTER TABLE {sold}{table} RENAME before TO {column}")
    try:
        cerebro.export("moods", tmp_path / "moods.cerebro", 1)  # its labels are of the type mood
        assert cerebro.rows("SELECT is_called FROM casts") == [(False,)]
        # Whoever made the document can say of a column what they like.
        cerebro.rows("CREATE TABLE listed AS SELECT mood, ARRAY[mood] AS moods FROM people LIMIT 5")
        with cerebro.transaction() as transaction:
            stored = stored_model.read(transaction, "ages", None)
            document = preparations.document(stored)
        for column in ("mood", "moods"):
            variable = {**document["inputs"][0], "columns": [column], "preparation": {"kind": "none"}, "shape": []}
            changed = {**document, "inputs": [variable]}
            with contextlib.suppress(client.ClientError, ValueError), cerebro.transaction() as transaction:
                samples.of_table(transaction, stored, changed, "TABLE listed")
            assert cerebro.rows("SELECT is_called FROM casts") == [(False,)]
    finally:
        cerebro.rows("DROP CAST (mood AS json)")


@pytest.mark.parametrize("ending", ["_summary", "_info"])
def test_a_table_of_a_model_that_is_not_there(cerebro: Cerebro, tmp_path: Path, ending: str) -> None:
    """A stranger could make one of its name between the question for it and its reading."""
    cerebro.rows(f"ALTER TABLE moods{ending} RENAME TO elsewhere")
    try:
        with pytest.raises(client.NoSuchModel, match=f"moods{ending} is not there"):
            cerebro.export("moods", tmp_path / "x.cerebro")
    finally:
        cerebro.rows(f"ALTER TABLE elsewhere RENAME TO moods{ending}")


SPY = """
CREATE SEQUENCE reads;
CREATE FUNCTION spy(anyelement) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS
$$BEGIN PERFORM nextval('export_tests.reads'); RETURN true; END$$;
"""
SOME = "CREATE TABLE bait AS SELECT * FROM people LIMIT 20;"
TRAPS = {
    "none": SOME,
    "view": "CREATE VIEW bait AS SELECT p.* FROM people p WHERE p.id <= 20 AND spy(p.id)",
    "row security": f"{SOME} ALTER TABLE bait ENABLE ROW LEVEL SECURITY;"
                    " CREATE POLICY all_rows ON bait USING (spy(id))",
    "index": f"{SOME} CREATE INDEX ON bait (id) WHERE spy(id)",
    "statistics": f"{SOME} CREATE STATISTICS of_bait ON spy(id), spy(age) FROM bait; ANALYZE bait",
    "partition key": "CREATE TABLE bait (LIKE people) PARTITION BY LIST (spy(id));"
                     " CREATE TABLE part PARTITION OF bait FOR VALUES IN (true);"
                     " INSERT INTO bait SELECT * FROM people LIMIT 20",
    "child": f"{SOME} CREATE TABLE child () INHERITS (bait); CREATE INDEX ON child (id) WHERE spy(id)",
}  # fmt: skip


@pytest.fixture
def stranger(cerebro: Cerebro) -> Iterator[str]:
    """A role that can do what it wants in the schema, and a function that counts its calls."""
    role = f"stranger_{os.getpid()}"
    cerebro.rows(f"{SPY} CREATE ROLE {role}; GRANT ALL ON SCHEMA {SCHEMA} TO {role}; GRANT SELECT ON people TO {role}")
    try:
        yield role
    finally:
        cerebro.rows(f"UPDATE ages_summary SET source_table = '{SCHEMA}.people'")
        cerebro.rows("DROP FUNCTION spy(anyelement) CASCADE; DROP SEQUENCE reads")
        cerebro.rows(f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}")


def drawn(cerebro: Cerebro, path: Path) -> None:
    """An export that compares on drawn inputs, and calls no function of the stranger's."""
    cerebro.rows("ALTER SEQUENCE reads RESTART")
    made = cerebro.export("ages", path, replace=True)
    assert "100 drawn inputs" in made.compared and " is no table of yours in a schema of yours" in made.compared
    assert cerebro.rows("SELECT is_called FROM reads") == [(False,)]


@pytest.mark.parametrize("trap", landing(TRAPS, "none", "view", "index"))
def test_the_rows_of_a_stranger_are_not_read(cerebro: Cerebro, tmp_path: Path, stranger: str, trap: str) -> None:
    """The maker of a model table says in it which rows it was trained on, and can change that table at any time."""
    if trap == "statistics" and cerebro.rows("SELECT current_setting('server_version_num')::integer < 140000")[0][0]:
        pytest.skip("statistics have no expressions there")
    cerebro.rows(TRAPS[trap])
    cerebro.rows(f"ALTER {'VIEW' if trap == 'view' else 'TABLE'} bait OWNER TO {stranger}")
    cerebro.rows(f"UPDATE ages_summary SET source_table = '{SCHEMA}.bait'")
    drawn(cerebro, tmp_path / "x.safetensors")
    if trap == "none":  # who names it reads it
        told = cerebro.export("ages", tmp_path / "x.safetensors", sample="TABLE bait", replace=True)
        assert "20 rows of TABLE bait" in told.compared


def test_an_own_table_that_a_stranger_could_replace_is_not_read(
    cerebro: Cerebro, tmp_path: Path, stranger: str
) -> None:
    """Its schema is the stranger's; or it is a view, which reads what is the stranger's."""
    cerebro.rows(f"CREATE SCHEMA theirs_{stranger}; ALTER SCHEMA theirs_{stranger} OWNER TO {stranger}")
    cerebro.rows(f"CREATE TABLE theirs_{stranger}.bait AS SELECT * FROM people LIMIT 20")
    cerebro.rows(f"{TRAPS['row security']}; ALTER TABLE bait OWNER TO {stranger}; CREATE VIEW own AS TABLE bait")
    for name in (f"theirs_{stranger}.bait", f"{SCHEMA}.own"):
        cerebro.rows(f"UPDATE ages_summary SET source_table = '{name}'")
        drawn(cerebro, tmp_path / "x.safetensors")


def test_an_ordinary_user_reads_own_tables(cerebro: Cerebro, server: str, tmp_path: Path, stranger: str) -> None:
    """And not those of other ordinary users, though they may read them."""
    cerebro.rows(f"CREATE TABLE mine AS SELECT * FROM people LIMIT 20; ALTER TABLE mine OWNER TO {stranger}")
    cerebro.rows(f"GRANT SELECT ON ages, ages_summary, ages_info, people TO {stranger}")
    cerebro.rows(f"GRANT cerebro_user TO {stranger}")
    cerebro.rows(f"CREATE ROLE another_{stranger}; GRANT ALL ON SCHEMA {SCHEMA} TO another_{stranger}")
    try:
        with as_role(server, stranger) as own:
            for owner, said in ((stranger, "20 rows of"), (f"another_{stranger}", "100 drawn inputs")):
                cerebro.rows(f"ALTER TABLE mine OWNER TO {owner}; GRANT SELECT ON mine TO {stranger}")
                cerebro.rows(f"UPDATE ages_summary SET source_table = '{SCHEMA}.mine'")
                assert said in own.export(f"{SCHEMA}.ages", tmp_path / "x.safetensors", replace=True).compared
    finally:
        cerebro.rows(f"DROP OWNED BY another_{stranger} CASCADE; DROP ROLE another_{stranger}")


@contextlib.contextmanager
def as_role(server: str, role: str) -> Iterator[Cerebro]:
    """A client of another role."""
    with contextlib.closing(psycopg2.connect(server)) as connection:
        connection.autocommit = True
        connection.cursor().execute(f"SET ROLE {role}")
        with Cerebro(connection) as found:
            yield found


def test_what_stays_in_the_database_is_named(cerebro: Cerebro, tmp_path: Path) -> None:
    cerebro.rows("UPDATE moods_info SET functions = ARRAY['mine.focal'] WHERE configuration = 1")
    try:
        (line,) = cerebro.export("moods", str(tmp_path / "x.keras"), 1).left_out
        assert "custom functions of this database and stay in it: mine.focal" in line
    finally:
        cerebro.rows("UPDATE moods_info SET functions = NULL")


def test_another_engine_than_tensorflow(cerebro: Cerebro, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import keras

    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(client.ClientError, match="Keras computes with jax.*\n.*KERAS_BACKEND=tensorflow"):
        cerebro.export("moods", str(tmp_path / "x") + "/")


# -- large models ----------------------------------------------------------------------------------------------


@pytest.mark.skipif(not os.environ.get("CEREBRO_BIG"), reason="large: CEREBRO_BIG=1 runs it")
def test_a_model_above_2_gb(cerebro: Cerebro, tmp_path: Path) -> None:
    """2.15 GB of weights, trained for an epoch; it needs 20 GB of memory and of disk."""
    large = {"architecture": "mlp", "layers": 2, "units": 23_200, "optimizer": "sgd", "learning_rate": 1e-12}
    cerebro.rows("CREATE TABLE few AS SELECT id, small, r, income FROM people WHERE id <= 64")
    cerebro.fit("few", "large", [large], target="income", inputs="small, r", epochs=1)
    with pytest.raises(client.ClientError, match="bytes of weights, and an ONNX file has 2 GB at most"):
        cerebro.export("large", tmp_path / "x.onnx")
    for ending in ("keras", "safetensors", "cerebro"):
        made = cerebro.export("large", tmp_path / f"x.{ending}")
        assert made.bytes > 2.15e9 and "their bytes were compared" in made.compared
        sample = {} if ending == "safetensors" else {"sample": "SELECT * FROM few"}
        other = cerebro.export("large", tmp_path / f"y.{ending}", **sample, replace=True)
        assert other.difference < 1e-5 and ("compared with cerebro.predict" in other.compared) == bool(sample)
        other.path.unlink()
        if ending == "safetensors":
            rows = [row for (row,) in cerebro.rows("SELECT to_jsonb(f) FROM few f ORDER BY id")]
            said = Scorer(made.path).predict(rows)["income"]
            told = cerebro.predict("large", "SELECT * FROM few", "id")
            expected = [one.value for one in sorted(told, key=lambda one: int(one.key_value))]
            assert said == pytest.approx(expected, rel=1e-4)
        elif ending == "cerebro":
            cerebro.import_model(made.path, "large_again")
            again, before = (cerebro.predict(model, "SELECT * FROM few", "id") for model in ("large_again", "large"))
            assert again == before
        made.path.unlink()


# -- what is refused -------------------------------------------------------------------------------------------


def test_arguments_that_are_refused(cerebro: Cerebro, tmp_path: Path) -> None:
    with pytest.raises(client.ClientError, match="'x.h5' has no ending that names a format.*\n.*keras"):
        cerebro.export("ages", str(tmp_path / "x.h5"))
    with pytest.raises(client.ClientError, match="There is no folder"):
        cerebro.export("ages", str(tmp_path / "nowhere" / "x.keras"))
    with pytest.raises(client.NoSuchModel, match="no model of configuration 7"):
        cerebro.export("ages", str(tmp_path / "x.keras"), 7)
    with pytest.raises(client.ClientError, match='relation "nothing" does not exist'):
        cerebro.export("ages", str(tmp_path / "x.keras"), sample="SELECT * FROM nothing")
    assert list(tmp_path.iterdir()) == []


def test_without_the_table_that_was_trained_on(cerebro: Cerebro, tmp_path: Path) -> None:
    cerebro.rows("ALTER TABLE people RENAME TO humans")
    try:
        made = cerebro.export("ages", str(tmp_path / "x.keras"))
        assert "100 drawn inputs" in made.compared and f"there is no table {SCHEMA}.people" in made.compared
        assert made.difference < 1e-5
        more = {"sample": "SELECT * FROM humans WHERE id < 30", "replace": True}
        made = cerebro.export("ages", str(tmp_path / "x.keras"), **more)
        assert "29 rows of SELECT" in made.compared
    finally:
        cerebro.rows("ALTER TABLE humans RENAME TO people")


def test_the_command(cerebro: Cerebro, server: str, tmp_path: Path) -> None:
    command = ["export", f"{SCHEMA}.ages", "-o", str(tmp_path / "x.keras"), "--scorer"]
    said: Any = CliRunner().invoke(cli.app, [*command, "--dsn", server])
    assert said.exit_code == 0, said.output
    assert "SHA-256" in said.output and "Largest difference" in said.output
    assert {one.name for one in tmp_path.iterdir()} == {"x.keras", "x.preparation.json", "cerebro_scorer.py"}
    said = CliRunner().invoke(cli.app, [*command, "--dsn", server, "--json"])
    assert said.exit_code == 1 and f"The file {tmp_path / 'x.keras'} exists." in said.stderr and said.stdout == ""
    said = CliRunner().invoke(cli.app, [*command, "--dsn", server, "--json", "--replace"])
    told = json.loads(said.stdout)
    assert told["path"] == str(tmp_path / "x.keras") and told["difference"] < 1e-5 and len(told["beside"]) == 2


def test_files_beside_another_model_stay(cerebro: Cerebro, tmp_path: Path) -> None:
    cerebro.export("ages", tmp_path / "x.keras")
    before = {one.name: one.read_bytes() for one in tmp_path.iterdir()}
    with pytest.raises(client.ClientError, match="x.preparation.json exists"):
        cerebro.export("moods", f"{tmp_path}/x/", 1)
    assert {one.name: one.read_bytes() for one in tmp_path.iterdir()} == before
    (tmp_path / "file").write_text("mine")
    with pytest.raises(client.ClientError, match="is a file, and a SavedModel is a folder"):
        cerebro.export("ages", f"{tmp_path}/file/", replace=True)
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("folder", ["none", "closed"])
def test_a_folder_that_cannot_take_the_file(cerebro: Cerebro, folder: str, tmp_path: Path) -> None:
    place = tmp_path / "none" if folder == "none" else Path("/proc/self")
    with pytest.raises(client.ClientError, match="no folder" if folder == "none" else "cannot be written"):
        cerebro.export("ages", place / "x.safetensors")


def test_a_plain_packed_table(trained: Trained, tmp_path: Path) -> None:
    """MADlib's tables, arrays that were taken as they are, and a Sequential model."""
    made = trained.cerebro.export("models", str(tmp_path / "x.safetensors"))
    assert "rows of" in made.compared and made.difference < 1e-5
    rows = [row for (row,) in trained.cerebro.rows("SELECT to_jsonb(i) FROM iris i ORDER BY id")]
    said = trained.cerebro.predict("models", "SELECT * FROM iris", "id")
    labels = [one.label for one in sorted(said, key=lambda one: int(one.key_value))]
    assert Scorer(made.path).labels(rows)["kind"] == labels
