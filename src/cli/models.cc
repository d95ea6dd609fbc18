// sluice models: lists the models of the Hugging Face cache, or of directories, and says of each
// whether it runs. Reads configurations, headers and tokenizers, no weights. Runs on the main
// thread.
#include <algorithm>
#include <filesystem>
#include <map>
#include <string_view>

#include <fmt/format.h>

#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/table.h"
#include "cli/terminal.h"
#include "cli/units.h"
#include "core/error.h"
#include "io/gguf/gguf_model.h"
#include "io/hub_cache.h"
#include "io/json.h"
#include "io/json_type.h"
#include "sluice/inspect.h"
#include "text/json_text.h"

namespace sluice::cli {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxReasonChars = 96;

// What is known of one model. What its files do not say is empty or 0.
struct FoundModel {
  std::string name;  // for --model
  fs::path directory;
  std::string architecture;
  std::string weight_type;  // as its configuration has it: "bfloat16", or a method of quantization
  uint64_t file_bytes = 0;  // of all safetensors or GGUF files
  int64_t num_parameters = 0;
  int64_t max_position_embeddings = 0;
  bool can_chat = false;
  std::string problem;  // why it does not run; "": it runs
};

// Links of the cache are followed; one to nothing counts as no bytes.
uint64_t safetensors_bytes(const fs::path& directory) {
  // A directory that vanishes meanwhile has no files; what is read of it next says so.
  uint64_t sum = 0;
  std::error_code error;
  for (fs::directory_iterator files(directory, error), end; !error && files != end;
       files.increment(error)) {
    if (files->path().extension() != ".safetensors") continue;
    std::error_code no_size;
    const uint64_t bytes = fs::file_size(files->path(), no_size);
    if (!no_size) sum += bytes;
  }
  return sum;
}

// As read_raw_config, of a GGUF file: its type is the one with the most bytes.
void read_raw_gguf(FoundModel* model) {
  const GgufFile first(model->directory);
  model->architecture = first.find_string("general.architecture").value_or("");
  std::map<std::string_view, uint64_t> bytes_by_type;
  for (const fs::path& shard : gguf_shards(first)) {
    const GgufFile file(shard);
    model->file_bytes += file.file().num_bytes();
    for (const GgufTensor& tensor : file.tensors()) {
      bytes_by_type[tensor.type->name] += tensor.end - tensor.begin;
    }
  }
  const auto bytes = [](const auto& entry) { return entry.second; };
  if (bytes_by_type.empty()) return;
  model->weight_type = std::ranges::max_element(bytes_by_type, {}, bytes)->first;
}

// A text at `key`, "" if it is absent or something else.
std::string text_at(const nlohmann::json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

// What also an unsupported model's configuration says.
void read_raw_config(FoundModel* model) {
  const nlohmann::json config = read_json_file(model->directory / "config.json");
  // Faults are those of summarize_model, which follows and words them.
  if (!config.is_object()) return;
  if (const auto names = config.find("architectures");
      names != config.end() && names->is_array() && !names->empty() && (*names)[0].is_string()) {
    model->architecture = (*names)[0].get<std::string>();
  }
  // transformers 5 writes dtype, all before it torch_dtype.
  model->weight_type = text_at(config, "torch_dtype");
  if (model->weight_type.empty()) model->weight_type = text_at(config, "dtype");
  // A quantised model keeps the type of what was quantised there, which would mislead.
  const auto quantization = config.find("quantization_config");
  if (quantization == config.end() || !quantization->is_object()) return;
  const std::string method = text_at(*quantization, "quant_method");
  model->weight_type = method.empty() ? "quantized" : method;
}

// What LLM would say of the model, as `inspect` does.
void check_files(FoundModel* model) {
  EngineOptions options;
  options.model = model->directory.string();
  // First, since an unsupported architecture is the most usual reason.
  const ModelSummary summary = summarize_model(options.model);
  model->num_parameters = summary.num_parameters;
  model->max_position_embeddings = summary.max_position_embeddings;
  const ModelCheck check = check_model(options);
  model->can_chat = check.chat.empty();
  // Of several faults the first is shown: the others often follow from it.
  if (!check.problems.empty()) model->problem = check.problems[0];
  // Over whatever else is missing: such directories have a configuration alone.
  if (model->file_bytes == 0) model->problem = "no weights; it runs with --load-format dummy";
}

// Everything about one model. A fault of its files is its `problem` and no error, so that the list
// goes on. Errors: Interrupted, between two models.
FoundModel look_at(std::string name, fs::path directory) {
  if (interrupted()) throw Interrupted();
  FoundModel model{.name = std::move(name), .directory = std::move(directory)};
  try {
    if (is_gguf(model.directory)) {
      read_raw_gguf(&model);
    } else {
      model.file_bytes = safetensors_bytes(model.directory);
      read_raw_config(&model);
    }
    check_files(&model);
  } catch (const Error& error) {
    model.problem = error.what();
  }
  return model;
}

// Whether look_at can say more of a path than that it is no model.
bool is_model(const fs::path& path) {
  return fs::exists(path / "config.json") || is_first_gguf(path);
}

// The model in `directory`, or those below it: directories and GGUF files.
void add_models_in(const fs::path& directory, std::vector<FoundModel>* models) {
  if (is_model(directory)) {
    models->push_back(look_at(directory.string(), directory));
    return;
  }
  // Sorted, since the order of a directory is that of its file system.
  std::vector<fs::path> below;
  std::error_code error;
  for (fs::directory_iterator entries(directory, error), end; !error && entries != end;
       entries.increment(error)) {
    if (is_model(entries->path())) below.push_back(entries->path());
  }
  if (error) {
    fail(ErrorCode::kInvalidArgument, "directory {} cannot be read: {}", directory.string(),
         error.message());
  }
  std::ranges::sort(below);
  for (const fs::path& path : below) models->push_back(look_at(path.string(), path));
}

// In the order of the command line, or of the names in the cache. Some tenths of a second a model,
// most of it for the tokenizer.
std::vector<FoundModel> find_models(const ModelsCommand& command) {
  ProgressLine progress("looking at models");
  std::vector<FoundModel> models;
  for (const std::string& directory : command.directories) add_models_in(directory, &models);
  if (!command.directories.empty()) return models;
  for (const HubModel& model : list_hub_cache()) {
    // A repository of GGUF files has a model in each.
    const size_t num_before = models.size();
    if (!is_model(model.snapshot)) add_models_in(model.snapshot, &models);
    if (models.size() == num_before) models.push_back(look_at(model.name, model.snapshot));
  }
  return models;
}

// One row for each model, then why some do not run.
std::string describe(const std::vector<FoundModel>& models) {
  Table table({"model", "architecture", "parameters", "type", "files", "context", "runs"});
  table.align_left(1);
  table.align_left(6);
  std::string reasons;
  for (const FoundModel& model : models) {
    // What is not known is a dash, since a zero would look like a number.
    const auto or_dash = [](bool is_known, std::string text) { return is_known ? text : "-"; };
    table.add(
        {model.name, or_dash(!model.architecture.empty(), model.architecture),
         or_dash(model.num_parameters > 0, format_count(static_cast<double>(model.num_parameters))),
         or_dash(!model.weight_type.empty(), model.weight_type),
         or_dash(model.file_bytes > 0, format_bytes(static_cast<double>(model.file_bytes))),
         or_dash(model.max_position_embeddings > 0, format_tokens(model.max_position_embeddings)),
         !model.problem.empty() ? "no"
         : model.can_chat       ? "yes"
                                : "yes, without --chat"});
    if (model.problem.empty()) continue;
    reasons += "\n" + model.name + " does not run:\n";
    for (const std::string& line : wrap_words(model.problem, kMaxReasonChars)) {
      reasons += "  " + line + "\n";
    }
  }
  return table.to_string() + reasons;
}

// The list for programs: numbers without units, an empty problem for a model that runs.
nlohmann::ordered_json models_json(const std::vector<FoundModel>& models) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const FoundModel& model : models) {
    list.push_back({{"name", model.name},
                    {"directory", model.directory.string()},
                    {"architecture", model.architecture},
                    {"weight_type", model.weight_type},
                    {"file_bytes", model.file_bytes},
                    {"num_parameters", model.num_parameters},
                    {"max_position_embeddings", model.max_position_embeddings},
                    {"runs", model.problem.empty()},
                    {"can_chat", model.can_chat},
                    {"problem", model.problem}});
  }
  return list;
}

}  // namespace

// An empty list is no error: whoever starts with Sluice has none, and is told how to get one.
int models(const ModelsCommand& command) {
  const std::vector<FoundModel> models = find_models(command);
  if (command.json) {
    write_result(json_text(models_json(models), 1));
    return kExitOk;
  }
  if (!models.empty()) {
    write_result(describe(models));
    write_message("`sluice inspect MODEL` says whether it fits, `sluice serve MODEL` serves it");
  } else if (command.directories.empty()) {
    write_message(
        fmt::format("no models in {}; `hf download Qwen/Qwen3-0.6B` fetches one there "
                    "(pip install huggingface_hub)",
                    hub_cache_directory().string()));
  } else {
    write_message(
        "no models there: neither config.json nor GGUF files in these directories or below");
  }
  return kExitOk;
}

}  // namespace sluice::cli
