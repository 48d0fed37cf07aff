"""A search space: from its parts to points, and from a point to a configuration.

    {"architecture": [1, 2],
     "arch_params": {"width": {"integer": [16, 256], "step": 16}},
     "compile": {"loss": "categorical_crossentropy", "metrics": ["accuracy"],
                 "optimizer": {"choice": ["Adam", "SGD"]},
                 "learning_rate": {"log_uniform": [0.0001, 0.1]},
                 "momentum": {"uniform": [0, 0.99], "when": {"optimizer": "SGD"}}},
     "fit": {"batch_size": {"choice": [16, 32, 64]}, "epochs": 1}}

Users write it flat (flat_space.py).  Everything in it is a constant or a dimension (read_space.py reads them).  A
point says for each of its dimensions which value it has: ``{"optimizer": "SGD", "learning_rate": 0.01, …}``.
Dimensions whose conditions do not hold are not part of the point, and their parameters are left out of the
configuration.
"""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Union

from ...architecture import keras_json, sources
from ...architecture.sources import Source
from ...errors import CerebroError, InvalidArgument
from ...parameters import custom, params, writing
from ...parameters.custom import Known
from ...parameters.flat import FROZEN
from ...parameters.grid_dimensions import random_stream
from ...parameters.optimizers import FEW_SLOTS
from ...parameters.value_types import shown
from ...records import dataclass
from .dimensions import Choice, Dimension, Number

Point = Mapping[str, Any]
Label = Union[int, str]  # of an architecture in points: its model_id, or its name

MOST_POINTS = 100_000  # of a grid
ARCHITECTURE = "architecture"
MEASURES = ("loss", "metrics", "weighted_metrics", "loss_weights")


@dataclass(frozen=True)
class ChoiceOption:
    """An option of a choice that has dimensions of its own, or is a list or an object."""

    label: Any
    tree: Any


@dataclass(frozen=True)
class Options:
    """Where a choice stands in the tree of a space."""

    dimension: Choice
    options: tuple[ChoiceOption, ...]


@dataclass(frozen=True)
class Drawn:
    """A configuration of a space."""

    model_id: int
    architecture: str | None  # the JSON, if the architecture of model_id has parameters
    compile_params: str
    fit_params: str
    name: str | None  # of the architecture
    arch_params: Mapping[str, Any]  # what the architecture is made with


@dataclass(frozen=True)
class Space:
    dimensions: tuple[Dimension, ...]  # each after those that it depends on
    templates: Mapping[Label, Source]  # what is made anew for each point; None: an architecture without parameters
    trees: Mapping[str, Any]  # compile, fit, arch_params: constants, dimensions and options

    # -- points ------------------------------------------------------------------------------------

    def point(self, choose: Callable[[Dimension], Any]) -> dict[str, Any]:
        """The point that ``choose`` makes, which is called for the dimensions whose conditions hold."""
        made: dict[str, Any] = {}
        for dimension in self.dimensions:
            if all(condition.holds(made) for condition in dimension.conditions):
                made[dimension.name] = choose(dimension)
        return made

    def drawn(self, seed: int, name: object) -> dict[str, Any]:
        """The random point of this name.  Each dimension has random numbers of its own: dimensions are independent."""
        return self.point(lambda one: one.value(random_stream(seed, f"{name}/{one.path}").random()))

    def key(self, point: Point) -> tuple[float | None, ...]:
        """Equal for equal points."""
        return tuple(one.key(point[one.name]) if one.name in point else None for one in self.dimensions)

    def size(self) -> int | None:
        """How many points there are, if each dimension has a list of values; None: too many to count."""
        if any(isinstance(one, Number) and (one.values() is None or one.points) for one in self.dimensions):
            return None
        size = sum(1 for _ in itertools.islice(self._all_points(), MOST_POINTS + 1))
        return size if size <= MOST_POINTS else None

    def grid(self) -> Iterator[dict[str, Any]]:
        """All points, the last dimension first to change."""
        for dimension in self.dimensions:
            if dimension.values() is None:
                raise wrong(
                    dimension.path,
                    "a grid needs a list of values here",
                    'Say how many: "points": 5, or a "step"; or take another method.',
                )

        for number, point in enumerate(self._all_points()):
            if number >= MOST_POINTS:
                raise InvalidArgument(
                    f"the grid of the space has more than {MOST_POINTS} points",
                    hint="Leave values out, or take another method.",
                )
            yield point

    def _all_points(self) -> Iterator[dict[str, Any]]:
        values = [one.values() or () for one in self.dimensions]

        def points(made: dict[str, Any], place: int) -> Iterator[dict[str, Any]]:
            while place < len(values):
                dimension = self.dimensions[place]
                if all(condition.holds(made) for condition in dimension.conditions):
                    for value in values[place]:
                        yield from points({**made, dimension.name: value}, place + 1)
                    return
                place += 1
            yield made

        return points({}, 0)

    def mutated(self, point: Point, chance: random.Random, how_many: int = 1) -> dict[str, Any]:
        """A copy of a point with some values changed; dimensions that a change brings in get random values."""
        mine = [one for one in self.dimensions if one.name in point and len(one.values() or (1, 2)) > 1]
        changed = {one.name for one in chance.sample(mine, min(how_many, len(mine)))}

        def choose(one: Dimension) -> Any:
            if one.name not in point:
                return one.value(chance.random())
            return one.changed(point[one.name], chance) if one.name in changed else point[one.name]

        return self.point(choose)

    def explored(self, point: Point, chance: random.Random, factor: float) -> dict[str, Any]:
        """A copy of a point whose numbers are multiplied or divided by the factor.

        The state of a model with the one point fits a model with the other: only numbers change, and none of the
        architecture or of what the models are measured by.
        """

        def choose(one: Dimension) -> Any:
            part, _, key = one.path.partition(".")
            if one.name not in point:  # a number that has changed is its condition
                return one.value(chance.random())
            up = chance.random() < 0.5
            if part not in ("compile", "fit") or re.split(r"[.\[]", key)[0] in MEASURES:
                return point[one.name]
            return one.perturbed(point[one.name], factor if up else 1 / factor)

        return self.point(choose)

    def has(self, point: Point) -> bool:
        """Whether this is a point of the space."""
        if not isinstance(point, Mapping):
            return False
        active: list[str] = []
        for one in self.dimensions:
            if all(condition.holds(point) for condition in one.conditions):
                if one.name not in point or not one.has(point[one.name]):
                    return False
                active.append(one.name)
        return set(active) == set(point)

    # -- configurations ----------------------------------------------------------------------------

    def configuration(self, point: Point) -> Drawn:
        """The configuration of a point."""
        label = point.get(ARCHITECTURE, next(iter(self.templates)))
        compiled, fit = self._built("compile", point), self._built("fit", point)
        template, values = self.templates.get(label), self._arch_params(label, point)
        return Drawn(
            self.model_id(label),
            None if template is None else json.dumps(sources.made(template, values)),
            writing.compile_text(compiled),
            writing.fit_text(fit),
            label if isinstance(label, str) else None,
            values,
        )

    def model_id(self, label: Label) -> int:
        """The number of an architecture.  Those that have names are numbered in their order."""
        return label if isinstance(label, int) else list(self.templates).index(label) + 1

    def _arch_params(self, label: Label, point: Point) -> dict[str, Any]:
        template = self.templates.get(label)
        known = sources.parameters(template) if template is not None else set()
        return {name: value for name, value in self._built("arch_params", point).items() if name in known}

    def _built(self, part: str, point: Point) -> dict[str, Any]:
        made: dict[str, Any] = _built(self.trees[part], point)
        return made

    def check(self, known: Known = custom.NONE) -> None:
        """Raise an error if points of the space make no configuration: each option and each bound is tried once."""
        compiled: dict[str, dict[str, Any]] = {}
        fits: set[str] = set()
        built: set[tuple[str, str]] = set()
        for probe in self.probes():
            try:
                drawn = self.configuration(probe)
                text = drawn.compile_params
                if text not in compiled:
                    compiled[text] = params.compile_params(text, known)
                if drawn.fit_params not in fits:
                    params.fit_params(drawn.fit_params)
                    fits.add(drawn.fit_params)
                if drawn.architecture is not None and (text, drawn.architecture) not in built:
                    keras_json.for_outputs(compiled[text], keras_json.architecture(drawn.architecture))
                    built.add((text, drawn.architecture))
            except CerebroError as error:
                said = ", ".join(f"{name} = {shown(value)}" for name, value in probe.items())
                error.message = f"search space, with {said or 'its constants'}: {error.message}"
                raise

    def probes(self) -> Iterator[dict[str, Any]]:
        """Points among which each option and each bound occurs."""
        yield self.point(lambda one: one.probes()[0])
        yield self.point(lambda one: one.probes()[-1])
        for dimension in self.dimensions:
            for value in dimension.probes():
                yield self._with(dimension, value)

    def largest(self, label: Label) -> dict[str, Any]:
        """The point of an architecture that is expected to need most memory."""
        return self.point(lambda one: label if one.path == ARCHITECTURE else _largest(one))

    def _with(self, dimension: Dimension, value: Any) -> dict[str, Any]:
        """A point in which a dimension has this value."""
        wanted: dict[str, Any] = {dimension.name: value}
        self._demand(dimension, wanted)
        return self.point(lambda one: wanted.get(one.name, one.probes()[0]))

    def _demand(self, dimension: Dimension, wanted: dict[str, Any]) -> None:
        """Add what makes the dimension part of a point."""
        by_name = {one.name: one for one in self.dimensions}
        pending = list(reversed(dimension.conditions))
        while pending:
            condition = pending.pop()
            if condition.dimension not in wanted:
                wanted[condition.dimension] = condition.values[0]
                pending += reversed(by_name[condition.dimension].conditions)

    def described(self) -> list[dict[str, Any]]:
        """The dimensions, for a sampler outside."""
        return [one.described() for one in self.dimensions]


def _largest(dimension: Dimension) -> Any:
    """Of a dimension, the value with which a model is expected to need most memory."""
    values = dimension.probes()
    if dimension.path == f"arch_params.{FROZEN}":  # what is frozen has no gradients
        return values[0]
    if dimension.path == "compile.optimizer":
        return max(values, key=lambda name: not str(name).lower().startswith(FEW_SLOTS))
    numeric = all(isinstance(one, (int, float)) and not isinstance(one, bool) for one in values)
    return max(values) if numeric else values[-1]


LEFT_OUT = object()


def _built(tree: Any, point: Point) -> Any:
    """A part of the space with the values of a point; LEFT_OUT if the point does not have the dimension."""
    if isinstance(tree, Options):
        if tree.dimension.name not in point:
            return LEFT_OUT
        return _built(tree.options[tree.dimension.index(point[tree.dimension.name])].tree, point)
    if isinstance(tree, Dimension):
        return point.get(tree.name, LEFT_OUT)
    if isinstance(tree, dict):
        made = {key: _built(inner, point) for key, inner in tree.items()}
        return {key: value for key, value in made.items() if value is not LEFT_OUT}
    if isinstance(tree, list):
        return [value for inner in tree if (value := _built(inner, point)) is not LEFT_OUT]
    return tree


PARTS = ("arch_params", "compile", "fit")


def flat_path(path: str) -> str:
    """A place as the user knows it, who writes no parts."""
    part, _, rest = path.partition(".")
    return rest if rest and part in PARTS else path


def wrong(path: str, problem: str, hint: str | None = None) -> InvalidArgument:
    """The error for a place of a space."""
    return InvalidArgument(f"search space, at {flat_path(path) or 'the top'}: {problem}", hint=hint)
