// Finds the tensors of a checkpoint that fill the weights of a layout.
//
// Used by the loader, by the hash of weights and by what reports of a model's files. Thread rule:
// pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/model_directory.h"
#include "model/model_config.h"
#include "model/weight_layout.h"

namespace sluice {

// The tensors of a checkpoint that fill a source: the weight, then its scales if it has some, or
// those of its integers. Of a tensor of all experts it is the part with the source's rows. Errors:
// kModel for one that is missing, mis-shaped or of another type than config.json says, kUnsupported
// for a type that is not supported, naming it.
std::vector<CheckpointTensor> tensors_of(const WeightSource& source, const Checkpoint& checkpoint);

// The tensor of all experts that has the source's rows, and that of its scales, whole. REQUIRES:
// the checkpoint has no tensor of the source's name. Errors: those of tensors_of.
std::vector<CheckpointTensor> whole_stack(const WeightSource& source, const Checkpoint& checkpoint);

// Whether a tensor belongs to a part of a hybrid that is not run: its vision, and the layers that
// draft tokens.
bool is_unread_part(std::string_view name, const ModelConfig& config);

// A sentence about such tensors of a checkpoint; nothing without any.
std::optional<std::string> note_unread_parts(const Checkpoint& checkpoint,
                                             const ModelConfig& config);

// A sentence about the scales of KV in a checkpoint; nothing without any.
std::optional<std::string> note_kv_scales(const Checkpoint& checkpoint);

// The tensors of weights in integers (model/loading/integer_rows.h).
struct IntegerTensors {
  CheckpointTensor numbers;
  CheckpointTensor scales;
  std::optional<CheckpointTensor> zeros;   // zero points
  std::optional<CheckpointTensor> groups;  // the group of each column
  std::optional<CheckpointTensor> shape;   // of the matrix
};

// Those of a source that has integers. Errors: those of tensors_of, and kUnsupported for a number
// of rows or columns that does not fill words.
IntegerTensors integer_tensors(const WeightSource& source, const Checkpoint& checkpoint);

// The row of the tensor of all of an expert's rows, or of the source's own, from which the source
// reads: blocks of scales are counted in it.
int64_t first_scaled_row(const WeightSource& source, const Checkpoint& checkpoint);

// The scales of a source that has some in FP8. Errors: those of tensors_of.
CheckpointTensor scale_tensor(const WeightSource& source, const Checkpoint& checkpoint);

}  // namespace sluice
