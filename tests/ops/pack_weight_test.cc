// Weight packing and embedding on the device under test. Embedding reads a packed weight back, so
// the pair shows a wrong place, a wrong rounding to bf16, rows of a joined weight that overwrite
// each other, and padding that costs more memory than planned.
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "op_test_util.h"
#include "ops/matmul/matmul.h"
#include "packed_weights.h"

namespace sluice::testing {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// The embedding of every row reads the packed layout back: what was packed must come out.
std::vector<BFloat16> unpack(Machine& machine, const PackedWeight& weight) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < weight.num_rows; ++i) ids.push_back(static_cast<int32_t>(i));
  const int64_t m = weight.num_rows;
  const TensorView out(machine.allocate(static_cast<size_t>(m * weight.num_cols) * 2), DType::kBF16,
                       {m, weight.num_cols});
  embedding(machine.stream(), {.token_ids = machine.upload(ids, {m}), .table = weight, .out = out});
  return machine.download<BFloat16>(out);
}

TensorView view_of(std::vector<BFloat16>& values, std::initializer_list<int64_t> dims) {
  return TensorView(values.data(), DType::kBF16, dims);
}

std::vector<uint16_t> bits_of(const std::vector<BFloat16>& values) {
  std::vector<uint16_t> bits;
  for (BFloat16 value : values) bits.push_back(value.bits);
  return bits;
}

TEST(PackWeightTest, KeepsTheBitsOfBF16) {
  Machine machine;
  for (int64_t num_rows : {1, 16, 40, 65}) {
    for (int64_t num_cols : {1, 31, 64, 129}) {
      const auto values = random_bf16(num_rows * num_cols, 5);
      EXPECT_EQ(bits_of(unpack(machine, pack(machine, values, num_rows, num_cols))),
                bits_of(values));
    }
  }
}

TEST(PackWeightTest, RoundsF32ToNearestEven) {
  Machine machine;
  // Between 1 and 1 + 2^-7 (neighbours in bf16): below, at and above the middle; ties go to even.
  const std::vector<float> values = {1.0f,      1.0f + 0x1p-9f, 1.0f + 0x1p-8f, 1.0f + 0x1.8p-8f,
                                     0x1.03p0f, kInf,           -0.0f,          -3.0f};
  const std::vector<uint16_t> expected = {0x3f80, 0x3f80, 0x3f80, 0x3f81,
                                          0x3f82, 0x7f80, 0x8000, 0xc040};
  EXPECT_EQ(bits_of(unpack(machine, pack(machine, values, 1, 8))), expected);
}

TEST(PackWeightTest, ConvertsF16) {
  Machine machine;
  std::vector<Float16> values;  // 1, -2, 65504 (rounds up), smallest subnormal, infinity
  for (uint16_t bits : {0x3c00, 0xc000, 0x7bff, 0x0001, 0x7c00}) values.push_back(Float16{bits});
  const std::vector<uint16_t> expected = {0x3f80, 0xc000, 0x4780, 0x3380, 0x7f80};
  EXPECT_EQ(bits_of(unpack(machine, pack(machine, values, 1, 5))), expected);
}

TEST(PackWeightTest, AcceptsUnalignedMemory) {
  Machine machine;
  const auto values = random_bf16(20 * 33, 6);
  std::vector<std::byte> bytes(values.size() * 2 + 1);
  std::memcpy(bytes.data() + 1, values.data(), values.size() * 2);
  const PackedWeight weight = make_weight(machine, 20, 33);
  pack_weight(machine.stream(),
              {.src = TensorView(bytes.data() + 1, DType::kBF16, {20, 33}), .dst = weight});
  EXPECT_EQ(bits_of(unpack(machine, weight)), bits_of(values));
}

// Reads from memory as from a file: in pieces, on several threads.
class BytesReader final : public WeightReader {
 public:
  template <typename T>
  explicit BytesReader(const std::vector<T>& values) : bytes_(std::as_bytes(std::span(values))) {}
  void read(size_t offset, std::span<std::byte> dst) const noexcept override {
    std::memcpy(dst.data(), bytes_.subspan(offset, dst.size()).data(), dst.size());
  }

 private:
  std::span<const std::byte> bytes_;
};

TEST(PackWeightTest, AReaderGivesWhatMemoryGives) {
  Machine machine;
  const auto expect_same = [&](auto& values, int64_t num_rows, int64_t num_cols) {
    const DType dtype = kDTypeOf<typename std::decay_t<decltype(values)>::value_type>;
    const PackedWeight weight = make_weight(machine, num_rows, num_cols);
    const BytesReader reader(values);
    pack_weight(machine.stream(), {.src = TensorView(nullptr, dtype, {num_rows, num_cols}),
                                   .dst = weight,
                                   .reader = &reader});
    EXPECT_EQ(bits_of(unpack(machine, weight)),
              bits_of(unpack(machine, pack(machine, values, num_rows, num_cols))));
  };
  auto bf16 = random_bf16(57 * 50, 7);
  expect_same(bf16, 57, 50);
  expect_same(bf16, 1, 50);
  expect_same(bf16, 57, 33);
  std::vector<float> f32(bf16.begin(), bf16.end());
  expect_same(f32, 57, 50);
  std::vector<Float16> f16;
  for (const BFloat16 value : bf16) f16.push_back(Float16{static_cast<uint16_t>(value.bits >> 1)});
  expect_same(f16, 57, 49);
}

TEST(PackWeightTest, PutsMatricesSideBySide) {
  Machine machine;
  auto q = random_bf16(32 * 50, 7);
  auto k = random_bf16(16 * 50, 8);
  auto v = random_bf16(9 * 50, 9);
  const PackedWeight weight = make_weight(machine, 57, 50);
  pack_weight(machine.stream(), {.src = view_of(q, {32, 50}), .dst = weight});
  pack_weight(machine.stream(), {.src = view_of(v, {9, 50}), .dst = weight, .row_begin = 48});
  pack_weight(machine.stream(), {.src = view_of(k, {16, 50}), .dst = weight, .row_begin = 32});
  auto expected = q;
  expected.insert(expected.end(), k.begin(), k.end());
  expected.insert(expected.end(), v.begin(), v.end());
  EXPECT_EQ(bits_of(unpack(machine, weight)), bits_of(expected));
}

TEST(PackWeightTest, CostsNoMoreThanItsPadding) {
  Machine machine;
  EXPECT_EQ(packed_weight_bytes(machine.device(), 1024, 2048), 1024u * 2048 * 2);
  if (!testing_cpu()) GTEST_SKIP() << "skipped: the padding is the CPU's";
  EXPECT_EQ(packed_weight_bytes(machine.device(), 1, 1), 16u * 32 * 2);
}

TEST(WeightFormat, IsRefusedWithoutAKernel) {
  Machine machine;
  std::vector<BFloat16> numbers = random_bf16(16 * 32, 1);
  PackedWeight weight = make_weight(machine, 16, 32);
  weight.format = kFormatWithoutKernels;
  expect_no_kernel([&] { packed_weight_bytes(machine.device(), 16, 32, weight.format); });
  expect_no_kernel([&] {
    pack_weight(machine.stream(), {.src = view_of(numbers, {16, 32}), .dst = weight});
  });
  const TensorView x = machine.tensor(DType::kBF16, {4, 32});
  expect_no_kernel([&] {
    matmul(machine.stream(),
           {.x = x, .weight = weight, .bias = {}, .out = machine.tensor(DType::kBF16, {4, 16})});
  });
  expect_no_kernel([&] {
    embedding(machine.stream(), {.token_ids = machine.tensor(std::vector<int32_t>{3}, {1}),
                                 .table = weight,
                                 .out = machine.tensor(DType::kBF16, {1, 32})});
  });
}

TEST(EmbeddingTest, PicksRowsInAnyOrder) {
  Machine machine;
  const auto table = random_bf16(37 * 70, 10);
  const std::vector<int32_t> ids = {36, 0, 5, 5, 16};
  const TensorView out(machine.allocate(5 * 70 * 2), DType::kBF16, {5, 70});
  embedding(
      machine.stream(),
      {.token_ids = machine.upload(ids, {5}), .table = pack(machine, table, 37, 70), .out = out});
  const auto rows = machine.download<BFloat16>(out);
  for (size_t i = 0; i < ids.size(); ++i) {
    EXPECT_EQ(std::memcmp(&rows[i * 70], &table[static_cast<size_t>(ids[i]) * 70], 70 * 2), 0);
  }
}

TEST(EmbeddingTest, AnIdOutsideTheTableIsAnAsynchronousError) {
  for (int32_t id : {-1, 37}) {
    Machine machine;
    const PackedWeight table = pack(machine, random_bf16(37 * 8, 11), 37, 8);
    const TensorView ids = machine.upload(std::vector<int32_t>{3, id}, {2});
    const TensorView out(machine.allocate(2 * 8 * 2), DType::kBF16, {2, 8});
    embedding(machine.stream(), {.token_ids = ids, .table = table, .out = out});
    try {
      machine.stream().synchronize();
      FAIL() << "no error";
    } catch (const Error& error) {
      const std::string what = error.what();
      // A GPU reports the place of the id, not its value.
      const std::string value = testing_cpu() ? std::to_string(id) : "";
      EXPECT_NE(what.find("token_ids[1] is " + value), std::string::npos) << what;
    }
  }
}

}  // namespace
}  // namespace sluice::testing
