"""The SQL functions of a segment's session.  Any user may call them, so they check every argument."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cerebro_db.core import protocol
from cerebro_db.core.errors import CerebroError, InvalidArgument, TrainerFailed, WrongState

from ..database.access import Database
from ..database.entry import INTERNAL, entry
from . import current
from .prediction import Answer

LONGEST_ORDER = 64_000_000  # characters; an order to suggest points has the whole history of a search


@entry(called=INTERNAL)
def worker_open(db: Database, settings: str) -> str:
    """Starts this session's trainer, or tells about the one that runs."""
    require(settings=(settings, str))
    current.unseal()
    return protocol.encode_opened(current.mine(db).open(protocol.decode_settings(settings)))


@entry(called=INTERNAL)
def worker_close(db: Database) -> None:
    current.close(db)


@entry(called=INTERNAL)
def data_in(db: Database, handle: str, variable: str, payload: bytes) -> int:
    """Takes one variable of one packed buffer into this session's cache."""
    require(handle=(handle, str), variable=(variable, str), payload=(payload, bytes))
    current.opened(db).receive_rows(handle, variable, payload)
    return len(payload)


@entry(called=INTERNAL)
def state_in(db: Database, state: str, start: int, payload: bytes) -> int:
    """Takes one row of a model's state."""
    require(name=(state, str), start=(start, int), payload=(payload, bytes))
    current.opened(db).receive_state(state, start, payload)
    return len(payload)


@entry(called=INTERNAL)
def state_out(db: Database, visit: int, index: int) -> Iterator[tuple[int, bytes]]:
    """A model's state that a visit of this session has left, in rows."""
    require(visit=(visit, int), index=(index, int))
    return current.opened(db).outgoing.rows(visit, index)


@entry(called=INTERNAL, longest=LONGEST_ORDER)
def work(db: Database, work: str) -> str:
    """Obeys an order.  An error is a reply, too: it belongs to the order and not to the session.

    Only a process without a trainer raises its error, because the session as a whole is of no use then.
    """
    segment = current.opened(db)
    try:
        require(work=(work, str))
        return protocol.reply_json(segment.obey(protocol.order_from_driver(work)))
    except CerebroError as error:
        if isinstance(error, TrainerFailed):
            segment.close_trainers()
        return protocol.reply_json(protocol.Failure.of(error))


@entry(called=INTERNAL)
def predict_chunk(db: Database, rows: int, variables: list[bytes | None]) -> list[Answer]:
    """Predicts so many rows; per input of the model the bytes of their arrays, without those that are NULL."""
    require(rows=(rows, int), variables=(variables, list))
    prediction = current.predicting(db).prediction
    if prediction is None:
        raise WrongState("no prediction is under way in this session")
    return prediction.predict(rows, variables)


def require(**arguments: tuple[Any, type[Any]]) -> None:
    """Refuse NULL in the place of an argument."""
    for name, (value, kind) in arguments.items():
        if type(value) is not kind:
            raise InvalidArgument(f"{name} cannot be {'NULL' if value is None else type(value).__name__}")
