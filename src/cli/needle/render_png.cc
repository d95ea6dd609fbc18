// Runs rsvg-convert; no shell, so that no character of a path means anything.
#include "cli/needle/render_png.h"

#include <cerrno>
#include <cstring>
#include <vector>

#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

namespace sluice::cli {
namespace {

constexpr const char* kProgram = "rsvg-convert";
constexpr const char* kZoom = "2";  // sharp on screens of twice the density

}  // namespace

std::string render_png(const std::filesystem::path& svg, const std::filesystem::path& png) {
  // A path that starts with a dash would be an option; absolute paths never do.
  std::vector<std::string> words = {kProgram,
                                    "--zoom",
                                    kZoom,
                                    "--output",
                                    std::filesystem::absolute(png).string(),
                                    std::filesystem::absolute(svg).string()};
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  pid_t child = 0;
  const int failed = posix_spawnp(&child, kProgram, nullptr, nullptr, arguments.data(), environ);
  if (failed != 0) {
    return fmt::format("no PNG: {} is not there ({}); apt-get install librsvg2-bin", kProgram,
                       std::strerror(failed));
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return {};
  return fmt::format("no PNG: {} could not make {} (status {})", kProgram, png.string(), status);
}

}  // namespace sluice::cli
