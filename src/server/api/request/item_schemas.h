// What the description of the API says of objects that no table of fields has: messages, blocks,
// items and tools, as JSON Schema.
//
// The checks of them are code of their own (chat_messages.cc, messages_conversation.cc,
// response_input.cc, response_tools.cc); tests/server/openapi_test.cc compares both. What no schema
// can say is missing: that a text is JSON, that two names differ. Thread rule: constants.
#pragma once

#include <string_view>

namespace sluice::api {

inline constexpr std::string_view kChatMessageSchema = R"({
  "type": "object", "required": ["role"],
  "properties": {
    "role": {"enum": ["system", "developer", "user", "assistant", "tool"]},
    "content": {"anyOf": [{"type": ["string", "null"]}, {"type": "array", "items": {
      "type": "object", "required": ["type", "text"],
      "properties": {"type": {"const": "text"}, "text": {"type": ["string", "null"]}}}}]},
    "tool_calls": {"type": ["array", "null"], "items": {
      "type": "object", "required": ["function"],
      "properties": {"function": {"type": "object", "required": ["name"], "properties": {
        "name": {"type": "string"}, "arguments": {"type": ["object", "string", "null"]}}}}}},
    "reasoning_content": {"type": ["string", "null"]},
    "thinking": {"type": ["string", "null"]},
    "reasoning": {"type": ["string", "null"]}}})";

inline constexpr std::string_view kChatToolSchema = R"({
  "type": "object", "required": ["function"],
  "properties": {"type": {"const": "function"}, "function": {
    "type": "object", "required": ["name"],
    "properties": {"name": {"type": "string", "minLength": 1, "maxLength": 256},
                   "parameters": {"type": ["object", "null"]}}}}})";

// Anthropic's system prompt: the whole value.
inline constexpr std::string_view kSystemSchema = R"({
  "anyOf": [{"type": ["string", "null"]}, {"type": "array", "items": {
    "type": "object", "required": ["type", "text"],
    "properties": {"type": {"const": "text"}, "text": {"type": ["string", "null"]}}}}]})";

inline constexpr std::string_view kBlockMessageSchema = R"({
  "type": "object", "required": ["role", "content"],
  "properties": {
    "role": {"enum": ["user", "assistant", "system"]},
    "content": {"anyOf": [{"type": ["string", "null"]}, {"type": "array", "items": {"anyOf": [
      {"type": "object", "required": ["type", "text"],
       "properties": {"type": {"const": "text"}, "text": {"type": ["string", "null"]}}},
      {"type": "object", "required": ["type", "tool_use_id"],
       "properties": {"type": {"const": "tool_result"}, "tool_use_id": {"type": "string"},
         "content": {"anyOf": [{"type": ["string", "null"]}, {"type": "array", "items": {
           "type": "object", "required": ["type", "text"],
           "properties": {"type": {"const": "text"}, "text": {"type": ["string", "null"]}}}}]}}},
      {"type": "object", "required": ["type", "id", "name", "input"],
       "properties": {"type": {"const": "tool_use"}, "id": {"type": "string"},
         "name": {"type": "string"}, "input": {"type": "object"}}},
      {"type": "object", "required": ["type", "thinking"],
       "properties": {"type": {"const": "thinking"}, "thinking": {"type": ["string", "null"]}}},
      {"type": "object", "required": ["type"],
       "properties": {"type": {"const": "redacted_thinking"}}}]}}]}},
  "allOf": [
    {"anyOf": [{"properties": {"role": {"const": "assistant"}}},
      {"properties": {"content": {"items": {"properties": {
        "type": {"enum": ["text", "tool_result"]}}}}}}]},
    {"anyOf": [{"properties": {"role": {"enum": ["user", "assistant"]}}},
      {"properties": {"content": {"items": {"properties": {"type": {"const": "text"}}}}}}]},
    {"anyOf": [{"properties": {"role": {"enum": ["user", "system"]}}},
      {"properties": {"content": {"items": {"properties": {"type": {
        "enum": ["text", "tool_use", "thinking", "redacted_thinking"]}}}}}}]}]})";

// A type of another name is left out, whatever it has.
inline constexpr std::string_view kBlockToolSchema = R"({
  "type": "object",
  "properties": {"type": {"type": ["string", "null"]}},
  "anyOf": [
    {"required": ["type"],
     "properties": {"type": {"type": "string", "not": {"const": "custom"}}}},
    {"required": ["name", "input_schema"],
     "properties": {"type": {"enum": ["custom", null]},
       "name": {"type": "string", "minLength": 1, "maxLength": 256},
       "description": {"type": ["string", "null"]}, "input_schema": {"type": "object"}}}]})";

inline constexpr std::string_view kResponseItemSchema = R"({
  "type": "object",
  "anyOf": [
    {"required": ["role", "content"],
     "properties": {"type": {"enum": ["message", "", null]},
       "role": {"enum": ["user", "assistant", "system", "developer"]},
       "content": {"anyOf": [{"type": ["string", "null"]}, {"type": "array", "items": {
         "type": "object", "required": ["type", "text"],
         "properties": {"type": {"enum": ["input_text", "output_text"]},
                        "text": {"type": ["string", "null"]}}}}]}}},
    {"required": ["type"],
     "properties": {"type": {"const": "reasoning"},
       "content": {"anyOf": [{"type": ["string", "null"]}, {"type": "array", "items": {
         "type": "object", "required": ["type", "text"],
         "properties": {"type": {"enum": ["reasoning_text", "text"]},
                        "text": {"type": ["string", "null"]}}}}]}}},
    {"required": ["type", "call_id", "name"],
     "properties": {"type": {"const": "function_call"}, "call_id": {"type": "string"},
       "name": {"type": "string"}, "namespace": {"type": ["string", "null"]},
       "arguments": {"type": ["object", "string", "null"]}}},
    {"required": ["type", "call_id", "output"],
     "properties": {"type": {"const": "function_call_output"}, "call_id": {"type": "string"},
       "output": {"anyOf": [{"type": ["string", "null"]}, {"type": "array", "items": {
         "type": "object", "required": ["type", "text"],
         "properties": {"type": {"enum": ["input_text", "output_text"]},
                        "text": {"type": ["string", "null"]}}}}]}}}]})";

inline constexpr std::string_view kResponseToolSchema = R"({
  "type": "object", "required": ["type"],
  "properties": {"type": {"type": "string"}},
  "anyOf": [
    {"properties": {"type": {"not": {"enum": ["function", "namespace"]}}}},
    {"required": ["name"],
     "properties": {"type": {"const": "function"}, "name": {"type": "string", "minLength": 1,
       "maxLength": 256}, "description": {"type": ["string", "null"]},
       "parameters": {"type": ["object", "null"]}}},
    {"required": ["name", "tools"],
     "properties": {"type": {"const": "namespace"}, "name": {"type": "string"},
       "tools": {"type": "array", "items": {
         "type": "object", "required": ["type"], "properties": {"type": {"type": "string"}},
         "anyOf": [
           {"properties": {"type": {"not": {"const": "function"}}}},
           {"required": ["name"], "properties": {
             "name": {"type": "string", "minLength": 1, "maxLength": 256},
             "description": {"type": ["string", "null"]},
             "parameters": {"type": ["object", "null"]}}}]}}}}]})";

// Of structured output: response_format and what has its form, and vLLM's structured_outputs. What
// a schema, a tag or a grammar says is read later; here it is a text or an object.
inline constexpr std::string_view kAnswerFormatSchema = R"({
  "type": "object", "required": ["type"], "properties": {
    "type": {"enum": ["text", "json_object", "json_schema", "structural_tag"]},
    "json_schema": {"type": ["object", "null"], "properties": {
      "name": {"type": ["string", "null"]}, "description": {"type": ["string", "null"]},
      "schema": {"type": ["object", "boolean", "string", "null"]},
      "strict": {"type": ["boolean", "null"]}}},
    "schema": {"type": ["object", "boolean", "string", "null"]},
    "format": {"type": ["object", "null"]}, "structures": {"type": ["array", "null"]},
    "triggers": {"type": ["array", "null"], "items": {"type": "string"}}},
  "anyOf": [{"properties": {"type": {"not": {"const": "json_schema"}}}},
            {"required": ["json_schema"], "properties": {"json_schema": {
              "type": "object", "required": ["schema"],
              "properties": {"schema": {"type": ["object", "boolean", "string"]}}}}},
            {"required": ["schema"], "properties": {"json_schema": {"type": "null"},
              "schema": {"type": ["object", "boolean", "string"]}}}]})";
inline constexpr std::string_view kStructuredOutputsSchema = R"({
  "type": "object", "additionalProperties": {"enum": [null, false]}, "properties": {
    "json": {"type": ["object", "boolean", "string", "null"]},
    "regex": {"type": ["string", "null"]},
    "choice": {"type": ["array", "null"], "minItems": 1,
               "items": {"type": "string", "minLength": 1}},
    "grammar": {"type": ["string", "null"]},
    "structural_tag": {"type": ["object", "string", "null"]},
    "json_object": {"type": ["boolean", "null"]}}})";

// Rules between the members of a body. Null is the same as left out. A choice of tools that is no
// word asks for calls, or names the functions that it allows: both need tools. That the names are
// among the tools cannot be said here.
inline constexpr std::string_view kCompletionRules = R"([
  {"anyOf": [{"properties": {"max_tokens": {"not": {"const": 0}}}},
             {"required": ["echo"], "properties": {"echo": {"const": true}}}]},
  {"anyOf": [{"properties": {"stream_options": {"type": ["object", "null"], "maxProperties": 0}}},
             {"required": ["stream"], "properties": {"stream": {"const": true}}}]}])";
inline constexpr std::string_view kChatRules = R"([
  {"anyOf": [{"properties": {"stream_options": {"type": ["object", "null"], "maxProperties": 0}}},
             {"required": ["stream"], "properties": {"stream": {"const": true}}}]},
  {"not": {"required": ["add_generation_prompt", "continue_final_message"], "properties": {
    "add_generation_prompt": {"const": true}, "continue_final_message": {"const": true}}}},
  {"anyOf": [{"properties": {"top_logprobs": {"enum": [0, null]}}},
             {"required": ["logprobs"], "properties": {"logprobs": {"const": true}}}]},
  {"anyOf": [{"properties": {"tool_choice": {"enum": ["auto", "none", null]}}},
             {"required": ["tools"],
              "properties": {"tools": {"type": "array", "minItems": 1}}}]}])";
inline constexpr std::string_view kResponseRules = R"([
  {"anyOf": [{"properties": {"tool_choice": {"enum": ["auto", "none", null]}}},
             {"required": ["tools"],
              "properties": {"tools": {"type": "array", "minItems": 1}}}]}])";
inline constexpr std::string_view kMessageRules = R"([
  {"anyOf": [{"properties": {"tool_choice": {"properties": {
                "type": {"enum": ["auto", "none", null]}}}}},
             {"required": ["tools"],
              "properties": {"tools": {"type": "array", "minItems": 1}}}]}])";
inline constexpr std::string_view kInputRules = R"([
  {"oneOf": [{"required": ["prompt"], "properties": {"prompt": {"type": "string"}}},
             {"required": ["messages"], "properties": {"messages": {"type": "array"}}}]},
  {"anyOf": [{"properties": {"messages": {"type": "null"}}},
    {"not": {"required": ["add_generation_prompt", "continue_final_message"], "properties": {
      "add_generation_prompt": {"const": true}, "continue_final_message": {"const": true}}}}]}])";

}  // namespace sluice::api
