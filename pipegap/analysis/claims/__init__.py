"""The paper's claims: each is judged by its own rule, which was written before the runs."""

from importlib import import_module
from pkgutil import iter_modules

from pipegap.analysis.claims.rule import (
    ALL_PARTS,
    Claim,
    Outcome,
    Verdict,
    audited,
    deciding,
    judged,
    not_run,
)

ORDER = ("optimizers", "corrections")
"""Modules whose claims come first in a report. Those of any other module here follow by name."""


def _claims() -> tuple[Claim, ...]:
    """The CLAIMS of every module of this package that has some."""
    names = [module.name for module in iter_modules(__path__)]
    other_modules = sorted({*names} - {*ORDER})
    modules = [import_module(f"{__name__}.{name}") for name in (*ORDER, *other_modules)]
    return tuple(claim for module in modules for claim in getattr(module, "CLAIMS", ()))


CLAIMS = _claims()

__all__ = [
    "ALL_PARTS",
    "CLAIMS",
    "Claim",
    "Outcome",
    "Verdict",
    "audited",
    "deciding",
    "judged",
    "not_run",
]
