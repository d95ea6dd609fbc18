// HeadProfile: what every query head of a model attends to in sparse prefill, measured beforehand.
//
// Read from the head configurations that MInference publishes, and from models that carry one. Made
// by the policy minference. Thread rule: a value; pure functions.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

enum class HeadKind {
  kVerticalSlash,  // the heaviest single tokens and offsets
  kStream,         // the first tokens and the newest
  kBlockSparse,    // the heaviest tiles of each query tile
};

struct ProfiledHead {
  HeadKind kind = HeadKind::kVerticalSlash;
  // The two sizes of the file. kVerticalSlash: single tokens, offsets from the diagonal. kStream:
  // first tokens, newest tokens. kBlockSparse: not read.
  int32_t num_verticals = 0;
  int32_t num_slashes = 0;
};

// What heads that share a list attend to together: the largest sizes of each kind among them.
struct HeadGroup {
  bool has_lines = false;  // some head is kVerticalSlash
  int32_t num_verticals = 0;
  int32_t num_slashes = 0;
  int32_t sink_tokens = 0;     // of kStream
  int32_t recent_tokens = -1;  // of kStream; -1: there is none
  bool has_tiles = false;      // some head is kBlockSparse
};

// Sizes are at most this, more than any published file has.
inline constexpr int32_t kMaxHeadSize = 1 << 20;

class HeadProfile {
 public:
  // REQUIRES: at least one layer; all of them have as many heads, at least one.
  HeadProfile(std::string name, std::vector<std::vector<ProfiledHead>> layers);

  // The file, for error texts and notes.
  const std::string& name() const { return name_; }
  int64_t num_layers() const { return std::ssize(layers_); }
  int64_t num_heads() const { return std::ssize(layers_.front()); }
  // REQUIRES: 0 <= layer < num_layers(), 0 <= head < num_heads().
  const ProfiledHead& at(int64_t layer, int64_t head) const {
    return layers_[static_cast<size_t>(layer)][static_cast<size_t>(head)];
  }

  // Of heads [first_head, first_head + num_heads) of a layer.
  HeadGroup group(int64_t layer, int64_t first_head, int64_t num_heads) const;
  // Whether any head is of that kind.
  bool has(HeadKind kind) const;

  // Errors: kInvalidArgument naming the file and both numbers unless the model has as many layers
  // and query heads.
  void require_model(int64_t num_layers, int64_t num_q_heads) const;

  // "28 layers of 28 heads: 780 vertical_and_slash, 4 stream_llm".
  std::string describe() const;

 private:
  std::string name_;
  std::vector<std::vector<ProfiledHead>> layers_;
};

// Reads a profile from a text: a list with an object for each layer, which has for each query head,
// "0" to "n - 1", a list [kind, first size, second size, score]; or an object that has that list as
// `sparse_attention_config`, itself or in `dual_chunk_attention_config`. `name` (a file) opens
// every error text. The scores of the search that made the file are checked to be numbers and
// dropped. Errors: kModel naming layer, head, value and what is allowed; those of parse_json.
// Source: the head configurations of Jiang et al. 2024, arXiv 2407.02490 (MInference).
HeadProfile parse_head_profile(std::string_view text, std::string_view name);

// The same from a file. Errors: also kIo when it cannot be read.
HeadProfile read_head_profile(const std::filesystem::path& path);

// The file of a model directory that has a profile: config.json with one of the two keys, else
// sparse_attention_config.json. Empty if there is neither.
// Errors: those of ModelDirectory and of parse_json.
std::optional<std::filesystem::path> find_model_profile(const std::filesystem::path& directory);

}  // namespace sluice
