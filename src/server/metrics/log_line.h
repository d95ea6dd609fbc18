// What the lines of a log begin with, and how they write texts and times.
//
// Used by request_log.h and status_line.h. Thread rule: free functions without state.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

namespace sluice::metrics {

using LogTime = std::chrono::system_clock::time_point;

// "2026-11-23T12:00:00.250Z".
std::string log_time_text(LogTime time);

// The text as one word of at most 128 bytes: what is no printable ASCII, and each space, becomes
// '?', and no text "-". So no value can look like another field, or like another line.
std::string log_word(std::string_view text);

// {"time": ..., "event": ...} to be filled, and the line of a filled one. What is not UTF-8 becomes
// U+FFFD; there is no newline in it.
nlohmann::ordered_json log_object(LogTime time, std::string_view event);
std::string log_json_line(const nlohmann::ordered_json& object);

// An event "warning" with its text, as such a line.
std::string warning_json(LogTime time, std::string_view warning);

// Seconds, without digits beyond microseconds.
double log_seconds(double seconds);

}  // namespace sluice::metrics
