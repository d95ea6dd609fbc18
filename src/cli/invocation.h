// Invocation: one call of a subcommand, from its words to its exit code.
//
// Made and filled by option_set.cc, run by main.cc. Thread rule: main thread.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace sluice::cli {

class OptionSet;

// Options that were set, by long name. The value is what an error should name: the option as
// written, or its environment variable.
using Given = std::map<std::string, std::string>;

class Invocation {
 public:
  virtual ~Invocation() = default;

  // Sets defaults and declares the options; their readers write into this object, which must not
  // move.
  virtual void declare_options(OptionSet& set) = 0;
  // Called once after all options were read: refuses contradictory options and appends to
  // `warnings` what is suspicious but no error. Errors: kInvalidArgument.
  virtual void finish(const Given& given, std::vector<std::string>* warnings) = 0;
  // Returns the exit code. REQUIRES: finish.
  virtual int run() const = 0;
};

// An invocation with options of type C; tests read them.
template <typename C>
class InvocationWith : public Invocation {
 public:
  C options;
};

}  // namespace sluice::cli
