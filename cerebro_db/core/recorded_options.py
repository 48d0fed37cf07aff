"""The options of a run as they are on record: those that a user names, and what the functions that made the run add.

Users write the rows about their own runs, so a resumed run reads its options here.
"""

from __future__ import annotations

from typing import Any

from .documents import Fields
from .engines import AUTO, AUTO_ENGINES, ENGINES
from .errors import CerebroError
from .metrics import MAX, MIN
from .options import KEEP, LAST, OPTIONS, STOP
from .scheduling.plan import MOST_HOPS
from .search import methods
from .search.budget import Budget
from .search.space import MOST_POINTS
from .search.tpe import COMPLETE, PRUNED, RUNNING

IN_SESSION = "in_session"  # whether the run began in its caller's own session
EVALUATE_TRAINING = "evaluate_training"  # models are evaluated on the training table, too
AVERAGING = "averaging"  # in every epoch a replica of a model trains on each segment; their states are averaged
MADLIB = "madlib"  # of a run that one of these functions began: what its model tables must have
SINGLE, MULTIPLE, AUTOML = "madlib_keras_fit", "madlib_fit_multiple_model", "madlib_keras_automl"
MOST_GPUS = MOST_PROCESSORS = 1 << 20
MOST_PAST = 100_000
# Those that choose_options leaves out have no value in a run without them.
DEFAULTS: dict[str, Any] = {
    "engine": "tensorflow", "deterministic": False, "threads": 1, "execution": None, IN_SESSION: False, "nan": STOP,
    "gpus": [], "hang_after": OPTIONS["hang_after"].default, "fuse": None, "read_ahead": None, "cache_mb": None,
    "synchronous_commit": None, "stop_when": None, "warm_start": False,
}  # fmt: skip


def read(document: Any, where: str) -> dict[str, Any]:
    """The options; BadData, beginning with ``where``, if one of them cannot be.

    Those of later versions are left out.
    """
    fields = Fields(document, where)
    found = dict(DEFAULTS)
    for name, option in OPTIONS.items():
        value = fields.value(name, None)
        if value is None or name in ("search", "budget"):
            continue
        if name == "threads":  # by default as many as there are processors
            found[name] = fields.whole(name, 1, MOST_PROCESSORS)
            continue
        try:
            option.check(value)
        except CerebroError as error:
            raise fields.wrong(f"cannot be used: {error.message}", name) from None
        found[name] = value
    for name in (IN_SESSION, EVALUATE_TRAINING, AVERAGING, "warm_start"):
        if fields.value(name, None) is not None:
            found[name] = fields.flag(name)
    if found["engine"] == AUTO or fields.has("among"):
        found["among"] = list(fields.texts("among", len(ENGINES)))
        if not set(found["among"]) <= set(AUTO_ENGINES) or len(found["among"]) < 2:
            raise fields.wrong(f"must be some of {', '.join(AUTO_ENGINES)}", "among")
    if fields.value("gpus", None):
        found["gpus"] = [_gpu(fields, one) for one in fields.list("gpus", 0, MOST_GPUS)]
    if fields.has("evaluate_after"):
        found["evaluate_after"] = list(fields.wholes("evaluate_after", 0, MOST_HOPS, 1, MOST_HOPS))
    if "objective" in found:
        found["direction"] = fields.choice("direction", (MIN, MAX))
        found["keep"] = found.get("keep", LAST)
    if fields.value("budget", None) is not None:
        try:
            found["budget"] = Budget.from_json(fields.value("budget")).to_json()
        except ValueError as error:
            raise fields.wrong(str(error), "budget") from None
    if fields.value("space", None) is not None:
        found["space"] = _space(fields.object("space"))
    if fields.value("search", None) is not None:
        found["search"] = _search(fields, "space" in found)
    elif "space" in found:
        raise fields.wrong("is missing", "search")
    if fields.value(MADLIB, None) is not None:
        found[MADLIB] = _madlib(fields.object(MADLIB))
    assert found["nan"] in (STOP, KEEP)
    return found


def _gpu(fields: Fields, value: Any) -> int | None:
    if value is None or (type(value) is int and 0 <= value < MOST_GPUS):
        return value
    raise fields.wrong("must have the number of a GPU for each segment", "gpus")


def _search(fields: Fields, proposes: bool) -> dict[str, Any]:
    """A method with its parameters, as ``methods.checked`` gives it, or the brackets that AutoML has planned."""
    given = fields.value("search")
    if isinstance(given, dict) and given.get("name") == methods.PLANNED:
        planned = fields.object("search")
        planned.choice("name", (methods.PLANNED,))
        brackets = []
        for place, bracket in enumerate(planned.list("brackets", 1, MOST_POINTS)):
            inner = Fields({"bracket": bracket}, f"{planned.where}: brackets[{place}]")
            size, ends = inner.list("bracket", 2, 2)
            rounds = Fields({"models": size, "ends": ends}, inner.where)
            brackets.append((rounds.whole("models", 1, MOST_POINTS), rounds.wholes("ends", 1, 1000, 1, MOST_HOPS)))
        made = {"name": methods.PLANNED, "reduction": planned.number("reduction", 1.1, 1000), "brackets": brackets}
        planned.done()
        return made
    try:
        return methods.checked(given, proposes=proposes)
    except CerebroError as error:
        raise fields.wrong(f"cannot be used: {error.message}", "search") from None


def _space(fields: Fields) -> dict[str, Any]:
    """What a search proposes from.  The space itself is read with the architectures of the run."""
    past = []
    for one in fields.objects("past", 0, MOST_PAST):
        past.append(
            {
                "point": one.object("point").document,
                "state": one.choice("state", (COMPLETE, PRUNED, RUNNING)),
                "score": None if one.value("score") is None else one.number("score"),
                "epochs": one.whole("epochs", 0, MOST_HOPS),
            }
        )
        one.done()
    return {
        "space": fields.object("space").document,
        "configurations": None
        if fields.value("configurations") is None
        else fields.whole("configurations", 1, MOST_POINTS),
        "at_once": fields.whole("at_once", 1, 2**31),
        "past": past,
    }


def _madlib(fields: Fields) -> dict[str, Any]:
    """The fields of Asked in cerebro_plpy/madlib/model_tables.py."""
    written = fields.object("written").document
    for name, text in written.items():
        if text is not None:
            Fields(written, f"{fields.where}: written").text(name)
    function = fields.choice("function", (SINGLE, MULTIPLE, AUTOML))
    automl = _automl(fields.object("automl")) if function == AUTOML else None
    if automl is None and fields.value("automl", None) is not None:
        raise fields.wrong(f"belongs to {AUTOML} only", "automl")
    fields.done()
    return {"function": function, "written": written, "automl": automl}


def _automl(fields: Fields) -> dict[str, Any]:
    """The fields of AutoML in cerebro_plpy/madlib/automl_tables.py."""
    found = {
        "method": fields.text("method"),
        "params": fields.text("params"),
        "frequency": None if fields.value("frequency", None) is None else fields.whole("frequency", 1, MOST_HOPS),
        "random_state": None
        if fields.value("random_state", None) is None
        else fields.whole("random_state", -(2**63), 2**63 - 1),
        "use_gpus": fields.flag("use_gpus"),
        "selection": fields.text("selection"),
    }
    fields.done()
    return found
