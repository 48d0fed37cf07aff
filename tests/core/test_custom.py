"""Custom functions: which names and sources may be registered, and how compile parameters refer to them."""

from __future__ import annotations

import json

import pytest

from cerebro_db.core.errors import CerebroError, InvalidArgument, InvalidName, InvalidSyntax, UnsafeModel
from cerebro_db.core.parameters import custom
from cerebro_db.core.parameters.params import check_compile, compile_params

KNOWN = {
    "loss": {"focal": "focal@3", "focal@3": "focal@3"},
    "metric": {"hits": "hits@1", "hits@1": "hits@1"},
}
GOOD = "def focal(y_true, y_pred):\n    import math\n    return ops.mean(ops.abs(y_true - y_pred), axis=-1) * math.pi"


def test_a_name_becomes_a_reference_with_the_version():
    made = compile_params("optimizer='adam', loss='focal', metrics=['hits', 'acc']", KNOWN)
    assert made["loss"] == "focal@3"
    assert made["metrics"] == ["hits@1", "acc"]
    assert custom.references(made) == {"focal@3", "hits@1"}
    check_compile(made, KNOWN)
    again = compile_params(json.dumps(made), KNOWN)
    assert again == made
    per_output = compile_params("optimizer='adam', loss={'a': 'focal', 'b': 'mse'}, metrics=[['hits'], ['mae']]", KNOWN)
    assert custom.references(per_output) == {"focal@3", "hits@1"}


@pytest.mark.parametrize("name", ["hits", "focal@2", "focal@03", "focal@0", "Focal", "focal(gamma=2)", "nobody"])
def test_other_names_are_unknown(name):
    with pytest.raises(CerebroError) as caught:
        compile_params(json.dumps({"optimizer": "adam", "loss": name}), KNOWN)
    assert caught.value.hint is not None


def test_compile_parameters_cannot_bring_a_function_of_their_own():
    """Neither by a reference that is not registered, nor as an object that contains source text."""
    made = compile_params("optimizer='adam', loss='mse'")
    for loss in (
        "focal@3",
        {"class_name": "custom", "config": {"name": "focal", "version": 3, "source": GOOD}},
        {"class_name": "focal@3", "config": {}},
        {"class_name": "focal", "config": {"source": GOOD}},
        {"class_name": "function", "config": "focal", "module": "builtins", "registered_name": "function"},
    ):
        for known in (custom.NONE, {"loss": {"other@1": "other@1"}}):
            with pytest.raises(CerebroError):
                check_compile({**made, "loss": loss}, known)
    with pytest.raises(UnsafeModel):
        check_compile({**made, "loss": "focal"}, KNOWN)  # Not canonical: the version is missing.


def test_madlibs_name_for_top_k_accuracy():
    made = compile_params("optimizer='adam', loss='mse', metrics=['top_5_accuracy']")
    assert made["metrics"] == [{"class_name": "TopKCategoricalAccuracy", "config": {"k": 5, "name": "top_5_accuracy"}}]
    check_compile(made)
    for name in ("top_0_accuracy", "top_k_accuracy", "top_99999999999_accuracy", "top_5_accuracy(k=3)"):
        with pytest.raises(InvalidArgument):
            compile_params(json.dumps({"optimizer": "adam", "loss": "mse", "metrics": [name]}))


def test_a_source_is_parsed_and_not_executed(tmp_path):
    custom.check_source("focal", GOOD)
    custom.check_source("focal", f"def focal(y_true, y_pred):\n    open({str(tmp_path)!r} + '/x', 'w')")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "source",
    [
        None,
        "",
        "  \n",
        "focal",
        "def other(y_true, y_pred): return 0",
        "def focal(y_pred, y_true): return 0",
        "def focal(y_true, y_pred, gamma=2): return 0",
        "def focal(y_true, y_pred=print('x')): return 0",
        "def focal(y_true, y_pred, *, z): return 0",
        "def focal(y_true, y_pred, **z): return 0",
        "def focal(*y_true): return 0",
        "def focal(y_true, /, y_pred): return 0",
        "def focal(y_true: print('x'), y_pred): return 0",
        "def focal(y_true, y_pred) -> print('x'): return 0",
        "@print\ndef focal(y_true, y_pred): return 0",
        "async def focal(y_true, y_pred): return 0",
        "focal = lambda y_true, y_pred: 0",
        "import os\ndef focal(y_true, y_pred): return 0",
        GOOD + "\nfocal(0, 0)",
        "class focal: pass",
        "def focal(y_true, y_pred):",
        "def focal(y_true, y_pred): return '\0'",
        "def focal(y_true, y_pred): return " + "(" * 5000 + ")" * 5000,
        "def focal(y_true, y_pred): return " + "-" * 60_000 + "1",
        GOOD + " " * custom.LONGEST_SOURCE,
        "\x80\x04\x95dill",
    ],
)
def test_refused_sources(source):
    with pytest.raises(InvalidSyntax):
        custom.check_source("focal", source)


@pytest.mark.parametrize(
    ("lines", "refused"),
    [
        ("import keras.backend as K\n    return K.sqrt(y_true)", "sqrt"),
        ("from keras import backend as K\n    return K.mean(K.square(y_true))", "mean"),
        ("from keras import backend\n    return backend.abs(y_true)", "abs"),
        ("from keras.backend import epsilon, clip\n    return clip(y_true, epsilon(), 1)", "clip"),
        ("return keras.backend.sqrt(y_true)", "sqrt"),
        ("import keras.backend as K\n    return y_true + K.epsilon()", None),
        ("return ops.sqrt(y_true) + keras.backend.epsilon()", None),
        ("return ops.sqrt(y_true" + ".a" * 90 + ")", None),
    ],
)
def test_what_keras_3_has_not_is_refused_when_a_function_is_added(lines, refused):
    source = f"def focal(y_true, y_pred):\n    {lines}"
    if refused is None:
        custom.check_source("focal", source)
        return
    with pytest.raises(InvalidSyntax, match=f"uses keras.backend.{refused} at line") as caught:
        custom.check_source("focal", source)
    assert f"ops.{refused}" in str(caught.value.hint)


def test_the_names_of_keras_backend_are_those_of_keras():
    keras = pytest.importorskip("keras")
    assert set(dir(keras.backend)) >= custom.OF_BACKEND


@pytest.mark.parametrize(
    "name",
    ["", None, "mse", "MSE", "Huber", "accuracy", "top_3_accuracy", "get", "a b", "é", "x" * 60, "a@1", "a;--", "1a"],
)
def test_refused_names(name):
    with pytest.raises(InvalidName):
        custom.check_name(name, "loss")
    with pytest.raises(InvalidArgument):
        custom.check_name("fine", "layer")


def test_the_versions_that_a_run_trains_with_stay_known():
    """A clone keeps the version of its parent, and a name means the latest."""
    latest = {"loss": {"focal": "focal@3", "focal@3": "focal@3"}}
    known = custom.with_references(latest, [{}, {"loss": "focal@1", "metrics": ["hits@2", "mae"]}])
    made = compile_params("optimizer='adam', loss='focal@1', metrics=['hits@2']", known)
    assert (made["loss"], made["metrics"]) == ("focal@1", ["hits@2"])
    assert compile_params("optimizer='adam', loss='focal'", known)["loss"] == "focal@3"
    with pytest.raises(InvalidArgument, match="focal@2"):
        compile_params("optimizer='adam', loss='focal@2'", known)
