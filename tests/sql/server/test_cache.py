"""The rows of a segment are cached in memory, or on disk if they are larger than the limit."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cerebro_db.core.errors import DiskFull
from cerebro_db.embedded.cluster import Cluster
from cerebro_plpy.platform import machine
from cerebro_plpy.segment.row_cache import CachedRows
from cerebro_plpy.segment.scratch import RESERVE
from tests.sql.lab import CROSS, Lab, eventually, layer, run, sequential, trainer_processes
from tests.thorough import landing

OPTIONS = {"deterministic": True, "seed": 2}


@pytest.fixture(scope="module")
def place(lab: Lab) -> Lab:
    """Two partitions of 2.5 MB, in pieces of 250 kB."""
    lab(
        "CREATE TABLE wide AS"
        " SELECT id % 2 AS y, ARRAY(SELECT (id * n % 17)::real FROM generate_series(1, 64) n) x"
        " FROM generate_series(1, 20000) id"
    )
    lab("SELECT pack_plain('wide', 'wide_packed', 'y', 'x', segments => 2, buffer_size => 1000, seed => 1)")
    model = lab.architecture(sequential([64], layer("Dense", "out", units=2, activation="softmax")))
    lab.selection("mst", [(model, f"optimizer='SGD(lr=0.01)', {CROSS}", "batch_size=500, epochs=1")])
    return lab


def rows_on(place: Lab, where: str) -> int:
    """Bytes of rows that trainers of kept sessions have cached in memory or on disk."""
    assert place.home is not None
    glob = {"disk": (place.home, "clusters/*/data/pgsql_tmp_cerebro"), "memory": (Path("/dev/shm"), "cerebro_db_*")}
    base, pattern = glob[where]
    waiting = {str(pid) for pid in place.waiting()}
    return sum(
        path.stat().st_size
        for folders in base.glob(pattern)
        for folder in folders.iterdir()
        if folder.name.partition("-")[0] in waiting
        for path in folder.glob("data-*/*")
    )


@pytest.mark.throw_away
def test_rows_that_are_too_many_lie_on_disk(place: Lab) -> None:
    packed = 20000 * (64 * 4 + 2 * 2)
    weights = []
    for most, on_disk in ((100, False), (1, True)):
        options: dict[str, Any] = {**OPTIONS, "cache_mb": most}
        place.fit("wide_packed", f"cached_{most}", "mst", 2, options=options)
        if rows_on(place, "memory") == 0 and not on_disk:
            pytest.skip("this machine has no memory to spare for rows")
        assert rows_on(place, "disk" if on_disk else "memory") == packed
        assert rows_on(place, "memory" if on_disk else "disk") == 0
        weights.append(place.weights(f"cached_{most}"))
    assert weights[0] == weights[1]


@pytest.mark.throw_away
def test_a_trainer_that_waited_in_vain_leaves_no_rows_on_disk(place: Lab) -> None:
    place.fit("wide_packed", "in_vain", "mst", 1, options={**OPTIONS, "cache_mb": 0})
    assert rows_on(place, "disk") > 0
    sessions = place.waiting()
    for pid in sessions:
        place("SELECT pg_terminate_backend(%s)", pid)
    eventually(lambda: not place.waiting() & sessions, 15, "they are gone")
    eventually(lambda: not place.abandoned(), 15, "and their rows")


def files_of_rows(place: Lab) -> list[Path]:
    """The files of the rows that the segments of the run under way have cached."""
    assert place.home is not None
    sessions = {str(pid) for pid, application in place.sessions() if "segment" in application}
    places = [*place.home.glob("clusters/*/data/pgsql_tmp_cerebro"), *Path("/dev/shm").glob("cerebro_db_*")]
    folders = [folder for base in places for folder in base.iterdir() if folder.name.partition("-")[0] in sessions]
    return [path for folder in folders for path in folder.glob("data-*/*")]


def cut(files: list[Path]) -> None:
    for path in files:
        os.truncate(path, 100)


def delete(files: list[Path]) -> None:
    for path in files:
        path.unlink()


def delete_all(files: list[Path]) -> None:
    """With the folders of the sessions, as a program that empties /dev/shm does."""
    for folder in {path.parents[1] for path in files}:
        shutil.rmtree(folder)


@pytest.mark.throw_away
@pytest.mark.parametrize("damage", landing([cut, delete, delete_all], cut, delete_all))
def test_rows_whose_files_are_damaged_are_read_again(place: Lab, damage: Callable[[list[Path]], None]) -> None:
    """No configuration fails, and the models become what they would have become."""
    assert place.home is not None
    if not place("SELECT 1 FROM pg_class WHERE oid = to_regclass('two')"):
        fit = "batch_size=10, epochs=1"
        place.selection("two", [(1, f"optimizer='SGD(lr=0.0{n})', {CROSS}", fit) for n in (1, 2)])
        place.fit("wide_packed", "undamaged", "two", 4, options=OPTIONS)
    name = damage.__name__
    run_id = place.submit("wide_packed", name, "two", 4, options=OPTIONS)
    eventually(lambda: place("SELECT 1 FROM hop WHERE run = %s HAVING count(*) >= 3", run_id), 60, "some hops")
    damage(files_of_rows(place))
    for pid, parent in trainer_processes(place.home):  # their successors have to read those files
        if damage is delete and parent in {pid for pid, _ in place.sessions()}:
            os.kill(pid, signal.SIGKILL)
    assert place.value("SELECT wait(%s, 120)", run_id) == "finished", place(
        "SELECT message FROM runs WHERE run = %s", run_id
    )
    failed = place("SELECT event, detail FROM event WHERE run = %s AND event LIKE '%% failed'", run_id)
    assert "model failed" not in dict(failed) and "unit failed" in dict(failed)
    assert place.weights(name) == place.weights("undamaged")


@pytest.mark.throw_away
def test_a_state_whose_file_is_deleted_before_it_is_stored_is_trained_again(place: Lab) -> None:
    assert place.home is not None
    if not place("SELECT 1 FROM pg_class WHERE oid = to_regclass('two')"):
        pytest.skip("the test above makes the run to compare with")
    run_id = place.submit("wide_packed", "deleted", "two", 4, options=OPTIONS)
    # Not the files of other servers, which are beside them.
    folders = {path.parents[1] for path in eventually(lambda: files_of_rows(place), 60, "the rows are cached")}

    def states() -> set[Path]:
        found = set[Path]()
        for folder in folders:
            with contextlib.suppress(FileNotFoundError):  # a session may have ended
                found.update(folder.glob("state.out.*"))
        return found

    def lost() -> bool:
        told = "detail ->> 'reason' ~ 'was deleted before it was stored'"
        return bool(place(f"SELECT 1 FROM event WHERE run = %s AND event = 'unit failed' AND {told}", run_id))

    while not lost():
        assert place.status(run_id) == "running", "a file is deleted while it is written, or soon afterwards"
        known, until = states(), time.monotonic() + 2
        while not (new := states() - known) and time.monotonic() < until:
            pass
        for path in new:
            path.unlink(missing_ok=True)
        time.sleep(0.1)
    assert place.value("SELECT wait(%s, 120)", run_id) == "finished", place(
        "SELECT message FROM runs WHERE run = %s", run_id
    )
    assert not place("SELECT 1 FROM event WHERE run = %s AND event = 'model failed'", run_id)
    assert place.weights("deleted") == place.weights("undamaged")


@pytest.mark.throw_away
def test_a_crash_leaves_no_rows_behind(place: Lab, cluster: Cluster) -> None:
    """The first function of the extension that a session calls after the crash removes them."""
    run_id = place.submit("wide_packed", "crashed", "mst", 10_000, options=OPTIONS)
    eventually(lambda: place("SELECT 1 FROM hop WHERE run = %s", run_id), 60, "a hop")
    files = eventually(lambda: files_of_rows(place), 60, "rows are cached")
    for process in Path("/proc").glob("[0-9]*"):  # the nursery would remove them
        with contextlib.suppress(OSError):
            if (
                os.readlink(process / "cwd") == str(cluster.data)
                and b"nursery.py" in (process / "cmdline").read_bytes()
            ):
                os.kill(int(process.name), signal.SIGKILL)
    cluster.restart("immediate")
    place.close()
    assert any(path.exists() for path in files)
    assert place.status(run_id) == "interrupted"
    place("SELECT cancel(%s)", run_id)
    eventually(lambda: not any(path.exists() for path in files), 30, "the files are removed")


@pytest.mark.parametrize("most", [-1, 1.5, "much"])
def test_no_such_cache(place: Lab, most: Any) -> None:
    with pytest.raises(Exception, match="cache_mb"):
        run(
            place.db,
            "SELECT madlib_fit_multiple_model('wide_packed', 'none', 'mst', 1, options => %s)",
            json.dumps({"cache_mb": most}),
        )


class Cancelled(Exception):
    pass


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: Any) -> Any:
    """The folders of rows, and what the machine has."""
    memory, disk = tmp_path / "memory", tmp_path / "disk"
    memory.mkdir(), disk.mkdir()
    figures = {"memory": 10 << 30, "disk": 10 << 30, "available": 10 << 30, "total": 16 << 30}
    monkeypatch.setattr(machine, "room", lambda folder: figures["memory" if folder.parent == memory else "disk"])
    monkeypatch.setattr(machine, "memory_available", lambda: figures["available"])
    monkeypatch.setattr(machine, "memory_total", lambda: figures["total"])
    return memory, disk, figures


def test_half_of_the_memory_is_left_to_others(folders: Any) -> None:
    memory, disk, figures = folders
    rows = CachedRows("rows", memory, disk, None, lambda: None)
    figures["available"] = (8 << 30) + 101
    rows.add("x", bytes(100))
    assert (memory / "rows" / "0").stat().st_size == 100
    figures["available"] = (8 << 30) + 100
    rows.add("y", bytes(100))
    assert rows.files() == {"x": str(disk / "rows" / "0"), "y": str(disk / "rows" / "1")}
    assert not (memory / "rows").exists()
    rows.drop()
    assert not list(disk.iterdir())


def test_no_more_goes_to_memory_or_disk_than_they_have_room_for(folders: Any) -> None:
    memory, disk, figures = folders
    rows = CachedRows("rows", memory, disk, None, lambda: None)
    rows.add("x", bytes(1000))
    figures["memory"] = 999 + RESERVE
    figures["disk"] = 1999 + RESERVE  # for all of them
    with pytest.raises(DiskFull, match="63 MB left|64 MB left") as refused:
        rows.add("x", bytes(1000))
    assert refused.value.hint
    figures["disk"] = 2000 + RESERVE
    rows.add("x", bytes(1000))
    assert (disk / "rows" / "0").stat().st_size == 2000
    figures["disk"] = 999 + RESERVE
    with pytest.raises(DiskFull):
        rows.add("x", bytes(1000))


def test_moving_rows_to_disk_listens(folders: Any) -> None:
    memory, disk, _ = folders
    heard = []

    def listen() -> None:
        heard.append(1)
        if len(heard) == 3:
            raise Cancelled

    rows = CachedRows("rows", memory, disk, 20 << 20, listen)
    payload = bytes(range(256)) * (1 << 16)  # 16 MB
    rows.add("x", payload)
    with pytest.raises(Cancelled):
        rows.add("x", payload)
    assert (memory / "rows" / "0").read_bytes() == payload and not list(disk.iterdir())
    rows.add("x", payload)
    assert Path(rows.files()["x"]).read_bytes() == 2 * payload and not list(memory.iterdir())
