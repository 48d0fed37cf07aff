"""The states of a run's models: which are on record, and where they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cerebro_db.core import codec
from cerebro_db.core.events import HopKind, Initial
from cerebro_db.core.options import BEST, LAST
from cerebro_db.core.protocol import FrozenPart
from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import Sql, literal, sql

from .. import state_tables
from ..run import SMALL_STATE, StoredWeights
from .base import ME, OF_ALL_ROWS, OWN, OWN_IN_VIEW, Part, among

# Of a state that was stored.  The state after a visit is not, if the next one followed in the same order; where a user
# has written such a row by hand, no state has the empty checksum.
CHECKSUM = sql("COALESCE(h.state_sha256, '')")


@dataclass(frozen=True)
class StateOnRecord:
    """A state of a model, its last or its best: where it is, and what is known of it."""

    which: str
    model: int
    key: int
    hop: int
    epoch: int
    segment: int
    state_bytes: int
    state_sha256: str
    weights_offset: int
    weights_bytes: int
    frozen: FrozenPart | None = None  # the part that is in a table of its own

    def place(self, storage: str, dist_keys: Sequence[int]) -> state_tables.StatePlace:
        return state_tables.StatePlace(
            storage=storage,
            model=self.model,
            hop=self.hop,
            which=self.which,
            state_bytes=self.state_bytes,
            frozen=self.frozen,
            dist_key=int(dist_keys[self.segment]),
        )


@dataclass(frozen=True)
class EarlierModel:
    """A model of an earlier run, for a warm start."""

    states: list[StateOnRecord]  # the best one, if it is kept, and the last
    storage: str
    dist_keys: list[int]
    compile: str
    architecture: str


class States(Part):
    """The last states, and those that are kept as the best."""

    def last_states(self, key: int | None = None) -> list[StateOnRecord]:
        """The state after the last committed hop of each model, or of the models of one configuration."""
        return self._states(LAST, sql(""), key)

    def best_states(self, key: int | None = None) -> list[StateOnRecord]:
        """The state that is kept as the best of each model, or of the models of one configuration."""
        kept = sql(
            "SELECT o.model, o.hop FROM cerebro.objective o WHERE o.run = {run} AND o.owner = {me} AND o.kept",
            run=self.run,
            me=ME,
        )
        return self._states(BEST, sql(" AND {kept}", kept=among("model hop", kept)), key)

    def _states(self, which: str, also: Sql, key: int | None) -> list[StateOnRecord]:
        one = sql("") if key is None else sql(" AND configuration = {key}", key=key)
        configurations: dict[int, int] = dict(
            self._all(sql("SELECT model, configuration FROM cerebro.model WHERE {own}{one}", own=OWN, one=one))
        )
        found = self._all(
            sql(
                "SELECT DISTINCT ON (model) model, hop, epoch, segment, state_bytes, {checksum} AS state_sha256,"
                " weights_offset, weights_bytes FROM cerebro.hop h"
                " WHERE {own} AND kind <> {train_replica} AND {of_models}{also} ORDER BY model, hop DESC",
                checksum=CHECKSUM,
                own=OWN,
                train_replica=literal(HopKind.TRAIN_REPLICA),
                of_models=self._of_models(None if key is None else sql("b.configuration = {key}", key=key)),
                also=also,
            )
        )
        states = [
            StateOnRecord(which, model, configurations[model], *others)
            for model, *others in found
            if model in configurations
        ]
        parts = self.frozen_parts(
            [(one.model, one.hop) for one in states if not state_tables.is_small(one.state_bytes)]
        )
        return [replace(one, frozen=parts.get((one.model, one.hop))) for one in states] if parts else states

    def frozen_parts(self, states: Sequence[tuple[int, int]]) -> dict[tuple[int, int], FrozenPart]:
        """Model and hop -> the part of the state that is in a table of its own, of those states that have one."""
        if not states:
            return {}
        found = self._all(
            sql(
                "SELECT model, hop, frozen::text AS frozen FROM cerebro.hop WHERE {own} AND {among}",
                own=OWN,
                among=state_tables.among(states),
            )
        )
        return {
            (model, hop): codec.decode(FrozenPart, codec.from_json(text), f"the frozen part of model {model}")
            for model, hop, text in found
            if text is not None
        }

    def states_of_best_models(self, which: str, key: int | None = None, fold: int | None = None) -> list[StateOnRecord]:
        """What the model tables get: of the best model of each configuration, or of one, the best or the last state.

        ``fold``: among the models of this fold.  None: among those on all rows.
        A model of which no epoch was the best has its last state.
        """
        found = self._all(
            sql(
                "SELECT DISTINCT ON (configuration) model FROM cerebro.leaderboard b WHERE {own_in_view}"
                " AND fold {wanted} AND {of_all_rows} ORDER BY configuration, rank, model",
                own_in_view=OWN_IN_VIEW,
                wanted=_is_fold(fold),
                of_all_rows=OF_ALL_ROWS,
            ),
            *([] if fold is None else [fold]),
        )
        best = {model for (model,) in found}
        states = {state.model: state for state in self.last_states(key) if state.model in best}
        if which == BEST:
            states.update({state.model: state for state in self.best_states(key) if state.model in states})
        return list(states.values())

    def states_of_groups(self, which: str, fold: int | None = None) -> list[StateOnRecord]:
        """Of each group and configuration the best or the last state of its best model, if that completed an epoch.

        ``fold``: among the models of this fold.  None: among those on all rows of the group.
        """
        found = self._all(
            sql(
                "SELECT DISTINCT ON (configuration, group_number) model, status, epochs_done FROM cerebro.leaderboard"
                " WHERE {own_in_view} AND fold {wanted} AND group_number IS NOT NULL"
                " ORDER BY configuration, group_number, rank, model",
                own_in_view=OWN_IN_VIEW,
                wanted=_is_fold(fold),
            ),
            *([] if fold is None else [fold]),
        )
        best = {model for model, status, epochs in found if status != "failed" and epochs > 0}
        states = {state.model: state for state in self.last_states() if state.model in best}
        if which == BEST:
            states.update({state.model: state for state in self.best_states() if state.model in states})
        return list(states.values())

    def without_epoch(self, fold: int | None = None) -> list[int]:
        """The configurations none of whose models of this fold has completed an epoch."""
        found = self._all(
            sql(
                "SELECT configuration FROM cerebro.leaderboard b"
                " WHERE {own_in_view} AND fold {wanted} AND {of_all_rows}"
                " GROUP BY configuration HAVING max(epochs_done) = 0 ORDER BY configuration",
                own_in_view=OWN_IN_VIEW,
                wanted=_is_fold(fold),
                of_all_rows=OF_ALL_ROWS,
            ),
            *([] if fold is None else [fold]),
        )
        return [key for (key,) in found]

    def earlier_model(self, key: int) -> EarlierModel | None:
        """The best model of a configuration, to the run's owner in the caller's session."""
        found = self._all(
            sql(
                "SELECT r.storage, r.dist_keys, c.compile::text, a.architecture::text"
                " FROM cerebro.run r JOIN cerebro.configuration c USING (run, owner)"
                " JOIN cerebro.architecture a USING (run, owner, model_id) WHERE {own} AND configuration = {}",
                own=OWN,
            ),
            key,
        )
        states = {state.hop: state for which in (LAST, BEST) for state in self.states_of_best_models(which, key)}
        return EarlierModel(list(states.values()), *found[0]) if found and states else None

    def weights_after(self, model: int, hop: int, dist_keys: Sequence[int]) -> StoredWeights:
        """Where the weights of a model are after a hop."""
        ((segment, first, size),) = self._all(
            sql(
                "SELECT segment, weights_offset, weights_bytes FROM cerebro.hop"
                " WHERE {own} AND model = {} AND hop = {}",
                own=OWN,
            ),
            model,
            hop,
        )
        parts = self.frozen_parts([(model, hop)] if size >= SMALL_STATE else [])
        return StoredWeights(model, hop, dist_keys[segment], first, size, parts.get((model, hop)))

    def starts(self, dist_keys: Sequence[int]) -> dict[int, StoredWeights]:
        """Model of a group -> the weights of another model that it starts from."""
        children = sql(
            "FROM cerebro.model WHERE run = {run} AND owner = {me} AND initial = {weights} AND parent IS NOT NULL",
            run=self.run,
            me=ME,
            weights=literal(Initial.WEIGHTS),
        )
        parents = {
            model: (parent, hop)
            for model, parent, hop in self.ask(
                sql("SELECT model, parent, parent_hop {children}", children=children), ()
            )
        }
        if not parents:
            return {}
        hops = self._all(
            sql(
                "SELECT model, hop, segment, weights_offset, weights_bytes FROM cerebro.hop"
                " WHERE {own} AND {of_parents}",
                own=OWN,
                of_parents=among("model hop", sql("SELECT parent, parent_hop {children}", children=children)),
            )
        )
        parts = self.frozen_parts([(model, hop) for model, hop, *_, size in hops if size >= SMALL_STATE])
        known = {
            (model, hop): StoredWeights(model, hop, dist_keys[segment], first, size, parts.get((model, hop)))
            for model, hop, segment, first, size in hops
        }
        return {model: known[parent] for model, parent in parents.items() if parent in known}

    def state_after(self, model: int, hop: int) -> tuple[str | None, int]:
        """The checksum of a model's state after a hop, and the segment on which it was stored."""
        if hop == 0:
            return self._value(
                sql("SELECT initial_sha256 FROM cerebro.model WHERE {own} AND model = {}", own=OWN), model
            ), 0
        where = sql("WHERE {own} AND model = {} AND hop = {}", own=OWN)
        ((sha256, segment),) = self._all(
            sql(
                "SELECT {checksum} AS state_sha256, segment FROM cerebro.hop h {where}", checksum=CHECKSUM, where=where
            ),
            model,
            hop,
        )
        return sha256, segment


def _is_fold(fold: int | None) -> Sql:
    return sql("IS NULL") if fold is None else sql("= {}")
