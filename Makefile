# fedflow: `make repro` runs the pipeline on real images, `make test` runs the tests; each installs what it needs.
PYTHON ?= $(shell for p in python3.12 python3.11 python3.13 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
SETUP := .venv/.installed
export PATH := $(CURDIR)/$(BIN):$(PATH)
export OMP_NUM_THREADS ?= 1
export DO_NOT_TRACK := 1
export PYTHONDONTWRITEBYTECODE :=  # compiling all imports again would double the time of a small command

.PHONY: help setup repro smoke test test-full test-newest test-lowest experiments lint ui serve docs release bench \
	leaderboard lock clean

help: ## show this list
	@grep -hE '^[a-z -]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 25

setup: $(SETUP) ## create the virtual environment .venv from requirements.lock

$(SETUP): pyproject.toml requirements.lock
	@test -n "$(PYTHON)" || { echo "fedflow needs Python 3.11 or newer; set PYTHON=/path/to/python3"; exit 2; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q --disable-pip-version-check 'uv>=0.5'
	UV_SYSTEM_CERTS=1 $(BIN)/uv pip install -q --python $(BIN)/python -e '.[pipeline,dev,dask,ray,umap,optuna]' -c requirements.lock
	@touch $@

repro: $(SETUP) ## run the pipeline: prepare, central, partition, sweep, report
	dvc repro
	@echo "report: report/index.html    record: make ui"

# One process more than processors, as some tests wait for servers. One that dies ends the tests with an error.
PROCESSES ?= $(shell $(PYTHON) -c 'import os; print(min(8, 1 + (os.cpu_count() or 1)))')
PYTEST = python -m pytest -n $(PROCESSES) --max-worker-restart 0 --dist loadfile --no-loadscope-reorder

smoke: $(SETUP) ## run the tests that find most faults, in a minute
	$(PYTEST) tests/methods/test_battery.py tests/test_settings.py tests/test_config.py tests/test_floors.py \
		tests/test_cli.py::test_experiments_run_and_are_reported -k 'not battery or scaffold or ifca or fedevg or ditto'

# Plain assertions start 20 s sooner in a fresh clone; tests that fail run again, to show values.
test: $(SETUP) ## run the tests
	$(PYTEST) --assert=plain || { $(PYTEST) --lf; exit 1; }

test-full: $(SETUP) ## run the tests with all methods everywhere
	$(PYTEST) -m 'not slow'

test-newest test-lowest: $(SETUP) ## run the tests with the newest, or the lowest accepted, releases of all libraries
	$(BIN)/uv venv -q --clear .bench/$@
	UV_SYSTEM_CERTS=1 $(BIN)/uv pip install -q --python .bench/$@/bin/python --only-binary :all: --no-binary fedflow \
		$(if $(filter %lowest,$@),--resolution lowest-direct) -e '.[pipeline,dev,dask,ray,umap,optuna]'
	PATH="$(CURDIR)/.bench/$@/bin:$$PATH" $(PYTEST)

experiments: $(SETUP) ## compare what `dvc exp run` has run, a column per method
	dvc exp show --only-changed --no-pager --drop 'data|results|outcomes|requirements|params'

lint: $(SETUP) ## check style, types, unused code, and packages for known vulnerabilities
	ruff check . && ruff format --check . && mypy && vulture && .ci/audit

ui: $(SETUP) ## serve the record of all runs (MLflow) on localhost, and print links to it
	fedflow ui

serve: $(SETUP) ## start the Prefect server with its UI, the deployments and a worker, on localhost
	python -m flows.serve

docs: $(SETUP) ## write the docs site to site/
	NO_MKDOCS_2_WARNING=1 mkdocs build --strict -q

# The version is in pyproject.toml, fedflow/__init__.py and CITATION.cff; CONTRIBUTING.md has the steps around this one.
release: $(SETUP) ## build a wheel and a source archive in dist/ and check them
	rm -rf dist
	python -m build
	twine check --strict dist/*

bench: $(SETUP) ## measure speed and memory, also against other simulators (some minutes)
	python -m benchmarks

leaderboard: $(SETUP) ## tune and run all methods on six divisions (a night; FEDFLOW_DATA names the images)
	python studies/leaderboard/run.py $(METHODS)

# All extras except flower, which needs older versions of what Prefect needs.
LOCKED = $(shell sed -n '/^\[project.optional/,/^$$/s/^\([a-z0-9]*\) = .*/\1/p' pyproject.toml | grep -v flower)
lock: $(SETUP) ## update requirements.lock from pyproject.toml
	$(BIN)/uv pip compile -q pyproject.toml $(addprefix --extra ,$(LOCKED)) --universal --python-version 3.11 \
		--no-annotate --no-header -o requirements.lock

clean: ## delete what runs have produced (not the downloads in data/raw)
	-$(BIN)/python -m flows.server --stop
	rm -rf data/prepared data/partitions data/central/* data/fingerprints results outcomes runs landscapes tuning report paper mlruns/* .fedflow .prefect dvc.lock
