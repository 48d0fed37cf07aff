"""Every function that the SQL of the extension calls: ``api.NAME(plpy, …)``; also those of packages beside this one.

A module is imported when one of its functions is first called, because importing all of them would take a new session
longer than most calls.
"""

from __future__ import annotations

import gc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any


class _Quietly:
    """Leaves the frames of our code out of an error that explains itself: PL/Python writes them into its context."""

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None and traceback is not None and getattr(error, "explained", False):
            traceback.tb_next = None  # before Python 3.11, the frame of the SQL function stays
            error.__traceback__ = None


QUIETLY = _Quietly()

FUNCTIONS = {
    "packing.architecture": ("architecture",),
    "packing.kept_rows": ("packed_rows",),
    "packing.pack": ("pack",),
    "packing.pack_plain": ("pack_plain",),
    "packing.prepared_columns": ("prepared_columns",),
    "graphs.propagate": ("propagate",),
    "tasks.make_task": ("make_task",),
    "database.cancellation": ("admit", "hold", "is_dispatching"),
    "definitions.added": ("add_architecture",),
    "definitions.custom_functions": ("add_custom_function", "drop_custom_function"),
    "definitions.references": ("registered_table",),
    "doctor.doctor": ("doctor",),
    "packing.rows.word_pieces": ("word_pieces",),
    "platform.machine": ("gpus_here",),
    "registry.aliases": ("roll_back", "set_alias"),
    "registry.rights": ("share", "unshare"),
    "registry.steps": ("run_step",),
    "runs.elsewhere": ("elsewhere",),
    "runs.planned": ("plan",),
    "runs.lifecycle": ("cancel", "to_forget", "wait"),
    "runs.steering": ("add_configuration", "clone_model", "extend", "go_on", "set_budget", "stop_model"),
    "runs.tables.model_tables": ("materialize_run",),
    "segment.functions": ("data_in", "predict_chunk", "state_in", "state_out", "work", "worker_close", "worker_open"),
    "judging.backtest": ("backtest",),
    "judging.bouts": ("bouts",),
    "judging.drift": ("drift_rows",),
    "judging.transitions": ("transitions",),
    "predicting.into_table": ("predict_into",),
    "judging.judged_rows": ("judging",),
    "predicting.predictor": ("create_predictor",),
    "predicting.streaming": ("embedded",),
    "sessions.logins": ("setup_logins",),
    "sessions.warm_up": ("warm_up", "warm_up_here"),
    "verbs.calibrating": ("calibrate",),
    "verbs.dropping": ("drop_model", "unregister"),
    "verbs.ensembling": ("ensemble",),
    "verbs.evaluating": ("evaluate", "explained", "importance", "validation_explained", "validation_sample"),
    "verbs.more_rows": ("append", "pack_like", "related_rows", "with_related"),
    "verbs.registering": ("register",),
    "verbs.resuming": ("drive", "resume"),
    "verbs.retraining": ("retrain",),
    "verbs.beginning": ("fit", "search_space", "train"),
}
RESIDENT = ".predicting.resident_predictor"
MODULE_OF = {name: f".{module}" for module, names in FUNCTIONS.items() for name in names}


def __getattr__(name: str) -> Any:
    """The function of that name, of this package or of one beside it.  Python calls this for a name that is new."""
    module = MODULE_OF.get(name) or _module(".neighbours").module_of(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    function = globals()[name] = getattr(imported(module), name)
    return function


def predict_rows(plpy: Any, *of_old_sql: Any, **arguments: Any) -> Any:
    """By a resident predictor, which needs hardly any imports; else, or from where it stops, by all the rest."""
    begun = None if of_old_sql else imported(RESIDENT).begun(plpy, arguments)
    if isinstance(begun, list):
        return begun
    return imported(".predicting.streaming").predict_rows(plpy, *of_old_sql, begun=begun, **arguments)


def imported(module: str) -> Any:
    """A module, of this package or of one beside it.

    The garbage collector would take a tenth of the time, and find nothing.
    """
    collects = gc.isenabled()
    try:
        gc.disable()
        if module != RESIDENT:
            _begin_session()
        return _module(module)
    finally:
        if collects:
            gc.enable()


def _begin_session() -> None:
    """Once in each session, at its first call of a function, unless a resident predictor does it all."""
    global _begun
    if not _begun:
        _module(".segment.scratch").remove_leftovers()
        _begun = True


def _module(module: str) -> Any:
    from importlib import import_module

    return import_module(module, __package__)


_begun = False
