"""What a run optimises: a metric, and whether it is to be small or large."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ..errors import CerebroError, InvalidArgument
from ..events import DataSetName
from ..models.metrics import LOSS, MAX, MIN, loggable
from ..options import BEST
from ..records import dataclass

# Data set -> how the names of its values begin. Those of the visits themselves begin with nothing.
PREFIXES = {DataSetName.TRAINING.value: "train_", DataSetName.VALIDATION.value: "val_"}

Reported = Mapping[str, "bool | None"]  # what parameters.reported says of a configuration


@dataclass(frozen=True)
class Objective:
    """``name`` is a name of ``History.value``: loss, accuracy, …, val_loss, val_accuracy, …"""

    name: str = LOSS
    direction: str = MIN

    def __post_init__(self) -> None:
        if self.direction not in (MIN, MAX):
            raise ValueError(f"the direction of an objective is {MIN} or {MAX}, not {self.direction}")

    @property
    def dataset(self) -> str:
        """The data set that is evaluated for it; empty if the visits themselves have the values."""
        return next((dataset for dataset, prefix in PREFIXES.items() if self.name.startswith(prefix)), "")

    @property
    def metric(self) -> str:
        """The name of the metric without that of the data set."""
        return self.name[len(PREFIXES.get(self.dataset, "")) :]

    @property
    def in_words(self) -> str:
        """Such as: validation loss."""
        return f"{self.dataset} {self.metric}".strip()

    def score(self, value: float | None) -> float | None:
        """The value as a number of which a smaller one is better."""
        return -value if value is not None and self.direction == MAX else value

    def recordable(self, value: float | None) -> float | None:
        """The value as the log takes it; None if there is none, or if it is not finite."""
        found = None if value is None else loggable(value)
        return found if found is not None and math.isfinite(found) else None


def default(validated: bool) -> Objective:
    """The objective of a run that names none. ``validated``: the run has a validation table."""
    return Objective(PREFIXES[DataSetName.VALIDATION.value] + LOSS if validated else LOSS)


def chosen(
    name: str | None,
    direction: str | None,
    keep: str,
    configurations: Mapping[int, Reported],
    validated: bool,
    *,
    numbered: bool = True,
) -> Objective | None:
    """What the options of these names make the objective of a run; None if it needs none.

    ``configurations``: number -> what it reports. All must report the objective.  ``numbered``: users
    know the keys.
    """
    if name is None and direction is not None:
        raise InvalidArgument(
            "option 'direction' needs option 'objective'.",
            hint="Without an objective the model with the smallest loss is the best.",
        )
    if name is None and keep != BEST:
        return None
    objective = Objective(default(validated).name if name is None else name)
    _require_evaluated(objective, configurations, validated)
    without = [key for key, reported in sorted(configurations.items()) if objective.metric not in reported]
    if without:
        raise _refused(
            objective,
            _without(without, configurations, numbered) + f" compile '{objective.metric}'",
            configurations,
            validated,
        )
    if direction is None:
        known = {reported[objective.metric] for reported in configurations.values()}
        if len(known) > 1 or None in known:
            raise InvalidArgument(
                f"objective '{objective.name}' needs option 'direction': it is not known whether large"
                " values of this metric are better.",
                hint=f"""For instance {{"objective": "{objective.name}", "direction": "max"}}.""",
            )
        direction = MAX if True in known else MIN
    return Objective(objective.name, direction)


def require_reported(name: str | None, reported: Reported) -> None:
    """Raise an error if a configuration that is added to a run lacks the run's objective, which has this name."""
    if name is not None and Objective(name).metric not in reported:
        raise InvalidArgument(
            f"it does not compile '{Objective(name).metric}', which the run's objective {name} needs",
            hint=f"It has: {', '.join(sorted(reported))}.",
        )


def _require_evaluated(objective: Objective, configurations: Mapping[int, Reported], validated: bool) -> None:
    if objective.dataset == DataSetName.VALIDATION and not validated:
        raise _refused(objective, "the run has no validation table", configurations, validated)
    if objective.dataset == DataSetName.TRAINING:
        reason = f"the training table is not evaluated; '{objective.metric}' is measured while the models train"
        raise _refused(objective, reason, configurations, validated)


def _refused(
    objective: Objective, reason: str, configurations: Mapping[int, Reported], validated: bool
) -> CerebroError:
    together = [set(reported) for reported in configurations.values()]
    names = sorted(set.intersection(*together) if together else {LOSS})
    if validated:
        names += [PREFIXES[DataSetName.VALIDATION.value] + name for name in names]
    return InvalidArgument(
        f"objective '{objective.name}' cannot be used: {reason}.",
        hint=f"All configurations have: {', '.join(names)}.",
    )


def _without(without: list[int], configurations: Mapping[int, Reported], numbered: bool) -> str:
    """Who does not do something."""
    if numbered:
        one = len(without) == 1
        return f"configuration{'' if one else 's'} {_listed(without)} {'does' if one else 'do'} not"
    every = len(without) == len(configurations)
    return f"{'the' if every else 'some'} configurations of the space do not"


def _listed(keys: list[int]) -> str:
    return ", ".join(map(str, keys[:10])) + (", …" if len(keys) > 10 else "")
