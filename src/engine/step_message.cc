#include "engine/step_message.h"

namespace sluice {

int64_t StepMessage::num_sampled() const {
  int64_t sum = 0;
  for (const Span& span : spans) sum += span.num_sampled;
  return sum;
}

// Token ids are copied here, and once more into the arrays of the pass: of 8,192 rows that is 32
// KB, some microseconds beside a pass of a tenth of a second.
void describe_pass(const Batch& batch, StepMessage& message) {
  message.kind = batch.kind;
  message.spans.clear();
  message.token_ids.clear();
  for (const ScheduledSequence& scheduled : batch.sequences) {
    const Sequence& sequence = *scheduled.sequence;
    message.spans.push_back({.id = sequence.id,
                             .num_rows = scheduled.num_rows,
                             .num_ahead = scheduled.num_ahead,
                             .num_sampled = scheduled.num_sampled(),
                             .num_measured = sequence.audit.num_measured_tokens});
    const int64_t first_pos = scheduled.first_pos();
    for (int64_t i = 0; i < scheduled.num_rows; ++i) {
      message.token_ids.push_back(sequence.token_at(first_pos + i));
    }
  }
}

}  // namespace sluice
