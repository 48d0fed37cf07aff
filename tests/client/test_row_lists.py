"""Lists of rows as tables, frames and drawings; what notebooks show of a run."""

from __future__ import annotations

import json
import math
import re
import xml.etree.ElementTree as xml
from datetime import datetime, timezone
from html.parser import HTMLParser
from typing import Any

import pandas
import pytest
from small_run import NAME, Trained

from cerebro_db.client import ClientError, RowList, notebooks
from cerebro_db.client.display.as_json import as_json
from cerebro_db.client.methods.trained_models import Prediction
from cerebro_db.client.orm import LeaderboardEntry, LearningCurvePoint, Run

HOSTILE = "</td></svg><script>alert(1)</script><img src=x onerror=alert(1)>\x1b[2J\u202e"


class Seen(HTMLParser):
    """The tags of a text of HTML, and the cells of its table by row."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.rows: list[list[str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: Any) -> None:
        self.tags.append(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_data(self, data: str) -> None:
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] += data


def test_the_leaderboard_as_a_table(trained: Trained) -> None:
    board = trained.cerebro.leaderboard(trained.run)
    head, *body = Seen(board._repr_html_()).rows
    shown = [dict(zip(head, row)) for row in body]
    assert [int(row["configuration"]) for row in shown] == [entry.configuration for entry in board]
    assert [float(row["validation_loss"]) for row in shown] == pytest.approx(
        [one.validation_loss for one in board], 1e-5
    )
    assert "fold" not in head, "a column without a value"
    assert shown[0]["run_name"] == NAME


def test_the_learning_curve_as_a_drawing(trained: Trained) -> None:
    points = trained.cerebro.learning_curve(trained.run)
    svg = xml.fromstring(points._repr_html_())
    lines = svg.findall(".//{*}polyline")
    assert len(lines) == 3
    drawn = [[tuple(map(float, one.split(","))) for one in line.get("points").split()] for line in lines]
    assert all(len(line) == 2 for line in drawn), "two epochs"
    ends = {title.text.split(":")[0]: line[-1] for title, line in zip(svg.findall(".//{*}title"), drawn)}
    last = {f"configuration {one.configuration}, model {one.model}": one.loss for one in points if one.epoch == 2}
    by_height = sorted(ends, key=lambda name: ends[name][1])
    assert by_height == sorted(last, key=lambda name: -last[name]), "a greater loss is higher up"
    assert "No epoch" in RowList(LearningCurvePoint)._repr_html_()
    one = RowList(LearningCurvePoint, [LearningCurvePoint(configuration=1, model=1, epoch=1, training_loss=0.5)])
    assert len(xml.fromstring(one._repr_html_()).findall(".//{*}circle")) == 1
    nothing = RowList(
        LearningCurvePoint, [LearningCurvePoint(configuration=1, model=1, epoch=1, training_loss=math.nan)]
    )
    assert "No epoch" in nothing._repr_html_()
    both = [
        LearningCurvePoint(configuration=n, model=n, epoch=e, training_loss=n / 9, validation_loss=loss)
        for n in (1, 2) for e, loss in [*((e, None) for e in range(1, 6)), (6, 3.0 - n)]
    ]  # fmt: skip
    shown = RowList(LearningCurvePoint, both)._repr_html_()
    assert "training loss by epoch, lowest validation loss: configuration 2" in shown, "it was measured only at the end"
    lines = xml.fromstring(shown).findall(".//{*}polyline")
    assert [len(line.get("points").split()) for line in lines] == [6, 6]
    several = [*both, LearningCurvePoint(configuration=1, model=1, epoch=7, validation_loss=1.5)]
    shown = RowList(LearningCurvePoint, several)._repr_html_()
    assert "validation loss by epoch, lowest: configuration 2" in shown, "a training loss is no validation loss"


def test_a_run_that_is_printed(trained: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = trained.cerebro.handle(trained.run)
    assert repr(handle).startswith(f"<run {trained.run}: finished") and str(handle) == repr(handle)
    run = trained.cerebro.run(trained.run)
    run.quality, run.ended, run.status = "RMSE 1.0", False, "running"
    monkeypatch.setattr(trained.cerebro, "run", lambda *_: run)
    assert repr(handle) == f"<run {trained.run}: running, 100.0 %; RMSE 1.0>"

    def lost(*_: object) -> None:
        raise ClientError("the connection is lost")

    monkeypatch.setattr(trained.cerebro, "run", lost)
    assert repr(handle) == f"<run {trained.run}>"


def test_a_picture_suits_light_and_dark_notebooks(trained: Trained) -> None:
    picture = trained.cerebro.handle(trained.run)._repr_html_()
    assert "#000000" not in picture and "DejaVu Sans Mono" in picture


def test_texts_of_others_stay_texts(trained: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    row = Run(run=1, run_name=HOSTILE, source_table=HOSTILE, status="finished")
    shown = RowList(Run, [row])._repr_html_()
    assert set(Seen(shown).tags) == {"table", "thead", "tbody", "tr", "th", "td"}
    assert "\x1b" not in shown and "\u202e" not in shown
    picture = trained.cerebro.handle(trained.run)._repr_html_()
    assert "iris[/bold] 100 %" in picture and "finished" in picture and set(Seen(picture).tags) <= {"pre", "span"}
    changed = trained.cerebro.run(trained.run)
    changed.run_name = HOSTILE
    monkeypatch.setattr(trained.cerebro, "run", lambda *_: changed)
    picture = notebooks.picture(trained.cerebro, trained.run)
    assert "alert(1)" in picture and set(Seen(picture).tags) <= {"pre", "span"}


def test_long_tables_are_cut(trained: Trained) -> None:
    shown = RowList(Prediction, [Prediction(str(i), "y", i / 2, None, None, None) for i in range(1000)])._repr_html_()
    assert "… and 940 more rows" in shown and len(Seen(shown).rows) == 61


def test_a_frame(trained: Trained) -> None:
    board = trained.cerebro.leaderboard(trained.run)
    frame = board.frame()
    assert list(frame.columns) == [column.key for column in LeaderboardEntry.__mapper__.column_attrs]
    assert str(frame["best_epoch"].dtype) == "Int64" and str(frame["validation_loss"].dtype) == "float64"
    assert frame["fold"].isna().all() and str(frame["fold"].dtype) == "Int64"
    assert frame["parameters"][0] == board[0].parameters
    runs = trained.cerebro.runs().frame()
    assert str(runs["started_at"].dtype) == "datetime64[us, UTC]" and str(runs["ended"].dtype) == "boolean"
    started = next(one.started_at for one in trained.cerebro.runs() if one.run == trained.run)
    assert runs.set_index("run").loc[trained.run, "started_at"] == pandas.Timestamp(started)
    empty = RowList(Run).frame()
    assert len(empty) == 0 and list(empty.dtypes.astype(str)) == list(runs.dtypes.astype(str))
    assert trained.cerebro.requests(trained.run).frame().empty


def test_a_table_of_arrow(trained: Trained) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    board = trained.cerebro.leaderboard(trained.run)
    table = board.arrow()
    assert table.num_rows == 3 and json.loads(table["parameters"][0].as_py()) == board[0].parameters
    assert table.schema.field("best_epoch").type == pyarrow.int64()
    assert table.schema == RowList(LeaderboardEntry).arrow().schema


def test_predictions_are_rows_too() -> None:
    rows = RowList(
        Prediction, [Prediction("1", "kind", None, "a", 0.75, 1), Prediction("2", "kind", None, "b", 0.5, 1)]
    )
    assert rows == [*rows] and rows.frame()["probability"].tolist() == [0.75, 0.5]
    head, *body = Seen(rows._repr_html_()).rows
    assert head == ["key_value", "target", "label", "probability", "rank"] and body[1] == ["2", "kind", "b", "0.5", "1"]


def test_json_has_what_postgresql_would_write() -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, 6, timezone.utc)
    told = as_json({"loss": math.nan, "high": [math.inf, -math.inf], "at": at, "row": Run(run=1, status="é")})
    assert "NaN" in told and "é" in told
    found = json.loads(told, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert found["high"] == ["Infinity", "-Infinity"] and found["at"] == "2026-01-02T03:04:05.000006+00:00"
    assert found["row"]["status"] == "é" and found["row"]["ended_at"] is None
    assert re.fullmatch(r"[^\n]*", told)
    hostile = as_json({"name": HOSTILE + "\x9b2J\U000e0001"})
    assert hostile.isprintable() and json.loads(hostile)["name"] == HOSTILE + "\x9b2J\U000e0001"


def test_watching_outside_a_notebook_prints_lines(trained: Trained, capsys: pytest.CaptureFixture[str]) -> None:
    assert trained.cerebro.handle(trained.run).watch().status == "finished"
    assert f"run {trained.run} finished" in capsys.readouterr().out
