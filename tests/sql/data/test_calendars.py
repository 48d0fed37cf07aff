"""Many rows take what their dates become from a calendar; few rows compute it. The bytes are the same."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from cerebro_plpy.data.buffers import MANY_ROWS
from tests.sql.data.test_pack import rows_of
from tests.sql.lab import Lab

FEW = MANY_ROWS // 5
# Each row of a day of its own, most of them in some years around 2003. Each hundredth is far away, infinite or NULL.
DATES = """
CREATE TABLE {name} AS SELECT i AS id, w::date AS born, w AS seen, w AT TIME ZONE 'Asia/Kathmandu' AS ended,
       w::time AS wakes, i / 7.0 AS amount, i % 5 AS target
  FROM (SELECT i, CASE i % 100
                  WHEN 0 THEN (ARRAY['infinity', '-infinity', NULL, '0044-03-15 BC', '1582-10-15', '9999-12-31 23:59',
                                     '1899-12-31 23:59:59.999999', '2100-02-28'])[1 + i / 100 % 8]::timestamp
                  ELSE timestamp '1990-01-01' + i % 10007 * interval '1 day 3 min 7.000001 s' END AS w
          FROM generate_series(1, {rows}) AS i) AS made
"""
WISHES: list[dict[str, Any]] = [
    {},
    {"seen": {"cycles": ["day", "week"]}, "born": {"cycles": ["month"]}, "ended": "category"},
]


@pytest.mark.parametrize("wishes", WISHES, ids=["default", "chosen"])
def test_days_of_a_calendar_become_what_each_of_them_becomes(lab: Lab, wishes: dict[str, Any]) -> None:
    name = f"dates_{len(wishes)}"
    lab(DATES.format(name=name, rows=MANY_ROWS))
    lab(f"CREATE VIEW {name}_few AS SELECT * FROM {name} WHERE id <= {FEW}")
    lab(
        f"SELECT cerebro.pack('{name}', '{name}_packed', 'target', validation_table => '{name}_few', seed => 1,"
        " segments => 2, prepare => %s::json)",
        json.dumps(wishes),
    )
    many, few = (rows_of(lab, f"{name}_packed{ending}")[0] for ending in ("", "_validation"))
    assert (len(many), len(few)) == (MANY_ROWS, FEW)
    by_id = {row.tobytes() for row in many}
    assert len(by_id) == MANY_ROWS
    assert all(row.tobytes() in by_id for row in few)
    described = f"cerebro.prepared_columns('{name}_packed') WHERE column_name = 'born'"
    ((start, width),) = lab(f"SELECT DISTINCT start, width FROM {described}")
    assert len(np.unique(many[:, start - 1 : start - 1 + width], axis=0)) > (27 if wishes else 9000)
