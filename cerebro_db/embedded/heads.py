"""Fills in what the pieces in ``sql/`` leave out of views, and of the heads, bodies and comments of functions.

===============  ================================================================================================
``@name_of X@``  in a view: the name of the table whose quoted name with its schema is the expression X
``@arguments@``  in the head: the arguments that ``core/arguments.py`` lists for the function
``@by_name@``    in the body: NAME=NAME for each argument of the head above
``@types@``      in COMMENT ON FUNCTION: the types of the head above
``@described@``  in a comment: a line ``- NAME: SENTENCE`` for each argument with a sentence in ``core/arguments.py``
``@packing@``    in a comment: the arguments for packing that the comment has no line for
===============  ================================================================================================
"""

from __future__ import annotations

import ast
import inspect
import itertools
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from cerebro_db.core import arguments
from cerebro_db.core.arguments import FitArguments, PackArguments, PackingArguments, SearchArguments, TrainArguments

FUNCTION = re.compile(
    r"^[ \t]*CREATE (?:OR REPLACE )?FUNCTION ([\w@]+\.\w+)\((.*?)\)\s*RETURNS\b", re.MULTILINE | re.DOTALL
)
MODES = ("IN", "OUT", "INOUT", "VARIADIC")
NAME_OF = re.compile(r"@name_of ([^@\n]+)@")
PLAIN_NAME = r"""COALESCE(replace(substring(\1 FROM '"((?:[^"]|"")*)"$'), '""', '"'), substring(\1 FROM '[^.]*$'))"""
LINE = re.compile(r"^- ([\w, ]+): ", re.MULTILINE)  # of a comment


class Signature(NamedTuple):
    """The arguments of a SQL function, which are the fields of a record.

    ``first``: their order.  Fields that it does not name come last, in the order of the record, so that calls with
    positional values stay valid.  None in the record is NULL.
    """

    record: type[PackingArguments]
    first: str
    needed: int  # the number of arguments without a default
    defaults: Mapping[str, object] = {}  # those that differ from the record's

    @property
    def types(self) -> dict[str, str]:
        """The SQL types by the names, in the order of the SQL function."""
        kinds = arguments.kinds_of(self.record)
        order = dict.fromkeys(name for name in self.first.split() if name in kinds) | kinds
        return {name: arguments.SQL_TYPES[kinds[name]] for name in order}


PACK = ("source_table output_table target inputs prepare validation validation_table split_by split_at stratify"
        " buffer_size segments distribution_rules seed")  # fmt: skip
# The arguments of the verbs after the target; the most frequent ones come first.
OF_VERBS = (" inputs prepare weights class_weight sequence validation validation_table split_by split_at stratify folds"
            " segments packed_table architectures space method epochs max_configurations at_once start_from objective"
            " direction stop_when evaluate_every use_gpus warm_start run_name description options wait dry_run group_by"
            " replace refit")  # fmt: skip
SIGNATURES = {
    "cerebro.pack": Signature(PackArguments, PACK, 3, {"stratify": False}),
    "cerebro_internal._packed_rows": Signature(PackArguments, PACK, 99),
    "cerebro.train": Signature(TrainArguments, "source_table model_table target budget" + OF_VERBS, 2,
                               {"budget": "10 minutes"}),
    "cerebro.search": Signature(SearchArguments, "source_table model_table space target budget" + OF_VERBS, 3),
    "cerebro.fit": Signature(FitArguments, "source_table model_table configurations target epochs budget" + OF_VERBS,
                             3),
}  # fmt: skip


def filled(text: str) -> str:
    """A piece of SQL with its marks filled in.  The text before its first function has none of those for functions."""
    text = NAME_OF.sub(PLAIN_NAME, text)
    starts = [found.start() for found in FUNCTION.finditer(text)]
    if not starts:
        return text
    parts = [text[start:end] for start, end in zip(starts, [*starts[1:], len(text)])]
    return text[: starts[0]] + "".join(map(_of_function, parts))


def _of_function(text: str) -> str:
    """A function and what follows it, up to the next one."""
    found = FUNCTION.match(text)
    assert found is not None
    name, head = found.groups()
    if "@arguments@" in head:
        head = head.replace("@arguments@", _arguments(name))
        text = text[: found.start(2)] + head + text[found.end(2) :]
    given = parted(head)
    text = text.replace("@by_name@", ", ".join(f"{one}={one}" for one, _ in given if one))
    text = text.replace("@types@", ", ".join(kind for _, kind in given))
    if "@described@" in text:
        text = text.replace("@described@", _described(name).replace("'", "''"))
    if "@packing@" in text:
        told = {one for names in LINE.findall(text) for one in names.split(", ")}
        ours = [one for one in SIGNATURES[name].types if one in arguments.PACKING and one not in told]
        text = text.replace("@packing@", ", ".join(ours))
    return text


def _arguments(function: str) -> str:
    one = SIGNATURES[function]
    lines = []
    for place, (name, kind) in enumerate(one.types.items()):
        default = one.defaults.get(name, getattr(one.record, name))
        lines.append(f"    {name} {kind}" + ("" if place < one.needed else f" DEFAULT {_literal(default)}"))
    return ",\n".join(lines)


def _literal(value: object) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, (bool, int, float)):
        return str(value).lower()
    return "'" + str(value).replace("'", "''") + "'"


def parted(head: str) -> list[tuple[str, str]]:
    """Name and type of each argument; the name is empty if it has none.  Types and defaults here have no commas."""
    declared = [one.split(" DEFAULT ")[0].split() for one in head.split(",") if one.strip()]
    found = [(one[0].strip('"') if len(one) > 1 else "", " ".join(one[1:] or one)) for one in declared]
    for name, kind in found:
        if name.upper() in MODES or not re.fullmatch(r"\w*", name) or not re.fullmatch(r"[\w .\[\]@%]+", kind):
            raise ValueError(f"a head that is not understood: {head}")
    return found


def _described(function: str) -> str:
    one, told = SIGNATURES[function], _sentences()
    lines = []
    for sentence, names in itertools.groupby(one.types, lambda name: told[one.record.__name__].get(name)):
        if sentence is not None:
            lines.append(f"- {', '.join(names)}: " + sentence.replace("\n", "\n  "))
    return "\n".join(lines)


@lru_cache
def _sentences() -> dict[str, dict[str, str]]:
    """The text below each field, by class and field.  Python itself drops these texts."""
    assert arguments.__file__ is not None
    found: dict[str, dict[str, str]] = {}
    for record in ast.parse(Path(arguments.__file__).read_text(encoding="utf-8")).body:
        if isinstance(record, ast.ClassDef):
            own = found[record.name] = dict(
                pair for base in record.bases for pair in found.get(ast.unparse(base), {}).items()
            )
            for field, text in zip(record.body, record.body[1:]):
                if (
                    isinstance(field, ast.AnnAssign)
                    and isinstance(text, ast.Expr)
                    and isinstance(text.value, ast.Constant)
                ):
                    own[ast.unparse(field.target)] = inspect.cleandoc(str(text.value.value))
    return found
