"""What the trainer asks of a model, whatever its architecture, which layers each stage
gets, and how stages are compiled."""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from itertools import accumulate, pairwise
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from pipegap.trainer.optimizers.routing import Kind

Split = tuple[range, ...]
"""The layers of each stage."""


@lru_cache(maxsize=1024)
def balanced(work: tuple[float, ...], num_stages: int, head: float) -> Split:
    """The layers of each stage; the slowest stage is as fast as possible.

    `work` has the work of each layer, `head` is the work of the last stage beside its layers. Of
    equally good splits this is the one with more layers on the last stage; the stages before it
    are split by the same rule, as a model of their own without a head. So the first stages, which
    keep the activations of more microbatches, have fewer layers. The last stage may have none.
    """
    done = [0.0, *accumulate(work)]
    slowest = _slowest(done, num_stages - 1)
    cuts, head_work, least = [len(work)], head, 0
    for num_later_stages in range(num_stages - 1, 0, -1):
        end = cuts[-1]

        def rank(
            start: int,
            num_later_stages: int = num_later_stages,
            end: int = end,
            head_work: float = head_work,
        ) -> float:
            return max(slowest[num_later_stages][start], done[end] - done[start] + head_work)

        cuts.append(min(range(num_later_stages, end + 1 - least), key=rank))
        head_work, least = 0.0, 1
    return tuple(range(start, end) for start, end in pairwise([0, *reversed(cuts)]))


def _slowest(done: Sequence[float], num_stages: int) -> list[list[float]]:
    """At [k][n], the work of the slowest of k stages in the best split of the first n layers.

    `done[n]` is the work of these layers. With a later last cut the last stage has less work and
    the stages before it have more, so the best cut is where the two cross, or one before.
    """
    slowest = [[float("inf")] * len(done), list(done)]
    for k in range(2, num_stages + 1):
        previous_row, row, cut = slowest[-1], [float("inf")] * len(done), k - 1
        for n in range(k, len(done)):
            while cut < n - 1 and previous_row[cut] < done[n] - done[cut]:
                cut += 1
            cuts = range(max(k - 1, cut - 1), cut + 1)
            row[n] = min(max(previous_row[at], done[n] - done[at]) for at in cuts)
        slowest.append(row)
    return slowest


NOTHING: Mapping[str, Any] = MappingProxyType({})


class Pretrained(NamedTuple):
    """A model as Hugging Face's transformers store it.

    `config` is the content of its config.json, with all that its numbers depend on, and `tensors`
    are its weights by their names there. The rest is for checkpoints that others wrote. `defaults`
    are transformers' values of keys that a config.json may lack; one that depends on other keys is
    a function of them. `keys` says which key of the recipe a key of the config is. `tied` says of
    which tensor a name is another name. `ignored` are patterns (`re.search`) of names that
    transformers leaves out.
    """

    config: dict[str, Any]
    tensors: dict[str, Tensor]
    defaults: Mapping[str, Any] = NOTHING
    keys: Mapping[str, str] = NOTHING
    tied: Mapping[str, str] = NOTHING
    ignored: tuple[str, ...] = ()


class Recipe(Protocol):
    """A model that knows its size and makes any of its stages; it allocates no weights itself.

    A stage is a module. The first one takes tokens, int64 [batch, seq]; the others take hidden
    states [batch, seq, hidden_size]; the last one returns logits [batch, seq, vocab_size], or what
    the loss makes them of, `trainer.models.loss.Unprojected`. Weights
    have the same names for every number of stages. A weight that both the first and the last stage
    name is tied. Stages are in training mode, except for gradients of the plain loss alone, without
    terms that the model adds to it.
    """

    @property
    def vocab_size(self) -> int:
        """Number of tokens in the vocabulary, which must be the data's."""

    @property
    def hidden_size(self) -> int:
        """Width of the hidden states that stages send each other."""

    @property
    def activation_checkpointing(self) -> bool:
        """Whether layers are recomputed in their backward."""

    @property
    def num_parameters(self) -> int:
        """Parameters of the whole model; tied weights count once."""

    @property
    def num_active_parameters(self) -> int:
        """Parameters of the whole model without the experts that one token does not visit."""

    @property
    def not_exported(self) -> str | None:
        """Why transformers cannot hold this model; None if `pretrained` can be called."""

    def flops_per_token(self, seq_len: int) -> float:
        """FLOPs of forward and backward per token, in sequences of `seq_len` tokens."""

    def split(self, num_stages: int, seq_len: int) -> Split:
        """The layers of each stage. Raises BadInput if there cannot be that many stages."""

    def work(self, split: Split, seq_len: int) -> list[float]:
        """Multiplications per token of each stage in a forward; their ratios count."""

    def stage(self, index: int, split: Split) -> nn.Module:
        """The stage numbered `index`; its weights are undefined before `initialise`."""

    def initialise(self, module: nn.Module, seed: int) -> None:
        """Sets the initial weights of a stage: functions of the seed and of their names alone."""

    def kinds(self, module: nn.Module) -> dict[str, Kind]:
        """The kind of every weight of a stage, by name; optimizers treat a weight by its kind."""

    def pretrained(self, weights: Mapping[str, Tensor]) -> Pretrained:
        """The model with these weights, all of them by name, as transformers store it."""


compiled: Callable[..., Any] = partial(torch.compile, dynamic=False)
"""`torch.compile` for shapes that do not change: the last batch of an evaluation gets a graph of
its own, and does not make the training's one slower."""


def compiled_stage(module: nn.Module) -> Callable[[Tensor], Tensor]:
    """The module with what its `layers()` lists compiled, each by itself; else as a whole.

    Layers of one shape share one graph, in whichever stage they are. A graph per stage would be
    compiled for as long as the model is deep, would depend on where the model is cut, and beyond
    eight stages torch would run the others uncompiled.
    """
    if not hasattr(module, "layers"):
        return compiled(module)
    for layer in module.layers():  # type: ignore[operator]
        layer.compile(dynamic=False)
    return module
