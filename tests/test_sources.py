"""Where a command's model comes from: a checkpoint, or code with weights; and what is said when that does not work."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from sruexport.errors import CheckpointError, OptionError, OutputError
from sruexport.layers import SRUCell
from sruexport.sources import Source, choose, from_checkpoint, from_code, keep_apart, parse_options, with_inputs

CODE = """
import torch
from torch import nn
from sruexport.errors import OptionError
from sruexport.layers import SRU

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.sru = SRU(3, 4, num_layers=1)
        self.out = nn.Linear(4, 2)

    def forward(self, x, scale=1.0):
        return self.out(self.sru(x)[0]) * scale

ARGS = (torch.zeros(5, 2, 3),)
DYNAMIC = {"x": {0: "T", 1: "B"}}

def net(): return Net()
def with_args(): return Net(), ARGS
def with_dynamic(): return Net(), ARGS, DYNAMIC
def bare(): return SRU(3, 4)
def fails(): raise ValueError("no\\nsuch data")
def refuses(): raise OptionError("the factory's own words")
def number(): return 3
def nothing(): return ()
def too_many(): return Net(), 1, 2, 3
def needs(size): return Net()
VALUE = 3
"""


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of the current folder, under a name of its own."""
    name = f"nets_{abs(hash(str(tmp_path)))}"
    (tmp_path / f"{name}.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p != str(tmp_path)])
    return name


@pytest.fixture
def state(code: str) -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    return from_code(f"{code}:net", None).model.state_dict()


@pytest.fixture
def weights(tmp_path: Path) -> Callable[[Any], Path]:
    def save(content: Any) -> Path:
        torch.save(content, tmp_path / "w.pt")
        return tmp_path / "w.pt"

    return save


# Code


def test_a_factory_may_return_the_model_alone(code):
    source = from_code(f"{code}:net", None)
    assert isinstance(source.model, nn.Module)
    assert (source.args, source.dynamic) == (None, None)
    assert source.origin == {"model": f"{code}:net"}


def test_a_factory_may_return_an_example_call(code):
    source = from_code(f"{code}:with_args", None)
    assert source.args[0].shape == (5, 2, 3)
    assert source.dynamic is None


def test_a_factory_may_return_the_dynamic_axes_too(code):
    assert from_code(f"{code}:with_dynamic", None).dynamic == {"x": {0: "T", 1: "B"}}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("{}", "write package.module:factory"),
        ("{}:", "write package.module:factory"),
        (":net", "write package.module:factory"),
        ("no_such_module:net", "cannot import no_such_module: ModuleNotFoundError: No module named 'no_such_module'"),
        ("{}:nets", "has no nets; did you mean 'net'"),
        ("{}:fails", r"fails\(\) fails: ValueError: no such data"),
        ("{}:needs", r"needs\(\) fails: TypeError: .*'size'"),
        ("{}:VALUE", r"VALUE\(\) fails: TypeError"),
        ("{}:number", r"number\(\) returns a int; let it return the torch.nn.Module"),
        ("{}:nothing", r"nothing\(\) returns a tuple"),
        ("{}:too_many", r"too_many\(\) returns a tuple"),
    ],
)
def test_what_is_no_factory_is_refused_in_one_line(code, spec, message):
    with pytest.raises(OptionError, match=message) as caught:
        from_code(spec.format(code), None)
    assert str(caught.value).startswith(f"--model {spec.format(code)}: ")
    assert "\n" not in str(caught.value)


def test_code_that_does_not_compile_is_refused(tmp_path, code):
    (tmp_path / "broken_nets.py").write_text("def net(:\n")
    with pytest.raises(OptionError, match="cannot import broken_nets: SyntaxError"):
        from_code("broken_nets:net", None)


def test_errors_that_the_factory_raises_in_our_own_words_are_kept(code):
    with pytest.raises(OptionError, match=r"^the factory's own words$"):
        from_code(f"{code}:refuses", None)


# Weights


@pytest.mark.parametrize(
    "nest",
    [
        lambda state: state,
        lambda state: {"state_dict": state, "epoch": 3},
        lambda state: {"model": {f"module.{name}": tensor for name, tensor in state.items()}},
        lambda state: {f"net.core.{name}": tensor for name, tensor in state.items()},
        lambda state: {"ema": {"out.bias": torch.zeros(2)}, "model_state": state},
    ],
    ids=["plain", "nested", "nested-and-prefixed", "prefixed", "beside-another"],
)
def test_weights_are_found_wherever_they_are_nested(code, state, weights, nest):
    source = from_code(f"{code}:net", weights(nest(state)))
    assert all(torch.equal(tensor, state[name]) for name, tensor in source.model.state_dict().items())
    assert source.origin["file"] == "w.pt"
    assert len(source.origin["sha256"]) == 64


def test_a_key_that_is_missing_is_named_with_the_closest(code, state, weights):
    state["out.wieght"] = state.pop("out.weight")
    with pytest.raises(
        CheckpointError, match=r"w\.pt: key out\.weight of the model is missing; did you mean 'out\.wieg"
    ):
        from_code(f"{code}:net", weights(state))


def test_a_key_too_many_is_named(code, state, weights):
    state["extra.weight"] = torch.zeros(1)
    with pytest.raises(CheckpointError, match=r"w\.pt: key extra\.weight is not in the model"):
        from_code(f"{code}:net", weights(state))


def test_a_wrong_shape_is_named_with_both_shapes(code, state, weights):
    state["out.weight"] = torch.zeros(2, 5)
    with pytest.raises(CheckpointError, match=r"key out\.weight has shape \[2, 5\], the model's is \[2, 4\]"):
        from_code(f"{code}:net", weights(state))


def test_weights_of_something_else_are_refused(code, weights):
    with pytest.raises(CheckpointError, match="of the model is missing"):
        from_code(f"{code}:net", weights(nn.Conv1d(2, 2, 3).state_dict()))
    with pytest.raises(CheckpointError, match="of the model is missing"):
        from_code(f"{code}:net", weights({}))


def test_a_pickled_module_is_no_weights(code, weights):
    with pytest.raises(CheckpointError, match="is a pickled module; give a state_dict with --model"):
        from_code(f"{code}:net", weights(nn.Linear(2, 2)))


def test_missing_weights_are_named(code, tmp_path):
    with pytest.raises(CheckpointError, match=r"no\.pt: there is no such file"):
        from_code(f"{code}:net", tmp_path / "no.pt")


# The stand-in for sru, in a process in which sru cannot be found

THEIRS = """
def unrelated():
    import torch
    return torch.nn.Linear(1, 1)

def imported_names():
    from sru import SRU, SRUCell
    return SRU(3, 4) if SRUCell else None

def submodule():
    import sru.modules
    return sru.modules.SRU(3, 4)

def package():
    import sru
    return sru.SRU(3, 4) if sru.__version__ else None

def cell_of_submodule():
    from sru.modules import SRUCell
    return SRUCell(3, 4)

def another_class():
    import sru
    return sru.SRUnknown(3, 4, 2)

def min_gru():
    from minGRU_pytorch import minGRU
    from minGRU_pytorch.minLSTM import minLSTM
    return minGRU(4) if minLSTM else None

def qrnn():
    from torchqrnn import QRNN
    model = QRNN(3, 4, num_layers=2, window=2, use_cuda=False)
    model.reset()
    return model
"""
WITHOUT_SRU = """
import json, sys

class Hide:
    def __init__(self, finder): self.finder = finder
    def __getattr__(self, name): return getattr(self.finder, name)
    def find_spec(self, name, path=None, target=None):
        hidden = name.partition(".")[0] in ("sru", "minGRU_pytorch")
        return None if hidden else self.finder.find_spec(name, path, target)

sys.meta_path[:] = [Hide(finder) for finder in sys.meta_path]
from sruexport.errors import OptionError
from sruexport.sources import from_code
found = {}
for name in sys.argv[1:]:
    try:
        source = from_code(f"theirs:{name}", None)
        found[name] = [f"{type(source.model).__module__}.{type(source.model).__name__}", *source.notes]
    except OptionError as error:
        found[name] = [str(error)]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def without_sru(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """By factory of THEIRS: the class of its model, and the notes; or the error."""
    folder = tmp_path_factory.mktemp("theirs")
    (folder / "theirs.py").write_text(THEIRS)
    names = re.findall(r"def (\w+)", THEIRS)
    command = [sys.executable, "-c", WITHOUT_SRU, *names]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", ["imported_names", "submodule", "package", "cell_of_submodule"])
def test_code_that_imports_sru_gets_our_layers_where_it_is_not_installed(without_sru, name):
    made, note = without_sru[name]
    assert made.startswith("sruexport.layers.sru.SRU")
    assert note.startswith("sru is not installed: ")


def test_nothing_is_said_of_sru_to_code_that_does_not_ask_for_it(without_sru):
    assert without_sru["unrelated"] == ["torch.nn.modules.linear.Linear"]


def test_what_the_stand_in_has_not_is_said(without_sru):
    (message,) = without_sru["another_class"]
    assert "sru is not installed, and sruexport stands in only for SRU, SRUCell" in message
    assert message.endswith("not SRUnknown")


def test_packages_that_no_longer_install_are_stood_in_for_too(without_sru):
    assert without_sru["qrnn"] == [
        "sruexport.layers.qrnn.QRNN",
        "torchqrnn is not installed: the code got sruexport's own layers under that name",
    ]


def test_a_class_of_the_name_of_its_module_is_the_class(without_sru):
    assert without_sru["min_gru"][0] == "sruexport.layers.mingru.MinGRU"


def test_where_sru_is_installed_code_gets_it(code, tmp_path):
    (tmp_path / "real_nets.py").write_text("import sru\ndef make():\n    return sru.SRU(3, 4)\n")
    source = from_code("real_nets:make", None)
    assert type(source.model).__module__ == "sru.modules"
    assert source.notes == []


# --input


def given(*texts: str, spec: str = "net", code: str = "", mask: bool = False) -> Source:
    return with_inputs(from_code(f"{code}:{spec}", None), texts, mask)


@pytest.mark.parametrize(
    ("text", "shape", "dtype", "axes"),
    [
        ("x=float32[T,B,3]", (16, 2, 3), torch.float32, {0: "T", 1: "B"}),
        ("x=float32[T:50,B:1,3]", (50, 1, 3), torch.float32, {0: "T", 1: "B"}),
        ("x=float16[5,2,3]", (5, 2, 3), torch.float16, {}),
        (" x = float64 [ frames , 2 , 3 ] ", (16, 2, 3), torch.float64, {0: "frames"}),
        ("x=bool[T]", (16,), torch.bool, {0: "T"}),
        ("x=int64[]", (), torch.int64, {}),
        ("scale=float32[B]", (2,), torch.float32, {0: "B"}),
    ],
)
def test_an_input_tells_shape_dtype_and_dynamic_axes(code, text, shape, dtype, axes):
    source = given(text, code=code)
    ((name, tensor),) = source.args.items()
    assert (tuple(tensor.shape), tensor.dtype) == (shape, dtype)
    assert source.dynamic == {name: axes}


def test_integers_take_their_whole_range(code):
    tensor = given("x=int64[T:50,B:1]:3..9", code=code).args["x"]
    assert (tensor.min(), tensor.max()) == (3, 9)


def test_the_top_of_a_range_is_there_even_if_the_example_is_small(code):
    assert given("x=int64[1]:0..999", code=code).args["x"].item() == 999


def test_a_range_may_be_negative(code):
    assert given("x=int32[4]:-5..-2", code=code).args["x"].tolist() == [-5, -4, -3, -2]


def test_several_inputs_are_taken_together(code):
    source = given("x=float32[T,B,3]", "scale=float32[1]", code=code)
    assert list(source.args) == ["x", "scale"]


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["x"], "write NAME=DTYPE"),
        (["x="], "write NAME=DTYPE"),
        (["x=float32"], "write NAME=DTYPE"),
        (["x=float32[T,B"], "write NAME=DTYPE"),
        (["x=float32[T,B]:3"], "write NAME=DTYPE"),
        (["x=float32[T;B]"], "'T;B' is neither a size nor a name"),
        (["x=float32[T:b]"], "'T:b' is neither a size nor a name"),
        (["x=float33[T,B,3]"], "there is no dtype 'float33'; did you mean 'float32'"),
        (["x=qint8[T,B,3]"], "there is no dtype 'qint8'"),
        (["x=save[T]"], "there is no dtype 'save'"),
        (["x=int64[T]:9..0"], "the range ends below its start"),
        (["x=int64[T]:1..0"], "the range ends below its start"),
        (["y=float32[T,B,3]"], r"forward takes no 'y' \(it takes x, scale\)"),
        (["scales=float32[1]"], "forward takes no 'scales'; did you mean 'scale'"),
        (["x=float32[T]", "x=float32[B]"], "'x' is given twice"),
    ],
)
def test_an_input_that_cannot_be_read_is_refused_as_it_was_typed(code, texts, message):
    with pytest.raises(OptionError, match=message) as caught:
        given(*texts, code=code)
    assert str(caught.value).startswith(f"--input {texts[-1]}: ")


def test_a_whole_model_without_an_example_is_told_what_to_write(code):
    with pytest.raises(OptionError, match=r"--input 'x=float32\[T,B,\.\.\.\]' \(NAME") as caught:
        given(code=code)
    assert "scale" not in str(caught.value), "what has a default need not be given"


def test_a_whole_model_without_dynamic_axes_is_told_how_to_give_them(code):
    with pytest.raises(OptionError, match=r"let it return \(model, args, dynamic\)"):
        given(code=code, spec="with_args")


def test_inputs_take_the_place_of_the_factorys_example(code):
    source = given("x=float32[7,1,3]", code=code, spec="with_dynamic")
    assert source.args["x"].shape == (7, 1, 3)
    assert source.dynamic == {"x": {}}


def test_a_bare_layer_needs_no_example(code):
    source = given(code=code, spec="bare")
    assert (source.args, source.dynamic) == (None, None)


def test_a_mask_is_for_bare_layers(code):
    assert given(code=code, spec="bare", mask=True).args["mask_pad"].dtype == torch.int32
    with pytest.raises(OptionError, match="--mask is for a bare layer"):
        given(code=code, spec="with_dynamic", mask=True)
    with pytest.raises(OptionError, match="--mask is for a bare layer"):
        given("input=float32[T,B,3]", code=code, spec="bare", mask=True)


# --option


def test_options_are_read_by_their_own_types():
    assert parse_options(["bidirectional=true", "use_tanh=No", "num_heads=4"]) == {
        "bidirectional": True,
        "use_tanh": False,
        "num_heads": 4,
    }
    assert parse_options([]) == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bidirectional", "write NAME=VALUE"),
        ("bidirektional=true", "there is no option 'bidirektional'; did you mean 'bidirectional'"),
        ("=true", "there is no option ''"),
        ("bidirectional=maybe", "write bidirectional=true or bidirectional=false"),
        ("bidirectional=", "write bidirectional=true or bidirectional=false"),
        ("num_heads=two", "write a whole number"),
    ],
)
def test_an_option_that_cannot_be_read_is_refused_as_it_was_typed(text, message):
    with pytest.raises(OptionError, match=message) as caught:
        parse_options([text])
    assert str(caught.value).startswith(f"--option {text}: ")


# Checkpoints, and the choice between the two


def test_a_checkpoint_brings_its_origin(weights):
    path = weights(SRUCell(3, 3).state_dict())
    source = from_checkpoint(path, None, {"bidirectional": False, "use_tanh": False, "has_skip_term": True})
    assert isinstance(source.model, SRUCell)
    assert source.origin.keys() == {"file", "sha256", "format"}


@pytest.mark.parametrize(
    ("source", "model", "others", "message"),
    [
        (None, None, {}, "give a checkpoint, or --model package.module:factory with --weights FILE"),
        ("a.pt", "m:f", {}, "a.pt: give either a checkpoint or --model"),
        ("a.pt", None, {"weights": Path("w.pt")}, "--weights is for --model"),
        (None, "m:f", {"prefix": "encoder"}, "--prefix is for a checkpoint"),
        (None, "m:f", {"options": ["bidirectional=true"]}, "--option is for a checkpoint"),
    ],
)
def test_what_would_be_ignored_is_refused(source, model, others, message):
    arguments = {"weights": None, "prefix": None, "options": [], **others}
    with pytest.raises(OptionError, match=message):
        choose(Path(source) if source else None, model, **arguments)


def test_an_output_never_overwrites_its_source(weights, tmp_path):
    path = weights({})
    (tmp_path / "link.pt").symlink_to(path)
    for name in (path, tmp_path / "." / "w.pt", tmp_path / "link.pt"):
        with pytest.raises(OutputError, match="is the checkpoint itself"):
            keep_apart(name, None, path)
    keep_apart(tmp_path / "new.onnx", path, None, tmp_path / "missing.pt")
