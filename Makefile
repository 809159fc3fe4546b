PYTHON ?= python3
VENV   := .venv
PIP    := $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check

# What the tests need beside the package itself. What a missing extra is for is skipped, and says so.
EXTRAS ?= dev,fast,gpu,live,logs

# Each stamp stands for a finished install. An install that broke off leaves none, and the next
# call starts again from an empty environment.
RUN := $(VENV)/.installed
DEV := $(VENV)/.installed-dev
LIVE := $(VENV)/.installed-live

# Setuptools comes first, as pinned, and builds without isolation: pip would not apply the
# constraints inside a build environment of its own.
INSTALL = $(PIP) --constraint constraints.txt --no-build-isolation --editable

# NIXL asks for torch, which nothing here imports: gigabytes, so it is installed without its dependencies. It is for
# Linux alone; elsewhere the tests of the live system are skipped and say why.
NIXL = $(PIP) --constraint constraints.txt --no-deps nixl-cu12

.DEFAULT_GOAL := help
.PHONY: help prove certificates sglang storm test coverage lint clean

help:   ## show this list
	@sed -n 's/^\([a-z]*\): .*## /\1\t/p' Makefile | expand -t 16

prove: $(RUN)  ## check that every verdict is the pinned one
	$(VENV)/bin/kvlatch prove

certificates: $(RUN)  ## write the certificates that the wheel ships, after a change of spec/ or of a proof
	$(VENV)/bin/kvlatch prove --certificates proofs/certificates.tar.gz

sglang: $(RUN)  ## run every law on every published sglang manager, and renew the table in the README
	$(VENV)/bin/python bench/sglang.py

storm: $(LIVE)  ## storm the build of the incident and the recommended one, on a live system (under three minutes)
	$(VENV)/bin/kvlatch storm --seed 1

test: lint  ## lint, then run the tests on two cores
	$(VENV)/bin/python -m pytest --numprocesses 2 --dist loadfile

coverage: $(DEV)  ## run the tests on one core, and say which branches they leave out
	$(VENV)/bin/python -m pytest --cov

lint: $(DEV)  ## ruff and mypy, changing nothing
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/mypy

clean:  ## remove the environment, caches and build outputs
	rm -rf $(VENV) build dist *.egg-info .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find spec reference proofs kvlatch tests bench -name __pycache__ -prune -exec rm -rf {} +

$(RUN): pyproject.toml constraints.txt
	$(PYTHON) -m venv --clear $(VENV)
	$(PIP) --constraint constraints.txt setuptools
	$(INSTALL) .
	touch $@

$(DEV): $(RUN)
	rm $(RUN)
	$(INSTALL) '.[$(EXTRAS)]'
	case ,$(EXTRAS), in *,live,*) $(NIXL) || echo "nixl-cu12 is not installed: no live system here";; esac
	touch $(RUN) $@

$(LIVE): $(RUN)
	rm $(RUN)
	$(INSTALL) '.[live]'
	$(NIXL)
	touch $(RUN) $(wildcard $(DEV)) $@
