"""What an installed sruexport has in it."""

from __future__ import annotations

import ctypes
import importlib
import subprocess
from importlib.metadata import distribution, version
from importlib.resources import files
from pathlib import Path

import pytest

import sruexport

ROOT = Path(__file__).parent.parent


def test_the_version_is_that_of_the_package():
    assert version("sruexport") == sruexport.__version__


def test_no_file_of_the_package_is_left_out():
    """Wheels and source distributions hold what .gitignore does not name."""
    listed = ["git", "ls-files", "--cached", "--ignored", "--exclude-standard", "sruexport", "converters", "plugins"]
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    assert subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout == ""


@pytest.mark.parametrize("path", sorted((ROOT / "converters").glob("*.py")), ids=lambda path: path.stem)
def test_the_folder_converters_is_a_package_of_sruexport(path: Path):
    name = "sruexport.converters" if path.stem == "__init__" else f"sruexport.converters.{path.stem}"
    assert Path(str(importlib.import_module(name).__file__)).name == path.name


@pytest.mark.parametrize("file", ["py.typed", "engines/onnxruntime_web.mjs", "examples/japanese_vowels.pt"])
def test_files_beside_the_code_are_found(file: str):
    assert (Path(str(sruexport.__file__)).parent / file).is_file()


def test_any_python_may_load_the_wheel():
    """Kernels are loaded by ONNX Runtime, so that no version of Python is in the tag."""
    assert "\nTag: py3-none-" in str(distribution("sruexport").read_text("WHEEL"))


def test_the_kernels_are_there_or_why_they_are_not():
    native = files("sruexport") / "native"
    (found,) = native.iterdir()
    if found.name == "absent.txt":
        assert found.read_text().strip()
    else:
        assert ctypes.CDLL(str(found)).RegisterCustomOps
