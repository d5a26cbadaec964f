// What a run ran on: hosts, devices, versions of libraries, as names and values for people. Nothing
// is decided by it, and what is not known is left out.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace millrace {

using RunEnvironment = std::vector<std::pair<std::string, std::string>>;  // name, value

// Entries that every call has its own of; the others tell machines and programs apart.
inline constexpr std::string_view kHostEntry = "host", kStartEntry = "started",
                                  kCommandEntry = "command";

// One list of all ranks' (by rank), in the order in which names first appear. A value that not all
// ranks share says whose it is, and so does a host: "elm: ranks 0-3, 6; oak: ranks 4-5". Start and
// command are rank 0's.
RunEnvironment Together(const std::vector<RunEnvironment>& ranks);

// One rank's as a line of text for the others, and all ranks' lines together. Bytes that are not
// UTF-8 become replacement characters.
std::string PackedText(const RunEnvironment& own);
RunEnvironment Together(const std::vector<std::string>& packed);

}  // namespace millrace
