"""Predicting on a segment: rows are received chunk by chunk, each chunk goes to the trainer, its answers return."""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Iterator
from pathlib import Path
from typing import Callable, Optional

from cerebro_db.core.errors import BadData, InvalidArgument, TrainerFailed
from cerebro_db.core.protocol import (
    BeginPrediction,
    CustomFunction,
    Predict,
    Predicted,
    PredictedOutput,
    PredictMore,
    StateRef,
)

# The columns of the type cerebro_internal._prediction: output, rank, classes, and numbers (both as float32).
Answer = tuple[int, Optional[int], Optional[bytes], bytes]

Output = tuple[PredictedOutput, bytes]  # what a trainer says of an output, and its numbers

FEW_BYTES = 64 << 10  # of rows; more of them travel sooner through files
FEW_ROWS = 50  # a frame has room for the answers of so many rows; more rows can have answers of 100 MB


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
        obey_more: Callable[[PredictMore], list[Output] | None],
        is_sure: Callable[[], bool],
        renew: Callable[[], bool],
    ) -> None:
        """``state``: the order's, with its path; ``obey``: has the trainer predict.

        ``obey_more``: has the trainer predict a few rows with the weights that it holds; None if it holds none.
        ``is_sure``: whether the trainer cannot end its rest just now; ``renew``: have another trainer in the place of
        one that may have ended while it rested, and say whether there is one.
        """
        self._folder, self._order, self._functions, self._obey = folder, order, functions, obey
        self._obey_more, self._is_sure, self._renew = obey_more, is_sure, renew
        self.state = state
        self._wrote = False  # files
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
            try:
                outputs = self._predicted(rows, variables, rest)
            except TrainerFailed:
                if not self._renew():
                    raise
                outputs = self._predicted(rows, variables, rest)
        except BadData as error:
            error.message = f"prediction: {error.message}"
            raise
        answered = rows * (self._order.steps or 1)
        return [
            answer for number, (output, its) in enumerate(outputs) for answer in _answers(number, output, its, answered)
        ]

    def _predicted(self, rows: int, variables: list[bytes | None], rest: int | None) -> list[Output]:
        if rows <= FEW_ROWS and sum(len(payload or b"") for payload in variables) <= FEW_BYTES:
            values = [b2a_base64(payload or b"", newline=False).decode() for payload in variables]
            more = self._obey_more(PredictMore(rows, values, rest))
            if more is not None:
                return more
        inputs, files = self._order.inputs, {}
        for number, (variable, payload) in enumerate(zip(inputs, variables)):
            path, self._wrote = self._path(f"in.{number}"), True
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
            explanation=self._order.explanation,
            steps=self._order.steps,
        )
        outputs = self._obey(order).outputs
        return [(output, self._path(f"out.{number}").read_bytes()) for number, output in enumerate(outputs)]

    def close(self) -> None:
        if not self._wrote:
            return
        for path in self._folder.glob("predict.*"):
            path.unlink(missing_ok=True)  # a trainer that has rested long enough removes it, too

    def _path(self, name: str) -> Path:
        return self._folder / f"predict.{name}"


def _answers(number: int, output: PredictedOutput, payload: bytes, rows: int) -> Iterator[Answer]:
    if output.quantiles:  # in the place of the classes; of the numbers, that which stands for all
        yield number, None, payload, payload[4 * rows * output.middle :][: 4 * rows]
        return
    if output.ranks is None:
        yield number, None, None, payload
        return
    lines = [payload[start : start + 4 * rows] for start in range(0, len(payload), 4 * rows)]
    for rank, (classes, numbers) in enumerate(zip(lines[: output.ranks], lines[output.ranks :]), start=1):
        yield number, rank, classes, numbers
