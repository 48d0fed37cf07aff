"""Into which shards a model is cut, so that training it needs no more memory than there is.

What a shard needs is estimated from its shapes, and then measured with a batch (program.py).  The ratio of both is the
margin with which it is cut again if it needs more than there is.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cerebro_db.core.errors import OutOfResources
from cerebro_db.core.texts import counted
from cerebro_db.nn.models.dtypes import item_bytes
from cerebro_db.nn.shards.graph import GraphPiece, Shard, bytes_of, nodes_of, shards
from cerebro_db.nn.shards.steps import PART_BYTES, changes_parts

TEMPORARIES = 3  # copies of what it changes that an optimizer's step has in memory at once
# Of a process besides what is in shards: TensorFlow's threads, which have 60 MB of stacks and heaps, and the functions
# that it traces, which had 0.6 to 0.9 MB for each Dense layer that is cut, and up to 1.6 MB otherwise.
RESERVE = 64 << 20
GRAPH_BYTES = 3 << 19  # of a layer

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h
LARGE_PIECE = 8 << 20

MB = 1 << 20


@dataclass(frozen=True)
class Cost:
    """What a piece needs in memory, in bytes."""

    variables: int
    gradients: int
    slots: int
    activations: int  # of a batch
    largest: int  # weight
    part: int  # of a weight, that the optimizer changes at once where the model is cut
    part_slots: int

    @classmethod
    def of(cls, piece: GraphPiece, slot_bytes: dict[int, int], batch_size: int, optimizer: Any) -> Cost:
        """``slot_bytes``: of all slots of a weight, by its identity."""
        trained = [one for one in piece.variables if one.trainable]
        parts = [
            bytes_of(one) if not changes_parts(optimizer, one) else min(PART_BYTES, bytes_of(one)) for one in trained
        ]
        ratios = [slot_bytes.get(id(one), 0) / max(1, bytes_of(one)) for one in trained]
        return cls(
            variables=piece.bytes,
            gradients=sum(map(bytes_of, trained)),
            slots=sum(slot_bytes.get(id(one), 0) for one in trained),
            activations=batch_size * sum(_activations(node) for node in piece.nodes),
            largest=max(map(bytes_of, trained), default=0),
            part=max(parts, default=0),
            part_slots=max((int(part * ratio) for part, ratio in zip(parts, ratios)), default=0),
        )

    def to_predict(self) -> Cost:
        return replace(self, gradients=0, slots=0, largest=0, part=0, part_slots=0)


@dataclass(frozen=True)
class ShardPlan:
    """Shards, and the bytes that training with them needs beside the process itself."""

    shards: list[Shard]
    needed: int
    graphs: int  # of these, those that do not depend on the sizes of the layers
    ahead: bool  # whether what comes next is read meanwhile
    largest: str  # the piece that needs most


class Planner:
    """Cuts one model for one batch size."""

    def __init__(
        self, model: Any, pieces: Sequence[GraphPiece], slots: Sequence[tuple[Any, Any]], batch_size: int
    ) -> None:
        self._model, self._pieces, self._batch_size = model, list(pieces), batch_size
        slot_bytes: dict[int, int] = {}
        for slot, weight in slots:
            slot_bytes[id(weight)] = slot_bytes.get(id(weight), 0) + bytes_of(slot)
        optimizer = model.optimizer if slots else None
        self._costs = [Cost.of(piece, slot_bytes, batch_size, optimizer) for piece in self._pieces]
        self.margin = 1.0  # the ratio of what was measured to what was estimated

    @property
    def uncut(self) -> int:
        """Bytes that the model needs without a cut."""
        return self.sized + self._graphs

    @property
    def sized(self) -> int:
        """Those of them that depend on the sizes of its layers, which a cut makes fewer."""
        costs = self._costs if self._model.compiled else [cost.to_predict() for cost in self._costs]
        kept = sum(cost.variables + cost.gradients + cost.slots for cost in costs)
        largest = max((cost.largest for cost in costs), default=0)
        activations = sum(cost.activations for cost in costs)
        return int(self.margin * (kept + max(activations, TEMPORARIES * largest)))

    def to_predict(self, rows: int) -> int:
        """Bytes besides, that the whole model needs to predict so many rows at once; a cut model takes fewer rows.

        Keras keeps what each layer gives until the last one has been computed.
        """
        nodes = [node for piece in self._pieces for node in piece.nodes]
        given = [sum(map(row_bytes, node.outputs)) for node in nodes]
        return rows * (sum(given) + 2 * max(given))

    def fits(self, room: int) -> bool:
        """Whether there is a cut with which it fits into so many bytes."""
        try:
            self.fitting(room)
        except OutOfResources:
            return False
        return True

    def into(self, number: int, *, ahead: bool = True) -> ShardPlan:
        """Into so many shards, or as many as there are pieces."""
        groups = self._balanced(min(number, len(self._pieces)))
        found = shards(self._model, [[self._pieces[place] for place in group] for group in groups])
        largest = max(range(len(self._costs)), key=lambda place: self._weight(place))
        return ShardPlan(found, self._needed(groups, found, ahead), self._graphs, ahead, self._pieces[largest].name)

    def fitting(self, room: int) -> ShardPlan:
        """Into as few shards as fit into so many bytes."""
        least: ShardPlan | None = None
        for ahead in (True, False):
            number = 1
            while number <= len(self._pieces):
                plan = self.into(number, ahead=ahead)
                if plan.needed <= room:
                    return plan
                if least is None or plan.needed < least.needed:
                    least = plan
                number += max(1, number // 8)
        assert least is not None
        if not self._model.compiled and any(cost.gradients for cost in self._costs):
            # It only predicts. Shards that could be trained leave more room for other models, but it does without.
            self._costs = [cost.to_predict() for cost in self._costs]
            return self.fitting(room)
        if room <= self._graphs:
            layers = counted(sum(len(piece.nodes) for piece in self._pieces), "layer")
            raise OutOfResources(
                f"the operations of {layers} take a trainer about {-(-self._graphs // MB):,} MB, whatever their sizes,"
                f" and it may use {max(0, room) // MB:,} MB for a model",
                hint="Give trainers more memory, or take fewer layers.",
            )
        raise OutOfResources(
            f"the layer {least.largest} alone needs about {-(-least.needed // MB):,} MB in a trainer to train it with"
            f" batches of {self._batch_size} rows, and there are {max(0, room) // MB:,} MB",
            hint="Give trainers more memory, take a smaller batch_size, or make the layer smaller: a layer is not cut.",
        )

    @property
    def _graphs(self) -> int:
        return RESERVE + GRAPH_BYTES * sum(len(piece.nodes) for piece in self._pieces)

    def _weight(self, place: int) -> int:
        cost = self._costs[place]
        return cost.variables + cost.gradients + cost.activations

    def _balanced(self, number: int) -> list[list[int]]:
        """Runs of pieces, so many or one fewer, whose largest sum is as small as it can be."""
        weights = [self._weight(place) for place in range(len(self._costs))]

        def runs(most: int) -> list[list[int]]:
            found: list[list[int]] = [[]]
            total = 0
            for place, weight in enumerate(weights):
                left, open_ = len(weights) - place, number - len(found)
                if found[-1] and (total + weight > most or left <= open_):
                    found.append([])
                    total = 0
                found[-1].append(place)
                total += weight
            return found

        low, high = max(weights), sum(weights)
        while low < high:
            middle = (low + high) // 2
            if len(runs(middle)) <= number:
                high = middle
            else:
                low = middle + 1
        return runs(low)

    def _needed(self, groups: Sequence[Sequence[int]], found: Sequence[Shard], ahead: bool) -> int:
        costs = [[self._costs[place] for place in group] for group in groups]
        variables = [sum(one.variables for one in each) for each in costs]
        part = max(one.part for one in self._costs)
        slots = max(one.part_slots for one in self._costs)
        step = slots + (1 + TEMPORARIES) * part
        computing = max(
            own + sum(one.gradients for one in each) + max(sum(one.activations for one in each), step)
            for own, each in zip(variables, costs)
        )
        waiting = max(*variables, slots) + part + slots if ahead and len(groups) > 1 else 0
        kept = {id(tensor): row_bytes(tensor) for shard in found for tensor in shard.entering}
        widest = max(sum(map(row_bytes, shard.entering)) for shard in found)
        carried = self._batch_size * (sum(kept.values()) + 2 * widest)  # with gradients of what enters and leaves
        return int(self.margin * (computing + waiting + carried)) + self._graphs


def row_bytes(tensor: Any) -> int:
    return math.prod(size or 1 for size in tensor.shape[1:]) * item_bytes(str(tensor.dtype))


def _activations(node: Any) -> int:
    """Bytes of a row that a step has in memory between its forward and its backward pass, with their gradients."""
    operation, outputs = node.operation, sum(map(row_bytes, node.outputs))
    inputs = sum(map(row_bytes, node.input_tensors))
    kind = type(operation).__name__
    if kind == "MultiHeadAttention":
        steps = [tensor.shape[1] or 1 for tensor in node.input_tensors if len(tensor.shape) == 3] or [1]
        scores = operation._num_heads * steps[0] * steps[-1] * 4
        # Keras multiplies row by row: there are the gradients of the kernels for each row, before they are added up.
        kernels = sum(map(bytes_of, operation.trainable_variables))
        return 3 * scores + 8 * max(inputs, outputs) + kernels
    if kind in ("LSTM", "GRU", "SimpleRNN", "Bidirectional", "RNN", "ConvLSTM1D", "ConvLSTM2D", "ConvLSTM3D"):
        first = node.input_tensors[0]
        units = outputs if len(node.outputs[0].shape) == len(first.shape) else outputs * (first.shape[1] or 1)
        return 16 * units + 2 * inputs
    if kind == "Sequential" or kind == "Functional":
        return sum(map(_activations, nodes_of(operation)))
    return 3 * outputs


# -- what a process has in memory -----------------------------------------------------------------------------


def used() -> int:
    """Bytes of private memory, as a limit counts them (cerebro.set_limits).

    What is resident is close to it, but for the code of libraries, which all trainers share.
    """
    with contextlib.suppress(OSError, ValueError, StopIteration), open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("VmData:"))
    return 0


@contextlib.contextmanager
def measured() -> Iterator[Callable[[], int]]:
    """The function tells the largest ``used`` since the beginning."""
    most, ended = [used()], threading.Event()

    def look() -> None:
        while not ended.wait(0.002):
            most[0] = max(most[0], used())

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    try:
        yield lambda: max(most[0], used())
    finally:
        ended.set()
        watcher.join()


def give_back_memory() -> None:
    """From now on have malloc() give large pieces of memory back when they are free.

    Else they stay in the heap: a model of 1 GB in shards of 50 MB had 360 MB after some batches, and so it has 95 MB.
    Other pieces of the kernel's memory take longer to get (a batch of small layers takes up to twice as long).
    """
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        for parameter in (M_MMAP_THRESHOLD, M_TRIM_THRESHOLD):
            libc.mallopt(parameter, LARGE_PIECE)
