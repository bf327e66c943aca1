"""What stands in the manifests of a table, read without any Paimon library: Avro by fastavro, binary rows here.

Facts of the binary row: `BinaryRow` of Paimon. Fixed part (null bits, 8 bytes a field), then the variable part; little endian, behind the number
of fields in 4 bytes big endian.
"""
import json
import pathlib
import struct

import fastavro
from kinds import TEXT

_INTEGERS = {"TINYINT": "<b", "SMALLINT": "<h", "INT": "<i", "DATE": "<i", "TIME": "<i", "BIGINT": "<q", "FLOAT": "<f", "DOUBLE": "<d"}


def decode_row(serialized, types):
    """The values of a serialized binary row, in the forms of kinds.py."""
    (arity,) = struct.unpack(">i", serialized[:4])
    assert arity == len(types), (arity, len(types))
    row = serialized[4:]
    bits = (arity + 8 + 63) // 64 * 8
    assert row[:1] == b"\0", "the row kind of stored rows is 0"
    return [None if row[(i + 8) // 8] >> ((i + 8) % 8) & 1 else _value(row, bits + 8 * i, ty) for i, ty in enumerate(types)]


def _value(row, at, ty):
    slot = row[at : at + 8]
    (number,) = struct.unpack("<q", slot)
    start, length = number >> 32, number & 0xFFFFFFFF
    if ty.name == "BOOLEAN":
        return slot[0] != 0
    if ty.name in _INTEGERS:
        form = _INTEGERS[ty.name]
        return struct.unpack(form, slot[: struct.calcsize(form)])[0]
    if ty.name == "DECIMAL":
        return number if ty.numbers[0] <= 18 else int.from_bytes(row[start : start + length], "big", signed=True)
    if ty.name in ("TIMESTAMP", "TIMESTAMP_LTZ"):
        if ty.precision <= 3:
            return number * 1_000_000
        (millis,) = struct.unpack("<q", row[start : start + 8])
        assert 0 <= length < 1_000_000, "nanoseconds of the millisecond"
        return millis * 1_000_000 + length
    assert ty.name in (*TEXT, "BINARY", "BYTES"), ty
    data = slot[: slot[7] & 0x7F] if slot[7] & 0x80 else row[start : start + length]
    return data.decode() if ty.name in TEXT else data


def _records(path):
    with open(path, "rb") as file:
        return list(fastavro.reader(file))


class Lake:
    """The metadata of a table's newest snapshot."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        newest = max(int(path.name[9:]) for path in self.folder.glob("snapshot/snapshot-*"))
        self.snapshot = json.loads((self.folder / f"snapshot/snapshot-{newest}").read_text())

    def schema(self, schema_id):
        return json.loads((self.folder / f"schema/schema-{schema_id}").read_text())

    def newest_schema(self):
        return self.schema(max(int(path.name[7:]) for path in self.folder.glob("schema/schema-*")))

    def manifest_files(self):
        lists = (self.snapshot["baseManifestList"], self.snapshot["deltaManifestList"])
        return [record for name in lists for record in _records(self.folder / "manifest" / name)]

    def files(self):
        """The entries of the live files."""
        live = {}
        for manifest in self.manifest_files():
            for entry in _records(self.folder / "manifest" / manifest["_FILE_NAME"]):
                key = (entry["_PARTITION"], entry["_BUCKET"], entry["_FILE"]["_LEVEL"], entry["_FILE"]["_FILE_NAME"])
                if entry["_KIND"] == 0:
                    assert key not in live, f"{key} is added twice"
                    live[key] = entry
                else:
                    del live[key]
        return list(live.values())

    def partition(self, entry, types):
        return decode_row(entry["_PARTITION"], types)

    def stats(self, entry, columns):
        """Per column that has statistics its minimum, maximum and null count, as the manifest says."""
        file = entry["_FILE"]
        names = file["_VALUE_STATS_COLS"]
        if names is None:
            names = [name for name, _ in columns]
        types = [dict(columns)[name] for name in names]
        values = file["_VALUE_STATS"]
        low, high = decode_row(values["_MIN_VALUES"], types), decode_row(values["_MAX_VALUES"], types)
        assert len(values["_NULL_COUNTS"]) == len(names), "one null count a column"
        return {name: bounds for name, *bounds in zip(names, low, high, values["_NULL_COUNTS"])}


_ESCAPED = set(map(chr, range(0x20))) | set("\"#%'*/:=?\\\x7f{}[]^")


def escaped(text):
    """As Paimon spells a partition value in a folder name."""
    return "".join(f"%{ord(c):02X}" if c in _ESCAPED else c for c in text)
