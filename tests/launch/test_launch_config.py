import pytest
from test_launch_options import job

CONFIG = """\
num-proc: 3
verbose: true
params:
  fusion_threshold_mb: 16
  cycle_time_ms: 3
timeline:
  filename: /t.json
stall_check:
  enabled: false
logging:
  level: debug
"""


def test_a_horovod_config_file_is_read_and_the_command_line_wins(tmp_path):
    pytest.importorskip("yaml")
    file = tmp_path / "c.yaml"
    file.write_text(CONFIG)
    found = job("--config-file", str(file), "-np", "5", "t")
    assert found.ranks == 5
    assert found.verbose
    assert found.env == {
        "HVDLITE_FUSION_THRESHOLD": str(16 << 20),
        "HVDLITE_TIMELINE": "/t.json",
        "HVDLITE_STALL_CHECK_TIME_SECONDS": "0",
        "HVDLITE_LOG_LEVEL": "debug",
    }
    assert job("-np", "5", "--config-file", str(file), "t").ranks == 5
    assert job("--config-file", str(file), "t").ranks == 3


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"nope: 1", "no option 'nope'"),
        (b"- 1", "lines"),
        (b"n: x", "'x'"),
        (b"start_timeout: x", "'x'"),
        (b"n: 1.5", "cannot be 1.5"),
        (b"launcher: foo", "--launcher cannot be 'foo'"),
        (b"transport: [tcp, mpi]", "--transport cannot be ['tcp', 'mpi']"),
        (b"config-file: c.yaml", "no option 'config_file'"),
        (b"1: 2", "no option '1'"),
        (b"\xff", "c.yaml cannot be read"),
        (b"a: &a\n  b: *a\n", "c.yaml, line 2: 'b' is nested too deeply"),
        (b"a: &a [*a]\n", "cannot be read: "),
        (b"verbose: &a {b: *a}\n", "c.yaml, line 1: 'b' is nested too"),
        (500 * b"{a: " + 500 * b"}", "c.yaml"),
        (9999 * b"[", "c.yaml cannot be read"),
        (b"\n\nverbose: 'false'", "c.yaml, line 3: --verbose cannot be 'false': expected true"),
        (b"verbose: 1", "expected true or false, without quotes"),
        (b"n: 1\nn: 2", "c.yaml, line 2: 'n' is in line 1, too"),
        (b"n: {a: 1}", "c.yaml, line 1: there is no option 'n_a'"),
        (b"start-timeout: [1, 2]", "--start-timeout cannot be [1, 2]"),
        (b"n: 2024-13-45", "c.yaml"),
        (b"n: !!python/object/apply:os.system [id]", "c.yaml cannot be read"),
    ],
)
def test_a_wrong_config_file_is_refused(tmp_path, content, says, capsys):
    pytest.importorskip("yaml")
    file = tmp_path / "c.yaml"
    file.write_bytes(content)
    with pytest.raises(SystemExit):
        job("--config-file", str(file), "t")
    assert says in capsys.readouterr().err
