#include "io/json_type.h"

template class nlohmann::basic_json<>;
template class std::vector<nlohmann::json>;
template class std::map<std::string, nlohmann::json, std::less<>>;
template class nlohmann::detail::serializer<nlohmann::json>;
template class nlohmann::detail::parser<nlohmann::json, sluice::MemoryInput>;
template class nlohmann::detail::parser<nlohmann::json, sluice::StringInput>;
template class nlohmann::detail::parser<nlohmann::json, sluice::StreamInput>;
template class nlohmann::basic_json<nlohmann::ordered_map>;
template class std::vector<nlohmann::ordered_json>;
template class nlohmann::detail::serializer<nlohmann::ordered_json>;
template class nlohmann::detail::parser<nlohmann::ordered_json, sluice::MemoryInput>;
template class nlohmann::detail::parser<nlohmann::ordered_json, sluice::StringInput>;
