# For a wheel and a release: the system's libraries are linked statically, so that none of them is
# needed where it is installed. Included before they are looked for.
set(OPENSSL_USE_STATIC_LIBS ON)
find_library(UTF8PROC_LIBRARY NAMES libutf8proc.a)
find_library(XXHASH_LIBRARY NAMES libxxhash.a)
find_library(YAML_CPP_LIBRARY NAMES libyaml-cpp.a)
# What libcrypto.a of Debian 13 needs. FindOpenSSL links "zstd", which is this target.
set(ZLIB_USE_STATIC_LIBS ON)
find_library(ZSTD_LIBRARY NAMES libzstd.a)
if(ZSTD_LIBRARY)
  add_library(zstd STATIC IMPORTED)
  set_target_properties(zstd PROPERTIES IMPORTED_LOCATION ${ZSTD_LIBRARY})
endif()

# sluice_link_static(target): for programs and modules. libstdc++ is newer here than where they run;
# arc4random.cc has what it asks of a newer C library. On x86-64 old_glibc.cc lets them run with
# glibc 2.28, where threads, dlopen and shm_open are in libraries of their own: these are named,
# since nothing here asks for them. Debian has no libfmt.a. Its headers have the code, too:
# fmt_code.cc compiles that of fmt 9 and 10, and nothing is left that needs libfmt.so. Another
# version of fmt stays a shared library.
function(sluice_link_static target)
  target_link_options(${target} PRIVATE -Wl,--as-needed -static-libstdc++)
  target_sources(${target} PRIVATE ${PROJECT_SOURCE_DIR}/python/bindings/arc4random.cc)
  if(SLUICE_X86)
    target_sources(${target} PRIVATE ${PROJECT_SOURCE_DIR}/python/bindings/old_glibc.cc)
    target_link_options(${target} PRIVATE -Wl,--push-state,--no-as-needed
      -l:libpthread.so.0 -l:libdl.so.2 -l:librt.so.1 -Wl,--pop-state)
  endif()
  if(fmt_VERSION VERSION_GREATER_EQUAL 9 AND fmt_VERSION VERSION_LESS 11)
    target_sources(${target} PRIVATE ${PROJECT_SOURCE_DIR}/python/bindings/fmt_code.cc)
  else()
    message(STATUS "fmt ${fmt_VERSION} is linked as a shared library")
  endif()
endfunction()
