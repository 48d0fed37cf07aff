"""The SQL that applies a preparation (cerebro_db.core.packing.preparation) to the columns of a table.

``value`` gives what a row becomes, for packing and predicting alike.  Each kind of preparation has its SQL in
EXPRESSIONS.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Callable

from cerebro_db.core.errors import BadData
from cerebro_db.core.packing import buffer_format, layout
from cerebro_db.core.packing.columns import family_of
from cerebro_db.core.packing.features import MeansFeature
from cerebro_db.core.packing.preparation import (
    AsIs,
    ByColumn,
    Categories,
    Divided,
    Encoded,
    Fold,
    Measured,
    Numbers,
    OneHot,
    Pixels,
    Preparation,
    Real,
    Weight,
    Words,
)
from cerebro_db.core.protocol import PredictionInput
from cerebro_db.core.records import dataclass, field
from cerebro_db.core.sql import Sql, identifier, joined, literal, quoted, sql
from cerebro_db.core.sql_types import WITH_ZONE, SqlType

from ...database.access import Database
from ...database.relations import Column, Relation
from . import feature_sql

SMALL = ("smallint", "integer", "boolean")
REALS = ("real", "double precision", "numeric")
NUMBERS = (*SMALL, "bigint", *REALS)
WITH_NUMBERS = ("number", "money", "interval", "date", "time", "boolean")  # families
MOST_DIMENSIONS = 6  # of an array, in PostgreSQL
MOMENTS = (WITH_ZONE, "tstzrange", "tstzmultirange")
PART = Column("__cerebro_part", "integer", "integer", "N", None)  # of the rows for training: target_means.py

Alias = Callable[[Column], Sql]  # how a query names a column


@dataclass
class SourceVariable:
    """A variable, and the columns of the table at hand that it is made of."""

    name: str
    columns: list[Column]
    preparation: Preparation
    dtype: str  # of the packed values; packing makes it wider when values need that
    shape: tuple[int, ...] = ()  # of one row; () until find_shapes or the labels tell
    spellings: dict[str | None, int] = field(default_factory=dict)  # every spelling of a label -> its class

    may_be_null: bool = False  # NULL is a class
    # Of windows (windowed.py): the names of the columns; ``columns`` has the array that they have become.
    gathered: tuple[str, ...] = ()
    steps: int = 0  # of a target with a value for each step of a window: how many; the first number of the shape
    quantiles: tuple[float, ...] = ()  # of a number to predict, as layout.Variable has them
    later: int = 0  # of an input of windows, as layout.Variable has it
    made: Callable[[Alias], Sql] | None = None  # the SQL of a value that no document describes
    # Of rows for training: the place of a feature of means -> the means over the rows of other parts, part by part.
    of_other_parts: dict[int, tuple[tuple[float, ...], ...]] = field(default_factory=dict)

    @property
    def of_step(self) -> tuple[int, ...]:
        """As layout.Variable has it."""
        return self.shape[1:] if self.steps else self.shape

    @property
    def is_array(self) -> bool:
        return bool(self.columns) and self.columns[0].element is not None

    @property
    def is_pixels(self) -> bool:
        return isinstance(self.preparation, Pixels)

    @property
    def is_large(self) -> bool:
        """Whether one value of the source is a whole input: it takes much room, and little time to prepare."""
        return self.is_array or self.is_pixels

    @property
    def bytes_per_row(self) -> int:
        return buffer_format.ITEM_BYTES[self.dtype] * buffer_format.elements(self.shape)

    @property
    def wire_bytes_per_row(self) -> int:
        """Bytes that a query returns for a row, roughly."""
        if self.is_pixels:
            return buffer_format.elements(self.shape)
        return 2 * (self.steps or 1) if self.preparation.label_type else 4 * buffer_format.elements(self.shape)

    @property
    def gathered_shape(self) -> tuple[int, ...]:
        """The shape of a row in what packing reads."""
        flat = self.is_array and not self.gathered and len(self.shape) == MOST_DIMENSIONS
        return (buffer_format.elements(self.shape),) if flat else self.shape

    def encoder(self) -> buffer_format.Encoder:
        if self.steps and self.preparation.label_type:
            return buffer_format.ClassEncoder(self.shape[-1], self.steps)
        if self.steps:
            return buffer_format.ArrayEncoder(self.shape, self.dtype, may_lack=True)
        return self.preparation.encoder(self.gathered_shape, self.dtype)

    def documented(self) -> layout.Variable:
        columns = self.gathered or tuple(column.name for column in self.columns) or (self.name,)
        return layout.Variable(
            self.name, self.dtype, self.shape, columns, self.preparation, self.steps,
            quantiles=self.quantiles, later=self.later,
        )  # fmt: skip

    def for_prediction(self) -> PredictionInput:
        """The entry of an order to predict: the trainer reads arrays, and bytes, as a query gives them."""
        scale, factor = self.preparation.scale(self.dtype), self.preparation.factor(self.dtype)
        return PredictionInput(self.name, self.wire_dtype, list(self.shape), scale=scale, factor=factor)

    @property
    def wire_dtype(self) -> str:
        """The type of the elements in a query."""
        return self.preparation.wire_dtype(self.dtype)


def applied(name: str, columns: list[Column], preparation: Preparation) -> SourceVariable:
    """The variable that a preparation makes of these columns."""
    integers = all((column.element or column.type) in SMALL for column in columns)
    shape = (preparation.width,) if isinstance(preparation, ByColumn) else ()
    return SourceVariable(name, columns, preparation, preparation.dtype(integers), shape)


# -- the SQL of each kind ------------------------------------------------------------------------------------


def expression(variable: SourceVariable, alias: Alias) -> Sql:
    """What predicting reads of a row: the bytes of an array of numbers, or bytes with their number."""
    found = value(variable, alias)
    if variable.is_pixels:
        # The number of the bytes is known without reading them.
        return sql("pg_catalog.int4send(pg_catalog.octet_length({found})) OPERATOR(pg_catalog.||) {found}", found=found)
    return sql("cerebro_internal._array_bytes({found})", found=found)


def packed_value(variable: SourceVariable, alias: Alias, *, uneven: bool) -> Sql:
    """What packing reads of a row: an array of numbers, bytes, or the number of a class.

    ``uneven``: arrays of the source may have lower bounds other than 1, and no aggregate takes both.
    """
    found = value(variable, alias)
    if variable.preparation.label_type and not variable.gathered:
        return class_number(variable, found)
    if not variable.is_array or variable.gathered:
        return found
    if len(variable.shape) == MOST_DIMENSIONS:  # an array of such arrays would have too many
        lengths = joined(
            " AND ",
            (
                sql("pg_catalog.array_length({found}, {place}) = {size}", found=found, place=place, size=size)
                for place, size in enumerate(variable.shape, 1)
            ),
        )
        # Of another shape, it becomes an empty array, which the aggregate refuses.
        return sql("ARRAY(SELECT pg_catalog.unnest({found}) WHERE {lengths})", found=found, lengths=lengths)
    return (
        sql("({found}){slices}", found=found, slices=joined("", [sql("[:]")] * len(variable.shape)))
        if uneven
        else found
    )


def class_number(variable: SourceVariable, label: Sql) -> Sql:
    """The number of a label's class; NULL for an unknown label."""
    codes = {spelling: code for spelling, code in variable.spellings.items() if spelling is not None}
    found = feature_sql.looked_up(codes, label)
    if None in variable.spellings:
        of_null = variable.spellings[None]
        found = sql("CASE WHEN {label} IS NULL THEN {code} ELSE {found} END", label=label, code=of_null, found=found)
    return sql("({found})::smallint", found=found)


def value(variable: SourceVariable, alias: Alias) -> Sql:
    """The array of numbers, or the bytes, that a row's columns become; or a label as text."""
    gathered = variable.gathered and variable.made is None
    return alias(variable.columns[0]) if gathered else EXPRESSIONS[type(variable.preparation)](variable, alias)


def _numbers(variable: SourceVariable, alias: Alias) -> Sql:
    element = sql("real") if variable.wire_dtype == "float32" else sql("integer")
    if variable.is_array:
        (column,) = variable.columns
        return sql("{array}::{element}[]", array=column.array(alias(column)), element=element)
    return sql(
        "ARRAY[{columns}]",
        columns=joined(", ", (_number(alias(column), column, element) for column in variable.columns)),
    )


def _prepared_numbers(variable: SourceVariable, alias: Alias) -> Sql:
    elements: list[Sql] = []
    for place, (feature, column) in enumerate(zip(variable.preparation.features, variable.columns)):
        if (means := variable.of_other_parts.get(place)) is not None:
            assert isinstance(feature, MeansFeature)
            before = sql("({part} - 1) * {values}", part=alias(PART), values=len(feature.values))
            elements += feature_sql.means(feature, means, before, column, alias(column))
        else:
            elements += feature_sql.floats(feature, column, alias(column))
    return sql("ARRAY[{elements}]", elements=joined(", ", elements))


def _codes(variable: SourceVariable, alias: Alias) -> Sql:
    pairs = zip(variable.preparation.features, variable.columns)
    codes = [feature_sql.code(feature, column, alias(column)) for feature, column in pairs]
    return sql("ARRAY[{codes}]", codes=joined(", ", codes))


def _words(variable: SourceVariable, alias: Alias) -> Sql:
    (feature,), (column,) = variable.preparation.features, variable.columns
    return feature_sql.word_ids(feature, alias(column))


def _bytes(variable: SourceVariable, alias: Alias) -> Sql:
    (column,) = variable.columns
    return sql("{value}::bytea", value=alias(column))


def _label(variable: SourceVariable, alias: Alias) -> Sql:
    label_type = variable.preparation.label_type
    assert label_type is not None
    return label_text(alias(variable.columns[0]), label_type)


def _weight(variable: SourceVariable, alias: Alias) -> Sql:
    preparation, columns = variable.preparation, list(variable.columns)
    assert isinstance(preparation, Weight)
    if variable.made is not None:
        return variable.made(alias)
    factors = []
    if preparation.labels:
        target = columns.pop()
        cases = joined(
            " ",
            (
                sql("WHEN {label} THEN {factor}", label=literal(label), factor=factor)
                for label, factor in zip(preparation.labels, preparation.factors)
            ),
        )
        label = label_text(alias(target), SqlType(target.type))
        factors.append(sql("CASE {label} {cases} ELSE 1 END", label=label, cases=cases))
    factors += [sql("{alias}::double precision", alias=alias(column)) for column in columns]
    return sql("ARRAY[({product})::real]", product=joined(" * ", factors) or 1)


def _fold(variable: SourceVariable, alias: Alias) -> Sql:
    assert variable.made is not None
    return sql("ARRAY[{made}]", made=variable.made(alias))


EXPRESSIONS: dict[type[Preparation], Callable[[SourceVariable, Alias], Sql]] = {
    AsIs: _numbers,
    Divided: _numbers,
    Pixels: _bytes,
    OneHot: _label,
    Encoded: _numbers,
    Real: _numbers,
    Measured: _numbers,
    Numbers: _prepared_numbers,
    Categories: _codes,
    Words: _words,
    Weight: _weight,
    Fold: _fold,
}


def hashed(variable: SourceVariable, alias: Alias, seed: Sql) -> Sql:
    """A 64-bit number made of a row's values, before any preparation, and of another such number.

    The seed is in the SQL once: it has the hashes of all variables before this one.
    """
    if isinstance(variable.preparation, Fold):  # the order of the rows is the same as without folds
        return seed
    if variable.preparation.label_type and not variable.gathered:  # a NULL has no hash
        return sql(
            "pg_catalog.hashtextextended(coalesce({label}, ''), {seed})", label=_label(variable, alias), seed=seed
        )
    if variable.preparation.features and not variable.gathered:
        return shuffled(hash_of_row(variable.columns, alias), seed)
    if isinstance(variable.preparation, Weight):
        return _hash_of_array(_weight(variable, alias), seed)
    if variable.is_array:
        (column,) = variable.columns
        return _hash_of_array(column.array(alias(column)), seed)
    if variable.is_pixels:
        return _hash_of_array(sql("ARRAY[{value}]", value=_bytes(variable, alias)), seed)
    parts = [_number(alias(column), column, sql("double precision")) for column in variable.columns]
    return _hash_of_array(sql("ARRAY[{parts}]", parts=joined(", ", parts)), seed)


def _hash_of_array(array: Sql, seed: Sql) -> Sql:
    """The seed is no argument of the inner hash: PostgreSQL's hash of an array of NULLs would not depend on it.

    A NULL in place of an array has no hash.
    """
    inner = sql("coalesce(pg_catalog.hash_array_extended({array}, 0), 0)", array=array)
    return sql("pg_catalog.hashint8extended({inner}, {seed})", inner=inner, seed=seed)


def hash_of_row(columns: Sequence[Column], alias: Alias) -> Sql:
    """A 64-bit hash of a row. Numbers and dates are hashed as numbers, arrays as they are, all else as text."""
    arrays: list[Sql] = []
    numbers: list[Sql] = []
    texts: list[Sql] = []
    for column in columns:
        if column.element in NUMBERS:
            arrays.append(column.array(alias(column)))
        elif column.element is None and family_of(column.type, column.category, None) in WITH_NUMBERS:
            numbers.append(feature_sql.number(column, alias(column)))
        else:
            texts.append(feature_sql.text(column, alias(column)))
    arrays += [sql("ARRAY[{parts}]", parts=joined(", ", parts)) for parts in (numbers, texts) if parts]
    hashes = [
        sql("coalesce(pg_catalog.hash_array_extended({array}, {seed}), 0)", array=array, seed=seed)
        for seed, array in enumerate(arrays, 17)
    ]
    return sql("({hashes})", hashes=joined(" # ", hashes))


def shuffled(hashed: Sql, seed: Sql) -> Sql:
    """A number that mixes rows when they are ordered by it.  A hash of a bigint would have 2^32 values: too few."""
    return sql("pg_catalog.hashfloat8extended({hashed}::double precision, {seed})", hashed=hashed, seed=seed)


def label_text(value: Sql, label_type: SqlType) -> Sql:
    """A label as text that is compared byte by byte, whatever the column's collation and the session's time zone."""
    label = sql("({value}::{label_type})", value=value, label_type=label_type.sql)
    if label_type.name in MOMENTS:
        return sql('cerebro_internal._text_in_utc({label}) COLLATE "C"', label=label)
    return sql('{label}::text COLLATE "C"', label=label)


def _number(value: Sql, column: Column, element: Sql) -> Sql:
    return (
        sql("{value}::integer::{element}", value=value, element=element)
        if column.type == "boolean"
        else sql("{value}::{element}", value=value, element=element)
    )


# -- what the rows tell --------------------------------------------------------------------------------------


def find_shapes(db: Database, source: Relation, variables: list[SourceVariable]) -> None:
    """Set the shape of every variable but labels and pixels; of an array, it is that of some row."""
    arrays = [variable for variable in variables if variable.is_array]
    for variable in variables:
        if variable not in arrays and not isinstance(variable.preparation, (OneHot, ByColumn, Pixels)):
            variable.shape = (len(variable.columns),)
    if not arrays:
        return
    columns = [variable.columns[0] for variable in arrays]
    sent = [sql("cerebro_internal._array_bytes({array})", array=one.array(identifier(one.name))) for one in columns]
    picked = joined(
        ", ",
        (
            sql("pg_catalog.encode({value}, 'hex') AS v{index}", value=value, index=index)
            for index, value in enumerate(sent)
        ),
    )
    (row,) = db.scan(sql("SELECT {picked} FROM {rows} AS s LIMIT 1", picked=picked, rows=source.rows))
    for index, variable in enumerate(arrays):
        variable.shape = buffer_format.shape_of(bytes.fromhex(row[f"v{index}"]))
        if not variable.shape:
            raise BadData(
                f"column '{variable.name}' of table {source.text} has empty arrays.",
                hint=f"WHERE pg_catalog.cardinality({quoted(variable.name)}) = 0 finds them.",
            )
