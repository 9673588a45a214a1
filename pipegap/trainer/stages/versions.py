"""The versions of a stage's weights that are alive, and the master that the optimizer steps."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn


class Versions:
    """A ring of leaf parameters for each weight: version v lies in slot v mod (lag + 1).

    Every version is its own leaf, re-bound on the module before a forward and before its backward:
    swapping `p.data` instead would silently mix versions (Linear keeps the old weight in its graph,
    normalisations take the new one). Overwriting a slot that a backward still needs raises, by
    autograd's version counter.

    In the master's dtype the newest version *is* the master, so that a lag of 1 costs one more set
    of weights and a lag of 0 none. Leaves in another dtype (bf16) are copies of an fp32 master. The
    weights of a module that `reads_master` would lose too much: their leaves have its dtype in any
    case.

    With `reads_ahead` a batch that reads a version late sees other leaves, which were predicted
    when the version was made. They take lag + 1 more sets of weights.
    """

    def __init__(
        self,
        module: nn.Module,
        lags: Sequence[int],
        dtype: torch.dtype,
        *,
        reads_ahead: bool = False,
    ) -> None:
        self.names = [name for name, _ in module.named_parameters()]
        weights = [weight.detach() for weight in module.parameters()]
        self.newest = 0
        self._places = places_of(module)
        dtypes = _dtypes(weights, self._places, dtype)
        pairs = list(enumerate(zip(weights, dtypes, strict=True)))
        self._shared = [i for i, (weight, read_in) in pairs if weight.dtype == read_in]
        """The numbers of the weights whose newest leaf is the master, and of the others."""
        self._rounded = [i for i, (weight, read_in) in pairs if weight.dtype != read_in]
        self._rings = [
            [nn.Parameter(weight.to(read_in, copy=True)) for _ in range(lag + 1)]
            for weight, read_in, lag in zip(weights, dtypes, lags, strict=True)
        ]
        # `.data`, not `.detach()`: a step of the master must not count as a write to slot 0.
        self.master: Sequence[nn.Parameter] = [
            nn.Parameter(ring[0].data if i in self._shared else weight.clone(), requires_grad=False)
            for i, (weight, ring) in enumerate(zip(weights, self._rings, strict=True))
        ]
        self._ahead = [
            [nn.Parameter(leaf.detach().clone()) for leaf in ring] if reads_ahead and lag else ring
            for ring, lag in zip(self._rings, lags, strict=True)
        ]
        self._held = [[0] * (lag + 1) for lag in lags]

    def bind(self, versions: Sequence[int], batch: int) -> list[nn.Parameter]:
        """Makes the module read, for `batch`, version `versions[i]` of weight i.

        Returns these leaves. Raises LookupError for a version that does not exist yet or is already
        overwritten.
        """
        leaves = []
        for i, version in enumerate(versions):
            slot_versions = self._held[i]
            slot = version % len(slot_versions)
            if slot_versions[slot] != version:
                at = f"{self.names[i]}: version {version}"
                raise LookupError(f"{at} is not there, only {sorted(slot_versions)}")
            # A late read gets the predicted leaves, if there are any (else both rings are one).
            rings = self._ahead if version < batch else self._rings
            leaves.append(rings[i][slot])
        self._set(leaves)
        return leaves

    def bind_others(self, weights: Sequence[Tensor], dtype: torch.dtype) -> None:
        """Makes the module read these tensors, one per weight, in `dtype` until the next `bind`."""
        dtypes = _dtypes(weights, self._places, dtype)
        self._set([weight.to(read_in) for weight, read_in in zip(weights, dtypes, strict=True)])

    @torch.no_grad()
    def open(self) -> Sequence[nn.Parameter]:
        """Returns the master, W(t), in the slot of version t + 1: ready for an in-place step.

        The slot of version t keeps W(t), which batches in flight still read.
        """
        moved = [i for i in self._shared if len(self._rings[i]) > 1]
        # Written through the leaves, whose version counters autograd checks: a backward that still
        # needs an overwritten leaf raises.
        _copy_all(self._leaves(moved, self.newest + 1), [self.master[i] for i in moved])
        self._lay_master(self.newest + 1)
        return self.master

    @torch.no_grad()
    def close(self, predicted: Sequence[Tensor]) -> None:
        """Publishes the stepped master as version t + 1, and `predicted` for its late reads."""
        self.newest += 1
        rounded = self._rounded
        _copy_all(self._leaves(rounded, self.newest), [self.master[i] for i in rounded])
        for i, ring in self._foreseen():
            ring[self.newest % len(ring)].copy_(predicted[i])
        for slot_versions in self._held:
            slot_versions[self.newest % len(slot_versions)] = self.newest

    def state(self) -> dict[str, dict[str, Any]]:
        """Master and living versions of each weight by its name, and the version in each slot."""
        return {
            name: {
                "master": master.detach(),
                "slots": [leaf.detach() for leaf in ring],
                "ahead": [] if predicted is ring else [leaf.detach() for leaf in predicted],
                "held": slot_versions,
            }
            for name, master, ring, predicted, slot_versions in zip(
                self.names, self.master, self._rings, self._ahead, self._held, strict=True
            )
        }

    @torch.no_grad()
    def restore(self, state: Sequence[Mapping[str, Any]]) -> None:
        """Restores what `state` returned, one mapping per weight.

        Raises LookupError if the state has another number of versions of a weight.
        """
        self._restore_slots(state)
        self._lay_master(self.newest)
        torch._foreach_copy_(list(self.master), [saved["master"] for saved in state])
        for i, ring in self._foreseen():
            torch._foreach_copy_(list(ring), state[i]["ahead"])

    def _restore_slots(self, state: Sequence[Mapping[str, Any]]) -> None:
        self.newest = max(state[0]["held"])
        for i, saved in enumerate(state):
            if len(saved["held"]) != len(self._held[i]):
                num_saved, needed = len(saved["held"]), len(self._held[i])
                raise LookupError(f"{self.names[i]} has {num_saved} versions, {needed} are needed")
            self._held[i] = list(saved["held"])
            torch._foreach_copy_(list(self._rings[i]), saved["slots"])

    def _lay_master(self, version: int) -> None:
        """Lays the master where the version lies, of weights whose leaves have its dtype."""
        for i, leaf in zip(self._shared, self._leaves(self._shared, version), strict=True):
            self.master[i].data = leaf.data

    def _leaves(self, numbers: Sequence[int], version: int) -> list[nn.Parameter]:
        """The leaves of these weights in the slots of this version."""
        return [self._rings[i][version % len(self._rings[i])] for i in numbers]

    def _foreseen(self) -> Iterator[tuple[int, list[nn.Parameter]]]:
        """Yields (number, leaves) of each weight that has leaves for late reads."""
        pairs = enumerate(zip(self._rings, self._ahead, strict=True))
        return ((i, predicted) for i, (ring, predicted) in pairs if predicted is not ring)

    def _set(self, leaves: Sequence[Tensor]) -> None:
        for leaf, places in zip(leaves, self._places, strict=True):
            for module, name in places:
                module._parameters[name] = leaf  # type: ignore[assignment]


def _copy_all(into: Sequence[Tensor], tensors: Sequence[Tensor]) -> None:
    """Copies each tensor into its counterpart; torch takes no empty lists."""
    if tensors:
        torch._foreach_copy_(list(into), list(tensors))


def dtypes_of(module: nn.Module, dtype: torch.dtype) -> list[torch.dtype]:
    """What each weight of `module` is read in: `dtype`, or its own where it is the master's."""
    return _dtypes([*module.parameters()], places_of(module), dtype)


def _dtypes(
    weights: Sequence[Tensor], places: Sequence[Sequence[tuple[nn.Module, str]]], dtype: torch.dtype
) -> list[torch.dtype]:
    """What each weight is read in: `dtype`, or its own where its module reads the master."""
    return [
        weight.dtype if any(getattr(by, "reads_master", False) for by, _ in held_by) else dtype
        for weight, held_by in zip(weights, places, strict=True)
    ]


def places_of(module: nn.Module) -> list[list[tuple[nn.Module, str]]]:
    """For each parameter of `module`, every (submodule, attribute) that holds it: two if tied."""
    places: dict[int, list[tuple[nn.Module, str]]] = {id(p): [] for p in module.parameters()}
    for submodule in module.modules():
        for name, parameter in submodule._parameters.items():
            if parameter is not None:
                places[id(parameter)].append((submodule, name))
    return list(places.values())
