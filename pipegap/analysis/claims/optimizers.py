"""Claims about what a delay costs each optimizer, and what Error Feedback removes of that."""

from collections.abc import Sequence
from functools import partial
from itertools import product

import pandas as pd

from pipegap.analysis.claims.claim import Claim
from pipegap.analysis.claims.measure import (
    BETWEEN,
    FRAGILE,
    PAPER,
    ROBUST,
    Above,
    Column,
    Contrast,
    measured,
    more,
    of_points,
    removes,
    row,
)
from pipegap.analysis.claims.rule import ClaimRule, Comparison

SHARED = ("shared_rate", "tuned_shared")
"""The sweeps of all optimizers at AdamW's learning rate and weight decay, as in the paper."""
ALL = ("optimizers", *SHARED)
"""These and the one with each at its own learning rate."""
EACH = ("main", *ALL)
PAIRED = (
    "by the 95 % interval of the difference of their gaps, paired by seed: it is so where that "
    "lies above 0, contradicted where it lies below, else undecided; an optimizer of several "
    "points is taken at the one where sync is best on the first third of the seeds, and compared "
    "on the others"
)
MAIN_PAIR = [("muon", "adamw")]
AROUND_LION = [*product(ROBUST, [BETWEEN]), *product([BETWEEN], FRAGILE)]
SHARE = "the 95 % interval (Fieller) of the share that it removes"


def _costs(trials: pd.DataFrame) -> list[Comparison]:
    rows = measured(trials)
    rule = Above((Contrast("the gap", (1.0,)),))
    return [
        Comparison(name, [row("delay", delay)], rule, optimizer in PAPER)
        for optimizer, name, delay in of_points(rows[rows["arm"] == "delay"])
    ]


def _order(trials: pd.DataFrame, pairs: Sequence[tuple[str, str]]) -> list[Comparison]:
    """One per pair (less, more) of optimizers, whether or not there are trials of both."""
    rows = measured(trials)
    delay = rows[rows["arm"] == "delay"]
    column = {name: Column(name, delay[delay["optimizer"] == name]) for name in PAPER}
    return [
        more(f"{less} less than {greater}", column[less], column[greater])
        for less, greater in pairs
        if len(delay)
    ]


def _shares(trials: pd.DataFrame, rule: ClaimRule) -> list[Comparison]:
    """One per optimizer and point with Error Feedback."""
    # Of all columns of a large store, each of its many groups would take a copy.
    rows = measured(trials)[["optimizer", "setting", "point", "arm", "seed", "value"]]
    plain = dict(iter(rows[rows["arm"] == "delay"].groupby("point")))
    compared = []
    for optimizer, name, gaps_left in of_points(rows[rows["arm"] == "delay_ef"]):
        of_plain = plain.get(gaps_left["point"].iloc[0], rows[:0])
        arms = row("delay", of_plain), row("delay_ef", gaps_left)
        compared.append(Comparison(name, arms, rule, optimizer in PAPER))
    return compared


CLAIMS = (
    Claim(
        "delay_costs",
        "A one-step delay costs loss",
        "tables 1, 2 (360M: +0.010 for Adan to +0.278 for AdamW)",
        EACH,
        "For each optimizer of the paper: the 95 % interval of its mean paired gap lies above 0; "
        "contradicted where it lies below.",
        _costs,
    ),
    Claim(
        "adamw_over_muon",
        "It costs AdamW more than Muon",
        "tables 1, 2 (360M: +0.278 and +0.012)",
        ("main", *SHARED),
        f"AdamW's gap is larger than Muon's {PAIRED}.",
        partial(_order, pairs=MAIN_PAIR),
    ),
    Claim(
        "adamw_over_muon_own",
        "It costs AdamW more than Muon where each has its own learning rate and weight decay",
        "tables 1, 2 (360M: both at AdamW's)",
        ("tuned_own",),
        f"AdamW's gap is larger than Muon's {PAIRED}.",
        partial(_order, pairs=MAIN_PAIR),
    ),
    Claim(
        "robust_three",
        "It costs Muon less than SOAP, and SOAP less than AdamW",
        "tables 1, 2 (360M: +0.012, +0.027, +0.278)",
        SHARED,
        f"Each of the two pairs, {PAIRED}.",
        partial(_order, pairs=[("muon", "soap"), ("soap", "adamw")]),
    ),
    Claim(
        "order",
        "It costs AdamW and MARS more than Muon, NorMuon, SOAP and Adan",
        "tables 1, 2, figure 2",
        (*ALL, "fragile"),
        f"Each of the eight pairs, {PAIRED}.",
        partial(_order, pairs=[*product(ROBUST, FRAGILE)]),
    ),
    Claim(
        "lion_between",
        "Lion lies in between",
        "tables 1, 2, figure 2",
        ALL,
        f"Lion's gap is larger than that of each of {', '.join(ROBUST)}, smaller than that of each "
        f"of {', '.join(FRAGILE)}, {PAIRED}.",
        partial(_order, pairs=AROUND_LION),
    ),
    Claim(
        "ef_helps",
        "Error Feedback removes a part of the gap",
        "tables 1, 2",
        EACH,
        f"For each optimizer of the paper with a gap: {SHARE} lies above 0; contradicted where it "
        "lies below.",
        partial(_shares, rule=removes(0.0)),
    ),
    Claim(
        "ef_most",
        "Error Feedback removes 50 to 90 % of the gap",
        "tables 1, 2 (360M: 58 % of Muon's, 67 % of SOAP's, 90 % of AdamW's)",
        EACH,
        f"For each optimizer of the paper with a gap: {SHARE} lies within 50 to 90 %; contradicted "
        "where it lies outside of that altogether.",
        partial(_shares, rule=removes(0.5, 0.9)),
    ),
)
