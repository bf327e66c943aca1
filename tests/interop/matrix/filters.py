"""Filters on one column, with the rows that they let through by SQL's rules, in the words of each reader."""
import dataclasses
import datetime
import decimal
import operator

import pyarrow as pa
from kinds import EPOCH, TEXT, date_text, decimal_text, instant_text, time_text

OPERATORS = {"=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_PYPAIMON = {"=": "equal", "!=": "not_equal", "<": "less_than", "<=": "less_or_equal", ">": "greater_than", ">=": "greater_or_equal"}


def order(value):
    """What values of a column compare by: texts by their UTF-8 bytes, NaN behind all numbers and equal to itself."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, float):
        return (value != value, 0.0 if value != value else value)
    return value


@dataclasses.dataclass(frozen=True)
class Filter:
    """`column operator value`, or `column IS [NOT] NULL`; the value in the forms of kinds.py."""

    column: str
    operator: str
    value: object = None

    def lets_through(self, value):
        if self.operator in ("IS NULL", "IS NOT NULL"):
            return (value is None) == (self.operator == "IS NULL")
        return value is not None and OPERATORS[self.operator](order(value), order(self.value))

    def ids(self, table):
        at = table.column(self.column)
        return sorted(row[0] for row in table.rows if self.lets_through(row[at]))

    def pypaimon(self, builder, ty):
        """As a predicate of pypaimon's builder."""
        if self.operator == "IS NULL":
            return builder.is_null(self.column)
        if self.operator == "IS NOT NULL":
            return builder.is_not_null(self.column)
        return getattr(builder, _PYPAIMON[self.operator])(self.column, python_literal(ty, self.value))

    def sql(self, ty):
        text = f"`{self.column}` {self.operator}"
        return text if self.operator.startswith("IS") else f"{text} {sql_literal(ty, self.value)}"

    def weir(self, ty):
        text = f"{self.column} {self.operator}"
        return text if self.operator.startswith("IS") else f"{text} {weir_literal(ty, self.value)}"


def python_literal(ty, value):
    """The Python value that pypaimon compares with."""
    if ty.name == "DECIMAL":
        return decimal.Decimal(decimal_text(value, ty.numbers[1]))
    if ty.name == "DATE":
        return (EPOCH + datetime.timedelta(days=value)).date()
    if ty.name == "TIME":
        return (EPOCH + datetime.timedelta(milliseconds=value)).time()
    if ty.name in ("TIMESTAMP", "TIMESTAMP_LTZ") and ty.precision > 6:
        return pa.scalar(value, pa.timestamp("ns", "UTC" if ty.name == "TIMESTAMP_LTZ" else None))
    if ty.name in ("TIMESTAMP", "TIMESTAMP_LTZ"):
        zone = datetime.timezone.utc if ty.name == "TIMESTAMP_LTZ" else None
        return (EPOCH + datetime.timedelta(microseconds=value // 1000)).replace(tzinfo=zone)
    return value


def sql_literal(ty, value):
    if ty.name in TEXT:
        return "'" + value.replace("'", "''") + "'"
    if ty.name in ("BINARY", "BYTES"):
        return f"X'{value.hex()}'"
    if ty.name == "DECIMAL":
        return f"CAST('{decimal_text(value, ty.numbers[1])}' AS DECIMAL({ty.numbers[0]}, {ty.numbers[1]}))"
    if ty.name == "DATE":
        return f"DATE '{date_text(value)}'"
    if ty.name == "TIME":
        return f"arrow_cast('{time_text(value)}', 'Time32(Millisecond)')"
    if ty.name in ("TIMESTAMP", "TIMESTAMP_LTZ"):
        unit = "Millisecond" if ty.precision <= 3 else "Microsecond" if ty.precision <= 6 else "Nanosecond"
        zone, z = ('Some("UTC")', "Z") if ty.name == "TIMESTAMP_LTZ" else ("None", "")
        return f"arrow_cast('{instant_text(value)}{z}', 'Timestamp({unit}, {zone})')"
    if ty.name in ("FLOAT", "DOUBLE"):
        return f"CAST('{value!r}' AS {ty.name})"
    return str(value).lower() if isinstance(value, bool) else str(value)


def weir_literal(ty, value):
    """A literal of `weir lake cat --where`."""
    if ty.name in TEXT:
        return "'" + value.replace("'", "''") + "'"
    if ty.name in ("BINARY", "BYTES"):
        return f"'{value.hex()}'"
    if ty.name == "DECIMAL":
        return decimal_text(value, ty.numbers[1])
    if ty.name == "DATE":
        return f"'{date_text(value)}'"
    if ty.name == "TIME":
        return f"'{time_text(value)}'"
    if ty.name in ("TIMESTAMP", "TIMESTAMP_LTZ"):
        return f"'{instant_text(value)}'"
    if ty.name in ("FLOAT", "DOUBLE"):
        return repr(value)
    return str(value).lower() if isinstance(value, bool) else str(value)




def java_literal(ty, value):
    """A literal as lakecheck's `Answers` takes it."""
    if value is None:
        return ""
    if ty.name in ("BINARY", "BYTES"):
        return value.hex()
    if ty.name in ("FLOAT", "DOUBLE"):
        return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}.get(repr(value), repr(value))
    return str(value).lower() if isinstance(value, bool) else str(value)
