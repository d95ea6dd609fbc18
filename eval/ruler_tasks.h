// The built-in kinds of `sluice-eval needle`: synthetic tasks of RULER, for any model and
// tokenizer.
//
// Source: Hsieh et al., "RULER: What's the Real Context Size of Your Long-Context Language
// Models?", 2024 (arXiv 2404.06654). RULER begins the model's answer with a few words; we cannot,
// so questions say how to answer. There is no example before the text either.
//
//   multikey    four facts of one form with different keys, one of which is asked for
//   multivalue  four values of one key, all of which are asked for
//   vt          chains of assignments between variables; which ones have the value of one chain?
//   cwe         a numbered list of words; which ten occur most often?
//   fwe         coded words with frequencies from a Zeta distribution; which three lead?
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "eval/task.h"

namespace sluice::eval {

inline constexpr std::array<std::string_view, 5> kRulerKinds = {"multikey", "multivalue", "vt",
                                                                "cwe", "fwe"};

inline constexpr size_t kNumRulerKeys = 4;      // multikey
inline constexpr size_t kNumRulerValues = 4;    // multivalue
inline constexpr size_t kNumHops = 4;           // vt: a chain has one variable more
inline constexpr size_t kNumOtherChains = 2;    // vt: chains that are not asked for
inline constexpr size_t kNumCommonWords = 10;   // cwe
inline constexpr size_t kNumFrequentWords = 3;  // fwe
// The largest limit of an answer in RULER. Models that answer in sentences need it.
inline constexpr int64_t kRulerAnswerTokens = 128;

// Null if `kind` is not a built-in kind.
std::unique_ptr<NeedleTask> make_ruler_task(std::string_view kind);

// The tasks whose text is made of words (word_tasks.cc).
std::unique_ptr<NeedleTask> make_common_words_task();
std::unique_ptr<NeedleTask> make_frequent_words_task();

}  // namespace sluice::eval
