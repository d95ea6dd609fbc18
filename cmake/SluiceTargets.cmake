# sluice_folder(name SOURCES ... DEPENDS ...): the static library of one folder of src/. LIBRARIES
# have code to link, and only the folder's own files include their headers; HEADERS are header-only
# libraries; OBJECTS are object libraries whose objects belong to the folder.
function(sluice_folder name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS;LIBRARIES;HEADERS;OBJECTS" ${ARGN})
  set(objects ${ARG_OBJECTS})
  list(TRANSFORM objects REPLACE "(.+)" "$<TARGET_OBJECTS:\\1>")
  add_library(sluice_${name} STATIC ${ARG_SOURCES} ${objects})
  target_include_directories(sluice_${name} PUBLIC
    ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/include)
  list(TRANSFORM ARG_DEPENDS PREPEND sluice_)
  target_link_libraries(sluice_${name}
    PUBLIC ${ARG_DEPENDS} fmt::fmt ${ARG_HEADERS} PRIVATE ${ARG_LIBRARIES})
  set_target_properties(sluice_${name} PROPERTIES
    SLUICE_LIBRARIES "${ARG_LIBRARIES}" SLUICE_OBJECTS "sluice_${name};${ARG_OBJECTS}")
endfunction()

# sluice_library(folders...): the library that others link, made of the folders' objects, which are
# compiled once. BUILD_SHARED_LIBS chooses its kind. See SluiceInstall.cmake.
function(sluice_library)
  add_library(sluice_library)
  add_library(sluice::sluice ALIAS sluice_library)
  foreach(folder ${ARGN})
    get_target_property(objects sluice_${folder} SLUICE_OBJECTS)
    list(TRANSFORM objects REPLACE "(.+)" "$<TARGET_OBJECTS:\\1>")
    target_sources(sluice_library PRIVATE ${objects})
    get_target_property(libraries sluice_${folder} SLUICE_LIBRARIES)
    target_link_libraries(sluice_library PRIVATE ${libraries})
  endforeach()
  target_link_libraries(sluice_library PRIVATE fmt::fmt)
  target_compile_features(sluice_library PUBLIC cxx_std_20)
  target_include_directories(sluice_library INTERFACE
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>)
  # OUTPUT_NAME alone: a target called sluice would hide the program of that name from ninja.
  set_target_properties(sluice_library PROPERTIES
    OUTPUT_NAME sluice EXPORT_NAME sluice LINKER_LANGUAGE CXX
    VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
endfunction()

# sluice_unity(target [FILES n]): with SLUICE_UNITY_BUILD up to n files of this target (24) are
# compiled as one. For targets of many files that spend their time in the headers that they share:
# src/server takes a quarter of the time. Names in the anonymous namespaces of such a target must
# differ.
function(sluice_unity target)
  cmake_parse_arguments(ARG "" "FILES" "" ${ARGN})
  if(NOT ARG_FILES)
    set(ARG_FILES 24)
  endif()
  set_target_properties(${target} PROPERTIES
    UNITY_BUILD ${SLUICE_UNITY_BUILD} UNITY_BUILD_BATCH_SIZE ${ARG_FILES})
endfunction()

# sluice_test(name SOURCES ... DEPENDS ... LABELS ...): one GoogleTest program, one ctest entry. The
# entry's name is the program's name; labels are those of design section 8. With GPU the program
# tests the device that SLUICE_TEST_DEVICE names, and a build with CUDA has a second entry,
# name_gpu, that asks for the GPU. ONE_THREAD: the code under test runs in one thread, or other
# tests cover its threads; ThreadSanitizer builds leave the program out. COST: its approximate
# seconds under sanitizers; ctest starts the longest ones first. SAMPLE n: under ThreadSanitizer the
# entry runs every n-th test of the program, to save time; the variable SLUICE_TEST_SAMPLE of the
# environment, when CMake runs, chooses which. The entry name_whole, for make deep-test, runs all;
# the other one then has the label sampled. ASAN_SAMPLE n: the same under AddressSanitizer, where
# SLUICE_TEST_SAMPLE=all lets the entry run all.
# The program's files are compiled as one (sluice_unity) unless they are SEPARATE, because names in
# their anonymous namespaces are the same.
function(sluice_test name)
  cmake_parse_arguments(ARG
    "GPU;ONE_THREAD;SEPARATE" "TIMEOUT;COST;SAMPLE;ASAN_SAMPLE"
    "SOURCES;DEPENDS;LIBRARIES;LABELS" ${ARGN})
  if(NOT ARG_COST)
    set(ARG_COST 0)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT ${SLUICE_TEST_TIMEOUT})
  endif()
  if(CMAKE_CROSSCOMPILING)
    math(EXPR ARG_TIMEOUT "${ARG_TIMEOUT} * 10")  # under an emulator
  endif()
  add_executable(${name} ${ARG_SOURCES})
  if(NOT ARG_SEPARATE)
    sluice_unity(${name} FILES 8)
  endif()
  list(TRANSFORM ARG_DEPENDS PREPEND sluice_)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  target_link_libraries(${name} PRIVATE
    ${ARG_DEPENDS} ${ARG_LIBRARIES} sluice_source_dir GTest::gtest_main)
  target_compile_definitions(${name} PRIVATE SLUICE_SANITIZER="${SLUICE_SANITIZE}")
  # The precompiled headers include those of src, which a test without folders does not find.
  if(SLUICE_TEST_HEADERS AND ARG_DEPENDS)
    target_precompile_headers(${name} REUSE_FROM ${SLUICE_TEST_HEADERS})
  endif()
  add_test(NAME ${name} COMMAND ${name} WORKING_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR})
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT}
    COST ${ARG_COST})
  if(ARG_ONE_THREAD)
    sluice_one_thread(${name})
  endif()
  if(SLUICE_SANITIZE MATCHES thread)
    set(every ${ARG_SAMPLE})
  elseif(SLUICE_SANITIZE AND NOT "$ENV{SLUICE_TEST_SAMPLE}" STREQUAL "all")
    set(every ${ARG_ASAN_SAMPLE})
  endif()
  if(every)
    # Divided, so that a test meets all cases of tests/support/sample_of.h, which take the number.
    set(sample 0)
    if("$ENV{SLUICE_TEST_SAMPLE}" MATCHES "^[0-9]+$")
      math(EXPR sample "$ENV{SLUICE_TEST_SAMPLE} / 7 % ${every}")
    endif()
    set_tests_properties(${name} PROPERTIES
      ENVIRONMENT "GTEST_TOTAL_SHARDS=${every};GTEST_SHARD_INDEX=${sample}"
      LABELS "${ARG_LABELS};sampled")
  endif()
  if(every AND SLUICE_SANITIZE MATCHES thread)
    add_test(NAME ${name}_whole COMMAND ${name} WORKING_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR})
    set_tests_properties(${name}_whole PROPERTIES
      LABELS slow TIMEOUT ${ARG_TIMEOUT} RUN_SERIAL TRUE)
  endif()
  if(ARG_GPU AND SLUICE_CUDA)
    add_test(NAME ${name}_gpu COMMAND ${name} WORKING_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR})
    set_tests_properties(${name}_gpu PROPERTIES LABELS gpu TIMEOUT ${ARG_TIMEOUT}
      ENVIRONMENT SLUICE_TEST_DEVICE=cuda RUN_SERIAL TRUE)
    cmake_path(GET CMAKE_CURRENT_SOURCE_DIR FILENAME folder)
    sluice_gpu_program(test ${folder} ${name})
  endif()
endfunction()

# sluice_program_test(name program ...): a sluice_test that runs `program`, a target. It sees no
# GPU, since such tests check the bits and the progress of the CPU.
function(sluice_program_test name program)
  sluice_test(${name} ${ARGN} DEPENDS io LABELS e2e)
  add_dependencies(${name} ${program})
  target_compile_definitions(${name} PRIVATE SLUICE_PROGRAM="$<TARGET_FILE:${program}>")
  set_tests_properties(${name} PROPERTIES ENVIRONMENT_MODIFICATION "CUDA_VISIBLE_DEVICES=set:")
endfunction()

# sluice_test_headers(name headers...): with SLUICE_UNITY_BUILD the headers that the tests of the
# folders that follow share are parsed once, with this folder's options. Other builds parse them for
# each file, and so find an #include that is missing. A program of its own, since the tests'
# options are those of programs.
macro(sluice_test_headers name)
  if(SLUICE_UNITY_BUILD)
    sluice_own_test_headers(${name} ${ARGN})
    set(SLUICE_TEST_HEADERS ${name})
  endif()
endmacro()

function(sluice_own_test_headers name)
  add_executable(${name} EXCLUDE_FROM_ALL ${PROJECT_SOURCE_DIR}/tests/support/empty_main.cc)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests
    ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/include)
  target_link_libraries(${name} PRIVATE fmt::fmt GTest::gtest)
  target_compile_definitions(${name} PRIVATE SLUICE_SANITIZER="${SLUICE_SANITIZE}")
  target_precompile_headers(${name} PRIVATE ${ARGN})
endfunction()

# sluice_one_thread(test): ThreadSanitizer builds leave out this test, whose program has its name.
function(sluice_one_thread test)
  if(SLUICE_SANITIZE MATCHES thread)
    sluice_left_out(${test})
  endif()
endfunction()

# sluice_release_test(test): this test takes minutes with a sanitizer, and others run the code below
# it with one. Sanitized builds leave it out; CI builds the target release_tests and runs the label
# release.
function(sluice_release_test test)
  set_property(TEST ${test} APPEND PROPERTY LABELS release)
  if(NOT TARGET release_tests)
    add_custom_target(release_tests)
  endif()
  add_dependencies(release_tests ${test})
  if(SLUICE_SANITIZE)
    sluice_left_out(${test})
  endif()
endfunction()

# sluice_left_out(test): the test can be built and run by name.
function(sluice_left_out test)
  set_target_properties(${test} PROPERTIES EXCLUDE_FROM_ALL ON)
  set_property(TEST ${test} APPEND PROPERTY LABELS slow)
endfunction()

# sluice_gpu_program(kind folder target): a program that tools/gpu/pack.sh can copy to a machine
# with a GPU.
function(sluice_gpu_program kind folder target)
  set_property(GLOBAL APPEND PROPERTY SLUICE_GPU_PROGRAMS ${target})
  if(kind STREQUAL test)
    set_property(GLOBAL APPEND PROPERTY SLUICE_GPU_TESTS ${target})
  endif()
  set_property(GLOBAL APPEND_STRING PROPERTY SLUICE_GPU_PROGRAM_LINES
    "${kind} ${folder} $<TARGET_FILE:${target}>\n")
endfunction()

# Called after all targets are defined: writes the list for pack.sh and adds two targets:
# gpu_programs builds its programs, cuda_programs those that are not tests.
function(sluice_finish_gpu_programs)
  get_property(programs GLOBAL PROPERTY SLUICE_GPU_PROGRAMS)
  get_property(lines GLOBAL PROPERTY SLUICE_GPU_PROGRAM_LINES)
  file(GENERATE OUTPUT ${PROJECT_BINARY_DIR}/gpu_programs.txt CONTENT "${lines}")
  add_custom_target(gpu_programs DEPENDS ${programs})
  get_property(tests GLOBAL PROPERTY SLUICE_GPU_TESTS)
  list(REMOVE_ITEM programs ${tests})
  add_custom_target(cuda_programs DEPENDS ${programs})
endfunction()
