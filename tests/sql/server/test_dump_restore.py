"""A database with finished and interrupted runs, moved: dumped and restored, here and on a server that knows nobody,
and by pg_upgrade to a server with other folders."""

from __future__ import annotations

import contextlib
import glob
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg2
import pytest
from psycopg2.extensions import make_dsn, parse_dsn

from cerebro_db.embedded import cluster as clusters
from cerebro_db.embedded import throw_away
from cerebro_db.embedded.account import Account
from cerebro_db.embedded.errors import ClusterError
from cerebro_db.embedded.installation import Installation
from cerebro_db.embedded.prefix import Prefix
from cerebro_db.embedded.server import Server
from tests.conftest import TRAINER, connect
from tests.sql.lab import Lab, eventually
from tests.sql.moving import EPOCHS, OPTIONS, Source, all_of, as_user, said_by_registered, tool, trained
from tests.thorough import landing

pytestmark = pytest.mark.throw_away


@pytest.fixture(scope="module")
def old() -> Iterator[clusters.Cluster]:
    """A server of the oldest version here, which can be upgraded. The other servers are of this version, too."""
    with pytest.MonkeyPatch.context() as patched:
        for major in installed()[:1]:
            patched.setenv("PG_CONFIG", f"/usr/lib/postgresql/{major}/bin/pg_config")
        made = throw_away.create(TRAINER)
        try:
            yield made
        finally:
            throw_away.remove(made)


@pytest.fixture(scope="module")
def source(old: clusters.Cluster) -> Iterator[Source]:
    with trained(old) as made:
        yield made


@pytest.fixture(scope="module")
def dumps(source: Source, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("dumps")
    made = {"custom": folder / "src.dump", "plain": folder / "src.sql"}
    for kind, file in made.items():
        tool("pg_dump", source.dsn, f"--format={kind}", "-f", str(file))
    return made


@contextlib.contextmanager
def restored(dsn: str, dump: Path, source: Source) -> Iterator[Lab]:
    """Alice's session in a new database of a server, filled from a dump."""
    name = "back_" + secrets.token_hex(3)
    with contextlib.closing(connect(dsn)) as db, db.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {name}")
    there = make_dsn(**{**parse_dsn(dsn), "dbname": name})
    try:
        if dump.suffix == ".sql":
            tool("psql", there, "-q", "-v", "ON_ERROR_STOP=1", "-f", str(dump))
        else:
            tool("pg_restore", there, "--exit-on-error", "-j", "2", str(dump))
        lab = Lab(as_user(there, source.alice, source.secret), "work", None)
        try:
            yield lab
        finally:
            lab.close()
    finally:
        with contextlib.closing(connect(dsn)) as db, db.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,))
            cursor.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


def refused(lab: Lab, statement: str, *values: Any) -> str:
    with pytest.raises(psycopg2.Error) as error:
        lab(statement, *values)
    return str(error.value)


def check(there: Lab, source: Source) -> None:
    """All that was there is there; the broken run goes on to the same bits, and the next run has the next number."""
    assert there.status(source.calm) == "finished"
    assert there.status(source.broken) in ("interrupted", "cancelled", "failed")
    assert all_of(there) == source.seen
    assert there.weights("calm") == source.weights
    if source.said:
        assert said_by_registered(there) == source.said and len(source.said) > 10
        assert there.value("SELECT max(version) FROM registered_versions") + 1 == there.value(
            "SELECT register('kept', 'kept@production')"
        )
    assert there.states(source.calm) == source.expected
    assert there.value("SELECT resume(%s)", source.broken) == source.broken
    assert there.states(source.broken) == source.expected
    assert there.weights("broken") == there.weights("calm")
    run = there.fit("train", "fresh", "mst", 1, options=OPTIONS)
    assert run > source.broken
    assert there.value("SELECT min(event_id) FROM event WHERE run = %s", run) > there.value(
        "SELECT max(event_id) FROM event WHERE run = %s", source.calm
    )
    there("SELECT resume(%s, epochs => %s)", source.calm, EPOCHS + 1)  # a finished one can be extended
    there("SELECT forget(%s)", source.broken)
    strange = (
        "SELECT count(*) FROM pg_class WHERE relnamespace = 'cerebro_state'::regnamespace AND relkind = 'r'"
        " AND relowner <> current_user::regrole"
    )
    assert there.value(strange) == 0


# A plain dump is restored by test_into_another_server.
@pytest.mark.parametrize("kind", landing(["custom", "plain"], "custom"))
def test_into_another_database(source: Source, dumps: dict[str, Path], kind: str) -> None:
    with restored(source.dsn, dumps[kind], source) as there:
        check(there, source)


def test_into_another_server(old: clusters.Cluster, source: Source, dumps: dict[str, Path], tmp_path: Path) -> None:
    """Its secret is another, so are the numbers of its roles; with the old server's logins and without."""
    known = source
    other = throw_away.create(TRAINER)
    try:
        with contextlib.closing(connect(other.dsn())) as db, db.cursor() as cursor:
            for number in range(3):
                cursor.execute(f"CREATE ROLE somebody{number}")
            cursor.execute(f"CREATE ROLE {known.alice} LOGIN PASSWORD '{known.secret}'")
            cursor.execute(f"GRANT cerebro_user TO {known.alice}")
        with restored(other.dsn(), dumps["custom"], known) as there:
            check(there, known)
        # The old server's roles, passwords and all: what exists is said to exist.
        tool("pg_dumpall", old.dsn(), "--roles-only", "-f", str(tmp_path / "roles.sql"))
        tool("psql", other.dsn(), "-q", "-f", str(tmp_path / "roles.sql"), stop=False)
        with restored(other.dsn(), dumps["plain"], known) as there:
            check(there, known)
    finally:
        throw_away.remove(other)


# --- pg_upgrade ----------------------------------------------------------------------------------------------------


def installed() -> list[str]:
    """The versions of PostgreSQL with PL/Python that this machine has, the oldest first."""
    programs = glob.glob("/usr/lib/postgresql/*/bin/pg_upgrade")
    found = sorted(int(Path(program).parts[-3]) for program in programs)
    return [str(major) for major in found if server_of(str(major)).has_plpython]


def server_of(major: str) -> Installation:
    return Installation.of(f"/usr/lib/postgresql/{major}/bin/pg_config")


@pytest.fixture
def old_server(old: clusters.Cluster, source: Source) -> Iterator[tuple[clusters.Cluster, Source]]:
    """The server with the runs, stopped."""
    source.lab.close()
    old.down()
    yield old, source
    old.restart()  # for the tests that follow, and for those who clean up


@contextlib.contextmanager
def upgraded(old: clusters.Cluster, major: str, home: Path) -> Iterator[clusters.Cluster]:
    """A new server of a version, with the data of another by pg_upgrade. It does not run yet."""
    new = clusters.Cluster("upgraded", at=home)
    new.make_home()
    prefix, account = Prefix(home / "prefix", server_of(major)), Account.get()
    prefix.make()
    new.make(account, None, None, throw_away.QUICK)
    try:
        server = Server(new, account, prefix)
        server.initialize()
        server.start()  # which writes its settings
        server.stop()
        for place in (old.prefix, prefix):
            for program in place.of.bin.iterdir():
                if not (place.bin / program.name).exists():
                    (place.bin / program.name).symlink_to(program)
        account.own(home / "work")
        done = account.run(
            [
                "/bin/sh", "-c", 'cd "$0" && exec "$@"', str(home / "work"), str(prefix.bin / "pg_upgrade"),
                "-b", str(old.prefix.bin), "-d", str(old.data), "-B", str(prefix.bin), "-D", str(new.data),
                "-U", "postgres", "-s", str(home / "work"),
            ],
            {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"},
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-3000:]
        yield new
    finally:
        with contextlib.suppress(ClusterError):
            new.destroy()


@pytest.mark.parametrize("major", installed())
def test_to_another_server_by_pg_upgrade(
    old_server: tuple[clusters.Cluster, Source], major: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Its folders are other ones, those of the old server are gone, and it has no secret."""
    old, known = old_server
    home = Path(tempfile.mkdtemp(prefix="cerebro-up-", dir="/tmp"))
    home.chmod(0o755)
    try:
        with upgraded(old, major, home) as new:
            shutil.move(old.prefix.top, home / "gone")
            Server(new, Account.get(), new.prefix).start()
            dsn = make_dsn(**{**parse_dsn(new.dsn()), "dbname": parse_dsn(known.dsn)["dbname"]})
            lab = Lab(as_user(dsn, known.alice, known.secret), "work", home)
            error = refused(lab, "SELECT resume(%s)", known.broken)
            assert "the code of cerebro_db is not there" in error and "make install" in error

            new.up(trainer_python=TRAINER)  # as make install
            assert lab.value("SELECT count(*) FROM predict('calm', 'SELECT * FROM garden')") > 0
            error = refused(lab, "SELECT resume(%s)", known.broken)
            assert "its secret is not in the data folder" in error and "_setup_logins" in error
            with contextlib.closing(connect(dsn)) as db, db.cursor() as cursor:
                cursor.execute("SELECT check_name, advice FROM cerebro.doctor() WHERE status = 'problem'")
                problems = dict(cursor.fetchall())
                assert set(problems) >= {"secret", "login"} and "_setup_logins" in problems["secret"]
                cursor.execute("SELECT cerebro_internal._setup_logins()")
                cursor.execute("SELECT count(*) FROM cerebro.doctor() WHERE status = 'problem'")
                assert cursor.fetchone() == (0,)
            check(lab, known)
            lab.close()
            shutil.move(home / "gone", old.prefix.top)
    finally:
        shutil.rmtree(home)


# --- while a run trains ---------------------------------------------------------------------------------------------


def test_a_dump_does_not_end_a_run(source: Source) -> None:
    """pg_dump locks every table against TRUNCATE for as long as it takes, longer than a run waits for a lock."""
    lab = source.lab
    with contextlib.closing(psycopg2.connect(source.dsn)) as reader, reader.cursor() as cursor:
        run = lab.submit("train", "beside", "mst", EPOCHS, options=OPTIONS)
        eventually(lambda: lab.value("SELECT count(*) FROM hop WHERE run = %s", run) >= 5, 60, "five hops")
        storage = lab.value("SELECT storage FROM run WHERE run = %s", run)
        for leaf in (f"{storage}_shared_0", f"{storage}_shared_1"):
            cursor.execute(f'LOCK TABLE cerebro_state."{leaf}" IN ACCESS SHARE MODE')
        assert lab.value("SELECT wait(%s, 100)", run) == "finished"
    assert lab.states(run) == source.expected
    lab("SELECT forget(%s)", run)
