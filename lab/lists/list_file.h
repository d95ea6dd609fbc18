// Files of recorded page lists: what `sluice-lab overlap --record` writes and `sluice-lab sparse
// --replay` reads.
//
//   offset  bytes
//   0       8      "SLUICEPL"
//   8       4      version of the format, 1
//   12      4 x 7  layers, heads, steps, pages of a list, tokens of a page, sink pages, recent
//                  tokens
//   40      8      position of the row of step 0
//   48      4 + n  length and bytes of the model's name
//   ...            the lists, by step, layer and head: the first page, then each page less the one
//                  before it less 1, as LEB128: 7 bits a byte, the lowest first, bit 7 says that
//                  more follow. Most pages take a byte.
//   end - 8 8      XXH3-64 of all bytes before it
//
// Whole numbers are little-endian. Thread rule: pure functions.
#pragma once

#include <string>
#include <string_view>

#include "lab/lists/recorded_lists.h"

namespace sluice::lab {

// REQUIRES: lists as RecordedLists describes them.
std::string encode_lists(const RecordedLists& lists);

// `name` is the file's, for errors.
// Errors: kInvalidArgument for bytes that are no such file, of another version, cut off or damaged,
// and for lists that are not ascending or name a page that was not to be chosen.
RecordedLists decode_lists(std::string_view bytes, std::string_view name);

}  // namespace sluice::lab
