# Serving Tokens. GNU make 3.81 (macOS) is enough. `make` alone lists the targets.

PYTHON      ?= python3
PORT        ?= 8000
BOOK_PORT   ?= 8001
# Other options for pip, and the index of a particular build of torch (README.md, "The CPU build of torch")
PIP_ARGS    ?=
TORCH_INDEX ?=
# Options for JupyterLab, such as --no-browser
LAB_ARGS    ?=

BIN       := .venv/bin
INSTALLED := .venv/.installed
SITE      := _build/html/index.html
PARTS     := lint format types unit notebooks book site

export JUPYTER_PREFER_ENV_PATH := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PYTHONUTF8 := 1
# A worker thread of torch that waits must sleep, not spin: spinning made a step 30 times slower on a machine
# with other work on its cores.
export OMP_WAIT_POLICY ?= PASSIVE

.PHONY: help setup book test lab serve serve-book clean $(addprefix check-,$(PARTS))

help: ## list what make can do
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-11s %s\n", $$1, $$2}' Makefile

setup: $(INSTALLED) ## create .venv and install what requirements.txt pins

book: $(INSTALLED) ## execute the notebooks, build the pages, print the file to open
	@# A warning fails the build, but sphinx would not repeat it for a page it has read: forget what it read.
	@# Pages that are no longer part of the book would stay: write them all afresh, which takes a second.
	@rm -rf _build/html
	@$(BIN)/jupyter-book build . -W -n --keep-going || { rm -rf _build/.doctrees; exit 1; }
	@$(BIN)/python -c "from pathlib import Path; print('\nOpen', Path('$(SITE)').resolve().as_uri())"

test: $(INSTALLED) ## every check: lint, types, tests, notebooks, the pages in a browser
	@failed=; for part in $(PARTS); do \
	  printf '\n== %s ==\n' "$$part"; \
	  $(MAKE) --no-print-directory "check-$$part" || failed="$$failed $$part"; \
	done; \
	if [ -n "$$failed" ]; then printf '\nFAILED:%s\n' "$$failed"; exit 1; fi; \
	printf '\nAll passed: $(PARTS)\n'

lab: $(INSTALLED) ## open JupyterLab on the chapters
	@# Its root is this folder, not notebooks/: the chapters link to figures and pages in book/.
	@$(BIN)/jupyter lab --ServerApp.root_dir=. --LabApp.default_url=/lab/tree/notebooks $(LAB_ARGS)

serve: $(INSTALLED) ## start the book's server on this machine (PORT=8000)
	@$(BIN)/servelib serve --port $(PORT)

serve-book: ## show the built pages over HTTP, on this machine only (BOOK_PORT=8001)
	@test -f $(SITE) || { echo "No pages yet: run make book first."; exit 1; }
	@echo "Open http://127.0.0.1:$(BOOK_PORT)/ (Ctrl-C stops)"
	@$(PYTHON) -m http.server --bind 127.0.0.1 --directory _build/html $(BOOK_PORT)

clean: ## remove what was built; .venv stays
	@rm -rf _build .pytest_cache .mypy_cache .ruff_cache .hypothesis

check-lint: $(INSTALLED)
	@$(BIN)/ruff check .

check-format: $(INSTALLED)
	@$(BIN)/ruff format --check .

check-types: $(INSTALLED)
	@$(BIN)/mypy

check-unit: $(INSTALLED)
	@$(BIN)/pytest -q tests --ignore=tests/site

check-notebooks: $(INSTALLED)
	@$(BIN)/pytest -q --nbval-lax --nbval-current-env --nbval-cell-timeout=600 --timeout=620 notebooks

check-book: book

check-site: $(INSTALLED)
	@$(BIN)/python tests/site/browser.py
	@$(BIN)/pytest -q tests/site

.venv/.created:
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(None if v >= (3, 11) else "Python 3.11 or newer is needed, and $(PYTHON) is %d.%d. Name a newer one: make book PYTHON=/path/to/python3.12" % v[:2])'
	@$(PYTHON) -m venv .venv
	@touch $@

$(INSTALLED): .venv/.created requirements.txt pyproject.toml
	@if [ -n "$(TORCH_INDEX)" ]; then \
	  $(BIN)/python -m pip install $(PIP_ARGS) --index-url "$(TORCH_INDEX)" "$$(grep '^torch==' requirements.txt)"; fi
	@$(BIN)/python -m pip install $(PIP_ARGS) -r requirements.txt
	@$(BIN)/python -m pip install $(PIP_ARGS) --no-deps --no-build-isolation -e .
	@touch $@
