"""Chaos: small runs under random failures, which must end with the same models as a run without failures.

    python -m tests.chaos --events 200 [--seed N] [--folder F] [--resume] [--only "kill -9 segment"]

The server is a throw-away cluster, or the Greenplum that CEREBRO_TEST_KILLABLE_DSN names.  There, most events kill a
process of a segment in the middle of a hop; then no transaction may remain prepared, and the server must not panic.

Each run trains the same configurations, deterministically.  At random moments it is killed, cancelled, stopped and
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
from tests.chaos_people import MODELS, People
from tests.given_greenplum import GivenGreenplum
from tests.sql.lab import CROSS, Lab, flower_model, layer, run, sequential

SEGMENTS, EPOCHS = 2, 3
OPTIONS = {"deterministic": True, "seed": 11, "synchronous_commit": True}  # else a crash takes the last commits
STUCK = 240.0  # seconds; a run that takes longer has failed, also on a slow machine
LOST = "(SELECT pid FROM pg_stat_activity WHERE application_name LIKE %s ORDER BY random() LIMIT 1)"


@dataclass
class Tally:
    """The counts of a series of runs.  The product is correct if the second group stays at zero."""

    seed: int
    runs: int = 0
    events: dict[str, int] = field(default_factory=dict)
    resumes: int = 0
    seconds: float = 0.0
    expected: dict[str, str] = field(
        default_factory=dict
    )  # configuration -> hash of its last state in the run without failures

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
            (1, "kill -9 recorder", lambda chance: self.kill_session("cerebro_db recorder", chance)),
            (1, "kill -9 checkpointer", lambda chance: self.kill_checkpointer()),
            (3, "terminate worker session", lambda chance: self.end("pg_terminate_backend", "cerebro_db segment%")),
            (1, "terminate recorder", lambda chance: self.end("pg_terminate_backend", "cerebro_db recorder")),
            (2, "terminate driver", lambda chance: self.end_driver("pg_terminate_backend")),
            (2, "cancel worker session", lambda chance: self.end("pg_cancel_backend", "cerebro_db segment%")),
            (2, "cancel driver", lambda chance: self.end_driver("pg_cancel_backend")),
            (2, "cerebro.cancel", lambda chance: self.cancel()),
            (3, "immediate stop", lambda chance: self.stop()),
        ]
        if isinstance(server, GivenGreenplum):
            self.kinds.append((30, "kill -9 segment process in a hop", self.kill_segment))
            self.panics = server.panics()
        self.run, self.keeps_best, self.refusal = 0, False, ""
        self.people = People(lab, tally.surprises)
        self.kinds += self.people.events(lambda: self.run)

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
        plain, noisy_id = lab.architecture(flower_model()), lab.architecture(noisy)
        lab.selection(
            "mst",
            [
                (plain, f"optimizer='Adam(lr=0.01)', {CROSS}", "batch_size=7, epochs=1"),
                (noisy_id, f"optimizer='SGD(lr=0.05, momentum=0.9)', {CROSS}", "batch_size=4, epochs=3"),
                (noisy_id, f"optimizer='RMSprop(lr=0.01)', {CROSS}", "batch_size=5, epochs=1"),
            ],
        )
        # Which epoch is best depends on the processor, so there is a table of either kind.
        options = {**OPTIONS, "keep": "best"}
        run_id = lab.fit("train", "calm_best", "mst", EPOCHS, validation_table="val", options=options)
        self.ask("SELECT materialize(%s, 'calm_last', 'last')", run_id)
        undisturbed = self.hashes(run_id)
        if self.tally.expected and self.tally.expected != undisturbed:
            self.tally.surprises.append("the undisturbed run has other weights than the last time")
        self.tally.expected = undisturbed

    def hashes(self, run_id: int) -> dict[str, str]:
        states = self.lab.states(run_id).items()
        return {str(model): hashlib.sha256(state).hexdigest() for model, state in states if model <= MODELS}

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
        self.keeps_best = number % 3 == 0  # every epoch is evaluated
        options = {**OPTIONS, "read_ahead": number % 2 == 0, "keep": self.kept}
        self.run = self.lab.submit("train", name, "mst", EPOCHS, validation_table="val", options=options)
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
                self.say(f"run {self.run}: {kind}")
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
            if status not in ("running", "created"):
                self.resume()
            time.sleep(0.1)
        self.ask("SELECT wait(%s)", self.run)  # A submitted run may still have to create its tables.
        for thread in self.drivers:
            thread.join(60)
        self.drivers.clear()

    def unanswered(self) -> bool:
        """Whether requests of people wait for a resume.  Models that they have stopped are asked to go on."""
        waiting = "SELECT 1 FROM requests WHERE run = %s AND status = 'waiting'"
        stopped = f"SELECT configuration FROM leaderboard WHERE run = %s AND model <= {MODELS} AND status = 'stopped'"
        if not self.ask(waiting, self.run):
            for (configuration,) in self.ask(stopped, self.run):
                self.ask("SELECT go_on(%s, %s)", self.run, configuration)
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
        ours = f"run = %s AND model <= {MODELS}"  # without copies, which begin later
        visits = Counter(self.ask(f"SELECT model, epoch, segment FROM hop WHERE {ours}", self.run))
        expected = {
            (key, epoch + 1, place)
            for key in range(1, MODELS + 1)
            for epoch in range(EPOCHS)
            for place in range(SEGMENTS)
        }
        tally.lost_hops += len(expected - set(visits))
        tally.repeated_hops += sum(visits.values()) - len(visits)
        if self.hashes(self.run) != tally.expected:
            tally.wrong_weights += 1
            tally.surprises.append(f"run {self.run}: states are not those of the undisturbed run")
        failed = self.ask(
            "SELECT configuration, reason FROM leaderboard WHERE run = %s AND status <> 'finished'", self.run
        )
        tally.surprises += [f"run {self.run}: configuration {key} failed: {reason}" for key, reason in failed]
        evaluated = self.ask(f"SELECT count(*) FROM evaluation WHERE {ours}", self.run)[0][0]
        epochs = EPOCHS if self.keeps_best else 1
        if evaluated != MODELS * SEGMENTS * epochs:
            tally.surprises.append(f"run {self.run}: {evaluated} evaluations")
        # The session that finishes the run creates its tables. If it was killed before that, we create them.
        if not self.ask("SELECT to_regclass(%s) IS NOT NULL", name)[0][0]:
            self.ask("SELECT materialize(%s, %s)", self.run, name)
        wrong = self.ask(f'SELECT configuration FROM "{name}" w JOIN calm_{self.kept} c ON mst_key = configuration'
                         " WHERE weights <> model_weights")  # fmt: skip
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
