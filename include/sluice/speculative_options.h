// SpeculativeOptions: cheap drafts of the next tokens, which one pass verifies
// (docs/speculation.md).
//
// Part of EngineOptions. Which method drafts changes no token: a draft is kept only where the pass
// that verifies it gives the same one. Thread rule: plain values.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "sluice/option_row.h"

namespace sluice {

enum class SpeculativeMethod {
  kNone,
  kNgram,        // what followed the same tokens before, in the prompt or the output
  kSparse,       // the decode policy of the pair drafts; full attention verifies
  kNgramSparse,  // kNgram where it finds something, else kSparse
};

inline constexpr const char* kSpeculativeMethodNames[] = {"none", "ngram", "sparse",
                                                          "ngram+sparse"};

constexpr const char* speculative_method_name(SpeculativeMethod method) {
  return kSpeculativeMethodNames[static_cast<size_t>(method)];
}

// The other fields count only with a method.
struct SpeculativeOptions {
  SpeculativeMethod method = SpeculativeMethod::kNone;
  // Tokens of a draft. Empty: chosen for each sequence from measured times and from how many tokens
  // of its drafts were accepted, at most kMaxAutoDraftTokens and 0 where a draft would not pay.
  std::optional<int32_t> num_tokens;
  // Lengths of the suffix that kNgram looks for, the longest first.
  int32_t prompt_lookup_min = 2;
  int32_t prompt_lookup_max = 4;
  // The same four as vLLM's JSON object, instead of them.
  std::optional<std::string> config;
};

inline constexpr int32_t kMaxDraftTokens = 64;
inline constexpr int32_t kMaxAutoDraftTokens = 32;
inline constexpr int32_t kMaxPromptLookup = 64;

inline constexpr std::array kSpeculativeRows = {
    option_row<&SpeculativeOptions::method>({.name = "speculative_method",
                                             .kind = OptionKind::kChoice,
                                             .choices = kSpeculativeMethodNames,
                                             .when_unset = "none",
                                             .help = "what drafts tokens that one pass verifies"}),
    option_row<&SpeculativeOptions::num_tokens>(
        {.name = "num_speculative_tokens",
         .min = 1,
         .max = kMaxDraftTokens,
         .unset_from = 0,
         .when_unset = "chosen by measured times",
         .help = "tokens of a draft; 0: chosen by measured times"}),
    option_row<&SpeculativeOptions::prompt_lookup_min>(
        {.name = "prompt_lookup_min",
         .min = 1,
         .max = kMaxPromptLookup,
         .when_unset = "2",
         .help = "ngram: shortest suffix to look for"}),
    option_row<&SpeculativeOptions::prompt_lookup_max>(
        {.name = "prompt_lookup_max",
         .min = 1,
         .max = kMaxPromptLookup,
         .when_unset = "4",
         .help = "ngram: longest suffix to look for"}),
    option_row<&SpeculativeOptions::config>(
        {.name = "speculative_config",
         .kind = OptionKind::kText,
         .placeholder = "JSON",
         .when_unset = "none",
         .help = "the same as vLLM's object: method, num_speculative_tokens, prompt_lookup_min, "
                 "prompt_lookup_max"}),
};

}  // namespace sluice
