"""Files appear whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from sruexport.errors import OutputError
from sruexport.exporter.write import check_output, write_whole


def test_a_file_is_written_and_nothing_else_is_left(tmp_path: Path) -> None:
    write_whole(tmp_path / "m.onnx", b"new")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("m.onnx", b"new")]


def test_an_old_file_is_replaced_and_keeps_its_mode(tmp_path: Path) -> None:
    target = tmp_path / "m.onnx"
    target.write_bytes(b"old")
    target.chmod(0o640)
    write_whole(target, b"new")
    assert target.read_bytes() == b"new"
    assert target.stat().st_mode & 0o777 == 0o640


def test_a_link_is_written_through_and_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    link = tmp_path / "latest.onnx"
    link.symlink_to(tmp_path / "models" / "m.onnx")
    write_whole(check_output(link), b"new")
    assert link.is_symlink()
    assert (tmp_path / "models" / "m.onnx").read_bytes() == b"new"


def test_a_link_into_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    link = tmp_path / "latest.onnx"
    link.symlink_to(tmp_path / "gone" / "m.onnx")
    with pytest.raises(OutputError, match="does not exist"):
        check_output(link)


def test_when_writing_fails_the_old_file_is_there_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "m.onnx"
    target.write_bytes(b"old")

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OutputError, match=r"m\.onnx: cannot be written: No space left on device"):
        write_whole(target, b"new")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("m.onnx", b"old")]


@pytest.mark.parametrize(
    ("place", "message"), [(".", "is a folder"), ("no/m.onnx", "does not exist"), ("/dev/null", "no regular file")]
)
def test_places_that_cannot_be_written_are_refused_before_the_work(place: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=message):
        check_output(tmp_path / place)
