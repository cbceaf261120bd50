"""Where engines are: in this Python or in environments of their own, which are there whole or not at all."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import ClassVar

import pytest
from fake_engines import Fake

from sruexport.engines import ENGINES
from sruexport.engines.base import python_in
from sruexport.engines.environments import folder, how_to_install, install, interpreter, version
from sruexport.errors import EngineError

SITE_PACKAGES = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"


class Tiny(Fake):
    """An engine in a package of its own, which no registry has."""

    name = "tiny"
    title = "Tiny"
    packages = ("sruexport-test-tiny", "sruexport-test-tiny-gpu")
    requirements: ClassVar[tuple[str, ...]] = ("sruexport-test-tiny==1.2.3",)


@pytest.fixture(autouse=True)
def engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SRUEXPORT_ENGINES", str(tmp_path / "engines"))
    return tmp_path / "engines"


def put(environment: Path, package: str, number: str) -> None:
    """What pip leaves of a package, in an environment without a Python."""
    described = environment / SITE_PACKAGES / f"{package.replace('-', '_')}-{number}.dist-info" / "METADATA"
    described.parent.mkdir(parents=True)
    described.write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {number}\n")


def wheel(place: Path, package: str, number: str) -> Path:
    """A package that pip installs without a registry."""
    place.mkdir(exist_ok=True)
    module = package.replace("-", "_")
    info = f"{module}-{number}.dist-info"
    path = place / f"{module}-{number}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{module}.py", f"number = '{number}'\n")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: {number}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", f"{module}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    return path


# Finding


def test_an_engine_that_is_nowhere_has_no_version_and_says_how_to_install_it():
    assert version(Tiny()) is None
    with pytest.raises(EngineError, match=r"^Tiny is not installed: sruexport engines install tiny$"):
        interpreter(Tiny())


def test_an_engine_is_found_in_its_own_environment(engines):
    put(engines / "tiny", "sruexport-test-tiny", "1.2.3")
    assert version(Tiny()) == "1.2.3"
    assert interpreter(Tiny()) == str(python_in(engines / "tiny"))


def test_any_of_its_packages_will_do(engines):
    put(engines / "tiny", "sruexport-test-tiny-gpu", "4.5")
    assert version(Tiny()) == "4.5"


def test_another_engines_environment_is_not_its_own(engines):
    put(engines / "other", "sruexport-test-tiny", "1.2.3")
    assert version(Tiny()) is None


def test_an_engine_is_found_in_this_environment():
    engine = Fake()  # whose package is NumPy
    assert version(engine) == importlib.metadata.version("numpy")
    assert interpreter(engine) == sys.executable


def test_this_environment_comes_first(engines):
    """What is installed beside sruexport was chosen by its user, and needs no other Python."""
    put(engines / "fake", "numpy", "0.0.1")
    assert version(Fake()) == importlib.metadata.version("numpy")
    assert interpreter(Fake()) == sys.executable


def test_an_engine_that_is_no_python_package_says_itself_where_it_is(engines, monkeypatch):
    described = engines / "onnxruntime-web" / "node_modules" / "onnxruntime-web" / "package.json"
    described.parent.mkdir(parents=True)
    described.write_text('{"version": "9.9.9"}')
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    assert version(ENGINES["onnxruntime-web"]) == "9.9.9"
    assert interpreter(ENGINES["onnxruntime-web"]) == sys.executable
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert version(ENGINES["onnxruntime-web"]) is None, "without Node it cannot run"


def test_the_folder_is_under_the_users_cache_or_where_it_is_told(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SRUEXPORT_ENGINES", "~/mine")
    assert folder(Tiny()) == tmp_path / "mine" / "tiny"
    monkeypatch.delenv("SRUEXPORT_ENGINES")
    monkeypatch.setattr("platformdirs.user_cache_path", lambda name: tmp_path / "cache" / name)
    assert folder(Tiny()) == tmp_path / "cache" / "sruexport" / "engines" / "tiny"


@pytest.mark.parametrize("name", ENGINES)
def test_every_engine_says_how_to_install_it(name):
    command = how_to_install(ENGINES[name])
    assert command in (f"sruexport engines install {name}", f"pip install {ENGINES[name].packages[0]}")
    assert command.startswith("sruexport") == bool(ENGINES[name].requirements)


# Installing


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tiny:
    """Its requirement lies in a folder; pip asks nobody else."""
    made = wheel(tmp_path / "wheels", "sruexport-test-tiny", "1.2.3")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(made.parent))
    return Tiny()


def test_an_engine_gets_an_environment_of_its_own(tiny, engines):
    steps: list[str] = []
    assert install(tiny, steps.append) == engines / "tiny"
    assert steps == ["making an environment", "installing sruexport-test-tiny==1.2.3"]
    assert [path.name for path in engines.iterdir()] == ["tiny"], "nothing of the way there is left"
    assert version(tiny) == "1.2.3"
    assert _say(interpreter(tiny), "import sruexport_test_tiny as tiny; print(tiny.number)") == "1.2.3"
    assert _say(interpreter(tiny), "import sys; print(sys.prefix)") == str(engines / "tiny")
    with pytest.raises(subprocess.CalledProcessError):
        _say(sys.executable, "import sruexport_test_tiny")


class Bare(Tiny):
    """As Tiny, but by this Python's pip: an environment of its own takes seconds."""

    def setup(self, environment, run):
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        run([*pip, "--target", str(environment / SITE_PACKAGES), *self.requirements], "installing")


def test_a_requirement_that_cannot_be_had_is_told_and_nothing_is_left(tiny, engines, monkeypatch):
    install(Bare())
    assert version(tiny) == "1.2.3"
    monkeypatch.setattr(Bare, "requirements", ("sruexport-test-tiny==7",))
    with pytest.raises(EngineError, match=r"^Tiny cannot be installed: .*sruexport-test-tiny==7") as caught:
        install(Bare())
    assert len(str(caught.value).splitlines()) == 1
    assert [path.name for path in engines.iterdir()] == ["tiny"]
    assert version(tiny) == "1.2.3"


class Failing(Tiny):
    """Its installation breaks off half-way."""

    command: ClassVar[list[str]] = []

    def setup(self, environment, run):
        (environment / "half").write_text("done")
        run(self.command, "the other half")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ([sys.executable, "-c", "raise SystemExit('the disk is full')"], "cannot be installed: the disk is full"),
        ([sys.executable, "-c", "print('out of luck'); raise SystemExit(2)"], "cannot be installed: out of luck"),
        ([sys.executable, "-c", "raise SystemExit(4)"], "cannot be installed: exit code 4"),
        (["no-such-program"], "no-such-program cannot be run: No such file or directory"),
    ],
    ids=["stderr", "stdout", "silent", "missing"],
)
def test_an_installation_that_fails_leaves_what_was_there_before(engines, monkeypatch, command, message):
    put(engines / "tiny", "sruexport-test-tiny", "1.0")
    monkeypatch.setattr(Failing, "command", command)
    with pytest.raises(EngineError, match=f"^Tiny:? {message}$"):
        install(Failing())
    assert version(Tiny()) == "1.0"
    assert [path.name for path in engines.iterdir()] == ["tiny"]


def test_an_interrupted_installation_leaves_nothing(engines, monkeypatch):
    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "run", interrupt)
    with pytest.raises(KeyboardInterrupt):
        install(Failing())
    assert not list(engines.iterdir())


def test_a_new_installation_takes_the_old_ones_place(engines, monkeypatch):
    put(engines / "tiny", "sruexport-test-tiny", "1.0")
    monkeypatch.setattr(Failing, "command", [sys.executable, "-c", ""])
    assert sorted(path.name for path in install(Failing()).iterdir()) == ["half"]
    assert [path.name for path in engines.iterdir()] == ["tiny"]


def test_an_engine_of_this_python_has_no_environment_to_install(engines):
    with pytest.raises(EngineError, match=r"^ONNX Runtime runs in this Python: pip install onnxruntime$"):
        install(ENGINES["onnxruntime"])
    assert not engines.exists()


def test_without_node_onnx_runtime_web_is_refused_before_anything_is_fetched(engines, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(EngineError, match=r"^ONNX Runtime Web needs Node\.js: there is no node on PATH$"):
        install(ENGINES["onnxruntime-web"])
    assert not list(engines.iterdir())


def _say(python: str, code: str) -> str:
    done = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()
