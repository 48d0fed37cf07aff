"""What predicting needs on a segment: rows come in chunk by chunk, each goes to the trainer, its answers come back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

from cerebro_db.core.errors import BadData

if TYPE_CHECKING:
    from .segment import Segment

# As cerebro._prediction has it: output, rank, classes and numbers, the two being float32 side by side.
Answer = tuple[int, Optional[int], Optional[bytes], bytes]


class Prediction:
    """One model applied to the rows of one statement."""

    def __init__(self, segment: Segment, job: dict[str, Any]) -> None:
        self.segment = segment
        self.ticket: str = job["state"]["ticket"]
        self.order = {
            "order": "predict",
            "configuration": job["configuration"],
            "functions": segment.functions(job["configuration"]),
            "inputs": job["inputs"],
            "best": job["best"],
            # The trainer has it after the first chunk, and knows it by that name.
            "state": {**segment.state(job["state"]), "token": self.ticket},
        }

    def predict(self, rows: int, variables: list[bytes | None]) -> list[Answer]:
        """Of so many rows, the bytes of their arrays one after the other, but for those that are NULL; per input."""
        files = {variable["name"]: str(self._path(f"in.{n}")) for n, variable in enumerate(self.order["inputs"])}
        for path, payload in zip(files.values(), variables):
            Path(path).write_bytes(payload or b"")
        order = {**self.order, "rows": rows, "files": files, "out": str(self._path("out"))}
        try:
            outputs = self.segment.running().order(order, self.segment.listen)["outputs"]
        except BadData as error:
            error.message = f"madlib_keras_predict: {error.message}"
            raise
        return [answer for number, found in enumerate(outputs) for answer in self._answers(number, found, rows)]

    def _answers(self, output: int, found: dict[str, Any], rows: int) -> Iterator[Answer]:
        payload = self._path(f"out.{output}").read_bytes()
        ranks = found.get("ranks")
        if ranks is None:
            yield output, None, None, payload
            return
        lines = [payload[start : start + 4 * rows] for start in range(0, len(payload), 4 * rows)]
        for rank, (classes, numbers) in enumerate(zip(lines[:ranks], lines[ranks:]), start=1):
            yield output, rank, classes, numbers

    def close(self) -> None:
        self.segment.drop_arrived([self.ticket])
        for path in self.segment.folder.glob("predict.*"):
            path.unlink()

    def _path(self, name: str) -> Path:
        return self.segment.folder / f"predict.{name}"
