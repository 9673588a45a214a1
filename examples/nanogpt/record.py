"""Result 46 of modded-nanogpt's track 3, the record of 2,690 updates, for the loop of train.py.

SOAP-Muon for the matrices of blocks, with a floor under the rows of its updates, a brake on the
growth of norms and a cautious decay; Adam for the rest; a look ahead along the trend; validation at
a blend with an average of the last weights. The numbers are those of train_gpt_cwd_SOTA.py at
f411b3d (records/track_3_optimization/results/20260619_cwd_rowfloor_tailema). One thing is left out:
from layer 6 on the signs that start the gains come in pairs there, and are independent here.
"""

from copy import deepcopy
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import AdamW
from typing_extensions import override

from examples.nanogpt.gpt import GPT
from pipegap.trainer.corrections.ema_nesterov import EmaNesterov
from pipegap.trainer.optimizers.orthogonal import fourth_norms, norms
from pipegap.trainer.optimizers.routing import Chained, Group
from pipegap.trainer.optimizers.soap_muon import SoapMuon

SCHEDULE = 2900  # updates at which the learning rates would reach 0
POWER = 1.2
FLOOR = 0.3825  # of the norm of a row's update, as a share of the row's norm
OUTWARD = 0.5  # share that is left of an update's part along the weight where the weight grows
DECAY = 0.025
TRUST_UNTIL, TRUST_FADED, LEAST_TRUST, MOST_TRUST, AGREEMENT = 1375, 1625, 0.45, 0.85, 0.2
LAST_LOOK = 1950
TINY = 1e-8


class Record:
    """Optimizer, rates, correction and average of a run that trains `model` for `updates`."""

    updates: ClassVar[int] = 2690
    log: ClassVar[str] = "published_record.csv"
    averaged_from: ClassVar[int] = 2400

    def __init__(self, model: GPT, updates: int) -> None:
        initialise(model)
        of_blocks, of_model = dict(model.blocks.named_parameters()), dict(model.named_parameters())
        outs = [w for name, w in of_blocks.items() if name.endswith("attention.out.weight")]
        of_outs = [w for name, w in of_blocks.items() if name.endswith("attention.out.bias")]
        vectors = {name: weight for name, weight in of_model.items() if weight.ndim < 2}
        gains = [weight for name, weight in vectors.items() if "norm" in name]
        in_own_groups = {*outs, *of_outs, *gains}
        matrices = [w for w in of_blocks.values() if w.ndim == 2 and w not in in_own_groups]
        biases = [weight for weight in vectors.values() if weight not in in_own_groups]
        of_adam = [
            _group([model.embedding.weight], 0.3, 4.976805410800738e-05, 0.99),
            _group([model.head.weight], 1 / 320, 5.184172302917436e-07, 0.99),
            *(
                _group(weights, 0.01, 1.6589351369335795e-06, decay, is_corrected=False)
                for weights, decay in ((gains, 0.99), (biases, 0.997), (of_outs, 0.9965))
            ),
        ]
        of_muon = [
            {**_group(weights, 0.0375, 3.3169534699576625e-06), "is_gated": is_gated}
            for weights, is_gated in ((matrices, False), (outs, True))
        ]
        self._adamw = AdamW(of_adam, eps=1e-10, weight_decay=0.0)
        self._muon = Matrices(of_muon)
        self.optimizer = Chained([self._adamw, self._muon])
        self._rest, self._average = max(0, updates - LAST_LOOK), {}

    def options(self, feedback: float) -> dict[str, Any]:
        """What a DelayedOptimizer gets: EMA-Nesterov, with Error Feedback inside."""
        options = {"look_ahead": 0.3, "decay": 0.99, "start": 300, "rest": self._rest}
        return {"correction": partial(EmaNesterov, **options, coefficient=feedback)}

    def set_rates(self, update: int) -> None:
        """Learning rates and Muon's momentum of this update, from 0."""
        for group in self.optimizer.param_groups:
            group["lr"] = min(group["initial_lr"], group["c"] * (SCHEDULE - update) ** POWER)
            if not group.get("is_corrected", True):  # AdamW's correction of its moments is undone
                first, second = (1 - beta ** (update + 1) for beta in group["betas"])
                group["lr"] *= first / second**0.5
        warm, cool = min(1.0, update / 300), min(1.0, max(0.0, (update - SCHEDULE + 200) / 200))
        for group in self._muon.param_groups:
            group["decay"] = 0.85 + 0.1 * (warm - cool)

    @torch.no_grad()
    def shown(self, model: GPT, update: int) -> GPT:
        """The model to evaluate after `update` updates, called after each from 2,400 on: 0.4 W +
        0.6 of an average of W over some 150 updates; the embedding is not averaged."""
        if update < self.averaged_from:
            return model
        blend = deepcopy(model)
        for name, weight in blend.named_parameters():
            if weight is not blend.embedding.weight:
                average = self._average.setdefault(name, weight.detach().clone())
                average.lerp_(weight, 1 / 150)
                weight.lerp_(average, 0.6)
        return blend


def _group(
    weights: list[nn.Parameter],
    lr: float,
    c: float,
    variance_decay: float = 0.9,
    is_corrected: bool = True,
) -> Group:
    # `c` makes the rate near the end: c · (updates to SCHEDULE) ** POWER, once that is below lr.
    rates = {"lr": lr, "initial_lr": lr, "c": c}
    betas = 0.8, variance_decay
    return {"params": weights, "betas": betas, "is_corrected": is_corrected, **rates}


@torch.no_grad()
def initialise(model: GPT) -> None:
    """What the record starts with in place of the baseline's: torch's Linear where nothing is 0,
    smaller feed-forward matrices in later layers, gains of 1 ∓ 0.125 before both parts."""
    last = max(1, len(model.blocks) - 1)
    for index, block in enumerate(model.blocks):
        for linear in (block.attention.q, block.attention.k, block.attention.v, block.into):
            linear.reset_parameters()
        block.into.weight.mul_(1 - 0.3 * index / last)
        sign = torch.randint_like(block.norm1.weight, 2) * 2 - 1
        block.norm1.weight.copy_(1 - 0.125 * sign)
        block.norm2.weight.copy_(1 + 0.125 * sign)


class Matrices(SoapMuon):
    """SOAP-Muon whose whitening of attention's outputs is trusted in part, and whose steps are
    controlled in their norms."""

    def __init__(self, groups: list[Group]) -> None:
        options = {"orthogonalisation": "convergent", "steps": 12, "eps": TINY, "nesterov": True}
        of_bases = {"precondition_every": 1, "variance_decay": 0.9}
        super().__init__(groups, lr=0.0375, decay=0.95, **options, **of_bases)

    @override
    def whitened(
        self, group: Group, gradient: Tensor, direction: Tensor, state: dict[str, Tensor]
    ) -> Tensor:
        white = super().whitened(group, gradient, direction, state)
        if not group["is_gated"]:
            return white
        white = white * (fourth_norms(direction) / fourth_norms(white).clamp_min(TINY))
        trust = (cosine(white, direction) - AGREEMENT) / (1 - AGREEMENT)
        aligned = cosine(white, gradient) / cosine(direction, gradient).clamp_min(TINY)
        least, most = trust_at(int(state["step"][0]) - 1)  # the step is counted already
        share = (trust.clamp(0, 1) * aligned.clamp(0, 1)).clamp(least, most)  # [matrices, 1, 1]
        return direction + (white - direction) * share

    @override
    def move(self, group: Group, weights: list[Tensor], update: Tensor) -> None:
        whole, lr = torch.stack(weights), group["lr"]
        along = inner(update, whole) / inner(whole, whole).clamp_min(1e-12)
        # The update is subtracted: where it points against the weight, the weight grows.
        update = update - (1 - OUTWARD) * along.clamp_max(0) * whole
        least = FLOOR * whole.norm(dim=-1, keepdim=True).clamp_min(TINY)
        update = update * (least / update.norm(dim=-1, keepdim=True).clamp_min(TINY)).clamp_min(1)
        radius = norms(whole).clamp_min(TINY)
        radius = (radius - lr * inner(update, whole) / radius).clamp_min(TINY)
        decays = update * whole > 0
        moved = whole - lr * update
        moved = moved * (radius / norms(moved).clamp_min(TINY)) * (1 - lr * DECAY * decays)
        torch._foreach_copy_(weights, list(moved.unbind()))


def trust_at(update: int) -> tuple[float, float]:
    """The least and the most of the whitening that is trusted at this update."""
    share = min(1.0, max(0.0, (TRUST_FADED - update) / (TRUST_FADED - TRUST_UNTIL)))
    return LEAST_TRUST * share, MOST_TRUST if update < TRUST_FADED else 1.0


def inner(a: Tensor, b: Tensor) -> Tensor:
    """The inner product of each matrix, [matrices, 1, 1]."""
    return (a * b).sum((-2, -1), keepdim=True)


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """The cosine between matrices, in the same shape."""
    return inner(a, b) / (norms(a) * norms(b)).clamp_min(TINY)
