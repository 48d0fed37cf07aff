"""The arguments of the three verbs cerebro.train, cerebro.search and cerebro.fit, in one value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cerebro_db.core.following import Step
from cerebro_db.core.options import GivenOptions, parsed
from cerebro_db.core.records import dataclass, field

TRAIN, SEARCH, FIT = "cerebro.train", "cerebro.search", "cerebro.fit"
# What each verb has of its own before the target.
FIRST = {TRAIN: (), SEARCH: ("space",), FIT: ("configurations",)}
# The arguments after the target, in their order, with the verbs that have them: first those that people give most.
SHARED = (
    ("epochs", "F"), ("budget", "TSF"),
    ("inputs", "TSF"), ("prepare", "TSF"), ("weights", "TSF"), ("class_weight", "TSF"), ("sequence", "TSF"),
    ("validation", "TSF"), ("validation_table", "TSF"), ("split_by", "TSF"), ("split_at", "TSF"), ("stratify", "TSF"),
    ("folds", "TSF"), ("segments", "TSF"), ("packed_table", "TSF"), ("architectures", "TS"),
    ("space", "T"), ("method", "TS"), ("epochs", "TS"), ("max_configurations", "TS"), ("at_once", "TS"),
    ("start_from", "TS"), ("objective", "TSF"), ("direction", "TSF"), ("stop_when", "TSF"),
    ("evaluate_every", "TSF"), ("use_gpus", "TSF"), ("warm_start", "F"), ("run_name", "TSF"), ("description", "TSF"),
    ("options", "TSF"), ("wait", "TSF"), ("dry_run", "TSF"), ("group_by", "TSF"), ("replace", "TSF"),
)  # fmt: skip
# Those of the functions of version 0.1, which call this code until ALTER EXTENSION has replaced them.
OF_0_1 = (
    "inputs", "prepare", "weights", "class_weight", "sequence", "validation", "validation_table", "split_by",
    "split_at", "stratify", "folds", "segments", "packed_table", "architectures", "space", "method", "epochs",
    "max_configurations", "at_once", "start_from", "objective", "direction", "stop_when", "budget", "evaluate_every",
    "use_gpus", "warm_start", "run_name", "description", "options", "wait", "dry_run",
)  # fmt: skip


@dataclass(frozen=True)
class Given:
    """The arguments of one call; those that its verb does not have are None."""

    verb: str
    source_table: str | None = None
    model_table: str | None = None
    target: str | None = None
    configurations: str | None = None
    space: str | None = None
    inputs: str | None = None
    prepare: str | None = None
    weights: str | None = None
    class_weight: str | None = None
    sequence: str | None = None
    validation: float | None = None
    validation_table: str | None = None
    split_by: str | None = None
    split_at: str | None = None
    stratify: bool | None = None
    folds: int | None = None
    group_by: str | None = None
    segments: int | None = None
    packed_table: str | None = None
    architectures: str | None = None
    method: str | None = None
    epochs: int | None = None
    max_configurations: int | None = None
    at_once: int | None = None
    start_from: str | None = None
    objective: str | None = None
    direction: str | None = None
    stop_when: str | None = None
    budget: str | None = None
    evaluate_every: int | None = None
    use_gpus: bool | None = None
    warm_start: bool | None = None
    run_name: str | None = None
    description: str | None = None
    options: GivenOptions = field(default_factory=dict)
    wait: bool | None = True
    dry_run: bool | None = None
    replace: bool | None = None
    follows: tuple[Step, ...] | None = None  # what the caller does with the model tables; no argument


def names(verb: str) -> tuple[str, ...]:
    """The arguments of a verb in the order of its SQL function."""
    return ("source_table", "model_table", *FIRST[verb], "target", *_shared(verb))


def of_call(verb: str, arguments: Sequence[Any]) -> Given:
    known = names(verb)
    if len(arguments) < len(known):
        taken = set(_shared(verb))
        known = ("source_table", "model_table", *FIRST[verb], "target", *(name for name in OF_0_1 if name in taken))
    given = dict(zip(known, arguments))
    return Given(verb, **{**given, "options": parsed(given["options"])})


def _shared(verb: str) -> list[str]:
    letter = verb.rpartition(".")[2][0].upper()
    return [name for name, verbs in SHARED if letter in verbs]
