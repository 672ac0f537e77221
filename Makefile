# The commands for people and CI; `make help` lists them. Nothing here starts, stops or contacts the system's RabbitMQ
# service: tests, demo and bench start private nodes with their own ports and directories.

SHELL := /bin/sh
.DEFAULT_GOAL := help
.NOTPARALLEL:

CARGO ?= cargo
BIN := $(CURDIR)/target/release/tidegate
# Binaries for use have `tidegate top`, and what is built beside them for tests and figures shares their crates.
TOP := --features tidegate/top
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)

# Sets `missing` to the packages that are missing: for the tools $(1) (an argument is a tool, or tool=package), the broker,
# and a C compiler, with which Rust links.
define missing
missing=; command -v cc >/dev/null 2>&1 || missing=" gcc libc6-dev"; \
[ -n "$$TIDEGATE_TEST_AMQP" ] || ls /usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin/rabbitmq-server >/dev/null 2>&1 \
	|| [ -n "$$TIDEGATE_TEST_SBIN" ] || missing="$$missing rabbitmq-server"; \
for tool in $(1); do command -v $${tool%=*} >/dev/null 2>&1 || missing="$$missing $${tool#*=}"; done
endef

# Installs what `missing` names.
define apt
if [ -n "$$missing" ]; then \
	command -v apt-get >/dev/null 2>&1 || { echo "please install:$$missing"; exit 1; }; \
	echo "installing$$missing"; $(SUDO) sh integration/apt.sh $$missing || exit 1; \
fi
endef

# Installs missing packages only; with everything installed, all targets work without network.
define install
$(call missing,$(1)); \
$(apt)
endef

# A module of Debian's python3: expands to nothing if it is installed, otherwise to its package's name, which `install`
# takes for a missing tool.
python = $(shell /usr/bin/python3 -c 'import $(1)' 2>/dev/null || echo python3-$(1))

.PHONY: help
help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

.PHONY: fetch
fetch:
	@command -v cc >/dev/null 2>&1 || { missing=" gcc libc6-dev"; $(apt); }
	@$(CARGO) fetch --locked --offline >/dev/null 2>&1 || $(CARGO) fetch --locked

.PHONY: build
build: fetch ## the release binary, target/release/tidegate
	$(CARGO) build --release --locked --offline $(TOP)

# If cargo-deb is missing, it is built below target and not installed.
CARGO_DEB := $(CURDIR)/target/tools/bin/cargo-deb

.PHONY: deb
deb: build ## a Debian package in target/debian (binary, unit, sample configuration, man pages), checked by tests
	@# Without it the package would depend on no library.
	@command -v dpkg-shlibdeps >/dev/null 2>&1 || { missing=" dpkg-dev"; $(apt); }
	@[ -x $(CARGO_DEB) ] || $(CARGO) install cargo-deb --locked --quiet --root $(CURDIR)/target/tools
	@rm -rf target/deb && mkdir -p target/deb/man target/deb/completions
	@$(BIN) man --directory target/deb/man
	@$(BIN) completions bash >target/deb/completions/tidegate.bash
	@$(BIN) completions zsh >target/deb/completions/_tidegate
	@$(BIN) completions fish >target/deb/completions/tidegate.fish
	@rm -rf target/debian
	@$(CARGO_DEB) --no-build --no-strip --locked --offline
	TIDEGATE_BIN=$(BIN) TIDEGATE_DEB="$$(ls $(CURDIR)/target/debian/*.deb)" \
		$(CARGO) test --test integration --locked --offline $(TOP) -- deploy::package

MUSL := x86_64-unknown-linux-musl
.PHONY: static
static: fetch ## a static binary: target/x86_64-unknown-linux-musl/release/tidegate
	@$(call install,musl-gcc=musl-tools)
	@rustup target list --installed | grep -qx $(MUSL) || rustup target add $(MUSL)
	$(CARGO) build --release --locked --offline $(TOP) --target $(MUSL) || \
		{ $(CARGO) fetch --locked --target $(MUSL) && $(CARGO) build --release --locked $(TOP) --target $(MUSL); }

.PHONY: lint
lint: fetch ## formatting and lints, with `tidegate top` and without it
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked --offline $(TOP) -- -D warnings
	$(CARGO) clippy -p tidegate --all-targets --locked --offline -- -D warnings

# PostgreSQL for the tests of its store.
DATABASE = $(if $(wildcard /usr/lib/postgresql/*/bin/initdb),,postgresql)
TOOLS = $(DATABASE) strace faketime $(if $(wildcard /usr/sbin/pgbouncer),,pgbouncer) promtool=prometheus \
	amqp-publish=amqp-tools curl $(if $(TIDEGATE_CI),systemd-analyze=systemd) \
	$(call python,pika) $(call python,kombu) $(call python,celery)

# The packages without which tests are not run.
.PHONY: missing
missing:
	@$(call missing,$(TOOLS)); echo $$missing

.PHONY: setup
setup:
	@$(call install,$(TOOLS))
	@[ -d target/node/node_modules/amqplib ] || ! command -v npm >/dev/null 2>&1 \
		|| timeout 90 npm install --silent --no-save --prefix target/node amqplib@2 >/dev/null \
		|| echo "no amqplib to be had: the examples for node say that they are skipped"
	@($(call install,chromedriver=chromium-driver chromium)) || echo "no browser to be had: tests of the page say that they are skipped"

# The last resort against worlds that do not end. The time of the build does not count.
bounded = --config 'target."cfg(unix)".runner = ["timeout", "--foreground", "-k", "10", "$(1)"]'

# Worlds of the simulator. A failed world prints its seed; SEED=... SEEDS=1 repeats it.
SEEDS ?= 400

.PHONY: sim
sim: fetch ## the simulator: SEEDS worlds from SEED on; it must find every planted bug
	$(if $(SEED),SEED=$(SEED)) SEEDS=$(SEEDS) $(CARGO) test -p tidegate-engine --lib --locked --offline \
		$(call bounded,$(shell echo $$((600 + $(SEEDS) / 10)))) tests::sim -- --nocapture

.PHONY: cluster
cluster: fetch ## several daemons over one store in the simulator: SEEDS worlds from SEED on; every planted bug is found
	$(if $(SEED),SEED=$(SEED)) CLUSTERS=$(SEEDS) $(CARGO) test -p tidegate-engine --lib --locked --offline \
		$(call bounded,$(shell echo $$((600 + $(SEEDS) / 10)))) tests::cluster -- --nocapture

# A test that cannot run here is reported and counted as skipped. In a CI (TIDEGATE_CI=1) it fails, unless
# TIDEGATE_LACKS names the missing tool.
.PHONY: test
test: ## lints, unit and property tests, the simulator, and the black-box tests against a private broker
	@SEEDS=$(SEEDS) CARGO=$(CARGO) integration/all.sh

.PHONY: test-release
test-release: build ## the black-box tests against the release binary, with a million items
	@TIDEGATE_BIN=$(BIN) CARGO=$(CARGO) integration/all.sh blackbox

.PHONY: test-long
test-long: test-release faults allocations ## the long tests: the release binary, every fault, ten thousand worlds of each simulator
	@$(MAKE) sim SEEDS=10000
	@$(MAKE) cluster SEEDS=10000

.PHONY: allocations
allocations: fetch ## allocations of a message in the wire code and the engine, against integration/allocations.toml
	$(CARGO) test --locked --offline $(TOP) --test allocations -- --nocapture

RUNS ?= 10
BUSY ?= 6
.PHONY: test-steady
test-steady: ## the black-box tests RUNS (10) times beside BUSY (6) busy processes, without repeating failures
	@integration/steady.sh $(RUNS) $(BUSY)

# The suites that do not test the files of a disk store.
POSTGRES := admin:: commands:: delivery:: dropin:: hostile:: identity:: letters:: limits:: list:: operate:: requests::

.PHONY: test-postgres
test-postgres: ## the black-box suites with all stores in a private PostgreSQL
	@TIDEGATE_TEST_STORE=postgres SUITES="$(POSTGRES)" CARGO=$(CARGO) integration/all.sh blackbox

.PHONY: test-rabbitmq
test-rabbitmq: ## the black-box tests against the RabbitMQ of another Debian release (RELEASE=sid), as root
	@integration/rabbitmq.sh $(or $(RELEASE),$(error RELEASE is missing: trixie, sid))
	@TIDEGATE_TEST_SBIN=$(CURDIR)/target/rabbitmq/$(RELEASE).sbin CARGO=$(CARGO) integration/all.sh blackbox

.PHONY: demo
demo: fetch ## a demonstration of half a minute: batches, delays, a dead letter, a kill -9 with nothing lost
	@$(call install,)
	$(CARGO) build --release --locked --offline $(TOP) --bin tidegate --example demo
	@target/release/examples/demo

.PHONY: demo-cluster
demo-cluster: fetch ## a minute with three daemons on one database: a kill -9, the takeover, a stop in order, and the account
	@$(call install,$(DATABASE))
	$(CARGO) build --release --locked --offline $(TOP) --bin tidegate --example demo-cluster
	@target/release/examples/demo-cluster

# A run writes to target/bench. BENCH="windowed ttl" measures only these rows.
define bench
@$(call install,)
$(CARGO) build --release --locked --offline $(TOP) --bin tidegate
$(CARGO) build --profile measured --locked --offline -p tidegate-bench
@TIDEGATE_BIN="$${TIDEGATE_BIN:-$(BIN)}" target/measured/bench $(1) $(BENCH)
endef

.PHONY: bench
bench: fetch ## about half an hour: tidegate compared with its alternatives; tables, JSON and plots
	$(call bench,)

.PHONY: bench-short
bench-short: fetch ## the same within three minutes, with one round
	$(call bench,--short)

.PHONY: bench-long
bench-long: fetch ## the same for hours: a million messages a row, five rounds, ten million waiting items
	$(call bench,--long)

.PHONY: measure
measure: fetch ## the engine and the store alone: nanoseconds per item, up to ten million waiting
	$(CARGO) test --release --workspace --lib --locked --offline measure -- --ignored --nocapture --test-threads 1

.PHONY: deny
deny: ## licences, bans, sources and advisories (needs cargo-deny)
	$(CARGO) deny check advisories bans licenses sources

.PHONY: audit
audit: ## known vulnerabilities (needs cargo-audit)
	$(CARGO) audit --deny warnings

FUZZ_SECONDS ?= 60
.PHONY: fuzz
fuzz: fetch ## every decoder against generated input, FUZZ_SECONDS (60) each
	FUZZ_SECONDS=$(FUZZ_SECONDS) $(CARGO) test --locked --offline $(TOP) --test fuzz -- --nocapture --test-threads 2

.PHONY: faults
faults: fetch ## about half an hour: every fault that can be produced here, checked by what was sent and received (LONG=1, SEED=n, ROWS="7 13")
	@$(call install,faketime)
	$(CARGO) build --release --locked --offline $(TOP) --bin tidegate
	$(CARGO) build --release --locked --offline --bin tidegate --features failpoints --target-dir target/faults
	TIDEGATE_BIN=$(BIN) TIDEGATE_FAILPOINT_BIN=$(CURDIR)/target/faults/release/tidegate \
		$(CARGO) test --locked --offline $(TOP) --test faults -- --all $(if $(LONG),--long) $(if $(SEED),--seed $(SEED)) $(ROWS)
