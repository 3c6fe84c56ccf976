"""Are the GPU traces and goldens of the sources that are here?  digest.py fd_sources.h TRACES

Fails, loudly, when kernels/, engine/ or numerics/ changed since the traces were recorded: record them again on a GPU with
traces/record.
"""

import pathlib
import re
import sys

import h5py


def main() -> int:
    current = re.search(r'"([0-9a-f]+)"', pathlib.Path(sys.argv[1]).read_text()).group(1)
    traces = sorted(pathlib.Path(sys.argv[2]).glob("*.h200.h5"))
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
    if stale:
        print("*** kernels/, engine/ or numerics/ changed: record the GPU traces again with traces/record ***")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
