"""Compile and fit parameters: what the strings mean, and what is refused."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cerebro_db.core.errors import CerebroError, InvalidArgument, InvalidSyntax, Unsupported
from cerebro_db.core.parameters import grammar
from cerebro_db.core.parameters.custom import WithoutSparse
from cerebro_db.core.parameters.params import compile_params, fit_params, has_tensorboard
from cerebro_db.core.parameters.value_types import VALUE_TYPES
from cerebro_db.core.parameters.vocabulary import LOSSES, METRICS, OPTIMIZERS, SCHEDULES

REST = ", loss='categorical_crossentropy', metrics=['accuracy']"


def optimizer(text: str) -> dict:
    return compile_params(f"optimizer='{text}'{REST}")["optimizer"]


def inverse_time(rate: float, decay: float) -> dict:
    return {
        "module": "keras.optimizers.schedules",
        "class_name": "InverseTimeDecay",
        "config": {"initial_learning_rate": rate, "decay_steps": 1, "decay_rate": decay, "staircase": False},
        "registered_name": None,
    }


def test_a_madlib_string_becomes_the_canonical_dictionary():
    assert compile_params(
        "optimizer='Adam(lr=0.1, epsilon=0.3)', loss='categorical_crossentropy', metrics=['accuracy']"
    ) == {
        "optimizer": {"class_name": "Adam", "config": {"learning_rate": 0.1, "epsilon": 0.3}},
        "loss": "categorical_crossentropy",
        "metrics": ["accuracy"],
        "loss_weights": None,
        "weighted_metrics": None,
    }


@pytest.mark.parametrize(
    "text",
    [
        "optimizer='Adam(lr=0.1)',loss='mse',metrics=['mae']",
        "optimizer=Adam(lr=0.1),loss=mse,metrics=[mae]",
        ' metrics = ["mae"] ,\n loss = "mse" ,\n optimizer = "adam( learning_rate = 1e-1 )" ,',
        '{"optimizer": "Adam(lr=0.1)", "loss": "mse", "metrics": ["mae"]}',
        '{"optimizer": {"class_name": "Adam", "config": {"lr": 0.1}}, "loss": "mse", "metrics": ["mae"]}',
        '{"optimizer": {"module": "keras.optimizers", "class_name": "Adam", "registered_name": null,'
        ' "config": {"learning_rate": 0.1}}, "loss": "mse", "metrics": ["mae"]}',
    ],
)
def test_all_spellings_give_the_same_dictionary(text):
    assert compile_params(text) == compile_params("optimizer='Adam(learning_rate=.1)', loss='mse', metrics=['mae']")


@pytest.mark.parametrize("name", ["sgd", "SGD", "Sgd", "sgd()", "SGD()"])
def test_optimizer_names_in_any_case(name):
    assert optimizer(name) == {"class_name": "SGD", "config": {}}


@pytest.mark.parametrize("name", sorted(OPTIMIZERS.entries))
def test_every_optimizer_by_lower_case_name(name):
    assert optimizer(name.lower())["class_name"] == name


@pytest.mark.parametrize(("given", "meant"), [("True", True), ("False", False)])
def test_booleans_are_booleans(given, meant):
    assert optimizer(f"SGD(nesterov={given})")["config"] == {"nesterov": meant}


def test_none_stands_for_the_default():
    assert optimizer("Adam(epsilon=None, clipnorm=None)")["config"] == {"clipnorm": None}


def test_decay_becomes_a_schedule():
    assert optimizer("SGD(lr=0.1, decay=1e-6)")["config"] == {"learning_rate": inverse_time(0.1, 1e-6)}
    assert optimizer("SGD(decay=0.5)")["config"] == {"learning_rate": inverse_time(0.01, 0.5)}
    assert optimizer("RMSprop(decay=0.5)")["config"] == {"learning_rate": inverse_time(0.001, 0.5)}
    assert optimizer("SGD(lr=0.1, decay=0)")["config"] == {"learning_rate": 0.1}
    assert optimizer("SGD(lr=0.1, decay=None)")["config"] == {"learning_rate": 0.1}


def test_nadams_built_in_schedule_decay():
    assert optimizer("Nadam(schedule_decay=0.004)") == {"class_name": "Nadam", "config": {}}
    with pytest.raises(InvalidArgument, match="schedule_decay is not currently accepted"):
        optimizer("Nadam(schedule_decay=0.1)")


@pytest.mark.parametrize(
    "rate",
    [
        "CosineDecay(initial_learning_rate=0.001, decay_steps=1000)",
        '"CosineDecay(initial_learning_rate=0.001, decay_steps=1000)"',
        "cosine_decay(initial_learning_rate=0.001, decay_steps=1000)",
    ],
)
def test_a_schedule_may_be_nested(rate):
    assert optimizer(f"Adam(learning_rate={rate})")["config"]["learning_rate"] == {
        "module": "keras.optimizers.schedules",
        "class_name": "CosineDecay",
        "config": {"initial_learning_rate": 0.001, "decay_steps": 1000},
        "registered_name": None,
    }


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("kullback_leibler_divergence", "kl_divergence"),
        ("cosine_proximity", "cosine_similarity"),
        ("logcosh", "log_cosh"),
        ("huber_loss", "huber"),
        ("Huber()", "huber"),
        ("Huber(delta=2.0)", {"class_name": "Huber", "config": {"delta": 2.0}}),
        ("CategoricalCrossentropy", "categorical_crossentropy"),
        ("sparse_categorical_crossentropy", "sparse_categorical_crossentropy"),
        ("mse", "mse"),
        ("MSE", "mean_squared_error"),
        ("kld", "kld"),
        ("CategoricalCrossentropy(reduction=auto)", "categorical_crossentropy"),
    ],
)
def test_losses(given, meant):
    assert compile_params(f"optimizer='sgd', loss='{given}'")["loss"] == meant


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("['accuracy']", ["accuracy"]),
        ("['acc', 'mse']", ["acc", "mse"]),
        ("[]", []),
        ("None", []),
        ("['cosine_proximity','kld']", ["cosine_similarity", "kl_divergence"]),
        ("['ce']", ["categorical_crossentropy"]),
        ("['crossentropy']", ["categorical_crossentropy"]),
        ("['TopKCategoricalAccuracy(k=3)']", [{"class_name": "TopKCategoricalAccuracy", "config": {"k": 3}}]),
        ("{'a': ['acc'], 'b': 'mse'}", {"a": ["acc"], "b": "mse"}),
        ("[['acc'], []]", [["acc"], []]),
        ("['sparse_categorical_accuracy']", ["sparse_categorical_accuracy"]),
    ],
)
def test_metrics(given, meant):
    assert compile_params(f"optimizer='sgd', loss='mse', metrics={given}")["metrics"] == meant


def test_ce_follows_the_loss():
    for loss in ("binary_crossentropy", "sparse_categorical_crossentropy", "categorical_crossentropy"):
        assert compile_params(f"optimizer='sgd', loss='{loss}', metrics=['ce']")["metrics"] == [loss]


def test_losses_and_weights_per_output():
    made = compile_params(
        "optimizer='sgd', loss={'a': 'mse', 'b': 'Huber(delta=2)'}, loss_weights={'a': 1, 'b': 0.5},"
        " weighted_metrics=['mae'], sample_weight_mode='temporal'"
    )
    assert made["loss"] == {"a": "mse", "b": {"class_name": "Huber", "config": {"delta": 2}}}
    assert made["loss_weights"] == {"a": 1.0, "b": 0.5}
    assert made["weighted_metrics"] == ["mae"]
    assert compile_params("optimizer='sgd', loss=['mse', 'mae'], loss_weights=[1, 2]")["loss"] == ["mse", "mae"]


def test_quotes_protect_and_the_last_of_repeated_keys_counts():
    made = compile_params("""optimizer='Adam(name="a, b=c) [")', loss='mae', loss="mse\"""")
    assert made["optimizer"]["config"] == {"name": "a, b=c) ["}
    assert made["loss"] == "mse"
    assert grammar.assignments(r"a='it\'s', b=\"x\"".replace(r"\"", '"'), "x") == {"a": "it's", "b": "x"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "Compile parameters cannot be empty or NULL."),
        ("  ", "Compile parameters cannot be empty or NULL."),
        ("{}", "Compile parameters cannot be empty or NULL."),
        ("loss='mse'", "optimizer is a required parameter for compile"),
        ("optimizer='sgd'", "loss is a required parameter for compile"),
        ("optimizer='sgd', loss=[]", "loss is a required parameter for compile"),
        ("optimizer='sgd', loss='mse', foo=1", "foo is not currently accepted as a parameter"),
        ("optimizer='Adm', loss='mse'", "invalid optimizer name: Adm"),
        ("optimizer='LossScaleOptimizer', loss='mse'", "invalid optimizer name: LossScaleOptimizer"),
        ("optimizer='Adam(learningrate=1)', loss='mse'", "Adam: learningrate is not currently accepted"),
        ("optimizer='Adam(nesterov=True)', loss='mse'", "Adam: nesterov is not currently accepted"),
        ("optimizer='SGD(nesterov=1)', loss='mse'", "SGD.nesterov=1.*True or False"),
        ("optimizer='SGD(lr=-1)', loss='mse'", "SGD.learning_rate=-1.*at least 0"),
        ("optimizer='SGD(lr=True)', loss='mse'", "SGD.learning_rate=True.*a number"),
        ("optimizer='SGD(lr=1, learning_rate=2)', loss='mse'", "lr and learning_rate are the same"),
        ("optimizer='SGD(clipnorm=1, clipvalue=2)', loss='mse'", "only one of clipnorm and clipvalue"),
        ("optimizer='SGD(lr=Foo(a=1))', loss='mse'", "a number or a learning-rate schedule"),
        ("optimizer='SGD(lr=CosineDecay())', loss='mse'", "CosineDecay needs the argument initial_learning_rate"),
        (
            "optimizer='SGD(lr=PiecewiseConstantDecay(boundaries=[1,2], values=[1,2]))', loss='mse'",
            "one more value than boundaries",
        ),
        (
            "optimizer='SGD(decay=1, lr=CosineDecay(initial_learning_rate=1, decay_steps=2))', loss='mse'",
            "decay cannot be combined",
        ),
        ("optimizer=3, loss='mse'", "invalid input value for parameter optimizer=3"),
        ("optimizer='sgd', loss='get'", "Loss function get is not supported."),
        ("optimizer='sgd', loss='squared_eror'", "unknown loss 'squared_eror'"),
        ("optimizer='sgd', loss='mse', metrics=['rmsee']", "unknown metric 'rmsee'"),
        ("optimizer='sgd', loss='mse', metrics='accuracy'", "wrong input type for compile parameter metrics: .*list"),
        ("optimizer='sgd', loss='mse', metrics=['mean_io_u']", "metric MeanIoU needs the argument num_classes"),
        (
            "optimizer='sgd', loss='mse', loss_weights=3",
            "wrong input type for compile parameter loss_weights: only list and dictionary are supported.",
        ),
        ("optimizer='sgd', loss='mse', loss_weights=['a']", "a is not a number"),
        ("optimizer='sgd', loss='mse', sample_weight_mode='x'", "sample_weight_mode=x"),
        (
            '{"optimizer": {"class_name": "Adam", "registered_name": "evil>Adam"}, "loss": "mse"}',
            "only objects of Keras itself",
        ),
        ('{"optimizer": {"class_name": "Adam", "module": "os"}, "loss": "mse"}', "only objects of Keras itself"),
        ('{"optimizer": {"class_name": 3}, "loss": "mse"}', "class_name"),
    ],
)
def test_refused_compile_parameters(text, message):
    with pytest.raises(InvalidArgument, match=message):
        compile_params(text)


def test_hints_offer_the_nearest_name():
    for text, near in [
        ("optimizer='RMSpropp', loss='mse'", "RMSprop"),
        ("optimizer='sgd', loss='categorical_crosentropy'", "categorical_crossentropy"),
        ("optimizer='Adam(learningrate=1)', loss='mse'", "learning_rate"),
    ]:
        with pytest.raises(InvalidArgument) as caught:
            compile_params(text)
        assert f"Did you mean {near}?" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("optimizer='Adam(lr=0.1', loss='mse'", "the end at position 12"),
        ("optimizer='sgd' loss='mse'", "expected ',', found 'loss' at position 17"),
        ("optimizer='sgd', loss='mse", "a quote is not closed at position 23"),
        ("optimizer='sgd', loss=", "a value is missing"),
        ("optimizer='sgd', loss=1.2.3", "unexpected '1' at position 23"),
        ("optimizer=keras.Adam", "unexpected '.'"),
        ("optimizer='SGD(lr=1e999)', loss='mse'", "too large"),
        ("optimizer='SGD(lr=1" + "0" * 50 + ")', loss='mse'", "more than 40 characters"),
        ("a=" + "[" * 40, "nested more than 32 levels deep"),
        ("a=" + "1" * 70000, "70002 characters; the limit is 65536"),
        ('{"optimizer": }', "not valid JSON: .* line 1, column 15"),
        ('{"optimizer": NaN}', "NaN is not a number"),
        ('{"a": ' * 9000, "not valid JSON"),
        ('{"a": ' * 100000, "600000 characters; the limit is"),
        ("optimizer=__import__('os').system('x'), loss='mse'", "unexpected '.'"),
    ],
)
def test_refused_syntax(text, message):
    with pytest.raises(InvalidSyntax, match=message):
        compile_params(text)


# ---- fit ------------------------------------------------------------------------------------------

DEFAULTS = {"batch_size": 32, "epochs": 1, "shuffle": True, "class_weight": None, "steps_per_epoch": None}


@pytest.mark.parametrize(
    ("text", "differs"),
    [
        (None, {}),
        ("", {}),
        ("{}", {}),
        ("batch_size=None, epochs=None", {}),
        ("batch_size=8, epochs=3", {"batch_size": 8, "epochs": 3}),
        ('{"batch_size": 8}', {"batch_size": 8}),
        ("epochs=5, initial_epoch=2, verbose=0", {"epochs": 3}),
        ("shuffle=False, steps_per_epoch=4", {"shuffle": False, "steps_per_epoch": 4}),
        ("shuffle='batch'", {}),
        ("class_weight={1: 2.5, 0: 1}", {"class_weight": {"0": 1.0, "1": 2.5}}),
        ('{"class_weight": {"10": 1, "9": 2}}', {"class_weight": {"9": 2.0, "10": 1.0}}),
    ],
)
def test_fit_parameters(text, differs):
    assert fit_params(text) == {**DEFAULTS, **differs}


@pytest.mark.parametrize(
    "text",
    [
        "batch_size=0",
        "batch_size=1.5",
        "batch_size='8'",
        "batch_size=True",
        "epochs=-1",
        "epochs=2, initial_epoch=2",
        "shuffle=1",
        "verbose=7",
        "class_weight=[1, 2]",
        "class_weight={'a': 1}",
        "class_weight={0: -1}",
        "class_weight={0.5: 1}",
        "steps_per_epoch=0",
    ],
)
def test_refused_fit_parameters(text):
    with pytest.raises(InvalidArgument, match="invalid input value for parameter"):
        fit_params(text)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("loss='focal'", "unknown loss 'focal' in compile_params: no table has focal"),
        ("loss='mse', metrics=['rmsee']", "unknown metric 'rmsee' in compile_params: no table has rmsee"),
        ("loss='sparse_categorical_crossentropy'", "Loss function sparse_categorical_crossentropy is not supported."),
        ("loss='mse', metrics=['sparse_categorical_accuracy']", "Metric sparse_categorical_accuracy is not supported."),
    ],
)
def test_what_madlib_refuses(text, wrong):
    with pytest.raises(InvalidArgument, match=re.escape(wrong)):
        compile_params(f"optimizer='sgd', {text}", WithoutSparse({}, "no table has {}"))
    if "sparse" in text:
        assert compile_params(f"optimizer='sgd', {text}")


def test_a_callback_of_madlibs():
    one = """batch_size=4, callbacks=[TensorBoard(log_dir="/tmp/x", histogram_freq=0)]"""
    assert has_tensorboard(one) and fit_params(one, tensorboard=True) == fit_params("batch_size=4")
    for other in ("callbacks=[]", "callbacks=[TensorBoard(), TensorBoard()]", "callbacks=[EarlyStopping()]",
                  "callbacks=TensorBoard()", "callbacks=['TensorBoard']", "callbacks=None"):  # fmt: skip
        assert not has_tensorboard(other)
        with pytest.raises(Unsupported, match="callbacks"):
            fit_params(other, tensorboard=True)


def test_unknown_fit_parameter_and_callbacks():
    with pytest.raises(InvalidArgument, match="validation_split is not currently accepted as a parameter"):
        fit_params("validation_split=0.1")
    with pytest.raises(Unsupported, match="callbacks"):
        fit_params("callbacks=[TensorBoard(log_dir='/tmp/x')]")


# ---- properties -----------------------------------------------------------------------------------


@given(st.text(alphabet="opt=imzer'\"(),[]{}: \\0.1eE-abcTrue", max_size=60) | st.text(max_size=60))
@example("a='\\")
@example("a=\x00")
def test_any_text_is_accepted_or_refused_with_an_error_of_ours(text):
    for read in (compile_params, fit_params):
        try:
            json.dumps(read(text))
        except CerebroError as error:
            assert len(error.message) < 400


_VALUES = {
    "number": st.floats(-1e6, 1e6),
    "nonneg": st.floats(0, 1e6),
    "positive": st.floats(1e-9, 1e6),
    "unit": st.floats(0, 1),
    "rate": st.floats(0, 10),
    "flag": st.booleans(),
    "count": st.integers(1, 2**31 - 1),
    "index": st.integers(0, 2**31 - 1),
    "text": st.text(min_size=1, max_size=20).filter(lambda text: "\0" not in text),
    "texts": st.lists(st.text(max_size=5), min_size=1, max_size=3),
}


@given(st.data())
def test_a_canonical_dictionary_is_read_as_itself(data):
    entry = data.draw(st.sampled_from(sorted(OPTIMIZERS.entries.values(), key=lambda entry: entry.class_name)))
    config = {}
    for name, value_type in entry.arguments.items():
        if name not in ("clipvalue", "global_clipnorm") and data.draw(st.booleans()):
            config[name] = data.draw(_VALUES[value_type.rstrip("?")])
    given = {"optimizer": {"class_name": entry.class_name, "config": config}, "loss": "mse"}
    made = compile_params(json.dumps(given))
    assert made["optimizer"] == given["optimizer"]
    assert compile_params(json.dumps(made)) == made

    def written(value):
        if isinstance(value, list):
            return "[" + ",".join(map(written, value)) + "]"
        if isinstance(value, str):
            return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
        return repr(value)

    call = ", ".join(f"{name}={written(value)}" for name, value in config.items())
    assert compile_params(f"optimizer={entry.class_name}({call}), loss=mse")["optimizer"] == given["optimizer"]


def test_each_vocabulary_finds_its_own_names_and_knows_its_value_types():
    for vocabulary in (OPTIMIZERS, SCHEDULES, LOSSES, METRICS):
        for entry in vocabulary.entries.values():
            assert {value_type.rstrip("?!") for value_type in entry.arguments.values()} <= set(VALUE_TYPES)
            assert vocabulary.find(entry.class_name) is entry
            assert entry.short is None or vocabulary.find(entry.short) is entry


# -- arguments without a name ---------------------------------------------------------------------------


def test_arguments_without_a_name():
    """Those that Keras requires, and an optimizer's learning rate: their order is known."""
    with_names = compile_params(
        "optimizer='Adam(learning_rate=CosineDecay(initial_learning_rate=0.1, decay_steps=100, alpha=0.5))', loss=mse,"
        " metrics=['PrecisionAtRecall(recall=0.5)']"
    )
    assert with_names == compile_params(
        "optimizer='Adam(CosineDecay(0.1, 100, alpha=0.5))', loss=mse, metrics=['PrecisionAtRecall(0.5)']"
    )
    assert compile_params("optimizer=SGD(0.1, momentum=0.9), loss=mse")["optimizer"]["config"] == {
        "learning_rate": 0.1,
        "momentum": 0.9,
    }


@pytest.mark.parametrize(
    ("call", "told"),
    [
        ("SGD(0.1, 0.9)", "SGD: the argument 0.9 needs a name"),
        ("SGD(0.1, learning_rate=0.2)", "learning_rate is given twice"),
        ("SGD(momentum=0.1, 0.2)", "arguments without a name come first"),
        ("SGD(CosineDecay(0.1))", "CosineDecay needs the argument decay_steps"),
        ("SGD(CosineDecay(0.1, 5, 0.2))", "CosineDecay: the argument 0.2 needs a name"),
        ("SGD(CosineDecay(0.1, 'x'))", "CosineDecay.decay_steps"),
        ("SGD('0.1')", "learning_rate"),
        ("SGD(0.1 0.2)", "expected ','"),
        ("SGD(x=)", "expected a value"),
    ],
)
def test_wrong_arguments_without_a_name(call, told):
    with pytest.raises((InvalidArgument, InvalidSyntax)) as caught:
        compile_params(f"optimizer={call}, loss=mse")
    assert told in str(caught.value)


@pytest.mark.parametrize(
    "metric",
    ["MeanIoU(num_classes=20000)", "OneHotIoU(20000, [1])", "AUC(num_thresholds=70000)",
     "AUC(multi_label=True, num_labels=400)", "SensitivityAtSpecificity(0.5, num_thresholds=100000)"],
)  # fmt: skip
def test_metrics_that_count_in_too_many_numbers(metric):
    with pytest.raises(InvalidArgument, match="the metric would count in .* numbers"):
        compile_params(f"optimizer=SGD, loss=mse, metrics=['{metric}']")


def test_a_metric_cannot_be_called_loss():
    with pytest.raises(InvalidArgument, match="the name of the loss"):
        compile_params("optimizer=SGD, loss=mse, metrics=[\"AUC(name='loss')\"]")
