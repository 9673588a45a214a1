"""Weights in files, as transformers stores them: what a training starts from and what it leaves.

A recipe's export only moves entries: `pretrained` of tensors that hold the numbers of entries says
which entry of the checkpoint is which of ours. So every recipe that can be exported can be loaded.
"""

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from pipegap.trainer.base.atomic import write_atomically
from pipegap.trainer.base.errors import BadInput, first_line, short, some
from pipegap.trainer.models.checkpoint_files import KEY, published_config, weight_files
from pipegap.trainer.models.decoder import Pretrained, Recipe

FINAL = "final.safetensors"
CHANGES_NOTHING = {"architectures", "initializer_range", "dtype", "bos_token_id", "eos_token_id"}
"""Keys of a published config on which neither the weights nor the outputs of the model depend."""
OURS = {"rope_type": "default", "quantization_config": None, "transformers_weights": None}
"""Values of all our recipes: plain rotary positions, and weights that are the files' numbers."""
NUMBERS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
"""Types whose values are the weights themselves; narrower ones have a scale beside them."""
IGNORED = (r"rotary_emb\.inv_freq",)
"""Names that transformers leaves out in every architecture: it computes them from the config."""
OF_EXPERTS = {
    ".experts.gate_up_proj": ("gate_proj.weight", "up_proj.weight"),
    ".experts.down_proj": ("down_proj.weight",),
}
"""End of the name of a stack of all experts' matrices → the names of one expert's parts, where the
files hold them expert by expert: the stack is [experts, parts one below the other, …]."""


def save_final(weights: Mapping[str, Tensor], recipe: Recipe, folder: Path) -> None:
    """Writes final.safetensors, and final/, which transformers' `from_pretrained` loads.

    Of a model that transformers does not have, final.safetensors holds the weights by our own
    names, and there is no final/.
    """
    if recipe.not_exported is not None:
        _save(weights, folder / FINAL)
        return
    config, tensors, *_ = recipe.pretrained(weights)
    _save(tensors, folder / FINAL)
    pretrained = folder / "final"
    pretrained.mkdir(exist_ok=True)
    write_atomically(pretrained / "config.json", json.dumps(config, indent=1).encode())
    _link(folder / FINAL, pretrained / "model.safetensors")


def _save(tensors: Mapping[str, Tensor], path: Path) -> None:
    content = save({name: w.cpu().contiguous() for name, w in tensors.items()}, {"format": "pt"})
    write_atomically(path, content)


def _link(source: Path, target: Path) -> None:
    target.unlink(missing_ok=True)  # of an earlier attempt
    try:
        os.link(source, target)  # the weights lie on the disk once
    except OSError:  # a file system without hard links
        shutil.copyfile(source, target)


Start = Callable[[Recipe, nn.Module, int], None]
"""(recipe, stage, seed): sets the weights of the stage."""


def start_from(checkpoint: str | None) -> Start:
    """How a training starts; None: from the seed."""
    if checkpoint is None:
        return lambda recipe, module, seed: recipe.initialise(module, seed)
    return partial(_from_checkpoint, checkpoint)


def check_start(recipe: Recipe, checkpoint: str | None) -> None:
    """Raises BadInput unless the recipe makes the model of the checkpoint."""
    if checkpoint is None:
        return
    if (problem := recipe.not_exported) is not None:
        raise BadInput(KEY, checkpoint, f"cannot hold this model, which {problem}")
    check_config(recipe.pretrained(_whole(recipe)), checkpoint)


@torch.no_grad()
def _from_checkpoint(checkpoint: str, recipe: Recipe, module: nn.Module, seed: int) -> None:
    """Raises BadInput if the checkpoint lacks a weight, has another one, or one of another size."""
    check_start(recipe, checkpoint)
    # In place of its values, each entry of this stage gets its number in `values`. The weights of
    # other stages stay on the meta device, and `Tensors.read` leaves them out.
    numbered, total = _whole(recipe), 0
    for name, weight in module.named_parameters():
        entries = torch.arange(total, total + weight.numel())
        numbered[name], total = entries.view(weight.shape), total + weight.numel()
    exported, values = recipe.pretrained(numbered), torch.empty(total)
    with Tensors(checkpoint, exported) as tensors:
        for name, entries in tensors.read():
            # The export has moved the numbers to where the file holds their values.
            values[exported.tensors[name].flatten()] = entries.flatten().float()
    for name, weight in module.named_parameters():
        weight.copy_(values[numbered[name]])


def _whole(recipe: Recipe) -> dict[str, Tensor]:
    """All weights by name, without memory."""
    with torch.device("meta"):
        return dict(recipe.stage(0, recipe.split(1, 1)).named_parameters())


def check_config(model: Pretrained, checkpoint: str) -> None:
    """Raises BadInput unless transformers makes this model from the checkpoint's config.json.

    A key that is absent, or null, means transformers' default.
    """
    published = _flat(published_config(checkpoint))
    ours = {"model_type": model.config.get("model_type"), **OURS, **model.config}
    plain = {key: value for key, value in model.defaults.items() if not callable(value)}
    values = OURS | plain | {k: value for k, value in published.items() if value is not None}
    # Last, the keys whose defaults are functions of other keys: those are equal to ours by then.
    missing_keys = [key for key in ours if key not in values and key in model.defaults]
    for key in (*(key for key in ours if key not in missing_keys), *missing_keys):
        if key in CHANGES_NOTHING:
            continue
        if key in missing_keys:
            values[key] = _computed(key, model.defaults[key], values, checkpoint)
        if key not in values and key not in published:
            allowed = f"has no {key} in its config.json, where this model has {ours[key]}: add it"
            raise BadInput(KEY, checkpoint, allowed)
        if (published_value := values.get(key)) != ours[key]:
            allowed = _differs(key, published_value, ours[key], published, model.keys)
            raise BadInput(KEY, checkpoint, allowed)


def _computed(key: str, default: Any, values: Mapping[str, Any], checkpoint: str) -> Any:
    """A default that depends on other keys; raises BadInput if their values do not allow one."""
    try:
        return default(values)
    except (TypeError, ValueError, ArithmeticError) as error:
        allowed = f"has no {key} in its config.json, nor keys that determine it ({error})"
        raise BadInput(KEY, checkpoint, allowed) from None


def _differs(
    key: str, published_value: Any, ours: Any, published: Mapping[str, Any], keys: Mapping[str, str]
) -> str:
    """The difference, and the key of the recipe that would end it."""
    says = f"has {key}={short(published_value)}, this model has {short(ours)}"
    if key not in published:
        says = f"has no {key} in its config.json, which means {short(published_value)}; "
        says += f"this model has {short(ours)}"
    return f"{says}: set model.{keys[key]}={short(published_value)}" if key in keys else says


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config with the settings of its rotary positions as keys of the config itself.

    Older configs have them there, and their kind in `rope_scaling`; newer ones have all of them in
    `rope_parameters`. transformers reads one of these dicts, which comes before the config's keys.
    """
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if not isinstance(rope, dict) or any(isinstance(value, dict) for value in rope.values()):
        rope = {"rope_type": rope}  # no kind, or one for each kind of layer
    if (kind := rope.get("rope_type", rope.get("type"))) is not None:
        rope = {**rope, "rope_type": kind}
    return {**config, **rope}


class Tensors:
    """A context in which the weight files of a checkpoint are open."""

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
                        raise self._bad(f"has {name} in two files: remove the wrong file")
                    self._stored[name] = content, name
            self._stored = self._renamed()
            self._check_names()
            self._stack = stack.pop_all()  # without an error the files stay open, until `__exit__`
        return self

    def __exit__(self, *error: object) -> None:
        """Closes the files."""
        self._stack.close()

    def read(self) -> Iterator[tuple[str, Tensor]]:
        """The model's tensors by name, but for those that it has on the meta device.

        Raises BadInput if one has another size, or does not hold plain numbers.
        """
        for name, entries in self._model.tensors.items():
            if not entries.is_meta:
                yield name, self._tensor(name, entries.shape)
                self._check_copies(name, entries.shape)

    def _tensor(self, name: str, shape: Sequence[int]) -> Tensor:
        rows = self._rows(name)
        if rows == [[name]]:
            return self._part(name, shape)
        # [experts, parts · rows, columns] is made of len(rows) · len(rows[0]) parts.
        size = shape[1] // len(rows[0]), *shape[2:]
        return torch.stack([torch.cat([self._part(part, size) for part in row]) for row in rows])

    def _part(self, name: str, shape: Sequence[int]) -> Tensor:
        content, stored = self._stored[name]
        tensor: Tensor = content.get_tensor(stored)
        if tensor.dtype not in NUMBERS:
            raise self._bad(f"has {name} of {tensor.dtype}, which is no weight")
        if tuple(tensor.shape) != tuple(shape):
            raise self._bad(f"has {name} of {[*tensor.shape]}, this model of {[*shape]}")
        return tensor

    def _rows(self, name: str) -> list[list[str]]:
        """The names in the files of the parts of a tensor: a row per expert, or the whole one."""
        experts, dot, kind = name.rpartition(".experts.")
        parts = OF_EXPERTS.get(dot + kind)
        if parts is None or name in self._stored:
            return [[name]]
        number = self._model.tensors[name].shape[0]
        return [[f"{experts}{dot}{n}.{part}" for part in parts] for n in range(number)]

    def _renamed(self) -> dict[str, tuple[Any, str]]:
        """The stored tensors by the model's names.

        Files of a model without its head lack the prefix of the names, such as `model.`. A tied
        embedding may be there under its other name alone.
        """
        without_prefix = {"lm_head.weight"}
        firsts = {name.partition(".")[0] for name in self._model.tensors.keys() - without_prefix}
        prefix = f"{firsts.pop()}." if len(firsts) == 1 else ""
        renamed = self._stored
        if not any(name.startswith(prefix) for name in self._stored):
            renamed = {(n if n in without_prefix else prefix + n): at for n, at in renamed.items()}
        for copy_name, name in self._model.tied.items():
            if name not in renamed and copy_name in renamed:
                renamed[name] = renamed.pop(copy_name)
        return renamed

    def _check_names(self) -> None:
        needed = {part for name in self._model.tensors for row in self._rows(name) for part in row}
        if lacking := sorted(needed - self._stored.keys()):
            raise self._bad(f"lacks {some(lacking)}, which this model needs")
        ignored = "|".join((*IGNORED, *self._model.ignored))
        unexpected = sorted(self._stored.keys() - needed - self._model.tied.keys())
        if more := [name for name in unexpected if not re.search(ignored, self._stored[name][1])]:
            problem = f"has {some(more)}, which this model does not have"
            raise self._bad(f"{problem}: remove it from its files")

    def _check_copies(self, name: str, shape: Sequence[int]) -> None:
        """Raises BadInput if the files hold other values under another name of the tensor."""
        for copy_name, of in self._model.tied.items():
            if of != name or copy_name not in self._stored:
                continue
            if not torch.equal(self._part(copy_name, shape), self._part(name, shape)):
                problem = f"has another {copy_name} than {name}, which its config.json ties to it"
                fix = "set tie_word_embeddings=false there, and in the model"
                raise self._bad(f"{problem}: {fix}")

    def _opened(self, file: Path) -> Any:
        try:
            return safe_open(file, "pt")
        except SafetensorError as error:
            problem = short(first_line(error))
            raise self._bad(f"has {file.name}, which is not whole ({problem})") from None

    def _bad(self, allowed: str) -> BadInput:
        return BadInput(KEY, self._checkpoint, allowed)
