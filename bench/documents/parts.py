"""The name of each part of a document → what makes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from bench.documents import others, sentences, sharpness, tables, theory

Part = Callable[[], str]

PARTS: Mapping[str, Part] = {
    "main": tables.main_table,
    "verdicts": sentences.verdict_table,
    "contradicted": sentences.contradicted,
    "taxes": tables.taxes,
    "taxes-of-others": tables.taxes_of_others,
    "conversions": tables.conversions,
    "optimizers": partial(tables.optimizers, "optimizers"),
    "rates": tables.tried_rates,
    "optimizers-verdicts": partial(sentences.verdicts, "optimizers"),
    "synchronous-start": tables.synchronous_start,
    "synchronous-start-verdicts": partial(sentences.verdicts, "synchronous_start"),
    "gradient-feedback": tables.gradient_feedback,
    "gradient-feedback-verdicts": partial(sentences.verdicts, "gradient_feedback"),
    "taylor": partial(tables.coefficients, "taylor", "taylor"),
    "taylor-verdicts": partial(sentences.verdicts, "taylor"),
    "momentum": tables.momentum,
    "momentum-verdicts": partial(sentences.verdicts, "momentum"),
    "coefficient": partial(tables.coefficients, "coefficient", "error_feedback"),
    "coefficient-verdicts": partial(sentences.verdicts, "coefficient"),
    "batch-size": tables.batch_size,
    "best-points": tables.best_points,
    "batch-size-verdicts": partial(sentences.verdicts, "batch_size"),
    "dtype": tables.dtypes,
    "dtype-trials": partial(sentences.counts, "dtype_trials"),
    "long-trials": partial(sentences.counts, "long_trials"),
    "long-rates": tables.rate_of_long,
    "long": partial(tables.optimizers, "shared_rate", "long"),
    "long-verdicts": partial(sentences.verdict_table, "long"),
    "long-contradicted": partial(sentences.contradicted, "long"),
    "long-parts": partial(sentences.verdicts, "shared_rate", scale="long"),
    "long-horizon-trials": partial(sentences.counts, "horizon_long_trials"),
    "long-horizon": tables.horizon,
    "forecasts": tables.forecasts,
    "forecast-beside": others.taxes,
    "forecast-exponents": others.exponents,
    "regimes": tables.regimes,
    "robust-three": partial(tables.regimes, "adamw", "muon", "soap"),
    "optimizers-trials": partial(sentences.counts, "optimizers_trials"),
    "synchronous-start-trials": partial(sentences.counts, "synchronous_start_trials"),
    "corrections-trials": partial(sentences.counts, "corrections_trials"),
    "momentum-trials": partial(sentences.counts, "momentum_trials"),
    "coefficient-trials": partial(sentences.counts, "coefficient_trials"),
    "batch-size-trials": partial(sentences.counts, "batch_size_trials"),
    "advice-trials": partial(sentences.counts, "advice_trials"),
    "same-time": sentences.same_time,
    "downstream": tables.downstream,
    "downstream-says": sentences.downstream,
    "theory-limits": theory.limits,
    "theory-beside": theory.beside,
    "theory-ranks": theory.ranks,
    "theory-coefficients": theory.best_coefficients,
    "theory-noise": theory.noise_regime,
    "sharpness": sharpness.shares,
    "sharpness-rank": sharpness.rank,
}
