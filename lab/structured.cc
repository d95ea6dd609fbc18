// sluice-lab structured: measures what structured output costs: decode steps with and without it,
// and the wait for the grammar of a new schema. Runs on the main thread.
#include <algorithm>
#include <chrono>
#include <memory>
#include <string>

#include <fmt/format.h>

#include "cli/bench/measure.h"
#include "cli/engine_session.h"
#include "cli/exit_codes.h"
#include "cli/interrupt.h"
#include "cli/table.h"
#include "cli/units.h"
#include "io/json_type.h"
#include "lab/commands.h"

namespace sluice::lab {

using namespace cli;  // what programs print and read

namespace {

// Documents that never end by themselves: texts, numbers, lists of values and objects.
constexpr const char* kEndlessSchema =
    R"({"type":"array","minItems":10000,"items":{"type":"object","properties":{)"
    R"("name":{"type":"string"},"kind":{"enum":["red","green","blue"]},"size":{"type":"number"},)"
    R"("tags":{"type":"array","items":{"type":"string","maxLength":20},"maxItems":3}},)"
    R"("required":["name","kind","size","tags"],"additionalProperties":false}})";

std::shared_ptr<const StructuredOutput> structure_of(std::string schema) {
  return std::make_shared<const StructuredOutput>(
      StructuredOutput{.kind = StructureKind::kJsonSchema, .text = std::move(schema)});
}

// A schema of about this many bytes that differs from all others by `name`.
std::string large_schema(size_t num_bytes, const std::string& name) {
  std::string properties;
  for (int i = 0; properties.size() < num_bytes; ++i) {
    properties += fmt::format(
        R"({}"{}_{}":{{"type":"object","properties":{{"text":{{"type":"string","maxLength":80}},)"
        R"("count":{{"type":"integer","minimum":0}},"kind":{{"enum":["a{}","b","c"]}}}},)"
        R"("required":["text","count"]}})",
        i > 0 ? "," : "", name, i, i);
  }
  return R"({"type":"object","properties":{)" + properties + "}}";
}

class Rig {
 public:
  Rig(const BenchStructuredCommand& command, int32_t vocab_size)
      : command_(command), vocab_size_(vocab_size), llm_(load_llm(engine_of(command), false)) {}

  // Seconds of a decode step of `num_rows` sequences, all with the structure or none.
  double step_seconds(int32_t num_rows, const std::shared_ptr<const StructuredOutput>& structure) {
    SamplingParams params;
    params.max_tokens = command_.output_tokens;
    params.ignore_eos = structure == nullptr;
    params.structured = structure;
    const int64_t before = llm_.stats().decode_ns;
    for (const RequestOutput& output : run(num_rows, command_.prompt_tokens, params)) {
      if (output.finish_reason == FinishReason::kLength) continue;
      fail(ErrorCode::kModel, "an answer ended after {} tokens: {}",
           output.stats.num_generated_tokens, output.error);
    }
    const auto decode_ns = static_cast<double>(llm_.stats().decode_ns - before);
    return decode_ns * 1e-9 / (command_.output_tokens - 1);
  }

  // Seconds from the request to its first token.
  double first_token_seconds(const std::shared_ptr<const StructuredOutput>& structure) {
    SamplingParams params;
    params.max_tokens = 1;
    params.structured = structure;
    const auto start = std::chrono::steady_clock::now();
    run(1, command_.long_prompt_tokens, params);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

 private:
  static EngineOptions engine_of(const BenchStructuredCommand& command) {
    EngineOptions engine = command.engine;
    engine.enable_prefix_caching = false;  // every repeat computes its prompt
    engine.max_num_seqs = *std::ranges::max_element(command.rows);
    return engine;
  }

  std::vector<RequestOutput> run(int32_t num_rows, int64_t num_tokens,
                                 const SamplingParams& params) {
    std::vector<Prompt> prompts;
    for (int32_t i = 0; i < num_rows; ++i) {
      prompts.emplace_back(random_prompt(num_tokens, vocab_size_, ++num_prompts_));
    }
    GenerateOptions options;
    options.should_cancel = interrupted;
    auto outputs = llm_.generate(prompts, params, options);
    if (interrupted()) throw Interrupted();
    return outputs;
  }

  const BenchStructuredCommand& command_;
  int32_t vocab_size_;
  LLM llm_;
  uint64_t num_prompts_ = 0;
};

// What one row of the table compares, run in turn; the first pair warms up.
struct Pairs {
  Spread plain;       // seconds
  Spread structured;  // seconds
  Spread ratio;       // of neighbours
};

template <typename Plain, typename Structured>
Pairs measure_pairs(int32_t repeats, const Plain& run_plain, const Structured& run_structured) {
  std::vector<double> plain, structured, ratios;
  for (int32_t i = 0; i <= repeats; ++i) {
    const double first = i % 2 == 0 ? run_plain() : run_structured();
    const double second = i % 2 == 0 ? run_structured() : run_plain();
    if (i == 0) continue;
    plain.push_back(i % 2 == 0 ? first : second);
    structured.push_back(i % 2 == 0 ? second : first);
    ratios.push_back(structured.back() / plain.back());
  }
  return {spread_of(plain), spread_of(structured), spread_of(ratios)};
}

}  // namespace

int bench_structured(const BenchStructuredCommand& command) {
  const ModelSummary model = summarize_model(command.engine.model);
  Rig rig(command, model.vocab_size);
  Table table({"", "free", "structured", "ratio"});
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  const auto add = [&](const std::string& name, const Pairs& pairs) {
    table.add({name, format_seconds(pairs.plain.median), format_seconds(pairs.structured.median),
               fmt::format("{:.3f} ({:.3f} to {:.3f})", pairs.ratio.median, pairs.ratio.min,
                           pairs.ratio.max)});
    rows.push_back({{"what", name},
                    {"free_seconds", spread_json(pairs.plain)},
                    {"structured_seconds", spread_json(pairs.structured)},
                    {"ratio", spread_json(pairs.ratio)}});
  };
  const auto endless = structure_of(kEndlessSchema);
  for (const int32_t num_rows : command.rows) {
    add(fmt::format("decode step of {}", num_rows),
        measure_pairs(
            command.repeats, [&] { return rig.step_seconds(num_rows, nullptr); },
            [&] { return rig.step_seconds(num_rows, endless); }));
  }
  int num_schemas = 0;
  add(fmt::format("first token after {}, new schema of {}",
                  format_tokens(command.long_prompt_tokens),
                  format_bytes(static_cast<double>(command.schema_bytes))),
      measure_pairs(
          command.repeats, [&] { return rig.first_token_seconds(nullptr); },
          [&] {
            const std::string name = fmt::format("p{}", ++num_schemas);
            return rig.first_token_seconds(structure_of(large_schema(command.schema_bytes, name)));
          }));
  write_bench(command.json,
              {{"bench", "structured"},
               {"model", model_name(command.engine.model)},
               {"rows", std::move(rows)}},
              machine_name(command.engine),
              fmt::format("structured output, {}, pairs in turn\n\n{}",
                          model_name(command.engine.model), table.to_string()));
  return kExitOk;
}

}  // namespace sluice::lab
