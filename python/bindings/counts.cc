// Field by field, so that a new name in C++ does not rename a key.
#include "counts.h"

namespace sluice::python {

void set_store_counts(nb::dict counts, const EngineStats& stats) {
  counts["num_stored_tokens"] = stats.num_stored_tokens;
  counts["store_read_bytes"] = stats.store_read_bytes;
  counts["store_written_bytes"] = stats.store_written_bytes;
  counts["num_store_blocks_written"] = stats.num_store_blocks_written;
  counts["num_store_blocks_skipped"] = stats.num_store_blocks_skipped;
  counts["num_store_bad_files"] = stats.num_store_bad_files;
  counts["num_store_write_errors"] = stats.num_store_write_errors;
}

CountDict to_dict(const EngineStats& stats) {
  CountDict result;
  result["num_prompt_tokens"] = stats.num_prompt_tokens;
  result["num_cached_tokens"] = stats.num_cached_tokens;
  result["num_generated_tokens"] = stats.num_generated_tokens;
  result["num_steps"] = stats.num_steps;
  result["num_preemptions"] = stats.num_preemptions;
  result["num_graph_launches"] = stats.num_graph_launches;
  result["draft_ns"] = stats.draft_ns;
  set_store_counts(result, stats);
  result["prefill_ns"] = stats.prefill_ns;
  result["decode_ns"] = stats.decode_ns;
  result["load_ns"] = stats.load_ns;
  return result;
}

Keywords to_dict(const PinInfo& pin) {
  Keywords result;
  result["name"] = nb::str(pin.name.data(), pin.name.size());
  result["num_tokens"] = pin.num_tokens;
  result["num_blocks"] = pin.num_blocks;
  result["num_bytes"] = pin.num_bytes;
  result["num_device_tokens"] = pin.num_device_tokens;
  result["num_host_tokens"] = pin.num_host_tokens;
  result["num_disk_tokens"] = pin.num_disk_tokens;
  return result;
}

PinList to_list(const std::vector<PinInfo>& pins) {
  nb::list list;
  for (const PinInfo& pin : pins) list.append(to_dict(pin));
  return nb::borrow<PinList>(list);
}

}  // namespace sluice::python
