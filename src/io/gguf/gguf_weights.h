// What a GGUF file's tensors are as weights of a Hugging Face checkpoint: names, shapes, order of
// rows.
//
// Used by Checkpoint. Thread rule: immutable after construction.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/gguf/gguf_elements.h"
#include "io/gguf/gguf_file.h"
#include "io/gguf/gguf_model.h"

namespace sluice {

// Holds the divisors of rotary frequencies; the configuration reads it, not the weights.
inline constexpr std::string_view kGgufRopeFactors = "rope_freqs.weight";

// A tensor of a Hugging Face checkpoint, and where a GGUF file has it.
struct GgufPlace {
  std::string name;
  std::vector<int64_t> shape;
  uint64_t begin = 0;  // bytes [begin, end) of the file
  uint64_t end = 0;
  GgufStorage storage;
};

class GgufWeights {
 public:
  // `first`: the file with the metadata. Errors: those of gguf_architecture, and kModel naming a
  // key that the order of rows follows from.
  explicit GgufWeights(const GgufFile& first);

  // The tensors that one of a file stands for: mostly one; of all experts one for each; none if the
  // configuration reads it. Those of vision and of layers that draft get names of Hugging Face's
  // parts that Sluice does not run ("model.visual.", "mtp.").
  //
  // Errors: kUnsupported naming a tensor without a place, kModel naming one whose rows or columns
  // are not what the metadata make of them.
  std::vector<GgufPlace> places(const GgufFile& owner, const GgufTensor& tensor) const;

 private:
  // Of "blk.3.attn_q.weight" 3 and "attn_q.weight".
  struct LayerName {
    int64_t layer = 0;
    std::string_view part;
  };
  static std::optional<LayerName> layer_name(std::string_view name);

  bool is_mixtral() const { return has_experts_ && architecture_ == "llama"; }
  // The name after "model.layers.N."; nothing if Sluice knows none.
  std::optional<std::string> part_name(std::string_view part) const;
  // The name of a whole tensor; nothing likewise.
  std::optional<std::string> name_of(std::string_view tensor) const;
  // The name of one of a part that is not run; nothing for others.
  std::optional<std::string> unread_name(std::string_view name) const;
  // The parts of a tensor of all experts, one after the other in each; empty for other tensors.
  std::vector<std::string_view> stacked_parts(std::string_view part) const;
  std::vector<GgufPlace> expert_places(const GgufFile& owner, const GgufTensor& tensor,
                                       const LayerName& where) const;

  GgufStorage storage_of(const GgufFile& owner, const GgufTensor& tensor,
                         std::string_view name) const;
  void set_heads(std::string_view part, GgufStorage& storage) const;
  // Errors: kModel naming the tensor.
  static void check_rows(const GgufFile& owner, const GgufTensor& tensor,
                         const GgufStorage& storage);

  std::string architecture_;
  bool is_hybrid_ = false;
  bool has_experts_ = false;
  int64_t num_layers_ = 0;         // of hybrids
  int64_t num_blocks_ = 0;         // the same with the layers that draft
  int64_t rotated_head_rows_ = 0;  // of q and k of "llama"
  GgufDeltaHeads heads_ = {};      // of hybrids
};

}  // namespace sluice
