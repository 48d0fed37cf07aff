"""The parameters of a clone: what it changes, and what it has from its parent."""

from __future__ import annotations

import pytest

from cerebro_db.core.errors import Unsupported
from cerebro_db.core.parameters import changes, params

SGD = "optimizer='SGD(lr=0.016, momentum=0.9)', loss='mse', metrics=['mae']"


def optimizer(given: object, parent: str = SGD) -> dict[str, object]:
    compiled, _ = changes.changed(params.compile_params(parent), params.fit_params("batch_size=16"), given)
    return dict(params.compile_params(compiled)["optimizer"]["config"])


def test_the_class_of_the_optimizer_changes_none_of_its_arguments() -> None:
    kept = {"learning_rate": 0.016, "momentum": 0.9}
    assert optimizer({"optimizer": "SGD"}) == optimizer({"batch_size": 8}) == kept
    assert optimizer({"optimizer": "SGD(momentum=0.5)"}) == {"learning_rate": 0.016, "momentum": 0.5}
    assert optimizer({"optimizer": "SGD(momentum=0.5)", "lr": 0.2}) == {"learning_rate": 0.2, "momentum": 0.5}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"optimizer": "Adam"}, "cannot change its optimizer from SGD to Adam"),
        ({"momentum": 0.0}, "cannot change whether SGD has momentum"),
        ({"use_ema": True}, "cannot change whether SGD has use_ema"),
    ],
)
def test_what_the_parents_state_does_not_fit_is_refused_at_once(given: dict[str, object], said: str) -> None:
    with pytest.raises(Unsupported, match=said):
        optimizer(given)


def test_a_clone_was_chosen_as_its_parent_was_but_for_its_changes() -> None:
    parent = {"learning_rate": 0.1, "batch_size": 32, "optimizer": "SGD"}
    assert changes.chosen(parent, {"lr": 0.01}) == {**parent, "learning_rate": 0.01}
    assert changes.chosen(None, {"batch_size": 8}) == {"batch_size": 8}
