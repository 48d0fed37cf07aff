"""A flat configuration: one object with the architecture, its parameters, and the parameters of training.

    {"architecture": "mlp", "units": 64, "optimizer": "adam", "learning_rate": 0.01, "batch_size": 32, "passes": 1}

Every other name than those of the architecture, of Keras' compile() and of its fit() is an argument of the optimizer.
``passes`` is Keras' fit parameter epochs: how often a visit goes over the rows of its segment.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from .. import codec
from ..errors import CerebroError, InvalidArgument
from ..records import dataclass, field
from . import custom, params, writing
from .calls import read_call
from .custom import Known
from .params import COMPILE_KEYS, FIT_KEYS
from .vocabulary import OPTIMIZERS

ARCHITECTURE, PASSES = "architecture", "passes"
FROZEN = "frozen"  # a parameter of every architecture, as are the next ones
LORA_RANK, LORA_ALPHA, LORA_DROPOUT = "lora_rank", "lora_alpha", "lora_dropout"
BOTTLENECK, BIASES, ADAPTER_LAYERS = "bottleneck", "biases", "adapter_layers"
ADAPTERS = frozenset({LORA_RANK, LORA_ALPHA, LORA_DROPOUT, BOTTLENECK, BIASES, ADAPTER_LAYERS})
OF_EVERY_ARCHITECTURE = ADAPTERS | {FROZEN}  # what says how its layers train
ARCH_PARAMS, COMPILE, FIT = "arch_params", "compile", "fit"
OF_FIT = {PASSES if name == "epochs" else name: name for name in FIT_KEYS}  # here -> in Keras
OF_OPTIMIZERS = ({one for entry in OPTIMIZERS.entries.values() for one in entry.arguments} | {"lr", "decay"}) - {"name"}
OF_STEPS = {*OF_OPTIMIZERS, "optimizer", "batch_size", PASSES, "steps_per_epoch", "shuffle"}  # that trees have not
IN_KERAS = {name: key for key, name in OF_FIT.items()}  # in Keras -> here
LISTS = {"texts", "numbers", "indices", "axes", "thresholds"}  # value types
WITH_SEVERAL = {"loss", "metrics", "weighted_metrics", "loss_weights", "class_weight"} | {
    name for entry in OPTIMIZERS.entries.values() for name, value_type in entry.arguments.items()
    if value_type.rstrip("?!") in LISTS
}  # fmt: skip
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

    def canonical(self, known: Known = custom.NONE) -> tuple[dict[str, Any], dict[str, Any]]:
        """The canonical compile and fit parameters."""
        compiled = dict(self.compile)
        if "optimizer" in compiled:
            name, own = read_call(compiled["optimizer"], "optimizer")
            shared = {key: compiled.pop(key) for key in [*compiled] if key not in COMPILE_KEYS}
            compiled["optimizer"] = {"class_name": name, "config": {**own, **shared}}
        return params.canonical_compile(compiled, known), params.canonical_fit(dict(self.fit))


def flatten(arch_params: Mapping[str, Any], compile: Mapping[str, Any], fit: Mapping[str, Any]) -> dict[str, Any]:
    """The flat parameters of a configuration, without its architecture: what ``recorded`` takes apart again.

    ``compile`` and ``fit`` are canonical.  Parameters of fit that have their default are left out, but for batch_size
    and passes.  Empty for a configuration that could not be trained, but for the parameters of its architecture.
    """
    flat = dict(arch_params)
    if compile:
        optimizer = compile["optimizer"]
        own = dict(optimizer["config"])
        # The name of an optimizer has no key of its own.
        named = {"name": own.pop("name")} if "name" in own else {}
        # Without metrics, the canonical list is empty.
        given = {key: value for key, value in compile.items() if value is not None and (key, value) != ("metrics", [])}
        flat.update((key, value) for key, value in given.items() if key != "optimizer")
        kind = optimizer["class_name"]
        flat["optimizer"] = {"class_name": kind, "config": named} if named else kind
        flat.update((name, _shorter(value)) for name, value in own.items())
    defaults = params.fit_params(None)
    for name, value in fit.items():
        if value != defaults.get(name) or name in ("batch_size", "epochs"):
            flat[IN_KERAS.get(name, name)] = value
    return flat


def _shorter(value: Any) -> Any:
    """A learning-rate schedule without its module, which follows from its class."""
    if isinstance(value, Mapping) and "class_name" in value:
        return {"class_name": value["class_name"], "config": value["config"]}
    return value


def of_architecture(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of the architecture among flat parameters: no other parameter can have their names."""
    return {name: value for name, value in parameters.items() if name not in RESERVED}


def recorded(parameters: object, where: str, known: Known = custom.NONE) -> tuple[dict[str, Any], dict[str, Any]]:
    """The canonical compile and fit parameters in what ``flatten`` made; an error if it made no such value."""
    given: dict[str, Any] = codec.read(dict[str, Any], parameters, where)
    try:
        return parts(given, of_architecture(given), where).canonical(known)
    except CerebroError as error:
        if not error.message.startswith(where):
            error.message = f"{where}: {error.message}"
        raise


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


def compounds(given: Mapping[str, Any], single_valued: Collection[str]) -> Iterator[tuple[str, Any]]:
    """The lists, and the objects that are none of Keras, of parameters that take one value.

    ``single_valued``: the parameters of the architectures that do.
    """
    for key, value in given.items():
        if key not in single_valued and (key not in RESERVED or key == ARCHITECTURE or key in WITH_SEVERAL):
            continue
        if isinstance(value, list) or (isinstance(value, dict) and "class_name" not in value):
            yield key, value


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
    if key in (ARCH_PARAMS, COMPILE, FIT):
        return InvalidArgument(
            f"{where}: there is no parameter {key!r}.",
            hint=f"Parameters stand side by side: write what is in {key} without it. {EXAMPLE}",
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
    taken = sorted({*RESERVED, *OF_EVERY_ARCHITECTURE} & set(parameters))
    if taken:
        raise InvalidArgument(
            f"{where}: the architecture's parameter '{taken[0]}' has the name of a parameter of training.",
            hint=f'Rename it, for instance "${taken[0]}_" in the JSON.',
        )
