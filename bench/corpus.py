#!/usr/bin/env python3
"""How many bugs of a corpus of published threads docs/faults.md names: by a row of the table, or in other words.

    python3 bench/corpus.py ../shared/realbugs/bugs.tsv

The corpus is a table with a bug a line: `thread` (owner/repository#number) and `verdict`, which says what is to be expected of any tool of
this kind: R, RA, N, NA could have a name; L is located at best, its cause unknown or no function of the inputs; I comes and goes between
runs; O is outside. A bug counts as named where the tables cite its thread as repository#number. Those that could have a name and have
none are listed."""
import collections
import csv
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def cited():
    """{repository#number: "row" or "words"}"""
    table, others = (ROOT / "docs" / "faults.md").read_text().split("## Published bugs")
    found = {}
    for text, how in ((others, "words"), (table, "row")):
        for line in text.splitlines():
            if line.startswith("|"):
                found.update(dict.fromkeys(re.findall(r"[\w.-]+#\d+", line.split("|")[-2]), how))
    return found


def main(path):
    rows = list(csv.DictReader(open(path, encoding="utf-8"), delimiter="\t", quoting=csv.QUOTE_NONE))
    citations, count, open_ = cited(), collections.Counter(), []
    for row in rows:
        thread = row["thread"].split("/")[-1]
        how = citations.get(thread) or {"L": "located", "I": "comes and goes", "O": "outside"}.get(row["verdict"], "open")
        count[how] += 1
        if how == "open":
            open_.append(f"{row['thread']}: {row['row_or_new_row']}")
    for how, title in (("row", "a row of the table"), ("words", "a guess, a note or an overflow"), ("open", "could have a name and have none"),
                       ("located", "located at best"), ("comes and goes", "come and go between runs"), ("outside", "outside")):
        print(f"{count[how]:4} {100 * count[how] / len(rows):4.0f} %  {title}")
    print(f"{len(rows):4}        bugs", *open_, sep="\n")
    unknown = sorted(t for t in citations if t not in {row["thread"].split("/")[-1] for row in rows})
    print("cited, and not in the corpus:", ", ".join(unknown) or "none")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
