"""The tables of the compatibility run: their columns and rows are the expectation, whatever a reader says."""
import dataclasses
import itertools
import random
import re

from kinds import NANOS, Type, canonical, edges, line, parse


@dataclasses.dataclass
class Table:
    """A table, with the rows that it is given. The first column is `id BIGINT NOT NULL`, unique."""

    name: str
    columns: list  # of (name, Type)
    rows: list  # of tuples
    bucket_key: tuple = ()
    buckets: int = 1
    partition_by: tuple = ()
    source: str = ""  # by which it is given its rows: pyfluss, parquet or jsonl

    def __post_init__(self):
        self.source = self.source or ("parquet" if self.partition_by else "pyfluss")

    def cells(self):
        """Per id the canonical value of each column."""
        return {row[0]: {name: canonical(ty, value) for (name, ty), value in zip(self.columns, row)} for row in self.rows}

    def lines(self):
        return [line(self.columns, row) for row in self.rows]

    def column(self, name):
        return next(i for i, (n, _) in enumerate(self.columns) if n == name)


def columns_of(*texts):
    pairs = [text.split(" ", 1) for text in ("id BIGINT NOT NULL", *texts)]
    return [(name, parse(ty)) for name, ty in pairs]


def samples(ty):
    """Values of any type, nulls in containers among them: at least two, the first of a container empty."""
    if ty.name == "ARRAY":
        inner = within(ty.parts[0])
        return [[], inner[:1], inner, inner[::-1] + inner]
    if ty.name == "MAP":
        keys, values = samples(ty.parts[0]), within(ty.parts[1])
        pairs = list(zip(keys, itertools.cycle(values)))
        return [[], pairs[:1], pairs[:3], pairs[::-1]]
    if ty.name == "ROW":
        parts = [within(part) for part in ty.parts]
        return [tuple(part[i % len(part)] for part in parts) for i in range(max(map(len, parts)))]
    return list(edges(ty))


def within(ty):
    """Values of a type as part of another: null among them where the type takes it."""
    found = samples(ty)
    return [found[0], None, *found[1:]] if ty.nullable else found


def all_values(name, columns, *, required=False, **more):
    """A table in which every sample of every column occurs, and (unless `required`) a row of nulls."""
    choices = [samples(ty) for _, ty in columns[1:]]
    count = max(map(len, choices))
    rows = [(i, *(choice[i % len(choice)] for choice in choices)) for i in range(count)]
    if not required:
        rows.append((count, *(None for _ in choices)))
    return Table(name, columns, rows, **more)


EVERY_TYPE = [
    "c_boolean BOOLEAN", "c_tinyint TINYINT", "c_smallint SMALLINT", "c_int INT", "c_bigint BIGINT", "c_float FLOAT", "c_double DOUBLE",
    "c_decimal_1_0 DECIMAL(1, 0)", "c_decimal_10_2 DECIMAL(10, 2)", "c_decimal_38_38 DECIMAL(38, 38)", "c_char CHAR(3)", "c_string STRING",
    "c_binary BINARY(4)", "c_bytes BYTES", "c_date DATE", "c_time_0 TIME(0)", "c_time_3 TIME(3)", "c_time_9 TIME(9)",
    "c_timestamp_0 TIMESTAMP(0)", "c_timestamp_3 TIMESTAMP(3)", "c_timestamp_6 TIMESTAMP(6)", "c_timestamp_9 TIMESTAMP(9)",
    "c_ltz_0 TIMESTAMP_LTZ(0)", "c_ltz_3 TIMESTAMP_LTZ(3)", "c_ltz_6 TIMESTAMP_LTZ(6)", "c_ltz_9 TIMESTAMP_LTZ(9)",
    "c_array ARRAY<INT>", "c_map MAP<STRING, INT>", "c_row ROW<a INT, b ARRAY<INT>>",
]
NESTED = [
    "n_array_array ARRAY<ARRAY<INT>>", "n_array_map ARRAY<MAP<STRING, ROW<x INT>>>", "n_array_row ARRAY<ROW<a INT, b STRING>>",
    "n_map_array MAP<INT, ARRAY<STRING>>", "n_map_map MAP<STRING, MAP<BIGINT, DOUBLE>>", "n_map_row MAP<DATE, ROW<a INT, b ARRAY<INT>>>",
    "n_row_row ROW<r ROW<r ROW<x INT, y STRING>, z BYTES>, s STRING>", "n_row_map ROW<m MAP<STRING, ARRAY<INT>>, a ARRAY<ROW<x INT>>>",
    "n_row_first_last ROW<first ARRAY<STRING>, v INT, last ARRAY<INT>>",
]


def nested_atoms():
    """Each type that is no container as element, as map value, and (where it can) as map key."""
    kinds = [column.split(" ", 1)[1] for column in EVERY_TYPE[:-3]]
    columns = [f"a{i} ARRAY<{kind}>" for i, kind in enumerate(kinds)]
    columns += [f"m{i} MAP<{kind}, {kind}>" for i, kind in enumerate(kinds) if kind not in ("FLOAT", "DOUBLE", "BOOLEAN")]
    columns += ["r ROW<" + ", ".join(f"f{i} {kind}" for i, kind in enumerate(kinds)) + ">"]
    return all_values("nested_atoms", columns_of(*columns))


def required(columns):
    """The same columns, NOT NULL inside and out."""
    return [re.sub(r",(?![^(]*\))|>", r" NOT NULL\g<0>", column) + " NOT NULL" for column in columns]


def of_types():
    """Tables that hold every type of the mapping, at every precision."""
    times = [f"{name} {kind}({p})" for p in range(10) for name, kind in ((f"t{p}", "TIMESTAMP"), (f"l{p}", "TIMESTAMP_LTZ"), (f"c{p}", "TIME"))]
    scales = [(p, s) for p in range(1, 39) for s in sorted({0, p // 2, p})]
    decimals = [f"d{p}_{s} DECIMAL({p}, {s})" for p, s in scales]
    return [
        all_values("every_type", columns_of(*EVERY_TYPE)),
        all_values("every_type_required", columns_of(*required(EVERY_TYPE)), required=True, bucket_key=("id",), buckets=2),
        all_values("every_type_by_json", columns_of(*EVERY_TYPE), source="jsonl"),
        all_values("times", columns_of(*times)),
        all_values("decimals", columns_of(*decimals), bucket_key=("id",), buckets=3),
        all_values("nested", columns_of(*NESTED)),
        nested_atoms(),
        Table("only_nulls", columns_of(*EVERY_TYPE, *NESTED), [(i, *([None] * (len(EVERY_TYPE) + len(NESTED)))) for i in range(3)]),
    ]


def of_floats():
    """NaN, infinities and zeros of both signs, in tables of their own: statistics span a file."""
    nan, inf = float("nan"), float("inf")
    columns = columns_of("f FLOAT", "d DOUBLE")
    choices = {
        "nan": [nan, 1.0, -1.0, None], "infinities": [inf, -inf, 0.5], "zero": [0.0], "negative_zero": [-0.0], "zeros": [-0.0, 0.0, None],
        "only_nan": [nan], "below_zero": [-2.5, -0.0], "nan_and_infinity": [inf, nan],
    }
    return [Table(name, columns, [(i, value, value) for i, value in enumerate(values)]) for name, values in choices.items()]


def for_filters():
    """Every type, and rows that stand in several files, few values each."""
    made = all_values("every_type", columns_of(*EVERY_TYPE))
    return Table("every_type", made.columns, made.rows + [(len(made.rows), *made.rows[-1][1:])])


# Tables by chance.

ATOMS = ["BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "STRING", "BYTES", "DATE"]
KEYS = ("TINYINT", "SMALLINT", "INT", "BIGINT", "DECIMAL", "CHAR", "STRING", "BINARY", "BYTES", "DATE", "TIME", "TIMESTAMP", "TIMESTAMP_LTZ")


def any_type(chance, depth=0):
    """A type, nested up to three deep."""
    nullable = chance.random() < 0.7
    if depth < 3 and chance.random() < 0.3:
        kind = chance.choice(["ARRAY", "MAP", "ROW"])
        if kind == "ROW":
            parts = tuple(any_type(chance, depth + 1) for _ in range(chance.randint(1, 4)))
            return Type("ROW", (), parts, tuple(f"f{i}" for i in range(len(parts))), nullable)
        if kind == "MAP":
            key = next(ty for ty in iter(lambda: any_type(chance, 9), None) if ty.name in KEYS)
            return Type("MAP", (), (dataclasses.replace(key, nullable=False), any_type(chance, depth + 1)), (), nullable)
        return Type("ARRAY", (), (any_type(chance, depth + 1),), (), nullable)
    number = chance.randrange(10)
    name, numbers = [
        ("DECIMAL", ()), ("CHAR", (chance.randint(1, 20),)), ("BINARY", (chance.randint(1, 20),)), ("TIME", (number,)), ("TIMESTAMP", (number,)),
        ("TIMESTAMP_LTZ", (number,)), *((atom, ()) for atom in ATOMS),
    ][chance.randrange(16)]
    if name == "DECIMAL":
        precision = chance.randint(1, 38)
        numbers = (precision, chance.randint(0, precision))
    return Type(name, numbers, (), (), nullable)


def any_value(chance, ty):
    """A value of a type: often one of its ends."""
    if ty.nullable and chance.random() < 0.2:
        return None
    if ty.name == "ARRAY":
        return [any_value(chance, ty.parts[0]) for _ in range(chance.choice([0, 1, 2, 5]))]
    if ty.name == "MAP":
        keys = {canonical(ty.parts[0], key): key for key in (any_value(chance, ty.parts[0]) for _ in range(chance.choice([0, 1, 3])))}
        return [(key, any_value(chance, ty.parts[1])) for key in keys.values()]
    if ty.name == "ROW":
        return tuple(any_value(chance, part) for part in ty.parts)
    ends = edges(ty)
    if chance.random() < 0.5:
        return chance.choice(ends)
    if ty.name in ("TINYINT", "SMALLINT", "INT", "BIGINT", "DECIMAL", "DATE"):
        return chance.randint(min(ends), max(ends))
    if ty.name in ("TIME", "TIMESTAMP", "TIMESTAMP_LTZ"):
        tick = 10 ** max(0, 3 - ty.precision) if ty.name == "TIME" else 10 ** (9 - ty.precision)
        return chance.randint(min(ends) // tick, max(ends) // tick) * tick
    if ty.name == "DOUBLE":
        return chance.gauss(0, 10.0 ** chance.randint(-20, 20))
    if ty.name == "STRING":
        return "".join(chance.choice("abz0 é中😀\U0010ffff\0\ud7ff") for _ in range(chance.choice([0, 1, 7, 8, 16, 17, 40])))
    if ty.name == "BYTES":
        return chance.randbytes(chance.choice([0, 1, 7, 8, 40]))
    return chance.choice(ends)


def by_chance(seed):
    """A table of any columns and rows; the same seed gives the same table."""
    chance = random.Random(seed)
    columns = [("id", parse("BIGINT NOT NULL")), *((f"c{i}", any_type(chance)) for i in range(chance.randint(1, 12)))]
    rows = [(i, *(any_value(chance, ty) for _, ty in columns[1:])) for i in range(chance.choice([1, 5, 60]))]
    keys = [name for name, ty in columns if ty.name in KEYS and ty.name not in ("TIME",)]
    bucket_key = tuple(chance.sample(keys, min(len(keys), chance.randint(0, 2))))
    return Table(f"seed_{seed}", columns, rows, bucket_key=bucket_key, buckets=chance.randint(1, 4))


# Partition columns.

PARTITION_TYPES = [
    "BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "CHAR(3)", "STRING", "BINARY(4)", "BYTES", "DATE", "TIME(0)", "TIME(3)",
    "TIMESTAMP(0)", "TIMESTAMP(3)", "TIMESTAMP(6)", "TIMESTAMP(9)", "TIMESTAMP_LTZ(0)", "TIMESTAMP_LTZ(3)", "TIMESTAMP_LTZ(6)", "TIMESTAMP_LTZ(9)",
]
FLUSS_TEXTS = ["a", "None", "null", "NULL", "1234567", "12345678", "-", "_", "0", "x" * 200, "20240301"]
STRANGE_TEXTS = [
    "a/b", "100%", "..", ".", "a\0b", "détente 水路 😀", "", " ", "\t", "None", "null", "a=b", "a b", "%2F", "__DEFAULT_PARTITION__", "'\"\\", "{[^]}:*?#", "\x7f\x1f",
    "x" * 100, None,
]
NEW_YEAR = 1_704_067_200 * NANOS  # 2024-01-01T00:00:00


def partition_values(ty):
    """The values of a partition column that a stream can have, by Fluss's rules of names."""
    if ty.name in ("CHAR", "STRING"):
        return [text for text in FLUSS_TEXTS if ty.name == "STRING" or len(text) <= ty.numbers[0]]
    values = list(dict.fromkeys(edges(ty)))
    if ty.name.startswith("TIMESTAMP"):
        values += [NEW_YEAR, NEW_YEAR + 45_000 * NANOS]
        values += [NEW_YEAR + 3_723 * NANOS + 456_000] if ty.precision >= 6 else []
    return [value for value in values if not (ty.name == "BYTES" and len(value) not in range(1, 101))]


def by_partition_type():
    """A table per type of partition column, two rows a partition."""
    made = []
    for text in PARTITION_TYPES:
        ty = parse(text)
        values = partition_values(ty)
        rows = [(i, f"v{i}", values[i % len(values)]) for i in range(2 * len(values))]
        name = "by_" + re.sub(r"\W+", "_", text.lower()).strip("_")
        source = "jsonl" if ty.numbers == (0,) else "parquet"
        made.append(Table(name, columns_of("v STRING", f"p {text}"), rows, partition_by=("p",), source=source))
    return made


def by_strange_texts():
    """Partitions by any text that Paimon takes, written by the table format alone."""
    rows = [(i, f"v{i}", STRANGE_TEXTS[i % len(STRANGE_TEXTS)]) for i in range(2 * len(STRANGE_TEXTS))]
    return Table("by_strange_texts", columns_of("v STRING", "p STRING"), rows, partition_by=("p",))


def by_old_names():
    """Partitions whose folders have Paimon's default names, the internal values (`partition.legacy-name`)."""
    columns = columns_of("d DATE", "n INT", "t TIMESTAMP(3)")
    times = [NEW_YEAR, NEW_YEAR + 45_000 * NANOS, NEW_YEAR + 3_723_004 * 1_000_000, -1_000_000]
    rows = [(i, (19_783, -3_487)[i % 2], i % 3 - 1, times[i % 4]) for i in range(12)]
    return Table("by_old_names", columns, rows, partition_by=("d", "n", "t"))
