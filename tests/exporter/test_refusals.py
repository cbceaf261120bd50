"""What an export refuses: typed, in words that name the way out, and with no file left behind."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest
import sru
import torch
from torch import nn

import sruexport
from sruexport.errors import DynamicAxesError, ExportError, ModelFileError, ModelWarning, OptionError, OutputError
from sruexport.layers import SRU


class Model(nn.Module):
    """A whole model: not a bare layer."""

    def __init__(self):
        super().__init__()
        self.sru = SRU(4, 4, num_layers=1)

    def forward(self, frames, mask=None):
        return self.sru(frames, mask_pad=mask)[0]


class Fixed(Model):
    """Its own code fixes the number of steps, in one of several ways."""

    def __init__(self, how: str):
        super().__init__()
        self.how = how
        self.positions = nn.Parameter(torch.zeros(5, 1, 4))

    def forward(self, frames):
        if self.how == "loop":
            return torch.stack([self.sru(frames[t : t + 1])[0][0] for t in range(frames.shape[0])])
        if self.how == "reshape":
            frames = frames.reshape(5, 3, 4)
        if self.how == "positions":
            frames = frames + self.positions
        if self.how == "number":
            frames = frames + torch.arange(int(frames.shape[0]))[:, None, None]
        if self.how == "limit":
            frames = torch.cat([frames, frames.new_zeros(10 - frames.shape[0], 3, 4)])
        if self.how == "condition" and frames.shape[0] < 5:
            frames = frames * 2
        return self.sru(frames)[0]


FRAMES = torch.zeros(5, 3, 4)


@pytest.fixture
def path(tmp_path):
    """Where the file would be; nothing may be there in the end."""
    yield tmp_path / "m.onnx"
    assert not list(tmp_path.iterdir())


# Dynamic axes


@pytest.mark.parametrize(
    ("args", "suggestion"),
    [
        ((FRAMES,), 'dynamic={"frames": {0: "B", 1: "T"}}'),
        ({"frames": FRAMES, "mask": torch.zeros(5, 3)}, '"mask": {0: "B", 1: "T"}'),
    ],
    ids=["one", "two"],
)
def test_a_whole_model_has_to_say_which_axes_are_dynamic(path, args, suggestion):
    with pytest.raises(DynamicAxesError) as caught:
        sruexport.export(Model(), args, path)
    assert suggestion in str(caught.value)
    assert "dynamic={} for a static file" in str(caught.value)


@pytest.mark.parametrize(
    ("dynamic", "message"),
    [
        ({"frame": {0: "T"}}, "'frame' is not an input; did you mean 'frames'.*the inputs are frames"),
        ({"mask": {0: "T"}}, "'mask' is not an input"),
        ({"frames": {3: "T"}}, "frames has 3 axes, there is no axis 3"),
        ({"frames": {-4: "T"}}, "frames has 3 axes, there is no axis -4"),
        ({"frames": {"0": "T"}}, "there is no axis 0"),
        ({"frames": {0: "not a name"}}, "'not a name' is not a name such as 'T'"),
        ({"frames": {0: 5}}, "'5' is not a name such as 'T'"),
        ({"frames": {0: "N", 1: "N"}}, "'N' is 5 in frames but 3 in frames axis 1"),
    ],
    ids=str,
)
def test_axes_that_do_not_exist(path, dynamic, message):
    with pytest.raises(DynamicAxesError, match=message):
        sruexport.export(Model(), FRAMES, path, dynamic=dynamic)


def test_an_example_without_steps(path):
    with pytest.raises(DynamicAxesError, match="frames has size 0 on axis 0; give an example with 2 or more"):
        sruexport.export(Model(), torch.zeros(0, 3, 4), path, dynamic={"frames": {0: "T"}})


@pytest.mark.parametrize("how", ["loop", "reshape", "positions", "number", "limit", "condition"])
def test_code_that_fixes_an_axis_gives_no_static_file(path, how):
    with pytest.raises(DynamicAxesError, match=r"the model's own code fixes or limits the axis 'T'"):
        sruexport.export(Fixed(how).eval(), FRAMES, path, dynamic={"frames": {0: "T"}})


class Tied(Model):
    def forward(self, frames, more):
        return self.sru(frames + more)[0]


def test_axes_that_the_code_ties_have_one_name(path):
    axes = {"frames": {0: "T"}, "more": {0: "S"}}
    with pytest.raises(DynamicAxesError, match=r"the model's own code .*'[ST]'"):
        sruexport.export(Tied(), (FRAMES, FRAMES), path, dynamic=axes)


class FirstFive(Model):
    def forward(self, frames):
        return self.sru(frames[:5].reshape(15, 4).reshape(5, 3, 4))[0]


def test_conditions_on_an_axis_are_told_and_never_silently_broken(tmp_path):
    model = FirstFive().eval()
    with pytest.warns(ModelWarning, match="1 conditions on the dynamic axes that could not be proven"):
        sruexport.export(model, FRAMES, tmp_path / "m.onnx", dynamic={"frames": {0: "T"}})
    exported = sruexport.load(tmp_path / "m.onnx")
    longer = torch.randn(7, 3, 4, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(torch.from_numpy(exported(longer.numpy())[0]), model(longer))
    with pytest.raises(ModelFileError, match="cannot run"):
        exported(longer[:4].numpy())


class One(Model):
    def forward(self, frames):
        h = self.sru(frames)[0]
        return h * 5 if frames.shape[0] % 4 == 1 else h


def test_code_that_decides_by_a_size_of_one_is_told(tmp_path):
    with pytest.warns(ModelWarning, match=r"test_refusals.py:\d+ decides by whether a size is 1"):
        sruexport.export(One(), FRAMES[:3], tmp_path / "m.onnx", dynamic={"frames": {0: "T"}})


class Number(Model):
    def forward(self, frames):
        h = self.sru(frames)[0]
        return h * 2 if frames.sum().item() > 0 else h


def test_code_that_decides_by_a_number_from_a_tensor(path, capfd):
    with pytest.raises(ExportError, match=r"test_refusals.py:\d+ decides by a number taken from a tensor"):
        sruexport.export(Number(), FRAMES, path, dynamic={"frames": {0: "T"}})
    assert capfd.readouterr() == ("", "")


def test_a_layer_whose_forward_was_replaced(path):
    model = Model()
    model.sru = sru.SRU(4, 4)
    model.sru.forward = lambda x, mask_pad=None: (x, x)
    with pytest.raises(ExportError, match="a layer of class SRU has had its forward replaced"):
        sruexport.export(model, FRAMES, path, dynamic={})


class Hidden(Model):
    def __init__(self):
        super().__init__()
        self.others = [sru.SRU(4, 4)]

    def forward(self, frames):
        return self.others[0](self.sru(frames)[0])[0]


def test_a_layer_in_a_plain_list(path):
    with pytest.raises(ExportError, match=r"Hidden.others holds a layer of class SRU in a plain list.*ModuleList"):
        sruexport.export(Hidden(), FRAMES, path, dynamic={})


def test_tensors_without_plain_values(path):
    with pytest.raises(ExportError, match=r"tensor sru\.\S+ is on the meta device"):
        sruexport.export(Model().to("meta"), FRAMES, path, dynamic={})
    sparse = Model()
    sparse.extra = nn.Parameter(torch.eye(4).to_sparse())
    with pytest.raises(ExportError, match="tensor extra is sparse"):
        sruexport.export(sparse, FRAMES, path, dynamic={})


# Options and arguments


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"dtype": "float23"}, "dtype 'float23' is not one of float32, .*; did you mean 'float"),
        ({"dtype": torch.int8}, "dtype 'torch.int8' is not one of"),
        ({"opset": 17}, "opset 17: give one from 18 to 25"),
        ({"opset": 26}, "opset 26: give one from 18 to 25"),
    ],
    ids=str,
)
def test_dtype_and_opset_that_are_not_written(path, option, message):
    with pytest.raises(OptionError, match=message):
        sruexport.export(Model(), FRAMES, path, dynamic={}, **option)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"frame": FRAMES}, r"args: .*\(forward takes frames, mask\)"),
        ((FRAMES, None, None), r"args: .*\(forward takes frames, mask\)"),
        ((), r"args: .*\(forward takes frames, mask\)"),
        ((1,), "args: there is no tensor among the arguments"),
        (None, "args: give an example of the model's arguments"),
        ((nn.utils.rnn.pack_sequence([FRAMES[:, 0]]),), "args: frames is a PackedSequence.* give the padded tensor"),
    ],
    ids=["unknown", "too-many", "none", "no-tensor", "no-example", "packed"],
)
def test_arguments_that_forward_does_not_take(path, args, message):
    with pytest.raises(OptionError, match=message):
        sruexport.export(Model(), args, path, dynamic={})


def test_a_model_that_does_not_run_on_the_example(path):
    with pytest.raises(ExportError, match="the model does not run on the example: RuntimeError"):
        sruexport.export(Model(), torch.zeros(5, 3, 7), path, dynamic={})


def test_a_model_without_a_known_layer(path):
    with pytest.raises(ExportError, match=r"no layer that sruexport knows; torch\.onnx\.export alone"):
        sruexport.export(nn.Linear(4, 4), torch.zeros(5, 4), path, dynamic={})


class Says(Model):
    def forward(self, frames):
        return super().forward(frames), object()


def test_a_result_that_no_graph_can_give(path):
    with pytest.raises(ExportError, match="forward returns a object: let it return tensors"):
        sruexport.export(Says(), FRAMES, path, dynamic={})


# The output


def test_an_output_that_is_a_folder(tmp_path):
    with pytest.raises(OutputError, match="is a folder; give the name of a file in it"):
        sruexport.export(SRU(4, 4), None, tmp_path)
    assert not list(tmp_path.iterdir())


def test_an_output_in_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(OutputError, match=r"the folder .*missing does not exist"):
        sruexport.export(SRU(4, 4), None, tmp_path / "missing" / "m.onnx")
    assert not list(tmp_path.iterdir())


def test_a_full_disk_leaves_what_was_there(tmp_path):
    """The limit on the size of files stands in for the disk: writing fails in the middle of the file."""
    new, old = tmp_path / "new.onnx", tmp_path / "old.onnx"
    old.write_bytes(b"what was there")
    script = """
        import resource, signal, sys
        import sruexport
        from sruexport.layers import SRU

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        for path in sys.argv[1:]:
            try:
                sruexport.export(SRU(16, 32), None, path)
            except sruexport.errors.OutputError as error:
                print(error)
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(new), str(old)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"{path}: cannot be written: File too large" for path in (new, old)]
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"old.onnx": b"what was there"}
