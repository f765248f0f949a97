# Every target builds the environment it needs. `make help` lists them.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/installed.stamp
K8S_STAMP := $(VENV)/k8s.stamp
# A part of what is installed is ever run: that compiles when it is first imported, the rest never, which saves a minute.
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-compile
comma  := ,
TORCH  := $(shell sed -n 's/^torch==//p' constraints.txt)
HAS_GPU := $(shell if [ -e /dev/nvidia0 ] || command -v nvidia-smi >/dev/null 2>&1; then echo yes; fi)

# Bytecode is kept, whatever the shell says: else each process compiles the tests and the product anew.
export PYTHONDONTWRITEBYTECODE :=

MAKEFLAGS += --no-print-directory --no-builtin-rules
.DEFAULT_GOAL := help
.PHONY: help venv demo test test-long test-all check check-types check-source test-sglang test-lm-eval test-clients test-console chart test-k8s

help: ## List the targets
	@sed -n 's/^\([a-z0-9-]*\):[^#]*## \(.*\)/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 24

venv: $(STAMP) ## Environment only: .venv with pinned packages

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "muxfleet needs Python 3.11 or newer; '$(PYTHON)' is not. Point at another one: make $(firstword $(MAKECMDGOALS)) PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "'$(PYTHON)' cannot make virtual environments. On Debian and Ubuntu: sudo apt install python3-venv" >&2; exit 1; }
	@echo "[1/3] virtual environment in $(VENV)"
	@[ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV)
ifeq ($(HAS_GPU),yes)
	@echo "[2/3] torch $(TORCH) for CUDA (an NVIDIA GPU is here; some GB, takes minutes)"
	@# === refuses builds with another label, so that an index with CPU wheels does not win here.
	@$(PIP) 'torch===$(TORCH)'
else
	@echo "[2/3] torch $(TORCH), CPU build (some 200 MB)"
	@$(PIP) 'torch==$(TORCH)+cpu' 2>$(VENV)/torch.log || { \
	  grep -q 'No matching distribution found for torch' $(VENV)/torch.log || { cat $(VENV)/torch.log >&2; exit 1; }; \
	  echo "      not on your package index: taking the default build, which can be some GB larger."; \
	  echo "      To avoid that, point PIP_EXTRA_INDEX_URL at PyTorch's index of CPU wheels."; \
	  $(PIP) 'torch==$(TORCH)'; }
endif
	@echo "[3/3] the other packages"
	@$(PIP) --editable '.[dev$(if $(CI),$(comma)k8s)]'
	@touch $@ $(if $(CI),$(K8S_STAMP))

demo: venv ## Three models behind one endpoint on this machine; ARGS="--once --json out.json"
	@$(BIN)/muxfleet demo $(ARGS)

check: venv ## Format, lint, types, import rules and dead code: what CI runs before the tests
	@$(MAKE) --jobs 2 --output-sync=target check-types check-source

check-types:
	@$(BIN)/mypy --no-error-summary

check-source:
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/ruff check --quiet .
	@report=$$($(BIN)/lint-imports --no-logo) || { echo "$$report" >&2; exit 1; }
	@$(BIN)/vulture

# Real fleets on shared machines: in CI what failed is tried once more, by itself. Both summaries are shown, the second one
# counts. (A plugin that repeats a test at once made every test wait 40 ms for its socket.)
ONCE_MORE = $(if $(CI),|| { echo "Once more by itself: what failed"; $(1) --last-failed --last-failed-no-failures none; })

# Three processes: one starts fleets and mostly waits, the others compute (tests/fleets_beside_files.py). Who narrows the
# tests gets one, in which --pdb and -s work; ARGS="-n 2 ..." spreads those too. torch's threads sleep while
# they wait: another process needs the core. A failure is told when it happens: a run that is cut off has told it, too.
SPREAD := -n 3 --dist loadfile --no-loadscope-reorder --instafail
PYTEST := OMP_WAIT_POLICY=passive $(BIN)/python -m pytest

# tests/long_tests.py says which, and what remains.
MARKED := -m "not long$(if $(CI),, and not ci)"

OF_DAY = $(if $(CI_DAY),--turn=$(CI_DAY))

# Types take a core for a minute where nothing is cached, while the tests' first process imports on the other.
BESIDE_CHECK = $(MAKE) check & check=$$!; { $(1); }; tests=$$?; wait $$check || { echo "make check failed" >&2; exit 1; }; exit $$tests

test: venv ## All checks and, beside them, the tests; CI=true: also those that are left to CI; ARGS="-k gateway" narrows them, after the checks
ifdef ARGS
	@$(MAKE) check
	@$(PYTEST) $(ARGS) $(call ONCE_MORE,$(PYTEST) $(ARGS))
else
	@$(call BESIDE_CHECK,$(PYTEST) $(MARKED) $(SPREAD) $(OF_DAY) $(call ONCE_MORE,$(PYTEST) $(MARKED)))
endif

test-long: venv ## The longest tests (tests/long_tests.py); ARGS="-k chaos" narrows them
	@$(PYTEST) -m long $(or $(ARGS),$(SPREAD)) $(call ONCE_MORE,$(PYTEST) -m long $(ARGS))

test-all: venv check ## All tests in one go, those left to CI and the longest, too: these wait while others compute
	@$(PYTEST) $(or $(ARGS),$(SPREAD))

SGLANG_VENV  := .venv-sglang
SGLANG_BIN   := $(SGLANG_VENV)/bin
SGLANG_STAMP := $(SGLANG_VENV)/installed.stamp
SGLANG_PIP   := $(SGLANG_BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints-sglang.txt

test-sglang: $(SGLANG_STAMP) ## SGLang itself with muxfleet's plugin, without a GPU; ARGS="-k abort" narrows it
	@$(SGLANG_BIN)/python -m pytest -m sglang tests/sglang $(ARGS)

# SGLang's own list of packages is several GB of CUDA: here it gets what it imports on a CPU.
$(SGLANG_STAMP): pyproject.toml constraints-sglang.txt tests/sglang/requirements.txt
	@echo "[1/3] virtual environment in $(SGLANG_VENV)"
	@[ -x $(SGLANG_BIN)/python ] || $(PYTHON) -m venv $(SGLANG_VENV)
	@echo "[2/3] torch, CPU build, and what SGLang imports (some GB on disk)"
	@$(SGLANG_PIP) 'torch==$(TORCH)+cpu' 2>/dev/null || $(SGLANG_PIP) 'torch==$(TORCH)'
	@$(SGLANG_PIP) --requirement tests/sglang/requirements.txt
	@echo "[3/3] SGLang without its CUDA packages, and muxfleet"
	@$(SGLANG_PIP) --no-deps gguf sglang torchvision
	@$(SGLANG_PIP) --no-deps --editable .
	@touch $@

LM_EVAL_VENV  := .venv-lm-eval
LM_EVAL_STAMP := $(LM_EVAL_VENV)/installed.stamp

test-lm-eval: venv $(LM_EVAL_STAMP) ## lm-eval, unmodified: scores of a fleet are transformers'; minutes
	@$(BIN)/python -m pytest -n 0 -m lm_eval tests/lm_eval $(ARGS)

$(LM_EVAL_STAMP): tests/lm_eval/requirements.txt
	@echo "lm-eval in $(LM_EVAL_VENV) (some 800 MB on disk)"
	@[ -x $(LM_EVAL_VENV)/bin/python ] || $(PYTHON) -m venv $(LM_EVAL_VENV)
	@$(LM_EVAL_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --requirement $<
	@touch $@

AXE := .tools/console/node_modules/axe-core/axe.min.js

test-console: venv $(AXE) ## The console in Chromium, which must be here (apt-get install chromium chromium-driver)
	@$(BIN)/python -m pytest tests/console $(ARGS)

$(AXE): tests/console/package.json tests/console/package-lock.json
	@mkdir -p .tools/console
	@cp $^ .tools/console
	@npm ci --silent --no-audit --no-fund --prefix .tools/console
	@touch $@

CLIENTS := .clients
CLIENT_STAMPS := $(patsubst %,$(CLIENTS)/%/installed.stamp,agents frameworks libraries llm guidellm aiperf vercel)

test-clients: venv $(CLIENT_STAMPS) ## Clients of others against a fleet with trained weights; ARGS="-k stream" narrows it
	@$(BIN)/python tests/clients/against_one_fleet.py $(ARGS)

$(CLIENTS)/vercel/installed.stamp: tests/clients/vercel/package.json tests/clients/vercel/package-lock.json
	@mkdir -p $(@D)
	@cp $^ $(@D)
	@if command -v npm >/dev/null; then echo "$(@D)" && npm ci --silent --no-audit --no-fund --prefix $(@D) && touch $@; \
	else echo "$(@D): npm is not here; the Vercel AI SDK is left out"; fi

# An environment each: what their packages want of one another's versions does not go together. Some GB in all.
$(CLIENTS)/%/installed.stamp: tests/clients/environments/%.txt
	@echo "$(@D)"
	@[ -x $(@D)/bin/python ] || $(PYTHON) -m venv $(@D)
	@! grep -q '^torch==' $< || $(@D)/bin/python -m pip install --quiet --disable-pip-version-check 'torch==$(TORCH)+cpu' 2>/dev/null || true
	@$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --requirement $<
	@touch $@

chart: venv ## Write generated files anew, after a change of the fleet file or a register: in helm/, examples/ and docs/
	@$(BIN)/python -m scripts.chart.generate

TOOLS := .tools
# A cache of its own: CI runs these tests beside the others.
K8S_PYTEST := MUXFLEET_K8S_TOOLS=$(abspath $(TOOLS)) $(BIN)/python -m pytest -o cache_dir=.pytest_cache/k8s -m k8s tests/k8s

$(K8S_STAMP): $(STAMP)
	@$(PIP) --editable '.[dev,k8s]'
	@touch $@

test-k8s: $(K8S_STAMP) ## The Helm chart under the real Helm 3 and 4, without a cluster; ARGS="-k refusals" narrows it
	@bash scripts/k8s_crds.sh $(TOOLS)
	@bash scripts/k8s_tools.sh $(TOOLS)
	@$(BIN)/python -m scripts.chart.generate --check
	@$(K8S_PYTEST) -n 2 $(ARGS) $(OF_DAY) $(call ONCE_MORE,$(K8S_PYTEST) $(ARGS))
