# Writes page_files.cc: the files of the page as gzip, with an ETag each.
#   cmake -DFOLDER=... -DFILES=a,b,c -DLATE_FILES=d,e -DOUTPUT=.../page_files.cc -P embed.cmake
# FILES are what the page loads at first, LATE_FILES what it loads when they are needed. The time in
# a gzip header is set to zero, so that the same files give the same bytes.
set(max_first_bytes 409600)   # without compression
set(max_late_bytes 2621440)   # with it: what the program grows by
set(first_bytes 0)
set(late_bytes 0)
set(table "")
# Lines of 32 bytes: a compiler may refuse longer literals, and editors long lines.
string(REPEAT "." 128 line)

# Appends a row to `table`, and sets `size` and `packed_size`.
macro(embed path)
  get_filename_component(name "${path}" NAME)
  set(archive "${OUTPUT}.${name}.gz")
  file(ARCHIVE_CREATE OUTPUT "${archive}" PATHS "${FOLDER}/${path}"
    FORMAT raw COMPRESSION GZip COMPRESSION_LEVEL 9)
  file(SIZE "${FOLDER}/${path}" size)
  file(SIZE "${archive}" packed_size)
  file(SHA256 "${FOLDER}/${path}" hash)
  string(SUBSTRING "${hash}" 0 32 hash)
  file(READ "${archive}" bytes HEX)
  file(REMOVE "${archive}")
  string(SUBSTRING "${bytes}" 0 8 magic)
  string(SUBSTRING "${bytes}" 16 -1 rest)
  set(bytes "${magic}00000000${rest}")
  string(REGEX REPLACE "(..)" "\\\\x\\1" bytes "${bytes}")
  string(REGEX REPLACE "(${line})" "\\1\"\n    \"" bytes "${bytes}")
  string(APPEND table
    "    {\"${name}\", \"\\\"${hash}\\\"\",\n     {\"${bytes}\", ${packed_size}}},\n")
endmacro()

string(REPLACE "," ";" first "${FILES}")
foreach(path IN LISTS first)
  embed("${path}")
  math(EXPR first_bytes "${first_bytes} + ${size}")
endforeach()
string(REPLACE "," ";" late "${LATE_FILES}")
foreach(path IN LISTS late)
  embed("${path}")
  math(EXPR late_bytes "${late_bytes} + ${packed_size}")
endforeach()
if(first_bytes GREATER max_first_bytes)
  message(FATAL_ERROR
    "the page loads ${first_bytes} bytes at first; the limit is ${max_first_bytes}")
endif()
if(late_bytes GREATER max_late_bytes)
  message(FATAL_ERROR
    "what the page loads later has ${late_bytes} bytes; the limit is ${max_late_bytes}")
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
