// Invocation: one use of a subcommand, from its words to its exit code.
//
// option_set.cc makes it and reads words into it, main.cc runs it. Thread rule: main thread.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace sluice::cli {

class OptionSet;

// Options that were given: the long name, and what an error should name (it or its variable).
using Given = std::map<std::string, std::string>;

class Invocation {
 public:
  virtual ~Invocation() = default;

  // Sets defaults and declares what can be given; the readers write into this object.
  virtual void declare_options(OptionSet& set) = 0;
  // After the words and the environment were read: refuses what must not be together, adds to
  // `warnings` what is no error. Errors: kInvalidArgument.
  virtual void finish(const Given& given, std::vector<std::string>* warnings) = 0;
  // Returns the exit code. REQUIRES: finish.
  virtual int run() const = 0;
};

// An invocation whose options are a C; tests look at them.
template <typename C>
class InvocationWith : public Invocation {
 public:
  C options;
};

}  // namespace sluice::cli
