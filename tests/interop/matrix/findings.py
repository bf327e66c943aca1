"""What each reader answers, against what is known of it.

A reader that answers the generator's values is `same`. Any other answer must stand in `KNOWN`, word for word: a reader that changes is noticed.
"""
import collections
import re

SAME = "same"

# (section, subject, reader): (what it answers, what that means for people)
KNOWN = {
    **{
        ("partition", kind, "pypaimon"): (
            "FileNotFoundError: [Errno 2] Failed to open local file …",
            "looks for bytes in the folder of Python's text for them (`p=b%27…%27`): not readable",
        )
        for kind in ("BINARY(4)", "BYTES")
    },
    **{
        ("partition", kind, "pypaimon"): (
            "FileNotFoundError: [Errno 2] Failed to open local file …",
            "cuts partition values to microseconds, and does not find folders of finer ones",
        )
        for kind in ("TIMESTAMP(9)", "TIMESTAMP_LTZ(9)")
    },
    **{
        ("partition", kind, "rust"): (
            f"NotImplementedError: Paimon hitting unsupported error {name}({name}Type {{ nullable: true }}) type is not supported as partition key",
            "does not take floats as partition columns",
        )
        for kind, name in (("FLOAT", "Float"), ("DOUBLE", "Double"))
    },
    ("partition", "FLOAT", "java"): (
        "JavaError: FileNotFoundException: File … not found, Possible causes: 1.snapshot expires too fast, you can configure 'snapshot.time-retained' option with a larger value. 2.consumption is too slow, you ",
        "JDKs before 19 spell some floats with more digits than it takes (`1.17549435E-38`), and look for folders of these names",
    ),
    ("partition", "BINARY(4)", "java"): (
        "= b'\\x00\\xff\\x10\\xab' gives 0 rows instead of 2",
        "reads all rows, but finds none by `=`",
    ),
    ("partition", "BYTES", "java"): ("= b'\\x00' gives 0 rows instead of 2", "reads all rows, but finds none by `=`"),
    ("filter", "BINARY(4)", "java"): ("< gives 0 rows instead of 8", "compares bytes as signed"),
    ("filter", "BYTES", "java"): ("< gives 2 rows instead of 8", "compares bytes as signed"),
    ("filter", "BIGINT", "rust"): (
        "ValueError: Internal error: Assertion failed: (0.0..=1.0).contains(&selectivity): Selectivity is out of limit: inf.",
        "its planner fails on any filter on a column whose statistics span the whole range of BIGINT",
    ),
    ("filter", "TIMESTAMP_LTZ(9)", "pypaimon"): (
        "ArrowInvalid: Cannot compare timestamp with timezone to timestamp without timezone, got: timestamp[ns] and timestamp[ns, tz=UTC]",
        "does not filter instants finer than microseconds",
    ),
    **{
        ("float", f"`{condition}`", reader): (text, meaning)
        for reader, condition, text, meaning in (
            ("pypaimon", "= nan", "without nan", "NaN equals nothing"),
            ("pypaimon", "< nan", "without 1.0, without -1.0, without inf, without -inf, without -0.0, without 0.0, without 2.5", "nothing is below NaN"),
            ("pypaimon", "> 1.0", "without nan", "NaN is not above numbers"),
            ("pypaimon", ">= inf", "without nan", "NaN is not above numbers"),
            ("pypaimon", "!= nan", "with nan", "NaN does not equal itself"),
            ("rust", "= 0.0", "without -0.0", "zeros of different signs differ"),
            ("rust", "= -0.0", "without 0.0", "zeros of different signs differ"),
            ("rust", "< 0.0", "with -0.0", "zeros of different signs differ"),
            ("rust", "<= -0.0", "without 0.0", "zeros of different signs differ"),
            ("java", "= 0.0", "without -0.0", "-0.0 is below 0.0"),
            ("java", "= -0.0", "without 0.0", "-0.0 is below 0.0"),
            ("java", "< 0.0", "with -0.0", "-0.0 is below 0.0"),
            ("java", "<= -0.0", "without 0.0", "-0.0 is below 0.0"),
        )
    },
}


def answer(call):
    """What a call of a reader gives: `same`, or the first differences, or its error without paths."""
    try:
        found = call()
    except (Exception, BaseException) as error:  # noqa: BLE001 - a panic of the crate is no Exception
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise
        text = re.sub(r"'/[^']*'|/\S+", "…", str(error)).split("\n")[0]
        return re.sub(r"(…)[ .]*Detail.*", r"\1", f"{type(error).__name__}: {text}")[:200]
    return found or SAME


class Findings:
    """Answers by section, subject and reader."""

    def __init__(self):
        self.answers = collections.defaultdict(dict)

    def add(self, section, subject, reader, text):
        """Notes an answer; one other than `same` stays."""
        old = self.answers[section, subject].setdefault(reader, text)
        if old == SAME:
            self.answers[section, subject][reader] = text

    def check(self, section):
        """Fails if a reader answers other than it is known to."""
        wrong = []
        for (its_section, subject), by_reader in self.answers.items():
            for reader, text in by_reader.items():
                known = KNOWN.get((its_section, subject, reader), (SAME,))[0]
                if its_section == section and text != known:
                    wrong.append(f"{section}, {subject}, {reader}: {text!r}, known is {known!r}")
        if wrong:
            raise AssertionError("readers that answer other than they are known to:\n  " + "\n  ".join(wrong))
