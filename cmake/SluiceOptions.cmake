# Language level, warnings, sanitizers and the libraries that the whole tree may use.
option(SLUICE_BUILD_TESTS "Build the tests" ON)
option(SLUICE_BUILD_BENCH "Build the laboratory (lab/): sluice-lab and micro-benchmarks" OFF)
option(SLUICE_PYTHON "Build the Python package; set by pip install (pyproject.toml)" OFF)
option(SLUICE_STATIC "Link the programs statically but for the C library (make release)" OFF)
option(SLUICE_BUILD_FUZZERS "Build the libFuzzer targets (clang only)" OFF)
option(SLUICE_UNITY_BUILD "Compile several files of some folders as one (sluice_unity)" OFF)
set(SLUICE_SANITIZE "" CACHE STRING "Sanitizers to build with: address,undefined or thread")
# Shared machines can be ten times slower than a quiet one; make deep-test gives more.
set(SLUICE_TEST_TIMEOUT 1200 CACHE STRING
  "Seconds that a test may take which names no limit of its own")

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
# Whether kernels for the ISAs of x86 are compiled; other processors use those of portable vectors.
set(SLUICE_X86 OFF)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
  set(SLUICE_X86 ON)
endif()
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

# One set of floating-point rules everywhere: no reassociation and no implicit contraction, so that
# results do not depend on the compiler's choices. Kernels use fused multiply-add explicitly.
# Designated initialisers omit members on purpose, which GCC 12 reports as missing.
set(sluice_warnings -Wall -Wextra -Werror -Wshadow -Wno-missing-field-initializers)
set(sluice_cxx_options ${sluice_warnings} -Wnon-virtual-dtor -ffp-contract=off)
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  list(APPEND sluice_cxx_options -Wno-unknown-warning-option)  # some files name warnings of GCC
endif()
add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:${sluice_cxx_options}>")
if(SLUICE_SANITIZE)
  # A finding of UBSan must end the program, since a line on stderr would not fail a test.
  add_compile_options(-fsanitize=${SLUICE_SANITIZE} -fno-sanitize-recover=all
                      -fno-omit-frame-pointer)
  # Without -g1 compiling takes a fifth less; the price is that reports name functions without
  # lines. To see lines, configure with -DCMAKE_CXX_FLAGS=-g1. Reports of ThreadSanitizer need it,
  # since the tests of planted races look for functions that the compiler may inline.
  if(SLUICE_SANITIZE MATCHES thread)
    add_compile_options(-g1)
  endif()
  # These two checks take a third of the time to compile a kernel. Without them an access through a
  # null pointer still ends the program, and AddressSanitizer reports one beyond an object; a null
  # reference that nothing reads stays unseen.
  add_compile_options(-fno-sanitize=null,object-size)
  add_link_options(-fsanitize=${SLUICE_SANITIZE})
endif()

if(SLUICE_BUILD_FUZZERS)
  add_compile_options(-fsanitize=fuzzer-no-link)  # coverage of the libraries, not of main alone
endif()

# Paths relative to the checkout, so that another checkout and the Python package find the same
# objects. The sloppiness is what ccache asks for before it caches users of precompiled headers;
# no file of the tree uses __DATE__ or __TIME__.
find_program(CCACHE ccache)
if(CCACHE)
  set(sluice_launcher ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}
    CCACHE_NOHASHDIR=1 CCACHE_SLOPPINESS=pch_defines,time_macros
    sh ${PROJECT_SOURCE_DIR}/cmake/ccache.sh ${CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${sluice_launcher})
endif()

# lld takes less time than GNU ld; sanitized builds link about 90 programs of the whole engine. A
# cross compiler has its own ld.
find_program(SLUICE_LLD ld.lld)
if(SLUICE_LLD AND NOT CMAKE_CROSSCOMPILING)
  add_link_options(-fuse-ld=lld)
endif()

include(SluiceCuda)

# Libraries that others link need position-independent code. It costs nothing here: code calls
# through the linker only where it would leave its file anyway, and the flag below lets the compiler
# inline what a shared library could otherwise replace.
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-fno-semantic-interposition>")

if(SLUICE_PYTHON OR SLUICE_STATIC)
  include(SluiceStatic)
endif()
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(nlohmann_json 3.11 REQUIRED)  # headers alone, and none in public headers
find_package(Boost 1.81 REQUIRED CONFIG)  # Asio and Beast, headers alone
find_package(OpenSSL REQUIRED)  # SHA-256 and constant-time comparison of keys
find_package(utf8proc REQUIRED)
find_library(YAML_CPP_LIBRARY NAMES yaml-cpp REQUIRED)  # files of options
find_package(xxhash REQUIRED)
