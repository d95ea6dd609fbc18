// NFC, the only normalization that the supported tokenizers use.
//
// Used by tokenizer.cc and tokenizer_file.cc for files whose normalizer is NFC. Implemented over
// utf8proc's properties, because utf8proc's own canonical ordering takes quadratic time on a long
// run of combining marks.
// Thread rule: everything here may be used from any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::unicode {

// Appends the NFC form of `text` to `out`. REQUIRES: valid UTF-8.
//
// Time: linear in the text, n log n in a run of combining marks; text without any combining
// character is copied.
void append_nfc(std::string_view text, std::string& out);

// Sets kNfcFixed in `properties` (one byte per code point) for every character that NFC does not
// change, whatever precedes it. Called once, while the property table is made.
void mark_nfc_fixed(std::vector<uint8_t>& properties);

}  // namespace sluice::unicode
