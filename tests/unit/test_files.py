"""hvdlite writes only to files of its user, even if another user has taken a file's name."""

import os
import stat
import subprocess
import sys

import pytest

from hvdlite.launch import output
from hvdlite.launch.job import LaunchError
from hvdlite.machine import files
from hvdlite.monitor import report

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's file")


def make_link(path, victim):
    path.symlink_to(victim)


def make_file(path, _):
    path.write_text("")
    path.chmod(0o666)


def make_folder_link(path, victim):
    (victim.parent / "his").mkdir()
    path.symlink_to(victim.parent / "his")


def make_folder(path, _):
    path.mkdir(mode=0o777)


@pytest.fixture
def taken(tmp_path, request):
    """Return a path that another user has taken in a folder like /tmp, and a file to protect."""
    folder, victim = tmp_path / "tmp", tmp_path / "victim"
    folder.mkdir()
    folder.chmod(0o1777)
    victim.write_text("precious")
    request.param(folder / "name", victim)
    os.lchown(folder / "name", NOBODY, NOBODY)
    return folder / "name", victim


@as_root
@pytest.mark.parametrize("taken", [make_link, make_file], indirect=True)
@pytest.mark.parametrize("mode", ["w", "ab"])
def test_a_file_or_link_of_another_user_is_not_written(taken, mode):
    path, victim = taken
    with pytest.raises(PermissionError, match="of another user has this name"):
        files.open_named(path, mode)
    with pytest.raises(FileExistsError):
        files.create(path)
    assert victim.read_text() == "precious"


@as_root
@pytest.mark.parametrize("taken", [make_link, make_file], indirect=True)
def test_a_report_gets_another_name_if_another_user_has_taken_its_name(taken, monkeypatch):
    path, victim = taken
    path = path.rename(path.parent / "hvdlite-report-job-failure.txt")
    monkeypatch.setenv(report.FOLDER, str(path.parent))
    with report.create("job", "failure") as out:
        out.write("why")
    made = os.lstat(out.name)
    assert (made.st_uid, stat.S_IMODE(made.st_mode), made.st_size) == (os.geteuid(), 0o600, 3)
    assert victim.read_text() == "precious"


@as_root
@pytest.mark.parametrize("taken", [make_link, make_folder], indirect=True)
def test_a_folder_of_another_user_is_refused_as_private_folder(taken):
    path, victim = taken
    with pytest.raises((PermissionError, FileExistsError)):
        files.make_private_folder(path)


def test_a_file_is_written_through_a_link_of_its_user(tmp_path):
    tmp_path.chmod(0o1777)
    (tmp_path / "link").symlink_to(tmp_path / "file")
    for text in ("first", "2"):
        with files.open_named(tmp_path / "link") as out:
            out.write(text)
        assert (tmp_path / "file").read_text() == text


def test_a_file_that_another_user_may_have_hard_linked_is_not_written(tmp_path):
    """Through a hard link in /tmp, hvdlite could overwrite another file of this user."""
    (tmp_path / "victim").write_text("precious")
    tmp_path.chmod(0o1777)
    os.link(tmp_path / "victim", tmp_path / "name")
    with pytest.raises(PermissionError, match="this file has another name, too"):
        files.open_named(tmp_path / "name")
    assert (tmp_path / "victim").read_text() == "precious"


@as_root
@pytest.mark.parametrize("taken", [make_folder_link, make_folder], indirect=True)
def test_output_is_not_written_to_a_folder_of_another_user(taken):
    """The other user could put pipes, which block the job, or links into the folder."""
    path, victim = taken
    with pytest.raises(LaunchError, match="--output-filename .*of another user has this name"):
        output.Files(str(path))
    output.Files(str(path.parent / "own" / "folder")).close()


def test_an_existing_private_folder_is_used(tmp_path):
    for _ in range(2):
        files.make_private_folder(tmp_path / "a" / "b")
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700


def test_init_fills_closed_standard_descriptors():
    """Otherwise what a library prints could get into shared memory."""
    code = "import os, sys, hvdlite; hvdlite.init()\n"
    code += "files = [os.readlink(f'/proc/self/fd/{number}') for number in range(3)]\n"
    code += "sys.exit(files != 3 * ['/dev/null'])"
    line = 'exec "$0" -c "$1" <&- >&- 2>&-'
    assert subprocess.run(["sh", "-c", line, sys.executable, code]).returncode == 0
