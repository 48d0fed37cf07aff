# `make help` lists the targets.
#
# `make install PG_CONFIG=/path/to/pg_config` installs the extensions with PGXS. Without PGXS (Debian's package
# postgresql-server-dev-NN) it copies the same files.

EXTENSION = cerebro_db
# Not called VERSION, because PGXS has a variable of that name.
RELEASE  := $(shell sed -n "s/^default_version *= *'\(.*\)'/\1/p" $(EXTENSION).control)
PG_CONFIG ?= pg_config

# The second extension, with MADlib's names. MADLIB_SCHEMA=… gives it another schema than madlib.
MADLIB   := $(EXTENSION)_madlib

BUILT    := build/extension
DATA_built := $(BUILT)/$(EXTENSION)--$(RELEASE).sql $(BUILT)/$(MADLIB)--$(RELEASE).sql $(BUILT)/$(MADLIB).control \
             $(patsubst migrations/%,$(BUILT)/%,$(wildcard migrations/$(EXTENSION)*--*--*.sql))
EXTRA_CLEAN = build
NO_INSTALLCHECK = 1  # PGXS makes no target of this name: it would need pg_regress

# The folder of the Python code that the server loads, and the interpreter of the trainer's environment. Both are
# the paths on the running system, without DESTDIR. PostgreSQL looks in its own share folder, whichever version it is.
# CEREBRO_DIR=… is a fixed folder instead, and Greenplum always has one (cerebro_db/embedded/extension.py).
CEREBRO_DIR    ?= $(SHAREDIR)/$(EXTENSION)/python
FIXED           = $(filter-out file,$(origin CEREBRO_DIR)) $(wildcard $(SHAREDIR)/cdb_init.d)
TRAINER_PYTHON ?= $(abspath $(CEREBRO_DIR)/../trainer/bin/python)
ASSEMBLE = python3 -I cerebro_db/embedded/extension.py
ASSEMBLE_SQL = $(ASSEMBLE) scripts $(if $(strip $(FIXED)),--code '$(CEREBRO_DIR)') $(if $(MADLIB_SCHEMA),--madlib-schema '$(MADLIB_SCHEMA)')

.DEFAULT_GOAL := help

# `make demo` must work without pg_config and PGXS, so a missing one is no error here.
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
	$(ASSEMBLE_SQL) --to '$(DESTDIR)$(SHAREDIR)/extension'
uninstall: uninstall-code
	rm -f '$(DESTDIR)$(SHAREDIR)/extension/$(EXTENSION).control' $(patsubst $(BUILT)/%,'$(DESTDIR)$(SHAREDIR)/extension/%',$(DATA_built))
clean:
	rm -rf build
endif

# Assembled every time, because the scripts depend on CEREBRO_DIR and MADLIB_SCHEMA.
$(DATA_built): assembled ;

.PHONY: assembled install-code uninstall-code known-server
assembled: known-server
	@$(ASSEMBLE_SQL) --to $(BUILT)

install-code: known-server
	$(ASSEMBLE) code --to '$(DESTDIR)$(CEREBRO_DIR)' --trainer-python '$(TRAINER_PYTHON)' \
	  $(if $(DESTDIR),--destdir '$(DESTDIR)')

uninstall-code: known-server
	rm -rf '$(DESTDIR)$(CEREBRO_DIR)'
	@rmdir '$(DESTDIR)$(SHAREDIR)/$(EXTENSION)' 2>/dev/null || true  # the trainer's environment may be in it

known-server:
	@test -n '$(CEREBRO_DIR)' && test -n '$(SHAREDIR)' || \
	  { echo "cerebro_db: no pg_config found; run make with PG_CONFIG=/path/to/pg_config" >&2; exit 1; }

# --- packages -----------------------------------------------------------------------------------------

.PHONY: installcheck dist deb rpm

installcheck: known-server
	@PG_CONFIG='$(PG_CONFIG)' CONTRIB_TESTDB='$(CONTRIB_TESTDB)' tests/installcheck/run.sh

# The bundle for PGXN: the files of the last commit, and no others.
BUNDLE := $(EXTENSION)-$(RELEASE)
dist:
	@git rev-parse --verify --quiet HEAD >/dev/null || { echo 'cerebro_db: make dist needs a clone with git' >&2; exit 1; }
	@git diff --quiet HEAD || echo 'cerebro_db: changes that are not committed are not in the bundle' >&2
	@mkdir -p dist
	@git archive --format=zip --prefix='$(BUNDLE)/' --output='dist/$(BUNDLE).zip' HEAD
	@echo 'dist/$(BUNDLE).zip'

deb:
	@PG_VERSIONS='$(PG_VERSIONS)' docker/packages/deb.sh

# From the last commit, as the bundle is.
RPMBUILD ?= rpmbuild
rpm: dist
	@versions='$(or $(PG_VERSIONS),$(patsubst /usr/pgsql-%,%,$(wildcard /usr/pgsql-*)))'; \
	test -n "$$versions" || { echo 'cerebro_db: PG_VERSIONS="16 17" says for which PostgreSQL to build' >&2; exit 1; }; \
	for number in $$versions; do \
	  $(RPMBUILD) -bb --quiet --define "pgmajor $$number" --define 'cerebro_version $(RELEASE)' \
	    --define '_topdir $(CURDIR)/build/rpm' --define '_sourcedir $(CURDIR)/dist' --define '_rpmdir $(CURDIR)/dist' \
	    docker/packages/cerebro_db.spec || exit 1; \
	done; ls -1 dist/noarch/*.rpm

# --- development --------------------------------------------------------------------------------------

# Byte code is kept: the tests start hundreds of clients.
RUN = env -u PYTHONDONTWRITEBYTECODE PYTHONPATH=.:plpy .venv/bin

.PHONY: help env env-dev up demo test test-thorough chaos bench bench-page test-matrix matrix-page lint lock reference pictures site ci

help:
	@echo 'make demo       install what is missing, start a private database, and train 16 configurations in it'
	@echo 'make up         install what is missing and start the database; then: .venv/bin/cerebro psql'
	@echo 'make env-dev    install what is missing for tests and linters'
	@echo 'make test       run the linters and all tests, or those of PYTEST=tests/core'
	@echo 'make test-thorough  also run the thorough tests, with five times as many random tries, which takes hours'
	@echo '                with GPU=1 these five install builds for NVIDIA GPUs (docs/install.md#gpus)'
	@echo 'make test-matrix  run the tests on every installed PostgreSQL: SERVERS="…/pg_config …" PYTEST=tests/sql'
	@echo 'make matrix-page  write the table of docs/versions.md from RESULTS=build/matrix/….json'
	@echo 'make lint       run ruff, mypy and import-linter'
	@echo 'make lock       pin the packages of pyproject.toml in requirements*.txt: UPGRADE=1 takes the newest versions'
	@echo 'make reference  write docs/reference and draw docs/pictures again'
	@echo 'make pictures   train runs and draw the screenshots of docs/ with Chromium'
	@echo 'make site       build the manual as a web site in build/site'
	@echo 'make chaos      kill, cancel and stop many small runs: EVENTS=200 SEED=1 (RESUME=1 adds to the last results)'
	@echo 'make bench      compare the speed with other tools: WORKS=W1,W2 CONTENDERS=ours,keras REPEATS=3 BUSY=0'
	@echo 'make bench-page write the tables of docs/benchmarks.md from RESULTS=build/bench/….json'
	@echo 'make install    install the extension into the PostgreSQL or Greenplum of PG_CONFIG=…'
	@echo 'make uninstall  remove it from there'
	@echo 'make installcheck  train and predict in the running server of PGHOST, PGPORT and PGUSER, with the installed extension'
	@echo 'make deb        build Debian packages into dist/: PG_VERSIONS="15 17"'
	@echo 'make rpm        build RPM packages into dist/noarch/: PG_VERSIONS="16 17"'
	@echo 'make dist       write dist/$(BUNDLE).zip for PGXN'
	@echo 'make clean      remove build/'

env:
	@docker/install.sh $(if $(filter 1 yes true,$(GPU)),--gpu)

env-dev:
	@docker/install.sh --dev $(if $(filter 1 yes true,$(GPU)),--gpu)

up: env
	@.venv/bin/cerebro up

demo: up
	@.venv/bin/python -m cerebro_db.client.demo

lint: env-dev
	@$(RUN)/ruff format --check --quiet .; format=$$?; $(RUN)/ruff check --output-format concise .; ruff=$$?; \
	  $(RUN)/mypy; mypy=$$?; $(RUN)/lint-imports --no-logo; imports=$$?; exit $$((format | ruff | mypy | imports))

# The screenshots need Chromium; the command trains the runs that they show.
pictures: env-dev
	@$(RUN)/python -m tests.report_picture

reference: env-dev
	@$(RUN)/python -m tests.reference
	@$(RUN)/python -m cerebro_db.core.protocol >docs/reference/protocol.md

# The pages keep their places in the tree, because they link to each other across docs/. MkDocs stops at a broken link.
SITE := build/site-env
PAGES := build/site-pages
$(SITE)/.installed: requirements-site.txt
	@python3 -m venv $(SITE)
	@$(SITE)/bin/python -m pip install --quiet --no-input --disable-pip-version-check --require-hashes -r requirements-site.txt
	@touch $@

site: $(SITE)/.installed
	@rm -rf $(PAGES) && mkdir -p $(PAGES)
	@cp -r docs README.md CHANGELOG.md SECURITY.md $(PAGES)/
	@$(SITE)/bin/mkdocs build --strict
	@echo 'build/site/index.html'

# The linters run beside the first tests, which run even if a linter finds something; both must succeed. Each process of
# tests has its own server, and keeps a processor busy.
JOBS ?= 2
test-thorough: export CEREBRO_THOROUGH = 5
test test-thorough: env-dev
	@$(MAKE) --no-print-directory lint & linters=$$!; \
	  $(RUN)/python -m pytest --numprocesses $(JOBS) --dist loadfile --no-loadscope-reorder $(PYTEST); \
	  tests=$$?; \
	  wait $$linters || { echo 'cerebro_db: the linters found something: make lint'; exit 1; }; exit $$tests

test-matrix: env-dev
	@$(RUN)/python -m tests.matrix run $(SERVERS) $(PYTEST)

matrix-page: env-dev
	@$(RUN)/python -m tests.matrix page $(RESULTS)

EVENTS ?= 200
SEED ?= 1
chaos: env-dev
	@$(RUN)/python -m tests.chaos --events $(EVENTS) --seed $(SEED) --folder build/chaos $(if $(RESUME),--resume)

# Ray and Optuna need packages that nothing else needs. They get their own environment on top of the other one.
RIVALS := build/bench/env
$(RIVALS)/.installed: requirements-bench.txt
	@.venv/bin/python -m venv $(RIVALS)
	@.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
	  >"$$($(RIVALS)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/ours.pth"
	@$(RIVALS)/bin/python -m pip install --quiet --no-input --disable-pip-version-check --require-hashes -r requirements-bench.txt
	@touch $@

# AutoGluon needs older packages than ours, and so does featuretools; PyTorch, which RealMLP and TabM use, brings 6 GB. Each
# has an environment of its own. make bench makes the first two, and uses the third one if it is there.
TABLES := build/bench/tables
RELATED := build/bench/related
FORECASTS := build/bench/forecasts
$(TABLES)/.installed $(RELATED)/.installed $(FORECASTS)/.installed build/bench/networks/.installed: build/bench/%/.installed: requirements-%.txt
	@.venv/bin/python -m venv $(@D)
	@$(@D)/bin/python -m pip install --quiet --no-input --disable-pip-version-check --require-hashes -r $<
	@touch $@

# uv solves for all versions of Python at once.
UV := build/lock/bin/uv
lock:
	@test -x $(UV) || { python3 -m venv build/lock && build/lock/bin/pip install --quiet --disable-pip-version-check uv; }
	@UV='$(UV)' UPGRADE='$(UPGRADE)' docker/lock.sh

REPEATS ?= 3
bench: env-dev
	@$(MAKE) --no-print-directory $(RIVALS)/.installed || echo 'bench: continues without Ray and Optuna' >&2
	@$(if $(if $(WORKS),$(findstring tables,$(WORKS)),all),$(MAKE) --no-print-directory $(TABLES)/.installed,true) || \
	  echo 'bench: continues without LightGBM, CatBoost and AutoGluon' >&2
	@$(if $(if $(WORKS),$(findstring related,$(WORKS)),all),$(MAKE) --no-print-directory $(RELATED)/.installed,true) || \
	  echo 'bench: continues without related tables' >&2
	@$(if $(if $(WORKS),$(findstring forecasts,$(WORKS)),all),$(MAKE) --no-print-directory $(FORECASTS)/.installed,true) || \
	  echo 'bench: continues without forecasts' >&2
	@$(RUN)/python -m tests.bench --repeats $(REPEATS) $(if $(WORKS),--works $(WORKS)) \
	  $(if $(CONTENDERS),--contenders $(CONTENDERS)) $(if $(BUSY),--busy $(BUSY)) $(BENCH)

# RESULTS: the files that make bench has written at one commit. Without it the pages are written from docs/benchmarks.json.
bench-page: env-dev
	@$(RUN)/python -m tests.bench.page $(RESULTS)

ci: test
