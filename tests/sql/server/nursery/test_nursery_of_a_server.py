"""The nursery of a real server: what a call has it prepare, and what crashes of the server leave behind."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg2
import pytest

from cerebro_db.core.trainers import shared_memory
from cerebro_db.embedded import throw_away
from cerebro_db.embedded.account import Account
from cerebro_db.embedded.cluster import Cluster
from cerebro_db.nn.processes import born
from cerebro_plpy.segment import nursery_connection
from tests.conftest import GIVEN, NOT_OURS, TRAINER, connect
from tests.sql.lab import CROSS, Lab, eventually, flower_model, trainer_processes
from tests.sql.server.nursery.trials import (
    WITHIN,
    children,
    nurseries,
    stopped,
)

LONG = "batch_size=1, epochs=20"


def prepared(lab: Lab) -> None:
    lab("CREATE SCHEMA nursery")
    lab.iris(2)
    model = lab.architecture(flower_model())
    lab.selection("mst", [(model, f"optimizer='Adam(lr={rate})', {CROSS}", LONG) for rate in (0.1, 0.01, 0.001)])


def under_way(lab: Lab, run_id: int) -> tuple[set[int], set[int]]:
    """The worker sessions and the trainers of a run that trains."""
    hops = lab.value("SELECT count(*) FROM hop WHERE run = %s", run_id)
    eventually(lambda: lab.value("SELECT count(*) FROM hop WHERE run = %s", run_id) > hops, WITHIN, "it trains")
    pids = lab("SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'cerebro_db segment %%'")
    return {pid for (pid,) in pids}, {pid for pid, _ in trainer_processes(lab.home)}  # type: ignore[arg-type]


def scratch_of(sessions: set[int], data: Path) -> list[Path]:
    found = data.stat()
    places = [data / "pgsql_tmp_cerebro", *Path("/dev/shm").glob(f"cerebro_db_*_{found.st_dev:x}_{found.st_ino:x}")]
    return [one for place in places for one in place.iterdir() if one.name.partition("-")[0] in map(str, sessions)]


def works_in(data: Path) -> list[int]:
    """The processes that work in a data folder: the server's, and the nursery."""
    found = []
    for one in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if one.name.isdigit() and os.readlink(one / "cwd") == str(data):
                found.append(int(one.name))
    return found


@pytest.fixture(scope="module")
def cluster_of_ours() -> Iterator[Cluster]:
    if GIVEN:
        pytest.skip(NOT_OURS)
    cluster = throw_away.create(TRAINER)
    try:
        with contextlib.closing(Lab(cluster.dsn(), "nursery", cluster.home)) as lab:
            prepared(lab)
        yield cluster
    finally:
        throw_away.remove(cluster)


@pytest.fixture
def own(cluster_of_ours: Cluster) -> Iterator[tuple[Cluster, Lab]]:
    """A cluster that a test may kill, and that the last test destroys."""
    if not answers(cluster_of_ours):
        eventually(lambda: not works_in(cluster_of_ours.data), 60, "all processes of the killed server end")
        cluster_of_ours.up()
    lab = Lab(cluster_of_ours.dsn(), "nursery", cluster_of_ours.home)
    try:
        yield cluster_of_ours, lab
    finally:
        lab.close()


def nurseries_of(cluster: Cluster) -> list[int]:
    return [pid for folder in cluster.data.glob("pgsql_tmp_cerebro/*/nursery-*") for pid in nurseries(folder)]


def imports(cluster: Cluster, engine: str = "template.py") -> bool:
    with contextlib.suppress(OSError):  # processes come and go
        commands = [Path(f"/proc/{one}/cmdline").read_bytes() for pid in nurseries_of(cluster) for one in children(pid)]
        return any(engine.encode() in command for command in commands)
    return False


def test_a_call_begins_with_the_import_unless_it_trains_nothing(own: tuple[Cluster, Lab]) -> None:
    cluster, lab = own
    call = "SELECT cerebro.train('no_table', 'refused', target => 'y', {})"
    for more, begins in (("dry_run => true", False), ("epochs => 0", True)):
        for pid in nurseries_of(cluster):
            os.kill(pid, signal.SIGTERM)
        eventually(lambda: not nurseries_of(cluster), 60, "the nursery ends")
        with pytest.raises(psycopg2.Error, match="no_table|epochs is 0"):
            lab(call.format(more))
        if begins:
            eventually(lambda: imports(cluster), 30, "the default engine is imported")
        else:
            assert not nurseries_of(cluster)


def test_an_engine_is_imported_while_the_call_that_needs_it_is_checked(own: tuple[Cluster, Lab]) -> None:
    cluster, lab = own

    def there() -> list[int]:
        return nurseries_of(cluster)

    def imports_jax() -> bool:
        return imports(cluster, "jax")

    with pytest.raises(psycopg2.Error, match="val_loss"):  # a session asks the nursery once for the default engine
        lab.fit("train", "refused", "mst", 1, options={"objective": "val_loss"})
    for pid in there():
        os.kill(pid, signal.SIGTERM)
    eventually(lambda: not there(), 60, "the nursery ends")
    with pytest.raises(psycopg2.Error, match="val_loss"):
        lab.fit("train", "refused", "mst", 1, options={"engine": "jax", "objective": "val_loss"})
    eventually(imports_jax, 30, "JAX is imported")
    # A nursery that hangs is not waited for.
    (pid,) = there()
    with stopped(pid):
        began = time.monotonic()
        with pytest.raises(psycopg2.Error, match="val_loss"):
            lab.fit("train", "refused", "mst", 1, options={"objective": "val_loss"})
        assert time.monotonic() - began < 2 * nursery_connection.ANSWERS_WITHIN


@pytest.mark.thorough  # without a run: test_a_start_that_somebody_kills_is_repeated
def test_a_run_goes_on_though_nursery_and_trainers_are_killed_at_its_start(own: tuple[Cluster, Lab]) -> None:
    cluster, lab = own

    def nursery_of_trainers() -> int:
        """A nursery that was asked for trainers: a template of it imports the framework."""
        found = [pid for folder in cluster.data.glob("pgsql_tmp_cerebro/*/nursery-*") for pid in nurseries(folder)]
        return next((pid for pid in found if born(pid) and children(pid)), 0)

    run_id = lab.submit("train", "begun", "mst", 1)
    killed: set[int] = set()
    for _ in range(2):
        kill_next(nursery_of_trainers, killed)
    kill_next(lambda: next((pid for pid, _ in trainer_processes(cluster.home)), 0), killed)
    eventually(lambda: lab.status(run_id) not in ("created", "running", "finishing"), WITHIN, "the run ends")
    assert lab.status(run_id) == "finished"
    assert len(killed) == 3


def kill_next(found: Callable[[], int], killed: set[int]) -> None:
    def done() -> bool:
        with contextlib.suppress(OSError):  # processes come and go
            pid = found()
            if pid and pid not in killed:
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)
                return True
        return False

    eventually(done, WITHIN, "there is one to kill")


@pytest.mark.thorough  # without a run: test_a_stopped_nursery_gets_a_successor_and_does_no_harm_when_it_goes_on
def test_a_stopped_nursery_costs_a_run_seconds(own: tuple[Cluster, Lab]) -> None:
    cluster, lab = own
    folders = list(cluster.data.glob("pgsql_tmp_cerebro/*/nursery-*"))
    lab.fit("train", "first", "mst", 1)
    began = time.monotonic()
    lab.fit("train", "second", "mst", 1)
    usual = time.monotonic() - began
    lab("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'cerebro_db waiting'")
    (pid,) = {pid for folder in folders for pid in nurseries(folder)}
    with stopped(pid):
        began = time.monotonic()
        lab.fit("train", "third", "mst", 1)
        # It is met by the call and by its worker sessions, which are opened at the same time; then a template imports.
        assert time.monotonic() - began < usual + 40
        successors = {one for folder in folders for one in nurseries(folder)} - {pid}
        assert len(successors) == 1
    eventually(lambda: not born(pid), 60, "the nursery has no trainers left and ends")
    lab.fit("train", "fourth", "mst", 1)
    assert {one for folder in folders for one in nurseries(folder)} == successors


def test_a_crash_of_the_server_leaves_no_process_and_no_file(own: tuple[Cluster, Lab]) -> None:
    """A killed session makes PostgreSQL end all the others; then the postmaster itself is killed."""
    cluster, lab = own
    run_id = lab.submit("train", "crashed", "mst", 500)
    workers, trainers = under_way(lab, run_id)
    os.kill(min(workers), signal.SIGKILL)
    eventually(lambda: not any(map(born, trainers)), 60, "the trainers end")
    eventually(lambda: not scratch_of(workers, cluster.data), 60, "their files are removed")
    lab.close()
    eventually(lambda: answers(cluster), 60, "the server answers again")
    lab("SELECT resume(%s, wait => false)", run_id)
    workers, trainers = under_way(lab, run_id)
    os.kill(int((cluster.data / "postmaster.pid").read_text().split()[0]), signal.SIGKILL)
    eventually(lambda: not any(map(born, trainers)), 60, "the trainers end")
    eventually(lambda: not scratch_of(workers, cluster.data), 60, "their files are removed")
    eventually(lambda: not works_in(cluster.data), 60, "all processes end")


def test_a_call_whose_server_is_killed_does_not_blame_its_settings(own: tuple[Cluster, Lab]) -> None:
    cluster, lab = own
    failed: list[str] = []

    def train() -> None:
        with contextlib.closing(lab.connect()) as connection:
            try:
                lab.fit("train", "lost", "mst", 500, on=connection)
            except psycopg2.Error as error:
                failed.append(str(error))

    call = threading.Thread(target=train)
    call.start()
    trains = "SELECT count(*) FROM hop JOIN run USING (run) WHERE model_table = 'nursery.lost'"
    eventually(lambda: lab.value(trains), WITHIN, "it trains")
    os.kill(int((cluster.data / "postmaster.pid").read_text().split()[0]), signal.SIGKILL)
    call.join(WITHIN)
    (text,) = failed
    assert "pg_hba" not in text
    assert re.search("it has ended|closed the connection|terminat", text), text


def answers(cluster: Cluster) -> bool:
    with contextlib.suppress(psycopg2.OperationalError):
        connect(cluster.dsn()).close()
        return True
    return False


def test_where_the_postmaster_is_process_1_no_trainer_takes_the_server_down(own: tuple[Cluster, Lab]) -> None:
    """As in a container without an init.  PostgreSQL takes each process that it inherits for one of its own."""
    if os.geteuid() != 0 or subprocess.run(["unshare", "--pid", "--fork", "--mount-proc", "true"]).returncode != 0:
        pytest.skip("no PID namespace can be made here")
    cluster, lab = own
    lab.close()
    cluster.down()
    owner, log = Account.get().name, cluster.log / "as-process-1.log"
    command = ["unshare", "--pid", "--fork", "--mount-proc", "setpriv", "--reuid", owner, "--regid"]
    command += [owner, "--clear-groups", str(cluster.prefix.bin / "postgres"), "-D", str(cluster.data)]
    known = {one: one.stat().st_size for one in cluster.log.glob("postgresql-*.log")}  # of the tests before
    with open(log, "wb") as output:
        container = subprocess.Popen(command, stdout=output, stderr=output, cwd="/")
    try:
        eventually(lambda: answers(cluster), 60, "the server answers")
        assert lab.value("SELECT pg_backend_pid()") < 1000, "it counts processes anew"
        lab("CREATE EXTENSION IF NOT EXISTS plpython3u")
        lab(
            "CREATE FUNCTION kill(pid integer) RETURNS void LANGUAGE plpython3u AS"
            " 'import contextlib, os\nwith contextlib.suppress(ProcessLookupError): os.kill(pid, 9)'"
        )
        run_id = lab.submit("train", "contained", "mst", 500)
        for ended in (
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name ~ '^cerebro_db (run|segm)'",
            f"SELECT kill(max(trainer_pid)) FROM hop WHERE run = {run_id}",
            "SELECT pg_terminate_backend(pid), kill(trainer_pid) FROM pg_stat_activity a JOIN (SELECT worker_pid,"
            f" max(trainer_pid) AS trainer_pid FROM hop WHERE run = {run_id} GROUP BY 1) h ON a.pid = worker_pid",
        ):
            if lab.value("SELECT status FROM runs WHERE run = %s", run_id) != "running":
                lab("SELECT resume(%s, wait => false)", run_id)
            count = f"SELECT count(*) FROM hop WHERE run = {run_id}"
            hops = lab.value(count)
            trains = lambda hops=hops, count=count: lab.value(count) > hops + 1  # noqa: E731
            eventually(trains, WITHIN, "it trains")
            lab(ended)
            time.sleep(0.5)  # the postmaster would have ended this session by now; its log is read below
        assert lab.value("SELECT count(*) FROM hop WHERE run = %s", run_id) > 3
        left = scratch_of(set(range(1000)), cluster.data)
        assert left
    finally:
        lab.close()
        for pid in children(container.pid):  # process 1; all others end with it
            os.kill(pid, signal.SIGKILL)
        container.wait(30)
    # Nothing of the container could clean up. What is left in shared memory is the server's, wherever it starts again.
    cluster.up()
    lab("SELECT * FROM cerebro.doctor()")
    eventually(lambda: not any(map(Path.exists, left)), 30, "the files are removed")
    logs = [one.read_bytes()[known.get(one, 0) :].decode() for one in cluster.log.glob("postgresql-*.log")]
    told = log.read_text() + "".join(logs)
    assert "terminating any other active server processes" not in told


def test_a_destroyed_cluster_leaves_nothing_in_shared_memory_though_its_nursery_was_killed(
    own: tuple[Cluster, Lab],
) -> None:
    cluster, lab = own
    lab.fit("train", "small", "mst", 1)
    folder = shared_memory.folder_of(cluster.data, cluster.data.stat().st_uid)
    (pid,) = [pid for one in cluster.data.glob("pgsql_tmp_cerebro/*/nursery-*") for pid in nurseries(one)]
    kept = list(folder.iterdir())
    assert os.readlink(folder / shared_memory.OWNER).endswith(f" {cluster.data}")
    assert len(kept) > 1, "sessions wait for the next call"
    os.kill(pid, signal.SIGKILL)
    lab.close()
    cluster.destroy()
    assert not folder.exists()
