"""What in a graph engines differ by, and that nothing of it is seen where it is not."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest
import torch
from onnx import parser
from small_graphs import PAIRS, Lstm, bfloat16_lstm, empty_value
from sruexport.converters import FORMS, convert, fix_sizes

from sruexport import export
from sruexport.engines.features import features
from sruexport.layers import SRU

#: What a feature brings with it.
IMPLIED = {
    "LSTM.affine": set(),
    "LSTM.dynamic": {"dynamic"},
    "Scan.dynamic": {"dynamic"},
    "LSTM.float16": {"float16"},
    "LSTM.float64": {"float64"},
    "LSTM.scaled": {"Mul"},
}


def of(model: onnx.ModelProto) -> dict[str, str]:
    return features(ir.serde.deserialize_model(model))


@pytest.fixture(scope="module")
def exported(tmp_path_factory) -> ir.Model:
    torch.manual_seed(0)
    return ir.load(export(SRU(3, 3, num_layers=1), None, tmp_path_factory.mktemp("file") / "m.onnx").path)


@pytest.mark.parametrize("feature", PAIRS)
def test_a_graph_with_a_feature_differs_by_it_from_the_same_without(feature):
    with_it, without = (of(case.graph().model) for case in PAIRS[feature])
    assert with_it.keys() - without.keys() == {feature} | IMPLIED.get(feature, set())
    assert not without.keys() - with_it.keys()


def test_a_feature_names_a_node_that_has_it():
    found = of(Lstm(peepholes=True, beside=True, dynamic=True).graph().model)
    assert found["LSTM.peepholes"] == "lstm"
    assert found["MatMul"] == "MatMul", "the op, for a node without a name"
    assert found["dynamic"] == "x"


def test_an_exported_file_has_functions_and_custom_ops(exported):
    found = features(exported)
    assert found["functions"] == "SRURecurrence"
    assert "custom ops" in found
    assert "SRURecurrence" not in found, "nor what is inside the functions"
    assert "Scan" not in found


def test_what_is_inside_a_loop_counts():
    model = parser.parse_model("""<ir_version: 10, opset_import: ["" : 18]>
        g (int64 n, bool yes, float[3] s0) => (float[3] s)
        { s = Loop <body = step (int64 i, bool going, float[3] old) => (bool on, float[3] new)
            { on = Identity(going) new = Tanh(old) }> (n, yes, s0) }""")
    assert of(model).keys() == {"Loop", "Identity", "Tanh"}


@pytest.mark.parametrize("form", ["scan", "loop"])
def test_a_converted_file_has_neither_functions_nor_custom_ops(exported, form):
    found = features(convert(exported, FORMS[form]).model)
    assert form.capitalize() in found
    assert not {"functions", "custom ops"} & found.keys()


def test_fixed_sizes_are_not_dynamic(exported):
    assert {"dynamic", "LSTM.dynamic"} <= features(convert(exported, FORMS["lstm"]).model).keys()
    fixed = features(convert(fix_sizes(exported, {"T": 2, "B": 1}), FORMS["lstm"]).model)
    assert not {"dynamic", "LSTM.dynamic"} & fixed.keys()


@pytest.mark.parametrize("sizes", [("T", 3), (5, "B")])
def test_one_dynamic_size_makes_an_lstm_dynamic(sizes):
    steps, batch = sizes
    model = parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 18]>
        g (float[{steps},{batch},2] x, float[1,4,2] W, float[1,4,1] R) => (float[{steps},1,{batch},1] Y)
        {{ Y = LSTM <hidden_size = 1> (x, W, R) }}""")
    assert "LSTM.dynamic" in of(model)


def test_an_lstm_whose_tanh_is_used_near_0_is_scaled(exported):
    assert "LSTM.scaled" in features(convert(exported, FORMS["lstm"]).model)
    assert "LSTM.scaled" in features(convert(exported, FORMS["lstm-peephole-tanh"]).model)
    assert "LSTM.scaled" not in features(convert(exported, FORMS["lstm-peephole"]).model)


@pytest.mark.parametrize(
    "attributes",
    [
        "",
        ', activations = ["Sigmoid", "Tanh", "Tanh"]',
        ', activations = ["sigmoid", "tanh", "TANH"]',
        ', input_forget = 0, layout = 0, direction = "forward"',
    ],
)
def test_defaults_that_are_written_out_are_no_features(attributes):
    model = parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 18]>
        g (float[5,3,2] x, float[1,4,2] W, float[1,4,1] R) => (float[5,1,3,1] Y)
        {{ Y = LSTM <hidden_size = 1{attributes}> (x, W, R) }}""")
    assert of(model).keys() == {"LSTM"}


def test_activations_of_both_directions_are_compared():
    text = """<ir_version: 10, opset_import: ["" : 18]>
        g (float[5,3,2] x, float[2,3,2] W, float[2,3,1] R) => (float[5,2,3,1] Y)
        { Y = GRU <hidden_size = 1, direction = "bidirectional", activations = [%s]> (x, W, R) }"""
    same = text % '"Sigmoid", "Tanh", "Sigmoid", "Tanh"'
    other = text % '"Sigmoid", "Tanh", "Sigmoid", "Relu"'
    assert of(parser.parse_model(same)).keys() == {"GRU", "GRU.bidirectional"}
    assert of(parser.parse_model(other)).keys() == {"GRU", "GRU.bidirectional", "GRU.activations"}


def test_bfloat16_and_tensors_without_elements():
    assert {"bfloat16", "LSTM.bfloat16"} <= of(bfloat16_lstm()).keys()
    assert of(empty_value())["empty"] == "split"
