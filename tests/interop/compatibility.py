#!/usr/bin/env python3
"""Every type through the product, read by every reader.

compatibility.py --weir BINARY --target FOLDER [--java] [--write] [--only NAME]
Tables come from a generator (matrix/tables.py), go through clients into the embedded server and through the daemon into the lake, and are read by
pypaimon, by the `paimon` crate and by `weir lake cat`. What a reader must answer is the generator's word, or a known deviation.
"""
import argparse
import difflib
import importlib
import pathlib
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "matrix")]

import page  # noqa: E402
from site_of_tables import CASES, Site  # noqa: E402
from smoke import Weir, java_tools  # noqa: E402
from type_cases import FIXED_SEEDS  # noqa: E402

for module in ("type_cases", "partition_cases", "statistic_cases", "value_cases", "filter_cases", "golden_cases"):
    importlib.import_module(module)


def page_of(site, java):
    """The page, and what is wrong with it without Java; the empty text if nothing."""
    on_page = ("types.", "parts.", "filters.")
    fixed = [table for name, table in site.tables.items() if name.startswith(on_page) or table.name in FIXED]
    mark = page.fingerprint(fixed)
    old = page.PAGE.read_text() if page.PAGE.exists() else ""
    cells, old_mark = page.old_cells(old)
    text = page.written(site.findings, [reader for reader in site.readers if reader is not site.java], mark, {} if java else cells)
    if not java and mark != old_mark:
        return text, f"Java's cells are from other tables ({old_mark}, now {mark}): run `make interop`, which reads them with Java"
    return text, ""


FIXED = {f"seed_{seed}" for seed in FIXED_SEEDS}


def settle_page(site, options):
    """Compares the page with the committed one, or writes it."""
    text, problem = page_of(site, options.java)
    if problem:
        return problem
    old = page.PAGE.read_text() if page.PAGE.exists() else ""
    if options.write:
        page.PAGE.write_text(text)
        return ""
    if old == text:
        return ""
    changes = difflib.unified_diff(old.splitlines(), text.splitlines(), "committed", "this run", lineterm="", n=0)
    return "lake-format/docs/compatibility.md is not what this run says (`make compatibility` writes it):\n" + "\n".join(changes)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--weir", required=True)
    parser.add_argument("--target", required=True)
    parser.add_argument("--java", action="store_true", help="reads with Java Paimon, too")
    parser.add_argument("--write", action="store_true", help="writes the page instead of comparing it")
    parser.add_argument("--only", help="cases with this in their name; the page is left alone")
    options = parser.parse_args()
    build = pathlib.Path(options.target) / "lakecheck" if options.java else None
    if build and java_tools(options.target) is None:
        raise SystemExit("--java needs Java and Maven")
    weir = Weir(options.weir, pathlib.Path(options.target) / "compatibility", zone="Asia/Shanghai")
    site = Site(weir, pathlib.Path(options.weir).with_name("weir-lake-writer"), build)
    passed = failed = 0
    try:
        for function in CASES:
            if options.only and options.only not in function.__name__:
                continue
            started = time.monotonic()
            try:
                function(site)
            except Exception as error:  # noqa: BLE001 - one case must not hide the others
                failed += 1
                print(f"FAILED  {function.__name__}: {error}", flush=True)
                continue
            passed += 1
            print(f"ok      {function.__name__} ({time.monotonic() - started:.1f} s)", flush=True)
        if not options.only and not failed:
            problem = settle_page(site, options)
            failed += bool(problem)
            print(f"FAILED  page: {problem}" if problem else "ok      page", flush=True)
    finally:
        weir.stop()
        if site.java:
            site.java.stop()
    print(f"compatibility: {passed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
