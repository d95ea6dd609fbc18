// The tokenizer of a GGUF file, in the form of the files that it was made from.
//
// Used by Tokenizer::load. Thread rule: free functions without state.
#pragma once

#include "io/gguf/gguf_file.h"
#include "tokenizer/tokenizer_config.h"
#include "tokenizer/tokenizer_file.h"

namespace sluice {

// Reads tokenizer.ggml.*; gives the ids that the tokenizer.json of the same model gives.
//
// Errors: kUnsupported naming key and value for another kind of vocabulary than byte-level BPE
// ("gpt2"), an unknown tokenizer.ggml.pre, and types of tokens that it does not have; kModel naming
// the key for what is missing, of the wrong type or length, out of range or contradictory.
TokenizerFile read_gguf_tokenizer(const GgufFile& file);

// Chat template and special tokens. Errors: kModel naming the key.
TokenizerConfig read_gguf_tokenizer_config(const GgufFile& file);

}  // namespace sluice
