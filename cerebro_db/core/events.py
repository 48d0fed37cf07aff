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
    FOLLOWED = "followed"  # a step after the training is done
    WAITS = "waits"  # for processors that another run keeps busy
    GOES_ON = "goes on"
    BUILT = "built"
    FUSED = "fused"
    NOT_FUSED = "not fused"
    UNIT_FAILED = "unit failed"
    MODEL_FAILED = "model failed"
    MODEL_REVIVED = "model revived"
    FORGOTTEN = "forgotten"


ENDINGS = (Event.FINISHED, Event.FAILED, Event.CANCELLED)


class Following(Word):
    """What a call does with the models of its run after the training."""

    ENSEMBLE = "ensemble"
    CALIBRATE = "calibrate"
    REFIT = "refit"
    JUDGE = "judge"
    REGISTER = "register"
    PROMOTE = "promote"
    REMOVE = "remove"


class RunStatus(Word):
    """What cerebro.runs shows."""

    CREATED = "created"
    RUNNING = "running"
    FINISHING = "finishing"  # the training has finished, and what follows it has not
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


class HopKind(Word):
    """What a hop has done to the model's state."""

    TRAIN = "train"
    TRAIN_REPLICA = "train replica"  # its state is one of those that the epoch's average is made of
    AVERAGE = "average"


class Verdict(Word):
    """What is decided about a model after an epoch, or about a run as a whole."""

    CONTINUE = "continue"
    STOP = "stop"
    ADD = "add"
    GO_ON = "go on"
    EXTEND = "extend"
    BUDGET = "budget"
    REFUSE = "refuse"


class Decider(Word):
    """Who has decided: the search policy, a rule of the user in SQL, a person's request, or the end of the budget."""

    POLICY = "policy"
    RULE = "rule"
    REQUEST = "request"
    BUDGET = "budget"


class Action(Word):
    """What a person may ask of a run. A clone is an ADD with a parent."""

    STOP = "stop"
    GO_ON = "go on"
    ADD = "add"
    EXTEND = "extend"
    BUDGET = "budget"
