// From JSON to patterns, with a text for everything that a file may have wrong.
#include "attention/head_profile.h"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

#include "core/error.h"
#include "io/json.h"
#include "io/json_type.h"
#include "io/model_directory.h"
#include "io/model_file.h"

namespace sluice {
namespace {

using nlohmann::json;

constexpr std::string_view kConfigKey = "sparse_attention_config";
constexpr std::string_view kDualChunkKey = "dual_chunk_attention_config";

// By HeadKind.
constexpr std::array<std::string_view, 3> kKindNames = {"vertical_and_slash", "stream_llm",
                                                        "block_sparse"};

// Where in a file an error is.
struct Place {
  std::string_view file;
  size_t layer = 0;
  std::string head = {};  // empty: the layer itself

  [[noreturn]] void fail(const std::string& message) const {
    const std::string where = head.empty() ? fmt::format("layer {}", layer)
                                           : fmt::format("layer {}, head {}", layer, head);
    throw Error(ErrorCode::kModel, where + ": " + message, std::string(file));
  }
};

HeadKind kind_of(const json& value, const Place& place) {
  for (size_t i = 0; value.is_string() && i < kKindNames.size(); ++i) {
    if (value.get_ref<const std::string&>() == kKindNames[i]) return static_cast<HeadKind>(i);
  }
  place.fail(fmt::format("the kind is {}; it must be \"{}\", \"{}\" or \"{}\"",
                         describe_json(value), kKindNames[0], kKindNames[1], kKindNames[2]));
}

int32_t size_of(const json& value, const char* which, const Place& place) {
  const bool is_whole = value.is_number_unsigned();  // as the parser stores what is not negative
  if (!is_whole || value.get<uint64_t>() > uint64_t{kMaxHeadSize}) {
    place.fail(fmt::format("the {} size is {}; it must be a whole number from 0 to {}", which,
                           describe_json(value), kMaxHeadSize));
  }
  return static_cast<int32_t>(value.get<uint64_t>());
}

ProfiledHead pattern_of(const json& value, const Place& place) {
  if (!value.is_array() || value.size() != 4) {
    place.fail(fmt::format("found {}; it must be a list [kind, first size, second size, score]",
                           describe_json(value)));
  }
  if (!value[3].is_number()) {
    place.fail(fmt::format("the score is {}; it must be a number", describe_json(value[3])));
  }
  return {.kind = kind_of(value[0], place),
          .num_verticals = size_of(value[1], "first", place),
          .num_slashes = size_of(value[2], "second", place)};
}

// A layer's heads, whose keys are "0" to "n - 1" for the n that it has.
std::vector<ProfiledHead> heads_of(const json& layer, Place place) {
  if (!layer.is_object() || layer.empty()) {
    place.fail(fmt::format("found {}; it must be an object with a list for each query head",
                           describe_json(layer)));
  }
  std::vector<ProfiledHead> heads;
  for (size_t head = 0; head < layer.size(); ++head) {
    place.head = fmt::format("{}", head);
    const auto found = layer.find(place.head);
    if (found == layer.end()) {
      place.fail(
          fmt::format("missing, although the layer has {} keys; it must have those from "
                      "\"0\" to \"{}\" and no others",
                      layer.size(), layer.size() - 1));
    }
    heads.push_back(pattern_of(*found, place));
  }
  return heads;
}

// The value of a key, or null if it is absent or null, or `value` no object.
const json* find(const json& value, std::string_view key) {
  if (!value.is_object()) return nullptr;
  const auto found = value.find(key);
  return found == value.end() || found->is_null() ? nullptr : &*found;
}

// The list of layers in an object such as config.json; null if it has none.
const json* find_list(const json& root) {
  if (const json* list = find(root, kConfigKey)) return list;
  const json* dual_chunk = find(root, kDualChunkKey);
  return dual_chunk ? find(*dual_chunk, kConfigKey) : nullptr;
}

const json& list_of(const json& root, std::string_view name) {
  const json* list = root.is_array() ? &root : find_list(root);
  if (list && list->is_array() && !list->empty()) return *list;
  throw Error(ErrorCode::kModel,
              fmt::format("{} is {}; it must be a list with an object for each layer, as in the "
                          "head configurations of MInference; give another file with "
                          "sparse_profile",
                          root.is_object() ? kConfigKey : "the document",
                          list ? describe_json(*list)
                               : (root.is_object() ? "missing" : describe_json(root))),
              std::string(name));
}

}  // namespace

HeadProfile::HeadProfile(std::string name, std::vector<std::vector<ProfiledHead>> layers)
    : name_(std::move(name)), layers_(std::move(layers)) {
  SLUICE_CHECK(!layers_.empty() && !layers_.front().empty(), "{}", name_);
  for (const auto& layer : layers_) SLUICE_CHECK(layer.size() == layers_.front().size());
}

void HeadProfile::require_model(int64_t num_layers, int64_t num_q_heads) const {
  if (num_layers == this->num_layers() && num_q_heads == num_heads()) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("the profile is of {} layers of {} query heads, but the model has {} of "
                          "{}; give the model's own file with sparse_profile, or sizes for all "
                          "heads with sparse_vertical_tokens and sparse_slash_tokens",
                          this->num_layers(), num_heads(), num_layers, num_q_heads),
              name_);
}

HeadGroup HeadProfile::group(int64_t layer, int64_t first_head, int64_t num_heads) const {
  HeadGroup group;
  for (int64_t head = first_head; head < first_head + num_heads; ++head) {
    const ProfiledHead& pattern = at(layer, head);
    if (pattern.kind == HeadKind::kVerticalSlash) {
      group.has_lines = true;
      group.num_verticals = std::max(group.num_verticals, pattern.num_verticals);
      group.num_slashes = std::max(group.num_slashes, pattern.num_slashes);
    } else if (pattern.kind == HeadKind::kStream) {
      group.sink_tokens = std::max(group.sink_tokens, pattern.num_verticals);
      group.recent_tokens = std::max(group.recent_tokens, pattern.num_slashes);
    } else {
      group.has_tiles = true;
    }
  }
  return group;
}

bool HeadProfile::has(HeadKind kind) const {
  return std::ranges::any_of(layers_, [kind](const auto& layer) {
    return std::ranges::any_of(layer, [kind](const auto& head) { return head.kind == kind; });
  });
}

std::string HeadProfile::describe() const {
  std::array<int64_t, kKindNames.size()> counts{};
  for (const auto& layer : layers_) {
    for (const ProfiledHead& head : layer) ++counts[static_cast<size_t>(head.kind)];
  }
  std::string kinds;
  for (size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] == 0) continue;
    kinds += fmt::format("{}{} {}", kinds.empty() ? "" : ", ", counts[i], kKindNames[i]);
  }
  return fmt::format("{} layers of {} heads: {}", num_layers(), num_heads(), kinds);
}

HeadProfile parse_head_profile(std::string_view text, std::string_view name) {
  const json root = parse_json(text, name);
  const json& list = list_of(root, name);
  std::vector<std::vector<ProfiledHead>> layers;
  for (size_t layer = 0; layer < list.size(); ++layer) {
    const Place place{.file = name, .layer = layer};
    layers.push_back(heads_of(list[layer], place));
    if (layers.back().size() != layers.front().size()) {
      place.fail(fmt::format("found {} heads, but layer 0 has {}; all layers must have as many",
                             layers.back().size(), layers.front().size()));
    }
  }
  return HeadProfile(std::string(name), std::move(layers));
}

HeadProfile read_head_profile(const std::filesystem::path& path) {
  return parse_head_profile(read_file(path), path.string());
}

std::optional<std::filesystem::path> find_model_profile(const std::filesystem::path& directory) {
  const ModelDirectory model(directory);
  if (model.is_gguf()) return std::nullopt;  // its metadata has no place for one
  const std::filesystem::path config = model.config_path();
  const json root = parse_json(read_model_file(config), config.string());
  if (find_list(root)) return config;
  return model.find_file("sparse_attention_config.json");
}

}  // namespace sluice
