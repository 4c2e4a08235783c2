"""Pools of prompts, each under a key that says what it was learned from."""

from __future__ import annotations

import torch
from torch import Tensor

from ostinato.errors import StateError
from ostinato.ops.expect import Expected, Kind, Like
from ostinato.ops.snapshot import State


class PromptPool:
    """Pairs of a key and a prompt, as two stacked tensors.

    >>> pool = PromptPool()
    >>> pool.add(torch.zeros(3), torch.ones(2, 4))
    >>> pool.add(torch.ones(3), torch.zeros(2, 4))
    >>> float(pool.blend(torch.tensor([0.25, 0.75]))[0, 0])
    0.25
    """

    def __init__(self) -> None:
        self.keys: Tensor | None = None  # (N, K)
        self.prompts: Tensor | None = None  # (N, P, D)

    def __len__(self) -> int:
        return 0 if self.keys is None else len(self.keys)

    def both(self) -> tuple[Tensor, Tensor]:
        """Keys and prompts of a pool that has any."""
        assert self.keys is not None
        assert self.prompts is not None
        return self.keys, self.prompts

    @torch.no_grad()
    def add(self, key: Tensor, prompt: Tensor) -> None:
        """Keep one more pair."""
        key, prompt = key.detach().clone()[None], prompt.detach().clone()[None]
        if self.keys is None or self.prompts is None:
            self.keys, self.prompts = key, prompt
        else:
            self.keys = torch.cat([self.keys, key])
            self.prompts = torch.cat([self.prompts, prompt])

    def drop(self, index: int) -> None:
        """Forget one pair."""
        known, values = self.both()
        rest = [n for n in range(len(self)) if n != index]
        self.keys, self.prompts = (known[rest], values[rest]) if rest else (None, None)

    def blend(self, weights: Tensor) -> Tensor:
        """The weighted sum of all prompts: (P, D) for weights (N), (B, P, D) for (B, N)."""
        return torch.einsum("...n,npd->...pd", weights, self.both()[1])

    @torch.no_grad()
    def pull(
        self, weights: Tensor, key: Tensor, prompt: Tensor, keys: float, prompts: float
    ) -> None:
        """Move every pair towards a new one, by its weight times the two rates."""
        known, values = self.both()
        self.keys = known + keys * weights[:, None] * (key - known)
        self.prompts = values + prompts * weights[:, None, None] * (prompt - values)

    def take_in(self, keys: Tensor, prompts: Tensor, shares: Tensor, rate: float) -> None:
        """Pull what each row was blended from, by its shares (B, N); rows without any are added."""
        blended = shares.any(1)
        for row in blended.nonzero().flatten().tolist():
            self.pull(shares[row], keys[row], prompts[row], keys=rate, prompts=1.0)
        for row in (~blended).nonzero().flatten().tolist():  # shares are of those before
            self.add(keys[row], prompts[row])

    @torch.no_grad()
    def fuse(self, groups: Tensor) -> None:
        """Replace all pairs of a group by their mean; groups are numbered from 0."""
        known, values = self.both()
        count = int(groups.max()) + 1
        member = torch.nn.functional.one_hot(groups, count).to(known).T  # (groups, N)
        share = member / member.sum(1, keepdim=True)
        self.keys = share @ known
        self.prompts = torch.einsum("gn,npd->gpd", share, values)

    def shrink(self, size: int, *, cosine: bool = False) -> None:
        """Fuse the nearest pairs (by distance of keys, or cosine) until so many are left."""
        if len(self) <= size:
            return
        keys = self.both()[0]
        unit = torch.nn.functional.normalize(keys, dim=1)
        self.fuse(linked_groups(unit @ unit.T if cosine else -torch.cdist(keys, keys), size))

    def export_state(self) -> State:
        """Both tensors, where there are any, and their forms."""
        if self.keys is None or self.prompts is None:
            return State({}, {"forms": {}})
        tensors = {"keys": self.keys, "prompts": self.prompts}
        return State(tensors, {"forms": {name: Like.form(one) for name, one in tensors.items()}})

    def expected(self, state: State) -> Expected:
        """No pair, or as many keys as prompts: of the forms it tells and the sizes there are."""
        forms = state.values["forms"]
        wanted = {name: Like.told(one) for name, one in forms.items()}
        for name, own in {"keys": self.keys, "prompts": self.prompts}.items():
            if wanted and own is not None and wanted[name].shape[1:] != own.shape[1:]:
                raise ValueError(f"{name} are {tuple(own.shape[1:])} here")
        if wanted and wanted["keys"].shape[0] != wanted["prompts"].shape[0]:
            raise ValueError("there is not a prompt for every key")
        names = ("keys", "prompts") if wanted else ()
        return Expected(wanted, {"forms": Kind.mapped(Kind.form(), names)})

    def import_state(self, state: State) -> None:
        """Continue from there."""
        keys, prompts = state.tensors.get("keys"), state.tensors.get("prompts")
        if (keys is None) != (prompts is None):
            raise StateError("The state's prompt pool has keys without prompts, or the reverse.")
        self.keys = None if keys is None else keys.detach().clone()
        self.prompts = None if prompts is None else prompts.detach().clone()


def linked_groups(similarity: Tensor, count: int) -> Tensor:
    """So many groups, by joining the most similar pairs first.

    That is a maximum spanning tree (Kruskal) without its weakest edges. Groups are numbered in
    the order of their first members.

    >>> linked_groups(torch.tensor([[1.0, 0.9, 0.1], [0.9, 1.0, 0.2], [0.1, 0.2, 1.0]]), 2)
    tensor([0, 0, 1])
    """
    size = len(similarity)
    owner = list(range(size))
    left = size
    rows, columns = torch.triu_indices(size, size, 1)
    order = similarity.detach().cpu()[rows, columns].argsort(descending=True, stable=True)
    for position in order.tolist():
        if left <= count:
            break
        a, b = owner[int(rows[position])], owner[int(columns[position])]
        if a != b:
            owner = [min(a, b) if o in (a, b) else o for o in owner]
            left -= 1
    names = {name: number for number, name in enumerate(dict.fromkeys(owner))}
    return torch.tensor([names[o] for o in owner], device=similarity.device)


def domain_weights(keys: Tensor, key: Tensor, radius: float, temperature: float) -> Tensor | None:
    """softmax(−distance / τ) over the keys within the radius; None where there is none."""
    distances = (keys - key).norm(dim=1)
    near = distances <= radius
    if not bool(near.any()):
        return None
    shares: Tensor = distances.masked_fill(~near, torch.inf).div(-temperature).softmax(0)
    return shares


def class_weights(
    keys: Tensor, predictions: Tensor, similarity: float, temperature: float
) -> tuple[Tensor, Tensor]:
    """Per image, softmax(cosine / τ) over the alike keys, and whether there is any.

    Args:
        keys: (N, C), stored predictions.
        predictions: (B, C), the images'.
        similarity: what counts as alike.
        temperature: τ.
    """
    alike = torch.nn.functional.cosine_similarity(predictions[:, None], keys[None], dim=-1)
    near = alike > similarity
    known = near.any(1)
    scores = (alike / temperature).masked_fill(~near & known[:, None], -torch.inf)
    return scores.softmax(1) * known[:, None], known
