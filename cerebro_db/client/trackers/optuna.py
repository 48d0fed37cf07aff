"""Runs as studies of Optuna, in a file of SQLite that optuna-dashboard opens: a trial per model."""

from __future__ import annotations

import warnings
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from ..errors import ClientError, MissingPackage
from .tracked import TrackedModel, TrackedRun

MARK = "cerebro_db"  # an attribute of the studies that this module has made


def write(run: TrackedRun, to: str, experiment: str = "") -> str:
    """Writes the study of a run; one that an earlier call has made is replaced. Returns its name. ``to``: the file."""
    try:
        import optuna
    except ImportError as error:
        raise MissingPackage(f"{error.name} cannot be imported.", "optuna") from error
    name = f"{run.title} ({run.owner})"
    logging = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        storage = optuna.storages.RDBStorage(f"sqlite:///{to}")
        if name in (one.study_name for one in optuna.get_all_study_summaries(storage)):
            if MARK not in optuna.load_study(study_name=name, storage=storage).user_attrs:
                raise ClientError(f"{to} has a study {name!r} that is not ours.", "Choose another file.")
            optuna.delete_study(study_name=name, storage=storage)
        direction = "maximize" if run.direction == "max" else "minimize"
        study = optuna.create_study(storage=storage, study_name=name, direction=direction)
        study.set_user_attr(MARK, run.run)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            study.set_metric_names([run.objective])
        for key, value in run.about.items():
            study.set_user_attr(key, value)
        distributions = _distributions(run, optuna.distributions)
        study.add_trials([_trial(one, run, distributions, optuna.trial) for one in run.models])
    except (OSError, ValueError, RuntimeError, SQLAlchemyError, optuna.exceptions.OptunaError) as error:
        raise ClientError(f"{to} cannot be written: {str(error).splitlines()[0]}") from error
    finally:
        optuna.logging.set_verbosity(logging)
    return name


def _distributions(run: TrackedRun, kinds: Any) -> dict[str, Any]:
    """Of each parameter that differs: its range, or its values."""
    found = {}
    for name in dict.fromkeys(name for one in run.models for name in one.parameters):
        values = [one.parameters[name] for one in run.models if name in one.parameters]
        texts = list(dict.fromkeys(map(str, values)))
        if len(texts) < 2:
            continue
        numbers = [value for value in values if not isinstance(value, (str, bool))]
        if len(numbers) < len(values):
            found[name] = kinds.CategoricalDistribution(texts)
        elif all(isinstance(value, int) for value in numbers):
            found[name] = kinds.IntDistribution(min(numbers), max(numbers))
        else:
            wide = min(numbers) > 0 and max(numbers) / min(numbers) >= 100
            found[name] = kinds.FloatDistribution(min(numbers), max(numbers), log=wide)
    return found


def _trial(model: TrackedModel, run: TrackedRun, distributions: dict[str, Any], trials: Any) -> Any:
    states = trials.TrialState
    state = {"failed": states.FAIL, "stopped": states.PRUNED}.get(model.status, states.COMPLETE)
    if state == states.COMPLETE and model.value is None:
        state = states.FAIL if run.ended else states.RUNNING
    elif state == states.COMPLETE and not run.ended and model.status != "finished":
        state = states.RUNNING
    params = {
        name: str(value) if hasattr(distributions[name], "choices") else value
        for name, value in model.parameters.items()
        if name in distributions
    }
    trial = trials.create_trial(
        state=state,
        value=model.value if state == states.COMPLETE else None,
        params=params,
        distributions={name: distributions[name] for name in params},
        # Of the objective, because pruners and plots compare them with the value. Epochs without one have none.
        intermediate_values=dict(model.curves.get(run.objective_curve, {})),
        user_attrs={
            "model": model.model,
            "configuration": model.configuration,
            "engine": model.engine,
            "reason": model.reason,
        },  # fmt: skip
    )
    return trial
