"""Predicting on a segment: rows are received chunk by chunk, each chunk goes to the trainer, its answers return."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Callable, Optional

from cerebro_db.core.errors import BadData, InvalidArgument, TrainerFailed
from cerebro_db.core.protocol import BeginPrediction, CustomFunction, Predict, Predicted, PredictedOutput, StateRef

# The columns of the type cerebro._prediction: output, rank, classes, and numbers (both as float32).
Answer = tuple[int, Optional[int], Optional[bytes], bytes]


class SegmentPrediction:
    """One model applied to the rows of one statement."""

    def __init__(
        self,
        folder: Path,
        order: BeginPrediction,
        state: StateRef,
        functions: list[CustomFunction],
        obey: Callable[[Predict], Predicted],
        *,
        is_sure: Callable[[], bool],
        renew: Callable[[], bool],
    ) -> None:
        """``state``: the order's, with its path; ``obey``: has the trainer predict.

        ``is_sure``: whether the trainer cannot end its rest just now; ``renew``: have another trainer in the place of
        one that may have ended while it rested, and say whether there is one.
        """
        self._folder, self._order, self._functions, self._obey = folder, order, functions, obey
        self._is_sure, self._renew = is_sure, renew
        self.state = state
        self.send_weights: Callable[[], None] | None = None  # again, to another trainer

    @property
    def received(self) -> list[str]:
        """The name of the received state."""
        return [] if self.state.name is None else [self.state.name]

    def predict(self, rows: int, variables: list[bytes | None], rest: int | None = None) -> list[Answer]:
        """The answers for so many rows; per input the bytes of the rows' arrays, without those that are NULL.

        ``rest``: these are the last rows, and the trainer rests for so many seconds when it has answered.
        """
        expected = len(self._order.inputs)
        if rows < 1 or len(variables) != expected:
            raise InvalidArgument(f"a model of {expected} inputs cannot predict {rows} rows of {len(variables)}")
        if not self._is_sure():
            self._renew()
        try:
            outputs = self._predicted(rows, variables, rest)
        except TrainerFailed:
            if not self._renew():
                raise
            outputs = self._predicted(rows, variables, rest)
        return [answer for number, output in enumerate(outputs) for answer in self._answers(number, output, rows)]

    def _predicted(self, rows: int, variables: list[bytes | None], rest: int | None) -> list[PredictedOutput]:
        inputs, files = self._order.inputs, {}
        for number, (variable, payload) in enumerate(zip(inputs, variables)):
            path = self._path(f"in.{number}")
            path.write_bytes(payload or b"")
            files[variable.name] = str(path)
        order = Predict(
            configuration=self._order.configuration,
            state=self.state,
            out=str(self._path("out")),
            best=self._order.best,
            inputs=inputs,
            rows=rows,
            files=files,
            functions=self._functions,
            rest=rest,
        )
        try:
            return self._obey(order).outputs
        except BadData as error:
            error.message = f"prediction: {error.message}"
            raise

    def close(self) -> None:
        for path in self._folder.glob("predict.*"):
            path.unlink(missing_ok=True)  # a trainer that has rested long enough removes it, too

    def _answers(self, number: int, output: PredictedOutput, rows: int) -> Iterator[Answer]:
        payload = self._path(f"out.{number}").read_bytes()
        if output.ranks is None:
            yield number, None, None, payload
            return
        lines = [payload[start : start + 4 * rows] for start in range(0, len(payload), 4 * rows)]
        for rank, (classes, numbers) in enumerate(zip(lines[: output.ranks], lines[output.ranks :]), start=1):
            yield number, rank, classes, numbers

    def _path(self, name: str) -> Path:
        return self._folder / f"predict.{name}"
