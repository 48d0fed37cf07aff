"""The contract of engines: equal seeds give equal bits, whatever the slabs are, and a state can be continued.

A process has one engine, so each check runs in a new one: ``python -m cerebro_db.testing.engines NAME FOLDER``.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.engines import ENGINES
from ..core.parameters.params import compile_params

if TYPE_CHECKING:
    import numpy as np

    from ..nn.engines.base import Engine, Program
    from ..nn.rows.data import Dataset

ROWS, BATCH = 50, 8  # the last batch has fewer rows
LAYOUT: dict[str, Any] = {
    "inputs": [{"name": "x", "dtype": "float32", "shape": [3], "scale": 1.0}],
    "outputs": [{"name": "y", "dtype": "int16", "shape": [2], "kind": "class"}],
}
CONFIGURATION: dict[str, Any] = {
    "architecture": {
        "module": "keras",
        "class_name": "Sequential",
        "config": {
            "name": "model",
            "layers": [
                {"module": "keras.layers", "class_name": name, "config": config}
                for name, config in (
                    ("InputLayer", {"name": "rows", "batch_shape": [None, 3], "dtype": "float32"}),
                    ("Dense", {"name": "hidden", "units": 8, "activation": "relu"}),
                    ("Dense", {"name": "out", "units": 2, "activation": "softmax"}),
                )
            ],
        },
    },
    "compile": compile_params("optimizer='Adam(lr=0.01)', loss='categorical_crossentropy', metrics=['accuracy']"),
    "fit": {"batch_size": BATCH},
}


class EngineContract:
    """The test of an engine.  A subclass has the name of an engine that is installed."""

    engine: str

    def test_it_is_found_by_its_name(self) -> None:
        assert self.engine in ENGINES

    def test_it_trains_in_a_process_of_its_own(self, tmp_path: Path) -> None:
        command = [sys.executable, "-m", __name__, self.engine, str(tmp_path)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert done.returncode == 0, done.stdout


def rows(folder: Path) -> Dataset:
    import numpy as np

    from ..nn.rows.data import Dataset

    inputs = np.random.default_rng(1).standard_normal((ROWS, 3)).astype("f4")
    targets = np.eye(2, dtype="i2")[(inputs.sum(axis=1) > 0).astype(int)]
    files: dict[str, str | bytes] = {"x": str(folder / "x"), "y": str(folder / "y")}
    for name, array in (("x", inputs), ("y", targets)):
        array.tofile(str(files[name]))
    return Dataset(LAYOUT, ROWS, files)


def trained(engine: Engine, data: Dataset, state: list[np.ndarray] | None, cuts: list[int]) -> Program:
    """A program after a pass in slabs that end at ``cuts``.  ``state``: its first state; None: that of a seed."""
    from ..nn.rows.data import Slab, row_order

    program = engine.program(CONFIGURATION, LAYOUT, 5)
    program.initialise(CONFIGURATION, 5)
    if state is not None:
        program.set_all(state)
    program.prepare("train", data, BATCH, ROWS)
    program.start_metrics()
    for start, end in zip([0, *cuts], [*cuts, ROWS]):
        program.train(Slab(data, row_order(ROWS, 3, 1), start, end), BATCH)
    return program


def values(program: Program) -> list[bytes]:
    import numpy as np

    return [np.asarray(one).tobytes() for one in program.get_all()]


def check(name: str, folder: Path) -> None:
    import numpy as np

    from ..nn.engines.base import open_engine
    from ..nn.rows.data import Slab

    data = rows(folder)
    engine = open_engine(name, threads=1, deterministic=True)
    engine.warm_up()
    assert engine.versions()["engine"] == name and {"keras", "engine_version"} <= engine.versions().keys()
    assert engine.devices() and not engine.is_out_of_memory(ValueError("another error"))
    first = trained(engine, data, None, [])
    begun = engine.program(CONFIGURATION, LAYOUT, 5)
    begun.initialise(CONFIGURATION, 5)
    assert values(first) != values(begun), "training changes the state"
    assert values(trained(engine, data, None, [])) == values(first), "a seed gives the same bits again"
    assert values(trained(engine, data, None, [BATCH, 4 * BATCH])) == values(first), "slabs have no influence"
    first = trained(engine, data, None, [])
    state = [np.array(one) for one in first.get_all()]
    further, resumed = values(trained(engine, data, state, [])), values(trained(engine, data, state, [BATCH]))
    assert further == resumed != values(first), "a state is all that is needed to go on"
    before = values(first)
    counted = []
    for cuts in ([], [3 * BATCH]):
        first.prepare("evaluate", data, BATCH, ROWS)
        first.start_metrics()
        for start, end in zip([0, *cuts], [*cuts, ROWS]):
            first.evaluate(Slab(data, None, start, end), BATCH)
        counted.append(first.metric_values(first.metric_states())["accuracy"])
    assert counted[0] == counted[1], "metrics add up over slabs"
    first.prepare("predict", data, BATCH, ROWS)
    (output,) = first.predict(Slab(data, None, 0, ROWS), BATCH)
    assert output.shape == (ROWS, 2) and output.dtype == np.float32
    right = np.argmax(output, axis=1) == np.argmax(data.outputs[0], axis=1)
    assert abs(float(right.mean()) - counted[0]) < 1e-6, "evaluation and prediction agree"
    assert values(first) == before, "neither changes the state"


if __name__ == "__main__":
    check(sys.argv[1], Path(sys.argv[2]))
