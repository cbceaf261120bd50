"""Writing a file whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from sruexport.errors import OutputError

#: protobuf cannot hold more in one message.
PROTOBUF_LIMIT = 2**31 - 1


def check_output(path: str | os.PathLike[str]) -> Path:
    """See before the work starts that `path` can be written.

    Raises:
        OutputError: it is a folder or a device, or its folder is missing or read-only.
    """
    target = Path(path)
    if target.is_dir():
        raise OutputError(f"{target}: is a folder; give the name of a file in it, such as {target / 'model.onnx'}")
    if target.exists() and not target.is_file():
        raise OutputError(f"{target}: is no regular file, and would be replaced by one; give another name")
    folder = _place(target).parent if target.is_symlink() else target.parent
    if not folder.is_dir():
        raise OutputError(f"{target}: the folder {folder} does not exist")
    if not os.access(folder, os.W_OK):
        raise OutputError(f"{target}: the folder {folder} cannot be written")
    return target


def write_whole(path: Path, data: bytes) -> None:
    """Write beside `path`, flush to the disk, then rename: `path` has either its old content or all of `data`.

    A link stays one: what it points to is written.

    Raises:
        OutputError: the disk is full, or the file cannot be written. Nothing is left behind.
    """
    temporary, place = None, _place(path)
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{place.name}.", suffix=".part", dir=place.parent)
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        mode = place.stat().st_mode & 0o777 if place.exists() else 0o666 & ~_umask()
        os.chmod(temporary, mode)
        os.replace(temporary, place)
        temporary = None
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error.strerror or error}") from error
    finally:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)


def _place(path: Path) -> Path:
    """Where a path leads, links followed."""
    return Path(os.path.realpath(path))


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
