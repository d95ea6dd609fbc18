// Opens weight files by name or by index, and checks that index and shards agree exactly.
#include "io/model_directory.h"

#include <algorithm>
#include <set>
#include <utility>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "io/json.h"
#include "io/safetensors.h"

namespace sluice {
namespace {

constexpr std::string_view kSingleFile = "model.safetensors";
constexpr std::string_view kIndexFile = "model.safetensors.index.json";

template <typename... Args>
[[noreturn]] void fail_model(std::string context, fmt::format_string<Args...> format,
                             Args&&... args) {
  throw Error(ErrorCode::kModel, fmt::format(format, std::forward<Args>(args)...),
              std::move(context));
}

// A shard is a plain file name: an index must not reach outside of its directory.
bool is_plain_file_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\\\0", 3)) == name.npos;
}

// The index's map of tensor to shard.
std::map<std::string, std::string> read_weight_map(const std::filesystem::path& index_path) {
  const nlohmann::json document = read_json_file(index_path);
  const JsonObject index(document, index_path.string());
  const JsonObject weight_map = index.get_object("weight_map");
  std::map<std::string, std::string> shard_of;
  for (const std::string& tensor : weight_map.keys()) {
    std::string shard = weight_map.get_string(tensor);
    if (!is_plain_file_name(shard)) {
      weight_map.fail(describe_json(tensor), "the name of a file in the model's directory");
    }
    shard_of.emplace(tensor, std::move(shard));
  }
  if (shard_of.empty()) fail_model(index_path.string(), "weight_map is empty; fetch it again");
  return shard_of;
}

}  // namespace

ModelDirectory::ModelDirectory(std::filesystem::path path) : path_(std::move(path)) {
  std::error_code error;
  const auto status = std::filesystem::status(path_, error);
  if (!std::filesystem::exists(status)) {
    fail(ErrorCode::kModel, "model directory {} cannot be opened: {}; check --model",
         path_.string(), error ? error.message() : "it does not exist");
  }
  if (!std::filesystem::is_directory(status)) {
    fail(ErrorCode::kModel, "{} is not a directory; --model takes the directory with config.json",
         path_.string());
  }
  require_file("config.json");
}

std::optional<std::filesystem::path> ModelDirectory::find_file(std::string_view name) const {
  std::error_code error;
  std::filesystem::path file = path_ / name;
  if (!std::filesystem::exists(file, error)) return std::nullopt;
  return file;
}

std::filesystem::path ModelDirectory::require_file(std::string_view name) const {
  if (auto file = find_file(name)) return *std::move(file);
  fail(ErrorCode::kModel, "{} has no {}; it must be a Hugging Face model directory", path_.string(),
       name);
}

Checkpoint::Checkpoint(const ModelDirectory& directory) {
  if (const auto single = directory.find_file(kSingleFile)) {
    add_file(*single);
  } else if (const auto index = directory.find_file(kIndexFile)) {
    add_shards(directory, *index);
  } else {
    fail(ErrorCode::kModel,
         "{} has neither {} nor {}; convert other weight formats to safetensors first",
         directory.path().string(), kSingleFile, kIndexFile);
  }
}

void Checkpoint::add_file(const std::filesystem::path& path) {
  MappedFile file(path);
  SafetensorsHeader header = parse_safetensors_header(file.bytes(), path.string());
  for (SafetensorsEntry& tensor : header.tensors) {
    num_bytes_ += tensor.end - tensor.begin;
    const auto [slot, inserted] = entries_.emplace(
        tensor.name, Entry{files_.size(), tensor.begin, tensor.end, std::move(tensor.dtype_name),
                           tensor.dtype, std::move(tensor.shape)});
    if (!inserted) {
      fail_model(path.string(), "tensor {} is also in {}; a tensor must be in one shard only",
                 describe_json(tensor.name), files_[slot->second.file].path().filename().string());
    }
  }
  files_.push_back(std::move(file));
}

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

bool Checkpoint::has(std::string_view name) const { return entries_.contains(name); }

CheckpointTensor Checkpoint::tensor(std::string_view name, std::span<const int64_t> shape) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) {
    fail_model(files_.front().path().parent_path().string(),
               "tensor \"{}\" is missing from the weights; the model's files do not fit together",
               name);
  }
  const Entry& entry = found->second;
  const MappedFile& file = files_[entry.file];
  if (!std::ranges::equal(entry.shape, shape)) {
    fail_model(file.path().string(), "tensor \"{}\" has shape {}, but config.json makes it {}",
               name, shape_string(entry.shape), shape_string(shape));
  }
  if (!entry.dtype) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("tensor \"{}\" is {}; convert the weights to BF16, F16 or F32", name,
                            entry.dtype_name),
                file.path().string());
  }
  return {.name = found->first,
          .data = file.bytes().data() + entry.begin,
          .dtype = *entry.dtype,
          .shape = entry.shape,
          .num_bytes = static_cast<size_t>(entry.end - entry.begin)};
}

void Checkpoint::require_only(std::span<const std::string> expected) const {
  const std::set<std::string_view> known(expected.begin(), expected.end());
  std::vector<std::string> extra;
  for (const auto& [name, entry] : entries_) {
    if (!known.contains(name)) extra.push_back(describe_json(name));
  }
  if (extra.empty()) return;
  const size_t shown = std::min<size_t>(extra.size(), 3);
  fail_model(files_.front().path().parent_path().string(),
             "{} tensors have no place in this architecture: {}{}; is config.json of this model?",
             extra.size(), fmt::join(extra.begin(), extra.begin() + shown, ", "),
             extra.size() > shown ? ", ..." : "");
}

const MappedFile& Checkpoint::file_of(const CheckpointTensor& tensor) const {
  const auto found = entries_.find(tensor.name);
  SLUICE_CHECK(found != entries_.end(), "tensor {} of another checkpoint", tensor.name);
  return files_[found->second.file];
}

void Checkpoint::will_need(const CheckpointTensor& tensor) const {
  file_of(tensor).will_need({tensor.data, tensor.num_bytes});
}

void Checkpoint::drop(const CheckpointTensor& tensor) const {
  file_of(tensor).drop({tensor.data, tensor.num_bytes});
}

std::string shape_string(std::span<const int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

}  // namespace sluice
