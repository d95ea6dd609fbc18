// The module sluice._core.
#include "bind.h"

NB_MODULE(_core, m) {
  m.doc() = "The C++ engine. Use the package sluice, which is written on this module.";
  sluice::python::bind_errors(m);
  sluice::python::bind_options(m);
  sluice::python::bind_output(m);
  sluice::python::bind_engine(m);
  sluice::python::bind_service(m);
  sluice::python::bind_inspect(m);
}
