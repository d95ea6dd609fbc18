// Units and tables in the program's output.
#include <gtest/gtest.h>

#include "cli/table.h"
#include "cli/units.h"

namespace sluice::cli {
namespace {

TEST(Units, ReadWell) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1536), "1.50 KiB");
  EXPECT_EQ(format_bytes(14.0 * 1024 * 1024), "14.0 MiB");
  EXPECT_EQ(format_bytes(139e9), "129 GiB");
  EXPECT_EQ(format_tokens(32768), "32K");
  EXPECT_EQ(format_tokens(1048576), "1M");
  EXPECT_EQ(format_tokens(4000), "4000");
  EXPECT_EQ(format_count(596049920), "596 M");
  EXPECT_EQ(format_count(7.2e6), "7.20 M");
  EXPECT_EQ(format_count(12), "12");
  EXPECT_EQ(format_seconds(0.0034), "3.40 ms");
  EXPECT_EQ(format_seconds(1.239), "1.24 s");
  EXPECT_EQ(format_seconds(185), "3 min 05 s");
}

TEST(Table, AlignsColumnsByCharactersNotBytes) {
  Table table({"name", "n"});
  table.add({"übung", "1"});
  table.add({"a", "100"});
  EXPECT_EQ(table.to_string(), "name     n\nübung    1\na      100\n");
  table.colour(1, 1, "\033[1m");
  EXPECT_EQ(table.to_string(), "name     n\nübung    1\na      \033[1m100\033[0m\n");
}

TEST(Table, WrapsTextAtSpaces) {
  EXPECT_EQ(wrap_words("one two three", 7), (std::vector<std::string>{"one two", "three"}));
  EXPECT_EQ(wrap_words("a /path/that/is/long b", 8),
            (std::vector<std::string>{"a", "/path/that/is/long", "b"}));
  EXPECT_EQ(wrap_words("", 8), std::vector<std::string>{""});
  Table table;
  table.align_left(1);
  table.add_wrapped("GPU", "none is here", 7);
  EXPECT_EQ(table.to_string(), "GPU  none is\n     here\n");
}

}  // namespace
}  // namespace sluice::cli
