# SPDX-License-Identifier: Apache-2.0
# A short front to meson; the work is in meson.build and scripts/.
BUILD ?= build

.PHONY: all setup-build demo check bench fuzz lint install clean

all: $(BUILD)/build.ninja
	@ninja --quiet -C $(BUILD)

$(BUILD)/build.ninja: | setup-build
	@meson setup $(BUILD)

setup-build:
	@scripts/setup build

demo: setup-build
	@$(MAKE) --no-print-directory all
	@$(BUILD)/godwit demo $(DEMO)

check:
	@scripts/setup build check
	@scripts/check $(STEPS)

bench: all
	@scripts/setup bench
	@$(BUILD)/godwit bench $(BENCH)

fuzz:
	@scripts/setup build check
	@scripts/fuzz all $(or $(SECONDS),60)

lint:
	@scripts/lint

install: all
	@meson install -C $(BUILD)

clean:
	rm -rf build build-asan build-clang build-fuzz build-gcc build-model
