"""A trained model as lm-eval asks it for the log-likelihoods of continuations."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from lm_eval.api.model import TemplateLM
from tokenizers import Tokenizer
from torch import Tensor, nn

from pipegap.trainer.base.build import build
from pipegap.trainer.base.code import use_code
from pipegap.trainer.data.chosen import tokenizer_of
from pipegap.trainer.models.export import load_final

LOGITS = 2**25
"""Entries of the logits of one batch, unless one sequence alone has more."""

Encoded = tuple[tuple[str, str], list[int], list[int]]
"""Context and continuation, and the tokens of each."""


class Continuation(NamedTuple):
    """The tokens whose likelihood is asked, by the request with the number `place`."""

    place: int
    answer: list[int]


class StageLM(TemplateLM):
    """A whole model as one stage, with its tokenizer.

    The context of an answer is cut from the left, so that inputs have at most `max_length` tokens.
    Every token of a longer answer is scored, after one token of its context. Answers on the same
    inputs, such as the letters of choices, cost one forward. lm-eval's own loop
    (`simple_evaluate`) can ask the model too, except for generated text. `end` is the token that
    ends a document.
    """

    def __init__(
        self, stage: nn.Module, tokenizer: Tokenizer, end: int, max_length: int, vocab_size: int
    ) -> None:
        super().__init__()
        self._stage = stage.eval().requires_grad_(False)
        self.tokenizer, self._end = tokenizer, end
        self.max_length, self._vocab_size = max_length, vocab_size
        self._device = next(stage.parameters()).device

    @property
    def eot_token_id(self) -> int:
        """The token that ends a document, which stands for an empty context."""
        return self._end

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **kwargs: Any
    ) -> list[int]:
        """The tokens of a text, none of them special."""
        return self.tokenizer.encode(string, add_special_tokens=False).ids

    def _loglikelihood_tokens(
        self, requests: list[Encoded], **kwargs: Any
    ) -> list[tuple[float, bool]]:
        """Return `_score` of each request."""
        groups: dict[tuple[int, ...], list[Continuation]] = {}
        for place, (_, context, answer) in enumerate(requests):
            kept = max(self.max_length, len(answer)) + 1
            inputs = tuple([*context, *answer][-kept:-1])
            groups.setdefault(inputs, []).append(Continuation(place, answer))
        scores: dict[int, tuple[float, bool]] = {}
        with torch.inference_mode():
            for batch in self._batches(sorted(groups, key=len, reverse=True)):
                for inputs, logits in zip(batch, self._logits(batch), strict=True):
                    for continuation in groups[inputs]:
                        score = _score(logits[: len(inputs)], continuation.answer)
                        scores[continuation.place] = score
        return [scores[place] for place in range(len(requests))]

    def _batches(self, inputs: Sequence[tuple[int, ...]]) -> list[list[tuple[int, ...]]]:
        """Cuts `inputs`, which are sorted from the longest to the shortest, into batches."""
        batches: list[list[tuple[int, ...]]] = []
        most = LOGITS // self._vocab_size
        for tokens in inputs:
            if not batches or (len(batches[-1]) + 1) * len(batches[-1][0]) > most:
                batches.append([])
            batches[-1].append(tokens)
        return batches

    def _logits(self, batch: Sequence[tuple[int, ...]]) -> Tensor:
        """Return logits, [batch, longest, vocab]. Padding follows on an input, which sees none."""
        padded = torch.zeros(len(batch), max(map(len, batch)), dtype=torch.int64)
        for row, inputs in enumerate(batch):
            padded[row, : len(inputs)] = torch.tensor(inputs)
        return self._stage(padded.to(self._device))

    def loglikelihood_rolling(self, requests: Any, disable_tqdm: bool = False) -> list[float]:
        """Raises NotImplementedError: tasks of multiple choice need none."""
        raise NotImplementedError("only tasks of multiple choice can be asked")

    def generate_until(self, requests: Any, disable_tqdm: bool = False) -> list[str]:
        """Raises NotImplementedError: tasks of multiple choice need none."""
        raise NotImplementedError("only tasks of multiple choice can be asked")


def _score(
    logits: Tensor,  # [seq, vocab], of the inputs, which the last answer token follows
    answer: list[int],
) -> tuple[float, bool]:
    """Return the log-likelihood of the answer, and whether each token is the likeliest one."""
    wanted = torch.tensor(answer, device=logits.device)
    last = logits[len(logits) - len(answer) :].double()  # an fp32 sum of 1,000 nats is 1e-4 off
    chances = last.log_softmax(-1).gather(-1, wanted[:, None])
    return float(chances.sum()), bool((last.argmax(-1) == wanted).all())


def final_model(
    config: Mapping[str, Any], folder: Path, max_length: int, device: torch.device
) -> StageLM:
    """Return the final model of the trial in `folder`, as one fp32 stage with its tokenizer.

    Raises BadInput if the weights are not those of the config's model, or the data has lost the
    tokenizer.
    """
    use_code(config.get("code"))
    model = build(config["model"])
    with torch.device("meta"):
        stage = model.stage(0, model.split(1, config["seq_len"]))
    stage = stage.to_empty(device="cpu")
    load_final(folder, model, stage)
    tokenizer, end = tokenizer_of(config["data"])
    ends_with = tokenizer.token_to_id(end)
    assert ends_with is not None, "the tokenizer has it"
    return StageLM(stage.to(device), tokenizer, ends_with, max_length, model.vocab_size)
