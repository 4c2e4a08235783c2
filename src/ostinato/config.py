"""One typed config base: defaults, YAML, flags and documentation come from the same fields."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ostinato.errors import ConfigError, did_you_mean
from ostinato.text import read_yaml

Seed = Annotated[int, Field(ge=0, lt=2**63)]
"""What seeds every generator in use; a torch generator takes no more than 64 bits."""


class Config(BaseModel):
    """A frozen set of settings; unknown keys and wrong types are errors that name the fix.

    >>> class Example(Config):
    ...     rate: float = 0.1
    >>> Example.parse({"rat": 1})
    Traceback (most recent call last):
        ...
    ostinato.errors.ConfigError: Example has no setting 'rat'. Did you mean 'rate'? Available: rate.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False
    )

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Self:
        """Build from plain values, with errors a user can act on."""
        for key in values:
            if key not in cls.model_fields:
                hint = did_you_mean(str(key), cls.model_fields)
                raise ConfigError(f"{_called(cls)} has no setting {str(key)!r}. {hint}")
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            raise ConfigError(_explain(_called(cls), error)) from None

    @classmethod
    def from_yaml(cls, path: str | Path) -> Self:
        """Read a YAML file of settings."""
        values = read_yaml(path) or {}
        if not isinstance(values, dict):
            raise ConfigError(f"{path} should hold 'key: value' lines, not {values!r:.40}.")
        return cls.parse(values)

    def replace(self, **changes: Any) -> Self:
        """A checked copy with some settings changed."""
        return type(self).parse({**self.model_dump(), **changes})


def _called(kind: type[Config]) -> str:
    """As a user may write it: `Tent.Config` for settings that stand in what they are of."""
    return kind.__qualname__.rpartition("<locals>.")[2]


def _explain(name: str, error: ValidationError) -> str:
    parts = []
    for item in error.errors():
        where = ".".join(str(part) for part in item["loc"]) or "value"
        parts.append(f"{where} = {item['input']!r:.200}: {item['msg']}")
    return f"{name}: " + "; ".join(parts)
