"""The paper's claims: each is judged by its own rule, which was written before the runs."""

from importlib import import_module

from analysis.claims.audit import audited
from analysis.claims.claim import ALL_PARTS, Claim, Outcome, Verdict, judged, not_run

MODULES = ("optimizers", "swept", "architectures", "corrections", "switches", "downstream")
"""Modules of this package that hold CLAIMS, in the order of the report."""

CLAIMS: tuple[Claim, ...] = tuple(
    claim for name in MODULES for claim in import_module(f"{__name__}.{name}").CLAIMS
)

__all__ = ["ALL_PARTS", "CLAIMS", "Claim", "Outcome", "Verdict", "audited", "judged", "not_run"]
