# Installs the build, moves the prefix, builds examples/cpp against it and compares its answer with
# that of the installed program. Arguments: see CMakeLists.txt.
cmake_minimum_required(VERSION 3.25)

function(run)
  execute_process(COMMAND ${ARGN}
    RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE error)
  if(NOT result EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "${command}\nended with ${result}:\n${output}${error}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

file(REMOVE_RECURSE ${WORK})
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${WORK}/first)
file(RENAME ${WORK}/first ${WORK}/prefix)  # no installed file may contain the old path

# The public headers and nothing else of the tree.
file(GLOB_RECURSE headers RELATIVE ${WORK}/prefix/include ${WORK}/prefix/include/*)
if(NOT "sluice/llm.h" IN_LIST headers)
  message(FATAL_ERROR "sluice/llm.h is not among the installed headers: ${headers}")
endif()
foreach(header ${headers})
  if(NOT header MATCHES "^sluice/[a-z_]+[.]h$")
    message(FATAL_ERROR "${header} is installed, but only include/sluice/*.h is public")
  endif()
endforeach()

run(${CMAKE_COMMAND} -S ${PROJECT} -B ${WORK}/build -G ${GENERATOR}
  -D CMAKE_BUILD_TYPE=Release -D CMAKE_CXX_COMPILER=${COMPILER}
  -D CMAKE_PREFIX_PATH=${WORK}/prefix)
run(${CMAKE_COMMAND} --build ${WORK}/build)

set(prompt "It was a dark and")
run(${WORK}/build/answer ${MODEL} ${prompt} 12)
set(answer "${output}")
run(${WORK}/prefix/bin/sluice run --model ${MODEL} --device cpu --temperature 0 --max-tokens 12
  ${prompt})
string(STRIP "${answer}" words)
if(words STREQUAL "" OR NOT answer STREQUAL output)
  message(FATAL_ERROR "the library answered '${answer}', the program '${output}'")
endif()
message(STATUS "answer: ${words}")
file(REMOVE_RECURSE ${WORK})
