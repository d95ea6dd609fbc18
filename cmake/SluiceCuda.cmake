# SLUICE_CUDA: whether the CUDA backend is built. After this file it is ON or OFF; the sources say
# which they are by the lists in src/device and src/ops, never by #ifdef.
set(SLUICE_CUDA AUTO CACHE STRING
  "Build the CUDA backend: ON, OFF or AUTO (where there are a GPU and nvcc)")
set(SLUICE_CUDA_ARCHITECTURES 90a CACHE STRING
  "GPUs to build kernels for: a list of 80, 86, 89, 90a")
set_property(CACHE SLUICE_CUDA PROPERTY STRINGS AUTO ON OFF)

find_program(SLUICE_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH /usr/local/cuda PATH_SUFFIXES bin)

# AUTO asks whether this machine could run what it builds: a toolkit alone (a build server, say) is
# asked for with ON.
if(SLUICE_CUDA STREQUAL AUTO)
  set(SLUICE_CUDA OFF)
  if(SLUICE_NVCC AND NOT SLUICE_SANITIZE)
    execute_process(COMMAND nvidia-smi -L RESULT_VARIABLE no_gpu OUTPUT_QUIET ERROR_QUIET)
    if(no_gpu EQUAL 0 OR EXISTS /dev/nvidia0)
      set(SLUICE_CUDA ON)
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
                        "(12.4 or newer), put nvcc in PATH or set CUDA_HOME")
  endif()
  set(CMAKE_CUDA_COMPILER "${SLUICE_NVCC}")
  set(CMAKE_CUDA_ARCHITECTURES "${SLUICE_CUDA_ARCHITECTURES}")
  set(CMAKE_CUDA_RUNTIME_LIBRARY Static)  # starts where there is no CUDA, and says so
  if(CCACHE)
    set(CMAKE_CUDA_COMPILER_LAUNCHER "${CCACHE}")
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
  # fmt 9 takes nvcc for a compiler without constexpr, and then does not compile as C++20.
  add_compile_definitions("$<$<COMPILE_LANGUAGE:CUDA>:FMT_USE_CONSTEXPR=1>")
endif()
