"""Types and values as the generator of tables knows them, written without a look at any reader.

A value is a plain Python one: DECIMAL its unscaled integer, DATE days, TIME milliseconds of the day, TIMESTAMP nanoseconds since 1970 (both
kinds), BINARY and BYTES `bytes`, ARRAY a list, MAP a list of pairs, ROW a tuple; null is None.
"""
import dataclasses
import datetime
import decimal
import functools
import json
import re

import numpy as np
import pyarrow as pa

NANOS = 1_000_000_000
TEXT = ("CHAR", "VARCHAR", "STRING")
EPOCH = datetime.datetime(1970, 1, 1)


@dataclasses.dataclass(frozen=True)
class Type:
    """A type: its name, its numbers, the types in it, the names of a row's fields."""

    name: str
    numbers: tuple = ()
    parts: tuple = ()
    fields: tuple = ()
    nullable: bool = True

    def __str__(self):
        """As Fluss and `weir table create` spell it."""
        if self.name == "ROW":
            text = "ROW<" + ", ".join(f"{n} {t}" for n, t in zip(self.fields, self.parts)) + ">"
        elif self.parts:
            text = self.name + "<" + ", ".join(map(str, self.parts)) + ">"
        else:
            text = self.name + (f"({', '.join(map(str, self.numbers))})" if self.numbers else "")
        return text + ("" if self.nullable else " NOT NULL")

    @property
    def precision(self):
        return self.numbers[0]


def parse(text):
    """A type from its text."""
    tokens = re.findall(r"\w+|[<>(),]", text)
    found = _parse(tokens)
    assert not tokens, (text, tokens)
    return found


def _parse(tokens):
    name, numbers, parts, fields = tokens.pop(0), [], [], []
    if tokens and tokens[0] == "(":
        while tokens.pop(0) != ")":
            numbers.append(int(tokens.pop(0)))
    if tokens and tokens[0] == "<":
        while tokens.pop(0) != ">":
            if name == "ROW":
                fields.append(tokens.pop(0))
            parts.append(_parse(tokens))
    nullable = tokens[:2] != ["NOT", "NULL"]
    if not nullable:
        del tokens[:2]
    if name == "MAP":  # keys are never null
        parts[0] = dataclasses.replace(parts[0], nullable=False)
    return Type(name, tuple(numbers), tuple(parts), tuple(fields), nullable)


def lake_json(ty, ids):
    """The type in a Paimon schema file; `ids` gives field ids. TIME has precision 0: Paimon keeps milliseconds under it."""
    null = "" if ty.nullable else " NOT NULL"
    if ty.name == "ARRAY":
        return {"type": "ARRAY" + null, "element": lake_json(ty.parts[0], ids)}
    if ty.name == "MAP":
        return {"type": "MAP" + null, "key": lake_json(ty.parts[0], ids), "value": lake_json(ty.parts[1], ids)}
    if ty.name == "ROW":
        return {"type": "ROW" + null, "fields": [lake_field(n, t, ids) for n, t in zip(ty.fields, ty.parts)]}
    if ty.name == "TIME":
        return "TIME(0)" + null
    if ty.name == "TIMESTAMP_LTZ":
        return f"TIMESTAMP({ty.precision}) WITH LOCAL TIME ZONE" + null
    return str(ty)


def lake_type(json_type):
    """The type of a Paimon schema file's."""
    if isinstance(json_type, str):
        return parse(re.sub(r"TIMESTAMP\((\d)\) WITH LOCAL TIME ZONE", r"TIMESTAMP_LTZ(\1)", json_type))
    nullable = not json_type["type"].endswith("NOT NULL")
    name = json_type["type"].removesuffix(" NOT NULL")
    if name == "ROW":
        fields = json_type["fields"]
        return Type(name, (), tuple(lake_type(field["type"]) for field in fields), tuple(field["name"] for field in fields), nullable)
    parts = {"ARRAY": ("element",), "MAP": ("key", "value")}[name]
    return Type(name, (), tuple(lake_type(json_type[part]) for part in parts), (), nullable)


def lake_field(name, ty, ids):
    field_id = next(ids)
    return {"id": field_id, "name": name, "type": lake_json(ty, ids)}


# As Arrow, the form in which rows are given to the product.


def _unit(precision):
    return "s" if precision == 0 else "ms" if precision <= 3 else "us" if precision <= 6 else "ns"


_NANOS_OF = {"s": NANOS, "ms": 1_000_000, "us": 1_000, "ns": 1}


def arrow_field(name, ty):
    return pa.field(name, arrow_type(ty), ty.nullable)


def arrow_type(ty):
    simple = {
        "BOOLEAN": pa.bool_(), "TINYINT": pa.int8(), "SMALLINT": pa.int16(), "INT": pa.int32(), "BIGINT": pa.int64(), "FLOAT": pa.float32(),
        "DOUBLE": pa.float64(), "CHAR": pa.string(), "VARCHAR": pa.string(), "STRING": pa.string(), "BYTES": pa.binary(), "DATE": pa.date32(),
    }
    if ty.name in simple:
        return simple[ty.name]
    if ty.name == "DECIMAL":
        return pa.decimal128(*ty.numbers)
    if ty.name == "BINARY":
        return pa.binary(ty.numbers[0])
    if ty.name == "TIME":
        unit = _unit(ty.precision)
        return pa.time32(unit) if unit in ("s", "ms") else pa.time64(unit)
    if ty.name in ("TIMESTAMP", "TIMESTAMP_LTZ"):
        return pa.timestamp(_unit(ty.precision), "UTC" if ty.name == "TIMESTAMP_LTZ" else None)
    if ty.name == "ARRAY":
        return pa.list_(arrow_field("element", ty.parts[0]))
    if ty.name == "MAP":
        return pa.map_(arrow_type(ty.parts[0]), arrow_field("value", ty.parts[1]))
    assert ty.name == "ROW", ty
    return pa.struct([arrow_field(n, t) for n, t in zip(ty.fields, ty.parts)])


def lake_form(ty):
    """A type of the same values whose Arrow form is the one that lake files are written from."""
    if ty.name == "BINARY":
        return dataclasses.replace(ty, name="BYTES", numbers=())
    if ty.name == "TIME" or (ty.name in ("TIMESTAMP", "TIMESTAMP_LTZ") and ty.precision < 3):
        return dataclasses.replace(ty, numbers=(3,))
    return dataclasses.replace(ty, parts=tuple(map(lake_form, ty.parts)))


def arrow_value(ty, value):
    """What pyarrow takes for the value."""
    if value is None:
        return None
    if ty.name == "DECIMAL":
        return decimal.Decimal(decimal_text(value, ty.numbers[1]))
    if ty.name == "TIME":
        return value * 1_000_000 // _NANOS_OF[_unit(ty.precision)]
    if ty.name in ("TIMESTAMP", "TIMESTAMP_LTZ"):
        count, rest = divmod(value, _NANOS_OF[_unit(ty.precision)])
        assert rest == 0, (ty, value)
        return count
    if ty.name == "ARRAY":
        return [arrow_value(ty.parts[0], v) for v in value]
    if ty.name == "MAP":
        return [(arrow_value(ty.parts[0], k), arrow_value(ty.parts[1], v)) for k, v in value]
    if ty.name == "ROW":
        return {n: arrow_value(t, v) for n, t, v in zip(ty.fields, ty.parts, value)}
    return value


def arrow_table(columns, rows):
    """Rows of `columns`, pairs of name and type, as a pyarrow table."""
    schema = pa.schema([arrow_field(name, ty) for name, ty in columns])
    arrays = [pa.array([arrow_value(ty, row[i]) for row in rows], arrow_type(ty)) for i, (_, ty) in enumerate(columns)]
    return pa.Table.from_arrays(arrays, schema=schema)


# As canonical JSON, the form in which rows are compared (lakecheck/README.md).


def text_json(text):
    out = []
    for c in text:
        out.append({'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(c) or (f"\\u{ord(c):04x}" if ord(c) < 0x20 else c))
    return '"' + "".join(out) + '"'


def decimal_text(unscaled, scale):
    digits = str(abs(unscaled)).rjust(scale + 1, "0")
    sign = "-" if unscaled < 0 else ""
    return sign + (digits if scale == 0 else digits[:-scale] + "." + digits[-scale:])


def float_json(text):
    special = {"nan": '"NaN"', "inf": '"Infinity"', "-inf": '"-Infinity"'}
    if text in special:
        return special[text]
    number = decimal.Decimal(text)
    return "0" if number == 0 else format(number.normalize(), "f")


def instant_text(nanos):
    seconds, rest = divmod(nanos, NANOS)
    return (EPOCH + datetime.timedelta(seconds=seconds)).isoformat() + f".{rest:09d}"


def date_text(days):
    return (EPOCH + datetime.timedelta(days=days)).date().isoformat()


def time_text(millis):
    return f"{millis // 3_600_000:02d}:{millis // 60_000 % 60:02d}:{millis // 1000 % 60:02d}.{millis % 1000:03d}"


_ATOMIC = {
    "BOOLEAN": lambda ty, v: "true" if v else "false",
    **dict.fromkeys(("TINYINT", "SMALLINT", "INT", "BIGINT"), lambda ty, v: str(v)),
    "FLOAT": lambda ty, v: float_json(str(np.float32(v))),
    "DOUBLE": lambda ty, v: float_json(repr(v)),
    "DECIMAL": lambda ty, v: text_json(decimal_text(v, ty.numbers[1])),
    **dict.fromkeys(TEXT, lambda ty, v: text_json(v)),
    **dict.fromkeys(("BINARY", "BYTES"), lambda ty, v: text_json(v.hex())),
    "DATE": lambda ty, v: text_json(date_text(v)),
    "TIME": lambda ty, v: text_json(time_text(v)),
    "TIMESTAMP": lambda ty, v: text_json(instant_text(v)),
    "TIMESTAMP_LTZ": lambda ty, v: text_json(instant_text(v) + "Z"),
}


def canonical(ty, value):
    """The value as canonical JSON."""
    if value is None:
        return "null"
    if ty.name == "ARRAY":
        return "[" + ",".join(canonical(ty.parts[0], v) for v in value) + "]"
    if ty.name == "MAP":
        pairs = [f"[{canonical(ty.parts[0], k)},{canonical(ty.parts[1], v)}]" for k, v in value]
        return "[" + ",".join(sorted(pairs, key=utf16)) + "]"
    if ty.name == "ROW":
        return "{" + ",".join(f"{text_json(n)}:{canonical(t, v)}" for n, t, v in zip(ty.fields, ty.parts, value)) + "}"
    return _ATOMIC[ty.name](ty, value)


def utf16(text):
    """The order of lines: that of UTF-16 code units."""
    return text.encode("utf-16-be", "surrogatepass")


def line(columns, row):
    return "{" + ",".join(f"{text_json(name)}:{canonical(ty, value)}" for (name, ty), value in zip(columns, row)) + "}"


# Every value that a type's ends and traps are made of.

DAY = 86_400
MIN_SECONDS = -62_135_596_800  # 0001-01-01T00:00:00
MAX_SECONDS = 253_402_300_799  # 9999-12-31T23:59:59
MIN_NANOS_64, MAX_NANOS_64 = -(2**63), 2**63 - 1  # as Arrow counts nanoseconds: years 1677 to 2262


def _instants(precision):
    tick = 10 ** (9 - precision)
    largest = NANOS - tick
    values = [
        0, -tick, tick, -1 * NANOS, 1_709_294_400 * NANOS, 1_746_529_200 * NANOS + largest, -2_208_988_800 * NANOS,
        -300_000_000 * NANOS + largest,
    ]
    if precision > 6:
        return [*values, MIN_NANOS_64 // tick * tick + (tick if MIN_NANOS_64 % tick else 0), MAX_NANOS_64 // tick * tick]
    return [*values, MIN_SECONDS * NANOS, MAX_SECONDS * NANOS + largest]


def _integers(bits):
    return [0, 1, -1, -(2 ** (bits - 1)), 2 ** (bits - 1) - 1]


TEXTS = ["", " ", "a", "1234567", "12345678", "détente 水路 😀", "\u0000\u0001\t\n\r\"\\/", "string value number one", "\U0010ffff" * 17, "'; --%_*?"]


@functools.cache
def edges(ty):
    """The values at the ends of a type that is no container, lowest and highest among them; at least two."""
    n = ty.name
    if n == "BOOLEAN":
        return (False, True)
    if n in ("TINYINT", "SMALLINT", "INT", "BIGINT"):
        return tuple(_integers({"TINYINT": 8, "SMALLINT": 16, "INT": 32, "BIGINT": 64}[n]))
    if n == "FLOAT":
        ends = [np.finfo(np.float32).max, np.finfo(np.float32).tiny, np.finfo(np.float32).smallest_subnormal]
        return (0.0, 1.5, -1.5, *map(float, ends), float(-ends[0]), float(np.float32(0.1)), float(np.float32(16777217.0)))
    if n == "DOUBLE":
        return (0.0, 1.5, -1.5, 1.7976931348623157e308, -1.7976931348623157e308, 2.2250738585072014e-308, 5e-324, 0.1, 123456789.123456789)
    if n == "DECIMAL":
        top = 10 ** ty.numbers[0] - 1
        return (0, 1, -1, top, -top)
    if n in ("CHAR", "VARCHAR"):
        return tuple(text[: ty.numbers[0]] for text in ("abcdefghijklmnopqrstuvwxyz" * 9, "é水😀" * 80, "a", "0 %" * 80))
    if n == "STRING":
        return tuple(TEXTS)
    if n == "BINARY":
        return tuple((pattern * 300)[: ty.numbers[0]] for pattern in (b"\x00\xff\x10\xab", b"\x7f\x80\x81\x82", b"\x00", b"\xff"))
    if n == "BYTES":
        return (b"", b"\x00", b"\xff" * 17, b"\x00\xff\x10\xab", bytes(range(256)))
    if n == "DATE":
        return (0, -1, 1, 19_783, -3_487, MIN_SECONDS // DAY, MAX_SECONDS // DAY)
    if n == "TIME":
        tick = 10 ** max(0, 3 - ty.precision)
        return tuple(v // tick * tick for v in (0, 43_200_001, 86_399_999, 1, 999))
    assert n in ("TIMESTAMP", "TIMESTAMP_LTZ"), ty
    return tuple(_instants(ty.precision))


# As JSON lines, the other form in which rows are given to the product.


def source_json(ty, value):
    """What `weir load` reads from a line."""
    if value is None:
        return None
    if ty.name == "DECIMAL":
        return decimal_text(value, ty.numbers[1])
    if ty.name in ("BINARY", "BYTES"):
        return value.hex()
    if ty.name == "DATE":
        return date_text(value)
    if ty.name == "TIME":
        return time_text(value)
    if ty.name in ("TIMESTAMP", "TIMESTAMP_LTZ"):
        return instant_text(value)
    if ty.name == "ARRAY":
        return [source_json(ty.parts[0], v) for v in value]
    if ty.name == "MAP":
        return {source_json(ty.parts[0], k): source_json(ty.parts[1], v) for k, v in value}
    if ty.name == "ROW":
        return {n: source_json(t, v) for n, t, v in zip(ty.fields, ty.parts, value)}
    return value


def source_line(columns, row):
    return json.dumps({name: source_json(ty, value) for (name, ty), value in zip(columns, row)})
