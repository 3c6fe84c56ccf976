"""Draws docs/verdict.svg from two traces: which tensors are identical, where the first divergence is.

    python3 docs/picture.py REF.h5 CAND.h5 docs/verdict.svg

Columns are layers, rows the nodes of a layer in order of execution; a cell is one tensor over all positions, shaded by
the share of positions at which its fingerprint differs.
"""

import re
import sys

import h5py
import numpy as np

CELL, GAP, LEFT, TOP = 34, 4, 130, 64


def fingerprints(path: str) -> tuple[list[str], np.ndarray]:
    with h5py.File(path, "r") as trace:
        names = [n.decode() if isinstance(n, bytes) else str(n) for n in trace["graph"]["name"]]
        return names, trace["fingerprints"][:]


def colour(share: float) -> str:
    """Green where nothing differs, then from yellow to red by the share of positions that do."""
    if share == 0:
        return "#2e9e5b"
    yellow, red = (246, 211, 101), (200, 60, 52)
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in zip(yellow, red))


def main() -> None:
    ref_path, cand_path, out = sys.argv[1:4]
    names, ref = fingerprints(ref_path)
    cand_names, cand = fingerprints(cand_path)
    assert names == cand_names, "the traces have different nodes"
    n = min(len(ref), len(cand))
    differs = (ref[:n] != cand[:n]).any(axis=2).mean(axis=0)
    first = int(np.flatnonzero(differs)[0])

    cells = {}
    for index, name in enumerate(names):
        match = re.fullmatch(r"blk\.(\d+)\.(.+)", name)
        if match:
            cells[(match.group(2), int(match.group(1)))] = index
    rows = list(dict.fromkeys(kind for kind, _ in cells))
    layers = max(layer for _, layer in cells) + 1
    width = LEFT + layers * (CELL + GAP) + 330
    height = TOP + len(rows) * 24 + 30

    svg = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="monospace" font-size="13">',
           f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
           f'<text x="{LEFT}" y="24" fill="#333">layer</text>']
    for layer in range(layers):
        svg.append(f'<text x="{LEFT + layer * (CELL + GAP) + CELL / 2}" y="48" text-anchor="middle" fill="#333">{layer}</text>')
    for r, kind in enumerate(rows):
        y = TOP + r * 24
        svg.append(f'<text x="{LEFT - 10}" y="{y + 15}" text-anchor="end" fill="#333">{kind}</text>')
        for layer in range(layers):
            index = cells[(kind, layer)]
            x = LEFT + layer * (CELL + GAP)
            ring = ' stroke="#000" stroke-width="2.5"' if index == first else ""
            svg.append(f'<rect x="{x}" y="{y}" width="{CELL}" height="20" rx="3" fill="{colour(differs[index])}"{ring}/>')
            if index == first:
                tip = LEFT + layers * (CELL + GAP) + 12
                svg.append(f'<line x1="{x + CELL + 2}" y1="{y + 10}" x2="{tip - 4}" y2="{y + 10}" stroke="#000" stroke-width="1.5"/>')
                svg.append(f'<text x="{tip}" y="{y + 14}" font-weight="bold">first divergence: {names[index]}</text>')
    legend = LEFT + layers * (CELL + GAP) + 12
    for k, (fill, text) in enumerate([(colour(0), "identical in every bit"), (colour(0.3), "differs at some positions"),
                                      (colour(1), "differs at all positions")]):
        y = height - 96 + 24 * k
        svg.append(f'<rect x="{legend}" y="{y}" width="20" height="16" rx="3" fill="{fill}"/>')
        svg.append(f'<text x="{legend + 28}" y="{y + 13}" fill="#333">{text}</text>')
    svg.append("</svg>\n")
    with open(out, "w", encoding="utf-8") as file:
        file.write("\n".join(svg))


if __name__ == "__main__":
    main()
