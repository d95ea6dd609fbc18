// What is known without a loaded model: its files, its memory plan, and this build.
#include <nanobind/stl/string.h>

#include "bind.h"
#include "io/hub_cache.h"
#include "io/json_type.h"
#include "options.h"
#include "text/build_info.h"
#include "text/inspect_json.h"
#include "text/json_text.h"
#include "values.h"

namespace sluice::python {
namespace {

nb::str inspect(const Keywords& options) {
  const EngineOptions engine = engine_options(options);
  std::string text;
  {
    const nb::gil_scoped_release release;
    const ModelSummary model = summarize_model(engine.model, engine.kv.cache_dtype);
    text = json_text(inspect_json(model, check_model(engine), plan_memory(engine)));
  }
  return to_text(text);
}

Keywords build_info() {
  Keywords info;
  info["version"] = nb::cast(std::string(build_version()));
  info["commit"] = nb::cast(std::string(build_commit()));
  info["build_type"] = nb::cast(std::string(build_type()));
  info["cuda"] = nb::bool_(SLUICE_PYTHON_CUDA == 1);
  info["compiler"] = "g++ " __VERSION__;
  return info;
}

}  // namespace

void bind_inspect(nb::module_& m) {
  m.def("inspect", inspect, nb::arg("options"), "JSON, as `sluice inspect --json` prints it.");
  m.def(
      "find_model", [](const std::string& model) { return to_text(find_model(model).string()); },
      nb::arg("model"),
      "The directory that LLM reads: of a name, its snapshot in the Hugging Face cache.");
  m.def("build_info", build_info);
}

}  // namespace sluice::python
