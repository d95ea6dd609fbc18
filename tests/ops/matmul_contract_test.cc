// The shape contracts of pack_weight, matmul and embedding: a wrong shape is an error of the
// caller, so the op aborts and names the symbol.
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "ops/matmul/matmul.h"

namespace sluice {
namespace {

template <typename T>
TensorView view_of(std::vector<T>& values, std::initializer_list<int64_t> dims) {
  return TensorView(values.data(), kDTypeOf<T>, dims);
}

class MatmulContractDeathTest : public ::testing::Test {
 protected:
  void SetUp() override { testing::FLAGS_gtest_death_test_style = "threadsafe"; }

  // Aborts are observed in a child that runs the statement alone.
  template <typename Op, typename Args>
  static void run(Op op, const Args& args) {
    const auto device = make_device("cpu");
    const auto stream = device->make_stream({.name = "test", .num_threads = 1});
    op(*stream, args);
  }

  std::vector<BFloat16> storage_ = std::vector<BFloat16>(4096);
  PackedWeight weight_{
      .data = reinterpret_cast<std::byte*>(storage_.data()), .num_rows = 16, .num_cols = 32};
  MatmulArgs good_{.x = view_of(storage_, {4, 32}),
                   .weight = weight_,
                   .bias = {},
                   .out = view_of(storage_, {4, 16})};
};

TEST_F(MatmulContractDeathTest, MatmulNamesTheWrongSymbol) {
  MatmulArgs args = good_;
  args.weight = {};
  EXPECT_DEATH(run(matmul, args), "matmul: weight must be present");
  args = good_;
  args.x = view_of(storage_, {4, 31});
  EXPECT_DEATH(run(matmul, args), "matmul: x is .*31.*, but k is 32");
  args = good_;
  args.bias = view_of(storage_, {15});
  EXPECT_DEATH(run(matmul, args), "matmul: bias is .*15.*, but n is 16");
  args = good_;
  args.out = view_of(storage_, {5, 16});
  EXPECT_DEATH(run(matmul, args), "matmul: out is .*5, 16.*, but m is 4 by x");
  args = good_;
  args.out = TensorView(storage_.data(), DType::kI32, {4, 16});
  EXPECT_DEATH(run(matmul, args), "matmul: out must be bf16 or f32");
}

TEST_F(MatmulContractDeathTest, PackWeightNamesTheWrongSymbol) {
  const PackWeightArgs good{.src = view_of(storage_, {16, 32}), .dst = weight_};
  PackWeightArgs args = good;
  args.src = view_of(storage_, {16, 33});
  EXPECT_DEATH(run(pack_weight, args), "pack_weight: src is .*33.*, but num_cols is 32");
  args = good;
  args.row_begin = -1;
  EXPECT_DEATH(run(pack_weight, args), "pack_weight: row_begin must not be negative");
  args = good;
  args.row_begin = 1;
  EXPECT_DEATH(run(pack_weight, args), "row_begin . n must be at most dst.num_rows");
}

TEST_F(MatmulContractDeathTest, EmbeddingNamesTheWrongSymbol) {
  std::vector<int32_t> ids(4);
  const auto embed = [&](const TensorView& out) {
    run(embedding, EmbeddingArgs{.token_ids = view_of(ids, {4}), .table = weight_, .out = out});
  };
  EXPECT_DEATH(embed(view_of(storage_, {4, 16})), "embedding: out is .*16.*, but hidden is 32");
  EXPECT_DEATH(embed(view_of(storage_, {3, 32})), "embedding: out is .*3, 32.*, but m is 4");
}

}  // namespace
}  // namespace sluice
