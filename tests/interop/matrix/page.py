"""The compatibility page, written by the run.

The cells of the readers of `make smoke` are made afresh by each run. Java's are made by `make interop`; a run without Java takes them from the
page as it stands, if they were made from the same tables: their fingerprint says so.
"""
import hashlib
import pathlib
import re

from findings import KNOWN, SAME

PAGE = pathlib.Path(__file__).resolve().parents[3] / "lake-format/docs/compatibility.md"
SECTIONS = {
    "value": ("Values", "Type", "rows of every table that has the type, as column, as element, key, value or field; every precision, the ends of every type, nulls, empty and null containers"),
    "partition": ("Partition columns", "Type", "two rows a partition: the rows, and filters on the partition column"),
    "filter": ("Filters", "Type", "every operator with the ends of the type and tests for null, over files that statistics tell apart"),
    "float": ("Filters on floats", "Filter", "NaN, infinities and zeros of both signs; right is that NaN equals itself and is above all numbers, and that zeros are equal"),
    "table": ("Tables of other writers", "Table", "golden tables as they are, and after Weir appended rows to them: old rows and new"),
}


def fingerprint(made):
    """Of the columns and rows that tables are given, whatever is read of them."""
    digest = hashlib.sha256()
    for table in sorted(made, key=lambda table: table.name):
        digest.update(repr((table.name, [(name, str(ty)) for name, ty in table.columns], table.lines())).encode())
    return digest.hexdigest()[:16]


def old_cells(text):
    """The cells of Java in a page, by section and subject, and the fingerprint that they were made from."""
    cells, section, columns = {}, None, []
    for line in text.split("\n"):
        if line.startswith("## "):
            section = next((key for key, (title, *_) in SECTIONS.items() if line == f"## {title}"), None)
        elif line.startswith("|") and section:
            parts = [part.strip() for part in line.strip("|").split(" | ")]
            if "Java Paimon 1.3.1" in line:
                columns = parts
            elif columns and not line.startswith("|-") and len(parts) == len(columns):
                cells[section, parts[0]] = parts[columns.index("Java Paimon 1.3.1")]
    found = re.search(r"from tables of fingerprint `(\w+)`", text)
    return cells, found.group(1) if found else None


def cell(section, subject, reader, text):
    if text == SAME:
        return SAME
    known = KNOWN.get((section, subject, reader))
    short = f"`{text if len(text) <= 100 else text[:99] + '…'}`"
    return f"{known[1]} ({short})" if known else short


def shown(subject):
    return f"`{subject}`" if "<" in subject and "`" not in subject else subject


def written(findings, readers, mark, java):
    """The page. `java` gives Java's cells where Java did not run."""
    lines = [
        "# What reads the tables that Weir writes",
        "",
        "Written by the test run (`tests/interop/compatibility.py`), not by hand. Tables come from a generator; `same` means that a reader gives exactly",
        "the generator's values. Whatever else a reader answers is named, and the run fails if it answers anything else.",
        "",
        "| reader | version | cells made by |",
        "|---|---|---|",
        *(f"| {reader.title} | {reader.version} | `{reader.command}` |" for reader in readers),
        f"| Java Paimon 1.3.1 | 1.3.1 (`paimon-bundle`) | `make interop`, from tables of fingerprint `{mark}` |",
        "",
    ]
    titles = [*(reader.title for reader in readers), "Java Paimon 1.3.1"]
    for section, (title, first, what) in SECTIONS.items():
        subjects = [subject for its, subject in findings.answers if its == section]
        if not subjects:
            continue
        lines += [f"## {title}", "", f"Compared: {what}.", "", f"| {first} | " + " | ".join(titles) + " |", "|---" * (len(titles) + 1) + "|"]
        for subject in subjects:
            answers = findings.answers[section, subject]
            cells = [cell(section, subject, reader.name, answers[reader.name]) if reader.name in answers else "–" for reader in readers]
            cells.append(cell(section, subject, "java", answers["java"]) if "java" in answers else java.get((section, shown(subject)), "–"))
            lines.append(f"| {shown(subject)} | " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines)


def family(ty):
    """The row of the page that a column of this type counts for."""
    if ty.name in ("TIMESTAMP", "TIMESTAMP_LTZ"):
        return f"{ty.name}({'0–3' if ty.precision <= 3 else '4–6' if ty.precision <= 6 else '7–9'})"
    if ty.name == "DECIMAL":
        return f"DECIMAL({'1–18' if ty.numbers[0] <= 18 else '19–38'}, s)"
    if ty.name in ("CHAR", "BINARY"):
        return f"{ty.name}(n)"
    if ty.name == "TIME":
        return "TIME(0–9)"
    return f"{ty.name} of anything" if ty.parts and any(part.parts for part in ty.parts) else ty.name


