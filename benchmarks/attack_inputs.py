"""Inputs that the command has to refuse: specs, weights, images, folders, numbers."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import torch


def alias_bomb() -> bytes:
    """Ten lines of YAML that stand for a billion words."""
    lines = ["settings:", "  a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    for level in range(1, 10):
        lines.append(f"  a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]")
    return "\n".join(lines).encode()


def png_bomb(side: int) -> bytes:
    """A picture of a few kilobytes that says it has billions of pixels."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + check

    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    body = zlib.compress(bytes(1 << 20))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


SPECS = {
    "binary": bytes(range(256)),
    "utf16": "method: tent".encode("utf-16"),
    "list": b"[1]",
    "deep": b"settings: " + b"[" * 5000,
    "tabs": b"a:\n\t- b",
    "nul": b'method: "a\\0b"',
    "bomb": alias_bomb(),
    "huge": b"a: " + b"x" * (2 << 20),
    "number": b"seeds: [" + b"9" * 6000 + b"]",
    "date": b"model: 2024-99-99",
    "tag": b"a: !!python/object/apply:os.system [ls]",
    "infinite": b"settings: {lr: .inf}",
    "nan": b"settings: {lr: .nan}",
    "seed": b"seeds: [-1]",
    "large seed": b"seeds: [18446744073709551616]",
    "no domains": b"data: {domains: []}",
    "classes": b"num_classes: 99999999999",
    "key": b"? [1, 2]\n: 3",
    "unknown": b"metod: tent",
}

# A pickle that would call posix.system("id").
EVIL = (
    b"\x80\x04\x95\x1d\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94\x93\x94"
    b"\x8c\x02id\x94\x85\x94R\x94."
)
WEIGHTS = {
    "evil.pth": EVIL,
    "junk.pth": b"junk" * 99,
    "none.pth": b"",
    "junk.safetensors": b"\xff" * 64,
    "none.safetensors": b"",
}


def write_weights(place: Path) -> None:
    """Checkpoints that hold no weights."""
    for name, content in WEIGHTS.items():
        (place / name).write_bytes(content)
    (place / "folder.pth").mkdir(exist_ok=True)
    torch.save([1, 2], place / "list.pth")
    torch.save({"head.weight": "word"}, place / "words.pth")


def make_inputs(place: Path) -> list[list[str]]:
    """Calls of the command, none of which can be done."""
    out = ["--out", str(place / "out")]
    calls = []
    for name, content in SPECS.items():
        path = place / f"{name}.yaml"
        path.write_bytes(content)
        calls.append(["run", str(path), *out])
    write_weights(place)
    for name in (*WEIGHTS, "folder.pth", "list.pth", "words.pth", "missing.pth"):
        model = ["--model", "vit_tiny_patch16_224", "--weights", str(place / name)]
        images = ["--root", "embedded", "--data", "transform=resize224", "limit=4", "domains=[fog]"]
        calls.append(["run", "--method", "source", *model, *images, *out])
    calls += _images(place, out) + _places(place) + _words(place, out)
    return calls


def _images(place: Path, out: list[str]) -> list[list[str]]:
    pictures = place / "pictures" / "cat"
    pictures.mkdir(parents=True, exist_ok=True)
    (pictures / "bomb.png").write_bytes(png_bomb(50_000))
    source = ["--data", str(place / "pictures"), "--out", str(place / "s.safetensors")]
    data = ["--data", "dataset=folder", f"domains=[{place / 'pictures'}]"]
    return [
        ["run", "--method", "source", *data, *out],
        ["prepare", "statistics", "--model", "embedded", *source],
    ]


def _places(place: Path) -> list[list[str]]:
    """Places that nothing can be written to."""
    file = place / "a file"
    file.write_text("mine")
    calls = []
    for out in (str(file), str(file / "below"), "/proc/ostinato", "/dev/null", "/dev/null/x"):
        tune = ["--model", "embedded", "--data", "embedded-tune", "--images", "4"]
        calls += [
            ["run", "--method", "source", "--data", "limit=4", "domains=[fog]", "--out", out],
            ["prepare", "statistics", *tune, "--out", f"{out}/x"],
            ["report", str(place), "--out", out],
            ["demo", "--quick", "--out", out],
            ["data", "fetch", "cifar10", "--root", out, "--no-progress"],
        ]
    return calls


def _words(place: Path, out: list[str]) -> list[list[str]]:
    """Settings and names that cannot be."""
    words = [
        ["--seeds", "-1"],
        ["--batch-size", "0"],
        ["--settings", "lr=.inf"],
        ["--set", ".".join("a" * 500) + "=1"],
        ["--settings", "lr"],
        ["--every", "0"],
        ["--data", "limit=0"],
        ["--device", "x"],
        ["--method", "tnet"],
        ["--settings", "lr=" + "[" * 999],
        ["--stream", "x"],
        ["--root", "/nowhere"],
        ["--statistics", "99999999"],
        ["--method", "vida", "--prepared", "/dev/null"],
    ]
    file = str(place / "a file")
    other = [
        ["compare", str(place)],
        ["compare", file, file],
        ["check", "x"],
        ["x"],
        ["report", file],
        ["list", "x"],
        ["data", "check", "cifar10", "--root", file],
        ["run", str(place)],
        ["speed", "--batch-size", "0"],
        ["speed", "--steps", "0"],
        ["table", "x"],
        ["search", "x"],
    ]
    return [["run", *one, *out] for one in words] + other
