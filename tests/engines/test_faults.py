"""Every silent failure in the engines' profiles is real: the engine takes the graph and gives wrong numbers, and right
ones for the same graph without the feature. Where an engine is mended, its row has to go."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
from engines_here import needs, run_as_it_is
from small_graphs import PAIRS, Lstm, Scan, SmallGraph

from sruexport.engines import ENGINES
from sruexport.parity.measure import Errors, compare

Case = Lstm | Scan
FAULTS = [(name, feature) for name, engine in ENGINES.items() for feature in engine.wrong if not engine.only_builds]
#: Where the failure needs more than the feature alone.
OWN_PAIRS: Mapping[tuple[str, str], tuple[Case, Case]] = {
    ("openvino", "LSTM.sequence_lens"): (Lstm(lens=True, dynamic=True), Lstm(dynamic=True)),
    ("litert", "LSTM.last"): (Lstm(direction="reverse", lasts=True), Lstm(direction="reverse")),
}
#: By how much of the bound wrong numbers are beyond it: no rounding is.
WRONG = 100.0


def pair(name: str, feature: str) -> tuple[Case, Case]:
    """A graph with the feature, and without."""
    cases = OWN_PAIRS.get((name, feature)) or PAIRS[f"LSTM.{feature}" if feature == "float64" else feature]
    if name == "mnn":  # which takes no LSTM whose last states are left out
        with_it, without = (replace(case, lasts=True) if isinstance(case, Lstm) else case for case in cases)
        return with_it, without
    return cases


@lru_cache(None)
def outputs(name: str, case: Case) -> dict[str, np.ndarray]:
    graph = case.graph()
    return run_as_it_is(name, graph.model, graph.feeds)


def judged(found: Mapping[str, np.ndarray], graph: SmallGraph) -> dict[str, Errors]:
    exact, rounded = graph.exact(), graph.rounded()
    assert found.keys() == exact.keys()
    return {name: compare(found[name], rounded[name], exact[name], graph.dtype) for name in exact}


@pytest.mark.parametrize(("name", "feature"), FAULTS)
def test_the_engine_is_wrong_with_it_and_right_without(name, feature):
    needs(name)
    with_it, without = pair(name, feature)
    right = judged(outputs(name, without), without.graph())
    assert all(errors.passed for errors in right.values()), right
    found = outputs(name, with_it)
    wrong = judged(found, with_it.graph())
    assert max(errors.ratio for errors in wrong.values()) > WRONG, f"{name} is mended: take {feature} out of its row"
    if any(word in ENGINES[name].wrong[feature] for word in ("ignored", "runs forward")):
        plain, given = without.graph(), with_it.graph().feeds  # which may lie in memory in another layout
        same = judged(found, replace(plain, feeds={key: given[key] for key in plain.feeds}))
        assert all(errors.passed for errors in same.values()), f"it is not ignored: {same}"


# The numbers that they are held against

#: ONNX Runtime takes no other layout and no float64; Affine without alpha it gets wrong.
NOT_IN_ONNX_RUNTIME = {"LSTM.affine", "LSTM.layout", "LSTM.float64"}
RIGHT = {
    case: f"{feature}{suffix}"
    for feature, cases in PAIRS.items()
    for case, suffix in zip(cases, ("", " without"))
    if suffix or feature not in NOT_IN_ONNX_RUNTIME
} | {case: f"{name} {feature}" for (name, feature), cases in OWN_PAIRS.items() for case in cases}


@pytest.mark.parametrize("case", RIGHT, ids=RIGHT.values())
def test_the_numbers_are_those_of_onnx_runtime(case):
    judgement = judged(outputs("onnxruntime", case), case.graph())
    assert all(errors.passed for errors in judgement.values()), judgement


def test_the_numbers_of_the_other_layout_are_those_of_tract():
    needs("tract")
    for case in (Lstm(layout=True, lasts=True), PAIRS["LSTM.layout"][0]):
        judgement = judged(outputs("tract", case), case.graph())
        assert all(errors.passed for errors in judgement.values()), judgement


#: What changes nothing in exact numbers, or nothing in the first output.
THE_SAME = {"LSTM.affine", "LSTM.float16", "LSTM.float64", "LSTM.scaled", "LSTM.last", "LSTM.dynamic", "Scan.dynamic"}
THE_SAME |= {"Scan.state second"}


@pytest.mark.parametrize("feature", sorted(PAIRS.keys() - THE_SAME))
def test_a_feature_makes_a_difference(feature):
    """Else an engine that ignores it would be right."""
    with_it, without = (next(iter(case.graph().exact().values())) for case in PAIRS[feature])
    assert with_it.shape != without.shape or np.abs(with_it - without).max() > 0.01
