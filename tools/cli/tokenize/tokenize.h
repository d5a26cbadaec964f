// What verbs that read text files share.
#pragma once

#include <string>
#include <vector>

namespace millrace {

// Files, and the files of folders, in order.
std::vector<std::string> TextInputs(const std::vector<std::string>& paths);

int ThreadsOf(int asked);  // 0: one per core

}  // namespace millrace
