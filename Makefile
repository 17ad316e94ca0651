# One command per wish. `make test` on a bare machine sets everything up by itself.
PYTHON ?= python3
BIN := .venv/bin
# Compiled once, and nowhere in the tree: a process that compiles everything takes 3 s to start.
export PYTHONPYCACHEPREFIX = $(CURDIR)/.venv/compiled
export PYTHONDONTWRITEBYTECODE =

.PHONY: setup check test bench demo soak docs lock format clean

setup: .venv/ready

.venv/ready: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "relevo needs Python 3.11 or newer; set PYTHON=..."; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	test -x $(BIN)/uv || $(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(BIN)/uv pip sync --quiet --python $(BIN)/python --require-hashes requirements.lock
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	touch $@

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/basedpyright
	$(BIN)/lint-imports
	$(BIN)/relevo check src
	$(BIN)/pytest -q -n 2 -m "not soak" tests/unit

# Four at a time on two cores: tests spend most of their time waiting for a lease, a server or a
# disk. What passes only at the second try is told; more than three such tests that tests/flaky.txt
# does not have with a reason fail the run.
test: setup
	$(BIN)/pytest -n 4 --dist loadgroup -m "not soak" || \
	  { echo "What failed beside the others is tried once more, alone:"; \
	    $(BIN)/pytest --last-failed --last-failed-no-failures none -m "not soak" \
	      --second-try tests/flaky.txt --unlisted 3; }

# All rows: the short tests, then the long ones, two at a time; what failed is tried again alone.
# Results are kept in .soak, so that one who was interrupted goes on. With MINUTES=10 the second and
# the third part begin nothing new after so many.
MINUTES ?= inf
SOAK := $(BIN)/pytest tests --matrix docs/reliability-matrix.md --kept .soak --timeout 3000 \
  -v -o console_output_style=count
TWO := -n 2 --dist loadgroup --no-loadscope-reorder

soak: setup
	-$(SOAK) $(TWO) -m "not soak"
	-$(SOAK) $(TWO) --minutes $(MINUTES)
	$(SOAK) --minutes $(MINUTES) || test $$? -eq 5  # nothing was left to try
	rm .soak

bench: setup
	$(BIN)/python -m bench --peers

demo: setup
	$(BIN)/relevo demo

docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

lock:
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --all-extras --group dev \
	  --generate-hashes --no-emit-index-url --no-annotate --no-header pyproject.toml -o requirements.lock

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv dist .pytest_cache .ruff_cache .hypothesis
