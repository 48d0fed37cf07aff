"""What a run's owner, or who may see the run, asks about it from a session of their own."""

from __future__ import annotations

import json
from typing import Any

from cerebro_db.core.search.steering import Standing

from ..run import no_such_run
from .base import OWN, OWN_IN_VIEW, Log


class Known(Log):
    """The plan of a run, and how its models stand."""

    def standings(self, owner: str) -> list[Standing]:
        """The models of a run that the caller may see."""
        found = self._all(
            "SELECT model, mst_key, status, model_id, compile_params, fit_params FROM cerebro.leaderboard"
            " WHERE run = %s AND owner = %s ORDER BY model",
            owner,
        )
        return [Standing(*row) for row in found]

    def size(self, owner: str) -> tuple[int, int]:
        """The planned epochs and the segments of a run that the caller may see."""
        ((epochs, segments),) = self._all(
            "SELECT epochs, segments FROM cerebro.run_plan WHERE run = %s AND owner = %s", owner
        )
        return epochs, segments

    def arch_table(self, owner: str) -> str:
        """The table of architectures that a run was made from."""
        return str(self._value("SELECT arch_table FROM cerebro.run_plan WHERE run = %s AND owner = %s", owner))

    def options(self) -> dict[str, Any] | None:
        """The options of a run of the caller's."""
        found = self._value(f"SELECT options::text FROM cerebro.run WHERE {OWN}")
        return None if found is None else json.loads(found)

    def fingerprints(self) -> list[str]:
        """The checksums of the packed rows that a run of the caller's trains on, segment by segment."""
        layout = json.loads(self._value(f"SELECT layout::text FROM cerebro.run WHERE {OWN}"))
        return [partition["sha256"] for partition in layout["partitions"]]

    def configurations(self, *, added: bool = True) -> dict[int, list[Any]]:
        """mst_key -> architecture, compile and fit of a run of the caller's.  ``added``: also what decisions added."""
        return {
            key: [json.loads(text) for text in texts]  # type: ignore[arg-type]
            for key, *texts in self._all(
                "SELECT mst_key, a.architecture::text AS architecture, compile::text AS compile, fit::text AS fit"
                f" FROM cerebro.configuration JOIN cerebro.architecture a USING (run, owner, model_id) WHERE {OWN}"
                f" AND compile <> '{{}}'{'' if added else ' AND chosen IS NULL'}"
            )
        }

    def compile_params(self) -> dict[int, str]:
        """mst_key -> the compile parameters as they were given."""
        return dict(self._all(f"SELECT mst_key, compile_params FROM cerebro.configuration WHERE {OWN}"))  # type: ignore[arg-type]

    def compile_texts(self) -> str:
        """The compile parameters of all configurations, as text."""
        return " ".join(
            text for (text,) in self._all(f"SELECT compile::text AS compile FROM cerebro.configuration WHERE {OWN}")
        )

    def seconds_left(self) -> float | None:
        """The estimate of the view; None as long as there is none."""
        return self._value(f"SELECT seconds_left FROM cerebro.run_progress WHERE {OWN_IN_VIEW}")

    def require_own(self) -> None:
        if not self._all(f"SELECT 1 FROM cerebro.run WHERE {OWN}"):
            raise no_such_run(self.run)
