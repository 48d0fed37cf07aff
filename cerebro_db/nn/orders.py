"""What the trainer can be told to do: one method per order of docs/architecture.md."""

from __future__ import annotations

import contextlib
import errno
import gc
import hashlib
import math
import os
import platform
import resource
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from cerebro_db.core.errors import (
    MAKE_ROOM,
    NO_ROOM,
    CerebroError,
    ConfigurationFailed,
    DiskFull,
    InvalidArgument,
    OutOfResources,
    TrainerFailed,
    UndefinedObject,
    WrongState,
)
from cerebro_db.nn import answers, functions, state_file
from cerebro_db.nn.data import Dataset, Slab, SlabSize, most_batches, row_order, slabs
from cerebro_db.nn.engine import Engine, Program, open_engine
from cerebro_db.nn.explain import one_line, tail

# Compiled programs are kept ready for the next unit.  TensorFlow never gives back what a traced graph
# took (6 MB for a small MLP), so dropping a program only wins its variables' memory.
GRAPH_BYTES = 8 << 20
PROGRAM_BYTES = 1 << 30  # what all programs may hold together; the newest one stays in any case
PROGRESS_SECONDS = 0.25
EVALUATION_BATCH = 256
PREDICTION_BATCH_BYTES = 8 << 20
TRIAL_SECONDS = 0.3
REHEARSED, REHEARSALS = 32, 5  # batches, and how often they are tried

Order = dict[str, Any]
Answer = dict[str, Any]


class Ready:
    """A program, how fast it is, and what is known of the state in its variables."""

    def __init__(self, key: str, program: Program) -> None:
        self.name = hashlib.sha256(key.encode()).hexdigest()[:16]
        self.program = program
        self.state_bytes = state_file.size(program)
        self.speed: defaultdict[tuple[str, int], SlabSize] = defaultdict(SlabSize)  # what, and how many together
        self.token: str | None = None  # of the unit that left the state
        self.sha256: str | None = None
        self.batch_seconds: float | None = None  # once it was tried

    def forget_state(self) -> None:
        self.token = self.sha256 = None


class Orders:
    def __init__(self, progress: Callable[[dict[str, Any]], None], listen: Callable[[], None]) -> None:
        self._progress = progress
        self._listen = listen
        self._engine: Engine | None = None
        self._gpu = False
        self._datasets: dict[str, Dataset] = {}
        self._programs: OrderedDict[str, Ready] = OrderedDict()
        self._units = 0

    def obey(self, order: Order) -> Answer:
        """The closing frame of an order; never an exception, or the trainer would be gone for the next one."""
        try:
            kind = order.get("order")
            if kind not in ORDERS:
                raise InvalidArgument(f"the trainer knows no order {kind!r}")
            if kind != "hello" and self._engine is None:
                raise WrongState("the first order to a trainer has to be hello")
            functions.learn(order.get("functions") or ())
            return {"ok": getattr(self, kind)(order) or {}}
        except CerebroError as error:
            return {"error": error.told()}
        except MemoryError as error:
            return {"error": OutOfResources("the trainer ran out of memory", detail=tail(error)).told()}
        except KeyError as error:
            return {"error": InvalidArgument(f"the order lacks {error}", detail=tail(error)).told()}
        except OSError as error:
            if error.errno in NO_ROOM:
                return {"error": DiskFull(str(error), detail=tail(error), hint=MAKE_ROOM).told()}
            short = error.errno == errno.ENOMEM
            return {"error": (OutOfResources if short else TrainerFailed)(str(error), detail=tail(error)).told()}
        except Exception as error:
            return {"error": TrainerFailed(one_line(error), detail=tail(error)).told()}

    # --- the orders ---

    def hello(self, order: Order) -> Answer:
        if self._engine is not None:
            raise WrongState("this trainer has been greeted already")
        gpu = order.get("gpu")
        self._gpu = gpu is not None
        threads = order.get("threads")
        engine = order.get("engine") or "tensorflow"
        os.environ.update(
            TF_CPP_MIN_LOG_LEVEL="3",
            CUDA_VISIBLE_DEVICES="-1" if gpu is None else str(gpu),
            KERAS_BACKEND=engine,
        )
        if threads is not None:
            os.environ.update(OMP_NUM_THREADS=str(threads), OPENBLAS_NUM_THREADS=str(threads))
        if order.get("memory_limit_mb") and gpu is None:
            # Private writable memory, which is close to what is resident (980 against 900 MB with a state of
            # 98 MB).  Over it, an order fails with OutOfResources, or the process dies where a kernel of the
            # framework does not check; either way only the trainer is hit.
            limit = int(order["memory_limit_mb"]) << 20
            resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        self._engine = open_engine(
            engine, threads=threads, deterministic=bool(order.get("deterministic")), compiled=order.get("compiled")
        )
        versions = {"python": platform.python_version(), "numpy": np.__version__, **self._engine.versions()}
        return {"versions": versions, "devices": self._engine.devices(), "pid": os.getpid()}

    def data(self, order: Order) -> Answer:
        dataset = Dataset(order["layout"], order["rows"], order["files"])
        self._datasets[order["handle"]] = dataset
        return {"rows": dataset.rows, "bytes": dataset.bytes}

    def forget(self, order: Order) -> None:
        self._datasets.pop(order["handle"], None)

    def rest(self, order: Order) -> None:
        """Nothing to do here: what becomes of a trainer that waits in vain is the process' business."""

    def wake(self, order: Order) -> None:
        """Whether a trainer that rests is still there."""

    def describe(self, order: Order) -> Answer:
        """What a configuration needs, and whether it, and others like it, could train together with some."""
        configuration, layout = order["configuration"], order.get("layout")
        _fit(configuration)
        ready = self._ready(configuration, layout)
        kinds = [_kind(each, layout) for each in (configuration, *order.get("others", []))]
        return {
            "parameters": ready.program.parameters,
            "state_bytes": ready.state_bytes,
            "kinds": kinds if ready.program.together else [None] * len(kinds),
            "inputs": ready.program.inputs,
            "outputs": ready.program.outputs,
        }

    def trial(self, order: Order) -> Answer:
        """As ``describe``, and how long it takes to build, to compile for a batch size, and to train a batch."""
        configuration, dataset, effort = order["configuration"], self._with_outputs(order["handle"]), Effort(self._gpu)
        batch_size, *_ = _fit(configuration)
        seed = int(order.get("seed") or 0)
        if dataset.from_disk:  # as many rows as it has at once in training
            dataset = dataset.beginning(batch_size * most_batches(dataset, batch_size))
        ready = self._ready(configuration, dataset.layout, seed)
        build = effort.seconds()
        with self._configuration_errors():
            ready.program.prepare("train", dataset, batch_size, min(dataset.rows, batch_size))
            compiling = effort.seconds()
            if ready.batch_seconds is None:
                ready.forget_state()
                ready.program.initialise(configuration, seed)
                ready.program.start_metrics()
                ready.batch_seconds = self._seconds_per_batch(ready, dataset, batch_size)
        answer = self.describe({**order, "layout": dataset.layout})
        seconds = {"build": build, "compile": compiling, "batch": ready.batch_seconds}
        return {**answer, "program": ready.name, **seconds}

    def _seconds_per_batch(self, ready: Ready, dataset: Dataset, batch_size: int) -> float:
        """The first slab does not count: a framework does more in it than train."""
        rows, order = dataset.rows // batch_size * batch_size, row_order(dataset.rows, 0, 0)
        effort, spent, done, warm = Effort(self._gpu), 0.0, 0, False
        while rows:
            for slab in slabs(dataset, rows, batch_size, ready.speed["train", 1], order):
                effort.seconds()
                started, batches = time.monotonic(), slab.rows // batch_size
                ready.program.train(slab, batch_size)
                if self._gpu:
                    ready.program.running_loss()  # it may still be at work
                ready.speed["train", 1].measured(batches, time.monotonic() - started)
                if warm:
                    spent, done = spent + effort.seconds(), done + batches
                self._listen()
                if spent > TRIAL_SECONDS:
                    return spent / done
                warm = True
        return 0.0  # less than a batch: building is all there is

    def train(self, order: Order) -> Answer:
        """One configuration, or several alike that train together: each on the same rows, in an order of its own."""
        members, dataset, clock = order["members"], self._with_outputs(order["handle"]), Clock()
        batch_size, epochs, steps_limit, shuffle = _fit(members[0]["configuration"])
        rows = min(dataset.rows, batch_size * (steps_limit or dataset.rows))
        ready = self._ready_for(members, dataset, batch_size, rows)
        program = ready.program
        clock.lap("build")
        many = self._brought_in(ready, members)
        clock.lap("load")
        speed, done, last_report = ready.speed["train", len(members)], 0, time.monotonic()
        with self._configuration_errors():
            for visit in range(epochs):
                row_numbers = _row_orders(dataset.rows, members, visit, shuffle)
                for slab in slabs(dataset, rows, batch_size, speed, row_numbers):
                    started = time.monotonic()
                    many = _advanced(program, many, slab, batch_size)
                    now = time.monotonic()
                    speed.measured(math.ceil(slab.rows / batch_size), now - started)
                    done += slab.rows
                    self._listen()
                    if now - last_report >= PROGRESS_SECONDS:
                        last_report = now
                        told = {"rows": done * len(members), "of": rows * epochs * len(members)}
                        self._progress(told if many else {**told, "loss": program.running_loss()})
        clock.lap("train")
        trained = []
        for place, member in enumerate(members):
            if program.together and many:
                program.together.put_back(many[place])
            with self._configuration_errors():
                metrics = program.metrics()
            loss = metrics.pop("loss", math.nan)
            trained.append(
                {
                    "rows": done,
                    "steps": epochs * math.ceil(rows / batch_size),
                    "loss": loss,
                    "metrics": metrics,
                    "finite": math.isfinite(loss),
                    "state": state_file.write(program, member["out"]),
                }
            )
        clock.lap("save")
        self._units += 1
        last = trained[-1]["state"]
        ready.token = last["token"] = f"{os.getpid()}.{self._units}"
        ready.sha256 = last["sha256"]
        return {"members": trained, "seconds": clock.laps}

    def rehearse(self, order: Order) -> Answer:
        """Seconds per batch and configuration, of one alone and of all that are named together."""
        members, dataset = order["members"], self._with_outputs(order["handle"])
        batch_size, _, steps_limit, _ = _fit(members[0]["configuration"])
        rows = min(dataset.rows, batch_size * (steps_limit or dataset.rows))
        batches = min(REHEARSED, rows // batch_size, most_batches(dataset, batch_size)) or 1
        seconds = []
        for cast in (members[:1], members):
            ready = self._ready_for(cast, dataset, batch_size, rows)
            row_numbers = _row_orders(dataset.rows, [{"shuffle_seed": 0}] * len(cast), 0, True)
            slab = Slab(dataset, row_numbers, 0, min(rows, batches * batch_size))
            many = self._brought_in(ready, [{**member, "state": {"kind": "none"}} for member in cast])
            best = math.inf
            for _ in range(REHEARSALS):
                started = time.monotonic()
                with self._configuration_errors():
                    many = _advanced(ready.program, many, slab, batch_size)
                best = min(best, time.monotonic() - started)
                self._listen()
            seconds.append(best / batches / len(cast))
            if dataset.from_disk or (ready.program.together and seconds[0] > ready.program.together.pays_below):
                break  # to compile it for several would take longer than to know better
        return {"alone": seconds[0], "together": seconds[-1]}

    def evaluate(self, order: Order) -> Answer:
        configuration, dataset, clock = order["configuration"], self._with_outputs(order["handle"]), Clock()
        batch_size = max(EVALUATION_BATCH, _fit(configuration)[0])
        ready = self._ready(configuration, dataset.layout)
        with self._configuration_errors():
            ready.program.prepare("evaluate", dataset, batch_size, dataset.rows)
        clock.lap("build")
        self._load(ready, order)
        clock.lap("load")
        with self._configuration_errors(), self._reading(ready):
            ready.program.average()
            ready.program.start_metrics()
            for slab in slabs(dataset, dataset.rows, batch_size, ready.speed["evaluate", 1]):
                started = time.monotonic()
                ready.program.evaluate(slab, batch_size)
                batches = math.ceil(slab.rows / batch_size)
                ready.speed["evaluate", 1].measured(batches, time.monotonic() - started)
                self._listen()
            metrics = ready.program.metrics()
        clock.lap("evaluate")
        loss = metrics.pop("loss", math.nan)
        return {"rows": dataset.rows, "loss": loss, "metrics": metrics, "seconds": clock.laps}

    def predict(self, order: Order) -> Answer:
        configuration, dataset = order["configuration"], self._to_predict(order)
        ready = self._ready(configuration, dataset.layout)
        row_bytes = sum(array.nbytes for array in dataset.inputs) // max(1, dataset.rows)
        batch_size = max(1, min(4 * EVALUATION_BATCH, PREDICTION_BATCH_BYTES // max(1, row_bytes)))
        with self._configuration_errors():
            ready.program.prepare("predict", dataset, batch_size, dataset.rows)
        self._load(ready, order)
        one_batch = SlabSize()
        one_batch.batches = 1
        found: list[list[np.ndarray]] = [[] for _ in ready.program.outputs]  # per output, batch by batch
        with self._configuration_errors(), self._reading(ready):
            ready.program.average()
            for slab in slabs(dataset, dataset.rows, batch_size, one_batch):
                for batches, batch in zip(found, ready.program.predict(slab)):
                    batches.append(batch)
                self._listen()
        outputs = []
        for number, (batches, shape) in enumerate(zip(found, ready.program.outputs)):
            values = np.concatenate(batches) if batches else np.empty((0, *(size or 0 for size in shape)), "f4")
            path, best = f"{order['out']}.{number}", order.get("best")
            outputs.append(
                answers.write_best(path, values, best["labels"][number], best["ranks"])
                if best
                else answers.write(path, values)
            )
        return {"rows": dataset.rows, "outputs": outputs}

    # --- their parts ---

    def _dataset(self, handle: str) -> Dataset:
        if handle not in self._datasets:
            raise UndefinedObject(f"the trainer has no data {handle!r}")
        return self._datasets[handle]

    def _to_predict(self, order: Order) -> Dataset:
        if "handle" in order:
            return self._dataset(order["handle"])
        return Dataset({"inputs": order["inputs"], "outputs": []}, order["rows"], order["files"], packed=False)

    def _with_outputs(self, handle: str) -> Dataset:
        dataset = self._dataset(handle)
        if not dataset.outputs:
            raise WrongState(f"the data {handle!r} has no outputs to compare with")
        return dataset

    def _ready(self, configuration: dict[str, Any], layout: dict[str, Any] | None, seed: int = 0) -> Ready:
        """The program of a configuration: the one of an earlier configuration of that shape, or a new one."""
        from cerebro_db.nn.build import program_key

        assert self._engine is not None
        key = program_key(configuration, layout)
        if key not in self._programs:
            self._evict(room=max((ready.state_bytes for ready in self._programs.values()), default=0))
            with self._configuration_errors():
                self._programs[key] = Ready(key, self._engine.program(configuration, layout, seed))
            self._evict()
        self._programs.move_to_end(key)
        self._programs[key].program.put_numbers(configuration)
        return self._programs[key]

    def _ready_for(self, members: list[dict[str, Any]], dataset: Dataset, batch_size: int, rows: int) -> Ready:
        """The program that all of them share, compiled for as many."""
        kinds = {_kind(member["configuration"], dataset.layout) for member in members}
        ready = self._ready(members[0]["configuration"], dataset.layout, int(members[0].get("seed") or 0))
        together = len(members) if len(members) > 1 else 0
        if together and (len(kinds) > 1 or not ready.program.together):
            raise InvalidArgument("these configurations cannot train together")
        with self._configuration_errors():
            ready.program.prepare("train", dataset, batch_size, rows, together)
        return ready

    def _brought_in(self, ready: Ready, members: list[dict[str, Any]]) -> list[Any]:
        """The state of one is in the program's variables then; the states of several are what is returned."""
        many = []
        for member in members:
            ready.program.put_numbers(member["configuration"])
            self._load(ready, member)
            ready.program.start_metrics()
            if ready.program.together and len(members) > 1:
                many.append(ready.program.together.taken())
        ready.forget_state()  # until the unit is complete
        return many

    def _evict(self, room: int = 0) -> None:
        """Drop the programs that have not been used for longest; one that is not built yet needs ``room``, too."""
        held = sum(ready.state_bytes + GRAPH_BYTES for ready in self._programs.values()) + room
        dropped = False
        while held > PROGRAM_BYTES and len(self._programs) > (0 if room else 1):
            _, ready = self._programs.popitem(last=False)
            held -= ready.state_bytes + GRAPH_BYTES
            dropped = True
        if dropped:
            del ready
            gc.collect()  # a Keras model refers to itself

    def _load(self, ready: Ready, order: Order) -> None:
        """Bring the state that the order names into the program's variables."""
        state = order["state"]
        kind = state.get("kind")
        if kind == "held":
            if ready.token is None or ready.token != state["token"]:
                raise WrongState("the trainer does not hold that state any more", hint="Send the whole state.")
            return
        if kind == "full" and ready.sha256 is not None and ready.sha256 == state["sha256"]:
            return  # it is in the variables already
        if kind == "weights" and ready.token is not None and ready.token == state.get("token"):
            return  # since the last order that named them so
        ready.forget_state()
        if kind in ("none", "weights"):
            weights = state_file.read_weights(ready.program, state["path"]) if kind == "weights" else None
            with self._configuration_errors():
                ready.program.initialise(order["configuration"], int(order.get("seed") or 0), weights)
            ready.token = state.get("token") if kind == "weights" else None
        elif kind == "full":
            state_file.read(ready.program, state["path"], state["sha256"])
            ready.sha256 = state["sha256"]
        else:
            raise InvalidArgument(f"there is no kind of state {kind!r}")

    @contextlib.contextmanager
    def _reading(self, ready: Ready) -> Iterator[None]:
        """Evaluation leaves the state as it is, but for models that keep something between batches."""
        try:
            yield
        finally:
            if ready.program.volatile:
                ready.forget_state()

    @contextlib.contextmanager
    def _configuration_errors(self) -> Iterator[None]:
        """What Keras and the framework complain about is the configuration's fault."""
        try:
            yield
        except (CerebroError, MemoryError, OSError):
            raise
        except Exception as error:
            assert self._engine is not None
            if self._engine.is_out_of_memory(error):
                raise OutOfResources("the model does not fit into memory", detail=one_line(error)) from error
            raise ConfigurationFailed(one_line(error), detail=tail(error)) from error


ORDERS = ("hello", "data", "forget", "rest", "wake", "describe", "trial", "rehearse", "train", "evaluate", "predict")


class Effort:
    """Seconds as they would be on a machine that has nothing else to do: what other processes take there, our threads
    wait for, and do not compute meanwhile.  For a GPU we wait, too, so with one it is time that counts."""

    def __init__(self, gpu: bool) -> None:
        self._gpu = gpu
        self._last = time.monotonic(), time.process_time()

    def seconds(self) -> float:
        """Since it was asked last."""
        before, self._last = self._last, (time.monotonic(), time.process_time())
        passed, computed = (now - then for now, then in zip(self._last, before))
        return round(passed if self._gpu else min(passed, computed), 9)


class Clock:
    """Seconds by stage of an order."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.monotonic()

    def lap(self, name: str) -> None:
        now = time.monotonic()
        self.laps[name] = round(now - self._last, 6)
        self._last = now


def _kind(configuration: dict[str, Any], layout: dict[str, Any] | None) -> str:
    """The same for configurations that can train together: one compiled step, the same batches."""
    from cerebro_db.nn.build import program_key

    return hashlib.sha256(f"{program_key(configuration, layout)} {_fit(configuration)}".encode()).hexdigest()[:16]


def _advanced(program: Program, many: list[Any], slab: Slab, batch_size: int) -> list[Any]:
    """Train over a slab: several states if there are, else the one in the variables."""
    if program.together and many:
        return program.together.train(many, slab, batch_size)
    program.train(slab, batch_size)
    return many


def _row_orders(rows: int, members: list[dict[str, Any]], visit: int, shuffle: bool) -> np.ndarray | None:
    """The order of the rows for one, or a line for each of several."""
    if len(members) == 1:
        return row_order(rows, members[0]["shuffle_seed"], visit) if shuffle else None
    lines = [row_order(rows, m["shuffle_seed"], visit) if shuffle else np.arange(rows) for m in members]
    return np.stack(lines)


def _fit(configuration: dict[str, Any]) -> tuple[int, int, int | None, bool]:
    """batch_size, epochs, steps_per_epoch (or None), shuffle; with the defaults of Keras."""
    fit = configuration.get("fit") or {}

    def whole(name: str, default: int) -> int:
        value = default if fit.get(name) is None else fit[name]
        if type(value) is not int or not 0 < value < 1 << 31:
            raise ConfigurationFailed(f"{name} has to be a positive whole number, not {value!r}")
        return value

    steps = whole("steps_per_epoch", 1) if fit.get("steps_per_epoch") is not None else None
    return whole("batch_size", 32), whole("epochs", 1), steps, bool(fit.get("shuffle", True))
