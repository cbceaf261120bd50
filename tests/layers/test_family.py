"""The table of families, and the options that are typed for them."""

from __future__ import annotations

import inspect

import pytest
import torch

from sruexport.errors import CheckpointError, OptionError, OptionsNeeded
from sruexport.layers import FAMILIES, SRU, SRUCell, adapt, family_of
from sruexport.layers.family import Option, overridden, third_party_name
from sruexport.recurrences import RECURRENCES

FLAG = Option("bidirectional", bool, "does it run in both directions?")
NUMBER = Option("num_heads", int, "how many heads?")


@pytest.mark.parametrize("text", ["true", "True", "TRUE", "1", "yes"])
def test_a_flag_is_on(text):
    assert FLAG.parse(text) is True


@pytest.mark.parametrize("text", ["false", "False", "0", "no", "NO"])
def test_a_flag_is_off(text):
    assert FLAG.parse(text) is False


@pytest.mark.parametrize("text", ["", "on", "2", "tru", "None"])
def test_any_other_word_for_a_flag_is_refused_with_what_to_write(text):
    with pytest.raises(OptionError, match=rf"--option bidirectional={text}: write bidirectional=true or"):
        FLAG.parse(text)


@pytest.mark.parametrize(("text", "value"), [("0", 0), ("8", 8), ("0012", 12)])
def test_a_number_is_read(text, value):
    parsed = NUMBER.parse(text)
    assert parsed == value
    assert type(parsed) is int


@pytest.mark.parametrize("text", ["", "-1", "1.0", "eight", "1e3", " 3", "0x10"])
def test_any_other_text_for_a_number_is_refused_with_what_to_write(text):
    with pytest.raises(OptionError, match="write a whole number"):
        NUMBER.parse(text)


def test_usage_is_what_is_typed():
    assert FLAG.usage == "--option bidirectional=true|false"
    assert NUMBER.usage == "--option num_heads=N"


WITH_OPTIONS = {name: family for name, family in FAMILIES.items() if family.options}


@pytest.mark.parametrize("family", WITH_OPTIONS.values(), ids=WITH_OPTIONS)
def test_an_unknown_option_gets_the_closest_and_all_there_are(family):
    known = family.options[0].name
    with pytest.raises(OptionError) as caught:
        family.option(f"{known}x")
    assert f"did you mean '{known}'?" in str(caught.value)
    assert all(option.name in str(caught.value) for option in family.options)


def test_an_option_like_none_gets_no_guess():
    with pytest.raises(OptionError) as caught:
        FAMILIES["sru"].option("zzz")
    assert "did you mean" not in str(caught.value)
    assert "family sru has no option 'zzz'" in str(caught.value)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_missing_options_are_named_with_how_to_give_each(family):
    names = [option.name for option in family.options[:2]]
    error = family.missing(names)
    assert isinstance(error, OptionsNeeded)
    assert isinstance(error, CheckpointError)
    assert error.options == names
    assert error.exit_code == 2
    for option in family.options[:2]:
        assert option.usage in str(error)
        assert option.about in str(error)


def test_a_family_without_options_says_so():
    with pytest.raises(OptionError, match=r"family mingru has no option 'colour' \(it has none\)"):
        FAMILIES["mingru"].option("colour")


def test_missing_refuses_a_name_that_is_no_option():
    with pytest.raises(OptionError):
        FAMILIES["sru"].missing(["colour"])


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_a_familys_row_fits_its_own_classes(family):
    assert FAMILIES[family.name] is family
    assert family.name == family.name.lower()
    parameters = [inspect.signature(module).parameters for module in family.modules]
    choosing = {"fastai"}  # options that choose the class instead of being given to it
    for name in {*family.required, *(option.name for option in family.options)} - choosing:
        assert any(name in known for known in parameters), name
    for module in family.modules:
        forward = list(inspect.signature(module.forward).parameters)[1:]
        taken = [argument for argument in family.arguments if argument.name in forward]
        assert [argument.name for argument in taken] == forward[: len(taken)]
        assert taken[0].kind == "sequence"
    assert set(family.recurrences) <= set(RECURRENCES)
    assert all("." in name for name in family.constructors)
    assert family.prefixes(family.keys) == [""], "its typical keys are its own"


def test_no_third_party_class_is_in_two_families():
    names = [name for family in FAMILIES.values() for name in family.constructors]
    assert len(names) == len(set(names))


def test_the_family_of_a_module():
    assert family_of(SRU(2, 2)) is FAMILIES["sru"]
    assert family_of(SRUCell(2, 2)) is FAMILIES["sru"]
    assert family_of(torch.nn.LSTM(2, 2)) is None
    assert family_of(torch.nn.Sequential(SRU(2, 2))) is None


def test_the_description_makes_the_same_layer_again():
    for options in (
        {"input_size": 3, "hidden_size": 2},
        {"input_size": 6, "hidden_size": 3, "num_layers": 3, "bidirectional": True, "projection_size": 2},
        {"input_size": 4, "hidden_size": 4, "layer_norm": True, "normalize_after": True, "use_tanh": True},
        {"input_size": 5, "hidden_size": 3, "proj_input_to_hidden_first": True, "has_skip_term": False, "v1": True},
        {"input_size": 3, "hidden_size": 3, "rescale": True, "nn_rnn_compatible_return": True},
    ):
        layer = SRU(**options)
        described = FAMILIES["sru"].describe(layer)
        assert options.items() <= described.items()
        again = SRU(**{name: value for name, value in described.items() if name != "custom_m"})
        assert FAMILIES["sru"].describe(again) == described
        again.load_state_dict(layer.state_dict())


def test_overridden_methods_are_those_between_the_object_and_the_known_class():
    class Known(torch.nn.Module):
        def forward(self, x):
            return x

        def step(self):
            pass

    class Between(Known):
        def step(self):
            pass

    class Last(Between):
        pass

    assert overridden(Last(), Known, ("forward", "step")) == {"step"}
    assert overridden(Last(), Between, ("forward", "step")) == set()
    assert overridden(Known(), Known, ("forward", "step")) == set()


def test_a_third_party_class_is_known_by_its_module_and_its_name():
    stranger = type("SRU", (torch.nn.Module,), {"__module__": "elsewhere", "__qualname__": "SRU"})
    assert third_party_name(stranger) == "elsewhere.SRU"
    assert adapt(stranger()) is None
