"""Models come into a database from files: archives of another database, and files of Keras and safetensors.

Every hostile file is refused with an error that names it, before a byte of it reaches Keras or the database.
"""

from __future__ import annotations

import json
import os
import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from psycopg2.extensions import make_dsn
from small_run import schema
from typer.testing import CliRunner

from cerebro_db import client
from cerebro_db.client import cli
from cerebro_db.client.cerebro import Cerebro
from cerebro_db.client.models import archives, model_files
from cerebro_db.core.arguments import RECORDED
from cerebro_db.core.models import model_columns
from tests.core.test_malicious_corpus import ARCHITECTURES, CANARY
from tests.documents import rewritten, with_model

SCHEMA = "import_tests"
ROWS = """
CREATE TYPE mood AS ENUM ('sad', 'fair', 'glad');
CREATE TABLE people AS
SELECT i AS id, 20 + i * 13 % 45 AS age, (ARRAY['Rome', 'Milan', NULL])[1 + i % 3] AS city, i * 0.1 AS x,
       (ARRAY['sad', 'fair', 'glad'])[1 + i % 3]::mood AS mood, (ARRAY['sad', 'glad'])[1 + i % 2]::mood AS past
  FROM generate_series(1, 400) i;
"""


@pytest.fixture(scope="module")
def cerebro(server: str) -> Iterator[Cerebro]:
    with schema(server, SCHEMA) as connection:
        with connection.cursor() as cursor:
            cursor.execute(ROWS)
        with Cerebro(connection) as found:
            found.fit("people", "moods", [{"architecture": "mlp", "units": 8}], target="mood", epochs=2)
            yield found


@pytest.fixture(scope="module")
def archive(cerebro: Cerebro, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = cerebro.export("moods", str(tmp_path_factory.mktemp("files") / "moods.cerebro"))
    assert made.difference < 1e-5 and made.beside == ()
    return made.path


# -- archives --------------------------------------------------------------------------------------------------


def test_another_database_predicts_the_same_bits(
    cerebro: Cerebro, archive: Path, fresh_database: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said: Any = CliRunner().invoke(cli.app, ["import", str(archive), "public.brought", "--dsn", fresh_database])
    assert said.exit_code == 0 and "configuration 1" in said.output, said.output
    query = "SELECT i AS id, 20 + i % 45 AS age, 'Rome'::text AS city, i * 0.3 AS x, 'sad'::text AS past" \
            " FROM generate_series(1, 50) i"  # fmt: skip
    values = "encode(sha256(weights), 'hex'), architecture::text, octet_length(weights)"
    with Cerebro(fresh_database) as there:
        assert there.rows(f"SELECT {values} FROM brought") == cerebro.rows(f"SELECT {values} FROM moods")
        here = sorted(cerebro.predict("moods", query.replace("'sad'::text", "'sad'::mood"), "id", top=3))
        assert sorted(there.predict("brought", query, "id", top=3)) == here and len(here) == 150
        told = there.evaluate("brought", f"SELECT *, 'fair'::text AS mood FROM ({query}) q")
        assert told == cerebro.evaluate("moods", f"SELECT *, 'fair'::mood AS mood FROM ({query}) q")
        ((info,),) = there.rows("SELECT to_jsonb(i) FROM brought_info i")
        assert info == cerebro.rows("SELECT to_jsonb(i) FROM moods_info i")[0][0]
        ((summary,),) = there.rows("SELECT to_jsonb(s) FROM brought_summary s")
        ((before,),) = cerebro.rows("SELECT to_jsonb(s) FROM moods_summary s")
        assert summary["layout"] == before["layout"] and summary["mood_labels"] == ["sad", "fair", "glad"]
        assert summary["run"] is summary["packed_table"] is None and summary["model_table"] == "public.brought"
        imported = summary["imported"]
        assert imported["run"] == before["run"] and imported["model_table"] == "moods"
        assert summary["source_table"] is None and imported["source_table"] == before["source_table"] is not None
        assert {row["metric"] for row in imported["metrics"]} >= {"loss", "accuracy"}
        assert {one.model_table for one in there.models()} == {"public.brought"}
        # The same archive again, and on: a model that was brought in is as good as one that was trained here.
        again = there.export("brought", str(tmp_path / "again.cerebro"), sample=query)
        assert again.difference < 1e-5 and archives.read(again.path).sha256 == archives.read(archive).sha256
        with pytest.raises(client.ClientError, match="brought_info already exists|brought already exists"):
            there.import_model(str(archive), "public.brought")
        there.drop_model("brought")
        said = CliRunner().invoke(
            cli.app, ["import", str(archive), "public.brought", "--dsn", fresh_database, "--json"]
        )
        assert json.loads(said.stdout)["name"] == "public.brought"


def test_the_columns_are_those_of_a_fit(cerebro: Cerebro) -> None:
    def columns(table: str) -> dict[str, str]:
        return dict(cerebro.rows("SELECT attname::text, format_type(atttypid, NULL) FROM pg_attribute"
                                 " WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped",
                                 (table,)))  # fmt: skip

    zoned = {"timestamptz": "timestamp with time zone"}
    summary = {name: zoned.get(type, type) for name, type in model_columns.SUMMARY_COLUMNS.items()}
    assert columns("moods") == model_columns.MODEL_COLUMNS
    assert columns("moods_summary") == {**summary, "mood_labels": f"{SCHEMA}.mood[]"} or columns("moods_summary") == {
        **summary,
        "mood_labels": "mood[]",
    }


def test_weights_in_chunks(cerebro: Cerebro, archive: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As weights above 500 MB are: in a table of their own, there and back."""
    monkeypatch.setattr(archives, "LARGEST_VALUE", 1000)
    monkeypatch.setattr(archives, "PIECE", 777)
    cerebro.import_model(str(archive), "chunked")
    assert cerebro.rows("SELECT weights IS NULL FROM chunked") == [(True,)]
    made = cerebro.export("chunked", str(tmp_path / "x.cerebro"))
    assert archives.read(made.path).sha256 == archives.read(archive).sha256
    one, other = (cerebro.predict(name, "SELECT * FROM people", "id") for name in ("moods", "chunked"))
    assert sorted(one) == sorted(other)


def test_the_rights_that_an_import_needs(cerebro: Cerebro, archive: Path, server: str) -> None:
    """CREATE on the schema, and nothing else. The tables belong to who imports."""
    cerebro.rows("DROP ROLE IF EXISTS importer; CREATE ROLE importer LOGIN; CREATE SCHEMA IF NOT EXISTS import_rights;"
                 " GRANT USAGE ON SCHEMA import_rights TO importer")  # fmt: skip
    try:
        with Cerebro(make_dsn(server, options="-crole=importer")) as low:
            with pytest.raises(client.ServerError, match="permission denied for schema import_rights"):
                low.import_model(str(archive), "import_rights.moods")
            cerebro.rows("GRANT CREATE ON SCHEMA import_rights TO importer")
            low.import_model(str(archive), "import_rights.moods")
        owner = "SELECT pg_get_userbyid(relowner)::text FROM pg_class WHERE oid = 'import_rights.moods'::regclass"
        assert cerebro.rows(owner) == [("importer",)]
    finally:
        cerebro.rows("DROP SCHEMA import_rights CASCADE; DROP ROLE importer")


def test_names_that_need_quotes(cerebro: Cerebro, archive: Path, tmp_path: Path) -> None:
    cerebro.import_model(str(archive), '"My %s Models"')
    made = cerebro.export('"My %s Models"', str(tmp_path / "x.safetensors"))
    assert made.difference < 1e-5
    assert len(cerebro.predict('"My %s Models"', "SELECT * FROM people WHERE id < 4", "id", 1)) == 3
    for ending in ("", "_info", "_summary"):
        cerebro.rows(f'DROP TABLE "My %s Models{ending}"')


def changed_row(row: str, **values: Any) -> Callable[[dict[str, bytes]], None]:
    def change(files: dict[str, bytes]) -> None:
        before = json.loads(json.loads(files["model.json"])[row])
        with_model(files, **{row: json.dumps({**before, **values})})

    return change


def damaged_layout(files: dict[str, bytes]) -> None:
    summary = json.loads(json.loads(files["model.json"])["summary"])
    summary["layout"]["inputs"][0]["preparation"]["features"][0]["type"] = "text); DROP TABLE people; --"
    with_model(files, summary=json.dumps(summary))


HOSTILE_ARCHIVES: dict[str, tuple[Callable[[dict[str, bytes]], Any], str]] = {
    "other weights": (lambda f: f.update({"weights.bin": b"\1" * len(f["weights.bin"])}),
                      "weights.bin has another hash"),
    "fewer weights": (lambda f: f.update({"weights.bin": b""}), "weights.bin has 0 bytes, and manifest.json says"),
    "another model": (lambda f: f.update({"model.json": f["model.json"].replace(b"Dense", b"dense")}),
                      "model.json has another"),
    "path traversal": (lambda f: f.update({"../../evil": b"x"}), r"nothing else, and it has .*'\.\./\.\./evil'"),
    "an absolute path": (lambda f: f.update({"/etc/evil": b"x"}), "nothing else"),
    "a file is missing": (lambda f: f.pop("weights.bin"), "nothing else"),
    "a huge manifest": (lambda f: f.update({"manifest.json": b" " * (2 << 20)}), "manifest.json has 2,097,152 bytes"),
    "a deep manifest": (lambda f: f.update({"manifest.json": b"[" * 500_000}), "cannot be read"),
    "no manifest": (lambda f: f.update({"manifest.json": b"[]"}), "cannot be read"),
    "another format": (lambda f: f.update({"manifest.json": b'{"format": "x"}'}), "its format is 'x'"),
    "a lambda": (lambda f: with_model(f, architecture=json.dumps(ARCHITECTURES["any module and class"][2])),
                 "is refused"),
    "no architecture": (lambda f: with_model(f, architecture=None), "the architecture is no text"),
    "a number too large": (lambda f: with_model(f, configuration=2**40), "the number of the configuration is"),
    "SQL in a type": (damaged_layout, "is not the name of an SQL type|is 'text"),
    "a text for a number": (changed_row("info", bytes="many"), "does not fit its column"),
    "no rows": (lambda f: with_model(f, info="[]"), "a row is no JSON object"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE_ARCHIVES)
def test_a_hostile_archive_is_refused(cerebro: Cerebro, archive: Path, tmp_path: Path, name: str) -> None:
    change, why = HOSTILE_ARCHIVES[name]
    path = rewritten(archive, tmp_path / "x.cerebro", change)
    with pytest.raises(client.ClientError, match=why) as caught:
        cerebro.import_model(str(path), "hostile")
    assert "x.cerebro is refused" in str(caught.value)
    assert cerebro.rows("SELECT to_regclass('hostile') IS NULL AND to_regclass('hostile_weights') IS NULL") == [(True,)]
    assert cerebro.rows("SELECT count(*) FROM people") == [(400,)] and os.listdir(tmp_path) == ["x.cerebro"]


def test_an_archive_names_no_tables(cerebro: Cerebro, archive: Path, tmp_path: Path) -> None:
    """Tables of these names may be here, and may be traps. People find the names in the column imported."""
    with zipfile.ZipFile(archive) as file:
        packing = json.loads(json.loads(file.read("model.json"))["summary"])["packing"]

    def change(files: dict[str, bytes]) -> None:
        arguments = {name: "public.bait" for name, kind in RECORDED.items() if kind == "Table"}
        changed_row(
            "summary", **dict.fromkeys(("source_table", "packed_table", "validation_table"), "public.bait"),
            packing={**packing, "arguments": {**packing["arguments"], **arguments}},
        )(files)  # fmt: skip

    cerebro.import_model(rewritten(archive, tmp_path / "x.cerebro", change), "of_bait")
    ((kept, imported),) = cerebro.rows("SELECT (to_jsonb(s) - 'imported')::text, imported FROM of_bait_summary s")
    assert "bait" not in kept.replace("of_bait", "") and packing["fingerprint"] in kept
    assert json.loads(kept)["packing"]["arguments"] == {
        name: value for name, value in packing["arguments"].items() if RECORDED[name] != "Table"
    }
    assert imported["validation_table"] == imported["packing"]["validation_table"] == "public.bait"


def test_archives_that_are_none(archive: Path, tmp_path: Path) -> None:
    bomb = rewritten(archive, tmp_path / "bomb.cerebro", lambda f: f.update({"model.json": b" " * (60 << 20)}),
                     compression=zipfile.ZIP_DEFLATED)  # fmt: skip
    assert bomb.stat().st_size < 1 << 20
    with pytest.raises(client.ClientError, match="bomb.cerebro is refused: .* is compressed"):
        archives.read(bomb)
    (tmp_path / "cut.cerebro").write_bytes(archive.read_bytes()[:-1000])
    with pytest.raises(client.ClientError, match="cannot be read"):
        archives.read(tmp_path / "cut.cerebro")
    (tmp_path / "text.cerebro").write_text("nothing")
    with pytest.raises(client.ClientError, match="cannot be read"):
        archives.read(tmp_path / "text.cerebro")
    with pytest.raises(client.ClientError, match="There is no file"):
        archives.read(tmp_path / "nowhere.cerebro")
    twice = tmp_path / "twice.cerebro"
    twice.write_bytes(archive.read_bytes())
    with pytest.warns(UserWarning), zipfile.ZipFile(twice, "a") as more:
        more.writestr("manifest.json", "{}")
    with pytest.raises(client.ClientError, match="nothing else"):
        archives.read(twice)


# -- files of Keras and safetensors ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def keras_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model as anybody saves one: compiled, with an optimizer, a nested layer and a layer with a state."""
    import keras

    inputs = keras.Input((6, 3), name="series")
    x = keras.layers.Bidirectional(keras.layers.LSTM(4))(inputs)
    x = keras.layers.Dropout(0.2)(keras.layers.BatchNormalization()(x))
    model = keras.Model(inputs, keras.layers.Dense(2, activation="softmax")(x))
    model.compile("adam", "categorical_crossentropy")
    random = np.random.default_rng(1)
    model.fit(random.normal(size=(32, 6, 3)), np.eye(2)[random.integers(0, 2, 32)], verbose=0)
    path = tmp_path_factory.mktemp("keras") / "m.keras"
    model.save(path)
    return path


def saved(path: Path) -> tuple[Any, np.ndarray]:
    import keras

    model = keras.models.load_model(path)
    return model, np.concatenate([one.ravel() for one in model.get_weights()]).astype("<f4")


def test_a_file_of_keras_becomes_an_architecture(cerebro: Cerebro, keras_file: Path) -> None:
    model, weights = saved(keras_file)
    assert "weights to start from" in cerebro.import_model(str(keras_file), "series")
    ((architecture, given),) = cerebro.rows("SELECT architecture::text, string_agg(payload, ''::bytea ORDER BY start)"
                                            " FROM cerebro.added_architecture"
                                            " JOIN cerebro.added_weights USING (owner, name)"
                                            " WHERE name = 'series' AND NOT dropped GROUP BY 1")  # fmt: skip
    assert bytes(given) == weights.tobytes() and "Bidirectional" in architecture
    cerebro.rows("SELECT cerebro.drop_architecture('series')")


def test_training_starts_from_a_file(cerebro: Cerebro, tmp_path: Path) -> None:
    """From one database's model into another's training, which changes nothing with a learning rate of almost 0."""
    endings = ("keras", "safetensors")
    for ending in endings:
        made = cerebro.export("moods", str(tmp_path / f"x.{ending}"))
        cerebro.import_model(str(made.path), f"from_{ending}")
    packed = cerebro.rows("SELECT packed_table FROM moods_summary")[0][0]
    more = {"optimizer": "sgd", "learning_rate": 1e-30}
    cerebro.fit(packed, "warm", [{"architecture": f"from_{ending}", **more} for ending in endings], epochs=1)
    old = cerebro.model("moods", 1).get_weights()
    for configuration in (1, 2):
        new = cerebro.model("warm", configuration).get_weights()
        same = [np.array_equal(a, b) for a, b in zip(old, new)]
        assert len(old) == len(new) and sum(same) >= len(same) - 2, packed  # BatchNormalization would move its means


def with_file(source: Path, target: Path, **changed: bytes) -> Path:
    names = {"config": "config.json", "weights": "model.weights.h5", "metadata": "metadata.json"}
    return rewritten(source, target, lambda files: files.update({names[k]: v for k, v in changed.items()}))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_malicious_configuration_is_refused(keras_file: Path, tmp_path: Path, name: str) -> None:
    config = json.dumps(ARCHITECTURES[name][2]).encode()
    path = with_file(keras_file, tmp_path / "x.keras", config=config)
    with pytest.raises(client.ClientError, match=r"x\.keras"):
        model_files.read_keras(path)
    assert not os.path.exists(CANARY)


def h5(tmp_path: Path, keras_file: Path, change: Callable[[Any, str, Any], None]) -> bytes:
    """The weights of the file after a change, which gets the file, the name of a dataset, and its values."""
    import h5py

    path = tmp_path / "w.h5"
    with zipfile.ZipFile(keras_file) as archive:
        path.write_bytes(archive.read("model.weights.h5"))
    with h5py.File(path, "r+") as file:
        name = next(name for name in _datasets(file) if file[name].ndim == 2)
        values = file[name][()]
        del file[name]
        change(file, name, values)
    return path.read_bytes()


def _datasets(file: Any) -> list[str]:
    found: list[str] = []
    file.visititems(lambda name, one: found.append(name) if hasattr(one, "shape") else None)
    return found


def external(file: Any, name: str, values: Any) -> None:
    file.create_dataset(name, values.shape, "f4", external=[("/etc/passwd", 0, 4096)])


def virtual(file: Any, name: str, values: Any) -> None:
    import h5py

    layout = h5py.VirtualLayout(values.shape, "f4")
    layout[:] = h5py.VirtualSource("/etc/passwd", "x", values.shape)
    file.create_virtual_dataset(name, layout)


def external_link(file: Any, name: str, values: Any) -> None:
    import h5py

    file[name] = h5py.ExternalLink("/etc/passwd", "/x")


def soft_link(file: Any, name: str, values: Any) -> None:
    import h5py

    file[name] = h5py.SoftLink("/elsewhere")


def compressed(file: Any, name: str, values: Any) -> None:
    file.create_dataset(name, data=values, compression="gzip")


def huge(file: Any, name: str, values: Any) -> None:
    file.create_dataset(name, (1 << 40,), "f4", chunks=(1 << 20,))  # no byte of it is stored


def texts(file: Any, name: str, values: Any) -> None:
    import h5py

    file.create_dataset(name, data=["x"] * 4, dtype=h5py.string_dtype())


def twice(file: Any, name: str, values: Any) -> None:
    file[name] = file[next(one for one in _datasets(file))]


@pytest.mark.parametrize(
    ("change", "why"),
    [(external, "its data in another file"), (virtual, "is virtual"), (external_link, "is a link"),
     (soft_link, "is a link"), (compressed, "is compressed"), (huge, "more bytes than"), (texts, "is no number"),
     (twice, "is there twice"), (lambda file, name, values: None, "cannot be read")],
    ids=["external data", "virtual data", "external link", "soft link", "compressed", "huge", "texts", "twice",
         "missing"],
)  # fmt: skip
def test_hostile_weights_are_refused(keras_file: Path, tmp_path: Path, change: Any, why: str) -> None:
    path = with_file(keras_file, tmp_path / "x.keras", weights=h5(tmp_path, keras_file, change))
    with pytest.raises(client.ClientError, match=why) as caught:
        model_files.read_keras(path)
    assert "x.keras" in str(caught.value)


def test_hostile_files_of_keras(keras_file: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.keras"
    for change, why in (
        (lambda f: f.update({"../evil": b"x"}), "nothing else, and it has '../evil'"),
        (lambda f: f.update({"assets/x.txt": b"x"}), "nothing else"),
        (lambda f: f.update({"model.weights.h5": b"\x89HDF\r\n\x1a\n" + b"\0" * 90}),
         "cannot be read as HDF5|weights, and"),
        (lambda f: f.update({"config.json": b" " * (17 << 20)}), "config.json has 17,825,792 bytes"),
        (lambda f: f.update({"config.json": b"[" * 300_000}), "cannot be read|levels deep"),
        (lambda f: f.update({"config.json": f["config.json"].replace(b'"units": 2', b'"units": 100000000')}),
         "the architecture has .* bytes of weights, and the file has"),
    ):  # fmt: skip
        with pytest.raises(client.ClientError, match=why):
            model_files.read_keras(rewritten(keras_file, path, change))
    bomb = rewritten(keras_file, path, lambda f: f.update({"model.weights.h5": bytes(60 << 20)}),
                     compression=zipfile.ZIP_DEFLATED)  # fmt: skip
    with pytest.raises(client.ClientError, match="expands from"):
        model_files.read_keras(bomb)
    path.write_bytes(keras_file.read_bytes()[:-100])
    with pytest.raises(client.ClientError, match="cannot be read as a file of Keras"):
        model_files.read_keras(path)


def test_a_refused_architecture_does_not_burden_the_next_model(keras_file: Path, tmp_path: Path) -> None:
    import keras

    huge = rewritten(keras_file, tmp_path / "x.keras", lambda f: f.update(
        {"config.json": f["config.json"].replace(b'"units": 2', b'"units": 100000000')}))  # fmt: skip
    with pytest.raises(client.ClientError, match="bytes of weights, and the file has"):
        model_files.read_keras(huge)
    layer = keras.layers.Dense(2)
    with keras.StatelessScope(initialize_variables=True):
        layer.build((None, 3))
    assert layer.get_weights()[0].shape == (3, 2)  # leaving the scope gave values to all variables that waited for them


def safetensors_of(path: Path, target: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    target.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + length :])
    return target


def test_hostile_files_of_safetensors(cerebro: Cerebro, tmp_path: Path) -> None:
    good = cerebro.export("moods", str(tmp_path / "x.safetensors")).path
    evil = json.dumps(ARCHITECTURES["any module and class"][2])

    def largest(header: dict[str, Any]) -> None:
        text = header["__metadata__"]["architecture"]
        header["__metadata__"]["architecture"] = text.replace('"units": 8', '"units": 80000000')

    def renamed(header: dict[str, Any]) -> None:
        name = next(name for name, one in header.items() if one.get("shape", [1])[-1] > 1 and len(one["shape"]) == 2)
        header[name]["shape"].reverse()

    for change, why in (
        (lambda h: h["__metadata__"].update(architecture=evil), "is refused"),
        (lambda h: h["__metadata__"].pop("architecture"), "no architecture in its metadata"),
        (lambda h: h.pop(next(name for name in h if name != "__metadata__")), "cannot be read as safetensors"),
        (largest, "bytes of weights, and the file has"),
        (renamed, "does not fit its architecture: the tensor"),
    ):
        with pytest.raises(client.ClientError, match=why):
            model_files.read_safetensors(safetensors_of(good, tmp_path / "y.safetensors", change))
    (tmp_path / "z.safetensors").write_bytes(struct.pack("<Q", 1 << 62) + b"{}")
    with pytest.raises(client.ClientError, match="a header of 4611686018427387904 bytes does not fit"):
        model_files.read_safetensors(tmp_path / "z.safetensors")


def test_files_that_are_no_models(cerebro: Cerebro, tmp_path: Path) -> None:
    with pytest.raises(client.ClientError, match="There is no file"):
        cerebro.import_model(str(tmp_path / "x.keras"), "x")
    (tmp_path / "x.h5").write_text("x")
    with pytest.raises(client.ClientError, match="no ending that names a format"):
        cerebro.import_model(str(tmp_path / "x.h5"), "x")
