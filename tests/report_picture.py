"""Draws docs/report.png, the report about a model of scikit-learn's tumours, and docs/dashboard.png.

python -m tests.report_picture

It needs Chromium, and trains in the database that CEREBRO_TEST_DSN names, or else in a throw-away cluster.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from sklearn.datasets import load_breast_cancer, load_digits

from cerebro_db.client import Cerebro
from cerebro_db.client.dashboard.server import Dashboard
from tests.client.browser import Browser
from tests.conftest import connect
from tests.reference import database

DOCS = Path(__file__).resolve().parents[1] / "docs"
PICTURE, DASHBOARD = DOCS / "report.png", DOCS / "dashboard.png"
SPACE = {
    "units": {"choice": [16, 32, 64]},
    "dropout": {"uniform": [0, 0.5]},
    "optimizer": {"choice": ["Adam", "SGD", "RMSprop"]},
    "learning_rate": {"log_uniform": [0.0001, 0.3]},
    "batch_size": {"choice": [16, 32, 64]},
}
WIDTH, HEIGHT = 1000, 2630  # all up to the examples
COLUMNS = ("radius", "texture", "smoothness", "compactness", "concavity", "symmetry")


def main() -> None:
    with contextlib.ExitStack() as stack:
        dsn = stack.enter_context(database())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        connection = stack.enter_context(contextlib.closing(connect(dsn)))
        with connection.cursor() as cursor:
            cursor.execute("DROP SCHEMA IF EXISTS report_picture CASCADE; CREATE SCHEMA report_picture")
            cursor.execute("SET search_path = report_picture, public")
            cursor.execute("CREATE TABLE digits (id integer, pixels real[], digit text)")
            digits = load_digits()
            for number, (pixels, digit) in enumerate(zip((digits.data / 16).tolist(), digits.target.tolist())):
                cursor.execute("INSERT INTO digits VALUES (%s, %s, %s)", (number, pixels, str(digit)))
            add_tumours(cursor)
        with Cerebro(connection) as cerebro:
            run = cerebro.search("digits", "digits_models", SPACE, target="digit", inputs="pixels", epochs=9,
                                 max_configurations=24, method="asha", segments=2, validation=0.2,
                                 objective="val_accuracy", run_name="Digits", options={"seed": 3})  # fmt: skip
            judged = cerebro.train("tumours", "tumour_models", target="diagnosis", budget="30 seconds",
                                   run_name="Tumours", options={"seed": 3})  # fmt: skip
            report = judged.report(folder / "report.html")
            going_on = cerebro.search("digits", "wide_models", {**SPACE, "units": 256}, target="digit", inputs="pixels",
                                      epochs=500, max_configurations=8, segments=2, objective="val_accuracy",
                                      run_name="Digits, wide", wait=False)  # fmt: skip
            browser = stack.enter_context(Browser(folder / "chromium"))
            while cerebro.run_progress(going_on).percent < 3:
                time.sleep(0.5)
            picture_of_dashboard(cerebro, browser)
            cerebro.cancel(going_on)
            cerebro.status_within(going_on, 60)
            for one in (run, judged, going_on):
                cerebro.forget(one)
        with connection.cursor() as cursor:
            cursor.execute("DROP SCHEMA report_picture CASCADE")
        browser.size(WIDTH, HEIGHT)
        browser.open(report)
        browser.picture(PICTURE)
    sys.stdout.write("docs/report.png\ndocs/dashboard.png\n")


def add_tumours(cursor: Any) -> None:
    tumours = load_breast_cancer()
    places = [list(tumours.feature_names).index(f"mean {name}") for name in COLUMNS]
    cursor.execute(f"CREATE TABLE tumours (id integer, {' real, '.join(COLUMNS)} real, diagnosis text)")
    for number, (row, kind) in enumerate(zip(tumours.data.tolist(), tumours.target.tolist()), 1):
        values = [number, *(row[place] for place in places), str(tumours.target_names[kind])]
        cursor.execute(f"INSERT INTO tumours VALUES ({', '.join(['%s'] * len(values))})", values)


def picture_of_dashboard(cerebro: Cerebro, browser: Browser) -> None:
    board = Dashboard(cerebro.engine, 0)
    serving = threading.Thread(target=board.serve)
    serving.start()
    try:
        browser.size(WIDTH + 180, 350)  # all columns
        browser.visit(board.address)
        browser.picture(DASHBOARD)
    finally:
        board.close()
        serving.join()


if __name__ == "__main__":
    main()
