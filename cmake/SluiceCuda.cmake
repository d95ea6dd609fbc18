# SLUICE_CUDA: whether the CUDA backend is built. After this file it is ON or OFF. The source lists
# in src/device and src/ops depend on it; no #ifdef does.
set(SLUICE_CUDA AUTO CACHE STRING
  "Build the CUDA backend: ON, OFF or AUTO (where there are a GPU and nvcc)")
set_property(CACHE SLUICE_CUDA PROPERTY STRINGS AUTO ON OFF)
set(sluice_oldest_nvcc 12.5)  # cudaGetDriverEntryPointByVersion

find_program(SLUICE_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH /usr/local/cuda PATH_SUFFIXES bin)

set(sluice_nvcc_version 0)
if(SLUICE_NVCC)
  execute_process(COMMAND ${SLUICE_NVCC} --version OUTPUT_VARIABLE sluice_nvcc_text)
  if(sluice_nvcc_text MATCHES "release ([0-9.]+)")
    set(sluice_nvcc_version ${CMAKE_MATCH_1})
  endif()
endif()

# The compute capability of this machine's GPU, such as "9.0"; empty without one. Kernels are built
# for it, or for Hopper when it is unknown.
execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader --id=0
  OUTPUT_VARIABLE sluice_gpu RESULT_VARIABLE no_gpu ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
set(sluice_architecture 90a)
if(no_gpu EQUAL 0 AND sluice_gpu MATCHES "^([0-9]+)[.]([0-9])$" AND NOT sluice_gpu STREQUAL 9.0)
  set(sluice_architecture ${CMAKE_MATCH_1}${CMAKE_MATCH_2})
endif()
set(SLUICE_CUDA_ARCHITECTURES ${sluice_architecture} CACHE STRING
  "GPUs to build kernels for: a list of 80, 86, 89, 90a, each also with -real (no PTX)")

# AUTO builds the backend if this machine could run it: a machine that only has the toolkit (such as
# a build server) needs ON.
if(SLUICE_CUDA STREQUAL AUTO)
  set(SLUICE_CUDA OFF)
  if(SLUICE_NVCC AND NOT SLUICE_SANITIZE AND (no_gpu EQUAL 0 OR EXISTS /dev/nvidia0))
    if(sluice_nvcc_version VERSION_GREATER_EQUAL sluice_oldest_nvcc)
      set(SLUICE_CUDA ON)
    else()
      message(STATUS "nvcc ${sluice_nvcc_version} is older than ${sluice_oldest_nvcc}")
    endif()
  endif()
  message(STATUS "CUDA backend: ${SLUICE_CUDA}")
endif()

if(SLUICE_CUDA)
  if(SLUICE_SANITIZE)
    message(FATAL_ERROR "SLUICE_SANITIZE watches the CPU's code; give -DSLUICE_CUDA=OFF with it, "
                        "and use tools/gpu/sanitize.sh for kernels")
  endif()
  if(NOT SLUICE_NVCC)
    message(FATAL_ERROR "SLUICE_CUDA is ON, but there is no nvcc; install the CUDA toolkit "
                        "(${sluice_oldest_nvcc} or newer), put nvcc in PATH or set CUDA_HOME")
  endif()
  if(sluice_nvcc_version VERSION_LESS sluice_oldest_nvcc)
    message(FATAL_ERROR "SLUICE_CUDA is ON, but ${SLUICE_NVCC} is of CUDA ${sluice_nvcc_version}; "
                        "install ${sluice_oldest_nvcc} or newer, or set CUDA_HOME to it")
  endif()
  set(CMAKE_CUDA_COMPILER "${SLUICE_NVCC}")
  set(CMAKE_CUDA_ARCHITECTURES "${SLUICE_CUDA_ARCHITECTURES}")
  set(CMAKE_CUDA_RUNTIME_LIBRARY Static)  # the program also starts without CUDA, and reports that
  if(CCACHE)
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${sluice_launcher})
  endif()
  enable_language(CUDA)
  set(CMAKE_CUDA_STANDARD 20)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  set(CMAKE_CUDA_EXTENSIONS OFF)
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # Debian 12's CMake does not know it yet
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  endif()
  find_package(CUDAToolkit REQUIRED)
  list(JOIN sluice_warnings "," host_warnings)
  add_compile_options("$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=${host_warnings}>"
                      "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-Werror all-warnings>"
                      "$<$<COMPILE_LANGUAGE:CUDA>:-lineinfo>")
  # What is handed to others is smaller. The drivers of CUDA 13 read it; older ones may not.
  if((SLUICE_PYTHON OR SLUICE_STATIC) AND sluice_nvcc_version VERSION_GREATER_EQUAL 13.0)
    add_compile_options("$<$<COMPILE_LANGUAGE:CUDA>:--compress-mode=size>")
  endif()
  # fmt 9 treats nvcc as a compiler without constexpr, and then does not compile as C++20.
  add_compile_definitions("$<$<COMPILE_LANGUAGE:CUDA>:FMT_USE_CONSTEXPR=1>")
endif()
