"""Names of tensors and owners are equal on all ranks, whatever a rank has called before."""

import re

import pytest

from hvdlite.core.collectives import describe
from hvdlite.core.names import natural_order, owner_name, tensor_name
from hvdlite.core.native import lib


def in_natural_order(names):
    return [names[i] for i in natural_order(names)]


@pytest.mark.parametrize(
    "names, expected",
    [
        (["dense10_weight", "dense9_weight"], ["dense9_weight", "dense10_weight"]),
        (["a", "b1", "b10", "b2"], ["a", "b1", "b2", "b10"]),
        (["net1_conv2", "net1_conv10", "net0_conv3"], ["net0_conv3", "net1_conv2", "net1_conv10"]),
        (["10.weight", "9.weight", "9.bias"], ["9.bias", "9.weight", "10.weight"]),
        (["x", "1", ""], ["", "1", "x"]),
        (["w", "3", "4w"], ["3", "4w", "w"]),
        ([], []),
        (["w007", "w7"], ["w007", "w7"]),  # equal numbers keep the given order
        # digits outside ASCII, one of which int() refuses
        (["b²", "a٣", "a2"], ["a2", "a٣", "b²"]),
    ],
)
def test_numbers_in_names_are_compared_by_value(names, expected):
    assert in_natural_order(names) == expected


@pytest.mark.parametrize("shift", [0, 1, 8, 9, 90, 98, 99, 995])
def test_natural_order_does_not_depend_on_the_number_of_the_first_layer(shift):
    layers = [f"dense{shift + i}_{kind}" for i in range(12) for kind in ("bias", "weight")]
    assert in_natural_order(sorted(layers)) == layers


def test_unnamed_tensors_are_named_after_the_calling_line():
    first = tensor_name("allreduce", None)
    second = tensor_name("allreduce", None)
    assert re.fullmatch(r"allreduce\.test_names\.py:\d+#0", first)
    assert re.fullmatch(r"allreduce\.test_names\.py:\d+#0", second)
    assert first != second
    names = [tensor_name("allreduce", None) for _ in range(3)]
    assert [name.rpartition("#")[2] for name in names] == ["0", "1", "2"]
    assert len({name.rpartition("#")[0] for name in names}) == 1


def test_an_extra_call_on_one_line_does_not_rename_calls_on_other_lines():
    def place():
        return tensor_name("allgather", None)

    def other_place():
        return tensor_name("allgather", None)

    assert place().endswith("#0")
    for _ in range(5):
        other_place()
    assert place().endswith("#1")


def test_a_tensor_gets_a_name_after_the_working_folder_was_removed(tmp_path, monkeypatch):
    """A script from -c or stdin has no file by which its tensors could be named."""
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    names = {"tensor_name": tensor_name}
    exec("name = tensor_name('allreduce', None)", names)
    assert names["name"] == "allreduce.<string>:1#0"


def test_two_optimizers_of_one_kind_get_different_names():
    first, second, other = owner_name("critic"), owner_name("critic"), owner_name("generator")
    assert (first, second, other) == ("critic0", "critic1", "generator0")


def test_a_name_that_utf8_cannot_encode_is_refused():
    """Python's UnicodeEncodeError would not say that the name is wrong."""
    with pytest.raises(ValueError, match=r"the tensor name 'a\\ud800' has a character that UTF-8"):
        describe(lib.HVD_ALLREDUCE, "a\ud800")


@pytest.mark.parametrize("name", ["a\0x", "\0", "a\0"])
def test_a_name_with_a_nul_character_is_refused(name):
    """C strings end at NUL, so "a\\0x" and "a\\0y" would be the same name."""
    with pytest.raises(ValueError, match="the tensor name .* has a NUL character"):
        describe(lib.HVD_ALLREDUCE, name)
