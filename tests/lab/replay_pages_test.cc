// replay_pages: every entry against the definition, and no entry outside of the chosen ones is
// written; a graph reads the step at each launch.
#include "lab/lists/replay_pages.h"

#include <random>
#include <vector>

#include "ops/op_test_util.h"

namespace sluice::lab {

using namespace sluice::testing;  // the machine and its tensors

namespace {

constexpr int32_t kUntouched = -7;

struct ReplayShape {
  std::vector<int32_t> kv_end = {300};
  int32_t num_heads = 2;
  int32_t num_steps = 5;
  int32_t max_pages = 20;
  int32_t first_pos = 290;
  PageRule rule{.sink_pages = 2, .recent_tokens = 32, .top_pages = 7};
};

struct ReplayProblem {
  ReplayProblem(Machine& machine, const ReplayShape& of) : shape(of) {
    const auto num_seqs = static_cast<int64_t>(shape.kv_end.size());
    recorded.resize(static_cast<size_t>(shape.num_heads * shape.num_steps * shape.rule.top_pages));
    std::mt19937 generator(1);
    for (int32_t& page : recorded) page = static_cast<int32_t>(generator() % 1000);
    const std::vector<int32_t> untouched(
        static_cast<size_t>(num_seqs * shape.num_heads * shape.max_pages), kUntouched);
    const std::vector<int32_t> counts(static_cast<size_t>(num_seqs * shape.num_heads), kUntouched);
    args = {.recorded =
                machine.tensor(recorded, {shape.num_heads, shape.num_steps, shape.rule.top_pages}),
            .first_pos = shape.first_pos,
            .kv_end = machine.tensor(shape.kv_end, {num_seqs}),
            .rule = shape.rule,
            .pages = {.page_ids = machine.tensor(untouched,
                                                 {num_seqs, shape.num_heads, 1, shape.max_pages}),
                      .page_count = machine.tensor(counts, {num_seqs, shape.num_heads, 1}),
                      .page_tokens = 16}};
  }

  // Of every list, entry by entry; `untouched` where the op must not write.
  std::vector<int32_t> expected() const {
    std::vector<int32_t> ids;
    for (const int32_t kv_end : values_of<int32_t>(args.kv_end)) {
      for (int32_t head = 0; head < shape.num_heads; ++head) {
        for (int32_t entry = 0; entry < shape.max_pages; ++entry) {
          const int32_t chosen = entry - shape.rule.sink_pages;
          const bool replays =
              kv_end > shape.first_pos && chosen >= 0 && chosen < shape.rule.top_pages;
          const int32_t step = replays ? (kv_end - 1 - shape.first_pos) % shape.num_steps : 0;
          const int32_t list = head * shape.num_steps + step;
          ids.push_back(replays
                            ? recorded.at(static_cast<size_t>(list * shape.rule.top_pages + chosen))
                            : kUntouched);
        }
      }
    }
    return ids;
  }

  ReplayShape shape;
  std::vector<int32_t> recorded;
  ReplayPagesArgs args;
};

void expect_definition(const ReplayShape& shape) {
  Machine machine;
  const ReplayProblem problem(machine, shape);
  replay_pages(machine.stream(), problem.args);
  machine.synchronize();
  EXPECT_EQ(values_of<int32_t>(problem.args.pages.page_ids), problem.expected());
  for (const int32_t count : values_of<int32_t>(problem.args.pages.page_count)) {
    EXPECT_EQ(count, kUntouched);
  }
}

TEST(ReplayPagesTest, WritesTheStepOfEveryPosition) {
  for (int32_t kv_end = 291; kv_end < 305; ++kv_end) {
    SCOPED_TRACE(kv_end);
    expect_definition({.kv_end = {kv_end}});
  }
}

// Rows of padding have kv_end 0; sequences may be at any step.
TEST(ReplayPagesTest, LeavesListsOfEarlierRowsAlone) {
  expect_definition({.kv_end = {0, 290, 291, 17, 299, 295}, .num_heads = 3});
  expect_definition({.kv_end = {0, 1, 2}, .first_pos = 0});
}

TEST(ReplayPagesTest, TakesListsOfAnyLength) {
  for (const int32_t top_pages : {0, 1, 127, 128, 129, 1000}) {
    SCOPED_TRACE(top_pages);
    expect_definition(
        {.max_pages = 1010, .rule = {.sink_pages = 3, .recent_tokens = 0, .top_pages = top_pages}});
  }
}

TEST(ReplayPagesTest, AGraphReadsTheStepAtEachLaunch) {
  Machine machine;
  const ReplayProblem problem(machine, {});
  const auto graph =
      machine.stream().capture([&] { replay_pages(machine.stream(), problem.args); });
  for (const int32_t kv_end : {293, 291, 299}) {
    problem.args.kv_end.data<int32_t>()[0] = kv_end;
    machine.stream().launch(*graph);
    machine.synchronize();
    EXPECT_EQ(values_of<int32_t>(problem.args.pages.page_ids), problem.expected()) << kv_end;
  }
}

TEST(ReplayPagesContractDeathTest, NamesTheRuleThatIsBroken) {
  Machine machine;
  ReplayPagesArgs args = ReplayProblem(machine, {}).args;
  args.rule.top_pages = 6;
  EXPECT_DEATH(replay_pages(machine.stream(), args), "rule.top_pages pages");
  args = ReplayProblem(machine, {}).args;
  args.rule.sink_pages = 14;
  EXPECT_DEATH(replay_pages(machine.stream(), args), "room for sinks");
  args = ReplayProblem(machine, {}).args;
  args.rule.threshold_tokens = 291;
  EXPECT_DEATH(replay_pages(machine.stream(), args), "threshold_tokens or later");
}

}  // namespace
}  // namespace sluice::lab
