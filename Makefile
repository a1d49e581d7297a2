# hmshim's front door. `make help` lists the targets.
SHELL := /bin/bash
.DELETE_ON_ERROR:
.DEFAULT_GOAL := all

BUILD ?= build
# V=1 shows the commands.
Q := $(if $(V),,@)
JOBS ?= $(shell nproc)
CXX := g++
PYTHON := /usr/bin/python3
VERSION := 0.1.0
PREFIX ?= /usr/local
# SANITIZE=address,undefined or SANITIZE=thread builds shim, simulated GPU and guests with that sanitizer.
SANITIZE ?=

ifneq ($(MAKEFLAGS),$(filter-out -j%,$(MAKEFLAGS)))
else
MAKEFLAGS += -j$(JOBS)
endif

# The tools and CUDA: found or fetched once per build folder (scripts/setup), then read here. The library alone needs less.
ifeq (,$(filter help clean format,$(MAKECMDGOALS)))
include $(BUILD)/$(if $(filter-out all install uninstall dist,$(MAKECMDGOALS)),everything,cuda).mk
endif
$(BUILD)/cuda.mk: scripts/setup
	@scripts/setup $(BUILD) library
$(BUILD)/everything.mk: scripts/setup
	@scripts/setup $(BUILD) everything

# x86_64 or aarch64: what the compiler builds for.
ARCH := $(firstword $(subst -, ,$(shell $(CXX) -dumpmachine)))

# ---- flags -----------------------------------------------------------------------------------------------------------
# Designated initialisers leave out what keeps its default.
WARNINGS := -Wall -Wextra -Wconversion -Wshadow -Wno-missing-field-initializers -Werror
SANITIZE_FLAGS := $(if $(SANITIZE),-fsanitize=$(SANITIZE) -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
# nvcc's programs are not instrumented: they get the runtime by preload, and their own leaks are no concern.
SANITIZER_ENVIRONMENT := $(if $(SANITIZE),HMSHIM_TEST_SANITIZER=$(shell $(CXX) -print-file-name=lib$(if $(filter thread,$(SANITIZE)),tsan,asan).so) \
  ASAN_OPTIONS=detect_leaks=0:detect_odr_violation=0 TSAN_OPTIONS=halt_on_error=1:report_signal_unsafe=0)
CPPFLAGS := -I. -isystem $(CUDA_INCLUDE) -DFMT_HEADER_ONLY -DHMSHIM_VERSION='"$(VERSION)"'
CXXFLAGS := -std=c++20 -O2 -g $(WARNINGS) $(SANITIZE_FLAGS) -MMD -MP
PIC := -fPIC -fvisibility=hidden -fvisibility-inlines-hidden -ftls-model=initial-exec
# A preload library may need only what every process has: the C++ runtime comes inside, hidden.
STATIC_CXX := -static-libstdc++ -static-libgcc

# ---- the library -----------------------------------------------------------------------------------------------------
# entry/ of interpose: what defines the guest-visible symbols. Everything else goes into an archive that unit tests link.
ENTRY_SRC := $(wildcard interpose/wrappers.cpp interpose/lookup_exports.cpp interpose/dlsym_$(ARCH).S interpose/getenv.cpp)
CORE_SRC := $(filter-out $(ENTRY_SRC),$(wildcard interpose/*.cpp uvm/*.cpp policy/*.cpp policy/policies/*.cpp))
ENTRY_OBJ := $(patsubst %,$(BUILD)/obj/%.o,$(basename $(ENTRY_SRC)))
CORE_OBJ := $(CORE_SRC:%.cpp=$(BUILD)/obj/%.o)
LIB := $(BUILD)/libhmshim.so

all: $(LIB) ## build the library: build/libhmshim.so

$(BUILD)/obj/%.o: %.cpp | $(BUILD)/cuda.mk
	@mkdir -p $(@D)
	@echo '  CXX  $@'
	$(Q)$(CXX) $(CPPFLAGS) $(CXXFLAGS) $(PIC) -c -o $@ $<
$(BUILD)/obj/%.o: %.S | $(BUILD)/cuda.mk
	@mkdir -p $(@D)
	@echo '  CXX  $@'
	$(Q)$(CXX) -c -fPIC -o $@ $<
# The dlsym path calls no libc function and must not be instrumented: it runs inside sanitizer start-up.
$(addprefix $(BUILD)/obj/interpose/,lookup.o real_dlsym.o lookup_exports.o): CXXFLAGS += -fno-builtin -fno-stack-protector -fno-sanitize=all

$(BUILD)/libhmshim_core.a: $(CORE_OBJ)
	@rm -f $@
	@echo '  AR   $@'
	$(Q)ar rcs $@ $^

$(LIB): $(ENTRY_OBJ) $(CORE_OBJ) shim.map
	@echo '  LINK $@'
	$(Q)$(CXX) -shared -o $@ $(ENTRY_OBJ) $(CORE_OBJ) $(SANITIZE_FLAGS) $(STATIC_CXX) \
	  -Wl,--version-script=shim.map -Wl,--no-undefined-version $(if $(SANITIZE),,-Wl,-z,defs) -Wl,-Bsymbolic-functions \
	  -Wl,--exclude-libs,ALL -Wl,-soname,libhmshim.so -Wl,-z,now -ldl -lpthread

# ---- the simulated GPU -----------------------------------------------------------------------------------------------
MODEL_OBJ := $(patsubst %.cpp,$(BUILD)/obj/%.o,$(wildcard tests/simgpu/model/*.cpp))
DRIVER_OBJ := $(patsubst %.cpp,$(BUILD)/obj/%.o,$(wildcard tests/simgpu/driver/*.cpp))
RUNTIME_OBJ := $(patsubst %.cpp,$(BUILD)/obj/%.o,$(wildcard tests/simgpu/runtime/*.cpp))
$(BUILD)/obj/tests/simgpu/driver/options.o: CPPFLAGS += -DSIMGPU_PROFILE_DIR='"$(abspath tests/simgpu/profiles)"'
SIMGPU := $(BUILD)/simgpu/libcuda.so.1 $(BUILD)/simgpu/libcudart.so.13
# The same driver without what is newer than CUDA 12.0.
SIMGPU_OLD := $(BUILD)/simgpu-12.0/libcuda.so.1

simgpu: $(SIMGPU) ## build the simulated GPU: build/simgpu/
$(BUILD)/libsimgpu_model.a: $(MODEL_OBJ)
	@rm -f $@
	@echo '  AR   $@'
	$(Q)ar rcs $@ $^
$(BUILD)/simgpu/libcuda.so.1: $(DRIVER_OBJ) $(MODEL_OBJ) tests/simgpu/driver/exports.map
	@mkdir -p $(@D)
	@echo '  LINK $@'
	$(Q)$(CXX) -shared -o $@ $(DRIVER_OBJ) $(MODEL_OBJ) $(SANITIZE_FLAGS) -Wl,-soname,libcuda.so.1 \
	  -Wl,--version-script=tests/simgpu/driver/exports.map -Wl,-Bsymbolic-functions -lzstd -llz4 -ldl -lpthread
	@ln -sf libcuda.so.1 $(@D)/libcuda.so
$(SIMGPU_OLD): $(DRIVER_OBJ) $(MODEL_OBJ) tests/simgpu/driver/entries.def
	@mkdir -p $(@D)
	@echo '  LINK $@'
	$(Q)sed -nE 's/^SIMGPU_ENTRY\(\w+, ([0-9]+), \w+, (\w+)\)/\1 \2/p' tests/simgpu/driver/entries.def | \
	  awk 'BEGIN { print "{ global: simgpu_*;" } $$1 <= 12000 { print $$2 ";" } END { print "local: *; };" }' >$(@D)/exports.map
	$(Q)$(CXX) -shared -o $@ $(DRIVER_OBJ) $(MODEL_OBJ) $(SANITIZE_FLAGS) -Wl,-soname,libcuda.so.1 \
	  -Wl,--version-script=$(@D)/exports.map -Wl,-Bsymbolic-functions -lzstd -llz4 -ldl -lpthread
$(BUILD)/simgpu/libcudart.so.13: $(RUNTIME_OBJ) tests/simgpu/runtime/exports.map
	@mkdir -p $(@D)
	@echo '  LINK $@'
	$(Q)$(CXX) -shared -o $@ $(RUNTIME_OBJ) $(SANITIZE_FLAGS) -Wl,-soname,libcudart.so.13 \
	  -Wl,--version-script=tests/simgpu/runtime/exports.map -ldl -lpthread
	@ln -sf libcudart.so.13 $(@D)/libcudart.so

# ---- guests: programs that know nothing of the library ---------------------------------------------------------------
# *.cu: built by nvcc against the shared runtime; *.cpp: driver API, linked to libcuda; *_kernels.cpp: host bodies of a guest's kernels;
# *_preload.cpp: preload libraries of others; *_library.cpp: libraries that a guest opens.
GUEST_CU := $(patsubst tests/guests/%.cu,$(BUILD)/guests/%,$(wildcard tests/guests/*.cu))
GUEST_KERNELS := $(patsubst tests/guests/%.cpp,$(BUILD)/guests/lib%.so,$(wildcard tests/guests/*_kernels.cpp))
GUEST_CPP := $(patsubst tests/guests/%.cpp,$(BUILD)/guests/%,$(filter-out %_kernels.cpp %_preload.cpp %_library.cpp,$(wildcard tests/guests/*.cpp)))
GUEST_PRELOADS := $(patsubst tests/guests/%.cpp,$(BUILD)/guests/lib%.so,$(wildcard tests/guests/*_preload.cpp))
GUEST_LIBRARIES := $(patsubst tests/guests/%.cpp,$(BUILD)/guests/lib%.so,$(wildcard tests/guests/*_library.cpp))
GUESTS := $(GUEST_CU) $(GUEST_KERNELS) $(GUEST_CPP) $(GUEST_PRELOADS) $(GUEST_LIBRARIES)
NVCC_GENCODE := -gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=sm_90 \
  -gencode arch=compute_100,code=sm_100 -gencode arch=compute_80,code=compute_80

guests: $(GUESTS) ## build the test programs: build/guests/
$(GUEST_CU): $(BUILD)/guests/%: tests/guests/%.cu $(wildcard tests/guests/*.hpp) | $(BUILD)/cuda.mk
	@mkdir -p $(@D)
	@echo '  NVCC $@'
	$(Q)$(NVCC) -std=c++17 -O2 -I. $(NVCC_GENCODE) -cudart $(CUDART) --default-stream $(DEFAULT_STREAM) -o $@ $< $(CUDART_LINK)
CUDART := shared
DEFAULT_STREAM := legacy
$(BUILD)/guests/streams: DEFAULT_STREAM := per-thread
$(BUILD)/guests/resolve_static_runtime: tests/guests/resolve_runtime.cu
$(BUILD)/guests/fits_static_runtime: tests/guests/fits.cu
$(BUILD)/guests/resolve_static_runtime $(BUILD)/guests/fits_static_runtime: CUDART := static
$(BUILD)/guests/resolve_static_runtime $(BUILD)/guests/fits_static_runtime: CUDART_LINK += $(CUDART_STATIC_LINK)
# Both the runtime's calls and the driver's.
$(BUILD)/guests/families $(BUILD)/guests/random_calls: CUDART_LINK += -L$(BUILD)/simgpu -lcuda
$(BUILD)/guests/families $(BUILD)/guests/random_calls: $(BUILD)/simgpu/libcuda.so.1
# They stand in for a GPU: -O3 and -fno-math-errno let the compiler use vectors.
$(GUEST_KERNELS): $(BUILD)/guests/lib%.so: tests/guests/%.cpp $(BUILD)/simgpu/libcuda.so.1 $(wildcard tests/guests/*.hpp)
	@mkdir -p $(@D)
	@echo '  CXX  $@'
	$(Q)$(CXX) $(CPPFLAGS) -std=c++20 -O3 -fno-math-errno -g -Wall -Wextra $(SANITIZE_FLAGS) -fPIC -shared -o $@ $< $(BUILD)/simgpu/libcuda.so.1
$(GUEST_CPP): $(BUILD)/guests/%: tests/guests/%.cpp $(BUILD)/simgpu/libcuda.so.1 $(wildcard tests/guests/*.hpp)
	@mkdir -p $(@D)
	@echo '  CXX  $@'
	$(Q)$(CXX) $(CPPFLAGS) -std=c++20 -O2 -g -Wall -Wextra $(SANITIZE_FLAGS) -o $@ $< -Wl,--as-needed $(BUILD)/simgpu/libcuda.so.1 -ldl -lpthread
$(GUEST_LIBRARIES): $(BUILD)/guests/lib%.so: tests/guests/%.cpp $(BUILD)/simgpu/libcuda.so.1
	@mkdir -p $(@D)
	@echo '  CXX  $@'
	$(Q)$(CXX) $(CPPFLAGS) -std=c++20 -O2 -g -Wall -Wextra $(SANITIZE_FLAGS) -fPIC -shared -o $@ $< $(BUILD)/simgpu/libcuda.so.1
$(GUEST_PRELOADS): $(BUILD)/guests/lib%.so: tests/guests/%.cpp $(wildcard tests/guests/*.hpp) | $(BUILD)/cuda.mk
	@mkdir -p $(@D)
	@echo '  CXX  $@'
	$(Q)$(CXX) -I. -std=c++20 -O2 -g -Wall -Wextra -fPIC -shared -o $@ $< -ldl

# A program with a C++ runtime of its own, and one that is instrumented while the library is not.
GUEST_CONDA := $(BUILD)/guests/conda/program
$(BUILD)/guests/conda/libstdc++.so.6: tests/guests/conda/cxx_runtime.cpp tests/guests/conda/cxx_runtime.map
	@mkdir -p $(@D)
	@echo '  CXX  $@'
	$(Q)$(CXX) -O2 -fPIC -shared -nodefaultlibs -Wl,-soname,libstdc++.so.6 -Wl,--version-script=$(word 2,$^) -o $@ $<
$(GUEST_CONDA): tests/guests/conda/program.cpp $(BUILD)/guests/conda/libstdc++.so.6
	@mkdir -p $(@D)
	@echo '  CXX  $@'
	$(Q)$(CXX) -O2 -nodefaultlibs -o $@ $^ -Wl,-rpath,'$$ORIGIN' -lc
GUEST_INSTRUMENTED := $(if $(SANITIZE),,$(patsubst %,$(BUILD)/guests/instrumented/%,address thread))
$(GUEST_INSTRUMENTED): $(BUILD)/guests/instrumented/%: tests/guests/process_life.cpp $(BUILD)/simgpu/libcuda.so.1
	@mkdir -p $(@D)
	@echo '  CXX  $@'
	$(Q)$(CXX) $(CPPFLAGS) -std=c++20 -O1 -g -Wall -Wextra -fsanitize=$* -o $@ $< $(BUILD)/simgpu/libcuda.so.1 -ldl -lpthread

# A driver that does nothing: what is left is the library's own time. A driver of CUDA 11.4: what it lacks must stay absent.
# (tests/null_driver/README.md, tests/old_driver/README.md)
NULL_DRIVER := $(BUILD)/null_driver/libcuda.so.1
OLD_DRIVER := $(BUILD)/old_driver/libcuda.so.1
$(NULL_DRIVER): tests/null_driver/null_driver.cpp
$(OLD_DRIVER): tests/old_driver/old_driver.cpp
$(NULL_DRIVER) $(OLD_DRIVER): | $(BUILD)/cuda.mk
	@mkdir -p $(@D)
	@echo '  CXX  $@'
	$(Q)$(CXX) $(CPPFLAGS) -std=c++20 -O2 -Wall -Wextra -fPIC -shared -o $@ $< -Wl,-soname,libcuda.so.1

# The runtime of CUDA 12, as programs of that time bring it along: to test that it finds the driver and us.
CUDA12_RUNTIME := $(BUILD)/cuda12/libcudart.so.12
$(CUDA12_RUNTIME):
	@echo '  PIP  $@'
	$(Q)$(PYTHON) -m venv $(@D)/venv
	$(Q)$(@D)/venv/bin/pip install -q --disable-pip-version-check 'nvidia-cuda-runtime-cu12==12.8.*'
	@ln -sf $$(cd $(@D) && echo venv/lib/python3*/site-packages/nvidia/cuda_runtime/lib/libcudart.so.12) $@

# ---- tests -----------------------------------------------------------------------------------------------------------
UNIT_GROUPS := $(notdir $(wildcard tests/unit/*))
SUPPORT_OBJ := $(patsubst %.cpp,$(BUILD)/obj/%.o,$(wildcard tests/support/*.cpp))
define unit_group
$(BUILD)/tests/unit_$(1): $(patsubst %.cpp,$(BUILD)/obj/%.o,$(wildcard tests/unit/$(1)/*.cpp)) $(SUPPORT_OBJ) \
    $(if $(filter simgpu,$(1)),$(DRIVER_OBJ)) $(BUILD)/libhmshim_core.a $(BUILD)/libsimgpu_model.a
	@mkdir -p $$(@D)
	@echo '  CXX  $$@'
	$$(Q)$(CXX) $$(SANITIZE_FLAGS) -o $$@ $$^ -lgmock -lgtest -lgtest_main -ldl -lpthread -lzstd -llz4
endef
$(foreach group,$(UNIT_GROUPS),$(eval $(call unit_group,$(group))))
UNIT_TESTS := $(UNIT_GROUPS:%=$(BUILD)/tests/unit_%)
PRELOAD_TESTS := $(BUILD)/tests/preload
$(BUILD)/obj/tests/preload/programs_test.o: CPPFLAGS += -DHMSHIM_TEST_LIBASAN='"$(shell $(CXX) -print-file-name=libasan.so)"'
$(PRELOAD_TESTS): $(patsubst %.cpp,$(BUILD)/obj/%.o,$(wildcard tests/preload/*.cpp)) $(SUPPORT_OBJ)
	@mkdir -p $(@D)
	@echo '  CXX  $@'
	$(Q)$(CXX) $(SANITIZE_FLAGS) -o $@ $^ -lgmock -lgtest -lgtest_main -ldl -lpthread

tests: $(LIB) $(SIMGPU) $(SIMGPU_OLD) $(NULL_DRIVER) $(OLD_DRIVER) $(GUESTS) $(GUEST_CONDA) $(GUEST_INSTRUMENTED) $(CUDA12_RUNTIME) $(UNIT_TESTS) $(PRELOAD_TESTS) $(BUILD)/bench/replay probe gpu-check-bundle ## build every test without running it

test: tests ## build and run all tests on the simulated GPU; TESTS=REGEX runs some
	@echo 'include("$(CURDIR)/tests/CTestTestfile.cmake")' >$(BUILD)/tests/CTestTestfile.cmake
	HMSHIM_TEST_SOURCE=$(CURDIR) HMSHIM_TEST_BUILD=$(abspath $(BUILD)) HMSHIM_TEST_CUDA=$(CUDA_ROOT) $(SANITIZER_ENVIRONMENT) \
	  ctest --test-dir $(BUILD)/tests --output-on-failure --no-tests=error -j$(JOBS) $(if $(TESTS),-R '$(TESTS)')

campaign: tests ## the long form of the random and fault campaigns; SEEDS=N random sequences of calls of each kind
	HMSHIM_TEST_SEEDS=$(SEEDS) HMSHIM_TEST_EVERY_FAULT=1 $(MAKE) test TESTS='Campaign'
SEEDS := 500

golden: replay ## play again all replays that golden-write kept (half an hour) and show what differs
	scripts/golden all --quiet --build $(BUILD)
golden-write: replay
	scripts/golden small --quiet --write --build $(BUILD)
	scripts/golden all --quiet --write --build $(BUILD)
	scripts/plot_sweep tests/golden/all.txt a100-40g-pcie4 >bench/ideal.svg
golden-stress: replay ## the small golden replays 20 times on one core, on two, and beside other work
	scripts/golden small --quiet --repeat 20 --cores 1 --build $(BUILD)
	scripts/golden small --quiet --repeat 20 --cores 2 --build $(BUILD)
	scripts/golden small --quiet --repeat 20 --cores 2 --burners 4 --build $(BUILD)

# What each target is linked with, beside the file of its name.
FUZZ_options := interpose/config.cpp
FUZZ_kernel_params := interpose/kernel_args.cpp interpose/tensor_maps.cpp uvm/allocation_table.cpp
FUZZ_pattern_file := interpose/pattern_file.cpp interpose/output_file.cpp $(wildcard policy/*.cpp policy/policies/*.cpp)
FUZZ_fatbin := tests/simgpu/driver/fatbin.cpp
FUZZ_profile := tests/simgpu/model/profile.cpp
FUZZERS := $(patsubst tests/fuzz/%_fuzz.cpp,$(BUILD)/fuzz/%,$(wildcard tests/fuzz/*_fuzz.cpp))
FUZZ_SECONDS := 10
.SECONDEXPANSION:
$(FUZZERS): $(BUILD)/fuzz/%: tests/fuzz/%_fuzz.cpp $$(FUZZ_%) | $(BUILD)/cuda.mk
	@mkdir -p $(@D)
	@echo '  CLANG $@'
	$(Q)clang++ $(CPPFLAGS) -std=c++20 -O1 -g -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=undefined -o $@ $^ -lzstd -llz4
fuzz: $(FUZZERS) ## throw random input at what reads from outside; FUZZ_SECONDS each
	set -e; cd $(BUILD)/fuzz; for target in $(notdir $(FUZZERS)); do mkdir -p corpus/$$target; \
	  ./$$target -max_total_time=$(FUZZ_SECONDS) -timeout=5 -verbosity=0 -print_final_stats=1 corpus/$$target; done
sanitize: ## all tests with address and undefined-behaviour sanitizers, then the threaded ones with the thread sanitizer
	$(MAKE) BUILD=$(BUILD)/asan SANITIZE=address,undefined test TESTS='$(or $(TESTS),^(unit|preload)\.)'
	$(MAKE) BUILD=$(BUILD)/tsan SANITIZE=thread test TESTS='$(or $(TESTS),^(unit|preload)\.)'

# ---- frameworks: PyTorch from PyPI on the simulated GPU, NVIDIA's other libraries stood in for -------------------------
# PROGRAMS= names some of them (tests/frameworks/run).
test-frameworks: $(LIB) $(SIMGPU) ## run PyTorch programs on the simulated GPU, with and without the library; downloads 530 MB once
	tests/frameworks/setup $(BUILD)
	tests/frameworks/standins/build $(BUILD) $(NVCC) $(CUDA_INCLUDE) $(BUILD)/frameworks/venv/lib/python3*/site-packages/torch/lib
	tests/frameworks/run $(BUILD) $(PROGRAMS)

# ---- what waits for a card -------------------------------------------------------------------------------------------
# With the shared runtime: a program that came with the static one would not start on the simulated GPU. The bundle brings the runtime along.
PROBE := $(BUILD)/gpu/probe
PROBE_KERNELS := $(BUILD)/gpu/libprobe_kernels.so
probe: $(PROBE) $(PROBE_KERNELS) ## build the hardware probe: build/gpu/probe
$(BUILD)/gpu/%.o: tests/gpu/%.cu tests/gpu/probe.hpp | $(BUILD)/cuda.mk
	@mkdir -p $(@D)
	@echo '  NVCC $@'
	$(Q)$(NVCC) -std=c++17 -O2 -I. $(NVCC_GENCODE) -c -o $@ $<
$(PROBE): $(patsubst tests/gpu/%.cu,$(BUILD)/gpu/%.o,$(wildcard tests/gpu/*.cu))
	@echo '  NVCC $@'
	$(Q)$(NVCC) -cudart shared -o $@ $^ $(CUDART_LINK) -Xlinker -rpath=$(CUDA_LIB)
$(PROBE_KERNELS): tests/gpu/probe_kernels.cpp tests/guests/host_body.hpp $(BUILD)/simgpu/libcuda.so.1
	@mkdir -p $(@D)
	@echo '  CXX  $@'
	$(Q)$(CXX) $(CPPFLAGS) -std=c++20 -O3 -g -Wall -Wextra $(SANITIZE_FLAGS) -fPIC -shared -o $@ $< $(BUILD)/simgpu/libcuda.so.1

# Reads the driver's own counters of unified memory, where CUPTI is installed.
UM_COUNTERS := $(if $(wildcard $(CUDA_LIB)/libcupti.so.13),$(BUILD)/gpu/libum_counters.so)
$(BUILD)/gpu/libum_counters.so: tests/gpu/um_counters.cpp | $(BUILD)/cuda.mk
	@mkdir -p $(@D)
	@echo '  CXX  $@'
	$(Q)$(CXX) $(CPPFLAGS) -std=c++20 -O2 -g -Wall -Wextra -fPIC -shared -static-libstdc++ -static-libgcc -o $@ $< \
	  $(CUDA_LIB)/libcupti.so.13 -Wl,-rpath,'$$ORIGIN'

# All that a machine with a card needs: neither compiler nor network.
GPU_CHECK := $(BUILD)/gpu-check
GPU_CHECK_BIN := $(PROBE) $(addprefix $(BUILD)/guests/,allocate_until fits fits_static_runtime launch_args streams capture beside_capture families comm layers)
GPU_CHECK_LIB := $(LIB) $(BUILD)/guests/libcomm_library.so $(UM_COUNTERS) $(CUDA_LIB)/libcudart.so.13 $(wildcard $(CUDA_LIB)/libcupti.so.13)
gpu-check-bundle: $(GPU_CHECK_BIN) $(GPU_CHECK_LIB) ## a folder to take to a machine with a GPU: build/gpu-check/gpu-check does all checks there
	rm -rf $(GPU_CHECK)
	install -D -t $(GPU_CHECK)/bin $(GPU_CHECK_BIN)
	install -D -t $(GPU_CHECK)/lib $(GPU_CHECK_LIB)
	strip --strip-debug $(GPU_CHECK)/bin/* $(GPU_CHECK)/lib/libhmshim.so
	install -D -m 644 -t $(GPU_CHECK)/python tests/gpu/python/*.py
	install scripts/gpu-check $(GPU_CHECK)
	@size=$$(du -sm $(GPU_CHECK) | cut -f1); echo "$(GPU_CHECK): $$size MiB"; [ $$size -le $(GPU_CHECK_MOST_MIB) ]
# Less than 64 MiB with the source tree.
GPU_CHECK_MOST_MIB := 48
test-gpu: gpu-check-bundle ## check hmshim on this machine's GPU, within limits that keep the card safe; results in build/gpu-results
	$(GPU_CHECK)/gpu-check --out $(BUILD)/gpu-results || { status=$$?; [ $$status -eq 77 ] && echo 'test-gpu: skipped, there is no GPU' || exit $$status; }

demo: $(LIB) $(SIMGPU) $(BUILD)/guests/mlp $(BUILD)/guests/libmlp_kernels.so ## train a model twice the device's memory: fails without the library, trains with it
	scripts/demo $(BUILD)

# ---- benchmarks ------------------------------------------------------------------------------------------------------
BENCHES := $(patsubst bench/%.cpp,$(BUILD)/bench/%,$(wildcard bench/*_bench.cpp))
$(BENCHES): $(BUILD)/bench/%: $(BUILD)/obj/bench/%.o $(BUILD)/libhmshim_core.a
	@mkdir -p $(@D)
	@echo '  CXX  $@'
	$(Q)$(CXX) -o $@ $^ -lbenchmark -ldl -lpthread
$(BUILD)/bench/launch_path $(BUILD)/bench/process_cost: $(BUILD)/bench/%: bench/%.cpp $(NULL_DRIVER)
	@mkdir -p $(@D)
	@echo '  CXX  $@'
	$(Q)$(CXX) $(CPPFLAGS) -std=c++20 -O2 -Wall -Wextra -o $@ $< $(NULL_DRIVER)
$(BUILD)/bench/plan: $(patsubst %,$(BUILD)/obj/bench/%.o,plan trace_reader) $(BUILD)/libhmshim_core.a
	@mkdir -p $(@D)
	@echo '  CXX  $@'
	$(Q)$(CXX) -o $@ $^ -lz -lpthread
# Plays traces on the simulated GPU, as a guest of the library.
REPLAY := $(BUILD)/bench/replay
replay: $(REPLAY) ## build the player of traces: build/bench/replay
$(REPLAY): $(patsubst %,$(BUILD)/obj/%.o,bench/replay bench/replay_guest bench/replay_options bench/trace_reader policy/access_pattern \
    tests/simgpu/model/profile) \
    $(SUPPORT_OBJ) $(BUILD)/simgpu/libcuda.so.1 | $(BUILD)/bench/replay_kernels.fatbin $(LIB)
	@mkdir -p $(@D)
	@echo '  CXX  $@'
	$(Q)$(CXX) -o $@ $(filter %.o,$^) $(BUILD)/simgpu/libcuda.so.1 -Wl,-rpath,'$$ORIGIN/../simgpu' -lz -lpthread
$(BUILD)/obj/bench/replay.o: CPPFLAGS += -DREPLAY_PROFILE_DIR='"$(abspath tests/simgpu/profiles)"'
$(BUILD)/bench/replay_kernels.fatbin: bench/replay_kernels.cu bench/replay_kernels.hpp | $(BUILD)/cuda.mk
	@mkdir -p $(@D)
	@echo '  NVCC $@'
	$(Q)$(NVCC) -std=c++17 -I. -fatbin -arch=sm_80 -o $@ $<
# The model alone, against what others have published.
VALIDATE_MODEL := $(BUILD)/bench/validate_model
$(VALIDATE_MODEL): $(patsubst %,$(BUILD)/obj/%.o,bench/validate_model bench/trace_reader policy/access_pattern) $(BUILD)/libsimgpu_model.a
	@mkdir -p $(@D)
	@echo '  CXX  $@'
	$(Q)$(CXX) -o $@ $^ -lz -lpthread
validate: $(REPLAY) $(VALIDATE_MODEL) $(BUILD)/tests/unit_simgpu ## the simulated GPU and the baselines against published figures; TRACES=folder of G10's
	scripts/validate $(BUILD) $(TRACES)
bench: $(LIB) $(NULL_DRIVER) $(BENCHES) $(BUILD)/bench/launch_path $(BUILD)/bench/process_cost ## measure the launch path, the table, the allocation path and what a process pays
	scripts/bench $(BUILD)

# ---- upkeep ----------------------------------------------------------------------------------------------------------
generate: | $(BUILD)/cuda.mk ## rewrite every generated file from the .def tables and from the results of real cards
	CUDA_INCLUDE=$(CUDA_INCLUDE) $(PYTHON) scripts/docgen
	$(PYTHON) scripts/hardware_table
lint: $(LIB) ## formatting, static analysis, generated files, include rules, exported and needed symbols
	BUILD=$(BUILD) CUDA_INCLUDE=$(CUDA_INCLUDE) tests/lint/run
format: ## format all C++ sources in place
	git ls-files -co --exclude-standard '*.cpp' '*.hpp' '*.cu' | xargs -r clang-format -i
ci: ## what continuous integration runs: lint, then the tests
	$(MAKE) lint
	$(MAKE) test
install: $(LIB) ## install the library, the hmshim command and its man page under PREFIX
	install -D -m 755 $(LIB) $(DESTDIR)$(PREFIX)/lib/libhmshim.so
	install -D -m 755 scripts/hmshim $(DESTDIR)$(PREFIX)/bin/hmshim
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/hmshim scripts/def_table.py interpose/options.def interpose/counters.def
	install -D -m 644 scripts/hmshim.1 $(DESTDIR)$(PREFIX)/share/man/man1/hmshim.1
uninstall: ## remove what install put under PREFIX
	rm -rf $(DESTDIR)$(PREFIX)/lib/libhmshim.so $(DESTDIR)$(PREFIX)/bin/hmshim $(DESTDIR)$(PREFIX)/share/hmshim \
	  $(DESTDIR)$(PREFIX)/share/man/man1/hmshim.1
dist: $(LIB) ## an archive of what install puts in place: build/hmshim-VERSION-linux-ARCH.tar.gz
	rm -rf $(BUILD)/dist
	$(MAKE) install DESTDIR=$(BUILD)/dist PREFIX=/hmshim-$(VERSION)
	strip --strip-debug $(BUILD)/dist/hmshim-$(VERSION)/lib/libhmshim.so
	install -m 644 -t $(BUILD)/dist/hmshim-$(VERSION) LICENSE README.md CHANGELOG.md
	tar -C $(BUILD)/dist --owner=0 --group=0 -czf $(BUILD)/hmshim-$(VERSION)-linux-$(ARCH).tar.gz hmshim-$(VERSION)
	@echo $(BUILD)/hmshim-$(VERSION)-linux-$(ARCH).tar.gz
aarch64: ## build the library for 64-bit ARM: build/aarch64/libhmshim.so (needs g++-aarch64-linux-gnu)
	$(MAKE) BUILD=$(BUILD)/aarch64 CXX=aarch64-linux-gnu-g++ $(BUILD)/aarch64/libhmshim.so
clean: ## remove the build folder
	rm -rf $(BUILD)
help: ## list the targets; V=1 shows commands, BUILD=folder builds there, SANITIZE=address,undefined or thread instruments
	@grep -hE '^[a-z0-9-]+:.*## ' Makefile | sed -E 's/^([a-z0-9-]+):.*## /\1\t/' | sort | awk -F'\t' '{printf "  %-16s %s\n", $$1, $$2}'

.PHONY: all simgpu guests tests test test-frameworks campaign golden golden-write golden-stress fuzz sanitize probe gpu-check-bundle test-gpu demo replay validate bench generate lint format ci install uninstall dist aarch64 clean help
-include $(shell find $(BUILD)/obj -name '*.d' 2>/dev/null)
