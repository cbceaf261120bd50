"""ONNX Runtime with the native kernels, as an engine: is it here, why not, and what runs in it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from kernels_here import needs_kernels

from sruexport import convert, export, load, validate
from sruexport.engines import ENGINES, onnxruntime_kernels
from sruexport.engines.environments import how_to_install, install, version
from sruexport.engines.onnxruntime_kernels import instructions, library, missing
from sruexport.engines.running import EngineSession, default_engine
from sruexport.errors import EngineError
from sruexport.layers import SRU

ENGINE = ENGINES["onnxruntime-kernels"]
X = np.random.default_rng(0).standard_normal((6, 2, 3)).astype(np.float32)


@pytest.fixture(scope="module")
def layer() -> SRU:
    torch.manual_seed(0)
    return SRU(3, 4, num_layers=2).eval()


@pytest.fixture(scope="module")
def file(layer: SRU, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(layer, None, tmp_path_factory.mktemp("kernels") / "sru.onnx").path


@pytest.fixture
def without(tmp_path, monkeypatch) -> Path:
    """An installation with no library; the folder where it would be."""
    monkeypatch.delenv("SRUEXPORT_KERNELS", raising=False)
    monkeypatch.setattr(onnxruntime_kernels, "_FOLDER", tmp_path / "native")
    (tmp_path / "native").mkdir()
    return tmp_path / "native"


def test_its_version_names_the_instructions():
    found = instructions(needs_kernels())
    assert found in ("AVX-512", "AVX2", "portable")
    assert version(ENGINE) == f"{version(ENGINES['onnxruntime'])}, {found}"


def test_without_a_library_it_is_not_installed_and_says_why_and_what_to_do(without):
    (without / "absent.txt").write_text("there were no ONNX Runtime headers\n")
    assert library() is None
    assert version(ENGINE) is None
    wanted = (
        "there were no ONNX Runtime headers when sruexport was installed: bring ONNX Runtime's headers "
        "(scripts/onnxruntime_headers, or ONNXRUNTIME_INCLUDE_DIR) and a C++ compiler, then install sruexport again"
    )
    assert how_to_install(ENGINE) == missing() == wanted
    with pytest.raises(EngineError, match="ONNX Runtime with native kernels is not installed: there were no ONNX"):
        EngineSession(ENGINE, Path("any.onnx"))
    with pytest.raises(EngineError, match="runs in this Python: there were no ONNX Runtime headers"):
        install(ENGINE)


def test_without_any_word_the_kernels_were_not_built(without):
    assert missing().startswith("the kernels were not built when sruexport was installed: ")


def test_off_is_off(monkeypatch):
    monkeypatch.setenv("SRUEXPORT_KERNELS", "off")
    assert library() is None
    assert version(ENGINE) is None
    assert missing() == "SRUEXPORT_KERNELS is off"


def test_another_library_may_be_named(tmp_path, monkeypatch):
    monkeypatch.setenv("SRUEXPORT_KERNELS", str(tmp_path / "own.so"))
    assert library() == tmp_path / "own.so"


def test_a_file_is_loaded_with_the_kernels_that_are_there(file):
    needs_kernels()
    model = load(file)
    assert model.ran_on == f"ONNX Runtime with native kernels {version(ENGINE)}"
    assert repr(model) == f"<{file} on {model.ran_on}>"
    plain = load(file, kernels=False)
    assert plain.ran_on == f"ONNX Runtime {version(ENGINES['onnxruntime'])} without native kernels"
    for a, b in zip(model(X), plain(X), strict=True):
        assert np.allclose(a, b, rtol=0, atol=1e-5)
    assert load(file, kernels=True).ran_on == model.ran_on


def test_without_kernels_the_same_file_runs_and_says_why(file, without):
    model = load(file)
    assert model.ran_on.startswith(
        f"ONNX Runtime {version(ENGINES['onnxruntime'])} without native kernels: the kernels"
    )
    assert len(model(X)) == 2
    with pytest.raises(EngineError, match="there are no native kernels here: the kernels were not built"):
        load(file, kernels=True)


@pytest.mark.parametrize("content", [None, b"", b"no library"])
def test_a_library_that_cannot_be_loaded_is_named_with_the_way_out(file, tmp_path, monkeypatch, content):
    place = tmp_path / "broken.so"
    if content is not None:
        place.write_bytes(content)
    monkeypatch.setenv("SRUEXPORT_KERNELS", str(place))
    with pytest.raises(EngineError, match=r"broken\.so: ONNX Runtime cannot load these kernels: .*KERNELS=off does"):
        load(file)


def test_a_converted_file_has_no_use_for_them(file, tmp_path):
    needs_kernels()
    converted = convert(file, tmp_path / "scan.onnx", form="scan").path
    assert default_engine(file) == "onnxruntime-kernels"
    assert default_engine(converted) == "onnxruntime"
    assert load(converted).ran_on == f"ONNX Runtime {version(ENGINES['onnxruntime'])}"


def test_validate_runs_what_load_runs(layer, file, monkeypatch):
    needs_kernels()
    report = validate(layer, file)
    assert report.passed
    assert report.engine == f"ONNX Runtime with native kernels {version(ENGINE)}"
    monkeypatch.setenv("SRUEXPORT_KERNELS", "off")
    assert default_engine(file) == "onnxruntime"
    assert validate(layer, file).engine == f"ONNX Runtime {version(ENGINES['onnxruntime'])}"


def test_kernels_run_in_the_engines_own_process(file):
    """An empty sequence shows it: no function body takes one."""
    needs_kernels()
    session = EngineSession(ENGINE, file)
    try:
        outputs = session.run({"input": np.zeros((0, 2, 3), np.float32)})
    finally:
        session.close()
    assert outputs["h"].shape == (0, 2, 4)
