// The Hugging Face cache: repositories as `hf download ORG/NAME` leaves them, found by their names.
//
// A repository is the folder models--ORG--NAME with snapshots/COMMIT and, in refs/main, the commit
// that counts. Only read, without a network. Used by ModelDirectory and `sluice models`. Thread
// rule: free functions; the environment must not be changed meanwhile.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

// One repository with files.
struct HubModel {
  std::string name;                // "Qwen/Qwen3-0.6B"
  std::filesystem::path snapshot;  // its directory
};

// HF_HUB_CACHE, else HF_HOME/hub, else XDG_CACHE_HOME/huggingface/hub, else
// ~/.cache/huggingface/hub. It need not exist.
std::filesystem::path hub_cache_directory();

// Whether `text` has the form "ORG/NAME" or "NAME" of a repository. Says nothing about the cache.
bool is_hub_name(std::string_view text);

// The snapshot that refs/main names, or the only one that there is. Empty if the cache has none,
// and for what is no name.
std::optional<std::filesystem::path> find_in_hub_cache(std::string_view name);

// `path` if it exists or the cache has no model of this name; else that model's snapshot.
std::filesystem::path find_model(std::filesystem::path path);

// All repositories of models with a snapshot, by name. Empty if there is no cache.
// Cost: one directory is read for each, none of their files.
std::vector<HubModel> list_hub_cache();

}  // namespace sluice
