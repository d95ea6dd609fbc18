// Opens all files of a model; metadata are in the first.
#include "model/gguf/gguf_metadata.h"

#include <algorithm>

#include <fmt/format.h>

#include "core/error.h"
#include "io/gguf/gguf_model.h"
#include "model/config_limits.h"

namespace sluice {

GgufMetadata::GgufMetadata(const std::filesystem::path& path) {
  files_.emplace_back(path);
  for (const std::filesystem::path& shard : gguf_shards(files_.front())) {
    if (shard != path) files_.emplace_back(shard);
  }
  architecture_ = gguf_architecture(first());
  is_hybrid_ = is_gguf_hybrid(architecture_);
  has_experts_ = has_gguf_experts(first());
  num_layers_ = is_hybrid_ ? gguf_num_layers(first()) : size("block_count", kMaxLayers);
  if (num_layers_ > kMaxLayers) {
    first().fail(key("block_count"), fmt::format("at most {}", kMaxLayers));
  }
}

int64_t GgufMetadata::size(std::string_view name, int64_t max) const {
  return first().get_int(key(name), 1, max);
}

int64_t GgufMetadata::equal_size(std::string_view name, int64_t max, bool may_lack) const {
  std::vector<int64_t> sizes = first().get_ints(key(name), may_lack ? 0 : 1, max);
  if (may_lack) std::erase(sizes, 0);
  if (sizes.empty() || std::ranges::count(sizes, sizes.front()) != std::ssize(sizes)) {
    refuse(name, "layers that differ are not supported");
  }
  return sizes.front();
}

void GgufMetadata::refuse(std::string_view name, std::string_view why) const {
  throw Error(ErrorCode::kUnsupported,
              fmt::format("{}: {}; choose a model without", key(name), why), first().name());
}

std::pair<const GgufFile*, const GgufTensor*> GgufMetadata::find_tensor(
    std::string_view name) const {
  for (const GgufFile& file : files_) {
    if (const GgufTensor* tensor = file.find_tensor(name)) return {&file, tensor};
  }
  return {nullptr, nullptr};
}

bool GgufMetadata::has_tensor(int64_t layer, std::string_view part) const {
  return has_tensor(fmt::format("blk.{}.{}", layer, part));
}

}  // namespace sluice
