"""What a run's owner, or who may see the run, asks about it from a session of their own."""

from __future__ import annotations

from typing import Any

from cerebro_db.core import codec, run_options
from cerebro_db.core.documents import decoded
from cerebro_db.core.names import Name, StoredName
from cerebro_db.core.packing.layout import Groups, Layout
from cerebro_db.core.run_options import RunOptions
from cerebro_db.core.search.request_checks import Standing
from cerebro_db.core.sql import sql

from ..run import no_such_run
from .base import OWN, Part

PACKED_VALIDATION = "packed_validation"


class Known(Part):
    """The plan of a run, and how its models stand."""

    def standings(self, owner: str) -> list[Standing]:
        """The models of a run that the caller may see."""
        found = self._all(
            sql(
                "SELECT model, configuration, status, parameters::text AS parameters, chosen::text AS chosen"
                " FROM cerebro.leaderboard"
                " WHERE run = {} AND owner = {} ORDER BY model"
            ),
            owner,
        )
        return [
            Standing(model, key, status, parameters, self._chosen(chosen))
            for model, key, status, parameters, chosen in found
        ]

    def _chosen(self, text: str | None) -> dict[str, Any] | None:
        where = f"what was chosen for a configuration of run {self.run}"
        return None if text is None else codec.read(dict[str, Any], decoded(text, where), where)

    def size(self, owner: str) -> tuple[int, int]:
        """The planned epochs and the segments of a run that the caller may see."""
        ((epochs, segments),) = self._all(
            sql("SELECT epochs, segments FROM cerebro.run_plan WHERE run = {} AND owner = {}"), owner
        )
        return epochs, segments

    def rows_and_objective(self, owner: str) -> tuple[Layout | None, int, str | None]:
        """The layout of the rows of a run that the caller may see, the number of segments, and the objective."""
        ((text, segments, objective),) = self._all(
            sql(
                "SELECT layout::text AS layout, segments, options ->> 'objective' AS objective FROM cerebro.run_plan"
                " WHERE run = {} AND owner = {}"
            ),
            owner,
        )
        # Of another user's run, nobody sees the layout.
        layout = None if text is None else Layout.parse(text, f"the layout of run {self.run}")
        return layout, segments, objective

    def options(self) -> RunOptions | None:
        """The options of a run of the caller's."""
        found = self._value(sql("SELECT options::text FROM cerebro.run WHERE {own}", own=OWN))
        where = f"the options of run {self.run}"
        return None if found is None else run_options.read(decoded(found, where), where)

    def rows(self) -> tuple[list[str], Groups | None]:
        """The checksums of the packed rows of a run of the caller's, segment by segment, and their groups."""
        found = self.layout()
        return [partition.sha256 for partition in found.partitions], found.groups

    def layout(self) -> Layout:
        """The layout of the packed rows of a run of the caller's."""
        text = self._value(sql("SELECT layout::text FROM cerebro.run WHERE {own}", own=OWN))
        return Layout.parse(text, f"the layout of run {self.run}")

    def tables_of_rows(self) -> dict[str, StoredName]:
        """The tables that the call of a run of the caller's named, by argument, and the packed rows for validation."""
        options = self.options()
        if options is None:
            return {}
        packed = self._value(sql("SELECT validation_table FROM cerebro.run WHERE {own}", own=OWN))
        return {**options.named, **({} if packed is None else {PACKED_VALIDATION: StoredName(packed)})}

    def configurations(self, *, added: bool = True) -> dict[int, list[Any]]:
        """Number -> architecture, compile and fit of a run of the caller's.  ``added``: also what decisions added."""
        return {
            key: [decoded(text, f"configuration {key} of run {self.run}") for text in texts]
            for key, *texts in self._all(
                sql(
                    "SELECT configuration, a.architecture::text AS architecture, compile::text AS compile, fit::text"
                    " AS fit"
                    " FROM cerebro.configuration JOIN cerebro.architecture a USING (run, owner, model_id) WHERE {own}"
                    " AND compile <> '{{}}'{whose}",
                    own=OWN,
                    whose=sql("") if added else sql(" AND chosen IS NULL"),
                )
            )
        }

    def tables_of_configurations(self) -> tuple[str, str]:
        """The model selection table and the table of architectures that a run of the caller's was given."""
        ((selection, architectures),) = self._all(
            sql("SELECT selection_table, arch_table FROM cerebro.run WHERE {own}", own=OWN)
        )
        return selection, architectures

    def compile_params(self) -> dict[int, str]:
        """Number of the configuration -> the compile parameters as they were given."""
        return dict(
            self._all(sql("SELECT configuration, compile_params FROM cerebro.configuration WHERE {own}", own=OWN))
        )  # type: ignore[arg-type]

    def compile_texts(self) -> str:
        """The compile parameters of all configurations, as text."""
        return " ".join(
            text
            for (text,) in self._all(
                sql("SELECT compile::text AS compile FROM cerebro.configuration WHERE {own}", own=OWN)
            )
        )

    def require_own(self) -> None:
        self._own_model_table()

    def model_table(self) -> Name:
        """The name of the model tables of a run of the caller's."""
        return Name.parse(self._own_model_table(), "model_table")

    def _own_model_table(self) -> str:
        found: str | None = self._value(sql("SELECT model_table FROM cerebro.run WHERE {own}", own=OWN))
        if found is None:
            raise no_such_run(self.run)
        return found
