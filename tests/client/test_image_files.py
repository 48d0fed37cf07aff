"""Files of images become tables of pixels, which are packed and predicted like any other."""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psycopg2
import pytest
from PIL import EpsImagePlugin, Image
from psycopg2.extensions import make_dsn
from small_run import schema
from typer.testing import CliRunner

from cerebro_db.client import ClientError, MissingPackage, cli, images
from cerebro_db.client.cerebro import Cerebro
from cerebro_db.client.errors import ServerError
from cerebro_db.core.packing import images as core_images
from tests.sql.pages import blocks

SCHEMA = "images_tests"
FORMATS = ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF")
BROKEN = b"\x89PNG\r\n\x1a\n" + bytes(100)


def drawn(kind: str = "PNG", colour: tuple[int, ...] = (200, 10, 60), size: tuple[int, int] = (12, 8)) -> bytes:
    """The file of an image whose left half is of a colour; the rest is black.  ``size``: width and height."""
    found = np.zeros((size[1], size[0], 3), np.uint8)
    found[:, : size[0] // 2] = colour
    file = io.BytesIO()
    Image.fromarray(found).save(file, kind)
    return file.getvalue()


def as_array(found: bytes, *shape: int) -> np.ndarray:
    return np.frombuffer(found, np.uint8).reshape(shape)


# -- pixels --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", FORMATS)
def test_the_pixels_of_a_file(kind: str, tmp_path: Path) -> None:
    content = drawn(kind)
    found = as_array(images.pixels(content, (8, 12, 3)), 8, 12, 3).astype(int)
    assert abs(found[4, 2] - [200, 10, 60]).max() < 30 and found[4, 10].max() < 30
    path = tmp_path / "image"
    path.write_bytes(content)
    assert images.pixels(path, (8, 12, 3)) == images.pixels(str(path), (8, 12, 3)) == found.astype("u1").tobytes()
    assert core_images.format_of(content[: core_images.MOST_BEGINNING]) == {"WEBP": "WebP"}.get(kind, kind)


def test_sizes_and_channels() -> None:
    content = drawn()
    assert len(images.pixels(content, (4, 6, 3))) == 72
    assert images.pixels(content, (4, 6)) == images.pixels(content, [4, 6, 1])
    assert as_array(images.pixels(content, (8, 12, 4)), 8, 12, 4)[0, 0].tolist() == [200, 10, 60, 255]
    gray = as_array(images.pixels(content, (8, 12)), 8, 12)
    assert gray[0, 0] == round(0.299 * 200 + 0.587 * 10 + 0.114 * 60) and gray[0, -1] == 0
    stretched = as_array(images.pixels(content, (8, 8, 3)), 8, 8, 3)
    cut = as_array(images.pixels(content, (8, 8, 3), crop=True), 8, 8, 3)
    assert stretched.shape == cut.shape and not np.array_equal(stretched, cut)
    assert np.array_equal(cut, as_array(images.pixels(content, (8, 12, 3)), 8, 12, 3)[:, 2:10])


def test_gray_of_16_bits_and_orientation() -> None:
    file = io.BytesIO()
    Image.fromarray(np.full((4, 4), 0x8000, np.uint16)).save(file, "PNG")
    assert set(images.pixels(file.getvalue(), (4, 4))) == {0x80}
    turned = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 3  # the camera was upside down
    Image.open(io.BytesIO(drawn())).save(turned, "PNG", exif=exif)
    found = as_array(images.pixels(turned.getvalue(), (8, 12, 3)), 8, 12, 3)
    assert found[0, -1].tolist() == [200, 10, 60] and not found[0, 0].any()


@pytest.mark.parametrize("shape", [(8,), (8, 8, 2), (0, 8), (8, 8, 3, 1), ("8", 8), (2.5, 8), (True, 8), (70_000, 8)])
def test_wrong_shapes(shape: Any) -> None:
    with pytest.raises(ClientError, match="shape cannot be"):
        images.pixels(drawn(), shape)


@pytest.mark.parametrize("content", [b"", b"no image", BROKEN, drawn()[:60], drawn("JPEG")[:80]], ids=len)
def test_files_that_are_no_images(content: bytes, tmp_path: Path) -> None:
    with pytest.raises(ClientError, match="an image cannot be decoded"):
        images.pixels(content, (8, 8))
    (tmp_path / "x.png").write_bytes(content)
    with pytest.raises(ClientError, match="x.png cannot be decoded"):
        images.pixels(tmp_path / "x.png", (8, 8))


def test_an_orientation_beside_a_broken_entry(tmp_path: Path) -> None:
    """Pillow writes the other entries anew when it has turned the image, and raises an error of another class there."""
    entries = struct.pack(">HHII", 0x100, 1, 1, 8) + struct.pack(">HHIHH", 0x112, 3, 1, 6, 0)
    exif = b"Exif\0\0MM\0*" + struct.pack(">IH", 8, 2) + entries + bytes(4)
    Image.new("RGB", (12, 8)).save(tmp_path / "x.jpg", exif=exif)
    with pytest.raises(ClientError, match="x.jpg cannot be decoded"):
        images.pixels(tmp_path / "x.jpg", (8, 8))


def test_a_bomb(monkeypatch: pytest.MonkeyPatch) -> None:
    """An image that is far larger than its file is refused, before its pixels are in memory."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 50)
    with pytest.raises(ClientError, match="decompression bomb"):
        images.pixels(drawn(), (8, 8))


def test_a_small_file_with_many_pixels() -> None:
    """Pillow itself would only warn of some, and read others: this one takes seconds and hundreds of MB."""
    file = io.BytesIO()
    Image.new("L", (9000, 9000), 3).save(file, "PNG")
    for content in (file.getvalue(), file.getvalue()[:100]):  # the beginning tells
        with pytest.raises(ClientError, match="it has 9000 x 9000 pixels, and at most 50,000,000 are read"):
            images.pixels(content, (8, 8))
    with pytest.raises(ClientError, match="it has 9000 x 9000 pixels"):
        images.pixels(Image.open(file), (8, 8))


@pytest.mark.parametrize("kind", ["EPS", "PPM", "TGA", "ICO", "XBM", "PCX", "SGI", "ICNS", "DDS", "MSP"])
def test_files_of_other_kinds_reach_no_reader(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever their names say. Pillow's reader of EPS starts Ghostscript; here, a program that leaves a trace."""
    trace, program = tmp_path / "trace", tmp_path / "gs"
    program.write_text(f"#!/bin/sh\ntouch {trace}\n")
    program.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)
    with Image.open(io.BytesIO(drawn(size=(32, 32)))) as image:
        image.convert("1" if kind in ("XBM", "MSP") else "RGB").save(tmp_path / "x.png", kind)
    for given in (tmp_path / "x.png", (tmp_path / "x.png").read_bytes()):
        with pytest.raises(ClientError, match="it is no file of BMP, GIF, JPEG, PNG, TIFF or WEBP"):
            images.pixels(given, (8, 8))
    assert not trace.exists()


@pytest.mark.parametrize("kind", ["GIF", "PNG", "TIFF", "WEBP", "MPO"])
def test_the_first_of_several_frames(kind: str) -> None:
    """MPO is what some cameras write into files of JPEG."""
    frames = [Image.new("RGB", (12, 8), colour) for colour in ("red", "blue", "lime")]
    file = io.BytesIO()
    frames[0].save(file, kind, save_all=True, append_images=frames[1:])
    found = as_array(images.pixels(file.getvalue(), (8, 12, 3)), 8, 12, 3).astype(int)
    assert abs(found - [255, 0, 0]).max() < 5


def test_a_given_image_stays_as_it_is() -> None:
    image = Image.open(io.BytesIO(drawn()))
    image.getexif()[0x0112] = 3
    assert images.pixels(image, (8, 12, 3)) != image.tobytes() and image.getexif()[0x0112] == 3


def test_without_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    content = drawn()
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingPackage, match="pip install pillow"):
        images.pixels(content, (8, 8))


@pytest.mark.parametrize("beginning", [b"", b"BM", b"\x00" * 12, b"RIFF\0\0\0\0WAVE", b"GIF", b"\xff\xd8"])
def test_bytes_that_are_no_file(beginning: bytes) -> None:
    assert core_images.format_of(beginning) is None


# -- tables --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cerebro(server: str) -> Iterator[Cerebro]:
    with schema(server, SCHEMA) as connection, Cerebro(connection) as found:
        yield found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Red and blue images in folders, with names that COPY has to escape, and files that are no images."""
    place = tmp_path_factory.mktemp("images") / "flowers"
    for number in range(40):
        label = "red" if number % 2 else "blue\t\\N"
        colour = (120 + 3 * number, number, 5) if number % 2 else (5, number, 120 + 3 * number)
        (place / label / "more").mkdir(parents=True, exist_ok=True)
        (place / label / "more" / f"{number:02}.{'PNG' if number % 3 else 'jpg'}").write_bytes(
            drawn("PNG" if number % 3 else "JPEG", colour)
        )
    (place / "red" / "notes.txt").write_text("no image")
    return place


def test_a_folder_becomes_a_model(cerebro: Cerebro, folder: Path) -> None:
    assert cerebro.add_images("colours", folder, (8, 8, 3)) == 40
    rows = cerebro.rows("SELECT id, file, label, image FROM colours ORDER BY id")
    assert [row[0] for row in rows] == list(range(1, 41))
    assert {row[2] for row in rows} == {"red", "blue\t\\N"}
    for _, file, label, image in rows:
        assert file.startswith(f"{label}/more/")
        assert bytes(image) == images.pixels(folder / file, (8, 8, 3))
    cerebro.fit("colours", "colour_models", [{"architecture": "cnn", "blocks": 1, "filters": 4, "learning_rate": 0.01}],
                target="label", inputs="image", prepare='{"image": {"shape": [8, 8, 3]}}', epochs=8)  # fmt: skip
    found = cerebro.predict("colour_models", "SELECT * FROM colours", "id")
    labels = {str(row[0]): row[2] for row in rows}
    assert sum(one.label == labels[one.key_value] for one in found) > 36


def test_names_of_files_whatever_the_encoding_of_the_client_is(cerebro: Cerebro, server: str, tmp_path: Path) -> None:
    (tmp_path / "grün").mkdir()
    (tmp_path / "grün" / "été.png").write_bytes(drawn())
    with contextlib.closing(psycopg2.connect(server, client_encoding="LATIN1")) as connection:
        connection.autocommit = True
        Cerebro(connection).add_images(f"{SCHEMA}.latin", tmp_path, (8, 8, 3))
    assert cerebro.rows("SELECT file, label FROM latin") == [("grün/été.png", "grün")]


def test_a_body_that_people_use(cerebro: Cerebro, folder: Path) -> None:
    """The example of docs/experts.md: MobileNetV3, which reads pixels from 0 to 255, with random weights.

    Its features are computed once.  That the training is the same: test_a_frozen_body_trains_as_in_keras.
    """
    import keras

    keras.utils.set_random_seed(1)
    (code,) = blocks("docs/experts.md", "python")
    for printed, taken in (
        ("include_top=False", "alpha=0.35, include_top=False, weights=None"),
        ("64", "32"),
        ("Dense(5,", "Dense(2,"),
        ('"flowers/"', repr(str(folder))),
        ("    epochs=10", "    epochs=1, segments=1, options={'seed': 1, 'reuse': 'all'}"),
    ):
        assert printed in code
        code = code.replace(printed, taken)
    names: dict[str, Any] = {"cerebro": cerebro, "keras": keras}
    exec(code, names)
    run, body, model = names["run"], names["body"], names["model"]
    assert all(0 < one.training_loss < 1 for one in run.learning_curve())
    ((built,),) = cerebro.rows("SELECT DISTINCT (detail ->> 'feature_bytes')::int FROM cerebro.event"
                               " WHERE run = %s AND event = 'built'", (run.run,))  # fmt: skip
    assert built == 4 * body.output_shape[-1]
    assert model.input_shape == (None, 32, 32, 3)
    one = cerebro.predict("flower_models", "SELECT * FROM flowers WHERE id = 1", "id")[0]
    pixels = np.frombuffer(cerebro.rows("SELECT image FROM flowers WHERE id = 1")[0][0], np.uint8)
    best = cerebro.model("flower_models")
    said = best.predict(pixels.reshape(1, 32, 32, 3).astype("f4"), verbose=0)
    assert one.probability == pytest.approx(float(said.max()), abs=1e-5)


def test_files_in_a_column(cerebro: Cerebro) -> None:
    cerebro.rows("CREATE TABLE photos (photo bytea, id int PRIMARY KEY, note text, at timestamptz)")
    notes = ["plain", "tab\tand \\ and\nline", None, "\\N"]
    for number, note in enumerate(notes):
        photo = None if number == 2 else drawn("JPEG", (number * 50, 200, 9))
        cerebro.rows("INSERT INTO photos VALUES (%s, %s, %s, now())", (photo, number, note))
    assert cerebro.add_images("small", "photos", (4, 4), column="photo") == 4
    assert cerebro.rows("SELECT id, note, at FROM small") == cerebro.rows("SELECT id, note, at FROM photos")
    for made, file in cerebro.rows("SELECT s.photo, p.photo FROM small s JOIN photos p USING (id) ORDER BY id"):
        assert made is None if file is None else bytes(made) == images.pixels(bytes(file), (4, 4))
    assert cerebro.rows("SELECT indisprimary FROM pg_index WHERE indrelid = 'small'::regclass") == [(True,)]
    assert cerebro.add_images("alone", "SELECT photo FROM photos WHERE id < 2", (4, 4, 3), column="photo") == 2
    assert cerebro.rows("SELECT DISTINCT length(photo) FROM alone") == [(48,)]
    cerebro.rows("CREATE DOMAIN file AS bytea")
    files = "SELECT photo::file FROM photos WHERE id < 2"
    assert cerebro.add_images("of_domain", files, (4, 4), column="photo") == 2


def test_a_table_of_images_has_no_code_of_its_source(cerebro: Cerebro) -> None:
    """An index on an expression, or the domain of a column, would run in the new table, too."""
    cerebro.rows(
        "CREATE FUNCTION odd(anyelement) RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT true';"
        " CREATE DOMAIN checked AS varchar(9) CHECK (odd(VALUE::text));"
        " CREATE TABLE sprung (note checked, second int, first int, code char(3), photo bytea,"
        " PRIMARY KEY (first, second));"
        " CREATE INDEX ON sprung (second) WHERE odd(first); CREATE UNIQUE INDEX ON sprung ((odd(second)));"
        " INSERT INTO sprung VALUES ('ab', 1, 2, 'c')"
    )
    for made, source in (("clean", "sprung"), ("of_query", "SELECT * FROM sprung")):
        assert cerebro.add_images(made, source, (4, 4), column="photo") == 1
        assert cerebro.rows(f"SELECT note, second, first, code FROM {made}") == [("ab", 1, 2, "c  ")]
        depends = (
            "SELECT count(*) FROM pg_depend WHERE refobjid IN ('checked'::regtype, 'odd'::regproc)"
            f" AND objid IN (SELECT '{made}'::regclass UNION"
            f" SELECT indexrelid FROM pg_index WHERE indrelid = '{made}'::regclass)"
        )
        assert cerebro.rows(depends) == [(0,)]
    keys = "SELECT pg_get_indexdef(indexrelid) FROM pg_index WHERE indrelid = 'clean'::regclass"
    ((key,),) = cerebro.rows(keys)
    assert key.endswith("(first, second)")


def test_what_is_refused_leaves_no_table(cerebro: Cerebro, folder: Path, tmp_path: Path) -> None:
    cerebro.rows("CREATE TABLE broken AS SELECT 1 AS id, %s::bytea AS photo, '\\x00'::text AS name", (BROKEN,))
    (tmp_path / "x.png").write_bytes(BROKEN)
    (tmp_path / "empty").mkdir()
    for source, column, says in (
        ("broken", "photo", "column photo of row 1: an image cannot be decoded"),
        ("broken", "picture", "has no column picture"),
        ("broken", "name", "column name does not have the type bytea"),
        ("SELECT * FROM broken WHERE false", "name", "column name does not have the type bytea"),
        (tmp_path, None, "x.png cannot be decoded"),
        (tmp_path / "empty", None, "has no images"),
    ):
        with pytest.raises(ClientError, match=says):
            cerebro.add_images("refused", source, (4, 4), column=column)
        assert cerebro.rows("SELECT to_regclass('refused')") == [(None,)]
    with pytest.raises(ServerError, match="already exists"):
        cerebro.add_images("broken", folder, (4, 4))
    with pytest.raises(ClientError, match="shape cannot be"):
        cerebro.add_images("refused", folder, (4, 4, 9))
    with pytest.raises(ClientError):
        cerebro.add_images("a.b.c", folder, (4, 4))


def test_the_command(cerebro: Cerebro, folder: Path, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dsn = make_dsn(server, options=f"-c search_path={SCHEMA},public,cerebro")

    def command(*words: str) -> Any:
        return CliRunner().invoke(cli.app, ["images", *words], env={"CEREBRO_DSN": dsn, "COLUMNS": "120"})

    monkeypatch.chdir(folder.parent)
    cerebro.rows(
        "CREATE TABLE uploads AS SELECT n AS id, 'rose' AS species, %s::bytea AS photo FROM generate_series(1, 40) n",
        (drawn(),),
    )
    for line in blocks("docs/prepare.md", "sh")[0].replace(" flowers ", " pictures ").splitlines():
        told = command(*shlex.split(line)[2:])
        assert told.exit_code == 0 and "has 40 images of 64x64x3 pixels." in told.output, told.output
    told = command(str(folder), "by_command", "--shape", "4x4x3", "--crop")
    assert told.exit_code == 0 and "by_command has 40 images of 4x4x3 pixels." in told.output, told.output
    assert cerebro.rows("SELECT DISTINCT length(image) FROM by_command") == [(48,)]
    told = command("SELECT * FROM by_command", "again", "--shape", "four", "--column", "image")
    assert told.exit_code == 2 and "64x64x3" in told.output
    told = command("broken", "again", "--shape", "4x4", "--column", "photo", "--json")
    assert told.exit_code == 1 and "cannot be decoded" in told.output
