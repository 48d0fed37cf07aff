"""The search policy of a run, made from its options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cerebro_db.core.architecture import sources
from cerebro_db.core.run_options import RecordedSpace
from cerebro_db.core.search import named_methods
from cerebro_db.core.search.budget import Budget
from cerebro_db.core.search.methods.never_stop import NeverStop
from cerebro_db.core.search.methods.tpe import Suggest
from cerebro_db.core.search.named_methods import Proposals
from cerebro_db.core.search.policy import Policy
from cerebro_db.core.search.spaces import read_space
from cerebro_db.core.search.variants import Varied

from ..record.log import RunLog
from ..record.run import Run, variants


def policy_of(run: Run, log: RunLog, suggest: Suggest) -> Policy:
    """A replay repeats the decisions of the earlier run, and asks no policy."""
    spec, search = run.options.method, run.options.space
    if run.options.replay is not None:
        return NeverStop()
    policy = _named(spec, search, run, log, suggest) if spec is not None else NeverStop()
    others = variants(run.source, run.options.least_group_rows)
    if not others:
        return policy
    wait = run.options.groups_wait
    return Varied(policy, tuple(others), wait, run.epochs, log.plan.planned_configurations() if wait else None)


def _named(spec: Mapping[str, Any], search: RecordedSpace | None, run: Run, log: RunLog, suggest: Suggest) -> Policy:
    if search is None:
        return named_methods.policy_of(spec, run.epochs, log.plan.planned_configurations())
    given = log.plan.given_architectures()
    labels = read_space.labels(search.space) or sorted(given)
    # A policy that is to begin configurations counts them, not their models, unless the models on all rows train first.
    models = 1 if run.options.groups_wait else len(variants(run.source, run.options.least_group_rows)) + 1
    layout = run.source.layout
    known = {
        label: sources.of_log(given[label if isinstance(label, int) else place], layout, "architecture")
        for place, label in enumerate(labels, 1)
    }
    proposals = Proposals(
        space=read_space.read(search.space, known),
        seed=run.seed,
        at_once=-(-search.at_once // models),
        suggest=suggest,
        past=search.past,
    )
    return named_methods.policy_of(spec, run.epochs, search.configurations, proposals)


def budget_of(run: Run) -> Budget:
    """The budget that the run began with."""
    return run.options.budget or Budget()
