"""A flat configuration: one object with the architecture, its parameters, and the parameters of training.

    {"architecture": "mlp", "units": 64, "optimizer": "adam", "learning_rate": 0.01, "batch_size": 32, "passes": 1}

Every other name than those of the architecture, of Keras' compile() and of its fit() is an argument of the optimizer.
``passes`` is Keras' fit parameter epochs: how often a visit goes over the rows of its segment.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ..errors import InvalidArgument
from ..records import dataclass, field
from . import writing
from .params import COMPILE_KEYS, FIT_KEYS
from .vocabulary import OPTIMIZERS

ARCHITECTURE, PASSES = "architecture", "passes"
ARCH_PARAMS, COMPILE, FIT = "arch_params", "compile", "fit"
OF_FIT = {PASSES if name == "epochs" else name: name for name in FIT_KEYS}  # here -> in Keras
OF_OPTIMIZERS = ({one for entry in OPTIMIZERS.entries.values() for one in entry.arguments} | {"lr", "decay"}) - {"name"}
RESERVED = {ARCHITECTURE, "epochs", *COMPILE_KEYS, *OF_FIT, *OF_OPTIMIZERS}
EXAMPLE = 'For instance {"architecture": "mlp", "units": 64, "learning_rate": 0.01, "batch_size": 32}.'


@dataclass
class Parts:
    """The parameters of a configuration by what reads them."""

    arch_params: dict[str, Any] = field(default_factory=dict)
    compile: dict[str, Any] = field(default_factory=dict)
    fit: dict[str, Any] = field(default_factory=dict)  # by Keras' names

    @property
    def compile_text(self) -> str:
        return writing.compile_text(self.compile)

    @property
    def fit_text(self) -> str:
        return writing.fit_text(self.fit)


def parts(given: Mapping[str, Any], parameters: Collection[str], where: str) -> Parts:
    """The parts of a flat object; ``parameters``: of the architectures that it names."""
    found = Parts()
    for key, value in given.items():
        if key in parameters:
            found.arch_params[key] = value
        elif key in OF_FIT:
            found.fit[OF_FIT[key]] = value
        elif key in COMPILE_KEYS or key in OF_OPTIMIZERS:
            found.compile[key] = value
        elif key != ARCHITECTURE:
            raise unknown(key, parameters, where)
    return found


def unknown(key: str, parameters: Collection[str], where: str, hint: str | None = None) -> InvalidArgument:
    """The error for a key that a configuration cannot have.

    Its hint lists the nearest keys that there are. If none is near, it is ``hint``, or lists the usual keys.
    """
    import difflib  # only now: a new session takes a millisecond for it

    if key == "epochs":
        return InvalidArgument(
            f"{where}: 'epochs' is no parameter of a configuration.",
            hint="The argument epochs says how often a run goes over all rows; passes how often a visit goes over the"
            " rows of its segment.",
        )
    known = sorted({*(RESERVED - {"epochs", "sample_weight_mode", "lr", "decay"}), *parameters})
    near = difflib.get_close_matches(key, known, n=5, cutoff=0.5)
    listed = ", ".join(
        near or sorted({ARCHITECTURE, "loss", "metrics", "optimizer", "learning_rate", *OF_FIT, *parameters})
    )
    return InvalidArgument(
        f"{where}: there is no parameter {key[:80]!r}.",
        hint=hint if hint and not near else f"{'The nearest are' if near else 'Parameters are'}: {listed}.",
    )


def require_parameters(parameters: Collection[str], where: str) -> None:
    """Refuse parameters of an architecture that a configuration could not tell from others."""
    taken = sorted(RESERVED & set(parameters))
    if taken:
        raise InvalidArgument(
            f"{where}: the architecture's parameter '{taken[0]}' has the name of a parameter of training.",
            hint=f'Rename it, for instance "${taken[0]}_" in the JSON.',
        )
