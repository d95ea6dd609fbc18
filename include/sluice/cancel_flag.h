// CancelFlag: ends a request from any thread.
//
// Passed to LLM::add_request. The engine reads it before each step, and many times a second within
// a long prefill pass. Thread rule: the owner may set it from any thread, at any time; everything
// else about a request belongs to the thread that calls the LLM.
#pragma once

#include <atomic>
#include <memory>

namespace sluice {

// True ends the request with kCancelled, and must then stay true. Null: the request ends by itself
// or by LLM::cancel_request.
using CancelFlag = std::shared_ptr<const std::atomic<bool>>;

}  // namespace sluice
