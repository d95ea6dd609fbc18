// One needle test: the questions of one kind to one engine.
//
// Used by needle.cc for a single test and for each test of a table. Thread rule: main thread.
#pragma once

#include <memory>

#include "eval/report.h"
#include "eval/task.h"

namespace sluice::eval {

// The task of command.kind. Errors: kInvalidArgument listing the known kinds; those of the file of
// templates.
std::unique_ptr<NeedleTask> require_kind(const NeedleCommand& command);

// Loads an engine and asks all questions, or those until Ctrl-C. Makes command.out, but writes
// nothing there.
// Errors: kInvalidArgument, kDoesNotFit, kIo, and those of LLM; Interrupted before the first
// question.
NeedleReport run_needle(const NeedleCommand& command);

}  // namespace sluice::eval
