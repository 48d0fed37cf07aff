"""Malicious models: every published way to make Keras run, read or fetch something, and ideas of our own.

Each is given to the allow-list in core, and then directly to a real trainer, which has the same allow-list.  Both must
refuse it within a second, import, open and fetch nothing, and go on working.
"""

from __future__ import annotations

import base64
import json
import marshal
import os
import pickle
import time
import zipfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cerebro_db.core.architecture import allowlist, keras_json
from cerebro_db.core.errors import CerebroError
from cerebro_db.core.models import state
from cerebro_db.core.parameters.params import check_compile, compile_params
from cerebro_db.core.protocol.orders import Describe
from cerebro_db.core.protocol.parts import Origin, StateRef
from tests.core.fuzz_state import framed
from tests.nn.trainer_client import OrderFailed, Trainer

CANARY = "/tmp/cerebro_malicious_canary"
CODE = base64.b64encode(marshal.dumps(compile(f"open({CANARY!r}, 'w')", "x", "exec"))).decode()
LAMBDA = {"class_name": "__lambda__", "config": {"code": CODE, "defaults": None, "closure": None}}

Json = dict[str, Any]


def layer(name: str, /, module: str = "keras.layers", **config: Any) -> Json:
    return {"module": module, "class_name": name, "config": config, "registered_name": None}


def function(name: str, module: str) -> Json:
    return {"module": module, "class_name": "function", "config": name, "registered_name": "function"}


def model(*layers: Json) -> Json:
    config = {"name": "s", "trainable": True, "layers": [layer("InputLayer", batch_shape=[None, 4], name="x"), *layers]}
    return {"module": "keras", "class_name": "Sequential", "config": config, "registered_name": None}


def graph(*layers: Json, **config: Any) -> Json:
    x = {**layer("InputLayer", batch_shape=[None, 4], name="x"), "name": "x", "inbound_nodes": []}
    config = {"name": "f", "layers": [x, *layers], "input_layers": ["x", 0, 0], "output_layers": ["y", 0, 0], **config}
    return {"module": "keras.src.models.functional", "class_name": "Functional", "config": config}


def node(of: Json, *calls: Any) -> Json:
    return {**of, "name": "y", "config": {"name": "y", **of["config"]}, "inbound_nodes": list(calls)}


TENSOR = {
    "class_name": "__keras_tensor__",
    "config": {"shape": [None, 4], "dtype": "float32", "keras_history": ["x", 0, 0]},
}
CALL = {"args": [TENSOR], "kwargs": {}}


def dense(**config: Any) -> Json:
    return layer("Dense", **{"units": 1, **config})


OPEN = function("open", "builtins")
SYSTEM = function("system", "os")

# name: (number of the vulnerability or "idea", what it does, the architecture)
ARCHITECTURES: dict[str, tuple[str, str, Json]] = {
    # -- published vulnerabilities
    "lambda bytecode": ("CVE-2024-3660", "marshalled code in a Lambda layer", model(layer("Lambda", function=LAMBDA))),
    "lambda of Keras 2": (
        "CVE-2024-3660",
        "the same in the format of Keras 2: a downgrade",
        {
            "class_name": "Sequential",
            "config": [{"class_name": "Lambda", "config": {"function": [CODE, None, None], "function_type": "lambda"}}],
            "keras_version": "2.12.0",
        },
    ),
    "get_file as a layer": (
        "CVE-2024-55459",
        "downloads and unpacks a crafted tar archive",
        model(layer("get_file", "keras.utils", fname="x", origin="http://127.0.0.1:9/x.tar", extract=True)),
    ),
    "any module and class": (
        "CVE-2025-1550",
        "module and class_name of a layer name any callable",
        model(layer("Popen", "subprocess", args=["touch", CANARY])),
    ),
    "any function in a Lambda": (
        "CVE-2025-1550",
        "a Lambda calls a function that its config names",
        model(layer("Lambda", function=SYSTEM, arguments={"command": f"touch {CANARY}"})),
    ),
    "call of a function in the graph": (
        "CVE-2025-1550",
        "inbound_nodes hand the arguments to it",
        graph(node(layer("Lambda", function=OPEN), {"args": [CANARY, "w"], "kwargs": {}})),
    ),
    "get_file through keras' own modules": (
        "CVE-2025-8747",
        "only modules of keras are named, whose helpers suffice",
        model(
            layer("Lambda", function=function("get_file", "keras.utils"), arguments={"origin": "http://127.0.0.1:9"})
        ),
    ),
    "model_from_json inside": (
        "CVE-2025-8747",
        "a helper of keras that deserializes again, unguarded",
        model(layer("Lambda", function=function("model_from_json", "keras.models"), arguments={"json_string": "{}"})),
    ),
    "enable_unsafe_deserialization first": (
        "CVE-2025-9906",
        "one layer switches safe mode off, the next is a Lambda",
        model(
            layer("Lambda", function=function("enable_unsafe_deserialization", "keras.config")),
            layer("Lambda", function=LAMBDA),
        ),
    ),
    "set_global_attribute": (
        "CVE-2025-9906",
        "the same through the global state",
        model(
            layer(
                "Lambda",
                function=function("set_global_attribute", "keras.src.backend.common.global_state"),
                arguments={"name": "safe_mode_saving", "value": False},
            )
        ),
    ),
    "load_model of an HDF5 file": (
        "CVE-2025-9905",
        "the older file format, which has no safe mode",
        model(layer("Lambda", function=function("load_model", "keras.models"), arguments={"filepath": "/tmp/x.h5"})),
    ),
    "TorchModuleWrapper": (
        "CVE-2025-49655",
        "a wrapped torch module is unpickled",
        model(layer("TorchModuleWrapper", module={"class_name": "__torch__", "config": {"value": CODE}}, name="t")),
    ),
    "StringLookup of a file": (
        "CVE-2025-12058",
        "its vocabulary is read from a path",
        model(layer("StringLookup", vocabulary="/etc/passwd")),
    ),
    "StringLookup of an address": (
        "CVE-2025-12058",
        "or fetched from the network",
        model(layer("StringLookup", vocabulary="http://127.0.0.1:9/v.txt")),
    ),
    "IntegerLookup of a file": ("CVE-2025-12058", "a sibling", model(layer("IntegerLookup", vocabulary="/etc/passwd"))),
    "TextVectorization of a file": (
        "CVE-2025-12058",
        "a sibling",
        model(layer("TextVectorization", vocabulary="/etc/passwd")),
    ),
    "extract_archive": (
        "CVE-2025-12060",
        "get_file leaves the folder when it unpacks a tar archive",
        model(layer("Lambda", function=function("extract_archive", "keras.src.utils.file_utils"))),
    ),
    "TFSMLayer": (
        "CVE-2026-1462",
        "loads a TensorFlow SavedModel from a path",
        model(layer("TFSMLayer", filepath="/tmp/saved", call_endpoint="serve")),
    ),
    "Lambda outside of a safe-mode scope": (
        "CVE-2026-12481",
        "from_config() treats an unset safe mode as off",
        model(layer("TimeDistributed", layer=layer("Lambda", function=LAMBDA))),
    ),
    "layer name that is a path": (
        "CVE-2026-12479",
        "folders are made of layer names when a model is saved or loaded",
        model(dense(name="..")),
    ),
    "layer name with a path in it": ("CVE-2026-12479", "the same", graph({**node(dense(), CALL), "name": "../../y"})),
    # -- ideas: arguments that can contain an object
    "activation": ("idea", "a function as an activation", model(dense(activation=SYSTEM))),
    "activation lambda": ("idea", "", model(dense(activation=LAMBDA))),
    "activation by dotted name": ("idea", "", model(dense(activation="os.system"))),
    "activation of a package": ("idea", "a registered name", model(dense(activation="evil>f"))),
    "initializer": ("idea", "", model(dense(kernel_initializer=SYSTEM))),
    "initializer of keras' helpers": ("idea", "", model(dense(kernel_initializer=layer("get_file", "keras.utils")))),
    "initializer value": (
        "idea",
        "an object inside of an initializer",
        model(dense(kernel_initializer=layer("Constant", "keras.initializers", value=LAMBDA))),
    ),
    "regularizer": ("idea", "", model(dense(kernel_regularizer=OPEN))),
    "constraint": ("idea", "", model(dense(bias_constraint=OPEN))),
    "activity regularizer": ("idea", "", model(dense(activity_regularizer=LAMBDA))),
    "dtype policy": ("idea", "", model(dense(dtype=layer("QuantizedDTypePolicy", "keras", source_name=OPEN)))),
    "dtype by name": ("idea", "", model(dense(dtype="string"))),
    "quantization": ("idea", "", model(dense(quantization_config=layer("Int8QuantizationConfig", "keras")))),
    "seed": ("idea", "", model(layer("Dropout", rate=0.5, seed=SYSTEM))),
    "recurrent cell": ("idea", "", model(layer("RNN", cell=layer("Lambda", function=LAMBDA)))),
    "stacked cells": (
        "idea",
        "",
        model(layer("RNN", cell=layer("StackedRNNCells", cells=[layer("Popen", "subprocess")]))),
    ),
    "backward layer": (
        "idea",
        "",
        model(layer("Bidirectional", layer=layer("LSTM", units=1), backward_layer=layer("Lambda", function=LAMBDA))),
    ),
    "model in a model": ("idea", "", model(model(model(layer("Lambda", function=LAMBDA))))),
    "functional in a wrapper": (
        "idea",
        "",
        model(layer("TimeDistributed", layer=graph(node(layer("Lambda", function=LAMBDA), CALL)))),
    ),
    "build_config": ("idea", "", model({**dense(), "build_config": {"input_shape": LAMBDA}})),
    "compile_config": ("idea", "", model({**dense(), "compile_config": {"loss": SYSTEM}})),
    "registered_name": ("idea", "", model({**dense(), "registered_name": "builtins>exec"})),
    "module of a dotted class": ("idea", "", model(layer("__class__.__bases__", "keras.layers"))),
    "class_name with a module": ("idea", "", model(layer("os.system", "keras.layers"))),
    "module with a trailing part": ("idea", "", model(layer("Dense", "keras.layers.os", units=1))),
    "keras.src": ("idea", "", model(layer("Dense", "keras.src.layers.core.dense", units=1))),
    "operation that calls a function": (
        "idea",
        "Map, WhileLoop and others of keras.ops call a function",
        graph(node(layer("Map", "keras.src.ops.core"), {"args": [SYSTEM, TENSOR], "kwargs": {}})),
    ),
    "operation with a function": (
        "idea",
        "the function is in the configuration",
        graph(node(layer("VectorizedMap", "keras.src.ops.core", function=SYSTEM), CALL)),
    ),
    "any name of a module of operations": (
        "idea",
        "modules import others: keras.src.ops.numpy has np and backend",
        graph(node(layer("np", "keras.src.ops.numpy"), CALL)),
    ),
    "operation of a module beside": (
        "idea",
        "only four modules have operations that compute",
        graph(node(layer("Resize", "keras.src.ops.image", size=[1, 1]), CALL)),
    ),
    "slice of objects": (
        "idea",
        "Keras builds what stands in a slice",
        graph(
            node(
                layer("GetItem", "keras.src.ops.numpy"),
                {
                    "args": [
                        TENSOR,
                        {"class_name": "__slice__", "config": {"start": OPEN, "stop": None, "step": None}},
                    ],
                    "kwargs": {},
                },
            )
        ),
    ),
    "constant array in a call": (
        "idea",
        "",
        graph(
            node(
                layer("Add", "keras.src.ops.numpy"),
                {
                    "args": [TENSOR, {"class_name": "__numpy__", "config": {"value": [CODE], "dtype": "object"}}],
                    "kwargs": {},
                },
            )
        ),
    ),
    "terabytes from a number": (
        "idea",
        "Full makes a tensor of any size",
        graph(node(layer("Full", "keras.src.ops.numpy", shape=[1 << 20, 1 << 20]), CALL)),
    ),
    "keras.ops": ("idea", "operators on tensors are also classes", model(layer("Multiply", "keras.src.ops.numpy"))),
    "tf": ("idea", "", model(layer("read_file", "tensorflow.io", filename="/etc/passwd"))),
    "Masking without a module": ("idea", "", model({"class_name": "Masking", "config": {}})),
    "class from the registry": ("idea", "", model({**dense(), "class_name": "Custom>Dense"})),
    "__typevar__": ("idea", "", model(dense(units={"class_name": "__typevar__", "config": {}}))),
    "__numpy__": ("idea", "", model(dense(units={"class_name": "__numpy__", "config": {"value": [1], "dtype": "O"}}))),
    "__tensor__": ("idea", "", model(dense(units={"class_name": "__tensor__", "config": {"value": 1, "dtype": "s"}}))),
    "__bytes__": ("idea", "", model(dense(units={"class_name": "__bytes__", "config": {"value": "x"}}))),
    "__ellipsis__": ("idea", "", model(dense(units={"class_name": "__ellipsis__", "config": {}}))),
    "slice": ("idea", "", model(dense(units={"class_name": "__slice__", "config": {"start": 0, "stop": 1}}))),
    "keyword in the graph": ("idea", "", graph(node(dense(), {"args": [TENSOR], "kwargs": {"mask": SYSTEM}}))),
    "history in the graph": (
        "idea",
        "",
        graph(node(dense(), {"args": [{**TENSOR, "config": {"shape": LAMBDA, "keras_history": ["x", 0, 0]}}]})),
    ),
    "output that is an object": ("idea", "", graph(node(dense(), CALL), output_layers=LAMBDA)),
    "FeatureSpace": ("idea", "", model(layer("FeatureSpace", "keras.utils", features={}))),
    "JaxLayer": ("idea", "", model(layer("JaxLayer", call_fn=SYSTEM))),
    "FlaxLayer": ("idea", "", model(layer("FlaxLayer", module=SYSTEM))),
    "HashedCrossing": ("idea", "not on the list, so not allowed", model(layer("HashedCrossing", num_bins=3))),
    "a class below": ("idea", "Model itself", {"module": "keras", "class_name": "Model", "config": {"layers": []}}),
    "no model": ("idea", "", layer("Lambda", function=LAMBDA)),
    # -- ideas: sizes
    "terabytes of weights": ("size", "units by inputs", model(dense(units=2**41))),
    "deep": ("size", "", model(json.loads('{"layer":' * 500 + "1" + "}" * 500))),
    "many": ("size", "", model(*[layer("Flatten")] * 20_000)),
    "a name": ("size", "", model(dense(name="x" * 100_000))),
    "Conv2D": ("size", "", model(layer("Conv2D", filters=2**30, kernel_size=[2**10, 2**10]))),
    "Embedding": ("size", "", model(layer("Embedding", input_dim=2**39, output_dim=2**39))),
    "STFT": ("size", "", model(layer("STFTSpectrogram", fft_length=2**30, frame_length=2**30, frame_step=1))),
}

# These pass the allow-list, because each layer is allowed.  The whole model is larger than any machine, so the trainer
# refuses it.
TOO_LARGE = {
    "weights by the next layer": model(dense(units=2**20), dense(units=2**20)),
    "build_config": model({**dense(units=2**20), "build_config": {"input_shape": [None, 2**24]}}),
    "forty layers": model(*[dense(units=2**16, name=f"d{n}") for n in range(40)]),
    "EinsumDense": model(layer("EinsumDense", equation="ab,bc->ac", output_shape=[2**39])),
    "Flatten": model(layer("RepeatVector", n=2**38), layer("Flatten"), dense(units=2**10)),
}

LOADED = compile_params("optimizer='adam', loss='mse', metrics=['mae']")
COMPILED: dict[str, Json] = {
    "loss": {"loss": SYSTEM},
    "loss by module": {"loss": {"module": "os", "class_name": "system", "config": {}}},
    "loss by dotted name": {"loss": "os.system"},
    "loss lambda": {"loss": LAMBDA},
    "a custom function's source": {"loss": {"class_name": "custom", "config": {"source": f"open({CANARY!r}, 'w')"}}},
    "a custom function nobody registered": {"loss": "evil@1"},
    "metric": {"metrics": [OPEN]},
    "metric wrapper": {"metrics": [layer("MeanMetricWrapper", "keras.metrics", fn=SYSTEM)]},
    "weighted metric": {"weighted_metrics": [LAMBDA]},
    "loss wrapper": {"loss": layer("LossFunctionWrapper", "keras.losses", fn=SYSTEM)},
    "optimizer": {"optimizer": {"class_name": "Popen", "module": "subprocess", "config": {}}},
    "inner optimizer": {"optimizer": {"class_name": "LossScaleOptimizer", "config": {"inner_optimizer": SYSTEM}}},
    "schedule": {"optimizer": {"class_name": "Adam", "config": {"learning_rate": SYSTEM}}},
    "schedule's module": {
        "optimizer": {
            "class_name": "Adam",
            "config": {"learning_rate": {"module": "os", "class_name": "CosineDecay", "config": {}}},
        }
    },
    "jit": {"jit_compile": True},
    "callbacks": {"callbacks": [SYSTEM]},
}

zipped = BytesIO()
with zipfile.ZipFile(zipped, "w") as made:
    made.writestr("config.json", json.dumps(model(layer("Lambda", function=LAMBDA))))
    made.writestr("model.weights.h5", b"\x89HDF\r\n\x1a\n")


class Exploit:
    def __reduce__(self) -> Any:
        return open, (CANARY, "w")


PICKLED = pickle.dumps(Exploit())
HDF5 = b"\x89HDF\r\n\x1a\n" + bytes(2000)
TEXTS: dict[str, str] = {
    "a .keras archive": zipped.getvalue().decode("latin-1"),
    "a pickle": PICKLED.decode("latin-1"),
    "YAML": "!!python/object/apply:os.system ['touch /tmp/x']",
    "brackets": "[" * 1_000_000,
    "a long number": '{"class_name": ' + "9" * 1_000_000 + "}",
    "NaN": '{"class_name": NaN}',
    "an escape": '{"class_name": "\\ud800", "config": {"layers": []}}',
    "17 MB": json.dumps("x" * (17 << 20)),
    "nothing": "",
}
# Keras reads weights from HDF5 files and its own archives.  cerebro_db reads only a checked header and plain numbers.
STATES: dict[str, tuple[str, bytes]] = {
    "HDF5, as large as it says": ("CVE-2026-0897 (a dataset declares petabytes)", HDF5),
    "HDF5 with external storage": ("CVE-2026-1669 (a dataset lies in another file)", HDF5 + b"/etc/passwd\0"),
    "HDF5 with a virtual dataset": ("CVE-2026-12480 (a dataset is a view of other files)", HDF5 + b"VDS /etc/passwd"),
    "HDF5 model": ("CVE-2025-9905 (a Lambda in the older format)", HDF5 + CODE.encode()),
    "pickle": ("idea", PICKLED),
    "npz": ("idea", zipped.getvalue()),
    "petabytes": (
        "CVE-2026-0897, in our format",
        framed(b'{"a":{"dtype":"F32","shape":[50000000,50000000],"data_offsets":[0,4]}}', bytes(4)),
    ),
    "petabytes, and offsets": (
        "CVE-2026-0897, in our format",
        framed(b'{"a":{"dtype":"F32","shape":[50000000,50000000],"data_offsets":[0,10000000000000000]}}', b""),
    ),
}


def test_the_corpus_is_complete() -> None:
    assert len(ARCHITECTURES) + len(TOO_LARGE) + len(COMPILED) + len(TEXTS) + len(STATES) >= 100
    numbers = {number.split()[0].rstrip(",") for number, *_ in [*ARCHITECTURES.values(), *STATES.values()]}
    assert {number for number in numbers if number.startswith("CVE")} == {
        "CVE-2024-3660", "CVE-2024-55459", "CVE-2025-1550", "CVE-2025-8747", "CVE-2025-9905", "CVE-2025-9906",
        "CVE-2025-12058", "CVE-2025-12060", "CVE-2025-49655", "CVE-2026-0897", "CVE-2026-1462", "CVE-2026-1669",
        "CVE-2026-12479", "CVE-2026-12480", "CVE-2026-12481",
    }  # fmt: skip


@pytest.fixture(autouse=True)
def unharmed() -> Iterator[None]:
    Path(CANARY).unlink(missing_ok=True)
    yield
    assert not os.path.exists(CANARY)


def refused_at_once(check: Any, *arguments: Any) -> str:
    started = time.process_time()
    with pytest.raises(CerebroError) as caught:
        check(*arguments)
    assert time.process_time() - started < 1
    assert len(caught.value.message) < 2000
    return caught.value.message


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_architectures(name: str) -> None:
    architecture = ARCHITECTURES[name][2]
    refused_at_once(allowlist.check, architecture)
    if name == "compile_config":  # Reading drops it, because Keras saves it with every compiled model.
        assert "system" not in json.dumps(keras_json.architecture(architecture))
        return
    refused_at_once(keras_json.architecture, architecture)
    refused_at_once(keras_json.architecture, json.dumps(architecture))


@pytest.mark.parametrize("name", COMPILED)
def test_compile_parameters(name: str) -> None:
    refused_at_once(check_compile, {**LOADED, **COMPILED[name]})


@pytest.mark.parametrize("name", TEXTS)
def test_texts(name: str) -> None:
    refused_at_once(keras_json.architecture, TEXTS[name])


@pytest.mark.parametrize("name", STATES)
def test_states(name: str) -> None:
    refused_at_once(state.read_header, STATES[name][1])


def test_a_trainer_refuses_them_itself(tmp_path: Path) -> None:
    """The order goes directly to the process that builds models, as if the server did not check anything."""
    trainer = Trainer(tmp_path)
    try:
        fine = {"architecture": model(dense()), "compile": LOADED, "fit": {}}
        parameters = trainer(Describe(fine)).parameters
        assert parameters == 5
        cases = [(name, architecture, LOADED) for name, (_, _, architecture) in ARCHITECTURES.items()]
        cases += [(name, model(dense()), {**LOADED, **changed}) for name, changed in COMPILED.items()]
        cases += [(name, architecture, LOADED) for name, architecture in TOO_LARGE.items()]
        slow = {}
        for name, architecture, compiled in cases:
            configuration = {"architecture": architecture, "compile": compiled, "fit": {}}
            started = cpu_seconds(trainer.process.pid)
            with pytest.raises(OrderFailed) as caught:
                trainer(Describe(configuration))
            assert caught.value.kind != "TrainerFailed", (name, caught.value)
            taken = cpu_seconds(trainer.process.pid) - started
            if taken > 1:
                slow[name] = taken
        assert not slow
        full, weights = Origin.FULL, Origin.WEIGHTS
        for name, (_, damaged) in STATES.items():
            (tmp_path / "state").write_bytes(damaged)
            for initial in (full, weights):
                with pytest.raises(OrderFailed) as caught:
                    trainer.data("d", LAYOUT, **DATA)
                    path = str(tmp_path / "state")
                    trainer.train(
                        fine, "d", StateRef(initial, "state", "0" * 64 if initial is full else None, path=path)
                    )
                assert caught.value.kind in ("CorruptState", "ConfigurationFailed", "BadData"), (name, caught.value)
        assert trainer(Describe(fine)).parameters == parameters
        open_files = [os.readlink(f"/proc/{trainer.process.pid}/fd/{fd}") for fd in os.listdir(
            f"/proc/{trainer.process.pid}/fd")]  # fmt: skip
        assert not [file for file in open_files if file.startswith("socket:")]
        status = Path(f"/proc/{trainer.process.pid}/status").read_text()
        (peak,) = [int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")]
        assert peak < 2 << 20  # kB
    finally:
        trainer.close()


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


LAYOUT = {
    "inputs": [{"name": "x", "dtype": "float32", "shape": [4], "scale": 1.0}],
    "outputs": [{"name": "y", "dtype": "float32", "shape": [1], "kind": "real"}],
}
DATA = {"x": np.zeros((3, 4), "float32"), "y": np.zeros((3, 1), "float32")}
