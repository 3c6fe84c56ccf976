"""A hook of mkdocs: links that lead out of docs/ are to files of the sources, which the site has not got.

They become their text and the path.
"""

import re

OUTSIDE = re.compile(r"(!?)\[([^\]]*)\]\((\.\./[^)#\s]+)(#[^)\s]*)?\)")


def _path(match: re.Match[str]) -> str:
    path = match[3].removeprefix("../")
    return match[2] if path in match[2] else f"{match[2]} (`{path}`)"


def on_page_markdown(markdown: str, **_: object) -> str:
    """Code blocks hold no such links."""
    return OUTSIDE.sub(_path, markdown)
