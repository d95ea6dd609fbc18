// The option tables: every option has one row with name, range and field, which all readers and
// checks use.
#include "sluice/option_row.h"

#include <cmath>
#include <set>

#include <gtest/gtest.h>

#include "core/option_check.h"
#include "sluice/engine_options.h"
#include "sluice/error.h"
#include "sluice/sampling_params.h"

namespace sluice {
namespace {

// Calls `look` with each row and a default object of its struct.
template <typename Look>
void for_each_row(const Look& look) {
  const auto all = [&](const auto& rows, const auto& options) {
    for (const auto& row : rows) look(row, options);
  };
  all(kEngineOptionRows, EngineOptions());
  all(kKvOptionRows, KvOptions());
  all(kKvOffloadRows, KvOptions());
  all(kKvStoreRows, KvStoreOptions());
  all(kKvEventsRows, KvEventsOptions());
  all(kStateCacheRows, StateCacheOptions());
  all(kSparseOptionRows, SparseOptions());
  all(kSpeculativeRows, SpeculativeOptions());
  all(kSamplingRows, SamplingParams());
  look(kTimelineRow, EngineOptions());
  look(kSkipSpecialRow, SamplingParams());
  look(kCacheSaltRow, SamplingParams());
}

std::string refusal(const OptionFacts& facts, const OptionValue& value) {
  try {
    check_option(facts, value);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.what();
  }
  return {};
}

TEST(OptionRows, DefaultsAreInRangeAndNamesAreUnique) {
  std::set<std::string_view> names;
  std::set<std::string> words;
  for_each_row([&](const auto& row, const auto& options) {
    EXPECT_TRUE(names.insert(row.facts.name).second) << row.facts.name;
    EXPECT_TRUE(words.insert(long_option(row.facts)).second) << row.facts.name;
    EXPECT_FALSE(row.facts.help.empty()) << row.facts.name;
    EXPECT_EQ(row.facts.kind == OptionKind::kChoice, !row.facts.choices.empty());
    if (const auto value = row.get(options)) {
      EXPECT_NO_THROW(check_option(row.facts, *value)) << row.facts.name;
    }
  });
}

// A row writes the parsed value to its field; an empty value restores the default.
TEST(OptionRows, FieldsKeepWhatTheyAreGiven) {
  for_each_row([](const auto& row, auto options) {
    const auto before = row.get(options);
    const bool is_number = row.facts.kind == OptionKind::kWhole ||
                           row.facts.kind == OptionKind::kTokens ||
                           row.facts.kind == OptionKind::kBytes;
    if (is_number) {
      const OptionValue value = row.facts.min + row.facts.multiple_of;
      row.set(options, value);
      EXPECT_EQ(row.get(options), value) << row.facts.name;
    }
    row.set(options, std::nullopt);
    EXPECT_EQ(row.get(options), before) << row.facts.name;
  });
}

// A whole number outside the range is refused with name and value.
TEST(OptionRows, EndsOfRangesAreAllowedAndNothingBeyond) {
  for_each_row([](const auto& row, const auto&) {
    const OptionFacts& facts = row.facts;
    const bool is_number = facts.kind == OptionKind::kWhole || facts.kind == OptionKind::kTokens ||
                           facts.kind == OptionKind::kBytes;
    if (!is_number) return;
    EXPECT_EQ(refusal(facts, facts.min), "");
    const std::string name(facts.name);
    if (facts.min != std::numeric_limits<int64_t>::min()) {
      EXPECT_EQ(refusal(facts, facts.min - 1).rfind(name + " is ", 0), 0u) << name;
    }
    if (facts.max == std::numeric_limits<int64_t>::max()) return;
    EXPECT_EQ(refusal(facts, facts.max), "");
    EXPECT_EQ(refusal(facts, facts.max + 1).rfind(name + " is ", 0), 0u) << name;
  });
}

TEST(OptionRows, SentencesNameValueRangeAndWhatIsTakenOtherwise) {
  EXPECT_EQ(refusal(kThreadsRow.facts, int64_t{1025}),
            "num_threads is 1025, but must be 1 to 1024; leave it out for all the machine has");
  const auto row = option_row<&SamplingParams::top_p>(
      {.name = "top_p", .kind = OptionKind::kNumber, .above_min = true});
  EXPECT_EQ(refusal(row.facts, std::nan("")), "top_p is nan, but must be above 0 and at most 1");
  EXPECT_NE(refusal(row.facts, 0.0), "");
  EXPECT_EQ(refusal(row.facts, 1.0), "");
}

TEST(OptionRows, NamesOnTheCommandLine) {
  EXPECT_EQ(long_option(kThreadsRow.facts), "--threads");
  EXPECT_EQ(short_option(kThreadsRow.facts), "-t");
  EXPECT_EQ(long_option(kDeviceRow.facts), "--device");
  EXPECT_EQ(long_option(kTimelineRow.facts), "--timeline");
  EXPECT_EQ(short_option(kTimelineRow.facts), "");
}

}  // namespace
}  // namespace sluice
