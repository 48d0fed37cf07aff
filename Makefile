# cerebro_db: `make help` lists what can be made.
#
# The extension is plain PGXS: make install PG_CONFIG=/path/to/pg_config. Where PGXS is not installed
# (Debian: postgresql-server-dev-NN) the same files are put in place without it.

EXTENSION = cerebro_db
# Not VERSION: PGXS has a variable of that name.
RELEASE  := $(shell sed -n "s/^default_version *= *'\(.*\)'/\1/p" $(EXTENSION).control)
PG_CONFIG ?= pg_config

BUILT    := build/extension
DATA_built := $(BUILT)/$(EXTENSION)--$(RELEASE).sql \
             $(patsubst migrations/%,$(BUILT)/%,$(wildcard migrations/$(EXTENSION)--*--*.sql))
EXTRA_CLEAN = build

# Where the server finds the Python code, and the interpreter of the trainer's environment. Both are
# final paths, without DESTDIR.
CEREBRO_DIR    ?= $(SHAREDIR)/$(EXTENSION)/python
TRAINER_PYTHON ?= $(abspath $(CEREBRO_DIR)/../trainer/bin/python)
ASSEMBLE = python3 -I cerebro_db/client/extension.py

.DEFAULT_GOAL := help

# Neither pg_config nor PGXS need exist for `make demo`: both are looked at only here.
SHAREDIR := $(shell $(PG_CONFIG) --sharedir 2>/dev/null)
PGXS     := $(wildcard $(shell $(PG_CONFIG) --pgxs 2>/dev/null))
ifneq ($(PGXS),)
include $(PGXS)
install: install-code
uninstall: uninstall-code
else
.PHONY: all install uninstall clean
all: $(DATA_built)
install: install-code
	$(ASSEMBLE) scripts --to '$(DESTDIR)$(SHAREDIR)/extension' --code '$(CEREBRO_DIR)'
uninstall: uninstall-code
	rm -f '$(DESTDIR)$(SHAREDIR)/extension/$(EXTENSION).control' $(patsubst $(BUILT)/%,'$(DESTDIR)$(SHAREDIR)/extension/%',$(DATA_built))
clean:
	rm -rf build
endif

# Always assembled anew: the path in it depends on PG_CONFIG and CEREBRO_DIR.
$(DATA_built): assembled ;

.PHONY: assembled install-code uninstall-code known-server
assembled: known-server
	@$(ASSEMBLE) scripts --to $(BUILT) --code '$(CEREBRO_DIR)'

install-code: known-server
	$(ASSEMBLE) code --to '$(DESTDIR)$(CEREBRO_DIR)' --trainer-python '$(TRAINER_PYTHON)'

uninstall-code: known-server
	rm -rf '$(DESTDIR)$(CEREBRO_DIR)'

known-server:
	@test -n '$(CEREBRO_DIR)' && test -n '$(SHAREDIR)' || \
	  { echo "cerebro_db: no pg_config found; say make PG_CONFIG=/path/to/pg_config" >&2; exit 1; }

# --- for people ---------------------------------------------------------------------------------------

RUN = env PYTHONPATH=.:plpy .venv/bin

.PHONY: help env env-dev up demo test chaos bench lint ci

help:
	@echo 'make demo       everything from nothing: packages, environment, database, a first model selection'
	@echo 'make up         the same up to the running database: then .venv/bin/cerebro psql'
	@echo 'make test       lint and the whole test suite, on throw-away databases: JOBS=2 PYTEST=tests/core'
	@echo 'make chaos      kills, cancels and stops over many small runs: EVENTS=200 SEED=1 (RESUME=1 adds to the last tally)'
	@echo 'make bench      against what users would run instead: WORKS=W1,W2 CONTENDERS=ours,keras REPEATS=3'
	@echo 'make lint       ruff, mypy, import-linter'
	@echo 'make install    the extension into the PostgreSQL or Greenplum of PG_CONFIG=… (also: uninstall)'
	@echo 'make clean'

env:
	@docker/install.sh

env-dev:
	@docker/install.sh --dev

up: env
	@.venv/bin/cerebro up

demo: up
	@.venv/bin/python -m cerebro_db.client.demo

lint: env-dev
	@$(RUN)/ruff check --output-format concise .; ruff=$$?; $(RUN)/mypy; mypy=$$?; \
	  $(RUN)/lint-imports --no-logo; imports=$$?; exit $$((ruff | mypy | imports))

# The tests run and report also when the linters find something; either makes it fail. They wait for starting
# trainers most of the time, so two at once take little more than half as long; each has a server of its own.
JOBS ?= 2
test: env-dev
	@$(MAKE) --no-print-directory lint; lint=$$?; \
	  $(RUN)/python -m pytest --numprocesses $(JOBS) --dist loadfile $(PYTEST) && exit $$lint

EVENTS ?= 200
SEED ?= 1
chaos: env-dev
	@$(RUN)/python -m tests.chaos --events $(EVENTS) --seed $(SEED) --folder build/chaos $(if $(RESUME),--resume)

# Some rivals need packages that nothing else here does: they get an environment on top of ours.
RIVALS := build/bench/env
$(RIVALS)/.installed: requirements-bench.txt
	@.venv/bin/python -m venv $(RIVALS)
	@.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
	  >"$$($(RIVALS)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/ours.pth"
	@$(RIVALS)/bin/python -m pip install --quiet --no-input --disable-pip-version-check -r requirements-bench.txt
	@touch $@

REPEATS ?= 3
bench: env-dev
	@$(MAKE) --no-print-directory $(RIVALS)/.installed || echo 'bench: goes on without Ray and Optuna' >&2
	@$(RUN)/python -m tests.bench --repeats $(REPEATS) $(if $(WORKS),--works $(WORKS)) \
	  $(if $(CONTENDERS),--contenders $(CONTENDERS)) $(BENCH)

ci: test
