// The messages of a chat request: checked, and brought into the form that templates expect.
//
// Used by ChatTemplate. Errors name the place ("messages[2].content[0]"). Thread rule: free
// functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace sluice {

// What a template can write, as ChatTemplate finds out by trying.
struct TemplateForms {
  std::vector<std::string> part_roles;  // whose messages may have lists of parts
  bool takes_several_calls = true;      // a message with more than one call
  bool takes_text_arguments = false;    // a call whose arguments are a text
  std::string empty_answer;             // the content of an answer that has nothing: "" or " "
};

// A copy of `messages` with the changes that ChatTemplate::render lists.
//
// Errors: kInvalidArgument.
nlohmann::ordered_json prepare_messages(const nlohmann::ordered_json& messages,
                                        const TemplateForms& forms);

// Errors: kInvalidArgument unless `tools` is a list of objects.
void check_tools(const nlohmann::ordered_json& tools);

// The text of the last message, for continue_final_message: that of its last part if it has parts.
// Errors: kInvalidArgument if it has none.
nlohmann::ordered_json& final_text(nlohmann::ordered_json& messages);

// The member "arguments" of a call's `function` as an object: parsed if it is a text, as models
// write it; {} if it is missing, null or an empty text, which all say that there are no arguments.
// A text that is not that of an object, such as that of a call that was cut, stays a text: the
// conversation that has it can go on.
// Errors: kInvalidArgument that begins with `place`, and ".arguments", for other types.
nlohmann::ordered_json call_arguments(const nlohmann::ordered_json& function,
                                      std::string_view place);

// A JSON object from its text. Errors: kInvalidArgument that begins with `what`.
nlohmann::ordered_json parse_object(std::string_view text, std::string_view what);
// The same for a list.
nlohmann::ordered_json parse_list(std::string_view text, std::string_view what);

}  // namespace sluice
