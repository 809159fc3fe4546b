PYTHON ?= python3
VENV   := .venv
PIP    := $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check

# What the tests need beside the package itself. What a missing extra is for is skipped, and says so.
EXTRAS ?= dask,dev,docs,fast,gpu,live,logs

# Each stamp stands for a finished install. An install that broke off leaves none, and the next
# call starts again from an empty environment.
RUN := $(VENV)/.installed
DEV := $(VENV)/.installed-dev
DIST := $(VENV)/.installed-dist
LIVE := $(VENV)/.installed-live

# `kvlatch` has three folders at the top as packages of its own. A source distribution cannot hold the links.
LINKS := kvlatch/spec kvlatch/reference kvlatch/proofs

# Setuptools comes first, as pinned, and builds without isolation: pip would not apply the
# constraints inside a build environment of its own.
INSTALL = $(PIP) --constraint constraints.txt --no-build-isolation --editable

# NIXL asks for torch, which nothing here imports: gigabytes, so it is installed without its dependencies. It is for
# Linux alone; elsewhere the tests of the live system are skipped and say why.
NIXL = $(PIP) --constraint constraints.txt --no-deps nixl-cu12

.DEFAULT_GOAL := help
.PHONY: help prove certificates sglang storm test thorough coverage lint docs dist links clean

help:   ## show this list
	@sed -n 's/^\([a-z]*\): .*## /\1\t/p' Makefile | expand -t 16

prove: $(RUN)  ## check that every verdict is the pinned one
	$(VENV)/bin/kvlatch prove

certificates: $(RUN)  ## write the certificates that the wheel ships, after a change of spec/ or of a proof
	$(VENV)/bin/kvlatch prove --certificates proofs/certificates.tar.gz

sglang: $(RUN)  ## run every law on every published sglang manager, and renew the table in docs/published.md
	$(VENV)/bin/python bench/sglang.py

storm: $(LIVE)  ## storm the build of the incident and the recommended one, on a live system (under three minutes)
	$(VENV)/bin/kvlatch storm --seed 1

test: lint  ## lint, then run the tests on two cores, but for the thorough ones
	$(VENV)/bin/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder -m 'not thorough'

thorough: $(DEV)  ## all that takes longer (up to an hour); what has passed on this very tree is not run again
	VENV=$(VENV) .ci/thorough

coverage: $(DEV)  ## run the tests on one core, and say which branches they leave out
	$(VENV)/bin/python -m pytest --cov

lint: $(DEV)  ## ruff and mypy, changing nothing
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/mypy

docs: $(DEV)  ## build the site into build/docs, without a warning
	$(VENV)/bin/python -m sphinx -q -W -d build/doctrees docs build/docs
	@echo build/docs/index.html

dist: $(DIST)  ## build the wheel and the source distribution into dist, and check them
	rm -rf dist
	$(VENV)/bin/python -m build --no-isolation --outdir dist
	$(VENV)/bin/python -m twine check --strict dist/*

links: $(LINKS)  ## make the three links of kvlatch/, where an archive has left them out

clean:  ## remove the environment, caches and build outputs
	rm -rf $(VENV) .thorough build dist *.egg-info .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find spec reference proofs kvlatch tests bench docs -name __pycache__ -prune -exec rm -rf {} +

$(LINKS):
	ln -s ../$(@F) $@

$(RUN): pyproject.toml constraints.txt | $(LINKS)
	$(PYTHON) -m venv --clear $(VENV)
	$(PIP) --constraint constraints.txt setuptools
	$(INSTALL) .
	touch $@

$(DEV): $(RUN)
	rm $(RUN)
	$(INSTALL) '.[$(EXTRAS)]'
	case ,$(EXTRAS), in *,live,*) $(NIXL) || echo "nixl-cu12 is not installed: no live system here";; esac
	touch $(RUN) $@

$(DIST): $(RUN)
	rm $(RUN)
	$(INSTALL) '.[dist]'
	touch $(RUN) $(wildcard $(DEV) $(LIVE)) $@

$(LIVE): $(RUN)
	rm $(RUN)
	$(INSTALL) '.[live]'
	$(NIXL)
	touch $(RUN) $(wildcard $(DEV) $(DIST)) $@
