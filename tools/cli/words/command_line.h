// The words of the command line, down to the verb that they ask for.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace millrace {

// A verb with its words; returns the process's exit code.
using Command = std::function<int()>;

// What `words`, without the program's name, ask for. Help and mistakes are printed here, and what
// is returned does no more than give their exit code; Error(kConfig) for an unknown verb.
Command ParseCommandLine(const char* program, std::vector<std::string> words);

}  // namespace millrace
