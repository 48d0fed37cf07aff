"""MADlib's AutoML methods and their parameters: how many configurations, and how long each trains."""

from __future__ import annotations

from itertools import accumulate
from typing import Any, ClassVar, Union

from cerebro_db.core.errors import CerebroError, InvalidArgument
from cerebro_db.core.parameters import grammar
from cerebro_db.core.records import dataclass

from .hyperband_rounds import Round, schedule

RANDOM, TPE = "rand", "tpe"


@dataclass(frozen=True)
class MadlibBracket:
    """Configurations that compete with each other. After each round the best of them go on."""

    s: int
    size: int
    ends: tuple[int, ...]  # after how many iterations in all each round ends
    # The iterations of MADlib's fits before the one that this bracket begins with: metrics_iters counts from the first
    # fit of the call, as metrics_elapsed_time does.
    before: int = 0

    def round_of(self, iteration: int) -> int:
        """The round that an iteration belongs to, counted from 0."""
        return sum(end < iteration for end in self.ends)

    def measured(self, frequency: int | None) -> list[int]:
        """After which iterations models are evaluated: each round is counted for itself, as a fit is.

        A frequency above the iterations of a round counts for nothing there: models are evaluated at its end.
        """
        found: set[int] = set(self.ends)
        for begin, end in zip((0, *self.ends), self.ends):
            found.update(range(begin + (frequency or end), end, frequency or end))
        return sorted(found)


@dataclass(frozen=True)
class MadlibHyperband:
    r: int = 6
    eta: int = 3
    skip_last: int = 0
    name: ClassVar[str] = "hyperband"
    keys: ClassVar[dict[str, str]] = {"R": "r", "eta": "eta", "skip_last": "skip_last"}

    @property
    def brackets(self) -> list[MadlibBracket]:
        """The bracket with the most configurations first."""
        by_bracket: dict[int, list[Round]] = {}
        for one in schedule(self.r, self.eta, self.skip_last):
            by_bracket.setdefault(one.s, []).append(one)
        before = accumulate((rounds[0].r_i for rounds in by_bracket.values()), initial=0)
        return [
            MadlibBracket(s, rounds[0].n_i, tuple(accumulate(one.r_i for one in rounds)), earlier)
            for (s, rounds), earlier in zip(by_bracket.items(), before)
        ]

    @property
    def configurations(self) -> int:
        return sum(bracket.size for bracket in self.brackets)

    @property
    def iterations(self) -> int:
        """Of the configuration that trains longest."""
        return max(bracket.ends[-1] for bracket in self.brackets)

    @property
    def last_iterations(self) -> int:
        """Of MADlib's last fit, which trains the last rounds of all brackets."""
        return self.r // self.eta**self.skip_last

    def bracket_of(self, place: int) -> MadlibBracket | None:
        """The bracket of the configuration with this place, from 0; None: the configuration belongs to none."""
        for bracket in self.brackets:
            if place < bracket.size:
                return bracket
            place -= bracket.size
        return None

    def measured(self, frequency: int | None) -> list[int]:
        """All iterations after which models are evaluated."""
        return sorted({one for bracket in self.brackets for one in bracket.measured(frequency)})

    @property
    def shown(self) -> str:
        return _shown(self)

    def policy(self) -> dict[str, Any]:
        """The brackets, as the search policy of the run takes them."""
        return {
            "name": "brackets",
            "brackets": [[bracket.size, list(bracket.ends)] for bracket in self.brackets],
            "reduction": self.eta,
        }


@dataclass(frozen=True)
class Hyperopt:
    num_configs: int = 20
    num_iterations: int = 5
    algorithm: str = TPE
    name: ClassVar[str] = "hyperopt"
    keys: ClassVar[dict[str, str]] = {key: key for key in ("num_configs", "num_iterations", "algorithm")}

    @property
    def configurations(self) -> int:
        return self.num_configs

    @property
    def iterations(self) -> int:
        return self.num_iterations

    @property
    def shown(self) -> str:
        return _shown(self)


Method = Union[MadlibHyperband, Hyperopt]
METHODS: dict[str, type[Method]] = {"hyperband": MadlibHyperband, "hyperopt": Hyperopt}


def read(name: str | None, params: str | None) -> Method:
    """The method of this name with its parameters; those that are left out have MADlib's defaults."""
    made = METHODS.get((name or MadlibHyperband.name).strip().lower())
    if made is None:
        raise InvalidArgument(
            "The chosen automl method must be 'hyperband' or 'hyperopt'", hint=f"automl_method is '{name}'."
        )
    method = made(**_given(made, params))
    if isinstance(method, MadlibHyperband):
        schedule(method.r, method.eta, method.skip_last)  # raises what is wrong
        return method
    for key in ("num_configs", "num_iterations"):
        if getattr(method, key) < 1:
            raise InvalidArgument(f"{key} is {getattr(method, key)}; it must be at least 1.")
    if method.algorithm not in (RANDOM, TPE):
        raise InvalidArgument(f"algorithm is '{method.algorithm}'; valid algorithms are '{RANDOM}' and '{TPE}'.")
    return method


def _shown(method: Method) -> str:
    """The parameters as automl_params gives them, all of them."""
    return ", ".join(f"{key}={getattr(method, field)}" for key, field in method.keys.items())


def _given(made: type[Method], params: str | None) -> dict[str, Any]:
    try:
        given = grammar.assignments(params or "", "automl_params")
    except CerebroError as error:
        error.hint = error.hint or "For instance 'R=9, eta=3, skip_last=0' or 'num_configs=20, algorithm=tpe'."
        raise
    *first, last = made.keys
    if set(given) - set(made.keys):
        raise InvalidArgument(
            f"Invalid param(s) passed in for {made.name}. Only {', '.join(first)}, and {last} may be specified",
            hint=f"automl_params has {', '.join(sorted(set(given) - set(made.keys)))}.",
        )
    for key, value in given.items():
        wanted = str if key == "algorithm" else int
        if not isinstance(value, wanted) or isinstance(value, bool):
            raise InvalidArgument(f"{key} is {value}; it must be {'a name' if wanted is str else 'a whole number'}.")
    return {made.keys[key]: str(value).lower() if key == "algorithm" else value for key, value in given.items()}


def require_frequency(method: Method, frequency: int | None) -> None:
    """Refuse a metrics_compute_frequency that makes no sense."""
    if frequency is None:
        return
    if isinstance(method, Hyperopt) and not 1 <= frequency <= method.iterations:
        raise InvalidArgument(
            f"'metrics_compute_frequency' out of iteration range: it is {frequency}, and num_iterations"
            f" is {method.iterations}."
        )
    if frequency < 1:
        raise InvalidArgument(f"metrics_compute_frequency is {frequency}; it must be at least 1.")
