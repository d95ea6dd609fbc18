// EncodeOptions: how special tokens are treated when a text is encoded.
//
// Used by LLM::encode and the tokenizer. Thread rule: values only.
#pragma once

namespace sluice {

struct EncodeOptions {
  bool add_special_tokens = true;  // what the post-processor adds around a text, such as BOS
  bool parse_special = false;      // special tokens written out in the text become those tokens
};

}  // namespace sluice
