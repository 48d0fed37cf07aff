"""The doctor's checks of every segment: a trainer starts, and what it and its host have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Callable

import psycopg2

from cerebro_db.core import protocol
from cerebro_db.core.engines import DISPLAY_NAMES
from cerebro_db.core.errors import CerebroError, GpuMissing
from cerebro_db.core.protocol import Inspected, ServerFacts
from cerebro_db.core.sql import literal, sql
from cerebro_db.core.texts import counted

from ..platform.machine import megabytes
from ..predicting.teams import options as trainer_options
from ..segment.scratch import SCRATCH
from ..sessions.failures import Refused, first_line
from ..sessions.team import Team, Worker
from .report import OK, PROBLEM, WARNING, Examined, Row, disk_row, numbers, with_detail

OLDEST_KERAS = (3, 13, 2)  # in older versions an architecture can get around Keras' own safe mode
TRAINER_WITHIN = "3min"


def trainers(examined: Examined) -> Iterator[Row]:
    keys = examined.platform.distribution_keys(examined.db, examined.segments)
    gpus = examined.platform.gpus_of_segments(examined.db, keys)
    try:
        answers = _inspected(examined, keys, use_gpus=any(gpu is not None for gpu in gpus))
        without = {segment: answer for segment, answer in answers.items() if isinstance(answer, GpuMissing)}
        if without:  # they can train on processors
            on_processors = _inspected(examined, keys, use_gpus=False)
            answers.update((segment, on_processors[segment]) for segment in without)
    except psycopg2.Error as error:
        yield Row("segments", "trainers", PROBLEM, first_line(error), error.diag.message_hint)
        return
    sound = {}
    for segment, answer in sorted(answers.items()):
        component = f"segment {segment}"
        if isinstance(answer, CerebroError):
            yield Row(component, "trainer", PROBLEM, with_detail(answer), answer.hint or "Its log says why.")
        else:
            sound[component] = answer
            yield from _segment(component, answer, without.get(segment))
            yield priority(component, answer.nice, examined.platform.priority_setting)
    if sound:
        yield from _agreement(examined, sound)
        yield from _memory(sound)


def _inspected(examined: Examined, keys: list[int], *, use_gpus: bool) -> dict[int, Inspected | CerebroError]:
    """For each segment what its trainer reports, or the error."""
    team = Team.opened(examined.db, keys, trainer_options(examined.db, use_gpus, keys, None))
    try:
        for worker in team.workers:
            worker.session.run(sql("SET statement_timeout = {longest}", longest=literal(TRAINER_WITHIN)))

        async def inspect(worker: Worker) -> Inspected | CerebroError:
            try:
                return await team.order(worker, protocol.Inspect())
            except Refused as refused:
                return refused.error
            except GpuMissing as missing:
                return missing

        return team.run_all({worker.segment: inspect(worker) for worker in team.workers})
    finally:
        team.close()


def _segment(component: str, answer: Inspected, no_gpu: CerebroError | None) -> Iterator[Row]:
    versions = answer.trainer.versions
    software = f"Keras {versions['keras']} on {DISPLAY_NAMES[versions['engine']]} {versions['engine_version']}"
    found = f"{software}, numpy {versions['numpy']}, Python {versions['python']}"
    if numbers(versions["keras"]) < OLDEST_KERAS:
        least = ".".join(map(str, OLDEST_KERAS))
        advice = f"Install Keras {least} or later in the trainer's environment: architectures can trick older versions."
        yield Row(component, "trainer", PROBLEM, found, advice)
    else:
        yield Row(component, "trainer", OK, f"{found}; ready after {answer.seconds:.1f} s")
    devices = answer.trainer.devices
    found = f"{', '.join(devices)}; {counted(answer.threads or 0, 'thread')}"
    if no_gpu is None:
        yield Row(component, "devices", OK, found)
    else:
        yield Row(component, "devices", WARNING, f"{found}; {with_detail(no_gpu)}", no_gpu.hint)
    achieved = answer.trainer.confinement
    if achieved:
        yield Row(component, "confinement", OK, ", ".join(achieved))
    else:
        advice = "Only the allow-list and a process of its own confine the trainer; a newer Linux kernel does more."
        yield Row(component, "confinement", WARNING, "none", advice)
    where = "for cached rows, in memory" if answer.in_memory else f"for cached rows, in the data folder ({SCRATCH})"
    yield disk_row(component, "room", answer.scratch, where)


def priority(component: str, nice: int, setting: str | None) -> Row:
    """Whether the trainer gets as much of the processors as other processes.  ``setting``: that lowers its priority."""
    if nice <= 0:
        return Row(component, "priority", OK, f"nice {nice}")
    found = f"nice {nice}: beside other work, training takes several times as long"
    if setting is None:
        return Row(component, "priority", WARNING, found, "Start the server without nice.")
    advice = f"gpconfig -c {setting} -v 0; then restart the cluster: gpstop -ar."
    return Row(component, "priority", WARNING, found, advice)


def _agreement(examined: Examined, sound: dict[str, Inspected]) -> Iterator[Row]:
    """Whether all segments have the same versions and paths, and the coordinator, too."""
    same: dict[str, Callable[[ServerFacts], Any]] = {
        "extension's code": lambda facts: facts.version,
        "code folder": lambda facts: facts.code,
        "install.json": lambda facts: facts.installed,
        "embedded Python": lambda facts: facts.python,
    }
    found = {
        what: [repr(of(one)) for one in (examined.here, *[answer.facts for answer in sound.values()])]
        for what, of in same.items()
    }
    found["trainer"] = [repr(dict(sorted(answer.trainer.versions.items()))) for answer in sound.values()]
    differing = []
    for what, values in found.items():
        if len(set(values)) > 1:
            differing.append(f"{what}: {' / '.join(sorted(set(values)))}")
    if differing:
        yield Row(
            "segments",
            "agreement",
            PROBLEM,
            "; ".join(differing),
            "Install the same on every host, at the same paths.  Sessions from before an upgrade keep the old code.",
        )
    else:
        yield Row("segments", "agreement", OK, f"{counted(len(sound), 'segment')}, all like the coordinator")


def _memory(sound: dict[str, Inspected]) -> Iterator[Row]:
    """Whether each host has memory for models, after its trainers have started."""
    hosts = sorted({answer.facts.host for answer in sound.values()})
    for host in hosts:
        there = [answer for answer in sound.values() if answer.facts.host == host]
        taken = [answer.resident for answer in there if answer.resident]
        free = there[-1].facts.memory  # without what the trainers have taken
        if not taken or free is None:
            continue
        trainers = counted(len(there), "trainer")
        found = f"{trainers} took {megabytes(sum(taken))} before building a model; {megabytes(free)} are left"
        check = "memory" if len(hosts) == 1 else f"memory of {host}"
        if free < sum(taken):
            yield Row("segments", check, WARNING, found, "Large models will not fit: pack into fewer segments.")
        else:
            yield Row("segments", check, OK, found)
