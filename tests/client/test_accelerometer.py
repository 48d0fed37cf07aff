"""Files of accelerometers become rows of a table, whatever their size, and errors name the file and the line."""

from __future__ import annotations

import gzip
import json
import random
import struct
import tracemalloc
import zipfile
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from functools import reduce
from operator import xor
from pathlib import Path
from typing import Any

import pytest
from psycopg2.extensions import make_dsn
from typer.testing import CliRunner

from cerebro_db.client import Cancelled, Cerebro, ClientError, cli
from cerebro_db.client.accelerometers import actigraph_csv
from cerebro_db.client.accelerometers.actigraph_csv import ActiGraphCsv
from cerebro_db.client.accelerometers.gt3x import Gt3x
from cerebro_db.client.accelerometers.recordings import rounded
from tests.client.small_run import schema
from tests.sql.users import town

SCHEMA = "accelerometer_tests"
BEGIN = datetime(2021, 12, 3, 11, 55)
Sample = tuple[datetime, float, float, float]


def header(
    date: str = "12/3/2021",
    date_format: str = " date format M/d/yyyy",
    rate: str = " at 30 Hz",
    epoch: str = "00:00:00",
) -> list[str]:
    return [
        f"------------ Data File Created By ActiGraph GT3X+ ActiLife v6.13.4 Firmware v2.5.0{date_format}{rate}"
        "  Filter Normal -----------",
        "Serial Number: NEO1C04110003",
        "Start Time 11:55:00",
        f"Start Date {date}",
        f"Epoch Period (hh:mm:ss) {epoch}",
        "Download Time 12:09:58",
        "Download Date 12/20/2021",
        "Current Memory Address: 0",
        "Current Battery Voltage: 4.26     Mode = 12",
        "--------------------------------------------------",
    ]


def samples(count: int, seed: int = 1) -> list[tuple[float, float, float]]:
    some = random.Random(seed)
    return [(*(round(some.uniform(-6, 6), 3) for _ in range(3)),) for _ in range(count)]  # type: ignore[misc]


def write(path: Path, lines: Sequence[str], ending: str = "\n") -> Path:
    data = ending.join(lines).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def read(recording: Any) -> list[Sample]:
    """The samples of a recording of s."""
    found = []
    for line in b"".join(recording.lines(b"s")).decode().splitlines():
        subject, at, *axes = line.split("\t")
        assert subject == "s"
        found.append((datetime.fromisoformat(at), *map(float, axes)))
    recording.close()
    return found  # type: ignore[return-value]


def timed(rows: Sequence[tuple[float, float, float]], rate: int = 30, begin: datetime = BEGIN) -> list[Sample]:
    return [
        (begin + timedelta(seconds=place // rate, microseconds=round(place % rate * 1e6 / rate)), *row)
        for place, row in enumerate(rows)
    ]


# -- CSV ----------------------------------------------------------------------------------------------------------


def text(row: Sequence[float], separator: str = ",") -> str:
    return separator.join(f"{one:g}" for one in row)


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("name", ["P01.csv", "P01.csv.gz"])
def test_csv_without_times(tmp_path: Path, ending: str, named: bool, name: str) -> None:
    rows = samples(20_000)  # several blocks
    names = ["Accelerometer X,Accelerometer Y,Accelerometer Z"] * named
    path = write(tmp_path / name, [*header(), *names, *map(text, rows), ""], ending)
    assert path.stat().st_size > actigraph_csv.BLOCK
    recording = ActiGraphCsv(path)
    assert recording.rate == 30 and recording.subject is None
    assert read(recording) == timed(rows)


def test_csv_with_times(tmp_path: Path) -> None:
    rows = [one for one in timed(samples(5000), 100) if one[0].second % 7]  # with gaps, which times show
    lines = [
        f"{one[0].month}/{one[0].day}/{one[0].year} {one[0]:%H:%M:%S.%f}"[:-3] + "," + text(one[1:]) for one in rows
    ]
    names = "Timestamp,Accelerometer X,Accelerometer Y,Accelerometer Z"
    for more in ([names], []):
        assert read(ActiGraphCsv(write(tmp_path / "a.csv", [*header(), *more, *lines]))) == rows
    mornings = [f"{one[0]:%m/%d/%Y %I:%M:%S %p},{text(one[1:])}" for one in timed(samples(9), 1)]
    names = "Timestamp,Lux,Axis Z,Axis Y,Axis X"  # other columns, in another order
    swapped = [",".join([at, "7", z, y, x]) for at, x, y, z in (line.split(",") for line in mornings)]
    assert read(ActiGraphCsv(write(tmp_path / "b.csv", [*header(), names, *swapped]))) == timed(samples(9), 1)


def test_csv_with_decimal_commas(tmp_path: Path) -> None:
    rows = samples(700)
    lines = [text(one, ";").replace(".", ",") for one in rows]
    german = header("03.12.2021", " date format dd.MM.yyyy")
    assert read(ActiGraphCsv(write(tmp_path / "a.csv", [*german, *lines]))) == timed(rows)
    with_times = [f'{one[0]:%d.%m.%Y %H:%M:%S,%f};"{line}"' for one, line in zip(timed(rows), lines)]
    with_times = [line.replace('"', "") for line in with_times]
    assert read(ActiGraphCsv(write(tmp_path / "b.csv", [*(f"{one};;;" for one in german), *with_times]))) == timed(rows)


@pytest.mark.parametrize(
    ("date", "stated", "given"),
    [
        ("2021-12-03", "", None),
        ("12/3/2021", " date format M/d/yyyy", None),
        ("3/12/2021", " date format d/M/yyyy", None),
        ("3/12/21", " date format d/M/yy", None),
        ("3/12/2021", " date format M/d/yyyy", "d/M/yyyy"),
        ("3.12.2021", "", "dd.MM.yyyy"),
    ],
)
def test_dates_of_csv(tmp_path: Path, date: str, stated: str, given: str | None) -> None:
    path = write(tmp_path / "a.csv", [*header(date, stated), "1,2,3"])
    assert read(ActiGraphCsv(path, given)) == [(BEGIN, 1, 2, 3)]


GOOD = ["0.1,0.2,0.3"] * 5000


@pytest.mark.parametrize(
    ("lines", "place", "reason"),
    [
        ([], "line 0", "ends within its header"),
        (["x,y,z", "1,2,3"], "line 1", "no header of ActiGraph"),
        (header()[:5], "line 5", "ends within its header"),
        ([*header()[:1], *["Serial Number: 1"] * 60], "line 41", "no header of ActiGraph"),
        ([*header(epoch="00:00:10"), "1,2,3"], "line 5", "counts for epochs"),
        ([*header(), "Axis1,Axis2,Axis3,Steps", "1,2,3,4"], "line 11", "Axis1, Axis2, Axis3, Steps"),
        ([*header(rate=""), "1,2,3"], "line 1", "lacks the sample rate"),
        ([*header()[:2], *header()[4:], "1,2,3"], "line 1", "lacks Start Time and Start Date"),
        ([*header(date_format=""), "1,2,3"], "line 4", "which part of 12/3/2021 is the month is not said"),
        ([*header("13/13/2021"), "1,2,3"], "line 4", "is no time in the format M/d/yyyy"),
        ([*header(), "1,2,3,4,5,6"], "line 11", "6 values"),
        ([*header(), *GOOD, "0.1,0.2", *GOOD], "line 5011", "2 values instead of 3"),
        ([*header(), *GOOD, "0.1,0.2,", *GOOD], "line 5011", "'' is no number"),
        ([*header(), *GOOD, "0.1,1e999,0", *GOOD], "line 5011", "'1e999' is no number"),
        ([*header(), *GOOD, "0.1,nan,0", *GOOD], "line 5011", "'nan' is no number"),
        ([*header(), *GOOD, "0.1,1_0,0", *GOOD], "line 5011", "'1_0' is no number"),
        ([*header(), *GOOD, "0.1,\t1,0", *GOOD], "line 5011", "is no number"),
        ([*header(), *GOOD, "", *GOOD], "line 5011", "the line is empty"),
        ([*header(), *GOOD, "1" * 200_000, *GOOD], "line 5011", "more than 65,536 bytes"),
        (["1" * 200_000], "line 1", "more than 65,536 bytes"),
        ([*header(), "12/3/2021 11:55:00.000,1,2,3", "12/3/2021 11:61:00.000,1,2,3"], "line 12", "is no time"),
        ([*header(), "12/3/2021 11:55:00.000,1,2,3", "12/3/2021,1,2,3"], "line 12", "is no time"),
    ],
)
def test_errors_of_csv_name_file_and_line(tmp_path: Path, lines: list[str], place: str, reason: str) -> None:
    path = write(tmp_path / "bad.csv", lines)
    with pytest.raises(ClientError) as failed:
        read(ActiGraphCsv(path))
    assert failed.value.message.startswith(f"{path}, {place}: ") and reason in failed.value.message


def test_no_more_than_some_lines_are_in_memory(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", [*header(), *GOOD * 100])
    write(tmp_path / "b.csv.gz", [*header(), *GOOD * 100])
    archive(tmp_path / "c.gt3x", [record(0, second, packed(samples(30))) for second in range(3000)])
    for recording in (ActiGraphCsv(path), ActiGraphCsv(tmp_path / "b.csv.gz"), Gt3x(tmp_path / "c.gt3x")):
        tracemalloc.start()
        sizes = [len(piece) for piece in recording.lines(b"s")]
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        recording.close()
        assert sum(sizes) > 3_000_000 and max(sizes) < 400_000 and most < 3_000_000, (sum(sizes), max(sizes), most)


# -- GT3X ---------------------------------------------------------------------------------------------------------


def record(kind: int, second: int, payload: bytes) -> bytes:
    at = int((BEGIN - datetime(1970, 1, 1)).total_seconds()) + second
    body = struct.pack("<BBIH", 0x1E, kind, at, len(payload)) + payload
    return body + bytes([~reduce(xor, body) & 0xFF])


def units(rows: Sequence[tuple[float, float, float]], scale: float) -> list[tuple[int, ...]]:
    return [tuple(round(value * scale) for value in row) for row in rows]


def packed(rows: Sequence[tuple[float, float, float]], scale: float = 341) -> bytes:
    digits = "".join(f"{value & 0xFFF:03x}" for x, y, z in units(rows, scale) for value in (y, x, z))
    return bytes.fromhex(digits + "0" * (len(digits) % 2))


def shorts(rows: Sequence[tuple[float, float, float]], scale: float = 256) -> bytes:
    return b"".join(struct.pack("<hhh", *row) for row in units(rows, scale))


def in_g(rows: Sequence[tuple[float, float, float]], scale: float) -> list[tuple[float, float, float]]:
    return [tuple(float(rounded(value / scale)) for value in row) for row in units(rows, scale)]  # type: ignore[misc]


def archive(
    path: Path, records: Sequence[bytes], serial: str = "NEO1C04110003", name: str = "log.bin", **more: str
) -> Path:
    ticks = (int((BEGIN - datetime(1970, 1, 1)).total_seconds()) + 62_135_596_800) * 10_000_000
    info = {"Serial Number": serial, "Sample Rate": "30", "Start Date": str(ticks), "Subject Name": "P07",
            **{key.replace("_", " "): value for key, value in more.items()}}  # fmt: skip
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("info.txt", "\r\n".join(f"{key}: {value}" for key, value in info.items()))
        file.writestr(name, b"".join(records))
    return path


def test_records_of_a_device(tmp_path: Path) -> None:
    one, two, three = samples(30), samples(30, 2), samples(30, 3)
    records = [
        record(6, 0, b'{"MetadataType": "Bio"}'), record(0, 0, packed(one)), b"\0\0\0", record(2, 0, b"\x10\x10"),
        record(0, 1, b"\0"), record(0, 60, packed(two)), record(0, 61, packed(three[:7])),
    ]  # fmt: skip
    later = BEGIN + timedelta(minutes=1)
    expected = [*timed(in_g(one, 341)), *timed(in_g([*two, *three[:7]], 341), begin=later)]
    recording = Gt3x(archive(tmp_path / "a.gt3x", records))
    assert (recording.rate, recording.subject) == (30, "P07") and read(recording) == expected
    # The last record is incomplete.
    assert read(Gt3x(archive(tmp_path / "b.gt3x", [*records, record(0, 62, packed(one))[:-9]]))) == expected


def test_the_example_of_the_format(tmp_path: Path) -> None:
    """The values of LogRecords/Activity.md in ActiGraph's description of the format."""
    example = bytes.fromhex("00 60 08 EB D0 07 00 9E BF 00 70 08 EB F0")
    found = read(Gt3x(archive(tmp_path / "a.gt3x", [record(0, 0, example)])))
    assert [row[1:] for row in found] == [(0.023, 0.018, -0.947), (0.026, 0.021, -0.941), (0.023, 0.021, -0.941)]


@pytest.mark.parametrize(
    ("serial", "more", "parameter", "scale"),
    [
        ("TAS1", {}, None, 256.0),
        ("NEO1", {}, None, 341.0),
        ("TAS1", {"Acceleration_Scale": "512.0"}, None, 512.0),
        ("TAS1", {"Acceleration_Scale": "512.0"}, bytes.fromhex("00 00 37 00 00 00 40 09"), 256.0),
    ],
)
def test_the_scale_of_a_device(
    tmp_path: Path, serial: str, more: dict[str, str], parameter: bytes | None, scale: float
) -> None:
    rows = samples(30)
    records = [*([record(21, 0, parameter)] if parameter else []), record(26, 0, shorts(rows, 256))]
    found = read(Gt3x(archive(tmp_path / "a.gt3x", records, serial, **more)))
    assert [row[1:] for row in found] == [
        tuple(float(rounded(value / scale)) for value in row) for row in units(rows, 256)
    ]


def test_files_of_older_devices(tmp_path: Path) -> None:
    rows = samples(30 * 61 + 4)
    assert read(Gt3x(archive(tmp_path / "a.gt3x", [packed(rows)], name="activity.bin"))) == timed(in_g(rows, 341))


def test_half_a_thousandth_goes_away_from_zero() -> None:
    assert [rounded(one) for one in (0.0625, -0.0625, 1.2344, -0.0001, 0, 2.9996)] == [
        b"0.063", b"-0.063", b"1.234", b"0.000", b"0.000", b"3.000"
    ]  # fmt: skip


def test_errors_of_gt3x_name_the_file_and_the_place(tmp_path: Path) -> None:
    path, good = tmp_path / "a.gt3x", record(0, 0, packed(samples(30)))

    def refused(*said: str) -> None:
        with pytest.raises(ClientError) as failed:
            read(Gt3x(path))
        assert failed.value.message.startswith(str(path))
        assert all(one in failed.value.message for one in said), failed.value.message

    path.write_bytes(b"no archive")
    refused("is no GT3X file")
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("log.bin", good)
    refused("has no info.txt")
    archive(path, [good], name="other.bin")
    refused("neither log.bin nor activity.bin")
    archive(path, [good], Sample_Rate="often")
    refused("info.txt", "'often'")
    archive(path, [good], name="activity.bin", Start_Date="today")
    refused("info.txt", "'today'")
    archive(path, [good, b"\x07", good])
    refused(f"log.bin, byte {len(good)}: no record begins here")
    archive(path, [good, b"\0", good[:20] + b"\x55" + good[21:]])
    refused(f"log.bin, byte {len(good) + 1}: the record's checksum is wrong")
    archive(path, [good] * 500)
    data = bytearray(path.read_bytes())
    place = data.find(b"log.bin") + 40
    data[place : place + 8] = b"\xff" * 8
    path.write_bytes(data)
    refused("log.bin: it is damaged")


# -- tables -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cerebro(server: str) -> Iterator[Cerebro]:
    with schema(server, SCHEMA) as connection, Cerebro(connection) as found:
        yield found


def test_files_become_rows(cerebro: Cerebro, tmp_path: Path) -> None:
    rows = samples(9000)
    first = write(tmp_path / "P\\01.csv", [*header(), *map(text, rows)])
    second = archive(tmp_path / "other.gt3x", [record(0, second, packed(rows[:30])) for second in range(90)])
    found = cerebro.add_accelerometer("Samples", [first, str(second)])
    assert [(one.file, one.subject, one.rows, one.rate) for one in found] == [
        (str(first), "P\\01", 9000, 30), (str(second), "P07", 2700, 30)
    ]  # fmt: skip
    stored = cerebro.rows("SELECT at, x, y, z FROM samples WHERE subject = %s ORDER BY at", ("P\\01",))
    assert [(at, *(pytest.approx(one, abs=1e-6) for one in row)) for at, *row in timed(rows)] == stored
    types = cerebro.rows(
        "SELECT DISTINCT pg_typeof(subject)::text, pg_typeof(at)::text, pg_typeof(x)::text FROM samples"
    )
    assert types == [("text", "timestamp without time zone", "real")]
    # What was loaded before is not loaded again; of another subject it is.
    with pytest.raises(ClientError, match="has rows of P07 from 2021-12-03 11:55:00.000000 on"):
        cerebro.add_accelerometer("samples", second)
    assert cerebro.add_accelerometer("samples", second, subject="P08")[0].subject == "P08"
    assert cerebro.rows("SELECT subject, count(*) FROM samples GROUP BY 1 ORDER BY 1") == [
        ("P07", 2700), ("P08", 2700), ("P\\01", 9000)
    ]  # fmt: skip


def test_of_a_file_with_an_error_nothing_stays(cerebro: Cerebro, tmp_path: Path) -> None:
    good = write(tmp_path / "good.csv", [*header(), *GOOD])
    bad = write(tmp_path / "bad.csv", [*header(), *GOOD * 20, "0.1,0.2,nothing"])
    with pytest.raises(ClientError, match=f"{bad}, line 100011: 'nothing' is no number"):
        cerebro.add_accelerometer("refused", [bad])
    assert cerebro.rows("SELECT to_regclass('refused')") == [(None,)]
    with pytest.raises(ClientError, match="line 100011"):
        cerebro.add_accelerometer("half", [good, bad])
    assert cerebro.rows("SELECT DISTINCT subject FROM half") == [("good",)]
    with pytest.raises(ClientError, match="has no samples"):
        cerebro.add_accelerometer("half", write(tmp_path / "none.csv", [*header(), "Axis X,Axis Y,Axis Z"]))
    for name, message in (("none.txt", "is no file of an accelerometer"), ("gone.csv", "cannot be read")):
        with pytest.raises(ClientError, match=message):
            cerebro.add_accelerometer("half", tmp_path / name)
    (tmp_path / "cut.csv.gz").write_bytes(gzip.compress("\n".join([*header(), *GOOD]).encode())[:-30])
    with pytest.raises(ClientError, match=r"cut.csv.gz cannot be read"):
        cerebro.add_accelerometer("half", tmp_path / "cut.csv.gz")
    with pytest.raises(ClientError, match="there are no files"):
        cerebro.add_accelerometer("half", [])
    with pytest.raises(ClientError, match="table"):
        cerebro.add_accelerometer("a.b.c", good)


def test_a_load_that_is_cancelled_leaves_nothing(cerebro: Cerebro, server: str, tmp_path: Path) -> None:
    file = write(tmp_path / "long.csv", [*header(), *GOOD * 100])
    with Cerebro(make_dsn(server, options="-c statement_timeout=200")) as hurried, pytest.raises(Cancelled):
        hurried.add_accelerometer(f"{SCHEMA}.cancelled", file)
    assert cerebro.rows("SELECT to_regclass('cancelled')") == [(None,)]


def test_a_table_of_ones_own(cerebro: Cerebro, tmp_path: Path) -> None:
    file = write(tmp_path / "7.csv", [*header(), *GOOD])
    cerebro.rows('CREATE TABLE "Own ""table" (id serial, z numeric, y float8, x float8, at timestamp, subject int)')
    assert cerebro.add_accelerometer('"Own ""table"', file)[0].rows == 5000
    assert cerebro.rows('SELECT DISTINCT subject, x, y, z FROM "Own ""table"') == [(7, 0.1, 0.2, Decimal("0.3"))]
    for columns, message in (
        ("subject text, at timestamptz, x real, y real, z real", "the column at has the type timestamp with time zone"),
        ("subject text, at timestamp, x real, y real", "no column is z"),
    ):
        cerebro.rows(f"DROP TABLE IF EXISTS other; CREATE TABLE other ({columns})")
        with pytest.raises(ClientError, match=message):
            cerebro.add_accelerometer("other", file)
    cerebro.rows("CREATE VIEW seen AS SELECT * FROM other")
    with pytest.raises(ClientError, match="seen is no table"):
        cerebro.add_accelerometer("seen", file)
    with pytest.raises(ClientError, match="7.csv: invalid input syntax for type integer"):
        cerebro.add_accelerometer('"Own ""table"', file, subject="seven")


def test_a_table_of_another_user_is_not_written(server: str, tmp_path: Path) -> None:
    file = write(tmp_path / "7.csv", [*header(), *GOOD])
    with town(server) as root:
        eve, bob = root.user("eve", "cerebro_user"), root.user("bob", "cerebro_user")
        eve("CREATE TABLE trap (subject text, at timestamp, x real, y real, z real)")
        eve(f"GRANT USAGE ON SCHEMA {eve.name} TO {bob.name}; GRANT ALL ON trap TO {bob.name}")
        for dsn in (bob.dsn, server):
            with Cerebro(dsn) as cerebro, pytest.raises(ClientError, match="belongs to another user"):
                cerebro.add_accelerometer(f"{eve.name}.trap", file)
        assert eve("SELECT * FROM trap") == []


def test_the_command(cerebro: Cerebro, server: str, tmp_path: Path) -> None:
    dsn = make_dsn(server, options=f"-c search_path={SCHEMA},public,cerebro")

    def command(*words: object) -> Any:
        given = ["accelerometer", *map(str, words)]
        return CliRunner().invoke(cli.app, given, env={"CEREBRO_DSN": dsn, "COLUMNS": "120"})

    one = write(tmp_path / "one.csv", [*header(date_format=""), *GOOD])
    two = archive(tmp_path / "two.gt3x", [record(0, 0, packed(samples(30)))])
    told = command(one, two, "commanded", "--date-format", "M/d/yyyy")
    assert told.exit_code == 0, told.output
    assert told.output.splitlines() == [
        f"{one}: 5,000 rows of one, 30 a second.", f"{two}: 30 rows of P07, 30 a second."
    ]  # fmt: skip
    told = command(two, "commanded", "--subject", "P08", "--json")
    assert json.loads(told.output) == [{"file": str(two), "subject": "P08", "rows": 30, "rate": 30}]
    told = command(one, "commanded")
    assert told.exit_code == 1 and "line 4: which part of 12/3/2021 is the month" in " ".join(told.output.split())
    assert cerebro.rows("SELECT count(*) FROM commanded") == [(5060,)]
