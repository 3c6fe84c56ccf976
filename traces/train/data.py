"""The tokenised text: one .npz per model, written by train_tokenizers.py and read by train.py.

A split ("train" or "valid") is a stream of chapters, [bos] chapter [eos] or chapter <|endoftext|>. Every verse is
also stored once more as a tokeniser sees it at the start of a prompt: SentencePiece puts a space before the first
word of a text, so there a verse begins with other tokens than in mid-chapter. A training window starts with a verse
in that form, after [bos] if the model has one, and goes on along the stream.
"""

from pathlib import Path
from typing import Callable, NamedTuple

import numpy as np

HELD_OUT_EVERY = 40
"""Chapters 20, 60, 100, ... are held out for validation."""


class Split(NamedTuple):
    stream: np.ndarray  # uint16: all chapters
    verse_end: np.ndarray  # int32: where in the stream verse v has ended
    head: np.ndarray  # uint16: all verses, each as the start of a prompt
    head_at: np.ndarray  # int32: verse v is head[head_at[v]:head_at[v + 1]]
    opens: np.ndarray  # bool: verse v is the first of its chapter


def read_chapters(path: Path) -> list[list[str]]:
    """The text file of prepare_text.py as verses, grouped by chapter."""
    return [block.split("\n") for block in path.read_text(encoding="utf-8").rstrip("\n").split("\n\n")]


def is_held_out(chapter: int) -> bool:
    return chapter % HELD_OUT_EVERY == HELD_OUT_EVERY // 2


def build_split(
    chapters: list[list[str]],
    encode: Callable[[str], list[int]],
    newlines: set[int],
    before: list[int],
    after: list[int],
) -> Split:
    """Tokenise chapters; before and after go around each. A verse ends with one of the tokens in newlines."""
    stream: list[int] = []
    head: list[int] = []
    verse_end: list[int] = []
    head_at: list[int] = [0]
    opens: list[bool] = []
    for chapter in chapters:
        ids = encode("\n".join(chapter))
        ends = [at + 1 for at, token in enumerate(ids) if token in newlines] + [len(ids)]
        if len(ends) != len(chapter):
            raise ValueError(f"{len(chapter)} verses became {len(ends)}: {chapter[0]!r}")
        stream += before
        chapter_at = len(stream)
        for number, (verse, end) in enumerate(zip(chapter, ends)):
            last = number == len(chapter) - 1
            head += encode(verse if last else verse + "\n")
            head_at.append(len(head))
            opens.append(number == 0)
            verse_end.append(chapter_at + end)
        stream += ids + after
    return Split(
        np.array(stream, np.uint16),
        np.array(verse_end, np.int32),
        np.array(head, np.uint16),
        np.array(head_at, np.int32),
        np.array(opens, np.bool_),
    )


def save(path: Path, splits: dict[str, Split]) -> None:
    arrays = {f"{name}.{key}": value for name, split in splits.items() for key, value in split._asdict().items()}
    np.savez_compressed(path, **arrays)


def load(path: Path, name: str) -> Split:
    with np.load(path) as file:
        return Split(*(file[f"{name}.{key}"] for key in Split._fields))


def windows(split: Split, length: int, bos: list[int]) -> np.ndarray:
    """One row of `length` tokens per verse, int16, starting with that verse; the stream wraps around."""
    rows = np.empty((len(split.opens), length), np.int16)
    prefix = np.array(bos, np.uint16)
    endless = np.concatenate([split.stream, split.stream[:length]]).astype(np.int16)
    for verse, end in enumerate(split.verse_end):
        start = np.concatenate([prefix, split.head[split.head_at[verse] : split.head_at[verse + 1]]])[:length]
        rows[verse, : len(start)] = start
        rows[verse, len(start) :] = endless[end : end + length - len(start)]
    return rows
