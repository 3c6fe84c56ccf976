"""Draws docs/faults.svg: what eight bugs look like, one each in layer 2 of kjv-llama. A panel is that layer, its tensors down, six positions of a
prompt and four of decode across.

    python3 docs/fault_pictures.py build/release/firstdiff docs/faults.svg
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import h5py
import numpy as np

MODEL = Path(__file__).parents[1] / "traces/kjv-llama.gguf"
LAYER, PROMPT, DECODED = 2, "1,300,392,394,2001,949", 4
FAULTS = {
    "rope_pairing": "position 0 is not turned, and is right",
    "rope_q_one_further": "Q alone, at every position",
    "eps_outside_root": "everything from the norm on",
    "gqa_modulo": "Q, K and V are right, scores are not",
    "mask_missing": "the prompt alone: decode is right",
    "mask_upper_left": "decode alone: the prompt is right",
    "kv_off_by_one": "the cache, at every position",
    "gate_up_swapped": "attention is right, the FFN is not",
}
WIDE, HIGH, LEFT, TOP, ACROSS = 14, 11, 92, 44, 4
SAME, INHERITED, FIRST = "#8fcaa0", "#f0bf62", "#c2293b"


def run(firstdiff, path, *more):
    subprocess.run([firstdiff, "run", MODEL, "--tokens", PROMPT, "-n", str(DECODED + 1), "-q", "-o", path, *more], check=True, stdout=subprocess.DEVNULL)


def layer_of(path):
    with h5py.File(path) as f:
        names = [n.decode() for n in f["graph"]["name"]]
        at = [i for i, n in enumerate(names) if n.startswith(f"blk.{LAYER}.")]
        return [names[i].split(".", 2)[2] for i in at], f["fingerprints"][:, at], f["tokens"][:]


def panel(x, y, name, words, rows, differs, first):
    svg = [f'<text x="{x}" y="{y + 14}" font-weight="bold" fill="#1d2125">{name}</text>', f'<text x="{x}" y="{y + 30}" fill="#5c6570">{words}</text>']
    for r, row in enumerate(rows):
        top = y + TOP + r * HIGH
        svg.append(f'<text x="{x + LEFT - 6}" y="{top + 9}" text-anchor="end" fill="#5c6570" font-size="9">{row}</text>')
        for p in range(differs.shape[0]):
            fill = SAME if not differs[p, r] else FIRST if r == first[p] else INHERITED
            gap = 5 if p >= len(PROMPT.split(",")) else 0
            svg.append(f'<rect x="{x + LEFT + p * WIDE + gap}" y="{top}" width="{WIDE - 1}" height="{HIGH - 1}" fill="{fill}"/>')
            if fill == FIRST:
                svg.append(f'<text x="{x + LEFT + p * WIDE + gap + 4}" y="{top + 8.5}" fill="#fff" font-size="9">×</text>')
    return svg


def main():
    firstdiff, out = sys.argv[1:3]
    with tempfile.TemporaryDirectory() as scratch:
        ref, svg = f"{scratch}/ref.h5", []
        run(firstdiff, ref)
        rows, right, tokens = layer_of(ref)
        wide, high = LEFT + (len(PROMPT.split(",")) + DECODED) * WIDE + 40, TOP + len(rows) * HIGH + 22
        for i, (fault, words) in enumerate(FAULTS.items()):
            run(firstdiff, f"{scratch}/bug.h5", "--fault", f"{fault}@{LAYER}")
            _, wrong, their = layer_of(f"{scratch}/bug.h5")
            n = min(len(right), len(wrong))
            n = int(np.argmin(np.append(tokens[:n] == their[:n], False)))  # another token: another text from there
            differs = (right[:n] != wrong[:n]).any(axis=2)
            first = [int(np.flatnonzero(d)[0]) if d.any() else -1 for d in differs]
            svg += panel(10 + i % ACROSS * wide, 10 + i // ACROSS * high, fault, words, rows, differs, first)
        total, y = ACROSS * wide, 10 + 2 * high
        for k, (fill, text) in enumerate([(SAME, "identical in every bit"), (FIRST, "× the first that differs at its position"), (INHERITED, "differs after it")]):
            svg += [f'<rect x="{10 + 260 * k}" y="{y}" width="13" height="11" fill="{fill}"/>', f'<text x="{30 + 260 * k}" y="{y + 10}" fill="#1d2125">{text}</text>']
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total} {y + 22}" font-family="system-ui, sans-serif" font-size="11.5">'
    Path(out).write_text("\n".join([head, '<rect width="100%" height="100%" fill="#fff"/>', *svg, "</svg>\n"]))


if __name__ == "__main__":
    main()
