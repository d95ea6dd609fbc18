// Names of llama.cpp's tensors, and the order of rows that its converter gives them.
#include "io/gguf/gguf_weights.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/error.h"
#include "core/printable.h"

namespace sluice {
namespace {

constexpr std::string_view kLayerPrefix = "blk.";
constexpr std::string_view kWeight = ".weight";
constexpr int64_t kMaxStacked = 4096;  // experts; each gets a name

using NamePair = std::pair<std::string_view, std::string_view>;

// Source: MODEL_TENSOR of the gguf package, and llama.cpp's conversion/qwen.py and llama.py. A name
// that is not here is refused: a tensor without a place would be left out silently.
constexpr auto kNames = std::to_array<NamePair>(
    {{"token_embd", "model.embed_tokens"}, {"output_norm", "model.norm"}, {"output", "lm_head"}});
constexpr auto kLayerNames = std::to_array<NamePair>({{"attn_norm", "input_layernorm"},
                                                      {"attn_q", "self_attn.q_proj"},
                                                      {"attn_k", "self_attn.k_proj"},
                                                      {"attn_v", "self_attn.v_proj"},
                                                      {"attn_output", "self_attn.o_proj"},
                                                      {"attn_q_norm", "self_attn.q_norm"},
                                                      {"attn_k_norm", "self_attn.k_norm"},
                                                      {"ffn_gate", "mlp.gate_proj"},
                                                      {"ffn_up", "mlp.up_proj"},
                                                      {"ffn_down", "mlp.down_proj"}});
// Of models without linear layers; hybrids have the same norm under another name.
constexpr NamePair kPostNorm = {"ffn_norm", "post_attention_layernorm"};
constexpr auto kHybridNames =
    std::to_array<NamePair>({{"post_attention_norm", "post_attention_layernorm"},
                             {"ssm_conv1d", "linear_attn.conv1d"},
                             {"ssm_norm", "linear_attn.norm"},
                             {"ssm_out", "linear_attn.out_proj"},
                             {"attn_qkv", "linear_attn.in_proj_qkv"},
                             {"attn_gate", "linear_attn.in_proj_z"}});
// Whole parts, since these have another ending or none. Ollama writes the last one so.
constexpr auto kDecayNames = std::to_array<NamePair>({{"ssm_a", "linear_attn.A_log"},
                                                      {"ssm_dt.bias", "linear_attn.dt_bias"},
                                                      {"ssm_dt", "linear_attn.dt_bias"}});
// The gates, which the two families divide in other ways.
constexpr auto kQwen35Names = std::to_array<NamePair>(
    {{"ssm_beta", "linear_attn.in_proj_b"}, {"ssm_alpha", "linear_attn.in_proj_a"}});
// Old files have ssm_in in place of attn_qkv and attn_gate.
constexpr auto kQwen3NextNames = std::to_array<NamePair>(
    {{"ssm_ba", "linear_attn.in_proj_ba"}, {"ssm_in", "linear_attn.in_proj_qkvz"}});
constexpr auto kExpertNames =
    std::to_array<NamePair>({{"ffn_gate_inp", "mlp.gate"},
                             {"ffn_gate_inp_shexp", "mlp.shared_expert_gate"},
                             {"ffn_gate_shexp", "mlp.shared_expert.gate_proj"},
                             {"ffn_up_shexp", "mlp.shared_expert.up_proj"},
                             {"ffn_down_shexp", "mlp.shared_expert.down_proj"}});

// A tensor of all experts, and the parts of each: Qwen's names, then Mixtral's.
struct Stack {
  std::string_view name;
  std::array<std::string_view, 2> qwen;
  std::array<std::string_view, 2> mixtral;
};
constexpr Stack kStacks[] = {{"ffn_gate_exps.weight", {"gate_proj"}, {"w1"}},
                             {"ffn_up_exps.weight", {"up_proj"}, {"w3"}},
                             {"ffn_down_exps.weight", {"down_proj"}, {"w2"}},
                             {"ffn_gate_up_exps.weight", {"gate_proj", "up_proj"}, {"w1", "w3"}}};

// Tables of a dozen names, which are looked through in order.
std::optional<std::string_view> look_up(std::span<const NamePair> names, std::string_view name) {
  const auto found = std::ranges::find(names, name, &NamePair::first);
  return found == names.end() ? std::nullopt : std::optional(found->second);
}

// The file is of another model than its metadata say, or its maker's program is not llama.cpp.
[[noreturn]] void fail_tensor(const GgufFile& owner, const GgufTensor& tensor,
                              std::string_view message) {
  throw Error(ErrorCode::kModel, fmt::format("tensor \"{}\" {}", printable(tensor.name), message),
              owner.name());
}

// A tensor that is stored as it is.
GgufPlace plain_place(const GgufTensor& tensor, std::string name) {
  return {.name = std::move(name),
          .shape = tensor.shape,
          .begin = tensor.begin,
          .end = tensor.end,
          .storage = {.type = tensor.type, .row_elements = tensor.shape.back()}};
}

// The file leaves dimensions of 1 out: the converter takes one out of the convolution's taps, and a
// matrix of one row may be a vector.
void restore_dimensions(GgufPlace& place) {
  if (place.name.ends_with("conv1d.weight") && place.shape.size() == 2) {
    place.shape.insert(place.shape.begin() + 1, 1);
  }
  if (place.name.ends_with("shared_expert_gate.weight") && place.shape.size() == 1) {
    place.shape.insert(place.shape.begin(), 1);
  }
}

}  // namespace

GgufWeights::GgufWeights(const GgufFile& first) : architecture_(gguf_architecture(first)) {
  is_hybrid_ = is_gguf_hybrid(architecture_);
  has_experts_ = has_gguf_experts(first);
  if (architecture_ == "llama") rotated_head_rows_ = gguf_head_dim(first);
  if (!is_hybrid_) return;
  num_layers_ = gguf_num_layers(first);
  num_blocks_ = first.get_int(architecture_ + ".block_count", num_layers_, INT32_MAX);
  heads_ = gguf_delta_heads(first);
}

std::optional<GgufWeights::LayerName> GgufWeights::layer_name(std::string_view name) {
  if (!name.starts_with(kLayerPrefix)) return std::nullopt;
  name.remove_prefix(kLayerPrefix.size());
  const size_t end = std::min(name.find('.'), name.size());
  int32_t layer = 0;
  const auto [parsed, error] = std::from_chars(name.data(), name.data() + end, layer);
  if (error != std::errc() || parsed != name.data() + end || end == name.size()) {
    return std::nullopt;
  }
  return LayerName{layer, name.substr(end + 1)};
}

// What a family's files do not have is no name for it: such a tensor would mean something else
// there than what is known of it here, as the gates of Qwen3-Next in a file of Qwen3.5.
std::optional<std::string> GgufWeights::part_name(std::string_view part) const {
  if (is_hybrid_) {
    if (const auto name = look_up(kDecayNames, part)) return std::string(*name);
  }
  const size_t dot = part.rfind('.');
  if (dot == part.npos) return std::nullopt;
  const std::string_view stem = part.substr(0, dot), suffix = part.substr(dot);
  if (suffix != kWeight && suffix != ".bias") return std::nullopt;
  std::optional<std::string_view> name = look_up(kLayerNames, stem);
  if (!name) name = is_hybrid_ ? look_up(kHybridNames, stem) : look_up({&kPostNorm, 1}, stem);
  if (!name && is_hybrid_) {
    name =
        architecture_ == "qwen3next" ? look_up(kQwen3NextNames, stem) : look_up(kQwen35Names, stem);
  }
  if (!name && has_experts_) name = look_up(kExpertNames, stem);
  if (!name) return std::nullopt;
  if (is_mixtral() && *name == "mlp.gate") name = "block_sparse_moe.gate";
  return fmt::format("{}{}", *name, suffix);
}

// Parts that are not run get names by which the loader knows them, whatever they are. A picture's
// part is in files of Ollama; llama.cpp makes a file of its own of it. The layers that draft come
// after the others, with the same names and some of their own.
std::optional<std::string> GgufWeights::unread_name(std::string_view name) const {
  if (!is_hybrid_) return std::nullopt;
  if (name.starts_with("v.") || name.starts_with("mm."))
    return fmt::format("model.visual.{}", name);
  if (name.starts_with("mtp.")) return std::string(name);
  const auto where = layer_name(name);
  const bool drafts = where && where->layer >= num_layers_ && where->layer < num_blocks_;
  return drafts ? std::optional(fmt::format("mtp.{}", name)) : std::nullopt;
}

std::optional<std::string> GgufWeights::name_of(std::string_view tensor) const {
  const auto where = layer_name(tensor);
  if (!where) {
    const size_t dot = tensor.rfind('.');
    const auto name = look_up(kNames, tensor.substr(0, dot));
    if (!name || dot == tensor.npos) return std::nullopt;
    const std::string_view suffix = tensor.substr(dot);
    if (suffix != kWeight && suffix != ".bias") return std::nullopt;
    return fmt::format("{}{}", *name, suffix);
  }
  const auto part = part_name(where->part);
  if (!part) return std::nullopt;
  return fmt::format("model.layers.{}.{}", where->layer, *part);
}

// The converter joins gate and up only if it is asked to.
std::vector<std::string_view> GgufWeights::stacked_parts(std::string_view part) const {
  const auto* stack = std::ranges::find(kStacks, part, &Stack::name);
  if (!has_experts_ || stack == std::end(kStacks)) return {};
  const auto& names = is_mixtral() ? stack->mixtral : stack->qwen;
  std::vector<std::string_view> parts(names.begin(), names.end());
  std::erase(parts, std::string_view());
  return parts;
}

// Experts follow each other, and have their rows together: each part is a range of the file's
// bytes, so that no code above knows of stacks.
std::vector<GgufPlace> GgufWeights::expert_places(const GgufFile& owner, const GgufTensor& tensor,
                                                  const LayerName& where) const {
  const std::vector<std::string_view> parts = stacked_parts(where.part);
  const auto num_parts = std::ssize(parts);
  const bool is_stack = tensor.shape.size() == 3 && tensor.shape[1] % num_parts == 0;
  if (!is_stack || tensor.shape[0] > kMaxStacked) {
    fail_tensor(owner, tensor,
                fmt::format("has shape [{}]; one of all experts has 3 dimensions: at most {}, a "
                            "multiple of {}, and the length of rows",
                            fmt::join(tensor.shape, ", "), kMaxStacked, num_parts));
  }
  const uint64_t part_bytes =
      (tensor.end - tensor.begin) / static_cast<uint64_t>(tensor.shape[0] * num_parts);
  const std::string_view block = is_mixtral() ? "block_sparse_moe" : "mlp";
  std::vector<GgufPlace> places;
  uint64_t begin = tensor.begin;
  for (int64_t expert = 0; expert < tensor.shape[0]; ++expert) {
    for (const std::string_view part : parts) {
      places.push_back({.name = fmt::format("model.layers.{}.{}.experts.{}.{}.weight", where.layer,
                                            block, expert, part),
                        .shape = {tensor.shape[1] / num_parts, tensor.shape[2]},
                        .begin = begin,
                        .end = begin + part_bytes,
                        .storage = {.type = tensor.type, .row_elements = tensor.shape[2]}});
      begin += part_bytes;
    }
  }
  return places;
}

// What is not read comes first: it may have names of the parts that are.
std::vector<GgufPlace> GgufWeights::places(const GgufFile& owner, const GgufTensor& tensor) const {
  if (tensor.name == kGgufRopeFactors) return {};
  if (const auto unread = unread_name(tensor.name)) return {plain_place(tensor, *unread)};
  const auto where = layer_name(tensor.name);
  if (where && !stacked_parts(where->part).empty()) return expert_places(owner, tensor, *where);
  const std::optional<std::string> name = name_of(tensor.name);
  if (!name) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("tensor \"{}\" has no place in a model of architecture {} as Sluice "
                            "knows it; choose a model without",
                            printable(tensor.name), architecture_),
                owner.name());
  }
  GgufPlace place = plain_place(tensor, *name);
  if (where) {
    place.storage = storage_of(owner, tensor, *part_name(where->part));
  } else if (is_hybrid_ && *name == "model.norm.weight") {
    place.storage.values = GgufConversion::kPlusOne;
  }
  restore_dimensions(place);
  return {place};
}

// Norms of hybrids multiply by 1 + w, which the file has as a sum, but for that of the linear
// layers' output.
GgufStorage GgufWeights::storage_of(const GgufFile& owner, const GgufTensor& tensor,
                                    std::string_view name) const {
  GgufStorage storage{.type = tensor.type, .row_elements = tensor.shape.back()};
  if (name.starts_with("self_attn.q_proj.") || name.starts_with("self_attn.k_proj.")) {
    storage.rotated_head_rows = rotated_head_rows_;
  }
  if (is_hybrid_) {
    const bool adds_one = name.ends_with("norm.weight") && name != "linear_attn.norm.weight";
    if (adds_one) storage.values = GgufConversion::kPlusOne;
    if (name == "linear_attn.A_log") storage.values = GgufConversion::kDecay;
    if (heads_.tiled && heads_.num_v_heads != heads_.num_k_heads) set_heads(name, storage);
  }
  const bool is_ordered = storage.rotated_head_rows != 0 || storage.tiled_rows.present();
  // A bias is a column of rows.
  if (is_ordered && tensor.shape.size() == 1) storage.row_elements = 1;
  check_rows(owner, tensor, storage);
  return storage;
}

// The converter reorders all that value heads have: rows, channels of the convolution, columns of
// the output. It does so for ggml's products, which repeat key heads as a whole.
void GgufWeights::set_heads(std::string_view part, GgufStorage& storage) const {
  TiledHeads heads{.unit = heads_.v_dim,
                   .num_groups = heads_.num_k_heads,
                   .per_group = heads_.num_v_heads / heads_.num_k_heads};
  if (part == "linear_attn.out_proj.weight") {
    storage.tiled_columns = heads;
    return;
  }
  if (part == "linear_attn.in_proj_qkv.weight" || part == "linear_attn.conv1d.weight") {
    heads.begin = 2 * heads_.num_k_heads * heads_.k_dim;
  } else if (part == "linear_attn.in_proj_a.weight" || part == "linear_attn.in_proj_b.weight" ||
             part == "linear_attn.A_log" || part == "linear_attn.dt_bias") {
    heads.unit = 1;
  } else if (part != "linear_attn.in_proj_z.weight") {
    return;
  }
  storage.tiled_rows = heads;
}

// Reading by rows needs rows of whole blocks, and whole heads to find a row's place in.
void GgufWeights::check_rows(const GgufFile& owner, const GgufTensor& tensor,
                             const GgufStorage& storage) {
  const int64_t num_rows = tensor.shape.front();
  const auto fail = [&](std::string_view what, int64_t count, std::string_view heads) {
    fail_tensor(
        owner, tensor,
        fmt::format("of {} {} in {} is not made of {}", count, what, tensor.type->name, heads));
  };
  const bool is_whole = storage.row_elements % storage.type->block_elements == 0;
  if (storage.rotated_head_rows != 0 && (!is_whole || num_rows % storage.rotated_head_rows != 0)) {
    fail("rows", num_rows, fmt::format("heads of {}", storage.rotated_head_rows));
  }
  const TiledHeads& rows = storage.tiled_rows;
  const TiledHeads& columns = storage.tiled_columns;
  if (rows.present() && (!is_whole || num_rows != rows.end())) {
    fail("rows", num_rows,
         fmt::format("{} value heads of {} after {} others", rows.num_groups * rows.per_group,
                     rows.unit, rows.begin));
  }
  if (columns.present() && storage.row_elements != columns.end()) {
    fail("columns", storage.row_elements,
         fmt::format("{} value heads of {}", columns.num_groups * columns.per_group, columns.unit));
  }
}

}  // namespace sluice
