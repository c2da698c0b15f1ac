# `make run` trains the embedded default job, `make test` runs the tests (all of them with ARGS=--matrix); both first make `.venv`.
SHELL := /bin/bash
PYTHON ?= python3.11
CXX ?= c++
TORCH := torch==2.13.0

# The stamp is named after all that the environment is made from: another lock, another stamp.
KEY := $(shell { cat requirements.lock setup.py; echo "$(TORCH) $(CURDIR)"; } | cksum | tr -d " ")
STAMP := .venv/.installed-$(KEY)
IN_VENV := .venv/bin/python
PIP := $(IN_VENV) -m pip --disable-pip-version-check

.PHONY: run test lint environment
.DELETE_ON_ERROR:

run: environment
	.venv/bin/sentence-pipelines run --config jobs/default.yaml --set run.overwrite=true $(ARGS)

test: environment
	$(IN_VENV) -m pytest $(ARGS)

lint: environment
	$(IN_VENV) -m ruff check
	$(IN_VENV) -m ruff format --check
	$(IN_VENV) -m mypy

environment: $(STAMP)

# The stamp is written last, so an installation that was interrupted is gone through again.
$(STAMP):
	@"$(PYTHON)" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info[:2] != (3, 11))' \
		2>/dev/null || { echo "error: $(PYTHON) is no Python 3.11 with venv:" \
		"install it (on Debian python3.11-venv), or make PYTHON=/path/to/python3.11" >&2; exit 2; }
	@command -v $(CXX) >/dev/null || { echo "error: there is no C++ compiler $(CXX):" \
		"install one (on Debian g++), or make CXX=/path/to/compiler" >&2; exit 2; }
	rm -f .venv/.installed-*
	"$(PYTHON)" -m venv .venv
	$(PIP) install --quiet --no-deps $(TORCH)
	$(PIP) install --quiet --no-deps -r requirements.lock
# A CUDA build of torch does not load without the libraries that it depends on.
	$(IN_VENV) -c 'import torch' 2>/dev/null || $(PIP) install --quiet -c requirements.lock $(TORCH)
	$(PIP) install --quiet --no-deps --no-build-isolation --editable .
	touch $@
