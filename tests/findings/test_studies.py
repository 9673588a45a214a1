"""Predictions along the raw momentum are marin's equations, and survive a restart; the page judges
by its rule.
"""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from findings.look_ahead_fair.__main__ import DELAYED, SYNC, verdict
from findings.predictors import __main__ as page
from findings.study import TABLE, losses
from pipegap.analysis import load
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.config.compose import compose
from pipegap.trainer.corrections.none import NoCorrection
from pipegap.trainer.folder import record
from pipegap.trainer.optimizers.routing import kinds
from pipegap.trainer.schedules.operations import Schedule
from pipegap.trainer.schedules.recipes import pipedream, sync
from pipegap.trainer.trial import run_trial
from tests.oracles import semantics
from tests.oracles.corrections import History, Plain, WeightPrediction
from tests.support import small_sweep, toy
from tests.support.delayed import ADAMW, SGD_OF_DELAYED, assert_equal
from tests.support.every_correction import BETWEEN, Make, Setting, maker
from tests.support.own_files import as_in_a_new_process

NUM_UPDATES = 50
FOLDER = Path(page.__file__).parent
CODE = f"code={FOLDER / 'code'}"


def size(tensor: Tensor) -> Tensor:
    return (sum(entry**2 for entry in tensor.flatten()) / tensor.numel() + 1e-12) ** 0.5


class Momentum(Plain):
    """Ŵ = W(v) − lag · m · size(u_{v−1}) / size(m); m is written as the sum that it is."""

    def read(self, h: History, t: int) -> Tensor:
        v = t - h.delay[t]
        return h.W[v] if v in (0, t) else h.W[v] - self.move(h, v)

    def move(self, h: History, v: int) -> Tensor:
        return h.lag * self.momentum(h, v) * size(h.u[v - 1]) / size(self.momentum(h, v))

    def momentum(self, h: History, v: int) -> Tensor:
        return sum(0.05 * 0.95 ** (v - 1 - s) * h.g[s] for s in range(v))


class Trusted(Momentum):
    """No further than 1 % of the weight."""

    def move(self, h: History, v: int) -> Tensor:
        whole = super().move(h, v)
        return whole * min(1.0, float(0.01 * size(h.W[v]) / size(whole)))


class Cautious(Momentum):
    """Where momentum and update have one sign, over the share of these entries."""

    def move(self, h: History, v: int) -> Tensor:
        agrees = self.momentum(h, v) * h.u[v - 1] > 0
        share = int(agrees.sum()) / agrees.numel()
        return torch.where(agrees, super().move(h, v) / (share + 1e-12), 0)


REFERENCES = {
    "momentum_prediction": Momentum,
    "trusted_prediction": Trusted,
    "cautious_prediction": Cautious,
}
every = pytest.mark.parametrize("name", REFERENCES)


@pytest.fixture(autouse=True)
def _folder() -> Iterator[None]:
    with as_in_a_new_process():
        yield


def made(name: str) -> Make:
    return maker(compose([CODE, f"correction={name}"])["correction"])


def ends(make: Make) -> list[Tensor]:
    """The weights after 50 updates with delays of 3, 2, 1 and 0, by SGD in fp64 under a clip."""
    executor = toy.emulated(schedule(), SGD_OF_DELAYED, make, clip_norm=0.5)
    toy.run(executor, schedule().phases)
    return toy.weights(executor)


def schedule() -> Schedule:
    return pipedream(NUM_UPDATES, num_stages=4, num_microbatches=1, **BETWEEN)


def ends_of(reference: Plain) -> list[Tensor]:
    """The same, naively."""
    torch.set_num_threads(1)
    batches = [(b[:, :-1], b[:, 1:]) for b in map(toy.batch, range(NUM_UPDATES))]
    history, _ = semantics.train(
        toy.modules(4),
        schedule().lags,
        lambda stage: SGD_OF_DELAYED(
            [(kinds(stage)[name], p) for name, p in stage.named_parameters()]
        ),
        lambda t: SGD_OF_DELAYED.keywords["lr"] * toy.lr_factor(t),
        batches,
        toy.loss,
        Setting(schedule(), 3, NUM_UPDATES - 2).version,
        reference,
        clip_norm=0.5,
        microbatches=1,
    )
    return history[-1]


def distance(ours: list[Tensor], theirs: list[Tensor]) -> float:
    pairs = zip(ours, theirs, strict=True)
    return max(float((a - b).abs().max()) for a, b in pairs)


@every
def test_it_equals_its_equation_over_fifty_updates(name: str) -> None:
    theirs = ends_of(REFERENCES[name](SimpleNamespace(), NUM_UPDATES))
    assert distance(ends(made(name)), theirs) < 1e-12
    others = [Plain, WeightPrediction, *REFERENCES.values()]
    others.remove(REFERENCES[name])
    for other in others:  # otherwise another one would equal it too
        options = SimpleNamespace(horizon=1.0)
        assert distance(ends_of(other(options, NUM_UPDATES)), theirs) > 1e-5, other


@every
def test_it_survives_drains_and_a_restart(name: str, tmp_path: Path) -> None:
    """Bit for bit, by a checkpoint's file."""
    straight, drained, other = (toy.emulated(schedule(), ADAMW, made(name)) for _ in range(3))
    updates = toy.run(straight, schedule().phases)
    first = toy.run(drained, (0, 3, 7))
    record.save(tmp_path, 7, {"stages": [stage.state() for stage in drained._stages]}, 1)
    saved = record.load(record.newest_first(tmp_path)[0].path)["stages"]
    for stage, of_stage in zip(other._stages, saved, strict=True):
        stage.restore(of_stage)
    assert first + toy.run(other, (7, 20, 48, 50)) == updates
    assert_equal(other, toy.weights(straight))


@every
def test_without_delay_it_is_the_identity(name: str) -> None:
    fresh = sync(10, num_stages=2, num_microbatches=3)
    runs = [toy.emulated(fresh, ADAMW, make) for make in (NoCorrection, made(name))]
    plain, predicted = (toy.run(run, (0, 10)) for run in runs)
    assert plain == predicted


def test_a_trial_learns_with_it_and_a_compiled_one_refuses_it(tmp_path: Path) -> None:
    small_sweep.corpus(tmp_path)
    paths = [f"data.path={tmp_path / 'corpus'}", f"results={tmp_path / 'results'}"]
    words = [
        CODE,
        "correction=cautious_prediction",
        "pipeline=pipedream_2bw",
        *small_sweep.SMALL,
        *paths,
    ]
    assert run_trial(compose(words))["status"] == "completed"
    with pytest.raises(BadInput, match=r"correction=cautious_prediction: must not read ahead"):
        run_trial(compose([*words, "compile=update"]))


@pytest.mark.parametrize(
    ("noise", "gap", "word"),
    [(0.001, 0.02, "**agrees**"), (0.001, -0.02, "**disagrees**"), (0.02, 0.01, "not enough data")],
)
def test_a_statement_is_judged_by_its_interval(noise: float, gap: float, word: str) -> None:
    rng = np.random.default_rng(0)
    better = 2 + 0.05 * rng.standard_normal(page.NUM_SEEDS)
    worse = better + gap + noise * rng.standard_normal(page.NUM_SEEDS)
    of = pd.DataFrame({"pipedream": worse, "sync": better})
    assert page.verdict(of, "pipedream", "sync") == word


def test_the_statements_are_marins() -> None:
    """As the rule counts them: of two gaps apart, the larger one comes first."""
    assert len(page.STATEMENTS) == 21
    assert ("pipedream_momentum_prediction", "pipedream") in page.STATEMENTS
    assert ("constant_delay(5)_trusted_prediction", "constant_delay(5)_weight_prediction") in (
        page.STATEMENTS
    )
    tied = {"pipedream_momentum_prediction", "pipedream_cautious_prediction"}
    assert tied not in [{*pair} for pair in page.STATEMENTS]
    assert page.reported("pipedream", "pipedream_weight_prediction") == "+0.019"
    assert page.reported("constant_delay(5)_weight_prediction", "sync") == ""


def test_the_page_says_what_its_table_says() -> None:
    assert page.result(load(FOLDER / TABLE)) in (FOLDER / "README.md").read_text()


# The page on look-ahead judges by its rule, with both synchronous arms.


def of_gaps(noise: float, **gaps: float) -> pd.DataFrame:
    """Sixteen seeds of every arm, this far above sync; others 0.04."""
    rng = np.random.default_rng(0)
    sync = 2 + 0.05 * rng.standard_normal(16)
    columns = {
        arm: sync + gaps.get(arm.partition("(")[0], 0.04) + noise * rng.standard_normal(16)
        for arm in (*SYNC, *DELAYED)
    }
    return pd.DataFrame({**columns, "sync": sync})


@pytest.mark.parametrize(
    ("noise", "look", "arm", "word"),
    [
        (0.001, 0.01, 0.002, "**reaches it**"),
        (0.001, 0.01, 0.03, "**stays behind**"),
        (0.001, -0.02, 0.002, "**stays behind**"),  # the arm that looks ahead
        (0.001, -0.02, -0.015, "**reaches it**"),  # to within a fifth of the delay's gap
        (0.03, 0.01, 0.02, "not enough data"),
    ],
)
def test_the_better_synchronous_arm_decides(
    noise: float, look: float, arm: float, word: str
) -> None:
    of = of_gaps(noise, delay=0.04, sync_ema_nesterov=look, delay_ef=arm)
    assert verdict(of, "delay_ef") == word


def test_a_seed_counts_where_all_arms_ended() -> None:
    rows = [
        {"optimizer": "muon", "seed": seed, "arm": arm, "final_val_loss": 2.0}
        for seed in (200, 201)
        for arm in (*SYNC, *DELAYED)
    ]
    [of] = losses(pd.DataFrame(rows[:-1])).values()
    assert [*of.index] == [200]
