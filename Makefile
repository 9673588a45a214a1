# Everything a user or CI runs. `make help` lists it.
PYTHON ?= python3
# A CPU-only machine: TORCH_INDEX=<URL of PyTorch's CPU wheels>, as pytorch.org's installer shows it.
TORCH_INDEX ?=
# Words for the sweep, e.g. ARGS="seeds=[0] num_updates=100"
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
WIKI := data/wiki/manifest.json
MOTO := $(VENV)/moto
# Others than ours, on which `make versions` tries Schedule2BW.
TORCHES ?= 2.11.0 2.14.1 2.15.0

.PHONY: help setup moto torchtitan trackio megatron versions data-% sweep-% figures docs site submit verify test test-slow fuzz check wheel clean
.DEFAULT_GOAL := help

help:  ## list the targets
	@grep -hE '^[a-z% -]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

setup: $(READY)  ## virtual environment with pinned packages

# torch first and alone: an index of CPU wheels has nothing else.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) $(shell grep '^torch==' constraints.txt)
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[dev,hub,evaluation,objects,search]'
	touch $@

# Its packages want other versions than ours.
moto: $(MOTO)/.ready  ## a server of buckets that is not ours, for the tests that ask for one

$(MOTO)/.ready: tests/moto.txt | $(READY)
	$(PYTHON) -m venv $(MOTO)
	$(MOTO)/bin/python -m pip install -q -r tests/moto.txt
	touch $@

# They want other versions than ours of what all need, and get ours of what is not in their lists.
torchtitan trackio megatron: %: $(VENV)/%/.ready  ## for the slow tests that ask for them

SITE := import sysconfig; print(sysconfig.get_path("purelib"))
$(VENV)/torchtitan/.ready $(VENV)/trackio/.ready $(VENV)/megatron/.ready: $(VENV)/%/.ready: tests/%.txt | $(READY)
	$(PYTHON) -m venv $(@D)
	$(BIN)/python -c '$(SITE)' > "$$($(@D)/bin/python -c '$(SITE)')/pipegap.pth"
	$(@D)/bin/python -m pip install -q --no-deps -r $<
	touch $@

# PyPI's wheels for Linux are those of CUDA: without TORCH_INDEX its libraries must be on LD_LIBRARY_PATH.
$(VENV)/torch-%/.ready: | $(READY)
	$(PYTHON) -m venv $(@D)
	$(BIN)/python -c '$(SITE)' > "$$($(@D)/bin/python -c '$(SITE)')/pipegap.pth"
	$(@D)/bin/python -m pip install -q --no-deps $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch==$*
	@$(@D)/bin/python -c 'import torch' 2>/dev/null || { echo "torch $*: its CUDA libraries are missing: choose CPU wheels by TORCH_INDEX=<URL>, or add them to LD_LIBRARY_PATH"; exit 1; }
	touch $@

versions:  ## the tests of Schedule2BW on other versions of torch, TORCHES="2.11.0 2.15.0": which private name moved, what fails
	@code=0; for torch in $(TORCHES); do \
	    echo "torch     $$torch"; \
	    make -s $(VENV)/torch-$$torch/.ready && $(VENV)/torch-$$torch/bin/python -m pytest tests/trainer/torch_pipelining -n 2 --dist worksteal $(ARGS) || code=1; \
	done; exit $$code

$(WIKI): | $(READY)
	$(BIN)/pipegap data wiki

data-%: $(READY)  ## prepare a corpus: data-wiki, data-gcide, data-fineweb_edu
	$(BIN)/pipegap data $* $(ARGS)

# $(call sweep,SCALE,NAME)
sweep = $(BIN)/pipegap sweep sweep=$(2) scale=$(1) $(if $(DRY_RUN),dry_run=true) $(ARGS)
# $(call corpus,SCALES): the wiki text, if one of the scales trains on it.
corpus = $(if $(shell grep -ls 'data=wiki' $(patsubst %,pipegap/conf/scale/%.yaml,$(1))),$(WIKI))
stem = $(subst -, ,$*)

.SECONDEXPANSION:
sweep-%: $(READY) $$(call corpus,$$(firstword $$(stem)))  ## a sweep: sweep-SCALE (its sweep main) or sweep-SCALE-NAME, e.g. sweep-tiny, sweep-135m-optimizers; DRY_RUN=1 prices it
	$(call sweep,$(word 1,$(stem)),$(or $(word 2,$(stem)),main))

# Of `figures`. Its report is of the store that the sweeps write: the shell reads the words of both.
QUOTED := sed -n "s/'/'\\\\''/g; s/^results=.*/'&'/p" | tail -n 1
STORE = $(or $(shell printf '%s\n' $(ARGS) | $(QUOTED)),results=results)
SCALES := $(basename $(notdir $(wildcard pipegap/conf/scale/*.yaml)))
# Without a scale, few_updates is run and every scale is priced.
FIGURE_SCALES := $(or $(SCALE),$(if $(DRY_RUN),$(SCALES),few_updates))

figures: $(READY) $(call corpus,$(FIGURE_SCALES))  ## every figure and table of the paper: runs what is missing at SCALE=few_updates and draws; DRY_RUN=1 prices
	@code=0; for scale in $(FIGURE_SCALES); do \
	    echo "scale     $$scale"; $(call sweep,$$scale,paper) || code=$$?; \
	done; \
	$(if $(DRY_RUN),,[ $$code -eq 2 ] || $(BIN)/pipegap report $(STORE) out=report || code=$$?;) exit $$code

docs: $(READY)  ## the answer, table and picture of README.md and docs/gaps.ipynb, from the published trials of its job
	$(BIN)/python -m findings

site: $(READY)  ## the documentation as a site, in site/; REPO_URL=<URL> links to the code
	$(BIN)/python -m mkdocs build

# Those that differ from main, unless ENTRIES says which. Nobody can foresee the salt.
CHANGED = $(shell git diff --name-only --diff-filter=d $(or $(BASE),origin/main)... -- entries/ 2>/dev/null | cut -d/ -f1,2 | sort -u)
verify: $(READY) $(WIKI)  ## entries of the delay track that a change touches, BASE=main, or ENTRIES="entries/adamw": whether they stand
	@code=0; for entry in $(or $(ENTRIES),$(CHANGED)); do \
	    [ ! -e $$entry/trials.csv ] || $(BIN)/pipegap verify $$entry salt=$$(od -An -N8 -tx8 /dev/urandom | tr -d ' ') $(ARGS) || code=1; \
	done; exit $$code

submit: $(READY)  ## a sweep on a Ray cluster: SWEEP=main SCALE=135m ARGS="results=/… data.path=/…"; DRY_RUN=1 prices it
	$(BIN)/pipegap submit sweep=$(or $(SWEEP),main) scale=$(or $(SCALE),tiny) $(if $(DRY_RUN),dry_run=true) $(ARGS)

test test-slow: export PATH := $(PATH):$(abspath $(MOTO)/bin)

# Images often forbid bytecode, and then each process of a test compiles every module again.
test: $(READY) $(WIKI)  ## the tests, in parallel
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 3 --dist worksteal $(ARGS)

test-slow: $(READY) $(WIKI)  ## those that take a minute or more, and more settings of the others
	$(BIN)/python -m pytest -n 2 --dist loadfile -m slow $(ARGS)

fuzz: $(READY)  ## odd command lines, sweep files and damaged stores, drawn anew; ARGS="--examples 5000" of each kind
	$(BIN)/python -m pytest tests/fuzz -n 2 --dist worksteal --examples 1000 $(ARGS)

check: $(READY)  ## ruff, format, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# pip builds it in an environment of its own: none of ours is needed.
wheel:  ## dist/*.whl: every command and conf/, to install where there is no checkout
	rm -rf build
	$(PYTHON) -m pip wheel -q --no-deps --wheel-dir dist .

clean:  ## remove the environment and caches; data and results stay
	rm -rf $(VENV) site .pytest_cache .ruff_cache .mypy_cache .hypothesis build dist *.egg-info
