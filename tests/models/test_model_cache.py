"""The cache: where it lies, whole folders or nothing, and what it says when it cannot write."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import pytest

from pytest_synthaccept.errors import EngineError
from pytest_synthaccept.models.cache import MANIFEST, cache_root, stored

FILES = {"config.json": b"{}", "weights": bytes(range(256)) * 100}


def never() -> dict[str, bytes]:
    raise AssertionError("built again")


def leftovers(root: Path) -> list[str]:
    return [path.name for path in (root / "models").glob(".tmp-*")]


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"SYNTHACCEPT_CACHE": "/a", "XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/a"),
        ({"XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/b/pytest-synthaccept"),
        ({"SYNTHACCEPT_CACHE": "", "XDG_CACHE_HOME": "b", "HOME": "/c"}, None),
        ({"SYNTHACCEPT_CACHE": "", "XDG_CACHE_HOME": "", "HOME": "/c"}, None),
        ({"HOME": "/c"}, None),
        ({"SYNTHACCEPT_CACHE": "~/d", "HOME": "/c"}, "/c/d"),
    ],
)
def test_cache_root_order(monkeypatch, environment, expected):
    for name in ("SYNTHACCEPT_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert cache_root() == Path(expected or "/c/.cache/pytest-synthaccept")


def test_relative_cache_is_made_absolute(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SYNTHACCEPT_CACHE", "here")
    assert cache_root() == tmp_path / "here"


def test_no_home_folder(monkeypatch):
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("SYNTHACCEPT_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(EngineError, match="set SYNTHACCEPT_CACHE to an absolute path"):
        cache_root()


def test_default_place_is_cache_root(monkeypatch, tmp_path):
    monkeypatch.setenv("SYNTHACCEPT_CACHE", str(tmp_path))
    assert stored("m", {}, lambda: FILES).parent == tmp_path / "models"


def test_written_once_then_reused(tmp_path):
    folder = stored("m", {"a": 1}, lambda: FILES, tmp_path)
    assert {name: (folder / name).read_bytes() for name in FILES} == FILES
    assert stored("m", {"a": 1}, never, tmp_path) == folder
    assert leftovers(tmp_path) == []


def test_other_recipe_or_name_has_another_folder(tmp_path):
    asked = [("m", {"a": 1}), ("m", {"a": 2}), ("n", {"a": 1})]
    folders = {stored(name, recipe, lambda: FILES, tmp_path) for name, recipe in asked}
    assert len(folders) == 3
    assert stored("m", {"b": 2, "a": 1}, lambda: FILES, tmp_path) == stored(
        "m", {"a": 1, "b": 2}, never, tmp_path
    )


def test_folder_may_be_read_by_others(tmp_path):
    previous = os.umask(0o022)
    try:
        folder = stored("m", {}, lambda: FILES, tmp_path)
    finally:
        os.umask(previous)
    assert folder.stat().st_mode & 0o777 == 0o755


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _flip(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1] + b"\x7f")


DAMAGE = {
    "weights cut short": lambda folder: _truncate(folder / "weights"),
    "weights of equal length, other bytes": lambda folder: _flip(folder / "weights"),
    "weights gone": lambda folder: (folder / "weights").unlink(),
    "manifest gone": lambda folder: (folder / MANIFEST).unlink(),
    "manifest empty": lambda folder: (folder / MANIFEST).write_bytes(b""),
    "manifest cut short": lambda folder: _truncate(folder / MANIFEST),
    "manifest no text": lambda folder: (folder / MANIFEST).write_bytes(b"\xff\x00"),
    "manifest a list": lambda folder: (folder / MANIFEST).write_text("[]"),
    "manifest without entries": lambda folder: (folder / MANIFEST).write_text("{}"),
    "manifest of another recipe": lambda folder: (folder / MANIFEST).write_text(
        json.dumps({"recipe": {"a": 2}, "sha256": {}})
    ),
    "manifest of a wrong type": lambda folder: (folder / MANIFEST).write_text(
        json.dumps({"recipe": {"a": 1}, "sha256": ["weights"]})
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_copy_is_written_anew(tmp_path, damage):
    folder = stored("m", {"a": 1}, lambda: FILES, tmp_path)
    DAMAGE[damage](folder)
    assert stored("m", {"a": 1}, lambda: FILES, tmp_path) == folder
    assert stored("m", {"a": 1}, never, tmp_path) == folder
    assert (folder / "weights").read_bytes() == FILES["weights"]
    assert leftovers(tmp_path) == []


def test_file_in_the_place_of_the_folder(tmp_path):
    folder = stored("m", {}, lambda: FILES, tmp_path / "elsewhere")
    place = tmp_path / "models" / folder.name
    place.parent.mkdir()
    place.write_text("in the way")
    assert stored("m", {}, lambda: FILES, tmp_path) == place
    assert (place / "weights").read_bytes() == FILES["weights"]


def check_message(error: EngineError, folder: Path, reason: str) -> None:
    message = str(error)
    assert str(folder) in message
    assert reason in message
    assert "SYNTHACCEPT_CACHE" in message
    assert "\n" not in message


def test_cache_below_a_regular_file(tmp_path):
    # What an unwritable folder is to anybody but root.
    (tmp_path / "file").write_text("")
    with pytest.raises(EngineError) as caught:
        stored("m", {}, lambda: FILES, tmp_path / "file" / "cache")
    check_message(caught.value, tmp_path / "file" / "cache" / "models" / "m-", "Not a directory")


def test_models_is_a_file(tmp_path):
    (tmp_path / "models").write_text("")
    with pytest.raises(EngineError) as caught:
        stored("m", {}, lambda: FILES, tmp_path)
    check_message(caught.value, tmp_path / "models" / "m-", "File exists")


@pytest.fixture
def nobody():
    """Permissions count in this test, also when root runs it. Yields a folder that is all ours."""
    with tempfile.TemporaryDirectory() as folder:  # root's tmp_path is closed to others
        if os.geteuid() == 0:
            os.chown(folder, 65534, -1)
            os.seteuid(65534)
            yield Path(folder)
            os.seteuid(0)
        else:
            yield Path(folder)


def test_read_only_cache(nobody):
    good = stored("m", {}, lambda: FILES, nobody)
    (nobody / "models").chmod(0o555)
    assert stored("m", {}, never, nobody) == good
    with pytest.raises(EngineError) as caught:
        stored("m", {"another": 1}, lambda: FILES, nobody)
    (nobody / "models").chmod(0o755)
    check_message(caught.value, nobody / "models" / "m-", "Permission denied")
