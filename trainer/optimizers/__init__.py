"""Optimizers by kind of parameter, a family a file; libraries' where a faithful one exists.

Positional arguments come from the trial, keywords from conf/optimizer/. A group's options and a
weight's state are plain data and tensors, and all that an optimizer remembers.
"""

from trainer.optimizers.adam import adamw, adan, ademamix, adopt, mars, nadamw
from trainer.optimizers.adamuon import adamuon
from trainer.optimizers.averaging import evaluated, schedule_free_adamw
from trainer.optimizers.dion import dion
from trainer.optimizers.kronecker import kron, shampoo, soap
from trainer.optimizers.muon import muon, normuon
from trainer.optimizers.routing import Kind, Parameters, kinds
from trainer.optimizers.scion import scion
from trainer.optimizers.sgd import sgd, sgdw
from trainer.optimizers.sign import lion, signum
from trainer.optimizers.sophia import sophia

__all__ = [
    "Kind",
    "Parameters",
    "adamuon",
    "adamw",
    "adan",
    "ademamix",
    "adopt",
    "dion",
    "evaluated",
    "kinds",
    "kron",
    "lion",
    "mars",
    "muon",
    "nadamw",
    "normuon",
    "schedule_free_adamw",
    "scion",
    "sgd",
    "sgdw",
    "shampoo",
    "signum",
    "soap",
    "sophia",
]
