"""``cerebro runs``, ``watch`` and ``show``, on a real run and on one under way."""

from __future__ import annotations

import io
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import typer
from small_run import NAME, Trained
from typer.testing import CliRunner, Result

from cerebro_db.client import watch as watches
from cerebro_db.client.cerebro import Cerebro
from cerebro_db.client.commands import runs, steering, trained_models
from cerebro_db.client.commands import show as shows
from cerebro_db.client.display.terminal import Terminal

NONE = 987654


def cerebro(trained: Trained, *arguments: object, columns: int = 80) -> Result:
    app = typer.Typer()
    for module in (runs, steering, trained_models):
        module.register(app)
    words = [str(one) for one in arguments]
    return CliRunner().invoke(app, words, env={"CEREBRO_DSN": trained.dsn, "COLUMNS": str(columns)})


def on_terminal(act: Callable[[Terminal], Any], width: int) -> str:
    """All that was drawn on a terminal of that width, without control codes."""
    console = Terminal(file=io.StringIO(), force_terminal=True, width=width, height=50)
    act(console)
    drawn = console.file.getvalue()  # type: ignore[attr-defined]
    assert "\x1b[" in drawn
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", drawn)


def test_runs(trained: Trained) -> None:
    shown = cerebro(trained, "runs", columns=120)
    assert shown.exit_code == 0
    row = next(line for line in shown.output.splitlines() if line.split()[:1] == [str(trained.run)])
    assert "finished" in row and NAME in row and "client_tests.models" in row
    few = cerebro(trained, "runs", "--limit", 1).output
    assert few.splitlines()[1].split()[0] == str(trained.cerebro.runs()[0].run)
    assert ("more: cerebro runs --limit" in few) == (len(trained.cerebro.runs()) > 1)


@pytest.mark.parametrize("columns", [40, 80, 120, 200])
def test_show_fits_the_terminal_and_tells_all(trained: Trained, columns: int) -> None:
    shown = cerebro(trained, "show", trained.run, columns=columns)
    assert shown.exit_code == 0, shown.output
    assert "\x1b" not in shown.output
    text = shown.output
    for part in (
        "Leaderboard",
        "Where the time went",
        "What each segment did",
        "segment 0",
        "segment 1",
        "bookkeeping",
    ):
        assert part in text
    assert re.search(r"\d+ % of the segments' time was training", text)
    summary, pictures = text.split("\nLeaderboard\n")
    assert NAME in summary and "100.0 %, 3 models done" in summary
    assert max(map(len, pictures.splitlines())) <= columns


def test_the_model_comes_first(trained: Trained, judged: str) -> None:
    """It is an ensemble, which is no model of the leaderboard."""
    shown = cerebro(trained, "show", trained.run, columns=200).output
    summary = shown.split("\nLeaderboard\n")[0]
    assert "predicts    configuration 4, the mean of configurations 1, 2 of models\n" in summary
    assert f"quality     {judged}\n" in summary
    assert f"\nquality: {judged}\n" in cerebro(trained, "watch", trained.run, columns=200).output
    told = json.loads(cerebro(trained, "show", trained.run, "--json").output)["runs"]
    assert (told["chosen_configuration"], told["quality"]) == (4, judged)


def test_a_list_of_models_says_how_good_they_are(trained: Trained) -> None:
    (one,) = [one for one in trained.cerebro.models() if one.model_table == "client_tests.models"]
    shown = cerebro(trained, "models", columns=200).output
    (line,) = [line for line in shown.splitlines() if line.startswith("client_tests.models ")]
    assert one.quality is None and f"{one.objective} {one.best_value:.4f}" in line
    assert shown.split()[:4] == ["model", "table", "target", "quality"]


def test_the_leaderboard_is_that_of_the_view(trained: Trained) -> None:
    shown = cerebro(trained, "show", trained.run, columns=120).output
    for entry in trained.cerebro.leaderboard(trained.run):
        row = next(line for line in shown.splitlines() if line.strip().startswith(f"{entry.rank} "))
        assert f"{entry.validation_loss:.4f}" in row and f"{entry.validation_metric:.4f}" in row
        assert str(entry.configuration) in row.split()
        assert f"learning_rate={entry.parameters['learning_rate']}" in row


def test_the_time_line_has_every_configuration_and_both_activities(trained: Trained) -> None:
    shown = cerebro(trained, "show", trained.run, columns=200).output
    lines = [line[11:] for line in shown.splitlines() if re.match(r"segment \d", line)]
    assert len(lines) == 2
    assert set("".join(lines)) <= set("ABCabc·")
    assert {letter.upper() for letter in "".join(lines)} >= {"A", "B", "C"}


def test_the_latest_run_is_the_default(trained: Trained) -> None:
    latest = trained.cerebro.runs()[0].run
    assert cerebro(trained, "show").output.startswith(f"run {latest} ")


@pytest.mark.parametrize("command", ["show", "watch", "cancel"])
def test_a_run_that_is_not_there(trained: Trained, command: str) -> None:
    shown = cerebro(trained, command, NONE)
    assert shown.exit_code == 1
    assert f"There is no run {NONE} of yours." in shown.output
    assert "Traceback" not in shown.output


def test_nobody_answers(trained: Trained) -> None:
    shown = cerebro(trained, "runs", "--dsn", "host=/nowhere")
    assert shown.exit_code == 1
    assert shown.output.startswith("cerebro: ") and "cerebro up" in shown.output


def test_no_runs_yet(fresh_database: str) -> None:
    nobody = Trained(Cerebro(fresh_database), fresh_database, 0)
    assert cerebro(nobody, "runs").output == "No runs yet.\n"
    shown = cerebro(nobody, "show")
    assert shown.exit_code == 1 and "There are no runs yet." in shown.output
    nobody.cerebro.close()


def test_watching_a_finished_run(trained: Trained) -> None:
    shown = cerebro(trained, "watch", trained.run)
    assert shown.exit_code == 0
    assert f"run {trained.run} finished, 100.0 %, 3 models done" in shown.output
    assert f"cerebro show {trained.run}" in shown.output


@pytest.mark.parametrize("width", [60, 80, 120])
def test_watching_on_a_terminal(trained: Trained, width: int) -> None:
    look = watches.snapshot(
        trained.cerebro, trained.cerebro.run(trained.run), trained.cerebro.run_progress(trained.run)
    )
    drawn = on_terminal(lambda console: console.print(watches.picture(look, width, 2)), width)
    assert NAME in drawn
    assert "100.0 %" in drawn and "█" in drawn and "3 models done" in drawn and "… and 1 more" in drawn
    assert max(map(len, drawn.splitlines())) <= width


def test_watching_a_run_that_waits(trained: Trained) -> None:
    run, progress = trained.cerebro.run(trained.run), trained.cerebro.run_progress(trained.run)
    progress.status, progress.message = "running", "waits for run 12 of ada"
    for done in (progress.hops_done, 0):
        progress.hops_done = done
        assert watches.line(progress).plain.count("waits for run 12 of ada") == 1
        look = watches.snapshot(trained.cerebro, run, progress)
        drawn = on_terminal(lambda console, look=look: console.print(watches.picture(look, 100, 2)), 100)  # type: ignore[misc]
        assert drawn.count("waits for run 12 of ada") == 1


def test_show_on_a_terminal(trained: Trained) -> None:
    drawn = on_terminal(lambda console: shows.show(trained.cerebro, trained.run, console), 80)
    assert NAME in drawn


@pytest.fixture(scope="module")
def begun(trained: Trained) -> Iterator[Any]:
    handle = trained.cerebro.fit(
        "packed", "long_models", "mst", epochs=100_000, validation_table="validation", evaluate_every=1, wait=False
    )
    yield handle
    handle.cancel()
    trained.cerebro.rows("SELECT cerebro.wait(%s, 60)", (handle.run,))


@pytest.fixture
def long_run(trained: Trained, begun: Any) -> Any:
    """A run that trains, whatever a test has done to it before."""
    if begun.status == "cancelled":
        trained.cerebro.resume(begun, wait=False)
    for progress in begun.follow(0.1):
        if progress.status == "running" and progress.rows_per_second:
            break
    return begun


def test_a_run_under_way_and_a_watch_that_is_interrupted(
    trained: Trained, long_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def follow(self: Cerebro, run: Any, every: float = 0.5) -> Iterator[Any]:
        yield self.run_progress(run)
        raise KeyboardInterrupt

    monkeypatch.setattr(Cerebro, "follow", follow)
    shown = cerebro(trained, "watch", long_run.run)
    assert shown.exit_code == 0
    assert re.search(rf"run {long_run.run} running, [\d.]+ %", shown.output)
    assert f"The run continues. To watch it again: cerebro watch {long_run.run}" in shown.output
    assert trained.cerebro.run(long_run.run).status == "running"

    def draw(console: Terminal) -> None:
        with pytest.raises(KeyboardInterrupt):
            watches.watch(trained.cerebro, long_run.run, console)

    shown = cerebro(trained, "show", long_run.run)
    assert shown.exit_code == 0
    assert f"To watch it: cerebro watch {long_run.run}" in shown.output
    drawn = on_terminal(draw, 100)
    assert "running" in drawn and "rows/s" in drawn and "left" in drawn
    assert re.search(r"segment 1 .*(trains|trained) configuration [123], epoch \d+", drawn)


def test_watching_ends_when_the_run_is_cancelled_and_a_resume_is_watched(trained: Trained, long_run: Any) -> None:
    def cancel() -> None:
        while not trained.cerebro.cancel(long_run):
            time.sleep(0.2)

    for command in (["watch", long_run.run], ["resume", long_run.run, "--epochs", 100_001]):
        threading.Timer(0.5, cancel).start()
        shown = cerebro(trained, *command)
        assert shown.exit_code == 1
        assert f"run {long_run.run} cancelled" in shown.output and f"run {long_run.run} was cancelled" in shown.output
    assert trained.cerebro.run_progress(long_run).hops_total == 600_006


def test_steering_a_run_under_way_and_cancelling_it(trained: Trained, long_run: Any) -> None:
    run, client = long_run.run, trained.cerebro

    def asked(*words: object) -> int:
        shown = cerebro(trained, *words)
        assert shown.exit_code == 0, shown.output
        return int(re.search(r"Request (\d+): ", shown.output)[1])

    def done(*requests: int) -> bool:
        """Waits until the run has answered, and returns whether it did as it was asked."""
        deadline = time.monotonic() + 60
        while any((known := {one.request_id: one.status for one in client.requests(run)})[one] == "waiting"
                  for one in requests):  # fmt: skip
            assert time.monotonic() < deadline
            time.sleep(0.1)
        return {known[one] for one in requests} == {"done"}

    stopped = asked("stop", run, 2, "--reason", "too slow")
    cloned = asked("clone", run, 3, "learning_rate=0.02", "batch_size=16")
    assert done(cloned)  # at the end of an epoch of its parent; what is added gets the next number
    assert done(stopped, asked("add", run, "units=8", "optimizer=SGD", "learning_rate=0.1", "batch_size=8"))
    going_on, extended = asked("go-on", run, "--model", 2), asked("extend", run, 100_007)
    assert done(going_on, extended, asked("budget", run, "seconds=100000"), asked("budget", run, "3 days"))
    assert client.run(run).epochs == 100_007
    models = {entry.model: entry for entry in client.leaderboard(run)}
    assert len(models) == 5 and models[4].parameters["batch_size"] == 16
    shown = cerebro(trained, "show", run, columns=200).output
    for line in (
        "model 2 (configuration 2), epoch",
        "stop, too slow",
        "add, added 4",
        "add, added 5",
        "go on",
        "extend",
        "budget",
    ):
        assert line in shown, line
    ended = cerebro(trained, "cancel", run)
    assert ended.exit_code == 0
    assert ended.output == f"Run {run} is cancelled.\nTo continue it: cerebro resume {run}\n"
    again = cerebro(trained, "cancel", run)
    assert (again.exit_code, again.output) == (1, f"Run {run} is not under way: it is cancelled.\n")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("stop", 7), 1, "cerebro: run {run} has no configuration 7."),
        (("stop",), 1, "which model of run {run} is meant?"),
        (("clone", 1, "learning_rate"), 2, "learning_rate is not of the form NAME=VALUE"),
        (("clone", 1, "optimizer=SGD"), 1, "a clone cannot change its optimizer from Adam to SGD"),
        (("extend", 1), 1, "run {run} is planned for 2 epochs"),
        (("budget", "soon"), 1, "soon"),
        (("budget", "seconds=0"), 1, "the limit 'seconds' of a budget must be a number above 0"),
    ],
)
def test_what_cannot_be_asked(trained: Trained, words: tuple[Any, ...], code: int, said: str) -> None:
    shown = cerebro(trained, words[0], trained.run, *words[1:], columns=200)
    assert shown.exit_code == code, shown.output
    assert said.format(run=trained.run) in shown.output
    assert "Traceback" not in shown.output and "cerebro: cerebro:" not in shown.output
    assert trained.cerebro.requests(trained.run) == []


# --- trained models --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [80, 120])
def test_models(trained: Trained, columns: int) -> None:
    shown = cerebro(trained, "models", columns=columns)
    assert shown.exit_code == 0, shown.output
    assert "client_tests" in shown.output and "val_loss" in shown.output and str(trained.run) in shown.output
    assert ("models" in shown.output.splitlines()[0].split()) == (columns > 100)
    assert max(map(len, shown.output.splitlines())) <= columns


def test_evaluate(trained: Trained) -> None:
    shown = cerebro(trained, "evaluate", "client_tests.models", "SELECT * FROM client_tests.iris", "--configuration", 1)
    assert shown.exit_code == 0, shown.output
    told = {line.split()[0]: line.split()[1:] for line in shown.output.splitlines()[1:]}
    wanted = trained.cerebro.evaluate("models", "SELECT * FROM iris", configuration=1)
    assert set(told) == set(wanted) and told["rows"] == ["150"]
    assert [float(one) for one in told["accuracy"]] == pytest.approx([wanted["accuracy"], 1 / 3], abs=1e-3)
    assert wanted.baselines["accuracy"] == pytest.approx(1 / 3) and wanted.baselines["rows"] is None
    without = cerebro(trained, "evaluate", "client_tests.models", "--configuration", 1, "--json")
    assert json.loads(without.output) == trained.cerebro.evaluate("models", configuration=1)


def test_predict(trained: Trained) -> None:
    rows = "SELECT * FROM client_tests.iris WHERE id < 3"
    shown = cerebro(trained, "predict", "client_tests.models", rows, "--top", 2)
    assert shown.exit_code == 0, shown.output
    assert len(shown.output.splitlines()) == 1 + 6 and "setosa" in shown.output
    likely = cerebro(trained, "predict", "client_tests.models", rows, "--probability-of", "virginica", "--json")
    assert {one["label"] for one in json.loads(likely.output)} == {"virginica"}
    into = ("predict", "client_tests.models", "client_tests.iris", "--into", "client_tests.told", "--keep", "*")
    try:
        assert cerebro(trained, *into).output == "150 rows predicted into client_tests.told.\n"
        assert trained.cerebro.rows("SELECT count(predicted_kind), count(kind) FROM client_tests.told") == [(150, 150)]
        again = cerebro(trained, *into)
        assert again.exit_code == 1
    finally:
        trained.cerebro.rows("DROP TABLE IF EXISTS client_tests.told")


def test_a_run_with_groups_on_a_terminal(trained: Trained, grouped: int) -> None:
    """The leaderboard is that of the models on all rows; the best model of each group follows."""
    client = trained.cerebro
    entries, groups = client.leaderboard(grouped), client.groups(grouped)
    shown = cerebro(trained, "show", grouped, columns=160).output
    leaderboard, _, rest = shown.partition("Best model of each group")
    assert "These are the models on all rows. Models of 3 groups: 9 finished" in leaderboard
    assert leaderboard.count(f"{entries[0].objective_value:.4f}") >= 1 and "\x1b" not in shown
    lines = rest.split("Where the time went")[0].strip().splitlines()
    assert lines[0].split()[:3] == ["group", "rows", "conf."]
    for group in groups:
        (line,) = [one for one in lines if re.search(rf" {group.rows}  +{group.configuration} ", one)]
        assert f"{group.objective_value:.4f}" in line and f"{group.all_rows_objective_value:.4f}" in line
        assert ("gains nothing" in line) == group.worse_than_all_rows
        assert group.group_value.startswith("</script>") or line.startswith(group.group_value)
    watched = cerebro(trained, "watch", grouped, columns=160).output
    assert f"best configuration {entries[0].configuration}" in watched
    drawing = client.learning_curve(grouped)._repr_html_()
    assert drawing.count("<g stroke") == 3 and "9 models of groups are left out" in drawing
    assert json.loads(cerebro(trained, "show", grouped, "--json").output)["groups"][0]["rows"] == groups[0].rows
