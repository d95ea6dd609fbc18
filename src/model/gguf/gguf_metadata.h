// GgufMetadata: the keys of a GGUF model's architecture, and which tensors its files have.
//
// Used by read_gguf_config and by what reads the layers for it. Thread rule: immutable after
// construction.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/gguf/gguf_file.h"

namespace sluice {

class GgufMetadata {
 public:
  // `path`: the first file of the model. Errors: those of GgufFile, gguf_shards and
  // gguf_architecture.
  explicit GgufMetadata(const std::filesystem::path& path);

  // The file that has the metadata, and all files.
  const GgufFile& first() const { return files_.front(); }
  const std::vector<GgufFile>& files() const { return files_; }
  const std::string& architecture() const { return architecture_; }
  bool is_hybrid() const { return is_hybrid_; }
  bool has_experts() const { return has_experts_; }
  int64_t num_layers() const { return num_layers_; }  // without those that draft

  // Keys are given without the architecture's name.
  std::string key(std::string_view name) const { return architecture_ + "." + std::string(name); }
  bool has(std::string_view name) const { return first().has(key(name)); }
  // A size. Errors: kModel naming the key if it is absent, 0 or above `max`.
  int64_t size(std::string_view name, int64_t max) const;
  // The one size of all layers, where the file may have a list with one for each. Layers without
  // the thing have 0 if `may_lack`. Errors: also kUnsupported for layers that differ.
  int64_t equal_size(std::string_view name, int64_t max, bool may_lack = false) const;
  // Errors: kUnsupported. The remedy is another model, since the file is as its maker meant it.
  [[noreturn]] void refuse(std::string_view name, std::string_view why) const;

  // The file that has a tensor, and the tensor; null if there is none.
  std::pair<const GgufFile*, const GgufTensor*> find_tensor(std::string_view name) const;
  bool has_tensor(std::string_view name) const { return find_tensor(name).second != nullptr; }
  // The same of "blk.N.PART".
  bool has_tensor(int64_t layer, std::string_view part) const;

 private:
  std::vector<GgufFile> files_;
  std::string architecture_;
  bool is_hybrid_ = false;
  bool has_experts_ = false;
  int64_t num_layers_ = 0;
};

}  // namespace sluice
