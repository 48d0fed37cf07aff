"""A joint visit: the trainers of several segments train one model, each with the gradients of its own rows.

A minibatch takes from each segment its share of the rows.  What a segment adds to the minibatch's gradient is the
gradient of the mean loss of its rows, times their share in the minibatch: the sum over the segments is the gradient of
the mean loss of the whole minibatch, as one process with all rows would compute it.  Every trainer adds the parts up in
the order of the segments and makes the same step, so all of them have the same weights.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from cerebro_db.core.errors import ConfigurationFailed, InvalidArgument, WrongState
from cerebro_db.core.models import metrics
from cerebro_db.core.protocol import (
    BeginJoint,
    EndJoint,
    JointStep,
    Origin,
    StepJoint,
    TrainedMember,
    TrainedVisit,
)
from cerebro_db.core.trainers.frames import LARGEST_FRAME
from cerebro_db.nn import metric_states, state_file
from cerebro_db.nn.clocks import Clock
from cerebro_db.nn.fit_parameters import Fit
from cerebro_db.nn.orders.training import row_orders
from cerebro_db.nn.programs import Programs
from cerebro_db.nn.rows.data import Dataset, Slab

ROOM_FOR_REST = 1 << 20  # bytes of an order, besides gradients


def counts_before(sizes: Sequence[int], end: int) -> list[int]:
    """How many of the first ``end`` rows of all segments lie on each segment.

    The rows of each segment are spread evenly: row j of n has its place at (j + 1/2) / n of the whole.  Rows at one
    place come in the order of their segments.  So a minibatch has of each segment its share, but for a row or two.
    """
    rows = sum(sizes)
    # Those before end / rows of the whole are nearly as many; rows at the edge are added or taken away, one by one.
    found = [min(size, max(0, -((rows - 2 * end * size) // (2 * rows)))) for size in sizes]
    while (missing := end - sum(found)) != 0:
        step, sign = (1, 1) if missing > 0 else (-1, -1)
        movable = [place for place, size in enumerate(sizes) if 0 <= found[place] + step <= size]
        edge = min(movable, key=lambda place: (sign * Fraction(2 * found[place] + step, sizes[place]), sign * place))
        found[edge] += step
    return found


class JointVisit:
    """The part of one trainer in a joint visit."""

    def __init__(
        self,
        order: BeginJoint,
        programs: Programs,
        dataset: Dataset,
        report: Callable[[int, int], None],
        listen: Callable[[], None],
    ):
        """``report``: gets the rows of all segments that are trained, and those of the visit."""
        self.order, self.programs, self.report, self.listen = order, programs, report, listen
        self.clock = Clock()
        configuration, member = order.configuration, order.member
        self.chosen = dataset.rows_of(member.fold, True, member.span)
        size = dataset.rows if self.chosen is None else len(self.chosen)
        if size != order.rows[order.place]:
            raise InvalidArgument(f"this segment has {size} rows of the model, not {order.rows[order.place]}")
        self.fit = Fit.of(configuration)
        self.ready = programs.ready(configuration, dataset.layout, member.seed, rows=dataset)
        self.program = self.ready.program
        self.program.require_values(dataset)
        self.program.require_joint()
        if self.program.measures_groups and member.span is not None and member.state.origin is Origin.SEED:
            raise ConfigurationFailed(
                "several segments cannot measure a group at the same time",
                hint="Leave out the parameter group_statistics, or the option parallel.",
            )
        self.clock.lap("build")
        self.epoch_rows = self.fit.rows_of(sum(order.rows))
        self.batches = math.ceil(self.epoch_rows / self.fit.batch_size)  # of an epoch
        self.rows, self.steps = self.epoch_rows * self.fit.epochs, self.batches * self.fit.epochs
        programs.load(self.ready, configuration, member.state, member.seed)
        self.ready.forget_state()
        self.program.vary_seeds(order.place)
        self.program.start_metrics()
        self.clock.lap("load")
        self.rows_of_steps = programs.rows_of_steps(self.ready, dataset, listen)
        self.done = self.rows_done = 0
        self.mine: list[np.ndarray] | None = None  # what this segment has added to the minibatch under way
        self.shapes: list[tuple[tuple[int, ...], np.dtype[Any]]] = []  # of the gradients
        self._order: np.ndarray | None = None

    def begin(self) -> JointStep:
        return self._next()

    def step(self, order: StepJoint) -> JointStep:
        """Make a step with what all segments have added, and begin with the next minibatch."""
        if order.step != self.done or self.done == self.steps:
            raise WrongState(f"the joint visit is at step {self.done} of {self.steps}, not at step {order.step}")
        if len(order.gradients) != len(self.order.rows):
            raise InvalidArgument(f"{len(order.gradients)} segments have added gradients, of {len(self.order.rows)}")
        total = self._total(order.gradients)
        with self.programs.configuration_errors():
            self.program.step(total)
        first, last = self._ends()
        self.rows_done += last - first
        self.done += 1
        self.report(self.rows_done, self.rows)
        return self._next()

    def end(self, order: EndJoint, token: str) -> tuple[TrainedMember, dict[str, float]]:
        """Write the state, and say what all segments have counted; also the seconds by stage."""
        if self.done < self.steps:
            raise WrongState(f"the joint visit is at step {self.done} of {self.steps}")
        if order.out is None:
            raise InvalidArgument("the order names no file for the outgoing state")
        seconds = self.clock.lap("train")
        self._keep_mean(order.statistics)
        with self.programs.configuration_errors():
            counted = metric_states.merged(order.metric_states)
            values = self.program.metric_values(counted)
        state = state_file.write(self.program, order.out, 0, token)
        self.clock.lap("save")
        self.ready.token, self.ready.sha256 = token, state.sha256
        loss = metrics.loss(counted.means)
        visit = TrainedVisit(
            rows=self.rows,
            steps=self.steps,
            loss=loss,
            metrics=values,
            metric_states=counted,
            finite=math.isfinite(loss),
            seconds=seconds,
        )
        return TrainedMember([visit], state), self.clock.laps

    def _next(self) -> JointStep:
        """What this segment adds to the next minibatch."""
        self.mine = None
        if self.done == self.steps:
            with self.programs.configuration_errors():
                counted = self.program.metric_states()
            written = [self.program.get(place) for place in self.program.statistics]
            return JointStep(
                self.steps, self.done, metric_states=counted, statistics=_encoded(written) if written else None
            )
        epoch, batch = divmod(self.done, self.batches)
        if not batch:
            seed, size = self.order.member.visits[0].shuffle_seed, self.order.rows[self.order.place]
            self._order = row_orders(size, [seed], epoch, self.fit.shuffle, self.chosen)
        first, last = self._ends()
        start, end = (counts_before(self.order.rows, one)[self.order.place] for one in (first, last))
        rows = end - start
        if not rows:
            self._learn_shapes()
            return JointStep(self.steps, self.done)
        share = rows / (last - first)
        with self.programs.configuration_errors():
            found = self._gradients(Slab(self.rows_of_steps, self._order, start, end))
        self.mine = [gradient * gradient.dtype.type(share) for gradient in found]
        self.shapes = [(gradient.shape, gradient.dtype) for gradient in found]
        text = _encoded(self.mine)
        if len(text) * (len(self.order.rows) - 1) > LARGEST_FRAME - ROOM_FOR_REST:
            raise ConfigurationFailed(
                f"its gradient of {sum(gradient.nbytes for gradient in self.mine) >> 20:,} MB is too large to be added"
                f" up over {len(self.order.rows)} segments in every minibatch",
                hint="Leave out the option parallel: then the model's state moves once per visit instead.",
            )
        return JointStep(self.steps, self.done, rows, text)

    def _gradients(self, batch: Slab) -> list[np.ndarray]:
        return self.program.gradients(self.programs.stepped(self.ready, batch, self.listen))

    def _ends(self) -> tuple[int, int]:
        """The rows of all segments before the minibatch under way, and up to its end."""
        first = self.done % self.batches * self.fit.batch_size
        return first, min(first + self.fit.batch_size, self.epoch_rows)

    def _learn_shapes(self) -> None:
        """Of the gradients that others add, if none of this segment's rows is in the first minibatch."""
        if not self.shapes:
            put_back = self.program.put_back()  # the row does not count
            with self.programs.configuration_errors():
                found = self._gradients(Slab(self.rows_of_steps, None, 0, 1))
                self.program.start_metrics()
            put_back()
            self.shapes = [(gradient.shape, gradient.dtype) for gradient in found]

    def _total(self, gradients: Sequence[str | None]) -> list[np.ndarray]:
        """The sum of what the segments have added, in their order."""
        total: list[np.ndarray] | None = None
        for place, text in enumerate(gradients):
            part = self.mine if place == self.order.place else None if text is None else _decoded(text, self.shapes)
            if part is not None:
                total = part if total is None else [one + more for one, more in zip(total, part)]
        if total is None:
            raise InvalidArgument("no segment has added to the minibatch's gradient")
        return total

    def _keep_mean(self, statistics: Sequence[str]) -> None:
        """Of what layers have written on each segment, such as moving averages, keep the mean, weighted by rows."""
        places = self.program.statistics
        if not places:
            return
        if len(statistics) != len(self.order.rows):
            raise InvalidArgument(f"{len(statistics)} segments have told their statistics, of {len(self.order.rows)}")
        here = [self.program.get(place) for place in places]
        shapes = [(array.shape, array.dtype) for array in here]
        parts = [_decoded(text, shapes) for text in statistics]
        for place, *arrays in zip(places, *parts):
            if any(array.tobytes() != arrays[0].tobytes() for array in arrays):
                mean = np.average(np.stack(arrays).astype("float64"), axis=0, weights=self.order.rows)
                self.program.set(place, mean.astype(arrays[0].dtype))


Shapes = Sequence[tuple[tuple[int, ...], np.dtype[Any]]]


def _encoded(arrays: Sequence[np.ndarray]) -> str:
    return base64.b64encode(b"".join(array.tobytes() for array in arrays)).decode()


def _decoded(text: str, shapes: Shapes) -> list[np.ndarray]:
    try:
        content = base64.b64decode(text, validate=True)
    except ValueError as error:
        raise InvalidArgument("a segment has sent something else than gradients") from error
    found, start = [], 0
    sizes = [math.prod(shape) * dtype.itemsize for shape, dtype in shapes]
    if len(content) != sum(sizes):
        raise InvalidArgument(f"a segment has sent {len(content)} bytes; those of this model are {sum(sizes)}")
    for (shape, dtype), size in zip(shapes, sizes):
        found.append(np.frombuffer(content, dtype, size // dtype.itemsize, start).reshape(shape))
        start += size
    return found
