// WeightLayout: cuts the memory of weights from an arena, and lists the tensors of a checkpoint
// that fill it.
//
// Made by Weights, and given to each kind of layer (model/layers), which adds what it needs; so one
// list drives the plan, loading, dummy weights and the check of names. Thread rule: a local
// variable of one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/arena.h"
#include "core/tensor_view.h"
#include "device/device.h"
#include "model/head_padding.h"
#include "model/quantization.h"
#include "model/shard.h"
#include "ops/experts/experts.h"
#include "ops/matmul/matmul.h"

namespace sluice {

// Which axis of a tensor is made of head channels and may have to be padded.
enum class HeadAxis { kNone, kRows, kColumns };

// Rows of a tensor that also has those of other sources: [num_experts, rows, columns] with one
// matrix of all experts, or [rows, columns] with rows of several parts of a layer.
struct TensorPart {
  std::string name;  // of the whole tensor; equal to the source's if a checkpoint never has the
                     // part alone
  std::vector<int64_t> shape;
  int64_t row_begin = 0;  // of all rows
};

// One tensor of a checkpoint and its destination: `matrix` or `vector`, never both.
struct WeightSource {
  std::string name;
  std::vector<int64_t> shape;   // of what is read, before padding
  PackedWeight matrix;          // the tensor fills its rows from row_begin on
  int64_t row_begin = 0;        // in `matrix`, padding included
  std::string scale_name = {};  // of the tensor of scales; empty: the matrix has none
  WeightScales scales = WeightScales::kNone;
  IntegerForm integers = IntegerForm::kNone;  // of a matrix of integers
  bool symmetric = false;                     // integers without zero points in the file
  int32_t order_index = 0;                    // of its order in `matrix`
  HeadAxis heads = HeadAxis::kNone;
  HeadPadding padding = {};  // of `heads`
  TensorView vector;         // bf16 or f32; the tensor fills all of it
  bool transposed = false;   // `vector` has the last dimension of `shape` as its first, and the
                             // tensor fills its columns from row_begin on
  float dummy_mean = 0;      // mean of dummy weights: 1 for norms, else 0
  TensorPart part = {};      // where the numbers are in a checkpoint without tensor `name`, or of
                             // what rows of it they are
  TensorSlice slice = {};    // what is read of tensor `name`, if not all
  double active_share = 1;   // of rows that it is read for, if all experts are chosen alike

  int64_t num_elements() const {
    int64_t count = 1;
    for (const int64_t dim : shape) count *= dim;
    return count;
  }
  // Whether a range of the rows of tensor `name` is read.
  bool is_range() const { return !part.name.empty() && part.name == name; }
  bool reads_whole() const { return !is_range() && !slice.present(); }
  // The first row of tensor `name` that is read.
  int64_t first_row() const { return is_range() ? part.row_begin : slice.row_begin; }
  // Of the tensor in the checkpoint.
  std::vector<int64_t> tensor_shape() const {
    if (is_range()) return part.shape;
    std::vector<int64_t> whole = shape;
    if (slice.num_rows != 0) whole.front() = slice.num_rows;
    if (slice.num_cols != 0) whole.back() = slice.num_cols;
    return whole;
  }
  // Whether the tensor has to be widened on the host before it is stored.
  bool pads() const { return heads != HeadAxis::kNone && padding.present(); }
};

class WeightLayout {
 public:
  // Where weights are cut from: those of experts, and all others. May be one arena.
  struct Arenas {
    Arena& weights;
    Arena& experts;
  };
  // Appends to `sources`. Aliasing: all outlive this object.
  WeightLayout(const Arenas& arenas, Device& device, const WeightQuantization& quantization,
               std::vector<WeightSource>& sources)
      : arena_(arenas.weights),
        expert_arena_(arenas.experts),
        device_(device),
        quantization_(quantization),
        sources_(sources) {}

  // Cuts memory of a matrix in which the weights of these modules lie, and of a vector (bf16). The
  // weights of several modules, and ranges of their rows, begin at multiples of `part_rows`, here
  // and in their tensors.
  // Errors: kUnsupported if some of the modules are quantized and others are not.
  PackedWeight matrix(int64_t num_rows, int64_t num_cols,
                      std::initializer_list<std::string> modules = {}, int64_t part_rows = 0);
  // The same for each expert, whose modules are "PREFIX0.MODULE", "PREFIX1.MODULE" and so on.
  PackedExperts experts(int32_t num_experts, int64_t num_rows, int64_t num_cols,
                        const std::string& prefix, std::initializer_list<const char*> modules,
                        int64_t part_rows = 0);
  TensorView vector(int64_t length, DType dtype = DType::kBF16) {
    return arena_.tensor(dtype, {length});
  }

  // These list one tensor each, and what it fills: rows of a matrix, or a vector. A slice says what
  // is read of the tensor.
  void add_rows(const std::string& name, const PackedWeight& matrix, int64_t row_begin,
                int64_t num_rows, const TensorSlice& slice = {});
  void add_vector(const std::string& name, const TensorView& vector, float dummy_mean = 0,
                  const TensorSlice& slice = {});
  // A tensor [num_channels, 1, taps], to channels from `begin` on of `taps` [taps, channels].
  void add_taps(const std::string& name, const TensorView& taps, int64_t begin,
                int64_t num_channels, const TensorSlice& slice = {});

  // Rows [from, from + num_rows) of a tensor of `num_tensor_rows` rows.
  struct RowRange {
    std::string name;
    int64_t num_tensor_rows = 0;
    int64_t from = 0;
    int64_t num_rows = 0;
  };
  void add_row_range(const RowRange& range, const PackedWeight& matrix, int64_t row_begin);

  // Rows of one expert's matrix; without a tensor of that name they are in `stack_name`.
  struct ExpertRows {
    std::string name;
    std::string stack_name;
    int32_t expert = 0;
    int64_t row_begin = 0;
    int64_t num_rows = 0;
    double active_share = 1;
    TensorSlice slice = {};  // of the tensor of that name
  };
  void add_expert_rows(const ExpertRows& rows, const PackedExperts& experts);

  // The same for tensors of head channels, which the checkpoint has without padding: `num_heads`
  // heads from head `head_begin` of the matrix on, whole heads of a vector, and a matrix whose
  // columns are heads.
  void add_head_rows(const std::string& name, const PackedWeight& matrix, int64_t head_begin,
                     int64_t num_heads, const HeadPadding& padding, const TensorSlice& slice = {});
  // The same for one head, whose rows are a range of a tensor.
  void add_head_range(const RowRange& range, const PackedWeight& matrix, int64_t head,
                      const HeadPadding& padding);
  void add_head_vector(const std::string& name, const TensorView& vector,
                       const HeadPadding& padding, float dummy_mean = 0,
                       const TensorSlice& slice = {});
  void add_head_columns(const std::string& name, const PackedWeight& matrix,
                        const HeadPadding& padding, const TensorSlice& slice = {});

 private:
  // The one format of these modules, each `num_parts` of which are in one matrix. Errors: those of
  // `matrix`.
  WeightFormat format_of(std::span<const std::string> modules, int64_t num_cols, size_t num_parts,
                         int64_t part_rows) const;
  // The same of a GGUF file: bf16 where blocks do not fit the columns or the device.
  WeightFormat gguf_format_of(std::span<const std::string> modules, int64_t num_cols) const;
  // Errors: kUnsupported for a slice that cuts a scale's rows or columns.
  void check_slice(const WeightSource& source) const;
  // Numbers the modules of a matrix with orders of columns.
  void count_orders(std::span<const std::string> modules, size_t num_parts, WeightFormat format);
  // What integers have beside the name and the shape.
  void add_integers(WeightSource& source) const;

  Arena& arena_;
  Arena& expert_arena_;
  Device& device_;
  const WeightQuantization& quantization_;
  std::vector<WeightSource>& sources_;
  std::map<std::string, int32_t, std::less<>> order_of_;  // of a module, in its matrix
};

}  // namespace sluice
