// Decode attention (one row per sequence) on the device under test.
//
// MatchesTheReference* reveal wrong numbers. The other tests compare, bit for bit, two ways to make
// the calls of one walk (cut, batched, listed, gathered, replayed as a graph). They reveal
// arithmetic that depends on residency, slots, batch or lists, which would break KV offload.
#include "attention_check.h"
#include "ops/attention/attention.h"
#include "support/sample_of.h"
#include "support/sanitizer.h"

namespace sluice::testing {
namespace {

// Lengths at, one below and one above the borders of windows (at most 256 tokens) and blocks.
std::vector<SequenceShape> decode_sequences() {
  return {{.first_pos = 700}, {.first_pos = 0},   {.first_pos = 255},
          {.first_pos = 256}, {.first_pos = 131}, {.first_pos = 1}};
}

AttentionRun run_of(int32_t block_tokens) {
  return {.isa = best_kernels(), .block_tokens = block_tokens};
}

// About half of the first `num_pages` pages, different ones for each sequence and head.
auto half_of(int32_t num_pages) {
  return [num_pages](int32_t seq, int32_t head, int32_t) {
    return half_of_pages(num_pages, static_cast<uint32_t>(seq * 31 + head + 1));
  };
}

TEST(DecodeAttentionTest, MatchesTheReferenceOverTheGrid) {
  size_t index = 0;
  for (int32_t head_dim : {16, 48, 64, 128, 256}) {
    for (int32_t group : {1, 2, 5, 8, 9, 16, 20}) {
      for (int32_t block_tokens : {16, 96, 256}) {
        if (!in_sample(index++, 4)) continue;
        SCOPED_TRACE(fmt::format("head_dim {} group {} block {}", head_dim, group, block_tokens));
        const AttentionProblem problem({.head_dim = head_dim,
                                        .num_kv_heads = 2,
                                        .group = group,
                                        .seqs = decode_sequences(),
                                        .seed = static_cast<uint32_t>(head_dim + group)});
        expect_matches_reference(problem, run_of(block_tokens));
      }
    }
  }
}

TEST(DecodeAttentionTest, MatchesTheReferenceWhereverTheRunEnds) {
  const AttentionProblem problem({.head_dim = 128, .group = 4, .seqs = {{.first_pos = 600}}});
  AttentionRun run = run_of(256);
  for (int32_t limit : {1, 8, 15, 16, 17, 31, 32, 33, 63, 64, 250, 256, 257, 512, 600}) {
    SCOPED_TRACE(limit);
    run.kv_limit = limit;
    expect_matches_reference(problem, run);
  }
}

TEST(DecodeAttentionTest, MatchesTheReferenceOnPages) {
  for (int32_t head_dim : {64, 80, 128}) {
    const AttentionProblem problem(
        {.head_dim = head_dim, .num_kv_heads = 3, .group = 3, .seqs = decode_sequences()});
    for (const auto& [block_tokens, page_tokens] :
         {std::pair(256, 16), {128, 64}, {96, 48}, {256, 128}}) {
      for (const bool shared : {false, true}) {
        SCOPED_TRACE(fmt::format("{}: pages of {} in {}", head_dim, page_tokens, block_tokens));
        AttentionRun run = run_of(block_tokens);
        run.page_tokens = page_tokens;
        run.list_of = half_of(700 / page_tokens + 1);
        run.one_list_for_all_heads = shared;
        expect_matches_reference(problem, run);
      }
    }
  }
}

TEST(DecodeAttentionTest, ALargeHistoryMatchesTheReference) {
  const AttentionProblem problem({.head_dim = 128,
                                  .num_kv_heads = 1,
                                  .group = 4,
                                  .seqs = {{.first_pos = 40000}, {.first_pos = 9000}}});
  expect_matches_reference(problem, run_of(1024));
}

// Windows are as small as blocks, so a GPU combines more windows than it holds at a time.
TEST(DecodeAttentionTest, ManyWindowsAreFoldedInOrder) {
  for (const int32_t head_dim : {48, 64, 128, 256}) {
    SCOPED_TRACE(head_dim);
    const AttentionProblem problem({.head_dim = head_dim,
                                    .num_kv_heads = 2,
                                    .group = 3,
                                    .seqs = {{.first_pos = 5000}, {.first_pos = 1300}}});
    AttentionRun run = run_of(16);
    expect_matches_reference(problem, run);
    const AttentionResult whole = problem.run(run);
    run.splits = {16 * 70, 16 * 180};
    expect_same_bits(whole, problem.run(run));
  }
}

TEST(DecodeAttentionTest, CuttingTheWalkBetweenBlocksChangesNothing) {
  for (int32_t head_dim : {48, 64, 128}) {
    for (int32_t group : {2, 9}) {
      const AttentionProblem problem(
          {.head_dim = head_dim, .group = group, .seqs = decode_sequences()});
      for (int32_t block_tokens : {16, 48, 64, 256}) {
        SCOPED_TRACE(fmt::format("head_dim {} group {} block {}", head_dim, group, block_tokens));
        AttentionRun run = run_of(block_tokens);
        const AttentionResult whole = problem.run(run);
        for (int32_t every : {1, 2, 3}) {
          run.splits.clear();
          for (int32_t cut = every * block_tokens; cut < 700; cut += every * block_tokens) {
            run.splits.push_back(cut);
          }
          expect_same_bits(whole, problem.run(run));
        }
      }
    }
  }
}

TEST(DecodeAttentionTest, BlocksOfWholeWindowsHaveTheSameBits) {
  const AttentionProblem problem(
      {.head_dim = 128, .group = 4, .seqs = {{.first_pos = 3000}, {.first_pos = 511}}});
  const AttentionResult base = problem.run(run_of(256));
  expect_same_bits(base, problem.run(run_of(512)));
  expect_same_bits(base, problem.run(run_of(1024)));
}

TEST(DecodeAttentionTest, ASequenceAloneHasTheBitsItHasInABatch) {
  for (int32_t group : {1, 4, 16}) {
    const AttentionProblem problem({.head_dim = 128, .group = group, .seqs = decode_sequences()});
    const AttentionResult batch = problem.run(run_of(256));
    const size_t row_elements = static_cast<size_t>(problem.shape().num_q_heads()) * 128;
    for (size_t seq = 0; seq < problem.shape().seqs.size(); ++seq) {
      SCOPED_TRACE(fmt::format("group {} sequence {}", group, seq));
      const AttentionResult alone =
          problem.rows_of(static_cast<int32_t>(seq), 0, 1).run(run_of(256));
      EXPECT_TRUE(std::memcmp(alone.out.data(), batch.out.data() + seq * row_elements * 2,
                              row_elements * 2) == 0);
      EXPECT_TRUE(std::memcmp(alone.acc.data(), batch.acc.data() + seq * row_elements * 4,
                              row_elements * 4) == 0);
    }
  }
}

// A GPU splits the work of few sequences into smaller pieces.
TEST(DecodeAttentionTest, ASequenceAloneHasTheBitsItHasAmongMany) {
  for (const int32_t head_dim : {64, 128}) {
    std::vector<SequenceShape> seqs(100);
    for (int32_t i = 0; i < 100; ++i) seqs[static_cast<size_t>(i)] = {.first_pos = 900 - 9 * i};
    const AttentionProblem problem({.head_dim = head_dim, .group = 3, .seqs = seqs});
    const AttentionResult batch = problem.run(run_of(256));
    const auto row = static_cast<size_t>(problem.shape().num_q_heads()) * head_dim;
    for (size_t seq = 0; seq < seqs.size(); seq += 11) {
      SCOPED_TRACE(fmt::format("head_dim {} sequence {}", head_dim, seq));
      const AttentionResult alone =
          problem.rows_of(static_cast<int32_t>(seq), 0, 1).run(run_of(256));
      EXPECT_TRUE(std::memcmp(alone.out.data(), batch.out.data() + seq * row * 2, row * 2) == 0);
      EXPECT_TRUE(std::memcmp(alone.acc.data(), batch.acc.data() + seq * row * 4, row * 4) == 0);
    }
  }
}

// The number of windows decides how a GPU launches a call: one kernel or two, and their shapes. The
// sequence without history has tokens in the first part only.
TEST(DecodeAttentionTest, CallsOfAnyNumberOfWindowsHaveTheSameBits) {
  for (const int32_t head_dim : {64, 128}) {
    for (const int32_t group : {2, 5, 9}) {
      const AttentionProblem problem(
          {.head_dim = head_dim,
           .num_kv_heads = 2,
           .group = group,
           .seqs = {{.first_pos = 8600}, {.first_pos = 0}, {.first_pos = 4100}}});
      AttentionRun run = run_of(256);
      const AttentionResult whole = problem.run(run);
      for (const int32_t windows : {1, 2, 3, 4, 5, 8, 9, 16, 17, 32, 33}) {
        SCOPED_TRACE(fmt::format("{} x {}: {} windows a call", group, head_dim, windows));
        run.splits.clear();
        for (int32_t cut = windows * 256; cut < 8600; cut += windows * 256) {
          run.splits.push_back(cut);
        }
        expect_same_bits(whole, problem.run(run));
      }
    }
  }
}

TEST(DecodeAttentionTest, AListOfAllPagesIsNoList) {
  for (int32_t head_dim : {80, 64, 128}) {
    const AttentionProblem problem(
        {.head_dim = head_dim, .num_kv_heads = 2, .group = 3, .seqs = decode_sequences()});
    for (const auto& [block_tokens, page_tokens] :
         {std::pair(16, 16), {256, 16}, {64, 32}, {256, 128}, {96, 48}}) {
      SCOPED_TRACE(fmt::format("{}: pages of {} in {}", head_dim, page_tokens, block_tokens));
      AttentionRun run = run_of(block_tokens);
      const AttentionResult base = problem.run(run);
      run.page_tokens = page_tokens;
      run.pages = first_pages(700 / page_tokens + 1);
      expect_same_bits(base, problem.run(run));
      run.one_list_for_all_heads = true;
      run.splits = {block_tokens, block_tokens * 2};
      expect_same_bits(base, problem.run(run));
    }
  }
}

// On average one in `every` of the first `num_pages` pages, different ones for each sequence and
// head; some lists are empty.
auto one_of(uint32_t every, int32_t num_pages) {
  return [every, num_pages](int32_t seq, int32_t head, int32_t) {
    std::mt19937 generator(static_cast<uint32_t>(seq * 31 + head + 1));
    std::vector<int32_t> pages;
    if (every > 1 && seq == 1 && head == 1) return pages;
    for (int32_t page = 0; page < num_pages; ++page) {
      if (generator() % every == 0) pages.push_back(page);
    }
    return pages;
  };
}

// A GPU walks long contexts in another way than short ones, so these tests need long ones. The
// CPU's walk has no such border: under a sanitizer, which is slow, it gets a tenth of the history.
constexpr int32_t kLongScale = kSanitized ? 10 : 1;

// From contexts of 128K tokens on, a GPU distributes only the windows that a list touches; in
// shorter calls it distributes all windows.
TEST(DecodeAttentionTest, ListsOverLongContextsHaveTheBitsOfShorterCalls) {
  for (const auto& [head_dim, num_kv_heads, group] :
       {std::tuple(64, 2, 3), {128, 1, 8}, {64, 1, 9}}) {
    const AttentionProblem problem(
        {.head_dim = head_dim,
         .num_kv_heads = num_kv_heads,
         .group = group,
         .seqs = {{.first_pos = 131000 / kLongScale}, {.first_pos = 9055}, {.first_pos = 0}}});
    for (const auto& [block_tokens, page_tokens, every] :
         {std::tuple(256, 16, 9U), {256, 16, 200U}, {1024, 64, 6U}, {512, 256, 8U}}) {
      SCOPED_TRACE(fmt::format("{} x {}: one page in {} of {} in {}", group, head_dim, every,
                               page_tokens, block_tokens));
      AttentionRun run = run_of(block_tokens);
      run.page_tokens = page_tokens;
      run.list_of = one_of(every, 131000 / kLongScale / page_tokens + 1);
      run.one_list_for_all_heads = every == 200;
      const AttentionResult whole = problem.run(run);
      run.splits = {kLongScale == 1 ? 65536 : 6144};
      expect_same_bits(whole, problem.run(run));
    }
  }
}

// The same for lists whose pages have been gathered, at once or in parts.
TEST(DecodeAttentionTest, GatheredListsOverLongContextsHaveTheBitsOfPagesInPlace) {
  for (const auto& [head_dim, num_kv_heads, group] : {std::tuple(64, 2, 3), {128, 1, 7}}) {
    const AttentionProblem problem({.head_dim = head_dim,
                                    .num_kv_heads = num_kv_heads,
                                    .group = group,
                                    .seqs = {{.first_pos = 132000 / kLongScale}}});
    for (const auto& [block_tokens, page_tokens, every] :
         {std::tuple(256, 16, 9U), {256, 32, 100U}, {1024, 64, 6U}, {512, 256, 8U}}) {
      AttentionRun in_place = run_of(block_tokens);
      in_place.page_tokens = page_tokens;
      in_place.list_of = one_of(every, 132000 / kLongScale / page_tokens + 1);
      in_place.one_list_for_all_heads = every == 100;
      in_place.splits = {kLongScale == 1 ? 65536
                                         : 6144};  // so short that a GPU distributes all windows
      const AttentionResult base = problem.run(in_place);
      size_t longest = 0;
      for (int32_t head = 0; head < num_kv_heads; ++head) {
        longest = std::max(longest, in_place.list_of(0, head, 0).size());
      }
      // The second value gathers the whole list in one part.
      for (const int32_t entries : {33, static_cast<int32_t>(longest) + 1}) {
        SCOPED_TRACE(fmt::format("{} x {}: one page in {} of {} in {}, parts of {}", group,
                                 head_dim, every, page_tokens, block_tokens, entries));
        AttentionRun run = in_place;
        run.gathered_entries = entries;
        run.splits = {};
        expect_same_bits(base, problem.run(run));
        run.splits = {kLongScale == 1 ? 131072 : 12288};  // the tail in place
        expect_same_bits(base, problem.run(run));
      }
    }
  }
}

// Parts of a list may end anywhere: inside a window, after every page, or only at the list's end.
TEST(DecodeAttentionTest, GatheringInAnyPartsChangesNothing) {
  for (int32_t head_dim : {48, 64, 128}) {
    for (int32_t group : {3, 9}) {
      const AttentionProblem problem(
          {.head_dim = head_dim, .num_kv_heads = 3, .group = group, .seqs = {{.first_pos = 1900}}});
      for (const auto& [block_tokens, page_tokens] :
           {std::pair(256, 16), {512, 32}, {256, 128}, {96, 48}, {128, 16}}) {
        AttentionRun in_place = run_of(block_tokens);
        in_place.page_tokens = page_tokens;
        in_place.list_of = half_of(1900 / page_tokens + 1);
        const AttentionResult base = problem.run(in_place);
        for (const int32_t entries : {1, 3, 8, 21, 1000}) {
          SCOPED_TRACE(fmt::format("{} x {}: pages of {} in {}, parts of {}", group, head_dim,
                                   page_tokens, block_tokens, entries));
          AttentionRun run = in_place;
          run.gathered_entries = entries;
          expect_same_bits(base, problem.run(run));
          run.splits = {1900 / block_tokens * block_tokens};  // the tail in place
          expect_same_bits(base, problem.run(run));
        }
      }
    }
  }
}

TEST(DecodeAttentionTest, AFullGatheredListIsNoList) {
  const AttentionProblem problem(
      {.head_dim = 128, .num_kv_heads = 2, .group = 4, .seqs = {{.first_pos = 2500}}});
  AttentionRun run = run_of(256);
  const AttentionResult base = problem.run(run);
  run.pages = first_pages(2501 / 16 + 1);
  for (const int32_t entries : {7, 100, 157}) {
    SCOPED_TRACE(entries);
    run.gathered_entries = entries;
    expect_same_bits(base, problem.run(run));
  }
}

// More windows than a GPU's scratch memory holds: the call works in rounds; the short calls do not.
TEST(DecodeAttentionTest, AVeryLongHistoryHasTheBitsOfItsParts) {
  if (testing_cpu()) GTEST_SKIP() << "a GPU's";
  const AttentionProblem problem({.head_dim = 128,
                                  .num_kv_heads = 1,
                                  .group = 32,
                                  .seqs = {{.first_pos = 70000}, {.first_pos = 100}}});
  AttentionRun run = run_of(16);
  const AttentionResult whole = problem.run(run);
  run.splits = {20000, 40000, 60000};
  expect_same_bits(whole, problem.run(run));
}

TEST(DecodeAttentionTest, ANaNReachesTheHeadsThatReadIt) {
  const AttentionProblem problem(
      {.head_dim = 128, .num_kv_heads = 2, .group = 2, .seqs = {{.first_pos = 300}}});
  const auto run = [&](bool in_values, int32_t token) {
    Machine machine;
    AttentionArgs args = problem.call(machine, run_of(256), 0, 1000);
    args.out = machine.tensor(DType::kBF16, {1, 4, 128});
    if (token >= 0) {
      const int32_t block = args.block_table.data<int32_t>()[token / 256];
      BFloat16* row = in_values ? args.kv.values<BFloat16>(block, 1, token % 256)
                                : args.kv.keys<BFloat16>(block, 1, token % 256);
      row[5] = BFloat16::from_bits(0x7fc0);
    }
    attend(machine, args, best_kernels());
    machine.synchronize();
    return values_of<BFloat16>(args.out);
  };
  const std::vector<BFloat16> clean = run(false, -1);
  for (const bool in_values : {false, true}) {
    for (const int32_t token : {0, 17, 255, 256, 300}) {
      SCOPED_TRACE(fmt::format("{} of token {}", in_values ? "V" : "K", token));
      const std::vector<BFloat16> out = run(in_values, token);
      EXPECT_TRUE(std::memcmp(out.data(), clean.data(), 256 * sizeof(BFloat16)) == 0);
      EXPECT_TRUE(std::isnan(static_cast<float>(out[256 + 5])));
      EXPECT_TRUE(std::isnan(static_cast<float>(out[384 + 5])));
    }
  }
}

// Rows that pad a batch have no tokens and give 0 for any contents of their tables.
TEST(DecodeAttentionTest, ASequenceWithoutTokensGivesZero) {
  const AttentionProblem problem({.head_dim = 64, .seqs = {{.first_pos = 90}, {.first_pos = 40}}});
  Machine machine;
  AttentionArgs args = problem.call(machine, run_of(64), 0, 1000);
  args.out = machine.tensor(DType::kBF16, {2, 4, 64});
  args.kv_end.data<int32_t>()[1] = 0;
  args.block_table.data<int32_t>()[args.block_table.dim(1)] = -1;
  attend(machine, args, best_kernels());
  machine.synchronize();
  for (int64_t i = 0; i < 256; ++i) ASSERT_EQ(element(args.out, 256 + i), 0.0) << i;
  const std::vector<BFloat16> first = values_of<BFloat16>(args.out);
  EXPECT_TRUE(std::memcmp(first.data(), problem.run(run_of(64)).out.data(), 512) == 0);
}

// One graph serves all lengths up to its maxima: the launches depend on the maxima alone.
void expect_a_graph_follows_the_lengths(const AttentionProblem& problem, const AttentionRun& run,
                                        const std::vector<int32_t>& lengths) {
  Machine machine;
  AttentionArgs args = problem.call(machine, run, 0, 200000);
  args.out = machine.tensor(DType::kBF16, {args.q.dim(0), args.q.dim(1), args.q.dim(2)});
  attention(machine.stream(), args);
  machine.synchronize();  // the lengths that it reads change below
  const auto graph = machine.stream().capture([&] { attention(machine.stream(), args); });
  for (const int32_t length : lengths) {
    SCOPED_TRACE(length);
    for (int64_t seq = 0; seq < args.q.dim(0); ++seq) {
      args.kv_end.data<int32_t>()[seq] = length;
      args.batch.first_pos.data<int32_t>()[seq] = length - 1;
    }
    machine.stream().launch(*graph);
    machine.synchronize();
    const std::vector<std::byte> replayed = bytes_of(args.out);
    std::memset(args.out.bytes(), 0xFF, args.out.num_bytes());
    attention(machine.stream(), args);
    machine.synchronize();
    EXPECT_TRUE(bytes_of(args.out) == replayed);
  }
}

TEST(DecodeAttentionTest, AGraphFollowsTheLengths) {
  const AttentionProblem problem(
      {.head_dim = 128, .group = 4, .seqs = {{.first_pos = 1500}, {.first_pos = 1400}}});
  expect_a_graph_follows_the_lengths(problem, run_of(256), {1, 256, 700, 1401, 20});
}

// Thread blocks loop over the existing windows, not over those that the launch was sized for.
TEST(DecodeAttentionTest, AGraphFollowsTheLengthsOfAFewThousandTokens) {
  for (const int32_t head_dim : {64, 128}) {
    const AttentionProblem problem({.head_dim = head_dim,
                                    .num_kv_heads = 3,
                                    .group = 5,
                                    .seqs = {{.first_pos = 9000}, {.first_pos = 8900}}});
    expect_a_graph_follows_the_lengths(problem, run_of(512), {8901, 4096, 300, 1});
  }
}

TEST(DecodeAttentionTest, AGraphFollowsTheLengthsOfAListedContext) {
  const AttentionProblem problem(
      {.head_dim = 64, .num_kv_heads = 1, .group = 4, .seqs = {{.first_pos = 131000}}});
  AttentionRun run = run_of(256);
  run.page_tokens = 16;
  run.list_of = one_of(6, 131000 / 16 + 1);
  expect_a_graph_follows_the_lengths(problem, run, {131001, 5000, 300, 1});
}

}  // namespace
}  // namespace sluice::testing
