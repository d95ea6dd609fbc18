// Output: the answer of a request or a part of it, of which Python makes a RequestOutput.
#include <nanobind/stl/string.h>

#include "bind.h"
#include "io/json_type.h"
#include "text/json_text.h"
#include "text/observations_json.h"
#include "values.h"

namespace sluice::python {
namespace {

std::string captured_mass(const RequestOutput& output) {
  if (output.captured_mass.empty()) return {};
  return json_text(request_mass_json(output));
}

double seconds(int64_t ns) { return static_cast<double>(ns) / 1e9; }

using StatsTuple = nb::typed<nb::tuple, int, double, double, double>;

StatsTuple stats(const RequestOutput& output) {
  const RequestStats& stats = output.stats;
  return nb::borrow<StatsTuple>(
      nb::make_tuple(stats.num_generated_tokens, seconds(stats.scheduled_ns),
                     seconds(stats.first_token_ns), seconds(stats.last_token_ns)));
}

}  // namespace

std::string speculation(const RequestOutput& output) {
  if (output.speculation.num_drafts == 0) return {};
  return json_text(speculation_json(output.speculation));
}

void bind_output(nb::module_& m) {
  using Output = RequestOutput;
  nb::class_<Output>(m, "Output", "An answer, or its new part. Lists are made at each access.")
      .def_ro("request_id", &Output::request_id)
      .def_ro("num_cached_tokens", &Output::num_cached_tokens,
              "Prompt tokens whose KV was in the prefix cache or in the KV store.")
      .def_ro("num_stored_tokens", &Output::num_stored_tokens, "Of these, from the KV store.")
      .def_ro("num_prompt_tokens_done", &Output::num_prompt_tokens_done)
      .def_prop_ro("finished", &Output::finished)
      .def_prop_ro(
          "finish_reason", [](const Output& o) { return finish_reason_name(o.finish_reason); },
          "stop, length or cancelled; empty while it runs.")
      .def_ro("stop_reason", &Output::stop_reason, "The stop string that ended it, or empty.")
      .def_prop_ro("text", [](const Output& o) { return to_text(o.text); })
      .def_prop_ro("token_ids", [](const Output& o) { return to_list(o.token_ids); })
      .def_prop_ro(
          "prompt_token_ids", [](const Output& o) { return to_list(o.prompt_token_ids); },
          "In the last output of a request only.")
      .def_prop_ro(
          "logprobs", [](const Output& o) { return to_lists(o.logprobs); },
          "Per token (id, natural log-probability) of itself and of the likeliest ones.")
      .def_prop_ro(
          "prompt_logprobs", [](const Output& o) { return to_lists(o.prompt_logprobs); },
          "The same for the prompt; the first token's list is empty.")
      .def_prop_ro("stats", stats,
                   "Tokens so far; when it was first scheduled, got its first token and its last "
                   "one, in seconds of time.monotonic(), 0 before.")
      .def_prop_ro("captured_mass", captured_mass, "JSON of the audit's result, or empty.")
      .def_prop_ro("speculation", speculation, "JSON of the counts of drafts, or empty.");
}

}  // namespace sluice::python
