// nlohmann::json and nlohmann::ordered_json, whose templates are compiled once, in json_type.cc.
//
// Include this header, not nlohmann/json.hpp: else each file that reads and writes documents takes
// some 5 s more to compile. What is declared extern here is compiled in json_type.cc alone;
// iterators and functions that are templates themselves, such as get<T>(), still are compiled where
// they are used. The names in detail are those of the library's versions 3.11 and 3.12.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace sluice {

// What nlohmann's parsers read: a text in memory, a std::string, and a stream.
using MemoryInput = nlohmann::detail::iterator_input_adapter<const char*>;
using StringInput = nlohmann::detail::iterator_input_adapter<std::string::const_iterator>;
using StreamInput = nlohmann::detail::input_stream_adapter;

}  // namespace sluice

extern template class nlohmann::basic_json<>;
extern template class std::vector<nlohmann::json>;
extern template class std::map<std::string, nlohmann::json, std::less<>>;
extern template class nlohmann::detail::serializer<nlohmann::json>;
extern template class nlohmann::detail::parser<nlohmann::json, sluice::MemoryInput>;
extern template class nlohmann::detail::parser<nlohmann::json, sluice::StringInput>;
extern template class nlohmann::detail::parser<nlohmann::json, sluice::StreamInput>;

extern template class nlohmann::basic_json<nlohmann::ordered_map>;
extern template class std::vector<nlohmann::ordered_json>;
extern template class nlohmann::detail::serializer<nlohmann::ordered_json>;
extern template class nlohmann::detail::parser<nlohmann::ordered_json, sluice::MemoryInput>;
extern template class nlohmann::detail::parser<nlohmann::ordered_json, sluice::StringInput>;
