"""A machine is measured once, and says which graphs it has."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pipegap.sweeps.plan import devices
from pipegap.trainer.config.compose import compose
from pipegap.trainer.config.work import FEEDBACK, OPERATION, STEP, note_compiled, to_compile


@pytest.fixture(autouse=True)
def empty_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "compiler"))
    (tmp_path / "compiler").mkdir()
    monkeypatch.setattr(devices, "SECONDS", 0.01)
    devices.measured.cache_clear()
    yield
    devices.measured.cache_clear()


def test_a_machine_is_measured_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rates = devices.measured()
    assert {*rates.products} == {"float32", "bfloat16"}
    assert all(1e8 < rate < 1e13 for rate in (*rates.products.values(), rates.bytes))
    assert 1e-8 < rates.operation < 1e-4
    devices.measured.cache_clear()  # as in another process
    with monkeypatch.context() as patch:
        patch.setattr(devices, "measure", None)
        assert devices.measured() == rates
    devices.measured.cache_clear()
    monkeypatch.setattr("torch.__version__", "another")
    monkeypatch.setattr(devices, "measure", lambda: rates._replace(bytes=1.0))
    assert devices.measured().bytes == 1.0
    for path in (tmp_path / "cache/pipegap").iterdir():
        path.write_text("{")
    devices.measured.cache_clear()
    assert devices.measured().bytes == 1.0  # a cut file is measured again


def test_what_is_compiled_is_not_priced_again() -> None:
    tiny = ("model=nano", "num_updates=1", "seq_len=64", "batch_size=2", "compile=update")
    sync, ef, muon, other = (
        compose([*tiny, *words])
        for words in (
            ("optimizer=adamw", "seed=3"),
            ("optimizer=adamw", "pipeline=pipedream_2bw", "correction=error_feedback"),
            ("optimizer=muon", "optimizer.lr=0.5"),
            ("optimizer=adamw", "seq_len=128"),
        )
    )
    passes = sum(to_compile([sync], OPERATION).values()) - STEP
    assert sum(to_compile([sync, ef, muon], OPERATION).values()) == passes + 2 * STEP + FEEDBACK
    assert sum(to_compile([sync], 2 * OPERATION).values()) == 2 * (passes + STEP)
    assert to_compile([{**sync, "compile": False}], OPERATION) == {}
    note_compiled(sync)
    assert to_compile([sync], OPERATION) == {}
    assert sum(to_compile([ef, muon], OPERATION).values()) == STEP + FEEDBACK
    assert len(to_compile([other], OPERATION)) == 2
