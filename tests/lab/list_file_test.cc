// Files of page lists: what is written is read, and nothing else is.
#include "lab/lists/list_file.h"

#include <functional>

#include <gtest/gtest.h>

#include "core/error.h"
#include "lab/recorded_lists_maker.h"
#include "store/checksum.h"
#include "store/little_endian.h"

namespace sluice::lab {

namespace {

void expect_equal(const RecordedLists& a, const RecordedLists& b) {
  EXPECT_EQ(a.model, b.model);
  EXPECT_EQ(a.num_layers, b.num_layers);
  EXPECT_EQ(a.num_heads, b.num_heads);
  EXPECT_EQ(a.num_steps, b.num_steps);
  EXPECT_EQ(a.first_pos, b.first_pos);
  EXPECT_EQ(a.page_tokens, b.page_tokens);
  EXPECT_EQ(a.rule.sink_pages, b.rule.sink_pages);
  EXPECT_EQ(a.rule.recent_tokens, b.rule.recent_tokens);
  EXPECT_EQ(a.rule.top_pages, b.rule.top_pages);
  EXPECT_EQ(a.rule.threshold_tokens, b.rule.threshold_tokens);
  EXPECT_EQ(a.page_ids, b.page_ids);
}

TEST(ListFile, WhatIsWrittenIsRead) {
  for (const int32_t layers : {1, 3}) {
    for (const int32_t heads : {1, 4}) {
      for (const int32_t steps : {1, 30}) {
        const RecordedLists lists = make_lists(layers, heads, steps);
        const std::string bytes = encode_lists(lists);
        expect_equal(decode_lists(bytes, "x"), lists);
        EXPECT_EQ(bytes.size(), 52 + 4 + lists.page_ids.size() + 8) << "a byte for each page";
      }
    }
  }
}

// Distances of one to three bytes, and one list at both ends of what can be chosen.
TEST(ListFile, TakesPagesOfLongTexts) {
  RecordedLists lists = make_lists(1, 1, 1);
  lists.first_pos = (int64_t{1} << 20) + 5;
  const int32_t last = lists.end_candidate(0) - 1;
  lists.page_ids = {1, 1 + 128, 1 + 128 + 129 + 16384, last};
  expect_equal(decode_lists(encode_lists(lists), "x"), lists);
}

TEST(ListFile, TheBytesAreThoseOfTheFormat) {
  RecordedLists lists = make_lists(1, 1, 1);
  lists.page_ids = {1, 2, 5, 23};
  std::string expected("SLUICEPL\1\0\0\0\1\0\0\0\1\0\0\0\1\0\0\0\4\0\0\0\20\0\0\0\1\0\0\0\20\0\0\0",
                       40);
  expected += std::string("\220\1\0\0\0\0\0\0\4\0\0\0made\1\0\2\21", 20);
  const std::string bytes = encode_lists(lists);
  EXPECT_EQ(bytes.substr(0, bytes.size() - 8), expected);
}

std::string fault_of(std::string_view bytes) {
  try {
    decode_lists(bytes, "some\nfile");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.message();
  }
  return "none";
}

TEST(ListFile, EveryCutAndEveryFlippedBitIsFound) {
  const std::string bytes = encode_lists(make_lists(2, 1, 3));
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_NE(fault_of(std::string_view(bytes).substr(0, size)), "none") << size;
  }
  EXPECT_EQ(fault_of(std::string_view(bytes).substr(0, bytes.size() - 1)),
            "some?file is cut off or damaged; record it again with sluice-lab overlap --record");
  for (size_t at = 0; at < bytes.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = bytes;
      damaged[at] = static_cast<char>(damaged[at] ^ (1 << bit));
      EXPECT_NE(fault_of(damaged), "none") << at << ", " << bit;
    }
  }
  EXPECT_NE(fault_of(bytes + "x"), "none");
}

// With a right checksum.
std::string changed(const std::function<void(std::string&)>& change) {
  RecordedLists lists = make_lists(1, 1, 1);
  lists.page_ids = {1, 2, 5, 23};
  std::string bytes = encode_lists(lists);
  bytes.resize(bytes.size() - 8);
  change(bytes);
  std::string checksum(8, '\0');
  store_little_endian(checksum_of(std::as_bytes(std::span(bytes))),
                      std::as_writable_bytes(std::span(checksum)));
  return bytes + checksum;
}

TEST(ListFile, WhatIsNoRecordIsNamed) {
  EXPECT_EQ(fault_of(changed([](std::string&) {})), "none");
  EXPECT_EQ(fault_of("{}"),
            "some?file is no file of page lists; sluice-lab overlap --record writes them");
  EXPECT_EQ(fault_of(changed([](std::string& bytes) { bytes[8] = 2; })),
            "some?file has version 2 of its format, and this program reads version 1; record it "
            "again");
  const auto expect_fault = [](const std::string& fault, const auto& change) {
    EXPECT_EQ(fault_of(changed(change)),
              "some?file " + fault + "; record it again with sluice-lab overlap --record");
  };
  expect_fault("has a wrong size", [](std::string& bytes) { bytes[12] = 0; });
  expect_fault("has a wrong size", [](std::string& bytes) { bytes[20 + 3] = 1; });
  expect_fault("has a wrong position", [](std::string& bytes) { bytes[40 + 7] = 1; });
  expect_fault("has a name that is too long", [](std::string& bytes) { bytes[49] = 1; });
  expect_fault("ends too early", [](std::string& bytes) { bytes[12] = 2; });
  expect_fault("ends too early", [](std::string& bytes) { bytes.back() = '\x80'; });
  expect_fault("has bytes after its lists", [](std::string& bytes) { bytes += '\1'; });
  expect_fault("has a page that was not to be chosen", [](std::string& bytes) { ++bytes.back(); });
  expect_fault("has a page that was not to be chosen",
               [](std::string& bytes) { bytes[bytes.size() - 4] = 0; });
  expect_fault("has a wrong page", [](std::string& bytes) {
    bytes.replace(bytes.size() - 1, 1, "\xff\xff\xff\xff\xff");
  });
}

}  // namespace
}  // namespace sluice::lab
