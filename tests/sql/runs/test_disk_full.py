"""A full disk, a hanging trainer, too little memory: the error is clear, nothing is lost, and the run can continue."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg2
import pytest

from cerebro_db.core.errors import OutOfMemory
from cerebro_db.core.protocol import TrainerSettings
from cerebro_db.embedded import cluster as clusters
from cerebro_db.embedded.errors import ClusterError
from cerebro_plpy.segment import memory as memories
from tests.conftest import TRAINER
from tests.sql.lab import Lab, connect, eventually, flower_model
from tests.sql.memory import compiled, model_of

MB = 1 << 20
DISK, STATE, LEFT = 420 * MB, 10 * MB, 30 * MB
OPTIONS = {"deterministic": True, "seed": 5}


@pytest.fixture
def small_disk() -> Iterator[tuple[Lab, Path]]:
    """A server whose data folder is on a small disk; the write-ahead log is elsewhere."""
    top = Path(tempfile.mkdtemp(prefix="cerebro-disk-", dir="/tmp"))
    top.chmod(0o755)
    disk = top / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK},mode=755", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        shutil.rmtree(top)
        pytest.skip("a small disk can be mounted by root only")
    cluster = clusters.Cluster("test", at=disk)
    try:
        quick = {"fsync": "off", "shared_buffers": "32MB", "max_wal_size": "256MB", "min_wal_size": "32MB"}
        cluster.up(trainer_python=TRAINER, settings=quick)
        # Without space for the write-ahead log, PostgreSQL itself stops. That is not the subject of these tests.
        cluster.down()
        subprocess.run(["mv", str(cluster.data / "pg_wal"), str(top / "wal")], check=True)  # mv keeps the owner.
        (cluster.data / "pg_wal").symlink_to(top / "wal")
        cluster.restart()
        with contextlib.closing(connect(cluster.dsn())) as connection, connection.cursor() as cursor:
            cursor.execute("CREATE SCHEMA lab")
        lab = Lab(cluster.dsn(), "lab", cluster.home)
        try:
            yield lab, disk
        finally:
            lab.close()
    finally:
        with contextlib.suppress(ClusterError):
            cluster.destroy()
        subprocess.run(["umount", "-l", str(disk)], check=True)
        shutil.rmtree(top)


def hashes(lab: Lab, run: int) -> dict[tuple[int, int], str]:
    return {tuple(key): sha for *key, sha in lab("SELECT model, hop, state_sha256 FROM hop WHERE run = %s", run)}


@pytest.mark.throw_away
def test_a_full_disk(small_disk: tuple[Lab, Path]) -> None:
    lab, disk = small_disk
    lab.iris(segments=2)
    arch = lab.architecture(model_of(STATE, depth=2))
    lab.selection("mst", [(arch, compiled("Adam", rate), "batch_size=64, epochs=1") for rate in (0.001, 0.01, 0.1)])
    calm = lab.fit("train", "calm", "mst", 2, options=OPTIONS)
    expected = hashes(lab, calm)
    assert len(expected) == 3 * 2 * 2
    lab("DROP TABLE calm, calm_info, calm_summary")
    lab("SELECT forget(%s)", calm)
    lab("CHECKPOINT")
    filler = disk / "filler"
    room = os.statvfs(disk)
    filler.write_bytes(b"\0" * (room.f_bavail * room.f_frsize - LEFT))
    with pytest.raises(psycopg2.errors.DiskFull) as caught:
        lab.fit("train", "later", "mst", 2, options=OPTIONS)
    assert "could not extend file" in str(caught.value)
    assert "cerebro.resume" in caught.value.diag.message_hint
    run = lab.value("SELECT max(run) FROM run")
    assert lab.status(run) == "failed"
    before = hashes(lab, run)
    assert 0 < len(before) < len(expected) and before.items() <= expected.items()
    assert "later" not in lab.tables()
    assert not lab("SELECT 1 FROM event WHERE run = %s AND event = 'model failed'", run)
    with pytest.raises(psycopg2.errors.DiskFull):
        lab("SELECT resume(%s)", run)  # The disk is still full.
    filler.unlink()
    assert lab.value("SELECT resume(%s)", run) == run
    assert hashes(lab, run) == expected
    assert len(lab.weights("later")) == 3
    lab.require_no_orphans()


# -- a trainer that hangs --------------------------------------------------------------------------------


@pytest.mark.needs_cluster
def test_a_trainer_that_hangs_is_replaced(lab: Lab) -> None:
    lab.iris(segments=2)
    arch = lab.architecture(flower_model())
    lab.selection("mst", [(arch, compiled("Adam", rate), "batch_size=8, epochs=20") for rate in (0.001, 0.01)])
    calm = lab.fit("train", "calm", "mst", 4, options=OPTIONS)
    failures: list[BaseException] = []

    def fit() -> None:
        try:
            with contextlib.closing(lab.connect()) as connection:
                lab.fit("train", "hung", "mst", 4, on=connection, options={**OPTIONS, "hang_after": 2})
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=fit)
    thread.start()
    run = eventually(lambda: lab.value("SELECT max(run) FROM run WHERE run > %s", calm), 60)
    pid = eventually(lambda: lab.value("SELECT max(trainer_pid) FROM hop WHERE run = %s", run), 60)
    os.kill(pid, signal.SIGSTOP)
    thread.join(120)
    assert not thread.is_alive() and not failures
    reasons = lab("SELECT detail ->> 'reason' FROM event WHERE run = %s AND event = 'unit failed'", run)
    assert len(reasons) == 1 and "the trainer did nothing for" in reasons[0][0]
    assert hashes(lab, run) == hashes(lab, calm)
    lab.require_no_orphans()


# -- memory ----------------------------------------------------------------------------------------------


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Any:
    known = SimpleNamespace(available=1000 * MB, resident=600 * MB)
    monkeypatch.setattr(memories.machine, "memory_available", lambda: known.available)
    monkeypatch.setattr(memories, "resident", lambda pid: known.resident)
    monkeypatch.setattr(memories, "MEMORY_WITHIN", 0.3)
    return known


def asks(state_bytes: int, listen: Any = lambda: None, *, on_gpu: bool = False, **settings: Any) -> None:
    memories.require_memory(1, state_bytes, on_gpu, listen, TrainerSettings(engine="tensorflow", **settings))


def test_memory_is_asked_for_before_a_hop(memory: Any) -> None:
    asks(300 * MB)
    with pytest.raises(OutOfMemory, match="needs about 1,200 MB of memory more, and 1,000 MB are avail") as told:
        asks(400 * MB)
    assert "retry_failed" in (told.value.hint or "")
    asks(2000 * MB, shard=20)  # two shards are in memory at a time
    asks(400 * MB, memory_mb=1500)
    with pytest.raises(OutOfMemory):
        asks(400 * MB, memory_mb=1500, shard="never")
    memory.resident += 400 * MB  # The trainer already has most of it.
    asks(400 * MB)


def test_memory_that_others_give_back_is_waited_for(memory: Any) -> None:
    def listen() -> None:
        memory.available += 100 * MB

    asks(400 * MB, listen)


def test_where_memory_is_not_asked_for(memory: Any) -> None:
    memory.available = 0
    asks(1 * MB)  # a small state
    asks(400 * MB, on_gpu=True)  # The model is in the memory of a GPU.
    memory.available = None  # unknown
    asks(400 * MB)
