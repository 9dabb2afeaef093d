VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
LOCK := requirements-dev.lock
DEMO := .demo
FOLDERS := adapters domain migrations projections
# PYTHON=/some/python chooses the interpreter; otherwise the first of these that is 3.11 or newer.
PYTHONS := $(or $(PYTHON),python3 python3.14 python3.13 python3.12 python3.11)

.DEFAULT_GOAL := ready
.PHONY: matrix ready view demo test lint check benchmark benchmark-company histories lock clean

ready: $(READY) view

$(READY): $(LOCK) pyproject.toml
	@found=; \
	for python in $(PYTHONS); do \
	  if $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then found=$$python; break; fi; \
	done; \
	if [ -z "$$found" ]; then \
	  echo "lockledger needs Python 3.11 or newer, and none of these is: $(PYTHONS)." >&2; \
	  echo "Install one, or name it: make PYTHON=/path/to/python3.11" >&2; \
	  exit 1; \
	fi; \
	[ -x $(BIN)/python ] || $$found -m venv $(VENV) || { \
	  rm -rf $(VENV); echo "$$found cannot make a virtual environment; on Debian: apt-get install python3-venv" >&2; exit 1; }
	$(BIN)/python -m pip install -qq --disable-pip-version-check --require-hashes -r $(LOCK)
	$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

# Type checkers cannot follow the editable install, so they read the folders through symlinks.
view:
	@rm -rf .view && mkdir -p .view/lockledger
	@for entry in lockledger/* $(FOLDERS); do \
	  case $$entry in */__pycache__) ;; *) ln -s ../../$$entry .view/lockledger/ ;; esac; \
	done

# An office day of locks, played into a fresh SQLite file; DEMO=folder puts it elsewhere.
demo: ready
	@mkdir -p $(DEMO) && rm -f $(DEMO)/lockledger.db*
	@run() { printf '\n$$ lockledger %s\n' "$$*"; LOCKLEDGER_DATABASE=sqlite:///$(DEMO)/lockledger.db $(BIN)/python -m lockledger "$$@"; }; \
	run migrate && run apply docs/examples/office-day.jsonl && run holders && run audit --extensions && run timeline

# Many tests wait, for a deadline or for a server: twice as many processes as processors keep these busy. WORKERS=0 runs
# the tests in one process; ARGS="-k name" chooses among them.
test: ready
	$(BIN)/pytest --dist=worksteal \
	  --numprocesses=$(or $(WORKERS),$$($(BIN)/python -c 'import os; print(2 * (os.cpu_count() or 1))')) $(ARGS)

lint: ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	cd .view && ../$(BIN)/lint-imports --no-cache ../pyproject.toml

check: lint test

# By hand, on a quiet machine. Writes docs/benchmarks.md; ARGS="--quick" measures all in short, and
# ARGS="--only growth --events 10000000" one part. What it compares with beside the tests' own needs is left out where
# it cannot be installed.
benchmark: ready
	@$(BIN)/python -c 'import redis' 2>/dev/null || $(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["dependency-groups"]["benchmark"], sep="\n")' | \
	  $(BIN)/python -m pip install -qq --disable-pip-version-check -r /dev/stdin || true
	$(BIN)/python tests/benchmarks/run.py $(ARGS)

benchmark-company: ready
	$(BIN)/python tests/benchmarks/company.py $(ARGS)

# By hand: a quarter of an hour. ARGS="--faults 200 --seed 7 --on sqlite"
histories: ready
	$(BIN)/python tests/histories/run.py $(ARGS)

# By hand: a minute; needs pgbouncer, on Debian from the package of that name.
matrix: ready
	$(BIN)/pytest tests/matrix -m alone $(ARGS)

# Keeps the versions that still fit; ARGS=--upgrade takes the newest.
lock:
	@rm -rf .venv-lock
	python3 -m venv .venv-lock
	.venv-lock/bin/python -m pip install -qq --disable-pip-version-check uv
	.venv-lock/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	  --custom-compile-command "make lock" --extra cli --extra fastapi --extra parquet --extra sqlite-async --group dev --output-file $(LOCK) $(ARGS) pyproject.toml
	@rm -rf .venv-lock

clean:
	rm -rf $(VENV) .view .demo build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
