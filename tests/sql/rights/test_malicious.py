"""Malicious architectures and parameters through SQL: every entry point refuses them quickly and without an effect.

tests/core/test_allowlist.py tests the allow-list itself.  Here are its three callers: add_architecture(); a fit, after
a user has written into an architecture table with SQL; and the trainer, when a user calls _work() directly.
"""

from __future__ import annotations

import base64
import json
import marshal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg2
import pytest
from psycopg2 import errors

from cerebro_db.core.architecture import keras_json
from cerebro_db.core.parameters import params
from tests.conftest import ENGINE
from tests.sql.users import ARCHITECTURE, User, equip, town

pytestmark = pytest.mark.same_machine  # The canary is a file on the server.

CANARY = Path("/tmp/cerebro_canary_of_the_tests")
CODE = base64.b64encode(marshal.dumps(compile(f"open({str(CANARY)!r}, 'w').write('x')", "evil", "exec"))).decode()
PICKLE = base64.b64encode(b"cos\nsystem\n(S'touch " + str(CANARY).encode() + b"'\ntR.").decode()
TOUCH = f"__import__('os').system('touch {CANARY}')"


def layer(class_name: str, /, **config: Any) -> dict[str, Any]:
    return {"class_name": class_name, "config": {"name": "evil", **config}}


def placed(module: str, class_name: str, /, **config: Any) -> dict[str, Any]:
    return {"module": module, "registered_name": None, **layer(class_name, **config)}


def sequential(*layers: Any) -> dict[str, Any]:
    first = {"class_name": "InputLayer", "config": {"batch_shape": [None, 2], "dtype": "float32", "name": "in"}}
    return {"class_name": "Sequential", "config": {"name": "model", "layers": [first, *layers]}}


LAMBDA = layer("Lambda", function=[CODE, None, None], function_type="lambda")
LAMBDA_3 = {
    "module": "keras.layers",
    "class_name": "Lambda",
    "config": {"name": "evil", "function": {"class_name": "__lambda__", "config": {"code": CODE}}},
    "registered_name": None,
}
DENSE: dict[str, Any] = {"units": 2}

ARCHITECTURES: dict[str, Any] = {
    "Lambda as Keras 2 writes it": sequential(LAMBDA),
    "Lambda as Keras 3 writes it (CVE-2024-3660)": sequential(LAMBDA_3),
    "Lambda with the name of a function": sequential(layer("Lambda", function="os.system", function_type="function")),
    "Lambda in a Sequential in a Sequential": sequential(sequential(sequential(LAMBDA_3))),
    "Lambda in TimeDistributed": sequential(layer("TimeDistributed", layer=LAMBDA_3)),
    "Lambda in Bidirectional": sequential(layer("Bidirectional", layer=LAMBDA_3)),
    "Lambda in Wrapper": sequential(layer("Wrapper", layer=LAMBDA)),
    "Lambda in an RNN's cell": sequential(layer("RNN", cell=LAMBDA_3)),
    "Lambda among stacked cells": sequential(layer("RNN", cell=layer("StackedRNNCells", cells=[LAMBDA_3]))),
    "Lambda in a Functional": {
        "class_name": "Functional",
        "config": {"name": "f", "layers": [{**LAMBDA_3, "inbound_nodes": []}], "input_layers": [], "output_layers": []},
    },
    "Lambda in an activation": sequential(layer("Dense", **DENSE, activation=LAMBDA_3)),
    "a lambda as activation": sequential(
        layer("Dense", **DENSE, activation={"class_name": "__lambda__", "config": {"value": CODE}})
    ),
    "a lambda in an initializer": sequential(layer("Dense", **DENSE, kernel_initializer=LAMBDA_3)),
    "a lambda in a regularizer": sequential(layer("Dense", **DENSE, kernel_regularizer=LAMBDA_3)),
    "a lambda in a constraint": sequential(layer("Dense", **DENSE, bias_constraint=LAMBDA_3)),
    "another module's function (CVE-2025-1550)": sequential(placed("os", "system", command=f"touch {CANARY}")),
    "subprocess as a layer": sequential(placed("subprocess", "Popen", args=["touch", str(CANARY)])),
    "builtins.eval as a layer": sequential(placed("builtins", "eval", source=TOUCH)),
    "a function of Keras' own modules": sequential(
        placed("keras.src.utils.file_utils", "get_file", origin="file:///x")
    ),
    "get_file with extract (CVE-2025-12060)": sequential(
        placed("keras.utils", "get_file", origin="http://x/", extract=True)
    ),
    "enable_unsafe_deserialization": sequential(placed("keras.config", "enable_unsafe_deserialization")),
    "load_model of a legacy file (CVE-2025-9905)": sequential(placed("keras.models", "load_model", filepath="x.h5")),
    "a module inside an argument": sequential(
        layer("Dense", **DENSE, activation=placed("builtins", "exec", source=TOUCH))
    ),
    "a numpy function as activation": sequential(
        layer("Dense", **DENSE, activation=placed("numpy", "load", file="/x"))
    ),
    "a function object": sequential(
        layer("Dense", **DENSE, activation={"class_name": "function", "config": "system", "module": "os"})
    ),
    "a registered name of another package": sequential(
        {"module": None, "class_name": "Dense", "registered_name": "evil>Dense", "config": {"units": 2}}
    ),
    "a registered name that differs": sequential(
        {"module": "keras.layers", "class_name": "Dense", "registered_name": "Lambda", "config": {"units": 2}}
    ),
    "TFSMLayer": sequential(placed("keras.layers", "TFSMLayer", filepath="/etc", call_endpoint="serve")),
    "TorchModuleWrapper (CVE-2025-49655)": sequential(placed("keras.layers", "TorchModuleWrapper", module=PICKLE)),
    "FlaxLayer": sequential(placed("keras.layers", "FlaxLayer", module=PICKLE)),
    "JaxLayer": sequential(placed("keras.layers", "JaxLayer", call_fn=CODE)),
    "StringLookup of a file (CVE-2025-12058)": sequential(layer("StringLookup", vocabulary="/etc/passwd")),
    "IntegerLookup of a file": sequential(layer("IntegerLookup", vocabulary="/etc/passwd")),
    "TextVectorization of a file": sequential(layer("TextVectorization", vocabulary="/etc/passwd")),
    "TextVectorization of a URL": sequential(layer("TextVectorization", vocabulary="http://169.254.169.254/latest")),
    "TextVectorization that standardizes by a lambda": sequential(layer("TextVectorization", standardize=LAMBDA_3)),
    "IntegerLookup of objects": sequential(layer("IntegerLookup", vocabulary=[LAMBDA_3])),
    "weights from a file": sequential(layer("Embedding", input_dim=2, output_dim=2, weights="/etc/passwd")),
    "a path as initializer": sequential(layer("Dense", **DENSE, kernel_initializer="/etc/passwd")),
    "an expression as activation": sequential(layer("Dense", **DENSE, activation=TOUCH)),
    "an expression as a size": sequential(layer("Dense", units=TOUCH)),
    "a class with an unknown name": sequential(layer("os.system")),
    "a class with a dunder name": sequential(layer("__import__")),
    "a model of an unknown class": {"class_name": "Pickled", "config": {"pickle": PICKLE}},
    "a subclassed model": {"class_name": "Model", "config": {}, "module": "os", "registered_name": "x>Model"},
    "compile_config with a lambda": {
        **sequential(layer("Dense", **DENSE)),
        "compile_config": {"optimizer": LAMBDA_3},
    },
    "a quadrillion parameters": sequential(layer("Dense", units=10**15)),
    "too many parameters in two layers": sequential(layer("Dense", units=2**30), layer("Dense", units=2**30)),
    "a negative size": sequential(layer("Dense", units=-1)),
    "too deep": json.loads('{"class_name":"Sequential","config":{"layers":[' * 200 + "]}}" * 200),
    "too many layers": sequential(*[layer("Dense", **DENSE)] * 100_000),
    "no model at all": [TOUCH],
    "a text": TOUCH,
    "nothing": None,
    "a name with a path": sequential({"class_name": "Dense", "config": {"units": 2, "name": "../../etc/passwd"}}),
    "a dtype that is a policy of another module": sequential(
        layer("Dense", **DENSE, dtype=placed("os", "DTypePolicy", name="float32"))
    ),
}

# Reading drops the harmful part of these.
HARMLESS = {"compile_config with a lambda"}
# These pass the allow-list, and the trainer refuses them.
LATE = {"too many parameters in two layers"}

PARAMETERS = {
    "a lambda as loss": f"loss=lambda y, p: {TOUCH}, optimizer='SGD()'",
    "a call as loss": f"loss={TOUCH}, optimizer='SGD()'",
    "a call in the optimizer": f"loss='mse', optimizer='SGD(lr={TOUCH})'",
    "a call as the optimizer": f"loss='mse', optimizer='{TOUCH.replace(chr(39), chr(34))}'",
    "an attribute": "loss='mse', optimizer='SGD().__class__.__mro__'",
    "another module": "loss='mse', optimizer='os.system(\"x\")'",
    "a comprehension": "loss='mse', optimizer='SGD()', metrics=[x for x in ().__class__.__bases__]",
    "a walrus": "loss='mse', optimizer='SGD()', metrics=[(x := 1)]",
    "an f-string": f"loss='mse', optimizer='SGD()', metrics=[f'{{{TOUCH}}}']",
    "unknown loss": "loss='keras.utils.get_file', optimizer='SGD()'",
    "a dict that is a class": "loss={'class_name': 'function', 'module': 'os', 'config': 'system'}, optimizer='SGD()'",
    "a very large power": "loss='mse', optimizer='SGD(lr=9**9**9**9)'",
    "very deep brackets": "loss='mse', optimizer='SGD()', metrics=" + "[" * 5000 + "]" * 5000,
}


@pytest.fixture(scope="module")
def eve(server: str) -> Iterator[User]:
    with town(server) as root:
        made = root.user("eve", "cerebro_user")
        equip(made)
        made("CREATE TABLE harmless AS SELECT * FROM arch")
        made.root = root  # type: ignore[attr-defined]
        yield made


@pytest.fixture(autouse=True)
def no_effect(eve: User) -> Iterator[None]:
    """After each test, the canary file does not exist and the server has not restarted."""
    CANARY.unlink(missing_ok=True)
    (began,) = eve("SELECT pg_postmaster_start_time()")
    yield
    assert not CANARY.exists(), "code was executed"
    assert eve("SELECT pg_postmaster_start_time()") == [began] and eve("SELECT 1") == [1]


CLEAR = (
    errors.InsufficientPrivilege,  # UnsafeModel
    errors.InvalidParameterValue,
    errors.InvalidTextRepresentation,
    errors.UndefinedObject,
    errors.FeatureNotSupported,
)


REFUSALS = (
    "InvalidSyntax",
    "UnsafeModel",
    "InvalidArgument",
    "ConfigurationFailed",
    "OutOfResources",
    "UndefinedObject",
)


def is_clear(error: psycopg2.Error) -> None:
    """The error has an SQLSTATE that we raise, and a message for people, without a traceback."""
    assert isinstance(error, CLEAR), repr(error)
    message = error.diag.message_primary or ""
    assert message and len(message) < 2000 and "Traceback" not in message


@pytest.mark.parametrize("case", ARCHITECTURES)
def test_add_architecture_refuses(eve: User, case: str) -> None:
    text = json.dumps(ARCHITECTURES[case])
    (before,) = eve("SELECT count(*) FROM cerebro.architectures")
    started = time.monotonic()
    if case in HARMLESS | LATE:
        eve("SELECT cerebro.add_architecture('evil', %s), cerebro.drop_architecture('evil')", text)
        return
    error = eve.refused("SELECT cerebro.add_architecture('evil', %s)", text, why=psycopg2.Error)
    assert time.monotonic() - started < 5  # It takes one second on an idle machine.
    is_clear(error)
    assert eve("SELECT count(*) FROM cerebro.architectures") == [before]


def test_a_fit_refuses_architectures_that_were_written_into_the_table_with_sql(eve: User) -> None:
    for case, architecture in ARCHITECTURES.items():
        if case in HARMLESS | LATE:
            continue
        eve("UPDATE arch SET model_arch = %s::json WHERE model_id = 1", json.dumps(architecture))
        error = eve.refused("SELECT cerebro.madlib_fit_multiple_model('packed', 'evil', 'mst', 1)", why=psycopg2.Error)
        is_clear(error)
        assert "model_id 1" in str(error) or "model arch" in str(error), case
    eve("UPDATE arch SET model_arch = %s::json WHERE model_id = 1", ARCHITECTURE)
    assert eve("SELECT to_regclass('evil')") == [None]


def test_the_trainer_refuses_direct_orders(eve: User) -> None:
    """Also the architectures that the coordinator would have translated first."""
    good = keras_json.architecture(ARCHITECTURE)
    compiled = params.compile_params("loss='mse', optimizer='SGD()'")
    layout = {"inputs": [{"name": "x", "dtype": "float32", "shape": [2]}], "outputs": []}
    evil_compiles = [
        {**compiled, "loss": placed("builtins", "eval", source=TOUCH)},
        {**compiled, "loss": {"class_name": "function", "module": "os", "config": "system"}},
        {**compiled, "loss": "os.system"},
        {**compiled, "loss": "evil@1"},
        {**compiled, "metrics": [LAMBDA_3]},
        {**compiled, "metrics": ["evil@1"]},
        {**compiled, "optimizer": placed("os", "system", command=f"touch {CANARY}")},
        {**compiled, "optimizer": {"class_name": "SGD", "config": {"learning_rate": LAMBDA_3}}},
        {**compiled, "optimizer": {"class_name": "deserialize", "config": {"config": LAMBDA_3}}},
        {**compiled, "optimizer": {"class_name": "LossScaleOptimizer", "config": {"inner_optimizer": LAMBDA_3}}},
    ]
    configurations = [{"architecture": one, "compile": compiled} for one in ARCHITECTURES.values()]
    configurations += [{"architecture": good, "compile": one} for one in evil_compiles]
    functions = [{"name": "evil", "version": 1, "kind": "loss", "source": f"def evil(a, b): {TOUCH}", "sha256": "x"}]
    eve("SELECT cerebro_internal._worker_open(%s)", json.dumps({"engine": ENGINE, "threads": 1}))
    try:
        for number, configuration in enumerate(configurations):
            configuration = {**configuration, "fit": {"batch_size": 2, "epochs": 1}, "functions": functions}
            work = {"order": "describe", "configuration": configuration, "layout": layout}
            try:
                answer = json.loads(eve("SELECT cerebro_internal._work(%s)", json.dumps(work))[0])
            except psycopg2.Error as error:
                assert "custom function" in str(error) or isinstance(error, errors.ExternalRoutineException), error
                continue
            if number < len(ARCHITECTURES) and list(ARCHITECTURES)[number] in HARMLESS:
                continue
            assert answer["error"]["kind"] in REFUSALS, (
                number,
                answer,
            )
        sound = {"architecture": good, "compile": compiled, "fit": {"batch_size": 2, "epochs": 1}}
        work = {"order": "describe", "configuration": sound, "layout": layout}
        assert "ok" in json.loads(eve("SELECT cerebro_internal._work(%s)", json.dumps(work))[0]), (
            "the trainer has ended"
        )
        answer = json.loads(eve("SELECT cerebro_internal._work(%s)", json.dumps({**work, "functions": functions}))[0])
        assert answer["error"]["kind"] == "InvalidArgument" and "functions" in answer["error"]["message"]
    finally:
        eve("SELECT cerebro_internal._worker_close()")


@pytest.mark.parametrize("case", PARAMETERS)
def test_parameters_are_parsed_and_never_evaluated(eve: User, case: str) -> None:
    for statement in (
        "SELECT madlib.load_model_selection_table('harmless', 'evil', ARRAY[1], ARRAY[%s], ARRAY['batch_size=1'])",
        "SELECT madlib.generate_model_configs('harmless', 'evil', ARRAY[1], %s, $${'batch_size': [1]}$$)",
    ):
        started = time.monotonic()
        error = eve.refused(statement, PARAMETERS[case], why=psycopg2.Error)
        assert time.monotonic() - started < 5
        is_clear(error)
    assert eve("SELECT to_regclass('evil')") == [None]


@pytest.mark.parametrize(
    "weights",
    [b"", b"\x80\x04cos\nsystem\n.", b"x" * 7, b"\0" * 4_000, base64.b64decode(PICKLE), b"PK\x03\x04" + b"\0" * 60],
)
def test_weights_of_a_wrong_size_are_refused(eve: User, weights: bytes) -> None:
    """A pickle or a zip file is only a wrong number of bytes."""
    eve("DROP TABLE IF EXISTS weighted, weighted_mst, weighted_mst_summary")
    try:
        eve("SELECT madlib.load_keras_model('weighted', %s::json, %s)", ARCHITECTURE, psycopg2.Binary(weights))
        eve(
            "SELECT madlib.load_model_selection_table('weighted', 'weighted_mst', ARRAY[1],"
            " ARRAY[$$loss='categorical_crossentropy',optimizer='SGD()'$$], ARRAY['batch_size=8,epochs=1'])"
        )
        eve("SELECT cerebro.madlib_fit_multiple_model('packed', 'weighted_models', 'weighted_mst', 1)")
    except psycopg2.Error as error:
        assert "Traceback" not in (error.diag.message_primary or "")
    else:
        assert not weights, "accepted as weights"
        eve("DROP TABLE weighted_models, weighted_models_info, weighted_models_summary")
