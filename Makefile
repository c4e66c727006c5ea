# Two commands matter: `make serve` and `make test`. Everything lives in .venv; `make clean` removes it.

PYTHON ?= python3
BIN := .venv/bin
INPUTS := pyproject.toml constraints.txt hatch_build.py package-lock.json

.PHONY: setup dev serve test test-long shots recording agents ui-bench fuzz check check-rules check-types format chaos soak simulate kernels versions peers real-model gpu gpu-1 gpu-2 gpu-3 \
    gpu-wheels guide docs clean help

# Bytecode is kept: to make it again takes every process of the tests as long as a hundred small tests.
unexport PYTHONDONTWRITEBYTECODE

help:  ## Show this list
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 10

# Processes of the tests, four more than there are cores, since many wait for servers; one takes up to 3 GB.
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 4)

setup: .venv/.kernels  ## Make .venv with the plain package, compile the CPU kernels

dev: .venv/.dev  ## Add what the tests and checks need: also a browser where none is installed, and npm's packages
	@$(BIN)/python -m tools.browser
	@$(BIN)/python -m tools.node

# Answers that clients can come back to are recorded here, and go on after a crash or a restart; empty: they are not.
JOURNAL ?= $(or $(XDG_STATE_HOME),$(HOME)/.local/state)/quire/journal
serve: setup  ## Serve the embedded model on http://127.0.0.1:8000 or on PORT=8080, again after a crash
	@echo 'The command is $(BIN)/quire; after `. $(BIN)/activate` it is quire.'
	@$(if $(JOURNAL),echo 'Answers are recorded in $(JOURNAL) and go on after a restart; `make serve JOURNAL=` records none.')
	@exec $(BIN)/python -m tools.supervise $(BIN)/quire serve $(if $(JOURNAL),--journal '$(JOURNAL)') $(if $(PORT),--port '$(PORT)')

SUITE = $(BIN)/python -m pytest -q -p tests.forked_workers --workers $(WORKERS) \
    -p tests.shared_rewriting -p tests.longest_first -p tests.second_try -p tests.slowest_files -p tests.one_report
test: dev  ## Run the tests, and once more what failed (10 to 18 min on 2 quiet cores); `make check` has those of tests/house
	$(SUITE) --ignore=tests/house

test-long: dev  ## Run what takes longer: long fuzzing, a fault in every step, ten thousand answers parsed (60 to 90 min)
	QUIRE_EXAMPLES=all $(SUITE) -m long

SHOTS ?= shots
shots: dev  ## Screenshots of every view of the page, light and dark, desktop, phone and zoomed, into SHOTS (3 min)
	QUIRE_SHOTS=$(SHOTS) $(BIN)/python -m pytest -q tests/e2e/test_views.py tests/e2e/test_flow.py -m '' \
	    -k "accessible or fits_the_window"

recording: setup  ## Record how an answer of smollm2 goes on after kill -9, as docs/images/killed.svg (1 min)
	$(BIN)/python -m tools.recording

AGENTS ?=
agents: dev  ## Claude Code, Codex and opencode from npm work with the server; AGENTS="codex --wire responses" chooses (5 min)
	$(BIN)/python -m tools.agents $(AGENTS)

ui-bench: dev  ## What the page costs the browser: each frame, its list and search, its memory (12 min)
	$(BIN)/python -m tests.e2e.ui_bench

FUZZ ?= 1000
fuzz: dev  ## FUZZ requests of each kind to each route, made from /openapi.json (5 min)
	QUIRE_FUZZ_EXAMPLES=$(FUZZ) $(BIN)/python -m pytest -q --numprocesses $(WORKERS) tests/api/test_openapi_fuzz.py

check: check-rules check-types  ## Format, lint, types, house rules, docs (< 2 min)

check-rules: dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/python -m tools.node types
	$(BIN)/python -m pytest -q tests/house

check-types: dev
	$(BIN)/mypy

format: dev  ## Format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

STEPS ?= 2000000
SEED ?= 0
POINTS ?= 50
MODEL ?= guide
chaos: dev  ## kill -9 at POINTS points, 20 answers each, that must go on with the same bytes; MODEL=smollm2 is slower (20 min)
	$(BIN)/python -m benchmarks chaos --points $(POINTS) --model $(MODEL)

MINUTES ?= 30
soak: dev  ## Tests all promises (1 h), then MINUTES of clients of all kinds, with kills and without
	$(BIN)/python -m benchmarks soak --checks --minutes $(MINUTES) --out benchmarks/results/soak.json

simulate: dev  ## Run the scheduler's simulator for STEPS steps from seed SEED on
	$(BIN)/python -m tests.simulation --steps $(STEPS) --seed $(SEED)

SANITIZE := -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=undefined
kernels: dev  ## The CPU kernels under AddressSanitizer and UBSan, a wheel, all GPU kernels, two Tritons (25 min)
	KERNEL_FLAGS="$(SANITIZE)" ASAN_OPTIONS=detect_leaks=0 \
	    LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so)" \
	    $(BIN)/python -m pytest tests/kernels/cpu tests/kernels/test_pages.py
	$(BIN)/python -m pytest -m kernels
	$(BIN)/python -m tools.tritons

versions: dev  ## The tests of the wire with the lowest and the newest uvicorn, websockets, httptools, starlette (2 min)
	$(BIN)/python -m tools.versions

peers: dev  ## Set up what `python -m benchmarks cpu` compares with, in .peers (5 GB, 15-20 min); PEERS="llama.cpp gguf" chooses
	PYTHON=$(BIN)/python sh benchmarks/peers/setup.sh $(PEERS)

# On a machine with a GPU, whose own Python has torch: make gpu PYTHON=/path/to/python
GPU_PYTHON = $(if $(filter file,$(origin PYTHON)),$(or $(wildcard $(BIN)/python),$(PYTHON)),$(PYTHON))
OUT ?= gpu-results
WHEELS ?= gpu-wheels
GPU = $(GPU_PYTHON) -m tools.gpu --out $(OUT) --wheels $(WHEELS)
gpu:  ## On a GPU: the three parts below, one after another (under 30 min)
	@$(GPU) 1 2 3

gpu-1:  ## On a GPU: its tests, and the questions of design (under 10 min)
	@$(GPU) 1

gpu-2:  ## On a GPU: offline and served throughput (under 10 min)
	@$(GPU) 2

gpu-3:  ## On a GPU: decode steps, races, single kernels, compute-sanitizer (under 10 min)
	@$(GPU) 3

gpu-wheels:  ## Fetch the packages that a machine with a GPU and without a network lacks
	@$(GPU_PYTHON) -m tools.gpu_wheels $(WHEELS)

real-model: dev  ## Fetch SmolLM2-135M (93 MB, once), convert it to safetensors; then `pytest -m real` runs
	$(BIN)/python -m tools.real_model

guide: dev  ## Train the embedded model again
	OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m training.guide

docs: dev  ## Write docs/reference, the table of docs/benchmarks.md and the pictures of benchmarks/results again
	$(BIN)/python -m tools.reference
	$(BIN)/python -m tools.figures

clean:  ## Remove everything that can be made again
	rm -rf .venv .gpu gpu-wheels build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis app/static/vendor app/static/compressed node_modules
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/.plain: $(INPUTS)
	PYTHON=$(PYTHON) sh tools/setup.sh
	@touch $@

.venv/.kernels: .venv/.plain $(wildcard app/kernels/cpu/native/*)
	@$(BIN)/python -m tools.kernels
	@touch $@

.venv/.dev: .venv/.plain
	$(BIN)/python -m pip install --quiet --constraint .venv/constraints.txt --editable '.[dev]'
	@touch $@
