# `make demo` and `make test` are all a newcomer needs; both make .venv first.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test clean

# One stamp for both targets: the package, its dev tools, and the pin on PyTorch.
.venv/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet -c constraints.txt -e .
	touch $@

.venv/.installed-dev: .venv/.installed
	$(BIN)/pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@

demo: .venv/.installed
	$(BIN)/silodp demo

test: .venv/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -n 2 --dist loadfile

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
