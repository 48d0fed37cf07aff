"""Models that are cut into shards: the bits are those of whole models, and the trainer stays within its memory."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from cerebro_db.core.errors import ConfigurationFailed, InvalidArgument
from cerebro_db.core.protocol import Average, BeginJoint, Describe, ModelReplica, Predict, StateRef, TrainerSettings
from cerebro_db.nn import state_file
from cerebro_db.nn.engines.tensorflow import TensorFlowEngine
from cerebro_db.nn.models import build
from cerebro_db.nn.shards import graph
from cerebro_db.nn.shards.cutting import Cutting
from cerebro_db.nn.shards.plan import Planner
from cerebro_db.nn.shards.program import without_memory
from tests.thorough import landing

from . import configurations as c
from .trainer_client import OrderFailed, Trainer, Visit, full, resident, weights

pytestmark = pytest.mark.tensorflow
Json = dict[str, Any]

rng = np.random.default_rng(0)
ROWS = 100
IMAGES, DIGITS = rng.integers(0, 16, (ROWS, 8, 8)), c.one_hot(rng.integers(0, 10, ROWS), 10)
WORDS, MOODS = rng.integers(0, 50, (ROWS, 6)), c.one_hot(rng.integers(0, 3, ROWS), 3)


def dense(name: str, units: int, **more: Any) -> Json:
    return c.layer("Dense", name, units=units, **more)


L2 = {"module": "keras.regularizers", "class_name": "L2", "config": {"l2": 0.01}}
STACK = c.sequential(
    c.input_layer([8, 8]),
    c.layer("Flatten", "flat"),
    dense("one", 32, activation="relu", kernel_regularizer=L2),
    c.layer("Dropout", "drop", rate=0.3),
    dense("two", 48, activation="relu", activity_regularizer=L2),
    dense("three", 32, activation="tanh", kernel_regularizer=L2),
    c.layer("Dropout", "drop_more", rate=0.2),
    dense("out", 10, activation="softmax"),
)
CNN = c.sequential(
    c.input_layer([8, 8]),
    c.layer("Reshape", "shape", target_shape=[8, 8, 1]),
    c.layer("Conv2D", "conv", filters=8, kernel_size=3, activation="relu"),
    c.layer("BatchNormalization", "norm"),
    c.layer("Dropout", "drop", rate=0.3),
    c.layer("Conv2D", "conv_more", filters=8, kernel_size=3, activation="relu"),
    c.layer("BatchNormalization", "norm_more"),
    c.layer("MaxPooling2D", "pool"),
    c.layer("Flatten", "flat"),
    dense("out", 10, activation="softmax"),
)
LSTM = c.sequential(
    c.input_layer([8, 8]),
    c.layer("Masking", "mask", mask_value=0.0),
    c.layer("LSTM", "one", units=12, return_sequences=True, dropout=0.2),
    c.layer("LSTM", "two", units=12),
    dense("out", 10, activation="softmax"),
)


def transformer(blocks: int = 2) -> Json:
    """Residuals that cross every cut; the attention of a block reads one tensor three times."""
    layers: list[Any] = [
        (c.input_layer([6], "int32", "words"), []),
        (c.layer("Embedding", "embedding", input_dim=50, output_dim=16), ["words"]),
    ]
    last = "embedding"
    for n in range(blocks):
        layers += [
            (c.layer("MultiHeadAttention", f"attention{n}", num_heads=2, key_dim=8, dropout=0.1), [last, last]),
            (c.layer("Dropout", f"drop{n}", rate=0.1), [f"attention{n}"]),
            (c.layer("Add", f"sum{n}"), [last, f"drop{n}"]),
            (c.layer("LayerNormalization", f"norm{n}"), [f"sum{n}"]),
            (dense(f"wide{n}", 32, activation="gelu"), [f"norm{n}"]),
            (dense(f"narrow{n}", 16), [f"wide{n}"]),
            (c.layer("Add", f"end{n}"), [f"norm{n}", f"narrow{n}"]),
        ]
        last = f"end{n}"
    layers += [
        (c.layer("GlobalAveragePooling1D", "pool"), [last]),
        (dense("out", 3, activation="softmax"), ["pool"]),
    ]
    return c.with_attention(layers, ["words"], ["out"])


def configuration(architecture: Json, optimizer: str = "Adam", **more: Any) -> Json:
    return c.configuration(architecture, "categorical_crossentropy", optimizer, **more)


CASES = {
    "a stack with dropout and penalties": (configuration(STACK), "digits"),
    "SGD with momentum": (configuration(STACK, "SGD", momentum=0.9, nesterov=True, learning_rate=0.05), "digits"),
    "AdamW with a schedule and clipnorm": (
        configuration(STACK, "AdamW", weight_decay=0.01, learning_rate=c.cosine(0.01, 30), clipnorm=0.5),
        "digits",
    ),
    "Nadam, which has a number for all weights": (configuration(STACK, "Nadam", clipvalue=0.1), "digits"),
    "weights of classes": (configuration(STACK, class_weight={"1": 2.0, "3": 0.5}), "digits"),
    "convolutions with batch normalization": (configuration(CNN), "digits"),
    "recurrent layers with a mask": (configuration(LSTM), "digits"),
    "a transformer": (configuration(transformer(), "AdamW", weight_decay=0.01), "words"),
    "related rows, with masks of numbers": (configuration(c.of_related(encoder="mean")), "shop"),
}


def with_rows(trainer: Trainer) -> Trainer:
    trainer.data("digits", c.DIGITS, image=IMAGES, digit=DIGITS)
    trainer.data("words", c.SENTENCES, words=WORDS, mood=MOODS)
    trainer.data("shop", c.SHOP, **c.made_up(ROWS, 3))
    return trainer


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trainer]:
    trainer = with_rows(Trainer(tmp_path_factory.mktemp("whole"), engine="tensorflow", shard="never"))
    yield trainer
    trainer.close()


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trainer]:
    """A trainer that cuts each model into three shards."""
    trainer = with_rows(Trainer(tmp_path_factory.mktemp("three"), engine="tensorflow", shard=3))
    yield trainer
    trainer.close()


@pytest.fixture(scope="module")
def everywhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trainer]:
    """A trainer that cuts each model between all layers."""
    trainer = with_rows(Trainer(tmp_path_factory.mktemp("everywhere"), engine="tensorflow", shard=100))
    yield trainer
    trainer.close()


def content(visit: Visit) -> str:
    return hashlib.sha256(Path(visit.path).read_bytes()).hexdigest()


# Other optimizers: test_shard_steps.py has every one of them.
@pytest.mark.parametrize("case", landing(CASES, *(case for case in CASES if not case.startswith(("SGD", "Nadam")))))
def test_a_cut_model_has_the_bits_of_a_whole_one(whole: Trainer, three: Trainer, case: str) -> None:
    check_same_bits(whole, three, *CASES[case])


EVERYWHERE = {**CASES, "a block of a transformer": (configuration(transformer(1)), "words")}


@pytest.mark.parametrize("case", landing(EVERYWHERE, "a stack with dropout and penalties", "a block of a transformer"))
def test_a_model_that_is_cut_between_all_layers(whole: Trainer, everywhere: Trainer, case: str) -> None:
    check_same_bits(whole, everywhere, *EVERYWHERE[case])


def check_same_bits(whole: Trainer, cut: Trainer, ours: Json, handle: str) -> None:
    visits: dict[Trainer, list[Visit]] = {}
    for trainer in (whole, cut):
        first = trainer.train(ours, handle, seed=5, out=str(trainer.folder / "first"))
        second = trainer.train(ours, handle, resident(first), shuffle_seed=2, out=str(trainer.folder / "second"))
        visits[trainer] = [first, second]
    for one, other in zip(visits[whole], visits[cut]):
        assert one.state.sha256 == other.state.sha256 == content(other)
        assert (one.loss, one.metrics, one.rows, one.steps) == (other.loss, other.metrics, other.rows, other.steps)
    evaluated = [trainer.evaluate(ours, handle, full(visits[whole][1])) for trainer in (whole, cut)]
    assert evaluated[0].loss == evaluated[1].loss and evaluated[0].metrics == evaluated[1].metrics
    files = []
    for trainer in (whole, cut):
        out = trainer.folder / "predicted"
        trainer.predict(ours, handle, full(visits[whole][1]), str(out))
        files.append(Path(f"{out}.0").read_bytes())
    assert files[0] == files[1]


def test_a_model_hops_between_trainers_that_cut_it_and_trainers_that_do_not(whole: Trainer, three: Trainer) -> None:
    ours, handle = CASES["a stack with dropout and penalties"]
    reference, hopping = None, None
    for number, trainer in enumerate((whole, three, three, whole)):
        hopping = trainer.train(
            ours, handle, hopping and full(hopping), shuffle_seed=number, out=str(trainer.folder / f"hop{number}")
        )
        reference = whole.train(
            ours, handle, reference and full(reference), shuffle_seed=number, out=str(whole.folder / f"ref{number}")
        )
        assert hopping.state.sha256 == reference.state.sha256


def test_evaluating_between_visits_leaves_the_state_as_it_is(whole: Trainer, three: Trainer) -> None:
    ours, handle = CASES["convolutions with batch normalization"]
    ends = []
    for trainer in (whole, three):
        first = trainer.train(ours, handle, out=str(trainer.folder / "first"))
        trainer.evaluate(ours, handle, resident(first))
        ends.append(trainer.train(ours, handle, resident(first), out=str(trainer.folder / "second")).state.sha256)
    assert ends[0] == ends[1]


def test_weights_of_a_model_table_train_and_predict(whole: Trainer, three: Trainer) -> None:
    ours, handle = CASES["a stack with dropout and penalties"]
    visit = whole.train(ours, handle, out=str(whole.folder / "source"))
    start, size = visit.state.weights_offset, visit.state.weights_bytes
    path = whole.folder / "weights"
    path.write_bytes(Path(visit.path).read_bytes()[start : start + size])
    ends = [
        trainer.train(ours, handle, weights(path), out=str(trainer.folder / "on")).state for trainer in (whole, three)
    ]
    assert ends[0].sha256 == ends[1].sha256
    found = []
    for trainer in (whole, three):
        out = str(trainer.folder / "predicted")
        trainer(Predict(ours, weights(path), out, handle=handle))
        found.append(Path(f"{out}.0").read_bytes())
    assert found[0] == found[1]


def test_the_average_of_replicas_is_that_of_whole_models(whole: Trainer, three: Trainer) -> None:
    ours, handle = CASES["a stack with dropout and penalties"]
    visits = [whole.train(ours, handle, shuffle_seed=n, out=str(whole.folder / f"replica{n}")) for n in range(2)]
    replicas = [ModelReplica(full(one), one.rows, one.result.metric_states) for one in visits]
    ends = []
    for trainer in (whole, three):
        order = Average(ours, handle, replicas, out=str(trainer.folder / "average"))
        ends.append(trainer(order).groups[0].members[0].state.sha256)
    assert ends[0] == ends[1]


def test_what_a_model_needs_is_described(whole: Trainer, three: Trainer) -> None:
    for case in ("a stack with dropout and penalties", "convolutions with batch normalization"):
        one, other = (trainer(Describe(CASES[case][0], c.DIGITS)) for trainer in (whole, three))
        assert one.shards == 1 and one.memory_mb == one.uncut_memory_mb > 0
        assert other.shards == 3 and other.memory_mb > 0
        assert one.state_bytes == other.state_bytes and one.parameters == other.parameters
        assert other.fusion_keys == [None]


@pytest.mark.parametrize(
    ("optimizer", "arguments", "said"),
    [
        ("Adam", {"global_clipnorm": 1.0}, "global_clipnorm"),
        ("Adam", {"use_ema": True}, "use_ema"),
        ("SGD", {"gradient_accumulation_steps": 2}, "gradient_accumulation_steps"),
        ("Adafactor", {}, "the optimizer Adafactor"),
    ],
)
def test_what_cannot_be_done_shard_by_shard_is_refused(
    three: Trainer, optimizer: str, arguments: Json, said: str
) -> None:
    with pytest.raises(OrderFailed, match=said) as caught:
        three.train(configuration(STACK, optimizer, **arguments), "digits")
    assert caught.value.kind == "ConfigurationFailed"


def test_mixed_float16_is_refused_and_mixed_bfloat16_is_not(whole: Trainer, three: Trainer) -> None:
    def of(policy: str) -> Json:
        model = copy.deepcopy(CNN)
        for layer in model["config"]["layers"][1:]:
            layer["config"]["dtype"] = {
                "module": "keras",
                "class_name": "DTypePolicy",
                "config": {"name": policy},
            }
        return configuration(model)

    with pytest.raises(OrderFailed, match="mixed_float16"):
        three.train(of("mixed_float16"), "digits")
    ends = [trainer.train(of("mixed_bfloat16"), "digits").state.sha256 for trainer in (whole, three)]
    assert ends[0] == ends[1]


def test_several_segments_do_not_train_a_cut_model_together(three: Trainer) -> None:
    ours, handle = CASES["a stack with dropout and penalties"]
    member = three.member(ours)
    with pytest.raises(OrderFailed, match="several segments"):
        three(BeginJoint(ours, handle, member, [ROWS, ROWS], 0))


def test_layers_that_share_weights_are_not_cut_apart(whole: Trainer, three: Trainer) -> None:
    layers = [
        (c.input_layer([8, 8], name="image"), []),
        (c.layer("Flatten", "flat"), ["image"]),
        (dense("first", 16, activation="relu"), ["flat"]),
        (dense("shared", 16, activation="relu"), ["first"]),
        (dense("between", 16, activation="relu"), ["shared"]),
        (c.layer("Add", "sum"), ["between", "first"]),
        (dense("out", 10, activation="softmax"), ["sum"]),
    ]
    model = c.functional(layers, ["image"], ["out"])
    shared = model["config"]["layers"][3]
    again = copy.deepcopy(shared["inbound_nodes"][0])
    again["args"][0]["config"]["keras_history"] = ["between", 0, 0]
    shared["inbound_nodes"].append(again)
    for argument in model["config"]["layers"][5]["inbound_nodes"][0]["args"][0][:1]:
        argument["config"]["keras_history"] = ["shared", 1, 0]
    ours = configuration(model)
    ends = [trainer.train(ours, "digits").state.sha256 for trainer in (whole, three)]
    assert ends[0] == ends[1]


def test_frozen_layers_stay_as_they_are(whole: Trainer, three: Trainer) -> None:
    model = copy.deepcopy(CNN)
    for layer in model["config"]["layers"][1:4]:
        layer["config"]["trainable"] = False
    ends = [trainer.train(configuration(model), "digits").state.sha256 for trainer in (whole, three)]
    assert ends[0] == ends[1]


@pytest.fixture(scope="module")
def little(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trainer]:
    """A trainer for which no model is small enough."""
    trainer = with_rows(Trainer(tmp_path_factory.mktemp("little"), engine="tensorflow", memory_mb=1))
    yield trainer
    trainer.close()


def test_a_model_that_cannot_be_cut_trains_whole(little: Trainer) -> None:
    """What a trainer needs is an estimate: such models have trained within a limit before there were shards."""
    for optimizer, more in (("Adafactor", {}), ("Adam", {"global_clipnorm": 1.0})):
        ours = configuration(STACK, optimizer, **more)
        found = little(Describe(ours, c.DIGITS))
        assert found.shards == 1 and found.uncut_memory_mb > 1 and little.train(ours, "digits").rows == ROWS
    with pytest.raises(OrderFailed, match="and it may use 0 MB"):
        little(Describe(configuration(STACK), c.DIGITS))


def test_large_frozen_weights_are_those_of_the_model(whole: Trainer, three: Trainer) -> None:
    """They are stored apart, and one program has those of one model after the other."""
    model = copy.deepcopy(STACK)
    model["config"]["layers"][2]["config"].update(units=8192, trainable=False)
    ours = configuration(model)
    for seed in (1, 2, 1):
        ends = [
            trainer.train(ours, "digits", seed=seed, out=str(trainer.folder / "state.end"))
            for trainer in (whole, three)
        ]
        assert ends[0].state.sha256 == ends[1].state.sha256 and ends[0].state.frozen == ends[1].state.frozen
        for end in ends:
            assert end.state.frozen is not None
            frozen = state_file.frozen_path(end.path, end.state.frozen.sha256)
            assert hashlib.sha256(Path(frozen).read_bytes()).hexdigest() == end.state.frozen.sha256
        given = Path(ends[0].path).with_suffix(".given")
        content = bytearray(Path(ends[0].path).read_bytes())
        content[ends[0].state.frozen.start : ends[0].state.frozen.end] = Path(frozen).read_bytes()
        start, size = ends[0].state.weights_offset, ends[0].state.weights_bytes
        given.write_bytes(content[start : start + size])
        on = [trainer.train(ours, "digits", weights(given)).state for trainer in (whole, three)]
        assert on[0].sha256 == on[1].sha256


def test_without_a_limit_nothing_is_cut_and_a_layer_that_does_not_fit_is_named(tmp_path: Path) -> None:
    layout = c.DIGITS
    trainer = Trainer(tmp_path / "free", engine="tensorflow")
    assert trainer(Describe(configuration(STACK), layout)).shards == 1
    trainer.close()
    trainer = Trainer(tmp_path / "small", engine="tensorflow", memory_mb=450)
    assert trainer(Describe(configuration(STACK), layout)).shards == 1
    huge = copy.deepcopy(STACK)
    huge["config"]["layers"][2]["config"]["units"] = 1 << 19
    with pytest.raises(OrderFailed, match="the layer one alone needs"):
        trainer(Describe(configuration(huge), layout))
    trainer.close()


def test_an_operation_without_memory_is_no_fault_of_the_configuration() -> None:
    import tensorflow

    engine = TensorFlowEngine(tensorflow, None, [])  # to open it would change TensorFlow for the tests that follow
    for status, out_of_memory in ((1, True), (2, False)):  # as oneDNN counts them
        text = f"Operation received an exception:Status: {status}, message: could not create a primitive, in file a.cc"
        assert engine.is_out_of_memory(tensorflow.errors.AbortedError(None, None, text)) is out_of_memory
    assert not engine.is_out_of_memory(ValueError("exception:Status: 1,"))


DEEP = c.sequential(
    c.input_layer([8, 8]),
    c.layer("Flatten", "flat"),
    *[dense(f"narrow{n}", 8) for n in range(20)],
    dense("out", 10, activation="softmax"),
)


def test_small_models_of_many_layers_are_tried_though_no_cut_would_help(tmp_path: Path, little: Trainer) -> None:
    trainer = Trainer(tmp_path / "free", engine="tensorflow")
    needed = trainer(Describe(configuration(DEEP), c.DIGITS)).uncut_memory_mb
    trainer.close()
    trainer = with_rows(Trainer(tmp_path / "small", engine="tensorflow", memory_mb=needed - 30))
    described = trainer(Describe(configuration(DEEP), c.DIGITS))
    assert described.shards == 1 and described.uncut_memory_mb > needed - 30
    assert trainer.train(configuration(DEEP), "digits").finite
    trainer.close()
    with pytest.raises(OrderFailed, match="the operations of 22 layers take a trainer about [0-9]+ MB") as caught:
        little(Describe(configuration(DEEP), c.DIGITS))
    assert caught.value.kind == "OutOfResources"


def test_what_is_needed_does_not_depend_on_whether_models_may_be_cut(tmp_path: Path) -> None:
    wide = configuration(c.sequential(c.input_layer([8, 8]), c.layer("Flatten", "flat"), dense("wide", 1 << 17),
                                      dense("out", 10, activation="softmax")))  # fmt: skip
    needed = []
    for number, more in enumerate(({"memory_mb": 4000}, {"shard": "never"}, {})):
        trainer = Trainer(tmp_path / str(number), engine="tensorflow", **more)
        needed.append(trainer(Describe(wide, c.DIGITS)).uncut_memory_mb)
        trainer.close()
    assert max(needed) - min(needed) < 30, needed  # the state has 115 MB


def test_a_model_of_small_layers_is_not_cut() -> None:
    """Its batches would take 15 times as long, and what a cut saves is less than what the estimates differ by."""
    small = configuration(c.sequential(c.input_layer([8, 8]), c.layer("Flatten", "flat"),
                                       *[dense(f"dense{n}", 256) for n in range(9)], dense("out", 10)))  # fmt: skip
    model, slots = build.build_in_pieces(small, c.DIGITS, 0, without_memory)
    planner = Planner(model, graph.pieces(model), slots, 32)
    megabytes = (planner.uncut >> 20) - 1
    assert planner.sized < megabytes << 20 < planner.uncut and planner.fits(megabytes << 20), "a cut would fit"
    cutting = Cutting(TrainerSettings(engine="tensorflow", memory_mb=megabytes))
    cutting.base = 0
    assert not cutting.cuts(small, c.DIGITS)


def test_models_that_only_predict_need_no_room_for_gradients() -> None:
    def planner(seed: int | None) -> Planner:
        model, slots = build.build_in_pieces(configuration(STACK, "SGD"), c.DIGITS, seed, without_memory)
        return Planner(model, graph.pieces(model), slots, 32)

    predicts, trains = planner(None), planner(0)
    weights_ = sum(piece.bytes for piece in graph.pieces(predicts._model))
    assert predicts.sized <= trains.sized - weights_ * 0.9  # but for the states of random numbers
    too_little = min(trains.into(number, ahead=False).needed for number in range(1, 9)) - 1
    assert not trains.fits(too_little) and predicts.fits(too_little)
    nothing = keras.Input((2,))
    with pytest.raises(ConfigurationFailed, match="no layers"):
        graph.pieces(keras.Model(nothing, nothing))


def test_a_model_is_cut_to_predict_if_the_rows_of_a_batch_do_not_fit_beside_it() -> None:
    """A model of 65 MB has 40 kB of each of 1,024 rows in memory until the last layer is computed."""
    layers = [dense(f"wide{number}", 2048) for number in range(5)]
    wide = configuration(c.sequential(c.input_layer([8, 8]), c.layer("Flatten", "flat"), *layers, dense("out", 10)))

    def cuts(megabytes: int, to_train: bool) -> bool:
        cutting = Cutting(TrainerSettings(engine="tensorflow", memory_mb=megabytes))
        cutting.base = 0
        return cutting.cuts(wide, c.DIGITS, to_train)

    assert cuts(86, False) and cuts(215, False) and not cuts(300, False)
    assert cuts(300, True) and not cuts(400, True)


@pytest.mark.parametrize("engine", ["jax", "torch"])
def test_other_engines_train_whole_models_where_memory_is_short(engine: str, tmp_path: Path) -> None:
    trainer = Trainer(tmp_path, engine=engine, memory_mb=1)
    assert trainer(Describe(configuration(STACK), c.DIGITS)).shards == 1
    trainer.close()


@pytest.mark.parametrize("engine", ["jax", "torch"])
def test_other_engines_say_that_they_cannot(engine: str, tmp_path: Path) -> None:
    trainer = Trainer(tmp_path, engine=engine, shard=3)
    with pytest.raises(OrderFailed, match="TensorFlow only"):
        trainer(Describe(configuration(STACK), c.DIGITS))
    trainer.close()


def test_a_wrong_number_of_shards_is_refused() -> None:
    for wrong in ("", "some", "3", 0, -1, 1.5, 99999999999):
        with pytest.raises(InvalidArgument):
            TrainerSettings(engine="tensorflow", shard=wrong)
    assert TrainerSettings(engine="tensorflow", shard=12).shard == 12
    assert StateRef.seed()
