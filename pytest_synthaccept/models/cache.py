"""The user's cache of written checkpoints: whole folders or nothing, whoever asks at once."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pytest_synthaccept.errors import EngineError

ENV = "SYNTHACCEPT_CACHE"
MANIFEST = "manifest.json"
TEMPORARY = ".tmp-"
Files = Mapping[str, bytes]
"""File name -> content, the whole of a checkpoint folder but its manifest."""


def cache_root() -> Path:
    """The absolute folder that everything this package writes lies under; it may not exist yet.

    ``$SYNTHACCEPT_CACHE`` itself where set; else ``pytest-synthaccept`` in ``$XDG_CACHE_HOME``
    where that is an absolute path; else in ``~/.cache``.

    Raises EngineError when that needs a home folder and there is none.
    """
    try:
        if own := os.environ.get(ENV):
            return Path(own).expanduser().absolute()
        xdg = Path(os.environ.get("XDG_CACHE_HOME", ""))
        return (xdg if xdg.is_absolute() else Path.home() / ".cache") / "pytest-synthaccept"
    except RuntimeError as error:
        raise EngineError(
            f"no folder to cache models in: {error}; set {ENV} to an absolute path"
        ) from None


def stored(
    name: str, recipe: Mapping[str, Any], build: Callable[[], Files], cache_dir: Path | None = None
) -> Path:
    """The folder ``models/<name>-<hash of recipe>``, whole: built now unless it is there already.

    ``recipe`` is JSON data and says all that ``build``'s files depend on. A copy that is
    damaged in any byte is built anew. Raises EngineError when it cannot be written.
    """
    models = (cache_root() if cache_dir is None else Path(cache_dir).absolute()) / "models"
    canonical = json.dumps(recipe, sort_keys=True)
    folder = models / f"{name}-{hashlib.sha256(canonical.encode()).hexdigest()[:12]}"
    # Before any lock or write: a good copy in a cache that we may only read is enough.
    if _is_whole(folder, canonical):
        return folder
    try:
        models.mkdir(parents=True, exist_ok=True)
        with _only_writer(models):
            if not _is_whole(folder, canonical):
                _write(folder, build(), canonical)
    except OSError as error:
        if _is_whole(folder, canonical):  # somebody was faster, where locks do not work
            return folder
        reason = error.strerror or str(error)
        raise EngineError(
            f"cannot write the tiny model {folder}: {reason}; set {ENV} to a folder that can be "
            "written"
        ) from error
    return folder


def _is_whole(folder: Path, canonical: str) -> bool:
    """Whether every file listed in the manifest is there, byte for byte.

    Digests, not sizes alone: nothing is synced to the disk, so a crash of the machine can leave
    files of the right length full of zeros.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
        digests = manifest["sha256"]
        return manifest["recipe"] == json.loads(canonical) and all(
            _digest((folder / name).read_bytes()) == digest for name, digest in digests.items()
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return False


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@contextmanager
def _only_writer(models: Path) -> Iterator[None]:
    """Hold the one lock of this cache; the system frees it when its holder is killed.

    It saves double work. What makes a copy whole is the rename, so a file system without locks
    will do.
    """
    lock = os.open(models, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _write(folder: Path, files: Files, canonical: str) -> None:
    """Write the files beside ``folder`` and rename them into its place, a damaged copy aside."""
    _sweep(folder.parent)
    work = Path(tempfile.mkdtemp(prefix=TEMPORARY, dir=folder.parent))
    try:
        new = work / "new"
        new.mkdir()  # not `work` itself, which only its owner may read
        for name, content in files.items():
            (new / name).write_bytes(content)
        manifest = {
            "recipe": json.loads(canonical),
            "sha256": {name: _digest(content) for name, content in files.items()},
        }
        (new / MANIFEST).write_text(json.dumps(manifest, indent=2))
        if os.path.lexists(folder) and not _is_whole(folder, canonical):
            folder.rename(work / "old")
        new.rename(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _sweep(models: Path) -> None:
    """Remove what killed writers left: temporary folders older than any writer lives."""
    for left in models.glob(f"{TEMPORARY}*"):
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > 3600:
                shutil.rmtree(left)
