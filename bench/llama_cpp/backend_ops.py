"""backend_ops.py FIRSTDIFF LLAMA_CPP BUILD: the cases that --repro writes for ggml's test-backend-ops, of every op that it has, are put into
LLAMA_CPP's tests/test-backend-ops.cpp (alone: its own are thousands), compiled against ggml's libraries in BUILD/bin, and run by the
name that each file gives for -o, on the CPU."""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

FIRSTDIFF, SOURCE, LIBRARIES = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]).resolve() / "bin"
HERE = Path(__file__).parents[2]


def main():
    with tempfile.TemporaryDirectory() as scratch:
        at = Path(scratch)
        subprocess.run([sys.executable, HERE / "tests/cli/repro_every_op.py", FIRSTDIFF, at], check=True)
        files = [f.read_text() for f in sorted(at.glob("*/backend_ops.cpp"))]
        test = (SOURCE / "tests/test-backend-ops.cpp").read_text()
        begin = re.search(r"static std::vector<std::unique_ptr<test_case>> make_test_cases_eval\([^)]*\) \{", test)[0]
        ours = f"{begin}\nstd::vector<std::unique_ptr<test_case>> test_cases;\n{''.join(files)}return test_cases;\n}}\n"
        theirs = "[[maybe_unused]] " + begin.replace("make_test_cases_eval", "its_own_cases")
        (at / "cases.cpp").write_text(test.replace(begin, ours + theirs, 1))
        include = [f"-I{SOURCE / folder}" for folder in ("ggml/include", "ggml/src", "common", "tests", "vendor", "include")]
        link = [f"-L{LIBRARIES}", f"-Wl,-rpath,{LIBRARIES}", "-lggml", "-lggml-base", "-lggml-cpu", "-lpthread"]
        subprocess.run(["c++", "-std=c++17", "-O0", "-w", *include, at / "cases.cpp", "-o", at / "cases", *link], check=True)
        total = 0
        for name in sorted({re.search(r"test -o (\w+)", text)[1] for text in files}):
            said = subprocess.run([at / "cases", "test", "-b", "CPU", "-o", name], capture_output=True, text=True).stdout
            passed, of = map(int, re.search(r"(\d+)/(\d+) tests passed", said).groups())
            if not 0 < passed == of:
                raise SystemExit(f"{name}: {passed} of {of} passed\n{said}")
            total += of
        print(f"{len(files)} ops, {total} cases: all compile and pass")


if __name__ == "__main__":
    main()
