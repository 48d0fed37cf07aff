"""The compile cache: compiled programs are kept for the same user's later trainers only, within a size limit."""

from __future__ import annotations

import contextlib
import os
import re
import stat
import zlib
from pathlib import Path
from typing import Any

import pytest

from cerebro_db.nn.engines.kept import DIGEST_BYTES
from cerebro_plpy.platform.machine import cores
from tests.sql import users
from tests.sql.lab import CROSS, Lab, flower_model


def folder_of(lab: Lab, user: str | None = None) -> Path:
    """The folder of a user's compiled programs, by default the current user's."""
    number = lab.value("SELECT oid::bigint FROM pg_roles WHERE rolname = COALESCE(%s, current_user)", user)
    return Path(lab.value("SHOW data_directory")) / "pgsql_tmp_cerebro" / f"compiled-{number}"


def kept(lab: Lab, user: str | None = None) -> dict[str, int]:
    """The files in this folder, with their sizes.  A file that is being written may vanish: it gets another name."""
    found = {}
    for file in folder_of(lab, user).rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            if file.is_file():
                found[str(file)] = file.stat().st_size
    return found


@pytest.fixture(scope="module")
def place(lab: Lab) -> Lab:
    if lab.greenplum:
        pytest.skip("looks into the data folder of the one server")
    lab.iris(2)
    arch = lab.architecture(flower_model())
    lab.selection("mst", [(arch, f"optimizer='Adam(lr=0.1)', {CROSS}", "batch_size=8, epochs=1")])
    return lab


def fit(place: Lab, engine: str = "jax") -> list[float]:
    """The losses of a fit in a new session, so with new trainers."""
    with contextlib.closing(place.connect()) as session:
        number = place.fit("train", "m", "mst", 1, on=session, options={"seed": 1, "engine": engine})
    place("DROP TABLE m, m_info, m_summary")
    return [loss for (loss,) in place("SELECT loss FROM hop WHERE run = %s ORDER BY hop", number)]


@pytest.mark.throw_away
def test_each_segment_builds_before_the_first_visit(place: Lab, cluster: Any) -> None:
    """While one segment describes the only configuration, the other one builds it, and leaves the tracing to it."""
    if cores() < 2:
        pytest.skip("segments that share a processor would disturb each other")
    database = place.value("SELECT pg_catalog.quote_ident(pg_catalog.current_database())")
    known = {one: one.stat().st_size for one in cluster.log.glob("postgresql-*.log")}
    place(f"ALTER DATABASE {database} SET log_statement = 'all'")
    try:
        fit(place)
    finally:
        place(f"ALTER DATABASE {database} RESET log_statement")
    log = "".join(one.read_bytes()[known.get(one, 0) :].decode() for one in cluster.log.glob("postgresql-*.log"))
    orders = re.findall(r'"order": *"(describe|train)"(?:.*?"compiles": *(true|false))?', log)
    kinds = [kind for kind, _ in orders]
    assert kinds.count("describe") == kinds.index("train") == 2
    assert sorted(compiles for kind, compiles in orders if kind == "describe") == ["false", "true"]


@pytest.mark.tensorflow
def test_the_next_trainers_compile_nothing(place: Lab) -> None:
    """Those of JAX: below."""
    first, before = fit(place, "tensorflow"), kept(place)
    assert any("/tensorflow" in file for file in before)
    stamps = {file: os.stat(file).st_mtime_ns for file in before}
    assert fit(place, "tensorflow") == first, "what is kept has the numbers of what it was compiled from"
    assert kept(place) == before
    assert {file: os.stat(file).st_mtime_ns for file in before} == stamps


def test_what_was_cut_short_is_compiled_again_and_kept_whole(place: Lab) -> None:
    """A trainer that is killed while it writes leaves a truncated file, and so does a full disk."""
    for file in kept(place):  # other modules may have left programs that this fit does not need
        os.unlink(file)
    first = fit(place)
    assert any("/jax" in file for file in kept(place)) and stat.S_IMODE(folder_of(place).stat().st_mode) == 0o700
    of_jax = [file for file in kept(place) if "/tensorflow/" not in file]  # tests/nn/test_graphs.py has TensorFlow's
    for number, file in enumerate(of_jax):
        os.truncate(file, os.stat(file).st_size * (number % 3) // 3)
    assert fit(place) == first
    whole, before = {file: os.stat(file).st_mtime_ns for file in of_jax}, kept(place)
    for file in whole:
        content = Path(file).read_bytes()
        zlib.decompress(content if file.endswith("-cache") else content[DIGEST_BYTES:])
    assert fit(place) == first, "what is kept has the numbers of what it was compiled from"
    assert kept(place) == before
    assert {file: os.stat(file).st_mtime_ns for file in of_jax} == whole, "the next trainers compile nothing"


def test_nobody_is_given_anothers(place: Lab) -> None:
    """A trainer executes compiled programs without checks, so another user must not have written them."""
    before = kept(place)
    with users.town(place.dsn) as town:
        ann, bob = town.user("ann", "cerebro_user"), town.user("bob", "cerebro_user")
        users.equip(ann)
        users.fit(ann, options='{"engine": "jax"}')
        assert kept(place, ann.name) and not kept(place, bob.name)
        anns = {file: os.stat(file).st_mtime_ns for file in kept(place, ann.name)}
        users.equip(bob)
        users.fit(bob, options='{"engine": "jax"}')
        assert kept(place, bob.name), "bob's trainer has compiled for itself what ann's had compiled"
        assert {file: os.stat(file).st_mtime_ns for file in kept(place, ann.name)} == anns
    assert kept(place) == before


@pytest.mark.parametrize(("bound", "most"), [("MOST_BYTES", 250), ("MOST_FILES", 2)])
def test_it_is_bounded(tmp_path: Path, monkeypatch: Any, bound: str, most: int) -> None:
    """The oldest programs of all users are removed first."""
    from cerebro_plpy.segment import compiled

    monkeypatch.setattr(compiled, bound, most)
    for age, name in enumerate(["compiled-1/jax-1/new", "compiled-2/jax-1/older", "compiled-1/jax-2/oldest"]):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(bytes(100))
        os.utime(file, (1000 - age, 1000 - age))
    (tmp_path / "123-456").mkdir()
    (tmp_path / "123-456" / "rows").write_bytes(bytes(1000))
    compiled.make_room(tmp_path)
    left = {str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*") if file.is_file()}
    assert left == {"compiled-1/jax-1/new", "compiled-2/jax-1/older", "123-456/rows"}


def test_an_administrator_can_do_without(tmp_path: Path, monkeypatch: Any) -> None:
    from cerebro_plpy.segment import compiled

    monkeypatch.setattr(compiled, "installation", lambda: {"keep_compiled": False})
    assert compiled.folder_of_user(10, tmp_path) is None and not list(tmp_path.iterdir())
