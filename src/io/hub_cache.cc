// Finds repositories in the Hugging Face cache, in the layout of huggingface_hub.
#include "io/hub_cache.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <fstream>

namespace sluice {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kFolderPrefix = "models--";
constexpr std::string_view kSlash = "--";  // stands for the slash of a name

// Empty if unset or empty.
// As huggingface_hub does, which takes an empty variable for none.
std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// No slash and no dot in front, so that a name never leaves the cache.
bool is_plain_name(std::string_view name) {
  const auto is_plain = [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '.' || c == '_' || c == '-';
  };
  return !name.empty() && name[0] != '.' && std::ranges::all_of(name, is_plain);
}

// False for what cannot be read.
bool is_folder(const fs::path& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}

// The directories in `path`; none if it cannot be read.
std::vector<fs::path> directories_in(const fs::path& path) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator entries(path, error), end; !error && entries != end;
       entries.increment(error)) {
    if (is_folder(entries->path())) found.push_back(entries->path());
  }
  std::ranges::sort(found);
  return found;
}

// Without refs/main, as after `hf download --revision COMMIT`, the only snapshot counts: of several
// none is the obvious one.
std::optional<fs::path> snapshot_of(const fs::path& repository) {
  std::ifstream file(repository / "refs" / "main");
  std::string commit;
  // A commit that was removed from the cache is as if refs/main were not there.
  if (file >> commit && is_plain_name(commit)) {
    fs::path snapshot = repository / "snapshots" / commit;
    if (is_folder(snapshot)) return snapshot;
  }
  const std::vector<fs::path> snapshots = directories_in(repository / "snapshots");
  if (snapshots.size() != 1) return std::nullopt;
  return snapshots[0];
}

}  // namespace

fs::path hub_cache_directory() {
  if (const std::string cache = variable("HF_HUB_CACHE"); !cache.empty()) return cache;
  if (const std::string home = variable("HF_HOME"); !home.empty()) return fs::path(home) / "hub";
  const std::string cache = variable("XDG_CACHE_HOME");
  const fs::path caches = cache.empty() ? fs::path(variable("HOME")) / ".cache" : fs::path(cache);
  return caches / "huggingface" / "hub";
}

bool is_hub_name(std::string_view text) {
  const size_t slash = text.find('/');
  if (slash == text.npos) return is_plain_name(text);
  return is_plain_name(text.substr(0, slash)) && is_plain_name(text.substr(slash + 1));
}

std::optional<fs::path> find_in_hub_cache(std::string_view name) {
  if (!is_hub_name(name)) return std::nullopt;
  // "Qwen/Qwen3-0.6B" is models--Qwen--Qwen3-0.6B.
  std::string folder(kFolderPrefix);
  for (const char c : name) folder += c == '/' ? std::string(kSlash) : std::string(1, c);
  return snapshot_of(hub_cache_directory() / folder);
}

// An empty path is none, and stays what it is.
fs::path find_model(fs::path path) {
  std::error_code error;
  if (fs::exists(path, error)) return path;
  return find_in_hub_cache(path.string()).value_or(std::move(path));
}

std::vector<HubModel> list_hub_cache() {
  std::vector<HubModel> models;
  for (const fs::path& folder : directories_in(hub_cache_directory())) {
    // Data sets and spaces have other prefixes.
    std::string name = folder.filename().string();
    if (!name.starts_with(kFolderPrefix)) continue;
    name.erase(0, kFolderPrefix.size());
    // The first one is the slash: organisations have no two dashes in a row.
    const size_t slash = name.find(kSlash);
    if (slash != name.npos) name.replace(slash, kSlash.size(), "/");
    const auto snapshot = snapshot_of(folder);
    if (snapshot && is_hub_name(name)) models.push_back({std::move(name), *snapshot});
  }
  return models;
}

}  // namespace sluice
