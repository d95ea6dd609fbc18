// copy_blocks: every byte against memcpy, and no byte outside the blocks is written.
#include "ops/pages/copy_blocks.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <random>
#include <vector>

#include "op_test_util.h"
#include "support/hooked_device.h"

namespace sluice::testing {
namespace {

struct CopyShape {
  KvBlockShape block{.num_kv_heads = 2, .head_dim = 64, .block_tokens = 32};
  int32_t num_src_blocks = 50;
  size_t num_ids = 20;
  size_t src_gap_bytes = 0;
  size_t dst_gap_bytes = 0;
};

// Blocks of random bytes, ids in any order and more than once.
struct CopyProblem {
  CopyProblem(Machine& machine, const CopyShape& shape, uint32_t seed = 1)
      : ids(shape.num_ids),
        args{.src = view(machine, shape.block, shape.num_src_blocks, shape.src_gap_bytes),
             .dst = view(machine, shape.block, static_cast<int32_t>(shape.num_ids) + 2,
                         shape.dst_gap_bytes)} {
    std::mt19937 generator(seed);
    for (size_t i = 0; i < bytes_of(args.src); ++i) {
      args.src.base[i] = static_cast<std::byte>(generator());
    }
    for (BlockId& id : ids) {
      id = BlockId(static_cast<int32_t>(generator() % static_cast<uint32_t>(shape.num_src_blocks)));
    }
    args.block_ids = ids;
  }

  static KvBlocksView view(Machine& machine, const KvBlockShape& block, int32_t num_blocks,
                           size_t gap_bytes) {
    const size_t stride_bytes = block.block_bytes() + gap_bytes;
    return {.base = machine.poisoned(static_cast<size_t>(num_blocks) * stride_bytes),
            .stride_bytes = stride_bytes,
            .num_blocks = num_blocks,
            .shape = block};
  }

  static size_t bytes_of(const KvBlocksView& blocks) {
    return static_cast<size_t>(blocks.num_blocks) * blocks.stride_bytes;
  }

  std::vector<std::byte> expected() const {
    std::vector<std::byte> bytes(args.dst.base, args.dst.base + bytes_of(args.dst));
    for (size_t j = 0; j < ids.size(); ++j) {
      std::memcpy(bytes.data() + j * args.dst.stride_bytes, args.src.block(ids[j].value),
                  args.src.shape.block_bytes());
    }
    return bytes;
  }

  std::vector<BlockId> ids;
  CopyBlocksArgs args;
};

void expect_memcpy(const CopyShape& shape) {
  Machine machine;
  const CopyProblem problem(machine, shape);
  const std::vector<std::byte> expected = problem.expected();
  copy_blocks(machine.stream(), problem.args);
  machine.synchronize();
  EXPECT_EQ(std::memcmp(problem.args.dst.base, expected.data(), expected.size()), 0);
}

TEST(CopyBlocksTest, CopiesBlocksOfEverySize) {
  for (const int32_t block_tokens : {1, 16, 48, 256}) {
    for (const int32_t head_dim : {16, 80, 128}) {
      SCOPED_TRACE(fmt::format("{} tokens x {}", block_tokens, head_dim));
      expect_memcpy(
          {.block = {.num_kv_heads = 3, .head_dim = head_dim, .block_tokens = block_tokens}});
    }
  }
}

TEST(CopyBlocksTest, LeavesWhatIsBetweenBlocksAlone) {
  expect_memcpy({.src_gap_bytes = 128, .dst_gap_bytes = 48});
}

// More blocks than one task or launch can take.
TEST(CopyBlocksTest, CopiesAnyNumberOfBlocks) {
  for (const size_t num_ids : {0, 1, 31, 32, 33, 959, 960, 961, 2500}) {
    SCOPED_TRACE(num_ids);
    expect_memcpy({.block = {.num_kv_heads = 1, .head_dim = 16, .block_tokens = 16},
                   .num_src_blocks = 700,
                   .num_ids = num_ids});
  }
}

TEST(CopyBlocksTest, TheListMayGoOnceTheCallReturns) {
  Machine machine;
  CopyProblem problem(machine, {});
  const std::vector<std::byte> expected = problem.expected();
  copy_blocks(machine.stream(), problem.args);
  std::fill(problem.ids.begin(), problem.ids.end(), BlockId(0));
  machine.synchronize();
  EXPECT_EQ(std::memcmp(problem.args.dst.base, expected.data(), expected.size()), 0);
}

TEST(CopyBlocksTest, TakesItsTimeOnASimulatedLink) {
  const auto device =
      testing::make_hooked_device("cpu", {.num_threads = 1}, {.link_bytes_per_second = 10'000'000});
  const auto stream = device->make_stream({.name = "test"});
  Machine machine(1);  // memory only
  if (!machine.on_cpu()) GTEST_SKIP() << "the CPU device's";
  const CopyProblem problem(machine, {.num_ids = 40});
  const auto begin = std::chrono::steady_clock::now();
  copy_blocks(*stream, problem.args);
  stream->synchronize();
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
  EXPECT_GE(taken.count(), 40.0 * static_cast<double>(CopyShape().block.block_bytes()) / 1e7);
}

TEST(CopyBlocksContractDeathTest, NamesTheRuleThatIsBroken) {
  Machine machine;
  CopyProblem problem(machine, {});
  CopyBlocksArgs args = problem.args;
  args.dst.num_blocks = 19;
  EXPECT_DEATH(copy_blocks(machine.stream(), args), "a block for each of block_ids");
  args = problem.args;
  args.src.num_blocks = 3;
  EXPECT_DEATH(copy_blocks(machine.stream(), args), "must be a block of src");
  args = problem.args;
  args.dst.shape.block_tokens = 64;
  EXPECT_DEATH(copy_blocks(machine.stream(), args), "the same block shape");
}

}  // namespace
}  // namespace sluice::testing
