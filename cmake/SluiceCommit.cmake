# SLUICE_COMMIT: the name that git gives to the configured source, for the programs that print it.
execute_process(COMMAND git describe --always --dirty --tags
  WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} OUTPUT_VARIABLE SLUICE_COMMIT
  OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT SLUICE_COMMIT)
  set(SLUICE_COMMIT unknown)
endif()
