"""The gap and the tax at a setting beyond the ladder: point, interval, and which form of the law.

The rungs are refitted many times with noise as large as theirs (a parametric bootstrap) in both
forms. The form that better foretold each rung from the others gives the point, and the interval
reaches around the intervals of both, unless the rungs refute one of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from analysis.forecast.ladder import Ladder
from analysis.forecast.laws import FORMS, SyncLaw, TaxLaw
from analysis.statistics.intervals import CONFIDENCE, Interval, Values

DRAWS = 400
"""Refits of each form."""
ENDS = (1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2
"""The quantiles of the refits at which an interval ends."""
SEED = 0
REFUTED = 0.01
"""A form without a floor does not count if its likelihood of the rungs, each foretold from the
others, is below this share of both forms' together. The form with a floor always counts, because
its floor may be nearly 0."""


@dataclass(frozen=True)
class Means:
    """Means over the seeds of each rung with their standard errors, [rungs] each.

    `freedom`: degrees of freedom of the errors.
    """

    gaps: Values
    gap_errors: Values
    losses: Values
    loss_errors: Values
    freedom: int
    spread: float
    """Standard deviation of one seed's gap, of all rungs together."""


def means(ladder: Ladder) -> Means:
    """The means of a ladder's rungs. The variance of a rung's gap is the mean of its own variance,
    which has few degrees of freedom, and of that of all rungs together."""
    counts = np.array([len(rung.gaps) for rung in ladder.rungs], dtype=float)
    own = np.array([rung.gaps.var(ddof=1) for rung in ladder.rungs])
    weights = (counts - 1) / (counts - 1).sum()
    pooled = float(weights @ own)
    of_losses = float(weights @ np.array([rung.losses.var(ddof=1) for rung in ladder.rungs]))
    return Means(
        gaps=np.array([rung.gaps.mean() for rung in ladder.rungs]),
        gap_errors=np.sqrt((own + pooled) / 2 / counts),
        losses=np.array([rung.losses.mean() for rung in ladder.rungs]),
        loss_errors=np.sqrt(of_losses / counts),
        freedom=int((counts - 1).sum()),
        spread=float(np.sqrt(pooled)),
    )


@dataclass(frozen=True)
class Form:
    """One form of the law of the tax, fitted."""

    form: str
    exponents: dict[str, float]
    held_out: float
    """Root mean square of the error of each rung foretold from the others, in nats per token."""
    likelihood: float
    """Likelihood of the rungs, each foretold from the others, as a share of both forms'."""

    @property
    def counts(self) -> bool:
        """Whether the interval reaches around it."""
        return FORMS[self.form] or self.likelihood >= REFUTED


@dataclass(frozen=True)
class Forecast:
    """A forecast at one setting; gaps in nats per token."""

    gap: float
    gap_interval: Interval
    """95 % interval of the mean gap of as many seeds as were asked for."""
    tax: float
    tax_interval: Interval


class Forecaster:
    """The laws of one ladder, which must support what is asked (`answer.why_not`). `seed`: of the
    draws."""

    def __init__(self, ladder: Ladder, seed: int = SEED, draws: int = DRAWS) -> None:
        self.ladder = ladder
        self.draws = draws
        self.random = np.random.default_rng(seed)
        self.means = means(ladder)
        self._gap_weights = self.means.gap_errors**-2.0
        self._loss_weights = self.means.loss_errors**-2.0
        self.sync = SyncLaw(ladder.settings)
        self.taxes = {name: TaxLaw(ladder.settings, has) for name, has in FORMS.items()}

    @cached_property
    def _held_out(self) -> dict[str, Values]:
        """For each form the errors of rungs foretold from the others, in nats, [rungs]."""
        others = 1.0 - np.eye(len(self.ladder.rungs))
        losses, gaps = (
            np.tile(values, (len(others), 1)) for values in (self.means.losses, self.means.gaps)
        )
        sync = self.sync.fit(losses, others * self._loss_weights)
        slopes = self.sync.slopes(sync, self.ladder.settings)
        weights = others * self._gap_weights
        return {
            name: self.means.gaps - np.diag(law.model(slopes)(law.fit(gaps, weights, slopes))[0])
            for name, law in self.taxes.items()
        }

    @cached_property
    def forms(self) -> list[Form]:
        """Both forms, the chosen one first: the one that foretold the rungs better."""
        errors = self._held_out
        scaled = {name: (each / self.means.gap_errors) ** 2 for name, each in errors.items()}
        # Errors beyond the noise of the rungs are the law's own: they count as noise of their size.
        unit = max(1.0, min(float(each.mean()) for each in scaled.values()))
        logarithms = {name: -0.5 * float(each.sum()) / unit for name, each in scaled.items()}
        highest = max(logarithms.values())
        likelihoods = {name: float(np.exp(value - highest)) for name, value in logarithms.items()}
        total = sum(likelihoods.values())
        forms = [
            Form(
                form=name,
                exponents={key: of[0] for key, of in law.exponents(self._best[name]).items()},
                held_out=float(np.sqrt((errors[name] ** 2).mean())),
                likelihood=likelihoods[name] / total,
            )
            for name, law in self.taxes.items()
        ]
        return sorted(forms, key=lambda form: -form.likelihood)

    @cached_property
    def exponents(self) -> dict[str, Interval]:
        """95 % intervals of p, q and r as far as they were fitted, around all forms that count."""
        counting = [form.form for form in self.forms if form.counts]
        drawn = [self.taxes[name].exponents(self._drawn[1][name]) for name in counting]
        return {
            name: _around([np.quantile(of_form[name], ENDS)[:, None] for of_form in drawn])[0]
            for name in drawn[0]
        }

    @cached_property
    def _best_slopes(self) -> Values:
        """Parameters of sync's law, [1, k]."""
        return self.sync.fit(self.means.losses[None], self._loss_weights[None])

    @cached_property
    def _best(self) -> dict[str, Values]:
        """For each form the parameters of the law of the tax, [1, k]."""
        slopes = self.sync.slopes(self._best_slopes, self.ladder.settings)
        return {
            name: law.fit(self.means.gaps[None], self._gap_weights[None], slopes)
            for name, law in self.taxes.items()
        }

    @cached_property
    def _drawn(self) -> tuple[Values, dict[str, Values]]:
        """Parameters [draws, k] of sync's law, and of each form."""
        fitted = self.sync.model()(self._best_slopes)[0][0]
        losses = self._noisy(
            self.means.losses, self.means.loss_errors, fitted, self.sync.num_parameters
        )
        every = np.ones_like(losses)
        parameters = self.sync.fit(losses, every * self._loss_weights)
        slopes = self.sync.slopes(parameters, self.ladder.settings)
        own = self.sync.slopes(self._best_slopes, self.ladder.settings)
        parameters_by_form = {}
        for name, law in self.taxes.items():
            fitted = law.model(own)(self._best[name])[0][0]
            gaps = self._noisy(self.means.gaps, self.means.gap_errors, fitted, law.num_parameters)
            parameters_by_form[name] = law.fit(gaps, every * self._gap_weights, slopes)
        return parameters, parameters_by_form

    def _noisy(self, seen: Values, errors: Values, fitted: Values, num_parameters: int) -> Values:
        """[draws, rungs]: `seen` with noise of its size, or of the misfit where it is larger."""
        freedom = len(seen) - num_parameters
        misfit = max(1.0, float((((seen - fitted) / errors) ** 2).sum()) / freedom)
        chi = self.random.chisquare(self.means.freedom, (self.draws, 1)) / self.means.freedom
        noise = self.random.standard_normal((self.draws, len(seen))) / np.sqrt(chi)
        return np.asarray(seen + np.sqrt(misfit) * errors * noise)

    def at(self, settings: Values, seeds: int) -> list[Forecast]:
        """Forecasts at settings [m, 3] (updates, tokens per update, parameters) for a mean of so
        many seeds."""
        chosen = self.forms[0].form
        slope = self.sync.slopes(self._best_slopes, settings)[0]
        excess = self.taxes[chosen].excess(self._best[chosen], settings)[0]
        gap_ends, tax_ends = (
            _around([np.quantile(of_form, ENDS, axis=0) for of_form in of_forms])
            for of_forms in self._outcomes(settings, seeds)
        )
        return [
            Forecast(float(gap), of_gap, float(tax), of_tax)
            for gap, of_gap, tax, of_tax in zip(
                slope * np.log1p(excess), gap_ends, 1 + excess, tax_ends, strict=True
            )
        ]

    def _outcomes(self, settings: Values, seeds: int) -> tuple[list[Values], list[Values]]:
        """Mean gaps of so many seeds, and taxes, [draws, m] for each form that counts."""
        sync, by_form = self._drawn
        slopes = self.sync.slopes(sync, settings)
        error = self.means.spread / np.sqrt(seeds)
        counting = [form.form for form in self.forms if form.counts]
        excesses = [self.taxes[name].excess(by_form[name], settings) for name in counting]
        gaps = [
            slopes * np.log1p(excess) + error * self.random.standard_normal(excess.shape)
            for excess in excesses
        ]
        return gaps, [1 + excess for excess in excesses]


def _around(ends: Sequence[Values]) -> list[Interval]:
    """[m]: the lowest lower and the highest upper of several pairs of ends [2, m]."""
    low, high = np.array(ends).transpose(1, 0, 2)
    return [*zip(low.min(axis=0).tolist(), high.max(axis=0).tolist(), strict=True)]
