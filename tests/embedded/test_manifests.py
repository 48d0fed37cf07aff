"""docker/compose.yaml and docker/cloudnative-pg.yaml agree with the image, the server and the documentation."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from psycopg2.extensions import parse_dsn

from tests.conftest import connect

CLONE = Path(__file__).resolve().parents[2]
DOCKERFILE = (CLONE / "docker" / "Dockerfile").read_text()
COMPOSE = yaml.safe_load((CLONE / "docker" / "compose.yaml").read_text())
CLUSTER = yaml.safe_load((CLONE / "docker" / "cloudnative-pg.yaml").read_text())["spec"]
PAGE = (CLONE / "docs" / "install.md").read_text()


def test_compose_has_a_volume_and_limits() -> None:
    (service,) = COMPOSE["services"].values()
    (data,) = re.findall(r"^VOLUME (\S+)$", DOCKERFILE, re.MULTILINE)
    assert service["volumes"] == [f"data:{data}"] and set(COMPOSE["volumes"]) == {"data"}
    assert service["init"] is True
    assert service["environment"]["POSTGRES_PASSWORD"].startswith("${POSTGRES_PASSWORD:?")
    assert all(port.startswith("127.0.0.1:") for port in service["ports"]), "others on the network cannot log in"
    for setting, name in {"mem_limit": "CEREBRO_MEMORY", "cpus": "CEREBRO_CPUS"}.items():
        (default,) = re.findall(rf"^\$\{{{name}:-(\S+)\}}$", service[setting])
        assert re.search(rf"\| `{name}`, default `?{default}`? \|", PAGE)
    assert f"| `shm_size` | `{service['shm_size']}` |" in PAGE
    built = service["build"]
    assert (CLONE / "docker" / built["context"] / built["dockerfile"]).resolve() == CLONE / "docker" / "Dockerfile"
    assert all(re.search(rf"^ARG {name}=", DOCKERFILE, re.MULTILINE) for name in built["args"])


def test_the_cluster_of_cloudnative_pg_is_of_the_image() -> None:
    (user,) = re.findall(r"useradd .*--uid (\d+) --gid (\d+)", DOCKERFILE)
    assert (str(CLUSTER["postgresUID"]), str(CLUSTER["postgresGID"])) == user
    (major,) = re.findall(r"postgresql-plpython3-(\d+)", DOCKERFILE)
    assert CLUSTER["imageName"].endswith(f":{major}"), "CloudNativePG reads the version from the tag"
    assert all(rule in " ".join(PAGE.split()) for rule in CLUSTER["postgresql"]["pg_hba"])


@pytest.mark.throw_away
def test_the_statements_of_cloudnative_pg_work(fresh_database: str) -> None:
    """As it runs them: as a superuser, in a database whose owner exists."""
    first = CLUSTER["bootstrap"]["initdb"]
    database = parse_dsn(fresh_database)["dbname"]
    with contextlib.closing(connect(fresh_database)) as connection, connection.cursor() as cursor:
        cursor.execute("DROP EXTENSION cerebro_db_madlib; DROP EXTENSION cerebro_db; DROP SCHEMA cerebro")
        cursor.execute(f"BEGIN; CREATE ROLE {first['owner']} LOGIN")
        for statement in first["postInitApplicationSQL"]:
            cursor.execute(statement.replace(f"DATABASE {first['database']} ", f"DATABASE {database} "))
        cursor.execute("SELECT extname FROM pg_extension WHERE extname ~ '^cerebro' ORDER BY 1")
        assert [name for (name,) in cursor] == ["cerebro_db", "cerebro_db_madlib"]
        rights = {"app": "cerebro_user", "pg_monitor": "cerebro_monitor"}
        for member, role in rights.items():
            cursor.execute("SELECT pg_has_role(%s, %s, 'MEMBER')", (member, role))
            assert cursor.fetchone() == (True,)
        cursor.execute("ROLLBACK")


@pytest.mark.throw_away
def test_the_settings_of_cloudnative_pg_are_settings(db: Any) -> None:
    with db.cursor() as cursor:
        for name, value in CLUSTER["postgresql"]["parameters"].items():
            cursor.execute("SELECT vartype, enumvals FROM pg_settings WHERE name = %s", (name,))
            ((kind, choices),) = cursor.fetchall()
            assert kind in ("integer", "bool") or value in (choices or [])
