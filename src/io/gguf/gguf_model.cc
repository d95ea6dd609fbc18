// Finds files by their names, and reads the keys that several parts of Sluice need.
#include "io/gguf/gguf_model.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/error.h"
#include "core/printable.h"

namespace sluice {
namespace {

constexpr std::array<std::string_view, 8> kArchitectures = {
    "llama", "qwen2", "qwen3", "qwen2moe", "qwen3moe", "qwen3next", "qwen35", "qwen35moe"};
// Limits of what is multiplied here; those of models are the configuration's.
constexpr int64_t kMaxCount = 1 << 20;

// As llama.cpp and Hugging Face name such files.
bool has_gguf_name(const std::filesystem::path& path) {
  const std::string extension = path.extension().string();
  return extension == ".gguf" || extension == ".GGUF";
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
  if (std::ranges::find(kArchitectures, name) != kArchitectures.end()) return name;
  throw Error(ErrorCode::kUnsupported,
              fmt::format("general.architecture is \"{}\"; {} are supported, choose a model of "
                          "these",
                          printable(name), fmt::join(kArchitectures, ", ")),
              file.name());
}

bool is_gguf_hybrid(std::string_view architecture) {
  return architecture == "qwen3next" || architecture == "qwen35" || architecture == "qwen35moe";
}

bool has_gguf_experts(const GgufFile& file) {
  const std::string architecture = gguf_architecture(file);
  if (architecture == "qwen3next" || architecture.ends_with("moe")) return true;
  return file.find_int(architecture + ".expert_count", 0, kMaxCount).value_or(0) > 0;
}

int64_t gguf_num_layers(const GgufFile& file) {
  const std::string prefix = gguf_architecture(file) + ".";
  const std::string draft_key = prefix + "nextn_predict_layers";
  const int64_t count = file.get_int(prefix + "block_count", 1, kMaxCount);
  const int64_t num_drafts = file.find_int(draft_key, 0, kMaxCount).value_or(0);
  if (num_drafts >= count) file.fail(draft_key, fmt::format("below block_count {}", count));
  return count - num_drafts;
}

GgufDeltaHeads gguf_delta_heads(const GgufFile& file) {
  const std::string architecture = gguf_architecture(file);
  const auto size = [&](const char* name) {
    return file.get_int(architecture + ".ssm." + name, 1, kMaxCount);
  };
  GgufDeltaHeads heads{.num_k_heads = size("group_count"),
                       .num_v_heads = size("time_step_rank"),
                       .k_dim = size("state_size")};
  const int64_t v_width = size("inner_size");
  if (heads.num_v_heads % heads.num_k_heads != 0) {
    file.fail(architecture + ".ssm.time_step_rank",
              fmt::format("a multiple of ssm.group_count {}", heads.num_k_heads));
  }
  if (v_width % heads.num_v_heads != 0) {
    file.fail(architecture + ".ssm.inner_size",
              fmt::format("a multiple of ssm.time_step_rank {}", heads.num_v_heads));
  }
  heads.v_dim = v_width / heads.num_v_heads;
  // Ollama's files say it. llama.cpp's do not; its converter reorders the heads of these two alone.
  heads.tiled =
      file.find_bool(architecture + ".ssm.v_head_reordered").value_or(architecture != "qwen3next");
  return heads;
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

}  // namespace sluice
