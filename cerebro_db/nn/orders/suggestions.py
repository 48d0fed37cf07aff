"""Points of a search space that Optuna's TPE suggests: its ask-and-tell interface, without a storage or a loop.

Each order makes a study of its own and tells it all trials.  So what is suggested depends on the order alone, and a run
that is resumed, or another process, gets the same suggestions.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from cerebro_db.core.engines import OPTUNA
from cerebro_db.core.errors import InvalidArgument, Unsupported
from cerebro_db.core.protocol import Suggest, Suggested
from cerebro_db.core.search.methods.tpe import COMPLETE, RUNNING
from cerebro_db.core.search.spaces.dimensions import Choice, Dimension, Number, of_description


def suggested(order: Suggest) -> Suggested:
    """The answer to an order; raises Unsupported if Optuna is not installed."""
    optuna = _imported()
    try:
        return _suggested(optuna, order)
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError, StopIteration) as error:
        # Only an order that somebody has written by hand: a search describes its own space and its own trials.
        raise InvalidArgument(f"the dimensions or the trials of the order make no sense: {error}") from error


def _suggested(optuna: Any, order: Suggest) -> Suggested:
    dimensions = [of_description(one) for one in order.dimensions]
    digest = hashlib.sha256(f"{order.seed}/{order.number}".encode()).digest()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that some of the sampler's arguments are experimental
        sampler = optuna.samplers.TPESampler(
            seed=int.from_bytes(digest[:4], "big"),
            n_startup_trials=1,  # the random points at the beginning are the driver's
            multivariate=True,
            group=True,  # dimensions with conditions
            constant_liar=True,  # so that suggestions differ from the points that are being tried
        )
        study = optuna.create_study(sampler=sampler)
        study.add_trials([_told(optuna, dimensions, trial) for trial in order.trials])
        points = [_asked(dimensions, study) for _ in range(order.count)]
    return Suggested(points, optuna.__version__)


def _imported() -> Any:
    try:
        import optuna
    except (ImportError, OSError) as error:  # a confined trainer may not read packages outside of its environment
        import sys

        raise Unsupported(
            f"the search method tpe needs Optuna, which is not installed in the environment of the trainers ({error})",
            hint=f"Have it installed on every host: {sys.executable} -m pip install {OPTUNA}. Or take another method.",
        ) from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def _distribution(optuna: Any, dimension: Dimension) -> Any:
    """Of the choices Optuna sees the indices: a point may contain any JSON."""
    if isinstance(dimension, Choice):
        return optuna.distributions.CategoricalDistribution(range(len(dimension.labels)))
    assert isinstance(dimension, Number)
    low, high = dimension.low, dimension.high
    if dimension.step is not None and not dimension.log:
        return optuna.distributions.IntDistribution(0, dimension.steps)
    if dimension.whole:
        return optuna.distributions.IntDistribution(int(low), int(high), log=dimension.log)
    return optuna.distributions.FloatDistribution(low, high, log=dimension.log)


def _inner(dimension: Dimension, value: Any) -> Any:
    """The value as the distribution has it."""
    if isinstance(dimension, Choice):
        return dimension.index(value)
    assert isinstance(dimension, Number)
    if dimension.step is not None and not dimension.log:
        return round((value - dimension.low) / dimension.step)
    return int(value) if dimension.whole else float(value)


def _outer(dimension: Dimension, value: Any) -> Any:
    if isinstance(dimension, Choice):
        return dimension.labels[value]
    assert isinstance(dimension, Number)
    if dimension.step is not None and not dimension.log:
        return dimension.nearest(dimension.low + value * dimension.step)
    return dimension.nearest(value)


def _told(optuna: Any, dimensions: Sequence[Dimension], trial: Mapping[str, Any]) -> Any:
    mine = [one for one in dimensions if one.name in trial["point"]]
    state, score = trial["state"], trial["score"]
    states = optuna.trial.TrialState
    given: dict[str, Any] = {}
    if state == COMPLETE and score is not None:
        given = {"state": states.COMPLETE, "value": score}
    elif state == RUNNING:
        given = {"state": states.RUNNING}
    else:  # stopped early; without a value it counts as the worst of all
        given = {"state": states.PRUNED}
    if score is not None and "value" not in given:
        given["intermediate_values"] = {int(trial["epochs"]): score}
    return optuna.trial.create_trial(
        params={one.name: _inner(one, trial["point"][one.name]) for one in mine},
        distributions={one.name: _distribution(optuna, one) for one in mine},
        **given,
    )


def _asked(dimensions: Sequence[Dimension], study: Any) -> dict[str, Any]:
    trial, point = study.ask(), dict[str, Any]()
    for one in dimensions:
        if all(condition.holds(point) for condition in one.conditions):
            point[one.name] = _outer(one, _asked_for(trial, one))
    return point


def _asked_for(trial: Any, dimension: Dimension) -> Any:
    """A value of the same distribution as ``_distribution`` says."""
    if isinstance(dimension, Choice):
        return trial.suggest_categorical(dimension.name, range(len(dimension.labels)))
    assert isinstance(dimension, Number)
    if dimension.step is not None and not dimension.log:
        return trial.suggest_int(dimension.name, 0, dimension.steps)
    if dimension.whole:
        return trial.suggest_int(dimension.name, int(dimension.low), int(dimension.high), log=dimension.log)
    return trial.suggest_float(dimension.name, dimension.low, dimension.high, log=dimension.log)
