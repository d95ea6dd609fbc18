// A module has a format by the type of its tensor; what does not fit is left out, and becomes bf16.
#include "model/gguf/gguf_formats.h"

#include <algorithm>
#include <string_view>
#include <variant>

#include <fmt/format.h>

#include "io/gguf/gguf_weights.h"

namespace sluice {

WeightFormat gguf_format(const GgufType& type) {
  if (type.parts == nullptr) return WeightFormat::kBFloat16;
  const bool is_4 = type.parts->code_bits == 4;
  return {.numbers = is_4 ? WeightNumbers::kGguf4 : WeightNumbers::kGguf8,
          .group_cols = static_cast<int32_t>(type.parts->group_elements),
          .block_cols = static_cast<int32_t>(type.block_elements),
          .has_minima = type.parts->has_minima};
}

WeightFormat join_gguf(WeightFormat a, WeightFormat b) {
  if (a == b) return a;
  if (!stores_gguf(a) || !stores_gguf(b)) return WeightFormat::kBFloat16;
  return {.numbers = std::max(a.numbers, b.numbers),
          .group_cols = std::min(a.group_cols, b.group_cols),
          .block_cols = std::min(a.block_cols, b.block_cols),
          .has_minima = a.has_minima || b.has_minima};
}

void set_gguf_formats(const GgufMetadata& metadata, ModelConfig& model) {
  const GgufWeights weights(metadata.first());
  auto& formats = model.quantization.gguf;
  constexpr std::string_view kWeight = ".weight";
  for (const GgufFile& file : metadata.files()) {
    for (const GgufTensor& tensor : file.tensors()) {
      const WeightFormat format = gguf_format(*tensor.type);
      if (!stores_gguf(format)) continue;
      for (const GgufPlace& place : weights.places(file, tensor)) {
        if (!place.name.ends_with(kWeight) || place.storage.tiled_columns.present()) continue;
        formats[place.name.substr(0, place.name.size() - kWeight.size())] = format;
      }
    }
  }
  // Heads that are padded lie apart in the columns of their output projection.
  for (size_t i = 0; i < model.layers.size(); ++i) {
    const auto* attention = std::get_if<Attention>(&model.layers[i].mixer);
    if (attention != nullptr && attention->padding().present()) {
      formats.erase(fmt::format("model.layers.{}.self_attn.o_proj", i));
    }
  }
}

}  // namespace sluice
