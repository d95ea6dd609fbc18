// The table of other programs' options: those that Sluice names differently or does not have.
#include "cli/options/foreign_options.h"

#include <algorithm>
#include <array>
#include <cctype>

#include <fmt/core.h>

namespace sluice::cli {
namespace {

// Each row: names, our option, advice. The first row with a name counts. Tests check that `run` has
// each of our options.
constexpr auto kForeignOptions = std::to_array<ForeignOption>({
    {"-c", "--max-model-len",
     "llama.cpp's -c is the context size; -c here is --chat, so write --chat (or --) before a "
     "prompt that is a number",
     true},
    {"--ctx-size --max-len --max-seq-len --max-seq-length --max-context-len --context-length "
     "--n-ctx",
     "--max-model-len", ""},
    {"--predict --n-predict --max-new-tokens --max-output-tokens", "--max-tokens", ""},
    {"-p --prompt", "", "the prompt is a word of its own: sluice run -m DIR \"the prompt\""},
    {"--model-path --model-dir --hf-model --model-name", "--model", ""},
    {"-hf -hfr --hf-repo --hf-file -hff -mu --model-url", "",
     "nothing is downloaded; fetch the model with `hf download ORG/NAME --local-dir NAME` and give "
     "--model NAME"},
    {"--download-dir", "",
     "nothing is downloaded; --model names the directory of a model that is there"},
    {"-ngl --gpu-layers --n-gpu-layers", "",
     "a model runs on one device as a whole: --device cuda, --device cpu"},
    {"-dev --main-gpu -mg", "--device", "write cuda:N for the GPU with number N"},
    {"--cpu", "", "write --device cpu"},
    {"-tp", "--tensor-parallel-size", "", false, "1"},
    {"-pp --pipeline-parallel-size -dp --data-parallel-size -sm --split-mode -ts --tensor-split",
     "",
     "layers and requests are not divided, heads are: --tensor-parallel-size; KV that does not fit "
     "beside the weights goes to host memory (--kv-offload)",
     false, "1"},
    {"--temp", "--temperature", ""},
    {"--seed-value -s", "--seed", ""},
    {"--repeat-penalty", "--repetition-penalty", ""},
    {"--repeat-last-n", "",
     "--repetition-penalty looks at the whole prompt and answer; leave this out"},
    {"--typical --mirostat --samplers --dry-multiplier --xtc-probability --tfs --top-nsigma", "",
     "this sampler is not supported; --temperature, --top-k, --top-p and --min-p are"},
    {"--n --best-of --num-return-sequences --use-beam-search --num-beams", "",
     "each prompt gets one answer; give the prompt several times with --seed left out"},
    {"--stop-strings -r --reverse-prompt --stop-sequences", "--stop", ""},
    {"--eos-token-id", "--stop-token-ids", ""},
    {"--grammar --grammar-file --json-schema --json-schema-file -j -jf --guided-json "
     "--guided-decoding-backend --structured-outputs-config",
     "",
     "nothing to choose: a request to `sluice serve` has its schema, and `sluice run` has "
     "--json-schema FILE, --regex and --grammar FILE"},
    {"--lora --lora-modules --enable-lora --adapter", "",
     "adapters are not supported; merge them into the weights"},
    {"-b --batch-size", "--max-num-batched-tokens", ""},
    {"-ub --ubatch-size", "--prefill-chunk-tokens", ""},
    {"-np --parallel", "--max-num-seqs", ""},
    {"-tb --threads-batch --num-threads", "--threads", ""},
    {"-ctk --cache-type-k -ctv --cache-type-v", "--kv-cache-dtype",
     "keys and values have one type: bfloat16, fp8 or int8", false, "bf16"},
    {"--dtype --torch-dtype", "",
     "the weights run in bf16, whichever of BF16, F16 and F32 the files have", false,
     "auto bfloat16"},
    {"-q --quantization --load-in-8bit --load-in-4bit", "",
     "weights run as the files have them: config.json names FP8, AWQ, GPTQ or compressed-tensors, "
     "and GGUF files stay in their blocks"},
    {"--kv-events-config", "",
     "each has an option of its own: sluice serve --kv-events tcp://*:5557, --kv-events-replay, "
     "--kv-events-topic"},
    {"--enable-prefix-caching", "", "prefix caching is on; --no-prefix-caching takes it off"},
    {"--no-enable-prefix-caching --disable-radix-cache", "--no-prefix-caching", ""},
    {"--enable-chunked-prefill --no-enable-chunked-prefill", "",
     "prompts are always read in chunks; --prefill-chunk-tokens is their size"},
    {"--cpu-offload-gb", "",
     "the weights are on the device as a whole; KV that does not fit beside them goes to host "
     "memory (--kv-offload)"},
    {"--swap-space --kv-offloading-size -nkvo --no-kv-offload", "--kv-offload",
     "KV in host memory is --kv-offload chunked, layerwise or auto, with --kv-host-bytes"},
    {"--mem-fraction-static --gpu-mem", "--gpu-memory-utilization", ""},
    {"--cache-memory --num-gpu-blocks-override", "--kv-cache-bytes", ""},
    {"-fa --flash-attn --attention-backend", "",
     "attention never takes quadratic memory; there is nothing to choose"},
    {"--mlock --no-mmap --numa -nr --no-repack --no-warmup --check-tensors", "",
     "not needed: weights are copied out of their files once"},
    {"--rope-scaling --rope-scale --rope-freq-base --rope-freq-scale --rope-theta --hf-overrides",
     "", "positions follow config.json; write rope_theta or rope_scaling there"},
    {"--trust-remote-code --tokenizer --tokenizer-mode --revision --config-format", "",
     "everything is read from the files in the directory --model, and no code of theirs is run"},
    {"-cnv --conversation -i --interactive --interactive-first", "--interactive", ""},
    {"-no-cnv --no-conversation -st --single-turn", "",
     "a prompt without --chat is continued; --chat with a prompt is one question"},
    {"--jinja", "--chat", "the template is always run"},
    {"--chat-template-file", "--chat-template", ""},
    {"-sys --system-prompt --system-message", "--system", ""},
    {"--reasoning-budget", "--no-thinking", ""},
    {"--verbose-prompt --tokenize", "", "`sluice tokenize` prints the ids of a text"},
    {"--score --perplexity --echo", "", "`sluice score` prints the log-probabilities of a text"},
    {"--prompt-ids --input-ids --prompt-token-ids --token-ids", "--tokens", ""},
    {"--host --port --served-model-name", "", "`sluice serve` is the server"},
    {"--api-key", "",
     "other users of the machine can read a command line; `sluice serve` takes keys from "
     "--api-key-file or the variable SLUICE_API_KEY"},
    {"-e --escape --color --simple-io --no-display-prompt --log-disable --multiline-input", "",
     "not needed; leave it out"},
    {"--spm-infill --mmproj --image --limit-mm-per-prompt", "", "only text is read"},
    {"--ssl-keyfile --ssl-certfile --ssl-ca-certs --ssl-key-file --ssl-cert-file", "",
     "TLS is the work of a proxy; docs/serving.md has the lines for nginx and caddy"},
    {"--root-path --api-prefix", "",
     "paths are mapped by a proxy; docs/serving.md has the lines for nginx and caddy"},
    {"--enable-auto-tool-choice --enable-reasoning --reasoning-parser --reasoning-format "
     "--tool-call-parser",
     "", "not needed: the chat template says how calls and thoughts are written"},
    {"--disable-log-requests --no-enable-log-requests --disable-log-stats --uvicorn-log-level "
     "--log-level --log-file --max-log-len",
     "",
     "the log of `sluice serve` is on standard error; --log-text adds the texts, --log-json makes "
     "it JSON"},
    {"--task --runner", "", "text is generated and scored; there are no embeddings", false,
     "auto generate"},
    {"--embedding --embeddings --pooling --rerank --reranking", "",
     "text is generated and scored; there are no embeddings"},
    {"--metrics --slots --props", "",
     "not needed: `sluice serve` always has /metrics and /sluice/state"},
    {"--keep-alive", "", "not needed: the model stays loaded until the server ends"},
    {"--draft --draft-max --draft-n --spec-tokens", "--num-speculative-tokens", ""},
    {"-md --model-draft --speculative-model", "--speculative-method",
     "drafts come from n-grams or the sparse policy, not from a second model"},
});

// True if `wanted` is one of the names, which are separated by spaces.
bool has_name(std::string_view names, std::string_view wanted) {
  for (size_t begin = 0; begin < names.size();) {
    const size_t end = std::min(names.find(' ', begin), names.size());
    if (names.substr(begin, end - begin) == wanted) return true;
    begin = end + 1;
  }
  return false;
}

// A whole number, with an optional K or M: "4096", "32K".
bool is_number(std::string_view word) {
  if (!word.empty() && std::string_view("kKmM").find(word.back()) != std::string_view::npos) {
    word.remove_suffix(1);
  }
  return !word.empty() &&
         std::all_of(word.begin(), word.end(), [](unsigned char c) { return std::isdigit(c); });
}

// Null if the table has no such option.
const ForeignOption* find_foreign(std::string_view name) {
  const auto found = std::ranges::find_if(
      kForeignOptions, [name](const ForeignOption& o) { return has_name(o.names, name); });
  return found == kForeignOptions.end() ? nullptr : &*found;
}

}  // namespace

std::span<const ForeignOption> foreign_options() { return kForeignOptions; }

bool asks_for_what_is(std::string_view name, std::string_view value) {
  const ForeignOption* option = find_foreign(name);
  return option != nullptr && !value.empty() && has_name(option->satisfied_by, value);
}

std::optional<std::string> foreign_answer(std::string_view name, std::string_view next,
                                          const std::function<bool(std::string_view)>& has) {
  const ForeignOption* found = find_foreign(name);
  if (found == nullptr) return std::nullopt;
  // -c is also ours, for --chat; only a number after it shows that a context size was meant.
  if (found->before_number ? !has(name) || !is_number(next) : has(name)) return std::nullopt;
  if (found->ours.empty()) return std::string(found->advice);
  // A command without the option cannot have an equivalent; `run` has all of them.
  const std::string ours = has(found->ours)
                               ? fmt::format("here it is {}", found->ours)
                               : fmt::format("`sluice run` has {} for it", found->ours);
  return found->advice.empty() ? ours : fmt::format("{}; {}", ours, found->advice);
}

}  // namespace sluice::cli
