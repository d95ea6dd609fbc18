// Copies taps to the host, and joins the pieces of each name.
#include "engine/trace.h"

#include <algorithm>

#include <fmt/format.h>
#include <fnmatch.h>

#include "core/error.h"

namespace sluice {
namespace {

// Element `index` of a contiguous view of f32, bf16 or i32, whose small numbers are exact.
float value_at(const TensorView& view, int64_t index) {
  if (view.dtype() == DType::kI32) return static_cast<float>(view.data<int32_t>()[index]);
  if (view.dtype() == DType::kF32) return view.data<float>()[index];
  return static_cast<float>(view.data<BFloat16>()[index]);
}

// A tensor of num_rows rows with the row shape of `view`, without data yet.
TapTensor empty_like(const std::string& name, const TensorView& view, int64_t num_rows) {
  TapTensor tensor{.name = name, .shape = {num_rows}, .data = {}};
  for (int i = 1; i < view.rank(); ++i) tensor.shape.push_back(view.dim(i));
  return tensor;
}

// Shell pattern; `*` also matches dots, so "layer.*" covers all taps of all layers.
bool matches(const std::string& pattern, const std::string& name) {
  return fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
}

void append_floats(const BFloat16* numbers, int32_t count, std::vector<float>& to) {
  for (int32_t i = 0; i < count; ++i) to.push_back(static_cast<float>(numbers[i]));
}

}  // namespace

std::vector<std::string> tap_names(const std::vector<LayerSpec>& layers) {
  std::vector<std::string> names{"embedding"};
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    const auto add = [&](const char* what) {
      names.push_back(fmt::format("layer.{}.{}", layer, what));
    };
    add("residual");
    const bool attends = std::holds_alternative<Attention>(layers[layer].mixer);
    const std::initializer_list<const char*> of_attention = {"q", "k", "v", "attn_out",
                                                             "attn_proj"};
    const std::initializer_list<const char*> of_delta = {"delta_gates", "delta_out", "delta_proj"};
    for (const char* what : attends ? of_attention : of_delta) add(what);
    add("mlp_out");
    if (!std::holds_alternative<ExpertMlp>(layers[layer].mlp)) continue;
    add("router");
    add("experts");
  }
  names.emplace_back("final_norm");
  return names;
}

void TraceRecorder::check_patterns(const std::vector<LayerSpec>& layers) const {
  const std::vector<std::string> names = tap_names(layers);
  for (const std::string& pattern : patterns_) {
    const auto matches_pattern = [&](const auto& name) { return matches(pattern, name); };
    if (std::any_of(names.begin(), names.end(), matches_pattern)) continue;
    fail(
        ErrorCode::kInvalidArgument,
        "tap pattern \"{}\" matches nothing; taps are embedding, layer.I.residual, layer.I.q, .k, "
        ".v, .attn_out, .attn_proj, .mlp_out, of hybrids .delta_gates, .delta_out and .delta_proj, "
        "of experts .router and .experts (I from 0 to {}, or *) and final_norm",
        pattern, layers.size() - 1);
  }
}

bool TraceRecorder::wants(const std::string& name) const {
  return std::any_of(patterns_.begin(), patterns_.end(),
                     [&](const std::string& pattern) { return matches(pattern, name); });
}

// The piece gets its own buffer, since the next op may overwrite `rows`.
TraceRecorder::Piece TraceRecorder::copy_to_host(Stream& stream, const TensorView& rows) {
  Piece piece{.data = device_.allocate(rows.num_bytes(), MemoryKind::kPinned), .view = {}};
  TensorView flat(piece.data.data(), rows.dtype(), {rows.num_elements()});
  if (rows.rank() == 2) flat = flat.reshape({rows.dim(0), rows.dim(1)});
  if (rows.rank() == 3) flat = flat.reshape({rows.dim(0), rows.dim(1), rows.dim(2)});
  piece.view = flat;
  stream.copy({.dst = piece.data.data(), .src = rows.bytes(), .num_bytes = rows.num_bytes()});
  return piece;
}

void TraceRecorder::tap(Stream& stream, const std::string& name, int64_t /*row_begin*/,
                        const TensorView& rows) {
  pieces_[name].push_back(copy_to_host(stream, rows));
}

// Copies block by block and synchronizes after each: one pinned block is enough, speed is not
// needed.
void TraceRecorder::tap_kv(Stream& stream, const std::vector<LayerSpec>& layers,
                           const KvBlockShape& shape, const SequenceKv& kv,
                           const BlockBytes& bytes_of) {
  const Buffer host = device_.allocate(shape.block_bytes(), MemoryKind::kPinned);
  const KvBlocksView copy{.base = host.data(), .num_blocks = 1, .shape = shape};
  std::vector<BFloat16> row(static_cast<size_t>(shape.head_dim));
  for (size_t i = 0; i < layers.size(); ++i) {
    const LayerId layer = layers[i].kv_layer;
    if (!layer.valid()) continue;
    TapTensor k{.name = fmt::format("layer.{}.k", i),
                .shape = {kv.num_tokens(), shape.num_kv_heads, shape.head_dim},
                .data = {}};
    TapTensor v{.name = fmt::format("layer.{}.v", i), .shape = k.shape, .data = {}};
    if (!wants(k.name) && !wants(v.name)) continue;
    for (const SequenceBlock& block : kv.blocks()) {
      stream.copy(
          {.dst = host.data(), .src = bytes_of(layer, block), .num_bytes = shape.block_bytes()});
      stream.synchronize();
      for (int32_t token = 0; token < block.num_valid_tokens; ++token) {
        for (int32_t head = 0; head < shape.num_kv_heads; ++head) {
          copy_key(copy, 0, head, token, row);
          append_floats(row.data(), shape.head_dim, k.data);
          copy_value(copy, 0, head, token, row);
          append_floats(row.data(), shape.head_dim, v.data);
        }
      }
    }
    if (wants(k.name)) kv_tensors_.push_back(std::move(k));
    if (wants(v.name)) kv_tensors_.push_back(std::move(v));
  }
}

std::vector<TapTensor> TraceRecorder::take() {
  std::vector<TapTensor> tensors;
  for (auto& [name, pieces] : pieces_) {
    int64_t num_rows = 0;
    for (const Piece& piece : pieces) num_rows += piece.view.dim(0);
    TapTensor tensor = empty_like(name, pieces.front().view, num_rows);
    // Tiles and passes come in ascending order of their rows.
    for (const Piece& piece : pieces) {
      for (int64_t i = 0; i < piece.view.num_elements(); ++i) {
        tensor.data.push_back(value_at(piece.view, i));
      }
    }
    tensors.push_back(std::move(tensor));
  }
  pieces_.clear();
  std::move(kv_tensors_.begin(), kv_tensors_.end(), std::back_inserter(tensors));
  kv_tensors_.clear();
  return tensors;
}

}  // namespace sluice
