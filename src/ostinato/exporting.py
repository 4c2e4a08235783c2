"""Out of Ostinato: a frozen model of one domain, as a module, for torch.export or for ONNX."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ostinato.errors import ConfigError, MissingResource, StateError
from ostinato.experts.frozen import MapsAsInputs, bare_copy, stack_maps, with_expert
from ostinato.methods.base import Method
from ostinato.methods.ostinato import Ostinato

Form = Literal["module", "torch", "onnx"]
_ALL = "maps"
"""As a domain: none is built in, the maps of all come in as inputs."""
_CLOSE = 1e-4
"""How near an export's logits are to the live model's, or it is refused."""


def export(
    adapted: Method,
    *,
    domain: int | Literal["maps"] | None = None,
    to: Form = "module",
    path: str | Path | None = None,
    example: Tensor | None = None,
) -> Any:
    """A frozen model: pixels in [0, 1] in, logits out, nothing learned or routed any more.

    Args:
        adapted: what `adapt` returned; it stays as it is.
        domain: whose expert is built in; 0 is the source. None takes the domain of most images
            (of methods without domains: the model as it is now). "maps", for `forward-only`, gives
            `(images, maps, index) → (logits, sums)`; see `input_maps`.
        to: "module" gives an nn.Module; "torch" an ExportedProgram, saved to `path` where given;
            "onnx" writes `path`.
        path: where to.
        example: images of the size to export for, needed for "torch" and "onnx"; batches of other
            lengths work too.

    What is exported is compared with the live model on the example before it is given out.

    >>> import timm, ostinato
    >>> vit = timm.create_model("test_vit", num_classes=10)
    >>> adapted = ostinato.adapt(vit, "tent")
    >>> frozen = ostinato.export(adapted)
    >>> frozen(torch.rand(2, 3, 160, 160)).shape
    torch.Size([2, 10])
    """
    if to not in ("module", "torch", "onnx"):
        raise ConfigError(f"to is 'module', 'torch' or 'onnx', not {to!r}.")
    if to != "module" and example is None:
        raise ConfigError(f"to={to!r} needs example=: images of the size to export for.")
    if to == "onnx" and path is None:
        raise ConfigError("to='onnx' needs path=: the file to write.")
    module = _frozen(adapted, domain)
    if to == "module":
        return module
    assert example is not None
    pixels = adapted.model.check(example)
    inputs = _inputs(adapted, domain, pixels)
    return _program(module, inputs, path) if to == "torch" else _onnx(module, inputs, path)


def input_maps(adapted: Method) -> tuple[Any, dict[int, int]]:
    """The maps that an export with `domain="maps"` takes, and each domain's row in them.

    The source has row 0; so have domains without maps.
    """
    method = _own(adapted)
    known = {number: e for number, e in method.version.experts.items() if e.maps}
    if not known:
        raise StateError("No domain has maps yet: adapt to some images first.")
    rows = {number: row for row, number in enumerate(known, 1)}
    device = method.model.device
    stacked = tuple(
        tuple(part.to(device) for part in block) for block in stack_maps(list(known.values()))
    )
    return stacked, {0: 0, **rows}


def _own(adapted: Method) -> Ostinato:
    if not isinstance(adapted, Ostinato):
        raise ConfigError(f"{adapted.name} has no domains to export: leave domain out.")
    return adapted


def _frozen(adapted: Method, domain: int | str | None) -> nn.Module:
    """The module to export."""
    adapted._refuse_detached()
    if not isinstance(adapted, Ostinato):
        if domain is not None:
            _own(adapted)
        return bare_copy(adapted.model).eval().requires_grad_(False)
    version = adapted.version
    if domain == _ALL:
        if version.shared or any(expert.branches for expert in version.experts.values()):
            raise ConfigError("domain='maps' is for preset='forward-only': branches were learned.")
        return MapsAsInputs(adapted.model)
    if domain is None:
        counts = {number: one.images for number, one in adapted.bank.domains.items()}
        domain = max(counts, key=lambda number: counts[number], default=0)
    if domain == 0 or (domain in version.experts and not version.shares.get(int(domain))):
        return bare_copy(adapted.model).eval().requires_grad_(False)
    if domain not in version.experts:
        known = ", ".join(map(str, [0, *version.experts]))
        raise StateError(f"There is no domain {domain}: there are {known}.")
    expert = version.experts[int(domain)]
    frozen = bare_copy(adapted.model)
    frozen.base, acts = with_expert(adapted.model.base, expert, version.shared, adapted.targets)
    frozen.add_module("acts", acts)
    temperature = version.temperatures.get(int(domain), 1.0)
    return _Tempered(frozen, temperature).eval().requires_grad_(False)


class _Tempered(nn.Module):
    """A model whose logits are divided by a temperature.

    >>> _Tempered(nn.Identity(), 2.0)(torch.ones(1, 3)).tolist()
    [[0.5, 0.5, 0.5]]
    """

    def __init__(self, model: nn.Module, temperature: float) -> None:
        super().__init__()
        self.model, self.temperature = model, temperature

    def forward(self, images: Tensor) -> Tensor:
        """Its logits."""
        logits: Tensor = self.model(images)
        return logits / self.temperature


def _inputs(adapted: Method, domain: int | str | None, pixels: Tensor) -> tuple[Any, ...]:
    if len(pixels) < 2:
        pixels = pixels.repeat(2, 1, 1, 1)  # a batch of one would be taken for the only length
    if domain != _ALL:
        return (pixels,)
    maps, _ = input_maps(adapted)
    index = torch.arange(len(pixels), device=pixels.device) % len(maps[0][0])
    return (pixels, maps, index)


def _program(module: nn.Module, inputs: tuple[Any, ...], path: str | Path | None) -> Any:
    batch = torch.export.Dim("batch", min=1)
    shapes: tuple[Any, ...] = ({0: batch},)
    if len(inputs) == 3:
        shapes = ({0: batch}, tuple(tuple(None for _ in b) for b in inputs[1]), {0: batch})
    with torch.no_grad():
        program = torch.export.export(module, inputs, dynamic_shapes=shapes, strict=False)
        _compare(program.module()(*inputs), module(*inputs), "torch.export's program")
    if path is not None:
        torch.export.save(program, str(path))
    return program


def _onnx(module: nn.Module, inputs: tuple[Any, ...], path: str | Path | None) -> Path:
    try:
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError:
        raise MissingResource("ONNX needs pip install 'ostinato[export]'.") from None
    target = Path(str(path))
    program = _program(module, inputs, None)
    torch.onnx.export(program, (), str(target), dynamo=True, verbose=False, external_data=False)
    session = onnxruntime.InferenceSession(str(target), providers=["CPUExecutionProvider"])
    flat, _ = torch.utils._pytree.tree_flatten(inputs)
    names = [one.name for one in session.get_inputs()]
    found = session.run(None, {n: t.cpu().numpy() for n, t in zip(names, flat, strict=True)})
    with torch.no_grad():
        live = module(*inputs)
    logits = live[0] if isinstance(live, tuple) else live
    _compare(torch.from_numpy(found[0]), logits.cpu(), "ONNX Runtime")
    return target


def _compare(found: Any, live: Any, what: str) -> None:
    """Refuse an export that answers otherwise."""
    ours, theirs = (v[0] if isinstance(v, tuple) else v for v in (live, found))
    off = float((ours.float() - theirs.float()).abs().max())
    bound = _CLOSE if ours.dtype == torch.float32 else 0.1
    if not off <= bound * max(1.0, float(ours.abs().max())):
        raise StateError(f"{what} answers {off:.2g} off the live model; it was not exported.")
