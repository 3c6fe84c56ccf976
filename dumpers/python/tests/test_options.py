"""The options that the recorders share."""

import pytest

from firstdiff.options import run_parser, token_ids


def test_token_ids_are_separated_by_commas_or_spaces() -> None:
    assert token_ids("1,403 407, 9") == [1, 403, 407, 9]
    with pytest.raises(ValueError):
        token_ids("1,x")


def test_parser_knows_what_every_recorder_needs() -> None:
    parser = run_parser("prog", "about", "MODEL", None, "in one call", "the model")
    args = parser.parse_args(["m.gguf", "--tokens", "1,2", "-o", "t.h5", "--prefill", "1"])
    assert (args.model, args.tokens, args.output, args.prefill, args.generate) == ("m.gguf", "1,2", "t.h5", 1, 0)
    with pytest.raises(SystemExit):
        parser.parse_args(["m.gguf", "--tokens", "1,2"])
