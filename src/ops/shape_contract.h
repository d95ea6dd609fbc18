// ShapeContract: the executable form of the shape comments of the ops.
//
// Used by the .cc file beside each op's header, once per call, before the backend sees the
// arguments. The first view that mentions a symbol ("m", "hidden") binds it; a later view that
// disagrees aborts and names the symbol, since a wrong shape is a mistake in Sluice, not in its
// input.
// Thread rule: a local variable. Cost: a few comparisons, no allocation unless it fails.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string_view>

#include "core/tensor_view.h"

namespace sluice {

class ShapeContract {
 public:
  // `op` opens every message.
  explicit ShapeContract(std::string_view op) : op_(op) {}

  // `view` is present, has type `dtype` and dims named by `symbols`.
  void expect(std::string_view name, const TensorView& view, DType dtype,
              std::initializer_list<std::string_view> symbols);

  // As `expect`, but the view may have no data: it describes a tensor that a reader provides.
  void expect_described(std::string_view name, const TensorView& view, DType dtype,
                        std::initializer_list<std::string_view> symbols);

  // As `expect`, or absent.
  void expect_or_absent(std::string_view name, const TensorView& view, DType dtype,
                        std::initializer_list<std::string_view> symbols);

  // Gives a symbol that is no dim of its own (2 * intermediate) a value before it is used.
  void bind(std::string_view symbol, int64_t value);

  // Any other condition. `rule` states it in words and is the text of the failure.
  void require(bool holds, std::string_view rule);

  // The value of a symbol. REQUIRES: it is bound.
  int64_t operator[](std::string_view symbol) const;

 private:
  struct Symbol {
    std::string_view name;
    int64_t value = 0;
    std::string_view bound_by;  // the view that decided it, for the message
  };

  // Null if the symbol is not bound yet.
  Symbol* find(std::string_view symbol);
  // Compares dimension `dim` with the symbol, or binds the symbol to it.
  void match(std::string_view name, const TensorView& view, int dim, std::string_view symbol);

  std::string_view op_;
  // Linear search: 16 is above the number of symbols of the largest op.
  std::array<Symbol, 16> symbols_{};
  int num_symbols_ = 0;
};

}  // namespace sluice
