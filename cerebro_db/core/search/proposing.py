"""Search in a space: a sampler says which points are tried, and a stopping method which models go on."""

from __future__ import annotations

import abc
import functools
from collections.abc import Sequence
from typing import Any

from ..architecture.related.related_inputs import RELATED
from ..parameters.flat import ARCH_PARAMS
from ..records import dataclass
from .decision import NewConfiguration, NewModel
from .history import History, variant_of
from .method_parameters import Parameter
from .policy import Decision, Policy
from .spaces.dimensions import Dimension, identity
from .spaces.space import ARCHITECTURE, Point, Space

RANDOM = "random"  # the name of the sampler of random points
MOST_ATTEMPTS = 1000  # to draw a point that was not tried before


class Sampler(abc.ABC):
    """Says which points of a space are tried; a pure function of the history."""

    name: str
    does: str  # for docs/train.md
    parameters: tuple[Parameter, ...] = ()  # that users can give
    independent: bool = False  # whether it does not look at the results of models
    needs_optuna: bool = False
    space: Space
    epochs: int  # of the run; only samplers that need it have it

    @abc.abstractmethod
    def sample(self, history: History, number: int, count: int) -> Sequence[Point]:
        """So many further points at most, of which the first is the one with this number; none if there are no more."""

    def size(self) -> int | None:
        """How many points there are in all; None: no end."""
        return self.space.size()


@dataclass
class Proposing(Policy):
    """The points of a sampler, some at a time, under a method that stops models."""

    stopper: Policy
    sampler: Sampler
    configurations: int  # in all
    at_once: int  # how many models train or wait for a segment

    @property
    def name(self) -> str:  # type: ignore[override]
        own, stopping = self.sampler.name, self.stopper.name
        return f"{stopping} ({own})" if self.stopper.asks else own

    def decide(self, history: History, model: int, epoch: int) -> Decision:
        return self.stopper.decide(history, model, epoch)

    def expected_epochs(self, place: int, done: int) -> float:
        return self.stopper.expected_epochs(place, done)

    @property
    def begins(self) -> int | None:
        size = self.sampler.size()
        return self.configurations if size is None else min(self.configurations, size)

    def released(self, history: History) -> Sequence[int]:
        return self.stopper.released(history)

    def extended(self, epochs: int) -> None:
        self.stopper.extended(epochs)
        self.sampler.epochs = epochs

    @property
    def timed(self) -> bool:  # type: ignore[override]
        return self.stopper.timed

    def told(self, history: History) -> str:
        return self.stopper.told(history)

    def propose(self, history: History, active: int) -> Sequence[NewModel]:
        begun = len(proposed(history))
        count = min(self.stopper.room(history, active, self.at_once), self.configurations - begun)
        points = self.sampler.sample(history, begun, count) if count > 0 else ()
        if begun == 0 and self.stopper.timed and self.sampler.name == RANDOM:
            points = _with_middles(self.sampler.space, points)
        return new_models(self.sampler.space, points) or self.stopper.further(history, active)


def proposed(history: History) -> dict[int, Point]:
    """The models that were proposed from a space, not copied from another model; with their points.

    Of the models of a configuration with folds or groups, it is the one on all rows.
    """
    own = [one for one in history.models if not history.is_copy(one)]
    told = {one: history.configuration(one) for one in own}
    return {one: its["chosen"] for one, its in told.items() if its.get("chosen") and variant_of(its) is None}


def _with_middles(space: Space, points: Sequence[Point]) -> list[Point]:
    """Random first points of a search, but the first of each architecture has the middle of all other dimensions.

    In a short budget few models are trained, and values at the ends of dimensions are seldom good ones.
    """
    found = list(points)
    seen: set[Any] = set()
    for place, point in enumerate(points):
        architecture = identity(point.get(ARCHITECTURE))
        middle = space.point(functools.partial(_middle, point))
        if architecture not in seen and space.key(middle) not in map(space.key, found):
            found[place] = middle
        seen.add(architecture)
    return found


def _middle(point: Point, dimension: Dimension) -> Any:
    return point[dimension.name] if dimension.path == ARCHITECTURE else dimension.value(0.5)


def new_models(space: Space, points: Sequence[Point]) -> list[NewModel]:
    made = []
    for point in points:
        drawn = space.configuration(point)
        model_id = drawn.model_id if drawn.architecture is None else None
        own = NewConfiguration(
            compile_params=drawn.compile_params,
            fit_params=drawn.fit_params,
            model_id=model_id,
            architecture=drawn.architecture,
            chosen=point,
            name=drawn.name,
            arch_params=drawn.arch_params,
        )
        made.append(NewModel(configuration=own))
    return made


def random_points(space: Space, seed: int, history: History, number: int, count: int) -> list[dict[str, Any]]:
    """Random points that no model has, nor one of the others; fewer if the space has no more.

    The first points of a search have one of each architecture, then each way to read related tables: few of them may
    be tried.
    """
    taken = {space.key(point) for point in proposed(history).values() if space.has(point)}
    firsts = _firsts(space)
    found: list[dict[str, Any]] = []
    for place in range(number, number + count):
        for attempt in range(MOST_ATTEMPTS):
            point = space.drawn(seed, f"{place}.{attempt}")
            wanted = firsts[place] if place < len(firsts) else {}
            if all(point.get(name) == one for name, one in wanted.items()) and space.key(point) not in taken:
                taken.add(space.key(point))
                found.append(point)
                break
        else:
            return found
    return found


def _firsts(space: Space) -> list[Point]:
    """What each of the first points has: an architecture, with the middle way to read related tables; then the other
    ways."""
    by_path = {one.path: one for one in space.dimensions}
    architectures, ways = by_path.get(ARCHITECTURE), by_path.get(f"{ARCH_PARAMS}.{RELATED}")
    found: list[Point] = [{ARCHITECTURE: one} for one in (architectures.values() if architectures else None) or ()]
    if ways is None:
        return found
    usual = {ways.name: ways.value(0.5)}
    found = [
        {**one, **usual} if all(condition.holds(one) for condition in ways.conditions) else one for one in found or [{}]
    ]
    return [*found, *({ways.name: one} for one in ways.values() or () if one != usual[ways.name])]
