"""Predicts rows of a table with pandas and Keras: reads them, prepares the columns in pandas, and predicts.

Hashes are pandas' own, so codes of hashed values differ from those in the database.  The work is the same.
"""

from __future__ import annotations

import io
import json
import time

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import psycopg2

from tests.bench.rivals.common import Json, task

DAY = 86400
BATCH = 1024
TIMES = {"wakes"}
DATES = {"born", "seen", "ended"}
BOOLEANS = {"member": {"t": "true", "f": "false"}}


def main() -> None:
    given = task()
    asked = json.loads((given.folder / "mixed.json").read_text())
    began = time.time()
    import keras

    model = keras.models.model_from_json(json.dumps(asked["architecture"]))
    names = [one.name for one in model.inputs]
    connection = psycopg2.connect(asked["dsn"], options=f"-c search_path={asked['schema']}")
    answered: dict[str, float] = {}

    def predict(frame: pd.DataFrame) -> np.ndarray:
        arrays = {one[0]["variable"]: prepared(frame, one) for one in asked["variables"]}
        # Small tables as one batch: predict() takes longer to begin than such a batch takes.
        ordered = [arrays[name] for name in names]
        return np.asarray(model(ordered)) if len(frame) <= BATCH else model.predict(ordered, BATCH, verbose=0)

    one, thousand, every = asked["sizes"]
    for name, rows in (("first", one), ("one", one), ("thousand", thousand), ("all", every)):
        since = time.time() if answered else began
        frame = read(connection, rows)
        assert len(predict(frame)) == rows
        answered[name] = time.time() - since
        ready = began + answered["first"]
    since = time.time()
    predict(frame)
    answered["in memory"] = time.time() - since
    given.done(ready, [], answered=answered)


def read(connection: psycopg2.extensions.connection, rows: int) -> pd.DataFrame:
    file = io.BytesIO()
    with connection.cursor() as cursor:
        cursor.copy_expert(f"COPY (SELECT * FROM pack_mixed LIMIT {rows}) TO STDOUT (FORMAT csv, HEADER)", file)
    file.seek(0)
    return pd.read_csv(file)


def prepared(frame: pd.DataFrame, columns: list[Json]) -> np.ndarray:
    parts = [part for column in columns for part in PREPARED[column["prepared_as"]](frame, column)]
    if columns[0]["prepared_as"] == "words":
        return np.asarray(parts[0])
    return np.stack(parts, axis=1).astype("int32" if columns[0]["prepared_as"] == "category" else "float32")


def number(frame: pd.DataFrame, column: Json) -> list[np.ndarray]:
    told, values = column["parameters"], frame[column["column_name"]].astype("float64")
    missing = values.isna().to_numpy()
    x = values.fillna(told["fill"]).to_numpy()
    if told["transform"] == "quantile":
        x = np.interp(x, told["knots"], told["scores"])
    else:
        if told["transform"] == "log":
            x = np.sign(x) * np.log1p(np.abs(x) / told["unit"])
        x = np.clip((x - told["mean"]) / told["deviation"], -100, 100)
    return [x, missing] if told["missing"] else [x]


def date(frame: pd.DataFrame, column: Json) -> list[np.ndarray]:
    told, text = column["parameters"], frame[column["column_name"]]
    if column["column_name"] in TIMES:
        seconds = pd.to_timedelta(text).dt.total_seconds().to_numpy()
        places = {"day": (seconds, DAY)}
    else:
        when = pd.to_datetime(text, utc=True, format="ISO8601")
        days = (when - pd.Timestamp(0, tz="UTC")).dt.total_seconds() / DAY
        places = {
            "year": (when.dt.dayofyear - 1, 366),
            "month": (when.dt.day - 1, 31),
            "week": ((when.dt.dayofweek + 1) % 7, 7),
            "day": (days % 1 * DAY, DAY),
        }
    parts = []
    for cycle in told["cycles"]:
        position, length = places[cycle]
        angle = np.asarray(position, "float64") * (2 * np.pi / length)
        parts += [np.nan_to_num(np.sin(angle)), np.nan_to_num(np.cos(angle))]
    if told["deviation"]:
        parts.append(((days.fillna(told["mean"]) - told["mean"]) / told["deviation"]).clip(-100, 100).to_numpy())
    return [*parts, text.isna().to_numpy()] if told["missing"] else parts


def category(frame: pd.DataFrame, column: Json) -> list[np.ndarray]:
    told, name = column["parameters"], column["column_name"]
    known = {value: code for code, value in enumerate(told["values"], 1)}
    known.update(dict.fromkeys(told["rare"], len(known) + 1))
    values = frame[name].map(BOOLEANS[name]) if name in BOOLEANS else frame[name]
    codes = values.astype("string").map(known)
    if told["buckets"]:
        first = 1 + len(told["values"]) + bool(told["rare"])
        hashed = pd.util.hash_array(values.astype("string").fillna("").to_numpy(object), categorize=False)
        codes = codes.fillna(pd.Series(first + hashed % told["buckets"], codes.index)).where(values.notna(), 0)
    return [codes.fillna(0).to_numpy("int32")]


def words(frame: pd.DataFrame, column: Json) -> list[np.ndarray]:
    told = column["parameters"]
    found = frame[column["column_name"]].fillna("").str.lower().str.findall(r"[^\W_]+")
    ids = np.zeros((len(found), told["length"]), "int32")
    for row, some in enumerate(found):
        for place, word in enumerate(some[: told["length"]]):
            ids[row, place] = 1 + hash(word) % (told["ids"] - 1)
    return [ids]


PREPARED = {"number": number, "date": date, "category": category, "words": words}

if __name__ == "__main__":
    main()
