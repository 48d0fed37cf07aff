"""Images as bytes: they are packed, trained on and predicted as arrays of the same numbers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psycopg2
import pytest
from psycopg2 import errors
from sklearn.datasets import load_digits

from cerebro_db.client import Cerebro
from cerebro_db.scorer import CannotScore, Scorer
from tests.sql.lab import Lab, layer, sequential
from tests.thorough import TIMES, landing

ROWS = 600
SHAPE = {"image": {"shape": [8, 8, 1]}}
CNN = '{"architecture": "cnn", "blocks": 1, "filters": 8, "units": 16}'
SEED = '{"seed": 1, "deterministic": true}'
PNG = b"\x89PNG\r\n\x1a\n" + bytes(100)


@pytest.fixture(scope="module")
def digits(lab: Lab) -> Lab:
    """Digits with their pixels in two columns of the same numbers; of each a table has it as ``image``."""
    data = load_digits()
    listed = [
        (n, data.images[n].astype(int)[..., None].tolist(), data.images[n].astype("u1").tobytes(), n % 7, n // 10,
         "abc"[n % 3], int(data.target[n]))
        for n in range(ROWS)
    ]  # fmt: skip
    columns = {
        "id": "int",
        "a": "smallint[]",
        "b": "bytea",
        "x": "real",
        "writer": "int",
        "ward": "text",
        "digit": "int",
    }
    lab.table("digits", columns, listed)
    lab("ALTER TABLE digits ADD PRIMARY KEY (id)")
    for kind, column in (("array", "a"), ("bytes", "b")):
        lab(f"CREATE TABLE of_{kind} AS SELECT id, {column} AS image, x, writer, ward, digit FROM digits")
        lab(f"ALTER TABLE of_{kind} ADD PRIMARY KEY (id)")
        lab(f"CREATE TABLE later_{kind} (LIKE of_{kind} INCLUDING INDEXES); INSERT INTO later_{kind}"
            f" SELECT id + 1000, image, x, writer + 1000, ward, digit FROM of_{kind} WHERE id < 90")  # fmt: skip
    return lab


def pack(lab: Lab, kind: str, output: str, inputs: str = "image, x", **more: Any) -> None:
    if kind == "bytes":
        more["prepare"] = json.dumps(SHAPE)
    named = "".join(f", {name} => %s" for name in more)
    lab(f"SELECT cerebro.pack('of_{kind}', %s, 'digit', inputs => %s, segments => 2, seed => 1{named})",
        output, inputs, *more.values())  # fmt: skip


def packed(lab: Lab, table: str) -> list[tuple[object, ...]]:
    rows = lab(f"SELECT * FROM {table} ORDER BY __dist_key__, buffer_id")
    return [tuple(bytes(one) if isinstance(one, memoryview) else one for one in row) for row in rows]


def drop(lab: Lab, name: str) -> None:
    lab(
        "DROP TABLE IF EXISTS "
        + ", ".join(name + one for one in ("", "_summary", "_validation", "_validation_summary"))
    )


# -- packing -------------------------------------------------------------------------------------------------


def rows(lab: Lab, table: str) -> list[tuple[bytes, ...]]:
    """The packed rows in the order of their bytes: that of rows without a key follows from a hash of their values."""
    variables = [one.removesuffix("_shape") for one, _ in lab.columns(table) if one.endswith("_shape")]
    found: list[tuple[bytes, ...]] = []
    for values in lab(
        "SELECT " + ", ".join(f'"{one}"' for one in variables) + f", {variables[0]}_shape[1] FROM {table}"
    ):
        columns = [bytes(one) for one in values[:-1]]
        sizes = [len(one) // values[-1] for one in columns]
        found += zip(
            *([one[n * size : (n + 1) * size] for n in range(values[-1])] for one, size in zip(columns, sizes))
        )
    return sorted(found)


WINDOWS = '{"by": "writer", "order": "id", "length": 2}'
OF_GROUPS = WINDOWS.replace("writer", "ward")
WAYS: list[dict[str, Any]] = [
    {}, {"inputs": "image"}, {"folds": 3}, {"stratify": True}, {"split_by": "writer"}, {"group_by": "ward"},
    {"class_weight": "balanced"}, {"sequence": WINDOWS}, {"sequence": OF_GROUPS, "group_by": "ward"},
]  # fmt: skip


# How rows are divided and weighed does not depend on their types.
@pytest.mark.parametrize("more", landing(WAYS, WAYS[0], WAYS[2], *WAYS[-2:]), ids=str)
def test_bytes_are_packed_as_the_array_is(digits: Lab, more: dict[str, Any]) -> None:
    found = []
    for kind in ("array", "bytes"):
        pack(digits, kind, "same", **more)
        tables = ["same"] if "folds" in more else ["same", "same_validation"]
        in_order = "sequence" not in more and not digits.greenplum  # where rows have no order
        found.append([packed(digits, one) if in_order else rows(digits, one) for one in tables])
        if "group_by" not in more:
            digits(f"SELECT cerebro.append('same', 'later_{kind}')")
            found[-1] += [rows(digits, one) for one in tables]
        layout = digits.value("SELECT layout FROM same_summary")
        (image,) = [one for one in layout["inputs"] if one["name"] == "image"]
        assert image["dtype"] == "uint8" and image["shape"][-3:] == [8, 8, 1]
        drop(digits, "same")
    assert found[0] == found[1]
    assert all(found[0])


def test_what_the_columns_have_become(digits: Lab) -> None:
    digits("SELECT cerebro.pack('of_bytes', 'became', 'digit', prepare => %s)",
           '{"bytea": {"shape": [64], "divide_by": 16}}')  # fmt: skip
    became = digits("SELECT variable, prepared_as, width, column_type, parameters"
                    " FROM cerebro.prepared_columns('became') WHERE column_name = 'image'")  # fmt: skip
    assert became == [("image", "pixels", 64, None, {"by": 16.0})]
    (size,) = {one["bytes"] for one in [digits.value("SELECT layout -> 'partitions' -> 0 FROM became_summary")]}
    assert size < 100 * digits.value("SELECT (layout -> 'partitions' -> 0 ->> 'rows')::int FROM became_summary")
    digits("SELECT cerebro.pack_like('of_bytes', 'like_it', 'digit', NULL, 'became')")
    drop(digits, "like_it")
    drop(digits, "became")


def test_rows_are_packed_once(digits: Lab) -> None:
    for model in ("once", "twice"):
        digits("SELECT cerebro.fit('of_bytes', %s, %s, target => 'digit', epochs => 1, segments => 1, prepare => %s)",
               model, CNN, json.dumps(SHAPE))  # fmt: skip
    assert any("these rows were packed before" in one for one in digits.told())


def refused(lab: Lab, statement: str, *values: Any) -> psycopg2.Error:
    before = lab.tables()
    with pytest.raises(psycopg2.Error) as error:
        lab(statement, *values)
    assert lab.tables() == before
    return error.value


def test_bytes_without_a_shape(digits: Lab) -> None:
    digits.told()
    digits("SELECT cerebro.pack('of_bytes', 'without', 'digit')")
    said = "\n".join(digits.told())
    assert "the column 'image' is ignored: the shape of its bytes is not known" in said
    assert """prepare => '{"image": {"shape": [height, width, channels]}}'""" in said
    drop(digits, "without")
    wrong = refused(digits, "SELECT cerebro.pack('of_bytes', 'without', 'digit', inputs => 'image')")
    assert "the input 'image' of type bytea cannot be used" in str(wrong)
    wrong = refused(digits, """SELECT cerebro.pack('of_bytes', 'without', 'digit', prepare => '{"image": "pixels"}')""")
    assert "cannot become pixels without a shape" in str(wrong)
    wrong = refused(
        digits, """SELECT cerebro.pack('of_bytes', 'without', 'digit', prepare => '{"x": {"shape": [1]}}')"""
    )
    assert "column 'x' of type real cannot become pixels" in str(wrong)


@pytest.mark.parametrize("shape", [[], [0], [8, -8], [2.5], "8x8", [1] * 7, [10**6, 10**6], None, [True]], ids=str)
def test_wrong_shapes(digits: Lab, shape: Any) -> None:
    wish = json.dumps({"image": {"shape": shape}})
    wrong = refused(digits, "SELECT cerebro.pack('of_bytes', 'x', 'digit', prepare => %s)", wish)
    assert "shape cannot be" in str(wrong) and "[64, 64, 3]" in wrong.diag.message_hint


@pytest.mark.parametrize("by", [0, -1, "2", None, True, 1e39], ids=str)
def test_wrong_divisors(digits: Lab, by: Any) -> None:
    wish = json.dumps({"image": {"shape": [8, 8], "divide_by": by}})
    assert "divide_by cannot be" in str(
        refused(digits, "SELECT cerebro.pack('of_bytes', 'x', 'digit', prepare => %s)", wish)
    )


@pytest.fixture
def mixed(digits: Lab) -> Iterator[Lab]:
    digits("CREATE TABLE mixed AS SELECT * FROM of_bytes; ALTER TABLE mixed ADD PRIMARY KEY (id)")
    yield digits
    digits("DROP TABLE mixed")


PACK = "SELECT cerebro.pack('mixed', 'mixed_packed', 'digit', prepare => %s, validation => 0)"


def test_a_value_with_too_few_bytes(mixed: Lab) -> None:
    mixed("UPDATE mixed SET image = '\\x0102' WHERE id = 7")
    wrong = refused(mixed, PACK, json.dumps(SHAPE))
    assert "column 'image' of table mixed has values without the 64 bytes that the shape [8, 8, 1] has" in str(wrong)
    assert wrong.diag.message_detail == "1 row; id = 7: 2 bytes."
    assert [row[0] for row in mixed(wrong.diag.message_hint.removeprefix("Find them with: "))] == [7]


def test_a_null(mixed: Lab) -> None:
    mixed("UPDATE mixed SET image = NULL WHERE id = 7")
    assert "column 'image' of table mixed is NULL in 1 of 600 rows" in str(refused(mixed, PACK, json.dumps(SHAPE)))


def test_files_of_images(mixed: Lab) -> None:
    mixed("UPDATE mixed SET image = %s WHERE id = 7", PNG)
    wrong = refused(mixed, PACK, json.dumps(SHAPE))
    assert wrong.diag.message_detail == "1 row; id = 7: 108 bytes, a PNG file."
    assert "cerebro images" in wrong.diag.message_hint
    mixed("UPDATE mixed SET image = %s", PNG)
    mixed.told()
    mixed("SELECT cerebro.pack('mixed', 'mixed_packed', 'digit')")
    assert "the column 'image' is ignored: its values are PNG files" in "\n".join(mixed.told())
    drop(mixed, "mixed_packed")


# -- models --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(digits: Lab) -> Lab:
    """``by_array`` and ``by_bytes``: the same model, trained on the two types."""
    for kind in ("array", "bytes"):
        pack(digits, kind, f"{kind}_packed")
        digits("SELECT cerebro.fit(%s, %s, %s, epochs => 3, options => %s)",
               f"{kind}_packed", f"by_{kind}", CNN, SEED)  # fmt: skip
    return digits


def test_training_on_bytes_is_training_on_arrays(trained: Lab) -> None:
    assert trained.losses("by_array") == trained.losses("by_bytes")
    assert trained.weights("by_array") == trained.weights("by_bytes")


def predicted(lab: Lab, model: str, query: str) -> list[tuple[object, ...]]:
    return lab("SELECT key_value, class, probability FROM cerebro.predict(%s, %s, 'id') ORDER BY 1", model, query)


def test_predictions_of_many_rows_and_of_one(trained: Lab) -> None:
    wanted = predicted(trained, "by_array", "SELECT * FROM of_array")
    found = predicted(trained, "by_bytes", "SELECT * FROM of_bytes")
    assert len(found) == ROWS and found == wanted
    right = trained.value("SELECT count(*) FROM cerebro.predict('by_bytes', 'SELECT * FROM of_bytes', 'id') p"
                          " JOIN digits d ON d.id = p.key_value::int AND d.digit = p.class::int")  # fmt: skip
    assert right > 0.8 * ROWS
    (one,) = predicted(trained, "by_bytes", "SELECT * FROM of_bytes WHERE id = 17")
    assert one[:2] == next(row for row in wanted if row[0] == "17")[:2]
    assert one == predicted(trained, "by_array", "SELECT * FROM of_array WHERE id = 17")[0]
    trained("SELECT cerebro.predict_into('by_bytes', 'of_bytes', 'written', key => 'id')")
    assert sorted(trained("SELECT id::text, predicted_digit::text FROM written")) == sorted(row[:2] for row in wanted)
    trained("DROP TABLE written")


ALL, ONE, TWO = "true", "id = 3", "id IN (2, 3)"


@pytest.mark.parametrize(
    ("value", "says", "conditions"),
    [
        ("CASE WHEN id <> 3 THEN image END", "NULL in column 'image'", (ALL, ONE, TWO)),
        ("CASE WHEN id <> 3 THEN image ELSE '\\x0102' END", "a value of 2 bytes where the model was trained on 64",
         (ALL, ONE)),
        ("CASE WHEN id <> 3 THEN image ELSE '' END", "a value of 0 bytes", (ONE,)),
        # The bytes of both rows together are as many as those of two rows.
        ("CASE id WHEN 2 THEN image || '\\x00' WHEN 3 THEN substr(image, 2) ELSE image END", "a value of 6[35] bytes",
         (ALL, TWO)),
        (f"'\\x{PNG.hex()}'::bytea", "a PNG file", (ALL,)),
        ("ARRAY[1]", r"image \(integer\[\] now, bytea in training\)", (ALL,)),
    ],
)  # fmt: skip
def test_rows_that_cannot_be_predicted(trained: Lab, value: str, says: str, conditions: tuple[str, ...]) -> None:
    for condition in conditions:
        with pytest.raises(errors.DataException, match=says):
            predicted(trained, "by_bytes", f"SELECT id, {value} AS image, x FROM of_bytes WHERE {condition}")


def test_bytes_are_no_array(trained: Lab) -> None:
    with pytest.raises(errors.DataException, match=r"image \(bytea now, an array of numbers in training\)"):
        predicted(trained, "by_array", "SELECT * FROM of_bytes")


def test_a_predictor_and_a_trigger(trained: Lab) -> None:
    if trained.greenplum:
        pytest.skip("functions beside the rows of a table run on Greenplum's segments, where a predictor is refused")
    trained("SELECT cerebro.create_predictor('by_bytes', 'digit_of', replace => true)")
    wanted = [row[1] for row in predicted(trained, "by_bytes", "SELECT * FROM of_bytes WHERE id < 3")]
    assert [row[0] for row in trained("SELECT digit_of(image => b, x => x)::text FROM digits WHERE id < 3 ORDER BY id")
            ] == wanted  # fmt: skip
    trained("CREATE TABLE arriving (image bytea, x real, digit int)")
    trained("CREATE FUNCTION guess() RETURNS trigger LANGUAGE plpgsql AS"
            " 'BEGIN NEW.digit := digit_of(image => NEW.image, x => NEW.x); RETURN NEW; END'")  # fmt: skip
    trained("CREATE TRIGGER guess BEFORE INSERT ON arriving FOR EACH ROW EXECUTE FUNCTION guess()")
    trained("INSERT INTO arriving SELECT b, x FROM digits WHERE id < 3 ORDER BY id")
    assert [str(row[0]) for row in trained("SELECT digit FROM arriving")] == wanted


def rounded(found: list[Any]) -> list[tuple[Any, ...]]:
    """Greenplum adds up in an order of its own."""
    return [tuple(round(one, 9) if isinstance(one, float) else one for one in row) for row in found]


def test_functions_that_judge(trained: Lab) -> None:
    for call in (
        "SELECT * FROM cerebro.evaluate('{}', %s) ORDER BY 1, 2",
        "SELECT * FROM cerebro.class_metrics('{}', %s) ORDER BY 1",
        "SELECT * FROM cerebro.confusion_matrix('{}', %s) ORDER BY 1, 2",
        "SELECT * FROM cerebro.drift('{}', %s) ORDER BY 1",
    ):
        found, wanted = (trained(call.format(f"by_{kind}"), f"SELECT * FROM of_{kind}") for kind in ("bytes", "array"))
        assert rounded(found) == rounded(wanted), call
    ranked = trained("SELECT column_name, importance FROM cerebro.importance('by_bytes', 'SELECT * FROM of_bytes')")
    assert ranked[0][0] == "image" and ranked[0][1] > 0.5
    if not trained.greenplum:  # where packed rows have no order, and are shuffled in another
        call = "SELECT * FROM cerebro.importance('by_{0}', '{0}_packed_validation') ORDER BY 1"
        assert trained(call.format("bytes")) == trained(call.format("array"))


def test_a_model_is_calibrated(trained: Lab) -> None:
    found = [trained("SELECT * FROM cerebro.calibrate(%s, %s)", f"by_{kind}", f"{kind}_packed_validation")
             for kind in ("bytes", "array")]  # fmt: skip
    assert rounded(found[0]) == rounded(found[1]) and found[0]


def test_an_exported_file(trained: Lab, tmp_path: Path) -> None:
    with Cerebro(trained.connect()) as cerebro:
        for ending in ("keras", "safetensors") if TIMES >= 5 else ("safetensors",):
            told = cerebro.export(
                "by_bytes", tmp_path / f"m.{ending}", sample=f"SELECT * FROM {trained.schema}.of_bytes"
            )
            assert "100 rows" in str(told) and told.difference < 1e-5
    scorer = Scorer(tmp_path / "m.safetensors")
    rows = trained("SELECT b, x, '\\x' || encode(b, 'hex') FROM digits WHERE id < 3 ORDER BY id")
    said = [scorer.predict([{"image": image, "x": x} for *_, x, _ in [(0, x, 0)]])["digit"] for image, x, _ in
            ((bytes(b), x, t) for b, x, t in rows)]  # fmt: skip
    as_text = [scorer.predict([{"image": t, "x": x}])["digit"] for _, x, t in rows]
    assert np.array_equal(said, as_text)
    for wrong in (b"\1\2", "\\xzz", 7, None):
        with pytest.raises(CannotScore, match="column 'image'"):
            scorer.predict([{"image": wrong, "x": 1.0}])


def test_train_takes_a_network_for_images(digits: Lab) -> None:
    digits("SELECT cerebro.train('of_bytes', 'trained', 'digit', budget => '10 seconds', inputs => 'image',"
           " prepare => %s, epochs => 2, max_configurations => 1)", json.dumps(SHAPE))  # fmt: skip
    (kinds,) = digits("SELECT DISTINCT architecture FROM cerebro.leaderboard WHERE run ="
                      " (SELECT max(run) FROM cerebro.runs)")  # fmt: skip
    assert kinds == ("cnn",)


# -- bodies --------------------------------------------------------------------------------------------------


def body(frozen: bool) -> dict[str, Any]:
    return sequential(
        [8, 8, 1],
        layer("Rescaling", "scaled", scale=1 / 16, offset=0.0),
        layer("Conv2D", "conv", filters=6, kernel_size=3, activation="relu", trainable=not frozen),
        layer("GlobalAveragePooling2D", "pool"),
        layer("Dense", "out", units=10, activation="softmax"),
    )


def test_a_frozen_body_reads_bytes(digits: Lab) -> None:
    digits("SELECT cerebro.add_architecture('digits_body', %s)", json.dumps(body(True)))
    pack(digits, "bytes", "for_body", inputs="image")
    pack(digits, "array", "array_for_body", inputs="image")
    listed = json.dumps([{"architecture": "digits_body", "learning_rate": rate} for rate in (0.03, 0.01)])
    losses = []
    for table, reuse in (("for_body", "all"), ("for_body", "none"), ("array_for_body", "all")):
        digits.told()
        run = digits.value("SELECT cerebro.fit(%s, 'heads', %s, epochs => 3, options => %s)", table, listed,
                           json.dumps({"seed": 3, "threads": 1, "reuse": reuse}))  # fmt: skip
        assert any("frozen layer" in one for one in digits.told()) == (reuse == "all")
        losses.append([row[0] for row in digits(
            "SELECT training_loss FROM cerebro.learning_curve WHERE run = %s ORDER BY model, epoch", run)])  # fmt: skip
        digits("SELECT cerebro.drop_model('heads')")
    assert losses[0] == losses[2]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
