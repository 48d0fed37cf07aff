"""What a column becomes is one document: packing, validation, evaluation and prediction give a model equal values."""

from __future__ import annotations

import numpy as np
import psycopg2
import pytest

from tests.nn import configurations as c
from tests.sql.lab import Lab, layer, sequential

STILL = "optimizer='SGD(lr=0.0)', loss='mse'"  # training leaves the weights as they are
WEIGHTS = np.array([1.0, 10.0, 100.0, 0.5], "f4")  # of a, b, c, and the bias


@pytest.fixture(scope="module")
def place(lab: Lab) -> Lab:
    """A model that tells the order of its inputs, once trained on integers and once on numbers, divided by 10."""
    lab(
        "CREATE TABLE rows AS SELECT i AS id, i AS a, i % 7 AS b, i % 3 AS c, i / 7.0::real AS r, i::real AS y,"
        " ARRAY[i, i % 7, i % 3]::integer[] AS x FROM generate_series(1, 60) i"
    )
    lab("CREATE VIEW others AS SELECT id, a::real AS p, b::real AS q, c::real AS s, a, b, c, r, x FROM rows")
    model = lab.architecture(sequential([3], layer("Dense", "out", units=1)), WEIGHTS.tobytes())
    lab.selection("mst", [(model, STILL, "batch_size=16")])
    for name, inputs in (("whole", "a, b, c"), ("broken", "a, b, r"), ("array", "x")):
        lab.pack("rows", f"{name}_packed", "y", inputs, segments=2, seed=1, divide_by=10)
        lab.fit(f"{name}_packed", name, "mst", 1)
    return lab


def predicted(place: Lab, inputs: str, model: str = "whole", test: str = "rows") -> list[float]:
    place("DROP TABLE IF EXISTS said")
    place(f"SELECT madlib_keras_predict('{model}', '{test}', 'id', '{inputs}', 'said', 'prob', false, 1)")
    return [value for (value,) in place("SELECT estimated_y FROM said ORDER BY id")]


def refusal(place: Lab, inputs: str, model: str = "whole", test: str = "rows") -> psycopg2.Error:
    with pytest.raises(psycopg2.Error) as error:
        predicted(place, inputs, model, test)
    assert error.value.diag.message_hint
    return error.value


def notices(place: Lab) -> list[str]:
    return [line for line in place.told() if "order of the training data" in line]


# -- the document --------------------------------------------------------------------------------------------


def test_the_summary_says_what_columns_became(place: Lab) -> None:
    place("CREATE TYPE mood AS ENUM ('sad', 'glad')")
    place("CREATE TABLE moods AS SELECT x, (ARRAY['glad', 'sad'])[1 + id % 2]::mood AS mood, x AS code FROM rows")
    place.pack("moods", "moods_packed", "mood, code", "x", segments=1, classes=[3, None], divide_by=4)
    layout = place.value("SELECT layout FROM moods_packed_summary")
    assert [variable["preparation"] for variable in layout["inputs"] + layout["outputs"]] == [
        {"kind": "divided", "by": 4.0},
        {"kind": "one_hot", "type": f"{place.schema}.mood", "labels": ["sad", "glad"]},
        {"kind": "encoded"},
    ]
    layout = place.value("SELECT layout FROM whole_summary")
    assert layout["inputs"][0]["columns"] == ["a", "b", "c"]
    assert [variable["preparation"]["kind"] for variable in layout["inputs"] + layout["outputs"]] == ["divided", "real"]


def test_labels_are_known_wherever_the_search_path_leads(place: Lab) -> None:
    place("CREATE TYPE colour AS ENUM ('red', 'blue')")
    place("CREATE TABLE paint AS SELECT x, (ARRAY['blue', 'red'])[1 + id % 2]::colour AS colour FROM rows")
    place.pack("paint", "paint_packed", "colour", "x", segments=1)
    place("SET search_path = cerebro, madlib")
    try:
        for name, change in (("paint_val", "SELECT 1"), ("paint_later", "ALTER TYPE {0}.colour RENAME TO color")):
            place(change.format(place.schema))
            place(
                "SELECT pack_like(%s, %s, 'colour', 'x', %s)",
                *(f"{place.schema}.{table}" for table in ("paint", name, "paint_packed")),
            )
    finally:
        place(f"SET search_path = {place.schema}, public, cerebro, madlib")
    labels = [
        place.value(f"SELECT colour_labels::text FROM {name}_summary") for name in ("paint_packed", "paint_later")
    ]
    assert labels == ["{red,blue}", "{red,blue}"]


def test_a_document_that_was_changed_by_hand_is_refused(place: Lab) -> None:
    place(
        "CREATE TABLE odd_packed AS TABLE whole_packed; CREATE TABLE odd_packed_summary AS TABLE whole_packed_summary"
    )
    place("UPDATE odd_packed_summary SET layout = jsonb_set(layout, '{inputs,0,preparation,kind}', '\"guessed\"')")
    for statement in (
        "SELECT madlib_fit_multiple_model('odd_packed', 'odd', 'mst', 1)",
        "SELECT madlib_keras_evaluate('whole', 'odd_packed', 'odd', NULL, 1)",
        "SELECT pack_like('rows', 'odd', 'y', 'a, b, c', 'odd_packed')",
    ):
        with pytest.raises(psycopg2.Error, match=r"inputs\[0\]\.preparation\.kind has to be one of as_is") as error:
            place(statement)
        assert error.value.diag.message_hint.startswith("Pack the table")


# -- one function ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["whole", "broken"])
@pytest.mark.parametrize("inputs", ["a, b, c", "p, q, s", "a, q, s"])
def test_prediction_gives_the_values_that_evaluation_gives(place: Lab, model: str, inputs: str) -> None:
    """Trained on integers or not, and now with integers or not: the loss is that of the predictions."""
    names = [name.strip() for name in inputs.split(",")]
    place(f"CREATE VIEW renamed AS SELECT id, y, {', '.join(f'o.{name} AS n_{name}' for name in names)}"
          " FROM others o JOIN rows USING (id)")  # fmt: skip
    renamed = ", ".join(f"n_{name}" for name in names)
    try:
        place.pack("renamed", "renamed_val", "y", renamed, packed_table=f"{model}_packed")
        place(f"SELECT madlib_keras_evaluate('{model}', 'renamed_val', 'judged', NULL, 1)")
        said = np.array(predicted(place, renamed, model, "renamed"), "f4")
        y = np.array([value for (value,) in place("SELECT y FROM rows ORDER BY id")], "f4")
        assert place.value("SELECT loss FROM judged") == pytest.approx(float(np.mean((said - y) ** 2)), rel=1e-6)
        values = np.array(place("SELECT a, b, c FROM rows ORDER BY id"), "f4") / 10
        assert said == pytest.approx(values @ WEIGHTS[:3] + WEIGHTS[3], rel=1e-5)
    finally:
        place("DROP VIEW renamed; DROP TABLE IF EXISTS renamed_val, renamed_val_summary, judged")


def test_labels_that_were_added_by_hand_are_predicted(place: Lab) -> None:
    place("CREATE TABLE kinds AS SELECT id, x, 'k' || id % 2 AS kind FROM rows")
    place.pack("kinds", "kinds_packed", "kind", "x", segments=1, classes=[3], seed=1)
    place("UPDATE kinds_packed_summary SET kind_labels[3] = 'later'")
    bias = np.concatenate([np.zeros(9), [0, 1, 2]]).astype("f4")
    dense = layer("Dense", "out", units=3, activation="softmax")
    model = place.architecture(sequential([3], dense), bias.tobytes(), table="kinds_arch")
    place.selection("kinds_mst", [(model, "optimizer='SGD(lr=0.0)', loss='categorical_crossentropy'", "batch_size=16")],
                    arch="kinds_arch")  # fmt: skip
    place.fit("kinds_packed", "kinds_model", "kinds_mst", 1)
    place("SELECT madlib_keras_predict('kinds_model', 'kinds', 'id', 'x', 'kinds_said', 'prob', false, 1)")
    assert place("SELECT DISTINCT class_value, rank FROM kinds_said ORDER BY 2") == [("later", 1), ("k1", 2), ("k0", 3)]


# -- names -----------------------------------------------------------------------------------------------------


def test_columns_are_matched_by_name(place: Lab) -> None:
    expected = predicted(place, "a, b, c")
    assert notices(place) == []
    for order in ("c, a, b", "b, a, c"):
        assert predicted(place, order) == expected
        (notice,) = notices(place)
        assert notice.endswith("the columns were put into the order of the training data: a, b, c")
    by_array = predicted(place, "x", "array")
    assert by_array == pytest.approx(expected, rel=1e-6) and notices(place) == []


def test_columns_of_other_names_count_by_their_order(place: Lab) -> None:
    expected = predicted(place, "a, b, c")
    assert predicted(place, "p, q, s", test="others") == pytest.approx(expected, rel=1e-6)
    assert predicted(place, "x", test="others") == pytest.approx(expected, rel=1e-6)  # one array of three numbers
    assert predicted(place, "a, b, c", "array") == pytest.approx(expected, rel=1e-6)
    assert predicted(place, "s, q, p", test="others") != pytest.approx(expected, rel=1e-6)
    assert notices(place) == []


@pytest.mark.parametrize(
    ("inputs", "model"),
    [("a, b, r", "whole"), ("a, b", "whole"), ("b, c, q", "whole"), ("p, q", "whole"), ("p, q, s, r", "whole"),
     ("x, r", "whole"), ("x, p", "array"), ("a, x, c", "whole")],
)  # fmt: skip
def test_columns_that_fit_neither_way_are_refused(place: Lab, inputs: str, model: str) -> None:
    error = refusal(place, inputs, model, "others")
    trained = "x" if model == "array" else "features (a, b, c)"
    assert error.pgcode == "22000"
    assert error.diag.message_primary == (
        f"madlib_keras_predict error: independent_varname names {inputs},"
        f" but the model was trained on the inputs {trained}."
    )


def test_inputs_of_several_kinds_are_put_in_order(place: Lab) -> None:
    place.pack("rows", "mixed_packed", "y", "b, x, a", segments=1, seed=1)
    architecture = c.functional(
        [
            (c.input_layer([2], name="features"), []),
            (c.input_layer([3], name="x"), []),
            (c.layer("Concatenate", "all"), ["features", "x"]),
            (c.layer("Dense", "out", units=1), ["all"]),
        ],
        ["features", "x"],
        ["out"],
    )
    weights = np.array([1, 10, 100, 1000, 10000, 0], "f4")
    model = place.architecture(architecture, weights.tobytes(), table="mixed_arch")
    place.selection("mixed_mst", [(model, STILL, "batch_size=16")], arch="mixed_arch")
    place.fit("mixed_packed", "mixed", "mixed_mst", 1)
    expected = [
        b + 10 * a + 100 * a + 1000 * b + 10000 * third for a, b, third in place("SELECT a, b, c FROM rows ORDER BY id")
    ]
    for inputs, told in (("b, x, a", 0), ("b, a, x", 0), ("x, b, a", 1), ("a, x, b", 1)):
        assert predicted(place, inputs, "mixed") == pytest.approx(expected, rel=1e-5)
        assert len(notices(place)) == told, inputs


def test_the_names_are_in_the_summary_of_the_model(place: Lab) -> None:
    """The packed table may be gone."""
    place("CREATE TABLE lonely AS TABLE whole; CREATE TABLE lonely_info AS TABLE whole_info")
    place("CREATE TABLE lonely_summary AS TABLE whole_summary")
    assert predicted(place, "c, b, a", "lonely") == predicted(place, "a, b, c")
    place("UPDATE lonely_summary SET layout = NULL")
    error = refusal(place, "a, b, c", "lonely")
    assert "lonely_summary has no layout" in error.diag.message_primary
