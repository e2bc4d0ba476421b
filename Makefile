# Every target installs what it needs: only make and Python (3.12 or newer) are required.
# The settings of the tools are in pyproject.toml.

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
CANDIDATES := python3.13 python3.14 python3.12 python3
# ensurepip: `venv` needs it, and some systems ship Python without it.
NEW_ENOUGH := import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 12))

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow lint house studies notebooks docs bench clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## Create .venv and install the package with its development tools

demo: $(STAMP) ## Fit a mixture with rare components in several ways; ends with a table and a page
	@$(BIN)/python case_studies/rare_components/run.py

# The doctests of models/ are collected through the symlink moment_init/models.
PAGES := README.md docs/guide
test: $(STAMP) ## Run the tests and doctests; fails under 95 % coverage
	@$(BIN)/python -m pytest -q -n 2 --dist loadfile --doctest-modules --doctest-glob='*.md' $(PAGES) moment_init tests --cov

test-slow: $(STAMP) ## Run the tests marked slow
	@$(BIN)/python -m pytest -q -m slow

lint: $(STAMP) ## Check style, types and docstrings
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet . || { echo "lint: run '$(BIN)/ruff format .'"; exit 1; }
	@$(BIN)/mypy
	@$(BIN)/python -m scripts.check_docstrings
	@echo "lint: all checks passed"

house: $(STAMP) ## Print the size of the library against its budgets
	@$(BIN)/python -m scripts.measure_house

studies: $(STAMP) ## Run every case study and its notebook at small size; figures are discarded
	@$(BIN)/python -m scripts.run_studies --quick $(STUDIES)
	@$(BIN)/python -m pytest -q -n 2 -m slow tests/test_case_studies.py

notebooks: $(STAMP) ## Execute the notebooks at full size (STUDIES="patents ..." for some)
	@$(BIN)/python -m scripts.run_notebooks $(STUDIES)

docs: $(STAMP) ## Build the site in docs/build/html; a warning is an error
	@$(BIN)/python -m scripts.build_docs

bench: $(STAMP) ## Run the benchmarks
	@$(BIN)/python -m benchmarks

clean: ## Remove .venv, caches and build products
	@rm -rf $(VENV) build dist docs/build *.egg-info .coverage .mypy_cache .pytest_cache .ruff_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A pyenv shim can exist and still not run, so each candidate is run, not only looked up.
$(STAMP): pyproject.toml constraints.txt
	@if ! $(BIN)/python -c '$(NEW_ENOUGH)' 2>/dev/null; then \
	  found=; \
	  for python in $(CANDIDATES); do \
	    if $$python -c '$(NEW_ENOUGH)' >/dev/null 2>&1; then found=$$python; break; fi; \
	  done; \
	  if [ -z "$$found" ]; then \
	    echo "make: Python 3.12 or newer with venv is needed; tried: $(CANDIDATES). Install one, or: make CANDIDATES=/path/to/python" >&2; exit 1; \
	  fi; \
	  echo "Creating $(VENV) with $$($$found --version)"; \
	  $$found -m venv --clear $(VENV) || exit 1; \
	fi
	@echo "Installing (a few minutes the first time)"
	@$(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check \
	  --constraint constraints.txt --editable '.[dev]'
	@touch $@
