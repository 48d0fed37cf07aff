"""What a person may ask of a run: the checks before a request is put on record."""

from __future__ import annotations

from typing import Any

import pytest

from cerebro_db.core.errors import CerebroError, InvalidArgument, UndefinedObject, Unsupported, WrongState
from cerebro_db.core.parameters import changes, params
from cerebro_db.core.search import request_checks
from cerebro_db.core.search.request_checks import CLONED, GONE_ON, STOPPED, Standing

MODELS = [
    Standing(model, key, status, "{}")
    for model, key, status in [
        (1, 1, "training"), (2, 2, "finished"), (3, 3, "training"), (4, 3, "waiting"), (5, 3, "stopped"),
        (6, 6, "failed"),
    ]
]  # fmt: skip
ADAM = "optimizer='Adam(lr=0.1, weight_decay=0.01)', loss='mse', metrics=['mae']"


@pytest.mark.parametrize(
    ("configuration", "model", "done", "found"),
    [
        (1, None, STOPPED, 1), (None, 4, STOPPED, 4), (3, 4, STOPPED, 4), (3, None, GONE_ON, 5), (2, None, CLONED, 2),
        (6, None, CLONED, 6),
    ],
)  # fmt: skip
def test_the_model_that_is_meant(configuration: int | None, model: int | None, done: str, found: int) -> None:
    assert request_checks.meant(12, MODELS, configuration, model, done).model == found


@pytest.mark.parametrize(
    ("configuration", "model", "done", "error", "said"),
    [
        (None, None, STOPPED, InvalidArgument, "which model of run 12"),
        (9, None, STOPPED, UndefinedObject, "no configuration 9"),
        (None, 77, STOPPED, UndefinedObject, "no model 77"),
        (1, 3, STOPPED, UndefinedObject, "no model 3 of configuration 1"),
        (
            2,
            None,
            STOPPED,
            WrongState,
            r"model 2 \(configuration 2\) of run 12 is finished; only .* waiting or training",
        ),
        (1, None, GONE_ON, WrongState, "is training; only a model that is stopped can be trained further"),
        (3, None, STOPPED, InvalidArgument, "several models that can be stopped: 3, 4"),
    ],
)
def test_no_model_or_several(configuration: Any, model: Any, done: str, error: type[CerebroError], said: str) -> None:
    with pytest.raises(error, match=said) as raised:
        request_checks.meant(12, MODELS, configuration, model, done)
    assert raised.value.hint


@pytest.mark.parametrize("budget", [{}, {"seconds": 0.5}, {"unit_hours": 2, "hops": 7, "configurations": 1}])
def test_budgets(budget: Any) -> None:
    assert request_checks.checked_budget(budget) == budget


@pytest.mark.parametrize(
    "budget", [None, [1], {"hours": 1}, {"seconds": 0}, {"seconds": -1}, {"hops": 2.5}, {"hops": True}, {"hops": "3"},
               {"seconds": 1e400}, {"seconds": float("nan")}]
)  # fmt: skip
def test_a_budget_that_cannot_be(budget: Any) -> None:
    with pytest.raises(InvalidArgument, match="budget") as raised:
        request_checks.checked_budget(budget)
    assert raised.value.hint


def test_epochs_and_reasons() -> None:
    assert request_checks.checked_epochs(1, 5, 6) == 6
    for epochs in (None, 5, 0, -3):
        with pytest.raises(InvalidArgument, match="planned for 5 epochs; epochs cannot be"):
            request_checks.checked_epochs(1, 5, epochs)
    assert request_checks.checked_reason(None) == "" and request_checks.checked_reason(" why ") == "why"
    with pytest.raises(InvalidArgument, match="reason has 10001 characters"):
        request_checks.checked_reason("x" * 10_001)


def parsed(texts: tuple[str, str]) -> tuple[Any, Any]:
    return params.compile_params(texts[0]), params.fit_params(texts[1])


def changed(compile_text: str, fit_text: str, given: Any) -> tuple[str, str]:
    return changes.changed(*parsed((compile_text, fit_text)), given)


@pytest.mark.parametrize(
    ("given", "optimizer", "fit"),
    [
        ({}, {}, {}),
        ({"lr": 0.01}, {"learning_rate": 0.01}, {}),
        ({"learning_rate": 0.01, "batch_size": 64}, {"learning_rate": 0.01}, {"batch_size": 64}),
        ({"batch_size": None}, {}, {"batch_size": 32}),
        ({"class_weight": {"0": 1, "1": 3}}, {}, {"class_weight": {"0": 1.0, "1": 3.0}}),
    ],
)
def test_a_change_leaves_the_rest_as_it_is(given: Any, optimizer: Any, fit: Any) -> None:
    parent = parsed((ADAM, "batch_size=8, shuffle=False"))
    expected = parent[0]["optimizer"]["config"] | optimizer
    compiled, fitted = parsed(changed(ADAM, "batch_size=8, shuffle=False", given))
    assert compiled == parent[0] | {"optimizer": {"class_name": "Adam", "config": expected}}
    assert fitted == parent[1] | fit


@pytest.mark.parametrize("given", ["Adam(lr=0.5)", {"class_name": "Adam", "config": {"learning_rate": 0.5}}])
def test_a_whole_optimizer_of_the_same_class(given: Any) -> None:
    compiled, _ = parsed(changed(ADAM, "", {"optimizer": given}))
    assert compiled["optimizer"]["config"] == {"learning_rate": 0.5}, "the weight decay is gone"


def test_schedules_can_be_given_and_are_kept() -> None:
    text, _ = changed(ADAM, "", {"lr": "CosineDecay(0.1, 50)"})
    again, _ = changed(text, "", {"weight_decay": 0.5})
    assert "CosineDecay(" in again
    rates = [params.compile_params(one)["optimizer"]["config"]["learning_rate"] for one in (text, again)]
    assert rates[0] == rates[1] and rates[0]["config"] == {"initial_learning_rate": 0.1, "decay_steps": 50}


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ([3], InvalidArgument, "changes must be a JSON object"),
        (None, InvalidArgument, "changes must be a JSON object"),
        ({"epochs": 2}, InvalidArgument, "changes: 'epochs' is no parameter of a configuration"),
        ({"architecture": {}}, Unsupported, "changes cannot contain architecture"),
        ({"optimizer": "SGD"}, Unsupported, "cannot change its optimizer from Adam to SGD"),
        ({"optimizer": {"config": "x"}}, InvalidArgument, "optimizer"),
        ({"fnord": 3}, InvalidArgument, "changes: there is no parameter 'fnord'"),
        ({"lr": "x"}, InvalidArgument, "learning_rate=x"),
        ({"loss": None}, InvalidArgument, "loss is a required parameter"),
        ({"batch_size": 0}, InvalidArgument, "batch_size=0"),
        ({"x=1),y": 1}, CerebroError, "there is no parameter"),
    ],
)
def test_changes_that_cannot_be(given: Any, error: type[CerebroError], said: str) -> None:
    with pytest.raises(error, match=said):
        changed(ADAM, "batch_size=8", given)


def test_the_hint_for_a_key_that_a_clone_cannot_change() -> None:
    for name, hint in (("units", "A clone keeps the architecture of its parent"), ("learning_rat", "The nearest are")):
        with pytest.raises(InvalidArgument) as caught:
            changed(ADAM, "batch_size=8", {name: 64})
        assert hint in (caught.value.hint or "")
