# `make train` trains the example on 2 workers, `make test` runs all tests. Both set up .venv by themselves.
# PYTHON=python3.12 chooses another Python, NP=4 another number of workers.

NP ?= 2
VENV := .venv
BIN := $(VENV)/bin
RUN := $(BIN)/horovodrun -np $(NP) --gloo $(BIN)/python
PIP := $(BIN)/python -m pip install --disable-pip-version-check --quiet

# The first Python on the path that is 3.11 to 3.13 and can make environments; asked only when one is to be made.
FITS = -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do $$python $(FITS) && echo $$python && break; done)

# TensorFlow's remarks on its own build, once a worker, would hide the progress lines.
export TF_CPP_MIN_LOG_LEVEL ?= 2

.PHONY: train test doctor bench clean machine

train: $(VENV)/.train
	@$(BIN)/kerasdist build-engine
	$(RUN) examples/digits.py

test: $(VENV)/.test
	@$(BIN)/kerasdist build-engine
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mkdocs build --strict --quiet --site-dir $(VENV)/site
	$(BIN)/python -m pytest

doctor: $(VENV)/.train
	@$(BIN)/kerasdist doctor --check

bench: $(VENV)/.train
	@$(BIN)/kerasdist build-engine
	$(RUN) benchmarks/step_time.py

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache

$(VENV)/.train: setup.cfg pyproject.toml | $(VENV)/.made
	@echo "Installing TensorFlow, Keras and kerasdist into $(VENV)"
	@$(PIP) --editable '.[cpu,examples]'
	@touch $@

$(VENV)/.test: setup.cfg pyproject.toml | $(VENV)/.made
	@echo "Installing TensorFlow, Keras, kerasdist and the test tools into $(VENV)"
	@$(PIP) --editable '.[cpu,examples,test,docs]'
	@touch $@

$(VENV)/.made: | machine
	@echo "Making $(VENV) with $(PYTHON)"
	@$(PYTHON) -m venv $(VENV)
	@touch $@

# What the engine's build needs of the system, said before anything is downloaded.
machine:
	@test -e $(VENV)/.made || $(or $(PYTHON),false) $(FITS) || { echo "Python 3.11 to 3.13 with venv is needed: run \`apt-get install python3 python3-venv\`, or \`make PYTHON=/path/to/python3.12\`." >&2; exit 1; }
	@command -v $(firstword $(CXX)) >/dev/null || { echo "A C++ compiler is needed: run \`apt-get install g++\`." >&2; exit 1; }
	@test "$$(df -Pm . | awk 'NR == 2 {print $$4}')" -ge 5000 || { echo "5 GB of free disk are needed here: make room." >&2; exit 1; }
