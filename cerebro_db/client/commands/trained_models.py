"""The commands about trained models: ``cerebro models``, ``registry``, ``evaluate``, ``predict``, ``retrain``, …"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Annotated, Any

import typer
from rich.table import Table as RichTable

from ..cerebro import Cerebro
from ..display import boards, drawing
from ..display.terminal import Json, Terminal, named, write_json
from ..errors import ClientError
from ..methods.registry import RegistryEvent
from ..orm import ModelTable, RegisteredVersion
from .runs import Dsn, at

Table = Annotated[str, typer.Argument(metavar="MODEL_TABLE", help="The table of trained models.", show_default=False)]
Configuration = Annotated[
    int | None, typer.Option(help="The number of the configuration; default: the best one.", show_default=False)
]
JudgedRows = Annotated[
    str | None,
    typer.Argument(
        metavar="[QUERY]",
        help="Returns rows with the inputs and the target; default: the rows for validation.",
        show_default=False,
    ),
]
Coverage = Annotated[
    float | None, typer.Option(help="Intervals that hold this part of all values.", show_default=False)
]
Probabilities = Annotated[
    bool | None,
    typer.Option("--calibrated/--no-calibrated", help="Calibrated probabilities.", show_default=False),
]
Related = Annotated[
    str | None,
    typer.Option(
        metavar="JSON", help='The related tables that the model reads: {"orders": "shop.orders"}.', show_default=False
    ),
]
Thresholds = Annotated[bool, typer.Option("--thresholds", help="Decide classes by the thresholds that are kept.")]


def register(app: typer.Typer) -> None:
    for command in (models, registry, calibrate, evaluate, predict, drift, retrain):
        app.command()(command)


def models(
    dsn: Dsn = None,
    limit: Annotated[int, typer.Option(min=1, help="How many tables to list.")] = 30,
    json: Json = False,
) -> None:
    """List the tables of trained models that you may read, the latest first."""
    console = Terminal()
    with at(dsn) as cerebro:
        known = cerebro.models()
        if json:
            write_json(known[:limit])
            return
        if not known:
            console.print("No trained models yet.")
            return
        shown = known[:limit]
        several = len({one.owner for one in known}) > 1
        narrow = console.width < boards.NARROW
        table = boards.plain_table()
        sizes = () if narrow else ("rows", "models", "size")
        whose = ("owner",) if several else ()
        for name in ("model table", "target", "quality", *sizes, "run", "created", *whose):
            right = name in ("rows", "models", "size", "run")
            table.add_column(
                name, justify="right" if right else "left", no_wrap=right or name == "created", overflow="fold"
            )
        for one in shown:
            counts = (_count(one.rows), _count(one.configurations), _size(one.bytes))
            created = "–" if one.created_at is None else f"{one.created_at.astimezone():%m-%d %H:%M}"
            table.add_row(
                named(one.model_table), named(one.target), named(_quality(one)),
                *(() if narrow else counts), _count(one.run), created, *((named(one.owner),) if several else ()),
            )  # fmt: skip
        console.print(table)
        if len(known) > limit:
            console.print(f"… and {len(known) - limit} more: cerebro models --limit {len(known)}", style="dim")


def _quality(one: ModelTable) -> str:
    """How good the model is, or else the value of the objective: ``val_accuracy 0.9667``"""
    if one.quality is not None:
        return one.quality
    return "–" if one.best_value is None else f"{one.objective or 'loss'} {drawing.number(one.best_value)}"


def registry(
    model: Annotated[
        str | None, typer.Argument(metavar="[MODEL]", help="One registered model; default: all.", show_default=False)
    ] = None,
    dsn: Dsn = None,
    json: Json = False,
) -> None:
    """List the versions of registered models, the latest first; of one model also its aliases, rights and history."""
    console = Terminal()
    with at(dsn) as cerebro:
        if model is not None:
            _registered(cerebro, model, console, json)
            return
        known = [one for one in cerebro.registered_versions() if one.unregistered_at is None]
        if json:
            write_json(known)
            return
        if not known:
            console.print("No registered models yet: SELECT cerebro.register('name', 'model_table');")
            return
        console.print(_versions(known))


def _registered(cerebro: Cerebro, model: str, console: Terminal, json: bool) -> None:
    """Versions, aliases, rights and history of one registered model."""
    versions, history = cerebro.registered_versions(model), cerebro.registry_history(model)
    if not history:
        raise ClientError(f"There is no registered model {model!r} that you may use.", "cerebro registry lists them.")
    aliases, rights = cerebro.registered_aliases(model), cerebro.registered_rights(model)
    if json:
        write_json({"versions": versions, "aliases": aliases, "rights": rights, "history": history})
        return
    there = [one for one in versions if one.unregistered_at is None]
    console.print(_versions(there) if there else "No version is left.")
    if aliases:
        console.print(boards.heading("Aliases"))
        rows = [(one.alias, str(one.version), _moment(one.set_at), one.set_by, one.reason) for one in aliases]
        console.print(_texts(("alias", "version", "set", "by", "reason"), rows))
    if rights:
        console.print(boards.heading("Rights"))
        given = [(one.role, one.right, _moment(one.shared_at), one.shared_by) for one in rights]
        console.print(_texts(("role", "right", "given", "by"), given))
    console.print(boards.heading("History"))
    events = [(_moment(one.at), one.by, _event(one), one.reason) for one in history]
    console.print(_texts(("when", "by", "event", "reason"), events))


def _versions(known: Sequence[RegisteredVersion]) -> RichTable:
    table = boards.plain_table()
    for name in ("model", "aliases", "quality", "run", "trained on", "registered", "by"):
        table.add_column(name, justify="right" if name == "run" else "left", overflow="fold")
    for one in known:
        value = one.objective_value if one.objective_value is not None else one.validation_loss
        quality = one.quality or f"{one.objective or 'loss'} {drawing.number(value)}"
        table.add_row(
            named(f"{one.registered_model}@{one.version}"), named(one.aliases or ""), named(quality), _count(one.run),
            named(one.source_table or ""), _moment(one.registered_at), named(one.registered_by),
        )  # fmt: skip
    return table


def _texts(headings: Sequence[str], rows: Iterable[Sequence[str | None]]) -> RichTable:
    table = boards.plain_table()
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*(named(cell or "") for cell in row))
    return table


def _event(one: RegistryEvent) -> str:
    """``registered version 2``, ``alias production names version 2``, ``shared with analyst: use``"""
    if one.event == "alias":
        return f"alias {one.alias} {'removed' if one.version is None else f'names version {one.version}'}"
    if one.role is not None:
        return f"{one.event} {'with' if one.event == 'shared' else 'from'} {one.role}: {one.right}"
    return f"{one.event} version {one.version}"


def _moment(at: datetime) -> str:
    return f"{at.astimezone():%Y-%m-%d %H:%M}"


def calibrate(
    model_table: Table,
    query: JudgedRows = None,
    *,
    dsn: Dsn = None,
    target: Annotated[str | None, typer.Option(help="Which one of several targets.", show_default=False)] = None,
    configuration: Configuration = None,
    decide_by: Annotated[str, typer.Option(help="f1, balanced_accuracy, or costs of classes as JSON.")] = "f1",
    related: Related = None,
    json: Json = False,
) -> None:
    """Keep with a model how far its predictions can be trusted: intervals, probabilities, thresholds."""
    with at(dsn) as cerebro:
        found = cerebro.calibrate(model_table, query, target, configuration, decide_by, related=related)
        if json:
            write_json(found)
            return
        table = boards.plain_table()
        for name in ("target", "measure", "before", "after"):
            table.add_column(name, justify="right" if name in ("before", "after") else "left")
        for one in found:
            after = (
                _count(int(one.after)) if one.measure == "rows" and one.after is not None else drawing.number(one.after)
            )
            before = "" if one.before is None else drawing.number(one.before)
            table.add_row(named(one.target), named(one.measure), before, after)
        Terminal().print(table)


def evaluate(
    model_table: Table,
    query: JudgedRows = None,
    *,
    dsn: Dsn = None,
    target: Annotated[str | None, typer.Option(help="Which one of several targets.", show_default=False)] = None,
    configuration: Configuration = None,
    coverage: Coverage = None,
    calibrated: Probabilities = None,
    thresholds: Thresholds = False,
    related: Related = None,
    json: Json = False,
) -> None:
    """Show how good a model is, on the rows of a query or of validation, and a simple answer beside it."""
    wanted: dict[str, Any] = {"coverage": coverage, "calibrated": calibrated, "thresholds": thresholds}
    wanted["related"] = related
    with at(dsn) as cerebro:
        found = cerebro.evaluate(model_table, query, target, configuration, **wanted)
        if json:
            write_json(found)
            return
        table = boards.plain_table()
        table.add_column("metric")
        table.add_column("value", justify="right")
        table.add_column("baseline", justify="right")
        for metric, value in found.items():
            baseline = found.baselines[metric]
            shown = f"{value:.0f}" if metric == "rows" else drawing.number(value)
            table.add_row(metric, shown, "" if baseline is None else drawing.number(baseline))
        Terminal().print(table)


def predict(
    model_table: Table,
    rows: Annotated[
        str,
        typer.Argument(
            metavar="ROWS", help="A query, or the name of a table or view; with --into a name.", show_default=False
        ),
    ],
    *,
    dsn: Dsn = None,
    into: Annotated[
        str | None, typer.Option(metavar="TABLE", help="Write the predictions into a new table.", show_default=False)
    ] = None,
    key: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="The column that identifies a row.", show_default=False)
    ] = None,
    configuration: Configuration = None,
    top: Annotated[int, typer.Option(min=1, help="How many classes of each row.")] = 1,
    coverage: Coverage = None,
    calibrated: Probabilities = None,
    thresholds: Thresholds = False,
    probability_of: Annotated[
        str | None, typer.Option(metavar="CLASS", help="The probability of this class in each row.", show_default=False)
    ] = None,
    keep: Annotated[
        str | None,
        typer.Option(metavar="COLUMNS", help="With --into: other columns of the rows; * for all.", show_default=False),
    ] = None,
    related: Related = None,
    json: Json = False,
) -> None:
    """Predict the rows of a query, or with --into a whole table into a new one."""
    wanted: dict[str, Any] = {"coverage": coverage, "calibrated": calibrated, "thresholds": thresholds}
    wanted["related"] = related
    wanted["probability_of"] = probability_of
    if keep is not None and into is None:
        raise typer.BadParameter("it needs --into: rows on the screen have their key.", param_hint="--keep")
    console = Terminal()
    with at(dsn) as cerebro:
        if into is not None:
            count = cerebro.predict_into(model_table, rows, into, key, configuration, top, keep=keep, **wanted)
            if json:
                write_json({"table": into, "rows": count})
            else:
                console.print(f"{count} rows predicted into {named(into)}.")
            return
        found = cerebro.predict(model_table, rows, key, configuration, top, **wanted)
        if json:
            write_json(found)
            return
        table = boards.plain_table()
        classes = any(one.label is not None for one in found)
        more = (*(("probability",) if classes else ()), *(("lower", "upper") if coverage is not None else ()))
        times = ("forecast for",) if any(one.forecast_for is not None for one in found) else ()
        for name in ("key", *times, "target", "prediction", *more):
            table.add_column(name, justify="right" if name in more else "left", overflow="fold")
        places = {one.key_value: place for place, one in reversed(list(enumerate(found)))}  # the order of the rows
        for one in sorted(found, key=lambda one: (places[one.key_value], one.target, one.rank or 0)):
            said = named(one.label) if one.value is None else drawing.number(one.value)
            likely = "" if one.probability is None else f"{one.probability:.4f}"
            ends = ["" if end is None else drawing.number(end) for end in (one.lower, one.upper)]
            cells = (*((likely,) if classes else ()), *(ends if coverage is not None else ()))
            time = (named(one.forecast_for),) if times else ()
            table.add_row(named(one.key_value), *time, named(one.target), said, *cells)
        console.print(table)


def drift(
    model_table: Table,
    query: Annotated[
        str,
        typer.Argument(metavar="QUERY", help="Returns rows with the inputs, perhaps the target.", show_default=False),
    ],
    dsn: Dsn = None,
    related: Related = None,
    json: Json = False,
) -> None:
    """Show how far the rows of a query are from those of training, the most different column first."""
    with at(dsn) as cerebro:
        found = cerebro.drift(model_table, query, related=related)
        if json:
            write_json(found)
            return
        table = boards.plain_table()
        for name in ("column", "psi", "by chance", "jensen-shannon", "NULL", "largest change"):
            right = name not in ("column", "largest change")
            table.add_column(name, justify="right" if right else "left", no_wrap=right, overflow="fold")
        for one in found:
            figures = [f"{value:.3f}" for value in (one.psi, one.psi_by_chance, one.jensen_shannon)]
            column = f"{one.column_name} (target)" if one.is_target else one.column_name
            table.add_row(named(column), *figures, f"{100 * one.nulls:.3g} %", named(one.largest_change or ""))
        Terminal().print(table)


def retrain(
    registered_model: Annotated[
        str, typer.Argument(metavar="MODEL", help="The name of a registered model.", show_default=False)
    ],
    *,
    dsn: Dsn = None,
    alias: Annotated[
        str, typer.Option(help="The version to retrain; it moves if the new one is better.")
    ] = "production",
    source_table: Annotated[
        str | None,
        typer.Option(help="The rows to train on; default: those that you named for the version.", show_default=False),
    ] = None,
    validation_table: Annotated[
        str | None, typer.Option(help="The rows for validation, as --source-table.", show_default=False)
    ] = None,
    query: Annotated[
        str | None, typer.Option(help="The rows for the comparison; default: those for validation.", show_default=False)
    ] = None,
    metric: Annotated[str | None, typer.Option(help="A metric of cerebro evaluate.", show_default=False)] = None,
    margin: Annotated[float, typer.Option(min=0, help="How much better the new model must be.")] = 0.0,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Default: those of the version.", show_default=False)
    ] = None,
    budget: Annotated[
        str | None, typer.Option(help="How long to train; default: the budget of the version.", show_default=False)
    ] = None,
    standard_errors: Annotated[
        float, typer.Option(min=0, help="By how many standard errors the new model must be better.")
    ] = 1.0,
    use_gpus: Annotated[bool, typer.Option("--use-gpus", help="Train on GPUs.")] = False,
    if_unchanged: Annotated[bool, typer.Option("--if-unchanged", help="Also if the rows are the same.")] = False,
    json: Json = False,
) -> None:
    """Train a registered model's configuration on the rows of today; promote the new model if it is better."""
    with at(dsn) as cerebro:
        found = cerebro.retrain(
            registered_model, alias, source_table, query, metric, margin,
            epochs=epochs, use_gpus=use_gpus, if_unchanged=if_unchanged,
            validation_table=validation_table, budget=budget, standard_errors=standard_errors,
        )  # fmt: skip
        if json:
            write_json(found)
            return
        console = Terminal()
        if found is None:
            console.print("Nothing to do: the rows have not changed, or another session retrains the model.")
            return
        console.print(
            f"{named(registered_model)}@{found.version}: {found.metric} {drawing.number(found.after)},"
            f" before {drawing.number(found.before)}."
        )
        moved = f"is version {found.version} now" if found.promoted else "stays where it is"
        console.print(f"{named(alias)} {moved}.")


def _count(value: int | None) -> str:
    return "–" if value is None else str(value)


def _size(value: int | None) -> str:
    if value is None:
        return "–"
    return f"{value / 2**20:.1f} MB" if value >= 2**20 else f"{value / 2**10:.0f} kB"
