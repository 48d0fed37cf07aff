"""What a run needs in order to train on rows with folds or groups, and what it cannot do with them.

Each configuration has a model on all rows, which the model tables get, and one for each fold.  Those say how good the
configuration is: a model of a fold is evaluated on the rows of its fold, and trained on all others.  Each group has all
of these, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cerebro_db.core.errors import InvalidArgument, LimitExceeded
from cerebro_db.core.options import NEW_GROUPS
from cerebro_db.core.packing.subgroups import MOST_MODELS
from cerebro_db.core.run_options import RunOptions
from cerebro_db.core.search import named_methods
from cerebro_db.core.search.policy import Policy
from cerebro_db.core.texts import counted

from ...packing.packed import Packed
from ..record.run import groups_with_models, variants

ERROR = NEW_GROUPS[0]


# Why a function refuses rows with groups, and what to do.
ONLY_FIT = ("this function does not train one model for each group", "cerebro.fit() does.")
# Methods that stop models and need no plan for the whole run: they compare the models of one group.
WITHIN_GROUPS = named_methods.STOPPING.only(lambda one: not (issubclass(one, Policy) and one.timed))


def require_whole(source: Packed) -> None:
    """Refuse rows that are packed with folds or groups."""
    require_no_groups(source, *ONLY_FIT)
    if source.dataset.folds:
        raise InvalidArgument(
            f"'{source.relation.text}' is packed with folds, which this function does not know.",
            hint="cerebro.fit() and cerebro.search() train on it.",
        )


def require_no_groups(source: Packed, why: str, hint: str) -> None:
    if source.dataset.has_groups:
        raise InvalidArgument(f"'{source.relation.text}' is packed with group_by, and {why}.", hint=hint)


def require_same_groups(source: Packed, validation: Packed) -> None:
    if source.dataset.has_groups and validation.layout.groups != source.layout.groups:
        raise InvalidArgument(
            f"validation_table: '{validation.relation.text}' is not packed with the groups of"
            f" '{source.relation.text}'.",
            hint="cerebro.pack() packs both in one call: group_by with validation or validation_table.",
        )


def require_possible_groups(source: Packed, chosen: RunOptions, configurations: int) -> None:
    """Refuse what has no meaning for one model for each group, or is not possible yet.

    ``configurations``: how many there are; of a search, how many there may be.
    """
    if not source.dataset.has_groups:
        for name, value in (
            ("least_group_rows", chosen.least_group_rows > 1),
            ("groups_start", chosen.groups_wait),
            ("new_groups", chosen.new_groups != ERROR),
        ):
            if value:
                raise InvalidArgument(
                    f"option '{name}' needs groups, and '{source.relation.text}' has none.",
                    hint="Pack the rows with group_by, or leave the option out.",
                )
        return
    if chosen.copies_rows:
        raise InvalidArgument(
            f"'{source.relation.text}' is packed with group_by, and the option parallel => copies is for whole tables.",
            hint="Leave the option parallel out: models of small groups stay on one segment in any case.",
        )
    if chosen.visit_rows is not None:
        raise InvalidArgument(
            "option 'visit_rows' cannot be used with groups: their numbers of rows differ so much that an epoch would"
            " mean something else for the models of each.",
            hint="Leave 'visit_rows' out: a model of a group trains on the rows of its group alone.",
        )
    method = chosen.method["name"] if chosen.method is not None else None
    known = (WITHIN_GROUPS,) if chosen.space is None else (named_methods.SAMPLING, WITHIN_GROUPS)
    if method is not None and not any(method in some for some in known):
        raise InvalidArgument(
            f"the method '{method}' cannot be used with groups: it does not decide within each group.",
            hint=f"Methods that can be used: {', '.join(name for some in known for name in some.names())}.",
        )
    folds, least = source.dataset.folds, chosen.least_group_rows
    if folds and chosen.groups_wait:
        raise InvalidArgument(
            "option 'groups_start' cannot be used with folds: models of groups would start with weights that were"
            " trained on the rows of their fold.",
            hint="Leave 'groups_start' out, or pack the rows without folds.",
        )
    groups = len(groups_with_models(source.dataset, least))
    models = configurations * (len(variants(source.dataset, least)) + 1)
    if models > MOST_MODELS:
        within = f", each with {folds} folds" if folds else ""
        raise LimitExceeded(
            f"{counted(configurations, 'configuration')} for {groups:,} groups and all rows{within}: {models:,} models;"
            f" a run can have {MOST_MODELS:,}.",
            hint=f"Give fewer configurations{' or folds' if folds else ''}, raise the option least_group_rows, or group"
            " by columns with fewer values.",
        )


def require_no_validation(table: str, validation_table: str | None) -> None:
    """``table`` is packed with folds."""
    if validation_table is not None:
        raise InvalidArgument(
            f"validation_table cannot be given: '{table}' is packed with folds, and each model is"
            " evaluated on the rows of its fold.",
            hint="Leave validation_table out. cerebro.evaluate() evaluates a trained model on the rows of a query.",
        )


def require_possible(source: Packed, chosen: RunOptions, *, warm_start: bool = False) -> None:
    """Refuse what would let a model of a fold know the rows of its fold, or has no meaning with folds."""
    if not source.dataset.folds:
        return
    if warm_start:
        raise InvalidArgument(
            f"warm_start cannot be used: '{source.relation.text}' is packed with folds, and the models"
            " in the table may have been trained on the rows of all folds.",
            hint="Leave warm_start out.",
        )
    require_options(chosen.stop_when, chosen.method)


def require_options(stop_when: str | None, method: Mapping[str, Any] | None) -> None:
    """Refuse options that have no meaning with folds."""
    if stop_when is not None:
        raise InvalidArgument(
            "option 'stop_when' cannot be used with folds: it would stop each model of a configuration"
            " after another epoch, and the model on all rows is none of those that the mean is made of.",
            hint="Leave 'stop_when' out. keep => best keeps the epoch that is best in the mean over the folds.",
        )
    name = method["name"] if method is not None else None
    if name is not None and name not in named_methods.INDEPENDENT:
        raise InvalidArgument(
            f"the method '{name}' cannot be used with folds: it would compare models of different folds.",
            hint=f"Methods that can be used: {', '.join(named_methods.INDEPENDENT)}.",
        )
