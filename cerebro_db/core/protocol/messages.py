# ruff: noqa: UP007, UP045  (get_type_hints evaluates the annotations, on Python 3.9 too)
"""Orders and replies as JSON documents and texts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Optional, TypeVar, Union

from cerebro_db.core.errors import InvalidArgument

from .. import codec
from .answers import Failure, Json, Progress, WorkerOpened
from .orders import Begin, Order, Route, decode_answer
from .parts import TrainerSettings

A = TypeVar("A")  # an answer
PROGRESS = "cerebro progress "  # the beginning of a notice that reports a trainer's progress


def encode(order: Order[Any]) -> Json:
    """The JSON document of an order."""
    document: Json = codec.encode(order)
    return document


def encode_answer(answer: Any) -> Json:
    document: Json = codec.encode(answer)
    return document


def to_json(order: Order[Any]) -> str:
    """The argument of ``cerebro._work``."""
    return codec.to_json(encode(order))


def decode(document: Any) -> Order[Any]:
    """The order in a JSON document."""
    try:
        found: Order[Any] = Order.from_document(document)
    except codec.Misfit as misfit:
        raise misfit.error("the order") from None
    return found


def from_json(text: str) -> Order[Any]:
    return decode(codec.from_json(text))


def order_from_driver(text: str) -> Order[Any]:
    """The order in the argument of ``cerebro._work``: one for a segment, without what only the segment may fill in.

    Any user may call ``cerebro._work``: with a path or the source of a function, a user would act as the server.
    """
    order = from_json(text)
    inner = order.computation if isinstance(order, Begin) else order
    if inner.route is Route.TO_TRAINER:
        raise InvalidArgument(f"a segment takes no order {codec.shown(inner.name)}")
    _refuse_filled(inner, inner.name)
    return order


def _refuse_filled(value: Any, where: str) -> None:
    if isinstance(value, list):
        for place, one in enumerate(value):
            _refuse_filled(one, f"{where}[{place}]")
        return
    for one in codec.fields_of(type(value)) or ():
        found = getattr(value, one.name)
        if found is not None and one.metadata.get("by_segment"):
            raise InvalidArgument(f"{where}.{one.name} cannot be given: the segment fills it in")
        if isinstance(found, list) or codec.fields_of(type(found)):
            _refuse_filled(found, f"{where}.{one.name}")


def reply(answer: Any) -> Json:
    """The reply to an order: its answer, or a Failure."""
    return {"error" if isinstance(answer, Failure) else "ok": codec.encode(answer)}


def reply_json(answer: Any) -> str:
    """The result of ``cerebro._work``."""
    return codec.to_json(reply(answer))


def progress_frame(progress: Progress) -> Json:
    """What a trainer sends before its reply."""
    return {"progress": codec.encode(progress)}


def decode_reply(order: Order[A], document: Any) -> Union[A, Failure, Progress]:
    """A frame of a trainer that works on an order."""
    if isinstance(document, Mapping) and len(document) == 1:
        if "ok" in document:
            return decode_answer(order, document["ok"])
        if "error" in document:
            return codec.decode(Failure, document["error"], "the error")
        if "progress" in document:
            return codec.decode(Progress, document["progress"], "the progress")
    raise InvalidArgument(f"the reply to {order.name} has neither an answer nor an error")


def reply_of(order: Order[A], text: str) -> Union[A, Failure]:
    """The reply of ``cerebro._work``: the order's answer, or why there is none."""
    found = decode_reply(order, codec.from_json(text))
    if isinstance(found, Progress):
        raise InvalidArgument(f"the reply to {order.name} is progress")
    return found


def encode_settings(settings: TrainerSettings) -> str:
    """The argument of ``cerebro._worker_open``."""
    return codec.to_json(codec.encode(settings))


def decode_settings(text: str) -> TrainerSettings:
    settings = codec.decode(TrainerSettings, codec.from_json(text), "the settings")
    _refuse_filled(settings, "the settings")
    return settings


def encode_opened(opened: WorkerOpened) -> str:
    return codec.to_json(codec.encode(opened))


def decode_opened(document: Any) -> WorkerOpened:
    """The answer of ``cerebro._worker_open``, which is a jsonb."""
    return codec.decode(WorkerOpened, document, "the answer of _worker_open")


def progress_notice(progress: Progress) -> str:
    return PROGRESS + codec.to_json(codec.encode(progress))


def progress_in(notice: str) -> Optional[Progress]:
    """The progress that a notice reports; None of any other notice, also of one that only begins like it."""
    _, _, text = notice.partition(PROGRESS)
    try:
        document, _ = json.JSONDecoder().raw_decode(text)  # Greenplum writes behind it which segment says so
        return codec.decode(Progress, document, "the progress")
    except (ValueError, RecursionError, InvalidArgument):
        return None
