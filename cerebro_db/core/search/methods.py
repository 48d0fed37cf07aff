"""The search methods that users can name: their parameters, checked, and the policies that they stand for.

docs/search.md describes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Callable

from ..documents import shown
from ..errors import InvalidArgument
from ..parameters.value_types import is_finite
from ..records import dataclass
from .asha import Asha
from .evolution import Evolution
from .grid import GridSearch
from .halving import Halving
from .hyperband import Hyperband
from .median import MedianStopping
from .never_stop import NeverStop
from .patience import Patience
from .pbt import PopulationBased
from .planned_brackets import PlannedBrackets
from .policy import Policy
from .proposing import Proposing, Sampler
from .random_search import RandomSearch
from .space import MOST_POINTS, Space
from .threshold import Threshold
from .tpe import Suggest, Tpe, Trial

SAMPLER, DEFAULT_SAMPLER = "sampler", "random"


@dataclass(frozen=True)
class Parameter:
    """A parameter of a method: a number, with its bounds."""

    name: str
    default: float | int | None = None
    low: float | None = None
    high: float | None = None
    whole: bool = True
    needed: bool = False

    def problem(self, value: Any) -> str | None:
        """Why the value is not possible."""
        if not is_finite(value) or (self.whole and value != int(value)):
            return f"it must be a {'whole ' if self.whole else ''}number"
        if (self.low is not None and value < self.low) or (self.high is not None and value > self.high):
            upto = f" and at most {self.high}" if self.high is not None else ""
            return f"it must be at least {self.low}{upto}"
        return None


MIN_EPOCHS = Parameter("min_epochs", 1, 1, 2**31 - 1)
RUNGS = (MIN_EPOCHS, Parameter("reduction", 3.0, 1.1, 1000, whole=False))

# name -> parameters. What stops models, what proposes points, and what does both.
STOPPING: dict[str, tuple[Parameter, ...]] = {
    "asha": RUNGS,
    "halving": (*RUNGS, Parameter("bracket", None, 2, MOST_POINTS)),
    "hyperband": RUNGS,
    "median": (MIN_EPOCHS, Parameter("min_models", 5, 1, MOST_POINTS)),
    "patience": (
        MIN_EPOCHS,
        Parameter("patience", 3, 1, 2**31 - 1),
        Parameter("min_delta", 0.0, 0.0, whole=False),
    ),
    "threshold": (MIN_EPOCHS, Parameter("value", whole=False, needed=True)),
}
SAMPLING: dict[str, tuple[Parameter, ...]] = {
    "random": (),
    "grid": (),
    "tpe": (Parameter("startup", 10, 1, MOST_POINTS),),
    "evolution": (
        Parameter("population", 16, 2, MOST_POINTS),
        Parameter("tournament", 4, 1, MOST_POINTS),
        Parameter("mutations", 1, 1, 1000),
    ),
}
POPULATIONS: dict[str, tuple[Parameter, ...]] = {
    "pbt": (
        Parameter("interval", 1, 1, 2**31 - 1),
        Parameter("quantile", 0.25, 0.01, 0.5, whole=False),
        Parameter("factor", 1.2, 1.001, 100, whole=False),
    ),
}
METHODS = {**SAMPLING, **STOPPING, **POPULATIONS}
PLANNED = "brackets"  # the method of a run whose caller has planned its brackets; users cannot name it
NEEDS_OPTUNA = ("tpe",)
INDEPENDENT = ("random", "grid")  # methods that do not look at the results of models


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
            hint=f"The methods are: {', '.join(known)}.",
        )
    made = _parameters(name, spec, more=(SAMPLER,) if proposes and name in STOPPING else ())
    if proposes and name in STOPPING:
        sampler = checked(spec.get(SAMPLER, DEFAULT_SAMPLER), proposes=True)
        if sampler["name"] not in SAMPLING:
            raise InvalidArgument(
                f"'{sampler['name']}' cannot be the sampler of '{name}'.",
                hint=f"Samplers are: {', '.join(SAMPLING)}.",
            )
        made[SAMPLER] = sampler
    return made


def _parameters(name: str, spec: Mapping[str, Any], more: tuple[str, ...]) -> dict[str, Any]:
    parameters = {one.name: one for one in METHODS[name]}
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
    return spec["name"] in NEEDS_OPTUNA or spec.get(SAMPLER, {}).get("name") in NEEDS_OPTUNA


def policy_of(
    spec: Mapping[str, Any], epochs: int, configurations: int | None, proposals: Proposals | None = None
) -> Policy:
    """The policy of a checked method.  ``configurations`` will begin in all; None: a budget ends the search."""
    name, given = spec["name"], {key: value for key, value in spec.items() if key not in ("name", SAMPLER)}
    if proposals is None:
        return _stopping(name, given, epochs, configurations or MOST_POINTS)
    space, size = proposals.space, proposals.space.size()
    most = min(one for one in (configurations, size, MOST_POINTS) if one is not None)
    if name in POPULATIONS:
        return PopulationBased(space, proposals.seed, epochs, most, **given)
    sampling = spec if name in SAMPLING else spec[SAMPLER]
    parameters = {key: value for key, value in sampling.items() if key != "name"}
    if sampling["name"] == "grid":
        most = min(configurations or MOST_POINTS, len(list(space.grid())))
    stopper = NeverStop() if name in SAMPLING else _stopping(name, given, epochs, most)
    sampler = SAMPLERS[sampling["name"]](proposals, epochs, parameters)
    return Proposing(stopper, sampler, most, proposals.at_once)


def _stopping(name: str, given: Mapping[str, Any], epochs: int, configurations: int) -> Policy:
    if name == PLANNED:
        return PlannedBrackets(epochs, configurations, reduction=given["reduction"], planned=given["brackets"])
    if name in ("asha", "halving", "hyperband"):
        made: Policy = {"asha": Asha, "halving": Halving, "hyperband": Hyperband}[name](epochs, configurations, **given)
        return made
    return {"median": MedianStopping, "patience": Patience, "threshold": Threshold}[name](epochs, **given)


SAMPLERS: dict[str, Callable[[Proposals, int, dict[str, Any]], Sampler]] = {
    "random": lambda proposals, epochs, given: RandomSearch(proposals.space, proposals.seed),
    "grid": lambda proposals, epochs, given: GridSearch(proposals.space),
    "tpe": lambda proposals, epochs, given: Tpe(
        proposals.space, proposals.seed, epochs, proposals.suggest, past=proposals.past, **given
    ),
    "evolution": lambda proposals, epochs, given: Evolution(proposals.space, proposals.seed, epochs, **given),
}
