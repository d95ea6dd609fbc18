// tokenizer.json as plain data: all of its settings that affect ids, checked.
//
// Used by Tokenizer::load. Thread rule: values only.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "tokenizer/added_tokens.h"
#include "tokenizer/bpe.h"
#include "tokenizer/pre_tokenizer.h"

namespace sluice {

struct TokenizerFile {
  Vocabulary vocabulary;  // the model's tokens and the added ones
  MergeTable merges;
  UnknownByte unknown;                   // for bytes that have no token
  bool ignore_merges = false;            // a piece that is a token is used without merging
  bool nfc = false;                      // the normalizer
  std::vector<SplitKind> splits;         // steps of the pre-tokenizer, in order
  std::vector<AddedToken> added_tokens;  // in the file's order, contents ready to be searched
  std::vector<int32_t> prefix_ids;       // what the post-processor puts before a text (BOS)
  std::vector<int32_t> suffix_ids;       // and after it
};

// Ids at or above this are refused, since tables are as long as the largest id.
inline constexpr int64_t kMaxTokenIds = int64_t{1} << 22;
// Limit on merges; the largest vocabularies have some 600,000.
inline constexpr size_t kMaxMerges = size_t{1} << 21;
// Limit on the file; Qwen's has 11 MB, the largest 33 MB.
inline constexpr uint64_t kMaxTokenizerFileBytes = uint64_t{64} << 20;

// Reads the text of a tokenizer.json; `name` opens every error text.
//
// Errors: kModel for what is missing, of the wrong type, out of range, given twice, or names a
// token that is not in the vocabulary; kUnsupported for well-formed parts that Sluice does not do
// (another model than byte-level BPE, another normalizer, an unknown regular expression). Both name
// file, field and value.
TokenizerFile parse_tokenizer_file(std::string_view text, std::string_view name);
// The same from a document in memory.
TokenizerFile read_tokenizer_document(const nlohmann::json& document, std::string_view name);

}  // namespace sluice
