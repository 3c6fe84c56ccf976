#!/usr/bin/env python3
"""Builds llama.cpp's CPU backend with the bugs of bugs/table.h in it, all of them off until FD_BUG names one.

    python3 bench/llama_cpp/build.py FOLDER [--jobs 2]

Brings the sources of llama-cpp-python from PyPI (75 MB), patches them and builds the library alone: no server, no tools, no
GPU; 3 minutes on two cores. FOLDER then has `source/` and `build/bin/libllama.so`; environment(FOLDER) says how Python finds both.
A patch is a line of the sources and what comes after it: an anchor that is not there exactly once ends the build, with its name."""

import argparse
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import tarfile

HERE = pathlib.Path(__file__).resolve().parent
VERSION = "0.3.36"
REGISTER = """
/* firstdiff: weights by name. `set` keeps one; NULL asks for it. */
struct ggml_tensor * ggml_fd_weight(const char * name, struct ggml_tensor * set) {
    static struct { char name[GGML_MAX_NAME]; struct ggml_tensor * tensor; } known[4096];
    static int n = 0;
    for (int i = 0; i < n; i++) {
        if (strcmp(known[i].name, name) == 0) return set ? (known[i].tensor = set) : known[i].tensor;
    }
    if (!set || n == 4096) return NULL;
    snprintf(known[n].name, sizeof known[n].name, "%s", name);
    return known[n++].tensor = set;
}
"""
# file below vendor/llama.cpp, anchor, what comes before it, what comes after it
PATCHES = [
    ("ggml/src/ggml-cpu/ggml-cpu.c", "static void ggml_compute_forward(struct ggml_compute_params * params, struct ggml_tensor * tensor) {\n    GGML_ASSERT(params);\n",
     f'#pragma GCC diagnostic push\n#pragma GCC diagnostic ignored "-Wall"\n#include "{HERE}/bugs/hook.h"\n#pragma GCC diagnostic pop\n\n',
     "\n    if (fd_compute_with_bug(params, tensor)) {\n        return;\n    }\n"),
    ("ggml/src/ggml.c", "int64_t ggml_nelements(const struct ggml_tensor * tensor) {\n", REGISTER, ""),
    ("ggml/include/ggml.h", "    GGML_API int64_t ggml_nelements (const struct ggml_tensor * tensor);\n",
     "", "    GGML_API struct ggml_tensor * ggml_fd_weight(const char * name, struct ggml_tensor * set);\n"),
    ("src/llama-model.cpp", "            tensors_by_name.emplace_back(ggml_get_name(cur), cur);\n", "", "            ggml_fd_weight(ggml_get_name(cur), cur);\n"),
]
OFF = ["COMMON", "TOOLS", "EXAMPLES", "TESTS", "SERVER", "APP"]


def environment(folder):
    """What a process needs that imports llama_cpp from `folder`."""
    folder = pathlib.Path(folder).resolve()
    path = [str(folder / "source"), str(HERE.parents[1] / "dumpers/python/src"), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(filter(None, path)), "LLAMA_CPP_LIB_PATH": str(folder / "build/bin")}


def bring(folder):
    name = f"llama_cpp_python-{VERSION}"
    if not list(folder.glob(name + "*.tar.gz")):
        subprocess.run([sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", "llama-cpp-python", "-d", folder, f"llama-cpp-python=={VERSION}"], check=True)
    with tarfile.open(next(folder.glob(name + "*.tar.gz"))) as archive:
        archive.extractall(folder, filter="data")
    shutil.rmtree(folder / "source", ignore_errors=True)
    (folder / name).rename(folder / "source")


def patch(root):
    for file, anchor, before, after in PATCHES:
        text = (root / file).read_text()
        if text.count(anchor) != 1:
            sys.exit(f"{file}: {anchor.strip().splitlines()[0]!r} stands there {text.count(anchor)} times, expected 1: another version than {VERSION}?")
        (root / file).write_text(text.replace(anchor, before + anchor + after))


def build(folder, jobs):
    launcher = [f"-DCMAKE_{lang}_COMPILER_LAUNCHER=ccache" for lang in ("C", "CXX") if shutil.which("ccache")]
    options = ["-DCMAKE_BUILD_TYPE=Release", "-DBUILD_SHARED_LIBS=ON", "-DLLAMA_CURL=OFF", "-DLLAMA_OPENSSL=OFF", "-DGGML_CCACHE=OFF"]
    # AMX keeps Q8_0 matrices in an order of its own, which bugs that read rows do not know; and where the kernel does not let it be used, it is an
    # illegal instruction
    options += [f"-DCMAKE_{lang}_FLAGS=-mno-amx-tile -mno-amx-int8 -mno-amx-bf16" for lang in ("C", "CXX")] if platform.machine() == "x86_64" else []
    subprocess.run(["cmake", "-S", folder / "source/vendor/llama.cpp", "-B", folder / "build", *options, *launcher, *(f"-DLLAMA_BUILD_{part}=OFF" for part in OFF)], check=True)
    subprocess.run(["nice", "cmake", "--build", folder / "build", "--target", "llama", "-j", str(jobs)], check=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    if not (args.folder / "source").is_dir():
        bring(args.folder)
        patch(args.folder / "source/vendor/llama.cpp")
    build(args.folder, args.jobs)
    for name, value in environment(args.folder).items():
        print(f"export {name}={value}")


if __name__ == "__main__":
    main()
