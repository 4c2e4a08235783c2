"""All checks in order, and the function that runs them."""

from __future__ import annotations

import traceback
from typing import Any

from ostinato.checks._basics import (
    check_batch_of_one,
    check_bf16,
    check_inputs_unchanged,
    check_labels_never_seen,
    check_learns,
    check_no_grad_callers,
    check_only_declared_move,
    check_repeatable,
    check_reset,
    check_unwrap,
)
from ostinato.checks._building import Check, builder
from ostinato.checks._faults import check_disk, check_exceptions, check_threads
from ostinato.checks._report import CheckReport, CheckResult
from ostinato.checks._state import (
    check_bad_input,
    check_copies,
    check_let_go,
    check_memory,
    check_no_images_saved,
    check_save_load,
)
from ostinato.registry import METHODS

CHECKS: tuple[Check, ...] = (
    check_inputs_unchanged,
    check_learns,
    check_only_declared_move,
    check_labels_never_seen,
    check_reset,
    check_repeatable,
    check_batch_of_one,
    check_bf16,
    check_bad_input,
    check_save_load,
    check_no_images_saved,
    check_memory,
    check_unwrap,
    check_let_go,
    check_no_grad_callers,
    check_copies,
    check_threads,
    check_exceptions,
    check_disk,
)


def check_method(name: str, **settings: Any) -> CheckReport:
    """Run every check on a registered method with these settings.

    Inputs unchanged · it learns · only declared parameters move · labels never seen · reset is
    exact · seeded runs repeat · batch of 1 · bf16 agrees with fp32 · bad input changes nothing ·
    save and load continue to the bit · no image in a saved file · memory stays bounded · unwrap
    gives the source back · what is let go of is free at once · no_grad callers · copies and
    pickles · threads · exceptions at every hook · failing disks.

    >>> report = check_method("source")
    >>> report.passed, len(report.results) >= 10
    (True, True)
    """
    build = builder(name, METHODS[name], settings)
    results = []
    for check in CHECKS:
        title = (check.__doc__ or check.__name__).strip().rstrip(".")
        try:
            problem = check(build)
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            problem = f"{type(error).__name__}: {error} ({where.name}, line {where.lineno})"
        results.append(CheckResult(title, problem))
    return CheckReport(name, tuple(results))
