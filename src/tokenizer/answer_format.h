// How a model writes its answers, found out from its chat template.
//
// For programs that serve chats: the result goes into an AnswerScanner. Thread rule: free
// functions.
#pragma once

#include <span>

#include "tokenizer/answer_scanner.h"
#include "tokenizer/chat_template.h"

namespace sluice {

// The format of a template's answers, by what the template itself writes for an assistant's
// message: a format of calls is recognised if a scanner reads a call back, and the model thinks if
// <think> is in the template's own text. Without either, and for a template that cannot be used,
// the format says that all is content. starts_in_thought is left false: see below.
//
// Cost: a few renders of a short conversation; do it once for a template.
AnswerFormat recognise_answer_format(const ChatTemplate& chat_template);

// The format of the answer to one prompt. `of_template` is what its template is recognised as;
// without `with_tools` the request has no tools that may be called.
//
// starts_in_thought: the model thinks, and the template's own text, or the message that is
// continued, opens a thought and does not close it. Tags in other messages do not count.
AnswerFormat format_of_answer(AnswerFormat of_template, std::span<const TextSegment> prompt,
                              bool with_tools);

}  // namespace sluice
