# Two commands do everything on a fresh machine: `make demo` and `make test`. Each sets up .venv first, once.
PYTHON ?= python3
BIN := .venv/bin
SOURCES := src tests bench tools docs
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test tests-map tests-of test-all test-faults soak notebooks coverage check bench bench-real bench-oracle docs site wheel clean
.DEFAULT_GOAL := demo

.venv/core: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) -e .
	touch $@

.venv/dev: .venv/core
	$(PIP) -e ".[dev]"
	touch $@

demo: .venv/core
	$(BIN)/ehrseq demo --out demo

test: .venv/dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal --doctest-modules src tests

test-all: .venv/dev
	EXAMPLES=200 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --doctest-modules --override-ini "addopts=-q --strict-markers --strict-config -p no:anyio -p no:schemathesis" src tests

# The tests that run the code of FILE, as in make tests-of FILE=src/ehrsequencing/records/meds.py. tests-map makes the map:
# an hour at first, and later as long as the files of tests take that have changed.
tests-map: .venv/dev
	$(BIN)/python tools/tests_of.py --map

tests-of: .venv/dev
	OMP_NUM_THREADS=1 $(BIN)/python tools/tests_of.py $(FILE)

# Kills, full disks and damaged files in great number, with what docs/reliability.md promises.
test-faults: .venv/dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -rP -m "faults or not slow" tests/faults tests/core tests/prediction/test_run.py

# An hour of training, predicting and serving: memory and descriptors must be flat (make soak SECONDS_OF_SOAK=300 for a look).
soak: .venv/dev
	OMP_NUM_THREADS=1 $(BIN)/python -m bench soak $(or $(SECONDS_OF_SOAK),3600)

# The notebooks of examples/, on few patients.
notebooks: .venv/dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m slow tests/api/test_notebooks.py

# Lines and branches that make test runs: at least 90 % of the package.
COVERAGE := $(BIN)/python -m coverage
coverage: .venv/dev
	$(COVERAGE) erase
	OMP_NUM_THREADS=1 $(COVERAGE) run -m pytest -n 2 --dist worksteal --doctest-modules src tests
	$(COVERAGE) combine --quiet
	$(COVERAGE) report --sort=cover --skip-covered --fail-under=90

check: .venv/dev
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy
	$(BIN)/mypy --config-file= --strict --follow-imports=silent examples/typed.py
	$(BIN)/lint-imports

# Engine, ingest, long records, and one split of each set of real records end to end (DATA holds their folders).
DATA ?= ../shared/data
bench: .venv/dev
	OMP_NUM_THREADS=1 $(BIN)/python -m bench ingest runs/ingest --events 10000000
	OMP_NUM_THREADS=1 $(BIN)/python -m bench long_records --json runs/long_records.json
	$(BIN)/python -m bench engine --full --data $(DATA) --out runs/engine.json
	OMP_NUM_THREADS=1 $(BIN)/python -m bench real $(DATA) runs/real --splits 1

# How near the truth: all encoders with 20,000 simulated subjects, the default one with 60,000 and 100,000.
bench-oracle: .venv/dev
	OMP_NUM_THREADS=1 $(BIN)/python -m bench oracle runs/oracle --check

# Repeated splits of every set of real records: hours, in pieces (make bench-real SECONDS=1200); goes on where it was.
SECONDS ?= 36000
bench-real: .venv/dev
	OMP_NUM_THREADS=1 $(BIN)/python -m bench real $(DATA) runs/real --jobs-seconds $(SECONDS) --level

docs: .venv/dev
	$(BIN)/python -m pytest --doctest-glob "*.md" README.md docs

# The site, in site/html: pages, API, settings, and the notebooks with their outputs (SUBJECTS=300 EPOCHS=2 for a look: its pages say so).
.venv/site: .venv/core
	$(PIP) -e ".[docs]"
	touch $@

site: .venv/site
	OMP_NUM_THREADS=1 $(BIN)/python -m sphinx -W --keep-going -b html -d site/doctrees docs site/html

# The wheel in an empty environment outside the checkout, with no constraints (SUBJECTS=300 for a short demo).
wheel:
	bash packaging/try_wheel.sh $(PYTHON)

clean:
	rm -rf .venv demo site docs/_generated
