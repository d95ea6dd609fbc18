// Runs rsvg-convert without a shell, so that no character of a path has a special meaning.
#include "eval/render_png.h"

#include <cerrno>
#include <cstring>
#include <system_error>
#include <vector>

#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/error.h"
#include "io/file.h"

namespace sluice::eval {
namespace {

constexpr const char* kProgram = "rsvg-convert";
constexpr const char* kZoom = "2";  // sharp on high-density screens

// The path as an absolute one, since a relative path may start with a dash and would be an option.
std::string as_word(const std::filesystem::path& path) {
  std::error_code error;  // set if the working directory was removed
  const std::filesystem::path absolute = std::filesystem::absolute(path, error);
  return error ? "./" + path.string() : absolute.string();
}

// The outcome of running the program.
struct Conversion {
  int start_error = 0;  // errno of a failed start; 0: it ran
  int status = 0;       // as waitpid returns it
};

// Blocks until the program ends.
Conversion convert(const std::filesystem::path& svg, const std::filesystem::path& png) {
  std::vector<std::string> words = {kProgram,   "--zoom",     kZoom,
                                    "--output", as_word(png), as_word(svg)};
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  pid_t child = 0;
  Conversion result;
  result.start_error = posix_spawnp(&child, kProgram, nullptr, nullptr, arguments.data(), environ);
  if (result.start_error != 0) return result;
  while (waitpid(child, &result.status, 0) < 0 && errno == EINTR) {
  }
  return result;
}

}  // namespace

std::string render_png(const std::filesystem::path& svg, const std::filesystem::path& png) {
  AtomicFile unfinished(png);
  const auto [start_error, status] = convert(svg, unfinished.temporary());
  if (start_error != 0) {
    return fmt::format("no PNG: {} is not there ({}); apt-get install librsvg2-bin", kProgram,
                       std::strerror(start_error));
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    fail(ErrorCode::kIo, "{} cannot be written: {} failed (status {}); the picture is in {}, too",
         png.string(), kProgram, status, svg.string());
  }
  unfinished.commit();
  return {};
}

}  // namespace sluice::eval
