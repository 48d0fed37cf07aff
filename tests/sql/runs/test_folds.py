"""Cross-validation: cerebro.pack with folds, and what fits, searches and cerebro.train make of them.

Each row has an input of its own (a one-hot vector), and the weights begin with zeros.  So the weight of a row that a
model was never trained on is still zero.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import numpy as np
import psycopg2
import pytest

from tests.sql.lab import Lab, eventually, layer, sequential
from tests.sql.packing.test_tables import packed, refused, values

ROWS, FOLDS, EPOCHS = 60, 3, 2
SGD = "optimizer='SGD(learning_rate=0.05)', loss='mse', metrics=['mae']"


@pytest.fixture(scope="module")
def rows(lab: Lab) -> Lab:
    lab(
        f"CREATE TABLE rows AS SELECT i AS id, array_agg((i = j)::integer::real ORDER BY j) AS facts,"
        f" i % 15 AS patient, (i * 37 % 41 / 10.0 - 1.03)::real AS cost,"
        " CASE WHEN i % 4 = 0 THEN 'ill' ELSE 'well' END AS kind, i / 30 * 100 + i % 15 / 5 AS ward"
        f" FROM generate_series(0, {ROWS - 1}) i, generate_series(0, {ROWS - 1}) j GROUP BY i"
    )
    lab("ALTER TABLE rows ADD PRIMARY KEY (id)")
    packed(lab, "folded", "cost", "rows", inputs="facts", folds=FOLDS, segments=2, seed=1)
    plain = lab.architecture(
        sequential([ROWS], layer("Dense", "plain", units=1, use_bias=False)), np.zeros(ROWS, "f4").tobytes()
    )
    shifted = lab.architecture(sequential([ROWS], layer("Dense", "out", units=1)), np.zeros(ROWS + 1, "f4").tobytes())
    lab.selection("mst", [(plain, SGD, "batch_size=5"), (shifted, SGD, "batch_size=5")])
    return lab


def folds_of(place: Lab, table: str) -> dict[int, int]:
    """Row -> its fold, as the packed table has it."""
    payloads = place(f"SELECT __fold__ FROM {table} ORDER BY buffer_id")
    folds = np.frombuffer(b"".join(bytes(payload) for (payload,) in payloads), "u1")
    return dict(zip(values(place, table, "facts").argmax(1).tolist(), folds.tolist()))


def fit(place: Lab, source: str, output: str, epochs: int = EPOCHS, **options: Any) -> int:
    return place.value(
        "SELECT fit(%s, %s, 'mst', epochs => %s, evaluate_every => 1, options => %s)",
        source, output, epochs, json.dumps({"deterministic": True, "seed": 3, **options}),
    )  # fmt: skip


@pytest.fixture(scope="module")
def run(rows: Lab) -> int:
    return fit(rows, "folded", "models")


def losses(place: Lab, table: str, chosen: list[int]) -> dict[int, tuple[float, float]]:
    """Configuration -> the mean squared and the mean absolute error of its model in a table, on these rows."""
    cost = dict(place("SELECT id, cost FROM rows"))
    found = {}
    for key, payload in place.weights(table).items():
        weights = np.frombuffer(payload, "f4")
        off = np.array([weights[row] + (weights[ROWS] if len(weights) > ROWS else 0) - cost[row] for row in chosen])
        found[key] = float((off**2).mean()), float(abs(off).mean())
    return found


# -- packing ---------------------------------------------------------------------------------------------------


def test_each_row_has_one_fold(rows: Lab) -> None:
    folds = folds_of(rows, "folded")
    assert sorted(folds) == list(range(ROWS)) and set(folds.values()) == {1, 2, 3}
    layout = rows.value("SELECT layout FROM folded_summary")
    for fold in (1, 2, 3):
        counted = sum(partition["folds"][fold - 1] for partition in layout["partitions"])
        assert counted == list(folds.values()).count(fold)
    assert "folded_validation" not in rows.tables()
    assert "facts" in {name for (name,) in rows("SELECT column_name FROM prepared_columns('folded')")}


def test_a_row_stays_in_its_fold_and_the_order_is_that_without_folds(rows: Lab) -> None:
    rows("CREATE TABLE some_rows AS SELECT * FROM rows WHERE id % 3 > 0")
    rows("ALTER TABLE some_rows ADD PRIMARY KEY (id)")
    folds = folds_of(rows, "folded")
    packed(rows, "fewer", "cost", "some_rows", inputs="facts", folds=FOLDS, segments=1)
    assert folds_of(rows, "fewer") == {row: fold for row, fold in folds.items() if row % 3 > 0}
    packed(rows, "unfolded", "cost", "rows", inputs="facts", validation=0, segments=2, seed=1)
    assert (values(rows, "unfolded", "facts") == values(rows, "folded", "facts")).all()
    # The rows that a share of a third would take for validation are the first fold.
    packed(rows, "third", "cost", "rows", inputs="facts", validation=1 / 3, segments=1)
    others = set(values(rows, "third_validation", "facts").argmax(1).tolist())
    assert others == {row for row, fold in folds.items() if fold == 1}


def test_groups_stay_together_and_classes_have_equal_shares(rows: Lab) -> None:
    packed(rows, "grouped", "cost", "rows", inputs="facts", folds=FOLDS, split_by="patient", segments=1)
    folds = folds_of(rows, "grouped")
    of_patient = {patient: {folds[row] for row in range(ROWS) if row % 15 == patient} for patient in range(15)}
    assert all(len(found) == 1 for found in of_patient.values())
    assert Counter(fold for found in of_patient.values() for fold in found) == {1: 5, 2: 5, 3: 5}
    packed(rows, "strata", "kind", "rows", inputs="facts", folds=5, stratify=True, segments=1)
    folds = folds_of(rows, "strata")
    assert [sum(folds[row] == fold and row % 4 == 0 for row in range(ROWS)) for fold in range(1, 6)] == [3] * 5
    assert [sum(folds[row] == fold and row % 4 != 0 for row in range(ROWS)) for fold in range(1, 6)] == [9] * 5


def test_windows_of_a_subject_are_in_one_fold(rows: Lab) -> None:
    sequence = '{"by": "patient", "order": "id", "length": 2, "step": 1}'
    for name, more, group in (
        ("windows", {}, lambda row: row % 15),
        ("windows_by", {"split_by": "ward"}, lambda row: (row // 30, row % 15 // 5)),
    ):
        packed(rows, name, "cost", "rows", inputs="facts", folds=2, sequence=sequence, segments=1, **more)
        payloads = rows(f"SELECT __fold__ FROM {name} ORDER BY buffer_id")
        folds = np.frombuffer(b"".join(bytes(payload) for (payload,) in payloads), "u1").tolist()
        groups: dict[Any, set[int]] = {}
        for (first, second), fold in zip(values(rows, name, "facts").argmax(2).tolist(), folds):
            assert second == first + 15 and group(first) == group(second)
            groups.setdefault(group(first), set()).add(fold)
        # Without split_by, each of 15 subjects has three windows; with it, the second has rows of two wards.
        assert len(folds) == (30 if more else 45) and set(folds) == {1, 2}
        assert all(len(found) == 1 for found in groups.values())


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"folds": 1}, "folds is 1; it must be from 2 to 100"),
        ({"folds": 101}, "folds is 101; it must be from 2 to 100"),
        ({"folds": 100}, "100 folds are too many for 60 rows: fold"),
        ({"folds": 15, "split_by": "kind"}, "which follows from kind, would have no row"),
        ({"folds": 3, "validation": 0.2}, "folds and validation cannot be used together"),
        ({"folds": 3, "validation_table": "rows"}, "folds and validation_table cannot be used together"),
        ({"folds": 3, "split_at": "id"}, "folds and split_at cannot be used together"),
        ({"folds": 3, "split_by": "patient", "stratify": True}, "split_by and stratify cannot be used together"),
        ({"folds": 3, "split_by": "patient, kind"}, "split_by must be one column"),
        ({"folds": 3, "split_by": "nobody"}, "invalid split_by ('nobody')"),
        ({"folds": 3, "sequence": '{"order": "id", "length": 2}'}, 'folds of windows need subjects'),
        ({"folds": 3, "stratify": True, "sequence": '{"by": "patient", "order": "id", "length": 2}'},
         "stratify and sequence cannot be used together"),
    ],
)  # fmt: skip
def test_packing_refuses(rows: Lab, more: dict[str, Any], says: str) -> None:
    assert says in str(refused(rows, **{"target": "cost", "source": "rows", "inputs": "facts", **more}))


# -- fitting ---------------------------------------------------------------------------------------------------


def test_no_model_has_seen_the_rows_of_its_fold(rows: Lab, run: int) -> None:
    folds = folds_of(rows, "folded")
    board = rows("SELECT configuration, fold, status FROM leaderboard WHERE run = %s ORDER BY 1, 2 NULLS FIRST", run)
    assert board == [(key, fold, "finished") for key in (1, 2) for fold in (None, 1, 2, 3)]
    for fold in (1, 2, 3):
        rows("SELECT materialize(%s, %s, fold => %s)", run, f"models_{fold}", fold)
        for payload in rows.weights(f"models_{fold}").values():
            seen = np.frombuffer(payload, "f4")[:ROWS] != 0
            assert {row for row in range(ROWS) if not seen[row]} == {row for row in folds if folds[row] == fold}
    for payload in rows.weights("models").values():
        assert (np.frombuffer(payload, "f4")[:ROWS] != 0).all()
    told = rows(
        "SELECT fold, epoch, sum(h.rows)::int FROM hop h JOIN model USING (run, model) WHERE run = %s AND"
        " configuration = 1"
        " GROUP BY 1, 2", run
    )  # fmt: skip
    sizes = {fold: list(folds.values()).count(fold) for fold in (1, 2, 3)}
    assert {(fold, epoch): count for fold, epoch, count in told} == {
        (fold, epoch): ROWS - sizes.get(fold, 0) for fold in (None, 1, 2, 3) for epoch in (1, 2)
    }
    evaluated = rows(
        "SELECT fold, sum(e.rows)::int FROM evaluation e JOIN model USING (run, model) WHERE run = %s AND"
        " configuration = 1"
        " AND epoch = 2 GROUP BY 1 ORDER BY 1", run
    )  # fmt: skip
    assert evaluated == list(sizes.items())


def require_figures(place: Lab, run: int, prefix: str, objective: str = "val_loss") -> None:
    """The figures of each fold are those of its model on its rows, and mean and spread are NumPy's."""
    value = ("val_loss", "val_mae").index(objective)
    folds = folds_of(place, "folded")
    found: dict[int, list[tuple[float, float]]] = {1: [], 2: []}
    for fold in (1, 2, 3):
        place(f"DROP TABLE IF EXISTS {prefix}_{fold}, {prefix}_{fold}_info, {prefix}_{fold}_summary")
        place("SELECT materialize(%s, %s, fold => %s)", run, f"{prefix}_{fold}", fold)
        computed = losses(place, f"{prefix}_{fold}", [row for row in folds if folds[row] == fold])
        for key, figures in computed.items():
            found[key].append(figures)
            board = place(
                "SELECT validation_loss, validation_metric, objective_value FROM leaderboard"
                " WHERE run = %s AND configuration = %s AND fold = %s", run, key, fold
            )  # fmt: skip
            assert board == [pytest.approx((*figures, figures[value]), rel=1e-5)]
            info = place(f"SELECT validation_loss, which FROM {prefix}_{fold}_info WHERE configuration = %s", key)
            assert info == [(pytest.approx(figures[0], rel=1e-5), "last")]
    means = {key: float(np.mean([figures[value] for figures in of_folds])) for key, of_folds in found.items()}
    for rank, key in enumerate(sorted(means, key=lambda key: means[key]), 1):
        of_key = [figures[value] for figures in found[key]]
        spread = float(np.std(of_key, ddof=1))
        loss, mae = (float(np.mean([figures[which] for figures in found[key]])) for which in (0, 1))
        assert place(
            "SELECT rank, mean, spread, smallest, largest, folds, folds_done, objective FROM cross_validation"
            " WHERE run = %s AND configuration = %s", run, key
        ) == [(rank, *(pytest.approx(one, rel=1e-5) for one in (means[key], spread, min(of_key), max(of_key))), 3, 3,
               objective)]  # fmt: skip
        assert place(
            "SELECT rank, validation_loss, validation_metric, objective_value, spread FROM leaderboard WHERE run = %s"
            " AND configuration = %s AND fold IS NULL", run, key
        ) == [(rank, *(pytest.approx(one, rel=1e-5) for one in (loss, mae, means[key], spread)))]  # fmt: skip
    assert place(
        "SELECT min(rank), max(rank) FROM leaderboard WHERE run = %s AND fold IS NOT NULL", run
    ) == [(3, 8)]  # fmt: skip


def test_mean_and_spread_are_those_of_the_folds(rows: Lab, run: int) -> None:
    require_figures(rows, run, "judged")
    (best,) = rows("SELECT configuration, mean FROM cross_validation WHERE run = %s AND rank = 1", run)
    (progress,) = rows("SELECT best_configuration, best_loss, percent FROM run_progress WHERE run = %s", run)
    assert progress == (best[0], pytest.approx(best[1]), 100.0)
    info = dict(rows("SELECT configuration, validation_loss FROM models_info"))
    assert min(info, key=lambda key: info[key]) == best[0] and info[best[0]] == pytest.approx(best[1])
    assert rows("SELECT status FROM models_info") == [("finished",)] * 2
    told = rows("SELECT value FROM predict('models', 'SELECT id, facts FROM rows WHERE id = 5')")
    weights = np.frombuffer(rows.weights("models")[best[0]], "f4")
    assert told == [(pytest.approx(weights[5] + (weights[ROWS] if len(weights) > ROWS else 0), rel=1e-5),)]
    curve = rows("SELECT DISTINCT fold, epoch, validation_loss IS NULL FROM learning_curve WHERE run = %s", run)
    assert {(fold, missing) for fold, _, missing in curve} == {(None, True), (1, False), (2, False), (3, False)}


def test_rows_with_folds_can_be_evaluated_and_followed_by_others(rows: Lab, run: int) -> None:
    rows("SELECT madlib_keras_evaluate('models', 'folded', 'measured', false, 1)")
    (measured,) = rows("SELECT loss, metric FROM measured")
    assert measured == pytest.approx(losses(rows, "models", list(range(ROWS)))[1], rel=1e-4, abs=1e-6)
    rows.pack("some_rows", "further", "cost", "facts", packed_table="folded")
    assert "fold" not in rows.value("SELECT layout FROM further_summary")
    rows("SELECT madlib_keras_evaluate('models', 'further', 'measured_further', false, 1)")
    chosen = [row for row in range(ROWS) if row % 3]
    assert rows("SELECT loss FROM measured_further") == [
        (pytest.approx(losses(rows, "models", chosen)[1][0], rel=1e-4),)
    ]


def states(place: Lab, run: int) -> list[Any]:
    return place(
        "SELECT configuration, fold, hop, segment, h.rows, loss, state_sha256 FROM hop h JOIN model USING (run, model)"
        " WHERE run = %s ORDER BY 1, 2 NULLS FIRST, 3", run
    )  # fmt: skip


def test_a_replay_and_the_own_session_have_the_same_bits(rows: Lab, run: int) -> None:
    again = rows.value(
        "SELECT fit('folded', 'again', 'mst', epochs => %s, evaluate_every => 1, options => %s)",
        EPOCHS,
        json.dumps({"replay": run}),
    )
    assert states(rows, again) == states(rows, run)
    here = fit(rows, "folded", "here", execution="session")
    assert states(rows, here) == states(rows, run)
    figures = "SELECT configuration, fold, validation_loss FROM leaderboard WHERE run = %s ORDER BY 1, 2"
    # The view adds up the parts, on Greenplum in any order.
    assert rows(figures, here) == [(key, fold, pytest.approx(loss)) for key, fold, loss in rows(figures, run)]


def test_a_run_is_extended_and_a_configuration_is_added_with_its_folds(rows: Lab, run: int) -> None:
    longer = fit(rows, "folded", "longer", 1, objective="val_mae")
    rows("SELECT resume(%s, epochs => 2)", longer)
    assert [row[-1] for row in states(rows, longer)] == [row[-1] for row in states(rows, run)]
    require_figures(rows, longer, "extended", "val_mae")
    values_of_info = "SELECT i.objective_value, c.mean FROM longer_info i JOIN cross_validation c USING (configuration)"
    means = rows(f"{values_of_info} WHERE c.run = %s", longer)
    assert len(means) == 2 and all(value == pytest.approx(mean) for value, mean in means)
    given = rows.value("SELECT model_arch FROM arch WHERE model_id = 1")
    more = {"architecture": given, "metrics": ["mae"], "optimizer": "SGD", "learning_rate": 0.01, "batch_size": 10}
    rows("SELECT add_configuration(%s, %s)", longer, json.dumps(more))
    rows("SELECT resume(%s)", longer)
    standing = (
        "SELECT fold, status, epochs_done FROM leaderboard WHERE run = %s AND configuration = 3 ORDER BY 1 NULLS FIRST"
    )
    assert rows(standing, longer) == [(fold, "finished", 2) for fold in (None, 1, 2, 3)]  # fmt: skip
    assert rows.value("SELECT count(*) FROM cross_validation WHERE run = %s AND mean IS NOT NULL", longer) == 3
    seeds = rows("SELECT count(DISTINCT seed), count(*) FROM model WHERE run = %s AND configuration = 3", longer)
    assert seeds == [(1, 4)]


def test_a_segment_may_have_no_row_of_a_fold_or_no_other(rows: Lab) -> None:
    """Six rows on three segments, in the caller's own session."""
    rows("CREATE TABLE few AS SELECT id, facts[1:6] AS facts, cost FROM rows WHERE id < 6")
    folds = {}
    for seed in range(30):
        rows("DROP TABLE IF EXISTS few_folded, few_folded_summary")
        packed(rows, "few_folded", "cost", "few", inputs="facts", folds=2, segments=3, seed=seed, buffer_size=1)
        layout = rows.value("SELECT layout FROM few_folded_summary")
        folds = [partition["folds"] for partition in layout["partitions"]]
        if [2, 0] in folds or [0, 2] in folds:
            break
    else:
        pytest.fail("every segment has rows of both folds")
    rows.selection(
        "few_mst", [(rows.architecture(sequential([6], layer("Dense", "out", units=1))), SGD, "batch_size=2")]
    )
    found = rows.value(
        "SELECT fit('few_folded', 'few_models', 'few_mst', epochs => 2, options => %s)",
        json.dumps({"execution": "session"}),
    )
    assert rows("SELECT DISTINCT status FROM leaderboard WHERE run = %s", found) == [("finished",)]
    assert rows("SELECT folds_done, mean IS NOT NULL FROM cross_validation WHERE run = %s", found) == [(2, True)]
    hops = rows("SELECT fold, segment, h.rows::int FROM hop h JOIN model USING (run, model) WHERE run = %s"
                " AND epoch = 1 AND fold IS NOT NULL", found)  # fmt: skip
    assert {(fold, segment): count for fold, segment, count in hops} == {
        (fold, segment): sum(folds[segment]) - folds[segment][fold - 1]
        for fold in (1, 2)
        for segment in range(len(folds))
    }
    assert 0 in {count for *_, count in hops}


def test_a_configuration_that_fails_has_no_mean(rows: Lab) -> None:
    wrong = rows.architecture(sequential([7], layer("Dense", "out", units=1)))
    rows.selection("wrong_mst", [(wrong, SGD, "batch_size=5"), (2, SGD, "batch_size=5")])
    rows.told()
    fit_wrong = "SELECT fit('folded', '{}', 'wrong_mst', epochs => 1, options => '{{\"deterministic\": true}}')"
    found = rows.value(fit_wrong.format("half"))
    assert len([line for line in rows.told() if "configuration 1 failed" in line]) == 1
    told = "SELECT configuration, rank, mean IS NULL, folds_done FROM cross_validation WHERE run = %s ORDER BY 1"
    assert rows(told, found) == [(1, 2, True, 0), (2, 1, False, 3)]
    assert set(rows.weights("half")) == {2}
    with pytest.raises(psycopg2.Error, match="configuration 1: Input shape .* does not match"):
        rows(f"DELETE FROM wrong_mst WHERE mst_key = 2; {fit_wrong.format('none')}")


def test_a_copy_of_a_fold_trains_on_the_same_rows(rows: Lab) -> None:
    copied = fit(rows, "folded", "copied", 1)
    rows("SELECT clone_model(%s, model => 2, changes => '{\"learning_rate\": 0.1}')", copied)
    rows("SELECT resume(%s, epochs => 2)", copied)
    (found,) = rows("SELECT fold, configuration, status FROM leaderboard WHERE run = %s AND parent = 2", copied)
    assert found == (1, 3, "finished")
    assert rows("SELECT configuration FROM cross_validation WHERE run = %s ORDER BY 1", copied) == [(1,), (2,)]


@pytest.mark.parametrize(
    ("call", "says"),
    [
        ("fit('folded', 'no', 'mst', epochs => 1, validation_table => 'folded')", "validation_table cannot be given"),
        ("fit('folded', 'models', 'mst', epochs => 1, warm_start => true)", "warm_start cannot be used"),
        ("fit('folded', 'no', 'mst', epochs => 1, options => '{\"method\": \"asha\"}')", "'asha' cannot be used"),
        ("fit('folded', 'no', 'mst', epochs => 1, options => '{\"stop_when\": \"SELECT 1, $1::text\"}')",
         "'stop_when' cannot"),
        ("train('rows', 'no', target => 'cost', folds => 3, stop_when => 'SELECT 1 AS configuration, ''x'' AS why"
         " WHERE $1 > 0')", "'stop_when' cannot"),
        ("cerebro_internal._madlib_fit_multiple_model('folded', 'no', 'mst', 1, false, NULL, NULL, false,"
         " NULL, NULL, false)",
         "is packed with folds, which this function does not know"),
        ("search('folded', 'no', '{{\"batch_size\": {{\"choice\": [5, 10]}}}}', epochs => 1, max_configurations => 2)",
         "the method 'asha' cannot be used"),
        ("materialize({run}, 'no', fold => 4)", "run {run} has no fold 4"),
        ("materialize({run}, 'no', fold => 0)", "run {run} has no fold 0"),
        ("train('rows', 'no', target => 'cost', folds => 3, method => 'asha')", "the method 'asha' cannot be used"),
        ("train('rows', 'no', target => 'cost', folds => 3, validation => 0.5)", "folds and validation cannot be used"),
        ("train('folded', 'no', folds => 3)", "folds cannot be given: 'folded' is packed already"),
    ],
)  # fmt: skip
def test_what_has_no_meaning_with_folds_is_refused(rows: Lab, run: int, call: str, says: str) -> None:
    before = rows.tables()
    call = call.format(run=run) if "{run}" in call or "{{" in call else call
    with pytest.raises(psycopg2.Error) as error:
        rows(f"SELECT {call}")
    assert says.format(run=run) in str(error.value) and error.value.diag.message_hint, error.value
    assert rows.tables() == before


# -- the best epoch --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def noise(rows: Lab) -> Lab:
    """Rows that a model soon knows by heart: each fold is best after another epoch, and none after the last."""
    chance = np.random.default_rng(4)
    facts, cost = chance.normal(size=(40, 16)).astype("f4"), chance.normal(size=40).astype("f4")
    cost += facts[:, 0]
    rows.table("noise", {"id": "int", "facts": "real[]", "cost": "real"}, zip(range(40), facts.tolist(), cost.tolist()))
    packed(rows, "noise_folded", "cost", "noise", inputs="facts", folds=3, segments=2, seed=1)
    dense = rows.architecture(sequential([16], layer("Dense", "out", units=1)), table="noise_arch")
    rates = ("0.03", "0.01")
    rows.selection(
        "noise_mst",
        [
            (dense, f"optimizer='SGD(learning_rate={rate})', loss='mse', metrics=['mae']", "batch_size=5")
            for rate in rates
        ],
        "noise_arch",
    )
    return rows


NOISE_EPOCHS = 8


def fit_noise(place: Lab, output: str, epochs: int = NOISE_EPOCHS, **options: Any) -> int:
    return place.value(
        "SELECT fit('noise_folded', %s, 'noise_mst', epochs => %s, evaluate_every => 1, options => %s)",
        output, epochs, json.dumps({"deterministic": True, "seed": 5, "keep": "best", **options}),
    )  # fmt: skip


def by_epoch(place: Lab, run: int, figure: str = "validation_loss") -> dict[int, dict[int, list[float]]]:
    """Configuration -> epoch -> a figure of each fold."""
    found: dict[int, dict[int, list[float]]] = {}
    for key, epoch, value in place(
        f"SELECT configuration, epoch, {figure} FROM learning_curve WHERE run = %s AND fold IS NOT NULL"
        " ORDER BY configuration, epoch, fold", run
    ):  # fmt: skip
        found.setdefault(key, {}).setdefault(epoch, []).append(value)
    return found


def require_best_epochs(place: Lab, run: int, output: str, curves: dict[int, dict[int, list[float]]]) -> dict[int, int]:
    """The tables have the states of the epochs with the best means, and all figures are those of these epochs."""
    best = {}
    for key, curve in curves.items():
        means = {epoch: float(np.mean(values)) for epoch, values in curve.items()}
        best[key] = min(means, key=lambda epoch: (means[epoch], epoch))
        of_folds = curve[best[key]]
        mean, spread = (pytest.approx(one, rel=1e-6) for one in (means[best[key]], float(np.std(of_folds, ddof=1))))
        whole = "run = %s AND configuration = %s AND fold IS NULL"
        assert place(
            f"SELECT best_epoch, best_value, objective_value, spread FROM leaderboard WHERE {whole}", run, key
        ) == [(best[key], mean, mean, spread)]
        told = place(
            "SELECT objective_value FROM leaderboard WHERE run = %s AND configuration = %s AND fold > 0 ORDER BY fold",
            run, key
        )  # fmt: skip
        assert [value for (value,) in told] == pytest.approx(of_folds)
        assert place(
            "SELECT mean, spread, smallest, largest, folds_done FROM cross_validation WHERE run = %s"
            " AND configuration = %s", run, key
        ) == [(mean, spread, pytest.approx(min(of_folds)), pytest.approx(max(of_folds)), 3)]  # fmt: skip
        assert place(
            f"SELECT which, epoch, objective_value FROM {output}_info WHERE configuration = %s", key
        ) == [("best", best[key], mean)]  # fmt: skip
    ranked = [key for (key,) in place("SELECT configuration FROM cross_validation WHERE run = %s ORDER BY rank", run)]
    assert ranked == sorted(curves, key=lambda key: np.mean(curves[key][best[key]]))
    return best


def test_the_kept_state_is_that_of_the_epoch_with_the_best_mean(noise: Lab) -> None:
    noise.told()
    run = fit_noise(noise, "kept")
    curves = by_epoch(noise, run)
    best = require_best_epochs(noise, run, "kept", curves)
    assert 1 < min(best.values()) < NOISE_EPOCHS, "the last epoch is the best one: this test shows nothing"
    own = noise("SELECT DISTINCT best_epoch FROM leaderboard WHERE run = %s AND fold > 0 AND configuration = 1", run)
    assert {epoch for (epoch,) in own} != {best[1]}, "all folds agree: this test shows nothing"
    (ending,) = [line for line in noise.told() if "finished: the best" in line]
    assert (
        f"after epoch {best[noise.value('SELECT configuration FROM leaderboard WHERE run = %s AND rank = 1', run)]}"
        in ending
    )
    loss = dict(noise("SELECT configuration, validation_loss FROM kept_info"))
    mae = dict(noise("SELECT configuration, validation_metric FROM kept_info"))
    by_metric = by_epoch(noise, run, "validation_metric")
    for key, epoch in best.items():
        assert loss[key] == pytest.approx(np.mean(curves[key][epoch]))
        assert mae[key] == pytest.approx(np.mean(by_metric[key][epoch]))
        # The bits of a run that ends with this epoch.
        fit_noise(noise, f"until_{key}", epoch, keep="last")
        assert noise.weights("kept")[key] == noise.weights(f"until_{key}")[key]
    noise("SELECT materialize(%s, 'kept_last', which => 'last')", run)
    last = noise.weights("kept_last")
    assert {key for key in best if last[key] != noise.weights("kept")[key]} == {
        key for key in best if best[key] < NOISE_EPOCHS
    }


def test_the_best_epoch_is_that_of_the_objective(noise: Lab) -> None:
    run = fit_noise(noise, "kept_mae", objective="val_mae", execution="session")
    require_best_epochs(noise, run, "kept_mae", by_epoch(noise, run, "validation_metric"))


def test_a_replay_and_an_extended_run_keep_the_same_state(noise: Lab) -> None:
    run = fit_noise(noise, "first")
    again = noise.value(
        "SELECT fit('noise_folded', 'again_kept', 'noise_mst', epochs => %s, evaluate_every => 1, options => %s)",
        NOISE_EPOCHS,
        json.dumps({"replay": run}),
    )
    longer = fit_noise(noise, "extended_kept", 2)
    noise("SELECT resume(%s, epochs => %s)", longer, NOISE_EPOCHS)
    kept = "SELECT model, epoch, value FROM objective WHERE run = %s AND kept ORDER BY 1, 2"
    assert len(noise(kept, run)) > 4
    for other, table in ((again, "again_kept"), (longer, "extended_kept")):
        assert noise.weights(table) == noise.weights("first")
        assert noise(kept, other) == noise(kept, run)
        require_best_epochs(noise, other, table, by_epoch(noise, run))


def test_a_run_that_is_cancelled_goes_on_to_the_same_best_state(noise: Lab) -> None:
    run = fit_noise(noise, "whole")
    noise.db.cursor().execute("DROP TABLE IF EXISTS broken")
    broken = noise.value(
        "SELECT fit('noise_folded', 'broken', 'noise_mst', epochs => %s, evaluate_every => 1, wait => false,"
        " options => %s)",
        NOISE_EPOCHS, json.dumps({"deterministic": True, "seed": 5, "keep": "best"})
    )  # fmt: skip
    eventually(lambda: noise.value("SELECT count(*) > 20 FROM hop WHERE run = %s", broken))
    noise("SELECT cancel(%s)", broken)
    assert noise.value("SELECT wait(%s)", broken) in ("cancelled", "finished")
    noise("SELECT resume(%s)", broken)
    assert noise.weights("broken") == noise.weights("whole")
    require_best_epochs(noise, broken, "broken", by_epoch(noise, run))


def test_epochs_without_an_evaluation_are_not_the_best(noise: Lab) -> None:
    run = noise.value(
        "SELECT fit('noise_folded', 'every_third', 'noise_mst', epochs => %s, evaluate_every => 3, options => %s)",
        NOISE_EPOCHS, json.dumps({"deterministic": True, "seed": 5, "keep": "best"})
    )  # fmt: skip
    curves = {
        key: {epoch: values for epoch, values in curve.items() if None not in values}
        for key, curve in by_epoch(noise, run).items()
    }
    assert {*curves[1]} == {3, 6, 8}
    require_best_epochs(noise, run, "every_third", curves)


def test_a_budget_that_is_too_small_for_the_folds_leaves_a_model_on_all_rows(noise: Lab) -> None:
    noise.told()
    run = fit_noise(noise, "poor", budget={"hops": 1, "least_epochs": 1})
    board = noise("SELECT fold IS NULL, max(epochs_done) FROM leaderboard WHERE run = %s GROUP BY 1 ORDER BY 1", run)
    assert board == [(False, 0), (True, 1)]
    assert noise("SELECT which, objective_value FROM poor_info WHERE which IS NOT NULL") == [("last", None)]
    assert len(noise("SELECT * FROM predict('poor', 'SELECT * FROM noise')")) == 40


# -- searching -------------------------------------------------------------------------------------------------


def test_a_grid_is_searched_with_folds(rows: Lab) -> None:
    given = rows.value("SELECT model_arch FROM arch WHERE model_id = 1")
    space = {"architecture": given, "optimizer": "SGD", "learning_rate": {"choice": [0.01, 0.1]}, "batch_size": 5}
    found = rows.value(
        "SELECT search('folded', 'searched', %s, epochs => 1, method => 'grid',"
        ' options => \'{"seed": 2, "deterministic": true}\')',
        json.dumps(space),
    )
    board = rows("SELECT configuration, fold, chosen ->> 'learning_rate', status FROM leaderboard WHERE run = %s"
                 " ORDER BY 1, 2 NULLS FIRST", found)  # fmt: skip
    assert board == [
        (key, fold, rate, "finished") for key, rate in ((1, "0.01"), (2, "0.1")) for fold in (None, 1, 2, 3)
    ]
    judged = (
        "SELECT configuration, chosen ->> 'learning_rate', folds_done FROM cross_validation WHERE run = %s ORDER BY 1"
    )
    told = rows(judged, found)
    assert told == [(1, "0.01", 3), (2, "0.1", 3)]


def test_train_chooses_by_folds_and_trains_on_all_rows(rows: Lab) -> None:
    rows("CREATE TABLE people AS SELECT i AS id, (i * 37 % 101)::real AS a, i % 7 AS b, 'x' || i % 5 AS c,"
         " CASE WHEN i * 37 % 101 > 50 THEN 'yes' ELSE 'no' END AS answer FROM generate_series(1, 200) i")  # fmt: skip
    rows.told()
    found = rows.value(
        "SELECT train('people', 'answers', target => 'answer', folds => 3, max_configurations => 2, epochs => 1,"
        " segments => 2, budget => NULL)"
    )
    told = "\n".join(rows.told())
    assert "calibrated" not in told and "the mean of" not in told  # no rows are left for that
    assert "divided into 3 folds, with the same share of each class" in told and "once for each of 3 folds" in told
    assert rows("SELECT count(*), min(folds_done), min(epochs_done) FROM cross_validation WHERE run = %s", found) == [
        (2, 3, 1)
    ]
    assert len(rows.weights("answers")) == 2
    assert rows.value("SELECT count(*) FROM predict('answers', 'SELECT * FROM people')") == 200
    layout = rows.value(f"SELECT layout FROM {rows.packed_rows('answers')}_summary")
    sizes = [sum(partition["folds"][fold] for partition in layout["partitions"]) for fold in range(3)]
    assert max(sizes) - min(sizes) <= 2 and sum(sizes) == 200
    tables = rows.tables()
    assert rows.value("SELECT train('people', 'dry', target => 'answer', folds => 4, dry_run => true)") is None
    assert rows.tables() == tables and "once for each of 4 folds" in "\n".join(rows.told())
    (later,) = rows(
        "SELECT train(%s, 'answers_2', max_configurations => 1, epochs => 1, budget => NULL)",
        rows.packed_rows("answers"),
    )[0]
    assert rows.value("SELECT count(*) FROM leaderboard WHERE run = %s", later) == 4
