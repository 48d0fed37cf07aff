"""What a model reads of the inputs of a packed table that come from related tables.

The parameter ``related`` of a kind chooses among them: aggregates, neighbourhoods (the latest related rows of an
example), both, or none.  The columns of rows that an example refers to are facts of the example itself: only a model
with none leaves them out.  An input that a model does not read is an input of the model all the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ...errors import BadData, InvalidArgument
from ...packing.layout import Layout, Variable
from ...packing.preparation import ByColumn
from ...packing.related import Latest
from ...parameters.kind_parameters import Keyword
from ...records import dataclass, field

Json = dict[str, Any]
Inputs = Sequence[tuple[Variable, str]]
Places = list[tuple[int, int]]  # from, and to but not with, along the last dimension

RELATED, ENCODER = "related", "encoder"
BOTH, AGGREGATES, NEIGHBOURHOODS, NONE = "both", "aggregates", "neighbourhoods", "none"
OF_RELATED = Keyword(BOTH, (BOTH, AGGREGATES, NEIGHBOURHOODS, NONE))


@dataclass(frozen=True)
class Neighbourhood:
    """The latest rows of one related table: the variables of a layout with the names of their inputs."""

    latest: Latest
    numbers: tuple[Variable, str]
    codes: tuple[Variable, str] | None


@dataclass(frozen=True)
class Read:
    """The inputs of a model."""

    plain: Inputs  # as they are read: of variables that are read in part, only these columns
    neighbourhoods: Sequence[Neighbourhood]
    windowed: bool
    parts: dict[str, tuple[tuple[int, ...], Places]] = field(default_factory=dict)  # the shape of the whole variable
    unread: Sequence[tuple[Variable, str, str]] = ()  # with the type that models have which read them
    every: int = 0  # of windows with targets of steps: the rows of a step


def read(layout: Layout, named: Sequence[str], chosen: Json, where: str) -> Read:
    """``named``: the names of the inputs."""
    inputs = list(zip(layout.inputs, named))
    windowed = layout.windows is not None
    if layout.related is None:
        return Read(inputs, (), windowed, every=0 if layout.windows is None else layout.windows.every)
    wanted = chosen[RELATED]
    near = neighbourhoods(layout, named)
    arrays = {one[1] for each in near for one in (each.numbers, each.codes) if one is not None}
    if near and windowed:
        raise BadData(
            f"{where}: windows of rows cannot have neighbourhoods.",
            hint='Pack the rows without the argument sequence, or with "latest": 0 for each table in related.',
        )
    if wanted == NEIGHBOURHOODS and not near:
        raise BadData(f"{where}: related cannot be 'neighbourhoods': the packed rows have none.", hint=_hint(layout))
    dropped = _dropped(layout, wanted)
    plain: list[tuple[Variable, str]] = []
    parts = {}
    unread = []
    codes = {each.codes[1] for each in near if each.codes is not None}
    reads_near = wanted in (BOTH, NEIGHBOURHOODS)
    for variable, name in inputs:
        if name in arrays and reads_near:
            continue
        kept, places = (None, []) if name in arrays else _kept(variable, dropped)
        if kept is None:
            whole_numbers = name in codes or variable.preparation.kind in ("categories", "words")
            unread.append((variable, name, "int32" if whole_numbers else "float32"))
            continue
        plain.append((kept, name))
        if kept is not variable:
            parts[name] = (variable.shape, places)
    if not reads_near:
        near = []
    if not plain and not near:
        raise BadData(
            f"{where}: with related '{wanted}' there is nothing to read: the rows have no columns of their own.",
            hint=_hint(layout),
        )
    return Read(plain, near, windowed, parts, unread)


def require_related(layout: Layout, chosen: Json, defaults: Json, where: str) -> None:
    """An error for parameters about related tables that cannot change a model of these rows."""
    for name, lacks, what in (
        (RELATED, layout.related is None, "the packed rows have nothing of related tables"),
        (ENCODER, not has_neighbourhoods(layout), "the packed rows have no neighbourhoods"),
    ):
        if name in chosen and lacks and chosen[name] != defaults[name]:
            raise InvalidArgument(
                f"{where}: {name} cannot be '{chosen[name]}': {what}.",
                hint="Leave it out. The argument related of cerebro.pack and cerebro.train reads related tables.",
            )


def has_aggregates(layout: Layout) -> bool:
    return layout.related is not None and bool(layout.related.aggregates)


def has_neighbourhoods(layout: Layout) -> bool:
    return bool(neighbourhoods(layout, [one.name for one in layout.inputs]))


def neighbourhoods(layout: Layout, named: Sequence[str]) -> list[Neighbourhood]:
    """Those that are among the inputs."""
    if layout.related is None:
        return []
    by_name = {variable.name: (variable, name) for variable, name in zip(layout.inputs, named)}
    latest = [rows.latest for rows in layout.related.rows if rows.latest is not None]
    return [
        Neighbourhood(one, by_name[one.numbers], by_name.get(one.codes) if one.codes is not None else None)
        for one in latest
        if one.numbers in by_name
    ]


def flat_inputs(layout: Layout) -> list[Variable]:
    """The inputs without the arrays of neighbourhoods."""
    related = layout.related
    return [one for one in layout.inputs if related is None or related.latest_of(one.name) is None]


def _dropped(layout: Layout, wanted: str) -> set[str]:
    """The columns that are not read."""
    assert layout.related is not None
    if wanted == NEIGHBOURHOODS:
        return set(layout.related.aggregates)
    return set(layout.related.names) if wanted == NONE else set()


def _kept(variable: Variable, dropped: set[str]) -> tuple[Variable | None, Places]:
    """The variable with the other columns alone, and where they lie; the variable itself if it has no others."""
    kept = [place for place, column in enumerate(variable.columns) if column not in dropped]
    if len(kept) == len(variable.columns):
        return variable, []
    if not kept:
        return None, []
    spans: Places = []
    for place in kept:
        _, start, width = variable.places[place]
        assert width is not None  # a variable of several columns
        if spans and spans[-1][1] == start:
            spans[-1] = (spans[-1][0], start + width)
        else:
            spans.append((start, start + width))
    preparation = variable.preparation
    if isinstance(preparation, ByColumn):
        preparation = replace(preparation, prepared=tuple(preparation.prepared[place] for place in kept))
    columns = tuple(variable.columns[place] for place in kept)
    shape = (*variable.shape[:-1], sum(end - start for start, end in spans))
    return replace(variable, columns=columns, shape=shape, preparation=preparation), spans


def _hint(layout: Layout) -> str:
    words = [NONE] if layout.related is None else [BOTH]
    words += [AGGREGATES] if has_aggregates(layout) else []
    return f"For instance {' or '.join(repr(one) for one in words)}."
