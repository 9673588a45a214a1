"""The tensors of a checkpoint under the names that transformers gives them once they are loaded."""

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from pipegap.trainer.base.errors import BadInput, first_line, short, some
from pipegap.trainer.models.checkpoint_files import KEY, weight_files
from pipegap.trainer.models.recipe import Pretrained

NUMBERS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
"""Types whose values are the weights themselves; narrower ones have a scale beside them."""
IGNORED = (r"rotary_emb\.inv_freq",)
"""Names that transformers leaves out in every architecture: it makes such tensors of the config."""
OF_EXPERTS = {
    ".experts.gate_up_proj": ("gate_proj.weight", "up_proj.weight"),
    ".experts.down_proj": ("down_proj.weight",),
}
"""How stacks of all experts' matrices end, and the parts of one expert where files have them
expert by expert: the stack is [experts, parts one below the other, …]."""


class Tensors:
    """Files of weights, opened while it is entered."""

    def __init__(self, checkpoint: str, model: Pretrained) -> None:
        self._checkpoint, self._model = checkpoint, model
        self._stack = ExitStack()
        self._stored: dict[str, tuple[Any, str]] = {}

    def __enter__(self) -> "Tensors":
        """Raises BadInput unless the files hold the model's tensors and no others."""
        with self._stack as stack:
            for file in weight_files(self._checkpoint):
                content = stack.enter_context(self._opened(file))
                names: list[str] = content.keys()
                for name in names:
                    if name in self._stored:
                        raise self._bad(f"has {name} in two files: remove the one that is not its")
                    self._stored[name] = content, name
            self._stored = self._renamed()
            self._check_names()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        """Closes the files."""
        self._stack.close()

    def read(self) -> Iterator[tuple[str, Tensor]]:
        """The model's tensors by name, but for those that it has on the meta device.

        Raises BadInput if one has another size, or is no plain number.
        """
        for name, entries in self._model.tensors.items():
            if not entries.is_meta:
                yield name, self._tensor(name, entries.shape)
                self._check_copies(name, entries.shape)

    def _tensor(self, name: str, shape: Sequence[int]) -> Tensor:
        rows = self._rows(name)
        if rows == [[name]]:
            return self._part(name, shape)
        of_part = shape[1] // len(rows[0]), *shape[2:]
        return torch.stack([torch.cat([self._part(part, of_part) for part in row]) for row in rows])

    def _part(self, name: str, shape: Sequence[int]) -> Tensor:
        content, stored = self._stored[name]
        tensor: Tensor = content.get_tensor(stored)
        if tensor.dtype not in NUMBERS:
            raise self._bad(f"has {name} of {tensor.dtype}, which is no weight")
        if tuple(tensor.shape) != tuple(shape):
            raise self._bad(f"has {name} of {[*tensor.shape]}, this model of {[*shape]}")
        return tensor

    def _rows(self, name: str) -> list[list[str]]:
        """The names in the files of what makes a tensor: of each expert, or of all at once."""
        experts, dot, kind = name.rpartition(".experts.")
        parts = OF_EXPERTS.get(dot + kind)
        if parts is None or name in self._stored:
            return [[name]]
        number = self._model.tensors[name].shape[0]
        return [[f"{experts}{dot}{n}.{part}" for part in parts] for n in range(number)]

    def _renamed(self) -> dict[str, tuple[Any, str]]:
        """The stored names as the model's: with the prefix that files of the model without its head
        do not have, and an embedding by its own name if only its other name is there."""
        firsts = {
            name.partition(".")[0] for name in self._model.tensors.keys() - {"lm_head.weight"}
        }
        prefix = f"{firsts.pop()}." if len(firsts) == 1 else ""
        has_prefix = any(name.startswith(prefix) for name in self._stored)
        renamed = self._stored
        if not has_prefix:
            bare = {"lm_head.weight"}
            renamed = {(n if n in bare else prefix + n): at for n, at in renamed.items()}
        for other, name in self._model.tied.items():
            if name not in renamed and other in renamed:
                renamed[name] = renamed.pop(other)
        return renamed

    def _check_names(self) -> None:
        needed = {part for name in self._model.tensors for row in self._rows(name) for part in row}
        if lacking := sorted(needed - self._stored.keys()):
            raise self._bad(f"lacks {some(lacking)}, which this model needs")
        ignored = "|".join((*IGNORED, *self._model.ignored))
        others = sorted(self._stored.keys() - needed - self._model.tied.keys())
        if more := [name for name in others if not re.search(ignored, self._stored[name][1])]:
            allowed = f"has {some(more)}, which this model has not: remove from its files"
            raise self._bad(f"{allowed} what is not meant to count")

    def _check_copies(self, name: str, shape: Sequence[int]) -> None:
        """Raises BadInput if another name of the tensor has other values."""
        for other, of in self._model.tied.items():
            if of != name or other not in self._stored:
                continue
            if not torch.equal(self._part(other, shape), self._part(name, shape)):
                allowed = f"has another {other} than {name}, which its config.json ties to it: set"
                raise self._bad(f"{allowed} tie_word_embeddings=false there, and in the model")

    def _opened(self, file: Path) -> Any:
        try:
            return safe_open(file, "pt")
        except SafetensorError as error:
            problem = short(first_line(error))
            raise self._bad(f"has {file.name}, which is not whole ({problem})") from None

    def _bad(self, allowed: str) -> BadInput:
        return BadInput(KEY, self._checkpoint, allowed)
