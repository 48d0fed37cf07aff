"""The search methods that users can name, and the policies that they stand for.

A method is a class in a module of its own: a ``Sampler`` proposes points, a ``Policy`` stops models, and a ``Policy``
with ``propose`` does both.  METHOD_CLASSES lists ours; the rest, tests and docs/train.md included, follows from the
classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from .. import entry_points
from ..documents import shown
from ..entry_points import Extensible
from ..errors import InvalidArgument
from ..records import dataclass
from .methods.asha import Asha
from .methods.evolution import Evolution
from .methods.grid import GridSearch
from .methods.halving import Halving
from .methods.hyperband import Hyperband
from .methods.median import MedianStopping
from .methods.never_stop import NeverStop
from .methods.paced import Paced
from .methods.patience import Patience
from .methods.pbt import PopulationBased
from .methods.planned_brackets import PlannedBrackets
from .methods.random_search import RandomSearch
from .methods.threshold import Threshold
from .methods.tpe import Suggest, Tpe, Trial
from .policy import Policy
from .proposing import Proposing, Sampler
from .spaces.space import MOST_POINTS, Space

SAMPLER, DEFAULT_SAMPLER = "sampler", "random"

METHOD_CLASSES: tuple[type[Policy] | type[Sampler], ...] = (
    RandomSearch,
    GridSearch,
    Tpe,
    Evolution,
    Asha,
    Paced,
    Halving,
    Hyperband,
    MedianStopping,
    Patience,
    Threshold,
    PopulationBased,
)
PLANNED = "brackets"  # the method of a run whose caller has planned its brackets; users cannot name it
METHODS: Extensible[Any] = Extensible(
    entry_points.SEARCH_METHODS,
    {one.name: one for one in METHOD_CLASSES},
    lambda point: entry_points.loaded(point, lambda one: isinstance(one, type) and issubclass(one, (Policy, Sampler))),
    taken=(PLANNED,),
)
SAMPLING = METHODS.only(lambda one: issubclass(one, Sampler))
POPULATIONS = METHODS.only(lambda one: issubclass(one, Policy) and one.propose is not Policy.propose)
STOPPING = METHODS.only(lambda one: issubclass(one, Policy) and one.propose is Policy.propose)
INDEPENDENT = SAMPLING.only(lambda one: issubclass(one, Sampler) and one.independent)


@dataclass
class Proposals:
    """What a method needs that proposes configurations."""

    space: Space
    seed: int
    at_once: int
    suggest: Suggest
    past: Sequence[Trial] = ()


def checked(given: Any, *, proposes: bool) -> dict[str, Any]:
    """A method with all of its parameters, from its name or from an object with its name and some parameters.

    ``proposes``: it is to propose configurations.  Otherwise they exist, and the method only stops models.
    """
    known = METHODS if proposes else STOPPING
    spec = {"name": given} if isinstance(given, str) else given
    if not isinstance(spec, dict) or not isinstance(spec.get("name"), str):
        raise InvalidArgument(
            f"a search method is a name or an object with a name, not {shown(given)}.",
            hint='For instance "asha" or {"name": "asha", "reduction": 4}.',
        )
    name = spec["name"]
    if name not in known:
        only = (
            "" if proposes or name not in METHODS else " here: it proposes configurations, which cerebro.search() does"
        )
        raise InvalidArgument(
            f"there is no search method '{name[:80]}'{only}.",
            hint=f"The methods are: {', '.join(known.names())}.",
        )
    made = _parameters(name, spec, more=(SAMPLER,) if proposes and name in STOPPING else ())
    if proposes and name in STOPPING:
        sampler = checked(spec.get(SAMPLER, DEFAULT_SAMPLER), proposes=True)
        if sampler["name"] not in SAMPLING:
            raise InvalidArgument(
                f"'{sampler['name']}' cannot be the sampler of '{name}'.",
                hint=f"Samplers are: {', '.join(SAMPLING.names())}.",
            )
        made[SAMPLER] = sampler
    return made


def _parameters(name: str, spec: Mapping[str, Any], more: tuple[str, ...]) -> dict[str, Any]:
    parameters = {one.name: one for one in METHODS[name].parameters}
    for key in spec:
        if key not in (*parameters, *more, "name"):
            names = ", ".join((*parameters, *more)) or "none"
            raise InvalidArgument(
                f"the search method '{name}' has no parameter '{key[:80]}'.",
                hint=f"Its parameters: {names}.",
            )
    made: dict[str, Any] = {"name": name}
    for parameter in parameters.values():
        value = spec.get(parameter.name)
        if value is None:
            if parameter.needed:
                raise InvalidArgument(f"the search method '{name}' needs '{parameter.name}'.")
            made[parameter.name] = parameter.default
            continue
        problem = parameter.problem(value)
        if problem:
            raise InvalidArgument(f"'{parameter.name}' of the search method '{name}' is {shown(value)}; {problem}.")
        made[parameter.name] = int(value) if parameter.whole else float(value)
    return made


def needs_optuna(spec: Mapping[str, Any]) -> bool:
    named = (spec["name"], spec.get(SAMPLER, {}).get("name"))
    return any(getattr(SAMPLING.get(name), "needs_optuna", False) for name in named)


def policy_of(
    spec: Mapping[str, Any], epochs: int, configurations: int | None, proposals: Proposals | None = None
) -> Policy:
    """The policy of a checked method.  ``configurations`` will begin in all; None: a budget ends the search."""
    name = spec["name"]
    run: dict[str, Any] = {"epochs": epochs, "configurations": configurations or MOST_POINTS}
    if name == PLANNED:
        return PlannedBrackets(**run, reduction=spec["reduction"], planned=spec["brackets"])
    if proposals is None:
        return _made(STOPPING[name], spec, run)  # type: ignore[no-any-return]
    run |= vars(proposals)
    if name in POPULATIONS:
        run["configurations"] = _fewest(configurations, proposals.space.size())
        return _made(POPULATIONS[name], spec, run)  # type: ignore[no-any-return]
    sampling = spec if name in SAMPLING else spec[SAMPLER]
    sampler: Sampler = _made(SAMPLING[sampling["name"]], sampling, run)
    run["configurations"] = _fewest(configurations, sampler.size())
    stopper = NeverStop() if name in SAMPLING else _made(STOPPING[name], spec, run)
    return Proposing(stopper, sampler, run["configurations"], proposals.at_once)


def _fewest(configurations: int | None, points: int | None) -> int:
    return min(one for one in (configurations, points, MOST_POINTS) if one is not None)


def _made(method: type[Any], spec: Mapping[str, Any], run: Mapping[str, Any]) -> Any:
    """A method with its parameters, and with what else of the run its class has fields for."""
    known = {field.name for field in fields(method)}
    given = {one.name: spec[one.name] for one in method.parameters}
    return method(**{name: value for name, value in run.items() if name in known} | given)
