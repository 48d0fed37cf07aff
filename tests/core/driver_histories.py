"""Histories of runs under the real driver: each is made of one number, has faults, and is checked to the last bit.

A run is driven again and again from what the server in memory still has, at last without faults.  What its models must
come to is computed here by training each alone, without any driver.
"""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest import mock

import psycopg2
from segment_in_memory import Faults, added_up, averaged, checksum, counted, loss_of, rows_of, seeded, trained
from server_in_memory import Crash, MemorySession, MemoryTeam, Server

from cerebro_db.core import codec
from cerebro_db.core.errors import CerebroError
from cerebro_db.core.names import Name
from cerebro_db.core.packing.layout import GroupColumn, Groups, Layout, Partition, Variable
from cerebro_db.core.packing.preparation import AsIs, Real
from cerebro_db.core.protocol import TrainerOptions
from cerebro_db.core.run_options import RunOptions
from cerebro_db.core.scheduling.ring import derived_seed, visit_order
from cerebro_db.core.search.policy import NewModel
from cerebro_db.core.sql import shown
from cerebro_db.core.sql_types import SqlType
from cerebro_plpy import platform
from cerebro_plpy.platform import GREENPLUM, POSTGRESQL
from cerebro_plpy.runs.drive import driver, execution, incoming_requests, sharing
from cerebro_plpy.runs.record import shared_tables, state_tables
from cerebro_plpy.runs.record.log.drivers import Drivers

RUN, STORAGE = 7, "run_x"
TABLE = "s.packed"
VALIDATION_TABLE = "s.packed_validation"
DATABASE: Any = SimpleNamespace(
    notice=lambda *a, **k: None,
    told=lambda *a, **k: None,
    detail=lambda *a, **k: None,
    verbose=None,
    ask_for_details=lambda: None,
    warning=lambda *a, **k: None,
    info=lambda *a, **k: None,
    plpy=None,
)


@dataclass
class Expected:
    """What becomes of a model that is trained alone."""

    states: dict[int, str] = field(default_factory=dict)  # by hop
    hops: dict[int, tuple[str, int, int]] = field(default_factory=dict)  # kind, epoch, segment
    means: dict[int, dict[str, list[float]]] = field(default_factory=dict)  # by hop
    evaluations: dict[tuple[int, str, int], float] = field(default_factory=dict)  # epoch, data set, part -> loss
    whole: dict[tuple[int, str], float] = field(default_factory=dict)  # epoch, data set -> accuracy of all parts
    failed: bool = False
    fails_within: set[int] = field(default_factory=set)  # hops of its last epoch that may be on record or not


def layout_of(keys: list[int], name: str, groups: dict[int, list[int]] | None = None) -> Layout:
    """``groups``: number of each group -> the keys of the segments that have rows of it."""
    pieces = {key: [group for group, its in (groups or {}).items() if key in its] for key in keys}
    return Layout(
        inputs=(Variable("x", "float32", (1,), ("x",), AsIs()),),
        outputs=(Variable(name, "float32", (1,), (name,), Real()),),
        rows=10 * len(keys),
        partitions=tuple(
            Partition(key, 10, 1, 80, "ab" * 32, groups=tuple((group, 10 // len(its)) for group in its))
            for key, its in pieces.items()
        ),
        groups=None
        if groups is None
        else Groups((GroupColumn("g", SqlType("text")),), tuple((str(g),) for g in groups)),
    )


class DriverHistory:
    """A run with everything that happens to it."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        chance = self.chance = random.Random(seed)
        self.segments = chance.randint(1, 4)
        self.epochs = chance.randint(1, 3)
        self.evaluate_every = chance.randint(0, 2)
        self.models = sorted(chance.sample(range(1, 40), chance.randint(1, 7)))
        self.averages = chance.random() < 0.15
        self.keys = sorted(chance.sample(range(100), self.segments))
        self.parts = {"validation": chance.choice((0, 0, 1, self.segments))}
        self.options = RunOptions(
            seed=chance.getrandbits(31),
            trainer=TrainerOptions(threads=2),
            read_ahead=chance.choice((None, False, True, True)),
            fuse=chance.choice((None, True, False, False)),
            evaluate_training=chance.random() < 0.3,
            averaging=self.averages,
            **self._objective(),
        )
        if self.options.evaluate_training:
            self.parts["training"] = self.segments
        self.faults = Faults(chance, forgets=chance.choice((0.0, 0.0, 0.1)))
        places = chance.choice((["host"] * self.segments, ["a", "b", "a", "b"], [""] * self.segments))
        self.server = Server(
            chance.choice((POSTGRESQL, GREENPLUM)), self.faults, places, chance.choice((1000, 1 << 20, 3 << 20))
        )
        self.server.merges = chance.random() < 0.3
        if random.Random(f"sizes {seed}").random() < 0.5:
            self.server.expected_bytes = 1000  # as that of a model that was added, whose size nobody knows
        # Group -> the segments with rows of it: each segment has a group of its own, and all share one.
        self.groups: dict[int, list[int]] = {}
        if not self.averages and random.Random(f"groups {seed}").random() < 0.5:
            self.groups = {segment + 1: [segment] for segment in range(self.segments)}
            self.groups[self.segments + 1] = list(range(self.segments))
        self.group_of = {model: model % (len(self.groups) + 1) or None for model in self.models}
        self.cancels = random.Random(f"cancels {seed}")
        self.seeds = {model: 1000 + model for model in self.models}
        self.counts: Counter[str] = Counter()

    def _objective(self) -> dict[str, Any]:
        if self.chance.random() < 0.6:
            return {}
        name = "val_loss" if self.parts["validation"] and self.chance.random() < 0.7 else "loss"
        return {"objective": name, "direction": "min", "keep": "best"}

    # -- the run on record -------------------------------------------------------------------------------------

    def record(self) -> None:
        log = self.server.log
        self.server.states = {shown(table): [] for table in state_tables.shared(STORAGE)}
        groups = {group: [self.keys[one] for one in its] for group, its in self.groups.items()} or None
        layout = layout_of(self.keys, "y", groups)
        parts = self.parts["validation"]
        validation = layout_of(self.keys[:parts] if parts > 1 else self.keys[-1:], "y", groups) if parts else None
        plan = (
            "me", TABLE, json.dumps(layout.to_json()),
            VALIDATION_TABLE if validation else None, json.dumps(validation.to_json()) if validation else None,
            "s.models", self.epochs, self.evaluate_every, self.options.seed, self.keys, STORAGE,
            json.dumps(self.options.to_json()),
        )  # fmt: skip
        log["run"].append({"plan": plan})
        log["architecture"].append({"model_id": 1, "architecture": "{}"})
        alike = self.chance.random() < 0.5
        for place, model in enumerate(self.models):
            seed = self.seeds[model]
            group = "g" if alike or model % 2 else None
            compiled = json.dumps({"optimizer": {"class_name": "SGD"}, "seed": seed, "group": group})
            log["configuration"].append(
                {"configuration": model, "place": place, "model_id": 1, "compile_params": "", "fit_params": "",
                 "compile": compiled, "fit": json.dumps({"batch_size": 32, "epochs": 1}), "parameters": "{}",
                 "chosen": None}
            )  # fmt: skip
            log["model"].append(
                {"model": model, "configuration": model, "seed": seed, "initial": "random", "initial_sha256": None,
                 "visits": self.visits(model) if self.averages else self.groups.get(self.group_of[model] or 0),
                 "parent": None, "fold": None, "group_number": self.group_of[model]}
            )  # fmt: skip
        for model in self.models:
            fate, last = self.chance.random(), self.epochs * len(self.groups.get(self.group_of[model] or 0, self.keys))
            if self.averages:
                continue  # what fails within an epoch of replicas leaves any of them
            if fate < 0.06:
                self.faults.broken[self.seeds[model]] = self.chance.randint(1, last)
            elif fate < 0.12 and not self.faults.killers and (self.group_of[model] or not self.groups):
                # The models of one configuration have one seed, and a segment that three models kill ends the run.
                self.faults.killers[self.seeds[model]] = self.chance.randint(1, last)
            elif fate < 0.16:
                self.faults.diverging[self.seeds[model]] = self.chance.randint(1, last)
            elif fate < 0.20:
                self.faults.unevaluable.add(self.seeds[model])

    def visits(self, model: int) -> list[int]:
        """The segments of an epoch's hops, in their order."""
        if self.averages:
            return [*range(self.segments), 0]
        built = (row for row in self.server.log["event"] if (row["event"], row["model"]) == ("built", model))
        order = visit_order(self.options.seed, json.loads(next(built)["detail"])["position"], self.segments)
        (mine,) = [row for row in self.server.log["model"] if row["model"] == model]
        return [segment for segment in order if mine["visits"] is None or segment in mine["visits"]]

    def evaluated_parts(self, model: int) -> dict[str, list[int]]:
        """The parts of each data set that have rows for a model."""
        (mine,) = [row for row in self.server.log["model"] if row["model"] == model]
        found = {dataset: list(range(count)) for dataset, count in self.parts.items()}
        if mine.get("group_number") is None:
            return found
        its = self.groups[mine["group_number"]]
        found = {dataset: [part for part in parts if part in its] for dataset, parts in found.items()}
        if self.parts["validation"] == 1:  # whose rows are those of the last segment
            found["validation"] = [0] if self.segments - 1 in its else []
        return found

    def last_epoch(self, model: int) -> int:
        """The epoch after which a model stops, by the decisions on record."""
        last = self.epochs
        for row in self.server.log["decision"]:
            if row["model"] == model and row["decision"] == "stop":
                last = row["epoch"]
            elif row["model"] == model and row["decision"] == "go on":
                last = self.epochs
        return last

    # -- its lives ---------------------------------------------------------------------------------------------

    def play(self) -> DriverHistory:
        self.record()
        most = self.epochs * self.segments * len(self.models)
        for _ in range(self.chance.choice((0, 1, 1, 2, 3))):
            self._let_people_ask(6 * most)
            if self.cancels.random() < 0.3:
                self.server.cancels_at.add(self.server.looks + 1 + int(self.cancels.random() * 6 * most))
            fate = self.chance.random()
            self.faults.crash_at = self.faults.cancel_at = -1
            if fate < 0.4:
                self.faults.crash_at = self.server.answers + 1 + int(self.chance.random() * 6 * most)
            elif fate < 0.7:
                self.faults.cancel_at = self.server.looks + 1 + int(self.chance.random() * 6 * most)
            self.faults.left = self.chance.choice((0, 1, 2)) - bool(self.faults.killers)
            if self._drive():
                break
        else:
            self.faults.crash_at = self.faults.cancel_at = -1
            self.server.cancels_at.clear()
            self.faults.left, self.faults.readers = 0, 0.0
            began = self.server.standing()
            assert self._drive(), "a run without faults did not end"
            if began != "finished":
                self._check_that_the_rest_is_gone()
        self.check()
        return self

    def _let_people_ask(self, most: int) -> None:
        """Requests of other sessions in the next life, some of them for models that there are not."""
        for _ in range(self.chance.choice((0, 0, 0, 1, 3))):
            model = self.chance.choice([*self.models, 2 * max(self.models)])
            action = self.chance.choice(("stop", "stop", "stop", "go on", "add", "add"))
            at = self.server.looks + int(self.chance.random() * most)
            detail = {"new": NewModel(None, parent=model).to_json()} if action == "add" else {"model": model}
            self.server.asked_at[at] = (action, detail)
            if action == "stop" and self.chance.random() < 0.7:
                self.server.asked_at[at + self.chance.randint(5, 50)] = ("go on", detail)

    def _drive(self) -> bool:
        """Whether the run came to its end."""
        server, happened = self.server, self.faults.happened
        server.gone, server.sessions = False, []
        recorder = MemorySession(server, server.listen)
        try:
            with on(server):
                execution.carry_out(DATABASE, recorder, RUN)
        except Crash:
            self.counts["crashes"] += 1
            return False
        except (CerebroError, psycopg2.Error) as error:
            if self._nothing_left(error):
                return True
            assert self.faults.happened > happened, f"nothing happened, and the run failed: {error!r}"
            if server.standing() == "finished":  # the cancel came while that was recorded
                return True
            assert server.standing() in ("failed", "cancelled"), f"the end of the run is not on record: {error!r}"
            self.counts[type(error).__name__] += 1
            return False
        finally:
            server.gone = False
            for session in server.sessions:
                session.orphaned()
        assert server.latest("started", "cancel requested") == "started", "a cancel was accepted and forgotten"
        return True

    def _nothing_left(self, error: BaseException) -> bool:
        """Whether all models have failed for good: then so has the run."""
        return "every configuration failed" in str(error) and all(
            self.expected(row["model"]).failed for row in self.server.log["model"]
        )

    # -- what it must come to ----------------------------------------------------------------------------------

    def handle(self, part: int, dataset: str = "training") -> str:
        table = TABLE if dataset == "training" else VALIDATION_TABLE
        return f'"s"."{table[2:]}"/{part}/{"ab" * 32}'

    def expected(self, model: int) -> Expected:
        found, (row,) = Expected(), [row for row in self.server.log["model"] if row["model"] == model]
        seed, configured = row["seed"], self.seeds[row["configuration"]]
        state, hop = seeded(seed), 0
        if row["initial"] == "full":
            state = self.expected(row["parent"]).states[row["parent_hop"]]
        for epoch in range(1, self.last_epoch(model) + 1):
            parts: list[dict[str, list[float]]] = []
            base, replicas, visits = state, [], self.visits(model)
            for place, segment in enumerate(visits):
                hop += 1
                if hop in (self.faults.broken.get(seed), self.faults.killers.get(seed)):
                    found.failed = True
                    return found
                averages = self.averages and place == len(visits) - 1
                if averages:
                    state = averaged(replicas)
                    kind = "average"
                else:
                    before = base if self.averages else state
                    shuffle_seed = derived_seed(self.options.seed, "rows", model - 1, hop)
                    state = trained(before, self.handle(segment), shuffle_seed)
                    parts.append(counted(state, self.handle(segment)))
                    replicas.append((state, rows_of(self.handle(segment))))
                    kind = "train replica" if self.averages else "train"
                if hop == self.faults.diverging.get(seed):
                    found.failed = True
                    return found
                found.states[hop], found.hops[hop] = state, (kind, epoch, segment)
                found.means[hop] = added_up(parts[-1:] if kind == "train replica" else parts)
            every = self.evaluate_every > 0 and epoch % self.evaluate_every == 0
            if every or epoch == self.epochs:
                evaluated = self.evaluated_parts(model)
                if configured in self.faults.unevaluable and any(evaluated.values()):
                    found.failed = True
                    return found
                for dataset, parts_of_model in evaluated.items():
                    handles = {part: self.handle(part, dataset) for part in sorted(parts_of_model)}
                    found.evaluations.update(
                        {(epoch, dataset, part): loss_of(state, handle) for part, handle in handles.items()}
                    )
                    if handles:
                        means = added_up([counted(state, handle) for handle in handles.values()])
                        found.whole[epoch, dataset] = means["accuracy"][0] / means["accuracy"][1]
        return found

    def check(self) -> None:
        log = self.server.log
        hops, evaluations, objectives = defaultdict(dict), defaultdict(dict), defaultdict(list)
        for row in log["hop"]:
            hops[row["model"]][row["hop"]] = row
        for row in log["evaluation"]:
            evaluations[row["model"]][row["epoch"], row["dataset"], row["part"]] = row
        for row in log["objective"]:
            objectives[row["model"]].append(row)
        failed = {row["model"] for row in log["event"] if row["event"] == "model failed"}
        for model in [row["model"] for row in log["model"]]:
            wanted = self.expected(model)
            assert (model in failed) == wanted.failed, f"model {model}: {wanted.failed=}"
            assert not any("was not received" in row["detail"] for row in log["event"]), "a state that moved is missed"
            mine = hops[model]
            assert mine.keys() == wanted.states.keys(), (
                f"model {model}: hops {sorted(mine)}, not {sorted(wanted.states)}"
            )
            for hop, row in mine.items():
                # In the middle of an order the state was not stored; the next one came from it.
                passing = row["state_sha256"] is None and hop + 1 in mine
                assert passing or row["state_sha256"] == checksum(wanted.states[hop]), (
                    f"model {model}, hop {hop}: another state"
                )
                self.counts["states that were not stored"] += passing
                assert (row["kind"], row["epoch"], row["segment"]) == wanted.hops[hop]
                assert codec.from_json(row["metric_states"])["means"] == wanted.means[hop], f"model {model}, hop {hop}"
            losses = {key: row["loss"] for key, row in evaluations[model].items()}
            assert losses.items() <= wanted.evaluations.items() if wanted.failed else losses == wanted.evaluations
            self._check_metrics(evaluations[model], wanted)
            if wanted.states and not wanted.failed:
                self._check_states(model, mine, wanted, objectives[model])
        assert self.server.standing() == ("failed" if len(failed) == len(log["model"]) else "finished")

    def _check_metrics(self, evaluations: dict[tuple[int, str, int], Any], wanted: Expected) -> None:
        """With the last part of a data set come the metrics of all parts; with a part that is repeated, too."""
        told = [(key[:2], json.loads(row["metrics"])) for key, row in evaluations.items() if row["metrics"] != "{}"]
        for key, metrics in told:
            assert abs(metrics["accuracy"] - wanted.whole[key]) < 1e-9
        if not wanted.failed:
            assert {key for key, _ in told} == wanted.whole.keys()

    def _check_states(self, model: int, hops: dict[int, Any], wanted: Expected, objectives: list[Any]) -> None:
        last = max(wanted.states)
        key = self.keys[hops[last]["segment"]]
        stored = self._stored(state_tables.table_name(STORAGE, model, last), model, last)
        assert stored.get(key) == wanted.states[last], "the last state is gone"
        if self.options.objective is None:
            return
        best: float | None = None
        at = 0
        of_evaluations = self.options.objective.startswith("val_")
        epochs = {epoch for epoch, dataset, _ in wanted.evaluations if dataset == "validation"}
        assert sorted(row["epoch"] for row in objectives) == (
            sorted(epochs) if of_evaluations else list(range(1, self.last_epoch(model) + 1))
        )
        for row in objectives:
            better = best is None or row["value"] < best
            assert row["kept"] == better, "another epoch than the best is kept"
            if better:
                best, at = row["value"], row["hop"]
        if best is None:
            return
        stored = self._stored(state_tables.best_table_name(STORAGE, model), model, at)
        assert stored.get(self.keys[hops[at]["segment"]]) == wanted.states[at], "the best state is gone"

    def _check_that_the_rest_is_gone(self) -> None:
        """A finished run keeps the last state of each model, and the best."""
        last = {row["model"]: 0 for row in self.server.log["model"]}
        for row in self.server.log["hop"]:
            last[row["model"]] = max(last[row["model"]], row["hop"])
        kept = {row["model"]: row["hop"] for row in self.server.log["objective"] if row["kept"]}
        for table in state_tables.shared(STORAGE):
            for _, model, hop, _ in self.server.states[shown(table)]:
                assert hop in (last[model], kept.get(model)) or self.averages, f"model {model}, hop {hop}: not freed"

    def _stored(self, own: Name, model: int, hop: int) -> dict[int | None, str]:
        """What tables have as the state after a hop, by the keys of segments."""
        small = state_tables.is_small(self.server.state_bytes)
        tables = state_tables.shared(STORAGE) if small else [own.sql]
        rows = [row for table in tables for row in self.server.states[shown(table)]]
        return {key: state for key, of, at, state in rows if (of, at) == (model if small else None, hop)}


@contextlib.contextmanager
def on(server: Server) -> Iterator[None]:
    """Whatever drives a run meanwhile drives it on the server in memory: all that is replaced is what has other tests.

    These are the claim of a run, and the opening of worker sessions.
    """

    def team_for(db: Any, keys: Sequence[int], options: Any, listen: Any, *, own: bool, recorder: Any, run: int) -> Any:
        team = MemoryTeam(server, keys, options, listen)
        team.open()
        return contextlib.closing(team)

    replaced: list[tuple[Any, str, Any]] = [
        (platform, "of", lambda db: server.platform),
        (Drivers, "claim", lambda *_: server.note("started")),
        (execution.warm_up, "ahead", lambda *_: None),
        (execution.kept_teams, "team_for", team_for),
        (time, "monotonic", server.clock),
        (driver, "LISTEN_EVERY", 0.0),
        (driver, "HEARTBEAT_EVERY", 0.0),
        (incoming_requests, "ASK_EVERY", 0.0),
        (sharing, "LOOK_EVERY", 0.0),
        (shared_tables, "FEWEST_APPENDED", 0),
        (shared_tables, "TIMES_NEEDED", 1),
    ]
    with contextlib.ExitStack() as stack:
        for owner, name, value in replaced:
            stack.enter_context(mock.patch.object(owner, name, value))
        yield


def play(seeds: range) -> Counter[str]:
    counts: Counter[str] = Counter()
    for seed in seeds:
        try:
            history = DriverHistory(seed).play()
        except Exception as error:
            raise AssertionError(f"history {seed}: {error}") from error
        counts.update(history.counts + history.server.seen)
        decided = [row["decision"] for row in history.server.log["decision"]]
        counts.update(f"decisions to {one}" for one in decided)
        reasons = [row["detail"] for row in history.server.log["event"] if row["event"] == "unit failed"]
        counts["chains with states that are too large"] += sum("larger than expected" in one for one in reasons)
        counts["hops"] += len(history.server.log["hop"])
        counts["evaluations"] += len(history.server.log["evaluation"])
        counts["faults"] += history.faults.happened
    return counts


def until_caught(first: int, most: int) -> int | None:
    """The number of the first of so many histories that goes wrong."""
    for seed in range(first, first + most):
        try:
            DriverHistory(seed).play()
        except Exception:
            return seed
    return None
