# Writes page_files.cc: the files of the page as gzip, with an ETag each.
#   cmake -DFOLDER=... -DFILES=a,b,c -DOUTPUT=.../page_files.cc -P embed.cmake
# The time in a gzip header is set to zero, so that the same files give the same bytes.
set(max_bytes 204800)
set(total 0)
set(data "")
set(table "")
string(REPLACE "," ";" names "${FILES}")
foreach(name IN LISTS names)
  set(archive "${OUTPUT}.${name}.gz")
  file(ARCHIVE_CREATE OUTPUT "${archive}" PATHS "${FOLDER}/${name}"
    FORMAT raw COMPRESSION GZip COMPRESSION_LEVEL 9)
  file(SIZE "${FOLDER}/${name}" size)
  math(EXPR total "${total} + ${size}")
  file(SHA256 "${FOLDER}/${name}" hash)
  string(SUBSTRING "${hash}" 0 32 hash)
  file(READ "${archive}" bytes HEX)
  file(REMOVE "${archive}")
  string(LENGTH "${bytes}" digits)
  string(SUBSTRING "${bytes}" 0 8 magic)
  string(SUBSTRING "${bytes}" 16 -1 rest)
  set(bytes "${magic}00000000${rest}")
  math(EXPR length "${digits} / 2")
  string(REGEX REPLACE "(..)" "\\\\x\\1" bytes "${bytes}")
  # Lines of 32 bytes: a compiler may refuse longer literals, and editors long lines.
  string(REPEAT "." 128 line)
  string(REGEX REPLACE "(${line})" "\\1\"\n    \"" bytes "${bytes}")
  string(APPEND table "    {\"${name}\", \"\\\"${hash}\\\"\",\n     {\"${bytes}\", ${length}}},\n")
endforeach()
if(total GREATER max_bytes)
  message(FATAL_ERROR "the page has ${total} bytes; its limit is ${max_bytes}")
endif()
file(WRITE "${OUTPUT}" "// Made by embed.cmake.
#include \"server/page/page_file.h\"

namespace sluice::server {
namespace {

constexpr PageFile kFiles[] = {
${table}};

}  // namespace

std::span<const PageFile> page_files() { return kFiles; }

}  // namespace sluice::server
")
