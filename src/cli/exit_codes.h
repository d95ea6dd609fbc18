// Exit codes of the programs. Thread rule: constants.
#pragma once

namespace sluice::cli {

// Exit codes, the same for every command; --help lists them.
inline constexpr int kExitOk = 0;
inline constexpr int kExitFailure = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitModel = 3;
inline constexpr int kExitDoesNotFit = 4;
inline constexpr int kExitInterrupted = 130;  // 128 + SIGINT, as shells report it
inline constexpr int kExitClosedPipe = 141;   // 128 + SIGPIPE: who read the results has ended

}  // namespace sluice::cli
