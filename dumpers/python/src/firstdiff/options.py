"""The command-line options that the recorders share."""

from __future__ import annotations

import argparse


def token_ids(text: str) -> list[int]:
    """Ids separated by commas or spaces; ValueError for anything else."""
    return [int(t) for t in text.replace(",", " ").split()]


def run_parser(
    prog: str, about: str, model: str, model_help: str | None, calls: str, chooser: str
) -> argparse.ArgumentParser:
    """A parser with MODEL, --tokens, --output, --prefill and --generate.

    `calls` says how a prefill is fed ("in one call"), `chooser` who chooses the tokens of --generate.
    """
    parser = argparse.ArgumentParser(prog=prog, description=about)
    parser.add_argument("model", metavar=model, help=model_help)
    parser.add_argument("--tokens", required=True, metavar="1,2,3", help="token ids to feed")
    parser.add_argument("-o", "--output", required=True, metavar="TRACE.h5")
    parser.add_argument("--prefill", type=int, metavar="N", help=f"so many {calls}, the rest one by one (default: all)")
    parser.add_argument(
        "--generate", type=int, default=0, metavar="N", help=f"then so many tokens of {chooser}'s choice"
    )
    return parser
