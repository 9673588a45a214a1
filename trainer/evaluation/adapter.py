"""A model of this package as lm-eval asks it: the log-likelihood of a continuation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from lm_eval.api.model import TemplateLM
from tokenizers import Tokenizer
from torch import Tensor, nn

LOGITS = 2**25
"""Entries of the logits of one batch, unless one sequence alone has more."""

Encoded = tuple[tuple[str, str], list[int], list[int]]
"""Context and continuation, and the tokens of each."""


class Asked(NamedTuple):
    """`answer`: the tokens whose likelihood is asked, the last ones that follow on `inputs`."""

    place: int
    inputs: tuple[int, ...]
    answer: list[int]


class StageLM(TemplateLM):
    """A whole model as one stage, with its tokenizer.

    What an answer follows on is cut from the left, so that inputs have at most `max_length` tokens;
    of an answer that is longer, every token is scored, and one of the context stays. Answers on
    the same inputs, as the letters of a choice are, cost one forward. lm-eval's own loop can ask it
    too (`simple_evaluate`), but for text that it would have to generate. `end`: the token that ends
    a document.
    """

    def __init__(
        self,
        stage: nn.Module,
        tokenizer: Tokenizer,
        end: int,
        max_length: int,
        vocab_size: int,
    ) -> None:
        super().__init__()
        self._stage = stage.eval().requires_grad_(False)
        self.tokenizer, self._end = tokenizer, end
        self.max_length, self._vocab_size = max_length, vocab_size
        self._device = next(stage.parameters()).device

    @property
    def eot_token_id(self) -> int:
        """The token that ends a document; an empty context is this one."""
        return self._end

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **kwargs: Any
    ) -> list[int]:
        """The tokens of a text, none of them special."""
        tokens: list[int] = self.tokenizer.encode(string, add_special_tokens=False).ids
        return tokens

    def _loglikelihood_tokens(
        self, requests: list[Encoded], **kwargs: Any
    ) -> list[tuple[float, bool]]:
        """Of each request the sum over its answer's tokens, and whether each is the likeliest."""
        asked = [self._asked(index, *tokens) for index, (_, *tokens) in enumerate(requests)]
        groups: dict[tuple[int, ...], list[Asked]] = {}
        for one in asked:
            groups.setdefault(one.inputs, []).append(one)
        found: dict[int, tuple[float, bool]] = {}
        with torch.inference_mode():
            for batch in self._batches(sorted(groups, key=len, reverse=True)):
                for inputs, logits in zip(batch, self._logits(batch), strict=True):
                    for one in groups[inputs]:
                        found[one.place] = _score(logits[: len(inputs)], one.answer)
        return [found[index] for index in range(len(requests))]

    def _asked(self, index: int, context: list[int], answer: list[int]) -> Asked:
        kept = max(self.max_length, len(answer)) + 1
        return Asked(index, tuple([*context, *answer][-kept:-1]), answer)

    def _batches(self, inputs: Sequence[tuple[int, ...]]) -> list[list[tuple[int, ...]]]:
        """In order, which is from the longest to the shortest."""
        batches: list[list[tuple[int, ...]]] = []
        most = LOGITS // self._vocab_size
        for one in inputs:
            if not batches or (len(batches[-1]) + 1) * len(batches[-1][0]) > most:
                batches.append([])
            batches[-1].append(one)
        return batches

    def _logits(self, batch: Sequence[tuple[int, ...]]) -> Tensor:
        """[batch, longest, vocab]; what follows on an input is padding, which it does not see."""
        padded = torch.zeros(len(batch), max(map(len, batch)), dtype=torch.int64)
        for row, inputs in enumerate(batch):
            padded[row, : len(inputs)] = torch.tensor(inputs)
        logits: Tensor = self._stage(padded.to(self._device))
        return logits

    def loglikelihood_rolling(self, requests: Any, disable_tqdm: bool = False) -> list[float]:
        """Not asked by tasks of multiple choice."""
        raise NotImplementedError("only tasks of multiple choice can be asked")

    def generate_until(self, requests: Any, disable_tqdm: bool = False) -> list[str]:
        """Not asked by tasks of multiple choice."""
        raise NotImplementedError("only tasks of multiple choice can be asked")


def _score(logits: Tensor, answer: list[int]) -> tuple[float, bool]:
    """Of the answer that follows on inputs with these logits, [seq, vocab]."""
    wanted = torch.tensor(answer, device=logits.device)
    last = logits[len(logits) - len(answer) :].double()  # an fp32 sum of 1,000 nats is 1e-4 off
    chances = last.log_softmax(-1).gather(-1, wanted[:, None])
    return float(chances.sum()), bool((last.argmax(-1) == wanted).all())
