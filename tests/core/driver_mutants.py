"""Mistakes in the code that drives runs: histories on the server in memory must find each of them.

``python tests/core/driver_mutants.py NUMBER`` makes a mistake in the code as it is imported, plays histories until one
goes wrong, and says which.
"""

from __future__ import annotations

import importlib.machinery
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RUNS = "cerebro_plpy.runs."
MOST_HISTORIES = 1500


@dataclass(frozen=True)
class Mutant:
    """A mistake: in a module, a text that stands there once becomes another."""

    what: str
    module: str
    right: str
    wrong: str
    first: int = 0  # history: where hardly any finds the mistake, shortly before one that does


MUTANTS = (
    Mutant(
        "a cancel that comes after the last look is forgotten", RUNS + "record.log.events",
        "also = (Event.CANCEL_REQUESTED,) if event is Event.FINISHED else ()", "also = ()",
    ),
    Mutant(
        "a visit whose session was lost is never looked for on record", RUNS + "drive.driver",
        "self.on_record(worker, unit, seconds) or lost or Outcome(unit, cut=True)",
        "lost or Outcome(unit, cut=True)",
    ),
    Mutant(
        "a visit that is on record does not count for the model", RUNS + "drive.driver",
        "if not self.run.models[unit.model].has_hop(unit.hop):", "if False:",
    ),
    Mutant(
        "what evaluations before the start have counted is forgotten", RUNS + "drive.driver",
        "self.units.evaluated = self.log.units.counted_by_part()", "pass",
    ),
    Mutant(
        "a visit that failed beside others is not tried alone", RUNS + "drive.driver",
        "try_again = len(task.units) > 1 or isinstance(error, LOSSES)",
        "try_again = isinstance(error, LOSSES)",
    ),
    Mutant(
        "a visit whose trainer died is not tried again", RUNS + "drive.driver",
        "try_again = len(task.units) > 1 or isinstance(error, LOSSES)", "try_again = len(task.units) > 1",
    ),
    Mutant(
        "a task that was not the one whose message was lost is forgotten", RUNS + "drive.driver",
        "                self._begin(worker, task)\n        return outcomes",
        "                pass\n        return outcomes",
    ),
    Mutant(
        "a lost session is not replaced", RUNS + "drive.driver",
        "worker.tasks.asked, worker.tasks.abandon()\n        self.team.replace(worker)",
        "worker.tasks.asked, worker.tasks.abandon()",
    ),
    Mutant(
        "the end of a run that fails is not recorded", RUNS + "drive.execution",
        "        team.abandon()\n        record_end(recorder, log, error)", "        team.abandon()",
    ),
    Mutant(
        "the last state is freed", RUNS + "drive.execution",
        "state_tables.superseded(run, model, model.hops)", "state_tables.superseded(run, model, model.hops + 1)",
    ),
    Mutant(
        "a state in memory is used after any hop", RUNS + "units.unit",
        "if resident and in_memory is not None and in_memory.hop == hop:", "if resident and in_memory is not None:",
    ),
    Mutant(
        "the file of any hop is used", RUNS + "units.unit",
        "(left.hop, left.place) == (hop, worker.place)", "left.place == worker.place",
    ),
    Mutant(
        "the file of another host is used", RUNS + "units.unit",
        "left.place and (left.hop, left.place) == (hop, worker.place)", "left.place and left.hop == hop",
    ),
    Mutant(
        "a file that is gone is asked for again", RUNS + "units.unit",
        "                model.after(hop).left = None\n", "",
    ),
    Mutant(
        "a state that is gone is not fetched from the tables", RUNS + "units.unit",
        "if not (fetched.may_be_gone and isinstance(refused.error, (WrongState, CorruptState))):", "if True:",
    ),
    Mutant(
        "states are fetched from the segment of the first key", RUNS + "units.unit",
        "model.dist_key = worker.dist_key", "model.dist_key = self.run.dist_keys[0]",
    ),
    Mutant(
        "the epoch of what the metrics have counted is not kept", RUNS + "units.unit",
        "model.epoch, model.metric_states = visit.epoch, counted", "model.metric_states = counted",
    ),
    Mutant(
        "a task does not wait for the trainer", RUNS + "units.unit",
        "while worker.tasks.computing is not None:", "while False:",
    ),
    Mutant(
        "metrics go on over the end of an epoch", RUNS + "units.visit",
        "goes_on = model.epoch == first.epoch and not isinstance(first, TrainReplica)", "goes_on = True",
    ),
    Mutant(
        "a visit whose loss is no number is committed", RUNS + "units.visit",
        "        if result.reason is not None:\n", "        if False:\n",
    ),
    Mutant(
        "an order goes on with a model after its last epoch", "cerebro_db.core.scheduling.schedule",
        "if self.decides or visit.hop >= mine.total or visit.model in self._asked:",
        "if self.decides or visit.model in self._asked:",
    ),
    Mutant(
        "all visits of an order have the checksum of its last state", RUNS + "units.visit",
        "sha256 = state.sha256 if one.last else None", "sha256 = None",
    ),
    Mutant(
        "a chain starts from the state in the trainer's memory", RUNS + "units.visit",
        "    visits = [unit for group in groups for unit in group if isinstance(unit, Train)]\n",
        "    visits = first_visits(groups)\n",
    ),
    Mutant(
        "what an order did not come to has succeeded", "cerebro_db.core.scheduling.orchestrator",
        "        schedule.cut(unit)\n        return\n", "        pass\n",
    ),
    Mutant(
        "what an order did not come to stays under way", RUNS + "drive.driver",
        "        outcomes = [Outcome(unit, cut=True) for unit, result in zip(task.units, task.result) if result.cut]",
        "        outcomes = []",
    ),
    Mutant(
        "a state is stored as that of the hop before", RUNS + "units.visit",
        "LeftState(one.member.state.index, one.unit.model, one.unit.hop)",
        "LeftState(one.member.state.index, one.unit.model, one.unit.hop - 1)",
    ),
    Mutant(
        "a large state is stored as that of the hop before", RUNS + "units.visit",
        "                hop=hop,\n                start=",
        "                hop=hop - 1,\n                start=",
    ),
    Mutant(
        "a shared table is emptied while another session appends to it", RUNS + "record.shared_tables",
        "return self.leaving and not self.moving and not self.writers[self.other]",
        "return self.leaving and not self.moving",
    ),
    Mutant(
        "the best states do not move", RUNS + "record.state_tables",
        ", best.get(number, model.hops)}", "}",
    ),
    Mutant(
        "small states that nothing needs stay", RUNS + "drive.execution",
        "for source in (run.shared.other, run.shared.current):", "for source in ():",
    ),
    Mutant(
        "a state that has moved is not looked for again", RUNS + "units.unit",
        "            fetched.may_be_gone = True  # states that move", "            # states that move",
    ),
    Mutant(
        "large states are freed one hop too early", RUNS + "units.visit",
        "for table in state_tables.superseded(units.run, units.model(one.unit), one.unit.hop)",
        "for table in state_tables.superseded(units.run, units.model(one.unit), one.unit.hop + 1)",
    ),
    Mutant(
        "an average is put where the trainer has another state", RUNS + "units.averaging",
        "return [(model, number) for number in hop.averaged if model.replicas[number].rows > 0]",
        "return [(model, number) for number in reversed(hop.averaged) if model.replicas[number].rows > 0]",
    ),
    Mutant(
        "the metrics of all parts come with every part", RUNS + "units.evaluation",
        "if not parts.keys() >= set(units.run.parts_of(model, unit.dataset)):", "if False:",
    ),
    Mutant(
        "results of evaluations are in the order of the trainer", RUNS + "units.evaluation",
        "return [found[unit] for unit in todo]", "return [found[unit] for unit in order]",
    ),
    Mutant(
        "the best epoch is any epoch", RUNS + "units.objectives",
        "score < self._best.get(unit.model, math.inf)", "score < math.inf",
    ),
    Mutant(
        "the objective of a lost transaction is thought to be on record", RUNS + "units.objectives",
        "        if self._ended(unit) is not None:\n            self._load_epochs(unit.model)",
        "        self.committed(unit)", first=30,
    ),
    Mutant(
        "a resumed run looks for states on the first segment", RUNS + "record.log.plan",
        "            model.dist_key = run.dist_keys[last.segment]\n", "            model.dist_key = run.dist_keys[0]\n",
    ),
    Mutant(
        "a resumed run forgets the replicas of an epoch", RUNS + "record.log.plan",
        "for model in run.models.values() if run.averages else ():", "for model in ():",
    ),
    Mutant(
        "a task keeps the trainer for ever", "cerebro_plpy.sessions.overlap",
        "            self.computing = self.computing_since = None\n", "            pass\n",
    ),
    Mutant(
        "rows that a new trainer lacks are thought to be there", "cerebro_plpy.sessions.team",
        "                worker.cached.clear()\n                worker.verified.clear()\n", "                pass\n",
    ),
)  # fmt: skip


class Loader(importlib.machinery.SourceFileLoader):
    """Imports a module with a mistake in it."""

    def __init__(self, name: str, path: str, mutant: Mutant) -> None:
        super().__init__(name, path)
        self.mutant = mutant

    def get_code(self, fullname: str) -> CodeType:
        source = Path(self.path).read_text()
        assert source.count(self.mutant.right) == 1, f"not once in {self.path}: {self.mutant.right}"
        return compile(source.replace(self.mutant.right, self.mutant.wrong), self.path, "exec")


class Finder:
    """Finds the module of a mutant."""

    def __init__(self, mutant: Mutant) -> None:
        self.mutant = mutant

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        if name != self.mutant.module:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        assert spec is not None and spec.origin is not None
        spec.loader = Loader(name, spec.origin, self.mutant)
        return spec


def main(number: str) -> None:
    warnings.simplefilter("ignore")
    sys.path[:0] = [str(ROOT), str(ROOT / "plpy"), str(ROOT / "tests/core")]
    mutant = MUTANTS[int(number)]
    sys.meta_path.insert(0, Finder(mutant))
    import driver_histories  # noqa: PLC0415  (with the mistake)

    print(driver_histories.until_caught(mutant.first, MOST_HISTORIES))


if __name__ == "__main__":
    main(*sys.argv[1:])
