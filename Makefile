# Start with `make demo` or `make test`. Both set up what they need first.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
SANDBOX ?= /var/tmp/servemark-sandbox
FAULT_TABLE := results/faults.md
PLUGIN_TESTS := plugins/snakemake-executor-plugin-slurm-guarded/tests
SLURM_TESTS := (core or not faults) and not real_slurm_full and not full
# The lock files list every package, as wheels: pip resolves nothing and builds nothing.
INSTALL := $(VENV)/bin/python -m pip --disable-pip-version-check install --quiet --require-hashes --no-deps --only-binary :all:

.PHONY: demo test test-standin test-unit test-integration test-real test-slurm test-slurm-standin test-slurm-real test-setup test-full slurm-tree slurm-sandbox lint docs setup setup-test generate lock clean help

help:
	@echo "make demo   set up, then measure a tiny model on real vLLM (CPU): results/demo/report.html"
	@echo "make test   set up, then run the tests: test-standin (unit, integration, report page), then test-real"
	@echo "make test-unit      the unit tests: five minutes, no network"
	@echo "make test-integration   the pipeline on the stand-in server, the report in a browser"
	@echo "make test-slurm     the tests on a real Slurm of two nodes, made on this machine (root; names missing packages)"
	@echo "make test-slurm SLURM=24.11   the same on another release of Slurm: 22.05, 24.11 or newest (made once with debootstrap)"
	@echo "make test-full      before a release, hours: all other tests, with every fault; writes $(FAULT_TABLE)"
	@echo "make slurm-sandbox  a shell on that Slurm's login node; it prints three commands to try"
	@echo "make setup  only the workflow environment (.venv with snakemake and servemark)"
	@echo "make lint   formatters, linters, type checker"
	@echo "make docs   the documents as a site: .cache/site/index.html"
	@echo "make clean  remove .venv, results/demo, results/cache and .snakemake (without asking)"

demo: setup
	@$(VENV)/bin/python -m servemark.run.demo
	$(VENV)/bin/snakemake --profile profiles/local

test: test-standin test-real

# One run: unit tests use the cores while integration tests wait. The long files come first, so that none runs alone at the end.
test-standin: setup-test
	$(LOW_PRIORITY) $(VENV)/bin/python -m pytest .tests/integration .tests/web .tests/unit $(PLUGIN_TESTS) -m "not real and not full" -n 3 --dist loadfile --no-loadscope-reorder

# With `make --jobs=2 test test-slurm`, the stand-in tests run in parallel with the others, which wait for their servers most of the time:
# Slurm on the stand-in, real vLLM, real vLLM on Slurm. The stand-in tests have a lower priority, because the others take longer.
ifneq ($(filter test-slurm,$(MAKECMDGOALS)),)
LOW_PRIORITY := nice -n 5
test-real test-slurm-real test-setup: test-slurm-standin
endif

test-unit: setup-test
	$(VENV)/bin/python -m pytest .tests/unit $(PLUGIN_TESTS) -m "not full and not live" -n 2 --dist worksteal

# The tests of one file share a checkout that takes seconds to make. Most tests wait rather than compute, so two run at a time.
test-integration: setup-test
	$(VENV)/bin/python -m pytest .tests/unit $(PLUGIN_TESTS) -m "live and not full" -n 2 --dist worksteal
	$(VENV)/bin/python -m pytest .tests/integration .tests/web -m "not real and not full" -n 2 --dist loadfile

test-real: setup-test
	$(VENV)/bin/python -m pytest .tests/integration -m "real and not faults and not full"

test-slurm: test-slurm-standin test-slurm-real

# Without the tests that build a model environment and run real vLLM.
test-slurm-standin: setup-test slurm-tree
	$(VENV)/bin/python -m pytest .tests/slurm -m "not real_slurm and $(SLURM_TESTS)"

test-slurm-real: setup-test slurm-tree
	$(VENV)/bin/python -m pytest .tests/slurm -m "real_slurm and $(SLURM_TESTS)"

# `make setup` without a network, and the executor's package alone.
test-setup: setup-test
	$(VENV)/bin/python -m pytest .tests/setup

# SLURM=24.11 or SLURM=newest: the sandbox's nodes get that release, from a tree of another Debian release; empty: this machine's own.
SLURM ?=
export SERVEMARK_SLURM = $(SLURM)
slurm-tree: setup-test
	@[ -z "$(SLURM)" ] || { cd .tests/slurm && ../../$(VENV)/bin/python -m sandbox tree "$(SLURM)"; }

# More cases of the tests above: more faults, more topologies, the sandbox itself.
test-full: setup-test
	SERVEMARK_REQUIRE_REAL=1 SERVEMARK_REQUIRE_SLURM=1 SERVEMARK_REQUIRE_CONTAINERS=1 SERVEMARK_FAULT_TABLE="$$PWD/$(FAULT_TABLE)" $(VENV)/bin/python -m pytest .tests/unit $(PLUGIN_TESTS) .tests/integration .tests/web .tests/slurm -m "full or faults or real_slurm_full"
	$(MAKE) test-slurm-standin SLURM=24.11
	$(MAKE) test-slurm-standin SLURM=newest

# The sandbox has no way out of this machine, so the environment of the tiny model is built before. Everything that the shell starts ends with it.
slurm-sandbox: setup-test slurm-tree
	@echo "servemark: the sandbox's nodes reach no package index, so the environment for its runs is built first (once)"
	@$(VENV)/bin/snakemake --profile profiles/local --config run=sandbox --until build_environment
	@cd .tests/slurm && ../../$(VENV)/bin/python -m sandbox start $(SANDBOX) $(SANDBOX_OPTIONS) && \
	  { ../../$(VENV)/bin/python -m sandbox shell $(SANDBOX); ../../$(VENV)/bin/python -m sandbox stop $(SANDBOX); }

setup: $(VENV)/.workflow-ready

$(VENV)/.workflow-ready: envs/workflow.lock envs/finish_setup.py
	@"$(PYTHON)" -c 'import sys; ok = (3, 11) <= sys.version_info[:2] <= (3, 13); sys.exit(0 if ok else "servemark: the workflow needs Python 3.11 to 3.13, this is " + sys.version.split()[0] + ". Choose another one: make PYTHON=/path/to/python3.11")'
	@"$(PYTHON)" -I workflow/lib/servemark/files/folder_name.py
	@echo "servemark: setting up the workflow environment in $(VENV) (under a minute, once)"
	@"$(PYTHON)" -m venv $(VENV)
	@$(INSTALL) -r envs/workflow.lock
	@$(VENV)/bin/python -I envs/finish_setup.py
	@touch $@

setup-test: setup $(VENV)/.test-ready

$(VENV)/.test-ready: envs/test.lock $(VENV)/.workflow-ready
	@echo "servemark: adding what the tests need"
	@$(INSTALL) -r envs/test.lock
	@$(VENV)/bin/python -I envs/finish_setup.py
	@touch $@

lint: setup-test
	PATH="$$PWD/$(VENV)/bin:$$PATH" .ci/lint

# The site can be opened as a file. A broken link fails the build.
docs: setup-test
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/python -m mkdocs build --strict
	@echo "servemark: open .cache/site/index.html"

# Schemas and tables that are generated from the types; tests fail if they are out of date.
generate: setup
	$(VENV)/bin/servemark generate

lock:
	envs/lock

clean:
	rm -rf $(VENV) results/demo results/cache .snakemake .pytest_cache .mypy_cache .ruff_cache
