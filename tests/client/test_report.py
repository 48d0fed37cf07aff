"""``cerebro report``: the file says what the views say, and a real browser shows it and runs nothing else."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import math
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import typer
from small_run import HOSTILE, Trained
from typer.testing import CliRunner, Result

from cerebro_db.client import ClientError, NoSuchRun, ServerError, connect
from cerebro_db.client.commands import runs as commands
from cerebro_db.client.report import contents, page
from cerebro_db.client.report.importance import importance, ranks, trend
from tests.client.browser import Browser
from tests.sql.pages import blocks
from tests.sql.users import town
from tests.thorough import landing

LONG = "<script>document.title='ran'</script>" * 300  # 10 kB
RATES = (0.0001, 0.001, 0.01, 0.1)
browser_needed = pytest.mark.browser


# -- the runs that are reported ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def many(iris: Any, trained: Trained) -> Iterator[int]:
    """A run of nine configurations with names that are no names. One fails, and one has a copy."""
    cerebro = trained.cerebro
    listed: list[dict[str, Any]] = [
        {"learning_rate": rate, "units": units, "optimizer": "SGD"} for rate in RATES for units in (4, 16)
    ]
    listed.append({"learning_rate": 1e30, "units": 4, "optimizer": "SGD"})
    run = cerebro.fit("iris", '"report </script><b>models"', listed, target="kind", inputs="attributes", epochs=3,
                      segments=2, validation=0.2, run_name=HOSTILE, description=LONG,
                      objective="val_accuracy", options={"seed": 1}, wait=False)  # fmt: skip
    cerebro.clone_model(run.run, 3, {"learning_rate": 0.02}, reason=HOSTILE)
    run.wait()
    yield run.run
    cerebro.rows('DROP TABLE IF EXISTS "report </script><b>models"')


@pytest.fixture
def write(trained: Trained, tmp_path: Path) -> Callable[..., Path]:
    def written(*runs: int) -> Path:
        return trained.cerebro.report(list(runs), tmp_path / "report.html", replace=True)

    return written


@pytest.fixture(scope="module")
def chrome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("chromium")) as made:
        yield made


@pytest.fixture
def browser(chrome: Browser) -> Browser:
    chrome.size(1200, 900)
    chrome.theme("light")
    return chrome


def said(file: Path) -> Any:
    """The data in a report."""
    found = re.search(r'<script type="application/json" id="contents">(.*?)</script>', file.read_text("utf-8"), re.S)
    return json.loads(found[1])


def command(trained: Trained, *arguments: object) -> Result:
    app = typer.Typer()
    commands.register(app)
    return CliRunner().invoke(app, ["report", *map(str, arguments)], env={"CEREBRO_DSN": trained.dsn, "COLUMNS": "200"})


# -- what the file says --------------------------------------------------------------------------------------------


def test_the_numbers_are_those_of_the_views(trained: Trained, many: int, write: Callable[..., Path]) -> None:
    cerebro = trained.cerebro
    (run,) = said(write(many))["runs"]
    entries = cerebro.leaderboard(many)
    assert len(entries) == len(run["leaderboard"]) == 10
    for entry, row in zip(entries, run["leaderboard"]):
        for name in contents.LEADERBOARD:
            value = getattr(entry, name)
            assert row[name] == (contents.plain(value) if isinstance(value, str) else value), name
    curves = {one["name"]: {curve["model"]: curve for curve in one["curves"]} for one in run["curves"]}
    points = cerebro.learning_curve(many)
    assert points
    for point in points:
        for dataset in ("training", "validation"):
            for name, value in (
                ("loss", getattr(point, f"{dataset}_loss")), ("accuracy", getattr(point, f"{dataset}_metric")),
            ):  # fmt: skip
                if value is not None and math.isfinite(value):
                    curve = curves[f"{dataset} {name}"][point.model]
                    drawn = curve["values"][curve["epochs"].index(point.epoch)]
                    assert drawn == pytest.approx(value, rel=1e-8)
    last = run["best"][-1]
    assert last["value"] == pytest.approx(entries[0].objective_value, rel=1e-8) and run["direction"] == "max"
    assert (last["model"], last["epoch"]) == (entries[0].model, entries[0].epochs_done) and run["keep"] == "last"
    for row, one in zip(run["time"], cerebro.run_time(many)):  # the server may add the seconds in another order
        assert row["activity"] == one.activity
        assert (row["seconds"], row["share"]) == pytest.approx((one.seconds, one.share), rel=1e-12)
    assert len(run["time"]) == len(cerebro.run_time(many))
    drawn = run["timeline"]
    for place, activity in enumerate(cerebro.hop_timeline(many)):
        assert drawn["segments"][drawn["lane"][place]] == activity.segment
        assert (drawn["model"][place], drawn["epoch"][place], drawn["hop"][place]) == (
            activity.model, activity.epoch, activity.hop,
        )  # fmt: skip
        assert drawn["length"][place] == round(1000 * (activity.seconds - activity.seconds_behind))
    assert len(drawn["start"]) == place + 1
    assert len(run["decisions"]) == len(cerebro.decisions(many, changes_only=True)) > 0
    assert run["targets"] == ["kind"]
    assert {one["name"] for one in run["importance"]} == {"learning_rate", "units"}
    assert all(0 <= one["share"] <= 1 and one["configurations"] == 9 for one in run["importance"])


def brute_force(
    points: list[dict[str, Any]], values: dict[int, dict[int, float]], sign: int, keep: str
) -> list[tuple[float, int]]:
    """The best result and its model after each epoch, without those that follow an equal one."""
    found: list[tuple[float, int]] = []
    results: dict[int, float] = {}
    for point in points:
        value, before = values[point["model"]][point["epoch"]], results.get(point["model"])
        if keep == "last" or before is None or sign * value < sign * before:
            results[point["model"]] = value
        best = min(results.items(), key=lambda one: (sign * one[1], one[0]))
        if not found or found[-1] != best[::-1]:
            found.append(best[::-1])
    return found


@pytest.mark.parametrize("keep", ["last", "best"])
@pytest.mark.parametrize("direction", ["min", "max"])
def test_the_best_result_at_each_moment(keep: str, direction: str) -> None:
    """The last result is that of the leaderboard: of a model its last epoch, or its best one if that is kept."""
    drawn, zero, sign = random.Random(7), datetime(2026, 1, 1, tzinfo=timezone.utc), 1 if direction == "min" else -1
    pairs = [(model, epoch) for model in range(1, 6) for epoch in range(1, 9)]
    pairs.sort(key=lambda pair: (pair[1], drawn.random()))
    points = [{"model": model, "epoch": epoch, "trained_at": zero + timedelta(seconds=second)}
              for second, (model, epoch) in enumerate(pairs)]  # fmt: skip
    values = {model: {epoch: round(drawn.random(), 2) for epoch in range(1, 9)} for model in range(1, 6)}
    nothing = {"fold": None, "group_number": None, "parent": None, "status": "finished"}
    entries = [{"model": model, "configuration": model, **nothing} for model in range(1, 6)]
    found = contents.best_against_time(points, values, entries, direction, keep, zero)
    shown = [(one["value"], one["model"]) for one in found]
    assert [one for place, one in enumerate(shown) if place == 0 or shown[place - 1] != one] == (
        brute_force(points, values, sign, keep)
    )
    seconds = [one["seconds"] for one in found]
    assert seconds == sorted(seconds) and all(one["reached"] <= one["seconds"] for one in found)
    ends = {model: min(sign * one for one in its.values()) if keep == "best" else sign * its[8]
            for model, its in values.items()}  # fmt: skip
    assert found[-1]["value"] == sign * min(ends.values())
    # A model that failed, or one of a group, is not the best one.
    without = [{**entries[0], "status": "failed"}, {**entries[1], "group_number": 1}, *entries[2:]]
    assert {1, 2}.isdisjoint(
        one["model"] for one in contents.best_against_time(points, values, without, direction, keep, zero)
    )


def test_a_run_that_keeps_best_states_says_so(
    trained: Trained, fresh_output: Callable[[], str], write: Callable[..., Path]
) -> None:
    cerebro = trained.cerebro
    listed = [{"learning_rate": rate, "units": 4} for rate in (0.5, 2.0)]
    run = cerebro.fit("iris", f"{fresh_output()}_kept", listed, target="kind", inputs="attributes", epochs=5,
                      segments=1, validation=0.3, objective="val_accuracy",
                      options={"seed": 1, "keep": "best"}).run  # fmt: skip
    (reported,) = said(write(run))["runs"]
    entries = cerebro.leaderboard(run)
    assert any(one.best_epoch != one.epochs_done for one in entries)
    first, last = entries[0], reported["best"][-1]
    assert reported["keep"] == "best" and (last["model"], last["epoch"]) == (first.model, first.best_epoch)
    assert last["value"] == pytest.approx(first.objective_value, rel=1e-8)
    # Monitors do not see the option, but which values the leaderboard has.
    assert contents.keep_of(None, reported["leaderboard"]) == "best"
    assert contents.keep_of(None, said(write(trained.run))["runs"][0]["leaderboard"]) == "last"


def test_texts_of_others_are_data(many: int, write: Callable[..., Path]) -> None:
    file = write(many)
    text = file.read_text("utf-8")
    (run,) = said(file)["runs"]
    assert "</script><img" in run["name"] and "\u202e" not in run["name"] and "\x1b" not in run["name"]
    assert len(run["description"]) == contents.TEXT and "</script><b>models" in run["model_table"]
    assert text.count("</script>") == 2 and text.lower().count("<script") == 2 and "\u2028" not in text
    assert '<img src=x onerror="' not in text and "\\u003c" in text


def test_nothing_but_its_own_script_may_run(many: int, write: Callable[..., Path]) -> None:
    text = write(many).read_text("utf-8")
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1]
    for kind, block in (("script", text.rsplit("<script>", 1)[1].split("</script>")[0]),
                        ("style", text.split("<style>", 1)[1].split("</style>")[0])):  # fmt: skip
        hashed = base64.b64encode(hashlib.sha256(block.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{hashed}'" in policy
    assert policy.startswith("default-src 'none';") and "unsafe" not in policy and "http" not in policy
    script = "".join((Path(page.__file__).parent / name).read_text("utf-8") for name in ("model.js", "report.js"))
    for sink in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function(", "fetch(",
                 "XMLHttpRequest", "import(", "http:", "https:"):  # fmt: skip
        assert sink not in script, sink


PLANTED = """
INSERT INTO cerebro.run (run, source_table, packed_table, model_table, selection_table, arch_table, epochs,
                         evaluate_every, seed, segments, dist_keys, configurations, rows_per_epoch, storage, options,
                         layout, packed_summary, version)
VALUES ({0}, %(text)s, 'p', 'm', 's', 'a', 2000000000, 1, 1, 1, '{{0}}', 1, 1, 'none', '{{}}', '{{"outputs": "x"}}',
        '{{}}', 'v');
INSERT INTO cerebro.event (run, event, detail)
SELECT {0}, event, '{{"pid": 1, "backend_start": "2020-01-01T00:00:00+00:00"}}'
  FROM unnest(ARRAY['created', 'started', 'finished']) event;
INSERT INTO cerebro.configuration (run, configuration, place, model_id, compile_params, fit_params, compile, fit,
                                   parameters)
VALUES ({0}, 1, 1, 1, '', '', '{{}}', '{{}}',
        jsonb_build_object(%(text)s, 'NaN', 'units', jsonb_build_array(%(text)s)));
INSERT INTO cerebro.model (run, model, configuration, seed, initial, parent, parent_hop)
VALUES ({0}, 1, 1, 1, 'random', 2, 1), ({0}, 2, 1, 1, 'random', 1, 1);
INSERT INTO cerebro.hop (run, model, hop, epoch, segment, started_at, trainer_pid, rows, steps, loss, metric_name,
                         metric, metrics, state_bytes, state_sha256, weights_offset, weights_bytes, seconds)
VALUES ({0}, 1, 1, 2000000000, 2000000000, '2000-01-01', 1, 1, 1, 'NaN', %(text)s, 'Infinity', '{{"x": 1e200}}', 1, '',
        0, 0, '{{"train": 1}}'),
       ({0}, 2, 1, 5, 7, now() + interval '9 days', 1, 1, 1, 1, 'x', 1, '{{}}', 1, '', 0, 0, '{{}}');
"""


@browser_needed
def test_what_a_stranger_planted_in_the_log(trained: Trained, tmp_path: Path, browser: Browser) -> None:
    """Users write the rows of their runs themselves, and a monitor reads the runs of all users."""
    with town(trained.dsn) as root:
        mallory, monitor = root.user("mallory", "cerebro_user"), root.user("watcher", "cerebro_monitor")
        number = 2**40
        with mallory.connection.cursor() as cursor:
            cursor.execute(PLANTED.format(number), {"text": HOSTILE})
        for user in (mallory, monitor):
            with connect(user.dsn) as cerebro:
                file = cerebro.report(number, tmp_path / f"{user.name}.html")
            (run,) = said(file)["runs"]
            assert run["timeline"]["segments"] == [7, 2000000000] and run["targets"] is None
            assert [one["model"] for one in run["leaderboard"]] == [2, 1]
            browser.open(file)
            quiet(browser, file)
            assert browser("document.querySelectorAll('main h2').length") == 10
        mallory(f"SELECT cerebro.forget({number})")


# -- bad input -----------------------------------------------------------------------------------------------------


def test_bad_input(trained: Trained, tmp_path: Path) -> None:
    number, cerebro = trained.run, trained.cerebro
    file = tmp_path / "report.html"
    for arguments, message in (
        ((987654, "-o", file), "There is no run 987654 of yours"),
        ((number, 987654, "-o", file), "There is no run 987654 of yours"),
        ((number, "-o", tmp_path / "none" / "report.html"), f"There is no folder {tmp_path / 'none'}"),
        ((number, "-o", tmp_path), "is a folder"),
        ((number, "-o", tmp_path / ("x" * 300)), "cannot be written"),
    ):
        refused = command(trained, *arguments)
        assert refused.exit_code == 1 and message in refused.output, refused.output
        assert "Traceback" not in refused.output
    assert command(trained, "twelve", "-o", file).exit_code == 2
    assert list(tmp_path.iterdir()) == []
    file.write_text("mine")
    refused = command(trained, number, "-o", file)
    assert refused.exit_code == 1 and "exists" in refused.output and "--replace" in refused.output
    assert file.read_text() == "mine"
    replaced = command(trained, number, "-o", file, "--replace")
    assert (replaced.exit_code, replaced.output) == (0, f"Written: {file}\n")
    assert said(file)["runs"][0]["run"] == number and list(tmp_path.iterdir()) == [file]
    told = command(trained, number, "-o", file, "--replace", "--json")
    assert (told.exit_code, json.loads(told.output)) == (0, {"file": str(file)})
    latest = command(trained, "-o", file, "--replace")  # without a number, as cerebro watch and cerebro show
    assert latest.exit_code == 0 and said(file)["runs"][0]["run"] == cerebro.runs()[0].run
    with pytest.raises(ClientError, match="at least one run"):
        cerebro.report([], file, replace=True)
    with pytest.raises(TypeError, match="a run is given by"):
        cerebro.report("12", file, replace=True)  # type: ignore[arg-type]
    assert len(said(cerebro.report([number, number], file, replace=True))["runs"]) == 1
    assert cerebro.handle(number).report(file, replace=True) == file


def test_rights(trained: Trained, tmp_path: Path) -> None:
    with town(trained.dsn) as root:
        other, nobody, monitor = (
            root.user("other", "cerebro_user"),
            root.user("nobody"),
            root.user("m", "cerebro_monitor"),
        )
        with connect(other.dsn) as theirs, pytest.raises(NoSuchRun):
            theirs.report(trained.run, tmp_path / "other.html")
        with connect(nobody.dsn) as theirs, pytest.raises(ServerError, match="permission denied"):
            theirs.report(trained.run, tmp_path / "nobody.html")
        assert list(tmp_path.iterdir()) == []
        with connect(monitor.dsn) as theirs:
            (run,) = said(theirs.report(trained.run, tmp_path / "monitor.html"))["runs"]
        assert run["targets"] is None and not any(name.startswith("option") for name in run["settings"])
        for owner, code in ((run["owner"], 0), (other.name, 1)):
            shown = command(trained, trained.run, "--dsn", monitor.dsn, "--owner", owner, "-o", tmp_path / owner)
            assert shown.exit_code == code and (code == 0 or f"no run {trained.run} of {owner}" in shown.output)


def test_the_commands_of_the_page(trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (lines,) = [one for one in blocks("docs/run.md", "sh") if one.startswith("cerebro report")]
    for line in lines.splitlines():
        words = re.sub(r"\b1[23]\b", str(trained.run), line).partition("#")[0].split()
        assert words[:2] == ["cerebro", "report"]
        done = command(trained, *words[2:])
        assert done.exit_code == 0, (line, done.output)
    assert {file.name for file in tmp_path.iterdir()} == {"report.html", "run.html", "both.html"}


# -- importance ----------------------------------------------------------------------------------------------------


def test_importance_finds_what_matters() -> None:
    drawn = random.Random(1)
    rates = [10 ** drawn.uniform(-4, -0.5) for _ in range(400)]
    kinds, noise = [drawn.choice("ab") for _ in rates], [drawn.random() for _ in rates]
    results = [-((math.log10(rate) + 2) ** 2) + 0.3 * (kind == "a") for rate, kind in zip(rates, kinds)]
    shares = [importance(values, results) for values in (rates, kinds, noise)]
    assert shares[0] > 0.6 and 0.02 < shares[1] < 0.2 and shares[2] < 0.03
    assert importance(rates, [-1e9 if place == 7 else one for place, one in enumerate(results)]) == pytest.approx(
        shares[0], abs=0.02
    )
    assert trend(rates, rates) == pytest.approx(1) and trend(rates, [-one for one in rates]) == pytest.approx(-1)


def test_importance_where_there_is_none() -> None:
    assert importance([1, 2], [0.1, 0.2]) is None  # too few
    assert importance([1] * 20, list(range(20))) is None and importance(list(range(20)), [1.0] * 20) is None
    assert importance([None, "a"] * 10, [0.0, 1.0] * 10) == pytest.approx(1)
    assert trend(["a"] * 20, list(range(20))) is None and trend([1] * 20, list(range(20))) is None
    assert ranks([3.0, 1.0, 3.0]) == [2.5, 1, 2.5]


# -- in the browser ------------------------------------------------------------------------------------------------

# Pixels of each canvas that have a colour: axes, texts and grey lines have none.
COLOURED = """(selector) => [...document.querySelectorAll(selector)].map((canvas) => {
  const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  let count = 0;
  for (let at = 0; at < data.length; at += 4) {
    const [red, green, blue, opaque] = data.subarray(at, at + 4);
    if (opaque > 60 && Math.max(red, green, blue) - Math.min(red, green, blue) > 60) count += 1;
  }
  return count;
})"""
# The texts whose contrast with their ground is below that of WCAG 2.1, AA.
PALE = """(() => {
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const linear = (one) => (one / 255 <= 0.04045 ? one / 255 / 12.92 : ((one / 255 + 0.055) / 1.055) ** 2.4);
  const light = ([red, green, blue]) => 0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue);
  const ground = (one) => {
    const found = parse(getComputedStyle(one).backgroundColor);
    return found.length === 3 || found[3] > 0 ? found : ground(one.parentElement);
  };
  const hasText = (one) => [...one.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
  return [...document.querySelectorAll("main *")].filter((one) => hasText(one) && one.getClientRects().length)
    .map((one) => {
      const [dark, bright] = [light(parse(getComputedStyle(one).color)), light(ground(one))].sort((a, b) => a - b);
      return [one.tagName, one.className, one.textContent.slice(0, 30), (bright + 0.05) / (dark + 0.05)];
    }).filter(([, , , contrast]) => contrast < 4.5);
})()"""

# The least contrast of a line in the charts with their ground, and how many lines are drawn.
FAINT = """(() => {
  const parse = (text) => text.startsWith("#")
    ? [1, 3, 5].map((at) => parseInt(text.slice(at, at + 2), 16)) : text.match(/[\\d.]+/g).map(Number).slice(0, 3);
  const linear = (one) => (one / 255 <= 0.04045 ? one / 255 / 12.92 : ((one / 255 + 0.055) / 1.055) ** 2.4);
  const light = ([red, green, blue]) => 0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue);
  const ground = parse(getComputedStyle(document.body).backgroundColor), pen = CanvasRenderingContext2D.prototype;
  const stroke = pen.stroke, found = { lines: 0, least: 99 }, axes = parse(getComputedStyle(document.documentElement)
    .getPropertyValue("--line").trim()).join();
  pen.stroke = function () {
    const colour = parse(this.strokeStyle);
    if (colour.join() !== axes) {
      const seen = colour.map((one, at) => one * this.globalAlpha + ground[at] * (1 - this.globalAlpha));
      const [dark, bright] = [light(seen), light(ground)].sort((a, b) => a - b);
      found.lines += 1;
      found.least = Math.min(found.least, (bright + 0.05) / (dark + 0.05));
    }
    return stroke.call(this);
  };
  const input = document.querySelector("#leaderboard input");
  input.dispatchEvent(new Event("input"));
  const twoFrames = (act) => requestAnimationFrame(() => requestAnimationFrame(act));
  return new Promise((done) => twoFrames(() => { pen.stroke = stroke; done(found); }));
})()"""


def quiet(browser: Browser, file: Path) -> None:
    """The page has loaded nothing, reported nothing and run nothing of others."""
    assert browser.requests == [file.resolve().as_uri()]
    assert browser.complaints == []
    assert browser("document.title").startswith("cerebro_db: run ")
    assert browser("document.querySelectorAll('img, iframe, main script, main style, b').length") == 0


def middle(browser: Browser, selector: str) -> tuple[float, float, float, float]:
    """Left, top, width and height of an element, which is scrolled into sight."""
    browser(f"document.querySelector({selector!r}).scrollIntoView({{block: 'center'}})")
    browser.settle()
    box = browser(
        f"(() => {{ const box = document.querySelector({selector!r}).getBoundingClientRect();"
        " return [box.left, box.top, box.width, box.height]; })()"
    )
    return tuple(box)


def cells(browser: Browser, heading: str) -> list[Any]:
    """The exact values of a column of the leaderboard."""
    return browser(f"""(() => {{
      const table = document.querySelector("#leaderboard table"), heads = [...table.querySelectorAll("th")];
      const place = heads.findIndex((one) => one.textContent.replace(/ [▲▼]$/, "") === {heading!r});
      const rows = [...table.querySelectorAll("tbody tr")].map((row) => row.children[place]);
      return rows.map((cell) => cell.dataset.value ?? cell.textContent);
    }})()""")


@browser_needed
def test_it_shows_the_numbers_of_the_views(
    browser: Browser, trained: Trained, many: int, write: Callable[..., Path]
) -> None:
    file = write(many)
    browser.open(file)
    quiet(browser, file)
    entries = trained.cerebro.leaderboard(many)
    assert cells(browser, "model") == [str(entry.model) for entry in entries]
    for heading, name in (("val_accuracy", "objective_value"), ("validation loss", "validation_loss"),
                          ("training loss", "training_loss"), ("epochs", "epochs_done")):  # fmt: skip
        shown = cells(browser, heading)
        for entry, text in zip(entries, shown):
            value = getattr(entry, name)
            assert text == "–" if value is None else float(text) == value, (name, text)
    written = browser("[...document.querySelectorAll('#leaderboard tr td:nth-child(3)')].map((cell) => cell.innerText)")
    assert written == ["–" if one.objective_value is None else f"{one.objective_value:.4f}" for one in entries]
    assert float(browser("document.querySelector('[data-fact=\"best val_accuracy\"]').dataset.value")) == (
        entries[0].objective_value
    )
    times = browser("[...document.querySelectorAll('#where-the-time-went td.number')].map((cell) => cell.title)")
    expected = [figure for one in trained.cerebro.run_time(many) for figure in (one.seconds, one.share)]
    assert [float(text) for text in times] == pytest.approx(expected, rel=1e-12)
    failed = next(entry for entry in entries if entry.status == "failed")
    assert failed.reason in browser("document.querySelector('#models-that-failed-or-ended-early').textContent")
    lineage = browser("document.querySelector('#decisions-and-lineage').textContent")
    clone = next(entry for entry in entries if entry.parent is not None)
    assert "Models that continue the state of another" in lineage and f"model {clone.model} (" in lineage
    assert "document.title='ran'" in lineage  # the reason of the request, as text


@browser_needed
def test_the_first_line_says_how_good_the_model_is(
    browser: Browser, trained: Trained, judged: str, write: Callable[..., Path]
) -> None:
    file = write(trained.run)
    (run,) = said(file)["runs"]
    assert (run["chosen_configuration"], run["quality"]) == (4, judged)
    browser.open(file)
    quiet(browser, file)
    assert browser("document.querySelector('h1').textContent") == run["model"]["model_table"]
    assert browser("document.querySelector('.quality').textContent") == judged
    tiles = browser("[...document.querySelectorAll('.tiles [data-model-fact]')].map((one) => one.dataset.value)")
    assert float(tiles[0]) == trained.cerebro.evaluate(run["model_table"])["accuracy"]


def choose(browser: Browser, option: int) -> None:
    """Chooses one of the leaderboard's selections of models, and waits for the drawings."""
    browser(f"""(() => {{
      const select = document.querySelectorAll("#leaderboard select")[1];
      select.selectedIndex = {option};
      select.dispatchEvent(new Event("change"));
    }})()""")
    browser.settle()


def test_a_run_with_groups_is_told_apart(trained: Trained, grouped: int, write: Callable[..., Path]) -> None:
    cerebro = trained.cerebro
    (run,) = said(write(grouped))["runs"]
    entries, groups = cerebro.leaderboard(grouped), cerebro.groups(grouped)
    assert len(entries) == 12 and Counter(one.rank for one in entries) == {1: 4, 2: 4, 3: 4}
    assert [one["model"] for one in run["leaderboard"]] == [one.model for one in entries]
    assert [(one["rank"], one["group_number"]) for one in run["leaderboard"][:4]] == [(1, None), (2, None), (3, None),
                                                                                     (1, 1)]  # fmt: skip
    assert {one["group_value"] for one in run["leaderboard"]} == {
        None if one.group_value is None else contents.plain(one.group_value) for one in entries
    }
    assert len(groups) == len(run["groups"]) == 3
    for group, row in zip(groups, run["groups"]):
        for name in contents.GROUPS:
            value = getattr(group, name)
            assert row[name] == (contents.plain(value) if isinstance(value, str) else value), name
    # The best result is that of the models on all rows.
    assert run["best"][-1]["model"] == entries[0].model and entries[0].group_number is None
    assert run["best"][-1]["value"] == pytest.approx(entries[0].objective_value, rel=1e-8)
    assert {model for one in run["parameters"] for model in one["models"]} == {one.model for one in entries[:3]}


@browser_needed
def test_it_shows_the_models_of_groups(
    browser: Browser, trained: Trained, grouped: int, write: Callable[..., Path]
) -> None:
    file = write(grouped)
    browser.open(file)
    quiet(browser, file)
    entries, groups = trained.cerebro.leaderboard(grouped), trained.cerebro.groups(grouped)
    of = {number: [str(one.model) for one in entries if one.group_number == number] for number in (None, 1, 2, 3)}
    assert cells(browser, "model") == of[None] and set(cells(browser, "group")) == {"–"}
    tile = """document.querySelector('[data-fact="best val_accuracy"]')"""
    assert float(browser(f"{tile}.dataset.value")) == entries[0].objective_value
    assert browser(f"{tile}.parentElement.querySelector('dt').textContent") == "best val_accuracy, on all rows"
    head = browser("document.querySelector('header').textContent")
    assert "in its last epoch" in head and "These are the models on all rows" in head
    chart = "#learning-curves .u-wrap > canvas"
    whole = browser(f"document.querySelector('{chart}').toDataURL()")
    choose(browser, 1)
    assert set(cells(browser, "model")) == {str(one.model) for one in entries}
    for number, group in enumerate(groups, 1):
        choose(browser, 1 + number)
        assert cells(browser, "model") == of[number]
        assert set(cells(browser, "group")) == {contents.plain(group.group_value)}
        assert browser(f"document.querySelector('{chart}').toDataURL()") != whole
        assert min(browser(f"({COLOURED})('{chart}')")) > 100
        assert min(browser(f"({COLOURED})('#hyper-parameters-and-result .surface')")) > 50
        browser("document.querySelector('#learning-curves .chart').focus()")
        browser.press("ArrowDown")
        readout = browser("document.querySelector('#learning-curves .readout').textContent")
        assert f"group {contents.plain(group.group_value)}" in readout
    choose(browser, 0)
    assert cells(browser, "model") == of[None]
    assert browser(f"document.querySelector('{chart}').toDataURL()") == whole
    shown = browser("""[...document.querySelectorAll('#best-model-of-each-group tbody tr')].map((row) =>
        [...row.querySelectorAll('td.number')].map((cell) => cell.dataset.value))""")
    for group, numbers in zip(groups, shown):
        assert [float(one) for one in numbers] == [
            group.rows, group.validation_rows, group.objective_value, group.all_rows_objective_value, group.model,
            group.configuration,
        ]  # fmt: skip
    worse = sum(bool(one.worse_than_all_rows) for one in groups)
    told = browser("document.querySelector('#best-model-of-each-group p').textContent")
    assert told.startswith(f"{worse} of 3 groups gain nothing")
    browser("document.querySelectorAll('#best-model-of-each-group tbody button')[2].click()")
    browser.settle()
    assert cells(browser, "model") == of[3]
    browser("document.querySelector('#leaderboard input').value = 'rome'")
    browser("document.querySelector('#leaderboard input').dispatchEvent(new Event('input'))")
    choose(browser, 1)
    rome = next(one.group_number for one in groups if one.group_value == "Rome")
    assert set(cells(browser, "model")) == set(of[rome])
    assert [one for one in browser.complaints if "getImageData" not in one] == []  # which this test has called
    assert browser("document.querySelectorAll('img, iframe, main script, main style, b').length") == 0


@browser_needed
@pytest.mark.parametrize(
    ("theme", "width"),
    landing(itertools.product(["light", "dark"], [390, 1200]), ("light", 390), ("dark", 1200)),
)
def test_every_chart_has_something_in_it(
    browser: Browser, many: int, write: Callable[..., Path], theme: str, width: int
) -> None:
    browser.theme(theme)
    browser.size(width, 900, phone=width < 500)
    file = write(many)
    browser.open(file)
    quiet(browser, file)
    charts = {
        "#best-result-against-time .u-wrap > canvas": 100, "#learning-curves .u-wrap > canvas": 500,
        "#hyper-parameters-and-result .surface": 200, "#what-each-segment-did .surface": 500,
    }  # fmt: skip
    for selector, least in charts.items():
        (coloured,) = browser(f"({COLOURED})({selector!r})")
        assert coloured > least, (selector, coloured)
    for place in ("#importance-of-hyper-parameters", "#where-the-time-went"):
        bars = browser(
            f"[...document.querySelectorAll('{place} .bar div')].map((bar) => bar.getBoundingClientRect().width)"
        )
        assert max(bars) > 5, (place, bars)
    assert browser("document.documentElement.scrollWidth") <= width
    assert browser(PALE) == []
    # Without a model there is nothing to draw: the counts above can fail.
    browser("document.querySelector('#leaderboard input').value = 'no such model'")
    browser("document.querySelector('#leaderboard input').dispatchEvent(new Event('input'))")
    browser.settle()
    assert browser(f"({COLOURED})('#learning-curves .u-wrap > canvas')") == [0]
    assert browser("document.querySelectorAll('#leaderboard tbody tr').length") == 0


@browser_needed
def test_the_theme_changes_while_it_is_open(browser: Browser, many: int, write: Callable[..., Path]) -> None:
    browser.open(write(many))
    light = browser("document.querySelector('#what-each-segment-did .surface').toDataURL()")
    browser.theme("dark")
    browser.settle()
    assert browser("document.querySelector('#what-each-segment-did .surface').toDataURL()") != light
    browser.theme("light")
    browser.settle()
    assert browser("document.querySelector('#what-each-segment-did .surface').toDataURL()") == light


@browser_needed
def test_the_leaderboard_sorts_and_filters(
    browser: Browser, trained: Trained, many: int, write: Callable[..., Path]
) -> None:
    browser.open(write(many))
    entries = trained.cerebro.leaderboard(many)
    browser("document.querySelectorAll('#leaderboard th button')[1].focus()")
    browser.press("Enter")
    assert cells(browser, "model") == [str(number) for number in sorted(entry.model for entry in entries)]
    assert browser("document.activeElement.closest('th').getAttribute('aria-sort')") == "ascending"
    browser.press("Enter")
    assert cells(browser, "model") == [
        str(number) for number in sorted((entry.model for entry in entries), reverse=True)
    ]
    browser.press("Tab")  # to the next heading
    browser.press(" ")
    assert [float(text) for text in cells(browser, "val_accuracy") if text != "–"] == sorted(
        entry.objective_value for entry in entries if entry.objective_value is not None
    )
    browser("document.querySelector('#leaderboard input').focus()")
    for letter in "units=16":
        browser.press(letter)
    browser.settle()
    wide = {str(entry.model) for entry in entries if entry.parameters["units"] == 16}
    assert set(cells(browser, "model")) == wide and 0 < len(wide) < len(entries)
    browser("(() => { const select = document.querySelectorAll('#leaderboard select')[0]; select.value = 'failed';"
            " select.dispatchEvent(new Event('change')); })()")  # fmt: skip
    assert cells(browser, "model") == []


@browser_needed
def test_curves_by_keyboard_and_pointer(
    browser: Browser, trained: Trained, many: int, write: Callable[..., Path]
) -> None:
    browser.open(write(many))
    points = {(one.model, one.epoch): one for one in trained.cerebro.learning_curve(many)}
    entries = trained.cerebro.leaderboard(many)
    readout = "document.querySelector('#learning-curves .readout').textContent"
    browser("document.querySelector('#learning-curves .chart').focus()")
    for entry in entries[:3]:
        browser.press("ArrowDown")
        text = browser(readout)
        last = max(epoch for model, epoch in points if model == entry.model)
        assert text.startswith(f"model {entry.model} (configuration {entry.configuration}")
        assert text.endswith(f"validation accuracy {points[entry.model, last].validation_metric:.4f} in epoch {last}")
        assert browser("document.querySelector('#leaderboard tr.chosen').dataset.model") == str(entry.model)
    left, top, width, height = middle(browser, "#learning-curves .u-over")
    seen = set()
    for x in range(0, int(width), 12):
        for y in range(2, int(height), 24):
            browser.mouse("mouseMoved", left + x, top + y)
            if found := re.fullmatch(
                r"model (\d+) \(.*\): validation accuracy ([\d.]+) in epoch (\d+)", browser(readout), re.S
            ):
                model, value, epoch = int(found[1]), found[2], int(found[3])
                expected = points[model, epoch].validation_metric
                assert float(value) == pytest.approx(expected, abs=6e-5)
                seen.add((model, epoch))
    assert {epoch for _, epoch in seen} == {1, 2, 3} and len({model for model, _ in seen}) >= 3


@browser_needed
def test_the_time_line_zooms(browser: Browser, trained: Trained, many: int, write: Callable[..., Path]) -> None:
    browser.open(write(many))
    canvas = "document.querySelector('#what-each-segment-did .surface').toDataURL()"
    whole = browser(canvas)
    pictures = [whole]
    browser("document.querySelector('#what-each-segment-did .chart').focus()")
    for key in ("+", "+", "ArrowLeft", "-"):
        browser.press(key)
        pictures.append(browser(canvas))
    assert len(set(pictures)) == len(pictures)
    browser.press("0")
    assert browser(canvas) == whole
    left, top, width, _ = middle(browser, "#what-each-segment-did .surface")
    browser.drag((left + 0.3 * width, top + 20), (left + 0.5 * width, top + 20))
    zoomed = browser(canvas)
    assert zoomed not in pictures
    browser("document.querySelector('#what-each-segment-did button[title=\"Show all\"]').click()")
    browser.mouse("mouseMoved", 1, 1)  # the box under the pointer has a frame
    browser.settle()
    assert browser(canvas) == whole
    activities = trained.cerebro.hop_timeline(many)
    lengths = {(one.segment, one.model, one.epoch): set() for one in activities}
    for one in activities:
        lengths[one.segment, one.model, one.epoch].add(round(1000 * (one.seconds - one.seconds_behind)))
    left, top, width, _ = middle(browser, "#what-each-segment-did .surface")
    seen = set()
    for lane in (0, 1):
        for x in range(90, int(width) - 10, 15):
            browser.mouse("mouseMoved", left + x, top + 4 + 26 * lane + 13)
            text = browser("document.querySelector('#what-each-segment-did .readout').textContent")
            found = re.match(
                r"segment (\d) (\w+) model (\d+) .*, epoch (\d+)(?:, hop \d+)?: ([\d.]+) s, from", text, re.S
            )
            if found:
                assert round(1000 * float(found[5])) in lengths[int(found[1]), int(found[3]), int(found[4])]
                assert found[2] in ("trains", "evaluates") and int(found[1]) == lane
                seen.add(found[0])
    assert len(seen) > 10


@browser_needed
def test_a_range_on_an_axis_filters(browser: Browser, trained: Trained, many: int, write: Callable[..., Path]) -> None:
    browser.open(write(many))
    run = said(write(many))["runs"][0]
    axes = [one["name"] for one in run["parameters"]]
    left, top, width, _ = middle(browser, "#hyper-parameters-and-result .surface")
    x = left + 60 + axes.index("units") * (width - 120) / len(axes)
    browser.drag((x, top + 48), (x, top + 120))  # the upper end of the axis
    wide = {str(one.model) for one in trained.cerebro.leaderboard(many) if one.parameters["units"] == 16}
    assert set(cells(browser, "model")) == wide
    browser("document.querySelector('#hyper-parameters-and-result button').click()")
    assert len(cells(browser, "model")) == len(trained.cerebro.leaderboard(many))


@browser_needed
def test_two_runs_beside_each_other(browser: Browser, trained: Trained, many: int, write: Callable[..., Path]) -> None:
    file = write(many, trained.run)
    browser.open(file)
    quiet(browser, file)
    text = browser("document.querySelector('#compared').textContent")
    assert "different objectives" in text and "predict different targets" not in text
    rows = browser("""[...document.querySelectorAll('#settings-of-the-runs tbody tr')].map((row) =>
        [...row.children].map((cell) => cell.textContent))""")
    settings = {name: (one, other) for name, one, other in rows}
    assert settings["epochs"] == ("3", "2") and "segments" not in settings
    browser("document.querySelector('#settings-of-the-runs input').click()")
    assert "segments" in browser("document.querySelector('#settings-of-the-runs').textContent")
    results = browser("""Object.fromEntries([...document.querySelectorAll('#results-of-the-runs tbody tr')].map((row) =>
        [row.children[0].textContent, [...row.children].slice(1).map((cell) => cell.dataset.value)]))""")
    entries = [trained.cerebro.leaderboard(run) for run in (many, trained.run)]
    assert results["models"] == [str(len(one)) for one in entries]
    assert float(results["best val_accuracy"][0]) == entries[0][0].objective_value
    assert float(results["best val_loss"][1]) == entries[1][0].objective_value
    browser("document.querySelectorAll('nav button')[1].click()")
    browser.settle()
    assert cells(browser, "model") == [str(entry.model) for entry in entries[1]]
    assert browser("document.querySelector('nav button[aria-pressed=true]').textContent").startswith(
        f"Run {trained.run}"
    )
    quiet(browser, file)


@browser_needed
def test_every_figure_of_two_runs_beside_each_other(
    browser: Browser, trained: Trained, many: int, grouped: int, write: Callable[..., Path]
) -> None:
    file, cerebro = write(many, grouped), trained.cerebro
    browser.open(file)
    quiet(browser, file)
    results = browser("""Object.fromEntries([...document.querySelectorAll('#results-of-the-runs tbody tr')].map((row) =>
        [row.children[0].textContent, [...row.children].slice(1).map((cell) => cell.dataset.value)]))""")
    expected: dict[str, list[Any]] = {}
    for run in (many, grouped):
        entries, progress, groups = cerebro.leaderboard(run), cerebro.run_progress(run), cerebro.groups(run)
        counts = Counter(one.status for one in entries)
        training = next(one.share for one in cerebro.run_time(run) if one.activity == "training")
        facts = {
            "status": progress.status, "best val_accuracy": entries[0].objective_value,
            "best configuration": entries[0].configuration, "models": len(entries), "groups": len(groups) or "",
            "finished": counts["finished"], "ended early": counts["stopped"], "failed": counts["failed"],
            "hops": f"{progress.hops_done} of {progress.hops_total}", "training": f"{100 * training:.1f} %",
        }  # fmt: skip
        for name, value in facts.items():
            expected.setdefault(name, []).append(str(value))
    times = {name: results.pop(name) for name in ("took", "time to the best")}
    assert results == expected
    assert all(re.fullmatch(r"\d+\.\d s", one) for both in times.values() for one in both)
    # All settings, and those that differ.
    known = [run["settings"] for run in said(file)["runs"]]
    names = list(dict.fromkeys(name for settings in known for name in settings))
    rows = (
        "[...document.querySelectorAll('#settings-of-the-runs tbody tr')].map((row) => [...row.children].map((cell) =>"
    )
    shown = {name: pair for name, *pair in browser(f"{rows} cell.textContent))")}
    both = {name: [settings.get(name) for settings in known] for name in names}
    assert shown == {name: [one or "–" for one in pair] for name, pair in both.items() if pair[0] != pair[1]}
    browser("document.querySelector('#settings-of-the-runs input').click()")
    shown = {name: pair for name, *pair in browser(f"{rows} cell.textContent))")}
    assert shown == {name: [one or "–" for one in pair] for name, pair in both.items() if pair != [None, None]}


@browser_needed
def test_the_best_results_of_two_runs_are_in_one_chart(
    browser: Browser, many: int, grouped: int, write: Callable[..., Path]
) -> None:
    file = write(many, grouped)
    browser.open(file)
    place = "#best-result-against-time-of-all-runs"
    (coloured,) = browser(f"({COLOURED})('{place} .u-wrap > canvas')")
    assert coloured > 200
    legend = browser(f"document.querySelector('{place} p').textContent")
    assert all(f"Run {number}" in legend for number in (many, grouped))
    runs = {run["run"]: run for run in said(file)["runs"]}
    left, top, width, height = middle(browser, f"{place} .u-over")
    seen = set()
    for x in range(0, int(width), 8):
        for y in range(2, int(height), 16):
            browser.mouse("mouseMoved", left + x, top + y)
            text = browser(f"document.querySelector('{place} .readout').textContent")
            found = re.fullmatch(
                r"run (\d+), after [\d.:]+(?: s)?: ([\d.]+) by model (\d+) .* in epoch (\d+)", text, re.S
            )
            if found:
                seen.add((int(found[1]), float(found[2]), int(found[3]), int(found[4])))
    for run, value, model, epoch in seen:
        assert any(
            (one["model"], one["epoch"]) == (model, epoch) and one["value"] == pytest.approx(value, abs=6e-5)
            for one in runs[run]["best"]
        )
    for number, run in runs.items():  # the end of both lines
        last = run["best"][-1]
        assert any(
            (of_run, model, epoch) == (number, last["model"], last["epoch"])
            and value == pytest.approx(last["value"], abs=6e-5)
            for of_run, value, model, epoch in seen
        )


@browser_needed
def test_runs_with_different_targets(
    browser: Browser, trained: Trained, fresh_output: Callable[[], str], write: Callable[..., Path]
) -> None:
    other = trained.cerebro.fit("iris", f"{fresh_output()}_id", [{"units": 4}], target="id", inputs="attributes",
                                epochs=1, segments=2, options={"seed": 1}).run  # fmt: skip
    browser.open(write(trained.run, other))
    text = browser("document.querySelector('#compared').textContent")
    assert (
        "predict different targets" in text
        and f"run {other}: id" in text
        and "Best result against time, of all" not in text
    )


def test_the_best_result_of_a_run_with_folds_is_a_mean(
    trained: Trained, fresh_output: Callable[[], str], write: Callable[..., Path]
) -> None:
    cerebro, configurations = trained.cerebro, [{"units": 4}, {"units": 8}]
    run = cerebro.fit("iris", f"{fresh_output()}_folds", configurations, target="kind", inputs="attributes", epochs=1,
                      folds=2, segments=1, options={"seed": 1}).run  # fmt: skip
    (reported,) = said(write(run))["runs"]
    first = cerebro.leaderboard(run)[0]
    assert first.spread is not None
    assert reported["best"][-1]["value"] == pytest.approx(first.objective_value, rel=1e-8)
    assert reported["best"][-1]["model"] == first.model and len(reported["leaderboard"]) == 6


@browser_needed
def test_a_run_without_epochs(
    browser: Browser, trained: Trained, fresh_output: Callable[[], str], write: Callable[..., Path]
) -> None:
    """A run that was cancelled before its first hop: each part says that there is nothing yet."""
    run = trained.cerebro.fit("packed", fresh_output(), "mst", epochs=1, wait=False)
    run.cancel()
    while not run.done:
        time.sleep(0.05)
    file = write(run.run)
    if said(file)["runs"][0]["timeline"]["start"]:
        pytest.skip("the first hop was faster than the cancel")
    browser.open(file)
    quiet(browser, file)
    text = browser("document.querySelector('main').textContent")
    for sentence in ("No epoch has ended yet", "No model has a value of the objective yet", "No hop has ended yet"):
        assert sentence in text
    assert len(cells(browser, "model")) == 3


@browser_needed
def test_hostile_texts_everywhere(browser: Browser, trained: Trained, many: int, write: Callable[..., Path]) -> None:
    """Every text of the data, names of parameters included, is markup and script."""

    def poisoned(value: Any) -> Any:
        if isinstance(value, str):
            return f"{HOSTILE}{value}"
        if isinstance(value, dict):
            return {name: poisoned(one) for name, one in value.items()}
        return [poisoned(one) for one in value] if isinstance(value, list) else value

    file = write(many, trained.run)
    known = said(file)
    for run in known["runs"]:
        run["settings"] = {HOSTILE + name: value for name, value in run["settings"].items()}
    file.write_text(page.page(poisoned(known), f"cerebro_db: run {HOSTILE}"), encoding="utf-8")
    browser.open(file)
    assert browser.complaints == [] and browser.requests == [file.resolve().as_uri()]
    assert browser("document.title") != "ran"
    assert browser("document.querySelectorAll('img, iframe, main script, main style, b').length") == 0
    assert browser("document.querySelectorAll('main h2').length") > 8
    # What a hole would try: the policy refuses it.
    browser("document.body.append(document.createElement('script'))")
    browser("document.body.lastChild.append('document.title = \\'ran\\'')")
    browser("document.body.append(Object.assign(document.createElement('img'), {src: 'http://127.0.0.1:9/x.png'}))")
    browser.settle()
    assert browser("document.title") != "ran" and len(browser.complaints) == 2, browser.complaints
    evaluated = browser.call(
        "Runtime.evaluate", expression="eval('1 + 1')", allowUnsafeEvalBlockedByCSP=False, returnByValue=True
    )
    assert "EvalError" in json.dumps(evaluated["exceptionDetails"])


def large(run: Any, configurations: int, epochs: int) -> Any:
    """The data of a run with so many more models, epochs and hops."""
    drawn = random.Random(1)
    entry, models = run["leaderboard"][0], range(1, configurations + 1)
    slopes = [drawn.uniform(0.1, 1) for _ in models]
    result = [{**entry, "rank": model, "model": model, "configuration": model, "parent": None,
               "words": f"learning_rate={slope:.5f}, units={model % 7}", "objective_value": slope}
              for model, slope in zip(models, slopes)]  # fmt: skip
    curves = [
        {"name": name, "curves": [{"model": model, "epochs": list(range(1, epochs + 1)),
                                   "values": [round(1 + slope - 0.1 / epoch, 6) for epoch in range(1, epochs + 1)]}
                                  for model, slope in zip(models, slopes)]}
        for name in ("validation accuracy", "validation loss", "training loss")
    ]  # fmt: skip
    hops = configurations * epochs * 2
    timeline = {
        **run["timeline"], "start": [place * 50 for place in range(hops)], "length": [90] * hops,
        "lane": [place % 2 for place in range(hops)], "activity": [0] * hops, "hop": [1] * hops,
        "model": [place // 2 % configurations + 1 for place in range(hops)],
        "epoch": [place // 2 // configurations + 1 for place in range(hops)],
    }  # fmt: skip
    parameters = [
        {"name": "learning_rate", "models": list(models), "values": slopes},
        {"name": "units", "models": list(models), "values": [model % 7 for model in models]},
    ]
    return {**run, "leaderboard": result, "curves": curves, "timeline": timeline, "parameters": parameters}


@browser_needed
def test_a_thousand_configurations_stay_fluent(browser: Browser, many: int, write: Callable[..., Path]) -> None:
    """Processor time of the page, which other work on the machine does not change much."""
    file = write(many)
    known = said(file)
    known["runs"] = [large(known["runs"][0], 1000, 100)]
    file.write_text(page.page(known, "cerebro_db: run 1"), encoding="utf-8")
    browser.call("Performance.setTimeDomain", timeDomain="threadTicks")
    browser.call("Performance.enable")

    def seconds(act: Callable[[], Any]) -> float:
        def spent() -> float:
            metrics = browser.call("Performance.getMetrics")["metrics"]
            return next(one["value"] for one in metrics if one["name"] == "TaskDuration")

        before = spent()
        act()
        browser.settle()
        return spent() - before

    def type_filter() -> None:
        browser("document.querySelector('#leaderboard input').value = 'units=3'")
        browser("document.querySelector('#leaderboard input').dispatchEvent(new Event('input'))")

    browser.open(file)
    costs = {"filter": seconds(type_filter)}
    assert browser("document.querySelectorAll('#leaderboard tbody tr').length") == 100
    browser("document.querySelector('#leaderboard input').value = ''")
    browser("document.querySelector('#leaderboard input').dispatchEvent(new Event('input'))")
    # Every line has a contrast of 3 to 1 with the ground, also where a thousand of them are grey.
    for theme in ("light", "dark"):
        browser.theme(theme)
        browser.settle()
        faint = browser(FAINT)
        assert faint["lines"] > 2000 and faint["least"] >= 3, (theme, faint)
    browser.theme("light")
    browser.settle()
    left, top, width, height = middle(browser, "#learning-curves .u-over")

    def point() -> None:
        for place in range(10):
            browser.mouse("mouseMoved", left + width * (0.2 + place * 0.05), top + height * (0.3 + 0.03 * place))
            browser.settle()

    costs["pointing"] = seconds(point) / 10
    assert "validation accuracy" in browser("document.querySelector('#learning-curves .readout').textContent")
    browser("document.querySelector('#what-each-segment-did .chart').focus()")
    costs["zoom"] = seconds(lambda: browser.press("+"))
    costs["sort"] = seconds(lambda: browser("document.querySelectorAll('#leaderboard th button')[2].click()"))
    print("seconds of the processor:", {name: round(cost, 3) for name, cost in costs.items()})
    assert browser.complaints == []
    assert costs["pointing"] < 0.2 and max(costs.values()) < 2, costs
