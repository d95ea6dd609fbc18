// Opens weight files by name or by index, and checks that the index and the shards list the same
// tensors.
#include "io/model_directory.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include <fmt/ranges.h>

#include "core/error.h"
#include "io/hub_cache.h"
#include "io/json.h"
#include "io/json_type.h"
#include "io/safetensors.h"

namespace sluice {
namespace {

// The file names of transformers' save_pretrained.
constexpr std::string_view kSingleFile = "model.safetensors";
constexpr std::string_view kIndexFile = "model.safetensors.index.json";
// That of peft's save_pretrained.
constexpr std::string_view kAdapterConfig = "adapter_config.json";

// How a method of quantization names the tensors that it adds to a weight's, or that replace it.
struct QuantizedName {
  std::string_view suffix;
  std::string_view method;
};
constexpr QuantizedName kQuantizedNames[] = {{".qweight", "GPTQ or AWQ"},
                                             {".weight_packed", "compressed-tensors"},
                                             {".weight_scale_inv", "FP8 in blocks"},
                                             {".weight_scale", "FP8 or INT8"},
                                             {".weight.absmax", "bitsandbytes"},
                                             {".SCB", "bitsandbytes"},
                                             {".scales", "MLX"}};

// In a model of text and pictures the text part is nested, as a model of its own it is not; nothing
// else differs. Its names become those of the latter, so that no code above knows which a file has.
std::string text_part_name(const std::string& name) {
  constexpr std::string_view kNested = "model.language_model.";
  return name.starts_with(kNested) ? "model." + name.substr(kNested.size()) : name;
}

// Throws kModel with a formatted message; `context` is the file.
template <typename... Args>
[[noreturn]] void fail_model(std::string context, fmt::format_string<Args...> format,
                             Args&&... args) {
  throw Error(ErrorCode::kModel, fmt::format(format, std::forward<Args>(args)...),
              std::move(context));
}

// Whether `name` is a file name without directories or control characters: an index must not refer
// to files outside its directory, and error texts print the name as part of a path.
bool is_plain_file_name(std::string_view name) {
  constexpr size_t kLongestName = 255;  // of Linux's file systems
  const auto is_plain = [](char c) {
    return static_cast<unsigned char>(c) >= ' ' && c != '\x7f' && c != '/' && c != '\\';
  };
  return !name.empty() && name.size() <= kLongestName && name != "." && name != ".." &&
         std::ranges::all_of(name, is_plain);
}

// Whether the loader can convert the type to bf16. Checkpoints with quantized weights have I32 or
// U8 tensors, which are not supported.
bool is_weight_type(std::optional<DType> dtype) {
  return dtype == DType::kBF16 || dtype == DType::kF16 || dtype == DType::kF32;
}

// Of a shape that was checked: the product fits.
size_t num_elements(std::span<const int64_t> shape) {
  size_t product = 1;
  for (const int64_t dim : shape) product *= static_cast<size_t>(dim);
  return product;
}

// The index's map of tensor to shard.
std::map<std::string, std::string> read_weight_map(const std::filesystem::path& index_path) {
  const nlohmann::json document = parse_json(read_model_file(index_path), index_path.string());
  const JsonObject index(document, index_path.string());
  const JsonObject weight_map = index.get_object("weight_map");
  std::map<std::string, std::string> shard_of;
  for (const std::string& tensor : weight_map.keys()) {
    // Not get_string, whose error shows the tensor's name as it is.
    const nlohmann::json shard = weight_map.has(tensor) ? weight_map.get(tensor) : nullptr;
    if (!shard.is_string() || !is_plain_file_name(shard.get_ref<const std::string&>())) {
      fail_model(weight_map.name(),
                 "{} is {}; it must be the name of a file in the model's directory, fetch the "
                 "index again",
                 describe_json(tensor), describe_json(shard));
    }
    shard_of.emplace(text_part_name(tensor), shard.get<std::string>());
  }
  if (shard_of.empty()) fail_model(index_path.string(), "weight_map is empty; fetch it again");
  return shard_of;
}

// The only GGUF model of a directory, of several files the first; nothing if there is none.
// Errors: kModel for several: repositories often have one model in many sizes.
std::optional<std::filesystem::path> find_only_gguf(const std::filesystem::path& directory) {
  std::set<std::filesystem::path> found;
  std::error_code error;
  for (std::filesystem::directory_iterator entries(directory, error), end; !error && entries != end;
       entries.increment(error)) {
    if (is_first_gguf(entries->path())) found.insert(entries->path());
  }
  if (found.empty()) return std::nullopt;
  if (found.size() == 1) return *found.begin();
  fail(ErrorCode::kModel,
       "{} has no config.json but {} GGUF files; give one to --model, such as {}",
       directory.string(), found.size(), found.begin()->string());
}

// A directory of peft, which holds the changes to another model's weights.
[[noreturn]] void refuse_adapter(const std::filesystem::path& path, std::string_view lacks) {
  fail(ErrorCode::kModel,
       "{} is an adapter: it has {} and {}, and Sluice applies none; merge it into its base model "
       "(merge_and_unload() of peft, then save_pretrained()) and give the merged directory to "
       "--model",
       path.string(), kAdapterConfig, lacks);
}

// Whether the path is more likely the name of a repository, "org/name", than a misspelt local one,
// which it is if a local directory of the first name exists.
bool looks_like_repository(const std::filesystem::path& path) {
  const std::string text = path.string();
  const size_t slash = text.find('/');
  std::error_code error;
  return slash != text.npos && is_hub_name(text) &&
         !std::filesystem::exists(text.substr(0, slash), error);
}

// What to do about a model directory that does not exist.
std::string remedy_of_absence(const std::filesystem::path& path) {
  if (!looks_like_repository(path)) {
    return "check --model: a directory, a GGUF file, or ORG/NAME of a model that `sluice models` "
           "lists";
  }
  return fmt::format(
      "nor is such a model in the Hugging Face cache {}, and Sluice downloads nothing: fetch it "
      "with `hf download {}` (pip install huggingface_hub)",
      hub_cache_directory().string(), path.string());
}

}  // namespace

// In order: a GGUF file, a directory with config.json, a directory with a single GGUF file. Each
// other kind of path has an error of its own, since the remedies differ.
ModelDirectory::ModelDirectory(std::filesystem::path path) : path_(find_model(std::move(path))) {
  std::error_code error;
  const auto status = std::filesystem::status(path_, error);
  is_gguf_ = std::filesystem::exists(status) && sluice::is_gguf(path_);
  if (is_gguf_) return;
  if (!std::filesystem::exists(status)) {
    fail(ErrorCode::kModel, "model directory {} cannot be opened: {}; {}", path_.string(),
         error ? error.message() : "it does not exist", remedy_of_absence(path_));
  }
  if (!std::filesystem::is_directory(status)) {
    fail(ErrorCode::kModel,
         "{} is not a directory; --model takes the directory with config.json, or a GGUF file",
         path_.string());
  }
  if (!find_file("config.json")) {
    if (auto gguf = find_only_gguf(path_)) {
      path_ = *std::move(gguf);
      is_gguf_ = true;
      return;
    }
  }
  if (!find_file("config.json") && find_file(kAdapterConfig)) {
    refuse_adapter(path_, "no config.json");
  }
  require_file("config.json");
}

std::optional<std::filesystem::path> ModelDirectory::find_file(std::string_view name) const {
  if (is_gguf_) return std::nullopt;
  std::filesystem::path file = path_ / name;
  if (!model_file_exists(file)) return std::nullopt;
  return file;
}

std::filesystem::path ModelDirectory::require_file(std::string_view name) const {
  if (auto file = find_file(name)) return *std::move(file);
  fail(ErrorCode::kModel, "{} has no {}; it must be a Hugging Face model directory", path_.string(),
       name);
}

// Blocks of GGUF are decoded part by part: a whole tensor in F32 would take four times its file.
// Reads headers alone: what is missing, doubled or of another version shows before weights are
// read, which may take minutes.
Checkpoint::Checkpoint(const ModelDirectory& directory) {
  if (directory.is_gguf()) {
    add_gguf(directory.path());
  } else if (const auto single = directory.find_file(kSingleFile)) {
    add_file(*single);
    warn_of_stray_file(directory);
  } else if (const auto index = directory.find_file(kIndexFile)) {
    add_shards(directory, *index);
  } else if (directory.find_file(kAdapterConfig)) {
    refuse_adapter(directory.path(), "no weights of its own");
  } else {
    fail(ErrorCode::kModel,
         "{} has neither {} nor {}; fetch them or convert other "
         "formats to safetensors; random weights for benchmarks: --load-format dummy",
         directory.path().string(), kSingleFile, kIndexFile);
  }
}

// Reads the header of one weight file and enters its tensors.
void Checkpoint::add_file(const std::filesystem::path& path) {
  ModelFile file(path);
  SafetensorsHeader header = read_safetensors_header(file);
  for (SafetensorsEntry& tensor : header.tensors) {
    num_bytes_ += tensor.end - tensor.begin;
    add_tensor(path, text_part_name(tensor.name),
               {files_.size(), tensor.begin, tensor.end, std::move(tensor.dtype_name), tensor.dtype,
                std::move(tensor.shape)});
  }
  files_.push_back(std::move(file));
}

// A tensor in two shards would be read from either, so it is an error even if both are equal.
void Checkpoint::add_tensor(const std::filesystem::path& path, const std::string& name,
                            Entry entry) {
  const auto [slot, inserted] = entries_.emplace(name, std::move(entry));
  if (inserted) return;
  if (slot->second.file == files_.size()) {
    fail_model(path.string(), "tensor {} is there under two names; fetch the file again",
               describe_json(name));
  }
  fail_model(path.string(), "tensor {} is also in {}; a tensor must be in one shard only",
             describe_json(name), files_[slot->second.file].path().filename().string());
}

// The metadata of the first shard describes all of them; names become those of transformers, so
// that no code above knows where weights come from.
void Checkpoint::add_gguf(const std::filesystem::path& path) {
  described_by_ = "its metadata";
  const GgufFile first(path);
  const GgufWeights weights(first);
  for (const std::filesystem::path& shard : gguf_shards(first)) {
    GgufFile owner(shard);
    for (const GgufTensor& tensor : owner.tensors()) {
      for (GgufPlace& place : weights.places(owner, tensor)) {
        num_bytes_ += num_elements(place.shape) * sizeof(float);
        add_tensor(shard, place.name,
                   {files_.size(), place.begin, place.end, std::string(tensor.type->name),
                    DType::kF32, std::move(place.shape), place.storage});
      }
    }
    files_.push_back(std::move(owner).take_file());
  }
}

// In the file, by the names that the file has for its types.
std::map<std::string, uint64_t> Checkpoint::bytes_by_type() const {
  std::map<std::string, uint64_t> bytes;
  for (const auto& [name, entry] : entries_) bytes[entry.dtype_name] += entry.end - entry.begin;
  return bytes;
}

// Both are there where a merged or converted model was written over its shards, or the other way
// round. An index whose shards are not all there is a rest, and so is one that cannot be read.
void Checkpoint::warn_of_stray_file(const ModelDirectory& directory) {
  const auto index = directory.find_file(kIndexFile);
  if (!index) return;
  try {
    for (const auto& [tensor, shard] : read_weight_map(*index)) {
      if (shard == kSingleFile || !directory.find_file(shard)) return;
    }
  } catch (const Error&) {
    return;
  }
  warnings_.push_back(fmt::format(
      "{} has both {} and {} with all its shards; {} is read, as transformers does; remove what is "
      "not the model",
      directory.path().string(), kSingleFile, kIndexFile, kSingleFile));
}

// Opens each shard of the index once, then compares in both directions: every tensor of the shards
// is in the index, and every tensor of the index is in the shard that it names.
void Checkpoint::add_shards(const ModelDirectory& directory,
                            const std::filesystem::path& index_path) {
  const std::map<std::string, std::string> shard_of = read_weight_map(index_path);
  std::set<std::string> shards;
  for (const auto& [tensor, shard] : shard_of) shards.insert(shard);
  for (const std::string& shard : shards) {
    const auto path = directory.find_file(shard);
    if (!path) {
      fail_model(index_path.string(), "shard {} is missing from the directory; fetch it",
                 describe_json(shard));
    }
    add_file(*path);
  }
  for (const auto& [name, entry] : entries_) {
    if (!shard_of.contains(name)) {
      fail_model(files_[entry.file].path().string(),
                 "tensor {} is not in {}; index and shards are of different versions",
                 describe_json(name), kIndexFile);
    }
  }
  for (const auto& [name, shard] : shard_of) {
    const auto found = entries_.find(name);
    if (found == entries_.end() || files_[found->second.file].path().filename() != shard) {
      fail_model(index_path.string(),
                 "tensor {} is not in shard {}; index and shards are of different versions",
                 describe_json(name), describe_json(shard));
    }
  }
}

std::vector<std::string> Checkpoint::names() const {
  std::vector<std::string> names;
  for (const auto& [name, entry] : entries_) names.push_back(name);
  return names;
}

// Weights are quantized in a way that the configuration does not say: a better answer than what is
// wrong with a tensor alone. Returns if no name shows it.
void Checkpoint::refuse_quantization(std::string_view tensor, std::string_view what) const {
  for (const auto& [name, entry] : entries_) {
    for (const auto& [suffix, method] : kQuantizedNames) {
      if (!name.ends_with(suffix)) continue;
      throw Error(
          ErrorCode::kUnsupported,
          fmt::format("tensor \"{}\" {}; the weights are quantized with {}, as tensor {} shows, in "
                      "a way that config.json does not say or Sluice does not read; use the BF16, "
                      "F16 or F32 version of the model",
                      tensor, what, method, describe_json(name)),
          files_[entry.file].path().string());
    }
  }
}

bool Checkpoint::has(std::string_view name) const { return entries_.contains(name); }

// All checks need the header only, so that a wrong model is refused before weights are read.
const Checkpoint::NamedEntry& Checkpoint::find(std::string_view name,
                                               std::span<const int64_t> shape) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) {
    refuse_quantization(name, "is missing");
    fail_model(files_.front().path().parent_path().string(),
               "tensor \"{}\" is missing from the weights; the model's files do not fit together, "
               "fetch {} and weights from one place",
               name, described_by_);
  }
  const Entry& entry = found->second;
  if (!std::ranges::equal(entry.shape, shape)) {
    refuse_quantization(name, "has shape " + shape_string(entry.shape));
    fail_model(
        files_[entry.file].path().string(),
        "tensor \"{}\" has shape {}, but {} makes it {}; fetch {} and weights from one place", name,
        shape_string(entry.shape), described_by_, shape_string(shape), described_by_);
  }
  return *found;
}

CheckpointTensor Checkpoint::describe(const NamedEntry& named) const {
  const Entry& entry = named.second;
  const uint64_t file_bytes = entry.end - entry.begin;
  return {.name = named.first,
          .dtype = *entry.dtype,
          .shape = entry.shape,
          .num_bytes = entry.storage ? num_elements(entry.shape) * sizeof(float) : file_bytes,
          .file = &files_[entry.file],
          .file_offset = entry.begin,
          .num_file_bytes = file_bytes,
          .storage = entry.storage ? &*entry.storage : nullptr};
}

CheckpointTensor Checkpoint::tensor(std::string_view name, std::span<const int64_t> shape) const {
  const NamedEntry& named = find(name, shape);
  const Entry& entry = named.second;
  if (!is_weight_type(entry.dtype)) {
    // Other weights of the model may be in FP8 by right.
    const bool is_fp8 = entry.dtype == DType::kE4m3;
    if (!is_fp8) refuse_quantization(name, "is " + entry.dtype_name);
    throw Error(ErrorCode::kUnsupported,
                fmt::format("tensor \"{}\" is {}; convert the weights to BF16, F16 or F32{}", name,
                            entry.dtype_name,
                            is_fp8 ? ": quantization_config of config.json does not say that" : ""),
                files_[entry.file].path().string());
  }
  return describe(named);
}

// A file and a configuration of different repositories, or a half-converted model.
CheckpointTensor Checkpoint::quantized_tensor(std::string_view name, std::span<const int64_t> shape,
                                              DType dtype) const {
  const NamedEntry& named = find(name, shape);
  const Entry& entry = named.second;
  if (entry.dtype != dtype) {
    fail_model(files_[entry.file].path().string(),
               "tensor \"{}\" is {}, but quantization_config of config.json makes it {}; fetch "
               "both from one place",
               name, entry.dtype_name, safetensors_dtype_name(dtype));
  }
  return describe(named);
}

CheckpointTensor Checkpoint::scale_tensor(std::string_view name,
                                          std::span<const int64_t> shape) const {
  const NamedEntry& named = find(name, shape);
  return named.second.dtype_name == "F8_E8M0" ? describe(named) : tensor(name, shape);
}

std::optional<std::span<const int64_t>> Checkpoint::shape_of(std::string_view name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) return std::nullopt;
  return found->second.shape;
}

// A tensor without a place would be ignored silently, for example a bias or an adapter.
void Checkpoint::require_only(std::span<const std::string> expected) const {
  const std::set<std::string_view> known(expected.begin(), expected.end());
  std::vector<std::string> extra;
  for (const auto& [name, entry] : entries_) {
    if (!known.contains(name)) extra.push_back(describe_json(name));
  }
  if (extra.empty()) return;
  const size_t shown = std::min<size_t>(extra.size(), 3);
  fail_model(files_.front().path().parent_path().string(),
             "{} tensors have no place in this architecture: {}{}; is {} of this model?",
             extra.size(), fmt::join(extra.begin(), extra.begin() + shown, ", "),
             extra.size() > shown ? ", ..." : "", described_by_);
}

void Checkpoint::require_unchanged() const {
  for (const ModelFile& file : files_) file.require_unchanged();
}

std::string shape_string(std::span<const int64_t> shape) {
  constexpr size_t kMaxShown = 8;
  if (shape.size() <= kMaxShown) return fmt::format("[{}]", fmt::join(shape, ", "));
  return fmt::format("[{}, ... {} more]", fmt::join(shape.first(kMaxShown), ", "),
                     shape.size() - kMaxShown);
}

}  // namespace sluice
