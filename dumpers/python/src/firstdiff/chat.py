"""Renders a chat template: what `firstdiff run --chat` calls.

    python3 -m firstdiff.chat REQUEST.json

The request: {"template": …, "messages": [{"role": …, "content": …}, …], "bos_token": …, "eos_token": …}. The text goes to standard
output, with the mark that the assistant's turn begins. Jinja is jinja2, in its sandbox, with the settings and functions that
transformers' apply_chat_template has."""

from __future__ import annotations

import datetime
import json
import pathlib
import sys
from typing import Any, NoReturn

import jinja2
import jinja2.sandbox


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _tojson(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def render(template: str, messages: list[dict[str, str]], **values: Any) -> str:
    """The prompt, ready for the assistant's turn."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda text: datetime.datetime.now().strftime(text)
    return str(environment.from_string(template).render(messages=messages, add_generation_prompt=True, **values))


def main() -> int:
    request = json.loads(pathlib.Path(sys.argv[1]).read_text(encoding="utf-8"))
    try:
        text = render(request.pop("template"), request.pop("messages"), **request)
    except jinja2.TemplateError as error:
        print(f"chat template: {error}", file=sys.stderr)
        return 1
    sys.stdout.buffer.write(text.encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
