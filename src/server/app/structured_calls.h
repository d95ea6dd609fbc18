// What the answer to a chat must be, whose tools may be called: calls as structured output.
//
// Used by take_conversation. Thread rule: pure functions.
#pragma once

#include <memory>

#include "server/api/request/request.h"
#include "sluice/structured_output.h"
#include "tokenizer/answer_scanner.h"

namespace sluice::server {

// The functions that the answer may call, with schemas where a reader of this format needs them.
CallableTools callable_tools(const api::ChatRequest& request, ToolFormat format);

// The structure of the answer, of a model that writes calls in this format: that of the request
// where no tools may be called, and null where the answer is free.
//
// - A call that must come comes from the beginning of the answer on, after a thought if there is
//   one. Of a function that is not strict, what its schema asks for and cannot be enforced is
//   ignored.
// - If a function is strict, or only some may be called, the answer is free until a call begins,
//   which then is one of these; arguments of strict ones follow their schema.
// - Beside a structure that is JSON the answer is a call or that.
//
// The prompt says nothing of all this: a template is told of all tools, as without a choice.
//
// Errors: 400 for a call that must come if the format is not known or the answer has a structure,
// and for tools beside a structure that has no end of its own in this format.
api::Read<std::shared_ptr<const StructuredOutput>> structured_calls(const api::ChatRequest& request,
                                                                    ToolFormat format);

}  // namespace sluice::server
