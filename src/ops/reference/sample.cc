// Sorts the whole vocabulary and applies the filters one by one.
#include "ops/reference/sample.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/philox.h"

namespace sluice::reference {
namespace {

struct Token {
  int32_t id;
  double scaled;  // (logit - largest) / temperature
};

// Pads are -1 and match no id.
bool is_suppressed(const SampleArgs& args, int64_t row, int32_t id) {
  if (!args.suppressed.present()) return false;
  const int64_t width = args.suppressed.dim(1);
  const int32_t* ids = args.suppressed.data<int32_t>() + row * width;
  return std::find(ids, ids + width, id) != ids + width;
}

const SampleRow& params_of(const SampleArgs& args, int64_t row) {
  return args.rows.data<SampleRow>()[row];
}

bool is_allowed(const SampleArgs& args, int64_t row, int32_t id) {
  const int32_t mask = params_of(args, row).mask;
  if (!args.masks.present() || mask < 0) return true;
  const int32_t word = args.masks.rows(mask, 1).data<int32_t>()[id / 32];
  return (static_cast<uint32_t>(word) & uint32_t{1} << id % 32) != 0;
}

// In double, rounded to f32 after each operation as the contract says; the product or quotient of
// two f32 in double rounds to the same f32 as the exact one.
float adjusted(float logit, double bias, double repetition, double penalty) {
  const float biased = static_cast<float>(logit + bias);
  if (std::isinf(biased)) return biased;
  const auto cut = [](double value) {
    constexpr double kLargest = std::numeric_limits<float>::max();
    return static_cast<float>(std::clamp(value, -kLargest, kLargest));
  };
  const double scaled = biased > 0.0f ? biased / repetition : biased * repetition;
  return cut(cut(scaled) - penalty);
}

// The logits of a row after its entries.
std::vector<float> adjusted_row(const SampleArgs& args, int64_t row) {
  const int64_t vocab = args.logits.dim(1);
  const float* logits = args.logits.data<float>() + row * vocab;
  std::vector<float> out(logits, logits + vocab);
  const LogitAdjustments& entries = args.adjustments;
  if (!entries.present()) return out;
  const int32_t* begin = entries.begin.data<int32_t>() + row;
  for (int32_t i = begin[0]; i < begin[1]; ++i) {
    float& logit = out[static_cast<size_t>(entries.ids.data<int32_t>()[i])];
    logit = adjusted(logit, entries.bias.data<float>()[i], entries.repetition.data<float>()[i],
                     entries.penalty.data<float>()[i]);
  }
  return out;
}

// All tokens that may be chosen, in descending order of logit, equal ones by id. -inf is never
// chosen.
std::vector<Token> sorted_tokens(const SampleArgs& args, int64_t row) {
  const std::vector<float> logits = adjusted_row(args, row);
  const float temperature = params_of(args, row).temperature;
  std::vector<Token> tokens;
  for (int32_t id = 0; id < static_cast<int32_t>(logits.size()); ++id) {
    const float logit = logits[static_cast<size_t>(id)];
    if (is_suppressed(args, row, id) || !is_allowed(args, row, id)) continue;
    if (!std::isinf(logit)) tokens.push_back({id, logit});
  }
  std::stable_sort(tokens.begin(), tokens.end(),
                   [](const Token& a, const Token& b) { return a.scaled > b.scaled; });
  const double largest = tokens.front().scaled;
  // Subtracting the largest changes no probability and keeps exponentials at most 1.
  for (Token& token : tokens) {
    token.scaled = (token.scaled - largest) / (temperature == 0.0f ? 1.0 : temperature);
  }
  return tokens;
}

// Drops tokens with e^scaled < min_p. `margin` becomes the distance to the border if it is smaller.
void apply_min_p(double min_p, std::vector<Token>& tokens, double& margin) {
  for (const Token& token : tokens) {
    if (min_p > 0.0 && token.scaled != 0.0) {
      margin = std::min(margin, std::abs(token.scaled - std::log(min_p)));
    }
  }
  std::erase_if(tokens, [&](const Token& token) { return std::exp(token.scaled) < min_p; });
}

// Keeps the shortest prefix that reaches top_p of the mass, at least one token.
void apply_top_p(double top_p, std::vector<Token>& tokens, double& margin) {
  if (top_p >= 1.0) return;
  double total = 0.0;
  for (const Token& token : tokens) total += std::exp(token.scaled);
  double reached = 0.0;
  size_t count = 0;
  while (count < tokens.size() && reached < top_p * total) {
    reached += std::exp(tokens[count++].scaled);
    margin = std::min(margin, std::abs(reached / total - top_p));
  }
  tokens.resize(std::max<size_t>(count, 1));  // never none, whatever top_p
}

}  // namespace

KeptTokens kept_tokens(const SampleArgs& args, int64_t row) {
  KeptTokens kept;
  const SampleRow& params = params_of(args, row);
  std::vector<Token> tokens = sorted_tokens(args, row);
  if (params.temperature == 0.0f) {
    tokens.resize(1);
  } else {
    // The order of the filters is the contract's; each sees what the one before it left.
    apply_min_p(params.min_p, tokens, kept.margin);
    if (params.top_k > 0 && params.top_k < static_cast<int32_t>(tokens.size())) {
      tokens.resize(static_cast<size_t>(params.top_k));
    }
    apply_top_p(params.top_p, tokens, kept.margin);
  }
  // Probabilities among the kept tokens, which sum to 1.
  double total = 0.0;
  for (const Token& token : tokens) total += std::exp(token.scaled);
  for (const Token& token : tokens) {
    kept.ids.push_back(token.id);
    kept.probabilities.push_back(std::exp(token.scaled) / total);
  }
  return kept;
}

std::vector<double> sample(const SampleArgs& args) {
  std::vector<double> out;
  for (int64_t row = 0; row < args.logits.dim(0); ++row) {
    if (args.given.present() && args.given.data<int32_t>()[row] >= 0) {
      out.push_back(args.given.data<int32_t>()[row]);
      continue;
    }
    const SampleRow& params = params_of(args, row);
    const KeptTokens kept = kept_tokens(args, row);
    double best = -std::numeric_limits<double>::infinity();
    int32_t best_id = -1;
    for (size_t i = 0; i < kept.ids.size(); ++i) {
      const auto id = static_cast<uint32_t>(kept.ids[i]);
      const PhiloxWords words = sample_words(params.seed, params.position, id / 4);
      // g = -ln(-ln(u)); argmax(ln p + g) is distributed as p (Gumbel-max).
      const double gumbel = -std::log(-std::log(uniform_open(words[id % 4])));
      const double value = std::log(kept.probabilities[i]) + gumbel;
      if (value > best) {
        best = value;
        best_id = kept.ids[i];
      }
    }
    out.push_back(best_id);
  }
  return out;
}

std::vector<double> log_softmax(const SampleArgs& args, int64_t row) {
  const int64_t vocab = args.logits.dim(1);
  const float* logits = args.logits.data<float>() + row * vocab;
  const double largest = *std::max_element(logits, logits + vocab);
  double total = 0.0;
  for (int64_t i = 0; i < vocab; ++i) total += std::exp(logits[i] - largest);
  std::vector<double> out;
  for (int64_t i = 0; i < vocab; ++i) out.push_back(logits[i] - largest - std::log(total));
  return out;
}

}  // namespace sluice::reference
