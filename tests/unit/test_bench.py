"""hvdlite-bench without ranks: arithmetic, shapes of models, options and files."""

import json

import numpy as np
import pytest

from hvdlite.bench import cases, cli, figures, machine, models, report
from hvdlite.bench.cases import KINDS, one_array
from hvdlite.bench.figures import Sample

GB = 10**9


def row(case, seconds, ranks=2, cpu=0.0, bandwidth=90 * GB):
    sample = Sample(seconds, [cpu] * len(seconds))
    columns = figures.columns(case, ranks, sample, bandwidth)
    return {"library": "mxnet", **columns, "algorithm": "ring", "peak_memory": 10**8, "shared": 0}


@pytest.mark.parametrize(
    "kind, ranks, per_algbw",
    [
        ("allreduce", 2, 1.0),
        ("allreduce", 4, 1.5),
        ("broadcast", 4, 1.0),
        ("allgather", 4, 0.75),
        ("reducescatter", 4, 0.75),
        ("alltoall", 4, 0.75),
        ("allreduce", 1, 0.0),
    ],
)
def test_busbw_is_algbw_times_the_factor_of_nccl_tests(kind, ranks, per_algbw):
    assert figures.busbw(kind, ranks, 6 * GB) == pytest.approx(6 * GB * per_algbw)


def test_the_floor_of_an_allreduce_is_the_time_to_read_and_write_all_bytes():
    assert figures.floor_seconds("allreduce", 4, 64 * GB, 128 * GB) == pytest.approx(4.0)
    columns = row(one_array("allreduce", 9 * GB), [0.8] * 5, ranks=2)
    assert columns["floor"] == pytest.approx(0.4)
    assert columns["floor_share"] == pytest.approx(0.5)


def test_cpu_seconds_are_shown_per_gigabyte_of_all_inputs():
    assert row(one_array("allreduce", GB), [1.0], 4, cpu=2.0)["cpu_seconds_per_gb"] == 0.5
    assert row(one_array("allgather", GB), [1.0], 4, cpu=2.0)["cpu_seconds_per_gb"] == 2.0


def test_speed_kept_is_the_median_of_time_alone_divided_by_time_together():
    sample = Sample([2.0, 4.0, 8.0], [0.0] * 3, alone=[1.0, 3.0, 7.2])
    columns = figures.columns(cases.step("trainer"), 2, sample, None)
    assert (columns["alone"], columns["speed_kept"]) == (3.0, 0.75)
    assert "speed_kept" not in row(cases.step("trainer"), [1.0])


def test_hvdlite_bench_reports_no_bandwidth_for_a_training_step():
    columns = row(cases.step("trainer"), [0.02, 0.03, 0.04])
    assert columns["p50"] == 0.03
    assert not {"algbw", "busbw", "floor"} & set(columns)


@pytest.mark.parametrize("text", ["", "M", "4X", "-1", "1.5M", "4MiB"])
def test_a_wrong_number_of_bytes_is_refused_with_an_example_of_a_right_one(text):
    with pytest.raises(ValueError, match="expected a number of bytes such as"):
        cases.parse_size(text)


@pytest.mark.parametrize(
    "name, arrays, parameters",
    [
        ("lenet", 8, 431_080),
        ("resnet18", 62, 11_689_512),
        ("resnet50", 193, 25_575_912),
        ("vgg16", 32, 138_357_544),
        ("bert-base", 199, 109_482_240),
    ],
)
def test_gradients_of_models_have_the_published_sizes(name, arrays, parameters):
    shapes = models.gradient_shapes(name)
    assert len(shapes) == arrays
    assert sum(int(np.prod(shape)) for shape in shapes) == parameters


def test_hvdlite_bench_names_an_unknown_model_and_the_known_models():
    with pytest.raises(ValueError, match="'alexnet': expected one of lenet"):
        models.gradient_shapes("alexnet")


def test_the_columns_of_the_table_of_hvdlite_bench_are_aligned():
    lines = report.table([row(one_array("allreduce", 2**20), [0.001]), row(cases.tiny(), [1.0])])
    header, first, second = lines.splitlines()
    assert "1 MiB" in first and "32 kB" in second
    for word, cell in (("p50 ms", "1"), ("arrays", "1"), ("peak MB", "100")):
        end = header.index(word) + len(word)
        assert first[:end].split()[-1] == cell


def test_hvdlite_bench_names_an_unwritable_file_and_writes_the_other_file(tmp_path):
    rows, good = [row(one_array("allreduce", 2**20), [0.001])], tmp_path / "rows.json"
    words = ["--csv=/dev/full", f"--json={good}"]
    with pytest.raises(SystemExit) as ended:
        cli.save(rows, {"cores": "2"}, cli.parse_args(words))
    told = "hvdlite-bench: /dev/full can't be written: No space left on device"
    assert ended.value.code == told
    assert json.loads(good.read_text())["rows"] == rows


def test_the_options_of_hvdlite_bench_select_the_cases():
    args = cli.parse_args(["--sizes=4K,1M", "--kinds=all", "--apis=numpy"])
    planned = cli.plan(args)
    assert {api for api, _ in planned} == {"numpy"}
    assert {case.kind for _, case in planned} == set(KINDS)
    args = cli.parse_args(["--memory=zero-copy", "--models=all", "--kinds=broadcast,allreduce"])
    planned = [case for _, case in cli.plan(args)]
    assert {case.label for case in planned} >= set(models.NAMES)
    assert all(case.kind != "broadcast" for case in planned)  # trainers never broadcast gradients


@pytest.mark.parametrize("option", ["--sizes=4X", "--kinds=sum", "--models=alexnet", "--idle=nan"])
def test_the_error_of_a_wrong_hvdlite_bench_option_says_what_is_expected(option, capsys):
    with pytest.raises(SystemExit):
        cli.parse_args([option])
    assert "expected" in capsys.readouterr().err


def test_the_description_of_the_machine_has_cores_and_processor():
    about = machine.describe()
    assert int(about["cores"]) >= 1 and about["processor"]
    assert 10**7 < machine.own_memory() <= machine.peak_memory() + 10**7
