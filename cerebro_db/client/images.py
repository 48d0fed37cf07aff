"""Tables of images: files are decoded here, made of one size, and sent as columns of pixels."""

from __future__ import annotations

import io
import os
import struct
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import psycopg2

from cerebro_db.core.errors import CerebroError
from cerebro_db.core.names import Name, is_name
from cerebro_db.core.packing import images as pixel_columns
from cerebro_db.core.sql import quoted

from . import copying
from .database import DatabaseClient, Transaction
from .errors import ClientError, MissingPackage

if TYPE_CHECKING:
    from PIL.Image import Image

MODES = {1: "L", 3: "RGB", 4: "RGBA"}  # channels -> gray, colours, colours and transparency
LARGEST_SIDE = 65_535  # pixels
ENDINGS = {".bmp": "BMP", ".gif": "GIF", ".jpeg": "JPEG", ".jpg": "JPEG", ".png": "PNG", ".tif": "TIFF",
           ".tiff": "TIFF", ".webp": "WEBP"}  # fmt: skip
FORMATS = sorted(set(ENDINGS.values()))  # no others: Pillow's reader of EPS starts another program
MOST_PIXELS = 50_000_000  # of a file; they take up to 4 bytes each, twice
IN_MEMORY = 32 << 20  # bytes; more of a table is kept in a file meanwhile
# The source may be another user's. An index of theirs, or a domain, would run that user's code whenever the new table,
# which is the caller's, is read or written. So the new table has only the primary key, and the types below the domains.
KEY = """
SELECT a.attname::text
  FROM pg_catalog.pg_index i
  JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid
       AND a.attnum = ANY ((i.indkey::pg_catalog.int2[])[0:i.indnkeyatts - 1])
 WHERE i.indrelid = pg_catalog.to_regclass(%s) AND i.indisprimary
 ORDER BY pg_catalog.array_position(i.indkey::pg_catalog.int2[], a.attnum)"""
DOMAINS = """
SELECT a.attname::text, CASE u.base WHEN 'bpchar'::pg_catalog.regtype THEN 'bpchar'
       ELSE pg_catalog.format_type(u.base, NULL) END
  FROM ROWS FROM (pg_catalog.unnest(%s::text[]), pg_catalog.unnest(%s::oid[])) AS u (name, base)
  JOIN pg_catalog.pg_attribute a ON a.attname = u.name
 WHERE a.attrelid = pg_catalog.to_regclass(%s) AND a.attnum > 0 AND a.atttypid <> u.base"""


def pixels(image: Any, shape: Sequence[int], *, crop: bool = False) -> bytes:
    """The pixels of an image, row by row, as a column of a table has them.

    ``image``: the path or the content of a file, or an image of Pillow. ``shape``: height, width and channels (1, 3 or
    4; without channels 1). ``crop``: cut the image to the proportions of the shape, instead of stretching it.
    """
    height, width, channels = _size(shape)
    pillow, operations = _pillow()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pillow.DecompressionBombWarning)
            turned = _in_mode(pillow, _upright(pillow, operations, image), MODES[channels])
            if crop:
                made = operations.fit(turned, (width, height), pillow.Resampling.BILINEAR)
            else:
                made = turned.resize((width, height), pillow.Resampling.BILINEAR)
            return bytes(made.tobytes())
    except (
        OSError, ValueError, SyntaxError, struct.error, pillow.DecompressionBombWarning, pillow.DecompressionBombError,
    ) as error:  # fmt: skip
        name = os.fspath(image) if isinstance(image, (str, os.PathLike)) else "an image"
        unknown = isinstance(error, pillow.UnidentifiedImageError)
        why = f"it is no file of {', '.join(FORMATS[:-1])} or {FORMATS[-1]}" if unknown else error
        raise ClientError(f"{name} cannot be decoded: {why}") from error


def add(
    database: DatabaseClient, table: str, source: str | Path, shape: Sequence[int], column: str | None, crop: bool
) -> int:
    """Makes the table. The comment of ``Cerebro.add_images`` describes the arguments."""
    _size(shape)
    _pillow()
    try:
        name = Name.parse(table, "table")
    except CerebroError as error:
        raise ClientError(error.message, error.hint) from error
    if column is None:
        return _of_folder(database, name, Path(source), shape, crop)
    return _of_column(database, name, str(source), column, shape, crop)


def _of_folder(database: DatabaseClient, name: Name, folder: Path, shape: Sequence[int], crop: bool) -> int:
    files = sorted(one for one in folder.rglob("*") if one.suffix.lower() in ENDINGS and one.is_file())
    if not files:
        raise ClientError(f"{folder} has no images.", f"Their names end with {', '.join(sorted(ENDINGS))}.")
    within = [one.relative_to(folder) for one in files]
    labelled = any(len(one.parts) > 1 for one in within)

    def lines() -> Iterator[bytes]:
        for number, (path, part) in enumerate(zip(files, within), 1):
            label = [copying.escaped(part.parts[0]) if len(part.parts) > 1 else r"\N"] if labelled else []
            fields = [str(number), copying.escaped(part.as_posix()), *label]
            yield _line("\t".join(fields).encode("utf-8", "replace"), pixels(path, shape, crop=crop))

    with database.transaction() as transaction:
        listed = "id bigint PRIMARY KEY, file text NOT NULL, " + "label text, " * labelled + "image bytea NOT NULL"
        transaction.rows(f"CREATE TABLE {name.quoted} ({listed})")
        _keep_shape(transaction, name, "image", shape)
        copying.into(transaction, f"{name.quoted} FROM STDIN WITH (ENCODING 'UTF8')", lines())
    return len(files)


def _of_column(database: DatabaseClient, name: Name, source: str, column: str, shape: Sequence[int], crop: bool) -> int:
    with database.transaction() as transaction, tempfile.SpooledTemporaryFile(IN_MEMORY) as kept:
        transaction.rows("SET LOCAL bytea_output = 'hex'")
        key = []
        if is_name(source):
            table = Name.parse(source)
            query = f"TABLE {table.quoted}"
            transaction.rows(f"CREATE TABLE {name.quoted} (LIKE {table.quoted})")
            key = [quoted(column) for (column,) in transaction.rows(KEY, (table.quoted,))]
        else:
            query = source
            transaction.rows(f"CREATE TABLE {name.quoted} AS SELECT * FROM ({query}) s WITH NO DATA")
        transaction.rows(f"SELECT * FROM {name.quoted} LIMIT 0")
        types = {one.name: one.type_code for one in transaction.cursor.description}
        for domain, base in transaction.rows(DOMAINS, (list(types), list(types.values()), name.quoted)):
            transaction.rows(f"ALTER TABLE {name.quoted} ALTER {quoted(domain)} TYPE {base}")
        if key:
            transaction.rows(f"ALTER TABLE {name.quoted} ADD PRIMARY KEY ({', '.join(key)})")
        if column not in types:
            raise ClientError(f"The source has no column {column}.", f"It has {', '.join(types)}.")
        if types[column] != psycopg2.BINARY:  # of a domain this is the type below it
            raise ClientError(f"The column {column} does not have the type bytea.", "Files of images have this type.")
        _keep_shape(transaction, name, column, shape)
        others = [name for name in types if name != column]
        listed = ", ".join(map(quoted, [*others, column]))
        copying.run(transaction, f"COPY (SELECT {listed} FROM ({query}) s) TO STDOUT", kept)
        kept.seek(0)
        lines = (_decoded(line, number, column, shape, crop) for number, line in enumerate(kept, 1))
        return copying.into(transaction, f"{name.quoted} ({listed}) FROM STDIN", lines)


def _keep_shape(transaction: Transaction, name: Name, column: str, shape: Sequence[int]) -> None:
    """Let the verbs that pack the table know the shape."""
    transaction.rows(f"COMMENT ON COLUMN {name.quoted}.{quoted(column)} IS '{pixel_columns.comment(_size(shape))}'")


def _decoded(line: bytes, number: int, column: str, shape: Sequence[int], crop: bool) -> bytes:
    """A line of COPY, whose last field is the file of an image, with its pixels instead."""
    others, tab, field = line.rstrip(b"\n").rpartition(b"\t")
    if field == rb"\N":
        return line
    try:
        found = pixels(bytes.fromhex(field[3:].decode()), shape, crop=crop)
    except ClientError as error:
        raise ClientError(f"column {column} of row {number}: {error.message}", error.hint) from error
    return _line(others, found) if tab else _line(b"", found)[1:]


def _line(fields: bytes, found: bytes) -> bytes:
    return fields + b"\t" + rb"\\x" + found.hex().encode() + b"\n"


# -- images ------------------------------------------------------------------------------------------------------


def _size(shape: Sequence[int]) -> tuple[int, int, int]:
    """Height, width and channels."""
    sizes = tuple(shape)
    if len(sizes) == 2:
        sizes = (*sizes, 1)
    whole = len(sizes) == 3 and all(type(one) is int for one in sizes)
    if not whole or not all(0 < one <= LARGEST_SIDE for one in sizes[:2]) or sizes[2] not in MODES:
        raise ClientError(
            f"shape cannot be {shape!r}.", "For instance (64, 64, 3): height, width, and 1, 3 or 4 channels."
        )
    return sizes[0], sizes[1], sizes[2]


def _pillow() -> tuple[ModuleType, ModuleType]:
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise MissingPackage("Pillow, which decodes images, is not installed.", "pillow") from error
    return Image, ImageOps


def _upright(pillow: ModuleType, operations: ModuleType, image: Any) -> Image:
    """The image as the camera was held. Its first frame, if it has several."""
    if isinstance(image, pillow.Image):
        return operations.exif_transpose(_of_bounded_size(image))
    file = io.BytesIO(image) if isinstance(image, (bytes, bytearray, memoryview)) else os.fspath(image)
    opened: Image = _of_bounded_size(pillow.open(file, formats=FORMATS))  # this reads no pixels
    operations.exif_transpose(opened, in_place=True)
    return opened


def _of_bounded_size(image: Image) -> Image:
    if image.width * image.height > MOST_PIXELS:
        raise ValueError(f"it has {image.width} x {image.height} pixels, and at most {MOST_PIXELS:,} are read")
    return image


def _in_mode(pillow: ModuleType, image: Image, mode: str) -> Image:
    if image.mode.startswith("I"):  # gray with 16 bits, which Pillow would cut off at 255
        import numpy as np

        image = pillow.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode == "F":
        raise ValueError("its pixels are numbers with fractions")
    return image if image.mode == mode else image.convert(mode)
