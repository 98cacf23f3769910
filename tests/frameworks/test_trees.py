"""XGBoost and LightGBM on several ranks: models, LibSVM files, and names of XGBoost's old rabit."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from cluster import or_skip
from jobs import HVDLITERUN, ROOT, Job, assert_passed, mpirun

pytest.importorskip("xgboost")
SCRIPT = str(Path(__file__).parent / "scripts" / "trees.py")
# tolerance of the loss: not 0, because each rank proposes split points from its part of the rows
TOLERANCE = {"xgboost": 0.01, "lightgbm": 0.01}


def script(ranks: int, *arguments: str, **options) -> Job:
    return mpirun(ranks, SCRIPT, *arguments, timeout=100, **options)


def check_models(results: dict, ranks: int) -> float:
    assert [r["ranks"] for r in results.values()] == [[rank, ranks] for rank in range(ranks)]
    assert len({r["model"] for r in results.values()}) == 1
    assert len({r["loss"] for r in results.values()}) == 1
    return results[0]["loss"]


@pytest.fixture(scope="module")
def loss_of_one_process() -> dict:
    found = {}
    for library in TOLERANCE:
        pytest.importorskip(library)
        found[library] = check_models(assert_passed(script(1, "train", library)).results(), 1)
    return found


@pytest.mark.parametrize("library", TOLERANCE)
def test_all_ranks_get_equal_trees_with_about_the_loss_of_one_process(library, loss_of_one_process):
    ranks = 3
    loss = check_models(assert_passed(script(ranks, "train", library)).results(), ranks)
    expected = loss_of_one_process[library]
    print(f"{library}, {ranks} ranks: loss {loss:.5f}, of one process {expected:.5f}")
    assert loss < 0.3  # guessing has a loss of 0.69
    assert loss == pytest.approx(expected, abs=TOLERANCE[library])


@pytest.mark.parametrize("library", TOLERANCE)
def test_two_hosts_train_equal_trees(library, loss_of_one_process):
    with or_skip(2) as cluster:
        command = [
            *HVDLITERUN, "-n", "2", "--hostfile", str(cluster.hostfile),
            sys.executable, SCRIPT, "train", library,
        ]  # fmt: skip
        environment = {**cluster.environment(), "PYTHONPATH": f"{ROOT / 'tests'}:{ROOT}"}
        ended = cluster.run(
            command, cwd=str(ROOT), env=environment, timeout=120, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
    output = re.sub(r"^\[\d+\w*\] ?", "", ended.stdout, flags=re.M)
    assert ended.returncode == 0, ended.stdout
    results = Job(ended.returncode, output, 0).results()
    assert {r["host"] for r in results.values()} == {0, 1}
    loss = check_models(results, 2)
    assert loss == pytest.approx(loss_of_one_process[library], abs=TOLERANCE[library])


@pytest.mark.parametrize("ranks", [1, 2])
def test_scripts_for_rabit_work_with_hvdlite(ranks):
    job = assert_passed(script(ranks, "rabit"))
    total, most = sum(range(1, ranks + 1)), ranks - 1
    for rank, result in job.results().items():
        assert result == {
            "size": ranks, "word": {"word": "from rank 0"}, "total": [total] * 3, "most": [most],
            "again": rank, "left": True, "host": True,
        }  # fmt: skip
    for rank in range(ranks):
        assert f"printed by rank {rank}" in job.output


LINES = ["1 0:2 3:4.5", "-1 1:1e3", "# a comment", "0", "", "2 0:-1 2:0.25 4:7  # at the end"] * 3
ROWS = [[2, 0, 0, 4.5, 0], [0, 1e3, 0, 0, 0], [0] * 5, [-1, 0, 0.25, 0, 7]] * 3


@pytest.mark.parametrize("ranks", [1, 3])
def test_every_line_of_a_libsvm_file_is_loaded_by_exactly_one_rank(ranks, tmp_path):
    files = [tmp_path / name for name in ("lines", "no_end", "one_line", "empty")]
    texts = ["\n".join(LINES) + "\n", "\n".join(LINES), "1 0:2 3:4.5 4:0\n", ""]
    for file, text in zip(files, texts):
        file.write_text(text)
    results = assert_passed(script(ranks, "libsvm", *map(str, files))).results().values()

    def joined(key: str) -> list:
        return [one for result in results for one in result[key]]

    assert joined("rows0") == joined("rows1") == ROWS
    assert joined("labels0") == joined("labels1") == [1, -1, 0, 2] * 3
    assert joined("rows2") == ROWS[:1] and joined("labels2") == [1]
    assert joined("rows3") == joined("labels3") == []


def test_a_malformed_libsvm_line_is_an_error_on_every_rank(tmp_path):
    wrong = ["1 qid:3 1:2", "1:0.5 1:2", "1 a:2", "1 1.5:2", "1 -1:2", "x"]
    files = [str(tmp_path / str(i)) for i in range(len(wrong))]
    for file, line in zip(files, wrong):
        Path(file).write_text(f"1 0:1  # as many bytes as any line below\n{line}\n")
    results = assert_passed(script(2, "libsvm", *files, str(tmp_path / "none"))).results()
    for result in results.values():
        for i, file in enumerate(files):
            assert f"{file}, part 1 of 2: " in result[f"error{i}"]
        assert "No such file" in result[f"error{len(wrong)}"]


@pytest.mark.parametrize("failing", [0, 1])
@pytest.mark.parametrize("where", ["fail", "fail_before_finalize"])
def test_a_rank_that_raises_inside_xgboost_ends_the_job(where, failing):
    """finalize() in a ``finally`` must not wait for other ranks, which wait for this rank."""
    job = script(2, where, str(failing))
    assert job.status != 0
    assert "KeyError: 'label'" in job.output
