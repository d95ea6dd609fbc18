// How the weights of a checkpoint are stored, as quantization_config of config.json says.
//
// Read with the configuration; WeightLayout asks for the format of each matrix, and Weights reads
// the scales. Thread rule: a value.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "io/json.h"
#include "ops/matmul/packed_weight.h"

namespace sluice {

// What one scale stands for: `w = e4m3 * scale`.
enum class WeightScales {
  kNone,    // weights are not quantized
  kBlocks,  // f32 [ceil(n / 128), ceil(k / 128)] of a weight [n, k]
  kRows,    // f32 [n, 1]
  kTensor,  // f32 [1] or []
};

inline constexpr int64_t kScaleBlockRows = 128;  // of kBlocks; its columns are kScaleGroup

// How a checkpoint lays out weights in integers (model/loading/integer_rows.h has the layouts).
enum class IntegerForm {
  kNone,
  kPackQuantized,  // of compressed-tensors
  kAwq,            // version gemm
  kGptq,           // version 1: zero points are stored less one
  kGptqV2,
};

// A regular expression that a configuration gives for names of modules. It is compiled once: a
// mixture asks for the formats of tens of thousands of modules, each time that weights are planned.
class NamePattern {
 public:
  // Errors: kModel for what is no regular expression.
  explicit NamePattern(const std::string& text);

  // Whether it matches the beginning of a module's name, as Python's re.match does. Errors: kModel
  // for a pattern that would take too long.
  bool matches_beginning(std::string_view module) const;

 private:
  struct Compiled;

  std::shared_ptr<const Compiled> compiled_;  // copies of a configuration share it
};

// Weights in FP8 have `scales`, those in integers `integers`.
struct WeightQuantization {
  WeightScales scales = WeightScales::kNone;
  std::string scale_suffix;  // of the scales' tensor in place of ".weight"
  IntegerForm integers = IntegerForm::kNone;
  WeightFormat integer_format;        // with an order: each matrix has a g_idx
  bool symmetric = false;             // no zero points are stored: all are half of the range
  std::vector<std::string> ignored;   // modules that are not quantized, and what is in them
  std::vector<NamePattern> patterns;  // the same by how names begin
  std::vector<std::string> parts;     // the same by a part of the name
  // Of a GGUF file: the formats of modules in blocks.
  std::map<std::string, WeightFormat, std::less<>> gguf;

  bool present() const { return scales != WeightScales::kNone || has_integers(); }
  bool has_integers() const { return integers != IntegerForm::kNone; }
  bool has_gguf() const { return !gguf.empty(); }
  // How the weight of a module ("model.layers.0.self_attn.q_proj") is stored; lists may have it as
  // that of a nested text part ("model.language_model.layers.0.self_attn.q_proj").
  WeightFormat format_of(std::string_view module) const;
  // Whether a list has the module by this name.
  bool leaves_out(std::string_view module) const;
};

// FP8: `quant_method` fp8, and compressed-tensors' `float-quantized`. Integers of 4 or 8 bits:
// compressed-tensors' `pack-quantized`, gptq, and awq. Scales of activations and of KV are not
// read: activations stay bf16. Errors: kUnsupported for all other methods, naming the method, its
// form, the setting that has no reader and the repository to fetch instead; kModel for values that
// contradict each other.
WeightQuantization read_quantization(const JsonObject& config);

// Whether a tensor is a scale of keys or values, which models with weights in bf16 may have, too.
// Not read: KV in 8 bits has a scale of its own for each row (docs/adr/0031).
bool is_kv_scale(std::string_view tensor);
// Whether a tensor of a quantized checkpoint is a scale of activations. Not read either.
bool is_activation_scale(std::string_view tensor);

}  // namespace sluice
