"""Chaos: small runs under random failures, which must end with the same models as a run without failures.

    python -m tests.chaos --events 200 [--seed N] [--folder F] [--resume] [--only "kill -9 segment"]

The server is a throw-away cluster, or the Greenplum that CEREBRO_TEST_KILLABLE_DSN names.  There, most events kill a
process of a segment in the middle of a hop; then no transaction may remain prepared, and the server must not panic.

Each run trains the same configurations, deterministically: by hops, by averaging, or on rows with folds; with dropout,
in a recurrent layer, too; and some runs evaluate every epoch.  At random moments it is killed, cancelled, stopped and
resumed, and people wait for it, steer it, hand it out, forget it and hold locks (chaos_people.py).  When it has had its
number of events, it is resumed until it finishes, and the models that people have stopped go on.  Afterwards nothing
committed may be missing, the whole states (weights, optimizer, seeds) must be those of the run without failures, and no
session, trainer or scratch folder may remain.
After each run, the tally is written to a file in the folder; ``--resume`` continues it.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Union

import psycopg2

from cerebro_db.embedded import cluster as clusters
from cerebro_db.embedded import throw_away
from tests.chaos_people import CONFIGURATIONS, People
from tests.given_greenplum import GivenGreenplum
from tests.sql.lab import CROSS, Lab, flower_model, layer, natural_fit, run, sequential

SEGMENTS, EPOCHS = 2, 3
OPTIONS = {"deterministic": True, "seed": 11, "synchronous_commit": True}  # else a crash takes the last commits
STUCK = 240.0  # seconds; a run that takes longer has failed, also on a slow machine
LOST = "(SELECT pid FROM pg_stat_activity WHERE application_name LIKE %s ORDER BY random() LIMIT 1)"


@dataclass(frozen=True)
class Sort:
    """What a run trains on, and how."""

    name: str
    source: str = "train"
    validation: str | None = "val"
    folds: int = 0
    configurations: int = CONFIGURATIONS
    averages: bool = False  # as madlib_keras_fit does: a replica on each segment

    @property
    def models(self) -> int:
        """Without copies, which have larger numbers."""
        return self.configurations * (1 + self.folds)


HOPS = Sort("hops")
FOLDS = Sort("folds", "folded", None, folds=2)
AVERAGES = Sort("averages", configurations=1, averages=True)
SORTS = (HOPS, FOLDS, HOPS, AVERAGES)


@dataclass
class Tally:
    """The counts of a series of runs.  The product is correct if the second group stays at zero."""

    seed: int
    runs: int = 0
    events: dict[str, int] = field(default_factory=dict)
    resumes: int = 0
    seconds: float = 0.0
    # sort and model -> hash of its last state in the run without failures
    expected: dict[str, str] = field(default_factory=dict)

    lost_hops: int = 0
    repeated_hops: int = 0
    wrong_weights: int = 0
    orphans: int = 0
    stuck: int = 0
    surprises: list[str] = field(default_factory=list)  # errors that are not explained by an event

    @property
    def faults(self) -> int:
        return (
            self.lost_hops + self.repeated_hops + self.wrong_weights + self.orphans + self.stuck + len(self.surprises)
        )

    def save(self, folder: Path) -> None:
        beside = folder / "tally.new"
        beside.write_text(json.dumps(asdict(self), indent=1) + "\n")
        beside.rename(folder / "tally.json")

    @classmethod
    def load(cls, folder: Path) -> Tally:
        return cls(**json.loads((folder / "tally.json").read_text()))

    def summary(self) -> str:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self.events.items()))
        lines = [
            f"{sum(self.events.values())} events in {self.runs} runs with {self.resumes} resumes"
            f" ({self.seconds:.0f} s, seed {self.seed})",
            f"  {kinds}",
            f"  lost hops {self.lost_hops}, repeated hops {self.repeated_hops}, wrong weights {self.wrong_weights},"
            f" orphans {self.orphans}, stuck runs {self.stuck}, surprises {len(self.surprises)}",
        ]
        return "\n".join(lines + [f"  {surprise}" for surprise in self.surprises])


class Chaos:
    def __init__(self, server: Server, lab: Lab, tally: Tally, say: Callable[[str], None]) -> None:
        self.server, self.lab, self.tally, self.say = server, lab, tally, say
        self.drivers: list[threading.Thread] = []
        # (weight, name, function)
        self.kinds: list[tuple[int, str, Callable[[random.Random], bool]]] = [
            (5, "kill -9 trainer", self.kill_trainer),
            (3, "kill -9 worker session", lambda chance: self.kill_session("cerebro_db segment%", chance)),
            (2, "kill -9 driver", lambda chance: self.kill_driver()),
            (1, "kill -9 recorder", lambda chance: self.kill_session("cerebro_db recorder%", chance)),
            (1, "kill -9 checkpointer", lambda chance: self.kill_checkpointer()),
            (3, "terminate worker session", lambda chance: self.end("pg_terminate_backend", "cerebro_db segment%")),
            (1, "terminate recorder", lambda chance: self.end("pg_terminate_backend", "cerebro_db recorder%")),
            (2, "terminate driver", lambda chance: self.end_driver("pg_terminate_backend")),
            (2, "cancel worker session", lambda chance: self.end("pg_cancel_backend", "cerebro_db segment%")),
            (2, "cancel driver", lambda chance: self.end_driver("pg_cancel_backend")),
            (2, "cerebro.cancel", lambda chance: self.cancel()),
            (3, "immediate stop", lambda chance: self.stop()),
        ]
        if isinstance(server, GivenGreenplum):
            self.kinds.append((30, "kill -9 segment process in a hop", self.kill_segment))
            self.panics = server.panics()
        self.run, self.keeps_best, self.refusal, self.sort = 0, False, "", HOPS
        self.visits: dict[str, Counter[tuple[Any, ...]]] = {}  # of each sort, in the run without failures
        self.evaluations: dict[str, Counter[int]] = {}  # the same: epoch -> how many
        self.people = People(lab, tally.surprises)
        self.kinds += self.people.events(lambda: (self.run, self.sort.models))

    # -- preparing --------------------------------------------------------------------------------------

    def prepare(self) -> None:
        lab = self.lab
        lab.iris(SEGMENTS)
        noisy = sequential(
            [4],
            layer("Dense", "hidden", units=8, activation="relu"),
            layer("BatchNormalization", "norm"),
            layer("Dropout", "drop", rate=0.3),
            layer("Dense", "out", units=3, activation="softmax"),
        )
        gated = sequential(
            [4],
            layer("Reshape", "in_a_row", target_shape=[4, 1]),
            layer("GRU", "gated", units=4, dropout=0.2),
            layer("Dense", "out", units=3, activation="softmax"),
        )
        plain, noisy_id, gated_id = (lab.architecture(model) for model in (flower_model(), noisy, gated))
        lab.selection(
            "mst",
            [
                (plain, f"optimizer='Adam(lr=0.01)', {CROSS}", "batch_size=7, epochs=1"),
                (noisy_id, f"optimizer='SGD(lr=0.05, momentum=0.9)', {CROSS}", "batch_size=4, epochs=3"),
                (noisy_id, f"optimizer='RMSprop(lr=0.01)', {CROSS}", "batch_size=5, epochs=1"),
                (gated_id, f"optimizer='Adam(lr=0.01)', {CROSS}", "batch_size=6, epochs=1"),
            ],
        )
        lab(
            "SELECT pack('flowers', 'folded', 'species', 'sl, sw, pl, pw', folds => %s, segments => %s, seed => 1)",
            FOLDS.folds,
            SEGMENTS,
        )
        undisturbed: dict[str, str] = {}
        lab(
            f"SELECT madlib.madlib_keras_fit('train', 'averaged', 'arch', {noisy_id}, $$optimizer='Adam(lr=0.01)',"
            f" {CROSS}$$, 'batch_size=5, epochs=1', {EPOCHS}, FALSE, 'val', 1)"
        )
        for self.sort in (HOPS, FOLDS, AVERAGES):
            # Which epoch is best depends on the processor, so there is a table of either kind.
            self.keeps_best = self.sort is HOPS
            self.begin(f"calm_{self.sort.name}_{self.kept}")
            lab("SELECT wait(%s)", self.run)
            self.joined()
            if self.keeps_best:
                lab("SELECT materialize(%s, %s, 'last')", self.run, f"calm_{self.sort.name}_last")
            undisturbed.update(self.hashes())
            self.visits[self.sort.name], self.evaluations[self.sort.name] = self.visited(), self.evaluated()
        if self.tally.expected and self.tally.expected != undisturbed:
            self.tally.surprises.append("the undisturbed runs have other weights than the last time")
        self.tally.expected = undisturbed

    def begin(self, output: str, **more: Any) -> None:
        """Begin a run of this sort."""
        options = {**OPTIONS, "keep": self.kept, **more}
        if self.sort.averages:
            self.run = self.averaged_again(output)
            self.resume()
            return
        fit = natural_fit(self.sort.source, output, "mst", EPOCHS, validation_table=self.sort.validation,
                          options=options, wait=False)  # fmt: skip
        with contextlib.closing(self.lab.connect()) as connection:  # the session ends at once
            ((self.run,),) = run(connection, *fit)

    def averaged_again(self, output: str) -> int:
        """A run with the plan of the one that averages.  madlib_keras_fit cannot be given a seed."""
        (planned, storage, number), *_ = self.ask(
            "SELECT run, storage, nextval('run_id') FROM run WHERE model_table LIKE '%%.averaged'"
        )
        own = f"run_{number:012x}"
        for place in (0, 1):
            self.ask(
                f"CREATE TABLE cerebro_state.{own}_shared_{place}"
                f" (LIKE cerebro_state.{storage}_shared_{place} INCLUDING ALL)"
            )
        changed = {
            "run": str(number), "model_table": f"'{self.lab.schema}.{output}'", "storage": f"'{own}'",
            "options": f"options || '{json.dumps(OPTIONS)}'",
        }  # fmt: skip
        for table in ("run", "architecture", "configuration", "model"):
            found = self.ask("SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0"
                             " AND NOT attisdropped", f"cerebro.{table}")  # fmt: skip
            names = [name for (name,) in found]
            values = ", ".join(changed.get(name, name) for name in names)
            self.ask(
                f"INSERT INTO cerebro.{table} ({', '.join(names)}) SELECT {values} FROM cerebro.{table} WHERE run = %s",
                planned,
            )
        self.ask("INSERT INTO cerebro.event (run, event) VALUES (%s, 'created')", number)
        return int(number)

    def joined(self) -> None:
        for thread in self.drivers:
            thread.join(60)
        self.drivers.clear()

    def hashes(self) -> dict[str, str]:
        states = self.lab.states(self.run).items()
        own = {model: hashlib.sha256(state).hexdigest() for model, state in states if model <= self.sort.models}
        return {f"{self.sort.name} {model}": sha256 for model, sha256 in sorted(own.items())}

    def visited(self) -> Counter[tuple[Any, ...]]:
        return Counter(self.ask("SELECT model, epoch, segment, kind FROM hop WHERE run = %s AND model <= %s",
                                self.run, self.sort.models))  # fmt: skip

    def evaluated(self) -> Counter[int]:
        epochs = self.ask("SELECT epoch FROM evaluation WHERE run = %s AND model <= %s", self.run, self.sort.models)
        return Counter(epoch for (epoch,) in epochs)

    # -- events: each returns True if it found a target ---------------------------------------------------

    def kill_trainer(self, chance: random.Random) -> bool:
        assert self.lab.home is not None
        there = self.lab.trainers()
        return bool(there) and kill(chance.choice(there)[0])

    def kill_segment(self, chance: random.Random) -> bool:
        """A process that has begun a hop and not committed it.  Its segment ends all of its processes."""
        found = self.ask(
            "SELECT a.worker_pid FROM attempt a LEFT JOIN hop h USING (run, model, hop)"
            " WHERE a.run = %s AND h.run IS NULL ORDER BY a.started_at DESC LIMIT 2",
            self.run,
        )
        return bool(found) and kill(chance.choice(found)[0])

    def kill_session(self, application: str, chance: random.Random) -> bool:
        found = self.ask("SELECT pid FROM pg_stat_activity WHERE application_name LIKE %s", application)
        return bool(found) and kill(chance.choice(found)[0])

    def kill_driver(self) -> bool:
        pid = self.driver()
        return pid is not None and kill(pid)

    def kill_checkpointer(self) -> bool:
        return kill(self.ask("SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'")[0][0])

    def end(self, how: str, application: str) -> bool:
        return bool(self.ask(f"SELECT {how}({LOST})", application)[0][0])

    def end_driver(self, how: str) -> bool:
        pid = self.driver()
        return pid is not None and bool(self.ask(f"SELECT {how}(%s)", pid)[0][0])

    def cancel(self) -> bool:
        return bool(self.ask("SELECT cancel(%s)", self.run)[0][0])

    def stop(self) -> bool:
        self.server.restart("immediate")
        return True

    def driver(self) -> int | None:
        status, pid = self.ask("SELECT status, driver_pid FROM runs WHERE run = %s", self.run)[0]
        return pid if status == "running" else None

    # -- queries to a server that may be starting ---------------------------------------------------------

    def ask(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Retry until the server answers, because a kill -9 of any backend restarts it."""
        deadline = time.monotonic() + 90
        while True:
            try:
                return self.lab(statement, *values)
            except psycopg2.Error as error:
                # Without an SQLSTATE, or with one of class 57P, the server is not running, is stopping or is starting.
                # 58M01: this session has lost a segment of Greenplum.
                if (error.pgcode or "57P").startswith(("57P", "58M01")) and time.monotonic() < deadline:
                    self.lab.close()
                else:
                    raise
                time.sleep(0.1)

    def committed(self) -> dict[tuple[int, int], str]:
        return {
            (key, hop): sha256
            for key, hop, sha256 in self.ask("SELECT model, hop, state_sha256 FROM hop WHERE run = %s", self.run)
        }

    # -- one run -------------------------------------------------------------------------------------------

    def resume(self) -> None:
        """Resume the run in a session that waits for it, as a user would."""
        # It has failed if every configuration was killed three times at the same unit.
        before = self.status()
        again = before == "failed"

        def wait_for_it() -> None:
            # The outcome is read from the run's log.
            try:
                with contextlib.closing(self.lab.connect()) as connection:
                    run(connection, "SELECT resume(%s, retry_failed => %s)", self.run, again)
            except psycopg2.Error as error:
                self.refusal = f"resume says: {str(error).strip().splitlines()[:2]}"

        self.tally.resumes += 1
        thread = threading.Thread(target=wait_for_it, daemon=True)
        thread.start()
        self.drivers.append(thread)
        deadline = time.monotonic() + 60
        while thread.is_alive() and self.status() == before and time.monotonic() < deadline:
            time.sleep(0.05)

    @property
    def kept(self) -> str:
        return "best" if self.keeps_best else "last"

    def status(self) -> str:
        return self.ask("SELECT status FROM runs WHERE run = %s", self.run)[0][0]

    def disturbed_run(self, number: int, most_events: int) -> None:
        chance = random.Random(f"{self.tally.seed}/{number}")
        name = f"wild_{number}_{chance.randrange(1 << 30)}"
        wanted = min(most_events, chance.randint(2, 8))
        seen: dict[tuple[int, int], str] = {}
        began = time.monotonic()
        self.sort = SORTS[number % len(SORTS)]
        self.keeps_best = number % 3 == 0 and self.sort is HOPS  # every epoch is evaluated
        self.begin(name, read_ahead=number % 2 == 0)
        done = 0
        while done < wanted:
            # Some events hit the start of the trainers, most hit their work.
            time.sleep(chance.expovariate(1 / 2.5))
            seen.update(self.require_kept(seen))
            if (status := self.status()) == "finished":
                break
            if status != "running":
                self.resume()
                continue
            weight, kind, event = chance.choices(self.kinds, [weight for weight, _, _ in self.kinds])[0]
            if event(chance):
                done += 1
                self.tally.events[kind] = self.tally.events.get(kind, 0) + 1
                self.say(f"run {self.run} ({self.sort.name}): {kind}")
        self.finish(began)
        self.people.go()
        self.once_more()
        self.require_kept(seen)
        self.judge(name)
        self.ask(f'DROP TABLE IF EXISTS "{name}", "{name}_info", "{name}_summary"')
        self.ask("SELECT forget(%s)", self.run)
        self.tally.runs += 1

    def finish(self, began: float) -> None:
        deadline = time.monotonic() + STUCK
        while (status := self.status()) != "finished" or self.unanswered():
            if time.monotonic() > deadline:
                self.tally.stuck += 1
                took = f"after {time.monotonic() - began:.0f} s"
                self.tally.surprises.append(f"run {self.run} is {status} {took}; {self.refusal}")
                return
            if status not in ("running", "created", "finishing"):
                self.resume()
            time.sleep(0.1)
        self.ask("SELECT wait(%s)", self.run)  # A submitted run may still have to create its tables.
        self.joined()

    def unanswered(self) -> bool:
        """Whether requests of people wait for a resume.  Models that they have stopped are asked to go on."""
        waiting = "SELECT 1 FROM requests WHERE run = %s AND status = 'waiting'"
        stopped = "SELECT model FROM leaderboard WHERE run = %s AND model <= %s AND status = 'stopped'"
        if not self.ask(waiting, self.run):
            for (model,) in self.ask(stopped, self.run, self.sort.models):
                self.ask("SELECT go_on(%s, model => %s)", self.run, model)
        return bool(self.ask(waiting, self.run))

    def once_more(self) -> None:
        """Resume the run if a configuration was given up because it was killed three times at the same unit."""
        given_up = self.ask(
            "SELECT 1 FROM leaderboard WHERE run = %s AND status = 'failed' AND reason LIKE 'gave up after %%'",
            self.run,
        )
        if given_up:
            self.tally.resumes += 1
            self.ask("SELECT resume(%s, retry_failed => true)", self.run)

    def require_kept(self, seen: dict[tuple[int, int], str]) -> dict[tuple[int, int], str]:
        """Everything that an earlier look found committed is still there and unchanged."""
        now = self.committed()
        self.tally.lost_hops += len(set(seen) - set(now))
        self.tally.wrong_weights += sum(1 for hop in seen if hop in now and now[hop] != seen[hop])
        return now

    def judge(self, name: str) -> None:
        tally, lab = self.tally, self.lab
        visits, calm = self.visited(), self.visits[self.sort.name]
        tally.lost_hops += len(set(calm) - set(visits))
        tally.repeated_hops += sum((visits - calm).values())
        if not self.hashes().items() <= tally.expected.items():
            tally.wrong_weights += 1
            tally.surprises.append(f"run {self.run}: states are not those of the undisturbed run")
        failed = self.ask(
            "SELECT configuration, reason FROM leaderboard WHERE run = %s AND status <> 'finished'", self.run
        )
        tally.surprises += [f"run {self.run}: configuration {key} failed: {reason}" for key, reason in failed]
        expected = self.evaluations[self.sort.name]
        evaluated = self.evaluated()
        if evaluated != (expected if self.keeps_best or self.sort is not HOPS else Counter({EPOCHS: expected[EPOCHS]})):
            tally.surprises.append(f"run {self.run}: evaluations of each epoch: {dict(evaluated)}")
        # The session that finishes the run creates its tables. If it was killed before that, we create them.
        if not self.ask("SELECT to_regclass(%s) IS NOT NULL", name)[0][0]:
            self.ask("SELECT materialize(%s, %s)", self.run, name)
        calm_table = f"calm_{self.sort.name}_{self.kept}"
        same = "w.model_weights = c.model_weights" if self.sort.averages else "w.weights = c.weights"
        on = "true" if self.sort.averages else "w.configuration = c.configuration"
        wrong = self.ask(f'SELECT 1 FROM "{name}" w JOIN {calm_table} c ON {on} WHERE NOT {same}')
        tally.wrong_weights += len(wrong)
        if left := after_a_moment(self.left_behind):
            tally.orphans += len(left)
            tally.surprises.append(f"run {self.run} left behind: {left}")
        lab.told()

    def left_behind(self) -> list[Any]:
        prepared = self.ask(self.server.prepared) if isinstance(self.server, GivenGreenplum) else []
        return [*self.lab.sessions(), *self.lab.trainers(), *prepared]

    def last_look(self) -> None:
        """Check that nothing remains.  A worker removes the folders of killed workers when it starts."""
        with contextlib.closing(self.lab.connect()) as connection:  # a session without a kept team
            run(connection, "SELECT madlib_fit_multiple_model('train', 'last', 'mst', 1)")
        if dead := after_a_moment(self.lab.abandoned):  # The trainers of this session may still be emptying theirs.
            self.tally.orphans += len(dead)
            self.tally.surprises.append(f"scratch folders left: {dead}")
        if isinstance(self.server, GivenGreenplum) and self.server.panics() != self.panics:
            self.tally.surprises.append("the server panicked: its log says why")


def after_a_moment(question: Callable[[], list[Any]]) -> list[Any]:
    """What remains after all processes have had time to end."""
    deadline = time.monotonic() + 20
    while (found := question()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


def kill(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
        return True
    return False


Server = Union[clusters.Cluster, GivenGreenplum]
TRAINER = str(Path(sys.executable).parent.resolve() / Path(sys.executable).name)


def wreak(
    server: Server, folder: Path, events: int, seed: int, resume: bool, say: Callable[[str], None], *, only: str = ""
) -> Tally:
    """Cause this number of events, in addition to those in the folder's tally; only those whose names begin so."""
    folder.mkdir(parents=True, exist_ok=True)
    tally = Tally.load(folder) if resume and (folder / "tally.json").exists() else Tally(seed)
    goal, before, began = sum(tally.events.values()) + events, tally.seconds, time.monotonic()
    lab = Lab(server.dsn(), "chaos", server.home)
    try:
        lab("CREATE SCHEMA chaos")
        chaos = Chaos(server, lab, tally, say)
        chaos.kinds = [kind for kind in chaos.kinds if kind[1].startswith(only)]
        chaos.prepare()
        while (left := goal - sum(tally.events.values())) > 0 and tally.stuck == 0:
            chaos.disturbed_run(tally.runs + 1, left)
            tally.seconds = before + time.monotonic() - began
            tally.save(folder)
            say(tally.summary())
        chaos.last_look()
        tally.save(folder)
    finally:
        with contextlib.suppress(psycopg2.Error):
            lab("SET client_min_messages = error; DROP SCHEMA chaos CASCADE")
        lab.close()
    return tally


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=200, help="how many, in addition to those on the tally")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=Path("build/chaos"), help="where the tally is kept")
    parser.add_argument("--resume", action="store_true", help="add to the tally that is there")
    parser.add_argument("--only", default="", help="only events whose names begin like this")
    chosen = parser.parse_args()
    given = os.environ.get("CEREBRO_TEST_KILLABLE_DSN")
    server: Server = GivenGreenplum(given) if given else throw_away.create(TRAINER)
    try:
        tally = wreak(
            server,
            chosen.folder,
            chosen.events,
            chosen.seed,
            chosen.resume,
            lambda text: print(text, flush=True),
            only=chosen.only,
        )
    finally:
        if isinstance(server, clusters.Cluster):
            throw_away.remove(server)
    print("chaos:", "all is well" if tally.faults == 0 else "FAULTS")
    return 1 if tally.faults else 0


if __name__ == "__main__":
    sys.exit(main())
