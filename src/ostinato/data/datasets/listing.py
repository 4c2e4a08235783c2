"""What lies in a folder: images, folders, downloads that are not unpacked."""

from __future__ import annotations

from pathlib import Path

_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".tif", ".tiff"})
_ARCHIVES = (".tar", ".tar.gz", ".tgz", ".zip")


def list_images(folder: Path) -> list[Path]:
    """The image files directly in a folder, sorted by name."""
    return sorted(p for p in folder.iterdir() if p.suffix.lower() in _SUFFIXES)


def subfolders(folder: Path) -> list[Path]:
    """The folders directly in a folder, sorted by name; hidden ones are left out."""
    return sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))


def leftovers(root: Path) -> list[str]:
    """Archives and half-finished downloads lying in a root."""
    if not root.is_dir():
        return []
    names = sorted(p.name for p in root.iterdir() if p.is_file())
    return [n for n in names if n.endswith((".part", *_ARCHIVES))]
