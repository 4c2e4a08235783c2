"""What the suite found."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CheckResult:
    """One check's name and, where it failed, why.

    >>> CheckResult("Reset is exact").problem is None
    True
    """

    name: str
    problem: str | None = None


@dataclass(frozen=True)
class CheckReport:
    """All results for one method.

    >>> CheckReport("tent", (CheckResult("Reset is exact"),)).passed
    True
    """

    method: str
    results: tuple[CheckResult, ...]

    @property
    def passed(self) -> bool:
        """Whether nothing failed."""
        return all(result.problem is None for result in self.results)

    def __str__(self) -> str:
        lines = [f"{self.method}: {'passed' if self.passed else 'FAILED'}"]
        for result in self.results:
            mark = "ok  " if result.problem is None else "FAIL"
            detail = f": {result.problem}" if result.problem else ""
            lines.append(f"  {mark} {result.name}{detail}")
        return "\n".join(lines)
