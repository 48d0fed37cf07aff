"""A name in a document opens nothing: each name, type and function in each document of a stranger's is a trap, and each
function that an ordinary user may call is called with these documents.

The victims are an ordinary user and a superuser, in READ COMMITTED and REPEATABLE READ, with the stranger's tables,
with copies of them, with registered versions and with archives.  The traps change their form meanwhile.  Any outcome of
a call will do; nobody but the stranger may call the stranger's function.

CEREBRO_ATTACKS_SHOW=1 prints the errors of the calls.
"""

from __future__ import annotations

import collections
import contextlib
import hashlib
import itertools
import json
import os
import random
import time
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psycopg2
import pytest
from psycopg2.extensions import make_dsn, parse_dsn

from cerebro_db.client.cerebro import Cerebro
from cerebro_db.client.commands import show
from cerebro_db.client.dashboard import pages
from cerebro_db.client.errors import ClientError
from cerebro_db.client.models import archives
from cerebro_db.core.errors import CerebroError
from tests.documents import MARK
from tests.sql import users
from tests.sql.rights import strangers, verbs
from tests.sql.rights.strangers import ADDED, FORMS, PLAIN, Change, Stranger, Victim
from tests.sql.rights.verbs import Call
from tests.sql.users import Town
from tests.thorough import TIMES, tries

ATTACKS = tries(4) if TIMES > 1 else 2
FEWER = 4  # calls that take seconds are made so many times less often
LEVELS = ("READ COMMITTED", "REPEATABLE READ")
COPIED = ("guesses", "models", "grouped", "guesses_packed", "guesses_packed_validation", "packed", "mst", "arch")
WHOSE = ("the stranger's", "a copy", "a version")
IMPORTED, SHARED = "an import", "a table in a schema where the stranger makes tables"


class Attack:
    """The calls of the stranger's function by others, by what was called."""

    def __init__(self, root: Town) -> None:
        self.root = root
        self.stranger = Stranger(root)
        bob = root.user("bob", "cerebro_user")
        schema = f"boss_{root.mark}"
        root(f"CREATE SCHEMA {schema}")
        self.victims = [
            Victim("a user", bob, bob.name, bob.dsn),
            Victim("a superuser", root, schema, root.dsn),
        ]
        for victim in self.victims:
            victim.equip(self.stranger)
        self.tried: collections.Counter[str] = collections.Counter()
        self.rang: collections.Counter[str] = collections.Counter()
        self.worked: collections.Counter[str] = collections.Counter()
        self.took: collections.Counter[str] = collections.Counter()
        self.kept: list[str] = []  # tables of the victims that are not removed after a call
        self.names = itertools.count(1)
        self.forms = itertools.cycle(form for hostile in (*FORMS, ADDED) for form in (None, hostile))
        self.random = random.Random(1)

    def close(self) -> None:
        self.stranger.close()
        self.root(f"SET client_min_messages = warning; DROP SCHEMA {self.victims[1].schema} CASCADE")
        for form in (PLAIN, *FORMS):
            self.root(f"DROP SCHEMA IF EXISTS {self.stranger.own}_{form}, {self.stranger.trap} CASCADE")

    def changes(self, call: Call) -> tuple[list[Change], list[Change]]:
        """Those that go deepest; and each leaf of the documents of a call with each name, in an order of chance."""
        stranger = self.stranger
        people, packed = f"{stranger.trap}.people", f"{stranger.trap}.guesses_packed_validation"
        deepest = [
            stranger.all_relations(),
            stranger.arguments_too("validation_table", people, "validation", "split_by", "stratify"),
            stranger.arguments_too("validation_table", packed, "validation", "split_by", "stratify"),
            stranger.arguments_too("source_table", people),
        ]
        single = [
            change for leaf in stranger.leaves if leaf.table in call.documents for change in stranger.of_leaf(leaf)
        ]
        self.random.shuffle(single)
        return deepest, single or deepest

    def used(self, victim: Victim, whose: str, name: str) -> dict[str, Any]:
        """What a call names."""
        stranger, mine = self.stranger, whose != WHOSE[0]
        start = f"{victim.schema}.own_" if mine else f"{stranger.own}."
        tables = {"model": "guesses", "madlib": "models", "packed": "guesses_packed", "plain": "packed",
                  "selection": "mst", "arch": "arch", "grouped": "grouped"}  # fmt: skip
        found = {key: start + table for key, table in tables.items()}
        registered = f"{stranger.name}@latest" if whose == WHOSE[2] else found["model"]
        return {**found, "model": registered, "registered": registered, "name": name, "schema": victim.schema,
                "own": stranger.own, "run": stranger.run}  # fmt: skip

    def call(self, verb: str, call: Call, victim: Victim, level: str, whose: str, change: Change) -> None:
        stranger, sql, began = self.stranger, victim.sql, time.monotonic()
        stranger.write(change)
        if whose == WHOSE[2]:
            stranger.register()
        name = f"r_{self.root.mark}_{next(self.names)}"
        named = self.used(victim, whose, name)
        statement = call.sql.format(**named)
        before, works = stranger.calls(), False
        stranger.become(PLAIN)
        try:
            if call.alone:
                if whose not in (WHOSE[0], SHARED):
                    victim.copies(stranger, COPIED)
                if verb.endswith("cerebro.retrain"):
                    sql(f"SELECT cerebro.register('{name}', '{named['model']}', 1, 'production')")
                sql(f"SET default_transaction_isolation = '{level}'")
                with self.traps():
                    for one in statement.split(";;"):
                        sql(one)
            else:
                sql(f"BEGIN ISOLATION LEVEL {level}")
                if whose not in (WHOSE[0], SHARED):
                    victim.copies(stranger, COPIED)
                sql("SELECT count(*) FROM pg_class")
                if level == LEVELS[1]:  # what the catalogs say to the victim is that of before
                    stranger.become((ADDED, *FORMS)[next(self.names) % (1 + len(FORMS))])
                    sql(statement)
                else:
                    with self.traps():
                        sql(statement)
            works = True
        except psycopg2.Error as error:
            if os.environ.get("CEREBRO_ATTACKS_SHOW"):
                print(f"{verb} {whose} {change.name[:60]}: {str(error).splitlines()[0][:150]}")
        finally:
            sql("ROLLBACK; RESET default_transaction_isolation")
        self.clear(victim, call)
        self.took[f"{verb}: {victim.name}"] += time.monotonic() - began  # type: ignore[assignment]
        self.count(f"{verb}: {victim.name}", stranger.calls() - before, works,
                   f"{statement[:110]} [{victim.name}, {level}, {whose}, {change.name[:80]}]")  # fmt: skip

    @contextlib.contextmanager
    def traps(self) -> Iterator[None]:
        """The traps are in one of their forms while the block runs, or they change it all the time."""
        form = next(self.forms)
        if form is None:
            with self.stranger.racing():
                yield
        else:
            self.stranger.become(form)
            yield

    def clear(self, victim: Victim, call: Call) -> None:
        if not call.alone:
            return
        kept = ["folk", "folk_2", "vectors", *self.kept]
        tables = victim.sql(
            "SELECT relname FROM pg_class WHERE relnamespace = %s::regnamespace AND relkind IN ('r', 'p')"
            " AND NOT relispartition AND relname <> ALL (%s)", victim.schema, kept)  # fmt: skip
        if tables:
            victim.sql("DROP TABLE " + ", ".join(f'{victim.schema}."{table}"' for table in tables))

    def count(self, what: str, calls: int, works: bool, told: str) -> None:
        self.tried[what] += 1
        self.worked[what] += works
        if calls:
            self.rang[what] += calls
            print(f"{calls} calls: {told}")

    def table(self) -> str:
        lines = [f"{what:<60} {self.tried[what]:>6} {self.worked[what]:>6} {self.rang[what]:>6} {self.took[what]:>6.1f}"
                 for what in self.tried]  # fmt: skip
        return "\n".join([f"{'':<60} {'tried':>6} {'worked':>6} {'calls':>6} {'s':>6}", *lines,
                          f"{self.stranger.swaps} times the traps changed their form"])  # fmt: skip


@pytest.fixture(scope="module")
def attack(server: str) -> Iterator[Attack]:
    with users.town(server) as root:
        made = Attack(root)
        try:
            yield made
        finally:
            print(made.table())
            made.close()


@pytest.fixture(autouse=True)
def nobody_calls(attack: Attack) -> Iterator[None]:
    before = sum(attack.rang.values())
    yield
    assert sum(attack.rang.values()) == before, "\n" + attack.table()


def test_the_traps_are_traps(attack: Attack) -> None:
    """Each victim who reads a twin calls the stranger's function: else nothing below would prove anything."""
    stranger = attack.stranger
    for form in FORMS:
        stranger.become(form)
        for victim in attack.victims:
            for table in strangers.TWINS:
                before = stranger.calls()
                victim.sql(f"SELECT * FROM {stranger.trap}.{table} WHERE {{}} IS NOT NULL".replace("{}", "tableoid")
                           if form != "view" else f"SELECT * FROM {stranger.trap}.{table}")  # fmt: skip
                assert stranger.calls() > before, (form, table, victim.name)
    stranger.become(PLAIN)
    before = stranger.calls()
    victim.sql(f"SELECT * FROM {stranger.trap}.people")
    stranger.session(f"SELECT {MARK}()")
    assert stranger.calls() == before


def test_each_function_for_users_is_called_or_excused(attack: Attack) -> None:
    found = attack.root(
        "SELECT DISTINCT pronamespace::regnamespace || '.' || proname FROM pg_proc"
        " WHERE pronamespace::regnamespace::text IN ('cerebro', 'madlib')"
        " AND has_function_privilege('cerebro_user', oid, 'EXECUTE') AND proname !~ '^_'"
    )
    assert set(found) == set(verbs.CALLS) | set(verbs.EXCUSED)
    assert not set(verbs.CALLS) & set(verbs.EXCUSED)


@pytest.mark.parametrize("verb", verbs.CALLS)
def test_a_function(attack: Attack, verb: str) -> None:
    for call in verbs.CALLS[verb]:
        deepest, single = (itertools.cycle(changes) for changes in attack.changes(call))
        settings = list(itertools.product(attack.victims, LEVELS, WHOSE))
        attack.random.shuffle(settings)
        for place in range(max(1, ATTACKS // FEWER) if call.slow else ATTACKS):
            victim, level, whose = settings[place % len(settings)]
            if call.alone and place % 3:  # the other level is refused at once
                level = LEVELS[0]
            attack.call(verb, call, victim, level, whose, next((deepest, single)[place % 2]))


BESIDE = {  # ending: the table whose columns a trap of this ending has
    "_summary": "guesses_summary", "_info": "guesses_info", "_groups": "grouped_groups", "_weights": "weights",
    "_group_weights": "weights", "_validation": "guesses_packed_validation", "_packed": "guesses_packed",
    "_validation_summary": "guesses_packed_validation_summary", "_packed_summary": "guesses_packed_summary",
    "_packed_validation": "guesses_packed_validation",
    "_packed_validation_summary": "guesses_packed_validation_summary",
}  # fmt: skip


def test_what_a_stranger_puts_beside_a_table(attack: Attack) -> None:
    """The tables are the victim's, in a schema where the stranger may make others: those of their names with an ending.

    There is a trap in each place where a table could lie beside them and does not.
    """
    stranger, own = attack.stranger, attack.stranger.own
    stranger.write(Change("as they were", ()))
    uses = ("{model}", "{madlib}", "{packed}", "{plain}", "{selection}")
    calls = [(verb, call) for verb, found in verbs.CALLS.items() for call in found
             if any(use in call.sql for use in uses)]  # fmt: skip
    stranger.session(f"CREATE TABLE weights AS SELECT configuration, 0::bigint AS start, weights AS payload,"
                     f" 0 AS __dist_key__ FROM {own}.guesses")  # fmt: skip
    for turn, victim in enumerate(attack.victims):
        victim.sql(f"GRANT CREATE, USAGE ON SCHEMA {victim.schema} TO {own}")
        victim.copies(stranger, COPIED)
        victim.sql("DROP TABLE own_guesses_packed_validation, own_guesses_packed_validation_summary, own_mst_summary")
        attack.kept = victim.sql("SELECT relname FROM pg_class WHERE relnamespace = %s::regnamespace", victim.schema)
        made = 0
        for table, (ending, like) in itertools.product(COPIED, BESIDE.items()):
            name = f"{victim.schema}.own_{table}{ending}"
            if victim.sql("SELECT pg_catalog.to_regclass(%s) IS NULL", name) == [True]:
                stranger.session(f"CREATE VIEW {name} AS SELECT * FROM {own}.{like} WHERE {own}.{MARK}() > 0;"
                                 f" GRANT SELECT ON {name} TO PUBLIC")  # fmt: skip
                made += 1
        assert made > 30
        for place, (verb, call) in enumerate(calls):
            level = LEVELS[0] if call.alone else LEVELS[(place + turn) % 2]
            if (place + turn) % (2 + 6 * call.slow) == 0 or ATTACKS >= 10:
                attack.call(f"beside: {verb}", call, victim, level, SHARED, stranger.written)
        with Cerebro(victim.dsn) as cerebro:
            for group in (None, "c1"):
                before = stranger.calls()
                with contextlib.suppress(ClientError, CerebroError):
                    cerebro.model(f"{victim.schema}.own_guesses", group=group)
                attack.count("beside: client model", stranger.calls() - before, True, f"client model {group}")
        attack.kept = []
        views = victim.sql("SELECT relname FROM pg_class WHERE relnamespace = %s::regnamespace AND relkind = 'v'",
                           victim.schema)  # fmt: skip
        stranger.session("DROP VIEW " + ", ".join(f"{victim.schema}.{view}" for view in views))
        attack.clear(victim, Call("", alone=True))
        victim.sql(f"REVOKE CREATE, USAGE ON SCHEMA {victim.schema} FROM {own}")


def test_tables_that_a_stranger_makes_where_a_run_will_make_its_own(attack: Attack) -> None:
    """A run that goes on asks whether the tables of its names are those that it made before."""
    stranger, own, (bob, _) = attack.stranger, attack.stranger.own, attack.victims
    (run,) = bob.sql(f"SELECT cerebro.fit('{own}.guesses_packed', 'made', $$[{strangers.ONE}]$$, epochs => 1,"
                     """ options => '{"execution": "session"}')""")  # fmt: skip
    bob.sql(f"DROP TABLE made, made_info, made_summary; GRANT CREATE, USAGE ON SCHEMA {bob.schema} TO {own}")
    for ending in ("", "_info", "_summary"):
        stranger.session(f"UPDATE guesses_summary SET run = {run}; CREATE VIEW {bob.schema}.made{ending} AS SELECT *"
                         f" FROM {own}.guesses{ending} WHERE {own}.{MARK}() > 0;"
                         f" GRANT SELECT ON {bob.schema}.made{ending} TO PUBLIC")  # fmt: skip
    before = stranger.calls()
    try:
        for call in (f"cerebro.resume({run}, epochs => 2)", f"cerebro.materialize({run}, 'made')"):
            with pytest.raises(psycopg2.Error, match="already exists"):
                bob.sql(f"SELECT {call}")
        assert stranger.calls() == before
    finally:
        stranger.session("DROP VIEW " + ", ".join(f"{bob.schema}.made{ending}" for ending in ("", "_info", "_summary")))
        stranger.write(Change("as they were", ()))
        bob.sql(f"REVOKE CREATE, USAGE ON SCHEMA {bob.schema} FROM {own}")


def test_the_views(attack: Attack) -> None:
    """Also while the stranger's tables that they list change."""
    views = attack.root(
        "SELECT c.oid::regclass::text FROM pg_class c WHERE relkind = 'v' AND relnamespace::regnamespace::text"
        " IN ('cerebro', 'cerebro_bi', 'cerebro_optuna') AND has_table_privilege('cerebro_user', c.oid, 'SELECT')"
    )
    assert len(views) > 40
    change = attack.stranger.all_relations()
    for place, (view, victim, level) in enumerate(itertools.product(views, attack.victims, LEVELS)):
        lists = view.endswith(".models")  # the stranger's tables
        if not lists and ATTACKS < 10 and (place + place // 4) % 4:
            continue
        for _ in range(8 if lists else 1):
            attack.call(f"view {view}", Call(f"SELECT * FROM {view}"), victim, level, WHOSE[0], change)


# -- the log -----------------------------------------------------------------------------------------------------

LOG = ("run", "architecture", "configuration", "model", "event", "hop", "evaluation", "decision", "objective")
NAMED = "SELECT attname, format_type(atttypid, NULL) FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0"


def test_rows_of_a_log(attack: Attack) -> None:
    """Each column of texts and documents in the rows of a run of the stranger's names traps."""
    stranger = attack.stranger
    session, number = stranger.session, 0
    kept_log(stranger)
    calls = [(verb, call) for verb, found in verbs.CALLS.items() for call in found if "{run}" in call.sql]
    calls += [(f"view {view}", Call(f"SELECT * FROM cerebro.{view}")) for view in
              ("runs", "run_plan", "leaderboard", "models", "run_progress", "decisions", "parameters")]  # fmt: skip
    assert len(calls) > 15
    tries = []
    for table in LOG:
        for column, type in session(NAMED, f"kept_log_{table}"):
            if type in ("text", "jsonb", "json", "name"):
                values = [f"{stranger.trap}.people", f"{stranger.own}.{MARK}()"]
                tries += [(table, column, type, value) for value in values]
    for place, (table, column, type, value) in enumerate(tries):
        (run,) = session("SELECT nextval('cerebro.run_id')")
        if not written(stranger, run, table, column, type, value):
            continue
        number += 1
        kept, stranger.run = stranger.run, run
        try:
            for turn, (verb, call) in enumerate(calls):
                if (turn + place) % max(1, 24 // ATTACKS) == 0:
                    victim = attack.victims[(turn + place) // 2 % 2]
                    change = stranger.written or stranger.all_relations()
                    attack.call(f"log: {verb}", call, victim, LEVELS[turn // 2 % 2], WHOSE[0], change)
        finally:
            stranger.run = kept
    assert number > 30


def kept_log(stranger: Stranger) -> None:
    """Copies of the log's rows about the stranger's run."""
    for table in LOG:
        stranger.session(f"CREATE TABLE IF NOT EXISTS kept_log_{table} AS SELECT * FROM cerebro.{table} WHERE run = %s",
                         stranger.run)  # fmt: skip


def written(stranger: Stranger, run: int, table: str, column: str, type: str, value: str) -> bool:  # noqa: PLR0917
    """The rows of a run with another number, with this value in a column; False if the log does not take it."""
    session = stranger.session
    given = f"to_jsonb(ARRAY['{value}'])" if type.startswith("json") else f"$v${value}$v$"
    if type.startswith("json"):  # all its texts
        given = f"regexp_replace({column}::text, '(: )\"[^\"]*\"', '\\1\"{value}\"', 'g')::{type}"
    session("BEGIN")
    try:
        for name in LOG:
            columns = [one for one, _ in session(NAMED, f"kept_log_{name}")]
            known = {"run": str(run), "model_table": f"'{stranger.own}.made_{run}'", "storage": f"'run_{run:012x}'"}
            if name == table:
                known[column] = given
            chosen = [known.get(one, one) for one in columns]
            session(
                f"INSERT INTO cerebro.{name} ({', '.join(columns)}) SELECT {', '.join(chosen)} FROM kept_log_{name}"
            )
    except psycopg2.Error:
        session("ROLLBACK")
        return False
    session("COMMIT")
    return True


# -- the client ----------------------------------------------------------------------------------------------------

RUN = dict.fromkeys(
    ("cross_validation", "decisions", "groups", "hop_timeline", "leaderboard", "learning_curve", "metrics",
     "parameters", "profiles", "requests", "run", "run_progress", "run_time", "segments_now", "watch", "model"),
    lambda cerebro, named, path: (named["run"],),
)  # fmt: skip
NOTHING = dict.fromkeys(("models", "runs", "registered_aliases", "registered_rights", "registered_versions",
                         "registry_history"), lambda cerebro, named, path: ())  # fmt: skip
OF_CLIENT: dict[str, Any] = {
    **NOTHING,
    **RUN,
    "report": lambda cerebro, named, path: (named["run"], path / "report.html", True),
    "export": lambda cerebro, named, path: (named["model"], path / "x.keras"),
}
MORE_OF_CLIENT: dict[str, Any] = {
    "export a scorer": lambda cerebro, named, path: cerebro.export(
        named["model"], path / "x.safetensors", scorer=True, replace=True
    ),
    "export an archive": lambda cerebro, named, path: cerebro.export(named["model"], path / "x.cerebro", replace=True),
    "export of groups": lambda cerebro, named, path: cerebro.export(
        named["grouped"], path / "g.keras", group="c1", replace=True
    ),
    "export of MADlib's": lambda cerebro, named, path: cerebro.export(named["madlib"], path / "m.keras", replace=True),
    "model": lambda cerebro, named, path: cerebro.model(named["model"]),
    "dashboard": lambda cerebro, named, path: pages.overview(cerebro.engine),
    "show": lambda cerebro, named, path: show.everything(cerebro, named["run"]),
    "a run's page": lambda cerebro, named, path: pages.report(cerebro.engine, [(named["run"], named["own"])], {}),
}
SAME_IN_SQL = {
    "add_configuration", "append", "calibrate", "cancel", "class_metrics", "clone_model", "confusion_matrix",
    "drift", "drop_architecture", "drop_model", "dry_run", "embed", "evaluate", "explain", "extend", "fit", "forget",
    "go_on", "importance", "materialize", "mistakes", "pack", "plan", "precision_recall", "predict", "predict_into",
    "register", "related_rows", "residuals", "resume", "retrain", "roc_curve", "roll_back", "search", "set_alias",
    "set_budget", "share", "stop_model", "train", "unregister", "unshare",
}  # fmt: skip
READS_NO_DOCUMENT = {"add_architecture", "add_accelerometer", "add_frame", "add_images", "close", "follow", "handle",
                     "make_task", "objects", "rows", "status_within", "rows_and_notices", "transaction", "track",
                     "import_model"}  # fmt: skip


def test_the_client(attack: Attack, tmp_path: Path) -> None:
    methods = {name for name in dir(Cerebro) if not name.startswith("_") and callable(getattr(Cerebro, name))}
    assert methods == {*OF_CLIENT, *SAME_IN_SQL, *READS_NO_DOCUMENT}
    tried = {
        **{name: partial(method_called, name, given) for name, given in OF_CLIENT.items()},
        **{f"to {name}": call for name, call in MORE_OF_CLIENT.items()},
    }
    deepest, single = attack.changes(Call("{model} {grouped} {madlib}"))
    changes = [*deepest[:2], *single[: max(0, ATTACKS - 4)]] if ATTACKS >= 10 else deepest[:1]
    stranger = attack.stranger
    for victim in attack.victims:
        dsns = [
            make_dsn(**{**parse_dsn(victim.dsn), "options": rf"-c default_transaction_isolation={level}"})
            for level in (r"repeatable\ read", r"read\ committed")
        ]
        for place, change in enumerate(changes):
            dsn, whose = dsns[place % 2], (WHOSE[0], WHOSE[2])[(place // 2) % 2]
            stranger.write(change)
            if whose == WHOSE[2]:
                stranger.register()
            named = attack.used(victim, whose, "")
            with Cerebro(dsn) as cerebro:
                for turn, (name, call) in enumerate(tried.items()):
                    if "export" in name and turn % len(changes) != place:
                        continue  # it takes seconds
                    before, works, began = stranger.calls(), False, time.monotonic()
                    try:
                        with attack.traps():
                            call(cerebro, named, tmp_path)
                        works = True
                    except (ClientError, CerebroError, psycopg2.Error) as error:
                        if os.environ.get("CEREBRO_ATTACKS_SHOW"):
                            print(f"client {name}: {str(error)[:150]}")
                    attack.took[f"client {name}"] += time.monotonic() - began  # type: ignore[assignment]
                    attack.count(f"client {name}", stranger.calls() - before, works,
                                 f"client {name} [{victim.name}, {whose}, {change.name[:80]}]")  # fmt: skip


def method_called(name: str, given: Any, cerebro: Cerebro, named: dict[str, Any], path: Path) -> None:
    getattr(cerebro, name)(*given(cerebro, named, path), **({"replace": True} if name == "export" else {}))


def test_the_client_opens_no_table_that_the_log_of_another_names(attack: Attack) -> None:
    """A superuser and monitors see the runs of others."""
    stranger, (bob, boss) = attack.stranger, attack.victims
    (run,) = stranger.session("SELECT nextval('cerebro.run_id')")
    kept_log(stranger)
    assert written(stranger, run, "run", "model_table", "text", f"{stranger.trap}.guesses")
    stranger.become("view")
    before = stranger.calls()
    with Cerebro(boss.dsn) as cerebro:
        with pytest.raises(ClientError, match=f"Run {run} belongs to {stranger.own}"):
            cerebro.model(run)
        with pytest.raises(ClientError, match="belongs to"):
            cerebro.model(cerebro.run(run))
    with Cerebro(bob.dsn) as cerebro, pytest.raises(ClientError, match="There is no run"):
        cerebro.model(run)
    assert stranger.calls() == before


# -- archives ------------------------------------------------------------------------------------------------------


def test_archives(attack: Attack, tmp_path: Path) -> None:
    """A file of the stranger's in which each name is a trap: what comes in is used like any other model."""
    stranger = attack.stranger
    changes = attack.changes(Call("{model}"))[0][:1] if ATTACKS < 10 else attack.changes(Call("{model}"))[0]
    calls = [(verb, call) for verb, found in verbs.CALLS.items() for call in found
             if "'{model}'" in call.sql or verb == "cerebro.retrain"]  # fmt: skip
    stranger.become(PLAIN)
    with Cerebro(stranger.session.dsn) as theirs:
        theirs.export(f"{stranger.own}.guesses", tmp_path / "plain.cerebro")
    for number, (victim, change) in enumerate(itertools.product(attack.victims, changes)):
        path = tmp_path / f"{number}.cerebro"
        rewrite(tmp_path / "plain.cerebro", path, stranger, change)
        table = f"{victim.schema}.own_guesses"
        for turn, (verb, call) in enumerate(calls):
            if (turn + number) % max(1, 16 // ATTACKS):
                continue
            with Cerebro(victim.dsn) as ours, contextlib.suppress(ClientError, CerebroError), attack.traps():
                ours.import_model(path, table)
            attack.call(f"archive: {verb}", call, victim, LEVELS[0], IMPORTED, change)
            victim.sql("DROP TABLE IF EXISTS " + ", ".join(f"{table}{ending}" for ending in strangers.ENDINGS))


def rewrite(path: Path, into: Path, stranger: Stranger, change: Change) -> None:
    """The archive with what the stranger's tables say after a change, and with the hashes of that."""
    stranger.write(change)
    summary, info = (stranger.session(f"SELECT to_jsonb(t) FROM guesses{ending} t LIMIT 1")[0]
                     for ending in ("_summary", "_info"))  # fmt: skip
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    model = json.loads(files[archives.MODEL])
    model["summary"] = json.dumps({**json.loads(model["summary"]), **summary})
    model["info"] = json.dumps({**json.loads(model["info"]), **info, "configuration": model["configuration"]})
    files[archives.MODEL] = json.dumps(model).encode()
    manifest = json.loads(files[archives.MANIFEST])
    content = files[archives.MODEL]
    manifest["files"][archives.MODEL] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    files[archives.MANIFEST] = json.dumps(manifest).encode()
    with zipfile.ZipFile(into, "w", zipfile.ZIP_STORED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
