"""Writes the reference pages in docs/reference/ from the code and from the comments in a live database.

python -m tests.reference

It uses the database that CEREBRO_TEST_DSN names, which must have this clone's extension, or else a throw-away cluster.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from cerebro_db.core.architecture import tables
from cerebro_db.core.options import OPTIONS, Option
from cerebro_db.core.parameters import params
from cerebro_db.core.parameters.vocabulary import LOSSES, METRICS, OPTIMIZERS, SCHEDULES
from cerebro_db.core.search import named_methods
from cerebro_db.core.search.method_parameters import Parameter
from cerebro_db.embedded import throw_away
from cerebro_madlib.functions import FUNCTIONS as MADLIB
from cerebro_madlib.functions import Function
from tests import client_reference, pictures
from tests.conftest import TRAINER, connect
from tests.madlib_tables import TABLES
from tests.markdown import head, paragraph, plain

CAST = re.compile(r"::[a-z ]+(\[\])?$")
FOLDER = Path(__file__).resolve().parents[1] / "docs" / "reference"
SEARCH_PAGE = FOLDER.parent / "train.md"
METHODS = re.compile(r"(?<=<!-- methods )(\w+)( -->\n).*?(?=<!-- end of methods -->)", re.DOTALL)

# Every public view and function under a heading; tests/sql/docs/test_reference.py finds what is missing.
VIEWS = {
    "Runs": ["runs", "run_plan", "run_progress"],
    "Models": ["models", "leaderboard", "parameters", "cross_validation", "groups", "learning_curve", "metrics"],
    "Decisions and requests": ["decisions", "requests"],
    "Segments": ["segments_now", "hop_timeline", "run_time", "profiles"],
    "Registry": [
        "registered_models",
        "registered_versions",
        "registered_aliases",
        "registered_rights",
        "registry_history",
    ],
    "Server": ["limits", "custom_functions", "architectures"],
}
FUNCTIONS = {
    "Packing tables": [
        "pack",
        "prepared_columns",
        "pack_plain",
        "pack_like",
        "append",
        "convert_madlib_table",
        "propagate",
        "make_task",
    ],
    "Architectures and configurations": [
        "architecture",
        "add_architecture",
        "drop_architecture",
    ],
    "Runs": [
        "fit",
        "train",
        "search",
        "madlib_fit_multiple_model",
        "plan",
        "wait",
        "cancel",
        "resume",
        "materialize",
        "forget",
    ],
    "Steering a run": ["stop_model", "go_on", "clone_model", "add_configuration", "extend", "set_budget"],
    "Trained models": [
        "predict",
        "predict_into",
        "embed",
        "related_rows",
        "create_predictor",
        "ensemble",
        "drop_model",
    ],
    "Judging a model": [
        "calibrate",
        "evaluate",
        "class_metrics",
        "confusion_matrix",
        "roc_curve",
        "precision_recall",
        "calibration",
        "residuals",
        "mistakes",
        "importance",
        "explain",
        "drift",
        "backtest",
        "bouts",
        "transitions",
    ],
    "Registry": ["register", "registered_table", "set_alias", "roll_back", "retrain", "unregister", "share", "unshare"],
    "Custom losses and metrics": [
        "add_custom_function",
        "drop_custom_function",
    ],
    "Administration": ["version", "doctor", "warm_up", "set_limits"],
}

COLUMNS = """
SELECT c.relname::text, pg_catalog.obj_description(c.oid, 'pg_class'), a.attname::text,
       pg_catalog.format_type(a.atttypid, a.atttypmod), pg_catalog.col_description(c.oid, a.attnum)
  FROM pg_catalog.pg_class c
  JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
 WHERE c.relnamespace = 'cerebro'::regnamespace AND c.relkind = 'v' AND c.relname NOT LIKE '\\_%'
 ORDER BY c.relname::text COLLATE "C", a.attnum
"""
SIGNATURES = """
SELECT p.proname::text, pg_catalog.obj_description(p.oid, 'pg_proc'), pg_catalog.pg_get_function_result(p.oid),
       ARRAY(SELECT concat_ws(E'\\t', argument.name, argument.type,
                              pg_catalog.pg_get_function_arg_default(p.oid, argument.number::integer))
               FROM (SELECT number, p.proargnames[number] AS name, pg_catalog.format_type(type, NULL) AS type
                       FROM unnest(p.proargtypes::oid[]) WITH ORDINALITY AS input (type, number)) argument
              ORDER BY argument.number)
  FROM pg_catalog.pg_proc p
 WHERE p.pronamespace = 'cerebro'::regnamespace AND p.proname NOT LIKE '\\_%'
 ORDER BY p.proname::text COLLATE "C", p.oid
"""


def pages(connection: Any) -> dict[str, str]:
    """File name to text, for all pages."""
    return {
        "options.md": options_page(),
        "parameters.md": parameters_page(),
        "layers.md": layers_page(),
        "views.md": views_page(columns(connection)),
        "functions.md": functions_page(functions(connection)),
        "madlib.md": madlib_page(),
        **client_reference.pages(),
    }


# -- options -----------------------------------------------------------------------------------------------------


def default(option: Option) -> str:
    return f"`{json.dumps(option.default)}`" if option.unset == "" else option.unset


def options_page() -> str:
    lines = [
        *head("Options of a run", "cerebro_db/core/options.py"),
        paragraph(
            "The argument `options` of `cerebro.train`, `cerebro.search`, `cerebro.fit` and"
            " `cerebro.madlib_fit_multiple_model` is a JSON object:"
        ),
        "",
        "```sql",
        "SELECT cerebro.fit('iris', 'iris_jax', '[{\"units\": 32}]', target => 'species',",
        '                   options => \'{"engine": "jax", "seed": 7}\');',
        "```",
        "",
        paragraph(
            "In Python, pass the text as a parameter of the statement. SQLAlchemy's `text()` takes the `:1` in"
            ' `{"seed":1}` for a parameter of its own. With a space after each colon, as `json.dumps` writes them, it'
            " does not."
        ),
        "",
        "| option | values | default |",
        "|---|---|---|",
    ]
    for option in OPTIONS.values():
        lines.append(f"| [`{option.name}`](#{option.name}) | {option.values} | {default(option)} |")
    for option in OPTIONS.values():
        lines += ["", f"## {option.name}", "", paragraph(option.what), ""]
        lines += [paragraph("*When to use it:* " + option.when)]
    return "\n".join(lines) + "\n"


# -- search methods ----------------------------------------------------------------------------------------------


def with_methods(page: str) -> str:
    """The page with its tables of methods as the classes have them."""
    tables: dict[str, dict[str, Any]] = {
        "samplers": named_methods.SAMPLING,
        "stopping": named_methods.STOPPING,
        "both": named_methods.POPULATIONS,
    }
    return METHODS.sub(lambda found: found[1] + found[2] + methods_table(tables[found[1]].values()), page)


def default_of(parameter: Parameter) -> str:
    return parameter.unset if parameter.default is None else f"{parameter.default:g}"


def methods_table(classes: Iterable[Any]) -> str:
    lines = ["| method | parameters | what it does |", "|---|---|---|"]
    for one in classes:
        given = ", ".join(f"`{parameter.name}` {default_of(parameter)}".rstrip() for parameter in one.parameters)
        lines.append(f"| `{one.name}` | {given} | {one.does} |".replace("|  |", "| |"))
    return "\n".join(lines) + "\n"


# -- parameters --------------------------------------------------------------------------------------------------


def parameters_page() -> str:
    lines = [
        *head("Compile and fit parameters", "cerebro_db/core/parameters"),
        paragraph(
            "A model selection table holds the parameters of each configuration as texts, in the columns"
            " `compile_params` and `fit_params`:"
        ),
        "",
        "```",
        "optimizer='Adam(learning_rate=CosineDecay(0.01, 1000))', loss='mse', metrics=['mae', 'R2Score']",
        "batch_size=32, epochs=1",
        "```",
        "",
        paragraph(
            f"Compile parameters are {listed(params.COMPILE_KEYS)}; `optimizer` and `loss` are required. Fit parameters"
            f" are {listed(params.FIT_KEYS)}. A JSON object with the same keys is accepted, too."
        ),
        "",
        paragraph(
            "In a configuration of `cerebro.fit` and in a space, these parameters and the arguments of the optimizer"
            " are keys beside `architecture`, the parameters of the architecture and"
            " [`frozen`](../experts.md#layers-that-do-not-train); `passes` stands for `epochs`."
        ),
        "",
        paragraph(
            "A name is found in any case and with or without underscores. Arguments stand in round brackets, as"
            " `name=value`. The arguments in bold are required. They may also be given without a name, in this order,"
            " and so may the learning rate of an optimizer. The `learning_rate` is a number or a schedule. What is not"
            " in these tables is refused, except custom losses and metrics that an administrator has registered."
        ),
    ]
    for title, vocabulary in (
        ("Optimizers", OPTIMIZERS), ("Learning-rate schedules", SCHEDULES), ("Losses", LOSSES), ("Metrics", METRICS)
    ):  # fmt: skip
        common = [name for name in next(iter(vocabulary.entries.values())).arguments if name in vocabulary.common]
        lines += [
            "",
            f"## {title}",
            "",
            paragraph(f"All of them also take {listed(common)}."),
            "",
            "| name | arguments |",
            "|---|---|",
        ]
        for entry in vocabulary.entries.values():
            names = " or ".join(f"`{name}`" for name in (entry.class_name, entry.short) if name)
            own = [
                f"**`{name}`**" if name in entry.required else f"`{name}`"
                for name in entry.arguments
                if name not in common
            ]
            lines.append(f"| {names} | {', '.join(own)} |")
    return "\n".join(lines) + "\n"


def listed(names: Sequence[str]) -> str:
    *first, last = [f"`{name}`" for name in names]
    return f"{', '.join(first)} and {last}" if first else last


# -- layers ------------------------------------------------------------------------------------------------------

ROLES = ("initializer", "regularizer", "constraint")


def layers_page() -> str:
    operations = {name: arguments for of_module in tables.OPERATIONS.values() for name, arguments in of_module.items()}
    lines = [
        *head("Layers of an architecture", "cerebro_db/core/architecture/tables.py"),
        paragraph(
            "An architecture is JSON of Keras 3: a Sequential or Functional model. It may contain the classes and"
            " arguments of this page. Other ones are refused, because Keras would build any class that the JSON"
            " names. [train.md](../train.md#an-architecture-that-fits) says how to get such JSON, and"
            " [parameters.md](parameters.md) has the optimizers, losses and metrics."
        ),
        "",
        "## Layers",
        "",
        paragraph(
            f"All of them also take {listed(sorted(tables.EVERY_LAYER.split()))}. `kernel_*` stands for"
            f" {listed([f'kernel_{role}' for role in ROLES])}; other names with `*` are meant in the same way."
        ),
        "",
        *allowed(tables.LAYERS, "layer", set(tables.EVERY_LAYER.split())),
        "",
        "## Operations",
        "",
        "A Functional model may compute with tensors between its layers. All operations also take `name`.",
        "",
        *allowed(operations, "operation", {"name"}),
    ]
    for title, kind, table, names in (
        ("Initializers", "initializer", tables.INITIALIZERS, tables.INITIALIZER_NAMES),
        ("Regularizers", "regularizer", tables.REGULARIZERS, tables.REGULARIZER_NAMES),
        ("Constraints", "constraint", tables.CONSTRAINTS, tables.CONSTRAINT_NAMES),
    ):
        lines += ["", f"## {title}", "", paragraph(f"By name alone: {listed(sorted(names))}."), ""]
        lines += allowed(table, kind, set())
    for title, names in (("Activations", tables.ACTIVATIONS), ("Types", tables.POLICIES)):
        lines += ["", f"## {title}", "", paragraph(f"{listed(sorted(names))}.")]
    return "\n".join(lines) + "\n"


def allowed(table: tables.Table, kind: str, common: set[str]) -> list[str]:
    """The rows of a table of classes. Neighbours with the same arguments share a row."""
    rows: list[tuple[list[str], str]] = []
    for name, arguments in table.items():
        shown = ", ".join(f"`{one}`" for one in sorted(abbreviated(arguments - common)))
        if rows and rows[-1][1] == shown:
            rows[-1][0].append(name)
        else:
            rows.append(([name], shown))
    return [f"| {kind} | arguments |", "|---|---|"] + [
        f"| {', '.join(f'`{name}`' for name in names)} | {shown} |".replace("|  |", "| |") for names, shown in rows
    ]


def abbreviated(arguments: Iterable[str]) -> set[str]:
    """The arguments, with one name for an initializer, a regularizer and a constraint of the same weights."""
    found = set(arguments)
    for first in {name.removesuffix("initializer") for name in found if name.endswith("_initializer")}:
        three = {first + role for role in ROLES}
        if three <= found:
            found = found - three | {f"{first}*"}
    return found


# -- views -------------------------------------------------------------------------------------------------------


def columns(connection: Any) -> dict[str, tuple[str | None, list[tuple[str, str, str | None]]]]:
    """View to its comment and its columns: name, type and comment."""
    found: dict[str, tuple[str | None, list[tuple[str, str, str | None]]]] = {}
    with connection.cursor() as cursor:
        cursor.execute(COLUMNS)
        for view, comment, *column in cursor:
            found.setdefault(view, (comment, []))[1].append(tuple(column))
    return found


def views_page(views: dict[str, tuple[str | None, list[tuple[str, str, str | None]]]]) -> str:
    lines = [
        *head("Views", "the COMMENTs in sql/api"),
        "People and BI tools read these views. Users see their own runs; members of `cerebro_monitor` see the runs of",
        "all users. The schema `cerebro_bi` has them with columns of plain types only"
        " ([predict](../predict.md#a-bi-tool)).",
    ]
    for topic, names in VIEWS.items():
        lines += ["", f"## {topic}"]
        for name in names:
            comment, its_columns = views[name]
            lines += [
                "",
                f"### cerebro.{name}",
                "",
                plain(comment or ""),
                "",
                "| column | type | meaning |",
                "|---|---|---|",
            ]
            lines += [f"| `{column}` | {kind} | {plain(meaning or '')} |" for column, kind, meaning in its_columns]
    return "\n".join(lines) + "\n"


# -- functions ---------------------------------------------------------------------------------------------------


def functions(connection: Any) -> dict[str, list[tuple[str, str | None]]]:
    """Function to its signatures, each with its comment."""
    found: dict[str, list[tuple[str, str | None]]] = {}
    with connection.cursor() as cursor:
        cursor.execute(SIGNATURES)
        for name, comment, result, arguments in cursor:
            signature = f"cerebro.{name}({', '.join(map(argument, arguments))}) RETURNS {result}"
            if len(signature) > 100:
                listed = ",\n    ".join(map(argument, arguments))
                signature = f"cerebro.{name}(\n    {listed}\n) RETURNS {result}"
            found.setdefault(name, []).append((signature, comment))
    return found


def argument(found: str) -> str:
    name, kind, *given = found.split("\t")
    return " ".join([name, kind, *(f"DEFAULT {CAST.sub('', value)}" for value in given)])


def functions_page(found: dict[str, list[tuple[str, str | None]]]) -> str:
    lines = [
        *head("Functions", "the COMMENTs in sql/api"),
        "Write functions with their schema: `cerebro.fit(…)`. Pass optional arguments by name: `validation_table =>",
        "'packed_validation'`. MADlib's functions are in the schema `madlib` ([madlib.md](madlib.md));",
        "`madlib_fit_multiple_model` is in both.",
    ]
    for topic, names in FUNCTIONS.items():
        lines += ["", f"## {topic}"]
        for name in names:
            lines += ["", f"### cerebro.{name}"]
            for signature, comment in found[name]:
                lines += ["", "```sql", signature, "```", "", plain(comment or "")]
    return "\n".join(lines) + "\n"


# -- MADlib ------------------------------------------------------------------------------------------------------


def madlib_page() -> str:
    lines = [
        *head("MADlib's functions", "plpy/cerebro_madlib"),
        "The extension `cerebro_db_madlib` has the deep-learning functions of MADlib 2.1 in the schema `madlib`, with",
        "the same arguments and results. A test compares this page with an installed extension.",
        "[madlib.md](../madlib.md) says how to move over, and what is different.",
    ]
    for topic in dict.fromkeys(one.topic for one in MADLIB):
        lines += ["", f"## {topic}"]
        for name in dict.fromkeys(one.name for one in MADLIB if one.topic == topic):
            lines += ["", f"### madlib.{name}"]
            alike: dict[str, list[Function]] = {}
            for one in MADLIB:
                if one.name == name:
                    alike.setdefault(one.here, []).append(one)
            for here, overloads in alike.items():
                lines += ["", "```sql", *(one.written() for one in overloads), "```", "", plain(here)]
    lines += ["", "## Tables", "", "Columns of ours come after those of MADlib.", ""]
    lines += ["| table | columns of MADlib | columns of ours | here |", "|---|---|---|---|"]
    for table in TABLES:
        columns = "<br>".join(f"`{name}` {kind}" for name, kind in table.types)
        lines.append(f"| `{table.made_by}`: {table.name} | {columns} | {table.more} | {plain(table.here)} |")
    return "\n".join(lines) + "\n"


# -- the command -------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def database() -> Iterator[str]:
    given = os.environ.get("CEREBRO_TEST_DSN")
    if given:
        yield given
        return
    cluster = throw_away.create(TRAINER)
    try:
        yield cluster.dsn()
    finally:
        throw_away.remove(cluster)


def main() -> None:
    SEARCH_PAGE.write_text(with_methods(SEARCH_PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    with database() as dsn, contextlib.closing(connect(dsn)) as connection:
        made = pages(connection)
    module = client_reference.ARGUMENTS
    module.write_text(client_reference.with_arguments(module.read_text(encoding="utf-8")), encoding="utf-8")
    pictures.main()
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in made.items():
        (FOLDER / name).write_text(text, encoding="utf-8")
        sys.stdout.write(f"docs/reference/{name}\n")


if __name__ == "__main__":
    main()
