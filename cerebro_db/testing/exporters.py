"""The contract of exporters: the file exists, and its predictions are those of the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..client.models import samples
from ..client.models.model_files import TOLERANCES, WRITERS, ForExport

DOCUMENT: dict[str, Any] = {
    "inputs": [
        {"place": 0, "input": "x", "input_shape": [3], "input_dtype": "float32", "shape": [3], "dtype": "float32",
         "preparation": {"kind": "numbers"}}
    ],
    "outputs": [{"name": "y", "output": 0, "classes": ["a", "b"]}],
}  # fmt: skip


class ExporterContract:
    """The test of an exporter.  A subclass has the ending of its files, with the dot."""

    ending: str

    def test_the_file_predicts_what_the_model_predicts(self, tmp_path: Path) -> None:
        import keras

        inputs = keras.Input((3,), name="x")
        model = keras.Model(inputs, keras.layers.Dense(2, "softmax")(keras.layers.Dense(4, "relu")(inputs)))
        drawn = samples.drawn(DOCUMENT)
        expected = samples.answers(DOCUMENT, [model.predict(drawn["x"], verbose=0)])
        unstored: Any = None  # an exporter has the model, the document and the sample; ours read tables, too
        given = ForExport(unstored, model, DOCUMENT, samples.SampleRows(drawn, expected, "drawn inputs"))
        path = tmp_path / f"model{self.ending}"
        compute = WRITERS[self.ending](given, path)
        assert path.exists()
        assert samples.difference(DOCUMENT, given.sample, compute) <= TOLERANCES.get(self.ending, 1e-4)
