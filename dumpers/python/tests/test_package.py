"""The package as it is shipped: a wheel that holds all of it, typed throughout."""

import email
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1]


def test_the_wheel_holds_every_module(tmp_path):
    pytest.importorskip("hatchling", reason="hatchling is not installed: no wheel is built")
    pytest.importorskip("build", reason="build is not installed: no wheel is built")
    built = subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path, PACKAGE],
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    (wheel,) = tmp_path.glob("firstdiff-*-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = {n for n in archive.namelist() if n.startswith("firstdiff/")}
        metadata = email.message_from_bytes(
            archive.read(next(n for n in archive.namelist() if n.endswith("/METADATA")))
        )
    sources = {str(p.relative_to(PACKAGE / "src")) for p in (PACKAGE / "src").rglob("*.py")}
    assert names == sources | {"firstdiff/py.typed"}
    assert metadata["Name"] == "firstdiff" and metadata["Requires-Python"] == ">=3.10"


def test_the_version_is_said_once_and_the_same():
    import firstdiff

    assert f'version = "{firstdiff.__version__}"' in (PACKAGE / "pyproject.toml").read_text()


def mypy(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", "/dev/null", *arguments],
        cwd=PACKAGE,
        capture_output=True,
        text=True,
        check=False,
    )


def test_types_are_strict(tmp_path):
    pytest.importorskip("mypy", reason="mypy is not installed: types are not checked")
    checked = mypy()
    assert checked.returncode == 0, checked.stdout + checked.stderr
    wrong = tmp_path / "wrong.py"
    wrong.write_text('from firstdiff.trace import Writer\nWriter("t.h5").put(1, None)\n')
    assert "arg-type" in mypy(str(wrong)).stdout, "a wrong call must be found"
