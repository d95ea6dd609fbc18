// Names of llama.cpp's tensors, its order of rows, and reading of decoded elements.
#include "io/gguf/gguf_weights.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include <fmt/format.h>

#include "core/error.h"
#include "core/printable.h"

namespace sluice {
namespace {

constexpr std::string_view kLayerPrefix = "blk.";
constexpr int64_t kPieceBytes = 64 * 1024;  // of a file, decoded at once

using NamePair = std::pair<std::string_view, std::string_view>;

// Source: MODEL_TENSOR of the gguf package. A name that is not here is refused: a tensor without a
// place would be left out silently.
constexpr auto kNames = std::to_array<NamePair>(
    {{"token_embd", "model.embed_tokens"}, {"output_norm", "model.norm"}, {"output", "lm_head"}});
constexpr auto kLayerNames = std::to_array<NamePair>({{"attn_norm", "input_layernorm"},
                                                      {"attn_q", "self_attn.q_proj"},
                                                      {"attn_k", "self_attn.k_proj"},
                                                      {"attn_v", "self_attn.v_proj"},
                                                      {"attn_output", "self_attn.o_proj"},
                                                      {"attn_q_norm", "self_attn.q_norm"},
                                                      {"attn_k_norm", "self_attn.k_norm"},
                                                      {"ffn_norm", "post_attention_layernorm"},
                                                      {"ffn_gate", "mlp.gate_proj"},
                                                      {"ffn_up", "mlp.up_proj"},
                                                      {"ffn_down", "mlp.down_proj"}});

// Tables of a dozen names, which are looked through in order.
template <size_t kCount>
std::optional<std::string_view> look_up(const std::array<NamePair, kCount>& names,
                                        std::string_view name) {
  const auto found = std::ranges::find(names, name, &NamePair::first);
  return found == names.end() ? std::nullopt : std::optional(found->second);
}

// As llama.cpp and Hugging Face name such files.
bool has_gguf_name(const std::filesystem::path& path) {
  const std::string extension = path.extension().string();
  return extension == ".gguf" || extension == ".GGUF";
}

// The row of the file that has row `row` of Hugging Face's order: there, a head's first half of
// rows rotates with its second half; llama.cpp puts both of a pair side by side.
int64_t row_in_file(int64_t row, int64_t head_rows) {
  const int64_t in_head = row % head_rows, half = head_rows / 2;
  return row - in_head + in_head % half * 2 + in_head / half;
}

// Elements [first, first + dst.size()) of consecutive blocks that begin at byte `begin`. The range
// may begin and end within blocks, which are then decoded whole: a block has one scale for all of
// its elements, and some formats spread an element over several bytes.
void read_run(const ModelFile& file, uint64_t begin, const GgufType& type, int64_t first,
              std::span<float> dst) {
  const int64_t per_block = type.block_elements;
  const auto block_bytes = static_cast<int64_t>(type.block_bytes);
  const int64_t at_once = kPieceBytes / block_bytes;
  std::vector<std::byte> bytes;
  std::vector<float> elements;
  int64_t done = 0;
  while (done < std::ssize(dst)) {
    const int64_t block = (first + done) / per_block, skipped = (first + done) % per_block;
    const int64_t left = skipped + std::ssize(dst) - done;
    const int64_t num_blocks = std::min(at_once, (left + per_block - 1) / per_block);
    bytes.resize(static_cast<size_t>(num_blocks * block_bytes));
    elements.resize(static_cast<size_t>(num_blocks * per_block));
    file.read(begin + static_cast<uint64_t>(block * block_bytes), bytes);
    type.decode(bytes.data(), num_blocks, elements.data());
    const int64_t count = std::min(num_blocks * per_block, left) - skipped;
    std::copy_n(elements.begin() + skipped, count, dst.begin() + done);
    done += count;
  }
}

}  // namespace

bool is_gguf(const std::filesystem::path& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) return false;
  if (has_gguf_name(path)) return true;
  if (!std::filesystem::is_regular_file(path, error)) return false;
  try {
    std::array<std::byte, 4> magic{};
    const ModelFile file(path);
    if (file.num_bytes() < magic.size()) return false;
    file.read(0, magic);
    return magic == std::array{std::byte{'G'}, std::byte{'G'}, std::byte{'U'}, std::byte{'F'}};
  } catch (const Error&) {
    return false;
  }
}

bool is_first_gguf(const std::filesystem::path& path) {
  const std::string name = path.filename().string();
  const bool is_later = name.find("-of-") != name.npos && name.find("-00001-of-") == name.npos;
  return !is_later && is_gguf(path);
}

std::vector<std::filesystem::path> gguf_shards(const GgufFile& first) {
  constexpr int64_t kMaxShards = 99999;  // five digits
  const std::filesystem::path& path = first.file().path();
  const int64_t count = first.find_int("split.count", 0, kMaxShards).value_or(1);
  if (count <= 1) return {path};
  const int64_t number = first.find_int("split.no", 0, kMaxShards).value_or(0) + 1;
  const std::string name = path.filename().string();
  const std::string suffix = fmt::format("-{:05}-of-{:05}.gguf", number, count);
  if (number != 1 || !name.ends_with(suffix)) {
    throw Error(ErrorCode::kModel,
                fmt::format("it is file {} of {}; give the first one, NAME-00001-of-{:05}.gguf, to "
                            "--model, with the others under such names beside it",
                            number, count, count),
                path.string());
  }
  std::vector<std::filesystem::path> shards = {path};
  for (int64_t i = 2; i <= count; ++i) {
    shards.push_back(path.parent_path() / fmt::format("{}-{:05}-of-{:05}.gguf",
                                                      name.substr(0, name.size() - suffix.size()),
                                                      i, count));
    if (!model_file_exists(shards.back())) {
      throw Error(ErrorCode::kModel,
                  fmt::format("{} is missing, file {} of {}; fetch it into the same directory",
                              shards.back().filename().string(), i, count),
                  path.string());
    }
  }
  return shards;
}

std::string gguf_architecture(const GgufFile& file) {
  std::string name = file.get_string("general.architecture");
  if (name == "llama" || name == "qwen2" || name == "qwen3") return name;
  throw Error(ErrorCode::kUnsupported,
              fmt::format("general.architecture is \"{}\"; llama, qwen2 and qwen3 are supported, "
                          "choose a model of these",
                          printable(name)),
              file.name());
}

int64_t gguf_head_dim(const GgufFile& file) {
  constexpr int64_t kMaxHeadDim = 256;  // of attention and rope
  const std::string prefix = gguf_architecture(file) + ".";
  const std::string length_key = prefix + "attention.key_length";
  const std::string width_key = prefix + "embedding_length";
  if (const auto length = file.find_int(length_key, 2, kMaxHeadDim)) {
    if (*length % 2 != 0) file.fail(length_key, "even");
    return *length;
  }
  const int64_t heads = file.get_int(prefix + "attention.head_count", 1, 1024);
  const int64_t width = file.get_int(width_key, 1, int64_t{1} << 18);
  if (width % (2 * heads) != 0 || width / heads > kMaxHeadDim) {
    file.fail(width_key,
              fmt::format("an even multiple, at most {} times, of attention.head_count {} without "
                          "attention.key_length",
                          kMaxHeadDim, heads));
  }
  return width / heads;
}

std::optional<std::string> hf_tensor_name(std::string_view gguf_name) {
  const size_t dot = gguf_name.rfind('.');
  if (dot == gguf_name.npos) return std::nullopt;
  std::string_view stem = gguf_name.substr(0, dot);
  const std::string_view suffix = gguf_name.substr(dot);
  if (suffix != ".weight" && suffix != ".bias") return std::nullopt;
  if (const auto name = look_up(kNames, stem)) return fmt::format("{}{}", *name, suffix);
  if (!stem.starts_with(kLayerPrefix)) return std::nullopt;
  stem.remove_prefix(kLayerPrefix.size());
  const size_t end = std::min(stem.find('.'), stem.size());
  int32_t layer = 0;
  const auto [parsed, error] = std::from_chars(stem.data(), stem.data() + end, layer);
  if (error != std::errc() || parsed != stem.data() + end || end == stem.size()) {
    return std::nullopt;
  }
  const auto name = look_up(kLayerNames, stem.substr(end + 1));
  if (!name) return std::nullopt;
  return fmt::format("model.layers.{}.{}{}", layer, *name, suffix);
}

GgufStorage gguf_storage(const GgufFile& first, const GgufFile& owner, const GgufTensor& tensor) {
  GgufStorage storage{.type = tensor.type, .row_elements = tensor.shape.back()};
  const std::string_view name = tensor.name;
  const bool is_rotated = name.find(".attn_q.") != name.npos || name.find(".attn_k.") != name.npos;
  if (!is_rotated || gguf_architecture(first) != "llama") return storage;
  storage.rotated_head_rows = gguf_head_dim(first);
  // A bias is a column of rows.
  if (tensor.shape.size() == 1) storage.row_elements = 1;
  // Reading by rows needs rows of whole blocks, and whole heads to find a row's place in.
  const bool is_whole = tensor.shape.front() % storage.rotated_head_rows == 0 &&
                        storage.row_elements % tensor.type->block_elements == 0;
  if (!is_whole) {
    throw Error(
        ErrorCode::kModel,
        fmt::format("tensor \"{}\" of {} rows in {} is not made of heads of {}", printable(name),
                    tensor.shape.front(), tensor.type->name, storage.rotated_head_rows),
        owner.name());
  }
  return storage;
}

void read_gguf_elements(const ModelFile& file, uint64_t begin, const GgufStorage& storage,
                        int64_t first, std::span<float> dst) {
  // The usual case. Rows follow each other without gaps: in the order of the file they are one run.
  if (storage.rotated_head_rows == 0) return read_run(file, begin, *storage.type, first, dst);
  // Row by row, each from its place in the file; only q and k of the llama architecture.
  const auto row_bytes =
      static_cast<uint64_t>(storage.row_elements / storage.type->block_elements) *
      storage.type->block_bytes;
  for (size_t done = 0; done < dst.size();) {
    const int64_t at = first + static_cast<int64_t>(done);
    const int64_t row = at / storage.row_elements, col = at % storage.row_elements;
    const size_t count =
        std::min(static_cast<size_t>(storage.row_elements - col), dst.size() - done);
    const auto source = static_cast<uint64_t>(row_in_file(row, storage.rotated_head_rows));
    read_run(file, begin + source * row_bytes, *storage.type, col, dst.subspan(done, count));
    done += count;
  }
}

}  // namespace sluice
