// The files of the page, compressed, as CMake embeds them (embed.cmake).
//
// Used by the page's routes. Thread rule: constants.
#pragma once

#include <span>
#include <string_view>

namespace sluice::server {

// Clients get these bytes as they are. All browsers take gzip, so the plain text is not kept.
struct PageFile {
  std::string_view name;  // "index.html"
  std::string_view etag;  // with its quotes; of the contents
  std::string_view gzip;
};

// All files, index.html included, in the order of CMakeLists.txt.
std::span<const PageFile> page_files();

}  // namespace sluice::server
