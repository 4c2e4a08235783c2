"""The conformance suite that every registered method passes; yours can be run through it too."""

from __future__ import annotations

from ostinato.checks._building import small_adapted
from ostinato.checks._report import CheckReport, CheckResult
from ostinato.checks._small import (
    CLASSES,
    SIZE,
    clean_images,
    example_model,
    small_batches,
    small_cnn,
    small_model,
)
from ostinato.checks._suite import CHECKS, check_method

__all__ = [
    "CHECKS",
    "CLASSES",
    "SIZE",
    "CheckReport",
    "CheckResult",
    "check_method",
    "clean_images",
    "example_model",
    "small_adapted",
    "small_batches",
    "small_cnn",
    "small_model",
]
