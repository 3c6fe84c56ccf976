"""Are the GPU traces and goldens of the sources that are here?  digest.py fd_sources.h TRACES

Fails, loudly, when kernels/, engine/ or numerics/ changed since the traces were recorded: record them again on a GPU with
traces/record. Where none could be had, TRACES/stale.txt names the sources that were committed without, and what was seen of
them on a device instead: these very sources pass, as loudly.
"""

import pathlib
import re
import sys

import h5py


def acknowledged(path: pathlib.Path, sources: str) -> str:
    """What stale.txt says of these sources: the rest of the line that begins with their digest; "" when it has none."""
    lines = path.read_text().splitlines() if path.exists() else []
    return next((line.removeprefix(sources).strip() for line in lines if line.startswith(sources + " ")), "")


def main() -> int:
    current = re.search(r'"([0-9a-f]+)"', pathlib.Path(sys.argv[1]).read_text()).group(1)
    folder = pathlib.Path(sys.argv[2])
    traces = sorted(folder.glob("*.gpu.h5"))
    if not traces:
        print("no GPU trace found: traces/record makes them")
        return 1
    stale = 0
    for path in traces:
        with h5py.File(path, "r") as trace:
            found = trace.attrs["sources"]
            found = found.decode() if isinstance(found, bytes) else str(found)
        if found != current:
            stale += 1
            print(f"STALE: {path.name} was recorded from sources {found}, here are {current}")
    if not stale:
        return 0
    print("*** kernels/, engine/ or numerics/ changed: record the GPU traces again with traces/record ***")
    known = acknowledged(folder / "stale.txt", current)
    if known:
        print(f"*** these sources are known to be newer (traces/stale.txt): {known} ***")
    return 0 if known else 1


if __name__ == "__main__":
    sys.exit(main())
