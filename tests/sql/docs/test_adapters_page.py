"""The statements of docs/adapters.md, run as printed."""

from __future__ import annotations

from tests.sql.lab import Lab
from tests.sql.pages import blocks, statements


def test_each_statement_runs_and_the_models_have_adapters(lab: Lab) -> None:
    shown = [lab(one) for block in blocks("docs/adapters.md", "sql") for one in statements(block)]
    told = {configuration: parameters for configuration, parameters, loss in shown[-1] if loss is not None}
    assert sorted(told) == [1, 2, 3, 4] and told[1]["lora_rank"] == 4 and told[3]["biases"] is True
    counts = lab("SELECT configuration, json_array_length(architecture -> 'adapters') FROM signals_adapted ORDER BY 1")
    assert [number for number, count in counts if count] == [1, 2, 3]
