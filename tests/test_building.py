"""Building an engine file: in which form, for which sizes and GPUs; and what is refused, with the way out."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import torch
from engines_here import needs
from fake_engines import Forge

import sruexport
from sruexport import export
from sruexport.building import Built
from sruexport.engines import AS_EXPORTED, ENGINES
from sruexport.engines.environments import interpreter, version
from sruexport.errors import ConversionError, EngineError, ModelFileError, OptionError, OutputError
from sruexport.examples import japanese_vowels
from sruexport.layers import SRU
from sruexport.sources import from_code

NAME = "tensorrt-rtx"
#: The capabilities that the builder knows.
LOOK = """
import json, sys
import tensorrt_rtx_bindings as trt
print(json.dumps(sorted(name.removeprefix("SM") for name in trt.ComputeCapability.__members__ if name[:2] == "SM")))
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with exported files: the demo's own, and small ones in several dtypes."""
    folder = tmp_path_factory.mktemp("made")
    example = japanese_vowels.EXAMPLES[0]
    recording, mask_pad, _ = japanese_vowels.recordings()
    arguments = (torch.from_numpy(recording), torch.from_numpy(mask_pad))
    dynamic = {"recording": {0: "T", 1: "B"}, "mask_pad": {0: "T", 1: "B"}}
    export(from_code(example.model, example.checkpoint).model, arguments, folder / "speaker.onnx", dynamic=dynamic)
    torch.manual_seed(0)
    layer = SRU(4, 4, num_layers=1).eval()
    for dtype in ("float32", "float16", "bfloat16", "float64"):
        export(layer, None, folder / f"{dtype}.onnx", dtype=dtype, stateful=dtype == "float32")
    export(SRU(4, 4, num_layers=1, v1=True).eval(), None, folder / "linear.onnx")
    export(layer, (torch.zeros(5, 2, 4),), folder / "static.onnx", dynamic={})
    sruexport.convert(folder / "float32.onnx", folder / "converted.onnx", form="lstm-peephole")
    return folder


@pytest.fixture
def forge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENGINES, "forge", Forge())


def built(source: Path, output: Path, **settings) -> Built:
    done = sruexport.build(source, output, **{"engine": NAME, **settings})
    assert done.path == output
    assert output.stat().st_size == done.bytes
    assert [path.name for path in output.parent.iterdir()] == [output.name], "nothing is left beside it"
    return done


# TensorRT-RTX


def test_the_demo_s_model_is_built_in_the_first_form_that_the_builder_takes(made, tmp_path):
    needs(NAME)
    steps = []
    done = built(made / "speaker.onnx", tmp_path / "m.engine", progress=lambda *step: steps.append(step))
    assert (done.engine, done.version, done.form) == (NAME, version(ENGINES[NAME]), "scan")
    assert list(done.passed_over) == ["parallel"]
    assert "no parallel scan of it is exact" in done.passed_over["parallel"]
    assert (done.capabilities, done.dtype) == (("86",), "float32")
    assert done.sizes == {"T": (1, 32, 512), "B": (1, 32, 512)}
    assert [port.name for port in done.inputs] == ["recording", "mask_pad"]
    assert done.outputs[0].shape == ("B", 9)
    assert done.seconds > 0
    assert done.not_run.endswith("only that GPU can run it")
    assert (tmp_path / "m.engine").read_bytes()[:4] == b"vtrt"
    json.dumps(done.to_dict(), allow_nan=False)
    told = [share for step, share in steps if not step.startswith("form ")]
    assert ("form scan", 0.0) in steps
    assert told == sorted(told), "it does not go back"
    assert 0.5 < max(told) <= 1
    assert len(told) < 400, "steps of less than a hundredth are not told"


def test_a_linear_recurrence_is_built_in_parallel(made, tmp_path):
    needs(NAME)
    done = built(made / "linear.onnx", tmp_path / "m.engine")
    assert (done.form, done.passed_over) == ("parallel", {})


@pytest.mark.parametrize("form", [AS_EXPORTED, "loop", "lstm"])
def test_the_form_that_is_asked_for_is_built(made, tmp_path, form):
    needs(NAME)
    done = built(made / "float32.onnx", tmp_path / "m.engine", form=form)
    assert (done.form, done.passed_over) == (form, {})
    assert any("k" in layer for layer in done.layers) == (form == "lstm")


def test_a_converted_file_is_built_as_it_is(made, tmp_path):
    needs(NAME)
    assert built(made / "converted.onnx", tmp_path / "m.engine").form == "lstm-peephole"
    with pytest.raises(ConversionError, match=r"converted.onnx: is converted already, to form lstm-peephole"):
        sruexport.build(made / "converted.onnx", tmp_path / "n.engine", engine=NAME, form="scan")


@pytest.mark.parametrize(
    ("name", "capabilities"), [("float16", ["75"]), ("float32", ["80", "120", "80"]), ("bfloat16", ["89"])]
)
def test_it_is_built_for_the_gpus_that_are_asked_for(made, tmp_path, name, capabilities):
    needs(NAME)
    done = built(made / f"{name}.onnx", tmp_path / "m.engine", capabilities=capabilities, dtype=name)
    assert done.capabilities == tuple(dict.fromkeys(capabilities))
    assert (done.dtype, done.form) == (name, "scan")


def test_static_files_need_no_sizes(made, tmp_path):
    needs(NAME)
    assert built(made / "static.onnx", tmp_path / "m.engine").sizes == {}


def test_a_workspace_that_is_too_small_is_the_builder_s_own_error_with_the_way_out(made, tmp_path):
    needs(NAME)
    output = tmp_path / "m.engine"
    output.write_bytes(b"old")
    with pytest.raises(EngineError) as caught:
        sruexport.build(made / "float32.onnx", output, engine=NAME, form="scan", workspace=1)
    assert "float32.onnx: TensorRT-RTX builds it in no form: scan: " in str(caught.value)
    assert "give it more workspace: IBuilder::buildSerializedNetwork: Error Code 1" in str(caught.value)
    assert output.read_bytes() == b"old"
    assert len(list(tmp_path.iterdir())) == 1
    output.unlink()
    built(made / "float32.onnx", output, form="scan", workspace=1024)


def test_an_lstm_in_float32_for_turing_is_refused_with_what_mends_it(made, tmp_path):
    needs(NAME)
    with pytest.raises(EngineError, match=r"lstm: .* no product in float32 builds for 75, .*--lstm-dtype float16"):
        sruexport.build(made / "float16.onnx", tmp_path / "m.engine", engine=NAME, form="lstm", capabilities=["75"])
    sruexport.convert(made / "float16.onnx", tmp_path / "m.onnx", form="lstm", lstm_dtype="float16")
    sruexport.build(tmp_path / "m.onnx", tmp_path / "m.engine", engine=NAME, capabilities=["75"])


def test_its_profile_has_the_capabilities_that_the_builder_has():
    needs(NAME)
    engine = ENGINES[NAME]
    said = subprocess.run([interpreter(engine), "-I", "-c", LOOK], capture_output=True, text=True, check=True).stdout
    assert set(json.loads(said)) == set(engine.capabilities)


# Any engine that builds


def test_forms_that_the_builder_refuses_are_passed_over_with_its_error(made, tmp_path, forge):
    done = built(made / "float32.onnx", tmp_path / "m.forged", engine="forge")
    assert done.form == "loop"
    assert list(done.passed_over) == ["parallel", "scan"]
    assert done.passed_over["scan"] == "Forge cannot build it: ValueError: a Scan melts"
    assert done.not_run == "its machine is elsewhere"


def test_the_builder_s_errors_come_first_where_it_takes_no_form(made, tmp_path, forge, monkeypatch):
    monkeypatch.setattr(Forge, "forms", ("parallel", "scan", AS_EXPORTED))
    with pytest.raises(EngineError, match=r"float32.onnx: Forge builds it in no form: scan, as exported: Forge cannot"):
        sruexport.build(made / "float32.onnx", tmp_path / "m.forged", engine="forge")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("given", "sizes"),
    [
        ({}, (1, 32, 512)),
        ({"max_sizes": {"T": 4}}, (1, 4, 4)),
        ({"min_sizes": {"T": 100}}, (100, 100, 512)),
        ({"min_sizes": {"T": 1000}}, (1000, 1000, 1000)),
        ({"opt_sizes": {"T": 1000}}, (1, 1000, 1000)),
        ({"min_sizes": {"T": 2}, "opt_sizes": {"T": 3}, "max_sizes": {"T": 4}}, (2, 3, 4)),
    ],
)
def test_sizes_that_are_left_out_are_the_defaults_or_nearest_to_them(made, tmp_path, forge, given, sizes):
    done = built(made / "float32.onnx", tmp_path / "m.forged", engine="forge", **given)
    assert done.sizes == {"T": sizes, "B": (1, 32, 512)}


@pytest.mark.parametrize(
    ("settings", "error", "said"),
    [
        ({"engine": "tract"}, OptionError, r"engine 'tract' has no files of its own to build \(.*: tensorrt-rtx"),
        ({"engine": "tensorrt-rtz"}, OptionError, "'tensorrt-rtz' is not known; did you mean 'tensorrt-rtx'"),
        ({"form": "scann"}, OptionError, "form 'scann' is not known; did you mean 'scan'"),
        ({"form": "unrolled"}, ConversionError, "float32.onnx: .*length must be static.*sruexport convert has options"),
        ({"capabilities": ["90"]}, OptionError, "capability '90': TensorRT-RTX builds for 75, 80, 86, 89, 120, 121"),
        ({"capabilities": ["86", "75"]}, EngineError, "float32, which .* for capability 75: .* --dtype float16"),
        ({"dtype": "float16"}, OptionError, "is in float32, and .* export the model with --dtype float16"),
        ({"workspace": 0}, OptionError, "workspace 0: give a number of MiB from 1 up"),
        ({"max_sizes": {"N": 5}}, OptionError, r"max N=5: .*float32.onnx has no such dynamic dim \(they are T, B\)"),
        ({"min_sizes": {"T": 0}}, OptionError, "min T=0: give a size from 1 to 2,147,483,647"),
        ({"max_sizes": {"T": 2**31}}, OptionError, "max T=2147483648: give a size from 1 to"),
        ({"min_sizes": {"T": 9}, "max_sizes": {"T": 3}}, OptionError, "^min T=9, max T=3: give sizes with min <= opt"),
        ({"opt_sizes": {"B": 9}, "max_sizes": {"B": 3}}, OptionError, "^opt B=9, max B=3: give sizes with min <= opt"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_does(made, tmp_path, settings, error, said):
    with pytest.raises(error, match=said) as caught:
        sruexport.build(made / "float32.onnx", tmp_path / "m.engine", **{"engine": NAME, **settings})
    assert len(str(caught.value).splitlines()) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "settings", "error", "said"),
    [
        ("static", {"max_sizes": {"T": 5}}, OptionError, r"no such dynamic dim \(all are static: leave it out\)"),
        ("float64", {}, EngineError, "is in float64, which TensorRT-RTX gets wrong: .* export .* --dtype float32"),
        ("bfloat16", {"capabilities": ["75"]}, EngineError, "is in bfloat16, .* for capability 75: .* --dtype float16"),
        ("none", {}, ModelFileError, "none.onnx: there is no such file"),
    ],
)
def test_files_that_do_not_fit_are_refused_with_the_way_out(made, tmp_path, name, settings, error, said):
    with pytest.raises(error, match=said):
        sruexport.build(made / f"{name}.onnx", tmp_path / "m.engine", engine=NAME, **settings)
    assert not list(tmp_path.iterdir())


def test_where_the_engine_is_not_installed_it_says_how_to(made, tmp_path, monkeypatch):
    monkeypatch.setenv("SRUEXPORT_ENGINES", str(tmp_path / "engines"))
    with pytest.raises(EngineError, match="TensorRT-RTX is not installed: sruexport engines install tensorrt-rtx"):
        sruexport.build(made / "float32.onnx", tmp_path / "m.engine", engine=NAME)


def test_where_the_output_cannot_be_written_nothing_is_built(made, tmp_path):
    with pytest.raises(OutputError, match=r"the folder .* does not exist"):
        sruexport.build(made / "float32.onnx", tmp_path / "no" / "m.engine", engine=NAME)
