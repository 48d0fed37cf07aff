"""The options of a run: the one table that documents them, validates them and holds their defaults.

``docs/reference/options.md`` is generated from it.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from typing import Any

from . import documents
from .documents import shown
from .engines import (
    ALL_REUSE,
    AUTO,
    AUTO_ENGINES,
    AUTO_REUSE,
    AUTO_SHARD,
    ENGINES,
    FLOAT16,
    FLOAT32,
    MOST_SHARDS,
    MOST_THREADS,
    NEVER_SHARD,
    NO_REUSE,
)
from .errors import CerebroError, InvalidArgument, Unsupported
from .models.metrics import MAX, MIN
from .records import dataclass

METRIC = re.compile(r"[^\W\d]")  # how the name of a metric begins
TYPES = {int: "a whole number", bool: "true or false", str: "a text", dict: "a JSON object"}
PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16")  # weights are float32 in each of them
STOP, KEEP = "stop", "keep"  # what becomes of a model whose loss is not finite
SESSION, WORKERS = "session", "workers"  # where a run trains
NEW_GROUPS = ("error", "all rows")  # what becomes of rows to predict whose group no model knows
RANDOM_START, START_OF_ALL_ROWS = "random", "all rows"  # the weights that models of groups start with
HOPPING, GRADIENTS, COPIES = "hopping", "gradients", "copies"  # how a model trains on the rows of several segments
LAST, BEST = "last", "best"  # which state of a model is kept beside its last one, and which the model tables get


@dataclass(frozen=True)
class Option:
    """One option. ``type``, ``choices`` and ``bounds`` say which values it takes."""

    name: str
    type: type
    what: str  # what it does
    when: str  # when to use it; line ends in both texts mean nothing
    default: Any = None
    unset: str = ""  # what happens without the option, where that is no fixed default
    choices: tuple[str, ...] = ()
    others: Container[str] = ()  # further choices, which other packages add
    bounds: tuple[int, int] | None = None  # the smallest and the largest number that it takes
    object: bool = False  # whether it takes a JSON object as well
    numbers: tuple[int, int] | None = None  # the smallest and the largest number that it takes as well

    @property
    def values(self) -> str:
        """The values that the option takes, for people."""
        if self.choices:
            return ", ".join(self.choices) + self._or_number
        if self.bounds is None or self.bounds[0] < 0:
            return self._takes
        if self.bounds[1] >= 2**31 - 1:
            return f"{TYPES[self.type]} from {self.bounds[0]} on"
        return f"{TYPES[self.type]} from {self.bounds[0]} to {self.bounds[1]}"

    @property
    def _takes(self) -> str:
        return TYPES[self.type] + (" or an object" if self.object else "") + self._or_number

    @property
    def _or_number(self) -> str:
        return f" or a whole number from {self.numbers[0]} to {self.numbers[1]}" if self.numbers else ""

    def check(self, value: Any) -> None:
        """Raises an error if the option does not take the value."""
        found = type(value)  # not isinstance(): to Python, true is a number, too
        if self.object and found is dict:
            return
        if self.numbers and found is int and self.numbers[0] <= value <= self.numbers[1]:
            return
        if found is not self.type and not (self.numbers and found is int):
            raise self._refused(value, f"It takes {self._takes}.")
        if self.choices and value not in self.choices and value not in self.others:
            raise self._refused(value, f"It is one of {self.values}{self._without()}.")
        if self.bounds and not self.bounds[0] <= value <= self.bounds[1]:
            raise self._refused(value, f"It takes a number from {self.bounds[0]} to {self.bounds[1]}.")

    def _refused(self, value: Any, hint: str) -> CerebroError:
        if self.name == "engine" and isinstance(value, str):
            return Unsupported(f"there is no engine '{value[:80]}'.", hint=ENGINE_HINT)
        return InvalidArgument(f"option '{self.name}' cannot be {shown(value)}.", hint=hint)

    def _without(self) -> str:
        return f"; without it: {self.unset}" if self.unset else ""


ENGINE_HINT = (
    f"The engines are: {', '.join(ENGINES)}; {AUTO} takes {' or '.join(AUTO_ENGINES)} for each architecture:"
    " the engine that it expects to be faster. If there is much to train, it tries both."
)

_TABLE = (
    Option(
        name="seed",
        type=int,
        what="""The number from which all random choices of the run follow: initial weights, the order of visits,
        shuffling and dropout.""",
        when="""To repeat a run with the same random choices. For models that are equal bit for bit, also set
        deterministic.""",
        unset="a random number; 0 with deterministic",
        bounds=(-(2**63), 2**63 - 1),
    ),
    Option(
        name="deterministic",
        type=bool,
        what="""true trains with deterministic operations, without fusion, and with one processor thread per segment
        unless threads says otherwise. The same seed then gives the same models, bit for bit, on PostgreSQL and
        on Greenplum, whatever else the machine does. Which points a search tries, and which models it stops, may depend
        on the order in which models complete their epochs; the option replay repeats a search.""",
        when="If a run must be exactly repeatable, for instance for an audit or a test. Training can be slower.",
        default=False,
    ),
    Option(
        name="engine",
        type=str,
        what="""The framework that trains: TensorFlow, JAX or PyTorch, all through Keras. auto picks, for each
        architecture, the engine that it expects to be faster, tensorflow or jax; if there is much to train, it
        tries both and measures. With deterministic, auto is the default engine. The column engine of
        cerebro.leaderboard shows the choice.""",
        when="""jax is often faster for dense layers, tensorflow for convolutions on processors. auto, if you do not
        know. torch must be installed in the trainer's environment.""",
        unset="tensorflow; jax, if only JAX is installed",
        choices=(*ENGINES, AUTO),
        others=ENGINES,
    ),
    Option(
        name="precision",
        type=str,
        what="""The numbers that layers compute with. mixed_bfloat16 and mixed_float16 are mixed precision: 16-bit
        layers, 32-bit weights. The optimizer and the output layers stay float32, and mixed_float16 scales the
        loss.""",
        when="""Mixed precision is faster on hardware that supports it, such as recent GPUs, and less precise. On other
        hardware it can be slower.""",
        unset="layers compute as their architecture says, usually in float32",
        choices=PRECISIONS,
    ),
    Option(
        name="nan",
        type=str,
        what="""What happens to a model whose loss is not a finite number. stop: the model fails, and the other models
        go on. keep: the model trains on.""",
        when="keep, if a loss that is infinite or not a number for a while is expected to recover.",
        default=STOP,
        choices=(STOP, KEEP),
    ),
    Option(
        name="threads",
        type=int,
        what="Number of processor threads of the trainer on each segment.",
        when="To leave processors to other work, or to use more of them where a run has few segments.",
        unset="the number of processors divided by the number of segments, at least 1; 1 with deterministic",
        bounds=(1, MOST_THREADS),
    ),
    Option(
        name="cache_mb",
        type=int,
        what="""Maximum megabytes of rows cached in memory per segment and packed table. Larger partitions are cached on
        disk; 0 caches all rows on disk.""",
        when="To bound the memory of a run on a machine that other work needs, or to allow more than the default.",
        unset="rows are cached in memory as long as half of the machine's memory stays available",
        bounds=(0, 2**31 - 1),
    ),
    Option(
        name="reuse",
        type=str,
        what="""Layers at the beginning of a model that do not train give the same numbers for a row in every step: its
        features. all: each segment computes the features of its rows once, keeps them in files while its rows are
        cached, and trains the layers behind them. Models with the same frozen layers and weights share features.
        auto: the same, where that takes less time than computing them in each step. none: each step computes them.
        The results are equal within rounding, not bit for bit.""",
        when="""all, if frozen layers should be computed once, whatever that gains. none, if the results must be bit for
        bit those of computing them in each step.""",
        unset="auto; none with deterministic",
        choices=(NO_REUSE, AUTO_REUSE, ALL_REUSE),
    ),
    Option(
        name="features_mb",
        type=int,
        what="""Maximum megabytes of features that each segment keeps (see reuse). Where all features would take more,
        it keeps those that save the most time. The others are computed in each pass.""",
        when="If features are large, for instance those of images, and there is room for them.",
        default=1024,
        bounds=(0, 2**31 - 1),
    ),
    Option(
        name="features_type",
        type=str,
        what="""The numbers in which features are kept (see reuse). float16 takes half the room, and has about three
        decimal digits. A model whose features are too large for it (above 65,504) fails, and the message says so.""",
        when="float16, if twice as many features should fit into features_mb.",
        default=FLOAT32,
        choices=(FLOAT32, FLOAT16),
    ),
    Option(
        name="shard",
        type=str,
        what="""Whether a model that is larger than the memory of its trainer is cut into shards. A shard is some layers
        that follow each other. The trainer has one shard in memory at a time; the others are in files. auto cuts the
        models that need more than memory_mb, into as few shards as fit. A number cuts each model into that many
        shards, if it has as many layers that can be cut. never cuts no model: a model that needs more than memory_mb
        is refused before training.""",
        when="""never, if a model that has to be cut should be an error, because a cut model trains more slowly. A
        number, to try how much slower.""",
        default=AUTO_SHARD,
        choices=(AUTO_SHARD, NEVER_SHARD),
        numbers=(1, MOST_SHARDS),
    ),
    Option(
        name="memory_mb",
        type=int,
        what="""Megabytes of memory that the trainer of each segment may use for a model, its gradients and its
        optimizer, with the framework itself. Models that need more are cut (see shard). On a GPU it is the memory of
        the GPU. It cannot be more than the limit that an administrator has set for you
        (cerebro.limits, trainer_mb). The summary of the models keeps it, for the functions that use them.""",
        when="""To train models that are larger than the memory, or to leave memory to other work. A trainer needs about
        300 MB before it has a model.""",
        unset="the limit that an administrator has set for your trainers; if there is none, no model is cut by auto",
        bounds=(1, 2**31 - 1),
    ),
    Option(
        name="fuse",
        type=bool,
        what="""true trains similar models (same architecture except for numbers, same batch size) together, several in
        one pass over the rows. Only with the engine jax, and not with deterministic: the results of fused
        models are equal to those of single models within rounding, not bit for bit.""",
        when="false, if the results should not depend on which models train together. true skips the rehearsal.",
        unset="with jax, a short rehearsal measures whether fusion is faster",
    ),
    Option(
        name="read_ahead",
        type=bool,
        what="""true lets a segment fetch the state of the next model and store the state of the last one while it
        trains. The results are the same.""",
        when="The default is right in most cases. false saves memory: a segment then has one state at a time.",
        unset="on for states of moderate size when moving them takes long compared with training",
    ),
    Option(
        name="synchronous_commit",
        type=bool,
        what="""false commits visits and evaluations without waiting until the disk has them. A crash of the server can
        then lose those of the last second, and cerebro.resume trains them again. Nothing else is lost, and the end
        of a run waits for the disk. Visits with states of more than 512 kB wait for the disk in any case. true
        follows the server's own setting synchronous_commit.""",
        when="""true, if not even the last second may have to be trained again. Greenplum refuses false: each segment
        there has a write-ahead log of its own, so a crash could lose a visit without those that come after it.""",
        unset="false on PostgreSQL, true on Greenplum",
    ),
    Option(
        name="hang_after",
        type=int,
        what="""Number of seconds after which a trainer that reports no progress and uses no processor time is ended.
        What it was doing is tried again, as after a crash. 0: no limit.""",
        when="A larger number, if a trainer may wait that long for something, such as a GPU that it shares.",
        default=300,
        bounds=(0, 2**31 - 1),
    ),
    Option(
        name="objective",
        type=str,
        what="""The metric that says which model is best, and in which epoch: loss or a metric that all configurations
        compile, as cerebro.metrics names it. With val_ before the name it is measured on the validation table after the
        epoch, without it on the training rows while the model trains. An objective on the validation table is compared
        for the epochs that are evaluated: all epochs, unless the argument evaluate_every (metrics_compute_frequency)
        says otherwise. A metric with a value for each class counts with their mean. Values that are not finite numbers
        are never best.""",
        when="When another metric than the loss is what matters, such as val_auc. cerebro.leaderboard ranks by it.",
        unset="val_loss with a validation table, else loss, by the latest epoch",
    ),
    Option(
        name="direction",
        type=str,
        what="Whether a small (min) or a large (max) value of the objective is better.",
        when="For metrics that an administrator has registered: it is not known which of their values are good.",
        unset="min for losses and errors, max for accuracy, auc, precision, recall, f1_score, r2_score and the like",
        choices=(MIN, MAX),
    ),
    Option(
        name="keep",
        type=str,
        what="""best keeps the state of the epoch with the best objective of each model, beside its last state. The
        model tables of the fit get the best one; cerebro.materialize makes tables of either. Of equal values the
        earlier epoch is best. With folds, it is the epoch with the best mean over the folds. Each model takes up to
        half as much disk space more.""",
        when="best, when models may overfit: the last epoch need not be the best.",
        default=LAST,
        choices=(LAST, BEST),
    ),
    Option(
        name="execution",
        type=str,
        choices=(WORKERS, SESSION),
        what=f"""Where the run trains. {WORKERS}: each segment has a session that the server opens to itself, all
        segments work at the same time, and every visit is committed. {SESSION}: in your own session, one segment after
        the other; nothing is committed before your transaction is, and nothing is left if it fails.""",
        when=f"""{SESSION}, if the server allows no connections to itself. It is chosen without the option, too, for
        packed tables that no other session sees: temporary ones, and those made in the same
        transaction.""",
        unset=f"{WORKERS}, but {SESSION} for tables that only your transaction sees",
    ),
    Option(
        name="stop_when",
        type=str,
        what="""A query that stops models: its rows name models by configuration or model, with the reason as the other
        column, and $1 is the number of the run. It is evaluated whenever a model has completed an epoch; that model
        stops if it is named. It runs with your rights in a session of its own, which only reads, and for at most
        5 seconds. A query that fails stops nothing; each cause is reported once. cerebro.decisions shows what
        the rule has stopped.""",
        when="""To stop models early by conditions of your own. cerebro.fit takes it as an
        argument, too, which is easier to write than JSON. docs/run.md has examples.""",
        unset="no rule stops models",
    ),
    Option(
        name="method",
        type=str,
        object=True,
        what="""The method that stops unpromising models early, or an object with its name and parameters.
        docs/train.md describes them. It compares models by the objective, so with a validation table the models are
        evaluated after every epoch unless the argument evaluate_every says otherwise.""",
        when="""If most configurations are expected to be bad and time is short. To try configurations that are not in a
        table yet, use cerebro.search.""",
        unset="every model trains all its epochs",
    ),
    Option(
        name="budget",
        type=dict,
        what="""How much the run may use: an object with one or more of seconds (while the run is driven), unit_hours
        (of computation, summed over the segments), hops and configurations (how many models there are in all; the
        models of a configuration with folds count once). When it is spent, no visit begins. Models with epochs left are
        stopped with the reason budget as soon as their visit is committed. The run then finishes, and its models can be
        used. With least_epochs, the run goes on until one model has completed that many epochs: after the other limits
        are reached, only the model that is closest to them trains on.""",
        when="""To limit the time or the cost of a run. A resumed run goes on counting.""",
        unset="the run ends when all models have trained all epochs",
    ),
    Option(
        name="least_group_rows",
        type=int,
        what="""The least number of rows for training that a group needs for models of its own. Rows of smaller groups
        are predicted by the model on all rows. The rows must be packed with group_by.""",
        when="""If there are groups with so few rows that a model of their own would learn little.""",
        default=1,
        bounds=(1, 2**31 - 1),
    ),
    Option(
        name="parallel",
        type=str,
        what="""How a model trains whose rows lie on several segments. hopping: it trains on one segment after the
        other, and other models train on the other segments. gradients: all its segments train it at the same time
        (gradient accumulation). Each minibatch has rows of all of them; each computes the gradients of its rows, and
        their sum makes the step, as if one process had all rows. copies: each segment has a copy of all rows, and a
        model trains and is evaluated on one segment (task parallelism). It takes the rows in the order of hopping, and
        with deterministic the results are the same bits.""",
        when="""copies, if the table is small and states are large: no state moves to another segment. Each segment
        keeps the whole table in memory; larger tables, and tables with group_by, are refused. gradients, if the rows of
        a segment are so different from those of another one that a model should not see them one after the other, such
        as those of groups. Or to compare. Hopping is faster than gradients, because no segment waits for another one
        within an epoch.""",
        default=HOPPING,
        choices=(HOPPING, GRADIENTS, COPIES),
    ),
    Option(
        name="visit_rows",
        type=int,
        what="""The most rows of its segment that a visit takes. The model's next visit to the segment takes the rows
        that follow, and after the last row the first ones again; from segments with fewer rows it takes fewer. An epoch
        is still one visit to each segment. So all that counts epochs (epochs, min_epochs, evaluate_every, patience and
        so on) counts these short ones: models are compared after the same rows, before they have seen all. They are
        evaluated on a sample of the rows for validation: the share of them that an epoch has of the training rows,
        but at least 10,000 rows, and twice as many after 9, 81 and 729 epochs. The column sampled of cerebro.evaluation
        has the number of rows of each part.""",
        when="""If an epoch takes so long that bad configurations should be stopped before it ends. cerebro.train takes
        it by itself where few epochs fit into its budget. Outputs of frozen layers are then not kept (see reuse).""",
        unset="a visit takes all rows of its segment, and models are evaluated on all rows for validation",
        bounds=(1, 2**31 - 1),
    ),
    Option(
        name="groups_start",
        type=str,
        what="""The weights that models of groups start with. random: all models of a configuration start with the same
        random weights and train at the same time. all rows: the model on all rows trains first, for all its epochs;
        then the model of each group starts with its weights, and with a new optimizer. With keep => best these are the
        weights of its best epoch, otherwise those of its last one. The rows must be packed with group_by, and without
        folds.""",
        when="""all rows, if groups have few rows and are alike: their models then need fewer epochs and fewer rows.""",
        default=RANDOM_START,
        choices=(RANDOM_START, START_OF_ALL_ROWS),
    ),
    Option(
        name="new_groups",
        type=str,
        what="""What cerebro.predict does with a row of a group that had no row for training: with error, it refuses the
        query; with all rows, it predicts the row by the model on all rows. The rows must be packed with group_by.""",
        when="""If new groups are to be expected, such as shops that open.""",
        default="error",
        choices=NEW_GROUPS,
    ),
    Option(
        name="replay",
        type=int,
        what="""Number of an earlier run of yours. The new run takes its options, seed, engines and order of visits from
        that run; other options that you give take precedence, but not seed. With the same packed rows and the
        same configurations, the models become the same, bit for bit; models that were fused become the same
        within rounding.""",
        when="To check the results of a run, or to get its models again.",
        unset="nothing is replayed",
        bounds=(1, 2**63 - 1),
    ),
)
DECIDING = ("budget", "method", "stop_when")
GivenOptions = Mapping[str, Any]  # what a user gives, checked: name -> value
OPTIONS: dict[str, Option] = {option.name: option for option in _TABLE}


def default(name: str) -> Any:
    """The value of an option that is not given: the default of the field of its name."""
    return OPTIONS[name].default


def parsed(text: str | None) -> dict[str, Any]:
    """The options in an argument of a function."""
    return check(documents.argument(text, "options", default={}))


def check(given: object) -> dict[str, Any]:
    """The given options (a decoded JSON object), or an error that says what is wrong with them."""
    if not isinstance(given, dict):
        raise InvalidArgument("options must be a JSON object.", hint='For instance {"seed": 1}.')
    for name, value in given.items():
        if name not in OPTIONS:
            raise InvalidArgument(f"there is no option '{name[:80]}'.", hint=f"The options are: {', '.join(OPTIONS)}.")
        OPTIONS[name].check(value)
    if (objective := given.get("objective")) is not None and not METRIC.match(objective):
        raise InvalidArgument(
            f"objective cannot be {shown(objective)}.", hint="It is loss or the name of a metric, for instance val_auc."
        )
    if given.get("fuse") and given.get("deterministic"):
        raise InvalidArgument(
            "options 'deterministic' and 'fuse' exclude each other.",
            hint="The results of models that train together equal those of single models within rounding, not bit for"
            " bit.",
        )
    if given.get("visit_rows") is not None and given.get("parallel") == GRADIENTS:
        raise InvalidArgument(
            "options 'visit_rows' and 'parallel' exclude each other: with gradients, all segments train one model, so"
            " no other could be compared with it meanwhile.",
            hint="Leave one of them out. The fit parameter steps_per_epoch makes epochs shorter with gradients, too.",
        )
    return given


def replayable(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Those entries of an earlier run's record that are options and were not left open.

    Without those that have led to decisions: a replay repeats the decisions themselves.
    """
    options = {name: value for name, value in recorded.items() if name in OPTIONS and value is not None}
    return {name: value for name, value in options.items() if name not in DECIDING}
