#!/usr/bin/env python3
"""Draws docs/rooms.svg: the folders of the program and what each links, from their CMakeLists.txt, with the rooms of
docs/rooms.md inside. A column links only columns to its left.

    docs/rooms.py            # writes docs/rooms.svg
    docs/rooms.py --check    # exit status 1 if it is not current
"""
import pathlib, re, sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
FOLDERS = "base numerics model exec mpi faults reference_cpu emulate kernels engine dumpers compare cli".split()
WIDTH, LINE, HEAD, GAP, ACROSS, TOP = 150, 17, 26, 18, 74, 70
INK, FAINT, BOX, WAY = "#222", "#9aa4b0", "#eef3f8", "#c8503c"


def links(folder):
    """The folders that a folder links, from fd_add_folder(… LINK …) or target_link_libraries(…)."""
    text = (ROOT / folder / "CMakeLists.txt").read_text()
    calls = re.findall(r"(?:fd_add_folder|target_link_libraries)\(([^)]*)\)", text)
    return {name for call in calls for name in re.findall(r"\bfd_(\w+)", call) if name in FOLDERS and name != folder}


def rooms():
    """{folder: its inner rooms}, from the tables of docs/rooms.md."""
    found = {folder: [] for folder in FOLDERS}
    for room in re.findall(r"^\| `([\w/]+)` \|", (ROOT / "docs/rooms.md").read_text(), re.M):
        folder, _, inner = room.partition("/")
        if inner and folder in found:
            found[folder].append(inner)
    return found


def draw():
    link, inner = {f: links(f) for f in FOLDERS}, rooms()
    below = {}  # everything a folder reaches
    column = {}
    for f in FOLDERS:  # bottom up, as the list above is
        below[f] = set().union(link[f], *(below[g] for g in link[f]))
        column[f] = 1 + max((column[g] for g in link[f]), default=-1)
    column["cli"] = max(column.values())
    direct = {f: {g for g in link[f] if not any(g in below[h] for h in link[f])} for f in FOLDERS}

    place, bottom = {}, TOP
    for c in range(max(column.values()) + 1):
        y = TOP
        for f in (f for f in FOLDERS if column[f] == c):
            height = HEAD + LINE * len(inner[f]) + (6 if inner[f] else 0)
            place[f] = (20 + c * (WIDTH + ACROSS), y, height)
            y += height + GAP
            bottom = max(bottom, y)
    width = 20 + (max(column.values()) + 1) * (WIDTH + ACROSS)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {bottom + 10}" font-family="monospace" font-size="13">',
           f'<rect width="{width}" height="{bottom + 10}" fill="#fff"/>',
           f'<text x="20" y="24" fill="{INK}">a grey line: the right one links the left one · red: the way from the GGUF to the verdict</text>']
    way = "model exec reference_cpu dumpers compare cli".split()

    def curve(a, b, colour, thick):
        (x0, y0, _), (x1, y1, _) = place[a], place[b]
        x0, y0, y1 = x0 + WIDTH, y0 + HEAD / 2, y1 + HEAD / 2
        if x1 <= x0 - WIDTH:  # the same column
            x1, m = x0, x0 + ACROSS / 2
        else:
            m = x1 - ACROSS / 2
        return f'<path d="M{x0},{y0} C{m},{y0} {m},{y1} {x1},{y1}" fill="none" stroke="{colour}" stroke-width="{thick}"/>'

    for f in FOLDERS:
        out += [curve(g, f, FAINT, 1) for g in sorted(direct[f])]
    out += [curve(a, b, WAY, 2.5) for a, b in zip(way, way[1:])]
    for f in FOLDERS:
        x, y, height = place[f]
        out.append(f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{height}" rx="5" fill="{BOX}" stroke="{FAINT}"/>')
        out.append(f'<text x="{x + 10}" y="{y + 18}" fill="{INK}" font-weight="bold">{f}</text>')
        out += [f'<text x="{x + 20}" y="{y + HEAD + 12 + LINE * i}" fill="{INK}">{room}</text>' for i, room in enumerate(inner[f])]
    (x, y, _), (x1, y1, _) = place["model"], place["cli"]
    out.append(f'<text x="{x + 20}" y="{y - 10}" fill="{WAY}">model.gguf ↓</text>')
    out.append(f'<text x="{x1 + 20}" y="{y1 - 10}" fill="{WAY}">verdict ↑</text>')
    return "\n".join(out) + "\n</svg>\n"


def main():
    picture, file = draw(), ROOT / "docs/rooms.svg"
    if sys.argv[1:] != ["--check"]:
        file.write_text(picture)
    elif not file.exists() or file.read_text() != picture:
        sys.exit("docs/rooms.svg is not what docs/rooms.py draws from the sources: run docs/rooms.py")


main()
