"""Devices: what a trial occupies of them, and the seconds that trials will take there.

Seconds come from finished trials of the same shape in the store, or else from counted work.
"""

import json
import os
import platform
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import date
from functools import cache, partial
from hashlib import sha256
from itertools import chain
from math import ceil, inf
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, get_args

import yaml
from annotated_types import Interval
from pydantic import TypeAdapter

from pipegap.sweeps.request.expand import Expected, Trial
from pipegap.trainer.base.atomic import write_json
from pipegap.trainer.base.build import build, published, use_code
from pipegap.trainer.base.children import num_cores
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.base.former import YOUNGER
from pipegap.trainer.base.places import cache_folder
from pipegap.trainer.config.identity import without_younger
from pipegap.trainer.config.plan import FORWARD, Plan, which_optimizer
from pipegap.trainer.config.work import StageWork, to_compile, work
from pipegap.trainer.folder import lease
from pipegap.trainer.folder.wellformed import CONFIG, read
from pipegap.trainer.models.decoder import Recipe
from pipegap.trainer.schedules.operations import Schedule
from pipegap.trainer.schedules.proof import steady
from pipegap.trainer.store.snapshot import Snapshot

if TYPE_CHECKING:
    from pipegap.trainer.corrections.none import NoCorrection


# What a trial occupies, and the seconds of a trial by its counted work.
#
# The work is counted on a GPU at the rates of devices.yaml, and on a core at the rates that this
# machine was measured to reach: in a second, once per machine and version of torch. On a core
# trials reach shares of what plain loops of torch reach. These shares were fitted to trials of
# `tiny` and `few_updates` on one core of a Zen 4 (bench/README.md).

TABLE = Path(__file__).with_name("devices.yaml")
CORE = "core"
OF_STEP = 2 / 3
"""The share of the rate of products that those of an optimizer reach: its matrices are small."""
KEYS = (
    *("model", "optimizer", "pipeline", "correction", "code", "runner", "num_replicas", "device"),
    *("batch_size", "seq_len", "dtype", "eval_dtype", "compile"),
)
"""What the seconds of an update and of an evaluation depend on; of the optimizer, which it is."""

Config = Mapping[str, Any]


def bundles(trial: Trial, gpus_per_trial: float) -> list[dict[str, float]]:
    """Return the placement group of a trial: its process and, for a gang, one bundle per rank.

    The process that supervises a gang takes nothing. A rank has a whole GPU: two ranks on one would
    wait for each other.
    """
    cpus = {"CPU": float(trial.config["num_threads"])}
    on_gpus = trial.config["device"] != "cpu"
    if trial.config["runner"] == "emulated":
        return [{**cpus, "GPU": gpus_per_trial} if on_gpus else cpus]
    return [{}, *[{**cpus, "GPU": 1.0} if on_gpus else cpus] * trial.plan.num_processes]


def require_room(needed: Sequence[Mapping[str, float]], available: Mapping[str, float]) -> None:
    """Raise BadInput if a cluster with these resources is too small for a trial's bundles."""
    for key, resource in (("device", "GPU"), ("num_threads", "CPU")):
        amount = sum(bundle.get(resource, 0.0) for bundle in needed)
        if available.get(resource, 0) < amount:
            ranks = f" for its {len(needed) - 1} ranks" if len(needed) > 1 else ""
            allowed = f"a trial needs {amount:g} {resource}{ranks}, "
            raise BadInput(key, amount, f"{allowed}Ray has {available.get(resource, 0):g}")


def unit(trial: Trial) -> str:
    """Return the resource that the price of the trial counts: GPU or core."""
    return CORE if trial.config["device"] == "cpu" else "GPU"


def occupied(trial: Trial, gpus_per_trial: float) -> float:
    """Return how many units the trial occupies, all ranks together."""
    resource = {CORE: "CPU", "GPU": "GPU"}[unit(trial)]
    return sum(bundle.get(resource, 0.0) for bundle in bundles(trial, gpus_per_trial))


def compiler_seconds(trials: Sequence[Trial]) -> float:
    """Return the seconds by the clock in which all cores of this machine compile what these trials
    need and it has not yet."""
    configs = [trial.config for trial in trials if trial.config["compile"] == "update"]
    needed = to_compile(configs, measured().operation) if configs else {}
    return sum(needed.values()) / num_cores()


SECONDS = 0.25
"""How long each of the four loops is measured."""
SIDE, IN_CACHE, CALLS = 256, 2**18, 100
"""Rows of a product, numbers of a sum that stays in a cache, and calls of one small operation."""


Dtype = Literal["float32", "bfloat16"]
"""The dtypes of trials."""
PerSecond = Annotated[float, Interval(gt=1e6, lt=1e18)]
"""What a core can reach: a number beyond was not measured, and the file is not trusted."""


class Rates(NamedTuple):
    """FLOP/s of products by dtype, bytes/s of sums in a cache, seconds of a small operation."""

    products: dict[Dtype, PerSecond]
    bytes: PerSecond
    operation: Annotated[float, Interval(gt=1e-12, lt=1)]
    day: str = ""
    """When they were measured, as YYYY-MM-DD."""


class Shares(NamedTuple):
    """What a trial reaches of `Rates`; a layer and microbatch take so many `operations`."""

    products: float
    attention: Mapping[str, float]
    bytes: float
    operations: float


PLAIN = Shares(0.8, {"float32": 0.28, "bfloat16": 0.11}, 0.65, 2000)
COMPILED = Shares(0.97, {"float32": 0.22, "bfloat16": 0.12}, 0.2, 200)
"""With `compile=update`."""


@cache
def measured() -> Rates:
    """Return the rates of one core of this machine, from the cache folder if its file has them all.

    Else they are measured, whatever the file holds.
    """
    path = _rates_file()
    with suppress(OSError, ValueError):
        rates = RATES.validate_json(path.read_bytes())
        if {*rates.products} == {*get_args(Dtype)} and date.fromisoformat(rates.day):
            return rates
    rates = measure()._replace(day=date.today().isoformat())
    with suppress(OSError):  # the next process measures again
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, rates._asdict())
    return rates


@cache
def measure_again() -> None:
    """Replace the measured rates by those of today: the core may have been busy on that day.

    A process does so once, for trials may disagree with any rates.
    """
    with suppress(OSError):
        _rates_file().unlink(missing_ok=True)
    measured.cache_clear()
    _counted.cache_clear()


def _rates_file() -> Path:
    import torch

    machine = f"{socket.gethostname()} {platform.processor()} {_model()} {torch.__version__}"
    return cache_folder() / f"rates-{sha256(machine.encode()).hexdigest()[:16]}.json"


def measure() -> Rates:
    """Measures for about a second. The fastest of many calls counts: others may use the core."""
    import torch

    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the rates are those of one core
    try:
        products = {}
        for name in get_args(Dtype):
            dtype = getattr(torch, name)
            matrix, out = torch.ones(SIDE, SIDE, dtype=dtype), torch.empty(SIDE, SIDE, dtype=dtype)
            seconds = _fastest(partial(torch.mm, matrix, matrix, out=out))
            products[name] = 2 * SIDE**3 / seconds
        first, second, total = torch.ones(3, IN_CACHE)  # three rows of 1 MiB in fp32
        moved = 3 * IN_CACHE * first.itemsize  # two rows are read, one is written
        in_cache = moved / _fastest(lambda: torch.add(first, second, out=total))
        small = torch.zeros(16)
        calls = _fastest(lambda: [small.add_(small) for _ in range(CALLS)])
        return Rates(products, in_cache, calls / CALLS)
    finally:
        torch.set_num_threads(num_threads)


RATES = TypeAdapter(Rates)
"""The form of the file of measured rates."""


def _fastest(call: Callable[[], object]) -> float:
    call()  # the first call starts libraries
    end, fastest = time.perf_counter() + SECONDS, float("inf")
    while (start := time.perf_counter()) < end:
        call()
        fastest = min(fastest, time.perf_counter() - start)
    return fastest


def _model() -> str:
    """The name of the processor, where Linux says it."""
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        return next((line for line in file if line.startswith("model name")), "")
    return ""


@dataclass(frozen=True)
class Device:
    """What trials reach on a device, per second."""

    name: str
    products: Mapping[str, float]
    """FLOP/s of matrix products, by dtype."""
    attention: Mapping[str, float]
    """FLOP/s of attention, by dtype."""
    bytes: float
    """Bytes/s of its memory, read or written."""
    host: float
    """Seconds of the host per layer and microbatch."""
    memory: float = inf
    """The size of its memory in bytes; that of a host is taken to suffice."""
    steps: Mapping[str, float] = field(default_factory=dict)
    """FLOP/s of an optimizer's products, by dtype, where they are not OF_STEP of `products`."""

    @property
    def is_gpu(self) -> bool:
        """Whether the host works while the device does."""
        return self.name != CORE

    def passes(self, stages: Sequence[StageWork], dtype: str) -> float:
        """Return the seconds of forward and backward through these stages in `dtype`."""
        kernels = sum(
            of.products / self.products[dtype]
            + of.attention / self.attention[dtype]
            + of.bytes / self.bytes
            for of in stages
        )
        host = self.host * sum(of.launches for of in stages)
        # A GPU works off its queue while the host fills it; a core does one after the other.
        return max(kernels, host) if self.is_gpu else kernels + host

    def update(self, stages: Sequence[StageWork], dtype: str) -> float:
        """Return the seconds of the update of these stages' weights."""
        rates = {name: OF_STEP * rate for name, rate in self.products.items()} | dict(self.steps)
        return sum(
            of.update / self.bytes + of.step / rates[of.step_dtype or dtype] for of in stages
        )


@cache
def known_devices() -> dict[str, Device]:
    """Return the GPUs of the table, by name."""
    rows: dict[str, Any] = yaml.safe_load(TABLE.read_text("utf-8"))
    return {name: Device(name, **row) for name, row in rows.items()}


def device_of(config: Config) -> Device:
    """Return what the trial of a config runs on, as far as this machine knows.

    A core, the GPU of this machine with its own memory, or without one the first GPU of the table.
    """
    return _gpu() if config["device"] != "cpu" else core(measured(), config["compile"])


def core(rates: Rates, compiles: bool | str) -> Device:
    """Return what trials reach on a core with these rates."""
    shares = COMPILED if compiles == "update" else PLAIN
    products: dict[str, float] = {
        dtype: shares.products * rate for dtype, rate in rates.products.items()
    }
    attention: dict[str, float] = {
        dtype: shares.attention[dtype] * rate for dtype, rate in rates.products.items()
    }
    host = shares.operations * rates.operation
    # Small products in bf16 are no faster than those in fp32. On a core without instructions for
    # them they are as slow as large ones, which were measured.
    steps: dict[str, float] = {
        dtype: min(rate, OF_STEP * products["float32"]) for dtype, rate in rates.products.items()
    }
    return Device(CORE, products, attention, shares.bytes * rates.bytes, host, steps=steps)


@cache
def _gpu() -> Device:
    import torch

    gpus = [*known_devices().values()]
    if not torch.cuda.is_available():
        return gpus[0]
    device_name = torch.cuda.get_device_name()
    gpu_here = next((gpu for gpu in gpus if gpu.name in device_name), gpus[0])
    return replace(gpu_here, memory=float(torch.cuda.get_device_properties().total_memory))


def counted_seconds(config: Config, plan: Plan) -> float:
    """Return the seconds of training and evaluation, each process with its own core or GPU."""
    update, forward = counted_update_and_forward(config, plan.num_updates)
    # The evaluations' tokens over those of training: FORWARD is a forward's share of the FLOPs.
    evaluated = plan.evaluation_flops / (FORWARD * plan.flops)
    return plan.num_updates * (update + forward * evaluated)


def counted_update_and_forward(config: Config, num_updates: int) -> tuple[float, float]:
    """Return `of_update_and_forward` of a trial on the device of its config; counted once for all
    trials that differ in nothing that matters to it."""
    facts = {key: config[key] for key in KEYS} | which_optimizer(config)
    return _counted(json.dumps(facts, sort_keys=True), num_updates)  # text: a dict has no hash


@cache
def _counted(node: str, num_updates: int) -> tuple[float, float]:
    config = json.loads(node)
    use_code(config["code"])
    return of_update_and_forward(config, num_updates, device_of(config))


def of_update_and_forward(config: Config, num_updates: int, device: Device) -> tuple[float, float]:
    """Return the seconds of an update, and of a forward in evaluation of as many tokens.

    An update of a true pipeline takes as long as its schedule says, with messages that take no
    time.
    """
    model: Recipe = build(config["model"])
    schedule: Schedule = build(config["pipeline"], num_updates)
    correction: NoCorrection = build(config["correction"], num_updates, schedule.lags)
    evaluates = {**config, "dtype": config["eval_dtype"]}
    training, evaluation = (
        _by_rank(pass_config, schedule, work(pass_config, model, schedule, correction))
        for pass_config in (config, evaluates)
    )
    forward = max(FORWARD * device.passes(rank, evaluates["dtype"]) for rank in evaluation)
    passes = [device.passes(rank, config["dtype"]) for rank in training]
    updates = [device.update(rank, config["dtype"]) for rank in training]
    if len(training) == 1:
        return passes[0] + updates[0], forward
    operations = schedule.num_microbatches * schedule.num_chunks  # forwards of a rank in a batch
    costs = [
        _costs(pass_seconds / operations, u)
        for pass_seconds, u in zip(passes, updates, strict=True)
    ]
    return steady(schedule, costs)[0], forward


def _by_rank(
    config: Config, schedule: Schedule, stages: Sequence[StageWork]
) -> list[Sequence[StageWork]]:
    """Return the work of each process of one replica, stage by stage."""
    if config["runner"] == "emulated":
        return [stages]
    ranks = map(schedule.stages, range(schedule.num_ranks))
    return [[stages[stage] for stage in rank] for rank in ranks]


def _costs(forward_and_backward: float, update: float) -> dict[str, float]:
    """Return the seconds of each kind of operation, from those of a forward with its backward."""
    backward = (1 - FORWARD) * forward_and_backward
    halves = {"I": backward / 2, "W": backward / 2}  # by input and by weight: as many FLOPs
    return {"F": FORWARD * forward_and_backward, "B": backward, **halves, "U": update}


# The seconds that trials will take, start and evaluation included: by the pace of finished trials
# of their shape, or else by their counted work.

ASSUMED_START = 0.35
"""Seconds that a trial takes besides (bench/README.md): to build its parts, to write its record."""
SHAPE = (
    *("model", "seq_len", "batch_size", "num_replicas", "dtype", "runner", "num_threads"),
    *("eval_tokens", "eval_dtype"),
)
"""Keys that trials of one shape share, with the device, `compile`, stages and microbatches."""
MAX_READ = 2_000
"""How many trials of the store are read beside those of the plan, the newest first."""
OFF, MOST_COMPARED, LEAST_SECONDS = 2.0, 20, 1.0
"""Measured rates are measured again where trials take this many times as long as counted, or as
short: so many trials at most, the newest of the store, that trained for some time."""


class Pace(NamedTuple):
    """What a trial takes, by the clock."""

    tokens_per_second: float
    """The speed of the training alone."""
    seconds_per_evaluation: float
    """The time of everything else, start and checkpoints included, divided by its evaluations."""


Paces = dict[str, dict[str, list[Pace]]]
"""Shape → optimizer and pipeline → the paces of finished trials."""


def expected(
    store: Path,
    trials: Sequence[Trial],
    todo: Sequence[Trial],
    snapshot: Snapshot,
    gpus_per_trial: float,
) -> Expected:
    """Return what these trials take, by the results that were seen, and the compiler before those
    `todo`.

    Those of a shape that no finished trial has are counted. If the finished ones of other shapes
    disagree with what is counted of them, the rates of this machine are measured again.
    """
    paces, ratios = _paces(store, trials, snapshot)
    to_count = [trial for trial in trials if shape(trial.config) not in paces]
    # First of all: the new rates price what is counted below.
    if to_count and ratios and not 1 / OFF < median(ratios) < OFF:
        measure_again()
    seconds_counted = dict[str, float]()
    for trial in to_count:  # on all the cores or GPUs that it occupies
        per_process = occupied(trial, gpus_per_trial) / trial.plan.num_processes
        work_seconds = counted_seconds(trial.config, trial.plan) / per_process
        seconds_counted[trial.trial_id] = ASSUMED_START + work_seconds
    by_pace = {t.trial_id: _seconds(t, paces) for t in trials if t.trial_id not in seconds_counted}
    return Expected({**by_pace, **seconds_counted}, compiler_seconds(todo), by_pace.keys())


def _paces(store: Path, trials: Sequence[Trial], snapshot: Snapshot) -> tuple[Paces, list[float]]:
    """Return the paces of these trials; for shapes without a finished one, those of others of the
    store. And `_times_counted` of finished trials of any shape, if shapes are missing."""
    paces: Paces = {}
    finished = [(t.folder, t.config, result) for t in trials if (result := snapshot.finished(t))]
    for _, config, result in finished:
        _add(paces, config, result)
    missing = {shape(trial.config) for trial in trials} - paces.keys()
    for folder in _newest(store / "trials") if missing else []:
        with suppress(OSError, ValueError, LookupError):  # not a trial, or an older one
            config = read(folder / "config.json", CONFIG)
            is_alike = shape(config) in missing
            is_read = is_alike or len(finished) < MOST_COMPARED
            if is_read and (result := snapshot.result(folder)) is not None:
                finished.append((folder, config, result))
                if is_alike:
                    _add(paces, config, result)
    compared = [_times_counted(*trial) for trial in finished[:MOST_COMPARED]] if missing else []
    return paces, [ratio for ratio in compared if ratio is not None]


def _times_counted(folder: Path, config: Config, result: Mapping[str, Any]) -> float | None:
    """Return how many times its counted seconds a trial trained on cores of this machine.

    Returns None for a trial of another machine or of GPUs, for one of a person's own code, which
    nobody may want to import here, and for one too short to tell.
    """
    # A trial of an older release, or of another library's loop, may lack what is read here.
    with suppress(ValueError, LookupError, TypeError):
        config = {**YOUNGER, **config}
        seconds = result["tokens"] / result["tokens_per_second"]
        is_here = all(attempt.get("host") == platform.node() for attempt in lease.trained(folder))
        if config["device"] == "cpu" and not config["code"] and is_here and seconds > LEAST_SECONDS:
            update, _ = counted_update_and_forward(config, result["num_updates"])
            tokens = config["batch_size"] * config["seq_len"]
            seconds_counted = result["tokens"] / tokens * update / config["num_threads"]
            return seconds / seconds_counted
    return None


def _add(paces: Paces, config: Config, result: Mapping[str, Any]) -> None:
    """Add the pace of a finished trial, unless it trained on no token."""
    if result.get("tokens") and (speed := result["tokens_per_second"]):
        overhead = max(0.0, result["wall_seconds"] - result["tokens"] / speed)
        pace = Pace(speed, overhead / ceil(result["num_updates"] / config["eval_every"]))
        paces.setdefault(shape(config), {}).setdefault(_kind(config), []).append(pace)


def _seconds(trial: Trial, paces: Paces) -> float:
    """Return the seconds by the median pace of a trial's shape: of the trials with its optimizer
    and pipeline, or without any, of all trials of the shape."""
    of_shape = paces[shape(trial.config)]
    same_kind = of_shape.get(_kind(trial.config)) or [*chain.from_iterable(of_shape.values())]
    pace = Pace(*map(median, zip(*same_kind, strict=True)))
    training = trial.plan.tokens / pace.tokens_per_second
    return training + trial.plan.num_evaluations * pace.seconds_per_evaluation


def shape(config: Config) -> str:
    """The keys that decide a trial's speed, as JSON."""
    pipeline = config["pipeline"]
    # A config of an older release lacks the keys that are younger: their usual values are its own.
    config = {**YOUNGER, **without_younger(config)}
    same = [config[key] for key in SHAPE]
    same += [config["device"].split(":")[0], config["compile"]]
    same += [pipeline["num_stages"], pipeline["num_microbatches"], pipeline.get("num_chunks", 1)]
    return json.dumps(same, sort_keys=True)


def _kind(config: Config) -> str:
    """What the optimizer and the pipeline are, by their addresses."""
    return " ".join(published(config[group]["_target_"]) for group in ("optimizer", "pipeline"))


def _newest(trials: Path) -> list[Path]:
    changed = dict[str, int]()
    with suppress(OSError):
        for entry in os.scandir(trials):
            with suppress(OSError):  # a link that leads nowhere
                changed[entry.path] = entry.stat().st_mtime_ns
    return [*map(Path, sorted(changed, key=changed.__getitem__, reverse=True)[:MAX_READ])]
