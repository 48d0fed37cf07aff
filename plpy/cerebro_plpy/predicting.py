"""What predicting needs on a segment: rows come in one by one, go to the trainer in slabs, answers come out."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cerebro_db.core import packing
from cerebro_db.core.errors import BadData

if TYPE_CHECKING:
    from .segment import Segment

SLAB_BYTES = 16 << 20
HANDLE = "rows to predict"


class Prediction:
    """One model applied to the rows of one statement."""

    def __init__(self, segment: Segment, job: dict[str, Any]) -> None:
        self.segment = segment
        self.configuration = job["configuration"]
        self.functions = segment.functions(self.configuration)
        self.inputs = job["inputs"]
        self.state = segment.state(job["state"])
        row = sum(packing.ITEM_BYTES[v["dtype"]] * packing.elements(v["shape"]) for v in self.inputs)
        self.slab_rows = max(1, min(65536, SLAB_BYTES // max(row, 1)))
        self.ids: list[str] = []
        self.values: list[list[bytes]] = [[] for _ in self.inputs]
        self.answers: list[tuple[list[str], list[tuple[int, array]]]] = []

    def row_in(self, row_id: str, values: list[bytes]) -> int:
        self.ids.append(row_id)
        for column, value in zip(self.values, values):
            column.append(value)
        if len(self.ids) >= self.slab_rows:
            self.predict()
        return 1

    def predict(self) -> None:
        if not self.ids:
            return
        ids, self.ids = self.ids, []
        columns, self.values = self.values, [[] for _ in self.inputs]
        self.segment.data_forget(HANDLE)
        for variable, values in zip(self.inputs, columns):
            self.segment.data_in(HANDLE, variable["name"], encoded(variable, values))
        self.segment.data_ready(HANDLE, {"inputs": self.inputs, "outputs": []}, len(ids), None)
        out = self.segment.folder / "predictions"
        order = {
            "order": "predict",
            "configuration": self.configuration,
            "functions": self.functions,
            "handle": HANDLE,
            "state": self.state,
            "out": str(out),
        }
        result = self.segment.running().order(order, self.segment.listen)
        self.answers.append(
            (ids, [read_floats(Path(f"{out}.{i}"), found["shape"]) for i, found in enumerate(result["outputs"])])
        )

    def answers_out(self) -> Iterator[tuple[str, int, list[float]]]:
        """What ``predict`` has found so far, which is all if it was called after the last row."""
        self.segment.data_forget(HANDLE)
        self.segment.drop_arrived()
        for ids, outputs in self.answers:
            for output, (width, values) in enumerate(outputs):
                for row, row_id in enumerate(ids):
                    yield row_id, output, values[row * width : (row + 1) * width].tolist()


def encoded(variable: dict[str, Any], values: list[bytes]) -> bytes:
    encoder = packing.ArrayEncoder(variable["shape"], variable["dtype"], variable.get("factor", 1.0))
    try:
        encoder.add(values)
        return encoder.take()
    except packing.Unusable as wrong:
        problem = {
            "shape": f"an array of shape {list(wrong.shape)} where the model was trained on {variable['shape']}",
            "null": "an array with NULL elements",
            "finite": "values that are NaN or infinite",
        }[wrong.what]
        raise BadData(
            f"madlib_keras_predict: column '{variable['name']}' has {problem}.",
            hint="independent_varname must name what the model was trained on, in the same order.",
        ) from None


def read_floats(path: Path, shape: list[int]) -> tuple[int, array]:
    values = array("f")
    values.frombytes(path.read_bytes())
    return packing.elements(shape), values
