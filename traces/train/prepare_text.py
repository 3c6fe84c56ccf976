#!/usr/bin/env python3
"""Extract the King James Bible from Debian's package bible-kjv-text into one UTF-8 file.

The program `bible` (Debian package bible-kjv) prints every verse as "Ge1:1 In the beginning ...".
This script drops the reference and keeps the words, in the package's own order and spelling.

Format of the output:
  * one verse per line, without book name, chapter or verse number;
  * one blank line between chapters, none at the end; every line ends with a single "\n".
Nothing is added: each line that is not blank is the text of exactly one verse.
"""

import argparse
import re
import subprocess
from pathlib import Path

CHAPTERS = 1189
VERSES = 31102
REFERENCE = re.compile(r"^([1-3]?[A-Za-z]+)(\d+):(\d+) (.+)$")


def read_package() -> list[str]:
    """All verses as the package's own program prints them, one per line, with their references."""
    command = ["bible", "-f", "ge1:1-rev22:21"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def split_chapters(lines: list[str]) -> list[list[str]]:
    """Group verse texts by chapter, checking that verses count up from 1 in each."""
    chapters: list[list[str]] = []
    current: tuple[str, str] | None = None
    for line in lines:
        match = REFERENCE.match(line)
        if match is None:
            raise ValueError(f"not a verse: {line!r}")
        book, chapter, verse, text = match.groups()
        if (book, chapter) != current:
            current = (book, chapter)
            chapters.append([])
        chapters[-1].append(text.strip())
        if int(verse) != len(chapters[-1]):
            raise ValueError(f"verse out of order: {line!r}")
    return chapters


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="text file to write")
    args = parser.parse_args()

    chapters = split_chapters(read_package())
    verses = sum(len(chapter) for chapter in chapters)
    if (len(chapters), verses) != (CHAPTERS, VERSES):
        raise SystemExit(f"expected {CHAPTERS} chapters and {VERSES} verses, got {len(chapters)} and {verses}")

    text = "\n\n".join("\n".join(chapter) for chapter in chapters) + "\n"
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_bytes(text.encode("utf-8"))
    print(f"{args.out}: {len(chapters)} chapters, {verses} verses, {len(text)} bytes")


if __name__ == "__main__":
    main()
