"""The trainer of the caller's own session: for few rows, and for rows that only this transaction can see.

The orders of predictions to segments and trainers are here and in teams.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from cerebro_db.core import protocol
from cerebro_db.core.engines import MOST_THREADS
from cerebro_db.core.errors import CerebroError, InUse
from cerebro_db.core.names import token
from cerebro_db.core.protocol import BeginPrediction, BestClasses, PredictionInput, StateRef, TrainerOptions
from cerebro_db.core.records import dataclass

from .. import platform
from ..database.access import Database
from ..database.cancellation import listener
from ..platform.machine import cores
from ..segment import current, nursery_connection
from ..segment.keeping import LastingPrediction, WriteRecipe
from ..segment.prediction import SegmentPrediction
from ..segment.worker import Segment
from ..sessions.idle_trainer import rest_mine, time_to_rest
from ..sessions.team_options import TeamOptions
from . import resident_predictor

if TYPE_CHECKING:
    from ..models.trained import TrainedModel
    from ..packing.rows.preparation import SourceVariable

PLAIN = "optimizer='sgd', loss='mse'"  # compile parameters that need nothing beside the weights


def options(db: Database, use_gpus: bool | None, keys: Sequence[int], memory_mb: int | None) -> TeamOptions:
    """What trainers are started with.  ``memory_mb``: that each may use, as the run of its model had it."""
    gpus = platform.require_gpus(db, use_gpus, keys)
    engine = nursery_connection.default_engine(listener(db.plpy))
    threads = min(MOST_THREADS, max(1, cores() // len(keys)))
    return TeamOptions((engine,), TrainerOptions(threads=threads, memory_mb=memory_mb), tuple(gpus))


@dataclass(frozen=True)
class PredictionOrder:
    """What a prediction needs besides rows and weights."""

    configuration: dict[str, Any]
    inputs: list[PredictionInput]
    best: BestClasses | None  # None: the answers are the outputs themselves

    def begin(self, name: str) -> BeginPrediction:
        """The order, with the name of the weights that the segment has received."""
        return BeginPrediction(self.configuration, self.inputs, StateRef.weights(name), self.best)


def prediction_order(
    model: TrainedModel, inputs: Sequence[SourceVariable], best: BestClasses | None
) -> PredictionOrder:
    from cerebro_db.core.parameters import params  # only now: the trainer starts meanwhile

    # Nothing of how a model was trained has a part in its predictions, and without it the model is built sooner.
    configuration = {**model.definition, "compile": params.compile_params(PLAIN), "fit": params.fit_params(None)}
    return PredictionOrder(configuration, [PredictionInput(**variable.for_prediction()) for variable in inputs], best)


@contextlib.contextmanager
def own_segment(
    db: Database,
    chosen: TeamOptions,
    begin: BeginPrediction | None = None,
    recipe: WriteRecipe | None = None,
    *,
    sealed: bool = False,
) -> Iterator[tuple[Segment, int]]:
    """The caller's session as a segment, and the seconds for which its trainer rests after the call.

    The trainer starts while the caller does something else.

    A trainer of an earlier call stays for the next call if this call is refused before it predicts.  ``begin``: a
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
        seconds, predictors = time_to_rest(db, chosen)
        wanted = None if begin is None else LastingPrediction(begin, mine.user, predictors, seconds, recipe)
        mine.start(chosen.settings(0), ask=False, wanted=wanted)
        try:
            yield mine, seconds
        except CerebroError:
            if not kept or mine.prediction is not None:
                raise
            rest_mine(db, seconds)
            raise
        rest_mine(db, seconds)
    except BaseException:
        if not mine.resting:
            current.close_mine()
        raise
    finally:
        mine.lent = False


def begin_of(db: Database, model: TrainedModel, order: PredictionOrder) -> BeginPrediction | None:
    """The prediction, with the version of the weights; None if that cannot be said."""
    version = model.version(db)
    return None if version is None else order.begin(version)


@contextlib.contextmanager
def predicting(
    db: Database, mine: Segment, model: TrainedModel, order: PredictionOrder, begin: BeginPrediction | None = None
) -> Iterator[SegmentPrediction]:
    """Within it, cerebro._predict works in the caller's session.  ``begin``: as of ``begin_of``, where it is known."""
    begin = begin or begin_of(db, model, order) or order.begin(token(8))
    name = begin.state.name
    assert name is not None

    def send_weights() -> None:
        start = 0
        for piece in model.weights(db, sealed=mine.sealed):
            mine.receive_state(name, start, piece)
            start += len(piece)

    if not mine.holds(begin):
        mine.ask()  # a trainer whose rest ends removes the file of the weights
        send_weights()
    mine.obey(begin)
    assert mine.prediction is not None
    mine.prediction.send_weights = send_weights
    yield mine.prediction
    mine.obey(protocol.EndPrediction())
