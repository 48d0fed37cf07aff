"""Postures of synthetic persons, from samples to bouts, beside a cut-point rule and a model that knows no context; and
CHAP's published code: the same windows, the same network, and the time of pre-processing.

CEREBRO_DEEP_POSTURES names a folder with the public repository ADALabUCSD/DeepPostures.  Nothing of it is kept here.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import TextIO

import numpy as np

from tests.bench import report
from tests.bench.contenders import CLONE, call, python_with
from tests.bench.database import Database
from tests.bench.meter import Meter
from tests.bench.persons import STEP, Recording, recording
from tests.bench.rivals import postures
from tests.bench.stage import Skipped
from tests.sql.lab import Json

NETWORK, VOTE, MEAN = "cnn_lstm", "cnn_lstm, a vote of three", "cnn_lstm, the mean of three"
NETWORK_SMOOTHED = "cnn_lstm, smoothed"
RULE, WINDOWS, SMOOTHED = "cut-point of a minute", "trees, window by window", "trees, smoothed over a minute"
SETS = ("persons", "published", "loading")
NAMES = {
    "network": NETWORK,
    "network-smoothed": NETWORK_SMOOTHED,
    "vote": VOTE,
    "mean": MEAN,
    "cut-point": RULE,
    "windows": WINDOWS,
    "smoothed": SMOOTHED,
}
PERSONS, DAYS = 40, 3
WINDOW = 42 * STEP  # rows: seven minutes, as CHAP's
EPOCHS = 6
TOLERANCE = 60  # seconds
SMALL = {"architecture": "cnn_lstm", "blocks": 3, "channels": 8, "hidden": 32, "units": 32, "batch_size": 32}
CONFIGURATIONS = [{**SMALL, "learning_rate": rate} for rate in (0.005, 0.004, 0.003)]
SEQUENCE = {"by": "subject", "order": "at", "length": WINDOW, "target": "each", "every": STEP, "gap": "15 seconds",
            "breaks": ["away"], "rest": "wrap"}  # fmt: skip
TRUE_STEPS, TRUE_OF_VALIDATION = "true_steps", "true_steps_of_validation"
SIDES = (0, 10, 20, 30)  # seconds before and after a step over which its probability is averaged
SITTING, UPRIGHT = "sitting", "upright"
PUBLISHED = "CEREBRO_DEEP_POSTURES"
HOURS = 2  # of the recording that is prepared
LOADED = 5 * 10**9  # bytes
SCHEMA = "postures"
LOAD = (sys.executable, "-m", "cerebro_db.client.cli", "accelerometer")


def compared(
    database: Database, chosen: list[str], *, rows: int | None, epochs: int | None, record: TextIO,
    say: Callable[[str], None],
) -> list[Json]:  # fmt: skip
    """All measurements.

    ``chosen``: sets and contenders; none: all sets but loading.  ``rows``: persons, or megabytes of the large file.
    """
    contenders = [NAMES[one] for one in chosen if one in NAMES]
    names = [one for one in chosen if one in SETS] or (["persons"] if contenders else ["persons", "published"])
    lines = []
    for name in names:
        found = {
            "persons": lambda: of_persons(
                database, contenders or list(NAMES.values()), rows or PERSONS, epochs or EPOCHS
            ),
            "published": lambda: of_published(database),
            "loading": lambda: of_loading(database, rows * 10**6 if rows else LOADED),
        }[name]()
        try:
            for line in found:
                line = {"set": name, **line}
                print(json.dumps({"work": "posture", **line}), file=record, flush=True)
                say(f"{name}: {json.dumps(line)}")
                lines.append(line)
        except Skipped as skipped:
            say(f"{name}: {skipped}")
    return lines


def table(lines: list[Json]) -> str:
    persons = [line for line in lines if line["set"] == "persons"]
    parts = []
    if persons:
        head = ["", "accuracy", "sit to stand", "predictive value", "stand to sit", "predictive value", "mean bout",
                "seconds"]  # fmt: skip
        parts.append(report.table(head, [
            [line["contender"], f"{line['accuracy']:.3f}", *(f"{line[one]:.3f}" for one in MEASURES),
             f"{line['mean_bout']:.1f} of {line['true_mean_bout']:.1f} min ({line['bout_error']:+.1%})",
             f"{line['seconds']:.0f}"]
            for line in persons
        ]))  # fmt: skip
    for line in lines:
        if line["set"] != "persons":
            shown = [[name, f"{value:.3g}"] for name, value in line.items() if isinstance(value, int | float)]
            parts.append(report.table([f"{line['set']}: {line['contender']}", ""], shown))
    return "\n\n".join(parts)


MEASURES = ("rise_sensitivity", "rise_value", "sit_sensitivity", "sit_value")


# -- synthetic persons ---------------------------------------------------------------------------------------------


def of_persons(database: Database, wanted: list[str], persons: int, epochs: int) -> Iterator[Json]:
    """Three fifths of the persons train, a fifth is for validation, and a fifth is held out."""
    lab = database.lab
    with own_schema(database):
        found = {f"P{number:02}": recording(number, DAYS) for number in range(persons)}
        load(database, found)
        parts: dict[str, int] = dict(lab("SELECT subject, fifth FROM persons"))
        for table, fifth in ((TRUE_STEPS, 1), (TRUE_OF_VALIDATION, 2)):
            lab(f"CREATE TABLE {table} AS"
                " SELECT s.subject, min(at) AS at, mode() WITHIN GROUP (ORDER BY posture) AS posture"
                " FROM samples s JOIN persons p USING (subject) WHERE fifth = %s AND NOT away"
                " GROUP BY s.subject, floor(extract(epoch FROM at) / %s)", fifth, STEP)  # fmt: skip
        held = {name: one for name, one in found.items() if parts[name] == 1}
        if any(one.startswith("cnn_lstm") for one in wanted):
            yield from networks(database, wanted, epochs)
        if RULE in wanted:
            began = time.monotonic()
            limit = postures.best_limit([one for name, one in found.items() if parts[name] > 1])
            predict(database, {name: postures.by_minute(one, limit) for name, one in held.items()}, held)
            yield {"contender": RULE, **judged(database), "seconds": time.monotonic() - began}
        if {WINDOWS, SMOOTHED} & set(wanted):
            began = time.monotonic()
            trees = postures.trees([one for name, one in found.items() if parts[name] > 2])
            scores = {name: trees(one) for name, one in held.items()}
            seconds = time.monotonic() - began
            for contender, steps in ((WINDOWS, 1), (SMOOTHED, 60 // STEP + 1)):
                predict(database, {name: postures.smoothed(one, steps) > 0.5 for name, one in scores.items()}, held)
                yield {"contender": contender, **judged(database), "seconds": seconds}


@contextlib.contextmanager
def own_schema(database: Database) -> Iterator[None]:
    """Within it, tables are made in a schema of their own, which is dropped with them."""
    lab = database.lab
    before = lab.value("SHOW search_path")
    lab(f"CREATE SCHEMA {SCHEMA}")
    lab(f"SET search_path = {SCHEMA}, {before}")
    try:
        yield
    finally:
        lab(f"SET search_path = {before}")
        lab("SET client_min_messages = warning")
        lab(f"DROP SCHEMA {SCHEMA} CASCADE")
        lab("RESET client_min_messages")


def copy(database: Database, table: str, lines: Iterator[str]) -> None:
    with database.lab.db.cursor() as cursor:
        cursor.copy_expert(f"COPY {table} FROM STDIN", io.StringIO("".join(lines)))


def load(database: Database, persons: dict[str, Recording]) -> None:
    """``samples``, and ``persons`` with the fifth that each is in."""
    lab = database.lab
    lab("CREATE TABLE samples (subject text, at timestamp, x real, y real, z real, away boolean, posture text)")
    times = np.datetime64("2024-05-06T00:00:00")
    for name, one in persons.items():
        at = (times + one.seconds.astype("m8[s]")).astype(str)
        copy(database, "samples", (
            f"{name}\t{moment}\t{x:.4f}\t{y:.4f}\t{z:.4f}\t{'f' if worn else 't'}\t{SITTING if sits else UPRIGHT}\n"
            for moment, (x, y, z), worn, sits in zip(at.tolist(), one.axes.tolist(), one.worn, one.sits)
        ))  # fmt: skip
    lab("CREATE TABLE persons AS SELECT subject, ntile(5) OVER (ORDER BY md5(subject)) AS fifth"
        " FROM (SELECT DISTINCT subject FROM samples) s")  # fmt: skip
    lab("CREATE TABLE predicted (subject text, at timestamp, posture text)")
    lab("ANALYZE")


def networks(database: Database, wanted: list[str], epochs: int) -> Iterator[Json]:
    lab = database.lab
    for view, which in (("training", "> 2"), ("validation", "= 2"), ("held_out", "= 1")):
        lab(f"CREATE VIEW {view} AS SELECT s.* FROM samples s JOIN persons USING (subject) WHERE fifth {which}")
    several = {VOTE, MEAN} & set(wanted)
    began = time.monotonic()
    lab("SELECT cerebro.fit('training', 'sitters', %s, 'posture', inputs => 'x, y, z', epochs => %s, sequence => %s,"
        " validation_table => 'validation', prepare => '{\"number\": \"standard\"}',"
        " options => '{\"seed\": 1, \"keep\": \"best\", \"engine\": \"jax\"}')",
        json.dumps(CONFIGURATIONS[: None if several else 1]), epochs, json.dumps(SEQUENCE))  # fmt: skip
    trained = time.monotonic() - began
    number = lab.value("SELECT max(run) FROM cerebro.runs")
    packing = lab.value("SELECT extract(epoch FROM (SELECT min(started_at) FROM hop_timeline h WHERE h.run = r.run)"
                        " - started_at)::float8 FROM cerebro.runs r WHERE run = %s", number)  # fmt: skip
    votes = []
    for place in range(len(CONFIGURATIONS) if several else 1):
        began = time.monotonic()
        into(database, "sitters", f"steps_{place + 1}", place + 1)
        votes.append(f"SELECT * FROM steps_{place + 1}")
        seconds = time.monotonic() - began
        if place == 0 and NETWORK in wanted:
            lab("TRUNCATE predicted")
            lab("INSERT INTO predicted SELECT * FROM steps_1")
            yield {"contender": NETWORK, **judged(database), "seconds": trained + seconds, "before_training": packing,
                   "predicting_seconds": seconds}  # fmt: skip
    if NETWORK_SMOOTHED in wanted:
        into(database, "sitters", "steps_of_validation", 1, "validation")
        errors = []
        for side in SIDES:
            smooth(database, "steps_of_validation", side)
            errors.append(abs(judged(database, TRUE_OF_VALIDATION)["bout_error"]))
        side = SIDES[int(np.argmin(errors))]
        smooth(database, "steps_1", side)
        yield {"contender": NETWORK_SMOOTHED, "side": side, **judged(database), "seconds": trained}
    if VOTE in wanted:
        lab("TRUNCATE predicted")
        lab("INSERT INTO predicted SELECT subject, at, mode() WITHIN GROUP (ORDER BY posture)"
            f" FROM ({' UNION ALL '.join(votes)}) votes GROUP BY subject, at")  # fmt: skip
        yield {"contender": VOTE, **judged(database), "seconds": trained}
    if MEAN in wanted:
        lab("SELECT cerebro.ensemble('sitters', 'together', 3, true)")
        lab("TRUNCATE predicted")
        into(database, "together", "steps_of_mean", 1)
        lab("INSERT INTO predicted SELECT * FROM steps_of_mean")
        yield {"contender": MEAN, **judged(database), "seconds": trained}


def smooth(database: Database, steps: str, side: int) -> None:
    """``predicted`` has the steps by the mean of their probabilities over so many seconds before and after each."""
    lab = database.lab
    lab("TRUNCATE predicted")
    sits = f"CASE predicted_posture WHEN '{SITTING}' THEN probability ELSE 1 - probability END"
    lab(f"INSERT INTO predicted SELECT subject, at - interval '{STEP - 1} seconds', CASE WHEN avg({sits}) OVER"
        f" (PARTITION BY subject ORDER BY at RANGE BETWEEN interval '{side} seconds' PRECEDING"
        f" AND interval '{side} seconds' FOLLOWING) > 0.5 THEN '{SITTING}' ELSE '{UPRIGHT}' END"
        f" FROM {steps}_raw")  # fmt: skip


def into(database: Database, model: str, steps: str, configuration: int, source: str = "held_out") -> None:
    """A step is predicted with the time of its last row, and begins some rows before."""
    lab = database.lab
    lab("SELECT cerebro.predict_into(%s, %s, %s, configuration => %s)", model, source, f"{steps}_raw", configuration)
    begins = f"at - interval '{STEP - 1} seconds'"
    lab(f"CREATE TABLE {steps} AS SELECT subject, {begins} AS at, predicted_posture AS posture FROM {steps}_raw")


def predict(database: Database, sits: dict[str, np.ndarray], persons: dict[str, Recording]) -> None:
    database.lab("TRUNCATE predicted")
    times = np.datetime64("2024-05-06T00:00:00")
    for name, one in sits.items():
        at = times + persons[name].seconds[persons[name].worn][::STEP].astype("m8[s]")
        copy(
            database,
            "predicted",
            (f"{name}\t{begin}\t{SITTING if sit else UPRIGHT}\n" for begin, sit in zip(at.astype(str), one)),
        )


def judged(database: Database, truth: str = TRUE_STEPS) -> Json:
    """What the table ``predicted`` says of the persons that are held out, or of those for validation."""
    lab = database.lab
    ((steps, right),) = lab("SELECT count(*), avg((t.posture IS NOT DISTINCT FROM p.posture)::int)::float8"
                            f" FROM {truth} t FULL JOIN predicted p USING (subject, at)")  # fmt: skip
    found: Json = {"accuracy": right, "steps": steps}
    for before, name in ((SITTING, "rise"), (UPRIGHT, "sit")):
        ((sensitivity, value),) = lab(
            "SELECT sensitivity, predictive_value FROM cerebro.transitions(%s, 'predicted', %s, 'subject',"
            " 'at', 'posture', %s) WHERE subject_value IS NULL AND class_before = %s",
            truth, TOLERANCE, STEP, before)  # fmt: skip
        found |= {f"{name}_sensitivity": sensitivity, f"{name}_value": value}
    mean_bout = (
        "SELECT 60 * sum(hours) / sum(bouts) FROM cerebro.bouts(%s, 'subject', 'at', 'posture', %s)"
        " WHERE day IS NULL AND class = %s"
    )
    predicted, true = (lab.value(mean_bout, table, STEP, SITTING) for table in ("predicted", truth))
    return {**found, "mean_bout": predicted, "true_mean_bout": true, "bout_error": predicted / true - 1}


# -- the published code --------------------------------------------------------------------------------------------

# What CHAP's published code does: the mean of three samples, steps of 10 seconds, windows of 7 minutes, and the last
# 7 minutes for the steps that are left. Numbers stay as they are.
AS_PUBLISHED = {
    "by": "subject",
    "order": "at",
    "length": 4200,
    "target": "each",
    "every": 100,
    "mean": 3,
    "rest": "wrap",
}
AS_IT_IS = {"number": {"mean": 0, "deviation": 1}}


def of_published(database: Database) -> Iterator[Json]:
    repository = Path(os.environ.get(PUBLISHED, ""))
    example = repository / "MSSE-2021/example/example_30Hz.csv"
    if not os.environ.get(PUBLISHED) or not example.exists():
        raise Skipped(f"{PUBLISHED} names no folder with a clone of ADALabUCSD/DeepPostures")
    with own_schema(database), tempfile.TemporaryDirectory(prefix="cerebro-bench-") as made:
        folder = Path(made)
        (folder / "one").mkdir()
        (folder / "one/example.csv").write_bytes(example.read_bytes())
        wanted = prepared_as_published(repository, folder, "one", "example")
        windows = np.stack([wanted[:42], wanted[-42:]]).reshape(2, 4200, 3)
        loaded(database, folder / "one/example.csv", "example")
        pack(database, "example", "example_packed")
        found = packed_windows(database, "example_packed")
        yield {"contender": "windows", "windows": len(found), "largest": float(np.abs(windows).max()),
               "error": float(np.abs(in_one_order(windows) - in_one_order(found)).max())}  # fmt: skip
        line, windows = timed(database, repository, folder, example)
        yield line
        yield network(database, repository, folder, windows)


def prepared_as_published(repository: Path, folder: Path, source: str, name: str) -> np.ndarray:
    """The steps (100, 3) that the published script writes."""
    import h5py  # type: ignore[import-untyped]

    script = repository / "MSSE-2021/pre_process_data.py"
    call([sys.executable, str(script), "--gt3x-dir", str(folder / source), "--pre-processed-dir", str(folder / "out"),
          "--silent"])  # fmt: skip
    days = []
    for file in sorted((folder / "out" / name).glob("*.h5")):
        with h5py.File(file) as day:
            days.append(day["data"][:])
    return np.concatenate(days)


def loaded(database: Database, file: Path, table: str) -> None:
    call([*LOAD, str(file), f"{SCHEMA}.{table}_samples"], CEREBRO_DSN=database.lab.dsn)
    # Labels that have nothing to do with the samples: packing needs some.
    database.lab(f"CREATE VIEW {table} AS SELECT *, extract(minute FROM at)::int % 2 = 0 AS sits FROM {table}_samples")


def pack(database: Database, table: str, output: str) -> None:
    database.lab("SELECT cerebro.pack(%s, %s, 'sits', inputs => 'x, y, z', validation => 0, prepare => %s,"
                 " sequence => %s)", table, output, json.dumps(AS_IT_IS), json.dumps(AS_PUBLISHED))  # fmt: skip


def packed_windows(database: Database, table: str) -> np.ndarray:
    buffers = database.lab(f"SELECT numbers FROM {table} ORDER BY buffer_id")
    return np.frombuffer(b"".join(bytes(one) for (one,) in buffers), "<f4").reshape(-1, 4200, 3)


def in_one_order(windows: np.ndarray) -> np.ndarray:
    """By their first numbers: packing does not keep the order of time."""
    return windows[np.lexsort(np.round(windows[:, :3].reshape(len(windows), -1), 4).T)]


def network(database: Database, repository: Path, folder: Path, windows: np.ndarray) -> Json:
    from safetensors.numpy import save_file

    from cerebro_db.client.cerebro import Cerebro
    from tests.nn.chap import in_the_order_of_keras

    python = python_with("torch")
    if python is None:
        raise Skipped("PyTorch is not installed; make build/bench/networks/.installed does that")
    lab = database.lab
    np.save(folder / "windows.npy", windows)
    call([python, str(CLONE / "tests/bench/rivals/chap.py"), str(folder), str(repository)])
    weights = in_the_order_of_keras(np.load(folder / "weights.npz"))
    save_file({f"{place:02}": np.ascontiguousarray(one) for place, one in enumerate(weights)}, folder / "w.safetensors")
    architecture = lab.value("SELECT cerebro.architecture('cnn_lstm', 'example_packed')")
    with contextlib.closing(lab.connect()) as session, Cerebro(session) as client:
        client.add_architecture("chap_of_bench", architecture, folder / "w.safetensors", by="order")
    lab("SELECT cerebro.fit('example_packed', 'chap', '[{\"architecture\": \"chap_of_bench\", \"optimizer\": \"SGD\","
        " \"learning_rate\": 1e-12}]', epochs => 1)")  # fmt: skip
    predicted: np.ndarray = np.array(lab("SELECT probability FROM cerebro.predict('chap', 'long',"
                             " probability_of => 'true') ORDER BY key_value"))[:, 0]  # fmt: skip
    found = np.load(folder / "probabilities.npy")
    probabilities = np.concatenate([*found[:-1], found[-1, -(len(predicted) - found[:-1].size) :]])
    return {"contender": "network", "weights": sum(one.size for one in weights), "steps": len(predicted),
            "smallest": float(probabilities.min()), "largest": float(probabilities.max()),
            "error": float(np.abs(predicted - probabilities).max())}  # fmt: skip


def timed(database: Database, repository: Path, folder: Path, example: Path) -> tuple[Json, np.ndarray]:
    """Files to windows: random samples with the header of the example.  Also returns the published windows."""
    (folder / "long").mkdir()
    with open(example) as given, open(folder / "long/long.csv", "w") as file:
        file.writelines(itertools.islice(given, 11))
        chance = np.random.default_rng(1)
        file.writelines(f"{x:.3f},{y:.3f},{z:.3f}\n" for x, y, z in chance.normal([0, 1, 0], 0.4, (HOURS * 108_000, 3)))
    found: Json = {}

    @contextlib.contextmanager
    def measured(name: str) -> Iterator[None]:
        with Meter(database.server) as meter:
            yield
        found.update({f"{name}, seconds": meter.taken.wall / HOURS, f"{name}, CPU seconds": meter.taken.cpu / HOURS})

    with measured("published script"):
        wanted = prepared_as_published(repository, folder, "long", "long")
    with measured("cerebro accelerometer"):
        loaded(database, folder / "long/long.csv", "long")
    with measured("cerebro.pack"):
        pack(database, "long", "long_packed")
    windows = packed_windows(database, "long_packed")
    parts = np.stack([wanted[start : start + 42] for start in range(0, len(wanted) - 41, 42)] + [wanted[-42:]])
    steps = parts.reshape(-1, 4200, 3)
    error = float(np.abs(in_one_order(steps) - in_one_order(windows)).max())
    return {"contender": "an hour of random samples", **found, "error": error}, steps


# -- a large file --------------------------------------------------------------------------------------------------


def of_loading(database: Database, size: int) -> Iterator[Json]:
    """A recording of 100 Hz with a time in each line, as a file of so many bytes."""
    with own_schema(database), tempfile.TemporaryDirectory(prefix="cerebro-bench-", dir=CLONE / "build") as made:
        path = Path(made) / "large.csv"
        write_large(path, size)
        began = time.monotonic()
        there = {**os.environ, "CEREBRO_DSN": database.lab.dsn, "PYTHONPATH": str(CLONE)}
        done = subprocess.Popen([*LOAD, str(path), f"{SCHEMA}.large"], cwd=CLONE, env=there, stdout=subprocess.DEVNULL)
        _, status, used = os.wait4(done.pid, 0)
        assert status == 0
        rows = database.lab.value(f"SELECT count(*) FROM {SCHEMA}.large")
        yield {"contender": "cerebro accelerometer", "bytes": path.stat().st_size, "rows": rows,
               "peak_bytes": used.ru_maxrss * 1024, "seconds": time.monotonic() - began}  # fmt: skip


def write_large(path: Path, size: int) -> None:
    """Each minute has the same samples."""
    chance = np.random.default_rng(1)
    samples = [f"{x:.3f},{y:.3f},{z:.3f}" for x, y, z in chance.normal([0, 1, 0], 0.3, (6000, 3))]
    seconds = [f":{place // 100:02}.{place % 100:02}0,{one}\n" for place, one in enumerate(samples)]
    at = datetime(2024, 5, 6)
    with open(path, "w") as file:
        file.write("------------ Data File Created By ActiGraph GT3X+ ActiLife v6.13.4 Firmware v2.5.0"
                   " date format M/d/yyyy at 100 Hz  Filter Normal -----------\nSerial Number: MOS2\n"
                   "Start Time 00:00:00\nStart Date 5/6/2024\n"
                   "Epoch Period (hh:mm:ss) 00:00:00\n--------------------------------------------------\n"
                   "Timestamp,Accelerometer X,Accelerometer Y,Accelerometer Z\n")  # fmt: skip
        while file.tell() < size:
            start = f"{at.month}/{at.day}/{at.year} {at:%H:%M}"
            file.write("".join([start + one for one in seconds]))
            at += timedelta(minutes=1)
