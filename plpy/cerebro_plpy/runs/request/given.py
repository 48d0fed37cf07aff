"""The arguments of the three verbs cerebro.train, cerebro.search and cerebro.fit, in one value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cerebro_db.core.following import Step
from cerebro_db.core.records import dataclass

TRAIN, SEARCH, FIT = "cerebro.train", "cerebro.search", "cerebro.fit"
# What each verb has of its own before the target.
FIRST = {TRAIN: (), SEARCH: ("space",), FIT: ("configurations",)}
# The arguments after the target, in their order, with the verbs that have them.  New ones come last: until the
# extension is updated, functions of an earlier version call this code.
SHARED = (
    ("inputs", "TSF"), ("prepare", "TSF"), ("weights", "TSF"), ("class_weight", "TSF"), ("sequence", "TSF"),
    ("validation", "TSF"), ("validation_table", "TSF"), ("split_by", "TSF"), ("split_at", "TSF"), ("stratify", "TSF"),
    ("folds", "TSF"), ("segments", "TSF"), ("packed_table", "TSF"), ("architectures", "TS"),
    ("space", "T"), ("method", "TS"), ("epochs", "TSF"), ("max_configurations", "TS"), ("at_once", "TS"),
    ("start_from", "TS"), ("objective", "TSF"), ("direction", "TSF"), ("stop_when", "TSF"), ("budget", "TSF"),
    ("evaluate_every", "TSF"), ("use_gpus", "TSF"), ("warm_start", "F"), ("run_name", "TSF"), ("description", "TSF"),
    ("options", "TSF"), ("wait", "TSF"), ("dry_run", "TSF"), ("group_by", "TSF"),
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
    options: str | None = None
    wait: bool | None = True
    dry_run: bool | None = None
    follows: tuple[Step, ...] | None = None  # what the caller does with the model tables; no argument


def names(verb: str) -> tuple[str, ...]:
    """The arguments of a verb in the order of its SQL function."""
    letter = verb.rpartition(".")[2][0].upper()
    shared = [name for name, verbs in SHARED if letter in verbs]
    return ("source_table", "model_table", *FIRST[verb], "target", *shared)


def of_call(verb: str, arguments: Sequence[Any]) -> Given:
    return Given(verb, **dict(zip(names(verb), arguments)))
