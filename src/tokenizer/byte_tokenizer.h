// A tokenizer whose tokens are the 256 bytes, for models that have only a configuration.
//
// Used by the engine with load_format "dummy", for benchmarks. Thread rule: a free function.
#pragma once

#include "tokenizer/tokenizer.h"

namespace sluice {

// Id of a token = value of its byte. No special tokens.
Tokenizer make_byte_tokenizer();

}  // namespace sluice
