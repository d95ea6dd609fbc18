// Translates sluice::Error, whose classes are in Python (sluice/_errors.py).
#include "errors.h"

#include <fmt/format.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include "bind.h"
#include "text/suggestion.h"

namespace sluice::python {
namespace {

// Other exceptions leave it, and nanobind's own translators take them.
void translate(const std::exception_ptr& exception, void* /*payload*/) {
  try {
    std::rethrow_exception(exception);
  } catch (const Error& error) {
    const nb::object raised = to_exception(error);
    PyErr_SetObject(raised.type().ptr(), raised.ptr());
  }
}

}  // namespace

// The package is imported by name at the first error: the module alone has no classes of errors.
nb::object to_exception(const Error& error) {
  return nb::module_::import_("sluice._errors")
      .attr("of_code")(error_code_name(error.code()), error.message(), error.context());
}

std::string unknown_keyword(std::string_view function, std::string_view name,
                            const std::vector<std::string>& known) {
  const std::string best = nearest(name, known);
  const std::string hint = best.empty() ? "" : fmt::format("; did you mean '{}'?", best);
  return fmt::format("{}() got an unexpected keyword argument '{}'{}", function, name, hint);
}

void bind_errors(nb::module_& m) {
  nb::register_exception_translator(translate);
  m.def("unknown_keyword", unknown_keyword, nb::arg("function"), nb::arg("name"), nb::arg("known"),
        "The text of a TypeError for a keyword that is not among `known`, with the nearest one.");
}

}  // namespace sluice::python
