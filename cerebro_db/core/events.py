"""The words of a run's log: its events, its statuses and the like.

The tables' CHECK constraints hold the same words (tests/sql compares them).  No module of the server spells one as a
string.
"""

from __future__ import annotations

from enum import Enum


class Word(str, Enum):
    """Formats as its value, so that it can stand in messages and be a statement's parameter."""

    def __str__(self) -> str:
        return str(self.value)


class Event(Word):
    """What can happen to a run; those from BUILT on happen to one of its models."""

    CREATED = "created"
    SUBMITTED = "submitted"
    STARTED = "started"
    EXTENDED = "extended"
    CANCEL_REQUESTED = "cancel requested"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"
    MATERIALIZED = "materialized"
    NOT_MATERIALIZED = "not materialized"
    BUILT = "built"
    FUSED = "fused"
    NOT_FUSED = "not fused"
    UNIT_FAILED = "unit failed"
    MODEL_FAILED = "model failed"
    MODEL_REVIVED = "model revived"
    FORGOTTEN = "forgotten"


ENDINGS = (Event.FINISHED, Event.FAILED, Event.CANCELLED)


class RunStatus(Word):
    """What cerebro.runs shows."""

    CREATED = "created"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"


class Initial(Word):
    """What a model starts from: random weights, given weights, or a whole training state."""

    RANDOM = "random"
    WEIGHTS = "weights"
    FULL = "full"


class DataSetName(Word):
    """The data sets that a model is evaluated on."""

    TRAINING = "training"
    VALIDATION = "validation"


class Verdict(Word):
    """What a search policy says after an epoch of a model."""

    CONTINUE = "continue"
    STOP = "stop"
    ADD = "add"
