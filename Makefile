# Every target works in this directory with the tools of .venv, which the first one that needs it makes.
.DEFAULT_GOAL := help

BIN := .venv/bin
STAMP := .venv/.installed
# Three test processes suit two cores, since each waits for other processes a part of the time; each starts its own
# servers. What needs no server only computes: a process a core.
JOBS ?= 3
CORES := $(shell getconf _NPROCESSORS_ONLN)
ARGS ?=
# The tests of a file share what its fixtures made, in this order. A run ends with the first test process that crashes:
# pytest-xdist 3.8 may wait for ever for the tests that a replaced one had been given (its issues 1327 and 1378).
BY_FILE := --dist loadfile --no-loadscope-reorder --max-worker-restart 0

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Hundreds of processes of the product start in a run of the tests: where this is set, each would compile it again.
unexport PYTHONDONTWRITEBYTECODE

# What is there without servers, in folders where that is most of it.
UNIT := tests/domain tests/cli tests/console/test_views.py tests/store/test_ids.py

.PHONY: help setup demo serve dev unit test clients clients-dist faults check format docs screenshots manual bench scaling reach fidelity cost fuzz soak audit sbom constraints clean distclean

help: ## Show this list
	@echo "Palimpsest: compacts long chat conversations in the background."
	@echo
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile
	@echo
	@echo "ARGS is passed on: make test ARGS=\"-k append -x\", make serve ARGS=\"--port 8080 --data-dir data\""

setup: $(STAMP) ## Make .venv and install everything into it (the other targets do so themselves)
	@echo "setup: ready; the command is .venv/bin/palimpsest"

# A stamp that names another directory belongs to a checkout that was moved or copied.
ifneq ($(shell cat $(STAMP) 2>/dev/null),$(CURDIR))
.PHONY: $(STAMP)
endif
$(STAMP): pyproject.toml constraints.txt
	@.ci/venv

demo: $(STAMP) ## Watch a long conversation being compacted, on servers of its own (under a minute)
	@$(BIN)/palimpsest demo $(ARGS)

serve: $(STAMP) ## Run everything on this machine in the foreground; Ctrl-C stops it
	@$(BIN)/palimpsest serve $(ARGS)

dev: $(STAMP) ## The same, started again whenever the code changes; the data stays in .dev
	@$(BIN)/watchfiles --filter python "$(BIN)/palimpsest serve --data-dir .dev --show-keys $(ARGS)" actions api cli compaction gateway runtime store worker

unit: $(STAMP) ## Run the tests that need no server, the whole domain among them (under a minute)
	@$(BIN)/python -m pytest -n $(CORES) --dist worksteal -m "not server and not recorded and not slow" $(UNIT) $(ARGS)

test: $(STAMP) ## Run the tests against real servers
	@.ci/browser
	@$(BIN)/python -m pytest -n $(JOBS) $(BY_FILE) -m "not slow" $(ARGS)

clients: $(STAMP) ## Install what the clients' tests need (npm, LangChain, the SDKs), rewrite the TypeScript types, test all clients, also through the gateway, and record what these sent
	@clients/install
	@PYTHONPATH=. $(BIN)/python clients/typescript/generate_schema.py >clients/typescript/src/schema.ts.new \
	    && mv clients/typescript/src/schema.ts.new clients/typescript/src/schema.ts
	$(BIN)/mypy --python-executable clients/.cache/langchain/bin/python clients/langchain/palimpsest_langchain
	$(BIN)/mypy --python-executable clients/.cache/python/bin/python clients/python/palimpsest_client
	@PALIMPSEST_CLIENTS_RECORD=clients/gateway/record.json $(BIN)/python -m pytest -rs tests/clients/test_python_client.py tests/clients/test_client_operations.py tests/clients/test_client_distributions.py \
	    tests/clients/test_python_client_shapes.py tests/clients/test_python_adapters.py \
	    tests/clients/test_typescript_client.py tests/clients/test_langchain_adapter.py tests/repository/test_integrate_page.py \
	    tests/clients/test_example_chat.py tests/clients/test_example_open_webui.py tests/clients/test_recalling.py \
	    tests/clients/test_coding_agent.py tests/clients/test_litellm_proxy.py tests/clients/gateway $(ARGS)

clients-dist: $(STAMP) ## Build the clients as tarballs and wheels, into dist/clients
	@clients/pack

faults: $(STAMP) ## Break real processes as docs/reliability.md has it, slow tests and more examples of properties included; print what was measured
	@PALIMPSEST_HYPOTHESIS=$${PALIMPSEST_HYPOTHESIS:-thorough} $(BIN)/python -m pytest -p tests.faults.plugin -n $(JOBS) $(BY_FILE) $(ARGS)

check: $(STAMP) ## Lint, formatting, types, import rules, migrations, dependencies
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/mypy tests
	$(BIN)/mypy clients/python/palimpsest_client clients/python/generate_answers.py
	$(BIN)/mypy docs bench .ci/audit.py .ci/sbom.py
	$(BIN)/lint-imports
	$(BIN)/squawk migrations/sql/*.sql migrations/sql/*/*.sql
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.dependabot .github/dependabot.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/bug.yml .github/ISSUE_TEMPLATE/proposal.yml
	$(BIN)/zizmor --offline --quiet --no-progress .github
	$(BIN)/python -m pip check
	$(BIN)/python .ci/audit.py || { [ $$? -eq 3 ] && [ "$$AUDIT_REQUIRED" != 1 ]; }

audit: $(STAMP) ## Look for known vulnerabilities in everything that is pinned (a part of make check)
	@$(BIN)/python .ci/audit.py

sbom: $(STAMP) ## Write what the services are made of to dist/palimpsest.cdx.json (CycloneDX)
	@$(BIN)/python .ci/sbom.py $(BIN)/python dist/palimpsest.cdx.json

format: $(STAMP) ## Format the code and fix what the linter can fix
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

docs: $(STAMP) ## Rewrite what is generated: pages of docs/, types of the Python client
	@for page in requirements settings metrics reference-http reference-presets reference-refusals reference-shapes reference-cli; do \
	    $(BIN)/python docs/$$(echo $$page | tr - _).py >docs/$$page.md.new && mv docs/$$page.md.new docs/$$page.md || exit 1; \
	done
	@$(BIN)/python docs/gateway_clients.py >docs/gateway.md.new && mv docs/gateway.md.new docs/gateway.md
	@PYTHONPATH=. $(BIN)/python clients/python/generate_answers.py >clients/python/palimpsest_client/answers.py.new \
	    && mv clients/python/palimpsest_client/answers.py.new clients/python/palimpsest_client/answers.py

screenshots: $(STAMP) ## Take the console's pictures for the manual again, docs/images (needs Chromium)
	@.ci/browser
	@$(BIN)/python -m tests.browser.screenshots

manual: $(STAMP) ## Build the manual as a site of its own, docs/_build/index.html (needs no network)
	@$(BIN)/python -m sphinx --builder html --fail-on-warning --keep-going --quiet docs docs/_build
	@echo "manual: docs/_build/index.html"

bench: $(STAMP) ## Measure append, context and check against raw database calls
	@$(BIN)/python bench/run.py $(ARGS)

scaling: $(STAMP) ## Print what a load needs, from measured unit costs (docs/scaling.md; ARGS="--turns 40 --peak 5")
	@$(BIN)/python bench/scaling.py $(ARGS)

reach: $(STAMP) ## Measure what recall gives back, and how fast (ARGS="talk.jsonl" takes recorded talk with questions)
	@$(BIN)/python bench/reach/run.py $(ARGS)

fidelity: $(STAMP) ## Measure what survives compaction: look-ahead recall, rules, drift (bench/fidelity)
	@$(BIN)/python bench/fidelity/run.py $(ARGS)

cost: $(STAMP) ## Reckon what conversations cost under schedules of compaction, cache included (bench/cost)
	@$(BIN)/python bench/cost/run.py $(ARGS)

fuzz: $(STAMP) ## Search for inputs that break the API, a turn or the compaction core (minutes to hours: ARGS="--minutes 60")
	@$(BIN)/python -m tests.fuzz $(ARGS)

soak: $(STAMP) ## Load a whole installation while faults hit it, and check every conversation (3 minutes; SOAK_SECONDS, SOAK_SEED)
	@SOAK_SECONDS=$${SOAK_SECONDS:-180} $(BIN)/python -m pytest -p tests.faults.plugin -n 0 tests/faults/test_random_load.py $(ARGS)

constraints: ## Pin the newest versions that pyproject.toml allows, with their hashes (a minute)
	@.ci/constraints

clean: ## Remove caches and build output
	@rm -rf dist bench/out docs/_build *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	@find . -path ./.venv -prune -o -type d -name __pycache__ -prune -exec rm -rf {} +

distclean: clean ## The same, and .venv
	@rm -rf .venv clients/.cache clients/*/node_modules clients/*/dist
