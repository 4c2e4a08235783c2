"""What the command line calls its arguments, so that help says what is wanted of each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import tyro


def called(metavar: str) -> Any:
    """What an argument that may be left out is called; help then shows no default."""
    return tyro.conf.arg(metavar=metavar, help_behavior_hint="")


Words = Annotated[tuple[str, ...], called("[KEY=VALUE ...]")]
"""Settings by name; dots go into nested ones."""
Data = Annotated[tuple[str, ...], called("[folder:DIR | NAME | KEY=VALUE ...]")]
"""A data set, and settings of the stream."""
Named = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")]
"""The one thing that a command is about."""
Name = Annotated[str | None, called("NAME")]
Names = Annotated[tuple[str, ...], called("[NAME ...]")]
Folder = Annotated[str | None, called("DIR")]
Source = Annotated[str | None, called("FILE|NUMBER")]
Weights = Annotated[str | None, called("FILE")]
File = Annotated[Path | None, called("FILE")]
Place = Annotated[Path | None, called("DIR")]
Number = Annotated[int | None, called("NUMBER")]
Hours = Annotated[float | None, called("NUMBER")]
Folders = Annotated[tuple[Path, ...], called("[DIR ...]")]
Seeds = Annotated[tuple[int, ...], called("[SEED ...]")]
Factors = Annotated[tuple[float, ...], called("[FACTOR ...]")]
Normalize = Annotated[Literal["model", "none", "input"] | None, called("{model,none,input}")]
Precision = Annotated[Literal["fp32", "tf32", "bf16"] | None, called("{fp32,tf32,bf16}")]
Metric = Annotated[Literal["error", "accuracy", "miou"] | None, called("{error,accuracy,miou}")]
Spec = Annotated[Path | None, tyro.conf.Positional, called("[SPEC | RUN]")]
Runs = Annotated[tuple[Path, ...], tyro.conf.Positional, called("RUN [RUN ...]")]

Count = Annotated[int, tyro.conf.arg(metavar="NUMBER")]
Counts = Annotated[tuple[int, ...], tyro.conf.arg(metavar="NUMBER [NUMBER ...]")]
Amount = Annotated[float, tyro.conf.arg(metavar="NUMBER")]
Text = Annotated[str, tyro.conf.arg(metavar="TEXT")]
Given = Annotated[str, tyro.conf.arg(metavar="NAME")]
Origin = Annotated[str, tyro.conf.arg(metavar="DIR|NAME|FILE")]
Out = Annotated[Path, tyro.conf.arg(metavar="DIR")]
Written = Annotated[Path, tyro.conf.arg(metavar="FILE")]
