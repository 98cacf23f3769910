"""replica_groups.parse() finds the devices of a collective in XLA's program text."""

import pytest

from hvdlite.jax import replica_groups


def line(groups: str, op: str = "all-reduce", shape: str = "f32[4]") -> str:
    return f"  %{op}.1 = {shape}{{0}} {op}({shape}{{0}} %p), channel_id=1, {groups}, to_apply=%add"


@pytest.mark.parametrize(
    "written, expected",
    [
        ("replica_groups={{0,1},{2,3}}", [(0, 1), (2, 3)]),
        ("replica_groups={}", [(0, 1, 2, 3)]),
        ("replica_groups=[2,2]<=[4]", [(0, 1), (2, 3)]),
        ("replica_groups=[2,2]<=[2,2]T(1,0)", [(0, 2), (1, 3)]),
        ("replica_groups=[1,4]<=[4]", [(0, 1, 2, 3)]),
        ("replica_groups=mesh['x'=2,'y'=2]{'x'}", [(0, 2), (1, 3)]),
        ("replica_groups=mesh['x'=2,'y'=2]{'y','x'}", [(0, 2, 1, 3)]),
        ("replica_groups=mesh['x'=4]{'x':(1)2}", [(0, 2), (1, 3)]),
        ("replica_groups=mesh['x'=4]{'x':(2)2}", [(0, 1), (2, 3)]),
        ("replica_groups=mesh['x'=2,'y'=2], device_ids=([4]T(0)) {'y'}", [(0, 1), (2, 3)]),
        ("replica_groups=mesh['x'=2,'y'=2], device_ids=(3,1,2,0) {'y'}", [(3, 1), (2, 0)]),
        ("source_target_pairs={{0,1},{1,0}}", [(0, 1, 2, 3)]),
    ],
)
def test_replica_groups_are_read_in_each_notation(written, expected):
    assert replica_groups.parse(line(written), 4) == expected


def test_a_replica_group_in_several_lines_of_a_program_is_returned_once():
    text = "\n".join([line("replica_groups={{0,1}}"), "  %add = f32[] add(a, b)"] * 2)
    assert replica_groups.parse(text, 4) == [(0, 1)]


def test_an_unknown_notation_of_replica_groups_is_refused():
    with pytest.raises(
        RuntimeError, match="devices of a collective in an unknown format: replica_groups=V9"
    ):
        replica_groups.parse(line("replica_groups=V9<0>"), 4)


@pytest.mark.parametrize(
    "op, shape, refused",
    [
        ("all-reduce", "f32[2147483648]", True),
        ("all-reduce", "f64[1073741824]", False),
        ("all-gather", "f32[2,268435456]", True),
        ("all-gather", "bf16[2,268435456]", False),
        ("all-to-all", "pred[2147483648]", True),
    ],
)
def test_a_collective_with_more_elements_than_xla_can_count_is_refused(op, shape, refused):
    text = line("replica_groups={}", op, shape)
    if refused:
        with pytest.raises(RuntimeError, match="more than 2\\^31-1"):
            replica_groups.parse(text, 2)
    else:
        assert replica_groups.parse(text, 2) == [(0, 1)]


@pytest.mark.parametrize("op", ["all-reduce", "all-reduce-start", "all-gather-start"])
def test_float16_that_xla_would_pass_to_mpi_is_refused(op):
    with pytest.raises(RuntimeError, match="XLA can't pass float16 to MPI"):
        replica_groups.parse(line("replica_groups={}", op, "f16[4]"), 2)
