"""Takes a trained model from one database to another, in a file with all that its tables say.

The file is a zip without compression: ``manifest.json`` has the size and the hash of each other file, ``model.json``
the rows of the tables, ``weights.bin`` the weights. The file is not trusted: nothing is read beyond the sizes that the
manifest tells and the bounds below, and no name in it becomes the name of a file.
"""

from __future__ import annotations

import hashlib
import json
import math
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psycopg2

from cerebro_db import __version__
from cerebro_db.core import codec
from cerebro_db.core.documents import decoded
from cerebro_db.core.errors import CerebroError
from cerebro_db.core.models import model_columns
from cerebro_db.core.models.model_columns import (
    INFO_COLUMNS,
    LATER_COLUMNS,
    MODEL_COLUMNS,
    SUMMARY_COLUMNS,
    SUMMARY_OF_ONE_GROUP,
    WEIGHTS_COLUMNS,
)
from cerebro_db.core.names import Name
from cerebro_db.core.packing.layout import Layout
from cerebro_db.core.packing.packed_summary import Packing
from cerebro_db.core.packing.preparation import OneHot

from ..database import DatabaseClient, Transaction
from ..errors import CannotConnect, ClientError, ServerError
from . import keras_models, preparations, stored_model
from .stored_model import StoredModel, in_statement, quoted_in_statement

FORMAT = "cerebro archive 1"
ENDING = ".cerebro"
MANIFEST, MODEL, WEIGHTS = "manifest.json", "model.json", "weights.bin"
MOST = {MANIFEST: 1 << 20, MODEL: 64 << 20, WEIGHTS: 1 << 50}  # bytes
# Bytes of weights in one value, as cerebro.materialize makes tables: of all models, and of those for little memory.
LARGEST_VALUE, LARGE_PIECES = 500 << 20, 16 << 20
PIECE = 4 << 20
MOST_METRICS = 100_000  # rows
# What the summary says of the run and tables of the other database. Whoever wrote the file chose these names, and there
# may be tables of the same names here: the column imported has them, which people read.
OF_ANOTHER_DATABASE = ("run", "source_table", "packed_table", "validation_table")
FIXED_TIME = (1980, 1, 1, 0, 0, 0)  # of the files within: one model makes one archive


@dataclass(frozen=True)
class Archive:
    """What a file has, after all checks but that of the weights' hash."""

    path: Path
    sha256: str  # of the weights
    size: int  # of the weights
    configuration: int
    architecture: str
    info: str  # the row of _info, as JSON
    summary: str  # the row of _summary, as JSON
    labels: dict[str, str]  # the columns of labels with their types
    layout: Layout
    packing: Packing | None
    imported: dict[str, Any]  # where the model comes from, with its metrics

    @property
    def input_shapes(self) -> list[list[int]]:
        return [list(variable.shape) for variable in self.layout.inputs]

    def pieces(self) -> Iterator[bytes]:
        """The weights. An error at the end if they are others than the manifest says."""
        digest = hashlib.sha256()
        with zipfile.ZipFile(self.path) as archive, archive.open(WEIGHTS) as file:
            while piece := file.read(PIECE):
                digest.update(piece)
                yield piece
        if digest.hexdigest() != self.sha256:
            raise _refused(self.path, f"{WEIGHTS} has another hash than {MANIFEST} says")


# -- write -----------------------------------------------------------------------------------------------------


def write(stored: StoredModel, path: Path) -> None:
    """Writes the model with all that its tables say."""
    if stored.named is not model_columns.PLAIN:
        raise ClientError(
            f"The table {stored.table} has the columns of MADlib's functions, which an archive does not have.",
            "Export to .keras or .safetensors; or train with cerebro.fit.",
        )
    database, table = stored.database, stored.table
    info = stored_model.row_as_json(
        database, table.suffixed("_info"), [*INFO_COLUMNS, *LATER_COLUMNS], key=stored.configuration
    )
    if info is None:
        raise ClientError(f"The table {table.suffixed('_info')} has no row of configuration {stored.configuration}.")
    labels = [output.name + "_labels" for output in preparations.layout_of(stored).outputs]
    told = [*SUMMARY_COLUMNS, *SUMMARY_OF_ONE_GROUP]
    summary = stored_model.row_as_json(database, table.suffixed("_summary"), told, labels) or "{}"
    text, info_row = info, json.loads(info)
    if stored.group is not None:  # its own figures; neither a calibration nor what was found with it
        own = {name: one for name, one in stored.group.told.items() if name in info_row}
        endless = {name: str(one) for name, one in own.items() if isinstance(one, float) and not math.isfinite(one)}
        info_row.update({**own, **endless, "calibration": None, "quality": None})
        info_row["bytes"] = stored.size
        text = json.dumps(info_row)
    model = {
        "configuration": stored.configuration,
        "architecture": stored.architecture,
        "info": text,
        "summary": summary,
        "lineage": _lineage(stored, json.loads(summary).get("group_key")),
        "metrics": _metrics(stored, json.loads(summary), info_row.get("model")),
    }
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        files = {
            MODEL: _add(archive, MODEL, [json.dumps(model, ensure_ascii=False).encode()]),
            WEIGHTS: _add(archive, WEIGHTS, stored.pieces()),
        }
        manifest = {"format": FORMAT, "cerebro_version": __version__, "files": files}
        _add(archive, MANIFEST, [json.dumps(manifest).encode()])


def _add(archive: zipfile.ZipFile, name: str, pieces: Iterable[bytes]) -> dict[str, Any]:
    digest, size = hashlib.sha256(), 0
    with archive.open(zipfile.ZipInfo(name, FIXED_TIME), "w", force_zip64=True) as file:
        for piece in pieces:
            file.write(piece)
            digest.update(piece)
            size += len(piece)
    return {"bytes": size, "sha256": digest.hexdigest()}


def _lineage(stored: StoredModel, of_group: Any) -> dict[str, Any]:
    """``of_group``: the group whose model the table has, if it has no other."""
    ((database, server),) = stored.database.rows("SELECT current_database()::text, version()")
    key = stored.group.key if stored.group is not None else of_group
    group = {} if key is None else {"group": key}
    return {"database": database, "server": server, "model_table": str(stored.table), **group}


def _metrics(stored: StoredModel, summary: dict[str, Any], model: Any) -> list[Any]:
    """The metrics of the model after each epoch, as far as the log of its run is there.

    A summary can have the number of any run.  So the rows of the run must be those of the model.
    """
    run, partitions = summary.get("run"), (summary.get("layout") or {}).get("partitions")
    if run is None or model is None or not partitions:
        return []
    query = (
        "SELECT pg_catalog.to_jsonb(m) FROM (SELECT m.model, m.epoch, m.dataset, m.metric, m.value"
        " FROM cerebro.metrics m JOIN cerebro.run r ON r.run = m.run"
        " WHERE m.run = %s AND m.model = %s AND m.owner = current_user AND r.owner = quote_ident(current_user)::regrole"
        " AND r.layout -> 'partitions' = %s::jsonb ORDER BY epoch, dataset, metric LIMIT %s) m"
    )
    return [row for (row,) in stored.database.rows(query, (run, model, json.dumps(partitions), MOST_METRICS))]


# -- read ------------------------------------------------------------------------------------------------------


def read(path: Path) -> Archive:
    """What a file has. ClientError if it is no archive of ours, or not as it was written."""
    with _refusals(path), zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
        names = sorted(entry.filename for entry in entries)
        if names != sorted(MOST):
            shown = ", ".join(repr(name[:80]) for name in names[:10])
            raise _refused(path, f"it must have {', '.join(MOST)} and nothing else, and it has {shown}")
        for entry in entries:
            if entry.compress_type != zipfile.ZIP_STORED or entry.file_size != entry.compress_size:
                raise _refused(path, f"{entry.filename} is compressed")
            if entry.file_size > min(MOST[entry.filename], path.stat().st_size):
                raise _refused(path, f"{entry.filename} has {entry.file_size:,} bytes")
        sizes = {entry.filename: entry.file_size for entry in entries}
        manifest = json.loads(archive.read(MANIFEST))
        if manifest.get("format") != FORMAT:
            raise _refused(path, f"its format is {str(manifest.get('format'))[:80]!r}, not {FORMAT!r}")
        told = manifest["files"]
        for name in (MODEL, WEIGHTS):
            if told[name]["bytes"] != sizes[name]:
                raise _refused(path, f"{name} has {sizes[name]:,} bytes, and {MANIFEST} says {told[name]['bytes']!r}")
        content = archive.read(MODEL)
        if hashlib.sha256(content).hexdigest() != told[MODEL]["sha256"]:
            raise _refused(path, f"{MODEL} has another hash than {MANIFEST} says")
        return _archive(path, json.loads(content), str(told[WEIGHTS]["sha256"]), sizes[WEIGHTS])


def _archive(path: Path, model: dict[str, Any], sha256: str, size: int) -> Archive:
    configuration = model["configuration"]
    if type(configuration) is not int or not -(2**31) <= configuration < 2**31:
        raise _refused(path, f"the number of the configuration is {str(configuration)[:80]!r}")
    if not isinstance(model["architecture"], str):
        raise _refused(path, "the architecture is no text")
    keras_models.checked(model["architecture"])
    info = decoded(model["info"], "the row of _info")
    summary = decoded(model["summary"], "the row of _summary")
    if not isinstance(info, dict) or not isinstance(summary, dict):
        raise _refused(path, "a row is no JSON object")
    layout = Layout.from_json(summary.get("layout"), "the layout")
    told = ("database", "server", "model_table", *({"group"} & set(model["lineage"])))
    lineage = {name: str(model["lineage"][name])[:1000] for name in told}
    told_packing = summary.get("packing")
    packing = None if told_packing is None else codec.read(Packing, told_packing, "the packing")
    of_run = {name: summary.get(name) for name in OF_ANOTHER_DATABASE}
    of_run["packing"] = None if packing is None else packing.tables
    return Archive(
        path=path, sha256=sha256, size=size, configuration=configuration, architecture=model["architecture"],
        info=model["info"], summary=model["summary"],
        labels={output.name + "_labels": _label_type(output.preparation) for output in layout.outputs
                if isinstance(output.preparation, OneHot)},
        layout=layout, packing=packing,
        imported={**lineage, **of_run, "sha256": sha256, "metrics": list(model["metrics"])[:MOST_METRICS]},
    )  # fmt: skip


def _label_type(preparation: OneHot) -> str:
    """Types of users are not in the other database: their labels are texts there."""
    return preparation.type.array.name if preparation.type.is_built_in else "text[]"


@contextmanager
def _refusals(path: Path) -> Iterator[None]:
    try:
        yield
    except ClientError as error:
        if str(path) in error.message or isinstance(error, (ServerError, CannotConnect)):
            raise
        raise _refused(path, error.message.removesuffix(".")) from error
    except CerebroError as error:
        raise _refused(path, error.message.removesuffix(".")) from error
    except FileNotFoundError as error:
        raise ClientError(f"There is no file {path}.") from error
    except (zipfile.BadZipFile, OSError, ValueError, KeyError, TypeError, AttributeError,
            RuntimeError) as error:  # fmt: skip
        raise _refused(path, f"it cannot be read ({type(error).__name__}: {error})") from error


def _refused(path: Path, why: str) -> ClientError:
    return ClientError(f"{path} is refused: {why}.", "Ask for the file again; cerebro export writes it.")


# -- bring in --------------------------------------------------------------------------------------------------


def bring_in(database: DatabaseClient, path: Path, model_table: str) -> Archive:
    """Makes the tables of the model, in one transaction. Who does so owns them, and needs CREATE on their schema."""
    archive = read(path)
    try:
        table = Name.parse(model_table, "model table")
        names = {ending: table.suffixed(ending) for ending in ("", "_info", "_summary", "_weights")}
    except CerebroError as error:
        raise ClientError(error.message, error.hint) from error
    with _refusals(path), database.transaction() as transaction:
        for name in names.values():
            if transaction.rows("SELECT to_regclass(%s) IS NOT NULL", (name.quoted,))[0][0]:
                raise ClientError(
                    f"The table {name} already exists, so {path} is not imported.", "Choose another name."
                )
        try:
            _make(transaction, archive, names)
        except ServerError as error:
            if not (error.sqlstate or "").startswith("22"):
                raise
            raise _refused(path, f"a value in it does not fit its column ({error.message})") from error
    return archive


def _make(transaction: Transaction, archive: Archive, names: dict[str, Name]) -> None:
    ((greenplum,),) = transaction.rows("SELECT pg_catalog.current_setting('gp_role', true) IS NOT NULL")

    def create(ending: str, columns: dict[str, str], distributed_by: str) -> str:
        name = in_statement(names[ending])
        listed = ", ".join(f"{quoted_in_statement(column)} {type}" for column, type in columns.items())
        by = f" DISTRIBUTED BY ({distributed_by})" if greenplum else ""
        transaction.rows(f"CREATE TABLE {name} ({listed}){by}", ())
        return name

    def fill(name: str, row: str, changed: dict[str, Any]) -> None:
        transaction.rows(
            f"INSERT INTO {name} SELECT (pg_catalog.jsonb_populate_record(NULL::{name}, %s::jsonb || %s::jsonb)).*",
            (row, json.dumps(changed)),
        )

    models = create("", MODEL_COLUMNS, "__dist_key__")
    chunks = create("_weights", WEIGHTS_COLUMNS, "__dist_key__")
    transaction.rows(f"ALTER TABLE {models} ALTER COLUMN weights SET STORAGE EXTERNAL", ())
    transaction.rows(f"ALTER TABLE {chunks} ALTER COLUMN payload SET STORAGE EXTERNAL", ())
    start = 0
    for piece in archive.pieces():
        values = (archive.configuration, start, psycopg2.Binary(piece))
        transaction.rows(f"INSERT INTO {chunks} VALUES (%s, %s, %s, 0)", values)
        start += len(piece)
    key = (archive.configuration, archive.architecture)
    if start > (LARGEST_VALUE if json.loads(archive.summary).get("memory_mb") is None else LARGE_PIECES):
        transaction.rows(f"INSERT INTO {models} VALUES (%s, NULL, %s, 0)", key)
    else:
        transaction.rows(
            f"INSERT INTO {models} SELECT %s, COALESCE(string_agg(payload, ''::bytea ORDER BY start), ''), %s, 0"
            f" FROM {chunks}",
            key,
        )
        transaction.rows(f"DROP TABLE {chunks}", ())
    info = create("_info", {**INFO_COLUMNS, **LATER_COLUMNS}, "configuration")
    fill(info, archive.info, {"configuration": archive.configuration})
    transaction.rows(f"ALTER TABLE {info} ADD PRIMARY KEY (configuration)", ())
    of_group = SUMMARY_OF_ONE_GROUP if "group" in archive.imported else {}
    columns = {**SUMMARY_COLUMNS, **of_group, **archive.labels, "imported": "jsonb"}
    summary = create("_summary", columns, "source_table")
    own = {"model_table": str(names[""]), "group_key": archive.imported.get("group"), "imported": archive.imported}
    fill(summary, archive.summary, {**dict.fromkeys(OF_ANOTHER_DATABASE), **own, "packing": _without_tables(archive)})


def _without_tables(archive: Archive) -> dict[str, Any] | None:
    """How the rows were packed, but for the names of tables."""
    packing = archive.packing
    if packing is None:
        return None
    kept = {name: value for name, value in packing.arguments.items() if name not in packing.tables}
    return codec.encode_fields(replace(packing, arguments=kept))
