"""The section dbt of docs/production.md with a real dbt: its project trains, notices what has changed, and predicts."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from psycopg2.extensions import parse_dsn

from tests.sql.pages import ROOT, blocks
from tests.sql.users import Town, User, town

pytestmark = pytest.mark.dbt

PAGE = "docs/production.md"
QUICK = "verb='fit', configurations={'units': 4}, epochs=2, options={'seed': 1}"  # in place of a budget of minutes
INCOME = "models/income.sql"


class Project:
    """The project of the page, in the schema of a plain user."""

    def __init__(self, folder: Path, user: User) -> None:
        self.folder, self.user = folder, user
        login = parse_dsn(user.dsn)
        target = {
            "type": "postgres", "host": login["host"], "port": int(login["port"]), "user": login["user"],
            "password": login["password"], "dbname": login["dbname"], "schema": user.name, "threads": 1,
        }  # fmt: skip
        self.write("profiles.yml", json.dumps({"people": {"target": "dev", "outputs": {"dev": target}}}))
        self.write("packages.yml", json.dumps({"packages": [{"local": str(ROOT / "docker" / "dbt")}]}))
        self.write("dbt_project.yml", json.dumps({"name": "people", "version": "1.0.0", "profile": "people"}))
        for text in [*blocks(PAGE, "jinja"), *blocks(PAGE, "yaml")]:
            name = re.match(r"(?:--|#) (models/\w+\.\w+)\n", text)
            assert name is not None, text
            self.write(name[1], text.replace("schema: public", f"schema: {user.name}"))

    def write(self, name: str, text: str) -> None:
        (self.folder / name).parent.mkdir(exist_ok=True)
        (self.folder / name).write_text(text)

    def change(self, name: str, old: str, new: str) -> None:
        text = (self.folder / name).read_text()
        assert old in text
        self.write(name, text.replace(old, new))

    def __call__(self, *arguments: str, fails: bool = False) -> str:
        """What dbt says."""
        done = subprocess.run(
            ["dbt", "--no-use-colors", *arguments, "--profiles-dir", "."],
            cwd=self.folder,
            capture_output=True,
            text=True,
            env={**os.environ, "DBT_SEND_ANONYMOUS_USAGE_STATS": "0"},
            timeout=300,
        )
        assert (done.returncode != 0) is fails, done.stdout + done.stderr
        return done.stdout

    def trained_by(self, model: str = "income") -> Any:
        (run,) = self.user(f"SELECT run FROM {model}_summary")
        return run

    def tables(self) -> set[str]:
        return set(self.user("SELECT relname FROM pg_class WHERE relnamespace = %s::regnamespace", self.user.name))


@pytest.fixture(scope="module")
def people(server: str) -> Iterator[tuple[Town, User]]:
    with town(server) as root:
        user = root.user("dbt", "cerebro_user")
        (made, *_) = [block for block in blocks("docs/prepare.md", "sql") if "CREATE TABLE people AS" in block]
        user(made.partition("CREATE TABLE customers")[0])
        yield root, user


@pytest.fixture(scope="module")
def project(people: tuple[Town, User], tmp_path_factory: pytest.TempPathFactory) -> Project:
    made = Project(tmp_path_factory.mktemp("dbt"), people[1])
    for name in (INCOME, "models/income_predictor.sql"):
        made.change(name, "budget='1 minute'", QUICK)
    made("deps")
    said = made("run")
    assert "income: trained by run " in said and "[UNCHANGED" not in said and "has no effect" not in said
    return made


def test_the_page_s_models_are_there(project: Project) -> None:
    assert project.user("SELECT count(*) FROM incomes WHERE income BETWEEN 1 AND 200000") == [100]
    assert project.user("SELECT count(income) FROM rome") == [5]
    assert project.user("SELECT model_table FROM income_summary") == [f"{project.user.name}.income"]
    assert project.user("SELECT run_name FROM cerebro.runs WHERE run = %s", project.trained_by()) == ["income"]
    named = project.user("SELECT model_table FROM cerebro.models")
    assert f"{project.user.name}.income" in named and not [name for name in named if name.endswith("__new")]


def test_nothing_is_trained_if_nothing_has_changed(project: Project) -> None:
    before, runs = project.trained_by(), project.user("SELECT count(*) FROM cerebro.runs")
    project.user("CREATE TABLE shuffled AS SELECT * FROM people ORDER BY md5(id::text)")
    project.user("TRUNCATE people; INSERT INTO people SELECT * FROM shuffled; DROP TABLE shuffled")
    project.user("UPDATE people SET name = 'no input'")
    said = project("run")
    assert re.search(r"OK created sql cerebro_model model \S+\.income \.+ \[UNCHANGED", said)
    assert project.trained_by() == before and project.user("SELECT count(*) FROM cerebro.runs") == runs


def test_a_changed_row_trains_and_views_of_the_predictor_stay(project: Project) -> None:
    user = project.user
    user("CREATE VIEW at_forty AS SELECT income_of(age => 40, city => 'Rome', zip => '00107') AS income")
    old, runs = user("SELECT income FROM at_forty"), project.trained_by("income_predictor")
    packed = {name for name in project.tables() if name.endswith("_packed")}
    user("UPDATE people SET income = income * 3 WHERE id % 2 = 0")
    project("run", "--select", "income_predictor", "income")
    assert user("SELECT income FROM at_forty") != old and project.trained_by("income_predictor") != runs
    # Those of the rows before are gone, and there is one table of packed rows for each model.
    left = {name for name in project.tables() if re.fullmatch(r".*_packed(_\d+)?", name)}
    assert len(left) == 2 and not left & packed
    user("DROP VIEW at_forty")


def test_a_changed_argument_trains(project: Project) -> None:
    before = project.trained_by()
    project.change(INCOME, "epochs=2", "epochs=3")
    assert "income: trained by run" in project("run", "--select", "income")
    assert project.trained_by() > before and project.user("SELECT epochs FROM income_summary") == [3]
    assert "[UNCHANGED" in project("run", "--select", "income")
    assert "income: trained by run" in project("run", "--select", "income", "--full-refresh")


def test_a_changed_type_trains(project: Project) -> None:
    before = project.trained_by()
    project.change(INCOME, "select id, age,", "select id, age::bigint as age,")
    project("run", "--select", "income")
    assert project.trained_by() > before


def test_a_column_has_the_name_of_the_alias_in_the_hash(project: Project) -> None:
    project.user("CREATE TABLE people_by_age AS SELECT id AS r, age, income FROM people")
    project.write("models/ages.sql", f"{{{{ config(materialized='cerebro_model', target='income', {QUICK}) }}}}\n"
                                     f"select r, age, income from {project.user.name}.people_by_age")  # fmt: skip
    assert "ages: trained by run" in project("run", "--select", "ages")
    project.user("UPDATE people_by_age SET income = income * 2 WHERE r % 2 = 0")
    assert "ages: trained by run" in project("run", "--select", "ages")
    assert "[UNCHANGED" in project("run", "--select", "ages")
    (project.folder / "models/ages.sql").unlink()


def test_the_old_model_predicts_if_training_fails(project: Project) -> None:
    before = project.trained_by()
    project.change(INCOME, "zip, income from", "zip, 1.5::real as income from")
    assert "ERROR" in project("run", "--select", "income", fails=True)
    assert project.trained_by() == before
    assert project.user(
        "SELECT count(*) FROM cerebro.predict('income', 'SELECT id, age::bigint AS age, city, zip FROM new_people')"
    ) == [100]
    project.change(INCOME, "1.5::real as income from", "income from")
    assert "[UNCHANGED" in project("run", "--select", "income")


def test_settings(people: tuple[Town, User], project: Project) -> None:
    """A name that is no argument is told, ``meta`` is read, and others may be given the right to predict."""
    root, user = people
    other = root.user("other", "cerebro_user")
    user(f"GRANT USAGE ON SCHEMA {user.name} TO {other.name}")
    project.change(INCOME, "epochs=3", f"epoch=3, meta={{'epochs': 1}}, grants={{'select': ['{other.name}']}}")
    assert "income: epoch has no effect" in project("run", "--select", "income")
    assert user("SELECT epochs FROM income_summary") == [1]
    row = "SELECT 1 AS id, 40::bigint AS age, 'Rome' AS city, '00107' AS zip"
    assert len(other("SELECT * FROM cerebro.predict(%s, %s)", f"{user.name}.income", row)) == 1
    project.change(INCOME, "verb='fit'", "verb='drop_model'")
    assert "verb is 'drop_model'; it must be train, search or fit" in project("run", "--select", "income", fails=True)


def test_another_model_is_not_dropped(project: Project) -> None:
    """A table of the model's name that is no model table stays."""
    project.user("CREATE TABLE mine AS SELECT 1 AS one")
    project.write("models/mine.sql", f"{{{{ config(materialized='cerebro_model', target='income', {QUICK}) }}}}\n"
                                     f"select age, city, income from {project.user.name}.people")  # fmt: skip
    assert "is not a table of trained models" in project("run", "--select", "mine", fails=True)
    assert project.user("SELECT one FROM mine") == [1]
