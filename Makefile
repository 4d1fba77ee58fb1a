# Every target makes what it needs, the virtual environment included, and can be run again at any time.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Small networks are fastest on one thread; runs are put side by side instead.
export OMP_NUM_THREADS ?= 1
export MKL_NUM_THREADS ?= 1
# Where Python is told to keep no bytecode, every worker and every command of the tests would compile all modules anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help reproduce test test-slow test-slurm floors lint style types fast format bench samples docs results clean
help:
	@echo "make reproduce   set up, run the whole method (PRESET=laptop), write logs/reproduce/report/report.html"
	@echo "make test        set up, lint, check types, run the fast tests (7 to 15 minutes on two cores)"
	@echo "make test-slow   the slow tests: long learning, long equality, many random examples; .ci/run runs both"
	@echo "make test-slurm  the sweep on a real SLURM of one node (root; installs Debian packages)"
	@echo "make floors      the quick tests with the lowest versions that are allowed (6 GB)"
	@echo "make lint        ruff and mypy (make style, make types); make format corrects what can be corrected"
	@echo "make fast        the fast tests alone"
	@echo "make bench       the benchmarks, one JSON object each; QUICK=--quick shows only that they run"
	@echo "make docs        docs/cli.md, docs/methods.md and docs/data.md from the code"
	@echo "make results     results/: a page for each report run in logs/ (REPORTS=...), and the index; others stay"
	@echo "make samples     the shipped samples anew"
	@echo "make clean       remove .venv and what was built; runs stay"
	@echo "Another Python: make PYTHON=python3.12 ..."

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "bkrl needs Python 3.11 or newer: make PYTHON=python3.11 ..." >&2; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	@touch $@

PRESET ?= laptop
reproduce: $(READY)
	$(BIN)/bkrl reproduce --preset $(PRESET)

lint: style types

style: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Types are checked beside the tests. A worker that has done its tests takes over some of another's.
PYTEST := $(BIN)/pytest -n auto --dist worksteal
test: style
	@$(MAKE) --no-print-directory -j 2 types fast

fast: $(READY)
	$(PYTEST) -m "not slow"

# Tests of properties, too: with examples that are others each time.
test-slow: $(READY)
	$(PYTEST) -m "slow or hypothesis" --hypothesis-profile slow

# Not part of test: a real SLURM of one node, for which it has to be root, and to install Debian's packages once.
test-slurm: $(READY)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[slurm]'
	tests/slurm/cluster.sh $(BIN)/pytest -m slurm tests/slurm || test $$? -eq 77

# The lowest versions that pyproject.toml allows. An old torch comes with CUDA: 6 GB. Floors of tools are not tried.
FLOORS := build/floors
floors: $(READY)
	test -x $(FLOORS)/bin/python || $(PYTHON) -m venv $(FLOORS)
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip install --quiet --python $(FLOORS)/bin/python --resolution lowest-direct -e '.[dev]'
	$(FLOORS)/bin/python -m pytest -m "not slow" --tb native

bench: $(READY)
	@for script in $$(grep -l "import parser_of" benchmarks/*.py); do \
		echo $$script >&2; $(BIN)/python $$script --json $(QUICK) || exit 1; \
	done

WORLDS ?= minigrid crafter missions
samples: $(READY)
	rm -rf build/samples
	sh src/bkrl/runs/samples/make.sh build/samples $(BIN)/bkrl $(WORLDS)
	for run in $$(ls -d build/samples/* | grep -E '/(data|bk|lm|labels-qwen)[^/]*$$'); do rm -rf src/bkrl/runs/samples/$$(basename $$run) && cp -R $$run src/bkrl/runs/samples/ || exit 1; done

docs: $(READY)
	$(BIN)/python docs/generate.py

# The pages of these report runs in results/, and the index; pages of other studies stay as they are.
REPORTS ?= $(wildcard logs/reproduce/report logs/wide/report logs/defects/report logs/repeats/report logs/forms/report)
results: $(READY)
	@test -n "$(REPORTS)" || { echo "There is no report run in logs/: bkrl reproduce, bkrl sweep wide --report and bkrl sweep defects --report make them; or name one: make results REPORTS=logs/x/report" >&2; exit 2; }
	$(BIN)/python results/pages.py $(REPORTS)

clean:
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
