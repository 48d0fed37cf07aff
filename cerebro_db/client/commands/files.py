"""The commands about files: ``cerebro export`` and ``import`` of models, ``cerebro images`` and ``accelerometer``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from cerebro_db.core.texts import counted

from ..display.terminal import Json, Terminal, lines, write_json
from .runs import Dsn, at
from .trained_models import Configuration


def register(app: typer.Typer) -> None:
    app.command()(export)
    app.command("import")(bring_in)
    app.command("images")(add_images)
    app.command("accelerometer")(add_accelerometer)


def export(
    model_table: Annotated[
        str, typer.Argument(metavar="MODEL", help="The table of trained models.", show_default=False)
    ],
    file: Annotated[
        str,
        typer.Option(
            "--file",
            "-o",
            metavar="FILE",
            help="x.keras, x.safetensors, x.cerebro, x.onnx, or folder/ for a SavedModel.",
            show_default=False,
        ),
    ],
    *,
    dsn: Dsn = None,
    configuration: Configuration = None,
    sample: Annotated[
        str | None,
        typer.Option(
            metavar="QUERY", help="Rows to compare on; default: the training table, if it is yours.", show_default=False
        ),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            help="Export the model of this group, by its group_value; default: the model on all rows.",
            show_default=False,
        ),
    ] = None,
    scorer: Annotated[bool, typer.Option("--scorer", help="Write cerebro_scorer.py beside it, too.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Write over files that exist.")] = False,
    tolerance: Annotated[
        float | None,
        typer.Option(min=0, help="The largest difference of predictions; default: by format.", show_default=False),
    ] = None,
    json: Json = False,
) -> None:
    """Write a model into a file, and compare the file's predictions with those of the database."""
    console = Terminal()
    with at(dsn) as cerebro:
        more = {"group": group, "scorer": scorer, "replace": replace, "tolerance": tolerance}
        made = cerebro.export(model_table, file, configuration, sample, **more)  # type: ignore[arg-type]
        if json:
            files = {"path": str(made.path), "beside": [str(one) for one in made.beside]}
            write_json({**asdict(made), **files})
            return
        console.print(lines(f"{made.path}: {made.bytes:,} bytes, SHA-256 {made.sha256}"), soft_wrap=True)
        console.print(lines(f"Largest difference {made.difference:.2g}: {made.compared}"), soft_wrap=True)
        for line in (*(f"Beside it: {one}" for one in made.beside), *made.left_out):
            console.print(lines(line), soft_wrap=True)


def bring_in(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="x.cerebro, x.keras, x.safetensors or x.json.", show_default=False)
    ],
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="Of x.cerebro: the new model table. Else: the new architecture.", show_default=False
        ),
    ],
    *,
    dsn: Dsn = None,
    weights: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="x.safetensors with the weights of the architecture x.json.", show_default=False
        ),
    ] = None,
    by_order: Annotated[
        bool, typer.Option("--by-order", help="Take these in the order of the file, not by their names.")
    ] = False,
    json: Json = False,
) -> None:
    """Bring a model from a file into the database."""
    if by_order and weights is None:
        raise typer.BadParameter("--by-order needs --weights.")
    with at(dsn) as cerebro:
        if weights is None:
            made = cerebro.import_model(file, name)
        else:
            order: Literal["names", "order"] = "order" if by_order else "names"
            made = cerebro.add_architecture(name, Path(file), weights, by=order, description=f"from {Path(file).name}")
        if json:
            write_json({"file": file, "name": name, "made": made})
            return
        Terminal().print(lines(f"{made}."), soft_wrap=True)


def add_images(
    source: Annotated[
        str,
        typer.Argument(metavar="SOURCE", help="A folder; with --column a table or a query.", show_default=False),
    ],
    table: Annotated[str, typer.Argument(metavar="TABLE", help="The new table.", show_default=False)],
    *,
    shape: Annotated[
        str,
        typer.Option(metavar="SHAPE", help="Height, width and channels, for instance 64x64x3.", show_default=False),
    ],
    dsn: Dsn = None,
    column: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="The column of SOURCE that has files of images.", show_default=False),
    ] = None,
    crop: Annotated[bool, typer.Option("--crop", help="Cut images to the proportions; default: stretch them.")] = False,
    json: Json = False,
) -> None:
    """Make a table of images: PNG, JPEG and other files become pixels of one size."""
    try:
        sizes = [int(one) for one in shape.lower().split("x")]
    except ValueError:
        raise typer.BadParameter(f"--shape cannot be {shape}; for instance 64x64x3.") from None
    with at(dsn) as cerebro:
        rows = cerebro.add_images(table, source, sizes, column=column, crop=crop)
        if json:
            write_json({"table": table, "rows": rows})
            return
        Terminal().print(lines(f"{table} has {counted(rows, 'image')} of {shape} pixels."), soft_wrap=True)


def add_accelerometer(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="Files of ActiGraph: .csv, .csv.gz and .gt3x.", show_default=False),
    ],
    table: Annotated[
        str, typer.Argument(metavar="TABLE", help="A new table, or one with rows of other files.", show_default=False)
    ],
    *,
    dsn: Dsn = None,
    subject: Annotated[
        str | None,
        typer.Option(
            help="Who was recorded; default: the name in the file, or else that of the file.", show_default=False
        ),
    ] = None,
    date_format: Annotated[
        str | None,
        typer.Option(
            metavar="FORMAT",
            help="Of dates in CSV, for instance d/M/yyyy; default: that of the header.",
            show_default=False,
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Load recordings of accelerometers: a row for each sample, with subject, at, x, y and z."""
    with at(dsn) as cerebro:
        found = []
        for file in files:  # what is loaded stays, so it is said at once
            found += cerebro.add_accelerometer(table, file, subject=subject, date_format=date_format)
            if not json:
                one = found[-1]
                rate = f", {one.rate} a second" if one.rate else ""
                told = f"{one.file}: {counted(one.rows, 'row')} of {one.subject}{rate}."
                Terminal().print(lines(told), soft_wrap=True)
        if json:
            write_json([asdict(one) for one in found])
