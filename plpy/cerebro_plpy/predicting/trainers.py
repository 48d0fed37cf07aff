"""The trainer of the caller's own session: for few rows, and for rows that only this transaction can see.

The orders of predictions to segments and trainers are here and in teams.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from cerebro_db.core import protocol
from cerebro_db.core.errors import CerebroError, InUse
from cerebro_db.core.names import token
from cerebro_db.core.protocol import (
    BeginPrediction,
    BestClasses,
    PredictionInput,
    Quantiles,
    StateRef,
    TrainerSettings,
)

from .. import platform
from ..database.access import Database
from ..platform.machine import threads
from ..segment import current, keeping, nursery_connection
from ..segment.keeping import Caller, LastingPrediction
from ..segment.prediction import SegmentPrediction
from ..segment.worker import Segment
from . import resident_predictor

if TYPE_CHECKING:
    from cerebro_db.core.packing.layout import Variable

    from ..models.trained import TrainedModel

PLAIN = "optimizer='sgd', loss='mse'"  # compile parameters that need nothing beside the weights


def _settings(db: Database, mine: Segment, use_gpus: bool | None, memory_mb: int | None) -> TrainerSettings:
    """What the trainer of the caller's own session is started with."""
    gpu = platform.require_gpus(db, True, platform.of(db).distribution_keys(db, 1))[0] if use_gpus else None
    engine = nursery_connection.default_engine(mine.listen)
    return TrainerSettings(threads=threads(1), memory_mb=memory_mb, engine=engine, gpu=gpu)


def with_quantiles(
    outputs: Sequence[Variable], best: BestClasses | None, shifts: Mapping[str, list[float]] | None = None
) -> BestClasses | None:
    """What is asked of the outputs, with the quantiles that they have.  ``shifts``: of those that are calibrated."""
    if not any(one.quantiles for one in outputs):
        return best
    found = [
        Quantiles(len(one.quantiles), one.middle, (shifts or {}).get(one.name)) if one.quantiles else None
        for one in outputs
    ]
    return replace(best or BestClasses([None] * len(outputs)), quantiles=found)


def order_of(
    model: TrainedModel, version: str | None, inputs: list[PredictionInput], best: BestClasses | None
) -> BeginPrediction:
    """What a prediction needs besides rows and weights.  ``version``: of the weights, if that is certain.

    ``best``: None: the answers are the outputs themselves, or their quantiles.
    """
    if best is None:
        best = with_quantiles(model.layout.outputs, None)
    from cerebro_db.core.parameters import params  # only now: the trainer starts meanwhile

    # Nothing of how a model was trained has a part in its predictions, and without it the model is built sooner.
    configuration = {**model.definition, "compile": params.compile_params(PLAIN), "fit": params.fit_params(None)}
    state = StateRef.weights(version or token(8))
    return BeginPrediction(configuration, inputs, state, best, steps=model.layout.steps)


@contextlib.contextmanager
def own_segment(
    db: Database,
    memory_mb: int | None,
    lasting: BeginPrediction | None = None,
    recipe: Callable[[Caller], tuple[str, str]] | None = None,
    *,
    use_gpus: bool | None = False,
    sealed: bool = False,
) -> Iterator[tuple[Segment, int]]:
    """The caller's session as a segment, and the seconds for which its trainer rests after the call.

    The trainer starts while the caller does something else.

    A trainer of an earlier call stays for the next call if this call is refused before it predicts.  ``lasting``: a
    trainer that another session of the user has left, and that has the weights of this prediction, will do as well.
    ``sealed``: the user may not read the weights.
    """
    mine = current.mine(db)
    if mine.lent or resident_predictor.busy:  # to the call that reads these rows
        raise InUse(
            "a query or view whose rows are being predicted cannot call it.",
            hint="Write the inner predictions to a table first.",
        )
    if sealed:
        mine = current.sealed(db)
    kept = mine.resting
    mine.lent = True
    try:
        settings, caller = _settings(db, mine, use_gpus, memory_mb), keeping.caller(db)
        seconds = caller.seconds if settings.gpu is None else 0
        wanted = None if lasting is None else LastingPrediction(lasting, caller, recipe)
        mine.start(settings, caller.trainer_mb, ask=False, wanted=wanted)
        try:
            yield mine, seconds
        except CerebroError:
            if not kept or mine.prediction is not None:
                raise
            current.rest(mine, seconds)
            raise
        current.rest(mine, seconds)
    except BaseException:
        if not mine.resting:
            current.close_mine()
        raise
    finally:
        mine.lent = False


@contextlib.contextmanager
def predicting(db: Database, mine: Segment, model: TrainedModel, order: BeginPrediction) -> Iterator[SegmentPrediction]:
    """Within it, cerebro_internal._predict works in the caller's session."""
    name = order.state.name
    assert name is not None

    def send_weights() -> None:
        start = 0
        for piece in model.weights(db, sealed=mine.sealed):
            mine.receive_state(name, start, piece)
            start += len(piece)

    if not mine.holds(order):
        mine.ask()  # a trainer whose rest ends removes the file of the weights
        send_weights()
    mine.obey(order)
    assert mine.prediction is not None
    mine.prediction.send_weights = send_weights
    yield mine.prediction
    mine.obey(protocol.EndPrediction())


def merged_weights(db: Database, model: TrainedModel) -> Iterator[bytes]:
    """The weights of the layers of a model with its adapters added, piece by piece."""
    name, start = token(8), 0
    with own_segment(db, model.memory_mb) as (mine, _):
        mine.ask()  # a trainer whose rest ends removes the file of the weights
        for piece in model.weights(db):
            mine.receive_state(name, start, piece)
            start += len(piece)
        yield from mine.merged(model.definition["architecture"], [list(one.shape) for one in model.layout.inputs], name)
