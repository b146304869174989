"""Folders and files: atomic, never overwriting, one sentence for what the disk says."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import zipfile
from pathlib import Path

import pytest

from hookviz.errors import ExportError, RunCancelled
from hookviz.export import whole_file, zip_export
from hookviz.export._folder import PART_NAME, ExportFolder


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_new_folder_gets_a_number_where_its_name_is_taken(tmp_path: Path) -> None:
    made = [ExportFolder.new(tmp_path / "deep" / "er", "stamp").path.name for _ in range(3)]
    assert made == ["stamp", "stamp-2", "stamp-3"]


def test_a_chosen_folder_is_not_overwritten_unless_asked(tmp_path: Path) -> None:
    ExportFolder.named(tmp_path, "mine").write("a.png", b"old")
    with pytest.raises(ExportError, match=r"exists already.*overwrite=True"):
        ExportFolder.named(tmp_path, "mine")
    ExportFolder.named(tmp_path, "mine", overwrite=True).write("a.png", b"new")
    assert (tmp_path / "mine" / "a.png").read_bytes() == b"new"


def test_overwriting_follows_no_symbolic_link_out_of_the_folder(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious.txt").write_bytes(b"precious")
    (tmp_path / "link").symlink_to(outside, target_is_directory=True)
    with pytest.raises(ExportError, match="symbolic link"):
        ExportFolder.named(tmp_path, "link", overwrite=True)
    folder = ExportFolder.named(tmp_path, "mine")
    (folder.path / "a.png").symlink_to(outside / "precious.txt")
    folder.write("a.png", b"new")
    assert (outside / "precious.txt").read_bytes() == b"precious"
    assert (folder.path / "a.png").read_bytes() == b"new"


def test_a_symbolic_link_as_the_chosen_parent_is_the_users_choice(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real", target_is_directory=True)
    ExportFolder.new(tmp_path / "link", "x").write("a.png", b"1")
    assert (tmp_path / "real" / "x" / "a.png").read_bytes() == b"1"


@pytest.mark.parametrize("name", ["", ".", "..", "../a.png", "/a.png", "a\\b.png", "a\0.png"])
def test_a_file_has_one_plain_name(tmp_path: Path, name: str) -> None:
    folder = ExportFolder.new(tmp_path, "x")
    with pytest.raises(ExportError, match="plain file name"):
        folder.write(name, b"1")
    assert names(tmp_path) == {"x"}


def test_while_a_file_is_written_only_a_recognisable_part_is_there(tmp_path: Path) -> None:
    folder = ExportFolder.new(tmp_path, "x")
    with folder.open("a.png") as file:
        file.write(b"half")
        file.flush()
        there = names(folder.path)
        assert len(there) == 1
        assert PART_NAME.fullmatch(there.pop())
    assert names(folder.path) == {"a.png"}


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError, SystemExit])
def test_nothing_stays_behind_when_writing_is_broken_off(
    tmp_path: Path, error: type[BaseException]
) -> None:
    folder = ExportFolder.new(tmp_path, "x")

    def broken_off() -> None:
        with folder.open("a.png") as file:
            file.write(b"half")
            raise error

    with pytest.raises(error):
        broken_off()
    assert names(folder.path) == set()
    assert folder.finished == []


def test_a_killed_writer_leaves_a_part_and_no_png(tmp_path: Path, fresh_python) -> None:
    code = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from hookviz.export import whole_file\n"
        "with whole_file(Path(sys.argv[1]) / 'a.png') as file:\n"
        "    file.write(b'half'); file.flush()\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    out = tmp_path / "out"
    out.mkdir()
    assert fresh_python.run(code, str(out), cwd=tmp_path).returncode == -signal.SIGKILL
    left = names(out)
    assert len(left) == 1
    assert PART_NAME.fullmatch(left.pop())


@pytest.mark.parametrize(
    ("number", "part"),
    [
        (errno.ENOSPC, "disk is full"),
        (errno.EDQUOT, "quota"),
        (errno.EROFS, "read-only"),
        (errno.EACCES, "may not write"),
        (errno.ENAMETOOLONG, "too long"),
        (errno.EIO, "reports an error"),
        (errno.ETXTBSY, os.strerror(errno.ETXTBSY)),
    ],
)
def test_what_the_disk_answers_is_one_sentence(tmp_path: Path, number: int, part: str) -> None:
    folder = ExportFolder.new(tmp_path, "x")

    def refused() -> None:
        with folder.open("a.png") as file:
            file.write(b"data")
            raise OSError(number, os.strerror(number))

    with pytest.raises(ExportError) as caught:
        refused()
    assert part in str(caught.value)
    assert "a.png" in str(caught.value)
    assert names(folder.path) == set()


@pytest.mark.parametrize(
    ("parent", "part"),
    [
        ("file", "a file, not a folder"),
        ("file/sub", "is a file"),
        ("loop/sub", "circle"),
        ("x" * 300, "too long"),
        ("a\0b", "null"),
    ],
)
def test_a_parent_that_cannot_be_is_one_sentence(tmp_path: Path, parent: str, part: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(ExportError) as caught:
        ExportFolder.new(tmp_path / parent, "x")
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_in_the_way_of_a_file_is_one_sentence(tmp_path: Path) -> None:
    folder = ExportFolder.new(tmp_path, "x")
    (folder.path / "a.png").mkdir()
    with pytest.raises(ExportError, match="folder of that name is in the way"):
        folder.write("a.png", b"1")
    assert names(folder.path) == {"a.png"}


def test_an_empty_folder_goes_again_and_a_used_one_stays(tmp_path: Path) -> None:
    assert ExportFolder.new(tmp_path, "x").remove_if_empty()
    folder = ExportFolder.new(tmp_path, "y")
    folder.write("a.png", b"1")
    assert not folder.remove_if_empty()
    assert (tmp_path / "y" / "a.png").exists()


def test_a_disk_that_is_really_full_leaves_no_half_file(small_disk: Path) -> None:
    folder = ExportFolder.new(small_disk, "x")
    folder.write("small.png", b"1")
    with pytest.raises(ExportError, match="disk is full"):
        folder.write("large.png", bytes(200_000))
    assert names(folder.path) == {"small.png"}


def test_a_disk_that_is_really_read_only_is_one_sentence(small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(ExportError, match="read-only"):
        ExportFolder.new(small_disk, "x")


def exported(tmp_path: Path) -> Path:
    folder = ExportFolder.new(tmp_path, "run")
    folder.write("a.png", b"picture" * 1000)
    folder.write("manifest.json", b"{}" * 1000)
    folder.write("été.png", b"x")
    return folder.path


def test_a_zip_holds_the_files_and_is_not_overwritten(tmp_path: Path) -> None:
    folder = exported(tmp_path)
    made = [zip_export(folder) for _ in range(3)]
    assert [p.name for p in made if p] == ["run.zip", "run-2.zip", "run-3.zip"]
    with zipfile.ZipFile(tmp_path / "run.zip") as archive:
        assert archive.testzip() is None
        assert set(archive.namelist()) == {"run/a.png", "run/été.png", "run/manifest.json"}
        assert archive.read("run/a.png") == b"picture" * 1000
    with pytest.raises(ExportError, match="exists already"):
        zip_export(folder, tmp_path / "run.zip")


def test_a_zip_leaves_out_links_folders_and_unfinished_parts(tmp_path: Path) -> None:
    folder = exported(tmp_path)
    (folder / "link.png").symlink_to("/etc/passwd")
    (folder / "sub").mkdir()
    (folder / ".hookviz-0123456789ab.part").write_bytes(b"half")
    path = zip_export(folder, tmp_path / "out.zip")
    assert path is not None
    with zipfile.ZipFile(path) as archive:
        assert set(archive.namelist()) == {"run/a.png", "run/été.png", "run/manifest.json"}


def test_a_zip_goes_into_an_open_file_that_cannot_seek(tmp_path: Path) -> None:
    class Pipe:
        def __init__(self) -> None:
            self.pieces: list[bytes] = []

        def write(self, data: bytes) -> int:
            self.pieces.append(bytes(data))
            return len(data)

        def flush(self) -> None:
            pass

    pipe = Pipe()
    assert zip_export(exported(tmp_path), pipe) is None  # type: ignore[arg-type]
    (tmp_path / "copy.zip").write_bytes(b"".join(pipe.pieces))
    with zipfile.ZipFile(tmp_path / "copy.zip") as archive:
        assert archive.testzip() is None
        assert len(archive.namelist()) == 3


def test_a_cancelled_zip_leaves_nothing(tmp_path: Path) -> None:
    folder = exported(tmp_path)
    seen: list[tuple[int, int, str]] = []
    with pytest.raises(RunCancelled, match="after 1 of 3 files"):
        zip_export(folder, progress=lambda *step: seen.append(step), cancelled=lambda: bool(seen))
    assert names(tmp_path) == {"run"}
    assert seen == [(1, 3, "a.png")]


@pytest.mark.parametrize("place", ["missing", "empty"])
def test_a_folder_without_files_is_one_sentence(tmp_path: Path, place: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ExportError, match=place if place == "empty" else "not a folder|no files"):
        zip_export(tmp_path / place)
    assert names(tmp_path) == {"empty"}


def test_a_zip_on_a_full_disk_leaves_nothing(small_disk: Path, tmp_path: Path) -> None:
    folder = ExportFolder.new(tmp_path, "run")
    folder.write("a.png", os.urandom(200_000))
    with pytest.raises(ExportError, match="disk is full"):
        zip_export(folder.path, small_disk / "run.zip")
    assert names(small_disk) == set()


def test_two_writers_of_one_name_both_succeed_or_tell(tmp_path: Path) -> None:
    target = tmp_path / "a.bin"
    with whole_file(target) as one, whole_file(target) as two:
        one.write(b"1")
        two.write(b"2")
    assert target.read_bytes() == b"1"  # the outer block ended last
