"""The table of options: which values it takes, and what its errors say."""

from __future__ import annotations

from typing import Any

import pytest

from cerebro_db.core import codec, options, run_options
from cerebro_db.core.errors import BadData, CerebroError, InvalidArgument, Unsupported
from cerebro_db.core.run_options import RunOptions
from cerebro_db.core.search import named_methods

GOOD: dict[str, list[Any]] = {
    "seed": [0, 7, -(2**63), 2**63 - 1],
    "deterministic": [True, False],
    "engine": ["tensorflow", "jax", "torch", "auto"],
    "precision": ["float32", "mixed_bfloat16", "mixed_float16"],
    "nan": ["stop", "keep"],
    "threads": [1, 256],
    "cache_mb": [0, 2**31 - 1],
    "reuse": ["none", "auto", "all"],
    "features_mb": [0, 2**31 - 1],
    "features_type": ["float32", "float16"],
    "shard": ["auto", "never", 1, 3, 1000],
    "memory_mb": [1, 600, 2**31 - 1],
    "fuse": [True, False],
    "read_ahead": [True, False],
    "synchronous_commit": [True, False],
    "hang_after": [0, 300, 2**31 - 1],
    "objective": ["loss", "val_auc"],
    "direction": ["min", "max"],
    "keep": ["last", "best"],
    "execution": ["workers", "session"],
    "stop_when": ["SELECT model, 'why' FROM t WHERE run = $1"],
    "method": ["asha", {"name": "asha", "reduction": 4}],
    "budget": [{}, {"seconds": 60.5, "hops": 7}],
    "least_group_rows": [1, 500],
    "parallel": ["hopping", "gradients"],
    "visit_rows": [1, 20_000],
    "groups_start": ["random", "all rows"],
    "new_groups": ["error", "all rows"],
    "replay": [1, 12],
}
BAD: dict[str, list[Any]] = {
    "seed": ["1", 1.5, True, None, 2**63, -(2**63) - 1],
    "deterministic": [1, "true", None],
    "engine": ["abacus", 1, None],
    "precision": ["float8", 16],
    "nan": ["perhaps", True],
    "threads": [0, 257, 100_000, True, "2"],
    "cache_mb": [-1, 2**31, 0.5],
    "reuse": ["some", True, None],
    "features_mb": [-1, 2**31, "2GB"],
    "features_type": ["float8", 16, None],
    "shard": ["3", "always", 0, -1, 1001, True, 1.5, None],
    "memory_mb": [0, -1, 2**31, "600", None],
    "fuse": [1, "yes"],
    "read_ahead": [0, None],
    "synchronous_commit": ["off", None],
    "hang_after": [-1, 1.5, "long", 2**31],
    "objective": [1, None, ["loss"]],
    "direction": ["up", 1],
    "keep": ["all", True],
    "execution": ["here", True, None],
    "stop_when": [1, None, ["SELECT 1"]],
    "method": [1, None, ["asha"]],
    "budget": [60, "60", [60], None],
    "least_group_rows": [0, "9", 1.5, None],
    "parallel": ["tasks", True, None],
    "visit_rows": [0, -1, 0.5, "20000", True, 2**31],
    "groups_start": ["some", True, None],
    "new_groups": ["some", True, None],
    "replay": [0, "12", True, 2**63],
}


def test_every_option_is_tried_here() -> None:
    assert list(GOOD) == list(BAD) == list(options.OPTIONS)


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in GOOD.items() for value in values])
def test_a_value_that_it_takes(name: str, value: Any) -> None:
    assert options.check({name: value}) == {name: value}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in BAD.items() for value in values])
def test_a_value_that_it_does_not_take(name: str, value: Any) -> None:
    with pytest.raises(InvalidArgument if (name, value) != ("engine", "abacus") else Unsupported) as caught:
        options.check({name: value})
    assert name in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    ("given", "message", "hint"),
    [
        ([1], "options must be a JSON object.", 'For instance {"seed": 1}.'),
        ({"sede": 1}, "there is no option 'sede'.", "The options are: seed, deterministic, engine, "),
        ({"seed": "1"}, "option 'seed' cannot be \"1\".", "It takes a whole number."),
        ({"fuse": None}, "option 'fuse' cannot be null.", "It takes true or false."),
        ({"threads": 0}, "option 'threads' cannot be 0.", "It takes a number from 1 to 256."),
        (
            {"precision": "float8"},
            "option 'precision' cannot be \"float8\".",
            "It is one of float32, mixed_bfloat16, mixed_float16; without it: layers compute as",
        ),
        ({"shard": 0}, "option 'shard' cannot be 0.", "It is one of auto, never or a whole number from 1 to 1000."),
        ({"shard": True}, "option 'shard' cannot be true.", "It takes a text or a whole number from 1 to 1000."),
        (
            {"engine": "abacus"},
            "there is no engine 'abacus'.",
            "The engines are: tensorflow, jax, torch; auto takes tensorflow or jax",
        ),
        (
            {"deterministic": True, "fuse": True},
            "options 'deterministic' and 'fuse' exclude each other.",
            "The results",
        ),
    ],
)
def test_what_an_error_says(given: Any, message: str, hint: str) -> None:
    with pytest.raises(CerebroError) as caught:
        options.check(given)
    assert caught.value.message == message
    assert (caught.value.hint or "").startswith(hint)


def test_a_default_is_a_value_that_the_option_takes() -> None:
    for option in options.OPTIONS.values():
        assert (option.default is None) == bool(option.unset)
        if option.default is not None:
            option.check(option.default)


def test_what_a_replay_takes_over() -> None:
    recorded = {"seed": 3, "engine": "auto", "among": ["jax"], "fuse": None, "gpus": [], "threads": 2}
    recorded["budget"] = {"hops": 7}  # the stops that it has led to are repeated
    assert options.replayable(recorded) == {"seed": 3, "engine": "auto", "threads": 2}


def test_a_run_has_a_field_for_each_option() -> None:
    assert set(options.OPTIONS) <= set(codec.names_of(RunOptions))


def test_what_a_run_has_on_record() -> None:
    given = {name: values[-1] for name, values in GOOD.items()}
    given = {**given, "method": named_methods.checked("asha", proposes=False), "engine": "jax"}
    chosen = run_options.of_given(given)
    assert (chosen.trainer.features_type, chosen.trainer.shard) == ("float16", 1000)
    assert chosen.to_json().items() >= given.items()
    assert run_options.read(chosen.to_json(), "the options") == chosen
    assert options.replayable(chosen.to_json()).keys() == given.keys() - set(options.DECIDING)


def test_what_other_versions_and_callers_have_on_record() -> None:
    recorded = {"seed": 1, "reuse": None, "follows": [{"task": "judge", "needs": None}], "madlib": {"function": "f"}}
    found = run_options.read(recorded, "the options")
    assert (found.seed, found.trainer.reuse, found.others) == (1, None, {"madlib": {"function": "f"}})
    assert found.to_json()["madlib"] == {"function": "f"}


@pytest.mark.parametrize(
    ("recorded", "said"),
    [
        ({"threads": 0}, "the options: threads cannot be used: option 'threads' cannot be 0."),
        ({"gpus": [0, -1]}, "the options: gpus[1] has to be from 0 to 1048575, not -1"),
        ({"follows": [{"task": "judge"}] * 2}, "the options: follows has the same task twice"),
        ({"named": {"source_table": "a b"}}, 'the options: named["source_table"] cannot be used: '),
        ({"budget": {"days": 1}}, "the options: budget cannot be used: a budget has no limit 'days'; it has: "),
        ({"objective": "loss"}, "the options: direction is missing"),
        ({"engine": "auto"}, "the options: among is missing"),
    ],
)
def test_what_cannot_be_on_record(recorded: Any, said: str) -> None:
    with pytest.raises(BadData) as caught:
        run_options.read(recorded, "the options")
    assert caught.value.message.startswith(said)
