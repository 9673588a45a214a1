"""A model as one stage, with its initial weights."""

from torch import nn

from trainer.models.decoder import Decoder


def whole(recipe: Decoder, seed: int = 0) -> nn.Module:
    module = recipe.stage(0, recipe.split(1, 8))
    recipe.initialise(module, seed)
    return module
