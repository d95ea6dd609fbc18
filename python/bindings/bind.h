// The parts of the module sluice._core, one function for each file that defines some.
//
// Called by module.cc. The module is what the Python sources of the package are written on; users
// see it through them (docs/python.md). Thread rule: with the GIL, while the module is imported.
#pragma once

#include <nanobind/nanobind.h>

namespace sluice::python {

namespace nb = nanobind;

void bind_errors(nb::module_& m);   // sluice::Error to classes of sluice._errors
void bind_options(nb::module_& m);  // names and defaults of options
void bind_output(nb::module_& m);   // Output
void bind_engine(nb::module_& m);   // Engine, over LLM
void bind_service(nb::module_& m);  // Service, over EngineService
void bind_inspect(nb::module_& m);  // what is known without a loaded model

}  // namespace sluice::python
