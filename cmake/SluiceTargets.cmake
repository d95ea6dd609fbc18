# sluice_folder(name SOURCES ... DEPENDS ...): the static library of one folder of src/.
function(sluice_folder name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS;LIBRARIES" ${ARGN})
  add_library(sluice_${name} STATIC ${ARG_SOURCES})
  target_include_directories(sluice_${name} PUBLIC
    ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/include)
  list(TRANSFORM ARG_DEPENDS PREPEND sluice_)
  target_link_libraries(sluice_${name} PUBLIC ${ARG_DEPENDS} fmt::fmt ${ARG_LIBRARIES})
endfunction()

# sluice_test(name SOURCES ... DEPENDS ... LABELS ...): one GoogleTest program, one ctest entry.
# The entry's name is the program's name; labels are those of design section 8. With GPU the
# program tests the device that SLUICE_TEST_DEVICE names, and a build with CUDA has a second entry,
# name_gpu, that asks for the GPU.
function(sluice_test name)
  cmake_parse_arguments(ARG "GPU" "TIMEOUT" "SOURCES;DEPENDS;LIBRARIES;LABELS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 1200)  # shared machines can be ten times slower than a quiet one
  endif()
  add_executable(${name} ${ARG_SOURCES})
  list(TRANSFORM ARG_DEPENDS PREPEND sluice_)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  target_link_libraries(${name} PRIVATE ${ARG_DEPENDS} ${ARG_LIBRARIES} GTest::gtest_main)
  target_compile_definitions(${name} PRIVATE SLUICE_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  add_test(NAME ${name} COMMAND ${name} WORKING_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR})
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT})
  if(ARG_GPU AND SLUICE_CUDA)
    add_test(NAME ${name}_gpu COMMAND ${name} WORKING_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR})
    set_tests_properties(${name}_gpu PROPERTIES LABELS gpu TIMEOUT ${ARG_TIMEOUT}
      ENVIRONMENT SLUICE_TEST_DEVICE=cuda RUN_SERIAL TRUE)
    cmake_path(GET CMAKE_CURRENT_SOURCE_DIR FILENAME folder)
    sluice_gpu_program(test ${folder} ${name})
  endif()
endfunction()

# sluice_gpu_program(kind folder target): a program that tools/gpu/pack.sh can carry to a GPU.
function(sluice_gpu_program kind folder target)
  set_property(GLOBAL APPEND PROPERTY SLUICE_GPU_PROGRAMS ${target})
  set_property(GLOBAL APPEND_STRING PROPERTY SLUICE_GPU_PROGRAM_LINES
    "${kind} ${folder} $<TARGET_FILE:${target}>\n")
endfunction()

# Called once all targets are known: the list for pack.sh and a target that builds what is on it.
function(sluice_finish_gpu_programs)
  get_property(programs GLOBAL PROPERTY SLUICE_GPU_PROGRAMS)
  get_property(lines GLOBAL PROPERTY SLUICE_GPU_PROGRAM_LINES)
  file(GENERATE OUTPUT ${PROJECT_BINARY_DIR}/gpu_programs.txt CONTENT "${lines}")
  add_custom_target(gpu_programs DEPENDS ${programs})
endfunction()
