"""The protocol: every order and answer survives its JSON, and whatever is not one is refused, in words."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from cerebro_db.core import codec, errors, protocol
from cerebro_db.core.errors import CorruptState, InvalidArgument
from cerebro_db.core.protocol import (
    ORDERS,
    Failure,
    ModelState,
    Order,
    Origin,
    Route,
    StateRef,
    TrainerOptions,
    TrainerSettings,
)
from cerebro_db.core.protocol import answers as answers_module
from cerebro_db.core.protocol.page import page
from cerebro_db.nn.trainer import Trainer
from cerebro_plpy.sessions.team_options import TeamOptions
from tests.thorough import tries

ROOT = Path(__file__).parents[2]
ANSWERS = [
    kind
    for kind in vars(answers_module).values()
    if dataclasses.is_dataclass(kind) and kind.__module__ == answers_module.__name__
] + [protocol.Collected]

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
DOCUMENTS = st.dictionaries(st.text(max_size=8), JSON, max_size=3)
INTEGERS = st.integers(-(1 << 63), (1 << 63) - 1)


@st.composite
def states(draw: Any) -> StateRef:
    origin = draw(st.sampled_from(Origin))
    received = origin in (Origin.WEIGHTS, Origin.FULL)
    return StateRef(
        origin,
        name=draw(st.text()) if received else None,
        sha256=draw(st.text()) if origin is Origin.FULL else None,
        token=draw(st.text()) if origin is Origin.RESIDENT else None,
        path=draw(st.none() | st.text()) if received else None,
    )


COUNTS = st.integers(1, 1000)
ELEMENTS = st.builds(protocol.InputElements, st.text()) | st.builds(
    protocol.InputElements, st.text(), st.integers(0, 9), COUNTS
)
EXCHANGES = st.builds(protocol.Exchange, st.lists(ELEMENTS, min_size=1, max_size=3), INTEGERS, COUNTS)
SPANS = st.builds(protocol.Span, st.integers(0, 1000), st.integers(0, 1000))
WHOLE_STATES = st.builds(StateRef.full, st.text(), st.text())
REPLICAS = st.builds(
    protocol.ModelReplica, WHOLE_STATES, COUNTS, st.builds(protocol.MetricStates, st.just({"loss": [1.0, 2.0]}))
)
RESTS = st.none() | st.integers(1, protocol.LONGEST_REST)  # most other numbers would be refused
PLACES = st.integers(0, 2)
CONFIGURATIONS = st.lists(DOCUMENTS, min_size=3, max_size=3)
VISITS = st.builds(protocol.MemberVisit, INTEGERS, st.booleans())
EVALUATIONS = st.lists(st.builds(protocol.EvaluationRows, st.text(), st.none() | SPANS, st.none() | COUNTS), max_size=2)
CHAINS = st.builds(
    protocol.Member, PLACES, INTEGERS, st.lists(VISITS, min_size=1, max_size=3), states(), evaluations=EVALUATIONS
)
MEMBERS = st.builds(
    protocol.Member, PLACES, INTEGERS, st.just([protocol.MemberVisit(1)]), states(), INTEGERS, out=st.none() | st.text()
)
GROUPS = st.builds(protocol.Group, st.lists(MEMBERS, min_size=1, max_size=3) | st.lists(CHAINS, min_size=1, max_size=1))
MODELS = (
    st.builds(ModelState, PLACES, states(), INTEGERS, st.none() | INTEGERS)
    | st.builds(ModelState, PLACES, states(), span=SPANS)
    | st.builds(ModelState, PLACES, states(), exchanges=st.lists(EXCHANGES, max_size=3))
)
OWN: dict[Any, st.SearchStrategy[Any]] = {  # of classes that accept not all values of their types
    StateRef: states(),
    TrainerSettings: st.builds(
        TrainerSettings,
        engine=st.text(min_size=1),
        threads=st.none() | st.integers(1, 256),
        gpu=st.none() | COUNTS,
        hang_after=COUNTS,
    ),
    protocol.Rest: st.builds(protocol.Rest, st.integers(1, protocol.LONGEST_REST), st.none() | st.lists(st.text())),
    protocol.Suggest: st.builds(
        protocol.Suggest,
        dimensions=st.lists(DOCUMENTS, max_size=3),
        seed=INTEGERS,
        number=INTEGERS,
        trials=st.lists(DOCUMENTS, max_size=3),
        count=st.integers(0, protocol.MOST_SUGGESTIONS),
    ),
    protocol.InputElements: ELEMENTS,
    protocol.Exchange: EXCHANGES,
    protocol.Span: SPANS,
    protocol.Train: st.builds(protocol.Train, st.text(), CONFIGURATIONS, st.lists(GROUPS, max_size=3)),
    protocol.BeginJoint: st.builds(
        protocol.BeginJoint,
        st.just({}),
        st.text(),
        MEMBERS,
        st.lists(COUNTS, min_size=3, max_size=5),
        st.integers(0, 2),
    ),
    protocol.Evaluate: st.builds(
        protocol.Evaluate, st.text(), CONFIGURATIONS, st.lists(MODELS, min_size=1, max_size=3), st.none() | st.text()
    ),
    protocol.ModelReplica: REPLICAS,
    protocol.Average: st.builds(
        protocol.Average,
        DOCUMENTS,
        st.text(),
        st.lists(REPLICAS, min_size=1, max_size=3),
        COUNTS,
        out=st.none() | st.text(),
    ),
    protocol.FrozenPart: st.builds(
        protocol.FrozenPart, COUNTS, st.integers(1, 1 << 40), st.text("0123456789abcdef", min_size=64, max_size=64)
    ),
    protocol.CollectResult: st.builds(protocol.CollectResult, st.none() | st.floats(0, 1e9)),
}


def values(annotation: Any) -> st.SearchStrategy[Any]:
    """The values that a field of this type may have."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation in OWN:
        return OWN[annotation]
    if annotation is Any:
        return JSON
    if annotation in (bool, str):
        return st.booleans() if annotation is bool else st.text(max_size=8)
    if annotation is int:
        return INTEGERS
    if annotation is float:
        return st.floats(allow_nan=False)
    if origin is typing.Union:
        return st.none() | values(arguments[0])
    if origin is list:
        return st.lists(values(arguments[0]), max_size=3)
    if origin is dict:
        return st.dictionaries(st.text(max_size=8), values(arguments[1]), max_size=3)
    if origin is protocol.Computation:
        return st.one_of([objects(kind) for kind in ORDERS.values() if issubclass(kind, protocol.Computation)])
    return objects(annotation)


@st.composite
def objects(draw: Any, kind: Any) -> Any:
    if kind in OWN:
        return draw(OWN[kind])
    types = typing.get_type_hints(kind)
    found = {
        field.name: draw(RESTS if field.name == "rest" else values(types[field.name]))
        for field in dataclasses.fields(kind)
    }
    try:
        return kind(**found)
    except InvalidArgument:  # a value that its class refuses
        assume(False)


REFUSALS = [HealthCheck.filter_too_much]  # classes refuse many combinations of values
EVERY_ORDER = st.sampled_from(list(ORDERS.values())).flatmap(objects)


@pytest.mark.parametrize("name", ORDERS)
@settings(max_examples=30, deadline=None, suppress_health_check=REFUSALS)
@given(st.data())
def test_an_order_survives_its_json(name: str, data: Any) -> None:
    order = data.draw(objects(ORDERS[name]))
    assert protocol.from_json(protocol.to_json(order)) == order
    assert protocol.decode(protocol.encode(order)) == order
    assert protocol.encode(order)["order"] == name == type(order).name


@pytest.mark.parametrize("kind", ANSWERS, ids=lambda kind: kind.__name__)
@settings(max_examples=30, deadline=None, suppress_health_check=REFUSALS)
@given(st.data())
def test_an_answer_survives_its_json(kind: Any, data: Any) -> None:
    answer = data.draw(objects(kind))
    document = json.loads(json.dumps(protocol.encode_answer(answer)))
    assert codec.decode(kind, document, "it") == answer


@settings(max_examples=50, deadline=None, suppress_health_check=REFUSALS)
@given(st.data(), EVERY_ORDER)
def test_replies(data: Any, order: Order[Any]) -> None:
    answer = data.draw(objects(type(order).answer_type))
    assert protocol.reply_of(order, protocol.reply_json(answer)) == answer
    failure = data.draw(objects(Failure))
    assert protocol.reply_of(order, protocol.reply_json(failure)) == failure
    progress = data.draw(objects(protocol.Progress))
    assert protocol.decode_reply(order, protocol.progress_frame(progress)) == progress


def test_an_answer_that_was_collected() -> None:
    order = protocol.Evaluate("h", [{}], [ModelState(0, StateRef.seed())])
    model = protocol.EvaluatedModel(3, math.inf, {"f1": [0.5, 1.0]}, protocol.MetricStates({"loss": [math.inf, 3]}), {})
    evaluated = protocol.Evaluated([model, protocol.EvaluatedModel(error=Failure("CorruptState", "x"))], 7, 8, ["t"])
    collected = protocol.Collected(protocol.encode_answer(evaluated))
    assert protocol.reply_of(protocol.CollectResult(), protocol.reply_json(collected)) == collected
    assert collected.answer_to(order) == evaluated
    assert protocol.Collected().answer_to(order) is None
    with pytest.raises(InvalidArgument, match="the answer to train"):
        collected.answer_to(protocol.Train("h", [], []))


def test_a_loss_that_is_no_number() -> None:
    evaluated = protocol.Evaluated([protocol.EvaluatedModel(3, math.nan)])
    order = protocol.Evaluate("h", [{}], [ModelState(0, StateRef.seed())])
    reply = protocol.reply_of(order, protocol.reply_json(evaluated))
    assert isinstance(reply, protocol.Evaluated) and math.isnan(reply.models[0].loss)


@pytest.mark.parametrize("kind", list(errors.kinds()), ids=lambda kind: kind.__name__)
def test_errors_arrive_as_they_were_raised(kind: Any) -> None:
    raised = kind("what", hint="do", detail="more")
    failure = protocol.reply_of(protocol.Wake(), protocol.reply_json(Failure.of(raised)))
    assert isinstance(failure, Failure)
    told = failure.error()
    assert (type(told), told.message, told.hint, told.detail) == (kind, "what", "do", "more")
    assert Failure("NoSuchError", "x").error().sqlstate == errors.CerebroError.sqlstate
    assert Failure.of(CorruptState("x")) == Failure("CorruptState", "x")


# -- strictness ------------------------------------------------------------------------------------------


def places(document: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where the values of a document are."""
    if isinstance(document, dict):
        for name, value in document.items():
            yield (*at, name)
            yield from places(value, (*at, name))
    elif isinstance(document, list):
        for number, value in enumerate(document):
            yield (*at, number)
            yield from places(value, (*at, number))


def changed(document: Any, at: tuple[Any, ...], change: Any) -> Any:
    copy = json.loads(json.dumps(document))
    inner = copy
    for step in at[:-1]:
        inner = inner[step]
    change(inner, at[-1])
    return copy


@pytest.mark.parametrize("name", ORDERS)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(st.data())
def test_fields_that_lack_or_are_unknown(name: str, data: Any) -> None:
    document = protocol.encode(data.draw(objects(ORDERS[name])))
    for field in dataclasses.fields(ORDERS[name]):  # type: ignore[arg-type]
        if field.default is field.default_factory is dataclasses.MISSING:
            with pytest.raises(InvalidArgument, match=f"{name} lacks the field {field.name}"):
                protocol.decode({key: value for key, value in document.items() if key != field.name})
    unknown = data.draw(st.text())
    assume(unknown not in document and unknown not in ORDERS[name].__dataclass_fields__)  # type: ignore[attr-defined]
    with pytest.raises(InvalidArgument, match=f"{name} has no field"):
        protocol.decode({**document, unknown: 1})


@settings(max_examples=tries(60), deadline=None)
@given(EVERY_ORDER, st.data())
def test_a_value_that_was_exchanged_is_refused_or_valid(order: Order[Any], data: Any) -> None:
    document = protocol.encode(order)
    at = data.draw(st.sampled_from(list(places(document))))
    wrong = data.draw(JSON)

    def exchange(inner: Any, last: Any) -> None:
        inner[last] = wrong

    other = changed(document, at, exchange)
    try:
        decoded = protocol.decode(other)
    except InvalidArgument as refused:
        assert refused.message and "Traceback" not in refused.message
    else:
        assert protocol.decode(protocol.encode(decoded)) == decoded


EMPTY = {"handle": "h", "configurations": [{}]}


def member_of(*members: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """An order to train with members that have these fields."""
    sound = {"configuration": 0, "seed": 1, "visits": [{"shuffle_seed": 1}], "state": {"origin": "seed"}}
    group = [{**sound, **fields, **one} for one in members or ({},)]
    return {**EMPTY, "groups": [{"members": group}]}


WRONG = [
    ("train", {"handle": 1, "configurations": [], "groups": []}, "train: handle has to be a text, not 1"),
    ("train", {**EMPTY, "groups": {}}, "train: groups has to be a list, not an object"),
    ("train", {**EMPTY, "groups": [{"members": [{}]}]}, ".members[0] lacks the field configuration"),
    ("train", {**EMPTY, "groups": [{"members": []}]}, "a group needs a member"),
    ("train", member_of(configuration=1), "the order has 1 configurations, and none at place 1"),
    ("train", member_of(configuration=-1), "the order has 1 configurations, and none at place -1"),
    ("train", member_of(visits=[]), "a member needs a visit"),
    ("train", member_of({"visits": [{"shuffle_seed": 1}] * 2}, {}), "fused members have one visit each"),
    ("load_rows", {"handle": "h", "layout": {}, "rows": True}, "load_rows: rows has to be a whole number, not true"),
    ("load_rows", {"handle": "h", "layout": {}, "rows": 1.0}, "load_rows: rows has to be a whole number, not 1.0"),
    ("load_rows", {"handle": "h", "layout": {}, "rows": 1 << 63}, "load_rows: rows does not fit into 64 bits"),
    ("load_rows", {"handle": "h", "layout": [], "rows": 1}, "load_rows: layout has to be a JSON object, not a list"),
    ("load_rows", {"handle": "h", "layout": {}, "rows": -1}, "there cannot be -1 rows"),
    ("rest", {"seconds": 0}, "a trainer cannot rest for 0 seconds"),
    ("rest", {"seconds": 86401}, "a trainer cannot rest for 86401 seconds"),
    ("collect_result", {"seconds": -1}, "nobody can wait for -1.0 seconds"),
    ("collect_result", {"seconds": math.nan}, "nobody can wait for nan seconds"),
    ("collect_result", {"seconds": 10**400}, "collect_result: seconds is too large for a number of 64 bits"),
    ("begin", {"computation": {"order": "wake"}}, "begin: computation is \"wake\", and there is no such order here"),
    ("begin", {"computation": 3}, "begin: computation has to be a JSON object, not 3"),
    ("evaluate", {"state": {"origin": "full", "name": "n"}}, "a state from full needs a sha256"),
    ("evaluate", {"state": {"origin": "seed", "name": "n"}}, "a state from seed has no name"),
    ("evaluate", {"state": {"origin": "held"}}, "state.origin has to be seed or weights or full or resident"),
    ("evaluate", {"state": {"origin": ["seed"]}}, "not a list"),
    ("evaluate", {"state": {"origin": "seed"}, "rows": 1}, 'evaluate: models[0] has no field "rows"'),
    ("evaluate", {"state": {"origin": "seed"}, "fold": 1, "exchanges": [{"elements": [{"input": "x"}]}]},
     "values are exchanged among all rows, not within a fold"),
    ("evaluate", {"state": {"origin": "seed"}, "exchanges": [{"elements": []}]}, "no elements to exchange"),
    ("evaluate", {"state": {"origin": "seed"}, "exchanges": [{"elements": [{"input": "x"}], "repeats": 0}]},
     "values cannot be exchanged 0 times"),
    ("evaluate", {"state": {"origin": "seed"}, "exchanges": [{"elements": [{"input": "x"}], "repeats": 1001}]},
     "values cannot be exchanged 1001 times"),
    ("evaluate", {"state": {"origin": "seed"}, "exchanges": [{"elements": [{"input": "x", "start": 2}]}]},
     "all elements of a row begin with the first"),
    ("evaluate", {"state": {"origin": "seed"}, "exchanges": [{"elements": [{"input": "x", "width": 0}]}]},
     "a row has no such elements"),
    ("predict", {"state": {"origin": "seed"}, "out": "o"}, "a prediction needs a handle, or inputs and files"),
    ("keep_engines", {"engines": ["jax", None]}, "keep_engines: engines[1] has to be a text, not null"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "fields", "said"), WRONG, ids=[said for _, _, said in WRONG])
def test_what_is_wrong_is_said(name: str, fields: dict[str, Any], said: str) -> None:
    if name == "evaluate":
        fields = {"handle": "h", "configurations": [{}], "models": [{"configuration": 0, **fields}]}
    elif name == "predict":
        fields = {"configuration": {}, **fields}
    with pytest.raises(InvalidArgument) as refused:
        protocol.decode({"order": name, **fields})
    assert said in refused.value.message


@pytest.mark.parametrize("settings_", [{}, {"engine": 1}, {"engine": "jax", "threads": 0}, {"engine": "jax", "gpu": -1},
                                       {"engine": "jax", "threads": 257},
                                       {"engine": "jax", "cache_mb": 1 << 40}, {"engine": "jax", "x": 1},
                                       {"engine": "jax", "memory_limit_mb": 900}])  # fmt: skip
def test_settings(settings_: Any) -> None:
    with pytest.raises(InvalidArgument):
        protocol.decode_settings(json.dumps(settings_))
    given = TrainerSettings(engine="jax", threads=2, cache_mb=0)
    # A run that asks for nothing else leaves its trainers to the predictions that follow.
    assert TeamOptions(("jax",), TrainerOptions(threads=2, cache_mb=0)).settings(0) == given
    assert protocol.decode_settings(protocol.encode_settings(given)) == given


# -- what only the segment may say -----------------------------------------------------------------------


def by_segment(value: Any) -> Iterator[Any]:
    """The dataclasses within an order of which the segment fills in a field."""
    if isinstance(value, list):
        for one in value:
            yield from by_segment(one)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            found = getattr(value, field.name)
            if field.metadata.get("by_segment") and found is not None:
                yield field.name
            yield from by_segment(found)


@settings(max_examples=tries(60), deadline=None)
@given(EVERY_ORDER)
def test_an_order_of_the_driver_has_no_path_and_no_source(order: Order[Any]) -> None:
    text, named = protocol.to_json(order), list(by_segment(order))
    inner = order.computation if isinstance(order, protocol.Begin) else order
    if inner.route is Route.TO_TRAINER:
        with pytest.raises(InvalidArgument, match="takes no order"):
            protocol.order_from_driver(text)
    elif named:
        with pytest.raises(InvalidArgument, match=r"cannot be given: the segment fills it in"):
            protocol.order_from_driver(text)
    else:
        assert protocol.order_from_driver(text) == order


def test_every_path_and_source_is_the_segments() -> None:
    """A field that names a path or carries source text, in an order that a driver may give."""
    named = {
        f"{kind.__name__}.{field.name}"
        for kind in [*ORDERS.values(), StateRef, protocol.Member]
        if getattr(kind, "route", None) is not Route.TO_TRAINER
        for field in dataclasses.fields(kind)  # type: ignore[arg-type]
        if field.metadata.get("by_segment")
    }
    computations = (
        "Describe",
        "TryEngine",
        "RehearseFusion",
        "Train",
        "Average",
        "BeginJoint",
        "Evaluate",
        "MergeMetrics",
    )
    assert named == {
        "LoadRows.files", "Rest.folders", "StateRef.path", "StateRef.frozen_path", "Member.out", "Average.out",
        "EndJoint.out",
        *(f"{name}.functions" for name in computations)
    }  # fmt: skip


# -- fuzz ------------------------------------------------------------------------------------------------


@settings(max_examples=tries(60), deadline=None)
@given(JSON | st.builds(lambda name, more: {"order": name, **more}, st.sampled_from(list(ORDERS)) | JSON, DOCUMENTS))
def test_whatever_comes_is_decoded_or_refused(document: Any) -> None:
    for decode in (
        protocol.decode,
        lambda it: protocol.order_from_driver(json.dumps(it)),
        lambda it: protocol.decode_settings(json.dumps(it)),
        protocol.decode_opened,
        lambda it: protocol.decode_reply(protocol.Train("h", [], []), it),
        lambda it: protocol.reply_of(protocol.Inspect(), json.dumps(it)),
        lambda it: protocol.reply_of(protocol.Describe({}), json.dumps({"ok": it})),
    ):
        try:
            found = decode(document)
        except InvalidArgument as refused:
            assert len(refused.message) < 1000
        else:
            assert dataclasses.is_dataclass(found)


@settings(max_examples=tries(60), deadline=None)
@given(st.text() | st.text(alphabet='{}[]":,order01 \\u').map(lambda text: "{" + text))
def test_texts_that_are_no_json(text: str) -> None:
    assert protocol.progress_in(text) is None
    try:
        json.loads(text)
    except ValueError:
        with pytest.raises(InvalidArgument, match="not a JSON document"):
            protocol.from_json(text)


@pytest.mark.parametrize("text", ["[" * 1_000_000, '{"order":' * 100_000, "9" * 10_000, None, 3, b"\xff"])
def test_texts_that_are_too_much(text: Any) -> None:
    with pytest.raises(InvalidArgument):
        protocol.from_json(text)


# -- progress --------------------------------------------------------------------------------------------


def test_notices() -> None:
    progress = protocol.Progress(3, 10, 0.5)
    notice = protocol.progress_notice(progress)
    assert protocol.progress_in(notice) == progress
    assert protocol.progress_in(f"NOTICE:  {notice}  (seg0 slice1 10.0.0.1:6000 pid=7)") == progress  # Greenplum's
    for planted in ("", "progress", "[1]", "{}", '{"rows": "many", "of": 1}', '{"rows": 1e99, "of": 1}', "[" * 100_000):
        assert protocol.progress_in(protocol.PROGRESS + planted) is None
    assert protocol.progress_in("something else") is None


# -- one place for each thing ----------------------------------------------------------------------------


def test_names_are_those_of_the_classes() -> None:
    assert ORDERS["rehearse_fusion"] is protocol.RehearseFusion
    assert [kind.name for kind in ORDERS.values()] == list(ORDERS)
    assert all("order" not in kind.__dataclass_fields__ for kind in ORDERS.values())  # type: ignore[attr-defined]
    with pytest.raises(InvalidArgument, match="no such order"):
        protocol.decode({"order": "order"})
    with pytest.raises(dataclasses.FrozenInstanceError):
        protocol.Wake().x = 1  # type: ignore[attr-defined]


def test_a_trainer_obeys_every_order_that_goes_to_one() -> None:
    trainer = Trainer(lambda progress: None, lambda: None)
    assert set(trainer._methods) == {kind for kind in ORDERS.values() if kind.route is not Route.TO_SEGMENT}
    assert trainer.obey(protocol.Inspect()) == Failure("InvalidArgument", "a trainer takes no order 'inspect'")


@pytest.mark.parametrize("folder", ["cerebro_db/nn", "plpy/cerebro_plpy/segment"])
def test_no_other_module_spells_an_order(folder: str) -> None:
    found = [path for path in (ROOT / folder).rglob("*.py") if '"order"' in path.read_text()]
    assert not found


def test_the_page_is_up_to_date() -> None:
    written = (ROOT / "docs" / "reference" / "protocol.md").read_text()
    assert written == page(), "python -m cerebro_db.core.protocol > docs/reference/protocol.md"
    for name in ORDERS:
        assert f"### {name}\n" in written


def test_every_value_that_enumerations_have_is_documented() -> None:
    assert {origin.value for origin in Origin} == {"seed", "weights", "full", "resident"}
    assert issubclass(Origin, enum.Enum)
