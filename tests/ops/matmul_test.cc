// Matrix products, weight packing and embedding on the device under test: against double precision,
// and on the CPU the promise that a row never depends on its neighbours, for every ISA that this
// machine has.
#include "ops/matmul.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "device/cpu/cpu_features.h"
#include "device/cpu/cpu_stream.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/reference/matmul.h"
#include "support/test_device.h"

namespace sluice {
namespace {

constexpr double kUnitF32 = 0x1p-24;  // unit roundoff: 24 bits of precision
constexpr double kUnitBF16 = 0x1p-8;  // and 8 bits
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

template <typename T>
TensorView view_of(std::vector<T>& values, std::initializer_list<int64_t> dims) {
  return TensorView(values.data(), kDTypeOf<T>, dims);
}

std::vector<BFloat16> random_bf16(int64_t count, uint32_t seed, float scale = 1.0f) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<BFloat16> values;
  for (int64_t i = 0; i < count; ++i) values.emplace_back(normal(generator));
  return values;
}

reference::MatmulInput random_input(int64_t m, int64_t n, int64_t k, bool bias = false) {
  const auto seed = static_cast<uint32_t>(m * 1000003 + n * 1009 + k);
  return {.x = random_bf16(m * k, seed),
          .weight = random_bf16(n * k, seed + 1),
          .bias = bias ? random_bf16(n, seed + 2) : std::vector<BFloat16>{},
          .m = m,
          .n = n,
          .k = k};
}

// A device with one stream. Inputs are copied to device memory, outputs back: nothing else is seen
// by a kernel.
class Machine {
 public:
  explicit Machine(int num_threads = 2)
      : device_(testing::make_test_device({.num_threads = num_threads})),
        stream_(device_->make_stream({.name = "test", .num_threads = num_threads})) {}
  ~Machine() {
    try {
      stream_->synchronize();
    } catch (const Error&) {
      // a test that provokes an asynchronous error has looked at it already
    }
  }

  Device& device() { return *device_; }
  Stream& stream() { return *stream_; }

  std::byte* allocate(size_t size_bytes) {
    buffers_.push_back(device_->allocate(size_bytes, MemoryKind::kDevice));
    return buffers_.back().data();
  }

  template <typename T>
  TensorView upload(const std::vector<T>& values, std::initializer_list<int64_t> dims) {
    const size_t num_bytes = values.size() * sizeof(T);
    std::byte* data = allocate(num_bytes);
    stream_->copy({.dst = data,
                   .src = reinterpret_cast<const std::byte*>(values.data()),
                   .num_bytes = num_bytes});
    stream_->synchronize();
    return TensorView(data, kDTypeOf<T>, dims);
  }

  template <typename T>
  std::vector<T> download(const TensorView& view) {
    std::vector<T> values(static_cast<size_t>(view.num_elements()));
    stream_->copy({.dst = reinterpret_cast<std::byte*>(values.data()),
                   .src = view.bytes(),
                   .num_bytes = view.num_bytes()});
    stream_->synchronize();
    return values;
  }

  PackedWeight make_weight(int64_t num_rows, int64_t num_cols) {
    return {.data = allocate(packed_weight_bytes(*device_, num_rows, num_cols)),
            .num_rows = num_rows,
            .num_cols = num_cols};
  }

  template <typename T>
  PackedWeight pack(std::vector<T> values, int64_t num_rows, int64_t num_cols) {
    const PackedWeight weight = make_weight(num_rows, num_cols);
    pack_weight(*stream_, {.src = view_of(values, {num_rows, num_cols}), .dst = weight});
    stream_->synchronize();
    return weight;
  }

 private:
  std::unique_ptr<Device> device_;
  std::vector<Buffer> buffers_;
  std::unique_ptr<Stream> stream_;
};

// Through the kernel of `isa`; on another device than the CPU there is one, whatever `isa` says.
void run_matmul(Machine& machine, const MatmulArgs& args, CpuIsa isa) {
  if (testing::testing_cpu()) {
    cpu::CpuOps(isa).matmul(machine.stream(), args);
  } else {
    matmul(machine.stream(), args);
  }
}

// out of one product with the kernel of `isa`, rows [0, m) of the input.
template <typename Out>
std::vector<Out> product(Machine& machine, const reference::MatmulInput& input, int64_t m,
                         CpuIsa isa) {
  std::vector<BFloat16> rows(input.x.begin(), input.x.begin() + m * input.k);
  const TensorView out(machine.allocate(static_cast<size_t>(m * input.n) * sizeof(Out)),
                       kDTypeOf<Out>, {m, input.n});
  MatmulArgs args{.x = machine.upload(rows, {m, input.k}),
                  .weight = machine.pack(input.weight, input.n, input.k),
                  .bias = {},
                  .out = out};
  if (!input.bias.empty()) args.bias = machine.upload(input.bias, {input.n});
  run_matmul(machine, args, isa);
  return machine.download<Out>(out);
}

// Bounds that follow from the types. Every order of summation of k products in f32, bias included,
// errs by at most (k + 1) u sum|x w| (Higham 2002, section 3.1); rounding to the output's type adds
// its own unit. NMSE: rounding errors of random sign add up like sqrt(k), with room of 4.
template <typename Out>
void expect_near_reference(const std::vector<Out>& out, const reference::MatmulInput& input) {
  const reference::MatmulOutput truth = reference::matmul(input);
  const double unit = std::is_same_v<Out, float> ? 0.0 : kUnitBF16;
  const double gamma = static_cast<double>(input.k + 1) * kUnitF32;
  double error_energy = 0.0;
  double truth_energy = 0.0;
  for (size_t i = 0; i < out.size(); ++i) {
    const double error = std::abs(static_cast<double>(static_cast<float>(out[i])) - truth.value[i]);
    const double summation = gamma * truth.magnitude[i];
    ASSERT_LE(error, summation + unit * (std::abs(truth.value[i]) + summation)) << "element " << i;
    error_energy += error * error;
    truth_energy += truth.value[i] * truth.value[i];
  }
  const double relative = unit + 4.0 * std::sqrt(static_cast<double>(input.k)) * kUnitF32;
  EXPECT_LE(error_energy, relative * relative * truth_energy);
}

class MatmulTest : public ::testing::TestWithParam<CpuIsa> {};

std::vector<CpuIsa> isas_of_this_machine() {
  if (!testing::testing_cpu()) return {CpuIsa::kScalar};
  std::vector<CpuIsa> isas;
  for (CpuIsa isa : {CpuIsa::kScalar, CpuIsa::kAvx2, CpuIsa::kAvx512, CpuIsa::kAmx}) {
    if (isa <= detected_isa()) isas.push_back(isa);
  }
  return isas;
}

INSTANTIATE_TEST_SUITE_P(EveryIsa, MatmulTest, ::testing::ValuesIn(isas_of_this_machine()),
                         [](const auto& param_info) {
                           const std::string isa(cpu_isa_name(param_info.param));
                           return testing::testing_cpu() ? isa : "gpu";
                         });

TEST_P(MatmulTest, EveryNumberOfRowsIsNearTheReference) {
  Machine machine;
  for (int64_t m = 1; m <= 70; ++m) {
    SCOPED_TRACE(m);
    const auto input = random_input(m, 37, 67);
    expect_near_reference(product<float>(machine, input, m, GetParam()), input);
  }
}

TEST_P(MatmulTest, TailsOfEveryDimensionAreNearTheReference) {
  Machine machine;
  for (int64_t n : {1, 15, 16, 17, 33, 300}) {
    for (int64_t k : {1, 2, 31, 32, 33, 64, 511, 512, 1055}) {
      for (int64_t m : {1, 7, 33}) {
        SCOPED_TRACE(::testing::Message() << "m " << m << " n " << n << " k " << k);
        const auto input = random_input(m, n, k, /*bias=*/k % 2 == 0);
        expect_near_reference(product<BFloat16>(machine, input, m, GetParam()), input);
      }
    }
  }
}

TEST_P(MatmulTest, ManyRowsAndSeveralBlocksOfKAreNearTheReference) {
  Machine machine(3);
  for (int64_t m : {97, 300}) {
    const auto input = random_input(m, 290, 1100, /*bias=*/true);
    expect_near_reference(product<BFloat16>(machine, input, m, GetParam()), input);
  }
}

// Small integers leave no room for rounding: any mistake of layout is a wrong number, not a near
// one.
TEST_P(MatmulTest, IntegersAreExact) {
  Machine machine;
  const int64_t m = 19;
  const int64_t n = 50;
  const int64_t k = 75;
  reference::MatmulInput input{.x = {}, .weight = {}, .bias = {}, .m = m, .n = n, .k = k};
  for (int64_t i = 0; i < m * k; ++i) input.x.emplace_back(static_cast<float>(i * 7 % 11 - 5));
  for (int64_t i = 0; i < n * k; ++i) input.weight.emplace_back(static_cast<float>(i * 5 % 13 - 6));
  for (int64_t i = 0; i < n; ++i) input.bias.emplace_back(static_cast<float>(i));
  const auto out = product<float>(machine, input, m, GetParam());
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      int64_t sum = j;
      for (int64_t l = 0; l < k; ++l)
        sum += ((i * k + l) * 7 % 11 - 5) * ((j * k + l) * 5 % 13 - 6);
      ASSERT_EQ(out[static_cast<size_t>(i * n + j)], static_cast<float>(sum)) << i << ", " << j;
    }
  }
}

TEST_P(MatmulTest, RowsDoNotDependOnTheirNeighboursOrOnThreads) {
  if (!testing::testing_cpu()) GTEST_SKIP() << "skipped: a GPU's products round by their height";
  const int64_t n = 272;
  const int64_t k = 1100;
  const auto input = random_input(100, n, k, /*bias=*/true);
  Machine first_machine(1);
  const auto whole = product<float>(first_machine, input, 100, GetParam());
  for (int num_threads : {1, 2, 3}) {
    Machine machine(num_threads);
    for (int64_t m : {1, 2, 3, 5, 16, 17, 64, 100}) {
      const auto part = product<float>(machine, input, m, GetParam());
      EXPECT_EQ(std::memcmp(part.data(), whole.data(), part.size() * sizeof(float)), 0)
          << "m " << m << " threads " << num_threads;
    }
  }
}

TEST_P(MatmulTest, ARowHasTheSameBitsAtEveryPosition) {
  Machine machine;
  auto input = random_input(40, 48, 96);
  for (int64_t row = 1; row < 40; ++row) {
    std::copy_n(input.x.begin(), 96, input.x.begin() + row * 96);
  }
  const auto out = product<float>(machine, input, 40, GetParam());
  for (int64_t row = 1; row < 40; ++row) {
    EXPECT_EQ(std::memcmp(out.data(), out.data() + row * 48, 48 * sizeof(float)), 0) << row;
  }
}

// A poisoned row of x is a poisoned row of out, and a poisoned weight row is a column; nothing
// else.
TEST_P(MatmulTest, NanAndInfinityStayInTheirRowAndColumn) {
  Machine machine;
  const int64_t m = 21;
  const int64_t n = 43;
  const int64_t k = 45;  // not a multiple of the padding: what lies behind a row must not leak in
  auto input = random_input(m, n, k);
  for (auto& weight : input.weight) weight = BFloat16(0.5f + std::abs(static_cast<float>(weight)));
  input.x[4 * k + 44] = BFloat16(kNan);
  input.x[9 * k] = BFloat16(kInf);
  input.x[20 * k + 7] = BFloat16(-kInf);
  for (int64_t l = 0; l < k; ++l) input.weight[17 * k + l] = BFloat16(kNan);
  const auto out = product<BFloat16>(machine, input, m, GetParam());
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      const auto value = static_cast<float>(out[static_cast<size_t>(i * n + j)]);
      SCOPED_TRACE(::testing::Message() << i << ", " << j << ": " << value);
      if (i == 4 || j == 17) {
        EXPECT_TRUE(std::isnan(value));
      } else if (i == 9 || i == 20) {
        EXPECT_EQ(value, i == 9 ? kInf : -kInf);
      } else {
        EXPECT_TRUE(std::isfinite(value));
      }
    }
  }
}

TEST_P(MatmulTest, NoRowsWriteNothing) {
  Machine machine;
  const auto input = random_input(1, 16, 32);
  std::vector<float> canary(16, 7.0f);
  const TensorView out = machine.upload(canary, {1, 16});
  run_matmul(machine,
             {.x = machine.upload(input.x, {1, 32}).rows(0, 0),
              .weight = machine.pack(input.weight, 16, 32),
              .bias = {},
              .out = out.rows(0, 0)},
             GetParam());
  EXPECT_EQ(machine.download<float>(out), canary);
}

TEST_P(MatmulTest, WritesOnlyItsOutput) {
  Machine machine;
  const auto input = random_input(5, 19, 40);
  std::vector<BFloat16> canary(7 * 19, BFloat16(3.0f));
  const TensorView out = machine.upload(canary, {7, 19});
  run_matmul(machine,
             {.x = machine.upload(input.x, {5, 40}),
              .weight = machine.pack(input.weight, 19, 40),
              .bias = {},
              .out = out.rows(1, 5)},
             GetParam());
  const auto after = machine.download<BFloat16>(out);
  for (int64_t i = 0; i < 19; ++i) {
    EXPECT_EQ(static_cast<float>(after[static_cast<size_t>(i)]), 3.0f);
    EXPECT_EQ(static_cast<float>(after[static_cast<size_t>(6 * 19 + i)]), 3.0f);
  }
}

// AVX2 and AVX-512 make the same chain of fused multiply-adds, so even the ISA is invisible.
TEST(MatmulIsaTest, Avx512HasTheBitsOfAvx2) {
  if (!testing::testing_cpu()) GTEST_SKIP() << "skipped: about the CPU's kernels";
  if (detected_isa() < CpuIsa::kAvx512) GTEST_SKIP() << "this machine has no AVX-512";
  Machine machine;
  const auto input = random_input(30, 80, 700, /*bias=*/true);
  EXPECT_EQ(product<float>(machine, input, 30, CpuIsa::kAvx512),
            product<float>(machine, input, 30, CpuIsa::kAvx2));
}

// The public op, as the model calls it, with the ISA that the environment chose.
TEST(MatmulOpTest, UsesTheBestIsa) {
  Machine machine;
  const auto input = random_input(3, 48, 64, /*bias=*/true);
  const TensorView out(machine.allocate(3 * 48 * sizeof(float)), DType::kF32, {3, 48});
  matmul(machine.stream(), {.x = machine.upload(input.x, {3, 64}),
                            .weight = machine.pack(input.weight, 48, 64),
                            .bias = machine.upload(input.bias, {48}),
                            .out = out});
  EXPECT_EQ(machine.download<float>(out), product<float>(machine, input, 3, best_isa()));
}

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
      EXPECT_EQ(bits_of(unpack(machine, machine.pack(values, num_rows, num_cols))),
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
  EXPECT_EQ(bits_of(unpack(machine, machine.pack(values, 1, 8))), expected);
}

TEST(PackWeightTest, ConvertsF16) {
  Machine machine;
  std::vector<Float16> values;  // 1, -2, 65504 (rounds up), smallest subnormal, infinity
  for (uint16_t bits : {0x3c00, 0xc000, 0x7bff, 0x0001, 0x7c00}) values.push_back(Float16{bits});
  const std::vector<uint16_t> expected = {0x3f80, 0xc000, 0x4780, 0x3380, 0x7f80};
  EXPECT_EQ(bits_of(unpack(machine, machine.pack(values, 1, 5))), expected);
}

TEST(PackWeightTest, AcceptsUnalignedMemory) {
  Machine machine;
  const auto values = random_bf16(20 * 33, 6);
  std::vector<std::byte> bytes(values.size() * 2 + 1);
  std::memcpy(bytes.data() + 1, values.data(), values.size() * 2);
  const PackedWeight weight = machine.make_weight(20, 33);
  pack_weight(machine.stream(),
              {.src = TensorView(bytes.data() + 1, DType::kBF16, {20, 33}), .dst = weight});
  EXPECT_EQ(bits_of(unpack(machine, weight)), bits_of(values));
}

// As a file gives its bytes: in pieces, to several threads.
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
    const PackedWeight weight = machine.make_weight(num_rows, num_cols);
    const BytesReader reader(values);
    pack_weight(machine.stream(), {.src = TensorView(nullptr, dtype, {num_rows, num_cols}),
                                   .dst = weight,
                                   .reader = &reader});
    EXPECT_EQ(bits_of(unpack(machine, weight)),
              bits_of(unpack(machine, machine.pack(values, num_rows, num_cols))));
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
  const PackedWeight weight = machine.make_weight(57, 50);
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
  if (!testing::testing_cpu()) GTEST_SKIP() << "skipped: the padding is the CPU's";
  EXPECT_EQ(packed_weight_bytes(machine.device(), 1, 1), 16u * 32 * 2);
}

TEST(EmbeddingTest, PicksRowsInAnyOrder) {
  Machine machine;
  const auto table = random_bf16(37 * 70, 10);
  const std::vector<int32_t> ids = {36, 0, 5, 5, 16};
  const TensorView out(machine.allocate(5 * 70 * 2), DType::kBF16, {5, 70});
  embedding(
      machine.stream(),
      {.token_ids = machine.upload(ids, {5}), .table = machine.pack(table, 37, 70), .out = out});
  const auto rows = machine.download<BFloat16>(out);
  for (size_t i = 0; i < ids.size(); ++i) {
    EXPECT_EQ(std::memcmp(&rows[i * 70], &table[static_cast<size_t>(ids[i]) * 70], 70 * 2), 0);
  }
}

TEST(EmbeddingTest, AnIdOutsideTheTableIsAnAsynchronousError) {
  for (int32_t id : {-1, 37}) {
    Machine machine;
    const PackedWeight table = machine.pack(random_bf16(37 * 8, 11), 37, 8);
    const TensorView ids = machine.upload(std::vector<int32_t>{3, id}, {2});
    const TensorView out(machine.allocate(2 * 8 * 2), DType::kBF16, {2, 8});
    embedding(machine.stream(), {.token_ids = ids, .table = table, .out = out});
    try {
      machine.stream().synchronize();
      FAIL() << "no error";
    } catch (const Error& error) {
      const std::string what = error.what();
      // A GPU says where it is, not what.
      const std::string value = testing::testing_cpu() ? std::to_string(id) : "";
      EXPECT_NE(what.find("token_ids[1] is " + value), std::string::npos) << what;
    }
  }
}

}  // namespace
}  // namespace sluice
