"""What is refused, one row per kind: wrong words of a trial's and of a corpus's command line."""

import json
from pathlib import Path

import pytest

from pipegap.trainer.__main__ import main
from pipegap.trainer.data import __main__ as corpora
from pipegap.trainer.folder.record import TrialFolder
from tests.support import models, small_sweep
from tests.support.own_files import texts, write_jsonl, write_parquet, write_txt
from tests.support.processes import Refused, name_of, refusal

LONG = "x" * 300

# words of `pipegap trial`, behind those of a small trial → what the one line has
BAD = {
    "seed": "seed=: must be key=value",
    "~seed=0": "~seed=0: is not offered",
    "--sead=1": "--sead=1: is not an option of this command",
    "--config": "--config=: expected one argument",
    "optimizer=muno": "optimizer=muno: must be one of muon, ",
    "optimiser=muon": "optimiser=muon: must be a key of the config (the closest are optimizer",
    "optimizer.lr.more=1": "optimizer.lr.more=1: must be a key of the config",
    "+optimizer.lrr=1": "optimizer.lrr=1: must be a known key (known: lr, ",
    "hydra.run.dir=x": "hydra.run.dir=x: has no effect",
    "choices.model=tiny": "choices.model=tiny: is recorded, not set",
    "seed=[1,2]": "seed=[1, 2]: must be a valid integer",
    "seed=-1": "seed=-1: must be greater than or equal to 0",
    "seed=[": "seed=[: must be one value, in quotes if need be",
    "seed=${nowhere}": "seed=${nowhere}: must refer to a key with one value",
    "seed=${num_threads} num_threads=${seed}": "must refer to a key with one value",
    "resume_from=${oc.env:HOME}": "resume_from=${oc.env:HOME}: may refer to another key alone",
    "resume_from=none": "resume_from=none: must be a checkpoint-*.pt of an unfinished trial",
    "data.path=a\0b": r"data.path=a\x00b: must be text without control",
    "data.path=": "data.path=: must be a path, not empty",
    f"out={LONG}": f"out={LONG[:100]}…{LONG[:100]}: must be a path of at most",
    "results=file": "results=file: must be a folder, not a file",
    "results=s3://bucket": "results=s3://bucket: must be a folder",
    "num_updates=???": "num_updates=???: must be given",
    "num_updates=null": "num_updates=None: set exactly one of",
    "num_updates=null tokens_per_parameter=1e6 seq_len=1": "must make at most 1000000000",
    "optimizer.lr=nan": "optimizer.lr=nan: must be a finite number",
    "optimizer._target_=os.environ": "optimizer._target_=os.environ: must be importable",
    "optimizer=schedule_free_adamw correction=error_feedback": "correction=error_feedback: not",
    "trace=true": "trace=True: needs runner=pipelined",
    "trace=true diagnostics=5 runner=pipelined": "trace=True: needs diagnostics=null",
    "batch_size=6 pipeline.num_microbatches=4": "batch_size=6: must be divisible by pipeline.",
    "device=tpu": "device=tpu: must be cpu, cuda or cuda:N",
    "device=cuda:99": "device=cuda:99: no such GPU",
    "dtype=float16": "dtype=float16: must be",
    "model.num_heads=7": "model.num_heads=7: ",
    "model.hidden_size=200000 model.num_heads=4": "device=cpu: has ",
    "model.vocab_size=300": "model.vocab_size=300: must be that of data.path",
    "pipeline.num_stages=1000": "pipeline.num_stages=1000: must not exceed model.num_layers=2",
    "pipeline=pipedream_2bw pipeline.num_stages=4 model.num_layers=4": "num_microbatches=1: ",
    "pipeline=pipedream_2bw pipeline.synchronous_start=1000": "synchronous_cooldown=1000: at most",
    "data.path=nowhere": "data.path=nowhere: holds no manifest.json",
}
# words behind data=text data.path=
BAD_TEXT = {
    "none.txt": "data.path=none.txt: must be files that are there: *.txt, *.jsonl, *.parquet",
    "a.csv": "data.path=a.csv: must be one of *.txt, *.jsonl, *.parquet",
    "a.jsonl": "data.text=text: must be a field of line 1 of a.jsonl (it has id, body)",
    "a.jsonl data.text=id": "data.text=id: must hold text, not int, in line 1 of a.jsonl",
    "bad.jsonl": "data.path=bad.jsonl: must have one JSON object per line (line 1: ",
    "bad.parquet": "data.path=bad.parquet: must be a parquet file (",
    "a.parquet data.text=body": "data.text=body: must be a field of a.parquet (it has id, t",
    "latin.txt": "data.path=latin.txt: must be a file of text in UTF-8",
    "empty.txt": "data=empty.txt: must hold text: it has none",
    "a.txt data.tokenizer=words": "data.tokenizer=words: must be one of ",
    "a.txt data.tokenizer=none.json": "must be a tokenizer.json that is there",
    "a.txt data.tokenizer=a.json": "data.tokenizer=a.json: must be a tokenizer.json (",
    "a.txt data.tokenizer=org/none": "must be a model of the Hugging Face hub",
    "a.txt data.vocab_size=99": "must be null or at least the tokenizer's",
}
BAD |= {f"data=text data.path={words}": says for words, says in BAD_TEXT.items()}
BAD |= {
    "data=hf data.name=org/none": "must be a data set that can be read from the Hugging Face hub",
    "data=hf data.name=copy data.text=body data.tokenizer=bytes": "data.text=body: must be a field",
}
MIXTURE = f"{' '.join(models.WORDS)} compile=true dtype=bfloat16"
STAGES = "pipeline.num_stages=2 pipeline.num_microbatches=2"
FUSED = "model=tiny_hybrid model.fused_delta_rule=true device=cuda dtype=bfloat16"
BAD |= {
    f"{MIXTURE} eval_dtype=float32": "eval_dtype=float32: must be bfloat16 with experts and comp",
    "compile=graph": "must be false, layers (or true) or update",
    f"{STAGES} compile=true pipeline=zero_bubble_h1": "compile=True: must be false with a sche",
    f"{STAGES} compile=update pipeline=paci": "compile=update: must be false with pipeline=paci",
    f"{FUSED} deterministic=true": "deterministic=True: must be false, as Triton times kernels",
    f"{FUSED} deterministic=false model.chunk_size=8": "chunk_size=8: must be one of (16, 32, 64)",
    f"{FUSED} deterministic=false model.key_head_size=264": "key_head_size=264: must be at most",
}
NOT_IN_GRAPHS = {
    "model=micro_moe": "model=qwen3_moe: must have no experts, since 0.3.0, with compile=update",
    "runner=pipelined": "runner=pipelined: must be emulated with compile=update",
    "device=cuda": "device=cuda: must be cpu with compile=update",
    "diagnostics=2": "diagnostics=2: must be null with compile=update",
    "correction=weight_prediction": "correction=weight_prediction: must not read ahead",
}
BAD |= {f"{STAGES} compile=update {word}": says for word, says in NOT_IN_GRAPHS.items()}
# words of `pipegap data`
BAD_CORPUS = {
    "out=a": "corpus=out=a: must be named first",
    "wika": "corpus=wika: must be one of wiki, ",
    "wiki_bpo": "tokenizer=bpo: must be one of ",
    "wiki more": "more=: must be key=value",
    "wiki seed=1": "seed=1: must be tokenizer=, out= or num_tokens=",
    "wiki out=/": "out=/: must name a folder",
    "wiki num_tokens=0": "num_tokens=0: must be a positive number",
}
# content of a --config file
BAD_CONFIG = {
    "[1]": "must be a JSON file of keys and values",
    "{": "must be a JSON file",
    '{"x": 1}': "x=1: must be a known key",
    "{}": "model=missing: is required",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a corpus and files, good and bad, in which nothing may change."""
    made = tmp_path_factory.mktemp("words")
    small_sweep.corpus(made)
    documents = texts(20, 12)
    write_txt(made / "a.txt", documents)
    write_jsonl(made / "a.jsonl", documents, field="body")
    write_parquet(made / "a.parquet", documents)
    write_parquet(made / "copy" / "a.parquet", documents)
    for name, content in {
        "file": b"",
        "a.csv": b"a,b",
        "bad.jsonl": b"{",
        "bad.parquet": b"PAR",
        "latin.txt": b"\xe9\xff",
        "empty.txt": b"\n \n",
        "a.json": b"{}",
    }.items():
        (made / name).write_bytes(content)
    return made


@pytest.fixture(autouse=True)
def nothing_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is accepted by mistake fails at once, and not after hours of training."""
    import datasets
    import huggingface_hub.constants

    monkeypatch.chdir(folder)
    monkeypatch.setattr(TrialFolder, "claimed", None)
    monkeypatch.setattr(corpora, "prepare", None)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of datasets
@pytest.mark.parametrize("words", BAD, ids=name_of)
def test_a_wrong_word_of_a_trial(
    words: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = words.split(" ")
    error = refusal(lambda: main([*small_sweep.overrides(folder), *given]), folder, capsys)
    assert BAD[words] in error
    assert "Error" not in error


@pytest.mark.parametrize("words", BAD_CORPUS, ids=name_of)
def test_a_wrong_word_of_a_corpus(words: str, refused: Refused) -> None:
    assert BAD_CORPUS[words] in refused(lambda: corpora.main(words.split()))


@pytest.mark.parametrize("content", BAD_CONFIG, ids=ascii)
def test_a_wrong_config_file(content: str, tmp_path: Path, refused: Refused) -> None:
    (tmp_path / "config.json").write_text(content)
    path = str(tmp_path / "config.json")
    assert BAD_CONFIG[content] in refused(lambda: main(["--config", path]))


@pytest.mark.parametrize(
    ("key", "value"), [("out", "a\0b"), ("out", ""), ("choices", {}), ("choices", "x")]
)
def test_a_config_file_with_a_wrong_value(
    key: str, value: object, tmp_path: Path, refused: Refused
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**small_sweep.config(tmp_path), key: value}))
    assert f"pipegap trial: {key}" in refused(lambda: main(["--config", str(path)]))


@pytest.mark.parametrize("path", [".", "nowhere.json"])
def test_what_is_no_config_file(path: str, refused: Refused) -> None:
    error = refused(lambda: main(["--config", path]))
    assert error.startswith(f"pipegap trial: --config={path}")
