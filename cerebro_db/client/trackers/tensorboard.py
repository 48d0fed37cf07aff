"""Event files of TensorBoard, written by tensorboardX: a curve per metric, and the hyper-parameters of each model."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import ClientError, MissingPackage
from .tracked import TrackedModel, TrackedRun

FILE = "events.out.tfevents.0.cerebro_db"
HPARAMS = "hparams"  # the name of TensorBoard's plugin
ENDED = {"finished": 1, "failed": 2}  # Status of the plugin; others are running or unknown


def write(run: TrackedRun, to: str, experiment: str = "") -> Path:
    """Writes ``to/run_12/model_3/events…`` for each model; files of an earlier call are replaced."""
    try:
        from tensorboardX.record_writer import RecordWriter
    except ImportError as error:
        raise MissingPackage(f"{error.name} cannot be imported.", "tensorboardX") from error
    top = Path(to) / f"run_{run.run}"
    try:
        for model in run.models:
            place = top / f"model_{model.model}"
            place.mkdir(parents=True, exist_ok=True)
            unfinished = place / ".unfinished"
            records = RecordWriter(str(unfinished))
            for event in _events(run, model):
                records.write(event.SerializeToString(deterministic=True))
            records.close()
            _extend(place / FILE, unfinished)
    except OSError as error:
        raise ClientError(f"The folder {top} cannot be written: {error.strerror}.") from error
    return top


def _extend(file: Path, unfinished: Path) -> None:
    """Append what is new, so that a TensorBoard that reads the file goes on; else replace it by the unfinished one."""
    before, content = file.read_bytes() if file.exists() else None, unfinished.read_bytes()
    if before is None or not content.startswith(before):
        os.replace(unfinished, file)
        return
    with open(file, "ab") as end:
        end.write(content[len(before) :])
    unfinished.unlink()


def _events(run: TrackedRun, model: TrackedModel) -> Iterator[Any]:
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.proto.plugin_hparams_pb2 import SessionEndInfo, SessionStartInfo

    began = run.started_at
    yield Event(wall_time=began, file_version="brain.Event:2")
    group = f"run {run.run}, configuration {model.configuration}, model {model.model}"
    start = SessionStartInfo(group_name=group, start_time_secs=began)
    for name, value in model.parameters.items():
        kind = "bool" if isinstance(value, bool) else "string" if isinstance(value, str) else "number"
        setattr(start.hparams[name], f"{kind}_value", value)
    yield _plugin(began, "session_start_info", start)
    points = [(epoch, name, value) for name, values in model.curves.items() for epoch, value in values.items()]
    for epoch, name, value in sorted(points):
        yield _scalar(model.times.get(epoch, began), epoch, name.replace(" ", "/"), value)
    if run.ended and model.value is not None:
        last = max(model.times.values(), default=began)
        yield _scalar(last, max(model.times, default=0), f"objective/{run.objective}", model.value)
    if run.ended and model.status in ENDED:
        ended = run.ended_at or began
        end = SessionEndInfo(status=ENDED[model.status], end_time_secs=ended)
        yield _plugin(ended, "session_end_info", end)


def _scalar(seconds: float, step: int, tag: str, value: float) -> Any:
    from tensorboardX.proto.event_pb2 import Event

    return Event(wall_time=seconds, step=step, summary={"value": [{"tag": tag, "simple_value": value}]})


def _plugin(seconds: float, what: str, content: Any) -> Any:
    """An event that only the plugin of hyper-parameters reads: its content is in the metadata."""
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.proto.plugin_hparams_pb2 import HParamsPluginData

    data = HParamsPluginData(**{what: content}).SerializeToString(deterministic=True)
    metadata = {"plugin_data": {"plugin_name": HPARAMS, "content": data}}
    tensor = {"dtype": 1, "tensor_shape": {}, "float_val": [0.0]}
    value = {"tag": f"_hparams_/{what}", "metadata": metadata, "tensor": tensor}
    return Event(wall_time=seconds, summary={"value": [value]})
