"""The fit parameters of a configuration, and the key of the configurations that can be fused with it."""

from __future__ import annotations

import hashlib
import math
from typing import Any, NamedTuple

from cerebro_db.core.errors import ConfigurationFailed
from cerebro_db.nn.models.build import program_key

Json = dict[str, Any]


class Fit(NamedTuple):
    """Fit parameters, with the defaults of Keras."""

    batch_size: int
    epochs: int
    steps_per_epoch: int | None
    shuffle: bool

    @classmethod
    def of(cls, configuration: Json) -> Fit:
        fit = configuration.get("fit") or {}

        def whole(name: str, default: int) -> int:
            value = default if fit.get(name) is None else fit[name]
            if type(value) is not int or not 0 < value < 1 << 31:
                raise ConfigurationFailed(f"{name} has to be a positive whole number, not {value!r}")
            return value

        steps = whole("steps_per_epoch", 1) if fit.get("steps_per_epoch") is not None else None
        return cls(whole("batch_size", 32), whole("epochs", 1), steps, bool(fit.get("shuffle", True)))

    def rows_of(self, rows: int) -> int:
        """How many of a partition's rows one epoch trains on."""
        return min(rows, self.batch_size * (self.steps_per_epoch or rows))

    def steps_of(self, rows: int) -> int:
        """The steps of a visit to a partition with so many rows."""
        return self.epochs * math.ceil(self.rows_of(rows) / self.batch_size)


def fusion_key(configuration: Json, layout: Json | None) -> str:
    """Equal for configurations that can be fused: they have one compiled program and the same batches."""
    text = f"{program_key(configuration, layout)} {tuple(Fit.of(configuration))}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]
