"""load(): arrays in, arrays out; what does not fit is refused with the input's name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sruexport import LoadedModel, export, load
from sruexport.errors import InputError, ModelFileError
from sruexport.layers import SRU

RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((6, 2, 3)).astype(np.float32)
IDS = RANDOM.integers(0, 9, (6, 2)).astype(np.int32)
MASK = (RANDOM.random((6, 2)) < 0.3).astype(np.int32)


class Tagger(nn.Module):
    """Features and tokens together: one input of floats, two of integers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(9, 3)
        self.sru = SRU(3, 4, num_layers=2)

    def forward(self, features: Tensor, tokens: Tensor, mask: Tensor) -> Tensor:
        return self.sru(features + self.embedding(tokens), mask_pad=mask)[0]


@pytest.fixture(scope="module")
def tagger() -> nn.Module:
    torch.manual_seed(0)
    return Tagger().eval()


@pytest.fixture(scope="module")
def file(tagger: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Path:
    example = tuple(map(torch.from_numpy, (X, IDS, MASK)))
    axes = {name: {0: "T", 1: "B"} for name in ("features", "tokens", "mask")}
    return export(tagger, example, tmp_path_factory.mktemp("tagger") / "tagger.onnx", dynamic=axes).path


@pytest.fixture(scope="module")
def model(file: Path) -> LoadedModel:
    return load(file)


@pytest.fixture(scope="module")
def expected(tagger: nn.Module) -> np.ndarray:
    with torch.no_grad():
        return tagger(*map(torch.from_numpy, (X, IDS, MASK))).numpy()


@pytest.fixture(scope="module")
def stream_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(1)
    layer = SRU(3, 4, num_layers=2)
    return export(layer, None, tmp_path_factory.mktemp("stream") / "stream.onnx", stateful=True).path


@pytest.fixture(scope="module")
def stream(stream_file: Path) -> LoadedModel:
    return load(stream_file)


def near(actual: np.ndarray, desired: np.ndarray) -> None:
    np.testing.assert_allclose(actual, desired, rtol=1e-5, atol=1e-6)


# What is in the file


def test_ports_are_those_of_the_graph_in_its_order(model):
    assert [port.name for port in model.inputs] == ["features", "tokens", "mask"]
    assert [port.dtype for port in model.inputs] == [np.float32, np.int32, np.int32]
    assert model.inputs[0].shape == ("T", "B", 3)
    assert [port.name for port in model.outputs] == ["output"]


def test_metadata_is_what_export_wrote(model):
    assert model.metadata["recurrences"] == ["SRURecurrence"]
    assert model.metadata["dynamic"]["tokens"] == {"0": "T", "1": "B"}


# Calling it


def test_arrays_go_in_in_the_graphs_order(model, expected):
    outputs = model(X, IDS, MASK)
    assert isinstance(outputs, list)
    assert len(outputs) == 1
    near(outputs[0], expected)


def test_arrays_go_in_by_name_in_any_order(model, expected):
    near(model(mask=MASK, features=X, tokens=IDS)[0], expected)


def test_both_ways_can_be_mixed(model, expected):
    near(model(X, mask=MASK, tokens=IDS)[0], expected)


def test_run_gives_outputs_by_name(model, expected):
    outputs = model.run(X, IDS, MASK)
    assert list(outputs) == ["output"]
    near(outputs["output"], expected)


def test_lists_and_tensors_are_arrays_too(model, expected):
    near(model(X.tolist(), torch.from_numpy(IDS), MASK.tolist())[0], expected)


def test_arrays_need_not_be_contiguous(model, expected):
    near(model(X.transpose(1, 0, 2).copy().transpose(1, 0, 2), np.asfortranarray(IDS), MASK)[0], expected)


def test_the_callers_arrays_are_left_alone(model):
    arrays = [X.astype(np.float64), IDS.copy(), MASK.copy()]
    before = [array.copy() for array in arrays]
    model(*arrays)
    for array, kept in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(array, kept)


@pytest.mark.parametrize(("steps", "rows"), [(1, 1), (1, 4), (9, 1), (33, 3)])
def test_any_length_and_batch_goes(model, steps, rows):
    integers = np.zeros((steps, rows), np.int32)
    assert model(np.zeros((steps, rows, 3)), integers, integers)[0].shape == (steps, rows, 4)


def test_an_empty_batch_gives_empty_outputs(model):
    integers = np.zeros((5, 0), np.int32)
    assert model(np.zeros((5, 0, 3)), integers, integers)[0].shape == (5, 0, 4)


# States


def test_states_left_out_start_from_zeros(stream):
    zeros = np.zeros((2, 4), np.float32)
    for left_out, given in zip(stream(X), stream(X, zeros, zeros), strict=True):
        np.testing.assert_array_equal(left_out, given)


def test_some_states_can_be_left_out(stream):
    state = np.ones((2, 4), np.float32)
    first = stream.run(X, state_1=state)
    assert not np.array_equal(first["new_state_1"], stream.run(X)["new_state_1"])


@pytest.mark.parametrize("lengths", [(1,) * 6, (2, 4), (5, 1)])
def test_a_stream_run_chunk_by_chunk_is_the_whole(stream, lengths):
    whole = stream.run(X)
    parts, states, start = [], {}, 0
    for length in lengths:
        outputs = stream.run(input=X[start : start + length], **states)
        states = {state["input"]: outputs[state["output"]] for state in stream.metadata["states"]}
        parts.append(outputs["h"])
        start += length
    near(np.concatenate(parts), whole["h"])
    for state in stream.metadata["states"]:
        near(states[state["input"]], whole[state["output"]])


def test_states_of_another_batch_are_refused(stream):
    with pytest.raises(InputError, match=r"'state_0' has shape \[3, 4\].*axis 0 is 3 and should be 2"):
        stream(X, state_0=np.zeros((3, 4), np.float32))


# Dtypes


@pytest.mark.parametrize("dtype", [np.float64, np.float16])
def test_floats_are_cast_to_the_files_floats(model, expected, dtype):
    np.testing.assert_allclose(model(X.astype(dtype), IDS, MASK)[0], expected, atol=2e-3)


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, np.int8])
def test_integers_are_cast_to_the_files_integers(model, expected, dtype):
    near(model(X, IDS.astype(dtype), MASK)[0], expected)


def test_booleans_are_cast_to_integers(model, expected):
    near(model(X, IDS, MASK.astype(bool))[0], expected)


def test_whole_numbers_are_cast_to_floats(model):
    near(model(np.ones((6, 2, 3), int), IDS, MASK)[0], model(np.ones((6, 2, 3)), IDS, MASK)[0])


@pytest.mark.parametrize("array", [IDS.astype(np.float32), IDS.astype(complex), IDS.astype(str), IDS.astype(object)])
def test_what_is_no_integer_is_refused_for_one(model, array):
    with pytest.raises(InputError, match=r"'tokens' is .*, the file takes int32"):
        model(X, array, MASK)


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1, 2**40])
def test_integers_that_the_files_dtype_does_not_hold_are_refused(model, value):
    with pytest.raises(InputError, match="'tokens' holds integers that int32 cannot"):
        model(X, np.full((6, 2), value), MASK)


def test_integers_that_the_files_floats_do_not_hold_are_refused(model):
    with pytest.raises(InputError, match="'features' holds integers that float32 cannot"):
        model(np.full((6, 2, 3), 2**24 + 1), IDS, MASK)


def test_floats_that_would_become_infinite_are_refused(model):
    with pytest.raises(InputError, match="'features' holds values that are infinite in float32"):
        model(np.full((6, 2, 3), 1e39), IDS, MASK)


def test_nan_and_infinity_are_passed_on(model):
    array = X.astype(np.float64)
    array[0, 0, 0], array[0, 1, 0] = np.nan, np.inf
    assert not np.isfinite(model(array, IDS, MASK * 0)[0][0]).all()


def test_a_float16_file_takes_float32_and_gives_float16(tmp_path):
    model = load(export(SRU(3, 4, num_layers=1), None, tmp_path / "m.onnx", dtype="float16").path)
    assert model(X)[0].dtype == np.float16


# What is refused


@pytest.mark.parametrize(
    ("arrays", "named", "message"),
    [
        ((), {}, r"input 'features' is missing \(the inputs are features, tokens, mask\)"),
        ((X,), {"mask": MASK}, "input 'tokens' is missing"),
        ((X, IDS, MASK, X), {}, "4 arrays for 3 inputs"),
        ((X, IDS), {"tokens": IDS, "mask": MASK}, "input 'tokens' is given twice"),
        ((X, IDS), {"masks": MASK}, "no input 'masks'; did you mean 'mask'"),
        ((X, IDS), {"zzz": MASK}, r"no input 'zzz' \(the inputs are"),
        ((X[0], IDS, MASK), {}, r"'features' has shape \[2, 3\], the file takes \[T, B, 3\]"),
        ((X[..., :2], IDS, MASK), {}, "'features' has shape .* axis 2 is 2 and should be 3"),
        ((X, IDS[:4], MASK), {}, r"'tokens' has shape \[4, 2\].*axis 0 is 4 and should be 6"),
        ((X, IDS, MASK[:, :1]), {}, "'mask' has shape .*axis 1 is 1 and should be 2"),
        ((X[:0], IDS[:0], MASK[:0]), {}, "'features' has no steps on axis 0; give 1 or more"),
    ],
)
def test_arrays_that_do_not_fit_are_refused_with_the_file_and_the_input(model, file, arrays, named, message):
    with pytest.raises(InputError, match=message) as caught:
        model(*arrays, **named)
    assert str(caught.value).startswith(f"{file}: ")
    assert "\n" not in str(caught.value)


def test_no_steps_are_refused_whatever_the_time_axis_is_called(tmp_path):
    class BatchFirst(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.sru = SRU(3, 4, num_layers=1)

        def forward(self, x: Tensor) -> Tensor:
            return self.sru(x.transpose(0, 1))[0]

    axes = {"x": {0: "batch", 1: "frames"}}
    model = load(export(BatchFirst(), (torch.zeros(2, 5, 3),), tmp_path / "m.onnx", dynamic=axes).path)
    with pytest.raises(InputError, match="'x' has no steps on axis 1"):
        model(np.zeros((2, 0, 3)))


# Files


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ModelFileError, match=r"no\.onnx: there is no such file"):
        load(tmp_path / "no.onnx")


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(ModelFileError, match="is a folder"):
        load(tmp_path)


@pytest.mark.parametrize("share", [0.2, 0.6, 0.99])
def test_a_truncated_file_is_refused(tmp_path, file, share):
    content = file.read_bytes()
    (tmp_path / "cut.onnx").write_bytes(content[: int(len(content) * share)])
    with pytest.raises(ModelFileError, match=r"cut\.onnx: (is cut off, damaged|ONNX Runtime cannot load it)") as caught:
        load(tmp_path / "cut.onnx")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"this is no model" * 40, b"\x00" * 100, b"PK\x03\x04"])
def test_junk_is_refused(tmp_path, content):
    (tmp_path / "junk.onnx").write_bytes(content)
    with pytest.raises(ModelFileError, match=r"junk\.onnx: ") as caught:
        load(tmp_path / "junk.onnx")
    assert "\n" not in str(caught.value)


def test_names_of_files_may_be_texts(stream_file):
    near(load(str(stream_file))(X)[0], load(stream_file)(X)[0])
