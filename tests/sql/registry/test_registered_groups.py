"""A registered version has the models of the groups, too: it predicts what its model table has predicted."""

from __future__ import annotations

import itertools
import json
import secrets
from collections.abc import Iterator
from typing import Any

import psycopg2
import pytest

from tests.sql.lab import Lab

NAMES = (f"orders_{secrets.token_hex(3)}_{number}" for number in itertools.count())
ORDERS = """
CREATE TABLE orders AS
SELECT i AS id, (i % 9)::real AS items, (i % 7)::real AS weekday,
       CASE WHEN i <= 90 THEN 'large' WHEN i <= 180 THEN 'it''s "small"' WHEN i <= 260 THEN NULL ELSE 'tiny'
       END AS shop,
       CASE i % 4 WHEN 0 THEN 'yes' ELSE 'no' END AS paid, (i % 9 * (1 + i / 90) + sin(i))::real AS spent
  FROM generate_series(1, 264) i;
CREATE VIEW with_new AS SELECT id, items, weekday, shop FROM orders UNION ALL SELECT 1000, 1, 1, 'new';
"""
TWO = [{"architecture": "mlp", "units": 4, "layers": 1}, {"architecture": "mlp", "units": 12, "layers": 1}]
ROWS = "SELECT * FROM orders"


@pytest.fixture(scope="module")
def place(lab: Lab) -> Iterator[Lab]:
    lab(ORDERS)
    fit(lab, "models", least_group_rows=10)
    # Each configuration is the best of some group, whatever training has found.
    lab("UPDATE models_groups SET rank = 1 + (rank + group_number) % 2")
    yield lab


@pytest.fixture
def name(place: Lab) -> Iterator[str]:
    made = next(NAMES)
    yield made
    place.remove_registered(made)


def fit(place: Lab, output: str, target: str = "spent", **options: Any) -> int:
    return place.value(
        "SELECT fit('orders', %s, %s, target => %s, inputs => 'items, weekday', group_by => 'shop', epochs => 1,"
        " segments => 1, options => %s)",
        output, json.dumps(TWO), target, json.dumps({"deterministic": True, "seed": 3, **options}),
    )  # fmt: skip


def answers(place: Lab, model: str, query: str = ROWS, more: str = "") -> list[Any]:
    return place(f"SELECT * FROM predict(%s, %s, 'id'{more}) ORDER BY 1, 2, rank, class, value", model, query)


def tables(place: Lab, name: str, version: int = 1) -> set[str]:
    like = f"{name}@{version}%"
    found = place("SELECT tablename FROM pg_tables WHERE schemaname = 'cerebro_registry' AND tablename LIKE %s", like)
    return {table.partition("@")[2] for (table,) in found}


def refused(place: Lab, statement: str, text: str, hint: str = "") -> None:
    with pytest.raises(psycopg2.Error) as error:
        place(statement)
    assert text in str(error.value) and hint in (error.value.diag.message_hint or ""), error.value


# -- all groups ----------------------------------------------------------------------------------------------------


def test_a_version_predicts_what_its_table_predicts(place: Lab, name: str) -> None:
    best = dict(place("SELECT group_number, configuration FROM models_groups WHERE rank = 1 AND weights IS NOT NULL"))
    assert set(best.values()) == {1, 2}
    place.told()
    assert place.value(f"SELECT register('{name}', 'models', alias => 'production')") == 1
    assert place.told() == []
    said = answers(place, "models")
    assert len(said) == 264 and answers(place, f"{name}@production") == said
    assert answers(place, f'cerebro_registry."{name}@1"') == said
    for query in ("SELECT * FROM orders WHERE shop = 'tiny'", f"{ROWS} ORDER BY id DESC", f"{ROWS} WHERE false"):
        assert answers(place, f"{name}@1", query) == answers(place, "models", query)
    for model in ("models", f"{name}@1"):
        refused(place, f"SELECT * FROM predict('{model}', 'SELECT * FROM with_new')", 'the group ["new"] of shop')
        refused(place, f"SELECT * FROM predict('{model}', 'SELECT id, items, weekday FROM orders')", "no column 'shop'")
    place("BEGIN READ ONLY")
    assert answers(place, f"{name}@1") == said
    place("ROLLBACK")


def test_what_a_version_of_groups_has(place: Lab, name: str) -> None:
    place(f"SELECT register('{name}', 'models')")
    assert tables(place, name) == {"1", "1_info", "1_summary", "1_weights", "1_groups", "1_group_weights"}
    columns = "group_number, group_value, group_key, rows, status, reason, objective_value, bytes"
    chosen = f"SELECT DISTINCT ON (group_number) {columns} FROM {{}} ORDER BY group_number, bytes IS NULL, rank"
    assert place(chosen.format(f'cerebro_registry."{name}@1_groups"')) == place(chosen.format("models_groups"))
    assert place(f'SELECT count(*), count(weights), count(bytes) FROM cerebro_registry."{name}@1_groups"') == [
        (4, 0, 3)
    ]
    stored = (
        "SELECT group_number, configuration, string_agg(payload, ''::bytea ORDER BY start)"
        f' FROM cerebro_registry."{name}@1_group_weights" GROUP BY 1, 2 ORDER BY 1'
    )
    kept = "SELECT group_number, configuration, weights FROM models_groups WHERE rank = 1 AND weights IS NOT NULL"
    whole = f'SELECT configuration, payload FROM cerebro_registry."{name}@1_weights"'
    weights = place(stored)
    assert weights == place(f"{kept} ORDER BY 1") and len(weights) == 3
    ((best, payload),) = place(whole)
    assert bytes(payload) == place.weights("models")[best]
    told = "group_by, groups, group_key, bytes, sha256, configuration, rows"
    sizes = len(payload) + sum(len(one) for _, _, one in weights)
    digest = place.value(
        "SELECT encode(sha256(%s::bytea), 'hex')", b"".join(map(bytes, (payload, *(w[2] for w in weights))))
    )
    rows = place.value("SELECT (layout->>'rows')::bigint FROM models_summary")
    assert place(f"SELECT {told} FROM registered_versions WHERE registered_model = '{name}'") == [
        ("shop", 3, None, sizes, digest, best, rows)
    ]
    for key in (1, 2):
        info = f"SELECT to_jsonb(i) FROM {{}} i WHERE configuration = {key}"
        assert place(info.format(f'cerebro_registry."{name}@1_info"')) == place(info.format("models_info"))


@pytest.mark.parametrize("configuration", [1, 2])
def test_a_version_of_one_configuration(place: Lab, name: str, configuration: int) -> None:
    place(f"SELECT register('{name}', 'models', {configuration})")
    said = answers(place, "models", more=f", configuration => {configuration}")
    assert (
        answers(place, f"{name}@1") == said == answers(place, f"{name}@1", more=f", configuration => {configuration}")
    )
    refused(
        place, f"SELECT * FROM predict('{name}@1', '{ROWS}', configuration => {3 - configuration})", "no configuration"
    )


def test_a_version_of_several_configurations_has_none_to_choose(place: Lab, name: str) -> None:
    place(f"SELECT register('{name}', 'models')")
    for call in (
        f"predict('{name}@1', '{ROWS}', configuration => 1)",
        f"evaluate('{name}@1', '{ROWS}', configuration => 2)",
        f"predict_into('{name}@1', 'orders', 'made', configuration => 1)",
    ):
        refused(place, f"SELECT * FROM {call}", "has the best model of each group", "Leave configuration out")
    refused(place, f"SELECT register('{name}', '{name}@1', 1)", "has the best model of each group")


def test_functions_that_judge_and_predict_into_tables(place: Lab, name: str) -> None:
    place(f"SELECT register('{name}', 'models')")
    for call in (
        f"evaluate('{{}}', '{ROWS}')",
        f"residuals('{{}}', '{ROWS}', 'id')",
        f"importance('{{}}', '{ROWS}')",
        f"drift('{{}}', '{ROWS} WHERE id < 100')",
    ):
        found, wanted = (place(f"SELECT * FROM {call.format(model)} ORDER BY 1") for model in (f"{name}@1", "models"))
        assert found and [as_summed(row) for row in found] == [as_summed(row) for row in wanted], call
    assert place.value(f"SELECT predict_into('{name}@1', 'orders', 'said_{name}', 'id')") == 264
    assert sorted(place(f"SELECT id::text, predicted_spent FROM said_{name}")) == sorted(
        place(f"SELECT key_value, value FROM predict('models', '{ROWS}', 'id')")
    )


def as_summed(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Greenplum adds numbers of rows up in any order."""
    return tuple(pytest.approx(value) if isinstance(value, float) else value for value in row)


def test_a_predictor_of_a_version_follows_its_alias(place: Lab, name: str) -> None:
    for version in (1, 2):
        place(f"SELECT register('{name}', 'models', {version})")
    place(f"SELECT set_alias('{name}', 'production', 1)")
    function = f"spent_{name}"
    call = f"create_predictor('{name}@production', '{function}')"
    assert place.value(f"SELECT {call}") == f"{place.schema}.{function}(shop, items, weekday)"
    asked = "SELECT 1 AS id, ''large''::text AS shop, 3::real AS items, 2::real AS weekday"
    for version in (1, 2):
        place(f"SELECT set_alias('{name}', 'production', {version})")
        (wanted,) = place(f"SELECT value FROM predict('models', '{asked}', configuration => {version})")
        assert place(f"SELECT {function}('large', 3, 2)") == [wanted]


def test_classes_and_new_groups(place: Lab, name: str) -> None:
    fit(place, "payments", "paid", new_groups="all rows")
    place(f"SELECT register('{name}', 'payments')")
    query = "SELECT * FROM with_new"
    said = answers(place, "payments", query, ", top => 2")
    assert answers(place, f"{name}@1", query, ", top => 2") == said and len(said) == 2 * 265


def test_a_version_stays_when_table_and_run_are_gone(place: Lab, name: str) -> None:
    run = fit(place, "short_lived", least_group_rows=10)
    place(f"SELECT register('{name}', 'short_lived')")
    said = answers(place, "short_lived")
    place("SELECT drop_model('short_lived')")
    place("SELECT forget(%s)", run)
    assert answers(place, f"{name}@1") == said
    # A copy of the version is the same, and stays when the version goes.
    assert place.value(f"SELECT register('{name}', '{name}@1')") == 2
    place(f"SELECT unregister('{name}', 1)")
    assert tables(place, name) == set() and tables(place, name, 2)
    assert answers(place, f"{name}@2") == said


def test_groups_whose_models_have_failed_are_predicted_by_the_model_on_all_rows(place: Lab, name: str) -> None:
    place("CREATE TABLE failed AS TABLE models; CREATE TABLE failed_info AS TABLE models_info")
    place("CREATE TABLE failed_summary AS TABLE models_summary; CREATE TABLE failed_groups AS TABLE models_groups")
    place("UPDATE failed_groups SET weights = NULL, reason = 'its loss is NaN' WHERE group_value = 'large'")
    # The model on all rows of the worse configuration is gone, so none of its models predicts.
    worse = place.value("SELECT configuration FROM models_info ORDER BY objective_value DESC LIMIT 1")
    place("DELETE FROM failed WHERE configuration = %s", worse)
    place(f"SELECT register('{name}', 'failed')")
    said = answers(place, "failed")
    assert answers(place, f"{name}@1") == said != answers(place, "models")
    reasons = dict(place(f'SELECT group_value, reason FROM cerebro_registry."{name}@1_groups" WHERE bytes IS NULL'))
    assert reasons.keys() == {"large", "tiny"} and reasons["large"] == "its loss is NaN"
    place("SELECT drop_model('failed')")
    assert answers(place, f"{name}@1") == said


def test_large_and_many_models(place: Lab, name: str) -> None:
    """Weights of more than a statement reads are cut; small ones go together."""
    place("CREATE TABLE many AS SELECT i AS id, (i % 5)::real AS x, i % 40 AS shop, (i % 7)::real AS y"
          " FROM generate_series(1, 400) i")  # fmt: skip
    for output, units, group in (("wide", 1300, "shop % 2"), ("small", 2, "shop")):
        place(f"CREATE VIEW {output}_rows AS SELECT id, x, {group} AS shop, y FROM many")
        configurations = json.dumps([{"architecture": "mlp", "units": units, "layers": 2}])
        place(
            f"SELECT fit('{output}_rows', '{output}', %s, target => 'y', inputs => 'x', group_by => 'shop',"
            " epochs => 1, segments => 1)",
            configurations,
        )
        version = place.value(f"SELECT register('{name}', '{output}')")
        rows = f"SELECT * FROM {output}_rows"
        assert answers(place, f"{name}@{version}", rows) == answers(place, output, rows)
    pieces = f'SELECT count(*), count(DISTINCT group_number) FROM cerebro_registry."{name}@{{}}_group_weights"'
    assert place(pieces.format(1)) == [(4, 2)] and place(pieces.format(2)) == [(40, 40)]
    assert place.value(f"SELECT register('{name}', '{name}@1')") == 3
    assert place(pieces.format(3)) == [(4, 2)]
    shas = place(f"SELECT sha256 FROM registered_versions WHERE registered_model = '{name}' AND version IN (1, 3)")
    assert shas[0] == shas[1]


# -- one group -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["models", "{}@1"])
@pytest.mark.parametrize(("group", "key"), [("large", '["large"]'), ("[null]", "[null]"), ('it\'s "small"', None)])
def test_the_model_of_one_group(place: Lab, name: str, source: str, group: str, key: str | None) -> None:
    key = key or json.dumps([group])
    place(f"SELECT register('{name}', 'models')")
    call = "SELECT register(%s, %s, group_value => %s)"
    version = place.value(call, name, source.format(name), group)
    assert tables(place, name, version) == {f"{version}{one}" for one in ("", "_info", "_summary", "_weights")}
    columns = "configuration, objective_value, group_by, groups, group_key, bytes, rows"
    wanted = place(
        "SELECT configuration, objective_value, NULL::text, NULL::integer, group_key, bytes, rows FROM models_groups"
        " WHERE group_key = %s AND rank = 1", key
    )  # fmt: skip
    assert place(f"SELECT {columns} FROM registered_versions WHERE registered_model = %s AND version = %s",
                 name, version) == wanted  # fmt: skip
    # It is a plain model: it predicts any row, and needs no column that tells the groups apart.
    quoted = key.replace("'", "''")
    query = f"SELECT id, items, weekday{{}} FROM orders WHERE jsonb_build_array(shop)::text = '{quoted}'"
    said = answers(place, f"{name}@{version}", query.format(""))
    assert said == answers(place, "models", query.format(", shop")) and len(said) >= 80
    assert len(answers(place, f"{name}@{version}", "SELECT id, items, weekday FROM orders")) == 264


def test_the_configuration_of_one_group(place: Lab, name: str) -> None:
    for configuration in (1, 2):
        version = place.value(f"SELECT register('{name}', 'models', {configuration}, group_value => 'large')")
        query = "SELECT * FROM orders WHERE shop = 'large'"
        wanted = answers(place, "models", query, f", configuration => {configuration}")
        assert answers(place, f"{name}@{version}", query) == wanted


def test_groups_that_cannot_be_registered(place: Lab, name: str) -> None:
    refused(
        place, f"SELECT register('{name}', 'models', group_value => 'nowhere')", "has no group 'nowhere'", '["large"]'
    )
    tiny = 'the group ["tiny"] of shop has no model'
    refused(place, f"SELECT register('{name}', 'models', group_value => 'tiny')", tiny, "models_groups; says why")
    place(f"SELECT register('{name}', 'models', group_value => 'large')")
    refused(place, f"SELECT register('{name}', '{name}@1', group_value => 'large')", "has no models of groups")
    assert place(f"SELECT version FROM registered_versions WHERE registered_model = '{name}'") == [(1,)]
    assert tables(place, name, 2) == set()


# -- tables that were changed, and types of users ----------------------------------------------------------------


def copied(place: Lab, name: str) -> None:
    for ending in ("", "_info", "_summary", "_groups"):
        place(f"DROP TABLE IF EXISTS {name}{ending}; CREATE TABLE {name}{ending} AS TABLE models{ending}")


@pytest.mark.parametrize("column", ["reason", "group_value", "rows", "group_key"])
@pytest.mark.parametrize("group", ["", ", group_value => 'large'"])
def test_a_cast_of_a_strangers_type_does_not_run(place: Lab, name: str, column: str, group: str) -> None:
    copied(place, "trap")
    place(
        "DROP TYPE IF EXISTS evil CASCADE; DROP TABLE IF EXISTS casts; CREATE TYPE evil AS ENUM ('large');"
        " CREATE TABLE casts (n integer)"
    )
    for target in ("json", "text"):
        place(
            f"CREATE FUNCTION as_{target}(evil) RETURNS {target} LANGUAGE plpgsql AS"
            " $$BEGIN INSERT INTO casts VALUES (1); RETURN '\"x\"'; END$$;"
            f" CREATE CAST (evil AS {target}) WITH FUNCTION as_{target}(evil)"
        )
    place(f"ALTER TABLE trap_groups DROP {column}; ALTER TABLE trap_groups ADD {column} evil DEFAULT 'large'")
    refused(place, f"SELECT register('{name}', 'trap'{group})", "trap_groups' is of type")
    assert place("SELECT * FROM casts") == []


def test_a_table_of_groups_without_its_columns(place: Lab, name: str) -> None:
    copied(place, "poor")
    place("ALTER TABLE poor_groups DROP rows")
    refused(place, f"SELECT register('{name}', 'poor')", "has no column 'rows'")
    copied(place, "poor")
    best = place.value("SELECT configuration FROM models_info ORDER BY objective_value LIMIT 1")
    place("DELETE FROM poor_info WHERE configuration <> %s", best)
    refused(place, f"SELECT register('{name}', 'poor')", "has no configuration")
    assert place(f"SELECT * FROM registered_models WHERE registered_model = '{name}'") == []


def test_groups_by_a_type_of_the_user(place: Lab, name: str) -> None:
    place("CREATE TYPE size AS ENUM ('small', 'large')")
    place("CREATE TABLE sized AS SELECT i AS id, (i % 5)::real AS x, (i % 7)::real AS y,"
          " (ARRAY['small', 'large'])[1 + i % 2]::size AS size FROM generate_series(1, 100) i")  # fmt: skip
    place("SELECT fit('sized', 'by_size', %s, target => 'y', inputs => 'x', group_by => 'size', epochs => 1,"
          " segments => 1)", json.dumps(TWO[:1]))  # fmt: skip
    place(f"SELECT register('{name}', 'by_size')")
    rows = "SELECT * FROM sized"
    assert answers(place, f"{name}@1", rows) == answers(place, "by_size", rows) != []
