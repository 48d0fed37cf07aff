"""Lists of rows, as the client returns them: ordinary lists that notebooks show as tables, and that become frames."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from html import escape
from typing import Any, Generic, TypeVar, get_args, get_origin, get_type_hints

from sqlalchemy import inspect as mapping
from sqlalchemy.dialects.postgresql import JSONB

from cerebro_db.core.texts import harmless, shortened

from .display import charts
from .display.as_json import as_json
from .errors import MissingPackage
from .orm import LearningCurvePoint, View

Row = TypeVar("Row")
SHOWN = 60  # rows that a notebook shows
CELL = 200  # characters of a value that it shows
PANDAS = {int: "Int64", float: "float64", bool: "boolean", str: "string", datetime: "datetime64[us, UTC]"}


class RowList(list[Row], Generic[Row]):
    """A list of rows of one kind, which notebooks show as a table, and learning curves as a drawing."""

    def __init__(self, kind: type, rows: Iterable[Row] = ()) -> None:
        super().__init__(rows)
        self._kind = kind

    def dicts(self) -> list[dict[str, Any]]:
        """The rows by column name."""
        return [row.as_dict() if isinstance(row, View) else row._asdict() for row in self]  # type: ignore[attr-defined]

    def json(self) -> str:
        """The rows as a JSON array of objects."""
        return as_json(self.dicts())

    def frame(self) -> Any:
        """The rows as a pandas.DataFrame. Whole numbers stay whole numbers where values are missing."""
        try:
            import pandas
        except ImportError as error:
            raise MissingPackage("pandas is not installed.", "pandas") from error
        rows = self.dicts()
        return pandas.DataFrame(
            {
                name: pandas.Series([row[name] for row in rows], dtype=PANDAS.get(kind, "object"))
                for name, kind in columns(self._kind).items()
            }
        )

    def arrow(self) -> Any:
        """The rows as a pyarrow.Table. Documents of JSON become their text."""
        try:
            import pyarrow
        except ImportError as error:
            raise MissingPackage("pyarrow is not installed.", "pyarrow") from error
        types = {
            int: pyarrow.int64(), float: pyarrow.float64(), bool: pyarrow.bool_(), str: pyarrow.string(),
            datetime: pyarrow.timestamp("us", "UTC"),
        }  # fmt: skip
        rows, known = self.dicts(), columns(self._kind)
        arrays = [
            pyarrow.array(
                [row[name] if kind in types or row[name] is None else as_json(row[name]) for row in rows],
                types.get(kind, pyarrow.string()),
            )
            for name, kind in known.items()
        ]
        return pyarrow.Table.from_arrays(arrays, names=list(known))

    def _repr_html_(self) -> str:
        return charts.learning_curves(self) if self._kind is LearningCurvePoint else table(self)  # type: ignore[arg-type]


def columns(kind: type) -> dict[str, type]:
    """The columns of a view or of a named tuple, with the types of their values."""
    if issubclass(kind, View):
        return {
            one.key: dict if isinstance(one.columns[0].type, JSONB) else one.columns[0].type.python_type
            for one in mapping(kind).column_attrs
        }
    return {name: _type(hint) for name, hint in get_type_hints(kind).items()}


def _type(hint: Any) -> type:
    """``int`` of ``int | None``."""
    if get_origin(hint) is None:
        return hint
    known = [one for one in get_args(hint) if one is not type(None)]
    return known[0] if len(known) == 1 else object


# -- HTML ----------------------------------------------------------------------------------------------------------


def table(rows: RowList[Any]) -> str:
    """The rows as a table, without the columns that have no value."""
    known = rows.dicts()
    names = [name for name in columns(rows._kind) if not known or any(row[name] is not None for row in known)]
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join(f"<tr>{''.join(_cell(row[name]) for name in names)}</tr>" for row in known[:SHOWN])
    more = f"<p>… and {len(known) - SHOWN} more rows</p>" if len(known) > SHOWN else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def _cell(value: Any) -> str:
    if value is None:
        return "<td></td>"
    if isinstance(value, float):
        return f'<td style="text-align:right">{value:.6g}</td>'
    if isinstance(value, int) and not isinstance(value, bool):
        return f'<td style="text-align:right">{value}</td>'
    if isinstance(value, datetime):
        return f"<td>{value.astimezone():%Y-%m-%d %H:%M:%S}</td>"
    text = as_json(value) if isinstance(value, (dict, list)) else str(value)
    return f'<td style="text-align:left">{escape(harmless(shortened(text, CELL)))}</td>'
