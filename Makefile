# `make demo` and `make test` are all a newcomer needs; both make .venv first.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test docs programs clean

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

# Pages are tested in Debian's Chromium, a deployment behind its nginx; without them they would go untested.
PROGRAMS := chromium chromium-driver nginx-light
programs:
	@if command -v chromium >/dev/null && command -v chromedriver >/dev/null \
	  && PATH="$$PATH:/usr/sbin" command -v nginx >/dev/null; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ]; then become=; elif command -v sudo >/dev/null; then become=sudo; else become=none; fi; \
	if [ "$$become" != none ] && command -v apt-get >/dev/null \
	  && $$become apt-get update && $$become apt-get install -y --no-install-recommends $(PROGRAMS); then exit 0; fi; \
	echo "make: the tests need chromium, chromedriver and nginx, which could not be installed here;" \
	  "install Debian's packages $(PROGRAMS), or what your system calls them, and run make again" >&2; exit 1

# Tests start many processes: each would compile the package again where the environment forbids to keep it.
test: export PYTHONDONTWRITEBYTECODE =
test: .venv/.installed-dev programs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy & types=$$!; $(BIN)/pytest -n 3 --dist worksteal && wait $$types

# The documentation as pages that open from disk: site/index.html.
docs: .venv/.installed-dev
	$(BIN)/mkdocs build --strict

clean:
	rm -rf .venv build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis
