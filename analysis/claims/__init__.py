"""The paper's claims: each with its rule, written before the runs, and judged by it."""

from analysis.claims import corrections, optimizers, swept, switches
from analysis.claims.claim import ALL_PARTS, Claim, Outcome, Verdict, judged, not_run

CLAIMS = (*optimizers.CLAIMS, *swept.CLAIMS, *corrections.CLAIMS, *switches.CLAIMS)

__all__ = ["ALL_PARTS", "CLAIMS", "Claim", "Outcome", "Verdict", "judged", "not_run"]
