"""Reads the JSON of a search space.  Every error names the place in it."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

from ...architecture import placeholders, sources
from ...architecture.sources import Source
from ...parameters.value_types import is_finite, is_number, shown
from ...records import dataclass
from .dimensions import MOST_VALUES, Choice, Condition, Dimension, Number
from .space import ARCHITECTURE, MEASURES, PARTS, ChoiceOption, Label, Options, Space, flat_path, wrong

KINDS = {  # of a dimension with two bounds -> logarithmic, whole
    "uniform": (False, False),
    "log_uniform": (True, False),
    "integer": (False, True),
    "log_integer": (True, True),
}
CHOICE = "choice"
# What other tools call them, without signs between the words.
OTHER_WORDS = {"randint": "integer", "lograndint": "log_integer", "quniform": "uniform", "qloguniform": "log_uniform",
               "int": "integer", "float": "uniform", "categorical": CHOICE, "gridsearch": CHOICE, "grid": CHOICE,
               "values": CHOICE, "options": CHOICE}  # fmt: skip
MORE = ("when", "name", "step", "points")
DEEPEST = 32  # levels
MOST_DIMENSIONS = 500
EXAMPLE = 'For instance {"learning_rate": {"log_uniform": [0.0001, 0.1]}, "batch_size": {"choice": [16, 32]}}.'
DIMENSIONS = f"A dimension is an object with one of {CHOICE}, {', '.join(KINDS)}. {EXAMPLE}"


@dataclass
class _Found:
    """A dimension as it was read: its conditions are not yet those of a space."""

    dimension: Dimension
    named: bool  # with "name"
    when: Mapping[str, Any]
    inside: tuple[tuple[str, Any], ...]  # the choices around it: path, and label of the option


def labels(given: Any) -> list[Label] | None:
    """The architectures that the parts of a space name; None if they name none: all of the table."""
    space = _object(given)
    value = space.get(ARCHITECTURE)
    if value is None:
        return None
    if isinstance(value, dict) and set(value) == {CHOICE}:
        value = value[CHOICE]
    found = value if isinstance(value, list) else [value]
    alike = any(found and all(type(one) is kind for one in found) for kind in (int, str))
    if not alike:
        raise wrong(ARCHITECTURE, f"{shown(value)} is not a list of model ids or of names")
    if len(set(found)) < len(found):
        raise wrong(ARCHITECTURE, "an architecture is given twice")
    return found


def read(given: Any, architectures: Mapping[Any, Source]) -> Space:
    """The space.  ``architectures``: those that it chooses from, by their labels."""
    space = _object(given)
    for key in space:
        if key not in (ARCHITECTURE, *PARTS):
            raise wrong(key, "a space has no such key", f"Its keys are {ARCHITECTURE}, {', '.join(PARTS)}.")
    if "compile" not in space:
        raise wrong("", "compile is missing", 'For instance "compile": {"loss": "mse", "learning_rate": {…}}.')
    reader, trees = _Reader(), {}
    for part in PARTS:
        value = space.get(part, {})
        if not isinstance(value, dict) or is_dimension(value):
            raise wrong(part, "this must be an object with one entry for each parameter", EXAMPLE)
        trees[part] = {key: reader.tree(inner, _Place(None, f"{part}.{key}"), ()) for key, inner in value.items()}
    given = space.get("arch_params", {})
    templates = {label: sources.template(one, given) for label, one in architectures.items()}
    users = _users(templates, given)
    found = reader.found
    if len(architectures) > 1:
        choice = Choice(ARCHITECTURE, ARCHITECTURE, (), tuple(architectures))
        found.insert(0, _Found(choice, True, {}, ()))
    dimensions = _connected(found, users if len(architectures) > 1 else {})
    if not dimensions:
        _refuse_constants(space)
    named = {one.path: one for one in dimensions}
    trees = {part: _resolved(tree, named) for part, tree in trees.items()}
    return Space(dimensions, templates, trees)


def _object(given: Any) -> dict[str, Any]:
    if not isinstance(given, dict) or not given:
        raise wrong("", "a space is a JSON object that is not empty", f'For instance {{"compile": {EXAMPLE[13:-1]}}}.')
    return given


def is_dimension(value: Mapping[str, Any]) -> bool:
    return CHOICE in value or any(kind in value for kind in KINDS)


def _users(templates: Mapping[Label, Source], given: Mapping[str, Any]) -> dict[str, tuple[Label, ...]]:
    """Which architectures have each parameter; an error if one has no value, or nobody has it."""
    for label, one in templates.items():
        missing = sorted(sources.needed(one).difference(given))
        if missing:
            raise wrong(
                missing[0],
                f"the architecture {shown(label)} has this parameter, which has no value here",
                f'Add "{missing[0]}": a value or a dimension.',
            )
    names = {label: sources.parameters(one) for label, one in templates.items()}
    users = {name: tuple(label for label, known in names.items() if name in known) for name in given}
    for name, its in users.items():
        if not its:
            every = sorted(set().union(*names.values()))
            raise wrong(
                name,
                "no architecture has this parameter",
                f"Parameters of the architectures: {', '.join(every) or 'none'}. {placeholders.HINT}",
            )
    return {f"arch_params.{name}": its for name, its in users.items() if len(its) < len(templates)}


class _Place:
    """A place in the JSON.  Its text is made when it is needed: most places are never named, and each may be long."""

    def __init__(self, above: _Place | None, key: str) -> None:
        self._above, self._key = above, key

    def __str__(self) -> str:
        keys, place = [], self
        while place._above is not None:
            keys.append(place._key)
            place = place._above
        return place._key + "".join(reversed(keys))


class _Reader:
    def __init__(self) -> None:
        self.found: list[_Found] = []

    def tree(self, value: Any, place: _Place, inside: tuple[tuple[str, Any], ...], depth: int = 1) -> Any:
        if depth > DEEPEST:
            raise wrong(str(place), f"this is nested more than {DEEPEST} levels deep")
        if isinstance(value, list):
            return [self.tree(one, _Place(place, f"[{index}]"), inside, depth + 1) for index, one in enumerate(value)]
        if not isinstance(value, dict):
            return value
        if not is_dimension(value):
            _require_no_other_kind(value, place)
            alone = [key for key in MORE if key in value and key != "name"]
            if alone:
                problem = f"{alone[0]} is allowed only in a dimension, and this is not a dimension"
                raise wrong(str(place), problem, DIMENSIONS)
            return {key: self.tree(one, _Place(place, f".{key}"), inside, depth + 1) for key, one in value.items()}
        path = str(place)
        if len(self.found) >= MOST_DIMENSIONS:
            raise wrong(path, f"there are more than {MOST_DIMENSIONS} dimensions, which is the limit")
        kinds = [key for key in value if key not in MORE]
        if len(kinds) > 1:
            raise wrong(path, f"{' and '.join(kinds)} cannot be used together", DIMENSIONS)
        when = value.get("when", {})
        if not isinstance(when, dict):
            raise wrong(f"{path}.when", "this must be an object", 'For instance "when": {"optimizer": "SGD"}.')
        name = value.get("name", _name_of(path))
        if not isinstance(name, str) or not name:
            raise wrong(f"{path}.name", "this must be a text")
        if kinds[0] == CHOICE:
            return self._choice(value, name, place, when, inside, depth)
        self.found.append(_Found(_number(kinds[0], value, name, path), "name" in value, when, inside))
        return self.found[-1].dimension

    def _choice(
        self,
        value: dict[str, Any],
        name: str,
        place: _Place,
        when: Mapping[str, Any],
        inside: tuple[tuple[str, Any], ...],
        depth: int,
    ) -> Options:
        given, path = value[CHOICE], str(place)
        for key in ("step", "points"):
            if key in value:
                raise wrong(path, f"a choice has no {key}")
        if not isinstance(given, list) or not given:
            raise wrong(
                f"{path}.{CHOICE}",
                "this must be a list with at least one option",
                f'For instance {{"{CHOICE}": [16, 32]}}.',
            )
        if len(given) > MOST_VALUES:
            raise wrong(f"{path}.{CHOICE}", f"there are {len(given)} options; at most {MOST_VALUES} are possible")
        labels = _labels(given, f"{path}.{CHOICE}")
        choice = Choice(name, path, (), labels)
        self.found.append(_Found(choice, "name" in value, when, inside))
        options = [
            ChoiceOption(label, self.tree(option, _Place(place, f"[{index}]"), (*inside, (path, label)), depth + 1))
            for index, (label, option) in enumerate(zip(labels, given))
        ]
        return Options(choice, tuple(options))


def _require_no_other_kind(value: Mapping[str, Any], place: _Place) -> None:
    """An error for a dimension as other tools write it, or misspelled: ``{"loguniform": [0.001, 0.1]}``."""
    keys = [key for key in value if key not in MORE]
    bounds = value[keys[0]] if len(keys) == 1 else None
    if isinstance(bounds, dict):  # {"low": 0.001, "high": 0.1}
        bounds = [*bounds.values()]
    if not isinstance(bounds, list) or not bounds:
        return
    meant = _meant(keys[0])
    if meant is None or (meant != CHOICE and not all(is_number(one) for one in bounds)):
        return
    written = {meant: bounds}
    if meant != CHOICE and len(bounds) == 3:  # the third one is a step
        written = {meant: bounds[:2], "step": bounds[2]}
    problem = f"{shown(keys[0])} is no dimension; did you mean {meant}?"
    raise wrong(str(place), problem, f"Write {json.dumps(written)}. {DIMENSIONS}")


def _meant(word: str) -> str | None:
    """The dimension that the word is near to, if there is one."""
    import difflib  # only now: a new session takes a millisecond for it

    words = {**{kind.replace("_", ""): kind for kind in (CHOICE, *KINDS)}, **OTHER_WORDS}
    near = difflib.get_close_matches(re.sub("[^a-z]", "", word.lower()), words, n=1, cutoff=0.8)
    return words[near[0]] if near else None


def require_dimension(name: str, value: list[Any] | dict[str, Any]) -> None:
    """An error unless this is a dimension: the parameter takes neither a list nor an object."""
    if isinstance(value, list):
        raise wrong(
            name,
            f"{shown(json.dumps(value))} is a list, which is no value of {name}",
            f"Write {json.dumps({name: {CHOICE: value}})} to try each of its values.",
        )
    if not is_dimension(value):
        _require_no_other_kind(value, _Place(None, name))
        raise wrong(name, f"{shown(json.dumps(value))} is no dimension", DIMENSIONS)


def _refuse_constants(space: Mapping[str, Any]) -> NoReturn:
    problem = "there is nothing to search: every parameter is a constant"
    given = {name: value for part in PARTS for name, value in space.get(part, {}).items() if name not in MEASURES}
    name, value = next(_lists(given), (None, None))
    if name is None:
        raise wrong("", problem, DIMENSIONS)
    raise wrong(
        "",
        f"{problem}, also the list {shown(name)}",
        f"Write {json.dumps({name: {CHOICE: value}})} to try each of its values.",
    )


def _lists(given: Mapping[str, Any]) -> Iterator[tuple[str, list[Any]]]:
    """The lists of several values and their names, also within objects."""
    for name, value in given.items():
        if isinstance(value, dict):
            yield from _lists(value)
        elif isinstance(value, list) and len(value) > 1:
            yield name, value


def _name_of(path: str) -> str:
    """The key before the dimension; of an element of a list the whole path."""
    return flat_path(path) if path.endswith("]") else path.rpartition(".")[2]


def _labels(options: Sequence[Any], path: str) -> tuple[Any, ...]:
    """What stands for each option in a point."""
    labels: list[Any] = []
    for option in options:
        if is_number(option) and not is_finite(option):
            raise wrong(path, f"{shown(option)} is no number to compute with")
        if not isinstance(option, (dict, list)):
            labels.append(option)
            continue
        text = json.dumps(option, ensure_ascii=False)
        name = option.get("class_name") if isinstance(option, dict) else None
        labels.append(name if isinstance(name, str) else text if len(text) <= 60 else f"{text[:59]}…")
    texts = [json.dumps(float(label) if is_number(label) else label) for label in labels]  # 1 and 1.0 are the same
    times, numbers = Counter(texts), Counter[str]()
    for place, (text, label) in enumerate(zip(texts, labels)):
        if times[text] > 1:
            if not isinstance(options[place], (dict, list)):
                raise wrong(path, f"{shown(label)} is given twice")
            numbers[text] += 1
            labels[place] = f"{label} #{numbers[text]}"
    return tuple(labels)


def _number(kind: str, value: Mapping[str, Any], name: str, path: str) -> Number:
    log, whole = KINDS[kind]
    bounds = value[kind]
    if not isinstance(bounds, list) or len(bounds) != 2 or not all(map(is_finite, bounds)):
        raise wrong(
            f"{path}.{kind}",
            "this must be a list of two numbers: the smallest and the largest value",
            f"For instance {json.dumps({kind: [16, 256] if whole else [0.0001, 0.1]})}.",
        )
    low, high = bounds
    if low > high:
        raise wrong(f"{path}.{kind}", f"there is no number from {low} to {high}", "The smaller bound comes first.")
    if whole and (low != int(low) or high != int(high)):
        raise wrong(f"{path}.{kind}", "the bounds must be whole numbers")
    if log and low < (1 if whole else 0) or log and low == 0:
        raise wrong(f"{path}.{kind}", f"the bounds must be {'at least 1' if whole else 'above 0'}")
    step, points = value.get("step"), value.get("points")
    if step is not None:
        if not is_finite(step) or step <= 0 or (whole and step != int(step)):
            raise wrong(f"{path}.step", f"this must be a {'whole ' if whole else ''}number above 0")
        if step > high - low:
            raise wrong(f"{path}.step", f"the step {step} is larger than the distance from {low} to {high}")
        if (high - low) / step > 2**31:
            raise wrong(f"{path}.step", f"the step {step} is too small")
    if points is not None and (not isinstance(points, int) or isinstance(points, bool) or not 1 <= points <= 1000):
        raise wrong(f"{path}.points", "this must be a whole number from 1 to 1000")
    return Number(name, path, (), low, high, log=log, whole=whole, step=step, points=points)


def _connected(found: list[_Found], users: Mapping[str, tuple[Label, ...]]) -> tuple[Dimension, ...]:
    """The dimensions with their names and conditions, each after those that it depends on."""
    found = _named(found)
    by_path = {one.dimension.path: one for one in found}
    by_place = {flat_path(path): one for path, one in by_path.items()}
    by_name = {one.dimension.name: one for one in found}
    made: dict[str, Dimension] = {}  # by path
    needs: dict[str, set[str]] = {}
    for one in found:
        path = one.dimension.path
        conditions: list[Condition] = []
        parameter = re.match(r"arch_params\.\w+", path)
        if parameter and parameter.group() in users:
            conditions.append(Condition(ARCHITECTURE, users[parameter.group()]))
        conditions += [Condition(by_path[around].dimension.name, (label,)) for around, label in one.inside]
        for other, values in one.when.items():
            target = by_name.get(other) or by_place.get(other)
            if target is None:
                known = ", ".join(name for name in by_name if name != one.dimension.name)
                raise wrong(f"{path}.when", f"there is no dimension {shown(other)}", f"Dimensions are {known}.")
            wanted = tuple(values) if isinstance(values, list) else (values,)
            for value in wanted:
                if not target.dimension.has(value):
                    raise wrong(f"{path}.when.{other}", f"{shown(other)} is never {shown(value)}")
            if not wanted:
                raise wrong(f"{path}.when.{other}", "this must be a value or a list of values")
            conditions.append(Condition(target.dimension.name, wanted))
        made[path] = replace(one.dimension, conditions=tuple(conditions))
        needs[path] = {by_name[condition.dimension].dimension.path for condition in conditions}
    return tuple(made[path] for path in _in_order(needs))


def _in_order(needs: Mapping[str, set[str]]) -> list[str]:
    """The paths, each after those that it needs: first those that need none, then those that need only these, …"""
    missing = {path: len(its) for path, its in needs.items()}
    needed_by: dict[str, list[str]] = {path: [] for path in needs}
    for path, its in needs.items():
        for other in its:
            needed_by[other].append(path)
    places = {path: place for place, path in enumerate(needs)}
    ordered: list[str] = []
    free = [path for path in needs if not missing[path]]
    while free:
        ordered += free
        following = []
        for path in free:
            for other in needed_by[path]:
                missing[other] -= 1
                if not missing[other]:
                    following.append(other)
        free = sorted(following, key=places.__getitem__)
    circle = [path for path in needs if missing[path]]
    if circle:
        raise wrong(f"{circle[0]}.when", f"{' and '.join(map(flat_path, circle))} depend on each other")
    return ordered


def _named(found: list[_Found]) -> list[_Found]:
    """With distinct names: dimensions under the same key are named by their paths, unless the JSON names them."""
    times = Counter(one.dimension.name for one in found)
    named = [
        one
        if times[one.dimension.name] == 1 or one.named
        else replace(one, dimension=replace(one.dimension, name=flat_path(one.dimension.path)))
        for one in found
    ]
    times = Counter(one.dimension.name for one in named)
    for one in named:
        if times[one.dimension.name] > 1:
            raise wrong(one.dimension.path, f"another dimension has the name {shown(one.dimension.name)}, too")
    return named


def _resolved(tree: Any, by_path: Mapping[str, Dimension]) -> Any:
    """The tree with the dimensions of the space."""
    if isinstance(tree, Options):
        choice = by_path[tree.dimension.path]
        assert isinstance(choice, Choice)
        return Options(choice, tuple(ChoiceOption(one.label, _resolved(one.tree, by_path)) for one in tree.options))
    if isinstance(tree, Dimension):
        return by_path[tree.path]
    if isinstance(tree, dict):
        return {key: _resolved(inner, by_path) for key, inner in tree.items()}
    return [_resolved(inner, by_path) for inner in tree] if isinstance(tree, list) else tree
