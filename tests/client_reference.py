"""The reference pages of the Python client and of the command line, from signatures, docstrings and help texts."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from cerebro_db import client
from cerebro_db.client import arguments, orm
from cerebro_db.client.cli import app
from cerebro_db.client.methods import judging, registry, trained_models
from cerebro_db.core.arguments import (
    FitArguments,
    PackArguments,
    PackingArguments,
    SearchArguments,
    TrainArguments,
    VerbArguments,
    kinds_of,
)
from tests.markdown import head, paragraph, plain

# Every public method of the client under a heading; tests/core/test_client_reference.py finds what is missing.
METHODS = {
    "Train": [
        "train", "search", "fit", "dry_run", "resume", "cancel", "handle", "status_within", "materialize", "forget",
    ],
    "Follow": [
        "runs", "run", "run_progress", "follow", "watch", "leaderboard", "parameters", "cross_validation", "groups",
        "learning_curve", "metrics", "decisions", "requests", "plan", "profiles", "hop_timeline", "run_time",
        "segments_now", "report", "track",
    ],
    "Steer": ["stop_model", "go_on", "clone_model", "add_configuration", "extend", "set_budget"],
    "Prepare": ["add_frame", "add_images", "add_accelerometer", "make_task", "pack", "append"],
    "Architectures": ["add_architecture", "drop_architecture"],
    "Use models": ["models", "predict", "predict_into", "embed", "related_rows", "evaluate", "drift", "calibrate",
        "drop_model", "model", "export", "import_model",
    ],
    "Judge models": [
        "importance", "explain", "confusion_matrix", "class_metrics", "roc_curve", "precision_recall", "residuals",
        "mistakes",
    ],
    "Registry": [
        "registered_versions", "registered_aliases", "registered_rights", "registry_history", "register",
        "set_alias", "roll_back", "retrain", "unregister", "share", "unshare",
    ],
    "Statements of your own": ["rows", "rows_and_notices", "objects", "transaction", "close"],
}  # fmt: skip
ABOUT = {
    "Train": client.Cerebro,
    "Steer": client.cerebro.SteeringMethods,
    "Use models": trained_models.ModelMethods,
    "Judge models": judging.JudgingMethods,
    "Registry": registry.RegistryMethods,
}
# The optional arguments of the verbs have these types in Python, and some take more than one.
TYPES = {"Text": "str", "Table": "str", "Json": "Mapping[str, Any]", "Jsonb": "Mapping[str, Any]", "Whole": "int",
         "Large": "int", "Number": "float", "Flag": "bool"}  # fmt: skip
OTHER_TYPES = {
    **dict.fromkeys(arguments.COLUMNS, "str | Sequence[str]"),
    "budget": "str | timedelta | Mapping[str, Any] | None",
    "architectures": "Sequence[Any] | Mapping[str, Any]",
    "method": "str | Mapping[str, Any]",
}
OF_METHODS = (
    "source_table",
    "model_table",
    "output_table",
    "configurations",
    "wait",
    "dry_run",
)  # arguments of their own


ARGUMENTS = Path(inspect.getfile(arguments))


def pages() -> dict[str, str]:
    return {"python.md": python_page(), "commands.md": commands_page()}


# -- Python ------------------------------------------------------------------------------------------------------


def public(kind: type) -> dict[str, Any]:
    """The methods and properties of a class by name."""
    found = inspect.getmembers(kind, lambda one: inspect.isfunction(one) or isinstance(one, property))
    return {name: one for name, one in found if not name.startswith("_")}


def errors() -> list[type[Exception]]:
    """The classes of errors, the base class first."""
    found = [one for name in client.__all__ if inspect.isclass(one := getattr(client, name))]
    return sorted(
        (one for one in found if issubclass(one, Exception)), key=lambda one: (len(one.__mro__), one.__name__)
    )


def docstring(thing: Any) -> str:
    return (inspect.getdoc(thing) or "").replace("``", "`")


def prose(thing: Any) -> list[str]:
    """The paragraphs of a docstring as Markdown."""
    return [line for one in docstring(thing).split("\n\n") for line in ("", paragraph(one))]


def cell(thing: Any) -> str:
    """A docstring in a cell of a table."""
    return plain(" ".join(docstring(thing).split()))


def signature(name: str, function: Callable[..., Any]) -> list[str]:
    """A call with the types and defaults of its arguments, as a block of code."""
    told = inspect.signature(function)
    parts = []
    for one in told.parameters.values():
        if one.name == "self":
            continue
        if one.kind is one.KEYWORD_ONLY and "*" not in parts:
            parts.append("*")
        stars = "*" if one.kind is one.VAR_POSITIONAL else "**" if one.kind is one.VAR_KEYWORD else ""
        text = f"{stars}{one.name}"
        text += f": {one.annotation}" + ("" if one.default is one.empty else f" = {one.default!r}")
        parts.append(text)
    call = f"{name}({', '.join(parts)}) -> {told.return_annotation}"
    if len(call) > 118:
        call = f"{name}(\n    " + ",\n    ".join(parts) + f",\n) -> {told.return_annotation}"
    return ["", "```python", call, "```"]


def member(name: str, one: Any) -> list[str]:
    """A method or a property with its docstring."""
    if isinstance(one, property):
        return ["", "```python", f"{name}: {inspect.signature(one.fget).return_annotation}", "```", *prose(one)]  # type: ignore[arg-type]
    return [*signature(name, one), *prose(one)]


def python_page() -> str:
    lines = [
        *head("The Python client", "cerebro_db/client"),
        paragraph(
            "`cerebro` is what `connect` returns. Its methods have the names and arguments of the SQL functions, and"
            " [functions.md](functions.md) says more about these. [The manual](../README.md#from-python) has an"
            " example."
        ),
        "",
        "## Connect",
        *member("cerebro_db.client.connect", client.connect),
    ]
    for topic, names in METHODS.items():
        lines += ["", f"## {topic}", *(prose(ABOUT[topic]) if topic in ABOUT else [])]
        for name in names:
            lines += ["", f"### cerebro.{name}", *member(f"cerebro.{name}", getattr(client.Cerebro, name))]
    lines += ["", "## Optional arguments", "", "An argument that is left out has the default of the SQL function.", ""]
    lines += ["| argument | type | taken by |", "|---|---|---|"]
    found = optional_arguments()
    packing, search = found["PackingArguments"], found["SearchArguments"]
    shared = {**packing, **found["SharedArguments"]}
    taken = {"train": {**shared, **search, **found["TrainArguments"]}, "search": {**shared, **search},
             "fit": {**shared, **found["FitArguments"]}, "pack": {**packing, **found["PackArguments"]}}  # fmt: skip
    for name, told in {name: kind for of in taken.values() for name, kind in of.items()}.items():
        takers = ", ".join(f"`{verb}`" for verb, of in taken.items() if name in of)
        lines.append(f"| `{name}` | {plain(told)} | {takers} |")
    lines += ["", "## RunHandle", *prose(client.RunHandle)]
    for name, one in public(client.RunHandle).items():
        lines += ["", f"### run.{name}", *member(f"run.{name}", one)]
    lines += ["", "## In an event loop", *member("cerebro_db.client.in_thread", client.in_thread)]
    lines += ["", "## Rows", "", paragraph("Rows of views are SQLAlchemy objects with the columns of the view:"), ""]
    lines += ["| class | rows of | |", "|---|---|---|"]
    views = [one for one in orm.View.__subclasses__() if one.__module__ == orm.__name__]  # tests have others
    for view in sorted(views, key=lambda one: one.__name__):
        link = f"[cerebro.{view.__tablename__}](views.md#cerebro{view.__tablename__})"
        lines.append(f"| `{view.__name__}` | {link} | {cell(view)} |")
    lines += ["", *member("row.as_dict", orm.View.as_dict)[1:]]
    lines += ["", "### Lists of rows", *prose(client.RowList)]
    for name in ("dicts", "json", "frame", "arrow"):
        lines += member(f"rows.{name}", getattr(client.RowList, name))
    judged = (judging.ColumnImportance, judging.ClassPair, judging.ClassMetrics, judging.RocPoint,
              judging.PrecisionPoint, judging.Residual, judging.Contribution)  # fmt: skip
    for kind in (trained_models.Prediction, trained_models.RowVector, trained_models.CalibrationMeasure, *judged):
        fields = ", ".join(f"`{name}`" for name in kind._fields)
        lines += ["", f"### {kind.__name__}", *prose(kind), "", f"Its fields are {fields}."]
    lines += ["", "## Errors", "", "| class | |", "|---|---|"]
    lines += [f"| `{one.__name__}` | {cell(one)} |" for one in errors()]
    return "\n".join(lines) + "\n"


# The classes of the client, with the records of the arguments, and the classes that they inherit from.
RECORDS: dict[str, tuple[type[PackingArguments], tuple[str, ...]]] = {
    "PackingArguments": (PackingArguments, ()),
    "PackArguments": (PackArguments, ("PackingArguments",)),
    "SharedArguments": (VerbArguments, ("PackingArguments",)),
    "FitArguments": (FitArguments, ("PackingArguments", "SharedArguments")),
    "SearchArguments": (SearchArguments, ("PackingArguments", "SharedArguments")),
    "TrainArguments": (TrainArguments, ("PackingArguments", "SharedArguments", "SearchArguments")),
}


def optional_arguments() -> dict[str, dict[str, str]]:
    """The types of the optional arguments, by the class of the client that has them."""
    found: dict[str, dict[str, str]] = {}
    for name, (record, bases) in RECORDS.items():
        left_out = {*OF_METHODS, *(one for base in bases for one in found[base])}
        left_out |= {"target"} if record is PackArguments else set()  # no table is packed without
        found[name] = {
            one: OTHER_TYPES.get(one, TYPES[kind]) for one, kind in kinds_of(record).items() if one not in left_out
        }
    found["TrainArguments"] = {"space": found["SearchArguments"].pop("space"), **found["TrainArguments"]}
    return found


def with_arguments(module: str) -> str:
    """The module of the client's arguments, with today's fields in its classes."""
    for name, fields in optional_arguments().items():
        lines = "".join(f"    {one}: {kind}\n" for one, kind in fields.items())
        module, times = re.subn(
            rf"(^class {name}\(.*\n    \"\"\".*\"\"\"\n\n)(?:    \w+: .*\n)*",
            lambda one, lines=lines: one[1] + lines,  # type: ignore[misc]
            module,
            flags=re.M,
        )
        assert times == 1, name
    return module


# -- the command line --------------------------------------------------------------------------------------------


def commands_page() -> str:
    command: Any = typer.main.get_command(app)
    lines = [*head("The command line", "cerebro_db/client"), paragraph(command.epilog)]
    for name, one in command.commands.items():
        arguments = [given for given in one.params if given.param_type_name == "argument"]
        options = [given for given in one.params if given.param_type_name == "option"]
        usage = " ".join(["cerebro", name, *(["[OPTIONS]"] if options else []), *(argument(one) for one in arguments)])
        lines += ["", f"## cerebro {name}", "", "```", usage, "```"]
        lines += [line for part in one.help.split("\n\n") for line in ("", paragraph(plain(part)))]
        rows = [(argument(given), given.help or "") for given in arguments] + [option(given) for given in options]
        if rows:
            lines += ["", "| | |", "|---|---|", *(f"| `{shown}` | {plain(meaning)} |" for shown, meaning in rows)]
    return "\n".join(lines) + "\n"


def argument(given: Any) -> str:
    return given.metavar or given.name.upper()


def option(given: Any) -> tuple[str, str]:
    """An option as it is written, and its help with its default and its environment variable."""
    value = "" if given.is_flag else f" {given.metavar or given.name.upper()}"
    more = [f"default: {given.default}"] if given.show_default and given.default not in (None, False) else []
    more += [f"environment: {given.envvar}"] if given.envvar else []
    return ", ".join(given.opts) + value, (given.help or "") + (f" ({'; '.join(more)})" if more else "")
