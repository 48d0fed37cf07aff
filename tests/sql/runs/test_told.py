"""What a call tells: by default what people need, with cerebro.details how it is done, and without it nothing."""

from __future__ import annotations

import re
import secrets

import pytest

from tests.sql.lab import Lab, run

MOST_LINES = 12


@pytest.fixture(scope="module")
def orders(lab: Lab) -> Lab:
    lab(
        "CREATE TABLE orders AS SELECT i AS id, (i * 37 % 91)::real AS size, (i % 7)::real AS rooms,"
        " CASE WHEN (i * 37 % 91) + (i * 7919 % 13) > 50 THEN 'dear' ELSE 'cheap' END AS class,"
        " (i * 7919 % 10007)::real AS noise, '{}'::jsonb AS papers FROM generate_series(1, 400) i"
    )
    return lab


def told(lab: Lab, verbose: str | None, call: str) -> list[str]:
    session = lab.connect()
    try:
        run(session, "SELECT set_config('cerebro.details', %s, false)", verbose or "")
        session.notices.clear()
        run(session, call)
        return [line.strip() for line in session.notices]
    finally:
        session.close()


def test_a_call_tells_in_a_few_lines_how_good_the_model_is(orders: Lab) -> None:
    lines = told(orders, None, "SELECT cerebro.train('orders', 'few_lines', target => 'class', inputs => 'size, rooms',"
                               " epochs => 8, max_configurations => 6, options => '{\"seed\": 1}')")  # fmt: skip
    assert len(lines) <= MOST_LINES, lines
    said = "\n".join(lines)
    assert "about 20 % of the 400 rows are for validation" in said
    assert "prepared as number: size, rooms" in said
    assert "SELECT * FROM cerebro.run_progress WHERE run = " in said
    assert " SELECT * FROM cerebro.predict('" in lines[-1]
    if not orders.greenplum:  # where an error would end the call, nothing is judged
        assert "few_lines predicts class: accuracy " in lines[-2]
        (made_of,) = [line for line in lines if "few_lines is " in line]
        assert re.search(r"is (the mean of )?configurations? [0-9]", made_of) and re.search("mlp|trees", made_of), (
            made_of
        )
        assert "(always '" in lines[-2] and ", AUC " in lines[-2] and " rows for validation" in lines[-2]
    for word in ("buffer", "segment", "hop", "visit", "space:", "MB"):
        assert word not in said, (word, said)


def test_columns_that_are_left_out_are_named(orders: Lab) -> None:
    lines = told(orders, None, "SELECT cerebro.train('orders', 'left_out', target => 'class', epochs => 1,"
                               " max_configurations => 1, dry_run => true)")  # fmt: skip
    assert any("the column 'id' is ignored" in line for line in lines), lines
    assert any("the column 'papers' is ignored" in line for line in lines), lines


def test_a_model_that_has_learned_nothing_is_called_that(orders: Lab) -> None:
    """Each target is judged."""
    if orders.greenplum:
        pytest.skip("on Greenplum, nothing is judged at the end")
    lines = told(orders, None, "SELECT cerebro.train('orders', 'nothing', target => 'class, noise', inputs => 'rooms',"
                               " epochs => 1, max_configurations => 1, options => '{\"seed\": 1}')")  # fmt: skip
    assert [line for line in lines if "nothing predicts class: accuracy " in line and "(always '" in line], lines
    assert [line for line in lines if "nothing predicts noise: RMSE " in line and "(always the mean, " in line], lines
    assert any(line.startswith("WARNING: ") and "predicts noise no better than" in line for line in lines), lines


def test_what_is_told_of_the_model_is_kept(orders: Lab) -> None:
    """With the run, with the model, and with its version in the registry; nothing is computed again."""
    if orders.greenplum:
        pytest.skip("on Greenplum, nothing is judged at the end")
    lines = told(orders, None, "SELECT cerebro.train('orders', 'kept', target => 'class', inputs => 'size, rooms',"
                               " epochs => 8, max_configurations => 6, options => '{\"seed\": 1}')")  # fmt: skip
    (line,) = [line for line in lines if "kept predicts class: " in line]
    says = line.partition("kept predicts class: ")[2].removesuffix(" for validation")
    columns = "chosen_configuration, made_of, quality"
    ((number, *kept),) = orders(f"SELECT run, {columns} FROM cerebro.runs WHERE model_table ~ '[.]kept$'")
    chosen, made_of, quality = kept
    assert quality == says and says.startswith("accuracy ") and says.endswith(" rows")
    assert orders(f"SELECT {columns} FROM cerebro.models WHERE run = %s", number) == [tuple(kept)]
    of_ensemble = "CASE WHEN members IS NOT NULL THEN reason END"
    assert orders(
        f"SELECT configuration, {of_ensemble}, quality ->> 'says' FROM kept_info WHERE quality IS NOT NULL"
    ) == [tuple(kept)]
    asked = "SELECT * FROM cerebro.predict('kept', 'orders', 'id'{}) ORDER BY 1"
    assert orders(asked.format("")) == orders(asked.format(f", configuration => {chosen}"))
    name = f"kept_{secrets.token_hex(3)}"
    orders(f"SELECT cerebro.register('{name}', 'kept')")
    try:
        versions = "SELECT quality FROM cerebro.registered_versions WHERE registered_model = %s"
        assert orders(versions, name) == [(says,)]
    finally:
        orders(f"SELECT cerebro.unregister('{name}', 1)")


def test_a_calibration_says_how_good_each_target_is(orders: Lab) -> None:
    """Of one target alone, what is known of the others stays."""
    orders("SELECT cerebro.fit('orders', 'two_targets', '[{}]', target => 'class, noise', inputs => 'size, rooms',"
           " epochs => 2, options => '{\"seed\": 1}')")  # fmt: skip
    assert orders("SELECT quality FROM cerebro.models WHERE model_table ~ '[.]two_targets$'") == [(None,)]
    orders("SELECT FROM cerebro.calibrate('two_targets')")
    kept = "SELECT quality FROM cerebro.models WHERE model_table ~ '[.]two_targets$'"
    before = orders.value(kept)
    of_class, of_noise = before.split("; ")
    assert of_class.startswith("class: accuracy ") and of_noise.startswith("noise: RMSE ")
    orders("SELECT FROM cerebro.calibrate('two_targets', 'SELECT * FROM orders LIMIT 50', target => 'noise')")
    after = orders.value(kept).split("; ")
    assert after[0] == of_class and after[1] != of_noise and after[1].endswith(" on 50 rows")


def test_a_dry_run_tells_all_that_it_decides(orders: Lab) -> None:
    lines = "\n".join(told(orders, "off", "SELECT cerebro.train('orders', 'dry', target => 'class', dry_run => true)"))
    for decision in ("prepared as number", "the column 'id' is ignored", "space: ", "loss categorical_crossentropy"):
        assert decision in lines


def test_a_fit_tells_its_best_configuration(orders: Lab) -> None:
    call = "SELECT cerebro.fit('orders', 'fitted', '[{}]', target => 'class', inputs => 'size', epochs => 1)"
    lines = told(orders, None, call)
    assert any(" finished: the best is configuration 1 with " in line for line in lines), lines


def test_what_is_neither_on_nor_off_counts_as_not_set(orders: Lab) -> None:
    lines = told(orders, "perhaps", "SELECT cerebro.pack('orders', 'packed_perhaps', 'class', inputs => 'size')")
    assert [line for line in lines if line.startswith("WARNING:  cerebro.details is 'perhaps'")] == lines[:1], lines
    assert any("rows in" in line for line in lines)


def test_the_name_of_the_setting_needs_quotes_in_sql(orders: Lab) -> None:
    session = orders.connect()
    try:
        pack = "SELECT cerebro.pack('orders', 'packed_maybe', 'class', inputs => 'size')"
        for statement in ("SET cerebro.details = maybe", pack, "RESET cerebro.details"):
            run(session, statement)
        assert "RESET cerebro.details;" in "".join(session.notices)
    finally:
        session.close()


def test_details_are_for_those_who_ask(orders: Lab) -> None:
    call = (
        "SELECT cerebro.train('orders', '{}', target => 'class', inputs => 'size, rooms', epochs => 2,"
        " max_configurations => 2)"
    )
    verbose = "\n".join(told(orders, "on", call.format("with_details")))
    for detail in (
        "space: ",
        "the packed rows are in",
        "of disk for model states",
        " finished: the best is configuration",
    ):
        assert detail in verbose
    assert told(orders, "off", call.format("in_silence")) == []


def test_packing_tells_of_its_rows_unless_a_verb_packs(orders: Lab) -> None:
    (line,) = [
        line
        for line in told(
            orders, None, "SELECT cerebro.pack('orders', 'packed_orders', 'class', inputs => 'size', validation => 0)"
        )
        if "buffer" in line
    ]
    assert line.startswith("NOTICE:  400 rows in ")
