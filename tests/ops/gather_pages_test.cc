// gather_pages: every byte against the reference, and attention over what it gathered.
#include "ops/pages/gather_pages.h"

#include <chrono>

#include "attention_problem.h"
#include "ops/reference/gather_pages.h"
#include "support/hooked_device.h"

namespace sluice::testing {
namespace {

struct GatherShape {
  int32_t num_kv_heads = 3;
  int32_t head_dim = 64;
  int32_t block_tokens = 128;
  int32_t page_tokens = 32;
  int32_t num_blocks = 6;  // of the sequence
  int32_t kv_end = 640;    // the last block is not on the host
  bool one_list_for_all_heads = false;
  int32_t first_entry = 0;
  int32_t num_entries = 12;
  int32_t resident_of_8 =
      -1;  // blocks that are on the device as well; negative: no table of places
  uint32_t seed = 1;
};

// Lists of random length over all pages of the sequence, also those after kv_end.
PageList random_lists(Machine& machine, const GatherShape& shape, std::mt19937& generator) {
  const int32_t num_pages = shape.num_blocks * shape.block_tokens / shape.page_tokens;
  const int64_t num_lists = shape.one_list_for_all_heads ? 1 : shape.num_kv_heads;
  std::vector<int32_t> ids(static_cast<size_t>(num_lists * num_pages), 1 << 20);
  std::vector<int32_t> counts;
  for (int64_t list = 0; list < num_lists; ++list) {
    int32_t count = 0;
    for (int32_t page = 0; page < num_pages; ++page) {
      if (generator() % 5 < 3) ids[static_cast<size_t>(list * num_pages + count++)] = page;
    }
    counts.push_back(count);
  }
  return {.page_ids = machine.tensor(ids, {1, num_lists, 1, num_pages}),
          .page_count = machine.tensor(counts, {1, num_lists, 1}),
          .page_tokens = shape.page_tokens,
          .first_entry = shape.first_entry,
          .num_entries = shape.num_entries};
}

std::byte* random_blocks(Machine& machine, const KvBlocksView& blocks, uint32_t seed) {
  const size_t num_bytes = static_cast<size_t>(blocks.num_blocks) * blocks.stride_bytes;
  std::byte* base = machine.poisoned(num_bytes);
  const std::vector<BFloat16> values = random_bf16(static_cast<int64_t>(num_bytes / 2), seed);
  std::memcpy(base, values.data(), num_bytes);
  return base;
}

// Puts some blocks on the device, at places unrelated to their ids and with other values, so that
// the result shows where a page was read.
void add_residents(Machine& machine, const GatherShape& shape, GatherPagesArgs& args) {
  args.resident.shape = args.src.shape;
  args.resident.num_blocks = shape.num_blocks;
  args.resident.stride_bytes = args.src.shape.block_bytes() + 256;
  args.resident.base = random_blocks(machine, args.resident, shape.seed + 1);
  std::vector<int32_t> places;
  for (int32_t i = 0; i < shape.num_blocks; ++i) {
    places.push_back(i * 5 % 8 < shape.resident_of_8 ? shape.num_blocks - 1 - i : -1);
  }
  args.places = machine.tensor(places, {shape.num_blocks});
}

GatherPagesArgs make_args(Machine& machine, const GatherShape& shape) {
  std::mt19937 generator(shape.seed);
  GatherPagesArgs args;
  args.src.shape = {shape.num_kv_heads, shape.head_dim, shape.block_tokens};
  args.src.num_blocks = shape.num_blocks + 2;
  args.src.stride_bytes = args.src.shape.block_bytes() + 128;
  args.src.base = random_blocks(machine, args.src, shape.seed);
  if (shape.resident_of_8 >= 0) add_residents(machine, shape, args);
  std::vector<int32_t> ids(static_cast<size_t>(args.src.num_blocks));
  std::iota(ids.begin(), ids.end(), 0);
  std::shuffle(ids.begin(), ids.end(), generator);
  ids.resize(static_cast<size_t>(shape.num_blocks));
  args.block_ids = machine.tensor(ids, {shape.num_blocks});
  args.kv_end = machine.tensor(std::vector<int32_t>{shape.kv_end}, {1});
  args.pages = random_lists(machine, shape, generator);
  args.dst.shape = {shape.num_kv_heads, shape.head_dim, shape.page_tokens};
  args.dst.num_blocks = shape.num_entries + 1;
  args.dst.stride_bytes = args.dst.shape.block_bytes() + 64;
  args.dst.base =
      machine.poisoned(static_cast<size_t>(args.dst.num_blocks) * args.dst.stride_bytes);
  args.num_bytes = machine.tensor(std::vector<int64_t>{1000}, {1});
  return args;
}

void expect_reference(Machine& machine, const GatherPagesArgs& args) {
  const reference::GatheredPages expected = reference::gather_pages(args);
  gather_pages(machine.stream(), args);
  machine.synchronize();
  EXPECT_TRUE(std::memcmp(args.dst.base, expected.dst.data(), expected.dst.size()) == 0);
  if (args.num_bytes.present()) {
    EXPECT_EQ(args.num_bytes.data<int64_t>()[0], 1000 + expected.num_bytes);
  }
}

TEST(GatherPagesTest, CopiesTheListedPagesAndNothingElse) {
  for (const bool shared : {false, true}) {
    for (const int32_t first_entry : {0, 5, 40}) {
      for (const int32_t num_entries : {0, 1, 12, 30}) {
        for (const int32_t kv_end : {0, 32, 640, 768}) {
          SCOPED_TRACE(fmt::format("shared {}, entries {} + {}, kv_end {}", shared, first_entry,
                                   num_entries, kv_end));
          Machine machine;
          expect_reference(machine, make_args(machine, {.kv_end = kv_end,
                                                        .one_list_for_all_heads = shared,
                                                        .first_entry = first_entry,
                                                        .num_entries = num_entries}));
        }
      }
    }
  }
}

TEST(GatherPagesTest, CopiesPagesOfEverySize) {
  for (const auto& [block_tokens, page_tokens] :
       {std::pair(16, 16), {64, 64}, {256, 16}, {256, 128}}) {
    for (const int32_t head_dim : {16, 80, 128, 256}) {
      SCOPED_TRACE(fmt::format("blocks {} pages {} x {}", block_tokens, page_tokens, head_dim));
      Machine machine(3);
      GatherPagesArgs args = make_args(machine, {.num_kv_heads = 2,
                                                 .head_dim = head_dim,
                                                 .block_tokens = block_tokens,
                                                 .page_tokens = page_tokens,
                                                 .kv_end = 5 * block_tokens});
      args.num_bytes = {};
      expect_reference(machine, args);
    }
  }
}

TEST(GatherPagesTest, ReadsResidentPagesWhereTheyAreAndDoesNotCountThem) {
  for (const bool shared : {false, true}) {
    for (const int32_t head_dim : {64, 128}) {
      for (const int32_t resident_of_8 : {0, 3, 8}) {
        SCOPED_TRACE(fmt::format("shared {}, head_dim {}, {} of 8 blocks resident", shared,
                                 head_dim, resident_of_8));
        Machine machine(2);
        const GatherPagesArgs args = make_args(machine, {.head_dim = head_dim,
                                                         .one_list_for_all_heads = shared,
                                                         .first_entry = 1,
                                                         .num_entries = 16,
                                                         .resident_of_8 = resident_of_8});
        expect_reference(machine, args);
        const int64_t num_bytes = args.num_bytes.data<int64_t>()[0] - 1000;
        EXPECT_EQ(num_bytes == 0, resident_of_8 == 8);
      }
    }
  }
}

// The purpose of the two ops: pages that are gathered and attended in parts give the bits of the
// pages in place.
TEST(GatherPagesTest, AttentionOverGatheredPagesHasTheBitsOfPagesInPlace) {
  const AttentionProblem problem(
      {.head_dim = 128, .num_kv_heads = 3, .seqs = {{.num_rows = 1, .first_pos = 1023}}});
  const AttentionRun run{.block_tokens = 128,
                         .list_of =
                             [](int32_t, int32_t head, int32_t) {
                               std::vector<int32_t> pages;
                               for (int32_t page = head; page < 32; page += 2 + head) {
                                 pages.push_back(page);
                               }
                               return pages;
                             },
                         .page_tokens = 32};
  Machine machine;
  AttentionArgs in_place = problem.call(machine, run, 0, 1024);
  in_place.out = machine.tensor(DType::kBF16, {1, 6, 128});
  attention(machine.stream(), in_place);

  GatherPagesArgs gather{.src = in_place.kv,
                         .block_ids = in_place.block_table.reshape({8}),
                         .kv_end = in_place.kv_end,
                         .pages = *listed_in(in_place.selection),
                         .num_bytes = machine.tensor(std::vector<int64_t>{0}, {1})};
  gather.pages.num_entries = 6;
  gather.dst.shape = {3, 128, 32};
  gather.dst.num_blocks = 6;
  gather.dst.stride_bytes = gather.dst.shape.block_bytes();
  gather.dst.base = machine.poisoned(6 * gather.dst.stride_bytes);
  AttentionArgs gathered = in_place;
  gathered.out = machine.tensor(DType::kBF16, {1, 6, 128});
  gathered.state = problem.new_state(machine);
  gathered.kv = gather.dst;
  gathered.block_table = {};
  for (int32_t entry = 0; entry < 18; entry += 6) {
    gather.pages.first_entry = entry;
    gathered.selection = GatheredPages{
        .list = gather.pages, .places = {}, .source_block_tokens = in_place.kv.shape.block_tokens};
    gathered.first = entry == 0;
    gathered.last = entry == 12;
    gather_pages(machine.stream(), gather);
    attention(machine.stream(), gathered);
  }
  machine.synchronize();
  EXPECT_TRUE(bytes_of(gathered.out) == bytes_of(in_place.out));
  // 16 + 11 + 8 pages of 32 tokens, keys and values.
  EXPECT_EQ(gather.num_bytes.data<int64_t>()[0], 35 * 32 * 128 * 2 * 2);
}

TEST(GatherPagesTest, TakesItsTimeOnASimulatedLink) {
  const auto device =
      testing::make_hooked_device("cpu", {.num_threads = 1}, {.link_bytes_per_second = 10'000'000});
  const auto stream = device->make_stream({.name = "test"});
  Machine machine(1);  // memory only
  if (machine.stream().device().kind() != DeviceKind::kCpu) GTEST_SKIP() << "the CPU device's";
  const GatherPagesArgs args = make_args(machine, {.num_entries = 30});
  const auto begin = std::chrono::steady_clock::now();
  gather_pages(*stream, args);
  stream->synchronize();
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
  const int64_t num_bytes = args.num_bytes.data<int64_t>()[0] - 1000;
  ASSERT_GT(num_bytes, 200'000);
  EXPECT_GE(taken.count(), static_cast<double>(num_bytes) / 1e7);
}

TEST(GatherPagesContractDeathTest, NamesTheRuleThatIsBroken) {
  Machine machine;
  GatherPagesArgs args = make_args(machine, {});
  args.places = args.block_ids;
  EXPECT_DEATH(gather_pages(machine.stream(), args), "resident must be present");
  args.places = {};
  args.dst.num_blocks = 3;
  EXPECT_DEATH(gather_pages(machine.stream(), args), "a block for each of pages.num_entries");
  args.dst.shape.block_tokens = 64;
  EXPECT_DEATH(gather_pages(machine.stream(), args), "dst.shape.block_tokens must be pages");
}

}  // namespace
}  // namespace sluice::testing
