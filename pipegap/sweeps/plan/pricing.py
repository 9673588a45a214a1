"""What sweeps will cost, before they run: trials, tokens, FLOPs, hours, memory, storage; and which
gap their seeds detect."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipegap.analysis.table.text import aligned
from pipegap.sweeps.plan import devices
from pipegap.sweeps.plan.sweep_plan import Round, SweepPlan
from pipegap.sweeps.request.command_line import Request
from pipegap.sweeps.request.expand import Trial, value_of
from pipegap.sweeps.request.schema import keys, scale_file
from pipegap.trainer.base.build import made
from pipegap.trainer.base.children import num_cores
from pipegap.trainer.base.cli import duration
from pipegap.trainer.base.errors import some
from pipegap.trainer.config.compose import Composer, parse_word
from pipegap.trainer.config.identity import data_place, names
from pipegap.trainer.config.plan import Plan, which_optimizer
from pipegap.trainer.config.work import peak_bytes
from pipegap.trainer.data.shards import Source

if TYPE_CHECKING:
    from pipegap.analysis.statistics.gaps import Spread

STARTS = 15.0
"""Seconds by the clock from the plan to the first trial, and from the last one to the report: Ray's
start, libraries in its workers, figures."""
NODE = 8
"""GPUs that a plan counts with where this machine has none."""
CONTEXT = 1e9
"""Bytes of a GPU that its context and libraries take beside a trial (bench/README.md)."""
NO_MEMORY = {"seed", "choices", "num_updates", "tokens_per_parameter", "lr_schedule", "data"}
"""Keys that do not change the memory of an update."""
EVEN = 0.8
"""If the speed-up of p ranks is below this share of p, the plan says how the model is cut."""
HALF_WIDTH = 0.01
"""Nats per token: a plan says how many seeds give this precision, as small as the gaps of robust
optimizers."""


@dataclass(frozen=True)
class Cost:
    """What trials take that have still to run."""

    unit: str
    total: float
    """Seconds of one unit (a core or a GPU), all ranks together."""
    longest: float
    """Seconds of the longest trial."""

    def clock(self, num_units: int) -> float:
        """Return the seconds by the clock on so many units, if they are never idle."""
        return max(self.total / num_units, self.longest)


def costs(sweep_round: Round, todo: Sequence[Trial]) -> list[Cost]:
    """Return what these trials take, on cores and on GPUs."""
    seconds, costs_of_trials = sweep_round.expected.seconds, []
    for name in dict.fromkeys(map(devices.unit, todo)):
        ids = {t.trial_id: t for t in todo if devices.unit(t) == name}
        gpus = sweep_round.request.gpus_per_trial
        amounts = {key: devices.occupied(t, gpus) for key, t in ids.items()}
        # By the clock of a trial, times the units that it occupies meanwhile.
        total = sum(seconds[key] * amount for key, amount in amounts.items())
        costs_of_trials.append(Cost(name, total, max(seconds[key] for key in ids)))
    return costs_of_trials


def as_json(sweep_round: Round) -> dict[str, Any]:
    """Return the plan for programs: what each trial is and takes, in seconds of one process, and
    what those to do take in all, in seconds of a core or a GPU."""
    todo, expected = {trial.trial_id for trial in sweep_round.todo}, sweep_round.expected
    return {
        "sweeps": [
            {"sweep": sweep.label, "trials": len(sweep.planned), "settled": sweep.settled}
            for sweep in sweep_round.sweeps
        ],
        "costs": [
            {"unit": cost.unit, "seconds": round(cost.total), "longest": round(cost.longest)}
            for cost in costs(sweep_round, sweep_round.todo)
        ],
        "trials": [
            {
                "trial": trial.trial_id,
                "name": trial.name,
                "arm": trial.arm,
                "seed": trial.config["seed"],
                "todo": trial.trial_id in todo,
                "num_updates": trial.plan.num_updates,
                "tokens": trial.plan.tokens,
                "flops": trial.plan.flops,
                "seconds": round(expected.seconds[trial.trial_id], 1),
                "measured": trial.trial_id in expected.measured,
            }
            for trial in sweep_round.planned
        ],
        "remarks": [
            line
            for sweep in sweep_round.sweeps
            for line in (*_by_scale(sweep_round.request, sweep), *sweep.remarks)
        ],
    }


def _lines(sweep_round: Round) -> Iterator[str]:
    """Yield the plan: what is asked for, what is done, what the rest will cost."""
    trials, todo = sweep_round.planned, sweep_round.todo
    num_asked = sum(len(sweep.planned) for sweep in sweep_round.sweeps)
    counts = f"{len(trials)} unique, {len(trials) - len(todo)} done, {len(todo)} to do"
    yield f"trials    {num_asked} asked, {counts}"
    yield from _table(sweep_round)
    yield (
        f"tokens    {sum(t.plan.tokens for t in todo):.3g} to train on, all trials "
        f"together; {max(t.plan.tokens for t in trials):.3g} in the longest trial"
    )
    flops = sum(trial.plan.flops for trial in todo)
    yield f"compute   {flops:.3g} floating-point operations (FLOPs) to do"
    if todo:
        yield from _time(sweep_round, costs(sweep_round, todo))
        if compiler := sweep_round.expected.compiler:
            yield (
                f"compiler  {duration(compiler)}, once on a machine: the first trials compile "
                "graphs that all others share"
            )
    yield _models(trials)
    yield _memory(trials, sweep_round.request.gpus_per_trial)
    yield _storage(trials, todo)
    yield from dict.fromkeys(filter(None, (_uneven_cut(t.plan) for t in trials)))
    yield from _warnings(trials)
    if closed := sweep_round.snapshot.closed:
        yield f"warning   {closed}"


def _table(sweep_round: Round) -> Iterator[str]:
    """Yield one row per sweep; `shared` are trials that a row above has too."""
    rows, ids_counted = [], set[str]()
    for sweep in sweep_round.sweeps:
        new = [trial for trial in sweep.distinct if trial.trial_id not in ids_counted]
        ids_counted |= {trial.trial_id for trial in new}
        rows.append(_row(sweep_round, sweep.label, sweep.distinct, new))
    if len(rows) > 1:
        planned = [trial for sweep in sweep_round.sweeps for trial in sweep.distinct]
        rows.append(_row(sweep_round, "together", planned, sweep_round.planned))
    places = ", ".join(dict.fromkeys(f"on {_where(sweep_round, t)}" for t in sweep_round.planned))
    yield from aligned([("sweep", "trials", "shared", "done", "to do", places), *rows], str.rjust)


def _row(
    sweep_round: Round, label: str, trials: Sequence[Trial], new: Sequence[Trial]
) -> tuple[str, ...]:
    ids = {trial.trial_id for trial in sweep_round.todo}
    todo = [trial for trial in new if trial.trial_id in ids]
    counts = len(trials), len(trials) - len(new), len(new) - len(todo), len(todo)
    clock = sum(cost.clock(_num_units(sweep_round, cost.unit)) for cost in costs(sweep_round, todo))
    clock += STARTS + devices.compiler_seconds(todo)  # as if this sweep ran alone
    return (label, *(f"{count:,}" for count in counts), duration(clock) if todo else "-")


def _num_units(sweep_round: Round, name: str) -> int:
    """Return the GPUs that the plan counts with, or the cores that this process may use."""
    if name != "GPU":
        return num_cores()
    import torch

    return sweep_round.request.gpus or torch.cuda.device_count() or NODE


def _where(sweep_round: Round, trial: Trial) -> str:
    number = _num_units(sweep_round, devices.unit(trial))
    return f"{number} {devices.unit(trial)}{'s' * (number > 1)}"


def _time(sweep_round: Round, costs_of_trials: Sequence[Cost]) -> Iterator[str]:
    """Yield the line on what all of it takes, and what the estimate rests on; and the line on the
    price of the hours, if it was asked for."""
    total = " and ".join(f"{duration(cost.total)} of one {cost.unit}" for cost in costs_of_trials)
    longest = max(cost.longest for cost in costs_of_trials)
    assumed = [t for t in sweep_round.todo if t.trial_id not in sweep_round.expected.measured]
    sources = (
        f"{len(sweep_round.todo) - len(assumed)} of {len(sweep_round.todo)} trials by the time "
        "that finished ones of their shape took"
    )
    if assumed:
        rates = " and ".join(dict.fromkeys(map(_rates, assumed)))
        sources += f"; {len(assumed)} by counted FLOPs and bytes, at {rates}"
    yield (
        f"time      {total}, longest trial {duration(longest)}, start and evaluation included "
        f"({sources})"
    )
    if hourly := sweep_round.request.hourly:
        hours = {cost.unit: cost.total / 3600 for cost in costs_of_trials}
        parts = (f"{_rounded(number)} {name} hours" for name, number in hours.items())
        money = _rounded(hourly * sum(hours.values()), 2)
        yield f"price     {money}: {' and '.join(parts)}, {hourly:g} each"


def _rounded(number: float, digits: int = 1) -> str:
    """Return a number with so many digits behind the point; below 1, with two significant ones."""
    return f"{number:,.{digits}f}" if number >= 1 or number == 0 else f"{number:.2g}"


def _rates(trial: Trial) -> str:
    """Say where the rates come from that price a trial."""
    device = devices.device_of(trial.config)
    if device.is_gpu:
        return f"the rates assumed of {device.name}"
    return f"rates measured on a core on {devices.measured().day}"


def summary(sweep_round: Round) -> str:
    """Return the lines of a plan: what the sweeps cost, and which gap their seeds detect."""
    request, lines = sweep_round.request, [*_lines(sweep_round)]
    for sweep in sweep_round.sweeps:
        open_or_chosen = [*_label(sweep), *_by_scale(request, sweep), *sweep.estimate]
        open_or_chosen += sweep.remarks if request.dry_run else []
        if len(sweep_round.sweeps) == 1:
            lines += [*_precision(request.results, sweep), *open_or_chosen]
        else:
            lines += [f"{sweep.label}: {' '.join(line.split())}" for line in open_or_chosen]
    return "\n".join(lines)


def _label(sweep: SweepPlan) -> Iterator[str]:
    """Yield a line on the other requests that the store has of a sweep; none if there are none."""
    if sweep.request.others:
        yield f"label     {sweep.label}; other words have other labels: {sweep.request.others}"


def _by_scale(request: Request, sweep: SweepPlan) -> Iterator[str]:
    """Yield a line on the optimizers whose own files say other rates than the scale sets for all of
    them; none if there are none. What the grid or a person sets is no news to that person."""
    compose = Composer()
    words = {parse_word(word).key: word for word in sweep.sweep.base}  # the last of a key counts
    code = [word for word in sweep.sweep.base if word.startswith("code=")]
    of_scale = [
        key
        for key in keys(scale_file(request.scale))
        if key.startswith("optimizer.") and words.get(key) in request.if_there
    ]
    optimizers: dict[str, list[str]] = {}  # rates of a file in words → optimizers
    differing_keys: set[str] = set()
    for choice in sweep.choices:
        config, of_grid = choice.point.configs["sync"], keys(choice.point.overrides)
        file = compose.node([*code, f"optimizer={(name := names(config)['optimizer'])}"])
        rates = {key: value_of(file, key) for key in of_scale if key not in of_grid}
        rates = {
            key: rate for key, rate in rates.items() if rate not in (None, value_of(config, key))
        }
        differing_keys |= {*rates}
        of_file = optimizers.setdefault(", ".join(f"{k}: {v:g}" for k, v in rates.items()), [])
        of_file += [name] if name not in of_file else []
    optimizers.pop("", None)
    if optimizers:
        of_files = [f"{', '.join(owners)} {words_of}" for words_of, owners in optimizers.items()]
        rates_of_last, last_optimizers = [*optimizers.items()][-1]
        rates_of_scale = ", ".join(words[key] for key in of_scale if key in differing_keys)
        yield (
            f"rates     {rates_of_scale} for all by scale={request.scale}; own files say "
            f"{'; '.join(of_files).replace('optimizer.', '').replace(': ', ' ')}; to keep them: "
            f"'grid.optimizer=[{{optimizer: {last_optimizers[-1]}, {rates_of_last}}}]'"
        )


def _precision(results: Path, sweep: SweepPlan) -> Iterator[str]:
    """Yield the line of a plan on the gap that the sweep's seeds detect.

    In nats per token, by the spread of its pairs in the store; in units of the spread without any.
    """
    n = len(sweep.sweep.seeds)
    if n < 2:
        yield "power     1 seed gives no interval: no gap can be told from chance"
        return
    from pipegap.analysis.statistics.pairs import detectable_gap, seeds_needed  # scipy is slow

    measured: Mapping[str, Spread] = {}
    if (results / "trials").is_dir():
        from pipegap.analysis.statistics.gaps import spreads  # pandas is slow too

        measured = spreads(results, sweep.compared)
    in_sd = (
        f"power     {n} seeds show a mean gap of {detectable_gap(1, n):.3g} standard deviations "
        "(sd) of the paired gaps in 80 % of cases"
    )
    if not measured:
        yield (
            f"{in_sd}; none is measured here yet "
            f"(an interval of ± half a sd needs {seeds_needed(1, 0.5)} seeds)"
        )
        return
    optimizers = [
        f"{optimizer} {detectable_gap(spread.sd, n):.2g} (sd {spread.sd:.2g} of {spread.num_pairs} "
        f"pairs; {seeds_needed(spread.sd, HALF_WIDTH)} seeds for ±{HALF_WIDTH:g})"
        for optimizer, spread in measured.items()
    ]
    yield f"{in_sd}; by what is measured here, in nats per token: {', '.join(optimizers)}"


def _warnings(trials: Sequence[Trial]) -> Iterator[str]:
    unprepared = {data_place(t.config) for t in trials if t.plan.data_hash is None}
    if unprepared:
        yield (
            f"data      {', '.join(sorted(unprepared))} is not prepared here: trials that ran on "
            "it elsewhere count as to do, and evaluation is not counted"
        )
    if (passes := max(_passes(trials), default=0.0)) > 1:
        yield f"data      {passes:.3g} passes over its tokens in the longest trial"
    idle = sum(trial.plan.corrects_nothing for trial in trials)
    if idle:
        yield (
            f"warning   {idle} trials have a correction and no delay: "
            "they repeat the numbers of the trials without"
        )


def _passes(trials: Sequence[Trial]) -> Iterator[float]:
    """Yield how often the longest trial on each data sees a token; 0 where nobody knows."""
    nodes = {json.dumps(t.config["data"]): t.config["data"] for t in trials if t.plan.data_hash}
    for key, node in nodes.items():
        source: Source = made("data", node, Source)
        num_tokens = getattr(source, "num_training_tokens", None)  # None before they are prepared
        longest = max(t.plan.tokens for t in trials if json.dumps(t.config["data"]) == key)
        yield longest / num_tokens if num_tokens else 0.0


def _models(trials: Sequence[Trial]) -> str:
    """Return the line on the distinct models."""
    distinct = {(t.plan.num_parameters, t.plan.num_active_parameters): t for t in trials}
    models = []
    for (whole, active), trial in distinct.items():
        of_token = f", {active:,} active per token" * (active < whole)
        models.append(f"{names(trial.config)['model']} {whole:,} parameters{of_token}")
    return f"models    {some(models)}"


def _memory(trials: Sequence[Trial], gpus_per_trial: float) -> str:
    """Return the line on the memory of a rank, and whether that fits its GPU."""
    states = in_bytes(max(trial.plan.memory_bytes for trial in trials))
    most = _peak(trials)
    of_trial = f"memory    up to {in_bytes(most)} per rank in an update, of it {states} weights and"
    on_gpus = [trial for trial in trials if devices.unit(trial) == "GPU"]
    if not on_gpus:
        return f"{of_trial} states"
    device = devices.device_of(on_gpus[0].config)
    # The last bundle: the first one of a gang is its supervisor's, which has no GPU.
    sharing = int(1 / devices.bundles(on_gpus[0], gpus_per_trial)[-1]["GPU"])
    needed = sharing * (_peak(on_gpus) + CONTEXT)
    of_gpu = f"{sharing} trials share a GPU: " * (sharing > 1)
    fits = "fit" if needed <= device.memory else "do not fit"
    return (
        f"{of_trial} states; {of_gpu}{in_bytes(needed)} with its libraries {fits} "
        f"{in_bytes(device.memory)} of {device.name}"
    )


def _peak(trials: Sequence[Trial]) -> int:
    """Return the most memory that an update of these trials needs on one rank."""
    kinds: dict[str, Trial] = {}  # one trial of those that need the same: to count takes long
    for trial in trials:
        config = {**trial.config, **which_optimizer(trial.config)}
        kinds[json.dumps({k: v for k, v in config.items() if k not in NO_MEMORY})] = trial
    return max(peak_bytes(trial.config, trial.plan.num_updates) for trial in kinds.values())


def _storage(trials: Sequence[Trial], todo: Sequence[Trial]) -> str:
    """Return the line on storage. A true pipeline also writes what its ranks have sent."""
    stored = f"about {in_bytes(sum(trial.plan.kept_bytes for trial in trials))} kept of all trials"
    if not todo:
        return f"storage   {stored}"
    # The old checkpoint stays until the new one is whole.
    most = max((2 + (t.config["runner"] != "emulated")) * t.plan.checkpoint_bytes for t in todo)
    return (
        f"storage   {stored}, and up to {in_bytes(most)} for each that runs "
        "(two checkpoints, estimated from its parameters; a third while ranks write)"
    )


def in_bytes(number: float) -> str:
    """Return a number of bytes with three digits, in the unit that suits it."""
    for name in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.3g} {name}"
        number /= 1000
    return f"{number:.3g} TB"


def _uneven_cut(plan: Plan) -> str | None:
    """Return the line on how the model is cut; None if the ranks are nearly equal."""
    work = plan.work_by_rank
    speed_up = sum(work) / max(work)
    if speed_up >= EVEN * len(work):
        return None
    layers = ", ".join(map(str, plan.layers_by_stage))
    return (
        f"split     stages of {layers} layers: {len(work)} ranks are at most {speed_up:.3g} times "
        "as fast as one"
    )
