// Errors of options that contradict each other.
#include "cli/options/check_parts.h"

#include "cli/options/named_policies.h"
#include "core/error.h"

namespace sluice::cli {
namespace {

// For --kv-offload off.
void refuse_offload_sizes(const Given& given) {
  refuse_given(given,
               {"--kv-host-bytes", "--kv-device-bytes", "--num-kv-slots", "--kv-slot-blocks",
                "--kv-copy-bytes"},
               "KV is not offloaded, which does not use it; leave it out, or take --kv-offload "
               "chunked, layerwise or auto");
}

// For KV in the host tier, which has no device pool.
void refuse_cache_size(const Given& given) {
  refuse_given(given, {"--kv-cache-bytes"},
               "KV is offloaded, which does not use it; --kv-host-bytes and --kv-device-bytes are "
               "its sizes");
}

}  // namespace

void take_model_word(std::string* model, std::vector<std::string>* words) {
  if (!model->empty() || words->empty()) return;
  // A model has no spaces in its name, and standard input is no model.
  const std::string& word = words->front();
  if (word == "-" || word.find_first_of(" \t\n") != word.npos) return;
  *model = word;
  words->erase(words->begin());
}

void require_model(const std::string& model) {
  if (!model.empty()) return;
  fail(ErrorCode::kInvalidArgument,
       "no model given; add --model MODEL or set SLUICE_MODEL: `sluice models` lists what is here, "
       "and models/needle is a small one");
}

void refuse_given(const Given& given, std::initializer_list<const char*> names,
                  const std::string& why) {
  for (const char* name : names) {
    const auto found = given.find(name);
    if (found == given.end()) continue;
    fail(ErrorCode::kInvalidArgument, "{} is given, but {}", found->second, why);
  }
}

void refuse_both(const Given& given, const char* winner, const char* loser) {
  const auto is_word = [&](const char* name) {
    const auto found = given.find(name);
    return found != given.end() && found->second == name;
  };
  if (!is_word(winner) || !is_word(loser)) return;
  fail(ErrorCode::kInvalidArgument, "{} is given, but {} is used instead; leave one of them out",
       loser, winner);
}

void check_engine(const EngineOptions& engine, const Given& given,
                  std::initializer_list<Unused> unused) {
  require_model(engine.model);
  refuse_unused(engine, given, unused);
  refuse_options_of_parts_off(engine, given);
  if (engine.kv.offload == KvOffload::kOff) refuse_offload_sizes(given);
  if (engine.kv.offload == KvOffload::kChunked || engine.kv.offload == KvOffload::kLayerwise)
    refuse_cache_size(given);
}

void check_policies(const std::vector<std::string>& policies, const SparseOptions& options,
                    const Given& given) {
  for (const std::string& name : policies) {
    SparseOptions sparse = options;
    sparse.policy = name;
    expand_policy(&sparse, given);
  }
}

void require_directory(const std::string& dir) {
  if (dir.empty()) fail(ErrorCode::kInvalidArgument, "no directory given; name one as a word");
}

}  // namespace sluice::cli
