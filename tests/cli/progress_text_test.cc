// The progress line's layout: it fits every width and drops the least important parts first.
#include "cli/progress_text.h"

#include <gtest/gtest.h>

namespace sluice::cli {
namespace {

ProgressState reading() {
  return {.task = "reading",
          .detail = "3072 of 11289 prompt tokens",
          .share = 0.2721,
          .seconds = 4,
          .tokens_per_second = 812.4,
          .seconds_left = 10.1};
}

std::string line(int columns, const ProgressState& state = reading()) {
  return progress_text(columns, state, {.has_bar = true, .is_utf8 = false});
}

// One cell for each character of the lines below; the library's own count is an upper bound.
size_t num_characters(const std::string& text) {
  size_t n = 0;
  for (const char c : text) n += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return n;
}

TEST(ProgressText, LeavesOutWhatMattersLeast) {
  EXPECT_EQ(line(120),
            "#######................. "
            " 27 % reading: 3072 of 11289 prompt tokens, 812 tok/s, 4 s, 10 s left");
  EXPECT_EQ(line(80),
            "##.......  27 % reading: 3072 of 11289 prompt tokens, 812 tok/s, 4 s, 10 s left");
  EXPECT_EQ(line(70), " 27 % reading: 3072 of 11289 prompt tokens, 812 tok/s, 4 s, 10 s left");
  EXPECT_EQ(line(69), " 27 % reading: 3072 of 11289 prompt tokens, 812 tok/s, 10 s left");
  EXPECT_EQ(line(40), " 27 % reading, 812 tok/s, 10 s left");
  EXPECT_EQ(line(26), " 27 % reading, 10 s left");
  EXPECT_EQ(line(20), " 27 % reading, 4 s");
  EXPECT_EQ(line(10), " 27 % rea");
}

TEST(ProgressText, FitsEveryWidth) {
  ProgressState long_name = reading();
  long_name.task = "loading a-model-with-a-very-long-name-übermäßig-模型-of-many-words";
  ProgressState no_share = reading();
  no_share.share.reset();
  no_share.seconds_left.reset();
  for (const ProgressState& state : {reading(), long_name, no_share}) {
    for (const bool is_utf8 : {true, false}) {
      for (int columns = 0; columns < 200; ++columns) {
        const std::string text = progress_text(columns, state, {true, is_utf8});
        EXPECT_LE(static_cast<int>(num_characters(text)), std::max(0, columns - 1)) << text;
      }
    }
  }
  // Wide characters take two cells.
  ProgressState wide = {.task = "loading 模型模型模型", .detail = "", .share = 0.5, .seconds = 2};
  EXPECT_LE(text_cells(progress_text(20, wide, {true, true})), 19);
  EXPECT_EQ(text_cells("模型"), 4);
}

TEST(ProgressText, OnlyTheBarNeedsUtf8) {
  for (const char c : line(80)) EXPECT_LT(static_cast<unsigned char>(c), 0x80);
  EXPECT_NE(progress_text(120, reading(), {.has_bar = true, .is_utf8 = true}).find("━━"),
            std::string::npos);
  EXPECT_EQ(progress_text(120, reading(), {.has_bar = false, .is_utf8 = true}),
            " 27 % reading: 3072 of 11289 prompt tokens, 812 tok/s, 4 s, 10 s left");
}

TEST(ProgressText, NamesCannotMoveTheCursor) {
  ProgressState state = reading();
  state.task = "loading a\033[2Jb\r\nc\xff";
  EXPECT_EQ(progress_text(200, state, {.has_bar = false}).substr(0, 26),
            " 27 % loading a?[2Jb??c?: ");
}

TEST(ProgressText, IsNotDoneBeforeItIs) {
  ProgressState state = reading();
  state.share = 0.999;
  EXPECT_EQ(line(14, state), " 99 % reading");
  state.share = 1;
  EXPECT_EQ(line(14, state), "100 % reading");
  state.share.reset();
  EXPECT_EQ(line(14, state), "reading, 4 s");
}

TEST(ProgressText, DurationsReadWell) {
  EXPECT_EQ(format_duration(0.4), "0 s");
  EXPECT_EQ(format_duration(59.4), "59 s");
  EXPECT_EQ(format_duration(185), "3 min 05 s");
  EXPECT_EQ(format_duration(7512), "2 h 05 min");
}

TEST(ProgressText, TheFirstLocaleThatIsSetDecides) {
  EXPECT_TRUE(is_utf8_locale(nullptr, nullptr, "en_GB.UTF-8"));
  EXPECT_TRUE(is_utf8_locale("", "C.utf8", "C"));
  EXPECT_FALSE(is_utf8_locale("C", nullptr, "en_GB.UTF-8"));
  EXPECT_FALSE(is_utf8_locale(nullptr, nullptr, nullptr));
  EXPECT_FALSE(is_utf8_locale(nullptr, "de_DE.ISO-8859-1", "de_DE.UTF-8"));
}

TEST(Pace, IsThatOfTheLastSeconds) {
  Pace pace;
  pace.see(0, 0);
  EXPECT_EQ(pace.per_second(), 0);
  for (int i = 1; i <= 20; ++i) pace.see(i * 100.0, i);
  EXPECT_NEAR(pace.per_second(), 100, 1e-9);
  for (int i = 1; i <= 40; ++i) pace.see(2000 + i * 10.0, 20 + i);
  EXPECT_NEAR(pace.per_second(), 10, 1e-9) << "what was before is forgotten";
  pace.see(5, 61);
  EXPECT_EQ(pace.per_second(), 0) << "another task";
}

}  // namespace
}  // namespace sluice::cli
