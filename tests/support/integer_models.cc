// Quantizes as the simplest of methods do, by the least and the largest number of each group.
#include "support/integer_models.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "io/file.h"
#include "io/json.h"

namespace sluice::testing {
namespace {

// A weight as integers: all of row n and column k, scales and zero points by row and group.
struct IntegerMatrix {
  int64_t n = 0;
  int64_t k = 0;
  int64_t groups = 0;
  std::vector<int32_t> group_of;  // of each column
  std::vector<uint32_t> numbers;  // [n][k]
  std::vector<uint32_t> zeros;    // [n][groups]
  std::vector<uint16_t> scales;   // bits of f16 or bf16, [n][groups]
  std::vector<float> values;      // what they stand for
};

// The group of each column; with an order in a permutation that differs from weight to weight.
std::vector<int32_t> groups_of(const IntegerKind& kind, int64_t k, size_t seed) {
  std::vector<int32_t> groups;
  for (int64_t i = 0; i < k; ++i) {
    groups.push_back(kind.group < 0 ? 0 : static_cast<int32_t>(i / kind.group));
  }
  auto state = static_cast<uint32_t>(seed);
  for (size_t i = groups.size(); kind.ordered && i > 1; --i) {
    state = state * 1664525u + 1013904223u;
    std::swap(groups[i - 1], groups[(state >> 8) % i]);
  }
  return groups;
}

// Rounded down to a type of 16 bits: bf16 for compressed-tensors, f16 for the others.
std::pair<uint16_t, float> rounded_scale(const IntegerKind& kind, float scale) {
  if (kind.form == IntegerForm::kPackQuantized) {
    const BFloat16 rounded(scale);
    return {rounded.bits, static_cast<float>(rounded)};
  }
  uint16_t bits = 0;  // positive numbers of f16 ascend with their bits
  for (int bit = 14; bit >= 0; --bit) {
    const auto next = static_cast<uint16_t>(bits | 1 << bit);
    if (static_cast<float>(Float16{next}) <= scale) bits = next;
  }
  return {bits, static_cast<float>(Float16{bits})};
}

// One row of one group: a scale and a zero point by which its least and largest number are in the
// range.
void quantize_group(const IntegerKind& kind, std::span<const float> weight, int64_t row,
                    int64_t group, IntegerMatrix& q) {
  float least = 0, largest = 0;
  for (int64_t c = 0; c < q.k; ++c) {
    if (q.group_of[static_cast<size_t>(c)] != group) continue;
    least = std::min(least, weight[static_cast<size_t>(row * q.k + c)]);
    largest = std::max(largest, weight[static_cast<size_t>(row * q.k + c)]);
  }
  const auto top = static_cast<float>((1 << kind.bits) - 1);
  if (kind.symmetric) largest = std::max(largest, -least), least = -largest;
  const auto [bits, scale] = rounded_scale(kind, std::max((largest - least) / top, 1e-4f));
  const float zero =
      kind.symmetric ? static_cast<float>(1 << (kind.bits - 1)) : std::round(-least / scale);
  const float clamped_zero = std::clamp(zero, 0.0f, top);
  q.scales.push_back(bits);
  q.zeros.push_back(static_cast<uint32_t>(clamped_zero));
  for (int64_t c = 0; c < q.k; ++c) {
    if (q.group_of[static_cast<size_t>(c)] != group) continue;
    const auto at = static_cast<size_t>(row * q.k + c);
    const float number = std::clamp(std::round(weight[at] / scale) + clamped_zero, 0.0f, top);
    q.numbers[at] = static_cast<uint32_t>(number);
    q.values[at] = (number - clamped_zero) * scale;
  }
}

IntegerMatrix quantize(const IntegerKind& kind, const CheckpointTensor& tensor) {
  const std::vector<float> weight = floats_of(tensor);
  IntegerMatrix q{.n = tensor.shape[0], .k = tensor.shape[1]};
  q.group_of = groups_of(kind, q.k, std::hash<std::string_view>()(tensor.name));
  q.groups = *std::ranges::max_element(q.group_of) + 1;
  q.numbers.resize(weight.size());
  q.values.resize(weight.size());
  for (int64_t row = 0; row < q.n; ++row) {
    for (int64_t group = 0; group < q.groups; ++group) quantize_group(kind, weight, row, group, q);
  }
  return q;
}

// ---- Words ------------------------------------------------------------------------------------

// A matrix [rows, cols] of small numbers.
struct Numbers {
  int64_t rows = 0;
  int64_t cols = 0;
  std::function<uint32_t(int64_t row, int64_t col)> at;
};

Numbers transposed(const Numbers& numbers) {
  return {.rows = numbers.cols,
          .cols = numbers.rows,
          .at = [at = numbers.at](int64_t row, int64_t col) { return at(col, row); }};
}

std::vector<int32_t> words_of(const std::vector<uint32_t>& words) {
  return {words.begin(), words.end()};
}

// Neighbouring columns share a word, the first in its lowest bits: [rows, ceil(cols / per_word)].
std::vector<uint32_t> pack_columns(const Numbers& numbers, int bits) {
  const int64_t per_word = 32 / bits;
  const int64_t row_words = (numbers.cols + per_word - 1) / per_word;
  std::vector<uint32_t> words(static_cast<size_t>(numbers.rows * row_words));
  for (int64_t row = 0; row < numbers.rows; ++row) {
    for (int64_t col = 0; col < numbers.cols; ++col) {
      words[static_cast<size_t>(row * row_words + col / per_word)] |= numbers.at(row, col)
                                                                      << (col % per_word * bits);
    }
  }
  return words;
}

// Neighbouring rows share a word: [ceil(rows / per_word), cols].
std::vector<uint32_t> pack_rows(const Numbers& numbers, int bits) {
  const int64_t per_word = 32 / bits;
  const int64_t word_rows = (numbers.rows + per_word - 1) / per_word;
  std::vector<uint32_t> words(static_cast<size_t>(word_rows * numbers.cols));
  for (int64_t row = 0; row < numbers.rows; ++row) {
    for (int64_t col = 0; col < numbers.cols; ++col) {
      words[static_cast<size_t>(row / per_word * numbers.cols + col)] |= numbers.at(row, col)
                                                                         << (row % per_word * bits);
    }
  }
  return words;
}

// AWQ's order: of eight neighbours, place i of a word has number kOrder[i].
std::vector<uint32_t> pack_awq(const Numbers& numbers) {
  constexpr int64_t kOrder[] = {0, 2, 4, 6, 1, 3, 5, 7};
  const Numbers reordered{
      .rows = numbers.rows, .cols = numbers.cols, .at = [&](int64_t row, int64_t col) {
        return numbers.at(row, col / 8 * 8 + kOrder[col % 8]);
      }};
  return pack_columns(reordered, 4);
}

// ---- Tensors ----------------------------------------------------------------------------------

std::vector<WrittenTensor> packed_tensors(const IntegerKind& kind, const std::string& module,
                                          const IntegerMatrix& q, const Numbers& numbers,
                                          const Numbers& zeros) {
  const int64_t per_word = 32 / kind.bits;
  const int64_t row_words = (q.k + per_word - 1) / per_word;
  const int64_t zero_rows = (q.n + per_word - 1) / per_word;
  std::vector<WrittenTensor> tensors = {
      {module + ".weight_packed",
       DType::kI32,
       {q.n, row_words},
       bytes_of(words_of(pack_columns(numbers, kind.bits)))},
      {module + ".weight_scale", DType::kBF16, {q.n, q.groups}, bytes_of(q.scales)},
      {module + ".weight_shape", DType::kI64, {2}, bytes_of(std::vector<int64_t>{q.n, q.k})}};
  if (!kind.symmetric) {
    tensors.push_back({module + ".weight_zero_point",
                       DType::kI32,
                       {zero_rows, q.groups},
                       bytes_of(words_of(pack_rows(zeros, kind.bits)))});
  }
  if (kind.ordered) {
    tensors.push_back({module + ".weight_g_idx", DType::kI32, {q.k}, bytes_of(q.group_of)});
  }
  return tensors;
}

// AWQ and GPTQ, which store all transposed.
std::vector<WrittenTensor> transposed_tensors(const IntegerKind& kind, const std::string& module,
                                              const IntegerMatrix& q, const Numbers& numbers,
                                              const Numbers& zeros) {
  const int64_t per_word = 32 / kind.bits;
  const bool is_awq = kind.form == IntegerForm::kAwq;
  const Numbers by_column = transposed(numbers), zeros_by_group = transposed(zeros);
  std::vector<uint16_t> scales;
  for (int64_t i = 0; i < q.groups * q.n; ++i) {
    scales.push_back(q.scales[static_cast<size_t>(i % q.n * q.groups + i / q.n)]);
  }
  std::vector<uint32_t> zero_words =
      is_awq ? pack_awq(zeros_by_group) : pack_columns(zeros_by_group, kind.bits);
  if (kind.form == IntegerForm::kGptq) {
    for (uint32_t& word : zero_words) word -= kind.bits == 4 ? 0x11111111u : 0x01010101u;
  }
  const std::vector<uint32_t> words =
      is_awq ? pack_awq(by_column) : pack_rows(by_column, kind.bits);
  const std::vector<int64_t> shape = is_awq ? std::vector<int64_t>{q.k, q.n / per_word}
                                            : std::vector<int64_t>{q.k / per_word, q.n};
  std::vector<WrittenTensor> tensors = {
      {module + ".qweight", DType::kI32, shape, bytes_of(words_of(words))},
      {module + ".qzeros", DType::kI32, {q.groups, q.n / per_word}, bytes_of(words_of(zero_words))},
      {module + ".scales", DType::kF16, {q.groups, q.n}, bytes_of(scales)}};
  if (is_awq) return tensors;
  tensors.push_back({module + ".g_idx", DType::kI32, {q.k}, bytes_of(q.group_of)});
  return tensors;
}

std::vector<WrittenTensor> tensors_of(const IntegerKind& kind, const std::string& module,
                                      const IntegerMatrix& q) {
  const Numbers numbers{.rows = q.n, .cols = q.k, .at = [&](int64_t row, int64_t col) {
                          return q.numbers[static_cast<size_t>(row * q.k + col)];
                        }};
  const Numbers zeros{.rows = q.n, .cols = q.groups, .at = [&](int64_t row, int64_t col) {
                        return q.zeros[static_cast<size_t>(row * q.groups + col)];
                      }};
  return kind.form == IntegerForm::kPackQuantized
             ? packed_tensors(kind, module, q, numbers, zeros)
             : transposed_tensors(kind, module, q, numbers, zeros);
}

}  // namespace

std::string kind_name(const IntegerKind& kind) {
  constexpr const char* kNames[] = {"none", "pack-quantized", "awq", "gptq", "gptq_v2"};
  return fmt::format("{}, {} bits, groups of {}{}{}", kNames[static_cast<int>(kind.form)],
                     kind.bits, kind.group, kind.symmetric ? ", symmetric" : "",
                     kind.ordered ? ", ordered" : "");
}

nlohmann::json integer_config(const IntegerKind& kind) {
  using nlohmann::json;
  if (kind.form == IntegerForm::kPackQuantized) {
    json weights = {{"num_bits", kind.bits},
                    {"type", "int"},
                    {"symmetric", kind.symmetric},
                    {"strategy", kind.group < 0 ? "channel" : "group"}};
    if (kind.group > 0) weights["group_size"] = kind.group;
    if (kind.ordered) weights["actorder"] = "group";
    return {{"quant_method", "compressed-tensors"},
            {"format", "pack-quantized"},
            {"ignore", {"lm_head"}},
            {"config_groups", {{"group_0", {{"targets", {"Linear"}}, {"weights", weights}}}}}};
  }
  if (kind.form == IntegerForm::kAwq) {
    return {{"quant_method", "awq"}, {"bits", kind.bits}, {"group_size", kind.group},
            {"zero_point", true},    {"version", "gemm"}, {"modules_to_not_convert", nullptr}};
  }
  return {{"quant_method", "gptq"},
          {"bits", kind.bits},
          {"group_size", kind.group},
          {"desc_act", kind.ordered},
          {"sym", kind.symmetric},
          {"checkpoint_format", kind.form == IntegerForm::kGptq ? "gptq" : "gptq_v2"}};
}

QuantizedModel write_integer_model(const std::string& tiny_model, const IntegerKind& kind,
                                   const std::filesystem::path& directory,
                                   const nlohmann::json& config) {
  nlohmann::json document = read_json_file(tiny_model_path(tiny_model) / "config.json");
  document["quantization_config"] = integer_config(kind);
  document.update(config);
  write_file(directory / "config.json", document.dump());
  QuantizedModel model;
  copy_weights(tiny_model, directory, [&](const CheckpointTensor& tensor) {
    const std::string name(tensor.name);
    if (!is_quantized(document, name)) return std::vector<WrittenTensor>{};
    IntegerMatrix q = quantize(kind, tensor);
    std::vector<WrittenTensor> tensors = tensors_of(kind, name.substr(0, name.rfind('.')), q);
    model.weights.emplace(name, std::move(q.values));
    return tensors;
  });
  return model;
}

}  // namespace sluice::testing
