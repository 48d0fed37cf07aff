"""The part of a report that is about the model: its figures are those of the server, and texts of others are texts."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from small_run import SCHEMA, Trained

from cerebro_db.client import connect
from cerebro_db.client.dashboard import pages
from cerebro_db.client.errors import ClientError
from cerebro_db.client.report import figures, model
from cerebro_db.core.models import calibration, quality
from tests.client.browser import Browser
from tests.sql.users import town

MARKUP = "<script>document.title='ran'</script>"
COLUMN = '<img src=x onerror="document.title=1">'  # the name of a column
PEOPLE = f"""
CREATE TABLE page_people AS
SELECT n AS id, 20 + n * 37 % 60 AS age, DATE '2020-01-01' + n * 7 % 1500 AS since,
       CASE WHEN n % 11 <> 0 THEN exp(n * 13 % 100 / 12.0) END AS income,
       (ARRAY['Rome', 'Oslo', $$'{MARKUP}$$])[n % 3 + 1] AS "{COLUMN.replace('"', '""')}",
       CASE WHEN n * 37 % 60 > 25 + n * 7 % 13 THEN 'no' ELSE $${MARKUP}$$ END AS churn,
       (n * 37 % 60) * 1000.0 + n * 7 % 13 AS price
  FROM generate_series(1, 400) n;
CREATE TABLE page_sales AS
SELECT shop, DATE '2023-01-01' + n AS day, (100 + 20 * shop + 30 * sin(2 * pi() * n / 7))::real AS sold,
       (n % 5)::real AS price
  FROM generate_series(1, 3) shop, generate_series(0, 99) n;
"""
INPUTS = ["age", "since", "income", COLUMN]
LISTED = [{"units": 8, "learning_rate": 0.02, "batch_size": 16}]


@pytest.fixture(scope="module")
def runs(trained: Trained) -> Iterator[dict[str, int]]:
    """A run of each sort: classes, a number, and a forecast."""
    cerebro = trained.cerebro
    cerebro.rows(PEOPLE)
    common: dict[str, Any] = {"segments": 2, "validation": 0.4, "options": {"seed": 1}}
    found = {
        "classes": cerebro.fit("page_people", "page_churn", LISTED, target="churn", inputs=INPUTS, epochs=20, **common),
        "number": cerebro.fit("page_people", "page_price", LISTED, target="price", inputs=INPUTS, epochs=2, **common),
        "forecast": cerebro.fit(
            "page_sales", "page_sold", LISTED, target="sold", epochs=2, **common,
            sequence={"by": "shop", "order": "day", "length": 14, "horizon": 7},
        ),
    }  # fmt: skip
    cerebro.calibrate("page_churn")
    cerebro.calibrate("page_price")
    yield {sort: handle.run for sort, handle in found.items()}
    for table in ("page_churn", "page_price", "page_sold"):
        cerebro.rows("SELECT cerebro.drop_model(%s)", (table,))
    cerebro.rows("DROP TABLE page_people, page_sales")


@pytest.fixture
def written(trained: Trained, tmp_path: Path) -> Callable[..., tuple[Path, Any]]:
    def write(run: int, **more: Any) -> tuple[Path, Any]:
        file = trained.cerebro.report(run, tmp_path / "report.html", replace=True, **more)
        found = re.search(r'<script type="application/json" id="contents">(.*?)</script>', file.read_text(), re.S)
        assert found is not None
        return file, json.loads(found[1])["runs"][0]["model"]

    return write


def test_the_figures_are_those_of_the_server(
    trained: Trained, runs: dict[str, int], written: Callable[..., tuple[Path, Any]]
) -> None:
    for sort, table in (("classes", "page_churn"), ("number", "page_price"), ("forecast", "page_sold")):
        _, said = written(runs[sort])
        (target,) = said["targets"]
        found = trained.cerebro.evaluate(table)
        assert said["why"] is None and said["judged_why"] is None
        assert {one["metric"]: one["value"] for one in target["metrics"]} == {
            name: value for name, value in found.items() if name != "rows"
        }
        assert target["compared"] == target["rows"] == found["rows"] == said["rows"]["validation"]
        for one in target["metrics"]:
            if one["low"] is not None:
                assert one["low"] <= one["value"] <= one["high"], one
        assert {one["metric"] for one in target["metrics"] if one["low"] is not None} >= (
            {"accuracy", "log_loss", "f1", "auc", "balanced_accuracy"} if sort == "classes" else {"rmse", "mae", "r2"}
        )
        packed = said["packed_tables"][1]
        assert [one["column_name"] for one in said["importance"]["columns"]] == [
            one.column_name for one in trained.cerebro.importance(table, packed)
        ]
        if sort == "classes":
            counts = target["confusion"]["counts"]
            assert sum(map(sum, counts)) == found["rows"] and target["confusion"]["labels"] == [MARKUP, "no"]
            assert (counts[0][0] + counts[1][1]) / found["rows"] == pytest.approx(found["accuracy"])
            kept = {one.measure: (one.before, one.after) for one in trained.cerebro.calibrate(table)}
            assert target["calibrated"]["log_loss"] == pytest.approx(kept["log_loss"], rel=1e-5)
            assert target["calibrated"]["ece"] == pytest.approx(kept["ece"], abs=1e-5)
        if sort == "number":
            assert target["interval"]["inside"] > 0.8 and target["last_known"] is None


def test_the_views_have_sizes_of_errors_and_plain_names(trained: Trained, runs: dict[str, int]) -> None:
    cerebro = trained.cerebro
    (entry,) = cerebro.leaderboard(runs["number"])
    assert entry.validation_rmse == pytest.approx(cerebro.evaluate("page_price")["rmse"], rel=1e-4)
    assert [one.validation_rmse for one in cerebro.leaderboard(runs["classes"])] == [None]
    for view in ("leaderboard", "runs", "models"):
        assert cerebro.rows(f"SELECT run FROM cerebro.{view} WHERE model_name = 'page_price'") == [(runs["number"],)]
    assert cerebro.rows("SELECT count(*) FROM cerebro_bi.leaderboard WHERE model_name = 'page_price'") == [(1,)]
    odd = 'a "b".c'
    run = cerebro.fit("page_sales", f'{SCHEMA}."a ""b"".c"', LISTED, target="sold", inputs="shop", epochs=1, segments=1,
                      options={"seed": 1}).run  # fmt: skip
    assert cerebro.run(run).model_name == odd == cerebro.leaderboard(run)[0].model_name
    cerebro.drop_model(cerebro.run(run).model_table)


def test_a_forecast_is_compared_with_the_last_known_value(
    trained: Trained, runs: dict[str, int], written: Callable[..., tuple[Path, Any]]
) -> None:
    """The sales have a period of seven days, so the last known value is nearly exact."""
    _, said = written(runs["forecast"])
    assert said["windows"] == {"by": ["shop"], "order": ["day"], "length": 14, "step": 1, "horizon": 7}
    assert said["targets"][0]["last_known"]["rmse"] < 0.001
    assert said["targets"][0]["metrics"][0]["baseline"] > 10


def test_examples_are_rows_of_the_table(
    trained: Trained, runs: dict[str, int], written: Callable[..., tuple[Path, Any]]
) -> None:
    """What the columns were is computed from the prepared values."""
    named = ", ".join(f'"{name.replace(chr(34), chr(34) * 2)}"' for name in INPUTS)
    rows = [
        dict(zip([*INPUTS, "churn"], row)) for row in trained.cerebro.rows(f"SELECT {named}, churn FROM page_people")
    ]
    for row in rows:
        row["since"] = row["since"].isoformat()
        row["income"] = None if row["income"] is None else float(row["income"])
    _, said = written(runs["classes"])
    examples = {one["sort"]: one["rows"] for one in said["targets"][0]["examples"]}
    assert list(examples) == ["right, and sure", "wrong, and sure", "typical"]
    for sort, found in examples.items():
        assert 0 < len(found) <= 4
        for one in found:
            assert (one["actual"] == one["predicted"]) == sort.startswith("right") or sort == "typical"
            shown = dict(one["columns"])
            assert set(shown) == set(INPUTS)
            assert any(
                row["churn"] == one["actual"] and row[COLUMN] == shown[COLUMN] and row["since"] == shown["since"]
                and str(row["age"]) == shown["age"] and _same(row["income"], shown["income"])
                for row in rows
            ), one  # fmt: skip
    _, said = written(runs["number"])
    sorts = {one["sort"]: [abs(row["actual"] - row["predicted"]) for row in one["rows"]]
             for one in said["targets"][0]["examples"]}  # fmt: skip
    assert (
        max(sorts["smallest errors"]) <= min(sorts["typical"]) <= max(sorts["typical"]) <= min(sorts["largest errors"])
    )


def test_examples_are_explained_as_cerebro_explain_does(
    trained: Trained, runs: dict[str, int], written: Callable[..., tuple[Path, Any]]
) -> None:
    cerebro = trained.cerebro
    for sort, table in (("classes", "page_churn"), ("number", "page_price"), ("forecast", "page_sold")):
        _, said = written(runs[sort])
        (target,) = said["targets"]
        examples = [one for of_sort in target["examples"] for one in of_sort["rows"]]
        assert len(examples) >= 9
        for one in examples:
            pushed = one["pushed"]
            assert pushed["others"] == [0, 0]
            sizes = [abs(value) for _, value in pushed["pushes"]]
            assert sizes == sorted(sizes, reverse=True)
            end = one["probability"] if sort == "classes" else one["predicted"]
            assert pushed["base"] + sum(value for _, value in pushed["pushes"]) == pytest.approx(end, rel=1e-4)
            if sort != "forecast":
                shown = dict(one["columns"])
                query = f"SELECT * FROM page_people WHERE age = {shown['age']} AND since = '{shown['since']}'"
                found = cerebro.explain(table, query, "id")
                assert len(found) == 4
                assert dict(pushed["pushes"]) == pytest.approx(
                    {row.column_name: row.contribution for row in found}, rel=1e-4, abs=1e-5
                )
            else:
                assert dict(one["columns"])["price"] in ("0", "1", "2", "3", "4")
    _, said = written(runs["number"], examples=False)
    assert "pushed" not in json.dumps(said)


def test_examples_have_the_largest_columns_and_the_sum_of_the_others(
    trained: Trained, written: Callable[..., tuple[Path, Any]]
) -> None:
    cerebro = trained.cerebro
    columns = ", ".join(f"(n * {number} % 17)::real AS c{number}" for number in range(1, 10))
    targets = "(n * 3 % 17 + n * 5 % 17)::real AS y, CASE WHEN n * 3 % 17 > 8 THEN 'high' ELSE 'low' END AS kind"
    cerebro.rows(f"CREATE TABLE page_wide AS SELECT n AS id, {columns}, {targets} FROM generate_series(1, 200) n")
    common: dict[str, Any] = {"epochs": 2, "segments": 2, "validation": 0.4, "options": {"seed": 1}}
    inputs = [f"c{number}" for number in range(1, 10)]
    run = cerebro.fit("page_wide", "page_wides", LISTED, target="y, kind", inputs=inputs, **common).run
    _, said = written(run)
    assert [target["target"] for target in said["targets"]] == ["y", "kind"]
    for target, end in zip(said["targets"], ("predicted", "probability")):
        for one in (row for sort in target["examples"] for row in sort["rows"]):
            pushed = one["pushed"]
            assert len(pushed["pushes"]) == 6 and pushed["others"][0] == 3
            everything = [pushed["base"], pushed["others"][1], *(value for _, value in pushed["pushes"])]
            assert sum(everything) == pytest.approx(one[end], rel=1e-4)
    with pytest.raises(ClientError, match="numbers has 61 rows, which is more than 60"):
        cerebro.rows("SELECT cerebro_internal._validation_explained('page_wides', NULL, %s)", (list(range(61)),))
    ((none,),) = cerebro.rows("SELECT cerebro_internal._validation_explained('page_wides', NULL, '{9999, NULL}')")
    assert json.loads(none) == {"y": {}, "kind": {}}
    alone = cerebro.fit("page_wide", "page_alone", LISTED, target="y", inputs="c3", **common).run
    _, said = written(alone)  # a single column would say nothing
    assert said["targets"][0]["examples"] and "pushed" not in json.dumps(said)
    for table in ("page_wides", "page_alone"):
        cerebro.drop_model(table)
    cerebro.rows("DROP TABLE page_wide")


def test_explanations_that_take_long_are_left_out(
    runs: dict[str, int], written: Callable[..., tuple[Path, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model, "EXPLAINED_WITHIN", 0.001)
    _, said = written(runs["number"])
    (target,) = said["targets"]
    assert said["judged_why"] is None and len(target["examples"]) == 3 and "pushed" not in json.dumps(said)
    assert said["importance"]["columns"]


def _same(value: float | None, shown: str | None) -> bool:
    if value is None or shown is None:
        return value is None and shown is None
    return float(shown.replace(",", "")) == pytest.approx(value, rel=2e-3)


def test_the_statements_of_the_page_run(
    trained: Trained, runs: dict[str, int], written: Callable[..., tuple[Path, Any]]
) -> None:
    cerebro = trained.cerebro
    for sort, least in (("classes", 10), ("number", 10), ("forecast", 3)):
        _, said = written(runs[sort])
        by_sql, by_python = (one["text"] for one in said["statements"])
        assert len(cerebro.rows(by_sql)) >= least
        assert len(eval(by_python, {"cerebro": cerebro})) >= least  # noqa: S307  (the test's own names)


def test_without_rows_for_validation_the_page_says_so(
    trained: Trained, runs: dict[str, int], written: Callable[..., tuple[Path, Any]]
) -> None:
    cerebro = trained.cerebro
    run = cerebro.fit("page_people", "page_other", LISTED, target="churn", inputs="age", epochs=1, segments=2,
                      validation=0.4, options={"seed": 1}).run  # fmt: skip
    _, said = written(run)
    table = said["packed_tables"][1]
    cerebro.rows(f"DROP TABLE {table}, {table}_summary")
    _, said = written(run)
    assert said["targets"] == [] and "The rows for validation cannot be read" in said["judged_why"]
    assert said["why"] is None and len(said["columns"]) == 2 and len(said["statements"]) == 2
    cerebro.drop_model("page_other")
    _, said = written(run)
    assert said == {"why": model.GONE}


def test_a_page_without_examples_has_no_values_of_rows(
    runs: dict[str, int], written: Callable[..., tuple[Path, Any]]
) -> None:
    file, said = written(runs["number"], examples=False)
    assert said["targets"][0]["examples"] == [] and "Oslo" not in file.read_text()
    file, _ = written(runs["number"])
    assert "Oslo" in file.read_text()


def test_a_model_of_another_user_is_not_read(trained: Trained, tmp_path: Path) -> None:
    """A superuser looks at a run whose owner chose the table: its code would run with the superuser's rights."""
    with town(trained.dsn) as root:
        ben = root.user("ben", "cerebro_user")
        ben("CREATE TABLE few AS SELECT n AS id, n * 1.0 AS x, n * 2.0 AS y FROM generate_series(1, 60) n")
        with connect(ben.dsn) as his:
            number = his.fit("few", "few_models", [{"units": 4}], target="y", inputs="x", epochs=1, validation=0.3).run
            assert _said(his.report(number, tmp_path / "his.html"))["why"] is None
        run = trained.cerebro.run(number, ben.name)
        assert _said(trained.cerebro.report(run, tmp_path / "root.html"))["why"] == model.FOREIGN
        with connect(ben.dsn) as his:
            his.drop_model("few_models")
            his.forget(number)


def _said(file: Path) -> Any:
    found = re.search(r'id="contents">(.*?)</script>', file.read_text(), re.S)
    assert found is not None
    return json.loads(found[1])["runs"][0]["model"]


def test_the_dashboard_computes_once(trained: Trained, runs: dict[str, int]) -> None:
    cerebro = trained.cerebro
    kept: model.Kept = {}
    key = (runs["classes"], cerebro.run(runs["classes"]).owner)
    pages.report(cerebro.engine, [key], kept)
    (judged,) = kept.values()
    judged["judged_why"] = "kept from before"
    assert "kept from before" in pages.report(cerebro.engine, [key], kept)
    cerebro.calibrate("page_churn", decide_by="balanced_accuracy")  # the model is another one now
    cerebro.rows("UPDATE page_churn_info SET quality = jsonb_set(quality, '{says}', '\"another\"')")
    assert "kept from before" not in pages.report(cerebro.engine, [key], kept)


@pytest.mark.browser
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1200])
def test_a_browser_shows_it_and_runs_nothing_of_others(
    trained: Trained, runs: dict[str, int], written: Callable[..., tuple[Path, Any]], chrome: Browser, theme: str,
    width: int,
) -> None:  # fmt: skip
    chrome.theme(theme)
    chrome.size(width, 900, phone=width < 500)
    titles = {
        "classes": ["How good it is", "Confusion matrix", "ROC and precision", "Calibration"],
        "number": ["How good it is", "Predictions and errors"],
        "forecast": ["How good it is", "Predictions and errors"],
    }
    last = ["Importance of columns", "Example predictions", "Predict with it", "Columns", "Lineage and versions"]
    for sort, first in titles.items():
        file, said = written(runs[sort])
        chrome.open(file)
        assert chrome("[...document.querySelectorAll('#model h2')].map((one) => one.textContent)") == [*first, *last]
        assert chrome.complaints == [] and chrome("document.title").startswith("cerebro_db: run ")
        assert chrome("document.querySelectorAll('main img, main script, main style, b').length") == 0
        assert chrome("document.documentElement.scrollWidth") <= width
        text = chrome("document.querySelector('#model').textContent")
        assert (
            COLUMN in text and (MARKUP in text or sort == "number") if sort != "forecast" else "14 consecutive" in text
        )
        drawn = chrome(DRAWN)
        assert len(drawn) == (3 if sort == "classes" else 2) and min(drawn) > 100, drawn
        examples = [one for of_sort in said["targets"][0]["examples"] for one in of_sort["rows"]]
        bars = chrome(BARS)
        assert len(bars) == len(examples)
        most = max(abs(value) for one in examples for _, value in one["pushed"]["pushes"])
        for card, one in zip(bars, examples):
            assert [value for _, value in card] == [value for _, value in one["pushed"]["pushes"]]
            for width_of, value in card:  # to the left of the middle if the column lowers the prediction
                assert width_of == pytest.approx(0.5 * value / most, abs=0.02), (width_of, value, most)
        value = chrome("document.querySelector('[data-model-fact]').dataset.value")
        assert float(value) == said["targets"][0]["metrics"][0]["value"]


# Of each explained example, for each column: how long its bar is, as a part of the cell, and the number beside it.
BARS = """[...document.querySelectorAll('.pushes .pushed')].map((card) =>
  [...card.querySelectorAll('tr')].map((row) => {
    const box = (one) => row.querySelector(one).getBoundingClientRect(), bar = box('.push div'), cell = box('.push');
    const middle = cell.left + cell.width / 2, left = Math.abs(bar.right - middle) < Math.abs(bar.left - middle);
    return [((left ? bar.left : bar.right) - middle) / cell.width, Number(row.querySelector('.number').dataset.value)];
  }))"""

# Pixels with a colour of each chart about the model.
DRAWN = """[...document.querySelectorAll('#model .surface')].map((canvas) => {
  const pen = canvas.getContext('2d'), data = pen.getImageData(0, 0, canvas.width, canvas.height).data;
  let count = 0;
  for (let at = 0; at < data.length; at += 4) {
    const [red, green, blue, opaque] = data.subarray(at, at + 4);
    if (opaque > 60 && Math.max(red, green, blue) - Math.min(red, green, blue) > 60) count += 1;
  }
  return count;
})"""


@pytest.fixture(scope="module")
def chrome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("chromium")) as made:
        yield made


# -- figures -------------------------------------------------------------------------------------------------


def test_intervals_are_as_wide_as_those_of_many_samples() -> None:
    """95 of 100 intervals from samples hold the value of all rows, about."""
    drawn = random.Random(3)
    numbers = [(drawn.gauss(10, 5), drawn.expovariate(1) - 1) for _ in range(20_000)]
    every = [(known, known + error) for known, error in numbers]
    mean = math.fsum(known for known, _ in every) / len(every)
    rmse = math.sqrt(math.fsum((a - b) ** 2 for a, b in every) / len(every))
    r2 = 1 - rmse**2 * len(every) / math.fsum((a - mean) ** 2 for a, _ in every)
    scored = [(int(drawn.random() < 0.3), drawn.random()) for _ in range(20_000)]
    scored = [(known, score ** (0.5 if known else 1.0)) for known, score in scored]
    auc = quality.auc([score for _, score in scored], [known for known, _ in scored])
    held = {"rmse": 0, "r2": 0, "auc": 0}
    for _ in range(200):
        rows = drawn.sample(every, 400)
        found = figures.intervals_of_numbers([a for a, _ in rows], [b for _, b in rows])
        held["rmse"] += found["rmse"][0] <= rmse <= found["rmse"][1]
        held["r2"] += found["r2"][0] <= r2 <= found["r2"][1]
        some = drawn.sample(scored, 300)
        low, high = figures.auc_interval([score for _, score in some], [known for known, _ in some])
        held["auc"] += low <= auc <= high
    assert all(176 <= count <= 199 for count in held.values()), held
    assert figures.share_interval(8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-4)  # as in textbooks
    assert figures.intervals_of_numbers([1.0] * 5, [1.0] * 5) == {}


def test_curves_and_bins_are_those_of_the_metrics() -> None:
    drawn = random.Random(5)
    actual = [int(drawn.random() < 0.4) for _ in range(3000)]
    scores = [round(min(1.0, max(0.0, drawn.gauss(0.4 + 0.2 * one, 0.2))), 3) for one in actual]
    found = figures.curves(scores, actual)
    assert found is not None
    roc = found["roc"]
    area = sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in zip(roc, roc[1:]))
    assert area == pytest.approx(quality.auc(scores, actual), abs=2e-3) and len(roc) <= figures.MOST_POINTS + 1
    assert roc[0] == [0, 0] and roc[-1] == [1, 1] and found["precision"][-1] == [1, round(sum(actual) / 3000, 4)]
    assert figures.curves(scores, [1] * 3000) is None
    probabilities = [[1 - score, score] for score in scores]
    sure = [max(its) for its in probabilities]
    right = [its.index(max(its)) == one for its, one in zip(probabilities, actual)]
    bins = figures.reliability(sure, right)
    error = sum(abs(mean - share) * rows for mean, share, rows in bins) / 3000
    assert error == pytest.approx(calibration.calibration_error(probabilities, actual), abs=1e-3)


def test_a_confusion_matrix_of_many_classes() -> None:
    drawn = random.Random(7)
    labels = [f"c{place}" for place in range(40)]
    actual = [min(39, int(drawn.expovariate(0.2))) for _ in range(2000)]
    predicted = [one if drawn.random() < 0.7 else drawn.randrange(40) for one in actual]
    found = figures.confusion(labels, actual, predicted)
    assert len(found["labels"]) == figures.MOST_CLASSES and found["labels"][-1] == "26 other classes"
    assert sum(map(sum, found["counts"])) == 2000
    place = found["labels"].index("c0")
    assert found["counts"][place][place] == sum(one == other == 0 for one, other in zip(actual, predicted))
    two = figures.confusion([None, "x"], [0, 1, 1], [1, 1, 0])
    assert two == {"labels": ["NULL", "x"], "counts": [[0, 1], [1, 1]], "others": False}


def test_residuals_lose_no_row() -> None:
    drawn = random.Random(9)
    actual = [drawn.gauss(0, 1) ** 3 for _ in range(500)]
    found = figures.residuals(actual, [0.0] * 500)
    assert found is not None and sum(found["counts"]) == 500 and len(found["edges"]) == len(found["counts"]) + 1
    assert figures.residuals([1.0], [1.0]) == {"edges": [0.0, 0.0], "counts": [1], "mean": 0.0, "median": 0.0}
    assert figures.finite([1.0, math.nan, 3.0], [1.0, 2.0, math.inf]) == [[1.0], [1.0]]
