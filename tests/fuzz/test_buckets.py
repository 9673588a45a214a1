"""A bucket that people and faults have changed: a command names it in a few lines, or goes on."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.__main__ import main as analysis
from analysis.objects import bucket as requests
from sweeps.__main__ import main as sweeps
from sweeps.store.opened import open_store
from tests.support import fuzzing, odd, s3_server
from tests.support.bucket import served
from tests.support.stored import URL, after, run, trial_of
from trainer.base.errors import Stopped

RESULTS = f"results={URL}"
READERS = {
    "list": (sweeps, ["list", RESULTS, "format=json"]),
    "status": (sweeps, ["status", RESULTS]),
    "rerun": (sweeps, ["rerun", RESULTS, "status=interrupted", "dry_run=true"]),
    "prune": (sweeps, ["prune", RESULTS, "checkpoints=all", "dry_run=true"]),
    "advise": (analysis, ["advise", "optimizer=adamw", "stages=2", "microbatches=4", RESULTS]),
}
FOLDERS = ("", "registers/", "registers/a/", "sweeps/", "sweeps/a/", "trials/", "trials/a/1/")
NAMES = ("", "README.txt", "a.json", "a.bak.json", ".json", "%41.json", "ä b.json", "..json")
FAULTS = (*s3_server.ANSWERS, "cut", "lost")
KINDS = ("objects", "faults")


class Place(NamedTuple):
    """A bucket with a finished and an interrupted trial, and its objects as they were made."""

    server: s3_server.ServedBucket
    cache: Path
    objects: dict[str, s3_server.Stored]
    listed: dict[str, Any]
    """Trial → what `list` says of it."""

    def __repr__(self) -> str:
        """Short, for hypothesis prints it."""
        return "Place()"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("bucket")
    cache = folder / "cache"
    with pytest.MonkeyPatch.context() as patch, served(patch, cache, num_tries=0) as server:
        store = open_store(URL)
        run(store, trial_of(store, folder))
        with pytest.raises(Stopped):
            run(store, trial_of(store, folder, "seed=1"), after(1))
        listed, *_ = fuzzing.warm(*READERS.values())
        by_id = {row["trial_id"]: row for row in json.loads(listed.out)}
        yield Place(server, cache, dict(server.objects), by_id)


def draw_change(data: st.DataObject, place: Place) -> set[str]:
    """Changes the bucket; returns the keys of the objects that were lost or altered."""
    key = data.draw(st.sampled_from(sorted(place.objects)), "object")
    content = place.objects[key].content
    how = data.draw(st.sampled_from(("alter", "alter", "lose", "copy", "alien")), "how")
    if how == "lose":
        del place.server.objects[key]
        return {key}
    if how == "alter":
        changed = odd.json_files if key.endswith(".json") else odd.contents
        place.server.write(key, data.draw(changed(content), "content"))
        return {key}
    name = data.draw(st.sampled_from(NAMES) | st.text("ab./% ä", max_size=6), "name")
    other = f"a/store/{data.draw(st.sampled_from(FOLDERS), 'folder')}{name}"
    if other not in place.objects:
        mine = content if how == "copy" else data.draw(st.binary(max_size=9), "content")
        place.server.write(other, mine)
    return set()


@fuzzing.inputs(12, *(f"bucket, {kind}, `{name}`" for kind in KINDS for name in READERS))
@given(data=st.data())
def test_of_any_objects(place: Place, data: st.DataObject) -> None:
    place.server.objects = dict(place.objects)
    is_faulty = data.draw(st.booleans(), "faults")
    hurt = set() if is_faulty else draw_change(data, place)
    if data.draw(st.integers(0, 3), "another machine") == 0:
        shutil.rmtree(place.cache, ignore_errors=True)
    name = data.draw(st.sampled_from([*READERS]), "command")
    faults: list[str | None] = []
    if is_faulty:
        one = st.sampled_from(FAULTS)
        faults = data.draw(st.lists(st.none() | one, min_size=1, max_size=12), "faults")
    number = iter(range(10**9))
    place.server.fault = lambda method, key: faults[next(number) % len(faults)] if faults else None
    kind = KINDS[is_faulty]
    try:
        fuzzing.count(f"bucket, {kind}, `{name}`", lambda: check(place, name, hurt, is_faulty))
    finally:
        place.server.fault = lambda method, key: None


def check(place: Place, name: str, hurt: set[str], is_faulty: bool) -> fuzzing.Ended:
    before = dict(place.server.objects)
    main, words = READERS[name]
    found = fuzzing.run(main, words)
    fuzzing.require_few_lines(found, 3)
    made = {key for key in place.server.objects if f"/{requests.CLOCK}" not in key}
    assert made == before.keys()
    if any({"", ".", ".."} & {*key.removesuffix("/").split("/")} for key in made):
        assert found.code == 0 or "no listing goes past an object" in found.err or is_faulty
    elif name == "list" and not is_faulty:
        there = {row["trial_id"]: row for row in json.loads(found.out)}
        for trial_id, row in place.listed.items():
            assert there.get(trial_id) == row or any(trial_id in key for key in hurt)
    return found


VARIABLES = ("AWS_ENDPOINT_URL", "AWS_REGION", "AWS_ACCESS_KEY_ID", "AWS_SESSION_TOKEN")
ENDPOINTS = ("http://127.0.0.1:1", "https://127.0.0.1:1", "http://[::1]:1/a", "http://nobody:9")


@fuzzing.inputs(8, "endpoints")
@given(data=st.data())
def test_of_any_endpoint(place: Place, data: st.DataObject) -> None:
    variable = data.draw(st.sampled_from(VARIABLES), "variable")
    endpoint = data.draw(st.sampled_from(ENDPOINTS), "endpoint")
    value = data.draw(odd.texts(endpoint) | st.sampled_from(odd.WORDS) | st.text(max_size=9))
    [value] = fuzzing.passable([value])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", endpoint)
        patch.setenv(variable, value)
        fuzzing.count("endpoints", lambda: check_endpoint(variable))


def check_endpoint(variable: str) -> fuzzing.Ended:
    found = fuzzing.run(sweeps, ["list", RESULTS])
    fuzzing.require_few_lines(found, 1)
    assert found.code != 0, found
    assert RESULTS in found.err or variable in found.err, found
    return found
