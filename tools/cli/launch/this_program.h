// This process: how it was asked for, and the MPI that it runs with.
#pragma once

#include <string>

namespace millrace {

// As it was given: words that a shell would split are in quotes.
std::string CommandLine();

std::string MpiLibrary();  // "Open MPI v4.1.4": the loaded one
bool MpiStarted();

}  // namespace millrace
