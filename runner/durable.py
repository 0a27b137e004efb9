"""Writes that survive a kill at any moment, and the lock between writers."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from .errors import UserError

__all__ = ["TEMPORARY", "StoreError", "exclusive_lock", "explained", "write_durably"]

TEMPORARY = ".tmp"
"""Ending of files that are being written; their names begin with a dot."""


class StoreError(UserError):
    """The result folder cannot be used as asked; nothing that was stored is lost."""


def write_durably(file: Path, write: Callable[[BinaryIO], Any]) -> None:
    """Write a file so that it has its old content or its new one, also after a crash of the machine.

    Raises `StoreError` where the disk is full or read-only; the old content stands then.
    """
    # Host and process id keep two writers of one name apart, say jobs on two nodes.
    temporary = file.with_name(f".{file.name}.{socket.gethostname()}.{os.getpid()}{TEMPORARY}")
    with explained(file):
        try:
            with temporary.open("wb") as stream:
                write(stream)
                stream.flush()
                os.fsync(stream.fileno())
            temporary.replace(file)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        _sync_folder(file.parent)


@contextlib.contextmanager
def exclusive_lock(file: Path) -> Iterator[None]:
    """Hold a lock file until this process lets go or dies. Raises `StoreError` naming the holder."""
    with explained(file):
        stream = file.open("a+b")
    with stream:
        if not _try_lock(stream):
            raise StoreError(f"{file.parent} is in use by {_holder(stream)}; wait for it or choose another run.name")
        with explained(file):
            _name_holder(stream)
        yield


@contextlib.contextmanager
def explained(target: Path) -> Iterator[None]:
    """Turn an OSError while writing `target` into a `StoreError` that says what to do."""
    try:
        yield
    except OSError as error:
        _cannot_write(target, error)


def _cannot_write(target: Path, error: OSError) -> NoReturn:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        fix = "no space left; free some and run again with the same run.name: finished trials are kept"
    elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        fix = "the folder is not writable; choose another with run.results"
    else:
        fix = str(error.strerror or error)
    raise StoreError(f"cannot write {target}: {fix}") from error


def _sync_folder(folder: Path) -> None:
    """Make a rename durable. Windows cannot open folders, and needs no such thing."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _try_lock(file: BinaryIO) -> bool:
    try:
        if os.name == "posix":
            import fcntl

            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        else:
            import msvcrt

            file.seek(0)
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
    except (BlockingIOError, PermissionError):
        return False
    return True


def _name_holder(file: BinaryIO) -> None:
    file.seek(0)
    file.truncate()
    file.write(f"process {os.getpid()} on {socket.gethostname()}".encode())
    file.flush()


def _holder(file: BinaryIO) -> str:
    file.seek(0)
    return file.read(200).decode("utf-8", errors="replace") or "another process"
