# xgrammar, which tools/build_xgrammar.sh compiles outside of the build folder. It is looked for in
# every run of CMake, so that a build has structured output as soon as xgrammar is there.
# Sets SLUICE_XGRAMMAR to its folder, or to nothing.
option(SLUICE_GRAMMAR "Structured output, if xgrammar is there" ON)
set(SLUICE_XGRAMMAR "")
if(DEFINED ENV{SLUICE_DEPS_DIR})
  set(sluice_deps "$ENV{SLUICE_DEPS_DIR}")
elseif(DEFINED ENV{XDG_CACHE_HOME})
  set(sluice_deps "$ENV{XDG_CACHE_HOME}/sluice-deps")
else()
  set(sluice_deps "$ENV{HOME}/.cache/sluice-deps")
endif()
if(SLUICE_GRAMMAR AND EXISTS "${sluice_deps}/xgrammar-0.2.8/stamp")
  set(SLUICE_XGRAMMAR "${sluice_deps}/xgrammar-0.2.8")
else()
  message(STATUS "No xgrammar: this build has no structured output (tools/build_xgrammar.sh)")
endif()
