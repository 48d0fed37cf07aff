"""Runs in a tracking server of MLflow, through its client: a run per model, below one for the run of cerebro_db."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..errors import ClientError, MissingPackage
from .tracked import TrackedModel, TrackedRun

METRICS, PARAMETERS = 1000, 100  # at most in one request of MLflow
# Tags: which model, and the last epoch of each curve that is there.
KEY, EPOCHS = "cerebro_db.key", "cerebro_db.epochs"
STATUS = {"finished": "FINISHED", "failed": "FAILED"}  # of MLflow; all others were ended: KILLED


def write(run: TrackedRun, to: str, experiment: str) -> str:
    """Writes what is new of a run; returns the number of the experiment. ``to``: the URI of the tracking server."""
    try:
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException
    except ImportError as error:
        raise MissingPackage(f"{error.name} cannot be imported.", "mlflow-skinny") from error
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")  # the output of --json is JSON
    client = MlflowClient(tracking_uri=to)
    try:
        known = client.get_experiment_by_name(experiment)
        number: str = known.experiment_id if known is not None else client.create_experiment(experiment)
        parent = _run(client, number, f"{run.run} {run.owner}", run.title, run.started_at, {})
        _parameters(client, parent, run.about)
        for model in run.models:
            _model(client, number, run, model, parent.info.run_id)
        if run.ended:
            client.set_terminated(parent.info.run_id, STATUS.get(run.status, "KILLED"), _milliseconds(run.ended_at))
    except MlflowException as error:
        raise ClientError(f"MLflow at {to} refuses: {str(error).splitlines()[0]}") from error
    return number


def _model(client: Any, experiment: str, run: TrackedRun, model: TrackedModel, parent: str) -> None:
    key, title = f"{run.run} {run.owner} {model.model}", f"configuration {model.configuration}, model {model.model}"
    found = _run(client, experiment, key, title, run.started_at, {"mlflow.parentRunId": parent})
    identity = found.info.run_id
    _parameters(client, found, model.parameters)
    after = json.loads(found.data.tags.get(EPOCHS, "{}"))
    metrics = list(_metrics(run, model, after))
    for start in range(0, len(metrics), METRICS):
        client.log_batch(identity, metrics=metrics[start : start + METRICS])
    last = {name: max(values) for name, values in model.curves.items() if values}
    client.set_tag(identity, EPOCHS, json.dumps(last))
    if model.reason:
        client.set_tag(identity, "cerebro_db.reason", model.reason)
    if run.ended:
        client.set_terminated(identity, STATUS.get(model.status, "KILLED"), _milliseconds(run.ended_at))


def _metrics(run: TrackedRun, model: TrackedModel, after: Mapping[str, int]) -> Iterator[Any]:
    from mlflow.entities import Metric

    names = _names([name.replace(" ", "_") for name in model.curves])
    for (name, values), theirs in zip(model.curves.items(), names):
        for epoch, value in values.items():
            if epoch > after.get(name, -1):
                moment = _milliseconds(model.times.get(epoch, run.started_at))
                yield Metric(theirs, value, moment, epoch)


def _run(client: Any, experiment: str, key: str, title: str, began: float, tags: dict[str, str]) -> Any:
    """The run of MLflow with this key; a new one if there is none."""
    quotable = key.replace("'", "")
    known: Sequence[Any] = client.search_runs([experiment], f"tags.`{KEY}` = '{quotable}'", max_results=1)
    if known:
        return known[0]
    tags = {KEY: quotable, **tags}
    return client.create_run(experiment, start_time=_milliseconds(began), tags=tags, run_name=title)


def _parameters(client: Any, run: Any, parameters: Any) -> None:
    from mlflow.entities import Param

    named = zip(_names(list(parameters)), parameters.values())
    new = [Param(name, str(value)) for name, value in named if name not in run.data.params]
    for start in range(0, len(new), PARAMETERS):
        client.log_batch(run.info.run_id, params=new[start : start + PARAMETERS])


def _names(texts: Sequence[str]) -> list[str]:
    """MLflow's names have letters, digits and a few other characters, and can be names of files. No two are equal."""
    found: list[str] = []
    for text in texts:
        kept = "".join(letter if letter.isalnum() or letter in "_-. " else "_" for letter in text)[:240]
        kept = f"_{kept[1:]}" if kept.startswith(".") or not kept else kept
        name, number = kept, 1
        while name in found:
            number += 1
            name = f"{kept}_{number}"
        found.append(name)
    return found


def _milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None else round(1000 * seconds)
