"""The plan of a run, and the profile that it is made from: kept, bounded, read by later runs, and never by those that
have to give the same bits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import psycopg2
import pytest

from cerebro_db.core.errors import UndefinedObject
from tests.sql import users
from tests.sql.lab import Json, Lab, layer, sequential

ROWS, SEGMENTS = 12_000, 2
PLAN = "SELECT selected, engine, threads, segments, parallel, seconds, share, why, took FROM cerebro.plan(%s)"
PROFILE = (
    "SELECT engine, batch_size, threads, trainers, visits, train_row, evaluate_row, hop, state_bytes"
    " FROM cerebro.profile WHERE run = %s AND visits > 0"
)


def network(units: int, dropped: float = 0.1) -> Json:
    return sequential(
        [8],
        layer("Dense", "hidden", units=units, activation="relu"),
        layer("Dropout", "dropped", rate=dropped),
        layer("Dense", "out", units=2, activation="softmax"),
    )


def listed(*units: int, rate: float = 0.01, dropped: float = 0.1) -> list[Json]:
    return [
        {
            "architecture": network(one, dropped), "optimizer": "Adam", "learning_rate": rate, "batch_size": 8,
            "loss": "categorical_crossentropy", "passes": 1,
        }
        for one in units
    ]  # fmt: skip


@pytest.fixture(scope="module")
def place(lab: Lab) -> Iterator[Lab]:
    lab(
        "CREATE TABLE points AS SELECT n AS id, ARRAY(SELECT sin(n * k)::real FROM generate_series(1, 8) k) AS x,"
        f" (sin(n) > 0)::int AS y FROM generate_series(1, {ROWS}) n"
    )
    lab.pack("points", "points_packed", "y", "x", segments=SEGMENTS, seed=1)
    lab("CREATE TABLE others AS SELECT * FROM points WHERE id <= 2000")
    lab.pack("others", "others_packed", "y", "x", packed_table="points_packed")
    yield lab


def fit(lab: Lab, configurations: list[Json], output: str, epochs: int = 3, **options: Any) -> int:
    return lab.value(
        "SELECT cerebro.fit('points_packed', %s, %s, epochs => %s, evaluate_every => 1,"
        " validation_table => 'others_packed', options => %s, replace => true)",
        output, json.dumps(configurations), epochs, json.dumps({"seed": 1, **options}),
    )  # fmt: skip


def plan(lab: Lab, run: int) -> list[dict[str, Any]]:
    names = PLAN.removeprefix("SELECT ").partition(" FROM")[0].split(", ")
    return [dict(zip(names, row)) for row in lab(PLAN, run)]


def test_a_later_run_expects_what_an_earlier_one_has_taken(place: Lab) -> None:
    first = fit(place, listed(16, 64), "first")
    before, *_ = plan(place, first)
    assert before["selected"] and before["seconds"] is None and before["took"] > 0
    rows = place(PROFILE, first)
    assert len(rows) == 2 and {row[:3] for row in rows} == {("tensorflow", 8, before["threads"])}
    for *_, trainers, visits, train, evaluate, hop, size in rows:
        assert trainers == SEGMENTS and visits == 2 * SEGMENTS  # not those of the first epoch
        assert 1e-7 < train < 1 and 1e-7 < evaluate < 1 and 0 < hop < 10 and size > 0
    # Other rates and names, more epochs: models of the same shapes.
    second = fit(place, listed(16, 64, rate=0.02, dropped=0.2), "second", epochs=4)
    after, *_ = plan(place, second)
    assert after["seconds"] is not None and after["share"] == 1.0
    assert after["seconds"] > 0 and after["took"] > 0
    assert not [row for row in plan(place, fit(place, listed(16, 17), "third")) if row["seconds"] is None]
    assert place.value("SELECT options -> 'plan' ->> 'measured' FROM run ORDER BY run DESC LIMIT 1") == "1"


def test_the_time_left_is_known_before_the_first_visit_has_ended(place: Lab) -> None:
    fit(place, listed(32), "measured_before")
    run = fit(place, listed(32, rate=0.03), "expected", epochs=6)
    told = place("SELECT seconds_left FROM heartbeat WHERE run = %s AND rows_total > 0 ORDER BY at", run)
    assert told[0][0] is not None


def test_the_profile_is_bounded_and_stays_when_a_run_is_forgotten(place: Lab) -> None:
    runs = [fit(place, listed(40), f"bounded_{n}") for n in range(5)]
    kept = place("SELECT run FROM cerebro.profiles WHERE run = ANY (%s) AND visits > 0 ORDER BY run", runs)
    assert [run for (run,) in kept] == runs[-3:]
    place("SELECT cerebro.forget(%s)", runs[-1])
    assert place.value("SELECT count(*) FROM cerebro.profile WHERE run = %s", runs[-1]) > 0
    place("DROP TABLE bounded_4, bounded_4_info, bounded_4_summary")


def forged(lab: Lab, run: int, row: float, **changed: Any) -> None:
    """A row as a run would have written it, with other values."""
    names = (
        "engine, shapes, batch_size, parallel, threads, trainers, machine, visits, train_row, evaluate_row, build, hop,"
        " fused, fused_share"
    )
    changed["train_row"] = row
    shown = ", ".join(f"%({name})s" if name in changed else name for name in names.split(", "))
    with lab.db.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO cerebro.profile (run, {names}) SELECT DISTINCT ON (shapes) run, {shown}"
            " FROM cerebro.profile WHERE run = %(of_run)s AND visits > 0",
            {"of_run": run, **changed},
        )


def test_options_and_replays_fix_the_threads(place: Lab) -> None:
    run = fit(place, listed(24), "fixed", threads=1)
    assert [(row["threads"], row["why"]) for row in plan(place, run)] == [(1, "the option threads")]
    replayed = place.value(
        "SELECT cerebro.fit('points_packed', 'replayed', %s, epochs => 3, evaluate_every => 1,"
        " validation_table => 'others_packed', options => %s)",
        json.dumps(listed(24)), json.dumps({"replay": run}),
    )  # fmt: skip
    ((threads, why),) = [(row["threads"], row["why"]) for row in plan(place, replayed) if row["selected"]]
    assert threads == 1 and str(run) in why


def test_a_deterministic_run_gives_the_same_bits_whatever_was_measured(place: Lab) -> None:
    first = fit(place, listed(48), "same_1", deterministic=True)
    for threads, row in ((1, 1.0), (2, 1e-9)):
        forged(place, first, row, threads=threads, trainers=1)
    second = fit(place, listed(48), "same_2", deterministic=True)
    assert place.weights("same_1") == place.weights("same_2")
    (only,) = plan(place, second)
    assert only["threads"] == 1 and "deterministic" in only["why"] and only["seconds"] is None


def test_a_profile_that_knows_two_numbers_of_threads_chooses_one(place: Lab) -> None:
    run = fit(place, listed(56), "one_thread", threads=1)
    place("DELETE FROM cerebro.profile WHERE run <> %s", run)
    forged(place, run, 1.0, threads=1, trainers=1)
    forged(place, run, 0.4, threads=2, trainers=1)
    place("DELETE FROM cerebro.profile WHERE train_row NOT IN (1.0, 0.4)")
    chosen, *others = plan(place, fit(place, listed(56), "two_threads"))
    if place.value("SELECT machine NOT LIKE '1 processors%%' FROM cerebro.profile LIMIT 1"):
        assert chosen["threads"] >= 2 and "less time" in chosen["why"] and chosen["share"] < 0.9
        assert any(row["threads"] == 1 and row["share"] == 1.0 for row in others)
    place.told()
    place(
        "SELECT cerebro.fit('points_packed', 'dry', %s, epochs => 2, dry_run => true)", json.dumps(listed(56))
    )  # fmt: skip
    told = place.told()
    assert any("plan: TensorFlow" in line and f"{chosen['threads']} threads" in line for line in told), told
    assert any("instead: TensorFlow, 1 thread" in line for line in told)
    place("DELETE FROM cerebro.profile")


def test_engines_that_were_measured_need_no_trial(place: Lab) -> None:
    run = fit(place, listed(72), "with_tensorflow")
    forged(place, run, 1.0)
    forged(place, run, 1e-6, engine="jax")
    place("DELETE FROM cerebro.profile WHERE train_row NOT IN (1.0, 1e-6)")
    auto = fit(place, listed(72, dropped=0.2), "with_auto", engine="auto")
    ((engine, tried, of_run),) = place(
        "SELECT detail ->> 'engine', detail -> 'tried', detail ->> 'of_run' FROM event WHERE run = %s AND event ="
        " 'built'", auto,
    )  # fmt: skip
    assert (engine, tried, of_run) == ("jax", None, str(run))
    assert place.value("SELECT engine FROM cerebro.plan(%s) WHERE selected", auto) == "auto"


def test_a_group_that_was_rehearsed_needs_no_rehearsal(place: Lab) -> None:
    three = [*listed(80), *listed(80, rate=0.02), *listed(80, rate=0.03)]
    first = fit(place, three, "rehearsed", engine="jax", threads=1)
    told = "SELECT DISTINCT event, detail ->> 'of_run' FROM event WHERE run = %s AND event IN ('fused', 'not fused')"
    ((event, earlier),) = place(told, first)
    assert earlier is None
    second = fit(place, three, "recalled", engine="jax", threads=1)
    assert place(told, second) == [(event, str(first))]


def test_searches_train_by_the_plain_rules(place: Lab) -> None:
    run = place.value(
        "SELECT cerebro.search('points_packed', 'searched', %s, method => 'random', max_configurations => 2,"
        " epochs => 1, architectures => %s)",
        json.dumps({"learning_rate": {"log_uniform": [0.001, 0.1]}}), json.dumps([network(16)]),
    )  # fmt: skip
    (only,) = plan(place, run)
    assert only["selected"] and only["seconds"] is None and only["took"] > 0
    assert "a search keeps all segments busy" in only["why"]


def test_runs_of_earlier_versions_have_no_plan(place: Lab) -> None:
    run = fit(place, listed(16), "of_earlier")
    place("UPDATE cerebro.run SET options = options - 'plan' WHERE run = %s", run)
    with pytest.raises(psycopg2.Error, match=f"run {run} has no plan") as refused:
        plan(place, run)
    assert refused.value.pgcode == UndefinedObject.sqlstate


def test_models_of_folds_are_planned(place: Lab) -> None:
    place("SELECT cerebro.pack('points', 'points_folded', 'y', inputs => 'x', folds => 2, segments => 2)")
    told = [
        place.value("SELECT cerebro.fit('points_folded', %s, %s, epochs => 2)", f"folded_{n}", json.dumps(listed(24)))
        for n in range(2)
    ]
    before, after = (plan(place, run)[0] for run in told)
    assert before["seconds"] is None and after["seconds"] > 0
    assert place.value("SELECT options -> 'plan' ->> 'models' FROM run WHERE run = %s", told[1]) == "3"


def test_users_see_their_own_measurements_only(server: str) -> None:
    with users.town(server) as town:
        ann, bob = town.user("ann", "cerebro_user"), town.user("bob", "cerebro_user")
        row = "1, 'jax', 'x', 1, 'hopping', 1, 1, 'm', 1, 1.0"
        columns = "run, engine, shapes, batch_size, parallel, threads, trainers, machine, visits, train_row"
        ann(f"INSERT INTO cerebro.profile ({columns}) SELECT {row} FROM generate_series(1, 5)")
        assert bob("SELECT count(*) FROM cerebro.profiles") == [0]
        bob("SELECT cerebro_internal._trim_profile(%s)", ann.name)  # it keeps what has to be kept
        assert ann("SELECT count(*) FROM cerebro.profiles") == [3]
        bob.refused(f"INSERT INTO cerebro.profile (owner, {columns}) SELECT %s::regrole, {row}", ann.name)
