"""A wrong word of `pipegap trial`, and a wrong `--config` file, is refused in our own words."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pipegap.trainer.__main__ import main
from pipegap.trainer.folder.record import TrialFolder
from tests.support import small
from tests.support.refusals import refusal

LONG = "x" * 300

# words → what the one line has
BAD = {
    ("optimizer=muno",): "optimizer=muno: must be one of muon, ",
    ("optimizer=",): "optimizer=: must be one of ",
    ("optimizer=adamw,muon",): "optimizer=adamw,muon: must be one of adamuon, ",
    ("optimizer=null",): "optimizer=null: must be one of ",
    ("optimizer={lr: 1}",): "optimizer={lr: 1}: must be one of ",
    ("optimizer@other=muon",): "optimizer@other=muon: must be a key of the config",
    ("optimiser=muon",): "optimiser=muon: must be a key of the config (the closest are optimizer",
    ("optimizer.lrr=1",): "optimizer.lrr=1: must be a key of the config (the closest are optimizer",
    ("optimizer..lr=1",): "optimizer..lr=1: must be a key",
    ("+optimizer.lrr=1",): "optimizer.lrr=1: must be a known key (known: lr, ",
    ("+provider=hydra",): "provider=hydra: must be a known key",
    ("provider=hydra",): "provider=hydra: must be a key of the config",
    ("scale=few_updates",): "scale=few_updates: must be a key of the config",
    ("hydra.run.dir=x",): "hydra.run.dir=x: has no effect",
    ("hydra/launcher=basic",): "hydra/launcher=basic: must be a key of the config",
    ("hydra.searchpath=[pkg://os]",): "hydra.searchpath=[pkg://os]: must be folders that are there",
    ("hydra.searchpath=[file://nowhere]",): "must be folders that are there",
    ("~seed",): "~seed=: must be key=value",
    ("~seed=0",): "~seed=0: is not offered",
    ("choices.model=tiny",): "choices.model=tiny: is recorded, not set",
    ("+choices.model=tiny",): "choices.model=tiny: is recorded, not set",
    ("",): "=: must be key=value",
    ("=1",): "=1: must be key=value",
    ("seed",): "seed=: must be key=value",
    ("--sead=1",): "--sead=1: is not an option of this command",
    ("--cfg=1",): "--cfg=: ignored explicit argument '1'",
    ("--config",): "--config=: expected one argument",
    ("--conf", "x"): "--conf=: is not an option",
    ("seed=",): "seed=: must be a valid integer",
    ("seed=[1,2]",): "seed=[1, 2]: must be a valid integer",
    ("seed={a: 1}",): "seed={'a': 1}: must be a valid integer",
    ("seed=true",): "seed=True: must be a valid integer",
    ("seed=-1",): "seed=-1: must be greater than or equal to 0",
    ("seed=1e3",): "seed=1000.0: must be a valid integer",
    ("seed=１２",): "seed=１２: must be a valid integer",
    ("seed=" + "9" * 50,): "must be less than or equal to 9223372036854775807",
    ("seed=" + "9" * 9_000,): "9…9",
    ("seed=[",): "seed=[: must be one value, in quotes if need be",
    ("seed='",): "seed=': must be one value",
    ("seed=" + "[" * 3_000,): "maximum recursion depth exceeded",
    ("seed=" + "x" * 20_000,): "must have at most 10,000 characters",
    ("s" * 20_000 + "=1",): "must have at most 10,000 characters",
    ("data.path=a\0b",): r"data.path=a\x00b: must be text without control",
    ("data.path=a\nb",): r"data.path=a\nb: must be text without control",
    ("data.path=a\udcff",): r"data.path=a\udcff: must be text without control",
    ("data.path=",): "data.path=: must be a path, not empty",
    (f"data.path={LONG}",): "must be a path of at most",
    (f"out={LONG}",): f"out={LONG[:100]}…{LONG[:100]}: must be a path of at most",
    (f"results={LONG}",): "must be a path of at most",
    ("results=s3://bucket",): "results=s3://bucket: must be a folder",
    ("resume_from=nowhere.pt",): "resume_from=nowhere.pt: must be a checkpoint",
    ("resume_from=${oc.env:HOME}",): "resume_from=${oc.env:HOME}: may refer to another key alone",
    ("resume_from=runs/${seed}",): "may refer to another key alone",
    ("seed=${nowhere}",): "seed=${nowhere}: must refer to a key with one value",
    ("seed=${optimizer}",): "seed=${optimizer}: must refer to a key with one value",
    ("seed=${num_threads}", "num_threads=${seed}"): "must refer to a key with one value",
    ("num_updates=???",): "num_updates=???: must be given",
    ("num_updates=1e12",): "num_updates=1000000000000.0: must be a valid integer",
    ("num_updates=1000000000000",): "must be less than or equal to 1000000000",
    ("num_updates=null", "tokens_per_parameter=1e300"): "tokens_per_parameter=1e+300: must be less",
    ("num_updates=null", "tokens_per_parameter=1e6", "seq_len=1"): "must make at most 1000000000",
    ("num_threads=100000",): "num_threads=100000: must be less than or equal to 4096",
    ("num_replicas=100000",): "num_replicas=100000: must be less than or equal to",
    ("batch_size=100000000",): "batch_size=100000000: must be less than or equal to",
    ("pipeline.num_stages=1000",): "pipeline.num_stages=1000: must not exceed model.num_layers=2",
    ("pipeline.num_stages=1000000000",): "pipeline.num_stages=1000000000: must be less than",
    ("pipeline=constant_delay", "pipeline.delay=1000000000"): "pipeline.delay=1000000000: must be",
    ("model.num_layers=1000000000",): "model.num_layers=1000000000: must be less than",
    ("optimizer.lr=nan",): "optimizer.lr=nan: must be a finite number",
    ("optimizer.lr=-inf",): "optimizer.lr=-inf: must be a finite number",
    ("optimizer.lr=1e999",): "optimizer.lr=inf: must be a finite number",
    ("optimizer.lr=1,2",): "optimizer.lr=1,2: must be a valid number",
    ("optimizer.lr=false",): "optimizer.lr=False: must be a valid number",
    ("optimizer=muon=adamw",): "optimizer=muon=adamw: must be one of",
    ("timeout=1e300",): "timeout=1e+300: must be less than or equal to",
    ("device=tpu",): "device=tpu: must be cpu, cuda or cuda:N",
    ("device=cuda:٣",): "device=cuda:٣: must be cpu, cuda or cuda:N",
    ("device=cuda:99999999999999999999",): "must be cpu, cuda or cuda:N",
    ("optimizer._target_=",): "optimizer._target_=: must be importable",
    ("optimizer._target_=os.environ",): "optimizer._target_=os.environ: must be importable",
    ("optimizer._target_=..os",): "optimizer._target_=..os: must be importable",
    ("optimizer._target_=builtins.print",): "must be a known key",
    ("pipeline=sync", "optimizer=5"): "optimizer=5: must be one of ",
    ("optimizer=adamw", "correction.coefficient=1"): "correction.coefficient=1: must be a key",
    ("optimizer.lr.more=1",): "optimizer.lr.more=1: must be a key of the config",
    ("optimizer.lr=(",): "optimizer.lr=(: must be a valid number",
    ("optimizer.lr=abc",): "optimizer.lr=abc: must be a valid number",
    ("optimizer.lr=0",): "optimizer.lr=0: must be greater than 0",
    ("optimizer.lr=-1",): "optimizer.lr=-1: must be greater than 0",
    ("optimizer.momentum=1",): "optimizer.momentum=1: must be less than 1",
    ("optimizer.momentum=-0.1",): "optimizer.momentum=-0.1: must be greater than or equal to 0",
    ("optimizer.fused=3",): "optimizer.fused=3: must be",
    ("correction=error_feedback", "correction.coefficient=-1"): "correction.coefficient=-1: must",
    ("correction=error_feedback", "correction.lag=2"): "correction.lag=2: must",
    ("correction=taylor", "correction.decay=1"): "correction.decay=1: must be less than 1",
    (
        "optimizer=schedule_free_adamw",
        "correction=error_feedback",
    ): "correction=error_feedback: not",
    ("diagnostics=0",): "diagnostics=0: must be",
    ("trace=true",): "trace=True: needs runner=pipelined",
    ("trace=true", "diagnostics=5", "runner=pipelined"): "trace=True: needs diagnostics=null",
    ("batch_size=0",): "batch_size=0: must be greater",
    ("batch_size=2.5",): "batch_size=2.5: must be a valid integer",
    ("batch_size=6", "pipeline.num_microbatches=4"): "batch_size=6: must be divisible by pipeline.",
    ("num_updates=null",): "num_updates=None: set exactly one of",
    ("tokens_per_parameter=20",): "set exactly one of num_updates and tokens_per_parameter",
    ("dtype=float16",): "dtype=float16: must be",
    ("runner=magic",): "runner=magic: must be",
    ("device=cuda:99",): "device=cuda:99: no such GPU",
    ("seq_len=10000000",): "seq_len=10000000: must be less",
    ("model.num_heads=7",): "model.num_heads=7: ",
    ("model.vocab_size=300",): "model.vocab_size=300: must be that of data.path",
    ("pipeline.num_stages=9",): "pipeline.num_stages=9: ",
    (
        "pipeline=pipedream_2bw",
        "pipeline.num_stages=4",
        "model.num_layers=4",
    ): "pipeline.num_microbatches=1: ",
    (
        "pipeline=pipedream_2bw",
        "pipeline.synchronous_start=1000",
    ): "synchronous_cooldown=1000: at most",
    ("lr_schedule.warmup=1.5",): "lr_schedule.warmup=1.5: must be less than or equal to 1",
    ("data.path=nowhere",): "data.path=nowhere: holds no manifest.json",
    ("data=bins", "data.path=' '"): "data.path= : must be a path, not empty",
    ("results=file",): "results=file: must be a folder, not a file",
    ("out=file",): "out=file: must be a folder, not a file",
    ("resume_from=none",): "resume_from=none: must be a checkpoint-*.pt of an unfinished trial",
    ("model.hidden_size=200000", "model.num_heads=4"): "device=cpu: has ",
    ("data=text", "data.path=deep.jsonl"): "one JSON object per line (line 1: maximum recur",
    ("results=",): "results=: must be a path, not empty",
    ("out=",): "out=: must be a path, not empty",
    ("resume_from=",): "resume_from=: must be a path, not empty",
}


def shown(words: tuple[str, ...]) -> str:
    return ascii(" ".join(words))[1:-1][:40]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a corpus and odd files, in which nothing may change."""
    made = tmp_path_factory.mktemp("words")
    small.corpus(made)
    (made / "file").touch()
    (made / "deep.jsonl").write_text("[" * 100_000 + "\n")
    return made


@pytest.fixture(autouse=True)
def nothing_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is accepted by mistake fails at once, and not after hours of training."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(TrialFolder, "claimed", None)


@pytest.mark.parametrize("words", BAD, ids=shown)
def test_a_wrong_word_is_refused_in_one_line(
    words: tuple[str, ...], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    error = refusal(lambda: main([*small.overrides(folder), *words]), folder, capsys)
    assert BAD[words] in error
    assert "Error" not in error


CONFIGS = {
    "a list": ("[1]", "must be a JSON file of keys and values"),
    "a text": ('"main"', "must be a JSON file of keys and values"),
    "nothing": ("", "must be a JSON file"),
    "brackets": ("[" * 100_000, "must be a JSON file"),
    "a number without an end": ("9" * 9_000, "must be a JSON file"),
    "other keys": ('{"x": 1}', "x=1: must be a known key"),
    "no keys": ("{}", "model=missing: is required"),
}


@pytest.fixture
def refused_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[[str], str]:
    """Path of a config → the line by which it is refused."""
    return lambda path: refusal(lambda: main(["--config", path]), tmp_path, capsys)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_wrong_config_file_is_refused_in_one_line(
    name: str, tmp_path: Path, refused_config: Callable[[str], str]
) -> None:
    text, says = CONFIGS[name]
    (tmp_path / "config.json").write_text(text)
    assert says in refused_config(str(tmp_path / "config.json"))


@pytest.mark.parametrize("bad", ["a\0b", "\ud800", ""], ids=ascii)
def test_a_config_with_a_path_that_is_none_is_refused(
    bad: str, tmp_path: Path, refused_config: Callable[[str], str]
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**small.config(tmp_path), "out": bad}))
    assert "out=" in refused_config(str(path))


@pytest.mark.parametrize("path", [".", "/dev/zero", "nowhere.json", LONG])
def test_folders_and_files_that_are_no_config_are_refused(
    path: str, refused_config: Callable[[str], str]
) -> None:
    assert refused_config(path).startswith(f"pipegap trial: --config={path[:100]}")
