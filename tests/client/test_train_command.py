"""``cerebro train``, columns as lists, and the methods that pack and judge: each is the SQL function of its name."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, timedelta
from typing import Any

import pytest
import typer
from small_run import SCHEMA, Trained
from typer.testing import CliRunner, Result

from cerebro_db.client import arguments, errors
from cerebro_db.client.commands import runs, training

FEW = ("--epochs", 1, "--set", "max_configurations=1", "--set", 'architectures={"mlp": {"units": 4}}')


def cerebro(trained: Trained, *words: object) -> Result:
    app = typer.Typer()
    for module in (runs, training):
        module.register(app)
    return CliRunner().invoke(app, list(map(str, words)), env={"CEREBRO_DSN": trained.dsn, "COLUMNS": "200"})


def test_from_a_table_to_a_model(trained: Trained, fresh_output: Callable[[], str]) -> None:
    table = f"{SCHEMA}.{fresh_output()}"
    done = cerebro(trained, "train", f"{SCHEMA}.iris", table, "--target", "kind", "--inputs", "attributes", *FEW)
    assert done.exit_code == 0, done.output
    assert (
        "150 rows are for validation" in done.output
        and "finished, 100.0 %" in done.output
        and "Details: cerebro show" in done.output
    )
    assert trained.cerebro.rows(f"SELECT count(*) FROM cerebro.predict('{table}', '{SCHEMA}.iris')") == [(150,)]
    again = cerebro(trained, "train", f"{SCHEMA}.iris", table, "--target", "kind", "--inputs", "attributes", *FEW)
    assert again.exit_code == 1 and "already exists" in again.output
    trained.cerebro.drop_model(table)


def test_a_dry_run_trains_nothing(trained: Trained) -> None:
    before = len(trained.cerebro.runs())
    told = cerebro(trained, "train", f"{SCHEMA}.iris", f"{SCHEMA}.none", "--target", "kind", "--dry-run", *FEW)
    assert told.exit_code == 0 and "NOTICE" in told.output and "mlp" in told.output
    assert len(trained.cerebro.runs()) == before


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("validation", "it has to be NAME=VALUE"),
        ("=3", "it has to be NAME=VALUE"),
        ("epoch=3", "there is no argument epoch; did you mean epochs?"),
        ("label=kind", "there is no argument label; did you mean target?"),
        ("wait=true", "there is no argument wait"),
        ("epochs=2.5", "the value of epochs has to be a whole number"),
        ("validation=true", "the value of validation has to be a number"),
        ("stratify=yes", "the value of stratify has to be true or false"),
        ("architectures=mlp", "the value of architectures has to be JSON"),
    ],
)
def test_settings_that_are_none(trained: Trained, given: str, says: str) -> None:
    refused = cerebro(trained, "train", "iris", "none", "--target", "kind", "--set", given)
    assert refused.exit_code == 2 and says in " ".join(refused.output.replace("│", " ").split())


@pytest.mark.parametrize("given", ["split_at=3", "run_name=2024", 'method={"name": "asha"}'])
def test_a_text_may_look_like_a_number(trained: Trained, given: str) -> None:
    told = cerebro(
        trained, "train", f"{SCHEMA}.iris", f"{SCHEMA}.none", "--target", "kind", "--dry-run", "--set", given
    )
    assert "integer" not in told.output and "does not exist" not in told.output, told.output


def test_what_another_word_means() -> None:
    for word, meant in arguments.OTHER_NAMES.items():
        with pytest.raises(TypeError, match=f"there is no argument {word}; did you mean {meant}"):
            arguments.call("train", {"source_table": "a", "model_table": "b"}, {word: 1}, arguments.TrainArguments)
    with pytest.raises(TypeError, match="there is no argument zzz$"):
        arguments.call("train", {"source_table": "a"}, {"zzz": 1}, arguments.TrainArguments)


def test_columns_are_a_list_or_a_text(trained: Trained, fresh_output: Callable[[], str]) -> None:
    client = trained.cerebro
    client.rows('CREATE TABLE odd AS SELECT id, attributes[1] AS "a, b", attributes[2] AS "C ""d""", kind FROM iris')
    try:
        packed = fresh_output()
        client.pack("odd", packed, ["kind"], inputs=["a, b", 'C "d"'], validation=0.2, segments=2)
        assert "a, b" in str(client.rows("SELECT * FROM prepared_columns(%s)", (packed,)))
        count = f"SELECT count(*) FROM {packed}"
        before = client.rows(count)
        client.append(packed, "odd", divide=False)
        assert client.rows(count) > before
        with pytest.raises(errors.ServerError, match="invalid inputs"):
            client.pack("odd", fresh_output(), "kind", inputs=["C"])
    finally:
        client.rows("DROP TABLE odd")


def test_make_task_is_that_of_sql(trained: Trained, fresh_output: Callable[[], str]) -> None:
    client = trained.cerebro
    client.rows("CREATE TABLE visits AS SELECT id AS flower, date '2025-01-01' + (id * 7 + n * 31) % 300 AS day"
                " FROM iris, generate_series(1, 4) n")  # fmt: skip
    try:
        output, same = fresh_output(), fresh_output()
        rows = client.make_task(
            "iris", "visits", "count(*) = 0", output, timedelta(days=60), timedelta(days=30), key=["id"],
            on_columns=["flower"], starts=date(2025, 3, 1), ends="2025-09-01",
        )  # fmt: skip
        ((there,),) = client.rows(
            f"SELECT cerebro.make_task('iris', 'visits', 'count(*) = 0', '{same}', '60 days', '30 days', key => 'id',"
            " on_columns => 'flower', starts => '2025-03-01', ends => '2025-09-01')"
        )
        assert rows == there > 500
        assert client.rows(f"SELECT * FROM {output} EXCEPT SELECT * FROM {same}") == []
        with pytest.raises(TypeError, match="did you mean"):
            client.make_task("iris", "visits", "count(*)", fresh_output(), "1 day", "1 day", ending="2025-09-01")
    finally:
        client.rows("DROP TABLE visits")


def test_judging_is_that_of_sql(trained: Trained) -> None:
    client, query = trained.cerebro, "SELECT * FROM iris"
    for function, rows, selected in (
        ("importance", client.importance("models", query, configuration=1), "column_name, importance"),
        ("explain", client.explain("models", query, configuration=1), "column_name, contribution"),
        ("confusion_matrix", client.confusion_matrix("models", query, configuration=1), "actual, predicted"),
        ("class_metrics", client.class_metrics("models", query, configuration=1), 'class, "precision"'),
        ("roc_curve", client.roc_curve("models", query, "setosa", configuration=1), "threshold, true_positive_rate"),
        ("precision_recall", client.precision_recall("models", query, "setosa", configuration=1), "threshold, recall"),
    ):
        more = ", class => 'setosa'" if function in ("roc_curve", "precision_recall") else ""
        told = client.rows(f"SELECT {selected} FROM {function}('models', %s, configuration => 1{more})", (query,))
        names: dict[str, Any] = {"class": "label", '"precision"': "precision"}
        fields = [names.get(name, name) for name in selected.split(", ")]
        assert len(rows) == len(told) > 0, function
        if function != "importance":  # which shuffles
            assert [tuple(one[name] for name in fields) for one in rows.dicts()] == told
    assert sum(one.rows for one in client.confusion_matrix("models", query, configuration=1)) == 150
    with pytest.raises(errors.ServerError, match="residuals"):
        client.residuals("models", query)
