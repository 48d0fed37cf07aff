"""One vocabulary: a word means one thing and has one type in SQL, in Python and on the command line.

MADlib's functions have MADlib's words.  docs/README.md lists the words for readers.
"""

from __future__ import annotations

import contextlib
import inspect
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from cerebro_db.client import Cerebro
from cerebro_db.client.arguments import FitArguments, SearchArguments, TrainArguments
from cerebro_db.client.cli import app
from cerebro_plpy.runs.tables.model_tables import INFO_COLUMNS
from tests import reference
from tests.conftest import connect
from tests.sql.pages import ROOT

OF_MADLIB = {"convert_madlib_table", "madlib_fit_multiple_model"}
# Words that were given up, or that are MADlib's, with the word that is meant.
GIVEN_UP = {
    "mst_key": "configuration", "best_mst_key": "best_configuration", "num_iterations": "epochs",
    "metrics_compute_frequency": "evaluate_every", "model_selection_table": "configurations",
    "model_output_table": "model_table", "selection_table": "configurations", "arch_table": "architecture",
    "model_id": "architecture", "compile_params": "parameters",
    "fit_params": "parameters",
    "keras_model_arch_table": "architecture", "model_arch_table": "architecture", "id_col": "key",
    "independent_varname": "inputs", "dependent_varname": "target", "random_state": "seed", "test_table": "query",
    "function": "function_name", "output": "output_table", "changed": "changes", "max_configs": "max_configurations",
}  # fmt: skip
# In a view, the plural of what can be counted is how many there are.
COUNTED = {"configurations", "weights", "segments", "epochs", "folds", "rows"}
SHOWN_AS_TEXT = {"parameters"}  # of a request: what its user wrote
OF_SQL_ONLY = {"architectures", "custom_functions", "limits", "run_plan", "registered_models"}
NUMBERS = {"integer", "bigint"}
OF_THE_TARGET = {"actual", "predicted"}  # a class or a number
OF_A_COLUMN = {"value"}  # a number that is predicted or measured; in cerebro.explain, that of any column
DOCUMENTS = {"json", "jsonb"}  # one type to people; jsonb does not keep the order of keys, and prepare needs it
OF_PYTHON = {"self", "run_or_table", "timeout", "arguments", "by"}
IN_SQL = {"label": "class"}  # which is a keyword of Python


@pytest.fixture(scope="module")
def connection(server: str) -> Iterator[Any]:
    with contextlib.closing(connect(server)) as made:
        yield made


@pytest.fixture(scope="module")
def arguments(connection: Any) -> dict[str, dict[str, str]]:
    """Function to its arguments with their types."""
    found: dict[str, dict[str, str]] = {}
    with connection.cursor() as cursor:
        cursor.execute(reference.SIGNATURES)
        for name, _, _, listed in cursor:
            if name not in OF_MADLIB:
                found.setdefault(name, {}).update(argument.split("\t")[:2] for argument in listed)
    return found


RESULTS = """
SELECT p.proname::text, out.name, pg_catalog.format_type(out.type, NULL)
  FROM pg_catalog.pg_proc p, unnest(p.proargnames, p.proallargtypes, p.proargmodes) AS out (name, type, mode)
 WHERE p.pronamespace = 'cerebro'::regnamespace AND p.proname NOT LIKE '\\_%' AND out.mode = 't'
"""


@pytest.fixture(scope="module")
def results(connection: Any) -> dict[str, dict[str, str]]:
    """Function to the columns that it returns, with their types."""
    found: dict[str, dict[str, str]] = defaultdict(dict)
    with connection.cursor() as cursor:
        cursor.execute(RESULTS)
        for name, column, kind in cursor:
            found[name][column] = kind
    return dict(found)


@pytest.fixture(scope="module")
def columns(connection: Any) -> dict[str, dict[str, str]]:
    """View to its columns with their types."""
    found = reference.columns(connection)
    return {view: {column: kind for column, kind, _ in listed} for view, (_, listed) in found.items()}


def types(words: dict[str, dict[str, str]]) -> dict[str, dict[str, list[str]]]:
    """Word to its types, each with who has it."""
    found: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for who, has in words.items():
        for word, kind in has.items():
            found[word][kind].append(who)
    return {word: dict(kinds) for word, kinds in found.items()}


def test_madlib_s_functions_are_there(connection: Any) -> None:
    assert reference.functions(connection).keys() >= OF_MADLIB


def test_an_argument_has_one_type(arguments: dict[str, dict[str, str]]) -> None:
    assert {word: kinds for word, kinds in types(arguments).items() if len(kinds) > 1} == {}


def test_a_column_of_views_and_functions_has_one_type(
    columns: dict[str, dict[str, str]], results: dict[str, dict[str, str]]
) -> None:
    found = types({**columns, **results})
    several = {word: kinds.keys() for word, kinds in found.items() if len(kinds) > 1 and word not in COUNTED}
    assert {
        word: kinds for word, kinds in several.items() if word not in OF_THE_TARGET | OF_A_COLUMN | SHOWN_AS_TEXT
    } == {}
    assert all(several[word] <= {"jsonb", "text"} for word in SHOWN_AS_TEXT) and len(results) >= 10


def test_each_view_about_runs_and_models_has_a_method_of_its_name(columns: dict[str, dict[str, str]]) -> None:
    methods = {name for name, _ in inspect.getmembers(Cerebro, inspect.isfunction)}
    assert columns.keys() - methods == OF_SQL_ONLY


def test_the_page_has_the_types_of_the_catalog(
    arguments: dict[str, dict[str, str]], columns: dict[str, dict[str, str]]
) -> None:
    """Where the page gives a type of SQL: that of the arguments and columns in the row, and of the word itself."""
    found = types({**arguments, **columns})
    checked, wrong = 0, {}
    for line in (ROOT / "docs" / "README.md").read_text().splitlines():
        _, _, word, kind, names, *_ = [*map(str.strip, line.split("|")), *[""] * 5]
        told = re.match(r"(text|integer|bigint|boolean|double precision)\b(?! or)", kind)
        for name in [word.replace(" ", "_"), *re.findall(r"`(\w+)`", names)] if told else []:
            if name in found and name not in COUNTED:
                checked += 1
                if found[name].keys() != {told[1]}:  # type: ignore[index]
                    wrong[name] = (kind, found[name])
    assert wrong == {} and checked > 15


def test_a_column_is_what_the_argument_of_its_name_is(
    arguments: dict[str, dict[str, str]], columns: dict[str, dict[str, str]]
) -> None:
    given = types(arguments)
    wrong = {}
    for word, kinds in types(columns).items():
        for kind in kinds:
            asked = set(given.get(word, {kind: []}))
            is_document = bool(asked & DOCUMENTS) and kind in {*DOCUMENTS, "text"}  # shown as it was written
            is_count = word in COUNTED and kind in NUMBERS
            if kind not in asked and not is_document and not is_count:
                wrong[word] = (kinds, given[word])
    assert wrong == {}


def test_no_word_was_given_up(
    arguments: dict[str, dict[str, str]], columns: dict[str, dict[str, str]], results: dict[str, dict[str, str]]
) -> None:
    found = {
        f"{who}: {word}, but {GIVEN_UP[word]} is meant"
        for who, words in [*arguments.items(), *columns.items(), *results.items()]
        for word in words
        if word in GIVEN_UP
    }
    assert found == set()


def test_the_info_table_has_the_words_of_the_leaderboard(columns: dict[str, dict[str, str]]) -> None:
    board = columns["leaderboard"]
    shared = INFO_COLUMNS.keys() & board.keys()
    assert {name: INFO_COLUMNS[name] for name in shared} == {name: board[name] for name in shared} and len(shared) > 10
    assert not INFO_COLUMNS.keys() & GIVEN_UP.keys()


def test_the_functions_that_pack_have_the_same_words_in_the_same_order(arguments: dict[str, dict[str, str]]) -> None:
    """From the tables on: a function may lack some of them."""
    order = ["source_table", "output_table", "target", "inputs", "packed_table", "buffer_size", "segments",
             "distribution_rules", "seed"]  # fmt: skip
    for name, most in (("pack", 8), ("pack_plain", 8), ("pack_like", 7)):
        shared = [word for word in arguments[name] if word in order]
        assert shared == [word for word in order if word in shared] and len(shared) == most, name
    assert list(arguments["predict_into"])[1:3] == ["source_table", "output_table"]


def test_python_has_the_words_of_sql(arguments: dict[str, dict[str, str]]) -> None:
    checked = 0
    wrong = {}
    for name, method in inspect.getmembers(Cerebro, inspect.isfunction):
        words = {IN_SQL.get(word, word) for word in inspect.signature(method).parameters} - OF_PYTHON
        if name in arguments:
            checked += 1
            if others := sorted(words - arguments[name].keys()):
                wrong[name] = others
        elif not name.startswith("_") and (old := sorted(words & GIVEN_UP.keys())):
            wrong[name] = old
    assert wrong == {} and checked >= 15
    for name, listed in (("train", TrainArguments), ("search", SearchArguments), ("fit", FitArguments)):
        own = inspect.signature(getattr(Cerebro, name)).parameters.keys() | listed.__annotations__.keys()
        assert arguments[name].keys() - own <= {"dry_run"}, name
        assert listed.__annotations__.keys() <= arguments[name].keys(), name


def test_the_command_line_has_the_words_of_sql(arguments: dict[str, dict[str, str]]) -> None:
    known = {word for words in arguments.values() for word in words}
    listed = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert {"stop", "go-on", "clone", "add", "extend", "budget", "predict", "evaluate", "models"} <= listed.keys()
    shown = {
        name: [one.name for one in command.params if one.name in GIVEN_UP or (one.metavar or "") in ("KEY", "[KEY]")]
        for name, command in listed.items()
    }
    assert {name: words for name, words in shown.items() if words} == {}
    of_models = {one.name for name in ("predict", "evaluate") for one in listed[name].params}
    # rows: a query, or with --into a table
    assert of_models - known == {"dsn", "into", "json", "rows"}
